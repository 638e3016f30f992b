"""Who owns a pending entry: a consumer that has lost its claim stores no result, by ack(consumer=)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import raxlog
from children import Child, wait_until_stopped
from raxlog import NotOwner, StreamID


@pytest.fixture
def orders(store: raxlog.Store) -> raxlog.Store:
    """Stream orders with 1-0 … 6-0; group billing has given 1-0 … 3-0 to w1, 4-0 to w2."""
    stream = store.stream("orders")
    stream.extend([{"n": n} for n in range(6)], ids=[f"{n + 1}-0" for n in range(6)])
    group = stream.create_group("billing", "0")
    group.read("w1", count=3)
    group.read("w2", count=1)
    return store


def billing(store: raxlog.Store) -> raxlog.Group:
    return store.stream("orders").group("billing")


def owners(store: raxlog.Store) -> dict[str, Any]:
    return {str(row.id): row.consumer for row in billing(store).pending_entries("-")}


BEFORE = {"1-0": "w1", "2-0": "w1", "3-0": "w1", "4-0": "w2"}


def results(store: raxlog.Store) -> list[bytes]:
    return [entry.fields["by"] for entry in store.stream("results").range()]


def work_off(store: raxlog.Store, by: str, batch: list[raxlog.Entry], **options: Any) -> int:
    """Store a result and acknowledge, in one transaction; the work itself has been done outside."""
    with store.transaction() as tx:
        tx.stream("results").append({"by": by})
        return tx.group("orders", "billing").ack(*[entry.id for entry in batch], **options)


# -- the fault, and its end -------------------------------------------------------------------


@pytest.mark.parametrize("done", [False, True], ids=["at work", "done"])
def test_two_consumers_of_one_entry_store_one_result(store: raxlog.Store, done: bool) -> None:
    """One is stopped at its work, another takes the entry over; whichever is first, one result is stored."""
    store.stream("orders").append({"n": 1})
    store.stream("orders").create_group("billing", "0")

    def first(say: Callable[[Any], None]) -> None:
        batch = billing(store).read("w1")
        say("read")
        signal.sigwait({signal.SIGUSR1})  # the work
        try:
            say(work_off(store, "w1", batch, consumer="w1"))
        except NotOwner as error:
            say((str(error), error.ids == (batch[0].id,)))

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    with Child(first) as child:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        assert child.heard() == "read"
        child.send(signal.SIGSTOP)
        wait_until_stopped(child.pid)
        taken = billing(store).read("w2", claim_idle=0.0)
        assert len(taken) == 1
        if done:
            assert work_off(store, "w2", taken, consumer="w2") == 1
        child.send(signal.SIGUSR1)
        child.send(signal.SIGCONT)
        text, ids = child.finish()[0]
    assert ids
    assert ("not pending" if done else "with 'w2'") in text
    if not done:
        assert work_off(store, "w2", taken, consumer="w2") == 1
    assert results(store) == ["w2"]


def test_without_a_consumer_redis_rule_holds_and_the_result_is_there_twice(orders: raxlog.Store) -> None:
    late = billing(orders).read("w1", ids="0", count=1)
    taken = billing(orders).claim("w2", "1-0")
    assert [work_off(orders, "w1", late), work_off(orders, "w2", taken)] == [1, 0]
    assert results(orders) == ["w1", "w2"]


# -- what NotOwner says and does --------------------------------------------------------------


def test_all_or_none_and_the_error_names_each_entry_and_its_owner(orders: raxlog.Store) -> None:
    group = billing(orders)
    group.nack("3-0")
    before = owners(orders)
    with pytest.raises(NotOwner) as raised:
        group.ack("1-0", "3-0", "4-0", "9-0", "4-0", consumer="w1")
    error = raised.value
    assert isinstance(error, raxlog.StreamError)
    assert error.ids == (StreamID("3-0"), StreamID("4-0"), StreamID("9-0"))
    assert "consumer 'w1' of group 'billing' of stream 'orders' does not own 3 of 4 entries" in str(error)
    assert "3-0 (released), 4-0 (with 'w2'), 9-0 (not pending)" in str(error)
    assert owners(orders) == before
    assert group.ack("2-0", "1-0", "1-0", consumer="w1") == 2
    assert group.ack(consumer="w1") == 0
    assert raxlog.check(orders.path).ok


@pytest.mark.parametrize("consumer", ["w2", "nobody ever", b"\xff"])
def test_a_consumer_without_the_entry_is_refused_whether_or_not_it_exists(orders: raxlog.Store, consumer: Any) -> None:
    with pytest.raises(NotOwner):
        billing(orders).ack("1-0", consumer=consumer)
    assert owners(orders) == BEFORE
    assert len(billing(orders).consumers()) == 2


def test_where_there_is_no_group_nothing_is_owned(orders: raxlog.Store) -> None:
    for group in (orders.stream("orders").group("none"), orders.stream("none").group("billing")):
        assert group.ack("1-0") == 0
        with pytest.raises(NotOwner, match="not pending"):
            group.ack("1-0", consumer="w1")


def test_a_message_lists_twenty_and_the_error_all(orders: raxlog.Store) -> None:
    with pytest.raises(NotOwner, match=r"own 500 of 503 entries: 4-0 .* and 480 more") as raised:
        billing(orders).ack(*range(1, 504), consumer="w1")
    assert len(raised.value.ids) == 500


def test_ack_delete_is_refused_in_the_same_way(orders: raxlog.Store) -> None:
    with pytest.raises(NotOwner):
        billing(orders).ack_delete("1-0", "4-0", consumer="w1")
    assert owners(orders) == BEFORE
    assert len(orders.stream("orders")) == 6
    assert billing(orders).ack_delete("1-0", "2-0", consumer="w1") == [1, 1]
    assert len(orders.stream("orders")) == 4


# -- transactions -----------------------------------------------------------------------------


def acknowledge(tx: raxlog.Transaction) -> None:
    tx.group("orders", "billing").ack("1-0", "4-0", consumer="w1")


def acknowledge_and_delete(tx: raxlog.Transaction) -> None:
    tx.group("orders", "billing").ack_delete("4-0", consumer="w1")


@pytest.mark.parametrize("caught", [False, True], ids=["raised", "caught inside"])
@pytest.mark.parametrize("act", [acknowledge, acknowledge_and_delete])
def test_not_owner_undoes_the_transaction_also_where_it_is_caught(
    orders: raxlog.Store, caught: bool, act: Callable[[raxlog.Transaction], None]
) -> None:
    def run() -> None:
        with orders.transaction() as tx:
            tx.stream("results").append({"by": "w1"})
            tx.state["sold"] = "1"
            try:
                act(tx)
            except NotOwner:
                if not caught:
                    raise
            tx.stream("results").append({"by": "w1, later"})

    with pytest.raises(NotOwner, match=r"4-0 \(with 'w2'\)"):
        run()
    assert not results(orders)
    assert dict(orders.state) == {}
    assert owners(orders) == BEFORE
    assert work_off(orders, "w1", [], consumer="w1") == 0
    assert raxlog.check(orders.path).ok


def test_a_transaction_owns_what_it_has_read_or_claimed(orders: raxlog.Store) -> None:
    with orders.transaction() as tx:
        group = tx.group("orders", "billing")
        read = group.read("w1", count=1)
        claimed = group.claim("w1", "4-0")
        idle = group.autoclaim("w3", start="2-0", count=1).entries
        assert group.ack(*[entry.id for entry in read]) == 1
        assert group.ack(*[entry.id for entry in claimed], consumer="w1") == 1
        assert group.ack(*[entry.id for entry in idle], consumer="w3") == 1
    assert owners(orders) == {"1-0": "w1", "3-0": "w1"}


def test_checked_acknowledgement_and_the_next_read_are_one_commit(orders: raxlog.Store) -> None:
    with orders.transaction() as tx:
        group = tx.group("orders", "billing")
        assert group.ack("1-0", "2-0", "3-0", consumer="w1") == 3
        assert [str(entry.id) for entry in group.read("w1", count=1)] == ["5-0"]
    assert owners(orders) == {"4-0": "w2", "5-0": "w1"}


def test_an_error_that_is_refused_spoils_no_other_call_of_its_commit(orders: raxlog.Store) -> None:
    """Threads that write at once share commits; a refusal is its caller's alone."""
    refused: list[NotOwner] = []

    def refuse() -> None:
        for _ in range(50):
            try:
                billing(orders).ack("4-0", consumer="w1")
            except NotOwner as error:
                refused.append(error)

    def append() -> None:
        for n in range(50):
            orders.stream("other").append({"n": n})

    threads = [threading.Thread(target=work) for work in (refuse, append, refuse, append)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(refused) == 100
    assert len(orders.stream("other")) == 100
    assert owners(orders) == BEFORE
