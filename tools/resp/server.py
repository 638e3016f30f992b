"""The server: where it listens, how many it serves, its settings, its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import stat
from dataclasses import replace
from itertools import count

from ...storage import clocks
from ...storage.notices import report
from ...store import Store
from .commands import connection, disk, fixed, groups, keys, lists, pubsub, scripts, streams, strings  # noqa: F401
from .engine import LOG, Engine
from .options import Options
from .replies import CommandError, encoded, quoted
from .session import MOST_UNREAD, Session
from .table import integer, text_of

_VERSIONS = {"5.0": "5.0.14", "7.0": "7.0.15", "7.2": "8.2.3"}  # by that of DUMP: the one that HELLO and INFO name
_CURSORS = 10_000
_GRACE = 5.0  # seconds for the commands that have begun, at the end
_WEIGHED_EVERY = 32 << 20  # bytes that come
_WARN_EVERY = 60.0  # seconds
_KEEPALIVE = 300  # seconds of silence, after which the system asks whether a client is there, as Redis has it
_FILES = 100  # that are open besides those of clients


class Server:
    """A server over one store."""

    DATABASES = 16

    def __init__(self, store: Store, options: Options) -> None:
        options.require_safe()
        self.options = options
        self.version: str = _VERSIONS[options.redis_version]
        self.sessions: dict[int, Session] = {}
        self.monitors: set[Session] = set()
        self.began: float = clocks.wall_ns() / 1e9
        self.engine: Engine = Engine(store)
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: list[asyncio.Server] = []
        self.received = self.answered = self._unweighed = 0  # clients, requests; bytes
        self._warned = -_WARN_EVERY
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
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY:
            options.clients = max(1, min(options.clients, hard - _FILES))
        if soft < options.clients + _FILES:
            resource.setrlimit(resource.RLIMIT_NOFILE, (options.clients + _FILES, hard))
        if options.host is not None:
            self._listening.append(await asyncio.start_server(self._connected, options.host, options.port))
            for listening in self._listening[0].sockets:  # connections inherit it
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE)
        if options.unix_socket is not None:
            self._listening.append(await asyncio.start_unix_server(self._connected, sock=_bound(options.unix_socket)))

    async def close(self) -> None:
        """Take no further client; end the sessions once what they have begun is done; close the store."""
        for listener in self._listening:
            listener.close()
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
        self.received += 1
        session = self.sessions[self.received] = Session(self, self.received, reader, writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await session.serve()
        except asyncio.CancelledError:
            writer.close()  # the server ends
        finally:
            await session.end()
            self._tasks.discard(task)
            del self.sessions[session.number]

    def weigh(self, more: int) -> None:
        """So many bytes have come: end the clients that have it hold the most, where all have it hold too much."""
        self._unweighed += more
        if self._unweighed < min(_WEIGHED_EVERY, self.options.clients_limit or _WEIGHED_EVERY):
            return
        self._unweighed = 0
        weights = {session: session.weight for session in self.sessions.values() if not session.is_gone}
        total = sum(weights.values())
        for session in sorted(weights, key=weights.__getitem__, reverse=True):
            if total <= (self.options.clients_limit or total):
                break
            session.cut("all clients together have too much held, and it the most (maxmemory-clients)")
            total -= weights[session]

    def warn_of_foreign(self, peer: str) -> None:
        """Log that a client speaks HTTP; once a minute."""
        if clocks.elapsed() - self._warned >= _WARN_EVERY:
            self._warned = clocks.elapsed()
            report(LOG, "warning", "%s has sent a request of HTTP (POST or Host:), and was ended: a page in a browser "
                   "of this machine may try to send commands", peer)

    def report(self, session: Session, words: list[bytes]) -> None:
        """Show a command to those that monitor, without its password."""
        if not self.monitors or words[0].lower() == b"monitor":
            return
        if sum(map(len, words)) > MOST_UNREAD:
            for monitor in list(self.monitors):
                monitor.cut("it monitors, and a command is larger than what may wait for it")
            return
        shown_words = {b"auth": 1, b"hello": 2}.get(words[0].lower(), len(words))
        shown = " ".join(quoted(word if at < shown_words else b"(redacted)") for at, word in enumerate(words))
        line = encoded(f"{clocks.wall_ns() / 1e9:.6f} [{session.database} {session.peer}] {shown}", 2)
        for monitor in self.monitors:
            monitor.push(line)

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
            b"maxclients": b"%d" % options.clients, b"maxmemory-clients": b"%d" % options.clients_limit,
            b"requirepass": options.password or b"",
            b"proto-max-bulk-len": b"%d" % options.request_limit, b"databases": b"%d" % self.DATABASES,
            b"notify-keyspace-events": str(self.engine.events).encode(),
            b"appendonly": b"yes", b"appendfsync": b"always", b"save": b"", b"timeout": b"0",
        }

    def set(self, name: bytes, value: bytes) -> None:
        """CONFIG SET of one."""
        limits = {b"stream-node-max-bytes": "node_max_bytes", b"stream-node-max-entries": "node_max_entries",
                  b"maxclients": "clients", b"maxmemory-clients": "clients_limit",
                  b"proto-max-bulk-len": "request_limit"}
        if name in limits:
            number = integer(value, f"ERR CONFIG SET failed (possibly related to argument '{text_of(name)}') - "
                                    "argument couldn't be parsed into an integer")
            setattr(self.options, limits[name], max(0, number))
        elif name == b"notify-keyspace-events":
            self.engine.events.set(text_of(value))
        elif name == b"requirepass":
            replace(self.options, password=value or None).require_safe()
            self.options.password = value or None
        elif name not in self.settings():
            raise CommandError(f"ERR Unknown option or number of arguments for CONFIG SET - '{text_of(name)}'")


def _bound(path: str) -> socket.socket:
    """A Unix socket at that path, for its owner alone from before it listens."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.stat(path).st_mode):
            os.remove(path)
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(path)
    os.chmod(path, 0o600)
    return bound


async def serve(store: Store, options: Options) -> Server:
    """A server that listens, in the running loop."""
    server = Server(store, options)
    await server.start()
    return server
