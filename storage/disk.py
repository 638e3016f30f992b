"""The disk: its errors, files that are open, and how room on it is taken in advance."""

from __future__ import annotations

import contextlib
import errno
import os
from io import FileIO
from pathlib import Path
from typing import Any
from weakref import ref

from .known import alive

FULL = {
    errno.ENOSPC: "the disk is full. Make room on it",
    errno.EDQUOT: "the quota of the disk is used up. Make room, or have it raised",
    errno.EFBIG: "this process may write no larger file. Raise the limit (ulimit -f)",
}
_KNOWN = (*FULL, errno.EIO, errno.EACCES, errno.EROFS, errno.EAGAIN)

_open: set[ref[FileIO]] = set()


class ErrorsIgnored(contextlib.suppress):
    """A block in which an error of the system does not matter. TimeoutError passes: a signal's handler raised it."""

    def __init__(self, *others: type[Exception]) -> None:
        super().__init__(OSError, *others)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        return not isinstance(error, TimeoutError) and bool(super().__exit__(kind, error, trace))


def open_file(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> FileIO:
    """A file that closes itself once it is dropped, whatever exception comes, and in a forked child. OSError."""
    file = FileIO(path, opener=lambda path, _: os.open(path, flags | os.O_CLOEXEC, 0o666))
    _open.add(ref(file, _open.discard))
    return file


def close_inherited() -> None:
    """In a forked child: close all files of the parent, whose locks would live on with them."""
    for file in alive(_open):
        file.close()


def remove_tree(folder: Path, ignore_errors: bool = True) -> None:
    """Remove a folder, if it is there, with all that is in it. No descriptor is held that could be closed twice."""
    try:
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                remove_tree(Path(entry.path), ignore_errors)
            else:
                os.unlink(entry.path)
        os.rmdir(folder)
    except OSError as error:
        if not ignore_errors and not isinstance(error, FileNotFoundError):
            raise


def cause(error: BaseException) -> int:
    """The errno of an OSError or of an error of LMDB's; 0 where it has none."""
    number = getattr(error, "errno", None) or getattr(error, "code", None)
    if number is None:  # before its release 3, LMDB's binding gives the text only
        number = next((known for known in _KNOWN if os.strerror(known) in str(error)), 0)
    return int(number)


def allocate(file: Path, start: int, end: int) -> None:
    """Have the disk keep room for these bytes of a file, which becomes as long as that. OSError where it has none.

    What the file holds already stays. About 10 µs.
    """
    with open_file(file, os.O_RDWR) as opened:
        os.posix_fallocate(opened.fileno(), start, end - start)
