"""The manifest of a snapshot: its contents, its state, and the checksums of its files.

    backup.rax/manifest.json
    {
     "format": 1,                     of the manifest; a greater one is refused
     "kind": "full",                  or "increment", or "shards"
     "id": …, "parent": …,            16 bytes in hex; the snapshot an increment builds on
     "store": …, "transaction": …,    the store's UUID; its last commit in this state
     "files": {"000001/data.mdb": {"bytes": …, "chunk": 8388608, "sums": ["…", …]}, …},
     "streams": [{"name": …, "length": …, "first": "1-0", "points": ["812-0", …], …}, …],
     …
     "checksum": "0123456789abcdef"   xxh3_64 of every byte of the file in front of this line
    }

Enough to plan a scan without opening the data: for each stream its range of IDs, its groups, and the
IDs of up to 1,024 live entries at equal distances. docs/format-snapshots.md lists all members.
"""

from __future__ import annotations

import base64
import errno
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from xxhash import xxh3_64_hexdigest

from ...storage.errors import CorruptionError, NotAStore, RaxlogError, StoreError, UnsupportedFormat
from ...storage.figures import Figures
from ...storage.folder.directory import MANIFEST
from ...stream.node.arguments import Name, Text, stored_bytes, text_of
from ...stream.node.json_form import json_form
from ...stream.node.stream_id import StreamID, parse_id
from .location import LocalFolder, Location, location_of

if TYPE_CHECKING:
    from ..subprocess_task import Progress

FORMAT = 1
CHUNK = 8 << 20
KINDS = ("full", "increment", "shards")
MOST_POINTS = 1024
_LIMITS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # which say nothing of a file

_TAIL = ',\n "checksum": "{}"\n}}\n'
_TAIL_BYTES = len(_TAIL.format("0" * 16))
InnerPath = str  # of a file in the snapshot's folder


@dataclass(frozen=True, slots=True)
class FileSums(Figures):
    """A file's size, and the xxh3_64 (hex) of each ``chunk`` bytes of it."""

    bytes: int
    chunk: int
    sums: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Named(Figures):
    name: Text

    @property
    def _raw(self) -> bytes:
        """The name as it is stored."""
        return stored_bytes(self.name, "name")

    def _shown(self, encoding: str | None) -> Self:
        return replace(self, name=text_of(self._raw, encoding))


@dataclass(frozen=True, slots=True)
class GroupSummary(_Named):
    """A consumer group in the snapshot."""

    last_delivered_id: StreamID
    entries_read: int | None  # Redis' counter, None if unknown
    pending: int
    consumers: int
    lag: int


@dataclass(frozen=True, slots=True)
class StreamSummary(_Named):
    """A stream in the snapshot. ``points[i]`` is the ID of live entry no. (i + 1) * every, from 0."""

    number: int
    length: int
    first: StreamID | None  # the first and the last live entry
    last: StreamID | None
    last_generated_id: StreamID
    entries_added: int
    base: int  # the ordinal of the first node's first entry
    next_ordinal: int
    nodes: int
    bytes: int  # of the nodes' blocks
    every: int
    points: tuple[StreamID, ...]
    groups: tuple[GroupSummary, ...]
    schema: dict[str, str] = field(default_factory=dict)  # the types of its fields, if the stream has a schema


@dataclass(frozen=True, slots=True)
class ShardFile(Figures):
    """One shard: a file with the nodes of one stream from ``first`` to ``last``, live entries."""

    stream: int
    path: InnerPath
    first: StreamID
    last: StreamID
    entries: int
    nodes: int
    bytes: int
    sum: str


@dataclass(frozen=True, slots=True)
class Manifest(Figures):
    """The manifest of a snapshot: its kind, its times, its streams and its files. Names are as the store shows them."""

    kind: str
    id: str
    store: str
    store_created: datetime
    created: datetime
    transaction: int
    raxlog: str
    store_format: int
    records: int  # keys of the store
    parent: str | None = None
    parent_name: str | None = None
    changed: int = 0  # of an increment: records put, records gone, and the bytes of these rows
    gone: int = 0
    changed_bytes: int = 0
    files: dict[InnerPath, FileSums] = field(default_factory=dict)
    streams: tuple[StreamSummary, ...] = field(default_factory=tuple)  # these three are in every manifest
    shards: tuple[ShardFile, ...] = field(default_factory=tuple)

    def stream(self, name: Name) -> StreamSummary | None:
        """The stream of that name; None if there is none."""
        raw = stored_bytes(name, "stream name")
        return next((stream for stream in self.streams if stream._raw == raw), None)

    def _shown(self, encoding: str | None) -> Manifest:
        """The same with names as the store shows them; in what read() returns they are bytes."""
        return replace(self, streams=tuple(
            replace(stream._shown(encoding), groups=tuple(group._shown(encoding) for group in stream.groups))
            for stream in self.streams))

    def sums(self, name: str) -> FileSums:
        """Size and checksums of a file. CorruptionError if the manifest does not list it."""
        if name not in self.files:
            raise CorruptionError(f"the manifest of this {self.kind} snapshot lists no file {name}", snapshot=True)
        return self.files[name]

    @property
    def bytes(self) -> int:
        """The size of the snapshot's files, without the manifest."""
        return sum(sums.bytes for sums in self.files.values()) + sum(shard.bytes for shard in self.shards)


def write(folder: Path, manifest: Manifest) -> None:
    """Write the manifest into its folder, as the last file of a snapshot."""
    (folder / MANIFEST).write_bytes(encode(manifest))


def read(where: str | os.PathLike[str]) -> Manifest:
    """The manifest of the snapshot in a folder, or at the URL of a set of shards, checked.

    NotAStore if there is no snapshot, UnsupportedFormat for one of a newer raxlog, CorruptionError
    if a byte of the manifest is wrong. The other files are not read.
    """
    place = location_of(where)
    try:
        data = place.read(MANIFEST)
    except NotAStore:
        raise NotAStore(_no_snapshot(place)) from None
    except OSError as error:
        raise StoreError(f"the manifest of {place.url} cannot be read: {error}.") from error
    return decode(data, f"{place.url}/{MANIFEST}")


def _no_snapshot(place: Location) -> str:
    if not isinstance(place, LocalFolder):
        return f"there is no snapshot at {place.url}: it has no {MANIFEST}. 'raxlog snapshot --shards' writes one."
    path = place.path
    if not path.exists():
        return f"there is no snapshot at {path}: nothing is there."
    if not path.is_dir():
        return f"{path} is a file, not a snapshot. A snapshot is a folder with a {MANIFEST}."
    what = "a store" if (path / "CURRENT").is_file() else "a folder"
    inside = sorted((file.stat().st_mtime_ns, file.parent.name) for file in path.glob(f"*/{MANIFEST}"))
    hint = (f"It holds {len(inside)}, the newest is {inside[-1][1]}." if inside
            else "'raxlog snapshot STORE DEST' makes one.")
    return f"{path} is {what}, but not a snapshot: it has no {MANIFEST}. {hint}"


def sums_of(file: Path, progress: Progress) -> FileSums:
    """Size and checksums of a file."""
    total, sums, done = file.stat().st_size, [], 0
    with file.open("rb") as data:
        while chunk := data.read(CHUNK):
            sums.append(xxh3_64_hexdigest(chunk))
            done += len(chunk)
            progress("sum", done, total)
    return FileSums(done, CHUNK, tuple(sums))


def chunks_of(place: Location, name: str, sums: FileSums) -> Iterator[tuple[bytes, str]]:
    """A file's chunks, each with a problem or "". A wrong size or a missing file is an empty chunk's problem.

    ``sums.chunk`` 0: one chunk of the whole file's size.
    """
    size = sums.chunk or sums.bytes
    done = 0
    try:
        with place.open(name) as file:
            for number, wanted in enumerate(sums.sums):
                chunk = _exactly(file, min(size, sums.bytes - done))
                which = f"bytes {number * size} to {min((number + 1) * size, sums.bytes)} (chunk {number})"
                yield chunk, "" if xxh3_64_hexdigest(chunk) == wanted else f"{name}: {which} fail their checksum"
                done += len(chunk)
            if done != sums.bytes or file.read(1):
                yield b"", f"{name}: it has not the {sums.bytes} bytes that the manifest states"
    except RaxlogError as error:
        if getattr(error.__cause__, "errno", None) in _LIMITS:
            raise
        yield b"", f"{name}: {error}"
    except OSError as error:
        yield b"", f"{name}: it cannot be read to its end ({error})"


def require(place: Location, made: Manifest, *names: str) -> None:
    """CorruptionError if a file of a snapshot is not as it was written."""
    for name in names:
        for _, problem in chunks_of(place, name, made.sums(name)):
            if problem:
                raise CorruptionError(f"{place.url}: {problem}", snapshot=True)


def _exactly(file: BinaryIO, size: int) -> bytes:
    parts = []
    while size and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def encode(manifest: Manifest) -> bytes:
    """The manifest as the bytes of its file."""
    body = json.dumps(json_form({"format": FORMAT} | manifest.to_dict()), indent=1).encode("ascii").removesuffix(b"\n}")
    return body + _TAIL.format(xxh3_64_hexdigest(body)).encode()


def decode(data: bytes, place: str) -> Manifest:
    """The inverse of encode(). ``place`` names the file in errors."""
    body, tail = data[:-_TAIL_BYTES], data[-_TAIL_BYTES:]
    if tail != _TAIL.format(xxh3_64_hexdigest(body)).encode():
        raise CorruptionError(f"{place} fails its checksum: the manifest is damaged or cut off", snapshot=True)
    try:
        row = json.loads(data)
        if row["format"] > FORMAT:
            raise UnsupportedFormat(
                f"{place} has format {row['format']}; this raxlog reads up to {FORMAT}. Read it with a newer raxlog."
            )
        made: Manifest = _made(Manifest, row)
        if made.kind not in KINDS:
            raise ValueError(f"kind {made.kind!r}")
        return made
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        raise CorruptionError(f"{place} is not a manifest: {type(error).__name__} {error}", snapshot=True) from None


def _made(kind: Any, row: dict[str, Any]) -> Any:
    """An instance of the dataclass ``kind``, its members checked by their annotations."""
    members = {}
    for name, member in kind.__dataclass_fields__.items():
        if name in row or member.default is MISSING:
            try:
                members[name] = _parsed(member.type, row[name])
            except ValueError as error:
                raise ValueError(f"{name} {error}") from None
    return kind(**members)


def _parsed(kind: str, value: Any) -> Any:
    """A member's value from JSON, by its annotation."""
    if kind.endswith(" | None"):
        return None if value is None else _parsed(kind.removesuffix(" | None"), value)
    if kind.startswith("tuple["):
        inner = kind.removeprefix("tuple[").removesuffix(", ...]")
        return tuple(_parsed(inner, item) for item in _require(isinstance(value, list), value))
    if kind.startswith("dict["):
        names, values = kind.removeprefix("dict[").removesuffix("]").split(", ")
        return {_parsed(names, key): _parsed(values, item) for key, item in value.items()}
    if kind == "int":
        return _require(type(value) is int and value >= 0, value)
    if kind == "str":
        return _require(isinstance(value, str), value)
    return _PARSERS[kind](value)


def _require(right: bool, value: Any) -> Any:
    if not right:
        raise ValueError(f"{value!r:.40}")
    return value


def _inside(path: Any) -> str:
    """A path, which must not lead out of the snapshot."""
    right = isinstance(path, str) and not path.startswith("/") and ".." not in path.split("/")
    return str(_require(right, path))


def _name(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else base64.b64decode(value["base64"], validate=True)


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "Text": _name, "StreamID": parse_id, "datetime": lambda value: datetime.fromisoformat(value).astimezone(UTC),
    "InnerPath": _inside,
    **{kind.__name__: partial(_made, kind) for kind in (FileSums, GroupSummary, StreamSummary, ShardFile)},
}
