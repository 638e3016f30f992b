"""Stopping a blocked read: at once, from anywhere, and without taking anything."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import raxlog
from children import Child
from raxlog import InvalidArgument, Stop

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
SOON = 2.0  # seconds: far less than the sleeper's own 3, far more than a wake-up takes on a busy machine

Wait = Callable[[raxlog.Store, Any], Any]


def live(store: raxlog.Store, stop: Any) -> Any:
    with store.subscribe("orders.>") as subscription:
        return subscription.get(stop=stop)


def durable(store: raxlog.Store, stop: Any) -> Any:
    with store.subscribe_durable("orders.>", durable="mail") as subscription:
        return subscription.get(60.0, stop)


def iterated(store: raxlog.Store, stop: Any) -> Any:
    with store.subscribe_durable("orders.>", durable="mail") as subscription:
        return list(iter(lambda: subscription.get(stop=stop), None)) or None


def channel(store: raxlog.Store, stop: Any) -> Any:
    with store.channels.subscribe("news") as client:
        return client.get(stop=stop)


def watched(store: raxlog.Store, stop: Any) -> Any:
    watch = store.watch("orders.new")
    watch.wait()
    return watch.wait(stop=stop)


WAITS: dict[str, tuple[Wait, Any]] = {
    "Group.read": (lambda store, stop: group(store).read("w", timeout=None, stop=stop), []),
    "Group.read that claims": (lambda store, stop: group(store).read("w", timeout=60, claim_idle=30, stop=stop), []),
    "read_group": (lambda store, stop: store.read_group("g", "w", {"s": ">", "t": ">"}, timeout=None, stop=stop), {}),
    "read": (lambda store, stop: store.read({"s": "$", "none": "0"}, timeout=None, stop=stop), {}),
    "live": (live, None),
    "durable": (durable, None),
    "iterated": (iterated, None),
    "channel": (channel, None),
    "watch": (watched, None),
}


def group(store: raxlog.Store) -> raxlog.Group:
    return store.stream("s").group("g")


@pytest.fixture
def queue(store: raxlog.Store) -> raxlog.Store:
    """Streams s and t, empty, each with a group g."""
    for name in ("s", "t"):
        store.stream(name).create_group("g", "$", create_stream=True)
    return store


class Reader(threading.Thread):
    """A thread that waits; ``outcome`` is what came of it, ``ended`` when."""

    def __init__(self, store: raxlog.Store, wait: Wait, stop: Any) -> None:
        super().__init__(daemon=True)
        self.outcome: Any = "still waiting"
        self.ended = 0.0
        self._call = (wait, store, stop)
        self.start()

    def run(self) -> None:
        wait, store, stop = self._call
        try:
            self.outcome = wait(store, stop)
        except raxlog.RaxlogError as error:
            self.outcome = error
        self.ended = time.monotonic()


# -- one wait ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Stop, threading.Event])
@pytest.mark.parametrize("name", WAITS)
def test_each_wait_ends_with_nothing_once_it_is_stopped(queue: raxlog.Store, name: str, kind: Any) -> None:
    wait, nothing = WAITS[name]
    stop = kind()
    reader = Reader(queue, wait, stop)
    time.sleep(0.2)
    assert reader.is_alive()
    begun = time.monotonic()
    stop.set()
    reader.join(10)
    assert reader.outcome == nothing
    assert reader.ended - begun < SOON
    begun = time.monotonic()
    assert wait(queue, stop) == nothing  # while it is set, no wait begins
    assert time.monotonic() - begun < SOON


def test_an_event_is_honoured_within_a_tenth_of_a_second(queue: raxlog.Store) -> None:
    took = []
    for name in ("Group.read", "read", "live"):
        for _ in range(3):
            stop = threading.Event()
            reader = Reader(queue, WAITS[name][0], stop)
            time.sleep(0.1)
            begun = time.monotonic()
            stop.set()
            reader.join(10)
            took.append(reader.ended - begun)
    assert sorted(took)[4] < 0.1, took  # the median: other programs may hold the processor for a moment


def test_what_is_stopped_takes_nothing_and_acknowledges(queue: raxlog.Store) -> None:
    stream, stop = queue.stream("s"), Stop()
    stream.extend([{"n": n} for n in range(3)])
    had = group(queue).read("w", count=1)
    stop.set()
    assert group(queue).read("new", timeout=5, stop=stop) == []
    assert group(queue).read("new", stop=stop, claim_idle=0) == []
    assert group(queue).read("w", ids="0", stop=stop) == []
    assert queue.read({"s": "0"}, stop=stop) == {}
    assert [member.name for member in group(queue).consumers()] == ["w"]
    assert (group(queue).lag, group(queue).pending().total) == (2, 1)
    assert group(queue).read("w", timeout=5, stop=stop, ack=[had[0].id]) == []
    assert (group(queue).lag, group(queue).pending().total) == (2, 0)
    stop.clear()
    assert not stop.is_set()
    assert len(group(queue).read("w", timeout=5, stop=stop)) == 2


@pytest.mark.parametrize("stop", [True, 1.0, "stop", threading.Lock()])
def test_what_is_no_stop_is_refused(queue: raxlog.Store, stop: Any) -> None:
    queue.stream("s").append({"n": 1})
    for call in (
        lambda: group(queue).read("w", stop=stop), lambda: queue.read({"s": "0"}, stop=stop),
        lambda: queue.read_group("g", "w", {"s": ">"}, stop=stop), lambda: live(queue, stop),
        lambda: watched(queue, stop),
    ):  # fmt: skip
        with pytest.raises(InvalidArgument, match=r"stop=.* must be a raxlog\.Stop"):
            call()
    assert group(queue).lag == 1


# -- many ----------------------------------------------------------------------------------------


def test_one_stop_ends_the_waits_of_many_threads(queue: raxlog.Store) -> None:
    stop = Stop()
    kinds = [WAITS[name] for name in ("Group.read", "Group.read that claims", "read_group", "read", "live")]
    readers = [(Reader(queue, wait, stop), nothing) for wait, nothing in kinds * 10]
    time.sleep(0.3)
    stop.set()
    for reader, nothing in readers:
        reader.join(10)
        assert reader.outcome == nothing
    assert not stop._sleepers


def test_who_stands_behind_a_stopped_reader_is_served(queue: raxlog.Store) -> None:
    stops = [Stop() for _ in range(4)]
    readers = []
    for stop in stops:
        readers.append(Reader(queue, WAITS["Group.read"][0], stop))
        time.sleep(0.05)
    for gone in (0, 2):
        stops[gone].set()
        readers[gone].join(10)
        assert readers[gone].outcome == []
    for next_one in (1, 3):
        sid = queue.stream("s").append({"n": 1})
        readers[next_one].join(10)
        assert [entry.id for entry in readers[next_one].outcome] == [sid]


def test_a_stop_between_two_looks_of_a_read_ends_it(queue: raxlog.Store) -> None:
    class Second(threading.Event):
        asked = 0

        def is_set(self) -> bool:
            self.asked += 1
            return self.asked > 1

    assert queue.stream("s").group("g").read("w", timeout=60, stop=Second()) == []


def test_an_entry_that_comes_with_the_stop_is_delivered_or_left(queue: raxlog.Store) -> None:
    print(f"RAXLOG_SEED={SEED}")
    rng = random.Random(SEED)
    delivered = 0
    for _ in range(120):
        stop = Stop()
        reader = Reader(queue, WAITS["Group.read"][0], stop)
        time.sleep(rng.random() * 0.002)
        append = threading.Thread(target=queue.stream("s").append, args=({"n": 1},))
        if rng.random() < 0.5:
            append.start()
            time.sleep(rng.random() * 0.001)
            stop.set()
        else:
            stop.set()
            append.start()
        append.join(10)
        reader.join(10)
        delivered += len(reader.outcome)
        assert group(queue).pending().total == len(reader.outcome)
        assert group(queue).lag == 1 - len(reader.outcome)
        group(queue).read("rest")
        group(queue).ack(*[row.id for row in group(queue).pending_entries("-")])
    print(f"{delivered} of 120 were delivered")


# -- signals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Stop, threading.Event])
def test_a_signal_handler_that_only_sets_it_ends_the_read(queue: raxlog.Store, kind: Any) -> None:
    def wait(say: Callable[[Any], None]) -> None:
        stop = kind()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        for name in ("Group.read", "read", "live", "durable"):
            say("waiting")
            begun = time.monotonic()
            said = WAITS[name][0](queue, stop)
            say((said == WAITS[name][1], stop.is_set(), begun))
            stop.clear()

    with Child(wait) as child:
        for _ in range(4):
            assert child.heard() == "waiting"
            time.sleep(0.2)
            begun = time.monotonic()
            os.kill(child.pid, signal.SIGTERM)
            empty, was_set, waited_from = child.heard()
            assert empty
            assert was_set
            assert waited_from < begun
            assert time.monotonic() - begun < SOON
        child.finish()


class _AtBytecode:
    """Calls ``act`` before the n-th bytecode of raxlog's own code in this thread, as a signal handler would."""

    def __init__(self, number: int, act: Callable[[], None]) -> None:
        self.left = number
        self.acted = 0.0
        self._act = act

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if event == "call" and not name.endswith(("waiter.py", "stop.py", "inbox.py", "deliver.py",
                                                  "multi_read.py")):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                self.acted = time.monotonic()
                self._act()
        return self


@pytest.mark.parametrize("name", ["Group.read", "read", "live"])
def test_set_may_interrupt_its_own_thread_at_any_bytecode(queue: raxlog.Store, name: str) -> None:
    """The handler runs in the middle of the wait, also where that holds a lock: nothing hangs."""
    wait, nothing = WAITS[name]
    number = 1
    while True:
        stop = Stop()
        later = threading.Timer(1.0, stop.set)  # where it sleeps before that bytecode
        later.daemon = True
        tracer = _AtBytecode(number, stop.set)
        begun = time.monotonic()
        later.start()
        sys.settrace(tracer)
        try:
            said = wait(queue, stop)
        finally:
            sys.settrace(None)
            later.cancel()
        assert said == nothing
        assert not stop._sleepers
        if not 0.0 < tracer.acted < begun + 0.9:
            break
        assert time.monotonic() - tracer.acted < 0.5, f"bytecode {number} was slept over"
        number += 1
    assert number > 100
