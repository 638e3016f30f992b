"""The payload of Redis' DUMP of a stream, read back to its nodes and counters.

    | type | nodes | { key (string), listpack (string) } * nodes | length | last ms, seq |
    | first ms, seq | max-deleted ms, seq | entries added | groups | ... | version | crc64 |

Type 15 (Redis 5) ends its counters with the last ID; types 19 and 21 (Redis 7.0 and 7.2) have
them all. Numbers are RDB lengths: 6 bits behind 00, 14 behind 01, four or eight big-endian bytes
behind 80 and 81. A string is such a length and its bytes, or an integer behind C0 .. C2. What
follows the counters, the groups, is not read. LZF (C3) is not either: the server runs with
``rdbcompression no``.
"""

from __future__ import annotations

from typing import NamedTuple

STREAM_TYPES = (15, 19, 21)
TRAILER = 10  # version and checksum

ID = tuple[int, int]


class DumpedStream(NamedTuple):
    """What a DUMP payload says of a stream; the last three are None for type 15."""

    nodes: list[tuple[bytes, bytes]]  # 16-byte key, listpack
    length: int
    last: ID
    first: ID | None
    max_deleted: ID | None
    entries_added: int | None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        piece = self.data[self.at : self.at + size]
        if len(piece) != size:
            raise ValueError(f"the payload ends at {len(self.data)}, {size} bytes are wanted at {self.at}")
        self.at += size
        return piece

    def length(self) -> int:
        first = self.take(1)[0]
        if first < 0x40:
            return first
        if first < 0x80:
            return (first & 0x3F) << 8 | self.take(1)[0]
        if first in (0x80, 0x81):
            return int.from_bytes(self.take(4 if first == 0x80 else 8), "big")
        raise ValueError(f"{first:#04x} at {self.at - 1} begins no length")

    def string(self) -> bytes:
        first = self.data[self.at] if self.at < len(self.data) else 0
        if first < 0xC0:
            return self.take(self.length())
        if first > 0xC2:
            raise ValueError(f"the string at {self.at} is compressed; set rdbcompression no")
        self.at += 1
        return str(int.from_bytes(self.take(1 << (first & 3)), "little", signed=True)).encode()

    def id(self) -> ID:
        return self.length(), self.length()


def parse(payload: bytes) -> DumpedStream:
    """Read a payload. ValueError where it is no stream, compressed or cut off."""
    reader = _Reader(payload[:-TRAILER])
    kind = reader.take(1)[0]
    if kind not in STREAM_TYPES:
        raise ValueError(f"type {kind} is none of the stream types {STREAM_TYPES}")
    nodes = [(reader.string(), reader.string()) for _ in range(reader.length())]
    length, last = reader.length(), reader.id()
    if kind == STREAM_TYPES[0]:
        return DumpedStream(nodes, length, last, None, None, None)
    return DumpedStream(nodes, length, last, reader.id(), reader.id(), reader.length())
