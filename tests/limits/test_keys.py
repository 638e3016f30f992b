"""Keys: of entries with one value in a field so many are worked on at a time, in order; the others are parked."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import raxlog
import raxlog.aio
import raxlog.testing
from customers import add, ids_of
from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from working import running, until


@pytest.fixture
def jobs(store: raxlog.Store) -> raxlog.Stream:
    return store.stream("jobs")


@pytest.fixture
def group(jobs: raxlog.Stream) -> raxlog.Group:
    group = jobs.create_group("w")
    group.configure(key="customer")
    return group


def states_of(group: raxlog.Group) -> list[tuple[raxlog.StreamID, object, bool]]:
    return [(row.id, row.consumer, row.parked) for row in group.pending_entries()]


def test_one_of_each_customer_at_a_time_in_their_order(jobs: raxlog.Stream, group: raxlog.Group) -> None:
    ids = add(jobs, "aab.ab.")
    assert ids_of(group.read("x", count=9)) == [ids[0], ids[2], ids[3], ids[6]]
    pending = group.pending()
    assert (pending.total, pending.parked, pending.consumers, group.lag) == (7, 3, {"x": 4}, 0)
    assert [row.id for row in group.pending_entries() if row.parked] == [ids[1], ids[4], ids[5]]
    assert {(row.consumer, row.idle, row.deliveries) for row in group.pending_entries() if row.parked} == {
        (None, None, 0)}
    assert group.job(ids[1]).status == "queued"
    group.ack(ids[0])
    [entry] = group.read("y", count=9)
    assert (entry.id, entry.deliveries) == (ids[1], 1)
    assert group.read("y", count=9, claim_idle=1000) == []
    group.ack(ids[1], ids[2])
    assert set(ids_of(group.read("y", count=9, claim_idle=1000))) == {ids[4], ids[5]}
    assert group.pending().parked == 0


ENDS: dict[str, Callable[[raxlog.Store, raxlog.Stream, raxlog.Group, raxlog.StreamID], object]] = {
    "ack": lambda store, jobs, group, sid: group.ack(sid),
    "ack of its owner": lambda store, jobs, group, sid: group.ack(sid, consumer="x"),
    "ack in a read": lambda store, jobs, group, sid: group.read("other", count=0, ack=[sid]),
    "ack_delete": lambda store, jobs, group, sid: group.ack_delete(sid),
    "cancel": lambda store, jobs, group, sid: group.cancel(sid),
    "drop": lambda store, jobs, group, sid: group.delete_consumer("x", pending="drop"),
    "delete": lambda store, jobs, group, sid: jobs.delete_ex(sid, refs="delref"),
    "trim": lambda store, jobs, group, sid: jobs.trim(minid=sid.next(), refs="delref"),
    "gone": lambda store, jobs, group, sid: (jobs.delete(sid), group.autoclaim("other", count=1)),
    "claim of what is gone": lambda store, jobs, group, sid: (jobs.delete(sid), group.claim("other", sid)),
    "consumer of what is gone": lambda store, jobs, group, sid: (jobs.delete(sid), group.delete_consumer("x")),
    "transaction": lambda store, jobs, group, sid: in_transaction(store, sid),
    "pipeline": lambda store, jobs, group, sid: in_pipeline(store, sid),
    "dead letter": lambda store, jobs, group, sid: die(group, sid),
}


def in_transaction(store: raxlog.Store, sid: raxlog.StreamID) -> None:
    with store.transaction() as tx:
        tx.group("jobs", "w").ack(sid)


def in_pipeline(store: raxlog.Store, sid: raxlog.StreamID) -> None:
    with store.pipeline() as pipe:
        pipe.group("jobs", "w").ack(sid)
        pipe.execute()


def die(group: raxlog.Group, sid: raxlog.StreamID) -> None:
    """Have a worker give it up, which is stopped then."""
    def fail(entry: raxlog.Entry) -> None:
        worker.stop()
        raise raxlog.Discard("no")

    time.sleep(0.12)
    worker = group.worker(fail, lease=0.1, name="dead")
    worker.run()
    assert [letter.origin for letter in group.dead_letters] == [sid]
    for row in group.pending_entries(consumer="dead"):  # what it had read before it was stopped
        group.nack(row.id)


@pytest.mark.parametrize("order", [False, True], ids=["", "order"])
@pytest.mark.parametrize("end", ENDS)
def test_every_end_of_an_entry_lets_the_next_of_its_key_go_on(
    store: raxlog.Store, jobs: raxlog.Stream, group: raxlog.Group, end: str, order: bool
) -> None:
    group.configure(order=order)
    ids = add(jobs, "aaa")
    assert ids_of(group.read("x", count=9)) == ids[:1]
    ENDS[end](store, jobs, group, ids[0])
    assert ids_of(group.read("y", count=9)) == ids[1:2]
    assert group.pending().parked == 1
    assert raxlog.check(store.path).problems == []


@pytest.mark.parametrize("how", ["ack", "configure", "drop"])
def test_a_read_that_waits_wakes_for_its_key(jobs: raxlog.Stream, group: raxlog.Group, how: str) -> None:
    ids = add(jobs, "aa")
    group.read("x", count=9)
    ways: dict[str, Callable[[], object]] = {
        "ack": lambda: group.ack(ids[0]), "configure": lambda: group.configure(per_key=2),
        "drop": lambda: group.delete_consumer("x", pending="drop"),
    }
    timer = threading.Timer(0.2, ways[how])
    timer.start()
    began, used = time.monotonic(), time.thread_time()
    assert ids_of(group.read("y", timeout=30)) == ids[1:]
    assert time.monotonic() - began < 5
    assert time.thread_time() - used < 0.1
    timer.join()


def test_with_order_a_retry_keeps_its_key_and_without_the_next_goes_first(
    jobs: raxlog.Stream, group: raxlog.Group
) -> None:
    ids = add(jobs, "aa")
    group.read("x")
    group.nack(ids[0], delay=0.05, consumer="x")
    assert ids_of(group.read("x", claim_idle=1000)) == ids[1:]
    time.sleep(0.06)
    assert group.read("x", claim_idle=1000) == []  # its key is busy
    group.ack(ids[1])
    [again] = group.read("x", claim_idle=1000)
    assert (again.id, again.deliveries) == (ids[0], 2)
    group.ack(ids[0])
    group.configure(order=True)
    ids = add(jobs, "aa")
    group.read("x")
    group.nack(ids[0], delay=0.05, consumer="x")
    assert group.read("x", claim_idle=1000) == []
    time.sleep(0.06)
    assert ids_of(group.read("x", claim_idle=1000)) == ids[:1]
    group.ack(ids[0])
    assert ids_of(group.read("x")) == ids[1:]


def test_a_dead_consumers_entry_is_taken_over_and_keeps_its_key(jobs: raxlog.Stream, group: raxlog.Group) -> None:
    ids = add(jobs, "aab")
    group.read("dead", count=2)
    time.sleep(0.02)
    assert ids_of(group.read("y", count=9, claim_idle=0.01)) == [ids[0], ids[2]]
    assert group.pending().parked == 1
    group.delete_consumer("y", to="z")
    assert group.read("x", count=9, claim_idle=1000) == []
    group.ack(ids[0], consumer="z")
    assert ids_of(group.read("x", count=9)) == ids[1:2]


def test_claims_of_what_is_parked(store: raxlog.Store, jobs: raxlog.Stream, group: raxlog.Group) -> None:
    ids = add(jobs, "aa.")
    group.read("x", count=9)
    before = states_of(group), [one.name for one in group.consumers()]
    for claims in (group.claim, group.claim_ids):
        with pytest.raises(raxlog.KeyBusy, match=f"{ids[1]} .*same field 'customer'"):
            claims("new", ids[2], ids[1])
    with pytest.raises(raxlog.KeyBusy), store.transaction() as tx:
        tx.group("jobs", "w").claim("new", ids[1])
    later = jobs.append({"customer": "a"})
    with pytest.raises(raxlog.KeyBusy):
        group.claim("new", later, force=True)
    with pytest.raises(raxlog.KeyBusy):
        group.nack(later, force=True)
    assert group.nack(ids[1]) == 0
    assert (states_of(group), [one.name for one in group.consumers()]) == before
    assert ids_of(group.autoclaim("y").entries) == [ids[0], ids[2]]
    assert ids_of(group.claim("z", ids[0])) == ids[:1]
    with pytest.raises(raxlog.InvalidArgument, match="noack"):
        group.read("x", noack=True)
    group.ack(ids[0])
    assert ids_of(group.claim("z", ids[1])) == ids[1:2]
    group.ack(ids[1])
    assert ids_of(group.claim("z", later, force=True)) == [later]


def test_past_max_parked_the_read_stops_and_goes_on_when_fewer_are(jobs: raxlog.Stream, group: raxlog.Group) -> None:
    group.configure(max_parked=2)
    ids = add(jobs, "aaabaab")
    assert ids_of(group.read("x", count=9)) == [ids[0], ids[3]]
    assert (group.pending().parked, group.lag) == (2, 3)
    began, used = time.monotonic(), time.thread_time()
    assert group.read("x", count=9, timeout=0.3) == []
    assert time.monotonic() - began > 0.25
    assert time.thread_time() - used < 0.1
    timer = threading.Timer(0.1, lambda: group.ack(ids[0]))
    timer.start()
    assert ids_of(group.read("x", count=9, timeout=30)) == ids[1:2]
    timer.join()
    assert (group.pending().parked, group.lag) == (2, 2)
    with raxlog.testing.clock():
        done: list[raxlog.StreamID] = []
        group.nack(ids[1], ids[3])
        group.worker(lambda entry: done.append(entry.id)).drain()
    assert sorted(done) == [*ids[1:]]


def stopped(jobs: raxlog.Stream, group: raxlog.Group, customers: str) -> list[raxlog.StreamID]:
    """A group that has read up to an entry which may not be parked."""
    group.configure(max_parked=1)
    ids = add(jobs, customers)
    group.read("x", count=9)
    assert group.read("y", count=9) == []
    assert (group.info().stopped_by, group.info().limited_by) == (customers[len(ids) - group.lag], "max_parked")
    return ids


@pytest.mark.parametrize("end", ["ack", "ack_delete", "cancel", "drop", "delete of the next", "cancel of the next",
                                 "trim", "set_id"])
def test_whatever_lets_a_group_go_on_that_has_parked_enough_wakes_its_readers(
    jobs: raxlog.Stream, group: raxlog.Group, end: str
) -> None:
    if end.endswith("the next"):
        ids = stopped(jobs, group, "aaab")
        ways = {"delete of the next": lambda: jobs.delete(ids[2]), "cancel of the next": lambda: group.cancel(ids[2])}
    else:
        ids = stopped(jobs, group, "abab")
        ways = {"ack": lambda: group.ack(ids[1]), "ack_delete": lambda: group.ack_delete(ids[1]),
                "cancel": lambda: group.cancel(ids[1]), "drop": lambda: group.delete_consumer("x", pending="drop"),
                "trim": lambda: jobs.trim(minid=ids[2], refs="delref"), "set_id": lambda: group.set_id("$")}
    if end == "set_id":
        ids.append(jobs.append({"customer": "c"}))
        ways["set_id"] = lambda: group.set_id(ids[3])
    timer = threading.Timer(0.2, ways[end])
    timer.start()
    began, used = time.monotonic(), time.thread_time()
    assert len(group.read("y", count=1, timeout=30)) == 1
    assert time.monotonic() - began < 5
    assert time.thread_time() - used < 0.1
    timer.join()


def test_what_stops_a_read_is_what_it_would_have_to_park(store: raxlog.Store) -> None:
    jobs = store.stream("mixed")
    group = jobs.create_group("w", subjects=["in.*"])
    group.configure(key="k", max_parked=1)
    jobs.extend([[("$subject", "in.x"), ("k", "a")]] * 2)
    group.read("x", count=9)
    jobs.append([("$subject", "out.x"), ("k", "a")])
    jobs.append([("$subject", "in.x"), ("k", "b")])
    assert group.read("y", count=9) != []
    other = store.stream("jobs").create_group("v")
    other.configure(key="k", max_parked=1)
    store.stream("jobs").extend([{"k": "a"}] * 2)
    other.read("x", count=9)
    assert other.read("y") == []
    store.stream("jobs").append([("k", "free"), ("k", "a")])
    assert len(other.read("y")) == 1


def test_an_entry_is_parked_only_for_what_was_delivered(store: raxlog.Store, jobs: raxlog.Stream,
                                                        group: raxlog.Group) -> None:
    first, second = jobs.extend([{"customer": "b", "text": "x" * 1000}] * 2)
    for sid in (first, second):
        group.read("x", count=1)
        group.nack(sid, delay=0.05)
    small = jobs.append({"customer": "z"})
    group.read("x", count=1)
    group.nack(small)
    time.sleep(0.1)
    found = store.read_group("w", "y", {"jobs": ">"}, max_bytes=1, claim_idle=100)
    assert ids_of(found["jobs"]) == [small]
    assert group.pending().parked == 0
    assert raxlog.check(store.path).problems == []


@pytest.mark.parametrize("how", ["autoclaim", "configure"])
def test_a_retry_that_is_not_due_keeps_its_delay(jobs: raxlog.Stream, group: raxlog.Group, how: str) -> None:
    first, second = add(jobs, "aa")
    group.read("x", count=1)
    group.nack(first, delay=3600)
    assert ids_of(group.read("x", count=1)) == [second]
    if how == "autoclaim":
        group.autoclaim("y", min_idle=1000)
    else:
        group.configure(order=True)
    group.ack(second)
    assert group.read("x", claim_idle=1000) == []


def test_through_the_door_what_was_deleted_keeps_no_key(store: raxlog.Store, jobs: raxlog.Stream,
                                                        group: raxlog.Group) -> None:
    group.configure(order=True)
    ids = [str(sid) for sid in add(jobs, "aaaaa")]

    def read() -> list[str]:
        return [sid for _, rows in client.xreadgroup("w", "c", {"jobs": ">"}) for sid, _ in rows]

    with raxlog.redis_client(store, decode_responses=True) as client:
        assert read() == ids[:1]
        client.xack("jobs", "w", ids[0])
        client.xdel("jobs", ids[1])  # the next one, which is released by now
        assert read() == ids[2:3]
        client.xack("jobs", "w", ids[2])
        client.xtrim("jobs", minid=ids[4], approximate=False)
        assert read() == ids[4:]
        assert client.xpending("jobs", "w")["pending"] == 1
    assert raxlog.check(store.path).problems == []


def test_noack_is_refused_also_by_a_read_that_would_only_look(jobs: raxlog.Stream, group: raxlog.Group) -> None:
    assert group.read("x") == []
    with pytest.raises(raxlog.InvalidArgument, match="noack"):
        group.read("x", noack=True)


def test_a_change_of_the_key_parks_or_releases_what_is_pending(
    store: raxlog.Store, jobs: raxlog.Stream, group: raxlog.Group
) -> None:
    group.configure(key=0)
    ids = add(jobs, "aaaab")
    held = group.read("x", count=3)
    group.nack(ids[2], consumer="x")
    group.configure(key="customer", order=True)
    assert [row.id for row in group.pending_entries() if row.parked] == ids[2:3]
    assert ids_of(group.read("y", count=9)) == ids[4:]
    group.ack(held[0].id)
    assert group.read("y", count=9) == []  # another one is held still
    group.configure(per_key=2)
    assert ids_of(group.read("y", count=9)) == ids[2:3]
    assert group.pending().parked == 1
    group.configure(key="n", per_key=1)  # which none has
    assert ids_of(group.read("y", count=9)) == ids[3:4]
    group.configure(key="customer")
    more = add(jobs, "aa")
    assert group.read("y", count=9) == []
    assert raxlog.check(store.path).problems == []
    group.configure(key=0)
    assert group.read("y", count=9) == []
    assert set(ids_of(group.read("y", count=9, claim_idle=1000))) == set(more)
    assert raxlog.check(store.path).problems == []


def test_what_is_deleted_while_it_is_held_and_then_given_back_keeps_no_key(
    store: raxlog.Store, jobs: raxlog.Stream, group: raxlog.Group
) -> None:
    ids = add(jobs, "aaaa")
    assert ids_of(group.read("x", count=9)) == ids[:1]
    jobs.delete(ids[0])
    assert group.nack(ids[0]) == 1
    assert ids_of(group.read("y", count=9)) == ids[1:2]
    assert group.read("y", count=9) == []
    assert group.claim("z", ids[0]) == []  # another one holds the key, and it is gone
    assert group.pending().total == 3
    group.ack(ids[1])
    assert ids_of(group.read("y", count=9)) == ids[2:3]
    jobs.delete(ids[2])
    assert group.nack(ids[2]) == 1
    assert ids_of(group.read("y", count=9)) == ids[3:]
    assert group.nack(ids[3]) == 1
    assert ids_of(group.read("y", count=9)) == ids[3:]
    assert group.pending().total == 1
    assert raxlog.check(store.path).problems == []


def test_workers_run_each_customers_jobs_in_their_order(jobs: raxlog.Stream, group: raxlog.Group) -> None:
    group.configure(order=True)
    rows = [{"customer": "abcdefg"[n * n % 7], "n": n} for n in range(200)]
    jobs.extend(rows)
    active: set[str] = set()
    failed: set[str] = set()
    done: list[tuple[str, int]] = []

    def handle(entry: raxlog.Entry) -> None:
        customer, number = entry.fields["customer"], entry.fields["n"]
        assert customer not in active
        active.add(customer)
        time.sleep(0.001)
        active.remove(customer)
        if int(number) % 10 == 0 and number not in failed:
            failed.add(number)
            raise raxlog.Retry(0.01)
        done.append((customer, int(number)))

    with running(group.worker(handle, threads=4)):
        until(lambda: len(done) == len(rows), 60)
    for customer in "abcdefg":
        own = [number for name, number in done if name == customer]
        assert own == sorted(own)


@pytest.mark.parametrize(("options", "message"), [
    ({"key": ""}, "name of a field"), ({"key": 5}, "name of a field"), ({"key": "$entry"}, "name of a field, or 0"),
    ({"per_key": 0}, "per_key=0 must be a whole number from 1"), ({"per_key": 1.5}, "whole number from 1"),
    ({"order": 1}, "order"), ({"max_parked": 0}, "whole number from 1"), ({"key": True}, "name of a field"),
    ({"key": 0, "per_key": 2}, "key"),
], ids=str)
def test_bad_input_changes_nothing(jobs: raxlog.Stream, group: raxlog.Group, options: dict[str, Any],
                                   message: str) -> None:
    add(jobs, "aab")
    group.read("x", count=9)
    before = states_of(group), group.info()
    with pytest.raises(raxlog.InvalidArgument, match=message):
        group.configure(**options)
    other = jobs.create_group("other")
    with pytest.raises(raxlog.InvalidArgument, match="key="):
        other.configure(per_key=2)
    assert (states_of(group), group.info()) == before


def test_in_asyncio_and_through_a_dump_and_a_snapshot(tmp_path: Path) -> None:
    async def main() -> None:
        async with raxlog.aio.open(tmp_path / "a.rax") as store:
            jobs = store.stream("jobs")
            await jobs.extend([{"customer": "a"}] * 3)
            group = await jobs.create_group("w")
            await group.configure(key="customer", order=True)
            [held] = await group.read("x", count=9)
            waits = asyncio.ensure_future(group.read("y", count=9, timeout=30))
            await asyncio.sleep(0.1)
            assert not waits.done()
            await group.ack(held.id)
            assert len(await waits) == 1

    asyncio.run(main())
    with raxlog.open(tmp_path / "a.rax") as store:
        jobs = store.stream("jobs")
        store.restore_stream("copy", jobs.dump())
        assert store.stream("copy").group("w").pending().total == 2
        assert len(store.stream("copy").group("w").read("z", count=9, claim_idle=1000)) == 1
        store.snapshot(tmp_path / "snapshot")
        store.rename_stream("jobs", "moved")
        assert len(store.stream("moved").group("w").read("z", count=9)) == 0
        assert [row.parked for row in store.stream("moved").group("w").pending_entries()] == [False, True]
    raxlog.restore(tmp_path / "snapshot", tmp_path / "b.rax")
    with raxlog.open(tmp_path / "b.rax") as store:
        group = store.stream("jobs").group("w")
        assert group.pending().parked == 1
        group.delete_consumer("y", pending="drop")
        assert len(group.read("z", count=9)) == 1
        assert group.destroy()
    assert raxlog.check(tmp_path / "b.rax").problems == []
    assert raxlog.check(tmp_path / "a.rax").problems == []


# -- against a model -------------------------------------------------------------------------------


class AgainstAModel(RuleBasedStateMachine):
    """A group with a key, against dictionaries in memory: which entry is held, is ready, waits, or is parked."""

    def __init__(self) -> None:
        super().__init__()
        self.scope = ExitStack()
        self.clock = self.scope.enter_context(raxlog.testing.clock())
        self.store = self.scope.enter_context(raxlog.testing.store(durability="relaxed"))
        self.stream = self.store.stream("jobs")
        self.group = self.stream.create_group("w")
        self.keys: dict[raxlog.StreamID, str] = {}  # of all that have not ended
        self.new: list[raxlog.StreamID] = []
        self.held: dict[raxlog.StreamID, str] = {}
        self.due: dict[raxlog.StreamID, float] = {}  # what was given back; 0 at once, or the next of its key
        self.parked: set[raxlog.StreamID] = set()
        self.holders: set[raxlog.StreamID] = set()  # of their keys
        self.gone: set[raxlog.StreamID] = set()
        self.field: str | None = "k"
        self.per_key, self.order, self.max_parked = 1, False, 100_000
        self.set: tuple[object, ...] = ()
        self.group.configure(key="k")

    def teardown(self) -> None:
        with self.scope:
            assert raxlog.check(self.store.path).problems == []
            for _ in range(len(self.keys) * 3):  # none is parked for ever
                self.clock.advance(20)
                for entry in self.group.read("last", count=3, claim_idle=0):
                    self.group.ack(entry.id)
            assert self.group.pending().total == self.group.lag == 0
            assert raxlog.check(self.store.path).problems == []

    def has_room(self, sid: raxlog.StreamID) -> bool:
        key = self.keys[sid]
        return self.field is None or key == "." or sum(self.keys[one] == key for one in self.holders) < self.per_key

    def hold(self, sid: raxlog.StreamID) -> None:
        if self.field is not None and self.keys[sid] != ".":
            self.holders.add(sid)

    def leave(self, sid: raxlog.StreamID) -> None:
        """An entry has ended: the next of its key are ready."""
        key = self.keys.pop(sid)
        for states in (self.held, self.due):
            states.pop(sid, None)
        for some in (self.parked, self.holders, self.gone):
            some.discard(sid)
        self.let_go(key)

    def let_go(self, key: str) -> None:
        for one in sorted(one for one in self.parked if self.keys[one] == key):
            if self.has_room(one):
                self.parked.discard(one)
                self.hold(one)
                self.due[one] = 0

    @rule(keys=st.text("abc.", min_size=1, max_size=6))
    def append(self, keys: str) -> None:
        for key in keys:
            sid = self.stream.append({"n": 0} if key == "." else {"k": key})
            self.keys[sid] = key
            self.new.append(sid)

    @rule(count=st.integers(1, 5), consumer=st.sampled_from("xy"), claims=st.booleans())
    def read(self, count: int, consumer: str, claims: bool) -> None:
        found = [entry.id for entry in self.group.read(consumer, count=count, claim_idle=1000 if claims else None)]
        shown = {row.id: row for row in self.group.pending_entries()}
        now = self.clock.now().timestamp()
        left = sorted((self.gone - shown.keys()) - set(self.held))

        def may(sid: raxlog.StreamID) -> bool:
            is_due = self.due.get(sid, 1e12) <= (now if claims else 0) and (claims or self.field is not None)
            return is_due and (sid in self.holders or self.has_room(sid))

        for sid in found:
            while sid not in self.new and not may(sid):
                assert left, (sid, self.due, self.holders)
                if self.due.get(sid, 1e12) <= (now if claims else 0):  # the read has come to it while its key was held
                    del self.due[sid]
                    self.parked.add(sid)
                self.leave(left.pop(0))
            if sid in self.new:
                while left:
                    self.leave(left.pop(0))
                self.park_due(shown)
                while self.new[0] != sid:
                    self.pass_over(self.new.pop(0))
                assert self.has_room(sid)
                self.new.pop(0)
            self.due.pop(sid, None)
            self.hold(sid)
            self.held[sid] = consumer
        while left:
            self.leave(left.pop(0))
        self.park_due(shown)
        if len(found) < count:
            while self.new and not self.is_stopped():
                self.pass_over(self.new.pop(0))
        if not found:
            assert not [sid for sid in self.due if may(sid) and sid not in self.gone]

    def park_due(self, shown: dict[raxlog.StreamID, raxlog.Pending]) -> None:
        """A read has come to retries whose keys are held: they are parked before anything new is."""
        for sid in [sid for sid in self.due if sid not in self.holders and shown[sid].parked]:
            assert not self.has_room(sid)
            del self.due[sid]
            self.parked.add(sid)

    def is_stopped(self) -> bool:
        return len(self.parked) >= self.max_parked and not self.has_room(self.new[0])

    def pass_over(self, sid: raxlog.StreamID) -> None:
        """A read has come to an entry that was not for it."""
        if sid in self.gone:
            self.leave(sid)
            return
        assert not self.has_room(sid)
        assert not self.is_stopped_by_count()
        self.parked.add(sid)

    def is_stopped_by_count(self) -> bool:
        return len(self.parked) >= self.max_parked

    @precondition(lambda self: self.keys)
    @rule(data=st.data(), how=st.sampled_from(["ack", "ack_delete", "cancel", "delref", "delete", "claim"]))
    def end(self, data: st.DataObject, how: str) -> None:
        sid = data.draw(st.sampled_from(sorted(self.keys)))
        is_pending = sid not in self.new
        if how == "ack":
            assert self.group.ack(sid) == is_pending
        elif how == "ack_delete":
            self.group.ack_delete(sid)
        elif how == "cancel":
            assert self.group.cancel(sid) == (sid not in self.gone)
            is_pending = sid not in self.gone
            self.new = [one for one in self.new if one != sid or sid in self.gone]
        elif how == "delref":
            self.stream.delete_ex(sid, refs="delref")
            self.new = [one for one in self.new if one != sid]
            is_pending = True
        elif how == "delete":
            self.stream.delete(sid)
            # What is released without a key, and due, stays pending, and is gone.
            waits = sid in self.due and (self.due[sid] > 0 or self.field is not None)
            if sid in self.new or sid in self.parked or waits:
                self.new = [one for one in self.new if one != sid]
                self.leave(sid)
            else:
                self.gone.add(sid)
            return
        else:
            self.claim(sid)
            return
        if is_pending:
            self.leave(sid)

    def claim(self, sid: raxlog.StreamID) -> None:
        is_busy = sid in self.parked or (sid in self.due and sid not in self.holders and not self.has_room(sid))
        if sid in self.new:
            assert self.group.claim("z", sid) == []
        elif sid in self.gone:
            assert self.group.claim("z", sid) == []
            self.leave(sid)
        elif is_busy:
            with pytest.raises(raxlog.KeyBusy):
                self.group.claim("z", sid)
        else:
            assert [entry.id for entry in self.group.claim("z", sid)] == [sid]
            self.due.pop(sid, None)
            self.hold(sid)
            self.held[sid] = "z"

    @precondition(lambda self: self.held)
    @rule(data=st.data(), delay=st.sampled_from([0, 0, 5]))
    def nack(self, data: st.DataObject, delay: int) -> None:
        sid = data.draw(st.sampled_from(sorted(self.held)))
        assert self.group.nack(sid, delay=delay) == 1
        del self.held[sid]
        self.due[sid] = delay and self.clock.now().timestamp() + delay
        if not self.order and sid in self.holders:
            self.holders.discard(sid)
            self.let_go(self.keys[sid])

    @rule(consumer=st.sampled_from("xyz"), heir=st.sampled_from([None, "x"]))
    def drop(self, consumer: str, heir: str | None) -> None:
        if consumer == heir:
            return
        options: dict[str, Any] = {"pending": "drop"} if heir is None else {"to": heir}
        self.group.delete_consumer(consumer, **options)
        for sid in sorted(sid for sid, one in self.held.items() if one == consumer):
            if heir is None:
                self.leave(sid)
            else:
                self.held[sid] = heir

    @rule(count=st.integers(1, 4))
    def autoclaim(self, count: int) -> None:
        found = self.group.autoclaim("y", min_idle=1000, count=count)
        for sid in found.deleted:
            assert sid in self.gone
            self.leave(sid)
        for entry in found.entries:
            assert entry.id in self.due
            assert entry.id in self.holders or self.has_room(entry.id) or found.deleted
            self.due.pop(entry.id)
            self.hold(entry.id)
            self.held[entry.id] = "y"

    @rule(seconds=st.sampled_from([1, 6]))
    def pass_time(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(per_key=st.integers(1, 3), order=st.booleans(), field=st.sampled_from([0, "k", "k", "k"]),
          most=st.sampled_from([1, 3, 100_000]))
    def configure(self, per_key: int, order: bool, field: Any, most: int) -> None:
        if field == 0:
            self.group.configure(key=0)
        else:
            self.group.configure(key=field, per_key=per_key, order=order, max_parked=most)
        self.field = field or None
        if field:
            self.per_key, self.order, self.max_parked = per_key, order, most
        before = set(self.parked)
        if (field, per_key, order, most) == self.set:
            return
        self.set = field, per_key, order, most
        delivered = {row.id: row.deliveries for row in self.group.pending_entries()}
        self.holders, self.parked = set(), set()
        for sid in self.held:
            if sid not in self.gone:
                self.hold(sid)
        for sid in sorted({*self.due, *before}):
            is_keyed = field and sid not in self.gone and self.keys[sid] != "."
            if is_keyed and (order or sid in before or not delivered[sid]):
                if self.has_room(sid):
                    self.hold(sid)
                elif sid in before or self.due[sid] <= self.clock.now().timestamp():
                    self.due.pop(sid, None)
                    self.parked.add(sid)
                    continue
            if sid in before:
                self.due[sid] = 0

    @invariant()
    def what_is_shown_is_what_is(self) -> None:
        shown = self.group.pending_entries()
        assert {row.id: row.consumer for row in shown if row.consumer} == self.held
        assert {row.id for row in shown if row.parked} == self.parked
        assert {row.id for row in shown if not row.parked and not row.consumer} == set(self.due)
        assert (self.group.pending().parked, self.group.lag) == (len(self.parked), len(self.new))


TestAgainstAModel = AgainstAModel.TestCase
TestAgainstAModel.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)
