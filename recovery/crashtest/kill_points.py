"""Named points: the workload is killed at each crash_point() it passes, at each hit of it.

    discovery   app.begin ×3   app.half ×3           one run that only counts
    then        (app.begin, 1) (app.begin, 2) …      one run each, killed there

A pattern that no point fits is a failure: a test that cannot fail proves nothing.
"""

from __future__ import annotations

import fnmatch
import os
import signal
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ...storage import crash_point
from ...storage.errors import InvalidArgument
from .report import ModeResult
from .stage import Stage
from .system_calls import SystemCalls


class KillAt:
    """Kill the workload at chosen places; a namespace for the two kinds of places."""

    @staticmethod
    def points(*patterns: str, most_hits: int | None = None) -> Points:
        """At every crash_point() whose name fits one of the patterns ("app.*"), at each of its hits.

        ``most_hits`` limits the hits of one point: they are then spread over all of them.
        """
        return Points(patterns, most_hits)

    @staticmethod
    def system_call(which: str | Iterable[int] = "all", *, calls: tuple[str, ...] = (),
                    halves: bool = True) -> SystemCalls:
        """Before the N-th call that changes the folder: ``"all"``, or the numbers, from 1.

        ``calls`` names the classes that count (create, write, size, rename, unlink, name, sync;
        all of them by default). With ``halves`` a write of several sectors is also cut in the
        middle. Needs a C compiler, and Linux.
        """
        if isinstance(which, str) and which != "all":
            raise InvalidArgument(f"which system calls: 'all', or their numbers; not {which!r}")
        return SystemCalls("all" if isinstance(which, str) else tuple(which), tuple(calls), halves)


@dataclass(frozen=True)
class Points:
    """KillAt.points: see there."""

    patterns: tuple[str, ...]
    most_hits: int | None = None
    needs_recorder: ClassVar[bool] = False  # the points are in the code itself

    def __post_init__(self) -> None:
        if not self.patterns or not all(isinstance(one, str) and one for one in self.patterns):
            raise InvalidArgument("KillAt.points() needs the names of points, or patterns like 'app.*'")

    @property
    def name(self) -> str:
        """How the report calls it."""
        return f"kill at points({', '.join(self.patterns)})"

    def run(self, stage: Stage, result: ModeResult) -> None:
        """Find the points, then kill at each hit of each."""
        counted = stage.scratch / "points"
        counted.write_bytes(b"")
        run = stage.undisturbed(result, watched=False, before=lambda: crash_point.tell(_Noting(counted)))
        if run is None:
            return
        hits = Counter(counted.read_text(encoding="utf-8").splitlines())
        for pattern in self.patterns:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in hits):
                stage.fail(result, pattern, "never reached: the workload passes no such point")
        wanted = [(name, hit) for name, count in hits.items() if self._fits(name)
                  for hit in _spread(count, self.most_hits)]
        for name, hit in stage.each(result, wanted):
            self._kill(stage, result, name, hit)

    def _fits(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.patterns)

    def _kill(self, stage: Stage, result: ModeResult, name: str, hit: int) -> None:
        folder = stage.fresh()
        counted = stage.scratch / "hits"
        counted.write_bytes(b"")
        run = stage.run(folder, watched=False, before=lambda: crash_point.tell(_Noting(counted, name, hit)))
        result.cases += 1
        wrong = ""
        if counted.read_bytes().count(b"\n") < hit:
            wrong = f"never reached in this run: it {run.ending()}"
        else:
            result.reached[name] = result.reached.get(name, 0) + 1
        stage.settle(result, f"{name}, hit {hit}", folder, run, wrong)


def _spread(count: int, most: int | None) -> list[int]:
    if most is None or count <= most:
        return list(range(1, count + 1))
    return sorted({1 + (count - 1) * index // max(1, most - 1) for index in range(most)})


class _Noting:
    """Notes the name of every point that is reached, by whatever process of the workload.

    With ``hit`` only that of one point, and at its N-th hit all processes are killed. One file counts for all of
    them: what is appended to it is never lost, and whoever finds the N-th there kills.
    """

    def __init__(self, path: Path, only: str = "", hit: int = 0) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._only = only
        self._most = hit * len(_noted(only))

    def __call__(self, name: str) -> None:
        if not self._only:
            os.write(self._descriptor, _noted(name))
        elif name == self._only:
            os.write(self._descriptor, _noted(name))
            if os.fstat(self._descriptor).st_size >= self._most:
                os.kill(0, signal.SIGKILL)  # the whole group, this process with it


def _noted(name: str) -> bytes:
    return name.encode() + b"\n"
