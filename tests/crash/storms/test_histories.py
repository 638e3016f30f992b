"""Strict serializability: what processes, threads, readonly readers and followers saw has one order, through kills."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import raxlog
from children import Child
from noted_clients import STREAMS, Notes, follow, operations, values, write
from raxlog.crashtest import HistoryError, check_history

pytestmark = pytest.mark.storm

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
ROUNDS = int(os.environ.get("RAXLOG_HISTORIES", "6"))
SECONDS = 1.5
KILLS = 0.15  # seconds between two


Work = Callable[[Callable[[Any], None]], None]


def writer(folder: Path, process: int, until: float, options: dict[str, Any]) -> Work:
    """A process of two threads that share an open store."""

    def work(say: Callable[[Any], None]) -> None:
        with raxlog.open(folder / "s.rax", **options) as store:
            threads = [threading.Thread(target=write, args=(
                store, Notes(folder, f"w{process}.{n}"), random.Random(f"{SEED}.{process}.{n}"),
                (2 * process + n) * 1_000_000, until)) for n in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    return work


def reader(folder: Path, process: int, until: float) -> Work:
    """A readonly process: a thread that reads, and one that follows."""

    def work(say: Callable[[Any], None]) -> None:
        with raxlog.open(folder / "s.rax", readonly=True) as store:
            thread = threading.Thread(
                target=follow, args=(store, Notes(folder, f"f{process}"), STREAMS[process % 3], until))
            thread.start()
            notes, rng = Notes(folder, f"r{process}"), random.Random(f"{SEED}.r{process}")
            while time.monotonic() < until:
                with notes.operation() as reads:
                    name = rng.choice(STREAMS)
                    reads[name] = values(store.stream(name))
            thread.join()

    return work


def storm(folder: Path, options: dict[str, Any], seed: int) -> int:
    """Run it, and check what was noted; how many operations."""
    rng = random.Random(seed)
    with raxlog.open(folder / "s.rax", **options):
        pass
    until = time.monotonic() + SECONDS
    children = {n: Child(writer(folder, n, until, options)) for n in range(3)}
    readers = [Child(reader(folder, n, until)) for n in range(2)]
    begun = len(children)
    while time.monotonic() < until - KILLS:
        time.sleep(KILLS)
        number = rng.choice(list(children))
        children.pop(number).kill()
        children[begun] = Child(writer(folder, begun, until, options))
        begun += 1
    for child in (*children.values(), *readers):
        child.finish()
    with raxlog.open(folder / "s.rax") as store:
        last = Notes(folder, "last")
        for name in STREAMS:
            with last.operation() as reads:
                reads[name] = values(store.stream(name))
            assert reads[name], "the writers have written nothing"
    found = operations(folder)
    check_history(found)
    return len(found)


@pytest.mark.parametrize("options", [{}, {"durability": "relaxed"}, {"map_size": 1 << 16}],
                         ids=["durable", "relaxed", "a small map"])
def test_processes_threads_readers_and_followers_see_one_order_through_kills(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    print(f"RAXLOG_SEED={SEED}")
    done = 0
    for n in range(ROUNDS // 3):
        folder = tmp_path / str(n)
        folder.mkdir()
        done += storm(folder, options, SEED + n)
    print(f"{done} operations")
    assert done > 100 * ROUNDS // 3


def test_a_client_that_answers_from_before_an_acknowledged_write_is_caught(tmp_path: Path) -> None:
    """The control: one reader, beside a writer, that gives each answer a second time."""
    print(f"RAXLOG_SEED={SEED}")
    before: dict[str, list[int]] = {}

    def stale(stream: raxlog.Stream) -> list[int]:
        if stream.name in before and rng.random() < 0.2:
            return before[stream.name]
        before[stream.name] = values(stream)
        return before[stream.name]

    rng = random.Random(SEED)
    with raxlog.open(tmp_path / "s.rax") as store:
        until = time.monotonic() + SECONDS
        other = threading.Thread(target=write, args=(store, Notes(tmp_path, "w"), random.Random(SEED + 1), 0, until))
        other.start()
        write(store, Notes(tmp_path, "stale"), rng, 1_000_000, until, stale)
        other.join()
    with pytest.raises(HistoryError, match="too old") as caught:
        check_history(operations(tmp_path))
    assert "stale" in str(caught.value)
