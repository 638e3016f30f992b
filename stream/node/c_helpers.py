"""The few functions that the kernels run as C: these are their plain twins, the C ones in c_helpers.pxd.

    id_of(StreamID, 5, 1)   the ID 5-1              put_id(row, 16, 5, 1)   its 16 bytes, written
    half_of(sid, 1)         its second half         decimal(-7)             b"-7"

All else has one source that runs at both speeds. For these four the time goes into what Python does
around the work: four objects for a tuple of a class of ours, a format string parsed for a number.
"""

from __future__ import annotations

import struct
from typing import TypeVar

T = TypeVar("T", bound=tuple[int, int])

_BYTES = struct.Struct(">QQ")


def id_of(cls: type[T], ms: int, seq: int) -> T:
    """The ID of two halves known to be right."""
    return tuple.__new__(cls, (ms, seq))


def half_of(sid: tuple[int, int], place: int) -> int:
    """The milliseconds (0) or the number within them (1) of an ID."""
    return sid[place]


def put_id(row: bytearray, at: int, ms: int, seq: int) -> None:
    """Write the 16 bytes of an ID at ``at``."""
    _BYTES.pack_into(row, at, ms, seq)


def decimal(value: int) -> bytes:
    """The decimal text of an int64."""
    return b"%d" % value
