"""Streaming queries: everything that is appended comes once, whatever is killed on the way."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
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
