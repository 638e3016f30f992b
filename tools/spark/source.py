"""The data source as Spark uses it: a class that returns a schema, readers and writers.

    spark.read.format("raxlog").option("path", …).option("stream", …).load()
        └─ RaxlogDataSource(options)     in the driver's planner process
             ├─ .schema()                where none was given
             ├─ .reader(schema)          BatchReader, FilteringReader with pushdown, TableReader
             ├─ .streamReader(schema)    FollowingReader
             ├─ .writer(schema, …)       AppendingWriter, MergingWriter with idFrom
             └─ .streamWriter(schema, …) EpochWriter

Wrong options raise here, before any task starts.
"""

from __future__ import annotations

from pyspark.sql import datasource as api
from pyspark.sql.types import StructType

from ...storage.errors import InvalidArgument
from . import scan, tables
from . import schema as schemas
from .batch_reader import BatchReader, FilteringReader
from .location import find
from .options import FOLLOW, NO_TABLE, WRITE, parse
from .requirements import require_pyspark
from .stream_reader import FollowingReader
from .writer import AppendingWriter, EpochWriter, MergingWriter


class RaxlogDataSource(api.DataSource):
    """``format("raxlog")``. Options are listed in docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        """What format() takes."""
        return "raxlog"

    def schema(self) -> StructType:
        """The columns of a load without ``.schema()``. Spark does not pass which use it is for."""
        if self.options.get("provider"):
            raise InvalidArgument(f"a table in Spark's catalog cannot be read by its name alone: {NO_TABLE}")
        options = parse(self.options, None)
        place = find(options.path, options.as_of)  # load() reports a wrong path, not the first action
        if options.dataset != "entries":
            return tables.schema(options.dataset)
        fields, *others = scan.schemas(place, options).values() or [{}]
        if any(fields != other for other in others):
            fields = {}
        if options.infer_schema and not fields:
            fields = schemas.inferred(place, options)
        return schemas.default(options, fields)

    def reader(self, schema: StructType) -> api.DataSourceReader:
        """A reader for one query."""
        options = parse(self.options)
        if options.dataset != "entries":
            return tables.TableReader(options, schema)
        if options.pushdown:
            require_pyspark("option pushdown", 4, 1)
        reader = FilteringReader if options.pushdown else BatchReader
        return reader(options, schemas.columns(schema, options))

    def streamReader(self, schema: StructType) -> api.DataSourceStreamReader:
        """A reader for a streaming query."""
        options = parse(self.options, FOLLOW)
        least = {"group": options.group, "maxOffsetsPerTrigger": options.max_per_trigger,
                 "minOffsetsPerTrigger": options.min_per_trigger, "maxBytesPerTrigger": options.max_bytes_per_trigger}
        for name, value in least.items():
            if value is not None:
                require_pyspark(f"option {name}", 4, 2)
        return FollowingReader(options, schemas.columns(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> api.DataSourceWriter:
        """A writer for one save()."""
        options = parse(self.options, WRITE)
        return (MergingWriter if options.id_from else AppendingWriter)(options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> api.DataSourceStreamWriter:
        """A writer for one epoch of a streaming query."""
        given = {name: value for name, value in self.options.items() if name.lower() != "checkpointlocation"}
        return EpochWriter(parse(given, WRITE), schema, overwrite)
