"""Publishing: whom a message reaches, live or durable, and what the number tells."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import raxlog
from children import Child
from counting import commits_of, other_threads
from raxlog.index.pubsub import inbox, live_subscription, ring
from raxlog.index.subjects import sublist
from raxlog.storage.format import records


def numbers(subscription: Any, count: int, timeout: float = 5.0) -> list[int]:
    """The numbers of the next messages."""
    found: list[int] = []
    for _ in range(count):
        message = subscription.get(timeout)
        assert message is not None, f"{count} were to come, these came: {found}"
        found.append(int(message.fields["n"]))
    return found


def test_a_live_subscription_gets_what_comes_after_it_and_nothing_from_before(store: raxlog.Store) -> None:
    with store.subscribe("other"):
        assert store.publish("a.b", {"n": 0}) == 0
        with store.subscribe("a.*") as first:
            assert store.publish("a.b", {"n": 1}) == 1
            with store.subscribe("a.>") as second:
                assert store.publish("a.b", {"n": 2}) == 2
                assert store.publish("a.b.c", {"n": 3}) == 1
                assert numbers(first, 2) == [1, 2]
                assert numbers(second, 2) == [2, 3]
                assert first.get(0) is None
        assert store.publish("a.b", {"n": 4}) == 0


def test_the_number_tells_its_parts(store: raxlog.Store) -> None:
    store.bind("a", "s")
    with store.subscribe("a"), store.subscribe("a", queue="q"), store.subscribe("*", queue="q"), \
            store.subscribe_durable("a", durable="d"):
        reached = store.publish("a", {"n": 1})
        assert (reached, reached.bindings, reached.durables, reached.live) == (4, 1, 1, 2)
        assert repr(reached) == "Reached(4: bindings=1, durables=1, live=2)"


def test_without_interest_nothing_is_written(store: raxlog.Store) -> None:
    store.bind("a", "s")
    before = commits_of(store)
    assert store.publish("b", {"n": 1}) == 0
    assert commits_of(store) == before


def test_a_publish_matches_its_subject_once(store: raxlog.Store) -> None:
    store.bind("a", "s")
    before = store.subjects.statistics().matches
    assert store.publish("a", {"n": 1}) == 1
    assert store.subjects.statistics().matches == before + 1


def test_a_message_goes_where_the_index_leads_when_it_is_written(store: raxlog.Store) -> None:
    store.bind("a", "first")
    matches = store.subjects.statistics().matches
    with ThreadPoolExecutor(1) as pool:
        with store.transaction() as tx:
            tx.unbind("a", "first")
            tx.bind("*", "second")
            publishing = pool.submit(store.publish, "a", {"n": 1})
            while store.subjects.statistics().matches == matches:  # until it has found the first; then it waits
                time.sleep(0.001)
        assert [*publishing.result().ids] == ["second"]
    assert len(store.stream("first")) == 0


def test_members_of_a_queue_share_the_messages_over_all_their_patterns(store: raxlog.Store) -> None:
    with store.subscribe("a.*", queue="q") as one, store.subscribe("a.>", queue="q") as two, \
            store.subscribe("a.b", queue="other") as other:
        for n in range(200):
            assert store.publish("a.b", {"n": n}) == 2
        assert numbers(other, 200) == list(range(200))
        deadline = time.monotonic() + 10
        while len(one) + len(two) < 200 and time.monotonic() < deadline:
            time.sleep(0.001)
        shares = [numbers(one, len(one)), numbers(two, len(two))]
        assert sorted(shares[0] + shares[1]) == list(range(200))
        assert min(map(len, shares)) > 40


def test_a_member_gets_as_much_of_its_queue_as_its_weight_says(store: raxlog.Store) -> None:
    with store.subscribe("a", queue="q", weight=9) as heavy, store.subscribe("a", queue="q") as light:
        for n in range(300):
            store.publish("a", {"n": n})
        deadline = time.monotonic() + 10
        while len(heavy) + len(light) < 300 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert len(heavy) + len(light) == 300
        assert 230 <= len(heavy) <= 295


def test_a_hook_for_exceptions_that_raises_ends_no_callbacks(
    store: raxlog.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(threading, "excepthook", refuse)
    seen: list[live_subscription.Message] = []
    came = threading.Event()

    def handle(message: live_subscription.Message) -> None:
        seen.append(message)
        if len(seen) == 2:
            came.set()
        raise ValueError

    with store.subscribe("a.>", callback=handle):
        store.publish("a.b", {"n": 1})
        store.publish("a.b", {"n": 2})
        assert came.wait(10)


def test_a_callback_is_called_in_order_and_a_failing_one_goes_on(
        store: raxlog.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[int] = []
    reported: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    done = threading.Event()

    def take(message: live_subscription.Message) -> None:
        n = int(message.fields["n"])
        got.append(n)
        if n == 19:
            done.set()
        if n == 3:
            raise ValueError("three")

    with store.subscribe("a", callback=take) as subscription:
        for n in range(20):
            store.publish("a", {"n": n})
        assert done.wait(10)
        with pytest.raises(raxlog.InvalidArgument, match="callback"):
            subscription.get(0)
    assert got == list(range(20))
    assert [str(report.exc_value) for report in reported] == ["three"]


def test_an_exception_from_outside_in_the_thread_of_callbacks_is_reported_and_the_next_message_is_called_with(
    store: raxlog.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    heard: list[int] = []
    with store.subscribe("a", callback=lambda message: heard.append(int(message.fields["n"]))):
        for n in range(5):
            deadline = time.monotonic() + 10
            while heard != [*heard[:-1], n]:  # a message that meets the exception may be lost, as any live one may
                assert time.monotonic() < deadline, (n, heard)
                store.publish("a", {"n": n})
                time.sleep(0.01)
            (ident,) = (one.ident for one in threading.enumerate() if one.name == "raxlog callbacks")
            assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(SystemError)) == 1
    assert [one.exc_type for one in reported] in ([SystemError] * 4, [SystemError] * 5)


def test_iterating_ends_when_somebody_closes_the_subscription(store: raxlog.Store) -> None:
    subscription = store.subscribe("a")
    got: list[int] = []

    def take() -> None:
        for message in subscription:
            got.append(int(message.fields["n"]))

    thread = threading.Thread(target=take)
    thread.start()
    store.publish("a", {"n": 1})
    deadline = time.monotonic() + 5
    while not got and time.monotonic() < deadline:
        time.sleep(0.001)
    subscription.close()
    thread.join(5)
    assert not thread.is_alive()
    assert got == [1]


def test_a_task_iterates_without_holding_up_its_loop(store: raxlog.Store) -> None:
    async def take(subscription: Any) -> list[int]:
        found = []
        async for message in subscription:
            found.append(int(message.fields["n"]))
            if subscription is not live:
                message.ack()
            if len(found) == 3:
                break
        return found

    async def main() -> list[list[int]]:
        tasks = [asyncio.create_task(take(live)), asyncio.create_task(take(durable))]
        await asyncio.sleep(0.05)  # both wait by now, and the loop still turns
        for n in range(3):
            await asyncio.to_thread(store.publish, "a", {"n": n})
            await asyncio.sleep(0.01)
        return await asyncio.wait_for(asyncio.gather(*tasks), 10)

    with store.subscribe("a") as live, store.subscribe_durable("a", durable="d") as durable:
        assert asyncio.run(main()) == [[0, 1, 2], [0, 1, 2]]


def test_a_task_that_is_cancelled_leaves_the_subscription_to_others(store: raxlog.Store) -> None:
    async def main() -> int:
        waiting = asyncio.create_task(live.__anext__())
        await asyncio.sleep(0.02)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        store.publish("a", {"n": 5})
        return int((await asyncio.wait_for(live.__anext__(), 5)).fields["n"])

    with store.subscribe("a") as live:
        assert asyncio.run(main()) == 5


def test_closing_ends_a_task_that_waits(store: raxlog.Store) -> None:
    async def main() -> list[Any]:
        async def collect() -> list[Any]:
            return [message async for message in live]

        task = asyncio.create_task(collect())
        await asyncio.sleep(0.02)
        live.close()
        return await asyncio.wait_for(task, 5)

    live = store.subscribe("a")
    assert asyncio.run(main()) == []


def test_a_full_queue_drops_and_counts(store: raxlog.Store) -> None:
    with store.subscribe("a", max_queued=5) as small, store.subscribe("a") as large:
        for n in range(20):
            store.publish("a", {"n": n})
        assert numbers(large, 20) == list(range(20))
        assert numbers(small, 5) == [0, 1, 2, 3, 4]
        assert small.dropped == 15
        assert large.dropped == 0


def test_a_transaction_is_heard_of_after_its_commit(store: raxlog.Store) -> None:
    with store.subscribe("a") as live:
        with store.transaction() as tx:
            assert tx.publish("a", {"n": 1}) == 1
            assert live.get(0.05) is None
        assert numbers(live, 1) == [1]
        with pytest.raises(raxlog.InvalidFields), store.transaction() as tx:
            tx.publish("a", {} if tx.publish("a", {"n": 2}) else {"n": 3})
        store.publish("a", {"n": 3})
        assert numbers(live, 1) == [3]


def test_a_store_that_is_closed_ends_its_subscriptions(tmp_path: Path) -> None:
    store = raxlog.open(tmp_path / "s.rax")
    live, durable = store.subscribe("a"), store.subscribe_durable("a", durable="d")
    channel = store.channels.subscribe("a")
    ended: list[str] = []

    def wait(what: str, subscription: Any) -> None:
        assert subscription.get() is None
        ended.append(what)

    threads = [threading.Thread(target=wait, args=pair)
               for pair in (("live", live), ("durable", durable), ("channel", channel))]
    for thread in threads:
        thread.start()
    store.close()
    for thread in threads:
        thread.join(5)
    assert sorted(ended) == ["channel", "durable", "live"]
    with raxlog.open(tmp_path / "s.rax") as again:
        assert again.publish("a", {"n": 1}) == 1  # the durable one
        assert again.channels.channels() == []
        assert len(again.subjects) == 1


def test_many_subscriptions_take_two_threads(store: raxlog.Store) -> None:
    before = len(other_threads())
    subscriptions = [store.subscribe(f"a.{n}") for n in range(50)]
    assert len(other_threads()) <= before + 2
    for n in range(50):
        store.publish(f"a.{n}", {"n": n})
    assert [numbers(subscription, 1)[0] for subscription in subscriptions] == list(range(50))


def test_the_ring_keeps_no_more_than_it_may(store: raxlog.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "MOST_MESSAGES", 50)
    with store.subscribe("a") as live:
        for n in range(300):
            store.publish("a", {"n": n})
            numbers(live, 1)
    with store._env.read() as txn:
        following, first = ring.position(txn)
        assert (following, first) == (301, 251)
        assert [number for number, _ in ring.messages(txn, 1, 1000)] == list(range(251, 301))


def test_who_falls_behind_the_ring_is_told_how_many_it_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "MOST_MESSAGES", 20)
    path = tmp_path / "s.rax"

    def publish(say: Any) -> None:
        with raxlog.open(path) as mine, mine.transaction() as tx:
            for n in range(100):  # in one commit: nobody can look in between
                tx.publish("a", {"n": n})

    with raxlog.open(path) as store, store.subscribe("a") as live:
        with Child(publish) as child:
            child.finish()
        assert numbers(live, 20) == list(range(80, 100))
        assert live.missed_at_most == 80


@pytest.mark.parametrize("options", [
    {"subject": "a..b"}, {"subject": "a.>.b"}, {"subject": None}, {"queue": ""}, {"queue": 3.5}, {"weight": 0},
    {"weight": "x"}, {"max_queued": 0}, {"max_queued": 2.5}, {"callback": 5},
    {"durable": ""}, {"durable": "\0x"}, {"durable": "d" * 300},
    {"durable": "d", "prefetch": 0}, {"durable": "d", "ack_wait": 0}, {"durable": "d", "ack_wait": -1},
    {"durable": "d", "ack_wait": "x"},
])
def test_what_cannot_be_subscribed_to_is_refused_and_leaves_nothing(store: raxlog.Store, options: Any) -> None:
    subject = options.pop("subject", "a")
    with pytest.raises(raxlog.InvalidArgument):
        (store.subscribe_durable if "durable" in options else store.subscribe)(subject, **options)
    assert len(store.subjects) == 0
    assert store.streams() == []
    assert store.publish("a", {"n": 1}) == 0


def test_a_live_message_takes_no_ack(store: raxlog.Store) -> None:
    with store.subscribe("a") as live:
        store.publish("a", {"n": 1})
        message = live.get(5)
        assert message is not None
        with pytest.raises(raxlog.TransactionError, match="durable"):
            message.ack()


def test_one_after_the_other_each_gets_its_own_message_once(store: raxlog.Store) -> None:
    for n in range(100):
        with store.subscribe("a") as live:
            assert store.publish("a", {"n": n}) == 1
            assert numbers(live, 1) == [n]
            assert live.get(0) is None


def test_nothing_is_closed_by_a_thread_inside_its_transaction(tmp_path: Path) -> None:
    store = raxlog.open(tmp_path / "s.rax")
    live, client = store.subscribe("a"), store.channels.subscribe("c")
    with store.transaction() as tx:
        for close in (store.close, live.close, client.close):
            with pytest.raises(raxlog.TransactionError):
                close()
        assert tx.publish("a", {"n": 1}) == 1
    assert numbers(live, 1) == [1]
    assert store.channels.publish("c", "x") == 1
    store.close()
    assert live.closed


@pytest.mark.parametrize("timeout", [-1, True, "1", float("nan"), float("inf"), 10**400])
def test_a_wait_of_no_number_of_seconds_is_refused(store: raxlog.Store, timeout: Any) -> None:
    with store.subscribe("a") as live, store.watch("a") as watch:
        with pytest.raises(raxlog.InvalidArgument, match="timeout"):
            live.get(timeout)
        with pytest.raises(raxlog.InvalidArgument, match="timeout"):
            watch.wait(timeout)


def test_a_wait_of_centuries_is_a_wait(store: raxlog.Store) -> None:
    with store.subscribe("a") as live:
        later = threading.Timer(0.05, store.publish, ("a", {"n": 1}))
        later.start()
        assert numbers(live, 1, timeout=1e11) == [1]
        later.join()


@pytest.mark.parametrize("options", [
    {}, {"owner": "session1"}, {"owner": "a name of more than eight bytes"}, {"owner": b"\xff" * 8},
    {"owner": "o" * 30, "queue": "q"}, {"kind": 2, "name": "n"}, {"kind": 3}, {"kind": 3, "options": {"stream": 5}},
])
def test_what_others_put_into_the_index_is_passed_over_and_kept(store: raxlog.Store, options: Any) -> None:
    with store.subscribe("a", queue=options.get("queue")) as live:
        number = store.subjects.insert("a", **options)
        for n in range(3):
            assert store.publish("a", {"n": n}) == 1
        assert numbers(live, 3) == [0, 1, 2]
    assert store.publish("a", {"n": 3}) == 0
    assert store.subjects.get(number).subject == "a"


class Unreadable(inbox.Inbox[Any]):
    """An inbox whose messages cannot be taken, as when the disk is full."""

    def close(self) -> None:
        inbox.end(self)

    def _take(self) -> Any:
        raise raxlog.StoreFull("no room")


def test_a_callback_whose_messages_cannot_be_had_is_reported_once_for_each_signal(
        monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    callbacks = inbox.Callbacks()
    unreadable = Unreadable(print, callbacks)
    for count in (1, 2):
        inbox.signal(unreadable)
        time.sleep(0.1)
        assert len(reported) == count
    callbacks.close()


def test_what_stops_a_process_from_listening_is_raised_to_who_waits(store: raxlog.Store) -> None:
    live = store.subscribe("a")
    key = ring.ROWS + (1).to_bytes(8, "big")

    def damaged(txn: Any) -> None:
        txn.put(key, b"damaged beyond reading")
        txn.put(ring.STATE_KEY, records.seal(ring.STATE_KEY, [2, 1, 22]))

    store._source.submit(damaged)
    with pytest.raises(raxlog.CorruptionError):
        live.get(5)
    assert live.closed


def test_with_an_encoding_messages_and_names_are_text(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax", encoding="utf-8") as store, store.subscribe("a.*", queue="q") as live:
        binding = store.bind("a.>", "ströme")
        reached = store.publish("a.ü", {"x": "ö"})
        assert (binding.stream, list(reached.ids)) == ("ströme", ["ströme"])
        message = live.get(5)
        assert message is not None
        assert (message.subject, message.fields, live.queue) == ("a.ü", {"x": "ö"}, "q")
        assert message.to_dict() == {"subject": "a.ü", "fields": {"x": "ö"}, "id": str(reached.ids["ströme"])}
        assert next(iter(store.stream("ströme"))).subject == "a.ü"


@pytest.mark.parametrize("name", [ring.STATE_KEY, sublist.STATE_KEY])
def test_a_stream_may_have_the_name_of_a_record_that_publishing_keeps_warm(store: raxlog.Store, name: bytes) -> None:
    store.bind("a", "s")
    with store.subscribe("a") as subscription:
        for n in range(3):
            assert store.publish("a", {"n": n}) == 2
            store.stream(name).append({"n": n})
            assert subscription.get(timeout=5).fields["n"] == str(n)
    assert (len(store.stream(name)), len(store.stream("s"))) == (3, 3)
    store.bind("a", "t")
    assert list(store.publish("a", {"n": 3}).ids) == ["s", "t"]
