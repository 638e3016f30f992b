"""Paths, URLs, zones and columns: the same in reading and writing, and a refusal where they cannot be."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import raxlog
from pyspark.sql.types import (
    DateType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from raxlog.stream.columns import arrow
from raxlog.stream.columns.arrow import projection, time_zone
from raxlog.tools.spark.options import parse
from raxlog.tools.spark.schema import arrow_schema
from raxlog.tools.spark.source import RaxlogDataSource
from spark_scans import reading, refusal

pytest_plugins = ["spark_session"]

NUMBERS = StructType([StructField("n", LongType())])


def source(path: object, **options: str) -> RaxlogDataSource:
    """The source as Spark makes it for a load or a save."""
    return RaxlogDataSource({"path": str(path), "stream": "orders"} | options)


def rows(path: object, **options: str) -> list[int]:
    """What a batch reads."""
    reader: Any = source(path, **options).reader(NUMBERS)
    return [n for part in reader.partitions() for batch in reader.read(part) for n in batch.column(0).to_pylist()]


def append(path: object, *numbers: int) -> None:
    """Append as a save of one task does."""
    writer: Any = source(path).writer(NUMBERS, False)
    writer.commit([writer.write(iter([pa.record_batch([pa.array(numbers, pa.int64())], names=["n"])]))])


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "FILE://localhost{}"])
def test_a_path_and_the_urls_of_a_file_are_the_same_to_readers_and_writers(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    path = tmp_path / "my 100% store.rax"
    url = form.format(path if form == "{}" else str(path).replace("%", "%25").replace(" ", "%20"))
    append(url, 1, 2)
    assert rows(path) == rows(url) == [1, 2]
    reader: Any = source(url, startingOffsets="earliest").streamReader(NUMBERS)
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.reportLatestOffset())
    assert [n for part in parts for batch in reader.read(part) for n in batch.column(0).to_pylist()] == [1, 2]
    source(url).streamWriter(NUMBERS, False)
    groups: Any = source(url, dataset="groups").reader(source(url, dataset="groups").schema())
    assert len(groups.partitions()) == 1
    with raxlog.open(path) as store:
        store.snapshot(tmp_path / "my 100% snapshots" / "a", shards=2)
    assert rows(url.replace("store.rax", "snapshots")) == [1, 2]
    assert list((tmp_path / "here").iterdir()) == []


@pytest.mark.parametrize("path", ["s3://bucket/events.rax", "hdfs://host/e.rax", "S3A://bucket/e.rax", "memory://e.rax",
                                  "s3:/bucket/e.rax", "dbfs:/e.rax", "file://host/e.rax", "file:e.rax"])
def test_a_place_that_is_not_of_this_machine_is_refused_by_all_writers_and_nothing_is_written(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for made in (source(path).writer, source(path).streamWriter):
        with pytest.raises(raxlog.InvalidArgument, match=r"is a URL, and .*name its path|write (file:///|\w+://)"):
            made(NUMBERS, False)
    for option in ("snapshotDir", "cacheDir"):
        with pytest.raises(raxlog.InvalidArgument, match=option):
            parse({"path": "a", "stream": "orders", option: path})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
def test_spark_itself_writes_to_no_url_and_reads_and_writes_those_of_files(spark: Any, tmp_path: Path) -> None:
    frame = spark.range(3).selectExpr("id n")

    def save(url: str) -> None:
        frame.write.format("raxlog").options(path=url, stream="orders").mode("append").save()

    def follow(folder: str, sink: Callable[[Any], Any]) -> None:
        name = f"file://{tmp_path}/my%20store.rax"
        made = spark.readStream.format("raxlog").options(path=name, stream="orders", startingOffsets="earliest")
        writer = sink(made.schema("n bigint").load().writeStream).option("checkpointLocation", str(tmp_path / folder))
        writer.trigger(availableNow=True).start().awaitTermination()

    save(f"file:{tmp_path}/my%20store.rax")
    assert reading(spark, f"file://{tmp_path}/my%20store.rax").load().count() == 3
    copy = f"file:{tmp_path}/a%20copy.rax"
    follow("cp1", lambda to: to.format("raxlog").options(path=copy, stream="orders"))
    follow("cp2", lambda to: to.foreachBatch(
        lambda some, _: some.write.format("raxlog").options(path=copy, stream="two").mode("append").save()))
    with raxlog.open(tmp_path / "a copy.rax") as store:
        assert [store.stream(name).info().length for name in ("orders", "two")] == [3, 3]
    far = "s3://bucket/events.rax"
    assert "name its path" in refusal(lambda: save(far))
    assert "name its path" in refusal(
        lambda: follow("cp3", lambda to: to.format("raxlog").options(path=far, stream="orders")))
    assert "name its path" in refusal(lambda: follow("cp4", lambda to: to.foreachBatch(
        lambda some, _: some.write.format("raxlog").options(path=far, stream="two").mode("append").save())))


@pytest.mark.parametrize("column", ["id_ms", "id_seq"])
def test_a_frame_with_a_column_that_no_scan_could_read_is_refused(column: str, tmp_path: Path) -> None:
    for named in (StructType([StructField(column, LongType()), *NUMBERS]),
                  StructType([StructField(column, StringType())])):
        for made in (source(tmp_path / "s.rax").writer, source(tmp_path / "s.rax").streamWriter):
            with pytest.raises(raxlog.InvalidArgument, match=rf"'{column}' cannot be a field.*df.drop"):
                made(named, False)
    twice = StructType([*NUMBERS, *NUMBERS])
    with pytest.raises(raxlog.InvalidArgument, match="two columns are named 'n'"):
        source(tmp_path / "s.rax").writer(twice, False)
    assert list(tmp_path.iterdir()) == []
    beside = StructType([StructField(column, LongType()), StructField("fields", MapType(StringType(), StringType()))])
    source(tmp_path / "s.rax").writer(beside, False)  # nulls, as INSERT INTO a view of a load without columns has them


# What Java's ZoneId and Spark's own forms mean, as offsets in minutes in January 2026.
ZONES = {
    "+02:00": 120, "+2": 120, "-02": -120, "+0230": 150, "+2:30": 150, "-02:3": -123, "+18:00": 1080, "GMT+2": 120,
    "UTC+02:00": 120, "UT-3": -180, "GMT+0530": 330, "UTC-11": -660, "Z": 0, "UT": 0, "GMT": 0, "UTC": 0, "GMT0": 0,
    "EST": -300, "MST": -420, "HST": -600, "PST": -480, "CST": -360, "IST": 330, "JST": 540, "ACT": 570, "BST": 360,
    "Europe/Berlin": 60, "Etc/GMT+2": -120, "CET": 60, "America/St_Johns": -210,
}


@pytest.mark.parametrize("zone", ZONES)
def test_a_zone_that_spark_accepts_means_to_a_scan_what_it_means_to_java(zone: str) -> None:
    known = parse({"path": "a", "stream": "b", "timeZone": zone}).time_zone
    assert known is not None
    offset = datetime(2026, 1, 15, 12, tzinfo=time_zone(known)).utcoffset()
    assert offset is not None
    assert offset.total_seconds() == ZONES[zone] * 60


@pytest.mark.parametrize("zone", ["+19", "+18:01", "+200", "UTC0", "2", "+", "+02:60", "Mars/Base", "../etc", ""])
def test_what_is_no_zone_is_refused(zone: str) -> None:
    with pytest.raises(raxlog.InvalidArgument, match="there is no time zone"):
        time_zone(zone)


@pytest.mark.spark
def test_a_session_in_any_zone_reads_strings_and_times(spark: Any, store: raxlog.Store) -> None:
    store.stream("orders").append({"t": "2026-01-15 12:00:00", "text": "x"})
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        for zone in ZONES:
            spark.conf.set("spark.sql.session.timeZone", zone)
            load = reading(spark, store.path).schema("text string, t timestamp").load()
            native = spark.sql("select unix_seconds(timestamp'2026-01-15 12:00:00')").first()[0]
            assert load.selectExpr("text", "unix_seconds(t)").collect() == [("x", native)], zone
        spark.conf.set("spark.sql.session.timeZone", "SystemV/PST8" if _accepts(spark, "SystemV/PST8") else "UTC")
        assert reading(spark, store.path).schema("text string").load().collect() == [("x",)]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def _accepts(spark: Any, zone: str) -> bool:
    try:
        spark.conf.set("spark.sql.session.timeZone", zone)
    except Exception:
        return False
    return True


def test_a_zone_that_python_lacks_fails_no_scan_without_times() -> None:
    for kind in ("bigint", "string", "timestamp_ntz"):
        assert list(arrow.batches([], replace(projection({"n": kind}), zone="SystemV/PST8"))) == []
    with pytest.raises(raxlog.InvalidArgument, match="there is no time zone"):
        arrow.batches([], replace(projection({"n": "timestamp"}), zone="SystemV/PST8"))


@pytest.mark.parametrize(("kind", "times"), [
    (TimestampType(), [-62_135_596_800_000_000, 253_402_300_799_999_999]),
    (TimestampNTZType(), [-62_135_596_800_000_000, 253_402_300_799_999_999]), (DateType(), [-719_162, 2_932_896]),
])
def test_a_time_that_no_scan_could_read_is_refused_and_the_first_and_the_last_are_not(
    kind: Any, times: list[int], tmp_path: Path
) -> None:
    schema = StructType([StructField("t", kind)])
    back = StructType([StructField("t", TimestampNTZType())])

    def write(*values: int | None) -> None:
        writer: Any = source(tmp_path / "s.rax").writer(schema, False)
        column = pa.array(values, arrow_schema(schema).field("t").type)
        writer.commit([writer.write(iter([pa.record_batch([column], names=["t"])]))])

    write(*times)
    reader: Any = source(tmp_path / "s.rax").reader(back)
    got = [time for part in reader.partitions() for batch in reader.read(part) for time in batch.column(0).to_pylist()]
    assert [time.year for time in got] == [1, 9999]
    for wrong in (times[0] - 1, times[1] + 1):
        with pytest.raises(raxlog.InvalidFields, match=r"a time of the year (0|10000)"):
            write(wrong, times[0])
    assert rows(tmp_path / "s.rax") == [None, None]


def test_snapshots_of_live_stores_are_in_a_folder_of_their_user_alone(
    store: raxlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.stream("orders").append({"n": 1})
    store.close()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    assert rows(store.path) == [1]
    (home,) = (tmp_path / "tmp").iterdir()
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (home, next(home.iterdir()))} == {0o700}
    if os.geteuid() == 0:
        os.chown(home, 12345, -1)
        with pytest.raises(raxlog.StoreError, match=r"belongs to another user.*snapshotDir"):
            rows(store.path)


def test_a_stream_or_a_column_that_is_misspelt_is_named_with_what_is_there(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax") as store:
        store.stream("orders").append({"n": 1})
    with pytest.raises(raxlog.NoStream, match=r"no stream 'ordres' in .*; did you mean 'orders'"):
        rows(tmp_path / "s.rax", stream="ordres")
    with raxlog.open(tmp_path / "s.rax") as store:
        store.stream("orders").configure(schema={"item": "string", "qty": "bigint"})

    def columns(*names: str) -> Any:
        schema = StructType([StructField(name, StringType()) for name in names])
        return source(tmp_path / "s.rax").reader(schema), source(tmp_path / "s.rax").streamReader(schema)

    for reader in columns("itme"):
        with pytest.raises(raxlog.InvalidArgument, match=r"no field 'itme' in .*did you mean 'item'.*configure"):
            reader.partitions(*([{}] * 2 if hasattr(reader, "initialOffset") else []))
    for reader in columns("item", "items", "note"):  # beside the field itself it is none
        reader.partitions(*([{}] * 2 if hasattr(reader, "initialOffset") else []))
    with pytest.raises(raxlog.InvalidArgument, match=r"'strem'.*did you mean 'stream'"):
        parse({"path": "a", "strem": "orders"})
