"""The index with its cache, without it, and in another process agree with a trie of dicts, always.

Hypothesis draws inserts, removals, batches, lost owners, undone transactions, refused calls and
reopenings, and lets either process do them. RAXLOG_LONG=1 draws thirty times as many.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import raxlog
from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from other_process import OtherProcess
from raxlog.index.subjects.check import problems
from raxlog.index.subjects.handle import Sublist
from raxlog.index.subjects.match import Cache
from raxlog.index.subjects.subscription import Subscription
from subject_reference import Trie

TOKENS = st.sampled_from(["a", "b", "*"])
PATTERNS = st.lists(TOKENS, min_size=1, max_size=3).flatmap(
    lambda tokens: st.sampled_from([".".join(tokens), ".".join([*tokens, ">"]), ".".join([*tokens[:-1], ">"])])
)
OWNERS = st.sampled_from([b"", b"x", b"xy"])
QUEUES = st.sampled_from([None, None, b"q", b"r"])
WEIGHTS = st.sampled_from([1, 2, 500])
WANTED = st.tuples(PATTERNS, OWNERS, QUEUES, WEIGHTS)
SUBJECTS = ["a", "b", "a.a", "a.b", "b.a", "c", "a.c", "a.b.a", "b.b.b", "a.a.a.a", "c.c.c"]


class Index(RuleBasedStateMachine):
    """What is subscribed, beside the index that should know it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="raxlog-test-"))
        self.path = self.folder / "s.rax"
        self.table: dict[int, tuple[str, bytes, bytes | None, int]] = {}
        self.trie = Trie()
        self.generation = 0
        self.open()
        self.other = OtherProcess(self.path)

    def open(self) -> None:
        self.store = raxlog.open(self.path, durability="relaxed")
        self.cached = Sublist(self.store._source, Cache(max_entries=8, max_fanout=40))
        self.plain = Sublist(self.store._source, Cache(0))

    def teardown(self) -> None:
        with self.store._source.read() as txn:
            wrong = list(problems(txn))
        self.store.close()
        self.other.close()
        shutil.rmtree(self.folder)
        assert wrong == []

    def do(self, elsewhere: bool, name: str, *args: Any) -> Any:
        return self.other.call(name, *args) if elsewhere else getattr(self.cached, name)(*args)

    def added(self, number: int, wanted: tuple[str, bytes, bytes | None, int]) -> None:
        assert number not in self.table
        self.table[number] = wanted
        self.trie.add(wanted[0], number)

    def removed(self, numbers: list[int]) -> None:
        for number in numbers:
            self.trie.discard(self.table.pop(number)[0], number)

    def some(self, data: Any) -> list[int]:
        return data.draw(st.lists(st.sampled_from(sorted(self.table)), unique=True)) if self.table else []

    @initialize(wanted=st.lists(WANTED, max_size=20))
    def begin(self, wanted: list[Any]) -> None:
        self.insert(wanted, False)

    @rule(wanted=st.lists(WANTED, max_size=5), elsewhere=st.booleans())
    def insert(self, wanted: list[Any], elsewhere: bool) -> None:
        subscriptions = [Subscription.of(p, owner=o, queue=q, weight=w) for p, o, q, w in wanted]
        for number, one in zip(self.do(elsewhere, "insert_many", subscriptions), wanted, strict=True):
            self.added(number, one)

    @rule(data=st.data(), elsewhere=st.booleans())
    def remove(self, data: Any, elsewhere: bool) -> None:
        gone = self.some(data)
        self.do(elsewhere, "remove_many", gone)
        self.removed(gone)

    @rule(owner=st.sampled_from([b"x", b"xy"]), elsewhere=st.booleans())
    def lose_owner(self, owner: bytes, elsewhere: bool) -> None:
        gone = [number for number, one in self.table.items() if one[1] == owner]
        assert [one.id for one in self.do(elsewhere, "remove_owner", owner)] == sorted(gone)
        self.removed(gone)

    @rule(data=st.data(), weight=WEIGHTS, elsewhere=st.booleans())
    def reweigh(self, data: Any, weight: int, elsewhere: bool) -> None:
        for number in self.some(data)[:2]:
            self.do(elsewhere, "set_weight", number, weight)
            self.table[number] = (*self.table[number][:3], weight)

    @rule(data=st.data(), elsewhere=st.booleans())
    def be_refused(self, data: Any, elsewhere: bool) -> None:
        with pytest.raises(raxlog.NoSubscription):
            self.do(elsewhere, "remove_many", [*self.some(data), 10**9])
        with pytest.raises(raxlog.SubjectError):
            self.do(elsewhere, "insert_many", [Subscription(b"a.*"), Subscription(b"a.>.b")])

    @rule(wanted=WANTED, data=st.data())
    def undo(self, wanted: Any, data: Any) -> None:
        gone = self.some(data)
        with pytest.raises(ZeroDivisionError), self.store.transaction() as tx:  # noqa: PT012
            inside = Sublist(tx._source, self.cached.cache)
            number = inside.insert(wanted[0], queue=wanted[2])
            inside.remove_many(gone)
            for subject in SUBJECTS:
                found = inside.match(subject)
                ids = {*found.plain, *(member.id for group in found.queues.values() for member in group)}
                assert ids - {number} == set(self.trie.match(subject)) - set(gone)
            raise ZeroDivisionError

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.open()

    @invariant()
    def all_agree(self) -> None:
        for subject, elsewhere in zip(SUBJECTS, self.other.call("match", *SUBJECTS), strict=True):
            matching = self.trie.match(subject)
            plain = sorted(n for n in matching if self.table[n][2] is None)
            queues: dict[bytes, list[tuple[int, int]]] = {}
            for number in sorted(matching):
                _, _, queue, weight = self.table[number]
                if queue is not None:
                    queues.setdefault(queue, []).append((number, weight))
            for found in (self.cached.match(subject), self.cached.match(subject), self.plain.match(subject)):
                self.compare(found.plain, found.queues, plain, queues)
            self.compare(*elsewhere, plain, queues)
            assert self.cached.has_interest(subject) is bool(matching)
            assert self.plain.num_interest(subject) == (len(plain), sum(map(len, queues.values())))
        statistics = self.cached.statistics()
        assert statistics.subscriptions == len(self.table) == len(self.plain)
        assert statistics.members == sum(one[2] is not None for one in self.table.values())
        assert statistics.literals + statistics.patterns == len({one[0] for one in self.table.values()})
        assert statistics.hits <= statistics.matches
        assert statistics.generation >= self.generation
        self.generation = statistics.generation

    @staticmethod
    def compare(ids: Any, groups: Any, plain: list[int], queues: dict[bytes, list[tuple[int, int]]]) -> None:
        assert sorted(ids) == plain
        assert {name: sorted((m.id, m.weight) for m in group) for name, group in groups.items()} == queues


Index.TestCase.settings = settings(max_examples=examples(40, 600), stateful_step_count=20)
TestIndex = Index.TestCase
TestIndex.__test__ = True
