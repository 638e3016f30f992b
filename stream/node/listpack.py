"""Listpacks: a list of strings and integers in one run of bytes.

    | total bytes | elements | element | element | ... | 0xFF |
       4, LE         2, LE                                1

    0f 00 00 00   02 00   83 62 6f 62  04   c1 2c  02   ff        the list "bob", 300
    15 bytes      2       "bob"  4 bytes    300    2    end

"More than 65,534 elements" is written as 65535 and must be counted by walking. An element can be
walked both ways:

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

A listpack is a ``bytes`` here, an element is named by its offset, and a change returns a new
listpack. Nothing is trusted: what does not add up raises CorruptionError with the offset.

The functions of elements are the inner loops of every read and write. ``p`` is the whole listpack,
``end`` the offset of its 0xFF; in C ``p`` is a pointer (listpack.pxd), so nothing may index it before
the offset is known to be below ``end``.
"""

from __future__ import annotations

from typing import NoReturn

from ...storage.errors import CorruptionError, InvalidArgument

SOURCE_HASH = ""

HEADER = 6  # no element begins before
MAX_BYTES = 1 << 30  # Redis' limit for one listpack
UNKNOWN = 65535  # the element count of a list with too many to say
SAMEFIELDS = 2
SIGN = 1 << 63
TOP = (1 << 63) - 1
INT64 = range(-(1 << 63), 1 << 63)

BEFORE, AFTER, REPLACE = "before", "after", "replace"

SMALL = [str(number).encode() for number in range(128)]  # the text of every 7-bit integer
ONE = [bytes((number, 1)) for number in range(128)]  # the element of every 7-bit integer


def copy(to: bytearray, at: int, p: bytes, pos: int, size: int) -> None:  # cimport
    """Copy ``size`` bytes at ``pos`` of ``p`` to ``at`` of ``to``."""
    to[at : at + size] = p[pos : pos + size]


def decimal(value: int) -> bytes:  # cimport
    """The decimal text of an int64."""
    return b"%d" % value


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
        damaged("element is outside the list", pos)
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


def lengthen(p: bytearray, size: int) -> None:  # cimport
    """Make room for so many bytes at the end, without meaning."""
    p.extend(bytes(size))


def cut_off(p: bytearray, size: int) -> None:  # cimport
    """Keep so many bytes."""
    del p[size:]


def room_for(size: int, values: int) -> int:
    """At least what so many elements take, with texts of ``size`` bytes in all."""
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
    return put_bytes(p, at, value, len(value))


def put_text(p: bytearray, at: int, texts: bytes, pos: int, size: int) -> int:  # cimport
    """put_value() of ``size`` bytes at ``pos`` of ``texts``."""
    return put_bytes(p, at, texts[pos : pos + size], size)


def put_bytes(p: bytearray, at: int, value: bytes, size: int) -> int:
    """put_value(), of a value of ``size`` bytes: in C, these are all that is known of it."""
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


# -- the list -------------------------------------------------------------------------------------


def check_frame(lp: bytes) -> int:
    """Offset of the 0xFF, once the total size and the terminator have been checked."""
    return checked_end(lp, len(lp))


def checked_end(p: bytes, size: int) -> int:
    """check_frame() of a list of ``size`` bytes."""
    if size < HEADER + 1:
        damaged("is cut off in its header", size)
    total = p[3]
    total = total << 8 | p[2]
    total = total << 8 | p[1]
    total = total << 8 | p[0]
    if total != size:
        damaged("does not have the size it states", 0)
    if p[size - 1] != 0xFF:
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
    if value not in INT64:
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
        raise InvalidArgument(f"{where!r} is not a place; give 'before', 'after' or 'replace'")
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
        damaged("element is outside the list", offset)
    return before(p, offset, end) if offset > HEADER else -1


def get(lp: bytes, offset: int) -> bytes:
    """The element at ``offset`` as bytes; an integer as its decimal text."""
    end = check_frame(lp)
    p = lp
    return value_at(p, offset, element_size(p, offset, end))


def validate(lp: bytes) -> int:
    """How many elements an unchecked listpack has.

    Checks the header and the end mark, walks every element and checks encoding,
    bounds and backlen of each, and the count in the header. Integers that are not in their
    smallest encoding are allowed. Raises CorruptionError with the offset. O(bytes).
    """
    end = check_frame(lp)
    count = walk(lp, HEADER, end)
    if stated(lp) not in (count, UNKNOWN):
        damaged(f"states {stated(lp)} elements and has {count}", 4)
    return count
