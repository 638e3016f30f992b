"""An increment: only what has changed in a store since an earlier snapshot.

    tuesday/
    ├── changes           zstd( | 1 | key's length (2) | value's length (4) | key | value | …   put
    │                           | 0 | key's length (2) | 0 (4)            | key |         …   gone )
    ├── digest            of the whole state, for the next increment
    └── manifest.json     with the id of its parent, a full snapshot or an increment

    parent's digest    a=1  b=1  c=1        the store now    a=1  b=2  d=1
    increment          put b=2, gone c, put d=1

The whole store is read, and the records are written whose checksums differ from the parent's
digest: no bookkeeping by writers is needed, and a record changed back is not written.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from pathlib import Path

from ...storage.errors import StoreError
from ...storage.format import zstd
from ..subprocess_task import Progress
from . import manifest
from .digest import DIGEST, DigestWriter, read_digest, read_rows
from .full import build, finish, new_manifest, open_for_reading, store_row, streams_of, verify_records
from .location import LocalFolder
from .manifest import Manifest

CHANGES = "changes"

_ROW = struct.Struct("<BHI")
_PUT, _GONE = 1, 0
_FLUSH = 1 << 20


def make(store: Path, destination: Path, parent: Path, progress: Progress | None) -> Manifest:
    """Make at ``destination`` the increment from the snapshot ``parent`` to the present state.

    NotAStore if the parent is not a snapshot, StoreError if it is another store's or a set of
    shards, CorruptionError if its digest is damaged; and as for a full snapshot.
    """
    before = manifest.read(parent)
    if before.kind == "shards":
        raise StoreError(f"{parent} is a set of shards; an increment builds on a full snapshot or an increment.")
    manifest.require(LocalFolder(parent), before, DIGEST)
    return build(compare, store, destination, progress, {"parent": str(parent)})


# -- in the subprocess ------------------------------------------------------------------------


def compare(progress: Progress, store: str, place: str, parent: str) -> None:
    """Build an increment of ``store`` on ``parent`` in the folder ``place``."""
    building, before = Path(place), manifest.read(parent)
    with open_for_reading(store) as env, env.read() as txn:
        uuid = store_row(txn)[1].hex()
        if uuid != before.store:
            raise StoreError(
                f"{parent} is a snapshot of another store (UUID {before.store}, this one has {uuid}). Make a full one."
            )
        with (
            DigestWriter(building / DIGEST) as digest,
            ChangesWriter(building / CHANGES, read_digest(Path(parent) / DIGEST)) as changes,
        ):
            def visit(key: bytes, value: bytes) -> None:
                digest.add(key, bytes(value[:8]))
                changes.compare(key, value)

            node_bytes = verify_records(txn, visit, progress, env.map.records())
        made = new_manifest(
            txn, "increment", env.path, int(txn.id()), digest.records,
            parent=before.id, parent_name=Path(parent).resolve().name, streams=streams_of(txn, node_bytes),
            changed=changes.changed, gone=changes.gone, changed_bytes=changes.bytes,
        )
    finish(building, made, (CHANGES, DIGEST), progress)


class ChangesWriter(io.BufferedWriter):
    """Writes what differs from an older digest. A context manager, whose end writes the last vanished keys."""

    def __init__(self, path: Path, older: Iterator[tuple[bytes, bytes]]) -> None:
        super().__init__(zstd.create(path), _FLUSH)
        self._older = older
        self._next = next(older, None)
        self.changed = self.gone = self.bytes = 0

    def compare(self, key: bytes, value: bytes) -> None:
        """Compare the next record of the present state, in key order."""
        while self._next is not None and self._next[0] < key:
            self._write_gone(self._next[0])
        if self._next is not None and self._next[0] == key:
            same = self._next[1] == value[:8]
            self._next = next(self._older, None)
            if same:
                return
        self._write(_ROW.pack(_PUT, len(key), len(value)) + key + bytes(value))
        self.changed += 1

    def _write_gone(self, key: bytes) -> None:
        self._write(_ROW.pack(_GONE, len(key), 0) + key)
        self.gone += 1
        self._next = next(self._older, None)

    def _write(self, row: bytes) -> None:
        self.write(row)
        self.bytes += len(row)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                while self._next is not None:
                    self._write_gone(self._next[0])
        finally:
            self.close()


def read_changes(path: Path) -> Iterator[tuple[bytes, bytes | None]]:
    """Keys and their new values (None: gone), in key order. CorruptionError."""
    for (kind, key_size, _), row in read_rows(path, f"the increment {path}", _ROW, lambda _, key, value: key + value):
        yield row[:key_size], row[key_size:] if kind == _PUT else None
