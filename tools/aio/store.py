"""An open store as the tasks of a loop hold it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import Any, ParamSpec, Self, TypeVar

from ...index.pubsub.pubsub import Reached
from ...storage.errors import InvalidArgument
from ...store import Store
from ...stream.entries.session import ask
from ...stream.group.waiter import Condition, stream_moves
from ...stream.multi_read import parse_group_read
from ...stream.node.arguments import Fields, Name, Text, name_bytes, texts_of
from ...stream.node.entry import Entry
from ...stream.node.stream_id import IDLike
from ...transaction import Transaction
from .lane import Lane, run_each
from .stream import AsyncState, AsyncStream
from .threads import Threads, on
from .waits import deadline_of, read_group, until_changed

N = TypeVar("N", bound=Name)
P = ParamSpec("P")
T = TypeVar("T")


class AsyncStore:
    """An open store, as raxlog.Store, whose methods it has. Made by raxlog.aio.open(); for tasks of one loop."""

    def __init__(self, plain: Store) -> None:
        self._threads = Threads(plain)
        self._plain = self._batched = plain
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<raxlog.aio.AsyncStore of {self._plain!r}>"

    @property
    def path(self) -> Path:
        """The store's directory."""
        return self._plain.path

    async def aclose(self, timeout: float | None = None) -> None:
        """Complete the calls under way, close the store, and end its threads.

        Tasks that wait in a read get StoreClosed, and so does every later call. After ``timeout`` seconds (the
        store's lock_timeout) what has not begun gets it, too. StoreError a second later, with the store not
        closed, where a call that has begun does not end: a transact() or run() that hangs.
        """
        if self._closing is None or (self._closing.done() and (self._closing.cancelled() or self._closing.exception())):
            self._threads.lanes["writes"].require_loop()
            limit = self._threads.source.lock_timeout if timeout is None else timeout
            self._closing = asyncio.create_task(self._threads.close(limit))
        await asyncio.shield(self._closing)  # of a task that is cancelled, too, no thread stays

    # -- writing ------------------------------------------------------------------------

    async def transact(self, function: Callable[[Transaction], T]) -> T:
        """``function(tx)`` within a transaction of its own, as a whole, in the thread that writes; its result.

        All or nothing, one commit: as ``with store.transaction() as tx``. What it raises undoes it. Nothing can be
        awaited in it, since every other writer waits: InvalidArgument for an ``async def``.
        """
        if inspect.iscoroutinefunction(function):
            raise InvalidArgument(
                f"transact({function!r:.60}): an async function; nothing can be awaited while a transaction is open. "
                "Await before it, and pass a plain function"
            )

        def run() -> T:
            with self._plain.transaction() as tx:
                result = function(tx)
                if inspect.isawaitable(result):
                    if inspect.iscoroutine(result):
                        result.close()
                    raise InvalidArgument("the function of transact() returned an awaitable, which nothing awaits")
                return result

        return await self._threads.call("writes", run, is_alone=True)

    async def run(self, function: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> T:
        """Call any function that would hold up the loop, in the thread for long calls; one after the other.

        ``await store.run(message.ack)``, ``await store.run(store.plain.subjects.match, "orders.new")``.
        """
        return await self._threads.call("others", partial(function, *args, **options))

    @property
    def plain(self) -> Store:
        """The store itself, for what is not here: ``subjects``, ``channels``, ``remote``, ``watch``; see run()."""
        return self._plain

    async def publish(self, subject: Text, fields: Fields) -> Reached:
        """Publish a message: as Store.publish(), as a part of the next commit."""
        publication = self._threads.pubsub.publication(subject, fields)
        return await self._threads.call("writes", partial(self._threads.batch.submit, publication))

    flush = on("others", Store.flush)
    rename_stream = on("others", Store.rename_stream)
    delete_stream = on("others", Store.delete_stream)
    bind = on("others", Store.bind)
    unbind = on("others", Store.unbind)
    subscribe = on("others", Store.subscribe)
    subscribe_many = on("others", Store.subscribe_many)
    unsubscribe = on("others", Store.unsubscribe)
    snapshot = on("others", Store.snapshot)
    compact = on("others", Store.compact)
    maintain = on("others", Store.maintain)

    # -- reading ------------------------------------------------------------------------

    streams = on("reads", Store.streams)
    bindings = on("reads", Store.bindings)
    listeners = on("reads", Store.listeners)
    readers = on("reads", Store.readers)

    def stream(self, name: Name, *, compression: str | None = None, node_max_bytes: int | None = None,
               node_max_entries: int | None = None, codec: str | None = None, type: Any = None) -> AsyncStream:
        """A handle on the stream of that name: as Store.stream()."""
        self._threads.require_open()
        return AsyncStream(self._threads, self._plain.stream(
            name, compression=compression, node_max_bytes=node_max_bytes, node_max_entries=node_max_entries,
            codec=codec, type=type))

    @property
    def state(self) -> AsyncState:
        """The durable key-value space."""
        self._threads.require_open()
        return AsyncState(self._threads, self._plain.state)

    async def read(self, streams: Mapping[N, IDLike], count: int | None = None, block: float | None = None, *,
                   total: int | None = None, max_bytes: int | None = None) -> dict[N, list[Entry]]:
        """Entries behind an ID of each of several streams: as Store.read(). Waits without a thread."""
        deadline = deadline_of(block)
        wanted: dict[N, IDLike] | None = None

        def look() -> tuple[dict[Condition, Hashable], dict[N, list[Entry]]]:
            nonlocal wanted
            conditions = [Condition(stream_moves, name_bytes(name)) for name in streams]
            seen = {each: ask(self._threads.source, each.value) for each in conditions}
            now = streams if wanted is None else wanted
            if wanted is None:  # "$" and "+" mean this moment
                wanted = {name: self._plain.stream(name).last_id if after in ("$", b"$", "+", b"+") else after
                          for name, after in streams.items()}
            return seen, self._plain.read(now, count, total=total, max_bytes=max_bytes)

        if block is None:
            return (await self._threads.call("reads", look))[1]
        return await until_changed(self._threads, look, deadline)

    async def read_group(self, group: Name, consumer: Name, streams: Mapping[N, IDLike], count: int | None = None,
                         block: float | None = None, *, total: int | None = None, max_bytes: int | None = None,
                         noack: bool = False, claim_idle: float | None = None,
                         ack: Mapping[N, Iterable[IDLike]] | None = None) -> dict[N, list[Entry]]:
        """Deliver from several streams: as Store.read_group(). Waits, and is cancelled, as AsyncGroup.read()."""
        wanted, targets, keys = parse_group_read(group, consumer, streams, count, total, max_bytes, noack, claim_idle,
                                                 ack, None)
        answer = await read_group(self._threads, wanted, targets, block)
        return {keys[name]: texts_of(entries, self._threads.streams.encoding) for name, entries in answer}


class Opening:
    """What open() returns: ``async with`` it, or await it and aclose() the store."""

    def __init__(self, opener: Callable[[], Store]) -> None:
        self._opener = opener
        self._store: AsyncStore | None = None

    def __await__(self) -> Generator[Any, None, AsyncStore]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> AsyncStore:
        lane = Lane("opening", run_each, 1)
        try:
            self._store = AsyncStore(await lane.finish(self._opener, lambda store: lane.call(store.close).future))
        finally:
            lane.end()
        return self._store

    async def __aexit__(self, *_: object) -> None:
        if self._store is not None:
            await self._store.aclose()


def _opens(opener: Callable[P, Store]) -> Callable[P, Opening]:
    @wraps(opener)
    def call(*args: P.args, **options: P.kwargs) -> Opening:
        return Opening(partial(opener, *args, **options))

    return call


open = _opens(Store.open)
