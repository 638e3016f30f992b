"""kill -9 on three processes that read and append: each nominal time of each schedule is appended exactly once.

Every time is an interval after the one before, from the first on: what is lost leaves a gap, what is repeated stands
there twice. A control, which appends a tick and plans the next one in two commits, is caught.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
import raxlog

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
SECONDS = 60.0 if os.environ.get("RAXLOG_LONG") else 6.0
EVERY = {"a": 0.02, "b": 0.05, "c": 0.13}
ENOUGH = 300  # ticks: a busy machine takes longer for them


def work(path: Path, seed: int, torn: bool) -> None:
    """One process, until it is killed."""
    chance = random.Random(seed)
    with raxlog.open(path) as store:
        jobs = store.stream("jobs")
        group = jobs.group("workers")
        while True:
            for name, every in EVERY.items():  # as each program does when it starts
                if not torn:
                    jobs.schedule(name, {"name": name}, every=every, coalesce="all", jitter=every / 2)
            if torn:
                for one in jobs.deferred():
                    if one.due.timestamp() <= time.time():
                        jobs.append(one.fields)
                        jobs.defer({**one.fields, "at": int(one.fields["at"]) + 20}, delay=0.02)
                        one.cancel()
            elif chance.random() < 0.5:
                jobs.append({"name": ""})
            else:
                group.read("w", count=50, timeout=0.01, noack=True)


def storm(folder: Path, seed: int, torn: bool = False) -> dict[str, list[int]]:
    """Run three of them and kill one after the other; the nominal times that came, by schedule."""
    chance = random.Random(seed)
    path = folder / "store.rax"
    with raxlog.open(path) as store:
        jobs = store.stream("jobs")
        jobs.create_group("workers", "0", create_stream=True)
        if torn:
            jobs.defer({"name": "a", "at": 0}, delay=0)

    def start() -> int:
        pid = os.fork()
        if pid == 0:
            try:
                work(path, chance.randrange(1 << 30), torn)
            except BaseException:
                traceback.print_exc(file=sys.stderr)
            finally:
                os._exit(1)
        return pid

    def kill(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL, "it failed by itself"

    workers, kills = [start() for _ in range(3)], 0
    end = time.monotonic() + SECONDS
    with raxlog.open(path, readonly=True) as store:
        while time.monotonic() < end or (not torn and len(store.stream("jobs")) < ENOUGH):
            time.sleep(chance.uniform(0.03, 0.2))
            at = chance.randrange(3)
            kill(workers[at])
            workers[at] = start()
            kills += 1
    for pid in workers:
        kill(pid)
    came: dict[str, list[int]] = defaultdict(list)
    with raxlog.open(path) as store:
        for entry in store.stream("jobs"):
            if torn and entry.fields["name"]:
                came[entry.fields["name"]].append(int(entry.fields["at"]))
            elif entry.scheduled is not None:
                came[entry.fields["name"]].append(round(entry.scheduled.timestamp() * 1000))
        if not torn:
            assert len(list(store.stream("jobs").deferred())) == len(EVERY)
    assert raxlog.check(path).problems == []
    print(f"seed {seed}, {kills} kills,", {name: len(times) for name, times in came.items()})
    return came


@pytest.mark.storm
def test_each_nominal_time_is_appended_once_whichever_process_is_killed(tmp_path: Path) -> None:
    came = storm(tmp_path, SEED)
    assert came.keys() == EVERY.keys()
    for name, times in came.items():
        assert {later - earlier for earlier, later in pairwise(times)} == {round(EVERY[name] * 1000)}, name


@pytest.mark.storm
def test_a_schedule_of_two_commits_is_caught(tmp_path: Path) -> None:
    for attempt in range(5):
        (tmp_path / str(attempt)).mkdir()
        times = storm(tmp_path / str(attempt), SEED + attempt, torn=True)["a"]
        if {later - earlier for earlier, later in pairwise(times)} != {20}:
            return
    pytest.fail("ticks in two commits came each once")
