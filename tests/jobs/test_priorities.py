"""One worker over several groups: strict order, none starves, and each entry is its own group's."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import forkserver
import pytest
import raxlog
import raxlog.aio
from counting import commits_of
from hypothesis import given
from hypothesis import strategies as st
from raxlog.stream.jobs.worker import in_turn
from working import SOON, number, running, until

NAMES = ("urgent", "normal", "low")


@pytest.fixture
def groups(store: raxlog.Store) -> list[raxlog.Group]:
    """Three, with names that differ and one that does not."""
    return [store.stream(name).create_group("senders") for name in NAMES]


def noting(groups: list[raxlog.Group], seen: list[tuple[str, int]]) -> dict[raxlog.Group, Callable[..., object]]:
    """A handler for each group that notes whose entry it was given."""
    return {group: lambda entry, name=str(group.stream): seen.append((name, number(entry))) for group in groups}


def fill(store: raxlog.Store, many: int) -> None:
    for name in NAMES:
        store.stream(name).extend([{"n": n} for n in range(many)])


def are_empty(groups: list[raxlog.Group]) -> bool:
    return not any(group.lag or group.pending().total for group in groups)


def test_the_first_group_that_has_an_entry_is_read_first(store: raxlog.Store, groups: list[raxlog.Group]) -> None:
    fill(store, 300)
    seen: list[tuple[str, int]] = []
    raxlog.worker(noting(groups, seen), back_every=1_000_000).run(burst=True)
    assert seen == [(name, n) for name in NAMES for n in range(300)]
    assert are_empty(groups)

    def handle(entry: raxlog.Entry) -> None:
        seen.append(("normal", number(entry)))
        if number(entry) == 1:
            store.stream("urgent").append({"n": 7})

    seen.clear()
    store.stream("low").append({"n": 2})
    store.stream("normal").append({"n": 1})
    raxlog.worker(noting(groups, seen) | {groups[1]: handle}, back_every=1_000_000).run(burst=True)
    assert seen == [("normal", 1), ("urgent", 7), ("low", 2)]


@given(groups=st.integers(2, 6), every=st.integers(2, 7), first=st.integers(1, 1000))
def test_of_so_many_reads_one_begins_at_each_group(groups: int, every: int, first: int) -> None:
    turns = [in_turn(groups, first + n, every) for n in range(every * (groups - 1))]
    assert all(sorted(turn) == list(range(groups)) for turn in turns)
    begun = Counter(turn[0] for turn in turns)
    assert begun == {0: (every - 1) * (groups - 1)} | dict.fromkeys(range(1, groups), 1)
    assert all(turn == list(range(groups)) for turn in turns if turn[0] == 0)


def test_none_starves_behind_groups_that_are_always_full(store: raxlog.Store, groups: list[raxlog.Group]) -> None:
    seen: list[str] = []

    def refill(entry: raxlog.Entry) -> None:
        [name] = entry.fields.values()
        seen.append(name)
        if name != "normal":
            store.stream(name).append({"name": name})

    for name, many in (("urgent", 300), ("low", 300), ("normal", 50)):
        store.stream(name).extend([{"name": name}] * many)
    with running(raxlog.worker(dict.fromkeys(groups, refill))):
        until(lambda: seen.count("normal") == 50, 30)
        assert all(group.lag + group.pending().total >= 300 for group in (groups[0], groups[2]))
    counts = Counter(seen)
    assert counts["urgent"] > 3 * counts["low"] > 0


def test_without_a_read_from_the_back_it_does(store: raxlog.Store, groups: list[raxlog.Group]) -> None:
    seen: list[str] = []

    def refill(entry: raxlog.Entry) -> None:
        seen.append("urgent")
        store.stream("urgent").append({"n": 1})

    fill(store, 200)
    with running(raxlog.worker({groups[0]: refill, groups[1]: lambda _: seen.append("normal")}, back_every=1 << 40)):
        until(lambda: len(seen) > 2_000)
        assert "normal" not in seen


def test_a_worker_that_waits_wakes_for_each_group_at_once_and_does_not_poll(
    store: raxlog.Store, groups: list[raxlog.Group]
) -> None:
    seen: list[float] = []
    with running(raxlog.worker(dict.fromkeys(groups, lambda _: seen.append(time.monotonic())), threads=3)):
        time.sleep(0.5)
        before, used = commits_of(store), time.process_time()
        time.sleep(1.5)
        assert time.process_time() - used < 0.15
        assert commits_of(store) == before
        latencies = []
        for name in (*NAMES, *reversed(NAMES)) * 5:
            asked = time.monotonic()
            store.stream(name).append({"n": 1})
            until(lambda: seen)
            latencies.append(seen.pop() - asked)
            time.sleep(0.02)
        assert sorted(latencies)[15] < 0.02
        store.stream("low").defer({"n": 2}, delay=0.3)
        asked = time.monotonic()
        until(lambda: seen)
        assert 0.29 < seen.pop() - asked < 2


def test_what_is_done_is_acknowledged_in_the_commit_of_the_next_read_whichever_group_that_is_of(
    store: raxlog.Store, groups: list[raxlog.Group]
) -> None:
    handed = []

    def pass_on(entry: raxlog.Entry) -> None:
        handed.append(commits_of(store))
        other = "low" if entry.fields["at"] == "urgent" else "urgent"
        if int(entry.fields["n"]):
            store.stream(other).append({"at": other, "n": int(entry.fields["n"]) - 1})

    store.stream("urgent").append({"at": "urgent", "n": 50})
    raxlog.worker(dict.fromkeys(groups, pass_on)).run(burst=True)
    assert len(handed) == 51
    assert [after - before for before, after in pairwise(handed[2:])] == [2] * 48  # an append, and ack with read
    assert are_empty(groups)


def test_equal_ids_in_several_groups_are_not_mixed_up(store: raxlog.Store, groups: list[raxlog.Group]) -> None:
    """Retries, dead letters, results, what is given back, and what another worker has taken over."""
    for name in NAMES:
        store.stream(name).extend([{"n": n} for n in range(40)], ids=[1000 + n for n in range(40)])
    tries: Counter[tuple[str, int]] = Counter()
    gate = threading.Event()

    def handler(name: str) -> Callable[[raxlog.Entry], str]:
        def handle(entry: raxlog.Entry) -> str:
            n = number(entry)
            tries[name, n] += 1
            if name == "urgent" and n % 10 == 3:
                raise ValueError(n)
            if name == "normal" and n % 10 == 3 and tries[name, n] == 1:
                raise raxlog.Retry(0.05)
            if name == "low" and n == 3:
                raise raxlog.Discard("no")
            if n == 20:
                gate.wait(0.4)  # what is done before is acknowledged by the beat
            return f"{name} {n}"

        return handle

    worker = raxlog.worker({group: handler(str(group.stream)) for group in groups}, threads=2, max_deliveries=2,
                           retry=0.02, result_ttl=60, back_every=3)
    with running(worker):
        until(lambda: are_empty(groups))
    assert worker.counts == raxlog.Counts(done=36 + 40 + 39, failed=8 + 4 + 1, dead=5)
    for group, dead in zip(groups, ({3, 13, 23, 33}, set(), {3}), strict=True):
        assert {number(letter.entry) for letter in group.dead_letters} == dead
        assert {n: group.wait_result(1000 + n).value for n in range(40) if n not in dead} == {
            n: f"{group.stream} {n}" for n in range(40) if n not in dead}
        assert group.consumers() == []  # each group forgets those of the worker
    assert raxlog.check(store.path).ok


def test_groups_of_one_stream_each_get_its_entries(store: raxlog.Store) -> None:
    stream = store.stream("jobs")
    first, second = stream.create_group("a"), stream.create_group("b")
    stream.extend([{"n": n} for n in range(500)])
    seen: list[tuple[str, int]] = []
    raxlog.worker({first: lambda entry: seen.append(("a", number(entry))),
                   second: lambda entry: seen.append(("b", number(entry)))}, threads=3).run(burst=True)
    assert Counter(seen) == Counter([(name, n) for name in "ab" for n in range(500)])
    assert are_empty([first, second])


def test_a_time_limit_and_a_cancellation_are_of_the_group_whose_entry_runs(
    store: raxlog.Store, groups: list[raxlog.Group]
) -> None:
    begun = threading.Semaphore(0)

    def hang(entry: raxlog.Entry) -> None:
        begun.release()
        until(lambda: False)

    for name in NAMES:
        store.stream(name).append({"n": 1}, id="1000-0")
    with running(raxlog.worker(dict.fromkeys(groups, hang), threads=3, timeout=2.0, max_deliveries=1)) as worker:
        for _ in NAMES:
            assert begun.acquire(timeout=SOON)
        assert groups[1].cancel("1000-0", "enough") == 1
        until(lambda: worker.counts.cancelled == 1, 1)
        until(lambda: worker.counts == raxlog.Counts(failed=2, dead=2, cancelled=1))
    assert [[letter.reason for letter in group.dead_letters] for group in groups] == [
        ["failed"], ["cancelled"], ["failed"]]


def test_transactions_are_of_the_group_whose_entry_runs(store: raxlog.Store, groups: list[raxlog.Group]) -> None:
    fill(store, 30)

    def handle(entry: raxlog.Entry, tx: raxlog.Transaction) -> None:
        tx.stream("effects").append({"n": number(entry)})

    worker = raxlog.worker(dict.fromkeys(groups, handle), transaction=True, threads=2)
    worker.run(burst=True)
    assert Counter(number(entry) for entry in store.stream("effects")) == dict.fromkeys(range(30), 3)
    assert are_empty(groups)
    assert worker.counts == raxlog.Counts(done=90)


def test_draining_waits_for_what_falls_due_in_any_group(store: raxlog.Store, groups: list[raxlog.Group]) -> None:
    seen: list[tuple[str, int]] = []
    store.stream("normal").defer({"n": 1}, delay=0.2)
    store.stream("low").defer({"n": 2}, delay=0.1)
    counts = raxlog.worker(noting(groups, seen)).drain()
    assert (counts, seen) == (raxlog.Counts(done=2), [("low", 2), ("normal", 1)])


def test_a_paused_group_is_left_out_and_one_destroyed_ends_the_worker(
    store: raxlog.Store, groups: list[raxlog.Group]
) -> None:
    seen: list[tuple[str, int]] = []
    fill(store, 5)
    groups[0].pause()
    with running(raxlog.worker(noting(groups, seen))):
        until(lambda: len(seen) == 10)
        groups[0].resume()
        until(lambda: len(seen) == 15)
    assert [name for name, _ in groupby(seen, lambda one: one[0])][-1] == "urgent"
    threading.Timer(0.1, groups[2].destroy).start()
    with pytest.raises(raxlog.NoGroup):
        raxlog.worker(noting(groups, seen)).run()
    assert raxlog.worker(noting(groups[:2], seen)).name != b""


def test_what_makes_no_sense_is_refused(store: raxlog.Store, groups: list[raxlog.Group], tmp_path: Path) -> None:
    async def later(entry: raxlog.Entry) -> None: ...

    for wrong in ({}, None, print, [(groups[0], print)], {"urgent": print}):
        with pytest.raises(raxlog.InvalidArgument, match="mapping"):
            raxlog.worker(wrong)  # type: ignore[call-overload]
    for handler in (None, "print", later, lambda: None):
        with pytest.raises(raxlog.InvalidArgument, match="handler"):
            raxlog.worker({groups[0]: print, groups[1]: handler})  # type: ignore[dict-item]
    for options in ({"back_every": 1}, {"back_every": 0}, {"back_every": None}, {"threads": 0}, {"lease": 0.01},
                    {"processes": -1}, {"dead_letters": "urgent"}):
        with pytest.raises(raxlog.InvalidArgument):
            raxlog.worker({groups[0]: print, groups[1]: print}, **options)  # type: ignore[call-overload]
    with pytest.raises(raxlog.InvalidArgument, match="twice"):
        raxlog.worker({groups[0]: print, store.stream("urgent").group("senders"): print})
    with raxlog.open(tmp_path / "other.rax") as other, pytest.raises(raxlog.InvalidArgument, match="not of one store"):
        raxlog.worker({groups[0]: print, other.stream("jobs").create_group("a"): print})
    with store.transaction() as tx, pytest.raises(raxlog.TransactionError):
        raxlog.worker({tx.group("urgent", "senders"): print})

    async def program() -> None:
        async with raxlog.aio.open(store.path) as opened:
            group = opened.stream("urgent").group("senders")
            with pytest.raises(raxlog.InvalidArgument, match=r"raxlog\.aio\.worker"):
                raxlog.worker({group: print})  # type: ignore[call-overload]
            with pytest.raises(raxlog.InvalidArgument, match="mapping"):
                raxlog.aio.worker({groups[0]: print})
            with pytest.raises(raxlog.InvalidArgument, match="forks"):
                raxlog.aio.worker({group: print}, processes=2)

    asyncio.run(program())


def test_tasks_have_such_a_worker_too(path: Path) -> None:
    async def program() -> None:
        async with raxlog.aio.open(path) as store:
            groups = [await store.stream(name).create_group("senders") for name in NAMES]
            for name in NAMES:
                await store.stream(name).extend([{"n": n} for n in range(50)])
            seen: list[tuple[str, int]] = []

            def handler(name: str) -> Callable[..., Any]:
                async def handle(entry: raxlog.Entry) -> None:
                    await asyncio.sleep(0)
                    seen.append((name, number(entry)))

                return handle

            handlers: dict[Any, Any] = {group: handler(name) for group, name in zip(groups, NAMES, strict=True)}
            handlers[groups[1]] = lambda entry: seen.append(("normal", number(entry)))  # a plain one
            worker = raxlog.aio.worker(handlers, back_every=1000, threads=1)
            await worker.run(burst=True)
            assert seen == [(name, n) for name in NAMES for n in range(50)]
            assert worker.counts == raxlog.Counts(done=150)

    asyncio.run(program())


# -- processes --------------------------------------------------------------------------------

PROGRAM = """
import os, sys, time
import raxlog
out = os.open(sys.argv[1] + ".log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
def handler(name):
    def handle(entry):
        time.sleep(0.0005)
        os.write(out, f"{name} {entry.fields['n']}\\n".encode())
    return handle
with raxlog.open(sys.argv[1]) as store:
    raxlog.worker({store.stream(name).group("senders"): handler(name) for name in ("urgent", "normal", "low")},
                  lease=0.5, threads=2).run()
"""


@pytest.mark.storm
def test_four_workers_that_are_killed_run_every_entry_of_every_group(
    store: raxlog.Store, groups: list[raxlog.Group]
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    fill(store, 1_500)
    command = [sys.executable, "-c", PROGRAM, str(store.path)]
    alive = [forkserver.Popen(command) for _ in range(4)]
    try:
        deadline = time.monotonic() + 120
        while not are_empty(groups):
            assert time.monotonic() < deadline
            time.sleep(0.25)
            victim = chance.randrange(4)
            alive[victim].kill()
            alive[victim].wait()
            alive[victim] = forkserver.Popen(command)
    finally:
        for process in alive:
            process.kill()
            process.wait()
    lines = Counter(Path(f"{store.path}.log").read_text().splitlines())
    assert set(lines) == {f"{name} {n}" for name in NAMES for n in range(1_500)}
    assert not any(len(group.dead_letters) for group in groups)
    assert raxlog.check(store.path).ok


def test_processes_serve_all_groups_and_are_begun_anew(store: raxlog.Store, groups: list[raxlog.Group]) -> None:
    fill(store, 200)

    def handle(entry: raxlog.Entry, tx: raxlog.Transaction) -> None:
        tx.stream("effects").append({"n": number(entry)})

    worker = raxlog.worker(dict.fromkeys(groups, handle), processes=2, transaction=True, lease=0.5)
    with running(worker):
        until(lambda: len(worker.pids) == 2)
        os.kill(worker.pids[0], signal.SIGKILL)
        until(lambda: are_empty(groups), 30)
    assert Counter(number(entry) for entry in store.stream("effects")) == dict.fromkeys(range(200), 3)
