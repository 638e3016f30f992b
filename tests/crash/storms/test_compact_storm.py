"""Compaction among writers, readers and kills: nothing lost, nothing half, no orphan, no reader error.

    RAXLOG_LONG=1    ten minutes in place of eight seconds
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import forkserver
import pytest
import raxlog
from children import Child
from crowd import Crowd, Notes, Say

pytestmark = pytest.mark.storm

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
SECONDS = 600.0 if os.environ.get("RAXLOG_LONG") else 8.0


def _compact_again_and_again(path: Path) -> None:
    with raxlog.open(path) as store:
        while True:
            store.compact()
            time.sleep(0.02)


def test_nothing_is_lost_while_the_store_is_compacted_and_anybody_is_killed(tmp_path: Path) -> None:
    print(f"RAXLOG_SEED={SEED}")
    crowd = Crowd(tmp_path / "s.rax", SEED)
    crowd.works.append(lambda say: _compact_again_and_again(crowd.path))
    crowd.run(SECONDS, 0.05)
    assert crowd.lost_or_half() == []
    generation = int((crowd.path / "CURRENT").read_text())
    print(f"{sum(crowd.acked[i] for i in range(3)):,} appends, {crowd.kills} kills, {generation - 1} compactions, "
          f"{crowd.reads[0] + crowd.reads[1]:,} rounds of reading, "
          f"longest append {max(crowd.waited[i] for i in range(3)) / 1e3:.0f} ms")
    assert generation > SECONDS
    assert sum(crowd.acked[i] for i in range(3)) > 100
    with raxlog.open(crowd.path) as store:
        store.stream("much").append({"x": bytes(1 << 20)})
        store.delete_stream("much")  # so that there is something to give back
        store.compact()
    left = [entry.name for entry in crowd.path.iterdir() if entry.name[0].isdigit()]
    assert len(left) == 1
    assert int(left[0]) > generation


def test_a_store_can_be_opened_at_any_moment_of_a_compaction(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"
    with raxlog.open(path) as store:
        store.stream("s").append({"n": 0})
    opened = Notes(3)

    def open_again_and_again(say: Say, i: int) -> None:
        while True:
            with raxlog.open(path, readonly=i == 0) as store:
                assert len(store.stream("s")) >= 1
                if i == 2:
                    store.stream("s").append({"n": 1})
            opened[i] += 1

    def compact(say: Say) -> None:
        with raxlog.open(path) as store:
            while True:
                store.compact()

    works = [compact, *(lambda say, i=i: open_again_and_again(say, i) for i in range(3))]  # type: ignore[misc]
    children = [Child(work) for work in works]
    try:
        time.sleep(60 if os.environ.get("RAXLOG_LONG") else 3)
        for child in children:
            assert os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None, "one could not open"
    finally:
        for child in children:
            child.__exit__(None, None, None)
    print(f"opened {opened[0]:,} times to read, {opened[1] + opened[2]:,} to write, {(path / 'CURRENT').read_text()}")
    assert min(opened[i] for i in range(3)) > 5


def test_the_storm_catches_a_writer_that_goes_on_in_a_superseded_generation(tmp_path: Path) -> None:
    """The control: one writer, blind to the mark, must be found out."""
    from raxlog.storage.folder import directory  # noqa: PLC0415

    path = tmp_path / "s.rax"
    raxlog.open(path).close()

    def write_blindly(say: Say) -> None:
        with raxlog.open(path) as store:
            directory.successor = lambda get: None  # type: ignore[assignment]
            for n in range(3):
                store.stream("w").append({"n": n})
                say(n)
                time.sleep(0.2)

    with Child(write_blindly) as blind:
        blind.heard()
        with raxlog.open(path) as store:
            store.compact()
        blind.finish()
    with raxlog.open(path) as store:
        assert len(store.stream("w")) < 3


@pytest.mark.parametrize("gone", ["lock.mdb", "log", "log-state", "data.mdb", "*"])
def test_an_opening_that_comes_while_the_old_file_goes_ends_in_the_new_one(tmp_path: Path, gone: str) -> None:
    """It has read CURRENT before the compaction ended, and the old generation has lost a file, or all, already."""
    code = """
import sys, shutil, raxlog.store
from pathlib import Path
from raxlog.storage.folder import directory
old, real = Path(sys.argv[1], "000001"), directory.generation
left = [old, old]  # what looks whether there is a store asks as well
def generation(path):
    return left.pop() if left else real(path)
directory.generation = generation
with raxlog.open(sys.argv[1]) as store:
    print(len(store.stream("s")))
"""
    path = tmp_path / "s.rax"
    with raxlog.open(path) as store:
        store.stream("s").extend([{"n": "x" * 1000} for n in range(2000)])
        store.stream("s").trim(maxlen=100)
        shutil.copytree(path / "000001", tmp_path / "old", ignore=shutil.ignore_patterns(gone))
        store.compact()
        shutil.copytree(tmp_path / "old", path / "000001")
        said = forkserver.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert (said.stdout.strip(), said.returncode) == ("100", 0), said.stderr
