"""A worker whose handlers are coroutines: the plain one (stream/jobs/worker.py), whose threads wait for tasks.

    a thread of the worker   read ──> handler(entry) ┄┄┄┄ waits ┄┄┄┄ returns, raises ──> acknowledged, released, buried
                                          │ call_soon_threadsafe          ^
    the loop                              └──> a task: the coroutine ─────┘
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from ...storage import fork_hooks
from ...storage.errors import InvalidArgument
from ...storage.handles import made_by_a_call
from ...storage.threads import start
from ...stream.group.group import Group
from ...stream.jobs.outcome import Cancelled, Counts, Snooze, TimeLimit
from ...stream.jobs.worker import Worker, is_async
from ...stream.node.typed import Entry, V
from .serial_executor import SerialExecutor, outlast, run_each
from .threads import Attribute, Handle, Threads

T = TypeVar("T")

_LOOK = 0.2  # seconds between looks whether the loop has been closed
_GRACE = 1.0  # seconds that tasks have to end once they are cancelled


class Awaited:
    """An async handler as a plain one: it runs as a task of the loop, for which the thread that calls it waits.

    Without a loop, in one that it begins in a thread of its own. InvalidArgument for a worker with transactions.
    """

    def __init__(self, handler: Callable[..., Any], transaction: object,
                 loop: asyncio.AbstractEventLoop | None = None) -> None:
        if transaction:
            raise InvalidArgument(f"handler={handler!r:.60} is async; the handler of a worker with transactions must "
                                  "be a plain function, for nothing can be awaited while one is open")
        self._handler = handler
        self._loop = loop
        self._lock = threading.Lock()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.owner: asyncio.Task[Any] | None = None  # the task that runs the worker

    def __call__(self, entry: Entry) -> Any:
        ended: SimpleQueue[Future[Any]] = SimpleQueue()
        loop, coroutine, future = self._started(), self._run(entry), Future[Any]()
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, loop)
            future.add_done_callback(ended.put)
        except RuntimeError:  # the loop has been closed, which the worker notices as soon as this
            coroutine.close()
        try:
            while ended.empty():
                with suppress(Empty):
                    ended.put(ended.get(timeout=_LOOK))  # where it strikes, the loop wants no lock that is held
                if loop.is_closed():
                    break
        except (TimeLimit, Cancelled):
            future.cancel()
            raise
        if ended.empty() or future.cancelled():  # the loop ends: the entry is given back
            raise Snooze(0)
        value, error = future.result()
        if error is not None:
            raise error
        return value

    async def _run(self, entry: Entry) -> tuple[Any, BaseException | None]:
        forks, task = fork_hooks.count(), asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            return await self._handler(entry), None
        except GeneratorExit:  # what a closed loop has left is cleared away, perhaps in a child that others have forked
            forks = fork_hooks.count()
            raise
        except BaseException as error:
            is_end, kind = self.owner is not None and self.owner.cancelling(), type(error)  # as by asyncio.run()
            if issubclass(kind, KeyboardInterrupt) and threading.current_thread() is threading.main_thread() and (
                    is_end or signal.getsignal(signal.SIGINT) is signal.default_int_handler):
                raise  # it may be of Ctrl-C
            return None, Snooze(0) if is_end and issubclass(kind, asyncio.CancelledError) else error
        finally:
            self.tasks.discard(task)
            if fork_hooks.count() != forks:
                os._exit(0)  # a child that the handler has forked: the entry is its parent's

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                start(threading.Thread(target=_run_on, args=(loop,), name="raxlog worker: loop", daemon=True))
                self._loop = loop
            return self._loop


def _run_on(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop for ever, whatever its callbacks raise, and also where a handler stops it."""
    while not loop.is_closed():
        with suppress(BaseException):
            loop.run_forever()


class AsyncWorker(Handle[Worker]):
    """Made by AsyncGroup.worker(): a raxlog.Worker whose run() is awaited."""

    name: Attribute[Worker, bytes] = Attribute(lambda worker: worker.name)
    counts: Attribute[Worker, Counts] = Attribute(lambda worker: worker.counts)

    @made_by_a_call
    def __init__(self, threads: Threads, plain: Worker, handlers: Iterable[object]) -> None:
        super().__init__(threads, plain)
        self._awaited = [handler for handler in handlers if isinstance(handler, Awaited)]

    def stop(self) -> None:
        """End the worker: no entry is begun any more. From any thread, and from signal handlers."""
        self._plain.stop()

    async def run(self, *, burst: bool = False) -> None:
        """Work until stop(), until the store or the loop is closed, or this task is cancelled: as Worker.run().

        Handlers then have ``drain`` seconds, in which this task, cancelled or not, goes on. What has not ended
        is given back, and cancelled.
        """
        await self._work(partial(self._plain.run, burst=burst))

    async def drain(self, *, max_outcomes: int = 10_000) -> Counts:
        """As Worker.drain()."""
        return await self._work(partial(self._plain.drain, max_outcomes=max_outcomes))

    async def _work(self, call: Callable[..., T]) -> T:
        self._threads.require_open()
        loop = asyncio.get_running_loop()
        for handler in self._awaited:
            handler.owner = asyncio.current_task()
        executor = self._threads.workers[self] = SerialExecutor(f"worker {self.name!r}", run_each, 1)
        ended = executor.call(partial(
            call, signals=False,
            until=lambda: loop.is_closed() or not threading.main_thread().is_alive())).future
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            self.stop()
            await outlast(ended)
            raise
        finally:
            del self._threads.workers[self]
            if not loop.is_closed():  # else the garbage collector drops this task
                executor.end()
                tasks = [task for handler in self._awaited for task in handler.tasks]
                for task in tasks:
                    task.cancel()
                if tasks:
                    await asyncio.wait(tasks, timeout=_GRACE)


def serve(handlers: Iterable[tuple[Handle[Group[V]], Callable[..., object]]], options: Mapping[str, Any],
          make: Callable[..., Worker]) -> AsyncWorker:
    """Make a worker of plain groups, for handlers that are async, or are not."""
    if options.get("processes"):
        raise InvalidArgument("processes= forks, which a process with a loop should not do; `raxlog worker "
                              "--processes` takes async functions")
    groups = list(handlers)
    plain = {group._plain: Awaited(handler, options.get("transaction"), asyncio.get_running_loop())
             if is_async(handler) else handler for group, handler in groups}
    return AsyncWorker(groups[0][0]._threads, make(plain, **options), plain.values())
