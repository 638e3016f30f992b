"""The figures of a group, of its pending entries, and of its consumers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Literal, NamedTuple, TypeVar

from ...storage.figures import Figures
from ...storage.format import keys
from ...storage.trees.rax import Rax, RaxTransaction
from ..entries import header as headers
from ..node.arguments import Text, text_of
from ..node.stream_id import StreamID, make_id, now_ms, time_at
from . import deliver, parking
from .deliver import Delivered
from .state import UNKNOWN, GroupState, Limits

LimitedBy = Literal["max_in_flight", "rate", "max_parked"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pending(Figures):
    """One pending entry. A released one has no consumer and no idle time; nor has one that is parked for its key."""

    id: StreamID
    consumer: Text | None
    idle: float | None  # seconds since the delivery
    deliveries: int
    parked: bool = False


@dataclass(frozen=True, slots=True)
class Autoclaimed(Figures, Generic[T]):
    """What autoclaim() has done: from where to go on (0-0: that was the end), what was claimed, and what was gone."""

    cursor: StreamID
    entries: Delivered[T]  # by autoclaim_ids() their IDs
    deleted: list[StreamID]  # no longer in the stream, and removed from the pending list


@dataclass(frozen=True, slots=True)
class PendingSummary(Figures):
    """How many pending entries a group has, the first and last ID, how many each consumer has, how many are parked."""

    total: int
    first: StreamID | None
    last: StreamID | None
    consumers: dict[Text, int]
    parked: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerInfo(Figures):
    """One consumer: its pending entries, and when it last called (read, claimed, …) and last received an entry."""

    name: Text
    pending: int
    seen: datetime
    active: datetime | None  # None if it never got anything


@dataclass(frozen=True, slots=True)
class GroupInfo(Figures):
    """One group, as in XINFO GROUPS. ``lag`` is exact; ``redis_lag`` is that of Redis, None if Redis cannot know it.

    ``gone``: how many pending entries were found to be no longer in the stream, and left the pending list.
    ``max_in_flight``, ``rate``, ``burst``, ``key``, ``per_key``, ``order``, ``max_parked``: its limits, None where it
    has none; see Group.configure(). ``held``: how many entries its consumers hold, None without max_in_flight.
    ``limited_by``: the limit that holds back what there is to deliver, "max_in_flight", "rate" or "max_parked"; None if
    none does, or it is paused. ``limited_until``: when the rate goes on. ``parked``: how many entries wait for their
    keys. ``stopped_by``: the key for which the group reads no further, as ``max_parked`` are. ``rate_key``: the field
    that the rate is by.
    """

    name: Text
    consumers: int
    pending: int
    last_delivered_id: StreamID
    entries_read: int | None
    lag: int
    redis_lag: int | None
    gone: int
    max_in_flight: int | None
    rate: tuple[int, float] | None
    burst: int | None
    held: int | None
    limited_by: LimitedBy | None
    limited_until: datetime | None
    key: Text | None
    per_key: int | None
    order: bool | None
    max_parked: int | None
    parked: int
    stopped_by: Text | None
    rate_key: Text | None


class LimitFigures(NamedTuple):
    """The last figures of a GroupInfo."""

    max_in_flight: int | None = None
    rate: tuple[int, float] | None = None
    burst: int | None = None
    held: int | None = None
    limited_by: LimitedBy | None = None
    limited_until: datetime | None = None
    key: Text | None = None
    per_key: int | None = None
    order: bool | None = None
    max_parked: int | None = None
    parked: int = 0
    stopped_by: Text | None = None
    rate_key: Text | None = None


_UNLIMITED = LimitFigures()


def describe_group(txn: RaxTransaction, state: GroupState, number: int, header: headers.StreamHeader,
                   encoding: str | None) -> GroupInfo:
    """The figures of one group."""
    lag = deliver.lag(txn, header, state)
    return GroupInfo(
        text_of(state.name, encoding),
        Rax(txn, keys.group_family(state.number, keys.CONSUMER, state.group)).numele,  # 0.3 µs each
        state.pending,
        make_id(*state.last),
        None if state.entries_read == UNKNOWN else state.entries_read,
        lag,
        deliver.redis_lag(header, state),
        state.gone,
        *describe_limits(txn, state, header, lag, now_ms(), encoding),
    )


def describe_limits(txn: RaxTransaction, state: GroupState, header: headers.StreamHeader, lag: int, now: int,
                    encoding: str | None) -> LimitFigures:
    """The limits of a group with that lag. Reads its consumers where it has max_in_flight, and nothing without limits.

    What waits for a retry that is not due is not held back; nor is anything of a group that is paused.
    """
    limits, key = state.limits or Limits(), state.key_limit
    if state.limits is None and key is None:
        return _UNLIMITED
    room = state.room(txn)
    held = None if room is None else limits.max_in_flight - room
    of = key.limits(0) if key is not None and key.many else limits
    rate = (of.many, of.window / 1000) if of.many else None
    figures = LimitFigures(limits.max_in_flight or None, rate, of.burst if of.many else None, held)
    stopped_by, _ = deliver.stopped_by(txn, header, state)
    if key is not None:
        field = text_of(key.field, encoding)
        figures = figures._replace(
            key=field if key.per_key else None, per_key=key.per_key or None, order=key.order if key.per_key else None,
            max_parked=key.max_parked, parked=key.parked, rate_key=field if key.many else None,
            stopped_by=None if stopped_by is None else text_of(stopped_by, encoding))
    turn = None if key is None or not key.many or lag or state.paused > now else parking.next_turn(txn, state, 1)
    if turn is not None and turn > now:
        return figures._replace(limited_by="rate", limited_until=time_at(turn))
    retry = None if lag else state.pel(txn).next_due()
    if state.paused > now or not (lag or (retry is not None and retry <= now)):
        return figures
    if room is not None and room <= 0:
        return figures._replace(limited_by="max_in_flight")
    if stopped_by is not None:
        return figures._replace(limited_by="max_parked")
    turn = limits.next_time(now)
    return figures._replace(limited_by="rate", limited_until=time_at(turn)) if turn > now else figures
