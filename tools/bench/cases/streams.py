"""Streams: scans, ranges and sizes against sqlite3; counts; reads beside a full overlay; memory."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import raxlog

from ..peers import rows
from ..rounds import Figure, Rounds, each_us, ms_of, rate_of, single
from .commits import BATCH, SQLITE, sides

OVERLAID = 6_000  # entries whose nodes the overlay has: a checkpoint is due at a few more
METAS = 8192  # bytes of data.mdb that a checkpoint changes


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


def overlay(rounds: Rounds) -> list[Figure]:
    """get and range(count=100), where the last checkpoint has all, and where the overlay is full: with appends behind
    what is read; with a change in each node that is read."""
    entries, first = 10 * OVERLAID, rounds.folder / "overlay.rax"
    with raxlog.open(first) as store:
        ids = store.stream("events").extend(rows(entries, 0))
    gone = ids[:OVERLAID:90]  # a node has more
    asked = random.Random(4).sample(sorted({*ids[: OVERLAID - 200]} - {*gone}), 500)
    changes: dict[str, Callable[[raxlog.Stream], object]] = {
        "appends": lambda stream: stream.extend(rows(OVERLAID, entries)),
        "a change in each node": lambda stream: stream.delete(*gone),
    }

    def took(call: Callable[[raxlog.StreamID], object]) -> float:
        return min(each_us(call, asked) for _ in range(3))

    def hundred(stream: raxlog.Stream, start: raxlog.StreamID) -> list[raxlog.Entry]:
        return list(stream.range(start, "+", count=100))

    figures = []
    for number, (name, change) in enumerate(changes.items()):
        below, full = (shutil.copytree(first, first.with_name(f"overlay-{number}-{side}.rax"))
                       for side in ("none", "full"))
        with raxlog.open(below) as store:
            change(store.stream("events"))
        with raxlog.open(below) as none, raxlog.open(full, durability="relaxed") as store:
            metas = (full / "000001" / "data.mdb").read_bytes()[:METAS]
            change(store.stream("events"))
            streams = {"all in data.mdb": none.stream("events"), "full overlay": store.stream("events")}
            figures += rounds.contest(f"get, {name}", {
                label: partial(took, stream.get) for label, stream in streams.items()
            }, "µs", lower_is_better=True)
            figures += rounds.contest(f"range of 100, {name}", {
                label: partial(took, partial(hundred, stream)) for label, stream in streams.items()
            }, "µs", lower_is_better=True)
            if metas != (full / "000001" / "data.mdb").read_bytes()[:METAS]:
                raise RuntimeError("a checkpoint came in between: the overlay was not full")
    return figures


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
