"""Retention: what its rules let go goes, by whole nodes; nothing else does. Beside a small model in memory."""

from __future__ import annotations

import itertools
import math
import os
import pickle
import random
import shutil
import signal
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import raxlog
from children import Child
from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from raxlog import InvalidArgument, Retention, StreamID
from raxlog.stream import stream as stream_module
from raxlog.stream import streams as streams_module
from raxlog.stream.entries import header
from raxlog.stream.group import deliver as deliver_module
from raxlog.stream.group import expiry
from raxlog.stream.group import group as group_module
from raxlog.stream.group.state import SEEN_EVERY
from stored_nodes import nodes_of, problems

ID = tuple[int, int]
LONG = bool(os.environ.get("RAXLOG_LONG"))
NODE = 3  # entries


def filled(store: raxlog.Store, entries: int, retention: Retention | None = None, **node: int) -> raxlog.Stream:
    """Stream s with 1-0, 2-0, … in nodes of NODE entries."""
    stream = store.stream("s", **{"node_max_entries": NODE} | node)
    stream.extend([{"n": n} for n in range(entries)], ids=[f"{n + 1}-0" for n in range(entries)])
    if retention is not None:
        stream.configure(retention=retention)
    return stream


def ids_of(stream: raxlog.Stream) -> list[int]:
    return [entry.id.ms for entry in stream]


# -- beside a model ---------------------------------------------------------------------------


class Member:
    def __init__(self, last: ID) -> None:
        self.last = last
        self.pending: set[ID] = set()
        self.seen: dict[str, int] = {}


class RetentionBesideAModel(RuleBasedStateMachine):
    """The model knows at each look which entries may go; those that are gone must be among them."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.now = 1_700_000_000_000
        self.clock = pytest.MonkeyPatch()
        for module in (group_module, deliver_module, stream_module, streams_module):
            self.clock.setattr(module, "now_ms", lambda: self.now)
        self.entries: list[ID] = []  # live, or gone by a rule: the model learns of these by looking
        self.groups: dict[str, Member] = {}
        self.rules = Retention()
        self.last: ID = (0, 0)
        self.longest = 0  # nodes

    @initialize()
    def open(self) -> None:
        self.store = raxlog.open(self.folder / "s.rax", durability="relaxed", node_max_entries=NODE)
        self.stream = self.store.stream("s")
        self.stream.create_group("first", "$", create_stream=True)
        self.groups["first"] = Member((0, 0))

    def teardown(self) -> None:
        try:
            if hasattr(self, "store"):
                self.store.close()
        finally:
            self.clock.undo()
            shutil.rmtree(self.folder)

    # -- what the rules say -----------------------------------------------------------------

    def held(self, group: Member) -> list[ID]:
        return [sid for sid in self.entries if sid in group.pending or sid > group.last]

    def counts(self, group: Member) -> bool:
        idle = self.rules.idle_group
        held = self.held(group)
        if idle is None or not group.seen or not held:
            return True
        return held[0][0] >= self.now - idle * 1000 or max(group.seen.values()) >= self.now - idle * 1000 - SEEN_EVERY

    def going(self) -> int:
        """How many of the oldest entries may go, but for the rule of bytes."""
        rules, going = self.rules, 0
        if rules.maxlen is not None:
            going = max(0, len(self.entries) - rules.maxlen)
        if rules.max_age is not None:
            going = max(going, sum(sid[0] < self.now - rules.max_age * 1000 for sid in self.entries))
        live = [group for group in self.groups.values() if self.counts(group)]
        if rules.acked and live:
            holders = [held[0] for held in map(self.held, live) if held]
            going = max(going, sum(sid < min(holders, default=(1 << 64, 0)) for sid in self.entries))
        return going

    def look(self, complete: bool, by_maintain: bool = False) -> None:
        """Compare after a call that may have freed nodes; ``complete``: it was to free all it can."""
        kept = [(entry.id.ms, entry.id.seq) for entry in self.stream]
        gone = len(self.entries) - len(kept)
        assert kept == self.entries[gone:]
        going = self.going()
        sizes = [len(node.listpack) + 30 for node in nodes_of(self.store, b"s")]
        if gone > going:
            assert self.rules.max_bytes is not None
            assert sum(sizes) >= self.rules.max_bytes
        if complete:
            assert going - gone < NODE
            filling = sizes[-1] if sizes and not by_maintain else 0  # an append counts the others
            assert self.rules.max_bytes is None or sum(sizes[1:]) - filling < self.rules.max_bytes
        self.entries = kept

    # -- what users do ----------------------------------------------------------------------

    @rule(many=st.integers(1, 8), size=st.integers(0, 60), later=st.integers(0, 3000), each=st.booleans())
    def append(self, many: int, size: int, later: int, each: bool) -> None:
        self.now += later
        before = len(nodes_of(self.store, b"s"))
        flats = [{"v": "x" * size}] * many
        ids = [self.stream.append(flat) for flat in flats] if each else self.stream.extend(flats)
        self.entries += [(sid.ms, sid.seq) for sid in ids]
        self.last = self.entries[-1]
        self.longest = max(self.longest, before)
        begun = (before == 0 or many > NODE) and self.longest < 16  # else it may be put off
        self.look(complete=begun and not each)

    @rule(many=st.integers(1, 5))
    def append_in_a_transaction(self, many: int) -> None:
        with self.store.transaction() as tx:
            for n in range(many):
                sid = tx.stream("s").append({"n": n})
                self.entries.append((sid.ms, sid.seq))
        self.last = self.entries[-1]
        self.look(complete=False)

    @rule(name=st.sampled_from(["second", "third"]), at_start=st.booleans())
    def create_group(self, name: str, at_start: bool) -> None:
        if name not in self.groups:
            self.stream.create_group(name, "0" if at_start else "$")
            self.groups[name] = Member((0, 0) if at_start else self.last)

    @precondition(lambda self: len(self.groups) > 1)
    @rule(data=st.data())
    def destroy_group(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.groups)))
        assert self.stream.group(name).destroy()
        del self.groups[name]

    @precondition(lambda self: self.groups)
    @rule(data=st.data(), count=st.integers(1, 9), consumer=st.sampled_from("ab"))
    def read(self, data: st.DataObject, count: int, consumer: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.groups)))
        group = self.groups[name]
        got = [(entry.id.ms, entry.id.seq) for entry in self.stream.group(name).read(consumer, count)]
        assert got == [sid for sid in self.entries if sid > group.last][:count]
        group.pending.update(got)
        group.last = max([group.last, *got])
        group.seen[consumer] = self.now

    @precondition(lambda self: self.groups)
    @rule(data=st.data(), most=st.integers(1, 20), newest=st.booleans())
    def ack(self, data: st.DataObject, most: int, newest: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.groups)))
        group = self.groups[name]
        some = sorted(group.pending, reverse=newest)[:most]
        assert self.stream.group(name).ack(*[f"{ms}-{seq}" for ms, seq in some]) == len(some)
        group.pending.difference_update(some)

    @rule(seconds=st.sampled_from([1, 4, 7, 30]))
    def tick(self, seconds: int) -> None:
        self.now += seconds * 1000

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        sid = data.draw(st.sampled_from(self.entries))
        assert self.stream.delete(f"{sid[0]}-{sid[1]}") == 1
        self.entries.remove(sid)

    @rule(maxlen=st.none() | st.integers(1, 20), max_age=st.none() | st.sampled_from([0.5, 3, 20]),
          max_bytes=st.none() | st.integers(1, 1500), acked=st.booleans(), idle=st.none() | st.sampled_from([1, 10]))
    def configure(self, maxlen: Any, max_age: Any, max_bytes: Any, acked: bool, idle: Any) -> None:
        rules = Retention(maxlen, max_age, max_bytes, acked, idle if acked else None)
        changed = self.stream.configure(retention=rules)
        assert bool(changed) == (rules != self.rules)
        self.rules = rules
        assert self.stream.info().retention == (rules if rules != Retention() else None)

    @rule()
    def maintain(self) -> None:
        before = len(self.entries)
        freed = self.store.maintain().freed
        self.look(complete=True, by_maintain=True)
        gone = before - len(self.entries)
        assert freed == ({"s": gone} if gone else {})

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = raxlog.open(self.folder / "s.rax", durability="relaxed")
        self.stream = self.store.stream("s")

    @invariant()
    def everything_is_right(self) -> None:
        if hasattr(self, "store"):
            assert problems(self.folder / "s.rax") == []


def test_what_goes_is_what_a_rule_lets_go_and_less_than_a_node_of_it_stays() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        RetentionBesideAModel, settings=settings(max_examples=examples(30, 400), stateful_step_count=40))


# -- each rule --------------------------------------------------------------------------------


def test_maxlen_keeps_the_newest_and_the_rest_of_their_node(store: raxlog.Store) -> None:
    stream = filled(store, 20, Retention(maxlen=10))
    assert len(stream) == 20
    stream.append({"n": 20}, "21-0")  # within a node: nothing is looked at
    assert len(stream) == 21
    stream.append({"n": 21}, "22-0")  # begins one
    assert ids_of(stream) == list(range(13, 23))


def test_without_retention_the_header_is_as_before_and_after_its_removal(store: raxlog.Store) -> None:
    stream = filled(store, 4)

    def row() -> list[Any]:
        with store._env.read() as txn:
            found = header.find(txn, b"s")
        assert found is not None
        return found[1].row()

    before = row()
    assert stream.configure(retention=Retention()).to_dict() == {}
    assert stream.configure(retention=Retention(max_bytes=10**6)).retention == Retention(max_bytes=10**6)
    assert row()[4:] == [None, [None, None, 10**6, False, None]]
    assert row()[1] == before[1] != bytes(112)
    assert stream.configure(retention=Retention()).retention == Retention()
    assert row() == before
    assert stream.info().retention is None


def test_a_handle_made_with_a_retention_configures_its_stream(path: Path) -> None:
    kept, other = Retention(maxlen=5, max_age=timedelta(hours=1)), Retention(max_bytes=10**6)
    with raxlog.open(path) as store:
        made = store.stream("new", retention=kept, codec="json", node_max_entries=1)
        assert store.streams() == ["new"]
        assert made.info().retention == Retention(maxlen=5, max_age=3600.0)
        assert (made.codec, store.stream("new").codec) == ("json", "json")
        made.extend({"n": n} for n in range(20))
        assert [entry.value for entry in made] == [{"n": n} for n in range(15, 20)]
        store.stream("new", retention=other)  # another one: the last counts
        before = store._env.map.last_transaction_id()
        assert store.stream("new", retention=other).info().retention == other
        assert store._env.map.last_transaction_id() == before, "what is set already takes a commit"
        with pytest.raises(raxlog.InvalidArgument, match="maxlen"):
            store.stream("refused", retention=Retention(maxlen=0))
        with pytest.raises(raxlog.InvalidArgument, match=r"Retention\(\) removes it"):
            store.stream("refused", retention={"maxlen": 5})  # type: ignore[arg-type]
        with suppress(KeyError), store.transaction() as tx:
            tx.stream("undone", retention=kept)
            assert tx.streams() == ["new", "undone"]
            raise KeyError
        assert store.streams() == ["new"]
    with raxlog.open(path, readonly=True) as store, pytest.raises(raxlog.ReadOnlyStore):
        store.stream("new", retention=kept)


@pytest.mark.parametrize("rules", [
    {"maxlen": 0}, {"maxlen": 1.5}, {"max_bytes": "1 MB"}, {"max_age": "7d"}, {"max_age": -1}, {"max_age": math.nan},
    {"max_age": timedelta(0)}, {"acked": 1}, {"idle_group": 60},
])  # fmt: skip
def test_a_rule_that_is_none_is_refused_where_it_is_written(rules: dict[str, Any]) -> None:
    with pytest.raises(raxlog.InvalidArgument, match=next(iter(rules))):
        Retention(**rules)


def test_a_time_of_a_rule_is_the_same_in_seconds_and_as_a_timedelta() -> None:
    assert Retention(max_age=timedelta(days=7)) == Retention(max_age=604_800)
    assert replace(Retention(max_age=timedelta(days=7)), maxlen=3).max_age == 604_800.0
    assert pickle.loads(pickle.dumps(Retention(acked=True, idle_group=5))) == Retention(acked=True, idle_group=5.0)


def test_to_set_a_rule_costs_no_more_in_a_long_stream(store: raxlog.Store) -> None:
    stream = store.stream("s", node_max_entries=1)
    stream.extend([{"n": 1}] * 4000)
    spent = []
    for wanted in [Retention(max_age=9**9), Retention(max_bytes=9**9)] * 3:
        begun = time.thread_time()
        stream.configure(retention=wanted)
        spent.append(time.thread_time() - begun)
    assert min(spent) < 0.001, "it reads every node"
    assert problems(store.path) == []


def test_acked_without_groups_keeps_everything(store: raxlog.Store) -> None:
    stream = filled(store, 30, Retention(acked=True))
    assert store.maintain().freed == {}
    group = stream.create_group("g", "0")
    group.read("w", noack=True)
    assert store.maintain().freed == {"s": 30}
    assert len(stream) == 0
    stream.append({"n": 1})
    assert len(group.read("w")) == 1


def test_acked_keeps_what_one_group_has_pending_or_has_not_been_given(store: raxlog.Store) -> None:
    stream = filled(store, 30, Retention(acked=True))
    fast, slow = stream.create_group("fast", "0"), stream.create_group("slow", "0")
    fast.read("w", noack=True)
    got = slow.read("w", count=20)
    slow.ack(*[entry.id for entry in got if entry.id.ms != 8])
    assert store.maintain().freed == {"s": 6}
    assert ids_of(stream)[:2] == [7, 8]
    slow.ack("8-0")
    assert store.maintain().freed == {"s": 12}
    assert ids_of(stream) == list(range(19, 31))


def test_a_pending_entry_that_another_rule_has_let_go_holds_nothing_back(store: raxlog.Store) -> None:
    stream = filled(store, 30, Retention(acked=True, maxlen=20))
    group = stream.create_group("g", "0")
    group.ack(*[entry.id for entry in group.read("w") if entry.id.ms not in (1, 20)])
    assert store.maintain().freed == {"s": 18}
    assert ids_of(stream)[0] == 19
    assert [row.id.ms for row in group.pending_entries("-")] == [1, 20]


def test_a_reader_that_waits_longer_than_idle_group_misses_nothing(
        store: raxlog.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its group holds what has come just now; only what no reader comes for is let go."""
    now = int(time.time() * 1000)
    for module in (group_module, deliver_module, stream_module, streams_module):
        monkeypatch.setattr(module, "now_ms", lambda: now)
    stream = store.stream("s", node_max_entries=NODE)
    waits, works = (stream.create_group(name, "$", create_stream=True) for name in ("waits", "works"))
    stream.configure(retention=Retention(acked=True, idle_group=60))
    waits.read("w")
    now += 3_600_000
    stream.extend([{"n": n} for n in range(30)])
    works.read("w", noack=True)
    assert store.maintain().freed == {}
    now += 70_000
    stream.append({"n": 30})
    assert len(stream) == 1
    works.read("w", noack=True)
    assert store.maintain().freed == {}
    assert [entry.fields["n"] for entry in waits.read("w")] == ["30"]


@pytest.mark.parametrize("read", [NODE, NODE + 1, 3 * NODE - 1, 4 * NODE])
def test_a_group_that_is_idle_lets_go_what_others_need_no_more_wherever_it_has_stopped(
        store: raxlog.Store, monkeypatch: pytest.MonkeyPatch, read: int) -> None:
    """At the beginning of a node or within one; alone it holds all, but for what it has nothing of."""
    now = int(time.time() * 1000)
    for module in (group_module, deliver_module, stream_module, streams_module):
        monkeypatch.setattr(module, "now_ms", lambda: now)
    stream = filled(store, 4 * NODE)
    idle = stream.create_group("idle", "0")
    idle.ack(*[entry.id for entry in idle.read("w", read)])
    now += 70_000
    stream.configure(retention=Retention(acked=True, idle_group=60))
    assert store.maintain().freed == ({"s": 4 * NODE} if read == 4 * NODE else {})
    stream.create_group("busy", "0").read("w", 4 * NODE, noack=True)
    stream.extend([{"n": n} for n in range(NODE)])
    store.maintain()
    assert len(stream) == NODE


def test_a_group_without_consumers_counts(store: raxlog.Store) -> None:
    stream = filled(store, 30, Retention(acked=True, idle_group=0.001))
    stream.create_group("new", "0")
    stream.create_group("other", "0").read("w", noack=True)
    assert store.maintain().freed == {}


def test_an_append_frees_a_backlog_step_by_step(store: raxlog.Store) -> None:
    """One commit never frees thousands of nodes; maintain() does, in pieces."""
    stream = filled(store, 900 * NODE, Retention(maxlen=NODE))
    stream.append({"n": 0})
    assert 900 * NODE + 1 - len(stream) == (expiry.MOST + 1) * NODE
    assert list(store.maintain().freed) == ["s"]
    assert len(stream) < 2 * NODE


def test_many_groups_cost_no_look_at_each_node(store: raxlog.Store) -> None:
    """It is amortized: with 80 groups an append in ten nodes looks, and no node is kept for good."""
    stream = store.stream("s", node_max_entries=NODE)
    groups = [stream.create_group(f"g{n}", "$", create_stream=True) for n in range(80)]
    stream.configure(retention=Retention(acked=True))
    most = 0
    for _ in range(40):
        stream.extend([{"n": 1}] * NODE)
        for group in groups:
            group.read("w", noack=True)
        most = max(most, len(stream))
    assert most <= 13 * NODE


@pytest.mark.parametrize("compression", [None, "zstd", "compact"])
def test_max_bytes_counts_the_nodes_as_stored(store: raxlog.Store, compression: str | None) -> None:
    stream = store.stream("s", compression=compression)
    for n in range(3):
        stream.extend([{"text": f"entry {n} {k} " * 40} for k in range(100)])
    assert problems(store.path) == []
    stream.configure(retention=Retention(max_bytes=60_000))
    for _ in range(30):
        ids = stream.extend([{"text": f"entry {k} " * 40} for k in range(50)])
        stream.delete(*ids[:20])
        stream.trim(maxlen=len(stream) - 3)
        assert problems(store.path) == []
    stream.extend([{"text": os.urandom(300).hex()} for _ in range(600)])
    with store._env.read() as txn:
        found = header.find(txn, b"s")
    assert found is not None
    assert 60_000 <= found[1].stored_bytes < 60_000 + (60_000 if compression == "compact" else 8192)


def test_a_publish_and_a_buffered_append_apply_it(store: raxlog.Store, tmp_path: Path) -> None:
    filled(store, 30, Retention(maxlen=9))
    store.bind("a.*", "s")
    store.publish("a.b", {"n": 1})
    assert len(store.stream("s")) == 10
    with raxlog.open(tmp_path / "b.rax", durability="buffered") as buffered:
        stream = buffered.stream("s", node_max_entries=NODE)
        stream.append({"n": 0})
        stream.configure(retention=Retention(maxlen=9))
        ids = [stream.append({"n": n}) for n in range(100)]
        buffered.flush()
        assert [entry.id for entry in stream] == ids[-len(stream):]
        assert 9 <= len(stream) < 9 + 2 * NODE
        idempotent = [stream.append({"n": n}, producer="p") for n in range(30)]
        assert 9 <= len(stream) < 9 + NODE
        assert stream.append({"n": 29}, producer="p") == idempotent[-1]
    assert raxlog.check(tmp_path / "b.rax").ok


@pytest.mark.parametrize("wrong", [
    {"maxlen": 0}, {"maxlen": -1}, {"maxlen": True}, {"maxlen": 1.5}, {"maxlen": 1 << 63}, {"max_age": 0},
    {"max_age": -1.0}, {"max_age": float("nan")}, {"max_age": float("inf")}, {"max_age": True}, {"max_age": "1"},
    {"max_bytes": 0}, {"max_bytes": False}, {"max_bytes": "1 GB"}, {"acked": 1}, {"acked": None}, {"idle_group": 5},
    {"acked": True, "idle_group": 0}, {"acked": True, "idle_group": float("nan")},
], ids=str)  # fmt: skip
def test_a_wrong_rule_is_refused_and_changes_nothing(store: raxlog.Store, wrong: dict[str, Any]) -> None:
    stream = filled(store, 3, Retention(maxlen=5))
    with pytest.raises(InvalidArgument):
        stream.configure(retention=Retention(**wrong), node_max_entries=7)
    assert stream.info().retention == Retention(maxlen=5)
    assert stream.info().node_max_entries == NODE


@pytest.mark.parametrize("wrong", [{}, {"maxlen": 5}, "maxlen=5", 5, (5,)], ids=str)
def test_what_is_no_retention_is_refused(store: raxlog.Store, wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"must be a raxlog\.Retention"):
        filled(store, 3).configure(retention=wrong)
    with pytest.raises(TypeError):
        Retention(min_age=5)  # type: ignore[call-arg]


def test_a_salvaged_stream_keeps_its_retention(store: raxlog.Store, tmp_path: Path) -> None:
    filled(store, 30, Retention(max_bytes=300, acked=True))
    store.close()
    raxlog.salvage(store.path, tmp_path / "new.rax")
    assert raxlog.check(tmp_path / "new.rax").ok
    with raxlog.open(tmp_path / "new.rax") as salvaged:
        assert salvaged.stream("s").info().retention == Retention(max_bytes=300, acked=True)
        assert salvaged.maintain().freed["s"] > 0


# -- a work queue -----------------------------------------------------------------------------


def work(path: Path, seconds: float, how: str) -> list[int]:
    """Append, read and acknowledge at full speed; the sizes of the file, ten times a second."""
    sizes = []
    with raxlog.open(path) as store:
        stream = store.stream("jobs")
        group = stream.create_group("g", "$", create_stream=True, exist_ok=True)
        if how == "acked":
            stream.configure(retention=Retention(acked=True))
        end = time.monotonic() + seconds
        look = 0.0
        for n in itertools.count():
            stream.extend([{"job": n, "text": "x" * 200}] * 20)
            ids = [entry.id for entry in group.read("w", count=20)]
            if how == "acked":
                group.ack(*ids)
            else:
                group.ack_delete(*ids)
            now = time.monotonic()
            if now >= look:
                look = now + 0.1
                sizes.append(max((path / "000001").glob("data.mdb").__next__().stat().st_blocks * 512, 1))
            if now >= end:
                return sizes
    raise AssertionError


@pytest.mark.parametrize("how", ["acked", "ack_delete"])
def test_a_work_queue_keeps_its_file_within_twice_its_steady_size(path: Path, how: str) -> None:
    sizes = work(path, 600 if LONG else 1, how)
    steady = sizes[len(sizes) // 10:]
    print(f"{how}: {min(steady):,} to {max(steady):,} bytes")
    assert max(steady) <= 2 * min(steady)
    assert raxlog.check(path).ok


def test_maintenance_that_is_killed_leaves_a_whole_store(path: Path) -> None:
    with raxlog.open(path, durability="relaxed") as store:
        for name in "abc":
            stream = store.stream(name, node_max_entries=1)
            stream.extend([{"n": n} for n in range(2500)])
            stream.configure(retention=Retention(maxlen=1, max_bytes=1 << 30))

    def maintain(say: Any) -> None:
        with raxlog.open(path) as store:
            say("open")
            store.maintain()

    rounds = 0
    while True:
        with Child(maintain) as child:
            child.heard()
            time.sleep(0.002 * (rounds % 7))
            child.kill()
        assert problems(path) == []
        rounds += 1
        with raxlog.open(path, readonly=True) as store:
            left = [len(store.stream(name)) for name in "abc"]
        if left == [1, 1, 1] or rounds == 6:
            break
    with raxlog.open(path) as store:
        store.maintain()
        assert [len(store.stream(name)) for name in "abc"] == [1, 1, 1]
    assert raxlog.check(path).ok


def test_groups_of_killed_processes_are_given_every_entry(path: Path) -> None:
    """Producers free what both groups have acknowledged, while producers and consumers are killed."""
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"seed {seed}")
    chance = random.Random(seed)
    with raxlog.open(path) as store:
        stream = store.stream("s", node_max_entries=NODE)
        for name in ("one", "two"):
            stream.create_group(name, "$", create_stream=True)
        stream.configure(retention=Retention(acked=True))

    def produce(say: Any) -> None:
        with raxlog.open(path) as store:
            while True:
                say([tuple(sid) for sid in store.stream("s").extend([{"n": 1}] * 5)])

    def consume(name: str) -> Any:
        def work(say: Any) -> None:
            with raxlog.open(path) as store:
                group = store.stream("s").group(name)
                while True:  # what a killed one had pending comes again
                    got = group.read("w", 7, ids="0") or group.read("w", 7, timeout=1)
                    say([tuple(entry.id) for entry in got if entry.pairs])
                    group.ack(*[entry.id for entry in got])

        return work

    works = {"a": produce, "b": produce, "one": consume("one"), "two": consume("two")}
    seen: dict[str, set[ID]] = {name: set() for name in works}
    with ExitStack() as stack:
        children = {name: stack.enter_context(Child(work)) for name, work in works.items()}
        end = time.monotonic() + (60 if LONG else 1.5)
        while time.monotonic() < end:
            time.sleep(chance.uniform(0.02, 0.2))
            name = chance.choice(list(works))
            children[name].send(signal.SIGKILL)
            seen[name].update(sid for some in children[name].all_heard() for sid in some)
            children[name].wait()
            assert children[name].status == -signal.SIGKILL, "it has ended by itself"
            children[name] = stack.enter_context(Child(works[name]))
        for name, child in children.items():
            child.send(signal.SIGKILL)
            seen[name].update(sid for some in child.all_heard() for sid in some)
    assert raxlog.check(path).ok
    with raxlog.open(path) as store:
        stream = store.stream("s")
        for name in ("one", "two"):
            group = stream.group(name)
            left = [*group.read("w", ids="0"), *group.read("w")]
            assert all(entry.pairs for entry in left), "an entry has gone that was not acknowledged"
            seen[name].update((entry.id.ms, entry.id.seq) for entry in left)
            group.ack(*[entry.id for entry in left])
        assert seen["a"] | seen["b"] <= seen["one"]
        assert seen["a"] | seen["b"] <= seen["two"]
        stream.extend([{"n": 1}] * NODE)  # which frees what has been acknowledged, if only now
        assert len(stream) < stream.info().entries_added


@pytest.mark.parametrize("rule", [{"max_age": timedelta(days=1)}, {"maxlen": 7}, {"acked": True}])
def test_exact_maintenance_takes_the_entries_that_a_rule_lets_go_and_no_other(store: raxlog.Store, rule: Any) -> None:
    stream = store.stream("s")
    now = datetime.now(UTC)
    old = [stream.append({"n": n}, StreamID(int((now - timedelta(days=9, minutes=-n)).timestamp() * 1000), 0))
           for n in range(90)]
    new = [stream.append({"n": n}) for n in range(7)]
    group = stream.create_group("g")
    group.read("w", count=90, ack=[])
    group.ack(*old)
    stream.configure(retention=raxlog.Retention(**rule))
    assert store.maintain().freed == {}  # one node holds them all
    assert store.maintain(exact=True).freed == {stream.name: 90}
    assert [entry.id for entry in stream.range()] == new
    assert store.maintain(exact=True).freed == {}
    assert raxlog.check(store.path).ok
