"""Reading entries: short transactions, whole nodes, one chunk after the other.

    range("5", "9")     txn ┌ node 4 ┬ node 5 ┐     txn ┌ node 6 ┬ node 7 ┬ node 8 ┬ node 9 ┐
                            └ copied out, end ┘         └ twice as many, up to 64 ─────────┘
                        decode, yield …             decode, yield …

No transaction is open while entries are yielded, so a slow reader pins no pages. The first chunk
fixes the greatest ID that will be read: later appends are not read. What is trimmed or deleted during
the read may be missing.

Each block's checksum is verified, and its ordinals must go on where those of the block before
ended: a gap must be marked as deleted in the counts (or trimmed away). So a node that has
vanished is an error too, not a shorter answer.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterator

from ...storage.errors import CorruptionError
from ...storage.format import keys, records
from ...storage.log.cursor import LogCursor
from ...storage.trees.ordinals import DeadCounts
from ...storage.trees.rax import Rax, RaxTransaction
from ..node import decode
from ..node.entry import UNDECODABLE, Entry, into_texts
from ..node.stream_id import StreamID, make_id, pack_id, unpack_id
from . import header as headers
from .header import Extent, StreamHeader, shown
from .session import Source
from .writer import located

SOURCE_HASH = ""

_MOST_NODES = 64


class _Chunk:
    """Blocks copied out of one transaction, in reading order."""

    __slots__ = ("blocks", "expected", "last_key", "more")

    def __init__(self) -> None:
        self.blocks: list[tuple[bytes, bytes, records.BlockHeader]] = []
        self.more = False
        self.last_key: bytes | None = None  # where the next chunk goes on
        self.expected: int | None = None  # the ordinal the next node must touch


def read_range(source: Source, name: bytes, start: StreamID, end: StreamID, count: int | None,
               reverse: bool, encoding: str | None, number: int | None = None) -> Iterator[Entry]:
    """Live entries with start <= ID <= end, lazily, at most ``count``; of stream ``number`` only. XRANGE, XREVRANGE."""
    if start > end or count == 0:
        return
    remaining = -1 if count is None else min(count, sys.maxsize)
    node_count = 1 if count is not None and count <= 64 else 4
    state = _Chunk()
    while True:
        with source.read() as txn:
            found = headers.find(txn, name, number)
            if found is None or (number is not None and found[0] != number):
                return  # no such stream, or deleted (and perhaps created again) while it was read
            number, header = found
            end = StreamID(*min(end, header.last))
            if start > end:
                return
            if reverse:
                _collect_backward(txn, number, header, start, end, node_count, state)
            else:
                _collect_forward(txn, number, header, start, end, node_count, state)
        while state.blocks:
            entries = _decoded(state.blocks, name, start, end, remaining, reverse)
            if encoding is not None:
                into_texts(entries, encoding, UNDECODABLE, None)
            yield from entries
            if remaining >= 0:
                remaining -= len(entries)
                if remaining <= 0:
                    return
        if not state.more:
            return
        node_count = min(node_count * 2, _MOST_NODES)


class Place:
    """Where reads of new entries have come to: the last one's ID, and the walk over its node. A hint, and no state.

    It counts only for a read that goes on behind ``last``; entries that come behind it are in its node, or behind that.
    While the stream's header stays as it is, so does the node: a change of any node changes the header.
    """

    __slots__ = ("header", "key", "last", "listpack", "value", "walk")

    def __init__(self) -> None:
        self.key: bytes = b""  # of the node; empty where that is not known
        self.last: tuple[int, int] = (0, 0)
        self.value: bytes | None = None  # the node's block as it was, verified; and the header's record then
        self.header: bytes | None = None
        self.listpack: bytes = b""
        self.walk: decode.Walk | None = None


def read_on(txn: RaxTransaction, number: int, header: StreamHeader, last: tuple[int, int], count: int | None,
            place: Place, stored: bytes | None) -> list[Entry]:
    """Live entries behind ``last``, at most ``count``, in one transaction. ``place`` moves behind the last of these.

    ``stored``: the header's record, as this transaction has it.
    """
    start = make_id(*last).next()
    found: list[Entry] = []
    key = place.key
    value = None
    if key and place.last == last:
        value = txn.get(key) if place.value is None or stored is None or stored != place.header else place.value
    if value is not None:
        ms, seq = records.node_id(key)
        try:
            if value is not place.value:
                place.listpack, place.value = records.open_block(key, value)[1], value
            place.header = stored
            limit = -1 if count is None else count
            found, place.walk = decode.read_on(place.listpack, ms, seq, *start, limit, place.walk)
        except CorruptionError as error:
            raise located(error, shown(header.name), ms, seq) from None
        if found:
            place.last = found[-1].id
            if len(found) == count or found[-1].id >= header.last:
                return found
            start, count = found[-1].id.next(), None if count is None else count - len(found)
    more = read_now(txn, number, header, start, count, place)
    if more:
        place.last = more[-1].id
    return found + more


def read_now(txn: RaxTransaction, number: int, header: StreamHeader, start: StreamID, count: int | None,
             place: Place | None = None) -> list[Entry]:
    """Live entries with ID >= start, at most ``count``, in one transaction. ``place`` is set to the last node."""
    remaining = -1 if count is None else min(count, sys.maxsize)
    node_count = 2 if count is not None and count <= 200 else _MOST_NODES
    end = make_id(*header.last)
    found: list[Entry] = []
    state = _Chunk()
    while remaining and start <= end:
        _collect_forward(txn, number, header, start, end, node_count, state)
        while state.blocks:
            key = state.blocks[0][0]
            entries = _decoded(state.blocks, header.name, start, end, remaining, False)
            found += entries
            if place is not None and entries:
                place.key, place.value, place.walk = key, None, None
            if remaining > 0:
                remaining -= len(entries)
                if not remaining:
                    return found
        if not state.more:
            break
    return found


def _decoded(blocks: list[tuple[bytes, bytes, records.BlockHeader]], name: bytes, start: StreamID, end: StreamID,
             limit: int, reverse: bool) -> list[Entry]:
    """The entries of the first block, which leaves the list: a large one is not kept until they are used."""
    key, value, head = blocks.pop(0)
    ms, seq = records.node_id(key)
    try:
        listpack = records.listpack_of(key, value, head)
        del value
        return decode.decode(listpack, ms, seq, *start, *end, limit, reverse)
    except CorruptionError as error:
        raise located(error, shown(name), ms, seq) from None


def _collect_forward(txn: RaxTransaction, number: int, header: StreamHeader, start: StreamID, end: StreamID,
                     limit: int, state: _Chunk) -> None:
    prefix = keys.family(number, keys.NODE)
    rax = Rax(txn, prefix)
    nodes = rax.iterator()
    stop = bytes(end)
    if state.last_key is not None:
        # What was last may have been freed, or grown, since the chunk before.
        found = nodes.seek("<=", state.last_key)
        state.expected = end_of(_checked(nodes, header)) if found else None
        found = nodes.seek(">", state.last_key)
        if state.expected is None:  # all up to there must have been trimmed since
            require_head(header, nodes.key() if found else None, StreamID.from_bytes(state.last_key))
    else:
        found = nodes.seek("<=", bytes(start)) or nodes.seek("^")
        require_head(header, nodes.key() if found else None, start)
    while found and (key := nodes.key()) <= stop:
        if len(state.blocks) == limit:
            state.more = True
            return
        head = _checked(nodes, header)
        if state.expected is not None and head.ordinal != state.expected and not _is_first(txn, prefix, key):
            _require_dead(txn, number, header, state.expected, head.ordinal)
        state.expected = end_of(head)
        state.last_key = key
        state.blocks.append((nodes.here, nodes.value(), head))
        found = nodes.next()
    state.more = False
    if state.expected is not None and state.last_key is not None:
        require_neighbour(txn, number, header, state.last_key, state.expected, end)


def _collect_backward(txn: RaxTransaction, number: int, header: StreamHeader, start: StreamID, end: StreamID,
                      limit: int, state: _Chunk) -> None:
    prefix = keys.family(number, keys.NODE)
    nodes = Rax(txn, prefix).iterator()
    if state.last_key is not None:
        state.expected = _next_ordinal(nodes, header, ">=", state.last_key, end)
        found = nodes.seek("<", state.last_key)
    else:
        state.expected = _next_ordinal(nodes, header, ">", bytes(end), end)
        found = nodes.seek("<=", bytes(end))
    while found:
        if len(state.blocks) == limit:
            state.more = True
            return
        head = _checked(nodes, header)
        if state.expected is not None:
            _require_dead(txn, number, header, end_of(head), state.expected)
        state.expected = head.ordinal
        state.last_key = nodes.key()
        state.blocks.append((nodes.here, nodes.value(), head))
        if state.last_key <= bytes(start):
            break
        found = nodes.prev()
    state.more = False
    if not found and header.first <= end:
        require_head(header, state.last_key, start)


def end_of(head: records.BlockHeader) -> int:
    """The ordinal behind a node's last."""
    return head.ordinal + head.span


def require_head(header: StreamHeader | Extent, key: bytes | None, start: tuple[int, int]) -> None:
    """The first node read, ``key``, must reach back to ``start``, or to the stream's first entry."""
    if header.length and (key is None or key > pack_id(*max(start, header.first))):
        raise CorruptionError(
            f"the node of the first entry, {StreamID(*header.first)}, or one behind it is missing",
            stream=shown(header.name),
        )


def require_neighbour(txn: RaxTransaction, number: int, header: StreamHeader | Extent, key: bytes, end: int,
                      upto: tuple[int, int]) -> None:
    """The ordinals of the node ``key`` end before ``end``: the node behind it must go on there.

    ``upto`` is the greatest ID asked for. Where the node behind is damaged its key may be wrong, and
    entries asked for may lie in it: CorruptionError, unless it begins right behind ``upto``.
    """
    nodes = Rax(txn, keys.family(number, keys.NODE)).iterator()
    behind = _next_ordinal(nodes, header, ">", key, upto)
    if not nodes.eof and nodes.key() <= pack_id(*upto):
        raise CorruptionError(
            f"the node {StreamID.from_bytes(nodes.key())} is there, and a scan did not come to it",
            stream=shown(header.name),
        )
    if behind is not None:
        _require_dead(txn, number, header, end, behind)


def require_absent(txn: RaxTransaction, number: int, header: StreamHeader, sid: tuple[int, int]) -> None:
    """An entry was not found: CorruptionError where its node may be missing, or damaged."""
    if not header.length or not header.first <= sid <= header.last:
        return
    prefix = keys.family(number, keys.NODE)
    leaf = Rax(txn, prefix).floor(pack_id(*sid))
    if leaf is None:
        require_head(header, None, sid)
        return
    key = prefix + leaf[0]
    ms, seq = records.node_id(key)
    head, listpack = records.open_block(key, leaf[1])
    if sid > decode.last_entry_id(listpack, ms, seq):
        require_neighbour(txn, number, header, leaf[0], end_of(head), sid)
    elif decode.decode(listpack, ms, seq, *sid, *sid, 1, False):
        # In a damaged page LMDB's way to a key depends on where its cursor stood before.
        raise CorruptionError(
            f"a look-up did not find the entry {make_id(*sid)}, and it is there",
            stream=shown(header.name), node=f"{ms}-{seq}",
        )


def _next_ordinal(nodes: LogCursor, header: StreamHeader | Extent, op: str, key: bytes,
                  upto: tuple[int, int]) -> int | None:
    """The first ordinal of the node that a seek leads to, or of the entry to come where there is
    none; None where the node is damaged and holds nothing up to ``upto`` all the same."""
    if not nodes.seek(op, key):
        return header.next_ordinal
    try:
        return _checked(nodes, header).ordinal
    except CorruptionError:
        if upto >= header.last or nodes.key() != bytes(make_id(*upto).next()):
            raise
        return None


def _checked(nodes: LogCursor, header: StreamHeader | Extent) -> records.BlockHeader:
    try:
        return records.block_header(nodes.here, nodes.value())
    except CorruptionError as error:
        raise located(error, shown(header.name), *records.node_id(nodes.here)) from None


def _is_first(txn: RaxTransaction, prefix: bytes, key: bytes) -> bool:
    found = Rax(txn, prefix).first()
    return found is not None and found[0] == key


def _require_dead(txn: RaxTransaction, number: int, header: StreamHeader | Extent, start: int, stop: int) -> None:
    """Ordinals start..stop have no node: right only if all of them are marked deleted."""
    if start != stop and (stop < start or DeadCounts(txn, number).dead_between(start, stop) != stop - start):
        raise CorruptionError(
            f"the entries with ordinals {start} to {stop - 1} should be there and are not",
            stream=shown(header.name),
        )


def get(source: Source, name: bytes, sid: StreamID, number: int | None) -> Entry | None:
    """The live entry with exactly this ID, or None. One seek and one node decoded."""
    with source.read() as txn:
        found = headers.find(txn, name, number)
        if found is None:
            return None
        number, header = found
        prefix = keys.family(number, keys.NODE)
        leaf = Rax(txn, prefix).floor(bytes(sid))
        if leaf is None:
            if sid >= header.first:
                require_head(header, None, sid)
            return None
        place, value = leaf
        key = prefix + place
        ms, seq = records.node_id(key)
        try:
            head, listpack = records.open_block(key, value)
            del leaf, value
            entries = decode.decode(listpack, ms, seq, *sid, *sid, 1, False)
            if not entries and header.last >= sid > decode.last_entry_id(listpack, ms, seq):
                require_neighbour(txn, number, header, place, end_of(head), sid)
        except CorruptionError as error:
            raise located(error, shown(name), ms, seq) from None
    return entries[0] if entries else None


def look_up(txn: RaxTransaction, number: int, header: StreamHeader, ids: list[tuple[int, int]],
            bare: bool) -> dict[tuple[int, int], Entry | None]:
    """entries_at() for IDs in any order. CorruptionError where a node of one that is not found may be missing."""
    unique = sorted(set(ids))
    prefix = keys.family(number, keys.NODE)
    found = entries_at(Rax(txn, prefix), prefix, header.name, unique, bare)
    for sid in unique:
        if sid not in found:
            require_absent(txn, number, header, sid)
    return found


def by_node(nodes: Rax, ids: list[tuple[int, int]]) -> Iterator[tuple[bytes, bytes, list[tuple[int, int]]]]:
    """Each node that may hold some of the IDs, which ascend, with those IDs. Two seeks a node, whatever it holds."""
    place = nodes.iterator()
    start = 0
    while start < len(ids):
        found = place.seek("<=", pack_id(*ids[start]))
        key, value = place.item()
        following = place.next() if found else place.seek("^")
        end = bisect_left(ids, unpack_id(place.key()), start) if following else len(ids)
        if end == start:
            raise CorruptionError(
                f"a look-up of the entry {make_id(*ids[start])} ends before the node that begins at or before it",
                node=str(StreamID.from_bytes(place.key())),
            )
        if found:
            yield key, value, ids[start:end]
        start = end


def entries_at(nodes: Rax, prefix: bytes, name: bytes, ids: list[tuple[int, int]],
               bare: bool = False) -> dict[tuple[int, int], Entry | None]:
    """The live entries with these IDs, which ascend. A node is read once.

    Others between them may be in the answer. ``bare`` decodes no entry: each is None.
    """
    found: dict[tuple[int, int], Entry | None] = {}
    for leaf, value, wanted in by_node(nodes, ids):
        key = prefix + leaf
        ms, seq = records.node_id(key)
        span = *wanted[0], *wanted[-1]
        try:
            listpack = records.open_block(key, value)[1]
            if bare:
                found.update(dict.fromkeys(decode.live_ids(listpack, ms, seq, *span)))
            else:
                found.update({(e.ms, e.seq): e for e in decode.decode(listpack, ms, seq, *span, -1, False)})
        except CorruptionError as error:
            raise located(error, shown(name), ms, seq) from None
    return found
