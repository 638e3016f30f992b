"""Streams: scans, ranges and sizes against sqlite3; counts; memory."""

from __future__ import annotations

import random
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import raxlog

from ..peers import rows
from ..rounds import Figure, Rounds, each_us, ms_of, rate_of, single
from .commits import BATCH, SQLITE, sides


def scans(rounds: Rounds) -> list[Figure]:
    """Reading all, and what an entry takes of the disk."""
    readings = rows(rounds.entries, 0)
    with sides(rounds, "scans") as (sqlite, store, stream, _):
        for at in range(0, len(readings), BATCH):
            sqlite.extend(readings[at : at + BATCH])
            stream.extend(readings[at : at + BATCH])
        total = len(stream)
        figures = rounds.contest("scan to dicts", {
            SQLITE: lambda: rate_of(sqlite.scan),
            "raxlog": lambda: rate_of(lambda: sum(1 for entry in stream.range() if entry.fields)),
        })
        return figures + rounds.contest("bytes on disk per entry", {
            SQLITE: lambda: sqlite.size() / total,
            "raxlog": lambda: (store.path / "000001" / "data.mdb").stat().st_size / total,
        }, "B", lower_is_better=True, slices=1)


def counts(rounds: Rounds) -> list[Figure]:
    """rank, select, count and split with 1 % deleted, opening, and the first range."""
    path = rounds.folder / "counts.rax"
    readings = rows(rounds.entries, 0)
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
            Figure("rank, 1 % deleted", "raxlog", "µs", [each_us(stream.rank, asked)]),
            Figure("select, 1 % deleted", "raxlog", "µs", [each_us(stream.select, places)]),
            Figure("count of a random range", "raxlog", "µs", [each_us(lambda a: stream.count(a, "+"), asked)]),
            single("split(64)", "raxlog", lambda: stream.split(64), 7),
        ]

    def opened() -> float:
        with ExitStack() as stack:
            return ms_of(lambda: stack.enter_context(raxlog.open(path)))

    def first_range() -> float:
        with raxlog.open(path) as store:
            return ms_of(lambda: list(store.stream("events").range("-", "+", count=100)))

    figures += rounds.contest("open the store", {"raxlog": opened}, "ms", lower_is_better=True)
    return figures + rounds.contest("first range of 100 after opening", {"raxlog": first_range}, "ms",
                                    lower_is_better=True)


def memory(rounds: Rounds) -> list[Figure]:
    """The process's own memory (RSS less mapped file) while importing and scanning, in a child."""
    command = [sys.executable, "-c", "from raxlog.tools.bench.cases import streams; streams.pour_and_scan()"]
    reply = subprocess.run(
        [*command, str(rounds.folder / "memory.rax"), str(rounds.entries)], capture_output=True, text=True, check=True
    )
    own, above = map(float, reply.stdout.split())
    name = f"memory while {rounds.entries:,} entries go in and out"
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
    """Resident memory that is not a mapped file, in MB (Linux)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 1024
