"""A worker: runs a function for each entry of a group, in threads of this process.

    lane      read, with the acknowledgement of what is done ──> run ──> run … ──> read      a thread each
                                                                  │ an exception
                                                                  ├─> released, for after a delay
                                                                  └─> dead letters, after so many deliveries
    beat      renews the leases of what takes long, and ends what takes too long             one thread

A lease is the idle time of a pending entry: an entry that has been idle for ``lease`` seconds is another worker's to
take (read's claim_idle). The beat renews those of entries that have been held for a quarter of it, so none is taken
over while its worker lives; after a kill nothing renews them.

A lane reads as many entries at once as it can run in a moment, FLUSH. Where one takes longer, the beat gives back
those that wait behind it, and what is done is acknowledged by itself.

Whatever ends an entry asks for its owner: a lane that was stopped for longer than its lease (SIGSTOP, a suspended
machine) acknowledges, releases and buries nothing that another worker has by now.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from ...storage.errors import InvalidArgument, LockTimeout, MalformedValue, NotOwner, RaxlogError, StoreFull
from ...storage.wake.stop import Stop
from ..entries.header import shown
from ..node.arguments import Name, duration_ms, member_name, whole
from ..node.entry import Entry
from ..node.stream_id import StreamID
from .outcome import Backoff, Discard, Retry, Snooze, TimeLimit, parsed_retry
from .results import Result

if TYPE_CHECKING:
    from ..group.dead_letters import DeadLetters
    from ..group.group import Group

FLUSH = 0.05  # seconds for which a lane runs what it has read at once
MOST = 100  # entries of a read
_LONG = 0.1  # seconds after which a lane gives back what waits behind an entry
_AGAIN = 1.0  # seconds until a lane tries again what a full disk, or a lock, has prevented
_GRACE = 1.0  # seconds that a handler has to end once its time is over
_SHORTEST = 0.1  # seconds of a lease
_NEVER = float("inf")

_log = logging.getLogger("raxlog.worker")


class _Lane:
    """One thread of a worker: a consumer of the group, and what it holds. ``lock`` is over all but the counts."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.lock = threading.Lock()
        self.waiting: deque[Entry] = deque()
        self.running: Entry | None = None
        self.done: list[StreamID] = []  # not yet acknowledged
        self.results: dict[StreamID, Result] = {}  # of these, not yet kept
        self.lost: set[StreamID] = set()  # another worker has taken these over, or they have been given back
        self.begun = self.renewed = 0.0  # when the entry that runs was, and all that is held
        self.limited = False  # TimeLimit has been raised in the handler
        self.thread = threading.Thread()
        self.counts: Counter[str] = Counter()

    def held(self) -> list[StreamID]:
        """All that is pending with this lane."""
        running = [] if self.running is None else [self.running]
        return [*self.done, *(entry.id for entry in (*running, *self.waiting))]


class Worker:
    """Runs a function for each entry of a group. Made by Group.worker(), which explains the settings."""

    def __init__(self, group: Group, letters: DeadLetters, handler: Callable[..., object], shown: Callable[..., Any], *,
                 name: Name | None, threads: int, lease: float, attempts: int, retry: object, timeout: float | None,
                 drain: float, begin: Callable[[], Any] | None, result_ttl: float | None) -> None:
        if not callable(handler):
            raise InvalidArgument(f"handler={handler!r} must be a function of an entry")
        if is_async(handler):
            raise InvalidArgument(f"handler={handler!r} is async, which a thread cannot await. A group of raxlog.aio "
                                  "has a worker() for it, and the command `raxlog worker` runs it")
        whole("threads", threads, 1, 1000)
        whole("attempts", attempts, 1)
        self._lease = duration_ms("lease", lease) / 1000
        self._timeout = None if timeout is None else duration_ms("timeout", timeout) / 1000
        self._drain = duration_ms("drain", drain) / 1000
        self._result_ttl = None if result_ttl is None else duration_ms("result_ttl", result_ttl) / 1000
        if self._lease < _SHORTEST or self._timeout == 0:
            raise InvalidArgument(f"lease={lease!r} must be {_SHORTEST} seconds or more, timeout={timeout!r} not 0")
        self._group = group
        self._letters = letters
        self._handler = handler
        self._begin = begin  # a transaction for each entry
        self._shown = shown
        self._attempts = attempts
        self._retry = parsed_retry(Backoff() if retry is None else retry)
        usual = f"{os.uname().nodename}-{os.getpid()}-{os.urandom(3).hex()}".encode()
        self.name = usual if name is None else member_name(name, "consumer")
        self._lanes = [_Lane(self.name if threads == 1 else b"%b-%d" % (self.name, n)) for n in range(threads)]
        self._gone: list[_Lane] = []  # those whose handler did not end in time
        self._stop = Stop()
        self._active = threading.Event()  # there is something for the beat to look at
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._pid = os.getpid()
        self._burst = False

    @property
    def counts(self) -> dict[str, int]:
        """The number of entries by outcome: "done", "failed", "snoozed", "dead", and "lost" to another worker."""
        return dict(sum((lane.counts for lane in (*self._lanes, *self._gone)), Counter()))

    def __repr__(self) -> str:
        counts = "".join(f", {many:,} {what}" for what, many in self.counts.items())
        return f"<raxlog.Worker {shown(self.name)} of {self._group!r}{counts}>"

    def stop(self) -> None:
        """End the worker: no further entry is begun. May be called from any thread, and from signal handlers."""
        self._stop.set()

    def run(self, signals: bool = True, burst: bool = False, until: Callable[[], bool] = lambda: False) -> None:
        """Work until stop() or, in the main thread and with ``signals``, until SIGTERM or Ctrl-C.

        With ``burst`` it also ends when there is nothing to read; entries that wait for a retry, or for the end of
        a lease, are left to the next run. It also ends once ``until`` returns True; this is called every 0.2 s.

        Running handlers then have ``drain`` seconds to end. Entries whose handlers have not ended are given back,
        and those threads are abandoned. Raises the error that ended a thread, such as NoGroup if the group has been
        destroyed.
        """
        self._burst = burst
        beat = threading.Thread(target=self._beat, name="raxlog worker: beat", daemon=True)
        in_main = signals and threading.current_thread() is threading.main_thread()
        with on_signals(self.stop) if in_main else nullcontext():
            try:
                beat.start()
                for lane in self._lanes:
                    self._start(lane)
                while not (self._stop.is_set() or until()) and (
                        alive := [lane.thread for lane in self._lanes if lane.thread.is_alive()]):
                    alive[0].join(0.2)  # which a signal's handler interrupts
            finally:
                self._stop.set()
                self._end(time.monotonic() + self._drain)
                self._ended.set()
                self._active.set()
                beat.join()
        if self._error is not None:
            raise self._error

    def _start(self, lane: _Lane) -> None:
        name = f"raxlog worker: {lane.name.decode(errors='replace')}"
        lane.thread = threading.Thread(target=self._serve, args=(lane,), name=name, daemon=True)
        lane.thread.start()

    def _end(self, deadline: float) -> None:
        for lane in self._lanes:
            if lane.thread.ident is not None:
                lane.thread.join(max(0.0, deadline - time.monotonic()))
            if lane.thread.is_alive():
                with lane.lock:
                    running = [] if lane.running is None else [lane.running]
                    lane.lost.update(entry.id for entry in running)
                self._acknowledge(lane)
                self._give_back(lane, running)

    # -- a lane -------------------------------------------------------------------------

    def _serve(self, lane: _Lane) -> None:
        try:
            count = 1
            while not self._stop.is_set():
                batch = self._read(lane, count)
                if not batch and self._burst:
                    break
                began = time.monotonic()
                with lane.lock:
                    lane.waiting.extend(batch)
                    lane.renewed = began
                self._active.set()
                while (entry := self._next(lane)) is not None:
                    self._finish(lane, entry, self._call(lane, entry))
                    if lane in self._gone:
                        return
                    if lane.waiting and time.monotonic() - began > FLUSH:
                        self._acknowledge(lane)
                took = time.monotonic() - began
                if took > FLUSH:
                    count = max(1, int(count * FLUSH / took))
                elif len(batch) == count:
                    count = min(MOST, 2 * count)
            self._acknowledge(lane)
        except BaseException as error:
            self._error = self._error or error
            self._stop.set()

    def _read(self, lane: _Lane, count: int) -> list[Entry]:
        """Acknowledge what is done, and wait for more."""
        while True:
            done = list(lane.done)
            try:
                self._keep_results(lane)
                batch = self._group.read(lane.name, count, ack=done, ack_owned=True, claim_idle=self._lease,
                                         block=None if self._burst else 0, stop=self._stop)
            except (StoreFull, LockTimeout) as error:
                _log.warning("%s: %s; trying again", type(error).__name__, error)
                if self._ended.wait(_AGAIN) or self._stop.is_set():
                    return []
            else:
                with lane.lock:
                    del lane.done[: len(done)]
                return batch

    def _next(self, lane: _Lane) -> Entry | None:
        """The entry to run next, if there is one and the worker has not been stopped."""
        with lane.lock:
            if lane.waiting and not self._stop.is_set():
                lane.running = lane.waiting.popleft()
                lane.begun, lane.limited = time.monotonic(), False
                return lane.running
            left = list(lane.waiting)
            lane.waiting.clear()
        self._give_back(lane, left)
        return None

    def _call(self, lane: _Lane, entry: Entry) -> BaseException | None:
        """Run the handler, and see that no limit is raised in this thread any more; what the handler has raised."""
        try:
            raised = self._run(lane, entry)
        except TimeLimit as late:  # behind the handler's end
            raised = late
        while True:
            try:
                if os.getpid() != self._pid:
                    os._exit(0)  # a child that the handler has forked: the entry is its parent's
                with lane.lock:
                    lane.begun = _NEVER
                if lane.limited:  # one may be on its way; another comes in its place, and surely
                    _raise_in(threading.get_ident())
                    time.sleep(_GRACE)
                return raised
            except TimeLimit:
                lane.limited = False

    def _run(self, lane: _Lane, entry: Entry) -> BaseException | None:
        try:
            if entry.deliveries > self._attempts:
                raise Exhausted(f"delivered {entry.deliveries} times, and no worker has come to its end")
            [shown] = self._shown([entry])
            if self._begin is None:
                value = self._handler(shown)
                if self._result_ttl is not None:
                    lane.results[entry.id] = Result(value)
            else:
                with self._begin() as tx:
                    value = self._handler(shown, tx)
                    group = tx.group(self._group.stream, self._group.name)
                    if self._result_ttl is not None:
                        group.keep_results({entry.id: Result(value)}, self._result_ttl)
                    group.ack(entry.id, consumer=lane.name)
        except BaseException as error:
            return error
        return None

    def _finish(self, lane: _Lane, entry: Entry, raised: BaseException | None) -> None:
        """Note that an entry is done, or commit what becomes of it."""
        with lane.lock:
            lane.running = None
            if raised is None and (self._begin is not None or entry.id not in lane.lost):
                lane.counts["done"] += 1
                lane.done += [entry.id] if self._begin is None else []
                return
            if entry.id in lane.lost or (isinstance(raised, NotOwner) and entry.id in raised.ids):
                lane.lost.discard(entry.id)
                lane.counts["lost"] += 1
                return
            assert raised is not None
        self._fail(lane, entry, raised)

    def _fail(self, lane: _Lane, entry: Entry, raised: BaseException) -> None:
        try:
            if isinstance(raised, Snooze):
                self._group.nack(entry.id, mode="silent", delay=raised.seconds, consumer=lane.name)
                lane.counts["snoozed"] += 1
                return
            error = f"{type(raised).__name__}: {raised}"
            lane.counts["failed"] += 1
            reason = next((name for kind, name in _REASONS.items() if isinstance(raised, kind)), "failed")
            if reason == "failed" and entry.deliveries < self._attempts:
                delay = raised.after if isinstance(raised, Retry) else None
                delay = self._delay(entry.deliveries) if delay is None else delay
                _log.info("%s failed, to be tried again in %.3g s: %s", entry.id, delay, error)
                self._group.nack(entry.id, delay=delay, consumer=lane.name)
            else:
                _log.warning("%s goes to the dead letters, %s: %s", entry.id, reason, error)
                if self._result_ttl is not None:
                    self._group.keep_results({entry.id: Result(None, error)}, self._result_ttl)
                self._letters.bury(lane.name, entry, reason, error, "".join(traceback.format_exception(raised)))
                lane.counts["dead"] += 1
        except NotOwner:
            lane.counts["lost"] += 1
        except (StoreFull, LockTimeout) as stuck:
            _log.warning("%s stays pending until its lease ends: %s", entry.id, stuck)

    def _delay(self, deliveries: int) -> float:
        try:
            return duration_ms("retry", self._retry(deliveries)) / 1000
        except Exception:
            _log.exception("retry, a function of the worker's user, has failed; the usual delay is taken")
            return Backoff()(deliveries)

    def _acknowledge(self, lane: _Lane) -> None:
        """Acknowledge what is done, as far as it is still the lane's."""
        with lane.lock:
            done, lane.done = lane.done, []
        if done and not (self._commit(lambda: self._keep_results(lane))
                         and self._commit(lambda: self._group.read(lane.name, 0, ack=done, ack_owned=True))):
            with lane.lock:
                lane.done += done  # with the next read

    def _keep_results(self, lane: _Lane) -> None:
        kept = dict(lane.results)
        if kept and self._result_ttl is not None:
            self._group.keep_results(kept, self._result_ttl)
            for sid in kept:
                lane.results.pop(sid, None)

    def _give_back(self, lane: _Lane, entries: list[Entry]) -> None:
        """Release entries that were not begun, or not ended; their delivery does not count."""
        for entry in entries:
            self._commit(lambda sid=entry.id: self._group.nack(sid, mode="silent", consumer=lane.name))  # type: ignore[misc]

    def _commit(self, call: Callable[[], object]) -> bool:
        """A call that may fail without a loss: what it would have changed is taken over when its lease ends."""
        try:
            call()
        except RaxlogError as error:
            if not isinstance(error, NotOwner):
                _log.warning("%s: %s", type(error).__name__, error)
                return False
        return True

    # -- the beat -----------------------------------------------------------------------

    def _beat(self) -> None:
        """Look after the lanes while they hold something; sleep while they do not."""
        period = min(self._lease / 8, _LONG, self._timeout or _LONG)
        while not self._ended.is_set():
            self._active.wait()
            self._active.clear()
            while any(lane.held() for lane in self._lanes) and not self._ended.wait(period):
                for lane in list(self._lanes):
                    self._look_after(lane)

    def _look_after(self, lane: _Lane) -> None:
        now = time.monotonic()
        with lane.lock:
            ran = 0.0 if lane.running is None else now - lane.begun
            left = list(lane.waiting) if ran > _LONG else []
            for _ in left:
                lane.waiting.popleft()
            held = lane.held() if now - lane.renewed > self._lease / 4 else []
            if self._timeout is not None and ran > self._timeout and not lane.limited:
                lane.limited = True
                _raise_in(lane.thread.ident)
            hangs = lane.limited and lane.running is not None and ran > (self._timeout or 0.0) + _GRACE
        if ran > _LONG:
            self._acknowledge(lane)
            self._give_back(lane, left)
        if hangs:
            self._replace(lane)
        elif held:
            lane.renewed = now
            self._commit(lambda: lane.lost.update(self._group.renew(lane.name, *held)))

    def _replace(self, lane: _Lane) -> None:
        """Go on with another thread: that of this lane is in a call that no exception reaches."""
        other = _Lane(lane.name)
        with lane.lock:  # the handler may end at this moment, and its thread goes on only behind all of this
            entry = lane.running
            if entry is None:
                return
            lane.lost.add(entry.id)
            if not self._stop.is_set():
                self._start(other)  # first: run() ends where no thread of the lanes lives
            self._lanes[self._lanes.index(lane)] = other
            self._gone.append(lane)
        self._fail(lane, entry, TimeLimit(f"the handler did not end for {self._timeout} s, nor {_GRACE} s after that"))


def is_async(handler: object) -> bool:
    """Whether a handler returns a coroutine, which is to be awaited."""
    return iscoroutinefunction(handler) or iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


class Exhausted(Exception):
    """The entry has been delivered too often: it may end the processes that run it."""


_REASONS = {Discard: "discarded", MalformedValue: "malformed", Exhausted: "exhausted"}


def _raise_in(thread: int | None) -> None:
    """Raise TimeLimit in a thread, once, in place of one that has not arrived yet.

    It is never taken back: CPython 3.11 would go on looking for it, between any two calls, in all threads.
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread or 0), ctypes.py_object(TimeLimit))


@contextmanager
def on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Within the block SIGTERM and Ctrl-C call this."""
    before = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)
