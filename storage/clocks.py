"""The clocks: each reading of one, in all of raxlog, is made through this module.

    wall_ns      ns since 1970    IDs, delays, leases, deferred entries, delivery times       a test can move it
    monotonic    seconds          deadlines of waits, and what a worker's beat measures       a test can move it
    machine_ns   ns since 1970    compared with the times of files, and of other machines
    elapsed      seconds          how long something took; patience with disks, locks and other processes
    boot_ns      ns               since the machine was started, the time that it slept included: see since_set()

Readers ask the module (``clocks.wall_ns()``), and keep none of these functions: raxlog.testing replaces the first two,
and the last, which then goes with the first.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from threading import Lock
from typing import Any, Self
from weakref import WeakValueDictionary, ref

from .errors import InvalidArgument, RaxlogError
from .known import alive

wall_ns: Callable[[], int] = time.time_ns
monotonic: Callable[[], float] = time.monotonic
machine_ns: Callable[[], int] = time.time_ns
elapsed: Callable[[], float] = time.perf_counter
_boot_ns = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
boot_ns: Callable[[], int] = _boot_ns
sleep: Callable[[float], None] = time.sleep
held: Clock | None = None  # by a test
guard: Callable[[], object] = object  # raises where the clock may not be moved; the environments', once that is loaded
followers: set[ref[Any]] = set()  # each has a method clock_moved(), by which its waits look at the clock again
_ahead = 0.0  # seconds by which ``monotonic`` has been moved
_STEP = 2000  # ms
_NEVER = -1 << 62
_known = memoryview(array("q", (0, 0, _NEVER)))  # the words of the watch that has been asked last
_watches: WeakValueDictionary[int, Watch] = WeakValueDictionary()


def now_ms() -> int:
    """The wall clock in ms since 1970."""
    return wall_ns() // 1_000_000


def since_set() -> int:
    """ms of the boot clock since the wall clock was set, as seen by any process that shares a store with this one."""
    boot = boot_ns() // 1_000_000
    started = now_ms() - boot
    found = [watch.look(started, boot) for known in _watches.valuerefs() if (watch := known()) is not None]
    return boot - max(found, default=_NEVER)


class Watch:
    """Whether the wall clock is set while a store is open, in three words that its processes share.

        MACHINE   the start of the machine, and the time namespace, of those that write and judge; 0: none yet
        STARTED   when that was, ms of the wall clock: where it has moved by more than _STEP, the clock has been set
        SET       when a process saw that last, ms of the boot clock

    The words are zeros to the first that comes in. In a new generation of the store they go on with what it knows.
    """

    def __init__(self, words: memoryview[int], machine: int) -> None:
        self._words, self._machine = words, machine
        if not words[0] and _known[0] == machine:
            words[:] = _known
        _watches[id(self)] = self
        since_set()

    def look(self, started: int, boot: int) -> int:
        """When the clock was set last, ms of the boot clock."""
        words = self._words
        if not words[0]:
            words[1], words[2], words[0] = started, _NEVER, self._machine
        if words[0] != self._machine:
            return _NEVER
        if abs(started - words[1]) > _STEP:
            words[2], words[1] = boot, started  # in this order: who finds the second has the first
        _known[:] = words
        return words[2]


class Clock:
    """``with clock() as time:`` holds raxlog's wall clock, in this process, until ``time.advance(seconds)`` moves it.

    It decides about IDs, delays, leases, deferred entries, results. A wait with a timeout ends after that time, or once
    advance() has taken it there; patience with locks (``lock_timeout``) and disks is in real time. StoreError where
    another process has a store open that this one has open, or opens. What was written in the block is to go with it.
    """

    def __enter__(self) -> Self:
        global held, wall_ns, monotonic, boot_ns
        if held is not None:
            raise RaxlogError("the clock is held already, and one test moves it at a time; end that block first")
        guard()
        self._lock, self._ns = Lock(), wall_ns() // 1_000_000 * 1_000_000
        started = self._ns - boot_ns()
        # monotonic goes on by itself, and never goes back, not even with the block; of the others none is set
        held, wall_ns, boot_ns, monotonic = (
            self, lambda: self._ns, lambda: self._ns - started, lambda: time.monotonic() + _ahead)
        return self

    def __exit__(self, *_: object) -> None:
        global held, wall_ns, boot_ns
        held, wall_ns, boot_ns = None, time.time_ns, _boot_ns

    def now(self) -> datetime:
        """The time that raxlog has now, in UTC."""
        return datetime.fromtimestamp(self._ns / 1e9, UTC)

    def advance(self, seconds: float) -> None:
        """Move the time on, and wake the waits that are over by then. StoreError as at the block's begin."""
        global _ahead  # noqa: PLW0603 - the clocks are the process'
        if held is not self or type(seconds) not in (int, float) or not 0 <= seconds <= 3.2e9:
            raise InvalidArgument(f"advance({seconds!r:.60}): the time goes on, by up to 100 years, and within the "
                                  "block of raxlog.testing.clock()")
        guard()
        with self._lock:
            self._ns += round(seconds * 1e6) * 1000
            _ahead += seconds
        for follower in alive(followers):
            follower.clock_moved()
