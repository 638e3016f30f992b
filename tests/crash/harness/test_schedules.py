"""The explorer of schedules: what it must find and repeat, and raxlog's promises about other processes under it."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import raxlog
from raxlog.crashtest import KillAt, Report, Schedules, explore
from raxlog.storage.errors import InvalidArgument
from raxlog.tools import cli
from side_by_side import BESIDE, SCENARIOS

pytestmark = pytest.mark.storm

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
EACH, OF_SNAPSHOTS = 58, 14  # schedules of a scenario, 1,300 of all; a snapshot starts an interpreter
EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
Ack = Callable[[Any], None]


@pytest.fixture(autouse=True)
def _compiler(require: Callable[[str], str]) -> None:
    require("cc")


def explored(workloads: Any, check: Any, tmp_path: Path, schedules: int = 500, **options: Any) -> Report:
    return explore(workloads, check, modes=[Schedules(schedules, **options)], seed=SEED, keep=tmp_path, timeout=60)


# -- raxlog ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_promise_about_other_processes_holds_in_whichever_order_they_have_their_turns(
    name: str, tmp_path: Path
) -> None:
    scenario = SCENARIOS[name]
    many = OF_SNAPSHOTS if name == "snapshot" else EACH
    report = explored(scenario.workloads, scenario.check, tmp_path, many, prepare=scenario.prepare)
    assert report.passed, str(report)
    assert report.modes[0].cases == many


@pytest.mark.parametrize(("fault", "name"), [("END moves before the write has returned", "laps"),
                                             ("a checkpoint passes over a record", "read and append"),
                                             ("APPLIED is read after the snapshot", "laps")])
def test_a_fault_put_into_the_log_is_found(
    fault: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAXLOG_TEST_LOG", fault)
    monkeypatch.setenv("RAXLOG_PURE", "1")
    scenario = SCENARIOS[name]
    report = explored(scenario.workloads, scenario.check, tmp_path, 5000, prepare=scenario.prepare)
    assert report.failed, str(report)


@pytest.mark.parametrize("name", BESIDE)
def test_a_limit_and_a_name_that_are_kept_beside_the_queue_are_found(name: str, tmp_path: Path) -> None:
    scenario = BESIDE[name]
    report = explored(scenario.workloads, scenario.check, tmp_path, 2000, prepare=scenario.prepare)
    assert report.failed, str(report)


# -- programs with a race --------------------------------------------------------------------


def made(folder: Path) -> None:
    with raxlog.open(folder / "s.rax") as store:
        store.state["n"] = 0


def adds(folder: Path, ack: Ack) -> None:
    with raxlog.open(folder / "s.rax") as store:
        store.state["n"] = int(store.state["n"]) + 1
        ack(1)


def check_sum(folder: Path, acks: list[int]) -> None:
    with raxlog.open(folder / "s.rax") as store:
        assert int(store.state["n"]) == len(acks)


def test_a_lost_update_is_found_and_can_be_repeated(tmp_path: Path) -> None:
    report = explored([adds, adds], check_sum, tmp_path, 2000, prepare=made)
    assert report.failed, str(report)
    failure, = report.failures
    assert failure.acked == 2
    switches = json.loads((Path(failure.kept) / "schedule.json").read_text())["switches"]
    assert 1 <= len(switches) <= 3
    for _ in range(3):
        again = explored([adds, adds], check_sum, tmp_path, prepare=made, switches=switches)
        assert again.failed, (switches, str(again))
        assert again.failures[0].shrunk == failure.shrunk


def test_the_same_seed_finds_the_same(tmp_path: Path) -> None:
    first, second = (explored([adds, adds], check_sum, tmp_path, 2000, prepare=made) for _ in range(2))
    assert first.failures[0].where == second.failures[0].where
    assert first.failures[0].shrunk == second.failures[0].shrunk


def locks(folder: Path, ack: Ack, names: str = "ab", wait: bool = True) -> None:
    files = [os.open(folder / name, os.O_RDWR | os.O_CREAT) for name in names]
    for file in files:
        fcntl.lockf(file, fcntl.LOCK_EX)
    ack(1)


def locks_the_other_way_round(folder: Path, ack: Ack) -> None:
    locks(folder, ack, "ba")


def check_nothing(folder: Path, acks: list[Any]) -> None:
    pass


def test_a_deadlock_is_found(tmp_path: Path) -> None:
    assert explored([locks, locks], check_nothing, tmp_path, 200).passed
    report = explored([locks, locks_the_other_way_round], check_nothing, tmp_path, 200)
    assert report.failed
    assert "deadlock" in report.failures[0].found


def waits(folder: Path, ack: Ack) -> None:
    """Waits for ever, unless what another makes is there when it looks the first time."""
    try:
        os.close(os.open(folder / "made", os.O_RDONLY))
    except FileNotFoundError:
        while True:
            time.sleep(0.01)


def makes(folder: Path, ack: Ack) -> None:
    (folder / "other").write_bytes(b"")
    (folder / "made").write_bytes(b"")


def test_a_process_that_never_ends_is_found(tmp_path: Path) -> None:
    report = explored([makes, waits], check_nothing, tmp_path, 100)
    assert report.failed
    assert "stuck" in report.failures[0].found


def sleeps(folder: Path, ack: Ack) -> None:
    began, wall = time.monotonic(), time.time()
    (folder / "a").write_bytes(b"")
    time.sleep(3600)
    (folder / "b").write_bytes(b"")
    ack((time.monotonic() - began, time.time() - wall))


def check_hour(folder: Path, acks: list[Any]) -> None:
    assert [3600 < seconds < 3601 for one in acks for seconds in one] == [True] * 4, acks


def test_an_hour_of_sleep_takes_no_time(tmp_path: Path) -> None:
    began = time.monotonic()
    report = explored([sleeps, sleeps], check_hour, tmp_path, 20)
    assert report.passed, str(report)
    assert time.monotonic() - began < 60


# -- doors -----------------------------------------------------------------------------------


def test_the_pages_example_pays_twice_and_its_mended_form_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (EXAMPLES.parent / "crash-testing.md").read_text(encoding="utf-8")
    fixed = (EXAMPLES / "interleaved_fixed.py").read_text(encoding="utf-8")
    assert (EXAMPLES / "interleaved_broken.py").read_text(encoding="utf-8").strip() in page
    assert fixed[fixed.index("def pay") : fixed.index("def worker")].strip() in page
    for name, schedules, status in (("broken", 2000, 1), ("fixed", 100, 0)):
        file = str(EXAMPLES / f"interleaved_{name}.py")
        command = ["crashtest", file, "--only", "schedules", "--schedules", str(schedules), "--seed", str(SEED)]
        assert cli.main([*command, "--keep", str(tmp_path), "--json"]) == status
        mode, = json.loads(capsys.readouterr().out)["modes"]
        assert bool(mode["failures"]) == bool(status)
        if status:
            failure, = mode["failures"]
            assert "paid twice" in failure["found"]
            kept = Path(failure["kept"]) / "schedule.json"
            again = ["crashtest", file, "--only", "schedules", "--schedule", str(kept), "--keep", str(tmp_path)]
            assert cli.main(again) == 1
            shown = capsys.readouterr().out
            assert "paid twice" in shown
            assert "process 0, first" in shown
            assert "→" in shown
        else:
            assert mode["cases"] == schedules


def test_bad_input_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidArgument, match="at least one schedule"):
        Schedules(0)
    with pytest.raises(InvalidArgument, match="under the mode Schedules alone"):
        explore([adds, adds], check_sum, modes=[KillAt.system_call("all")])
    with pytest.raises(InvalidArgument, match="under the mode Schedules alone"):
        explore([], check_sum, modes=[Schedules()])
    file = tmp_path / "workload_file.py"
    file.write_text("def check(folder, acks): pass\nworkloads = 3\n")
    for arguments, words in (
        ([str(file), "--only", "schedules"], "must be a list of functions"),
        ([str(file), "--only", "schedules", "--only", "storm"], "two commands"),
        ([str(file), "--schedule", "x"], "needs --only schedules"),
    ):
        assert cli.main(["crashtest", *arguments]) == 2
        assert words in capsys.readouterr().err
    file = tmp_path / "one_workload.py"
    file.write_text("def check(folder, acks): pass\ndef workload(folder, ack): pass\n")
    assert cli.main(["crashtest", str(file), "--only", "schedules", "--schedule", str(file)]) == 2
    assert "holds no schedule" in capsys.readouterr().err


def test_without_a_compiler_it_could_not_run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    file = EXAMPLES / "interleaved_fixed.py"
    assert cli.main(["crashtest", str(file), "--only", "schedules", "--schedules", "3"]) == 3
