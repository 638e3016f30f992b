"""A stream, a group and the rest of what a store has, as the tasks of a loop hold them: the plain ones, awaitable."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import Any

from ...stream.group.dead_letters import DeadLetter, DeadLetters
from ...stream.group.deliver import GroupRead, Target, history_start, parse_ids
from ...stream.group.group import Group
from ...stream.group.waiter import Condition
from ...stream.jobs.deferred import Deferred
from ...stream.jobs.results import Result, name_of, result_moves
from ...stream.node.arguments import Name, duration_ms, member_name, texts_of, whole
from ...stream.node.entry import Entry
from ...stream.node.stream_id import IDLike, StreamID
from ...stream.state import State
from ...stream.stream import Stream
from .threads import Attribute, Bound, Property, made, making, on
from .waits import Ahead, AsyncFollower, Look, read_group, timeout_of, until
from .worker import serving


class AsyncDeferred(Bound[Deferred]):
    """An entry to come: as raxlog.Deferred."""

    token = Attribute[Deferred, str](lambda one: one.token)
    due = Attribute[Deferred, datetime](lambda one: one.due)
    fields = Attribute[Deferred, dict[Any, Any]](lambda one: one.fields)
    pairs = Attribute[Deferred, list[tuple[bytes, bytes]]](lambda one: one.pairs)
    cancel = on("writes", Deferred.cancel)


class AsyncDeadLetters(Bound[DeadLetters]):
    """The dead letters of a group, oldest first, for ``async for``: as raxlog.DeadLetters."""

    name = Attribute[DeadLetters, bytes](lambda letters: letters.name)
    length = on("reads", DeadLetters.__len__)
    get = on("reads", DeadLetters.get)
    replay = on("others", DeadLetters.replay)
    purge = on("others", DeadLetters.purge)

    def __aiter__(self) -> Ahead[DeadLetter]:
        return Ahead(self._threads, iter(self._plain))


class AsyncGroup(Bound[Group]):
    """A handle on one consumer group, as raxlog.Group, whose methods it has."""

    name = Attribute[Group, bytes](lambda group: group.name)
    stream = Attribute[Group, bytes](lambda group: group.stream)

    async def read(self, consumer: Name, count: int | None = None, *, block: float | None = None,
                   ids: IDLike = ">", noack: bool = False, ack: Iterable[IDLike] = (), ack_owned: bool = False,
                   claim_idle: float | None = None) -> list[Entry]:
        """Deliver entries to a consumer: as Group.read(), in one commit. Waits without a thread.

        A task that is cancelled takes nothing. Where its delivery was being committed, that is taken back before
        the task ends: the group goes back, or, where it has delivered more since, the entries are released, as by
        nack(mode="silent"). What ``ack`` names stays acknowledged.
        """
        after = None if ids in (">", b">") else history_start(ids)
        whole("count", count, 0, none=", or None for all")
        min_idle = None if claim_idle is None else duration_ms("claim_idle", claim_idle)
        reader = member_name(consumer, "consumer")
        wanted = GroupRead(self.name, reader, count, None, None, noack, min_idle, None, ack_owned)
        target = Target(self.stream, after, parse_ids("ack", ack))
        answer = await read_group(self._threads, wanted, [target], block)
        return texts_of(answer[0][1], self._threads.streams.encoding) if answer else []

    async def wait_result(self, id: IDLike, timeout: float | None = None) -> Result | None:
        """The result of an entry, waited for: as Group.wait_result(). Waits without a thread."""
        seen = {Condition(result_moves, self.stream, name_of(self.name, id)): None}

        async def look() -> Look[Result | None]:
            return await self._threads.call("reads", partial(self._plain.wait_result, id, 0)), seen, None

        return await until(self._threads, look, timeout_of(timeout))

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
    keep_results = on("writes", Group.keep_results)
    delete_consumer = on("others", Group.delete_consumer)
    destroy = on("others", Group.destroy)

    pending = on("reads", Group.pending)
    consumers = on("reads", Group.consumers)
    info = on("reads", Group.info)
    lag = Property[Group, int](lambda group: group.lag)
    paused = Property[Group, bool](lambda group: group.paused)
    subjects = Property[Group, list[bytes]](lambda group: group.subjects)
    last_delivered_id = Property[Group, StreamID](lambda group: group.last_delivered_id)

    worker = serving(Group.worker)

    @property
    def dead_letters(self) -> AsyncDeadLetters:
        """The entries that its workers have given up."""
        return AsyncDeadLetters(self._threads, self._plain.dead_letters)


class AsyncStream(Bound[Stream]):
    """A handle on one stream, as raxlog.Stream, whose methods it has."""

    name = Attribute[Stream, bytes](lambda stream: stream.name)

    append = on("writes", Stream.append)
    extend = on("writes", Stream.extend)
    defer = making("writes", Stream.defer, AsyncDeferred)
    cancel_deferred = on("writes", Stream.cancel_deferred)
    delete = on("writes", Stream.delete)
    delete_ex = on("writes", Stream.delete_ex)
    set_id = on("writes", Stream.set_id)
    configure = on("writes", Stream.configure)
    create_group = making("writes", Stream.create_group, AsyncGroup)
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

    group = made(Stream.group, AsyncGroup)
    range = made(Stream.range, Ahead)
    deferred = made(Stream.deferred, lambda threads, plain: Ahead(threads, map(partial(AsyncDeferred, threads), plain)))

    def __aiter__(self) -> Ahead[Entry]:
        return self.range()

    def follow(self, after: IDLike = "$", timeout: float | None = None) -> AsyncFollower:
        """The entries behind ``after`` as they come, for ``async for``: as Stream.follow(), without a thread.

        Cancel its task to stop it; a further ``async for`` goes on where it ended. Reads the stream's header
        at once, some 10 µs.
        """
        return AsyncFollower(self._threads, self._plain.follow(after, 0), timeout)


class AsyncState(Bound[State]):
    """The durable key-value space of a store: as raxlog.State, with methods for its operators."""

    get = on("reads", State.get)
    items = on("reads", State.rows)
    length = on("reads", State.__len__)
    set = on("writes", State.__setitem__)
    delete = on("writes", State.__delitem__)
