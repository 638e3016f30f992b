"""kill -9 on eight processes that append under unique names and work for two groups: one entry of a name at a time.

Each step writes what it did to a second stream, in the same transaction, so that stream has the order of the commits:
who got a name, who was refused it, which group was done with which entry. A control, which keeps its names in a key of
state beside the queue, in commits of their own, is caught.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from collections import defaultdict
from pathlib import Path

import pytest
import raxlog

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
SECONDS = 60.0 if os.environ.get("RAXLOG_LONG") else 6.0
NAMES, GROUPS = [f"invoice-{n}" for n in range(12)], ("mail", "billing")
ENOUGH = 150  # entries: a busy machine takes longer for them


def beside(store: raxlog.Store, name: str) -> None:
    """The control's append: a look, and then the entry."""
    key = f"kept-{name}"
    with store.transaction() as tx:
        kept = tx.state.get(key)
        if kept is not None:
            tx.stream("log").append({"what": "kept", "name": name, "id": kept})
            return
    with store.transaction() as tx:
        sid = tx.stream("jobs").append({"name": name})
        tx.stream("log").append({"what": "new", "name": name, "id": str(sid)})
        tx.state[key] = str(sid)


def produce(store: raxlog.Store, chance: random.Random, torn: bool) -> None:
    name = chance.choice(NAMES)
    if torn:
        beside(store, name)
        return
    with store.transaction() as tx:
        made = tx.stream("jobs").append({"name": name}, unique=name)
        tx.stream("log").append({"what": "new" if made.is_new else "kept", "name": name, "id": str(made)})


def consume(store: raxlog.Store, chance: random.Random, torn: bool, consumer: str) -> None:
    which = chance.choice(GROUPS)
    for entry in store.stream("jobs").group(which).read(consumer, count=3, timeout=0.01, claim_idle=0.3):
        with store.transaction() as tx:
            if tx.stream("jobs").group(which).ack(entry.id):
                tx.stream("log").append({"what": which, "name": entry.fields["name"], "id": str(entry.id)})
                if torn and which == GROUPS[1] and f"kept-{entry.fields['name']}" in tx.state:
                    del tx.state[f"kept-{entry.fields['name']}"]


def work(path: Path, seed: int, torn: bool) -> None:
    """One process, until it is killed."""
    chance = random.Random(seed)
    with raxlog.open(path) as store:
        while True:
            if chance.random() < 0.6:
                produce(store, chance, torn)
            else:
                consume(store, chance, torn, f"c{os.getpid()}")


def storm(path: Path, seed: int, torn: bool = False) -> list[str]:
    """Run eight of them and kill one after the other; what is wrong with the order of what they did."""
    chance = random.Random(seed)
    with raxlog.open(path) as store:
        for name in GROUPS:
            store.stream("jobs").create_group(name)

    def start() -> int:
        child, pid = chance.randrange(1 << 30), os.fork()
        if pid == 0:
            try:
                work(path, child, torn)
            except BaseException:
                traceback.print_exc(file=sys.stderr)
            finally:
                os._exit(1)
        return pid

    def kill(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL, "it failed by itself"

    workers, kills = [start() for _ in range(8)], 0
    end = time.monotonic() + SECONDS
    with raxlog.open(path, readonly=True) as store:
        while time.monotonic() < end or (not torn and len(store.stream("jobs")) < ENOUGH):
            time.sleep(chance.uniform(0.03, 0.2))
            at = chance.randrange(8)
            kill(workers[at])
            workers[at] = start()
            kills += 1
    for pid in workers:
        kill(pid)
    assert raxlog.check(path).problems == []
    with raxlog.open(path) as store:
        log = [entry.fields for entry in store.stream("log")]
        assert sum(step["what"] == "new" for step in log) == len(store.stream("jobs"))
    print(f"seed {seed}, {kills} kills, {len(log)} steps")
    return wrong_in(log)


def wrong_in(log: list[dict[str, str]]) -> list[str]:
    """Each name that was given while it was kept, or refused while it was free."""
    holder: dict[str, str] = {}
    done: dict[str, set[str]] = defaultdict(set)
    wrong = []
    for step in log:
        what, name, sid = step["what"], step["name"], step["id"]
        is_kept = name in holder and done[holder[name]] != {*GROUPS}
        if what == "new":
            if is_kept:
                wrong.append(f"{name} was given to {sid} while {holder[name]} kept it")
            holder[name] = sid
        elif what == "kept":
            if not is_kept or holder[name] != sid:
                wrong.append(f"{name} was refused for {sid}, and {holder.get(name)} had it")
        else:
            done[sid].add(what)
    return wrong


@pytest.mark.storm
def test_a_name_is_one_entrys_at_a_time_whichever_process_is_killed(tmp_path: Path) -> None:
    assert storm(tmp_path / "store.rax", SEED) == []


@pytest.mark.storm
def test_names_that_are_kept_beside_the_queue_are_caught(tmp_path: Path) -> None:
    assert any(storm(tmp_path / f"{attempt}.rax", SEED + attempt, torn=True) for attempt in range(5))
