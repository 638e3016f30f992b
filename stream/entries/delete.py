"""Deleting entries by ID: a flag in the listpack, a mark in the counts.

    node  | a | b | c | d |      delete b, d      | a | b̶ | c | d̶ |
    ordinals 40 … 43             ───────────>     marked dead: 40, 41

An entry keeps its place in the listpack and is flagged as deleted, exactly as in Redis; a node
without live entries is freed. Besides, the entry is counted dead in the bitmap over ordinals. Which
ordinal is marked does not matter, only how many of the node's: they are marked from the left, so that
a node may be compacted without touching the marks.

The stream's first node marks nothing: a count reads that node anyway, because trims cut into it.

What Redis does not do: a node of our own size rule in which most entries are dead (more
than ten entries, more dead than live) is compacted. Under node_max_bytes the bytes stay
Redis' own, so there it is not.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...storage.errors import CorruptionError
from ...storage.format import keys, records
from ...storage.log.transaction import WriteTransaction
from ...storage.trees.ordinals import DeadCounts, OrdinalIndex
from ...storage.trees.rax import Rax
from ..node import decode
from .header import shown
from .range_read import by_node
from .writer import StreamWriter, located

_COMPACT_ABOVE = 10


def delete(txn: WriteTransaction, writer: StreamWriter, ids: Iterable[tuple[int, int]]) -> int:
    """Delete the entries with these IDs; how many there were. XDEL.

    Costs one read and one write per node touched, plus one row of the counts.
    """
    done = remove(txn, writer, ids)
    if done:
        header = writer.header
        header.max_deleted = max(header.max_deleted, done[-1])
        writer.changed(txn)
    return len(done)


def remove(txn: WriteTransaction, writer: StreamWriter, ids: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Delete these entries, as XDEL or a trim; those that were live, in order."""
    nodes = writer.nodes(txn)
    header = writer.header
    first = nodes.first()
    if first is None:
        return []
    removed: list[tuple[int, int]] = []
    for key, value, wanted in list(by_node(nodes, sorted(set(ids)))):
        removed += _delete_in_node(txn, writer, writer.nodes_prefix + key, value, wanted, key == first[0])
    if removed:
        header.length -= len(removed)
        if removed[0] == header.first:
            header.first = first_live(txn, writer)
        writer.changed(txn)
    return removed


def free_dead(txn: WriteTransaction, writer: StreamWriter, key: bytes) -> None:
    """Free a node without live entries."""
    writer.changed(txn)
    first = writer.nodes(txn).first()
    writer.drop_node(txn, key, len(txn.get(key)))
    if first is not None and writer.nodes_prefix + first[0] == key:
        after_head_moved(txn, writer)
    writer.forget_tail()


def _delete_in_node(txn: WriteTransaction, writer: StreamWriter, key: bytes, value: bytes,
                    ids: list[tuple[int, int]], is_first: bool) -> list[tuple[int, int]]:
    header = writer.header
    ms, seq = records.node_id(key)
    try:
        head = records.block_header(key, value)
        listpack, done, _ = decode.mark_deleted(records.listpack_of(key, value, head), ms, seq, ids)
    except CorruptionError as error:
        raise located(error, shown(header.name), ms, seq) from None
    if not done:
        return done
    is_tail = head.ordinal + head.span == header.next_ordinal
    live = head.live - len(done)
    if not is_first:
        _mark(DeadCounts(txn, writer.number), head, len(done))
    if live == 0:
        writer.drop_node(txn, key, len(value))
        if is_first:
            after_head_moved(txn, writer)
    else:
        if not is_tail and header.limits.max_bytes is None:
            listpack = _compacted(listpack, ms, seq)
        rewrite(txn, writer, key, value, head, listpack, live)
    writer.forget_tail()
    return done


def _mark(counts: DeadCounts, head: records.BlockHeader, dying: int) -> None:
    """Mark the node's first ``dying`` ordinals that are not marked yet.

    They follow those that are, except in a node that was the last one once more when the nodes
    behind it had been freed: it has taken over their ordinals, marked, to the right of live ones.
    """
    dead = head.span - head.live
    start = head.ordinal + dead
    if counts.dead_between(head.ordinal, start) == dead:
        counts.mark_span(start, start + dying)
        return
    before = head.ordinal - counts.dead_before(head.ordinal)
    for _ in range(dying):
        counts.mark(counts.select_live(before))


def _compacted(listpack: bytes, ms: int, seq: int) -> bytes:
    live, dead = decode.counts(listpack)
    if live + dead > _COMPACT_ABOVE and dead > live:
        return decode.compact(listpack, ms, seq)
    return listpack


def rewrite(txn: WriteTransaction, writer: StreamWriter, key: bytes, value: bytes, head: records.BlockHeader,
            listpack: bytes, live: int) -> None:
    """Store the changed listpack of a node, whose block is ``value``, under the same ordinals and codec."""
    block = records.encode_block(key, listpack, head.ordinal, head.span, live, head.codec)
    txn.put(key, block)
    writer.header.stored_bytes += len(block) - len(value)


def after_head_moved(txn: WriteTransaction, writer: StreamWriter) -> None:
    """Drop the counts before the first node, which is another one now."""
    first = Rax(txn, writer.nodes_prefix).first()
    if first is None:
        base = writer.header.next_ordinal
    else:
        key = writer.nodes_prefix + first[0]
        base = records.block_header(key, first[1]).ordinal
    DeadCounts(txn, writer.number).drop_below(base)
    OrdinalIndex(txn, writer.number).drop_below(base)


def forget_leaves_after(txn: WriteTransaction, writer: StreamWriter, last: tuple[int, int]) -> None:
    """Drop the noted leaves with greater IDs than ``last``, which the stream's last ID goes back to.

    They are gone, and new ones with smaller IDs will get greater ordinals.
    """
    noted = keys.family(writer.number, keys.ORDINAL)
    for ordinal, ms, seq in list(OrdinalIndex(txn, writer.number).all()):
        if (ms, seq) > last:
            txn.delete(noted + ordinal.to_bytes(8, "big"))


def last_written(txn: WriteTransaction, writer: StreamWriter) -> tuple[int, int]:
    """The ID of the last entry in the last node, deleted or not; (0, 0) without a node."""
    found = writer.nodes(txn).last()
    if found is None:
        return 0, 0
    key = writer.nodes_prefix + found[0]
    ms, seq = records.node_id(key)
    try:
        return decode.last_entry_id(records.open_block(key, found[1])[1], ms, seq)
    except CorruptionError as error:
        raise located(error, shown(writer.header.name), ms, seq) from None


def first_live(txn: WriteTransaction, writer: StreamWriter) -> tuple[int, int]:
    """The ID of the first live entry; (0, 0) when there is none.

    Looks past nodes without a live entry, which an exact trim by MINID can leave.
    """
    return _edge(txn, writer, last=False)


def last_live(txn: WriteTransaction, writer: StreamWriter) -> tuple[int, int]:
    """The ID of the last live entry; (0, 0) when there is none."""
    return _edge(txn, writer, last=True)


def _edge(txn: WriteTransaction, writer: StreamWriter, last: bool) -> tuple[int, int]:
    header = writer.header
    if header.length == 0:
        return 0, 0
    nodes = writer.nodes(txn).iterator()
    has_node = nodes.seek("$" if last else "^")
    while has_node:
        key, value = nodes.here, nodes.value()
        ms, seq = records.node_id(key)
        try:
            head = records.block_header(key, value)
            if head.live:
                listpack = records.listpack_of(key, value, head)
                found = (decode.last_live if last else decode.first_live)(listpack, ms, seq)
                if found is not None:
                    return found
        except CorruptionError as error:
            raise located(error, shown(header.name), ms, seq) from None
        has_node = nodes.prev() if last else nodes.next()
    raise CorruptionError(f"the header counts {header.length} entries, the nodes hold none", stream=shown(header.name))
