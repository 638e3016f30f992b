"""The ceiling: a data source that yields one record batch again and again, which is all that Spark can take."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType


class CeilingReader(DataSourceReader):
    """Yields one batch until there have been enough rows."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self.rows, self.parts, self.batch = (int(options[name]) for name in ("rows", "partitions", "batch"))
        self.schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> list[InputPartition]:
        """As many as the other contenders have."""
        return [InputPartition(number) for number in range(self.parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """No work but handing over: what Spark takes is all there is."""
        batch = pa.record_batch([self._column(field.type) for field in self.schema], schema=self.schema)
        remaining = self.rows // self.parts
        while remaining > 0:
            yield batch.slice(0, min(remaining, self.batch))
            remaining -= self.batch

    def _column(self, kind: pa.DataType) -> pa.Array:
        if pa.types.is_map(kind):
            row = [("sensor", b"device-000864"), ("temp", b"21.5"), ("seq", b"1000000")]
            return pa.array([row] * self.batch, kind)
        return pa.array(range(self.batch), pa.int64()).cast(kind)


class Ceiling(DataSource):
    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def reader(self, schema: StructType) -> DataSourceReader:
        return CeilingReader(dict(self.options), schema)
