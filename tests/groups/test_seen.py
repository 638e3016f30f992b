"""Seen-times: exact at once within a process, on disk a few seconds later, and no commit for a read in vain."""

from __future__ import annotations

import sys
import threading
import time
from datetime import datetime
from typing import Any

import forkserver
import pytest
import raxlog
from children import Child
from counting import commits_of
from raxlog.stream.group import deliver
from raxlog.stream.group import group as group_module
from raxlog.stream.group.waiter import Condition, stream_moves

OTHER = """
import sys, raxlog
with raxlog.open(sys.argv[1]) as store:
    groups = store.stream("q").full_info().groups
    print(*(round(one.seen.timestamp() * 1000) for group in groups for one in group.consumers))
"""


class Clock:
    """The time that groups go by, in ms."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (group_module, deliver):
        monkeypatch.setattr(module, "now_ms", clock)
    return clock


@pytest.fixture
def group(store: raxlog.Store) -> raxlog.Group:
    return store.stream("q").create_group("g", "$", create_stream=True)


def last_commit(store: raxlog.Store) -> int:
    return commits_of(store)


def on_disk(store: raxlog.Store) -> list[int]:
    """What another process sees, by name."""
    told = forkserver.run([sys.executable, "-c", OTHER, store.path], capture_output=True, text=True, check=True)
    return [int(word) for word in told.stdout.split()]


def since(clock: Clock, at: datetime | None) -> float | None:
    return None if at is None else clock.now / 1000 - at.timestamp()


def unseen(group: raxlog.Group, clock: Clock) -> list[Any]:
    """For how many seconds each consumer has not called."""
    return [since(clock, one.seen) for one in group.consumers()]


def test_a_read_in_vain_is_seen_at_once_and_not_committed(store: raxlog.Store, group: Any, clock: Clock) -> None:
    began = clock.now
    group.create_consumer("a")
    group.create_consumer("b")
    before = last_commit(store)
    clock.now += 2000
    assert group.read("a") == []
    assert group.read("a", timeout=0.001) == []
    assert unseen(group, clock) == [0, 2]
    clock.now += 1000
    assert group.read("a") == []
    assert group.autoclaim("b").entries == []
    assert unseen(group, clock) == [0, 0]
    assert store.stream("q").full_info().groups[0].consumers[0].seen.timestamp() * 1000 == clock.now
    with store.transaction() as tx:
        clock.now += 1000
        assert tx.group("q", "g").read("a") == []
        assert unseen(tx.group("q", "g"), clock) == [0, 1]
    assert last_commit(store) == before
    assert on_disk(store) == [began, began]


def test_a_forked_child_knows_what_its_parent_has_seen(group: Any, clock: Clock) -> None:
    group.create_consumer("a")
    clock.now += 2000
    assert group.read("a") == []  # not on disk yet
    clock.now += 1000
    with Child(lambda say: say(unseen(group, clock))) as child:
        assert child.finish() == [[1]]
    assert unseen(group, clock) == [1]


def test_what_a_few_seconds_bring_is_written_for_all_of_a_group_at_once(store: Any, group: Any, clock: Clock) -> None:
    names = [f"c{n:02}" for n in range(50)]
    for name in names:
        group.create_consumer(name)
    before = last_commit(store)
    for _ in range(20):  # seconds
        for name in names:
            assert group.read(name) == []
        clock.now += 1000
        assert max(unseen(group, clock)) == 1
    assert 0 < last_commit(store) - before <= 5
    assert all(clock.now - seen < 6000 for seen in on_disk(store))


def test_the_next_change_of_a_consumer_brings_its_seen_time(store: raxlog.Store, group: Any, clock: Clock) -> None:
    for name in "abc":
        group.create_consumer(name)
    first = store.stream("q").append({"n": 1})
    clock.now += 1000
    assert len(group.read("a")) == 1
    clock.now += 1000
    assert group.read("b", ack=[first]) == []
    store.stream("q").append({"n": 2})
    clock.now += 1000
    assert len(group.read("c", noack=True)) == 1
    assert on_disk(store) == [clock.now - 2000, clock.now - 1000, clock.now]
    assert [since(clock, one.active) for one in group.consumers()] == [2, None, None]


def test_a_consumer_that_is_gone_is_not_brought_back(store: raxlog.Store, group: Any, clock: Clock) -> None:
    for name in "ab":
        assert group.read(name) == group.read(name) == []
    group.delete_consumer("a")
    clock.now += 10_000
    assert group.read("b") == []
    assert [one.name for one in group.consumers()] == ["b"]
    assert group.read("a") == []
    assert [one.name for one in group.consumers()] == ["a", "b"]
    group.destroy()
    with pytest.raises(raxlog.NoGroup):
        group.read("a")


def test_an_empty_history_is_an_answer_after_a_read_in_vain_as_well(store: raxlog.Store, group: Any) -> None:
    assert store.read_group("g", "a", {"q": ">"}) == store.read_group("g", "a", {"q": ">"}) == {}
    assert store.read_group("g", "a", {"q": "0"}) == {"q": []}


def test_after_a_read_in_vain_too_a_read_past_the_own_transaction_is_refused(store: Any, group: raxlog.Group) -> None:
    assert group.read("a") == group.read("a") == []
    with store.transaction(), pytest.raises(raxlog.TransactionError):
        group.read("a")


def test_what_comes_between_two_reads_in_vain_is_read(store: raxlog.Store, group: Any) -> None:
    assert group.read("a") == group.read("a") == []
    store.stream("q").append({"n": 1})
    (entry,) = group.read("a")
    assert group.read("b") == group.read("b") == []
    group.nack(entry.id)
    assert [one.id for one in group.read("b", claim_idle=0)] == [entry.id]


def test_fifty_idle_readers_commit_once_in_a_few_seconds(store: raxlog.Store, group: Any) -> None:
    for n in range(50):
        group.create_consumer(f"c{n}")
    before, begun = last_commit(store), time.monotonic()
    end = begun + 2.5

    def reads(name: str) -> None:
        while time.monotonic() < end:
            group.read(name, timeout=0.1)

    threads = [threading.Thread(target=reads, args=(f"c{n}",)) for n in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert last_commit(store) - before <= (time.monotonic() - begun) / 3


@pytest.mark.parametrize("standing", [5, 50])
def test_a_wait_costs_the_same_however_many_stand_before_it(store: Any, group: Any, monkeypatch: Any,
                                                            standing: int) -> None:
    """Streams looked at by a hundred reads that wait in vain behind others."""
    looks: list[Condition] = []
    real = Condition.value
    stop = raxlog.Stop()
    threads = [threading.Thread(target=group.read, args=(f"c{n}",), kwargs={"timeout": None, "stop": stop})
               for n in range(standing)]
    for thread in threads:
        thread.start()
    assert group.read("x") == []

    def value(condition: Condition, txn: Any) -> Any:
        if condition.function is stream_moves:
            looks.append(condition)
        return real(condition, txn)

    monkeypatch.setattr(Condition, "value", value)
    for _ in range(100):
        assert group.read("x", timeout=0.001) == []
    stop.set()
    for thread in threads:
        thread.join()
    assert len(looks) <= 100 * 2 + 20
