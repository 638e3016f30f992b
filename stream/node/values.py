"""Values: a mapping of what JSON or msgpack can hold as the fields of one entry, and back.

    {"item": "book", "qty": 2, "tags": ["new"], "due": None}

    $json    ["qty","tags","due"]     the note: these fields hold JSON, and one that is missing is None
    item     book                     every other field is text
    qty      2
    tags     ["new"]

So fields stay fields: what knows no codec reads text as text, a number as a number, None as a field
that the entry lacks. The note goes with every copy of the entry, wherever it is: reading needs no
stream's header, and each entry is read as it was written, whatever codec its stream has now. What is
before the note is no part of the value. Without a note every field but the subject is text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ...storage.errors import InvalidArgument, InvalidFields, MalformedValue

if TYPE_CHECKING:
    from .entry import Entry

RAW = "raw"  # no codec: fields as they are given
CODECS = (RAW, "str", "json", "msgpack")
NOTES = {b"$json": "json", b"$msgpack": "msgpack"}  # the names of notes; reserved

FAULTS = (ValueError, TypeError, OverflowError, RecursionError)


class _Coder(NamedTuple):
    dumps: Callable[[Any], bytes]
    loads: Callable[[bytes], Any]


@cache
def _coder(codec: str) -> _Coder:
    if codec == "msgpack":
        import msgpack  # noqa: PLC0415

        return _Coder(msgpack.packb, lambda raw: msgpack.unpackb(raw, strict_map_key=False))
    import json  # noqa: PLC0415 - seldom needed

    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
    return _Coder(lambda item: encode(item).encode(), lambda raw: json.loads(raw.decode()))


def checked_codec(codec: object) -> str:
    """The name of a codec. InvalidArgument for any other."""
    if codec not in CODECS:
        raise InvalidArgument(f"codec={codec!r} is unknown; it is one of {', '.join(CODECS)}")
    return str(codec)


def encoded(value: object, codec: str) -> list[tuple[str, str | bytes]]:
    """A value as fields, the note first. InvalidFields for one that the codec cannot hold."""
    if not isinstance(value, Mapping):
        raise InvalidFields(
            f"under a codec an entry is a mapping of names to values, not {type(value).__name__}. For objects give the "
            "handle their type: store.stream(name, type=…). A list of pairs is stored as it is"
        )
    pairs: list[tuple[str, str | bytes]] = []
    noted: list[str] = []
    for name, item in value.items():
        if not isinstance(name, str):
            raise InvalidFields(f"under a codec the names of fields are str; {name!r:.80} is {type(name).__name__}")
        if isinstance(item, str):
            pairs.append((name, item))
        elif codec == "str":
            raise InvalidFields(f"the value of field {name!r:.80} is {type(item).__name__}; the codec 'str' takes str")
        else:
            noted.append(name)
            if item is not None:
                pairs.append((name, _dumped(item, codec, name)))
    if codec == "str":
        return pairs
    return [(f"${codec}", _dumped(noted, "json", f"${codec}")), *pairs]


def _dumped(item: object, codec: str, name: str) -> bytes:
    dumps, loads = _coder(codec)
    try:
        raw = dumps(item)
        if not isinstance(item, int | float):
            loads(raw)  # some keys of inner mappings can be written, and not read
    except FAULTS as error:
        raise InvalidFields(f"the value of field {name!r:.80} cannot be stored as {codec}: {error}") from None
    return raw


def has_note(names: list[Any]) -> bool:
    """Whether an entry with these names says how its fields are encoded."""
    return not NOTES.keys().isdisjoint(names)


def decoded(entry: Entry, encoding: str | None = None) -> tuple[dict[str, Any], bool]:
    """An entry's value, and whether a note said how to read it. MalformedValue names entry and field.

    ``encoding``: what its names and values have been decoded with.
    """
    names, values = entry.names, entry.values
    if not names:
        raise MalformedValue(f"entry {entry.id} has no value: it was deleted after it had been delivered")
    if encoding is not None:
        names, values = ([text.encode(encoding, "surrogateescape") for text in row] for row in (names, values))
    start, noted, at = int(entry.subject is not None), None, b""
    loads: Callable[[bytes], Any] = bytes.decode
    try:
        for place, at in enumerate(names):
            if at in NOTES:
                start, noted, loads = place + 1, _noted(values[place]), _coder(NOTES[at]).loads
                break
        value = {}
        for at, raw in zip(names[start:], values[start:], strict=True):
            value[at.decode()] = loads(raw) if noted and at in noted else raw.decode()
    except FAULTS as error:
        raise MalformedValue(f"entry {entry.id}: field {at.decode('utf-8', 'backslashreplace')!r} cannot be decoded: "
                             f"{error}. entry.fields has its bytes") from None
    for name in noted.values() if noted else ():
        value.setdefault(name, None)
    return value, noted is not None


@lru_cache(1024)
def _noted(raw: bytes) -> dict[bytes, str]:
    """The names in a note. ValueError if it is none."""
    names = _coder("json").loads(raw)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("it must be a list of names")
    return {name.encode(): name for name in names}
