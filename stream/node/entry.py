"""Entries: the fields a writer gives, the ID and fields a reader gets.

    Entry(1-1, {b'item': b'book'})

An entry comes out of a node as two rows, names and values. Of entries with the same fields as
their node's master entry all share one row of names, so that an entry costs its values and
little more. ``id``, ``fields`` and ``pairs`` are made at each access:
what a caller does to them never reaches the entry. Keep ``fields`` in a variable in a loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar

from ...storage.errors import InvalidFields, MalformedValue
from .model import Model
from .stream_id import (
    StreamID,
    begin_row,  # cimport
    end_row,  # cimport
    id_of,  # cimport
    put_id,  # cimport
    time_at,
)
from .values import decoded

SOURCE_HASH = ""

BIG = 1 << 62
# What an encoding cannot decode comes as lone surrogates, as with file names: an entry that a
# consumer cannot read as text is not lost, and does not stop those behind it.
UNDECODABLE = "surrogateescape"
FieldText = Any  # str or bytes, as the store is open: a union would have to be narrowed at each use
MAX_ELEMENTS = 1 << 30  # bytes of names and values in one entry; Redis' limit
OWN_FIELD = b"$entry"  # reserved: the first field of an entry that says itself what it is; see Entry.scheduled
SUBJECT_FIELD = b"$subject"  # reserved: the first field of an entry that was published


class Entry:
    """One entry of a stream: ``entry.id`` and ``entry.fields``; unpacking it gives both.

    If it was read through a consumer group, ``deliveries`` is how often it has been delivered, this
    time included (otherwise 0), and ``idle`` how many seconds a claimed entry had been idle
    (otherwise None). If an entry of a consumer's history has since been deleted, it has no fields.

    ``ms`` and ``seq`` are the halves of the ID. Field names and values are ``bytes``, or
    ``str`` after decoded(). An entry equals any other with the same ID and the same pairs in the same
    order; it cannot be hashed, but can be pickled.
    """

    __slots__ = ("_encoding", "_model", "deliveries", "idle", "ms", "names", "seq", "values")

    ms: int
    seq: int
    names: list[FieldText]
    values: list[FieldText]
    deliveries: int
    idle: float | None
    _encoding: str | None  # of the names and values, once decoded; None, or unset, of bytes
    _model: Model | None  # of the value; unset as None

    def __init__(self, ms: int, seq: int, pairs: Iterable[tuple[object, object]]) -> None:
        rows = list(pairs)
        self.ms = ms
        self.seq = seq
        self.names = [pair[0] for pair in rows]
        self.values = [pair[1] for pair in rows]
        self.deliveries = 0
        self.idle = None

    @property
    def id(self) -> StreamID:
        """The ID, greater than that of every entry before it."""
        return id_of(StreamID, self.ms, self.seq)

    @property
    def fields(self) -> dict[FieldText, FieldText]:
        """The fields as a new dict. If a name occurs twice, its last value counts."""
        if has_own(self.names):
            return as_dict(self.names[1:], self.values[1:])
        return as_dict(self.names, self.values)

    @property
    def pairs(self) -> list[tuple[FieldText, FieldText]]:
        """The fields as stored: in their order, including names that occur twice, and ``$entry`` where there is one."""
        return list(zip(self.names, self.values, strict=True))

    @property
    def subject(self) -> FieldText | None:
        """The subject under which the entry was published; None if it was appended to its stream.

        It is the value of the first field if that is named ``$subject``. ``fields`` and ``pairs`` show that
        field like any other, so every copy of the entry keeps the subject.
        """
        if self.names and self.names[0] in (SUBJECT_FIELD, "$subject"):
            return self.values[0]
        return None

    @property
    def scheduled(self) -> datetime | None:
        """The nominal time, in UTC, of the tick of a schedule that has appended the entry; None for other entries.

        It lies in a first field ``$entry``, a JSON object, which ``fields`` leaves out, ``pairs`` shows, and append()
        refuses. MalformedValue if that is not what Stream.schedule() has made.
        """
        ms = self._own("scheduled", int)
        return None if ms is None else time_at(ms)

    @property
    def unique(self) -> FieldText | None:
        """The unique name that the entry was given by append() or defer(), kept any longer or not; None without one.

        It lies in the first field ``$entry``, as ``scheduled`` does. MalformedValue likewise.
        """
        name = self._own("unique", str)
        return name if name is None or isinstance(self.names[0], str) else name.encode("utf-8", UNDECODABLE)

    def _own(self, what: str, kind: type) -> Any:
        """What the field ``$entry`` says of that. MalformedValue."""
        if not has_own(self.names):
            return None
        import json  # noqa: PLC0415 - loaded where it is used

        try:
            said = json.loads(self.values[0])
            found = said.get(what) if isinstance(said, dict) else said
        except (ValueError, RecursionError) as error:
            found = error
        if found is not None and type(found) is not kind:
            raise MalformedValue(f"entry {self.id}: its field $entry is malformed, or says no {what}: {found!r:.80}")
        return found

    @property
    def value(self) -> object:
        """The value that was appended under a codec; without a codec, the fields as text, without the subject.

        An object of the handle's type, or a new dict if the handle has none; decoded at each access.
        MalformedValue if it cannot be decoded, is not valid for the type, or was deleted while it was pending.
        """
        return decoded(self.ms, self.seq, self.names, self.values, int(self.subject is not None or has_own(self.names)),
                       getattr(self, "_encoding", None) or "utf-8", getattr(self, "_model", None))

    def decoded(self, encoding: str | None = None, errors: str | None = None) -> Entry:
        """The same entry with ``str`` instead of ``bytes``; itself if it is already decoded.

        Without arguments decodes UTF-8, with lone surrogates for other bytes ("surrogateescape"), like
        open(encoding=). With an ``encoding``, raises UnicodeDecodeError unless ``errors`` is given.
        """
        if self.names and isinstance(self.names[0], str):
            return self
        errors = errors or ("strict" if encoding else UNDECODABLE)
        texts: list[Entry] = into_texts([copied(self)], encoding or "utf-8", errors, getattr(self, "_model", None))
        return texts[0]

    def to_dict(self) -> dict[str, object]:
        """``{"id": "5-0", "fields": {…}}`` for json.dumps(), the fields as text: see decoded()."""
        return {"id": str(self.id), "fields": dict(self.decoded().fields)}

    def __iter__(self) -> Iterator[Any]:  # the ID, then the fields: an iterator has one type for both
        return iter((self.id, self.fields))

    def __len__(self) -> int:
        return len(self.names)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Entry):
            return NotImplemented
        return (
            self.ms == other.ms
            and self.seq == other.seq
            and self.names == other.names
            and self.values == other.values
        )

    @classmethod
    def __class_getitem__(cls, kind: object) -> type[Entry]:
        """``Entry[Order]`` in annotations: see typed.py."""
        return cls

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Entry({self.ms}-{self.seq}, {self.fields!r})"

    def __reduce__(self) -> tuple[type[Entry], tuple[int, int, list[tuple[Any, Any]]]]:
        return Entry, (self.ms, self.seq, self.pairs)


class Fields(dict[Any, Any]):
    """The fields of an entry: a dict whose KeyError hints at str looked up among bytes, or bytes among str."""

    def __missing__(self, name: Any) -> Any:
        first = next(iter(self), name)
        if isinstance(name, str | bytes) and type(first) is not type(name):
            kind = type(first).__name__
            raise KeyError(f"{name!r}: these names are {kind}, as {first!r} is; open(encoding=…) decides that")
        raise KeyError(name)

    def __reduce__(self) -> tuple[type[dict[Any, Any]], tuple[dict[Any, Any]]]:
        return dict, (dict(self),)


def has_own(names: list[Any]) -> bool:  # cimport
    """Whether the first field is the reserved one, ``$entry``."""
    if not names:
        return False
    first = names[0]
    return first == b"$entry" if type(first) is bytes else first == "$entry"


def as_dict(names: list[Any], values: list[Any]) -> dict[Any, Any]:  # cimport
    """Both rows as a dict: the inner loop of every scan."""
    return Fields(zip(names, values, strict=True))


def typed(entry: Entry, model: Model | None) -> Any:
    """The entry, whose ``value`` is an object of the model from now on."""
    entry._model = model
    return entry


def copied(given: Entry) -> Entry:
    """An entry that shares no row of values with that one."""
    entry = Entry.__new__(Entry)
    entry.ms, entry.seq = given.ms, given.seq
    entry.names, entry.values = given.names, list(given.values)
    entry.deliveries, entry.idle = given.deliveries, given.idle
    return entry


def into_texts(entries: list[Any], encoding: str, errors: str, model: Model | None) -> list[Any]:
    """Have entries that nothing else holds ``str`` in place of ``bytes``; those of a node share a row of names on."""
    raw: list[FieldText] = []  # the row of names of the entry before
    names: list[str] = []  # and its texts
    plain = encoding == "utf-8" and errors == UNDECODABLE
    for each in entries:
        entry: Entry = each
        if entry.names is not raw:
            raw = entry.names
            names = [name if isinstance(name, str) else name.decode(encoding, errors) for name in raw]
        values = entry.values
        for i in range(len(values)):
            value = values[i]
            if isinstance(value, bytes):
                part: bytes = value  # a call of the decoder itself, once Cython knows the type
                values[i] = part.decode("utf-8", "surrogateescape") if plain else part.decode(encoding, errors)
        entry.names = names
        entry._encoding, entry._model = encoding, model
    return entries


def delivered(entries: Sequence[Entry]) -> bytes:
    """Count the entries' first delivery; their IDs in a row, as packed_ids.py has them."""
    given = list(entries)
    row = begin_row(len(given))
    at = 0
    for entry in given:
        entry.deliveries = 1
        put_id(row, at, entry.ms, entry.seq)
        at += 16
    return end_row(row)


def flatten(fields: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> list[bytes]:
    """The fields of an entry as ``[name, value, name, value, ...]``, all of them bytes.

    Takes a mapping or an iterable of pairs. Names and values are ``str`` (stored as UTF-8),
    ``bytes``, ``bytearray``, ``memoryview``, ``int`` or ``float``; order and duplicates of
    pairs are kept. Raises InvalidFields for anything else, for no pairs at all, and above
    1 GiB. Follows the arguments of XADD.
    """
    pairs: Iterable[Any]
    if type(fields) is dict:
        return flatten_dict(fields)
    if isinstance(fields, Mapping):
        pairs = fields.items()
    elif isinstance(fields, (str, bytes, bytearray, memoryview)) or not isinstance(fields, Iterable):
        raise InvalidFields(f"fields are a mapping or pairs of name and value, not {type(fields).__name__}")
    else:
        pairs = fields
    flat: list[bytes] = []
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InvalidFields(f"fields must come as pairs of name and value; no. {len(flat) // 2} is {pair!r:.80}")
        name, value = pair
        flat.append(as_bytes(name, name, "name"))
        flat.append(as_bytes(value, name, "value"))
    return checked(flat)


def flatten_dict(fields: dict[Any, Any]) -> list[bytes]:
    """flatten() for the usual case, a plain dict."""
    flat: list[bytes] = []
    for name, value in fields.items():
        flat.append(as_bytes(name, name, "name"))
        flat.append(as_bytes(value, name, "value"))
    return checked(flat)


def flatten_all(entries: Iterator[Any], flats: list[list[bytes]], limit: int) -> bool:
    """flatten() of the next so many entries, put to ``flats``; whether there may be more.

    InvalidFields names the place of the one that is wrong. Not all at once: compiled, this keeps other
    threads from running. Entries of one kind have the same names, as a rule the very same objects: then the names'
    bytes are those of the entry before.
    """
    keys: list[Any] = []  # the names of the last plain dict, as objects
    names: list[bytes] = []  # and as bytes
    stop = len(flats) + limit
    for fields in entries:
        try:
            if type(fields) is Fields:
                fields = dict(fields)  # a copy costs less than the long way
            flat = flatten_like(fields, keys, names) if type(fields) is dict else flatten(fields)
            if flat is None:
                flat = flatten_dict(fields)
                keys = list(fields)
                names = flat[::2]
            flats.append(flat)
        except InvalidFields as error:
            raise InvalidFields(f"entry no. {len(flats)}: {error}") from None
        if len(flats) == stop:
            return True
    return False


def flatten_like(fields: dict[Any, Any], keys: list[Any], names: list[bytes]) -> list[bytes] | None:
    """flatten_dict(), if the dict has these very ``keys`` in this order; else None."""
    if len(fields) != len(keys):
        return None
    flat: list[bytes] = []
    i = 0  # by hand: enumerate() would make Cython build a tuple and an integer each time
    for name, value in fields.items():
        if name is not keys[i]:
            return None
        flat.append(names[i])
        flat.append(as_bytes(value, name, "value"))
        i += 1  # noqa: SIM113
    return checked(flat)


def checked(flat: list[bytes]) -> list[bytes]:
    """The row, unless an entry cannot be like that."""
    if not flat:
        raise InvalidFields("an entry needs at least one field")
    first: bytes = flat[0]
    if first == b"$entry":
        raise InvalidFields("the name $entry of a first field is reserved for what an entry says itself; append an "
                            "entry's fields without it, as entry.fields has them")
    total = 0
    for raw in flat:
        total += len(raw)
    if total > MAX_ELEMENTS:
        raise InvalidFields(
            f"Elements are too large to be stored: {total} bytes of names and values, "
            f"allowed are {MAX_ELEMENTS}"
        )
    return flat


def as_bytes(value: object, name: object, role: str) -> bytes:
    """A name or a value as it is stored."""
    if type(value) is bytes:
        return value
    if type(value) is float or (type(value) is int and -BIG < value < BIG):
        text = repr(value)
        return text.encode("utf-8")  # the name in full: Cython knows it then, and calls no method
    if isinstance(value, str):
        try:
            if type(value) is str:
                text = value
                return text.encode("utf-8")
        except UnicodeEncodeError:
            pass
        try:
            return str.encode(value, "utf-8", UNDECODABLE)  # what came out of a store of text goes in as it was
        except UnicodeEncodeError as error:
            raise InvalidFields(f"the {role} of field {name!r:.80} is not UTF-8: {error}") from None
    if isinstance(value, bool):
        raise InvalidFields(f"the {role} of field {name!r:.80} is a bool; store 0 and 1, or text")
    if isinstance(value, int):
        try:
            return int.__repr__(value).encode()
        except ValueError as error:
            shown = type(name).__name__ if name is value else f"{name!r:.80}"
            raise InvalidFields(f"the {role} of field {shown} is too long: {error}") from None
    if isinstance(value, float):
        return float.__repr__(value).encode()  # not repr(): subclasses print more than a number
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise InvalidFields(
        f"the {role} of field {name!r:.80} is of type {type(value).__name__}; "
        "it must be str, bytes, int or float"
    )
