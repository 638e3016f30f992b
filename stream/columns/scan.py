"""Scan: the nodes of a range as they are stored, for callers that decode them.

    read_nodes()    txn ┌ node 4 ┬ node 5 ┬ … ┐     txn ┌ node 12 ┬ … ┐
                        └ copied out, end ────┘         └ 256 more ───┘
                    unpack, hand out …              unpack, hand out …

As with range(), no transaction is open while nodes are yielded, the first one fixes the
greatest ID, and what is trimmed during the scan may be missing. Each block's checksum is verified, and
its ordinals must go on where those of the block before ended.

A damaged node is yielded as well, as the CorruptionError in a listpack's place: the caller decides
whether that ends the scan.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...storage.errors import CorruptionError
from ...storage.format import keys, records
from ...storage.trees.ordinals import DeadCounts
from ...storage.trees.rax import Rax, RaxTransaction
from ..entries import header as headers
from ..entries.header import StreamHeader, shown
from ..entries.range_read import end_of, require_head, require_neighbour
from ..entries.session import Source
from ..entries.writer import located
from ..node.stream_id import StreamID

SOURCE_HASH = ""

StoredNode = tuple[tuple[int, int], bytes | CorruptionError]  # master ID, listpack or what is wrong
_Found = tuple[bytes, bytes | CorruptionError, records.BlockHeader | None]

_NODES = 256  # of a transaction: some megabytes at most, copied in about a millisecond
_FIRST = 8


class _Scan:
    """How far a scan has come, from one transaction to the next."""

    def __init__(self, name: bytes, start: StreamID) -> None:
        self.name = name
        self.start = start
        self.last_key: bytes | None = None  # of the node read last, without its prefix
        self.expected: int | None = None  # the ordinal that the next one must begin with
        self.more = True

    def collect(self, txn: RaxTransaction, number: int, header: StreamHeader, end: StreamID,
                limit: int) -> list[_Found]:
        """The next blocks, at most so many: (key, value, verified header), or what is wrong."""
        found: list[_Found] = []
        prefix = keys.family(number, keys.NODE)
        nodes = Rax(txn, prefix).iterator()
        if self.last_key is not None:
            # What was last may have grown since, or be gone.
            self.expected = None
            if nodes.seek("=", self.last_key):
                self._checked(nodes.here, nodes.value())
            nodes.seek(">", self.last_key)
        else:
            has_node = nodes.seek("<=", bytes(self.start)) or nodes.seek("^")
            try:
                require_head(header, nodes.key() if has_node else None, self.start)
            except CorruptionError as error:
                found.append((prefix + bytes(self.start), error, None))
        taken = nodes.take(limit, bytes(end))
        for key, value in taken:
            before = self.expected
            head = self._checked(key, value)
            if isinstance(head, CorruptionError):
                found.append((key, head, None))
                continue
            if before is not None and before != head.ordinal:
                self._require_dead(txn, number, key[len(prefix) :], before, head.ordinal, found)
            found.append((key, value, head))
        if taken:
            self.last_key = taken[-1][0][len(prefix) :]
        if len(taken) == limit:
            return found
        self.more = False
        if self.last_key is not None and self.expected is not None:
            try:
                require_neighbour(txn, number, header, self.last_key, self.expected, end)
            except CorruptionError as error:
                behind = nodes.key() if nodes.seek(">", self.last_key) else bytes(StreamID.MAX)
                found.append((prefix + behind, error, None))
        return found

    def _checked(self, key: bytes, value: bytes) -> records.BlockHeader | CorruptionError:
        """The block's header; notes the ordinal that the next one must begin with."""
        try:
            head = records.block_header(key, value)
        except CorruptionError as error:
            self.expected = None
            return located(error, shown(self.name), *records.node_id(key))
        self.expected = end_of(head)
        return head

    def _require_dead(self, txn: RaxTransaction, number: int, key: bytes, start: int, stop: int,
                      found: list[_Found]) -> None:
        """Ordinals start … stop before the node ``key`` have none: all must be deleted, or trimmed away."""
        prefix = keys.family(number, keys.NODE)
        first = Rax(txn, prefix).first()
        if first is not None and first[0] == key:
            return
        if stop < start or DeadCounts(txn, number).dead_between(start, stop) != stop - start:
            error = CorruptionError(
                f"the entries with ordinals {start} to {stop - 1} should be there and are not", stream=shown(self.name)
            )
            found.append((prefix + key, error, None))


def read_nodes(source: Source, name: bytes, start: StreamID, end: StreamID) -> Iterator[StoredNode]:
    """The nodes that hold the entries from ``start`` to ``end``, in order, lazily.

    Entries at either end of the range share their nodes with others, which the caller leaves
    out. A stream that is not there has no nodes. Stream.nodes(start, end) is this for a handle.
    """
    if start > end:
        return
    scan = _Scan(name, start)
    number: int | None = None
    limit = _FIRST
    while scan.more:
        with source.read() as txn:
            found = headers.find(txn, name, number)
            if found is None or (number is not None and found[0] != number):
                return  # deleted (and perhaps created again) while it was read
            number, header = found
            end = StreamID(*min(end, header.last))
            if start > end:
                return
            blocks = scan.collect(txn, number, header, end, limit)
        limit = _NODES
        for key, value, head in blocks:
            master = records.node_id(key)
            if isinstance(value, CorruptionError):
                yield master, value
                continue
            assert head is not None
            try:
                listpack = records.listpack_of(key, value, head)
            except CorruptionError as error:
                yield master, located(error, shown(name), *master)
                continue
            yield master, listpack
