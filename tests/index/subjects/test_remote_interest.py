"""Remote interest: by route and account, weighted, removed by range, matched within an account."""

from __future__ import annotations

import random

import pytest
import raxlog
from raxlog.index.subjects import remote_interest as remote
from raxlog.index.subjects.check import problems
from subject_reference import brute_match


class Remotes:
    """Remote interest of one store, each call a transaction."""

    def __init__(self, source) -> None:
        self.source = source

    def __getattr__(self, name: str):
        function = getattr(remote, name)
        if name in ("apply", "update", "remove", "remove_route"):
            return lambda *args, **options: self.source.submit(lambda txn: function(txn, *args, **options))

        def read(*args):
            with self.source.read() as txn:
                found = function(txn, *args)
                return list(found) if name == "all_remote" else found

        return read

    def sound(self) -> bool:
        with self.source.read() as txn:
            assert list(problems(txn)) == []
        return True


@pytest.fixture
def remotes(store: raxlog.Store) -> Remotes:
    """The remote interest of a fresh store."""
    return Remotes(store._source)


def test_a_route_that_wants_a_subject_is_found_within_its_account(remotes: Remotes) -> None:
    remotes.apply("r1", "A", "orders.*")
    remotes.apply("r2", "A", "orders.>")
    remotes.apply("r1", "B", "orders.*")
    remotes.apply("r3", "AB", "orders.eu")
    assert sorted(remotes.match_remote("A", "orders.eu").plain) == [b"r1", b"r2"]
    assert remotes.match_remote("B", "orders.eu").plain == (b"r1",)
    assert remotes.match_remote("AB", "orders.eu").plain == (b"r3",)
    assert remotes.has_remote_interest("A", "orders.eu.x")
    assert not remotes.has_remote_interest("B", "orders.eu.x")
    assert not remotes.has_remote_interest("C", "orders.eu")
    assert not remotes.match_remote("A", "order").plain
    assert remotes.sound()


def test_a_route_is_named_once_however_many_of_its_patterns_match(remotes: Remotes) -> None:
    for pattern in ("a.b", "a.*", ">", "a.>"):
        remotes.apply("r", "A", pattern)
    assert remotes.match_remote("A", "a.b").plain == (b"r",)


def test_applying_again_replaces_the_weight_and_counts_once(remotes: Remotes) -> None:
    assert remotes.apply("r", "A", "a", "q", 3) is True
    assert remotes.apply("r", "A", "a", "q", 5) is False
    assert remotes.count() == 1
    assert remotes.match_remote("A", "a").queues == {b"q": {b"r": 5}}
    assert remotes.sound()


def test_only_a_row_that_is_there_is_updated(remotes: Remotes) -> None:
    assert remotes.update("r", "A", "a", "q", 3) is False
    assert remotes.count() == 0
    remotes.apply("r", "A", "a", "q", 3)
    assert remotes.update("r", "A", "a", "q", 10) is True
    assert remotes.match_remote("A", "a").queues == {b"q": {b"r": 10}}
    assert remotes.sound()


def test_removing_what_is_absent_changes_nothing(remotes: Remotes) -> None:
    remotes.apply("r", "A", "a", "q", 3)
    for route, account, subject, queue in (("r", "A", "a", None), ("r", "A", "b", "q"), ("s", "A", "a", "q")):
        assert remotes.remove(route, account, subject, queue) is False
    assert remotes.count() == 1
    assert remotes.remove("r", "A", "a", "q") is True
    assert remotes.remove("r", "A", "a", "q") is False
    assert remotes.count() == 0
    assert remotes.all_remote() == []


def test_weights_add_up_over_patterns(remotes: Remotes) -> None:
    # NATS: a cached result takes a weighted member in once; two patterns make two groups of a name
    remotes.apply("r1", "A", "a.*", "q", 10)
    remotes.apply("r2", "A", "a.b", "q", 5)
    remotes.apply("r1", "A", ">", "q", 1)
    remotes.apply("r3", "A", "a.b")
    found = remotes.match_remote("A", "a.b")
    assert found.queues == {b"q": {b"r1": 11, b"r2": 5}}
    assert found.plain == (b"r3",)


def test_a_lost_route_goes_whole_and_alone(remotes: Remotes) -> None:
    for route in ("r", "r2", "s"):
        for account in ("A", "AB", "B"):
            for n in range(5):
                remotes.apply(route, account, f"x.{n}.*")
                remotes.apply(route, account, f"x.{n}.*", "q", 2)
    assert remotes.remove_route("r", "A") == 10
    assert remotes.count() == 80
    assert not any(row.route == b"r" and row.account == b"A" for row in remotes.all_remote())
    assert sum(row.route == b"r" for row in remotes.all_remote()) == 20
    assert remotes.sound()
    assert remotes.remove_route("r") == 20
    assert remotes.remove_route("r") == 0
    assert remotes.remove_route("nobody", "A") == 0
    assert remotes.count() == 60
    assert sorted(remotes.match_remote("A", "x.1.y").plain) == [b"r2", b"s"]
    assert remotes.sound()


@pytest.mark.parametrize(("arguments", "error"), [
    (("r", "A", "a..b"), raxlog.SubjectError), (("r", "A", ""), raxlog.SubjectError),
    (("r", "A", "a.>.b"), raxlog.SubjectError), (("", "A", "a"), raxlog.InvalidName),
    (("r", "", "a"), raxlog.InvalidName), (("r" * 256, "A", "a"), raxlog.InvalidName),
    (("r", "A", "a", ""), raxlog.InvalidName), (("r", "A", "a", "q", 0), raxlog.InvalidArgument),
    (("r", "A", "a", "q", -2), raxlog.InvalidArgument), (("r", "A", "a", None, 2), raxlog.InvalidArgument),
    (("r" * 100, "A" * 200, "a" * 190, "q" * 9), raxlog.SubjectError),
])
def test_bad_rows_are_refused_and_change_nothing(remotes: Remotes, arguments: tuple, error: type) -> None:
    with pytest.raises(error):
        remotes.apply(*arguments)
    assert remotes.count() == 0
    assert remotes.all_remote() == []


def test_the_longest_row_fits(remotes: Remotes) -> None:
    row = ("r" * 100, "A" * 200, "a" * 190, "q" * 8)
    assert remotes.apply(*row, 7)
    assert remotes.match_remote("A" * 200, "a" * 190).queues == {b"q" * 8: {b"r" * 100: 7}}
    assert remotes.sound()


@pytest.mark.parametrize("bad", ["", "a.*", "a..b", "a b", "x" * 600])
def test_questions_need_a_literal_subject(remotes: Remotes, bad: str) -> None:
    for question in (remotes.match_remote, remotes.has_remote_interest):
        with pytest.raises(raxlog.SubjectError):
            question("A", bad)


def test_a_store_gives_its_remote_interest(store: raxlog.Store) -> None:
    remote_interest = store.remote
    assert remote_interest.apply("r1", "A", "orders.*")
    assert remote_interest.apply("r1", "A", "orders.*", "q", 3)
    assert remote_interest.apply("r2", "A", "orders.>")
    assert remote_interest.update("r1", "A", "orders.*", "q", 2)
    assert remote_interest.has_interest("A", "orders.eu")
    found = remote_interest.match("A", "orders.eu")
    assert (sorted(found.plain), found.queues) == (["r1", "r2"], {"q": {"r1": 2}})
    assert (len(remote_interest), len(list(remote_interest))) == (3, 3)
    assert remote_interest.remove("r2", "A", "orders.>")
    assert (remote_interest.remove_route("r1", "B"), remote_interest.remove_route("r1")) == (0, 2)
    assert list(store.remote) == []


def test_local_subscriptions_and_their_generation_are_not_touched(store: raxlog.Store, remotes: Remotes) -> None:
    from raxlog.index.subjects.handle import Sublist  # noqa: PLC0415

    index = Sublist(store._source)
    number = index.insert("a")
    index.match("a")
    remotes.apply("r", "A", "a")
    assert index.generation == 1
    assert index.match("a").plain == (number,)
    assert index.statistics().hits == 1


def test_random_changes_agree_with_a_plain_table(remotes: Remotes) -> None:
    rng = random.Random(12)
    table: dict[tuple[str, str, str, str | None], int] = {}
    for step in range(300):
        route, account = rng.choice(["r", "r\0", "s"]), rng.choice(["A", "B", "A\0"])
        pattern = ".".join([*rng.choices("ab*", k=rng.randrange(3)), rng.choice("ab*>")])
        queue = rng.choice([None, "q", "\0q"])
        key = (route, account, pattern, queue)
        action = rng.random()
        if action < 0.6:
            weight = rng.randrange(1, 9) if queue else 1
            assert remotes.apply(*key, weight) is (key not in table)
            table[key] = weight
        elif action < 0.8:
            assert remotes.remove(*key) is (table.pop(key, None) is not None)
        elif action < 0.9 and queue:
            assert remotes.update(*key, 9) is (key in table)
            if key in table:
                table[key] = 9
        elif action > 0.97:
            whole = rng.random() < 0.5
            gone = [k for k in table if k[0] == route and (whole or k[1] == account)]
            assert remotes.remove_route(route, None if whole else account) == len(gone)
            for one in gone:
                del table[one]
        subject = rng.choices("ab", k=rng.randrange(1, 4))
        expected: dict[str, int] = {}
        plain = set()
        for (via, of, text, group), weight in table.items():
            if of == account and brute_match(text.split("."), subject):
                if group is None:
                    plain.add(via.encode())
                else:
                    expected[group + via] = expected.get(group + via, 0) + weight
        found = remotes.match_remote(account, ".".join(subject))
        assert set(found.plain) == plain, step
        assert {
            (group + via).decode(): weight for group, routes in found.queues.items() for via, weight in routes.items()
        } == expected
        assert remotes.has_remote_interest(account, ".".join(subject)) is bool(plain or expected)
        assert remotes.count() == len(table)
    assert remotes.sound()


class Counted:
    """A transaction that counts how often it is asked to move."""

    def __init__(self, txn) -> None:
        self.txn = txn
        self.moves = 0

    def __getattr__(self, name: str):
        return getattr(self.txn, name)

    def get(self, key: bytes):
        self.moves += 1
        return self.txn.get(key)

    def cursor(self):
        return CountedCursor(self, self.txn.cursor())


class CountedCursor:
    def __init__(self, counted: Counted, cursor) -> None:
        self.counted = counted
        self.within = cursor

    def __getattr__(self, name: str):
        self.counted.moves += name in ("set_range", "first", "last", "next", "prev", "iternext")
        return getattr(self.within, name)


def test_a_question_costs_the_same_however_many_rows_others_have(remotes: Remotes) -> None:
    # .NET goes through all rows of all routes and accounts
    def moves() -> int:
        with remotes.source.read() as txn:
            counted = Counted(txn)
            assert remote.match_remote(counted, "A", "orders.eu").plain == (b"r1",)
            assert remote.has_remote_interest(counted, "A", "orders.eu")
        return counted.moves

    remotes.apply("r1", "A", "orders.*")
    alone = moves()

    def crowd(txn) -> None:
        for n in range(2000):
            remote.apply(txn, f"r{n}", f"B{n % 20}", f"orders.{n}")
            remote.apply(txn, "r1", "A", f"other.{n}")

    remotes.source.submit(crowd)
    assert alone > 0
    assert moves() <= alone + 5
