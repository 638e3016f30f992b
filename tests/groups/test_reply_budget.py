"""A read over several streams stops at so many entries or bytes, whatever it reads: as a model of three lines does."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import raxlog


def expected(sizes: dict[str, list[int]], count: int | None, total: int | None, most: int | None) -> dict[str, int]:
    """How many entries of each stream fit, whose names and values have so many bytes."""
    taken: dict[str, int] = {}
    for name, each in sizes.items():
        for size in each[:count]:
            if (total is None or sum(taken.values()) < total) and (most is None or not taken or most > 0):
                taken[name] = taken.get(name, 0) + 1
                most = None if most is None else most - size
    return taken


@pytest.mark.parametrize("seed", range(4))
def test_a_read_stops_at_its_counts_and_bytes_and_takes_one_entry_in_any_case(store: raxlog.Store, seed: int) -> None:
    rng = random.Random(seed)
    print("seed", seed)

    def limit(values: Sequence[int]) -> int | None:
        return rng.choice([None, *values])

    for turn in range(25):
        sizes = {f"{name}{turn}": [rng.randrange(1, 9) for _ in range(rng.randrange(1, 6))] for name in "abc"}
        limits = {"count": limit([1, 2, 4]), "total": limit([4, 7]), "max_bytes": limit([1, 5, 12, 40])}
        fits = expected(sizes, *limits.values())
        for name, each in sizes.items():
            store.stream(name).extend({"n": "x" * (size - 1)} for size in each)
            store.stream(name).create_group("g", "0")
        new = dict.fromkeys(sizes, ">")
        history = dict.fromkeys(sizes, "0")
        answers = [
            store.read(history, **limits),
            store.read_group("g", "a", new, **limits),
            store.read_group("g", "a", history),  # what has not been taken is not pending
        ]
        store.read_group("g", "a", new)
        answers += [
            store.read_group("g", "b", new, claim_idle=0, **limits),
            store.read_group("g", "b", history),
            store.read_group("g", "b", history, **limits),
        ]
        for number, answer in enumerate(answers):
            assert {name: len(entries) for name, entries in answer.items() if entries} == fits, (number, sizes, limits)


@pytest.mark.parametrize("key", [None, "k"])
def test_a_read_that_a_limit_of_bytes_ends_before_an_entry_of_an_earlier_node_skips_none(
    store: raxlog.Store, key: str | None
) -> None:
    stream = store.stream("nodes")
    ids = stream.extend([{"k": n, "text": "y" * 50} for n in range(450)])  # of at most 100 in a node
    group = stream.create_group("g")
    if key:
        group.configure(key=key)
    found: list[raxlog.StreamID] = []
    for size in (60, 700, 1, 9000) * 50:
        for entries in store.read_group("g", "w", {"nodes": ">"}, max_bytes=size).values():
            found += [entry.id for entry in entries]
        found += [entry.id for entry in group.read("w", count=3)]
    assert found == ids
