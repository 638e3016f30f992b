"""Projections: the columns of a scan, their types, and where each comes from.

    column                            type                               holds
    --------------------------------  ---------------------------------  -----------------------------
    id_ms, id_seq                     bigint                             the halves of the ID
    fields                            map of string | binary to          all fields; of a name that
                                      string | binary                    occurs twice the last
    the one named by id_column        string | binary                    ms-seq | the ID's 16 bytes
    the one named by timestamp_column timestamp                          the ms of the ID, as a time
    the one named by stream_column    string                             the stream's name
    the one named by corrupt_column   string                             a malformed entry, as JSON
    any other NAME                    string, binary, bigint, int,       the field NAME; null where
                                      smallint, tinyint, double, float,  an entry has none
                                      boolean, date, timestamp (µs,
                                      UTC), timestamp_ntz (µs, date
                                      and time as they are written, of
                                      one with a zone those of UTC),
                                      decimal(p, s); in pyarrow's types
                                      also lists, structs, and maps of
                                      string to those: of JSON

Without a schema the columns are those of default_columns(). parse_values.py defines which texts are values of
a type, json_values.py which are of a list, struct or map. A part of an ID beyond 2^63 - 1 is malformed as a bigint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from ...storage.errors import InvalidArgument, NotInstalled
from ..entries.schema import TYPES, parsed_type

if TYPE_CHECKING:
    import pyarrow as pa

    Schema: TypeAlias = pa.Schema | Mapping[str, object]

CORRUPT_COLUMN = "_corrupt_record"  # Spark's own default name

_MAP = re.compile(r"map\s*<\s*(string|binary)\s*,\s*(string|binary)\s*>")
_OF_ID = {"id_ms": "bigint", "id_seq": "bigint"}


@dataclass(frozen=True)
class Projection:
    """What projection() has made of a schema. Can be pickled, so that a task can carry it."""

    schema: pa.Schema  # of every batch
    columns: tuple[tuple[str, bytes, int, int], ...]  # for decoder.Decoder: kind, field, precision, scale
    zone: str = "UTC"  # of times that state none
    folded: frozenset[bytes] = frozenset()  # fields whose names may have other capitals of ASCII in an entry

    @property
    def has_corrupt_column(self) -> bool:
        """Whether malformed entries, and damaged nodes, are reported in a column."""
        return any(column[0] == "corrupt" for column in self.columns)


def projection(schema: Schema | None = None, *, id_column: str | None = None,
               timestamp_column: str | None = None, stream_column: str | None = None,
               corrupt_column: str | None = CORRUPT_COLUMN) -> Projection:
    """What to decode, from a schema.

    ``schema``   a pyarrow.Schema, or {name: type} with pyarrow types or Spark's names for them
                 ("bigint", "decimal(10,2)", "map<string,binary>"), or None for id_ms, id_seq, fields
    ``id_column``, ``timestamp_column``, ``stream_column``
                 which column holds the ID, its milliseconds as a time, the stream's name; added at
                 the end where the schema has none of that name
    ``corrupt_column``
                 which column holds malformed entries, if the schema has one of that name

    Raises InvalidArgument for a schema without columns, for two columns of one name, and for a
    type that is not in the table above, naming the column; NotInstalled without pyarrow.
    """
    pa = load()
    made = _schema(pa, default_columns() if schema is None else schema)
    roles: dict[str, str] = {}
    for name, role, kind in (
        (id_column, "id_column", pa.string()), (timestamp_column, "timestamp_column", pa.timestamp("us", "UTC")),
        (stream_column, "stream_column", pa.string()), (corrupt_column, "corrupt_column", None),
    ):
        if name is None or (kind is None and name not in made.names):
            continue
        if name in roles:
            raise InvalidArgument(f"column {name!r} cannot be both {roles[name]} and {role}")
        roles[name] = role
        if name not in made.names:
            made = made.append(pa.field(name, kind))
    if not made.names:
        raise InvalidArgument("a schema needs at least one column")
    columns = []
    for place, field in enumerate(made):
        if field.name in made.names[:place]:
            raise InvalidArgument(f"the schema has two columns named {field.name!r}")
        columns.append(_column(pa, field, roles.get(field.name, "")))
    if sum(column[0] == "map" for column in columns) > 1:
        raise InvalidArgument("the schema has two maps; all of an entry's fields are in the one named 'fields'")
    return Projection(made, tuple(columns))


def default_columns(fields: Mapping[str, str] | None = None) -> dict[str, str]:
    """The columns of a scan that names none: those of the ID, and the fields of the stream's schema, else a map."""
    return _OF_ID | dict(fields or {"fields": "map<string,binary>"})


def load() -> Any:
    """The module pyarrow. NotInstalled, naming the extra, where it is not there."""
    try:
        import pyarrow  # noqa: PLC0415 - loaded for Arrow only
    except ImportError as error:
        raise NotInstalled(
            f"pyarrow cannot be imported ({error}). Install it: pip install pyarrow, or with Spark: "
            "pip install 'raxlog[spark]'"
        ) from None
    return pyarrow


def _schema(pa: Any, given: object) -> Any:
    """What was given as a schema, as a pyarrow.Schema."""
    if isinstance(given, Mapping):
        return pa.schema([pa.field(_checked_name(name), _type(name, kind)) for name, kind in given.items()])
    if isinstance(given, pa.Schema):
        return given
    raise InvalidArgument(f"a schema is a pyarrow.Schema or a mapping of names to types, not {type(given).__name__}")


def _column(pa: Any, field: Any, role: str) -> tuple[str, bytes, int, int]:
    """What the decoder is to make for a field of the schema."""
    name, kind = field.name, field.type
    if role == "stream_column":
        return _required(field, role, pa.types.is_string(kind), "string", "constant")
    if role == "corrupt_column":
        return _required(field, role, pa.types.is_string(kind), "string", "corrupt")
    if role == "timestamp_column":
        return _required(field, role, _is_time(pa, kind), "timestamp", "id_time")
    if role == "id_column":
        made = "id_bytes" if pa.types.is_binary(kind) else "id_text"
        right = pa.types.is_binary(kind) or pa.types.is_string(kind)
        return _required(field, role, right, "string or binary", made)
    if name in ("id_ms", "id_seq"):
        return _required(field, "half of the ID", pa.types.is_int64(kind), "bigint", name)
    raw = name.encode("utf-8", "surrogateescape")
    if pa.types.is_map(kind) and name == "fields":
        texts = [pa.types.is_string(part) for part in (kind.key_type, kind.item_type)]
        for text, part in zip(texts, (kind.key_type, kind.item_type), strict=True):
            if not text and not pa.types.is_binary(part):
                raise InvalidArgument(
                    f"column 'fields' is {kind}; its names and its values can be string or binary, not {part}"
                )
        return "map", raw, 0, texts[0] + 2 * texts[1]
    if pa.types.is_decimal128(kind) and not 0 <= kind.scale <= kind.precision:
        raise InvalidArgument(f"column {name!r} is {kind}; the scale must lie in 0 … {kind.precision}")
    if _is_time(pa, kind):
        return "timestamp", raw, int(kind.tz is None), 0
    if parts_of(kind) is not None and _is_json(kind):
        return "nested", raw, 0, 0
    of_field = field_type(kind)
    if of_field is None:
        raise InvalidArgument(
            f"column {name!r} is of the type {kind}, which no field can be read as. There are {TYPES}; lists, structs "
            "and maps of string to these, without binary in them; and 'fields' can be a map of string or binary to "
            "string or binary"
        )
    return of_field[0], raw, *of_field[1:]


def field_type(kind: pa.DataType) -> tuple[str, int, int] | None:
    """The name of a field's type, with a decimal's precision and scale; None for any other type."""
    pa = load()
    if pa.types.is_decimal128(kind):
        return "decimal", kind.precision, kind.scale
    if _is_time(pa, kind):
        return "timestamp" if kind.tz else "timestamp_ntz", 0, 0
    name = next((name for name, simple in _simple(pa).items() if simple == kind), None)
    return None if name is None else (name, 0, 0)


def parts_of(kind: pa.DataType) -> list[pa.Field] | None:
    """What a list, a struct or a map of strings has in it: items, members, values. None for any other type."""
    types = load().types
    if types.is_list(kind):
        return [kind.value_field]
    if types.is_struct(kind):
        return list(kind)
    return [kind.item_field] if types.is_map(kind) and types.is_string(kind.key_type) else None


def _is_json(kind: pa.DataType) -> bool:
    parts = parts_of(kind)
    if parts is not None:
        return all(_is_json(part.type) for part in parts)
    made = field_type(kind)
    return made is not None and made[0] != "binary"


def _required(field: Any, role: str, right: bool, wanted: str, kind: str) -> tuple[str, bytes, int, int]:
    if not right:
        raise InvalidArgument(f"column {field.name!r} is the {role} and must be {wanted}, not {field.type}")
    return kind, b"", 0, 0


def _is_time(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.unit == "us")


def _checked_name(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidArgument(f"a column's name is a str, not {type(name).__name__}")
    return name


def _type(name: str, kind: object) -> Any:
    """A pyarrow type, or the one that Spark (or pyarrow) calls by this name."""
    pa = load()
    if isinstance(kind, pa.DataType):
        return kind
    pairs = _MAP.fullmatch(kind.strip().lower()) if isinstance(kind, str) else None
    if pairs is not None:
        return pa.map_(*(pa.string() if part == "string" else pa.binary() for part in pairs.groups()))
    sort, precision, scale = parsed_type(name, kind)
    if sort == "decimal":
        return pa.decimal128(precision, scale)
    return _simple(pa)[sort]


def _simple(pa: Any) -> dict[str, Any]:
    return {
        "string": pa.string(), "binary": pa.binary(), "bigint": pa.int64(), "int": pa.int32(), "smallint": pa.int16(),
        "tinyint": pa.int8(), "double": pa.float64(), "float": pa.float32(), "boolean": pa.bool_(),
        "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us"),
    }
