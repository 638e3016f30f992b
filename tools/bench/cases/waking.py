"""How soon a reader that waits in another process has the entry in hand, and what waiting costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import raxlog

from ..children import running
from ..rounds import Figure, Rounds, used_by


def latency(name: str, child: str, path: Path, wakes: int, write: Callable[[int], object]) -> list[Figure]:
    """How long after ``write(n)`` has returned another process, which does this, has what was written."""
    latencies = []
    with running(child, path, wakes) as (reader,):
        for n in range(wakes):
            time.sleep(0.004 + n % 7 * 0.001)
            write(n)
            committed = time.monotonic_ns()
            latencies.append(max(0, int(reader.stdout.readline()) - committed) / 1000)
    latencies.sort()
    return [
        Figure(name, "median", "µs", [statistics.median(latencies)]),
        Figure(name, "99 of 100", "µs", [latencies[len(latencies) * 99 // 100]]),
    ]


def waking(rounds: Rounds, wakes: int = 400, sleepers: int = 10, seconds: float = 30.0) -> list[Figure]:
    """Wake-up latency from the commit's return, and the CPU of readers that sleep."""
    path = rounds.folder / "waking.rax"
    with raxlog.open(path) as store:
        stream = store.stream("events")
        store.stream("quiet").create_group("g", "0", create_stream=True)
        name = "a blocked reader in another process has the entry, after the commit"
        figures = latency(name, "waiter", path, wakes, lambda n: stream.append({"sent": n}))
        with running("sleeper", path, seconds + 60, many=sleepers) as asleep:
            quiet = [process.pid for process in asleep]
            time.sleep(2)  # so long falling asleep takes at most
            before, start = [used_by(pid) for pid in quiet], time.monotonic()
            time.sleep(seconds)
            shares = [(used_by(pid) - earlier) / (time.monotonic() - start)
                      for pid, earlier in zip(quiet, before, strict=True)]
    figures.append(Figure("CPU of blocked readers, of one core", f"{sleepers} processes", "%", [sum(shares) * 100]))
    return figures
