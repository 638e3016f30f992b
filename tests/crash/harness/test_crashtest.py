"""The crash tester itself: it passes what is right, and each planted bug is found by who should find it.

    bug                            kill at a call   storm   power cut
    said before it is done         found            found   found
    a change in two halves         found            (rare)  found
    a flush left out               cannot see it    …       found
    a folder's flush left out      cannot see it    …       found
    written in place               found            (rare)  found
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import crash_workloads as work
import pytest
from raxlog.crashtest import (
    CrashTestFailed,
    Errors,
    KillAt,
    ModeResult,
    PowerCut,
    Report,
    Storm,
    explore,
)
from raxlog.storage.errors import InvalidArgument

pytestmark = pytest.mark.storm

SEED = int(os.environ.get("RAXLOG_SEED", "7"))


@pytest.fixture(autouse=True)
def _compiler(require: Callable[[str], str]) -> None:
    require("cc")


def explored(workload: Any, check: Any, *modes: Any, keep: Path, **options: Any) -> Report:
    report = explore(workload, check, modes=modes, seed=SEED, keep=keep, **options)
    print(report)
    return report


def only(report: Report) -> ModeResult:
    (mode,) = report.modes
    return mode


# -- what is right passes, what is wrong is found ---------------------------------------------


@pytest.mark.parametrize(("workload", "check"), [
    (work.write_notes, work.check_notes),
    (work.keep_book, work.check_book),
    (work.write_with_children, work.check_children),
], ids=["files", "sqlite3", "processes"])  # fmt: skip
def test_a_workload_that_is_right_survives_everything(workload: Any, check: Any, tmp_path: Path) -> None:
    report = explored(workload, check, PowerCut(images=400), KillAt.system_call(range(1, 80, 3)), Storm(10),
                      keep=tmp_path)
    assert report.passed
    assert all(mode.cases >= 10 for mode in report.modes)


@pytest.mark.parametrize(("workload", "check"), [
    (work.write_notes_unflushed, work.check_notes),
    (work.write_notes_folder_unflushed, work.check_notes),
    (work.write_notes_in_place, work.check_notes),
    (work.write_notes_acknowledged_early, work.check_notes),
    (work.keep_book_full, work.check_book),
    (work.keep_book_unflushed, work.check_book),
    (work.keep_book_split, work.check_book),
], ids=lambda one: one.__name__)  # fmt: skip
def test_a_power_cut_finds_the_bug_and_shrinks_the_image(workload: Any, check: Any, tmp_path: Path) -> None:
    report = explored(workload, check, PowerCut(images=400), keep=tmp_path)
    assert report.failed
    first = report.failures[0]
    assert "promised" in first.found or "half" in first.found or "total" in first.found or "book" in first.found
    assert first.shrunk
    with pytest.raises(CrashTestFailed, match="smallest"):
        report.raise_on_failure()


@pytest.mark.parametrize(("workload", "check"), [
    (work.write_notes_in_place, work.check_notes),
    (work.write_notes_acknowledged_early, work.check_notes),
    (work.keep_book_split, work.check_book),
], ids=lambda one: one.__name__)  # fmt: skip
def test_killing_at_every_call_finds_what_is_done_by_half(workload: Any, check: Any, tmp_path: Path) -> None:
    mode = only(explored(workload, check, KillAt.system_call("all"), keep=tmp_path))
    assert mode.status == "failed"
    assert mode.failures[0].where.startswith(("before call", "half of call"))


def test_killing_cannot_see_a_missing_flush(tmp_path: Path) -> None:
    """The limit that the documentation tells: the kernel keeps what a killed process wrote."""
    assert explored(work.write_notes_unflushed, work.check_notes, KillAt.system_call("all"), keep=tmp_path).passed


def test_a_storm_finds_who_speaks_too_early_over_many_lives(tmp_path: Path) -> None:
    assert explored(work.write_on, work.check_notes, Storm(40, longest=0.005, lives=8), keep=tmp_path).passed
    report = explored(work.write_on_early, work.check_notes, Storm(80, longest=0.005, lives=2), keep=tmp_path)
    assert report.failed
    assert only(report).reached["killed"] > 20


# -- named points ----------------------------------------------------------------------------


def test_every_hit_of_every_named_point_is_killed(tmp_path: Path) -> None:
    mode = only(explored(work.write_notes, work.check_notes, KillAt.points("notes.*"), keep=tmp_path))
    assert (mode.status, mode.cases) == ("passed", 36)
    assert mode.reached == {"notes.written": 12, "notes.flushed": 12, "notes.renamed": 12}


def test_a_named_point_finds_the_half_written_file(tmp_path: Path) -> None:
    report = explored(work.write_notes_in_place, work.check_notes, KillAt.points("notes.written"), keep=tmp_path)
    assert report.failures[0].where == "notes.written, hit 2"  # the first is an empty file: nothing had been promised


def test_a_point_that_is_never_reached_is_a_failure(tmp_path: Path) -> None:
    report = explored(work.write_notes, work.check_notes, KillAt.points("notes.writen"), keep=tmp_path)
    assert "never reached" in report.failures[0].found


# -- injected errors -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [
    Errors("ENOSPC"), Errors("EIO", sticky=True), Errors("short"), Errors("EIO", late=True, calls=("sync", "rename")),
], ids=lambda mode: mode.name)  # fmt: skip
def test_injected_errors_fire_and_are_survived_by_who_minds_them(mode: Errors, tmp_path: Path) -> None:
    done = only(explored(work.write_notes, work.check_notes, mode, keep=tmp_path))
    assert done.status == "passed"
    assert done.cases == sum(done.reached.values()) >= 12


def test_an_error_nobody_minds_is_found(tmp_path: Path) -> None:
    report = explored(work.never_mind_errors, work.check_notes, Errors("ENOSPC"), keep=tmp_path)
    assert "promised" in report.failures[0].found


def test_an_error_of_a_kind_that_is_not_allowed_is_a_failure(tmp_path: Path) -> None:
    fine = explored(work.write_notes, work.check_notes, Errors("EIO", allowed=(OSError,)), keep=tmp_path)
    wrong = explored(work.write_notes, work.check_notes, Errors("EIO", allowed=(KeyError,)), keep=tmp_path)
    assert fine.passed
    assert "may not" in wrong.failures[0].found


def test_an_error_that_cannot_be_injected_is_a_failure(tmp_path: Path) -> None:
    report = explored(work.write_nothing, work.content_with_all, Errors("ENOSPC"), keep=tmp_path)
    assert "never reached" in report.failures[0].found


# -- what goes wrong around it ---------------------------------------------------------------


def test_a_check_that_dies_or_hangs_is_a_failure_not_the_end(tmp_path: Path) -> None:
    died = explored(work.write_notes, work.die_of_it, KillAt.system_call([40, 50]), keep=tmp_path)
    assert "SIGABRT" in died.failures[0].found
    hung = explored(work.write_notes, work.hang_on_it, KillAt.system_call([40]), keep=tmp_path, timeout=0.5)
    assert "stuck" in hung.failures[0].found


def test_a_workload_that_fails_by_itself_is_told_with_its_traceback(tmp_path: Path) -> None:
    report = explored(work.end_badly, work.content_with_all, PowerCut(), KillAt.system_call(), KillAt.points("x"),
                      Storm(3), Errors("EIO"), keep=tmp_path)
    assert all("as it was planned" in mode.failures[0].found for mode in report.modes)


def test_without_a_compiler_a_mode_is_not_run_and_never_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    report = explored(work.write_notes, work.check_notes, PowerCut(100), KillAt.points("notes.*"), keep=tmp_path)
    assert [mode.status for mode in report.modes] == ["not run", "passed"]
    assert not report.passed
    assert "NOT RUN: no C compiler" in capfd.readouterr().err
    with pytest.warns(UserWarning, match="NOT RUN"):
        report.raise_on_failure()
    with pytest.raises(CrashTestFailed, match="NOT RUN"):
        report.raise_on_failure(not_run_too=True)


@pytest.mark.parametrize("wrong", [
    lambda: explore(work.write_notes, work.check_notes, modes=[]),
    lambda: explore(lambda folder, ack: None, work.check_notes, modes=[Storm()]),
    lambda: PowerCut(images=0),
    lambda: Storm(rounds=0),
    lambda: KillAt.points(""),
    lambda: KillAt.system_call([0]),
    lambda: KillAt.system_call(calls=("read",)),
    lambda: Errors("ENOSUCHTHING"),
])  # fmt: skip
def test_what_can_never_be_right_is_refused(wrong: Callable[[], Any]) -> None:
    with pytest.raises(InvalidArgument):
        wrong()


# -- the recorder ----------------------------------------------------------------------------


def test_every_kind_of_call_is_seen(tmp_path: Path) -> None:
    """With everything on disk, the image is the folder: nothing was missed or misread."""
    report = explored(work.write_every_way, work.check_every_way, PowerCut(images=400), keep=tmp_path)
    mode = only(report)
    assert report.passed
    assert mode.notes == []
    assert {moment.what for moment in mode.timeline} == {"write", "size", "name", "flush", "ack"}


def test_a_partial_keeps_its_arguments(tmp_path: Path) -> None:
    assert explored(partial(work.write_notes), work.check_notes, KillAt.points("notes.renamed"), keep=tmp_path).passed


# -- seeds, budgets, reports -----------------------------------------------------------------


def test_the_same_seed_draws_the_same_images(tmp_path: Path) -> None:
    one, other = (explored(work.write_notes_unflushed, work.check_notes, PowerCut(300), keep=tmp_path, workers=workers)
                  for workers in (1, 3))
    assert [(a.where, a.found) for a in one.failures] == [(a.where, a.found) for a in other.failures]
    assert only(one).failed > 0


def test_a_budget_ends_it_and_says_what_was_left_out(tmp_path: Path) -> None:
    report = explored(work.write_notes, work.check_notes, Storm(100_000), keep=tmp_path, budget=0.5)
    assert 0 < only(report).cases < 100_000
    assert "out of time" in str(report)


def test_a_failing_case_is_kept_and_replayed_by_one_line(tmp_path: Path) -> None:
    report = explored(work.write_notes_unflushed, work.check_notes, PowerCut(200), keep=tmp_path)
    failure = report.failures[0]
    again = subprocess.run(failure.replay, shell=True, capture_output=True, text=True, check=False,
                           env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    assert again.returncode == 1
    assert "AssertionError" in again.stderr
    assert failure.where in again.stdout
    shutil.rmtree(Path(failure.kept) / "folder")
    (Path(failure.kept) / "folder").mkdir()
    assert (Path(failure.kept) / "case.txt").is_file()


def test_the_report_is_written_as_json_and_as_a_page(tmp_path: Path) -> None:
    report = explored(work.write_notes_unflushed, work.check_notes, PowerCut(200), KillAt.points("notes.*"),
                      keep=tmp_path)
    told = json.loads(json.dumps(report.to_dict()))
    assert told["seed"] == SEED
    assert told["passed"] is False
    assert told["modes"][0]["failures"][0]["replay"].endswith(told["modes"][0]["failures"][0]["kept"])
    assert sum(row["images"] for row in told["modes"][0]["timeline"]) > 50
    for part in (report, report.modes[0], report.failures[0], report.modes[0].timeline[0]):
        with pytest.raises(AttributeError):  # as all results, it does not change
            setattr(part, next(iter(part.to_dict())), "other")
    report.write_html(tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert page.count("<svg") == 1
    assert "note" in page
    assert "failed" in str(report)
