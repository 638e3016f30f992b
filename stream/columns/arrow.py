"""Arrow: entries as record batches, decoded from listpacks without an object per entry.

    nodes ──listpacks──> decoder.Decoder ──buffers──> RecordBatch of up to 65,536 rows
      │                    (a kernel)                   owned memory, no copy on the way
      ├ scan.read_nodes()   a store, chunk by chunk
      └ any other source        a shard, a file

        rows = batches(nodes, projection({"item": "string", "qty": "bigint"}), start=…, end=…)

A batch spans nodes and owns its memory: it may outlive the transaction, the store and the process's
map of it. pyarrow is loaded by the first call that needs it; NotInstalled says how to get it.

parse_values.py defines which values can become values of a type.
"""

from __future__ import annotations

import re
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ...storage.errors import CorruptionError, InvalidArgument, MalformedValue
from ..node.stream_id import StreamID
from .decoder import Decoder
from .json_values import Nested
from .projection import CORRUPT_COLUMN, Projection, load, projection
from .scan import Packed, Range, RangeNode, StoredNode, unpacked

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "CORRUPT_COLUMN", "FAILFAST", "MODES", "PERMISSIVE", "ROWS", "DamagedNodeWarning", "Projection", "Tally",
    "batches", "checked_mode", "load", "of_ranges", "projection", "reader",
]

ROWS = 65_536  # of a batch, at most
_MOST_ROWS = 1 << 22
_UTC = ("UTC", "Etc/UTC", "Z", "GMT", "UT")
_OFFSET = re.compile(r"(?:UTC?|GMT)?([+-])(?:(\d\d?)(?::(\d\d?)(?::(\d\d))?)?|(\d\d)(\d\d)(\d\d)?)")  # as in Java
_EPOCH, _MICROSECOND = datetime(1970, 1, 1), timedelta(microseconds=1)
PERMISSIVE, FAILFAST = MODES = ("PERMISSIVE", "FAILFAST")  # as Spark's own sources name them


class DamagedNodeWarning(UserWarning):
    """A node that cannot be read was passed over, because ``skip_damaged`` said so."""


class Tally:
    """Counts of a scan, kept up to date batch by batch."""

    def __init__(self) -> None:
        self.rows = 0
        self.malformed = 0  # rows with a value that is not of its column's type
        self.damaged: list[CorruptionError] = []  # nodes passed over


def batches(nodes: Iterable[StoredNode], columns: Projection, *, start: StreamID = StreamID.MIN,
            end: StreamID = StreamID.MAX, stream: str = "", batch_size: int = ROWS, mode: str = PERMISSIVE,
            skip_damaged: bool = False, tally: Tally | None = None) -> Iterator[pa.RecordBatch]:
    """The live entries of ``nodes`` with start <= ID <= end, in order, as record batches.

    ``nodes``         in ascending order: (master ID, listpack), or (master ID, CorruptionError)
                      in the place of one that cannot be read. ``scan.read_nodes()`` returns
                      those of a store; any other iterable of pairs will do. Their entries may come
                      before ``start`` and behind ``end``
    ``columns``       what projection() has made of a schema; batches have exactly its schema
    ``stream``        the stream's name: for the column that holds it, and for messages
    ``batch_size``    rows of a batch at most; all but the last have so many, unless their values
                      come to 64 MiB before. No batch is empty
    ``mode``          PERMISSIVE: a value that is not of its column's type is null, and the entry's
                      text is in the corrupt-record column where the projection has one.
                      FAILFAST: MalformedValue names stream, ID, field and value
    ``skip_damaged``  pass over nodes that cannot be read, each with a DamagedNodeWarning, and with
                      a row (the master's ID, all else null) where there is a corrupt-record column.
                      Otherwise the CorruptionError is raised
    ``tally``         counts rows, malformed ones, and damaged nodes

    Raises MalformedValue also in mode PERMISSIVE where a value is missing or malformed and its
    column is not nullable. Cost: some 0.05 to 0.25 µs an entry, compiled.
    """
    of = Range(stream.encode("utf-8", "backslashreplace"), start, end)
    return of_ranges(_up_to_end(nodes, of), columns, batch_size=batch_size, mode=mode, skip_damaged=skip_damaged,
                     tally=tally)


def of_ranges(nodes: Iterable[RangeNode], columns: Projection, *, batch_size: int = ROWS, mode: str = PERMISSIVE,
              skip_damaged: bool = False, tally: Tally | None = None, most: int = ROWS) -> Iterator[pa.RecordBatch]:
    """batches() of the entries of several ranges, as scan.read_ranges() returns their nodes: they share batches.

    Where it is known that they are few, ``most`` of them, no room is made for more.
    """
    if type(batch_size) is not int or not 1 <= batch_size <= _MOST_ROWS:
        raise InvalidArgument(f"batch_size={batch_size!r} must be a whole number from 1 to {_MOST_ROWS:,}")
    timed = any(kind == "nested" or (kind == "timestamp" and not naive) for kind, _, naive, _ in columns.columns)
    local = _to_utc(time_zone(columns.zone)) if timed and columns.zone not in _UTC else None
    decoded = [
        (*column, Nested(field.type, local) if column[0] == "nested" else None, column[1] in columns.folded)
        for field, column in zip(columns.schema, columns.columns, strict=True)
    ]
    decoder = Decoder(decoded, min(batch_size, max(most, 1)), checked_mode(mode) == FAILFAST, local)
    return _batches(nodes, columns, decoder, skip_damaged, tally or Tally())


def _up_to_end(nodes: Iterable[StoredNode], of: Range) -> Iterator[RangeNode]:
    for master, listpack in nodes:
        if master > of.end and not isinstance(listpack, CorruptionError):
            return
        yield of, master, listpack, 0


def _batches(nodes: Iterable[RangeNode], columns: Projection, decoder: Decoder, skip_damaged: bool,
             tally: Tally) -> Iterator[pa.RecordBatch]:
    last: Range | None = None
    streams: list[tuple[str, int]] = []  # of the batch, and the row where each begins
    for of, master, held, begin in nodes:
        if of is not last:
            last = of
            stream = of.name.decode("utf-8", "backslashreplace")
            decoder.between(stream, *of.start, *of.end)
            streams.append((stream, decoder.rows))
        if isinstance(held, Packed):
            held, begin = unpacked(of, held), 0
        if isinstance(held, CorruptionError):
            error = held
        else:
            try:
                done = decoder.add(held, *master, begin)
                while not done:
                    yield _taken(decoder, columns, streams, tally)
                    done = decoder.fill()
                continue
            except CorruptionError as damage:
                damage.stream, damage.node = repr(stream), f"{master[0]}-{master[1]}"
                error = damage
        if decoder.rows and (not skip_damaged or decoder.full):
            yield _taken(decoder, columns, streams, tally)
        if not skip_damaged:
            raise error
        tally.damaged.append(error)
        warnings.warn(f"passed over: {error}", DamagedNodeWarning, stacklevel=2)
        if columns.has_corrupt_column and master <= of.end:  # else a later part of the scan reports it
            decoder.add_damaged(*master, str(error).encode())
    if decoder.rows:
        yield _taken(decoder, columns, streams, tally)


def reader(nodes: Iterable[RangeNode], columns: Projection, **options: Any) -> pa.RecordBatchReader:
    """of_ranges() as a pyarrow.RecordBatchReader, which DuckDB, Polars and pyarrow read; lazy."""
    return load().RecordBatchReader.from_batches(columns.schema, of_ranges(nodes, columns, **options))


def time_zone(name: str) -> tzinfo:
    """A time zone by its name, or by its offset: Europe/Berlin, +02:00. InvalidArgument for any other text."""
    offset = _OFFSET.fullmatch(name)
    if offset is None:
        with suppress(ValueError, OSError, ZoneInfoNotFoundError):
            return ZoneInfo("UTC" if name in _UTC else name)
    else:
        hours, minutes, seconds = (int(part or 0) for part in offset.groups()[1 if offset[2] else 4 :][:3])
        east = timedelta(hours=hours, minutes=minutes, seconds=seconds)
        if east <= timedelta(hours=18) and minutes < 60 and seconds < 60:
            return timezone(-east if offset[1] == "-" else east)
    raise InvalidArgument(f"there is no time zone {name!r}; write Europe/Berlin, or +02:00")


def _to_utc(zone: tzinfo) -> Callable[[int], int]:
    """From a local time to UTC, in µs since 1970. Of two instants the first; in a gap, as the clock before it."""
    def utc(local: int) -> int:
        offset = (_EPOCH + timedelta(microseconds=local)).replace(tzinfo=zone).utcoffset()
        assert offset is not None
        return local - offset // _MICROSECOND

    return utc


def checked_mode(mode: str) -> str:
    """The mode in capitals, as Spark takes it in any; InvalidArgument for any other."""
    if not isinstance(mode, str) or mode.upper() not in MODES:
        raise InvalidArgument(f"mode={mode!r} is unknown; it is one of {', '.join(MODES)}")
    return mode.upper()


def _taken(decoder: Decoder, columns: Projection, streams: list[tuple[str, int]], tally: Tally) -> pa.RecordBatch:
    """The batch that the decoder has made. Of ``streams`` the last one stays, at the beginning of the next."""
    pa = load()
    rows = decoder.rows
    arrays = []
    for field, column, buffers in zip(columns.schema, columns.columns, decoder.take(), strict=True):
        if column[0] == "constant":
            arrays.append(_names(pa, field.type, rows, streams))
            continue
        made = _array(pa, field.type, rows, *buffers)
        if buffers[0] and not field.nullable:
            row = made.is_null().index(True).as_py()
            stream = next(name for name, begin in reversed(streams) if begin <= row)
            raise MalformedValue(
                f"stream {stream!r}: {buffers[0]} of {rows} entries have no value for column {field.name!r}, which is "
                "not nullable. Let the schema allow nulls there"
            )
        arrays.append(made)
    streams[:] = [(streams[-1][0], 0)]
    tally.rows += rows
    tally.malformed = decoder.malformed
    return pa.RecordBatch.from_arrays(arrays, schema=columns.schema)


def _names(pa: Any, kind: Any, rows: int, streams: list[tuple[str, int]]) -> Any:
    """The column of the name of each row's stream."""
    if len(streams) == 1:
        return pa.repeat(pa.scalar(streams[0][0], kind), rows)
    ends = [begin for _, begin in streams[1:]] + [rows]
    places = array("i")
    for place, (end, (_, begin)) in enumerate(zip(ends, streams, strict=True)):
        places.extend([place] * (end - begin))
    return pa.array([name for name, _ in streams], kind).take(pa.Array.from_buffers(
        pa.int32(), rows, [None, pa.py_buffer(places)]))


def _array(pa: Any, kind: Any, rows: int, nulls: int, *buffers: Any) -> Any:
    """An array over the buffers of a column: validity, then what columns.Column.take() says."""
    if isinstance(buffers[1], list):
        return pa.array(buffers[1], kind)
    arrow_buffers = [None if data is None else pa.py_buffer(data) for data in buffers]
    if not pa.types.is_map(kind):
        return pa.Array.from_buffers(kind, rows, arrow_buffers, nulls)
    valid, ends, *both = arrow_buffers
    pairs = len(buffers[2]) // 4 - 1
    keys = pa.Array.from_buffers(kind.key_type, pairs, [None, *both[:2]], 0)
    values = pa.Array.from_buffers(kind.item_type, pairs, [None, *both[2:]], 0)
    entries = pa.StructArray.from_arrays([keys, values], fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(kind, rows, [valid, ends], nulls, children=[entries])
