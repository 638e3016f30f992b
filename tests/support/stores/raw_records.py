"""The records of a closed store, read and changed without raxlog."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import msgpack
import second_reader
import xxhash
from raxlog.storage.format import keys


def raw_records(path: Path) -> dict[bytes, bytes]:
    """All keys and values of a store that no process has open."""
    with lmdb.open(str(path / "000001"), readonly=True, lock=False) as env, env.begin() as txn:
        return {bytes(key): bytes(value) for key, value in txn.cursor()}


def records_of(path: Path, number: int, kind: int) -> list[tuple[bytes, bytes]]:
    """The records of one kind of a stream, by its number."""
    prefix = keys.family(number, kind)
    return [(key, value) for key, value in sorted(raw_records(path).items()) if key.startswith(prefix)]


def changed_copy(sound: Path, copy: Path, changes: dict[bytes, bytes | None]) -> Path:
    """A copy of the store with these values put, or taken out (None), past raxlog."""
    shutil.copytree(sound, copy)
    with lmdb.open(str(copy / "000001"), map_size=1 << 30, sync=False) as env, env.begin(write=True) as txn:
        for key, value in changes.items():
            if value is None:
                assert txn.delete(key)
            else:
                txn.put(key, value)
    return copy


def flipped(value: bytes, at: int, mask: int) -> bytes:
    """The value with the bits of the mask turned over in one byte."""
    return value[:at] + bytes([value[at] ^ mask]) + value[at + 1 :]


def resealed(key: bytes, value: bytes, change: Callable[[list[Any]], None]) -> bytes:
    """A record with its row changed and its checksum right, as the page says."""
    row = second_reader.record(value)
    change(row)
    body = b"\x01" + msgpack.packb(row)
    seed = xxhash.xxh3_64_intdigest(key)
    return xxhash.xxh3_64_intdigest(body, seed).to_bytes(8, "little") + body
