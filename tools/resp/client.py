"""A client of redis-py on an open store, in one process: ``raxlog.redis_client(store)``.

    redis.Redis ── connection (connections.py) ══ pair of sockets ══ session ── server, its loop in a thread of its own

The server has a share of the store, as a second ``raxlog.open`` of the same path has. It begins with the first
connection, and ends with the client.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import weakref
from concurrent.futures import Future
from typing import TYPE_CHECKING, Literal, overload

from ...storage import fork_hooks
from ...storage.engine.open_options import BYTES
from ...storage.errors import NotInstalled
from ...storage.notices import noted
from ...storage.threads import start
from ...storage.tree.lmdb_errors import translated
from ...store import Store, parts
from .options import Options
from .server import Server

if TYPE_CHECKING:
    import redis
    import redis.asyncio


class Door:
    """A server that listens nowhere: what connects to it is handed over."""

    def __init__(self, store: Store) -> None:
        self._path = store.path
        self._options = parts(store)[0].env.options
        self._lock = threading.Lock()
        self._forks = -1  # of the process that it runs in
        self._thread = threading.Thread()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Server | None = None
        self._ends: asyncio.Event | None = None

    def connect(self) -> socket.socket:
        """The client's end of a new connection."""
        with self._lock:
            if self._loop is None or self._forks != fork_hooks.count():
                self._begin()
            assert self._loop is not None
            assert self._server is not None
            mine, its = socket.socketpair()
            asyncio.run_coroutine_threadsafe(self._server.connect(its), self._loop)
        return mine

    def close(self) -> None:
        """End all connections, and the server once what has begun is done. The next connection begins it anew."""
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None and self._forks == fork_hooks.count() and self._ends is not None:
                loop.call_soon_threadsafe(self._ends.set)
                if self._thread is not threading.current_thread():  # the collector may call it anywhere
                    self._thread.join()

    def _begin(self) -> None:
        ready = Future[None]()
        name = f"raxlog clients of {self._path}"
        self._thread = threading.Thread(target=self._run, args=(ready,), name=name, daemon=True)
        with translated(self._path):
            start(self._thread)
            ready.result()
        self._forks = fork_hooks.count()

    @noted
    def _run(self, ready: Future[None]) -> None:
        try:
            with asyncio.Runner() as runner:  # which may get no loop: then nothing is open
                runner.run(self._serve(ready))
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)

    async def _serve(self, ready: Future[None]) -> None:
        store = Store.open(self._path, durability=self._options.durability, encoding=BYTES)
        server = self._server = Server(store, Options(host=None))
        ends = self._ends = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        ready.set_result(None)
        await ends.wait()
        await server.close()


@overload
def redis_client(store: Store, *, asyncio: Literal[False] = False, **options: object) -> redis.Redis: ...


@overload
def redis_client(store: Store, *, asyncio: Literal[True], **options: object) -> redis.asyncio.Redis: ...


def redis_client(store: Store, *, asyncio: bool = False, **options: object) -> redis.Redis | redis.asyncio.Redis:
    """A client of redis-py that works on this store, with no server to start and nothing on the network.

    ``asyncio``   True: a redis.asyncio.Redis; else a redis.Redis, for any number of threads
    ``options``   those of redis-py for a connection: ``decode_responses=True``, ``protocol=2``, ``db=3``, …

    It serves what ``raxlog serve`` serves: pipelines, reads that block, publish and subscribe. It keeps the store open
    until it is closed (``close()``, ``aclose()``, ``with``) or gone, also where ``store`` has been closed before.
    A command takes some 0.2 ms more than the store's own calls. NotInstalled without redis-py (raxlog[redis]).
    """
    try:
        from . import connections  # noqa: PLC0415 - redis-py is not everywhere
    except ImportError as error:
        raise NotInstalled("redis_client() needs redis-py: pip install raxlog[redis]") from error
    door = Door(store)
    client = connections.async_client_on(door, options) if asyncio else connections.client_on(door, options)
    weakref.finalize(client, door.close)
    return client
