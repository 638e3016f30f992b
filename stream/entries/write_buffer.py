"""The write buffer: appends return their IDs at once, and one thread commits them.

    callers       append  append  append  …  append          append …
                    │ the first asks for a window              │ waits up to 2 ms, then goes on
    background      └─ lead, writer's lock ── window ──┬── one durable commit ──┬─ lock released
                                                       │                        │
                       closes after its time, when the buffer is full, at a flush,
                       and when another call or process waits to write

    IDLE ─ an append asks ─> OPENING ─ lead, writer's lock ─> OPEN ─ due ─> COMMITTING ─ lock released ─> IDLE
                                                                ^               │
                                                                └── more appends, and no other writer waits

While this process holds the writer's lock no other writes, so a stream's header, read once, determines
all IDs to come: they are made in memory, and the same appends, applied later in one transaction, get
the same ones. A commit holds whole calls, in their order. After a kill or a power cut the store holds a
prefix of the calls, and misses at most those of the last window, whose IDs may be given again: an ID names its entry
for good once that is committed.

    Head of "orders"    base 5-3 │ AppendRun 7-0, 7-1, 7-2 │ Step 9-1 │ AppendRun 9-2 …       items of one batch

Any other call of this process first commits what is buffered (flush()). While a batch is put into its
transaction, appends pause: in a tight loop each would hold the interpreter for 5 ms whenever the
committing thread needs it. While the disk works they pause for 2 ms, then for 2 in 7. Threads that wait
are queued, and each that is admitted wakes the next: 64 woken at once would compete with the commit for
the interpreter. The lock is kept for the next commit unless another writer waits.

An exception in the background thread is a commit that fails; where it ends that thread, what waits for it starts
another. If a commit fails, all that is buffered by then is lost with it, and appends are refused until flush() or
close() has raised that: the store still holds a prefix of the calls.

The background thread owns the lead and the transaction, so no Ctrl-C can break them off. A caller under
the mutex may be interrupted at any step, so a single step decides: the entry's entering a list, which
also determines the next ID. Callers hold the mutex for moments, and wait without it.
"""

from __future__ import annotations

import atexit
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import get_ident

from ...storage import clocks
from ...storage.commit.commits import Commits
from ...storage.engine import compaction
from ...storage.engine.environment import Attachment, Environment
from ...storage.errors import AppendsLost, StoreError, TransactionError, closed, interrupted
from ...storage.figures import Lost
from ...storage.fork_hooks import FORK_PATIENCE, HERE, USUAL, at_exit, look, release_all
from ...storage.log.transaction import WriteTransaction
from ...storage.notices import note, noted
from ...storage.threads import start
from ...storage.wake.stop import wake
from ..node.arguments import text_of
from ..node.flattened import TextColumns
from ..node.stream_id import MAX64, NewID, StreamID, make_id, now_ms
from . import header as headers
from . import writer
from .header import NodeLimits, StreamHeader, shown

MOST_ENTRIES = 10_000  # buffered at a time; and as many in the commit under way
MOST_BYTES = 4 << 20

# What happens to an append that comes now:
IDLE = 0  # it asks for a window
OPENING = 1  # it waits for the lead and the writer's lock
OPEN = 2  # it is taken
COMMITTING = 3  # it waits a little, and is taken for the next commit

PAUSE = 0.002  # seconds that appends leave the interpreter to the commit, in
GO_ON_MS = 5  # milliseconds that they may have it to themselves
_NAPS, _NAP = 10, 0.0001
_RETRY = 0.25  # seconds in the queue: a thread that was woken may have been interrupted
_LOOK = 2.0  # seconds of any other wait: the background thread may have been ended
_SHOWN = 5  # streams named in a message

Operation = Callable[[WriteTransaction], list[StreamID]]


class AppendRun:
    """Appends of one millisecond to one stream with ``*`` as their ID: the kernel fills nodes with them."""

    __slots__ = ("entries", "limits", "ms", "name", "now", "seq")

    def __init__(self, name: bytes, limits: NodeLimits, now: int, first: StreamID, flat: list[bytes]) -> None:
        self.name: bytes = name
        self.limits: NodeLimits = limits
        self.now: int = now
        self.ms: int = first.ms
        self.seq: int = first.seq
        self.entries: list[list[bytes]] = [flat]  # the n-th has the ID ms, seq + n

    @property
    def first(self) -> StreamID:
        """The first ID."""
        return make_id(self.ms, self.seq)

    @property
    def last(self) -> StreamID:
        """The last ID."""
        return make_id(self.ms, self.seq + len(self.entries) - 1)

    def apply(self, txn: WriteTransaction) -> bool:
        """Append them. Whether they got the IDs that were returned."""
        stream = writer.ensure(txn, self.name, self.limits)
        ids = stream.extend(txn, self.now, self.entries)
        writer.after_append(txn, stream, self.now, releases=False)
        return (ids[0], ids[-1]) == (self.first, self.last)


class Step:
    """Any other append: several entries, IDs of the caller's own, a trim behind it."""

    __slots__ = ("entries", "name", "operation")

    def __init__(self, name: bytes, operation: Operation, ids: list[StreamID]) -> None:
        self.name: bytes = name
        self.operation: Operation = operation
        self.entries: list[StreamID] = ids

    @property
    def first(self) -> StreamID:
        """The first ID."""
        return self.entries[0]

    @property
    def last(self) -> StreamID:
        """The last ID."""
        return self.entries[-1]

    def apply(self, txn: WriteTransaction) -> bool:
        """Append them. Whether they got the IDs that were returned."""
        return self.operation(txn) == self.entries


class Head:
    """A stream as it will be once all that is buffered has been committed.

    Its last ID is that of the last item, so an append is done, or not, by one step: the item's
    entering the list, or the entry's entering the item.
    """

    __slots__ = ("base", "batch", "exists", "items", "stream")

    def __init__(self, stream: writer.StreamWriter, exists: bool) -> None:
        self.stream: writer.StreamWriter = stream  # used for its IDs and its schema only
        self.base: tuple[int, int] = stream.header.last  # the last ID before the items
        self.exists: bool = exists
        self.items: list[AppendRun | Step] = []
        self.batch: int = 0  # the batch that the items are of

    def next_ids(self, news: Iterable[NewID], now: int) -> list[StreamID]:
        """The IDs of appends behind the last item. IDTooSmall, StreamExhausted."""
        header = self.stream.header
        header.last = self.items[-1].last if self.items else self.base
        ids = []
        for new in news:
            header.last = last = self.stream.next_id(new, now)
            ids.append(make_id(*last))
        return ids


class WriteBuffer(Attachment):
    """The buffered appends of one environment, for all its threads. Get it by env.attached(WriteBuffer)."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._window = env.options.buffer_window
        self.ended: bool = False  # the interpreter ends: appends are committed by themselves again
        self._begin()
        self._start()
        at_exit(self._at_exit)

    def _begin(self) -> None:
        self._mutex = threading.RLock()  # no thread enters it twice
        self._sleepers: list[threading.Lock] = []  # a lock for each thread that waits for a change
        self._queue: deque[threading.Lock] = deque()  # and for each append that waits; these wake one by one
        self._bell = threading.Lock()  # released to wake the background thread
        self._bell.acquire()
        self._thread: threading.Thread | None = None
        self._phase = IDLE
        self._until = 0  # appends before this millisecond need no other check; never to come once the lead is left
        self._hold = 0  # how often the lead has been taken
        self._heads: dict[bytes, Head] = {}
        self._batch: dict[bytes, Head] = {}  # the streams of the next commit
        self._in_flight: list[AppendRun | Step] = []  # what the one under way holds
        self._transaction = 0  # its number; 0 before it has one
        self._number = 1  # of the batch; those up to _settled have been committed, or have failed
        self._settled = 0
        self._callers: set[int] = set()  # the threads whose appends may still fail
        self._count = 0
        self._bytes = 0
        self._due = False  # commit now
        self._over = 0.0  # when the window closes
        self._applied = False  # the batch is in its transaction: from here on it is the disk that takes time
        self._paused_until = 0.0
        self._yields = False  # nothing more is taken before the lead has been released
        self._timeout = 0.0
        self._refusal: BaseException | None = None  # why the last window could not be opened
        self._refusals = 0
        self._failure: AppendsLost | None = None
        self._unreported: dict[int, AppendsLost] = {}  # by thread
        self._shut = False
        self._forking = False

    # -- appending ----------------------------------------------------------------------

    def append(self, name: bytes, limits: NodeLimits, news: Iterable[NewID], now: int,
               flats: Sequence[list[bytes]] | TextColumns, size: int, create: bool, operation: Operation | None,
               timeout: float) -> list[StreamID] | None:
        """Buffer an append of ``size`` bytes: ``operation`` is applied later, and gets the IDs returned here.

        None for the operation: of an append of one entry with ``*`` as its ID to a stream that is created
        where there is none. About 2 µs.

        None where the stream is not there and ``create`` is false. IDTooSmall, MalformedValue, StreamExhausted;
        AppendsLost until an earlier loss has been reported; LockTimeout where no window could be
        opened within ``timeout`` seconds. A call that raises has changed nothing.
        """
        if HERE[0] != USUAL:
            self._env.require_usable()
        self.require_outside()
        refusals = self._refusals
        ticket = None
        clock = now  # the entry's ID keeps the time before a wait
        while True:
            wait = None
            with self._mutex:
                if clock >= self._until:
                    wait = self._admit(clock, timeout, refusals, ticket)
                hold = self._hold
                head = self._heads.get(name)
                if wait is None and head is not None:
                    if ticket is not None:
                        self._leave_queue(ticket)
                    items = head.items if head.batch == self._number else self._start_items(name, head)
                    if not (create or head.exists or items):
                        return None
                    if head.stream.header.schema is not None:
                        head.stream.require_values(flats)
                    run = items[-1] if operation is None and items else None
                    if type(run) is AppendRun and run.now == now and run.seq + len(run.entries) <= MAX64:
                        ids = [make_id(run.ms, run.seq + len(run.entries))]
                    else:
                        run = None
                        ids = head.next_ids(news, now)
                    self._callers.add(get_ident())
                    self._count += len(ids)
                    self._bytes += size
                    if self._count >= MOST_ENTRIES or self._bytes >= MOST_BYTES:
                        self._until = 0
                    if operation is not None:
                        items.append(Step(name, operation, ids))
                    elif run is None:
                        items.append(AppendRun(name, limits, now, ids[0], flats[0]))
                    else:
                        run.entries.append(flats[0])
                    return ids
            if wait is not None:
                self._require_others()
                ticket, seconds = wait
                ticket.acquire(timeout=seconds)
                clock = now_ms()
            else:
                self._read_head(name, limits, hold)

    def require_outside(self) -> None:
        """TransactionError where this thread holds the mutex, and has been interrupted."""
        if self._mutex._is_owned():  # type: ignore[attr-defined]  # what Condition asks of a lock
            raise interrupted(self._env.path)

    def _require_others(self) -> None:
        """TransactionError where this thread is the buffer's, or holds what that waits for: it would wait for itself.

        It has a transaction open, or has been interrupted in a commit, at a checkpoint or at the log.
        """
        if threading.current_thread() is self._thread:
            raise interrupted(self._env.path)
        self._env.commits.require_outside()
        if self._env.map.is_inside():
            raise interrupted(self._env.path)

    def _start_items(self, name: bytes, head: Head) -> list[AppendRun | Step]:
        """The stream's items in the batch, which has none of it so far."""
        items: list[AppendRun | Step] = []
        head.items = items
        self._batch[name] = head
        head.batch = self._number
        return items

    def _read_head(self, name: bytes, limits: NodeLimits, hold: int) -> None:
        """Read a stream's header. Without the mutex: a read may wait for the thread that holds the lead."""
        with self._env.read() as txn:
            found = headers.find(txn, name)
        number, header = (0, StreamHeader(name, limits)) if found is None else found
        with self._mutex:
            if hold == self._hold and self._phase != IDLE:
                self._heads.setdefault(name, Head(writer.StreamWriter(number, header, 0), found is not None))

    def _admit(self, clock: int, timeout: float, refusals: int,
               ticket: threading.Lock | None) -> tuple[threading.Lock, float] | None:
        """Under the mutex: None if an append is to be taken now, else _enqueue().

        ``ticket``  the lock on which it has waited before
        """
        if self._failure is not None:
            raise another(self._failure)
        if self._shut:
            raise closed(self._env.path)
        if self._env.commits.in_own_transaction():
            raise TransactionError(
                "this thread has a transaction open; write through it (tx.stream(...)), or end it first"
            )
        if self._refusals != refusals and self._refusal is not None:
            raise self._refusal
        if self._forking:
            return self._enqueue(ticket)
        if self._phase == IDLE:
            self._tend()  # there is none in a forked child
            self._timeout = timeout
            self._ring()
            self._phase = OPENING
            return self._enqueue(ticket)
        is_full = self._count >= MOST_ENTRIES or self._bytes >= MOST_BYTES
        if self._phase == OPEN and not (is_full or self._due):
            if clock < self._until or not self._batch:
                return None
            self._hurry()
            return self._enqueue(ticket, pauses=True)
        if self._phase == COMMITTING and not (is_full or self._yields):
            moment = clocks.elapsed()
            if not self._applied or moment < self._paused_until:
                return self._enqueue(ticket, pauses=True)
            self._until = clock + GO_ON_MS
            self._paused_until = moment + GO_ON_MS / 1000 + PAUSE
            return None
        self._hurry()
        return self._enqueue(ticket)

    # -- threads that wait --------------------------------------------------------------

    def _change(self, seconds: float = _LOOK) -> Callable[[], object]:
        """Under the mutex: what to call, once it has been released, to sleep until something changes, or so long.

        Not a Condition: Ctrl-C can leave one without its mutex.
        """
        self._tend()
        sleeper = threading.Lock()
        sleeper.acquire()
        self._sleepers.append(sleeper)
        return partial(sleeper.acquire, timeout=seconds)

    def _enqueue(self, ticket: threading.Lock | None, pauses: bool = False) -> tuple[threading.Lock, float]:
        """Under the mutex: a lock to sleep on without the mutex, and for how long.

        First come, first served: a thread that was woken and not admitted is the first again. The
        first sleeps only PAUSE where it may be admitted without being woken.
        """
        self._tend()
        queue = self._queue
        if ticket is None:
            ticket = threading.Lock()
            ticket.acquire()
            queue.append(ticket)
        elif ticket not in queue:
            queue.appendleft(ticket)
        return ticket, PAUSE if pauses and queue[0] is ticket else _RETRY

    def _leave_queue(self, ticket: threading.Lock) -> None:
        """Under the mutex: the thread with this ticket is admitted; wake the next."""
        if ticket in self._queue:
            self._queue.remove(ticket)
        self._wake_next()

    def _wake_next(self) -> None:
        """Under the mutex: wake the first in the queue. Each that is admitted wakes the next, so few are awake."""
        if self._queue:
            wake(self._queue.popleft())

    def _changed(self, whole_queue: bool = True) -> None:
        """Wake all that sleep until something changes. By the background thread, or a closing or forking one."""
        release_all(self._sleepers)  # an exception between taking one out and waking it would lose it
        self._wake_next()
        while whole_queue and self._queue:
            self._wake_next()

    # -- committing now -----------------------------------------------------------------

    def flush(self, report: bool = False) -> None:
        """Wait until all that has been appended before is on disk. 0.1 µs where it is.

        AppendsLost if it could not be committed. Each later call raises it again, until it has been
        raised with ``report``: by the user's own flush() or close(). Each thread that had appended
        gets it by a flush of its own.
        """
        if not HERE[0]:
            look()
        if not (self._batch or self._in_flight or self._unreported):
            return
        self.require_outside()
        self._require_others()
        wanted = -1
        while True:
            with self._mutex:
                if wanted < 0:
                    wanted = self._number if self._batch else self._number - 1
                if self._settled >= wanted:
                    break
                self._hurry()
                wait = self._change()
            wait()
        failure = self._unreported.get(get_ident(), self._failure)
        if failure is not None:
            try:
                raise another(failure)
            finally:  # a Ctrl-C that comes now carries the loss with it
                if report:
                    self._failure = None
                    self._unreported.pop(get_ident(), None)

    def make_way(self) -> None:
        """End the window now: another call of this process waits to write."""
        self.require_outside()
        with self._mutex:
            if self._phase == OPEN:
                self._hurry()

    def _hurry(self) -> None:
        if self._phase in (OPEN, COMMITTING):
            self._due = True
            self._until = 0
            self._ring()

    def _ring(self) -> None:
        if self._bell.locked():
            self._bell.release()

    # -- the background thread ----------------------------------------------------------

    def _start(self) -> None:
        name = f"raxlog buffer of {self._env.path}"
        self._thread = thread = threading.Thread(target=self._work, name=name, daemon=True)  # kept first: for a Ctrl-C
        start(thread)

    def _tend(self) -> None:
        """Under the mutex: start another thread where there is none, or an exception has ended it.

        Not by is_alive(), which after a Ctrl-C inside of it is False of one that runs (CPython 3.11).
        """
        if self._thread not in threading.enumerate():
            self._bell = threading.Lock()  # released: the one that has ended may have taken what it was rung for
            self._start()

    @noted
    def _work(self) -> None:
        with self._mutex:
            if self._phase in (OPEN, COMMITTING):
                is_lost = self._batch or self._in_flight
                self._become_idle(StoreError("an exception has ended the thread that commits.") if is_lost else None)
        while True:
            self._bell.acquire()
            with self._mutex:
                if self._shut or self.ended:
                    self._become_idle(None)
                    return
                if self._phase != OPENING:
                    continue
                timeout = self._timeout
            error: BaseException | None = None
            try:
                self._env.commits.exclusively(self._lead, timeout, self.make_way)
            except BaseException as raised:
                error = raised
            with self._mutex:
                self._become_idle(error)

    def _become_idle(self, error: BaseException | None) -> None:
        """The lead has been released, or could not be taken."""
        if error is not None:
            if self._batch or self._in_flight:
                self._fail(error)
            else:
                self._refusal = error
                self._refusals += 1
        self._settled = self._number - 1
        self._phase = IDLE
        self._yields = False
        self._until = 0
        self._heads = {}
        self._changed(whole_queue=error is not None or self._shut)

    def _lead(self) -> None:
        """Hold the lead and the writer's lock: usually for one window and its commit."""
        env = self._env
        commits = env.commits
        compaction.go_over(env)
        with self._mutex:
            self._hold += 1
            self._heads = {}
            self._due = False
            self._open_window(self._window)
            self._changed(whole_queue=False)
        for _ in range(_NAPS):  # a call that waits for the lead lets in the appends that asked for the window
            if self._batch or not commits.is_awaited():
                break
            clocks.sleep(_NAP)
        while True:
            while not (self._due or self._shut or self._forking or commits.is_awaited()):
                remaining = self._over - clocks.elapsed()
                if remaining <= 0:
                    break
                self._bell.acquire(timeout=remaining)
            with self._mutex:
                batch = self._take()
            error = self._commit(commits, batch) if batch else None
            with self._mutex:
                if error is not None:
                    self._fail(error)
                self._in_flight = []
                if batch and not self._batch:
                    self._callers = set()
                self._settled = self._number - 1
                is_awaited = commits.is_awaited() or commits.files.is_lock_awaited()
                self._yields = not self._batch or self._shut or self._forking or is_awaited
                if self._yields:
                    self._due = True
                    self._until = 0  # an append that was admitted, but is still reading its header, must ask again
                else:
                    self._open_window(self._over + self._window - clocks.elapsed())
                self._changed(whole_queue=self._failure is not None)
                if not self._batch:
                    return

    def _open_window(self, seconds: float) -> None:
        self._phase = OPEN
        self._over = clocks.elapsed() + seconds
        self._until = now_ms() + max(1, math.ceil(seconds * 1000))

    def _take(self) -> list[AppendRun | Step]:
        self._phase = COMMITTING
        self._until = 0
        self._due = False
        self._over = clocks.elapsed()
        self._applied = False
        self._transaction = 0
        self._paused_until = self._over
        batch = []
        for head in self._batch.values():
            if head.items:
                batch += head.items
                head.base = head.items[-1].last
                head.exists = True
        self._in_flight = batch
        if self._batch:
            self._number += 1
        self._batch = {}
        self._count = self._bytes = 0
        self._wake_next()
        return batch

    def _commit(self, commits: Commits, batch: list[AppendRun | Step]) -> BaseException | None:
        """All of it in one transaction, or nothing. The error that prevented it."""

        def operation(txn: WriteTransaction) -> None:
            self._transaction = txn.upto
            for item in batch:
                if not item.apply(txn):
                    raise StoreError(f"an append to {shown(item.name)} would not get the ID it was given")
            txn.flush()
            self._paused_until = clocks.elapsed() + PAUSE
            self._applied = True

        try:
            commits.apply(operation)
        except BaseException as error:
            return error
        return None

    def _fail(self, error: BaseException) -> None:
        """All that is buffered is lost: refuse appends until that has been reported."""
        if not self._in_flight:
            self._transaction = 0  # that of a commit before, which lacks nothing
        items = self._in_flight + [item for head in self._batch.values() for item in head.items]
        self._in_flight = items = [*{id(item): item for item in items}.values()]
        self._batch = {}
        self._until = 0
        if items:  # refused first, and left in flight: an exception before the end has this done again
            visible = 0 < self._transaction <= self._env.last_transaction_id()
            failure = _loss(self._env, items, error, visible)
            self._unreported |= dict.fromkeys(self._callers, failure)
            self._failure = failure
            note("warning", "%s", failure)
        self._count = self._bytes = 0
        self._number += 1
        self._in_flight = []
        self._callers = set()
        self._settled = self._number - 1

    # -- the end, and forks -------------------------------------------------------------

    def close(self) -> None:
        """Commit what is buffered, and end the thread. A loss is kept for flush(). From Environment.close()."""
        atexit.unregister(self._at_exit)
        with self._mutex:
            self._shut = True
            self._changed()
        self._end()

    def _end(self) -> None:
        while True:
            with self._mutex:
                if not (self._batch or self._in_flight or self._phase in (OPEN, COMMITTING)):
                    thread = self._thread
                    waits = self._phase == OPENING  # for another process; the closing thread waits for the lead itself
                    self._ring()
                    break
                self._hurry()
                wait = self._change()
            wait()
        begun = thread is not None and thread.ident is not None  # else the system had no thread to give
        if thread is not None and begun and not waits and thread is not threading.current_thread():
            thread.join()

    def _at_exit(self) -> None:
        self.ended = True
        self._end()
        self.flush(report=True)

    def before_fork(self) -> None:
        """Commit what is buffered, and take nothing more. The child must not inherit any of it."""
        deadline = clocks.elapsed() + FORK_PATIENCE
        self._forking = True
        remaining = FORK_PATIENCE
        while remaining > 0:
            with self._mutex:
                self._until = 0
                if not (self._batch or self._in_flight or self._phase in (OPEN, COMMITTING)):
                    break
                self._hurry()
                wait = self._change(min(remaining, _LOOK))
            wait()
            remaining = deadline - clocks.elapsed()

    def after_fork_in_parent(self) -> None:
        """Take appends again."""
        with self._mutex:
            self._forking = False
            self._changed()

    def after_fork_in_child(self) -> bool:
        """Reset: thread and buffer are the parent's."""
        self._begin()
        return True


def _loss(env: Environment, items: list[AppendRun | Step], cause: BaseException, visible: bool) -> AppendsLost:
    """The error that reports these items as lost: one Lost for each stream."""
    by_stream: dict[bytes, Lost] = {}
    encoding = env.record.settings["encoding"]
    for item in items:
        before = by_stream.get(item.name)
        first, entries = (item.first, 0) if before is None else (before.first, before.entries)
        by_stream[item.name] = Lost(text_of(item.name, encoding), first, item.last, entries + len(item.entries))
    lost = tuple(by_stream.values())
    total = sum(part.entries for part in lost)
    parts = [f"{part.entries} to {shown(part.stream)}, {make_id(*part.first)} to {make_id(*part.last)}"
             for part in lost[:_SHOWN]]
    more = f"; and to {len(lost) - _SHOWN} more streams" if len(lost) > _SHOWN else ""
    why = str(cause) or f"{type(cause).__name__}."
    fate = "may be lost: those that can be read may not survive a power cut" if visible else "could not be committed"
    error = AppendsLost(
        f"{total} buffered append{'s' * (total != 1)} to {env.path} {fate} ({'; '.join(parts)}{more}): {why} "
        "Nothing more is taken until store.flush() has raised this; append them again after it, if need be.",
        lost, visible,
    )
    error.__cause__ = cause
    return error


def another(failure: AppendsLost) -> AppendsLost:
    """The same error for another caller: an exception of its own, with its own traceback."""
    error = AppendsLost(str(failure), failure.lost, failure.visible)
    error.__cause__ = failure.__cause__
    return error
