"""The engine: runs the commands of all clients on one store.

    writes   in one thread, in their order, many in a commit; replies go out once that is as safe as the store says
    reads    in another thread, beside them; what may take long in a third
    blocked  after each write, in the same transaction, those that wait for one of its words are tried again, first
             come, first served: before the next command. For other processes' commits each is in a line, too
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from itertools import count, groupby
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from ...index.pubsub.channels import publication
from ...storage import clocks, errors
from ...storage.engine.open_options import BYTES
from ...storage.errors import RaxlogError, StoreClosed, StoreError
from ...storage.log.transaction import WriteTransaction
from ...storage.notices import report
from ...store import Store, parts
from ...stream.entries.batch import BatchSource
from ...stream.entries.session import SnapshotSource, ask
from ...stream.group.waiter import Condition
from ...stream.state import State, first_key_from, row_of
from ...transaction import CommitScope
from ..aio.serial_executor import ExecutorCall, SerialExecutor, run_each
from ..aio.threads import Threads
from ..aio.waits import Look, Readiness, readiness
from .events import Events
from .keyspace import DUE, NEVER, Keys, due_at
from .replies import NIL, CommandError, Encoded, Nil, Pieces, bare, encoded, in_pieces
from .table import ALONE, LOOKS, Client, Command, Run

T = TypeVar("T")

_EXPIRE_EVERY = 0.1  # seconds
_AFTER_ERROR = 1.0
_EXPIRE_AT_ONCE = 256  # keys
_FIRST_DUE = Condition(first_key_from, DUE)

LOG = "raxlog.resp"


class Block(NamedTuple):
    """The answer of a command that has found nothing, and is to wait."""

    words: list[bytes]  # with which it is tried again: no $ in them
    streams: list[tuple[bytes, bytes]]  # names and IDs that it waits for; of lists names only
    group: bytes | None
    claim_idle: float | None
    seconds: float  # 0: for ever
    rows: tuple[bytes, ...] = ()  # of the state: the heads of lists


class BlockedCommand:
    def __init__(self, number: int, session: Client, command: Command, future: asyncio.Future[object]) -> None:
        self.number = number  # in order of arrival
        self.session = session
        self.command = command
        self.future = future
        self.block: Block = Block([], [], None, None, 0)
        self.served: object = None  # the transaction that has served it
        self.is_over = True  # not blocked yet, or not any more


class Outcome(NamedTuple):
    """A command's reply, and what blocked ones have got by it."""

    reply: object
    served: list[tuple[BlockedCommand, object]]


class _Unflushed:
    """The Source of the state in a batch: nothing has to be flushed so that its rows can be read."""

    buffer = None
    lock_timeout = 0.0

    def __init__(self, batch: BatchSource) -> None:
        self._batch = batch
        self.env = batch.env
        self.submit = batch.submit

    def read(self) -> nullcontext[WriteTransaction]:
        assert self._batch.txn is not None
        return nullcontext(self._batch.txn)


class Engine:
    def __init__(self, store: Store) -> None:
        self.threads: Threads = Threads(store)
        self._loop = asyncio.get_running_loop()
        self._executor = SerialExecutor(f"commands on {store.path}", self._commit, 256)
        self._blocked: dict[bytes, dict[int, BlockedCommand]] = {}
        self._numbers = count(1)
        self.events: Events = Events()
        self._expiring: asyncio.Future[Outcome] | None = None
        self._timer = self._loop.create_task(self._keep_time())
        self._use(store)

    def _use(self, store: Store) -> None:
        source, streams, pubsub = parts(store)
        self.store = store
        self._batch = BatchSource(source)
        self._writing = Keys(CommitScope(streams, pubsub, self._batch), State(_Unflushed(self._batch)),
                             partial(self.events.publish, publish=self.publish), self._batch)
        self.reading: Keys = Keys(CommitScope(streams, pubsub, source), store.state,
                            partial(self.events.publish, publish=store.channels.publish))
        self.is_open: bool = True

    async def close(self, timeout: float) -> None:
        """Complete what has begun, then close the store."""
        self._timer.cancel()
        await self._executor.idle(timeout)
        self._executor.end()
        try:
            await self.threads.close(timeout)
        except StoreError:  # a call has begun that cannot be broken off; the others have been withdrawn
            await self.threads.close(math.inf)

    # -- for sessions -------------------------------------------------------------------

    def read(self, session: Client, command: Command, words: list[bytes]) -> asyncio.Future[object]:
        """Run a command that only reads, beside the writes."""
        if not self.is_open or self._expires():
            return self.write(session, command, words)
        return self.threads.call("reads", partial(self._run_apart, session, command, words))

    def run_long(self, session: Client, command: Command, words: list[bytes]) -> asyncio.Future[Pieces]:
        """Run a command that may take long beside all others, with commits of its own."""

        def reply() -> Pieces:
            return in_pieces(self._run_apart(session, command, words, is_long=True), session.protocol)

        async def run() -> Pieces:
            if self._expires() and self._expiring is not None:
                await asyncio.wait([self._expiring])
            return await self.threads.call("others", reply)

        return self._loop.create_task(run())

    def write(self, session: Client, command: Command, words: list[bytes],
              may_block: bool = False) -> asyncio.Future[object]:
        """Run a command as a part of the next commit, or between two: its reply, or an Outcome."""
        self._expires()
        if command.kind is ALONE:
            return self.alone(partial(self._run_apart, session, command, words))
        blocked = (BlockedCommand(next(self._numbers), session, command, self._loop.create_future())
                   if may_block else None)

        def function() -> Outcome:
            run = Run(self._writing, session, may_block)
            reply = _guarded(command.handler, run, words)
            if isinstance(reply, Block):
                assert blocked is not None
                self._register(blocked, reply)
                return Outcome(blocked, [])
            return Outcome(reply, self._serve(run, words) if self._blocked else [])

        future: asyncio.Future[Any] = self._executor.call(function).future
        return future

    def write_all(self, session: Client, command: Command, requests: list[list[bytes]]) -> asyncio.Future[Outcome]:
        """Run a command many times as one call: all replies, encoded. One that is refused costs the others nothing.

        For a command that is refused before it changes anything. What fails else fails for all of them.
        """
        self._expires()

        def function() -> Outcome:
            run = Run(self._writing, session)
            replies: list[bytes] = []
            served: list[tuple[BlockedCommand, object]] = []
            at = 0
            while at < len(requests):
                if command.together is not None and not self._blocked:
                    some, count = _guarded(command.together, run, requests, at)
                    if count:
                        replies.append(some)
                        at += count
                        continue
                words = requests[at]
                at += 1
                try:
                    reply = _guarded(command.handler, run, words)
                except RaxlogError as error:
                    if self.is_spoiled:
                        raise
                    reply = failure(error)
                else:
                    served += self._serve(run, words) if self._blocked else []
                replies.append(encoded(reply, session.protocol))
            return Outcome(Encoded(b"".join(replies)), served)

        return self._executor.call(function).future

    @property
    def is_spoiled(self) -> bool:
        """Whether the call that is applied has failed half way, and is to be undone."""
        return self._batch.spoiled is not None

    def alone(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Call a function that makes its own commits, among the writes."""
        return self._executor.call(function, is_alone=True).future

    def reopen(self, sessions: Iterable[Client]) -> None:
        """Close the store, and open it again from the disk, for these. In a command that runs alone."""
        options = parts(self.store)[0].env.options
        hold, held = threading.Event(), threading.Semaphore(0)

        def wait() -> None:
            held.release()
            hold.wait()

        for executor in ("reads", "others"):
            self._loop.call_soon_threadsafe(self.threads.call, executor, wait)
            held.acquire()
        self.is_open = False
        try:
            self.store.close()
            store = Store.open(self.store.path, durability=options.durability, encoding=BYTES)
            self.threads.use(store)
            self._use(store)
            for session in sessions:
                session.listen_again()
        finally:
            hold.set()

    def publish(self, channel: bytes, message: bytes, is_shard: bool = False) -> int:
        """PUBLISH, in a command that writes."""
        return self._batch.submit(publication(self.store.channels, channel, message, is_shard=is_shard))

    def execute(self, session: Client, queued: list[tuple[Command, list[bytes]]],
                may_go: Callable[[Keys], bool]) -> asyncio.Future[Outcome]:
        """Run the commands of a MULTI in one transaction, unless they may not go: NIL then."""
        self._expires()

        def function() -> Outcome:
            if not may_go(self._writing):
                return Outcome(NIL, [])
            replies = [self._tried(command, Run(self._writing, session), words) for command, words in queued]
            return Outcome(replies, self._serve(Run(self._writing, session),
                                                [word for _, words in queued for word in words]))

        return self._executor.call(function).future

    async def wait(self, blocked: BlockedCommand) -> object:
        """The reply to a command that is blocked; NIL after its time. Cancelled, it has taken nothing."""
        block = blocked.block
        deadline = None if not block.seconds else clocks.elapsed() + block.seconds
        watch = asyncio.create_task(self._watch(blocked))
        try:
            remaining = None if deadline is None else max(0.0, deadline - clocks.elapsed())
            await asyncio.wait([blocked.future], timeout=remaining)
            if blocked.future.done() or not await self._withdraw(blocked):
                return await blocked.future
            return NIL
        finally:
            watch.cancel()
            if not blocked.future.done():
                self._executor.call(partial(self._remove, blocked))

    async def _watch(self, blocked: BlockedCommand) -> None:
        """Try again when another process has committed."""
        store = self.store
        try:
            async with self._readiness(blocked.block) as ready:
                while not blocked.future.done() and await ready():
                    await self._executor.call(partial(self._serve_all, [blocked])).future
        except StoreClosed:
            await self.alone(lambda: None)  # behind what has closed it
            if store is not self.store:
                await self._watch(blocked)
        except RaxlogError as error:
            if not blocked.future.done():
                blocked.future.set_result(failure(error))

    def _readiness(self, block: Block) -> Readiness[Any]:
        if not block.rows:
            return readiness(self.threads, block.streams, block.group, block.claim_idle, None)
        rows = [Condition(row_of, row) for row in block.rows]

        async def look() -> Look[bool]:
            seen = await self.threads.call("reads", partial(
                ask, self.threads.source, lambda txn: {row: row.value(txn) for row in rows}))
            return any(seen.values()), seen, None

        return Readiness(self.threads, look, math.inf)

    async def _withdraw(self, blocked: BlockedCommand) -> bool:
        outcome = await self._executor.call(partial(self._remove, blocked)).future
        return outcome.reply is not None

    # -- keys that go -------------------------------------------------------------------

    def _expires(self) -> bool:
        """Whether keys are on their way out, whose time has come: what begins now runs behind that."""
        if self._expiring is None and clocks.now_ms() >= self._writing.next_due:
            self._expiring = self._executor.call(self._expire).future
            self._expiring.add_done_callback(self._expired)
        return self._expiring is not None

    def _expire(self) -> Outcome:
        return Outcome(None, self._serve_names(self._writing.delete_due(_EXPIRE_AT_ONCE)))

    def _expired(self, expiring: asyncio.Future[Outcome]) -> None:
        self._expiring = None
        if not expiring.cancelled() and expiring.exception() is not None:
            report(LOG, "error", "expiring keys: %s", expiring.exception())

    async def _keep_time(self) -> None:
        """Notice the times that other processes have given keys, and let keys go that are not asked for."""
        while True:
            try:
                async with Readiness(self.threads, self._look_at_times, math.inf) as changed:
                    await changed()  # finds nothing to return: goes on until an error
            except StoreClosed:  # it is being opened again, or the server ends
                await asyncio.sleep(_EXPIRE_EVERY)
            except Exception as error:  # of whatever kind: else no key would go any more that is not asked for
                report(LOG, "error", "looking for keys whose time has come", error=error)
                await asyncio.sleep(_AFTER_ERROR)

    async def _look_at_times(self) -> Look[bool]:
        await asyncio.sleep(_EXPIRE_EVERY)  # however often the store changes
        keys = self._writing
        first = await self.threads.call("reads", partial(
            ask, self.threads.source, partial(first_key_from, start=DUE)))
        at = due_at(first)
        keys.next_due = min(keys.next_due, at)
        self._expires()
        again = None if at == NEVER else clocks.monotonic() + max(0.0, at - clocks.now_ms()) / 1000
        return False, {_FIRST_DUE: first}, again

    # -- in the executor's thread -------------------------------------------------------

    def _run_apart(self, session: Client, command: Command, words: list[bytes], is_long: bool = False) -> object:
        if command.kind is LOOKS:
            source, streams, pubsub = parts(self.store)
            with source.read() as txn:
                snapshot = SnapshotSource(source.env, txn)
                keys = Keys(CommitScope(streams, pubsub, snapshot), State(snapshot))
                return _guarded(command.handler, Run(keys, session), words)
        return _guarded(command.handler, Run(self.reading, session, is_long=is_long), words)

    def _commit(self, calls: list[ExecutorCall[Any]]) -> None:
        for is_alone, some in groupby(calls, attrgetter("is_alone")):
            (run_each if is_alone else self._commit_batch)(list(some))

    def _commit_batch(self, calls: list[ExecutorCall[Outcome]]) -> None:
        self._batch.commit(calls)
        for call in calls:
            if call.error is None:
                for blocked, reply in call.result.served:
                    self._forget(blocked)
                    self._loop.call_soon_threadsafe(_resolve, blocked.future, reply)

    def _tried(self, command: Command, run: Run[Client], words: list[bytes]) -> object:
        """The reply of a command among others; its error, where it has changed nothing and they need not be undone."""
        txn = self._batch.txn
        assert txn is not None
        txn.flush()  # so that what the command reads changes nothing
        before = txn.changes
        try:
            return _guarded(command.handler, run, words)
        except RaxlogError as error:
            if not txn.is_untouched(before, error):
                raise
            return failure(error)

    def _register(self, blocked: BlockedCommand, block: Block) -> None:
        blocked.block = block
        blocked.is_over = False
        for name, _ in block.streams:
            self._blocked.setdefault(name, {})[blocked.number] = blocked

    def _forget(self, blocked: BlockedCommand) -> None:
        blocked.is_over = True
        for name, _ in blocked.block.streams:
            line = self._blocked.get(name, {})
            line.pop(blocked.number, None)
            if not line:
                self._blocked.pop(name, None)

    def _remove(self, blocked: BlockedCommand) -> Outcome:
        """Have it wait no more; the reply is None where it has been served."""
        was_blocked = not blocked.is_over and blocked.served is not self._batch.txn
        if was_blocked:
            self._forget(blocked)
        return Outcome(True if was_blocked else None, [])

    def _serve(self, run: Run[Client], words: Iterable[bytes]) -> list[tuple[BlockedCommand, object]]:
        """Try the commands again that wait for a stream of which one of these is the key."""
        if not self._blocked:
            return []
        names = set(map(run.name, words))
        if run.name(b"flushall") in names or run.name(b"flushdb") in names:
            names = set(self._blocked)
        return self._serve_names(names)

    def _serve_names(self, names: Iterable[bytes]) -> list[tuple[BlockedCommand, object]]:
        lines = [line for name in names if (line := self._blocked.get(name))]
        blocked_commands = {number: blocked for line in lines for number, blocked in line.items()}
        return self._serve_all([blocked_commands[number] for number in sorted(blocked_commands)]).served

    def _serve_all(self, blocked_commands: list[BlockedCommand]) -> Outcome:
        served: list[tuple[BlockedCommand, object]] = []
        for blocked in blocked_commands:
            if blocked.is_over or blocked.served is self._batch.txn:
                continue
            run = Run(self._writing, blocked.session, is_again=True)
            reply = self._tried(blocked.command, run, blocked.block.words)
            if not isinstance(reply, Nil):
                blocked.served = self._batch.txn
                served.append((blocked, reply))
        return Outcome(None, served)


def _resolve(future: asyncio.Future[object], reply: object) -> None:
    if not future.done():
        future.set_result(reply)


def _guarded(handler: Callable[..., T], run: Run[Client], words: list[Any], *more: int) -> T:
    try:
        return handler(run, words, *more)
    except RaxlogError:
        raise
    except Exception as error:
        report(LOG, "error", "%r", words[:4], error=error)
        raise StoreError(f"internal error: {error!r}") from error


_IN_REDIS_WORDS: dict[type, str] = {
    errors.NoStream: "ERR no such key",
    errors.IDZero: "ERR The ID specified in XADD must be greater than 0-0",
    errors.IDTooSmall: "ERR The ID specified in XADD is equal or smaller than the target stream top item",
    errors.StreamExhausted: "ERR The stream has exhausted the last possible ID, unable to add more items",
    errors.IDBelowDeleted: "ERR The ID specified in XSETID is smaller than current max_deleted_entry_id",
    errors.IDBelowEntries: "ERR The ID specified in XSETID is smaller than the target stream top item",
    errors.CountTooSmall: "ERR The entries_added specified in XSETID is smaller than the target stream length",
    errors.GroupExists: "BUSYGROUP Consumer Group name already exists",
    errors.DumpChecksum: "ERR DUMP payload version or checksum are wrong",
    errors.InvalidDump: "ERR Bad data format",
}


def failure(error: BaseException) -> CommandError:
    """An error as a client gets it."""
    bare(error)
    if isinstance(error, CommandError):
        return error
    words = next((_IN_REDIS_WORDS[kind] for kind in type(error).__mro__ if kind in _IN_REDIS_WORDS), f"ERR {error}")
    return CommandError(words)
