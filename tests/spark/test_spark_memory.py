"""What a scan of ten million entries costs: the memory of each task's Python, and the time."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import pytest
import raxlog
from spark_scans import reading

pytestmark = [pytest.mark.spark,
              pytest.mark.skipif(not os.environ.get("RAXLOG_LONG"), reason="measures; RAXLOG_LONG=1")]

pytest_plugins = ["spark_session"]

ENTRIES = 10_000_000
MOST = 300  # MB a task
TYPES = {"item": "string", "qty": "int", "price": "decimal(8,2)", "at": "timestamp"}


def entry(number: int) -> dict[str, Any]:
    return {"item": f"item-{number % 997}", "qty": number % 90, "price": f"{number % 100_000 / 100:.2f}",
            "at": 1_700_000_000_000 + number}


def workers() -> dict[Path, int]:
    """The processes in which Spark runs tasks, forked from its daemon, and the MB that each has had at most."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            parent = Path("/proc", (place / "stat").read_text().rpartition(")")[2].split()[1])
            if all(b"pyspark.daemon" in (one / "cmdline").read_bytes() for one in (place, parent)) and (
                    _is_below(parent, os.getpid())):
                found[place] = int((place / "status").read_text().partition("VmHWM:")[2].split()[0]) >> 10
    return found


def _is_below(place: Path, ancestor: int) -> bool:
    while place.name not in ("0", str(ancestor)):
        place = Path("/proc", (place / "stat").read_text().rpartition(")")[2].split()[1])
    return place.name != "0"


def test_a_task_takes_no_more_memory_however_long_the_stream_is(spark: Any, tmp_path: Path) -> None:
    began = time.perf_counter()
    with raxlog.open(tmp_path / "s.rax", durability="relaxed") as store:
        stream = store.stream("orders")
        stream.configure(schema=TYPES)
        for at in range(0, ENTRIES, 10_000):
            stream.extend([entry(number) for number in range(at, at + 10_000)])
        store.snapshot(tmp_path / "snapshot")
    print(f"{ENTRIES:,} entries written in {time.perf_counter() - began:.1f} s")
    rounds, rest = divmod(ENTRIES, 90)
    quantities = rounds * sum(range(90)) + sum(range(rest))
    dear = sum(number % 100_000 >= 90_000 for number in range(0, ENTRIES, 10_000)) * 10_000
    for schema, query, where, expected in (
        ("qty int", "count(*)", "true", ENTRIES), ("qty int", "sum(qty)", "true", quantities),
        ("item string, price decimal(8,2)", "count(item)", "price >= 900", dear),
        ("id_ms bigint, item string, qty int, price decimal(8,2), at timestamp", "count(at)", "true", ENTRIES),
    ):  # fmt: skip
        frame = reading(spark, tmp_path / "snapshot").schema(schema).load()
        for place in workers():
            with contextlib.suppress(OSError):  # it has ended
                (place / "clear_refs").write_text("5")  # the most that it has had is what it has now
        began = time.perf_counter()
        (found,), = frame.where(where).selectExpr(query).collect()
        seconds, taken = time.perf_counter() - began, workers()  # which wait for another task
        print(f"{query} where {where}, of {schema}: {seconds:.1f} s in {frame.rdd.getNumPartitions()} tasks; "
              f"Spark's Pythons had at most {sorted(taken.values())} MB")
        assert found == expected
        assert taken, "no process has been seen"
        assert max(taken.values()) <= MOST
