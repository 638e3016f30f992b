"""Names as they are stored: streams, groups, consumers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...storage.errors import InvalidName
from ...storage.format import keys
from .entry import UNDECODABLE, Entry

MAX_MEMBER_NAME = 1 << 16

Name = str | bytes | int | float  # of a stream, a group, a consumer, a field; as it may be given
Value = object  # of a field: str, bytes, int or float; InvalidFields for others
Fields = Mapping[str, Value] | Mapping[bytes, Value] | Mapping[Name, Value] | Iterable[tuple[Name, Value]]
Text = str | bytes  # a name as it is returned: str where the store is open with an encoding


def name_bytes(name: object) -> bytes:
    """A stream's name. InvalidName for a wrong type and above 502 bytes."""
    raw = stored_bytes(name, "stream name")
    if len(raw) > keys.MAX_NAME:
        raise InvalidName(
            f"the stream name {raw[:20]!r}… has {len(raw)} bytes; it shares its key in LMDB and may have "
            f"{keys.MAX_NAME} at most"
        )
    return raw


def member_name(name: object, role: str) -> bytes:
    """A group's or consumer's name: any bytes, up to 64 KB."""
    raw = stored_bytes(name, f"{role} name")
    if len(raw) > MAX_MEMBER_NAME:
        raise InvalidName(f"the {role} name {raw[:20]!r}… has {len(raw)} bytes; {MAX_MEMBER_NAME} are allowed")
    return raw


def text_of(raw: bytes, encoding: str | None) -> Text:
    """A stored name as it is returned: text where the store is open with an encoding."""
    return raw if encoding is None else raw.decode(encoding, UNDECODABLE)


def texts_of(entries: list[Entry], encoding: str | None) -> list[Entry]:
    """Entries as they are returned: with text where the store is open with an encoding."""
    return entries if encoding is None else [entry.decoded(encoding, UNDECODABLE) for entry in entries]


def stored_bytes(name: object, what: str) -> bytes:
    """What was given, as bytes. InvalidName for a wrong type, or what has no bytes."""
    if isinstance(name, bytes):
        return name
    if isinstance(name, str):
        try:
            return name.encode()
        except UnicodeEncodeError as error:
            raise InvalidName(f"the {what} {name!r:.60} cannot be stored: {error}") from None
    if isinstance(name, int | float) and not isinstance(name, bool):
        try:
            return repr(name).encode()
        except ValueError as error:  # Python writes no number of more than 4,300 digits
            raise InvalidName(f"the {what} is a number too long to be written: {error}") from None
    if isinstance(name, bytearray | memoryview):
        return bytes(name)
    raise InvalidName(f"a {what} is str, bytes, int or float, not {type(name).__name__}")
