"""A worker: runs a function for each entry of a group, in threads of this process.

    lane      read, with the acknowledgement of what is done ──> run ──> run … ──> read      a thread each
                                                                  │ an exception
                                                                  ├─> released, for after a delay
                                                                  └─> dead letters, after so many deliveries
    beat      renews the leases of what takes long, and ends what takes too long or has      one thread
              been cancelled

A lease is the idle time of a pending entry: an entry that has been idle for ``lease`` seconds is another worker's to
take (read's claim_idle). The beat renews those of entries that have been held for a quarter of it, so none is taken
over while its worker lives; after a kill nothing renews them.

A lane reads as many entries at once as it can run in a moment, FLUSH. Where one takes longer, the beat gives back
those that wait behind it, and what is done is acknowledged by itself.

A worker of several groups reads the first, in their order, that has an entry; every so many reads it begins at the
back. What a lane holds is of one group: the read of another one acknowledges in the same commit.

Whatever ends an entry asks for its owner: a lane that was stopped for longer than its lease (SIGSTOP, a suspended
machine) acknowledges, releases and buries nothing that another worker has by now.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import threading
import traceback
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from functools import partial
from inspect import iscoroutinefunction, signature
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypedDict

from ...storage import clocks, fork_hooks
from ...storage.errors import InvalidArgument, LockTimeout, MalformedValue, NotOwner, RaxlogError, StoreFull
from ...storage.handles import made_by_a_call
from ...storage.notices import report
from ...storage.threads import start
from ...storage.wake.stop import Stop, StopFlag
from ..entries.header import shown
from ..entries.session import Handle, bound
from ..node.arguments import Name, Text, duration_ms, member_name, stored_bytes, whole
from ..node.entry import copied
from ..node.stream_id import IDLike, IDs, StreamID, now_ms
from ..node.typed import Entry
from .outcome import Backoff, Cancelled, Counts, Discard, Retry, Snooze, TimeLimit, asked_delay, parsed_retry
from .results import CANCELLED, Result, packed, unpacked
from .texts import described, text_of

if TYPE_CHECKING:
    from .processes import Children

FLUSH = 0.05  # seconds for which a lane runs what it has read at once
MOST = 100  # entries of a read
_LONG = 0.1  # seconds after which a lane gives back what waits behind an entry
_AGAIN = 1.0  # seconds until a lane tries again what a full disk, or a lock, has prevented
_GRACE = 1.0  # seconds that a handler has to end once its time is over, or its entry cancelled
_LOOK = 0.4  # seconds between looks whether an entry that runs has been cancelled
_SHORTEST = 0.1  # seconds of a lease
_NEVER = float("inf")
_LEFT = 60.0  # seconds for which a consumer has not been seen whose worker has died
_GENERATED = re.compile(rb".+(-\d+-[0-9a-f]{6}|-p\d+-\d+)(/\d+)?", re.DOTALL)  # names made here and by processes.py


Held = tuple[int, StreamID]  # the place of its group among the worker's, and the ID


def _never() -> bool:
    return False


class _Lane:
    """One thread of a worker: a consumer of its groups, and what it holds. ``lock`` is over all but the counts.

    What runs and waits is of the group at ``place``; what is done can be of several.
    """

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.place = self.reads = 0
        self.lock = threading.Lock()
        self.waiting: deque[Entry] = deque()
        self.running: Entry | None = None
        self.cancelled: Entry | None = None  # the last that was while it ran
        self.done: list[Held] = []  # not yet acknowledged
        self.results: dict[Held, Result] = {}  # of these, not yet kept
        self.lost: set[Held] = set()  # another worker has taken these over, or they have been given back
        self.begun = self.renewed = 0.0  # when the entry that runs was, and all that is held
        self.looked = self.limited_at = 0.0
        self.limited: type[BaseException] | None = None  # what has been raised in the handler
        self.thread = threading.Thread()
        self.counts: Counter[str] = Counter()

    def held(self) -> list[Held]:
        """All that is pending with this lane."""
        running = [] if self.running is None else [self.running]
        return [*self.done, *((self.place, entry.id) for entry in (*running, *self.waiting))]


class _Consumer(Protocol):
    @property
    def name(self) -> Text: ...
    @property
    def pending(self) -> int: ...
    @property
    def seen(self) -> datetime: ...


class _Pending(Protocol):
    @property
    def id(self) -> StreamID: ...


class _Job(Protocol):
    @property
    def reason(self) -> str | None: ...


class _Group(Handle, Protocol):
    """What a worker asks of its group, which is above this: see Group."""

    def read(self, consumer: Name, count: int | None = None, *, timeout: float | None = 0, ack: Iterable[IDLike] = (),
             ack_owned: bool = False, claim_idle: float | None = None,
             stop: StopFlag | None = None) -> Sequence[Entry]: ...
    def ack(self, *ids: IDs, consumer: Name | None = None) -> int: ...
    def renew(self, consumer: Name, *ids: IDs) -> list[StreamID]: ...
    def nack(self, *ids: IDs, mode: Literal["silent", "fail"] = "fail", delay: float = 0.0,
             consumer: Name | None = None) -> int: ...
    def keep_results(self, results: Mapping[IDLike, Result], ttl: float) -> None: ...
    def pending_entries(self, *, consumer: Name | None = None) -> Sequence[_Pending]: ...
    def consumers(self) -> Sequence[_Consumer]: ...
    def delete_consumer(self, name: Name) -> int: ...
    def job(self, id: IDLike) -> _Job: ...


class Duty(NamedTuple):
    """A group that a worker serves."""

    group: _Group
    handler: Callable[..., object]
    bury: Callable[..., None]  # among its dead letters
    shown: Callable[..., Sequence[object]]
    next_due: Callable[[], int | None]
    turn: Callable[[], int | None]  # of what its rate holds back


Asked = tuple[int, int, Sequence[StreamID]]  # of the group at a place so many entries; and what to acknowledge in it
ReadFirst = Callable[[bytes, Sequence[Asked], float, StopFlag, bool], tuple[int, Sequence[Entry]]]

class WorkerOptions(TypedDict, total=False):
    """The options of Group.worker() but ``transaction`` and ``processes``, as checkers of types see them."""

    name: Name | None
    threads: int
    lease: float
    max_deliveries: int
    retry: object
    timeout: float | None
    drain: float
    dead_letters: Name | None
    result_ttl: float | None


class Worker:
    """Runs a function for each entry of a group, or of several. Made by group.worker(), which explains the settings."""

    @made_by_a_call
    def __init__(self, duties: Sequence[Duty], read_first: ReadFirst, back_every: int,
                 begin: Callable[[], AbstractContextManager[Handle]] | None, *, name: Name | None = None,
                 threads: int = 1, lease: float = 30.0, max_deliveries: int = 20, retry: object = None,
                 timeout: float | None = None, drain: float = 10.0, result_ttl: float | None = None,
                 is_child: bool = False, children: Children | None = None) -> None:
        for duty in duties:
            _require_handler(duty.handler, 1 if begin is None else 2)
        whole("threads", threads, 1, 1000)
        whole("max_deliveries", max_deliveries, 1)
        self._lease = duration_ms("lease", lease) / 1000
        self._timeout = None if timeout is None else duration_ms("timeout", timeout) / 1000
        self._drain = duration_ms("drain", drain) / 1000
        self._result_ttl = None if result_ttl is None else duration_ms("result_ttl", result_ttl) / 1000
        if self._lease < _SHORTEST or self._timeout == 0:
            raise InvalidArgument(f"lease={lease!r} must be {_SHORTEST} seconds or more" if self._lease < _SHORTEST
                                  else f"timeout={timeout!r} must be more than 0")
        self._duties = duties
        self._read_first = read_first  # of several
        self._back_every = back_every
        self._children = children  # which run the handler; this process' lanes do not
        self._begin = begin  # a transaction for each entry
        self._max_deliveries = max_deliveries
        self._retry = parsed_retry(Backoff() if retry is None else retry)
        usual = f"{os.uname().nodename}-{os.getpid()}-{os.urandom(3).hex()}".encode()
        self.name: bytes = usual if name is None else member_name(name, "consumer")
        self._is_named = name is not None and not is_child
        self._lanes = [_Lane(member_name(name, "consumer")) for name in _lane_names(self.name, threads)]
        self._gone: list[_Lane] = []  # those whose handler did not end in time
        self._stop = Stop()
        self._active = threading.Event()  # there is something for the beat to look at
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._forks = fork_hooks.count()
        self._burst = False

    @property
    def counts(self) -> Counts:
        """The number of entries by outcome.

        Those of child processes are up to 0.2 s late; the last ones of a child that is killed may be missing.
        """
        return Counts(**self._counted())

    def _counted(self) -> Counter[str]:
        children = Counter[str]() if self._children is None else self._children.counts
        return sum((Counter(lane.counts) for lane in (*self._lanes, *self._gone)), children)

    @property
    def pids(self) -> list[int]:
        """The child processes that run; none without ``processes``."""
        return [] if self._children is None else self._children.pids

    def __repr__(self) -> str:
        counts = "".join(f", {count:,} {what}" for what, count in self._counted().items())
        groups = ", ".join(repr(duty.group) for duty in self._duties)
        running = self._children and f", {len(self.pids)} of {len(self._children.places)} processes running"
        return f"<raxlog.Worker {shown(self.name)} of {groups}{running or ''}{counts}>"

    def stop(self) -> None:
        """End the worker: no further entry is begun. May be called from any thread, and from signal handlers."""
        self._stop.set()

    def run(self, *, signals: bool = True, burst: bool = False, until: Callable[[], bool] | None = None) -> None:
        """Work until stop() or, in the main thread and with ``signals``, until SIGTERM or Ctrl-C.

        With ``burst`` it also ends when there is nothing to read; entries that wait for a retry, or for the end of
        a lease, are left to the next run, and what a rate holds back is waited for. It also ends once ``until``
        returns True; this is called every 0.2 s. It may be called again, unless it was stopped.

        Running handlers then have ``drain`` seconds to end. Entries whose handlers have not ended are given back,
        and those threads are abandoned. Raises the error that ended a thread, such as NoGroup if the group has been
        destroyed.
        """
        until = until or _never
        self._burst = burst
        if self._children is not None:
            with on_signals(self.stop, signals):
                self._children.run(self.name, self._stop, burst, until, self._renew_of, self._lease,
                                   self._timeout or _NEVER)
        else:
            with self._beating(signals):
                self._serve_all(until)

    def drain(self, *, max_outcomes: int = 10_000, signals: bool = True,
              until: Callable[[], bool] | None = None) -> Counts:
        """Work until nothing is queued, deferred or waiting for a retry; the counts of this call. For tests.

        Between rounds of run(burst=True) it waits for what falls due next; within raxlog.testing.clock() it moves the
        clock there instead. What others hold, or a pause without an end, is left. RaxlogError once it has counted more
        than ``max_outcomes``, as with a handler that snoozes, or appends to its own stream, for ever. It may be called
        again. InvalidArgument with ``processes``.
        """
        whole("max_outcomes", max_outcomes, 1)
        if self._children is not None:
            raise InvalidArgument("drain() of a worker with processes=; use threads=, or run(burst=True)")
        until = until or _never
        self._burst = True
        before = self._counted()
        total = before.total() + max_outcomes
        with self._beating(signals):
            while not self._stop.is_set():
                self._serve_all(lambda: until() or self._counted().total() > total)
                if self._counted().total() > total:
                    raise RaxlogError(f"drain() does not come to an end: {self.counts}. Does a handler snooze, or "
                                      f"append to its own stream, for ever? If not, give more than "
                                      f"max_outcomes={max_outcomes}")
                due = min((due for duty in self._duties if (due := duty.next_due()) is not None), default=None)
                if self._stop.is_set() or until() or due is None:
                    break
                remaining = (due - clocks.now_ms()) / 1000
                if remaining > 0 and clocks.held is not None:
                    clocks.held.advance(remaining)
                else:  # or it is due by now, and was not to be had
                    self._ended.wait(min(max(remaining, FLUSH), _AGAIN))
        return Counts(**self._counted() - before)

    @contextmanager
    def _beating(self, signals: bool) -> Iterator[None]:
        """Look after the lanes, and end them with the block; the error of one of them."""
        beat = threading.Thread(target=self._beat, name="raxlog worker: beat", daemon=True)
        with on_signals(self.stop, signals):
            try:
                for duty in self._duties:
                    left = [one.name for one in _consumers(duty.group) if is_left_behind(one, self._lease)]
                    _forget(duty.group, left)
                start(beat)
                yield
                asked = self._stop.is_set()
            finally:
                self._stop.set()
                self._end(clocks.elapsed() + self._drain)
                self._ended.set()
                self._active.set()
                if beat.ident is not None:
                    beat.join()
                for duty in () if self._is_named else self._duties:
                    _forget(duty.group, [lane.name for lane in (*self._lanes, *self._gone)])
        if self._error is not None:
            raise self._error
        if not asked:
            self._stop.clear()
        self._ended.clear()

    def _serve_all(self, until: Callable[[], bool]) -> None:
        for lane in self._lanes:
            self._start(lane)
        while not (self._stop.is_set() or until()) and (
                alive := [lane.thread for lane in self._lanes if lane.thread.is_alive()]):
            alive[0].join(0.2)  # which a signal's handler interrupts

    def _start(self, lane: _Lane) -> None:
        name = f"raxlog worker: {lane.name.decode(errors='replace')}"
        lane.thread = threading.Thread(target=self._serve, args=(lane,), name=name, daemon=True)
        start(lane.thread)

    def _end(self, deadline: float) -> None:
        for lane in self._lanes:
            if lane.thread.ident is not None:
                lane.thread.join(max(0.0, deadline - clocks.elapsed()))
            if lane.thread.is_alive():
                with lane.lock:
                    running = [] if lane.running is None else [lane.running]
                    lane.lost.update((lane.place, entry.id) for entry in running)
                self._acknowledge(lane)
                self._give_back(lane, lane.place, running)

    # -- a lane -------------------------------------------------------------------------

    def _serve(self, lane: _Lane) -> None:
        try:
            counts = [1] * len(self._duties)  # for each group: its handler may be a slow one
            while not self._stop.is_set():
                place, batch = self._read(lane, counts)
                if not batch and self._burst:
                    if self._awaits_turn():
                        continue
                    break
                began = clocks.elapsed()
                with lane.lock:
                    lane.place = place
                    lane.waiting.extend(batch)
                    lane.renewed = clocks.monotonic()
                self._active.set()
                while (entry := self._next(lane)) is not None:
                    self._finish(lane, entry, self._call(lane, entry))
                    if lane in self._gone:
                        return
                    if lane.waiting and clocks.elapsed() - began > FLUSH:
                        self._acknowledge(lane)
                took = clocks.elapsed() - began
                if took > FLUSH:
                    counts[place] = max(1, int(counts[place] * FLUSH / took))
                elif len(batch) == counts[place]:
                    counts[place] = min(MOST, 2 * counts[place])
            self._acknowledge(lane)
        except BaseException as error:
            self._error = self._error or error
            self._stop.set()

    def _awaits_turn(self) -> bool:
        """In a burst: whether a rate holds something back, which is waited for then. drain() moves a clock instead."""
        turns = [turn for duty in self._duties if (turn := duty.turn()) is not None] if clocks.held is None else []
        if turns:
            self._ended.wait(min(max(1, min(turns) - clocks.now_ms()) / 1000, _AGAIN))
        return bool(turns)

    def _read(self, lane: _Lane, counts: list[int]) -> tuple[int, Sequence[Entry]]:
        """Acknowledge what is done, and wait for more: of the group at which place, and what."""
        lane.reads += 1
        while True:
            done = list(lane.done)
            try:
                self._keep_results(lane)
                place, batch = self._take(lane, counts, done)
            except (StoreFull, LockTimeout) as error:
                report("raxlog.worker", "warning", "%s: %s; trying again", type(error).__name__, error)
                if self._ended.wait(_AGAIN) or self._stop.is_set():
                    return 0, []
            else:
                with lane.lock:
                    del lane.done[: len(done)]
                return place, batch

    def _take(self, lane: _Lane, counts: list[int], done: list[Held]) -> tuple[int, Sequence[Entry]]:
        acks = _by_place(done)
        if len(self._duties) > 1:
            asked = [(place, counts[place], acks[place])
                     for place in in_turn(len(self._duties), lane.reads, self._back_every)]
            return self._read_first(lane.name, asked, self._lease, self._stop, not self._burst)
        return 0, self._duties[0].group.read(lane.name, counts[0], ack=acks[0], ack_owned=True,
                                             claim_idle=self._lease, timeout=0 if self._burst else None,
                                             stop=self._stop)

    def _duty(self, lane: _Lane) -> Duty:
        return self._duties[lane.place]

    def _next(self, lane: _Lane) -> Entry | None:
        """The entry to run next, if there is one and the worker has not been stopped."""
        with lane.lock:
            if lane.waiting and not self._stop.is_set():
                lane.running = lane.waiting.popleft()
                lane.begun = lane.looked = clocks.monotonic()
                lane.limited = None
                return lane.running
            waiting = list(lane.waiting)
            lane.waiting.clear()
        self._give_back(lane, lane.place, waiting)
        return None

    def _call(self, lane: _Lane, entry: Entry) -> BaseException | None:
        """Run the handler, and see that no limit is raised in this thread any more; what the handler has raised."""
        began = lane.begun
        try:
            raised = self._run(lane, entry)
        except (TimeLimit, Cancelled) as late:  # behind the handler's end
            raised = late
        while True:
            try:
                if fork_hooks.count() != self._forks:
                    os._exit(0)  # a child that the handler has forked: the entry is its parent's
                if type(raised) is TimeLimit and not raised.args:
                    raised.args = (f"the handler ran for {clocks.monotonic() - began:.3g} s; timeout={self._timeout}",)
                with lane.lock:
                    lane.begun = _NEVER
                if lane.limited:  # one may be on its way; another comes in its place, and surely
                    _raise_in(threading.get_ident(), lane.limited)
                    clocks.sleep(_GRACE)
                return raised
            except (TimeLimit, Cancelled):
                lane.limited = None

    def _run(self, lane: _Lane, entry: Entry) -> BaseException | None:
        try:
            if entry.deliveries > self._max_deliveries:
                raise Exhausted(f"delivered {entry.deliveries} times, and no worker has come to its end, or has been "
                                "able to write this letter")
            [shown] = self._duty(lane).shown([copied(entry)])
            if self._begin is None:
                value = self._duty(lane).handler(shown)
                if self._result_ttl is not None:
                    lane.results[lane.place, entry.id] = unpacked(packed(Result(value)))
            else:
                with self._begin() as tx:
                    value = self._duty(lane).handler(shown, tx)
                    group = bound(self._duty(lane).group, tx._source)
                    if self._result_ttl is not None:
                        group.keep_results({entry.id: Result(value)}, self._result_ttl)
                    group.ack(entry.id, consumer=lane.name)
        except BaseException as error:
            return error
        return None

    def _finish(self, lane: _Lane, entry: Entry, raised: BaseException | None) -> None:
        """Note that an entry is done, or commit what becomes of it."""
        held = lane.place, entry.id
        with lane.lock:
            lane.running = None
            if raised is None and (self._begin is not None or held not in lane.lost):
                lane.counts["done"] += 1
                lane.done += [held] if self._begin is None else []
                return
            if held in lane.lost:
                lane.lost.discard(held)
                lane.counts["lost"] += entry is not lane.cancelled  # else it is counted
                return
            assert raised is not None
        self._fail(lane, entry, raised)

    def _fail(self, lane: _Lane, entry: Entry, raised: BaseException) -> None:
        """Commit what becomes of an entry that is not done. Whatever prevents that, it stays pending, and no lane ends.

        What concerns all entries, such as NoGroup, comes out of the lane's next read.
        """
        try:
            self._settle(lane, entry, raised, type(raised))
        except NotOwner:
            lane.counts["lost"] += 1
        except BaseException as error:
            report("raxlog.worker", "warning", "%s stays pending until its lease ends, or it is released: %s", entry.id,
                   described(error))
            if not isinstance(error, StoreFull | LockTimeout):
                self._commit(partial(self._duty(lane).group.nack, entry.id, delay=Backoff()(entry.deliveries),
                                     consumer=lane.name))

    def _settle(self, lane: _Lane, entry: Entry, raised: BaseException, kind: type[BaseException]) -> None:
        """Release an entry, or bury it. Asks the kind, for an exception's own ``__class__`` may raise."""
        if kind is NotOwner and entry.id in getattr(raised, "ids", ()):
            raise raised
        asked = asked_delay(raised) if issubclass(kind, Retry | Snooze) else None
        if issubclass(kind, Snooze) and asked is not None:
            self._duty(lane).group.nack(entry.id, mode="silent", delay=asked, consumer=lane.name)
            lane.counts["snoozed"] += 1
            return
        error = described(raised)
        lane.counts["failed"] += 1
        reason = next((name for error_type, name in _REASONS.items() if issubclass(kind, error_type)), "failed")
        if reason == "failed" and entry.deliveries < self._max_deliveries:
            delay = self._delay(entry.deliveries) if asked is None else asked
            report("raxlog.worker", "info", "%s failed, to be tried again in %.3g s: %s", entry.id, delay, error)
            self._duty(lane).group.nack(entry.id, delay=delay, consumer=lane.name)
        else:
            report("raxlog.worker", "warning", "%s goes to the dead letters, %s: %s", entry.id, reason, error)
            trace = text_of(lambda: "".join(traceback.format_exception(raised)))
            self._duty(lane).bury(lane.name, entry, reason, error, trace)
            lane.counts["dead"] += 1

    def _delay(self, deliveries: int) -> float:
        try:
            return duration_ms("retry", self._retry(deliveries)) / 1000
        except BaseException as error:
            report("raxlog.worker", "error", "retry, a function of the worker's user, has failed; the usual delay is "
                   "taken", error=error)
            return Backoff()(deliveries)

    def _acknowledge(self, lane: _Lane) -> None:
        """Acknowledge what is done, as far as it is still the lane's."""
        with lane.lock:
            done, lane.done = lane.done, []
        is_kept = not done or self._commit(lambda: self._keep_results(lane))
        for place, ids in _by_place(done).items():
            read = partial(self._duties[place].group.read, lane.name, 0, ack=ids, ack_owned=True)
            if not (is_kept and self._commit(read)):
                with lane.lock:
                    lane.done += [(place, sid) for sid in ids]  # with the next read

    def _keep_results(self, lane: _Lane) -> None:
        kept = dict(lane.results)
        if kept and self._result_ttl is not None:
            for place, ids in _by_place(kept).items():
                self._keep(self._duties[place].group, {sid: kept[place, sid] for sid in ids}, self._result_ttl)
            for held in kept:
                lane.results.pop(held, None)

    def _keep(self, group: _Group, results: dict[IDLike, Result], ttl: float) -> None:
        """Keep results; of one for which the store has no room, that it has none. StoreFull where that does not fit."""
        try:
            group.keep_results(results, ttl)
        except StoreFull as error:
            for sid, result in results.items() if len(results) > 1 else ():
                self._keep(group, {sid: result}, ttl)
            if len(results) == 1:
                group.keep_results(dict.fromkeys(results, Result(error=described(error))), ttl)

    def _give_back(self, lane: _Lane, place: int, entries: list[Entry]) -> None:
        """Release entries that were not begun, or not ended; their delivery does not count."""
        for entry in entries:
            self._commit(partial(self._duties[place].group.nack, entry.id, mode="silent", consumer=lane.name))

    def _commit(self, call: Callable[[], object]) -> bool:
        """Whether a call succeeded. If not, it is logged, and its entries are taken over when their lease ends."""
        try:
            call()
        except Exception as error:
            if not isinstance(error, NotOwner):
                report("raxlog.worker", "warning", "%s", described(error))
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
                    try:
                        self._look_after(lane)
                    except BaseException as error:
                        report("raxlog.worker", "error", "a worker's beat goes on, after an error", error=error)

    def _look_after(self, lane: _Lane) -> None:
        now = clocks.monotonic()
        with lane.lock:
            place, ran = lane.place, 0.0 if lane.running is None else now - lane.begun
            waiting = list(lane.waiting) if ran > _LONG else []
            for _ in waiting:
                lane.waiting.popleft()
            renewable = lane.held() if now - lane.renewed > self._lease / 4 else []
            if self._timeout is not None and ran > self._timeout and not lane.limited:
                self._limit(lane, TimeLimit, now)
            hangs = lane.limited is not None and ran > _GRACE and now > lane.limited_at + _GRACE
            looks = lane.running if not lane.limited and ran > _LOOK and now - lane.looked > _LOOK else None
        if looks is not None:
            lane.looked = now
            self._look_for_cancel(lane, place, looks, now)
        if ran > _LONG:
            self._acknowledge(lane)
            self._give_back(lane, place, waiting)
        if hangs:
            self._replace(lane)
        elif renewable:
            lane.renewed = now
            for held_at, ids in _by_place(renewable).items():
                self._commit(partial(self._renew, lane, held_at, ids))

    def _renew(self, lane: _Lane, place: int, ids: list[StreamID]) -> None:
        lane.lost.update((place, sid) for sid in self._duties[place].group.renew(lane.name, *ids))

    def _look_for_cancel(self, lane: _Lane, place: int, entry: Entry, now: float) -> None:
        with suppress(RaxlogError):  # the lane's next read raises it
            if self._duties[place].group.job(entry.id).reason == CANCELLED:
                with lane.lock:
                    if lane.running is entry and lane.begun < _NEVER:
                        lane.lost.add((place, entry.id))
                        lane.cancelled = entry
                        lane.counts["cancelled"] += 1
                        self._limit(lane, Cancelled, now)

    def _limit(self, lane: _Lane, kind: type[BaseException], now: float) -> None:
        lane.limited, lane.limited_at = kind, now
        _raise_in(lane.thread.ident, kind)

    def _renew_of(self, child: bytes) -> None:
        """Renew what a child's lanes hold."""
        def renew() -> None:
            for lane in _lane_names(child, len(self._lanes)):
                for duty in self._duties:
                    if pending := duty.group.pending_entries(consumer=lane):
                        duty.group.renew(lane, (entry.id for entry in pending))

        self._commit(renew)

    def _replace(self, lane: _Lane) -> None:
        """Go on with another thread: that of this lane is in a call that no exception reaches."""
        other = _Lane(lane.name)
        with lane.lock:  # the handler may end at this moment, and its thread goes on only behind all of this
            entry = lane.running
            if entry is None:
                return
            lane.lost.add((lane.place, entry.id))
            if not self._stop.is_set():
                self._start(other)  # first: run() ends where no thread of the lanes lives
            self._lanes[self._lanes.index(lane)] = other
            self._gone.append(lane)
        if entry is lane.cancelled:
            return
        self._fail(lane, entry, TimeLimit(f"the handler did not end for {self._timeout} s, nor {_GRACE} s after that"))


def is_async(handler: object) -> bool:
    """Whether a handler returns a coroutine, which is to be awaited."""
    return iscoroutinefunction(handler) or iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def _by_place(held: Iterable[Held]) -> dict[int, list[StreamID]]:
    """IDs by the places of their groups."""
    found = defaultdict[int, list[StreamID]](list)
    for place, sid in held:
        found[place].append(sid)
    return found


def in_turn(groups: int, reads: int, back_every: int) -> list[int]:
    """The order in which the so many-th read of a lane asks its groups: from the front, or every so often the back.

    Each read from the back begins one group nearer to the front than the last one did: so none between two full ones
    starves.
    """
    if reads % back_every:
        return [*range(groups)]
    begin = reads // back_every % max(1, groups - 1)
    return [*range(groups - 1 - begin, -1, -1), *range(groups - 1, groups - 1 - begin, -1)]


def _require_handler(handler: Callable[..., object], count: int) -> None:
    """InvalidArgument for a handler that cannot be called with so many arguments, as far as that can be known."""
    if not callable(handler):
        raise InvalidArgument(f"handler={handler!r} must be a function of an entry")
    if is_async(handler):
        raise InvalidArgument(f"handler={handler!r} is async, which a thread cannot await. A group of raxlog.aio "
                              "has a worker() for it, and the command `raxlog worker` runs it")
    try:
        signature(handler).bind(*range(count))
    except TypeError as error:
        given = "entry" if count == 1 else "entry, tx"
        raise InvalidArgument(f"handler={handler!r:.60} is called with ({given}): {error}") from None
    except ValueError:
        return  # written in C


def _consumers(group: _Group) -> Sequence[_Consumer]:
    with suppress(RaxlogError):  # the lanes raise it
        return group.consumers()
    return []


def _forget(group: _Group, names: Iterable[Text]) -> None:
    """Delete consumers that hold nothing: a worker's own, of a name made here, and those of killed workers."""
    for name in names:
        with suppress(RaxlogError):  # it holds something, or cannot be deleted now: a later worker does
            group.delete_consumer(name)


def is_left_behind(consumer: _Consumer, lease: float) -> bool:
    """Whether a consumer is that of a worker that died, with a name made here, and holds nothing."""
    known = _GENERATED.fullmatch(stored_bytes(consumer.name, "name")) is not None
    remaining = now_ms() / 1000 - consumer.seen.timestamp()
    return known and not consumer.pending and remaining > max(lease, _LEFT)


def _lane_names(name: bytes, threads: int) -> list[bytes]:
    """The consumers of a worker, which no worker of another name has: the last number behind a slash is a thread's."""
    if threads == 1 and re.search(rb"/\d+$", name) is None:
        return [name]
    return [b"%b/%d" % (name, n) for n in range(threads)]


class Exhausted(Exception):
    """The entry has been delivered too often: it may end the processes that run it."""


_REASONS = {Discard: "discarded", MalformedValue: "malformed", Exhausted: "exhausted"}


def _raise_in(thread: int | None, kind: type[BaseException]) -> None:
    """Raise an exception in a thread, once, in place of one that has not arrived yet.

    It is never taken back: CPython 3.11 would go on looking for it, between any two calls, in all threads.
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread or 0), ctypes.py_object(kind))


@contextmanager
def on_signals(stop: Callable[[], None], wanted: bool) -> Iterator[None]:
    """Within the block SIGTERM and Ctrl-C call this, where that is wanted and this is the main thread."""
    wanted = wanted and threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGINT) if wanted else ()
    before = {number: signal.signal(number, lambda *_: stop()) for number in numbers}
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)
