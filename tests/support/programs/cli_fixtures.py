"""Fixtures for the tests of the command line; a test file asks for them as its plugin."""

from __future__ import annotations

from pathlib import Path

import pytest
import raxlog
from cli_runs import Run
from raxlog.tools.cli import main


@pytest.fixture
def raxlog_cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command line in this process, in an empty folder: status, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(list(arguments))
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def orders(tmp_path: Path) -> str:
    """A store with a stream 'orders' of three entries, 1-1 to 3-1. Closed."""
    path = tmp_path / "orders.rax"
    with raxlog.open(path) as store:
        for number in (1, 2, 3):
            store.stream("orders").append({"item": "book", "n": number}, id=f"{number}-1")
    return str(path)
