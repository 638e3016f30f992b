"""The schedules of a stream, as records: each defers its next tick, and the commit that appends that defers the next.

    n  29  name   ->  [definition, last, [nominal, due, number]]      the tick, nil while it is paused
                                             │     └──────┴── the deferred entry that it is (deferred.py)
                                             └── its time by the timetable; due is later by a jitter

    definition    [[name, value, …], cron, every, tz, coalesce, grace, jitter], times in ms

An entry that a tick has become begins with the field ``$entry``, a JSON object with its nominal time. Which ticks are
appended late, after all processes have stood still, or are not, is decided here: see ScheduleState.pick().
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from xxhash import xxh3_64_intdigest

from ...storage.errors import CorruptionError
from ...storage.format import keys, records
from ...storage.log.transaction import WriteTransaction
from ...storage.trees.rax import RaxTransaction
from ..node.entry import OWN_FIELD
from ..node.timetable import DAY, Timetable
from .header import shown

BACK = DAY  # a clock that is behind the time of a planning by more has been wrong: until then ticks just come late


class Definition(NamedTuple):
    """What a schedule was made of. Two that are equal make the same ticks."""

    flat: list[bytes]
    cron: str | None
    every: int
    tz: str
    coalesce: str
    grace: int | None
    jitter: int


class Tick(NamedTuple):
    """The next tick, and which of the deferred entries it is."""

    nominal: int
    due: int
    number: int


@dataclass(slots=True)
class ScheduleState:
    """One schedule as it is worked on in memory."""

    name: bytes
    definition: Definition
    last: int | None = None  # the nominal time appended last
    tick: Tick | None = None

    @property
    def timetable(self) -> Timetable:
        """When its ticks are."""
        return Timetable(self.definition.cron, self.definition.every, self.definition.tz)

    @property
    def nominal(self) -> int:
        """The nominal time of the next tick, where there is one."""
        return 0 if self.tick is None else self.tick.nominal

    def from_now(self, now: int) -> int:
        """The nominal time of the first tick of one that is made, changed or resumed now. Never."""
        return self.timetable.following(now, now)

    def due(self, nominal: int) -> int:
        """When a tick is appended: behind its nominal time by the jitter, which any process finds the same."""
        digest = xxh3_64_intdigest(self.name + nominal.to_bytes(8, "big"))
        return nominal + digest % (self.definition.jitter + 1)

    def pick(self, nominal: int, now: int, most: int) -> tuple[list[int], int]:
        """Of the ticks due by ``now``, from one on: those to append, up to so many; and the one that comes then. Never.

        Those that are later than the grace are passed over first.
        """
        following, (*_, coalesce, grace, jitter) = self.timetable.following, self.definition
        if grace is not None and self.due(nominal) < now - grace:
            nominal = following(nominal, max(nominal, now - grace - jitter - 1))
            while self.due(nominal) < now - grace:
                nominal = following(nominal, nominal)
        picked: list[int] = []
        if coalesce == "all":
            while len(picked) < most and self.due(nominal) <= now:
                picked.append(nominal)
                nominal = following(nominal, nominal)
            return picked, nominal
        if self.due(nominal) > now:
            return picked, nominal
        latest = self.timetable.last(nominal, now - jitter)
        while self.due(then := following(latest, latest)) <= now:
            latest = then
        return [latest if coalesce == "latest" else nominal], then

    def entry(self, nominal: int) -> list[bytes]:
        """The fields of a tick."""
        return [OWN_FIELD, b'{"scheduled":%d}' % nominal, *self.definition.flat]

    def row(self) -> list[Any]:
        """The record's row."""
        return [list(self.definition), self.last, self.tick and list(self.tick)]

    @classmethod
    def from_row(cls, name: bytes, row: list[Any]) -> ScheduleState:
        """The inverse of row()."""
        return cls(name, Definition(*row[0]), row[1], row[2] and Tick(*row[2]))


def key_of(number: int, name: bytes) -> bytes:
    """The key of a schedule's record."""
    return keys.family(number, keys.SCHEDULE) + name


def load(txn: RaxTransaction, number: int, name: bytes) -> ScheduleState | None:
    """The schedule of that name; None if there is none."""
    key = key_of(number, name)
    value = txn.get(key)
    return None if value is None else ScheduleState.from_row(name, records.unseal(key, value))


def of_tick(txn: RaxTransaction, number: int, name: bytes, due: int, place: int) -> ScheduleState:
    """The schedule whose tick a deferred entry is. CorruptionError."""
    schedule = load(txn, number, name)
    if schedule is None or schedule.tick is None or schedule.tick[1:] != (due, place):
        raise CorruptionError(f"the entry deferred to {due} ms, no. {place}, is not the tick of schedule {shown(name)}")
    return schedule


def put(txn: WriteTransaction, number: int, schedule: ScheduleState) -> None:
    """Write its record."""
    key = key_of(number, schedule.name)
    txn.put(key, records.seal(key, schedule.row()))
