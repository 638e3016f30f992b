"""KillAt: the workload is killed at each place of a kind, a run for each.

Named points: at each crash_point() it passes, at each hit of it.

    discovery   app.begin ×3   app.half ×3           one run that only counts
    then        (app.begin, 1) (app.begin, 2) …      one run each, killed there

A pattern that no point matches is a failure: a test that cannot fail proves nothing.

The N-th system call, for every N: killed before each call that changes the folder.

    open(O_CREAT)  write  write  fdatasync  write  rename  fsync        one run that counts: 7
    ✂1             ✂2     ✂3     ✂4         ✂5     ✂6      ✂7           seven runs, killed there
                   ✂2½    ✂3½               ✂5½                         and a write of several sectors by half
"""

from __future__ import annotations

import fnmatch
import os
import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from ....storage import crash_point
from ....storage.errors import InvalidArgument
from ..record import recorder
from .stage import Stage
from .tally import Tally


class Points:
    """KillAt.points: kill at every crash_point() whose name matches a pattern ("app.*"), at each of its hits.

    ``most_hits`` limits the number of hits per point; those chosen are spread over all hits.
    """

    needs_recorder = False  # the points are in the code itself

    def __init__(self, *patterns: str, most_hits: int | None = None) -> None:
        if not patterns or not all(isinstance(pattern, str) and pattern for pattern in patterns):
            raise InvalidArgument("KillAt.points() needs the names of points, or patterns like 'app.*'")
        self.patterns: tuple[str, ...] = patterns
        self.most_hits: int | None = most_hits

    @property
    def name(self) -> str:
        return f"kill at points({', '.join(self.patterns)})"

    def run(self, stage: Stage, result: Tally) -> None:
        """Find the points, then kill at each hit of each."""
        counted = stage.scratch / "points"
        counted.write_bytes(b"")
        run = stage.undisturbed(result, watched=False, before=lambda: crash_point.listen(_PointLog(counted)))
        if run is None:
            return
        hits = Counter(counted.read_text(encoding="utf-8").splitlines())
        fits: set[str] = set()
        for pattern in self.patterns:
            found = fnmatch.filter(hits, pattern)
            fits.update(found)
            if not found:
                stage.fail(result, pattern, "never reached: the workload passes no such point")
        wanted = [(name, hit) for name, count in hits.items() if name in fits for hit in _spread(count, self.most_hits)]
        for name, hit in stage.each(result, wanted):
            self._kill(stage, result, name, hit)

    def _kill(self, stage: Stage, result: Tally, name: str, hit: int) -> None:
        counted = stage.scratch / "hits"
        counted.write_bytes(b"")
        run = stage.run(watched=False, before=lambda: crash_point.listen(_PointLog(counted, name, hit)))
        missed = counted.read_bytes().count(b"\n") < hit
        result.count("" if missed else name)
        wrong = f"never reached in this run: it {run.ending()}" if missed else ""
        stage.settle(result, f"{name}, hit {hit}", run, wrong)


def _spread(count: int, limit: int | None) -> list[int]:
    if limit is None or count <= limit:
        return list(range(1, count + 1))
    return sorted({1 + (count - 1) * index // max(1, limit - 1) for index in range(limit)})


class _PointLog:
    """Logs the name of every point that any process of the workload reaches.

    With ``hit`` it logs one point only, and at its N-th hit kills all processes. They share one file, whose
    size is the count.
    """

    def __init__(self, path: Path, only: str = "", hit: int = 0) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._only = only
        self._most = hit * len(f"{only}\n".encode())

    def __call__(self, name: str) -> None:
        if self._only in ("", name):
            os.write(self._descriptor, f"{name}\n".encode())
            if self._most and os.fstat(self._descriptor).st_size >= self._most:
                os.kill(0, signal.SIGKILL)  # the whole group, with this process


class SystemCalls:
    """KillAt.system_call: kill before the N-th call that changes the folder: ``"all"``, or the numbers, from 1.

    ``calls`` names the classes that count (create, write, size, rename, unlink, name, sync;
    default: all). With ``halves``, a write of several sectors is also cut in the middle.
    Needs a C compiler, and Linux.
    """

    name = "kill at system calls"
    needs_recorder = True  # it counts the calls

    def __init__(self, which: str | Iterable[int] = "all", *, calls: tuple[str, ...] = (), halves: bool = True) -> None:
        self.which: str | tuple[int, ...] = which if isinstance(which, str) else tuple(which)
        if not (self.which == "all" if isinstance(self.which, str)
                else all(isinstance(number, int) and number > 0 for number in self.which)):
            raise InvalidArgument(f"which system calls: 'all', or their numbers, from 1; not {self.which!r}")
        self.classes: int = recorder.classes_of(tuple(calls))
        self.halves: bool = halves

    def run(self, stage: Stage, result: Tally) -> None:
        """Count the calls of an undisturbed run, then kill before each."""
        run = stage.undisturbed(result, classes=self.classes)
        if run is None:
            return
        numbers = range(1, run.calls + 1) if self.which == "all" else [int(one) for one in self.which]
        missed = 0
        writes = []
        for number in stage.each(result, numbers):
            struck = self._kill(stage, result, number, recorder.KILL)
            missed += not struck
            if struck == "write" and self.halves:
                writes.append(number)
        for number in stage.each(result, writes):
            missed += not self._kill(stage, result, number, recorder.KILL_HALF)
        if missed:
            result.notes.append(f"{missed} runs ended before the call at which they should have been killed")
        if missed == result.planned:
            stage.fail(result, "every call", "never reached: no run was killed")

    def _kill(self, stage: Stage, result: Tally, number: int, action: int) -> str:
        """Kill one run there. Returns the class of the call that was struck, or "" if none."""
        run = stage.run(target=number, action=action, classes=self.classes)
        where = f"{'half of' if action == recorder.KILL_HALF else 'before'} call {number}"
        where += f" ({run.fired_at})" if run.fired else ""
        result.count(run.fired_at if run.fired else "")
        wrong = ""
        if run.status is None:
            wrong = f"stuck: the workload {run.ending()}"
        elif not run.fired and run.status != 0:
            wrong = f"the workload {run.ending()} before it was killed"
        stage.settle(result, where, run, wrong)
        return run.fired_at if run.fired else ""


class KillAt:
    """Kill the workload at points in the code or at system calls; a namespace for both."""

    points = Points
    system_call = SystemCalls
