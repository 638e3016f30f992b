"""Even cuts through a range of IDs, found in a few pages however long the stream is.

    live entries   0 ......... k ......... 2k ......... 3k ......... length
                               │            │            │
    noted leaves   |....|....|.┼..|....|....┼....|....|..┼.|....|     every 64th (ordinals.py)
                              / \\
                    id1 ─────?───── id2     the cut lies between two noted leaves: guess its ID
                                            by proportion, seek, look at the ordinal found

Stream.split() walks from the noted leaf to the very entry, which reads up to 64 nodes a cut.
Here a seek or two come close, and close is good enough: a cut may be off by ``slack`` entries,
and where the leaf found holds the entry looked for, it is exact. Counts are exact in any case,
since a leaf knows its ordinal. Where guessing does not get on (IDs in bursts) it is walked.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...storage import block, layout, records
from ...storage.ordinals import DeadCounts, OrdinalIndex
from ...storage.rax import Rax
from ...stream import node
from ...stream.counting import Counter
from ...stream.header import StreamHeader
from ...stream.id import StreamID, make_id

TOLERANCE = 0.004  # of a part, for each of its two ends: together within 1 %
_GUESSES = 6


class Range(NamedTuple):
    """The live entries from ``start`` to ``end``, both included."""

    start: StreamID
    end: StreamID
    entries: int


class _Leaf(NamedTuple):
    key: bytes
    value: bytes
    ordinal: int
    span: int


def bounds(txn: Any, number: int, header: StreamHeader, start: StreamID, end: StreamID) -> tuple[int, int]:
    """How many live entries precede ``start``, and how many lie up to ``end``."""
    end = StreamID(*min(end, header.last))
    if start > end or not header.length:
        return 0, 0
    counter = Counter(txn, number, header)
    upto = header.length if end >= header.last else counter.rank(end.next())
    return min(counter.rank(start), upto), upto


def cut(txn: Any, number: int, header: StreamHeader, start: StreamID, end: StreamID, parts: int,
        slack: int = 0) -> list[Range]:
    """Cut the live entries from ``start`` to ``end`` into up to ``parts`` ranges of even count.

    The ranges touch, from the first entry on, so together they hold every entry once. Each inner border is off by at
    most ``slack`` entries; 0 is exact. None for an empty range. CorruptionError.
    """
    first, upto = bounds(txn, number, header, start, end)
    total = upto - first
    if not total:
        return []
    start, end = StreamID(*max(start, header.first)), StreamID(*min(end, header.last))
    parts = min(parts, total)
    cutter = _Cutter(txn, number, header)
    ranges = []
    before = first
    for i in range(1, parts):
        border, at = cutter.near(first + total * i // parts, slack)
        if border > start and at > before:
            ranges.append(Range(start, border.prev(), at - before))
            start, before = border, at
    if upto > before:
        ranges.append(Range(start, end, upto - before))
    return ranges


class _Cutter:
    def __init__(self, txn: Any, number: int, header: StreamHeader) -> None:
        self._prefix = layout.family(number, layout.NODE)
        self._nodes = Rax(txn, self._prefix)
        self._notes = Rax(txn, layout.family(number, layout.ORDINAL))
        self._note_prefix = layout.family(number, layout.ORDINAL)
        self._index = OrdinalIndex(txn, number)
        self._dead = DeadCounts(txn, number)
        self._counter = Counter(txn, number, header)
        self._header = header
        first = self._nodes.first()
        assert first is not None  # the stream has live entries, and Counter has found its head
        head = block.header(self._prefix + first[0], first[1])
        self._first_live = head.live
        self._second = head.ordinal + head.span
        self._dead_before_second = self._dead.dead_before(self._second)

    def near(self, k: int, slack: int) -> tuple[StreamID, int]:
        """A border with at most ``slack`` entries between it and live entry ``k``; entries before it."""
        if k < self._first_live:
            return self._counter.select(k), k
        live = k - self._first_live + self._second - self._dead_before_second
        ordinal = self._dead.select_live(live)
        leaf = self._guess(ordinal, slack)
        if leaf is None:
            return self._counter.select(k), k
        key = self._prefix + leaf.key
        head = block.header(key, leaf.value)
        ms, seq = layout.node_id(key)
        before = leaf.ordinal - self._dead.dead_before(leaf.ordinal)
        if leaf.ordinal <= ordinal < leaf.ordinal + leaf.span:
            return make_id(*node.nth_live(block.listpack_of(key, leaf.value, head), ms, seq, live - before)), k
        return make_id(ms, seq), before + self._dead_before_second - self._second + self._first_live

    def _guess(self, ordinal: int, slack: int) -> _Leaf | None:
        """A leaf that holds the ordinal, or begins within ``slack`` of it; None: better walk."""
        noted = self._index.floor(ordinal)
        if noted is None:
            return None
        low_at, low = noted[0], make_id(noted[1], noted[2])
        above = self._notes.ceiling((ordinal + 1).to_bytes(8, "big"))
        if above is None:
            high_at, high = self._header.next_ordinal, make_id(*self._header.last)
        else:
            high_at = int.from_bytes(above[0], "big")
            high = make_id(*records.unseal(self._note_prefix + above[0], above[1]))
        for _ in range(_GUESSES):
            if high <= low or high_at <= low_at:
                return None
            share = (high - low) * (ordinal - low_at) // (high_at - low_at)
            found = self._nodes.floor(bytes(low + share))
            if found is None or len(found[1]) < block.HEADER_SIZE:
                return None
            at, span = block.peek_ordinals(found[1])
            if at <= ordinal < at + span or (abs(at - ordinal) <= slack and at >= self._second):
                return _Leaf(*found, at, span)
            here = StreamID.from_bytes(found[0])
            if at + span <= ordinal and here > low:
                low_at, low = at, here
            elif at > ordinal and here < high:
                high_at, high = at, here
            else:
                return None
        return None
