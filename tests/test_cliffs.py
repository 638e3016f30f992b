"""What calls cost as the work grows, counted in records read, nodes decoded and commits made; never timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import raxlog
from raxlog.storage.rax import Rax
from raxlog.stream import info as infos
from raxlog.stream.bucket import Bucket
from raxlog.stream.group_state import ConsumerState
from raxlog.stream.header import StreamHeader

MANY = 3_000


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Counter[str]]:
    """``counted(owner, name)`` counts the calls of a function from now on."""
    counts: Counter[str] = Counter()

    def count(owner: Any, name: str) -> Counter[str]:
        real = getattr(owner, name)

        def counting(*given: Any, **options: Any) -> Any:
            counts[name] += 1
            return real(*given, **options)

        bound = isinstance(owner.__dict__[name], classmethod)
        monkeypatch.setattr(owner, name, staticmethod(counting) if bound else counting)
        return counts

    return count


def test_names_are_listed_without_reading_a_header(store: raxlog.Store, counted: Any) -> None:
    with store.transaction() as tx:
        for n in range(MANY):
            tx.stream(f"s{n:05}").append({"n": n})
    store.delete_stream("s00007")
    store.rename_stream("s00008", "t")
    counts = counted(StreamHeader, "from_row")
    assert store.streams() == sorted([*(b"s%05d" % n for n in range(MANY) if n not in (7, 8)), b"t"])
    assert not counts


def test_a_stream_tells_of_itself_without_a_walk_but_in_full(store: raxlog.Store, monkeypatch: Any) -> None:
    stream = store.stream("s")
    stream.extend([{"n": b"x" * 200} for _ in range(MANY)])
    walks = Counter[str]()

    class Walked(Rax):
        @property
        def numnodes(self) -> int:
            walks["numnodes"] += 1
            return super().numnodes

    monkeypatch.setattr(infos, "Rax", Walked)
    told = stream.info()
    assert (told.length, told.radix_tree_nodes) == (MANY, None)
    assert told.radix_tree_keys > 100
    assert "radix-tree-nodes" not in told.as_dict()
    assert not walks
    assert (stream.info(full=True).stream.radix_tree_nodes or 0) > told.radix_tree_keys
    assert walks["numnodes"] == 1


@pytest.fixture
def idle_few(store: raxlog.Store) -> Any:
    """A group in which 3 of many pending entries, at the end, are idle, and 2 are released."""
    stream = store.stream("s")
    stream.create_group("g", "0", create_stream=True)
    group = stream.group("g")
    ids = stream.extend([{"n": n} for n in range(MANY)])
    group.read("a", count=MANY)
    group.claim("a", *ids[-10:-7], idle=100)
    group.nack(ids[50], ids[-60])
    return group, [ids[50], ids[-60], *ids[-10:-7]]


def test_idle_entries_are_found_by_their_times(idle_few: Any, counted: Any) -> None:
    group, wanted = idle_few
    counts = counted(Bucket, "decode")
    assert [row.id for row in group.pending("-", min_idle=50)] == wanted
    assert [row.id for row in group.pending("-", count=3, min_idle=50)] == wanted[:3]
    assert [row.id for row in group.pending(wanted[1], wanted[-2], min_idle=50)] == wanted[1:-1]
    assert 0 < counts["decode"] <= 3 * (1 + 2 * 2 + 1)  # of 27 buckets: where it begins, those of the released, twice; one
    assert [row.id for row in group.pending("-", min_idle=50, consumer="a")] == wanted[2:]
    assert len(group.pending("-", min_idle=0.0)) == MANY



def test_a_group_counts_its_consumers_without_reading_them(store: raxlog.Store, counted: Any) -> None:
    stream = store.stream("s")
    stream.create_group("g", "0", create_stream=True)
    with store.transaction() as tx:
        for n in range(MANY):
            tx.group("s", "g").create_consumer(f"c{n}")
    counts = counted(ConsumerState, "__init__")
    assert stream.group("g").info().consumers == stream.groups()[0].consumers == MANY
    assert not counts
    assert [one.name for one in stream.group("g").consumers()] == sorted(b"c%d" % n for n in range(MANY))
