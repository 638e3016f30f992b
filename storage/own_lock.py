"""Locks of one open file: what other descriptors of the process open and close does not drop them.

POSIX locks belong to the process, and closing any descriptor of the file gives up all of them: a
program that copies the store's folder would do so unawares. Linux has locks that belong to the
open file itself (OFD locks). Where there are none, POSIX' have to do.

An OFD lock does not name its holder, so where that is asked for its range does (writer_lock.py,
map_lock.py). And it lives on in a forked child, for as long as the child has its copy of the
descriptor: so files are opened and closed here, and a forked child closes all that it inherits.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from pathlib import Path

_IS_LINUX = sys.platform.startswith("linux")
_SET, _SET_WAITING, _GET = (
    (fcntl.F_OFD_SETLK, fcntl.F_OFD_SETLKW, fcntl.F_OFD_GETLK) if _IS_LINUX
    else (fcntl.F_SETLK, fcntl.F_SETLKW, fcntl.F_GETLK)
)

# struct flock: Linux puts the type first, the BSDs and macOS the offsets.
_FLOCK = struct.Struct("hhqqi4x") if _IS_LINUX else struct.Struct("qqihh")

_open: set[int] = set()  # descriptors of this process


def open_file(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> int:
    """Open a file to lock bytes of it; the descriptor. OSError."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    _open.add(descriptor)
    return descriptor


def close_file(descriptor: int) -> None:
    """Close it, and give up its locks; nothing where a fork has closed it already."""
    if descriptor in _open:
        _open.discard(descriptor)
        os.close(descriptor)


def _close_inherited() -> None:
    while _open:
        os.close(_open.pop())


os.register_at_fork(after_in_child=_close_inherited)


def question(kind: int, start: int, length: int) -> bytes:
    """What the system is asked for such a lock by. A ``length`` of 0: up to the end of all files."""
    if _IS_LINUX:
        return _FLOCK.pack(kind, os.SEEK_SET, start, length, 0)
    return _FLOCK.pack(start, length, 0, kind, os.SEEK_SET)


def ask(descriptor: int, prepared: bytes) -> None:
    """Take (or give back) what was prepared by question(). BlockingIOError where others have it."""
    fcntl.fcntl(descriptor, _SET, prepared)


def take(descriptor: int, start: int, length: int, shared: bool = False, waits: bool = False) -> None:
    """Lock some bytes of the file. BlockingIOError where others have them, unless it waits."""
    kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
    fcntl.fcntl(descriptor, _SET_WAITING if waits else _SET, question(kind, start, length))


def give_back(descriptor: int, start: int, length: int) -> None:
    """Unlock them."""
    fcntl.fcntl(descriptor, _SET, question(fcntl.F_UNLCK, start, length))


def is_free(descriptor: int, start: int, length: int) -> bool:
    """Whether nobody else has a lock on any of these bytes."""
    return find(descriptor, start, length) is None


def find(descriptor: int, start: int, length: int) -> tuple[int, int] | None:
    """The first and the last byte of a lock that others have on any of these bytes; None if there is none."""
    answer = _FLOCK.unpack(fcntl.fcntl(descriptor, _GET, question(fcntl.F_WRLCK, start, length)))
    kind, first, many = (answer[0], *answer[2:4]) if _IS_LINUX else (answer[3], *answer[:2])
    return None if kind == fcntl.F_UNLCK else (first, first + many - 1)
