"""Writing rows with IDs of their own: sorted, merged, each once, and the same store however often it is killed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import msgpack
import pytest
import raxlog
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types
from raxlog.tools.spark import given_ids
from raxlog.tools.spark.given_ids import Row
from raxlog.tools.spark.source import RaxlogDataSource
from spark_scans import killed, reading, refusal

pytest_plugins = ["spark_session"]

LONG = os.environ.get("RAXLOG_LONG") == "1"
KILLS = 20 if LONG else 2
ROWS = 40_000
EVENTS = ("id n", "timestamp_micros(1700000000000000 + pmod(hash(id), 9000) * 700L) at", "concat('v', id % 7) item")

BACKFILL = f"""
import sys
from pyspark.sql import SparkSession
import raxlog.spark
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
         .config("spark.driver.memory", "1g").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
raxlog.spark.register(spark)
path, partitions = sys.argv[1:]
print("started", flush=True)
(spark.range({ROWS}).repartition(int(partitions)).selectExpr(*{EVENTS}).write.format("raxlog").mode("append")
 .options(path=path, stream="orders", idFrom="at", onExisting="skip", rowsPerCommit="100").save())
"""


def save(frame: Any, path: Path, stream: str = "orders", **options: Any) -> None:
    """Write a frame to a stream."""
    given = {name: str(value) for name, value in options.items()}
    frame.write.format("raxlog").options(path=str(path), stream=stream, **given).mode("append").save()


def entries(store: raxlog.Store, stream: str = "orders") -> list[tuple[str, dict[Any, Any]]]:
    """All that is in a stream."""
    return [(str(entry.id), entry.fields) for entry in store.stream(stream).range()]


def left(store: raxlog.Store) -> list[Path]:
    """Runs and their folders."""
    return list((store.path / "spark").glob("*"))


# -- runs and their merge -------------------------------------------------------------------

_ROW = st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from([[b"n", b"1"], [b"n", b"2"], [b"m", b""]]))


def dealt(rows: list[Row], cuts: random.Random, folder: Path, suffix: str) -> list[Path]:
    """The rows in runs of some tasks, which had them in any order and in batches of any size."""
    rows = list(rows)
    cuts.shuffle(rows)
    names: list[str] = []
    while rows:
        task, rows = rows[: (at := cuts.randrange(1, 9))], rows[at:]
        batches = [(task[:2], 10), (task[2:], 10)]
        names += given_ids.sort(batches, folder, "0", suffix, cuts.choice([1, 250, 10_000]))
    return [folder / name for name in names]


def merged(paths: list[Path], size: int, done: int = 0, fan_in: int = 256) -> list[Row]:
    """The rows of runs, of which only the last piece says that it is."""
    found = list(given_ids.pieces(paths, size, done, True, fan_in))
    assert all(len(rows) == size for rows, _ in found[:-1])
    assert [is_last for _, is_last in found] == [False] * (len(found) - 1) + [True] * bool(found)
    return [row for rows, _ in found for row in rows]


@given(rows=st.lists(_ROW, max_size=40), cuts=st.randoms(use_true_random=False), size=st.integers(1, 9))
@settings(max_examples=150)
def test_runs_merge_to_what_sorting_gives_however_they_were_cut(
    rows: list[tuple[int, int, list[bytes]]], cuts: random.Random, size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    held = [list(row) for row in rows]
    wanted = [[ms, number + (ms == 0), row[2]] for ms, some in groupby(sorted(held), key=lambda row: row[0])
              for number, row in enumerate(some)]
    for fan_in in (256, 2):
        assert merged(dealt(held, cuts, folder, ".times"), size, 0, fan_in) == wanted
    done = cuts.randrange(len(wanted) + 1)
    assert merged(dealt(held, cuts, folder, ".times"), size, done) == wanted[done:]

    paths = dealt(held, cuts, folder, ".ids")
    if any(row[:2] == following[:2] for row, following in pairwise(sorted(held))):
        with pytest.raises(raxlog.InvalidArgument, match="two rows have the ID"):
            merged(paths, size)
    else:
        assert merged(paths, size, 0, cuts.choice([2, 256])) == sorted(held)


@given(rows=st.lists(_ROW, min_size=1, max_size=40), cuts=st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_a_merge_that_ends_anywhere_and_begins_again_leaves_the_same_entries(
    rows: list[tuple[int, int, list[bytes]]], cuts: random.Random, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    held = [list(row) for row in rows]
    with raxlog.open(folder / "s.rax", durability="relaxed", encoding=None) as store:
        for stream in ("whole", "halves"):
            ends = [None] if stream == "whole" else [cuts.randrange(9), cuts.randrange(9), None]
            for end in ends:
                size = cuts.randrange(1, 9)
                found = given_ids.pieces(dealt(held, cuts, folder, ".times"), size, 0, numbered=True)
                for number, (some, _) in enumerate(found):
                    if number == end:
                        break
                    with store.transaction() as tx:
                        given_ids.append(tx.stream(stream), some, skip=True)
        assert entries(store, "whole") == entries(store, "halves")
        assert len(store.stream("whole")) == len(rows)


def test_a_run_that_has_been_cut_short_is_no_shorter_frame(tmp_path: Path) -> None:
    [name] = given_ids.sort([([[5, 0, [b"n", b"1"]], [6, 0, [b"n", b"2"]]], 10)], tmp_path, "0", ".ids")
    whole = (tmp_path / name).read_bytes()
    for size in range(len(whole)):
        (tmp_path / name).write_bytes(whole[:size])
        with pytest.raises(raxlog.StoreError, match="cut short"):
            list(given_ids.pieces([tmp_path / name], 10, 0, True))


# -- what is refused on the driver ----------------------------------------------------------


@pytest.mark.parametrize(
    ("ddl", "id_from", "words"),
    [
        ("id_ms string, n int", "id_ms", ["'id_ms' is string", "whole numbers"]),
        ("id_ms bigint, id_seq string, n int", "id_ms", ["'id_seq' is string"]),
        ("id_ms timestamp, n int", "id_ms", ["'id_ms' is timestamp"]),
        ("id binary, n int", "id", ["'id' is binary", "a string (ms-seq)"]),
        ("id bigint, n int", "id", ["'id' is bigint"]),
        ("at timestamp_ntz, n int", "at", ["'at' is timestamp_ntz", "a timestamp or a whole number"]),
        ("at date, n int", "at", ["'at' is date"]),
        ("at string, n int", "at", ["'at' is string"]),
        ("at double, n int", "at", ["'at' is double"]),
        ("id_seq bigint, n int", "id_seq", ["half of an ID", "id_ms"]),
        ("at timestamp, n int", "when", ["no such column", "at, n"]),
        ("id_ms bigint, id_seq bigint", "id_ms", ["without columns"]),
        ("id string, id_ms bigint, n int", "id", ["'id_ms' cannot be a field"]),
        ("id_ms bigint, n int, at timestamp", "at", ["'id_ms' cannot be a field"]),
        ("id_ms bigint, fields map<string,string>, n int", "id_ms", ["beside it", "n"]),
    ],
)
def test_columns_that_no_id_comes_from_are_refused(spark_types: Callable[[str], types.StructType], ddl: str,
                                                   id_from: str, words: list[str], tmp_path: Path) -> None:
    source = RaxlogDataSource({"path": str(tmp_path / "s.rax"), "stream": "orders", "idFrom": id_from})
    for made in (source.writer, source.streamWriter):
        with pytest.raises(raxlog.InvalidArgument) as caught:
            made(spark_types(ddl), False)
        assert all(word in str(caught.value) for word in words)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def spark_types() -> Callable[[str], types.StructType]:
    """A schema from its text, without a Spark."""
    named: dict[str, types.DataType] = {
        "int": types.IntegerType(), "bigint": types.LongType(), "string": types.StringType(),
        "binary": types.BinaryType(), "timestamp": types.TimestampType(), "timestamp_ntz": types.TimestampNTZType(),
        "date": types.DateType(), "double": types.DoubleType(),
        "map<string,string>": types.MapType(types.StringType(), types.StringType()),
    }
    return lambda ddl: types.StructType([
        types.StructField(name, named[kind]) for name, kind in (column.split() for column in ddl.split(", "))
    ])


def test_options_that_mean_nothing_together_are_refused(spark_types: Callable[[str], types.StructType],
                                                        tmp_path: Path) -> None:
    given = {"path": str(tmp_path / "s.rax"), "stream": "orders"}
    for more, words in (({"onExisting": "skip"}, "without idFrom"), ({"idFrom": "at", "onExisting": "merge"}, "skip")):
        with pytest.raises(raxlog.InvalidArgument, match=words):
            RaxlogDataSource(given | more).writer(spark_types("at timestamp, n int"), False)
    by_time = RaxlogDataSource(given | {"idFrom": "at", "onExisting": "skip"})
    with pytest.raises(raxlog.InvalidArgument, match="needs whole IDs in writeStream"):
        by_time.streamWriter(spark_types("at timestamp, n int"), False)
    assert list(tmp_path.iterdir()) == []


# -- data frames ----------------------------------------------------------------------------


@pytest.mark.spark
def test_an_event_time_becomes_the_id_and_stays_a_field(spark: Any, store: raxlog.Store) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        rows = "(3, 1700000000000999L), (1, 1700000000000001L), (2, 1700000000000001L), (4, 1600000000000000L), (5, 7L)"
        frame = spark.sql(f"select n, timestamp_micros(us) at from values {rows} t(n, us)").repartition(3)
        save(frame, store.path, idFrom="AT", rowsPerCommit=2)
        found = entries(store)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert [(sid, fields["n"]) for sid, fields in found] == [
        ("0-1", "5"), ("1600000000000-0", "4"), ("1700000000000-0", "1"), ("1700000000000-1", "2"),
        ("1700000000000-2", "3")]
    assert found[1][1]["at"] == "2020-09-13 12:26:40+00:00"
    assert left(store) == []
    assert dict(store.state) == {}

    save(spark.sql("select 1800000000000 ms, 'x' item"), store.path, idFrom="ms")
    assert entries(store)[-1] == ("1800000000000-0", {"ms": "1800000000000", "item": "x"})
    save(spark.sql("select 1L ms where false"), store.path, "none", idFrom="ms")
    assert store.streams() == ["orders"]


@pytest.mark.spark
def test_a_stream_is_copied_with_its_ids_by_columns_by_a_map_as_text_and_in_sql(
    spark: Any, store: raxlog.Store
) -> None:
    dice = random.Random(5)
    ids = sorted({(dice.randrange(1, 400), dice.randrange(1 << 63)) for _ in range(2000)})
    store.stream("orders").extend([{"n": n, "item": "x"} for n in range(len(ids))], [raxlog.StreamID(*i) for i in ids])
    save(reading(spark, store.path).load().repartition(3), store.path, "map", idFrom="id_ms", rowsPerCommit=300)
    schema = "n int, item string, ID_MS bigint, ID_SEQ bigint"
    save(reading(spark, store.path).schema(schema).load().repartition(3), store.path, "columns", idFrom="id_ms")
    text = reading(spark, store.path, includeId="true").schema("n int, item string, id string").load()
    save(text.repartition(3), store.path, "text", idFrom="id")

    spark.sql("CREATE TABLE given (id_ms bigint, id_seq bigint, fields map<string,binary>) USING raxlog")
    try:
        reading(spark, store.path).load().createOrReplaceTempView("taken")
        options = f"path '{store.path}', stream 'sql', idFrom 'id_ms'"
        spark.sql(f"INSERT INTO given WITH ({options}) SELECT * FROM taken")
    finally:
        spark.sql("DROP TABLE given")
        spark.catalog.dropTempView("taken")

    for copy in ("map", "columns", "text", "sql"):
        assert entries(store, copy) == entries(store)


@pytest.mark.spark
def test_rows_that_are_there_are_passed_over_or_refused_before_anything_is_written(
    spark: Any, store: raxlog.Store
) -> None:
    frame = spark.range(1, 301).selectExpr("id id_ms", "id % 3 id_seq", "concat('v', id) item").repartition(3)
    save(frame.where("id_ms <= 200"), store.path, idFrom="id_ms")
    before = entries(store)
    error = refusal(lambda: save(frame, store.path, idFrom="id_ms"))
    assert "a row has the ID 1-1, which is not greater than the last ID of stream 'orders', 200-2" in error
    assert "onExisting='skip'" in error
    skip = {"idFrom": "id_ms", "onExisting": "skip", "rowsPerCommit": "40"}
    error = refusal(lambda: save(frame.selectExpr("id_ms", "id_seq", "if(id_ms = 150, 'other', item) item"), store.path,
                                **skip))
    assert "the ID 150-0, which stream 'orders' has with other fields" in error
    assert "v150" in error
    late = frame.unionByName(spark.sql("select 100L id_ms, 7L id_seq, 'late' item"))
    error = refusal(lambda: save(late, store.path, **skip))
    assert "the ID 100-7, but stream 'orders' has no such entry, and its last ID is 200-2" in error
    assert "filter the row out" in error
    twice = frame.unionByName(spark.sql("select 300L id_ms, 0L id_seq, 'v300' item"))
    assert "two rows have the ID 300-0" in refusal(lambda: save(twice, store.path, **skip))
    assert entries(store) == before
    assert left(store) == []

    save(frame, store.path, **skip)
    whole = entries(store)
    assert [sid for sid, _ in whole] == [f"{n}-{n % 3}" for n in range(1, 301)]
    save(frame, store.path, **skip)
    assert entries(store) == whole
    store.stream("orders").delete("17-2")  # what was deleted is not there, and does not come back
    assert "the ID 17-2, but stream 'orders' has no such entry" in refusal(lambda: save(frame, store.path, **skip))
    save(frame.where("id_ms != 17"), store.path, **skip)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("row", "id_from", "words"),
    [
        ("cast(null as timestamp) at, 1 n", "at", "at is null in some row"),
        ("timestamp'1969-12-31 23:59:59.999' at, 1 n", "at", "at is negative in some row, or lies before 1970"),
        ("-5L id_ms, 1 n", "id_ms", "id_ms is negative in some row"),
        ("5L id_ms, cast(null as bigint) id_seq, 1 n", "id_ms", "id_ms or id_seq is null"),
        ("5L id_ms, -1L id_seq, 1 n", "id_ms", "id_ms or id_seq is negative in some row"),
        ("'5-x' id, 1 n", "id", "column 'id': '5-x' is not a stream ID"),
        ("0L id_ms, 0L id_seq, 1 n", "id_ms", "the ID 0-0"),
        ("5L id_ms, cast(null as int) n", "id_ms", "a row of nulls only"),
        ("5L id_ms, 1 `$entry`", "id_ms", "the name $entry of a first field is reserved"),
    ],
)
def test_a_row_without_a_right_id_is_refused_and_nothing_is_written(spark: Any, store: raxlog.Store, row: str,
                                                                    id_from: str, words: str) -> None:
    assert words in refusal(lambda: save(spark.sql(f"select {row}"), store.path, idFrom=id_from))
    assert store.streams() == []
    assert left(store) == []


@pytest.mark.spark
def test_a_backfill_that_is_killed_and_run_again_gives_the_same_store(spark: Any, store: raxlog.Store,
                                                                      tmp_path: Path) -> None:
    seed = int(os.environ.get("RAXLOG_SEED") or random.randrange(1 << 32))
    print(f"RAXLOG_SEED={seed}")
    dice = random.Random(seed)
    orders = store.stream("orders")
    parts = 0
    for _ in range(KILLS):
        until = len(orders) + dice.randrange(1, ROWS // KILLS // 2)
        killed(BACKFILL, [str(store.path), str(dice.randrange(1, 5))], lambda until=until: len(orders) >= until)
        parts += 0 < len(orders) < ROWS
    assert parts == KILLS
    assert left(store)  # the runs of those that were killed
    frame = spark.range(ROWS).selectExpr(*EVENTS)
    save(frame.repartition(3), store.path, idFrom="at", onExisting="skip")

    save(frame, tmp_path / "undisturbed.rax", idFrom="at")
    with raxlog.open(tmp_path / "undisturbed.rax") as undisturbed:
        assert entries(undisturbed) == entries(store)
        assert len(orders) == ROWS
        assert orders.info().entries_added == ROWS

    for folder in left(store):
        os.utime(folder, (0, 0))
    save(spark.sql("select 1L ms"), store.path, "other", idFrom="ms")
    assert left(store) == []  # of a week ago


# -- streaming queries ----------------------------------------------------------------------


def following(spark: Any, path: Path, checkpoint: Path, columns: str, **options: Any) -> Any:
    """A query that writes "orders" to "copy", in epochs of 500, and ends."""
    frame = spark.readStream.format("raxlog").schema("id_ms bigint, id_seq bigint, n int, at timestamp").options(
        path=str(path), stream="orders", startingOffsets="earliest", maxOffsetsPerTrigger="500", minPartitions="3"
    ).load().selectExpr(*columns.split(", "))
    writer = frame.writeStream.format("raxlog").options(path=str(path), stream="copy", rowsPerCommit="70", **options)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


@pytest.mark.spark
def test_a_streaming_query_writes_ids_each_once_and_goes_on_within_an_epoch(
    spark: Any, store: raxlog.Store, tmp_path: Path
) -> None:
    orders = store.stream("orders")
    orders.extend([{"n": n} for n in range(1200)], [f"{1 + n // 7}-{n % 7}" for n in range(1200)])
    following(spark, store.path, tmp_path / "a", "id_ms, id_seq, n", idFrom="id_ms")
    assert entries(store, "copy") == entries(store)

    # An epoch that was left half appended, as a driver leaves it that is killed: the rest comes from its own files.
    [query] = [key for key in store.state if key.startswith("raxlog.spark.stream/")]
    folder = store.path / "spark" / query.rpartition("/")[2]
    rows: list[Row] = [[1000 + n, 0, [b"n", b"%d" % n]] for n in range(200)]
    names = [*given_ids.sort([(rows[::2], 10)], folder, "2", ".ids"),
             *given_ids.sort([(rows[1::2], 10)], folder, "2", ".ids")]
    store.stream("copy").extend([{"n": n} for n in range(90)], [f"{1000 + n}-0" for n in range(90)])
    store.state[query] = msgpack.packb([2, names, 90])
    orders.extend([{"n": n} for n in range(10)], [f"{2000 + n}-0" for n in range(10)])
    following(spark, store.path, tmp_path / "a", "id_ms, id_seq, n", idFrom="id_ms")
    assert entries(store, "copy")[1200:] == (
        [(f"{1000 + n}-0", {"n": str(n)}) for n in range(200)] + [(f"{2000 + n}-0", {"n": str(n)}) for n in range(10)])
    assert list(folder.iterdir()) == []

    # With a new checkpoint all comes again.
    error = refusal(lambda: following(spark, store.path, tmp_path / "b", "id_ms, id_seq, n", idFrom="id_ms"))
    assert "the ID 1-0, which is not greater than the last ID of stream 'copy', 2009-0" in error
    before = entries(store, "copy")
    following(spark, store.path, tmp_path / "c", "id_ms, id_seq, n", idFrom="id_ms", onExisting="skip")
    assert entries(store, "copy") == before


@pytest.mark.spark
def test_event_times_of_a_query_go_on_within_a_millisecond_from_epoch_to_epoch(
    spark: Any, store: raxlog.Store, tmp_path: Path
) -> None:
    store.stream("orders").extend([{"n": n, "at": f"2026-01-01 00:00:00.{n // 300:03}"} for n in range(1200)])
    following(spark, store.path, tmp_path / "a", "n, at", idFrom="at")
    found = entries(store, "copy")
    start = 1767225600000
    assert [sid for sid, _ in found] == [f"{start + n // 300}-{n % 300}" for n in range(1200)]
    assert sorted(int(fields["n"]) for _, fields in found) == list(range(1200))

    store.stream("orders").append({"n": 5, "at": "2025-12-31 00:00:00"})
    error = refusal(lambda: following(spark, store.path, tmp_path / "a", "n, at", idFrom="at"))
    assert "the ID 1767139200000-*, which is not greater than the last ID of stream 'copy'" in error
    assert "Filter out what is late" in error
    assert len(store.stream("copy")) == 1200
