"""Dump and restore: a stream of the store as a payload (payload.py), and a payload as a stream.

    nodes     byte for byte, in both directions         groups, consumers, pending entries: with their times and counts
    counters  as Redis has them                         remembered appends: read only

A payload is looked through before anything is written: each node as by the check, each pending entry for its owner.
What Redis does not have (schema, retention, deferred entries, subjects of groups, what they have cancelled) is not in
a payload. A released entry is in types before 27 pending with the consumer "", delivered in 1970, so that any consumer
can claim it at once.
"""

from __future__ import annotations

from ...storage.errors import CorruptionError, InvalidDump, StreamExists
from ...storage.format import keys, records
from ...storage.log.transaction import WriteTransaction
from ...storage.trees.ordinals import EVERY, DeadCounts, OrdinalIndex
from ...storage.trees.rax import Rax, RaxTransaction
from ..entries import header as headers
from ..entries import writer
from ..entries.header import NodeLimits, shown
from ..entries.idempotent import MAX_CAP, MAX_WINDOW, REDIS, Memory
from ..entries.session import Source
from ..entries.writer import StreamWriter
from ..group.deliver import MOST_DELIVERIES, estimate
from ..group.state import UNOWNED, GroupState, SeenTimes, all_groups, create_group
from ..node import decode
from ..node.arguments import member_name
from ..node.stream_id import StreamID, make_id, now_ms, unpack_id
from ..sweep import doom_stream
from .payload import ID, DumpedConsumer, DumpedGroup, DumpedPending, DumpedStream, read, version_of, written

_NO_CONSUMER = b""  # of released entries, where a payload has no other place for them


def dump(source: Source, name: bytes, redis_version: str) -> bytes | None:
    """The payload of a stream; None if there is none. CorruptionError at a damaged node, or where one is missing."""
    kind, version = version_of(redis_version)
    with source.read() as txn:
        found = headers.find(txn, name)
        if found is None:
            return None
        number, header = found
        prefix = keys.family(number, keys.NODE)
        nodes = []
        live = leaves = 0
        for key, value in Rax(txn, prefix).items():
            head, listpack = records.open_block(prefix + key, bytes(value))
            live += head.live
            leaves += 1
            if head.live:
                nodes.append((bytes(key), listpack))
        if leaves != header.leaves or live != header.length:
            raise CorruptionError(f"{leaves} nodes with {live} entries are there, {header.leaves} with {header.length} "
                                  "should be", stream=shown(name))
        states = sorted(all_groups(txn, number, header), key=lambda state: state.name)
        times = source.env.attached(SeenTimes)
        groups = [_dumped_group(txn, state, times) for state in states]
    stream = DumpedStream(nodes, live, header.last, header.max_deleted, header.entries_added, groups, None, [])
    return written(stream, header.first, kind, version)


def _dumped_group(txn: RaxTransaction, state: GroupState, times: SeenTimes) -> DumpedGroup:
    members = state.consumers(txn)
    times.refresh(state.number, state.group, members)
    pending: dict[int, list[ID]] = {number: [] for number in (UNOWNED, *(member.number for member in members))}
    rows = []
    for sid, nack in state.pel(txn).scan(StreamID.MIN, StreamID.MAX):
        pending[nack.consumer].append(sid)
        rows.append(DumpedPending(sid, nack.time if nack.consumer else 0, nack.count))
    if len(rows) != state.pending:
        raise CorruptionError(f"group {shown(state.name)} has {len(rows)} pending entries and counts {state.pending}")
    consumers = [DumpedConsumer(member.name, member.seen, member.active, pending[member.number]) for member in members]
    if pending[UNOWNED]:
        if not consumers or consumers[0].name != _NO_CONSUMER:
            consumers.insert(0, DumpedConsumer(_NO_CONSUMER, 0, -1, []))
        consumers[0] = consumers[0]._replace(pending=sorted(consumers[0].pending + pending[UNOWNED]))
    return DumpedGroup(state.name, state.last, state.entries_read, rows, consumers, [])


def restore(source: Source, name: bytes, payload: bytes, limits: NodeLimits, replace: bool) -> None:
    """Make a stream of a payload: in one commit, or not at all. DumpChecksum, InvalidDump, StreamExists."""
    stream = read(payload)
    shapes = _checked_nodes(stream)
    for group in stream.groups:
        _require_owners(group)
    if len({group.name for group in stream.groups}) < len(stream.groups):
        raise InvalidDump("the payload has two groups of one name")

    def operation(txn: WriteTransaction) -> None:
        if replace:
            doom_stream(txn, name)
        elif writer.locate(txn, name) is not None:
            raise StreamExists(f"there is a stream {shown(name)} already. Pass replace=True, or delete it first.")
        made = writer.create(txn, name, limits)
        _put_nodes(txn, made, stream, shapes)
        header = made.header
        header.length, header.last = stream.length, stream.last
        header.max_deleted = stream.max_deleted or (0, 0)
        header.entries_added = stream.length if stream.entries_added is None else stream.entries_added
        for group in stream.groups:
            _put_group(txn, made, group)
        if stream.idempotence not in (None, REDIS):  # what every stream has there is no setting
            header.idempotence = stream.idempotence
        for producer in stream.producers:
            memory = Memory(txn, made, producer.name, by_redis=True)
            for iid, sid in producer.appends:
                memory.remember(iid, make_id(*sid), now_ms())

    source.submit(operation)


_Shape = tuple[int, int, ID]  # of a node: live entries, deleted ones, the last ID


def _checked_nodes(stream: DumpedStream) -> list[_Shape]:
    """The nodes' shapes. InvalidDump for one that is not valid, and for counters that contradict them."""
    shapes: list[_Shape] = []
    last = (0, 0)
    for key, listpack in stream.nodes:
        if len(key) != 16:
            raise InvalidDump(f"a node's key has {len(key)} bytes, and not 16")
        ms, seq = unpack_id(key)
        try:
            live, dead, *end = decode.validate_node(listpack, ms, seq)
            first = decode.first_live(listpack, ms, seq)
        except CorruptionError as error:
            raise InvalidDump(f"the node {ms}-{seq} is not valid: it {error.what}") from None
        if ((ms, seq) <= last and shapes) or first is None or first == (0, 0):
            raise InvalidDump(f"the node {ms}-{seq} is not in its place, or has no entries")
        last = (end[0], end[1])
        shapes.append((live, dead, last))
    if sum(live for live, _, _ in shapes) != stream.length or last > stream.last:
        raise InvalidDump(f"the counters do not fit the nodes: {stream.length} entries up to {make_id(*stream.last)}")
    if (stream.max_deleted or (0, 0)) > stream.last or (stream.entries_added or 0) >= 1 << 63:
        raise InvalidDump("the greatest deleted ID is behind the last, or the number of entries added is no number")
    window, cap = stream.idempotence or (1, 1)
    if not (1 <= window <= MAX_WINDOW and 1 <= cap <= MAX_CAP):
        raise InvalidDump(f"appends are remembered for {window} s and {cap} a producer, which is too long, or too many")
    return shapes


def _require_owners(group: DumpedGroup) -> None:
    """InvalidDump unless each pending entry has one owner, or has been released."""
    pending = {row.id for row in group.pending}
    owned = [sid for consumer in group.consumers for sid in consumer.pending] + group.released
    names = {consumer.name for consumer in group.consumers}
    if (len(pending) != len(group.pending) or len(set(owned)) != len(owned) or pending != set(owned)
            or len(names) != len(group.consumers)):
        raise InvalidDump(f"the pending entries of group {shown(group.name)} and those of its consumers differ")
    for name in (group.name, *names):
        member_name(name, "group or consumer")
    if any(row.time < 0 for row in group.pending) or any(row.seen < 0 or row.active < -1 for row in group.consumers):
        raise InvalidDump(f"group {shown(group.name)} has a time before 1970")


def _put_nodes(txn: WriteTransaction, made: StreamWriter, stream: DumpedStream, shapes: list[_Shape]) -> None:
    header = made.header
    marks, index = DeadCounts(txn, made.number), OrdinalIndex(txn, made.number)
    ordinal = 0
    for place, ((key, listpack), (live, dead, _)) in enumerate(zip(stream.nodes, shapes, strict=True)):
        codec = header.limits.codec if place + 1 < len(shapes) else records.RAW  # the tail is never packed
        block = records.encode_block(made.nodes_prefix + key, listpack, ordinal, live + dead, live, codec)
        txn.put(made.nodes_prefix + key, block)
        header.stored_bytes += len(block)
        if place % EVERY == 0:
            index.note(ordinal, *unpack_id(key))
        if place and dead:  # the first node's are counted by reading it
            marks.mark_span(ordinal, ordinal + dead)
        ordinal += live + dead
    if shapes:
        header.first = decode.first_live(stream.nodes[0][1], *unpack_id(stream.nodes[0][0])) or (0, 0)
    header.leaves = header.leaves_added = len(shapes)
    header.next_ordinal = ordinal
    made.forget_tail()


def _put_group(txn: WriteTransaction, made: StreamWriter, group: DumpedGroup) -> None:
    read = estimate(made.header, group.last) if group.entries_read is None else group.entries_read
    state = create_group(txn, made, group.name, group.last, read)
    rows = {row.id: row for row in group.pending}
    owned = []
    for one in group.consumers:
        consumer = state.ensure_consumer(txn, one.name, one.seen)
        consumer.active = one.active
        owned += [(sid, consumer.number, rows[sid].time, min(rows[sid].count, MOST_DELIVERIES)) for sid in one.pending]
        if one.pending:
            state.count_pending(txn, consumer.number, len(one.pending))
    state.pel(txn).set(owned)
    if group.released:
        state.pel(txn).release([(sid, min(rows[sid].count, MOST_DELIVERIES), 0) for sid in group.released], insert=True)
        state.count_pending(txn, UNOWNED, len(group.released))
