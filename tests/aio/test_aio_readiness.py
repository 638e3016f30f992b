"""store.readiness(): a task waits until a read would find something, in its line, and takes nothing by that."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path

import forkserver
import pytest
import raxlog
import raxlog.aio
from raxlog import InvalidArgument

APPEND = "import raxlog, sys; raxlog.open(sys.argv[1]).stream('jobs').append({'n': 1})"


def test_it_wakes_for_a_commit_of_another_process_and_delivers_nothing(path: Path) -> None:
    async def main() -> None:
        async with raxlog.aio.open(path) as store:
            await store.stream("jobs").create_group("g", "0", create_stream=True)
            async with (store.readiness({"jobs": ">"}, group="g", timeout=20) as ready,
                        store.readiness({"jobs": "$", "other": "0"}, timeout=20) as plain):
                waiting = asyncio.create_task(plain())
                await asyncio.sleep(0.1)
                await asyncio.to_thread(forkserver.run, [sys.executable, "-c", APPEND, str(path)], check=True)
                assert await ready()
                assert await waiting
                assert store.plain.stream("jobs").group("g").info().pending == 0
                assert len(await store.stream("jobs").group("g").read("w")) == 1

    asyncio.run(main())


def test_it_ends_at_its_time_and_says_at_once_what_is_there(path: Path) -> None:
    async def main() -> None:
        async with raxlog.aio.open(path) as store:
            group = await store.stream("jobs").create_group("g", "0", create_stream=True)
            started = time.monotonic()
            async with store.readiness({"jobs": ">"}, group="g", timeout=0.2) as ready:
                assert not await ready()
            assert 0.15 < time.monotonic() - started < 2
            await store.stream("jobs").append({"n": 1})
            async with store.readiness({"jobs": ">"}, group="g", timeout=0) as ready:
                assert await ready()
            async with store.readiness({"jobs": "0"}, timeout=0) as ready:
                assert await ready()
            await group.read("w")
            async with store.readiness({"jobs": ">"}, group="g", claim_idle=0.2, timeout=5) as ready:
                assert await ready()  # once the entry has been idle so long
            assert len(await group.read("v", claim_idle=0.2)) == 1
            async with store.readiness({"jobs": ">"}, group="none", timeout=5) as ready:
                assert await ready()  # a read would raise
            for wrong in ({"claim_idle": 1}, {"timeout": -1}, {"group": "g"}):
                with pytest.raises(InvalidArgument):
                    store.readiness({"jobs": "0"}, **wrong)

    asyncio.run(main())


def test_a_task_keeps_its_place_among_tasks_and_threads_also_when_its_read_finds_nothing(path: Path) -> None:
    order: list[str] = []

    async def main() -> None:
        async with raxlog.aio.open(path) as store:
            jobs = store.stream("jobs")
            group = await jobs.create_group("g", "0", create_stream=True)

            async def reader(name: str) -> None:
                async with store.readiness({"jobs": ">"}, group="g", timeout=20) as ready:
                    while await ready():
                        if name == "first" and not order:
                            order.append("stolen")  # as by another process
                            await group.read("thief")
                        if await group.read(name, count=1):
                            order.append(name)
                            return

            def thread() -> None:
                plain = store.plain.stream("jobs").group("g")
                assert plain.read("thread", count=1, timeout=20)
                order.append("thread")

            tasks = []
            for name in ("first", "second"):
                tasks.append(asyncio.create_task(reader(name)))
                await asyncio.sleep(0.1)
            worker = threading.Thread(target=thread)
            worker.start()
            await asyncio.sleep(0.2)
            for _ in range(4):
                await jobs.append({"n": 1})
                await asyncio.sleep(0.1)
            await asyncio.gather(*tasks)
            await asyncio.to_thread(worker.join)
            assert order == ["stolen", "first", "second", "thread"]

    asyncio.run(main())


def test_one_that_is_cancelled_takes_nothing_and_lets_the_next_look(path: Path) -> None:
    async def main() -> None:
        async with raxlog.aio.open(path) as store:
            jobs = store.stream("jobs")
            group = await jobs.create_group("g", "0", create_stream=True)
            got: list[int] = []

            async def reader(number: int) -> None:
                async with store.readiness({"jobs": ">"}, group="g", timeout=20) as ready:
                    while await ready():
                        got.append(number)
                        return

            tasks = [asyncio.create_task(reader(number)) for number in range(20)]
            await asyncio.sleep(0.2)
            for task in tasks[:19]:
                task.cancel()
            await asyncio.sleep(0.05)
            await jobs.append({"n": 1})
            await tasks[19]
            assert got == [19]
            assert (await group.info()).pending == 0
            assert len(await group.read("w")) == 1

    asyncio.run(main())


def test_what_is_gone_is_no_reason_to_be_ready_and_a_task_that_reads_takes_it_out_and_stays_at_rest(path: Path) -> None:
    async def main() -> None:
        async with raxlog.aio.open(path) as store:
            group = await store.stream("jobs").create_group("g", "0", create_stream=True)
            plain = store.plain.stream("jobs").group("g")
            for n in range(3):
                await store.stream("jobs").append({"n": n})
            first, second, third = [entry.id for entry in await group.read("died")]
            await group.nack(first)
            await store.stream("jobs").delete(first, second)
            await asyncio.sleep(0.1)
            used, started = time.process_time(), time.monotonic()
            async with store.readiness({"jobs": ">"}, group="g", claim_idle=60, timeout=0.5) as ready:
                assert not await ready()
            async with store.readiness({"jobs": ">"}, group="g", claim_idle=60, timeout=20) as ready:
                task = asyncio.create_task(ready())
                await asyncio.sleep(0.1)
                await group.nack(third)  # behind one that is gone, and falls due no earlier
                assert await task
            assert plain.pending().total == 3
            assert [entry.id for entry in await group.read("c", claim_idle=60)] == [third]
            await group.ack(third)
            assert await group.read("c", timeout=1, claim_idle=0.05) == []
            assert await store.read_group("g", "c", {"jobs": ">"}, timeout=1, claim_idle=0.05) == {}
            took = time.monotonic() - started
            assert 2.4 < took < 20
            assert time.process_time() - used < 0.2 + took / 5
            assert (plain.pending().total, plain.info().gone) == (0, 2)

    asyncio.run(main())
