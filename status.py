"""The status of a store: one picture of everything that an operator watches, taken in one read transaction.

    Status ── streams ── StreamStatus ── groups ── GroupStatus ── consumers ── ConsumerStatus
           │                          └─ schedules ── ScheduleStatus
           ├─ subscriptions, and the processes that listen
           ├─ readers
           └─ file, room on the disk, last commit, versions

Records are read, and of a group two nodes at most, for its lag: the cost is that of the streams, groups and consumers,
whatever they hold; of dead letters, which say whose they are, those that have come since this process counted them
last, or all (4 µs each) where some are gone since; of schedules, which are counted (0.3 µs each), those that are listed
(7 µs each). What cannot be read is named in ``damaged``, and the rest is there. A status that is asked for again, with
nothing committed since, has the streams of the one before.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, cast

from .index.pubsub.leases import Leases, owners_in
from .index.subjects import sublist
from .storage import clocks
from .storage.engine.environment import Environment
from .storage.errors import CorruptionError, InvalidArgument
from .storage.figures import Figures, Reader
from .storage.format import keys, records
from .storage.trees.rax import Rax, RaxTransaction
from .storage.versions import versions
from .stream.entries import header as headers
from .stream.entries.count import Counter
from .stream.entries.schedules import ScheduleState
from .stream.entries.session import SnapshotSource, Source
from .stream.group import deliver
from .stream.group.dead_letters import DeadLetters
from .stream.group.info import LimitedBy, describe_limits
from .stream.group.state import GroupState, SeenTimes, all_groups
from .stream.node.arguments import Text, text_of
from .stream.node.stream_id import StreamID, make_id, time_at

_SCHEDULES = 1000  # of a stream that are listed


@dataclass(frozen=True, slots=True)
class ConsumerStatus(Figures):
    """A consumer, or a worker's lane."""

    name: Text
    pending: int
    oldest_pending: float  # seconds since its first was delivered, or its lease on that renewed; 0 if it has none
    seen: datetime  # when it last called; of other processes up to 5 s old
    active: datetime | None  # when it last got something; None for never


@dataclass(frozen=True, slots=True)
class GroupStatus(Figures):
    """A consumer group."""

    name: Text
    lag: int  # entries not delivered yet; where ``is_filtered`` those of all subjects, so at most that many
    is_filtered: bool  # the group gets certain subjects only
    last_delivered_id: StreamID
    waiting: float  # seconds since the first entry that is not delivered came, by its ID; 0 if there is none
    pending: int
    released: int  # of those: given back, and with no consumer; without what is parked
    gone: int  # those that were found to be no longer in the stream, and are pending no more
    oldest_pending: float  # seconds since the oldest delivery that is not acknowledged; 0 if there is none
    oldest_deliveries: int  # how often that entry was delivered: 2 or more is a redelivery; 0 if there is none
    paused_until: datetime | None  # None where it delivers; the last moment of the year 9999 for ever
    dead_letters: int  # of the group, in STREAM.GROUP.dead
    max_in_flight: int | None  # its limits, None where it has none: see Group.configure()
    rate: tuple[int, float] | None
    burst: int | None
    held: int | None  # entries that its consumers hold; None without max_in_flight
    limited_by: LimitedBy | None  # the limit that holds back what there is to deliver; None also while it is paused
    limited_until: datetime | None  # when the rate lets the next one through, where it is the rate
    key: Text | None  # the field whose values are its keys
    per_key: int | None
    order: bool | None
    max_parked: int | None
    parked: int  # of the pending entries: those that wait for their keys
    stopped_by: Text | None  # the key for which it reads no further, as ``max_parked`` are
    rate_key: Text | None  # the field whose values have the rate each
    consumers: tuple[ConsumerStatus, ...]


@dataclass(frozen=True, slots=True)
class ScheduleStatus(Figures):
    """A schedule. It is late if ``due`` is before the time of the status."""

    name: Text
    next: datetime | None  # the nominal time of the next tick; None while it is paused
    due: datetime | None  # when that is appended: later by the jitter
    last: datetime | None  # the nominal time of the tick appended last; None if there was none
    paused: bool


@dataclass(frozen=True, slots=True)
class StreamStatus(Figures):
    """A stream."""

    name: Text
    length: int
    nodes: int
    bytes: int  # about: as many nodes as there are, each as large as a full one may get before compression
    added: int  # entries ever appended; see Status.rates()
    last_added: datetime | None  # the time in the last ID; None before the first entry
    deferred: int  # entries to come
    next_due: datetime | None  # when the first of them does
    schedule_count: int
    schedules: tuple[ScheduleStatus, ...]  # the first 1,000 by name
    groups: tuple[GroupStatus, ...]


@dataclass(frozen=True, slots=True)
class Status(Figures):
    """A store at one moment, as Store.status() returns it."""

    path: str
    time: datetime
    commit: int  # the number of the last commit
    last_commit: datetime  # when the files were last written
    streams: tuple[StreamStatus, ...]
    subscriptions: int  # plain ones, members of queue groups, and bindings
    listeners: tuple[int, ...]  # the processes that have live subscriptions
    readers: tuple[Reader, ...]  # the furthest behind first
    file_bytes: int  # what the store's files take on the disk
    free_bytes: int  # room on the disk
    damaged: tuple[str, ...] = field(default=())  # what could not be read, and why
    versions: dict[str, str] = field(default_factory=dict)  # of raxlog, LMDB and Python; the form of the kernels

    def rates(self, earlier: Status) -> dict[Text, float]:
        """Entries appended a second since an earlier status, by stream; 0 for a stream that was made anew."""
        seconds = max((self.time - earlier.time).total_seconds(), 1e-6)
        before = {each.name: each.added for each in earlier.streams}
        return {each.name: max(0, each.added - before.get(each.name, each.added)) / seconds for each in self.streams}


def take(source: Source, encoding: str | None, previous: Status | None) -> Status:
    """The status of a store; ``previous`` is an earlier one of this handle."""
    env = source.env
    readers = tuple(env.readers())  # before the read below, which would be one of them
    damaged: list[str] = []
    size, written = _files(env.path)
    with source.read() as txn:
        ns = clocks.wall_ns()
        now = datetime.fromtimestamp(ns / 1e9, UTC)
        commit: int = cast(Any, txn).id()  # an open store's source has no other
        if previous is not None and (previous.commit, previous.last_commit) == (commit, written):
            streams = tuple(_aged(stream, now - previous.time, now) for stream in previous.streams)
            damaged += previous.damaged
        else:
            streams = _streams(env, txn, encoding, ns // 1_000_000, damaged)
        subscriptions, pids = 0, list[int]()
        try:
            state = sublist.state_of(txn)
            subscriptions = state.plain + state.members
            lives = env.attached(Leases).lives
            pids = sorted({pid for owner, (pid, _) in owners_in(txn).items() if lives(owner)})
        except CorruptionError as error:
            damaged.append(str(error))
    room = os.statvfs(env.path)
    return Status(os.fsdecode(env.path), now, commit, written, streams, subscriptions, tuple(pids), readers, size,
                  room.f_bavail * room.f_frsize, tuple(dict.fromkeys(damaged)), versions())


def _aged(stream: StreamStatus, passed: timedelta, now: datetime) -> StreamStatus:
    """A stream to which nothing has happened for so long."""
    if not stream.groups:
        return stream
    by = passed.total_seconds()
    groups = (replace(
        group, waiting=group.waiting + by if group.lag else 0.0,
        oldest_pending=group.oldest_pending + by if group.oldest_deliveries else 0.0,
        paused_until=None if _is_over(group.paused_until, now) else group.paused_until,
        limited_by=None if _is_over(group.limited_until, now) else group.limited_by,
        limited_until=None if _is_over(group.limited_until, now) else group.limited_until,
        consumers=tuple(replace(member, oldest_pending=member.oldest_pending + by) if member.pending else member
                        for member in group.consumers)) for group in stream.groups)
    return replace(stream, groups=tuple(groups))


def _is_over(until: datetime | None, now: datetime) -> bool:
    return until is not None and until <= now


def _streams(env: Environment, txn: RaxTransaction, encoding: str | None, now: int,
             damaged: list[str]) -> tuple[StreamStatus, ...]:
    found: dict[bytes, tuple[int, headers.StreamHeader]] = {}
    for name in headers.all_names(txn):
        try:
            located = headers.find(txn, name)
        except CorruptionError as error:
            damaged.append(str(error))
            continue
        if located is not None:
            found[name] = located
    times = env.attached(SeenTimes)
    made = []
    for name, (number, header) in found.items():
        groups = list[GroupStatus]()
        if header.groups:
            try:
                for state in all_groups(txn, number, header):
                    letters = _letters(SnapshotSource(env, txn), name, state.name, damaged)
                    groups.append(_group(txn, state, number, header, encoding, now, letters, times))
            except CorruptionError as error:
                damaged.append(str(error))
        limits = header.limits
        made.append(StreamStatus(
            text_of(name, encoding), header.length, header.leaves,
            header.leaves * (limits.page_bytes if limits.max_bytes is None else limits.max_bytes),
            header.next_ordinal, time_at(header.last[0]) if header.next_ordinal else None, header.deferred,
            time_at(header.due) if header.deferred else None, *_schedules(txn, number, header, encoding, damaged),
            tuple(sorted(groups, key=lambda group: str(group.name))),
        ))
    return tuple(made)


def _schedules(txn: RaxTransaction, number: int, header: headers.StreamHeader, encoding: str | None,
               damaged: list[str]) -> tuple[int, tuple[ScheduleStatus, ...]]:
    """How many schedules a stream has, and the first of them. Where no tick was ever deferred there is none."""
    if not header.next_deferred:
        return 0, ()
    prefix = keys.family(number, keys.SCHEDULE)
    family, found = Rax(txn, prefix), list[ScheduleStatus]()
    try:
        for name, value in islice(family.items(), _SCHEDULES):
            state = ScheduleState.from_row(name, records.unseal(prefix + name, value))
            next, due, last = (None if ms is None else time_at(ms) for ms in (
                state.tick and state.tick.nominal, state.tick and state.tick.due, state.last))
            found.append(ScheduleStatus(text_of(name, encoding), next, due, last, state.tick is None))
    except CorruptionError as error:
        damaged.append(str(error))
    return len(found) if len(found) < _SCHEDULES else family.numele, tuple(found)


def _letters(source: Source, stream: bytes, group: bytes, damaged: list[str]) -> int:
    try:
        return len(DeadLetters(source, stream, group, list, None, None))
    except (CorruptionError, InvalidArgument) as error:  # the latter where its stream holds something else
        damaged += [str(error)] * isinstance(error, CorruptionError)
        return 0


def _group(txn: RaxTransaction, state: GroupState, number: int, header: headers.StreamHeader, encoding: str | None,
           now: int, letters: int, times: SeenTimes) -> GroupStatus:
    members = state.consumers(txn)
    times.refresh(state.number, state.group, members)
    idle, deliveries, ages = 0.0, 0, dict[int, float]()
    if state.pending:
        pel = state.pel(txn)
        oldest = next(pel.oldest(now), None)
        if oldest is not None:
            idle, deliveries = max(0, now - oldest[1].time) / 1000, oldest[1].count
        for member in members:
            first = next(pel.scan(StreamID.MIN, StreamID.MAX, member.number), None) if member.pending else None
            ages[member.number] = 0.0 if first is None else max(0, now - first[1].time) / 1000
    lag = deliver.lag(txn, header, state, by_subject=False)
    counter = Counter(txn, number, header)
    waiting = max(0, now - counter.select(counter.rank(make_id(*state.last).next())).ms) / 1000 if lag else 0.0
    limits = describe_limits(txn, state, header, lag, now, encoding)
    return GroupStatus(
        text_of(state.name, encoding), lag, bool(state.subjects), make_id(*state.last), waiting, state.pending,
        state.pending - limits.parked - sum(member.pending for member in members), state.gone, idle, deliveries,
        time_at(state.paused) if state.paused > now else None, letters, *limits,
        tuple(ConsumerStatus(text_of(row.name, encoding), row.pending, ages.get(row.number, 0.0), time_at(row.seen),
                             None if row.active < 0 else time_at(row.active)) for row in members),
    )


def _files(path: Path) -> tuple[int, datetime]:
    """Bytes of all files on the disk, and when the last of them was written. A compaction may remove some meanwhile."""
    size, written = 0, 0.0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                found = os.stat(os.path.join(folder, name))
            except FileNotFoundError:
                continue
            size, written = size + found.st_blocks * 512, max(written, found.st_mtime)
    return size, datetime.fromtimestamp(written, UTC)
