"""The digest of a snapshot: every key of the store with the checksum of its value.

    zstd( | key's length (2, LE) | key | checksum (8) |   in the order of the keys, … )

The checksum is the one at the beginning of the value. Two states of a store are compared by
reading their keys side by side, so this is all that an increment needs of the older state: a
hundredth of its size, or less. Every value is verified when its row is written, so no damage gets
into a snapshot.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ...storage.errors import CorruptionError
from ...storage.format import keys, records, zstd
from ..check.records import is_sealed

DIGEST = "digest"

_LENGTH = struct.Struct("<H")
_FLUSH = 1 << 18  # bytes of rows compressed at a time
_LOG = keys.family(0, keys.LOG)


class DigestWriter(io.BufferedWriter):
    """Writes a digest row by row. A context manager."""

    def __init__(self, path: Path) -> None:
        super().__init__(zstd.create(path), _FLUSH)
        self.records: int = 0

    def add(self, key: bytes, checksum: bytes) -> None:
        """Write the next row; keys ascend."""
        self.write(_LENGTH.pack(len(key)) + key + checksum)
        self.records += 1


def read_digest(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Keys and checksums, in order. CorruptionError if the file cannot be read to its end."""
    for _, row in read_rows(path, f"the digest {path}", _LENGTH, lambda key_size: key_size + 8):
        yield row[:-8], row[-8:]


def read_rows(path: Path, what: str, head: struct.Struct,
              size: Callable[..., int]) -> Iterator[tuple[tuple[int, ...], bytes]]:
    """The rows of a compressed file: a head and ``size(*head)`` bytes each. CorruptionError."""
    data = b""
    try:
        with path.open("rb") as file, zstd.unpacked(file) as rows:
            while more := rows.read(_FLUSH):
                data += more
                at = 0
                while at + head.size <= len(data):
                    numbers = head.unpack_from(data, at)
                    start = at + head.size
                    end = start + size(*numbers)
                    if end > len(data):
                        break
                    yield numbers, data[start:end]
                    at = end
                data = data[at:]
    except (OSError, *zstd.ERRORS) as error:
        raise CorruptionError(f"{what} cannot be read ({error})", snapshot=True) from error
    if data:
        raise CorruptionError(f"{what} ends in the middle of a row", snapshot=True)


def verified(cursor: Any) -> Iterator[tuple[bytes, Any]]:
    """All keys and values under a cursor, in order, each verified; the values may be LMDB's own memory.

    CorruptionError naming the key (and of a node the stream's number and the node).
    """
    for key, value in cursor.iternext():
        key = bytes(key)
        if key.startswith(_LOG):
            continue  # a journal's, or what the store itself has of its log: neither is in a snapshot
        if not is_sealed(key, value):
            number, is_node = int.from_bytes(key[:8], "big"), key[8:9] == bytes([keys.NODE])
            what = "a node's block" if is_node else f"the record under key {key.hex()}"
            node = "{}-{}".format(*records.node_id(key)) if is_node and len(key) == 25 else None
            raise CorruptionError(f"{what} fails its checksum", stream=f"no. {number}" if number else None, node=node)
        yield key, value
