"""Columns of texts: entries that come as columns are stored byte for byte as the same ones that come as rows."""

from __future__ import annotations

import datetime
import decimal
import random
import re
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
import raxlog
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from raxlog.stream.columns.texts import columns_of, plain, storable, texts
from raxlog.stream.node.flattened import Flattened

NAMES = ["", "ü", "qty", "a rather long name of a field, longer than sixty-three bytes, as some are"]
LATE = "4102444800000-0"  # all clocks lie before, so that each next ID follows from the last one

values = st.none() | st.binary(max_size=5) | st.sampled_from(
    [b"0", b"-1", b"127", b"128", b"-4097", b"00", b"-0", b"9223372036854775807", b"-9223372036854775808",
     b"9223372036854775808", b"x" * 63, b"x" * 64, b"x" * 4096]
)  # fmt: skip


@st.composite
def tables(draw: st.DrawFn) -> list[list[Any]]:
    """For each name, what each entry has under it: at least one value an entry."""
    width, length = draw(st.integers(1, len(NAMES))), draw(st.integers(1, 40))
    cell = draw(st.sampled_from([values, values.filter(lambda value: value is not None)]))
    rows = draw(st.lists(st.lists(cell, min_size=width, max_size=width).filter(lambda row: any(
        value is not None for value in row)), min_size=length, max_size=length))
    return [list(column) for column in zip(*rows, strict=True)]


def rows_of(names: list[str], columns: list[list[Any]]) -> list[list[bytes]]:
    rows = [[pair for pair in zip(names, row, strict=True) if pair[1] is not None]
            for row in zip(*columns, strict=True)]
    return [[half for name, value in pairs for half in (name.encode(), value)] for pairs in rows]


def stored(entries: Any, **limits: Any) -> tuple[bytes, list[raxlog.StreamID]]:
    """The nodes that they make, behind an entry of other names."""
    with TemporaryDirectory() as folder, raxlog.open(Path(folder, "s.rax"), durability="relaxed") as store:
        stream = store.stream("s", **limits)
        stream.append({"first": "1"}, LATE)
        made = stream.extend(entries)
        made += stream.extend(entries)  # into a node that holds such already
        return stream.dump(), made


@given(tables(), st.sampled_from([{}, {"node_max_bytes": 300}, {"node_max_entries": 7}, {"compression": "zstd"}]),
       st.data())
@settings(max_examples=examples(60), deadline=None)
def test_columns_are_stored_byte_for_byte_as_rows_are(table: list[list[Any]], limits: dict[str, Any],
                                                      data: st.DataObject) -> None:
    names = NAMES[: len(table)]
    length = len(table[0])
    before, behind, cut = (data.draw(st.integers(0, length)) for _ in range(3))
    padded = [pa.array([b"left out"] * before + column + [None] * behind, pa.binary()) for column in table]
    columns = [array.slice(before, length) for array in padded]
    chunks = [pa.chunked_array([column.slice(0, cut), column.slice(cut)]) for column in columns]
    expected = stored(Flattened(rows_of(names, table)), **limits)
    for given_columns in (columns, chunks):
        found = columns_of(names, given_columns)
        found.check()
        assert list(found) == rows_of(names, table)
        assert stored(Flattened(found), **limits) == expected


def test_columns_take_ids_of_their_own_and_go_through_the_write_buffer(tmp_path: Path) -> None:
    columns = columns_of(["qty"], [pa.array([b"1", b"2"])])
    with raxlog.open(tmp_path / "s.rax", durability="buffered") as store:
        store.stream("s").extend(Flattened(columns), ["5-1", "5-2"])
        assert [entry.to_dict() for entry in store.stream("s")] == [
            {"id": "5-1", "fields": {"qty": "1"}}, {"id": "5-2", "fields": {"qty": "2"}}
        ]  # fmt: skip


day = datetime.datetime(2018, 5, 21, 16, 10, 30, 474000)
integers = (pa.int8, pa.int16, pa.int32, pa.int64, pa.uint8, pa.uint16, pa.uint32, pa.uint64)
second = day.replace(microsecond=0)
TYPES: list[tuple[pa.DataType, list[Any]]] = [
    *((kind(), [0, 7, 100]) for kind in integers),
    (pa.int64(), [-(1 << 63), (1 << 63) - 1, 0]), (pa.uint64(), [(1 << 64) - 1, 0, 1]),
    (pa.float32(), [0.1, -0.0, 1e30]), (pa.float64(), [0.1, 1e300, 2.0]), (pa.float64(), [float("nan"), -1e-7, 3.0]),
    (pa.bool_(), [True, False, True]),
    (pa.decimal128(12, 2), [decimal.Decimal("12.30"), decimal.Decimal("-0.01"), decimal.Decimal(0)]),
    (pa.decimal256(50, 3), [decimal.Decimal(10) ** 40, decimal.Decimal("0.001"), decimal.Decimal(-1)]),
    (pa.date32(), [day.date(), datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
    (pa.time64("us"), [day.time(), datetime.time(0), datetime.time(23, 59)]),
    *((pa.timestamp(unit, zone), [second, datetime.datetime(1969, 12, 31), second])
      for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "Europe/Berlin")),
    *((kind, ["", "ü", "text"]) for kind in (pa.string(), pa.large_string(), pa.string_view(),
                                             pa.dictionary(pa.int8(), pa.string()))),
    *((kind, [b"", b"\0\xff", b"x"]) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())),
    (pa.binary(2), [b"ab", b"\0\xff", b"12"]),
    (pa.list_(pa.int8()), [[1], [], [2, None]]),
    (pa.struct([("a", pa.string())]), [{"a": "x"}, {"a": None}, {"a": ""}]),
    (pa.map_(pa.string(), pa.int8()), [[("a", 1)], [], [("b", None)]]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "three"), TYPES, ids=[f"{at}-{kind}" for at, (kind, _) in enumerate(TYPES)])
def test_each_type_of_arrow_is_stored_as_its_values_one_by_one(kind: pa.DataType, three: list[Any]) -> None:
    everything = [None, *three, None, *reversed(three), None]
    whole = pa.array(everything, kind)
    for column in (whole, whole.slice(1, 3), whole.slice(2), whole.slice(0, 1), whole.slice(5, 0)):
        made = texts(plain(column, storable(kind)))
        one_by_one = [texts(plain(column.slice(at, 1), storable(kind)))[0].as_py() for at in range(len(column))]
        assert list(columns_of(["x"], [made])) == rows_of(["x"], [one_by_one])


def test_what_arrow_keeps_under_a_null_is_not_stored() -> None:
    starts = b"".join(at.to_bytes(4, "little") for at in (0, 1, 6, 7))
    garbage = pa.Array.from_buffers(pa.binary(), 3, [*map(pa.py_buffer, (b"\x05", starts, b"agarbag"))])
    columns = columns_of(["x", "y"], [garbage, pa.array([b"1", b"2", b"3"])])
    assert list(columns) == [[b"x", b"a", b"y", b"1"], [b"y", b"2"], [b"x", b"g", b"y", b"3"]]
    clean = columns_of(["x", "y"], [pa.array([b"a", None, b"g"]), pa.array([b"1", b"2", b"3"])])
    assert columns.parts() == clean.parts()


def test_a_column_whose_texts_would_lie_outside_of_it_is_refused() -> None:
    for ends in ((0, 1, 1 << 20), (0, 3, 2), (-5, 1, 2)):
        starts = pa.py_buffer(b"".join(at.to_bytes(4, "little", signed=True) for at in ends))
        with pytest.raises(pa.ArrowInvalid):
            columns_of(["x"], [pa.Array.from_buffers(pa.binary(), 2, [None, starts, pa.py_buffer(b"abc")])])


def test_an_entry_that_cannot_be_is_named_by_its_place_and_nothing_is_stored(tmp_path: Path) -> None:
    with pytest.raises(raxlog.InvalidFields, match=re.escape("entry no. 1: an entry needs at least one field")):
        columns_of(["x", "y"], [pa.array([b"1", None]), pa.array([None, None], pa.binary())]).check()
    first = columns_of(["x", "$entry"], [pa.array([b"1", b"1", None]), pa.array([b"{}", b"{}", b"{}"])])
    with pytest.raises(raxlog.InvalidFields, match=re.escape("entry no. 2: the name $entry of a first field is")):
        first.check()
    columns_of([""], [pa.array([b""])]).check()
    with raxlog.open(tmp_path / "s.rax") as store:
        stream = store.stream("s")
        stream.configure(schema={"qty": "bigint"}, schema_checked=True)
        with pytest.raises(raxlog.MalformedValue, match="entry 1: field 'qty' is bigint"):
            stream.extend(Flattened(columns_of(["qty"], [pa.array([b"1", b"many"])])))
        assert len(stream) == 0


def test_the_parts_of_pieces_join_to_those_of_all() -> None:
    column, other = ([random.choice([None, b"", b"1", b"text"]) for _ in range(50)] for _ in range(2))
    whole = columns_of(["x", "y"], [pa.array(column), pa.array(other)])
    for _ in range(20):
        cuts = [0, *sorted(random.choices(range(51), k=3)), 50]
        pieces = [columns_of(["x", "y"], [pa.array(column, pa.binary()).slice(a, b - a),
                                          pa.array(other, pa.binary()).slice(a, b - a)]).parts()
                  for a, b in pairwise(cuts)]
        assert [b"".join(part) for part in zip(*pieces, strict=True)] == whole.parts()
    for place, value in ((7, b"otherwise"), (9, None if column[9] else b"x")):
        changed = [*column]
        changed[place] = value
        assert columns_of(["x", "y"], [pa.array(changed), pa.array(other)]).parts() != whole.parts()
