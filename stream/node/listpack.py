"""Listpacks: a list of strings and integers in one run of bytes.

    | total bytes | elements | element | element | ... | 0xFF |
       4, LE         2, LE                                1

Worked example, the list "bob", 300:

    0f 00 00 00   02 00   83 62 6f 62  04   c1 2c  02   ff
    15 bytes      2       "bob"  4 bytes    300    2    end

What an element looks like stands in element.py. "More than 65,534 elements" is written as
65535 and must be counted by walking.

A listpack is a ``bytes`` here, an element is named by its offset, and a change gives a new
listpack. Nothing is trusted: what does not add up raises CorruptionError with the offset.
"""

from __future__ import annotations

from typing import NoReturn

from ...storage.errors import CorruptionError, InvalidArgument
from .element import (  # cimport
    after,
    before,
    element_size,
    integer_at,
    integer_element,
    is_integer,
    put_value,
    room_for,
    value_at,
)

SOURCE_HASH = ""

HEADER = 6
MAX_BYTES = 1 << 30  # Redis' limit for one listpack
SIGN = 1 << 63
TOP = (1 << 63) - 1
UNKNOWN = 65535  # the element count of a list with too many to say

BEFORE, AFTER, REPLACE = "before", "after", "replace"


def damaged(what: str, offset: int) -> NoReturn:
    """Raise CorruptionError. A function, so that the inner loops carry no formatting."""
    raise CorruptionError(f"a listpack {what}", offset=offset)


def check_frame(lp: bytes) -> int:
    """Offset of the 0xFF, once the total size and the terminator have been checked."""
    size = len(lp)
    if size < HEADER + 1:
        damaged("is cut off in its header", size)
    if total_bytes(lp) != size:
        damaged("does not have the size it states", 0)
    if lp[size - 1] != 0xFF:
        damaged("has no end mark", size - 1)
    return size - 1


def frame(head: bytes, body: bytes | bytearray, elements: int) -> bytes:
    """The listpack of encoded elements, given in two runs: header, both, end mark."""
    size = HEADER + len(head) + len(body) + 1
    count = min(elements, UNKNOWN)
    start = (count << 32 | size).to_bytes(HEADER, "little")
    return b"".join((start, head, body, b"\xff"))


def empty() -> bytes:
    """The listpack without elements."""
    return b"\x07\x00\x00\x00\x00\x00\xff"


def total_bytes(lp: bytes) -> int:
    """The size the header states."""
    return int.from_bytes(lp[:4], "little")


def stated(lp: bytes) -> int:
    """The element count in the header; 65535, once reached, stays until the list is rebuilt."""
    return lp[4] | lp[5] << 8


def length(lp: bytes) -> int:
    """How many elements there are. O(1), or O(n) above 65,534 of them.

    Raises CorruptionError where the list cannot be walked.
    """
    end = check_frame(lp)
    count = stated(lp)
    return count if count != UNKNOWN else walk(lp, HEADER, end)


def walk(lp: bytes, start: int, end: int) -> int:
    """How many elements lie between two offsets, each checked."""
    p = lp
    pos = start
    count = 0
    while pos < end:
        pos = after(p, pos, end)
        count += 1
    return count


def encode(value: bytes) -> bytes:
    """One string as an element, backlen included; a canonical decimal becomes an integer."""
    p = bytearray(room_for(len(value), 1))
    del p[put_value(p, 0, value):]
    return bytes(p)


def encode_int(value: int) -> bytes:
    """One int64 as an element, backlen included."""
    if not -SIGN <= value <= TOP:
        raise InvalidArgument(f"{value} does not fit 64 bits; store it as text")
    return integer_element(value)


def append(lp: bytes, value: bytes | int) -> bytes:
    """The list with one more element at its end: O(bytes)."""
    return insert(lp, check_frame(lp), value, BEFORE)[0]


def insert(lp: bytes, offset: int, value: bytes | int, where: str = BEFORE) -> tuple[bytes, int]:
    """The list with an element put before or after the one at ``offset``, or in its place.

    ``where`` is "before", "after" or "replace"; before the offset of the end mark is an
    append. Returns the new list and the offset of the new element. Raises CorruptionError
    where no element begins at ``offset``, InvalidArgument above 1 GiB.
    """
    if where not in (BEFORE, AFTER, REPLACE):
        raise InvalidArgument(f"{where!r} is no place; give 'before', 'after' or 'replace'")
    element = encode_int(value) if isinstance(value, int) else encode(value)
    end = check_frame(lp)
    p = lp
    behind = end if offset == end and where == BEFORE else after(p, offset, end)
    left = behind if where == AFTER else offset
    right = offset if where == BEFORE else behind
    if len(lp) + len(element) > MAX_BYTES:
        raise InvalidArgument("a listpack cannot grow beyond 1 GiB")
    return frame(lp[HEADER:left] + element, lp[right:end], stated(lp) + (where != REPLACE)), left


def delete(lp: bytes, offset: int) -> bytes:
    """The list without the element at ``offset``. Raises CorruptionError if none is there."""
    end = check_frame(lp)
    p = lp
    right = after(p, offset, end)
    return frame(lp[HEADER:offset], lp[right:end], stated(lp) - (stated(lp) != UNKNOWN))


def first(lp: bytes) -> int:
    """Offset of the first element, -1 in an empty list."""
    return HEADER if check_frame(lp) > HEADER else -1


def last(lp: bytes) -> int:
    """Offset of the last element, -1 in an empty list."""
    end = check_frame(lp)
    p = lp
    return before(p, end, end) if end > HEADER else -1


def next(lp: bytes, offset: int) -> int:
    """Offset of the element behind the one at ``offset``, -1 behind the last."""
    end = check_frame(lp)
    p = lp
    pos = after(p, offset, end)
    return pos if pos < end else -1


def prev(lp: bytes, offset: int) -> int:
    """Offset of the element before the one at ``offset``, -1 before the first."""
    end = check_frame(lp)
    p = lp
    if not HEADER <= offset <= end:
        damaged("element lies outside the list", offset)
    return before(p, offset, end) if offset > HEADER else -1


def get(lp: bytes, offset: int) -> bytes:
    """The element at ``offset`` as bytes; an integer as its decimal text."""
    end = check_frame(lp)
    p = lp
    return value_at(p, offset, element_size(p, offset, end))


def get_int(lp: bytes, offset: int) -> int | None:
    """The element at ``offset`` if it is stored as an integer, else None."""
    end = check_frame(lp)
    p = lp
    element_size(p, offset, end)
    return integer_at(p, offset) if is_integer(p[offset]) else None


def validate(lp: bytes, deep: bool = True) -> int:
    """How many elements a listpack has that nobody has vouched for: -1 if not ``deep``.

    Checks the header and the end mark; ``deep`` walks every element and checks encoding,
    bounds and backlen of each, and the count in the header. Integers that are not in their
    smallest encoding are allowed. Raises CorruptionError with the offset. O(bytes).
    """
    end = check_frame(lp)
    if not deep:
        return -1
    count = walk(lp, HEADER, end)
    if stated(lp) not in (count, UNKNOWN):
        damaged(f"states {stated(lp)} elements and has {count}", 4)
    return count
