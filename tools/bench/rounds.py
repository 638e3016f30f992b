"""How a figure is taken: contenders in turn, several rounds, medians and ratios.

    round 1   sqlite3 ───┤ raxlog ───┤ disk ───┤      a slice each, one right after the other
    round 2   sqlite3 ───┤ raxlog ───┤ disk ───┤
    …         └─ rate, processor time of one operation, and the ratio of both to the round's first slice

Disks and shared machines drift by a factor of two within a minute. So what is reported is the median of
a contender's slices, and the median of its *ratio* to the first contender, round by round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

from .sampler import Sampler

T = TypeVar("T")


class Slice(NamedTuple):
    rate: float  # operations a second
    cpu: float  # processor time of one operation, user and kernel, in microseconds


@dataclass
class Figure:
    """One contender in one contest: its rates (or times) and its processor times, round by round."""

    contest: str
    contender: str
    unit: str
    rates: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)  # above 1 is better than the first contender
    cpu: list[float] = field(default_factory=list)  # µs an operation; empty where it is not measured
    cpu_ratios: list[float] = field(default_factory=list)  # below 1 is less than the first contender
    system_calls: list[float] = field(default_factory=list)  # of one operation; empty where they are not counted

    @property
    def median(self) -> float:
        return statistics.median(self.rates)

    @property
    def cpu_median(self) -> float:
        """The median of the processor times, where they are measured."""
        return statistics.median(self.cpu)

    @property
    def spread(self) -> tuple[float, float]:
        """The lower and the upper quartile of the rates."""
        if len(self.rates) == 1:
            return self.rates[0], self.rates[0]
        low, _, high = statistics.quantiles(self.rates, n=4, method="inclusive")
        return low, high


@dataclass
class Rounds:
    """Where and how long to measure; the cases pass it the contenders of their contests."""

    folder: Path
    slices: int = 7
    seconds: float = 1.0  # of a slice
    entries: int = 1_000_000
    report: Callable[[int, int], object] = lambda done, total: None  # slices of the contest under way
    sampler: Sampler | None = None  # then only raxlog runs, and is profiled

    def contest(self, name: str, contenders: Mapping[str, Callable[[], float | Slice]], unit: str = "/s",
                lower_is_better: bool = False, slices: int = 0) -> list[Figure]:
        """Run the contenders in turn; each call returns a slice, or its rate (or time) alone."""
        if self.sampler:
            contenders = {label: run for label, run in contenders.items() if label.startswith("raxlog")}
        figures = {label: Figure(name, label, unit) for label in contenders}
        total = (slices or self.slices) * len(contenders)
        for done in range(total):
            label = [*contenders][done % len(contenders)]
            if self.sampler:
                with self.sampler.taking(f"{name}: {label}"):
                    taken = contenders[label]()
            else:
                taken = contenders[label]()
            figure, base = figures[label], next(iter(figures.values()))
            rate = taken.rate if isinstance(taken, Slice) else taken
            figure.rates.append(rate)
            figure.ratios.append(base.rates[-1] / rate if lower_is_better else rate / base.rates[-1])
            if isinstance(taken, Slice):
                figure.cpu.append(taken.cpu)
                if base.cpu:
                    figure.cpu_ratios.append(taken.cpu / base.cpu[-1])
            self.report(done + 1, total)
        return list(figures.values())

    def rate(self, work: Callable[[], int], beside: int = 0, last: Callable[[], object] = lambda: None) -> Slice:
        """Call ``work`` (which returns how many it did) for a slice, and ``last`` once at its end.

        ``beside``: a process whose time counts too.
        """
        done = 0
        start, used = time.perf_counter(), cpu_seconds(beside)
        while not done or time.perf_counter() - start < self.seconds:
            done += work()
        last()
        return Slice(done / (time.perf_counter() - start), (cpu_seconds(beside) - used) / done * 1e6)


def cpu_seconds(beside: int = 0) -> float:
    """The processor time, user and kernel, that this process has used, and one more whose number is given (Linux)."""
    return time.process_time() + (used_by(beside) if beside else 0.0)


def used_by(pid: int) -> float:
    """The seconds of processor time that the threads of a process have used (Linux)."""
    return sum(int(task.read_text().split()[0]) for task in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def rate_of(work: Callable[[], int], clock: Callable[[], float] = time.perf_counter) -> float:
    """How many a second one call of ``work`` did."""
    start = clock()
    done = work()
    return done / (clock() - start)


def ms_of(work: Callable[[], object]) -> float:
    """How many milliseconds one call of ``work`` took."""
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1000


def each_us(work: Callable[[T], object], places: Iterable[T]) -> float:
    """The median of single calls, one for each place, in microseconds."""
    spent = []
    for place in places:
        start = time.perf_counter_ns()
        work(place)
        spent.append(time.perf_counter_ns() - start)
    return statistics.median(spent) / 1000


def median_us(work: Callable[[], object], times: int) -> float:
    """The median of single calls, in microseconds."""
    return each_us(lambda _: work(), range(times))


def single(contest: str, contender: str, work: Callable[[], object], times: int) -> Figure:
    """A figure by itself: the median of single calls."""
    return Figure(contest, contender, "µs", [median_us(work, times)])
