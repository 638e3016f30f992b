"""The figures of a stream: XINFO STREAM with our own added, XINFO STREAM FULL, and what other calls return.

    FullInfo ── stream    a StreamInfo: the figures of XINFO STREAM
             ├─ entries   the first ``count``               all of one state of the stream
             └─ groups ── GroupDetail ── pending_entries  the first ``count``, with their consumers
                                      └─ consumers ── ConsumerDetail ── pending_entries   the same, of one consumer
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Protocol

from ..storage.errors import CorruptionError, NoStream
from ..storage.figures import Figures
from ..storage.format import keys, records
from ..storage.trees.rax import Rax, RaxTransaction
from .entries import header as headers
from .entries.header import shown
from .entries.idempotent import MAX_WINDOW, remembered
from .entries.range_read import read_range
from .entries.retention import Retention
from .entries.session import Handle, SnapshotSource, Source
from .group import deliver
from .group.state import UNKNOWN, UNOWNED, GroupState, SeenTimes, all_groups
from .node.arguments import Text, text_of, whole
from .node.entry import UNDECODABLE, Entry
from .node.stream_id import StreamID, make_id, time_at

_CODECS = {records.RAW: "none", records.ZSTD: "zstd"}
COUNT = 10  # entries, and pending entries of each list, as in Redis


@dataclass(frozen=True, slots=True)
class StreamInfo(Figures):
    """A stream at one moment. The figures from ``length`` to ``last_entry`` are those of XINFO STREAM."""

    name: Text
    length: int  # live entries
    radix_tree_keys: int  # nodes
    radix_tree_nodes: int | None  # nodes of the rax, inner ones included; None where they were not counted
    last_generated_id: StreamID
    max_deleted_entry_id: StreamID
    entries_added: int
    recorded_first_entry_id: StreamID
    groups: int
    first_entry: Entry | None
    last_entry: Entry | None
    next_ordinal: int  # entries really ever added, whatever set_id made of entries_added
    node_bytes: int  # page rule: what a block fills, or more to fill its pages; Redis' rule: node_max_bytes
    node_rule: str  # "page" or "redis"
    node_max_entries: int
    compression: str
    schema: dict[str, str]  # the types of fields
    schema_checked: bool
    retention: Retention | None  # None: everything is kept
    deferred: int  # entries to come
    next_due: datetime | None  # when the first of them does
    schedules: int
    codec: str  # of values
    idempotence_window: int  # seconds: how long idempotent IDs are remembered at least
    idempotence_cap: int | None  # how many of each producer at most; None: no cap
    remembered: int  # of all producers, with those that can be forgotten


@dataclass(frozen=True, slots=True)
class PendingDetail(Figures):
    """One pending entry. A released one has no consumer and no time of delivery."""

    id: StreamID
    consumer: Text | None
    delivered: datetime | None
    deliveries: int


@dataclass(frozen=True, slots=True)
class ConsumerDetail(Figures):
    """One consumer: when it last called and last received an entry, and its unacknowledged entries."""

    name: Text
    seen: datetime
    active: datetime | None  # None if it never got anything
    pending: int
    pending_entries: list[PendingDetail]  # the first of them


@dataclass(frozen=True, slots=True)
class GroupDetail(Figures):
    """One group with its pending entries and its consumers."""

    name: Text
    last_delivered_id: StreamID
    entries_read: int | None
    lag: int  # exact
    redis_lag: int | None  # as Redis counts it; None where it cannot know
    pending: int
    released: int  # of those: given back, and with no consumer
    subjects: list[str]  # the patterns it is filtered by; none: it gets every entry
    pending_entries: list[PendingDetail]  # the first of them
    consumers: list[ConsumerDetail]


@dataclass(frozen=True, slots=True)
class FullInfo(Figures):
    """A stream with its first entries and its groups."""

    stream: StreamInfo
    entries: list[Entry]
    groups: list[GroupDetail]


@dataclass(frozen=True, slots=True)
class Configured(Figures):
    """What configure() has changed: the new values; None for a setting that is as it was. True if there is any.

    A retention that was removed is one without rules, a schema one without fields.
    """

    compression: str | None = None
    node_max_bytes: int | None = None
    node_max_entries: int | None = None
    idempotence_window: int | None = None
    idempotence_cap: int | None = None
    schema: dict[str, str] | None = None
    schema_checked: bool | None = None
    retention: Retention | None = None
    codec: str | None = None

    def __bool__(self) -> bool:
        return self != Configured()

    def to_dict(self) -> dict[str, object]:
        """What has changed by name; of the retention the rules that are set."""
        return {name: value for name, value in Figures.to_dict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class Maintenance(Figures):
    """What maintain() has done. ``freed``: how many entries went, by stream, where any did."""

    freed: dict[Text, int]


@dataclass(frozen=True, slots=True)
class Part(Figures):
    """A range of IDs, both ends included, and how many live entries it holds."""

    start: StreamID
    end: StreamID
    entries: int


def describe(source: Source, name: bytes, number: int | None, encoding: str | None) -> StreamInfo | None:
    """The figures of a stream, None if there is none."""
    with source.read() as txn:
        found = headers.find(txn, name, number)
        return None if found is None else _describe(SnapshotSource(source.env, txn), txn, name, *found, encoding)


def _describe(snapshot: SnapshotSource, txn: RaxTransaction, name: bytes, number: int, header: headers.StreamHeader,
              encoding: str | None, full: bool = False) -> StreamInfo:
    """The figures of a stream, all of this transaction. With ``full`` the keys of all nodes are walked once."""
    inner = None
    if full:
        nodes = Rax(txn, keys.family(number, keys.NODE))
        inner, leaves = nodes.numnodes, nodes.numele
        if leaves != header.leaves:
            raise CorruptionError(f"{header.leaves} nodes should be there and {leaves} are", stream=shown(name))
    everything = (snapshot, name, StreamID.MIN, StreamID.MAX, 1)
    first = next(iter(read_range(*everything, False, encoding)), None)
    last = next(iter(read_range(*everything, True, encoding)), None)
    limits = header.limits
    return StreamInfo(
        name=text_of(name, encoding),
        length=header.length,
        radix_tree_keys=header.leaves,
        radix_tree_nodes=inner,
        last_generated_id=make_id(*header.last),
        max_deleted_entry_id=make_id(*header.max_deleted),
        entries_added=header.entries_added,
        recorded_first_entry_id=make_id(*header.first),
        groups=header.groups,
        first_entry=first,
        last_entry=last,
        next_ordinal=header.next_ordinal,
        node_bytes=limits.page_bytes if limits.max_bytes is None else limits.max_bytes,
        node_rule="page" if limits.max_bytes is None else "redis",
        node_max_entries=limits.max_entries,
        compression=_CODECS[limits.codec],
        schema={} if header.schema is None else header.schema.fields,
        schema_checked=header.schema is not None and header.schema.checked,
        retention=None if header.retention is None else Retention(*header.retention),
        deferred=header.deferred,
        next_due=time_at(header.due) if header.deferred else None,
        schedules=Rax(txn, keys.family(number, keys.SCHEDULE)).numele if header.next_deferred else 0,  # 0.3 µs each
        codec=header.codec,
        idempotence_window=header.idempotence[0] or MAX_WINDOW,
        idempotence_cap=header.idempotence[1] or None,
        remembered=remembered(txn, number),
    )


def describe_fully(source: Source, name: bytes, number: int | None, encoding: str | None,
                   count: int | None) -> FullInfo | None:
    """A stream with its first entries and its groups, all of one state; None if there is none."""
    whole("count", count, 0, none="; 0 and None are for all")
    with source.read() as txn:
        found = headers.find(txn, name, number)
        if found is None:
            return None
        snapshot = SnapshotSource(source.env, txn)
        figures = _describe(snapshot, txn, name, *found, encoding, full=True)
        entries = list(read_range(snapshot, name, StreamID.MIN, StreamID.MAX, count or None, False, encoding))
        times = source.env.attached(SeenTimes)
        groups = [_group_detail(txn, state, *found, count or None, encoding, times)
                  for state in all_groups(txn, *found)]
    return FullInfo(figures, entries, sorted(groups, key=attrgetter("name")))


def _group_detail(txn: RaxTransaction, state: GroupState, number: int, header: headers.StreamHeader,
                  limit: int | None, encoding: str | None, times: SeenTimes) -> GroupDetail:
    """One group, in one transaction; ``limit`` pending entries of each list."""
    members = state.consumers(txn)
    times.refresh(state.number, state.group, members)
    names: dict[int, Text | None] = {UNOWNED: None} | {row.number: text_of(row.name, encoding) for row in members}

    def pending(total: int, consumer: int | None) -> list[PendingDetail]:
        wanted = total if limit is None else min(total, limit)
        rows: list[PendingDetail] = []
        if wanted:
            for sid, nack in state.pel(txn).scan(StreamID.MIN, StreamID.MAX, consumer):
                if nack.consumer not in names:
                    raise CorruptionError(
                        f"group {shown(state.name)} names consumer no. {nack.consumer}, which is not there"
                    )
                delivered = None if nack.consumer == UNOWNED else time_at(nack.time)
                rows.append(PendingDetail(make_id(*sid), names[nack.consumer], delivered, nack.count))
                if len(rows) == wanted:
                    break
        if len(rows) != wanted:
            raise CorruptionError(
                f"group {shown(state.name)} has fewer pending entries than the {total} it counts: some are lost"
            )
        return rows

    consumers = [
        ConsumerDetail(
            text_of(member.name, encoding), time_at(member.seen), None if member.active < 0 else time_at(member.active),
            member.pending, pending(member.pending, member.number),
        )
        for member in members
    ]
    return GroupDetail(
        text_of(state.name, encoding),
        make_id(*state.last),
        None if state.entries_read == UNKNOWN else state.entries_read,
        deliver.lag(txn, header, state),
        deliver.redis_lag(header, state),
        state.pending,
        state.pending - sum(consumer.pending for consumer in consumers),
        [pattern.decode("utf-8", UNDECODABLE) for pattern in state.subjects],
        pending(state.pending, None),
        consumers,
    )


# -- what drawings are made of --------------------------------------------------------------


class _Stream(Handle, Protocol):
    _name: bytes


def header_of(stream: _Stream) -> headers.StreamHeader | None:
    """The stream's own record, for figures that must not cost a walk. None where there is no stream."""
    with stream._source.read() as txn:
        found = headers.find(txn, stream._name)
    return None if found is None else found[1]


def count_rax(stream: _Stream) -> int:
    """The nodes of that radix tree, inner ones included, counted by walking the keys of all nodes. NoStream."""
    with stream._source.read() as txn:
        return Rax(txn, _nodes_prefix(txn, stream)).numnodes


def draw_rax(stream: _Stream) -> str:
    """The radix tree over the master IDs of the stream's nodes, as raxShow draws it. NoStream."""
    with stream._source.read() as txn:
        return Rax(txn, _nodes_prefix(txn, stream)).show()


def stored_node(stream: _Stream, id: StreamID) -> tuple[bytes, bytes] | None:
    """The node that holds an ID, or would: its key and its block as stored, unchecked. NoStream.

    None where every node begins behind the ID.
    """
    with stream._source.read() as txn:
        prefix = _nodes_prefix(txn, stream)
        leaf = Rax(txn, prefix).floor(bytes(id))
        return None if leaf is None else (prefix + leaf[0], bytes(leaf[1]))


def _nodes_prefix(txn: RaxTransaction, stream: _Stream) -> bytes:
    found = headers.find(txn, stream._name)
    if found is None:
        raise NoStream(f"there is no stream {shown(stream._name)} in {stream._source.env.path}")
    return keys.family(found[0], keys.NODE)
