"""A turn: a task in a line of waiting readers (stream/group/waiter.py), without a thread.

    task   join ── look (reads) ── nothing ── arm (reads: register, look again) ── sleep: a future of the loop
                     ^                                                               │
                     └─────────────── call_soon_threadsafe <── released by the watcher, or by the task before

Threads and tasks of a process stand in the same lines, first come, first served.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Self, TypeVar

from ...stream.group.waiter import Condition, Waiter
from ...stream.node.arguments import duration_ms
from .threads import Threads

T = TypeVar("T")


class Turn:
    """A place in the line ``key``, while its ``with`` lasts."""

    def __init__(self, threads: Threads, key: Hashable) -> None:
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._waiter = Waiter(key, self)

    def __enter__(self) -> Self:
        self._threads.turns.add(self)
        self._threads.waiting.join(self._waiter)
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.turns.discard(self)
        self._threads.waiting.leave(self._waiter)

    def release(self) -> None:
        """Wake the task. From any thread."""
        self._loop.call_soon_threadsafe(self._event.set)

    async def comes(self, deadline: float | None) -> bool:
        """Sleep until it is this task's turn to look (True), or the deadline passes. StoreClosed."""
        waiting = self._threads.waiting
        while True:
            self._threads.require_open()
            self._event.clear()
            left = waiting.rest(self._waiter, deadline)
            if left is None:
                return True
            if left <= 0:
                return False
            timer = None if left == math.inf else self._loop.call_later(left, self._event.set)
            try:
                await self._event.wait()
            finally:
                if timer is not None:
                    timer.cancel()

    async def arm(self, seen: Mapping[Condition, Hashable], due: float | None = None) -> None:
        """Sleep from now on, until something is not as it was seen, or at ``due``."""
        await self._threads.read(partial(self._threads.waiting.arm, self._waiter, seen, due))


def deadline_of(block: float | None) -> float | None:
    """``block=`` as a moment; None waits for ever."""
    seconds = None if block is None else duration_ms("block", block) / 1000
    return None if not seconds else time.monotonic() + seconds


async def until_changed(threads: Threads, look: Callable[[], tuple[Mapping[Condition, Hashable], T]],
                        deadline: float | None) -> T:
    """What a look finds, once that is anything; at the deadline, nothing. It is what has been seen before the look."""
    while True:
        seen, found = await threads.read(look)
        if found:
            return found
        with Turn(threads, object()) as turn:
            await turn.arm(seen)
            if not await turn.comes(deadline):
                return found
