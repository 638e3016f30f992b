"""What is at a path: a snapshot, a folder of them, shards, or a live store.

    backup.rax/manifest.json             a snapshot: read in place, without any lock
    backups/{mon,tue}/manifest.json      a folder of snapshots of one store: the newest
    https://…/shards, or a folder        shards: a manifest that names files by ID range
    events.rax/CURRENT                   a store that may be written to: see live_snapshot.py

A store on a read-only medium cannot change, and is read in place too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...recovery.snapshot import manifest
from ...recovery.snapshot.manifest import Manifest
from ...recovery.snapshot.shards import ShardSet
from ...storage.errors import CorruptionError, InvalidArgument, NotAStore
from ...storage.files import directory
from ...storage.lifecycle import registry
from ...stream.entries.session import Direct

SNAPSHOT, SHARDS, LIVE = "snapshot", "shards", "live store"


@dataclass(frozen=True)
class DataLocation:
    """Where the data is. ``manifest`` is None for a live store, and for one on a read-only medium."""

    kind: str
    path: str
    manifest: Manifest | None = None


def find(path: str) -> DataLocation:
    """What is at ``path``; reads manifests, no data. NotAStore, UnsupportedFormat, CorruptionError, StoreError."""
    if "://" in path and not path.startswith("file://"):
        return DataLocation(SHARDS, path, ShardSet(path).manifest)
    there = Path(path.removeprefix("file://")).absolute()
    if directory.is_snapshot(there):
        found = manifest.read(there)
        if found.kind == "shards":
            return DataLocation(SHARDS, str(there), found)
        if found.kind != "full":
            raise InvalidArgument(
                f"{there} is an {found.kind}: it holds what changed since {found.parent_name}, and cannot be "
                "scanned alone. Restore it into a store, and scan that."
            )
        return DataLocation(SNAPSHOT, str(there), found)
    if (newest := newest_snapshot(there)) is not None:
        return newest
    generation = directory.generation(there)  # raises where there is no store
    directory.require_whole(generation)
    return DataLocation(LIVE if directory.can_register(generation) else SNAPSHOT, str(there))


def newest_snapshot(parent: Path) -> DataLocation | None:
    """The newest full snapshot in a folder, None if there is none. InvalidArgument if they are of different stores."""
    if not parent.is_dir() or (parent / directory.CURRENT).exists():
        return None
    held = [(manifest.read(child), child) for child in sorted(parent.iterdir()) if directory.is_snapshot(child)]
    found = [(made, child) for made, child in held if made.kind == "full"]
    if not found:
        return None
    if len({made.store for made, _ in found}) > 1:
        names = ", ".join(child.name for _, child in found)
        raise InvalidArgument(f"{parent} holds snapshots of different stores ({names}); name one of them")
    made, child = max(found, key=lambda pair: pair[0].created_ms)  # each generation counts commits from 1
    return DataLocation(SNAPSHOT, str(child), made)


def require_data(place: DataLocation) -> None:
    """Checks that a snapshot's data is as long as its manifest states; opens nothing. NotAStore, CorruptionError."""
    data = directory.generation(Path(place.path)) / directory.DATA
    if place.manifest is not None:
        stated = place.manifest.sums(f"{data.parent.name}/{data.name}").bytes
        size = data.stat().st_size
        if size < stated:
            raise CorruptionError(f"the data file {data} is cut off: it has {size} bytes, its manifest states {stated}")


@contextmanager
def opened(path: str) -> Iterator[Direct]:
    """The store or snapshot at ``path``, for reading; closed and unmapped at the end."""
    if not Path(path).is_dir():
        raise NotAStore(f"there is nothing at {path} (any more) on this machine; load the data frame again")
    source = Direct(registry.read_only(Path(path)), 0.0)
    try:
        yield source
    finally:
        source.close()
