"""Snapshots of live stores: taken before a scan, used again while nothing has changed, removed.

    <snapshotDir>/<store's UUID>/
    ├── .raxlog-lock    flock: one process at a time takes or removes
    ├── 1-42-9f3c11b2   a snapshot, named by generation and commit of the state it shows
    └── 1-57-11b2074a

A plan names a snapshot, and Spark keeps plans: a data frame may be run again an hour after it
was loaded. So a snapshot stays for ``snapshotRetention`` after its last use (its folder's time,
set by each task that opens it), and is removed when the next one is planned. Costs one copy of
the store, with all checksums verified, on the disk of ``snapshotDir``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ...recovery.snapshot import full, manifest
from ...recovery.snapshot.shard_cache import private_folder
from ...storage import clocks
from ...storage.engine.environment import Environment
from ...storage.errors import RaxlogError, StoreError
from .location import LIVE, SNAPSHOT, DataLocation, opened
from .options import Options

_LOCK = ".raxlog-lock"


def default_folder(kind: str) -> Path:
    """Where ``snapshots`` of live stores go unless ``snapshotDir`` is set, ``shards`` unless ``cacheDir`` is:
    a folder of this user."""
    return Path(tempfile.gettempdir()) / f"raxlog-{kind}-{os.getuid()}"


def at_rest(place: DataLocation, options: Options) -> DataLocation:
    """The same location, or for a live store a snapshot of it, new or reused. StoreFull: ``snapshotDir`` is full."""
    if place.kind != LIVE:
        return place
    with opened(place.path) as source:
        store, moment = source.env.record.uuid.hex(), _moment(source.env)
    home = (Path(options.snapshot_dir) if options.snapshot_dir else default_folder("snapshots")) / store
    with _locked(home, options.snapshot_dir is None):
        _remove_unused(home, options.snapshot_retention)
        found = _reusable(home, moment, options.snapshot_max_age)
        if found is None:
            found = home / f"{moment}-{os.urandom(4).hex()}"
            full.make(Path(place.path), found, None)
        touch(found)
    return DataLocation(SNAPSHOT, str(found), manifest.read(found))


def touch(path: Path) -> None:
    """Note that a snapshot of a live store is in use; nothing for any other."""
    if (path.parent / _LOCK).exists():
        with contextlib.suppress(OSError):
            os.utime(path)


@contextlib.contextmanager
def _locked(home: Path, default: bool) -> Iterator[None]:
    try:
        for folder in (home.parent, home) if default else (home,):
            private_folder(folder, "snapshotDir")
        descriptor = os.open(home / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(
            f"no snapshot of the live store can be put into {home}: {error}. Set another folder with snapshotDir"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _held(home: Path) -> list[Path]:
    """The snapshots there, the newest first."""
    return sorted((child for child in home.iterdir() if child.is_dir()), key=lambda c: c.stat().st_ctime, reverse=True)


def _moment(env: Environment) -> str:
    """A name for the state that a read would see now, unique in the store."""
    with env.read() as txn:
        generation, transaction = divmod(env.moment(txn), 1 << 64)
    return f"{generation}-{transaction}"


def _reusable(home: Path, moment: str, max_age: float) -> Path | None:
    for child in _held(home):
        with contextlib.suppress(RaxlogError):
            age = clocks.wall_ns() / 1e9 - manifest.read(child).created.timestamp()
            if child.name.startswith(f"{moment}-") or (max_age and age <= max_age):
                return child
    return None


def _remove_unused(home: Path, retention: float) -> None:
    for child in _held(home):
        if clocks.machine_ns() / 1e9 - child.stat().st_mtime > retention:
            shutil.rmtree(child, ignore_errors=True)
