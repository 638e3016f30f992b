"""The Python side of turns.c: a schedule to follow, and what the run that followed it has done.

    Turns(path, …)   writes the page, which all processes of the run map
    follow()         in the process that starts them: each in a fork of its own, which has its turns
    steps()          what was done: which actor did what; ``usual`` is the one that would have gone on by itself

A run is repeated by the moments at which another than the usual actor was chosen, its switches: (0, 17, 1) says that
before actor 0 has its 17th turn, counted from 0, actor 1 goes on.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ....storage import crash_point

MOST_ACTORS, MOST_SWITCHES = 32, 64
SWITCHES, PRIORITIES = range(2)
DEADLOCK, TOO_LONG = 1, 2
# The kinds of steps: recorder.c's classes of calls, and those of turns.h.
_KINDS = {1: "create", 2: "write", 4: "resize", 8: "rename", 16: "unlink", 32: "name", 64: "flush", 128: "point",
          129: "open", 130: "read", 131: "lock", 132: "unlock", 133: "ask for lock", 134: "sleep", 135: "wait for",
          136: "wake"}
_ORDERS = struct.Struct(f"<4I{MOST_ACTORS}i{4 * MOST_SWITCHES}I")
_FOUND = struct.Struct("<4I")
_STEP = struct.Struct("<4B4xQ40s")
_FAILED = 70

Switch = tuple[int, int, int]  # before this actor has its n-th turn, that actor


class Step(NamedTuple):
    """What an actor did. Those up to the number of workloads are the processes, the others further threads of them."""

    actor: int
    usual: int  # the one that would have gone on without a switch
    turns: int  # that the usual one had had
    process: int
    what: str


class Turns:
    """The page of one run. ``switches``; or, with priorities, (0, step, new priority)."""

    def __init__(self, path: Path, library: ctypes.CDLL, processes: int, *, switches: Sequence[Switch] = (),
                 priorities: Sequence[int] = (), most_steps: int) -> None:
        self.path = path
        self._trace_at = library.turns_trace_at()
        if not path.exists():
            with path.open("wb") as made:
                made.truncate(library.turns_page_bytes())
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        flat = [number for switch in switches for number in (*switch, 0)]
        orders = _ORDERS.pack(processes, PRIORITIES if priorities else SWITCHES, len(switches), most_steps,
                              *priorities, *[0] * (MOST_ACTORS - len(priorities)),
                              *flat, *[0] * (4 * MOST_SWITCHES - len(flat)))
        self._map[: self._trace_at] = orders.ljust(self._trace_at, b"\0")

    def found(self) -> tuple[int, int, int]:
        """The verdict, how many steps it took, and how often a process was in a call that is not seen."""
        verdict, steps, _, unseen = _FOUND.unpack_from(self._map, _ORDERS.size)
        return verdict, steps, unseen

    def steps(self) -> list[Step]:
        """The steps, up to the number that the page has room for."""
        room = (len(self._map) - self._trace_at) // _STEP.size
        raw = self._map[self._trace_at : self._trace_at + min(self.found()[1], room) * _STEP.size]
        turns: Counter[int] = Counter()
        steps = []
        for actor, usual, process, kind, at, name in _STEP.iter_unpack(raw):
            what = _described(kind, at, name.rstrip(b"\0").decode(errors="replace"))
            steps.append(Step(actor, usual, turns[usual], process, what))
            turns[actor] += 1
        return steps

    def close(self) -> None:
        """Unmap it."""
        self._map.close()


def _described(kind: int, at: int, name: str) -> str:
    words = _KINDS.get(kind, "start")
    if words == "sleep":
        return f"sleep {at / 1e9:g} s"
    place = f" at {at}" if words in ("write", "read") and at else ""
    return f"{words} {name}{place}".strip()


def follow(workloads: Sequence[Callable[[Path, Any], object]], page: str, folder: Path,
           ack: Callable[[Any], None]) -> None:
    """Run the workloads side by side, each in a process of its own, by the schedule of the page.

    RuntimeError with the text of the first that raised, or died.
    """
    library = ctypes.CDLL(os.environ["RAXLOG_CRASHTEST_LIBRARY"])
    cores = sorted(os.sched_getaffinity(0))  # one runs at a time: on one core, no turn waits for another to wake up
    os.sched_setaffinity(0, {cores[os.getppid() % len(cores)]})
    if wrong := library.turns_begin(os.fsencode(page)):
        raise OSError(wrong, os.strerror(wrong), page)
    failures: dict[int, str] = {}
    running: dict[int, tuple[int, int]] = {}
    for number, workload in enumerate(workloads):
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = _FAILED
            try:
                os.close(read_end)
                library.turns_join(number)
                crash_point.listen(lambda name: library.turns_point(name.encode()))
                workload(folder, ack)
                status = 0
            except BaseException:
                os.write(write_end, traceback.format_exc()[-4000:].encode(errors="replace"))
            finally:
                os._exit(status)
        os.close(write_end)
        running[pid] = number, read_end
    while running:
        pid, ending = os.waitpid(-1, 0)
        if pid not in running:
            continue  # a child of theirs, which outlived it
        number, read_end = running.pop(pid)
        with open(read_end, "rb") as pipe:
            raised = pipe.read()
        if ending:
            status = os.waitstatus_to_exitcode(ending)
            failures[number] = raised.decode(errors="replace") or f"it ended with status {status}"
        library.turns_gone(number)
    if failures:
        number, text = next(iter(failures.items()))
        raise RuntimeError(f"process {number}: {text}")
