"""JSON: the texts of lists, structs and maps, as the values of nested columns, and back.

    field    {"item": "book", "qty": [1, 2]}
    column   struct<item string, qty array<int>>

A text is read as Spark's from_json() reads it, but nothing is guessed: what is in it must be of its type, or
all of it is malformed. Strings are of a text, a time or a date; numbers without point and exponent of a whole
number; any number, "NaN", "Infinity" and "-Infinity" of a double; any number of a decimal. A member that a struct
lacks is null, and one that its type lacks is passed over. What a string or a number may look like is said in
parse_values.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

from ..node.parse_values import Literal
from .projection import field_type, load, parts_of

if TYPE_CHECKING:
    import pyarrow as pa

    Reader: TypeAlias = Callable[[Any], Any]


class Number(str):
    """A number with a point or an exponent, as it is written; or NaN, or an infinity."""

    __slots__ = ()


_TEXTS: dict[str, tuple[type, ...]] = {
    "double": (int, Number), "float": (int, Number), "decimal": (int, Number), "boolean": (bool,),
    **dict.fromkeys(("bigint", "int", "smallint", "tinyint"), (int,)),
}  # what is not a string
_INFINITE = ("NaN", "Infinity", "-Infinity")


class Nested:
    """Reads the texts of a column of lists, structs or maps. Its text is the column's type."""

    def __init__(self, kind: pa.DataType, local: Callable[[int], int] | None) -> None:
        self._kind = kind
        self._literal = Literal(local)
        self._read = self._reader(kind)

    def __str__(self) -> str:
        return str(self._kind)

    def read(self, text: bytes) -> Any:
        """The value, as pyarrow.array() takes it; None if the text is malformed."""
        try:
            return self._read(json.loads(text.decode(), parse_float=Number, parse_constant=Number))
        except (ValueError, RecursionError):
            return None

    def _part(self, field: pa.Field) -> Reader:
        read = self._reader(field.type)

        def part(found: Any) -> Any:
            if found is None and field.nullable:
                return None
            return read(found)

        return part

    def _reader(self, kind: pa.DataType) -> Reader:
        parts = parts_of(kind)
        if parts is None:
            return self._leaf(kind)
        types = load().types
        named = [(field.name, self._part(field)) for field in parts]
        if types.is_struct(kind):
            return lambda found: {name: part(_of(found, dict).get(name)) for name, part in named}
        (_, item), = named
        if types.is_map(kind):
            return lambda found: [(_encodable(name), item(value)) for name, value in _of(found, dict).items()]
        return lambda found: [item(value) for value in _of(found, list)]

    def _leaf(self, kind: pa.DataType) -> Reader:
        literal = self._literal
        sort, precision, scale = field_type(kind) or ("", 0, 0)
        allowed = _TEXTS.get(sort, (str,))

        def leaf(found: Any) -> Any:
            if type(found) not in allowed and not (Number in allowed and sort != "decimal" and found in _INFINITE):
                raise ValueError
            value = found if sort == "boolean" else literal.value_of(str(found).encode(), sort, precision, scale)
            if value is None:
                raise ValueError
            return value

        return leaf


def text_of(value: Any, kind: pa.DataType) -> str:
    """The JSON of a value of this type, as pyarrow's to_pylist() makes it; members that are null are left out."""
    if value is None:
        return "null"
    types = load().types
    parts = parts_of(kind)
    if parts is not None and types.is_struct(kind):
        value = [(part.name, text_of(found, part.type)) for part in parts if (found := value[part.name]) is not None]
    elif parts is not None and types.is_map(kind):
        value = [(name, text_of(item, kind.item_type)) for name, item in value]
    elif parts is not None:
        return f"[{','.join(text_of(item, kind.value_type) for item in value)}]"
    elif isinstance(value, float) and not math.isfinite(value):
        return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
    elif isinstance(value, Decimal):
        return format(value, "f")
    else:
        return json.dumps(value.isoformat() if isinstance(value, date) else value, ensure_ascii=False)
    return f"{{{','.join(f'{json.dumps(name, ensure_ascii=False)}:{text}' for name, text in value)}}}"


def _of(found: Any, kind: type) -> Any:
    if type(found) is not kind:
        raise ValueError
    return found


def _encodable(text: str) -> str:
    text.encode()  # ValueError for half of a pair
    return text
