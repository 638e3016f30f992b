"""Waiting: readers that sleep until something they wait for has moved, in any process.

    other process   commit, then a touch of the file ``wake``
                                   │ event
    this process    watcher: drain, NEW read transaction, evaluate each probe once
                       │ lets the first of each line out whose probes have moved
             ┌─────────┼────────────────────┐
           line      line                 line      what was seen, and when to look again
             │         │         ┌──────────┼──────────┐
           place     place     place      place      place      (a thread and its lock each)

A probe says what a thing looks like in a transaction: a stream's last ID, a group's version.
A reader says what it has seen, and sleeps until it looks different. No wake-up is lost:

    R1  register                          (the watcher's steps are V1 to V5, see
    R2  look again, in a NEW transaction   storage/wake/watcher.py)
    R3  sleep

The event of a commit is queued after the commit is visible. A reader that had registered when
the watcher took stock is covered by its look, which begins after that event was drained; one
that came later, by its own R2.

A line makes group reads first come, first served: its threads wait for the same, so that what
one has looked for in vain is not there for the others either. Only the first is let out to look;
if it finds nothing (another process was faster) it keeps its place. What it has seen is the
line's, and the others sleep on it: a wait costs the same however many stand before it. When one
that was let out leaves, the next is let out: a movement costs one look in vain a process at most.
A wait by itself is a line of one.

The first wait starts the watcher; while none is there it sleeps, whatever is committed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from ...storage.engine.environment import Attachment, Environment
from ...storage.errors import RaxlogError, StoreClosed, TransactionError
from ...storage.files import directory
from ...storage.wake.stop import StopFlag, is_stopped, sleep, wake
from ...storage.wake.watcher import SAFETY_PERIOD, Watcher
from ..entries import range_read
from ..entries.session import Direct, Source
from ..node.clock import duration_ms
from ..node.stream_id import StreamID
from .wait_conditions import Probe, StreamProbe

if TYPE_CHECKING:
    from ..stream import Stream

_LONGEST_SLEEP = 3.0  # seconds: Ctrl-C can come just before a lock is waited for, and be slept over


class Place:
    """A place in a line, from turn() until its ``with`` ends. Not to be shared by threads."""

    __slots__ = ("__weakref__", "awake", "key", "lock", "number", "timer")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.number = 0  # in order of arrival
        self.awake = True  # it looks, or is about to
        self.timer: float | None = None  # the due time that its thread sleeps until
        self.lock = threading.Lock()
        self.lock.acquire()


class _Line:
    """Places whose threads wait for the same, and what the last of them to look has seen."""

    __slots__ = ("due", "places", "ready", "seen")

    def __init__(self) -> None:
        # In order of arrival. Weak, so that a place cannot outlive a thread that lost it.
        self.places: WeakValueDictionary[int, Place] = WeakValueDictionary()
        self.seen: Mapping[Probe, Hashable] = {}
        self.due: float | None = None
        self.ready = False  # something has moved since

    def first(self) -> Place | None:
        return next(self.places.values(), None)

    def has_reason(self, now: float) -> bool:
        return self.ready or (self.due is not None and now >= self.due)


class Waiting(Attachment):
    """All waits of one environment in this process. Get it by waiting_of()."""

    def __init__(self, env: Environment, safety_period: float = SAFETY_PERIOD) -> None:
        self._env = env
        self._safety_period = safety_period
        self._mutex = threading.Lock()  # held for moments, never during a look
        self._lines: dict[Hashable, _Line] = {}
        self._arrivals = 0
        self._registered = 0  # waits begun
        self._looked = (0, 0)  # the watcher's last look: its transaction, waits begun before it
        self._watcher: Watcher | None = None
        self._closed = False

    # -- for those who wait -------------------------------------------------------------

    def wait(self, seen: Mapping[Probe, Hashable], deadline: float | None, due: float | None = None,
             turn: Place | None = None, stop: StopFlag | None = None) -> bool:
        """Sleep until there is a reason to look again (True), or the deadline passes or it is stopped (False).

        ``seen``      probes with their values in the transaction that found nothing
        ``deadline``  in time.monotonic(); None waits for ever
        ``due``       a moment, in time.monotonic(), that is a reason to look by itself
        ``turn``      the place that turn() gave
        ``stop``      ends the wait once it is set

        A reason is a probe whose value is not the one seen, or ``due``; in a line it is also
        that one's turn. True is a hint: the caller looks, and waits again if need be. Raises
        StoreClosed when the store is closed meanwhile, and what a probe raises. Costs about
        8 µs before it sleeps.
        """
        if self._env.commits.in_own_transaction():
            raise TransactionError(
                "this thread has a transaction open, and who could bring news waits for its end; wait before it begins"
            )
        if turn is None:
            with self.turn(object()) as alone:
                return self.wait(seen, deadline, due, alone, stop)
        try:
            line = self._lie_down(turn, seen, due)
            self._look([line], looks_for_itself=True)
        except BaseException:
            turn.awake = True  # nothing may be there, or much: the next in the line looks
            raise
        return self._sleep(line, turn, deadline, stop)

    @contextmanager
    def turn(self, key: Hashable, deadline: float | None = None, stop: StopFlag | None = None) -> Iterator[Place]:
        """Stand in the line ``key`` while waiting: first come, first served.

            if not found:                                    # a first look, in a transaction
                with waiting.turn(key, deadline) as place:
                    while place.awake:
                        found, seen, due = ...               # look, in a transaction
                        if found or not waiting.wait(seen, deadline, due, turn=place):
                            return found

        The key must hold all that decides what a read can get (streams, group, from which
        idle time on it claims): for whoever waits in one line, what one has looked for in
        vain is not there for the others either. Comes back when this place is the first and has a
        reason to look (``awake``), at the deadline, or stopped; with none before it, at once. In the
        ``with`` the thread must not enter the same line again, nor sleep but by wait().
        """
        place = Place(key)
        try:
            line = self._enter(place)
            if not place.awake:
                self._sleep(line, place, deadline, stop)
            yield place
        finally:
            self._leave(place)

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

    def _enter(self, place: Place) -> _Line:
        """Stand at the end of the line: asleep, unless it is the first."""
        with self._mutex:
            self._require_watcher()
            line = self._lines.get(place.key)
            if line is None:
                line = self._lines[place.key] = _Line()
            self._arrivals += 1
            place.awake = line.first() is None
            place.number = self._arrivals
            line.places[place.number] = place
        return line

    def _lie_down(self, place: Place, seen: Mapping[Probe, Hashable], due: float | None) -> _Line:
        """R1. The watcher and its watch are there before this returns, so before any R2."""
        with self._mutex:
            self._require_watcher()
            line = self._lines[place.key]
            line.seen, line.due, line.ready = dict(seen), due, False
            place.awake, place.timer = False, due
            self._registered += 1
        return line

    def _require_watcher(self) -> None:
        if self._closed or not self._env.is_open:
            raise self._error_closed()
        if self._watcher is None:
            self._watcher = Watcher(
                self._env.path / directory.WAKE, self._is_needed, self._look_for_all,
                self._watcher_ended, self._safety_period,
            )
        self._watcher.unpark()

    def _is_needed(self) -> bool:
        """Whether a movement would let a reader out. One that looks, or leaves, lets out the next by itself."""
        firsts = [line.first() for line in list(self._lines.values())]
        return any(first is not None and not first.awake for first in firsts)

    def _sleep(self, line: _Line, place: Place, deadline: float | None, stop: StopFlag | None) -> bool:
        """R3. True once let out, unless stopped."""
        while True:
            if is_stopped(stop):
                return False
            with self._mutex:
                now = time.monotonic()
                self._let_out(line, now)
                if place.awake:
                    break
                if deadline is not None and now >= deadline:
                    return False
                until = now + _LONGEST_SLEEP if deadline is None else deadline
                place.timer = line.due if line.first() is place else None  # the first keeps the time for all
                if place.timer is not None:
                    until = min(until, place.timer)
            sleep(place.lock, min(until - now, _LONGEST_SLEEP), stop)
        if self._closed:
            raise self._error_closed()
        return True

    def _leave(self, place: Place) -> None:
        with self._mutex:
            line = self._lines.get(place.key)
            if line is None or line.places.pop(place.number, None) is None:
                return
            line.ready = line.ready or place.awake  # it may have left something, or not have looked
            if line.first() is None:
                del self._lines[place.key]
            else:
                self._let_out(line, time.monotonic())

    def _error_closed(self) -> StoreClosed:
        return StoreClosed(f"the store {self._env.path} has been closed. Open it again.")

    # -- letting out (under the mutex) --------------------------------------------------

    def _let_out(self, line: _Line, now: float) -> None:
        """Let the first look where there is a reason, unless it does; else see that it keeps the time."""
        first = line.first()
        if first is None or first.awake:
            return
        first.awake = line.has_reason(now)
        if first.awake or first.timer != line.due:
            wake(first.lock)

    def _wake_all(self) -> None:
        for line in self._lines.values():
            for place in line.places.values():
                place.awake = True
                wake(place.lock)

    # -- looking ------------------------------------------------------------------------

    def _look(self, lines: list[_Line], looks_for_itself: bool = False, known: int = 0) -> int:
        """R2 of a reader, else V3 and V4: let out the first of those lines whose probes have moved.

        Gives the number of the transaction. In ``known`` all has been seen already. A probe
        that raises for the watcher counts as moved; the reader that waits for it looks for itself
        then, and gets the error.
        """
        values: dict[Probe, Hashable] = {}
        txn: Any
        with self._env.read() as txn:
            number = self._env.moment(txn)
            if number != known:
                for probe in {probe for line in lines for probe in line.seen}:
                    try:
                        values[probe] = probe.value(txn)
                    except RaxlogError:
                        if looks_for_itself:
                            raise
                        values[probe] = object()
        with self._mutex:
            now = time.monotonic()
            for line in lines:
                if any(values.get(probe, value) != value for probe, value in line.seen.items()):
                    line.ready = True
                self._let_out(line, now)
        return number

    def _look_for_all(self, quick: bool) -> int:
        """The watcher's look: for every line that is there as it begins.

        A quick one does nothing if neither a commit nor a wait has come since the last look.
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
            # No transaction to be had. Each looks for itself, and gets the error as its own.
            with self._mutex:
                self._wake_all()
            return 0

    def _watcher_ended(self) -> None:
        with self._mutex:
            self._closed, self._watcher = True, None
            self._wake_all()


def waiting_of(env: Environment) -> Waiting:
    """The waits of an environment; made anew in a forked child."""
    return env.attached(Waiting)


def parse_block(source: Source, block: float | None) -> float | None:
    """``block=`` in seconds. TransactionError in a transaction, where nothing can come."""
    if block is None:
        return None
    if not isinstance(source, Direct):
        raise TransactionError(
            f"block={block!r} inside a transaction: nothing comes while it is open; wait before it begins"
        )
    return duration_ms("block", block) / 1000


def wait_for_more(stream: Stream, after: StreamID, timeout: float | None = None) -> bool:
    """Sleep until the stream holds an entry with an ID > ``after``: True. False at the timeout.

    ``timeout`` in seconds, None for ever. The stream need not exist yet. StoreClosed when
    the store is closed meanwhile, TransactionError in a transaction. Reads one entry to know.
    """
    source = stream._source
    if not isinstance(source, Direct):
        raise TransactionError("nothing comes while a transaction is open; wait before it begins")
    deadline = None if timeout is None else time.monotonic() + timeout
    probe = StreamProbe(stream.name)
    waiting = waiting_of(source.env)
    txn: Any
    while True:
        with source.read() as txn:
            value = probe.value(txn)
        if value is not None and value[1:] > after:
            found = range_read.read_range(source, stream.name, after + 1, StreamID.MAX, 1, False, None)
            if next(found, None) is not None:
                return True
        if not waiting.wait({probe: value}, deadline):
            return False
