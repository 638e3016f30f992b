"""store.status(): what it shows of streams, groups, subscriptions and the file, and what it costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import raxlog
import raxlog.status
from raw_records import changed_copy, flipped, records_of
from raxlog.storage.format import keys


def test_the_status_shows_what_waits_what_is_stuck_and_what_was_given_up(store: raxlog.Store) -> None:
    orders = store.stream("orders")
    orders.create_group("mail", start="0", create_stream=True)
    orders.extend([{"n": n} for n in range(10)])
    mail = orders.group("mail")
    mail.read("a", count=4)
    [again] = mail.claim("b", orders.select(0))
    mail.nack(orders.select(1))
    orders.defer({"n": 11}, delay=60)
    store.stream("orders.mail.dead").append({"$dead": "{}"})
    mail.pause()
    time.sleep(0.02)
    found = store.status()
    by_name = {one.name: one for one in found.streams}
    stream = by_name["orders"]
    assert (stream.length, stream.added, stream.deferred, stream.nodes) == (10, 10, 1, 1)
    assert stream.next_due is not None
    assert stream.next_due > found.time + timedelta(seconds=50)
    [group] = stream.groups
    assert (group.name, group.lag, group.pending, group.released, group.dead_letters) == ("mail", 6, 4, 1, 1)
    assert group.oldest_pending >= 0.02
    assert group.paused_until == datetime.max.replace(tzinfo=UTC)  # for ever
    assert [(one.name, one.pending) for one in group.consumers] == [("a", 2), ("b", 1)]
    assert again.deliveries == 2
    assert group.last_delivered_id == orders.select(3)
    assert 0.02 <= group.waiting < 10
    assert all(0.02 <= one.oldest_pending < 10 for one in group.consumers)
    assert found.versions["version"] == raxlog.__version__
    assert json.loads(json.dumps(found.to_dict(), default=repr))["path"] == str(store.path)


def test_the_status_shows_subscriptions_files_and_rates(store: raxlog.Store) -> None:
    before = store.status()
    assert (before.streams, before.subscriptions, before.listeners) == ((), 0, ())
    store.bind("orders.>", "orders")
    with store.subscribe("orders.*"):
        store.publish("orders.new", {"n": 1})
        after = store.status()
        assert after.subscriptions == 2
        assert after.listeners == (os.getpid(),)
    assert after.commit > before.commit
    assert after.file_bytes > 0
    assert after.free_bytes > 0
    assert after.last_commit >= before.last_commit
    assert after.rates(before) == {"orders": 0}  # a new stream has no earlier figure
    store.publish("orders.new", {"n": 2})
    assert store.status().rates(after)["orders"] > 0


def test_a_status_is_one_state_while_a_writer_commits(store: raxlog.Store) -> None:
    """Two streams always get their entries in one transaction: no status shows one without the other."""
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set():
            with store.transaction() as tx:
                tx.stream("a").append({"n": 1})
                tx.stream("b").append({"n": 1})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(200):
            lengths = [one.length for one in store.status().streams]
            assert len(set(lengths)) <= 1
    finally:
        ended.set()
        writer.join()


def test_a_thousand_groups_in_a_thousand_streams_are_seen_in_a_fraction_of_a_second(store: raxlog.Store) -> None:
    with store.transaction() as tx:
        for n in range(1000):
            stream = tx.stream(f"s{n}")
            stream.append({"n": 1})
            stream.create_group("g", start="0")
            stream.group("g").read("c")
    store.status()
    began = time.process_time()
    found = store.status()
    assert time.process_time() - began < 0.3  # some 0.05 s on a quiet machine
    assert sum(group.pending for one in found.streams for group in one.groups) == 1000


def test_a_status_asked_for_again_is_the_one_a_new_one_would_be(store: raxlog.Store) -> None:
    orders = store.stream("orders")
    mail = orders.create_group("mail", start="0", create_stream=True)
    orders.extend([{"n": n} for n in range(10)])
    mail.read("a", count=4)
    mail.pause(datetime.now(UTC) + timedelta(milliseconds=50))
    first = store.status()
    time.sleep(0.1)
    later, anew = store.status(first), store.status()
    assert later.commit == first.commit
    [[mine], [its]] = [one.streams[0].groups for one in (later, anew)]
    assert mine.oldest_pending == pytest.approx(its.oldest_pending, abs=0.05)
    assert mine.oldest_pending > 0.1
    assert mine.waiting == pytest.approx(its.waiting, abs=0.05)
    assert mine.waiting > 0.1
    assert mine.consumers[0].oldest_pending == pytest.approx(its.consumers[0].oldest_pending, abs=0.05)
    assert mine.consumers[0].oldest_pending > 0.1
    assert (mine.paused_until, its.paused_until) == (None, None)
    orders.append({"n": 11})
    assert store.status(later).streams[0].length == 11


def test_the_status_shows_limits_and_what_they_hold_back(store: raxlog.Store) -> None:
    orders = store.stream("orders")
    fast, slow = (orders.create_group(name, start="0", create_stream=True) for name in ("fast", "slow"))
    orders.extend([{"n": n} for n in range(10)])
    [seen, _] = store.status().streams[0].groups
    assert (seen.max_in_flight, seen.rate, seen.burst, seen.held, seen.limited_by) == (None,) * 5
    fast.configure(max_in_flight=4)
    slow.configure(rate=(10, 2.0))
    fast.read("a", count=9)
    slow.read("b", count=9)
    before = store.status()
    [one, other] = before.streams[0].groups
    assert (one.max_in_flight, one.held, one.limited_by, one.limited_until) == (4, 4, "max_in_flight", None)
    assert (other.rate, other.burst, other.held, other.limited_by) == ((10, 2.0), 1, None, "rate")
    assert other.limited_until is not None
    time.sleep(max(0.0, other.limited_until.timestamp() - time.time()) + 0.01)
    for later in (store.status(before), store.status()):
        [one, other] = later.streams[0].groups
        assert (one.limited_by, other.limited_by, other.limited_until) == ("max_in_flight", None, None)
    fast.ack(*[entry.id for entry in orders.range(count=4)])
    assert [one.held for one in store.status().streams[0].groups] == [0, None]


def test_the_status_shows_schedules_and_which_are_late(store: raxlog.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = store.stream("jobs")
    for name in "abcd":
        jobs.schedule(name, {"n": name}, every=0.05 if name == "b" else 3600, jitter=60 if name == "c" else 0)
    jobs.pause_schedule("a")
    store.stream("orders").append({"n": 1})
    time.sleep(0.1)
    found = store.status()
    seen, other = found.streams
    assert (other.schedule_count, other.schedules) == (0, ())
    assert [one.name for one in seen.schedules] == ["a", "b", "c", "d"]
    paused, late, jittered, exact = seen.schedules
    assert (paused.paused, paused.next, paused.due, paused.last) == (True, None, None, None)
    assert [one.due is not None and one.due < found.time for one in (late, jittered, exact)] == [True, False, False]
    assert jittered.next is not None
    assert jittered.due is not None
    assert timedelta(0) <= jittered.due - jittered.next <= timedelta(seconds=60)
    assert exact.next == exact.due == next(one.next for one in jobs.schedules() if one.name == "d")
    jobs.append({"n": 1})
    seen = store.status().streams[0]
    assert seen.schedules[1].last is not None
    monkeypatch.setattr(raxlog.status, "_SCHEDULES", 3)
    seen = store.status().streams[0]
    assert (seen.schedule_count, [one.name for one in seen.schedules]) == (4, ["a", "b", "c"])
    assert (jobs.info().schedules, store.stream("orders").info().schedules) == (4, 0)


def test_a_damaged_schedule_is_named_and_the_rest_of_the_status_is_there(store: raxlog.Store, tmp_path: Path) -> None:
    jobs = store.stream("jobs")
    for name in "abc":
        jobs.schedule(name, {"n": name}, every=3600)
    store.close()
    [_, (key, value), _] = records_of(store.path, 1, keys.SCHEDULE)
    copy = changed_copy(store.path, tmp_path / "bad.rax", {key: flipped(value, 12, 1)})
    with raxlog.open(copy, readonly=True) as bad:
        found = bad.status()
    assert [(one.name, one.deferred) for one in found.streams] == [("jobs", 3)]
    assert len(found.damaged) == 1


def test_import_raxlog_loads_no_status_and_no_package_of_the_extra() -> None:
    program = ("import raxlog, sys; print(sorted({'raxlog.status', 'textual', 'starlette', 'uvicorn', "
               "'prometheus_client', 'matplotlib', 'plotext'} & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
