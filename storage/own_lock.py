"""Locks of one open file: what other descriptors of the process open and close does not drop them.

POSIX locks belong to the process, and closing any descriptor of the file gives up all of them: a
program that copies the store's folder would do so unawares. Linux has locks that belong to the
descriptor itself (OFD locks). They do not name their holder, which nobody asks for here. Where
there are none, POSIX' have to do.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys

_IS_LINUX = sys.platform.startswith("linux")
_SET, _SET_WAITING, _GET = (
    (fcntl.F_OFD_SETLK, fcntl.F_OFD_SETLKW, fcntl.F_OFD_GETLK) if _IS_LINUX
    else (fcntl.F_SETLK, fcntl.F_SETLKW, fcntl.F_GETLK)
)

# struct flock: Linux puts the type first, the BSDs and macOS the offsets.
_FLOCK = struct.Struct("hhqqi4x") if _IS_LINUX else struct.Struct("qqihh")
_UNLOCKED = fcntl.F_UNLCK.to_bytes(2, sys.byteorder)
_KIND = slice(0, 2) if _IS_LINUX else slice(20, 22)


def _question(kind: int, start: int, length: int) -> bytes:
    if _IS_LINUX:
        return _FLOCK.pack(kind, os.SEEK_SET, start, length, 0)
    return _FLOCK.pack(start, length, 0, kind, os.SEEK_SET)


def take(descriptor: int, start: int, length: int, shared: bool = False, waits: bool = False) -> None:
    """Lock some bytes of the file. BlockingIOError where others have them, unless it waits."""
    kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
    fcntl.fcntl(descriptor, _SET_WAITING if waits else _SET, _question(kind, start, length))


def give_back(descriptor: int, start: int, length: int) -> None:
    """Unlock them."""
    fcntl.fcntl(descriptor, _SET, _question(fcntl.F_UNLCK, start, length))


def is_free(descriptor: int, start: int, length: int) -> bool:
    """Whether nobody else has a lock on any of these bytes."""
    return fcntl.fcntl(descriptor, _GET, _question(fcntl.F_WRLCK, start, length))[_KIND] == _UNLOCKED
