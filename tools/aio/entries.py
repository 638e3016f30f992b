"""Entries for ``async for``: a plain iterator, read ahead in the lane of reads, a hundred at a time.

    range(), nodes()   end with the plain iterator
    follow()           waits where that ends, without a thread (turn.py)

What has been read ahead stays in the iterator when a task is cancelled: the next gets it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Hashable, Iterator, Mapping
from itertools import islice
from typing import Generic, Self, TypeVar

from ...storage.errors import RaxlogError
from ...stream.entries.session import ask
from ...stream.follow import Follower
from ...stream.group.waiter import Condition, stream_moves
from ...stream.node.arguments import duration_ms
from ...stream.node.entry import Entry
from ...stream.node.stream_id import StreamID
from .threads import Threads
from .turn import until_changed

T = TypeVar("T")

_AHEAD = 100


class Ahead(AsyncIterator[T], Generic[T]):
    """An iterator read ahead."""

    def __init__(self, threads: Threads, plain: Iterator[T]) -> None:
        self._threads = threads
        self._plain = plain
        self._ready: deque[T] = deque()
        self._error: RaxlogError | None = None  # comes behind what is ready

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if not self._ready and self._error is None:
            await self._fetch()
        if self._ready:
            return self._ready.popleft()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        raise StopAsyncIteration

    async def _fetch(self) -> None:
        await self._threads.read(self._read)

    def _read(self) -> bool:
        """Read on, in the lane's thread; whether there is anything."""
        try:
            self._ready.extend(islice(self._plain, _AHEAD))
        except RaxlogError as error:
            self._error = error
        return bool(self._ready) or self._error is not None


class AsyncFollower(Ahead[Entry]):
    """Made by AsyncStream.follow()."""

    def __init__(self, threads: Threads, plain: Follower, name: bytes, timeout: float | None) -> None:
        super().__init__(threads, plain)
        self._condition = Condition(stream_moves, name)
        self._timeout = None if timeout is None else duration_ms("timeout", timeout) / 1000
        self._follower = plain
        self._last = plain.after

    @property
    def after(self) -> StreamID:
        """The position: another follower that begins behind it returns what this one would return next."""
        return self._last if self._ready else self._follower.after

    async def __anext__(self) -> Entry:
        entry = await super().__anext__()
        self._last = entry.id
        return entry

    async def _fetch(self) -> None:
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        await until_changed(self._threads, self._look, deadline)

    def _look(self) -> tuple[Mapping[Condition, Hashable], bool]:
        seen = ask(self._threads.source, self._condition.value)
        return {self._condition: seen}, self._read()
