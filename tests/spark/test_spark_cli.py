"""raxlog plan and raxlog scan."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import raxlog
from cli_runs import CLI, Run, one_line, process
from spark_scans import VALID, environment

pytest_plugins = ["cli_fixtures"]


@pytest.fixture
def thousand(tmp_path: Path) -> str:
    """A snapshot with a stream of a thousand entries."""
    with raxlog.open(tmp_path / "live.rax") as store:
        store.stream("orders").extend(
            [{"item": ("book", "pen")[n % 2], "qty": n} for n in range(1000)],
            ids=[f"{1000 + n}-0" for n in range(1000)],
        )
        store.snapshot(tmp_path / "backup.rax")
    return str(tmp_path / "backup.rax")


def test_plan_draws_the_partitions_with_their_ranges(raxlog_cli: Run, thousand: str) -> None:
    status, out, _ = raxlog_cli("plan", thousand, "orders", "--partitions", "4")

    assert status == 0
    lines = out.splitlines()
    assert lines[0] == "stream orders: 1,000 entries in 4 partitions of 250 to 250"
    assert len(lines) == 5
    assert "1000-0" in lines[1]
    assert lines[4].endswith("1999-0")
    bars = [line.split("|")[1] for line in lines[1:]]
    assert all(bar.strip(" ").strip("━") == "" and "━" in bar for bar in bars)
    assert [bar.index("━") for bar in bars] == [0, 12, 25, 37]


def test_plan_as_json_names_every_range(raxlog_cli: Run, thousand: str) -> None:
    status, out, _ = raxlog_cli("plan", thousand, "orders", "--start", "(1099", "--max-records", "300", "--json")

    told = json.loads(out)["partitions"]
    assert status == 0
    assert [part["entries"] for part in told] == [300] * 3
    assert told[-1]["end"] == "1999-0"


def test_plan_of_nothing_is_a_no_and_wrong_input_one_line(raxlog_cli: Run, thousand: str) -> None:
    assert raxlog_cli("plan", thousand, "orders", "--end", "5")[0] == 1
    status, _, err = raxlog_cli("plan", thousand, "mail")
    assert status == 1
    assert "It has: 'orders'" in one_line(err)
    assert raxlog_cli("plan", thousand, "orders", "--start", "x")[0] == 2
    assert raxlog_cli("plan", thousand + "-not", "orders")[0] == 3


def test_plan_of_a_folder_of_snapshots_takes_the_one_of_a_time(raxlog_cli: Run, thousand: str, tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "live.rax") as store:
        first = store.snapshot(tmp_path / "days" / "monday")
        store.stream("orders").append({"item": "ink"})
        store.snapshot(tmp_path / "days" / "tuesday")
    for moment in (first.created.isoformat(), f"transaction {first.transaction}"):
        status, out, _ = raxlog_cli("plan", "days", "orders", "--as-of", moment)
        assert (status, out.splitlines()[0]) == (0, "stream orders: 1,000 entries in 1 partition of 1,000 to 1,000")
    assert raxlog_cli("plan", "days", "orders")[1].startswith("stream orders: 1,001 entries")
    status, _, err = raxlog_cli("plan", "days", "orders", "--as-of", "2001-01-01T00:00:00Z")
    assert status == 2
    assert "--as-of: nothing at" in one_line(err)
    assert "monday (20" in err


def test_more_partitions_than_any_job_could_have_are_refused_at_once(thousand: str) -> None:
    with raxlog.open(Path(thousand).parent / "live.rax", durability="relaxed") as store:
        for _ in range(11):
            store.stream("orders").extend([{"n": n} for n in range(10_000)])
    told = process("plan", str(store.path), "orders", "--partitions", "100000000")
    assert told.returncode == 2
    assert "at most 100000" in one_line(told.stderr)


def test_scan_says_how_to_get_java(thousand: str, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    told = process("scan", thousand, "orders", env=env | environment() | {"PATH": str(tmp_path)})

    assert told.returncode == 2
    assert "openjdk" in one_line(told.stderr)


ONE_AFTER_THE_OTHER = """
import json, sys
from raxlog.tools.cli import main
for arguments in json.loads(sys.argv[1]):
    print("--", main(["scan", *arguments]), file=sys.stderr, flush=True)
"""


@pytest.mark.spark
def test_scan_prints_a_table_and_on_stderr_one_clear_line_of_what_spark_refuses_and_raxlogs_own_warnings(
    thousand: str, tmp_path: Path, require: Callable[[str], str]
) -> None:
    require("java")
    with raxlog.open(tmp_path / "live.rax") as store:
        store.stream("orders").trim(maxlen=5)
    query = "select item, count(*) many, sum(qty) qty from entries group by item order by item"
    scans: list[tuple[list[str], int, list[str]]] = [  # the first one starts Java, which prints where that began
        ([str(tmp_path / "live.rax"), "orders", "--start", "1500"], 0, ["may have been trimmed away"]),
        ([thousand, "orders", "--schema", "item string, qty int", "--sql", query, "--cores", "2"], 0, []),
        ([thousand, "orders", "--sql", "select 1 from nothing"], 2,
         ["does not name the table 'entries'", "is not there: the stream is the table 'entries'"]),
        ([thousand, "orders", "--sql", "select itm from entries"], 2, ["`itm` cannot be resolved. Did you mean"]),
        ([thousand, "orders", "--sql", "selct item from entries"], 2, ["Syntax error at or near 'selct'"]),
        ([thousand, "orders", "--sql", "select raise_error(item) from entries", "--schema", "item string"], 2,
         ["[USER_RAISED_EXCEPTION] book"]),
    ]
    done = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_THE_OTHER, json.dumps([arguments for arguments, *_ in scans])],
        env=os.environ | environment(), capture_output=True, timeout=300, check=False, text=True,
    )
    left = done.stderr.splitlines()
    for arguments, status, words in scans:
        lines, left = left[: left.index(f"-- {status}")], left[left.index(f"-- {status}") + 1 :]
        assert len(lines) == len(words), (arguments, lines)
        for line, wanted in zip(lines, words, strict=True):
            assert line.startswith("raxlog: ")
            assert wanted in line
    assert left == []
    assert done.stdout.split()[3] == "1995", done.stdout
    assert done.stdout.splitlines()[-3:] == [
        "item  many     qty",
        "book   500  249500",
        "pen    500  250000",
    ]


def test_sql_that_cannot_be_is_refused_before_java_starts_and_no_other(
    raxlog_cli: Run, thousand: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    for sql, word in (("", "empty"), (" ;-- select 1", "empty"), ("select 'a from entries", "a ' without"),
                      ('select "a\\" from entries', 'a " without'), ("select `a from entries", "a ` without"),
                      ("select (1 from entries", "parenthesis"), ("select 1) -- (\nfrom entries", "parenthesis")):
        status, out, err = raxlog_cli("scan", thousand, "orders", "--sql", sql)
        assert (status, out) == (2, ""), sql
        assert word in one_line(err), sql
    for sql in (*VALID, "values (1)", "show tables", "select $$ ( $$", "(from entries)"):
        assert "openjdk" in raxlog_cli("scan", thousand, "orders", "--sql", sql)[2], sql


@pytest.mark.spark
def test_a_scan_that_is_interrupted_leaves_one_line_and_no_java(
    thousand: str, tmp_path: Path, require: Callable[[str], str]
) -> None:
    require("java")
    folder = tmp_path / "temporary"
    folder.mkdir()
    scan = subprocess.Popen(
        [*CLI, "scan", thousand, "orders"], env=os.environ | environment() | {"TMPDIR": str(folder)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not list(folder.glob("raxlog-scan-*/java")):  # it is being started
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(scan.pid, signal.SIGINT)
    out, err = scan.communicate(timeout=60)
    assert (scan.returncode, out, err) == (130, b"", b"raxlog: interrupted\n")
    while running_in(scan.pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert list(folder.iterdir()) == []


def running_in(group: int) -> list[str]:
    """The processes of a group that have not ended."""
    rows = subprocess.run(["ps", "-A", "-o", "pgid=,stat=,args="], stdout=subprocess.PIPE, check=True).stdout
    fields = [row.split(maxsplit=2) for row in rows.decode().splitlines()]
    return [args for pgid, stat, args in fields if int(pgid) == group and not stat.startswith("Z")]


def test_scan_names_a_stream_that_is_not_there_before_java_starts(raxlog_cli: Run, thousand: str,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    status, out, err = raxlog_cli("scan", thousand, "ordesr")
    assert (status, out) == (1, "")
    assert "no stream 'ordesr'" in one_line(err)
    assert "'orders'" in err


STARTING = """
import os
import sys
import raxlog
import raxlog.spark
from pyspark.sql import SparkSession

def rows(spark):
    return spark.read.format("raxlog").option("path", sys.argv[1]).option("stream", "orders").load().count()

spark = SparkSession.builder.master("local[1]").config("spark.log.level", "OFF").getOrCreate()
raxlog.spark.register(spark)
print(rows(spark), rows(raxlog.spark.session("local[1]", {"spark.app.name": "again"})))
spark.stop()
print(rows(raxlog.spark.session("local[1]")))
raxlog.spark.session().stop()
os.environ["PYSPARK_PYTHON"] = "python3"
try:
    raxlog.spark.session("local[1]")
except raxlog.NotInstalled as error:
    print(error)
"""


@pytest.mark.spark
def test_a_python_called_by_its_path_needs_no_variable(
    require: Callable[[str], str], thousand: str, tmp_path: Path
) -> None:
    without = {name: value for name, value in os.environ.items() if name not in ("PYSPARK_PYTHON", "PYTHONPATH")}
    folders = [tmp_path / "bin", Path(require("java")).parent, Path("/usr/bin"), Path("/bin")]
    folders[0].mkdir()
    (folders[0] / "python3").write_text("#!/bin/sh\necho no module named raxlog >&2\nexit 1\n")
    (folders[0] / "python3").chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", STARTING, thousand], capture_output=True, text=True, timeout=300, check=False,
        env=without | {"PATH": os.pathsep.join(map(str, folders)), "SPARK_LOCAL_IP": "127.0.0.1"})
    told = done.stdout.splitlines()
    assert told[:2] == ["1000 1000", "1000"], done.stderr
    assert all(word in told[2] for word in ("'python3'", "PYSPARK_PYTHON", sys.executable)), done.stdout


DISCOVERY = Path(raxlog.__file__).parent / "tools/spark/discovery"  # which a wheel installs beside raxlog
SUBMITTED = """
import sys
import raxlog.spark
spark = raxlog.spark.session()
frame = spark.read.format("raxlog").option("path", sys.argv[1]).option("stream", "orders").load()
print("there are", frame.count(), "on", spark.sparkContext.master)
"""
TYPED = """
import os
frame = spark.read.format("raxlog").option("path", os.environ["THOUSAND"]).option("stream", "orders").load()
print("there are", frame.count(), "on", spark.sparkContext.master)
"""


@pytest.mark.spark
@pytest.mark.parametrize("program", ["spark-submit", "pyspark"])
def test_sparks_own_programs_need_the_variable_alone(
    require: Callable[[str], str], thousand: str, tmp_path: Path, program: str
) -> None:
    require("java")
    import pyspark  # noqa: PLC0415

    command = [str(Path(pyspark.__file__).parent / "bin" / program), "--master", "local[1]", "--driver-memory", "512m"]
    command += ["--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=OFF"]
    (tmp_path / "program.py").write_text(SUBMITTED)
    if program == "spark-submit":
        command += [str(tmp_path / "program.py"), thousand]
    there = environment()
    there["PYTHONPATH"] += f"{os.pathsep}{DISCOVERY}"
    del there["SPARK_HOME"]  # the programs find it
    done = subprocess.run(
        command, input=TYPED, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path,
        env=os.environ | there | {"THOUSAND": thousand, "PYSPARK_DRIVER_PYTHON_OPTS": "-i"})
    assert "there are 1000 on local[1]" in done.stdout, done.stderr
