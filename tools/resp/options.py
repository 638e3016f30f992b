"""Options: how a server is run."""

from __future__ import annotations

import contextlib
import ipaddress
from dataclasses import dataclass

from ...storage.errors import InvalidArgument


@dataclass
class Options:
    """How a server is run. The last six can be changed while it runs."""

    host: str | None = "127.0.0.1"
    port: int = 6379
    unix_socket: str | None = None
    redis_version: str = "7.2"
    clients: int = 10_000
    password: bytes | None = None
    request_limit: int = 512 << 20
    clients_limit: int = 1 << 30  # bytes that all clients together may have it hold, replies left out; 0: any
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
