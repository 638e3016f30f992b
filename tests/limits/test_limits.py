"""Limits of a group: how many entries its consumers hold, and how many are delivered in a window of time."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from bisect import bisect_right
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import raxlog
import raxlog.aio
import raxlog.testing
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from raxlog.stream.group.state import Limits
from working import running, until

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
SECONDS = 60.0 if os.environ.get("RAXLOG_LONG") else 5.0


@pytest.fixture
def jobs(store: raxlog.Store) -> raxlog.Stream:
    return store.stream("jobs")


@pytest.fixture
def group(jobs: raxlog.Stream) -> raxlog.Group:
    jobs.extend([{"n": n} for n in range(100)])
    return jobs.create_group("w")


def test_consumers_hold_so_many_together_and_what_is_released_is_not_held(group: raxlog.Group) -> None:
    group.configure(max_in_flight=3)
    first = group.read("a", count=2)
    assert [len(first), len(group.read("b", count=9)), len(group.read("a", count=9))] == [2, 1, 0]
    group.nack(first[0].id, delay=1000, consumer="a")
    assert len(group.read("c", count=9, claim_idle=1000)) == 1
    assert group.ack(first[1].id) == 1
    assert len(group.read("c", count=9)) == 1
    assert (group.pending().total, group.info().max_in_flight) == (4, 3)


def test_a_group_shows_what_is_held_and_which_limit_holds_back_what_there_is(group: raxlog.Group) -> None:
    def seen() -> tuple[int | None, str | None]:
        info = group.info()
        assert (info.limited_until is not None) == (info.limited_by == "rate")
        return info.held, info.limited_by

    assert seen() == (None, None)
    group.configure(max_in_flight=2)
    first = group.read("a", count=2)
    assert seen() == (2, "max_in_flight")
    group.pause()
    assert seen() == (2, None)
    group.resume()
    group.nack(first[0].id, delay=1000, consumer="a")
    assert seen() == (1, None)
    group.set_id("$")
    group.configure(max_in_flight=1)
    assert seen() == (1, None)  # the retry is not due
    group.nack(first[0].id)
    assert seen() == (1, "max_in_flight")
    group.configure(max_in_flight=0, rate=(1, 60.0))
    group.set_id("0")
    assert seen() == (None, None)
    group.read("a")
    assert seen() == (None, "rate")
    until = group.info().limited_until
    assert until is not None
    assert 50 < until.timestamp() - time.time() < 61


def test_a_retry_that_is_due_waits_for_room_and_counts_no_delivery(jobs: raxlog.Stream, group: raxlog.Group) -> None:
    group.configure(max_in_flight=1)
    [one] = group.read("a")
    group.nack(one.id, consumer="a")
    [other] = group.read("a")
    assert group.read("b", claim_idle=1000) == []
    assert group.ack(other.id) == 1
    [again] = group.read("b", claim_idle=1000)
    assert (again.id, again.deliveries) == (one.id, 2)


def test_what_a_dead_consumer_holds_is_taken_over_without_room(group: raxlog.Group) -> None:
    group.configure(max_in_flight=2)
    held = group.read("dead", count=2)
    time.sleep(0.02)
    assert [entry.id for entry in group.read("b", count=9, claim_idle=0.01)] == [entry.id for entry in held]
    assert group.pending().consumers == {"b": 2}


def test_a_limit_below_what_is_held_delivers_nothing_until_enough_is_done(group: raxlog.Group) -> None:
    held = group.read("a", count=5)
    group.configure(max_in_flight=2)
    for entry in held[:3]:
        assert group.read("b", count=9) == []
        group.ack(entry.id)
    assert group.read("b", count=9) == []
    group.ack(held[3].id)
    assert len(group.read("b", count=9)) == 1
    group.configure(max_in_flight=0)
    assert len(group.read("b", count=9)) == 9
    assert group.info().max_in_flight is None


def test_noack_reads_and_claims_by_id_are_not_limited(group: raxlog.Group) -> None:
    group.configure(max_in_flight=1)
    [one] = group.read("a")
    assert len(group.read("b", count=5, noack=True)) == 5
    group.nack(one.id, consumer="a")
    [other] = group.read("a")
    assert len(group.claim("c", one.id)) == 1
    assert {entry.id for entry in group.pending_entries()} == {one.id, other.id}


@pytest.mark.parametrize("how", ["ack", "nack", "limit", "delete_consumer"])
def test_a_read_that_waits_wakes_when_there_is_room(group: raxlog.Group, how: str) -> None:
    group.configure(max_in_flight=1)
    [held] = group.read("a")

    def make_room() -> None:
        if how == "ack":
            group.ack(held.id)
        elif how == "nack":
            group.nack(held.id, delay=100, consumer="a")
        elif how == "limit":
            group.configure(max_in_flight=2)
        else:
            group.delete_consumer("a", pending="drop")

    timer = threading.Timer(0.2, make_room)
    timer.start()
    began, used = time.monotonic(), time.thread_time()
    assert len(group.read("b", timeout=30)) == 1
    assert time.monotonic() - began < 5
    assert time.thread_time() - used < 0.1
    timer.join()


def test_at_a_rate_a_read_waits_for_its_turn_and_burns_no_core(group: raxlog.Group) -> None:
    group.configure(rate=(10, 1.0), burst=2)
    assert (group.info().rate, group.info().burst) == ((10, 1.0), 2)
    assert len(group.read("a", count=9)) == 2
    began, used = time.monotonic(), time.thread_time()
    assert [len(group.read("a", count=9, timeout=30)) for _ in range(4)] == [1] * 4
    assert 0.25 < time.monotonic() - began < 5
    assert time.thread_time() - used < 0.2


def test_a_worker_keeps_to_both(store: raxlog.Store, jobs: raxlog.Stream, group: raxlog.Group) -> None:
    group.configure(max_in_flight=3, rate=(200, 1.0), burst=5)
    active, most, done = 0, 0, []
    lock = threading.Lock()

    def handle(entry: raxlog.Entry) -> None:
        nonlocal active, most
        with lock:
            active += 1
            most = max(most, active)
        time.sleep(0.002)
        with lock:
            active -= 1
            done.append(entry.id)

    with running(group.worker(handle, threads=8)):
        until(lambda: len(done) == 100, 30)
    assert most <= 3


def test_a_burst_waits_for_what_the_rate_holds_back_and_can_be_stopped(group: raxlog.Group) -> None:
    group.configure(rate=(100, 1.0), max_in_flight=2)
    worker = group.worker(lambda entry: None, threads=4)
    began = time.monotonic()
    worker.run(burst=True)
    assert worker.counts.done == 100
    assert time.monotonic() - began > 0.9
    group.configure(rate=(1, 3600.0))
    group.set_id("0")
    slow = group.worker(lambda entry: None)
    threading.Timer(0.3, slow.stop).start()
    began = time.monotonic()
    slow.run(burst=True)
    assert slow.counts.done <= 1
    assert time.monotonic() - began < 5


def test_a_burst_ends_where_others_hold_as_many_as_may_be_held(group: raxlog.Group) -> None:
    group.configure(max_in_flight=1, rate=(1, 0.05))
    group.read("another")
    worker = group.worker(lambda entry: None)
    began = time.monotonic()
    timer = threading.Timer(20, worker.stop)
    timer.start()
    worker.run(burst=True)
    timer.cancel()
    assert worker.counts.done == 0
    assert time.monotonic() - began < 15


def test_drain_goes_on_at_the_rate() -> None:
    with raxlog.testing.clock() as clock, raxlog.testing.store() as store:
        store.stream("jobs").extend([{"n": n} for n in range(50)])
        group = store.stream("jobs").create_group("w")
        group.configure(rate=(10, 60.0))
        began, times = clock.now(), list[float]()
        group.worker(lambda entry: times.append((clock.now() - began).total_seconds())).drain()
        assert len(times) == 50
        assert times[-1] == pytest.approx(49 * 6, abs=7)


def test_drain_ends_where_others_hold_as_many_as_may_be_held(group: raxlog.Group) -> None:
    group.configure(max_in_flight=2)
    held = group.read("another", count=1)
    done: list[raxlog.Entry] = []
    with raxlog.testing.clock():
        group.worker(done.append).drain()
    assert len(done) == 99
    assert len(group.read("another", count=9)) == 0
    group.configure(max_in_flight=1)
    assert group.pending().total == len(held)


def test_in_asyncio_a_pipeline_and_a_transaction(tmp_path: Path) -> None:
    async def main() -> None:
        async with raxlog.aio.open(tmp_path / "a.rax") as store:
            jobs = store.stream("jobs")
            await jobs.extend([{"n": n} for n in range(5)])
            group = await jobs.create_group("w")
            await group.configure(max_in_flight=1)
            [held] = await group.read("a", count=9)
            waits = asyncio.ensure_future(group.read("b", count=9, timeout=30))
            await asyncio.sleep(0.1)
            assert not waits.done()
            await group.ack(held.id)
            assert len(await waits) == 1

    asyncio.run(main())
    with raxlog.open(tmp_path / "a.rax") as plain:
        group = plain.stream("jobs").group("w")
        with plain.pipeline() as pipe:
            pipe.group("jobs", "w").configure(max_in_flight=2)
            pipe.group("jobs", "w").read("c", count=9)
            assert len(pipe.execute()[1]) == 1
        with plain.transaction() as tx:
            tx.group("jobs", "w").configure(max_in_flight=3)
            assert len(tx.group("jobs", "w").read("c", count=9)) == 1
        assert group.info().max_in_flight == 3
    with raxlog.open(tmp_path / "a.rax") as plain:
        assert plain.stream("jobs").group("w").info().max_in_flight == 3


@pytest.mark.parametrize("options", [
    {"max_in_flight": -1}, {"max_in_flight": 1.5}, {"max_in_flight": True}, {"rate": (0, 1.0)}, {"rate": (5, 0)},
    {"rate": (5, -1)}, {"rate": 5}, {"rate": "5/s"}, {"rate": (1.5, 1)}, {"rate": (5, 1, 1)}, {"burst": 0},
    {"rate": (5, float("nan"))}, {"rate": (10**7, 1)}, {"rate": (5, 1e9)}, {"burst": "x"},
], ids=str)
def test_bad_input_changes_nothing(group: raxlog.Group, options: dict[str, Any]) -> None:
    group.configure(max_in_flight=7, rate=(5, 1.0), burst=3)
    before = group.info()
    with pytest.raises(raxlog.InvalidArgument):
        group.configure(**options)
    assert group.info() == before
    with pytest.raises(raxlog.NoGroup):
        raxlog.Group.configure(group._source and type(group)(group._source, b"jobs", b"none", "utf-8"), max_in_flight=1)


# -- the rate, as numbers --------------------------------------------------------------------------


@settings(max_examples=300)
@given(many=st.integers(1, 1000), window=st.integers(1, 100_000), burst=st.integers(1, 50),
       steps=st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 60)), min_size=1, max_size=80))
def test_no_window_gets_more_and_a_greedy_reader_gets_all_that_is_allowed(
    many: int, window: int, burst: int, steps: list[tuple[int, int]]
) -> None:
    limits, now, times = Limits(0, many, window, burst), 1_700_000_000_000, list[int]()
    began = now
    assert limits.left(now) == burst  # at once
    for pause, wanted in steps:
        if not limits.left(now):
            due = limits.next_time(now)
            assert due > now
            assert not limits.left(due - 1)
            assert limits.left(due)
        now += pause
        taken = min(wanted, limits.left(now) or 0)
        limits = limits.spent(taken, now) if taken else limits
        times += [now] * taken
    for at, first in enumerate(times):
        assert bisect_right(times, first + window) - at <= many + burst
    eager, now, count = Limits(0, many, window, burst), began, 0
    while now < began + 20 * window and count < 3000:
        now = eager.next_time(now)
        left = eager.left(now)
        assert left
        count += left
        eager = eager.spent(left, now)
    if burst * window >= many:  # else a clock of milliseconds lets fewer through
        assert count >= (now - began) * many // window
    late, now, count = Limits(0, many, window, burst), began, 0
    if window >= 2 * many:  # each is late by a few ms, and the rate is kept
        while count < 200:
            now = late.next_time(now) + min(18, window // many - 1)
            late, count = late.spent(1, now), count + 1
        assert count >= (now - began) * many // window


def test_a_clock_that_was_years_ahead_holds_nothing_up() -> None:
    limits = Limits(0, 10, 1000, 1).spent(1, 5_000_000_000_000)
    assert limits.next_time(1_700_000_000_000) <= 1_700_000_000_000 + 200


# -- against a model -------------------------------------------------------------------------------


class AgainstAModel(RuleBasedStateMachine):
    """A group with both limits, against lists in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.scope = ExitStack()
        self.clock = self.scope.enter_context(raxlog.testing.clock())
        self.store = self.scope.enter_context(raxlog.testing.store(durability="relaxed"))
        self.stream = self.store.stream("jobs")
        self.group = self.stream.create_group("w")
        self.waiting: list[raxlog.StreamID] = []
        self.held: dict[raxlog.StreamID, str] = {}
        self.released: list[raxlog.StreamID] = []
        self.most: int | None = None
        self.rate: tuple[int, int, int] | None = None
        self.times: list[float] = []
        self.widest = 0  # the greatest burst since the rate is what it is

    def teardown(self) -> None:
        with self.scope:
            assert raxlog.check(self.store.path).problems == []

    @rule(count=st.integers(1, 6))
    def append(self, count: int) -> None:
        self.waiting += self.stream.extend([{"n": 0}] * count)

    @rule(most=st.sampled_from([0, 1, 2, 3, 5]))
    def limit(self, most: int) -> None:
        self.group.configure(max_in_flight=most)
        self.most = most or None

    @rule(many=st.integers(1, 4), burst=st.integers(1, 3), off=st.booleans())
    def limit_rate(self, many: int, burst: int, off: bool) -> None:
        rate = None if off else (many, 10, burst)
        if rate is None or self.rate is None or rate[0] != self.rate[0]:  # it begins anew
            self.times, self.widest = [], 0
        self.rate, self.widest = rate, max(self.widest, burst)
        self.group.configure(rate=0 if off else (many, 10.0), burst=burst)

    @rule(count=st.integers(1, 5), consumer=st.sampled_from("ab"), claims=st.booleans(), noack=st.booleans())
    def read(self, count: int, consumer: str, claims: bool, noack: bool) -> None:
        found = self.group.read(consumer, count=count, claim_idle=1000 if claims else None,
                                noack=noack and not claims)
        ids = [entry.id for entry in found]
        room = 99 if self.most is None or (noack and not claims) else max(0, self.most - len(self.held))
        could = (self.released if claims else []) + self.waiting
        assert ids == could[:len(ids)]
        assert len(ids) <= min(count, room)
        if self.rate is None:
            assert len(ids) == min(count, room, len(could))
        now = self.clock.now().timestamp()
        self.times += [now] * len(ids)
        if self.rate is not None:
            many, window, burst = self.rate
            assert sum(at > now - window for at in self.times) <= many + self.widest
            quiet = now - 2 * self.widest * window / many
            if not [at for at in self.times[: len(self.times) - len(ids)] if at > quiet]:
                assert len(ids) == min(count, room, len(could), burst)
        self.released = [sid for sid in self.released if sid not in ids]
        self.waiting = [sid for sid in self.waiting if sid not in ids]
        if not noack or claims:
            self.held |= dict.fromkeys(ids, consumer)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), how=st.sampled_from(["ack", "nack", "cancel", "delete"]))
    def end(self, data: st.DataObject, how: str) -> None:
        sid = data.draw(st.sampled_from(sorted(self.held)))
        consumer = self.held.pop(sid)
        if how == "ack":
            assert self.group.ack(sid) == 1
        elif how == "nack":
            assert self.group.nack(sid, consumer=consumer) == 1
            self.released.append(sid)
        elif how == "cancel":
            assert self.group.cancel(sid) == 1
        else:
            self.stream.delete_ex(sid, refs="delref")

    @rule(consumer=st.sampled_from("ab"))
    def drop(self, consumer: str) -> None:
        self.group.delete_consumer(consumer, pending="drop")
        self.held = {sid: one for sid, one in self.held.items() if one != consumer}

    @rule(seconds=st.sampled_from([1, 3, 7]))
    def pass_time(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @invariant()
    def what_is_held_is_counted(self) -> None:
        assert sum(self.group.pending().consumers.values()) == len(self.held)


TestAgainstAModel = AgainstAModel.TestCase
TestAgainstAModel.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)


# -- processes -------------------------------------------------------------------------------------


def take(path: Path) -> None:
    """Take one after the other, and keep it, with the time at which it was delivered."""
    with raxlog.open(path) as store:
        group = store.stream("jobs").group("w")
        while True:
            group.read(f"c{os.getpid()}", timeout=1)


@pytest.mark.storm
def test_four_processes_are_given_all_that_a_rate_allows_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "store.rax"
    with raxlog.open(path, durability="relaxed") as store:
        store.stream("jobs").extend([{"n": n} for n in range(int(100 * SECONDS) + 1_000)])
        store.stream("jobs").create_group("w").configure(rate=(100, 1.0), burst=1)
    workers = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                take(path)
            finally:
                os._exit(1)
        workers.append(pid)
    time.sleep(SECONDS)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL, "it failed by itself"
    with raxlog.open(path) as store:
        [group] = store.stream("jobs").full_info(None).groups
    times = sorted(round(row.delivered.timestamp() * 1000) for row in group.pending_entries if row.delivered)
    most = max(bisect_right(times, first + 1000) - at for at, first in enumerate(times))
    share = (len(times) - 1) / (times[-1] - times[0]) * 10
    print(f"{len(times)} delivered, at most {most} in a second, {share:.2%} of what is allowed")
    assert most <= 101
    assert share >= (0.97 if SECONDS > 10 else 0.5)  # a busy machine may hold up all four of them for a while


def consume(path: Path, seed: int) -> None:
    """Take, and note how many were held then; acknowledge some time later."""
    chance = random.Random(seed)
    with raxlog.open(path) as store:
        group = store.stream("jobs").group("w")
        while True:
            entries = group.read(f"c{os.getpid()}", count=chance.randint(1, 3), timeout=1, claim_idle=0.4)
            if entries:
                time.sleep(chance.uniform(0, 0.02))
                with store.transaction() as tx:
                    for entry in entries:
                        if tx.group("jobs", "w").ack(entry.id):
                            tx.stream("done").append({"id": str(entry.id)})


@pytest.mark.storm
def test_four_processes_that_are_killed_never_hold_more_and_lose_none(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    path = tmp_path / "store.rax"
    with raxlog.open(path) as store:
        store.stream("jobs").extend([{"n": n} for n in range(100_000 if SECONDS > 10 else 3_000)])
        store.stream("jobs").create_group("w").configure(max_in_flight=5, rate=(400, 1.0), burst=3)

    def start() -> int:
        seed, pid = chance.randrange(1 << 30), os.fork()
        if pid == 0:
            try:
                consume(path, seed)
            finally:
                os._exit(1)
        return pid

    workers, kills, looks = [start() for _ in range(4)], 0, 0
    end, kill_at = time.monotonic() + SECONDS, time.monotonic()
    with raxlog.open(path, readonly=True) as store:
        group = store.stream("jobs").group("w")
        while time.monotonic() < end:
            assert sum(group.pending().consumers.values()) <= 5
            looks += 1
            if time.monotonic() > kill_at:
                at = chance.randrange(4)
                os.kill(workers[at], signal.SIGKILL)
                ended = os.waitstatus_to_exitcode(os.waitpid(workers[at], 0)[1])
                assert ended == -signal.SIGKILL, "it failed by itself"
                workers[at], kills, kill_at = start(), kills + 1, time.monotonic() + 0.2
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert raxlog.check(path).problems == []
    with raxlog.open(path) as store:
        jobs, group = store.stream("jobs"), store.stream("jobs").group("w")
        times = [entry.id.ms for entry in store.stream("done")]
        group.configure(max_in_flight=0, rate=0)
        rest = [entry.id for entry in group.read("rest", count=200_000, claim_idle=0)]
        done = [entry.fields["id"] for entry in store.stream("done")]
        assert sorted([*map(raxlog.StreamID, done), *rest]) == [entry.id for entry in jobs], "each once"
    print(f"seed {SEED}, {kills} kills, {looks} looks, {len(done)} done, {len(done) / SECONDS:.0f} a second")
    assert times
