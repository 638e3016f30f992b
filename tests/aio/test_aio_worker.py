"""Workers whose handlers are coroutines: each entry is run to its end at least once, or is a dead letter."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import forkserver
import pytest
import raxlog
import raxlog.aio
from raxlog import Discard, Retry, Snooze
from raxlog.aio import AsyncGroup, AsyncStore
from raxlog.tools.aio.worker import Awaited

SOON = 10.0


@asynccontextmanager
async def group_of(path: Path, many: int) -> AsyncIterator[tuple[AsyncStore, AsyncGroup]]:
    fill(path, many)
    async with raxlog.aio.open(path) as store:
        yield store, store.stream("jobs").group("mail")


def fill(path: Path, many: int) -> None:
    with raxlog.open(path) as store:
        store.stream("jobs").create_group("mail", "0", create_stream=True)
        store.stream("jobs").extend({"n": n} for n in range(many))


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(SOON):
        while not condition():
            await asyncio.sleep(0.005)


def number(entry: raxlog.Entry) -> int:
    return int(entry.fields["n"])


def left(path: Path) -> tuple[int, list[int]]:
    """What a group has still to deliver, and the deliveries of what is pending."""
    with raxlog.open(path) as store:
        group = store.stream("jobs").group("mail")
        return group.lag, [one.deliveries for one in group.pending_entries("-")]


def no_thread_is_left() -> bool:
    """Whether all threads of workers end: one whose handler has been given up ends beside what goes on."""
    deadline = time.monotonic() + 5
    left = [thread for thread in threading.enumerate() if thread.name.startswith("raxlog worker")]
    for thread in left:
        thread.join(max(0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in left)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_coroutines_run_side_by_side_and_are_retried_given_up_or_snoozed(path: Path, loop: str) -> None:
    tries: Counter[int] = Counter()
    running = most = 0

    async def handle(entry: raxlog.Entry) -> int:
        nonlocal running, most
        n = number(entry)
        tries[n] += 1
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        match n % 10, tries[n]:
            case 1, _:
                raise ValueError(f"no {n}")
            case 2, 1:
                raise Retry(0.01)
            case 3, 1:
                raise Snooze(0.01)
            case 4, _:
                raise Discard("hopeless")
            case 5, 1:
                sys.exit("a handler that ends")
            case 6, 1:
                raise asyncio.CancelledError
        return n

    async def program() -> None:
        async with group_of(path, 100) as (store, group):
            worker = group.worker(handle, threads=10, max_deliveries=2, retry=0.01, result_ttl=60)
            ends = asyncio.create_task(worker.run())
            await until(lambda: worker.counts.done + worker.counts.dead == 100)
            worker.stop()
            await ends
            assert worker.counts == raxlog.Counts(done=80, failed=60, snoozed=10, dead=20)
            letters = [letter async for letter in group.dead_letters]
            assert Counter(letter.reason for letter in letters) == {"failed": 10, "discarded": 10}
            assert "in handle" in letters[0].traceback
            ids = [entry.id async for entry in store.stream("jobs")]
            assert await group.wait_result(ids[7]) == raxlog.Result(7)
            assert await group.wait_result(ids[1], 1) == raxlog.Result(None, "ValueError: no 1", "dead")
            assert await group.wait_result("1-1") == raxlog.Result(status="gone")
            discarded = next(letter for letter in letters if letter.reason == "discarded")
            assert await group.dead_letters.get(discarded.id) == discarded
            assert await group.dead_letters.replay(discarded.id) == 1
            assert await group.dead_letters.purge(where=lambda letter: letter.reason == "failed") == 10
            assert (await group.dead_letters.length(), await group.lag) == (9, 1)

    with asyncio.Runner(loop_factory=pytest.importorskip(loop).new_event_loop) as runner:
        runner.run(program())
    assert 5 < most <= 10
    assert no_thread_is_left()


@pytest.mark.parametrize("hangs", [False, True])
def test_a_coroutine_that_takes_too_long_is_cancelled_and_has_failed(path: Path, hangs: bool) -> None:
    cancelled: list[int] = []

    async def handle(entry: raxlog.Entry) -> None:
        if number(entry) == 0:
            try:
                await asyncio.sleep(SOON)
            except asyncio.CancelledError:
                cancelled.append(entry.deliveries)
                if not hangs:
                    raise
                await asyncio.sleep(SOON)

    async def program() -> None:
        async with group_of(path, 5) as (_, group):
            worker = group.worker(handle, max_deliveries=2, retry=0, timeout=0.1, drain=0)
            ends = asyncio.create_task(worker.run())
            await until(lambda: worker.counts.dead and worker.counts.done == 4)
            worker.stop()
            await ends
            assert worker.counts.failed == 2
            assert [letter.error[:9] async for letter in group.dead_letters] == ["TimeLimit"]
            assert cancelled[:2] == [1, 2]

    asyncio.run(program())
    assert no_thread_is_left()


@pytest.mark.parametrize("how", ["stop", "cancel", "aclose", "timeout"])
def test_a_worker_that_ends_lets_handlers_end_and_gives_back_what_does_not(path: Path, how: str) -> None:
    begun: list[int] = []
    cancelled: list[int] = []

    async def program() -> None:
        async with group_of(path, 2) as (store, group):

            async def handle(entry: raxlog.Entry) -> None:
                begun.append(number(entry))
                try:
                    await asyncio.sleep(0.1 if number(entry) else SOON)
                    await store.stream("done").append(entry.fields)
                except asyncio.CancelledError:
                    cancelled.append(number(entry))
                    raise

            worker = group.worker(handle, threads=2, drain=0.3)
            ends = asyncio.create_task(asyncio.wait_for(worker.run(), 0.2 if how == "timeout" else None))
            await until(lambda: len(begun) == 2)
            began = time.monotonic()
            if how == "stop":
                worker.stop()
            elif how == "cancel":
                for _ in range(5):  # again and again
                    ends.cancel()
                    await asyncio.sleep(0.01)
            elif how == "aclose":
                await store.aclose()
            await asyncio.wait([ends])
            assert time.monotonic() - began < 2
            assert ends.cancelled() is (how == "cancel")
            assert isinstance(ends.cancelled() or ends.exception(), bool | None | TimeoutError)
            assert worker.counts.done == 1
            assert cancelled == [0]

    asyncio.run(program())
    assert left(path) == (0, [0])
    assert no_thread_is_left()
    with raxlog.open(path) as store:
        assert len(store.stream("done")) == 1


@pytest.mark.parametrize(("how", "threads"), [("ends", 3), ("is closed", 3), ("is closed", 4)])
def test_a_loop_that_ends_or_is_closed_gives_the_entries_back(path: Path, how: str, threads: int) -> None:
    """Of four threads one waits for entries."""
    begun = 0

    async def handle(entry: raxlog.Entry) -> None:
        nonlocal begun
        begun += 1
        await asyncio.sleep(SOON)

    async def begins() -> tuple[AsyncStore, asyncio.Task[None]]:
        store = await raxlog.aio.open(path)
        task = asyncio.create_task(store.stream("jobs").group("mail").worker(handle, threads=threads).run())
        await until(lambda: begun == 3)
        return store, task

    fill(path, 3)
    began = time.monotonic()
    if how == "ends":  # which cancels all tasks
        store, _ = asyncio.run(begins())
    else:
        loop = asyncio.new_event_loop()
        store, _ = loop.run_until_complete(begins())
        for one in asyncio.all_tasks(loop):
            one._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()
        while not no_thread_is_left():
            assert time.monotonic() < began + SOON
            time.sleep(0.02)
    assert time.monotonic() < began + 3
    store.plain.close()
    assert left(path) == (0, [0, 0, 0])
    assert no_thread_is_left()


def test_ctrl_c_ends_a_program_s_worker_after_its_drain(path: Path) -> None:
    program = (
        "import asyncio, sys, raxlog.aio\n"
        "async def handle(entry):\n"
        "    print('begun', flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "async def main():\n"
        "    async with raxlog.aio.open(sys.argv[1]) as store:\n"
        "        await store.stream('jobs').group('mail').worker(handle, drain=0.2).run()\n"
        "asyncio.run(main())\n"
    )
    fill(path, 1)
    child = forkserver.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"begun\n"
    child.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert b"KeyboardInterrupt" in child.communicate(timeout=SOON)[1]
    assert time.monotonic() - began < 2
    assert left(path) == (0, [0])


def test_plain_handlers_and_transactions_work_and_what_makes_no_sense_is_refused(path: Path) -> None:
    async def later(entry: raxlog.Entry) -> None: ...

    class Later:
        async def __call__(self, entry: raxlog.Entry) -> None: ...

    def move(entry: raxlog.Entry, tx: raxlog.Transaction) -> None:
        tx.stream("moved").append(entry.fields)

    async def program() -> None:
        async with group_of(path, 50) as (store, group):
            await group.worker(move, transaction=True).run(burst=True)
            assert await store.stream("moved").length() == 50
            for handler in (later, Later()):
                with pytest.raises(raxlog.InvalidArgument, match="raxlog worker"):
                    store.plain.stream("jobs").group("mail").worker(handler)
                with pytest.raises(raxlog.InvalidArgument, match="transactions"):
                    group.worker(handler, transaction=True)
                with pytest.raises(raxlog.InvalidArgument, match="lease"):
                    group.worker(handler, lease=0)
            with pytest.raises(raxlog.InvalidArgument, match="processes"):
                group.worker(later, processes=2)
            ends = asyncio.create_task(group.worker(later).run())
            await asyncio.sleep(0.05)
            await group.destroy()
            with pytest.raises(raxlog.NoGroup):
                await ends
        with pytest.raises(raxlog.StoreClosed):
            await group.worker(later).run()

    asyncio.run(program())


PROGRAM = """
import asyncio, os, sys
import raxlog.aio
async def handle(entry):
    await asyncio.sleep(0.001)
    n = int(entry.fields["n"])
    if n % 50 == 3 and entry.deliveries == 1:
        raise ValueError(n)
    os.write(out, b"%d\\n" % n)
async def main():
    async with raxlog.aio.open(sys.argv[1]) as store:
        await store.stream("jobs").group("mail").worker(handle, threads=4, lease=0.2, retry=0.01).run()
out = os.open(sys.argv[1] + ".log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
asyncio.run(main())
"""


def test_every_entry_is_run_to_its_end_whichever_programs_are_killed(path: Path) -> None:
    many, log = 300, Path(f"{path}.log")
    fill(path, many)
    log.touch()
    children: list[subprocess.Popen[bytes]] = []
    kills = 0
    try:
        with raxlog.open(path) as store:
            group = store.stream("jobs").group("mail")
            deadline = time.monotonic() + 30
            while group.lag or group.pending().total:
                assert time.monotonic() < deadline
                while len(children) < 2:
                    children.append(forkserver.Popen([sys.executable, "-c", PROGRAM, str(path)]))
                if kills < 2 and log.read_text().count("\n") > 100 * (kills + 1):
                    kills += 1
                    children[0].kill()
                    children.pop(0).wait()
                time.sleep(0.005)
            assert len(group.dead_letters) == 0
    finally:
        for child in children:
            child.kill()
            child.wait()
    runs = Counter(map(int, log.read_text().split()))
    assert kills == 2
    assert set(runs) == set(range(many))
    assert sum(runs.values()) < many + 2 * 4 * 100  # a kill costs at most what its four threads have read


def test_a_forked_child_goes_on_where_it_clears_away_a_handler_that_a_closed_loop_has_left() -> None:
    async def handle(_: raxlog.Entry) -> None:
        await asyncio.sleep(60)

    loop = asyncio.new_event_loop()
    task = loop.create_task(Awaited(handle, False)._run(raxlog.Entry(1, 1, [("n", "1")])))
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    pid = os.fork()
    if pid == 0:
        try:
            task.get_coro().close()
        finally:
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    task.get_coro().close()
