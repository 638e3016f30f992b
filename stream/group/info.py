"""What a group tells of itself: its pending entries, its consumers, its figures."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..entries import header as headers
from ..node.names import text_of
from ..node.stream_id import StreamID, make_id
from . import deliver
from .state import UNKNOWN, GroupState


class Pending(NamedTuple):
    """One pending entry. A released one has no consumer and no idle time."""

    id: StreamID
    consumer: Any
    idle: float | None
    deliveries: int


class PendingSummary(NamedTuple):
    """A group's pending entries in sum: how many, from where to where, with whom."""

    total: int
    first: StreamID | None
    last: StreamID | None
    consumers: dict[Any, int]


class ConsumerInfo(NamedTuple):
    """One consumer: its pending entries, seconds since it last tried and last got something."""

    name: Any
    pending: int
    idle: float
    inactive: float | None


class GroupInfo(NamedTuple):
    """One group, as XINFO GROUPS tells of it; the lag is always known here."""

    name: Any
    consumers: int
    pending: int
    last_delivered_id: StreamID
    entries_read: int | None
    lag: int


def describe_group(txn: Any, state: GroupState, number: int, header: headers.StreamHeader,
                   encoding: str | None) -> GroupInfo:
    """The figures of one group."""
    return GroupInfo(
        text_of(state.name, encoding),
        state.count_consumers(txn),
        state.pending,
        make_id(*state.last),
        None if state.entries_read == UNKNOWN else state.entries_read,
        deliver.lag(txn, number, header, state.last, state.subjects),
    )
