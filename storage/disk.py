"""Room on the disk: how it is taken in advance, and why there is no more of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

FULL = {
    errno.ENOSPC: "the disk is full. Make room on it",
    errno.EDQUOT: "the quota of the disk is used up. Make room, or have it raised",
    errno.EFBIG: "this process may write no larger file. Raise the limit (ulimit -f)",
}
CUT_SHORT = (errno.EIO, -30772)  # what LMDB 0.9 and 1.0 make of a write that found room for a part only
_KNOWN = (*FULL, errno.EIO, errno.EACCES, errno.EROFS)
_PIECE = 1 << 18


def cause(error: BaseException) -> int:
    """The system's number for what an error of its own, or of LMDB's, says; 0 where it says none."""
    number = getattr(error, "errno", None) or getattr(error, "code", None)
    if number is None:  # LMDB's binding says it in words only, before its release 3
        number = next((known for known in _KNOWN if os.strerror(known) in str(error)), 0)
    return int(number)


def allocate(file: Path, start: int, end: int) -> None:
    """Have the disk keep room for these bytes of a file, which becomes as long as that. OSError where it has none.

    What the file holds already stays. About 10 µs.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, start, end - start)
        else:
            start = max(start, os.fstat(descriptor).st_size)
            os.pwrite(descriptor, bytes(max(0, end - start)), start)
    finally:
        os.close(descriptor)


def why_cut_short(file: Path) -> int:
    """The system's number for why a write to the end of a file did not come to its own end."""
    try:
        end = file.stat().st_size
        allocate(file, end, end + _PIECE)
    except OSError as error:
        return cause(error)
    return errno.EIO
