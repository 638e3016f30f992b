"""Commits: what every write of a process goes through, shared or alone, and the state of it.

    thread A ─┐                            one write transaction, one record of the log
    thread B ─┼─ queue ─ leader (B, say) ─ apply A, B, C in order ─ commit ─ wake A ─ A wakes C
    thread C ─┘

    submit()          a call that shares its transaction with others
    submit_all()      many calls of one thread, which share theirs with each other, too
    alone()           a transaction of one thread; the others queue
    exclusively()     nothing else is written, in any process, while work runs here

A lone durable commit mostly waits for the disk, so calls share one. A call that finds no leader
leads: it takes the writer's lock and the queue, applies every call in one transaction, commits, and
hands the lead to the first that came in between. No call returns before its commit is on disk. An
exclusive call queues like any other; carrying no operation, it closes the batch before it, and
leads for longer.

  - Each follower sleeps on a lock of its own (kept per thread): a shared condition wakes all for
    one. A wake-up is a hint: a call that neither is done nor leads sleeps on.
  - The leader wakes the first of its batch, and each wakes the next: threads that are woken
    all at once queue for the interpreter's lock, which is a second sleep for each. Beside a
    thread that computes, each link of that chain would wait until that one gives way; so a
    thread that runs late wakes all the rest, and for some batches the leader does.
  - Before a new leader takes the queue it sleeps until as many calls wait as the last batch
    had, but no longer than that batch took to commit: else N threads fall into two halves
    that alternate. Sixteen threads are 1.3 times as fast as beside a leader that polls, two to
    three times on a busy machine. A lone caller's last batch is 1, so it never waits.
  - A call that waits longer than ``lock_timeout`` leaves the queue and raises; once it is part
    of a batch its fate is the batch's.

A batch is one transaction:

    calls A B C     apply A, B, C in order ─ commit                      all done
    B is refused    before it touched anything: B's error, A and C go on
                    after: undo, apply A and C again
    no room         undo, then A alone, B alone, C alone: only what does not fit fails
    any other       what the disk says counts; what it does not hold is undone, and applied one by
    exception       one. Where none of the calls raises it again it came from outside (a signal's
                    handler): it is the leader's

No call is released before the batch is over, so that calls were applied twice cannot be seen; they
are functions of the transaction, which is a fresh one each time.

An exception can come between any two steps of a thread (Ctrl-C, a signal's handler that raises,
PyThreadState_SetAsyncExc), and again while the first one is dealt with. So nothing depends on the
struck thread's coming to any later step of its own:

  - the lead is held by `with` on C's own locks: the interpreter itself gives those back, with no step between
    (also where a generator is dropped). A transaction that is left open counts for nothing: the next write undoes it
  - the state of the lead is in attributes of Commits, and leave() ends it from these alone, in a fresh
    thread, which no signal strikes. Starting that is the first step, in C, of the exception's handler. A
    LockTimeout strikes nothing: its call leaves by itself, and what strikes that is such an exception
  - where that thread is not to be had, or is struck itself, the others do the same: the struck thread's
    own next call, or any call that waits, once the leader has not led for half a second (is_lost())

What interrupts a thread may also call, and return: a signal's handler, a finalizer. The call of one that has
interrupted the leader, or holds the mutex, is refused, since it would wait for itself; else it queues like any other.

Whether a commit counts that was struck is asked of the log's end (settle()), for every class of exception.
"""

from __future__ import annotations

import threading
from _thread import get_ident, start_new_thread
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from weakref import ref

from .. import clocks
from ..crash_point import crash_point, listeners
from ..errors import (
    CorruptionError,
    LockTimeout,
    RaxlogError,
    ReadOnlyStore,
    StoreError,
    TransactionError,
    interrupted,
)
from ..folder import directory
from ..folder.store_files import StoreFiles  # cimport
from ..fork_hooks import HERE, USUAL
from ..format.binary import one_number  # cimport
from ..known import alive
from ..locks.shared_file import WAKE
from ..log.checkpoint import Map
from ..log.log import Log  # cimport
from ..log.transaction import WriteTransaction, mark_of  # cimport
from ..notices import noted
from ..system_calls import write_at  # cimport
from ..threads import is_owned
from ..tree import lmdb_errors
from ..wake.stop import wake as wake_sleeper

SOURCE_HASH = ""

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)

_LONGEST_GATHERING = 0.001  # seconds, also where a commit takes longer
_LOOK_AGAIN = 0.25  # seconds that a sleeping call waits for a hint
_LEADERLESS = 0.5  # seconds without a sign of the leader before another takes its place
_LATE = 0.004  # seconds from a wake-up until its thread runs: alone 0.00005, beside one that computes 0.005
_CROWDED_BATCHES = 64
_MARK = mark_of(directory.MARK)
_WARM_LIMIT = 1 << 14  # streams kept warm, of some 6 KB each; beyond it all are dropped, which costs a read each


class _ThreadLock(threading.local):
    """The lock a thread sleeps on, made once per thread and always held between waits."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()


_waiter = _ThreadLock()


class Call:
    """One caller's operation, and what became of it."""

    __slots__ = ("deadline", "done", "error", "gone", "group", "operation", "result", "then", "thread", "waiter",
                 "woken")

    def __init__(self, operation: Callable[[WriteTransaction], Any] | None) -> None:
        self.operation: Callable[[WriteTransaction], Any] | None = operation  # None: the call wants the lead for itself
        self.result: Any = None
        self.error: BaseException | None = None
        self.done: bool = False
        self.gone: bool = False  # its caller waits no more, or has been taken for such a one
        self.thread: int = get_ident()
        self.waiter: Any = None  # the lock its caller sleeps on; None: it has led at once
        self.deadline: float = 0.0  # of a wait, by clocks.elapsed()
        self.then: Call | None = None  # the call that this one wakes in turn
        self.woken: float = 0.0  # when that was asked for
        self.group: list[Call] | None = None  # calls without a thread, applied before this one and done before it


call_of = Call  # cimport


class Apart:
    """A thread that is about to hold ``leading`` or ``writing`` without a commit. Gone with the frame that made it."""

    __slots__ = ("__weakref__", "thread")

    def __init__(self) -> None:
        self.thread: int = get_ident()


class MappedFile(Map, Protocol):
    """The store's map, as far as its commits know it."""

    log: Log | None
    failed_flush: lmdb_errors.Error | None

    def go_over(self) -> None:
        """Map the generation that has superseded this one."""

    def reopen(self) -> None:
        """Map the file again, once LMDB has declared it unusable."""

    def last_transaction_id(self) -> int:
        """The number of the newest commit."""


class StoreOwner(Protocol):
    """The environment, as far as its commits know it."""

    path: Path
    readonly: bool
    commits: Commits

    @property
    def files(self) -> StoreFiles:
        """The store's files."""

    @property
    def map(self) -> MappedFile:
        """Its map."""

    def live(self) -> object:
        """Have it mapped."""

    def require_usable(self) -> None:
        """StoreError in a child of a fork that Python has not seen."""


class Commits:
    """The commit state of one environment: the leader and the queue, what is warm, what the last commit was.

    Shared by all threads and handles of the process; another in a forked child.
    """

    __slots__ = (
        "apart", "batch", "committing", "crowded", "env", "epoch", "files", "gathered", "last_batch", "last_commit",
        "leader", "leading", "leads", "locked", "map", "mutex", "on_waiter", "open_write", "queue", "suspect", "wanted",
        "warm", "warm_id", "writing",
    )

    def __init__(self, env: StoreOwner) -> None:
        self.env: StoreOwner = env
        self.files: StoreFiles = env.files
        self.map: MappedFile = env.map
        self.leading: threading.Lock = threading.Lock()  # held by the thread that leads: close() waits
        self.writing: threading.Lock = threading.Lock()  # held while the write transaction is open: a fork waits
        self.mutex: threading.RLock = threading.RLock()  # of queue and leader; no thread enters it twice
        self.queue: deque[Call] = deque()
        self.leader: Call | None = None
        self.batch: list[Call] = []  # what the leader has taken from the queue
        self.last_batch: int = 1
        self.last_commit: float = 0.0  # seconds
        self.crowded: int = 0  # batches in which no follower wakes another
        self.wanted: int = 0  # the length of the queue at which the leader is woken
        self.gathered: threading.Lock = threading.Lock()
        self.gathered.acquire()
        self.locked: bool = False  # the writer's lock has been asked for
        self.suspect: tuple[Call | None, float] = (None, 0.0)  # a leader believed dead, and when it was first seen idle
        self.on_waiter: Callable[[], None] | None = None  # called by a call that has to queue
        # The commit under way, and what is kept from one to the next.
        self.leads: dict[int, Call] = {}  # by its thread: the call that leads, until it has let go of ``leading``
        self.apart: set[ref[Apart]] = set()
        self.open_write: Any = None
        self.committing: tuple[int, list[Call]] | None = None
        self.warm: dict[Any, Any] = {}
        self.warm_id: int = -1
        self.epoch: int = 0  # moves with each commit of another process that is found

    def submit(self, operation: Callable[[WriteTransaction], T], timeout: float) -> T:
        """Apply ``operation`` in a transaction shared with others; its result once committed.

        ``operation`` may be applied more than once (each time to a fresh transaction), so it
        must be a function of the transaction alone. LockTimeout after ``timeout`` seconds.
        """
        call = call_of(operation)
        outside = self._share(call, timeout)
        if outside is not None:
            raise outside
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[no-any-return]

    def submit_all(self, operations: Sequence[Callable[[WriteTransaction], object]], timeout: float) -> list[Call]:
        """submit() of many operations, in their order: their calls, done, each with a result or an error of its own.

        They are in one transaction, where that can be; what is refused costs the others nothing. At least one.
        """
        calls = [Call(operation) for operation in operations]
        *others, last = calls
        for call in others:
            call.gone = True  # to be queued and woken is the last one's part
        last.group = others
        self._share(last, timeout)  # what came from outside is none of theirs: each has been tried alone
        return calls

    def _share(self, call: Call, timeout: float) -> Exception | None:
        """Queue a call until it is done, or lead: then the exception that came from outside, if any. LockTimeout."""
        self.refuse_inside_transaction()
        try:
            leads = self._queue_up(call)
            while leads or self._wait(call, timeout):
                with self.leading:
                    leads = self._takes_over(call, timeout)
                    if leads:
                        outside = self._commit_batch(call)
                        self.hand_on(call, True)
                if leads:
                    self.leads.pop(call.thread, None)  # ``leading`` has been let go of: no bytecode lies between
                    return outside
            self._pass_on(call)
        except BaseException as error:
            self.part(call)
            raise self.reported(error)  # noqa: B904 - its cause, if it is another
        return None

    def alone(self, timeout: float) -> Generator[WriteTransaction, bool, None]:
        """A transaction of this thread's own, as a generator: it yields the transaction, is sent
        whether to keep it, and ends. Dropped before that, it undoes it. The others queue.
        """
        self.refuse_inside_transaction()
        call = Call(None)
        try:
            for _ in self._lead(call, timeout):
                with self.writing, self.begin() as txn:
                    try:
                        if (yield txn):
                            self.commit(txn, [call])
                        else:
                            self.abort(txn)
                    except BaseException as error:
                        self.abort(txn)
                        settle(self, error)
                        if lmdb_errors.is_failure(error):
                            raise call.error or self.reported(error) from error
                        raise
        except BaseException as error:
            self.part(call)
            raise self.reported(error)  # noqa: B904 - its cause, if it is another

    def exclusively(self, work: Callable[[], T], timeout: float, on_waiter: Callable[[], None] | None = None) -> T:
        """Run ``work`` while nothing else is written, in this or any other process; it writes by apply().

        Reads go on. A write by this thread that does not come from ``work`` itself is refused.
        ``on_waiter`` is called by each call that has to queue behind it. LockTimeout after ``timeout``
        seconds of waiting.
        """
        self.refuse_inside_transaction()
        call = Call(None)
        try:
            for _ in self._lead(call, timeout):
                with self.writing:
                    self.on_waiter = on_waiter
                    call.result = work()
                    self.on_waiter = None
        except BaseException as error:
            self.part(call)
            raise self.reported(error)  # noqa: B904 - its cause, if it is another
        return call.result  # type: ignore[no-any-return]

    def run_apart(self, lock: threading.Lock, work: Callable[[], object]) -> None:
        """Run ``work`` with ``leading`` or ``writing`` held, without a commit; TransactionError from inside one."""
        self.require_outside()
        here = Apart()
        mark = ref(here)
        try:
            self.apart.add(mark)  # before the lock is held, and until after: no bytecode lies between
            with lock:
                work()
        finally:
            self.apart.discard(mark)

    def part(self, call: Call) -> None:
        """After an exception, give up the lead or leave the queue, in a fresh thread if possible."""
        if self.env.commits is not self or not HERE[0]:
            return  # it is the parent's
        if call.gone and call.then is None and self.leader is not call:
            return  # it has left
        try:
            start_new_thread(_leave_as_thread, (self, call))
        except RuntimeError:
            leave(self, call)

    def apply(self, operation: Callable[[WriteTransaction], T]) -> T:
        """A transaction of what runs exclusively(); committed when this returns."""
        call = Call(operation)
        try:
            outside = self._apply_all([call])
        except BaseException:
            settle(self)
            raise
        error = call.error or outside
        if error is not None:
            raise error
        return call.result  # type: ignore[no-any-return]

    def is_awaited(self) -> bool:
        """Whether another call waits behind that of exclusively() or alone()."""
        return len(self.queue) > 1

    def in_own_transaction(self) -> bool:
        """Whether this thread has a transaction open, writes exclusively, or has been interrupted in a commit.

        Not once an exception has ended that.
        """
        return get_ident() in self.leads and self.leading.locked()

    def is_apart(self) -> bool:
        """Whether this thread has been interrupted in run_apart()."""
        threads = [apart.thread for apart in alive(self.apart)]
        return get_ident() in threads and (self.leading.locked() or self.writing.locked())

    def is_inside(self) -> bool:
        """Whether this thread has been interrupted in a call that holds what a close() waits for."""
        leader = self.leader
        return (self.in_own_transaction() or self.is_apart() or is_owned(self.mutex) or self.is_at_checkpoint()
                or (leader is not None and leader.thread == get_ident() and not leader.gone and self.leading.locked()))

    def require_outside(self) -> None:
        """TransactionError where this thread has a transaction open, or has been interrupted: is_inside()."""
        leader = self.leader
        if self.in_own_transaction() and leader is not None and leader.operation is None:
            raise TransactionError("this thread has a transaction open; use that (tx.stream(...)), or end it first")
        if self.is_inside():
            raise interrupted(self.env.path)

    def is_at_checkpoint(self) -> bool:
        """Whether this thread is at a checkpoint, and has been interrupted."""
        log = self.map.log
        return log is not None and log.checkpoints is not None and log.checkpoints.is_inside()

    def forget_warm(self) -> None:
        """Drop what is kept from one write transaction to the next: it may not be what is on disk."""
        self.warm_id = -1
        self.warm = {}

    def refuse_inside_transaction(self) -> None:
        """TransactionError where this thread has a transaction open, ReadOnlyStore where nothing may be written.

        StoreError in a child of a fork that Python has not seen. To be called before a lock is taken.
        """
        if HERE[0] != USUAL:
            self.env.require_usable()
        if self.leads and self.in_own_transaction():
            leader = self.leader
            if leader is None or leader.operation is not None:
                raise interrupted(self.env.path)
            raise TransactionError(
                "this thread has a transaction open; write through it (tx.stream(...)), or end it first"
            )
        if self.mutex._is_owned():  # type: ignore[attr-defined]  # what Condition asks of a lock
            raise interrupted(self.env.path)
        if self.apart and self.is_apart():
            raise interrupted(self.env.path)
        if self.leader is not None and self.is_at_checkpoint():
            raise interrupted(self.env.path)  # the leader may wait for that checkpoint
        if self.env.readonly:
            raise ReadOnlyStore(f"{self.env.path} is open with readonly=True; open it without to write")

    # -- the queue ----------------------------------------------------------------------

    def _lead(self, call: Call, timeout: float) -> Iterator[None]:
        """Queue the call until it leads. A loop over this has one turn, while it leads. LockTimeout."""
        leads = self._queue_up(call)
        while leads or self._wait(call, timeout):
            with self.leading:
                leads = self._takes_over(call, timeout)
                if leads:
                    yield
                    self.hand_on(call, True)
            if leads:
                self.leads.pop(call.thread, None)
                return

    def _queue_up(self, call: Call) -> bool:
        """Put the call into the queue. Whether it is the one to lead."""
        with self.mutex:
            leads = self.leader is None
            if leads:
                self.leader = call
            self.queue.append(call)
            is_enough = 0 < self.wanted <= len(self.queue)
            if is_enough:
                self.wanted = 0
        if is_enough:
            wake_sleeper(self.gathered)
        return leads

    def _takes_over(self, call: Call, timeout: float) -> bool:
        """Whether the call leads indeed: then it has the writer's lock, too. ``leading`` is held. LockTimeout."""
        if self.leader is not call:
            return False
        self.locked = True
        leads = self.leads
        if leads:  # an exception has left it there
            leads.clear()
        leads[call.thread] = call
        try:
            self.files.acquire(timeout if call.waiter is None else max(0.0, call.deadline - clocks.elapsed()))
        except LockTimeout:
            call.gone = True  # part() has nothing left to do
            self.hand_on(call, False)
            leads.clear()
            raise
        log: Log | None = self.map.log
        if log is not None:
            log.patience = timeout
        return True

    def _wait(self, call: Call, timeout: float) -> bool:
        """Sleep until the call is the one to lead, or is done (False). LockTimeout."""
        if call.waiter is None:
            call.deadline = clocks.elapsed() + timeout
            call.waiter = _waiter.lock
            on_waiter = self.on_waiter
            if on_waiter is not None:
                on_waiter()
        is_own = False
        while not call.done:
            now = clocks.elapsed()
            with self.mutex:
                if call.gone:  # it has been taken for lost
                    call.gone = False
                    if call not in self.queue:
                        self.queue.append(call)
                    if self.leader is None:
                        self.leader = call
                leader = self.leader
                if leader is call:
                    return True
                # Interrupted between the lead and its first step; a thread that ends a lost lead may hold it, too.
                is_own = (leader is not None and leader.thread == call.thread and self.leading.locked()
                          and now > call.deadline - timeout + _LEADERLESS)
                if (is_own or now >= call.deadline) and call in self.queue:
                    self.queue.remove(call)
                    call.gone = True
                    break
            if leader is not None and is_lost(self, call, leader, now):
                leave(self, leader)
                continue
            nap = min(call.deadline - now, _LOOK_AGAIN)
            call.waiter.acquire(timeout=nap if nap > 0 else _LOOK_AGAIN)  # applied by now: the word comes soon
        if call.done:
            return False
        if is_own:
            raise interrupted(self.env.path)
        raise LockTimeout(
            f"waited {timeout:g} s for other threads of this process that write to "
            f"{self.env.path}. Write from fewer threads, or raise lock_timeout."
        )

    def hand_on(self, own: Call, calm: bool) -> None:
        """Wake the calls that are done, put back the others, hand the lead on. May be broken off and rerun."""
        if self.locked:
            lock = self.files.lock
            if lock is not None:  # else a close() that an exception has struck gave it up
                lock.release()
            self.locked = False
        batch = self.batch
        if len(batch) > 1:
            self._wake_done(own, calm)
        with self.mutex:
            queue = self.queue
            if len(batch) != 1 or not own.done:
                for call in reversed(batch):
                    if not (call.done or call.gone or call is own or call in queue):
                        queue.appendleft(call)
                if own in queue:
                    queue.remove(own)
            self.batch = []
            if queue:
                wake(queue[0])
                self.leader = queue[0]
            else:
                self.leader = None

    def _wake_done(self, own: Call, calm: bool) -> None:
        """Wake the first of those that are done; each wakes the next, unless others hold the interpreter."""
        main = threading.main_thread().ident
        with self.mutex:
            done = [call for call in self.batch if call.done and call is not own and not call.gone]
            if not self.crowded and calm:
                # Signal handlers run in the main thread, before it can wake another: it ends no chain.
                chain = [call for call in done if call.thread != main]
                for call, then in pairwise(chain):
                    call.then = then
                done = chain[:1] + [call for call in done if call.thread == main]
            elif self.crowded:
                self.crowded -= 1
        for call in done:
            wake(call)

    def _pass_on(self, call: Call) -> None:
        """Wake the call behind this one, which leaves. May be rerun: a wake-up is a hint."""
        with self.mutex:  # either it is seen here which to wake, or wake_done() sees that this one has gone
            call.gone = True
            then = call.then
        if then is None:
            return
        if call.woken and clocks.elapsed() - call.woken > _LATE:
            self.crowded = _CROWDED_BATCHES
        while then is not None:
            wake(then)
            then = then.then if self.crowded else None

    # -- leading ------------------------------------------------------------------------

    def _commit_batch(self, own: Call) -> Exception | None:
        """Commit what the queue holds. Returns the exception that came from outside, if one did.

        Of a call that is alone in the queue no other thread takes notice, so no lock is needed to take it out.
        """
        wanted = self.last_batch
        if wanted > 1:
            self._gather(wanted)
        queue = self.queue
        if len(queue) == 1 and queue[0] is own and own.group is None:
            self.batch = batch = [own]
            queue.popleft()
            self.last_batch = 1
        else:
            with self.mutex:
                self.batch = batch = list(takewhile(_shares, queue))
                for _ in batch:
                    queue.popleft()
                self.last_batch = len(batch)
                self.batch = batch = _expanded(batch)
        with self.writing:
            if len(batch) == 1:  # how long it took says nothing to a leader that waits for more
                return self._apply_all(batch)
            begun = clocks.elapsed()
            outside = self._apply_all(batch)
            self.last_commit = clocks.elapsed() - begun
        return outside

    def _gather(self, wanted: int) -> None:
        """Sleep until so many calls wait. An early wake-up costs a smaller batch."""
        self.gathered.acquire(blocking=False)  # a word that came too late for the leader before
        with self.mutex:
            if len(self.queue) >= wanted:
                return
            self.wanted = wanted
        self.gathered.acquire(timeout=min(self.last_commit, _LONGEST_GATHERING))
        self.wanted = 0

    # -- a batch: calls in one transaction ------------------------------------------------

    def _apply_all(self, batch: list[Call]) -> Exception | None:
        """Apply and commit the calls; each gets its result or its own error, and is done.

        Returns the exception that came from outside, if one did.
        """
        error = self._attempt(batch)
        if error is None:
            return None
        # What cannot be done together is done one by one, so that only what must fails.
        alone = len(batch) == 1
        outside = None if _is_known(error) else error
        for call in batch:
            if not call.done:
                if not alone:
                    error = self._attempt([call])
                if error is not None:
                    outside = self._end(call, error, outside)
        return outside

    def _end(self, call: Call, error: Exception, outside: Exception | None) -> Exception | None:
        """End a call that was tried alone, with this error. Returns the exception that came from outside, if any."""
        if call.done:
            return error  # it came once the commit counted
        call.error = self.reported(error)
        call.done = True
        return None if type(error) is type(outside) else outside

    def reported(self, error: E) -> E | StoreError | CorruptionError:
        """The error that a caller gets for one that came out of a transaction."""
        if not lmdb_errors.is_failure(error):
            return error
        reported = lmdb_errors.translate_error(self.env.path, error)
        reported.__cause__ = error
        return reported

    def _attempt(self, calls: list[Call]) -> Exception | None:
        """One transaction for all calls. Returns the error that prevented the commit (store unchanged), or None.

        Also the exception that came once the commit counted: then the calls are done.
        """
        refused: list[Call] = []  # those that have touched something before they raised
        while True:
            try:
                count = len(refused)
                self.run(self.begin(), calls, refused)
                if len(refused) == count:
                    return None
            except Exception as error:
                return None if settle(self, error) and _is_known(error) else error

    def begin(self) -> WriteTransaction:
        """A write transaction, which the caller commits or aborts.

        One that an exception leaves open counts for nothing, and the next write of the log undoes it.
        The caller holds the writer's lock, and ``writing``.
        """
        store_map = self.map
        while True:
            if store_map.failed_flush is not None:
                raise StoreError(
                    f"a flush of {self.env.path} to disk has failed ({store_map.failed_flush}), and nothing more is "
                    "written through this opening of it. See to the disk; then close the store and open it again."
                )
            try:
                log = store_map.log
                if log is None:
                    self.env.live()
                    log = store_map.log
                txn = log.write()  # type: ignore[union-attr]  # what is written to has one
                if txn.upto - 1 == self.warm_id or self._is_in_force(txn):
                    self.open_write = txn
                    if len(self.warm) > _WARM_LIMIT:
                        self.warm = {}
                    txn.keep(self.env, self.warm, self.epoch)
                    return txn
                store_map.go_over()
            except lmdb_errors.MapResizedError:
                store_map.adopt_size()
            except lmdb_errors.PanicError:
                store_map.reopen()
            except (lmdb_errors.Error, OSError) as error:
                if lmdb_errors.is_failure(error):
                    raise self.reported(error) from error
                raise

    def _is_in_force(self, txn: WriteTransaction) -> bool:
        """Behind another process' commit: whether the generation is the one in force. Else the transaction ends."""
        self.epoch += 1
        if self.warm_id >= 0 and not txn.is_foreign(_MARK, self.warm_id):
            return True  # it was there, and what says that it is not has not been written since
        superseded = True
        try:
            superseded = directory.successor(txn.get) is not None
        finally:
            if superseded:
                txn.abort()
        return not superseded

    def run(self, txn: WriteTransaction, calls: list[Call], refused: list[Call]) -> None:
        """Apply and commit. Where a call raises after it had touched something: undone, and it is ``refused``."""
        try:
            for call in calls:
                if call not in refused and self.is_spoiled(txn, call):
                    refused.append(call)
                    self.abort(txn)
                    return
            self.commit(txn, calls)
        except BaseException:
            self.abort(txn)
            raise

    def is_spoiled(self, txn: WriteTransaction, call: Call) -> bool:
        """Apply one call. Whether it has left the transaction in a state in which nothing can be committed."""
        before = txn.changes
        try:
            call.result = call.operation(txn)  # type: ignore[misc]
            call.error = None
        except RaxlogError as error:
            call.error = error
            return not txn.is_untouched(before, error)
        except lmdb_errors.Error as error:
            if isinstance(error, lmdb_errors.PanicError):
                raise
            call.error = self.reported(error)
            return True
        return False

    def commit(self, txn: WriteTransaction, calls: list[Call]) -> None:
        """Commit what the calls have changed; they are done then, and as safe as the durability says.

        StoreFull, and nothing written, where the store may not become as large (log/log.py). After any
        exception: settle().
        """
        number = txn.upto
        if txn.changes == 0:
            txn.abort()  # nothing is written, and the warm stays warm
            self.warm_id = number - 1
        else:
            self.committing = (number, calls)
            if listeners:
                crash_point("commit.before")
            log: Log = txn.log
            txn.flush()
            if txn.touched:
                log.commit(txn)
            txn.abort()
            self.warm_id = log.pos
            if listeners:
                crash_point("commit.after")
            self.wake_readers(number)
        self.open_write = None
        for call in calls:
            call.done = True
        self.committing = None  # last: until then settle() knows of them

    def abort(self, txn: WriteTransaction) -> None:
        """Undo everything, also what was kept warm. Harmless after a commit, failed or not."""
        self.forget_warm()
        txn.abort()
        self.open_write = None

    def wake_readers(self, transaction_id: int) -> None:
        """Tell sleeping readers, in any process, that a commit is visible. About 0.7 µs.

        What is written is never trusted, only the event counts; a failure costs a reader at most
        its safety period, so it is not worth failing a write that is already on disk.
        """
        try:
            write_at(self.files.descriptor, one_number(transaction_id), WAKE)
        except TimeoutError:
            raise  # a signal's handler did
        except OSError:
            return  # it has been closed since, say


def wake(call: Call) -> None:
    """Wake the call's thread, where it sleeps."""
    if call.waiter is not None:
        call.woken = clocks.elapsed()
        wake_sleeper(call.waiter)


def _shares(call: Call) -> bool:
    return call.operation is not None


def _expanded(calls: list[Call]) -> list[Call]:
    """The calls of submit_all(), each behind those of its group that are not done."""
    return [member for call in calls for member in (*(each for each in call.group or () if not each.done), call)]


def _is_known(error: Exception) -> bool:
    return isinstance(error, RaxlogError) or lmdb_errors.is_failure(error)


def leave(commits: Commits, call: Call) -> None:
    """End what an exception has left of a call: its lead, or its place in the queue. By any thread."""
    if commits.env.commits is not commits:
        return  # the parent's, in a forked child
    with commits.mutex:
        if call in commits.queue:
            commits.queue.remove(call)
        call.gone = True
    if commits.leader is call:
        commits.leads.pop(call.thread, None)
        with commits.leading:
            if commits.leader is call:
                with commits.writing:
                    settle(commits)
                commits.hand_on(call, False)
    commits._pass_on(call)


_leave_as_thread: Final = noted(leave)


def is_lost(commits: Commits, call: Call, leader: Call, now: float) -> bool:
    """Whether the leader that a waiting call sees has been struck, and leads no more."""
    suspect, since = commits.suspect
    if commits.leading.locked():
        commits.suspect = (None, 0.0)
    elif leader.thread == call.thread or (leader is suspect and now - since > _LEADERLESS):
        return True
    elif leader is not suspect:
        commits.suspect = (leader, now)
    return False


def settle(commits: Commits, error: BaseException | None = None) -> bool:
    """After an exception, with the transaction ended: does the commit count? Then its calls are done.

    Under the lead and the writer's lock. May be broken off, and run again by any thread.
    """
    store_map = commits.map
    commits.forget_warm()
    commits.open_write = None
    if commits.committing is None:
        return False
    number, calls = commits.committing
    if store_map.log is not None:
        store_map.log.checkpoints.settle_large()
    landed = store_map.last_transaction_id() >= number
    if landed:
        for call in calls:
            call.done = True
        commits.wake_readers(number)
    if isinstance(error, lmdb_errors.Error):
        store_map.note_failure(error)
    commits.committing = None
    return landed
