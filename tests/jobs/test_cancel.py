"""Cancelled entries: dead letters, wherever they were; never acknowledged, never delivered; no other is concerned."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import forkserver
import pytest
import raxlog
import raxlog.aio
from counting import commits_of
from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from raxlog import Cancelled
from working import SOON, number, running, until


@pytest.fixture
def group(store: raxlog.Store) -> raxlog.Group:
    return store.stream("jobs").create_group("mail")


def origins(group: raxlog.Group) -> list[raxlog.StreamID]:
    return [letter.origin for letter in group.dead_letters if letter.reason == "cancelled"]


def test_what_waits_what_is_pending_and_what_is_to_be_tried_again_become_dead_letters_in_one_commit_each(
    store: raxlog.Store, group: raxlog.Group
) -> None:
    other = store.stream("jobs").create_group("other")
    ids = store.stream("jobs").extend([{"n": n} for n in range(8)])
    assert len(group.read("a", 3)) == 3
    group.nack(ids[1], delay=60, consumer="a")
    for sid in (ids[0], ids[1], ids[5]):
        before = commits_of(store)
        assert group.cancel(sid, f"no {sid}") == 1
        assert commits_of(store) == before + 1
    letters = list(group.dead_letters)
    assert [(letter.origin, letter.reason, letter.error, letter.consumer, letter.deliveries, letter.traceback)
            for letter in letters] == [(ids[0], "cancelled", f"no {ids[0]}", "a", 1, ""),
                                       (ids[1], "cancelled", f"no {ids[1]}", "", 1, ""),
                                       (ids[5], "cancelled", f"no {ids[5]}", "", 0, "")]
    assert [letter.entry.fields for letter in letters] == [{"n": "0"}, {"n": "1"}, {"n": "5"}]
    assert (group.lag, group.info().lag, other.lag, group.pending().total) == (4, 4, 8, 1)
    assert next(row.lag for row in store.status().streams[0].groups if row.name == "mail") == 4
    job = group.job(ids[5])
    assert (job.status, job.reason, job.result) == ("dead", "cancelled", raxlog.Result(None, f"no {ids[5]}", "dead"))
    assert group.wait_result(ids[5]).status == "dead"
    assert [number(entry) for entry in group.read("a")] == [3, 4, 6, 7]
    assert [number(entry) for entry in other.read("a")] == list(range(8))
    assert group.read("a") == group.read("b", claim_idle=0, count=0) == []
    assert [number(entry) for entry in group.read("b", claim_idle=0)] == [2, 3, 4, 6, 7]
    assert (group.lag, group.last_delivered_id) == (0, ids[7])
    assert group.dead_letters.replay(letters[2].id) == 1
    assert [number(entry) for entry in group.read("a")] == [5]  # a new entry, with a new ID
    assert raxlog.check(store.path).ok


def test_a_cancelled_entry_stays_so_when_the_group_goes_back_and_not_in_a_group_made_anew(
    store: raxlog.Store, group: raxlog.Group
) -> None:
    ids = store.stream("jobs").extend([{"n": n} for n in range(6)])
    group.read("a", 2)
    assert group.cancel([ids[1], ids[4]]) == 2
    group.read("a")
    group.set_id("0")
    assert group.lag == group.entries_after("0") == 4
    assert [number(entry) for entry in group.read("b")] == [0, 2, 3, 5]
    group.destroy()
    group = store.stream("jobs").create_group("mail")
    assert group.cancel(ids[5]) == 1
    assert group.lag == 5
    assert [number(entry) for entry in group.read("b")] == [0, 1, 2, 3, 4]


def test_how_long_a_group_lets_entries_wait_is_right_beside_those_that_were_cancelled(store: raxlog.Store) -> None:
    now = int(time.time() * 1000)
    ids = store.stream("jobs").extend([{"n": n} for n in range(4)], ids=[now - ago for ago in (60_000, 30_000, 500, 1)])
    group = store.stream("jobs").create_group("mail")
    for given_up, lag, least in ((ids[2:], 2, 60), (ids[:1], 1, 30)):
        assert group.cancel(given_up) == len(given_up)
        [status] = store.status().streams[0].groups
        assert status.lag == lag
        assert least <= status.waiting < 100
    assert [number(entry) for entry in group.read("w")] == [1]
    [status] = store.status().streams[0].groups
    assert (status.lag, status.waiting) == (0, 0)


def test_the_mark_outlives_the_process_a_compaction_and_a_snapshot(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax") as store:
        ids = store.stream("jobs").extend([{"n": n} for n in range(4)])
        group = store.stream("jobs").create_group("mail")
        assert group.cancel(ids[2], "later") == 1
        store.compact()
        store.snapshot(tmp_path / "copy")
    raxlog.restore(tmp_path / "copy", tmp_path / "t.rax")
    for name in ("s.rax", "t.rax"):
        with raxlog.open(tmp_path / name) as store:
            group = store.stream("jobs").group("mail")
            assert group.lag == 3
            assert [number(entry) for entry in group.read("w")] == [0, 1, 3]


@pytest.mark.parametrize("count", [1, 2, 500, None])
@pytest.mark.parametrize("noack", [False, True])
def test_reads_of_any_size_pass_over_what_was_cancelled(
    store: raxlog.Store, group: raxlog.Group, count: int | None, noack: bool
) -> None:
    ids = store.stream("jobs").extend([{"n": n} for n in range(1_500)])
    gone = [sid for n, sid in enumerate(ids) if n % 7 == 0 or 300 <= n < 900]
    assert group.cancel(gone) == len(gone)
    assert group.lag == 1_500 - len(gone)
    seen: list[int] = []
    while some := group.read("w", count, noack=noack):
        seen += map(number, some)
    assert seen == [n for n in range(1_500) if n % 7 and not 300 <= n < 900]
    assert group.lag == 0


def test_a_group_with_subjects_cancels_its_own(store: raxlog.Store) -> None:
    store.bind("orders.>", "orders")
    group = store.stream("orders").create_group("eu", "0", create_stream=True, subjects="orders.eu")
    for n in range(10):
        store.publish(f"orders.{'eu' if n % 2 else 'us'}", {"n": n})
    ids = [entry.id for entry in store.stream("orders").range()]
    assert [group.cancel(sid) for sid in ids[:4]] == [0, 1, 0, 1]
    assert group.lag == 3
    assert [int(entry.fields["n"]) for entry in group.read("w")] == [5, 7, 9]


def test_a_reader_that_waits_is_given_what_comes_behind_a_cancelled_entry(
    store: raxlog.Store, group: raxlog.Group
) -> None:
    got: list[raxlog.Entry] = []
    thread = threading.Thread(target=lambda: got.extend(group.read("w", timeout=SOON)))
    group.pause()
    thread.start()
    first, second = store.stream("jobs").extend([{"n": 0}, {"n": 1}])
    assert group.cancel(first) == 1
    group.resume()
    thread.join(SOON)
    assert [entry.id for entry in got] == [second]


def test_who_waits_for_the_result_is_answered_at_once(store: raxlog.Store, group: raxlog.Group) -> None:
    sid = store.stream("jobs").append({"n": 0})
    threading.Timer(0.2, group.cancel, (sid, "enough")).start()
    result = group.wait_result(sid, SOON)
    assert (result.status, result.error) == ("dead", "enough")


def test_what_cannot_be_cancelled_changes_nothing(store: raxlog.Store, group: raxlog.Group) -> None:
    stream = store.stream("jobs")
    acked, deleted, pending, dead, queued = stream.extend([{"n": n} for n in range(5)])
    group.read("w", 3)
    group.ack(acked)
    stream.delete(deleted)
    assert group.cancel([dead, dead, str(dead)], "once") == 1
    before = store.status().commit
    for sid in (acked, deleted, dead, "1-1", "99999999999999999-0"):
        assert group.cancel(sid) == 0
    assert group.cancel([]) == group.cancel(iter(())) == 0
    for wrong in (None, "x", (1, 2), 1.5, ["x"], [queued, "x"], "$", ">"):
        with pytest.raises(raxlog.InvalidStreamID):
            group.cancel(wrong)  # type: ignore[arg-type]
    for wrong in (None, b"why", 3):
        with pytest.raises(raxlog.InvalidArgument, match="reason"):
            group.cancel(queued, wrong)  # type: ignore[arg-type]
    with pytest.raises(raxlog.InvalidArgument, match="dead letters"):
        group.cancel(queued, dead_letters="jobs")
    with pytest.raises(raxlog.NoGroup, match="absent"):
        stream.group("absent").cancel(queued)
    with pytest.raises(raxlog.NoGroup):
        store.stream("nowhere").group("mail").cancel(queued)
    assert store.status().commit == before
    assert (group.lag, group.pending().total, len(group.dead_letters)) == (1, 2, 1)
    store.stream("refused").append({"item": "book"})
    with pytest.raises(raxlog.InvalidArgument, match="holds no dead letters"):
        group.cancel([pending, queued], dead_letters="refused")
    assert (group.lag, group.pending().total) == (1, 2)


def test_a_reason_of_any_text_and_letters_elsewhere(store: raxlog.Store, group: raxlog.Group) -> None:
    ids = store.stream("jobs").extend([{"n": n} for n in range(3)])
    for sid, reason in zip(ids, ("ü\udcff\0", "x" * 100_000, ""), strict=True):
        assert group.cancel(sid, reason, dead_letters="graves") == 1
    assert len(group.dead_letters) == 0
    assert [len(entry.fields["$dead"]) < 5_000 for entry in store.stream("graves").range()] == [True] * 3
    assert group.job(ids[0]).reason == "cancelled"


def test_a_transaction_a_pipeline_and_tasks_cancel_too(store: raxlog.Store, group: raxlog.Group) -> None:
    ids = store.stream("jobs").extend([{"n": n} for n in range(6)])
    with contextlib.suppress(ZeroDivisionError), store.transaction() as tx:
        assert tx.group("jobs", "mail").cancel(ids[0]) == 1
        assert [number(entry) for entry in tx.group("jobs", "mail").read("w")] == [1, 2, 3, 4, 5]
        raise ZeroDivisionError
    assert (group.lag, origins(group)) == (6, [])
    with store.transaction() as tx:
        tx.group("jobs", "mail").cancel(ids[:2])
    with store.pipeline() as pipe:
        pipe.group("jobs", "mail").cancel(ids[2], "why")
        assert pipe.execute() == [1]

    async def program() -> list[int]:
        async with raxlog.aio.open(store.path) as opened:
            mail = opened.stream("jobs").group("mail")
            assert await mail.cancel(ids[3], "why") == 1
            return [number(entry) for entry in await mail.read("w")]

    assert asyncio.run(program()) == [4, 5]
    assert origins(group) == ids[:4]


def test_a_read_of_tasks_that_is_taken_back_does_not_bring_back_what_was_cancelled(path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)

    async def program() -> None:
        async with raxlog.aio.open(path) as store:
            stream, got = store.stream("jobs"), list[raxlog.StreamID]()
            group = await stream.create_group("mail")

            async def read() -> None:
                got.extend(entry.id for entry in await group.read("w", 2, timeout=None))

            made: list[raxlog.StreamID] = []
            tasks: set[asyncio.Task[None]] = set()
            for _ in range(200):
                new = await stream.extend({"n": n} for n in range(3))
                made += new
                await group.cancel(chance.choice(new))
                tasks |= {asyncio.create_task(read()) for _ in range(2)}
                await asyncio.sleep(chance.choice((0, 0, 0.0005)))
                for task in chance.sample(sorted(tasks, key=id), len(tasks) // 2):
                    task.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            rest = [entry.id for entry in await group.read("last", claim_idle=0.0)]
            letters = [letter async for letter in group.dead_letters]
            assert len(letters) == 200
            assert {*got, *rest} | {letter.origin for letter in letters} == {*made}
            assert not {*rest} & {letter.origin for letter in letters}
            unread = {letter.origin for letter in letters if not letter.deliveries}
            assert len(unread) > 20
            assert not {*got} & unread

    asyncio.run(program())


# -- while it runs ----------------------------------------------------------------------------


@pytest.mark.parametrize("handler", ["ends", "swallows", "fails"])
def test_a_handler_gets_cancelled_within_a_second_and_its_entry_is_never_acknowledged(
    store: raxlog.Store, group: raxlog.Group, handler: str
) -> None:
    begun, raised = threading.Event(), list[float]()
    ids = store.stream("jobs").extend([{"n": n} for n in range(6)])
    seen: list[int] = []

    def handle(entry: raxlog.Entry) -> str | None:
        seen.append(number(entry))
        if number(entry) != 2:
            return None
        begun.set()
        try:
            until(lambda: False)
        except Cancelled:
            raised.append(time.monotonic())
            if handler == "ends":
                raise
            if handler == "fails":
                raise ValueError("in its end") from None
        return "a result"

    with running(group.worker(handle, result_ttl=60, max_deliveries=1)) as worker:
        assert begun.wait(SOON)
        asked = time.monotonic()
        assert group.cancel(ids[2], "changed their mind") == 1
        until(lambda: len(raised) == 1)
        assert raised[0] - asked < 1
        until(lambda: worker.counts == raxlog.Counts(done=5, cancelled=1))
        until(lambda: group.pending().total == 0)
    assert seen.count(2) == 1
    assert origins(group) == [ids[2]]
    assert len(group.dead_letters) == 1
    result = group.wait_result(ids[2])
    assert (result.status, result.error) == ("dead", "changed their mind")


def test_a_job_that_ends_as_it_is_cancelled_is_one_or_the_other(store: raxlog.Store, group: raxlog.Group) -> None:
    """What a handler returned is not kept in place of the letter, either."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with running(group.worker(lambda entry: time.sleep(chance.random() * 0.004), threads=2, result_ttl=60)):
        ids = []
        cancelled = set()
        wait = 0.004  # goes to where either comes first as often, however busy the machine is
        for n in range(400):
            ids.append(store.stream("jobs").append({"n": n}))
            time.sleep(chance.random() * wait)
            if group.cancel(ids[-1]):
                cancelled.add(ids[-1])
                wait *= 1.05
            else:
                wait /= 1.05
        until(lambda: group.lag == 0 and group.pending().total == 0)
    assert 20 < len(cancelled) < 380
    assert origins(group) == sorted(cancelled)
    statuses = {sid: group.job(sid).status for sid in ids}
    assert statuses == {sid: "dead" if sid in cancelled else "done" for sid in ids}


def test_a_handler_that_no_exception_reaches_does_not_hold_up_the_worker(
    store: raxlog.Store, group: raxlog.Group
) -> None:
    begun = threading.Event()

    def handle(entry: raxlog.Entry) -> None:
        if number(entry) == 0:
            begun.set()
            time.sleep(5)

    ids = store.stream("jobs").extend([{"n": n} for n in range(3)])
    with running(group.worker(handle, drain=0)) as worker:
        assert begun.wait(SOON)
        assert group.cancel(ids[0]) == 1
        until(lambda: worker.counts == raxlog.Counts(done=2, cancelled=1), 4)
    assert origins(group) == ids[:1]


def test_a_time_limit_behind_a_cancellation_and_another_entry_are_not_touched(
    store: raxlog.Store, group: raxlog.Group
) -> None:
    begun, kinds = threading.Semaphore(0), list[type[BaseException]]()

    def handle(entry: raxlog.Entry) -> None:
        begun.release()
        try:
            until(lambda: number(entry) > 9, 20)
            time.sleep(0.01)
        except BaseException as error:
            kinds.append(type(error))
            raise

    ids = store.stream("jobs").extend([{"n": n} for n in range(2)])
    with running(group.worker(handle, timeout=1.5, max_deliveries=1)) as worker:
        assert begun.acquire(timeout=SOON)
        group.cancel(ids[0])
        until(lambda: worker.counts.cancelled == 1)
        store.stream("jobs").extend([{"n": n} for n in range(10, 60)])
        until(lambda: worker.counts == raxlog.Counts(done=50, failed=1, dead=1, cancelled=1))
    assert kinds == [Cancelled, raxlog.TimeLimit]
    assert [(letter.origin, letter.reason) for letter in group.dead_letters] == [(ids[0], "cancelled"),
                                                                                (ids[1], "failed")]


def test_a_handler_with_a_transaction_is_waited_for(store: raxlog.Store, group: raxlog.Group) -> None:
    begun = threading.Event()

    def handle(entry: raxlog.Entry, tx: raxlog.Transaction) -> None:
        tx.stream("effects").append({"n": number(entry)})
        begun.set()
        time.sleep(0.8)

    sid = store.stream("jobs").append({"n": 1})
    with running(group.worker(handle, transaction=True)) as worker:
        assert begun.wait(SOON)
        assert group.cancel(sid) == 0
        until(lambda: worker.counts == raxlog.Counts(done=1))
    assert (len(store.stream("effects")), origins(group)) == (1, [])


def test_a_coroutine_is_cancelled_within_a_second(path: Path) -> None:
    async def program() -> None:
        async with raxlog.aio.open(path) as store:
            group = await store.stream("jobs").create_group("mail")
            ids = await store.stream("jobs").extend([{"n": n} for n in range(3)])
            begun, ended = asyncio.Event(), list[float]()

            async def handle(entry: raxlog.Entry) -> None:
                if number(entry) == 1:
                    begun.set()
                    try:
                        await asyncio.sleep(60)
                    except asyncio.CancelledError:
                        ended.append(time.monotonic())
                        raise

            worker = group.worker(handle)
            task = asyncio.create_task(worker.run())
            await asyncio.wait_for(begun.wait(), SOON)
            asked = time.monotonic()
            assert await group.cancel(ids[1]) == 1
            async with asyncio.timeout(SOON):
                while worker.counts != raxlog.Counts(done=2, cancelled=1):
                    await asyncio.sleep(0.01)
            assert ended[0] - asked < 1
            worker.stop()
            await task

    asyncio.run(program())


# -- processes --------------------------------------------------------------------------------

PROGRAM = """
import os, sys, time
import raxlog
path, kind = sys.argv[1:3]
out = os.open(path + ".log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
def log(*words):
    os.write(out, (" ".join(map(str, words)) + "\\n").encode())
def handle(entry):
    n = int(entry.fields["n"])
    log("begun", n)
    try:
        end = time.monotonic() + (60 if kind.startswith("long") else 0.001 * (n % 5))
        while time.monotonic() < end:
            time.sleep(0.001)
    except raxlog.Cancelled:
        log("cancelled", n)
        raise
    log("done", n)
if kind.endswith("no marks"):
    from raxlog.stream.group.state import GroupState
    GroupState.has_cancelled = lambda *_: False
with raxlog.open(path) as store:
    store.stream("jobs").group("mail").worker(
        handle, threads=2, processes=2 * (kind == "long, in processes"), lease=0.5, retry=0.02).run()
"""


class Pool:
    """Worker processes over one store, killed at the end."""

    def __init__(self, path: Path, kind: str) -> None:
        self.command = [sys.executable, "-c", PROGRAM, str(path), kind]
        faulty = {"RAXLOG_PURE": "1"} if "no marks" in kind else {}  # into what is compiled no fault can be put
        self.environ = os.environ | faulty
        self.log = Path(f"{path}.log")
        self.processes: list[Any] = []

    def start(self) -> Any:
        self.processes.append(forkserver.Popen(self.command, text=True, env=self.environ))
        return self.processes[-1]

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


def test_a_handler_in_a_process_gets_cancelled_within_a_second(store: raxlog.Store, group: raxlog.Group) -> None:
    sid = store.stream("jobs").append({"n": 1})
    with Pool(store.path, "long, in processes") as pool:
        pool.start()
        until(lambda: pool.lines() == ["begun 1"])
        asked = time.monotonic()
        assert group.cancel(sid) == 1
        until(lambda: pool.lines() == ["begun 1", "cancelled 1"])
        assert time.monotonic() - asked < 1
        second = store.stream("jobs").append({"n": 2})
        until(lambda: "begun 2" in pool.lines())
        assert group.job(second).status == "running"
    assert group.job(sid).reason == "cancelled"


def test_what_is_cancelled_as_its_process_is_killed_is_run_by_no_other(
    store: raxlog.Store, group: raxlog.Group
) -> None:
    first, second = store.stream("jobs").extend([{"n": 1}, {"n": 2}])
    with Pool(store.path, "long") as pool:
        process = pool.start()
        until(lambda: sorted(pool.lines()) == ["begun 1", "begun 2"])
        assert group.cancel(first) == 1
        process.kill()
        seen: list[raxlog.StreamID] = []
        with running(group.worker(lambda entry: seen.append(entry.id), lease=0.5)):
            until(lambda: group.pending().total == 0 and seen)
            time.sleep(0.6)
    assert seen == [second]
    assert origins(group) == [first]


def storm(store: raxlog.Store, group: raxlog.Group, kind: str = "storm") -> None:
    """Four processes, cancellations all the time, a kill every 0.3 s: each entry is done or cancelled, and once."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    ids = store.stream("jobs").extend([{"n": n} for n in range(4_000)])
    other = store.stream("jobs").create_group("other")
    cancelled: list[raxlog.StreamID] = []
    cancelled += [sid for sid in chance.sample(ids, 400) if group.cancel(sid, "before")]
    with Pool(store.path, kind) as pool:
        alive = [pool.start() for _ in range(4)]
        deadline, kill = time.monotonic() + 120, time.monotonic() + 0.3
        while group.lag or group.pending().total:
            assert time.monotonic() < deadline
            near = [entry.id for entry in group.pending_entries("-", count=20)] or [chance.choice(ids)]
            cancelled += [sid for sid in (chance.choice(near), chance.choice(ids)) if group.cancel(sid, "amid")]
            time.sleep(chance.random() * 0.01)
            if time.monotonic() > kill:
                victim = chance.randrange(4)
                alive[victim].kill()
                alive[victim], kill = pool.start(), time.monotonic() + 0.3
        lines = Counter(pool.lines())
    twice = len(cancelled) - len(set(cancelled))
    run = {ids.index(sid) for sid in cancelled[:400]} & {n for n in range(4_000) if lines[f"begun {n}"]}
    assert (twice, run) == (0, set()), "entries were cancelled twice, or run though cancelled"
    assert len(cancelled) > 450
    assert Counter(origins(group)) == Counter(cancelled)
    assert len(group.dead_letters) == len(cancelled)
    statuses = Counter(group.job(sid).status for sid in ids)
    assert statuses == {"dead": len(cancelled), "done": 4_000 - len(cancelled)}
    done = {n for n in range(4_000) if lines[f"done {n}"]}
    assert done >= {n for n in range(4_000) if ids[n] not in set(cancelled)}
    assert len(other.read("w")) == 4_000
    assert raxlog.check(store.path).ok


@pytest.mark.storm
def test_of_what_four_workers_run_each_entry_ends_once_acknowledged_or_cancelled(
    store: raxlog.Store, group: raxlog.Group
) -> None:
    storm(store, group)


@pytest.mark.storm
def test_the_storm_catches_reads_that_ask_for_no_mark(store: raxlog.Store, group: raxlog.Group) -> None:
    with pytest.raises(AssertionError, match="cancelled twice, or run though"):
        storm(store, group, "storm, no marks")


# -- against a model --------------------------------------------------------------------------


class AgainstAModel(RuleBasedStateMachine):
    """A group, its other entries' ends among the rules, against dicts in memory; a second group sees all."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp()
        self.store = raxlog.open(os.path.join(self.folder, "s.rax"), durability="relaxed")
        self.stream = self.store.stream("jobs")
        self.group = self.stream.create_group("mail")
        self.ids: list[raxlog.StreamID] = []
        self.live: set[raxlog.StreamID] = set()
        self.last = raxlog.StreamID("0-0")
        self.pending: set[raxlog.StreamID] = set()
        self.cancelled: set[raxlog.StreamID] = set()  # in this group
        self.letters: Counter[raxlog.StreamID] = Counter()

    def behind(self) -> list[raxlog.StreamID]:
        return [sid for sid in self.ids if sid > self.last and sid in self.live and sid not in self.cancelled]

    def chosen(self, data: st.DataObject) -> list[raxlog.StreamID]:
        return data.draw(st.lists(st.sampled_from(self.ids), max_size=5)) if self.ids else []

    @rule(count=st.integers(1, 5))
    def append(self, count: int) -> None:
        new = self.stream.extend([{"n": n} for n in range(count)])
        self.ids += new
        self.live |= {*new}

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        wanted = {*self.chosen(data)}
        given_up = {sid for sid in wanted & self.live if sid in self.pending
                    or (sid > self.last and sid not in self.cancelled)}
        assert self.group.cancel(wanted, "model") == len(given_up)
        self.pending -= given_up
        self.cancelled |= given_up
        self.letters.update(given_up)

    @rule(count=st.integers(1, 4), noack=st.booleans(), consumer=st.sampled_from("ab"))
    def read(self, count: int, noack: bool, consumer: str) -> None:
        wanted = self.behind()[:count]
        assert [entry.id for entry in self.group.read(consumer, count, noack=noack)] == wanted
        passed = [sid for sid in self.ids if sid in self.live and sid > self.last]
        if len(wanted) < count:
            self.last = max([self.last, *passed])
        else:
            self.last = wanted[-1]
        self.pending |= set() if noack else {*wanted}

    @rule(consumer=st.sampled_from("ab"))
    def claim(self, consumer: str) -> None:
        wanted = (self.pending & self.live) | {*self.behind()}
        assert {entry.id for entry in self.group.read(consumer, claim_idle=0.0)} == wanted
        self.last = max([self.last, *(sid for sid in self.ids if sid in self.live)])
        self.pending = wanted

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        wanted = {*self.chosen(data)}
        assert self.group.ack(wanted) == len(wanted & self.pending)
        self.pending -= wanted

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        wanted = {*self.chosen(data)}
        assert self.group.nack(wanted) == len(wanted & self.pending)

    @rule(data=st.data())
    def keep_results(self, data: st.DataObject) -> None:
        self.group.keep_results({sid: raxlog.Result("kept") for sid in self.chosen(data)}, 60)

    @rule(data=st.data())
    def force(self, data: st.DataObject) -> None:
        wanted = {*self.chosen(data)}
        self.group.claim("a", wanted, force=True)
        self.pending = (self.pending - (wanted - self.live)) | (wanted & self.live)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        wanted = {*self.chosen(data)}
        self.stream.delete(wanted)
        self.live -= wanted

    @rule(data=st.data())
    def go_to(self, data: st.DataObject) -> None:
        if self.ids:
            self.last = data.draw(st.sampled_from(self.ids))
            self.group.set_id(self.last)

    @rule()
    def make_anew(self) -> None:
        self.group.destroy()
        self.group = self.stream.create_group("mail")
        self.last, self.pending, self.cancelled = raxlog.StreamID("0-0"), set(), set()

    @invariant()
    def is_the_same(self) -> None:
        assert self.group.lag == len(self.behind())
        assert {row.id for row in self.group.pending_entries()} == self.pending
        assert Counter(origins(self.group)) == self.letters

    def teardown(self) -> None:
        assert {entry.id for entry in self.stream.create_group("other").read("w")} == self.live
        assert raxlog.check(self.store.path).ok
        self.store.close()
        shutil.rmtree(self.folder)


TestAgainstAModel = AgainstAModel.TestCase
TestAgainstAModel.settings = settings(max_examples=examples(40), stateful_step_count=30)
