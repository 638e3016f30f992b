"""The doors of the crash tester: the tutorial's example, the command line, the pytest plugin."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from raxlog.tools import cli

pytestmark = pytest.mark.storm

DOCS = Path(__file__).parents[3] / "docs"
SUPPORT = Path(__file__).parents[2] / "support" / "crash"
BRIEFLY = ["--images", "150", "--seed", "7", "--ignore", "shared", "--ignore", "lock.mdb",
           "--only", "points", "--only", "cuts", "--only", "calls"]


@pytest.fixture(autouse=True)
def _compiler(require: Callable[[str], str]) -> None:
    require("cc")


def test_the_tutorial_shows_the_examples_as_they_are() -> None:
    page = (DOCS / "crash-testing.md").read_text(encoding="utf-8")
    assert (DOCS / "examples" / "billing_broken.py").read_text(encoding="utf-8").strip() in page
    fixed = (DOCS / "examples" / "billing_fixed.py").read_text(encoding="utf-8")
    assert fixed[fixed.index("def consume") : fixed.index("def workload")].strip() in page


def test_the_tutorials_example_finds_its_bug_and_passes_on_the_fixed_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, status in (("billing_broken", 1), ("billing_fixed", 0)):
        command = ["crashtest", str(DOCS / "examples" / f"{name}.py"), "--points", "billing.*", "--keep", str(tmp_path)]
        assert cli.main([*command, *BRIEFLY, "--json", "--html", str(tmp_path / f"{name}.html")]) == status
        told = json.loads(capsys.readouterr().out)
        assert told["passed"] == (status == 0)
        if status:
            found = {mode["mode"]: mode["failures"] for mode in told["modes"]}
            assert "are billed" in found["kill at points(billing.*)"][0]["found"]
            assert "are billed" in found["power cut"][0]["found"]
            assert "are billed" in found["kill at system calls"][0]["found"]
            kept = found["power cut"][0]["kept"]
            assert cli.main(["crashtest", "--replay", kept]) == 1
            assert "are billed" in capsys.readouterr().err
        assert (tmp_path / f"{name}.html").is_file()


def test_a_worker_that_counts_twice_what_it_had_when_it_was_killed_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    page = (DOCS / "jobs.md").read_text(encoding="utf-8")
    for name, status in (("mailer_broken", 1), ("mailer_fixed", 0)):
        source = (DOCS / "examples" / f"{name}.py").read_text(encoding="utf-8")
        assert source[source.index("def work(") : source.index("def workload")].strip() in page
        command = ["crashtest", str(DOCS / "examples" / f"{name}.py"), "--points", "mailer.*", "--only", "points"]
        assert cli.main(command) == status
        assert ("4 mails, 5 are counted" in capsys.readouterr().out) == bool(status)


@pytest.mark.parametrize(("arguments", "complaint"), [
    ([], "name a FILE"),
    (["a.py", "--long"], "one of them"),
    (["absent.py"], "no Python file"),
    ([str(DOCS / "examples" / "billing_fixed.py"), "--only", "points"], "needs --points"),
    ([str(DOCS / "crash-testing.md")], "no Python file"),
    ([str(SUPPORT / "crash_workloads.py")], "no function workload"),
    (["--replay", "/nowhere"], "no kept case"),
    (["--long", "--keep", "/nowhere"], "are for a FILE"),
    ([str(DOCS / "examples" / "billing_fixed.py"), "--jobs", "2"], "are for --long"),
])  # fmt: skip
def test_wrong_arguments_are_told_in_one_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["crashtest", *arguments]) == 2
    assert complaint in capsys.readouterr().err


LONG = [sys.executable, "-m", "raxlog", "crashtest", "--long", "--only", "reader", "--results"]


def test_the_long_form_makes_the_folder_of_its_results_and_is_broken_off_cleanly(tmp_path: Path) -> None:
    results = tmp_path / "new" / "long.jsonl"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([*LONG, str(results)], stdout=subprocess.PIPE, text=True, env=environment) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == f"results: {results}\n"
        assert results.is_file()
        run.send_signal(signal.SIGINT)
        assert "the results so far are kept" in run.stdout.read()
    assert run.returncode == 130


def test_the_long_form_goes_on_behind_the_pieces_of_the_same_sources_only(tmp_path: Path) -> None:
    results = tmp_path / "long.jsonl"
    line = {"part": "reader", "chunk": "long", "tried": 5, "failed": 0, "seed": 2007, "storage": "of before"}
    results.write_text(json.dumps(line) + "\n")
    with subprocess.Popen([*LONG, str(results)], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        shown = [run.stdout.readline() for _ in range(3)][-1]
        run.send_signal(signal.SIGINT)
        run.stdout.read()
    assert "0 of 1 chunks are there, 1 more are of other sources of storage/" in shown
    sources = shown.partition("storage/ ")[2].partition(":")[0]
    results.write_text(json.dumps({**line, "storage": sources}) + "\n")
    done = subprocess.run([*LONG, str(results)], capture_output=True, text=True, check=True)
    assert "1 of 1 chunks are there\n" in done.stdout


def test_the_long_form_says_at_once_that_its_results_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    results = tmp_path / "file" / "long.jsonl"
    done = subprocess.run([*LONG, str(results)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--results: " in done.stderr


PLUGIN_TEST = """
import os
import pytest
from crash_workloads import check_notes, write_notes, write_notes_unflushed

@pytest.mark.crash(images=40, rounds=3)
def test_right(crash_explorer):
    assert crash_explorer(write_notes, check_notes).passed

@pytest.mark.crash(images=40, rounds=3)
def test_wrong(crash_explorer):
    crash_explorer(write_notes_unflushed, check_notes)
"""


def run_pytest(folder: Path, test: str, *options: str, **environment: str) -> str:
    """The output of a pytest of its own, with the plugin, on one file.

    Without a folder of its own it takes the common one away from other users, whom other tests have in it.
    """
    (folder / "test_it.py").write_text(test)
    path = os.pathsep.join([str(SUPPORT), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "pytest_raxlog", "--strict-markers", *options, "-p", "no:cacheprovider",
         "--basetemp", str(folder / "temporary"), "--rootdir", str(folder), "-c", os.devnull, "-rA",
         str(folder / "test_it.py")],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path, **environment},
        cwd=folder,
    )
    print(done.stdout[-3000:])
    return done.stdout


def test_the_pytest_plugin_gives_fixture_marker_and_options(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, PLUGIN_TEST, "--crash-seed=11", "--crash-budget=30s")
    assert "1 failed, 1 passed" in output
    assert "--crash-seed=11" in output
    assert "CrashTestFailed" in output


def test_the_pytest_plugin_imports_nothing_of_raxlog_where_no_test_uses_it(tmp_path: Path) -> None:
    test = """
import sys

def test_without_a_crash(pytestconfig):
    assert pytestconfig.pluginmanager.has_plugin("pytest_raxlog")
    assert [name for name in sys.modules if name.partition(".")[0] == "raxlog"] == []
"""
    assert "1 passed" in run_pytest(tmp_path, test, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    entry_points = metadata.distribution("raxlog").entry_points.select(group="pytest11")
    assert [one.value for one in entry_points] == ["pytest_raxlog"]  # and nothing else is loaded


def test_a_budget_that_is_no_time_is_refused() -> None:
    from pytest_raxlog import seconds_of  # noqa: PLC0415

    assert [seconds_of(one) for one in (None, 3, "30", "30s", "2m", "1h")] == [None, 3, 30.0, 30.0, 120.0, 3600.0]
    with pytest.raises(pytest.UsageError, match="30s"):
        seconds_of("soon")
