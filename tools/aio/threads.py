"""The threads of a store in a loop: three lanes, whatever the number of tasks.

    writes   what joins a commit, many tasks' calls in each; transact()
    reads    what reads and does not wait. A thread of its own: a read waits for no commit, nor for the writer's lock
    others   what makes commits of its own or takes long: trim(), compact(), snapshot(), run(); one after the other

A reader that waits has no thread: see turn.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ...storage.errors import StoreClosed, StoreError
from ...store import Store
from ...stream.group.state import SeenTimes
from ...stream.group.waiter import Waiting
from .batch import Batch
from .lane import Lane, run_each

if TYPE_CHECKING:
    from .turn import Turn

T = TypeVar("T")

_MOST_WRITES, _MOST_READS = 256, 32  # calls whose results come together: milliseconds of the loop's time
_GRACE = 1.0  # seconds for what has begun, once nothing more is
_POLL = 0.001


class Threads:
    """What the handles of one open AsyncStore share."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.source, self.streams, self.pubsub = store.parts()
        self.batch = Batch(self.source)
        path = store.path
        self.writes = Lane(f"writes to {path}", self.batch.run, _MOST_WRITES)
        self.reads = Lane(f"reads of {path}", run_each, _MOST_READS)
        self.others = Lane(f"calls of {path}", run_each, 1)
        self.waiting = self.source.env.attached(Waiting)
        self.times = self.source.env.attached(SeenTimes)
        self.turns: set[Turn] = set()  # of tasks that wait
        self.refusal: str | None = None  # why nothing more is taken, once close() has been called
        self._lanes = (self.writes, self.reads, self.others)

    def write(self, function: Callable[[], T], *, is_alone: bool = False) -> asyncio.Future[T]:
        """Have a function called within the next commit; alone: between commits. Its result, committed."""
        self.require_open()
        return self.writes.call(function, is_alone=is_alone)

    def read(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Have a function called that reads, and does not wait."""
        self.require_open()
        return self.reads.call(function)

    def do(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Have any other function called."""
        self.require_open()
        return self.others.call(function)

    def require_open(self) -> None:
        """StoreClosed once close() has been called."""
        if self.refusal is not None:
            raise StoreClosed(self.refusal)

    async def close(self, timeout: float) -> None:
        """Complete what is under way, within ``timeout`` seconds; close the store; end the threads."""
        self.refusal = f"the store {self.store.path} has been closed (aclose()). Open it again."
        for turn in self.turns:
            turn.release()
        if not await self._idle(timeout):
            for lane in self._lanes:
                lane.refusal = self.refusal
            if not await self._idle(_GRACE):
                raise StoreError(
                    f"{self.store.path} is not closed: a call that has begun has not ended within {timeout:g} s, and "
                    "cannot be broken off. Nothing more is begun; aclose() again once it has ended."
                )
            self.others.refusal = None
        await self.others.call(self.store.close)
        for lane in self._lanes:
            lane.end()

    async def _idle(self, timeout: float) -> bool:
        """Wait until no call is under way, but no longer than that; whether none is."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while not all(lane.is_idle for lane in self._lanes):
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(_POLL)
        return True
