"""How the tests scan with Spark, and kill one, and what they scan: a stream of very many entries."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import raxlog

# That are left of the history.
ENTRIES = 1_000_000 if os.environ.get("RAXLOG_LONG") else 500_000
# A Java of a minute's life: not compiled twice. CI adds an archive of Spark's classes.
JVM = os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

VALID = [  # strange enough to be taken for SQL that is not closed
    """select /* it's ( */ 5 n -- don't ("
    from `entries` where item <> 'it''s \\' (' and item <> "a""b\\"" and item <> r'\' and item <> R"(" and "'" <> '"'
    and `item` <> ')' limit 1""",
    "with a as (select 1 `b``(` from ENTRIES limit 1), c as (select /* a /* ' */ ' */ 2 from a) table c;",
]


def environment() -> dict[str, str]:
    """What a process that starts a Spark has to have in its environment."""
    # Tasks run in Pythons of Spark's own, which have to find this one's packages, and raxlog.
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": spark_home(),
    }


@functools.cache
def spark_home() -> str:
    """Spark's folder without its archive of pyspark, from which every Python it starts would compile all anew.

    That takes a second of each, and of the ten that Spark gives it. What the archive holds is installed, too.
    """
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        return ""
    folder = Path(tempfile.mkdtemp(prefix="spark-home-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in ("bin", "jars"):
        (folder / name).symlink_to(Path(found.origin).with_name(name))
    return str(folder)


def reading(spark: Any, path: Path | str, stream: str = "orders", **options: Any) -> Any:
    """A reader of a stream; options by Spark's names."""
    given = {name: str(value) for name, value in options.items()}
    return spark.read.format("raxlog").options(path=str(path), stream=stream, **given)


def refusal(action: Callable[[], object]) -> str:
    """What Spark says where it refuses to do something: our own message must be in it."""
    from pyspark.errors import PySparkException  # noqa: PLC0415

    with pytest.raises(PySparkException) as caught:
        action()
    return str(caught.value)


def killed(program: str, command: list[str], moment: Callable[[], bool]) -> None:
    """Start a program that prints a line when Spark is up, wait for the moment, and kill it: driver, JVM, Pythons."""
    child = subprocess.Popen([sys.executable, "-c", program, *command], env=os.environ | environment(),
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    assert child.stdout is not None
    child.stdout.readline()
    while child.poll() is None and not moment():
        time.sleep(0.002)
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    doomed = [child.pid]
    for pid in doomed:
        doomed += [found for found, parent in parents.items() if parent == pid]
    for pid in reversed(doomed):  # the Pythons first: they would go on to the end of a commit
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    child.wait()


def build(orders: raxlog.Stream) -> None:
    """Fill a stream with ENTRIES and some more, and delete those."""
    dice = random.Random(20261121)
    doomed = []
    ms = 1_700_000_000_000
    more = ENTRIES * 11 // 10
    sizes = ((None, more * 4 // 11), ("zstd", more * 4 // 11), ("compact", more * 3 // 11))
    number = 0
    for compression, many in sizes:
        for _ in range(many // 10_000):
            entries, ids = [], []
            for seq in range(10_000):
                # A burst shares its millisecond, otherwise each entry is some time after the last.
                ms += 0 if number % 20_000 < 5_000 else dice.randrange(3)
                entries.append(_fields(number))
                ids.append((ms, number))
                number += 1
                if seq % 40 == 17 or 3_000 < seq < 3_120:
                    doomed.append(ids[-1])
            orders.extend(entries, ids=[raxlog.StreamID(*sid) for sid in ids])
            if compression is not None:
                orders.configure(compression=compression)
    for at in range(0, len(doomed), 5_000):
        orders.delete(*(raxlog.StreamID(*sid) for sid in doomed[at : at + 5_000]))
    orders.trim(maxlen=ENTRIES)


def _fields(number: int) -> dict[str, Any] | list[tuple[str, Any]]:
    kind = number % 50
    if kind == 7:
        return {"item": b"\xff\x00raw", "weight": number / 7}
    if kind == 8:
        return [("item", "first"), ("qty", number % 90), ("item", "last wins")]
    if kind == 9:
        return {"qty": "many", "note": "x" * (number % 300)}
    return {"item": f"item-{number % 997}", "qty": number % 90, "price": f"{number % 1000}.{number % 10}"}
