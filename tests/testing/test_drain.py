"""worker.drain(): until nothing is queued, due or waiting for a retry."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter
from datetime import datetime, timedelta

import pytest
import raxlog
from raxlog.aio import AsyncStore
from raxlog.testing import Clock

HOUR = 3600


def group_of(store: raxlog.Store) -> raxlog.Group:
    return store.stream("jobs").create_group("w", create_stream=True)


def worker_of(group: raxlog.Group, *arguments: object, **options: object) -> raxlog.Worker:
    worker = group.worker(*arguments, **options)  # type: ignore[arg-type]
    assert isinstance(worker, raxlog.Worker)
    return worker


def test_it_runs_what_is_queued_deferred_and_tried_again_at_their_times(raxlog_store: raxlog.Store,
                                                                       raxlog_clock: Clock) -> None:
    group, began, real = group_of(raxlog_store), raxlog_clock.now(), time.monotonic()
    stream = raxlog_store.stream("jobs")
    times: list[tuple[int, timedelta]] = []

    def handler(entry: raxlog.Entry) -> None:
        [(_, number)] = [(name, int(value)) for name, value in entry.pairs]
        times.append((number, raxlog_clock.now() - began))
        if number == 2 and entry.deliveries < 3:
            raise ValueError

    stream.append({"n": 1})
    stream.append({"n": 2})
    stream.defer({"n": 3}, delay=5 * HOUR)
    assert worker_of(group, handler, retry=HOUR).drain() == raxlog.Counts(done=3, failed=2)
    hours = [(number, round(after / timedelta(hours=1), 6)) for number, after in times]
    assert hours == [(1, 0), (2, 0), (2, 1), (2, 2), (3, 5)]
    assert raxlog_clock.now() - began == timedelta(hours=5)
    assert time.monotonic() - real < HOUR / 2
    assert group.info().pending == 0


def test_a_handler_that_always_fails_ends_in_the_dead_letters_after_its_attempts(raxlog_store: raxlog.Store,
                                                                               raxlog_clock: Clock) -> None:
    group = group_of(raxlog_store)
    raxlog_store.stream("jobs").append({"n": 1})

    def handler(entry: raxlog.Entry) -> None:
        raise raxlog.Retry(after=HOUR)

    assert worker_of(group, handler, max_deliveries=7).drain() == raxlog.Counts(failed=7, dead=1)
    assert len(group.dead_letters) == 1


@pytest.mark.parametrize("kind", ["snoozes", "snoozes for no time", "appends"])
def test_a_handler_without_an_end_is_an_error_that_says_so(kind: str, raxlog_store: raxlog.Store,
                                                          raxlog_clock: Clock) -> None:
    group = group_of(raxlog_store)
    stream = raxlog_store.stream("jobs")
    stream.append({"n": 1})

    def handler(entry: raxlog.Entry) -> None:
        stream.append({"n": 1})
        if kind != "appends":
            raise raxlog.Snooze(HOUR if kind == "snoozes" else 0)

    with pytest.raises(raxlog.RaxlogError, match="max_outcomes=50"):
        worker_of(group, handler).drain(max_outcomes=50)


def test_as_many_entries_as_the_limit_are_no_error(raxlog_store: raxlog.Store, raxlog_clock: Clock) -> None:
    group = group_of(raxlog_store)
    raxlog_store.stream("jobs").extend([{"n": n} for n in range(50)])
    assert worker_of(group, lambda entry: None).drain(max_outcomes=50) == raxlog.Counts(done=50)
    with pytest.raises(raxlog.InvalidArgument, match="max_outcomes"):
        worker_of(group, lambda entry: None).drain(max_outcomes=0)


def test_it_may_be_called_again_and_counts_each_call(raxlog_store: raxlog.Store, raxlog_clock: Clock) -> None:
    worker, stream = worker_of(group_of(raxlog_store), lambda entry: None), raxlog_store.stream("jobs")
    assert worker.drain() == raxlog.Counts()
    for many in (1, 3):
        stream.extend([{"n": n} for n in range(many)])
        assert worker.drain() == raxlog.Counts(done=many)
    assert worker.counts == raxlog.Counts(done=4)


def test_the_clock_stands_still_while_any_handler_runs(raxlog_store: raxlog.Store, raxlog_clock: Clock) -> None:
    group, failed = group_of(raxlog_store), threading.Event()
    raxlog_store.stream("jobs").extend([{"n": n} for n in range(8)])
    moves: list[datetime] = []
    runs = Counter[raxlog.StreamID]()
    first = itertools.count()

    def handler(entry: raxlog.Entry) -> None:
        runs[entry.id] += 1
        before = raxlog_clock.now()
        if next(first) == 0:
            assert failed.wait(30)
            time.sleep(0.3)  # while the other threads have nothing left but a retry
        elif entry.deliveries == 1:
            failed.set()
            raise ValueError
        if raxlog_clock.now() != before:
            moves.append(before)

    counts = worker_of(group, handler, threads=3, retry=HOUR, lease=1).drain()
    assert (counts.done, counts.failed, moves) == (8, 7, [])
    assert max(runs.values()) == 2


def test_what_another_consumer_holds_and_an_endless_pause_are_left(raxlog_store: raxlog.Store,
                                                                  raxlog_clock: Clock) -> None:
    group, stream = group_of(raxlog_store), raxlog_store.stream("jobs")
    before = raxlog_clock.now()
    stream.append({"n": 1})
    group.read("other")
    assert worker_of(group, lambda entry: None).drain() == raxlog.Counts()
    stream.append({"n": 2})
    group.pause()
    assert worker_of(group, lambda entry: None).drain() == raxlog.Counts()
    assert raxlog_clock.now() == before
    group.pause(until=before + timedelta(hours=1))
    assert worker_of(group, lambda entry: None).drain().done >= 1
    assert raxlog_clock.now() - before == timedelta(hours=1)


def test_without_the_clock_of_tests_it_waits(raxlog_store: raxlog.Store) -> None:
    group, began = group_of(raxlog_store), time.monotonic()
    raxlog_store.stream("jobs").defer({"n": 1}, delay=0.3)
    assert worker_of(group, lambda entry: None).drain() == raxlog.Counts(done=1)
    assert time.monotonic() - began >= 0.29


def test_stop_ends_it_while_it_waits(raxlog_store: raxlog.Store) -> None:
    worker = worker_of(group_of(raxlog_store), lambda entry: None)
    raxlog_store.stream("jobs").defer({"n": 1}, delay=HOUR)
    timer = threading.Timer(0.2, worker.stop)
    timer.start()
    assert worker.drain() == raxlog.Counts()
    timer.join()
    assert worker.drain() == raxlog.Counts()  # stopped is stopped


def test_an_error_of_the_group_comes_out(raxlog_store: raxlog.Store, raxlog_clock: Clock) -> None:
    group = group_of(raxlog_store)
    worker = worker_of(group, lambda entry: None)
    group.destroy()
    with pytest.raises(raxlog.NoGroup):
        worker.drain()


def test_a_worker_of_asyncio_drains_too(raxlog_async_store: AsyncStore,
                                        raxlog_clock: Clock) -> None:
    began, times = raxlog_clock.now(), list[timedelta]()

    async def handler(entry: raxlog.Entry) -> None:
        await asyncio.sleep(0)
        times.append(raxlog_clock.now() - began)
        if entry.deliveries < 3:
            raise ValueError

    async def program() -> raxlog.Counts:
        async with raxlog_async_store as store:
            stream = store.stream("jobs")
            group = await stream.create_group("w", create_stream=True)
            await stream.append({"n": 1})
            await stream.defer({"n": 2}, delay=24 * HOUR)
            worker = group.worker(handler, retry=HOUR)
            first: raxlog.Counts = await worker.drain()
            await stream.append({"n": 3})
            assert (await worker.drain()).done == 1
            return first

    assert asyncio.run(program()) == raxlog.Counts(done=2, failed=4)
    assert [round(one / timedelta(hours=1)) for one in times[:6]] == [0, 1, 2, 24, 25, 26]


def test_a_task_that_waits_is_woken_by_the_clock(raxlog_async_store: AsyncStore,
                                                 raxlog_clock: Clock) -> None:
    async def program() -> None:
        async with raxlog_async_store as store:
            group = await store.stream("jobs").create_group("w", create_stream=True)
            reads = [asyncio.create_task(group.read(name, timeout=HOUR)) for name in ("a", "b")]
            await asyncio.sleep(0.1)
            assert not any(task.done() for task in reads)
            raxlog_clock.advance(HOUR)
            assert await asyncio.wait_for(asyncio.gather(*reads), 30) == [[], []]

    asyncio.run(program())
