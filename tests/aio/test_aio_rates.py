"""How fast many tasks write, and how long they hold up their loop, beside aiosqlite in the same run. RAXLOG_LONG=1.

Each stall is measured twice: as it is, and without Python's garbage collector, whose full collections beside 10,000
live tasks take more than 20 ms by themselves, also where the tasks use no store (printed, too).
"""

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

    def __init__(self, collects: bool) -> None:
        self._collects = collects

    async def __aenter__(self) -> Stall:
        gc.collect()
        if not self._collects:
            gc.disable()
        self._ticker = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ticker.cancel()
        gc.enable()

    async def _tick(self) -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.001)
            self.longest = max(self.longest, (time.perf_counter() - begun) * 1000 - 1)


async def at_once(what: str, call: Callable[[int], Awaitable[object]], cancel: bool = False,
                  collects: bool = True) -> tuple[float, float]:
    """So many tasks: calls a second, the longest stall."""
    chance = random.Random(1)
    tasks: list[asyncio.Task[object]] = []

    async def one(number: int) -> object:
        return await call(number)

    async with Stall(collects) as stall:
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
    cancelled = sum(task.cancelled() for task in tasks)
    print(f"{what}: {rate:.0f}/s, stall {stall.longest:.1f} ms, {cancelled} cancelled, "
          f"{'with' if collects else 'without'} the collector")
    return rate, stall.longest


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
            print(f"\nraxlog, one task: {alone:.0f}/s")
            stalls = []
            for collects in (True, False):
                rate, stall = await at_once("raxlog", lambda n: stream.append({"n": n}), False, collects)
                stalls = [stall, (await at_once("raxlog", lambda n: stream.append({"n": n}), True, collects))[1]]
            await at_once("no store", lambda _: asyncio.sleep(0.01))
        assert rate >= 5 * alone
        assert max(stalls) <= 20
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
        mixed, _ = await at_once("aiosqlite, one connection without a lock", shared)
        print(f"aiosqlite, a transaction each: {alone:.0f}/s; raxlog x {rate / alone:.1f}, without a lock "
              f"x {rate / mixed:.1f}")
        assert rate >= 4 * alone
