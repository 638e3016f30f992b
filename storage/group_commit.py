"""Group commit: callers that write at the same time share one transaction and its flushes.

    thread A ─┐                            one LMDB write transaction
    thread B ─┼─ queue ─ leader (B, say) ─ apply A, B, C in order ─ commit ─ wake A
    thread C ─┘                                                          A wakes C

A lone durable commit is 95 % waiting for the disk, so what counts is how many callers share
one. Whoever finds no leader leads: takes the writer's lock, takes the queue as it stands,
applies every call in one transaction (batch.py), commits, and hands the lead to the first that came
meanwhile. Nobody returns before the commit that holds his call is on disk.

  - Each follower sleeps on a lock of its own (kept per thread): waking is one release(), where
    a shared condition wakes everybody for one. A wake-up is a hint: who wakes looks whether
    his call is done or leads, and else sleeps on.
  - The leader wakes the first of his batch, and each wakes the next: threads that are woken
    all at once queue for the interpreter's lock, which is a second sleep for each. Where
    another thread computes all the time, each link of that chain would wait until that one
    gives way; so whoever runs late wakes all the rest, and for some batches the leader does.
  - Before a new leader takes the queue it sleeps until as many calls wait as the last batch
    had, but no longer than that batch took to commit. Without it N threads fall into two
    halves that alternate; with it they share one commit. Asleep it leaves them the processor
    and the interpreter's lock: beside a leader that looks again and again sixteen threads are
    1.3 times as fast on an idle machine, two to three times on a busy one. A lone caller's
    last batch is 1, so it never waits.
  - A call that waits longer than ``lock_timeout`` is withdrawn from the queue before it
    raises; once it is part of a batch its fate is the batch's.

Ctrl-C can come between any two steps, and nobody may be left waiting for a leader that is
gone. So what the lead has in hand is kept in attributes, not in local variables, and
_conclude() works from that alone: it is the normal end of every call, and after an exception
it is run again until it has come to its end.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise, takewhile
from typing import Any, TypeVar

from .batch import Batcher, Call
from .environment import Environment
from .errors import LockTimeout, ReadOnlyStore, TransactionError
from .write_transaction import WriteTransaction

T = TypeVar("T")

_LONGEST_GATHERING = 0.001  # seconds, also where a commit takes longer
_LOOK_AGAIN = 0.25  # seconds; exception upon exception may keep a thread from waking the next
_LATE = 0.004  # seconds from a wake-up until its thread runs: alone 0.00005, beside one that computes 0.005
_CROWDED_BATCHES = 64
_PATIENCE = 30.0  # seconds that a read waits for the commit of what is ahead
_MOST_TRIES = 1000  # to conclude, while exception follows upon exception


class _Waiter(threading.local):
    """The lock a thread sleeps on, made once per thread and always held between waits."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()


_waiter = _Waiter()


class GroupCommit:
    """The queue of one environment. Shared by all threads and handles of the process."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._mutex = threading.Lock()
        self._queue: deque[Call[Any]] = deque()
        self._leader: Call[Any] | None = None
        self._batch: list[Call[Any]] = []  # what the leader has taken from the queue
        self._batcher = Batcher(env)
        self._last_batch = 1
        self._last_commit = 0.0  # seconds
        self._crowded = 0  # batches for which nobody wakes another
        self._wanted = 0  # who makes the queue so long wakes the leader
        self._gathered = threading.Lock()
        self._gathered.acquire()
        self._locked = False

    def submit(self, operation: Callable[[WriteTransaction], T], timeout: float) -> T:
        """Apply ``operation`` in a transaction shared with others; its result once committed.

        ``operation`` may be applied more than once (each time to a fresh transaction), so it
        must be a function of the transaction alone. LockTimeout after ``timeout`` seconds.
        A lone caller pays about 3 µs above the bare transaction and the writer's lock.
        """
        self._refuse_inside_transaction()
        call: Call[T] = Call(operation)
        try:
            timeout = self._enter(call, timeout)
            if not call.done:
                self._lead(timeout)
                self._conclude(call)
        except BaseException:
            # From here to the call there is no step at which an exception could come; one that
            # comes in it is dropped for the first one. Two loops, for one's own jump is a step;
            # who gets past both (four exceptions in a row) concludes with his next call.
            while call.tries < _MOST_TRIES and not call.concluded:
                try:
                    while call.tries < _MOST_TRIES and not call.concluded:
                        call.tries += 1
                        try:
                            self._conclude(call)
                        except BaseException:
                            continue
                except BaseException:
                    continue
            raise
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[return-value]

    def publish(self) -> None:
        """Let LMDB commit what is in the journal only (ahead.py). Waits for the commit under way."""
        leader = self._leader
        if leader is not None and leader.thread == threading.get_ident() and not leader.done:
            return  # a read from within an operation: it would wait for itself
        if self._env.ahead is not None:
            self.submit(publish_ahead, _PATIENCE)

    # -- queueing -----------------------------------------------------------------------

    def is_awaited(self) -> bool:
        """Whether another call waits behind that of exclusively() or begin()."""
        return len(self._queue) > 1

    def _refuse_inside_transaction(self) -> None:
        env = self._env
        if env.transaction_thread is not None and env.transaction_thread == threading.get_ident():
            raise TransactionError(
                "this thread has a transaction open; write through it (tx.stream(...)), or end it first"
            )
        if env.readonly:
            raise ReadOnlyStore(f"{env.path} is open with readonly=True; open it without to write")

    def _enter(self, call: Call[Any], timeout: float) -> float:
        """Queue the call, until it is done or leads; gives the seconds that are left to it."""
        leader = self._leader
        if leader is not None and leader.tries and leader.thread == call.thread:
            # This thread led, and exception upon exception kept it from concluding.
            self._conclude(leader)
        with self._mutex:
            leads = self._leader is None
            if leads:
                self._leader = call
            else:
                call.waiter = _waiter.lock
            self._queue.append(call)
            if self._wanted and len(self._queue) >= self._wanted:
                self._wanted = 0
                _release(self._gathered)
        if leads:
            return timeout
        if self._env.buffer_state is not None:
            self._env.buffer_state.make_way()
        waiter = call.waiter
        assert waiter is not None
        deadline = time.monotonic() + timeout
        left = min(timeout, threading.TIMEOUT_MAX)
        while True:
            waiter.acquire(timeout=min(left, _LOOK_AGAIN))
            if call.done:
                self._pass_on(call)
                return 0.0
            with self._mutex:
                left = max(0.0, min(deadline - time.monotonic(), threading.TIMEOUT_MAX))
                if self._leader is call:
                    return left
                if left == 0.0:
                    if call in self._queue:
                        self._queue.remove(call)
                        break
                    left = _LOOK_AGAIN  # it is being applied: the word comes soon
        raise LockTimeout(
            f"waited {timeout:g} s for other threads of this process that write to "
            f"{self._env.path}. Write from fewer threads, or raise lock_timeout."
        )

    def _conclude_surely(self, call: Call[Any]) -> None:
        while call.tries < _MOST_TRIES and not call.concluded:
            call.tries += 1
            try:
                self._conclude(call)
            except BaseException:
                continue

    def _conclude(self, call: Call[Any]) -> None:
        """End what the call has a part in: its lead, or its place in the queue."""
        if self._leader is call:
            self._end_lead(call)
            call.concluded = True
            return
        with self._mutex:
            leaves = self._leader is not call  # else it has just been handed the lead
            if leaves:
                if call in self._queue:
                    self._queue.remove(call)
                call.gone = True
        if leaves:
            self._pass_on(call)
            call.concluded = True

    def _pass_on(self, call: Call[Any]) -> None:
        """Wake who comes behind the call, which leaves. May be rerun: a wake-up is a hint."""
        with self._mutex:  # either it is seen here whom to wake, or _wake_done() sees that this one has gone
            call.gone = True
            then = call.then
        if then is None:
            return
        if call.woken and time.perf_counter() - call.woken > _LATE:
            self._crowded = _CROWDED_BATCHES
        while then is not None:
            _wake(then)
            then = then.then if self._crowded else None

    def _end_lead(self, own: Call[Any]) -> None:
        """Wake who is done, put back who is not, hand the lead on. May be broken off and rerun."""
        env = self._env
        self._batcher.settle()
        if self._locked:
            if env.lock is not None:
                env.lock.release()
            self._locked = False
        batch = self._batch
        if len(batch) > 1:
            self._wake_done(own)
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

    def _wake_done(self, own: Call[Any]) -> None:
        """Wake the first of those who are done; each wakes the next, unless others hold the interpreter."""
        main = threading.main_thread().ident
        with self._mutex:
            done = [call for call in self._batch if call.done and call is not own and not call.gone]
            if not self._crowded and not own.tries:
                # Signal handlers run in the main thread, and before it can wake anybody: nobody comes behind it.
                chain = [call for call in done if call.thread != main]
                for call, then in pairwise(chain):
                    call.then = then
                done = chain[:1] + [call for call in done if call.thread == main]
            elif self._crowded:
                self._crowded -= 1
        for call in done:
            _wake(call)

    # -- leading ------------------------------------------------------------------------

    def _lock(self, timeout: float) -> None:
        env = self._env
        env.live()
        self._locked = True
        env.lock_writer(timeout)

    def _lead(self, timeout: float) -> None:
        env = self._env
        with env.leading:
            self._lock(timeout)
            wanted = self._last_batch
            if wanted > 1:
                self._gather(wanted)
            queue = self._queue
            with self._mutex:
                if len(queue) == 1:
                    self._batch = batch = [queue[0]]
                    queue.clear()
                else:
                    # A caller that wants the lead for itself ends the batch before it.
                    self._batch = batch = list(takewhile(_shares, queue))
                    for _ in batch:
                        queue.popleft()
            self._last_batch = len(batch)
            with env.writing:
                begun = time.perf_counter()
                try:
                    self._batcher.apply(batch)
                except BaseException:
                    self._batcher.settle()
                    raise
                self._last_commit = time.perf_counter() - begun
            if env.lock is not None:
                env.lock.release()  # here, where close() still waits for us
                self._locked = False

    def _gather(self, wanted: int) -> None:
        """Sleep until so many calls wait. Whatever wakes it too early costs a smaller batch."""
        self._gathered.acquire(blocking=False)  # a word that came too late for the leader before
        with self._mutex:
            if len(self._queue) >= wanted:
                return
            self._wanted = wanted
        self._gathered.acquire(timeout=min(self._last_commit, _LONGEST_GATHERING))
        self._wanted = 0


def publish_ahead(txn: WriteTransaction) -> None:
    """The operation that takes what is ahead of the map into it."""
    if txn.ahead is not None:
        txn.publishes = True
        txn.changes += 1


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
