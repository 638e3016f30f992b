"""Live subscriptions of several processes: at most once, and gone with whoever made them."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import raxlog
from children import Child
from raxlog.index.pubsub.leases import owners_in

LONG = os.environ.get("RAXLOG_LONG") == "1"


def listen(path: Path, say: Any, subject: str, **options: Any) -> None:
    """In a child: subscribe, say so, then say every number heard."""
    with raxlog.open(path) as store, store.subscribe(subject, **options) as live:
        say("ready")
        for message in live:
            say(int(message.fields["n"]))


def idle(say: Any) -> None:
    say("ready")
    time.sleep(60)


def owners(store: raxlog.Store) -> list[int]:
    with store._env.read() as txn:
        return [pid for pid, _ in owners_in(txn).values()]


def test_a_message_reaches_the_subscribers_in_other_processes(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"
    with raxlog.open(path) as store, Child(lambda say: listen(path, say, "a.*")) as one, \
            Child(lambda say: listen(path, say, "a.>")) as two:
        assert (one.heard(), two.heard()) == ("ready", "ready")
        for n in range(50):
            assert store.publish("a.b", {"n": n}) == 2
        assert [one.heard() for _ in range(50)] == list(range(50))
        assert [two.heard() for _ in range(50)] == list(range(50))


def test_the_subscriptions_of_a_killed_process_vanish_at_once(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"

    def everything(say: Any) -> None:
        with raxlog.open(path) as mine:
            kept = [mine.subscribe("a.*"), mine.subscribe("a.b", queue="q"), mine.channels.subscribe("c", "d"),
                    mine.channels.psubscribe("c*"), mine.channels.ssubscribe("s")]
            say("ready")
            time.sleep(60)
            del kept

    with raxlog.open(path) as store:
        with Child(everything) as child:
            assert child.heard() == "ready"
            assert store.publish("a.b", {"n": 1}) == 2
            assert store.channels.publish("c", "x") == 2
            assert store.channels.numpat() == 1
            assert owners(store) == [child.pid]
            child.kill()
            assert store.publish("a.b", {"n": 2}) == 0
            assert store.channels.publish("c", "x") == 0
        assert owners(store) == []
        assert len(store.subjects) == 0
        assert store.channels.channels() == store.channels.shardchannels() == []
        assert store.channels.numpat() == 0


def test_whoever_opens_the_store_next_removes_what_the_dead_left(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"
    with Child(lambda say: listen(path, say, "a")) as child:
        assert child.heard() == "ready"
        child.kill()
    with raxlog.open(path, readonly=True) as store:
        assert len(store.subjects) == 1
    with raxlog.open(path) as store:
        assert len(store.subjects) == 0
        assert owners(store) == []


def test_a_queue_passes_over_members_that_died(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"
    with raxlog.open(path) as store, store.subscribe("a", queue="q") as mine:
        with Child(lambda say: listen(path, say, "a", queue="q", weight=1000)) as child:
            assert child.heard() == "ready"
            child.kill()
        for n in range(20):
            assert store.publish("a", {"n": n}) == 1
        assert [int(m.fields["n"]) for m in (mine.get(5) for _ in range(20)) if m is not None] == list(range(20))


def test_members_in_three_processes_share_and_get_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"
    with raxlog.open(path, durability="relaxed") as store:
        children = [Child(lambda say: listen_relaxed(path, say)) for _ in range(3)]
        try:
            for child in children:
                assert child.heard() == "ready"
            for n in range(300):
                assert store.publish("work", {"n": n}) == 1
            store.publish("stop", {"n": -1})
            shares = [child.finish() for child in children]
        finally:
            for child in children:
                child.kill()
    assert sorted(n for share in shares for n in share) == list(range(300))
    assert min(map(len, shares)) > 50


def listen_relaxed(path: Path, say: Any) -> None:
    with raxlog.open(path, durability="relaxed") as store, store.subscribe("work", queue="q") as work, \
            store.subscribe("stop") as stop:
        say("ready")
        stop.get(30)
        while (message := work.get(0.2)) is not None:
            say(int(message.fields["n"]))


def test_a_forked_child_owns_nothing_of_its_parent(store: raxlog.Store) -> None:
    with store.subscribe("a") as live, store.channels.subscribe("c") as client:

        def child(say: Any) -> None:
            say((live.closed, client.closed, live.get(0), client.get(0)))
            live.close()
            client.close()
            say(int(store.publish("a", {"n": 1})))
            with store.subscribe("a") as own:
                say(int(store.publish("a", {"n": 2})))
                say(int(own.get(5).fields["n"]))  # type: ignore[union-attr]
            store.close()

        with Child(child) as process:
            assert process.finish() == [(True, True, None, None), 1, 2, 2]
        heard = [live.get(5) for _ in range(2)]
        assert [int(m.fields["n"]) for m in heard if m is not None] == [1, 2]
        assert store.channels.publish("c", "x") == 1
        assert client.get(5) is not None


def test_a_child_that_is_killed_takes_nothing_of_its_parent_with_it(store: raxlog.Store) -> None:
    with store.subscribe("a") as live:
        with Child(idle) as process:
            process.heard()
            process.kill()
        assert store.publish("a", {"n": 1}) == 1
        assert live.get(5) is not None


def test_a_parents_subscriptions_die_with_it_though_a_child_lives_on(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"

    def parent(say: Any) -> None:
        store = raxlog.open(path)
        live = store.subscribe("a")
        grandchild = os.fork()
        if grandchild == 0:
            time.sleep(30)
            os._exit(0)
        say(grandchild)
        live.get()

    with raxlog.open(path) as store, Child(parent) as child:
        grandchild = child.heard()
        try:
            assert store.publish("a", {"n": 1}) == 1
            child.kill()
            assert store.publish("a", {"n": 2}) == 0
        finally:
            os.kill(grandchild, signal.SIGKILL)


def test_a_stopped_process_is_not_dead_and_hears_what_it_missed(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"
    with raxlog.open(path) as store, Child(lambda say: listen(path, say, "a")) as child:
        assert child.heard() == "ready"
        child.send(signal.SIGSTOP)
        for n in range(10):
            assert store.publish("a", {"n": n}) == 1
        child.send(signal.SIGCONT)
        assert [child.heard() for _ in range(10)] == list(range(10))


def test_a_store_closed_and_opened_again_hears_on(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"
    for n in range(3):
        with raxlog.open(path) as store, store.subscribe("a") as live:
            assert store.publish("a", {"n": n}) == 1
            assert live.get(5) is not None


def test_two_handles_of_one_store_keep_their_own_subscriptions(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"
    with raxlog.open(path) as one, one.subscribe("a") as kept:
        with raxlog.open(path) as two:
            lost = two.subscribe("a")
            assert one.publish("a", {"n": 1}) == 2
            assert lost.get(5) is not None
        assert one.publish("a", {"n": 2}) == 1
        assert [int(m.fields["n"]) for m in (kept.get(5), kept.get(5)) if m is not None] == [1, 2]
        assert lost.get(0) is None


def test_killed_publishers_and_listeners_leave_nothing_half_and_nothing_twice(tmp_path: Path) -> None:
    """What was acknowledged to a publisher is in the bound stream; what was heard live was heard once."""
    path = tmp_path / "s.rax"
    seed = int(os.environ.get("RAXLOG_SEED") or random.randrange(1 << 32))
    print(f"RAXLOG_SEED={seed}")
    rng = random.Random(seed)

    def publish(say: Any) -> None:
        with raxlog.open(path, durability="relaxed") as mine:
            while True:  # counted in the transaction: the next writer may store a publish that was cut short
                with mine.transaction() as tx:
                    reached = tx.publish("a.b", {"n": len(tx.stream("s"))})
                say(str(reached.ids["s"]))

    with raxlog.open(path, durability="relaxed") as store:
        store.bind("a.*", "s")
        heard: list[int] = []
        live = store.subscribe("a.b", callback=lambda message: heard.append(int(message.fields["n"])))
        acknowledged: list[str] = []
        for _ in range(60 if LONG else 6):
            with Child(publish) as child, Child(lambda say: listen_killed(path, say)) as listener:
                listener.heard()
                acknowledged += [child.heard() for _ in range(rng.randrange(5, 40))]
                listener.kill()
                child.kill()
                acknowledged += child.all_heard()
        stored = list(store.stream("s"))
        assert {str(entry.id) for entry in stored} >= set(acknowledged)
        assert [int(entry.fields["n"]) for entry in stored] == list(range(len(stored)))
        deadline = time.monotonic() + 10
        while len(heard) < len(stored) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert heard == list(range(len(stored)))  # it never fell behind the ring, so it missed none
        live.close()
        assert store.publish("a.b", {"n": len(stored)}) == 1
        assert (len(store.subjects), owners(store)) == (1, [os.getpid()])


def listen_killed(path: Path, say: Any) -> None:
    with raxlog.open(path, durability="relaxed") as store, store.subscribe("a.*") as live:
        say("ready")
        for _ in live:
            continue


def test_subscribing_and_closing_from_many_threads_leaves_nothing(store: raxlog.Store) -> None:
    errors: list[BaseException] = []

    def churn(who: int) -> None:
        try:
            for n in range(15):
                with store.subscribe(f"t.{who}") as live, store.channels.subscribe(f"c{who}") as client:
                    assert store.publish(f"t.{who}", {"n": n}) == 1
                    assert store.channels.publish(f"c{who}", str(n)) == 1
                    message, told = live.get(10), client.get(10)
                    assert message is not None
                    assert told is not None
                    assert (int(message.fields["n"]), told.data) == (n, str(n))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=churn, args=(who,)) for who in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert len(store.subjects) == 0
    assert store.channels.channels() == []


@pytest.mark.parametrize("opening", ["open", "readonly"])
def test_a_store_whose_leases_are_gone_with_their_file_still_opens(tmp_path: Path, opening: str) -> None:
    path = tmp_path / "s.rax"
    with Child(lambda say: listen(path, say, "a")) as child:
        child.heard()
        child.kill()
    (path / "shared").unlink()
    with raxlog.open(path, readonly=opening == "readonly") as store:
        assert len(store.subjects) == (opening == "readonly")


def publish_once(path: Path) -> list[Any]:
    def publish(say: Any) -> None:
        with raxlog.open(path) as mine:
            say(int(mine.publish("a", {"n": 1})))

    with Child(publish) as child:
        return child.finish()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a copy drops the lease")
def test_a_process_that_copies_the_folder_keeps_its_live_subscriptions(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"
    with raxlog.open(path) as store, store.subscribe("a") as live:
        shutil.copytree(path, tmp_path / "copy")
        assert publish_once(path) == [1]
        assert live.get(5) is not None


def test_a_process_whose_lease_was_replaced_is_told(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"
    with raxlog.open(path) as store, store.subscribe("a") as live:
        shutil.copy(path / "shared", tmp_path / "copy")
        (tmp_path / "copy").rename(path / "shared")
        assert publish_once(path) == [0]
        with pytest.raises(raxlog.StoreError, match="shared was replaced"):
            live.get(5)


def test_a_forked_child_has_leases_of_its_own_and_the_parents_outlive_it(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"
    with raxlog.open(path) as store, store.subscribe("a") as live:
        def work(say: Any) -> None:
            with store.subscribe("a") as own:
                say(int(store.publish("a", {"n": 0})))
                say(own.get(5) is not None)
            store.close()

        with Child(work) as child:
            assert child.finish() == [2, True]
        assert publish_once(path) == [1]
        assert [live.get(5) is not None for _ in range(2)] == [True, True]


def test_a_live_message_has_the_ids_of_its_entries_and_a_stream_is_followed_from_there(store: raxlog.Store) -> None:
    store.bind("orders.>", "all")
    store.bind("orders.eu.>", "eu")
    with store.subscribe("orders.>") as live:
        reached = [store.publish(f"orders.{zone}.new", {"n": n}) for n, zone in enumerate(["eu", "us", "eu"])]
        messages = [next(iter(live)) for _ in range(3)]
        assert [message.ids for message in messages] == [one.ids for one in reached]
        assert [set(message.ids) for message in messages] == [{"all", "eu"}, {"all"}, {"all", "eu"}]
        behind = [entry.id for entry in store.stream("all").follow(messages[0].ids["all"], 0)]
        assert behind == [message.ids["all"] for message in messages[1:]]
        assert messages[1].id == messages[1].ids["all"]
        with pytest.raises(raxlog.TransactionError):
            messages[1].ack()
        store.unbind(None, "all")
        store.unbind(None, "eu")
        store.publish("orders.us.new", {"n": 3})
        last = next(iter(live))
        assert (last.id, last.ids) == (None, {})
