"""Named points: the workload is killed at each crash_point() it passes, at each hit of it.

    discovery   app.begin ×3   app.half ×3           one run that only counts
    then        (app.begin, 1) (app.begin, 2) …      one run each, killed there

A pattern that no point fits is a failure: a test that cannot fail proves nothing.
"""

from __future__ import annotations

import fcntl
import fnmatch
import mmap
import os
import signal
import struct
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ...storage import crash_point
from ...storage.errors import InvalidArgument
from .report import ModeResult
from .stage import Stage
from .system_calls import SystemCalls

_COUNT = struct.Struct("<Q")


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
        hits: dict[str, int] = {}
        for name in counted.read_text(encoding="utf-8").splitlines():
            hits[name] = hits.get(name, 0) + 1
        for pattern in self.patterns:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in hits):
                stage.fail(result, pattern, "never reached: the workload passes no such point")
        wanted = [(name, hit) for name, count in hits.items() if self._fits(name)
                  for hit in _spread(count, self.most_hits)]
        result.planned = len(wanted)
        for name, hit in wanted:
            if stage.is_over(result):
                return
            self._kill(stage, result, name, hit)

    def _fits(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.patterns)

    def _kill(self, stage: Stage, result: ModeResult, name: str, hit: int) -> None:
        folder = stage.fresh()
        counter = stage.scratch / "hits"
        counter.write_bytes(_COUNT.pack(0))
        run = stage.run(folder, watched=False, before=lambda: crash_point.tell(_Killing(counter, name, hit)))
        where = f"{name}, hit {hit}"
        result.cases += 1
        if _COUNT.unpack(counter.read_bytes())[0] < hit:
            found: str | None = f"never reached in this run: it {run.ending()}"
        else:
            result.reached[name] = result.reached.get(name, 0) + 1
            found = stage.checked(folder, run.acks)
        stage.settle(result, where, found, folder, run.acks)


def _spread(count: int, most: int | None) -> list[int]:
    if most is None or count <= most:
        return list(range(1, count + 1))
    return sorted({1 + (count - 1) * index // max(1, most - 1) for index in range(most)})


class _Noting:
    """Notes the name of every point that is reached, by whatever process of the workload."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)

    def __call__(self, name: str) -> None:
        os.write(self._descriptor, name.encode() + b"\n")


class _Killing:
    """Counts the hits of one point in all processes, and kills them all at the N-th."""

    def __init__(self, path: Path, name: str, hit: int) -> None:
        self._path = path
        self._name = name
        self._hit = hit
        self._mutex = threading.Lock()
        with path.open("r+b") as file:
            self._count = mmap.mmap(file.fileno(), _COUNT.size)

    def __call__(self, name: str) -> None:
        if name != self._name:
            return
        with self._mutex, self._path.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            count = _COUNT.unpack_from(self._count)[0] + 1
            _COUNT.pack_into(self._count, 0, count)
            if count == self._hit:
                os.kill(0, signal.SIGKILL)  # the whole group, this process with it
