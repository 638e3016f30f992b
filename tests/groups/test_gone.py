"""Pending entries that are gone from the stream: whatever meets one takes it out, and no wait is kept up by it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import forkserver
import pytest
import raxlog
from raxlog import ConsumerBusy
from raxlog.stream.group import deliver

SOON = 20.0  # seconds: far more than any of this takes
IDLE = 0.05


@pytest.fixture
def group(store: raxlog.Store) -> raxlog.Group:
    """Of ten entries delivered to one consumer, which has died."""
    stream = store.stream("jobs")
    group = stream.create_group("g", "0", create_stream=True)
    stream.extend([{"n": n} for n in range(10)])
    assert len(group.read("died")) == 10
    return group


@contextmanager
def at_rest() -> Iterator[None]:
    """The block waits: it uses no more than a fifth of a core."""
    began, used = time.monotonic(), time.process_time()
    yield
    assert time.process_time() - used < 0.1 + (time.monotonic() - began) / 5


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("loss", ["trimmed", "deleted", "expired"])
@pytest.mark.parametrize("reads", ["group", "store"])
def test_a_read_that_claims_and_waits_ends_at_its_time_and_takes_out_what_is_gone(
    store: raxlog.Store, group: raxlog.Group, loss: str, reads: str
) -> None:
    stream = store.stream("jobs")
    if loss == "expired":
        stream.configure(retention=raxlog.Retention(max_age=0.001))
        time.sleep(0.01)
        store.maintain()
    elif loss == "trimmed":
        stream.trim(maxlen=0)
    else:
        stream.delete(*[entry.id for entry in stream.range()])
    assert len(stream) == 0
    began = time.monotonic()
    with at_rest():
        if reads == "group":
            assert group.read("c", timeout=1, claim_idle=IDLE) == []
        else:
            assert store.read_group("g", "c", {"jobs": ">"}, timeout=1, claim_idle=IDLE) == {}
    assert 0.9 < time.monotonic() - began < SOON / 2
    assert group.pending().total == 0
    assert group.info().gone == 10
    assert group.delete_consumer("died") == 0  # pending entries that it had


def test_what_is_there_is_claimed_from_among_what_is_gone_in_order_and_over_many_nodes(store: raxlog.Store) -> None:
    stream = store.stream("jobs", node_max_entries=7)
    group = stream.create_group("g", "0", create_stream=True)
    ids = stream.extend([{"n": n} for n in range(500)])
    group.read("died")
    kept = ids[3::50]
    stream.delete(*[sid for sid in ids if sid not in kept])
    time.sleep(2 * IDLE)
    got = []
    while some := group.read("c", 1, claim_idle=IDLE if len(got) < len(kept) else 60):
        got += [entry.id for entry in some]
        assert group.pending().first == min(got[:1])
    assert got == kept
    assert group.info().pending + group.info().gone <= 500
    assert group.read("c", 1, claim_idle=60) == []
    group.ack(*got)
    time.sleep(2 * IDLE)
    assert group.read("c", claim_idle=IDLE) == []
    assert (group.info().pending, group.info().gone) == (0, 500 - len(kept))


def test_what_is_trimmed_while_it_waits_for_a_retry_goes_when_its_time_has_come(
    store: raxlog.Store, group: raxlog.Group
) -> None:
    ids = [entry.id for entry in store.stream("jobs").range()]
    group.ack(*ids[2:])
    group.nack(ids[0], delay=0.3)
    group.nack(ids[1], delay=0.6)
    store.stream("jobs").trim(minid=ids[1])
    assert group.pending().total == 2
    with at_rest():
        [entry] = group.read("c", timeout=SOON, claim_idle=60)
    assert entry.id == ids[1]
    assert (group.pending().total, group.info().gone) == (1, 1)


@pytest.mark.parametrize("how", ["stream", "transaction", "again"])
def test_what_is_deleted_while_it_waits_for_a_retry_leaves_each_group_and_what_is_held_stays_pending(
    store: raxlog.Store, group: raxlog.Group, how: str
) -> None:
    stream = store.stream("jobs")
    ids = [entry.id for entry in stream.range()]
    other = stream.create_group("other", "0")
    other.read("w")
    group.nack(*ids[:3], delay=3600)
    other.nack(ids[0], delay=3600)
    group.nack(ids[9])  # without a delay: as XNACK does
    if how == "transaction":
        with store.transaction() as tx:
            tx.stream("jobs").delete(*ids[:2], ids[5], ids[9])
    else:
        assert stream.delete(*ids[:2], ids[5], ids[9]) == 4
        assert how == "stream" or stream.delete(*ids[:2], ids[5], ids[9]) == 0
    assert [one.id for one in group.pending_entries("-")] == ids[2:]
    assert [one.id for one in other.pending_entries("-")] == ids[1:]
    assert (group.info().gone, other.info().gone) == (2, 1)
    assert raxlog.check(store.path).ok


HOLDS = """
import sys, raxlog
with raxlog.open(sys.argv[1]) as store, store.transaction() as tx:
    tx.stream("other").append({"n": 1})
    print(flush=True)
    sys.stdin.read()
"""


def test_a_read_ends_at_its_time_though_what_is_gone_cannot_be_taken_out_while_another_process_writes(
    store: raxlog.Store, group: raxlog.Group
) -> None:
    store.stream("jobs").trim(maxlen=0)
    time.sleep(IDLE)
    holder = forkserver.Popen([sys.executable, "-c", HOLDS, str(store.path)], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE)
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline()
        for claim_idle in (IDLE, None):
            began = time.monotonic()
            assert group.read("c", timeout=0.5, claim_idle=claim_idle) == []
            assert 0.4 < time.monotonic() - began < SOON
        assert group.pending().total == 10
        with pytest.raises(raxlog.LockTimeout):  # an acknowledgement is not given up at the read's time, but at this
            raxlog.open(store.path, lock_timeout=1).stream("jobs").group("g").read("died", ack=["1-1"], timeout=0.1)
    finally:
        holder.communicate()
        holder.stdout.close()
    assert group.read("c", timeout=0.5, claim_idle=IDLE) == []
    assert (group.pending().total, group.info().gone) == (0, 10)


def test_a_store_that_is_open_to_read_shows_what_is_gone_and_takes_nothing_out(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with raxlog.open(path) as store:
        stream = store.stream("jobs")
        group = stream.create_group("g", "0", create_stream=True)
        stream.append({"n": 1})
        group.read("died")
        stream.trim(maxlen=0)
    time.sleep(IDLE)
    with raxlog.open(path, readonly=True) as store:
        group = store.stream("jobs").group("g")
        for refused in (partial(group.read, "c", timeout=1, claim_idle=IDLE), partial(group.autoclaim, "c", min_idle=0),
                        group.worker(lambda entry: None).run):
            began = time.monotonic()
            with pytest.raises(raxlog.ReadOnlyStore):
                refused()
            assert time.monotonic() - began < SOON / 2
        assert (group.pending().total, group.info().gone, len(list(group.pending_entries("-")))) == (1, 0, 1)


def test_a_worker_at_rest_takes_out_what_is_gone_and_stays_at_rest(store: raxlog.Store, group: raxlog.Group) -> None:
    store.stream("jobs").trim(maxlen=0)
    ran: list[raxlog.Entry] = []
    worker = group.worker(ran.append, lease=0.1, threads=3)
    thread = threading.Thread(target=worker.run)
    with at_rest():
        thread.start()
        until(lambda: group.pending().total == 0)
        time.sleep(1)
        worker.stop()
        thread.join(SOON)
    assert (ran, group.info().gone) == ([], 10)
    assert not thread.is_alive()


def test_a_job_deleted_while_its_retry_waits_is_not_run_again_nor_pending(store: raxlog.Store) -> None:
    stream = store.stream("jobs")
    group = stream.create_group("g", "0", create_stream=True)
    ran = []

    def handler(entry: raxlog.Entry) -> None:
        ran.append(entry.id)
        stream.delete(entry.id)
        raise OSError("again")

    worker = group.worker(handler, retry=0.1)
    thread = threading.Thread(target=worker.run)
    thread.start()
    sid = stream.append({"n": 1})
    until(lambda: group.info().gone)
    worker.stop()
    thread.join(SOON)
    assert (ran, group.pending().total, len(group.dead_letters)) == ([sid], 0, 0)


def test_much_that_is_gone_goes_in_commits_of_bounded_size_and_the_rest_is_claimed(
    store: raxlog.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliver, "MOST_GONE", 200)
    stream = store.stream("jobs")
    group = stream.create_group("g", "0", create_stream=True)
    ids = stream.extend([{"n": n} for n in range(1001)])
    group.read("died")
    stream.trim(maxlen=1)
    time.sleep(2 * IDLE)
    sizes = []
    take_out = deliver.take_out_gone
    monkeypatch.setattr(deliver, "take_out_gone", lambda txn, group, gone: (
        sizes.append(len(gone)), take_out(txn, group, gone)))
    assert [entry.id for entry in group.read("c", 1, claim_idle=IDLE)] == ids[-1:]
    assert sum(sizes) == 1000
    assert max(sizes) < 200 + deliver.AT_ONCE
    assert (group.pending().total, group.info().gone) == (1, 1000)


def test_a_consumer_all_of_whose_entries_are_gone_can_be_deleted_and_one_with_others_not(
    store: raxlog.Store, group: raxlog.Group
) -> None:
    store.stream("jobs").trim(maxlen=1)
    with pytest.raises(ConsumerBusy):
        group.delete_consumer("died")
    assert group.pending().total == 10
    store.stream("jobs").trim(maxlen=0)
    assert group.delete_consumer("died") == 10
    assert (group.pending().total, group.info().gone, group.consumers()) == (0, 10, [])


def test_a_transaction_that_is_undone_leaves_pending_what_it_has_taken_out(
    store: raxlog.Store, group: raxlog.Group
) -> None:
    store.stream("jobs").trim(maxlen=0)
    with contextlib.suppress(ZeroDivisionError), store.transaction() as tx:
        assert tx.group("jobs", "g").read("c", claim_idle=0) == []
        assert tx.group("jobs", "g").info().gone == 10
        raise ZeroDivisionError
    assert (group.pending().total, group.info().gone) == (10, 0)
    with store.transaction() as tx:
        assert tx.read_group("g", "c", {"jobs": ">"}, claim_idle=0) == {}
    assert (group.pending().total, group.info().gone) == (0, 10)


def test_every_way_to_claim_counts_what_it_takes_out_and_a_read_of_the_history_takes_nothing(
    store: raxlog.Store, group: raxlog.Group
) -> None:
    ids = [entry.id for entry in store.stream("jobs").range()]
    store.stream("jobs").trim(maxlen=0)
    assert [entry.pairs for entry in group.read("died", ids="0")] == [[]] * 10
    assert group.claim("c", *ids[:2]) == []
    assert group.info().gone == 2
    assert group.autoclaim("c", count=3).deleted == ids[2:5]
    assert group.info().gone == 5
    assert group.ack(ids[5]) == 1  # which meets nothing
    assert group.read("c", claim_idle=0) == []
    assert (group.pending().total, group.info().gone) == (0, 9)
    [found] = [one for stream in store.status().streams for one in stream.groups]
    assert found.gone == 9


def test_the_count_of_what_is_gone_stays_with_the_group_paused_filtered_and_opened_again(path: Path) -> None:
    with raxlog.open(path) as store:
        group = store.stream("jobs").create_group("g", "0", create_stream=True, subjects=["a.*"])
        store.bind("a.>", "jobs")
        store.publish("a.b", {"n": 1})
        store.publish("a.b.c", {"n": 2})
        assert len(group.read("died")) == 1
        store.stream("jobs").trim(maxlen=0)
        time.sleep(2 * IDLE)
        assert group.read("c", timeout=0.1, claim_idle=IDLE) == []
        group.pause()
    with raxlog.open(path) as store:
        group = store.stream("jobs").group("g")
        assert (group.info().gone, group.paused, group.subjects) == (1, True, ["a.*"])
        group.resume()
        assert (group.info().gone, group.paused, group.pending().total) == (1, False, 0)
    assert not raxlog.check(path).problems


def test_a_paused_group_keeps_what_is_gone_and_its_readers_at_rest(store: raxlog.Store, group: raxlog.Group) -> None:
    store.stream("jobs").trim(maxlen=0)
    group.pause()
    with at_rest():
        assert group.read("c", timeout=0.5, claim_idle=0) == []
    assert group.pending().total == 10
    group.resume()
    assert group.read("c", claim_idle=0) == []
    assert group.pending().total == 0
