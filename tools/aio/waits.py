"""Waits: tasks that wait for entries, without a thread.

    task   look (reads) ── nothing ── join, arm (reads: register, look again) ── sleep: an event of the loop
             ^                                                                      │
             └────────────── call_soon_threadsafe <── released by the watcher, or by the one before in the line

Threads and tasks of a process stand in the same lines, first come, first served (stream/group/waiter.py).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Self, TypeVar

from ...storage.commit.write_transaction import WriteTransaction
from ...storage.errors import RaxlogError
from ...stream.entries import deferred
from ...stream.entries.session import ask
from ...stream.follow import Follower
from ...stream.group import claim, deliver
from ...stream.group.deliver import Answer, GroupRead, Position, Target
from ...stream.group.state import SeenTimes
from ...stream.group.waiter import Condition, Waiter, stream_moves
from ...stream.node.arguments import duration_ms
from ...stream.node.entry import Entry
from ...stream.node.stream_id import StreamID, now_ms
from .threads import Threads

T = TypeVar("T")

_AHEAD = 100  # entries read at once
_RETRY = 20  # ms until a look that another writer has kept from releasing what is due

Seen = Mapping[Condition, Hashable]
Delivery = tuple[dict[bytes, Position | None], Answer]  # where the groups stood before, and what was delivered


class Turn:
    """A place in the line ``key``, while its ``async with`` lasts."""

    def __init__(self, threads: Threads, key: Hashable) -> None:
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._waiter = Waiter(key, self)

    async def __aenter__(self) -> Self:
        if not self._threads.waiting.is_watched:
            await self._threads.call("reads", self._threads.waiting.watch)
        self._threads.turns.add(self)
        self._threads.waiting.join(self._waiter)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._threads.turns.discard(self)
        if self._loop.is_running():  # else the garbage collector drops the task, in any thread, under any lock
            self._threads.waiting.leave(self._waiter)

    def release(self) -> None:
        """Wake the task. From any thread."""
        self._loop.call_soon_threadsafe(self._event.set)

    async def arm(self, seen: Seen, due: float | None = None) -> None:
        """Sleep from now on, until something is not as it was seen, or ``due``."""
        await self._threads.call("reads", partial(self._threads.waiting.arm, self._waiter, seen, due))

    async def comes(self, deadline: float | None) -> bool:
        """Sleep until there is a reason to look (True), or the deadline passes. StoreClosed."""
        while True:
            self._threads.require_open()
            self._event.clear()
            left = self._threads.waiting.rest(self._waiter, deadline)
            if not left:
                return left is None
            timer = None if left == math.inf else self._loop.call_later(left, self._event.set)
            try:
                await self._event.wait()
            finally:
                if timer is not None:
                    timer.cancel()


def deadline_of(block: float | None) -> float | None:
    """``block=`` as a moment; None where it waits for ever, or not at all."""
    seconds = 0 if block is None else duration_ms("block", block) / 1000
    return time.monotonic() + seconds if seconds else None


async def until_changed(threads: Threads, look: Callable[[], tuple[Seen, T]], deadline: float | None) -> T:
    """What a look finds, once it finds anything; nothing, at the deadline. It sees first, and then looks."""
    while True:
        seen, found = await threads.call("reads", look)
        if found:
            return found
        async with Turn(threads, object()) as turn:
            await turn.arm(seen, _next_look(seen))
            if not await turn.comes(deadline):
                return found


def _next_look(seen: Seen) -> float | None:
    """When the first entry that is deferred in these streams is due; the plain read then releases it."""
    now = now_ms()
    dues = [deferred.next_look(moved[3], now) for moved in seen.values() if isinstance(moved, tuple) and moved[3]]
    return time.monotonic() + max(min(dues) - now, _RETRY) / 1000 if dues else None


async def read_group(threads: Threads, wanted: GroupRead, targets: list[Target], block: float | None) -> Answer:
    """deliver.read_group() in steps: a look in "reads", the delivery in the next commit, the wait in the line.

    A task that is cancelled while its delivery is committed has it taken back before it ends, and is the first in
    its line until then.
    """
    deadline = deadline_of(block)
    names = [target.stream for target in targets if target.after is None]
    times: SeenTimes | None = threads.source.env.attached(SeenTimes)  # of the first attempt, as its acknowledgements

    def deliver_now() -> Delivery:
        before = threads.batch.submit(
            lambda txn: {name: deliver.position(txn, name, wanted.group) for name in names})
        return before, deliver.attempts(threads.batch, wanted, targets)

    def undo(delivery: Delivery) -> asyncio.Future[None]:
        def take_back(txn: WriteTransaction) -> None:
            for name, entries in delivery[1]:
                claim.take_back(txn, wanted, name, delivery[0].get(name), [(one.ms, one.seq) for one in entries])

        return threads.lanes["writes"].call(partial(threads.batch.submit, take_back)).future

    async def attempt() -> tuple[Answer, Seen, float | None]:
        look = partial(deliver.look, wanted=wanted, targets=targets, times=times)
        is_ready, seen, due = await threads.call("reads", partial(ask, threads.source, look))
        threads.require_open()
        return (await threads.lanes["writes"].finish(deliver_now, undo))[1] if is_ready else [], seen, due

    answer, _, _ = await attempt()
    if answer or block is None or len(names) < len(targets):
        return answer
    targets, times = [target._replace(ack=b"") for target in targets], None
    async with Turn(threads, (wanted.group, wanted.min_idle, tuple(names))) as turn:
        while await turn.comes(deadline):
            answer, seen, due = await attempt()
            if answer:
                return answer
            await turn.arm(seen, due)
    return []


class Ahead(AsyncIterator[T]):
    """A plain iterator for ``async for``, read ahead in "reads". A task that is cancelled leaves what has been read."""

    def __init__(self, threads: Threads, plain: Iterator[T]) -> None:
        self._threads = threads
        self._plain = plain
        self._ready: deque[T] = deque()
        self._error: RaxlogError | None = None  # comes behind what is ready

    async def __anext__(self) -> T:
        if not self._ready and self._error is None:
            await self._fetch()
        if self._ready:
            return self._ready.popleft()
        if self._error is None:
            raise StopAsyncIteration
        error, self._error = self._error, None
        raise error

    async def _fetch(self) -> None:
        await self._threads.call("reads", self._read)

    def _read(self) -> bool:
        try:
            self._ready.extend(islice(self._plain, _AHEAD))
        except RaxlogError as error:
            self._error = error
        return bool(self._ready) or self._error is not None


class AsyncFollower(Ahead[Entry]):
    """Made by AsyncStream.follow(). Its plain follower returns what is there; the wait for more is here."""

    def __init__(self, threads: Threads, plain: Follower, name: bytes, timeout: float | None) -> None:
        super().__init__(threads, plain)
        self._follower = plain
        self._condition = Condition(stream_moves, name)
        self._timeout = None if timeout is None else duration_ms("timeout", timeout) / 1000
        self._last = plain.after

    @property
    def after(self) -> StreamID:
        """The position: another follower behind it returns what this one would return next."""
        return self._last if self._ready else self._follower.after

    async def __anext__(self) -> Entry:
        entry = await super().__anext__()
        self._last = entry.id
        return entry

    async def _fetch(self) -> None:
        def look() -> tuple[Seen, bool]:
            return {self._condition: ask(self._threads.source, self._condition.value)}, self._read()

        await until_changed(self._threads, look, None if self._timeout is None else time.monotonic() + self._timeout)
