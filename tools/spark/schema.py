"""Columns: how a Spark schema is read. The schema that is given is the projection.

    without one    id_ms bigint, id_seq bigint, fields map<string,binary>
                   before them  stream string   with streamPattern
                   after them   timestamp timestamp, id binary   with includeTimestamp, includeId
    with one       those columns; any other name is a field of the entries

A column of another name than its field: ``StructField("when", StringType(), metadata={"field": "timestamp"})``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructField, StructType, TimestampType

from ...storage.errors import InvalidArgument
from ...stream.columns.projection import Projection, projection
from .options import Options

if TYPE_CHECKING:
    import pyarrow as pa

STREAM, TIMESTAMP, ID = "stream", "timestamp", "id"
FIELD = "field"  # in a column's metadata: the field it comes from

_TYPES = "string, binary, bigint, int, double, boolean, timestamp, timestamp_ntz, decimal; fields: map<string,binary>"


@dataclass(frozen=True)
class Columns:
    """What to decode, and the schema Spark expects: the same but for the names of columns."""

    projection: Projection
    schema: pa.Schema

    def in_zone(self, zone: str) -> Columns:
        """The same, with times that state no zone in this one."""
        return Columns(replace(self.projection, zone=zone), self.schema)

    def reads(self, name: str) -> str:
        """What a column holds, whatever its name is: "id_ms", "id_bytes", "id_time", "constant" (the stream), or a
        field's type."""
        place: int = self.schema.names.index(name)
        return self.projection.columns[place][0]


def default(options: Options) -> StructType:
    """The schema of a load without ``.schema()``."""
    fields = [StructField(STREAM, StringType())] if options.stream_pattern is not None else []
    fields += [
        StructField("id_ms", LongType()),
        StructField("id_seq", LongType()),
        StructField("fields", MapType(StringType(), BinaryType())),
    ]
    if options.include_timestamp:
        fields.append(StructField(TIMESTAMP, TimestampType()))
    if options.include_id:
        fields.append(StructField(ID, BinaryType()))
    return StructType(fields)


def columns(schema: StructType, options: Options) -> Columns:
    """What to decode for a schema. InvalidArgument names a column that is there twice, not nullable, or of no type
    that a field can have.
    """
    _check_names(schema)
    try:
        expected = to_arrow_schema(schema, timezone="UTC")
    except Exception as error:
        shown = schema.simpleString()
        raise InvalidArgument(f"the schema {shown} cannot be read: {error}. There are {_TYPES}") from error
    extras = {"id_column": options.include_id and ID, "timestamp_column": options.include_timestamp and TIMESTAMP,
              "stream_column": options.stream_pattern is not None and STREAM}
    own = {field.name for field in schema.fields if not (field.metadata or {}).get(FIELD)}
    asked: dict[str, Any] = {name: column for name, column in extras.items() if column in own}
    for field in schema.fields:
        sure = field.name in asked.values()
        if not field.nullable and not sure and field.name != "fields":
            raise InvalidArgument(
                f"column {field.name!r} is NOT NULL, but an entry may lack the field or hold something else there; "
                "declare it nullable"
            )
    renamed = expected
    for at, field in enumerate(schema.fields):
        if (field.metadata or {}).get(FIELD):
            renamed = renamed.set(at, renamed.field(at).with_name(field.metadata[FIELD]))
    if len(set(renamed.names)) < len(renamed.names):
        raise InvalidArgument(f"two columns read one field, by name or by metadata: {', '.join(renamed.names)}")
    made = projection(renamed, corrupt_column=options.corrupt_column, **asked)
    return Columns(made, expected)


def _check_names(schema: StructType) -> None:
    if not schema.fields:
        raise InvalidArgument("the schema has no columns; name at least one field")
    names = schema.fieldNames()
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(f"the schema has two columns of the name {name!r}; each field can be read once")
