"""LMDB's lock file: its locks kept in force where a copy of the folder drops them, and the slots of its readers.

    byte 0        LMDB: a read lock of each process that maps the file. A process that opens and finds
                  none takes itself to be alone, and initialises the file
    byte <pid>    LMDB: a write lock of each process that reads. Where there is none the process counts
                  as dead, and the pages that its reads see may be used again
    byte 2^31     ours: held during an opening, with bytes before it that name the process (ofd_lock.py)

LMDB's are POSIX locks, which a program that opens, reads and closes this file loses. So both bytes bear a
lock of ours as well (ofd_lock.py), which LMDB takes for another process'. Its write lock suffers no other
beside it: it is made a read lock before, which shows the same to all others.

LMDB comes first, for it must find out whether it is alone. Byte 2^31 keeps others from opening until our
locks are there: a copy may be going on already. Where a process was stopped in there, with a lock on byte 0,
others pass it: what drops that lock is stopped too.

Each read takes a slot in it, and gives it back:

    magic │ format │ mutex: the thread that has it (4 bytes) … │ newest commit │ … │ slot │ slot │ …

To take a slot is to have LMDB's mutex for a microsecond. It is free again when its owner is killed, not where that is
stopped (SIGSTOP, a debugger): then LMDB has all others wait, in C, without an end, and with the interpreter's lock. So
a read looks first whether a thread has the mutex. Where one keeps it, the read sleeps, and in the end names it.

Between the look and LMDB's own lies a tenth of a microsecond, in which that thread would have to come and be stopped.
Where LMDB, or its mutex (of glibc), is not as it is known here, nothing is looked at.
"""

from __future__ import annotations

import mmap
import os
from io import FileIO
from pathlib import Path

from .. import clocks, disk
from ..errors import LockTimeout, StoreError
from ..locks import ofd_lock, shared_file

LOCK = "lock.mdb"
_FIXED = 0x10  # MAP_FIXED, from <linux/mman.h>
_HEAD = 16
_KNOWN_FORMAT = 1 << 16 | 1  # of LMDB 0.9, where processes show by locks that they live
_THREAD = (1 << 30) - 1  # the two bits above say that others wait, and that the owner has died
_HAS_WORD = "CS_GNU_LIBC_VERSION" in os.confstr_names
_PATIENCE = 30.0  # seconds for what takes a microsecond
_YIELDS, _LOOKS = 100, 0.001
_NO_HEAD = memoryview(bytes(_HEAD)).cast("I")


def part_from_parent(inode: int) -> None:
    """In a forked child, before it closes its copy of LMDB: let that write nothing into the lock file's memory.

    A read transaction keeps its slot in LMDB's table of readers until its object is dropped, and LMDB gives back
    the slots of all that it knows when it closes. A copy of such an object would give back a slot that is the
    parent's, in a new read by then: its pages would be used again. So zeros are mapped over the copy.
    """
    with disk.ErrorsIgnored(), open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps.readlines():
            span, access, _, _, number = line.split(maxsplit=5)[:5]
            if inode and access.endswith("s") and int(number) == inode:
                import ctypes  # noqa: PLC0415 - it is imported before the fork

                start, end = (int(address, 16) for address in span.split("-"))
                call = ctypes.CDLL(None).mmap
                call.restype = ctypes.c_void_p
                call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
                call(start, end - start, mmap.PROT_READ | mmap.PROT_WRITE,
                     mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED, -1, 0)


def open_in_place(path: Path) -> FileIO:
    """Open a file of a generation that all its processes share, or make it. StoreError where it was deleted in use."""
    try:
        return ofd_lock.open_file(path, os.O_RDWR)
    except FileNotFoundError:
        user = shared_file.find_user(path.parent.parent)
        if user is not None:
            raise deleted_in_use(path, user) from None
    return ofd_lock.open_file(path)


def deleted_in_use(path: Path, user: str) -> StoreError:
    """The error of an opening that misses a file which other processes use."""
    return StoreError(
        f"{path} has been deleted while {user} has the store open. Opened without it, the store would be damaged. End "
        "every process that has it open, and open it again."
    )


def holder(generation: Path) -> int | None:
    """The number of a process that has the generation mapped; None if none has, or it cannot be asked."""
    try:
        file = ofd_lock.open_file(generation / LOCK, os.O_RDONLY)
    except OSError:
        return None
    with file:
        if ofd_lock.is_free(file, 0, 1):
            return None
        reader = ofd_lock.find(file, 1, ofd_lock.BEFORE_GATE - 1)
        return 0 if reader is None else reader[0]  # 0: it is just opening, or is none of raxlog's


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
