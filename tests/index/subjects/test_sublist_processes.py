"""Two processes change the subject index at the same moment, each asking it all the while.

    two children   insert, insert many, remove, remove many, each its own; say what they did
                   and never miss one of their own

At the end the index holds what the two left, no more and no less: with the cache, without it, and
in a trie of dicts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import raxlog
from children import Child
from raxlog.index.subjects.check import problems
from raxlog.index.subjects.handle import Sublist
from raxlog.index.subjects.match import Cache
from raxlog.index.subjects.subscription import Subscription
from subject_reference import Trie, all_subjects

STEPS = 60
SUBJECTS = [".".join(tokens) for tokens in all_subjects("ab", 3)]


def drawn(rng: random.Random) -> str:
    return ".".join([*rng.choices("ab*", k=rng.randrange(3)), rng.choice("ab*>")])


def churn(path: Path, seed: int, say: Callable[[Any], None]) -> None:
    """Random changes; what is left of them, by ID, is said at the end."""
    rng = random.Random(seed)
    mine: dict[int, str] = {}
    with raxlog.open(path, durability="relaxed") as store:
        index = Sublist(store._source)
        for _ in range(STEPS):
            if rng.random() < 0.6 or not mine:
                wanted = [drawn(rng) for _ in range(rng.choice([1, 1, 7]))]
                made = index.insert_many([Subscription.of(p, owner=b"%d" % seed) for p in wanted])
                mine |= dict(zip(made, wanted, strict=True))
            else:
                gone = rng.sample(sorted(mine), rng.randrange(1, len(mine) + 1))
                index.remove_many(gone)
                for number in gone:
                    del mine[number]
            subject = rng.choice(SUBJECTS)
            found = set(index.match(subject).plain)
            assert {number for number, p in mine.items() if raxlog.subject_matches(p, subject)} <= found
        say(mine)


@pytest.mark.parametrize("seed", range(3))
def test_what_two_processes_put_in_at_once_is_what_a_third_finds(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "s.rax"
    raxlog.open(path).close()
    print(f"seed {seed}")
    with Child(lambda say: churn(path, 2 * seed, say)) as one, Child(lambda say: churn(path, 2 * seed + 1, say)) as two:
        left: dict[int, str] = one.heard()
        left |= two.heard()
        one.finish()
        two.finish()
    with raxlog.open(path) as store:
        cached, bare = Sublist(store._source), Sublist(store._source, Cache(max_entries=0))
        reference = Trie()
        for number, subject in left.items():
            reference.add(subject, number)
        for subject in SUBJECTS * 2:
            wanted = sorted(reference.match(subject))
            assert sorted(cached.match(subject).plain) == wanted
            assert sorted(bare.match(subject).plain) == wanted
        assert len(cached) == len(left)
        with store._env.read() as txn:
            assert list(problems(txn)) == []
