"""The figures of a group, of its pending entries, and of its consumers."""

from __future__ import annotations

from dataclasses import dataclass

from ...storage.figures import Figures
from ...storage.format import keys
from ...storage.trees.rax import Rax, RaxTransaction
from ..entries import header as headers
from ..node.arguments import Text, text_of
from ..node.stream_id import StreamID, make_id
from . import deliver
from .state import UNKNOWN, GroupState


@dataclass(frozen=True, slots=True)
class Pending(Figures):
    """One pending entry. A released one has no consumer and no idle time."""

    id: StreamID
    consumer: Text | None
    idle: float | None
    deliveries: int


@dataclass(frozen=True, slots=True)
class PendingSummary(Figures):
    """How many pending entries a group has, the first and the last ID, and how many each consumer has."""

    total: int
    first: StreamID | None
    last: StreamID | None
    consumers: dict[Text, int]


@dataclass(frozen=True, slots=True)
class ConsumerInfo(Figures):
    """One consumer: its pending entries, and the seconds since it last tried to read and last received an entry."""

    name: Text
    pending: int
    idle: float
    inactive: float | None


@dataclass(frozen=True, slots=True)
class GroupInfo(Figures):
    """One group, as in XINFO GROUPS. ``lag`` is exact; ``redis_lag`` is that of Redis, None if Redis cannot know it.

    ``gone``: how many pending entries were found to be no longer in the stream, and left the pending list.
    """

    name: Text
    consumers: int
    pending: int
    last_delivered_id: StreamID
    entries_read: int | None
    lag: int
    redis_lag: int | None
    gone: int


def describe_group(txn: RaxTransaction, state: GroupState, number: int, header: headers.StreamHeader,
                   encoding: str | None) -> GroupInfo:
    """The figures of one group."""
    return GroupInfo(
        text_of(state.name, encoding),
        Rax(txn, keys.group_family(state.number, keys.CONSUMER, state.group)).numele,  # 0.3 µs each
        state.pending,
        make_id(*state.last),
        None if state.entries_read == UNKNOWN else state.entries_read,
        deliver.lag(txn, number, header, state.last, state.subjects),
        deliver.redis_lag(header, state),
        state.gone,
    )
