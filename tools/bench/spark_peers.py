"""Two data sources to compare with: one batch yielded again and again, and Python tuples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa
import raxlog
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType


class _PeerReader(DataSourceReader):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self.path = options["path"]
        self.rows, self.parts, self.batch = (int(options[name]) for name in ("rows", "partitions", "batch"))
        self.schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> list[InputPartition]:
        """As many as the other contenders have."""
        return [InputPartition(number) for number in range(self.parts)]


class CeilingReader(_PeerReader):
    """Yields one batch until there have been enough rows."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """No work but handing over: what Spark takes is all there is."""
        batch = pa.record_batch([self._column(field.type) for field in self.schema], schema=self.schema)
        left = self.rows // self.parts
        while left > 0:
            yield batch.slice(0, min(left, self.batch))
            left -= self.batch

    def _column(self, kind: pa.DataType) -> pa.Array:
        if pa.types.is_map(kind):
            row = [("sensor", b"device-000864"), ("temp", b"21.5"), ("seq", b"1000000")]
            return pa.array([row] * self.batch, kind)
        return pa.array(range(self.batch), pa.int64()).cast(kind)


class TupleReader(_PeerReader):
    """Yields an entry as a tuple of Python objects, made by the public interface from the same snapshot."""

    made: ClassVar[dict[str, Any]] = {
        "id_ms": lambda entry, _: entry.id.ms,
        "id_seq": lambda entry, _: entry.id.seq,
        "temp": lambda _, fields: float(fields[b"temp"]),
        "seq": lambda _, fields: int(fields[b"seq"]),
        "fields": lambda _, fields: {name.decode(): value for name, value in fields.items()},
    }

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """A range of the stream, entry by entry."""
        with raxlog.open(self.path, readonly=True) as store:
            stream = store.stream("events")
            start, end, _ = stream.split(self.parts)[partition.value]
            makers = [self.made[name] for name in self.schema.names]
            if len(makers) == 1:
                only = makers[0]
                for entry in stream.range(start, end):
                    yield (only(entry, entry.fields),)
            else:
                for entry in stream.range(start, end):
                    fields = entry.fields
                    yield tuple([make(entry, fields) for make in makers])


class _PeerSource(DataSource):
    reading: ClassVar[type[_PeerReader]]

    @classmethod
    def name(cls) -> str:
        """What format() takes."""
        return cls.__name__.lower()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Its reader."""
        return self.reading(dict(self.options), schema)


class Ceiling(_PeerSource):
    """format("ceiling")"""

    reading = CeilingReader


class Tuples(_PeerSource):
    """format("tuples")"""

    reading = TupleReader
