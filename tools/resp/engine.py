"""The engine: runs the commands of all clients on one store.

    writes   in one thread, in their order, many in a commit; replies go out once that is as safe as the store says
    reads    in another thread, beside them
    blocked  after each write, in the same transaction, those that wait for one of its words are tried again, first
             come, first served: before the next command. For other processes' commits each is in a line, too
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from ...storage.errors import RaxlogError, StoreError
from ...store import Store
from ...stream.entries.batch import Batch
from ...transaction import Calls
from ..aio.lane import Call, Lane
from ..aio.threads import Threads
from ..aio.waits import readiness
from .replies import NIL, CommandError, Nil
from .table import Command, Run

if TYPE_CHECKING:
    from .server import Server
    from .session import Session

_log = logging.getLogger("raxlog.resp")


class Block(NamedTuple):
    """The answer of a command that has found nothing, and is to wait."""

    words: list[bytes]  # with which it is tried again: no $ in them
    streams: list[tuple[bytes, bytes]]  # names and IDs that it waits for
    group: bytes | None
    claim_idle: float | None
    seconds: float  # 0: for ever


class Waiter:
    """A command that is blocked."""

    def __init__(self, number: int, session: Session, command: Command, future: asyncio.Future[object]) -> None:
        self.number = number  # in order of arrival
        self.session = session
        self.command = command
        self.future = future
        self.block = Block([], [], None, None, 0)
        self.served: object = None  # the transaction that has served it
        self.is_over = True  # not blocked yet, or not any more


class Outcome(NamedTuple):
    """A command's reply, and what blocked ones have got by it."""

    reply: object
    served: list[tuple[Waiter, object]]


class Engine:
    """The store of a server."""

    def __init__(self, store: Store) -> None:
        self.server: Server | None = None
        self.threads = Threads(store)
        direct, streams, pubsub = store.parts()
        self._loop = asyncio.get_running_loop()
        self._batch = Batch(direct)
        self._writing = Calls(streams, pubsub, self._batch)
        self.reading = Calls(streams, pubsub, direct)
        self._lane = Lane(f"commands on {store.path}", self._commit, 256)
        self._blocked: dict[bytes, dict[int, Waiter]] = {}
        self._numbers = count(1)

    async def close(self, timeout: float) -> None:
        """Complete what has begun, then close the store."""
        await self._lane.idle(timeout)
        self._lane.end()
        await self.threads.close(timeout)

    # -- for sessions -------------------------------------------------------------------

    def read(self, session: Session, command: Command, words: list[bytes]) -> asyncio.Future[object]:
        """Run a command that only reads, beside the writes."""
        run = self._run(session, self.reading)
        return self.threads.call("reads", partial(_guarded, command.handler, run, words))

    def write(self, session: Session, command: Command, words: list[bytes]) -> asyncio.Future[Outcome]:
        """Run a command as a part of the next commit."""
        waiter = Waiter(next(self._numbers), session, command, self._loop.create_future())

        def function() -> Outcome:
            run = self._run(session, self._writing)._replace(may_block=True)
            reply = _guarded(command.handler, run, words)
            if isinstance(reply, Block):
                self._register(waiter, reply)
                return Outcome(waiter, [])
            return Outcome(reply, self._serve(run, words))

        return self._lane.call(function).future

    def execute(self, session: Session, queued: list[tuple[Command, list[bytes]]],
                may_go: Callable[[Calls], bool]) -> asyncio.Future[Outcome]:
        """Run the commands of a MULTI in one transaction, unless they may not go: NIL then."""
        def function() -> Outcome:
            if not may_go(self._writing):
                return Outcome(NIL, [])
            replies: list[object] = []
            for command, words in queued:
                try:
                    replies.append(_guarded(command.handler, self._run(session, self._writing), words))
                except RaxlogError as error:
                    if self._batch.spoiled is not None:
                        raise
                    replies.append(failure(error))
            return Outcome(replies, self._serve(self._run(session, self._writing),
                                                [word for _, words in queued for word in words]))

        return self._lane.call(function).future

    async def wait(self, waiter: Waiter) -> object:
        """The reply to a command that is blocked; NIL after its time. Cancelled, it has taken nothing."""
        block = waiter.block
        deadline = None if not block.seconds else time.monotonic() + block.seconds
        watch = asyncio.create_task(self._watch(waiter))
        try:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            await asyncio.wait([waiter.future], timeout=left)
            if waiter.future.done() or not await self._withdraw(waiter):
                return await waiter.future
            return NIL
        finally:
            watch.cancel()
            if not waiter.future.done():
                self._lane.call(partial(self._remove, waiter))

    async def _watch(self, waiter: Waiter) -> None:
        """Try again when another process has committed."""
        block = waiter.block
        try:
            async with readiness(self.threads, block.streams, block.group, block.claim_idle, None) as ready:
                while not waiter.future.done() and await ready():
                    await self._lane.call(partial(self._serve_all, [waiter])).future
        except RaxlogError as error:
            if not waiter.future.done():
                waiter.future.set_result(failure(error))

    async def _withdraw(self, waiter: Waiter) -> bool:
        outcome = await self._lane.call(partial(self._remove, waiter)).future
        return outcome.reply is not None

    # -- in the lane's thread -----------------------------------------------------------

    def _run(self, session: Session, calls: Calls) -> Run:
        assert self.server is not None
        return Run(calls, session, self.server)

    def _commit(self, calls: list[Call[Outcome]]) -> None:
        self._batch.commit(calls)
        for call in calls:
            if call.error is None:
                for waiter, reply in call.result.served:
                    self._forget(waiter)
                    self._loop.call_soon_threadsafe(_resolve, waiter.future, reply)

    def _register(self, waiter: Waiter, block: Block) -> None:
        waiter.block = block
        waiter.is_over = False
        for name, _ in block.streams:
            self._blocked.setdefault(name, {})[waiter.number] = waiter

    def _forget(self, waiter: Waiter) -> None:
        waiter.is_over = True
        for name, _ in waiter.block.streams:
            line = self._blocked.get(name, {})
            line.pop(waiter.number, None)
            if not line:
                self._blocked.pop(name, None)

    def _remove(self, waiter: Waiter) -> Outcome:
        """Have it wait no more; the reply is None where it has been served."""
        was_blocked = not waiter.is_over and waiter.served is not self._batch.txn
        if was_blocked:
            self._forget(waiter)
        return Outcome(True if was_blocked else None, [])

    def _serve(self, run: Run, words: Iterable[bytes]) -> list[tuple[Waiter, object]]:
        """Try the commands again that wait for a stream of which one of these is the key."""
        if not self._blocked:
            return []
        names = set(map(run.name, words))
        if run.name(b"flushall") in names or run.name(b"flushdb") in names:
            names = set(self._blocked)
        lines = [line for name in names if (line := self._blocked.get(name))]
        waiters = {number: waiter for line in lines for number, waiter in line.items()}
        return self._serve_all([waiters[number] for number in sorted(waiters)]).served

    def _serve_all(self, waiters: list[Waiter]) -> Outcome:
        served: list[tuple[Waiter, object]] = []
        for waiter in waiters:
            if waiter.is_over or waiter.served is self._batch.txn:
                continue
            try:
                run = self._run(waiter.session, self._writing)._replace(waiter=waiter)
                reply = _guarded(waiter.command.handler, run, waiter.block.words)
            except RaxlogError as error:
                if self._batch.spoiled is not None:
                    raise
                reply = failure(error)
            if not isinstance(reply, Nil):
                waiter.served = self._batch.txn
                served.append((waiter, reply))
        return Outcome(None, served)


def _resolve(future: asyncio.Future[object], reply: object) -> None:
    if not future.done():
        future.set_result(reply)


def _guarded(handler: Callable[[Run, list[bytes]], object], run: Run, words: list[bytes]) -> object:
    try:
        return handler(run, words)
    except RaxlogError:
        raise
    except Exception as error:
        _log.exception("%r", words[:4])
        raise StoreError(f"internal error: {error!r}") from error


def failure(error: BaseException) -> CommandError:
    """An error as a client gets it."""
    if isinstance(error, CommandError):
        return error
    return CommandError(f"ERR {error}")
