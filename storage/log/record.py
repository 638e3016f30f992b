"""A record of the log: one commit's changes, and how they lie in it. Written by the log, read by the log and the feed.

    record    checksum (8), seeded by the one before │ length (4) │ LSN (8) │ pages freed (4) │ epoch (4) │ changes
    change    0 delete │ 1 put │ 2 delta: the first 48 bytes, how many behind them to keep, new bytes
    delete    0 │ key length (2) │ key
    put       1 │ key length (2) │ value length (4) │ key │ value
    delta     2 │ key length (2) │ kept (4) │ new (4) │ key │ 48 bytes │ the new bytes       integers little-endian

A delta is relative to the value before: a node that has grown is its old form up to the end mark.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

SOURCE_HASH = ""

HEAD = 28
RECORD = struct.Struct("<QIQII")
DELTA_HEAD = 48
CHUNK = 256
_PUT = struct.Struct("<BHI")
_DELTA = struct.Struct("<BHII")
_DELETE = struct.Struct("<BH")


def encode_change(parts: list[bytes], key: bytes, value: bytes | None, base: bytes | None) -> None:
    """Append a change to the record's parts."""
    if value is None:
        parts.append(_DELETE.pack(0, len(key)))
        parts.append(key)
        return
    size = len(value)
    if base is not None and size > 256 and len(base) > 256:
        front = common_front(value, base)
        if size - front < size // 2:
            parts.append(_DELTA.pack(2, len(key), front - DELTA_HEAD, size - front))
            parts.append(key)
            parts.append(value[:DELTA_HEAD])
            parts.append(value[front:])
            return
    parts.append(_PUT.pack(1, len(key), size))
    parts.append(key)
    parts.append(value)


def is_same(left: bytes, right: bytes, at: int, size: int) -> bool:  # cimport
    """Whether both have the same bytes there."""
    return left[at : at + size] == right[at : at + size]


def common_front(value: bytes, base: bytes) -> int:
    """Up to where both are equal, behind the head; the head counts as equal."""
    left = value
    right = base
    at = len(base) - 1  # a node that has grown is its old form up to the end mark
    if len(value) > at and is_same(left, right, DELTA_HEAD, at - DELTA_HEAD):
        return at
    limit = min(len(value), len(base))
    at = DELTA_HEAD
    while at + CHUNK <= limit and is_same(left, right, at, CHUNK):
        at += CHUNK
    while at < limit and left[at] == right[at]:
        at += 1
    return at


def decode(record: bytes, at: int, base_of: Callable[[bytes], bytes]) -> list[tuple[bytes, bytes | None]]:
    """The changes of a record from there on: keys, with whole values, None where deleted.

    ``base_of`` gives the value that a delta is relative to; an empty one, of a damaged store, is all that is left.
    """
    found: list[tuple[bytes, bytes | None]] = []
    size = len(record)
    raw = record
    while at < size:
        kind = raw[at]
        klen = raw[at + 1] | raw[at + 2] << 8
        value: bytes | None = None
        if kind == 0:
            at += 3
            key = record[at : at + klen]
            at += klen
        elif kind == 1:
            vlen = read_u32(record, at + 3)
            at += 7
            key = record[at : at + klen]
            at += klen
            value = record[at : at + vlen]
            at += vlen
        else:
            front = read_u32(record, at + 3)
            middle = read_u32(record, at + 7)
            at += 11
            key = record[at : at + klen]
            at += klen
            base = base_of(key)
            value = base and b"".join((record[at : at + DELTA_HEAD], base[DELTA_HEAD : DELTA_HEAD + front],
                                       record[at + DELTA_HEAD : at + DELTA_HEAD + middle]))
            at += DELTA_HEAD + middle
        found.append((key, value))
    return found


def read_u32(body: bytes, at: int) -> int:
    """The little-endian uint32 at ``at``."""
    left = body
    high = left[at + 3]  # of a C type of its own: 24 places up, its highest bit would be the sign of an int
    return left[at] | left[at + 1] << 8 | left[at + 2] << 16 | high << 24
