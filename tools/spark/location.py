"""What is at a path: a snapshot, a folder of them, shards, or a live store.

    backup.rax/manifest.json             a snapshot: read in place, without any lock
    backups/{mon,tue}/manifest.json      a folder of snapshots of one store: the newest, or the one asOf a time
    https://…/shards, or a folder        shards: a manifest that names files by ID range
    events.rax/CURRENT                   a store that may be written to: see live_snapshot.py

A store on a read-only medium cannot change, and is read in place too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ...recovery.snapshot import manifest
from ...recovery.snapshot.location import LocalFolder, local_path, location_of
from ...recovery.snapshot.manifest import Manifest
from ...recovery.snapshot.shards import ShardSet
from ...storage.engine import registry
from ...storage.engine.open_options import OpenOptions
from ...storage.errors import CorruptionError, InvalidArgument, NotAStore
from ...storage.folder import directory
from ...storage.tree import lmdb_file
from ...stream.entries.session import StoreSource

SNAPSHOT, SHARDS, LIVE = "snapshot", "shards", "live store"


@dataclass(frozen=True)
class DataLocation:
    """Where the data is. ``manifest`` is None for a live store, and for one on a read-only medium."""

    kind: str
    path: str
    manifest: Manifest | None = None


def find(path: str, as_of: tuple[str, datetime | int] | None = None,
         kinds: tuple[str, ...] = ("full", "shards")) -> DataLocation:
    """What is at ``path``; reads manifests, no data. NotAStore, UnsupportedFormat, CorruptionError, StoreError.

    Of several it is the newest, up to ``as_of``; InvalidArgument if there is none, or if they are of different stores.
    """
    local = local_path(path)
    location = location_of(path if local is None else local.absolute())
    try:
        manifests = {location.url: ShardSet(path).manifest if local is None else manifest.read(location.url)}
    except NotAStore:
        inside = {url: manifest.read(url) for url in (f"{location.url}/{name}" for name in location.snapshots())}
        manifests = {url: at for url, at in inside.items() if at.kind in (kinds if local is not None else ("shards",))}
        if not manifests and isinstance(location, LocalFolder):
            return _store(location.path, as_of)
        if not manifests:
            raise
    return _newest(location.url, manifests, as_of)


def _newest(where: str, manifests: dict[str, Manifest], as_of: tuple[str, datetime | int] | None) -> DataLocation:
    if len({made.store for made in manifests.values()}) > 1:
        names = ", ".join(Path(url).name for url in manifests)
        raise InvalidArgument(f"{where} holds snapshots of different stores ({names}); name one of them")
    every = sorted(manifests.items(), key=lambda pair: pair[1].created)
    found = [pair for pair in every if as_of is None or getattr(pair[1], as_of[0]) <= as_of[1]]
    if as_of is not None and as_of[0] == "transaction":  # an older state of the store goes on from its own
        counts = [made.transaction for _, made in every]
        found = found if counts == sorted(counts) else []
    if not found:
        known = ", ".join(f"{Path(url).name} ({made.created.isoformat()}, "
                          f"transaction {made.transaction})" for url, made in every[:20])
        raise InvalidArgument(f"option asOf: nothing at {where} is that old, or commits have been counted anew since "
                              f"an older state of the store was put back, and a time is needed. There is: {known}")
    url, made = found[-1]
    if made.kind == "increment":
        raise InvalidArgument(f"{url} is an increment: it holds what changed since {made.parent_name}, and cannot be "
                              "scanned alone. Restore it into a store, and scan that.")
    return DataLocation(SHARDS if made.kind == "shards" else SNAPSHOT, url, made)


def _store(store: Path, as_of: tuple[str, datetime | int] | None) -> DataLocation:
    """A store that is not a snapshot."""
    if store.is_dir() and not (store / directory.CURRENT).exists():
        raise NotAStore(f"{store} is a folder but no raxlog store, no snapshot, and holds no full ones. A set of shards"
                        f" needs its {directory.MANIFEST}; 'raxlog restore' makes a store of an increment.")
    generation = directory.generation(store)  # raises where there is no store
    lmdb_file.require_whole(generation)
    if as_of is not None:
        raise InvalidArgument(f"option asOf: {store} is a store, which holds its present state only. Name a folder of "
                              "its snapshots")
    return DataLocation(LIVE if directory.can_register(generation) else SNAPSHOT, str(store))


def require_data(place: DataLocation) -> None:
    """Checks that a snapshot's data is as long as its manifest states; opens nothing. NotAStore, CorruptionError."""
    data = directory.generation(Path(place.path)) / directory.DATA
    if place.manifest is not None:
        stated = place.manifest.sums(f"{data.parent.name}/{data.name}").bytes
        size = data.stat().st_size
        if size < stated:
            raise CorruptionError(f"the data file {data} is cut off: it has {size} bytes, its manifest states {stated}")


@contextlib.contextmanager
def opened(path: str, lock_timeout: float | None = None) -> Iterator[StoreSource]:
    """The store or snapshot at ``path``, for reading; closed and unmapped at the end.

    With a ``lock_timeout``, seconds, for writing, too.
    """
    if not Path(path).is_dir():
        raise NotAStore(f"there is nothing at {path} (any more) on this machine; load the data frame again")
    place = Path(path)
    writing = OpenOptions(create=False)
    share = registry.read_only(place) if lock_timeout is None else registry.attach(place, writing, dict)
    source = StoreSource(share, lock_timeout or 0.0)
    try:
        yield source
    finally:
        source.close()
