"""A standalone Spark cluster: shards from a URL, a wheel, and an executor killed in the middle.

    this process            HTTP server with the shards
    master, two workers     folders and caches of their own; the Python of a fresh environment
    driver                  says format("raxlog") and registers nothing
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyspark
import pytest
import raxlog
from loopback import free_port

pytestmark = pytest.mark.spark

ROOT = Path(raxlog.__file__).resolve().parent
ENTRIES = 30_000

DRIVER = """
import json, sys
from pyspark.sql import SparkSession
master, url = sys.argv[1:]
spark = (SparkSession.builder.master(master).config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
         .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
         .config("spark.driver.memory", "512m").config("spark.executor.memory", "512m")
         .config("spark.cores.max", "2").config("spark.executor.cores", "1")
         # No task starts before both workers are there, so both have a part in the scan.
         .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
         .config("spark.scheduler.maxRegisteredResourcesWaitingTime", "120s").getOrCreate())
def scan(**options):
    reader = spark.read.format("raxlog").option("path", url).option("stream", "orders").options(**options)
    return reader.schema("id_ms bigint, n bigint").load()
row = scan(minPartitions="6").selectExpr("count(*)", "sum(n)", "count(distinct n)").collect()[0]
narrow = scan(startingOffsets="101", endingOffsets="150").selectExpr("count(*)", "min(n)", "max(n)").collect()[0]
groups = spark.read.format("raxlog").option("path", url).option("dataset", "groups").load().collect()
print(json.dumps([list(row), list(narrow), [row.group for row in groups]]))
"""


@pytest.fixture(scope="module")
def fresh_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with a wheel of raxlog; what it needs is this one's."""
    folder = tmp_path_factory.mktemp("wheel")
    kept = shutil.ignore_patterns(".*", "build", "dist", "*.so", "__pycache__", "*.egg-info", "tests")
    shutil.copytree(ROOT, folder / "copy", ignore=kept)
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(folder / "copy")],
                   check=True, env=os.environ | {"RAXLOG_NO_COMPILE": "1"})
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    packages = next((folder / "venv" / "lib").glob("python*")) / "site-packages"
    wheel = next(folder.glob("*.whl"))
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target",
                    str(packages), str(wheel)], check=True)
    # Only this line's folder is added, not what its own .pth files lead to: an editable raxlog stays unseen.
    (packages / "needed.pth").write_text(str(Path(pyspark.__file__).parent.parent) + "\n")
    return python


def environment(python: Path, temporary: Path) -> dict[str, str]:
    """What the cluster's processes have in their environment: no path to this checkout."""
    temporary.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK", "PYSPARK"))}
    return kept | {
        "SPARK_HOME": str(Path(pyspark.__file__).parent), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(python),
        "TMPDIR": str(temporary), "SPARK_NO_DAEMONIZE": "1", "SPARK_DAEMON_MEMORY": "256m",
    }


@contextlib.contextmanager
def running(*command: str, folder: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the cluster; it and its children do not outlive the block."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            yield child
        finally:
            for pid in [*executors_of(child.pid), child.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            child.wait()


def executors_of(worker: int) -> list[int]:
    """The executors that a worker has started."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError):
            if entry.name.isdigit() and b"CoarseGrainedExecutorBackend" in (entry / "cmdline").read_bytes():
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == worker:
                    found.append(int(entry.name))
    return found


@contextlib.contextmanager
def served(folder: Path, asked: Callable[[str], None]) -> Iterator[str]:
    """The URL of a folder; ``asked`` hears of each file that is asked for."""

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            asked(self.path)
            super().do_GET()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()


def until(condition: Callable[[], object], what: str, seconds: float = 120.0) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come about in {seconds} s"
        time.sleep(0.1)


def test_a_cluster_reads_shards_from_a_url_though_an_executor_is_killed_in_the_middle(
    require: Callable[[str], str], fresh_python: Path, tmp_path: Path
) -> None:
    require("java")
    with raxlog.open(tmp_path / "store.rax", durability="relaxed") as store:
        orders = store.stream("orders")
        orders.extend([{"n": n} for n in range(ENTRIES)], ids=[f"{1 + n // 10}-{n}" for n in range(ENTRIES)])
        orders.create_group("billing", "0")
        store.snapshot(tmp_path / "served" / "shards", shards=8)
    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    fetched: list[str] = []
    killed: list[int] = []
    workers: list[int] = []

    def asked(path: str) -> None:
        if not path.endswith(".shard"):
            return
        fetched.append(path)
        if len(fetched) >= 4 and not killed:  # in the middle of the first scan, one that has had a part in it
            place = next((place for place in (0, 1) if cached(place)), None)
            if place is not None:
                killed.append(executors_of(workers[place])[0])
                os.kill(killed[0], signal.SIGKILL)

    def cached(place: int) -> list[str]:
        folder = tmp_path / ("one", "two")[place] / "tmp"
        return sorted(path.name for path in folder.glob("raxlog-shards-*/*.shard"))

    with contextlib.ExitStack() as cluster:
        cluster.enter_context(running(
            spark_class, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port),
            "--webui-port", "0", folder=tmp_path / "master", env=environment(fresh_python, tmp_path / "master" / "tmp"),
        ))
        log = tmp_path / "master" / "log"
        until(lambda: b"New state: ALIVE" in log.read_bytes(), "the master")
        for name in ("one", "two"):
            worker = cluster.enter_context(running(
                spark_class, "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0",
                "--cores", "1", "--memory", "600m", "--work-dir", str(tmp_path / name / "work"), master,
                folder=tmp_path / name, env=environment(fresh_python, tmp_path / name / "tmp"),
            ))
            workers.append(worker.pid)
        until(lambda: log.read_bytes().count(b"Registering worker") == 2, "both workers")
        url = cluster.enter_context(served(tmp_path / "served", asked))
        driver = subprocess.run(
            [str(fresh_python), "-c", DRIVER, master, f"{url}shards"], cwd=tmp_path, capture_output=True, timeout=300,
            env=environment(fresh_python, tmp_path / "driver"), check=False,
        )

    assert driver.returncode == 0, driver.stderr.decode()[-3000:]
    whole, narrow, groups = json.loads(driver.stdout)
    assert whole == [ENTRIES, sum(range(ENTRIES)), ENTRIES]
    assert narrow == [500, 1000, 1499]
    assert groups == ["billing"]
    assert killed
    assert cached(0)  # each worker has fetched what it needed, into its own cache
    assert cached(1)
    assert not list((tmp_path / "driver").glob("raxlog-shards-*"))  # and the driver none of it
