"""LMDB's lock file, kept in force where a copy of the folder drops LMDB's own locks on it.

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
"""

from __future__ import annotations

import mmap
import os
from io import FileIO
from pathlib import Path

from .. import disk
from ..errors import StoreError
from ..locks import ofd_lock, presence

LOCK = "lock.mdb"
_FIXED = 0x10  # MAP_FIXED, from <linux/mman.h>


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
        user = presence.find_user(path.parent.parent)
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
