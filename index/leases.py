"""Leases: a process holds its live subscriptions for as long as it lives, and not a moment longer.

    STORE/live       (one file, empty)
                     byte 0x3f2a…  locked by process 4711  ──  its subscriptions' owner number
                     byte 0x81c0…  not locked              ──  its process is gone: so is what it owned

A process that subscribes draws an owner number of 56 random bits and locks the byte of that
number (own_lock.py). The kernel gives the lock back when the process ends, however it ends, so
nobody has to be told of a kill, no clock is compared, and no heartbeat is written. Whether an
owner lives is one system call, about 2 µs. Who finds a dead one removes what it owned.

There is one descriptor per process and file, counted here by the open stores that share it.
A forked child closes it: it owns nothing of its parent's.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from ..storage import own_lock
from ..storage.errors import ReadOnlyStore
from ..storage.sharing import at_fork

LIVE = "live"
_OWNER_BYTES = 7  # offsets of locks are signed 64-bit numbers

_registry_lock = threading.Lock()
_leases: dict[Path, Leases] = {}


class Leases:
    """The file ``live`` of one store in this process. Get it by attach(), give it back by detach()."""

    def __init__(self, path: Path) -> None:
        self._path = path / LIVE
        self._mutex = threading.Lock()
        self._descriptor = -1
        self._writable = False
        self._held: set[int] = set()
        self._pid = os.getpid()
        self.users = 0

    def take(self) -> int:
        """A new owner number, held by this process until give_back() or its end."""
        with self._mutex:
            descriptor = self._opened(for_writing=True)
            while True:
                owner = int.from_bytes(os.urandom(_OWNER_BYTES), "big")
                if owner in self._held:
                    continue
                try:
                    own_lock.take(descriptor, owner, 1)
                except (BlockingIOError, PermissionError):
                    continue  # another process drew the same: once in 2**56 times
                self._held.add(owner)
                return owner

    def give_back(self, owner: int) -> None:
        """The owner is no more: its number belongs to nobody."""
        with self._mutex:
            if owner in self._held and self._pid == os.getpid():
                self._held.discard(owner)
                own_lock.give_back(self._descriptor, owner, 1)
                if not self._held:
                    self._close()  # the next owner is of the file in place then: this one may have been deleted

    def lives(self, owner: int) -> bool:
        """Whether the process that took this number is still there. One system call."""
        with self._mutex:
            if self._pid == os.getpid() and owner in self._held:
                return True
            try:
                descriptor = self._opened(for_writing=False)
            except FileNotFoundError:
                return False
            return not own_lock.is_free(descriptor, owner, 1)

    def close(self) -> None:
        """Close the file, and with it give back all that is held."""
        with self._mutex:
            self._close()
            self._held.clear()

    def _close(self) -> None:
        if self._descriptor >= 0:
            own_lock.close_file(self._descriptor)
            self._descriptor = -1

    def forget(self) -> None:
        """In a child after fork: it holds nothing. Closing its copy leaves the parent's locks alone."""
        self._mutex = threading.Lock()
        self._pid = os.getpid()
        self.close()

    def _opened(self, for_writing: bool) -> int:
        if self._descriptor >= 0 and (self._writable or not for_writing):
            return self._descriptor
        if for_writing:
            if self._descriptor >= 0:
                own_lock.close_file(self._descriptor)  # opened to look only, so no lock is lost
            try:
                self._descriptor = own_lock.open_file(self._path)
            except OSError as error:
                self._descriptor = -1
                raise ReadOnlyStore(f"no subscriptions: {self._path} cannot be written ({error})") from error
            self._writable = True
        else:
            self._descriptor = own_lock.open_file(self._path, os.O_RDONLY)
            self._writable = False
        return self._descriptor


def attach(path: Path) -> Leases:
    """The leases of the store at ``path``, shared by all who have it open in this process."""
    with _registry_lock:
        path = Path(os.path.realpath(path))
        leases = _leases.get(path)
        if leases is None:
            leases = _leases[path] = Leases(path)
        leases.users += 1
        return leases


def detach(leases: Leases) -> None:
    """Give back what attach() gave; the last one closes the file."""
    with _registry_lock:
        leases.users -= 1
        if leases.users == 0:
            for path, known in list(_leases.items()):
                if known is leases:
                    del _leases[path]
            leases.close()


def _after_fork_in_child() -> None:
    global _registry_lock  # noqa: PLW0603 - a thread that is not here may hold the parent's
    _registry_lock = threading.Lock()
    for leases in _leases.values():
        leases.forget()


at_fork(after_in_child=_after_fork_in_child)
