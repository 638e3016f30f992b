"""A paused group delivers nothing, and its readers wait; a group is set to a time."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
import raxlog


@pytest.fixture
def group(store: raxlog.Store) -> raxlog.Group:
    return store.stream("orders").create_group("mail", start="0", create_stream=True)


def test_a_paused_group_delivers_nothing_until_it_is_resumed(store: raxlog.Store, group: raxlog.Group) -> None:
    orders = store.stream("orders")
    first, second = orders.extend([{"n": 1}, {"n": 2}])
    assert len(group.read("a", count=1)) == 1
    group.pause()
    assert group.paused
    assert group.read("b") == []
    assert group.read("b", claim_idle=0) == []
    assert [entry.id for entry in group.read("a", ids="0")] == [first]
    assert len(group.claim("b", first)) == 1
    with raxlog.open(store.path) as again:
        assert again.stream("orders").group("mail").paused
    found: list[raxlog.Entry] = []
    reader = threading.Thread(target=lambda: found.extend(group.read("c", timeout=10)))
    reader.start()
    orders.append({"n": 3})
    time.sleep(0.1)
    assert reader.is_alive()
    group.resume()
    reader.join(5)
    assert [entry.id for entry in found] == [second, orders.last_id]
    assert not group.paused
    assert group.read("b", ack=[first]) == []
    assert raxlog.check(store.path).ok


def test_a_pause_ends_by_itself(store: raxlog.Store, group: raxlog.Group) -> None:
    store.stream("orders").append({"n": 1})
    began = time.monotonic()
    group.pause(until=datetime.now(UTC) + timedelta(seconds=0.3))
    assert len(group.read("a", timeout=5)) == 1
    assert 0.25 < time.monotonic() - began < 2
    for wrong in (datetime(2030, 1, 1), 5, "5-0"):
        with pytest.raises(raxlog.InvalidArgument):
            group.pause(until=wrong)  # type: ignore[arg-type]


def test_a_filtered_group_is_paused_too(store: raxlog.Store) -> None:
    store.bind("orders.>", "orders")
    group = store.stream("orders").create_group("eu", start="0", create_stream=True, subjects="orders.eu")
    group.pause()
    for zone in ("us", "eu"):
        store.publish(f"orders.{zone}", {"n": 1})
    assert group.read("a") == []
    assert group.lag == 1
    group.resume()
    assert [entry.subject for entry in group.read("a")] == ["orders.eu"]


def test_a_group_is_set_to_a_time_and_says_before_how_much_that_is(store: raxlog.Store, group: raxlog.Group) -> None:
    orders = store.stream("orders")
    for ms in (1_000, 2_000, 3_000):
        orders.extend([{"n": ms}] * 10, ids=[raxlog.StreamID(ms, seq) for seq in range(10)])
    group.read("a", noack=True)
    at = datetime.fromtimestamp(2, UTC)
    assert group.entries_after(at) == 20
    assert group.lag == 0
    group.set_id(at)
    assert group.lag == 20
    assert len(group.read("a")) == 20
    group.set_id("$")
    assert group.lag == 0
    group.set_id(datetime.fromtimestamp(0, UTC))
    assert group.lag == 30
    with store.transaction() as tx:
        tx.stream("orders").append({"n": 4})
        assert tx.group("orders", "mail").entries_after("0") == 31
        assert tx.group("orders", "mail").entries_after("$") == 0
