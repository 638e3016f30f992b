"""Waits: tasks that wait for entries, without a thread.

    task   look (reads) ── nothing ── join, arm (reads: register, look again) ── sleep: an event of the loop
             ^                                                                      │
             └────────────── call_soon_threadsafe <── released by the watcher, or by the one before in the line

Threads and tasks of a process stand in the same lines, first come, first served (stream/group/waiter.py).
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
from functools import partial
from itertools import islice
from typing import Generic, Self, TypeVar

from ...storage import clocks
from ...storage.errors import InvalidArgument, RaxlogError
from ...storage.handles import made_by_a_call
from ...stream.entries.session import ask
from ...stream.follow import Follower, waits_for
from ...stream.group import claim, deliver
from ...stream.group.deliver import Answer, GroupRead, Position, Target
from ...stream.group.state import SeenTimes
from ...stream.group.waiter import Seen, Waiter
from ...stream.multi_read import Asked, look_behind, parse_group_read
from ...stream.node.arguments import Name, timeout_of
from ...stream.node.stream_id import StreamID
from ...stream.node.typed import Entry, V
from .threads import Threads

N = TypeVar("N", bound=Name)
T = TypeVar("T")

_AHEAD = 100  # entries read at once

Look = tuple[T, Seen, float | None]  # what was found; else what was seen, and when to look again
Delivery = tuple[dict[bytes, Position | None], Answer]  # where the groups stood before, and what was delivered


class _TaskWaker(asyncio.Event):
    """Wakes a task. From any thread."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.get_running_loop()

    def release(self) -> None:
        self.loop.call_soon_threadsafe(self.set)


class Readiness(Generic[T]):
    """A place in the queue of readers that wait for the same, within its ``async with``: see AsyncStore.readiness().

    When called, it waits for its turn and for entries. It delivers nothing, so a task that leaves or is cancelled
    has taken nothing; the next in the queue then looks.
    """

    @made_by_a_call
    def __init__(self, threads: Threads, look: Callable[[], Awaitable[Look[T]]], seconds: float,
                 key: Hashable = None) -> None:
        self._threads = threads
        self._waiting = threads.waiting  # it stays in the lines of the store as it was opened
        self._look = look
        self._deadline = clocks.monotonic() + seconds
        self._waker = _TaskWaker()
        self._waiter = Waiter(key or object(), self._waker)
        self._last: tuple[Seen, float | None] | None = None  # of the last look that found something

    async def __aenter__(self) -> Self:
        if not self._waiting.is_watched:
            await self._threads.call("reads", self._waiting.watch)
        self._threads.turns[self] = self._waker
        self._waiting.join(self._waiter)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._threads.turns.pop(self, None)
        if self._waker.loop.is_running():  # else the garbage collector drops the task, in any thread, under any lock
            self._waiting.leave(self._waiter)

    async def __call__(self) -> T | None:
        """True once it is this one's turn and there is something to read; None after the timeout. StoreClosed."""
        if self._last is not None:  # what that one found may be nothing for this reader: so until it changes
            await self._arm(*self._last)
        while await self._comes():
            found, seen, due = await self._look()
            if found:
                self._last = seen, due
                return found
            await self._arm(seen, due)
        return None

    async def _arm(self, seen: Seen, due: float | None) -> None:
        """Sleep from now on, until something is not as it was seen, or ``due``."""
        await self._threads.call("reads", partial(self._waiting.arm, self._waiter, seen, due))

    async def _comes(self) -> bool:
        """Sleep until there is a reason to look (True), or the deadline passes."""
        while True:
            self._threads.require_open()
            self._waker.clear()
            remaining = self._waiting.rest(self._waiter, self._deadline)
            if not remaining:
                return remaining is None
            timer = None if remaining == math.inf else self._waker.loop.call_later(remaining, self._waker.set)
            try:
                await self._waker.wait()
            finally:
                if timer is not None:
                    timer.cancel()


async def until(threads: Threads, look: Callable[[], Awaitable[Look[T]]], seconds: float, key: Hashable = None) -> T:
    """What a look finds, once it finds anything; nothing, after so long. In the line ``key``, if there is one."""
    nothing, seen, due = await look()
    if nothing or not seconds:
        return nothing
    async with Readiness(threads, look, seconds, key) as ready:
        if key is None:  # so it is the first
            await ready._arm(seen, due)
        found = await ready()
    return nothing if found is None else found


def readiness(threads: Threads, streams: Asked[N], group: Name | None, claim_idle: float | None,
              timeout: float | None) -> Readiness[bool]:
    """AsyncStore.readiness()."""
    seconds = timeout_of(timeout)
    if group is None:
        if claim_idle is not None:
            raise InvalidArgument("claim_idle is for readers of a group; name that, too")
        looks = look_behind(threads.source, streams, 1, 1, None, None)

        async def look() -> Look[bool]:
            found, seen, due = await threads.call("reads", partial(next, looks))
            return bool(found), seen, due

        return Readiness(threads, look, seconds)
    wanted, targets, _ = parse_group_read(group, b"", streams, None, None, None, False, claim_idle, None, None)
    if any(target.after is not None for target in targets):
        raise InvalidArgument("readiness() of a group is for new entries, {name: '>'}; a history is there, or is not")

    question = partial(deliver.look, wanted=wanted._replace(keeps_gone=True), targets=targets)

    async def look_in_group() -> Look[bool]:
        return await threads.call("reads", partial(ask, threads.source, question))

    return Readiness(threads, look_in_group, seconds, deliver.line_of(wanted, targets))


async def read_group(threads: Threads, wanted: GroupRead, targets: list[Target], timeout: float | None) -> Answer:
    """deliver.read_group() in steps: a look in "reads", the delivery in the next commit, the wait in the line.

    A task that is cancelled while its delivery is committed has it taken back before it ends, and is the first in
    its line until then.
    """
    seconds = timeout_of(timeout)
    wanted = wanted._replace(deadline=clocks.monotonic() + seconds if seconds else None)
    names = [target.stream for target in targets if target.after is None]
    times: SeenTimes | None = threads.source.env.attached(SeenTimes)  # of the first attempt, as its acknowledgements

    def deliver_now() -> Delivery:
        before = {name: threads.batch.submit(partial(deliver.position, stream=name, group=wanted.group))
                  for name in names}
        return before, deliver.attempts(threads.batch, wanted, targets)

    def undo(delivery: Delivery) -> None:
        ids: dict[bytes, list[tuple[int, int]]] = {}
        for name, entries in delivery[1]:
            ids.setdefault(name, []).extend((entry.ms, entry.seq) for entry in entries)
        for name, before in delivery[0].items():
            threads.batch.submit(partial(claim.take_back, wanted=wanted, name=name, before=before,
                                         ids=ids.get(name, [])))

    created: set[bytes] = set()

    async def attempt() -> Look[Answer]:
        nonlocal targets, times
        look = partial(deliver.look, wanted=wanted, targets=targets, times=times)
        is_ready, seen, due = await threads.call("reads", partial(ask, threads.source, look))
        threads.require_open()
        answer = (await threads.executors["writes"].finish(deliver_now, undo))[1] if is_ready else Answer()
        created.update(answer.created)
        answer.created = created
        targets, times = [target._replace(ack=b"") for target in targets], None
        return answer, seen, due

    if len(names) < len(targets):  # histories, which are there or not
        seconds = 0.0
    return await until(threads, attempt, seconds, deliver.line_of(wanted, targets))


class Ahead(AsyncIterator[T]):
    """A plain iterator for ``async for``, read ahead in "reads". A task that is cancelled leaves what has been read."""

    def __init__(self, threads: Threads, plain: Iterator[T]) -> None:
        self._threads = threads
        self._plain = plain
        self._ready: deque[T | RaxlogError] = deque()

    async def __anext__(self) -> T:
        if not self._ready:
            await self._fetch()
        if not self._ready:
            raise StopAsyncIteration
        one = self._ready.popleft()
        if isinstance(one, RaxlogError):
            raise one
        return one

    async def _fetch(self) -> None:
        await self._threads.call("reads", self._read)

    def _read(self) -> None:
        try:
            self._ready.extend(islice(self._plain, _AHEAD))
        except RaxlogError as error:
            self._ready.append(error)


class AsyncFollower(Ahead[Entry[V]]):
    """Made by AsyncStream.follow(). Its plain follower returns what is there; the wait for more is here."""

    def __init__(self, threads: Threads, plain: Follower[V], timeout: float | None) -> None:
        super().__init__(threads, plain)
        self._follower = plain
        self._timeout = timeout_of(timeout)
        self._last = plain.after

    @property
    def after(self) -> StreamID:
        """The position: another follower behind it returns what this one would return next."""
        return self._last if self._ready else self._follower.after

    async def __anext__(self) -> Entry[V]:
        entry = await super().__anext__()
        self._last = entry.id
        return entry

    async def _fetch(self) -> None:
        async def look() -> Look[bool]:
            await super(AsyncFollower, self)._fetch()
            return bool(self._ready), *waits_for(self._follower)

        await until(self._threads, look, self._timeout)
