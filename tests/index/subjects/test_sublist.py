"""The subject index: what is subscribed is found, all or nothing, with counts that are true."""

from __future__ import annotations

import random

import pytest
import raxlog
from raxlog.index.subjects import sublist
from raxlog.index.subjects.handle import Sublist
from raxlog.index.subjects.match import PatternInterest
from raxlog.index.subjects.subscription import BINDING, DURABLE, LIVE, Subscription
from sublist_records import size_on_disk, sound


@pytest.fixture
def index(store: raxlog.Store) -> Sublist:
    """The index of a fresh store, through a cache."""
    return Sublist(store._source)


# -- inserting and matching ---------------------------------------------------------------


def test_a_subject_reaches_literals_and_patterns(index: Sublist) -> None:
    ids = {p: index.insert(p) for p in ("foo.bar", "foo.*", ">", "*.bar", "foo.>", "foo.baz", "foo.bar.*", "foo")}
    assert sorted(index.match("foo.bar").plain) == sorted(ids[p] for p in ("foo.bar", "foo.*", ">", "*.bar", "foo.>"))
    assert sorted(index.match(b"foo").plain) == sorted(ids[p] for p in (">", "foo"))
    assert sorted(index.match("foo.bar.x").plain) == sorted(ids[p] for p in (">", "foo.>", "foo.bar.*"))
    assert sound(index)


def test_a_queue_is_one_group_over_all_its_patterns(index: Sublist) -> None:
    ids = [index.insert(p, queue="q") for p in ("foo.bar", "foo.*", ">")]
    other = index.insert("foo.bar", queue="r", weight=3)
    plain = index.insert("foo.bar")
    found = index.match("foo.bar")
    assert found.plain == (plain,)
    assert sorted(member.id for member in found.queues[b"q"]) == ids
    assert [(m.id, m.weight) for m in found.queues[b"r"]] == [(other, 3)]
    assert found.fanout == 3
    assert index.num_interest("foo.bar") == (1, 4)


def test_kinds_are_told_apart(index: Sublist) -> None:
    live, durable = index.insert("a", kind=LIVE), index.insert("a", kind=DURABLE, name="d")
    bound = index.insert("a.>", kind=BINDING), index.insert("*", kind=BINDING)
    assert index.match("a").by_kind == {LIVE: (live,), DURABLE: (durable,), BINDING: (bound[1],)}
    assert sorted(index.match("a").plain) == sorted([live, durable, bound[1]])


def test_everything_survives_a_reopening(tmp_path) -> None:
    with raxlog.open(tmp_path / "s.rax") as store:
        index = Sublist(store._source)
        number = index.insert("a.*", owner="me", queue="q", weight=7, kind=DURABLE, name="n", options={"stream": "s"})
        before, generation = index.get(number), index.generation
    with raxlog.open(tmp_path / "s.rax") as store:
        index = Sublist(store._source)
        assert index.get(number) == before
        assert (before.subject, before.owner, before.queue, before.weight) == ("a.*", b"me", b"q", 7)
        assert (before.name, before.options, before.kind) == (b"n", {"stream": "s"}, DURABLE)
        assert index.generation == generation
        assert index.match("a.b").queues[b"q"][0].id == number
        assert index.by_name("n") == before
        assert index.by_owner("me") == index.by_queue("q") == list(index) == [before]
        assert index.by_name("m") is None
        assert index.by_owner("you") == index.by_queue("r") == []


def test_the_same_wish_twice_is_two_subscriptions_and_counts_as_such(index: Sublist) -> None:
    # NATS: the same object inserted twice counts 2 and is one; after a removal the count stays 1
    one = Subscription.of("a.b", owner="me")
    first, second = index.insert_many([one, one])
    index.match("a.b")
    third = index.insert_many([one])[0]
    assert index.match("a.b").plain == (first, second, third)
    assert (len(index), index.num_interest("a.b")) == (3, (3, 0))
    index.remove_many([first, third])
    assert (len(index), index.match("a.b").plain) == (1, (second,))
    index.remove(second)
    assert (len(index), index.has_interest("a.b")) == (0, False)


def test_an_id_is_never_used_again(index: Sublist) -> None:
    first = index.insert("a")
    index.remove(first)
    assert index.insert("a") > first


def test_names_of_owners_and_queues_that_begin_alike_are_kept_apart(index: Sublist) -> None:
    a = index.insert("x", owner=b"s", queue=b"q")
    b = index.insert("x", owner=b"s\0", queue=b"q\0\1")
    c = index.insert("x", owner=b"s\0\0\0", queue=b"\1q")
    assert [[s.id for s in index.by_owner(o)] for o in (b"s", b"s\0", b"s\0\0\0")] == [[a], [b], [c]]
    assert [[s.id for s in index.by_queue(q)] for q in (b"q", b"q\0\1", b"\1q")] == [[a], [b], [c]]
    assert sound(index)


# -- all or nothing -----------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["foo.bar..baz", "foo.>.bar", "", "a b", "a\0", "x" * 600])
def test_a_refused_insert_leaves_no_trace(index: Sublist, bad: str) -> None:
    before = size_on_disk(index)
    with pytest.raises(raxlog.SubjectError):
        index.insert(bad)
    with pytest.raises(raxlog.SubjectError):
        index._source.submit(lambda txn: sublist.insert_many(txn, [Subscription(b"good"), Subscription(bad.encode())]))
    assert size_on_disk(index) == before
    assert (len(index), index.generation) == (0, 0)
    assert not index.has_interest("foo.x")
    assert not index.has_interest("foo.bar")


@pytest.mark.parametrize(("options", "error"), [
    ({"weight": 0}, raxlog.InvalidArgument), ({"weight": -1}, raxlog.InvalidArgument),
    ({"weight": True}, raxlog.InvalidArgument), ({"weight": 1 << 16}, raxlog.InvalidArgument),
    ({"weight": 1.5}, raxlog.InvalidArgument), ({"kind": 0}, raxlog.InvalidArgument),
    ({"kind": "live"}, raxlog.InvalidArgument), ({"queue": ""}, raxlog.InvalidName),
    ({"queue": "q" * 256}, raxlog.InvalidName), ({"owner": 7}, raxlog.InvalidName), ({"name": ""}, raxlog.InvalidName),
    ({"name": "\ud800"}, raxlog.InvalidName), ({"owner": None}, raxlog.InvalidName),
    ({"kind": True}, raxlog.InvalidArgument), ({"kind": 2.0}, raxlog.InvalidArgument),
    ({"options": 5}, raxlog.InvalidArgument), ({"options": "ab"}, raxlog.InvalidArgument),
])
def test_what_else_is_wrong_with_a_subscription_is_refused_too(index: Sublist, options: dict, error: type) -> None:
    with pytest.raises(error):
        index.insert("a", **options)
    assert (len(index), index.generation) == (0, 0)


def test_what_is_no_subscription_is_refused(index: Sublist) -> None:
    with pytest.raises(raxlog.InvalidArgument, match="not a subscription"):
        index.insert_many([Subscription(b"a"), "b"])  # type: ignore[list-item]
    assert len(index) == 0


def test_a_batch_is_inserted_whole_with_one_new_generation(index: Sublist) -> None:
    ids = index.insert_many([Subscription.of(p) for p in ("b", "a.*", "b", "a", "c.>")])
    assert ids == [1, 2, 3, 4, 5]
    assert index.generation == 1
    assert sorted(index.match("b").plain) == [1, 3]
    assert index.insert_many([]) == []
    assert index.generation == 1


def test_a_batch_with_an_absent_id_removes_nothing(index: Sublist) -> None:
    ids = index.insert_many([Subscription.of(p) for p in ("a", "a.*", "b")])
    with pytest.raises(raxlog.NoSubscription, match="99"):
        index.remove_many([*ids, 99])
    assert (len(index), index.generation) == (3, 1)
    assert [one.id for one in index.remove_many([*ids, ids[0]])] == ids
    assert (len(index), index.generation) == (0, 2)
    assert size_on_disk(index) == 1
    assert index.remove_many([]) == []


@pytest.mark.parametrize("number", [0, 1, -1, 1 << 64, "1", None, 1.0, True, b"1"])
def test_an_unknown_id_is_a_clear_error(index: Sublist, number: object) -> None:
    for call in (index.remove, index.get):
        with pytest.raises(raxlog.NoSubscription, match="no subscription with the ID"):
            call(number)  # type: ignore[arg-type]
    with pytest.raises(raxlog.NoSubscription):
        index.set_weight(number, 2)  # type: ignore[arg-type]


def test_options_that_cannot_be_stored_leave_no_trace(index: Sublist) -> None:
    for options in ({"a": object()}, {"a": {1, 2}}, {"n": 1 << 70}):
        with pytest.raises(raxlog.InvalidArgument, match="options"):
            index.insert_many([Subscription.of("a.*"), Subscription.of("b", options=options)])
    assert (len(index), size_on_disk(index)) == (0, 0)


def test_removing_twice_is_an_error_the_second_time(index: Sublist) -> None:
    number = index.insert("a", queue="q", owner="o", name="n")
    assert index.remove(number).queue == b"q"
    with pytest.raises(raxlog.NoSubscription):
        index.remove(number)
    assert len(index) == 0
    assert sound(index)


def test_an_owner_goes_with_one_call_and_leaves_the_others(index: Sublist) -> None:
    mine = index.insert_many([Subscription.of(f"a.{n % 7}.*", owner="me") for n in range(50)])
    yours = index.insert_many([Subscription.of(f"a.{n % 7}.*", owner="mee") for n in range(50)])
    assert [one.id for one in index.remove_owner("me")] == mine
    assert [one.id for one in index] == yours
    generation = index.generation
    assert index.remove_owner("me") == []
    assert index.generation == generation
    assert sound(index)


def test_inside_a_transaction_it_is_all_undone_with_it(store: raxlog.Store, index: Sublist) -> None:
    kept = index.insert("a.*")
    assert index.match("a.b").plain == (kept,)
    with pytest.raises(ZeroDivisionError), store.transaction() as tx:  # noqa: PT012 - it is undone with all in it
        inside = Sublist(tx._source, index.cache)
        number = inside.insert("a.b")
        assert sorted(inside.match("a.b").plain) == [kept, number]
        raise ZeroDivisionError
    assert index.match("a.b").plain == (kept,)
    # what comes next gets the ID and the generation that were undone; the cache must not mix them up
    again = index.insert("a.c")
    assert again == number
    assert index.match("a.b").plain == (kept,)
    assert sorted(index.match("a.c").plain) == [kept, again]


# -- durable names ------------------------------------------------------------------------


def test_a_durable_name_that_comes_back_is_the_same_subscription(index: Sublist) -> None:
    options = {"kind": DURABLE, "name": "billing", "queue": "q", "owner": "o"}
    number = index.insert("a.*", **options)
    assert index.insert("a.*", **options) == number
    assert (len(index), index.generation) == (1, 1)
    both = index.insert_many([Subscription.of("b", name="x"), Subscription.of("b", name="x")])
    assert both[0] == both[1]
    assert len(index) == 2


@pytest.mark.parametrize("changed", [
    {"subject": "a.>"}, {"queue": "r"}, {"queue": None}, {"kind": BINDING}, {"owner": "p"},
])
def test_a_durable_name_with_another_pattern_is_refused(index: Sublist, changed: dict) -> None:
    options = {"subject": "a.*", "kind": DURABLE, "name": "billing", "queue": "q", "owner": "o"}
    index.insert(**options)
    with pytest.raises(raxlog.SubscriptionExists, match="billing"):
        index.insert_many([Subscription.of("c"), Subscription.of(**(options | changed))])
    with pytest.raises(raxlog.SubscriptionExists):
        index.insert_many([Subscription.of("d", name="twice"), Subscription.of("e", name="twice")])
    assert (len(index), index.generation) == (1, 1)
    assert sound(index)


# -- many subscribers of one subject --------------------------------------------------------


@pytest.mark.parametrize("subject", ["hot", "hot.*"])
def test_ten_thousand_subscribers_of_one_subject_lie_in_few_small_rows(index: Sublist, subject: str) -> None:
    published = subject.replace("*", "x")
    ids = index.insert_many([Subscription.of(subject) for _ in range(10_000)])
    assert index.match(published).plain == tuple(ids)
    with index._source.read() as txn:
        prefix = sublist.STATE_KEY[:8] + (b"\x13" if "*" in subject else b"\x12")
        rows = [value for key, value in txn.cursor() if key.startswith(prefix)]
        assert len(rows) == 50
        assert max(map(len, rows)) <= sublist.MAX_VALUE
    one = index.insert(subject)
    assert index.match(published).plain == (*ids, one)
    assert sound(index)


def test_rows_of_subscribers_stay_sound_through_every_kind_of_removal(index: Sublist) -> None:
    rng = random.Random(4)
    there: dict[int, bytes | None] = {}
    for step in range(30):
        if rng.random() < 0.55 or not there:
            wanted = [rng.choice([None, b"q", b"r" * 200]) for _ in range(rng.choice([1, 3, 150, 400]))]
            ids = index.insert_many([
                Subscription.of("hot", queue=queue, weight=rng.choice([1, 1, 9, 65535]), kind=rng.choice([1, 2, 3]))
                for queue in wanted
            ])
            there |= dict(zip(ids, wanted, strict=True))
        else:
            known = sorted(there)
            style = rng.randrange(4)
            start = rng.randrange(len(known))
            gone = [known, known[start : start + 300], known[:start], rng.sample(known, len(known) * 9 // 10)][style]
            index.remove_many(gone)
            for number in gone:
                del there[number]
        found = index.match("hot")
        assert sorted(found.plain) == sorted(n for n, queue in there.items() if queue is None), step
        assert {name: sorted(m.id for m in group) for name, group in found.queues.items()} == {
            name: sorted(n for n, queue in there.items() if queue == name)
            for name in set(there.values()) - {None}
        }
        assert sound(index)
    index.remove_many(there)
    assert size_on_disk(index) == 1


def test_a_weight_can_be_changed_and_matches_follow(index: Sublist) -> None:
    # NATS: a remote queue subscription that enters a cached subject counts once instead of its weight
    ids = index.insert_many([Subscription.of("a", queue=f"queue-{n}", weight=2) for n in range(150)])
    assert {group[0].weight for group in index.match("a").queues.values()} == {2}
    generation = index.generation
    for number in ids:
        assert index.set_weight(number, number + 1000).weight == number + 1000
    assert index.generation == generation + len(ids)
    assert sorted(group[0].weight for group in index.match("a").queues.values()) == [n + 1000 for n in ids]
    assert index.set_weight(ids[0], ids[0] + 1000)
    assert index.generation == generation + len(ids)
    with pytest.raises(raxlog.InvalidArgument):
        index.set_weight(ids[0], 0)
    assert sound(index)


# -- patterns against patterns --------------------------------------------------------------


def test_reverse_match_finds_all_that_overlap_each_once(index: Sublist) -> None:
    names = ["foo", "foo.*", "foo.>", "foo.baz", "*.bar", "a.b", "foo.bar", "*.*", "a.>", "b"]
    ids = dict(zip(names, index.insert_many([Subscription.of(p) for p in names]), strict=True))
    for pattern in [*names, ">", "*", "*.b", "a.*.>", "x"]:
        found = index.reverse_match(pattern).plain
        assert sorted(found) == sorted(ids[p] for p in names if sublist_overlap(p, pattern)), pattern


def sublist_overlap(a: str, b: str) -> bool:
    """Do two patterns overlap? By the definition, token by token."""
    left, right = a.split("."), b.split(".")
    for at in range(max(len(left), len(right))):
        if at >= len(left) or at >= len(right):
            return False
        if ">" in (left[at], right[at]):
            return True
        if "*" not in (left[at], right[at]) and left[at] != right[at]:
            return False
    return True


def test_patterns_are_listed_with_their_counts(index: Sublist) -> None:
    for pattern, queue in (("a.b", None), ("a.b", None), ("a.b", "q"), ("a.*", "q"), ("c.>", None), ("b", None)):
        index.insert(pattern, queue=queue)
    every = [PatternInterest(*one) for one in (("a.b", 2, 1), ("b", 1, 0), ("a.*", 0, 1), ("c.>", 1, 0))]
    assert index.patterns() == every
    assert index.patterns("a.>") == [every[0], every[2]]
