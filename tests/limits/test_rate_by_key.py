"""A rate for each value of a field: what is over it is parked, and comes in its order as its turns come."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
import traceback
from bisect import bisect_right
from collections import defaultdict
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import raxlog
import raxlog.testing
from customers import add, ids_of
from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from raxlog.storage.format import keys
from raxlog.storage.trees.rax import family_rows
from stored_nodes import problems

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
LONG = bool(os.environ.get("RAXLOG_LONG"))


@pytest.fixture
def jobs(store: raxlog.Store) -> raxlog.Stream:
    return store.stream("jobs")


@pytest.fixture
def group(jobs: raxlog.Stream) -> raxlog.Group:
    group = jobs.create_group("w")
    group.configure(rate=(10, 1.0), rate_key="customer")
    return group


def test_each_customer_has_the_rate_and_what_is_over_it_waits_for_its_turn() -> None:
    with raxlog.testing.clock() as clock, raxlog.testing.store() as store:
        jobs = store.stream("jobs")
        group = jobs.create_group("w")
        group.configure(rate=(10, 1.0), rate_key="customer")
        ids = add(jobs, "aab.ab.a")
        assert ids_of(group.read("x", count=99)) == [ids[0], ids[2], ids[3], ids[6]]
        pending = group.pending()
        assert (pending.total, pending.consumers, group.lag) == (8, {"x": 4}, 0)
        assert {row.deliveries for row in group.pending_entries() if row.consumer is None} == {0}
        assert group.job(ids[1]).status == "queued"
        assert group.read("x", count=99) == []
        group.ack(ids[0])  # no end of an entry lets another one through
        assert group.read("x", count=99) == []
        clock.advance(0.1)
        assert set(ids_of(group.read("x", count=99))) == {ids[1], ids[5]}
        assert group.read("x", count=99) == []
        clock.advance(0.1)
        assert ids_of(group.read("x", count=99)) == [ids[4]]
        clock.advance(0.1)
        assert ids_of(group.read("x", count=99)) == [ids[7]]
        clock.advance(5)
        ids = add(jobs, "aa")
        assert ids_of(group.read("x", count=99)) == ids[:1]
        info = group.info()
        assert (info.rate, info.burst, info.rate_key, info.key, info.per_key) == ((10, 1.0), 1, "customer", None, None)
        assert raxlog.check(store.path).problems == []


def test_a_read_that_waits_wakes_for_a_turn(jobs: raxlog.Stream, group: raxlog.Group) -> None:
    group.configure(rate=(2, 1.0))
    ids = add(jobs, "aaa")
    assert ids_of(group.read("x", count=99)) == ids[:1]
    began, used = time.monotonic(), time.thread_time()
    assert ids_of(group.read("x", count=99, timeout=30)) == ids[1:2]
    assert 0.3 < time.monotonic() - began < 10
    assert ids_of(group.read("x", count=99, timeout=30, claim_idle=100)) == ids[2:]
    assert time.thread_time() - used < 0.2


def test_a_read_that_waits_wakes_for_what_another_one_has_parked(jobs: raxlog.Stream, group: raxlog.Group) -> None:
    found: list[raxlog.Entry] = []
    readers = [threading.Thread(target=lambda name=name: found.extend(group.read(name, timeout=30))) for name in "xy"]
    for reader in readers:
        reader.start()
    time.sleep(0.2)
    began = time.monotonic()
    ids = add(jobs, "aa")
    for reader in readers:
        reader.join()
    assert time.monotonic() - began < 10
    assert sorted(ids_of(found)) == ids


def test_retries_and_takeovers_take_turns() -> None:
    with raxlog.testing.clock() as clock, raxlog.testing.store() as store:
        jobs = store.stream("jobs")
        group = jobs.create_group("w")
        group.configure(rate=(1, 10.0), rate_key="customer")
        ids = add(jobs, "aaa")
        group.read("x", count=9)
        group.nack(ids[0], consumer="x")
        assert group.read("x", count=9) == []  # its retry waits behind the next one, before the others
        clock.advance(10)
        assert ids_of(group.read("y", count=9)) == [ids[1]]
        clock.advance(10)
        [again] = group.read("y", count=9)
        assert (again.id, again.deliveries) == (ids[0], 2)
        clock.advance(5)
        assert group.read("z", count=9, claim_idle=12) == []  # over the rate: y has had one for 15 s
        assert [row.consumer for row in group.pending_entries()] == ["y", None, None]
        clock.advance(5)
        assert ids_of(group.read("z", count=9, claim_idle=100)) == [ids[2]]
        clock.advance(10)
        [again] = group.read("z", count=9, claim_idle=100)
        assert (again.id, again.deliveries) == (ids[1], 2)
        assert raxlog.check(store.path).problems == []


def test_claims_by_id_are_given_nothing_before_its_turn(store: raxlog.Store, jobs: raxlog.Stream,
                                                         group: raxlog.Group) -> None:
    group.configure(rate=(1, 3600.0))
    ids = add(jobs, "aaa")
    group.read("x", count=9)
    for sid in ids[1:]:
        with pytest.raises(raxlog.KeyBusy, match=f"{sid} .*for its turn .*same field 'customer'"):
            group.claim("y", sid)
    assert ids_of(group.autoclaim("y").entries) == ids[:1]
    assert ids_of(group.claim("z", ids[0])) == ids[:1]
    with pytest.raises(raxlog.InvalidArgument, match="noack"):
        group.read("x", noack=True)
    assert raxlog.check(store.path).problems == []


def test_with_a_key_both_hold(jobs: raxlog.Stream, group: raxlog.Group) -> None:
    group.configure(rate=(20, 1.0), key="customer", order=True)
    ids = add(jobs, "aaa")
    assert ids_of(group.read("x", count=9)) == ids[:1]
    time.sleep(0.1)
    assert group.read("x", count=9) == []  # its turn has come, and the key is held
    group.ack(ids[0])
    assert ids_of(group.read("x", count=9)) == ids[1:2]
    group.ack(ids[1])
    assert group.read("x", count=9) == []  # the key is free, and its turn is not there
    assert ids_of(group.read("x", count=9, timeout=30)) == ids[2:]


def test_workers_and_drain_go_on_at_the_rate_of_each_key(store: raxlog.Store) -> None:
    jobs = store.stream("jobs")
    group = jobs.create_group("w")
    group.configure(rate=(20, 1.0), rate_key="customer")
    add(jobs, "abcd" * 5)
    began = time.monotonic()
    worker = group.worker(lambda entry: None, threads=4)
    worker.run(burst=True)
    assert worker.counts.done == 20
    assert time.monotonic() - began > 0.15
    with raxlog.testing.clock() as clock, raxlog.testing.store() as other:
        add(other.stream("jobs"), "ab" * 10)
        group = other.stream("jobs").create_group("w")
        group.configure(rate=(1, 60.0), rate_key="customer")
        started = clock.now()
        assert group.worker(lambda entry: None).drain().done == 20
        assert (clock.now() - started).total_seconds() == pytest.approx(9 * 60, abs=2)


def test_a_change_of_the_rate_moves_what_waits(store: raxlog.Store, jobs: raxlog.Stream, group: raxlog.Group) -> None:
    group.configure(rate=(1, 3600.0))
    ids = add(jobs, "aaaab")
    assert ids_of(group.read("x", count=9)) == [ids[0], ids[4]]
    group.configure(rate=(2, 3600.0), burst=1)  # what was used up stays so
    assert group.read("x", count=9) == []
    group.configure(burst=2)
    assert ids_of(group.read("x", count=9)) == ids[1:2]
    group.configure(key="customer", rate_key=0)  # the rate is the group's, and begins anew
    assert (group.info().rate_key, group.info().rate, group.pending().parked) == (None, (2, 3600.0), 2)
    assert group.read("x", count=9) == []  # the key is held
    group.configure(rate=0, per_key=9)
    assert ids_of(group.read("x", count=9)) == ids[2:4]
    assert raxlog.check(store.path).problems == []
    group.configure(rate=(1, 3600.0), rate_key="customer", key=0)
    more = add(jobs, "ccc")
    assert ids_of(group.read("x", count=9)) == more[:1]
    group.configure(rate=0)
    assert (group.info().rate_key, group.pending().parked) == (None, 0)
    assert ids_of(group.read("x", count=9, claim_idle=1000)) == more[1:]
    assert raxlog.check(store.path).problems == []


@pytest.mark.parametrize("options", [
    {"rate_key": ""}, {"rate_key": "$x"}, {"rate_key": 7}, {"rate_key": "other", "key": "customer"}, {"key": "other"},
    {"per_key": 2}, {"rate": 0, "rate_key": "customer"},
])
def test_bad_input_changes_nothing(group: raxlog.Group, options: dict[str, Any]) -> None:
    before = group.info()
    with pytest.raises(raxlog.InvalidArgument):
        group.configure(**options)
    assert group.info() == before


def test_rows_of_keys_that_have_had_their_turns_go() -> None:
    with raxlog.testing.clock() as clock, raxlog.testing.store(durability="relaxed") as store:
        jobs = store.stream("jobs")
        group = jobs.create_group("w")
        group.configure(rate=(10, 1.0), rate_key="customer")
        for number in range(60):
            jobs.extend([{"customer": f"{number}-{n}"} for n in range(50)])
            group.ack(ids_of(group.read("x", count=99)))
            clock.advance(1)
        assert raxlog.check(store.path).problems == []
        with store._env.read() as txn:  # what is kept can be seen nowhere else
            rows = sum(1 for _ in family_rows(txn, keys.group_family(1, keys.KEY, 1)))
        assert rows < 300, "rows of keys pile up"


@pytest.mark.parametrize("how", [{}, {"rate_key": "customer"}], ids=["of the group", "by key"])
def test_after_the_clock_went_back_entries_come_again(how: dict[str, Any]) -> None:
    with raxlog.testing.clock() as clock, raxlog.testing.store() as store:
        jobs = store.stream("jobs")
        group = jobs.create_group("w")
        group.configure(rate=(10, 1.0), **how)
        add(jobs, "aaaa")
        assert len(group.read("x")) == 1
        clock._ns -= 24 * 3600 * 10**9
        group.pause(clock.now())  # a commit, at a time before
        came = 0
        for _ in range(10):
            came += len(group.read("x", count=9))
            clock.advance(0.1)
        assert came == 3
        assert raxlog.check(store.path).problems == []


def test_what_stops_a_read_for_its_rate_alone_wakes_it(jobs: raxlog.Stream, group: raxlog.Group) -> None:
    group.configure(rate=(2, 1.0), key="customer", max_parked=1)
    ids = add(jobs, "aab")
    group.read("x", count=9)
    group.ack(ids[2])
    last = jobs.append({"customer": "b"})
    assert group.info().stopped_by == "b"
    began = time.monotonic()
    assert ids_of(group.read("x", timeout=30)) == [last]
    assert time.monotonic() - began < 10
    group.ack(ids[0], last)
    more = add(jobs, "aabb")
    worker = group.worker(lambda entry: None)
    worker.run(burst=True)
    assert worker.counts.done == 1 + len(more)


def test_what_is_gone_is_taken_out_and_lets_the_next_go_on(jobs: raxlog.Stream, group: raxlog.Group) -> None:
    ids = add(jobs, "a" * 500)
    group.read("x", count=9)
    group.ack(ids[0])
    jobs.trim(minid=ids[-1])
    assert ids_of(group.read("x", count=9, timeout=30)) == ids[-1:]
    assert group.pending().total == 1


def test_through_the_door_a_claim_wakes_where_the_next_is_gone(
    store: raxlog.Store, jobs: raxlog.Stream, group: raxlog.Group
) -> None:
    group.configure(rate=(2, 1.0))
    ids = add(jobs, "aaaaa")
    group.read("x", count=1)
    jobs.trim(minid=ids[2])
    with raxlog.redis_client(store, decode_responses=True) as client:
        [[_, rows]] = client.execute_command(
            "XREADGROUP", "GROUP", "w", "y", "BLOCK", 20_000, "CLAIM", 60_000, "STREAMS", "jobs", ">")
    assert rows[0][0] == str(ids[2])


def test_a_burst_of_parked_entries_comes_at_once() -> None:
    with raxlog.testing.clock() as clock, raxlog.testing.store() as store:
        jobs = store.stream("jobs")
        group = jobs.create_group("w")
        group.configure(rate=(10, 1.0), burst=5, rate_key="customer")
        ids = add(jobs, "a" * 20)
        assert ids_of(group.read("x", count=99)) == ids[:5]
        clock.advance(60)
        assert ids_of(group.read("x", count=99)) == ids[5:10]
        assert (group.info().limited_by, group.info().limited_until) == ("rate", clock.now() + timedelta(seconds=0.08))


def test_the_next_of_a_key_and_a_retry_wait_for_their_turns_whoever_asks(
    jobs: raxlog.Stream, group: raxlog.Group
) -> None:
    group.configure(rate=(1, 3600.0), key="customer", order=True)
    ids = add(jobs, "aaa")
    group.read("x", count=9)
    group.nack(ids[0], consumer="x")
    with pytest.raises(raxlog.KeyBusy):
        group.claim("y", ids[0])
    assert group.autoclaim("y").entries == []
    group.ack(ids[0])  # so that the next is ids[1]
    assert group.nack(ids[1], delay=1e6) == 0
    assert group.nack(ids[2]) == 0


@pytest.mark.parametrize("limits", [{"rate": (1, 1.0), "rate_key": "customer"}, {"key": "customer"}], ids=str)
def test_salvage_drops_the_key_whole(tmp_path: Path, limits: dict[str, Any]) -> None:
    with raxlog.open(tmp_path / "s.rax") as store:
        group = store.stream("jobs").create_group("w")
        group.configure(**limits)
        add(store.stream("jobs"), "aaaab")
        group.read("x", count=99)
    raxlog.salvage(tmp_path / "s.rax", tmp_path / "copy.rax")
    assert raxlog.check(tmp_path / "copy.rax").problems == []


# -- against a model -------------------------------------------------------------------------------


class AgainstAModel(RuleBasedStateMachine):
    """Reads until nothing comes give, of each key, exactly as many as its rate lets through, in their order."""

    MANY, WINDOW, BURST = 2, 10_000, 2

    def __init__(self) -> None:
        super().__init__()
        self.scope = ExitStack()
        self.clock = self.scope.enter_context(raxlog.testing.clock())
        self.store = self.scope.enter_context(raxlog.testing.store(durability="relaxed"))
        self.jobs = self.store.stream("jobs")
        self.group = self.jobs.create_group("w")
        self.group.configure(rate=(self.MANY, self.WINDOW / 1000), burst=self.BURST, rate_key="k")
        self.per_key = 0
        self.key_of: dict[raxlog.StreamID, str] = {}
        self.new: list[raxlog.StreamID] = []  # never delivered
        self.held: set[raxlog.StreamID] = set()
        self.retries: dict[raxlog.StreamID, int] = {}  # when they are due
        self.turns: dict[str, int] = {}
        self.times: dict[str, list[int]] = defaultdict(list)

    def teardown(self) -> None:
        with self.scope:
            assert raxlog.check(self.store.path).problems == []

    def now(self) -> int:
        return round(self.clock.now().timestamp() * 1000)

    @rule(letters=st.text("abc.", min_size=1, max_size=5))
    def append(self, letters: str) -> None:
        for letter in letters:
            sid = self.jobs.append({"n": 1} if letter == "." else {"k": letter})
            self.key_of[sid] = letter
            self.new.append(sid)

    @rule(seconds=st.sampled_from([0.004, 1, 4.96, 5, 7, 30, 200]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(per_key=st.sampled_from([0, 1, 2]))
    def limit(self, per_key: int) -> None:
        if per_key:
            self.group.configure(key="k", per_key=per_key)
        else:
            self.group.configure(key=0)
        self.per_key = per_key

    @rule(count=st.integers(1, 4), claims=st.booleans())
    def read(self, count: int, claims: bool) -> None:
        now = self.now()
        while entries := self.group.read("x", count=count, claim_idle=10_000 if claims else None):
            assert len(entries) <= count
            for entry in entries:
                key = self.key_of[entry.id]
                self.times[key].append(now)
                assert entry.id in self.new or self.retries.pop(entry.id) <= now
                if entry.id in self.new:
                    assert self.per_key or not [
                        sid for sid in self.new if sid < entry.id and self.key_of[sid] == key], "order"
                    self.new.remove(entry.id)
                self.held.add(entry.id)
                if key != ".":
                    assert self.left(key, now) >= 1
                    self.turns[key] = max(self.turns.get(key, 0), now * self.MANY) + self.WINDOW
        for sid in [*self.new, *(sid for sid, due in self.retries.items() if due <= now)]:
            key = self.key_of[sid]
            is_full = self.per_key and sum(self.key_of[one] == key for one in self.held) >= self.per_key
            assert key != "."
            assert is_full or self.left(key, now) == 0, f"{sid} of {key} was not delivered"

    def left(self, key: str, now: int) -> int:
        early = now * self.MANY - max(self.turns.get(key, 0), now * self.MANY)
        return max(0, (early + (self.BURST - 1) * self.WINDOW + 20 * self.MANY) // self.WINDOW + 1)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), how=st.sampled_from(["ack", "nack", "later", "delete", "claim"]))
    def end(self, data: st.DataObject, how: str) -> None:
        sid = data.draw(st.sampled_from(sorted(self.held)))
        if how == "claim":
            assert ids_of(self.group.claim("y", sid)) == [sid]
            return
        self.held.remove(sid)
        if how == "ack":
            assert self.group.ack(sid) == 1
        elif how == "delete":
            assert self.jobs.delete_ex(sid, refs="delref")
        else:
            delay = 3 if how == "later" else 0
            assert self.group.nack(sid, delay=delay) == 1
            self.retries[sid] = self.now() + delay * 1000 if delay else 0

    @precondition(lambda self: self.new)
    @rule(data=st.data())
    def delete_waiting(self, data: st.DataObject) -> None:
        sid = data.draw(st.sampled_from(self.new))
        self.new.remove(sid)
        self.jobs.delete_ex(sid, refs="delref")

    @rule()
    def look(self) -> None:
        for key, times in self.times.items():
            assert key == "." or all(bisect_right(times, first + self.WINDOW) - at <= self.MANY + self.BURST
                                     for at, first in enumerate(times))
        assert self.group.pending().total >= len(self.held)
        assert problems(self.store.path) == []


TestAgainstAModel = AgainstAModel.TestCase
TestAgainstAModel.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)


# -- processes that are killed ---------------------------------------------------------------------

RATE, KEYS, SECONDS = 20, 8, 60.0 if LONG else 5.0


def consume(path: Path, seed: int) -> None:
    """Take, and note the times of delivery, as the pending list has them; acknowledge with that note in one commit."""
    chance = random.Random(seed)
    with raxlog.open(path) as store:
        group = store.stream("jobs").group("w")
        while True:
            entries = group.read(f"c{os.getpid()}", count=chance.randint(1, 3), timeout=1, claim_idle=1.5)
            with store.transaction() as tx:
                for entry in entries:
                    [row] = group.pending_entries(entry.id, entry.id)
                    at = round((time.time() - (row.idle or 0)) * 1000)
                    tx.stream("done").append({"k": entry.fields["k"], "at": at, "id": str(entry.id)})
                    tx.group("jobs", "w").ack(entry.id)


@pytest.mark.storm
def test_no_key_gets_more_in_any_second_whichever_process_is_killed(tmp_path: Path) -> None:
    print("seed", SEED)
    chance, path = random.Random(SEED), tmp_path / "store.rax"
    with raxlog.open(path) as store:
        entries = KEYS * int(RATE * (SECONDS + 5))
        store.stream("jobs").extend([{"k": n % KEYS} for n in range(entries)])
        store.stream("jobs").create_group("w").configure(rate=(RATE, 1.0), rate_key="k", max_parked=1_000_000)

    def start() -> int:
        seed, pid = chance.randrange(1 << 30), os.fork()
        if pid == 0:
            try:
                consume(path, seed)
            except BaseException:
                traceback.print_exc(file=sys.stderr)
            finally:
                os._exit(1)
        return pid

    workers, end = [start() for _ in range(4)], time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(0.5)
        at = chance.randrange(4)
        os.kill(workers[at], signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(workers[at], 0)[1]) == -signal.SIGKILL, "it failed by itself"
        workers[at] = start()
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert raxlog.check(path).problems == []
    with raxlog.open(path) as store:
        done = [(entry.fields["k"], int(entry.fields["at"])) for entry in store.stream("done")]
    times = {key: sorted(at for one, at in done if one == key) for key in {key for key, _ in done}}
    assert len(times) == KEYS
    slack = 2  # ms by which a time that is computed from the idle time is off
    for key, at in times.items():
        most = max(bisect_right(at, first + 1000 - slack) - place for place, first in enumerate(at))
        assert most <= RATE + 1, f"{most} of {key} in a second"
        assert len(at) >= RATE * SECONDS * 0.5, f"{len(at)} of {key}"
