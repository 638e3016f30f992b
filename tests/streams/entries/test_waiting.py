"""Waiting within a process: woken when it is time, in order, and not for nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import raxlog
from counting import other_threads
from raxlog.storage import clocks
from raxlog.storage.engine.environment import Environment
from raxlog.storage.wake import wake_file, watcher
from raxlog.stream.group import deliver
from raxlog.stream.group.waiter import Waiter, WaitQueues
from waiting_cases import SOON, Sleeper, asleep, seen_now


@pytest.fixture
def env(store: raxlog.Store) -> Environment:
    return store._env


@pytest.fixture
def waiting(env: Environment) -> WaitQueues:
    return env.attached(WaitQueues)


# -- waking ----------------------------------------------------------------------------------


def test_a_sleeper_wakes_when_its_stream_moves(
    store: raxlog.Store, env: Environment, waiting: WaitQueues
) -> None:
    sleeper = Sleeper(waiting, seen_now(env, b"orders"))
    assert asleep(waiting, 1)
    store.stream("orders").append({"item": "book"})
    sleeper.join(SOON)
    assert sleeper.outcome is True
    assert not waiting._lines


def test_what_came_before_the_wait_is_not_slept_through(
    store: raxlog.Store, env: Environment, waiting: WaitQueues
) -> None:
    seen = seen_now(env, b"orders")
    store.stream("orders").append({"item": "book"})
    assert waiting.wait(seen, deadline=clocks.monotonic() + 30)


def test_a_read_of_several_streams_waits_for_each_where_another_reader_was_faster(
    store: raxlog.Store, waiting: WaitQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [store.stream(name).create_group("g", "0", create_stream=True) for name in ("a", "b")]
    attempts = deliver.attempts
    taken = threading.Event()

    def late(source: Any, wanted: deliver.GroupRead, targets: list[deliver.Target]) -> deliver.Answer:
        if wanted.consumer == b"late" and groups[0].lag:
            groups[0].read("quick")
            taken.set()
        return attempts(source, wanted, targets)

    monkeypatch.setattr(deliver, "attempts", late)
    got: list[Any] = []
    reader = threading.Thread(
        target=lambda: got.append(store.read_group("g", "late", {"a": ">", "b": ">"}, timeout=SOON)))
    reader.start()
    assert asleep(waiting, 1)
    store.stream("a").append({"n": 1})
    assert taken.wait(SOON)
    assert asleep(waiting, 1)
    store.stream("b").append({"n": 2})
    reader.join(SOON / 2)
    assert [list(answer) for answer in got] == [["b"]]


def test_creating_and_deleting_a_stream_is_a_movement(
    store: raxlog.Store, env: Environment, waiting: WaitQueues
) -> None:
    store.stream("orders").append({"item": "book"})
    sleeper = Sleeper(waiting, seen_now(env, b"orders"))
    assert asleep(waiting, 1)
    store.delete_stream("orders")
    sleeper.join(SOON)
    assert sleeper.outcome is True


def test_of_a_hundred_sleepers_on_a_hundred_streams_only_the_one_concerned_wakes(
    store: raxlog.Store, env: Environment, waiting: WaitQueues
) -> None:
    sleepers = [Sleeper(waiting, seen_now(env, b"stream-%d" % n)) for n in range(100)]
    assert asleep(waiting, 100)
    before = len(other_threads())
    store.stream("stream-42").append({"item": "book"})
    sleepers[42].join(SOON)
    time.sleep(0.1)
    assert [n for n, sleeper in enumerate(sleepers) if sleeper.outcome is not None] == [42]
    assert len(other_threads()) == before - 1
    store.close()
    for sleeper in sleepers:
        sleeper.join(SOON)
    assert sum(isinstance(sleeper.outcome, raxlog.StoreClosed) for sleeper in sleepers) == 99


def test_a_deadline_ends_a_wait_and_a_due_time_is_a_reason_to_look(
    env: Environment, waiting: WaitQueues
) -> None:
    seen = seen_now(env, b"orders")
    begun = clocks.monotonic()
    assert not waiting.wait(seen, deadline=begun - 1)
    assert not waiting.wait(seen, deadline=begun + 0.1)
    assert 0.1 <= clocks.monotonic() - begun < 0.1 + SOON
    begun = clocks.monotonic()
    assert waiting.wait(seen, deadline=begun + 30, due=begun + 0.1)
    assert 0.1 <= clocks.monotonic() - begun < 0.1 + SOON
    assert waiting.wait(seen, deadline=begun + 30, due=begun)
    assert not waiting._lines


def test_other_peoples_commits_do_not_prolong_a_deadline(
    store: raxlog.Store, env: Environment, waiting: WaitQueues
) -> None:
    begun = clocks.monotonic()
    sleeper = Sleeper(waiting, seen_now(env, b"orders"), deadline=begun + 0.3)
    while sleeper.is_alive():
        store.stream("mail").append({"item": "book"})
    assert sleeper.outcome is False
    assert 0.3 <= sleeper.woke - begun < 0.3 + SOON


def test_waiting_for_more_tells_of_entries_not_of_ids(store: raxlog.Store) -> None:
    orders = store.stream("orders")
    assert not store.read({"orders": "0"}, 1, 0.01)
    first = orders.append({"item": "book"})
    assert first is not None
    assert store.read({"orders": "0"}, 1)
    assert not store.read({"orders": first}, 1, 0.01)
    second = orders.append({"item": "pen"})
    assert second is not None
    orders.delete(second)
    assert not store.read({"orders": first}, 1, 0.01)


# -- first come, first served ----------------------------------------------------------------


class Counter:
    """Takes one job at a time from a list, waiting in the line for them."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.jobs: list[int] = []
        self.served: list[str] = []
        self.looks: list[str] = []

    def queue(self, who: str, patience: float = 30.0, due: float | None = None) -> threading.Thread:
        deadline = clocks.monotonic() + patience
        thread = threading.Thread(target=self._stand, args=(who, deadline, due), daemon=True)
        thread.start()
        return thread

    def _stand(self, who: str, deadline: float, due: float | None) -> None:
        waiting = self.env.attached(WaitQueues)
        with contextlib.suppress(raxlog.StoreClosed), waiting.turn("counter", deadline) as place:
            while place.awake:
                seen = seen_now(self.env, b"jobs")
                self.looks.append(who)
                if self.jobs:
                    self.jobs.pop()
                    self.served.append(who)
                    return
                if not waiting.wait(seen, deadline, due, turn=place):
                    return


def test_those_who_wait_in_a_line_are_served_in_the_order_they_came(
    store: raxlog.Store, env: Environment, waiting: WaitQueues
) -> None:
    counter = Counter(env)
    threads = []
    for n in range(8):
        threads.append(counter.queue(f"w{n}"))
        assert asleep(waiting, n + 1)
    for n in range(8):
        counter.jobs.append(n)
        store.stream("jobs").append({"n": n})
        if n % 2:
            time.sleep(0.02)
    for thread in threads:
        thread.join(SOON)
    assert counter.served == [f"w{n}" for n in range(8)]
    assert not waiting._lines
    # The first looked when it came, each when it was served; the next after a served one may look in vain.
    assert len(counter.looks) <= 8 * 2 + 1


def test_who_finds_nothing_keeps_his_place_and_spares_those_behind_him_the_look(
    store: raxlog.Store, env: Environment, waiting: WaitQueues
) -> None:
    counter = Counter(env)
    threads = []
    for n in range(5):
        threads.append(counter.queue(f"w{n}"))
        assert asleep(waiting, n + 1)
    counter.looks.clear()
    for n in range(3):  # somebody else is faster
        store.stream("jobs").append({"n": n})
        time.sleep(0.05)
    assert counter.looks == ["w0"] * 3
    counter.jobs.append(1)
    store.stream("jobs").append({"n": 3})
    threads[0].join(SOON)
    assert counter.served == ["w0"]
    assert asleep(waiting, 4)


def test_who_gives_up_hands_the_place_to_the_next(
    store: raxlog.Store, env: Environment, waiting: WaitQueues
) -> None:
    counter = Counter(env)
    impatient = counter.queue("impatient", patience=0.1)
    assert asleep(waiting, 1)
    patient = counter.queue("patient")
    impatient.join(SOON)
    assert asleep(waiting, 1)
    counter.jobs.append(1)
    store.stream("jobs").append({"n": 1})
    patient.join(SOON)
    assert counter.served == ["patient"]


def test_a_newcomer_does_not_overtake_one_who_is_about_to_wake(
    store: raxlog.Store, env: Environment, waiting: WaitQueues
) -> None:
    counter = Counter(env)
    for n in range(20):
        first = counter.queue("first")
        assert asleep(waiting, 1)
        counter.jobs.append(n)
        store.stream("jobs").append({"n": n})
        second = counter.queue("second", patience=0.3)  # long enough for a busy machine
        first.join(SOON)
        second.join(SOON)
    assert counter.served == ["first"] * 20


def test_a_due_time_lets_the_line_out_one_after_the_other(
    env: Environment, waiting: WaitQueues
) -> None:
    counter = Counter(env)
    due = clocks.monotonic() + 0.3
    threads = []
    for n in range(4):
        threads.append(counter.queue(f"w{n}", due=due))
        assert asleep(waiting, n + 1)
    counter.jobs = [1, 2, 3, 4]  # nothing is committed: only the time tells
    for thread in threads:
        thread.join(SOON)
    assert counter.served == ["w0", "w1", "w2", "w3"]


def test_the_next_in_line_keeps_the_time_when_the_first_has_left(
    env: Environment, waiting: WaitQueues
) -> None:
    counter = Counter(env)
    due = clocks.monotonic() + 0.4
    first = counter.queue("first", patience=0.1, due=due)
    assert asleep(waiting, 1)
    second = counter.queue("second", due=due)
    first.join(SOON)
    counter.jobs.append(1)
    second.join(SOON)
    assert counter.served == ["second"]


def test_a_place_that_its_thread_lost_does_not_block_the_line(
    env: Environment, waiting: WaitQueues
) -> None:
    lost = Waiter("counter")
    waiting.join(lost)
    assert lost.awake
    del lost  # as if an interrupt had struck between the read and its leaving
    counter = Counter(env)
    counter.jobs.append(1)
    counter.queue("next").join(SOON)
    assert counter.served == ["next"]


# -- the end of a wait -----------------------------------------------------------------------


def test_closing_the_store_ends_every_wait_and_the_watcher(
    store: raxlog.Store, env: Environment, waiting: WaitQueues
) -> None:
    sleepers = [Sleeper(waiting, seen_now(env, b"orders")) for _ in range(3)]
    assert asleep(waiting, 3)
    store.close()
    for sleeper in sleepers:
        sleeper.join(SOON)
        assert isinstance(sleeper.outcome, raxlog.StoreClosed)
    assert not any(str(store.path) in thread.name for thread in threading.enumerate())
    with pytest.raises(raxlog.StoreClosed):
        waiting.wait({}, None)


def test_there_is_no_watcher_before_the_first_wait(store: raxlog.Store) -> None:
    store.stream("orders").append({"item": "book"})
    assert not any(str(store.path) in name for name in other_threads())


# -- without events --------------------------------------------------------------------------


def test_without_an_inotify_instance_waiting_still_works(
    store: raxlog.Store, env: Environment, waiting: WaitQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    real = wake_file.Inotify
    monkeypatch.setattr(wake_file, "Inotify", none_left)
    monkeypatch.setattr(watcher, "_NAPS_PER_TRY", 4)
    for n in range(5):
        sleeper = Sleeper(waiting, seen_now(env, b"orders"))
        assert asleep(waiting, 1)
        time.sleep(0.05)
        store.stream("orders").append({"n": n})
        sleeper.join(SOON)
        assert sleeper.outcome is True
    assert waiting._watcher.polling  # type: ignore[union-attr]
    monkeypatch.setattr(wake_file, "Inotify", real)  # instances are to be had again
    sleeper = Sleeper(waiting, seen_now(env, b"orders"))
    end = clocks.monotonic() + 20
    while waiting._watcher.polling and clocks.monotonic() < end:  # type: ignore[union-attr]
        time.sleep(0.05)
    assert not waiting._watcher.polling  # type: ignore[union-attr]


# -- what never comes ------------------------------------------------------------------------


@pytest.fixture
def busy(store: raxlog.Store) -> Iterator[raxlog.Stream]:
    """A stream to which entries are appended all the time, and none of which is ever to be seen."""
    stream = store.stream("busy")
    ends = threading.Event()

    def append() -> None:
        while not ends.is_set():
            with store.transaction() as tx:
                tx.stream("busy").delete(tx.stream("busy").append({"n": 1}))

    writer = threading.Thread(target=append)
    stream.create_group("g", "0", create_stream=True)
    stream.create_group("of_a", "0", subjects=["a"])
    writer.start()
    yield stream
    ends.set()
    writer.join()


@pytest.mark.parametrize("how", ["read", "group", "groups", "filtered", "follow"])
def test_a_wait_whose_stream_always_moves_and_never_has_anything_ends_at_its_time(
    store: raxlog.Store, busy: raxlog.Stream, how: str
) -> None:
    found: list[Any] = []
    calls = {
        "read": lambda: store.read({"busy": "$"}, timeout=0.3),
        "group": lambda: busy.group("g").read("c", timeout=0.3),
        "groups": lambda: store.read_group("g", "c", {"busy": ">"}, timeout=0.3, claim_idle=0.01),
        "filtered": lambda: busy.group("of_a").read("c", timeout=0.3),
        "follow": lambda: list(busy.follow("$", timeout=0.3)),
    }
    reader = threading.Thread(target=lambda: found.append(calls[how]()), daemon=True)
    reader.start()
    reader.join(5 * SOON)
    assert [len(one) for one in found] == [0]


def test_what_is_due_for_ever_and_never_found_neither_burns_a_core_nor_outlives_the_deadline(
    waiting: WaitQueues
) -> None:
    looks = 0
    began = clocks.monotonic()
    with waiting.turn("line", began + 1) as waiter:
        while waiter.awake:
            looks += 1
            if not waiting.wait({}, began + 1, due=began - 5, turn=waiter):
                break
    assert 0.9 < clocks.monotonic() - began < 1 + SOON
    assert looks < 20  # after 1, 2, 4 ms and so on


def test_what_moves_at_the_deadline_is_looked_at_once_more(store: raxlog.Store, env: Environment,
                                                           waiting: WaitQueues) -> None:
    seen = seen_now(env, b"orders")
    deadline = clocks.monotonic() + 0.2
    with waiting.turn("line", deadline) as waiter:
        waiting.arm(waiter, seen, None)
        store.stream("orders").append({"n": 1})
        time.sleep(0.3)
        assert waiting.rest(waiter, deadline) is None
        assert not waiting.wait(seen, deadline, turn=waiter)


GREEN = """
import select, sys, tempfile, time
if sys.argv[1] == "eventlet":
    import eventlet
    eventlet.monkey_patch()
    sleep, spawn = eventlet.sleep, eventlet.spawn
else:  # what that does to the module select
    import threading
    del select.poll, select.epoll
    sleep, spawn = time.sleep, lambda f: threading.Thread(target=f).start()
import raxlog

with tempfile.TemporaryDirectory() as folder, raxlog.open(folder + "/s") as store:
    stream = store.stream("jobs")
    group = stream.create_group("g", "0", create_stream=True)
    assert group.read("c", timeout=0.2) == []
    assert store.read({"jobs": "$"}, timeout=0.1) == {}

    def later():
        sleep(0.3)
        stream.append({"n": 1})

    spawn(later)
    began = time.monotonic()
    assert len(group.read("c", timeout=20)) == 1
    assert time.monotonic() - began < 10
    spawn(later)
    assert len(store.read({"jobs": "$"}, timeout=20)["jobs"]) == 1
    assert len(list(stream.follow("0", timeout=0.1))) == 2
"""


@pytest.mark.parametrize("how", ["eventlet", "without poll()"])
def test_reads_wait_where_eventlet_has_patched_the_standard_library(how: str) -> None:
    if how == "eventlet":
        pytest.importorskip("eventlet")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", GREEN, how], capture_output=True, text=True,
                          timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
