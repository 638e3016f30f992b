"""Values: a mapping of what JSON or msgpack can hold as the fields of one entry, and back.

    {"item": "book", "qty": 2, "tags": ["new"], "due": None}

    $json    ["qty","tags","due"]     the note: these fields hold JSON, and one that is missing is None
    item     book                     every other field is text
    qty      2
    tags     ["new"]

So fields stay fields for what knows no codec. The note goes with every copy of the entry: each is read as it was
written, whatever codec its stream has now. What is before the note is not part of the value. Without a note every
field but the subject is text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any

import msgpack

from ...storage.errors import InvalidArgument, InvalidFields, MalformedValue
from .model import Model

RAW = "raw"  # no codec: fields as they are given
CODECS = (RAW, "str", "json", "msgpack")
NOTES = {b"$json": "json", b"$msgpack": "msgpack"}  # the names of notes; reserved

_FAULTS = (ValueError, TypeError, OverflowError, RecursionError)


@cache
def _json() -> tuple[Callable[[Any], str], Callable[[str], Any]]:
    """JSON's encode and decode, loaded where they are used first."""
    import json  # noqa: PLC0415

    return json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode, json.loads


_CODERS: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "json": (lambda item: _json()[0](item).encode(), lambda raw: _json()[1](raw.decode())),
    "msgpack": (msgpack.packb, lambda raw: msgpack.unpackb(raw, strict_map_key=False)),
}


def checked_codec(codec: object) -> None:
    """InvalidArgument unless it is the name of a codec, or None."""
    if codec is not None and codec not in CODECS:
        raise InvalidArgument(f"codec={codec!r} is unknown; it is one of {', '.join(CODECS)}")


def encoded(given: Any, codec: str, model: Model | None) -> Iterator[tuple[Any, Any]]:
    """A value, or an object of the model, as fields, the note first; a list or tuple of pairs as it is.

    Lazily, as flatten() takes it. InvalidFields for what the codec or the model cannot hold.
    """
    if type(given) in (list, tuple):
        yield from given
        return
    value = given
    if model is not None:
        try:
            value = model.dump(given)
            model.load(value, True)
        except _FAULTS as error:
            raise InvalidFields(f"{given!r:.200} is not of type {model.name}: {error}") from None
    if not isinstance(value, Mapping):
        raise InvalidFields(
            f"under a codec an entry is a mapping of names to values, not {type(value).__name__}. For objects give the "
            "handle their type: store.stream(name, type=…). A list of pairs is stored as it is"
        )
    pairs: list[tuple[str | bytes, object]] = []
    noted: list[str] = []
    for name, item in value.items():
        if not isinstance(name, str):
            raise InvalidFields(f"under a codec the names of fields are str; {name!r:.80} is {type(name).__name__}")
        if codec == RAW:
            pairs.append((name, item))
        elif isinstance(item, str):
            pairs.append((_text(name, name), _text(item, name)))
        elif codec == "str":
            raise InvalidFields(f"the value of field {name!r:.80} is {type(item).__name__}; the codec 'str' takes str")
        else:
            noted.append(name)
            if item is not None:
                pairs.append((_text(name, name), _dumped(item, codec, name)))
    if codec in _CODERS:
        yield f"${codec}", _dumped(noted, "json", f"${codec}")
    yield from pairs


def _text(given: str, name: str) -> bytes:
    """Text as UTF-8, without surrogates: it could not be read back."""
    try:
        return str.encode(given)
    except UnicodeEncodeError as error:
        raise InvalidFields(f"field {name!r:.80} is not UTF-8: {error}") from None


def _dumped(item: object, codec: str, name: str) -> bytes:
    dumps, loads = _CODERS[codec]
    try:
        raw = dumps(item)
        if not isinstance(item, int | float):
            loads(raw)  # some keys of inner mappings can be written, and not read
    except _FAULTS as error:
        raise InvalidFields(f"the value of field {name!r:.80} cannot be stored as {codec}: {error}") from None
    return raw


def decoded(ms: int, seq: int, names: list[Any], values: list[Any], start: int, encoding: str,
            model: Model | None) -> Any:
    """An entry's value, an object of the model if there is one. MalformedValue names the entry, and the field.

    ``start``: the fields before it are not part of the value. ``encoding``: by which names and values are text, if
    they are.
    """
    if not names:
        raise MalformedValue(f"entry {ms}-{seq} has no value: it was deleted after it had been delivered")
    if isinstance(names[0], str):
        names, values = ([text.encode(encoding, "surrogateescape") for text in row] for row in (names, values))
    noted: dict[bytes, str] | None = None
    loads: Callable[[bytes], Any] = bytes.decode
    at: bytes | None = None
    try:
        for place, at in enumerate(names):
            if at in NOTES:
                start, noted, (_, loads) = place + 1, _noted(values[place]), _CODERS[NOTES[at]]
                break
        value = {}
        for at, raw in zip(names[start:], values[start:], strict=True):
            value[at.decode()] = loads(raw) if noted and at in noted else raw.decode()
        for name in noted.values() if noted else ():
            value.setdefault(name, None)
        at = None
        return value if model is None else model.load(value, noted is not None)
    except _FAULTS as error:
        wrong = f"the value is not of type {model.name}" if model and at is None else f"field {at!r} cannot be decoded"
        raise MalformedValue(f"entry {ms}-{seq}: {wrong}: {error}. entry.fields has its bytes") from None


@lru_cache(1024)
def _noted(raw: bytes) -> dict[bytes, str]:
    """The names in a note. ValueError if it is none."""
    names = _CODERS["json"][1](raw)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("it must be a list of names")
    return {name.encode(): name for name in names}
