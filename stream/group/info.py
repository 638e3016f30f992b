"""The figures of a group, of its pending entries, and of its consumers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from ...storage.figures import Figures
from ...storage.format import keys
from ...storage.trees.rax import Rax, RaxTransaction
from ..entries import header as headers
from ..node.arguments import Text, text_of
from ..node.stream_id import StreamID, make_id
from . import deliver
from .deliver import Delivered
from .state import UNKNOWN, GroupState, Limits

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pending(Figures):
    """One pending entry. A released one has no consumer and no idle time."""

    id: StreamID
    consumer: Text | None
    idle: float | None  # seconds since the delivery
    deliveries: int


@dataclass(frozen=True, slots=True)
class Autoclaimed(Figures, Generic[T]):
    """What autoclaim() has done: from where to go on (0-0: that was the end), what was claimed, and what was gone."""

    cursor: StreamID
    entries: Delivered[T]  # by autoclaim_ids() their IDs
    deleted: list[StreamID]  # no longer in the stream, and removed from the pending list


@dataclass(frozen=True, slots=True)
class PendingSummary(Figures):
    """How many pending entries a group has, the first and the last ID, and how many each consumer has."""

    total: int
    first: StreamID | None
    last: StreamID | None
    consumers: dict[Text, int]


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
    ``max_in_flight``, ``rate`` and ``burst``: its limits, None where it has none; see Group.configure().
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


def describe_group(txn: RaxTransaction, state: GroupState, number: int, header: headers.StreamHeader,
                   encoding: str | None) -> GroupInfo:
    """The figures of one group."""
    limits = state.limits or Limits()
    return GroupInfo(
        text_of(state.name, encoding),
        Rax(txn, keys.group_family(state.number, keys.CONSUMER, state.group)).numele,  # 0.3 µs each
        state.pending,
        make_id(*state.last),
        None if state.entries_read == UNKNOWN else state.entries_read,
        deliver.lag(txn, header, state),
        deliver.redis_lag(header, state),
        state.gone,
        limits.max_in_flight or None,
        (limits.many, limits.window / 1000) if limits.many else None,
        limits.burst if limits.many else None,
    )
