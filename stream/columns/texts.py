"""Texts: columns of Arrow as the fields of entries hold them, so that a scan reads the same values.

    type                              text
    --------------------------------  -----------------------------------------------------
    string, binary, uuid              the bytes themselves; as it is mostly written
    boolean, numbers, decimal         true, 7, 2.5, 12.30
    date, time                        2018-05-21, 16:10:30.474000
    timestamp                         2018-05-21 16:10:30.474000, in UTC with +00:00 behind it
    list, struct, map                 JSON, as json_values.py says
    map, of strings or binary         with ``is_entry`` it is all of an entry's fields, and stays a map
"""

from __future__ import annotations

from sys import byteorder
from typing import TYPE_CHECKING

from ...storage.errors import InvalidFields
from ..node.flattened import TextColumns
from .json_values import text_of
from .projection import load

if TYPE_CHECKING:
    import pyarrow as pa

_NAMED = ("arrow.uuid", "arrow.json")


def storable(kind: pa.DataType, inside: bool = False) -> pa.DataType | None:
    """The plainest type of the same values, as texts() takes it; None if no field can hold them.

    ``inside`` of a list, a struct or a map, where binary and times of day have no JSON.
    """
    pa = load()
    types = pa.types
    if types.is_dictionary(kind):
        return storable(kind.value_type, inside)
    if isinstance(kind, pa.BaseExtensionType):
        return pa.string() if kind.extension_name in _NAMED and not inside else None
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if (types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
            or types.is_binary_view(kind)):
        return None if inside else pa.binary()
    if types.is_timestamp(kind):
        return kind if kind.unit == "ns" else pa.timestamp("us", kind.tz)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return kind
    if types.is_date(kind) or (types.is_time(kind) and not inside):
        return kind
    if types.is_struct(kind):
        parts = [(part.name, storable(part.type, True)) for part in kind]
        return pa.struct(parts) if parts and all(part for _, part in parts) else None
    if types.is_map(kind):
        item = storable(kind.item_type, True)
        return pa.map_(pa.string(), item) if storable(kind.key_type) == pa.string() and item else None
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):  # Arrow casts no view right
        item = storable(kind.value_type, True)
        return pa.list_(item) if item else None
    return None


def plain(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column as what storable() says of its type."""
    pa = load()
    if pa.types.is_dictionary(column.type):  # Arrow takes no views out of one
        column = pa.DictionaryArray.from_arrays(column.indices, plain(column.dictionary, kind))
    elif isinstance(column.type, pa.BaseExtensionType):
        return pa.array([value if value is None else str(value) for value in column.to_pylist()], kind)
    return column if column.type == kind else column.cast(kind)


def texts(column: pa.Array, is_entry: bool = False) -> pa.Array:
    """The column as binary. InvalidFields for a time that no scan could read."""
    from pyarrow import compute  # noqa: PLC0415

    pa = load()
    kind = column.type
    if is_entry:
        first, last = (column.offsets[at].as_py() for at in (0, -1))
        pairs = (texts(part.slice(first, last - first)) for part in (column.keys, column.items))
        return pa.MapArray.from_arrays(compute.subtract(column.offsets, first), *pairs)
    if pa.types.is_nested(kind):
        try:
            found = [value if value is None else text_of(value, kind) for value in column.to_pylist()]
        except (OverflowError, ValueError) as error:
            raise InvalidFields(f"{kind}: {error}: a scan reads times of the years 1 to 9999") from None
        return pa.array(found, pa.string()).cast(pa.binary())
    has_year = pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    if has_year and len(column) > column.null_count:
        ends = compute.min_max(column)
        least, most = (compute.year(ends[which]).as_py() for which in ("min", "max"))
        if least < 1 or most > 9999:
            raise InvalidFields(f"a time of the year {least if least < 1 else most}: a scan reads those of 1 to 9999")
    if pa.types.is_timestamp(kind):  # in UTC
        none = ".000000000" if kind.unit == "ns" else ".000000"
        text = compute.replace_substring(column.cast(pa.timestamp(kind.unit)).cast(pa.string()), none, "")
        column = compute.binary_join_element_wise(text, "+00:00", "") if kind.tz else text
    if not pa.types.is_binary(kind):
        column = column.cast(pa.string())
    return column.cast(pa.binary())


def columns_of(names: list[str], columns: list[pa.Array] | list[pa.ChunkedArray]) -> TextColumns:
    """Columns that texts() has made as entries; not checked. A column's bytes are copied once."""
    return TextColumns([name.encode() for name in names], [_runs(column) for column in columns])


def _runs(column: pa.Array | pa.ChunkedArray) -> tuple[bytes, bytes, bytes]:
    """A column as TextColumns takes it."""
    pa = load()
    column = column.cast(pa.large_binary())  # whose chunks are one, however large it gets
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    column.validate(full=True)  # a file may say anything of where texts lie
    there = b""
    if column.null_count:
        there = column.is_valid().cast(pa.uint8()).buffers()[1].to_pybytes()
        column = column.fill_null(b"")  # Arrow lets a null have bytes
    _, starts, texts = column.buffers()
    starts = starts.slice(8 * column.offset, 8 * (len(column) + 1)).to_pybytes() if len(column) else bytes(8)
    first, end = (int.from_bytes(starts[at:][:8], byteorder) for at in (0, 8 * len(column)))
    return starts, texts.slice(first, end - first).to_pybytes() if end > first else b"", there
