"""Shards: a snapshot cut into ranges of IDs, for machines that do not share a disk.

    shards/                        a local folder, or one at a URL (fsspec)
    ├── 1/00000.shard              stream no. 1, its first range (shard_format.py)
    ├── 1/00001.shard              the next one
    ├── 1/pending                  its groups' pending entries
    └── manifest.json              written last: without it there is no snapshot

A live store is copied first and then cut, so it is read for the seconds of a copy, not of an
upload. There must be room for the copy and the compressed shards, in the temporary folder of the
system if the destination is a URL.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgpack

from ...storage.errors import CorruptionError, NotAStore, StoreError
from ...storage.folder import directory
from ...storage.format import keys, records, zstd
from ...storage.trees.rax import Rax, RaxTransaction
from ...stream.entries import header as headers
from ...stream.entries.count import Counter
from ...stream.entries.header import shown
from ...stream.entries.writer import located
from ...stream.group.state import UNOWNED, groups
from ...stream.node.stream_id import StreamID, make_id, pack_id
from .. import subprocess_task
from ..subprocess_task import Progress
from . import manifest
from .full import build, copy, finish, new_manifest, open_copy, verify_records
from .location import LocalFolder, Location, RemoteFolder, local_path, location_of
from .manifest import Manifest, ShardFile
from .shard_cache import ShardCache
from .shard_format import ShardHeader, ShardReader, ShardWriter

PENDING = "pending"
_COPY = "copy"


class PendingEntry(NamedTuple):
    """A pending entry in a shard set. ``time`` in ms: its last delivery, or when a released one is due."""

    group: bytes
    id: StreamID
    consumer: bytes | None  # None: released
    time: int
    deliveries: int


def make(store: Path, destination: str | os.PathLike[str], shards: int | None, shard_bytes: int | None,
         progress: Progress | None) -> Manifest:
    """Cut the present state of a store into shards at a local path or a URL.

    StoreError if the destination exists, and as for a full snapshot.
    """
    arguments = {"shards": shards, "shard_bytes": shard_bytes}
    local = local_path(destination)
    if local is not None:
        return build(cut, store, local, progress, arguments)
    remote = RemoteFolder(os.fspath(destination))
    if not remote.is_vacant():
        raise StoreError(f"something is at {remote.url} already; nothing is ever overwritten. Name a new place.")
    try:
        with tempfile.TemporaryDirectory(prefix="raxlog-shards-") as temporary:
            subprocess_task.run(cut, {"store": str(store), "place": temporary, **arguments}, progress)
            made = manifest.read(temporary)
            _upload(Path(temporary), remote, made, progress)
    except OSError as error:
        raise directory.cannot_create(Path(tempfile.gettempdir()), error, "snapshot") from error
    return made


def _upload(source: Path, remote: RemoteFolder, made: Manifest, progress: Progress | None) -> None:
    names = [*made.files, *(shard.path for shard in made.shards), directory.MANIFEST]
    done, put = 0, []
    try:
        for name in names:
            put.append(name)
            remote.put(source / name, name)
            done += (source / name).stat().st_size
            if progress is not None:
                progress("upload", min(done, made.bytes), made.bytes)
    except BaseException:
        for name in reversed(put):  # the manifest first: without it the rest is nothing
            with contextlib.suppress(StoreError, NotAStore):
                remote.remove(name)
        raise


# -- in the subprocess ------------------------------------------------------------------------


def cut(progress: Progress, store: str, place: str, shards: int | None, shard_bytes: int | None) -> None:
    """Build a set of shards of ``store`` in the folder ``place``."""
    building, source = Path(place), Path(store)
    if not directory.is_snapshot(source):
        source = building / _COPY
        source.mkdir()
        copy(progress, store, str(source))  # which verifies it
    with open_copy(directory.generation(source)) as opened:
        if source == Path(store):
            with opened.begin(buffers=True) as txn:
                verify_records(txn, lambda *_: None, progress, opened.pages().records)
        with opened.begin() as txn:
            listed = manifest.read(source)
            made = new_manifest(txn, "shards", source, 0, listed.records, streams=listed.streams)
            total, done = sum(stream.bytes for stream in listed.streams), 0
            files: list[ShardFile] = []
            for stream in listed.streams:
                (building / str(stream.number)).mkdir()
                parts = shards if shards is not None else -(-stream.bytes // (shard_bytes or 1))
                files += _cut_stream(txn, building, stream.number, parts)
                done += stream.bytes
                progress("cut", done, total)
                _write_pending(txn, building, stream.number)
    shutil.rmtree(building / _COPY, ignore_errors=True)
    finish(building, replace(made, shards=tuple(files)), [f"{stream.number}/{PENDING}" for stream in listed.streams],
           progress)


def _cut_stream(txn: RaxTransaction, building: Path, number: int, parts: int) -> Iterator[ShardFile]:
    header = headers.load(txn, number)
    if header is None:
        raise CorruptionError("the stream's header is missing", stream=f"no. {number}")
    if not header.length:
        return
    counter = Counter(txn, number, header)
    nodes = Rax(txn, keys.family(number, keys.NODE))
    # Cuts at even counts of live entries, each moved back to the start of its node.
    parts = min(parts, header.length)
    wanted = {counter.select(header.length * i // parts) for i in range(1, parts)}
    borders = sorted({found[0] for sid in wanted if (found := nodes.floor(pack_id(*sid))) is not None})
    first = nodes.first()
    borders = [border for border in borders if first is not None and border > first[0]]
    ranks = [0, *(counter.rank(StreamID.from_bytes(border)) for border in borders), header.length]
    places = zip([b"", *borders], [*borders, None], ranks[:-1], ranks[1:], strict=True)
    for index, (start, end, before, upto) in enumerate(places):
        path = f"{number}/{index:05}.shard"
        yield _write_shard(building, path, nodes, start, end, ShardHeader(
            header.name, number, counter.select(before), counter.select(upto - 1), upto - before
        ))


def _write_shard(building: Path, path: str, nodes: Rax, start: bytes, end: bytes | None,
                 header: ShardHeader) -> ShardFile:
    prefix = keys.family(header.number, keys.NODE)
    with ShardWriter(building / path, header) as shard:
        for key, value in nodes.items(start):
            if end is not None and key >= end:
                break
            try:
                head, listpack = records.open_block(prefix + key, value)
            except CorruptionError as error:
                raise located(error, shown(header.stream), *StreamID.from_bytes(key)) from None
            shard.add(*StreamID.from_bytes(key), head.live, listpack)
    return ShardFile(
        header.number, path, header.first, header.last, header.entries, shard.nodes, shard.bytes, shard.sum
    )


def _write_pending(txn: RaxTransaction, building: Path, number: int) -> None:
    with zstd.create(building / str(number) / PENDING) as rows:
        for group in groups(txn, number):
            names = {consumer.number: consumer.name for consumer in group.consumers(txn)}
            for sid, nack in group.pel(txn).scan((0, 0), StreamID.MAX):
                owner = None if nack.consumer == UNOWNED else names[nack.consumer]
                rows.write(msgpack.packb([group.name, *sid, owner, nack.time, nack.count]))


@contextlib.contextmanager
def open_shard(place: Location, shard: ShardFile, cache: ShardCache | None) -> Iterator[ShardReader]:
    """A reader of one shard, fetched through ``cache`` if it is remote. NotAStore names what is missing with it."""
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(
                place.open(shard.path) if cache is None or isinstance(place, LocalFolder) else cache.open(place, shard))
            reader = ShardReader(file, f"{place.url}/{shard.path}")
        except NotAStore as error:
            raise NotAStore(f"{str(error).rstrip('.')}. It is to hold entries {shard.first} to {shard.last}: put it "
                            "back from a copy of the set, or write the set again.") from None
        yield reader


class ShardSet:
    """A set of shards at a local path or a URL, open for reading. Needs no LMDB. Picklable.

    Raises NotAStore if there is none, and what manifest.read() raises.
    """

    def __init__(self, where: str | os.PathLike[str]) -> None:
        self.place: Location = location_of(where)
        self.manifest: Manifest = manifest.read(where)
        if self.manifest.kind != "shards":
            raise NotAStore(f"{self.place.url} is of kind {self.manifest.kind!r}; 'raxlog snapshot' makes shards, too.")

    def shards(self, stream: bytes, start: tuple[int, int] | None = None,
               end: tuple[int, int] | None = None) -> list[ShardFile]:
        """The shards of a stream with live entries from ``start`` to ``end``, in order. [] for none."""
        summary = self.manifest.stream(stream)
        return [
            shard for shard in self.manifest.shards
            if summary is not None and shard.stream == summary.number
            and (start is None or shard.last >= start) and (end is None or shard.first <= end)
        ]

    def open(self, shard: ShardFile, cache: ShardCache | None = None) -> contextlib.AbstractContextManager[ShardReader]:
        """A reader of one shard, fetched through ``cache`` if the set is remote."""
        return open_shard(self.place, shard, cache)

    def pending(self, stream: bytes) -> Iterator[PendingEntry]:
        """The pending entries of all groups of a stream, group by group, in the order of IDs."""
        summary = self.manifest.stream(stream)
        if summary is None:
            return
        name = f"{summary.number}/{PENDING}"
        manifest.require(self.place, self.manifest, name)
        with self.place.open(name) as file:
            try:
                with zstd.unpacked(file) as rows:
                    for group, ms, seq, consumer, time, count in msgpack.Unpacker(rows):
                        yield PendingEntry(group, make_id(ms, seq), consumer, time, count)
            except (*zstd.ERRORS, ValueError, TypeError) as error:
                raise CorruptionError(f"{self.place.url}/{name} cannot be read ({error})",
                                      stream=shown(stream), snapshot=True) from None
