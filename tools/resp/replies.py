"""Replies: values of Python as the bytes of RESP2 and RESP3.

    bytes  a bulk string      str   a simple string      int  a number     float  a double, a bulk string in RESP2
    list   an array           dict  a map, in RESP2 an array of names and values
    None   null               NIL   null, in RESP2 that of an array
    CommandError              an error
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import TypeVar

from ...storage.errors import RaxlogError


class Nil(Enum):
    """The null that is an array's in RESP2."""

    ARRAY = 0


NIL = Nil.ARRAY
_PARTS, _LARGE = 2048, 1 << 16  # parts, and bytes of one, that make a piece


class CommandError(RaxlogError):
    """An error as a client gets it, with its code in front."""


E = TypeVar("E", bound=BaseException)


def bare(error: E) -> E:
    """The error without the calls that it came through: they hold the request, and would until the collector comes."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


def quoted(word: bytes) -> str:
    """A word as MONITOR shows it."""
    return f'"{word.decode("latin-1").translate(_SHOWN)}"'


_SHOWN = {byte: f"\\x{byte:02x}" for byte in range(256) if not 32 <= byte < 127} | {
    ord(sign): "\\" + letter for sign, letter in zip('\\"\n\r\t\a\b', '\\"nrtab', strict=True)}


class Pairs(list["tuple[bytes, object]"]):
    """A map of RESP3 that RESP2 shows as an array of arrays of two: what XREAD answers."""


class Push(list[object]):
    """What RESP3 sends as a push, and RESP2 as an array."""


class Encoded(bytes):
    """A reply that is encoded already."""


class Pieces(list[bytes]):
    """A long reply, encoded, in pieces."""


class Several(list[object]):
    """Several replies to one command."""


def encoded(reply: object, protocol: int) -> bytes:
    """The bytes of a reply."""
    if isinstance(reply, Encoded):
        return reply
    parts: list[bytes] = []
    _encode(reply, protocol, parts)
    return b"".join(parts)


def in_pieces(reply: object, protocol: int) -> Pieces:
    """The bytes of a long reply: its arrays may be iterators, of which one item after the other is made and encoded."""
    parts = Pieces()
    _encode(reply, protocol, parts)
    return parts if isinstance(reply, Iterator) else Pieces([b"".join(parts)])


def _encode_each(items: Iterable[object], protocol: int, parts: list[bytes]) -> None:
    head, elements = len(parts), 0
    some: list[bytes] = []
    parts.append(b"")
    for item in items:
        elements += 1
        _encode(item, protocol, some)
        if len(some) > _PARTS or len(some[-1]) > _LARGE:
            parts.append(b"".join(some))
            some.clear()
    parts[head] = b"*%d\r\n" % elements
    parts.append(b"".join(some))


def _encode(reply: object, protocol: int, parts: list[bytes]) -> None:
    if isinstance(reply, bytes):
        parts.append(b"$%d\r\n%b\r\n" % (len(reply), reply))
    elif isinstance(reply, int):
        parts.append(b":%d\r\n" % reply)
    elif isinstance(reply, str):
        parts.append(b"+%b\r\n" % reply.encode())
    elif isinstance(reply, Pairs):
        parts.append(b"%b%d\r\n" % (b"%" if protocol == 3 else b"*", len(reply)))
        for pair in reply:
            if protocol == 2:
                parts.append(b"*2\r\n")
            _encode(pair[0], protocol, parts)
            _encode(pair[1], protocol, parts)
    elif isinstance(reply, Several):
        for part in reply:
            _encode(part, protocol, parts)
    elif isinstance(reply, dict):
        parts.append(b"%%%d\r\n" % len(reply) if protocol == 3 else b"*%d\r\n" % (2 * len(reply)))
        for name, value in reply.items():
            _encode(name, protocol, parts)
            _encode(value, protocol, parts)
    elif isinstance(reply, list | tuple):
        parts.append(b"%b%d\r\n" % (b">" if protocol == 3 and isinstance(reply, Push) else b"*", len(reply)))
        for part in reply:
            _encode(part, protocol, parts)
    elif isinstance(reply, Iterator):
        _encode_each(reply, protocol, parts)
    elif reply is None or reply is NIL:
        parts.append(b"_\r\n" if protocol == 3 else b"*-1\r\n" if reply is NIL else b"$-1\r\n")
    elif isinstance(reply, CommandError):
        line = str(reply).encode("utf-8", "surrogateescape")
        parts.append(b"-%b\r\n" % line.replace(b"\r", b" ").replace(b"\n", b" "))
    elif isinstance(reply, float):
        text = b"%.17g" % reply
        parts.append(b",%b\r\n" % text if protocol == 3 else b"$%d\r\n%b\r\n" % (len(text), text))
    else:
        raise TypeError(f"{reply!r:.80} is no reply")
