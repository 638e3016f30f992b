"""Listpack elements: one string or integer as bytes that can be walked both ways.

    | encoding (+ length) | data | backlen |

    first byte           meaning                        then
    -------------------  -----------------------------  ----------------------------------
    0vvvvvvv             integer 0 .. 127
    10LLLLLL             string of 0 .. 63 bytes        the bytes
    110vvvvv vvvvvvvv    integer -4096 .. 4095
    1110LLLL LLLLLLLL    string of 64 .. 4095 bytes     the bytes
    11110000             longer string                  length (4, LE), the bytes
    11110001 .. 0011     integer of 16, 24, 32 bits     2, 3, 4 bytes, LE, two's complement
    11110100             integer of 64 bits             8 bytes
    11111111             no element: the end of the list

    "bob"  83 62 6f 62  04          127  7f  01
    -1     df ff  02                300  c1 2c  02

A string that is the canonical decimal of an int64 is stored as that integer, in the smallest
encoding that holds it, and is read back as the same string. The backlen is the size of
encoding and data, 7 bits to a byte, most significant first, bit 7 set on all but the first:
read from the right it leads to where the element begins. Its size follows Redis' thresholds,
which are off by one: 16,383 would fit two bytes and takes three.

These are the inner loops of every read and write. ``p`` is the whole listpack, ``end`` the
offset of its 0xFF; in C ``p`` is a pointer (element.pxd), so nothing here may index it before
the offset is known to lie below ``end``.
"""

from __future__ import annotations

from typing import NoReturn

from ...storage.errors import CorruptionError
from .buffers import copy  # cimport
from .c_helpers import decimal  # cimport

SOURCE_HASH = ""

HEADER = 6  # of the list: no element begins before
SAMEFIELDS = 2
SIGN = 1 << 63
TOP = (1 << 63) - 1

SMALL = [str(number).encode() for number in range(128)]  # the text of every 7-bit integer
ONE = [bytes((number, 1)) for number in range(128)]  # the element of every 7-bit integer


def backlen_size(size: int) -> int:
    """How many bytes the backlen of an element of ``size`` bytes takes."""
    if size <= 127:
        return 1
    if size < 16383:
        return 2
    if size < 2097151:
        return 3
    if size < 268435455:
        return 4
    return 5


def damaged(what: str, offset: int) -> NoReturn:
    """Raise CorruptionError. A function, so that the inner loops carry no formatting."""
    raise CorruptionError(f"a listpack {what}", offset=offset)


def data_size(p: bytes, pos: int, end: int) -> int:
    """Size of encoding and data of the element at ``pos``, from its first bytes alone."""
    if pos < HEADER or pos >= end:
        damaged("element lies outside the list", pos)
    b = p[pos]
    if b < 0x80:
        return 1
    if b < 0xC0:
        return 1 + (b & 0x3F)
    if b < 0xE0:
        return 2
    if b < 0xF0:
        if pos + 2 > end:
            damaged("element is cut off in its length", pos)
        return 2 + ((b & 0x0F) << 8 | p[pos + 1])
    if b == 0xF0:
        if pos + 5 > end:
            damaged("element is cut off in its length", pos)
        size = p[pos + 4]
        size = size << 8 | p[pos + 3]
        size = size << 8 | p[pos + 2]
        size = size << 8 | p[pos + 1]
        return 5 + size
    if b < 0xF4:
        return b - 0xEE  # f1, f2, f3: 3, 4, 5 bytes
    if b == 0xF4:
        return 9
    damaged(f"element has the unknown encoding {b:#04x}", pos)


def element_size(p: bytes, pos: int, end: int) -> int:
    """Size of the element at ``pos`` before its backlen, once both have been checked."""
    size = data_size(p, pos, end)
    k = backlen_size(size)
    at = pos + size
    if at + k > end:
        damaged("element passes the end of the list", pos)
    if k == 1:
        if p[at] != size:
            damaged("element has a wrong backlen", at)
        return size
    rest = size
    i = k
    while i > 0:
        i -= 1
        if p[at + i] != (rest & 0x7F | (0x80 if i else 0)):
            damaged("element has a wrong backlen", at)
        rest >>= 7
    return size


def after(p: bytes, pos: int, end: int) -> int:
    """Where the element behind the one at ``pos`` begins (``end`` behind the last)."""
    size = element_size(p, pos, end)
    return pos + size + backlen_size(size)


def before(p: bytes, pos: int, end: int) -> int:
    """Where the element that ends at ``pos`` begins."""
    size = 0
    shift = 0
    at = pos
    while True:
        at -= 1
        if at < HEADER or shift > 28:
            damaged("backlen does not end", pos)
        b = p[at]
        group = b & 0x7F
        size |= group << shift
        shift += 7
        if b < 0x80:
            break
    start = at - size
    if size == 0 or start < HEADER or element_size(p, start, end) != size:
        damaged("backlen leads to no element", at)
    if start + size + backlen_size(size) != pos:
        damaged("backlen has a wrong size", at)
    return start


def is_integer(b: int) -> bool:
    """Does an element that begins with the byte ``b`` hold an integer?"""
    return b < 0x80 or 0xC0 <= b < 0xE0 or 0xF1 <= b < 0xF5


def integer_at(p: bytes, pos: int) -> int:
    """The integer of the element at ``pos``, known to be one, and whole."""
    b = p[pos]
    if b < 0x80:
        return b
    if b < 0xE0:
        value = (b & 0x1F) << 8 | p[pos + 1]
        return value - 8192 if value >= 4096 else value
    width = 8 if b == 0xF4 else b - 0xEF
    word = 0
    i = width
    while i > 0:
        word = word << 8 | p[pos + i]
        i -= 1
    sign = SIGN >> (64 - 8 * width)
    return (word ^ sign) - sign


def value_at(p: bytes, pos: int, size: int) -> bytes:
    """The element at ``pos``, of a checked size, as bytes: an integer as its decimal text."""
    b = p[pos]
    if b < 0x80:
        return SMALL[b]
    if b < 0xC0:
        return p[pos + 1 : pos + size]
    if is_integer(b):
        return decimal(integer_at(p, pos))
    if b < 0xF0:
        return p[pos + 2 : pos + size]
    return p[pos + 5 : pos + size]


def is_canonical(p: bytes, size: int) -> bool:
    """Are these bytes the one decimal text of an int64? "-0", "+1", "01" are not."""
    if size == 0 or size > 20:
        return False
    i = 0
    if p[0] == 0x2D:  # -
        if size == 1 or p[1] == 0x30:
            return False
        i = 1
    elif p[0] == 0x30:  # 0
        return size == 1
    if size - i > 19:
        return False
    word = 0
    digits = i
    while digits < size:
        b = p[digits]
        if b < 0x30 or b > 0x39:
            return False
        word = word * 10 + (b - 0x30)  # 19 digits cannot pass 2**64
        digits += 1
    return word <= TOP or (i == 1 and word == SIGN)


def canonical(p: bytes, size: int) -> int:
    """The integer of bytes for which is_canonical() is true."""
    i = 1 if p[0] == 0x2D else 0
    word = 0
    at = i
    while at < size:
        word = word * 10 + (p[at] - 0x30)
        at += 1
    return -word if i else word


def integer_width(value: int) -> int:
    """The bytes of an integer that 13 bits do not hold: 2, 3, 4 or 8."""
    if -(1 << 15) <= value < 1 << 15:
        return 2
    if -(1 << 23) <= value < 1 << 23:
        return 3
    return 4 if -(1 << 31) <= value < 1 << 31 else 8


def integer_element(value: int) -> bytes:
    """An integer as an element, in its smallest encoding."""
    if 0 <= value <= 127:
        return ONE[value]
    p = bytearray(11)
    del p[put_integer(p, 0, value):]
    return bytes(p)


def integer_size(value: int) -> int:
    """The length of integer_element(), for a value that is not negative."""
    if value <= 127:
        return 2
    if value <= 4095:
        return 3
    if value < 1 << 15:
        return 4
    if value < 1 << 23:
        return 5
    return 6 if value < 1 << 31 else 10


# -- into a buffer -----------------------------------------------------------------------------
#
# The caller has made room for room_for() bytes from ``at``.


def room_for(size: int, values: int) -> int:
    """At least what so many elements take whose texts have ``size`` bytes in all."""
    return size + 11 * values  # a length of 5 bytes, a backlen of 5; or an integer of 10 and 1


def put_integer(p: bytearray, at: int, value: int) -> int:
    """Write an integer element at ``at``, in its smallest encoding; where it ends."""
    if 0 <= value <= 127:
        p[at] = value
        p[at + 1] = 1
        return at + 2
    if -4096 <= value <= 4095:
        p[at] = 0xC0 | (value >> 8 & 0x1F)
        p[at + 1] = value & 0xFF
        p[at + 2] = 2
        return at + 3
    width = integer_width(value)
    p[at] = 0xF4 if width == 8 else 0xEF + width
    i = 0
    while i < width:
        p[at + 1 + i] = value >> (8 * i) & 0xFF
        i += 1
    p[at + 1 + width] = width + 1
    return at + width + 2


def put_value(p: bytearray, at: int, value: bytes) -> int:
    """Write a string element at ``at``, or the integer it is the decimal of; where it ends."""
    size = len(value)
    if is_canonical(value, size):
        return put_integer(p, at, canonical(value, size))
    start = at
    if size < 64:
        p[at] = 0x80 | size
        at += 1
    elif size < 4096:
        p[at] = 0xE0 | size >> 8
        p[at + 1] = size & 0xFF
        at += 2
    else:
        p[at] = 0xF0
        i = 0
        while i < 4:
            p[at + 1 + i] = size >> (8 * i) & 0xFF
            i += 1
        at += 5
    copy(p, at, value, 0, size)
    at += size
    size = at - start
    i = backlen_size(size) - 1
    p[at] = size >> (7 * i)
    at += 1
    while i > 0:
        i -= 1
        p[at] = 0x80 | (size >> (7 * i) & 0x7F)
        at += 1
    return at


def put_entry(p: bytearray, at: int, ms: int, seq: int, flat: list[bytes], same: bool) -> int:
    """Write an entry of a node (decode.py), its ID minus the master ID; where it ends.

    ``same``: it has the names of the master entry.
    """
    size = len(flat)
    at = put_integer(p, at, SAMEFIELDS if same else 0)
    at = put_integer(p, at, ms)
    at = put_integer(p, at, seq)
    if not same:
        at = put_integer(p, at, size // 2)
    i = 1 if same else 0
    while i < size:
        at = put_value(p, at, flat[i])
        i += 2 if same else 1
    return put_integer(p, at, size // 2 + 3 if same else size + 4)
