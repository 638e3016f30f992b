"""Spark: this source beside Spark's own ceiling, a reader of tuples, and Parquet read natively.

    ceiling    one record batch, built once, yielded again and again: what Spark itself takes
    raxlog     the columns asked for, decoded from a snapshot
    tuples     a reader of the same snapshot by range(), which yields Python tuples of the same columns, as
               the Data Source API's first example does
    parquet    Spark's own reader, over the same rows: what repeated analyses should be given

Count and a sum over one column, where one column is asked for, four, or all fields as a map; warm, in
one local session of two threads. (Decoding alone is measured in arrow.py.)
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import raxlog
from raxlog.storage.errors import NotInstalled
from raxlog.tools.spark.requirements import require, require_java

from ..peers import Row, rows
from ..rounds import Figure, Rounds

ROWS = 2_000_000
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
    session = _session(folder)
    try:
        frames = _frames(session, folder, path)
        figures = []
        for columns, among in frames.items():
            for query, what in (("count(*)", "count"), ("sum(seq)", "sum of one")):
                contenders: dict[str, Callable[[], float]] = {}
                spent: dict[str, list[float]] = {name: [] for name in among}
                for name, frame in among.items():
                    in_map = query.replace("seq", "cast(cast(fields['seq'] as string) as bigint)")
                    contenders[name] = _rate(frame, in_map if "map" in columns else query, spent[name])
                    contenders[name]()  # warm: classes loaded, workers started
                title = f"spark, {columns}, {what}, 2,000,000 rows"
                rates = rounds.contest(f"{title}, rows a second", contenders)
                figures += rates
                first = next(iter(spent.values()))[1:]
                figures += [
                    Figure(f"{title}, processor time", name, "s", times[1:],
                           [base / time for base, time in zip(first, times[1:], strict=True)])
                    for name, times in spent.items()
                ]
                figures += _beside_tuples(title, rates, spent)
        return figures
    finally:
        session.stop()


def _beside_tuples(title: str, rates: list[Figure], spent: dict[str, list[float]]) -> list[Figure]:
    """How many times a reader of tuples each contender is, round by round."""
    took = {figure.contender: figure.rates for figure in rates}
    figures = []
    for name in (name for name in took if name != "python tuples"):
        by_rate = [rate / slow for rate, slow in zip(took[name], took["python tuples"], strict=True)]
        by_time = [slow / time for time, slow in zip(spent[name][1:], spent["python tuples"][1:], strict=True)]
        figures.append(Figure(f"{title}, times python tuples", f"{name}, rate", "x", by_rate))
        figures.append(Figure(f"{title}, times python tuples", f"{name}, processor time", "x", by_time))
    return figures


def _rate(frame: Any, expression: str, spent: list[float]) -> Callable[[], float]:
    """Runs the query; its rows a second. ``spent`` gets the processor seconds, which others disturb less."""

    def run() -> float:
        used, began = _processor_seconds(), time.perf_counter()
        frame.selectExpr(expression).collect()  # a frame of its own: Spark keeps the stages of one it has run
        rate = ROWS / (time.perf_counter() - began)
        spent.append(_processor_seconds() - used)
        return rate

    return run


def _processor_seconds() -> float:
    """What this process's descendants have used: the JVM and the Pythons it has started (Linux)."""
    parents, ticks = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(stat[1])
                ticks[int(entry.name)] = sum(map(int, stat[11:15]))  # its own, and of children that have ended
    mine = {os.getpid()}
    while found := {pid for pid, parent in parents.items() if parent in mine and pid not in mine}:
        mine |= found
    return sum(ticks[pid] for pid in mine - {os.getpid()}) / os.sysconf("SC_CLK_TCK")


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
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

    from ...spark.source import RaxlogDataSource  # noqa: PLC0415 - imports pyspark

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYTHONPATH"] = os.pathsep.join(name for name in sys.path if name)
    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g").config("spark.log.level", "OFF")
        .config("spark.driver.bindAddress", "127.0.0.1").config("spark.local.dir", str(folder / "spark-local"))
        .config("spark.sql.shuffle.partitions", "2").getOrCreate()
    )
    spark.dataSource.register(RaxlogDataSource)
    return spark


def _frames(spark: Any, folder: Path, path: Path) -> dict[str, dict[str, Any]]:
    from .. import spark_peers  # noqa: PLC0415 - imports pyspark

    for source in (spark_peers.Ceiling, spark_peers.Tuples):
        spark.dataSource.register(source)
    given = {"path": str(path), "stream": "events", "minPartitions": str(PARTITIONS)}
    peers = {"path": str(path), "rows": str(ROWS), "partitions": str(PARTITIONS), "batch": str(BATCH)}

    def read(schema: str) -> Any:
        return spark.read.format("raxlog").options(**given).schema(schema).load()

    def beside(source: str, schema: str) -> Any:
        return spark.read.format(source).options(**peers).schema(schema).load()

    read(FOUR).write.parquet(str(folder / "spark.parquet"))
    parquet = spark.read.parquet(str(folder / "spark.parquet"))
    frames = {
        columns: {
            "one prebuilt batch": beside("ceiling", schema), "raxlog": read(schema),
            "python tuples": beside("tuples", schema),
        } for columns, schema in (("one column", ONE), ("four columns", FOUR), ("all fields as a map", MAP))
    }
    frames["one column"]["parquet, natively"] = parquet.select("seq")
    frames["four columns"]["parquet, natively"] = parquet
    return frames
