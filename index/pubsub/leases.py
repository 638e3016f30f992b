"""Leases: a process owns its live subscriptions exactly as long as it lives.

    STORE/shared     byte 2^62 + 0x3f2a…  locked by process 4711  ──  its subscriptions' owner number
                     byte 2^62 + 0x81c0…  not locked              ──  its process has ended: what it owned is removed

A process that subscribes draws an owner number of 56 random bits and locks the byte of that
number (shared_file.py). The kernel releases the lock when the process ends, however it ends: no clock
is compared, and no heartbeat is written. Whether an owner lives is one system call, about 2 µs.
A process that finds a dead owner removes what that owned. A forked child owns nothing of its parent's.
"""

from __future__ import annotations

import contextlib
import os
import threading

from ...storage.engine.environment import Attachment, Environment
from ...storage.errors import CorruptionError, LockTimeout, ReadOnlyStore, StoreFull
from ...storage.format import records
from ...storage.locks import ofd_lock
from ...storage.locks.shared_file import LEASES
from ...storage.log.cursor import cursor_over
from ...storage.log.transaction import WriteTransaction
from ...storage.threads import outside
from ...storage.tree.lmdb_errors import translated
from ...storage.trees.rax import RaxTransaction
from ...stream.entries.session import StoreSource
from ..subjects import sublist
from . import channel_index
from .channel_index import OWNER_BYTES, OWNERS

_RANDOM_BYTES = 7


class Leases(Attachment):
    """The owner numbers of one store in this process. Get it by env.attached(Leases)."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._mutex = threading.RLock()  # no thread enters it twice
        self._held: set[int] = set()

    def take(self) -> int:
        """A new owner number, held by this process until give_back() or its end."""
        if self._env.readonly:
            raise ReadOnlyStore(f"no subscriptions: {self._env.path} is open with readonly=True")
        self._env.live()  # in a forked child it opens the store
        shared = self._env.files.shared
        assert shared is not None
        with outside(self._mutex, self._env.path), translated(self._env.path):
            while True:
                owner = int.from_bytes(os.urandom(_RANDOM_BYTES), "big")
                if owner not in self._held:
                    # else it has been drawn before, here or by another process: once in 2**56 times
                    with contextlib.suppress(BlockingIOError, PermissionError):
                        ofd_lock.take(shared, LEASES + owner, 1)
                        self._held.add(owner)
                        return owner

    def give_back(self, owner: int) -> None:
        """Release an owner number."""
        with outside(self._mutex, self._env.path), translated(self._env.path):
            shared = self._env.files.shared
            if owner in self._held and shared is not None:
                ofd_lock.give_back(shared, LEASES + owner, 1)
            self._held.discard(owner)

    def lives(self, owner: int) -> bool:
        """Whether the process that took this number still lives. One system call."""
        with outside(self._mutex, self._env.path):
            shared = self._env.files.shared
            return owner in self._held or (shared is not None and not ofd_lock.is_free(shared, LEASES + owner, 1))

    def live_owners(self, txn: WriteTransaction, owners: list[int]) -> list[int]:
        """Those of the owners whose processes live. What the others owned is removed."""
        alive = []
        for owner in owners:
            if self.lives(owner):
                alive.append(owner)
            else:
                remove_owner(txn, owner)
        return alive

    def remove_dead_owners(self, source: StoreSource) -> None:
        """Remove what dead processes have left in the store, unless it is open for reading only, or damaged there.

        A descent for each process that owns something, and a system call. Nothing is written where
        all live.
        """
        # What is left has no effect; another process removes it. What is damaged is an error of the calls that need it.
        with contextlib.suppress(LockTimeout, StoreFull, CorruptionError):
            if source.env.readonly:
                return
            with source.read() as txn:
                known = owners_in(txn)
            if all(map(self.lives, known)):
                return
            source.submit(lambda txn: self.live_owners(txn, list(owners_in(txn))))

    def require_outside(self) -> None:
        """TransactionError where this thread has been interrupted as it took a number, or asked for one."""
        outside(self._mutex, self._env.path)

    def close(self) -> None:
        """Hold nothing: the file is closed next, which releases all owner numbers."""
        self._held.clear()

    def after_fork_in_child(self) -> bool:
        """Hold nothing: the locks are the parent's."""
        self._mutex = threading.RLock()
        self._held.clear()
        return True


def owners_in(txn: RaxTransaction) -> dict[int, tuple[int, int]]:
    """All processes that own live subscriptions, dead ones included: {owner: (pid, since)}.

    One descent each, however much they own.
    """
    found = {}
    cursor = cursor_over(txn, OWNERS)
    more = cursor.first()
    while more:
        key = cursor.here
        owner = int.from_bytes(key[len(OWNERS):len(OWNERS) + OWNER_BYTES], "big")
        if len(key) == len(OWNERS) + OWNER_BYTES:
            pid, since = records.unseal(key, cursor.value())
            found[owner] = (pid, since)
        more = cursor.set_range(channel_index.owner_key(owner + 1))
    return found


def owner_bytes(owner: int) -> bytes:
    """The owner number as the owner of a live subscription."""
    return owner.to_bytes(OWNER_BYTES, "big")


def owner_of(owner: bytes) -> int | None:
    """The process that is a live subscription's owner; None where subscribe() has not made it, and it has another."""
    if len(owner) != OWNER_BYTES or owner[0]:  # numbers have 56 bits
        return None
    return int.from_bytes(owner, "big")


def remove_owner(txn: WriteTransaction, owner: int) -> None:
    """Remove everything a process owned: its subscriptions, channels and globs."""
    sublist.remove_owner(txn, owner_bytes(owner))
    channel_index.remove_owner(txn, owner)
