"""The small tables: consumer groups, and what they have pending. ``dataset`` is groups or pending.

    groups     stream, group, consumers, pending, last_delivered_id, entries_read, lag
    pending    stream, group, consumer (null: released), id_ms, id_seq, delivered, deliveries

A partition for the groups of a store, one for each group's pending entries. ``delivered`` is a
released entry's due time where the snapshot knows it (shards), else null.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from ...recovery.snapshot.manifest import GroupSummary
from ...recovery.snapshot.shards import ShardSet
from ...storage.errors import InvalidArgument
from ...stream.entries import header as headers
from ...stream.entries.session import Source
from ...stream.group.info import GroupInfo, describe_group
from ...stream.group.state import UNOWNED, find_group, groups
from ...stream.node.stream_id import StreamID
from . import live_snapshot, plan
from .location import SHARDS, DataLocation, find, opened
from .options import Options
from .schema import arrow_schema

ROWS = 16_384
_CHUNK = 4_096  # pending entries read in one transaction

_NAMES = {
    "groups": {
        "stream": StringType(), "group": StringType(), "consumers": LongType(), "pending": LongType(),
        "last_delivered_id": StringType(), "entries_read": LongType(), "lag": LongType(),
    },
    "pending": {
        "stream": StringType(), "group": StringType(), "consumer": StringType(), "id_ms": LongType(),
        "id_seq": LongType(), "delivered": TimestampType(), "deliveries": LongType(),
    },
}
_MOST = (1 << 63) - 1


def schema(dataset: str) -> StructType:
    """The columns of a table."""
    return StructType([StructField(name, kind) for name, kind in _NAMES[dataset].items()])


class _Table(NamedTuple):
    path: str
    kind: str
    stream: bytes
    group: bytes | None  # of pending entries; None: all groups of the stream


class TableReader(DataSourceReader):
    """Reads groups or pending entries. A schema that is given selects columns, in its order."""

    def __init__(self, options: Options, wanted: StructType) -> None:
        known = _NAMES[options.dataset]
        for field in wanted.fields:
            if known.get(field.name) != field.dataType:
                has = ", ".join(f"{name} {kind.simpleString()}" for name, kind in known.items())
                raise InvalidArgument(f"data set {options.dataset} has no column {field.simpleString()}; it has {has}")
        self._options = options
        self._schema = arrow_schema(wanted)

    def partitions(self) -> list[InputPartition]:
        """One for each stream's groups, one for each group's pending entries."""
        place = live_snapshot.at_rest(find(self._options.path, self._options.as_of), self._options)
        return [InputPartition(table) for table in _tables(place, self._options)] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The table's rows, as record batches."""
        import pyarrow as pa  # noqa: PLC0415

        if partition.value is None:
            return
        rows = (_group_rows if self._options.dataset == "groups" else _pending_rows)(partition.value)
        while some := list(islice(rows, ROWS)):
            yield pa.RecordBatch.from_pylist(some, schema=self._schema)


def _tables(place: DataLocation, options: Options) -> Iterator[_Table]:
    if place.kind == SHARDS:
        streams = (place.manifest or ShardSet(place.path).manifest).streams
        for name in plan.chosen([stream._raw for stream in streams], options):
            yield _Table(place.path, place.kind, name, None)
        return
    with opened(place.path) as source:
        names = plan.chosen(plan.names_in(source), options)
        with source.read() as txn:
            for name in names:
                number = headers.number_of(txn, name)
                states = [] if number is None else groups(txn, number)
                if options.dataset == "groups":
                    yield _Table(place.path, place.kind, name, None)
                else:
                    yield from (_Table(place.path, place.kind, name, state.name) for state in states)


def _group_rows(table: _Table) -> Iterator[dict[str, Any]]:
    if table.kind == SHARDS:
        summary = ShardSet(table.path).manifest.stream(table.stream)
        for group in summary.groups if summary is not None else ():
            yield _group_row(table, group)
        return
    with opened(table.path) as source, source.read() as txn:
        if (found := headers.find(txn, table.stream)) is not None:
            for state in groups(txn, found[0]):
                yield _group_row(table, describe_group(txn, state, *found, None))


def _group_row(table: _Table, group: GroupSummary | GroupInfo) -> dict[str, Any]:
    return {
        "stream": _text(table.stream), "group": _text(group.name), "consumers": group.consumers,
        "pending": group.pending, "last_delivered_id": str(group.last_delivered_id), "entries_read": group.entries_read,
        "lag": group.lag,
    }


def _pending_rows(table: _Table) -> Iterator[dict[str, Any]]:
    if table.kind == SHARDS:
        for entry in ShardSet(table.path).pending(table.stream):
            yield _pending_row(table, entry.group, entry.consumer, entry.id, entry.time, entry.deliveries)
        return
    assert table.group is not None
    with opened(table.path) as source:
        for group, consumer, sid, time, deliveries in _scanned(source, table.stream, table.group):
            yield _pending_row(table, group, consumer, sid, time, deliveries)


def _scanned(source: Source, name: bytes, group: bytes
             ) -> Iterable[tuple[bytes, bytes | None, StreamID, int | None, int]]:
    after = StreamID.MIN
    while True:
        rows = []
        with source.read() as txn:
            number = headers.number_of(txn, name)
            state = None if number is None else find_group(txn, number, group)
            if state is None:
                return
            names = {consumer.number: consumer.name for consumer in state.consumers(txn)}
            for sid, nack in state.pel(txn).scan(after, StreamID.MAX):
                owner = None if nack.consumer == UNOWNED else names[nack.consumer]
                rows.append((state.name, owner, StreamID(*sid), None if owner is None else nack.time, nack.count))
                if len(rows) == _CHUNK:
                    break
        yield from rows
        if len(rows) < _CHUNK:
            return
        after = rows[-1][2].next()


def _pending_row(table: _Table, group: bytes, consumer: bytes | None, sid: StreamID, time: int | None,
                 deliveries: int) -> dict[str, Any]:
    return {
        "stream": _text(table.stream), "group": _text(group),
        "consumer": None if consumer is None else _text(consumer),
        "id_ms": sid.ms if sid.ms <= _MOST else None, "id_seq": sid.seq if sid.seq <= _MOST else None,
        "delivered": None if time is None or time > _MOST // 1000 else time * 1000, "deliveries": deliveries,
    }


def _text(name: bytes | str) -> str:
    return name if isinstance(name, str) else name.decode("utf-8", "backslashreplace")
