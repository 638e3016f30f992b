"""Spark: this source beside Spark's own ceiling, a reader of tuples, and Parquet read natively.

    ceiling    one record batch, built once, yielded again and again: what Spark itself takes
    raxlog     the columns asked for, decoded from a snapshot; and all fields as a map
    tuples     a reader that yields Python tuples, as the Data Source API's first example does
    parquet    Spark's own reader, over the same rows: what repeated analyses should be given

Count and a sum over one column, warm, in one local session of two threads. Beside them what
needs no Spark: planning a snapshot of 100,000 nodes. (Decoding alone is measured in arrow.py.)
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import raxlog
from raxlog.storage.errors import NotInstalled
from raxlog.stream.id import StreamID
from raxlog.tools.spark import plan, scan
from raxlog.tools.spark.installed import require, require_java
from raxlog.tools.spark.options import parse
from raxlog.tools.spark.place import find, opened

from .peers import Row
from .rounds import Figure, contest

ROWS = 2_000_000
PARTITIONS = 8
BATCH = 32_768
ONE = "seq bigint"
FOUR = "id_ms bigint, id_seq bigint, temp double, seq bigint"
NODES = 100_000
PLANNED = 48  # partitions of 100,000 nodes


def spark_scans(folder: Path, rounds: int, readings: list[Row]) -> list[Figure]:
    """Count and sum over 2,000,000 rows, each contender warm, in turns. Needs Java and raxlog[spark]."""
    try:
        require()
        require_java()
    except NotInstalled as error:
        print(error, file=sys.stderr)
        return []
    path = _snapshot(folder, readings)
    spark = _session(folder)
    try:
        frames = _frames(spark, folder, path)
        figures = []
        for columns, among in frames.items():
            for query, what in (("count(*)", "count"), ("sum(seq)", "sum of one")):
                contenders: dict[str, Callable[[], float]] = {}
                spent: dict[str, list[float]] = {name: [] for name in among}
                for name, frame in among.items():
                    in_map = query.replace("seq", "cast(cast(fields['seq'] as string) as bigint)")
                    contenders[name] = _rate(frame, in_map if "map" in name else query, spent[name])
                    contenders[name]()  # warm: classes loaded, workers started
                title = f"spark, {columns}, {what}, 2,000,000 rows"
                figures += contest(f"{title}, rows a second", contenders, rounds)
                first = next(iter(spent.values()))[1:]
                figures += [
                    Figure(f"{title}, processor time", name, "s", times[1:],
                           [base / time for base, time in zip(first, times[1:], strict=True)])
                    for name, times in spent.items()
                ]
        return figures
    finally:
        spark.stop()


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
    from raxlog.spark import register  # noqa: PLC0415

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
    register(spark)
    return spark


def _frames(spark: Any, folder: Path, path: Path) -> dict[str, dict[str, Any]]:
    from . import spark_peers  # noqa: PLC0415 - imports pyspark

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
    return {
        "one column": {
            "one prebuilt batch": beside("ceiling", ONE),
            "raxlog": read(ONE),
            "python tuples": beside("tuples", ONE),
            "parquet, natively": parquet.select("seq"),
        },
        "four columns": {
            "one prebuilt batch": beside("ceiling", FOUR),
            "raxlog": read(FOUR),
            "raxlog, fields as a map": spark.read.format("raxlog").options(**given).load(),
            "python tuples": beside("tuples", FOUR),
            "parquet, natively": parquet,
        },
    }


def planning(folder: Path) -> list[Figure]:
    """Planning 48 partitions of a snapshot of 100,000 nodes: time, cold and warm, and pages touched."""
    with raxlog.open(folder / "plan.rax", durability="relaxed") as store:
        stream = store.stream("events", node_max_entries=10)
        for at in range(0, NODES * 10, 10_000):
            stream.extend([{"n": n} for n in range(at, at + 10_000)],
                          ids=[StreamID(1_700_000_000_000 + n * 7 + n % 5, 0) for n in range(at, at + 10_000)])
        store.snapshot(folder / "plan.snapshot")
    path = str(folder / "plan.snapshot")
    options = parse({"path": path, "stream": "events", "minPartitions": str(PLANNED)})

    def planned() -> float:
        began = time.perf_counter()
        parts = scan.planned(find(path), options, plan.Window())
        assert len(parts) == PLANNED
        return (time.perf_counter() - began) * 1000

    def cold() -> float:
        data = folder / "plan.snapshot" / "000001" / "data.mdb"
        descriptor = os.open(data, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
        return planned()

    title = "planning 48 partitions of 100,000 nodes"
    return [
        Figure(title, "snapshot opened anew", "ms", [planned() for _ in range(9)], [1.0] * 9),
        Figure(title, "and none of it in memory", "ms", [cold() for _ in range(9)], [1.0] * 9),
        Figure(title, "pages touched", "pages", list(_pages(path, planned)), [1.0]),
    ]


def _pages(path: str, planned: Callable[[], float]) -> Iterator[float]:
    """How many pages of the data file one plan looks at, by the accessed bits of the page table (Linux)."""
    with opened(path) as source:
        with source.env.read() as txn:
            for _ in txn.cursor():  # every page is mapped now, so that no fault maps its neighbours too
                pass
        Path("/proc/self/clear_refs").write_text("1")
        planned()
        maps = Path("/proc/self/smaps").read_text()
        found = re.search(r"plan\.snapshot/\S*data\.mdb\n(?:.*\n)*?Referenced:\s+(\d+) kB", maps)
        assert found is not None
        yield int(found[1]) / 4
