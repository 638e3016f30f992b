"""A stream, a group and the state as the tasks of a loop hold them: the plain ones, awaitable."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable
from typing import TypeVar

from ...stream.entries.header import shown
from ...stream.group.deliver import GroupRead, Target, history_start, parse_ids
from ...stream.group.group import Group
from ...stream.group.waiter import Condition
from ...stream.jobs.results import Result, name_of, result_moves
from ...stream.node.arguments import Name, Text, duration_ms, member_name, whole
from ...stream.node.entry import Entry
from ...stream.node.stream_id import IDLike, StreamID
from ...stream.state import State
from ...stream.stream import Stream
from .threads import Property, Threads, on
from .waits import Ahead, AsyncFollower, read_group, until_changed

T = TypeVar("T")


class AsyncStream:
    """A handle on one stream, as raxlog.Stream, whose methods it has. Cheap to make; for tasks of one loop."""

    __slots__ = ("_batched", "_plain", "_threads", "name")

    def __init__(self, threads: Threads, plain: Stream) -> None:
        self._threads = threads
        self._plain = plain
        self._batched = plain.bound(threads.batch)
        self.name = plain.name

    def __repr__(self) -> str:
        return f"<raxlog.aio.AsyncStream {shown(self.name)} in {str(self._threads.store.path)!r}>"

    append = on("writes", Stream.append)
    extend = on("writes", Stream.extend)
    delete = on("writes", Stream.delete)
    delete_ex = on("writes", Stream.delete_ex)
    cancel_deferred = on("writes", Stream.cancel_deferred)
    set_id = on("writes", Stream.set_id)
    configure = on("writes", Stream.configure)
    trim = on("others", Stream.trim)

    get = on("reads", Stream.get)
    exists = on("reads", Stream.exists)
    count = on("reads", Stream.count)
    rank = on("reads", Stream.rank)
    select = on("reads", Stream.select)
    split = on("reads", Stream.split)
    info = on("reads", Stream.info)
    groups = on("reads", Stream.groups)
    length = on("reads", Stream.__len__)
    last_id = Property[Stream, StreamID](lambda stream: stream.last_id)
    schema = Property[Stream, dict[str, str]](lambda stream: stream.schema)
    codec = Property[Stream, str](lambda stream: stream.codec)

    def range(self, start: IDLike = "-", end: IDLike = "+", count: int | None = None,
              reverse: bool = False) -> Ahead[Entry]:
        """The entries of a range, for ``async for``: as Stream.range()."""
        return Ahead(self._threads, self._plain.range(start, end, count, reverse))

    def follow(self, after: IDLike = "$", timeout: float | None = None) -> AsyncFollower:
        """The entries behind ``after`` as they come, for ``async for``: as Stream.follow(), without a thread.

        Cancel its task to stop it; a further ``async for`` goes on where it ended. Reads the stream's header
        at once, some 10 µs.
        """
        self._threads.require_open()
        return AsyncFollower(self._threads, self._plain.follow(after, 0), self.name, timeout)

    def __aiter__(self) -> Ahead[Entry]:
        return self.range()

    def group(self, name: Name) -> AsyncGroup:
        """A handle on a consumer group; its methods raise NoGroup where there is none."""
        return AsyncGroup(self._threads, self._plain.group(name))

    async def create_group(self, name: Name, start: IDLike = "$", *, exist_ok: bool = False,
                           create_stream: bool = False, entries_read: int | None = None,
                           subjects: Text | Iterable[Text] | None = None) -> AsyncGroup:
        """Create a consumer group: as Stream.create_group()."""
        await self._create_group(name, start, exist_ok=exist_ok, create_stream=create_stream,
                                 entries_read=entries_read, subjects=subjects)
        return self.group(name)

    _create_group = on("writes", Stream.create_group)


class AsyncGroup:
    """A handle on one consumer group, as raxlog.Group, whose methods it has. For tasks of one loop."""

    __slots__ = ("_batched", "_plain", "_threads", "name", "stream")

    def __init__(self, threads: Threads, plain: Group) -> None:
        self._threads = threads
        self._plain = plain
        self._batched = plain.bound(threads.batch)
        self.name = plain.name
        self.stream = plain.stream

    def __repr__(self) -> str:
        return f"<raxlog.aio.AsyncGroup {shown(self.name)} of stream {shown(self.stream)}>"

    async def read(self, consumer: Name, count: int | None = None, *, block: float | None = None,
                   ids: IDLike = ">", noack: bool = False, ack: Iterable[IDLike] = (),
                   claim_idle: float | None = None) -> list[Entry]:
        """Deliver entries to a consumer: as Group.read(), in one commit. Waits without a thread.

        A task that is cancelled takes nothing. Where its delivery was being committed, that is taken back before
        the task ends: the group goes back, or, where it has delivered more since, the entries are released, as by
        nack(mode="silent"). What ``ack`` names stays acknowledged.
        """
        after = None if ids in (">", b">") else history_start(ids)
        whole("count", count, 0, none=", or None for all")
        min_idle = None if claim_idle is None else duration_ms("claim_idle", claim_idle)
        wanted = GroupRead(self.name, member_name(consumer, "consumer"), count, None, None, noack, min_idle, None)
        target = Target(self.stream, after, parse_ids("ack", ack))
        answer = await read_group(self._threads, wanted, [target], block)
        return self._plain.shown(answer[0][1]) if answer else []

    async def wait_result(self, id: IDLike, timeout: float | None = None) -> Result | None:
        """The result of an entry, waited for: as Group.wait_result(), without a thread."""
        condition = Condition(result_moves, self.stream, name_of(self.name, id))

        def look() -> tuple[dict[Condition, Hashable], Result | None]:
            return {condition: None}, self._plain.wait_result(id, 0)

        deadline = None if timeout is None else time.monotonic() + duration_ms("timeout", timeout) / 1000
        return await until_changed(self._threads, look, deadline)

    keep_results = on("writes", Group.keep_results)
    ack = on("writes", Group.ack)
    nack = on("writes", Group.nack)
    ack_delete = on("writes", Group.ack_delete)
    claim = on("writes", Group.claim)
    autoclaim = on("writes", Group.autoclaim)
    renew = on("writes", Group.renew)
    set_id = on("writes", Group.set_id)
    pause = on("writes", Group.pause)
    resume = on("writes", Group.resume)
    create_consumer = on("writes", Group.create_consumer)
    delete_consumer = on("others", Group.delete_consumer)
    destroy = on("others", Group.destroy)

    pending = on("reads", Group.pending)
    consumers = on("reads", Group.consumers)
    info = on("reads", Group.info)
    lag = Property[Group, int](lambda group: group.lag)
    paused = Property[Group, bool](lambda group: group.paused)
    subjects = Property[Group, list[bytes]](lambda group: group.subjects)
    last_delivered_id = Property[Group, StreamID](lambda group: group.last_delivered_id)


class AsyncState:
    """The durable key-value space of a store: as raxlog.State, with methods for its operators."""

    __slots__ = ("_batched", "_plain", "_threads")

    def __init__(self, threads: Threads, plain: State) -> None:
        self._threads = threads
        self._plain = plain
        self._batched = State(threads.batch)

    get = on("reads", State.get)
    items = on("reads", State.rows)
    length = on("reads", State.__len__)
    set = on("writes", State.__setitem__)
    delete = on("writes", State.__delitem__)
