"""The schema of a stream: the types of its fields, which its header holds.

    stream.configure(schema={"qty": "bigint", "price": "decimal(10,2)"}, schema_checked=True)

A scan that names no columns reads id_ms, id_seq and these. If the schema is checked, an append of a value
that would be malformed in its column is refused. An entry may lack a field, and have others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...storage.errors import InvalidArgument
from ..node.arguments import stored_bytes
from ..node.parse_values import Literal

TYPES = (
    "string, binary, bigint, int, smallint, tinyint, double, float, boolean, date, timestamp, timestamp_ntz, "
    "decimal(p,s)"
)

_SIMPLE = {name: name for name in TYPES.split(", ")[:-1]} | {
    "long": "bigint", "int64": "bigint", "integer": "int", "int32": "int", "short": "smallint", "int16": "smallint",
    "byte": "tinyint", "int8": "tinyint", "float64": "double", "real": "float", "float32": "float", "bool": "boolean",
    "date32": "date",
}
_DECIMAL = re.compile(r"decimal\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_MOST_DIGITS = 38  # of a decimal of 128 bits
_OF_ENTRIES = ("id_ms", "id_seq", "fields")  # the columns of a scan that are not a field


FieldType = tuple[str, int, int]  # its name; precision and scale, of a decimal


class StreamSchema:
    """The types of fields, and whether an append has to keep to them."""

    __slots__ = ("_literal", "_types", "checked", "fields")

    def __init__(self, checked: bool, fields: dict[str, str]) -> None:
        self.checked: bool = checked
        self.fields: dict[str, str] = fields
        self._literal = Literal()
        self._types: dict[bytes, FieldType] = {}

    def malformed(self, flat: list[bytes]) -> tuple[bytes, bytes] | None:
        """The first field of an entry, with its value, that is not of its type."""
        if not self._types:
            self._types = {name.encode(): parsed_type(name, kind) for name, kind in self.fields.items()}
        for name, value in zip(flat[::2], flat[1::2], strict=True):
            kind = self._types.get(name)
            if kind is not None and not self._literal.is_value(value, *kind):
                return name, value
        return None


def parsed_schema(given: object) -> dict[str, str]:
    """A schema that configure() was given. InvalidArgument names the field that cannot have its type."""
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"a stream's schema is a mapping of fields to types, not {type(given).__name__}")
    for name, kind in given.items():
        if not isinstance(name, str) or name in _OF_ENTRIES:
            raise InvalidArgument(
                f"a stream's schema cannot have a field {name!r}: names are str, and {', '.join(_OF_ENTRIES)} are "
                "columns of every entry"
            )
        stored_bytes(name, "field")
        parsed_type(name, kind)
    return dict(given)


def parsed_type(name: str, text: object) -> FieldType:
    """The type that Spark, or pyarrow, calls by this name. InvalidArgument names the column."""
    word = text.strip().lower() if isinstance(text, str) else ""
    if word in _SIMPLE:
        return _SIMPLE[word], 0, 0
    decimal = _DECIMAL.fullmatch("decimal(10,0)" if word == "decimal" else word)  # Spark's default
    if decimal is None:
        raise InvalidArgument(f"column {name!r} is of the unknown type {text!r}. There are {TYPES}")
    precision, scale = int(decimal[1]), int(decimal[2] or 0)
    if not 1 <= precision <= _MOST_DIGITS or scale > precision:
        raise InvalidArgument(
            f"column {name!r} is {text}: a decimal has 1 … {_MOST_DIGITS} digits, and no more behind the point"
        )
    return "decimal", precision, scale
