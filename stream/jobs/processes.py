"""Worker processes: forks of this process that each run a worker, restarted when they die.

The process itself runs no handler: it waits for its children, and ends them by SIGTERM, each with its own drain.
A child that dies within EARLY of its beginning is begun again after a delay that grows, up to five seconds.
A handler that keeps the interpreter (a regular expression, a call of C) keeps it from the child's beat, too: where a
child that runs has given no sign for a while, its leases are renewed from here.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from mmap import mmap
from typing import TYPE_CHECKING, Protocol

from ...storage import clocks
from ...storage.errors import InvalidArgument, NoGroup
from ...storage.notices import report
from .outcome import Backoff, Counts

if TYPE_CHECKING:
    from ...storage.wake.stop import Stop

OUTCOMES = tuple(Counts.__dataclass_fields__)
_DELAY = Backoff(first=0.1, factor=2, cap=5, jitter=0)
EARLY = 0.2  # seconds: it has hardly begun, and the next one may end as soon
_LOOK = 0.05  # seconds
_SILENCE = 0.5  # seconds; a child gives a sign every 0.2


class _Worker(Protocol):
    @property
    def counts(self) -> Counts: ...
    def run(self, *, burst: bool, until: Callable[[], bool]) -> None: ...


class Children:
    """The processes of a worker. ``make`` makes a child's worker; ``require`` raises NoGroup if the group is gone."""

    def __init__(self, make: Callable[..., _Worker], count: int, require: Callable[[], object]) -> None:
        self._refuse_held_clock()
        self._make = make
        self._require = require  # an exit status may be the handler's
        self.places: list[_Place] = [_Place(n) for n in range(count)]

    @property
    def pids(self) -> list[int]:
        """The children that run."""
        return [place.pid for place in self.places if place.pid]

    @property
    def counts(self) -> Counter[str]:
        """What the children have counted, those that have died too."""
        return Counter({what: sum(place.counted[n] for place in self.places) for n, what in enumerate(OUTCOMES)})

    def run(self, name: bytes, stop: Stop, burst: bool, until: Callable[[], bool], renew: Callable[[bytes], object],
            lease: float, timeout: float) -> None:
        """As Worker.run(). NoGroup where the group has been destroyed.

        ``renew`` is called with the name of each child that is held up, until it has been for ``timeout`` seconds.
        """
        quiet = max(lease / 4, _SILENCE)
        self._refuse_held_clock()
        for place in self.places:
            place.is_done = False
        try:
            while not (stop.is_set() or until()):
                now = clocks.elapsed()
                for place in self.places:
                    status = place.ended(now, burst)
                    if status:
                        self._require()
                    place.is_done = place.is_done or (burst and status == 0)
                    if not place.pid and now >= place.due and not place.is_done:
                        self._begin(place, now, name, stop, burst)
                    elif place.pid and place.is_held_up(now, quiet, timeout):
                        renew(_child_name(name, place.number, place.pid))
                if all(place.is_done for place in self.places):
                    break
                clocks.sleep(_LOOK)
        finally:
            for pid in self.pids:
                os.kill(pid, signal.SIGTERM)
            for place in self.places:
                while place.pid and place.ended(clocks.elapsed(), True) is None:
                    clocks.sleep(_LOOK / 5)

    def _refuse_held_clock(self) -> None:
        if clocks.held is not None:
            raise InvalidArgument("processes= within raxlog.testing.clock(), which they would not see; use threads=")

    def _begin(self, place: _Place, now: float, name: bytes, stop: Stop, burst: bool) -> None:
        place.begun = now
        parent = os.getpid()
        place.pid = os.fork()
        if place.pid:
            return
        status = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if stop.is_set():  # a signal has come before that line
                os._exit(0)
            worker = self._make(_child_name(name, place.number, os.getpid()), is_child=True)
            before = list(place.counted)

            def is_orphan() -> bool:
                for n, what in enumerate(OUTCOMES):
                    place.counted[n] = before[n] + getattr(worker.counts, what)
                place.counted[-1] += 1  # a sign of life
                return os.getppid() != parent

            try:
                worker.run(burst=burst, until=is_orphan)
            finally:
                is_orphan()
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
        self.counted = memoryview(mmap(-1, 8 * len(OUTCOMES) + 8)).cast("Q")  # shared with the children
        self.begun = self.due = self.renewed = 0.0
        self.sign = 0, 0.0  # the last of the child's, and when it was seen first
        self.is_done = False  # ended by itself, in a burst
        self.early = 0  # deaths as early, one after the other

    def ended(self, now: float, is_free_to: bool) -> int | None:
        """Reap the child if it has ended: its exit status, -N for signal N. None while it runs, or if there is none.

        ``is_free_to``: with status 0 it has done what it should.
        """
        if not self.pid or not (found := os.waitpid(self.pid, os.WNOHANG))[0]:
            return None
        status = os.waitstatus_to_exitcode(found[1])
        level = "info" if is_free_to and status == 0 else "warning"
        report("raxlog.worker", level, "worker process %d ended with status %d", self.pid, status)
        self.pid = 0
        self.early = self.early + 1 if now - self.begun < EARLY else 0
        self.due = now + (_DELAY(self.early) if self.early else 0)
        return status

    def is_held_up(self, now: float, quiet: float, timeout: float) -> bool:
        """Whether the child runs and gives no sign; once in ``quiet`` seconds."""
        if self.counted[-1] != self.sign[0] or self.begun > self.sign[1]:
            self.sign = self.counted[-1], now
        if not quiet < now - self.sign[1] < timeout or now - self.renewed < quiet or _is_stopped(self.pid):
            return False
        self.renewed = now
        return True


def _child_name(name: bytes, number: int, pid: int) -> bytes:
    return b"%b-p%d-%d" % (name, number, pid)


def _is_stopped(pid: int) -> bool:
    """Whether a process is stopped or dead, or cannot be looked at."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in b"TtZX"
    except OSError:
        return True
