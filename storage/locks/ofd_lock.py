"""Locks of one open file: what other descriptors of the process open and close does not drop them.

POSIX locks belong to the process, and closing any descriptor of the file gives up all of them: a
program that copies the store's folder would do so unawares. Linux has locks that belong to the
open file itself (OFD locks). A file that is dropped
gives up its locks: an exception in the middle of an opening leaves none behind.

An OFD lock does not name its holder, so where that is asked for its range does (writer_lock.py,
tree.py). And it lives on in a forked child, for as long as the child has its copy of the
descriptor: so files are opened by disk.open_file(), a forked child closes all that it inherits, and a file's
locks are given up before it is closed.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from collections.abc import Callable
from io import FileIO
from pathlib import Path

from .. import clocks, disk
from ..errors import LockTimeout

if not sys.platform.startswith("linux"):
    raise ImportError("raxlog opens stores on Linux only: it needs locks that belong to an open file (OFD locks)")
SET, _SET_WAITING, _GET = fcntl.F_OFD_SETLK, fcntl.F_OFD_SETLKW, fcntl.F_OFD_GETLK
_FLOCK = struct.Struct("hhqqi4x")

GATE = 1 << 31  # a byte behind those that name processes; it is locked with up to 2^23 before it
BEFORE_GATE = GATE - (1 << 23)
_PATIENCE = 30.0  # seconds for what takes other processes less than one millisecond
_STOPPED = 1.0  # seconds that one process has it, which must have been stopped
_LOOKS = 0.002


def question(kind: int, start: int, length: int) -> bytes:
    """What the system is asked for such a lock by. A ``length`` of 0: up to the end of all files."""
    return _FLOCK.pack(kind, os.SEEK_SET, start, length, 0)


def take(file: FileIO | int, start: int, length: int, shared: bool = False, waits: bool = False) -> None:
    """Lock some bytes of the file. BlockingIOError where others have them, unless it waits."""
    kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
    fcntl.fcntl(file, _SET_WAITING if waits else SET, question(kind, start, length))


def give_back(file: FileIO, start: int, length: int) -> None:
    """Unlock these bytes."""
    fcntl.fcntl(file, SET, question(fcntl.F_UNLCK, start, length))


def enter(file: FileIO, path: Path, may_pass: Callable[[], bool] = lambda: False) -> None:
    """Take the file's gate, which a process has for a moment, while it opens the store ``path``.

    It is locked with as many bytes before it as the process' number, so that LockTimeout can name a process that
    was stopped inside. Where ``may_pass`` says so, such a one is passed after a second, without the gate.
    """
    began = clocks.elapsed()
    inside, since = None, began
    while True:
        try:
            take(file, GATE - os.getpid(), os.getpid() + 1)
            return
        except BlockingIOError:
            other, now = find(file, GATE, 1), clocks.elapsed()
        if other is None or other != inside:
            inside, since = other, now
        elif now > since + _STOPPED and may_pass():
            return
        elif now > began + _PATIENCE:
            raise LockTimeout(
                f"waited {_PATIENCE:g} s for process {GATE - other[0]}, which is opening {path}. It may have been "
                "stopped (SIGSTOP, a debugger): let it go on, or end it."
            )
        clocks.sleep(_LOOKS)


def leave(file: FileIO) -> None:
    """Give the file's gate up, where this process has it."""
    give_back(file, BEFORE_GATE, GATE + 1 - BEFORE_GATE)


def close(file: FileIO) -> None:
    """Give up all locks of the file, and close it. In a forked child it is closed already: the locks are the parent's.

    A process that another thread starts has a copy of the descriptor until it has loaded its program. To close alone
    would leave it the locks, and the next opening of this process would take them for another's.
    """
    if not file.closed:
        with disk.ErrorsIgnored():
            give_back(file, 0, 0)
        file.close()


def is_free(file: FileIO, start: int, length: int) -> bool:
    """Whether no other process has a lock on any of these bytes."""
    return find(file, start, length) is None


def is_shared(file: FileIO, start: int) -> bool:
    """Whether other processes have this byte, and do not keep it from being shared."""
    return not is_free(file, start, 1) and _first(file, start, 1, fcntl.F_RDLCK) is None


def find(file: FileIO | int, start: int, length: int) -> tuple[int, int] | None:
    """The first and the last byte of a lock that others have on any of these bytes; None if there is none."""
    return _first(file, start, length, fcntl.F_WRLCK)


def _first(file: FileIO | int, start: int, length: int, beside: int) -> tuple[int, int] | None:
    answer = _FLOCK.unpack(fcntl.fcntl(file, _GET, question(beside, start, length)))
    kind, first, size = answer[0], *answer[2:4]
    return None if kind == fcntl.F_UNLCK else (first, first + size - 1)
