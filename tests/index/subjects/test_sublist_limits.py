"""The subject index at its limits: bad questions, very long and very adverse subjects, statistics that are true."""

from __future__ import annotations

import threading

import pytest
import raxlog
from raxlog.index.subjects import sublist
from raxlog.index.subjects.handle import Sublist
from raxlog.index.subjects.match import Cache
from raxlog.index.subjects.subscription import Subscription
from sublist_records import size_on_disk, sound


@pytest.fixture
def index(store: raxlog.Store) -> Sublist:
    """The index of a fresh store, through a cache."""
    return Sublist(store._source)


# -- bad subjects in questions --------------------------------------------------------------


@pytest.mark.parametrize("bad", [
    "", "a..b", "a.", "a.*", ">", "a b", "a\0", b"\xff", "x" * 600, ".".join("a" * 300), 5, None, [1], {"a"},
])
def test_a_question_about_no_subject_is_refused_and_counts_for_nothing(index: Sublist, bad: object) -> None:
    index.insert(">")
    off = Sublist(index._source, Cache(0))
    for call in (index.match, off.match, index.has_interest, off.has_interest, index.num_interest):
        with pytest.raises(raxlog.SubjectError):
            call(bad)  # type: ignore[operator]
    for one in (index, off):
        statistics = one.statistics()
        assert (statistics.matches, statistics.hits, statistics.cached) == (0, 0, 0)


def test_two_hundred_tokens_are_matched_in_bounded_time(index: Sublist) -> None:
    deep = ".".join("a" * 200)
    ids = [index.insert(p) for p in (deep, ".".join("*" * 200), ">", ".".join("a" * 199) + ".>")]
    index.insert(".".join("*" * 201))
    index.insert(".".join("a" * 199))
    assert sorted(index.match(deep).plain) == ids


def test_forty_stars_are_taken_and_match_forty_tokens_only(index: Sublist) -> None:
    number = index.insert(".".join("*" * 40))
    assert index.match(".".join("z" * 40)).plain == (number,)
    assert not index.match(".".join("z" * 41))
    assert not index.match(".".join("z" * 39))


def test_four_thousand_near_misses_cost_no_answer(index: Sublist) -> None:
    tokens = "abcdefghijkl"
    near = [
        ".".join("*" if mask >> at & 1 else token for at, token in enumerate(tokens)) + ".end" for mask in range(4096)
    ]
    ids = index.insert_many([Subscription.of(p) for p in near])
    assert not index.match(".".join(tokens))
    assert not index.match(".".join(tokens) + ".other")
    assert sorted(index.match(".".join(tokens) + ".end").plain) == ids
    assert sound(index)


def test_wildcards_in_ever_new_places_are_refused_before_a_match_could_take_seconds(
        index: Sublist, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sublist, "MAX_SHAPE_TOKENS", 10)
    index.insert_many([Subscription.of(p) for p in ("a.*", "b.*", "a.*.c.>", "*.b.*.d")])  # 2 + 4 + 4 tokens
    before = size_on_disk(index)
    with pytest.raises(raxlog.SubjectError, match="where no other has"):
        index.insert_many([Subscription.of("d.*"), Subscription.of("*.a")])
    assert (len(index), size_on_disk(index)) == (4, before)
    index.insert("x.*")  # a known shape
    index.remove_many([one.id for one in index if one.subject == "a.*.c.>"])
    index.insert("*.a")  # now there is room
    assert sound(index)


# -- statistics -----------------------------------------------------------------------------


def test_statistics_tell_what_is_there_and_what_was_matched(index: Sublist) -> None:
    ids = index.insert_many([Subscription.of("a"), Subscription.of("a"), *[Subscription.of("a", queue="q")] * 5,
                             Subscription.of("b.*"), Subscription.of("c", queue="q")])
    index.remove(ids[1])
    for subject in ("a", "a", "nobody", "nobody", "b.x"):
        index.match(subject)
    for _ in range(10):
        index.has_interest("a")
    s = index.statistics()
    assert (s.subscriptions, s.plain, s.members, s.literals, s.patterns) == (8, 2, 6, 2, 1)
    assert (s.inserts, s.removes, s.generation) == (9, 1, 2)
    assert (s.matches, s.hits, s.hit_rate) == (5, 2, 0.4)
    assert (s.cached, s.cached_fanout) == (3, 7)
    assert (s.max_fanout, s.average_fanout) == (2, (2 + 2 + 0 + 0 + 1) / 5)


def test_counts_of_matches_are_exact_over_threads(index: Sublist) -> None:
    index.insert("a.*")

    def ask() -> None:
        for n in range(500):
            index.match(f"a.{n % 20}")

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    index.match("a.1")
    s = index.statistics()
    assert s.matches == 3001
    assert s.hits >= 3001 - 6 * 20
    assert s.average_fanout == 1.0
    last = threading.Thread(target=ask)
    last.start()
    last.join()
    assert index.statistics().matches == 3501  # what ended threads counted has been added up


def test_a_source_within_a_transaction_sees_its_own_changes(store: raxlog.Store, index: Sublist) -> None:
    with store.transaction() as tx:
        inside = Sublist(tx._source, index.cache)
        inside.insert("a.b")
        assert inside.match("a.b").plain == (1,)
    assert index.match("a.b").plain == (1,)
