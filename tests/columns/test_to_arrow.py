"""Streams as Arrow: the same entries as range(), read by pyarrow, DuckDB and Polars themselves."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import forkserver
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import raxlog
from raw_records import changed_copy, flipped, records_of
from raxlog.storage.format import keys as layout
from raxlog.storage.format import records
from raxlog.stream.columns.arrow import ROWS, Tally, batches, projection

OPTIONS: dict[str, dict[str, Any]] = {
    "small": {"node_max_entries": 7}, "page": {}, "zstd": {"compression": "zstd"},
    "compact": {"compression": "compact"},
}  # fmt: skip
MAP = {"id_ms": "bigint", "id_seq": "bigint", "fields": "map<binary,binary>"}
SALES = {"id_ms": "bigint", "item": "string", "qty": "bigint", "price": "decimal(10,2)"}


def fill(stream: raxlog.Stream, seed: int, entries: int) -> None:
    """Sales and other entries, with IDs that jump, trimmed at their head, deleted here and there."""
    chance = random.Random(seed)
    ids: list[str] = []
    ms = seq = 0
    for _ in range(entries):
        ms, seq = (ms, seq + 1) if chance.random() < 0.6 else (ms + chance.randint(1, 5), 0)
        ids.append(f"{ms}-{seq}" if ms or seq else "0-1")
        seq = max(seq, 1) if not ms else seq
    stream.extend([
        {"item": chance.choice(["book", "pen", "größe"]), "qty": chance.randint(-5, 300), "price": f"{number / 8:.2f}"}
        if chance.random() < 0.8 else [("note", "x" * chance.randint(0, 90)), ("qty", number), ("qty", "last")]
        for number in range(entries)
    ], ids)  # fmt: skip
    stream.trim(maxlen=entries - entries // 20)
    stream.delete(*chance.sample(ids[entries // 10 :], entries // 6))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[raxlog.Store]:
    with raxlog.open(tmp_path_factory.mktemp("arrow") / "store.rax", durability="relaxed") as store:
        for seed, (name, options) in enumerate(OPTIONS.items()):
            fill(store.stream(name, **options), seed, 2000)
        yield store


def rows_of(table: Any) -> list[tuple[int, int, dict[bytes, bytes]]]:
    return [(row["id_ms"], row["id_seq"], dict(row["fields"])) for row in table.to_pylist()]


def ranged(stream: raxlog.Stream, *edges: Any) -> list[tuple[int, int, dict[bytes, bytes]]]:
    return [(*entry.id, {name.encode(): value.encode() for name, value in entry.pairs})
            for entry in stream.range(*edges)]


@pytest.mark.parametrize("name", OPTIONS)
def test_every_entry_of_range_comes_in_its_order_whatever_the_nodes(filled: raxlog.Store, name: str) -> None:
    stream = filled.stream(name)
    for size in (ROWS, 100):
        table = stream.to_arrow(schema=MAP, batch_size=size).read_all()
        table.validate(full=True)
        assert rows_of(table) == ranged(stream)


@pytest.mark.parametrize("name", ["small", "compact"])
def test_every_end_that_range_takes_cuts_at_the_same_entries(filled: raxlog.Store, name: str) -> None:
    stream = filled.stream(name)
    chance = random.Random(5)
    ids = [entry.id for entry in stream.range()]
    for _ in range(30):
        low, high = sorted(chance.sample(range(len(ids)), 2))
        start = chance.choice(["-", ids[low], f"({ids[low]}", str(ids[low].ms), f"({ids[low].ms}"])
        end = chance.choice(["+", ids[high], f"({ids[high]}", str(ids[high].ms), ids[low]])
        assert rows_of(stream.to_arrow(start, end, MAP).read_all()) == ranged(stream, start, end)


@pytest.mark.parametrize("name", OPTIONS)
def test_even_splits_neither_overlap_nor_miss_an_entry(filled: raxlog.Store, name: str) -> None:
    stream = filled.stream(name)
    parts = [stream.to_arrow(one.start, one.end, MAP).read_all() for one in stream.split(37)]
    assert [part.num_rows for part in parts] == [one.entries for one in stream.split(37)]
    assert rows_of(pa.concat_tables(parts)) == ranged(stream)


def test_a_stream_that_is_empty_or_not_there_has_the_schema_and_no_rows(store: raxlog.Store) -> None:
    for name in ("none", "empty"):
        table = store.stream(name).to_arrow(schema=SALES).read_all()
        assert (table.num_rows, table.schema.names) == (0, list(SALES))
        store.stream("empty").delete(store.stream("empty").append({"a": 1}))
    assert store.stream("empty").to_arrow("5", "3").read_all().num_rows == 0
    assert store.stream("none").exists() is False


def test_duckdb_polars_and_parquet_read_what_range_reads(filled: raxlog.Store, tmp_path: Path) -> None:
    stream = filled.stream("page")
    entries = [entry.fields for entry in stream.range()]
    quantities = [int(fields["qty"]) for fields in entries if fields["qty"] != "last"]
    books = sum(fields.get("item") == "book" for fields in entries)

    sales = stream.to_arrow(schema=SALES)  # noqa: F841 - DuckDB finds it by its name
    told = duckdb.sql("select count(*), count(qty), sum(qty), count(*) filter (item = 'book') from sales").fetchall()[0]
    assert told == (len(entries), len(quantities), sum(quantities), books)

    frame: Any = polars.from_arrow(stream.to_arrow(schema=SALES).read_all())
    assert (frame.height, frame["qty"].sum(), frame.filter(polars.col("item") == "book").height) == (
        len(entries), sum(quantities), books)  # fmt: skip

    scan = stream.to_arrow(schema=MAP, batch_size=500)
    with pq.ParquetWriter(tmp_path / "a.parquet", scan.schema) as out:
        for batch in scan:
            out.write_batch(batch)
    assert rows_of(pq.read_table(tmp_path / "a.parquet")) == ranged(stream)
    path = tmp_path / "a.parquet"
    assert duckdb.sql(f"select count(*) from read_parquet('{path}')").fetchall() == [(len(entries),)]


def test_polars_and_duckdb_read_maps_of_fields(filled: raxlog.Store) -> None:
    stream = filled.stream("small")
    entries = ranged(stream)
    fields = stream.to_arrow()  # noqa: F841 - DuckDB finds it by its name
    rows = duckdb.sql("select id_ms, id_seq, fields from fields").fetchall()
    assert [(ms, seq, {name.encode(): value for name, value in held.items()}) for ms, seq, held in rows] == entries
    frame: Any = polars.from_arrow(stream.to_arrow())
    assert frame["id_seq"].to_list() == [seq for _, seq, _ in entries]
    maps = frame["fields"].to_list()
    assert [{name.encode(): value for name, value in held.items()} for held in maps] == [held for _, _, held in entries]


def test_what_comes_while_a_scan_goes_on_is_not_chased_and_no_transaction_stays_open(store: raxlog.Store) -> None:
    stream = store.stream("orders")
    stream.extend([{"n": number} for number in range(5000)])
    scan = stream.to_arrow(schema={"n": "bigint"}, batch_size=10)
    seen = [scan.read_next_batch().column(0).to_pylist()]
    stream.extend([{"n": -1}] * 5000)
    stream.trim(maxlen=5000)  # would wait for no reader, but a page that one holds could not be used again
    seen += [batch.column(0).to_pylist() for batch in scan]
    numbers = [number for batch in seen for number in batch]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) < 5000


def test_a_scan_beside_a_writer_sees_each_entry_once_and_in_order(store: raxlog.Store) -> None:
    stream = store.stream("orders")
    stream.extend([{"n": number} for number in range(2000)])
    ended = threading.Event()

    def write() -> None:
        number = 2000
        while not ended.is_set():
            stream.extend([{"n": number + place} for place in range(50)])
            number += 50

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(10):
            numbers = stream.to_arrow(schema={"n": "bigint"}, batch_size=999).read_all().column(0).to_pylist()
            assert numbers == list(range(len(numbers)))
            assert len(numbers) >= 2000
    finally:
        ended.set()
        writer.join()


def test_a_batch_outlives_the_store_it_came_from(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax") as store:
        fill(store.stream("orders"), 1, 500)
        expected = ranged(store.stream("orders"))
        table = store.stream("orders").to_arrow(schema=MAP).read_all()
    shutil.rmtree(tmp_path / "s.rax")
    assert rows_of(table) == expected


def test_a_projection_travels_to_another_process(filled: raxlog.Store) -> None:
    sent = pickle.loads(pickle.dumps(projection(SALES, timestamp_column="at", stream_column="stream")))
    stream = filled.stream("page")
    table = pa.Table.from_batches(batches(stream.nodes(), sent, stream="page"))
    assert table.column("item").to_pylist() == stream.to_arrow(schema=SALES).read_all().column("item").to_pylist()
    assert set(table.column("stream").to_pylist()) == {"page"}
    assert table.column("at").cast(pa.int64()).to_pylist() == [1000 * entry.id.ms for entry in stream.range()]


@pytest.mark.parametrize(("schema", "options", "what"), [
    ({}, {}, "at least one column"), ([("a", "string")], {}, "pyarrow.Schema or a mapping"),
    ({"a": "varchar"}, {}, "column 'a' is of the unknown type 'varchar'"),
    ({"a": pa.list_(pa.binary())}, {}, "without binary in them"),
    ({"a": pa.map_(pa.int8(), pa.int8())}, {}, "column 'a'"),
    ({"a": pa.timestamp("ms")}, {}, "column 'a' is of the type timestamp"), ({b"a": "string"}, {}, "a column's name"),
    ({"a": "decimal(39,2)"}, {}, "1 … 38 digits"), ({"a": "decimal(5,6)"}, {}, "1 … 38 digits"),
    ({"a": "map<string,binary>"}, {}, "column 'a'"), ({"id_ms": "string"}, {}, "'id_ms' is the half of the ID"),
    ({"fields": pa.map_(pa.string(), pa.int64())}, {}, "column 'fields'"),
    ({"_corrupt_record": "int"}, {}, "must be string"),
    (pa.schema([("a", pa.string()), ("a", pa.string())]), {}, "two columns named 'a'"),
    (None, {"id_column": "fields"}, "'fields' is the id_column"),
    (None, {"mode": "DROPMALFORMED"}, "mode='DROPMALFORMED'"),
    (None, {"id_column": "x", "timestamp_column": "x"}, "both"), (None, {"batch_size": 0}, "batch_size=0"),
    (None, {"batch_size": True}, "batch_size=True"), (pa.schema([("a", pa.decimal128(5, -1))]), {}, "the scale"),
    (None, {"start": "x"}, "not an end of a range"),
])  # fmt: skip
def test_what_no_column_can_be_is_refused_at_once(store: raxlog.Store, schema: Any, options: dict[str, Any],
                                                  what: str) -> None:
    with pytest.raises(raxlog.InvalidArgument, match=what.replace("(", r"\(")):
        store.stream("orders").to_arrow(schema=schema, **options)


def test_without_pyarrow_the_extra_to_install_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ImportError('No module named pyarrow')\n")
    script = (
        "import raxlog, sys\n"
        "store = raxlog.open(sys.argv[1])\n"
        "store.stream('orders').append({'a': 1})\n"
        "try: store.stream('orders').to_arrow()\n"
        "except raxlog.NotInstalled as error: print(error)\n"
    )
    done = forkserver.run(
        [sys.executable, "-c", script, str(tmp_path / "s.rax")], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    )  # fmt: skip
    assert "pip install 'raxlog[spark]'" in done.stdout


@pytest.mark.parametrize("name", ["small", "zstd"])
def test_a_damaged_node_is_named_or_passed_over_with_all_others_read(
    filled: raxlog.Store, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "copy.rax"
    sound = tmp_path / "sound.rax"
    with raxlog.open(sound) as store:
        fill(store.stream(name, **OPTIONS[name]), 3, 1500)
        whole = ranged(store.stream(name))
    nodes = records_of(sound, 1, layout.NODE)
    for place in (0, len(nodes) // 2, len(nodes) - 1):
        key, value = nodes[place]
        master = records.node_id(key)
        behind = records.node_id(nodes[place + 1][0]) if place + 1 < len(nodes) else (2**64, 0)
        changed_copy(sound, path, {key: flipped(value, len(value) // 2, 4)})
        with raxlog.open(path, readonly=True) as store:
            stream = store.stream(name)
            with pytest.raises(raxlog.CorruptionError, match=f"stream {name!r}, node {master[0]}-{master[1]}"):
                stream.to_arrow(schema=MAP).read_all()
            tally = Tally()
            with pytest.warns(UserWarning, match=f"node {master[0]}-{master[1]}"):
                rows = rows_of(stream.to_arrow(schema=MAP, skip_damaged=True, tally=tally).read_all())
            assert rows == [row for row in whole if not master <= row[:2] < behind]
            assert [error.node for error in tally.damaged] == [f"{master[0]}-{master[1]}"]
        shutil.rmtree(path)


def test_nodes_that_have_vanished_are_told(tmp_path: Path) -> None:
    sound, path = tmp_path / "sound.rax", tmp_path / "copy.rax"
    with raxlog.open(sound) as store:
        store.stream("orders", node_max_entries=5).extend([{"n": number} for number in range(200)])
    keys = [key for key, _ in records_of(sound, 1, layout.NODE)]
    for low, high in ((0, 1), (3, 4), (10, 13), (len(keys) - 1, len(keys)), (0, len(keys))):
        changed_copy(sound, path, dict.fromkeys(keys[low:high]))
        with raxlog.open(path, readonly=True) as store, pytest.raises(raxlog.CorruptionError, match="stream 'orders'"):
            store.stream("orders").to_arrow().read_all()
        shutil.rmtree(path)


def test_a_reading_store_and_a_transaction_give_the_same(filled: raxlog.Store, tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax") as store, store.transaction() as tx:
        tx.stream("orders").append({"n": 1}, id="1-1")
        assert tx.stream("orders").to_arrow(schema={"n": "int"}).read_all().to_pylist() == [{"n": 1}]
    with raxlog.open(tmp_path / "s.rax", readonly=True) as store:
        assert store.stream("orders").to_arrow(schema={"n": "int"}).read_all().to_pylist() == [{"n": 1}]
