"""The batch reader: partitions on the driver, record batches in the tasks.

    driver (planner)   find the data ─> snapshot, if live ─> plan ─> partitions, pickled
    task               open, no lock ─> seek ─> nodes ─> kernel ─> RecordBatch … ─> close

A batch owns its memory and does not refer to the map: Spark's queue may hold it longer than the task.
``read`` uses what the reader was pickled with and the partition only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import datasource as api  # its filters are there since 4.1, and looked up when one comes
from pyspark.sql.datasource import DataSourceReader, InputPartition

from ...stream.columns.arrow import FAILFAST
from ...stream.node.stream_id import MAX64, StreamID, make_id
from . import live_snapshot, plan, scan
from .location import find
from .options import SHORT_ZONES, Options
from .schema import Columns

if TYPE_CHECKING:
    import pyarrow as pa


class BatchReader(DataSourceReader):
    """Reads entries of one or several streams, once."""

    def __init__(self, options: Options, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._window = plan.Window.of(options)
        self._of_streams: list[api.Filter] = []

    def partitions(self) -> list[InputPartition]:
        """The plan; one partition without entries where there is nothing to read."""
        place = live_snapshot.at_rest(find(self._options.path, self._options.as_of), self._options)
        self._columns.require(scan.schemas(place, self._options), self._options.mode == FAILFAST)
        parts = scan.planned(place, self._options, self._window, self._may_hold)
        return [InputPartition(part) for part in parts or [plan.Part(())]]

    def _may_hold(self, name: bytes) -> bool:
        """Whether entries of this stream can pass the filters, by its name as the rows show it."""
        shown = name.decode("utf-8", "backslashreplace")
        return all(_holds(wanted, shown) is not False for wanted in self._of_streams)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The partition's entries, as batches of the schema asked for."""
        scan.settle()
        columns = in_session(self._columns, self._options)
        return scan.batches(partition.value, columns.projection, columns.schema, self._options)


def in_session(columns: Columns, options: Options) -> Columns:
    """The columns as the session of this task has them: names in any case, unless it is set otherwise, and times
    without a zone as the option timeZone says, else in the session's zone if it has one set, else in UTC.
    """
    context = TaskContext.get()
    zone, sensitive = ((context and context.getLocalProperty(f"spark.sql.{name}")) or ""
                       for name in ("session.timeZone", "caseSensitive"))
    zone = options.time_zone or zone or "UTC"
    return columns.in_session(SHORT_ZONES.get(zone, zone), sensitive.lower() == "true")


class FilteringReader(BatchReader):
    """The same, narrowed by what Spark filters: chosen by ``pushdown=true``.

    A class of its own, since Spark refuses readers with pushFilters while its configuration
    spark.sql.python.filterPushdown.enabled is off, as it is by default.
    """

    def pushFilters(self, filters: list[api.Filter]) -> Iterable[api.Filter]:
        """Narrow the range of IDs, and the streams. Every filter is left to Spark as well."""
        for wanted in filters:
            inner = wanted.child if isinstance(wanted, api.Not) else wanted
            column: tuple[str, ...] = getattr(inner, "attribute", ())
            value = getattr(wanted, "value", None)
            if len(column) == 1 and self._columns.reads(column[0]) == "constant":
                self._of_streams.append(wanted)
            elif len(column) == 1 and value is not None:
                self._narrow(wanted, self._columns.reads(column[0]), value if isinstance(wanted, api.In) else (value,))
        return filters

    def _narrow(self, wanted: api.Filter, kind: str, values: Sequence[Any]) -> None:
        """Leave out the IDs for which the filter of a column of this kind cannot be true."""
        equal = isinstance(wanted, (api.EqualTo, api.EqualNullSafe, api.In))
        bounds = [ids for value in values if (ids := _ids(kind, value)) is not None]
        if not bounds or len(bounds) < len(values):
            return
        low, high = self._window.start, self._window.end
        if equal or isinstance(wanted, (api.GreaterThan, api.GreaterThanOrEqual)):
            low = max(low, min(first for first, _ in bounds))
        if equal or isinstance(wanted, (api.LessThan, api.LessThanOrEqual)):
            high = min(high, max(last for _, last in bounds))
        self._window = plan.Window(low, high)


def _holds(wanted: api.Filter, name: str) -> bool | None:
    """Whether a filter of the column of streams is true of a name; None where that is not known, or null."""
    if isinstance(wanted, api.Not):
        inner = _holds(wanted.child, name)
        return None if inner is None else not inner
    if isinstance(wanted, (api.EqualTo, api.EqualNullSafe)):
        return bool(name == wanted.value)
    if isinstance(wanted, api.In):
        return name in wanted.value or (None if None in wanted.value else False)
    if isinstance(wanted, api.StringStartsWith):
        return name.startswith(wanted.value)
    if isinstance(wanted, api.StringEndsWith):
        return name.endswith(wanted.value)
    return wanted.value in name if isinstance(wanted, api.StringContains) else None


def _ids(kind: str, value: Any) -> tuple[StreamID, StreamID] | None:
    """The first and last ID that a value of a column of this kind can belong to."""
    if kind == "id_ms" and isinstance(value, int):
        ms = min(max(value, 0), MAX64)
        return make_id(ms, 0), make_id(ms, MAX64)
    if kind == "id_bytes" and isinstance(value, bytes):
        padded = StreamID.from_bytes(value[:16].ljust(16, b"\0"))
        return padded, padded
    if kind == "id_time" and isinstance(value, datetime):
        ms = min(max((value - _EPOCH) // timedelta(milliseconds=1), 0), MAX64)
        return make_id(ms, 0), make_id(ms, MAX64)
    return None


_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
