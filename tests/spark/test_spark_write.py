"""Writing a DataFrame: each row once, whatever is retried; and what a live store is to a scan."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import raxlog
from pyspark.sql.types import LongType, StructField, StructType
from raxlog.tools.spark.options import WRITE, parse
from raxlog.tools.spark.writer import AppendingWriter
from spark_scans import reading, refusal

pytestmark = pytest.mark.spark

pytest_plugins = ["spark_session"]

NUMBERS = StructType([StructField("n", LongType())])


def save(frame: Any, path: Path, stream: str = "orders", **options: Any) -> None:
    """Append a frame to a stream."""
    given = {name: str(value) for name, value in options.items()}
    frame.write.format("raxlog").options(path=str(path), stream=stream, **given).mode("append").save()


def batch(first: int, behind: int) -> pa.RecordBatch:
    """Rows first … behind - 1 of a task's partition."""
    return pa.record_batch([pa.array(range(first, behind), pa.int64())], names=["n"])


def appending(path: Path, rows: int = 100) -> AppendingWriter:
    """A writer as Spark makes one on the driver."""
    options = parse({"path": str(path), "stream": "orders", "rowsPerCommit": str(rows)}, WRITE)
    return AppendingWriter(options, NUMBERS, overwrite=False)


def numbers(store: raxlog.Store) -> list[int]:
    """What has been appended."""
    return [int(entry.fields["n"]) for entry in store.stream("orders").range()]


def test_columns_become_fields_and_come_back_as_they_were(spark: Any, store: raxlog.Store) -> None:
    frame = spark.range(500).selectExpr(
        "id n", "cast(id * 1.25 as decimal(10,2)) price", "id % 2 = 0 even", "timestamp_millis(id * 1000) at",
        "if(id % 3 = 0, null, concat('v', id)) maybe", "id / 3 third", "cast(concat('b', id) as binary) raw",
    )
    save(frame, store.path, rowsPerCommit=70)

    schema = "n bigint, price decimal(10,2), even boolean, at timestamp, maybe string, third double, raw binary"
    back = reading(spark, store.path).schema(schema).load()
    assert back.orderBy("n").collect() == frame.orderBy("n").collect()
    assert all((int(entry.fields["n"]) % 3 == 0) == ("maybe" not in entry.fields)  # null: not there
               for entry in store.stream("orders").range())
    assert dict(store.state) == {}  # nothing of the write is left


def test_times_are_written_in_utc_and_floats_as_short_as_they_read_back(spark: Any, store: raxlog.Store) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        frame = spark.sql("select timestamp'1883-01-01 00:00:00' old, timestamp'2020-07-01 12:00:00' new, "
                          "timestamp_ntz'2020-03-08 02:30:00' plain, cast(0.1 as float) tenth")
        save(frame, store.path)
        back = reading(spark, store.path).schema("old timestamp, new timestamp, plain timestamp_ntz").load()
        assert back.collect() == frame.select("old", "new", "plain").collect()

        # A time without a zone is one of the session's, as Spark's own casts have it: in a gap, of two, a date.
        texts = ["2020-03-08 02:30:00", "2020-11-01 01:30:00", "2020-07-01", "1883-11-18T12:01:00",
                 "2020-07-01 12:00:00Z"]
        store.stream("local").extend([{"at": text} for text in texts])
        read = reading(spark, store.path, "local").schema("at timestamp").load()
        cast = ", ".join(f"('{text}')" for text in texts)
        assert read.collect() == spark.sql(f"select cast(at as timestamp) at from values {cast} t(at)").collect()
        there = reading(spark, store.path, "local", timeZone="+02:00").schema("at timestamp").load()
        assert there.selectExpr("unix_seconds(at)").collect()[2][0] == 1593554400  # 2020-06-30 22:00 UTC
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    save(spark.sql("select map('tenth', cast(0.1 as float)) m"), store.path)
    first, second = store.stream("orders").range()
    old, new = "1883-01-01 04:56:02+00:00", "2020-07-01 16:00:00+00:00"
    assert first.fields == {"old": old, "new": new, "plain": "2020-03-08 02:30:00", "tenth": "0.1"}
    assert second.fields == {"tenth": "0.1"}


def test_a_map_becomes_an_entry_and_one_partition_keeps_its_order(spark: Any, store: raxlog.Store) -> None:
    save(spark.range(300).selectExpr("map('n', cast(id as string), 'x', null) as fields").coalesce(1), store.path)

    assert [entry.fields for entry in store.stream("orders").range()] == [{"n": str(n)} for n in range(300)]


def test_a_task_that_fails_half_way_is_tried_again_and_adds_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "store.rax"
    writer = appending(path)

    def failing() -> Any:
        yield batch(0, 250)
        raise RuntimeError("the executor is lost")

    with pytest.raises(RuntimeError, match="lost"):
        writer.write(failing())
    with raxlog.open(path, readonly=True) as store:
        assert numbers(store) == list(range(200))
    for behind in (250, 290):  # Spark ends what comes from a task that has failed as if it were all
        writer.write(iter([batch(0, behind)]))
    writer.write(iter([batch(0, 90), batch(90, 330)]))  # the same rows, cut in another way
    writer.write(iter([batch(0, 330)]))  # a second attempt that ran beside the first
    writer.commit([])

    with raxlog.open(path, readonly=True) as store:
        assert numbers(store) == list(range(330))
        assert dict(store.state) == {}


def test_a_retry_that_is_given_other_rows_is_refused(tmp_path: Path) -> None:
    writer = appending(tmp_path / "store.rax")
    writer.write(iter([batch(0, 100)]))

    with pytest.raises(raxlog.StoreError, match="in another order"):
        writer.write(iter([batch(100, 300)]))
    with raxlog.open(tmp_path / "store.rax", readonly=True) as store:
        assert numbers(store) == list(range(100))


@pytest.mark.parametrize("added", [0, 1000], ids=["the same rows", "other rows"])
def test_spark_tries_a_task_again_that_has_committed_rows(spark: Any, store: raxlog.Store, added: int) -> None:
    from pyspark import TaskContext  # noqa: PLC0415
    from pyspark.sql.functions import udf  # noqa: PLC0415

    path = str(store.path)

    @udf("string", useArrow=False)
    def row(n):  # type: ignore[no-untyped-def]
        attempt = TaskContext.get().attemptNumber()
        while attempt == 0 and n == 250:  # fails once rows before it are on disk
            with raxlog.open(path, readonly=True) as there:
                if there.stream("orders").count("-", "+"):
                    raise RuntimeError("the executor is lost")
            time.sleep(0.05)
        return f"{n + added * attempt:02000}"  # Spark passes rows on 64 KB at a time

    frame = spark.range(300).coalesce(1).select(row("id").alias("n"))
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    try:
        if added:
            message = refusal(lambda: save(frame, store.path, rowsPerCommit=100))
            done = len(numbers(store))
            assert 100 <= done < 300
            assert f"a first attempt of this task has committed {done} rows, and this one got others" in message
        else:
            done = 300
            save(frame, store.path, rowsPerCommit=100)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert numbers(store) == list(range(done))
    assert dict(store.state) == {}


def test_a_retry_that_has_fewer_rows_is_refused(tmp_path: Path) -> None:
    writer = appending(tmp_path / "store.rax")
    writer.write(iter([batch(0, 250)]))

    with pytest.raises(raxlog.StoreError, match="has committed 250 rows"):
        writer.write(iter([batch(0, 150)]))


def test_sql_reads_and_inserts_through_a_view_or_names_the_stream_at_each_statement(
    spark: Any, store: raxlog.Store
) -> None:
    options = f"path '{store.path}', stream 'orders'"
    spark.sql(f"CREATE TEMPORARY VIEW events (n bigint, item string) USING raxlog OPTIONS ({options})")
    spark.sql(f"CREATE TEMPORARY VIEW whole USING raxlog OPTIONS (path '{store.path}', stream 'whole')")
    spark.sql("CREATE TABLE kept (n bigint, item string) USING raxlog")
    try:
        spark.sql("INSERT INTO events VALUES (1, 'a'), (2, null)")
        spark.sql("INSERT INTO events (item, n) SELECT concat('v', id), id FROM range(3, 4)")
        spark.sql("INSERT INTO events (n) VALUES (4)")
        spark.sql(f"INSERT INTO kept WITH ({options}) VALUES (5, 'e')")
        rows = spark.sql("SELECT * FROM events ORDER BY n").collect()
        assert rows == [(1, "a"), (2, None), (3, "v3"), (4, None), (5, "e")]
        assert spark.sql(f"SELECT * FROM kept WITH ({options}) ORDER BY n").collect() == rows

        # Without a column list: the ID, which the stream makes, and a map.
        spark.sql("INSERT INTO whole (fields) VALUES (map('n', cast('7' as binary)))")
        assert [row.fields for row in spark.sql("SELECT * FROM whole").collect()] == [{"n": bytearray(b"7")}]
        assert "IDs are made by the stream" in refusal(lambda: spark.sql("INSERT INTO whole SELECT * FROM whole"))

        for statement in ("SELECT * FROM kept", "INSERT INTO kept VALUES (1, 'a')",
                          f"CREATE TABLE other USING raxlog OPTIONS ({options}) AS SELECT 1L n"):
            assert "CREATE TEMPORARY VIEW" in refusal(lambda statement=statement: spark.sql(statement).collect())
        created = f"CREATE TABLE other USING raxlog OPTIONS ({options})"
        assert "CREATE TEMPORARY VIEW" in refusal(lambda: spark.sql(created))
        assert "cannot be overwritten" in refusal(lambda: spark.sql("INSERT OVERWRITE events VALUES (1, 'a')"))
        assert store.stream("orders").info().length == 5
    finally:
        spark.sql("DROP TABLE kept")
        for view in ("events", "whole"):
            spark.catalog.dropTempView(view)


def test_a_task_that_comes_too_late_or_to_another_store_appends_nothing(tmp_path: Path) -> None:
    writer = appending(tmp_path / "store.rax")
    writer.write(iter([batch(0, 10)]))
    writer.commit([])
    with pytest.raises(raxlog.StoreError, match="has ended"):
        writer.write(iter([batch(0, 10)]))

    lost = appending(tmp_path / "other.rax")
    (tmp_path / "other.rax").rename(tmp_path / "elsewhere.rax")
    with pytest.raises(raxlog.NotAStore):
        lost.write(iter([batch(0, 10)]))
    assert not (tmp_path / "other.rax").exists()
    with raxlog.open(tmp_path / "store.rax", readonly=True) as store:
        assert numbers(store) == list(range(10))


def test_what_cannot_be_appended_is_told_on_the_driver(spark: Any, store: raxlog.Store) -> None:
    frame = spark.range(3)
    overwriting = frame.write.format("raxlog").options(path=str(store.path), stream="orders").mode("overwrite")
    assert "cannot be overwritten" in refusal(overwriting.save)
    for mode in ("error", "errorifexists", "ignore", None):  # Spark asks no Python source for these; None is "error"
        given = overwriting.mode(mode) if mode else frame.write.format("raxlog").options(path="x", stream="orders")
        assert "UNSUPPORTED_DATA_SOURCE_SAVE_MODE" in refusal(given.save)
    told = refusal(lambda: save(frame.selectExpr("array(cast(cast(id as string) as binary)) x"), store.path))
    assert "array<binary>" in told
    assert "beside it" in refusal(lambda: save(frame.selectExpr("id", "map('a', 'b') m"), store.path))
    assert "a row of nulls only" in refusal(lambda: save(frame.selectExpr("cast(null as string) x"), store.path))
    assert store.streams() == []


def test_a_scan_sees_one_state_while_a_writer_is_at_full_speed(spark: Any, store: raxlog.Store) -> None:
    orders = store.stream("orders")
    orders.extend([{"n": n} for n in range(20_000)])
    group = orders.create_group("g", "0")
    ended = threading.Event()

    def write() -> None:
        n = 20_000
        while not ended.is_set():
            # One transaction: what is appended at the end goes at the front. Any one state has 20,000.
            with store.transaction() as tx:
                tx.stream("orders").extend([{"n": at} for at in range(n, n + 50)])
                tx.stream("orders").trim(maxlen=20_000)
            n += 50
            group.ack(*(entry.id for entry in group.read("w", count=50)))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = set()
        for _ in range(3):
            row = reading(spark, store.path, minPartitions=4).schema("n bigint").load().selectExpr(
                "count(*) many", "count(distinct n) distinct", "min(n) first", "max(n) last"
            ).collect()[0]
            assert (row.many, row.distinct, row.last - row.first + 1) == (20_000, 20_000, 20_000)
            seen.add(row.first)
    finally:
        ended.set()
        writer.join()
    assert len(seen) == 3  # and each scan that was planned anew saw a newer one


def test_a_snapshot_of_a_live_store_is_used_again_and_goes_when_it_is_old(
    spark: Any, store: raxlog.Store, tmp_path: Path
) -> None:
    store.stream("orders").extend([{"n": n} for n in range(100)])
    folder = tmp_path / "snapshots"

    def count(retention: str = "1h") -> tuple[int, list[str]]:
        many = reading(spark, store.path, snapshotDir=folder, snapshotRetention=retention).load().count()
        return many, sorted(path.name for path in folder.glob("*/*") if path.is_dir())

    _, first = count()
    assert count() == (100, first)
    assert len(first) == 1
    store.stream("orders").append({"n": 100})
    many, both = count()
    assert (many, len(both)) == (101, 2)
    many, left = count("0s")  # what nobody has used since is old at once
    assert (many, len(left)) == (101, 1)
