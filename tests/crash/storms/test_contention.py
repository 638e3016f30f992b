"""Contention: three writers, two readers, and a kill every 50 ms. Nobody is lost, nobody waits for ever."""

from __future__ import annotations

import os
import time
from pathlib import Path

import crash_parts
import pytest
import raxlog
from children import Child
from crowd import Crowd, Say

pytestmark = pytest.mark.storm

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))


@pytest.mark.parametrize(("durability", "seconds"), [("commit", 10.0), ("relaxed", 5.0)])
def test_writers_and_readers_that_are_killed_all_the_time_lose_nothing(
    tmp_path: Path, durability: str, seconds: float
) -> None:
    print(f"RAXLOG_SEED={SEED}")
    assert crash_parts.contention(seconds, durability, SEED, tmp_path).failed == 0


def test_the_crowd_catches_a_writer_that_acknowledges_before_it_commits(tmp_path: Path) -> None:
    class Hasty(Crowd):
        def write(self, say: Say, i: int) -> None:
            with raxlog.open(self.path) as store:
                n = len(store.stream(f"w{i}"))
                assert self.acked[i] <= n <= self.acked[i] + 1
                while True:
                    n += 1
                    self.acked[i] = n
                    time.sleep(0.001)
                    store.stream(f"w{i}").append({"n": n - 1}, id=f"{n}-0")

    for attempt in range(20):
        crowd = Hasty(tmp_path / f"{attempt}.rax", SEED + attempt, writers=1, readers=0)
        with Child(crowd.works[0]) as child:
            while crowd.acked[0] < 20:
                time.sleep(0.001)
            child.kill()
        with raxlog.open(crowd.path) as store:
            if len(store.stream("w0")) < crowd.acked[0]:
                return
    pytest.fail("the control was never caught: the storm proves nothing")
