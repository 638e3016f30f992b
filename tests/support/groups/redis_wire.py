"""A plain connection to a redis-server: commands out, replies in, nothing in between."""

from __future__ import annotations

import socket
from typing import IO, Any


class Wire:
    """One client connection. Replies: bytes, int, None, lists of these; simple strings as str."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address)
        self._lines: IO[bytes] = self._socket.makefile("rb")

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._socket.close()

    def send(self, *words: bytes) -> None:
        """Send a command."""
        self._socket.sendall(packed(*words))

    def send_raw(self, data: bytes) -> None:
        """Send several commands at once, packed already."""
        self._socket.sendall(data)

    def ask(self, *words: bytes) -> Any:
        """Send a command and give its one reply."""
        self.send(*words)
        return self.reply()

    def reply(self) -> Any:
        """The next reply."""
        line = self._lines.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        if kind == b"$":
            return None if rest == b"-1" else self._lines.read(int(rest) + 2)[:-2]
        if kind == b"+":
            return rest.decode()
        assert kind == b":", line
        return int(rest)


def packed(*words: bytes) -> bytes:
    """A command as it goes over the wire."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
