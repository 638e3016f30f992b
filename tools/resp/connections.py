"""Connections of redis-py, plain and of asyncio, through a door (client.py). Loads redis-py."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Protocol

import redis
import redis.asyncio


class SocketSource(Protocol):
    """Where the connections of a client come from."""

    def connect(self) -> socket.socket:
        """The client's end of a new connection."""

    def close(self) -> None:
        """End all connections."""


class Connection(redis.UnixDomainSocketConnection):
    """A connection, over a pair of sockets."""

    def __init__(self, door: SocketSource, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._door = door

    def _connect(self) -> socket.socket:
        wire = self._door.connect()
        wire.settimeout(self.socket_timeout)
        return wire


class AsyncConnection(redis.asyncio.UnixDomainSocketConnection):
    """The same for a loop."""

    def __init__(self, door: SocketSource, **options: Any) -> None:
        super().__init__(**options)
        self._door = door

    async def _connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(sock=await asyncio.to_thread(self._door.connect))
        await self.on_connect()


class Pool(redis.ConnectionPool):
    """The connections of a client, with which the server ends."""

    def disconnect(self, inuse_connections: bool = True) -> None:
        """End them, as close() does; the next command begins them anew."""
        super().disconnect(inuse_connections)
        self.connection_kwargs["door"].close()


class AsyncPool(redis.asyncio.ConnectionPool):
    """The same for a loop."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """End them, as aclose() does; the next command begins them anew."""
        await super().disconnect(inuse_connections)
        await asyncio.to_thread(self.connection_kwargs["door"].close)


def client_on(door: SocketSource, options: dict[str, Any]) -> redis.Redis:
    """A client whose connections have these options."""
    return redis.Redis.from_pool(Pool(connection_class=Connection, door=door, **options))


def async_client_on(door: SocketSource, options: dict[str, Any]) -> redis.asyncio.Redis:
    """The same for a loop."""
    return redis.asyncio.Redis.from_pool(AsyncPool(connection_class=AsyncConnection, door=door, **options))
