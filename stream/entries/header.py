"""The header of a stream: one record with everything about it that is not an entry.

    [ name,
      last ms, last seq,            the greatest ID ever generated (or set), kept by deletions
      first ms, first seq,          the first live entry; 0-0 when there is none
      max-deleted ms, seq,          the greatest ID ever deleted by name (trims do not count)
      length,                       live entries
      entries added,                as Redis counts it; set_id may set it to anything
      next ordinal,                 entries really ever added: what ordinals are given from
      leaves, leaves ever added,    nodes there are, nodes there ever were
      [page bytes, max bytes, max entries, codec],      when a node is full, how it is sealed
      groups, next group,           consumer groups there are, the number the next one gets
      [window, cap],                of idempotent appends: seconds, IDs a producer; 0: not set (idempotent.py)
      [checked, {field: type}],     the schema, None or absent where there is none (schema.py)
      [maxlen, …, bytes],           the retention, likewise (retention.py); with max_bytes also the nodes' bytes
      codec,                        of values, likewise for raw (node/values.py)
      [deferred, due, next] ]       if an entry was ever deferred (deferred.py): how many are, when the first
                                    is due, the number the next one gets

It is rewritten by every commit that changes the stream, and its key sorts right behind the
stream's last node, so that both lie on one page.
"""

from __future__ import annotations

import contextlib
from itertools import islice, takewhile
from typing import Any, NamedTuple

from ...storage.errors import CorruptionError, InvalidArgument
from ...storage.format import keys, records
from ...storage.format.records import FORMAT_BYTE, checksum, pack
from ...storage.trees.rax import RaxTransaction, disorder, family_rows, step_from
from ..node.arguments import whole
from ..node.stream_id import MAX64
from ..node.values import RAW
from .retention import Retention
from .schema import StreamSchema

DEFAULT_PAGE_BYTES = 4080  # one overflow page of LMDB, see storage/format/records.py
COMPACT_PAGE_BYTES = 16368  # four of them: the form for history
GIB = 1 << 30
NEVER = 1 << 64  # ms, later than every time


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


class StreamHeader:
    """The header as it is worked on in memory."""

    __slots__ = (
        "codec", "deferred", "due", "entries_added", "first", "groups", "idempotence", "last", "leaves", "leaves_added",
        "length", "limits", "max_deleted", "name", "next_deferred", "next_group", "next_ordinal", "retention", "schema",
        "stored_bytes",
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
        self.retention: Retention | None = None
        self.stored_bytes: int = 0  # of all nodes
        self.codec: str = RAW
        self.deferred: int = 0
        self.due: int = NEVER
        self.next_deferred: int = 0

    def row(self) -> list[Any]:
        """The record's row."""
        schema = None if self.schema is None else [self.schema.checked, self.schema.fields]
        later = [self.deferred, self.due if self.deferred else None, self.next_deferred] if self.next_deferred else None
        last = [schema, self.retention, None if self.codec == RAW else self.codec, later]
        while last and last[-1] is None:
            last.pop()
        return [
            self.name, *self.last, *self.first, *self.max_deleted, self.length, self.entries_added,
            self.next_ordinal, self.leaves, self.leaves_added, self.limits,
            self.groups, self.next_group, self.idempotence, self.stored_bytes,
            *last,
        ]

    def begin_codec(self, codec: str | None, had: int) -> None:
        """Have this codec from the first entry on: if there were none before, and configure() has set no other."""
        if codec is not None and not had and self.codec == RAW:
            self.codec = codec

    def next_due(self) -> int | None:
        """When the next deferred entry can be appended, in ms: None if there is none, or no ID for it."""
        return self.due if self.deferred and self.last < (MAX64, MAX64) else None

    def sealed(self, seed: int) -> bytes:
        """The record: records.seal() of row(). ``seed``: the hash of its key."""
        body = FORMAT_BYTE + pack(self.row())
        sealed: bytes = checksum(body, seed)[::-1] + body
        return sealed

    @classmethod
    def from_row(cls, row: list[Any]) -> StreamHeader:
        """The inverse of row()."""
        header = cls(row[0], NodeLimits(*row[12]))
        header.last = (row[1], row[2])
        header.first = (row[3], row[4])
        header.max_deleted = (row[5], row[6])
        header.length, header.entries_added, header.next_ordinal = row[7], row[8], row[9]
        header.leaves, header.leaves_added = row[10], row[11]
        header.groups, header.next_group = row[13], row[14]
        header.idempotence = (row[15][0], row[15][1])
        header.stored_bytes = row[16]
        if len(row) > 17:
            schema, retention, codec, later = (*row[17:21], None, None, None)[:4]
            header.schema = schema and StreamSchema(*schema)
            header.retention = retention and Retention(*retention)
            header.codec = codec or RAW
            if later is not None:
                header.deferred, due, header.next_deferred = later[:3]
                header.due = NEVER if due is None else due
        return header


def load(txn: RaxTransaction, number: int) -> StreamHeader | None:
    """The header of a stream by its number; None if there is none."""
    key = keys.header_key(number)
    value = txn.get(key)
    return None if value is None else StreamHeader.from_row(records.unseal(key, value))


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
    cursor = txn.cursor()
    if step_from(cursor, keys.NAMES):
        for found, value in cursor.iternext():
            key = bytes(found)
            if names and key <= keys.NAMES + names[-1]:
                raise disorder(key, keys.NAMES + names[-1])
            if not key.startswith(keys.NAMES):
                break
            names.append(key[len(keys.NAMES):])
            try:
                numbers.add(records.unseal(key, bytes(value))[0])
            except CorruptionError:
                continue  # its header has the name
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
    if known is not None:
        header = load(txn, known)
        if header is not None and header.name == name:
            return known, header
    number = number_of(txn, name)
    if number is None:
        return None
    header = load(txn, number)
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
