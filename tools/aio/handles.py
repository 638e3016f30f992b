"""What the tasks of a loop hold: a store, its streams, groups and the rest, the plain ones made awaitable."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator, Iterable, Mapping
from datetime import datetime
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, ParamSpec, Self, TypedDict, TypeVar, Unpack, overload

from ...index.pubsub.pubsub import Reached
from ...storage.errors import InvalidArgument, StoreClosed
from ...store import Store
from ...stream.group.dead_letters import DeadLetter, DeadLetters
from ...stream.group.deliver import Delivered, GroupRead, Target, history_start, parse_ids
from ...stream.group.group import Group, shown_by
from ...stream.group.group import worker as made_worker
from ...stream.group.job import job_moves
from ...stream.group.waiter import Condition
from ...stream.jobs.deferred import Deferred
from ...stream.jobs.results import Result
from ...stream.jobs.schedules import Schedule
from ...stream.jobs.worker import WorkerOptions
from ...stream.multi_read import Asked, Found, found_by, look_behind, parse_group_read
from ...stream.node.arguments import (
    Fields,
    Name,
    StreamOptions,
    Text,
    duration_ms,
    member_name,
    name_bytes,
    timeout_of,
    whole,
)
from ...stream.node.entry import FieldText
from ...stream.node.stream_id import IDLike, StreamID, parse_id
from ...stream.node.typed import Either, Entry, Kind, V
from ...stream.state import State, rows_of
from ...stream.stream import Stream
from ...transaction import Transaction
from .serial_executor import SerialExecutor, run_each
from .threads import Attribute, Handle, Property, Threads, made, making, on
from .waits import Ahead, AsyncFollower, Look, Readiness, read_group, readiness, until
from .worker import AsyncWorker, serve

if TYPE_CHECKING:
    from ...stream.entries.unique import Appended, OnConflict, Until
    from ...stream.node.arguments import Appendable, Refs

    class AppendOptions(TypedDict, total=False):
        """Further options of Stream.append()."""

        maxlen: int | None
        minid: IDLike | None
        approximate: bool
        limit: int | None
        refs: Refs
        expect_last: IDLike | None

N = TypeVar("N", bound=Name)
P = ParamSpec("P")
T = TypeVar("T")


class AsyncDeferred(Handle[Deferred]):
    """A deferred entry: like raxlog.Deferred."""

    token: Attribute[Deferred, str] = Attribute(lambda entry: entry.token)
    due: Attribute[Deferred, datetime] = Attribute(lambda entry: entry.due)
    fields: Attribute[Deferred, dict[FieldText, FieldText]] = Attribute(lambda entry: entry.fields)
    pairs: Attribute[Deferred, list[tuple[FieldText, FieldText]]] = Attribute(lambda entry: entry.pairs)
    is_new: Attribute[Deferred, bool] = Attribute(lambda entry: entry.is_new)
    cancel: Final = on("writes", Deferred.cancel)

    def to_dict(self) -> dict[str, object]:
        """Deferred.to_dict(), which waits for nothing."""
        return self._plain.to_dict()


class AsyncDeadLetters(Handle[DeadLetters[V]]):
    """The dead letters of a group, oldest first, for ``async for``: like raxlog.DeadLetters."""

    name: Attribute[DeadLetters[V], Text] = Attribute(lambda letters: letters.name)
    length: Final = on("reads", DeadLetters.__len__)
    get: Final = on("reads", DeadLetters[V].get)
    replay: Final = on("others", DeadLetters[V].replay)
    purge: Final = on("others", DeadLetters[V].purge)

    def __aiter__(self) -> Ahead[DeadLetter[V]]:
        return Ahead(self._threads, iter(self._plain))


class AsyncGroup(Handle[Group[V]]):
    """A handle on one consumer group, made by stream.group(name), with the methods of raxlog.Group."""

    name: Attribute[Group[V], Text] = Attribute(lambda group: group.name)
    stream: Attribute[Group[V], Text] = Attribute(lambda group: group.stream)

    async def read(self, consumer: Name, count: int | None = None, *, timeout: float | None = 0,
                   ids: IDLike = ">", noack: bool = False, ack: Iterable[IDLike] = (), ack_owned: bool = False,
                   claim_idle: float | None = None) -> Delivered[Entry[V]]:
        """Deliver entries to a consumer: like Group.read(), in one commit. Waits without a thread.

        If the task is cancelled, it takes nothing: a delivery under way is taken back before the task ends.
        """
        after = None if ids in (">", b">") else history_start(ids)
        whole("count", count, 0, none=", or None for all")
        min_idle = None if claim_idle is None else duration_ms("claim_idle", claim_idle)
        reader = member_name(consumer, "consumer")
        wanted = GroupRead(member_name(self.name, "group"), reader, count, None, None, noack, min_idle, None, ack_owned)
        target = Target(name_bytes(self.stream), after, parse_ids("ack", ack))
        answer = await read_group(self._threads, wanted, [target], timeout)
        return Delivered.of(shown_by(self._plain, answer[0][1]) if answer else [], bool(answer.created))

    async def wait_result(self, id: IDLike, timeout: float | None = None) -> Result:
        """Wait for the result of an entry: like Group.wait_result(), without a thread."""
        names = name_bytes(self.stream), member_name(self.name, "group")
        seen = {Condition(job_moves, *names, parse_id(id)): "timeout"}

        async def look() -> Look[Result | None]:
            result = await self._threads.call("reads", partial(self._plain.wait_result, id, 0))
            return None if result.status == "timeout" else result, seen, None

        return await until(self._threads, look, timeout_of(timeout)) or Result(status="timeout")

    ack: Final = on("writes", Group.ack)
    nack: Final = on("writes", Group.nack)
    cancel: Final = on("writes", Group.cancel)
    ack_delete: Final = on("writes", Group.ack_delete)
    claim: Final = on("writes", Group[V].claim)
    autoclaim: Final = on("writes", Group[V].autoclaim)
    autoclaim_ids: Final = on("writes", Group.autoclaim_ids)
    claim_ids: Final = on("writes", Group.claim_ids)
    renew: Final = on("writes", Group.renew)
    set_id: Final = on("writes", Group.set_id)
    configure: Final = on("writes", Group.configure)
    pause: Final = on("writes", Group.pause)
    resume: Final = on("writes", Group.resume)
    create_consumer: Final = on("writes", Group.create_consumer)
    keep_results: Final = on("writes", Group.keep_results)
    delete_consumer: Final = on("others", Group.delete_consumer)
    destroy: Final = on("others", Group.destroy)

    pending: Final = on("reads", Group.pending)
    pending_entries: Final = on("reads", Group.pending_entries)
    entries_after: Final = on("reads", Group.entries_after)
    consumers: Final = on("reads", Group.consumers)
    info: Final = on("reads", Group.info)
    job: Final = on("reads", Group.job)
    lag: Property[Group[V], int] = Property(lambda group: group.lag)
    paused: Property[Group[V], bool] = Property(lambda group: group.paused)
    subjects: Property[Group[V], list[Text]] = Property(lambda group: group.subjects)
    last_delivered_id: Property[Group[V], StreamID] = Property(lambda group: group.last_delivered_id)

    @overload
    def worker(self, handler: Callable[[Entry[V]], object], *, transaction: Literal[False] = False,
               **options: Unpack[WorkerOptions]) -> AsyncWorker: ...

    @overload
    def worker(self, handler: Callable[[Entry[V], Transaction], object], *, transaction: Literal[True],
               **options: Unpack[WorkerOptions]) -> AsyncWorker: ...

    @wraps(Group.worker)
    def worker(self, handler: Callable[..., object], **options: object) -> AsyncWorker:
        return serve([(self, handler)], options, made_worker)

    @property
    def dead_letters(self) -> AsyncDeadLetters[V]:
        """The entries that its workers have given up."""
        return AsyncDeadLetters(self._threads, self._plain.dead_letters)


def worker(handlers: Mapping[AsyncGroup[V], Callable[..., object]], *, back_every: int = 10, transaction: bool = False,
           **options: Unpack[WorkerOptions]) -> AsyncWorker:
    """One worker over several groups of a store, in strict order: raxlog.worker(), for groups and handlers of tasks."""
    if not isinstance(handlers, Mapping) or not handlers or not all(isinstance(one, AsyncGroup) for one in handlers):
        raise InvalidArgument(f"worker({handlers!r:.60}) must be a mapping from groups of raxlog.aio to handlers")
    return serve(handlers.items(), {"back_every": back_every, "transaction": transaction, **options}, made_worker)


class AsyncStream(Handle[Stream[V]]):
    """A handle on one stream, made by store.stream(name), with the methods of raxlog.Stream."""

    name: Attribute[Stream[V], Text] = Attribute(lambda stream: stream.name)

    if TYPE_CHECKING:  # on() gives a checker the first overload alone

        @overload
        async def append(self, fields: Appendable, id: IDLike = "*", *, create: Literal[True] = True,
                         producer: Name | None = None, idempotent_id: Name | None = None, unique: None = None,
                         **options: Unpack[AppendOptions]) -> StreamID: ...
        @overload
        async def append(self, fields: Appendable, id: IDLike = "*", *, create: bool, producer: Name | None = None,
                         idempotent_id: Name | None = None, unique: None = None,
                         **options: Unpack[AppendOptions]) -> StreamID | None: ...
        @overload
        async def append(self, fields: Appendable, id: IDLike = "*", *, unique: Name, until: Until = "done",
                         on_conflict: OnConflict = "skip", **options: Unpack[AppendOptions]) -> Appended: ...
        async def append(self, *_: Any, **options: Any) -> Any:
            """Stream.append()."""

        @overload
        async def defer(self, fields: Appendable, *, delay: float | None = None, at: datetime | None = None,
                        unique: None = None) -> AsyncDeferred: ...
        @overload
        async def defer(self, fields: Appendable, *, delay: float | None = None, at: datetime | None = None,
                        unique: Name, until: Until = "done",
                        on_conflict: OnConflict = "skip") -> AsyncDeferred | Appended: ...
        async def defer(self, *_: Any, **options: Any) -> Any:
            """Stream.defer()."""
    else:
        append: Final = on("writes", Stream.append)
        defer: Final = making("writes", Stream.defer, lambda threads, found: (
            AsyncDeferred(threads, found) if isinstance(found, Deferred) else found))
    extend: Final = on("writes", Stream.extend)
    cancel_deferred: Final = on("writes", Stream.cancel_deferred)
    schedule: Final = on("writes", Stream.schedule)
    pause_schedule: Final = on("writes", Stream.pause_schedule)
    resume_schedule: Final = on("writes", Stream.resume_schedule)
    remove_schedule: Final = on("writes", Stream.remove_schedule)
    run_schedule: Final = on("writes", Stream.run_schedule)
    delete: Final = on("writes", Stream.delete)
    delete_ex: Final = on("writes", Stream.delete_ex)
    set_id: Final = on("writes", Stream.set_id)
    configure: Final = on("writes", Stream.configure)
    create_group: Final = making("writes", Stream[V].create_group, AsyncGroup[V])
    trim: Final = on("others", Stream.trim)

    get: Final = on("reads", Stream[V].get)
    exists: Final = on("reads", Stream.exists)
    count: Final = on("reads", Stream.count)
    rank: Final = on("reads", Stream.rank)
    select: Final = on("reads", Stream.select)
    split: Final = on("reads", Stream.split)
    info: Final = on("reads", Stream.info)
    full_info: Final = on("reads", Stream.full_info)
    groups: Final = on("reads", Stream.groups)
    dump: Final = on("reads", Stream.dump)
    length: Final = on("reads", Stream.__len__)
    last_id: Property[Stream[V], StreamID] = Property(lambda stream: stream.last_id)
    schema: Property[Stream[V], dict[str, str]] = Property(lambda stream: stream.schema)
    codec: Property[Stream[V], str] = Property(lambda stream: stream.codec)

    group: Final = made(Stream[V].group, AsyncGroup[V])
    range: Final = made(Stream[V].range, Ahead[Entry[V]])
    schedules: Final = made(Stream.schedules, Ahead[Schedule])
    deferred: Final = made(Stream.deferred,
                           lambda threads, plain: Ahead(threads, map(partial(AsyncDeferred, threads), plain)))

    def __aiter__(self) -> Ahead[Entry[V]]:
        return self.range()

    def follow(self, after: IDLike = "$", timeout: float | None = None) -> AsyncFollower[V]:
        """Iterate over new entries after ``after`` with ``async for``: like Stream.follow(), without a thread.

        Cancelling the task stops it; a further ``async for`` continues there. The call itself reads for some 10 µs.
        """
        return AsyncFollower(self._threads, self._plain.follow(after, 0), timeout)


class AsyncState(Handle[State]):
    """The durable key-value space, made by store.state: like raxlog.State, with methods instead of operators."""

    @overload
    async def get(self, key: Name) -> bytes | None: ...
    @overload
    async def get(self, key: Name, default: T) -> bytes | T: ...
    async def get(self, key: Name, default: object = None) -> object:
        """The value of a key; ``default`` where there is none."""
        return await self._threads.call("reads", partial(self._plain.get, key, default))

    items: Final = on("reads", rows_of)
    length: Final = on("reads", State.__len__)
    set: Final = on("writes", State.__setitem__)
    delete: Final = on("writes", State.__delitem__)


class AsyncStore(Handle[Store]):
    """A store for the tasks of one loop, with the methods of raxlog.Store.

    open() returns it not yet opened: use it in ``async with``, or await it and call aclose() at the end.
    """

    path: Attribute[Store, Path] = Attribute(lambda store: store.path)

    def __init__(self, opener: Callable[[], Store]) -> None:
        self._opener: Callable[[], Store] | None = opener
        self._closing: asyncio.Task[None] | None = None

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        if self._opener is not None:
            executor = SerialExecutor("opening", run_each, 1)
            try:
                store = await executor.finish(self._opener, Store.close)
            finally:
                executor.end()
            super().__init__(Threads(store), store)
            self._opener = None
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    if not TYPE_CHECKING:  # a checker is to see what is missing

        def __getattr__(self, name: str) -> NoReturn:
            if name in ("_plain", "_threads"):
                raise StoreClosed("the store is not open: await what raxlog.aio.open() returns, or use it in an async "
                                  "with")
            raise AttributeError(f"{type(self).__name__} has no {name}")

    def __repr__(self) -> str:
        return super().__repr__() if self._opener is None else "<raxlog.aio.AsyncStore, not open>"

    async def aclose(self, timeout: float | None = None) -> None:
        """Complete the calls under way, close the store, and end its threads.

        Tasks that wait in a read get StoreClosed, and so does every later call. So do calls that have not begun
        after ``timeout`` seconds (by default the store's lock_timeout). If a call that has begun does not end,
        because a function of transact() or run() hangs, StoreError is raised a second later, and the store stays open.
        """
        if self._closing is None or (self._closing.done() and (self._closing.cancelled() or self._closing.exception())):
            self._threads.executors["writes"].require_loop()
            limit = self._threads.source.lock_timeout if timeout is None else timeout
            self._closing = asyncio.create_task(self._threads.close(limit))
        await asyncio.shield(self._closing)  # of a task that is cancelled, too, no thread stays

    # -- writing ------------------------------------------------------------------------

    async def transact(self, function: Callable[[Transaction], T]) -> T:
        """Run ``function(tx)`` in a transaction of its own, in the writing thread; returns its result.

        All or nothing, one commit, as ``with store.transaction() as tx``. An exception undoes it. Nothing can be
        awaited in it, because every other writer waits: InvalidArgument for an ``async def``.
        """
        def run() -> T:
            with self._plain.transaction() as tx:
                result = function(tx)
                if inspect.iscoroutine(result):
                    result.close()
                if inspect.isawaitable(result):
                    raise InvalidArgument(f"transact({function!r:.60}): nothing can be awaited while a transaction is "
                                          "open. Await before it, and pass a plain function")
                return result

        return await self._threads.call("writes", run, is_alone=True)

    async def run(self, function: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> T:
        """Call any function that would block the loop, in the thread for long calls, one after the other.

        ``await store.run(message.ack)``, ``await store.run(store.plain.subjects.match, "orders.new")``.
        """
        return await self._threads.call("others", partial(function, *args, **options))

    @property
    def plain(self) -> Store:
        """The plain store, for ``subjects``, ``channels``, ``remote``, ``watch`` and others missing here; see run()."""
        return self._plain

    async def publish(self, subject: Text, fields: Fields) -> Reached:
        """Publish a message: like Store.publish(), as part of the next commit."""
        publication = self._threads.pubsub.publication(subject, fields)
        return await self._threads.call("writes", partial(self._threads.batch.submit, publication))

    flush: Final = on("others", Store.flush)
    rename_stream: Final = on("others", Store.rename_stream)
    copy_stream: Final = on("others", Store.copy_stream)
    restore_stream: Final = on("others", Store.restore_stream)
    delete_stream: Final = on("others", Store.delete_stream)
    bind: Final = on("others", Store.bind)
    unbind: Final = on("others", Store.unbind)
    subscribe: Final = on("others", Store.subscribe)
    subscribe_durable: Final = on("others", Store.subscribe_durable)
    subscribe_many: Final = on("others", Store.subscribe_many)
    unsubscribe: Final = on("others", Store.unsubscribe)
    snapshot: Final = on("others", Store.snapshot)
    compact: Final = on("others", Store.compact)
    maintain: Final = on("others", Store.maintain)

    # -- reading ------------------------------------------------------------------------

    streams: Final = on("reads", Store.streams)
    bindings: Final = on("reads", Store.bindings)
    listeners: Final = on("reads", Store.listeners)
    readers: Final = on("reads", Store.readers)
    status: Final = on("reads", Store.status)

    @overload
    def stream(self, name: Name, *, type: type[V] | None = None,
               **options: Unpack[StreamOptions]) -> AsyncStream[V]: ...

    @overload
    def stream(self, name: Name, *, type: Kind, **options: Unpack[StreamOptions]) -> AsyncStream[Either]: ...

    @wraps(Store.stream)
    def stream(self, name: Name, *, type: Kind = None, **options: Unpack[StreamOptions]) -> AsyncStream[Either]:
        if "retention" in options:
            raise InvalidArgument("retention= takes a commit, and the event loop would wait for it: "
                                  "await store.stream(name).configure(retention=…)")
        return AsyncStream(self._threads, self._plain.stream(name, type=type, **options))

    @property
    def state(self) -> AsyncState:
        """The durable key-value space."""
        return AsyncState(self._threads, self._plain.state)

    async def read(self, streams: Asked[N], count: int | None = None, timeout: float | None = 0, *,
                   total: int | None = None, max_bytes: int | None = None) -> Found[N]:
        """Read entries after a given ID from each of several streams: like Store.read(). Waits without a thread."""
        looks = look_behind(self._threads.source, streams, count, total, max_bytes, self._threads.streams.encoding)
        look = partial(self._threads.call, "reads", partial(next, looks))
        return await until(self._threads, look, timeout_of(timeout))

    async def read_group(self, group: Name, consumer: Name, streams: Asked[N], count: int | None = None,
                         timeout: float | None = 0, *, total: int | None = None, max_bytes: int | None = None,
                         noack: bool = False, claim_idle: float | None = None,
                         ack: Mapping[N, Iterable[IDLike]] | None = None) -> Found[N]:
        """Deliver from several streams: like Store.read_group(). Waits and can be cancelled like AsyncGroup.read()."""
        wanted, targets, keys = parse_group_read(
            group, consumer, streams, count, total, max_bytes, noack, claim_idle, ack, None)
        answer = await read_group(self._threads, wanted, targets, timeout)
        return found_by(answer, keys, self._threads.streams.encoding)

    def readiness(self, streams: Asked[N], *, group: Name | None = None, claim_idle: float | None = None,
                  timeout: float | None = None) -> Readiness[bool]:
        """Wait until a read would find something, without reading.

            async with store.readiness({"orders": ">"}, group="billing", timeout=5) as ready:
                while await ready():                      # False (None) after 5 s, from the call of readiness() on
                    if batch := await store.stream("orders").group("billing").read("w1", count=10):
                        break

        ``streams``, and with ``group`` also ``claim_idle``, are those of read() and read_group(). From ``async with``
        on, the task has a place in the queue of the group's readers (threads and tasks of this process), and keeps it
        if its read finds nothing because another process was faster. While the first of the queue is inside the
        ``async with``, the others wait. Costs some 20 µs and no thread. True also if a read would raise NoGroup.
        """
        return readiness(self._threads, streams, group, claim_idle, timeout)


def _opens(opener: Callable[P, Store]) -> Callable[P, AsyncStore]:
    @wraps(opener)
    def call(*args: P.args, **options: P.kwargs) -> AsyncStore:
        return AsyncStore(partial(opener, *args, **options))

    return call


open: Final = _opens(Store.open)
