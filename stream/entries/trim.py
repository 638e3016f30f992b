"""Trimming: what is older than the newest n entries, or than an ID, goes.

    | node 1 | node 2 | node 3 | node 4 |          keep 130 of 4 x 100
      gone     gone     70 marked   kept           (approximate: node 3 stays whole)

Whole nodes are removed while the stream stays at or above what is to be kept; then, unless
the trim is approximate, entries inside the node at the border are marked deleted. The order
of the checks is Redis', so that the same calls leave the same nodes. A trim moves the base
of the counts and marks nothing (delete.py says why).
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage.errors import CorruptionError, InvalidArgument
from ...storage.format import records
from ...storage.log.transaction import WriteTransaction
from ..node import decode
from ..node.arguments import whole
from ..node.stream_id import IDLike, StreamID, parse_id
from .delete import after_head_moved, first_live, rewrite
from .header import NodeLimits, shown
from .writer import StreamWriter, located

LEAVES_A_TRANSACTION = 1000  # about 2 ms; between chunks other writers get in
_DEFAULT_NODES = 100
_DEFAULT_LIMIT = 10_000
_GREATEST_LIMIT = 1_000_000


class Trim(NamedTuple):
    """What to keep: exactly one of maxlen, minid and max_bytes is set. ``limit`` 0 is no limit."""

    maxlen: int | None
    minid: tuple[int, int] | None
    approximate: bool
    limit: int | None
    max_bytes: int | None = None  # of the nodes as stored, where the header counts them; approximate


def parse_trim(maxlen: int | None, minid: IDLike | None, approximate: bool, limit: int | None) -> Trim | None:
    """Check the options as XADD and XTRIM do; None where no trimming is asked for."""
    if maxlen is not None and minid is not None:
        raise InvalidArgument("maxlen and minid at the same time are not compatible; give one of them")
    if limit is not None:
        if maxlen is None and minid is None:
            raise InvalidArgument("limit cannot be used without maxlen or minid")
        if not approximate:
            raise InvalidArgument("limit cannot be used without approximate=True")
        whole("limit", limit, 0)
    if maxlen is None and minid is None:
        return None
    whole("maxlen", maxlen, 0, none="")
    return Trim(maxlen, None if minid is None else parse_id(minid), bool(approximate), limit)


def effective_limit(trim: Trim, limits: NodeLimits) -> int:
    """The most entries one call may evict: Redis' default for an approximate trim."""
    if not trim.approximate:
        return 0
    if trim.limit is not None:
        return trim.limit
    if limits.max_entries <= 0:
        return _DEFAULT_LIMIT
    return min(_DEFAULT_NODES * limits.max_entries, _GREATEST_LIMIT)


def evict(txn: WriteTransaction, writer: StreamWriter, trim: Trim, limit: int,
          most_leaves: int | None = None) -> tuple[int, bool]:
    """Trim; how many entries went, and whether it stopped at ``most_leaves`` with more to do."""
    header = writer.header
    if trim.maxlen is not None and header.length <= trim.maxlen:
        return 0, False
    nodes = writer.nodes(txn)
    evicted = 0
    removed = 0
    stopped = False
    while trim.maxlen is None or header.length > trim.maxlen:
        found = nodes.first()
        if found is None:
            break
        key = writer.nodes_prefix + found[0]
        ms, seq = records.node_id(key)
        try:
            head = records.block_header(key, found[1])
            live = head.live
            if limit and evicted + live > limit:
                break
            if trim.maxlen is not None:
                whole = header.length - live >= trim.maxlen
                listpack = b"" if whole else records.listpack_of(key, found[1], head)
            elif trim.max_bytes is not None:
                whole = header.stored_bytes - len(found[1]) >= trim.max_bytes
                listpack = b""
            else:
                assert trim.minid is not None
                listpack = records.listpack_of(key, found[1], head)
                whole = decode.last_entry_id(listpack, ms, seq) < trim.minid
            if whole:
                if most_leaves is not None and removed >= most_leaves:
                    stopped = True
                    break
                writer.drop_node(txn, key, len(found[1]))
                header.length -= live
                evicted += live
                removed += 1
                continue
            if trim.approximate:
                break
            evicted += _evict_inside(txn, writer, trim, key, found[1], head, listpack)
            break
        except CorruptionError as error:
            raise located(error, shown(header.name), ms, seq) from None
    if removed:
        after_head_moved(txn, writer)
        if not header.leaves:
            writer.forget_tail()
    if removed or evicted:
        header.first = first_live(txn, writer)
        writer.changed(txn)  # here, behind the flush in first_live(); the nodes' deletions have counted as changes
    return evicted, stopped


def _evict_inside(txn: WriteTransaction, writer: StreamWriter, trim: Trim, key: bytes, value: bytes,
                  head: records.BlockHeader, listpack: bytes) -> int:
    """Mark entries of the node at the border deleted. The node stays, even with none alive."""
    ms, seq = records.node_id(key)
    header = writer.header
    limit = -1 if trim.maxlen is None else header.length - trim.maxlen
    ids = [
        (entry.id.ms, entry.id.seq)
        for entry in decode.decode(listpack, ms, seq, 0, 0, *StreamID.MAX, limit, False)
        if trim.minid is None or entry.id < trim.minid
    ]
    if not ids:
        return 0
    changed, done, _ = decode.mark_deleted(listpack, ms, seq, ids)
    rewrite(txn, writer, key, value, head, changed, head.live - len(done))
    writer.forget_tail()
    header.length -= len(done)
    return len(done)
