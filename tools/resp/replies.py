"""Replies: values of Python as the bytes of RESP2 and RESP3.

    bytes  a bulk string      str   a simple string      int  a number     float  a double, a bulk string in RESP2
    list   an array           dict  a map, in RESP2 an array of names and values
    None   null               NIL   null, in RESP2 that of an array
    CommandError              an error
"""

from __future__ import annotations

from enum import Enum

from ...storage.errors import RaxlogError


class Nil(Enum):
    """The null that is an array's in RESP2."""

    ARRAY = 0


NIL = Nil.ARRAY


class CommandError(RaxlogError):
    """An error as a client gets it, with its code in front."""


def quoted(word: bytes) -> str:
    """A word as MONITOR shows it."""
    shown = (_SHOWN.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}") for byte in word)
    return f'"{"".join(shown)}"'


_SHOWN = {ord(one): "\\" + letter for one, letter in zip('\\"\n\r\t\a\b', '\\"nrtab', strict=True)}


class Pairs(list["tuple[bytes, object]"]):
    """A map of RESP3 that RESP2 shows as an array of arrays of two: what XREAD answers."""


class Push(list[object]):
    """What RESP3 sends as a push, and RESP2 as an array."""


class Encoded(bytes):
    """A reply that is encoded already."""


class Several(list[object]):
    """Several replies to one command."""


def encoded(reply: object, protocol: int) -> bytes:
    """The bytes of a reply."""
    if isinstance(reply, Encoded):
        return reply
    parts: list[bytes] = []
    _encode(reply, protocol, parts)
    return b"".join(parts)


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
        for one in reply:
            _encode(one, protocol, parts)
    elif isinstance(reply, dict):
        parts.append(b"%%%d\r\n" % len(reply) if protocol == 3 else b"*%d\r\n" % (2 * len(reply)))
        for name, value in reply.items():
            _encode(name, protocol, parts)
            _encode(value, protocol, parts)
    elif isinstance(reply, list | tuple):
        parts.append(b"%b%d\r\n" % (b">" if protocol == 3 and isinstance(reply, Push) else b"*", len(reply)))
        for one in reply:
            _encode(one, protocol, parts)
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
