"""A streaming query into a stream: each row once, whichever epoch is run again, and whatever is killed."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import msgpack
import pytest
import raxlog
from spark_scans import killed, refusal

pytestmark = pytest.mark.spark

pytest_plugins = ["spark_session"]

LONG = os.environ.get("RAXLOG_LONG") == "1"
KILLS = 20 if LONG else 2
EPOCH = 2000  # rows

QUERY = """
import sys
from pyspark.sql import SparkSession
import raxlog.spark
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
         .config("spark.driver.memory", "1g").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
raxlog.spark.register(spark)
path, folder, partitions, *options = sys.argv[1:]
schema = "id_ms bigint, id_seq bigint, n int" if options else "n int"
frame = (spark.readStream.format("raxlog").schema(schema).option("path", path).option("stream", "orders")
         .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "2000")
         .option("minPartitions", partitions).load())
query = (frame.writeStream.format("raxlog").option("path", path).option("stream", "copy").option("rowsPerCommit", "20")
         .options(**dict(zip(options[::2], options[1::2])))
         .option("checkpointLocation", folder).trigger(availableNow=True).start())
print("started", flush=True)
query.awaitTermination()
"""


def copying(spark: Any, path: Path, checkpoint: Path, source: str = "orders", **options: Any) -> Any:
    """A query that copies one stream to the stream "copy" and ends; a row of each 300 has its own transaction."""
    given = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(EPOCH)}
    given |= {name: str(value) for name, value in options.items()}
    frame = spark.readStream.format("raxlog").schema("n int").options(path=str(path), stream=source, **given).load()
    writer = frame.writeStream.format("raxlog").options(path=str(path), stream="copy", rowsPerCommit="300")
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def copied(store: raxlog.Store) -> list[int]:
    """The numbers in "copy"."""
    return sorted(int(entry.fields["n"]) for entry in store.stream("copy").range())


def records(store: raxlog.Store) -> list[list[Any]]:
    """What the store keeps of streaming queries: the epoch begun last, the files still needed, the rows done."""
    return [msgpack.unpackb(value) for key, value in store.state.items() if key.startswith("raxlog.spark.stream/")]


def staged(store: raxlog.Store) -> list[Path]:
    """The files of tasks that are left."""
    return list((store.path / "spark").glob("*/*"))


def forget_last_epoch(checkpoint: Path) -> None:
    """Leave a checkpoint as a driver leaves it that is killed after the sink's commit, and before its own."""
    last = max((path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def test_an_epoch_that_is_run_again_adds_nothing_and_two_queries_share_a_stream(
    spark: Any, store: raxlog.Store, tmp_path: Path
) -> None:
    for source, first in (("a", 0), ("b", 10_000)):
        store.stream(source).extend([{"n": first + n} for n in range(3000)])
    wanted = [*range(3000), *range(10_000, 13_000)]
    for partitions in (1, 3):  # the last epoch is run again, cut in another way
        queries = [copying(spark, store.path, tmp_path / name, name, minPartitions=partitions) for name in "ab"]
        for query in queries:
            query.awaitTermination()
        assert copied(store) == wanted
        for name in "ab":
            forget_last_epoch(tmp_path / name)

    assert [(epoch, files) for epoch, files, _ in records(store)] == [(1, []), (1, [])]  # one record a query
    assert staged(store) == []
    assert len(store.state) == 2


def test_rows_of_a_failed_attempt_do_not_count_and_only_appending_is_allowed(
    spark: Any, store: raxlog.Store, tmp_path: Path
) -> None:
    from pyspark import TaskContext  # noqa: PLC0415
    from pyspark.sql.functions import udf  # noqa: PLC0415

    @udf("bigint", useArrow=False)
    def other_rows(n):  # type: ignore[no-untyped-def]
        attempt = TaskContext.get().attemptNumber()
        if attempt == 0 and n == 999:
            raise RuntimeError("the executor is lost")
        return n + 5000 * attempt

    store.stream("orders").extend([{"n": n} for n in range(1000)])
    given = {"path": str(store.path), "stream": "orders", "startingOffsets": "earliest"}
    frame = spark.readStream.format("raxlog").schema("n bigint").options(**given).load()
    writer = frame.select(other_rows("n").alias("n")).writeStream.format("raxlog")
    writer = writer.options(path=str(store.path), stream="copy", checkpointLocation=str(tmp_path / "once"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert copied(store) == list(range(5000, 6000))
    assert staged(store) == []

    counts = frame.groupBy("n").count().writeStream.format("raxlog").outputMode("complete")
    counts = counts.options(path=str(store.path), stream="copy", checkpointLocation=str(tmp_path / "counts"))
    assert "outputMode('append')" in refusal(lambda: counts.start().awaitTermination())


@pytest.mark.parametrize("options", [
    (), pytest.param(("idFrom", "id_ms"), marks=pytest.mark.skipif(not LONG, reason="RAXLOG_LONG is not set"))
], ids=["new IDs", "IDs of the rows"])
def test_every_row_arrives_once_however_often_the_driver_is_killed(
    spark: Any, store: raxlog.Store, tmp_path: Path, options: tuple[str, ...]
) -> None:
    seed = int(os.environ.get("RAXLOG_SEED") or random.randrange(1 << 32))
    print(f"RAXLOG_SEED={seed}")
    dice = random.Random(seed)
    orders = store.stream("orders")
    halves = total = kills = 0
    while kills < KILLS or (not halves and kills < KILLS + 8):  # a kill may come too late to leave a half
        orders.extend([{"n": n} for n in range(total, total + 5 * EPOCH)])
        total += 5 * EPOCH
        until = time.monotonic() + dice.uniform(0.0, 5.0)

        def moment(half: bool = not halves or kills % 2 == 0, until: float = until) -> bool:
            return any(files for _, files, _ in records(store)) if half else time.monotonic() > until

        killed(QUERY, [str(store.path), str(tmp_path), str(dice.randrange(1, 5)), *options], moment)
        halves += any(files for _, files, _ in records(store))
        kills += 1
    if options:
        killed(QUERY, [str(store.path), str(tmp_path), "3", *options], lambda: False)  # to its end
    else:
        copying(spark, store.path, tmp_path, minPartitions=3).awaitTermination()

    assert copied(store) == list(range(total))
    if options:
        assert [*store.stream("copy").range()] == [*orders.range()]
    assert halves  # an epoch was left half appended at least once
    assert staged(store) == []
    assert len(store.state) == 1
