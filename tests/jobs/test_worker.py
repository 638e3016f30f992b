"""Workers: every entry is run at least once or is a dead letter, whatever handlers do and whichever process dies."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forkserver
import pytest
import raxlog
from moments import moment
from raxlog import Backoff, Discard, Retry, Snooze, TimeLimit
from raxlog.stream.jobs.worker import Worker
from working import SOON, number, running, until


@pytest.fixture
def group(store: raxlog.Store) -> raxlog.Group:
    return store.stream("jobs").create_group("mail", start="0", create_stream=True)


def is_empty(group: raxlog.Group) -> bool:
    return group.lag == 0 and group.pending().total == 0


def test_entries_are_run_once_and_acknowledged_in_any_number_of_threads(
    store: raxlog.Store, group: raxlog.Group
) -> None:
    store.stream("jobs").extend([{"n": n} for n in range(3_000)])
    seen: list[int] = []
    with running(group.worker(lambda entry: seen.append(number(entry)), threads=3)) as worker:
        until(lambda: len(seen) == 3_000)
        store.stream("jobs").append({"n": 3_000})
        until(lambda: len(seen) == 3_001)
    assert sorted(seen) == list(range(3_001))
    assert worker.counts == raxlog.Counts(done=3_001)
    assert is_empty(group)


def test_what_fails_comes_again_and_at_last_is_a_dead_letter(store: raxlog.Store, group: raxlog.Group) -> None:
    store.stream("jobs").extend([{"n": n, "text": "\udcff" if n < 0 else "ü"} for n in range(100)])
    tries: Counter[int] = Counter()

    def handle(entry: raxlog.Entry) -> None:
        n = number(entry)
        tries[n] += 1
        assert entry.deliveries == tries[n]
        if n % 10 == 7 or (n % 10 == 3 and tries[n] == 1):
            raise ValueError(f"no {n}")

    with running(group.worker(handle, max_deliveries=3, retry=[0.01, 0.02])) as worker:
        until(lambda: is_empty(group))
    assert worker.counts == raxlog.Counts(done=90, failed=10 + 30, dead=10)
    assert tries == {n: 3 if n % 10 == 7 else 2 if n % 10 == 3 else 1 for n in range(100)}
    letters = list(group.dead_letters)
    assert [number(letter.entry) for letter in letters] == list(range(7, 100, 10))
    assert len(group.dead_letters) == 10
    first = letters[0]
    assert (first.reason, first.error, first.deliveries) == ("failed", "ValueError: no 7", 3)
    assert "in handle" in first.traceback
    assert first.entry == store.stream("jobs").get(first.origin)
    assert store.stream("jobs.mail.dead").get(first.id).fields["n"] == "7"

    group.dead_letters.replay(first.id)
    assert group.dead_letters.replay(where=lambda letter: number(letter.entry) == 17) == 1
    assert group.dead_letters.purge(where=lambda letter: number(letter.entry) == 27) == 1
    assert group.dead_letters.replay(first.id) == 0
    assert [number(letter.entry) for letter in group.dead_letters] == [37, 47, 57, 67, 77, 87, 97]
    assert [number(entry) for entry in group.read("w")] == [7, 17]
    assert group.dead_letters.purge() == 7
    assert raxlog.check(store.path).ok


def test_a_handler_may_ask_for_another_try_for_later_or_for_none(store: raxlog.Store, group: raxlog.Group) -> None:
    store.stream("jobs").extend([{"n": n} for n in range(4)])
    times: dict[int, list[float]] = {n: [] for n in range(4)}

    def handle(entry: raxlog.Entry) -> None:
        times[number(entry)].append(time.monotonic())
        again = len(times[number(entry)]) == 1
        if number(entry) == 0 and again:
            raise Retry(after=0.15)
        if number(entry) == 1 and again:
            raise Snooze(0.15)
        if number(entry) == 2:
            raise Discard("hopeless")
        if number(entry) == 3 and again:
            sys.exit("a handler that ends")

    with running(group.worker(handle, retry=lambda deliveries: 0.01 * deliveries)) as worker:
        until(lambda: is_empty(group))
    assert worker.counts == raxlog.Counts(done=3, failed=3, snoozed=1, dead=1)
    for n in (0, 1):
        assert 0.14 < times[n][1] - times[n][0] < 2
    assert [(letter.reason, letter.error) for letter in group.dead_letters] == [("discarded", "Discard: hopeless")]


@pytest.mark.parametrize("beats", [True, False])
def test_a_long_job_is_not_run_twice_while_its_worker_lives(
    store: raxlog.Store, group: raxlog.Group, beats: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And without a heartbeat it is: so the test can fail."""
    if not beats:
        monkeypatch.setattr(raxlog.Worker, "_look_after", lambda *_: None)
    runs: Counter[int] = Counter()

    def handle(entry: raxlog.Entry) -> None:
        runs[number(entry)] += 1
        time.sleep(1.2 if number(entry) == 0 and runs[0] < 3 else 0.0)

    with running(group.worker(handle, lease=0.4)), running(group.worker(handle, lease=0.4)):
        store.stream("jobs").extend([{"n": n} for n in range(200)])
        until(lambda: sum(runs.values()) >= 200 and is_empty(group))
    assert (runs == dict.fromkeys(range(200), 1)) is beats


def test_a_slow_job_does_not_hold_up_those_behind_it(store: raxlog.Store, group: raxlog.Group) -> None:
    ended = threading.Event()
    seen: list[int] = []

    def handle(entry: raxlog.Entry) -> None:
        if number(entry) == 400:
            ended.wait(SOON)
        seen.append(number(entry))

    store.stream("jobs").extend([{"n": n} for n in range(800)])
    with running(group.worker(handle)), running(group.worker(handle)):
        until(lambda: len(seen) == 799, 3)
        ended.set()
        until(lambda: is_empty(group))
    assert sorted(seen) == list(range(800))


@pytest.mark.parametrize("hangs", [False, True])
def test_a_handler_that_takes_too_long_has_failed(store: raxlog.Store, group: raxlog.Group, hangs: bool) -> None:
    raised = []

    def handle(entry: raxlog.Entry) -> None:
        try:
            if number(entry) == 0:
                until(lambda: False) if not hangs else time.sleep(4)
        except TimeLimit:
            raised.append(number(entry))
            raise

    store.stream("jobs").extend([{"n": n} for n in range(5)])
    with running(group.worker(handle, max_deliveries=2, retry=0, timeout=0.1, drain=0)) as worker:
        until(lambda: is_empty(group))
    assert (worker.counts.done, worker.counts.dead) == (4, 1)
    letter = next(iter(group.dead_letters))
    assert (letter.reason, letter.deliveries) == ("failed", 2)
    assert letter.error.startswith("TimeLimit")
    assert raised == ([] if hangs else [0, 0])


def test_a_worker_of_one_thread_goes_on_however_long_the_start_of_its_next_thread_takes(
    store: raxlog.Store, group: raxlog.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Worker._start

    def start_slowly(worker: Worker, lane: Any) -> None:
        time.sleep(0.5)  # a busy machine; run() looks for its threads every 0.2 s
        start(worker, lane)

    monkeypatch.setattr(Worker, "_start", start_slowly)
    store.stream("jobs").extend([{"n": n} for n in range(5)])
    with running(group.worker(lambda entry: number(entry) or time.sleep(4), max_deliveries=1, timeout=0.1, drain=0)):
        until(lambda: is_empty(group))
    assert len(list(group.dead_letters)) == 1


def test_stopping_lets_handlers_end_and_gives_back_what_does_not(store: raxlog.Store, group: raxlog.Group) -> None:
    ended = threading.Event()
    begun = threading.Semaphore(0)

    def handle(entry: raxlog.Entry) -> None:
        begun.release()
        if number(entry) == 0:
            ended.wait(SOON)
        else:
            time.sleep(0.2)

    store.stream("jobs").extend([{"n": n} for n in range(2)])
    worker = group.worker(handle, threads=2, drain=0.5)
    with running(worker):
        for _ in range(2):
            assert begun.acquire(timeout=SOON)
    assert worker.counts.done == 1
    assert [pending.deliveries for pending in group.pending_entries("-")] == [0]
    assert [number(entry) for entry in group.read("other", claim_idle=60)] == [0]  # at once
    ended.set()
    until(lambda: worker.counts.lost == 1)
    assert group.pending().total == 1


def test_a_group_that_is_destroyed_ends_the_worker_with_its_error(store: raxlog.Store, group: raxlog.Group) -> None:
    threading.Timer(0.1, group.destroy).start()
    with pytest.raises(raxlog.NoGroup):
        group.worker(print).run()


def test_a_child_that_the_handler_forks_is_not_a_worker(store: raxlog.Store, group: raxlog.Group) -> None:
    store.stream("jobs").extend([{"n": n} for n in range(3)])
    children = []

    def handle(entry: raxlog.Entry) -> None:
        child = os.fork()
        if child:
            children.append(child)

    with running(group.worker(handle)) as worker:
        until(lambda: is_empty(group))
    assert worker.counts == raxlog.Counts(done=3)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]


def test_no_thread_of_a_worker_is_the_consumer_of_another_worker(store: raxlog.Store, group: raxlog.Group) -> None:
    of = {}
    for name, threads in (("w", 1), ("w", 2), ("w-0", 1), ("w-0", 2), ("w/0", 1), ("w/0", 2), ("w/0/1", 1), ("w/", 1)):
        store.stream("jobs").extend([{"n": n} for n in range(20)])
        for consumer in group.consumers():
            group.delete_consumer(consumer.name)
        group.worker(lambda _: time.sleep(0.005), name=name, threads=threads).run(burst=True)
        of[name, threads] = {consumer.name for consumer in group.consumers()}
    assert of["w", 1] == {"w"}
    for worker, consumers in of.items():
        for other, names in of.items():
            assert worker[0] == other[0] or not consumers & names, (worker, other)
    store.stream("jobs").append({"n": 0})
    with pytest.raises(raxlog.InvalidName):
        group.worker(print, name="w" * 65_536, threads=2)


def test_what_makes_no_sense_is_refused(store: raxlog.Store, group: raxlog.Group) -> None:
    async def handler(entry: raxlog.Entry) -> None: ...

    for wrong in (handler, None, "print"):
        with pytest.raises(raxlog.InvalidArgument, match="handler"):
            group.worker(wrong)  # type: ignore[arg-type]
    for options in ({"threads": 0}, {"lease": 0.01}, {"lease": float("nan")}, {"max_deliveries": 0}, {"timeout": 0},
                    {"retry": "1"}, {"retry": []}, {"retry": [-1]}, {"drain": -1}, {"dead_letters": "jobs"}):
        with pytest.raises(raxlog.InvalidArgument):
            group.worker(print, **options)  # type: ignore[arg-type]
    for arguments in ({"first": -1}, {"factor": 0.5}, {"cap": float("nan")}, {"jitter": "1"}):
        with pytest.raises(raxlog.InvalidArgument):
            Backoff(**arguments)  # type: ignore[arg-type]
    with store.transaction() as tx, pytest.raises(raxlog.TransactionError):
        tx.group("jobs", "mail").worker(print)


@pytest.mark.parametrize("options", [{}, {"threads": 3}, {"processes": 2}])
def test_a_burst_ends_when_nothing_is_left(store: raxlog.Store, group: raxlog.Group, options: dict[str, int]) -> None:
    store.stream("jobs").extend([{"n": n} for n in range(500)])
    worker = group.worker(lambda entry: time.sleep(0.0001), **options)
    worker.run(burst=True)
    assert is_empty(group)
    worker.run(burst=True)  # with nothing to do
    store.stream("jobs").extend([{"n": n} for n in range(50)])
    worker.run(burst=True)
    assert is_empty(group)


def test_a_worker_that_was_stopped_stays_so(store: raxlog.Store, group: raxlog.Group) -> None:
    store.stream("jobs").append({"n": 1})
    worker = group.worker(lambda entry: worker.stop())
    worker.run(burst=True)
    store.stream("jobs").append({"n": 2})
    worker.run(burst=True)
    assert worker.counts == raxlog.Counts(done=1)


def test_delays_grow_up_to_their_cap() -> None:
    backoff = Backoff(first=0.5, factor=3, cap=10, jitter=0)
    assert [backoff(n) for n in (1, 2, 3, 4, 9_999)] == [0.5, 1.5, 4.5, 10, 10]
    assert all(1 <= Backoff(jitter=0.5)(1) <= 1.5 for _ in range(100))


# -- processes --------------------------------------------------------------------------------

PROGRAM = """
import os, sys, time
import raxlog
from raxlog.stream.group.group import Group
from raxlog.stream.jobs.worker import Worker
path, kind = sys.argv[1:3]
def handle(entry):
    n = int(entry.fields["n"])
    if kind == "poison" and n == 0:
        os._exit(9)
    if kind == "long":
        log(f"begun {n}")
        time.sleep(60)
    if kind.startswith("stall"):
        log(f"begun {n}")
        time.sleep(0.2)
    if kind.startswith("storm"):
        time.sleep(0.0005)
        if n % 200 == 7 or (n % 50 == 3 and entry.deliveries == 1):
            raise ValueError(n)
    if kind != "storm in transactions":
        log(n)
def handle_in(entry, tx):
    handle(entry)
    tx.stream("effects").append({"n": int(entry.fields["n"])})
def log(text):
    os.write(out, f"{text}\\n".encode())
out = os.open(path + ".log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
with raxlog.open(path) as store:
    group = store.stream("jobs").group("mail")
    in_tx = kind == "storm in transactions"
    fault = kind.partition(", ")[2]
    if fault == "no heartbeat":
        Worker._look_after = lambda *_: None
    if fault == "ack without its owner":
        Worker._look_after = lambda *_: None
        read = Group.read
        Group.read = lambda self, *args, **named: read(self, *args, **named | {"ack_owned": False})
    if fault == "ack before the handler":
        read = Group.read
        Group.read = lambda self, *args, **named: read(self, *args, **named, noack=True)
    worker = group.worker(handle_in if in_tx else handle, lease=0.5, max_deliveries=4, retry=0.02, transaction=in_tx)
    print("ready", flush=True)
    worker.run()
"""


class Pool:
    """Worker processes over one store, killed at the end."""

    def __init__(self, path: Path, kind: str) -> None:
        self.command = [sys.executable, "-c", PROGRAM, str(path), kind]
        self.log = Path(f"{path}.log")
        self.processes: list[subprocess.Popen[str]] = []

    def start(self) -> subprocess.Popen[str]:
        process = forkserver.Popen(self.command, text=True, stdout=subprocess.PIPE)
        assert process.stdout is not None
        self.processes.append(process)
        return process

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


def test_a_job_is_run_elsewhere_soon_after_its_process_was_killed(store: raxlog.Store, group: raxlog.Group) -> None:
    store.stream("jobs").append({"n": 1})
    with Pool(store.path, "long") as pool:
        first = pool.start()
        until(lambda: pool.lines() == ["begun 1"])
        seen: list[float] = []
        with running(group.worker(lambda entry: seen.append(time.monotonic()), lease=0.5)):
            time.sleep(0.8)
            assert seen == []
            first.kill()
            killed = time.monotonic()
            until(lambda: seen)
            assert seen[0] - killed < 1.5


@pytest.mark.parametrize("fault", ["", ", ack without its owner"])
def test_a_worker_that_was_stopped_acknowledges_nothing_that_another_has_taken_over(
    store: raxlog.Store, group: raxlog.Group, fault: str
) -> None:
    """And with an acknowledgement that does not ask for its owner it does: so the test can fail."""
    store.stream("jobs").append({"n": 1})
    begun, ended = threading.Event(), threading.Event()

    def handle(entry: raxlog.Entry) -> None:
        begun.set()
        ended.wait(SOON)

    with Pool(store.path, f"stall{fault}") as pool:
        first = pool.start()
        until(lambda: pool.lines() == ["begun 1"])
        first.send_signal(signal.SIGSTOP)
        with running(group.worker(handle, name="other", lease=0.5)) as worker:
            assert begun.wait(SOON)
            first.send_signal(signal.SIGCONT)
            until(lambda: pool.lines() == ["begun 1", "1"])
            time.sleep(0.3)
            assert group.pending().total == (0 if fault else 1)
            ended.set()
            until(lambda: worker.counts == (raxlog.Counts(lost=1) if fault else raxlog.Counts(done=1)))
    assert is_empty(group)


def test_sigterm_ends_an_idle_worker_at_once(store: raxlog.Store, group: raxlog.Group) -> None:
    with Pool(store.path, "idle") as pool:
        process = pool.start()
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.2)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(SOON) == 0
        assert time.monotonic() - began < 1


def test_an_entry_that_ends_its_process_each_time_is_a_dead_letter(store: raxlog.Store, group: raxlog.Group) -> None:
    store.stream("jobs").extend([{"n": n} for n in range(20)])
    with Pool(store.path, "poison") as pool:
        pool.start()
        deadline = time.monotonic() + 30
        while not is_empty(group):
            assert time.monotonic() < deadline
            if pool.processes[-1].poll() is not None:
                pool.start()
            time.sleep(0.02)
        assert {*pool.lines()} == {str(n) for n in range(1, 20)}
    letter, = group.dead_letters
    assert (number(letter.entry), letter.reason, letter.deliveries) == (0, "exhausted", 5)


def storm(store: raxlog.Store, group: raxlog.Group, jobs: int, period: float, kind: str = "storm") -> Counter[int]:
    """Four processes, a kill each period: every job is done or a dead letter, none both, none lost."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for at in range(0, jobs, 1000):
        store.stream("jobs").extend([{"n": n} for n in range(at, min(jobs, at + 1000))])
    with Pool(store.path, kind) as pool:
        alive = [pool.start() for _ in range(4)]
        deadline = time.monotonic() + 300 + jobs / 200
        left = jobs
        while not is_empty(group):
            assert time.monotonic() < deadline
            time.sleep(period)
            info = group.info()
            if info.lag + info.pending == left:
                continue  # on a busy machine none has begun: killed so fast none ever would
            left = info.lag + info.pending
            victim = chance.randrange(4)
            alive[victim].kill()
            alive[victim] = pool.start()
        for process in alive:
            process.kill()
            process.wait()
        effects = store.stream("effects").range() if kind == "storm in transactions" else None
        done = Counter(map(int, pool.lines()) if effects is None else map(number, effects))
    dead = Counter(number(letter.entry) for letter in group.dead_letters)
    failing = {n for n in range(jobs) if n % 200 == 7}
    assert set(done) == set(range(jobs)) - failing, "a job is lost"
    assert dead == dict.fromkeys(failing, 1)
    print(f"{sum(done.values()) - len(done)} jobs were run again, {len(pool.processes)} processes")
    return done


@pytest.mark.storm
def test_jobs_survive_a_storm_of_kills(store: raxlog.Store, group: raxlog.Group) -> None:
    storm(store, group, 3_000, 0.2)


@pytest.mark.storm
def test_with_transactions_each_effect_of_a_storm_is_there_once(store: raxlog.Store, group: raxlog.Group) -> None:
    assert max(storm(store, group, 1_500, 0.2, "storm in transactions").values()) == 1


@pytest.mark.storm
def test_the_storm_catches_an_acknowledgement_before_the_handler(store: raxlog.Store, group: raxlog.Group) -> None:
    with pytest.raises(AssertionError, match="a job is lost"):
        storm(store, group, 3_000, 0.2, "storm, ack before the handler")


@pytest.mark.skipif(not os.environ.get("RAXLOG_LONG"), reason="RAXLOG_LONG=1: some minutes")
def test_jobs_survive_a_storm_of_kills_for_long(store: raxlog.Store, group: raxlog.Group) -> None:
    storm(store, group, 100_000, 0.2)


def test_processes_share_the_work_and_are_begun_anew_when_they_die(
    store: raxlog.Store, group: raxlog.Group, caplog: pytest.LogCaptureFixture
) -> None:
    effects = store.stream("effects")

    def handle(entry: raxlog.Entry, tx: raxlog.Transaction) -> None:
        tx.stream("effects").append({"n": number(entry), "pid": os.getpid()})

    worker = group.worker(handle, processes=3, transaction=True, lease=0.5)
    killed = []
    with running(worker):
        for n in range(300):
            store.stream("jobs").append({"n": n})
            if n in (100, 200):
                until(lambda: len(worker.pids) == 3)
                killed.append(worker.pids[0])
                os.kill(killed[-1], signal.SIGKILL)
        until(lambda: is_empty(group))
        until(lambda: len(last := worker.pids) == 3 and not set(killed) & set(last))  # the parent has seen the death
        last = worker.pids
    assert sorted(number(entry) for entry in effects.range()) == list(range(300))
    for pid in last:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert {one.getMessage() for one in caplog.records if one.levelname == "WARNING"} == {
        f"worker process {pid} ended with status -9" for pid in killed}  # those that were stopped are no news


def test_a_worker_is_one_class_and_counts_alike_with_threads_and_with_processes(
    store: raxlog.Store, group: raxlog.Group
) -> None:
    def handle(entry: raxlog.Entry) -> None:
        if number(entry) % 10 == 7:
            raise raxlog.Discard("a seven")
        if number(entry) == 3 and entry.deliveries == 1:
            time.sleep(0.5)  # the parent has been told of what was before
            os.kill(os.getpid(), signal.SIGKILL)

    worker = group.worker(handle, processes=2, lease=0.2, name="w")
    assert type(worker) is raxlog.Worker
    assert (worker.name, worker.pids, worker.counts) == (b"w", [], raxlog.Counts())
    assert group.worker(handle).pids == []
    for n in range(20):
        store.stream("jobs").append({"n": n})
    with running(worker):
        until(lambda: is_empty(group))
        until(lambda: {one.name.rpartition("-")[0] for one in group.consumers()} == {"w-p0", "w-p1"})
    assert worker.counts.dead == worker.counts.failed == 2
    assert 15 <= worker.counts.done <= 18  # the last ones of the killed child may be missing
    with pytest.raises(raxlog.InvalidArgument, match="processes"):
        worker.drain()
    group.worker(handle, processes=2).run(until=lambda: True)  # returns


@pytest.mark.parametrize("threads", [1, 2])
def test_an_entry_whose_handler_keeps_the_interpreter_of_a_process_is_not_taken_over_until_the_process_is_stopped(
    store: raxlog.Store, group: raxlog.Group, threads: int
) -> None:
    lease = 2.0

    def handle(entry: raxlog.Entry) -> None:
        ctypes.PyDLL(None).usleep(int(3 * lease * 1e6))  # which PyDLL calls without releasing the interpreter

    with running(group.worker(handle, processes=1, threads=threads, lease=lease)) as worker:
        store.stream("jobs").append({"n": 1})
        until(lambda: group.pending().total == 1)
        assert group.read("other", claim_idle=lease, timeout=2.8 * lease) == []
        until(lambda: worker.counts.done == 1 and is_empty(group))  # the acknowledgement comes with the next read
        assert group.read("other", claim_idle=0) == []
        store.stream("jobs").append({"n": 2})
        until(lambda: group.pending().total == 1)
        (pid,) = worker.pids
        os.kill(pid, signal.SIGSTOP)
        try:
            taken = group.read("other", claim_idle=lease, timeout=3 * lease)
            assert [number(entry) for entry in taken] == [2]
            group.ack(*[entry.id for entry in taken])  # or the worker takes it back, for a third time
        finally:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("status", [1, 3, 255])
def test_a_handler_that_ends_its_process_with_any_status_ends_no_other(
    store: raxlog.Store, group: raxlog.Group, status: int
) -> None:
    store.stream("jobs").extend([{"n": n} for n in range(3)])

    def handle(entry: raxlog.Entry) -> None:
        if number(entry) == 0 and entry.deliveries == 1:
            os._exit(status)

    with running(group.worker(handle, processes=1, lease=0.2)):
        until(lambda: is_empty(group))


@pytest.mark.parametrize(("handler", "transaction"), [
    (lambda: None, False), (lambda entry, tx: None, False), (lambda entry: None, True), (lambda *, entry: None, False),
])
def test_a_handler_that_cannot_be_called_so_is_refused_before_the_first_entry(
    group: raxlog.Group, handler: Callable[..., None], transaction: bool
) -> None:
    with pytest.raises(raxlog.InvalidArgument, match="is called with"):
        group.worker(handler, transaction=transaction)
    group.worker(lambda entry, more=1: None)
    group.worker(print)


def test_workers_without_a_name_leave_no_consumer_behind_and_those_with_one_do(
    store: raxlog.Store, group: raxlog.Group
) -> None:
    for _ in range(2):
        store.stream("jobs").extend([{"n": n} for n in range(8)])
        group.worker(lambda entry: None, threads=4).run(burst=True)
        assert group.consumers() == []
    for name in ("w", "w-0"):  # which looks like a thread's
        group.worker(lambda entry: None, name=name, threads=2).run(burst=True)
    assert sorted(one.name for one in group.consumers()) == ["w-0/0", "w-0/1", "w/0", "w/1"]


def test_what_a_killed_worker_left_goes_once_it_holds_nothing_and_has_not_been_seen(
    store: raxlog.Store, group: raxlog.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raxlog.stream.jobs.worker._LEFT", 0.3)
    store.stream("jobs").append({"n": 0})
    for name in ("host-17-0a1b2c/3", "host-17-0a1b2c-p1-99", "w-p0-18/1", "host-17", "w/1"):
        group.create_consumer(name)
    (held,) = group.read("host-18-0a1b2c", 1)
    store.stream("jobs").append({"n": 1})
    group.worker(lambda entry: None, lease=0.2).run(burst=True)
    assert len(group.consumers()) == 6  # they have been seen just now
    time.sleep(0.4)
    group.worker(lambda entry: None, lease=0.2).run(burst=True)
    assert {one.name for one in group.consumers()} <= {"host-17", "w/1", "host-18-0a1b2c"}
    assert group.pending().total == 0
    assert group.ack(held.id) == 0  # taken over, and done


def test_processes_end_with_the_error_of_a_group_that_is_destroyed(store: raxlog.Store, group: raxlog.Group) -> None:
    threading.Timer(0.3, group.destroy).start()
    with pytest.raises(raxlog.NoGroup, match="mail"):
        group.worker(print, processes=2).run()


def test_a_transaction_of_a_handler_that_fails_leaves_nothing(store: raxlog.Store, group: raxlog.Group) -> None:
    store.stream("jobs").extend([{"n": n} for n in range(10)])

    def handle(entry: raxlog.Entry, tx: raxlog.Transaction) -> None:
        tx.stream("effects").append({"n": number(entry)})
        if entry.deliveries == 1 and number(entry) % 2:
            raise ValueError

    with running(group.worker(handle, transaction=True, retry=0)) as worker:
        until(lambda: is_empty(group))
    assert worker.counts == raxlog.Counts(done=10, failed=5)
    assert Counter(number(entry) for entry in store.stream("effects").range()) == Counter(range(10))


@pytest.mark.parametrize("timeout", [None, 0.05])
def test_a_process_can_be_traced_after_a_worker_has_run(
    store: raxlog.Store, group: raxlog.Group, timeout: float | None
) -> None:
    """An exception for a thread that is taken back leaves CPython 3.11 looking for it: under a tracer, for ever."""
    store.stream("jobs").extend([{"n": n} for n in range(4)])
    code = ("import sys, time, raxlog\nwith raxlog.open(sys.argv[1]) as store:\n"
            "    group = store.stream('jobs').group('mail')\n    handle = lambda entry: time.sleep(0.5)\n"
            f"    group.worker(handle, timeout={timeout}, max_deliveries=1).run(burst=True)\n"
            "sys.settrace(lambda *_: None)\nprint(handle.__name__, (lambda: 5)())\n")
    done = forkserver.run([sys.executable, "-c", code, str(store.path)], capture_output=True, text=True, timeout=SOON,
                          check=True)
    assert done.stdout == "<lambda> 5\n"
    assert len(group.dead_letters) == (0 if timeout is None else 4)


def test_in_a_full_store_jobs_are_acknowledged_and_dead_letters_come_once_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with raxlog.open(tmp_path / "s.rax", durability="relaxed", max_map_size=1 << 20) as store:
        group = store.stream("jobs").create_group("mail", "$", create_stream=True)
        store.stream("jobs").extend([{"n": n, "x": "x" * 4000} for n in range(30)])
        seen: list[int] = []

        def handle(entry: raxlog.Entry) -> None:
            seen.append(number(entry))
            if len(seen) == 10:
                for size in (8000, 400):
                    with contextlib.suppress(raxlog.StoreFull):
                        for n in range(100_000):
                            store.state[f"filler {size} {n}"] = "x" * size
            if number(entry) >= 28:
                raise ValueError

        with running(group.worker(handle, max_deliveries=1, lease=0.5)) as worker:
            until(lambda: "stays pending until its lease ends" in caplog.text)
            for name in list(store.state):
                del store.state[name]
            until(lambda: is_empty(group))
        assert sorted(seen) == list(range(30))
        assert worker.counts.done == 28
        assert sorted(number(letter.entry) for letter in group.dead_letters) == [28, 29]


def test_dead_letters_come_again_after_their_stream_was_deleted(store: raxlog.Store, group: raxlog.Group) -> None:
    def handle(entry: raxlog.Entry) -> None:
        if number(entry) == 1:
            assert store.delete_stream(group.dead_letters.name)
        raise ValueError(number(entry))

    store.stream("jobs").extend([{"n": n} for n in range(3)])
    worker = group.worker(handle, max_deliveries=1)
    worker.run(burst=True)
    assert [number(letter.entry) for letter in group.dead_letters] == [1, 2]
    assert is_empty(group)
    assert worker.counts == raxlog.Counts(failed=3, dead=3)
    with pytest.raises(raxlog.InvalidArgument, match="its own dead letters"):
        group.worker(handle, dead_letters="jobs")


def test_what_a_notebook_shows_of_a_handle_names_what_it_is_of(store: raxlog.Store, group: raxlog.Group) -> None:
    store.stream("jobs").append({"n": 1})
    worker = group.worker(lambda _: None, name="w")
    worker.run(burst=True)
    place = f"in {str(store.path)!r}"
    later = store.stream("jobs").defer({"n": 2}, at=moment(4102441200000))
    assert repr(worker) == f"<raxlog.Worker 'w' of <raxlog.Group 'mail' of stream 'jobs' {place}>, 1 done>"
    forks = group.worker(print, processes=2, name="p")
    assert repr(forks) == f"<raxlog.Worker 'p' of {group!r}, 0 of 2 processes running>"
    assert repr(group.dead_letters) == "<raxlog.DeadLetters 'jobs.mail.dead' of group 'mail'>"
    assert repr(later) == f"<raxlog.Deferred {later.token}, due 2099-12-31 23:00:00 UTC, {{'n': '2'}}>"
