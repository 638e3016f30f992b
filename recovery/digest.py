"""The digest of a snapshot: every key of the store with the checksum of its value.

    zstd( | key's length (2, LE) | key | checksum (8) |   in the order of the keys, … )

The checksum is that which the value itself begins with. Two states of a store are compared by
going through their keys side by side, so an increment needs no part of the older state but
this: a hundredth of its size, or less. While it is written every value is read and its checksum
verified: what is damaged comes into no snapshot.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_digest, xxh3_64_intdigest

from ..storage import layout, zstd
from ..storage.errors import CorruptionError

DIGEST = "digest"

_LENGTH = struct.Struct("<H")
_FLUSH = 1 << 18  # bytes of rows compressed at a time
_JOURNAL = layout.family(0, layout.JOURNAL)


class DigestWriter:
    """Writes a digest row by row. A context manager."""

    def __init__(self, path: Path) -> None:
        self._rows = io.BufferedWriter(zstd.create(path), _FLUSH)
        self.records = 0

    def add(self, key: bytes, checksum: bytes) -> None:
        """The next row; keys ascend."""
        self._rows.write(_LENGTH.pack(len(key)) + key + checksum)
        self.records += 1

    def __enter__(self) -> DigestWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.close()


def read_digest(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Keys and checksums, in order. CorruptionError where the file cannot be read to its end."""
    try:
        with path.open("rb") as file, zstd.unpacked(file) as rows:
            held = b""
            while True:
                more = rows.read(_FLUSH)
                if not more:
                    break
                held += more
                at = 0
                while at + 2 <= len(held):
                    end = at + 2 + _LENGTH.unpack_from(held, at)[0] + 8
                    if end > len(held):
                        break
                    yield held[at + 2 : end - 8], held[end - 8 : end]
                    at = end
                held = held[at:]
    except (OSError, *zstd.ERRORS) as error:
        raise CorruptionError(f"the digest {path} cannot be read ({error})") from error
    if held:
        raise CorruptionError(f"the digest {path} ends in the middle of a row")


def verified(cursor: Any) -> Iterator[tuple[bytes, Any]]:
    """All keys and values under a cursor, in order, each verified; the values may be LMDB's own memory.

    CorruptionError naming the key (and of a node the stream's number and the node).
    """
    for key, value in cursor.iternext():
        key = bytes(key)
        if key.startswith(_JOURNAL):
            continue  # it belongs to a store at work only, and into no snapshot: the commit journal
        if len(value) < 9 or xxh3_64_digest(value[8:], xxh3_64_intdigest(key))[::-1] != value[:8]:
            raise damaged(key)
        yield key, value


def damaged(key: bytes) -> CorruptionError:
    """The error for a record that fails its checksum."""
    number, kind = int.from_bytes(key[:8], "big"), key[8:9]
    what = "a node's block" if kind[:1] == bytes([layout.NODE]) else f"the record under key {key.hex()}"
    node = "{}-{}".format(*layout.node_id(key)) if kind == bytes([layout.NODE]) and len(key) == 25 else None
    return CorruptionError(f"{what} fails its checksum", stream=f"no. {number}" if number else None, node=node)
