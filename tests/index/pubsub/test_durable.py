"""Durable subscriptions: each message at least once, whatever ends in between."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import raxlog
from children import Child

LONG = os.environ.get("RAXLOG_LONG") == "1"


def numbers(subscription: Any, count: int, timeout: float = 5.0, ack: bool = True) -> list[int]:
    found: list[int] = []
    for _ in range(count):
        message = subscription.get(timeout)
        assert message is not None, f"{count} were to come, these came: {found}"
        found.append(int(message.fields["n"]))
        if ack:
            message.ack()
    return found


def test_a_durable_subscription_keeps_its_place_over_restarts(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"
    with raxlog.open(path) as store:
        store.subscribe_durable("orders.>", durable="billing").close()
        for n in range(5):
            assert store.publish("orders.new", {"n": n}) == 1
    with raxlog.open(path) as store:
        with store.subscribe_durable("orders.>", durable="billing") as billing:
            assert numbers(billing, 2) == [0, 1]
        store.publish("orders.new", {"n": 5})
        with store.subscribe_durable("orders.>", durable="billing") as billing:
            assert numbers(billing, 4) == [2, 3, 4, 5]
            assert billing.get(0.05) is None
            assert (billing.pending, billing.waiting) == (0, 0)


def test_what_was_not_acknowledged_comes_again_after_close(store: raxlog.Store) -> None:
    with store.subscribe_durable("a", durable="d") as durable:
        for n in range(20):
            store.publish("a", {"n": n})
        assert numbers(durable, 5, ack=False) == [0, 1, 2, 3, 4]
    with store.subscribe_durable("a", durable="d") as durable:
        again = [durable.get(5) for _ in range(20)]
        assert sorted(int(m.fields["n"]) for m in again if m is not None) == list(range(20))
        assert [m.deliveries for m in again if m is not None][:8] == [2] * 8
        assert durable.ack(*[m for m in again if m is not None]) == 20
        assert durable.ack(*[m for m in again if m is not None]) == 0


def test_acknowledged_messages_take_no_space(store: raxlog.Store) -> None:
    with store.subscribe_durable("a", durable="d") as durable:
        for n in range(50):
            store.publish("a", {"n": n})
        assert numbers(durable, 50) == list(range(50))
        assert len(store.stream("$durable.d")) == 0


def test_a_message_that_is_not_acknowledged_in_time_comes_again(store: raxlog.Store) -> None:
    with store.subscribe_durable("a", durable="d", ack_wait=0.2, prefetch=1) as durable:
        store.publish("a", {"n": 1})
        first = durable.get(5)
        assert first is not None
        assert durable.get(0.05) is None
        again = durable.get(5)
        assert again is not None
        assert (again.id, first.deliveries, again.deliveries) == (first.id, 1, 2)
        assert again.ack()
        assert durable.get(0.5) is None


def test_all_who_subscribe_under_a_name_share_the_messages(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"

    def take(say: Any) -> None:
        with raxlog.open(path, durability="relaxed") as mine, \
                mine.subscribe_durable("a", durable="d", queue="q") as durable:
            say("ready")
            while (message := durable.get(1.0)) is not None:
                say(int(message.fields["n"]))
                message.ack()

    with raxlog.open(path, durability="relaxed") as store:
        children = [Child(take) for _ in range(2)]
        try:
            for child in children:
                child.heard()
            for n in range(200):
                assert store.publish("a", {"n": n}) == 1
            shares = [child.finish() for child in children]
        finally:
            for child in children:
                child.kill()
        assert sorted(n for share in shares for n in share) == list(range(200))
        assert all(shares)


def test_a_queue_of_durable_and_live_members_gives_each_message_to_one(store: raxlog.Store) -> None:
    with store.subscribe("a", queue="q") as live, store.subscribe_durable("a", durable="d", queue="q") as durable:
        for n in range(60):
            assert store.publish("a", {"n": n}) == 1
        got = numbers(durable, durable.waiting)
        deadline = time.monotonic() + 5
        while len(live) + len(got) < 60 and time.monotonic() < deadline:
            time.sleep(0.001)
        got_live = numbers(live, len(live), ack=False)
        assert sorted(got + got_live) == list(range(60))
        assert min(len(got), len(got_live)) > 5


@pytest.mark.parametrize("other", [{"subject": "b"}, {"queue": "q"}])
def test_a_durable_name_with_another_pattern_or_queue_is_refused(store: raxlog.Store, other: dict[str, Any]) -> None:
    store.subscribe_durable("a", durable="d").close()
    with pytest.raises(raxlog.SubscriptionExists, match="'d'"):
        store.subscribe_durable(other.pop("subject", "a"), durable="d", **other)
    assert store.publish("a", {"n": 1}) == 1
    assert len(store.subjects) == 1


def test_tasks_that_share_a_subscription_do_not_sleep_beside_messages(store: raxlog.Store) -> None:
    """A task may find that others have taken all that was read ahead: it reads on."""

    async def main() -> list[int]:
        messages = await asyncio.wait_for(asyncio.gather(*[anext(durable) for _ in range(20)]), 10)
        return sorted(int(message.fields["n"]) for message in messages)

    with store.subscribe_durable("a", durable="d", prefetch=1, ack_wait=60) as durable:
        for n in range(20):
            store.publish("a", {"n": n})
        assert asyncio.run(main()) == list(range(20))



def test_a_task_that_is_cancelled_takes_no_message_along(store: raxlog.Store) -> None:
    async def main() -> list[int]:
        found = []
        for n in range(30):
            store.publish("a", {"n": n})
            with contextlib.suppress(TimeoutError):
                found.append(await asyncio.wait_for(anext(durable), (n % 6) / 2000))
        while len(found) < 30:
            found.append(await asyncio.wait_for(anext(durable), 10))  # sooner than ack_wait
        return [int(message.fields["n"]) for message in found]

    with store.subscribe_durable("a", durable="d") as durable:
        assert asyncio.run(main()) == list(range(30))


def test_a_stream_that_bears_the_name_already_is_not_touched(store: raxlog.Store) -> None:
    store.stream("$durable.d").append({"n": 1})
    with pytest.raises(raxlog.StreamExists, match="choose another"):
        store.subscribe_durable("a", durable="d")
    assert (len(store.stream("$durable.d")), len(store.subjects)) == (1, 0)
    store.rename_stream("$durable.d", "mine")
    for _ in range(2):
        with store.subscribe_durable("a", durable="d") as durable:
            store.publish("a", {"n": 2})
            assert numbers(durable, 1, ack=False) == [2]
        store.unsubscribe("d")


def test_removing_a_durable_subscription_ends_all_who_take_from_it(store: raxlog.Store) -> None:
    durable = store.subscribe_durable("a", durable="d")
    store.publish("a", {"n": 1})
    ended = threading.Event()

    def take() -> None:
        for _ in durable:
            continue
        ended.set()

    thread = threading.Thread(target=take)
    thread.start()
    time.sleep(0.05)
    assert store.unsubscribe("d")
    assert ended.wait(5)
    thread.join(5)
    assert not store.unsubscribe("d")
    assert store.publish("a", {"n": 2}) == 0
    assert store.streams() == []
    with store.subscribe_durable("other", durable="d") as new:  # the name is free again
        assert store.publish("other", {"n": 3}) == 1
        assert numbers(new, 1) == [3]


def test_what_another_gives_back_comes_at_once(store: raxlog.Store) -> None:
    one = store.subscribe_durable("a", durable="d", prefetch=1)
    two = store.subscribe_durable("a", durable="d", prefetch=1)
    store.publish("a", {"n": 1})
    assert numbers(one, 1, ack=False) == [1]
    assert two.get(0.05) is None
    before = time.monotonic()
    one.close()
    assert numbers(two, 1) == [1]
    assert time.monotonic() - before < 10  # not the 30 s of ack_wait
    two.close()


def test_a_callback_takes_part_and_acknowledges(store: raxlog.Store) -> None:
    got: list[int] = []
    done = threading.Event()

    def take(message: Any) -> None:
        got.append(int(message.fields["n"]))
        message.ack()
        if len(got) == 30:
            done.set()

    for n in range(10):
        store.publish("a", {"n": n})  # before it: not for it
    with store.subscribe_durable("a", durable="d", callback=take) as durable:
        for n in range(30):
            store.publish("a", {"n": n})
        assert done.wait(10)
        assert got == list(range(30))
        assert durable.pending == 0


def test_a_durable_message_has_its_subject_and_no_reserved_field(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax", encoding="utf-8") as store, store.subscribe_durable("a.*", "d") as durable:
        store.publish("a.ü", [("x", "1"), ("x", "ö")])
        message = durable.get(5)
        assert message is not None
        assert (message.subject, message.pairs) == ("a.ü", [("x", "1"), ("x", "ö")])
        assert message.fields == {"x": "ö"}
        assert message.id is not None


def test_workers_killed_at_any_moment_lose_no_message(tmp_path: Path) -> None:
    """At least once: what no worker said to have acknowledged is delivered to the next."""
    path = tmp_path / "s.rax"
    total = 2000 if LONG else 150
    seed = int(os.environ.get("RAXLOG_SEED") or random.randrange(1 << 32))
    print(f"RAXLOG_SEED={seed}")
    rng = random.Random(seed)

    def work(say: Any) -> None:
        with raxlog.open(path, durability="relaxed") as mine, mine.subscribe_durable("a", durable="d") as durable:
            for message in durable:
                say(("got", int(message.fields["n"])))
                message.ack()
                say(("acked", int(message.fields["n"])))

    with raxlog.open(path, durability="relaxed") as store:
        store.subscribe_durable("a", durable="d").close()
        for n in range(total):
            store.publish("a", {"n": n})
        got: list[tuple[str, int]] = []
        while True:
            with Child(work) as worker:
                got += [worker.heard() for _ in range(rng.randrange(1, 40))]
                worker.kill()
                got += worker.all_heard()
            if len({n for what, n in got if what == "acked"}) >= total - 40:
                break
        with store.subscribe_durable("a", durable="d") as durable:
            left = []
            while (message := durable.get(0.5)) is not None:
                left.append(int(message.fields["n"]))
                message.ack()
            assert durable.pending == 0
    acked = {n for what, n in got if what == "acked"}
    assert {n for _, n in got} | set(left) == set(range(total))
    assert not acked & set(left)  # an acknowledged message never comes again


def test_a_publish_makes_a_durable_stream_that_was_deleted_anew_with_its_place(store: raxlog.Store) -> None:
    store.subscribe_durable("orders.>", durable="mail").close()
    assert store.delete_stream("$durable.mail")
    assert store.publish("orders.new", {"n": 1}) == 1
    assert raxlog.check(store.path).ok
    with store.subscribe_durable("orders.>", durable="mail") as work:
        assert next(iter(work)).fields == {"n": "1"}


def test_a_weight_given_anew_replaces_the_old_one_and_none_given_keeps_it(store: raxlog.Store) -> None:
    def weight() -> int:
        return store.subjects.get(store.subjects.match("a").queues["q"][0].id).weight

    for given, then in ((5, 5), (None, 5), (9, 9), (9, 9), (None, 9), (1, 1)):
        store.subscribe_durable("a", durable="d", queue="q", weight=given).close()
        assert weight() == then
        assert store.subjects.match("a").queues["q"][0].weight == then
    with pytest.raises(raxlog.InvalidArgument, match="weight=0"):
        store.subscribe_durable("a", durable="d", queue="q", weight=0)
    assert weight() == 1


def test_a_new_weight_counts_from_the_next_message_on(store: raxlog.Store) -> None:
    for name, weight in (("heavy", 1), ("light", 65_535)):
        store.subscribe_durable("a", durable=name, queue="q", weight=weight).close()
    store.publish("a", {"n": 0})
    for name, weight in (("heavy", 65_535), ("light", 1)):
        store.subscribe_durable("a", durable=name, queue="q", weight=weight).close()
    for n in range(1, 41):
        store.publish("a", {"n": n})
    assert len(store.stream("$durable.heavy")) >= 38
    assert len(store.stream("$durable.heavy")) + len(store.stream("$durable.light")) == 41
