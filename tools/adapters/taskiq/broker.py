"""The broker: a task that is sent is an entry of a stream, a worker process a consumer of its group.

    kiq ── append; defer, by the label delay ──> stream
                                                   │ read, some at once; claim_idle: from killed workers
    given back, after 0.1 s or at the end  <─── fetched
                                                   │ taskiq has a slot free
    given back at the end  <──────────────────── held ── run ──> acknowledged: deleted
                                                   ^
                                      beat: a thread that renews the leases, also while a task blocks the loop

An entry is held as long as taskiq refers to its acknowledgement. Where taskiq drops that without a call (a middleware
has raised, say), its lease ends, and the task comes again.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, MutableMapping
from contextlib import suppress
from functools import partial
from typing import Any, Self
from weakref import ref

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from ..storage.engine.open_options import BYTES
from ..storage.errors import InvalidArgument, LockTimeout, NotOwner, RaxlogError, StoreClosed, StoreFull
from ..storage.notices import report
from ..storage.threads import start
from ..stream.group.dead_letters import bury
from ..stream.jobs.texts import described
from ..stream.node.arguments import duration_ms, whole
from ..stream.node.stream_id import StreamID
from ..stream.node.typed import Entry
from ..tools.aio.handles import AsyncStore
from ..tools.aio.handles import open as open_store

_DATA = b"data"  # the field of an entry that holds taskiq's message
_SHORTEST = 0.5  # seconds of a lease
_MOST = 100  # entries of a read
_LONG = 0.1  # seconds after which what waits for a slot is given back
_AGAIN = 1.0  # seconds until a read that a full disk, or a lock, has prevented is tried again



class RaxlogBroker(AsyncBroker):
    """A taskiq broker whose queue is in a store, which clients and any number of worker processes open.

    ``path``      of the store, created if it does not exist
    ``stream``    the queue, which holds only tasks; ``group``: its workers
    ``lease``     seconds after which other workers take over the tasks of a killed worker; a living worker renews
                  its leases, so a task may take longer
    ``max_deliveries``  how often a task is delivered if its workers die; then it goes to the group's dead letters

    The label ``delay`` makes a task come that many seconds later. startup() opens the store for the loop in which it
    is called. InvalidArgument for a lease below 0.5 s.
    """

    def __init__(self, path: str | os.PathLike[str], stream: str = "taskiq", group: str = "workers", *,
                 lease: float = 30.0, max_deliveries: int = 20) -> None:
        super().__init__()
        whole("max_deliveries", max_deliveries, 1)
        if duration_ms("lease", lease) < 1000 * _SHORTEST:
            raise InvalidArgument(f"lease={lease!r} must be {_SHORTEST} seconds or more")
        self._place = path, stream, group
        self._lease = lease
        self._max_deliveries = max_deliveries
        self._queue: TaskQueue | None = None

    async def startup(self) -> None:
        """Open the store, and create the store, stream and group if they do not exist."""
        if self._queue is None:
            self._queue = await TaskQueue.open(*self._place)
        await super().startup()

    async def shutdown(self) -> None:
        """Give back the tasks that this process has not acknowledged, and close the store."""
        try:
            await super().shutdown()
        finally:
            queue, self._queue = self._queue, None
            if queue is not None:
                await queue.close()

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task: it is on disk when this returns."""
        queue, fields, delay = opened(self._queue), {_DATA: message.message}, message.labels.get("delay")
        if delay in (None, "None"):  # the latter by with_labels(delay=None)
            await queue.stream.append(fields)
        else:
            name = queue.stream.name
            await queue.store.transact(lambda tx: tx.stream(name).defer(fields, delay=float(delay)))

    def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield the tasks, each as soon as this process has a slot for it."""
        return opened(self._queue).messages(self._lease, self._max_deliveries)


class TaskQueue:
    """A stream and its group in an open store, and what this process holds of it. For tasks of one loop."""

    def __init__(self, store: AsyncStore, stream: str, group: str) -> None:
        self.store = store
        self.stream = store.stream(stream)
        self._plain = store.plain.stream(stream).group(group)
        self.group = self.stream.group(group)
        self._consumer = f"{os.uname().nodename}-{os.getpid()}-{os.urandom(3).hex()}".encode()
        self._held: dict[StreamID, ref[partial[Any]]] = {}
        self._ended = threading.Event()
        self._beats: list[threading.Thread] = []

    @classmethod
    async def open(cls, path: str | os.PathLike[str], stream: str, group: str) -> Self:
        """Open the store, and create what is missing of store, stream and group."""
        store = await open_store(path, encoding=BYTES)
        await store.stream(stream).create_group(group, "0", exist_ok=True, create_stream=True)
        return cls(store, stream, group)

    async def close(self) -> None:
        """Release what is held, so that the delivery does not count, and close the store."""
        self._ended.set()
        for beat in self._beats:
            await asyncio.to_thread(beat.join)
        await self._release(self._held)
        with suppress(RaxlogError):  # something is pending with it still
            await self.group.delete_consumer(self._consumer)
        await self.store.aclose()

    async def messages(self, lease: float, max_deliveries: int) -> AsyncGenerator[AckableMessage, None]:
        """Messages to be run and acknowledged, read as fast as they are asked for."""
        if not self._beats:
            beat = threading.Thread(target=self._renew, args=(lease / 4,), name="raxlog taskiq: beat", daemon=True)
            start(beat)
            self._beats.append(beat)
        loop = asyncio.get_running_loop()
        fetched: dict[StreamID, Entry] = {}
        count = 1
        try:
            while True:
                fetched.update((entry.id, entry) for entry in await self._read(count, lease))
                began, late = loop.time(), loop.call_later(_LONG, self._release, fetched)
                while fetched:
                    entry = fetched.pop(next(iter(fetched)))
                    if entry.deliveries > max_deliveries:
                        await self._bury(entry)
                    else:
                        yield self._hold(entry)
                late.cancel()
                count = min(_MOST, 2 * count) if loop.time() - began < _LONG else max(1, count // 2)
        finally:
            await self._release(fetched)

    async def _read(self, count: int, lease: float) -> list[Entry]:
        while True:
            try:
                return await self.group.read(self._consumer, count, timeout=None, claim_idle=lease)
            except (StoreFull, LockTimeout) as error:
                report("raxlog.taskiq", "warning", "%s: %s; trying again", type(error).__name__, error)
                await asyncio.sleep(_AGAIN)

    def _hold(self, entry: Entry) -> AckableMessage:
        ack = partial(self._acknowledge, entry.id)
        self._held[entry.id] = ref(ack)
        return AckableMessage(data=entry.fields.get(_DATA, b""), ack=ack)

    async def _acknowledge(self, sid: StreamID) -> None:
        self._held.pop(sid, None)
        try:
            await self.group.ack_delete(sid, consumer=self._consumer)
        except NotOwner:
            report("raxlog.taskiq", "warning",
                   "%s was taken over while it ran here, which was stopped for longer than its lease", sid)

    async def _bury(self, entry: Entry) -> None:
        why = f"delivered {entry.deliveries} times, and no worker has come to its end"
        report("raxlog.taskiq", "warning", "%s goes to the dead letters: %s", entry.id, why)
        try:
            await self.store.run(bury, self._plain.dead_letters, self._consumer, entry, "exhausted", why, "")
            await self.stream.delete(entry.id)
        except Exception as error:  # whatever one entry does, the others are delivered
            report("raxlog.taskiq", "warning", "%s stays pending until its lease ends: %s", entry.id, described(error))

    def _release(self, entries: MutableMapping[StreamID, Any]) -> asyncio.Future[Any]:
        """Give entries back, their delivery does not count. What cannot be is taken over when its lease ends."""
        calls = [self.group.nack(sid, mode="silent", consumer=self._consumer) for sid in entries]
        entries.clear()
        return asyncio.gather(*calls, return_exceptions=True)

    def _renew(self, period: float) -> None:
        while not self._ended.wait(period):
            for sid in list(self._held):
                ack = self._held.get(sid)
                if ack is not None and ack() is None:
                    self._held.pop(sid, None)
            with suppress(Exception):  # a full disk, or a lock: tried again
                self._plain.renew(self._consumer, *list(self._held))


def opened(queue: TaskQueue | None) -> TaskQueue:
    """The queue; StoreClosed where there is none."""
    if queue is None:
        raise StoreClosed("the store is not open here: await broker.startup() before, in this loop")
    return queue
