"""The summary of a store: its streams and groups as a manifest lists them, from one read transaction.

Costs a few look-ups a stream and a group, and for the points one select() each (20 to 85 µs).
"""

from __future__ import annotations

from typing import Any

from ...storage.errors import CorruptionError
from ...storage.format import block, keys
from ...storage.trees.rax import Rax
from ...stream.entries import header as headers
from ...stream.entries.count import Counter
from ...stream.entries.header import StreamHeader
from ...stream.group.info import describe_group
from ...stream.group.state import GroupState, groups
from ...stream.node.stream_id import make_id
from .manifest import MOST_POINTS, GroupSummary, StreamSummary

LEAST_EVERY = 1000  # live entries from one point to the next


def streams_of(txn: Any, node_bytes: dict[int, int]) -> tuple[StreamSummary, ...]:
    """All streams in the order of their names. ``node_bytes``: of the blocks, by stream number."""
    found = []
    for name, _ in Rax(txn, keys.NAMES).items():
        number = headers.number_of(txn, name)
        header = None if number is None else headers.load(txn, number)
        if number is None or header is None:
            raise CorruptionError("the stream's header is missing", stream=headers.shown(name))
        found.append(_summary(txn, number, header, node_bytes.get(number, 0)))
    return tuple(found)


def _summary(txn: Any, number: int, header: StreamHeader, size: int) -> StreamSummary:
    counter = Counter(txn, number, header)
    length = header.length
    every = max(LEAST_EVERY, -(-length // MOST_POINTS))
    return StreamSummary(
        name=header.name,
        number=number,
        length=length,
        first=make_id(*header.first) if length else None,
        last=counter.select(length - 1) if length else None,
        last_generated=make_id(*header.last),
        entries_added=header.entries_added,
        base=_base(txn, number, header),
        next_ordinal=header.next_ordinal,
        nodes=header.leaves,
        bytes=size,
        every=every,
        points=tuple(counter.select(k) for k in range(every, length, every)),
        groups=tuple(_group(txn, number, header, state) for state in groups(txn, number)),
    )


def _base(txn: Any, number: int, header: StreamHeader) -> int:
    prefix = keys.family(number, keys.NODE)
    first = Rax(txn, prefix).first()
    return header.next_ordinal if first is None else block.header(prefix + first[0], first[1]).ordinal


def _group(txn: Any, number: int, header: StreamHeader, state: GroupState) -> GroupSummary:
    told = describe_group(txn, state, number, header, None)
    return GroupSummary(
        name=state.name, last_delivered=make_id(*state.last), entries_read=told.entries_read,
        pending=told.pending, consumers=told.consumers, lag=told.lag,
    )
