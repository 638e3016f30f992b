"""Ctrl-C in a group commit: nobody hangs, nothing is lost, whoever led."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import raxlog
from children import Child
from commit_cases import HeldBatch, in_threads, put, stored, submit
from raxlog.storage import kernels
from raxlog.storage.commit import commits
from raxlog.storage.log.transaction import WriteTransaction

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
ROUNDS = int(os.environ.get("RAXLOG_ROUNDS", "3"))


class Interrupt(BaseException):
    """Raised into threads from outside, as Ctrl-C is."""


def interrupt(thread: threading.Thread) -> None:
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Interrupt))


def test_ctrl_c_in_a_waiting_caller_withdraws_its_call(store: raxlog.Store) -> None:
    held = HeldBatch(store)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        submit(store, put(b"never"))
    held.let_go()
    submit(store, put(b"after"))
    assert stored(store, b"never") is None


def test_a_lock_timeout_starts_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that tries again and again would start one each time; what no exception strikes needs none."""
    started: list[Any] = []
    real = commits.start_new_thread
    monkeypatch.setattr(commits, "start_new_thread", lambda *given: (started.append(given), real(*given)))
    path = tmp_path / "s.rax"

    def time_out(store: raxlog.Store) -> None:
        for _ in range(20):
            with pytest.raises(raxlog.LockTimeout):
                store.state["a"] = b"1"
            with pytest.raises(raxlog.LockTimeout), store.transaction():
                pass

    def hold(say: Callable[[Any], None]) -> None:
        with raxlog.open(path) as store, store.transaction():
            say("held")
            time.sleep(60)

    with raxlog.open(path, lock_timeout=0.01) as store:
        with Child(hold) as child:
            assert child.heard() == "held"
            time_out(store)  # of the lock of writers, which the first of the queue asks for
        store.state["a"] = b"2"
        held = HeldBatch(store)
        time_out(store)  # in the queue
        held.let_go()
        store.state["a"] = b"3"
        assert not store._env.commits.queue
    assert started == []


def test_ctrl_c_in_the_leader_undoes_it_and_the_others_go_on(store: raxlog.Store) -> None:
    inside = threading.Event()
    first = True

    def operation(txn: WriteTransaction) -> None:
        nonlocal first
        put(b"leader")(txn)
        if first:
            first = False
            inside.set()
            for _ in range(3000):
                time.sleep(0.01)

    def follow() -> None:
        inside.wait(10)
        followers = [threading.Thread(target=submit, args=(store, put(b"%d" % n))) for n in range(5)]
        for thread in followers:
            thread.start()
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)
        for thread in followers:
            thread.join(10)

    follower = threading.Thread(target=follow)
    follower.start()
    with pytest.raises(KeyboardInterrupt):
        submit(store, operation)
    follower.join(20)
    assert not follower.is_alive()
    assert stored(store, b"leader") is None
    assert all(stored(store, b"%d" % n) for n in range(5))


def test_ctrl_c_in_the_leader_of_a_batch_costs_the_others_of_it_nothing(store: raxlog.Store) -> None:
    inside, threads = threading.Event(), []

    def operation(txn: WriteTransaction) -> None:
        put(b"leader")(txn)
        inside.set()
        for _ in range(3000):
            time.sleep(0.01)

    def conduct() -> None:
        held.wait_for_queue(1)  # the main thread's
        for n in range(3):
            threads.append(threading.Thread(target=submit, args=(store, put(b"%d" % n)), daemon=True))
            threads[-1].start()
            held.wait_for_queue(2 + n)
        held.let_go()
        assert inside.wait(10)
        os.kill(os.getpid(), signal.SIGINT)

    held = HeldBatch(store)
    conductor = threading.Thread(target=conduct)
    conductor.start()
    with pytest.raises(KeyboardInterrupt):
        submit(store, operation)
    for thread in [conductor, *threads]:
        thread.join(10)
        assert not thread.is_alive()
    assert stored(store, b"leader") is None
    assert [stored(store, b"%d" % n) for n in range(3)] == [b"v"] * 3


class HeldUp:
    """A lead that one thread does not come to before it is let go: so long takes a signal's handler, or a debugger."""

    def __init__(self, lead: Any) -> None:
        self._lead = lead
        self.thread = threading.Thread(daemon=True)
        self.reached, self.go = threading.Event(), threading.Event()

    def __enter__(self) -> None:
        if threading.current_thread() is self.thread:
            self.reached.set()
            assert self.go.wait(60)
        self._lead.acquire()

    def __exit__(self, *error: object) -> None:
        self._lead.release()

    def locked(self) -> bool:
        return bool(self._lead.locked())


def test_a_call_that_is_held_up_before_it_leads_keeps_no_other_waiting_and_is_done_in_the_end(
    store: raxlog.Store,
) -> None:
    if kernels.speed() != "plain Python":
        pytest.skip("the lock of a compiled kernel cannot be replaced")
    shared: Any = store._env.commits
    shared.leading = held = HeldUp(shared.leading)
    held.thread = threading.Thread(target=submit, args=(store, put(b"held up")), daemon=True)
    held.thread.start()
    assert held.reached.wait(10)
    begun = time.monotonic()
    submit(store, put(b"other"))
    assert time.monotonic() - begun < 5  # of 30 that it may wait
    assert stored(store, b"held up") is None
    held.go.set()
    held.thread.join(10)
    assert not held.thread.is_alive()
    assert stored(store, b"held up") == b"v"


@pytest.mark.storm
@pytest.mark.parametrize("map_size", [None, 1 << 16], ids=["large map", "growing map"])
def test_a_storm_of_interruptions_hangs_nobody_and_loses_nothing(tmp_path: Path, map_size: int | None) -> None:
    print(f"RAXLOG_SEED={SEED}")
    rng = random.Random(SEED)
    count = 6
    acknowledged: list[set[int]] = [set() for _ in range(count)]
    attempts = [0] * count
    interruptions = [0] * count
    stop = time.monotonic() + 4

    with raxlog.open(tmp_path / "s.rax", map_size=map_size, lock_timeout=20) as store:
        stream = store.stream("s")
        store.stream("other").append({"a": "b"})

        def until_interrupted(number: int) -> None:
            try:
                while time.monotonic() < stop:
                    attempts[number] += 1
                    n = attempts[number]
                    if n % 7 == 6:
                        len(stream)
                    stream.append({"thread": number, "n": n, "x": bytes(300)})
                    acknowledged[number].add(n)
            except Interrupt:
                interruptions[number] += 1

        def work(number: int) -> None:
            while time.monotonic() < stop:
                try:
                    until_interrupted(number)
                except Interrupt:  # it came a step too late
                    interruptions[number] += 1

        threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(count)]
        for thread in threads:
            thread.start()
        while time.monotonic() < stop - 0.3:
            time.sleep(rng.random() * 0.004)
            interrupt(rng.choice(threads))
        for thread in threads:
            thread.join(12)  # less than lock_timeout, which would wake whom the others have forgotten
        assert not any(thread.is_alive() for thread in threads), "a thread hangs"

        seen: list[list[int]] = [[] for _ in range(count)]
        for entry in stream.range():
            seen[int(entry.fields["thread"])].append(int(entry.fields["n"]))
        for number in range(count):
            assert len(seen[number]) == len(set(seen[number])), "a call was applied twice"
            assert seen[number] == sorted(seen[number])
            assert acknowledged[number] <= set(seen[number])
            assert max(seen[number]) <= attempts[number]
        assert sum(interruptions) > 100
        assert in_threads(4, lambda n: stream.append({"after": n}), 10) == []
        assert not store._env.commits.queue
    reopened = raxlog.open(tmp_path / "s.rax")
    assert len(reopened.stream("s")) == sum(map(len, seen)) + 4
    reopened.close()


@pytest.mark.storm
def test_a_storm_of_ctrl_c_on_a_lone_writer_and_reader(tmp_path: Path) -> None:
    """Signals strike the main thread of a child at random steps; its account must fit the store."""
    path = tmp_path / "s.rax"

    def work(say: Callable[[Any], None]) -> None:
        acknowledged, interrupted, n, armed = [], 0, 0, False

        def strike(*_: object) -> None:
            if armed:
                raise KeyboardInterrupt

        signal.signal(signal.SIGINT, strike)
        stop = time.monotonic() + 3
        with raxlog.open(path, map_size=1 << 16) as store:
            stream = store.stream("s")
            say("ready")
            while time.monotonic() < stop:
                try:
                    armed = True
                    while time.monotonic() < stop:
                        n += 1
                        stream.append({"n": n})
                        acknowledged.append(n)
                        len(stream)
                    armed = False
                except KeyboardInterrupt:
                    armed = False
                    interrupted += 1
            closing = time.monotonic()
        say((acknowledged, interrupted, time.monotonic() - closing))

    with Child(work) as child:
        assert child.heard() == "ready"
        stop = time.monotonic() + 2.8
        while time.monotonic() < stop:
            time.sleep(0.002)
            child.send(signal.SIGINT)
        acknowledged, interrupted, closing = child.finish()[-1]
    assert interrupted > 100
    assert closing < 5, "a read that had been broken off held up close()"
    with raxlog.open(path) as store:
        there = [int(entry.fields["n"]) for entry in store.stream("s").range()]
    assert there == sorted(set(there))
    assert set(acknowledged) <= set(there)


def test_a_signal_handler_that_takes_its_time_keeps_nobody_else_waiting(store: raxlog.Store) -> None:
    """It runs in the main thread, before that can wake whoever comes behind it in the batch."""
    held = HeldBatch(store)
    ends: list[float] = []
    let_go = 0.0

    def follow(n: int) -> None:
        submit(store, put(b"%d" % n))
        ends.append(time.monotonic())

    threads = [threading.Thread(target=follow, args=(n,)) for n in range(5)]

    def conduct() -> None:
        nonlocal let_go
        time.sleep(0.2)  # the main thread has queued its call
        for thread in threads[1:]:
            thread.start()
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.2)
        let_go = time.monotonic()
        held.let_go()

    before = signal.signal(signal.SIGUSR1, lambda *_: time.sleep(3))
    conductor = threading.Thread(target=conduct)
    try:
        threads[0].start()
        time.sleep(0.1)
        conductor.start()
        submit(store, put(b"main"))
    finally:
        signal.signal(signal.SIGUSR1, before)
    for thread in [conductor, *threads]:
        thread.join(10)
    assert len(ends) == 5
    assert max(ends) - let_go < 1.5


def signals_in_a_row(path: Path, seconds: float, seed: int, lock_timeout: float = 30) -> tuple[bool, float]:
    """Seven threads append, and signals strike an eighth, some 50 µs apart: whether one hangs, the longest wait."""
    longest = [0.0] * 8
    stop = time.monotonic() + seconds

    def work(say: Callable[[Any], None]) -> None:
        armed = False
        rng = random.Random(seed)

        def strike(*_: object) -> None:
            if armed:
                raise Interrupt

        signal.signal(signal.SIGALRM, strike)
        with raxlog.open(path, lock_timeout=lock_timeout) as store:
            stream = store.stream("s")

            def append(n: int) -> None:
                while time.monotonic() < stop:
                    begun = time.monotonic()
                    with suppress(raxlog.LockTimeout):
                        stream.append({"n": n})
                    longest[n] = max(longest[n], time.monotonic() - begun)

            threads = [threading.Thread(target=append, args=(n,), daemon=True) for n in range(7)]
            for thread in threads:
                thread.start()
            while time.monotonic() < stop - 0.5:
                try:
                    armed = True
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0003, 0.0012), rng.uniform(0.00003, 0.0001))
                    while True:
                        stream.append({"n": "main"})
                except (Interrupt, raxlog.LockTimeout):
                    armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            begun = time.monotonic()
            with suppress(raxlog.LockTimeout):
                stream.append({"n": "quiet"})
            longest[7] = time.monotonic() - begun
            for thread in threads:
                thread.join(10)
            say((any(thread.is_alive() for thread in threads), max(longest)))

    with Child(work) as child:
        hangs, wait = child.heard()
    print(f"seed {seed}: longest wait {wait:.2f} s")
    return hangs, wait


@contextmanager
def busy_machine(folder: Path, processes: int = 6) -> Iterator[None]:
    """Other processes that compute, and as many that have the disk flush, all the time."""

    def flush(say: Callable[[Any], None]) -> None:
        with (folder / f"busy-{os.getpid()}").open("wb", 0) as file:
            while True:
                file.write(bytes(1 << 20))
                os.fsync(file.fileno())
                if file.tell() > 1 << 25:
                    file.truncate(0)
                    file.seek(0)

    def compute(say: Callable[[Any], None]) -> None:
        while True:
            pass

    with ExitStack() as stack:
        for work in [flush, compute] * processes:
            stack.enter_context(Child(work))
        yield


@pytest.mark.storm
def test_signals_in_a_row_leave_no_other_thread_asleep(tmp_path: Path) -> None:
    """Four in a row get past all that one call can do about them; others must not wait for its lock_timeout."""
    print(f"RAXLOG_SEED={SEED}")
    hangs, wait = signals_in_a_row(tmp_path / "s.rax", 4, SEED)
    assert not hangs
    assert wait < 4


@pytest.mark.storm
def test_signals_in_a_row_leave_no_other_thread_asleep_on_a_busy_machine(tmp_path: Path) -> None:
    """The struck thread is kept from the interpreter, and the disk is slow. RAXLOG_ROUNDS=30 tries more."""
    print(f"RAXLOG_SEED={SEED}")
    with busy_machine(tmp_path):
        waits = [signals_in_a_row(tmp_path / f"{seed}.rax", 2, seed, 8) for seed in range(SEED, SEED + ROUNDS)]
    assert [wait for wait in waits if wait[0] or wait[1] >= 6] == []
