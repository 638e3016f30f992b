"""Spark: this source beside Spark's own ceiling, and Parquet read and written natively.

    ceiling    one record batch, built once, yielded again and again: what Spark itself takes
    raxlog     the columns asked for, decoded from a snapshot
    parquet    Spark's own reader, over the same rows: what repeated analyses should be given

Count and a sum over one column, where one column is asked for, four, or all fields as a map; then a
million rows written. Warm, in one local session of two threads. (Decoding alone is measured in arrow.py.)
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import raxlog
from raxlog.storage.errors import NotInstalled
from raxlog.tools.spark.requirements import require, require_java
from raxlog.tools.spark.session import session

from ..peers import Row, rows
from ..rounds import Figure, Rounds

ROWS = 2_000_000
WRITTEN = 1_000_000
PARTITIONS = 8
BATCH = 32_768
ONE = "seq bigint"
FOUR = "id_ms bigint, id_seq bigint, temp double, seq bigint"
MAP = "id_ms bigint, id_seq bigint, fields map<string,binary>"  # what a load without a schema has


def spark(rounds: Rounds) -> list[Figure]:
    """Count and sum over 2,000,000 rows, each contender warm, in turns. Needs Java and raxlog[spark]."""
    try:
        require()
        require_java()
    except NotInstalled as error:
        print(error, file=sys.stderr)
        return []
    folder = rounds.folder
    path = _snapshot(folder, rows(min(rounds.entries, ROWS), 0))
    running = _session(folder)
    try:
        frames = _frames(running, folder, path)
        figures = []
        for columns, among in frames.items():
            for query, what in (("count(*)", "count"), ("sum(seq)", "sum of one")):
                in_map = query.replace("seq", "cast(cast(fields['seq'] as string) as bigint)")
                contenders = {name: partial(_rate, frame, in_map if "map" in columns else query)
                              for name, frame in among.items()}
                for run in contenders.values():
                    run()  # warm: classes loaded, workers started
                figures += rounds.contest(f"spark, {columns}, {what}, 2,000,000 rows, rows a second", contenders)
        return figures + _written(rounds, running, folder)
    finally:
        running.stop()


def _written(rounds: Rounds, spark: Any, folder: Path) -> list[Figure]:
    """A million rows of four columns, as a file of Parquet and as entries of a new stream each time."""
    made = spark.range(WRITTEN).selectExpr("id seq", "concat('device-', id % 1000) sensor", "id / 8 temp",
                                           "timestamp_millis(id) at").repartition(2).cache()
    made.count()
    names = count()

    def write(kind: str) -> float:
        path, began = str(folder / f"written-{next(names)}"), time.perf_counter()
        made.write.format(kind).mode("append").option("path", path).option("stream", "s").save()
        took = time.perf_counter() - began
        shutil.rmtree(path)
        return WRITTEN / took

    write("raxlog"), write("parquet")
    return rounds.contest("spark, 1,000,000 rows written, rows a second",
                          {"parquet, natively": partial(write, "parquet"), "raxlog": partial(write, "raxlog")})


def _rate(frame: Any, expression: str) -> float:
    """Runs the query; its rows a second."""
    began = time.perf_counter()
    frame.selectExpr(expression).collect()  # a frame of its own: Spark keeps the stages of one it has run
    return ROWS / (time.perf_counter() - began)


def _snapshot(folder: Path, readings: list[Row]) -> Path:
    path = folder / "spark.snapshot"
    with raxlog.open(folder / "spark.rax", durability="relaxed") as store:
        stream = store.stream("events")
        for at in range(0, ROWS, 10_000):
            place = at % len(readings)
            stream.extend((readings[place:] + readings)[:10_000])
        store.snapshot(path)
    return path


def _session(folder: Path) -> Any:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYTHONPATH"] = os.pathsep.join(name for name in sys.path if name)
    return session("local[2]", {
        "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.memory": "2g",
        "spark.log.level": "OFF", "spark.driver.bindAddress": "127.0.0.1", "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(folder / "spark-local"),
    })  # fmt: skip


def _frames(spark: Any, folder: Path, path: Path) -> dict[str, dict[str, Any]]:
    from ..spark_ceiling import Ceiling  # noqa: PLC0415 - imports pyspark

    spark.dataSource.register(Ceiling)
    given = {"path": str(path), "stream": "events", "minPartitions": str(PARTITIONS)}
    peers = {"path": str(path), "rows": str(ROWS), "partitions": str(PARTITIONS), "batch": str(BATCH)}

    def read(schema: str) -> Any:
        return spark.read.format("raxlog").options(**given).schema(schema).load()

    def ceiling(schema: str) -> Any:
        return spark.read.format("ceiling").options(**peers).schema(schema).load()

    read(FOUR).write.parquet(str(folder / "spark.parquet"))
    parquet = spark.read.parquet(str(folder / "spark.parquet"))
    frames = {
        columns: {"one prebuilt batch": ceiling(schema), "raxlog": read(schema)}
        for columns, schema in (("one column", ONE), ("four columns", FOUR), ("all fields as a map", MAP))
    }
    frames["one column"]["parquet, natively"] = parquet.select("seq")
    frames["four columns"]["parquet, natively"] = parquet
    return frames
