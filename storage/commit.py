"""Committing: what every write of a process goes through, shared or alone.

    thread A ─┐                            one LMDB write transaction
    thread B ─┼─ queue ─ leader (B, say) ─ apply A, B, C in order ─ commit ─ wake A
    thread C ─┘                                                          A wakes C

    submit()          a call that shares its transaction with others
    alone()           a transaction of one thread; the others queue
    exclusively()     nothing else is written, in any process, while work runs here

A lone durable commit is mostly waiting for the disk, so what counts is how many callers share
one. A call that finds no leader leads: it takes the writer's lock, takes the queue as it stands,
applies every call in one transaction (batch.py), commits, and hands the lead to the first that came
in between. No call returns before the commit that holds it is on disk. An exclusive call queues
like any other; carrying no operation, it closes the batch before it, and leads for longer.

  - Each follower sleeps on a lock of its own (kept per thread): waking is one release(), where
    a shared condition wakes everybody for one. A wake-up is a hint: the woken thread looks whether
    its call is done or leads, and else sleeps on.
  - The leader wakes the first of its batch, and each wakes the next: threads that are woken
    all at once queue for the interpreter's lock, which is a second sleep for each. Where
    another thread computes all the time, each link of that chain would wait until that one
    gives way; so a thread that runs late wakes all the rest, and for some batches the leader does.
  - Before a new leader takes the queue it sleeps until as many calls wait as the last batch
    had, but no longer than that batch took to commit. Without it N threads fall into two
    halves that alternate; with it they share one commit. Asleep it leaves them the processor
    and the interpreter's lock: beside a leader that looks again and again sixteen threads are
    1.3 times as fast on an idle machine, two to three times on a busy one. A lone caller's
    last batch is 1, so it never waits.
  - A call that waits longer than ``lock_timeout`` is withdrawn from the queue before it
    raises; once it is part of a batch its fate is the batch's.

An exception can come between any two steps of a thread (Ctrl-C, a signal's handler that raises,
PyThreadState_SetAsyncExc), and again while the first one is dealt with. So nothing depends on the
struck thread's coming to any later step of its own:

  - what it holds (the lead, LMDB's transaction) is held by `with` on C's own locks, or by a
    generator in a `for`: the interpreter itself gives those back, with no step between
  - what the lead has in hand is kept in attributes, and _leave() ends it from these alone: it is
    run in a fresh thread, which no signal strikes. Starting that is the first step, in C, of the
    handler of the exception
  - where that thread is not to be had, or is struck itself, the others do the same: the struck thread's
    own next call, or any call that waits, once the leader has not led for half a second
"""

from __future__ import annotations

import threading
import time
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Generator, Iterator
from itertools import pairwise, takewhile
from typing import Any, TypeVar

import lmdb

from . import faults
from .batch import Batcher, Call
from .environment import Environment
from .errors import LockTimeout, ReadOnlyStore, TransactionError
from .write_transaction import WriteTransaction

__all__ = ["Committer", "WriteTransaction", "committer_of"]

T = TypeVar("T")

_LONGEST_GATHERING = 0.001  # seconds, also where a commit takes longer
_LOOK_AGAIN = 0.25  # seconds that a sleeping call waits for a hint
_LEADERLESS = 0.5  # seconds without a sign of the leader before another takes its place
_LATE = 0.004  # seconds from a wake-up until its thread runs: alone 0.00005, beside one that computes 0.005
_CROWDED_BATCHES = 64


class _Waiter(threading.local):
    """The lock a thread sleeps on, made once per thread and always held between waits."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()


_waiter = _Waiter()


class Committer:
    """The committer of one environment. Shared by all threads and handles of the process."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._mutex = threading.Lock()
        self._queue: deque[Call[Any]] = deque()
        self._leader: Call[Any] | None = None
        self._batch: list[Call[Any]] = []  # what the leader has taken from the queue
        self._batcher = Batcher(env)
        self._last_batch = 1
        self._last_commit = 0.0  # seconds
        self._crowded = 0  # batches in which no follower wakes another
        self._wanted = 0  # the length of the queue at which the leader is woken
        self._gathered = threading.Lock()
        self._gathered.acquire()
        self._locked = False
        self._silent: tuple[Call[Any] | None, float] = (None, 0.0)  # a leader that does not lead, and since when

    def submit(self, operation: Callable[[WriteTransaction], T], timeout: float) -> T:
        """Apply ``operation`` in a transaction shared with others; its result once committed.

        ``operation`` may be applied more than once (each time to a fresh transaction), so it
        must be a function of the transaction alone. LockTimeout after ``timeout`` seconds.
        """
        self._refuse_inside_transaction()
        call: Call[T] = Call(operation)
        outside = None
        try:
            for _ in self._lead(call, timeout):
                outside = self._commit_batch()
        except BaseException:
            start_new_thread(self._leave, (call,))
            raise
        if outside is not None:
            raise outside
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[return-value]

    def alone(self, timeout: float) -> Generator[WriteTransaction, bool, None]:
        """A transaction of this thread's own, as a generator: it yields the transaction, is sent
        whether to keep it, and ends. Dropped before that, it undoes it. The others queue.

        It cannot be applied again when the map is full, so room is made first.
        """
        self._refuse_inside_transaction()
        env = self._env
        call: Call[None] = Call(None)
        try:
            for _ in self._lead(call, timeout):
                with env.writing:
                    env.make_room()
                    for raw in env.begin_write():
                        env.transaction_thread = call.thread
                        txn = WriteTransaction(env, raw)
                        try:
                            if (yield txn):
                                self._batcher.commit(txn, [call])
                            else:
                                txn.abort()
                        except BaseException as error:
                            txn.abort()
                            self._batcher.settle(error)
                            if isinstance(error, lmdb.Error):
                                raise call.error or faults.meaning(env.path, error) from error
                            raise
                    env.transaction_thread = None
        except BaseException:
            start_new_thread(self._leave, (call,))
            raise

    def exclusively(self, work: Callable[[], T], timeout: float) -> T:
        """Run ``work`` while nothing else is written, in this or any other process; it writes by apply().

        Reads go on. A write by this thread that does not come from ``work`` itself is refused.
        LockTimeout after ``timeout`` seconds of waiting.
        """
        self._refuse_inside_transaction()
        env = self._env
        call: Call[T] = Call(None)
        try:
            for _ in self._lead(call, timeout):
                with env.writing:
                    env.transaction_thread = call.thread
                    call.result = work()
                    env.transaction_thread = None
        except BaseException:
            start_new_thread(self._leave, (call,))
            raise
        return call.result  # type: ignore[return-value]

    def apply(self, operation: Callable[[WriteTransaction], T]) -> T:
        """A transaction of what runs exclusively(); committed when this returns."""
        call = Call(operation)
        try:
            outside = self._batcher.apply([call])
        except BaseException:
            self._batcher.settle()
            raise
        error = call.error or outside
        if error is not None:
            raise error
        return call.result  # type: ignore[return-value]

    def is_awaited(self) -> bool:
        """Whether another call waits behind that of exclusively() or alone()."""
        return len(self._queue) > 1

    def _refuse_inside_transaction(self) -> None:
        env = self._env
        if env.transaction_thread is not None and env.in_own_transaction():
            raise TransactionError(
                "this thread has a transaction open; write through it (tx.stream(...)), or end it first"
            )
        if env.readonly:
            raise ReadOnlyStore(f"{env.path} is open with readonly=True; open it without to write")

    # -- the queue ----------------------------------------------------------------------

    def _lead(self, call: Call[Any], timeout: float) -> Iterator[None]:
        """Queue the call until it is done or leads. A loop over this has one turn, while it leads, or none."""
        env = self._env
        deadline = time.monotonic() + timeout
        call.waiter = _waiter.lock
        with self._mutex:
            leads = self._leader is None
            if leads:
                self._leader = call
            self._queue.append(call)
            if self._wanted and len(self._queue) >= self._wanted:
                self._wanted = 0
                _release(self._gathered)
        if not leads and env.buffer_state is not None:
            env.buffer_state.make_way()
        while leads or self._wait(call, deadline, timeout):
            with env.leading:
                if self._leader is call:
                    self._lock(timeout if leads else max(0.0, deadline - time.monotonic()))
                    yield
                    self._hand_on(call)
                    return
            leads = False
        self._pass_on(call)

    def _wait(self, call: Call[Any], deadline: float, timeout: float) -> bool:
        """Sleep until the call leads, or is done (False). LockTimeout."""
        while not call.done:
            now = time.monotonic()
            with self._mutex:
                if call.gone:  # it has been taken for lost
                    call.gone = False
                    self._queue.append(call)
                    if self._leader is None:
                        self._leader = call
                leader = self._leader
                if leader is call:
                    return True
                if now >= deadline and call in self._queue:
                    self._queue.remove(call)
                    break
            silent, since = self._silent
            if leader is None or self._env.leading.locked():
                self._silent = (None, 0.0)
            elif leader.thread == call.thread or (leader is silent and now - since > _LEADERLESS):
                self._leave(leader)
                continue
            elif leader is not silent:
                self._silent = (leader, now)
            left = min(deadline - now, _LOOK_AGAIN)
            assert call.waiter is not None
            call.waiter.acquire(timeout=left if left > 0 else _LOOK_AGAIN)  # applied by now: the word comes soon
        if call.done:
            return False
        raise LockTimeout(
            f"waited {timeout:g} s for other threads of this process that write to "
            f"{self._env.path}. Write from fewer threads, or raise lock_timeout."
        )

    def _leave(self, call: Call[Any]) -> None:
        """End what an exception has left of a call: its lead, or its place in the queue. By any thread."""
        env = self._env
        if env.committer_state is not self:
            return  # the parent's, in a forked child
        with self._mutex:
            if call in self._queue:
                self._queue.remove(call)
            call.gone = True
        if self._leader is call:
            if env.transaction_thread == call.thread:
                env.transaction_thread = None
            with env.leading:
                if self._leader is call:
                    with env.writing:
                        self._batcher.settle()
                    self._hand_on(call, calm=False)
        self._pass_on(call)

    def _hand_on(self, own: Call[Any], calm: bool = True) -> None:
        """Wake the calls that are done, put back the others, hand the lead on. May be broken off and rerun."""
        env = self._env
        if self._locked:
            if env.lock is not None:
                env.lock.release()
            self._locked = False
        batch = self._batch
        if len(batch) > 1:
            self._wake_done(own, calm)
        with self._mutex:
            queue = self._queue
            if len(batch) != 1 or not own.done:
                for call in reversed(batch):
                    if not (call.done or call.gone or call is own or call in queue):
                        queue.appendleft(call)
                if own in queue:
                    queue.remove(own)
            self._batch = []
            if queue:
                _wake(queue[0])
                self._leader = queue[0]
            else:
                self._leader = None

    def _wake_done(self, own: Call[Any], calm: bool) -> None:
        """Wake the first of those that are done; each wakes the next, unless others hold the interpreter."""
        main = threading.main_thread().ident
        with self._mutex:
            done = [call for call in self._batch if call.done and call is not own and not call.gone]
            if not self._crowded and calm:
                # Signal handlers run in the main thread, before it can wake another: it ends no chain.
                chain = [call for call in done if call.thread != main]
                for call, then in pairwise(chain):
                    call.then = then
                done = chain[:1] + [call for call in done if call.thread == main]
            elif self._crowded:
                self._crowded -= 1
        for call in done:
            _wake(call)

    def _pass_on(self, call: Call[Any]) -> None:
        """Wake the call behind this one, which leaves. May be rerun: a wake-up is a hint."""
        with self._mutex:  # either it is seen here which to wake, or _wake_done() sees that this one has gone
            call.gone = True
            then = call.then
        if then is None:
            return
        if call.woken and time.perf_counter() - call.woken > _LATE:
            self._crowded = _CROWDED_BATCHES
        while then is not None:
            _wake(then)
            then = then.then if self._crowded else None

    # -- leading ------------------------------------------------------------------------

    def _lock(self, timeout: float) -> None:
        self._env.live()
        self._locked = True
        self._env.lock_writer(timeout)

    def _commit_batch(self) -> Exception | None:
        """Commit what the queue holds. Returns the exception that came from outside, if one did."""
        wanted = self._last_batch
        if wanted > 1:
            self._gather(wanted)
        queue = self._queue
        with self._mutex:
            if len(queue) == 1:
                self._batch = batch = [queue[0]]
                queue.clear()
            else:
                self._batch = batch = list(takewhile(_shares, queue))
                for _ in batch:
                    queue.popleft()
        self._last_batch = len(batch)
        with self._env.writing:
            begun = time.perf_counter()
            outside = self._batcher.apply(batch)
            self._last_commit = time.perf_counter() - begun
        return outside

    def _gather(self, wanted: int) -> None:
        """Sleep until so many calls wait. An early wake-up costs a smaller batch."""
        self._gathered.acquire(blocking=False)  # a word that came too late for the leader before
        with self._mutex:
            if len(self._queue) >= wanted:
                return
            self._wanted = wanted
        self._gathered.acquire(timeout=min(self._last_commit, _LONGEST_GATHERING))
        self._wanted = 0


def _shares(call: Call[Any]) -> bool:
    return call.operation is not None


def _wake(call: Call[Any]) -> None:
    assert call.waiter is not None
    call.woken = time.perf_counter()
    _release(call.waiter)


def _release(sleeper: threading.Lock) -> None:
    try:
        sleeper.release()
    except RuntimeError:
        return  # it has been woken already


def committer_of(env: Environment) -> Committer:
    """The committer of an environment; made anew in a forked child."""
    committer: Committer = env.committer_state or env.kept("committer_state", Committer)
    return committer
