"""Several streams in one scan: their entries share batches, and each row and each error names its own stream."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import raxlog
from raxlog.stream.columns.arrow import DamagedNodeWarning, of_ranges, projection
from raxlog.stream.columns.scan import Range, read_ranges
from raxlog.stream.node.stream_id import StreamID

COLUMNS = {"id_ms": "bigint", "id_seq": "bigint", "v": "bigint"}


def scanned(store: raxlog.Store, ranges: list[Range], schema: Any = COLUMNS, **options: Any) -> list[pa.RecordBatch]:
    columns = projection(schema, stream_column="stream")
    return list(of_ranges(read_ranges(store._source, ranges), columns, **options))


def all_of(*names: str) -> list[Range]:
    return [Range(name.encode(), StreamID.MIN, StreamID.MAX) for name in names]


@pytest.mark.parametrize("batch_size", [7, 65_536])
def test_ranges_of_many_streams_have_the_rows_of_each_in_turn(store: raxlog.Store, batch_size: int) -> None:
    dice = random.Random(5)
    ranges, expected = [], []
    for number in range(700):
        stream = store.stream(f"s{number}")
        ids = [f"{1 + at // 3}-{at % 3}" for at in range(1, dice.choice([1, 2, 4, 12, 60]))]
        if ids:
            stream.extend([{"v": dice.randrange(1000)} for _ in ids], ids=ids)
            stream.delete(*(sid for sid in ids if dice.random() < 0.1))
        start, end = sorted(raxlog.StreamID(dice.randrange(8), dice.randrange(3)) for _ in range(2))
        if dice.random() < 0.5:
            start, end = StreamID.MIN, StreamID.MAX
        known = dice.choice([None, number + 1, 9999])  # a number of this stream, of another one, or of none
        ranges.append(Range(stream.name.encode(), start, end, known))
        expected += [(stream.name, *entry.id, int(entry.fields["v"])) for entry in stream.range(start, end)]
    batches = scanned(store, ranges, batch_size=batch_size)
    assert all(batch.num_rows == batch_size for batch in batches[:-1])
    rows = pa.Table.from_batches(batches).to_pylist()
    assert [(row["stream"], row["id_ms"], row["id_seq"], row["v"]) for row in rows] == expected


def test_a_value_that_is_malformed_or_missing_is_reported_with_its_own_stream(store: raxlog.Store) -> None:
    for name, fields in (("a", {"v": 1}), ("b", {"v": "many"}), ("c", {"w": 2}), ("d", {"v": 4})):
        store.stream(name).append(fields)
    with pytest.raises(raxlog.MalformedValue, match="stream b: entry"):
        scanned(store, all_of(*"abcd"), mode="FAILFAST")
    required = pa.schema([pa.field("v", pa.int64(), nullable=False)])
    with pytest.raises(raxlog.MalformedValue, match="stream 'c': 1 of 3 entries"):
        scanned(store, all_of(*"acd"), required)
    (batch,) = scanned(store, all_of(*"abcd"))
    assert batch.column("v").to_pylist() == [1, None, None, 4]


def test_damage_in_one_of_many_streams_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "many.rax"
    with raxlog.open(path) as store:
        for name in "abc":
            store.stream(name).extend([{"v": 1, "text": f"the text of {name}"}] * 3)
        store.snapshot(tmp_path / "copy.rax")
    (data,) = (tmp_path / "copy.rax").rglob("data.mdb")
    held = data.read_bytes()
    data.write_bytes(held.replace(b"the text of b", b"the text 0f b"))
    with raxlog.open(tmp_path / "copy.rax", readonly=True) as store:
        with pytest.raises(raxlog.CorruptionError, match=r"fails its checksum.*stream 'b'"):
            scanned(store, all_of(*"abc"))
        with pytest.warns(DamagedNodeWarning, match="'b'"):
            (batch,) = scanned(store, all_of(*"abc"), skip_damaged=True)
    assert batch.column("stream").to_pylist() == ["a"] * 3 + ["c"] * 3
