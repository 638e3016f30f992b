"""What LMDB's errors mean in raxlog's own tree.

    while opening     -> cannot_open()    NotAStore, ReadOnlyStore, CorruptionError, StoreFull …
    in a transaction  -> meaning()        StoreFull, CorruptionError, StoreError

A full disk comes under several names: LMDB 0.9 says ENOSPC, 1.0 MDB_SHORT_WRITE.
"""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import lmdb

from .errors import (
    CorruptionError,
    NotAStore,
    ReadOnlyStore,
    SettingsConflict,
    StoreError,
    StoreFull,
)

_CROWDED = 1 << 20  # bytes free on a disk that a write may have filled
_DAMAGED = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.BadTxnError)


def is_disk_full(error: lmdb.Error) -> bool:
    """True for the errors by which LMDB tells of a full disk or quota."""
    text = str(error)
    return (
        isinstance(error, lmdb.DiskError) or "No space left" in text or "quota" in text.lower()
        or "SHORT_WRITE" in text or "File too large" in text  # the latter: ulimit -f
    )


def is_disk_failure(path: Path, error: lmdb.Error) -> bool:
    """True for an I/O error that is no want of room: the disk, or its flush, has failed."""
    return "Input/output error" in str(error) and not _cut_short(path, error)


def _cut_short(path: Path, error: lmdb.Error) -> bool:
    """True where an I/O error is what LMDB makes of a write that found room for a part only."""
    if "Input/output error" not in str(error):
        return False
    disk = os.statvfs(path)
    limited = resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY
    return limited or disk.f_bavail * disk.f_frsize < _CROWDED


def meaning(path: Path, error: lmdb.Error) -> StoreError | CorruptionError:
    """The error to raise for one that came out of a transaction on the store at ``path``."""
    if isinstance(error, lmdb.MapFullError):
        return no_room(path)
    if is_disk_full(error) or _cut_short(path, error):
        return StoreFull(f"the disk under {path} is full ({error}). Make room and try again.")
    if isinstance(error, _DAMAGED):
        return CorruptionError(f"the data file of {path} is damaged ({error})")
    if isinstance(error, lmdb.ReadersFullError):
        return StoreError(
            f"all reader slots of {path} are taken by live readers. Read from fewer threads and "
            "processes, or close the store everywhere and open it with a larger max_readers."
        )
    if isinstance(error, lmdb.MemoryError):
        return StoreError(
            f"no address space to map {path} ({error}). Raise the limit (ulimit -v) and open it again."
        )
    return StoreError(f"LMDB reports for {path}: {error}.")


def no_room(path: Path) -> StoreFull:
    """The error for a call that fits neither the map's ceiling nor the disk."""
    return StoreFull(
        f"no room in {path}: the disk is full or max_map_size is reached. Delete or trim, make room on "
        "the disk, or raise max_map_size. Nothing was written."
    )


def cannot_open(path: Path, error: Exception, readonly: bool = False) -> StoreError | CorruptionError:
    """The error to raise when the store at ``path`` cannot be opened, for reading only or for all."""
    text = str(error)
    denied = isinstance(error, PermissionError) or "Permission denied" in text
    read_only = getattr(error, "errno", 0) == errno.EROFS or "Read-only file system" in text
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
    if isinstance(error, lmdb.DiskError) or getattr(error, "errno", 0) == errno.ENOSPC:
        return StoreFull(f"cannot open {path}: the disk is full ({error}). Make room.")
    if "already open" in text:
        return SettingsConflict(
            f"{path} is open in this process already, through py-lmdb itself or with other settings than "
            f"before its fork ({error}). Close that first."
        )
    if isinstance(error, lmdb.Error):
        return meaning(path, error)
    return StoreError(f"cannot open {path}: {error}.")
