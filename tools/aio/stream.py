"""A stream, a group and the state as the tasks of a loop hold them: the plain ones, awaitable."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from ...stream.columns.scan import StoredNode
from ...stream.entries.header import shown
from ...stream.group.deliver import GroupRead, Target, history_start, parse_ids
from ...stream.group.group import Group
from ...stream.node.arguments import Name, Text, duration_ms, member_name
from ...stream.node.entry import Entry
from ...stream.node.stream_id import IDLike, StreamID
from ...stream.state import State
from ...stream.stream import Stream
from .entries import Ahead, AsyncFollower
from .group_read import Reading
from .methods import Property, apart, joined, reading
from .threads import Threads

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

    append = joined(Stream.append)
    extend = joined(Stream.extend)
    delete = joined(Stream.delete)
    delete_ex = joined(Stream.delete_ex)
    set_id = joined(Stream.set_id)
    configure = joined(Stream.configure)
    trim = apart(Stream.trim)

    get = reading(Stream.get)
    exists = reading(Stream.exists)
    count = reading(Stream.count)
    rank = reading(Stream.rank)
    select = reading(Stream.select)
    split = reading(Stream.split)
    info = reading(Stream.info)
    groups = reading(Stream.groups)
    length = reading(Stream.__len__)
    last_id = Property[Stream, StreamID](lambda stream: stream.last_id)
    schema = Property[Stream, dict[str, str]](lambda stream: stream.schema)

    def range(self, start: IDLike = "-", end: IDLike = "+", count: int | None = None,
              reverse: bool = False) -> Ahead[Entry]:
        """The entries of a range, for ``async for``: as Stream.range()."""
        return Ahead(self._threads, self._plain.range(start, end, count, reverse))

    def nodes(self, start: IDLike = "-", end: IDLike = "+") -> Ahead[StoredNode]:
        """The nodes of a range, for ``async for``: as Stream.nodes()."""
        return Ahead(self._threads, self._plain.nodes(start, end))

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

    _create_group = joined(Stream.create_group)


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
        ids_to_ack = ack if isinstance(ack, str | bytes | StreamID) else list(ack)
        after = None if ids in (">", b">") else history_start(ids)
        min_idle = None if claim_idle is None else duration_ms("claim_idle", claim_idle)
        wanted = GroupRead(self.name, member_name(consumer, "consumer"), count, None, None, noack, min_idle, None)
        target = Target(self.stream, after, parse_ids("ack", ids_to_ack))

        def take(acknowledges: bool) -> list[Entry]:
            return self._batched.read(consumer, count, ids=ids, noack=noack, ack=ids_to_ack if acknowledges else (),
                                      claim_idle=claim_idle)

        return await Reading(self._threads, wanted, [target], take, lambda found: {self.stream: found}).read(block, [])

    ack = joined(Group.ack)
    nack = joined(Group.nack)
    ack_delete = joined(Group.ack_delete)
    claim = joined(Group.claim)
    autoclaim = joined(Group.autoclaim)
    set_id = joined(Group.set_id)
    create_consumer = joined(Group.create_consumer)
    delete_consumer = apart(Group.delete_consumer)
    destroy = apart(Group.destroy)

    pending = reading(Group.pending)
    consumers = reading(Group.consumers)
    info = reading(Group.info)
    lag = Property[Group, int](lambda group: group.lag)
    subjects = Property[Group, list[bytes]](lambda group: group.subjects)
    last_delivered_id = Property[Group, StreamID](lambda group: group.last_delivered_id)


class AsyncState:
    """The durable key-value space of a store: as raxlog.State, with methods for its operators."""

    __slots__ = ("_batched", "_plain", "_threads")

    def __init__(self, threads: Threads, plain: State) -> None:
        self._threads = threads
        self._plain = plain
        self._batched = State(threads.batch)

    get = reading(State.get)
    items = reading(State.rows)
    length = reading(State.__len__)
    set = joined(State.__setitem__)
    delete = joined(State.__delitem__)
