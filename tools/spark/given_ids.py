"""Given IDs: rows that bring their own, sorted into files by tasks and merged into the stream by the driver.

    task      rows as they come ── some MB, sorted ──> a run, 7-5f0c9a.ids      [ms, seq, fields] … nil
              … or an event time instead of an ID ───> a run, 7-81b2e0.times    [ms, µs within it, fields] … nil
    driver    all runs ── merged, at most 256 at a time ──> rows in the order of their IDs ──> extend(), piece by piece

Rows with an event time get their seq when they are merged: they are numbered within their millisecond in the order of
their microseconds, then of the bytes of their fields. So the same rows get the same IDs, however Spark has cut them.

A task holds the rows of one run, the driver two pieces and a block of each run that it merges.
"""

from __future__ import annotations

import heapq
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
from pyspark.sql import types

from ...storage.errors import IDTooSmall, InvalidArgument, InvalidStreamID, StoreError
from ...stream.entries.header import shown
from ...stream.node.arguments import name_bytes
from ...stream.node.flattened import Flattened
from ...stream.node.stream_id import MAX64, StreamID, make_id
from ...stream.stream import Stream
from .options import SKIP

if TYPE_CHECKING:
    import pyarrow as pa

Row = list[Any]  # ms, then seq or what its order within the ms begins with, then the fields, flattened

TIMES = ".times"
_IDS = ".ids"
RUN_BYTES = 64 << 20  # of a task's rows, as Python holds them
_PER_VALUE = 56  # bytes that an object of Python takes beside a value's own
FAN_IN = 256  # files that are read at a time
_BLOCK = 1 << 16
_KINDS = {"id": types.StringType, "id_ms": types.IntegralType, "id_seq": types.IntegralType}


@dataclass(frozen=True)
class GivenIDs:
    """Which columns of a frame its rows' IDs come from, by option idFrom."""

    column: str
    seq: str | None
    kind: types.DataType  # of the column
    taken: frozenset[str]  # columns that become no fields

    @classmethod
    def of(cls, name: str, schema: types.StructType) -> GivenIDs:
        """InvalidArgument for a column that is not there or of no type that IDs come from."""
        named = {field.name.lower(): field for field in schema.fields} | {field.name: field for field in schema.fields}
        column = named.get(name) or named.get(name.lower())
        if column is None:
            raise InvalidArgument(f"option idFrom={name!r}: there is no such column. There are: {', '.join(named)}")
        own = column.name.lower()
        seq = named.get("id_seq") if own == "id_ms" else None
        if own == "id_seq":
            raise InvalidArgument(f"option idFrom={name!r}: this is half of an ID. Name id_ms; id_seq is taken with it")
        for each in filter(None, (column, seq)):
            kinds = _KINDS.get(each.name.lower(), (types.IntegralType, types.TimestampType))
            if not isinstance(each.dataType, kinds):
                raise InvalidArgument(
                    f"option idFrom={name!r}: column {each.name!r} is {each.dataType.simpleString()}. IDs come from "
                    "id, a string (ms-seq), from id_ms and, if it is there, id_seq, both whole numbers, or from a "
                    "column of another name, which is a timestamp or a whole number of milliseconds since 1970"
                )
        is_map = any(isinstance(field.dataType, types.MapType) for field in schema.fields)
        halves = [each.name for each in (column, seq) if each is not None]
        return cls(column.name, None if seq is None else seq.name, column.dataType,
                   frozenset(halves if is_map or own in _KINDS else ()))

    @property
    def suffix(self) -> str:
        """Of the files: whether rows have IDs, or times."""
        return _IDS if self.seq or isinstance(self.kind, types.StringType) else TIMES

    def of_rows(self, batch: pa.RecordBatch) -> list[tuple[int, int]]:
        """What a row begins with, for each. InvalidArgument for what is null or lies before 1970; InvalidStreamID."""
        names = " or ".join(filter(None, (self.column, self.seq)))
        columns = [batch.column(name) for name in (self.column, self.seq) if name]
        if any(column.null_count for column in columns):
            raise InvalidArgument(f"{names} is null in some row. An ID is needed: fill it in, or filter the row out")
        if isinstance(self.kind, types.StringType):
            try:
                return [StreamID(text) for text in columns[0].to_pylist()]
            except InvalidStreamID as error:
                raise InvalidStreamID(f"column {self.column!r}: {error}") from None
        if isinstance(self.kind, types.TimestampType):
            columns[0] = columns[0].cast("int64")
        values = [column.to_pylist() for column in columns]
        if min(map(min, values), default=0) < 0:
            raise InvalidArgument(f"{names} is negative in some row, or lies before 1970, from where IDs count")
        if isinstance(self.kind, types.TimestampType):
            return [divmod(micros, 1000) for micros in values[0]]
        return list(zip(values[0], values[1] if self.seq else [0] * len(values[0]), strict=True))


def sort(rows: Iterable[tuple[list[Row], int]], folder: Path, prefix: str, suffix: str,
         run_bytes: int = RUN_BYTES) -> list[str]:
    """Put rows, which come with the size of their values, into sorted runs. The names of the files."""
    names: list[str] = []
    held: list[Row] = []
    size = 0
    for some, size_of_values in rows:
        held += some
        size += size_of_values + _PER_VALUE * sum([len(row[2]) for row in some])
        if size > run_bytes:
            names.append(_write(sorted(held), folder, prefix, suffix))
            held, size = [], 0
    return [*names, _write(sorted(held), folder, prefix, suffix)] if held else names


def pieces(paths: list[Path], size: int, done: int, numbered: bool,
           fan_in: int = FAN_IN) -> Iterator[tuple[list[Row], bool]]:
    """The rows of these runs behind the first ``done``, in the order of their IDs, and whether these are the last.

    Rows with times have a seq of None if they are not to be ``numbered``. InvalidArgument, before any row, for two of
    one ID. Files that are merged first lie beside those given, under the same prefix.
    """
    if not paths:
        return
    while len(paths) > fan_in:
        some, paths = paths[:fan_in], paths[fan_in:]
        prefix = some[0].name.partition("-")[0]
        paths.append(some[0].with_name(_write(_merged(some), some[0].parent, prefix, some[0].suffix)))
    rows = _merged(paths)
    if paths[0].suffix == TIMES:
        rows = _numbered(rows) if numbered else ([row[0], None, row[2]] for row in rows)
    elif not done:
        for row, following in pairwise(_merged(paths)):
            if row[:2] == following[:2]:
                raise InvalidArgument(f"two rows have the ID {make_id(*row[:2])}. Each entry has its own: leave one "
                                      "out, or let id_seq tell them apart")
    rows = islice(rows, done, None)
    piece = list(islice(rows, size))
    while piece:
        following_piece = list(islice(rows, size))
        yield piece, not following_piece
        piece = following_piece


def append(stream: Stream[Any], rows: list[Row], skip: bool) -> None:
    """Append rows in the order of their IDs, in a transaction; ``skip``: but for those that are there already.

    IDTooSmall for one whose ID is not greater than the stream's last, and which is not to be skipped, or not there.
    """
    name, last = shown(name_bytes(stream.name)), stream.last_id
    ms, seq, _ = rows[0]
    if skip and seq is not None:
        rows = rows[_count_known(stream, name, rows, last) :]
    elif (ms, MAX64 if seq is None else seq) <= last:
        hint = "Filter out what is late" if seq is None else (
            f"If rows up to there are in the stream already, give onExisting={SKIP!r}")
        raise IDTooSmall(f"a row has the ID {ms}-{'*' if seq is None else seq}, which is not greater than the last ID "
                         f"of stream {name}, {last}. IDs only ascend. {hint}")
    ids = [f"{ms}-*" if seq is None else make_id(ms, seq) for ms, seq, _ in rows]
    stream.extend(Flattened([row[2] for row in rows]), ids)


def _count_known(stream: Stream[Any], name: str, rows: list[Row], last: StreamID) -> int:
    """How many rows do not lie behind ``last``. IDTooSmall unless they are all there as they are."""
    count = bisect_right(rows, last, key=lambda row: make_id(row[0], row[1]))
    entries = stream.range(make_id(*rows[0][:2]), make_id(*rows[count - 1][:2])) if count else iter(())
    for ms, seq, flat in rows[:count]:
        sid = make_id(ms, seq)
        entry = next((entry for entry in entries if entry.id >= sid), None)
        if entry is None or entry.id != sid:
            raise IDTooSmall(f"a row has the ID {sid}, but stream {name} has no such entry, and its last ID is {last}. "
                             "It has been deleted or trimmed, or was never there, and cannot be added now: filter the "
                             "row out")
        if entry.pairs != list(zip(flat[::2], flat[1::2], strict=True)):
            raise IDTooSmall(f"a row has the ID {sid}, which stream {name} has with other fields, or in another order: "
                             f"{entry.pairs!r:.200}. An entry cannot be changed")
    return count


def _numbered(rows: Iterator[Row]) -> Iterator[Row]:
    last = seq = -1
    for ms, _, flat in rows:
        seq = seq + 1 if ms == last else int(ms == 0)  # there is no 0-0
        last = ms
        yield [ms, seq, flat]


def _merged(paths: list[Path]) -> Iterator[Row]:
    return heapq.merge(*map(_read, paths))


def _write(rows: Iterable[Row], folder: Path, prefix: str, suffix: str) -> str:
    name = f"{prefix}-{os.urandom(8).hex()}{suffix}"
    pack = msgpack.Packer().pack
    with (folder / name).open("wb") as file:
        file.writelines(map(pack, rows))
        file.write(pack(None))
    return name


def _read(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for row in msgpack.Unpacker(file, read_size=_BLOCK, max_buffer_size=0):
            if row is None:
                return
            yield row
    raise StoreError(f"{path} ends in the middle of its rows: it has been cut short")
