"""Interest: first and last subscription to a subject are told, in whatever process they are made."""

from __future__ import annotations

import threading
import time

import pytest
import raxlog
from other_process import OtherProcess
from raxlog.index.subjects.handle import Sublist
from raxlog.index.subjects.interest import Watch, is_interested


@pytest.fixture
def index(store: raxlog.Store) -> Sublist:
    """The index of a fresh store."""
    return Sublist(store._source)


def test_the_state_is_told_at_once_then_at_each_first_and_last(index: Sublist) -> None:
    with Watch(index._source, "a.b") as watch:
        assert watch.wait(0) is False
        assert watch.wait(0) is None
        first = index.insert("a.b")
        assert watch.wait(5) is True
        second = index.insert("a.b")
        index.remove(first)
        assert watch.wait(0.02) is None
        index.remove(second)
        assert watch.wait(5) is False
    assert watch.wait(0) is None


def test_patterns_and_queues_are_no_interest_in_a_plain_subject(index: Sublist) -> None:
    plain, queue = Watch(index._source, "a.b"), Watch(index._source, "a.b", "q")
    assert (plain.wait(0), queue.wait(0)) == (False, False)
    for pattern, group in (("a.*", None), (">", None), ("a.>", "q"), ("a.c", None), ("a.b", "r"), ("a.b.c", None)):
        index.insert(pattern, queue=group)
    assert (plain.wait(0.02), queue.wait(0.02)) == (None, None)
    number = index.insert("a.b", queue="q")
    assert (queue.wait(5), plain.wait(0.02)) == (True, None)
    index.insert("a.b")
    assert plain.wait(5) is True
    index.remove(number)
    assert (queue.wait(5), plain.wait(0)) == (False, None)


def test_it_is_told_across_processes(tmp_path) -> None:
    path = tmp_path / "s.rax"
    raxlog.open(path).close()
    other = OtherProcess(path)
    try:
        with raxlog.open(path) as store:
            watch = Watch(store._source, "a.b")
            told: list[tuple[bool, float]] = []
            thread = threading.Thread(target=lambda: told.extend((state, time.monotonic()) for state in watch))
            thread.start()
            for _ in range(3):
                number = other.call("insert", "a.b")
                time.sleep(0.1)
                other.call("remove", number)
                time.sleep(0.1)
        thread.join(5)
        assert not thread.is_alive()
        assert [state for state, _ in told] == [False, True, False, True, False, True, False]
    finally:
        other.close()


def test_however_many_changes_came_at_once_the_last_state_is_told(index: Sublist) -> None:
    # NATS sends into a channel, and a full one loses the event
    watch = Watch(index._source, "a")
    assert watch.wait(0) is False
    for _ in range(500):
        number = index.insert("a")
        index.remove(number)
    index.insert("a")
    assert watch.wait(5) is True
    assert watch.wait(0.02) is None


@pytest.mark.parametrize("bad", ["a.*", ">", "", "a..b", "a b"])
def test_only_a_literal_subject_can_be_watched(index: Sublist, bad: str) -> None:
    with pytest.raises(raxlog.SubjectError):
        Watch(index._source, bad)
    with pytest.raises(raxlog.SubjectError), index._source.read() as txn:
        is_interested(txn, bad)


def test_two_watches_of_one_subject_are_both_told(index: Sublist) -> None:
    watches = [Watch(index._source, "a") for _ in range(2)]
    assert [watch.wait(0) for watch in watches] == [False, False]
    index.insert("a")
    assert [watch.wait(5) for watch in watches] == [True, True]
