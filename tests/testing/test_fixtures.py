"""raxlog.testing: the store of a test, the fixtures, and handlers run inline."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import raxlog
from raxlog import testing

pytest.importorskip("msgspec")


def test_a_store_of_a_test_is_empty_and_gone_behind_its_block() -> None:
    with testing.store() as store:
        assert store.streams() == []
        store.stream("q").append({"n": 1})
        path = store.path
        assert path.is_dir()
    assert not path.parent.exists()
    with testing.store() as other:
        assert other.path != path


def test_a_store_of_a_test_is_in_memory_where_there_is_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if os.access("/dev/shm", os.W_OK) and os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_frsize > 1 << 28:
        with testing.store() as store:
            assert store.path.parts[:3] == ("/", "dev", "shm")
    monkeypatch.setattr(testing, "_MEMORY", str(tmp_path / "absent"))
    monkeypatch.setattr(testing.tempfile, "tempdir", str(tmp_path))
    with testing.store(durability="relaxed") as store:
        assert store.path.is_relative_to(tmp_path)
        store.stream("q").append({"n": 1})


def test_a_store_takes_a_test_less_than_ten_milliseconds() -> None:
    def took() -> float:
        began = time.process_time()
        with testing.store() as store:
            store.stream("q")
        return time.process_time() - began

    assert min(took() for _ in range(30)) < 0.01


@pytest.mark.parametrize("how", ["pytest_plugins", "import"])
def test_the_fixtures_are_there_by_pytest_plugins_and_by_import(how: str, tmp_path: Path) -> None:
    conftest = {"pytest_plugins": 'pytest_plugins = ["raxlog.testing"]',
                "import": "from raxlog.testing import raxlog_async_store, raxlog_clock, raxlog_store"}[how]
    (tmp_path / "conftest.py").write_text(conftest + "\n", encoding="utf-8")
    (tmp_path / "test_it.py").write_text('''
import asyncio

def test_store(raxlog_store, raxlog_clock):
    raxlog_clock.advance(3600)
    raxlog_store.stream("q").append({"n": 1})

def test_another(raxlog_store):
    assert raxlog_store.streams() == []

def test_async(raxlog_async_store, raxlog_store):
    async def program():
        async with raxlog_async_store as store:
            await store.stream("q").append({"n": 1})
    asyncio.run(program())
    assert len(raxlog_store.stream("q")) == 1
''', encoding="utf-8")
    ran = subprocess.run([sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider",
                          "--basetemp", str(tmp_path / "temporary"), str(tmp_path)],  # else it closes the common one
                         cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, "3 passed" in ran.stdout) == (0, True), ran.stdout + ran.stderr


def test_nothing_of_it_is_loaded_by_raxlog_and_by_other_runs_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\ndef test_it():\n    assert 'raxlog' not in sys.modules\n", encoding="utf-8")
    ran = subprocess.run([sys.executable, "-m", "pytest", "-q", "--basetemp", str(tmp_path / "temporary"),
                          str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    program = "import sys, raxlog; raxlog.Store; print('raxlog.testing' in sys.modules, 'pytest' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "False False\n"


def test_it_is_there_without_pytest_but_for_the_fixtures() -> None:
    program = ("import sys; sys.modules['pytest'] = None; import raxlog.testing as t\n"
               "with t.store() as store, t.clock() as clock: clock.advance(1); print(hasattr(t, 'raxlog_store'))")
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "False\n"


def test_a_handler_runs_inline_with_an_entry_as_a_worker_gives_it() -> None:
    given: list[raxlog.Entry] = []
    with testing.store() as store:
        group = store.stream("jobs").create_group("w", create_stream=True)
        store.stream("jobs").append({"to": "ann", "n": 3})
        worker = group.worker(given.append)
        assert isinstance(worker, raxlog.Worker)
        worker.run(burst=True)
    testing.run(given.append, {"to": "ann", "n": 3})
    assert given[0].pairs == given[1].pairs
    assert (given[1].deliveries, testing.run(lambda entry: entry.deliveries, {"a": 1}, deliveries=4)) == (1, 4)


def test_a_handler_run_inline_returns_its_value_and_raises_its_own_exception() -> None:
    assert testing.run(lambda entry: len(entry.fields), {"a": 1, "b": 2}) == 2

    def refuses(entry: raxlog.Entry) -> None:
        raise raxlog.Discard("no such address")

    with pytest.raises(raxlog.Discard, match="no such address"):
        testing.run(refuses, {"to": "ann"})


@dataclass
class Order:
    item: str
    quantity: int


def test_a_handler_of_objects_of_a_transaction_or_of_asyncio_runs_inline(raxlog_store: raxlog.Store) -> None:
    assert testing.run(lambda entry: entry.value, Order("book", 2), type=Order) == Order("book", 2)

    def counts(entry: raxlog.Entry, tx: raxlog.Transaction) -> None:
        tx.state["sent"] = "1"

    with raxlog_store.transaction() as tx:
        testing.run(counts, {"to": "ann"}, tx)
    assert list(raxlog_store.state)

    async def waits(entry: raxlog.Entry) -> int:
        await asyncio.sleep(0)
        return len(entry.fields)

    assert asyncio.run(testing.run(waits, {"a": 1})) == 1
