"""Commits behind their callers: the thread that holds the lead for a window, and commits what came.

    IDLE ─ an append asks ─> OPENING ─ lead, writer's lock ─> OPEN ─ due ─> COMMITTING ─ lock given up ─> IDLE
                                                                ^               │
                                                                └── more came, and nobody else wants to write

A window is due when its time is over, when the buffer is full, at a flush, and when somebody of
this process waits to write; another process that waits has its turn after the commit. The
thread does all that may not be broken off, so that Ctrl-C, which comes to the main thread, cannot.
What callers do here they do under the mutex, for moments, and they wait without it.
"""

from __future__ import annotations

import atexit
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import get_ident

from ...storage.commit.commits import Commits
from ...storage.commit.write_transaction import WriteTransaction
from ...storage.engine.environment import Attachment, Environment
from ...storage.engine.fork_hooks import FORK_PATIENCE, release_all
from ...storage.errors import AppendsLost, StoreError
from ...storage.lifecycle import compaction
from ...storage.wake.stop import wake
from ..node.clock import now_ms
from .buffered import Head, Run, Step, again, lost_of, told
from .header import shown

# What becomes of an append that comes now:
IDLE = 0  # it asks for a window
OPENING = 1  # it waits for the lead and the writer's lock
OPEN = 2  # it is taken
COMMITTING = 3  # it waits a little, and is taken for the next commit

ASIDE = 0.002  # seconds that appends leave the interpreter to the commit, in
GO_ON_MS = 5  # milliseconds that they may have it to themselves
_NAPS, _NAP = 10, 0.0001
_LOOK_AGAIN = 0.25  # seconds in the line: one that was called out may have been broken off


class Behind(Attachment):
    """What is buffered for one environment, and the thread that commits it."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._window = env.options.buffer_window
        self.ended = False  # the interpreter ends: appends are committed by themselves again
        self._begin()
        self._start()
        atexit.register(self._at_exit)

    def _begin(self) -> None:
        self._mutex = threading.Lock()
        self._sleepers: list[threading.Lock] = []  # a lock each for those who wait for a change
        self._line: deque[threading.Lock] = deque()  # and for appends, which are let out one by one
        self._bell = threading.Lock()  # released to wake the background thread
        self._bell.acquire()
        self._thread: threading.Thread | None = None
        self._phase = IDLE
        self._until = 0  # appends before this millisecond need not look at anything else
        self._hold = 0  # how often the lead has been taken
        self._heads: dict[bytes, Head] = {}
        self._batch: dict[bytes, Head] = {}  # whose items the next commit will hold
        self._flying: list[Run | Step] = []  # what the one under way holds
        self._number = 1  # of the batch; those up to _settled have been committed, or have failed
        self._settled = 0
        self._callers: set[int] = set()  # the threads whose appends may still fail
        self._count = 0
        self._bytes = 0
        self._due = False  # commit now
        self._over = 0.0  # when the window is over
        self._applied = False  # the batch is in its transaction: from here on it is the disk that takes time
        self._aside_until = 0.0
        self._hands_over = False  # nothing more is taken before the lead has been given up
        self._timeout = 0.0
        self._refusal: BaseException | None = None  # why the last window could not be opened
        self._refusals = 0
        self._failure: AppendsLost | None = None
        self._untold: dict[int, AppendsLost] = {}  # by thread
        self._shut = False
        self._forking = False

    def _change(self, seconds: float = -1) -> Callable[[], object]:
        """Under the mutex: what to call, once it has been given up, to sleep until something changes.

        Not a Condition: Ctrl-C can leave one without its mutex.
        """
        sleeper = threading.Lock()
        sleeper.acquire()
        self._sleepers.append(sleeper)
        return partial(sleeper.acquire, timeout=seconds)

    def _line_up(self, place: threading.Lock | None, aside: bool = False) -> tuple[threading.Lock, float]:
        """Under the mutex: a place in the line, as a lock to sleep on without the mutex, and for how long.

        First come, first served: what was called out in vain is the first again. The first sleeps only
        ASIDE, where it may get in without being called.
        """
        line = self._line
        if place is None:
            place = threading.Lock()
            place.acquire()
            line.append(place)
        elif place not in line:
            line.appendleft(place)
        return place, ASIDE if aside and line[0] is place else _LOOK_AGAIN

    def _let_in(self, place: threading.Lock) -> None:
        """Under the mutex: what waited in this place need not any more, and the next may come."""
        if place in self._line:
            self._line.remove(place)
        self._call_next()

    def _call_next(self) -> None:
        """Under the mutex: call the first in the line. Each that gets in calls the next: few are awake at a time."""
        if self._line:
            wake(self._line.popleft())

    def _changed(self, whole_line: bool = True) -> None:
        """Wake all that sleep until something changes. By the background thread, or a closing or forking one."""
        release_all(self._sleepers)  # an exception that came here between taking one out and waking it would lose it
        self._call_next()
        while whole_line and self._line:
            self._call_next()

    # -- committing now -----------------------------------------------------------------

    def flush(self, tell: bool = False) -> None:
        """Wait until all that has been appended before is on disk. 0.1 µs where it is.

        AppendsLost if it could not be committed. That is raised again by whatever comes next,
        until it has been raised with ``tell``: by the user's own flush() or close(). Each thread
        that had appended is told by a flush of its own.
        """
        if not (self._batch or self._flying or self._untold):
            return
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
        failure = self._untold.get(get_ident(), self._failure)
        if failure is not None:
            try:
                raise again(failure)
            finally:  # a Ctrl-C that comes now carries the loss with it
                if tell:
                    self._failure = None
                    self._untold.pop(get_ident(), None)

    def make_way(self) -> None:
        """Somebody of this process wants to write: end the window now."""
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
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        thread.start()
        self._thread = thread

    def _work(self) -> None:
        while True:
            self._bell.acquire()
            with self._mutex:
                if self._shut or self.ended:
                    self._give_up(None)
                    return
                if self._phase != OPENING:
                    continue
                timeout = self._timeout
            error: BaseException | None = None
            try:
                self._env.commits.exclusively(self._hold_lead, timeout, self.make_way)
            except BaseException as raised:
                error = raised
            with self._mutex:
                self._give_up(error)

    def _give_up(self, error: BaseException | None) -> None:
        """The lead has been given back, or was not to be had."""
        if error is not None:
            if self._batch or self._flying:
                self._fail(error, False)
            else:
                self._refusal = error
                self._refusals += 1
        self._phase = IDLE
        self._hands_over = False
        self._until = 0
        self._heads = {}
        self._changed(whole_line=error is not None or self._shut)

    def _hold_lead(self) -> None:
        """One hold of the lead and the writer's lock: a window and its commit, as a rule."""
        env = self._env
        commits = env.commits
        compaction.go_over(env)
        with self._mutex:
            self._hold += 1
            self._heads = {}
            self._due = False
            self._open_window(self._window)
            self._changed(whole_line=False)
        for _ in range(_NAPS):  # who waits for the lead must let those in who have asked for the window
            if self._batch or not commits.is_awaited():
                break
            time.sleep(_NAP)
        while True:
            while not (self._due or self._shut or self._forking or commits.is_awaited()):
                left = self._over - time.monotonic()
                if left <= 0:
                    break
                self._bell.acquire(timeout=left)
            with self._mutex:
                batch = self._take()
            error, visible = self._commit(commits, batch) if batch else (None, False)
            with self._mutex:
                self._flying = []
                if error is not None:
                    self._flying = batch
                    self._fail(error, visible)
                elif batch and not self._batch:
                    self._callers = set()
                self._settled = self._number - 1
                is_awaited = commits.is_awaited() or commits.files.is_lock_awaited()
                self._hands_over = self._shut or self._forking or is_awaited
                if not self._batch:
                    self._hands_over = True
                    self._changed(whole_line=self._failure is not None)
                    return
                if self._hands_over:
                    self._due = True
                else:
                    self._open_window(self._over + self._window - time.monotonic())
                self._changed(whole_line=self._failure is not None)

    def _open_window(self, seconds: float) -> None:
        self._phase = OPEN
        self._over = time.monotonic() + seconds
        self._until = now_ms() + max(1, math.ceil(seconds * 1000))

    def _take(self) -> list[Run | Step]:
        self._phase = COMMITTING
        self._until = 0
        self._due = False
        self._over = time.monotonic()
        self._applied = False
        self._aside_until = self._over
        batch = []
        for head in self._batch.values():
            if head.items:
                batch += head.items
                head.base = head.items[-1].last
                head.exists = True
        self._flying = batch
        if self._batch:
            self._number += 1
        self._batch = {}
        self._count = self._bytes = 0
        self._call_next()
        return batch

    def _commit(self, commits: Commits, batch: list[Run | Step]) -> tuple[BaseException | None, bool]:
        """All of it in one transaction, or nothing. What stands against it; whether it is visible all the same."""
        transaction = 0

        def operation(txn: WriteTransaction) -> None:
            nonlocal transaction
            transaction = txn.id
            for item in batch:
                if not item.apply(txn):
                    raise StoreError(f"an append to {shown(item.name)} would not get the ID it was given")
            txn.flush()
            self._aside_until = time.monotonic() + ASIDE
            self._applied = True

        try:
            commits.apply(operation)
        except BaseException as error:
            return error, transaction > 0 and self._env.last_transaction_id() >= transaction
        return None, False

    def _fail(self, error: BaseException, visible: bool) -> None:
        """What has been buffered is lost: nothing more is taken until that has been told."""
        lost = lost_of(self._flying + [item for head in self._batch.values() for item in head.items])
        self._settled = self._number
        self._number += 1
        self._flying = []
        self._batch = {}
        self._count = self._bytes = 0
        self._until = 0
        if lost:
            self._failure = failure = told(self._env, lost, error, visible)
            self._untold |= dict.fromkeys(self._callers, failure)
            self._callers = set()

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
                if not (self._batch or self._flying or self._phase in (OPEN, COMMITTING)):
                    thread = self._thread
                    waits = self._phase == OPENING  # for another process: whoever closes waits for the lead himself
                    self._ring()
                    break
                self._hurry()
                wait = self._change()
            wait()
        if thread is not None and not waits and thread is not threading.current_thread():
            thread.join()

    def _at_exit(self) -> None:
        self.ended = True
        self._end()
        self.flush(tell=True)

    def before_fork(self) -> None:
        """Commit what is buffered, and take nothing more. The child must not inherit any of it."""
        deadline = time.monotonic() + FORK_PATIENCE
        self._forking = True
        left = FORK_PATIENCE
        while left > 0:
            with self._mutex:
                self._until = 0
                if not (self._batch or self._flying or self._phase in (OPEN, COMMITTING)):
                    break
                self._hurry()
                wait = self._change(left)
            wait()
            left = deadline - time.monotonic()

    def after_fork_in_parent(self) -> None:
        """Take appends again."""
        with self._mutex:
            self._forking = False
            self._changed()

    def after_fork_in_child(self) -> bool:
        """Begin anew: thread and buffer are the parent's."""
        self._begin()
        return True
