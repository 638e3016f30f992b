"""Scan: the nodes of a range as they are stored, for callers that decode them.

    read_nodes()    txn ┌ node 4 ┬ node 5 ┬ … ┐     txn ┌ node 12 ┬ … ┐
                        └ copied out, end ────┘         └ 256 more ───┘
                    unpack, hand out …              unpack, hand out …

As with range(), no transaction is open while nodes are yielded, a stream's first one fixes its
greatest ID, and what is trimmed during the scan may be missing. Each block's checksum is verified, and
its ordinals must go on where those of the block before ended.

A damaged node is yielded as well, as the CorruptionError in a listpack's place: the caller decides
whether that ends the scan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from ...storage.errors import CorruptionError
from ...storage.format import keys, records
from ...storage.format.records import HEADER_SIZE, node_id
from ...storage.format.records import node_id as master_of  # cimport
from ...storage.format.records import peek_ordinals as ordinals_of  # cimport
from ...storage.log.cursor import LogCursor, cursor_over
from ...storage.trees.ordinals import DeadCounts
from ...storage.trees.rax import Rax, RaxTransaction
from ..entries import header as headers
from ..entries.header import shown
from ..entries.range_read import end_of, require_head, require_neighbour
from ..entries.session import Source
from ..entries.writer import located
from ..node.stream_id import StreamID, pack_id

SOURCE_HASH = ""

StoredNode = tuple[tuple[int, int], bytes | CorruptionError]  # master ID, listpack or what is wrong

FORMAT, seed_of = keys.FORMAT, records.seed_of  # in C
_NODES = 256  # of a transaction: some megabytes at most, copied in about a millisecond
_FIRST = 8


class Range(NamedTuple):
    """The entries of a stream from ``start`` to ``end``, both included. With its ``number`` it is found sooner."""

    name: bytes
    start: StreamID
    end: StreamID
    number: int | None = None


class Packed(NamedTuple):
    """A block whose listpack unpacked() unpacks, once it's asked for: it may be large."""

    key: bytes
    value: bytes
    head: records.BlockHeader


# A range, and a StoredNode of it that may be packed; and where the listpack begins in the bytes.
RangeNode = tuple[Range, tuple[int, int], bytes | CorruptionError | Packed, int]


def is_sound(key: bytes, value: bytes) -> bool:  # cimport
    """In C: is it the block under this key, raw and right? Of any other block_header() says what it is."""
    return False


class Scan:
    """How far the scan of a range has come, from one transaction to the next."""

    __slots__ = ("begin", "begun", "end", "expected", "last_key", "more", "number", "of")

    def __init__(self, of: Range) -> None:
        self.of = of
        self.end: tuple[int, int] = of.end
        self.number = of.number
        self.begun = False
        self.last_key: bytes | None = None  # of the node read last, without its prefix
        self.begin = 0  # its ordinal
        self.expected: int | None = None  # the ordinal that the next one must begin with
        self.more = True

    def collect(self, txn: RaxTransaction, nodes: LogCursor, limit: int, found: list[RangeNode]) -> None:
        """Add the next blocks, at most so many, with the header of each or with what is wrong in its place."""
        of = self.of
        name, start, _, _ = of
        stream = headers.find_extent(txn, name, self.number)
        if stream is None or (self.begun and stream[0] != self.number):
            self.more = False  # deleted (and perhaps created again) while it was read
            return
        number, header = stream
        self.number = number
        self.begun = True
        self.end = end = min(self.end, header.last)
        if start > end:
            self.more = False
            return
        prefix = keys.family(number, keys.NODE)
        nodes.turn_to(prefix)
        if self.last_key is not None:
            # What was last may have grown since, or be gone.
            self.expected = None
            if nodes.seek("=", self.last_key):
                self.checked(nodes.here, nodes.value())
            nodes.seek(">", self.last_key)
        else:
            has_node = (start > header.first and nodes.seek("<=", pack_id(*start))) or nodes.seek("^")
            try:
                require_head(header, nodes.key() if has_node else None, start)
            except CorruptionError as error:
                found.append((of, start, error, 0))
        taken = nodes.take(limit, pack_id(*end))
        for key, value in taken:
            before = self.expected
            master = master_of(key)
            block = self.checked(key, value)
            if before is not None and self.expected is not None and before != self.begin:
                self.require_dead(txn, key[len(prefix) :], before, self.begin, found)
            found.append((of, master, block, HEADER_SIZE))
        if taken:
            last = taken[len(taken) - 1]
            self.last_key = last[0][len(prefix) :]
        if len(taken) == limit:
            return
        self.more = False
        # With the last ordinal that was given all is read: nothing is missing behind.
        if self.last_key is not None and self.expected is not None and self.expected != header.next_ordinal:
            try:
                require_neighbour(txn, number, header, self.last_key, self.expected, end)
            except CorruptionError as error:
                behind = node_id(nodes.here) if nodes.seek(">", self.last_key) else StreamID.MAX
                found.append((of, behind, error, 0))

    def checked(self, key: bytes, value: bytes) -> bytes | CorruptionError | Packed:
        """The block, with its listpack behind the header; notes its ordinal, and where the next block begins."""
        if is_sound(key, value):
            self.begin, span = ordinals_of(value)
            self.expected = self.begin + span
            return value
        try:
            head = records.block_header(key, value)
        except CorruptionError as error:
            self.expected = None
            return located(error, shown(self.of.name), *node_id(key))
        self.begin = head.ordinal
        self.expected = end_of(head)
        return value if head.codec == records.RAW else Packed(key, value, head)

    def require_dead(self, txn: RaxTransaction, key: bytes, start: int, stop: int, found: list[RangeNode]) -> None:
        """Ordinals start … stop before the node ``key`` have none: all must be deleted, or trimmed away."""
        number = self.number
        assert number is not None
        prefix = keys.family(number, keys.NODE)
        first = Rax(txn, prefix).first()
        if first is not None and first[0] == key:
            return
        if stop < start or DeadCounts(txn, number).dead_between(start, stop) != stop - start:
            error = CorruptionError(
                f"the entries with ordinals {start} to {stop - 1} should be there and are not",
                stream=shown(self.of.name),
            )
            found.append((self.of, node_id(prefix + key), error, 0))


def unpacked(of: Range, packed: Packed) -> bytes | CorruptionError:
    """The listpack of a packed block."""
    try:
        return records.listpack_of(*packed)
    except CorruptionError as error:
        return located(error, shown(of.name), *node_id(packed.key))


def read_nodes(source: Source, name: bytes, start: StreamID, end: StreamID) -> Iterator[StoredNode]:
    """The nodes that hold the entries from ``start`` to ``end``, in order, lazily.

    Entries at either end of the range share their nodes with others, which the caller leaves
    out. A stream that is not there has no nodes. Stream.nodes(start, end) is this for a handle.
    """
    for of, master, held, begin in read_ranges(source, [Range(name, start, end)]):
        if isinstance(held, Packed):
            yield master, unpacked(of, held)
        else:
            yield master, held if isinstance(held, CorruptionError) else held[begin:]


def read_ranges(source: Source, ranges: Iterable[Range]) -> Iterator[RangeNode]:
    """read_nodes() of one range after the other, each node with its range: small streams share a transaction."""
    return chain.from_iterable(_chunks(source, ranges))


def _chunks(source: Source, ranges: Iterable[Range]) -> Iterator[list[RangeNode]]:
    waiting = (given for given in ranges if given.start <= given.end)
    scan: Scan | None = None
    limit = _FIRST
    more = True
    while more:
        found: list[RangeNode] = []
        with source.read() as txn:
            nodes = cursor_over(txn)
            for _ in range(limit):  # ranges: they may have no nodes
                if len(found) >= limit:
                    break
                if scan is None:
                    given = next(waiting, None)
                    more = given is not None
                    if given is None:
                        break
                    scan = Scan(given)
                scan.collect(txn, nodes, limit - len(found), found)
                if scan.more:
                    break
                scan = None
        limit = _NODES
        yield found
