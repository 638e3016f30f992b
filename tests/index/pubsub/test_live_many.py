"""Many live subscriptions at once: how many commits they take, and what a message to all of them costs, in counts."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import raxlog
from counting import commits_of
from raxlog.index.pubsub.inbox import Inbox
from raxlog.index.pubsub.live_subscription import LiveSubscription

MANY = 2_000


def commits(store: raxlog.Store, call: Callable[[], Any]) -> tuple[int, Any]:
    """How many commits a call makes, and what it gives."""
    before = commits_of(store)
    given = call()
    return commits_of(store) - before, given


def numbers(live: LiveSubscription, count: int) -> list[int]:
    found = [live.get(10) for _ in range(count)]
    return [int(message.fields["n"]) for message in found if message is not None]


def test_many_are_subscribed_to_and_closed_in_one_commit_each(store: raxlog.Store) -> None:
    made, subscriptions = commits(store, lambda: store.subscribe_many(f"a.{n}.*" for n in range(MANY)))
    assert made == 1
    assert [one.subject for one in subscriptions] == [f"a.{n}.*" for n in range(MANY)]
    assert [one.id for one in subscriptions] == sorted({one.id for one in subscriptions})
    for n in (0, 77, MANY - 1):
        assert store.publish(f"a.{n}.x", {"n": n}) == 1
        assert numbers(subscriptions[n], 1) == [n]
    subscriptions[3].close()
    assert store.publish("a.3.x", {"n": 3}) == 0
    made, _ = commits(store, subscriptions.close)
    assert made == 1
    assert all(one.closed for one in subscriptions)
    assert len(store.subjects) == 0
    assert commits(store, subscriptions.close) == (0, None)
    assert not raxlog.check(store.path).problems


def test_a_store_is_closed_with_all_of_them_in_one_commit(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax") as watching:
        store = raxlog.open(tmp_path / "s.rax")
        subscriptions = store.subscribe_many([f"a.{n}" for n in range(MANY)])
        singles = [store.subscribe("b") for _ in range(5)]
        made, _ = commits(watching, store.close)
        assert made == 1
        assert all(one.closed for one in [*subscriptions, *singles])
        assert len(watching.subjects) == 0


def test_any_subscriptions_end_together_whoever_made_them(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "one.rax") as one, raxlog.open(tmp_path / "two.rax") as two:
        mixed = raxlog.LiveSubscriptions([of.subscribe("a") for of in (one, two, one, two, one)])
        mixed[0].close()
        kept = one.subscribe("a")
        with mixed as held:
            assert held is mixed
            assert (one.publish("a", {"n": 1}), two.publish("a", {"n": 1})) == (3, 2)
        assert (one.publish("a", {"n": 2}), two.publish("a", {"n": 2})) == (1, 0)
        assert numbers(kept, 2) == [1, 2]


def test_each_has_a_queue_of_its_own_with_the_options_of_all(store: raxlog.Store) -> None:
    members = store.subscribe_many(["j.*", "j.a", "j.>"], queue="q", weight=3)
    twice = store.subscribe_many(["j.a", "j.a"], max_queued=2)
    assert {one.weight for one in store.subjects.by_queue("q")} == {3}
    for n in range(3):
        assert store.publish("j.a", {"n": n}) == 3
    deadline = time.monotonic() + 10
    while sum(one.dropped for one in twice) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert [numbers(one, 2) for one in twice] == [[0, 1], [0, 1]]
    assert [one.dropped for one in twice] == [1, 1]
    assert sum(len(one) for one in members) == 3


@pytest.mark.parametrize("given", ["a.b", b"a.b", 5, None, ["a", "b..c"], ["a", 5]])
def test_what_cannot_be_subscribed_to_is_refused_and_none_of_it_is_there(store: raxlog.Store, given: Any) -> None:
    with pytest.raises(raxlog.InvalidArgument):
        store.subscribe_many(given)
    assert len(store.subjects) == 0
    assert store.publish("a", {"n": 1}) == 0


def together(store: raxlog.Store, calls: list[Callable[[], Any]]) -> int:
    """How many commits calls of a thread each make that all wait for the same transaction to end."""
    threads = [threading.Thread(target=call) for call in calls]
    with store.transaction() as tx:
        tx.state["held"] = b"1"
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 20
        while len(store._env.commits.queue) < len(calls) + 1 and time.monotonic() < deadline:
            time.sleep(0.001)
        before = commits_of(store)
    for thread in threads:
        thread.join(30)
    return int(commits_of(store) - before - 1)


def test_threads_that_subscribe_or_close_at_the_same_time_share_commits(store: raxlog.Store) -> None:
    made: list[LiveSubscription] = []
    assert together(store, [lambda n=n: made.append(store.subscribe(f"a.{n}")) for n in range(24)]) <= 3  # type: ignore[misc]
    assert len(store.subjects) == len(made) == 24
    assert together(store, [one.close for one in made]) <= 3
    assert len(store.subjects) == 0


@pytest.mark.parametrize("kind", ["subject", "channel"])
def test_a_message_is_formed_once_for_all_who_hear_it(store: raxlog.Store, kind: str) -> None:
    listening: list[Any] = [store.channels.subscribe("a.b") for _ in range(50)]
    if kind == "subject":
        listening = [*store.subscribe_many(["a.b", "a.*"] * 300), store.subscribe("a.b", queue="q")]
    publish = store.publish if kind == "subject" else store.channels.publish
    for n in range(5):
        assert publish("a.b", {"n": n} if kind == "subject" else str(n)) == len(listening)
    heard = [[one.get(10) for _ in range(5)] for one in listening]
    assert [len({id(message) for message in same}) for same in zip(*heard, strict=True)] == [1] * 5


def test_what_one_does_to_a_message_the_others_do_not_see(store: raxlog.Store) -> None:
    one, other = store.subscribe_many(["a", "a"])
    store.publish("a", {"n": 1})
    first, second = one.get(10), other.get(10)
    assert first is not None
    assert second is not None
    first.pairs.clear()
    first.fields.clear()
    assert (second.fields, second.pairs) == ({"n": "1"}, [("n", "1")])


def test_callbacks_are_found_without_looking_through_those_that_wait(
    store: raxlog.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: Counter[Any] = Counter()
    done = threading.Event()

    def same(one: object, other: object) -> bool:
        counts["compared"] += 1
        return one is other

    def called(message: raxlog.Message) -> None:
        counts[int(message.fields["n"])] += 1
        if counts[2] == MANY:
            done.set()

    monkeypatch.setattr(Inbox, "__eq__", same)
    monkeypatch.setattr(Inbox, "__hash__", object.__hash__)
    with store.subscribe_many(["a.*"] * MANY, callback=called):
        for n in range(3):
            assert store.publish("a.b", {"n": n}) == MANY
        assert done.wait(60)
    assert counts["compared"] < MANY
    assert [counts[n] for n in range(3)] == [MANY] * 3
