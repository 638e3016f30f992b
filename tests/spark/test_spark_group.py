"""A streaming query with a consumer group: lag, retention and status know how far it has come."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import raxlog
import raxlog.spark
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, StructField, StructType
from raxlog import Retention
from raxlog.tools.spark.requirements import pyspark_version
from raxlog.tools.spark.source import RaxlogDataSource
from raxlog.tools.spark.stream_reader import FollowingReader
from spark_scans import environment, refusal

LONG = os.environ.get("RAXLOG_LONG") == "1"
KILLS = 50 if LONG else 2
OLD = pyspark_version() < (4, 2)
pytestmark = [pytest.mark.spark, pytest.mark.skipif(OLD, reason="a query has a group since Spark 4.2")]
pytest_plugins = ["spark_session"]

if not OLD:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

SCHEMA = StructType([StructField("n", IntegerType())])


def frame(spark: Any, path: Path, **options: str) -> Any:
    """A streaming frame over a store, from the beginning of its streams, with the group "g"."""
    given = {"path": str(path), "startingOffsets": "earliest", "group": "g"} | options
    return spark.readStream.format("raxlog").schema("n int").options(**given).load()


def into(frame: Any, folder: Path, **trigger: Any) -> Any:
    """The query that writes a frame to Parquet."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    return writer.option("path", str(folder / "out")).trigger(**(trigger or {"availableNow": True})).start()


def run(frame: Any, folder: Path) -> list[int]:
    """Run such a query over what is there now; how many rows each of its batches had."""
    query = into(frame, folder)
    query.awaitTermination()
    return [progress["numInputRows"] for progress in query.recentProgress]


def reader(path: Path, kind: type[FollowingReader] = FollowingReader, **options: str) -> Any:
    """The reader of such a query, as Spark makes one."""
    asked = {} if options.keys() & {"stream", "streamPattern"} else {"stream": "orders"}
    given = {"path": str(path), "startingOffsets": "earliest", "group": "g"} | asked | options
    made = RaxlogDataSource(given).streamReader(SCHEMA)
    made.__class__ = kind
    return made


def put(path: Path, stream: str, *numbers: int) -> None:
    """Append entries to a stream."""
    with raxlog.open(path) as store:
        store.stream(stream).extend([{"n": n} for n in numbers])


def standing(path: Path, stream: str = "orders", group: str = "g") -> tuple[str, int]:
    """Where a group is, and its lag."""
    with raxlog.open(path, readonly=True) as store:
        info = store.stream(stream).group(group).info()
        return str(info.last_delivered_id), info.lag


def planned(follower: Any, start: Any, limit: Any = None) -> Any:
    """The end of the next batch, after it has been through JSON."""
    return json.loads(json.dumps(follower.latestOffset(start, limit or ReadAllAvailable())))


def rows(follower: Any, start: Any, end: Any) -> list[int]:
    """What a batch reads."""
    batches = [batch for part in follower.partitions(start, end) for batch in follower.read(part)]
    return sorted(n for batch in batches for n in batch.column(0).to_pylist())


def test_lag_status_and_retention_know_how_far_a_query_has_come(
    spark: Any, store: raxlog.Store, tmp_path: Path
) -> None:
    orders = store.stream("orders", node_max_entries=10)
    orders.configure(retention=Retention(acked=True))
    orders.extend([{"n": n} for n in range(1000)])
    following = frame(spark, store.path, stream="orders", maxOffsetsPerTrigger="400")
    assert run(following, tmp_path) == [400, 400, 200]

    info = orders.group("g").info()
    assert (info.lag, info.redis_lag, info.entries_read, info.pending) == (0, 0, 1000, 0)
    assert [(group.name, group.lag) for group in store.status().streams[0].groups] == [("g", 0)]
    orders.extend([{"n": n} for n in range(1000, 1300)])
    store.maintain()
    assert orders.group("g").lag == 300
    assert 300 <= orders.info().length < 320  # what the query has read is gone, and nothing else

    # another query with the group goes on where the group is, whatever it says of offsets; then so does the first
    assert run(frame(spark, store.path, stream="orders", startingOffsets="latest"), tmp_path / "other") == [300]
    orders.append({"n": 1300})
    message = refusal(lambda: run(following, tmp_path))
    assert "GroupMoved" in message
    assert "Give each query a group of its own" in message


def test_entries_behind_a_query_are_in_its_progress_by_stream_and_in_all(
    spark: Any, store: raxlog.Store, tmp_path: Path
) -> None:
    for name in "ab":
        store.stream(name).extend([{"n": n} for n in range(100)])

    def late(_: Any, batch: int) -> None:
        if batch == 0:
            for name, many in (("a", 5), ("b", 7), ("c", 3)):
                store.stream(name).extend([{"n": n} for n in range(many)])

    following = frame(spark, store.path, streamPattern="*", maxOffsetsPerTrigger="100")
    writer = following.writeStream.foreachBatch(late).option("checkpointLocation", str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert raxlog.spark.lag(query) == {"a": 5, "b": 7, "c": 3}
    assert [store.stream(name).group("g").lag for name in "abc"] == [5, 7, 3]

    writer = frame(spark, store.path, streamPattern="*").writeStream.foreachBatch(late)
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    query.awaitTermination()
    assert raxlog.spark.lag(query) == {"a": 0, "b": 0, "c": 0}
    assert [store.stream(name).group("g").lag for name in "abc"] == [0, 0, 0]


def test_a_group_stands_where_the_batch_under_way_begins_until_spark_commits_it(tmp_path: Path) -> None:
    path = tmp_path / "store.rax"
    put(path, "orders", *range(10))
    with raxlog.open(path) as store:
        ids = [entry.id for entry in store.stream("orders").range()]
    follower = reader(path)
    start = follower.initialOffset()
    assert standing(path) == ("0-0", 10)
    first = planned(follower, start, ReadMaxRows(4))
    second = planned(follower, first, ReadMaxRows(4))
    assert standing(path) == ("0-0", 10)
    follower.commit(first)
    assert standing(path) == (str(ids[3]), 6)
    follower.commit(first)  # again: nothing to do
    follower.commit(second)
    assert standing(path) == (str(ids[7]), 2)
    assert planned(follower, second, ReadMaxRows(4)) != second
    idle = planned(follower, planned(follower, second))
    assert planned(reader(path), idle) == idle  # no batch without entries


@given(st.lists(st.sampled_from(["append", "delete", "trim", "batch", "batch"]), min_size=3, max_size=12))
@settings(deadline=None, max_examples=100 if LONG else 20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_group_that_a_query_moves_counts_as_one_that_reads(
    tmp_path_factory: pytest.TempPathFactory, moves: list[str]
) -> None:
    path = tmp_path_factory.mktemp("counts") / "store.rax"
    put(path, "orders", *range(10))
    follower = reader(path, failOnDataLoss="false")
    at = follower.initialOffset()
    with raxlog.open(path) as store:
        known = store.stream("orders").group("g").info().entries_read
        store.stream("orders").create_group("reading", entries_read=known)
    for move in moves:
        end = at
        if move == "batch":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                end = planned(follower, at, ReadMaxRows(4))
        with raxlog.open(path) as store:
            orders = store.stream("orders")
            if move == "append":
                orders.extend([{"n": n} for n in range(3)])
            elif move == "delete" and orders.info().length > 6:
                orders.delete(orders.select(5))
            elif move == "trim":
                orders.trim(maxlen=8)
            elif end["orders"]["id"] != at["orders"]["id"]:
                orders.group("reading").read("worker", count=4)
        if end != at:
            follower.commit(end)
        at = end
        with raxlog.open(path) as store:
            read, moved = (store.stream("orders").group(name).info() for name in ("reading", "g"))
        assert (read.last_delivered_id, read.lag, read.entries_read, read.redis_lag) == (
            moved.last_delivered_id, moved.lag, moved.entries_read, moved.redis_lag)


def test_a_kill_before_a_commit_leaves_the_move_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "store.rax"
    put(path, "orders", *range(10))
    first = planned(reader(path), reader(path).initialOffset(), ReadMaxRows(4))
    second = planned(reader(path), first, ReadMaxRows(4))  # killed before commit(first)
    third = planned(reader(path), second, ReadMaxRows(1))
    fourth = planned(reader(path), third, ReadMaxRows(1))  # killed before commit(second)
    assert standing(path) == ("0-0", 10)
    reader(path).commit(third)
    assert standing(path)[1] == 1
    reader(path).commit(fourth)
    assert standing(path)[1] == 0


def test_a_group_that_something_else_has_moved_stops_the_query_and_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.rax"
    for name in ("a", "b"):
        put(path, name, *range(10))
    follower = reader(path, streamPattern="*")
    first = planned(follower, follower.initialOffset(), ReadMaxRows(8))
    second = planned(follower, first)
    with raxlog.open(path) as store:
        taken = store.stream("b").group("g").read("worker", count=6)
    here = {name: standing(path, name) for name in "ab"}

    for call in (lambda: follower.commit(first), lambda: planned(follower, first)):
        with pytest.raises(raxlog.GroupMoved, match=rf"'g' of stream 'b' in .* is at {taken[-1].id}, and") as moved:
            call()
        assert f"set_id('{first['b']['id']}') lets this one go on" in str(moved.value)
    assert {name: standing(path, name) for name in "ab"} == here  # that of the other stream, too
    with raxlog.open(path) as store:
        store.stream("b").group("g").set_id(first["b"]["id"])
    follower.commit(first)
    follower.commit(second)
    assert [standing(path, name)[1] for name in "ab"] == [0, 0]

    with raxlog.open(path) as store:
        store.stream("b").group("g").destroy()
    for call in (lambda: follower.commit(second), lambda: planned(follower, second)):
        with pytest.raises(raxlog.NoGroup, match="stream 'b' has no consumer group 'g'"):
            call()


def test_a_first_batch_that_is_run_again_skips_nothing_if_its_group_was_moved(tmp_path: Path) -> None:
    path = tmp_path / "store.rax"
    put(path, "orders", *range(10))
    first = planned(reader(path), reader(path).initialOffset())
    with raxlog.open(path) as store:
        store.stream("orders").group("g").read("worker", count=4)
    follower = reader(path)
    with pytest.raises(raxlog.GroupMoved, match=r"left it at 0-0: .*set_id\('0-0'\) lets"):
        rows(follower, follower.initialOffset(), first)
    with raxlog.open(path) as store:
        store.stream("orders").group("g").set_id("0-0")
    assert rows(follower, follower.initialOffset(), first) == list(range(10))


def test_a_query_that_is_given_a_group_later_begins_it_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "store.rax"
    put(path, "orders", *range(10))
    without = RaxlogDataSource({"path": str(path), "stream": "orders", "startingOffsets": "earliest"})
    follower = without.streamReader(SCHEMA)
    at = planned(follower, follower.initialOffset(), ReadMaxRows(4))
    end = planned(reader(path), at)
    assert standing(path)[1] == 6
    reader(path).commit(end)
    other = planned(reader(path, group="other"), end)  # another group on the same checkpoint
    assert standing(path, group="other")[1] == 0
    reader(path, group="other").commit(other)
    with raxlog.open(path) as store:
        store.stream("orders").create_group("third", start="0")
    with pytest.raises(raxlog.GroupMoved, match="is at 0-0"):
        planned(reader(path, group="third"), end)
    assert "group" not in planned(follower, end)["orders"]


def test_a_renamed_stream_keeps_its_group_and_a_new_one_gets_its_own(tmp_path: Path) -> None:
    path = tmp_path / "store.rax"
    put(path, "o.a", 1, 2)
    follower = reader(path, streamPattern="o.*")
    start = follower.initialOffset()
    first = planned(follower, start)
    with raxlog.open(path) as store:
        store.rename_stream("o.a", "o.z")
    put(path, "o.a", 3)
    put(path, "o.z", 4)
    follower.commit(first)
    assert standing(path, "o.z")[1] == 1
    second = planned(follower, first)
    assert rows(follower, first, second) == [3, 4]
    assert standing(path, "o.a") == ("0-0", 1)
    follower.commit(second)
    assert [standing(path, name)[1] for name in ("o.a", "o.z")] == [0, 0]
    with raxlog.open(path) as store:
        store.delete_stream("o.a")
    follower.commit(second)  # which has been reported, or will be


def test_a_restored_store_has_the_group_that_it_had_and_a_snapshot_has_none_to_move(tmp_path: Path) -> None:
    path = tmp_path / "store.rax"
    put(path, "orders", *range(3))
    follower = reader(path, failOnDataLoss="false")
    at = planned(follower, follower.initialOffset())
    follower.commit(at)
    with raxlog.open(path) as store:
        store.snapshot(tmp_path / "snapshot")
    with pytest.raises(raxlog.InvalidArgument, match=r"option group: .* is a snapshot"):
        reader(tmp_path / "snapshot").initialOffset()
    path.rename(tmp_path / "lost.rax")
    raxlog.restore(tmp_path / "snapshot", path)
    here = standing(path)
    follower.commit(at)  # of the store that was
    assert standing(path) == here
    with pytest.warns(UserWarning, match="is another, restored"):
        again = planned(follower, at)
    with pytest.warns(UserWarning, match="is another, restored"):
        assert rows(follower, at, again) == [0, 1, 2]
    follower.commit(again)
    assert standing(path)[1] == 0


@pytest.mark.parametrize(("options", "match"), [
    ({"group": "x" * 70_000}, "the group name"),
    ({"maxBytesPerTrigger": "0"}, "maxBytesPerTrigger='0' must be bytes"),
    ({"maxBytesPerTrigger": "1m", "maxOffsetsPerTrigger": "5"}, "exclude each other"),
])
def test_options_of_a_query_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, str], match: str) -> None:
    with pytest.raises(raxlog.InvalidArgument, match=match):
        reader(tmp_path / "store.rax", **options)
    with pytest.raises(raxlog.InvalidArgument, match="option group belongs to readStream"):
        RaxlogDataSource({"path": "x", "stream": "orders", "group": "g"}).reader(SCHEMA)


def test_a_trigger_takes_the_nodes_that_its_bytes_have_room_for(
    spark: Any, store: raxlog.Store, tmp_path: Path
) -> None:
    for name, size in (("small", 10), ("large", 1000)):
        stream = store.stream(name)
        stream.extend([{"n": n, "text": "x" * size} for n in range(2000)])
    stored = 2000 * (30 + 1020)
    taken = run(frame(spark, store.path, streamPattern="*", maxBytesPerTrigger=str(stored // 10)), tmp_path)
    assert sum(taken) == 4000
    assert 10 <= len(taken) <= 14
    assert spark.read.parquet(str(tmp_path / "out")).groupBy("n").count().where("count = 2").count() == 2000


def test_bytes_less_than_a_node_still_take_one(tmp_path: Path) -> None:
    path = tmp_path / "store.rax"
    with raxlog.open(path) as store:
        store.stream("orders", node_max_entries=10).extend([{"n": n} for n in range(25)])
    follower = reader(path)
    at, taken = follower.initialOffset(), []
    while (end := planned(follower, at, ReadMaxBytes(1))) != at:
        taken.append(rows(follower, at, end))
        at = end
    assert taken == [[*range(10)], [*range(10, 20)], [*range(20, 25)]]


# -- Spark's engine, killed between any two of its steps ----------------------------------


class Engine:
    """What Spark's micro-batch engine does with a reader, step by step; its checkpoint and the sink last."""

    def __init__(self, path: Path, kind: type[FollowingReader]) -> None:
        self._path, self._kind = path, kind
        self.offsets: list[Any] = []
        self.done = 0  # batches in the log of commits
        self.sink: dict[int, list[int]] = {}  # by epoch
        self.kill()

    def kill(self) -> None:
        """End it, and begin again with what is on disk."""
        self._steps = self._run(reader(self._path, self._kind))

    def step(self) -> bool:
        """One step; False: there is nothing to do. It may be asked again."""
        if next(self._steps, None) is None:
            self.kill()
            return False
        return True

    def _run(self, follower: Any) -> Iterator[bool]:
        if self.done < len(self.offsets):
            start = self.offsets[-2] if len(self.offsets) > 1 else follower.initialOffset()
            yield from self._batch(follower, start)
        start = self.offsets[-1] if self.offsets else follower.initialOffset()
        while (end := planned(follower, start, ReadMaxRows(7))) != start:
            yield True
            self.offsets.append(end)
            yield True
            if len(self.offsets) > 1:
                follower.commit(self.offsets[-2])
                yield True
            yield from self._batch(follower, start)
            start = end

    def _batch(self, follower: Any, start: Any) -> Iterator[bool]:
        taken = rows(follower, start, self.offsets[-1])
        yield True
        self.sink[len(self.offsets) - 1] = taken
        yield True
        self.done = len(self.offsets)
        yield True


class TooEarly(FollowingReader):
    """A reader with a bug: the group is moved when a batch is planned, not when Spark commits it."""

    def latestOffset(self, start: Any = None, limit: Any = None) -> Any:
        end = super().latestOffset(start, limit)
        super().commit(end)
        return end

    def commit(self, end: Any) -> None:
        """Done already."""


KILLED = ["append", *["step"] * 8, "append", "trim", "kill", *["step"] * 4, "kill", "append", "trim", *["step"] * 9]


def played(path: Path, moves: list[str], kind: type[FollowingReader] = FollowingReader) -> tuple[list[int], int]:
    """What is in the sink after these moves and the rest, of how many entries; the group is watched on the way."""
    with raxlog.open(path) as store:
        store.stream("orders", node_max_entries=3).configure(retention=Retention(acked=True))
    reader(path).initialOffset()  # so that nothing can go before
    engine, count = Engine(path, kind), 0
    for move in moves:
        if move == "step":
            engine.step()
        elif move == "kill":
            engine.kill()
        elif move == "append":
            put(path, "orders", *range(count, count + 10))
            count += 10
        else:
            with raxlog.open(path) as store:
                store.maintain(exact=True)
        ends = ["0-0", *[offset["orders"]["id"] for offset in engine.offsets[:engine.done]]]
        assert standing(path)[0] in ends, "the group is ahead of what is done"
    while engine.step():
        pass
    return sorted(n for taken in engine.sink.values() for n in taken), count


@given(moves=st.lists(st.sampled_from(["append", "trim", "kill", *["step"] * 6]), max_size=40))
@example(moves=KILLED)
@settings(deadline=None, max_examples=100 if LONG else 15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_is_trimmed_unread_or_read_twice_wherever_spark_is_killed(
    tmp_path_factory: pytest.TempPathFactory, moves: list[str]
) -> None:
    taken, count = played(tmp_path_factory.mktemp("engine") / "store.rax", moves)
    assert taken == list(range(count))


def test_the_control_a_group_moved_when_a_batch_is_planned_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ahead of what is done"):
        played(tmp_path / "a.rax", KILLED, TooEarly)


# -- the whole of Spark, killed beside a writer -------------------------------------------

WRITER = """
import os, sys, time
import raxlog
path, stop = sys.argv[1:]
count = 0
with raxlog.open(path) as store:
    while not os.path.exists(stop):
        store.stream("orders").extend([{"n": n} for n in range(count, count + 10)])
        count += 10
        time.sleep(0.02)
print(count)
"""

QUERY = """
import sys, time
from pyspark.sql import SparkSession
import raxlog.spark
from raxlog.tools.spark.source import RaxlogDataSource
from raxlog.tools.spark.stream_reader import FollowingReader

class TooEarly(FollowingReader):
    def latestOffset(self, start=None, limit=None):
        end = super().latestOffset(start, limit)
        super().commit(end)
        return end
    def commit(self, end):
        pass

class Faulty(RaxlogDataSource):
    @classmethod
    def name(cls):
        return "faulty"
    def streamReader(self, schema):
        reader = super().streamReader(schema)
        reader.__class__ = TooEarly
        return reader

path, folder, source, trigger = sys.argv[1:]
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
         .config("spark.driver.memory", "1g").config("spark.driver.bindAddress", "127.0.0.1")
         .config("spark.python.authenticate.socketTimeout", "120s").getOrCreate())
raxlog.spark.register(spark)
spark.dataSource.register(Faulty)
frame = (spark.readStream.format(source).schema("n int").option("path", path).option("stream", "orders")
         .options(startingOffsets="earliest", group="g", maxOffsetsPerTrigger="5000").load())
query = (frame.writeStream.format("raxlog").option("path", path).option("stream", "copy")
         .option("rowsPerCommit", "1000").option("checkpointLocation", folder).trigger(**eval(trigger)).start())
print("started", flush=True)
seen = -1
while not query.awaitTermination(0.02):
    if (query.lastProgress or {"batchId": seen})["batchId"] != seen:
        seen = query.lastProgress["batchId"]
        print(seen, flush=True)
"""


class Spark:
    """A process with the query in it, and in its process group the whole of Spark."""

    def __init__(self, path: Path, folder: Path, source: str = "raxlog", **trigger: Any) -> None:
        self._errors = folder.with_name(f"{folder.name}.errors").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-c", QUERY, str(path), str(folder), source, repr(trigger)],
            env=os.environ | environment(), stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True,
        )

    def line(self) -> bytes:
        """The next line: "started", then each batch that is done. b"" at its end."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def error(self) -> str:
        """Wait for its end; what it says of an error, "" for none."""
        while self.line():
            pass
        status = self._process.wait()
        self._errors.seek(0)
        return self._errors.read() if status else ""

    def kill(self) -> None:
        """Kill all of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def copying(spark: Any, path: Path, folder: Path) -> Any:
    """The same query in a Spark that is not killed, over what is there now."""
    following = frame(spark, path, stream="orders", maxOffsetsPerTrigger="5000")
    writer = following.writeStream.format("raxlog").options(path=str(path), stream="copy", rowsPerCommit="1000")
    return writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()


@contextlib.contextmanager
def writing(path: Path, folder: Path) -> Iterator[Callable[[], int]]:
    """A process that appends to a stream with Retention(acked=True); to be called once, for how many there are."""
    with raxlog.open(path) as store:
        store.stream("orders", node_max_entries=20).configure(retention=Retention(acked=True))
        store.stream("orders").create_group("g")
    stop = folder / "stop"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(stop)], stdout=subprocess.PIPE)

    def count() -> int:
        stop.touch()
        return int(writer.communicate()[0])

    try:
        yield count
    finally:
        writer.kill()
        writer.wait()


@pytest.mark.storm
@pytest.mark.timeout(120 * KILLS + 600)
def test_a_query_killed_beside_a_writer_loses_nothing_to_retention_and_doubles_nothing(
    spark: Any, tmp_path: Path
) -> None:
    path, folder = tmp_path / "store.rax", tmp_path / "checkpoint"
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    dice = random.Random(seed)
    with writing(path, tmp_path) as count:
        for _ in range(KILLS):
            query = Spark(path, folder, processingTime="0 seconds")
            try:
                lines = [query.line() for _ in range(dice.choice([1, 2, 2, 3]))]
                time.sleep(dice.uniform(0.0, 1.0))
            finally:
                query.kill()
            assert all(lines), query.error()
        total = count()
    for _ in range(2):  # the first ends the batch that was interrupted, if there is one, too
        copying(spark, path, folder).awaitTermination()

    with raxlog.open(path) as store:
        orders = store.stream("orders")
        assert [int(entry.fields["n"]) for entry in store.stream("copy").range()] == list(range(total))
        assert (orders.group("g").lag, orders.info().entries_added) == (0, total)
        orders.append({"n": total})
        store.maintain()
        assert orders.info().length <= 20
        print(f"{KILLS} kills, {total} entries")


@pytest.mark.storm
def test_the_control_retention_beside_a_group_moved_too_early_loses_data(tmp_path: Path) -> None:
    path = tmp_path / "store.rax"
    with writing(path, tmp_path):
        query = Spark(path, tmp_path / "checkpoint", "faulty", processingTime="0 seconds")
        try:
            error = query.error()
        finally:
            query.kill()
    assert "were not read" in error or "trimmed while it was read" in error
