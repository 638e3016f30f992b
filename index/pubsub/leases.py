"""Leases: a process holds its live subscriptions for as long as it lives, and not a moment longer.

    STORE/live       (one file, empty)
                     byte 0x3f2a…  locked by process 4711  ──  its subscriptions' owner number
                     byte 0x81c0…  not locked              ──  its process is gone: so is what it owned

A process that subscribes draws an owner number of 56 random bits and locks the byte of that
number (ofd_lock.py). The kernel gives the lock back when the process ends, however it ends, so
nobody has to be told of a kill, no clock is compared, and no heartbeat is written. Whether an
owner lives is one system call, about 2 µs. Who finds a dead one removes what it owned.

There is one open file per process and store, for all who have the store open here.
A forked child closes it: it owns nothing of its parent's.
"""

from __future__ import annotations

import contextlib
import os
import threading
from io import FileIO

from ...storage.engine.environment import Attachment, Environment
from ...storage.errors import ReadOnlyStore
from ...storage.files import ofd_lock

LIVE = "live"
_OWNER_BYTES = 7  # offsets of locks are signed 64-bit numbers


class Leases(Attachment):
    """The file ``live`` of one store in this process. Get it by leases_of()."""

    def __init__(self, env: Environment) -> None:
        self._path = env.path / LIVE
        self._mutex = threading.Lock()
        self._file: FileIO | None = None
        self._writable = False
        self._held: set[int] = set()
        self._pid = os.getpid()

    def take(self) -> int:
        """A new owner number, held by this process until give_back() or its end."""
        with self._mutex:
            file = self._opened(for_writing=True)
            while True:
                owner = int.from_bytes(os.urandom(_OWNER_BYTES), "big")
                if owner not in self._held:
                    # else it has been drawn before, here or by another process: once in 2**56 times
                    with contextlib.suppress(BlockingIOError, PermissionError):
                        ofd_lock.take(file, owner, 1)
                        self._held.add(owner)
                        return owner

    def give_back(self, owner: int) -> None:
        """The owner is no more: its number belongs to nobody."""
        with self._mutex:
            if owner in self._held and self._pid == os.getpid():
                if self._file is not None:
                    ofd_lock.give_back(self._file, owner, 1)
                self._held.discard(owner)
                if not self._held:
                    self._close()  # the next owner is of the file in place then: this one may have been deleted

    def lives(self, owner: int) -> bool:
        """Whether the process that took this number is still there. One system call."""
        with self._mutex:
            if self._pid == os.getpid() and owner in self._held:
                return True
            try:
                file = self._opened(for_writing=False)
            except FileNotFoundError:
                return False
            return not ofd_lock.is_free(file, owner, 1)

    def close(self) -> None:
        """Close the file, and with it give back all that is held. Environment.close() calls this."""
        with self._mutex:
            self._close()
            self._held.clear()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def after_fork_in_child(self) -> bool:
        """Hold nothing. Closing its copy leaves the parent's locks alone."""
        self._mutex = threading.Lock()
        self._pid = os.getpid()
        self.close()
        return True

    def _opened(self, for_writing: bool) -> FileIO:
        if self._file is None or self._file.closed or (for_writing and not self._writable):
            if self._file is not None:
                self._file.close()  # opened to look only, so no lock is lost
            try:
                self._file = ofd_lock.open_file(self._path, os.O_RDWR | os.O_CREAT if for_writing else os.O_RDONLY)
            except OSError as error:
                if not for_writing:
                    raise
                raise ReadOnlyStore(f"no subscriptions: {self._path} cannot be written ({error})") from error
            self._writable = for_writing
        return self._file


def leases_of(env: Environment) -> Leases:
    """The leases of an environment: of all who have the store open in this process."""
    return env.attached(Leases)
