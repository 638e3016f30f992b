"""The threads of a store in a loop, three whatever the number of tasks, and the plain methods called there.

    writes   what joins a commit, many tasks' calls in each (stream/entries/batch.py); transact()
    reads    what reads and does not wait. A thread of its own: a read waits for no commit, nor for the writer's lock
    others   what makes commits of its own or takes long: trim(), compact(), run(); one after the other

A reader that waits has none: see waits.py. A worker has its own while it runs: see worker.py.

While a store is open, its loop wakes every half second. What a handler made by signal.signal() does, as that of
taskiq's workers, wakes no loop: an event that it has set, or a task that it has cancelled, would wait for other work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import partial, wraps
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar
from weakref import ref

from ...storage.errors import StoreClosed, StoreError
from ...storage.handles import made_by_a_call
from ...storage.wake.stop import Waker
from ...store import Store, parts
from ...stream.entries.batch import BatchSource, kept
from ...stream.entries.session import bound
from ...stream.group.waiter import WaitQueues
from ...stream.jobs.worker import Worker
from .serial_executor import ExecutorCall, SerialExecutor, run_each

if TYPE_CHECKING:
    from ...index.pubsub.pubsub import PubSub
    from ...stream.entries.session import StoreSource
    from ...stream.streams import Streams

H = TypeVar("H")  # a plain handle
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_GRACE = 1.0  # seconds for what has begun, once nothing more is
_WAKES = 0.5  # seconds between looks at what a signal's handler has done


class Threads:
    """What the handles of one open AsyncStore share."""

    source: StoreSource
    streams: Streams
    pubsub: PubSub

    def __init__(self, store: Store) -> None:
        self.use(store)
        self.turns: dict[object, Waker] = {}  # of tasks that wait: one that nothing else refers to lives by it
        self.workers: dict[Handle[Worker], SerialExecutor] = {}  # that run
        self.refusal: str | None = None  # why nothing more is taken, once close() has been called
        self.executors: dict[str, SerialExecutor] = {  # 256 or 32 results together: a few ms of the loop's time
            "writes": SerialExecutor(f"writes to {store.path}", self._write, 256),
            "reads": SerialExecutor(f"reads of {store.path}", run_each, 32),
            "others": SerialExecutor(f"calls of {store.path}", run_each, 1),
        }
        _wake(asyncio.get_running_loop(), ref(self))

    def use(self, store: Store) -> None:
        """Have the calls from now on go to this store; it may be the one before, opened again."""
        self.store: Store = store
        self.source, self.streams, self.pubsub = parts(store)
        self.batch: BatchSource = BatchSource(self.source)
        self.waiting: WaitQueues = self.source.env.attached(WaitQueues)

    def call(self, executor: str, function: Callable[[], T], is_alone: bool = False) -> asyncio.Future[T]:
        """Have an executor call a function; "writes" within the next commit, or alone between commits."""
        self.require_open()
        return self.executors[executor].call(function, is_alone).future

    def _write(self, calls: list[ExecutorCall[Any]]) -> None:
        """Run these calls in their order, in as few commits as can be. In the thread of "writes"."""
        for is_alone, some in groupby(calls, attrgetter("is_alone")):
            (run_each if is_alone else self.batch.commit)(list(some))

    def require_open(self) -> None:
        """StoreClosed once close() has been called."""
        if self.refusal is not None:
            raise StoreClosed(self.refusal)

    async def close(self, timeout: float) -> None:
        """Complete what is under way, within ``timeout`` seconds; close the store; end the threads."""
        for worker in self.workers:  # whose handlers may still call
            worker._plain.stop()
        await self._idle(self.workers.values(), timeout)
        self.refusal = f"the store {self.store.path} has been closed (aclose()). Open it again."
        for waker in self.turns.values():
            waker.release()
        await self._idle(self.executors.values(), timeout)
        await self.executors["others"].call(self.store.close).future
        for executor in self.executors.values():
            executor.end()

    async def _idle(self, executors: Iterable[SerialExecutor], timeout: float) -> None:
        for executor in list(executors):
            if not await executor.idle(timeout):
                executor.withdraw()
                if not await executor.idle(_GRACE):
                    raise StoreError(
                        f"{self.store.path} is not closed: a call that has begun has not ended in {timeout:g} s, and "
                        "cannot be broken off. Nothing more is begun; aclose() again once it has ended."
                    )


def _wake(loop: asyncio.AbstractEventLoop, threads: ref[Threads]) -> None:
    """Wake the loop again and again, as long as the store is open and in use."""
    found = threads()
    if found is not None and found.refusal is None:
        loop.call_later(_WAKES, _wake, loop, threads)


class Handle(Generic[H]):
    """A handle of a loop's tasks: the plain one, and, where it can be, the same bound to the batch. Cheap to make."""

    @made_by_a_call
    def __init__(self, threads: Threads, plain: H) -> None:
        handle: Any = plain
        is_whole = isinstance(plain, Store | Worker)  # no handle on a part of a store
        self._threads = threads
        self._plain: H = plain if is_whole else bound(handle, threads.source)
        self._batched: H = plain if is_whole else bound(handle, threads.batch)

    def __repr__(self) -> str:
        return f"<raxlog.aio.{type(self).__name__} of {self._plain!r}>"


def making(executor: str, method: Callable[Concatenate[H, P], T], make: Callable[[Threads, T], R],
           ) -> Callable[Concatenate[Handle[H], P], Coroutine[Any, Any, R]]:
    """on(), and what is made of the result for the loop's tasks."""

    @wraps(method)
    async def awaited(self: Handle[H], /, *args: P.args, **options: P.kwargs) -> R:
        given: Any = map(kept, args)
        named: Any = {name: kept(value) for name, value in options.items()}
        call = partial(method, self._batched if executor == "writes" else self._plain, *given, **named)
        return make(self._threads, await self._threads.call(executor, call))

    return awaited


def on(executor: str, method: Callable[Concatenate[H, P], T],
       ) -> Callable[Concatenate[Handle[H], P], Coroutine[Any, Any, T]]:
    """A plain method, of the same types and explanation, as one to be awaited, which this executor calls.

    In "writes" it is a part of the next commit, also where the plain one goes in pieces.
    """
    return making(executor, method, lambda _, result: result)


def made(method: Callable[Concatenate[H, P], T], make: Callable[[Threads, T], R],
         ) -> Callable[Concatenate[Handle[H], P], R]:
    """A plain method that neither reads nor writes, and what is made of its result for the loop's tasks."""

    @wraps(method)
    def call(self: Handle[H], /, *args: P.args, **options: P.kwargs) -> R:
        return make(self._threads, method(self._plain, *args, **options))

    return call


class Property(Generic[H, T]):
    """A property to be awaited; explained at the plain one of that name."""

    def __init__(self, read: Callable[[H], T]) -> None:
        self._read = read

    def __get__(self, handle: Handle[H], owner: object) -> asyncio.Future[T]:
        return handle._threads.call("reads", partial(self._read, handle._plain))


class Attribute(Generic[H, T]):
    """A property that needs no reading; explained at the plain one of that name."""

    def __init__(self, read: Callable[[H], T]) -> None:
        self._read = read

    def __get__(self, handle: Handle[H], owner: object) -> T:
        return self._read(handle._plain)
