"""Decoding: which elements of which entries go into which columns of the batch.

    master    3  0  3 "item" "qty" "price" 0
    slots              ·       1      0            columns: price double, qty bigint
    entry     2 +3 +0 "book"   3   "12.5"  6       walked and checked, then price <- "12.5", qty <- 3

In an entry of the master's fields their places determine the columns of its values, and what is in
no column is stepped over; names are compared only in entries of other fields. Of a name
that occurs twice the last value counts, in a column as in a map.

The batch under construction spans nodes: open() takes one up, fill() adds rows until the node or
the batch ends, take() hands the buffers out. An entry is added once all of it has been checked,
so that a CorruptionError leaves whole rows behind.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NoReturn

from ..node.decode import Walk, check_counts, forward, integer, leave, open_alike, open_node, skip  # cimport
from ..node.listpack import backlen_size, element_size, value_at  # cimport
from ..node.parse_values import Literal, is_utf8  # cimport
from ..node.stream_id import MAX64
from .column_buffers import (
    KINDS,
    Buffers,
    Column,  # cimport
    Run,  # cimport
    checked_size,  # cimport
    followed,  # cimport
    head_size,  # cimport
    is_text,  # cimport
    put_bit,  # cimport
    put_int32,  # cimport
    same,  # cimport
)
from .malformed import described, refused

SOURCE_HASH = ""

HEAVY = 64 << 20  # bytes of entries after which a batch is full
DELETED = 1
SAMEFIELDS = 2
MASK = (1 << 64) - 1
USUAL = 1 << 16  # bytes of an entry whose texts are given room at once, numbers as the longest there are
MANY = 32  # fields of an entry with names of its own
DECIMAL, MAP, CORRUPT = 7, 13, 14  # as in column_buffers.py


class Decoder:
    """A batch under construction, and the node that is being read.

    ``columns``   (kind, field, precision, scale) of each; kinds as in columns.KINDS
    ``most``      how many rows a batch may have
    ``failfast``  whether the first malformed value is a MalformedValue, which names ``stream``.
                  Otherwise it is null, and its entry's text goes into the column of kind "corrupt"
    """

    __slots__ = (
        "columns", "corrupt", "every", "failfast", "fields", "full", "hi_ms", "hi_seq", "keep", "kept",
        "kept_names", "like", "literal", "live", "lo_ms", "lo_seq", "malformed", "map", "marks", "missing", "most",
        "names", "names_good", "rows", "slots", "stream", "turn", "walk", "wanted", "wants", "weight",
    )  # fmt: skip

    rows: int  # of the batch so far
    full: bool  # it can have no more of them
    malformed: int  # rows with a value that is not of its column's type, since the beginning
    weight: int  # bytes of the entries of the batch
    every: list[Column]
    columns: list[Column]  # but for the one of kind "corrupt" and constants
    fields: list[Column]  # those that stand for a field
    map: Column | None
    corrupt: Column | None
    turn: int  # the place in ``fields`` where the next name is looked for first
    walk: Walk | None
    like: Walk | None  # the node opened last: the next one's master entry is mostly the same
    live: int  # entries of the node seen so far that are not deleted
    names: list[bytes]  # of the master entry
    slots: list[Column | None]  # the master's fields' columns
    wants: bytearray  # by the master's fields: 1 if it has a column
    missing: int  # columns of fields that the master lacks
    kept: bytearray  # by the master's fields: 1 if the map has it, 0 if another of its name follows
    kept_names: bytes  # those that the map has, and where each ends
    marks: bytes
    names_good: bool  # whether the map can have the master's names as its keys

    def __init__(self, columns: Sequence[tuple[str, bytes, int, int]], most: int, stream: str, failfast: bool,
                 local: Callable[[int], int] | None = None) -> None:
        self.every = [Column(*column) for column in columns]
        kinds = [KINDS[column[0]] for column in columns]
        self.columns = [column for column, kind in zip(self.every, kinds, strict=True) if kind < CORRUPT]
        self.fields = [column for column, kind in zip(self.every, kinds, strict=True) if kind <= DECIMAL]
        self.map = self.every[kinds.index(MAP)] if MAP in kinds else None
        self.corrupt = self.every[kinds.index(CORRUPT)] if CORRUPT in kinds else None
        self.most = most
        self.stream = stream
        self.failfast = failfast
        self.literal = Literal(local)
        self.walk = self.like = None
        self.full = False
        self.lo_ms = self.lo_seq = 0
        self.hi_ms = self.hi_seq = MAX64
        self.rows = self.weight = self.malformed = self.turn = self.live = 0
        self.plan([])

    def start(self) -> None:
        """Fresh buffers for a batch, now that it gets its first row."""
        for column in self.every:
            column.begin(self.most)

    def take(self) -> list[Buffers]:
        """The buffers of the batch, column by column; then the next one begins. Not without rows."""
        taken = [column.take(self.rows) for column in self.every]
        self.rows = self.weight = 0
        self.full = False
        return taken

    def between(self, lo_ms: int, lo_seq: int, hi_ms: int, hi_seq: int) -> None:
        """Only entries from lo to hi are wanted, both included. All of them, unless this says otherwise."""
        self.lo_ms = lo_ms
        self.lo_seq = lo_seq
        self.hi_ms = hi_ms
        self.hi_seq = hi_seq

    def open(self, listpack: bytes, ms: int, seq: int) -> None:
        """Take up the node ``ms-seq``. CorruptionError where its frame or its master entry is damaged."""
        like = self.like
        walk = open_node(listpack, ms, seq) if like is None else open_alike(listpack, ms, seq, like)
        if walk.names is not self.names and walk.names != self.names:
            self.plan(walk.names)
        self.walk = self.like = walk
        self.live = 0

    def plan(self, names: list[bytes]) -> None:
        """Find the columns of a master entry's fields. Nodes of one kind follow each other: kept."""
        self.names = names
        last = {name: place for place, name in enumerate(names)}
        self.slots = [None] * len(names)
        wants = bytearray(len(names))
        self.wants = wants
        self.wanted = wants
        self.missing = 0
        for column in self.fields:
            place = last.get(column.name, -1)
            if place >= 0:
                self.slots[place] = column
                wants[place] = 1
            else:
                self.missing += 1
        kept = bytearray([last[name] == place for place, name in enumerate(names)])
        self.kept = kept
        self.keep = kept
        held = [name for place, name in enumerate(names) if kept[place]]
        self.kept_names = b"".join(held)
        self.marks = array("i", accumulate(map(len, held))).tobytes()
        text = self.map is not None and self.map.scale & 1
        self.names_good = not text or all(is_utf8(name, 0, len(name)) for name in last)

    def fill(self) -> bool:
        """Add rows until the batch is full (False) or the node has no more of them (True).

        Raises CorruptionError, and MalformedValue if ``failfast``.
        """
        walk = self.walk
        if walk is None:
            return True
        while not self.full:
            if self.missing:
                self.forget()
            start = stride(walk, self.wanted, self.slots, self.hi_ms, self.hi_seq)
            if not start:
                if not forward(walk):
                    check_counts(walk, self.live)
                    self.walk = None
                    return True
                if walk.ms > self.hi_ms or (walk.ms == self.hi_ms and walk.seq > self.hi_seq):
                    self.walk = None
                    return True
                if walk.flags & DELETED:
                    skip(walk)
                    continue
                start = walk.pos
                self.find(walk)
                leave(walk)
            self.live += 1
            if walk.ms > self.lo_ms or (walk.ms == self.lo_ms and walk.seq >= self.lo_seq):
                self.add(walk, start)
        return False

    def forget(self) -> None:
        """No column has an element."""
        for column in self.fields:
            column.at = -1

    def add(self, walk: Walk, start: int) -> None:
        """Add the entry just passed, whose fields begin at ``start``, as a row."""
        if not self.rows:
            self.start()
        p = walk.p
        row = self.rows
        good = True
        for column in self.columns:
            kind = column.kind
            if kind > DECIMAL:
                fits = self.add_map(walk, start, column, row) if kind == MAP else column.add_id(walk.ms, walk.seq, row)
            elif column.at >= 0:
                fits = column.add(p, row, self.literal)
            else:
                fits = True
                column.pass_over(row)
            if not fits:
                good = False
                if self.failfast:
                    self.refuse(walk, column)
        if not good:
            self.malformed += 1
        if self.corrupt is not None:
            if good:
                self.corrupt.pass_over(row)
            else:
                self.corrupt.add_string(described(walk.ms, walk.seq, *self.texts(walk, start)), row)
        self.rows = row + 1
        self.weight += walk.pos - start
        if self.map is not None:
            self.weight += len(self.kept_names)
        self.full = self.rows >= self.most or self.weight >= HEAVY

    def find(self, walk: Walk) -> None:
        """Step over the fields of an entry, checking each, and note where those with columns lie."""
        p = walk.p
        end = walk.end
        pos = walk.pos
        own = walk.own
        count = 2 * own if own else walk.width
        if own:
            self.forget()
        found: Column | None = None
        i = 0
        while i < count:
            b = p[pos]
            size = b - 0x7F
            if 0x80 <= b < 0xC0 and pos + size < end and p[pos + size] == size:  # most values
                after = pos + size + 1
            elif b < 0x80 and p[pos + 1] == 1:  # pos < end: there is a byte behind
                size = 1
                after = pos + 2
            else:
                size = element_size(p, pos, end)
                after = pos + size + backlen_size(size)
            if not own:
                found = self.slots[i]
            elif not i & 1:
                found = self.named(p, pos, size)
            if found is not None and (not own or i & 1):
                found.at = pos
                found.span = size
            pos = after
            i += 1
        walk.pos = pos

    def named(self, p: bytes, pos: int, size: int) -> Column | None:
        """The column of the field whose name is the element at ``pos``.

        Entries of one kind come in turns: what is looked for first is the column behind the last.
        """
        head = head_size(p[pos])
        if not head:
            text = value_at(p, pos, size)
            for column in self.fields:
                if column.name == text:
                    return column
            return None
        most = len(self.fields)
        place = self.turn
        left = most
        while left > 0:
            if place >= most:
                place = 0
            column = self.fields[place]
            place += 1
            if len(column.name) == size - head and same(p, pos + head, column.name, size - head):
                self.turn = place
                return column
            left -= 1
        return None

    def add_map(self, walk: Walk, pos: int, column: Column, row: int) -> bool:
        """Add all fields, whose elements begin at ``pos`` and have been checked; False if one is no text.

        Such a map is null: it cannot mark a single pair.
        """
        keys = column.keys
        values = column.run
        assert keys is not None
        assert values is not None
        keys_used = keys.used
        values_used = values.used
        if walk.own > MANY:
            good = self.add_many(walk, pos, column.scale, keys, values)
        elif walk.own:
            good = self.add_own(walk, pos, column.scale, keys, values)
        else:
            good = self.add_common(walk, pos, column.scale, keys, values)
        if not good:
            keys.count = values.count = column.pairs
            keys.used = keys_used
            values.used = values_used
            column.pass_over(row)
            return False
        column.pairs = keys.count
        put_int32(column.edge, row + 1, column.pairs)
        put_bit(column.bits, row)
        return True

    def add_common(self, walk: Walk, pos: int, texts: int, keys: Run, values: Run) -> bool:
        """The fields of an entry that has the master's."""
        if not self.names_good:
            return False
        p = walk.p
        keys.add_all(self.kept_names, self.marks, len(self.marks) // 4)
        i = 0
        width = walk.width
        if not texts & 2 and walk.pos - pos + 20 * width < USUAL:
            values.add_fields(p, pos, walk.pos, walk.end, self.keep, width)
            return True
        while i < width:
            size = checked_size(p, pos, walk.end)
            if self.keep[i]:
                if texts & 2 and not is_text(p, pos, size):
                    return False
                values.add_element(p, pos, size)
            pos += size + backlen_size(size)
            i += 1
        return True

    def add_own(self, walk: Walk, pos: int, texts: int, keys: Run, values: Run) -> bool:
        """The fields of an entry with names of its own."""
        p = walk.p
        left = walk.own
        while left > 0:
            left -= 1
            size = checked_size(p, pos, walk.end)
            name = pos
            name_size = size
            pos += size + backlen_size(size)
            size = checked_size(p, pos, walk.end)
            after = pos + size + backlen_size(size)
            if not followed(p, walk.end, name, name_size, after, left):
                if texts & 1 and not is_text(p, name, name_size):
                    return False
                if texts & 2 and not is_text(p, pos, size):
                    return False
                keys.add_element(p, name, name_size)
                values.add_element(p, pos, size)
            pos = after
        return True

    def add_many(self, walk: Walk, pos: int, texts: int, keys: Run, values: Run) -> bool:
        """add_own() of so many fields that comparing each name with each would take too long."""
        names, held = self.texts(walk, pos)
        for name, value in dict(zip(names, held, strict=True)).items():
            if (texts & 1 and not is_utf8(name, 0, len(name))) or (texts & 2 and not is_utf8(value, 0, len(value))):
                return False
            keys.add(name, 0, len(name))
            keys.close()
            values.add(value, 0, len(value))
            values.close()
        return True

    def add_damaged(self, ms: int, seq: int, what: bytes) -> None:
        """Add a row in the place of the node ``ms-seq``: its ID, ``what`` in the corrupt column, else null."""
        if not self.rows:
            self.start()
        row = self.rows
        for column in self.columns:
            if column.kind <= DECIMAL or column.kind == MAP:
                column.at = -1
                column.pass_over(row)
            else:
                column.add_id(ms, seq, row)
        if self.corrupt is not None:
            self.corrupt.add_string(what, row)
        self.rows = row + 1
        self.full = self.rows >= self.most

    def texts(self, walk: Walk, pos: int) -> tuple[list[bytes], list[bytes]]:
        """Names and values of an entry whose fields begin at ``pos``."""
        p = walk.p
        count = 2 * walk.own if walk.own else walk.width
        found = []
        while count > 0:
            size = checked_size(p, pos, walk.end)
            found.append(value_at(p, pos, size))
            pos += size + backlen_size(size)
            count -= 1
        return (found[::2], found[1::2]) if walk.own else (walk.names, found)

    def refuse(self, walk: Walk, column: Column) -> NoReturn:
        """Raise MalformedValue for the entry at hand."""
        kind = next(name for name, number in KINDS.items() if number == column.kind)
        if column.kind <= DECIMAL:
            text = value_at(walk.p, column.at, column.span)
            if kind == "decimal":
                kind = f"decimal({column.precision},{column.scale})"
            what = f"field {column.name!r} is {text!r:.80}, which is no {kind}"
        elif column.kind == MAP:
            what = "its fields are no map of text: a name, or a value, is no UTF-8"
        else:
            what = "its ID is beyond what a bigint, or a time, holds"
        raise refused(self.stream, walk.ms, walk.seq, what)


def stride(walk: Walk, wanted: bytearray, slots: list[Column | None], hi_ms: int, hi_seq: int) -> int:
    """Enter the next entry of the usual shape and step over its fields, in a single go.

        walk.pos                        walk.pos
           |                               |
           | 2 | +0 | +3 | "book" | 3 | 6 | 2 …       same fields as the master, not deleted
                         |
                         start: the result, 0 for any other entry

    Nearly all entries are such. Any other, and whatever is damaged, is left to decode.py, which reports
    the damage; nothing has changed then. So stride() checks all that a walk does, without a call per
    element.

    ``wanted`` has a 1 for each of the master's fields whose value is to be noted in its column, the
    one in ``slots``. An entry behind hi is left alone. CorruptionError as from forward() and leave().
    """
    p = walk.p
    end = walk.end
    at = pos = walk.pos
    if pos + 8 > end or p[pos] != SAMEFIELDS or p[pos + 1] != 1:
        return 0
    pos += 2
    if p[pos] < 0x80 and p[pos + 1] == 1:
        ms = (walk.master_ms + p[pos]) & MASK
        pos += 2
    else:
        walk.pos = pos
        ms = (walk.master_ms + integer(walk)) & MASK
        pos = walk.pos
    if p[pos] < 0x80 and p[pos + 1] == 1:  # pos <= end always, and the end mark is no such byte
        seq = (walk.master_seq + p[pos]) & MASK
        pos += 2
    else:
        walk.pos = pos
        seq = (walk.master_seq + integer(walk)) & MASK
        pos = walk.pos
    walk.pos = at
    if ms < walk.ms or (ms == walk.ms and (seq < walk.seq or (seq == walk.seq and walk.seen))):
        return 0
    if ms > hi_ms or (ms == hi_ms and seq > hi_seq):
        return 0
    start = pos
    width = walk.width
    i = 0
    while i < width:
        b = p[pos]
        if b < 0xC0:
            size = 1 if b < 0x80 else b - 0x7F
        elif b < 0xE0:
            size = 2
        else:
            size = b - 0xEE if 0xF1 <= b <= 0xF3 else end  # a long text, an int64, or none at all
        if pos + size < end and p[pos + size] == size:
            after = pos + size + 1
        else:
            size = element_size(p, pos, end)
            after = pos + size + backlen_size(size)
        if wanted[i]:
            column = slots[i]
            assert column is not None
            column.at = pos
            column.span = size
        pos = after
        i += 1
    walk.start = at
    walk.flags = SAMEFIELDS
    walk.own = 0
    walk.ms = ms
    walk.seq = seq
    walk.seen += 1
    if p[pos] == width + 3 and p[pos] < 0x80 and p[pos + 1] == 1:
        walk.pos = pos + 2
    else:
        walk.pos = pos
        leave(walk)
    return start
