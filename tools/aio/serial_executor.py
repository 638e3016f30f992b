"""A serial executor: one thread that runs the calls of a loop's tasks, in their order and many at a time.

    task ─┐  this turn of the loop                    the executor's thread
    task ─┼── gathered ──── at its end ────> queue ──> run(up to ``limit`` calls)
    task ─┘                                                 │
      ^────── each call's result or error <── one call_soon_threadsafe

Calls of one turn of the loop go over together, and results that come together wake their tasks in one turn: tasks
that write again and again stay one batch, without a timer. The thread begins with a call; the loop ends it after a
second without any, and it ends by itself once the loop has been closed; where an exception ends it, what waits gets
that, and the next call starts another. A call whose task is cancelled before it
has begun is withdrawn; one that has begun is completed, or undone (finish()).
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from ...storage import fork_hooks
from ...storage.errors import StoreClosed, StoreError
from ...storage.notices import noted
from ...storage.threads import start

T = TypeVar("T")

_LINGER = 1.0  # seconds


class ExecutorCall(Generic[T]):
    """A function that a task waits for, and what became of it."""

    __slots__ = ("error", "function", "future", "has_begun", "is_alone", "is_withdrawn", "result")

    def __init__(self, function: Callable[[], T], future: asyncio.Future[T], is_alone: bool) -> None:
        self.function: Callable[[], T] = function
        self.future: asyncio.Future[T] = future
        self.is_alone: bool = is_alone  # it shares no commit
        self.has_begun: bool = False
        self.is_withdrawn: bool = False
        self.result: Any = None
        self.error: BaseException | None = None

    def begin(self) -> bool:
        """Whether it is to be run: its task still waits. By the executor's thread, perhaps more than once."""
        self.result = self.error = None
        self.has_begun = True  # before the look: a task that is cancelled in between waits for the outcome
        if self.is_withdrawn or self.future.done():
            self.error = StoreClosed("the call was withdrawn before it began: the store is being closed")
        return self.error is None

    def settle(self) -> None:
        """Wake its task. By the loop."""
        if not self.future.done():
            if self.error is None:
                self.future.set_result(self.result)
            else:  # a future refuses StopIteration
                stopped = isinstance(self.error, StopIteration)
                self.future.set_exception(RuntimeError("StopIteration raised") if stopped else self.error)
                if self.is_withdrawn:
                    self.future.exception()  # asked for: its task may be gone, and nothing is to be reported


async def outlast(future: asyncio.Future[T]) -> None:
    """Wait until it is done, also where this task is cancelled (again)."""
    while not future.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([future])


def run_each(calls: list[ExecutorCall[Any]]) -> None:
    for call in calls:
        try:
            if call.begin():
                call.result = call.function()
        except BaseException as error:
            call.error = error


class SerialExecutor:
    """One thread for the calls of a loop's tasks. Made in the running loop, to which all its calls belong.

    ``run``    runs calls in the executor's thread, and sets their results and errors; it raises nothing
    ``limit``  calls whose results come together
    """

    def __init__(self, name: str, run: Callable[[list[ExecutorCall[Any]]], None], limit: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._name = f"raxlog {name}"
        self._run = run
        self._limit = limit
        self._gathered: list[ExecutorCall[Any]] = []
        self._queue: SimpleQueue[list[ExecutorCall[Any]]] = SimpleQueue()
        self._ends = False
        self._thread: threading.Thread | None = None
        self._undoing = 0  # tasks in finish()
        self._under_way: set[ExecutorCall[Any]] = set()  # calls made and not settled

    def call(self, function: Callable[[], T], is_alone: bool = False) -> ExecutorCall[T]:
        """Have the thread call the function; the call's future is for its outcome. StoreError in another loop."""
        self.require_loop()
        if self._thread is None:
            self._ends = False
            self._forks = fork_hooks.count()
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            try:
                start(self._thread)
            except StoreError:
                self._thread = None
                raise
            fork_hooks.at_exit(self.end)  # a thread that uses LMDB must not see the interpreter end
        call = ExecutorCall(function, self._loop.create_future(), is_alone)
        if not self._gathered:
            self._loop.call_soon(self._hand_over)
        self._gathered.append(call)
        self._under_way.add(call)
        return call

    async def finish(self, function: Callable[[], T], undo: Callable[[T], object]) -> T:
        """The outcome of a call; where its task is cancelled once it has begun, it is undone before that goes on."""
        call = self.call(function)
        try:
            return await asyncio.shield(call.future)
        except asyncio.CancelledError:
            call.is_withdrawn = True
            if call.has_begun:  # a commit or two
                self._undoing += 1
                await outlast(call.future)
                if call.error is None:
                    undone = self.call(partial(undo, call.result)).future
                    await outlast(undone)
                    undone.exception()  # where that is refused, too, nothing is to be reported
                self._undoing -= 1
            raise

    async def idle(self, timeout: float) -> bool:
        """Wait until nothing is under way, but no longer than that; whether nothing is."""
        deadline = self._loop.time() + timeout
        while (busy := bool(self._under_way or self._undoing)) and self._loop.time() < deadline:
            await asyncio.sleep(0.001)
        return not busy

    def withdraw(self) -> None:
        """Withdraw what has not begun: StoreClosed for its task."""
        for call in self._under_way:
            call.is_withdrawn = True
            if not (call.has_begun or call.future.done()):
                call.future.set_exception(StoreClosed("the store is being closed; this call has not begun"))

    def end(self) -> None:
        """End the thread: at once, where nothing is under way."""
        thread, self._thread = self._thread, None
        if thread is not None:
            atexit.unregister(self.end)
            self._ends = True
            self._queue.put([])
            if self._forks == fork_hooks.count():  # else it is in the parent
                thread.join()

    def require_loop(self) -> None:
        """StoreError in another loop than the executor's."""
        if asyncio.get_running_loop() is not self._loop:
            raise StoreError(
                f"{self._name}: called from another event loop than the one that opened the store. Open the store in "
                "this loop, too (raxlog.aio.open); both share one environment"
            )

    def _hand_over(self) -> None:
        calls, self._gathered = self._gathered, []
        self._queue.put(calls)

    def _settle(self, calls: list[ExecutorCall[Any]]) -> None:
        for call in calls:
            call.settle()
        self._under_way.difference_update(calls)

    def _retire(self) -> None:
        if not self._under_way:
            self.end()

    @noted
    def _work(self) -> None:
        try:
            while not self._ends:
                self._work_once()
        except BaseException as error:
            if self._loop.is_closed():  # nothing waits any more
                atexit.unregister(self.end)
                return
            # It was raised in this thread from outside it.
            self._loop.call_soon_threadsafe(self._break_off, threading.current_thread(), error)
            raise

    def _break_off(self, thread: threading.Thread, error: BaseException) -> None:
        """This thread ends by itself: its calls' tasks get the error, and the next call starts another."""
        if self._thread is thread:
            self._thread = None
            atexit.unregister(self.end)
            thread.join()  # it has nothing more to do, and is gone before a task goes on
        elif self._thread is not None:  # begun since: nothing was under way then
            return
        broken, self._under_way = self._under_way, set()
        for call in broken:
            call.error = call.error or error
            call.settle()

    def _work_once(self) -> None:
        """Run what is queued. A function: so no call is kept alive while it waits."""
        try:
            calls = self._queue.get(timeout=_LINGER)
            while len(calls) < self._limit and not self._queue.empty():
                calls = calls + self._queue.get()
        except Empty:
            self._loop.call_soon_threadsafe(self._retire)
            return
        for first in range(0, len(calls), self._limit):
            some = calls[first : first + self._limit]
            self._run(some)
            self._loop.call_soon_threadsafe(self._settle, some)
