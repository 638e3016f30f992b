"""Streaming queries: everything that is appended comes once, whatever is killed on the way."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
import raxlog
from pyspark.sql.types import IntegerType, StructField, StructType
from raxlog.tools.spark.requirements import pyspark_version
from raxlog.tools.spark.source import RaxlogDataSource
from spark_scans import environment, refusal

pytestmark = pytest.mark.spark

pytest_plugins = ["spark_session"]

LONG = os.environ.get("RAXLOG_LONG") == "1"
KILLS = 20 if LONG else 4
OLD = pyspark_version() < (4, 2)  # without limits and without the query's position
RUNS = 2 if OLD else 1  # after a kill: such a Spark may end with the batch that was interrupted
LIMIT = {} if OLD else {"maxOffsetsPerTrigger": 1500}

if not OLD:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

limits = pytest.mark.skipif(OLD, reason="what a trigger may take can be limited since Spark 4.2")


def followed(spark: Any, path: Path, stream: str = "orders", schema: str = "id_ms bigint, id_seq bigint, n int",
             **options: Any) -> Any:
    """A streaming frame over a stream, from its beginning."""
    given = {"startingOffsets": "earliest"} | {name: str(value) for name, value in options.items()}
    return spark.readStream.format("raxlog").schema(schema).options(path=str(path), stream=stream, **given).load()


def started(frame: Any, folder: Path) -> Any:
    """The query that writes a frame to Parquet, and ends when all that is there now is read."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    return writer.option("path", str(folder / "out")).trigger(availableNow=True).start()


def run(frame: Any, folder: Path) -> list[int]:
    """Run such a query to its end; how many rows each of its batches had."""
    query = started(frame, folder)
    query.awaitTermination()
    return [progress["numInputRows"] for progress in query.recentProgress]


def arrived(folder: Path) -> list[int]:
    """The numbers in the Parquet sink, in order. Only what its log names counts."""
    import pyspark.sql  # noqa: PLC0415

    spark = pyspark.sql.SparkSession.active()
    return sorted(row.n for row in spark.read.parquet(str(folder / "out")).select("n").collect())


@limits
def test_a_query_goes_on_where_its_checkpoint_is_and_takes_no_more_than_it_may(
    spark: Any, store: raxlog.Store, tmp_path: Path
) -> None:
    orders = store.stream("orders")
    orders.extend([{"n": n} for n in range(1000)])
    assert run(followed(spark, store.path, maxOffsetsPerTrigger=400), tmp_path) == [400, 400, 200]
    orders.extend([{"n": n} for n in range(1000, 1500)])
    orders.delete(orders.select(1200))
    # the starting offset is for new queries only, and a checkpoint wins
    assert run(followed(spark, store.path, startingOffsets="latest"), tmp_path) == [499]

    assert arrived(tmp_path) == [n for n in range(1500) if n != 1200]


def test_what_was_trimmed_before_it_was_read_is_an_error_unless_it_is_allowed(
    spark: Any, store: raxlog.Store, tmp_path: Path
) -> None:
    orders = store.stream("orders")
    orders.extend([{"n": n} for n in range(1000)])
    run(followed(spark, store.path), tmp_path)
    orders.trim(maxlen=100)  # what has been read may go
    orders.extend([{"n": n} for n in range(1000, 1600)])
    orders.trim(maxlen=550)

    message = refusal(lambda: run(followed(spark, store.path), tmp_path))
    assert "50 entries of stream 'orders'" in message
    assert "failOnDataLoss" in message
    assert run(followed(spark, store.path, failOnDataLoss="false"), tmp_path) == [550]
    assert arrived(tmp_path) == [*range(1000), *range(1050, 1600)]


@limits
def test_a_batch_that_is_planned_again_after_a_trim_is_lost_data_too(tmp_path: Path) -> None:
    path = tmp_path / "store.rax"
    with raxlog.open(path) as store:
        store.stream("orders").extend([{"n": n} for n in range(100)])
    source = RaxlogDataSource({"path": str(path), "stream": "orders", "startingOffsets": "earliest"})
    reader = source.streamReader(StructType([StructField("n", IntegerType())]))
    start = reader.initialOffset()
    middle = reader.latestOffset(start, ReadMaxRows(50))
    end = reader.latestOffset(middle, ReadAllAvailable())
    assert sum(part.value.entries for part in reader.partitions(start, middle)) == 50
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    with raxlog.open(path) as store:
        store.stream("orders").trim(maxlen=10)

    with pytest.raises(raxlog.StreamError, match="40 entries of stream 'orders'"):
        reader.partitions(middle, end)
    with pytest.raises(raxlog.StreamError, match="90 entries"):
        reader.partitions(start, middle)


@limits
def test_a_query_may_start_in_the_future_and_not_behind_a_snapshot_that_is_older(tmp_path: Path) -> None:
    path = tmp_path / "store.rax"
    with raxlog.open(path) as store:
        store.stream("orders").append({"n": 1}, id="5-0")
    given = {"path": str(path), "stream": "orders"}
    schema = StructType([StructField("n", IntegerType())])
    reader = RaxlogDataSource(given | {"startingOffsets": "100"}).streamReader(schema)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    with raxlog.open(path) as store:
        store.stream("orders").extend([{"n": 2}, {"n": 3}], ids=["99-0", "100-0"])
    end = reader.latestOffset(start, ReadAllAvailable())
    assert [part.value.entries for part in reader.partitions(start, end)] == [1]

    ahead = {"orders": {"id": "200-0", "gone": 7, "no": 1}}
    with pytest.raises(raxlog.StreamError, match="older than the checkpoint"):
        reader.latestOffset(ahead, ReadAllAvailable())


def test_spark_before_4_2_asks_for_the_end_alone_and_a_query_never_goes_back(
    tmp_path: Path
) -> None:
    path = tmp_path / "store.rax"

    def reader(**given: str) -> Any:
        options = {"path": str(path), "streamPattern": "*", "failOnDataLoss": "false"} | given
        return RaxlogDataSource(options).streamReader(StructType([StructField("n", IntegerType())]))

    def entries(start: Any, end: Any, **given: str) -> int:
        return sum(part.value.entries for part in reader(**given).partitions(start, end))

    with raxlog.open(path) as store:
        store.stream("orders").extend([{"n": n} for n in range(10)], ids=[f"5-{n}" for n in range(10)])
    start, middle = reader(startingOffsets="earliest").initialOffset(), reader().latestOffset()
    with raxlog.open(path) as store:
        store.stream("orders").extend([{"n": n} for n in range(5)], ids=[f"6-{n}" for n in range(5)])
        store.stream("mail").append({"n": 1})
    end = reader().latestOffset()
    assert (entries(start, middle), entries(middle, end), entries(start, end)) == (10, 6, 16)
    with raxlog.open(path) as store:
        store.stream("orders").delete("6-4")
    assert reader().latestOffset() == end

    for ahead in ({"orders": {"id": "7-0", "gone": 1, "no": 1}}, reader(startingOffsets="7").initialOffset()):
        with pytest.raises(raxlog.StreamError, match=r"'orders' ends before [67]-\d+; pyspark 4.2"):
            entries(ahead, end)
    with raxlog.open(path) as store:
        store.delete_stream("mail")
    with pytest.warns(UserWarning, match="'mail' is no longer in"):
        assert entries(end, reader().latestOffset()) == 0
    with pytest.raises(raxlog.StreamError, match="'mail' is no longer in"):
        entries(end, reader().latestOffset(), failOnDataLoss="true")


def test_a_stream_made_anew_under_a_followed_name_is_lost_data(
    spark: Any, store: raxlog.Store, tmp_path: Path
) -> None:
    store.stream("orders").extend([{"n": n} for n in range(10)])
    run(followed(spark, store.path), tmp_path)
    store.delete_stream("orders")
    store.stream("orders").extend([{"n": n} for n in range(10, 15)])

    assert "deleted and created again" in refusal(lambda: run(followed(spark, store.path), tmp_path))
    assert run(followed(spark, store.path, failOnDataLoss="false"), tmp_path) == [5]
    assert arrived(tmp_path) == list(range(15))


def follower(path: Path | str, **options: str) -> Any:
    """The reader of a streaming query, as Spark makes one; from the beginning unless options say otherwise."""
    given = {"path": str(path), "startingOffsets": "earliest"} | options
    return RaxlogDataSource(given).streamReader(StructType([StructField("n", IntegerType())]))


def taken(reader: Any, start: Any, limit: Any = None) -> tuple[list[int], Any]:
    """What the next batch of a query reads, and the offset at its end, which has been through JSON."""
    end = json.loads(json.dumps(reader.latestOffset(start, limit or ReadAllAvailable())))
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    return sorted(n for batch in batches for n in batch.column(0).to_pylist()), end


def put(path: Path, stream: str, *numbers: int) -> None:
    """Append entries to a stream."""
    with raxlog.open(path) as store:
        store.stream(stream).extend([{"n": n} for n in numbers])


@limits
@pytest.mark.parametrize("asked", [{"stream": "o.b"}, {"streamPattern": "o.*"}])
def test_a_followed_stream_that_is_deleted_is_lost_data_by_name_and_by_pattern(
    tmp_path: Path, asked: dict[str, str]
) -> None:
    path = tmp_path / "store.rax"
    put(path, "o.b", 1, 2)
    reader = follower(path, **asked)
    rows, at = taken(reader, reader.initialOffset())
    assert rows == [1, 2]
    put(path, "o.b", 3)
    planned = reader.latestOffset(at, ReadAllAvailable())
    with raxlog.open(path) as store:
        store.delete_stream("o.b")

    for call in (lambda: reader.latestOffset(at, ReadAllAvailable()), lambda: reader.partitions(at, planned)):
        with pytest.raises(raxlog.StreamError, match=r"no (stream 'o.b' in|longer in)"):
            call()
    lenient = follower(path, failOnDataLoss="false", **asked)
    with pytest.warns(UserWarning, match=r"'o.b' is no longer in"):
        rows, at = taken(lenient, at)
    assert (rows, at) == ([], {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert taken(lenient, at) == ([], {})  # it has been reported
    put(path, "o.b", 7)
    assert taken(lenient, at)[0] == [7]


@limits
def test_a_renamed_stream_goes_on_within_a_pattern_and_is_lost_data_outside(tmp_path: Path) -> None:
    path = tmp_path / "store.rax"
    put(path, "o.a", 1, 2)
    put(path, "o.b", 3)
    reader = follower(path, streamPattern="o.*")
    rows, at = taken(reader, reader.initialOffset())
    assert rows == [1, 2, 3]
    put(path, "o.a", 4)
    planned = reader.latestOffset(at, ReadAllAvailable())
    with raxlog.open(path) as store:
        store.rename_stream("o.a", "o.z")
    assert sum(part.value.entries for part in reader.partitions(at, planned)) == 1  # planned before, run after
    put(path, "o.a", 5)  # another stream
    rows, at = taken(reader, at)
    assert (rows, sorted(at)) == ([4, 5], ["o.a", "o.b", "o.z"])
    assert taken(reader, at) == ([], at)

    with raxlog.open(path) as store:
        store.rename_stream("o.b", "mail")
    with pytest.raises(raxlog.StreamError, match=r"'o.b' is no longer in .* under another name"):
        taken(reader, at)
    with raxlog.open(path) as store:
        store.rename_stream("mail", "o.b")
    assert taken(reader, at)[0] == []  # nothing was noted down while it failed


def test_a_query_by_pattern_goes_on_after_a_rename_and_stops_at_a_deletion(
    spark: Any, store: raxlog.Store, tmp_path: Path
) -> None:
    def frame(**more: str) -> Any:
        reader = spark.readStream.format("raxlog").schema("stream string, n int").options(path=str(store.path), **more)
        return reader.options(streamPattern="o.*", startingOffsets="earliest").load()

    store.stream("o.a").extend([{"n": n} for n in range(100)])
    store.stream("o.b").extend([{"n": n} for n in range(100, 200)])
    run(frame(), tmp_path)
    store.rename_stream("o.a", "o.z")
    store.stream("o.z").extend([{"n": n} for n in range(200, 210)])
    run(frame(), tmp_path)
    assert arrived(tmp_path) == list(range(210))
    store.stream("o.b").extend([{"n": n} for n in range(900, 950)])
    store.delete_stream("o.b")
    store.stream("o.z").append({"n": 210})
    for _ in range(2):
        assert "'o.b' is no longer in" in refusal(lambda: run(frame(), tmp_path))
    for _ in range(RUNS):
        run(frame(failOnDataLoss="false"), tmp_path)
    run(frame(), tmp_path)
    assert arrived(tmp_path) == list(range(211))


@limits
def test_a_trim_and_a_stream_made_anew_are_lost_data_under_a_pattern(tmp_path: Path) -> None:
    path = tmp_path / "store.rax"
    put(path, "o.a", *range(10))
    put(path, "o.b", *range(10))
    reader = follower(path, streamPattern="o.*")
    at = taken(reader, reader.initialOffset())[1]
    put(path, "o.a", *range(10, 15))
    with raxlog.open(path) as store:
        store.stream("o.a").trim(maxlen=2)
    with pytest.raises(raxlog.StreamError, match=r"3 entries of stream 'o.a'"):
        taken(reader, at)
    lenient = follower(path, streamPattern="o.*", failOnDataLoss="false")
    with pytest.warns(UserWarning, match="3 entries"):
        rows, at = taken(lenient, at)
    assert rows == [13, 14]
    with raxlog.open(path) as store:
        store.delete_stream("o.b")
    put(path, "o.b", 20)
    with pytest.raises(raxlog.StreamError, match=r"'o.b' was deleted and created again"):
        taken(reader, at)
    with pytest.warns(UserWarning, match=r"'o.b' was deleted and created again"):
        assert taken(lenient, at)[0] == [20]


@limits
@pytest.mark.parametrize(("before", "after", "old"), [
    ({"stream": "a"}, {"stream": "b"}, False), ({"stream": "a"}, {"streamPattern": "*"}, False),
    ({"streamPattern": "a*"}, {"streamPattern": "*"}, False), ({"streamPattern": "a*"}, {"stream": "b"}, False),
    ({"stream": "a"}, {"stream": "b"}, True), ({"streamPattern": "a*"}, {"stream": "b"}, True),
])
def test_a_stream_that_a_changed_option_adds_begins_where_the_options_say(
    tmp_path: Path, before: dict[str, str], after: dict[str, str], old: bool
) -> None:
    path = tmp_path / "store.rax"
    put(path, "a", 1)
    put(path, "b", 2)
    reader = follower(path, **before)
    at = taken(reader, reader.initialOffset())[1]
    if old:  # as raxlog wrote it once
        at = {key: {name: value[name] for name in ("id", "gone", "no")} for key, value in at.items()}
    assert taken(follower(path, **after), at)[0] == [2]

    reader = follower(path, startingOffsets="latest", **after)
    rows, at = taken(reader, at)
    assert rows == []
    put(path, "b", 3)
    put(path, "b2", 4)  # made later: from its beginning
    rows, at = taken(reader, at)
    assert rows == ([3] if after == {"stream": "b"} else [3, 4])


@limits
def test_new_streams_that_a_trigger_has_no_room_for_are_read_later(tmp_path: Path) -> None:
    path = tmp_path / "store.rax"
    put(path, "a", *range(50))
    reader = follower(path, streamPattern="*")
    at = reader.initialOffset()
    put(path, "b", 100)
    rows = []
    for _ in range(51):
        got, at = taken(reader, at, ReadMaxRows(1))
        rows += got
    assert sorted(rows) == [*range(50), 100]


@limits
def test_a_restored_store_with_the_same_ids_is_lost_data_and_an_offset_without_a_store_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "store.rax"
    ids = [f"5-{n}" for n in range(6)]
    with raxlog.open(path) as store:
        store.stream("orders").extend([{"n": n} for n in range(3)], ids=ids[:3])
        store.snapshot(tmp_path / "snapshot")
        store.stream("orders").extend([{"n": n} for n in (3, 4)], ids=ids[3:5])
    reader = follower(path, stream="orders")
    rows, at = taken(reader, reader.initialOffset())
    assert rows == [0, 1, 2, 3, 4]
    path.rename(tmp_path / "lost.rax")
    raxlog.restore(tmp_path / "snapshot", path)
    with raxlog.open(path) as store:
        store.stream("orders").extend([{"n": n} for n in (13, 14)], ids=ids[3:5])

    with pytest.raises(raxlog.StreamError, match=r"is another, restored .*failOnDataLoss"):
        taken(reader, at)
    lenient = follower(path, stream="orders", failOnDataLoss="false")
    with pytest.warns(UserWarning, match="is another, restored"):
        rows, now = taken(lenient, at)
    assert rows == [0, 1, 2, 13, 14]  # what is there, from its beginning
    assert taken(reader, now) == ([], now)
    unknown = {key: {name: value[name] for name in ("id", "gone", "no")} for key, value in at.items()}
    with raxlog.open(path) as store:
        store.stream("orders").append({"n": 15}, id=ids[5])
    assert taken(reader, unknown)[0] == [15]


def test_a_query_that_starts_at_an_id_behind_which_entries_are_gone_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.rax"
    with raxlog.open(path) as store:
        store.stream("orders").extend([{"n": n} for n in range(4)], ids=[f"5-{n}" for n in range(4)])
        store.stream("orders").trim(maxlen=1)
    for asked in ({"stream": "orders"}, {"streamPattern": "*"}):
        with pytest.raises(raxlog.StreamError, match="may have been trimmed away"):
            follower(path, startingOffsets="5-1", **asked).initialOffset()
        with pytest.warns(UserWarning, match="may have been trimmed away"):
            follower(path, startingOffsets="5-1", failOnDataLoss="false", **asked).initialOffset()
        follower(path, startingOffsets="5-3", **asked).initialOffset()


def test_a_pattern_that_matches_nothing_waits_for_streams_and_a_missing_name_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "store.rax"
    put(path, "orders", 1)
    reader = follower(path, streamPattern="x.*", startingOffsets="LATEST")
    assert (at := reader.initialOffset()) == {}
    if not OLD:
        assert taken(reader, at) == ([], {})
        put(path, "x.1", 2)
        assert taken(reader, at)[0] == [2]
    for lenient in ("true", "false"):
        with pytest.raises(raxlog.NoStream, match=r"no stream 'order' in .*did you mean 'orders'"):
            follower(path, stream="order", failOnDataLoss=lenient).initialOffset()


def test_a_folder_of_growing_snapshots_is_followed(spark: Any, store: raxlog.Store, tmp_path: Path) -> None:
    orders = store.stream("orders")
    folder = tmp_path / "snapshots"
    folder.mkdir()
    for round_ in range(2):
        orders.extend([{"n": n} for n in range(round_ * 300, round_ * 300 + 300)])
        store.snapshot(folder / f"no-{round_}")
        assert run(followed(spark, folder), tmp_path) == [300]

    assert arrived(tmp_path) == list(range(600))


@limits
def test_several_streams_share_a_trigger_and_new_ones_are_read_from_their_beginning(
    spark: Any, store: raxlog.Store, tmp_path: Path
) -> None:
    store.stream("a.1").extend([{"n": n} for n in range(300)])
    store.stream("a.2").extend([{"n": n} for n in range(300, 400)])
    frame = (
        spark.readStream.format("raxlog").schema("stream string, n int").options(path=str(store.path))
        .options(streamPattern="a.*", startingOffsets="earliest", maxOffsetsPerTrigger="200").load()
    )
    assert run(frame, tmp_path) == [200, 200]
    store.stream("a.3").extend([{"n": n} for n in range(400, 450)])
    assert run(frame, tmp_path) == [50]

    assert arrived(tmp_path) == list(range(450))


@limits
def test_a_trigger_waits_for_as_many_entries_as_it_needs(spark: Any, store: raxlog.Store, tmp_path: Path) -> None:
    orders = store.stream("orders")
    orders.extend([{"n": n} for n in range(50)])
    frame = followed(spark, store.path, minOffsetsPerTrigger=100, maxTriggerDelay="1h")
    query = (
        frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("path", str(tmp_path / "out")).trigger(processingTime="50 milliseconds").start()
    )
    try:
        deadline = time.monotonic() + 60
        while not query.status["isDataAvailable"] and query.lastProgress is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not (query.lastProgress or {}).get("numInputRows")
        orders.extend([{"n": n} for n in range(50, 100)])
        while not any(row["numInputRows"] for row in query.recentProgress) and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        query.stop()
    assert [row["numInputRows"] for row in query.recentProgress if row["numInputRows"]] == [100]


def test_every_entry_comes_once_however_often_the_query_is_stopped_in_the_middle(
    spark: Any, store: raxlog.Store, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    dice = random.Random(seed)
    orders = store.stream("orders")
    ended = threading.Event()

    def append() -> None:
        for at in range(0, 20_000, 200):
            orders.extend([{"n": n} for n in range(at, at + 200)])
            if ended.wait(0.02):
                return

    writer = threading.Thread(target=append)
    writer.start()
    stops = 0
    try:
        while stops < KILLS:
            query = started(followed(spark, store.path, **LIMIT), tmp_path)
            time.sleep(dice.uniform(0.1, 1.2))
            stops += query.isActive
            query.stop()
    finally:
        writer.join()
    for _ in range(RUNS):
        run(followed(spark, store.path), tmp_path)

    assert arrived(tmp_path) == list(range(20_000))


@pytest.mark.skipif(not LONG, reason="RAXLOG_LONG=1: two minutes")
def test_half_of_the_entries_are_in_the_sink_within_a_second_and_a_half(
    spark: Any, store: raxlog.Store, tmp_path: Path
) -> None:
    took: list[float] = []

    def sink(frame: Any, _: int) -> None:
        rows, now = frame.collect(), time.time()
        took.extend(now - row.t for row in rows)

    orders = store.stream("orders")
    orders.append({"t": time.time()})
    writer = followed(spark, store.path, schema="t double", startingOffsets="latest").writeStream.foreachBatch(sink)
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(processingTime="1 second").start()
    warm = time.monotonic() + 20.0
    while time.monotonic() < warm:
        orders.append({"t": time.time()})
        time.sleep(0.02)
    first, appended, ends = len(took), 0, time.monotonic() + 120.0
    while time.monotonic() < ends:
        orders.append({"t": time.time()})
        appended += 1
        time.sleep(0.02)
    query.processAllAvailable()
    query.stop()

    took = sorted(took[first:])
    assert len(took) >= appended
    print("".join(f"p{p} {took[len(took) * p // 100]:.2f} s  " for p in (5, 50, 95, 99)), f"of {len(took)} entries")
    assert took[len(took) // 2] <= 1.5


QUERY = """
import sys
from pyspark.sql import SparkSession
import raxlog.spark
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
         .config("spark.driver.memory", "1g").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
raxlog.spark.register(spark)
store, folder = sys.argv[1:3]
frame = (spark.readStream.format("raxlog").schema("n int").option("path", store).option("stream", "orders")
         .options(startingOffsets="earliest", **eval(sys.argv[3])).load())
query = (frame.writeStream.format("parquet").option("checkpointLocation", folder + "/checkpoint")
         .option("path", folder + "/out").trigger(availableNow=True).start())
print("started", flush=True)
query.awaitTermination()
"""


@pytest.mark.skipif(not LONG, reason="RAXLOG_LONG=1: twenty Sparks are started and killed, some ten minutes")
def test_every_entry_comes_once_however_often_the_whole_of_spark_is_killed(
    spark: Any, store: raxlog.Store, tmp_path: Path
) -> None:
    dice = random.Random(20261121)
    orders = store.stream("orders")
    total = 0
    for _ in range(20):
        orders.extend([{"n": n} for n in range(total, total + 10_000)])
        total += 10_000
        child = subprocess.Popen(
            [sys.executable, "-c", QUERY, str(store.path), str(tmp_path), repr(LIMIT)], env=os.environ | environment(),
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        )
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(dice.uniform(0.0, 6.0))
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    for _ in range(RUNS):
        run(followed(spark, store.path, schema="n int"), tmp_path)

    assert arrived(tmp_path) == list(range(total))
    assert ds.dataset(str(tmp_path / "out"), format="parquet", exclude_invalid_files=True).count_rows() >= total
