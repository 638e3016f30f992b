"""What is wrong is said on the driver, in our own words, before a task starts; damage in the task."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import lmdb
import pytest
import raxlog
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DayTimeIntervalType,
    LongType,
    StringType,
    StructField,
    StructType,
)
from raxlog.storage.format import keys, records
from raxlog.tools.spark import schema as schemas
from raxlog.tools.spark import tables
from raxlog.tools.spark.location import find
from raxlog.tools.spark.options import FOLLOW, WRITE, parse
from raxlog.tools.spark.requirements import pyspark_version
from raxlog.tools.spark.source import RaxlogDataSource
from spark_scans import reading, refusal
from xxhash import xxh3_64_hexdigest

pytest_plugins = ["spark_session"]

GIVEN = {"path": "backup.rax", "stream": "orders"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stram": "x"}, ["'stram'", "stream", "startingOffsets", "minPartitions"]),
        ({"path": ""}, ["path is missing", "load("]),
        ({"stream": None}, ["stream is missing", "streamPattern"]),
        ({"streamPattern": "*"}, ["exclude each other"]),
        ({"startingOffsets": "soon"}, ["startingOffsets", "'soon'", "earliest"]),
        ({"startingOffsets": "latest"}, ["leaves nothing", "readStream"]),
        ({"endingOffsets": "earliest"}, ["leaves nothing"]),
        ({"startingOffsets": "9-0", "endingOffsets": "5-0"}, ["ends (5-0) before it starts (9-0)"]),
        ({"startingTimestamp": "900", "endingTimestamp": "5"}, ["before it starts"]),
        ({"startingTimestamp": "-1"}, ["startingTimestamp", "milliseconds"]),
        ({"endingTimestamp": "0"}, ["leaves nothing"]),
        ({"minPartitions": "0"}, ["minPartitions", "whole number >= 1"]),
        ({"maxRecordsPerPartition": "many"}, ["maxRecordsPerPartition", "whole number"]),
        ({"mode": "DROPMALFORMED"}, ["PERMISSIVE, FAILFAST"]),
        ({"failOnDataLoss": "maybe"}, ["true or false"]),
        ({"dataset": "consumers"}, ["entries, groups, pending"]),
        ({"dataset": "groups", "minPartitions": "4"}, ["minPartitions", "means nothing", "streamPattern"]),
        ({"dataset": "pending", "startingOffsets": "5"}, ["startingOffsets", "means nothing"]),
        ({"maxOffsetsPerTrigger": "5"}, ["belongs to readStream"]),
        ({"rowsPerCommit": "5"}, ["belongs to writing"]),
        ({"snapshotMaxAge": "long"}, ["15m"]),
        ({"cacheSize": "10 parsecs"}, ["with k, m or g"]),
        ({"timeZone": "Europe/Atlantis"}, ["timeZone", "Europe/Berlin"]),
    ],
)
def test_a_wrong_option_is_named_with_what_would_be_right(options: dict[str, Any], words: list[str]) -> None:
    given = {name: value for name, value in (GIVEN | options).items() if value is not None}
    with pytest.raises(raxlog.InvalidArgument) as caught:
        parse(given)
    assert [word for word in words if word not in str(caught.value)] == []


def test_options_of_a_query_that_follows_are_checked_together() -> None:
    with pytest.raises(raxlog.InvalidArgument, match="greater than maxOffsetsPerTrigger"):
        parse(GIVEN | {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, FOLLOW)
    with pytest.raises(raxlog.InvalidArgument, match="belongs to reading"):
        parse(GIVEN | {"endingOffsets": "5"}, FOLLOW)
    assert parse({name.upper(): value for name, value in GIVEN.items()}, WRITE).stream == "orders"
    assert parse(GIVEN | {"maxTriggerDelay": "500ms"}, FOLLOW).max_trigger_delay == 0.5
    assert parse(GIVEN | {"cacheSize": "2g"}).cache_bytes == 2 << 30


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([], ["at least one column"]),
        ([("x", ArrayType(BinaryType()))], ["'x'", "list<", "string, binary"]),
        ([("x", DayTimeIntervalType())], ["'x'", "duration", "double"]),
        ([("a", LongType()), ("a", StringType())], ["two columns", "'a'"]),
        ([("id_ms", StringType())], ["id_ms", "bigint"]),
    ],
)
def test_a_schema_that_cannot_be_read_names_its_column(fields: list[tuple[str, Any]], words: list[str]) -> None:
    schema = StructType([StructField(name, kind) for name, kind in fields])
    with pytest.raises(raxlog.InvalidArgument) as caught:
        schemas.columns(schema, parse(GIVEN))
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_column_that_may_not_be_null_and_two_columns_of_one_field_are_refused() -> None:
    with pytest.raises(raxlog.InvalidArgument, match="'n' is NOT NULL"):
        schemas.columns(StructType([StructField("n", LongType(), False)]), parse(GIVEN))
    twice = StructType([StructField("n", LongType()), StructField("m", LongType(), metadata={"field": "n"})])
    with pytest.raises(raxlog.InvalidArgument, match="two columns read one field"):
        schemas.columns(twice, parse(GIVEN))
    with pytest.raises(raxlog.InvalidArgument, match="groups has no column"):
        tables.TableReader(parse(GIVEN | {"dataset": "groups"}), StructType([StructField("n", LongType())]))


def test_a_path_without_a_snapshot_says_what_is_there(store: raxlog.Store, tmp_path: Path) -> None:
    with pytest.raises(raxlog.NotAStore, match="there is no store"):
        find(str(tmp_path / "missing"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(raxlog.NotAStore, match="no raxlog store"):
        find(str(tmp_path / "empty"))
    (tmp_path / "file").write_text("text")
    with pytest.raises(raxlog.NotAStore, match="is a file"):
        find(str(tmp_path / "file"))

    store.stream("orders").append({"n": 1})
    store.snapshot(tmp_path / "snapshots" / "a")
    with raxlog.open(tmp_path / "other.rax") as other:
        other.snapshot(tmp_path / "snapshots" / "b")
    with pytest.raises(raxlog.InvalidArgument, match="different stores"):
        find(str(tmp_path / "snapshots"))


def test_a_snapshot_of_a_newer_format_is_refused(store: raxlog.Store, tmp_path: Path) -> None:
    store.snapshot(tmp_path / "snapshot")
    place = tmp_path / "snapshot" / "manifest.json"
    body, _, _ = place.read_text().replace('"format": 1', '"format": 2', 1).rpartition(",\n")
    place.write_text(f'{body},\n "checksum": "{xxh3_64_hexdigest(body.encode())}"\n}}\n')

    with pytest.raises(raxlog.UnsupportedFormat, match="newer raxlog"):
        find(str(tmp_path / "snapshot"))


@pytest.mark.spark
def test_spark_users_see_our_messages_before_a_task_starts(spark: Any, store: raxlog.Store, tmp_path: Path) -> None:
    store.stream("orders").append({"n": 1})
    tracker = spark.sparkContext.statusTracker()

    assert "there is no option 'bogus'" in refusal(reading(spark, store.path, bogus=1).load)
    assert "there is no store" in refusal(reading(spark, tmp_path / "nothing").load)
    message = refusal(reading(spark, store.path, "mail").load().count)
    assert "there is no stream 'mail'" in message
    assert "It has: 'orders'" in message
    assert "'x'" in refusal(reading(spark, store.path).schema("x array<binary>").load().count)
    store.stream("orders").append({"n": 2}, maxlen=1)
    assert "trimmed away" in refusal(reading(spark, store.path, startingOffsets="5").load().count)
    assert reading(spark, store.path, startingOffsets="5", failOnDataLoss="false").load().count() == 1
    assert tracker.getActiveStageIds() == tracker.getActiveJobsIds() == []


@pytest.mark.skipif(pyspark_version() >= (4, 1), reason="a newer pyspark lacks nothing")
def test_what_an_older_pyspark_lacks_is_refused_by_its_version() -> None:
    schema = StructType([StructField("n", LongType())])
    with pytest.raises(raxlog.NotInstalled, match=r"pushdown needs pyspark 4.1 or newer, and this is 4.0: pip"):
        RaxlogDataSource(GIVEN | {"pushdown": "true"}).reader(schema)
    with pytest.raises(raxlog.NotInstalled, match=r"maxOffsetsPerTrigger needs pyspark 4.2 or newer"):
        RaxlogDataSource(GIVEN | {"maxOffsetsPerTrigger": "5"}).streamReader(schema)


def test_streams_that_are_not_there_cannot_be_followed(tmp_path: Path) -> None:
    raxlog.open(tmp_path / "store.rax").close()
    source = RaxlogDataSource({"path": str(tmp_path / "store.rax"), "stream": "mail"})
    reader = source.streamReader(StructType([StructField("n", LongType())]))
    with pytest.raises(raxlog.NoStream, match="'mail'"):
        reader.initialOffset()


@pytest.mark.spark
def test_a_url_without_credentials_is_refused_before_a_task_starts(spark: Any) -> None:
    message = refusal(reading(spark, "s3://bucket/shards").schema("n int").load().collect)
    assert "s3://bucket/shards" in message
    assert "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in message


@pytest.mark.spark
def test_the_mode_decides_what_a_damaged_node_does(spark: Any, store: raxlog.Store, tmp_path: Path) -> None:
    entries = [{"n": n, "text": "x" * 50} for n in range(1000)]
    store.stream("orders").extend(entries, ids=[f"5-{n}" for n in range(1000)])
    store.snapshot(tmp_path / "snapshot")
    node, lost = _damage_a_node(tmp_path / "snapshot")
    whole = reading(spark, tmp_path / "snapshot", mode="FAILFAST").schema("n int").load()
    message = refusal(whole.collect)
    assert "'orders'" in message
    assert f"node {node}" in message

    rest = reading(spark, tmp_path / "snapshot").schema("n int").load()
    assert rest.count() == 1000 - lost
    told = reading(spark, tmp_path / "snapshot").schema("n int, _corrupt_record string").load()
    rows = told.where("_corrupt_record is not null").cache().collect()
    assert len(rows) == 1
    assert node in rows[0]._corrupt_record


def _damage_a_node(snapshot: Path) -> tuple[str, int]:
    """Flip a bit of the second node; its ID and how many entries it has."""
    with lmdb.open(str(snapshot / "000001"), map_size=1 << 30) as env, env.begin(write=True) as txn:
        cursor = txn.cursor()
        cursor.set_range(keys.family(1, keys.NODE))
        cursor.next()
        key, value = cursor.item()
        live = int.from_bytes(value[22:26], "little")
        txn.put(key, value[:-5] + bytes([value[-5] ^ 1]) + value[-4:])
    ms, seq = records.node_id(key)
    return f"{ms}-{seq}", live


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
def test_without_a_package_the_message_names_the_extra(missing: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "import importlib.util as u; real = u.find_spec\n"
        f"u.find_spec = lambda name, *a: None if name == {missing!r} else real(name, *a)\n"
        "import raxlog, raxlog.spark\n"
        "try: raxlog.spark.register(None)\n"
        "except raxlog.NotInstalled as error: print(error)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert missing in told.stdout
    assert "pip install 'raxlog[spark]'" in told.stdout
