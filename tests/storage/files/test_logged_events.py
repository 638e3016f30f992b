"""What the standard library's logging is told of a store."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import raxlog


def test_an_opening_after_a_kill_is_logged_and_one_after_a_close_is_not(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "store.rax"
    program = f"import os, raxlog; raxlog.open({str(path)!r}).stream('a').append({{'n': 1}}); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", program], check=False)
    caplog.set_level(logging.INFO, "raxlog")
    with raxlog.open(path):
        pass
    [record] = caplog.records
    assert (record.name, record.levelno) == ("raxlog.store", logging.INFO)
    assert f"{path} was left by a killed process" in record.getMessage()
    caplog.clear()
    with raxlog.open(path):
        pass
    assert caplog.records == []


def test_a_program_without_logging_prints_nothing_of_an_end_that_lost_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.rax"
    program = f"import os, raxlog; raxlog.open({str(path)!r}).stream('a').append({{'n': 1}}); os.kill(os.getpid(), 9)"
    for _ in range(2):  # the second one opens what the first one left
        done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == ("", "")


def test_a_compaction_logs_what_it_freed(store: raxlog.Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "raxlog")
    store.stream("a").extend([{"text": "x" * 1000}] * 2000)
    store.delete_stream("a")
    done = store.compact()
    [record] = caplog.records
    assert f"from {done.bytes_before} to {done.bytes_after} bytes" in record.getMessage()
