"""Appends whose callers do not wait for the disk, one a call, beside those that do.

    buffered        committed behind the callers, within 5 ms; the slice ends with its flush
    relaxed, commit each call waits for its own commit
    sqlite3         one INSERT a call, WAL: OFF leaves all flushing to the kernel, NORMAL flushes at
                    checkpoints; both may lose the last seconds to a power cut, FULL nothing
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import raxlog

from ..peers import Row, SqliteLog, rows
from ..rounds import Figure, Rounds, Slice, cpu_seconds


def buffered(rounds: Rounds) -> list[Figure]:
    """Single appends a second by one caller; and the longest that one of them took."""
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

        def behind() -> Slice:
            done = 0
            start, used = time.perf_counter(), cpu_seconds()
            while time.perf_counter() - start < seconds:
                done += hundred(stream.append)
            store.flush()
            return Slice(done / (time.perf_counter() - start), (cpu_seconds() - used) / done * 1e6)

        waiting: dict[str, Callable[[Row], object]] = {
            "raxlog, relaxed": relaxed.append, "raxlog, commit": commit.append,
            **{f"sqlite3 (WAL, {mode})": sqlite.append for mode, sqlite in sqlites.items()},
        }
        figures = rounds.contest("single appends, one caller", {
            "raxlog, buffered": behind,
            **{label: partial(rounds.rate, partial(hundred, append)) for label, append in waiting.items()},
        })

        def longest() -> float:
            worst = 0
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                start = time.perf_counter_ns()
                stream.append(readings[next(turn) % 1000])
                worst = max(worst, time.perf_counter_ns() - start)
            return worst / 1e6

        figures.append(Figure("longest of them", "raxlog, buffered", "ms", [longest()]))
    return figures
