"""The clocks: each reading of one, in all of raxlog, is made through this module.

    wall_ns      ns since 1970    IDs, delays, leases, deferred entries, delivery times       a test can move it
    monotonic    seconds          deadlines of waits, and what a worker's beat measures       a test can move it
    machine_ns   ns since 1970    compared with the times of files, and of other machines
    elapsed      seconds          how long something took; patience with disks, locks and other processes
    boot_ns      ns               since the machine was started, the time that it slept included

Readers ask the module (``clocks.wall_ns()``), and keep none of these functions: raxlog.testing replaces the first two.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from threading import Lock
from typing import Any, Self
from weakref import WeakSet

from .errors import InvalidArgument, RaxlogError

wall_ns: Callable[[], int] = time.time_ns
monotonic: Callable[[], float] = time.monotonic
machine_ns: Callable[[], int] = time.time_ns
elapsed: Callable[[], float] = time.perf_counter
boot_ns: partial[int] = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
sleep: Callable[[float], None] = time.sleep
held: Clock | None = None  # by a test
guard: Callable[[], object] = object  # raises where the clock may not be moved; the environments', once that is loaded
followers: WeakSet[Any] = WeakSet()  # each has a method clock_moved(), by which its waits look at the clock again
_ahead = 0.0  # seconds by which ``monotonic`` has been moved


def now_ms() -> int:
    """The wall clock in ms since 1970."""
    return wall_ns() // 1_000_000


class Clock:
    """``with clock() as time:`` holds raxlog's wall clock, in this process, until ``time.advance(seconds)`` moves it.

    It decides about IDs, delays, leases, deferred entries, results. A wait with a timeout ends after that time, or once
    advance() has taken it there; patience with locks (``lock_timeout``) and disks is in real time. StoreError where
    another process has a store open that this one has open, or opens. What was written in the block is to go with it.
    """

    def __enter__(self) -> Self:
        global held, wall_ns, monotonic
        if held is not None:
            raise RaxlogError("the clock is held already, and one test moves it at a time; end that block first")
        guard()
        self._lock, self._ns = Lock(), wall_ns() // 1_000_000 * 1_000_000
        # monotonic goes on by itself, and never goes back, not even with the block
        held, wall_ns, monotonic = self, lambda: self._ns, lambda: time.monotonic() + _ahead
        return self

    def __exit__(self, *_: object) -> None:
        global held, wall_ns
        held, wall_ns = None, time.time_ns

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
        for follower in list(followers):
            follower.clock_moved()
