"""A standalone Spark cluster: raxlog from a wheel, shards from S3 and HTTP, and what goes wrong with them.

    this process            an HTTP server with the shards; beside it an S3-compatible one, killed at times
    master, two workers     folders and caches of their own; the Python of a fresh environment
    driver                  one for all tests; says format("raxlog") and registers nothing
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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyspark
import pytest
import raxlog
import s3fs
from loopback import free_port
from raxlog.recovery.snapshot import manifest
from s3_server import S3Server
from spark_scans import JVM, spark_home

pytestmark = pytest.mark.spark

ROOT = Path(raxlog.__file__).resolve().parent
LONG = bool(os.environ.get("RAXLOG_LONG"))
ENTRIES = 30_000
SHARDS = 8
TRIES = 2  # of a task

DRIVER = """
import json, os, sys, time
from concurrent.futures import ThreadPoolExecutor
from pyspark import TaskContext
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
         .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
         .config("spark.driver.memory", "512m").config("spark.executor.memory", "512m")
         .config("spark.executor.extraJavaOptions", os.environ["SPARK_SUBMIT_OPTS"])
         .config("spark.cores.max", "2").config("spark.executor.cores", "1")
         .config("spark.sql.shuffle.partitions", "2").config("spark.task.maxFailures", sys.argv[2])
         .config("spark.speculation", "true").config("spark.speculation.interval", "100ms")
         .config("spark.speculation.quantile", "0.5").config("spark.speculation.minTaskRuntime", "2s")
         # No task starts before both workers are there, so both have a part in the scan.
         .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
         .config("spark.scheduler.maxRegisteredResourcesWaitingTime", "120s").getOrCreate())
def scan(url, schema="id_ms bigint, n bigint", **options):
    reader = spark.read.format("raxlog").option("path", url).option("stream", "orders").options(**options)
    return (reader.schema(schema) if schema else reader).load()
def facts(frame):
    return list(frame.selectExpr("count(*)", "sum(n)", "count(distinct n)", "min(n)", "max(n)").collect()[0])
def slow_at_first(mark):
    def wait(rows):
        context = TaskContext.get()
        if context.partitionId() == 0 and context.attemptNumber() == 0:
            time.sleep(60)
        elif context.partitionId() == 0:
            open(mark, "w").close()
        return rows
    return wait
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    try:
        answer = [eval(json.loads(line)), None]
    except Exception as error:
        answer = [None, str(error)]
    print(json.dumps(answer), flush=True)
"""


class Cluster:
    """The master, two workers and the driver."""

    def __init__(self, folder: Path, workers: list[int], driver: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.workers = workers
        self._driver = driver

    def ask(self, expression: str) -> Any:
        """The value of an expression on the driver; an AssertionError with the driver's message if it fails."""
        value, error = self._asked(expression)
        assert error is None, error
        return value

    def refusal(self, expression: str) -> str:
        """The message with which it fails."""
        value, error = self._asked(expression)
        assert error is not None, value
        return str(error)

    def begin(self, expression: str) -> None:
        """Have the driver begin to evaluate an expression; ended() waits for it."""
        assert self._driver.stdin is not None
        self._driver.stdin.write(json.dumps(expression).encode() + b"\n")
        self._driver.stdin.flush()

    def ended(self) -> tuple[Any, str | None]:
        """The value and the message of what was begun."""
        assert self._driver.stdout is not None
        line = self._driver.stdout.readline()
        assert line, (self.folder / "driver" / "log").read_text()[-3000:]
        value, error = json.loads(line)
        return value, error

    def _asked(self, expression: str) -> tuple[Any, str | None]:
        self.begin(expression)
        return self.ended()

    def cached(self, place: int) -> list[str]:
        """The shards in the cache of a worker's own temporary folder."""
        folder = self.folder / ("one", "two")[place] / "tmp"
        return sorted(path.name for path in folder.glob("raxlog-shards-*/*.shard"))


@pytest.fixture(scope="module")
def fresh_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with a wheel of raxlog; what it needs is this one's."""
    folder = tmp_path_factory.mktemp("wheel")
    kept = shutil.ignore_patterns(".*", "build", "dist", "*.so", "__pycache__", "*.egg-info", "tests")
    shutil.copytree(ROOT, folder / "copy", ignore=kept)
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation",
                    "-w", str(folder), str(folder / "copy")],
                   check=True, env=os.environ | {"RAXLOG_NO_COMPILE": "1"})
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    packages = next((folder / "venv" / "lib").glob("python*")) / "site-packages"
    wheel = next(folder.glob("*.whl"))
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target",
                    str(packages), str(wheel)], check=True)
    # Only these lines' folders are added, not what their own .pth files lead to: an editable raxlog stays unseen.
    needed = dict.fromkeys(str(Path(module.__file__).parent.parent) for module in (s3fs, pyspark))
    (packages / "needed.pth").write_text("\n".join(needed) + "\n")
    return python


def environment(python: Path, temporary: Path) -> dict[str, str]:
    """What the cluster's processes have in their environment: no path to this checkout."""
    temporary.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK", "PYSPARK"))}
    return kept | {
        "SPARK_HOME": spark_home(), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(python),
        "TMPDIR": str(temporary), "SPARK_NO_DAEMONIZE": "1", "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": JVM, "SPARK_SUBMIT_OPTS": JVM,
    }


@contextlib.contextmanager
def running(*command: str, folder: Path, env: dict[str, str], **pipes: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the cluster; it and its children do not outlive the block."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(
            command, cwd=folder, env=env, **({"stdout": log, "stderr": log} | pipes), start_new_session=True,
        )
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
        time.sleep(0.02)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The server, running."""
    server = S3Server(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def cluster(require: Callable[[str], str], fresh_python: Path, s3: S3Server,
            tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster. Its processes have the credentials of the S3 server in their environment."""
    require("java")
    folder = tmp_path_factory.mktemp("cluster")
    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    with contextlib.ExitStack() as processes:
        processes.enter_context(running(
            spark_class, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port),
            "--webui-port", "0", folder=folder / "master", env=environment(fresh_python, folder / "master" / "tmp"),
        ))
        log = folder / "master" / "log"
        until(lambda: b"New state: ALIVE" in log.read_bytes(), "the master")
        workers = [
            processes.enter_context(running(
                spark_class, "org.apache.spark.deploy.worker.Worker", "--host", host, "--webui-port", "0",
                "--cores", "1", "--memory", "1g", "--work-dir", str(folder / name / "work"), master,
                folder=folder / name,
                env=environment(fresh_python, folder / name / "tmp") | s3.environment | {"SPARK_LOCAL_IP": host},
            )).pid
            for name, host in (("one", "127.0.0.1"), ("two", "127.0.0.2"))  # a second attempt needs another host
        ]
        driver = processes.enter_context(running(
            str(fresh_python), "-c", DRIVER, master, str(TRIES), folder=folder / "driver",
            env=environment(fresh_python, folder / "driver" / "tmp") | s3.environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ))
        until(lambda: log.read_bytes().count(b"Registering worker") == 2, "both workers")
        assert driver.stdout is not None
        assert driver.stdout.readline() == b'"ready"\n', (folder / "driver" / "log").read_text()[-3000:]
        yield Cluster(folder, workers, driver)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of shards, in a folder of this machine. Stream "orders": n from 0, ten with each millisecond from 1."""
    folder = tmp_path_factory.mktemp("data")
    with raxlog.open(folder / "store.rax", durability="relaxed") as store:
        orders = store.stream("orders")
        orders.extend([{"n": n, "text": os.urandom(8).hex()} for n in range(ENTRIES)],
                      ids=[f"{1 + n // 10}-{n}" for n in range(ENTRIES)])
        orders.create_group("billing", "0")
        store.snapshot(folder / "shards", shards=SHARDS)
    return folder / "shards"


ALL = [ENTRIES, sum(range(ENTRIES)), ENTRIES, 0, ENTRIES - 1]


def facts_of(first: int, last: int) -> list[int]:
    """What facts() says of the entries of these milliseconds."""
    numbers = range(10 * (first - 1), 10 * last)
    return [len(numbers), sum(numbers), len(numbers), numbers[0], numbers[-1]]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache that both workers share."""
    return tmp_path / "cache"


def check_fetched_once(s3: S3Server, folder: str, shards: Sequence[manifest.ShardFile], cache: Path) -> None:
    """All of these have been fetched from the bucket's folder, and none again unless a fetch was cut off.

    Of a task that takes long Spark begins a copy on the other worker, and kills the one that comes second: what
    it was about to fetch stays in the cache as a part. One that outlives its query still fetches from the folder
    of that query, when the cache of its test may have been removed: tests have folders of their own.
    """
    counts = Counter(name for name in s3.fetched(f"{folder}/") if name.endswith(".shard"))
    assert sorted(counts) == sorted(f"{folder}/{shard.path}" for shard in shards)
    for shard in shards:
        cut_off = len(list(cache.glob(f"{shard.sum}-*.part-*")))
        assert counts[f"{folder}/{shard.path}"] <= 1 + cut_off, (shard.path, counts)


def test_shards_are_read_from_http_though_an_executor_is_killed_in_the_middle(cluster: Cluster, shards: Path) -> None:
    fetched: list[str] = []
    killed: list[int] = []

    def asked(path: str) -> None:
        if not path.endswith(".shard"):
            return
        fetched.append(path)
        if len(fetched) >= 4 and not killed:  # in the middle of the first scan, one that has had a part in it
            place = next((place for place in (0, 1) if cluster.cached(place)), None)
            if place is not None:
                killed.append(executors_of(cluster.workers[place])[0])
                os.kill(killed[0], signal.SIGKILL)

    with served(shards.parent, asked) as url:
        assert cluster.ask(f"facts(scan('{url}shards', minPartitions='6'))") == ALL
        narrow = f"facts(scan('{url}shards', startingOffsets='101', endingOffsets='150'))"
        assert cluster.ask(narrow) == facts_of(101, 150)
        groups = f"spark.read.format('raxlog').option('path', '{url}shards').option('dataset', 'groups').load()"
        assert cluster.ask(f"[row.group for row in {groups}.collect()]") == ["billing"]
    assert killed
    assert cluster.cached(0)  # each worker has fetched what it needed, into its own cache
    assert cluster.cached(1)
    assert not list((cluster.folder / "driver").glob("*/raxlog-shards-*"))  # and the driver none of it


def test_shards_put_into_s3_have_the_rows_of_a_range_in_even_partitions(
    cluster: Cluster, shards: Path, s3: S3Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    url = "s3://bucket/put"
    with raxlog.open(shards.parent / "store.rax", readonly=True) as store:
        store.snapshot(url, shards=SHARDS)
        expected = [[entry.id.ms, entry.id.seq, entry.fields["text"]]
                    for entry in store.stream("orders").range()]
    frame = f"scan('{url}', 'id_ms bigint, id_seq bigint, text string', minPartitions='7', cacheDir='{cache}')"
    assert cluster.ask(f"[list(row) for row in {frame}.collect()]") == expected
    counted = f"{frame}.selectExpr('spark_partition_id() part').groupBy('part').count()"
    sizes = cluster.ask(f"[row[1] for row in {counted}.collect()]")
    assert len(sizes) == 7
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == ENTRIES


def test_a_window_fetches_the_shards_it_touches_once_and_nothing_else(
    cluster: Cluster, shards: Path, s3: S3Server, cache: Path
) -> None:
    url = s3.serve(shards, "window")
    made = manifest.read(shards)
    first, last = made.shards[2].first.ms + 1, made.shards[3].last.ms - 1
    query = f"startingOffsets='{first}', endingOffsets='{last}', minPartitions='6', cacheDir='{cache}'"
    s3.forget()
    assert cluster.ask(f"facts(scan('{url}', {query}))") == facts_of(first, last)
    check_fetched_once(s3, "window", made.shards[2:4], cache)
    assert s3.fetched("window/").count("window/manifest.json") == 1
    kept = sum(path.stat().st_size for path in cache.glob("*.shard"))
    assert kept == made.shards[2].bytes + made.shards[3].bytes
    s3.forget()
    assert cluster.ask(f"facts(scan('{url}', {query}))") == facts_of(first, last)
    assert s3.fetched("window/") == ["window/manifest.json"]


def test_two_queries_at_once_share_a_cache_and_fetch_each_shard_once(
    cluster: Cluster, shards: Path, s3: S3Server, cache: Path
) -> None:
    url = s3.serve(shards, "together")
    one = f"facts(scan('{url}', minPartitions='8', cacheDir='{cache}'))"
    other = f"facts(scan('{url}', startingTimestamp='1001', cacheDir='{cache}', minPartitions='8'))"
    both = f"[ask.result() for ask in [pool.submit(lambda: {one}), pool.submit(lambda: {other})]]"
    assert cluster.ask(f"[{both} for pool in [ThreadPoolExecutor(2)]][0]") == [ALL, facts_of(1001, ENTRIES // 10)]
    check_fetched_once(s3, "together", manifest.read(shards).shards, cache)


def test_a_server_that_dies_and_comes_back_is_waited_for(
    cluster: Cluster, shards: Path, s3: S3Server, cache: Path
) -> None:
    url = s3.serve(shards, "dies")
    cluster.begin(f"facts(scan('{url}', minPartitions='24', cacheDir='{cache}'))")
    until(lambda: len(s3.fetched("dies/")) >= 3, "the first shards")
    s3.kill()
    before = s3.fetched("dies/")
    time.sleep(2.0)
    s3.start()
    s3.serve(shards, "dies")
    assert cluster.ended() == (ALL, None)
    assert len(before) < SHARDS  # and the manifest
    # One that was under way, on either worker, may have been begun again; so may one of a copy that Spark killed.
    again = 2 + len(list(cache.glob("*.part-*")))
    assert SHARDS <= len([name for name in s3.fetched("dies/") if name.endswith(".shard")]) <= SHARDS + again


@pytest.mark.skipif(not LONG, reason="RAXLOG_LONG=1: three quarters of a minute, of attempts ten seconds apart")
def test_a_server_that_stays_dead_is_an_error_that_names_the_shard(
    cluster: Cluster, shards: Path, s3: S3Server, cache: Path
) -> None:
    url = s3.serve(shards)
    s3.forget()
    cluster.begin(f"facts(scan('{url}', minPartitions='24', cacheDir='{cache}'))")
    until(lambda: len(s3.fetched()) >= 3, "the first shards")
    s3.kill()
    began = time.monotonic()
    value, message = cluster.ended()
    took = time.monotonic() - began
    s3.start()
    assert value is None
    assert f"cannot read {url}/1/0000" in str(message)
    assert "Connect" in str(message)
    assert took < 90
    print(f"{took:.1f} s until the error")


def test_a_damaged_or_missing_shard_is_an_error_that_names_it_in_both_modes(
    cluster: Cluster, shards: Path, s3: S3Server, cache: Path
) -> None:
    url = s3.serve(shards, "broken")
    damaged, missing = (manifest.read(shards).shards[at].path for at in (3, 5))
    data = bytearray((shards / damaged).read_bytes())
    data[len(data) // 2] ^= 0x10
    s3.put(f"broken/{damaged}", bytes(data))
    s3.delete(f"broken/{missing}")
    for mode in ("PERMISSIVE", "FAILFAST"):
        for at, named in ((3, damaged), (5, missing)):
            shard = manifest.read(shards).shards[at]
            part = f"startingOffsets='{shard.first}', endingOffsets='{shard.last}', cacheDir='{cache}', mode='{mode}'"
            assert f"{url}/{named}" in cluster.refusal(f"facts(scan('{url}', {part}))")


def test_a_second_attempt_beside_a_slow_task_adds_no_row(
    cluster: Cluster, shards: Path, s3: S3Server, cache: Path, tmp_path: Path
) -> None:
    url = s3.serve(shards)
    rows = f"scan('{url}', minPartitions='4', cacheDir='{cache}').rdd.mapPartitions(slow_at_first('{tmp_path}/second'))"
    began = time.monotonic()
    assert cluster.ask(f"sorted(row.n for row in {rows}.collect())") == [*range(ENTRIES)]
    assert (tmp_path / "second").exists()
    assert time.monotonic() - began < 60


def test_a_cache_that_is_too_small_is_emptied_on_the_way(
    cluster: Cluster, shards: Path, s3: S3Server, cache: Path
) -> None:
    url = s3.serve(shards)
    most = max(shard.bytes for shard in manifest.read(shards).shards)
    assert cluster.ask(f"facts(scan('{url}', cacheDir='{cache}', cacheSize='{2 * most}'))") == ALL
    assert 1 <= len(list(cache.glob("*.shard"))) <= 2
    assert cluster.ask(f"facts(scan('{url}', cacheDir='{cache}/none', cacheSize='1'))") == ALL
    assert list((cache / "none").glob("*.shard")) == []


def test_a_cache_on_a_full_disk_is_emptied_or_is_an_error_that_names_it(
    cluster: Cluster, shards: Path, s3: S3Server, cache: Path
) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can mount a small disk")
    url = s3.serve(shards)
    pages = -(-max(shard.bytes for shard in manifest.read(shards).shards) // 4096)
    cache.mkdir()
    for many, works in ((2 * pages + 2, True), (pages // 2, False)):
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={many * 4}k", "tmpfs", str(cache)], check=True)
        try:
            query = f"facts(scan('{url}', cacheDir='{cache}'))"
            if works:
                assert cluster.ask(query) == ALL
            else:
                message = cluster.refusal(query)
                assert f"in {cache}: [Errno 28] No space left on device" in message
                assert "Name another cache" in message
        finally:
            subprocess.run(["umount", str(cache)], check=True)


@pytest.mark.parametrize("data", [b"<html><body>Welcome to the hotel's network</body></html>", None])
def test_a_manifest_that_is_garbage_or_cut_off_is_told_before_a_task_starts(
    cluster: Cluster, shards: Path, s3: S3Server, data: bytes | None
) -> None:
    if data is None:
        data = (shards / "manifest.json").read_bytes()[:-100]
    s3.put("garbage/manifest.json", data)
    message = cluster.refusal("scan('s3://bucket/garbage').rdd.getNumPartitions()")
    assert "s3://bucket/garbage/manifest.json" in message
    assert "damaged or cut off" in message
    assert "Task" not in message


def test_a_missing_bucket_is_told_before_a_task_starts(cluster: Cluster) -> None:
    message = cluster.refusal("scan('s3://no-bucket/shards').rdd.getNumPartitions()")
    assert "there is no snapshot at s3://no-bucket/shards" in message
