"""IDs in a row: 16 big-endian bytes each, one behind the other, as buckets of pending entries hold them.

    5-0              5-1              6-0
    ················ ················ ················     sorts and compares as the IDs do

What is read from a group and acknowledged goes through here a hundred at a time, so each of
these is one loop that makes no object for an ID.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .stream_id import (
    StreamID,
    ascending,
    begin_row,  # cimport
    end_row,  # cimport
    half_of,  # cimport
    put_id,  # cimport
)

SOURCE_HASH = ""

ID = tuple[int, int]


def pack_ids(ids: Iterable[ID]) -> bytes:
    """The IDs in a row, in the order they come in."""
    given = list(ids)
    row = begin_row(len(given))
    at = 0
    for sid in given:
        put_id(row, at, half_of(sid, 0), half_of(sid, 1))
        at += 16
    return end_row(row)


def row_of(ids: Iterable[Any]) -> bytes:
    """IDs as parse_id() takes them, ascending, each once, in a row: usually they are that already."""
    given = list(ids)
    row = begin_row(len(given))
    at = 0
    last_ms = last_seq = 0
    for sid in given:
        if type(sid) is not StreamID:
            return pack_ids(ascending(given))
        ms = half_of(sid, 0)
        seq = half_of(sid, 1)
        if at and (ms < last_ms or (ms == last_ms and seq <= last_seq)):
            return pack_ids(ascending(given))
        put_id(row, at, ms, seq)
        at += 16
        last_ms = ms
        last_seq = seq
    return end_row(row)
