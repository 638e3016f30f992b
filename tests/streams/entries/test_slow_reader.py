"""A slow reader costs no space: who takes entries one by one holds no transaction meanwhile.

    writer       append 100, trim to the newest 24,000, for ever      the file finds its size
    readers      a range, a read behind an ID, a group; one entry,    it stays below twice that
                 then a pause, again and again

LMDB reuses no page that an open read transaction may still see. The control is a reader that
keeps one open: the file must grow then, else nothing has been tested.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import raxlog
from children import Child

pytestmark = pytest.mark.storm

WARM_UP = 300  # commits
SECONDS = 600.0 if os.environ.get("RAXLOG_LONG") else 4.0
LEAST = 1200  # commits, on a machine that is busy with other things too
KEPT = 24_000  # so that the checkpoints of a moment in which a reader gets no processor are a small part
PAUSE = 0.01

Reader = Callable[[raxlog.Store], Iterator[Any]]


def write(store: raxlog.Store, start: int) -> None:
    rows = [{"n": start + n, "x": bytes([n]) * 150} for n in range(100)]
    store.stream("s").extend(rows, maxlen=KEPT)


def size(store: raxlog.Store) -> int:
    return max(file.stat().st_size for file in store.path.rglob("data.mdb"))


def by_range(store: raxlog.Store) -> Iterator[Any]:
    while True:
        yield from store.stream("s").range()


def behind_an_id(store: raxlog.Store) -> Iterator[Any]:
    last: Any = "0"
    while True:
        for entry in store.read({"s": last}, count=1, timeout=1.0).get("s", []):
            last = entry.id
            yield entry


def in_a_group(store: raxlog.Store) -> Iterator[Any]:
    group = store.stream("s").group("slow")
    done: list[raxlog.StreamID] = []
    while True:
        done = [entry.id for entry in group.read("w", count=1, ack=done, timeout=1.0)]
        yield from done


def with_an_open_transaction(store: raxlog.Store) -> Iterator[Any]:
    with store._env.read() as txn:
        while True:
            yield txn.id()


def growth(path: Path, reader: Reader, seconds: float) -> tuple[float, int]:
    """By what the file has grown under that reader, and how many commits there were meanwhile."""
    with raxlog.open(path, durability="relaxed") as store:
        store.stream("s").create_group("slow", "0", create_stream=True)
        for round_no in range(WARM_UP):
            write(store, round_no * 100)
        steady = size(store)

        def read(say: Callable[[Any], None]) -> None:
            for number, _ in enumerate(reader(store)):
                if number == 10:
                    say("reading")
                time.sleep(PAUSE)

        with Child(read) as child:
            assert child.heard() == "reading"
            commits = 0
            end = time.monotonic() + seconds
            while time.monotonic() < end or commits < LEAST:
                write(store, commits * 100)
                commits += 1
            assert os.waitpid(child.pid, os.WNOHANG) == (0, 0), "the reader ended by itself"
        return size(store) / steady, commits


@pytest.mark.parametrize("reader", [by_range, behind_an_id, in_a_group])
def test_the_file_keeps_its_size_under_a_slow_reader(tmp_path: Path, reader: Reader) -> None:
    grown, commits = growth(tmp_path / "s.rax", reader, SECONDS)
    assert commits > WARM_UP
    assert grown <= 2, f"the file is {grown:.1f} times its steady size after {commits} commits"


def test_a_reader_that_keeps_its_transaction_open_would_be_noticed(tmp_path: Path) -> None:
    grown, _ = growth(tmp_path / "s.rax", with_an_open_transaction, min(SECONDS, 4.0))
    assert grown > 3
