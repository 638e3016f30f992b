"""Jobs that do nothing: a worker process beside those of huey and taskiq; entries deferred, beside appended.

Each worker runs what its queue holds as its library's own consumer does, durably: huey's SQLite with fsync, taskiq
on redis-server with appendfsync always, as far as they are installed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import logging
import statistics
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import raxlog

from ..peers import rows
from ..rounds import Figure, Rounds, rate_of
from .queues import redis_server

JOBS = 20_000
WAKES = 300

Seen = list[tuple[float, float]]  # of each job: when it was run, and when it was sent, in s
Put = Callable[[Path, int, str], object]
Drain = Callable[[Path, int, str], Seen]


def jobs(rounds: Rounds) -> list[Figure]:
    """All contests: jobs a second of one worker process, and how soon an idle one runs a job."""
    peers: dict[str, tuple[Put, Drain]] = {"raxlog": (_put, _drain)}
    if importlib.util.find_spec("huey") is not None:
        peers = {"huey (SQLite, fsync)": (_huey_put, _huey_drain), **peers}
    with redis_server(rounds.folder) as redis, ProcessPoolExecutor(1, get_context("spawn")) as pool:
        url = ""
        if redis is not None and importlib.util.find_spec("taskiq_redis") is not None:
            url = "redis://127.0.0.1:{port}".format(**redis.connection_pool.connection_kwargs)
            peers["taskiq (redis, appendfsync always)"] = (_taskiq_put, _taskiq_drain)
        places = (rounds.folder / f"jobs-{number}" for number in itertools.count())
        figures = rounds.contest(f"{JOBS:,} jobs that do nothing, one worker process", {
            name: partial(_rate, pool, put, drain, places, url) for name, (put, drain) in peers.items()
        })
        figures += rounds.contest("from the append to the handler, idle worker, median", {
            name: partial(_lateness, pool, put, drain, places, url) for name, (put, drain) in peers.items()
        }, "ms", lower_is_better=True)
    return figures + _deferred(rounds)


def _rate(pool: Executor, put: Put, drain: Drain, places: Any, url: str) -> float:
    place = next(places)
    put(place, JOBS, url)
    seen = pool.submit(drain, place, JOBS, url).result()
    return (JOBS - 1) / (seen[-1][0] - seen[0][0])


def _lateness(pool: Executor, put: Put, drain: Drain, places: Any, url: str) -> float:
    place = next(places)
    put(place, 1, url)
    ready = pool.submit(drain, place, WAKES + 1, url)
    time.sleep(1)
    for _ in range(WAKES):
        put(place, 1, url)
        time.sleep(0.005)
    return statistics.median(run - sent for run, sent in ready.result()[1:]) * 1000


def _deferred(rounds: Rounds) -> list[Figure]:
    """1,000 entries a transaction, to come within the next day, beside appends; then what is due of many."""
    count, hundred = min(rounds.entries, 1_000_000), rows(1000, 3)
    with raxlog.open(rounds.folder / "deferred.rax") as store:
        begin = datetime.now(UTC) + timedelta(days=1)

        def defer(name: str, step: int) -> int:
            with store.transaction() as tx:
                for n, row in enumerate(hundred):
                    tx.stream(name).defer(row, at=begin + timedelta(
                        milliseconds=(done[name] + n) * step % 86_400_000))
            done[name] += 1000
            return 1000

        def append() -> int:
            with store.transaction() as tx:
                for row in hundred:
                    tx.stream("plain").append(row)
            return 1000

        done = {"ascending": 0, "anywhere": 0}
        contest: dict[str, Callable[[], int]] = {
            "raxlog, append": append, "raxlog, defer, times ascend": partial(defer, "ascending", 1),
            "raxlog, defer, any time": partial(defer, "anywhere", 7_654_321),
        }
        return rounds.contest("1,000 deferred entries a commit", {
            name: partial(_for_many, run, count) for name, run in contest.items()
        }, slices=1)


def _for_many(run: Callable[[], int], count: int) -> float:
    return rate_of(lambda: sum(run() for _ in range(count // 1000)))


# -- raxlog ------------------------------------------------------------------------------------


def _put(place: Path, count: int, _: str) -> None:
    stream = _store(place).stream("jobs")
    stream.extend([{"sent": time.time()}] * count)


def _drain(place: Path, count: int, _: str) -> Seen:
    seen: Seen = []

    def handle(entry: raxlog.Entry) -> None:
        seen.append((time.time(), float(entry.fields["sent"])))
        if len(seen) == count:
            worker.stop()

    worker = _store(place).stream("jobs").group("mail").worker(handle)
    worker.run(signals=False)
    return seen


@cache
def _store(place: Path) -> raxlog.Store:
    store = raxlog.open(place)
    with suppress(raxlog.GroupExists):
        store.stream("jobs").create_group("mail")
    return store


# -- huey --------------------------------------------------------------------------------------


@cache
def _huey(place: Path) -> tuple[Any, Any, Seen]:
    from huey import SqliteHuey  # noqa: PLC0415 - only where it is

    queue = SqliteHuey(filename=str(place), fsync=True, results=False)
    seen: Seen = []
    return queue, queue.task(name="job")(lambda sent: seen.append((time.time(), sent))), seen


def _huey_put(place: Path, count: int, url: str) -> None:
    job = _huey(place)[1]
    for _ in range(count):
        job(time.time())


def _huey_drain(place: Path, count: int, _: str) -> Seen:
    queue, _, seen = _huey(place)
    logging.getLogger("huey").setLevel(logging.ERROR)
    consumer = queue.create_consumer(workers=1, periodic=False, initial_delay=0.001, max_delay=0.01, backoff=1.15)
    consumer.start()
    while len(seen) < count:
        time.sleep(0.05)
    consumer.stop(graceful=True)
    return seen


# -- taskiq ------------------------------------------------------------------------------------


def _taskiq(place: Path, url: str) -> tuple[Any, Any, Seen]:
    from taskiq_redis import RedisStreamBroker  # noqa: PLC0415

    seen: Seen = []
    broker: Any = RedisStreamBroker(url, queue_name=place.name)

    async def run(sent: float) -> None:
        seen.append((time.time(), sent))

    return broker, broker.task("job")(run), seen


def _taskiq_put(place: Path, count: int, url: str) -> None:
    async def put() -> None:
        broker, job, _ = _taskiq(place, url)
        await broker.startup()
        for _ in range(count):
            await job.kiq(time.time())
        await broker.shutdown()

    asyncio.run(put())


def _taskiq_drain(place: Path, count: int, url: str) -> Seen:
    from taskiq.api import run_receiver_task  # noqa: PLC0415

    logging.getLogger("taskiq").setLevel(logging.CRITICAL)

    async def drain() -> Seen:
        broker, _, seen = _taskiq(place, url)
        broker.is_worker_process = True
        receiver = asyncio.create_task(run_receiver_task(broker, run_startup=True))
        while len(seen) < count:
            await asyncio.sleep(0.05)
        receiver.cancel()
        await asyncio.gather(receiver, return_exceptions=True)
        await broker.shutdown()
        return seen

    return asyncio.run(drain())
