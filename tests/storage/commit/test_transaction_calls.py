"""What a transaction can do beside appending, and that an error that changed nothing spoils nothing."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import raxlog
from raxlog import (
    ConsumerBusy,
    GroupExists,
    IDTooSmall,
    InvalidArgument,
    NoGroup,
    NoStream,
    StreamExists,
    TransactionError,
)


def test_streams_are_deleted_renamed_copied_and_created_with_limits_all_or_none(store: raxlog.Store) -> None:
    for name in ("a", "b"):
        store.stream(name).append({"of": name}, "1-0")

    def change(tx: raxlog.Transaction) -> None:
        assert tx.delete_stream("a")
        assert not tx.delete_stream("a")
        assert tx.rename_stream("b", "a")
        assert not tx.rename_stream("a", "a")
        tx.copy_stream("a", "c")
        tx.stream("c").append({"of": "c"}, "2-0")
        small = tx.stream("small", node_max_entries=2)
        small.extend([{"n": n} for n in range(5)])
        read = tx.read({"a": "0", "b": "0", "c": "1-0"})
        assert read == {"a": [*tx.stream("a")], "c": [*tx.stream("c").range("2-0")]}

    with suppress(KeyError), store.transaction() as tx:
        change(tx)
        raise KeyError
    assert store.streams() == ["a", "b"]
    with store.transaction() as tx:
        change(tx)
    assert store.streams() == ["a", "c", "small"]
    assert [entry.fields for entry in store.stream("a")] == [{"of": "b"}]
    assert [entry.fields for entry in store.stream("c")] == [{"of": "b"}, {"of": "c"}]
    assert store.stream("small").info().radix_tree_keys == 3
    assert raxlog.check(store.path).ok


def test_several_groups_are_read_and_bindings_made_in_it(store: raxlog.Store) -> None:
    for name in ("a", "b"):
        store.stream(name).create_group("g", "0", create_stream=True)
    with store.transaction() as tx:
        tx.bind("eu.>", "a")
        assert tx.publish("eu.new", {"n": 1}) == 1
        tx.stream("b").append({"n": 2}, "1-0")
        read = tx.read_group("g", "w", {"a": ">", "b": ">"}, noack=False)
        assert [len(read[name]) for name in ("a", "b")] == [1, 1]
        assert tx.read_group("g", "w", {"b": "0"}, ack={"b": ["1-0"]}) == {"b": []}
        assert tx.unbind("eu.>", "a")
        with pytest.raises(TransactionError):
            store.bind("us.>", "a")
    assert store.bindings() == []
    assert [store.stream(name).group("g").info().pending for name in ("a", "b")] == [1, 0]


def test_a_copy_has_all_that_is_in_the_stream(store: raxlog.Store) -> None:
    original = store.stream("a", node_max_entries=3)
    original.extend([{"n": n} for n in range(1000)], ids=[f"{n}-1" for n in range(1, 1001)])
    original.delete(*[f"{n}-1" for n in range(5, 900, 7)])
    original.configure(schema={"n": "bigint"}, codec="json")
    original.defer({"n": "late"}, delay=1000)
    original.append({"n": 1}, producer="p", idempotent_id="i")
    for name in ("g", "h", "gone"):
        group = original.create_group(name, "0")
        group.read("w", count=250)
        group.read("v", count=50)
        group.nack("7-1", delay=1000)
    group.destroy()
    original.append({"n": 2})  # in the warm tail
    store.copy_stream("a", "b")
    copy = store.stream("b")
    ours, theirs = original.full_info(count=None), copy.full_info(count=None)
    assert replace(theirs, stream=replace(theirs.stream, name="a")) == ours
    assert list(copy) == list(original)
    assert copy.append({"n": 9}, producer="p", idempotent_id="i") == original.append({"n": 9}, producer="p",
                                                                                     idempotent_id="i")
    copy.append({"n": 3})
    copy.group("g").read("w")
    store.stream("a").delete("1-1")
    assert copy.get("1-1") is not None
    with pytest.raises(StreamExists):
        store.copy_stream("a", "b")
    with pytest.raises(StreamExists):
        store.copy_stream("a", "a")
    with pytest.raises(NoStream):
        store.copy_stream("none", "c")
    assert raxlog.check(store.path).ok


def test_an_error_that_changed_nothing_spoils_nothing(path: Path) -> None:
    with raxlog.open(path) as store:
        store.stream("a").append({"n": 0}, "1-0")
        store.stream("a").create_group("g", "0").read("w")
        with store.transaction() as tx:
            stream, group = tx.stream("a"), tx.group("a", "g")
            stream.append({"n": 1}, "5-0")  # so that the stream is dirty in each of these
            stream.append({"n": 1}, "6-0")
            stream.delete("6-0")
            for refused, call in (
                (IDTooSmall, lambda: stream.append({"n": 2}, "5-0")),
                (IDTooSmall, lambda: stream.set_id("4-0")),
                (IDTooSmall, lambda: stream.set_id("5-5")),
                (InvalidArgument, lambda: stream.set_id("9-0", entries_added=0)),
                (IndexError, lambda: stream.select(17)),
                (GroupExists, lambda: stream.create_group("g", "$")),
                (NoGroup, lambda: tx.group("a", "none").read("w")),
                (NoGroup, lambda: tx.read_group("none", "w", {"a": ">"})),
                (ConsumerBusy, lambda: group.delete_consumer("w")),
                (NoStream, lambda: tx.stream("none").full_info()),
                (NoStream, lambda: tx.rename_stream("none", "b")),
                (StreamExists, lambda: tx.copy_stream("a", "a")),
                (KeyError, lambda: tx.state.__delitem__("none")),
                (TransactionError, lambda: group.read("w", timeout=1)),
            ):
                with pytest.raises(refused):
                    call()
            stream.append({"n": 3}, "7-0")
        assert [str(entry.id) for entry in store.stream("a")] == ["1-0", "5-0", "7-0"]
        assert raxlog.check(path).ok
