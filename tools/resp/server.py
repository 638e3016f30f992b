"""The server: where it listens, how many it serves, its settings, its end."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import time
from dataclasses import dataclass
from itertools import count

from ...storage.errors import InvalidArgument
from ...store import Store
from .commands import (  # noqa: F401 - they enter their commands
    connection,
    disk,
    fixed,
    groups,
    keys,
    lists,
    pubsub,
    scripts,
    streams,
    strings,
)
from .engine import Engine
from .replies import CommandError, encoded, quoted
from .session import Session
from .table import integer, text_of

_VERSIONS = {"5.0": "5.0.14", "7.0": "7.0.15", "7.2": "8.2.3"}  # by that of DUMP: the one that HELLO and INFO name
_CURSORS = 10_000
_GRACE = 5.0  # seconds for the commands that have begun, at the end


@dataclass
class Options:
    """How a server is run. The last four can be changed while it runs."""

    host: str | None = "127.0.0.1"
    port: int = 6379
    unix_socket: str | None = None
    redis_version: str = "7.2"
    clients: int = 10_000
    password: bytes | None = None
    request_limit: int = 512 << 20
    node_max_bytes: int = 4096
    node_max_entries: int = 100

    def require_safe(self) -> None:
        """InvalidArgument where other machines could connect, without a password."""
        if self.host is None or self.password is not None:
            return
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(self.host).is_loopback:
                return
        if self.host != "localhost":
            raise InvalidArgument(f"{self.host} can be reached from other machines, which could read and change all of "
                                  "the store: give a password (--requirepass), or listen on 127.0.0.1")


class Server:
    """A server over one store."""

    DATABASES = 16

    def __init__(self, store: Store, options: Options) -> None:
        options.require_safe()
        self.options = options
        self.version = _VERSIONS[options.redis_version]
        self.sessions: dict[int, Session] = {}
        self.monitors: set[Session] = set()
        self.began = time.time()
        self.engine = Engine(store)
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: list[asyncio.Server] = []
        self._number = self.answered = 0
        self._cursors = count(int(self.began) << 20)  # which no server on this store has given out before
        self._places: dict[int, bytes] = {}

    @property
    def port(self) -> int:
        """The port that it listens on, chosen by the system where 0 was given."""
        return int(self._listening[0].sockets[0].getsockname()[1])

    def database(self, word: bytes) -> int:
        """The database of that number. CommandError."""
        number = integer(word)
        if not 0 <= number < self.DATABASES:
            raise CommandError("ERR DB index is out of range")
        return number

    async def start(self) -> None:
        """Listen."""
        options = self.options
        if options.host is not None:
            self._listening.append(await asyncio.start_server(self._connected, options.host, options.port))
        if options.unix_socket is not None:
            self._listening.append(await asyncio.start_unix_server(self._connected, options.unix_socket))

    async def close(self) -> None:
        """Take no further client; end the sessions once what they have begun is done; close the store."""
        for one in self._listening:
            one.close()
        for session in self.sessions.values():
            session.is_closing = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_GRACE)
        await self.engine.close(_GRACE)

    async def connect(self, wire: socket.socket) -> None:
        """Serve a client whose connection is there already."""
        await self._connected(*await asyncio.open_connection(sock=wire))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self.sessions) >= self.options.clients:
            writer.write(encoded(CommandError("ERR max number of clients reached"), 2))
            writer.close()
            return
        self._number += 1
        session = self.sessions[self._number] = Session(self, self._number, reader, writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await session.serve()
        except asyncio.CancelledError:
            writer.close()  # the server ends
        finally:
            self._tasks.discard(task)
            self.monitors.discard(session)
            session.unsubscribe()
            del self.sessions[session.number]

    @property
    def received(self) -> int:
        """The clients so far."""
        return self._number

    def report(self, session: Session, words: list[bytes]) -> None:
        """Show a command to those that monitor, without its password."""
        if not self.monitors or words[0].lower() == b"monitor":
            return
        shown_words = {b"auth": 1, b"hello": 2}.get(words[0].lower(), len(words))
        shown = " ".join(quoted(word if at < shown_words else b"(redacted)") for at, word in enumerate(words))
        line = encoded(f"{time.time():.6f} [{session.database} {session.peer}] {shown}", 2)
        for one in self.monitors:
            one.push(line)

    def cursor_at(self, name: bytes) -> int:
        """A cursor for a SCAN that is to go on with that name. The last some thousands are known."""
        cursor = next(self._cursors)
        self._places[cursor] = name
        self._places.pop(cursor - _CURSORS, None)
        return cursor

    def place_of(self, cursor: int) -> bytes:
        """The name that a SCAN goes on with: the first, where the cursor is not known (any more)."""
        return self._places.get(cursor, b"")

    # -- settings -----------------------------------------------------------------------

    def settings(self) -> dict[bytes, bytes]:
        """What CONFIG GET shows."""
        options = self.options
        return {
            b"stream-node-max-bytes": b"%d" % options.node_max_bytes,
            b"stream-node-max-entries": b"%d" % options.node_max_entries,
            b"maxclients": b"%d" % options.clients, b"requirepass": options.password or b"",
            b"proto-max-bulk-len": b"%d" % options.request_limit, b"databases": b"%d" % self.DATABASES,
            b"notify-keyspace-events": str(self.engine.events).encode(),
            b"appendonly": b"yes", b"appendfsync": b"always", b"save": b"", b"timeout": b"0",
        }

    def set(self, name: bytes, value: bytes) -> None:
        """CONFIG SET of one."""
        limits = {b"stream-node-max-bytes": "node_max_bytes", b"stream-node-max-entries": "node_max_entries",
                  b"maxclients": "clients", b"proto-max-bulk-len": "request_limit"}
        if name in limits:
            number = integer(value, f"ERR CONFIG SET failed (possibly related to argument '{text_of(name)}') - "
                                    "argument couldn't be parsed into an integer")
            setattr(self.options, limits[name], max(0, number))
        elif name == b"notify-keyspace-events":
            self.engine.events.set(text_of(value))
        elif name == b"requirepass":
            self.options.password = value or None
        elif name not in self.settings():
            raise CommandError(f"ERR Unknown option or number of arguments for CONFIG SET - '{text_of(name)}'")


async def serve(store: Store, options: Options) -> Server:
    """A server that listens, in the running loop."""
    server = Server(store, options)
    await server.start()
    return server
