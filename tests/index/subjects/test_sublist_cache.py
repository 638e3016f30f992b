"""The cache of the subject index: never a stale answer, never more than its caps, no thrashing."""

from __future__ import annotations

import random
import threading

import pytest
import raxlog
from children import Child
from raxlog.index.subjects import match
from raxlog.index.subjects.handle import Sublist
from raxlog.index.subjects.match import Cache
from raxlog.index.subjects.subscription import Subscription


@pytest.fixture
def index(store: raxlog.Store) -> Sublist:
    """The index of a fresh store, through a cache."""
    return Sublist(store._source)


def test_a_change_is_seen_at_once_whoever_made_it(tmp_path) -> None:
    path = tmp_path / "s.rax"
    with raxlog.open(path) as store:
        index = Sublist(store._source)
        assert not index.match("a.b")
        first = index.insert("a.*")
        assert index.match("a.b").plain == (first,)

        def elsewhere(say) -> None:
            with raxlog.open(path) as other:
                say(Sublist(other._source).insert("a.>"))

        with Child(elsewhere) as child:
            second = child.finish()[0]
        assert sorted(index.match("a.b").plain) == [first, second]
        index.remove(first)
        assert index.match("a.b").plain == (second,)


def test_appends_leave_the_cache_as_it_is(store: raxlog.Store, index: Sublist) -> None:
    index.insert("a.*")
    index.match("a.b")
    for _ in range(5):
        store.stream("orders").append({"n": 1})
        index.match("a.b")
    assert index.statistics().hits == 5


def test_a_subject_that_reaches_nobody_is_known_and_displaces_nothing(store: raxlog.Store) -> None:
    # NATS #710, #4341: empty results fill the cache and sweep out what is asked for often
    index = Sublist(store._source, Cache(max_entries=64))
    index.insert_many([Subscription.of(f"hot.{n}") for n in range(20)])
    for n in range(20):
        index.match(f"hot.{n}")
    hits = index.statistics().hits
    for n in range(1000):
        assert not index.match(f"unmatched.{n}")
    for n in range(20):
        index.match(f"hot.{n}")
    assert index.statistics().hits == hits + 20
    assert index.statistics().cached <= 20 + 64 // 8 + 1
    index.match("unmatched.999")
    assert index.statistics().hits == hits + 21


def test_the_cache_holds_no_more_than_its_caps(store: raxlog.Store) -> None:
    index = Sublist(store._source, Cache(max_entries=10, max_fanout=100))
    index.insert_many([Subscription.of(f"a.{n}") for n in range(50)])
    index.insert_many([Subscription.of("big") for _ in range(51)])
    index.insert_many([Subscription.of(f"mid.{n % 5}") for n in range(150)])
    for n in range(50):
        index.match(f"a.{n}")
        assert index.statistics().cached <= 10
    for subject in ["big", *[f"mid.{n % 5}" for n in range(20)]]:
        index.match(subject)
        s = index.statistics()
        assert s.cached <= 10
        assert s.cached_fanout <= 100
    hits = index.statistics().hits
    index.match("big")  # more than half of max_fanout: not kept
    assert index.statistics().hits == hits


def test_what_is_asked_for_often_stays_while_others_pass_through(store: raxlog.Store) -> None:
    # NATS sweeps out a random three quarters
    index = Sublist(store._source, Cache(max_entries=20))
    index.insert("a.*")
    misses = 0
    for n in range(500):
        index.match(f"a.passing{n}")
        before = index.statistics().hits
        index.match("a.often")
        misses += index.statistics().hits == before
    assert misses == 1


def test_it_can_be_switched_off(store: raxlog.Store) -> None:
    index = Sublist(store._source, Cache(0))
    number = index.insert("a")
    for _ in range(5):
        assert index.match("a").plain == (number,)
    s = index.statistics()
    assert (s.matches, s.hits, s.cached, s.hit_rate, s.average_fanout) == (5, 0, 0, 0.0, 1.0)


@pytest.mark.parametrize("bad", [-1, 1.5, None, True])
def test_its_caps_must_be_whole_numbers(bad: object) -> None:
    with pytest.raises(raxlog.InvalidArgument, match="max_entries"):
        Cache(bad)  # type: ignore[arg-type]
    with pytest.raises(raxlog.InvalidArgument, match="max_fanout"):
        Cache(5, bad)  # type: ignore[arg-type]


def test_text_and_bytes_ask_for_the_same(index: Sublist) -> None:
    number = index.insert("fóo.*")
    for _ in range(2):
        assert index.match("fóo.ü").plain == index.match("fóo.ü".encode()).plain == (number,)


def test_a_weight_or_a_second_member_is_seen_through_a_cached_result(index: Sublist) -> None:
    number = index.insert("a", queue="q", weight=2)
    assert index.match("a").queues[b"q"][0].weight == 2
    index.set_weight(number, 10)
    assert index.match("a").queues[b"q"][0].weight == 10
    index.insert("*", queue="q", weight=5)
    assert sorted(member.weight for member in index.match("a").queues[b"q"]) == [5, 10]


def test_interest_comes_from_the_cache_too_and_is_right_after_changes(index: Sublist) -> None:
    assert not index.has_interest("a.b")
    number = index.insert("a.*")
    assert index.has_interest("a.b")
    index.match("a.b")
    index.match("x")
    assert index.has_interest("a.b")
    assert not index.has_interest("x")
    index.remove(number)
    assert not index.has_interest("a.b")
    assert index.statistics().hits == 0


def test_readers_of_older_states_get_their_own_answers(store: raxlog.Store, index: Sublist) -> None:
    first = index.insert("a")
    cache = index.cache
    with store._source.read() as older:
        assert cache.match(older, "a").subscribers(None).plain == (first,)
        thread = threading.Thread(target=index.insert, args=("a",))
        thread.start()
        thread.join()
        answers: list[tuple[int, ...]] = []
        thread = threading.Thread(target=lambda: answers.append(index.match("a").plain))
        thread.start()
        thread.join()
        assert cache.match(older, "a").subscribers(None).plain == (first,)
    assert answers == [(first, first + 1)]
    assert index.match("a").plain == (first, first + 1)


def test_with_and_without_cache_agree_while_threads_change_the_index(store: raxlog.Store, index: Sublist) -> None:
    rng = random.Random(9)
    tokens = ["a", "b", "*"]
    stop = threading.Event()
    wrong: list[object] = []

    def ask(seed: int) -> None:
        mine = random.Random(seed)
        while not stop.is_set():
            subject = ".".join(mine.choices("abc", k=mine.randrange(1, 4)))
            with store._source.read() as txn:
                cached = index.cache.match(txn, subject).subscribers(None)
                plain = match.match(txn, subject).subscribers(None)
                if sorted(cached.plain) != sorted(plain.plain):
                    wrong.append((subject, cached, plain))

    readers = [threading.Thread(target=ask, args=(n,)) for n in range(3)]
    for reader in readers:
        reader.start()
    ids: list[int] = []
    for _ in range(150):
        if len(ids) > 30 and rng.random() < 0.5:
            index.remove(ids.pop(rng.randrange(len(ids))))
        else:
            ids.append(index.insert(".".join(rng.choices(tokens, k=rng.randrange(1, 4)))))
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong


def test_what_was_found_before_a_change_takes_no_room_after_it(index: Sublist) -> None:
    # .NET: results of an older generation stay in the cache until they are overwritten or swept
    index.insert("a.*")
    for n in range(100):
        index.match(f"a.{n}")
    assert index.statistics().cached == 100
    index.insert("b")
    assert index.statistics().cached == 0
    index.match("a.1")
    assert index.statistics().cached == 1


def test_a_forked_child_asks_the_same_cache_object_without_waiting_for_threads_that_are_not_there(
        index: Sublist) -> None:
    number = index.insert("a.*")
    stop = threading.Event()

    def ask() -> None:
        n = 0
        while not stop.is_set():
            index.match(f"a.{n}")
            n += 1

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            with Child(lambda say: say([index.match(f"a.{n}").plain for n in range(20)])) as child:
                assert child.finish() == [[(number,)] * 20]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
