"""The manifest of a snapshot: what it holds, of which state, and the checksums of its files.

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

Enough to plan a scan without opening the data: per stream its ID range, its groups, and every
so many live entries the ID of one, of which there are at most 1,024. All members, with an
example, are listed in docs/format-snapshots.md.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from xxhash import xxh3_64_hexdigest

from ..storage.errors import CorruptionError, NotAStore, RaxlogError, StoreError, UnsupportedFormat
from ..storage.folder import MANIFEST
from ..stream.id import StreamID, parse_id
from .places import LocalPlace, Place

FORMAT = 1
CHUNK = 8 << 20
KINDS = ("full", "increment", "shards")
MOST_POINTS = 1024

_TAIL = ',\n "checksum": "{}"\n}}\n'
_TAIL_BYTES = len(_TAIL.format("0" * 16))


@dataclass(frozen=True)
class FileSums:
    """A file's size, and the xxh3_64 (hex) of each ``chunk`` bytes of it."""

    bytes: int
    chunk: int
    sums: tuple[str, ...]


@dataclass(frozen=True)
class GroupSummary:
    """A consumer group as it stood."""

    name: bytes
    last_delivered: StreamID
    entries_read: int | None  # Redis' counter, None where it does not know
    pending: int
    consumers: int
    lag: int


@dataclass(frozen=True)
class StreamSummary:
    """A stream as it stood. ``points[i]`` is the ID of live entry no. (i + 1) * every, from 0."""

    name: bytes
    number: int
    length: int
    first: StreamID | None  # the first and the last live entry
    last: StreamID | None
    last_generated: StreamID
    entries_added: int
    base: int  # the ordinal of the first node's first entry
    next_ordinal: int
    nodes: int
    bytes: int  # of the nodes' blocks
    every: int
    points: tuple[StreamID, ...]
    groups: tuple[GroupSummary, ...]


@dataclass(frozen=True)
class ShardFile:
    """One shard: a file with the nodes of one stream from ``first`` to ``last``, live entries."""

    stream: int
    path: str
    first: StreamID
    last: StreamID
    entries: int
    nodes: int
    bytes: int
    sum: str


@dataclass(frozen=True)
class Manifest:
    """A snapshot's manifest, as read() gives it."""

    kind: str
    id: str
    store: str
    store_created_ms: int
    created_ms: int
    transaction: int
    raxlog: str
    store_format: int
    records: int  # keys of the store
    parent: str | None = None
    parent_name: str | None = None
    changed: int = 0  # of an increment: records put, records gone, and the bytes of these rows
    gone: int = 0
    changed_bytes: int = 0
    files: dict[str, FileSums] = field(default_factory=dict)
    streams: tuple[StreamSummary, ...] = ()
    shards: tuple[ShardFile, ...] = ()

    def stream(self, name: bytes) -> StreamSummary | None:
        """The stream of that name, None if there is none."""
        return next((stream for stream in self.streams if stream.name == name), None)

    def sums(self, name: str) -> FileSums:
        """Size and checksums of a file. CorruptionError if the manifest has none of that name."""
        if name not in self.files:
            raise CorruptionError(f"the manifest of this {self.kind} snapshot speaks of no file {name}")
        return self.files[name]

    @property
    def bytes(self) -> int:
        """How many bytes the snapshot's files have, the manifest left out."""
        return sum(sums.bytes for sums in self.files.values()) + sum(shard.bytes for shard in self.shards)


def write(folder: Path, manifest: Manifest) -> None:
    """Write the manifest into its folder. The last of the files of a snapshot."""
    (folder / MANIFEST).write_bytes(encode(manifest))


def read(path: str | os.PathLike[str]) -> Manifest:
    """The manifest in a snapshot's folder, checked.

    NotAStore where no snapshot is, UnsupportedFormat for one of a newer raxlog, CorruptionError
    where a byte of the manifest is wrong. The other files are not looked at.
    """
    place = Path(path) / MANIFEST
    try:
        return decode(place.read_bytes(), str(place))
    except (FileNotFoundError, NotADirectoryError):
        raise NotAStore(_no_snapshot(Path(path))) from None
    except OSError as error:
        raise StoreError(f"the manifest of {path} cannot be read: {error}.") from error


def _no_snapshot(path: Path) -> str:
    if not path.exists():
        return f"there is no snapshot at {path}: nothing is there."
    if not path.is_dir():
        return f"{path} is a file, not a snapshot. A snapshot is a folder with a {MANIFEST}."
    what = "a store" if (path / "CURRENT").is_file() else "a folder"
    return f"{path} is {what}, but no snapshot: it has no {MANIFEST}. 'raxlog snapshot STORE DEST' makes one."


# -- the files it speaks of ---------------------------------------------------------------------


def sums_of(file: Path, say: Callable[[str, int, int], None]) -> FileSums:
    """Size and checksums of a file."""
    total, sums, done = file.stat().st_size, [], 0
    with file.open("rb") as data:
        while chunk := data.read(CHUNK):
            sums.append(xxh3_64_hexdigest(chunk))
            done += len(chunk)
            say("sum", done, total)
    return FileSums(done, CHUNK, tuple(sums))


def problems_of(place: Place, name: str, sums: FileSums, say: Callable[[int], None]) -> Iterator[str]:
    """What is wrong with a file: each chunk that fails its checksum, a wrong size, or that it is not there.

    ``chunk`` 0 is a single one of the whole file's size.
    """
    size = sums.chunk or sums.bytes
    done = 0
    try:
        with place.open(name) as file:
            for number, wanted in enumerate(sums.sums):
                chunk = _exactly(file, min(size, sums.bytes - done))
                if xxh3_64_hexdigest(chunk) != wanted:
                    yield f"{name}: {wrong_chunk(number, size, sums.bytes)}"
                done += len(chunk)
                say(done)
            if done != sums.bytes or file.read(1):
                yield f"{name}: it has not the {sums.bytes} bytes that the manifest says"
    except RaxlogError as error:
        yield f"{name}: {error}"
    except OSError as error:
        yield f"{name}: it cannot be read to its end ({error})"


def wrong_chunk(number: int, size: int, total: int) -> str:
    """Which bytes of a file fail their checksum, in words."""
    return f"bytes {number * size} to {min((number + 1) * size, total)} (chunk {number}) fail their checksum"


def require_sums(folder: Path, files: dict[str, FileSums]) -> None:
    """CorruptionError where a file of a snapshot is not as it was written."""
    for name, sums in files.items():
        require(LocalPlace(folder), str(folder), name, sums)


def require(place: Place, where: str, name: str, sums: FileSums) -> None:
    """CorruptionError where a file in a place is not as it was written."""
    for problem in problems_of(place, name, sums, lambda _: None):
        raise CorruptionError(f"{where}: {problem}")


def _exactly(file: BinaryIO, size: int) -> bytes:
    parts = []
    while size and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


# -- bytes ----------------------------------------------------------------------------------


def encode(manifest: Manifest) -> bytes:
    """The manifest as the bytes of its file."""
    row: dict[str, Any] = {"format": FORMAT}
    for name, value in vars(manifest).items():
        if name in ("streams", "shards"):
            row[name] = [_plain(vars(item)) for item in value]
        elif name == "files":
            row[name] = {path: vars(sums) for path, sums in value.items()}
        else:
            row[name] = value
    body = json.dumps(row, indent=1).encode("ascii").removesuffix(b"\n}")
    return body + _TAIL.format(xxh3_64_hexdigest(body)).encode()


def decode(data: bytes, place: str) -> Manifest:
    """The inverse of encode(). ``place`` is what errors call the file."""
    body, tail = data[:-_TAIL_BYTES], data[-_TAIL_BYTES:]
    if tail != _TAIL.format(xxh3_64_hexdigest(body)).encode():
        raise CorruptionError(f"{place} fails its checksum: the snapshot's manifest is damaged or cut off")
    try:
        row = json.loads(data)
        if row["format"] > FORMAT:
            raise UnsupportedFormat(
                f"{place} has format {row['format']}; this raxlog reads up to {FORMAT}. Read it with a newer raxlog."
            )
        return _manifest(row)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise CorruptionError(f"{place} is no manifest: {type(error).__name__} {error}") from None


def _manifest(row: dict[str, Any]) -> Manifest:
    made: Manifest = _taken(
        Manifest, row,
        files={_inside(path): _taken(FileSums, sums, sums=_texts(sums["sums"])) for path, sums in row["files"].items()},
        streams=tuple(map(_stream, row["streams"])),
        shards=tuple(map(_shard, row["shards"])),
    )
    if made.kind not in KINDS:
        raise ValueError(f"kind {made.kind!r}")
    return made


def _stream(row: dict[str, Any]) -> StreamSummary:
    summary: StreamSummary = _taken(
        StreamSummary, row,
        name=_name(row["name"]),
        first=None if row["first"] is None else parse_id(row["first"]),
        last=None if row["last"] is None else parse_id(row["last"]),
        last_generated=parse_id(row["last_generated"]),
        points=tuple(map(parse_id, row["points"])),
        groups=tuple(
            _taken(GroupSummary, group, name=_name(group["name"]), last_delivered=parse_id(group["last_delivered"]))
            for group in row["groups"]
        ),
    )
    return summary


def _shard(row: dict[str, Any]) -> ShardFile:
    shard: ShardFile = _taken(
        ShardFile, row, path=_inside(row["path"]), first=parse_id(row["first"]), last=parse_id(row["last"])
    )
    return shard


def _taken(kind: Any, row: dict[str, Any], **converted: Any) -> Any:
    """A ``kind`` of the members that it knows, numbers and texts checked; ``converted`` ones as they are."""
    for name, member in kind.__dataclass_fields__.items():
        if name in converted or (name not in row and member.default is not MISSING):
            continue
        value = row[name]
        number = member.type.startswith("int") and type(value) is int and value >= 0
        text = member.type.startswith("str") and isinstance(value, str)
        if not (number or text or (value is None and member.type.endswith("| None"))):
            raise ValueError(f"{name} {value!r:.40}")
        converted[name] = value
    return kind(**converted)


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"sums {values!r:.40}")
    return tuple(values)


def _inside(path: Any) -> str:
    """A path that does not lead out of the snapshot."""
    if not isinstance(path, str) or path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"path {path!r:.40}")
    return path


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, StreamID):
        return str(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, tuple):
        return [_plain(vars(item) if isinstance(item, GroupSummary) else item) for item in value]
    return value


def _name(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else base64.b64decode(value["base64"], validate=True)
