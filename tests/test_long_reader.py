"""A long reader: the file stays bounded, and who holds it back can be seen.

    RAXLOG_LONG=1    ten minutes in place of ten seconds

test_slow_reader.py has readers that take their time between entries, through the public calls. Here a read
transaction is held open for seconds at a time, past them, beside a writer that appends and trims.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import raxlog
from children import Child

pytestmark = pytest.mark.storm

SECONDS = 600.0 if os.environ.get("RAXLOG_LONG") else 10.0
HELD = 0.5
KEPT = 2000

Say = Callable[[Any], None]


def churn(store: raxlog.Store) -> None:
    store.stream("s").extend([{"x": bytes([n]) * 150} for n in range(100)], maxlen=KEPT)


def size(store: raxlog.Store) -> int:
    return sum(file.stat().st_size for file in store.path.rglob("data.mdb"))


def hold(path: Path, seconds: float) -> Callable[[Say], None]:
    """A process that reads in transactions of so many seconds, again and again."""

    def work(say: Say) -> None:
        with raxlog.open(path, readonly=True) as store:
            while True:
                with store._env.read() as txn:
                    say(txn.id())
                    time.sleep(seconds)

    return work


def test_the_file_finds_its_size_beside_long_reads_and_their_lag_is_told(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"
    with raxlog.open(path, durability="relaxed") as store:
        for _ in range(50):
            churn(store)
        with Child(hold(path, HELD)) as child:
            child.heard()
            for _ in range(300):
                churn(store)
            time.sleep(HELD)
            sizes, lags, commits = [], [], 0
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                churn(store)
                commits += 1
                time.sleep(0.002)  # so that commits in the time of a read stay about the same
                sizes.append(size(store))
                lags.append(max([reader.lag for reader in store.readers() if reader.pid == child.pid], default=0))
            assert any(reader.pid == child.pid for reader in store.readers())
        half = len(sizes) // 2
        print(f"{commits:,} commits, file {max(sizes[:half]):,} then {max(sizes[half:]):,} bytes, "
              f"greatest lag {max(lags):,} commits")
        assert max(lags) > 10
        assert max(sizes[half:]) <= max(sizes[:half]) * 1.5
        assert [reader for reader in store.readers() if reader.lag > 0] == []  # the killed one has been cleared
        grown = size(store)
        assert store.compact().bytes_after < grown


def test_the_control_a_read_that_never_ends_lets_the_file_grow_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"
    with raxlog.open(path, durability="relaxed") as store:
        for _ in range(100):
            churn(store)
        before = size(store)
        with Child(hold(path, 3600)) as child:
            child.heard()
            for _ in range(300):
                churn(store)
            slow = [reader for reader in store.readers() if reader.pid == child.pid]
            assert [reader.lag for reader in slow] == [300]
            assert size(store) > 3 * before
        grown = size(store)
        assert store.readers() == []
        for _ in range(300):
            churn(store)
        assert size(store) == grown, "the pages are used again once the reader is gone"
        assert store.compact().bytes_after < 2 * before
