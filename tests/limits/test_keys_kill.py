"""kill -9 on four processes that work for a group with a key: one entry of a key at a time, in order, none left over.

Each process notes in a file of its own when it began and ended each entry, by a clock that all share. A control, whose
limit is a key of state beside the queue, is caught: what a killed process has set stays, and two may look at once.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from collections import defaultdict
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
import raxlog

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
LONG = bool(os.environ.get("RAXLOG_LONG"))
LEASE = 3.0  # seconds; what has been held for longer may be another's


def is_free(store: raxlog.Store, group: raxlog.Group, entry: raxlog.Entry) -> bool:
    """The control's limit: a look, and then a mark."""
    key = f"busy-{entry.fields['key']}"
    if key in store.state:
        group.nack(entry.id, mode="silent", delay=0.05)
        return False
    store.state[key] = str(entry.id)
    return True


def work(folder: Path, seed: int, torn: bool) -> None:
    """One process, until it is killed, or nothing is left."""
    chance = random.Random(seed)
    with raxlog.open(folder / "store.rax") as store, (folder / f"{os.getpid()}.notes").open("w", buffering=1) as notes:
        group = store.stream("jobs").group("w")
        while True:
            for entry in group.read(f"c{os.getpid()}", count=chance.choice([1, 1, 3]), timeout=0.2, claim_idle=LEASE):
                if torn and not is_free(store, group, entry):
                    continue
                key, began = entry.fields["key"], time.monotonic()
                notes.write(f"{key} {entry.id} {began} begin\n")
                time.sleep(chance.choice([0, 0.001, 0.02]))
                notes.write(f"{key} {entry.id} {time.monotonic()} end\n")
                if chance.random() < 0.1:
                    group.nack(entry.id, delay=chance.choice([0, 0.05]))
                    continue
                with store.transaction() as tx:
                    if tx.group("jobs", "w").ack(entry.id):
                        tx.stream("done").append({"id": str(entry.id)})
                if torn:
                    store.state.pop(f"busy-{key}", None)


def storm(folder: Path, seed: int, torn: bool = False) -> list[str]:
    """Run four of them and kill one every 200 ms; what is wrong with what they noted."""
    # The control finds its fault in the short form.
    count, keys, seconds = (100_000, 500, 3600.0) if LONG and not torn else (2500, 50, 6.0)
    chance = random.Random(seed)
    folder.mkdir()
    path = folder / "store.rax"
    with raxlog.open(path) as store:
        store.stream("jobs").extend([{"key": chance.randrange(keys), "n": n} for n in range(count)])
        group = store.stream("jobs").create_group("w")
        if not torn:
            group.configure(key="key", order=True)

    def start() -> int:
        child, pid = chance.randrange(1 << 30), os.fork()
        if pid == 0:
            try:
                work(folder, child, torn)
            except BaseException:
                traceback.print_exc(file=sys.stderr)
            finally:
                os._exit(1)
        return pid

    def kill(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL, "it failed by itself"

    workers, kills, end = [start() for _ in range(4)], 0, time.monotonic() + seconds
    with ExitStack() as scope, raxlog.open(path, readonly=True) as store:
        scope.callback(lambda: [kill(pid) for pid in workers])
        while time.monotonic() < end and len(store.stream("done")) < count:
            time.sleep(0.2)
            at = chance.randrange(4)
            kill(workers[at])
            workers[at] = start()
            kills += 1
        last = time.monotonic() + (4 * LEASE if torn else 240)  # what is left, without kills
        while time.monotonic() < last and len(store.stream("done")) < count:
            time.sleep(0.1)
            if torn and any("had ended" in what for what in wrong_in(folder)):
                break
    assert raxlog.check(path).problems == []
    with raxlog.open(path) as store:
        done = [entry.fields["id"] for entry in store.stream("done")]
        left = count - len({*done})
        wrong = wrong_in(folder) + [f"{left} entries were never done"] * bool(left)
        if not torn:
            pending, lag = store.stream("jobs").group("w").pending(), store.stream("jobs").group("w").lag
            wrong += [f"{pending} and {lag} are left"] * bool(pending.total or lag or len(done) != count)
    print(f"seed {seed}, {kills} kills, {len(done)} done")
    return wrong


def wrong_in(folder: Path) -> list[str]:
    """Entries of one key that were worked on at once, or not in their order."""
    ends: dict[tuple[str, str, float], float] = {}
    for file in folder.glob("*.notes"):
        begun: dict[str, tuple[str, str, float]] = {}
        for line in file.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue
            key, sid, at, what = line.split()
            if what == "begin":
                begun[sid] = key, sid, float(at)
                ends[begun[sid]] = float(at) + LEASE  # unless it ends before
            else:
                ends[begun[sid]] = min(float(at), ends[begun[sid]])
    by_key = defaultdict(list)
    for (key, sid, at), end in ends.items():
        by_key[key].append((at, end, raxlog.StreamID(*map(int, sid.split("-")))))
    wrong = []
    for key, runs in by_key.items():
        runs.sort()
        for (_, end, one), (begin, _, other) in pairwise(runs):
            if begin < end and one != other:
                wrong.append(f"key {key}: {other} began {end - begin:.4f} s before {one} had ended")
            if other < one:
                wrong.append(f"key {key}: {other} came after {one}")
    return wrong


@pytest.mark.storm
def test_one_entry_of_a_key_at_a_time_in_order_whichever_process_is_killed(tmp_path: Path) -> None:
    assert storm(tmp_path / "keys", SEED) == []


@pytest.mark.storm
def test_a_limit_that_is_kept_beside_the_queue_is_caught(tmp_path: Path) -> None:
    wrong = storm(tmp_path / "beside", SEED, torn=True)
    assert any("had ended" in what or "never done" in what for what in wrong)  # it has no order to keep
