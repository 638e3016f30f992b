"""What calls cost as the work grows, counted in records read, nodes decoded and commits made; never timed."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forkserver
import pytest
import raxlog
from counting import commits_of
from raxlog.index.subjects import sublist
from raxlog.index.subjects.subscription import Subscription
from raxlog.storage import kernels
from raxlog.storage.trees.rax import Rax
from raxlog.stream import info as infos
from raxlog.stream.entries import header as headers
from raxlog.stream.entries.header import StreamHeader
from raxlog.stream.group.state import ConsumerState, GroupState
from raxlog.stream.pel import bucket

MANY = 3_000


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Counter[str]]:
    """``counted(owner, name)`` counts the calls of a function from now on."""
    counts: Counter[str] = Counter()

    def count(owner: Any, name: str) -> Counter[str]:
        if isinstance(owner, type) and kernels.speed() == "compiled":
            pytest.skip("what is compiled cannot be replaced: the plain sources are counted")
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
    assert store.streams() == sorted([*(f"s{n:05}" for n in range(MANY) if n not in (7, 8)), "t"])
    assert not counts


def test_a_stream_tells_of_itself_without_a_walk_but_in_full(store: raxlog.Store, monkeypatch: Any) -> None:
    stream = store.stream("s")
    stream.extend([{"n": "x" * 200} for _ in range(MANY)])
    walks = Counter[str]()

    class Walked(Rax):
        @property
        def numnodes(self) -> int:
            walks["numnodes"] += 1
            return super().numnodes

    monkeypatch.setattr(infos, "Rax", Walked)
    info = stream.info()
    assert (info.length, info.radix_tree_nodes) == (MANY, None)
    assert info.radix_tree_keys > 100
    assert info.to_dict()["radix_tree_nodes"] is None
    assert not walks
    assert (stream.full_info().stream.radix_tree_nodes or 0) > info.radix_tree_keys
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
    counts = counted(bucket, "unseal")  # once for each that is decoded
    assert [row.id for row in group.pending_entries("-", min_idle=50)] == wanted
    assert [row.id for row in group.pending_entries("-", count=3, min_idle=50)] == wanted[:3]
    assert [row.id for row in group.pending_entries(wanted[1], wanted[-2], min_idle=50)] == wanted[1:-1]
    assert 0 < counts["unseal"] <= 3 * (1 + 2 * 2 + 1)  # of 27: the first, those of the released twice, one
    assert [row.id for row in group.pending_entries("-", min_idle=50, consumer="a")] == wanted[2:]
    assert len(group.pending_entries("-", min_idle=0.0)) == MANY



def test_a_group_counts_its_consumers_without_reading_them(store: raxlog.Store, counted: Any) -> None:
    stream = store.stream("s")
    stream.create_group("g", "0", create_stream=True)
    with store.transaction() as tx:
        for n in range(MANY):
            tx.group("s", "g").create_consumer(f"c{n}")
    counts = counted(ConsumerState, "__init__")
    assert stream.group("g").info().consumers == stream.groups()[0].consumers == MANY
    assert not counts
    assert [one.name for one in stream.group("g").consumers()] == sorted(f"c{n}" for n in range(MANY))


# -- in pieces ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a stream of 25,000 entries, all of them pending with one consumer of two groups."""
    path: Path = tmp_path_factory.mktemp("shelf") / "s.rax"
    with raxlog.open(path, durability="relaxed") as store:
        stream = store.stream("s")
        stream.extend([{"n": n} for n in range(PIECES)])
        for name in ("g", "h"):
            stream.create_group(name, "0").read("a")
        stream.create_group("fresh", "0")
    return path


@pytest.fixture
def piecemeal(shelf: Path, tmp_path: Path) -> Any:
    shutil.copytree(shelf, tmp_path / "s.rax")
    with raxlog.open(tmp_path / "s.rax", durability="relaxed") as store:
        yield store


PIECES = 25_000


def commits(store: raxlog.Store, call: Callable[[], Any]) -> tuple[int, Any]:
    """How many commits a call makes, and what it gives."""
    before = commits_of(store)
    given = call()
    return commits_of(store) - before, given


def everything(of: Any) -> list[raxlog.StreamID]:
    return [entry.id for entry in of.stream("s").range()]


# Commits; the call, of a store or a transaction; its result.
CALLS: dict[str, tuple[int, Callable[[Any, Any], Any], Any]] = {
    "delete": (3, lambda of, ids: of.stream("s").delete(*ids), PIECES),
    "delete_ex": (13, lambda of, ids: set(of.stream("s").delete_ex(*ids, refs="delref")), {1}),
    "ack": (3, lambda of, ids: of.stream("s").group("g").ack(*ids), PIECES),
    "ack_delete": (13, lambda of, ids: set(of.stream("s").group("g").ack_delete(*ids)), {1}),
    "read": (3, lambda of, ids: [one.id for one in of.stream("s").group("fresh").read("b")] == ids, True),
    "read of 12,000": (2, lambda of, ids: len(of.stream("s").group("fresh").read("b", 12_000)), 12_000),
    "history": (3, lambda of, ids: [one.id for one in of.stream("s").group("g").read("a", ids="0")] == ids, True),
    "drop": (3, lambda of, ids: of.stream("s").group("g").delete_consumer("a", pending="drop"), PIECES),
    "hand over": (3, lambda of, ids: of.stream("s").group("g").delete_consumer("a", to="b"), PIECES),
    "trim": (11, lambda of, ids: of.stream("s").trim(maxlen=1_000, refs="delref"), PIECES - 1_000),
}


@pytest.mark.parametrize("name", CALLS)
def test_long_calls_go_in_pieces_and_in_a_transaction_as_a_whole(piecemeal: raxlog.Store, name: str) -> None:
    store, (pieces, call, wanted) = piecemeal, CALLS[name]
    ids = everything(store)

    def whole() -> Any:
        with store.transaction() as tx:
            found = call(tx, ids)
            assert found == wanted
            raise KeyError

    before = commits_of(store)
    with pytest.raises(KeyError):
        whole()
    assert commits_of(store) == before
    made, found = commits(store, lambda: call(store, ids))
    assert found == wanted
    assert pieces <= made <= pieces + 1
    assert not raxlog.check(store.path).problems


def test_a_read_in_pieces_ends_at_what_was_there_when_it_began(piecemeal: raxlog.Store) -> None:
    stream, group = piecemeal.stream("s"), piecemeal.stream("s").group("fresh")
    going = threading.Event()

    def append() -> None:
        while not going.is_set():
            stream.extend([{"n": n} for n in range(5_000)])

    thread = threading.Thread(target=append)
    thread.start()
    try:
        found = group.read("b")
    finally:
        going.set()
        thread.join()
    assert len(found) >= PIECES
    assert group.pending().total == len(found)


def test_entries_that_no_consumer_may_lose_are_acknowledged_at_once_or_not_at_all(piecemeal: raxlog.Store) -> None:
    group, ids = piecemeal.stream("s").group("g"), everything(piecemeal)
    group.claim("b", ids[-1])
    with pytest.raises(raxlog.NotOwner):
        group.ack(*ids, consumer="a")
    assert group.pending().total == PIECES
    assert commits(piecemeal, lambda: group.ack(*ids[:-1], consumer="a")) == (1, PIECES - 1)


@pytest.mark.parametrize("refs", ["delref", "acked"])
def test_nodes_in_which_nothing_lives_go_with_a_trim_of_any_policy(store: raxlog.Store, refs: str) -> None:
    stream = store.stream("s")
    ids = stream.extend([{"n": n} for n in range(1_000)])
    nodes = stream.info().radix_tree_keys
    second = list(stream.nodes())[1][0]
    last = max(sid for sid in ids if sid < second)
    stream.delete(last)
    stream.trim(minid=last)
    assert stream.info().radix_tree_keys == nodes  # nothing lives in the first
    assert stream.trim(maxlen=len(stream) - 1, refs=refs) == 1
    assert stream.info().radix_tree_keys == nodes - 1
    assert not raxlog.check(store.path).problems


# -- wide stores -------------------------------------------------------------------------------


def commit_elsewhere(store: raxlog.Store) -> None:
    """Let another process append to a stream of its own."""
    program = "import raxlog, sys; raxlog.open(sys.argv[1]).stream('elsewhere').append({'n': 1})"
    forkserver.run([sys.executable, "-c", program, store.path], check=True)


@pytest.mark.parametrize("refs", ["acked", "delref"])
def test_groups_with_nothing_pending_are_not_set_up_to_be_asked(store: raxlog.Store, counted: Any, refs: str) -> None:
    stream = store.stream("s")
    ids = stream.extend([{"n": n} for n in range(10)])
    group = stream.create_group("g", "0")
    group.read("a", count=9)
    with store.transaction() as tx:
        for n in range(MANY):
            tx.stream("s").create_group(f"g{n}", "$")
    store._env.forget_last_commit()  # nothing of them stays warm, as in a process that has just opened the store
    counts = counted(GroupState, "__init__")
    held = refs == "acked"
    assert stream.delete_ex(ids[0], ids[9], refs=refs) == [2 if held else 1] * 2
    assert counts["__init__"] == 1
    behind = stream.create_group("behind", "0")
    commit_elsewhere(store)
    assert stream.delete_ex(ids[1], refs=refs) == [2 if held else 1]
    group.ack(*ids)
    assert stream.delete_ex(ids[2], refs=refs) == [2 if held else 1]  # "behind" has still to be given it
    behind.set_id(ids[5])
    assert stream.delete_ex(ids[3], refs=refs) == [1]
    assert stream.delete_ex(ids[6], refs=refs) == [2 if held else 1]
    behind.destroy()
    assert stream.delete_ex(ids[7], refs=refs) == [1]
    assert not raxlog.check(store.path).problems


def test_a_commit_of_another_process_asks_no_group_but_the_one_that_is_worked_on(
    store: raxlog.Store, counted: Any
) -> None:
    stream = store.stream("s")
    with store.transaction() as tx:
        for n in range(MANY // 6):  # no more than leaves the log to them: a checkpoint would have all read anew
            tx.stream("s").create_group(f"g{n}", "0", create_stream=True)
    commit_elsewhere(store)
    counts = counted(GroupState, "is_current")
    counted(GroupState, "__init__")
    stream.append({"n": 1})
    assert counts["is_current"] == 0
    assert len(stream.group("g1").read("a")) == 1
    assert counts["is_current"] == 1
    assert counts["__init__"] == 0  # it is still as it was left


def test_a_thousand_streams_stay_warm(store: raxlog.Store, counted: Any) -> None:
    def append() -> None:
        with store.transaction() as tx:
            for n in range(1_000):
                tx.stream(f"s{n}").append({"n": n})

    append()
    counts = counted(headers, "find")
    append()
    assert not counts


@pytest.mark.parametrize("owners", [300, MANY])
def test_an_owner_is_removed_without_reading_the_other_subscribers_rows(
    store: raxlog.Store, counted: Any, owners: int
) -> None:
    store.subjects.insert_many([Subscription.of("a.b", owner=f"o{n}") for n in range(owners)])
    counts = counted(sublist, "decode_row")
    assert len(store.subjects.remove_owner(f"o{owners - 50}")) == 1
    assert counts["decode_row"] == 1


def bytes_read(call: Callable[[], Any]) -> int:
    """How much a call reads by system calls."""
    def so_far() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    before = so_far()
    call()
    return so_far() - before


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what was read")
def test_neither_opening_nor_compacting_searches_the_file(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"
    with raxlog.open(path, durability="relaxed") as store:
        stream = store.stream("s")
        for _ in range(20):
            stream.extend([{"n": os.urandom(1_000)} for _ in range(1_000)])
        stream.trim(maxlen=10_000)
        stream.append({"n": 1})
        stream.append({"n": 1})  # what the trim has freed can be used now
    assert bytes_read(lambda: raxlog.open(path).close()) < 2_000_000  # makes the journal
    with raxlog.open(path) as store:
        assert bytes_read(store.compact) < 2_000_000
    assert bytes_read(lambda: raxlog.open(path).close()) < 200_000


SIZE = 20_000_000


@pytest.mark.parametrize("durability", ["commit", "relaxed", "buffered"])
def test_few_copies_are_made_of_a_large_entry(tmp_path: Path, durability: Any) -> None:
    value = os.urandom(SIZE)
    with raxlog.open(tmp_path / "s.rax", durability=durability, encoding=None) as store:
        stream = store.stream("s")
        stream.append({"n": 1})
        tracemalloc.start()
        try:
            sid = stream.append({"v": value})
            store.flush()
            kept, most = tracemalloc.get_traced_memory()
            assert most < 2.2 * SIZE
            assert kept < SIZE / 10
            commit_elsewhere(store)
            tracemalloc.reset_peak()
            stream.append({"n": 2})
            store.flush()
            assert tracemalloc.get_traced_memory()[1] < 1.2 * SIZE
            tracemalloc.reset_peak()
            entry = stream.get(sid)
            assert entry is not None
            assert entry.fields[b"v"] == value
            assert tracemalloc.get_traced_memory()[1] < 2.2 * SIZE
        finally:
            tracemalloc.stop()
    assert not raxlog.check(tmp_path / "s.rax").problems
