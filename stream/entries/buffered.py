"""What is buffered: appends as they wait for their commit, stream by stream.

    Head of "orders"    base 5-3 │ Run 7-0, 7-1, 7-2 │ Step 9-1 │ Run 9-2 …       items of one batch

An item is applied in a transaction to a stream that is as it was when its IDs were given out
from memory, so it gets the same ones; whether it did is looked at each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ...storage.commit.write_transaction import WriteTransaction
from ...storage.engine.environment import Environment
from ...storage.errors import AppendsLost, Lost
from ..node.stream_id import NewID, StreamID, make_id
from . import writer
from .header import NodeLimits, shown

_SHOWN = 5  # streams named in a message


class Run:
    """Appends of one millisecond to one stream with ``*`` as their ID: the kernel fills nodes with them."""

    __slots__ = ("entries", "limits", "ms", "name", "now", "seq")

    def __init__(self, name: bytes, limits: NodeLimits, now: int, first: tuple[int, int], flat: list[bytes]) -> None:
        self.name = name
        self.limits = limits
        self.now = now
        self.ms, self.seq = first
        self.entries = [flat]  # the n-th has the ID ms, seq + n

    @property
    def first(self) -> tuple[int, int]:
        """The first ID."""
        return self.ms, self.seq

    @property
    def last(self) -> tuple[int, int]:
        """The last ID."""
        return self.ms, self.seq + len(self.entries) - 1

    def apply(self, txn: WriteTransaction) -> bool:
        """Append them. Whether they got the IDs that were given out."""
        stream = writer.ensure(txn, self.name, self.limits)
        ids = stream.extend(txn, self.now, self.entries)
        return (ids[0], ids[-1]) == (self.first, self.last)


class Step:
    """Any other append: several entries, IDs of the caller's own, a trim behind it."""

    __slots__ = ("entries", "name", "now", "operation")

    def __init__(self, name: bytes, operation: Callable[[WriteTransaction], Any], ids: list[StreamID]) -> None:
        self.name = name
        self.operation = operation
        self.now = -1  # nothing can be added to it
        self.entries = ids

    @property
    def first(self) -> tuple[int, int]:
        """The first ID."""
        return self.entries[0]

    @property
    def last(self) -> tuple[int, int]:
        """The last ID."""
        return self.entries[-1]

    def apply(self, txn: WriteTransaction) -> bool:
        """Do as the call would have done. Whether it got the IDs that were given out."""
        done = self.operation(txn)
        return (done if isinstance(done, list) else [done]) == self.entries


class Head:
    """A stream as it will be once all that is buffered has been committed.

    Its last ID is that of the last item, so an append is done, or not, by one step: the item's
    entering the list, or the entry's entering the item.
    """

    __slots__ = ("base", "batch", "exists", "items", "stream")

    def __init__(self, stream: writer.StreamWriter, exists: bool) -> None:
        self.stream = stream  # used for its IDs only
        self.base = stream.header.last  # the last ID before the items
        self.exists = exists
        self.items: list[Run | Step] = []
        self.batch = 0  # the batch that the items are of

    def next_id(self, new: NewID, now: int) -> tuple[int, int]:
        """The ID of an append behind the last item. IDTooSmall, StreamExhausted."""
        self.stream.header.last = self.items[-1].last if self.items else self.base
        return self.stream.next_id(new, now)

    def next_ids(self, news: Iterable[NewID], now: int) -> list[StreamID]:
        """The IDs of several appends."""
        header = self.stream.header
        header.last = self.items[-1].last if self.items else self.base
        ids = []
        for new in news:
            header.last = last = self.stream.next_id(new, now)
            ids.append(make_id(*last))
        return ids


def lost_of(items: Iterable[Run | Step]) -> tuple[Lost, ...]:
    """The items as AppendsLost tells of them: one Lost for each stream."""
    lost: dict[bytes, Lost] = {}
    for item in items:
        before = lost.get(item.name)
        first, entries = (item.first, 0) if before is None else (before.first, before.entries)
        lost[item.name] = Lost(item.name, first, item.last, entries + len(item.entries))
    return tuple(lost.values())


def told(env: Environment, lost: tuple[Lost, ...], cause: BaseException, visible: bool) -> AppendsLost:
    """The error that tells of a loss."""
    total = sum(part.entries for part in lost)
    parts = [f"{part.entries} to {shown(part.stream)}, {make_id(*part.first)} to {make_id(*part.last)}"
             for part in lost[:_SHOWN]]
    more = f"; and to {len(lost) - _SHOWN} more streams" if len(lost) > _SHOWN else ""
    fate = "may be lost: those that can be read may not survive a power cut" if visible else "could not be committed"
    error = AppendsLost(
        f"{total} buffered append{'s' * (total != 1)} to {env.path} {fate} ({'; '.join(parts)}{more}): {cause} "
        "Nothing more is taken until store.flush() has raised this; append them again after it, if need be.",
        lost, visible,
    )
    error.__cause__ = cause
    return error


def again(failure: AppendsLost) -> AppendsLost:
    """The same error for another caller: an exception of its own, with its own traceback."""
    error = AppendsLost(str(failure), failure.lost, failure.visible)
    error.__cause__ = failure.__cause__
    return error
