"""The slots of readers in LMDB's lock file: a read takes one, and gives it back.

    lock.mdb     magic │ format │ mutex: the thread that has it (4 bytes) … │ newest commit │ … │ slot │ slot │ …

To take a slot is to have LMDB's mutex for a microsecond. It is free again when its owner is killed, not where that is
stopped (SIGSTOP, a debugger): then LMDB has all others wait, in C, without an end, and with the interpreter's lock. So
a read looks first whether a thread has the mutex. Where one keeps it, the read sleeps, and in the end names it.

Between the look and LMDB's own lies a tenth of a microsecond, in which that thread would have to come and be stopped.
Where LMDB, or its mutex (of glibc), is not as it is known here, nothing is looked at.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from .. import clocks, disk
from ..errors import LockTimeout

_HEAD = 16
_KNOWN_FORMAT = 1 << 16 | 1  # of LMDB 0.9, where processes show by locks that they live
_THREAD = (1 << 30) - 1  # the two bits above say that others wait, and that the owner has died
_HAS_WORD = "CS_GNU_LIBC_VERSION" in os.confstr_names
_PATIENCE = 30.0  # seconds for what takes a microsecond
_YIELDS, _LOOKS = 100, 0.001
_NO_HEAD = memoryview(bytes(_HEAD)).cast("I")


class ReaderSlots:
    """The mutex over the slots of one generation. ``owner[0]``: 0 where no thread has it."""

    __slots__ = ("_format", "_store", "owner")

    def __init__(self, path: Path | None) -> None:
        """Of the lock file, which is there and which LMDB has not opened: to close a descriptor drops its locks.

        None: the generation is mapped without.
        """
        self._store = path and path.parent.parent
        head = _NO_HEAD
        if path is not None and _HAS_WORD:
            with disk.open_file(path, os.O_RDWR) as file:  # without locks: in a forked child it stays open
                if os.fstat(file.fileno()).st_size < _HEAD:
                    os.ftruncate(file.fileno(), _HEAD)  # LMDB makes it larger
                head = memoryview(mmap.mmap(file.fileno(), _HEAD, access=mmap.ACCESS_READ)).cast("I")
        self._format, self.owner = head[1:2], head[2:3]

    def close(self) -> None:
        """Close the map of the lock file."""
        self._format = self.owner = _NO_HEAD

    def wait(self) -> None:
        """Wait until no thread has the mutex. LockTimeout."""
        began, yields = clocks.elapsed(), _YIELDS
        while self._format[0] == _KNOWN_FORMAT and (owner := self.owner[0] & _THREAD):
            if clocks.elapsed() > began + _PATIENCE:
                raise LockTimeout(
                    f"waited {_PATIENCE:g} s for the readers of {self._store}: process or thread {owner} has their "
                    "lock, and may have been stopped (SIGSTOP, a debugger). Let it go on, or end it."
                )
            clocks.sleep(0 if yields > 0 else _LOOKS)
            yields -= 1
