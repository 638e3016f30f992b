"""How fast many tasks write, and how long they hold up their loop, beside aiosqlite in the same run. RAXLOG_LONG=1."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import raxlog.aio

pytestmark = pytest.mark.skipif(os.environ.get("RAXLOG_LONG") != "1", reason="measures; RAXLOG_LONG=1")

MANY = 10_000
PORTION = 100  # tasks begun in one turn of the loop


class Stall:
    """The longest time for which the loop ran nothing else, in ms, while its ``async with`` lasts."""

    longest = 0.0

    async def __aenter__(self) -> Stall:
        gc.collect()
        gc.freeze()
        self._ticker = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ticker.cancel()
        gc.unfreeze()

    async def _tick(self) -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.001)
            self.longest = max(self.longest, (time.perf_counter() - begun) * 1000 - 1)


async def at_once(call: Callable[[int], Awaitable[object]], cancel: bool = False) -> tuple[float, float, int]:
    """So many tasks: calls a second, the longest stall, how many were cancelled."""
    chance = random.Random(1)
    tasks: list[asyncio.Task[object]] = []

    async def one(number: int) -> object:
        return await call(number)

    async with Stall() as stall:
        begun = time.perf_counter()
        for number in range(MANY):
            tasks.append(asyncio.create_task(one(number)))
            if number % PORTION == 0:
                await asyncio.sleep(0)
            if cancel and number % 2:
                tasks[chance.randrange(max(0, number - 2000), number)].cancel()
        for task in tasks:
            if not task.done():
                await asyncio.wait([task])
        rate = MANY / (time.perf_counter() - begun)
    return rate, stall.longest, sum(task.cancelled() for task in tasks)


async def one_by_one(call: Callable[[int], Awaitable[object]], many: int = 300) -> float:
    begun = time.perf_counter()
    for number in range(many):
        await call(number)
    return many / (time.perf_counter() - begun)


def test_many_tasks_write_five_times_as_fast_as_one_and_hold_up_the_loop_for_20_ms(path: Path) -> None:
    async def program() -> None:
        async with raxlog.aio.open(path) as store:
            stream = store.stream("jobs")
            alone = await one_by_one(lambda n: stream.append({"n": n}))
            rate, stall, _ = await at_once(lambda n: stream.append({"n": n}))
            _, stall_cancelled, cancelled = await at_once(lambda n: stream.append({"n": n}), cancel=True)
        print(f"\nraxlog: {alone:.0f}/s one task, {rate:.0f}/s {MANY} tasks, stall {stall:.1f} ms; "
              f"{cancelled} cancelled: stall {stall_cancelled:.1f} ms")
        assert rate >= 5 * alone
        assert max(stall, stall_cancelled) <= 20
        await beside(path.with_suffix(".db"), rate)

    asyncio.run(program())


async def beside(path: Path, rate: float) -> None:
    aiosqlite = pytest.importorskip("aiosqlite")
    async with aiosqlite.connect(path) as database:
        await database.execute("PRAGMA journal_mode=WAL")
        await database.execute("PRAGMA synchronous=FULL")
        await database.execute("CREATE TABLE jobs (n)")
        lock = asyncio.Lock()

        async def shared(n: int) -> None:  # the first commit takes what all have inserted
            await database.execute("INSERT INTO jobs VALUES (?)", (n,))
            await database.commit()

        async def whole(n: int) -> None:
            async with lock:
                await shared(n)

        alone = await one_by_one(whole)
        mixed, stall, _ = await at_once(shared)
        print(f"aiosqlite: {alone:.0f}/s a transaction each (x {rate / alone:.1f}); {mixed:.0f}/s {MANY} tasks on one "
              f"connection without a lock (x {rate / mixed:.1f}), stall {stall:.1f} ms")
        assert rate >= 4 * alone
