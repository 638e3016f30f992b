"""The header of a stream: one record with everything about it that is not an entry.

    [ name,
      numbers,                      14 of 8 bytes, little-endian, in one binary:
          last ms, last seq             the greatest ID ever generated (or set), kept by deletions
          length                        live entries
          entries added                 as Redis counts it; set_id may set it to anything
          next ordinal                  entries really ever added: what ordinals are given from
          stored bytes                  of all nodes
          leaves, leaves ever added     nodes there are, nodes there ever were
          first ms, first seq           the first live entry; 0-0 when there is none
          max-deleted ms, seq           the greatest ID ever deleted by name (trims do not count)
          groups, next group            consumer groups there are, the number the next one gets
      [page bytes, max bytes, max entries, codec],      when a node is full, how it is sealed
      [window, cap],                of idempotent appends: seconds, IDs a producer; 0: not set (idempotent.py)
      [checked, {field: type}],     the schema, None or absent where there is none (schema.py)
      [maxlen, …],                  the retention, likewise (retention.py)
      codec,                        of values, likewise for raw (node/values.py)
      [deferred, due, next, back] ] if an entry was ever deferred (deferred.py): how many are, when the first
                                    is due, the number the next one gets; if a tick was (schedules.py), before
                                    when the clock has gone back

It is rewritten by every commit that changes the stream, and its key sorts right behind the
stream's last node, so that both lie on one page. The numbers come first, those of an append foremost: what surrounds
them is packed once (records.frame()), and a commit's record in the log holds the few bytes that are others.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from itertools import islice, takewhile
from typing import Any, NamedTuple, TypeVar

from ...storage.errors import CorruptionError, InvalidArgument
from ...storage.format import keys, records
from ...storage.format.binary import flipped, joined, six_numbers  # cimport
from ...storage.format.records import checksum, frame
from ...storage.trees.rax import RaxTransaction, family_rows
from ..node.arguments import whole
from ..node.stream_id import MAX64, now_ms
from ..node.values import RAW
from .schema import StreamSchema

SOURCE_HASH = ""

DEFAULT_PAGE_BYTES = 4080  # one overflow page of LMDB, see storage/format/records.py
COMPACT_PAGE_BYTES = 16368  # four of them: the form for history
GIB = 1 << 30
NEVER = 1 << 64  # ms, later than every time
_MOVING, _APPENDED, _STILL, _NUMBERS = 48, struct.Struct("<6Q"), struct.Struct("<8Q"), struct.Struct("<14Q")
_CHECKSUM = 8  # bytes of it before the record
_EXTENT = struct.Struct("<3Q8xQ24x2Q32x")  # those of the 14 that an Extent has


class NodeLimits(NamedTuple):
    """When a node is full, and how it is stored once it is.

    ``page_bytes``  our own rule: the encoded block fills so many bytes, or goes on to fill more
                    pages where it would leave these rather empty. Used unless ``max_bytes`` is given.
    ``max_bytes``   Redis' rule (stream-node-max-bytes): the listpack plus the raw length of
                    the new fields and values stays below it. 0 means 1 GiB.
    ``max_entries`` live and deleted entries of a node; 0 is no limit.
    ``codec``       records.RAW or records.ZSTD, for nodes that are full. The tail is always raw.
    """

    page_bytes: int = DEFAULT_PAGE_BYTES
    max_bytes: int | None = None
    max_entries: int = 0
    codec: int = records.RAW

    def changed(self, compression: str | None = None, node_max_bytes: int | None = None,
                node_max_entries: int | None = None) -> NodeLimits:
        """These limits with what is not None replaced, as open() and stream() name them."""
        limits = self
        if compression is not None:
            if compression not in ("none", "zstd", "compact"):
                raise InvalidArgument(
                    f"compression={compression!r} is unknown; it is 'none', 'zstd', or 'compact' "
                    "(zstd in nodes of 16 KB or more, for history)"
                )
            limits = limits._replace(
                codec=records.RAW if compression == "none" else records.ZSTD,
                page_bytes=COMPACT_PAGE_BYTES if compression == "compact" else DEFAULT_PAGE_BYTES,
            )
        for name, value in (("node_max_bytes", node_max_bytes), ("node_max_entries", node_max_entries)):
            whole(name, value, 0, GIB, none="")
        if node_max_bytes is not None:
            limits = limits._replace(max_bytes=node_max_bytes or GIB)
        if node_max_entries is not None:
            limits = limits._replace(max_entries=node_max_entries)
        return limits


class Extent(NamedTuple):
    """What a scan needs to know of a stream: read in half the time of the whole header."""

    name: bytes
    last: tuple[int, int]
    first: tuple[int, int]
    length: int
    next_ordinal: int


class StreamHeader:
    """The header as it is worked on in memory."""

    __slots__ = (
        "_frame", "_framed", "back", "codec", "deferred", "due", "entries_added", "first", "groups", "idempotence",
        "last", "leaves", "leaves_added", "length", "limits", "max_deleted", "name", "next_deferred", "next_group",
        "next_ordinal", "retention", "schema", "stored_bytes",
    )

    def __init__(self, name: bytes, limits: NodeLimits) -> None:
        self.name: bytes = name
        self.last: tuple[int, int] = (0, 0)
        self.first: tuple[int, int] = (0, 0)
        self.max_deleted: tuple[int, int] = (0, 0)
        self.length: int = 0
        self.entries_added: int = 0
        self.next_ordinal: int = 0
        self.leaves: int = 0
        self.leaves_added: int = 0
        self.limits: NodeLimits = limits
        self.groups: int = 0
        self.next_group: int = 1
        self.idempotence: tuple[int, int] = (0, 0)
        self.schema: StreamSchema | None = None
        self.retention: list[Any] | None = None  # the row of a Retention with a rule (retention.py)
        self.stored_bytes: int = 0  # of all nodes
        self.codec: str = RAW
        self.deferred: int = 0
        self.due: int = NEVER
        self.next_deferred: int = 0
        self.back: int = 0  # ms: where it is earlier, ticks have been planned by a clock that was wrong
        self._framed: tuple[Any, ...] = ()  # what all but the numbers that move with an append was packed of
        self._frame: tuple[bytes, bytes] = (b"", b"")

    def row(self) -> list[Any]:
        """The record's row."""
        return [self.name, self._moving() + self._still(), *self._rest()]

    def _moving(self) -> bytes:
        ms, seq = self.last
        return six_numbers(ms, seq, self.length, self.entries_added, self.next_ordinal, self.stored_bytes)

    def _still(self) -> bytes:
        return _STILL.pack(self.leaves, self.leaves_added, *self.first, *self.max_deleted, self.groups, self.next_group)

    def _rest(self) -> list[Any]:
        schema = None if self.schema is None else [self.schema.checked, self.schema.fields]
        later = [self.deferred, self.due if self.deferred else None, self.next_deferred] if self.next_deferred else None
        if later is not None and self.back:
            later.append(self.back)
        last = [schema, self.retention, None if self.codec == RAW else self.codec, later]
        while last and last[-1] is None:
            last.pop()
        return [self.limits, self.idempotence, *last]

    def begin_codec(self, codec: str | None, had: int) -> None:
        """Have this codec from the first entry on: if there were none before, and configure() has set no other."""
        if codec is not None and not had and self.codec == RAW:
            self.codec = codec

    def next_due(self) -> int | None:
        """When the next deferred entry can be appended, in ms: None if there is none, or no ID for it."""
        if not self.deferred or self.last == (MAX64, MAX64):
            return None
        return 0 if self.back and now_ms() < self.back else self.due

    def is_due(self, now: int) -> bool:
        """Whether there is something for deferred.release()."""
        return not self.back <= now < self.due

    def _frame_of(self) -> tuple[bytes, bytes]:
        """What the record has before the numbers that move with an append, and behind them."""
        of = (self.leaves, self.leaves_added, self.first, self.max_deleted, self.groups, self.next_group, self.name,
              self.limits, self.idempotence, self.schema, self.retention, self.codec, self.deferred, self.due,
              self.next_deferred, self.back)
        if of != self._framed:
            before, behind = frame(self.name, _MOVING + _STILL.size, self._rest())
            self._frame = before, self._still() + behind
            self._framed = of
        return self._frame

    def sealed(self, seed: int) -> bytes:
        """The record: records.seal() of row(). ``seed``: the hash of its key."""
        before, behind = self._frame_of()
        body = joined(joined(before, self._moving()), behind)
        return joined(flipped(checksum(body, seed)), body)

    def follow(self, record: bytes, seed: int) -> bool:
        """Become what another process has written, where no more has changed than the numbers that an append moves.

        So no node has come or gone. False, and nothing done, where more has, or the record is damaged: it is to be
        read anew.
        """
        before, behind = self._frame_of()
        at = _CHECKSUM + len(before)
        if (len(record) != at + _MOVING + len(behind) or not record.startswith(before, _CHECKSUM)
                or not record.endswith(behind) or flipped(checksum(record[_CHECKSUM:], seed)) != record[:_CHECKSUM]):
            return False
        (ms, seq, self.length, self.entries_added, self.next_ordinal,
         self.stored_bytes) = _APPENDED.unpack_from(record, at)
        self.last = (ms, seq)
        return True

    @classmethod
    def from_row(cls, row: list[Any]) -> StreamHeader:
        """The inverse of row()."""
        header = cls(row[0], NodeLimits(*row[2]))
        (last, last_seq, header.length, header.entries_added, header.next_ordinal, header.stored_bytes, header.leaves,
         header.leaves_added, first, first_seq, deleted, deleted_seq, header.groups, header.next_group,
         ) = numbers(_NUMBERS, row)
        header.last, header.first, header.max_deleted = (last, last_seq), (first, first_seq), (deleted, deleted_seq)
        header.idempotence = (row[3][0], row[3][1])
        if len(row) > 4:
            schema, retention, codec, later = (*row[4:8], None, None, None)[:4]
            header.schema = schema and StreamSchema(*schema)
            header.retention = retention
            header.codec = codec or RAW
            if later is not None:
                header.deferred, due, header.next_deferred = later[:3]
                header.due = NEVER if due is None else due
                header.back = later[3] if len(later) > 3 else 0
        return header


def numbers(of: struct.Struct, row: list[Any]) -> tuple[Any, ...]:
    """The numbers of a record's row. CorruptionError where they are not so many."""
    try:
        return of.unpack(row[1])
    except (struct.error, TypeError, IndexError) as error:
        raise CorruptionError(f"the record of {shown(row[0])} has no numbers: {error}") from None


H = TypeVar("H", StreamHeader, Extent)


def load(txn: RaxTransaction, number: int) -> StreamHeader | None:
    """The header of a stream by its number; None if there is none."""
    key = keys.header_key(number)
    value = txn.get(key)
    return None if value is None else StreamHeader.from_row(records.unseal(key, value))


def _load_extent(txn: RaxTransaction, number: int) -> Extent | None:
    key = keys.header_key(number)
    value = txn.get(key)
    if value is None:
        return None
    row = records.unseal(key, value)
    ms, seq, length, ordinal, first_ms, first_seq = numbers(_EXTENT, row)
    return Extent(row[0], (ms, seq), (first_ms, first_seq), length, ordinal)


def number_of(txn: RaxTransaction, name: bytes) -> int | None:
    """The number of the stream of that name; None if there is none."""
    key = keys.NAMES + name
    value = txn.get(key)
    if value is None:
        return None
    number: int = records.unseal(key, value)[0]
    return number


def names_between(txn: RaxTransaction, start: bytes, end: bytes | None, count: int | None) -> list[bytes]:
    """The names of streams from ``start`` up to ``end``, which is not one of them, in order: ``count`` at most."""
    names = (bytes(key[len(keys.NAMES):]) for key, _ in family_rows(txn, keys.NAMES, keys.NAMES + start))
    return list(islice(takewhile(lambda name: end is None or name < end, names), count))


def all_names(txn: RaxTransaction) -> list[bytes]:
    """The names of all streams, in order. CorruptionError if a stream's name is not among them.

    About 4 µs a stream: that each has a name is seen by the numbers; no header is read.
    """
    names: list[bytes] = []
    numbers = set()
    for key, value in family_rows(txn, keys.NAMES):
        names.append(key[len(keys.NAMES):])
        with contextlib.suppress(CorruptionError):  # its header has the name
            numbers.add(records.unseal(key, value)[0])
    cursor = txn.cursor()
    has_row = cursor.set_range(keys.stream_span(1)[0])
    while has_row:
        number = int.from_bytes(cursor.key()[:8], "big")
        header = None
        if number not in numbers:
            with contextlib.suppress(CorruptionError):  # a damaged header: reading it will raise
                header = load(txn, number)
        if header is not None and header.name not in names:  # without a header it is being swept
            raise CorruptionError("no name leads to the stream: it is missing or damaged", stream=shown(header.name))
        behind = keys.stream_span(min(number, (1 << 64) - 2))[1]
        has_row = cursor.set_range(behind) and cursor.key()[:8] > number.to_bytes(8, "big")  # damage can lead back
    return names


def find(txn: RaxTransaction, name: bytes, known: int | None = None) -> tuple[int, StreamHeader] | None:
    """Number and header of the stream of that name; None if there is none.

    ``known`` is the number a handle saw last: valid as long as the header there has the
    name, which saves looking it up. CorruptionError if a name leads to no header.
    """
    return _found(load, txn, name, known)


def find_extent(txn: RaxTransaction, name: bytes, known: int | None = None) -> tuple[int, Extent] | None:
    """find() for a scan."""
    return _found(_load_extent, txn, name, known)


def _found(read: Callable[[RaxTransaction, int], H | None], txn: RaxTransaction, name: bytes,
           known: int | None) -> tuple[int, H] | None:
    if known is not None:
        header = read(txn, known)
        if header is not None and header.name == name:
            return known, header
    number = number_of(txn, name)
    if number is None:
        return None
    header = read(txn, number)
    if header is None:
        raise CorruptionError("the stream's header is missing", stream=shown(name))
    return number, header


def shown(name: str | bytes) -> str:
    """A name for messages: quoted, text where it is text."""
    if isinstance(name, str):
        name = name.encode("utf-8", "surrogateescape")
    try:
        return repr(name.decode())
    except UnicodeDecodeError:
        return repr(name)
