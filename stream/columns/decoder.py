"""The decoding of columns: which elements of which entries go into which columns of the batch.

    master    3  0  3 "item" "qty" "price" 0
    slots              ·       1      0            columns: price double, qty bigint
    entry     2 +3 +0 "book"   3   "12.5"  6       walked and checked, then price <- "12.5", qty <- 3

In an entry of the master's fields their places determine the columns of its values, and runs of fields in
no column are stepped over; names are compared only in entries of other fields. Of a name
that occurs twice the last value counts, in a column as in a map.

A run of up to 256 entries is walked first, which notes where the values are, and then added column by
column: a loop over values of one type is much faster than one over the columns of an entry.

The batch under construction spans nodes: add() takes one up, fill() adds rows until the node or
the batch ends, take() hands the buffers out. An entry is in the run once all of it has been checked,
so that a CorruptionError leaves whole rows behind.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NoReturn

from ...storage.errors import MalformedValue
from ..node.decode import Walk, check_counts, forward, integer, leave, open_alike, open_node, skip  # cimport
from ..node.entry import OWN_FIELD
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
    get_int32,  # cimport
    get_int64,  # cimport
    head_size,  # cimport
    is_near,  # cimport
    is_text,  # cimport
    put_int32,  # cimport
    put_int64,  # cimport
    same,  # cimport
    same_folded,  # cimport
)

SOURCE_HASH = ""

HEAVY = 64 << 20  # bytes of entries after which a batch is full
DELETED = 1
SAMEFIELDS = 2
MASK = (1 << 64) - 1
MANY = 32  # fields of an entry with names of its own
RUN = 256  # entries; as many values of each column are noted
DECIMAL, MAP, CORRUPT = 12, 18, 19  # as in column_buffers.py


class Decoder:
    """A batch under construction, and the node that is being read.

    ``columns``   (kind, field, precision, scale) of each, and as far as they are asked for: json_values.Nested of a
                  kind "nested", whether the field's name may have other capitals; kinds as in column_buffers.KINDS
    ``limit``     how many rows a batch may have
    ``failfast``  whether the first malformed value is a MalformedValue.
                  Otherwise it is null, and its entry's text goes into the column of kind "corrupt"
    """

    __slots__ = (
        "bad", "bad_rows", "columns", "corrupt", "count", "every", "failfast", "fields", "full", "hi_ms", "hi_seq",
        "id", "ids", "keep", "kept", "kept_names", "like", "limit", "literal", "live", "lo_ms", "lo_seq", "malformed",
        "map", "marks", "missing", "names", "names_good", "place", "places", "rows", "slot", "slots", "spot", "spots",
        "step", "steps", "stream", "turn", "walk", "weight",
    )  # fmt: skip

    rows: int  # of the batch so far
    full: bool  # it can have no more of them
    malformed: int  # rows with a value that is not of its column's type, since the beginning
    weight: int  # bytes of the entries of the batch
    count: int  # of the run; of each of its entries:
    id: bytearray  # ms, seq
    place: bytearray  # where its fields begin, and how many names of its own it has
    bad: bytearray  # 1 if a value is malformed
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
    slot: bytearray  # by the master's fields: the place in ``fields`` of its column, -1 for none
    step: bytearray  # the same in pairs: how many fields to step over, and the slot of the one that follows, at last -1
    spot: bytearray  # RUN places of values for each of ``fields``; -1 where the entry has no such field
    missing: int  # columns of fields that the master lacks
    kept: bytearray  # by the master's fields: 1 if the map has it, 0 if another of its name follows, or it is $entry
    kept_names: bytes  # those that the map has, and where each ends
    marks: bytes
    names_good: bool  # whether the map can have the master's names as its keys

    def __init__(self, columns: Sequence[tuple[Any, ...]], limit: int, failfast: bool,
                 local: Callable[[int], int] | None = None) -> None:
        self.every = [Column(*column) for column in columns]
        kinds = [KINDS[column[0]] for column in columns]
        self.columns = [column for column, kind in zip(self.every, kinds, strict=True) if kind < CORRUPT]
        self.fields = [column for column, kind in zip(self.every, kinds, strict=True) if kind <= DECIMAL]
        self.map = self.every[kinds.index(MAP)] if MAP in kinds else None
        self.corrupt = self.every[kinds.index(CORRUPT)] if CORRUPT in kinds else None
        self.limit: int = limit
        self.stream: str = ""
        self.failfast: bool = failfast
        self.literal: Literal = Literal(local)
        self.walk = self.like = None
        self.full = False
        self.lo_ms = self.lo_seq = 0
        self.hi_ms = self.hi_seq = MAX64
        self.rows = self.weight = self.malformed = self.turn = self.live = self.count = 0
        self.ids, self.places, self.bad_rows = bytearray(16 * RUN), bytearray(16 * RUN), bytearray(RUN)
        self.spots: bytearray = bytearray(8 * RUN * len(self.fields))
        self.spot = self.spots
        self.id = self.ids
        self.place = self.places
        self.bad = self.bad_rows
        self.plan([])

    def start(self) -> None:
        """Fresh buffers for a batch, now that it gets its first row."""
        for column in self.every:
            column.begin(self.limit)

    def take(self) -> list[Buffers]:
        """The buffers of the batch, column by column; then the next one begins. Not without rows."""
        taken = [column.take(self.rows) for column in self.every]
        self.rows = self.weight = 0
        self.full = False
        return taken

    def between(self, stream: str, lo_ms: int, lo_seq: int, hi_ms: int, hi_seq: int) -> None:
        """The next nodes are of this stream; only its entries from lo to hi are wanted, both included."""
        self.stream = stream
        self.lo_ms = lo_ms
        self.lo_seq = lo_seq
        self.hi_ms = hi_ms
        self.hi_seq = hi_seq

    def add(self, listpack: bytes, ms: int, seq: int, begin: int = 0) -> bool:
        """Take up the node ``ms-seq``, and fill() with its rows. CorruptionError also where its frame is damaged.

        ``begin`` is where the listpack begins in the bytes.
        """
        like = self.like
        walk = open_node(listpack, ms, seq, begin) if like is None else open_alike(listpack, ms, seq, like, begin)
        if walk.names is not self.names and walk.names != self.names:
            self.plan(walk.names)
        self.walk = self.like = walk
        self.live = 0
        return self.fill()

    def plan(self, names: list[bytes]) -> None:
        """Find the columns of a master entry's fields. Nodes of one kind follow each other: kept."""
        self.names = names
        last = {name: place for place, name in enumerate(names)}
        at = {(column.name, column.folded): place for place, column in enumerate(self.fields)}
        found = [at.get((name, False), at.get((name.lower(), True), -1)) for name in names]
        ends = {slot: place for place, slot in enumerate(found)}
        slots = bytearray(array("i", [slot if ends[slot] == place else -1 for place, slot in enumerate(found)]))
        self.slots: bytearray = slots
        self.slot = slots
        steps, passed = array("i"), 0
        for place, slot in enumerate(array("i", slots)):
            if slot >= 0:
                steps.extend((place - passed, slot * RUN))
                passed = place
        steps.extend((len(names) - passed, -1))
        self.steps: bytearray = bytearray(steps)
        self.step = self.steps
        self.missing = len(at) - len(ends.keys() - {-1})
        kept = bytearray([last[name] == place for place, name in enumerate(names)])
        if names and names[0] == OWN_FIELD:
            kept[0] = 0
        self.kept = kept
        self.keep: bytearray = kept
        present = [name for place, name in enumerate(names) if kept[place]]
        self.kept_names = b"".join(present)
        self.marks = array("i", accumulate(map(len, present))).tobytes()
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
            try:
                more = self.collect(walk)
            finally:
                if self.count:
                    self.add_run(walk)
            if not more:
                self.walk = None
                return True
        return False

    def collect(self, walk: Walk) -> bool:
        """Gather a run: the entries that come next. False if the node has no more that are wanted."""
        limit = min(RUN, self.limit - self.rows)
        while True:
            at = self.stride(walk, limit)
            if at >= limit or self.weight >= HEAVY:
                return True
            if self.missing:
                self.forget(at)
            if not forward(walk):
                check_counts(walk, self.live)
                return False
            if walk.ms > self.hi_ms or (walk.ms == self.hi_ms and walk.seq > self.hi_seq):
                return False
            if walk.flags & DELETED:
                skip(walk)
                continue
            start = walk.pos
            self.find(walk, at)
            leave(walk)
            self.live += 1
            if walk.ms > self.lo_ms or (walk.ms == self.lo_ms and walk.seq >= self.lo_seq):
                self.note(at, walk.ms, walk.seq, start, walk.own)
                self.weight += walk.pos - start + (0 if self.map is None else len(self.kept_names))
                self.count = at + 1

    def stride(self, walk: Walk, limit: int) -> int:
        """Add the entries of the usual shape that come next to the run, up to ``limit``; how many the run has then.

            walk.pos                        walk.pos
               |                               |
               | 2 | +0 | +3 | "book" | 3 | 6 | 2 …       same fields as the master, not deleted
                             |
                             start

        Nearly all entries are such. Any other, and whatever is damaged, is left to decode.py, which reports
        the damage. So stride() checks all that a walk does, in one loop without a call per element.

        An entry behind hi is left alone. CorruptionError as from forward() and leave().
        """
        p = walk.p
        end = walk.end
        begin = walk.pos
        master_ms = walk.master_ms
        master_seq = walk.master_seq
        ms = walk.ms
        seq = walk.seq
        seen = walk.seen
        walk.own = 0
        last = walk.width + 3
        step = self.step
        spot = self.spot
        at = self.count
        weight = self.weight
        extra = 0 if self.map is None else len(self.kept_names)
        try:
            while at < limit and weight < HEAVY and begin + 8 <= end:
                pos = begin
                if is_near(p, pos):
                    next_ms = (master_ms + p[pos + 2]) & MASK
                    next_seq = (master_seq + p[pos + 4]) & MASK
                    pos += 6
                elif p[pos] != SAMEFIELDS or p[pos + 1] != 1:
                    break
                else:
                    walk.pos = pos + 2
                    next_ms = (master_ms + integer(walk)) & MASK
                    next_seq = (master_seq + integer(walk)) & MASK
                    pos = walk.pos
                if next_ms <= ms and (next_ms < ms or next_seq < seq or (next_seq == seq and seen)):
                    break
                if next_ms >= self.hi_ms and (next_ms > self.hi_ms or next_seq > self.hi_seq):
                    break
                if self.missing:
                    self.forget(at)
                start = pos
                i = 0
                while True:
                    remaining = get_int32(step, i)
                    while remaining > 0:
                        b = p[pos]
                        if 0x80 <= b < 0xC0:
                            size = b - 0x7F
                        elif b < 0x80:
                            size = 1
                        elif b < 0xE0:
                            size = 2
                        else:
                            size = b - 0xEE if 0xF1 <= b <= 0xF3 else end  # a long text, an int64, or none at all
                        after = pos + size
                        if after < end and p[after] == size:
                            pos = after + 1
                        else:
                            size = element_size(p, pos, end)
                            pos += size + backlen_size(size)
                        remaining -= 1
                    place = get_int32(step, i + 1)
                    if place < 0:
                        break
                    put_int64(spot, place + at, pos)
                    i += 2
                if p[pos] == last and last < 0x80 and p[pos + 1] == 1:
                    pos += 2
                else:
                    walk.pos = pos
                    leave(walk)
                    pos = walk.pos
                begin = pos
                ms = next_ms
                seq = next_seq
                seen += 1
                if ms > self.lo_ms or (ms == self.lo_ms and seq >= self.lo_seq):
                    self.note(at, ms, seq, start, 0)
                    weight += pos - start + extra
                    at += 1
        finally:
            self.live += seen - walk.seen
            self.count = at
            self.weight = weight
            walk.seen = seen
            walk.pos = begin
            walk.ms = ms
            walk.seq = seq
        return at

    def note(self, at: int, ms: int, seq: int, start: int, own: int) -> None:
        """Note the ID of the run's entry ``at``, and where its fields are."""
        put_int64(self.id, 2 * at, ms)
        put_int64(self.id, 2 * at + 1, seq)
        put_int64(self.place, 2 * at, start)
        put_int64(self.place, 2 * at + 1, own)

    def forget(self, at: int) -> None:
        """No column has a value of the run's entry ``at``."""
        place = len(self.fields)
        while place > 0:
            place -= 1
            put_int64(self.spot, place * RUN + at, -1)

    def add_run(self, walk: Walk) -> None:
        """Add the run's entries as rows."""
        count = self.count
        self.count = 0
        if not self.rows:
            self.start()
        row = self.rows
        wrong = 0
        place = 0  # of the column's first value
        for column in self.columns:
            if column.kind == MAP:
                wrong += self.add_maps(walk, column, row, count)
            elif column.kind > DECIMAL:
                wrong += column.add_ids(self.id, row, count, self.bad)
            else:
                wrong += column.add_values(walk.p, walk.end, self.spot, place, row, count, self.literal, self.bad)
                place += RUN
        at = 0
        while at < count and (wrong or self.corrupt is not None):
            if self.bad[at]:
                self.bad[at] = 0
                self.malformed += 1
                if self.failfast:
                    self.refuse(walk, at, row + at)
                if self.corrupt is not None:
                    names, values = self.texts(walk, get_int64(self.place, 2 * at), get_int64(self.place, 2 * at + 1))
                    self.corrupt.add_string(described(*self.id_at(at), names, values), row + at)
            elif self.corrupt is not None:
                self.corrupt.pass_over(row + at)
            at += 1
        self.rows = row + count
        self.full = self.rows >= self.limit or self.weight >= HEAVY

    def find(self, walk: Walk, at: int) -> None:
        """Check all fields of an entry, and note the offset of each one that has a column."""
        p = walk.p
        end = walk.end
        pos = walk.pos
        own = walk.own
        count = 2 * own if own else walk.width
        if own:
            self.forget(at)
        found = -1
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
                found = get_int32(self.slot, i)
            elif not i & 1:
                found = self.named(p, pos, size)
            if found >= 0 and (not own or i & 1):
                put_int64(self.spot, found * RUN + at, pos)
            pos = after
            i += 1
        walk.pos = pos

    def named(self, p: bytes, pos: int, size: int) -> int:
        """The place in ``fields`` of the column whose field's name is the element at ``pos``; -1 for none.

        Entries of one kind come in turns: what is looked for first is the column behind the last.
        """
        head = head_size(p[pos])
        if not head:
            text = value_at(p, pos, size)
            for place, column in enumerate(self.fields):
                if column.name == text:
                    return place
            return -1
        limit = len(self.fields)
        place = self.turn
        remaining = limit
        while remaining > 0:
            if place >= limit:
                place = 0
            column = self.fields[place]
            place += 1
            if len(column.name) == size - head and (
                same(p, pos + head, column.name, size - head) or
                (column.folded and same_folded(p, pos + head, column.name, size - head))
            ):
                self.turn = place
                return place - 1
            remaining -= 1
        return -1

    def add_maps(self, walk: Walk, column: Column, row: int, count: int) -> int:
        """Add all fields of the run's entries; how many are malformed."""
        wrong = 0
        at = 0
        while at < count:
            if not self.add_map(walk, at, column, row + at):
                self.bad[at] = 1
                wrong += 1
            at += 1
        return wrong

    def add_map(self, walk: Walk, at: int, column: Column, row: int) -> bool:
        """Add all fields of an entry, whose elements have been checked; False if one is not text.

        Such a map is null: it cannot mark a single pair.
        """
        pos = get_int64(self.place, 2 * at)
        own = get_int64(self.place, 2 * at + 1)
        keys = column.keys
        values = column.run
        assert keys is not None
        assert values is not None
        keys_used = keys.used
        values_used = values.used
        if own > MANY:
            good = self.add_many(walk, pos, own, column.scale, keys, values)
        elif own:
            good = self.add_own(walk, pos, own, column.scale, keys, values)
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
        return True

    def add_common(self, walk: Walk, pos: int, texts: int, keys: Run, values: Run) -> bool:
        """The fields of an entry that has the master's."""
        if not self.names_good:
            return False
        p = walk.p
        keys.add_all(self.kept_names, self.marks, len(self.marks) // 4)
        i = 0
        width = walk.width
        while i < width:
            size = checked_size(p, pos, walk.end)
            if self.keep[i]:
                if texts & 2 and not is_text(p, pos, size):
                    return False
                values.add_element(p, pos, size, walk.end)
            pos += size + backlen_size(size)
            i += 1
        return True

    def add_own(self, walk: Walk, pos: int, remaining: int, texts: int, keys: Run, values: Run) -> bool:
        """The fields of an entry with ``remaining`` names of its own."""
        p = walk.p
        first = pos
        while remaining > 0:
            remaining -= 1
            size = checked_size(p, pos, walk.end)
            name = pos
            name_size = size
            pos += size + backlen_size(size)
            size = checked_size(p, pos, walk.end)
            after = pos + size + backlen_size(size)
            if name == first and name_size == 7 and same(p, name + 1, b"$entry", 6):
                pos = after
                continue
            if not followed(p, walk.end, name, name_size, after, remaining):
                if texts & 1 and not is_text(p, name, name_size):
                    return False
                if texts & 2 and not is_text(p, pos, size):
                    return False
                keys.add_element(p, name, name_size, walk.end)
                values.add_element(p, pos, size, walk.end)
            pos = after
        return True

    def add_many(self, walk: Walk, pos: int, own: int, texts: int, keys: Run, values: Run) -> bool:
        """add_own() of so many fields that comparing each name with each would take too long."""
        names, own_values = self.texts(walk, pos, own)
        start = int(names[0] == OWN_FIELD)
        for name, value in dict(zip(names[start:], own_values[start:], strict=True)).items():
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
                column.pass_over(row)
            else:
                column.add_id(ms, seq, row)
        if self.corrupt is not None:
            self.corrupt.add_string(what, row)
        self.rows = row + 1
        self.full = self.rows >= self.limit

    def texts(self, walk: Walk, pos: int, own: int) -> tuple[list[bytes], list[bytes]]:
        """Names and values of an entry whose fields begin at ``pos``."""
        p = walk.p
        count = 2 * own if own else walk.width
        found = []
        while count > 0:
            size = checked_size(p, pos, walk.end)
            found.append(value_at(p, pos, size))
            pos += size + backlen_size(size)
            count -= 1
        return (found[::2], found[1::2]) if own else (walk.names, found)

    def id_at(self, at: int) -> tuple[int, int]:
        """The ID of the run's entry ``at``."""
        return get_int64(self.id, 2 * at) & MASK, get_int64(self.id, 2 * at + 1) & MASK

    def refuse(self, walk: Walk, at: int, row: int) -> NoReturn:
        """Raise MalformedValue for the run's entry ``at``."""
        place = at
        for column in self.columns:
            spot = -1
            if column.kind <= DECIMAL:
                spot = get_int64(self.spot, place)
                place += RUN
            if not column.bits[row >> 3] >> (row & 7) & 1 and (spot >= 0 or column.kind > DECIMAL):
                break
        kind = next(name for name, number in KINDS.items() if number == column.kind)
        advice = "Read the column as string or binary"
        if column.kind <= DECIMAL:
            text = value_at(walk.p, spot, checked_size(walk.p, spot, walk.end))
            if kind == "nested":
                kind = str(column.nested)
            elif kind == "decimal":
                kind = f"decimal({column.precision},{column.scale})"
            what = f"field {column.name!r} is {text!r:.80}, which is not of type {kind}"
        elif column.kind == MAP:
            what = "its fields are not a map of text: a name, or a value, is not UTF-8"
            advice = "Read the column as map<binary,binary>"
        else:
            what = "its ID is beyond what a bigint, or a time, holds"
            advice = "Read the ID as text, by id_column and a schema without its parts"
        ms, seq = self.id_at(at)
        raise MalformedValue(f"stream {self.stream}: entry {ms}-{seq}: {what}. {advice}, or with mode=PERMISSIVE, "
                             "which makes it null")


def described(ms: int, seq: int, names: Sequence[bytes], values: Sequence[bytes]) -> bytes:
    """An entry as JSON: its fields as an object, or as pairs where a name occurs twice."""
    texts = ([text.decode("utf-8", "backslashreplace") for text in part] for part in (names, values))
    pairs = list(zip(*texts, strict=True))
    fields = dict(pairs)
    entry = {"id": f"{ms}-{seq}", "fields": fields if len(fields) == len(pairs) else pairs}
    return json.dumps(entry, ensure_ascii=False).encode()
