"""What a commit costs: alone, beside a reader, from hand to hand, by threads, by processes, in batches.

    lone         sqlite3 | py-lmdb | raxlog         one caller
    reader       sqlite3 | raxlog                   another process reads the last ten every 5 ms; durable, relaxed
    handover     sqlite3 | raxlog                   appended here; taken and acknowledged there
    threads      sqlite3 alone | 16 threads
    processes    1 | 8                              processor time of all of them; and how long one waits
    batches      sqlite3 | raxlog                   1,000 a commit
    buffered     sqlite3 (OFF, NORMAL, FULL) | raxlog (buffered, relaxed, commit)

Each but the last has the disk beside it, which writes 4 KB and flushes. Buffered appends are committed within 5 ms,
and the slice ends with a flush; OFF leaves all flushing to the kernel, NORMAL flushes at checkpoints: both, as relaxed,
may lose the last commits to a power cut.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import raxlog

from ..children import at_work, running
from ..peers import ROW, BareLmdb, RawDisk, Row, SqliteLog, rows
from ..rounds import Figure, Rounds, Slice, cpu_seconds

THREADS, PROCESSES, BATCH = 16, 8, 1000
SQLITE = "sqlite3 (WAL, FULL)"
Contenders = dict[str, Callable[[], float | Slice]]


class Sides(NamedTuple):
    """Those of a case, open."""

    sqlite: SqliteLog
    store: raxlog.Store
    stream: raxlog.Stream
    disk: RawDisk


@contextmanager
def sides(rounds: Rounds, name: str) -> Iterator[Sides]:
    """An empty store, an SQLite database with an empty log, and the disk."""
    with (closing(SqliteLog(rounds.folder / f"{name}.sqlite")) as sqlite, raxlog.open(rounds.folder / f"{name}.rax") as
          store, closing(RawDisk(rounds.folder / f"{name}.disk")) as disk):
        yield Sides(sqlite, store, store.stream("events"), disk)


def flushing(rounds: Rounds, disk: RawDisk, entries: int = 1) -> Contenders:
    """The last of a contest: as many entries a second as there would be if a commit of so many were a flush alone."""
    def flush() -> int:
        disk.flush()
        return entries

    return {"disk, 4 KB flushed" + f" for {entries:,}" * (entries > 1): lambda: rounds.rate(flush)}


def one(work: Callable[[], object]) -> Callable[[], int]:
    """The call, which counts for one."""

    def once() -> int:
        work()
        return 1

    return once


def each(append: Callable[[Row], object]) -> Callable[[], int]:
    readings = cycle(rows(1000, 1))
    return one(lambda: append(next(readings)))


def lone(rounds: Rounds) -> list[Figure]:
    """Durable appends, one a commit, one caller."""
    with sides(rounds, "lone") as (sqlite, _, stream, disk), closing(BareLmdb(rounds.folder / "lone.lmdb")) as bare:
        return rounds.contest("a durable append", {
            SQLITE: lambda: rounds.rate(each(sqlite.append)),
            "bare py-lmdb put of 60 B": lambda: rounds.rate(one(lambda: bare.put(b"x" * 60))),
            "raxlog": lambda: rounds.rate(each(stream.append)), **flushing(rounds, disk),
        })


def reader(rounds: Rounds) -> list[Figure]:
    """Durable and relaxed appends while another process reads."""
    def beside(child: str, path: Path, append: Callable[[], int]) -> Slice:
        with running(child, path):
            return rounds.rate(append)

    with sides(rounds, "reader") as (sqlite, store, stream, disk):
        stream.append(ROW)
        figures = rounds.contest("a durable append, another process reads every 5 ms", {
            SQLITE: partial(beside, "sqlite-reader", sqlite.path, each(sqlite.append)),
            "raxlog": partial(beside, "reader", store.path, each(stream.append)), **flushing(rounds, disk),
        })
    normal = SqliteLog(rounds.folder / "reader-normal.sqlite", "NORMAL")
    with closing(normal), raxlog.open(rounds.folder / "reader-relaxed.rax", durability="relaxed") as relaxed:
        stream = relaxed.stream("events")
        stream.append(ROW)
        return figures + rounds.contest("a relaxed append, another process reads every 5 ms", {
            "sqlite3 (WAL, NORMAL)": partial(beside, "sqlite-reader", normal.path, each(normal.append)),
            "raxlog, relaxed": partial(beside, "reader", relaxed.path, each(stream.append)),
        })


def handover(rounds: Rounds) -> list[Figure]:
    """One entry at a time between two processes; the processor time is that of both."""
    def between(child: str, path: Path, append: Callable[[], int]) -> Slice:
        with running(child, path) as (taker,):
            def hand() -> int:
                append()
                taker.stdin.write("\n")
                taker.stdout.readline()
                return 1

            return rounds.rate(hand, taker.pid)

    with sides(rounds, "handover") as (sqlite, store, stream, disk):
        stream.create_group("g")
        return rounds.contest("an entry appended here, taken and acknowledged there", {
            SQLITE: partial(between, "sqlite-taker", sqlite.path, each(sqlite.append)),
            "raxlog": partial(between, "taker", store.path, each(stream.append)), **flushing(rounds, disk),
        })


def threads(rounds: Rounds) -> list[Figure]:
    """Durable appends by threads that share commits, beside a lone caller of SQLite."""
    with sides(rounds, "threads") as (sqlite, _, stream, disk):
        return rounds.contest("a durable append, commits shared by threads", {
            f"{SQLITE}, alone": lambda: rounds.rate(each(sqlite.append)),
            f"raxlog, {THREADS} threads": lambda: threaded(rounds, THREADS, each(stream.append)),
            **flushing(rounds, disk),
        })


def threaded(rounds: Rounds, count: int, work: Callable[[], int]) -> Slice:
    """The same call by so many threads, of which this is one."""
    done = [0] * count
    start, used = time.perf_counter(), cpu_seconds()
    end = start + rounds.seconds

    def loop(place: int) -> None:
        done[place] += work()
        while time.perf_counter() < end:
            done[place] += work()

    others = [threading.Thread(target=loop, args=(place,)) for place in range(1, count)]
    try:
        for thread in others:
            thread.start()
        loop(0)
    finally:
        end = 0.0
        for thread in others:
            thread.join()
    return Slice(sum(done) / (time.perf_counter() - start), (cpu_seconds() - used) / sum(done) * 1e6)


def by_processes(rounds: Rounds, workers: list[Any], work: str) -> Slice:
    """The same work by so many processes; the processor time of them all."""
    took = at_work(workers, work, rounds.seconds)
    done = sum(times for _, times in took)
    return Slice(done / rounds.seconds, sum(spent for spent, _ in took) / done * 1e6)


def processes(rounds: Rounds) -> list[Figure]:
    """Durable appends by processes, and how many commits of the others one has waited for at most."""
    waits: list[float] = []

    with sides(rounds, "processes") as (_, store, _, disk), running("worker", store.path, count=PROCESSES) as workers:
        store.close()

        def crowd() -> Slice:
            with raxlog.open(store.path) as opened:
                last = opened.stream("events").append(ROW)
            taken = by_processes(rounds, workers, "append")
            with raxlog.open(store.path) as opened:
                waits.append(_longest_wait(opened.stream("events").range(f"({last}")))
            return taken

        figures = rounds.contest("a durable append, by processes", {
            "raxlog, 1 process": lambda: by_processes(rounds, workers[:1], "append"),
            f"raxlog, {PROCESSES} processes": crowd, **flushing(rounds, disk),
        })
    return [*figures, Figure("the longest that one of them has waited", f"raxlog, {PROCESSES} processes",
                             "commits of the others", waits)]


def _longest_wait(entries: Iterable[raxlog.Entry]) -> int:
    """The most entries of others between two of the same."""
    before: dict[str, int] = {}
    longest = 0
    for place, entry in enumerate(entries):
        name = entry.fields["seq"]
        longest = max(longest, place - before.get(name, place) - 1)
        before[name] = place
    return longest


def batches(rounds: Rounds) -> list[Figure]:
    """Durable appends of a thousand entries."""
    readings = rows(BATCH, 2)

    def pour(extend: Callable[[list[Row]], object]) -> int:
        extend(readings)
        return BATCH

    with sides(rounds, "batches") as (sqlite, _, stream, disk):
        return rounds.contest("a durable append, 1,000 a commit", {
            SQLITE: lambda: rounds.rate(lambda: pour(sqlite.extend)),
            "raxlog": lambda: rounds.rate(lambda: pour(stream.extend)), **flushing(rounds, disk, BATCH),
        })


def buffered(rounds: Rounds) -> list[Figure]:
    """Single appends a second by one caller; and the longest of a slice."""
    readings = rows(1000, 6)
    turn = iter(range(1 << 62))
    folder, seconds = rounds.folder, rounds.seconds
    with ExitStack() as stack:
        store = stack.enter_context(raxlog.open(folder / "buffered.rax", durability="buffered"))
        relaxed = stack.enter_context(raxlog.open(folder / "relaxed.rax", durability="relaxed")).stream("events")
        commit = stack.enter_context(raxlog.open(folder / "commit.rax")).stream("events")
        stream = store.stream("events")
        sqlites = {mode: SqliteLog(folder / f"{mode}.sqlite", mode) for mode in ("OFF", "NORMAL", "FULL")}
        for sqlite in sqlites.values():
            stack.callback(sqlite.close)

        def hundred(append: Callable[[Row], object]) -> int:
            for _ in range(100):
                append(readings[next(turn) % 1000])
            return 100

        waiting: dict[str, Callable[[Row], object]] = {
            "raxlog, relaxed": relaxed.append, "raxlog, commit": commit.append,
            **{f"sqlite3 (WAL, {mode})": sqlite.append for mode, sqlite in sqlites.items()},
        }
        figures = rounds.contest("single appends, one caller", {
            "raxlog, buffered": partial(rounds.rate, partial(hundred, stream.append), last=store.flush),
            **{label: partial(rounds.rate, partial(hundred, append)) for label, append in waiting.items()},
        })

        def longest(append: Callable[[Row], object]) -> float:
            worst = 0
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                start = time.perf_counter_ns()
                append(readings[next(turn) % 1000])
                worst = max(worst, time.perf_counter_ns() - start)
            return worst / 1e6

        return figures + rounds.contest("the longest append of a slice, checkpoints beside it", {
            "raxlog, buffered": partial(longest, stream.append),
            **{label: partial(longest, append) for label, append in waiting.items()},
        }, "ms", lower_is_better=True)
