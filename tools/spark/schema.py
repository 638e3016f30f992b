"""Columns: how a Spark schema is read. The schema that is given is the projection.

    without one    id_ms bigint, id_seq bigint, and those of the stream's schema, else fields map<string,binary>
                   before them  stream string   with streamPattern
                   after them   timestamp timestamp, id binary   with includeTimestamp, includeId
    with one       those columns; any other name is a field of the entries

Names match in any case of ASCII letters, as Spark's do, unless spark.sql.caseSensitive is set. A column of another
name than its field, which then matches exactly: ``StructField("when", StringType(), metadata={"field": "timestamp"})``.
"""

from __future__ import annotations

import warnings
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
from ...stream.entries.schema import TYPES, parsed_type
from ...stream.node.parse_values import Literal
from ..output import did_you_mean
from . import live_snapshot, scan
from .options import Options
from .plan import Window
from .requirements import pyspark_version

if TYPE_CHECKING:
    import pyarrow as pa

    from .location import DataLocation

OWN = ("id_ms", "id_seq", "fields")
STREAM, TIMESTAMP, ID = "stream", "timestamp", "id"
FIELD = "field"  # in a column's metadata: the field it comes from

_TYPES = f"{TYPES}, and of these array, struct and map<string,…>; fields: map<string,binary>"
_SORTS = dict.fromkeys(("bigint", "int", "smallint", "tinyint", "double", "float", "decimal"), "number") | {
    "date": "time", "timestamp": "time", "timestamp_ntz": "time", "boolean": "boolean", "nested": "nested"
}
_GUESSES = ("bigint", "double", "boolean", "timestamp", "string", "binary")
_PLACES, _SAMPLED = 10, 100


@dataclass(frozen=True)
class Columns:
    """What to decode, and the schema Spark expects: the same but for the names of columns."""

    projection: Projection
    schema: pa.Schema

    def in_session(self, zone: str, case_sensitive: bool) -> Columns:
        """The same, with times that state no zone in this one, and perhaps with names that match exactly."""
        folded = frozenset[bytes]() if case_sensitive else self.projection.folded
        return Columns(replace(self.projection, zone=zone, folded=folded), self.schema)

    def require(self, streams: Mapping[bytes, Mapping[str, str]], failfast: bool) -> None:
        """InvalidArgument for a number that a stream's schema has as a time, say (text goes with any type); and for a
        column that no stream's schema has, if one has a field of almost this name. Any other such column, if all
        streams have a schema, is an InvalidArgument if ``failfast``, and a warning otherwise.
        """
        read = {name.lower() for name in self.projection.schema.names}
        known = {field for fields in streams.values() for field in fields if field.lower() not in read}
        for kind, name, *_ in self.projection.columns:
            if not name or kind == "map" or any(self._kept(fields, name) for fields in streams.values()):
                continue
            text = name.decode("utf-8", "backslashreplace")
            near = did_you_mean(text, known)
            if near or (failfast and streams and all(streams.values())):
                raise InvalidArgument(f"there is no field {text!r} in the streams' schema{near or '.'} If entries have "
                                      "it, add it with configure()")
            if streams and all(streams.values()):
                warnings.warn(f"there is no field {text!r} in the streams' schema; it is null where an entry has none. "
                              "configure() adds it", stacklevel=3)
        for stream, fields in streams.items():
            for kind, name, *_ in self.projection.columns:
                kept = self._kept(fields, name) or "binary"
                both = _SORTS.get(kind), _SORTS.get(parsed_type("", kept)[0])
                if None not in both and both[0] != both[1]:
                    kind = kind.replace("nested", "an array, a struct or a map")
                    raise InvalidArgument(
                        f"column {shown(name)} is {kind}, but the schema of stream {shown(stream)} has {kept}. Read it "
                        "as that or as string, or change the stream's schema with configure()"
                    )

    def _kept(self, fields: Mapping[str, str], name: bytes) -> str | None:
        """The type that a stream's schema has for a column."""
        text = name.decode("utf-8", "backslashreplace")
        if name not in self.projection.folded:
            return fields.get(text)
        return next((kind for field, kind in fields.items() if field.lower() == text.lower()), None)

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
    own = {name.lower(): name for name in (*OWN, *extras.values(), options.corrupt_column) if name}
    exact = [(field.metadata or {}).get(FIELD) for field in schema.fields]
    names = [to or own.get(field.name.lower(), field.name) for to, field in zip(exact, schema.fields, strict=True)]
    asked: dict[str, Any] = {
        role: column for role, column in extras.items() if (None, column) in zip(exact, names, strict=True)
    }
    for field, name in zip(schema.fields, names, strict=True):
        if not field.nullable and name not in (*asked.values(), "fields"):
            raise InvalidArgument(
                f"column {field.name!r} is NOT NULL, but an entry may lack the field or hold something else there; "
                "declare it nullable"
            )
    renamed = expected
    for at, name in enumerate(names):
        renamed = renamed.set(at, renamed.field(at).with_name(name))
    folded = {name.lower() for to, name in zip(exact, names, strict=True) if not to}
    if len({name.lower() if name.lower() in folded else name for name in names}) < len(names):
        raise InvalidArgument(f"two columns read one field, by name or metadata: {', '.join(map(repr, names))}. Names "
                              "match in any case, but a field named in metadata exactly")
    made = projection(renamed, corrupt_column=options.corrupt_column, **asked)
    in_any_case = (column[1] for to, column in zip(exact, made.columns, strict=True) if not to)
    return Columns(replace(made, folded=frozenset(in_any_case)), expected)
