"""A session: one client, from its connection to its end.

    bytes ─> requests, up to 256 ─> one after the other to the engine, without waiting in between ─> replies, in order

A pipeline that only reads runs beside the writers; one that writes runs whole in their thread, so that each command
sees what those before it have done, and shares its commit.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol, TypeAlias

from ...index.pubsub.channels import ChannelMessage, Subscriber
from ...storage.errors import RaxlogError
from ...storage.notices import report
from . import table
from .engine import LOG, BlockedCommand, Engine, Outcome, failure
from .keyspace import Keys
from .options import Options
from .replies import CommandError, Pieces, Push, bare, encoded
from .requests import FOREIGN, ForeignRequest, ProtocolError, RequestParser
from .table import ALONE, LOOKS, READS, SESSION, WRITES, Command

_AT_ONCE = 256  # requests
_VALUES_AT_ONCE = 16  # of those whose replies may have 16 MB; fewer, once they have
_CHUNK = 1 << 16
_PIECE = 1 << 20
_SUBSCRIBES = {letter + verb for letter in (b"", b"p", b"s") for verb in (b"subscribe", b"unsubscribe")}
_BLOCKS = {b"xread", b"xreadgroup", b"blpop", b"brpop"}
_ALTERS = {b"auth", b"hello", b"reset", b"select", b"watch", b"unwatch", *_SUBSCRIBES}  # how what follows is run
_WAITED_FOR = _BLOCKS | _ALTERS  # by what follows them
_UNBOUNDED = {b"keys", b"dump", b"xrange", b"xrevrange", b"xread"}  # the last three with no COUNT, or more than 999
_VALUES = {b"get", b"getset", b"getdel", b"getex", b"mget", b"lrange", b"lpop", b"rpop", b"xrange", b"xrevrange"}
_PATIENCE = 30.0  # seconds
_WHILE_SUBSCRIBED = {*_SUBSCRIBES, b"ping", b"quit", b"reset"}  # in RESP2
_OUTSIDE = {b"exec", b"discard", b"multi", b"watch", b"quit", b"reset"}  # what a MULTI does not queue
MOST_UNREAD = 32 << 20  # bytes of messages for a client that does not read them
_MOST_BEHIND = 32 << 20  # bytes that a client sends behind a command that waits
_OBJECT, _KEY = 64, 1 << 10  # bytes that a word takes besides, and about those of what is watched or subscribed to
_UNAUTHENTICATED = {b"auth", b"hello", b"quit", b"reset"}


class ServerInfo(Protocol):
    """What sessions and commands ask of their server: see Server."""

    options: Options
    engine: Engine
    sessions: dict[int, Session]
    monitors: set[Session]
    version: str
    began: float
    received: int
    answered: int
    DATABASES: int

    def database(self, word: bytes) -> int: ...
    def weigh(self, more: int) -> None: ...
    def warn_of_foreign(self, peer: str) -> None: ...
    def report(self, session: Session, words: list[bytes]) -> None: ...
    def cursor_at(self, name: bytes) -> int: ...
    def place_of(self, cursor: int) -> bytes: ...
    def settings(self) -> dict[bytes, bytes]: ...
    def set(self, name: bytes, value: bytes) -> None: ...


class Session:
    """The state of one client."""

    def __init__(self, server: ServerInfo, number: int, reader: asyncio.StreamReader,
                 writer: asyncio.StreamWriter) -> None:
        self.server = server
        self.number = number
        self.database: int = 0
        self.protocol: int = 2
        self.client_name: bytes = b""
        self.library: dict[bytes, bytes] = {}
        self.is_authenticated: bool = server.options.password is None
        self.is_closing: bool = False
        self.is_blocked: bool = False
        self.queue: list[tuple[Command, list[bytes]]] | None = None  # of a MULTI
        self._queued = 0  # bytes of it
        self.is_aborted: bool = False  # one of its commands was wrong
        self.watched: dict[bytes, object] = {}
        self.peer: str = _address(writer.get_extra_info("peername"))
        self._reader = reader
        self._writer = writer
        self._parser = RequestParser(server.options.request_limit, table.is_command)
        self._parser.is_trusted = self.is_authenticated
        self._error: ProtocolError | None = None
        self._next: list[bytes] | None = None  # a request that was not begun with those before it
        self._is_answering = False
        self.subscriber: Subscriber | None = None
        self._loop = asyncio.get_running_loop()
        self._values_at_once = _VALUES_AT_ONCE
        self._held: list[bytes] = []  # messages, until what is being answered is
        self._held_bytes = 0

    async def serve(self) -> None:
        """Answer until the client, or the server, ends the connection."""
        try:
            while not self.is_closing:
                requests = self._parsed()
                if requests:
                    await self._answer(requests)
                    continue
                data = await self._reader.read(_CHUNK)
                if not data:
                    return
                self._feed(data)
        except ForeignRequest:
            self.server.warn_of_foreign(self.peer)
        except ProtocolError as error:
            self._writer.write(encoded(CommandError(f"ERR Protocol error: {error}"), self.protocol))
        except OSError as error:
            bare(error)

    async def end(self) -> None:
        """Let go of all that it holds, and of the connection once the client has read what is written to it."""
        self.server.monitors.discard(self)
        self.unsubscribe()
        self.discard()
        self._parser, self._error, self._next = RequestParser(0), None, None
        self._writer.transport.set_write_buffer_limits(0)
        try:
            await self._drain(0)
        except OSError as error:  # that of the reader refers to what refers to the reader
            bare(error)
        finally:
            self._writer.close()
        self._loop.call_soon(self._let_go)  # behind what close() has begun

    def _let_go(self) -> None:
        """Drop the calls behind what a write of a lost connection met: asyncio keeps them with the error."""
        if self._reader.exception() is not None:  # it is closed, so nothing is waited for
            try:
                self._writer.wait_closed().send(None)
            except Exception as error:
                bare(error)

    def cut(self, why: str) -> None:
        """End the connection at once."""
        report(LOG, "warning", "the connection of client %d, %s, is ended: %s", self.number, self.peer, why)
        self.is_closing = True
        self._held.clear()
        self._writer.transport.abort()

    @property
    def is_gone(self) -> bool:
        """Whether there is no client any more to answer."""
        return self.is_closing or self._writer.is_closing()

    @property
    def weight(self) -> int:
        """Bytes that it holds, replies left out."""
        keys = len(self.watched) + (self.subscriber.subscriptions if self.subscriber is not None else 0)
        return (self._parser.held + self._queued + self._held_bytes + self._writer.transport.get_write_buffer_size()
                + keys * _KEY + sum(map(len, [self.client_name, *self.library.values()])))

    def _feed(self, data: bytes) -> None:
        self._parser.feed(data)
        self.server.weigh(len(data))

    def push(self, message: bytes) -> None:
        """Send what is no reply, not in between those of a pipeline; end a client that reads none of it."""
        transport = self._writer.transport
        if transport.is_closing():
            return
        if self._is_answering:
            self._held.append(message)
            self._held_bytes += len(message)
        else:
            transport.write(message)
        if self._held_bytes + transport.get_write_buffer_size() > MOST_UNREAD:
            self.cut("it lets too many messages wait")
        self.server.weigh(len(message))

    def listener(self) -> Subscriber:
        """The client's subscriber, made when it is first used."""
        if self.subscriber is None:
            self.subscriber = self.server.engine.store.channels.subscriber(callback=self._hear)
        return self.subscriber

    @property
    def is_subscribed(self) -> bool:
        """Whether it may get messages."""
        return self.subscriber is not None and self.subscriber.subscriptions > 0

    def listen_again(self) -> None:
        """Subscribe to what it was subscribed to, in the store that has been opened again."""
        before, self.subscriber = self.subscriber, None
        if before is not None:
            for subscribe, names in ((Subscriber.subscribe, before.channels), (Subscriber.psubscribe, before.patterns),
                                     (Subscriber.ssubscribe, before.shard_channels)):
                if names:
                    subscribe(self.listener(), *names)

    def unsubscribe(self) -> None:
        """End all subscriptions."""
        before, self.subscriber = self.subscriber, None
        if before is not None:
            self.server.engine.alone(before.close)

    def _hear(self, message: ChannelMessage) -> None:
        """A message has come, in a thread of its own."""
        parts = [message.kind.encode(), message.pattern, message.channel, message.data]
        reply = Push(part for part in parts if part is not None)
        self._loop.call_soon_threadsafe(lambda: self.push(encoded(reply, self.protocol)))

    def _pause(self) -> None:
        """What has been answered is sent: now messages may be."""
        self._is_answering = False
        requests, self._held, self._held_bytes = self._held, [], 0
        for message in requests:
            self.push(message)

    def reset(self) -> None:
        """Back to how it began, but for the connection."""
        self.discard()
        self.server.monitors.discard(self)
        self.unsubscribe()
        self.database, self.protocol, self.client_name = 0, 2, b""
        self.set_authenticated(self.server.options.password is None)

    def set_authenticated(self, is_authenticated: bool) -> None:
        """Whether it has said the password."""
        self.is_authenticated = self._parser.is_trusted = is_authenticated

    def discard(self) -> None:
        """End the MULTI, and watch nothing."""
        self.queue, self._queued, self.is_aborted, self.watched = None, 0, False, {}

    # -- requests -----------------------------------------------------------------------

    def _parsed(self) -> list[list[bytes]]:
        """The next requests, up to one that can block: what follows it waits for it; or one that can be long, alone."""
        requests: list[list[bytes]] = []
        values = 0
        if self._error is not None:
            raise self._error
        while len(requests) < _AT_ONCE:
            try:
                words, self._next = self._next or self._parser.next(), None
                if words is None:
                    break
                name = words[0].lower()
                if name in FOREIGN:
                    raise ForeignRequest
            except ProtocolError as error:
                if not requests:
                    raise
                self._error = bare(error)  # after the replies to these
                break
            is_long = name in _UNBOUNDED and _is_long(words)
            if is_long and requests:
                self._next = words
                break
            requests.append(words)
            values += name in _VALUES
            if is_long or name in _WAITED_FOR or values >= self._values_at_once:
                break
        return requests

    async def _answer(self, requests: list[list[bytes]]) -> None:
        """Begin all of them, then send their replies in order."""
        commands = [_command_of(words) for words in requests]
        self.server.answered += len(requests)
        writes = any(_blocking(words, command.kind) in (WRITES, ALONE) or command.name == "exec"
                     for words, command in zip(requests, commands, strict=True) if isinstance(command, Command))
        begun: list[tuple[object, int]] = []
        self._is_answering = True
        at = 0
        while at < len(requests) and not self.is_closing:
            words, command = requests[at], commands[at]
            appends = self._appends(requests, commands, at)
            if len(appends) > 1:
                assert isinstance(command, Command)
                begun.append((self.server.engine.write_all(self, command, appends), self.protocol))
                for words in appends:
                    self.server.report(self, words)
                at += len(appends)
                continue
            if words[0].lower() in _ALTERS:
                await asyncio.gather(*(outcome for outcome, _ in begun if isinstance(outcome, asyncio.Future)),
                                     return_exceptions=True)
            begun.append((self._begin(words, command, writes, len(requests) == 1), self.protocol))
            at += 1
        replies, largest = bytearray(), 0
        for outcome, protocol in begun:
            if len(replies) > _CHUNK or (replies and isinstance(outcome, asyncio.Future) and not outcome.done()):
                self._writer.write(bytes(replies))
                replies.clear()
            try:
                reply = await outcome if isinstance(outcome, asyncio.Future) else outcome
                if isinstance(reply, Outcome):
                    reply = reply.reply
                if isinstance(reply, BlockedCommand):
                    self._writer.write(bytes(replies))
                    replies.clear()
                    reply = await self._blocked(reply)
            except RaxlogError as error:
                reply = failure(error)
            pieces = reply if isinstance(reply, Pieces) else [encoded(reply, protocol)]
            largest = max(largest, size := sum(map(len, pieces)))
            if size > _PIECE:
                await self._send_large(bytes(replies), *pieces)
                replies.clear()
            else:
                replies += b"".join(pieces)
        self._values_at_once = 1 if largest > _PIECE else _VALUES_AT_ONCE
        self._writer.write(bytes(replies))
        self._pause()
        await self._drain()

    def _appends(self, requests: list[list[bytes]], commands: list[Command | CommandError],
                 at: int) -> list[list[bytes]]:
        """The XADDs in succession from that place on, which are one call; none where each is looked at."""
        if self.queue is not None or not self.is_authenticated or (self.protocol == 2 and self.is_subscribed):
            return []
        end, first = at, commands[at]
        if isinstance(first, Command) and first.together is not None:
            while end < len(requests) and commands[end] is first:
                end += 1
        return requests[at:end]

    async def _send_large(self, *parts: bytes) -> None:
        """Send piece by piece: a transport moves all that it holds with each piece that it sends."""
        for part in parts:
            for start in range(0, len(part), _PIECE):
                self._writer.write(memoryview(part)[start : start + _PIECE])
                await self._drain()

    async def _drain(self, limit: int = _CHUNK) -> None:
        """Wait until (nearly) all that is sent has been read; end a client that reads none of it."""
        transport = self._writer.transport
        if transport.is_closing():
            raise ConnectionResetError
        while (unread := transport.get_write_buffer_size()) > limit:
            try:
                await asyncio.wait_for(self._writer.drain(), _PATIENCE)
            except TimeoutError:
                if transport.get_write_buffer_size() >= unread:
                    self.cut("it reads nothing of its replies")
                    raise ConnectionResetError from None

    def _begin(self, words: list[bytes], command: Command | CommandError, in_writes: bool, is_alone: bool) -> object:
        """Begin a command: its reply, or the future of it."""
        try:
            if isinstance(command, CommandError):
                raise command
            name = words[0].lower()
            if not self.is_authenticated and name not in _UNAUTHENTICATED:
                raise CommandError("NOAUTH Authentication required.")
            if self.protocol == 2 and name not in _WHILE_SUBSCRIBED and self.is_subscribed:
                raise CommandError(f"ERR Can't execute '{command.name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING "
                                   "/ QUIT / RESET are allowed in this context")
            if self.queue is not None and name not in _OUTSIDE:
                if command.kind is ALONE:
                    raise CommandError("ERR Command not allowed inside a transaction")
                self.queue.append((command, words))
                self._queued += sum(map(len, words)) + _OBJECT * (len(words) + 3)
                self.server.report(self, words)
                return "QUEUED"
            try:
                return self._run(command, words, in_writes, is_alone)
            finally:
                self.server.report(self, words)
        except CommandError as error:
            is_wrong = isinstance(command, CommandError)  # also one that a MULTI does not queue
            if is_wrong and words[0].lower() == b"exec":
                self.discard()
                return CommandError(f"EXECABORT Transaction discarded because of: {str(error).removeprefix('ERR ')}")
            if self.queue is not None and (is_wrong or words[0].lower() not in _OUTSIDE):
                self.is_aborted = True
            return bare(error)

    def _run(self, command: Command, words: list[bytes], in_writes: bool, is_alone: bool) -> object:
        if command.kind is SESSION:
            return command.handler(table.Run(self.server.engine.reading, self), words)
        if is_alone and (command.name == "xtrim" or _is_long(words)):
            return self.server.engine.run_long(self, command, words)
        if _blocking(words, command.kind) in (READS, LOOKS) and not in_writes:
            return self.server.engine.read(self, command, words)
        return self.server.engine.write(self, command, words, words[0].lower() in _BLOCKS)

    async def _blocked(self, blocked: BlockedCommand) -> object:
        """Wait for the reply, and notice a client that leaves in the meantime."""
        self._pause()
        await self._drain()
        self.is_blocked = True
        wait = asyncio.create_task(self.server.engine.wait(blocked))
        listen = asyncio.create_task(self._reader.read(_CHUNK))
        try:
            while not wait.done():
                await asyncio.wait([wait, listen], return_when=asyncio.FIRST_COMPLETED)
                if listen.done() and not wait.done():
                    data = listen.result()
                    self._feed(data)
                    if self._parser.held > _MOST_BEHIND:
                        self.cut("it sends too much behind a command that waits")
                    if not data or self.is_gone:
                        raise ConnectionResetError
                    listen = asyncio.create_task(self._reader.read(_CHUNK))
            return wait.result()
        finally:
            self.is_blocked, self._is_answering = False, True
            for task in (wait, listen):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                self._parser.feed(await listen)


Run: TypeAlias = table.Run[Session]


def _command_of(words: list[bytes]) -> Command | CommandError:
    try:
        return table.find(words)
    except CommandError as error:
        return bare(error)


def _is_long(words: list[bytes]) -> bool:
    """Whether the reply may be of any size: it is made beside the others, and one at a time for a client."""
    lowered = [word.lower() for word in words]
    if lowered[0] not in _UNBOUNDED or b"block" in lowered:
        return False
    return b"count" not in lowered[:-1] or len(words[lowered.index(b"count") + 1]) > 3


def _blocking(words: list[bytes], kind: table.Kind) -> table.Kind:
    """An XREAD that may block runs among the writes, so that it misses none of them."""
    return WRITES if words[0].lower() == b"xread" and b"block" in map(bytes.lower, words) else kind


def _address(peer: object) -> str:
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unix"


def is_unchanged(keys: Keys, watched: dict[bytes, object]) -> bool:
    """Whether the keys are as they were watched."""
    return all(keys.version(name) == version for name, version in watched.items())
