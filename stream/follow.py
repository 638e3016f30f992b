"""A follower: an iterator over a stream's entries as they come, from any process.

    look    entries behind ``after``, up to the stream's last ID at this moment     each is returned
      │ none
    wait    until the stream, or its last ID, is another (group/waiter.py); then look again

``after`` is the ID of the entry returned last, and all that a follower needs to go on elsewhere: another one
that begins there returns what this one would have returned next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, Self

from ..storage import clocks
from ..storage.errors import TransactionError
from ..storage.handles import made_by_a_call
from ..storage.wake.stop import StopFlag, is_stopped
from .entries.header import shown
from .entries.session import Source, StoreSource
from .group.waiter import Condition, Seen, WaitQueues, stream_moves
from .jobs.deferred import release_due
from .node.arguments import duration_ms
from .node.stream_id import IDLike, StreamID, make_id, parse_id
from .node.typed import Entry, V


class Follower(Generic[V]):
    """The iterator that stream.follow() makes and explains. For one thread at a time."""

    __slots__ = ("_entries", "_last", "_name", "_number", "_range", "_source", "_stop", "_timeout", "_waits_for",
                 "after")

    @made_by_a_call
    def __init__(self, source: Source, name: bytes, after: IDLike, timeout: float | None, stop: StopFlag | None,
                 entries: Callable[..., Iterator[Entry[V]]]) -> None:
        if not isinstance(source, StoreSource):
            raise TransactionError("follow() inside a transaction: nothing comes while it is open; follow outside it")
        self._source = source
        self._name = name
        self._timeout = None if timeout is None else duration_ms("timeout", timeout) / 1000
        self._stop = stop
        self._range = entries  # of the handle
        self._entries: Iterator[Entry[V]] | None = None
        self._waits_for: tuple[Seen, float | None] = {}, None  # what it has seen last, and when to look again
        with source.read() as txn:
            seen = stream_moves(txn, name)
        self._number = None if seen is None else seen[0]
        self._last = StreamID.MIN if seen is None else make_id(*seen[1:3])  # of the stream, when last looked at
        self.after: StreamID = self._last if after in ("$", b"$") else parse_id(after, "$, ")

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Entry[V]:
        deadline = None if self._timeout is None else clocks.monotonic() + self._timeout
        while not is_stopped(self._stop):
            has_looked = self._entries is None
            try:
                if has_looked:
                    seen = self._look()
                    due = release_due(self._source, self._name, seen and seen[3])
                    self._waits_for = {Condition(stream_moves, self._name): seen}, due
                for entry in self._entries or ():
                    self.after = entry.id
                    return entry
                if self._entries is not None:
                    self.after = max(self.after, self._last)  # what there was behind it has been deleted
                    self._entries = None
            except BaseException:
                self._entries = None  # the next call reads on behind ``after``
                raise
            if has_looked and not self._source.env.attached(WaitQueues).wait(
                    self._waits_for[0], deadline, self._waits_for[1], stop=self._stop):
                break
        raise StopIteration

    def _look(self) -> tuple[int, int, int, int | None] | None:
        """Begin to read what is behind ``after``, if there is anything; what was seen of the stream."""
        with self._source.read() as txn:
            seen = stream_moves(txn, self._name)
        if seen is not None:
            number, last = seen[0], make_id(*seen[1:3])
            if self._number not in (None, number):
                self.after = StreamID.MIN  # deleted, and created again: all of its entries are new
            elif last < self._last:
                self.after = min(self.after, last)  # set back
            self._number, self._last = number, last
            if self.after < last:
                self._entries = self._range(self.after.next(), last, number=number)
        return seen

    def __repr__(self) -> str:
        return f"<raxlog.Follower of stream {shown(self._name)} after {self.after}>"


def waits_for(follower: Follower[Any]) -> tuple[Seen, float | None]:
    """What a follower saw in its last look, and when something it waits for falls due; None for never."""
    return follower._waits_for
