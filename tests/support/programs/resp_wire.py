"""A plain connection in RESP2 or RESP3: requests out, replies in, as bytes and as values."""

from __future__ import annotations

import socket
from typing import Any


class RespWire:
    """One client connection. A reply is shown with its kind: ("+", "OK"), ("-", "ERR …"), ("*", [...]), ("$", None)."""

    def __init__(self, address: tuple[str, int], timeout: float = 20) -> None:
        self.socket = socket.create_connection(address, timeout)
        self._lines = self.socket.makefile("rb")

    def __enter__(self) -> RespWire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._lines.close()
        self.socket.close()

    def send(self, *words: object) -> None:
        """Send a request."""
        given = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(given) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in given))

    def ask(self, *words: object) -> Any:
        """Send a request; its reply."""
        self.send(*words)
        return self.reply()

    def reply(self) -> Any:
        """The next reply; None at the end of the connection."""
        line = self._lines.readline()
        if not line:
            return None
        kind, rest = line[:1].decode(), line[1:-2]
        if kind in "*~>%":
            many = int(rest) * (2 if kind == "%" else 1)
            return (kind, None) if many < 0 else (kind, [self.reply() for _ in range(many)])
        if kind in "$=":
            return kind, None if rest == b"-1" else self._lines.read(int(rest) + 2)[:-2]
        return kind, int(rest) if kind == ":" else rest.decode("utf-8", "backslashreplace")
