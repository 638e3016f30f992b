"""A real Spark for the tests, and a history of very many entries to read with it.

A test file asks for it as its plugin. Fixtures: ``spark`` (one local session for all test files
of a process), ``history`` (built once a run, by the first process that needs it).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import raxlog
from spark_scans import build, environment


@pytest.fixture(scope="session")
def spark(require: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A local Spark of two threads that knows format("raxlog"); its temporary files are the run's."""
    require("java")
    import raxlog.spark  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("spark")
    patched = pytest.MonkeyPatch()
    # Snapshots of live stores go to the temporary folder of Spark's processes, which is to be the run's.
    for name, value in (environment() | {"TMPDIR": str(folder)}).items():
        patched.setenv(name, value)
    session = (
        SparkSession.builder.master("local[2,2]").appName("raxlog tests")  # a task that fails is tried again
        .config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        # A Python worker that takes longer to start, on a machine with much else to do, is no failure.
        .config("spark.python.authenticate.socketTimeout", "120s")
        .config("spark.driver.memory", "1g").config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC").config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .getOrCreate()
    )
    patched.undo()  # they have been inherited
    raxlog.spark.register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A snapshot with a stream "orders" of ENTRIES entries, after deletions and trims.

    Nodes raw and compressed, of one page and of four; fields that all entries share and fields
    that few have; IDs close together and far apart. Built by the first process that needs it.
    """
    folder = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        folder = folder.parent
    made = folder / "history"
    with (folder / "history.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            with raxlog.open(folder / "history.rax", durability="relaxed") as store:
                build(store.stream("orders"))
                store.stream("few").extend([{"n": number} for number in range(10)])
                store.snapshot(made)
    return made
