"""All that XINFO STREAM FULL tells of a stream: its figures, its first entries, its groups from within.

    FullInfo ── stream    the figures of XINFO STREAM               (info.py)
             ├─ entries   the first ``count``
             └─ groups ── GroupDetail ── pending      the first ``count``, with their consumers
                                      └─ consumers ── ConsumerDetail ── pending   the same, one's own
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ..storage.errors import CorruptionError
from .entries import header as headers
from .entries.header import shown
from .entries.range_read import read_range
from .entries.session import Source
from .group import deliver
from .group.seen_times import SeenTimes, seen_times_of
from .group.state import NOBODY, UNKNOWN, GroupState, all_groups
from .info import StreamInfo, describe
from .node.clock import whole
from .node.entry import UNDECODABLE, Entry
from .node.names import text_of
from .node.stream_id import StreamID, make_id

COUNT = 10  # entries, and pending entries of each list, as in Redis


class PendingDetail(NamedTuple):
    """One pending entry. A released one has no consumer and no time of delivery."""

    id: StreamID
    consumer: Any
    delivered: float | None  # Unix time, seconds
    deliveries: int


class ConsumerDetail(NamedTuple):
    """One consumer: when it last tried and last got something, and what it has not acknowledged."""

    name: Any
    seen: float  # Unix time, seconds
    active: float | None  # the same; None if it never got anything
    pel_count: int
    pending: list[PendingDetail]


class GroupDetail(NamedTuple):
    """One group with its pending entries and its consumers."""

    name: Any
    last_delivered_id: StreamID
    entries_read: int | None
    lag: int
    pel_count: int
    nacked_count: int  # of those: given back, and nobody's
    subjects: list[str]  # the patterns it is filtered by; none: it is given everything
    pending: list[PendingDetail]
    consumers: list[ConsumerDetail]


class FullInfo(NamedTuple):
    """A stream with its first entries and its groups."""

    stream: StreamInfo
    entries: list[Entry]
    groups: list[GroupDetail]

    def as_dict(self) -> dict[str, Any]:
        """Everything under the names XINFO STREAM FULL uses where it has one, for printing as JSON."""
        figures = self.stream.as_dict()
        del figures["first-entry"], figures["last-entry"]  # FULL has the entries instead
        told = [
            _named(group) | {
                "pending": list(map(_named, group.pending)),
                "consumers": [
                    _named(one) | {"pending": list(map(_named, one.pending))} for one in group.consumers
                ],
            }
            for group in self.groups
        ]  # fmt: skip
        return figures | {"entries": self.entries, "groups": told}


def _named(row: Any) -> dict[str, Any]:
    return {_NAMES.get(name) or name.replace("_", "-"): value for name, value in row._asdict().items()}


_NAMES = {"seen": "seen-time", "active": "active-time", "delivered": "delivery-time"}


def describe_fully(source: Source, name: bytes, number: int | None, encoding: str | None,
                   count: int | None) -> FullInfo | None:
    """A stream with its first entries and its groups, None if there is none.

    Entries and figures are of one state within a transaction only; each group always is.
    """
    whole("count", count, 0, none="; 0 and None are for all")
    figures = describe(source, name, number, encoding, full=True)
    if figures is None:
        return None
    entries = list(read_range(source, name, StreamID.MIN, StreamID.MAX, count or None, False, encoding))
    with source.read() as txn:
        found = headers.find(txn, name, number)
        if found is None:
            return None  # deleted since
        times = seen_times_of(source.env)
        groups = [_Teller(txn, state, count or None, encoding, times).group(*found)
                  for state in all_groups(txn, *found)]
    return FullInfo(figures, entries, sorted(groups, key=lambda group: group.name))


class _Teller:
    """Tells of one group, in one transaction."""

    def __init__(self, txn: Any, state: GroupState, most: int | None, encoding: str | None, times: SeenTimes) -> None:
        self._txn = txn
        self._state = state
        self._most = most
        self._encoding = encoding
        self._members = state.consumers(txn)
        times.show(state.number, state.group, self._members)
        self._consumers = {NOBODY: None} | {one.number: text_of(one.name, encoding) for one in self._members}

    def group(self, number: int, header: headers.StreamHeader) -> GroupDetail:
        state = self._state
        consumers = [
            ConsumerDetail(
                text_of(one.name, self._encoding), one.seen / 1000, None if one.active < 0 else one.active / 1000,
                one.pending, self._pending(one.pending, one.number),
            )
            for one in self._members
        ]
        return GroupDetail(
            text_of(state.name, self._encoding),
            make_id(*state.last),
            None if state.entries_read == UNKNOWN else state.entries_read,
            deliver.lag(self._txn, number, header, state.last, state.subjects),
            state.pending,
            state.pending - sum(one.pel_count for one in consumers),
            [pattern.decode("utf-8", UNDECODABLE) for pattern in state.subjects],
            self._pending(state.pending, None),
            consumers,
        )

    def _pending(self, held: int, consumer: int | None) -> list[PendingDetail]:
        wanted = held if self._most is None else min(held, self._most)
        rows = list(self._rows(wanted, consumer))
        if len(rows) != wanted:
            raise CorruptionError(
                f"group {shown(self._state.name)} has fewer pending entries than the {held} it counts: some are lost"
            )
        return rows

    def _rows(self, wanted: int, consumer: int | None) -> Iterator[PendingDetail]:
        if not wanted:
            return
        for left, (sid, nack) in enumerate(
            self._state.pel(self._txn).scan(StreamID.MIN, StreamID.MAX, consumer), 1 - wanted
        ):
            if nack.consumer not in self._consumers:
                raise CorruptionError(
                    f"group {shown(self._state.name)} names consumer no. {nack.consumer}, which is not there"
                )
            delivered = None if nack.consumer == NOBODY else nack.time / 1000
            yield PendingDetail(make_id(*sid), self._consumers[nack.consumer], delivered, nack.count)
            if not left:
                return
