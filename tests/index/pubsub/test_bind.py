"""Bindings: what is published to a subject is in every bound stream, in one commit, with its subject."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import raxlog
from children import Child
from raxlog.index.pubsub.pubsub import Reached


def items(store: raxlog.Store, stream: str) -> list[tuple[Any, Any]]:
    return [(entry.subject, entry.fields["n"]) for entry in store.stream(stream)]


def test_a_publish_is_appended_to_every_bound_stream_with_its_subject(store: raxlog.Store) -> None:
    store.bind("orders.>", stream="orders")
    store.bind("orders.eu.*", stream="europe")
    assert store.publish("orders.eu.new", {"n": 1}) == 2
    assert store.publish("orders.us.new", {"n": 2}) == 1
    assert store.publish("mail.in", {"n": 3}) == 0
    assert items(store, "orders") == [("orders.eu.new", "1"), ("orders.us.new", "2")]
    assert items(store, "europe") == [("orders.eu.new", "1")]


def test_the_subject_is_the_first_field_and_goes_with_the_entry(store: raxlog.Store) -> None:
    store.bind("a.b", stream="s")
    reached = store.publish("a.b", [("x", 1), ("x", 2)])
    entry = store.stream("s").get(reached.ids["s"])
    assert entry is not None
    assert entry.pairs == [("$subject", "a.b"), ("x", "1"), ("x", "2")]
    assert entry.decoded("utf-8").subject == "a.b"
    store.stream("copy").append(entry.pairs)
    assert next(iter(store.stream("copy"))).subject == "a.b"
    store.stream("copy").append({"x": 1})
    assert [one.subject for one in store.stream("copy")] == ["a.b", None]


def test_a_stream_bound_twice_gets_a_message_once(store: raxlog.Store) -> None:
    store.bind("orders.>", stream="all")
    store.bind("orders.*", stream="all")
    reached = store.publish("orders.new", {"n": 1})
    assert (reached, reached.bindings, len(store.stream("all"))) == (2, 2, 1)


def test_the_same_binding_twice_is_one(store: raxlog.Store) -> None:
    first = store.bind("orders.>", "orders")
    assert store.bind("orders.>", "orders") == first
    assert store.bindings() == [first]
    assert (first.subject, first.stream) == ("orders.>", "orders")


def test_bindings_outlive_the_process_that_made_them(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax") as store:
        store.bind("a.*", "s")
    with raxlog.open(tmp_path / "s.rax") as store:
        assert store.publish("a.b", {"n": 1}) == 1
        assert store.unbind("a.*", "s")
        assert not store.unbind("a.*", "s")
    with raxlog.open(tmp_path / "s.rax") as store:
        assert store.publish("a.b", {"n": 2}) == 0
        assert items(store, "s") == [("a.b", "1")]


def test_all_bindings_of_a_stream_end_with_one_call(store: raxlog.Store) -> None:
    for pattern in ("a", "b.*", "c.>"):
        store.bind(pattern, "s")
    store.bind("a", "t")
    assert [binding.subject for binding in store.bindings("s")] == ["a", "b.*", "c.>"]
    assert store.unbind(None, "s")
    assert [(binding.subject, binding.stream) for binding in store.bindings()] == [("a", "t")]


def test_a_publish_that_fails_in_one_stream_is_in_none(store: raxlog.Store) -> None:
    store.bind("a", "first")
    store.bind("a", "full")
    store.bind("a", "last")
    store.stream("full").append({"n": 0}, id="18446744073709551615-18446744073709551615")
    with pytest.raises(raxlog.StreamExhausted):
        store.publish("a", {"n": 1})
    assert (len(store.stream("first")), len(store.stream("last"))) == (0, 0)


def test_a_transaction_publishes_with_its_commit_or_not_at_all(store: raxlog.Store) -> None:
    store.bind("a", "s")
    with store.transaction() as tx:
        reached = tx.publish("a", {"n": 1})
        assert isinstance(reached, Reached)
        assert reached == 1
        assert len(tx.stream("s")) == 1
        tx.state["done"] = b"1"
    with pytest.raises(raxlog.InvalidFields), store.transaction() as tx:
        tx.publish("a", tx.publish("a", {"n": 2}).ids and {})
    assert items(store, "s") == [("a", "1")]
    with pytest.raises(raxlog.TransactionError):
        tx.publish("a", {"n": 3})


@pytest.mark.parametrize("subject", [
    "", ".", "a.", ".a", "a..b", "a.*", ">", "a.>", "a.>.b", "a b", "a\tb", "a\x00b", "a" * 600, b"\xff.a", None, 7,
])
def test_a_wildcard_or_a_malformed_subject_cannot_be_published_to(store: raxlog.Store, subject: Any) -> None:
    store.bind(">", "all")
    with pytest.raises(raxlog.SubjectError):
        store.publish(subject, {"n": 1})
    assert len(store.stream("all")) == 0


@pytest.mark.parametrize(("subject", "stream", "error"), [
    ("", "s", raxlog.SubjectError), ("a.>.b", "s", raxlog.SubjectError), ("a..b", "s", raxlog.SubjectError),
    ("a b", "s", raxlog.SubjectError), (None, "s", raxlog.SubjectError), ("a", None, raxlog.InvalidName),
    ("a", "s" * 600, raxlog.InvalidName),
])
def test_what_cannot_be_bound_is_refused_and_leaves_nothing(
        store: raxlog.Store, subject: Any, stream: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        store.bind(subject, stream)
    assert store.bindings() == []


@pytest.mark.parametrize("fields", [{}, [], None, {"a": None}, {"a": True}, [("a",)], {"$subject": "x"}])
def test_fields_that_cannot_be_stored_are_refused_whoever_listens(store: raxlog.Store, fields: Any) -> None:
    with pytest.raises(raxlog.InvalidFields):
        store.publish("nobody", fields)
    store.bind("a", "s")
    with pytest.raises(raxlog.InvalidFields):
        store.publish("a", fields)
    assert len(store.stream("s")) == 0


def test_a_store_open_for_reading_publishes_and_binds_nothing(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax") as store:
        store.bind("a", "s")
    with raxlog.open(tmp_path / "s.rax", readonly=True) as store:
        assert len(store.bindings()) == 1
        for call in (lambda: store.publish("a", {"n": 1}), lambda: store.bind("b", "s"),
                     lambda: store.unbind("a", "s"), lambda: store.subscribe("a"), lambda: store.unsubscribe("d"),
                     lambda: store.subscribe_durable("a", durable="d"), lambda: store.channels.publish("a", "b"),
                     lambda: store.channels.subscribe("a")):
            with pytest.raises(raxlog.ReadOnlyStore):
                call()


def test_a_publisher_killed_at_any_moment_leaves_all_of_a_message_or_none(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"
    with raxlog.open(path) as store:
        for stream in ("one", "two", "three"):
            store.bind("a.*", stream)

    def publish(say: Any) -> None:
        with raxlog.open(path) as mine:
            n = len(mine.stream("one"))
            while True:
                mine.publish(f"a.{n}", {"n": n})
                say(n)
                n += 1

    for round_ in range(6):
        with Child(publish) as child:
            for _ in range(20 + 7 * round_):
                said = child.heard()
            child.kill()
            said = max([said, *child.all_heard()])
        with raxlog.open(path) as store:
            found = [items(store, stream) for stream in ("one", "two", "three")]
            assert found[0] == found[1] == found[2]
            assert [int(n) for _, n in found[0]] == list(range(len(found[0])))
            assert len(found[0]) > said
