"""raxlog.aio: what the tasks of a loop get, what a cancelled one leaves, and what is left behind."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import inspect
import os
import random
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import forkserver
import pytest
import raxlog
import raxlog.aio
from counting import commits_of, other_threads
from raxlog.aio import AsyncGroup, AsyncStore, AsyncStream, AsyncWorker
from raxlog.tools.aio.handles import AsyncDeadLetters, AsyncDeferred
from raxlog.tools.aio.waits import AsyncFollower

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
LONG = os.environ.get("RAXLOG_LONG") == "1"
SOON = 5.0  # seconds: far more than any of this takes

Program = Callable[[], Coroutine[Any, Any, None]]


def new_loop(kind: str) -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop() if kind == "asyncio" else pytest.importorskip("uvloop").new_event_loop()


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Program], None]:
    """Runs a program in a loop, and requires that no thread and no descriptor is left."""

    def run_it(program: Program) -> None:
        with asyncio.Runner(loop_factory=lambda: new_loop(request.param)) as runner:
            runner.run(asyncio.sleep(0))
            gc.collect()  # what tests before this one have dropped is not its own
            before = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
            runner.run(asyncio.wait_for(program(), 60))
            assert (set(threading.enumerate()), len(os.listdir("/proc/self/fd"))) == before

    return run_it


@asynccontextmanager
async def group_of(path: Path, **options: Any) -> AsyncIterator[tuple[AsyncStore, AsyncStream, AsyncGroup]]:
    async with raxlog.aio.open(path, **options) as store:
        stream = store.stream("jobs")
        yield store, stream, await stream.create_group("g", "0", create_stream=True)


async def blocked(store: AsyncStore, many: int) -> None:
    """Until so many tasks sleep."""
    end = time.monotonic() + SOON
    while sum(not turn._waiter.awake for turn in store._threads.turns) < many:
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


# -- the same calls -----------------------------------------------------------------------------


ELSEWHERE = {  # of the plain names, those that are not here, and why
    raxlog.Store: {"open", "close", "transaction", "pipeline",  # open(), aclose(), transact()
                   "subjects", "channels", "remote", "watch", "last_end"},  # store.plain, run(); so to_arrow, nodes
    raxlog.Stream: {"to_arrow", "nodes"},
    raxlog.Worker: {"pids"},  # it runs in tasks, without processes
}
PAIRS = ((raxlog.Stream, AsyncStream), (raxlog.Group, AsyncGroup), (raxlog.Store, AsyncStore),
         (raxlog.DeadLetters, AsyncDeadLetters), (raxlog.Deferred, AsyncDeferred), (raxlog.Worker, AsyncWorker),
         (raxlog.Follower, AsyncFollower))


@pytest.mark.parametrize(("plain", "awaited"), PAIRS)
def test_the_calls_and_their_parameters_are_those_of_the_plain_classes(plain: Any, awaited: Any) -> None:
    names = {name for name in dir(plain) if not name.startswith("_")} - ELSEWHERE.get(plain, set())
    assert names <= set(dir(awaited))
    for name in names:
        method = getattr(plain, name)
        if inspect.isfunction(method):
            given = set(inspect.signature(inspect.getattr_static(awaited, name)).parameters)
            wanted = set(inspect.signature(method).parameters)
            assert given <= wanted, name
            assert wanted - given <= ({"signals", "until"} if plain is raxlog.Worker else {"stop"}), name
    assert AsyncStream.trim.__doc__ == raxlog.Stream.trim.__doc__


def test_what_tasks_write_is_read_by_the_plain_store_and_the_other_way_round(
    run: Callable[[Program], None], path: Path
) -> None:
    async def program() -> None:
        async with group_of(path) as (store, stream, group):
            plain = store.plain.stream("jobs")
            first = await stream.append({"n": 1})
            ids = await stream.extend(({"n": n} for n in (2, 3)), maxlen=10)
            assert [entry.id for entry in plain.range()] == [first, *ids]
            plain.append({"n": 4})
            assert [entry.fields["n"] async for entry in stream] == ["1", "2", "3", "4"]
            assert (await stream.length(), await stream.last_id) == (4, plain.last_id)
            assert [entry.fields["n"] async for entry in stream.range(count=2, reverse=True)] == ["4", "3"]
            assert len((await stream.full_info()).entries) == (await stream.info()).length == 4
            batch = await group.read("w", 3)
            assert (len(batch), await group.lag, (await group.pending()).total) == (3, 1, 3)
            assert await group.ack(*(entry.id for entry in batch), consumer="w") == 3
            assert (await store.read({"jobs": ids[0]}, 1))["jobs"][0].id == ids[1]
            read = await store.read_group("g", "w", {"jobs": ">"})
            assert [entry.fields["n"] for entry in read["jobs"]] == ["4"]
            assert [entry.id for entry in await group.read("w", ids="0")] == [read["jobs"][0].id]
            assert await stream.delete(first) == 1
            assert await stream.trim(maxlen=1) == 2
            await store.state.set("at", b"4")
            assert (await store.state.get("at"), await store.state.length()) == (b"4", 1)
            await store.bind("eu.>", "jobs")
            assert await store.publish("eu.new", {"n": 5}) == 1
            subscription = await store.subscribe_durable("eu.>", durable="mail")
            await store.publish("eu.new", {"n": 6})
            message = await anext(subscription)
            assert message.fields == {"n": "6"}
            assert await store.run(message.ack)
            later = await stream.defer({"n": 7}, delay=100)
            soon = await stream.defer({"n": 8}, delay=0.05)
            plain.defer({"n": 9}, delay=200)
            due = [(one.token, one.due, one.fields, one.pairs) async for one in stream.deferred()]
            assert [one[:3] for one in due[:2]] == [(each.token, each.due, each.fields) for each in (soon, later)]
            assert due[2][2:] == ({"n": "9"}, [("n", "9")])
            assert [entry.fields async for entry in stream.follow(timeout=0.5)] == [{"n": "8"}]
            assert (await later.cancel(), await later.cancel(), await stream.cancel_deferred(due[2][0])) == (
                True, False, True)
            await store.run(subscription.close)
            await asyncio.get_running_loop().shutdown_default_executor()

    run(program)


def test_an_error_is_its_own_call_s_and_its_neighbours_commit(run: Callable[[Program], None], path: Path) -> None:
    async def program() -> None:
        async with group_of(path) as (store, stream, group):
            given: list[Awaitable[Any]] = [
                stream.append({"n": 1}), stream.append({}), stream.append({"n": 2}, "1-0"),
                stream.append({"n": 3}, "0-1"), stream.append({"n": 4}, bogus=1),  # type: ignore[call-arg]
                store.stream("x").create_group("g", create_stream=False), group.ack("1-1", consumer="w"),
                stream.extend([{"n": 5}, {"n": 6}], ["*", "2-0"]), store.state.delete("none"), stream.append({"n": 7}),
            ]
            outcomes = await asyncio.gather(*given, return_exceptions=True)
            kinds = [type(outcome).__name__ for outcome in outcomes]
            assert kinds == ["StreamID", "InvalidFields", "IDTooSmall", "IDTooSmall", "TypeError", "NoStream",
                             "NotOwner", "IDTooSmall", "KeyError", "StreamID"]
            assert [entry.fields["n"] async for entry in stream] == ["1", "7"]

    run(program)


def test_calls_of_one_turn_of_the_loop_are_one_commit(run: Callable[[Program], None], path: Path) -> None:
    async def program() -> None:
        async with raxlog.aio.open(path) as store:
            stream = store.stream("jobs")
            await stream.append({"n": 0})
            before = commits_of(store.plain)
            await asyncio.gather(*[stream.append({"n": n}) for n in range(200)])
            assert commits_of(store.plain) - before <= 3
            assert len({entry.id for entry in store.plain.stream("jobs").range()}) == 201

    run(program)


def test_a_transaction_runs_whole_in_the_thread_that_writes(run: Callable[[Program], None], path: Path) -> None:
    async def program() -> None:
        async with raxlog.aio.open(path) as store:
            def move(tx: raxlog.Transaction) -> raxlog.StreamID:
                assert threading.current_thread() is not threading.main_thread()
                tx.state["at"] = b"1"
                return tx.stream("jobs").append({"n": 1})

            def fails(tx: raxlog.Transaction) -> None:
                move(tx)
                raise StopIteration

            async def waits(tx: raxlog.Transaction) -> None:
                await store.stream("jobs").append({"n": 1})

            made = await asyncio.gather(store.transact(move), store.stream("jobs").append({"n": 2}))
            with pytest.raises(RuntimeError):
                await store.transact(fails)
            def returns_one(tx: raxlog.Transaction) -> Any:
                return waits(tx)

            for misused in (waits, returns_one):
                with pytest.raises(raxlog.InvalidArgument, match="await"):
                    await store.transact(misused)
            with pytest.raises(raxlog.InvalidArgument, match="await"):
                store.stream("refused", retention=raxlog.Retention(maxlen=5))  # type: ignore[call-overload]
            assert sorted(made) == [entry.id async for entry in store.stream("jobs")]

    run(program)


# -- waiting ------------------------------------------------------------------------------------


def test_results_are_waited_for_without_a_thread(run: Callable[[Program], None], path: Path) -> None:
    async def program() -> None:
        async with group_of(path) as (store, stream, group):
            ids = await stream.extend({"n": n} for n in range(50))
            assert await group.wait_result(ids[0], 0) == raxlog.Result(status="timeout")
            began = time.monotonic()
            assert await group.wait_result(ids[0], 0.1) == raxlog.Result(status="timeout")
            assert 0.1 <= time.monotonic() - began < SOON
            waiting = [asyncio.create_task(group.wait_result(sid)) for sid in ids]
            await blocked(store, 50)
            store.plain.stream("jobs").group("g").keep_results({ids[0]: raxlog.Result(0)}, 60)
            assert await waiting[0] == raxlog.Result(0)
            await group.keep_results({sid: raxlog.Result(n) for n, sid in enumerate(ids)}, 60)
            assert await asyncio.gather(*waiting) == [raxlog.Result(n) for n in range(50)]
            assert await group.wait_result(ids[7], 0) == raxlog.Result(7)

    run(program)


def test_a_thousand_tasks_that_wait_cost_no_thread_and_are_served_in_order(
    run: Callable[[Program], None], path: Path
) -> None:
    before = threading.active_count()  # other tests may have loaded what keeps a thread

    async def program() -> None:
        async with group_of(path) as (store, stream, group):
            served: list[int] = []

            async def consume(number: int) -> None:
                for entry in await group.read(f"w{number}", 1, timeout=None):
                    served.append(number)
                    await group.ack(entry.id)

            async def follow() -> None:
                async for _ in stream.follow("$"):
                    return

            readers = []
            for number in range(300):
                readers.append(asyncio.create_task(consume(number)))
                await blocked(store, number + 1) if number < 20 else None
            others = [asyncio.create_task(follow()) for _ in range(350)]
            others += [asyncio.create_task(store.read({"jobs": "$"}, timeout=None)) for _ in range(350)]
            await blocked(store, 1000)
            assert threading.active_count() <= before + 4  # writes, reads, others, the watcher
            store.plain.stream("jobs").extend({"n": n} for n in range(300))
            await asyncio.gather(*readers, *others)
            assert (served[:20], sorted(served)) == (list(range(20)), list(range(300)))

    run(program)


def test_a_wait_ends_at_its_deadline_and_when_a_pending_entry_falls_due(
    run: Callable[[Program], None], path: Path
) -> None:
    async def program() -> None:
        async with group_of(path) as (store, stream, group):
            begun = time.monotonic()
            assert await group.read("w", timeout=0.1) == []
            assert await store.read({"jobs": "$"}, timeout=0.1) == {}
            assert await store.read_group("g", "w", {"jobs": ">"}, timeout=0.1) == {}
            assert [entry async for entry in stream.follow(timeout=0.1)] == []
            assert 0.4 <= time.monotonic() - begun < SOON
            await stream.append({"n": 1})
            await group.read("dead")
            taken = await group.read("w", timeout=SOON, claim_idle=0.2)
            assert [entry.deliveries for entry in taken] == [2]

    run(program)


def test_a_follower_goes_on_where_a_cancelled_task_left_it(run: Callable[[Program], None], path: Path) -> None:
    async def program() -> None:
        chance = random.Random(SEED)
        async with raxlog.aio.open(path) as store:
            stream = store.stream("jobs")
            follower = stream.follow("0")
            got: list[raxlog.StreamID] = []

            async def take() -> None:
                async for entry in follower:
                    got.append(entry.id)

            made: list[raxlog.StreamID] = []
            while len(made) < 500 or len(got) < len(made):
                task = asyncio.create_task(take())
                if len(made) < 500:
                    made += await stream.extend({"n": n} for n in range(chance.randrange(30)))
                await asyncio.sleep(chance.random() * 0.003)
                task.cancel()
                await asyncio.wait([task])
            assert got == made, f"seed {SEED}"
            assert follower.after == made[-1]

    run(program)


# -- cancelling ---------------------------------------------------------------------------------


def test_an_append_of_a_cancelled_task_is_whole_or_absent_and_idempotent_id_tells_which(
    run: Callable[[Program], None], path: Path
) -> None:
    many = 10_000 if LONG else 2_000

    async def program() -> None:
        chance = random.Random(SEED)
        async with raxlog.aio.open(path) as store:
            stream = store.stream("jobs")
            begin = await stream.append({"n": "first"})
            await stream.configure(idempotence_cap=many)

            async def append(n: int) -> raxlog.StreamID:
                sid = await stream.append({"n": n}, producer="p", idempotent_id=str(n))
                assert sid is not None
                return sid

            tasks = []
            for n in range(many):
                tasks.append(asyncio.create_task(append(n)))
                if chance.random() < 0.02:
                    await asyncio.sleep(chance.random() * 0.002)
                if chance.random() < 0.7:
                    tasks[-chance.randint(1, min(n + 1, 100))].cancel()
            await asyncio.wait(tasks)
            done = {n: task.result() for n, task in enumerate(tasks) if not task.cancelled()}
            there = {int(entry.fields["n"]): entry.id async for entry in stream.range(f"({begin}")}
            cancelled = set(range(many)) - set(done)
            assert len(cancelled) > many // 10, f"seed {SEED}"
            assert {n: there.get(n) for n in done} == done, f"seed {SEED}"
            again = {n: await append(n) for n in chance.sample(sorted(cancelled), min(200, len(cancelled)))}
            for n, sid in again.items():
                assert (there.get(n, sid) == sid), f"seed {SEED}"
            assert set(there) - set(done) <= cancelled

    run(program)


def test_a_cancelled_read_takes_nothing(run: Callable[[Program], None], path: Path) -> None:
    many = 5_000 if LONG else 600

    async def program() -> None:
        chance = random.Random(SEED)
        async with group_of(path) as (_, stream, group):
            got: list[raxlog.StreamID] = []

            async def read(number: int) -> None:
                got.extend(entry.id for entry in await group.read(f"w{number}", chance.randint(1, 3), timeout=None))

            tasks: set[asyncio.Task[None]] = set()
            made: list[raxlog.StreamID] = []
            while len(made) < many:
                tasks |= {asyncio.create_task(read(number)) for number in range(chance.randrange(4))}
                made += await stream.extend({"n": n} for n in range(chance.randint(1, 4)))
                await asyncio.sleep(chance.choice((0, 0, 0.0005)))
                for task in chance.sample(sorted(tasks, key=id), len(tasks) // 2):
                    task.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            assert len(got) == len(set(got)), f"seed {SEED}"
            pending = await group.pending_entries("-")
            held = {row.id for row in pending if row.consumer is not None}
            assert held == set(got), f"seed {SEED}: what is pending with a consumer was got by its task"
            rest = [entry.id for entry in await group.read("last", claim_idle=60.0)]
            assert sorted(got + rest) == made, f"seed {SEED}"

    run(program)


def test_a_group_that_nobody_else_reads_goes_back_where_it_stood(run: Callable[[Program], None], path: Path) -> None:
    async def program() -> None:
        async with group_of(path) as (store, stream, group):
            await stream.extend({"n": n} for n in range(10))
            before = await group.info()
            for _ in range(50):
                task = asyncio.create_task(group.read("w", 3, noack=random.random() < 0.5))
                while not store._threads.executors["writes"]._under_way:
                    await asyncio.sleep(0)
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert replace(await group.info(), consumers=before.consumers) == before
            assert len(await group.read("w")) == 10

    run(program)


# -- the end ------------------------------------------------------------------------------------


def test_closing_wakes_those_that_wait_completes_what_is_under_way_and_refuses_the_rest(
    run: Callable[[Program], None], path: Path
) -> None:
    async def program() -> None:
        async with group_of(path) as (store, stream, group):
            waiting = [asyncio.create_task(group.read("w", timeout=None)) for _ in range(20)]
            await blocked(store, 20)
            writing = [asyncio.create_task(stream.append({"n": n}, "*")) for n in range(20)]
            await asyncio.sleep(0)
            begun = time.monotonic()
            await asyncio.gather(store.aclose(), store.aclose())
            assert time.monotonic() - begun < SOON
            outcomes = await asyncio.gather(*waiting, *writing, return_exceptions=True)
            assert sum(isinstance(outcome, raxlog.StreamID) for outcome in outcomes) + sum(
                type(outcome) is raxlog.StoreClosed for outcome in outcomes) == 40
            for late in (stream.append({"n": 1}), group.read("w"), anext(stream.range()), store.flush()):
                with pytest.raises(raxlog.StoreClosed):
                    await late
            with pytest.raises(raxlog.StoreClosed):
                store.stream("x")
            await store.aclose()

    run(program)


def test_closing_is_bounded_and_tells_what_it_cannot_end(path: Path) -> None:
    async def program() -> None:
        go_on = threading.Event()
        store = await raxlog.aio.open(path)
        hangs = asyncio.create_task(store.transact(lambda tx: go_on.wait(60)))
        queued = asyncio.create_task(store.stream("jobs").append({"n": 1}))
        await asyncio.sleep(0.05)
        with pytest.raises(raxlog.StoreError, match="cannot be broken off"):
            await store.aclose(timeout=0.1)
        go_on.set()
        assert await hangs
        with pytest.raises(raxlog.StoreClosed):
            await queued
        await store.aclose()

    asyncio.run(program())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("raxlog")]


def test_an_exception_from_outside_in_an_executor_s_thread_goes_to_what_waits_and_the_next_call_starts_another(
    run: Callable[[Program], None], path: Path
) -> None:
    async def program() -> None:
        async with raxlog.aio.open(path) as store:
            stream, done, struck, n = store.stream("s"), 0, 0, 0
            while n < 8 or struck < 3:
                n += 1
                await stream.append({"n": n})
                done += 1
                await asyncio.sleep(n // 2 % 8 / 1_000)  # the thread is on its last steps, or waits for the next call
                name = f"raxlog writes to {path}"
                (thread,) = (one for one in threading.enumerate() if one.name == name)
                ident = ctypes.c_ulong(thread.ident or 0)
                assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(SystemError)) == 1
                try:
                    await asyncio.wait_for(stream.append({"n": n}), SOON)
                    done += 1  # the thread had gone on a step, and was ended before this
                except SystemError:
                    struck += 1
                assert len([entry async for entry in stream.range()]) == done
        while "raxlog notice" in other_threads():  # they log what has ended a thread, and hold nothing up
            await asyncio.sleep(0.001)

    run(program)


def test_a_loop_that_is_closed_with_calls_under_way_leaves_no_thread(path: Path) -> None:
    for waits in (False, True):
        loop = asyncio.new_event_loop()

        async def program(waits: bool = waits) -> tuple[AsyncStore, list[asyncio.Task[Any]]]:
            store = await raxlog.aio.open(path)
            stream = store.stream("jobs")
            group = await stream.create_group("g", "$", create_stream=True, exist_ok=True)
            if waits:
                calls: list[Any] = [group.read("w", timeout=None), store.read({"jobs": "$"}, timeout=None)]
            else:
                calls = [stream.append({"n": n}) for n in range(50)]
            tasks = [asyncio.create_task(call) for call in calls]
            await asyncio.sleep(0.1 if waits else 0)
            return store, tasks

        store, tasks = loop.run_until_complete(program())
        loop.close()
        end = time.monotonic() + SOON
        while names := [each for each in other_threads() if each.startswith("raxlog ") and "watcher" not in each]:
            assert time.monotonic() < end, names
            time.sleep(0.05)
        store.plain.stream("jobs").append({"n": "after"})  # nothing is locked
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        store.plain.close()


def test_a_program_that_never_closes_its_store_ends(path: Path) -> None:
    program = (
        "import asyncio, sys, raxlog.aio\n"
        "async def main():\n"
        "    store = await raxlog.aio.open(sys.argv[1])\n"
        "    asyncio.create_task(store.stream('jobs').create_group('g', create_stream=True))\n"
        "    print(await store.stream('jobs').append({'n': 1}))\n"
        "    return store\n"
        "kept = asyncio.run(main())\n"
    )
    child = forkserver.run([sys.executable, "-c", program, str(path)], capture_output=True, timeout=30, text=True,
                           check=False)
    assert (child.returncode, child.stderr) == (0, "")
    with raxlog.open(path) as store:
        assert len(store.stream("jobs")) == 1


def test_another_loop_or_thread_is_refused(path: Path) -> None:
    async def opened() -> AsyncStore:
        return await raxlog.aio.open(path)

    async def append(store: AsyncStore) -> None:
        await store.stream("jobs").append({"n": 1})

    with asyncio.Runner() as one:
        store = one.run(opened())
        with asyncio.Runner() as other:
            for call in (append(store), store.aclose(), store.stream("jobs").get("1-1")):
                with pytest.raises(raxlog.StoreError, match="another event loop"):
                    other.run(call)
        one.run(append(store))
        one.run(store.aclose())


def test_an_open_that_is_cancelled_or_refused_leaves_nothing(run: Callable[[Program], None], path: Path) -> None:
    async def program() -> None:
        for wait in (0.0, 0.0002, 0.001, 0.003):
            async def opens() -> None:
                async with raxlog.aio.open(path):
                    await asyncio.sleep(60)

            task = asyncio.create_task(opens())
            await asyncio.sleep(wait)
            task.cancel()
            await asyncio.wait([task])
        with pytest.raises(raxlog.NotAStore):
            await raxlog.aio.open(path / "none", create=False)
        forgotten = raxlog.aio.open(path)
        assert "not open" in repr(forgotten)
        for call in (lambda: forgotten.stream("jobs"), lambda: forgotten.path, lambda: forgotten.state):
            with pytest.raises(raxlog.StoreClosed, match="await"):
                call()
        assert not hasattr(forgotten, "subjects")

    run(program)


# -- the stall of the loop ------------------------------------------------------------------------


def test_a_commit_that_waits_for_another_process_holds_up_neither_the_loop_nor_reads(
    run: Callable[[Program], None], path: Path
) -> None:
    async def program() -> None:
        async with group_of(path, lock_timeout=0.5) as (store, stream, group):
            sid = await stream.append({"n": 0})
            assert await group.read("w")
            assert not await group.read("w")
            inside, go_on = threading.Event(), threading.Event()

            def hold() -> None:
                with store.plain.transaction():
                    inside.set()
                    go_on.wait(SOON)

            holder = threading.Thread(target=hold)
            holder.start()
            inside.wait(SOON)
            writes = [asyncio.create_task(stream.append({"n": n})) for n in range(3)]
            reads = 0
            while not writes[0].done():
                assert await stream.get(sid)
                assert await group.read("w") == []
                reads += 1
            assert reads > 10
            for outcome in await asyncio.gather(*writes, return_exceptions=True):
                assert type(outcome) is raxlog.LockTimeout
            go_on.set()
            holder.join()
            assert await stream.length() == 1

    run(program)
