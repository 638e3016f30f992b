"""Columns: how a Spark schema is read. The schema that is given is the projection.

    without one    id_ms bigint, id_seq bigint, and those of the stream's schema, else fields map<string,binary>
                   before them  stream string   with streamPattern
                   after them   timestamp timestamp, id binary   with includeTimestamp, includeId
    with one       those columns; any other name is a field of the entries

A column of another name than its field: ``StructField("when", StringType(), metadata={"field": "timestamp"})``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from ...storage.errors import InvalidArgument
from ...stream.columns.arrow import PERMISSIVE
from ...stream.columns.projection import Projection, default_columns, projection
from ...stream.entries.header import shown
from ...stream.entries.schema import parsed_type
from ...stream.node.parse_values import Literal
from ..output import did_you_mean
from . import live_snapshot, scan
from .options import Options
from .plan import Window
from .requirements import pyspark_version

if TYPE_CHECKING:
    import pyarrow as pa

    from .location import DataLocation

STREAM, TIMESTAMP, ID = "stream", "timestamp", "id"
FIELD = "field"  # in a column's metadata: the field it comes from

_TYPES = "string, binary, bigint, int, double, boolean, timestamp, timestamp_ntz, decimal; fields: map<string,binary>"
_SORTS = dict.fromkeys(("bigint", "int", "double", "decimal"), "number") | {
    "timestamp": "time", "timestamp_ntz": "time", "boolean": "boolean"
}
_GUESSES = ("bigint", "double", "boolean", "timestamp", "string", "binary")
_PLACES, _SAMPLED = 10, 100


@dataclass(frozen=True)
class Columns:
    """What to decode, and the schema Spark expects: the same but for the names of columns."""

    projection: Projection
    schema: pa.Schema

    def in_zone(self, zone: str) -> Columns:
        """The same, with times that state no zone in this one."""
        return Columns(replace(self.projection, zone=zone), self.schema)

    def require(self, streams: Mapping[bytes, Mapping[str, str]]) -> None:
        """InvalidArgument for a number that a stream's schema has as a time, say (text goes with any type); and for a
        column that no stream's schema has, if one has a field of almost this name.
        """
        known = {field for fields in streams.values() for field in fields} - set(self.projection.schema.names)
        for kind, name, *_ in self.projection.columns:
            near = did_you_mean(text := name.decode("utf-8", "backslashreplace"), known)
            if near and kind != "map" and not any(text in fields for fields in streams.values()):
                raise InvalidArgument(f"there is no field {text!r} in the streams' schema{near} If entries have it, "
                                      "add it with configure()")
        for stream, fields in streams.items():
            for kind, name, *_ in self.projection.columns:
                kept = fields.get(name.decode("utf-8", "backslashreplace"), "binary")
                both = _SORTS.get(kind), _SORTS.get(parsed_type("", kept)[0])
                if None not in both and both[0] != both[1]:
                    raise InvalidArgument(
                        f"column {shown(name)} is {kind}, but the schema of stream {shown(stream)} has {kept}. Read it "
                        "as that or as string, or change the stream's schema with configure()"
                    )

    def reads(self, name: str) -> str:
        """What a column holds, whatever its name is: "id_ms", "id_bytes", "id_time", "constant" (the stream), or a
        field's type."""
        place: int = self.schema.names.index(name)
        return self.projection.columns[place][0]


def default(options: Options, fields: Mapping[str, str]) -> StructType:
    """The schema of a load without ``.schema()``; ``fields``: the types of fields, {} for a map of all."""
    named = {STREAM: "string"} if options.stream_pattern is not None else {}
    more = {TIMESTAMP: "timestamp"} if options.include_timestamp else {}
    more |= {ID: "binary"} if options.include_id else {}
    both = (named.keys() | more) & fields.keys()
    if both:
        raise InvalidArgument(
            f"{both.pop()!r} is a field of the stream's schema, and the column that an option adds. Leave out the "
            "option, or name the field's column otherwise with .schema() and metadata"
        )
    return from_arrow_schema(projection(named | default_columns(fields) | more).schema, prefer_timestamp_ntz=True)


def inferred(place: DataLocation, options: Options) -> dict[str, str]:
    """The types of the fields in a sample: up to 100 entries at each of up to 10 places of the range."""
    place = live_snapshot.at_rest(place, options)
    options = replace(options, min_partitions=_PLACES, max_records=None, batch_rows=_SAMPLED, mode=PERMISSIVE)
    parts = scan.planned(place, options, Window.of(options))
    made = projection({"fields": "map<binary,binary>"})
    values: dict[bytes, set[bytes]] = {}
    for part in parts[:: -(-len(parts) // _PLACES) or 1]:
        with closing(scan.batches(part, made, made.schema, options)) as batches:
            for batch in islice(batches, 1):
                for name, value in chain.from_iterable(batch.column(0).to_pylist()):
                    values.setdefault(name, set()).add(value)
    literal = Literal()
    return {
        name.decode(): next(kind for kind in _GUESSES if all(literal.is_value(value, kind, 0, 0) for value in held)
                            and (kind != "boolean" or {value.lower() for value in held} <= {b"true", b"false"}))
        for name, held in values.items() if literal.is_value(name, "string", 0, 0) and name not in (b"id_ms", b"id_seq")
    }


def arrow_schema(schema: StructType) -> pa.Schema:
    """The types that Spark expects of record batches: timestamps are in UTC, as before 4.2 they always were."""
    zone: dict[str, Any] = {"timezone": "UTC"} if pyspark_version() >= (4, 2) else {}
    return to_arrow_schema(schema, **zone)


def columns(schema: StructType, options: Options) -> Columns:
    """What to decode for a schema. InvalidArgument names a column that is there twice, not nullable, or of no type
    that a field can have.
    """
    try:
        expected = arrow_schema(schema)
    except Exception as error:
        given = schema.simpleString()
        raise InvalidArgument(f"the schema {given} cannot be read: {error}. There are {_TYPES}") from error
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
        raise InvalidArgument(f"two columns read one field, by name or metadata: {', '.join(map(repr, renamed.names))}")
    made = projection(renamed, corrupt_column=options.corrupt_column, **asked)
    return Columns(made, expected)
