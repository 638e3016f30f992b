"""raxlog bench in small: every case has its contenders, in the table and in JSON. No figure is judged."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runs import CLI, Run, one_line
from instructions import above
from raxlog.tools.bench import CASES, TABLE
from raxlog.tools.bench.cases import instructions as counting

pytest_plugins = ["cli_fixtures"]

CROWDED = ("reader", "handover", "processes")  # starts processes
SMALL = ("--slices", "2", "--seconds", "0.02", "--entries", "1000")
CONTENDERS = {
    "lone": ["sqlite3 (WAL, FULL)", "bare py-lmdb put of 60 B", "raxlog", "disk, 4 KB flushed"],
    "reader": ["sqlite3 (WAL, FULL)", "raxlog", "disk, 4 KB flushed"],
    "handover": ["sqlite3 (WAL, FULL)", "raxlog", "disk, 4 KB flushed"],
    "threads": ["sqlite3 (WAL, FULL), alone", "raxlog, 16 threads", "disk, 4 KB flushed"],
    "processes": ["raxlog, 1 process", "raxlog, 8 processes", "disk, 4 KB flushed"],
    "queue": ["sqlite3, less state", "sqlite3, a group's state", "raxlog", "disk, 4 KB flushed for 50"],
    "batches": ["sqlite3 (WAL, FULL)", "raxlog", "disk, 4 KB flushed for 1,000"],
}


def contests(out: str) -> dict[str, dict[str, Any]]:
    """The figures of each contest by their contenders."""
    found: dict[str, dict[str, Any]] = {}
    for figure in json.loads(out)["figures"]:
        found.setdefault(figure["contest"], {})[figure["contender"]] = figure
    return found


def test_the_cases_that_run_by_themselves_are_those_of_a_commit() -> None:
    assert [*TABLE] == [*CONTENDERS]
    assert set(TABLE) < set(CASES)


@pytest.mark.parametrize("case", CONTENDERS)
def test_a_case_gives_rates_ratios_and_processor_time_beside_its_peer_and_the_disk(raxlog_cli: Run, case: str) -> None:
    status, out, err = raxlog_cli("bench", case, *SMALL, "--json", "--slices", "1" if case in CROWDED else "2")
    assert (status, err) == (0, "")
    figures = next(iter(contests(out).values()))
    assert [name for name in figures if "redis" not in name] == CONTENDERS[case]
    for figure in figures.values():
        assert len(figure["rounds"]) == len(figure["cpu_rounds"]) == (1 if case in CROWDED else 2)
        assert 0 < figure["low"] <= figure["median"] <= figure["high"]
        assert figure["cpu"] > 0
        assert figure["ratio"] > 0
    first = next(iter(figures.values()))
    assert (first["ratio"], first["cpu_ratio"]) == (1, 1)
    if case == "processes":
        assert [*contests(out)["the longest that one of them has waited"]] == ["raxlog, 8 processes"]
    if case == "queue":
        assert "raxlog" in contests(out)["durable read + ack of 100, fused, entries"]


def test_the_table_has_a_line_and_a_bar_for_each_contender_and_the_plot_is_a_png(
        raxlog_cli: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    status, out, err = raxlog_cli("bench", "lone", "batches", *SMALL, "--plot", "b.png")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert "kernels" in lines[0]
    assert "a durable append" in lines
    raxlogs = [line for line in lines if line.startswith("  raxlog ")]
    assert len(raxlogs) == 2
    for line in raxlogs:
        assert line.count("×") == 2  # of rates, of processor times
        assert "CPU" in line
        assert " .. " in line
        assert "━" in line
    assert Path("b.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert [path.name for path in tmp_path.iterdir()] == ["b.png"]


def test_the_growth_curve_goes_by_entries_threads_and_processes(raxlog_cli: Run) -> None:
    pytest.importorskip("matplotlib")
    status, out, _ = raxlog_cli(
        "bench", "growth", "--slices", "1", "--seconds", "0.01", "--entries", "1000", "--json", "--plot", "g.png")
    assert status == 0
    found = contests(out)
    assert [*found["append, by entries"]] == ["sqlite3 (WAL, FULL), 1,000", "raxlog, 1,000"]
    for work in ("append", "read of 100"):
        assert [*found[f"{work}, by threads"]] == [f"raxlog, {many}" for many in (1, 2, 4, 8, 16)]
        assert [*found[f"{work}, by processes"]] == [f"raxlog, {many}" for many in (1, 2, 4, 8)]
    assert all(figure["cpu"] > 0 for figures in found.values() for figure in figures.values())
    assert Path("g.png").read_bytes().startswith(b"\x89PNG")


def test_imports_of_files_stand_beside_extend_of_the_same_rows(raxlog_cli: Run) -> None:
    status, out, err = raxlog_cli("bench", "imports", *SMALL, "--json")
    assert (status, err) == (0, "")
    for rows in ("3 fields", "8 fields", "8 fields, one in quotes or escaped"):
        assert [*contests(out)[f"import of {rows}, CPU time of one core"]] == ["extend() of 1,000", "CSV", "NDJSON"]


def test_cpu_says_where_the_time_goes_by_package_and_function(raxlog_cli: Run) -> None:
    status, out, _ = raxlog_cli("bench", "--cpu", "batches", "--slices", "1", "--seconds", "0.6", "--json")
    assert status == 0
    (profile,) = json.loads(out)["profiles"]
    assert (profile["contender"], profile["contest"]) == ("raxlog", "a durable append, 1,000 a commit")
    assert 0 <= profile["kernel"] <= 1
    assert profile["samples"] > 0
    for rows in (profile["packages"], profile["functions"]):
        assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert any(row["name"].startswith("raxlog.") for row in profile["packages"])
    assert any(row["name"].count(".") >= 2 for row in profile["functions"])
    assert "in the kernel" in raxlog_cli("bench", "--cpu", "batches", "--slices", "1", "--seconds", "0.2")[1]


@pytest.mark.parametrize("contender", ["raxlog", "sqlite3"])
def test_every_call_whose_instructions_are_counted_runs_between_two_marks(contender: str, tmp_path: Path) -> None:
    command = [sys.executable, "-P", counting.__file__, contender, str(tmp_path), *counting.CALLS]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout.split(), ran.stderr) == (0, [*counting.CALLS], "")


def test_instructions_and_system_calls_stand_beside_those_of_sqlite(
        raxlog_cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def watched(tool: list[str], contender: str, calls: list[str], folder: Path, report: Callable[[], object]) -> None:
        for number, call in enumerate(calls):
            many = counting._times(call)[1]
            for at, total in ((1, 7), (2, (1000 if contender == "raxlog" else 500) * many)):
                (folder / f"{contender}.dump.{2 * number + at}").write_text(f"summary: 1\ntotals: {total}\n")
            report()

    monkeypatch.setattr(counting, "_watch", watched)
    monkeypatch.setattr("shutil.which", lambda name: name if name == "valgrind" else None)
    status, out, err = raxlog_cli("bench", "instructions", "--json")
    assert (status, err) == (0, "")
    found = contests(out)
    assert [*found] == [*counting.CALLS.values(), "hand-over: append, group read of 1, ack of 1"]
    for contest, figures in found.items():
        assert [*figures] == ["sqlite3", "raxlog"]
        ours = figures["raxlog"]
        assert (ours["median"], ours["unit"]) == (3000 if "hand-over" in contest else 1000, "instructions")
        assert (ours["ratio"], ours["system_calls"]) == (0.5, None)  # there is no strace
    assert "system calls" not in raxlog_cli("bench", "instructions")[1]


def test_system_calls_are_those_between_marks_each_once() -> None:
    trace = ["7 execve(\"python\") = 0", "7 getppid() = 1", "7 fcntl(3, F_OFD_SETLKW <unfinished ...>",
             "8 futex(0x1, FUTEX_WAKE) = 1", "7 <... fcntl resumed>) = 0", "7 --- SIGCHLD ---", "7 getppid() = 1",
             "7 close(3) = 0", "7 getppid() = 1", "7 getppid() = 1", "7 exit_group(0) = ?"]
    assert counting.system_calls(trace) == [1, 2, 1, 0]


def test_three_percent_more_instructions_than_were_kept_are_too_many() -> None:
    kept = {"append": 100_000, "ack": 200_000}
    assert above({"append": 103_000, "ack": 150_000}, kept) == []
    assert above({"append": 103_001, "ack": 206_100}, kept) == ["append", "ack"]


def test_without_valgrind_instructions_are_status_2_and_one_line(
        raxlog_cli: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    status, out, err = raxlog_cli("bench", "instructions")
    assert (status, out) == (2, "")
    assert "valgrind is not installed" in one_line(err)


def test_what_cannot_be_run_is_status_2_and_one_line(raxlog_cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, said in (
        (("nope",), "lone, reader, handover"), (("lone", "--plot", "absent/b.png"), "--plot"),
        (("--cpu", "lone", "--plot", "b.png"), "--cpu"), (("lone", "--slices", "0"), "--slices"),
        (("lone", "--seconds", "x"), "--seconds"),
    ):
        status, out, err = raxlog_cli("bench", *arguments)
        assert (status, out) == (2, "")
        assert said in one_line(err)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # as where it is not installed
    status, out, err = raxlog_cli("bench", "lone", "--plot", "b.png")
    assert (status, out) == (2, "")
    assert "pip install 'raxlog[bench]'" in one_line(err)
    assert raxlog_cli("bench", "lone", "--dir", "absent")[0] == 3
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("case", ["threads", "processes"])
def test_ctrl_c_ends_a_run_with_one_line_and_leaves_neither_stores_nor_processes(case: str, tmp_path: Path) -> None:
    command = [*CLI, "bench", case, "--seconds", "30", "--dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        try:
            until = time.monotonic() + 20
            while not list(tmp_path.glob("*/0/*.disk")) and time.monotonic() < until:
                time.sleep(0.02)
            time.sleep(0.7)
            run.send_signal(signal.SIGINT)
            out, err = run.communicate(timeout=20)
        finally:
            run.kill()
    assert (run.returncode, out, err) == (130, b"", b"raxlog: interrupted\n")
    assert list(tmp_path.iterdir()) == []
    lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in lines


def test_the_module_is_the_same_command() -> None:
    ran = subprocess.run([sys.executable, "-m", "raxlog", "bench", "nope"], capture_output=True, text=True,
                         timeout=60, check=False)
    assert ran.returncode == 2
    assert "there is no case 'nope'" in one_line(ran.stderr)
