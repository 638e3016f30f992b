"""Columns: from the listpacks of nodes straight into the buffers of an Arrow batch.

    listpack   … 2 +0 +0 "book" 3 "12.5" 6 …       an entry, walked and checked once; then, by column:

    id_ms      int64   | 1000 | 1003 | …
    item       int32   | 0 | 4 | …              where each string ends
               bytes   | b o o k | …
    qty        int64   | 3 | …                  an integer element, never a text
    price      double  | 12.5 | …               a text, read as a number
               bits    | 1 1 0 …                which rows are not null

Which element goes into which column is decoder.py's matter; elements come here checked. Buffers
are bytearrays, in C pointers into them, and are handed out as they are: nothing here knows of
Arrow's libraries.
"""

from __future__ import annotations

import struct
from typing import Any

from ...storage.errors import MalformedValue
from ..node.listpack import backlen_size, data_size, integer_at, value_at  # cimport
from ..node.parse_values import MOST_MS, Literal, is_utf8  # cimport

SOURCE_HASH = ""

BINARY, STRING, INT64, INT32, INT16, INT8, DOUBLE, FLOAT, BOOLEAN, TIMESTAMP, DATE = range(11)
NESTED, DECIMAL, ID_MS, ID_SEQ, ID_TIME, ID_TEXT, ID_BYTES, MAP, CORRUPT, CONSTANT = range(11, 21)
KINDS = {
    "binary": BINARY, "string": STRING, "bigint": INT64, "int": INT32, "smallint": INT16, "tinyint": INT8,
    "double": DOUBLE, "float": FLOAT, "boolean": BOOLEAN, "timestamp": TIMESTAMP, "date": DATE, "nested": NESTED,
    "decimal": DECIMAL, "id_ms": ID_MS, "id_seq": ID_SEQ, "id_time": ID_TIME,
    "id_text": ID_TEXT, "id_bytes": ID_BYTES, "map": MAP, "corrupt": CORRUPT, "constant": CONSTANT,
}  # fmt: skip
_WIDTHS = {INT64: 8, ID_MS: 8, ID_SEQ: 8, TIMESTAMP: 8, ID_TIME: 8, DOUBLE: 8, INT32: 4, DATE: 4, FLOAT: 4, INT16: 2,
           INT8: 1, DECIMAL: 16}

TOP = (1 << 63) - 1
MASK = (1 << 64) - 1
SHORT = 16  # what copy_short() copies
EXACT = 1 << 53  # whole numbers below it are doubles
LARGEST = (1 << 31) - 1  # where Arrow's 32-bit offsets end

Buffers = tuple[Any, ...]
Buffer = bytes | bytearray

_INT16 = struct.Struct("<h")
_INT32 = struct.Struct("<i")
_INT64 = struct.Struct("<q")
_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")


def copy(to: bytearray, at: int, p: bytes, pos: int, size: int) -> None:  # cimport
    """Copy ``size`` bytes at ``pos`` of ``p`` to ``at`` of ``to``."""
    to[at : at + size] = p[pos : pos + size]


def copy_short(to: bytearray, at: int, p: bytes, pos: int) -> None:  # cimport
    """Copy 16 bytes. A shorter text may be copied with the bytes behind it, where both sides have so many."""
    to[at : at + 16] = p[pos : pos + 16]


def same(p: bytes, pos: int, other: bytes, size: int) -> bool:  # cimport
    """Are ``size`` bytes at ``pos`` of ``p`` the first ones of ``other``?"""
    return p[pos : pos + size] == other[:size]


def same_within(p: bytes, pos: int, other: int, size: int) -> bool:  # cimport
    """Are ``size`` bytes at ``pos`` of ``p`` the same as those at ``other`` of it?"""
    return p[pos : pos + size] == p[other : other + size]


def same_folded(p: bytes, pos: int, folded: bytes, size: int) -> bool:
    """Are ``size`` bytes at ``pos`` of ``p``, with capitals of ASCII as small letters, the first ones of ``folded``?"""
    i = 0
    while i < size:
        b = p[pos + i]
        if (b | 0x20 if 0x41 <= b <= 0x5A else b) != folded[i]:
            return False
        i += 1
    return True


def is_near(p: bytes, pos: int) -> bool:  # cimport
    """Begins an entry at ``pos`` with 2 for its flags, and two numbers of 7 bits for its ID? 8 bytes can be read."""
    head = p[pos : pos + 6]
    return head[:2] == b"\x02\x01" and head[3::2] == b"\x01\x01" and head[2] < 0x80 and head[4] < 0x80


def put_int16(to: bytearray, place: int, value: int) -> None:  # cimport
    """Write an int16 as the ``place``-th of an array of such."""
    _INT16.pack_into(to, 2 * place, value)


def put_int32(to: bytearray, place: int, value: int) -> None:  # cimport
    """Write an int32 as the ``place``-th of an array of such."""
    _INT32.pack_into(to, 4 * place, value)


def get_int32(p: Buffer, place: int) -> int:  # cimport
    """The ``place``-th of an array of int32."""
    value: int = _INT32.unpack_from(p, 4 * place)[0]
    return value


def put_int64(to: bytearray, place: int, value: int) -> None:  # cimport
    """Write an int64, or an unsigned one, as the ``place``-th of an array of such."""
    to[8 * place : 8 * place + 8] = (value & MASK).to_bytes(8, "little")


def put_double(to: bytearray, place: int, value: float) -> None:  # cimport
    """Write a double as the ``place``-th of an array of such."""
    _DOUBLE.pack_into(to, 8 * place, value)


def put_float(to: bytearray, place: int, value: float) -> None:  # cimport
    """Write a double whose value is a float as the ``place``-th of an array of such."""
    _FLOAT.pack_into(to, 4 * place, value)


def get_int64(p: Buffer, place: int) -> int:  # cimport
    """The ``place``-th of an array of int64."""
    return int(_INT64.unpack_from(p, 8 * place)[0])


def head_size(b: int) -> int:
    """How many bytes of an element that begins with ``b`` lie before its text; 0 if it is an integer."""
    if b < 0xC0:
        return 1 if b >= 0x80 else 0
    if b < 0xF0:
        return 2 if b >= 0xE0 else 0
    return 5 if b == 0xF0 else 0


def checked_size(p: bytes, pos: int, end: int) -> int:
    """Size of an element that has been checked before."""
    b = p[pos]
    if b < 0x80:
        return 1
    return b - 0x7F if b < 0xC0 else data_size(p, pos, end)


def is_text(p: bytes, pos: int, size: int) -> bool:
    """Is an element that has been checked before text in UTF-8?"""
    head = head_size(p[pos])
    return not head or is_utf8(p, pos + head, size - head)


def same_text(p: bytes, pos: int, size: int, other: int, other_size: int) -> bool:
    """Do two elements that have been checked before hold the same text?"""
    head = head_size(p[pos])
    other_head = head_size(p[other])
    if head and other_head:
        return size - head == other_size - other_head and same_within(p, pos + head, other + other_head, size - head)
    return value_at(p, pos, size) == value_at(p, other, other_size)


def followed(p: bytes, end: int, name: int, name_size: int, pos: int, pairs: int) -> bool:
    """Is the name of a pair, at ``name``, that of one of the ``pairs`` pairs that begin at ``pos``, too?"""
    while pairs > 0:
        size = checked_size(p, pos, end)
        if same_text(p, name, name_size, pos, size):
            return True
        pos += size + backlen_size(size)
        size = checked_size(p, pos, end)
        pos += size + backlen_size(size)
        pairs -= 1
    return False


class Run:
    """Strings one behind the other, and where each of them ends."""

    __slots__ = ("count", "data", "edge", "ends", "limit", "out", "room", "used")

    data: bytearray
    out: bytearray  # the same, in C a pointer into it
    used: int
    room: int
    ends: bytearray
    edge: bytearray
    count: int
    limit: int

    def __init__(self) -> None:
        self.used = self.count = 0

    def begin(self, rows: int) -> None:
        """Fresh buffers, with room for what the last ones held."""
        self.limit = max(rows, self.count + self.count // 8)
        self.room = max(rows, self.used + self.used // 8)
        data = bytearray(self.room)
        ends = bytearray(4 * (self.limit + 1))
        self.data = data
        self.out = data
        self.ends = ends
        self.edge = ends
        self.used = self.count = 0

    def reserve(self, size: int) -> None:
        """Make room for so many bytes more."""
        need = self.used + size
        if need > self.room:
            if need > LARGEST:
                raise MalformedValue(f"a value of {size} bytes is too large for a column of a batch; leave it out")
            room = max(need, min(2 * self.room, LARGEST))
            data = self.data
            data += bytes(room - self.room)
            self.data = data
            self.out = data
            self.room = room

    def close(self) -> None:
        """The string ends here."""
        if self.count == self.limit:
            self.lengthen(64)
        self.count += 1
        put_int32(self.edge, self.count, self.used)

    def lengthen(self, more: int) -> None:
        """Make room for the ends of so many strings more, at least."""
        more += self.limit
        ends = self.ends
        ends += bytes(4 * more)
        self.ends = ends
        self.edge = ends
        self.limit += more

    def add(self, p: bytes, pos: int, size: int) -> None:
        """Add bytes to the string."""
        self.reserve(size)
        copy(self.out, self.used, p, pos, size)
        self.used += size

    def add_word(self, word: int) -> None:
        """Add the decimal text of an unsigned number."""
        digits = 1
        limit = 10
        while digits < 19 and word >= limit:
            digits += 1
            limit *= 10
        if word >= limit:
            digits += 1
        self.reserve(digits)
        out = self.out
        at = self.used + digits
        self.used = at
        while digits > 1:  # two by two: each step waits for the division of the one before
            pair = word % 100
            word //= 100
            at -= 2
            out[at] = 0x30 + pair // 10
            out[at + 1] = 0x30 + pair % 10
            digits -= 2
        if digits:
            out[at - 1] = 0x30 + word

    def add_element(self, p: bytes, pos: int, size: int, end: int) -> None:
        """Add the text of an element of a checked size, as a string of its own; ``p`` may be read up to ``end``."""
        b = p[pos]
        head = head_size(b)
        if head and size <= SHORT and pos + head + SHORT < end:
            if self.used + SHORT > self.room:
                self.reserve(SHORT)
            copy_short(self.out, self.used, p, pos + head)  # what is too much is written over
            self.used += size - head
        elif head:
            self.add(p, pos + head, size - head)
        else:
            value = b if b < 0x80 else integer_at(p, pos)
            if value >= 0:
                self.add_word(value)
            else:
                self.add(b"-", 0, 1)
                word = -(value + 1)  # in two steps: the least int64 has no positive
                self.add_word(word + 1)
        self.close()

    def add_all(self, texts: bytes, marks: bytes, count: int) -> None:
        """Add so many strings at once: their bytes, and an int32 for each that says where it ends."""
        if self.count + count > self.limit:
            self.lengthen(count)
        edge = self.edge
        i = 0
        while i < count:
            put_int32(edge, self.count + i + 1, self.used + get_int32(marks, i))
            i += 1
        self.count += count
        self.add(texts, 0, len(texts))

    def add_id(self, ms: int, seq: int) -> None:
        """Add the 16 bytes of an ID, big-endian, as an ID's bytes() are."""
        self.reserve(16)
        out = self.out
        at = self.used + 16
        self.used = at
        count = 0
        while count < 16:
            word = seq if count < 8 else ms
            at -= 1
            out[at] = word >> (8 * (count & 7)) & 0xFF
            count += 1

    def take(self) -> Buffers:
        """Where the strings end, and the strings."""
        return memoryview(self.ends)[: 4 * (self.count + 1)], memoryview(self.data)[: self.used]


class Column:
    """One column of the batch under construction."""

    __slots__ = (
        "bits", "data", "edge", "ends", "folded", "keys", "kind", "name", "nested", "nulls", "out", "pairs",
        "precision", "run", "scale", "valid", "values", "wide",
    )  # fmt: skip

    kind: int
    name: bytes  # of the field
    folded: bool  # whether the field's name may have other capitals; ``name`` has none then
    precision: int
    scale: int  # of a map: 1 if its keys are text, 2 if its values are, 3 if both
    wide: int  # bytes a row
    valid: bytearray
    bits: bytearray
    nulls: int
    data: bytearray
    out: bytearray
    run: Run | None  # strings; of a map the values
    keys: Run | None
    ends: bytearray  # of a map: where each row's pairs end
    edge: bytearray
    pairs: int
    nested: Any  # of lists, structs and maps: json_values.Nested
    values: list[Any]

    def __init__(self, kind: str, name: bytes, precision: int, scale: int, nested: Any = None,
                 folded: bool = False) -> None:
        self.kind = KINDS[kind]
        self.name = name.lower() if folded else name
        self.folded = folded
        self.nested = nested
        self.precision = precision
        self.scale = scale
        self.wide = _WIDTHS.get(self.kind, 0)
        self.run = Run() if self.kind in (BINARY, STRING, ID_TEXT, ID_BYTES, MAP, CORRUPT) else None
        self.keys = Run() if self.kind == MAP else None

    def begin(self, rows: int) -> None:
        """Fresh buffers, no row null so far."""
        valid = bytearray(b"\xff" * ((rows + 7) // 8))
        self.valid = valid
        self.bits = valid
        data = bytearray(self.wide * rows if self.wide else (rows + 7) // 8)
        self.data = data
        self.out = data
        self.nulls = self.pairs = 0
        self.values = []
        if self.run is not None:
            self.run.begin(rows)
        if self.keys is not None:
            self.keys.begin(rows)
            ends = bytearray(4 * (rows + 1))
            self.ends = ends
            self.edge = ends

    def take(self, rows: int) -> Buffers:
        """(nulls, validity, …) and then data; ends and data; ends and both of keys and values; or a list of values."""
        if self.kind == NESTED:
            return self.nulls, None, self.values
        head = (self.nulls, memoryview(self.valid)[: (rows + 7) // 8] if self.nulls else None)
        if self.keys is not None and self.run is not None:
            return (*head, memoryview(self.ends)[: 4 * (rows + 1)], *self.keys.take(), *self.run.take())
        if self.run is not None:
            return (*head, *self.run.take())
        return (*head, memoryview(self.data)[: self.wide * rows if self.wide else (rows + 7) // 8])

    def pass_over(self, row: int) -> None:
        """The row has no value here."""
        self.nulls += 1
        self.bits[row >> 3] &= ~(1 << (row & 7))
        if self.keys is not None:
            put_int32(self.edge, row + 1, self.pairs)
        elif self.run is not None:
            self.run.close()
        elif self.kind == NESTED:
            self.values.append(None)

    def add_string(self, text: bytes, row: int) -> None:
        """The row's value is this."""
        assert self.run is not None
        self.run.add(text, 0, len(text))
        self.run.close()

    def add_values(self, p: bytes, end: int, spot: bytearray, first: int, row: int, count: int, literal: Literal,
                   bad: bytearray) -> int:
        """Add ``count`` elements, as rows from ``row`` on; how many are malformed. These are null.

        Where they are is in ``spot`` from the ``first`` on; -1 for none.
        """
        kind = self.kind
        short = self.run is None
        wrong = 0
        at = 0
        while at < count:
            pos = get_int64(spot, first + at)
            b = p[pos] if pos >= 0 else 0
            if pos < 0:
                self.pass_over(row + at)
            elif kind == INT64 and b < 0x80:
                put_int64(self.out, row + at, b)
            elif not (self.add_text(p, pos + 1, b - 0x80, row + at, literal) > 0 if short and 0x80 <= b < 0xC0 else
                      self.add(p, pos, end, row + at, literal)):
                self.pass_over(row + at)
                bad[at] = 1
                wrong += 1
            at += 1
        return wrong

    def add(self, p: bytes, pos: int, end: int, row: int, literal: Literal) -> bool:
        """Add the element at ``pos`` as the row's value; False if it is malformed."""
        b = p[pos]
        head = head_size(b)
        if not head and self.run is None:
            return self.add_integer(b if b < 0x80 else integer_at(p, pos), row, literal) > 0
        size = checked_size(p, pos, end)
        if self.run is None:
            return self.add_text(p, pos + head, size - head, row, literal) > 0
        if self.kind == STRING and head and not is_utf8(p, pos + head, size - head):
            return False
        self.run.add_element(p, pos, size, end)
        return True

    def add_integer(self, value: int, row: int, literal: Literal) -> int:
        """What is no text itself from an integer element: 1, or -1 if it is none of the type."""
        kind = self.kind
        if kind == INT64:
            put_int64(self.out, row, value)
        elif kind == DOUBLE:
            put_double(self.out, row, float(value))
        elif kind == INT32:
            if value < -2147483648 or value > 2147483647:
                return -1
            put_int32(self.out, row, value)
        elif kind == INT16:
            if value < -32768 or value > 32767:
                return -1
            put_int16(self.out, row, value)
        elif kind == INT8:
            if value < -128 or value > 127:
                return -1
            self.out[row] = value & 0xFF
        elif kind == FLOAT and -EXACT < value < EXACT:
            put_float(self.out, row, float(value))
        elif kind in (FLOAT, DATE, NESTED):
            text = b"%d" % value
            return self.add_text(text, 0, len(text), row, literal)
        elif kind == BOOLEAN:
            if value < 0 or value > 1:
                return -1
            if value == 1:
                self.out[row >> 3] |= 1 << (row & 7)
        elif kind == TIMESTAMP:
            if value < -MOST_MS or value > MOST_MS:
                return -1
            put_int64(self.out, row, value * 1000)
        else:
            if literal.scaled(value, self.precision, self.scale) < 0:
                return -1
            self.put_decimal(row, literal)
        return 1

    def add_text(self, p: bytes, pos: int, size: int, row: int, literal: Literal) -> int:
        """What is no text itself from a text: 1, or -1 if it is none of the type."""
        kind = self.kind
        if kind == DOUBLE:
            good = literal.read_double(p, pos, size)
            if good > 0:
                put_double(self.out, row, literal.real)
        elif kind == TIMESTAMP:
            good = literal.read_timestamp(p, pos, size, self.precision > 0)
            if good > 0:
                put_int64(self.out, row, literal.number)
        elif kind == DECIMAL:
            good = literal.read_decimal(p, pos, size, self.precision, self.scale)
            if good > 0:
                self.put_decimal(row, literal)
        elif kind == FLOAT:
            good = literal.read_float(p, pos, size)
            if good > 0:
                put_float(self.out, row, literal.real)
        elif kind == DATE:
            good = literal.read_date(p, pos, size)
            if good > 0:
                put_int32(self.out, row, literal.number)
        elif kind == NESTED:
            value = self.nested.read(p[pos : pos + size])
            good = -1 if value is None else 1
            if good > 0:
                self.values.append(value)
        elif kind == BOOLEAN:
            good = literal.read_boolean(p, pos, size)
            if good > 0 and literal.number:
                self.out[row >> 3] |= 1 << (row & 7)
        else:
            good = literal.read_integer(p, pos, size)
            if good > 0:
                good = self.add_integer(literal.number, row, literal)
        return good

    def put_decimal(self, row: int, literal: Literal) -> None:
        """Write the 128 bits of a decimal."""
        if literal.big is None:
            put_int64(self.out, 2 * row, literal.number)
            put_int64(self.out, 2 * row + 1, -1 if literal.number < 0 else 0)
        else:
            whole: bytes = literal.big.to_bytes(16, "little", signed=True)
            copy(self.out, 16 * row, whole, 0, 16)

    def add_ids(self, ids: bytearray, row: int, count: int, bad: bytearray) -> int:
        """Add what the column holds of so many IDs; how many are beyond the type. These are null."""
        kind = self.kind
        wrong = 0
        at = 0
        while at < count:
            word = get_int64(ids, 2 * at + (kind == ID_SEQ)) & MASK
            if kind in (ID_MS, ID_SEQ) and word <= TOP:
                put_int64(self.out, row + at, word)
            elif not self.add_id(get_int64(ids, 2 * at) & MASK, get_int64(ids, 2 * at + 1) & MASK, row + at):
                bad[at] = 1
                wrong += 1
            at += 1
        return wrong

    def add_id(self, ms: int, seq: int, row: int) -> bool:
        """Add what the column holds of the ID; False if that part of it is beyond the type."""
        kind = self.kind
        run = self.run
        if run is not None:
            if kind == ID_TEXT:
                run.add_word(ms)
                run.add(b"-", 0, 1)
                run.add_word(seq)
            else:
                run.add_id(ms, seq)
            run.close()
        else:
            word = seq if kind == ID_SEQ else ms
            if word > (MOST_MS if kind == ID_TIME else TOP):
                self.pass_over(row)
                return False
            put_int64(self.out, row, word * 1000 if kind == ID_TIME else word)
        return True
