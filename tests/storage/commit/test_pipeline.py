"""store.pipeline(): different calls, queued, then one commit and a result or an error of each."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import pytest
import raxlog
from counting import commits_of
from raxlog import Conflict, IDTooSmall, LockTimeout, NoGroup, NoStream, ReadOnlyStore, TransactionError


def test_calls_of_all_kinds_are_one_commit_and_each_has_its_result(store: raxlog.Store) -> None:
    orders = store.stream("orders")
    orders.create_group("billing", "0", create_stream=True)
    before = commits_of(store)
    with store.pipeline() as pipe:
        pipe.stream("orders").append({"n": 1}, "5-0").stream("orders").append({"n": 2}, "6-0")
        pipe.group("orders", "billing").read("w")
        pipe.group("orders", "billing").ack("5-0")
        pipe.stream("orders").range(count=1).stream("orders").length()
        pipe.state.set("at", b"6-0").state.get("at").state.delete("at")
        pipe.bind("eu.>", "europe").publish("eu.new", {"n": 3})
        pipe.copy_stream("orders", "copy").rename_stream("copy", "other").delete_stream("europe")
        pipe.read({"other": "5-0"}).read_group("billing", "v", {"other": "0"})
        assert len(pipe) == 16
        assert commits_of(store) == before
        results = pipe.execute()
        assert commits_of(store) <= before + 3  # one, and the sweep of the deleted stream
        assert len(pipe) == 0
        assert pipe.execute() == []
    first, second, read, acked, entries, length, _, at, _, _, reached, *rest, found, history = results
    assert [str(sid) for sid in (first, second)] == ["5-0", "6-0"] == [str(entry.id) for entry in read]
    assert ([str(entry.id) for entry in entries], acked, length, at, reached) == (["5-0"], 1, 2, b"6-0", 1)
    assert rest == [None, True, True]
    assert [str(entry.id) for entry in found["other"]] == ["6-0"]
    assert history == {"other": []}
    assert store.streams() == ["orders", "other"]
    assert len(store.state) == 0


def test_a_call_that_is_refused_costs_the_others_nothing(store: raxlog.Store) -> None:
    pipe = store.pipeline()
    pipe.stream("a").append({"n": 1}, "5-0")
    pipe.stream("a").append({"n": 2}, "5-0")
    pipe.stream("a").extend([{"n": 3}, {"n": 4}], ids=["7-0", "6-0"])  # fails half way
    pipe.group("a", "none").ack("5-0").group("a", "none").pending()
    pipe.stream("a").append(({"n": n} for n in range(2)), "8-0")  # no fields
    pipe.stream("a").append({"n": 5}, "9-0")
    results = pipe.execute(raise_on_error=False)
    kinds = [type(result) for result in results]
    assert kinds[:5] == [raxlog.StreamID, IDTooSmall, IDTooSmall, int, NoGroup]
    assert issubclass(kinds[5], raxlog.InvalidArgument)
    assert [str(entry.id) for entry in store.stream("a")] == ["5-0", "9-0"]

    pipe.stream("a").append({"n": 6}, expect_last="1-0").stream("b").info().stream("a").append({"n": 7}, "10-0")
    with pytest.raises(Conflict) as raised:
        pipe.execute()
    assert raised.value.__notes__ == ["by call 0 of the 3 calls of a pipeline"]
    assert str(store.stream("a").last_id) == "10-0"
    with pytest.raises(NoStream):
        pipe.stream("b").info().execute()


def test_what_was_not_executed_is_dropped(store: raxlog.Store) -> None:
    with store.pipeline() as pipe:
        pipe.stream("a").append({"n": 1})
    assert pipe.execute() == []
    with suppress(KeyError), store.pipeline() as pipe:
        pipe.stream("a").append({"n": 1})
        raise KeyError
    assert len(pipe) == 0
    assert not store.stream("a").exists()


def test_what_concerns_the_whole_is_the_error_of_each(path: Path) -> None:
    with raxlog.open(path, lock_timeout=0.1) as store:
        begun, end = threading.Event(), threading.Event()

        def hold() -> None:
            with store.transaction():
                begun.set()
                end.wait(20)

        holder = threading.Thread(target=hold)
        holder.start()
        begun.wait(20)
        pipe = store.pipeline().stream("a").append({"n": 1}).stream("a").append({"n": 2})
        assert [type(error) for error in pipe.execute(raise_on_error=False)] == [LockTimeout, LockTimeout]
        end.set()
        holder.join()
        with store.transaction(), pytest.raises(TransactionError):
            store.pipeline().stream("a").append({"n": 1}).execute()
    with raxlog.open(path, readonly=True) as store, pytest.raises(ReadOnlyStore):
        store.pipeline()


def test_buffered_appends_before_it_come_first(path: Path) -> None:
    with raxlog.open(path, durability="buffered") as store:
        first = store.stream("a").append({"n": 1})
        assert store.pipeline().stream("a").append({"n": 2}).stream("a").length().execute()[1] == 2
        assert next(iter(store.stream("a"))).id == first
