"""The README, the docs and the help texts: what they tell a reader to type is there, and works."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import raxlog
from cli_runs import Run
from raxlog.tools import cli
from raxlog.tools.cli.arguments import LOADED, Command

pytest_plugins = ["cli_fixtures"]

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(page for page in (ROOT / "docs").rglob("*.md") if "format" not in page.name)])
TOUR = ROOT / "docs" / "tour.md"
WAITS = ("tail", "sub")  # until Ctrl-C
SPARK = ("scan",)  # takes a Java machine; test_spark_cli.py runs it


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language ("" for none) in a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)


def command(name: str) -> Command:
    importlib.import_module(f"raxlog.tools.cli.commands.{cli.COMMANDS[name][0]}")
    return LOADED[name]


def typed(text: str) -> Iterator[list[str]]:
    """The raxlog commands in a shell's text, as words."""
    for line in text.replace("\\\n", " ").splitlines():
        for part in line.split("|"):
            words = shlex.split(part, comments=True)
            if words and words[0] == "raxlog":
                yield words[1:]


def test_the_python_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    [part] = blocks(ROOT / "README.md", "python")
    exec(compile(part, "README.md", "exec"), {})
    assert capsys.readouterr().out == "mail to ann@example.org\n"


def test_the_readme_has_its_two_commands() -> None:
    [both] = blocks(ROOT / "README.md", "sh")
    first, second = both.splitlines()
    assert first.startswith("python3 -m venv .venv && ")
    assert first.endswith("raxlog demo")
    assert second.startswith("python3 -m venv .venv && ")
    assert second.endswith("pytest tests")


def test_the_python_of_the_tour_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    parts = blocks(TOUR, "python")
    assert len(parts) >= 4
    for part in parts:
        exec(compile(part.replace("timeout=5", "timeout=0.1"), "tour.md", "exec"), names)  # a wait of 5 s is long
    with raxlog.open("restored.rax") as store:
        assert len(store.stream("orders")) == 501


def test_the_commands_of_the_tour_run_in_their_order(raxlog_cli: Run) -> None:
    pytest.importorskip("pyarrow")
    Path("access.log").write_text("one\ntwo\n")
    ran = []
    for words in typed("".join(blocks(TOUR, "sh"))):
        if words[0] in WAITS + SPARK:
            continue
        if "ID" in words:
            sid = raxlog_cli("range", "events.rax", "orders")[1].split()[0]
            words = [sid if word == "ID" else word for word in words]
        status, _, err = raxlog_cli(*words)
        assert status in (0, 1), f"{words}: {err}"  # 1: nobody listens, nothing is left to claim
        ran.append(words[0])
    assert len(ran) >= 14


def test_the_table_that_is_scanned_is_the_one_there_is() -> None:
    for page in PAGES:
        for words in typed("".join(blocks(page, "sh"))):
            if words[0] == "scan" and "--sql" in words:
                assert "from entries" in words[words.index("--sql") + 1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    named = re.findall(r"^\$? ?raxlog ([a-z][a-z-]*)|`raxlog ([a-z][a-z-]*)", text, re.M)
    assert {name for found in named for name in found if name} <= set(cli.COMMANDS)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_examples_of_a_commands_help_are_understood(name: str) -> None:
    examples = list(typed(command(name).example))
    assert examples
    assert any(words[0] == name for words in examples)
    for words in examples:
        command(words[0]).parser(words[0], "an example").parse_intermixed_args(words[1:])


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_fits_a_terminal_of_a_hundred_columns(raxlog_cli: Run, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    status, out, _ = raxlog_cli(name, "--help")
    assert status == 0
    assert [line for line in out.splitlines() if len(line) > 110] == []
