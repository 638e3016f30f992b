"""Waiting: readers that sleep until something they wait for has moved, in any process.

    other process   commit, then a touch of the file ``wake``
                                   │ event
    this process    watcher: drain, NEW read transaction, evaluate each probe once
                       │ releases only those whose probe moved
             ┌─────────┼──────────────┐
          sleeper   sleeper     line: place 1, place 2, place 3      (one lock each)

A probe says what a thing looks like in a transaction: a stream's last ID, a group's version.
Who waits tells what he has seen, and sleeps until it looks different. No wake-up is lost:

    R1  register                          (the watcher's steps are V1 to V5, see
    R2  look again, in a NEW transaction   storage/watcher.py)
    R3  sleep

The event of a commit is queued after the commit is visible. Who had registered when the
watcher took stock is covered by its look, which begins after that event was drained; who
came later, by his own R2.

A line is what makes group reads first come, first served: of those who wait in it, one at a
time is let out to look, the one that waits longest and has reason to. If he finds nothing
(another process was faster) he keeps his place, and those behind him, who wait for the same,
need not look. When he leaves the line, the next one with a reason is let out. So a movement
costs one look in vain per process at most, and nobody can wake anybody in a circle.

The first wait starts the watcher; while nobody waits it sleeps, whatever is committed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from ..storage import folder
from ..storage.environment import Environment
from ..storage.errors import RaxlogError, StoreClosed, TransactionError
from ..storage.watcher import SAFETY_PERIOD, Watcher
from . import reading
from .clock import duration_ms
from .id import StreamID
from .probe import Probe, StreamProbe
from .source import Direct, Source
from .stop import StopFlag, is_stopped, sleep, wake

if TYPE_CHECKING:
    from .stream import Stream

_LONGEST_SLEEP = 3.0  # seconds: Ctrl-C can come just before a lock is waited for, and be slept over


class Place:
    """A place in a line, from turn() until its ``with`` ends. Not to be shared by threads."""

    __slots__ = ("__weakref__", "key", "sleeper")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.sleeper: _Sleeper | None = None  # None: awake, looking


class _Sleeper:
    """One wait of one thread."""

    __slots__ = ("due", "lock", "place", "ready", "released", "seen", "stop", "timer")

    def __init__(self, seen: Mapping[Probe, Hashable], due: float | None, place: Place | None,
                 stop: StopFlag | None) -> None:
        self.seen = dict(seen)
        self.due = due
        self.place = place
        self.stop = stop
        self.ready = False  # something has moved
        self.released = False
        self.timer = due
        self.lock = threading.Lock()
        self.lock.acquire()

    def has_reason(self, now: float) -> bool:
        return self.ready or (self.due is not None and now >= self.due)


class Waiting:
    """All waits of one environment in this process. Get it by waiting_of()."""

    def __init__(self, env: Environment, safety_period: float = SAFETY_PERIOD) -> None:
        self._env = env
        self._safety_period = safety_period
        self._mutex = threading.Lock()  # held for moments, never during a look
        self._sleepers: set[_Sleeper] = set()
        # In order of arrival. Weak, so that a place cannot outlive a thread that lost it.
        self._lines: dict[Hashable, WeakValueDictionary[int, Place]] = {}
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
        if self._env.in_own_transaction():
            raise TransactionError(
                "this thread has a transaction open, and who could bring news waits for its end; wait before it begins"
            )
        return self._wait(_Sleeper(seen, due, turn, stop), deadline)

    @contextmanager
    def turn(self, key: Hashable, deadline: float | None = None, stop: StopFlag | None = None) -> Iterator[Place]:
        """Stand in the line ``key`` while reading and waiting: first come, first served.

            with waiting.turn(key, deadline) as place:
                while True:
                    found, seen, due = ...               # look, in a transaction
                    if found or not waiting.wait(seen, deadline, due, turn=place):
                        return found

        The key must hold all that decides what a read can get (streams, group, from which
        idle time on it claims): for whoever waits in one line, what one has looked for in
        vain is not there for the others either. Comes back once nobody before has a reason
        to look, at the deadline, or stopped; with none before it, at once. In the ``with`` the thread
        must not enter the same line again, nor sleep but by wait().
        """
        place = Place(key)
        try:
            if self._enter(place):
                # Never having looked is a reason: a due time long past.
                self._wait(_Sleeper({}, 0.0, place, stop), deadline)
            yield place
        finally:
            self._leave(place)

    def close(self) -> None:
        """End the watcher; whoever sleeps gets StoreClosed. Environment.close() calls this."""
        with self._mutex:
            self._closed = True
            watcher = self._watcher
            for sleeper in list(self._sleepers):
                self._release(sleeper)
        if watcher is not None:
            watcher.close()

    def forget(self) -> None:
        """In a child after fork: close the inherited watch, and touch nothing else."""
        if self._watcher is not None:
            self._watcher.forget()

    # -- a wait, step by step -----------------------------------------------------------

    def _wait(self, sleeper: _Sleeper, deadline: float | None) -> bool:
        try:
            self._register(sleeper)
            self._look_once(sleeper)
            return self._sleep(sleeper, deadline)
        finally:
            with self._mutex:
                self._sleepers.discard(sleeper)
                if sleeper.place is not None:
                    sleeper.place.sleeper = None

    def _register(self, sleeper: _Sleeper) -> None:
        """R1. The watcher and its watch are there before this returns, so before any R2."""
        with self._mutex:
            if self._closed or self._env.closed:
                raise self._error_closed()
            if self._watcher is None:
                self._watcher = Watcher(
                    self._env.path / folder.WAKE, lambda: bool(self._sleepers), self._look_for_all,
                    self._watcher_ended, self._safety_period,
                )
            self._sleepers.add(sleeper)
            self._registered += 1
            self._watcher.unpark()

    def _look_once(self, sleeper: _Sleeper) -> None:
        """R2. In a line also for those who sleep in it, who may come first."""
        asked = [sleeper]
        if sleeper.place is not None:
            with self._mutex:
                others = [place.sleeper for place in self._line(sleeper.place.key)]
            asked += [other for other in others if other is not None]
        self._look(asked, looker=sleeper)

    def _sleep(self, sleeper: _Sleeper, deadline: float | None) -> bool:
        """R3. True once released, unless stopped."""
        while True:
            if is_stopped(sleeper.stop):
                return False
            with self._mutex:
                now = time.monotonic()
                if not sleeper.released and sleeper.has_reason(now):
                    self._let_out(sleeper)
                if sleeper.released:
                    break
                if deadline is not None and now >= deadline:
                    return False
                until = now + _LONGEST_SLEEP if deadline is None else deadline
                sleeper.timer = sleeper.due
                if sleeper.due is not None and sleeper.due > now:
                    until = min(until, sleeper.due)
            sleep(sleeper.lock, min(until - now, _LONGEST_SLEEP), sleeper.stop)
        if self._closed:
            raise self._error_closed()
        return True

    def _error_closed(self) -> StoreClosed:
        return StoreClosed(f"the store {self._env.path} has been closed. Open it again.")

    # -- lines (under the mutex) --------------------------------------------------------

    def _line(self, key: Hashable) -> list[Place]:
        line = self._lines.get(key)
        return [] if line is None else list(line.values())

    def _enter(self, place: Place) -> bool:
        """Stand at the end of the line. Whether there is anybody before."""
        with self._mutex:
            before = bool(self._line(place.key))
            self._arrivals += 1
            self._lines.setdefault(place.key, WeakValueDictionary())[self._arrivals] = place
        return before

    def _leave(self, place: Place) -> None:
        with self._mutex:
            line = self._lines.get(place.key)
            if line is None:
                return
            for number, other in list(line.items()):
                if other is place:
                    del line[number]
            self._next_in(place.key)

    def _lie_down(self, sleeper: _Sleeper, place: Place) -> None:
        """He has looked, and sleeps now. Those behind him need not look at the same in vain."""
        place.sleeper = sleeper
        if sleeper.seen and not sleeper.ready:
            places = self._line(place.key)
            for other in places[places.index(place) + 1:]:
                if other.sleeper is not None and other.sleeper.seen:
                    other.sleeper.seen = dict(sleeper.seen)
                    other.sleeper.due = sleeper.due
                    other.sleeper.ready = False
        self._next_in(place.key)

    def _next_in(self, key: Hashable) -> None:
        """Let out the first who has a reason, unless somebody before him is looking now."""
        places = self._line(key)
        if not places:
            self._lines.pop(key, None)
        now = time.monotonic()
        for place in places:
            if place.sleeper is None:
                return
            if place.sleeper.has_reason(now):
                self._release(place.sleeper)
                return
        if places:
            # The first in the line keeps the time for all; it may have just become the first.
            first = places[0].sleeper
            if first is not None and first.due != first.timer:
                wake(first.lock)

    def _let_out(self, sleeper: _Sleeper) -> None:
        if sleeper.place is None:
            self._release(sleeper)
        else:
            self._next_in(sleeper.place.key)

    def _release(self, sleeper: _Sleeper) -> None:
        self._sleepers.discard(sleeper)
        if sleeper.place is not None:
            sleeper.place.sleeper = None
        sleeper.released = True
        wake(sleeper.lock)

    # -- looking ------------------------------------------------------------------------

    def _look(self, asked: list[_Sleeper], looker: _Sleeper | None = None, known: int = 0) -> int:
        """R2 of ``looker``, else V3 and V4: let out those whose probe has moved.

        Gives the number of the transaction. In ``known`` all has been seen already. A probe
        that raises for the watcher counts as moved; who waits for it looks for himself then,
        and gets the error.
        """
        values: dict[Probe, Hashable] = {}
        txn: Any
        with self._env.read() as txn:
            number = self._env.moment(txn)
            if number != known:
                for probe in {probe for sleeper in asked for probe in tuple(sleeper.seen)}:
                    try:
                        values[probe] = probe.value(txn)
                    except RaxlogError:
                        if looker is not None:
                            raise
                        values[probe] = object()
        with self._mutex:
            now = time.monotonic()
            for sleeper in asked:
                if any(values.get(probe, value) != value for probe, value in sleeper.seen.items()):
                    sleeper.ready = True
            if looker is not None and looker.place is not None and not looker.released:
                self._lie_down(looker, looker.place)
            for sleeper in asked:
                if sleeper in self._sleepers and sleeper.has_reason(now):
                    self._let_out(sleeper)
        return number

    def _look_for_all(self, quick: bool) -> int:
        """The watcher's look: for everybody who is registered as it begins.

        A quick one does nothing if neither a commit nor a wait has come since the last look.
        """
        with self._mutex:
            asked = list(self._sleepers)
            registered = self._registered
        number, last_registered = self._looked
        known = number if quick and registered == last_registered else 0
        try:
            number = self._look(asked, known=known)
            self._looked = number, registered
            return number
        except StoreClosed:
            raise
        except RaxlogError:
            # No transaction to be had. Each looks for himself, and gets the error as his own.
            with self._mutex:
                for sleeper in asked:
                    self._release(sleeper)
            return 0

    def _watcher_ended(self) -> None:
        with self._mutex:
            self._closed, self._watcher = True, None
            for sleeper in list(self._sleepers):
                self._release(sleeper)


def waiting_of(env: Environment) -> Waiting:
    """The waits of an environment; made anew in a forked child."""
    waiting: Waiting = env.kept("waiting_state", Waiting)
    return waiting


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
            found = reading.read_range(source, stream.name, after + 1, StreamID.MAX, 1, False, None)
            if next(found, None) is not None:
                return True
        if not waiting.wait({probe: value}, deadline):
            return False
