"""Counting without walking: rank, count, select and even splits, from the ordinals.

    node      |  first   |    A     |    B     |    C     |
    ordinals   100 … 199  200 … 299  300 … 379  380 …          (base 100: 0 … 99 were trimmed)
    live          63         100         71         …

    live entries before C = first.live + (380 - 200) - dead marks in [200, 380)

The first node is counted by its own header, since trims eat into it without marking; from the
second on, an ordinal is a live entry unless it is marked. Inside a node the listpack is asked.
select() goes the other way: from the marks it finds the ordinal that stands for the k-th live
entry, from the sparse index a leaf at most 64 before it, and steps over block headers.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage.errors import CorruptionError
from ...storage.format import keys, records
from ...storage.trees.ordinals import DeadCounts, OrdinalIndex
from ...storage.trees.rax import Rax, RaxTransaction
from ..node import decode
from ..node.stream_id import StreamID, make_id, pack_id
from . import header as headers
from .header import StreamHeader, shown
from .range_read import end_of, require_head, require_neighbour
from .session import Source
from .writer import located


class _Leaf(NamedTuple):
    """One node: its key without the prefix, its block, and the block's verified header."""

    key: bytes
    value: bytes
    head: records.BlockHeader


class Counter:
    """Counts over one stream within one transaction."""

    def __init__(self, txn: RaxTransaction, number: int, header: StreamHeader) -> None:
        self._txn = txn
        self._number = number
        self._header = header
        self._prefix = keys.family(number, keys.NODE)
        self._nodes = Rax(txn, self._prefix)
        self._dead = DeadCounts(txn, number)
        self._first = self._leaf(self._nodes.first())
        require_head(header, None if self._first is None else self._first.key, header.first)

    def _leaf(self, found: tuple[bytes, bytes] | None) -> _Leaf | None:
        if found is None:
            return None
        key, value = found
        try:
            return _Leaf(key, value, records.block_header(self._prefix + key, value))
        except CorruptionError as error:
            raise self._located(error, key) from None

    def _located(self, error: CorruptionError, key: bytes) -> CorruptionError:
        return located(error, shown(self._header.name), *records.node_id(self._prefix + key))

    def _listpack(self, leaf: _Leaf) -> tuple[bytes, int, int]:
        key = self._prefix + leaf.key
        try:
            return records.listpack_of(key, leaf.value, leaf.head), *records.node_id(key)
        except CorruptionError as error:
            raise self._located(error, leaf.key) from None

    def rank(self, sid: tuple[int, int]) -> int:
        """Live entries with an ID smaller than ``sid``."""
        header = self._header
        first = self._first
        if first is None or sid <= header.first:
            return 0
        if sid > header.last:
            return header.length
        leaf = self._leaf(self._nodes.floor(pack_id(*sid)))
        if leaf is None:  # and yet there is a first one, which is not behind the ID
            require_head(header, None, sid)
            return 0
        before = 0
        if leaf.key != first.key:
            second = first.head.ordinal + first.head.span
            before = first.head.live + leaf.head.ordinal - second
            marked = self._dead.dead_between(second, leaf.head.ordinal)
            before -= marked
            if not marked:
                self._require_marks(first)
        listpack, ms, seq = self._listpack(leaf)
        try:
            inside = decode.live_before(listpack, ms, seq, *sid)
        except CorruptionError as error:
            raise self._located(error, leaf.key) from None
        if inside == leaf.head.live:  # perhaps the ID lies in a node behind, which has vanished
            before_it = make_id(*sid).prev()
            require_neighbour(self._txn, self._number, header, leaf.key, end_of(leaf.head), before_it)
        return before + inside

    def _require_marks(self, first: _Leaf) -> None:
        """Where no ordinal is marked as deleted: is that what the header says? Else the marks have vanished."""
        second = first.head.ordinal + first.head.span
        dead = first.head.live + self._header.next_ordinal - second - self._header.length
        if dead and self._dead.dead_between(second, self._header.next_ordinal) != dead:
            raise CorruptionError(
                f"{dead} entries behind the first node are deleted, and not as many are marked so",
                stream=shown(self._header.name),
            )

    def select(self, k: int) -> StreamID:
        """The ID of the live entry that ``k`` live ones precede; 0 <= k < length."""
        first = self._first
        if first is None:
            raise self._missing(k)
        if k < first.head.live:
            return self._nth(first, k)
        second = first.head.ordinal + first.head.span
        live = k - first.head.live + second - self._dead.dead_before(second)
        self._require_marks(first)
        ordinal = self._dead.select_live(live)
        leaf = self._holding(ordinal, k)
        offset = live - (leaf.head.ordinal - self._dead.dead_before(leaf.head.ordinal))
        return self._nth(leaf, offset)

    def _holding(self, ordinal: int, k: int) -> _Leaf:
        """The node that an ordinal belongs to.

        The headers stepped over are not verified: wherever the steps lead, the node they end
        at is, and only one node in the stream can hold the ordinal.
        """
        nodes = self._nodes.iterator()
        noted = OrdinalIndex(self._txn, self._number).floor(ordinal)
        # Where the noted leaf is gone, the one before it may have taken over its ordinals.
        found = noted is not None and nodes.seek("<=", pack_id(*noted[1:]))
        found = found or nodes.seek("^")
        while found:
            if len(nodes.value()) < records.HEADER_SIZE:
                self._leaf(nodes.item())  # raises: it is cut off
            start, span = records.peek_ordinals(nodes.value())
            if start + span > ordinal:
                leaf = self._leaf(nodes.item())
                assert leaf is not None
                if leaf.head.ordinal <= ordinal:
                    return leaf
                break
            found = nodes.next()
        raise self._missing(k)

    def _nth(self, leaf: _Leaf, k: int) -> StreamID:
        listpack, ms, seq = self._listpack(leaf)
        try:
            return make_id(*decode.nth_live(listpack, ms, seq, k))
        except CorruptionError as error:
            raise self._located(error, leaf.key) from None

    def _missing(self, k: int) -> CorruptionError:
        return CorruptionError(
            f"live entry {k} of {self._header.length} is in no node", stream=shown(self._header.name)
        )


def _counter(txn: RaxTransaction, name: bytes, number: int | None) -> tuple[Counter, StreamHeader] | None:
    found = headers.find(txn, name, number)
    return None if found is None else (Counter(txn, *found), found[1])


def count(source: Source, name: bytes, start: StreamID, end: StreamID, number: int | None) -> int:
    """Live entries with start <= ID <= end."""
    if start > end:
        return 0
    with source.read() as txn:
        found = _counter(txn, name, number)
        if found is None:
            return 0
        counter, header = found
        upto = header.length if end >= header.last else counter.rank(end.next())
        return max(0, upto - counter.rank(start))


def rank(source: Source, name: bytes, sid: StreamID, number: int | None) -> int:
    """Live entries with an ID smaller than ``sid``; 0 for a stream that is not there."""
    with source.read() as txn:
        found = _counter(txn, name, number)
        return 0 if found is None else found[0].rank(sid)


def select(source: Source, name: bytes, k: int, number: int | None) -> StreamID:
    """The ID of the k-th live entry, from 0. IndexError outside."""
    with source.read() as txn:
        found = _counter(txn, name, number)
        length = 0 if found is None else found[1].length
        if found is None or not 0 <= k < length:
            raise IndexError(f"stream {shown(name)} has {length} live entries; there is no entry {k}")
        return found[0].select(k)


def split(source: Source, name: bytes, parts: int, number: int | None) -> list[tuple[StreamID, StreamID, int]]:
    """Cut the live entries into ``parts`` ID ranges of equal count (to within one entry)."""
    with source.read() as txn:
        found = _counter(txn, name, number)
        if found is None or found[1].length == 0:
            return []
        counter, header = found
        parts = min(parts, header.length)
        borders = [header.length * i // parts for i in range(parts + 1)]
        starts = [counter.select(k) for k in borders[:-1]]
        ends = [sid.prev() for sid in starts[1:]] + [make_id(*header.last)]
        return [(a, b, borders[i + 1] - borders[i]) for i, (a, b) in enumerate(zip(starts, ends, strict=True))]
