"""The command line where no extra is installed: every module of one is found, and cannot be imported."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runs import CLI, process
from raxlog.tools.cli import COMMANDS

EXTRAS = ("rich", "matplotlib", "pyarrow", "pyspark", "fsspec", "redis")


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that has no extra."""
    (tmp_path / "bare").mkdir()
    for name in EXTRAS:
        (tmp_path / "bare" / f"{name}.py").write_text(f"raise ImportError('No module named {name}')\n")
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path / "bare"), *sys.path])}


def on_terminal(env: dict[str, str], *arguments: str) -> tuple[str, str]:
    """What a command prints, and what it draws on a terminal that is its stderr."""
    ours, theirs = pty.openpty()
    done = subprocess.run([*CLI, *arguments], stdout=subprocess.PIPE, stderr=theirs, timeout=60, check=True,
                          env=env | {"TERM": "xterm", "COLUMNS": "120"})
    os.close(theirs)
    os.set_blocking(ours, False)
    try:
        drawn = os.read(ours, 1 << 16).decode()
    except (BlockingIOError, OSError):
        drawn = ""
    os.close(ours)
    return done.stdout.decode(), drawn


def test_every_command_has_its_help(bare: dict[str, str]) -> None:
    code = ("from raxlog.tools.cli import COMMANDS, main\n"
            "for name in COMMANDS: assert main([name, '--help']) == 0\n"
            "main(['--help'])")
    done = subprocess.run([sys.executable, "-c", code], env=bare, capture_output=True, text=True, timeout=60,
                          check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\nexample:\n") == len(COMMANDS) + 1


@pytest.mark.storm
def test_the_demo_ends_with_its_table_and_one_clear_line(bare: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,text\n" + "".join(f"{n},event {n}\n" for n in range(300)))
    out, drawn = on_terminal(bare, "demo", str(tmp_path / "a.csv"), "--rounds", "1")
    assert drawn == ""
    lines = out.splitlines()
    assert any(line.startswith("durable appends, one a commit ") for line in lines)
    assert lines[-1].startswith("raxlog demo: every one of ")


def test_a_progress_bar_is_one_line_of_text_that_is_gone_at_the_end(bare: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,text\n" + "".join(f"{n},event {n}\n" for n in range(300)))
    store = str(tmp_path / "s.rax")
    out, drawn = on_terminal(bare, "import", store, "orders", str(tmp_path / "a.csv"), "--batch", "100")
    assert out.startswith("300 entries from ")
    assert "a.csv: " in drawn
    assert " %, 100 entries" in drawn
    assert drawn.endswith("\r\033[K")
    assert "\n" not in drawn
    for arguments, step in ((("compact", store), "copying"), (("check", store), "pages"),
                            (("snapshot", store, str(tmp_path / "copy")), "copying")):
        assert step in on_terminal(bare, *arguments)[1]
    assert process("import", store, "orders", str(tmp_path / "a.csv"), env=bare).stderr == b""


def test_the_benchmark_prints_its_table(bare: dict[str, str]) -> None:
    out, drawn = on_terminal(bare, "bench", "batches", "--slices", "2", "--seconds", "0.02", "--entries", "1000")
    assert "batches: 0 %" in drawn
    (line,) = (line for line in out.splitlines() if line.startswith("  raxlog "))
    assert "━" in line
    assert line.count("×") == 2


@pytest.mark.parametrize(("arguments", "extra"), [
    (("export", "s.rax", "orders", "a.parquet"), "raxlog[spark]"),
    (("bench", "lone", "--plot", "a.png"), "raxlog[bench]"),
])
def test_a_command_that_needs_an_extra_names_it(
        bare: dict[str, str], tmp_path: Path, arguments: tuple[str, ...], extra: str) -> None:
    assert process("add", "s.rax", "orders", "a=1", env=bare, cwd=tmp_path).returncode == 0
    done = process(*arguments, env=bare, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert extra in done.stderr.decode()
