"""Groups filtered by subject: given what matches, never troubled by the rest."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
import raxlog
from raxlog.stream.group import subject_filter


@pytest.fixture
def orders(store: raxlog.Store) -> raxlog.Stream:
    """A stream to which orders.> is bound."""
    store.bind("orders.>", "orders")
    return store.stream("orders")


def numbers(entries: list[raxlog.Entry]) -> list[int]:
    return [int(entry.fields["n"]) for entry in entries]


def test_a_group_reads_its_subjects_and_the_rest_is_neither_delivered_nor_pending(
        store: raxlog.Store, orders: raxlog.Stream) -> None:
    europe = orders.create_group("europe", "0", create_stream=True, subjects="orders.eu.>")
    everything = orders.create_group("everything", "0")
    for n in range(30):
        store.publish(f"orders.{('eu', 'us', 'asia')[n % 3]}.new", {"n": n})
    orders.append({"n": 99})  # without a subject
    assert (europe.lag, everything.lag) == (10, 31)
    assert europe.subjects == ["orders.eu.>"]
    assert numbers(europe.read("w", 4)) == [0, 3, 6, 9]
    assert (europe.pending().total, europe.lag) == (4, 6)
    rest = europe.read("w")
    assert numbers(rest) == [12, 15, 18, 21, 24, 27]
    assert (europe.lag, europe.pending().total) == (0, 10)
    assert europe.read("w") == []
    assert europe.last_delivered_id == orders.last_id  # nothing is looked at twice
    assert europe.ack(*[entry.id for entry in rest]) == 6
    assert numbers(europe.read("w", ids="0")) == [0, 3, 6, 9]
    assert len(everything.read("w")) == 31


def test_the_filter_outlives_the_process(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax") as store:
        store.bind(">", "s")
        store.stream("s").create_group("g", "0", create_stream=True, subjects=["a.*", b"b"])
    with raxlog.open(tmp_path / "s.rax") as store:
        for n, subject in enumerate(("a.x", "b", "c", "a", "a.y")):
            store.publish(subject, {"n": n})
        group = store.stream("s").group("g")
        assert group.subjects == ["a.*", "b"]
        assert numbers(group.read("w")) == [0, 1, 4]


def test_a_group_that_waits_is_not_woken_for_what_is_not_its_own(store: raxlog.Store, orders: raxlog.Stream) -> None:
    group = orders.create_group("eu", "$", create_stream=True, subjects="orders.eu")
    got: list[raxlog.Entry] = []
    thread = threading.Thread(target=lambda: got.extend(group.read("w", timeout=10)))
    thread.start()
    for n in range(5):
        store.publish("orders.us", {"n": n})
    store.publish("orders.eu", {"n": 7})
    thread.join(10)
    assert numbers(got) == [7]
    assert group.read("w", timeout=0.05) == []


def test_a_long_backlog_of_others_is_passed_over_in_steps(
        store: raxlog.Store, orders: raxlog.Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject_filter, "AT_ONCE", 1000)
    group = orders.create_group("g", "0", create_stream=True, subjects="orders.eu")
    with store.transaction() as tx:
        for n in range(5000):
            tx.publish("orders.us", {"n": n})
        tx.publish("orders.eu", {"n": 5000})
        for n in range(2000):
            tx.publish("orders.us", {"n": n})
    orders.delete(orders.last_id)  # the last ID belongs to nothing
    assert group.lag == 1
    assert numbers(group.read("w", 10)) == [5000]
    assert group.read("w", 10) == []
    with store.transaction() as tx:
        assert tx.group("orders", "g").read("w") == []


def test_what_is_read_by_filters_is_what_a_scan_finds(store: raxlog.Store) -> None:
    rng = random.Random(3)
    store.bind(">", "s")
    stream = store.stream("s")
    patterns = ["a.*", "a.>", "*.b", "b", ">", "a.b.c"]
    groups = {pattern: stream.create_group(pattern, "0", create_stream=True, subjects=pattern) for pattern in patterns}
    got: dict[str, list[int]] = {pattern: [] for pattern in patterns}
    n = 0
    for _ in range(40):
        for _ in range(rng.randrange(8)):
            store.publish(".".join(rng.choices("abc", k=rng.randrange(1, 4))), {"n": n})
            n += 1
        if rng.random() < 0.2 and len(stream):
            stream.delete(stream.select(rng.randrange(len(stream))))
        pattern = rng.choice(patterns)
        expected = [entry for entry in stream.range(groups[pattern].last_delivered_id.next(), "+")
                    if raxlog.subject_matches(pattern, entry.subject)]
        assert groups[pattern].lag == len(expected)
        entries = groups[pattern].read("w", rng.choice([None, 1, 3]))
        assert entries == expected[:len(entries)]
        got[pattern] += numbers(entries)
    for pattern in patterns:
        got[pattern] += numbers(groups[pattern].read("w"))
        assert got[pattern] == sorted(set(got[pattern]))
        assert groups[pattern].lag == 0


@pytest.mark.parametrize("subjects", ["a..b", "a.>.b", "", [], [None], 7, ["a"] * 65])
def test_a_filter_that_is_no_pattern_is_refused(orders: raxlog.Stream, subjects: Any) -> None:
    with pytest.raises(raxlog.InvalidArgument):
        orders.create_group("g", "$", create_stream=True, subjects=subjects)
    assert not orders.exists()


def test_a_group_that_is_there_keeps_its_filter(orders: raxlog.Stream) -> None:
    orders.create_group("g", "$", create_stream=True, subjects="a")
    assert orders.create_group("g", "$", exist_ok=True).subjects == ["a"]
    assert orders.create_group("g", "$", exist_ok=True, subjects=["a"]).subjects == ["a"]
    with pytest.raises(raxlog.GroupExists, match="filtered"):
        orders.create_group("g", "$", exist_ok=True, subjects="b")
