"""The nodes of a stream, and everything that counts them.

    header     length, first, last, nodes           compared with   what the nodes hold
    nodes      IDs ascend, within and across        block, listpack, master entry, all entries
    ordinals   0 ──node──┬─gap─┬──node──┬──node── next ordinal      each gap must be marked
    marks      of each node but the first: span - live are marked
    index      notes ascend, and name the right nodes

The numbers of the invariants are those of docs/format.md, section 10.
"""

from __future__ import annotations

from ...storage.format import keys, records
from ...storage.trees import ordinals
from ...storage.trees.ordinals import DeadCounts
from ...storage.trees.rax import RaxTransaction, family_rows
from ...stream.entries import header as headers
from ...stream.entries.header import StreamHeader
from ...stream.node import decode
from ...stream.node.stream_id import StreamID, make_id
from .page_tree import FAILURES
from .report import Findings

_NODE_KEY = 25  # bytes: number, kind, ID


class _NodeWalk:
    """One walk over the nodes of one stream, and its counts so far."""

    def __init__(self, tree: RaxTransaction, number: int, stream: str, find: Findings) -> None:
        self.tree = tree
        self.number = number
        self.stream = stream
        self.find = find
        self.dead = DeadCounts(tree, number)
        self.base: int | None = None  # ordinal of the first node, where that can be read
        self.expected: int | None = None  # ordinal the next node must begin with
        self.last: tuple[int, int] = (0, 0)
        self.first_live: StreamID | None = None
        self.nodes = 0
        self.live = 0
        self.bytes = 0
        self.unread = 0
        self.starts: dict[tuple[int, int], int] = {}

    def problem(self, kind: str, what: str, key: bytes | None = None, offset: int | None = None) -> None:
        """Report a problem of this stream, at a node if ``key`` is one."""
        self.find.problem(kind, what, key=key, stream=self.stream, node=_named(key), offset=offset)

    def visit(self, key: bytes, value: bytes) -> None:
        """Check one node: its block, its listpack, and how it continues the one before."""
        self.nodes += 1
        self.bytes += len(value)
        self.find.step()
        try:
            master = records.node_id(key)
            head, listpack = records.open_block(key, value)
            live, gone, *end = decode.validate_node(listpack, *master)
            first = decode.first_live(listpack, *master) if self.first_live is None and live else None
        except FAILURES as error:
            self.find.error("node", error, key=key, stream=self.stream, node=_named(key))
            self.unread += 1
            self.expected = None
            return
        if master <= self.last and self.nodes > 1:
            self.problem("node", f"begins before the last entry of the node before, {make_id(*self.last)}", key)
        self.last = (end[0], end[1])
        if master == (0, 0) and live + gone and decode.live_before(listpack, 0, 0, 0, 1):
            self.problem("node", "holds an entry with the ID 0-0", key)
        if first is not None:
            self.first_live = make_id(*first)
        if live != head.live:
            self.problem("node", f"has {live} live entries, its block counts {head.live}", key, 22)
        if live + gone > head.span:
            self.problem("node", f"has {live + gone} entries and covers {head.span} ordinals only", key, 18)
        if not live and self.nodes > 1:
            self.problem("node", "has no live entries and is not the first", key)
        self._ordinals(key, head)
        self.live += head.live
        self.starts[master] = head.ordinal
        self.find.counts["entries"] += live

    def _ordinals(self, key: bytes, head: records.BlockHeader) -> None:
        end = head.ordinal + head.span
        if self.nodes == 1:
            self.base = head.ordinal
        elif self.expected is not None:
            self.gap(key, self.expected, head.ordinal)
        self.expected = end
        marked = self._marked(key, head.ordinal, end)
        dead = head.span - head.live
        if marked is not None and (marked > dead or (self.nodes > 1 and marked != dead)):
            self.problem("ordinals", f"{marked} of its ordinals are marked as deleted, {dead} entries are gone", key)

    def gap(self, key: bytes, start: int, stop: int) -> None:
        """Check that ordinals start..stop, which have no node, are all marked as deleted."""
        if stop < start:
            self.problem("ordinals", f"the node's ordinals begin at {stop}, below the last end, {start}", key)
        elif stop > start:
            marked = self._marked(key, start, stop)
            if marked is not None and marked != stop - start:
                self.problem("ordinals", f"{stop - start - marked} entries with ordinals from {start} to {stop - 1} "
                         f"should be there and are not; they lie behind {make_id(*self.last)}", key)

    def _marked(self, key: bytes, start: int, stop: int) -> int | None:
        try:
            return self.dead.dead_between(start, stop)
        except FAILURES as error:
            self.find.error("ordinals", error, key=key, stream=self.stream)
            return None


def _named(key: bytes | None) -> str | None:
    """The node of a key, if it is a node's key."""
    return str(make_id(*records.node_id(key))) if key is not None and len(key) == _NODE_KEY else None


def check_stream(tree: RaxTransaction, number: int, stream: str, find: Findings) -> StreamHeader | None:
    """Check all nodes of a stream, its header and its ordinals. Returns the header, if readable."""
    walk = _NodeWalk(tree, number, stream, find)
    prefix = keys.family(number, keys.NODE)
    for key, value in family_rows(tree, prefix):
        walk.visit(key, value)
    header = None
    try:
        header = headers.load(tree, number)
    except FAILURES as error:
        find.error("header", error, key=keys.header_key(number), stream=stream)
    if header is not None:
        _compare(walk, header)
    base = walk.base
    if base is None and header is not None and not walk.nodes:
        base = header.next_ordinal
    try:
        for what in ordinals.problems(tree, number, base):
            find.problem("ordinals", what, stream=stream, key=keys.family(number, keys.DEAD))
        _compare_notes(walk)
    except FAILURES as error:
        find.error("ordinals", error, key=keys.family(number, keys.ORDINAL), stream=stream)
    return header


def _compare(walk: _NodeWalk, header: StreamHeader) -> None:
    """Invariants 4, 8, 9, 11 and 14: the header's figures and those of the nodes."""
    key = keys.header_key(walk.number)
    if not walk.nodes == header.leaves <= header.leaves_added:
        walk.problem("header", f"{walk.nodes} nodes are there, the header counts {header.leaves} of "
                 f"{header.leaves_added} ever made", key)
    if not walk.unread and walk.live != header.length:
        walk.problem("header", f"{walk.live} live entries are there, the header counts {header.length}", key)
    first = (0, 0) if walk.first_live is None else tuple(walk.first_live)
    if not walk.unread and first != header.first:
        walk.problem("header", f"the first entry is {make_id(*first)}, the header has {make_id(*header.first)}", key)
    if walk.last > header.last:
        walk.problem("header", f"the last entry is {make_id(*walk.last)}, behind the header's last ID "
                 f"{make_id(*header.last)}", key)
    if walk.bytes != header.stored_bytes:
        walk.problem("header", f"the nodes have {walk.bytes} bytes, the header counts {header.stored_bytes}", key)
    if header.max_deleted > header.last:
        walk.problem("header", f"the greatest deleted ID {make_id(*header.max_deleted)} is behind the last ID", key)
    if walk.expected is not None:
        walk.gap(key, walk.expected, header.next_ordinal)


def _compare_notes(walk: _NodeWalk) -> None:
    for ordinal, ms, seq in ordinals.OrdinalIndex(walk.tree, walk.number).all():
        walk.find.counts["notes"] += 1
        if walk.starts.get((ms, seq), ordinal) != ordinal:
            walk.problem("ordinals", f"the ordinal index notes node {ms}-{seq} at {ordinal}, it begins at "
                     f"{walk.starts[ms, seq]}", keys.family(walk.number, keys.ORDINAL))
