"""What LMDB's errors mean in raxlog's own tree.

    while opening     -> cannot_open()    NotAStore, ReadOnlyStore, CorruptionError, StoreFull …
    in a transaction  -> translate_error()      StoreFull, CorruptionError, StoreError

A write that finds room for a part only is an I/O error to LMDB. What it met is found by asking
the disk for more (why_full()).
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import lmdb

from .. import disk
from ..errors import CorruptionError, NotAStore, ReadOnlyStore, SettingsConflict, StoreError, StoreFull

# For the rooms above, none of which imports LMDB.
Error = lmdb.Error
MapFullError = lmdb.MapFullError
MapResizedError = lmdb.MapResizedError
MapMemoryError = lmdb.MemoryError
PanicError = lmdb.PanicError
ReadersFullError = lmdb.ReadersFullError
ReadonlyError = lmdb.ReadonlyError
BadValsizeError = lmdb.BadValsizeError
_CUT_SHORT = (errno.EIO, -30772)  # by LMDB 0.9 and 1.0
_PIECE = 1 << 18
_DAMAGED = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.BadTxnError)


def is_failure(error: BaseException | None) -> TypeGuard[lmdb.Error | OSError]:
    """Whether it is an error of LMDB's or of the system's, and of no signal's handler or function of the caller's.

    Those are TimeoutError, a closed pipe or connection, or have no number.
    """
    is_foreign = isinstance(error, TimeoutError | ConnectionError)
    return isinstance(error, lmdb.Error) or (isinstance(error, OSError) and error.errno is not None and not is_foreign)


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """A block out of which come errors of raxlog's only, for the store at ``path``."""
    try:
        yield
    except (lmdb.Error, OSError) as error:
        if not is_failure(error):
            raise
        raise translate_error(path, error) from error


def why_full(path: Path, error: Exception) -> str | None:
    """Which room an error says is missing, and what to do; None for any other error."""
    number = disk.cause(error)
    if number in _CUT_SHORT:
        try:
            for data in sorted(path.glob("*/data.mdb"))[-1:]:
                disk.allocate(data, data.stat().st_size, data.stat().st_size + _PIECE)
        except OSError as met:
            number = disk.cause(met)
    return disk.FULL.get(number)


def translate_error(path: Path, error: Exception) -> StoreError | CorruptionError:
    """The error to raise for one that came out of a transaction on the store at ``path``."""
    if isinstance(error, lmdb.MapFullError):
        return no_room(path)
    is_of_lmdb = isinstance(error, lmdb.Error)
    why = why_full(path, error) if is_of_lmdb else disk.FULL.get(disk.cause(error))
    if why is not None:
        return StoreFull(f"{path} is full: {why}, or delete and trim. Nothing was written ({error}).")
    if isinstance(error, _DAMAGED):
        return CorruptionError(f"the data file of {path} is damaged ({error})")
    if isinstance(error, lmdb.ReadersFullError):
        return StoreError(
            f"all reader slots of {path} are taken by live readers. Read from fewer threads and "
            "processes, or close the store everywhere and open it with a larger max_readers."
        )
    if isinstance(error, lmdb.MemoryError):
        return StoreError(f"no address space to map {path} ({error}). Raise the limit (ulimit -v) and open it again.")
    if disk.cause(error) == errno.EAGAIN:
        return StoreError(
            f"the system gives no thread for {path} ({error}). Raise the limit (ulimit -v or -u), or end others, and "
            "try again; what has been acknowledged stays."
        )
    if not is_of_lmdb:
        return StoreError(
            f"the system has failed a call for {path}: {error}. See to the disk, or to the limit that is named; what "
            "has been acknowledged stays."
        )
    return StoreError(f"LMDB reports for {path}: {error}.")


def no_room(path: Path) -> StoreFull:
    """The error for a call that does not fit into the map as large as it may become."""
    return StoreFull(
        f"{path} is full: max_map_size (or the limit of address space, ulimit -v) is reached. Delete or trim, or "
        "open it with a larger max_map_size. Nothing was written."
    )


def cannot_open(path: Path, error: Exception, readonly: bool = False) -> StoreError | CorruptionError:
    """The error to raise when the store at ``path`` cannot be opened, for reading only or for all."""
    text = str(error)
    denied = isinstance(error, PermissionError) or disk.cause(error) == errno.EACCES
    read_only = disk.cause(error) == errno.EROFS
    if denied and readonly:
        return StoreError(f"{path} cannot be read ({error}). See to the permissions of the folder and the files in it.")
    if isinstance(error, lmdb.ReadonlyError) or denied or read_only:
        return ReadOnlyStore(
            f"{path} cannot be opened for writing ({error}). Open it with readonly=True, or see to the "
            "permissions."
        )
    if isinstance(error, lmdb.InvalidError | lmdb.VersionMismatchError):
        return NotAStore(f"the data file of {path} is no LMDB file this raxlog reads ({error}).")
    if isinstance(error, (*_DAMAGED, lmdb.PanicError)):
        return CorruptionError(f"the data file of {path} is damaged ({error})")
    why = disk.FULL.get(disk.cause(error))
    if why is not None:
        return StoreFull(f"cannot open {path}: {why} ({error}).")
    if "already open" in text:
        return SettingsConflict(
            f"{path} is open in this process already, through py-lmdb itself or with other settings than "
            f"before its fork ({error}). Close that first."
        )
    if isinstance(error, lmdb.Error):
        return translate_error(path, error)
    return StoreError(f"cannot open {path}: {error}.")
