"""Handles on a store: when it is closed, while a transaction is open, and when it gives text."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import raxlog


def test_handles_of_a_closed_store_refuse_even_while_another_keeps_it_open(tmp_path: Path) -> None:
    first = raxlog.open(tmp_path / "store.rax")
    with raxlog.open(tmp_path / "store.rax") as second:
        stream = first.stream("orders")
        group = stream.create_group("billing", "$", create_stream=True)
        first.close()
        for call in (lambda: stream.append({"n": 1}), lambda: len(stream), lambda: list(stream.range()),
                     lambda: group.read("w"), lambda: group.lag, stream.count):
            with pytest.raises(raxlog.StoreClosed):
                call()
        assert len(second.stream("orders")) == 0


@pytest.mark.parametrize("durability", ["commit", "buffered"])
def test_a_store_that_was_dropped_without_close_can_be_opened_in_another_way(tmp_path: Path, durability: Any) -> None:
    def drop() -> None:
        store = raxlog.open(tmp_path / "s.rax", durability=durability)
        with store.transaction() as tx:
            tx.stream("s").append({"n": 1})
        store.stream("s").append({"n": 2}, maxlen=10)

    drop()
    with raxlog.open(tmp_path / "s.rax", readonly=True) as store:
        assert store.stream("s").count() == 2


def test_a_stream_keeps_its_dropped_store_open(tmp_path: Path) -> None:
    stream = raxlog.open(tmp_path / "s.rax").stream("s")
    with pytest.raises(raxlog.SettingsConflict):
        raxlog.open(tmp_path / "s.rax", readonly=True)
    stream.append({"n": 1})
    with raxlog.open(tmp_path / "s.rax") as store:
        assert store.stream("s").count() == 1


def test_a_flush_inside_a_transaction_is_refused(store: raxlog.Store) -> None:
    with store.transaction() as tx:
        tx.stream("orders").append({"n": 1})
        with pytest.raises(raxlog.TransactionError, match="flush"):
            store.flush()
    assert len(store.stream("orders")) == 1


def test_what_an_encoding_cannot_decode_is_delivered_all_the_same(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "store.rax", encoding="utf-8") as store:
        orders = store.stream("orders")
        orders.extend([{"x": "ok"}, {"x": b"\xff"}, {"x": "ok too"}])
        group = orders.create_group("billing", start="0")
        delivered = [entry.fields["x"] for entry in group.read("w", noack=True)]
        assert delivered == ["ok", "\udcff", "ok too"]
        assert delivered == [entry.fields["x"] for entry in orders.range()]
        assert delivered[1].encode("utf-8", "surrogateescape") == b"\xff"


def test_what_belongs_to_an_open_store_is_not_pickled_and_says_what_to_send_instead(store: raxlog.Store) -> None:
    orders = store.stream("orders")
    sid = orders.append({"n": 1})
    group = orders.create_group("billing", start="0")
    for handle in (store, orders, group, store.state, store.subjects):
        for way in (pickle.dumps, copy.deepcopy):
            with pytest.raises(raxlog.StoreError, match="send its path, and open it there"):
                way(handle)
    (entry,) = group.read("w")
    for value in (sid, entry, group.info(), group.pending_entries("-")[0], orders.full_info()):
        assert pickle.loads(pickle.dumps(value)) == value


def test_an_entry_in_place_of_its_id_is_told_what_to_give(store: raxlog.Store) -> None:
    store.stream("orders").append({"n": 1})
    entry = next(iter(store.stream("orders")))
    with pytest.raises(raxlog.InvalidStreamID, match=r"Give the Entry's \.id"):
        store.stream("orders").delete(entry)  # type: ignore[arg-type]


def test_a_renaming_says_whether_there_was_one(store: raxlog.Store) -> None:
    store.stream("a").append({"n": 1})
    assert store.rename_stream("a", "b") is True
    assert store.rename_stream("b", "b") is False
    assert store.streams() == ["b"]


def test_configure_gives_what_has_changed(store: raxlog.Store) -> None:
    stream = store.stream("orders", compression="zstd")
    stream.append({"n": 1}, producer="p", idempotent_id="1")
    changed = stream.configure(compression="zstd", node_max_bytes=4096, idempotence_cap=0)
    assert changed == raxlog.Configured(node_max_bytes=4096)
    assert changed
    assert not stream.configure(node_max_bytes=4096)
    assert stream.append({"n": 2}, producer="p", idempotent_id="1") == stream.last_id  # it is still remembered
    assert len(stream) == 1
    assert stream.configure(compression="compact", idempotence_window=9, idempotence_cap=7).to_dict() == {
        "compression": "compact", "idempotence_window": 9, "idempotence_cap": 7,
    }  # fmt: skip
    assert stream.configure(compression="none", node_max_entries=5, node_max_bytes=0).to_dict() == {
        "compression": "none", "node_max_entries": 5, "node_max_bytes": 0,
    }  # fmt: skip
    assert (stream.info().length, stream.info().compression) == (1, "none")


def test_every_name_of_the_face_is_there() -> None:
    assert [name for name in raxlog.__all__ if not hasattr(raxlog, name)] == []
    assert not hasattr(raxlog, "Nothing")


@pytest.mark.parametrize(("encoding", "kept"), [("utf-8", "caf\udce9"), (None, b"caf\xe9")], ids=["text", "bytes"])
def test_the_index_of_subjects_gives_names_as_the_store_does(tmp_path: Path, encoding: Any, kept: str | bytes) -> None:
    with raxlog.open(tmp_path / "store.rax", encoding=encoding) as store:
        store.bind("orders.>", kept)
        index = store.subjects
        number = index.insert("orders.é", owner=kept, queue=kept, name=kept, options={"at": 7})
        found = index.get(number)
        assert (found.subject, found.owner, found.queue, found.name) == ("orders.é", kept, kept, kept)
        assert found == index.by_name(kept) == index.by_owner(kept)[0] == index.by_queue(kept)[0]
        assert found.to_dict() | {"created": None} == {
            "id": number, "subject": "orders.é", "kind": 1, "owner": kept, "queue": kept, "weight": 1,
            "name": kept, "options": {"at": 7}, "created": None,
        }  # fmt: skip
        match = index.match(found.subject)
        assert match == index.match_many([found.subject])[0] == index.reverse_match(found.subject)
        assert match.to_dict() == {
            "by_kind": {3: match.plain}, "queues": {kept: ({"id": number, "weight": 1, "kind": 1},)}, "fanout": 2,
        }  # fmt: skip
        (bound,) = (index.get(one) for one in match.plain)
        assert (bound.subject, bound.options) == ("orders.>", {"stream": kept})
        assert {one.subject for one in index.patterns()} == {"orders.>", "orders.é"}
        assert index.remove(number) == found
        assert [one.id for one in index] == [bound.id]
        store.remote.apply(kept, kept, found.subject, kept, 2)
        (row,) = store.remote
        assert row.to_dict() == {"route": kept, "account": kept, "subject": found.subject, "queue": kept, "weight": 2}
        assert store.remote.match(kept, found.subject).to_dict() == {"plain": (), "queues": {kept: {kept: 2}}}
