"""What a store logs by the standard library."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import forkserver
import pytest
import raxlog
from elsewhere import writing
from raxlog.storage.locks import writer_lock
from raxlog.storage.notices import THREAD


def logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What has been logged, also by the threads that log what happens under a lock."""
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join()
    return caplog.records


def test_an_opening_after_a_kill_is_logged_and_one_after_a_close_is_not(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "store.rax"
    program = f"import os, raxlog; raxlog.open({str(path)!r}).stream('a').append({{'n': 1}}); os.kill(os.getpid(), 9)"
    forkserver.run([sys.executable, "-c", program], check=False)
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
        done = forkserver.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == ("", "")


def test_a_compaction_logs_what_it_freed(store: raxlog.Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "raxlog")
    store.stream("a").extend([{"text": "x" * 1000}] * 2000)
    store.delete_stream("a")
    done = store.compact()
    [record] = caplog.records
    assert f"from {done.bytes_before} to {done.bytes_after} bytes" in record.getMessage()


def test_a_long_wait_for_the_writers_lock_is_logged(path: Path, caplog: pytest.LogCaptureFixture,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_lock, "_LONG", 0.2)
    caplog.set_level(logging.INFO, "raxlog")
    with raxlog.open(path) as store, writing(path) as do:
        store.stream("a").append({"n": 1})
        assert logged(caplog) == []
        do("tx = store.transaction(); tx.__enter__(); tx.stream('a').append({'n': 2})")
        ending = threading.Timer(0.4, do, ("tx.__exit__(None, None, None)",))
        ending.start()
        store.stream("a").append({"n": 4})
        ending.join()
    [record] = logged(caplog)
    assert re.fullmatch(r"waited 0\.[2-9] s for the writer's lock \S+/shared", record.getMessage())
    assert (record.name, record.levelno) == ("raxlog.store", logging.INFO)


def test_a_reader_that_has_died_is_logged_when_it_is_cleared(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = """import os, raxlog, sys
store = raxlog.open(sys.argv[1], readonly=True)
txn = store._env.map.begin_read()
os.kill(os.getpid(), 9)"""
    with raxlog.open(path) as store:
        forkserver.run([sys.executable, "-c", program, str(path)], check=False)
        caplog.set_level(logging.INFO, "raxlog")
        assert store.readers() == []
        [record] = logged(caplog)
        assert record.getMessage() == f"{path}: 1 readers cleared, whose processes have died"


def test_buffered_appends_that_are_lost_are_a_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "raxlog")
    with raxlog.open(path, durability="buffered", max_map_size=1 << 20) as store:
        def fill() -> None:
            for _ in range(100):
                store.stream("a").append({"text": "x" * 100_000})
                time.sleep(0.01)

        with pytest.raises(raxlog.AppendsLost):
            fill()
        with pytest.raises(raxlog.AppendsLost):
            store.flush()
    [record] = [one for one in logged(caplog) if one.levelno >= logging.WARNING]
    assert record.name == "raxlog.store"
    assert "buffered append" in record.getMessage()


def test_none_of_these_loads_logging_where_nothing_happens(path: Path) -> None:
    program = f"""import sys, raxlog
with raxlog.open({str(path)!r}, durability="buffered") as store:
    store.stream("a").append({{"n": 1}}); store.flush(); store.readers(); store.status()
print("logging" in sys.modules)"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_handler_that_writes_to_the_store_itself_is_no_deadlock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_lock, "_LONG", 0.1)

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            store.stream("log").append({"line": record.getMessage()})

    handler, log = Handler(), logging.getLogger("raxlog.store")
    level = log.level
    with raxlog.open(path, lock_timeout=5) as store, writing(path) as do:
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        try:
            do("tx = store.transaction(); tx.__enter__(); tx.stream('a').append({'n': 2})")
            ending = threading.Timer(0.3, do, ("tx.__exit__(None, None, None)",))
            ending.start()
            store.stream("a").append({"n": 4})
            ending.join()
            entry = next(store.stream("log").follow("0", timeout=5))
        finally:
            log.removeHandler(handler)
            log.setLevel(level)
    assert entry.fields["line"].startswith("waited 0.")
