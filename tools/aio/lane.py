"""A lane: one thread that runs the calls of a loop's tasks, in their order and many at a time.

    task ─┐  this turn of the loop                    the lane's thread
    task ─┼── gathered ──── at its end ────> queue ──> run(up to ``most`` calls)
    task ─┘                                                 │
      ^────── each call's result or error <── one call_soon_threadsafe

Calls of one turn of the loop go over together, and results that come together wake their tasks in one turn: tasks
that write again and again stay one batch, without a timer.

The thread begins with a call, and ends once it has had nothing to do for a second. One whose loop has been closed
ends at once: what had not begun is dropped.

A call is withdrawn if its task is cancelled before it begins; it is completed if it has begun. finish() is for calls
whose result must not be lost: their task, cancelled, ends once the result has been undone.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from collections.abc import Awaitable, Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from ...storage.errors import StoreClosed, StoreError

T = TypeVar("T")

_LINGER = 1.0  # seconds
_LONGEST_END = 5.0  # seconds that a thread without calls may take to end


class Call(Generic[T]):
    """A function that a task waits for, and what became of it."""

    __slots__ = ("error", "function", "future", "has_begun", "is_alone", "is_withdrawn", "result")

    def __init__(self, function: Callable[[], T], future: asyncio.Future[T], is_alone: bool) -> None:
        self.function = function
        self.future = future
        self.is_alone = is_alone  # it shares no commit
        self.has_begun = False
        self.is_withdrawn = False
        self.result: Any = None
        self.error: BaseException | None = None

    def begin(self) -> bool:
        """Whether it is to be run: its task still waits. By the lane's thread, perhaps more than once."""
        self.result = self.error = None
        self.has_begun = True  # before the look: a task that is cancelled in between waits for the outcome
        return not (self.is_withdrawn or self.future.cancelled())

    def run(self) -> None:
        """Run it, unless it has been withdrawn."""
        if self.begin():
            try:
                self.result = self.function()
            except BaseException as error:
                self.error = error

    def settle(self) -> None:
        """Wake its task. By the loop."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)
        elif isinstance(self.error, StopIteration):  # which a future refuses
            self.future.set_exception(RuntimeError(f"the function raised {self.error!r}"))
        else:
            self.future.set_exception(self.error)


def run_each(calls: list[Call[Any]]) -> None:
    """Run the calls one by one."""
    for call in calls:
        call.run()


class Lane:
    """Made in a running loop, to which all its calls belong.

    ``run``   runs calls in the lane's thread, and sets their results and errors; it raises nothing
    ``most``  calls whose results come together
    """

    def __init__(self, name: str, run: Callable[[list[Call[Any]]], None], most: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._name = name
        self._run = run
        self._most = most
        self._gathered: list[Call[Any]] = []
        self._queue: SimpleQueue[list[Call[Any]]] = SimpleQueue()
        self._mutex = threading.Lock()  # of the thread's beginning and end
        self._thread: threading.Thread | None = None
        self._ends = False
        self._undoing: set[asyncio.Task[None]] = set()
        self.under_way = 0  # calls made and not settled
        self.refusal: str | None = None  # why nothing more is begun, of what has been called

    def call(self, function: Callable[[], T], *, is_alone: bool = False) -> asyncio.Future[T]:
        """Have the thread call the function; what it returns or raises. StoreError in another loop than the lane's."""
        return self._made(function, is_alone).future

    async def finish(self, function: Callable[[], T], undo: Callable[[T], Awaitable[object]]) -> T:
        """call(), but where the task is cancelled once it has begun, its result is undone before that goes on."""
        call = self._made(function, False)
        try:
            return await asyncio.shield(call.future)
        except asyncio.CancelledError:
            call.is_withdrawn = True
            if call.has_begun and not self._loop.is_closed():
                task = self._loop.create_task(self._undo(call, undo))
                self._undoing.add(task)  # a further cancellation leaves it running
                task.add_done_callback(self._undoing.discard)
                await asyncio.shield(task)
            raise

    async def _undo(self, call: Call[T], undo: Callable[[T], Awaitable[object]]) -> None:
        with contextlib.suppress(Exception):  # there is nothing to undo, or that is refused, too
            result = await call.future
            if result is not None:
                await undo(result)

    @property
    def is_idle(self) -> bool:
        """Whether no call is under way, nor one to be undone."""
        return not (self.under_way or self._undoing)

    def end(self) -> None:
        """End the thread, at once where it is idle."""
        self._ends = True
        thread = self._thread
        if thread is not None:
            self._queue.put([])
            thread.join(_LONGEST_END)

    # -- in the loop ---------------------------------------------------------------------

    def require_loop(self) -> None:
        """StoreError in another loop than the lane's."""
        loop: object = None
        with contextlib.suppress(RuntimeError):
            loop = asyncio.get_running_loop()
        if loop is not self._loop:
            raise StoreError(
                f"{self._name}: called from another event loop than the one that opened the store. Open the store in "
                "this loop, too (raxlog.aio.open); both share one environment"
            )

    def _made(self, function: Callable[[], T], is_alone: bool) -> Call[T]:
        self.require_loop()
        call = Call(function, self._loop.create_future(), is_alone)
        if not self._gathered:
            self._loop.call_soon(self._hand_over)
        self._gathered.append(call)
        self.under_way += 1
        return call

    def _hand_over(self) -> None:
        calls, self._gathered = self._gathered, []
        with self._mutex:
            self._queue.put(calls)
            if self._thread is None or not self._thread.is_alive():
                try:
                    self._start()
                except RuntimeError as error:  # no thread to be had
                    self._thread = None
                    for call in self._queue.get():
                        call.error = error
                    self._settle(calls)

    def _settle(self, calls: list[Call[Any]]) -> None:
        for call in calls:
            call.settle()
        self.under_way -= len(calls)

    # -- the thread ----------------------------------------------------------------------

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._work, name=f"raxlog {self._name}", daemon=True)
        self._thread.start()
        atexit.register(self.end)  # a thread that uses LMDB must not see the interpreter end

    def _work(self) -> None:
        try:
            while self._work_once():
                continue
        finally:
            atexit.unregister(self.end)

    def _work_once(self) -> bool:
        """Run what is queued; False once the thread is to end. A function: it keeps no call alive while it waits."""
        try:
            calls = self._queue.get(timeout=_LINGER)
            while len(calls) < self._most and not self._queue.empty():
                calls = calls + self._queue.get()
        except Empty:
            calls = []
        for start in range(0, len(calls), self._most):
            some = calls[start : start + self._most]
            if self.refusal is None:
                self._run(some)
            else:
                for call in some:
                    call.error = StoreClosed(self.refusal)
            try:
                self._loop.call_soon_threadsafe(self._settle, some)
            except RuntimeError:  # the loop has been closed, and nothing waits any more
                self._ends = True
                break
        with self._mutex:
            goes_on = bool(calls) and not self._ends
            if not goes_on and (self._ends or self._queue.empty()):
                self._thread = None
                return False
        return True
