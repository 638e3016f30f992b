"""kill -9 while subscriptions come and go: what is there afterwards is one state, whole, never an older one.

The subscriptions after n steps are a function of n. A child does step after step in a second
process's store and says each number when its call has returned; it is killed, the store is
opened, and holds what the model holds after the steps said, or one more. RAXLOG_LONG=1 kills
for five minutes in place of four seconds.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
import raxlog
from children import Child
from raxlog.index.subjects import remote_interest, sublist
from raxlog.index.subjects.check import problems
from raxlog.index.subjects.handle import Sublist
from raxlog.index.subjects.subscription import Subscription

pytestmark = pytest.mark.storm

SECONDS = 300.0 if os.environ.get("RAXLOG_LONG") else 4.0


class Churn:
    """The steps, and what the index must hold after each."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.steps = 0
        self.next_id = 1
        self.table: dict[int, tuple[bytes, bytes, bytes | None]] = {}
        self.remotes: set[tuple[bytes, bytes]] = set()

    def step(self, index: Any) -> None:
        """Do the next step, on the index too if there is one."""
        rng = random.Random(self.seed * 1_000_003 + self.steps)
        action = rng.random()
        if action < 0.45 or not self.table:
            wanted = [
                (".".join([*rng.choices("ab*", k=rng.randrange(3)), rng.choice("ab*>")]).encode(),
                 rng.choice([b"x", b"y"]), rng.choice([None, b"q"])) for _ in range(rng.choice([1, 5, 300]))
            ]
            if index is not None:
                index.insert_many([Subscription.of(p, owner=o, queue=q) for p, o, q in wanted])
            self.table |= dict(enumerate(wanted, self.next_id))
            self.next_id += len(wanted)
        elif action < 0.75:
            gone = rng.sample(sorted(self.table), rng.randrange(1, len(self.table) + 1))
            if index is not None:
                index.remove_many(gone)
            for number in gone:
                del self.table[number]
        elif action < 0.85:
            owner = rng.choice([b"x", b"y"])
            if index is not None:
                index.remove_owner(owner)
            self.table = {number: one for number, one in self.table.items() if one[1] != owner}
        elif action < 0.95:
            rows = {(rng.choice([b"r", b"s"]), b"a.%d" % rng.randrange(50)) for _ in range(40)}
            if index is not None:
                index._source.submit(lambda txn: [remote_interest.apply(txn, route, "A", text) for route, text in rows])
            self.remotes |= rows
        else:
            route = rng.choice([b"r", b"s"])
            if index is not None:
                index._source.submit(lambda txn: remote_interest.remove_route(txn, route))
            self.remotes = {row for row in self.remotes if row[0] != route}
        self.steps += 1


def state_of(store: raxlog.Store) -> tuple[Any, Any, int]:
    """What the index holds, read in one transaction, once its rows have been found to agree."""
    with store._source.read() as txn:
        assert list(problems(txn)) == []
        table = {one.id: (one.subject, one.owner, one.queue) for one in sublist.all_subscriptions(txn)}
        remotes = {(row.route, row.subject) for row in remote_interest.all_remote(txn)}
        return table, remotes, sublist.state_of(txn).generation


def test_after_a_kill_rows_and_records_agree_and_the_generation_has_not_gone_back(tmp_path: Path) -> None:
    seed = int(os.environ.get("RAXLOG_SEED") or random.randrange(1 << 32))
    print(f"RAXLOG_SEED={seed}")
    path, rng = tmp_path / "s.rax", random.Random(seed)
    model, generation, rounds = Churn(seed), 0, 0
    raxlog.open(path, durability="relaxed", encoding=None).close()
    deadline = time.monotonic() + SECONDS

    def churn(say: Any) -> None:
        with raxlog.open(path, durability="relaxed", encoding=None) as store:
            index = Sublist(store._source)
            while True:
                model.step(index)
                say((model.steps, index.generation))

    while time.monotonic() < deadline:
        rounds += 1
        with Child(churn) as child:
            said = [child.heard() for _ in range(rng.randrange(1, 30))]
            time.sleep(rng.random() * 0.01)
            child.kill()
            said += child.all_heard()
        while model.steps < said[-1][0]:
            model.step(None)
        with raxlog.open(path, durability="relaxed", encoding=None) as store:
            table, remotes, now = state_of(store)
        assert now >= max(generation, said[-1][1])
        generation = now
        if (table, remotes) != (model.table, model.remotes):
            model.step(None)
            assert (table, remotes) == (model.table, model.remotes), f"after step {model.steps}"
        assert [entry[1] for entry in said] == sorted(entry[1] for entry in said)
    assert rounds > 5


def test_a_state_that_is_one_step_behind_is_noticed(tmp_path: Path) -> None:
    """The control: were a step lost, the comparison above would say so."""
    model = Churn(1)
    with raxlog.open(tmp_path / "s.rax", durability="relaxed", encoding=None) as store:
        index = Sublist(store._source)
        model.step(index)
        for _ in range(20):
            model.step(None)  # done in the model alone
            table, remotes, _ = state_of(store)
            behind = (table, remotes) != (model.table, model.remotes)
            if behind:
                return
    pytest.fail("twenty lost steps went unnoticed")
