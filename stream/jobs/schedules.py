"""Schedules as their users hold them: made by Stream.schedule(), which explains them.

    schedule ──> definition, and its first tick deferred ── due ──> an entry, and the next tick deferred

Ticks are appended as deferred entries are (deferred.py), by whichever process comes first; entries/schedules.py has the
records, and which ticks those are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Literal, TypeVar

from ...storage.errors import InvalidArgument, InvalidFields, InvalidName, NoSchedule
from ...storage.figures import Figures
from ...storage.format import keys, records
from ...storage.log.transaction import WriteTransaction
from ...storage.trees.rax import Rax
from ..entries import deferred, writer
from ..entries import header as headers
from ..entries import schedules as rows
from ..entries.header import NodeLimits, shown
from ..entries.schedules import Definition, ScheduleState
from ..entries.session import Source
from ..entries.writer import StreamWriter
from ..node.arguments import Name, Text, duration_ms, member_name, text_of
from ..node.decode import flatten
from ..node.entry import SUBJECT_FIELD, Entry, FieldText
from ..node.stream_id import AUTO, StreamID, make_id, now_ms, time_at
from ..node.timetable import HOUR, Never, parse_timetable
from .deferred import LATEST

Coalesce = Literal["latest", "earliest", "all"]
T = TypeVar("T")

MAX_SCHEDULE_NAME = 400
_AT_ONCE = 1000  # schedules read in a transaction
_GIVEN = 10**11  # ms since 1970, in 1973: the clock makes no smaller ID


@dataclass(frozen=True, slots=True)
class Schedule(Figures):
    """One schedule of a stream, as Stream.schedules() found it. Times are in UTC.

    ``next``  the nominal time of the next tick; None while it is paused
    ``last``  that of the tick appended last; None if there was none
    """

    name: Text
    next: datetime | None
    last: datetime | None
    paused: bool
    cron: str | None
    every: float | None  # seconds, in place of cron
    tz: str
    coalesce: str
    misfire_grace: float | None
    jitter: float
    fields: dict[FieldText, FieldText]  # of each entry


def define(source: Source, stream: bytes, limits: NodeLimits, encoding: str | None, name: Name, fields: Any,
           codec: str | None, cron: str | None, every: float | None, tz: str, coalesce: Coalesce,
           misfire_grace: float | None, jitter: float) -> Schedule:
    """Stream.schedule()."""
    raw = _name(name)
    timetable = parse_timetable(cron, every, tz)
    if coalesce not in ("latest", "earliest", "all"):
        raise InvalidArgument(f"coalesce={coalesce!r:.60} is unknown; it is 'latest', 'earliest' or 'all'")
    grace = None if misfire_grace is None else duration_ms("misfire_grace", misfire_grace)
    if grace == 0:
        raise InvalidArgument("misfire_grace=0 drops all ticks: it is the seconds by which one may be late, or None")
    delay, most = duration_ms("jitter", jitter), timetable.every or HOUR
    if delay > most:
        raise InvalidArgument(f"jitter={jitter!r} is more than {most / 1000:g} s: the interval, or an hour beside cron")
    definition = Definition(flatten(fields), *timetable, coalesce, grace, delay)
    if definition.flat[0] == SUBJECT_FIELD:
        raise InvalidFields("a schedule's entries have no subject: their first field says their time, so it cannot be "
                            "$subject")
    state = ScheduleState(raw, definition)
    if _first(state, now_ms()) + delay > LATEST:
        raise InvalidArgument("the first tick of that schedule lies beyond the year 9999")

    def operation(txn: WriteTransaction) -> ScheduleState:
        now = now_ms()
        located = writer.locate(txn, stream)
        if located is not None and 0 < located.header.last[0] < _GIVEN:
            last = make_id(*located.header.last)
            raise InvalidArgument(f"stream {shown(stream)} has IDs that were given to it, up to {last}: ticks get IDs "
                                  "of the clock, and smaller ones are refused after them. Schedule in another stream")
        located = located or writer.create(txn, stream, limits)
        known = rows.load(txn, located.number, raw)
        if known is not None and known.definition == definition:
            return known
        located.require_values((definition.flat,))
        located.next_id(AUTO, now)
        had = located.header.next_ordinal
        located.changed(txn)
        state = ScheduleState(raw, definition, None if known is None else known.last)
        is_paused = known is not None and known.tick is None
        if known is not None:
            deferred.unplan(txn, located, known)
        if is_paused:
            rows.put(txn, located.number, state)
        else:
            deferred.plan(txn, located, state, _first(state, now), now)
        located.header.begin_codec(codec, had)
        return state

    return _shown(source.submit(operation), encoding)


def read_schedules(source: Source, stream: bytes, encoding: str | None) -> Iterator[Schedule]:
    """Stream.schedules()."""
    after, number = b"", None
    while True:
        with source.read() as txn:
            found = headers.find(txn, stream, number)
            if found is None or number not in (None, found[0]):
                return
            number = found[0]
            prefix = keys.family(number, keys.SCHEDULE)
            some = [ScheduleState.from_row(name, records.unseal(prefix + name, value))
                    for name, value in islice(Rax(txn, prefix).items(after), _AT_ONCE)]
        yield from (_shown(state, encoding) for state in some)
        if len(some) < _AT_ONCE:
            return
        after = some[-1].name + b"\0"


def pause(source: Source, stream: bytes, name: Name) -> bool:
    """Stream.pause_schedule()."""

    def operation(txn: WriteTransaction, located: StreamWriter, state: ScheduleState) -> bool:
        if state.tick is None:
            return False
        located.changed(txn)
        deferred.unplan(txn, located, state)
        rows.put(txn, located.number, state)
        return True

    return _submit(source, stream, name, operation)


def resume(source: Source, stream: bytes, name: Name) -> bool:
    """Stream.resume_schedule()."""

    def operation(txn: WriteTransaction, located: StreamWriter, state: ScheduleState) -> bool:
        if state.tick is not None:
            return False
        now = now_ms()
        nominal = _first(state, now)
        located.changed(txn)
        deferred.plan(txn, located, state, nominal, now)
        return True

    return _submit(source, stream, name, operation)


def remove(source: Source, stream: bytes, name: Name) -> bool:
    """Stream.remove_schedule()."""
    raw = _name(name)

    def operation(txn: WriteTransaction) -> bool:
        located = writer.locate(txn, stream)
        state = None if located is None else rows.load(txn, located.number, raw)
        if located is None or state is None:
            return False
        located.changed(txn)
        deferred.unplan(txn, located, state)
        return txn.delete(rows.key_of(located.number, raw))

    return source.submit(operation)


def run(source: Source, stream: bytes, name: Name) -> StreamID:
    """Stream.run_schedule()."""

    def operation(txn: WriteTransaction, located: StreamWriter, state: ScheduleState) -> StreamID:
        now = now_ms()
        sid = located.append(txn, AUTO, now, state.entry(now))
        writer.after_append(txn, located, now)
        return sid

    return _submit(source, stream, name, operation)


def _submit(source: Source, stream: bytes, name: Name,
            operation: Callable[[WriteTransaction, StreamWriter, ScheduleState], T]) -> T:
    """Work on the schedule of that name in a commit. NoSchedule."""
    raw = _name(name)

    def work(txn: WriteTransaction) -> T:
        located = writer.locate(txn, stream)
        state = None if located is None else rows.load(txn, located.number, raw)
        if located is None or state is None:
            raise NoSchedule(f"stream {shown(stream)} has no schedule {shown(raw)}. Make it with schedule(), and see "
                             "schedules() for those that it has.")
        return operation(txn, located, state)

    return source.submit(work)


def _name(name: Name) -> bytes:
    """A schedule's name. InvalidName."""
    raw = member_name(name, "schedule")
    if not 0 < len(raw) <= MAX_SCHEDULE_NAME:
        raise InvalidName(f"the schedule name {raw[:20]!r} has {len(raw)} bytes, not 1 to {MAX_SCHEDULE_NAME}")
    return raw


def _first(state: ScheduleState, now: int) -> int:
    """The first nominal time behind now. InvalidArgument where it cannot be found."""
    try:
        return state.from_now(now)
    except Never as error:
        raise InvalidArgument(f"schedule {shown(state.name)} cannot be planned: {error}") from None


def _shown(state: ScheduleState, encoding: str | None) -> Schedule:
    flat, cron, every, tz, coalesce, grace, jitter = state.definition
    next, last = (None if ms is None else time_at(ms) for ms in (state.tick and state.tick.nominal, state.last))
    texts = [text_of(text, encoding) for text in flat]
    return Schedule(
        text_of(state.name, encoding), next, last, state.tick is None,
        cron, every / 1000 if cron is None else None, tz, coalesce, None if grace is None else grace / 1000,
        jitter / 1000, Entry(0, 0, list(zip(texts[::2], texts[1::2], strict=True))).fields)
