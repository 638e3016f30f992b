"""Streams against sqlite3 and bare LMDB: appends, batches, scans, ranges, sizes, counts."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import lmdb
import raxlog

from .peers import BareLmdb, Row, SqliteLog
from .rounds import Figure, contest, each_us, median_us, ms_of, rate_for, rate_of

BATCH = 1000


def rows(count: int, seed: int) -> list[Row]:
    """Small sensor readings, three fields each."""
    chance = random.Random(seed)
    return [
        {"sensor": f"device-{chance.randrange(1000):06d}", "temp": round(chance.uniform(-20, 45), 1), "seq": i}
        for i in range(count)
    ]


def lone_appends(folder: Path, rounds: int, seconds: float) -> list[Figure]:
    """Durable appends, one a commit, one caller."""
    sqlite = SqliteLog(folder / "lone.sqlite")
    bare = BareLmdb(folder / "lone.lmdb")
    readings = rows(1000, 1)
    value = b"x" * 60
    with raxlog.open(folder / "lone.rax") as store:
        stream = store.stream("events")
        turn = iter(range(1 << 62))

        def one(append: Callable[[Row], object]) -> int:
            append(readings[next(turn) % 1000])
            return 1

        figures = contest("durable append, 1 a commit", {
            "sqlite3 (WAL, FULL)": lambda: rate_for(seconds, lambda: one(sqlite.append)),
            "bare py-lmdb put of 60 B": lambda: rate_for(seconds, lambda: one(lambda _: bare.put(value))),
            "raxlog": lambda: rate_for(seconds, lambda: one(stream.append)),
        }, rounds)
    sqlite.close()
    bare.close()
    return figures


def threaded_appends(folder: Path, rounds: int, seconds: float) -> list[Figure]:
    """Durable appends by threads that share commits."""
    readings = rows(1000, 2)
    with raxlog.open(folder / "threads.rax") as store:
        stream = store.stream("events")

        def with_threads(count: int) -> float:
            done = [0] * count
            end = time.perf_counter() + seconds

            def work(place: int) -> None:
                while time.perf_counter() < end:
                    stream.append(readings[done[place] % 1000])
                    done[place] += 1

            threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
            start = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return sum(done) / (time.perf_counter() - start)

        return contest("durable append, shared commits", {
            f"raxlog, {n} thread{'s' if n > 1 else ''}": partial(with_threads, n) for n in (1, 4, 16, 64)
        }, rounds)


def batches(folder: Path, rounds: int, readings: list[Row]) -> list[Figure]:
    """Durable appends, 1,000 a commit."""
    sqlite = SqliteLog(folder / "batch.sqlite")
    part = len(readings) // rounds // BATCH * BATCH
    turn = {"sqlite": 0, "raxlog": 0}
    with raxlog.open(folder / "batch.rax") as store:
        stream = store.stream("events")

        def pour(name: str, extend: Callable[[list[Row]], object]) -> int:
            start = turn[name] % len(readings)
            turn[name] += part
            for at in range(start, start + part, BATCH):
                extend(readings[at : at + BATCH])
            return part

        figures = contest("durable append, 1,000 a commit", {
            "sqlite3 (WAL, FULL)": lambda: rate_of(lambda: pour("sqlite", sqlite.extend)),
            "raxlog": lambda: rate_of(lambda: pour("raxlog", stream.extend)),
        }, rounds)
        total = len(stream)

        figures += contest("scan to dicts", {
            "sqlite3 (WAL, FULL)": lambda: rate_of(sqlite.scan),
            "raxlog": lambda: rate_of(lambda: sum(1 for entry in stream.range() if entry.fields)),
        }, rounds)

        chance = random.Random(3)
        places = [chance.randrange(total - 100) for _ in range(300)]
        ids = [stream.select(place) for place in places]
        figures += contest("random range of 100, median", {
            "sqlite3 (WAL, FULL)": lambda: each_us(lambda at: sqlite.range(at, 100), places),
            "raxlog": lambda: each_us(lambda at: [e.fields for e in stream.range(at, count=100)], ids),
        }, rounds, "µs", lower_is_better=True)
    figures += contest("bytes on disk per entry", {
        "sqlite3 (WAL, FULL)": lambda: sqlite.size() / total,
        "raxlog": lambda: (folder / "batch.rax" / "000001" / "data.mdb").stat().st_size / total,
    }, 1, "B", lower_is_better=True)
    sqlite.close()
    return figures


def counts(folder: Path, readings: list[Row]) -> list[Figure]:
    """rank, select, count and split with 1 % deleted, opening, and the first range."""
    path = folder / "counts.rax"
    with raxlog.open(path, durability="relaxed") as store:
        stream = store.stream("events")
        ids = []
        for at in range(0, len(readings), BATCH):
            ids += stream.extend(readings[at : at + BATCH])
        chance = random.Random(4)
        gone = chance.sample(ids, len(ids) // 100)
        for at in range(0, len(gone), BATCH):
            stream.delete(*gone[at : at + BATCH])
        asked = chance.sample(ids, 2000)
        places = [chance.randrange(len(stream)) for _ in range(2000)]
        figures = [
            _single("rank, 1 % deleted", each_us(stream.rank, asked), "µs"),
            _single("select, 1 % deleted", each_us(stream.select, places), "µs"),
            _single("count of a random range", each_us(lambda a: stream.count(a, "+"), asked), "µs"),
            _single("split(64)", median_us(lambda: stream.split(64), 7), "µs"),
        ]

    def opened() -> float:
        with ExitStack() as stack:
            return ms_of(lambda: stack.enter_context(raxlog.open(path)))

    def first_range() -> float:
        with raxlog.open(path) as store:
            return ms_of(lambda: list(store.stream("events").range("-", "+", count=100)))

    figures += contest("open the store", {"raxlog": opened}, 7, "ms", lower_is_better=True)
    figures += contest("first range of 100 after opening", {"raxlog": first_range}, 7, "ms", lower_is_better=True)
    return figures


def anatomy(folder: Path) -> list[Figure]:
    """One lone durable append: pages dirtied, and CPU without the flush."""
    readings = rows(1000, 5)
    path = folder / "pages.rax"
    with raxlog.open(path) as store:
        stream = store.stream("events")
        for _ in range(50):
            stream.extend(readings)
        pages = _pages_per_commit(path, lambda i: stream.append(readings[i]), 300)
        start = time.process_time_ns()
        for i in range(500):
            stream.append(readings[i])
        spent = (time.process_time_ns() - start) / 500 / 1000
    unsynced = _unsynced_append(folder, readings)
    bare = BareLmdb(folder / "bare.lmdb", sync=False)
    alone = median_us(lambda: bare.put(b"x" * 60), 5000)
    bare.close()
    return [
        _single("pages written by a lone append", pages, "pages"),
        _single("CPU of a lone durable append, with the flush's own", spent, "µs"),
        _single("lone append without any flush", unsynced, "µs"),
        _single("bare py-lmdb put without any flush", alone, "µs"),
    ]


def _pages_per_commit(path: Path, append: Callable[[int], object], count: int) -> float:
    """Bytes handed to the kernel by commits, in pages; the meta page is not counted."""
    before = _counted("io", "wchar:")
    for i in range(count):
        append(i % 1000)
    # Each commit also writes 8 bytes to ``wake`` and some 120 of the meta page.
    return (_counted("io", "wchar:") - before) / count / 4096


def _counted(file: str, name: str) -> int:
    """What the kernel counts of this process under that name (Linux)."""
    lines = Path("/proc/self", file).read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def _unsynced_append(folder: Path, readings: list[Row]) -> float:
    """The same append with LMDB's flushes switched off, which only a benchmark may do."""
    with without_flushes(folder / "unsynced.rax") as store:
        stream = store.stream("events")
        turn = iter(range(1 << 62))
        for _ in range(200):
            stream.append(readings[0])
        return median_us(lambda: stream.append(readings[next(turn) % 1000]), 5000)


@contextmanager
def without_flushes(path: Path) -> Iterator[raxlog.Store]:
    """A store whose commits do not wait for the disk: for measuring CPU, for nothing else."""
    real: Any = lmdb.open

    def unsynced(*args: Any, **options: Any) -> Any:
        return real(*args, **{**options, "sync": False, "metasync": False})

    lmdb.open = unsynced  # type: ignore[assignment]
    try:
        with raxlog.open(path) as store:
            yield store
    finally:
        lmdb.open = real


def _single(contest_name: str, value: float, unit: str) -> Figure:
    return Figure(contest_name, "raxlog", unit, [value])


def memory(folder: Path, entries: int) -> list[Figure]:
    """The process's own memory (RSS less mapped file) while importing and scanning, in a child."""
    command = [sys.executable, "-c", "from raxlog.tools.bench import streams; streams.pour_and_scan()"]
    reply = subprocess.run(
        [*command, str(folder / "memory.rax"), str(entries)], capture_output=True, text=True, check=True
    )
    own, above = map(float, reply.stdout.split())
    name = f"memory while {entries:,} entries go in and out"
    return [
        Figure(name, "the whole process, less mapped file", "MB", [own]),
        Figure(name, "of it above the start", "MB", [above]),
    ]


def pour_and_scan() -> None:
    """The child of memory(): import the entries, scan them, print the greatest memory seen."""
    path, entries = sys.argv[1], int(sys.argv[2])
    base = peak = own_memory()
    with raxlog.open(path, durability="relaxed") as store:
        stream = store.stream("events")
        for at in range(0, entries, BATCH):
            stream.extend(rows(BATCH, at))
            if at % 50_000 == 0:
                peak = max(peak, own_memory())
        for place, entry in enumerate(stream.range()):
            if place % 50_000 == 0 and entry.fields:
                peak = max(peak, own_memory())
    print(peak, peak - base)


def own_memory() -> float:
    """Resident memory that is not a mapped file, in MB."""
    return _counted("status", "RssAnon:") / 1024
