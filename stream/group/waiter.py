"""Waiting: readers that sleep until something they wait for has changed, in any process.

    other process   commit, then a touch of the file ``shared``
                                   │ event
    this process    watcher: drain, NEW read transaction, evaluate each condition once
                       │ releases the first of each line whose conditions have changed
             ┌─────────┼────────────────────┐
           line      line                 line      what was seen, and when to look again
             │         │         ┌──────────┼──────────┐
           waiter    waiter    waiter     waiter     waiter     (a thread and its lock each, or a task and its waker)

A condition is a value read in a transaction: a stream's last ID, a group's version.
A reader passes the values it has seen, and sleeps until one differs. No wake-up is lost:

    R1  register                          (the watcher's steps are V1 to V5, see
    R2  look again, in a NEW transaction   storage/wake/watcher.py)
    R3  sleep

The event of a commit is queued after the commit is visible. A reader that was registered when the
watcher copied the lines is covered by its look, which begins after that event was drained; one
that came later, by its own R2.

A line makes group reads first come, first served: its threads wait for the same, so what one did not
find is not there for the others either. Only the first is released to look; if it finds nothing
(another process was faster) it keeps its place. What it has seen is stored in the line, and the others
sleep on it: a wait costs the same however many are before it. When a released waiter leaves, the next
is released: a change costs each process at most one look that finds nothing. A wait by itself is a
line of one.

The first wait starts the watcher, which sleeps while there are no lines, whatever is committed.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary, ref

from ...storage import clocks
from ...storage.engine.environment import Attachment, Environment
from ...storage.errors import RaxlogError, StoreClosed, TransactionError, closed
from ...storage.locks.shared_file import SHARED
from ...storage.threads import is_owned, outside
from ...storage.tree.lmdb_errors import translated
from ...storage.trees.rax import RaxTransaction
from ...storage.wake.stop import StopFlag, Waker, is_stopped, sleep, wake
from ...storage.wake.watcher import SAFETY_PERIOD, Watcher
from ..entries import header as headers
from .state import find_group

_LONGEST_SLEEP = 3.0  # seconds: Ctrl-C just before a lock is waited for is noticed after the wait
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 1.0  # seconds until the next look for what is due and was not found
_LOOK = 1.0  # seconds until the next look for what falls due later: the wall clock may be set


class Condition:
    """A function with its arguments: ``Condition(f, a, b).value(txn)`` is ``f(txn, a, b)``, in microseconds.

    Equal to one of the same function and arguments: of equal conditions only one is evaluated.
    """

    __slots__ = ("function", "key")

    def __init__(self, function: Callable[..., Hashable], *arguments: Hashable) -> None:
        self.function: Callable[..., Hashable] = function
        self.key: tuple[Any, ...] = (function, *arguments)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Condition) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)

    def value(self, txn: RaxTransaction) -> Hashable:
        """The value in this transaction."""
        return self.function(txn, *self.key[1:])


Seen = Mapping[Condition, Hashable]  # with their values in the transaction that found nothing


class Waiter:
    """A thread in a line, from turn() until its ``with`` ends, or a task, from join() to leave(). Not to be shared."""

    __slots__ = ("__weakref__", "armed", "awake", "key", "lock", "number", "timer", "waker")

    def __init__(self, key: Hashable, waker: Waker | None = None) -> None:
        self.key: Hashable = key
        self.number: int = 0  # in order of arrival
        self.awake: bool = True  # it looks, or is about to
        self.timer: float | None = None  # the due time that its thread sleeps until
        self.armed: float = -math.inf  # when it went to sleep last
        self.lock: threading.Lock = threading.Lock()
        self.lock.acquire()
        self.waker: Waker | threading.Lock = waker or self.lock


class _Line:
    """Waiters for the same, and what the last of them to look has seen."""

    __slots__ = ("due", "pause", "ready", "seen", "waiters")

    def __init__(self) -> None:
        # In order of arrival. Weak, so that a waiter cannot outlive its thread's call.
        self.waiters: WeakValueDictionary[int, Waiter] = WeakValueDictionary()
        self.seen: Seen = {}
        self.due: float | None = None
        self.pause = 0.0  # before it is looked again for what is due already: longer each time, so that no core burns
        self.ready = False  # something has changed since

    def first(self) -> Waiter | None:
        return next(self.waiters.values(), None)


class WaitQueues(Attachment):
    """All waits of one environment in this process. Get it by env.attached(WaitQueues)."""

    def __init__(self, env: Environment, safety_period: float = SAFETY_PERIOD) -> None:
        self._env = env
        self._safety_period = safety_period
        self._mutex = threading.RLock()  # held for moments, never during a look; no thread enters it twice
        self._lines: dict[Hashable, _Line] = {}
        self._arrivals = 0
        self._registered = 0  # waits begun
        self._looked = (0, 0)  # the watcher's last look: its transaction, waits begun before it
        self._watcher: Watcher | None = None
        self._closed = False
        clocks.followers.add(ref(self, clocks.followers.discard))

    # -- for readers --------------------------------------------------------------------

    def wait(self, seen: Seen, deadline: float | None, due: float | None = None,
             turn: Waiter | None = None, stop: StopFlag | None = None) -> bool:
        """Sleep until there is a reason to look again (True), or the deadline passes or it is stopped (False).

        ``seen``      conditions with their values in the transaction that found nothing
        ``deadline``  in clocks.monotonic(); None waits for ever
        ``due``       a moment, in clocks.monotonic(), that is a reason to look by itself; so is each second before it
        ``turn``      the waiter that turn() returned
        ``stop``      ends the wait once it is set

        A reason is a condition whose value is not the one seen, or ``due``; in a line it is also
        being the first. True is a hint: the caller looks, and waits again if need be. A wait that begins
        behind its deadline is False, whatever has changed: so no loop over this outlives it by more than a
        look. Raises StoreClosed when the store is closed, and what a condition raises. Costs about 8 µs
        before it sleeps.
        """
        if self._env.commits.in_own_transaction():
            raise TransactionError(
                "this thread has a transaction open, for whose end other writers wait; wait before it begins"
            )
        if turn is None:
            with self.turn(object()) as alone:
                return self.wait(seen, deadline, due, alone, stop)
        self.arm(turn, seen, due)
        return self._sleep(turn, deadline, stop)

    @contextmanager
    def turn(self, key: Hashable, deadline: float | None = None, stop: StopFlag | None = None) -> Iterator[Waiter]:
        """Join the line ``key`` while waiting: first come, first served.

            if not found:                                    # a first look, in a transaction
                with waiting.turn(key, deadline) as waiter:
                    while waiter.awake:
                        found, seen, due = ...               # look, in a transaction
                        if found or not waiting.wait(seen, deadline, due, turn=waiter):
                            return found

        The key must hold all that determines what a read can get (streams, group, the idle time from
        which it claims): what one waiter of a line did not find is not there for the others either.
        Returns when this waiter is the first and has a reason to look (``awake``), at the deadline, or
        stopped; with none before it, at once. In the ``with`` the thread must not enter the same line
        again, nor sleep except by wait().
        """
        waiter = Waiter(key)
        try:
            self.join(waiter)
            if not waiter.awake:
                self._sleep(waiter, deadline, stop)
            yield waiter
        finally:
            self.leave(waiter)

    def require_outside(self) -> None:
        """TransactionError where this thread has been interrupted as it began, or ended, a wait."""
        outside(self._mutex, self._env.path)

    def close(self) -> None:
        """End the watcher; every sleeper gets StoreClosed. Environment.close() calls this."""
        with self._mutex:
            self._closed = True
            watcher = self._watcher
            self._wake_all()
        if watcher is not None:
            watcher.close()

    def after_fork_in_child(self) -> bool:
        """Close the inherited watch, and touch nothing else."""
        if self._watcher is not None:
            self._watcher.forget()
        return False

    # -- a wait, step by step -----------------------------------------------------------

    def join(self, waiter: Waiter) -> None:
        """Join the end of the line: asleep, unless it is the first. Here and below: a waiter without a thread, too."""
        with outside(self._mutex, self._env.path):
            self._require_watcher()
            line = self._lines.get(waiter.key)
            if line is None:
                line = self._lines[waiter.key] = _Line()
            self._arrivals += 1
            waiter.awake = line.first() is None
            waiter.number = self._arrivals
            line.waiters[waiter.number] = waiter

    def arm(self, waiter: Waiter, seen: Seen, due: float | None) -> None:
        """R1 and R2: asleep, unless there is a reason to look by now. A waiter that has left stays away."""
        try:
            line = self._register(waiter, seen, due)
            self._look([line], is_reader=True)
        except BaseException:
            waiter.awake = True  # there may be nothing, or much: the next in the line looks
            raise

    def _register(self, waiter: Waiter, seen: Seen, due: float | None) -> _Line:
        """R1. The watcher and its watch are there before this returns, so before any R2."""
        with self._mutex:
            self._require_watcher()
            line = self._lines.get(waiter.key)
            if line is None or waiter.number not in line.waiters:
                return _Line()
            waiter.armed = clocks.monotonic()
            is_overdue = due is not None and due <= waiter.armed
            line.pause = min(max(2 * line.pause, _FIRST_PAUSE), _LONGEST_PAUSE) if is_overdue else 0.0
            if due is not None:
                due = waiter.armed + line.pause if is_overdue else min(due, waiter.armed + _LOOK)
            line.seen, line.due, line.ready = dict(seen), due, False
            waiter.awake, waiter.timer = False, line.due
            self._registered += 1
        return line

    @property
    def is_watched(self) -> bool:
        """Whether the watcher is there, so that join() starts no thread."""
        return self._watcher is not None

    def watch(self) -> None:
        """Start the watcher: some milliseconds, the first time."""
        with outside(self._mutex, self._env.path):
            self._require_watcher()

    def _require_watcher(self) -> None:
        if self._closed or not self._env.is_open:
            raise self._error_closed()
        if self._watcher is None:
            with translated(self._env.path):
                self._watcher = Watcher(
                    self._env.path / SHARED, self._is_needed, self._look_for_all,
                    self._watcher_ended, self._safety_period,
                )
        self._watcher.unpark()

    def _is_needed(self) -> bool:
        """Whether a change would release a reader. One that looks, or leaves, releases the next by itself."""
        firsts = [line.first() for line in list(self._lines.values())]
        return any(first is not None and not first.awake for first in firsts)

    def _sleep(self, waiter: Waiter, deadline: float | None, stop: StopFlag | None) -> bool:
        """R3. True once released, unless stopped."""
        while not is_stopped(stop):
            remaining = self.rest(waiter, deadline)
            if remaining is None:
                return True
            if remaining <= 0:
                return False
            sleep(waiter.lock, min(remaining, _LONGEST_SLEEP), stop)
        return False

    def rest(self, waiter: Waiter, deadline: float | None) -> float | None:
        """Seconds to sleep until it is to be asked again; None once released, 0 at the deadline. StoreClosed."""
        with self._mutex:
            now = clocks.monotonic()
            line = self._lines[waiter.key]
            self._release(line, now)
            if not waiter.awake:
                waiter.timer = line.due if line.first() is waiter else None  # the first keeps the time for all
                times = [time for time in (deadline, waiter.timer) if time is not None]
                return max(0.0, min(times, default=math.inf) - now)
        if self._closed:
            raise self._error_closed()
        return None if deadline is None or waiter.armed < deadline else 0.0

    def leave(self, waiter: Waiter) -> None:
        """Give up the place in the line; the next one looks."""
        if is_owned(self._mutex):  # a dropped iterator ends in another call, which keeps its lines as they are
            if line := self._lines.get(waiter.key):
                line.ready = True  # the watcher's next look releases the next in the line
            return
        with self._mutex:
            line = self._lines.get(waiter.key)
            if line is None or line.waiters.pop(waiter.number, None) is None:
                return
            line.ready = line.ready or waiter.awake  # there may be more, or it has not looked
            if line.first() is None:
                del self._lines[waiter.key]
            else:
                self._release(line, clocks.monotonic())

    def _error_closed(self) -> StoreClosed:
        return closed(self._env.path)

    # -- releasing (under the mutex) ----------------------------------------------------

    def _release(self, line: _Line, now: float) -> None:
        """Release the first where there is a reason, unless it is awake; else have it keep the time."""
        first = line.first()
        if first is None or first.awake:
            return
        first.awake = line.ready or (line.due is not None and now >= line.due)
        if first.awake or first.timer != line.due:
            wake(first.waker)

    def _wake_all(self) -> None:
        for line in self._lines.values():
            for waiter in line.waiters.values():
                waiter.awake = True
                wake(waiter.waker)

    def clock_moved(self) -> None:
        """Have each sleeper look at the clock again."""
        with self._mutex:
            for line in self._lines.values():
                for waiter in line.waiters.values():
                    wake(waiter.waker)

    # -- looking ------------------------------------------------------------------------

    def _look(self, lines: list[_Line], is_reader: bool = False, known: int = 0) -> int:
        """R2 of a reader, else V3 and V4: release the first of those lines whose conditions have changed.

        Returns the number of the transaction. In ``known`` all has been seen already. A condition
        that raises for the watcher counts as changed; the reader that waits for it then looks by
        itself, and gets the error.
        """
        values: dict[Condition, Hashable] = {}
        with self._env.read() as txn:
            number = self._env.moment(txn)
            if number != known:
                for condition in {condition for line in lines for condition in line.seen}:
                    try:
                        values[condition] = condition.value(txn)
                    except RaxlogError:
                        if is_reader:
                            raise
                        values[condition] = object()
        with self._mutex:
            now = clocks.monotonic()
            for line in lines:
                if any(values.get(condition, value) != value for condition, value in line.seen.items()):
                    line.ready = True
                self._release(line, now)
        return number

    def _look_for_all(self, quick: bool) -> int:
        """The watcher's look: for every line that is there as it begins.

        A quick one does nothing if neither a commit nor a wait has happened since the last look.
        """
        with self._mutex:
            for key in [key for key, line in self._lines.items() if line.first() is None]:
                del self._lines[key]  # its threads have lost their places
            lines = list(self._lines.values())
            registered = self._registered
        number, last_registered = self._looked
        known = number if quick and registered == last_registered else 0
        try:
            number = self._look(lines, known=known)
            self._looked = number, registered
            return number
        except StoreClosed:
            raise
        except RaxlogError:
            # No transaction can begin. Each looks by itself, and gets the error as its own.
            with self._mutex:
                self._wake_all()
            return 0

    def _watcher_ended(self) -> None:
        with self._mutex:
            self._closed, self._watcher = True, None
            self._wake_all()


def stream_moves(txn: RaxTransaction, stream: bytes) -> tuple[int, int, int, int | None] | None:
    """A stream to wait for: (number, last ms, last seq, when the next deferred entry is due), None where there is none.

    About 4 µs.
    """
    found = headers.find(txn, stream)
    return None if found is None else (found[0], *found[1].last, found[1].next_due())


def group_moves(txn: RaxTransaction, stream: bytes, group: bytes, claims: bool) -> Hashable:
    """A consumer group to wait for: its number and how often set_id has moved it; None if it is not there.

    With ``claims``, or where it has a key, also when its next pending entry falls due: for readers that claim. About
    8 µs, or twice that.
    """
    number = headers.number_of(txn, stream)
    state = None if number is None else find_group(txn, number, group)
    if state is None:
        return None
    if not claims and state.key_limit is None:
        return state.number, state.group, state.moves
    pel = state.pel(txn)
    return state.number, state.group, state.moves, pel.next_due(), pel.oldest_time()
