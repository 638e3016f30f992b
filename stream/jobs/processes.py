"""Worker processes: forks of this process that each run a worker, restarted when they die.

The process itself runs no handler: it waits for its children, and ends them by SIGTERM, each with its own drain.
A child that dies within EARLY of its beginning is begun again after a delay that grows, up to five seconds.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import nullcontext

from ...storage import clocks
from ...storage.errors import InvalidArgument, NoGroup
from ...storage.notices import report
from ..entries.header import shown
from .outcome import Backoff
from .worker import Worker, on_signals

_DELAY = Backoff(first=0.1, factor=2, cap=5, jitter=0)
EARLY = 0.2  # seconds: it has hardly begun, and the next one may end as soon
_LOOK = 0.05  # seconds


class WorkerProcesses:
    """Made by Group.worker(processes=), which explains it. ``pids`` are those of the children that run."""

    def __init__(self, make: Callable[..., Worker], name: bytes, count: int,
                 require: Callable[[], object]) -> None:
        self._refuse_held_clock()
        self._make = make
        self._require = require  # NoGroup: an exit status may be the handler's
        self._name = name
        self._stopped = threading.Event()
        self._burst = False
        self._places = [_Place(n) for n in range(count)]

    @property
    def pids(self) -> list[int]:
        """The children that run."""
        return [place.pid for place in self._places if place.pid]

    def __repr__(self) -> str:
        return f"<raxlog workers {shown(self._name)}, {len(self.pids)} of {len(self._places)} processes running>"

    def stop(self) -> None:
        """End the workers. From any thread, and from signal handlers."""
        self._stopped.set()

    def run(self, signals: bool = True, burst: bool = False) -> None:
        """As Worker.run(). NoGroup where the group has been destroyed."""
        self._refuse_held_clock()
        self._burst = burst
        for place in self._places:
            place.is_done = False
        in_main = signals and threading.current_thread() is threading.main_thread()
        with on_signals(self.stop) if in_main else nullcontext():
            try:
                while not self._stopped.is_set():
                    now = clocks.elapsed()
                    for place in self._places:
                        status = place.ended(now)
                        if status:
                            self._require()
                        place.is_done = place.is_done or (burst and status == 0)
                        if not place.pid and now >= place.due and not place.is_done:
                            self._begin(place, now)
                    if all(place.is_done for place in self._places):
                        break
                    self._stopped.wait(_LOOK)
            finally:
                for pid in self.pids:
                    os.kill(pid, signal.SIGTERM)
                for place in self._places:
                    while place.pid and place.ended(clocks.elapsed()) is None:
                        clocks.sleep(_LOOK / 5)

    def _refuse_held_clock(self) -> None:
        if clocks.held is not None:
            raise InvalidArgument("processes= within raxlog.testing.clock(), which they would not see; use threads=")

    def _begin(self, place: _Place, now: float) -> None:
        place.begun = now
        parent = os.getpid()
        place.pid = os.fork()
        if place.pid:
            return
        status = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if self._stopped.is_set():  # a signal has come before that line
                os._exit(0)
            worker = self._make(b"%b-p%d-%d" % (self._name, place.number, os.getpid()), is_child=True)
            worker.run(burst=self._burst, until=lambda: os.getppid() != parent)
            status = 0
        except NoGroup:
            pass  # which the parent raises
        except BaseException:
            traceback.print_exc()
        finally:
            try:
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(status)


class _Place:
    """One of the children, and the one that follows when it has died."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pid = 0
        self.begun = self.due = 0.0
        self.is_done = False  # ended by itself, in a burst
        self.early = 0  # deaths as early, one after the other

    def ended(self, now: float) -> int | None:
        """The child's exit status, negative for a signal, where it has ended since; else None."""
        if not self.pid or not (found := os.waitpid(self.pid, os.WNOHANG))[0]:
            return None
        status = os.waitstatus_to_exitcode(found[1])
        report("raxlog.worker", "warning", "worker process %d ended with status %d", self.pid, status)
        self.pid = 0
        self.early = self.early + 1 if now - self.begun < EARLY else 0
        self.due = now + (_DELAY(self.early) if self.early else 0)
        return status
