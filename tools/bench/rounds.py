"""How a figure is taken: contenders in turn, several rounds, medians and ratios.

Disks and shared machines drift by a factor of two within a minute. So every round gives each
contender a slice of its own, one right after the other, and what is reported is the median of
a contender's slices and the median of its *ratio* to the first contender, round by round.
"""

from __future__ import annotations

import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Figure:
    """One contender in one contest: its rates, round by round."""

    contest: str
    contender: str
    unit: str
    rates: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median of the rates."""
        return statistics.median(self.rates)

    @property
    def ratio(self) -> float:
        """The median of the ratios to the contest's first contender."""
        return statistics.median(self.ratios) if self.ratios else 1.0


def contest(name: str, contenders: dict[str, Callable[[], float]], rounds: int, unit: str = "/s",
            lower_is_better: bool = False) -> list[Figure]:
    """Run each contender ``rounds`` times in turn; each call returns its rate (or time).

    Ratios are such that above 1 is better than the first contender.
    """
    figures = {label: Figure(name, label, unit) for label in contenders}
    first = next(iter(contenders))
    for _ in range(rounds):
        for label, run in contenders.items():
            figures[label].rates.append(run())
        base = figures[first].rates[-1]
        for figure in figures.values():
            rate = figure.rates[-1]
            figure.ratios.append(base / rate if lower_is_better else rate / base)
    return list(figures.values())


def latencies(name: str, program: str, path: Path, times: int, commit: Callable[[int], object]) -> list[Figure]:
    """How soon another process, which runs ``program``, has in hand what each ``commit(n)`` of this one has written.

    It writes a byte when it is ready, and for each its monotonic time in ns, packed as "qq" with the
    number that came.
    """
    with subprocess.Popen([sys.executable, "-c", program, str(path), str(times)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.read(1)
        found = []
        for n in range(times):
            time.sleep(0.004 + n % 7 * 0.001)
            commit(n)
            committed = time.monotonic_ns()
            held, _ = struct.unpack("qq", other.stdout.read(16))
            found.append(max(0, held - committed) / 1000)
    found.sort()
    return [
        Figure(name, "median", "µs", [statistics.median(found)], [1.0]),
        Figure(name, "99 of 100", "µs", [found[len(found) * 99 // 100]], [1.0]),
    ]


def rate_for(seconds: float, work: Callable[[], int]) -> float:
    """Call ``work`` (which returns how many it did) for about ``seconds``; how many a second."""
    done = 0
    start = time.perf_counter()
    while True:
        done += work()
        spent = time.perf_counter() - start
        if spent >= seconds:
            return done / spent


def rate_of(work: Callable[[], int]) -> float:
    """How many a second one call of ``work`` did."""
    start = time.perf_counter()
    done = work()
    return done / (time.perf_counter() - start)


def median_us(work: Callable[[], object], times: int) -> float:
    """The median of single calls, in microseconds."""
    spent = []
    for _ in range(times):
        start = time.perf_counter_ns()
        work()
        spent.append(time.perf_counter_ns() - start)
    return statistics.median(spent) / 1000
