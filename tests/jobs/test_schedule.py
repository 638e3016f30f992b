"""Schedules: each nominal time once, whatever stands still, is set, copied or deleted."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

import forkserver
import pytest
import raxlog
import raxlog.aio
import raxlog.testing
import xxhash
from fake_machine import FakeMachine
from flipped_stores import problems_of
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_records import changed_copy, records_of, resealed
from raxlog.storage import clocks
from raxlog.storage.format import keys

pytest_plugins = ["cli_fixtures"]

LONG = bool(os.environ.get("RAXLOG_LONG"))
HOUR, WEEK = 3600.0, 7 * 86400.0


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(clocks, "monotonic", clocks.monotonic)  # behind the test deadlines are as before
    with raxlog.testing.clock() as held:
        yield held


@pytest.fixture
def jobs(clock):
    with raxlog.testing.store(encoding="utf-8") as store:
        jobs = store.stream("jobs")
        jobs.create_group("workers", "0", create_stream=True)
        yield jobs
        assert raxlog.check(store.path).problems == []


def came(jobs):
    """The nominal times of the entries that a group has not been given yet."""
    return [entry.scheduled for entry in jobs.group("workers").read("w", count=100_000, noack=True)]


def one(jobs, name="a"):
    return next(schedule for schedule in jobs.schedules() if schedule.name == name)


# -- when ------------------------------------------------------------------------------------


def test_an_interval_begins_with_the_call_and_an_equal_definition_puts_nothing_off(jobs, clock):
    began = clock.now()
    made = jobs.schedule("a", {"n": 1}, every=300)
    assert (made.next, made.last, made.paused) == (began + timedelta(seconds=300), None, False)
    for _ in range(4):  # a program that starts anew every four minutes
        clock.advance(240)
        came(jobs)
        before = one(jobs)
        assert jobs.schedule("a", {"n": 1}, every=300.0) == before
    assert [entry.scheduled for entry in jobs] == [began + timedelta(seconds=300 * n) for n in (1, 2, 3)]
    assert one(jobs).last == began + timedelta(seconds=900)
    changed = jobs.schedule("a", {"n": 1}, every=301)
    assert (changed.next, changed.last) == (clock.now() + timedelta(seconds=301), before.last)
    assert len(list(jobs.deferred())) == 1


def test_an_entry_says_its_nominal_time_and_its_fields_do_not(jobs, clock):
    jobs.schedule("a", {"n": 1, "m": "x"}, every=10)
    clock.advance(12.345)
    jobs.append({"n": 2})
    other, entry = jobs
    assert (other.scheduled, other.fields) == (None, {"n": "2"})
    assert entry.scheduled == clock.now() - timedelta(seconds=2.345)
    assert entry.fields == entry.value == {"n": "1", "m": "x"}
    ms = round(entry.scheduled.timestamp() * 1000)
    assert entry.pairs == [("$entry", f'{{"scheduled":{ms}}}'), ("n", "1"), ("m", "x")]
    assert entry.to_dict() == {"id": str(entry.id), "fields": {"n": "1", "m": "x"}}
    rows = jobs.to_arrow(schema={"fields": "map<string,string>", "n": "bigint"}).read_all().to_pylist()
    assert rows == [{"fields": [("n", "2")], "n": 2}, {"fields": [("n", "1"), ("m", "x")], "n": 1}]
    for call in (jobs.append, lambda fields: jobs.defer(fields, delay=1), lambda fields: jobs.extend([fields]),
                 lambda fields: jobs.schedule("b", fields, every=1)):
        for name in ("$entry", b"$entry"):
            with pytest.raises(raxlog.InvalidFields, match="reserved"):
                call({name: "x", "n": 1})
    assert len(jobs) == 2


def test_a_dead_letter_keeps_the_nominal_time_and_its_replay_too(jobs, clock):
    jobs.schedule("a", {"n": 1}, every=10)
    clock.advance(10)

    def fail(entry):
        raise raxlog.Discard("no")

    group = jobs.group("workers")
    group.worker(fail).run(burst=True)
    jobs.remove_schedule("a")
    [letter] = group.dead_letters
    assert (letter.entry.fields, letter.entry.scheduled) == ({"n": "1"}, clock.now())
    assert group.dead_letters.replay() == 1
    assert [(entry.fields, entry.scheduled) for entry in jobs] == [({"n": "1"}, clock.now())] * 2


@pytest.mark.parametrize("own", [3, 40])
def test_maps_of_nodes_of_all_kinds_leave_the_reserved_field_out(jobs, clock, own):
    fields = {f"f{n}": str(n) for n in range(own)}
    jobs.append({"n": 0})  # the master entry has other fields
    jobs.schedule("a", fields, every=10)
    clock.advance(10)
    came(jobs)
    rows = jobs.to_arrow(schema={"fields": "map<string,string>"}).read_all().to_pylist()
    assert [dict(row["fields"]) for row in rows] == [{"n": "0"}, fields]
    jobs.trim(maxlen=0)
    clock.advance(10)
    came(jobs)  # and where the master entry is such a one
    rows = jobs.to_arrow(schema={"fields": "map<string,string>"}).read_all().to_pylist()
    assert [dict(row["fields"]) for row in rows] == [fields]


@pytest.mark.parametrize("coalesce", ["latest", "earliest", "all"])
def test_a_week_in_which_all_has_stood_still(jobs, clock, coalesce):
    began = clock.now()
    jobs.schedule("a", {"n": 1}, every=HOUR, coalesce=coalesce)
    clock.advance(WEEK + 60)
    expected = [began + timedelta(hours=n) for n in range(1, 7 * 24 + 1)]
    found = came(jobs)
    assert found == {"latest": expected[-1:], "earliest": expected[:1], "all": expected}[coalesce]
    assert one(jobs).next == expected[-1] + timedelta(hours=1)
    assert came(jobs) == []
    clock.advance(HOUR)
    assert came(jobs) == [expected[-1] + timedelta(hours=1)]


def test_all_of_very_many_come_in_pieces_and_in_order(jobs, clock):
    began = clock.now()
    jobs.schedule("a", {"n": 1}, every=1, coalesce="all")
    clock.advance(3_500)
    found = []
    while some := came(jobs):
        found += some
        assert len(some) <= 1_000
    assert found == [began + timedelta(seconds=n) for n in range(1, 3_501)]


@pytest.mark.parametrize(("coalesce", "expected"), [("latest", [10]), ("earliest", [9]), ("all", [9, 10])])
def test_a_tick_that_is_later_than_the_grace_is_dropped(jobs, clock, coalesce, expected):
    began = clock.now()
    jobs.schedule("a", {"n": 1}, every=100, coalesce=coalesce, misfire_grace=150)
    clock.advance(1_040)
    assert came(jobs) == [began + timedelta(seconds=100 * n) for n in expected]
    jobs.schedule("b", {"n": 1}, every=100, coalesce=coalesce, misfire_grace=5)
    clock.advance(106)
    jobs.remove_schedule("a")
    assert came(jobs) == []
    assert one(jobs, "b").next == clock.now() + timedelta(seconds=94)


def test_jitter_delays_an_entry_and_not_its_nominal_time_by_the_same_in_any_process(jobs, clock):
    began = clock.now()
    jobs.schedule("a", {"n": 1}, every=100, jitter=80)
    delays = []
    for n in range(1, 20):
        due = next(jobs.deferred()).due
        assert one(jobs).next == began + timedelta(seconds=100 * n)
        delays.append((due - one(jobs).next).total_seconds())
        clock.advance((due - clock.now()).total_seconds() - 0.001)
        assert came(jobs) == []
        clock.advance(0.001)
        assert came(jobs) == [began + timedelta(seconds=100 * n)]
    assert 0 <= min(delays) < 30
    assert 50 < max(delays) <= 80
    jobs.remove_schedule("a")
    ms = round(began.timestamp() * 1000)
    assert [round(delay * 1000) for delay in delays] == [
        xxhash.xxh3_64_intdigest(b"a" + (ms + 100_000 * n).to_bytes(8, "big")) % 80_001 for n in range(1, 20)]


def test_a_reader_that_waits_has_the_entry_within_a_second(store):
    jobs = store.stream("jobs")
    group = jobs.create_group("workers", "0", create_stream=True)
    jobs.schedule("a", {"n": 1}, every=0.2)
    found = [group.read("w", timeout=20)[0] for _ in range(4)]
    assert all(later.scheduled - earlier.scheduled == timedelta(seconds=0.2) for earlier, later in pairwise(found))
    assert all(abs(entry.id.ms - entry.scheduled.timestamp() * 1000) < 1000 for entry in found)


# -- the other calls ---------------------------------------------------------------------------


def test_pause_resume_run_and_remove(jobs, clock):
    jobs.schedule("a", {"n": 1}, every=100)
    clock.advance(100)
    assert len(came(jobs)) == 1
    assert jobs.pause_schedule("a")
    assert not jobs.pause_schedule("a")
    assert (one(jobs).paused, one(jobs).next, list(jobs.deferred())) == (True, None, [])
    clock.advance(1_000)
    assert came(jobs) == []
    sid = jobs.run_schedule("a")
    assert jobs.get(sid).scheduled == clock.now()
    assert jobs.schedule("a", {"n": 2}, every=100).paused  # another definition resumes nothing
    assert jobs.resume_schedule("a")
    assert not jobs.resume_schedule("a")
    assert one(jobs).next == clock.now() + timedelta(seconds=100)
    assert jobs.get(jobs.run_schedule("a")).fields == {"n": "2"}
    assert one(jobs).next == clock.now() + timedelta(seconds=100)
    with pytest.raises(raxlog.InvalidArgument, match="pause_schedule"):
        next(jobs.deferred()).cancel()
    assert jobs.remove_schedule("a")
    assert not jobs.remove_schedule("a")
    clock.advance(1_000)
    assert (len(came(jobs)), list(jobs.schedules()), list(jobs.deferred())) == (2, [], [])
    for call in (jobs.pause_schedule, jobs.resume_schedule, jobs.run_schedule):
        with pytest.raises(raxlog.NoSchedule, match="'a'"):
            call("a")


def test_schedules_are_listed_in_the_order_of_their_names_with_all_that_they_are(jobs, clock):
    for n in range(2_300):
        jobs.schedule(f"s{n:04}", {"n": n}, cron=f"{n % 60} {n % 24} * * *", tz="Asia/Tokyo", jitter=3, misfire_grace=9)
    assert [schedule.name for schedule in jobs.schedules()] == [f"s{n:04}" for n in range(2_300)]
    assert one(jobs, "s0007").to_dict() == {
        "name": "s0007", "next": one(jobs, "s0007").next, "last": None, "paused": False, "cron": "7 7 * * *",
        "every": None, "tz": "Asia/Tokyo", "coalesce": "latest", "misfire_grace": 9.0, "jitter": 3.0,
        "fields": {"n": "7"}}


@pytest.mark.parametrize("given", [
    {}, {"cron": "* * * * *", "every": 5}, {"every": 0}, {"every": -1}, {"every": math.nan}, {"every": math.inf},
    {"every": "5"}, {"every": True}, {"every": 1e300}, {"every": 3e11}, {"cron": "0 0 31 2 *"}, {"cron": "0 0 30 2 *"},
    {"cron": "* * * *"}, {"cron": "0 * * * * *"}, {"cron": "60 * * * *"}, {"cron": "x * * * *"}, {"cron": ""},
    {"cron": 5},
    {"cron": "0 0 * * *", "tz": "Europe/Nowhere"}, {"cron": "0 0 * * *", "tz": "Europe"},
    {"cron": "0 0 * * *", "tz": ""},
    {"cron": "0 0 * * *", "tz": "../UTC"}, {"cron": "0 0 * * *", "tz": None}, {"every": 5, "tz": "Europe/Berlin"},
    {"every": 5, "coalesce": "last"}, {"every": 5, "coalesce": None}, {"every": 5, "misfire_grace": 0},
    {"every": 5, "misfire_grace": -1}, {"every": 5, "jitter": -1}, {"every": 5, "jitter": 5.1},
    {"every": 5, "jitter": None},
    {"cron": "0 0 * * *", "jitter": 3601}, {"every": 5, "jitter": math.nan},
], ids=str)  # fmt: skip
def test_what_makes_no_sense_is_refused_and_changes_nothing(store, given):
    with pytest.raises(raxlog.InvalidArgument):
        store.stream("jobs").schedule("a", {"n": 1}, **given)
    assert store.streams() == []


@pytest.mark.parametrize(("given", "message"), [
    ({"cron": "0 0 31 2 *"}, "'0 0 31 2 .*no expression that comes"),
    ({"cron": "0 0 * * *", "tz": "Europe/Nowhere"}, "'Europe/Nowhere' is no time zone that is known here"),
    ({"every": 0}, "every=0 .*the seconds between two ticks"),
    ({}, "needs one of cron, an expression, and every"),
], ids=str)
def test_an_error_says_what_is_wrong_and_the_schedule_that_was_there_stays(store, given, message):
    before = store.stream("jobs").schedule("a", {"n": 1}, every=5)
    with pytest.raises(raxlog.InvalidArgument, match=message):
        store.stream("jobs").schedule("a", {"n": 2}, **given)
    assert list(store.stream("jobs").schedules()) == [before]
    assert len(list(store.stream("jobs").deferred())) == 1


@pytest.mark.parametrize("durability", ["commit", "buffered"])
def test_the_reserved_name_is_refused_by_each_way_to_append(tmp_path, durability):
    given = {"$entry": '{"unique":"a"}', "n": 1}

    def in_transaction():
        with store.transaction() as tx:
            tx.stream("jobs").append(given)

    def in_pipeline():
        with store.pipeline() as pipe:
            pipe.stream("jobs").append(given)
            pipe.execute()

    with raxlog.open(tmp_path / "s.rax", durability=durability) as store:
        jobs = store.stream("jobs")
        for call in (lambda: jobs.append(given), lambda: jobs.append([*given.items()]),
                     lambda: jobs.extend([{"n": 1}, given]), lambda: jobs.append(given, unique="b"),
                     lambda: jobs.defer(given, delay=1, unique="b"), lambda: jobs.append(given, producer="p"),
                     in_transaction, in_pipeline):
            with pytest.raises(raxlog.InvalidFields, match="append an entry's fields without it"):
                call()
        assert store.streams() == []

    async def main():
        async with raxlog.aio.open(tmp_path / "s.rax") as store:
            with pytest.raises(raxlog.InvalidFields, match="reserved"):
                await store.stream("jobs").append(given)

    asyncio.run(main())


def test_names_fields_and_streams_that_are_refused(store):
    jobs = store.stream("jobs")
    for name in ("", b"", "x" * 401, 5, None):
        with pytest.raises(raxlog.InvalidName):
            jobs.schedule(name, {"n": 1}, every=5)
    with pytest.raises(raxlog.InvalidFields):
        jobs.schedule("a", {}, every=5)
    assert store.streams() == []
    jobs.schedule("x" * 400, {"n": 1}, every=5)
    jobs.configure(schema={"n": "int"}, schema_checked=True)
    with pytest.raises(raxlog.MalformedValue):
        jobs.schedule("a", {"n": "x"}, every=5)
    given = store.stream("given")
    given.append({"n": 1}, "7-1")
    with pytest.raises(raxlog.InvalidArgument, match="given to it, up to 7-1"):
        given.schedule("a", {"n": 1}, every=5)
    full = store.stream("full")
    full.append({"n": 1})
    full.set_id(raxlog.StreamID.MAX)
    with pytest.raises(raxlog.StreamExhausted):
        full.schedule("a", {"n": 1}, every=5)
    assert [len(list(store.stream(name).schedules())) for name in store.streams()] == [0, 0, 1]


def test_a_transaction_a_pipeline_and_a_codec(jobs, clock):
    with raxlog.testing.store(encoding="utf-8") as store:
        with suppress(KeyboardInterrupt), store.transaction() as tx:
            tx.stream("jobs").schedule("a", {"n": 1}, every=5)
            raise KeyboardInterrupt
        assert store.streams() == []
        stream = store.stream("jobs", codec="json")
        with store.pipeline() as pipe:
            pipe.stream("jobs").schedule("b", {"n": 1}, every=7)
            pipe.stream("jobs").pause_schedule("b")
            made, paused = pipe.execute()
        assert (made.every, paused, one(stream, "b").paused) == (7.0, True, True)
        with store.transaction() as tx:
            assert tx.stream("jobs").remove_schedule("b")
            tx.stream("jobs", codec="json").schedule("a", {"n": 1, "tags": ["x"], "due": None}, every=5)
        clock.advance(5)
        stream.append({"n": 2})
        assert [entry.value for entry in stream] == [{"n": 2}, {"n": 1, "tags": ["x"], "due": None}]
        assert stream.schedule("a", {"n": 1, "tags": ["x"], "due": None}, every=5).last is not None


def test_the_same_calls_for_asyncio(tmp_path):
    async def main():
        async with await raxlog.aio.open(tmp_path / "s.rax") as store:
            jobs = store.stream("jobs")
            made = await jobs.schedule("a", {"n": 1}, cron="0 0 * * *")
            assert await jobs.schedule("a", {"n": 1}, cron="0 0 * * *") == made
            assert await jobs.pause_schedule("a")
            assert [one.paused async for one in jobs.schedules()] == [True]
            assert await jobs.resume_schedule("a")
            sid = await jobs.run_schedule("a")
            assert (await jobs.get(sid)).scheduled is not None
            assert await jobs.remove_schedule("a")
            with pytest.raises(raxlog.NoSchedule):
                await jobs.run_schedule("a")

    asyncio.run(main())


# -- copies, damage ------------------------------------------------------------------------------


def test_rename_copy_delete_snapshot_restore_and_dump(clock, tmp_path):
    with raxlog.open(tmp_path / "s.rax", encoding="utf-8") as store:
        jobs = store.stream("jobs")
        jobs.create_group("workers", "0", create_stream=True)
        jobs.schedule("a", {"n": 1}, every=100)
        jobs.schedule("b", {"n": 2}, every=100)
        jobs.pause_schedule("b")
        listed = list(jobs.schedules())
        store.snapshot(tmp_path / "full")
        store.rename_stream("jobs", "other")
        store.copy_stream("other", "copy")
        assert list(store.stream("other").schedules()) == list(store.stream("copy").schedules()) == listed
        clock.advance(250)
        for name in ("other", "copy"):  # each goes on by itself
            assert came(store.stream(name)) == [listed[0].next + timedelta(seconds=100)]
        payload = store.stream("other").dump()
        store.delete_stream("other")
        store.restore_stream("other", payload)
        assert list(store.stream("other").schedules()) == []
        assert [entry.scheduled for entry in store.stream("other")] == [listed[0].next + timedelta(seconds=100)]
        store.compact()
        assert len(list(store.stream("copy").schedules())) == 2
    raxlog.restore(tmp_path / "full", tmp_path / "restored.rax")
    with raxlog.open(tmp_path / "restored.rax", encoding="utf-8") as store:
        assert list(store.stream("jobs").schedules()) == listed
        assert came(store.stream("jobs")) == [listed[0].next + timedelta(seconds=100)]  # missed, since
    for path in ("s.rax", "restored.rax"):
        assert raxlog.check(tmp_path / path).problems == []


def test_flushall_removes_them_and_the_door_shows_the_reserved_field(tmp_path):
    pytest.importorskip("redis")
    with raxlog.open(tmp_path / "s.rax") as store:
        client = raxlog.redis_client(store)
        store.stream("jobs").schedule("a", {"n": 1}, every=3600)
        store.stream("jobs").run_schedule("a")
        [(_, fields)] = client.xrange("jobs")
        assert [*fields] == [b"$entry", b"n"]
        with pytest.raises(Exception, match="reserved"):
            client.xadd("jobs", {"$entry": "x", "n": 1})
        client.rename("jobs", "other")
        assert [schedule.name for schedule in store.stream("other").schedules()] == ["a"]
        client.flushall()
        assert store.streams() == []
        store.stream("other").append({"n": 1})
        assert list(store.stream("other").schedules()) == []
        assert raxlog.check(store.path).problems == []


@pytest.fixture
def closed(tmp_path):
    with raxlog.open(tmp_path / "closed.rax") as store:
        for name in "abc":
            store.stream("jobs").schedule(name, {"n": name}, every=3600)
        store.stream("jobs").pause_schedule("c")
        store.stream("jobs").defer({"n": 9}, delay=3600)
    return tmp_path / "closed.rax"


@pytest.mark.parametrize(("kind", "changed"), [
    (keys.SCHEDULE, None), (keys.SCHEDULE, lambda row: row.__setitem__(2, None)),
    (keys.SCHEDULE, lambda row: row[2].__setitem__(1, 7)), (keys.SCHEDULE, lambda row: row[0].pop()),
    (keys.DEFERRED, lambda row: row.pop()), (keys.DEFERRED, lambda row: row.__setitem__(1, b"x")),
    (keys.DEFERRED, None),
])  # fmt: skip
def test_check_finds_a_schedule_without_its_tick_and_salvage_makes_both_whole(closed, tmp_path, kind, changed):
    assert problems_of(closed) == []
    (key, value), *_ = records_of(closed, 1, kind)
    new = None if changed is None else resealed(key, value, changed)
    copy = changed_copy(closed, tmp_path / "bad.rax", {key: new})
    assert "deferred" in {problem["kind"] for problem in problems_of(copy)}
    if kind == keys.DEFERRED:
        raxlog.salvage(copy, tmp_path / "new.rax")
        assert problems_of(tmp_path / "new.rax") == []
        with raxlog.open(tmp_path / "new.rax", encoding="utf-8") as store:
            assert [schedule.paused for schedule in store.stream("jobs").schedules()] == [False, False, True]


def test_a_paused_schedule_is_counted_also_behind_a_salvage_without_the_header(tmp_path):
    with raxlog.open(tmp_path / "s.rax") as store:
        store.stream("jobs").schedule("a", {"n": 1}, every=3600)
        store.stream("jobs").pause_schedule("a")
        store.stream("jobs").append({"n": 1})
    copy = changed_copy(tmp_path / "s.rax", tmp_path / "bad.rax", {keys.header_key(1): None})
    raxlog.salvage(copy, tmp_path / "new.rax")
    with raxlog.open(tmp_path / "new.rax") as store:
        [found] = store.status().streams
        assert [(one.name, one.paused) for one in found.schedules] == [("a", True)]
        assert store.stream("jobs").info().schedules == found.schedule_count == 1


# -- processes that cannot -------------------------------------------------------------------------


def test_what_cannot_plan_the_next_tick_leaves_it_due_and_says_so(jobs, clock, caplog, monkeypatch):
    jobs.schedule("nightly-here", {"n": 1}, cron="0 * * * *", tz="Europe/Berlin")
    jobs.defer({"n": 2}, delay=HOUR)
    clock.advance(2 * HOUR)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "cronsim", None)
        with caplog.at_level(logging.WARNING, "raxlog"):
            assert came(jobs) == [None]  # the other entry is not held up
            for _ in range(100):
                if caplog.records:
                    break
                time.sleep(0.05)
        assert "nightly-here" in caplog.text
        assert "cronsim" in caplog.text
        used = time.process_time()
        assert jobs.group("workers").read("w", timeout=0.4) == []  # it looks again in a second
        assert list(jobs.follow(timeout=0.4)) == []
        assert time.process_time() - used < 0.3
        with pytest.raises(raxlog.InvalidArgument, match="cronsim"):
            jobs.schedule("b", {"n": 1}, cron="0 * * * *")
    assert len(list(jobs.deferred())) == 1
    assert [moment.minute for moment in came(jobs)] == [0]


# -- many --------------------------------------------------------------------------------------------


@pytest.mark.timeout(600 if not LONG else 7200)
def test_what_is_due_is_found_as_fast_among_very_many(clock):
    """Counted in calls: an hour's difference, or a processor's, is none of it. The processor's time is shown."""
    counts, seconds = [], []
    for many in (1_000, 1_000_000) if LONG else (100, 5_000):
        with raxlog.testing.store(durability="relaxed") as store:
            jobs = store.stream("jobs")
            group = jobs.create_group("workers", "0", create_stream=True)
            for begin in range(0, many, 10_000):
                with store.transaction() as tx:
                    for n in range(begin, min(begin + 10_000, many)):
                        tx.stream("jobs").schedule(f"far-{n}", {"n": n}, every=864_000)
            for n in range(5):
                jobs.schedule(f"near-{n}", {"n": n}, every=60)
            group.read("w", noack=True)
            calls, used = [], []

            def count(frame, event, argument, calls=calls):
                calls[-1] += event in ("call", "c_call")

            for counted in [False] * 5 + [True] * 3:
                clock.advance(60)
                calls += [0] * counted
                sys.setprofile(count if counted else None)
                began = time.process_time()
                found = group.read("w", noack=True)
                used += [time.process_time() - began] * (not counted)
                sys.setprofile(None)
                assert len(found) == 5
            counts.append(min(calls))
            seconds.append(min(used))
    print(f"calls {counts}, processor time {[f'{one * 1e6:.0f} µs' for one in seconds]}")
    assert counts[1] < counts[0] * 1.2, counts


# -- against a model -----------------------------------------------------------------------------------

CALLS = st.one_of(
    st.tuples(st.just("schedule"), st.sampled_from("ab"), st.sampled_from([7.0, 10.0]),
              st.sampled_from(["latest", "earliest", "all"]), st.sampled_from([None, 15.0])),
    st.tuples(st.sampled_from(["pause", "resume", "remove"]), st.sampled_from("ab")),
    st.tuples(st.just("advance"), st.sampled_from([1.0, 4.0, 10.0, 33.0, 70.0])),
    st.tuples(st.sampled_from(["append", "read", "reopen"])),
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(calls=st.lists(CALLS, min_size=1, max_size=30))
def test_whatever_is_called_entries_are_those_of_a_model(tmp_path_factory, calls):
    """The model: of each schedule its definition and its next time; what is due is appended by each read and append."""
    path = tmp_path_factory.mktemp("model") / "s.rax"
    monotonic = clocks.monotonic
    model: dict[str, list] = {}
    expected: list[tuple[str, datetime]] = []

    def release(now):
        for name, plan in model.items():
            (every, coalesce, grace), at = plan
            if at is None or at > now:
                continue
            step, missed = timedelta(seconds=every), []
            while at <= now:
                missed += [at] if grace is None or at + timedelta(seconds=grace) >= now else []
                at += step
            plan[1] = at
            kept = {"latest": missed[-1:], "earliest": missed[:1], "all": missed}[coalesce]
            expected.extend((name, moment) for moment in kept)

    with raxlog.testing.clock() as clock:
        store = raxlog.open(path, durability="relaxed", encoding="utf-8")
        store.stream("jobs").create_group("workers", "0", create_stream=True)
        for call, *how in calls:
            jobs, now = store.stream("jobs"), clock.now()
            if call == "schedule":
                name, every, coalesce, grace = how
                jobs.schedule(name, {"name": name}, every=every, coalesce=coalesce, misfire_grace=grace)
                known = model.get(name)
                if known is None or known[0] != (every, coalesce, grace):
                    following = None if known is not None and known[1] is None else now + timedelta(seconds=every)
                    model[name] = [(every, coalesce, grace), following]
            elif call == "remove":
                assert jobs.remove_schedule(*how) == (model.pop(*how, None) is not None)
            elif call in ("pause", "resume"):
                if how[0] not in model:
                    with pytest.raises(raxlog.NoSchedule):
                        getattr(jobs, f"{call}_schedule")(*how)
                    continue
                plan = model[how[0]]
                assert getattr(jobs, f"{call}_schedule")(*how) == ((call == "pause") == (plan[1] is not None))
                if call == "pause":
                    plan[1] = None
                elif plan[1] is None:
                    plan[1] = now + timedelta(seconds=plan[0][0])
            elif call == "advance":
                clock.advance(*how)
            elif call == "reopen":
                store.close()
                store = raxlog.open(path, durability="relaxed", encoding="utf-8")
            else:
                if call == "append":
                    jobs.append({"name": ""})
                else:
                    jobs.group("workers").read("w", noack=True)
                release(now)
            jobs = store.stream("jobs")
            ticks = [(entry.fields["name"], entry.scheduled) for entry in jobs if entry.scheduled is not None]
            assert sorted(ticks) == sorted(expected)
            assert {schedule.name: schedule.next for schedule in jobs.schedules()} == {
                name: plan[1] for name, plan in model.items()}
            assert len(list(jobs.deferred())) == sum(plan[1] is not None for plan in model.values())
        store.close()
    clocks.monotonic = monotonic
    assert problems_of(path) == []


# -- the clock of the machine ----------------------------------------------------------------------------

READ = """
import sys, time
import raxlog
with raxlog.open(sys.argv[1]) as store:
    group = store.stream("jobs").group("workers")
    print("ready", flush=True)
    while True:
        for entry in group.read("w", timeout=30):
            print(round(entry.scheduled.timestamp() * 1000), flush=True)
"""


def test_a_clock_that_is_set_by_an_hour_or_ten_years_either_way_repeats_nothing(store, tmp_path, require):
    jobs = store.stream("jobs")
    machine = FakeMachine(tmp_path, require("cc"))
    jobs.create_group("workers", "0", create_stream=True)
    with forkserver.Popen([sys.executable, "-c", READ, str(store.path)], env=machine.environment(),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reader:
        said: list[str] = []
        threading.Thread(target=lambda: said.extend(reader.stderr), daemon=True).start()
        assert reader.stdout.readline() == "ready\n"
        jobs.schedule("a", {"n": 1}, every=0.5, coalesce="all", misfire_grace=30)
        found = [int(reader.stdout.readline()) for _ in range(2)]
        machine.set_clock(3600)  # forward: what it has passed over is late by more than the grace
        after = time.time() * 1000 + 3_600_000 - 40_000
        while found[-1] < after:
            found.append(int(reader.stdout.readline()))
        machine.set_clock(-3600)  # back: the next one comes once that time has come
        time.sleep(1.5)
        machine.set_clock(3605)
        found += [int(reader.stdout.readline()) for _ in range(5)]
        assert found == sorted(set(found))
        assert {(later - earlier) % 500 for earlier, later in pairwise(found)} == {0}
        machine.set_clock(10 * 365 * 86_400)
        while found[-1] < (time.time() + 9 * 365 * 86_400) * 1000:
            found.append(int(reader.stdout.readline()))
        machine.set_clock(0)  # and back: planned anew, from now on
        began = time.time() * 1000
        found = [int(reader.stdout.readline())]
        while found[-1] > began + 86_400_000:  # what it had read in that time
            found = [int(reader.stdout.readline())]
        found += [int(reader.stdout.readline()) for _ in range(3)]
        assert began < found[0] < began + 10_000
        assert [later - earlier for earlier, later in pairwise(found)] == [500] * 3
        for _ in range(100):
            if said:
                break
            time.sleep(0.05)
        reader.kill()
    assert any("the clock has gone back" in line for line in said)
    assert raxlog.check(store.path).problems == []


def test_the_command(raxlog_cli, tmp_path):
    of = (str(tmp_path / "s.rax"), "jobs")
    cron = ("--cron", "30 2 * * *", "--tz", "Asia/Tokyo")
    assert raxlog_cli("schedule", "set", *of, "report", "kind=report", *cron)[0] == 0
    made = json.loads(raxlog_cli("schedule", "set", *of, "beat", "n=1", "--every", "5", "--jitter", "2", "--json")[1])
    assert (made["every"], made["jitter"], made["fields"]) == (5, 2, {"n": "1"})
    lines = raxlog_cli("schedule", "list", *of)[1].splitlines()
    assert [line.split()[0] for line in lines] == ["name", "beat", "report"]
    assert lines[2].endswith("30 2 * * * Asia/Tokyo")
    assert raxlog_cli("schedule", "pause", *of, "beat")[:2] == (0, "paused\n")
    assert raxlog_cli("schedule", "pause", *of, "beat")[:2] == (1, "not paused\n")
    assert json.loads(raxlog_cli("schedule", "list", *of, "--json")[1].splitlines()[0])["paused"]
    sid = raxlog_cli("schedule", "run", *of, "beat")[1].strip()
    printed = raxlog_cli("range", *of, "--json")[1]
    assert json.loads(printed)["id"] == sid
    (tmp_path / "copy.ndjson").write_text(printed)
    copied = (str(tmp_path / "copy.rax"), "jobs", str(tmp_path / "copy.ndjson"), "--format", "entries")
    assert raxlog_cli("import", *copied)[0] == 0
    with raxlog.open(of[0]) as store, raxlog.open(tmp_path / "copy.rax") as copy:
        assert list(copy.stream("jobs")) == list(store.stream("jobs"))
        assert next(islice(copy.stream("jobs"), 1)).scheduled.tzinfo is UTC
    assert raxlog_cli("schedule", "remove", *of, "beat")[:2] == (0, "removed\n")
    assert raxlog_cli("schedule", "remove", *of, "beat")[0] == 1
    assert "no schedule 'beat'" in raxlog_cli("schedule", "run", *of, "beat")[2]
    for wrong in (("list", *of, "name"), ("pause", *of), ("pause", *of, "report", "a=b"), ("set", *of, "x", "a=b"),
                  ("set", *of, "x", "--every", "5"), ("set", *of, "x", "a=b", "--cron", "0 0 31 2 *")):
        assert raxlog_cli("schedule", *wrong)[0] == 2
