"""Transactions, stopped writers and blocked readers: the right error at the right time, and no hang."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import raxlog
from children import Child, wait_until_stopped
from raxlog import InvalidName, LockTimeout, NoGroup, StoreClosed, TransactionError
from unharmed_queue import g, queue

__all__ = ["queue"]

Use = Callable[[raxlog.Store], Any]


# -- transactions ---------------------------------------------------------------------------


def test_a_transaction_is_no_use_to_another_thread(queue: raxlog.Store) -> None:
    said: list[Any] = []

    def use() -> None:
        for call in (
            lambda: stream.append({"n": 1}), lambda: list(stream.range()), lambda: group.read("new"),
            lambda: group.ack("2-0"), lambda: state.__setitem__("k", b"x"), lambda: tx.stream("s"),
            lambda: tx.__exit__(None, None, None),
        ):  # fmt: skip
            try:
                said.append(call())
            except TransactionError as error:
                said.append("another" in str(error))

    with queue.transaction() as tx:
        stream, group, state = tx.stream("s"), tx.group("s", "g"), tx.state
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
    assert said == [True] * 7


def test_two_threads_with_transactions_of_their_own_take_turns(store: raxlog.Store) -> None:
    def count_up() -> None:
        for _ in range(50):
            with store.transaction() as tx:
                tx.state["n"] = b"%d" % (int(tx.state.get("n", b"0")) + 1)
                tx.stream("s").append({"n": tx.state["n"]})

    threads = [threading.Thread(target=count_up) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.state["n"] == b"100"
    assert [entry.fields["n"] for entry in store.stream("s").range()] == [str(n) for n in range(1, 101)]


def test_a_thread_that_waits_too_long_for_anothers_transaction_is_told(queue: raxlog.Store) -> None:
    said: list[Any] = []

    def write() -> None:
        with raxlog.open(queue.path, lock_timeout=0.1) as impatient:
            for call in (lambda: g(impatient).ack("2-0"), lambda: impatient.transaction().__enter__()):
                with pytest.raises(LockTimeout, match=r"0\.1 s"):
                    call()
                said.append("timeout")

    with queue.transaction():
        thread = threading.Thread(target=write)
        thread.start()
        thread.join(10)
    assert said == ["timeout", "timeout"]


def test_a_transaction_cannot_be_taken_through_a_fork(queue: raxlog.Store) -> None:
    def work(say: Callable[[Any], None]) -> None:
        for call in (
            lambda: stream.append({"n": 1}), lambda: tx.state.get("k"), lambda: tx.__exit__(None, None, None),
        ):  # fmt: skip
            with pytest.raises(TransactionError, match="fork"):
                call()
        say("refused")

    with queue.transaction() as tx:
        stream = tx.stream("s")
        with Child(work) as child:
            assert child.finish() == ["refused"]


def test_waiting_while_ones_own_transaction_is_open_is_an_error_not_a_hang(queue: raxlog.Store) -> None:
    with queue.transaction():
        for wait in (lambda: queue.read({"s": "$"}, timeout=None), lambda: g(queue).read("c", timeout=None)):
            with pytest.raises(TransactionError):
                wait()


def test_inside_a_transaction_block_is_refused_and_nothing_is_read(queue: raxlog.Store) -> None:
    with queue.transaction() as tx:
        options: dict[str, Any]
        for options in ({}, {"claim_idle": 0.0}, {"ids": "0"}, {"ack": ["2-0"]}):
            with pytest.raises(TransactionError, match=r"timeout=.* inside a transaction"):
                tx.group("s", "g").read("c", timeout=5.0, **options)
        assert tx.group("s", "none").ack("1-0") == 0  # the transaction itself goes on


def test_an_entry_read_late_from_a_transaction_that_has_ended_is_refused(queue: raxlog.Store) -> None:
    with queue.transaction() as tx:
        entries = tx.stream("s").range()
    with pytest.raises(TransactionError, match="ended"):
        next(entries)
    with pytest.raises(TransactionError, match="not begun"):
        queue.transaction().stream("s")


def test_a_refused_call_inside_a_transaction_leaves_the_rest_of_it_alone(store: raxlog.Store) -> None:
    store.stream("s").append({"n": 1}, id="5-0")
    with store.transaction() as tx:
        tx.stream("s").append({"n": 2}, id="6-0")
        with pytest.raises(raxlog.IDTooSmall):
            tx.stream("s").append({"n": 3}, id="6-0")
        with pytest.raises(NoGroup):
            tx.group("s", "g").read("c")
        with pytest.raises(InvalidName):
            tx.group("s", None)
        tx.stream("s").append({"n": 4}, id="7-0")
    assert [str(entry.id) for entry in store.stream("s").range()] == ["5-0", "6-0", "7-0"]


# -- a writer that stands still -------------------------------------------------------------


def test_a_writer_that_was_stopped_costs_the_others_a_timeout_that_names_it(store: raxlog.Store) -> None:
    stream = store.stream("s")
    stream.extend([{"n": n} for n in range(3)])
    group = stream.create_group("g", "0")

    def hold(say: Callable[[Any], None]) -> None:
        with store.transaction() as tx:
            tx.state["done"] = b"by the one that was stopped"
            say("inside")
            time.sleep(0.3)

    with Child(hold) as child, raxlog.open(store.path, lock_timeout=0.3) as impatient:
        assert child.heard() == "inside"
        child.send(signal.SIGSTOP)
        wait_until_stopped(child.pid)
        hasty = g(impatient)
        for call in (
            lambda: hasty.read("c"), lambda: hasty.read("c", timeout=30), lambda: hasty.ack("1-0"),
            lambda: impatient.stream("s").append({"n": 9}), impatient.transaction().__enter__,
            lambda: impatient.read_group("g", "c", {"s": ">"}), hasty.destroy,
        ):  # fmt: skip
            began = time.monotonic()
            with pytest.raises(LockTimeout, match=f"process {child.pid} "):
                call()
            assert 0.25 < time.monotonic() - began < 3
        assert group.lag == 3  # reading needs no lock
        assert len(list(stream.range())) == 3
        patient: list[Any] = []
        thread = threading.Thread(target=lambda: patient.extend(group.read("c")))
        thread.start()
        time.sleep(0.1)
        assert thread.is_alive()
        child.send(signal.SIGCONT)
        thread.join(20)
        child.finish()
    assert len(patient) == 3
    assert store.state["done"] == b"by the one that was stopped"
    assert group.ack(*[entry.id for entry in patient]) == 3


def test_a_read_in_vain_beside_a_stopped_writer_gives_nothing(store: raxlog.Store) -> None:
    """Where nothing is to be delivered nor acknowledged the lock is not missed."""
    store.stream("s").extend([{"n": n} for n in range(3)], ids=["1-0", "2-0", "3-0"])
    store.stream("s").create_group("g", "0").read("c")  # all has been given
    before = [row.id for row in g(store).pending_entries("-")]

    def hold(say: Callable[[Any], None]) -> None:
        with store.transaction() as tx:
            tx.stream("s").append({"n": 6}, id="7-0")
            say("inside")
            time.sleep(30)

    with Child(hold) as child, raxlog.open(store.path, lock_timeout=0.1) as impatient:
        assert child.heard() == "inside"
        child.send(signal.SIGSTOP)
        wait_until_stopped(child.pid)
        hasty = g(impatient)
        for call, nothing in (
            (lambda: hasty.read("c"), []), (lambda: hasty.read("new", timeout=0.1), []),
            (lambda: hasty.read("c", claim_idle=1000), []), (lambda: hasty.read("new", ids="0"), []),
            (lambda: impatient.read_group("g", "c", {"s": ">"}), {}),
            (lambda: impatient.read_group("g", "new", {"s": "0"}), {"s": []}),
        ):  # fmt: skip
            assert call() == nothing
        for call in (
            lambda: hasty.read("c", ack=["2-0"]), lambda: hasty.read("d", claim_idle=0),
            lambda: hasty.read("c", ids="0"), lambda: impatient.stream("s").group("none").read("c"),
        ):  # fmt: skip
            with pytest.raises(LockTimeout, match=f"process {child.pid} "):
                call()
    assert [row.id for row in g(store).pending_entries("-")] == before
    store.stream("s").append({"n": 6})
    assert len(g(store).read("c")) == 1


# -- waiting --------------------------------------------------------------------------------


def blocked(store: raxlog.Store, **options: Any) -> tuple[threading.Thread, list[Any]]:
    """A thread that waits in a group read, and what comes of it."""
    said: list[Any] = []

    def read() -> None:
        try:
            said.append(g(store).read("w", timeout=None, **options))
        except raxlog.RaxlogError as error:
            said.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(0.15)
    assert not said
    return thread, said


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "by another process"])
@pytest.mark.parametrize(("end", "text"), [
    (lambda store: g(store).destroy(), "no consumer group 'g'"),
    (lambda store: store.delete_stream("s"), "no stream 's'"),
    (lambda store: store.rename_stream("s", "t"), "no stream 's'"),
])  # fmt: skip
def test_who_waits_for_a_group_that_goes_away_is_told(
    store: raxlog.Store, end: Use, text: str, elsewhere: bool
) -> None:
    store.stream("s").create_group("g", "$", create_stream=True)
    thread, said = blocked(store)
    if elsewhere:
        with Child(lambda say: say(end(store))) as child:
            child.finish()
    else:
        end(store)
    thread.join(5)
    assert len(said) == 1, "still asleep"
    assert isinstance(said[0], NoGroup)
    assert text in str(said[0])


def test_a_group_that_is_destroyed_in_a_transaction_wakes_its_readers_at_the_commit(store: raxlog.Store) -> None:
    store.stream("s").create_group("g", "$", create_stream=True)
    thread, said = blocked(store, claim_idle=60.0)
    with store.transaction() as tx:
        tx.group("s", "g").destroy()
        time.sleep(0.1)
        assert not said
    thread.join(5)
    assert isinstance(said[0], NoGroup)


def test_a_store_that_is_closed_wakes_its_readers(tmp_path: Path) -> None:
    store = raxlog.open(tmp_path / "s.rax")
    store.stream("s").create_group("g", "$", create_stream=True)
    thread, said = blocked(store)
    store.close()
    thread.join(5)
    assert isinstance(said[0], StoreClosed)


def test_ctrl_c_ends_a_blocked_read_and_leaves_the_store_usable(store: raxlog.Store) -> None:
    store.stream("s").create_group("g", "$", create_stream=True)

    def wait(say: Callable[[Any], None]) -> None:
        for options in ({"timeout": None}, {"timeout": 1000.0}, {"timeout": None, "claim_idle": 500.0}):
            say("waiting")
            try:
                g(store).read("w", **options)
            except KeyboardInterrupt:
                say("interrupted")
        entry = store.stream("s").append({"n": 1})
        say([found.id for found in g(store).read("w", timeout=5)] == [entry])

    with Child(wait) as child:
        for _ in range(3):
            assert child.heard() == "waiting"
            time.sleep(0.2)
            began = time.monotonic()
            os.kill(child.pid, signal.SIGINT)
            assert child.heard() == "interrupted"
            assert time.monotonic() - began < 2
        assert child.finish() == [True]
