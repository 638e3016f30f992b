"""Spark: this source beside Spark's own ceiling, a reader of tuples, and Parquet read natively.

    ceiling    one record batch, built once, yielded again and again: what Spark itself takes
    raxlog     the columns asked for, decoded from a snapshot
    tuples     a reader of the same snapshot by range(), which yields Python tuples of the same columns, as
               the Data Source API's first example does
    parquet    Spark's own reader, over the same rows: what repeated analyses should be given

Count and a sum over one column, where one column is asked for, four, or all fields as a map; warm, in
one local session of two threads. Beside them what needs no Spark: planning a snapshot of 100,000
nodes. (Decoding alone is measured in arrow.py.)
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import raxlog
from raxlog.storage.errors import NotInstalled
from raxlog.stream.id import StreamID
from raxlog.tools.spark import plan, scan
from raxlog.tools.spark.installed import require, require_java
from raxlog.tools.spark.options import Options, parse
from raxlog.tools.spark.place import find, opened

from .peers import Row
from .rounds import Figure, contest

ROWS = 2_000_000
PARTITIONS = 8
BATCH = 32_768
ONE = "seq bigint"
FOUR = "id_ms bigint, id_seq bigint, temp double, seq bigint"
MAP = "id_ms bigint, id_seq bigint, fields map<string,binary>"  # what a load without a schema has
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
                    contenders[name] = _rate(frame, in_map if "map" in columns else query, spent[name])
                    contenders[name]()  # warm: classes loaded, workers started
                title = f"spark, {columns}, {what}, 2,000,000 rows"
                rates = contest(f"{title}, rows a second", contenders, rounds)
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
        spark.stop()


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
    frames = {
        columns: {
            "one prebuilt batch": beside("ceiling", schema), "raxlog": read(schema),
            "python tuples": beside("tuples", schema),
        } for columns, schema in (("one column", ONE), ("four columns", FOUR), ("all fields as a map", MAP))
    }
    frames["one column"]["parquet, natively"] = parquet.select("seq")
    frames["four columns"]["parquet, natively"] = parquet
    return frames


def planning(folder: Path) -> list[Figure]:
    """Planning 48 partitions of a snapshot of 100,000 nodes: time, cold and warm, and pages touched."""
    with raxlog.open(folder / "plan.rax", durability="relaxed") as store:
        stream = store.stream("events", node_max_entries=10)
        for at in range(0, NODES * 10, 10_000):
            stream.extend([{"n": n} for n in range(at, at + 10_000)],
                          ids=[StreamID(1_700_000_000_000 + n * 7 + n % 5, 0) for n in range(at, at + 10_000)])
        store.snapshot(folder / "plan.snapshot")
    path = folder / "plan.snapshot"
    given = {"path": str(path), "stream": "events", "minPartitions": str(PLANNED)}
    figures = []
    for what, options in (
        ("the whole stream", parse(given)),
        ("all but ten entries at either end", parse(given | {
            "startingTimestamp": "1700000000070", "endingTimestamp": "1700006999930",
        })),
    ):
        title = f"planning 48 partitions of 100,000 nodes, {what}"
        plans = partial(_planned, path, options)
        figures += [
            Figure(title, "snapshot opened anew", "ms", [plans() for _ in range(9)]),
            Figure(title, "and none of it in memory", "ms", [_cold(path, plans) for _ in range(9)]),
            Figure(title, "pages of data touched", "pages", [_pages(str(path), plans)]),
        ]
    parts = scan.planned(find(str(path)), parse(given), plan.Window())
    title = "planning 48 partitions of 100,000 nodes, what is left to each task"
    figures += [
        Figure(title, "finding its entries", "ms", [_looked_up(path, part) for part in parts]),
        Figure(title, "pages of data touched", "pages", [_pages(str(path), partial(_looked_up, path, parts[20]))]),
    ]
    return figures


def _planned(path: Path, options: Options) -> float:
    """Plan once; milliseconds."""
    began = time.perf_counter()
    parts = scan.planned(find(str(path)), options, plan.Window.of(options))
    assert len(parts) == PLANNED
    return (time.perf_counter() - began) * 1000


def _looked_up(path: Path, part: plan.Part) -> float:
    """Find the IDs of a part's entries, as its task does; milliseconds."""
    began = time.perf_counter()
    with opened(str(path)) as source:
        for piece in part.pieces:
            plan.resolved(source, piece)
    return (time.perf_counter() - began) * 1000


def _cold(path: Path, plans: Callable[[], float]) -> float:
    """The same with no file of the snapshot in the page cache."""
    files = [file for file in path.rglob("*") if file.is_file() and file.stat().st_size]
    until = time.monotonic() + 10
    while sum(_dropped(file) for file in files):
        # A page that is still on its way into the cache is not dropped.
        assert time.monotonic() < until, f"{path} stays in memory"
        time.sleep(0.01)
    return plans()


def _dropped(file: Path) -> int:
    """Ask for a file to be dropped from the page cache; how many pages of it are still there (Linux)."""
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    with file.open("rb") as opened_file, mmap.mmap(opened_file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        pages = -(-len(mapped) // mmap.PAGESIZE)
        held = (ctypes.c_ubyte * pages)()
        start = ctypes.c_char.from_buffer(mapped)
        failed = ctypes.CDLL(None).mincore(ctypes.byref(start), ctypes.c_size_t(len(mapped)), held)
        del start  # else the map cannot be closed
    assert not failed
    return sum(byte & 1 for byte in held)


def _pages(path: str, work: Callable[[], object]) -> float:
    """How many pages of the data file a piece of work looks at, by the accessed bits of the page table (Linux)."""
    with opened(path) as source:
        with source.env.read() as txn:
            for _ in txn.cursor():  # every page is mapped now, so that no fault maps its neighbours too
                pass
        Path("/proc/self/clear_refs").write_text("1")
        work()
        maps = Path("/proc/self/smaps").read_text()
        found = re.search(r"plan\.snapshot/\S*data\.mdb\n(?:.*\n)*?Referenced:\s+(\d+) kB", maps)
        assert found is not None
        return int(found[1]) / 4
