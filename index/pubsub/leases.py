"""Leases: a process owns its live subscriptions exactly as long as it lives.

    STORE/live       (one file, empty)
                     byte 0x3f2a…  locked by process 4711  ──  its subscriptions' owner number
                     byte 0x81c0…  not locked              ──  its process has ended: what it owned is removed

A process that subscribes draws an owner number of 56 random bits and locks the byte of that
number (ofd_lock.py). The kernel releases the lock when the process ends, however it ends: no clock
is compared, and no heartbeat is written. Whether an owner lives is one system call, about 2 µs.
A process that finds a dead owner removes what that owned.

There is one open file per process and store, shared by all handles on the store there.
A forked child closes it: it owns nothing of its parent's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from io import FileIO

from ...storage.engine.environment import Attachment, Environment
from ...storage.errors import CorruptionError, LockTimeout, ReadOnlyStore, StoreFull
from ...storage.locks import ofd_lock
from ...storage.log.transaction import WriteTransaction
from ...storage.tree.lmdb_errors import translated
from ...stream.entries.session import Direct, ask
from ..subjects import sublist
from ..subjects.subscription import Subscription
from . import channel_index
from .channel_index import OWNER_BYTES

LIVE = "live"
_RANDOM_BYTES = 7  # offsets of locks are signed 64-bit numbers


class Leases(Attachment):
    """The file ``live`` of one store in this process. Get it by env.attached(Leases)."""

    def __init__(self, env: Environment) -> None:
        self._path = env.path / LIVE
        self._mutex = threading.Lock()
        self._file: FileIO | None = None
        self._writable = False
        self._held: set[int] = set()

    def take(self) -> int:
        """A new owner number, held by this process until give_back() or its end."""
        with self._mutex, translated(self._path):
            file = self._opened(for_writing=True)
            while True:
                owner = int.from_bytes(os.urandom(_RANDOM_BYTES), "big")
                if owner not in self._held:
                    # else it has been drawn before, here or by another process: once in 2**56 times
                    with contextlib.suppress(BlockingIOError, PermissionError):
                        ofd_lock.take(file, owner, 1)
                        self._held.add(owner)
                        return owner

    def give_back(self, owner: int) -> None:
        """Release an owner number."""
        with self._mutex, translated(self._path):
            if owner in self._held:
                if self._file is not None:
                    ofd_lock.give_back(self._file, owner, 1)
                self._held.discard(owner)
                if not self._held:
                    self._close()  # the next owner locks the file then in place: this one may have been deleted

    def lives(self, owner: int) -> bool:
        """Whether the process that took this number still lives. One system call."""
        with self._mutex:
            if owner in self._held:
                return True
            try:
                file = self._opened(for_writing=False)
            except FileNotFoundError:
                return False
            return not ofd_lock.is_free(file, owner, 1)

    def live_owners(self, txn: WriteTransaction, owners: list[int]) -> list[int]:
        """Those of the owners whose processes live. What the others owned is removed."""
        alive = []
        for owner in owners:
            if self.lives(owner):
                alive.append(owner)
            else:
                remove_owner(txn, owner)
        return alive

    def remove_dead_owners(self, source: Direct) -> None:
        """Remove what dead processes have left in the store, unless it is open for reading only, or damaged there.

        A descent for each process that owns something, and a system call. Nothing is written where
        all live.
        """
        # What is left has no effect; another process removes it. What is damaged is an error of the calls that need it.
        with contextlib.suppress(LockTimeout, StoreFull, CorruptionError):
            if source.env.readonly or all(map(self.lives, ask(source, channel_index.owners))):
                return
            source.submit(lambda txn: self.live_owners(txn, list(channel_index.owners(txn))))

    def close(self) -> None:
        """Close the file, which releases all owner numbers. Environment.close() calls this."""
        with self._mutex:
            self._close()
            self._held.clear()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def after_fork_in_child(self) -> bool:
        """Hold nothing. Closing its copy leaves the parent's locks as they are."""
        self._mutex = threading.Lock()
        self.close()
        return True

    def _opened(self, for_writing: bool) -> FileIO:
        if self._file is None or self._file.closed or (for_writing and not self._writable):
            if self._file is not None:
                self._file.close()  # opened to look only, so no lock is lost
            try:
                self._file = ofd_lock.open_file(self._path, os.O_RDWR | os.O_CREAT if for_writing else os.O_RDONLY)
            except OSError as error:
                if not for_writing or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                    raise
                raise ReadOnlyStore(f"no subscriptions: {self._path} cannot be written ({error})") from error
            self._writable = for_writing
        return self._file


def owner_bytes(owner: int) -> bytes:
    """The owner number as the owner of a live subscription."""
    return owner.to_bytes(OWNER_BYTES, "big")


def owner_of(record: Subscription) -> int | None:
    """The process of a live subscription; None where it was not made by subscribe(), and has another owner."""
    if len(record.owner) != OWNER_BYTES or record.owner[0]:  # numbers have 56 bits
        return None
    return int.from_bytes(record.owner, "big")


def remove_owner(txn: WriteTransaction, owner: int) -> None:
    """Remove everything a process owned: its subscriptions, channels and globs."""
    sublist.remove_owner(txn, owner_bytes(owner))
    channel_index.remove_owner(txn, owner)
