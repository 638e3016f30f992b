"""A shard: the nodes of a range of IDs of one stream, in one compressed, self-contained file.

    +----------------+---------+---------+-- --+---------+-----+
    | header         | frame 0 | frame 1 | ... | frame n | end |
    +----------------+---------+---------+-- --+---------+-----+

    header   "raxshard" | format (1) | size (4) | msgpack row | checksum (8)
             row: [stream, number, first ms, seq, last ms, seq, live entries]
    frame    checksum (8) | size (4) | nodes (4) | first node's ms (8) | seq (8) | zstd
             in it: ( ms (8) | seq (8) | live (4) | size (4) | listpack ) …      about 1 MB
    end      a frame of size 0, with the nodes of all frames, and the shard's last ID

Integers are little-endian. Each checksum is the xxh3_64 of what follows it in the frame (of
what precedes it, in the header). A node is in one shard only; deleted entries are still in the
listpacks, with their flag.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

import msgpack
from xxhash import xxh3_64, xxh3_64_intdigest

from ...storage.errors import CorruptionError, NotAStore, UnsupportedFormat
from ...storage.format import zstd
from ...stream.entries.header import shown
from ...stream.node.stream_id import StreamID, make_id

FORMAT = 1
FRAME_BYTES = 1 << 20

_MAGIC = b"raxshard"
_HEAD = struct.Struct("<8sBI")
_FRAME = struct.Struct("<QIIQQ")
_NODE = struct.Struct("<QQII")
_SUM = struct.Struct("<Q")
_MOST = 1 << 31  # bytes of a frame
_MOST_HEADER = 1 << 16


class ShardHeader(NamedTuple):
    """The header of a shard. ``first`` and ``last`` are live entries."""

    stream: bytes
    number: int
    first: StreamID
    last: StreamID
    entries: int


class ShardWriter:
    """Writes one shard. A context manager, which writes the end frame if the block succeeds."""

    def __init__(self, path: Path, header: ShardHeader) -> None:
        self._file = path.open("wb")
        self._sum = xxh3_64()
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._first = (0, 0)
        self._last = header.last
        self.bytes = self.nodes = 0
        row = msgpack.packb([header.stream, header.number, *header.first, *header.last, header.entries])
        head = _HEAD.pack(_MAGIC, FORMAT, len(row)) + row
        self._put(head + _SUM.pack(xxh3_64_intdigest(head)))

    def add(self, ms: int, seq: int, live: int, listpack: bytes) -> None:
        """Write the next node, in the order of IDs."""
        if not self._held:
            self._first = (ms, seq)
        self._held += (_NODE.pack(ms, seq, live, len(listpack)), listpack)
        self.nodes += 1
        self._held_bytes += len(listpack)
        if self._held_bytes >= FRAME_BYTES:
            self._write_frame()

    @property
    def sum(self) -> str:
        """The xxh3_64 of the whole file, in hex, once it is closed."""
        return self._sum.hexdigest()

    def _write_frame(self) -> None:
        packed = zstd.compress(b"".join(self._held))
        self._frame(len(self._held) // 2, self._first, packed)
        self._held.clear()
        self._held_bytes = 0

    def _frame(self, nodes: int, first: tuple[int, int], packed: bytes) -> None:
        frame = _FRAME.pack(0, len(packed), nodes, *first)[8:] + packed
        self._put(_SUM.pack(xxh3_64_intdigest(frame)) + frame)

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self._sum.update(data)
        self.bytes += len(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file:
            if kind is None:
                if self._held:
                    self._write_frame()
                self._frame(self.nodes, self._last, b"")


class ShardReader:
    """Reads one shard from any binary file, without LMDB: every byte is verified before it is used.

    ``file`` needs read(n) only; ``name`` names the shard in errors. ``header`` is read at
    once: NotAStore for a file that is not a shard, UnsupportedFormat, CorruptionError.
    """

    def __init__(self, file: BinaryIO, name: str = "the shard") -> None:
        self._file = file
        self._name = name
        self.header: ShardHeader = self._read_header()

    def nodes(self, start: tuple[int, int] | None = None,
              end: tuple[int, int] | None = None) -> Iterator[tuple[StreamID, bytes]]:
        """(master ID, listpack) of the nodes that may hold entries from ``start`` to ``end``, in order.

        To be used once. Frames before ``start`` are read but not unpacked. CorruptionError names the
        stream, the shard and the place in it.
        """
        previous: tuple[int, int, tuple[int, int], bytes] | None = None
        number = seen = 0
        while True:
            frame = self._read_frame(number)
            # A frame is skipped if the next one begins at or before the start.
            if previous is not None:
                seen += previous[1]
                if start is None or frame[2] > start or not frame[3]:
                    yield from self._unpacked(previous, start, end)
            if not frame[3]:
                if seen != frame[1]:
                    raise self._damaged(f"has {seen} nodes of {frame[1]}")
                break
            if end is not None and frame[2] > end:
                return
            previous, number = frame, number + 1
        if self._file.read(1):
            raise self._damaged("goes on behind its end")

    def _unpacked(self, frame: tuple[int, int, tuple[int, int], bytes], start: tuple[int, int] | None,
                  end: tuple[int, int] | None) -> Iterator[tuple[StreamID, bytes]]:
        number, count, first, packed = frame
        try:
            stated = zstd.stated_size(packed)
            if stated is None or stated > _MOST:
                raise self._damaged(f"states too large a frame {number}, or no size of it", first)
            rows = zstd.decompress(packed, stated)
        except zstd.ERRORS as error:
            raise self._damaged(f"cannot be unpacked in frame {number} ({error})", first) from None
        at, previous, last = 0, None, (-1, -1)
        for _ in range(count):
            if at + _NODE.size > len(rows):
                raise self._damaged(f"has too few nodes in frame {number}", first)
            ms, seq, _live, size = _NODE.unpack_from(rows, at)
            at += _NODE.size + size
            if at > len(rows) or (ms, seq) <= last:
                raise self._damaged(f"is out of order in frame {number}", (ms, seq))
            last = (ms, seq)
            if previous is not None and (start is None or last > start):
                yield previous
            if end is not None and last > end:
                return
            previous = make_id(ms, seq), rows[at - size : at]
        if at != len(rows):
            raise self._damaged(f"has bytes left over in frame {number}", first)
        if previous is not None:
            yield previous

    def _read_header(self) -> ShardHeader:
        head = self._file.read(_HEAD.size)
        if len(head) < _HEAD.size or not head.startswith(_MAGIC):
            raise NotAStore(f"{self._name} is not a shard of a raxlog snapshot: it does not begin like one.")
        _, version, size = _HEAD.unpack(head)
        row = self._file.read(min(size, _MOST_HEADER))
        if self._file.read(_SUM.size) != _SUM.pack(xxh3_64_intdigest(head + row)):
            raise CorruptionError(f"{self._name} fails the checksum of its header", snapshot=True)
        if version > FORMAT:
            raise UnsupportedFormat(
                f"{self._name} has format {version}; this raxlog reads up to {FORMAT}. Read it with a newer raxlog."
            )
        try:
            name, number, *ids, entries = msgpack.unpackb(row)[:7]
            first, last = StreamID(*ids[:2]), StreamID(*ids[2:])
            if not isinstance(name, bytes) or type(number) is not int or type(entries) is not int:
                raise TypeError(f"{name!r:.40}, {number!r:.40}, {entries!r:.40}")
        except (ValueError, TypeError, RecursionError) as error:
            raise CorruptionError(f"{self._name} has a header that makes no sense ({error})", snapshot=True) from None
        return ShardHeader(name, number, first, last, entries)

    def _read_frame(self, number: int) -> tuple[int, int, tuple[int, int], bytes]:
        head = self._file.read(_FRAME.size)
        if len(head) < _FRAME.size:
            raise self._damaged(f"is cut off before frame {number}")
        checksum, size, nodes, ms, seq = _FRAME.unpack(head)
        if size > _MOST:
            raise self._damaged(f"fails the checksum of frame {number}")
        packed = self._file.read(size)
        if len(packed) < size:
            raise self._damaged(f"is cut off in frame {number}", (ms, seq))
        if xxh3_64_intdigest(head[8:] + packed) != checksum:
            raise self._damaged(f"fails the checksum of frame {number}", (ms, seq))
        return number, nodes, (ms, seq), packed

    def _damaged(self, what: str, node: Any = None) -> CorruptionError:
        where = None if node is None else "{}-{}".format(*node)
        return CorruptionError(f"{self._name} {what}", stream=shown(self.header.stream), node=where, snapshot=True)
