"""Arguments as users give them: names of streams, groups and consumers; durations; counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from ...storage.errors import InvalidArgument, InvalidName
from ...storage.format import keys
from .entry import UNDECODABLE, into_texts, typed
from .model import Model

MAX_MEMBER_NAME = 1 << 16
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBERS = int, float  # made once: a union would be with each call
_LONGEST = 1 << 53  # ms; beyond it a float no longer counts single milliseconds

Name = str | bytes | int | float  # of a stream, a group, a consumer, a field; as it may be given
Value = object  # of a field: str, bytes, int or float; InvalidFields for others
Fields = Mapping[str, Value] | Mapping[bytes, Value] | Mapping[Name, Value] | Iterable[tuple[Name, Value]]
Text = str | bytes  # a name as it is returned: str where the store is open with an encoding
Codec = Literal["raw", "str", "json", "msgpack"]
Compression = Literal["none", "zstd", "compact"]
Refs = Literal["keepref", "delref", "acked"]  # what a deletion does about pending entries


class StreamOptions(TypedDict, total=False):
    """The options of Store.stream() but ``type``, as checkers of types see them."""

    compression: Compression | None
    node_max_bytes: int | None
    node_max_entries: int | None
    codec: Codec | None


if TYPE_CHECKING:
    from typing import ClassVar, Protocol

    from _typeshed import DataclassInstance

    from .typed import Entry

    class Struct(Protocol):
        """A msgspec.Struct, for checkers that find no msgspec."""

        __struct_fields__: ClassVar[tuple[str, ...]]

    Appendable = Fields | DataclassInstance | Struct  # by append(). A pydantic model is an iterable of pairs, too


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
    """A group's or consumer's name: any bytes, up to 64 KB. A number is a count in the wrong place."""
    if isinstance(name, _NUMBERS):
        raise InvalidName(f"a {role} name is str or bytes, not {type(name).__name__}")
    raw = stored_bytes(name, f"{role} name")
    if len(raw) > MAX_MEMBER_NAME:
        raise InvalidName(f"the {role} name {raw[:20]!r}… has {len(raw)} bytes; {MAX_MEMBER_NAME} are allowed")
    return raw


def text_of(raw: bytes, encoding: str | None) -> Text:
    """A stored name as it is returned: text where the store is open with an encoding."""
    return raw if encoding is None else raw.decode(encoding, UNDECODABLE)


def texts_of(entries: list[Any], encoding: str | None, model: Model | None = None) -> list[Entry[Any]]:
    """Entries as they are returned, changed themselves: with text where the store is open with an encoding, values of
    the handle's type. Nothing else holds them.
    """
    if encoding is not None:
        return into_texts(entries, encoding, UNDECODABLE, model)
    return entries if model is None else [typed(entry, model) for entry in entries]


def stored_bytes(name: object, what: str) -> bytes:
    """What was given, as bytes. InvalidName for a wrong type, or what has no bytes."""
    if isinstance(name, bytes):
        return name
    if isinstance(name, str):
        try:
            return name.encode("utf-8", UNDECODABLE)  # what came out of a store of text goes in as it was
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


def duration_ms(name: str, seconds: Any, negative: bool = False) -> int:
    """Seconds as whole milliseconds. InvalidArgument for no number, NaN, negative or huge ones.

    What is not zero stays so: a block of 0 s waits for ever, one of 0.1 ms must not.
    """
    is_number = isinstance(seconds, int) and not isinstance(seconds, bool)
    if not is_number and not (isinstance(seconds, float) and not math.isnan(seconds)):
        raise InvalidArgument(f"{name}={seconds!r} must be a number of seconds")
    if abs(seconds) > _LONGEST / 1000:
        size = f"{seconds:.3g}" if isinstance(seconds, float) else f"a number of {seconds.bit_length()} bits"
        raise InvalidArgument(f"{name}, {size}, is more seconds than can be counted in milliseconds")
    if seconds < 0 and not negative:
        raise InvalidArgument(f"{name}={seconds!r} must not be negative")
    whole: int = round(seconds * 1000)
    if whole == 0 and seconds:
        return 1 if seconds > 0 else -1
    return whole


def moment_ms(name: str, moment: object) -> int:
    """A datetime as milliseconds since 1970, rounded up. InvalidArgument for one without a time zone, or a number."""
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise InvalidArgument(f"{name}={moment!r:.60} must be a datetime with a time zone, as by datetime.now(UTC) or "
                              ".astimezone(); a number may be seconds or milliseconds")
    return -((_EPOCH - moment) // timedelta(milliseconds=1))


def timeout_of(timeout: float | None) -> float:
    """``timeout=`` in seconds: 0 for not at all, infinity for ever."""
    return math.inf if timeout is None else duration_ms("timeout", timeout) / 1000


def whole(name: str, value: Any, least: int, most: int | None = None, *, none: str | None = None) -> None:
    """InvalidArgument unless the value is a whole number from ``least`` on, up to ``most``.

    With ``none`` it may be None, too, of which the message says that.
    """
    if none is not None and value is None:
        return
    if type(value) is not int or value < least or (most is not None and value > most):
        limits = f">= {least}" if most is None else f"from {least} to {most}"
        raise InvalidArgument(f"{name}={value!r} must be a whole number {limits}{none or ''}")
