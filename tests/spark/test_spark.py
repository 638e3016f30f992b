"""Batch scans by a real Spark: what stream.range() says, at any cut, in any columns."""

from __future__ import annotations

import decimal
import os
import random
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import raxlog
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from raxlog.stream.columns.arrow import projection
from raxlog.tools.spark import live_snapshot, scan
from raxlog.tools.spark.location import find
from raxlog.tools.spark.options import Options, parse
from raxlog.tools.spark.plan import Part, Window
from raxlog.tools.spark.requirements import pyspark_version
from spark_scans import ENTRIES, VALID, reading, refusal

pytestmark = pytest.mark.spark

pytest_plugins = ["spark_session"]

PUSHES = pyspark_version() >= (4, 1)


def planned(path: Path, **given: Any) -> tuple[list[Part], Options]:
    """The parts that a scan with these options would have."""
    options = parse({"path": str(path), "stream": "orders"} | {name: str(value) for name, value in given.items()})
    place = live_snapshot.at_rest(find(options.path), options)
    return scan.resolved(scan.planned(place, options, Window.of(options))), options


def ids_of(part: Part, options: Options) -> list[tuple[int, int]]:
    """The IDs that a task would read."""
    plain = projection(None)
    batches = scan.batches(part, plain, plain.schema, options)
    return [
        sid for batch in batches
        for sid in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
    ]


# -- a long history ---------------------------------------------------------------------------


def test_a_scan_has_the_rows_of_a_range_in_their_order_partition_by_partition(
    spark: Any, history: Path, tmp_path: Path
) -> None:
    frame = reading(spark, history, minPartitions=6).load()
    frame.write.parquet(str(tmp_path / "out"))

    files = sorted((tmp_path / "out").glob("part-*.parquet"))
    tables = [pq.read_table(file) for file in files]
    assert len(files) == 6
    sizes = [table.num_rows for table in tables]
    assert max(sizes) - min(sizes) <= 0.01 * max(sizes)
    found = pa.concat_tables(tables)
    with raxlog.open(history, readonly=True) as store:
        expected = list(store.stream("orders").range())
    assert len(expected) == found.num_rows == ENTRIES
    assert found["id_ms"].to_pylist() == [entry.id.ms for entry in expected]
    assert found["id_seq"].to_pylist() == [entry.id.seq for entry in expected]
    for at in range(0, ENTRIES, 100_000):
        rows = found["fields"].slice(at, 100_000).to_pylist()
        assert all(
            dict(row) == {name: os.fsencode(value) for name, value in entry.fields.items()}
            for row, entry in zip(rows, expected[at : at + 100_000], strict=True)
        )


def test_sums_and_counts_are_those_of_a_range(spark: Any, history: Path) -> None:
    frame = reading(spark, history).schema("id_ms bigint, item string, qty int, price decimal(10,2), weight double")
    row = frame.load().selectExpr(
        "count(*) n", "count(qty) with_qty", "sum(qty) qty", "sum(price) price", "count(item) items",
        "sum(weight) weight",
    ).collect()[0]

    with raxlog.open(history, readonly=True) as store:
        entries = [entry.fields for entry in store.stream("orders").range()]
    numbers = [int(fields["qty"]) for fields in entries if fields.get("qty", "many") != "many"]
    prices = [decimal.Decimal(fields["price"]) for fields in entries if "price" in fields]
    weights = [float(fields["weight"]) for fields in entries if "weight" in fields]
    assert (row.n, row.with_qty, row.qty, row.price) == (ENTRIES, len(numbers), sum(numbers), sum(prices))
    # what is not UTF-8 is no string
    assert row["items"] == sum("item" in fields and "\udcff" not in fields["item"] for fields in entries)
    assert row.weight == pytest.approx(sum(weights))


def test_two_hundred_random_cuts_neither_overlap_nor_miss_an_entry(history: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    dice = random.Random(seed)
    with raxlog.open(history, readonly=True) as store:
        orders = store.stream("orders")
        for _ in range(200):
            low, high = sorted(dice.sample(range(ENTRIES), 2))
            start, end = orders.select(low), orders.select(high)
            many = dice.choice([1, 2, 3, 7, 40, dice.randrange(1, 300)])
            parts, _ = planned(history, startingOffsets=start, endingOffsets=end, minPartitions=many)
            pieces = [piece for part in parts for piece in part.pieces]
            assert pieces[0].start == start
            assert pieces[-1].end == end
            assert all(before.end.next() == after.start for before, after in pairwise(pieces))
            assert all(piece.entries == orders.count(piece.start, piece.end) for piece in pieces)
            assert sum(part.entries for part in parts) == high - low + 1
            even = (high - low + 1) / len(parts)
            assert all(abs(part.entries - even) <= max(1.0, 0.01 * even) for part in parts)


def test_a_task_reads_what_was_planned_for_it_whatever_the_cut(history: Path) -> None:
    with raxlog.open(history, readonly=True) as store:
        orders = store.stream("orders")
        start, end = orders.select(700), orders.select(60_000)
        expected = [tuple(entry.id) for entry in orders.range(start, end)]
    for given in ({"minPartitions": 13}, {"maxRecordsPerPartition": 997}):
        parts, options = planned(history, startingOffsets=start, endingOffsets=end, **given)
        read = [ids_of(part, options) for part in parts]
        assert [len(ids) for ids in read] == [part.entries for part in parts]
        assert [sid for ids in read for sid in ids] == expected


def test_every_form_of_a_bound_means_what_it_means_to_a_range(store: raxlog.Store, tmp_path: Path) -> None:
    orders = store.stream("orders")
    orders.extend([{"n": n} for n in range(60)], ids=[f"{n // 6}-{n % 6}" for n in range(1, 61)])
    orders.delete("3-1", "3-2", "10-0")
    store.snapshot(tmp_path / "snapshot")
    starts = ["earliest", "-", "0", "3", "3-2", "(3-2", "(3", "9-5", "10-1"]
    ends = ["latest", "+", "3", "3-4", "(3-4", "(3", "0-1", "10", "99-0"]
    for start in starts:
        for end in ends:
            first = "-" if start == "earliest" else start
            last = "+" if end == "latest" else end
            expected = [tuple(entry.id) for entry in orders.range(first, last)]
            try:
                parts, options = planned(
                    tmp_path / "snapshot", startingOffsets=start, endingOffsets=end, minPartitions=4
                )
            except raxlog.InvalidArgument:
                assert not expected
                continue
            assert [sid for part in parts for sid in ids_of(part, options)] == expected


def test_partitions_may_be_empty_and_as_small_as_one_entry(spark: Any, history: Path, store: raxlog.Store) -> None:
    few = reading(spark, history, "few", minPartitions=10).schema("n int").load()
    assert [len(rows) for rows in few.rdd.glom().collect()] == [1] * 10
    assert [row.n for row in few.collect()] == list(range(10))

    nothing = reading(spark, history, "few", startingTimestamp=1, endingTimestamp=2).load()
    assert nothing.count() == 0
    store.stream("empty").append({"n": 1})
    store.stream("empty").trim(maxlen=0)
    assert reading(spark, store.path, "empty").load().collect() == []


def test_timestamps_win_over_offsets_and_the_end_is_not_included(store: raxlog.Store, tmp_path: Path) -> None:
    store.stream("orders").extend([{"n": n} for n in range(10)], ids=[f"{1000 + n}-0" for n in range(10)])
    store.snapshot(tmp_path / "snapshot")

    parts, options = planned(
        tmp_path / "snapshot", startingTimestamp=1003, endingTimestamp=1006, startingOffsets="1009", endingOffsets="+"
    )

    assert [sid for part in parts for sid in ids_of(part, options)] == [(1003, 0), (1004, 0), (1005, 0)]


def test_a_folder_of_snapshots_is_read_as_of_a_time(spark: Any, store: raxlog.Store, tmp_path: Path) -> None:
    orders = store.stream("orders")
    orders.append({"n": 1})
    first = store.snapshot(tmp_path / "days" / "first")
    orders.append({"n": 2})
    orders.create_group("billing", "$")
    store.snapshot(tmp_path / "days" / "second", shards=1)

    assert reading(spark, tmp_path / "days").load().count() == 2
    assert reading(spark, tmp_path / "days", asOf=first.created.isoformat()).load().count() == 1
    assert reading(spark, tmp_path / "days", asOf=first.created.isoformat(), dataset="groups").load().count() == 0
    assert "nothing at" in refusal(reading(spark, tmp_path / "days", asOf="2001-01-01T00:00:00Z").load)


# -- columns ----------------------------------------------------------------------------------


def test_a_schema_types_the_fields_it_names(spark: Any, store: raxlog.Store) -> None:
    store.stream("orders").append({
        "s": "text", "b": b"\x00\xff", "l": 1 << 40, "i": -7, "d": 2.5, "t": "true",
        "at": "2026-11-21T10:00:00Z", "m": "12.30", "timestamp": "a field of that name",
    }, id="1526919030474-55")
    schema = (
        "l bigint, s string, b binary, i int, d double, t boolean, at timestamp, m decimal(6,2), absent int, "
        "id_ms bigint, id_seq bigint, timestamp string"
    )
    row = reading(spark, store.path).schema(schema).load().collect()[0]

    assert row.asDict() == {
        "l": 1 << 40, "s": "text", "b": b"\x00\xff", "i": -7, "d": 2.5, "t": True, "at": datetime(2026, 11, 21, 10),
        "m": decimal.Decimal("12.30"), "absent": None, "id_ms": 1526919030474, "id_seq": 55,
        "timestamp": "a field of that name",
    }


def test_time_and_id_come_on_request_and_a_column_may_have_a_name_of_its_own(spark: Any, store: raxlog.Store) -> None:
    store.stream("orders").append({"timestamp": "mine", "n": 1}, id="1526919030474-55")
    asked = {"includeTimestamp": "true", "includeId": "true"}

    row = reading(spark, store.path, **asked).load().collect()[0]
    assert row.timestamp == datetime.fromtimestamp(1526919030.474, UTC).replace(tzinfo=None)
    assert raxlog.StreamID.from_bytes(bytes(row.id)) == raxlog.StreamID("1526919030474-55")
    assert row.fields == {"timestamp": b"mine", "n": b"1"}

    named = StructType([
        StructField("mine", StringType(), metadata={"field": "timestamp"}), StructField("n", IntegerType()),
    ])
    assert reading(spark, store.path, **asked).schema(named).load().collect() == [("mine", 1)]


def test_what_does_not_parse_is_null_with_its_text_beside_it_or_an_error(spark: Any, store: raxlog.Store) -> None:
    orders = store.stream("orders")
    orders.append({"qty": "5"}, id="1-1")
    orders.append({"qty": "five"}, id="1-2")
    orders.append({"qty": "6"}, id=f"{1 << 63}-1")
    schema = "id_ms bigint, qty int"

    assert reading(spark, store.path).schema(schema).load().collect() == [(1, 5), (1, None), (None, 6)]
    told = reading(spark, store.path).schema(f"{schema}, _corrupt_record string").load().collect()
    assert told[0][2] is None
    assert "five" in told[1][2]
    assert str(1 << 63) in told[2][2]
    named = reading(spark, store.path, columnNameOfCorruptRecord="bad").schema("qty int, bad string").load()
    assert [row.bad is None for row in named.collect()] == [True, False, True]

    message = refusal(reading(spark, store.path, mode="failfast").schema("qty int").load().collect)
    assert all(word in message for word in ("orders", "1-2", "qty", "five"))


def test_several_streams_come_by_a_pattern_with_their_name(spark: Any, store: raxlog.Store) -> None:
    for name, many in (("orders.eu", 3), ("orders.us", 2), ("mail", 4)):
        store.stream(name).extend([{"n": n} for n in range(many)])
    reader = spark.read.format("raxlog").option("path", str(store.path)).option("streamPattern", "orders.*")

    assert reader.load().dtypes[0] == ("stream", "string")
    assert sorted(reader.load().groupBy("stream").count().collect()) == [("orders.eu", 3), ("orders.us", 2)]
    assert reader.load().rdd.getNumPartitions() == 1  # small ones share a task
    pushing = reader.option("pushdown", str(PUSHES)).schema("stream string, n int")
    narrowed = pushing.load().where("stream = 'orders.us'")
    assert sorted(narrowed.collect()) == [("orders.us", 0), ("orders.us", 1)]


@pytest.mark.skipif(not PUSHES, reason="filters are pushed down since Spark 4.1")
def test_filters_are_pushed_down_where_asked_and_the_answer_is_the_same(spark: Any, history: Path) -> None:
    with raxlog.open(history, readonly=True) as store:
        ms = store.stream("orders").select(ENTRIES // 2).ms
    where = f"id_ms >= {ms} and id_ms < {ms + 500} and qty is not null"
    schema = "id_ms bigint, id_seq bigint, qty int"
    pushed = reading(spark, history, pushdown="true").schema(schema).load().where(where)
    plain = reading(spark, history).schema(schema).load().where(where)

    assert pushed.rdd.getNumPartitions() == 1
    assert plain.rdd.getNumPartitions() == ENTRIES // 250_000 > 1
    assert sorted(pushed.collect()) == sorted(plain.collect()) != []


@pytest.mark.skipif(not PUSHES, reason="filters are pushed down since Spark 4.1")
def test_filters_narrow_by_what_a_column_reads_never_by_its_name(spark: Any, store: raxlog.Store) -> None:
    entry = {"ms": 7, "raw": b"A" * 16, "when": "2020-01-01T00:00:00Z", "of": "mail", "n": 1}
    sid = store.stream("orders").extend([entry] * 3)[0]
    schema = StructType([
        StructField("id_ms", LongType(), metadata={"field": "ms"}),
        StructField("id", BinaryType(), metadata={"field": "raw"}),
        StructField("timestamp", TimestampType(), metadata={"field": "when"}),
        StructField("stream", StringType(), metadata={"field": "of"}),
        StructField("began", LongType(), metadata={"field": "id_ms"}),
    ])
    reader = spark.read.format("raxlog").option("path", str(store.path)).option("streamPattern", "*").schema(schema)
    frame = reader.options(pushdown="true", includeId="true", includeTimestamp="true").load()
    for where in ("id_ms = 7", "id_ms < 8", "id = X'" + "41" * 16 + "'", "stream = 'mail'", f"began >= {sid.ms}",
                  "timestamp = TIMESTAMP '2020-01-01 00:00:00Z'", "id_ms in (7, 8) and stream <> 'orders'"):
        assert frame.where(where).count() == 3, where
    assert frame.where(f"id_ms = {sid.ms}").count() == frame.where("stream = 'orders'").count() == 0


@pytest.mark.skipif(not PUSHES, reason="filters are pushed down since Spark 4.1")
def test_filters_of_names_leave_out_streams_and_the_answer_is_the_same(spark: Any, store: raxlog.Store) -> None:
    from pyspark.sql.functions import col  # noqa: PLC0415

    for name, many in (("o.eu", 1), ("o.us", 2), ("mail", 4), (b"\xff.eu", 8)):
        store.stream(name).extend([{"n": n} for n in range(many)])
    reader = spark.read.format("raxlog").schema("stream string, n int")
    reader = reader.options(path=str(store.path), streamPattern="*")
    plain = reader.load()
    pushed = reader.options(pushdown="true", maxRecordsPerPartition="1").load()
    stream = col("stream")
    for where, entries in (
        (stream.like("o.%"), 3), (stream.like("%.eu"), 9), (stream.like("%i%"), 4), (~stream.like("o.%"), 12),
        (stream != "mail", 11), (~stream.isin("mail", "o.eu"), 10), (stream.like("o.%") & ~stream.endswith("s"), 1),
        (stream == "\\xff.eu", 8), (stream.isin("\\xff.eu", "o.us"), 10), (~stream.contains("."), 4),
    ):
        assert pushed.where(where).rdd.getNumPartitions() == entries, where  # with an entry each
        found = sorted(pushed.where(where).collect())
        assert (found, len(found)) == (sorted(plain.where(where).collect()), entries), where
    for where, entries in {"stream > 'n'": 3, "stream is null": 0, "stream <=> null": 0, "stream in ('mail', null)": 4,
                           "stream not in ('mail', null)": 0, "stream = 'mail' or n = 0": 7}.items():
        assert pushed.where(where).count() == plain.where(where).count() == entries, where


def test_groups_and_pending_entries_are_small_tables(spark: Any, store: raxlog.Store) -> None:
    orders = store.stream("orders")
    orders.extend([{"n": n} for n in range(10)])
    billing = orders.create_group("billing", start="0")
    batch = billing.read("worker-1", count=4)
    billing.ack(batch[0].id)
    billing.nack(batch[1].id)
    reader = spark.read.format("raxlog").option("path", str(store.path))

    groups = reader.option("dataset", "groups").load().collect()
    assert [row.asDict() for row in groups] == [{
        "stream": "orders", "group": "billing", "consumers": 1, "pending": 3, "last_delivered_id": str(batch[-1].id),
        "entries_read": 4, "lag": 6,
    }]
    pending = reader.option("dataset", "pending").load().orderBy("id_seq").collect()
    assert [(row.id_ms, row.id_seq) for row in pending] == [tuple(entry.id) for entry in batch[1:]]
    assert [row.consumer for row in pending] == [None, "worker-1", "worker-1"]
    assert all((row.delivered is None) == (row.consumer is None) for row in pending)


# -- the schema that a stream keeps -----------------------------------------------------------


@pytest.fixture
def typed(tmp_path: Path) -> Path:
    """A store with a schema for the streams a1 and a2, another for b, and none for plain."""
    with raxlog.open(tmp_path / "typed.rax") as store:
        for name in ("a1", "a2", "b", "plain"):
            store.stream(name).extend([
                {"qty": number, "price": f"{number}.5", "ok": "TRUE", "at": f"2026-11-22T10:00:0{number % 10}Z",
                 "code": "no", "raw": b"\xff", "timestamp": "noon", f"rare{name}": "x"} for number in range(1, 2001)
            ])
        for name in ("a1", "a2"):
            store.stream(name).configure(schema={"qty": "bigint", "price": "decimal(10,2)", "at": "timestamp_ntz"})
        store.stream("b").configure(schema={"timestamp": "string"})
        store.snapshot(tmp_path / "whole.rax")
        store.snapshot(tmp_path / "shards.rax", shards=2)
    return tmp_path


def test_a_load_without_a_schema_has_the_streams_own(spark: Any, typed: Path) -> None:
    own = "id_ms: bigint, id_seq: bigint, qty: bigint, price: decimal(10,2), at: timestamp_ntz"
    for place in ("typed.rax", "whole.rax", "shards.rax"):
        frame = reading(spark, typed / place, "a1").load()
        assert frame.schema.simpleString() == "struct<" + own.replace(": ", ":").replace(", ", ",") + ">"
        assert frame.selectExpr("sum(qty)", "sum(price)", "max(at)").first() == (
            2_001_000, decimal.Decimal("2002000.00"), datetime(2026, 11, 22, 10, 0, 9))  # fmt: skip
    both = spark.read.format("raxlog").options(path=str(typed / "whole.rax"), streamPattern="a*").load()
    assert both.schema.names == ["stream", "id_ms", "id_seq", "qty", "price", "at"]
    mixed = spark.read.format("raxlog").options(path=str(typed / "whole.rax"), streamPattern="*").load()
    assert mixed.schema.names == ["stream", "id_ms", "id_seq", "fields"]


def test_inferred_types_are_the_narrowest_that_fit(spark: Any, typed: Path) -> None:
    for place in ("typed.rax", "shards.rax"):
        frame = reading(spark, typed / place, "plain", inferSchema="true").load()
        assert dict(frame.dtypes) == {
            "id_ms": "bigint", "id_seq": "bigint", "qty": "bigint", "price": "double", "ok": "boolean",
            "at": "timestamp", "code": "string", "raw": "binary", "timestamp": "string", "rareplain": "string",
        }  # fmt: skip
    assert frame.selectExpr("sum(price)", "count_if(ok)", "min(code)").first() == (2_002_000.0, 2000, "no")


def test_a_schema_that_contradicts_the_streams_is_refused_before_a_task(spark: Any, typed: Path) -> None:
    for place in ("typed.rax", "whole.rax", "shards.rax"):
        told = refusal(reading(spark, typed / place, "a1").schema("qty timestamp").load().count)
        assert "column 'qty' is timestamp, but the schema of stream 'a1' has bigint" in told
        assert reading(spark, typed / place, "a1").schema("qty double, at string").load().count() == 2000
    told = refusal(lambda: reading(spark, typed / "whole.rax", "b", includeTimestamp="true").load())
    assert "'timestamp' is a field of the stream's schema" in told


def test_strange_sql_that_is_not_refused_is_valid_to_spark(spark: Any, store: raxlog.Store) -> None:
    store.stream("orders").append({"item": "book"})
    reading(spark, store.path).schema("item string").load().createOrReplaceTempView("entries")
    for sql in VALID:
        assert spark.sql(sql).collect()
