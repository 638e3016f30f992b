"""Stream IDs: two unsigned 64-bit numbers, and every way to write one.

    1526919030474-55            ms-seq, the milliseconds and a number within them
    1526919030474               an incomplete ID: seq is 0, or the greatest as the end of a range
    -   +                       the smallest and the greatest ID, only in ranges
    (1526919030474-55           this ID excluded, only in ranges
    *   1526919030474-*         made by the stream, only in an append
    datetime.now(UTC)           its milliseconds, as the number of them; with a time zone only

An ID is a tuple (ms, seq), so that comparing, hashing and sorting are the tuple's own. As
16 big-endian bytes it sorts the same way, and as an integer it is ms * 2**64 + seq: the ID
after 5-18446744073709551615 is 6-0.

Numbers are read as Redis reads them: a plain decimal first, and what is none goes to C's
strtoull. So "01-05", " 2-1" and "6-+1" are IDs too; "1-", "0x9-0" and 2**64 are not.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice
from operator import lt
from typing import Any, ClassVar, Final, NamedTuple, Self, SupportsIndex, TypeVar, overload

from ...storage import clocks
from ...storage.errors import InvalidStreamID

MAX64: Final = (1 << 64) - 1
MAX128: Final = (1 << 128) - 1
MAX_TEXT: Final = 127  # Redis parses IDs in a buffer of 128 bytes

_STRTOULL = re.compile(rb"[ \t\n\v\f\r]*([+-]?)([0-9]+)", re.ASCII)
_BYTES = struct.Struct(">QQ")
pack_id: Final = _BYTES.pack  # ms, seq -> the 16 bytes of a key: bytes(StreamID) without the StreamID
unpack_id: Final = _BYTES.unpack
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_new = tuple.__new__

T = TypeVar("T", bound=tuple[int, int])


class _Pair(NamedTuple):
    ms: int
    seq: int


class StreamID(_Pair):
    """The ID of an entry: ``StreamID(5, 1)``, ``StreamID("5-1")``, ``StreamID(b"5-1")``.

    Immutable, ordered, hashable, picklable, and an ordinary tuple ``(ms, seq)`` as well.
    ``str()`` gives the text, ``bytes()`` the 16 bytes of a key, ``int()`` the 128-bit number;
    ``sid + n`` and ``sid - n`` count in that number, ``sid - other`` is their distance.

    >>> str(StreamID("5") + 1), StreamID("5-1") - StreamID("5-0")
    ('5-1', 1)

    Raises InvalidStreamID for text that is not an ID and for numbers outside 0 .. 2**64 - 1.
    """

    __slots__ = ()

    MIN: ClassVar[StreamID]  # 0-0, which no entry can have
    MAX: ClassVar[StreamID]

    def __new__(cls, ms: IDLike, seq: int | None = None) -> Self:
        if type(ms) is int and (seq is None or type(seq) is int):
            if seq is None:
                seq = 0
            if 0 <= ms <= MAX64 and 0 <= seq <= MAX64:
                return _new(cls, (ms, seq))
            raise InvalidStreamID(f"({ms}, {seq}) is not a stream ID: each half must lie in 0 .. 2**64 - 1")
        if seq is not None:
            raise InvalidStreamID(f"({ms!r}, {seq!r}) is not a stream ID: the halves must be integers")
        return _new(cls, parse_id(ms))

    def __str__(self) -> str:
        return f"{self[0]}-{self[1]}"

    def __repr__(self) -> str:
        return f"StreamID('{self[0]}-{self[1]}')"

    def __bytes__(self) -> bytes:
        return _BYTES.pack(self[0], self[1])

    def __int__(self) -> int:
        return self[0] << 64 | self[1]

    def __getnewargs__(self) -> tuple[int, int]:
        return self[0], self[1]

    def __add__(self, n: SupportsIndex) -> StreamID:  # type: ignore[override]
        if not isinstance(n, int):
            return NotImplemented
        return StreamID.from_int(int(self) + n)

    __radd__ = __add__

    @overload
    def __sub__(self, other: StreamID) -> int: ...
    @overload
    def __sub__(self, other: int) -> StreamID: ...
    def __sub__(self, other: StreamID | int) -> StreamID | int:
        if isinstance(other, StreamID):
            return int(self) - int(other)
        if not isinstance(other, int):
            return NotImplemented
        return StreamID.from_int(int(self) - other)

    @classmethod
    def from_bytes(cls, data: bytes) -> StreamID:
        """The inverse of ``bytes(sid)``: an ID from exactly 16 bytes, big-endian."""
        if len(data) != 16:
            raise InvalidStreamID(f"an ID has 16 bytes, these are {len(data)}")
        ms, seq = _BYTES.unpack(data)
        return make_id(ms, seq)

    @classmethod
    def from_int(cls, number: int) -> StreamID:
        """The inverse of ``int(sid)``: ms * 2**64 + seq as an ID. InvalidStreamID outside 0 .. 2**128 - 1."""
        if not 0 <= number <= MAX128:
            side = "before 0-0" if number < 0 else f"after {StreamID.MAX}"
            raise InvalidStreamID(f"there is no stream ID {side}")
        return make_id(number >> 64, number & MAX64)

    def next(self) -> StreamID:
        """The smallest greater ID; InvalidStreamID after the greatest."""
        ms, seq = self
        return make_id(ms, seq + 1) if seq < MAX64 else StreamID.from_int(int(self) + 1)

    def prev(self) -> StreamID:
        """The greatest smaller ID; InvalidStreamID before 0-0."""
        ms, seq = self
        return make_id(ms, seq - 1) if seq else StreamID.from_int(int(self) - 1)

    @property
    def datetime(self) -> datetime:
        """The milliseconds as a time in UTC; OverflowError beyond the year 9999."""
        try:
            return _EPOCH + timedelta(milliseconds=self[0])
        except OverflowError:
            raise OverflowError(f"{self} lies beyond the year 9999, the last of Python's datetime; use .ms") from None


def time_at(ms: int) -> datetime:
    """A time in ms since 1970, in UTC; one that lies beyond the year 9999 is the last of that."""
    try:
        return _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


IDLike = StreamID | str | bytes | int | datetime
IDs = IDLike | Iterable[IDLike]  # *ids of a call: each an ID, or one iterable of all
_NO_IDS: Final = StreamID, str, int, datetime, bytes, bytearray, memoryview  # but one, or what parse_id() refuses


now_ms: Callable[[], int] = clocks.now_ms  # what IDs, delivery times and idle times are made of


def make_id(ms: int, seq: int) -> StreamID:
    """A StreamID of two numbers already known to be right: no check, for inner loops."""
    return _new(StreamID, (ms, seq))


# In the kernels these five are C (stream_id.pxd): Python would make four objects around an ID, and write a row twice.

def id_of(cls: type[T], ms: int, seq: int) -> T:
    """The ID of two halves known to be right."""
    return _new(cls, (ms, seq))


def half_of(sid: tuple[int, int], place: int) -> int:
    """The milliseconds (0) or the number within them (1) of an ID."""
    return sid[place]


def begin_row(count: int) -> bytearray:
    """Room for the bytes of so many IDs."""
    return bytearray(16 * count)


def put_id(row: bytearray, at: int, ms: int, seq: int) -> None:
    """Write the 16 bytes of an ID at ``at``."""
    _BYTES.pack_into(row, at, ms, seq)


def end_row(row: bytearray) -> bytes:
    """The row that all of them have been put into."""
    return bytes(row)


StreamID.MIN = make_id(0, 0)
StreamID.MAX = make_id(MAX64, MAX64)


class NewID(NamedTuple):
    """What an append asked for: ``*`` has neither half, ``ms-*`` no seq, ``ms-seq`` both."""

    ms: int | None
    seq: int | None


AUTO: Final = NewID(None, None)


def parse_id(text: IDLike, also: str = "") -> StreamID:
    """One particular ID, as XADD, XDEL, XACK and XCLAIM take it: no ``-``, ``+``, ``$``.

    Without a second half that is 0. Integers are milliseconds, and so are datetimes. Raises InvalidStreamID, which
    names what the caller takes ``also``.
    """
    if isinstance(text, StreamID):
        return text
    if isinstance(text, int | datetime):
        return _of_ms(text, 0)
    halves = _halves(_ascii(text), 0)
    if halves is None:
        raise InvalidStreamID(f"{_show(text)} is not a stream ID; allowed here: {also}ms-seq or ms")
    return make_id(*halves)


def given_ids(ids: tuple[Any, ...]) -> Iterable[Any]:
    """The IDs of a call that takes ``*ids``: its arguments, or what is in the one iterable that it was given.

    InvalidStreamID for a pair of integers, which may be meant as one ID or as two.
    """
    if len(ids) != 1 or isinstance(one := ids[0], _NO_IDS) or hasattr(one, "id") or not isinstance(one, Iterable):
        return ids
    if isinstance(one, tuple) and len(one) == 2 and all(isinstance(half, int) for half in one):
        raise InvalidStreamID(f"{one!r} may be one stream ID or two; give StreamID{one!r}, or a list of milliseconds")
    return one


def ascending(ids: Iterable[IDLike]) -> list[StreamID]:
    """The IDs (as parse_id() takes them), sorted and without duplicates; checked first, as they mostly are already."""
    parsed = [sid if type(sid) is StreamID else parse_id(sid) for sid in ids]
    if not all(map(lt, parsed, islice(parsed, 1, None))):
        return sorted(set(parsed))
    return parsed


def parse_start(text: IDLike) -> StreamID:
    """The first ID of a range: ``-``, ``+``, ``ms``, ``ms-seq``, ``(ms-seq`` (excluded).

    The ID returned is always inside the range: ``(1-1`` gives 1-2. Raises InvalidStreamID,
    also for ``(`` before the greatest ID, behind which nothing can lie.
    """
    sid, excluded = _edge(text, 0)
    if not excluded:
        return sid
    if sid == StreamID.MAX:
        raise InvalidStreamID("invalid start ID for the interval: nothing comes after the last ID")
    return sid.next()


def parse_end(text: IDLike) -> StreamID:
    """The last ID of a range: as parse_start(), but a missing seq is the greatest possible.

    ``5`` ends at 5-18446744073709551615, ``(1-1`` gives 1-0. Raises InvalidStreamID, also
    for ``(0-0``, before which nothing can lie.
    """
    sid, excluded = _edge(text, MAX64)
    if not excluded:
        return sid
    if sid == StreamID.MIN:
        raise InvalidStreamID("invalid end ID for the interval: nothing comes before 0-0")
    return sid.prev()


def parse_new_id(text: IDLike) -> NewID:
    """The ID of an entry to come, as XADD takes it: ``*``, ``ms-*``, ``ms-seq`` or ``ms``.

    ``ms`` is ms-0. Raises InvalidStreamID; whether the ID is greater than the last one of
    the stream, and not 0-0, is for the stream to say.
    """
    if isinstance(text, StreamID):
        return NewID(*text)
    if isinstance(text, int | datetime):
        return NewID(*_of_ms(text, 0))
    data = _ascii(text)
    if data == b"*":
        return AUTO
    if data.endswith(b"-*"):
        ms = _number(data[:-2]) if len(data) <= MAX_TEXT else None
        halves = None if ms is None else NewID(ms, None)
    else:
        both = _halves(data, 0)
        halves = None if both is None else NewID(*both)
    if halves is None:
        raise InvalidStreamID(f"{_show(text)} is not a stream ID; allowed here: *, ms-*, ms-seq or ms")
    return halves


def _edge(text: IDLike, missing_seq: int) -> tuple[StreamID, bool]:
    """An end of a range, and whether it is itself excluded."""
    if isinstance(text, StreamID):
        return text, False
    if isinstance(text, int | datetime):
        return _of_ms(text, missing_seq), False
    data = _ascii(text)
    if data == b"-":
        return StreamID.MIN, False
    if data == b"+":
        return StreamID.MAX, False
    excluded = len(data) > 1 and data[:1] == b"("
    halves = _halves(data[1:] if excluded else data, missing_seq)
    if halves is None:
        raise InvalidStreamID(
            f"{_show(text)} is not an end of a range; allowed here: -, +, ms-seq, ms, "
            "or ( and an ID to exclude it"
        )
    return make_id(*halves), excluded


def _ascii(text: str | bytes) -> bytes:
    if isinstance(text, bytes):
        return text
    if isinstance(text, str):
        try:
            return text.encode("ascii")
        except UnicodeEncodeError:
            raise InvalidStreamID(f"{_show(text)} is not a stream ID: it is not ASCII") from None
    raise InvalidStreamID(
        f"a stream ID is a StreamID, str, bytes, int (milliseconds) or datetime, not {_kind_of(text)}"
    )


def _kind_of(value: object) -> str:
    kind = type(value).__name__
    if hasattr(value, "token"):
        return f"{kind}. A deferred entry has no ID before it is appended"
    return f"{kind}. Give the {kind}'s .id" if isinstance(getattr(value, "id", None), StreamID) else kind


def _of_ms(ms: int | datetime, seq: int) -> StreamID:
    if isinstance(ms, datetime):
        if ms.utcoffset() is None:
            raise InvalidStreamID(f"{ms!r} has no time zone; give it one, as by datetime.now(UTC) or .astimezone()")
        ms = (ms - _EPOCH) // timedelta(milliseconds=1)
    if isinstance(ms, bool) or not 0 <= ms <= MAX64:
        raise InvalidStreamID(f"{ms} is not a stream ID: milliseconds must lie in 0 .. 2**64 - 1")
    return make_id(int(ms), seq)


def _halves(data: bytes, missing_seq: int) -> tuple[int, int] | None:
    """Both numbers, split at the first hyphen; None where they are not an ID."""
    if len(data) > MAX_TEXT:
        return None
    first, hyphen, second = data.partition(b"-")
    ms = _number(first)
    seq = _number(second) if hyphen else missing_seq
    return None if ms is None or seq is None else (ms, seq)


def _number(text: bytes) -> int | None:
    """A u64 by Redis' string2ull: a canonical decimal, else whatever strtoull reads to the end.

    strtoull takes a sign and negates modulo 2**64. A plain "-1" has been refused before by
    the decimal rule, but "-01" and " -1" get through to it.
    """
    if len(text) < 20 and text.isdigit():  # nearly every one, for a third of the time
        return int(text)
    match = _STRTOULL.fullmatch(text)
    if match is None:
        return None
    sign, digits = match.groups()
    number = int(digits)
    if number > MAX64:
        return None
    if sign == b"-":
        plain = match.start(1) == 0 and digits[:1] != b"0" and number <= 1 << 63
        return None if plain else -number & MAX64
    return number


def _show(text: str | bytes) -> str:
    shown = repr(text)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
