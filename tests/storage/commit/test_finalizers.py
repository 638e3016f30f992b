"""Calls from finalizers and signal handlers, which interrupt another call of their own thread, wherever that is."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import msgpack
import pytest
import raxlog
from children import Child
from raxlog.storage import crash_point
from raxlog.storage.format import records


class Circle:
    """Garbage for the collector alone, with a finalizer, which leaves the next such garbage."""

    at_work = False

    def __init__(self, end: Callable[[], object]) -> None:
        self.itself = self
        self.end = end

    def __del__(self) -> None:
        if Circle.at_work:
            Circle(self.end)
            self.end()


@contextmanager
def finalizing(end: Callable[[], object], every: int) -> Iterator[None]:
    """Call ``end`` again and again: each time that the collector finds so many objects more than the time before."""
    before = gc.get_threshold()
    gc.collect()
    Circle.at_work = True
    gc.set_threshold(every, 1 << 20, 1 << 20)
    Circle(end)
    try:
        yield
    finally:
        Circle.at_work = False
        gc.set_threshold(*before)


class Four(NamedTuple):
    """A row that is not quite a tuple: the packer makes an iterator of it."""

    a: int = 1
    b: int = 1 << 40
    c: bytes = b"c"
    d: None = None


def in_a_transaction(store: raxlog.Store) -> None:
    """Append."""
    with store.transaction() as tx:
        tx.stream("noted").append({"n": 1})


CALLS: dict[str, Callable[[raxlog.Store], object]] = {
    "append": lambda store: store.stream("noted").append({"n": 1}),
    "extend": lambda store: store.stream("noted").extend([{"n": 1}]),
    "large": lambda store: store.stream("noted").extend([{"n": "n" * 300}] * 2000),
    "transaction": in_a_transaction,
    "take": lambda store: store.stream("taken").group("g").read("c", count=1),
    "range": lambda store: list(store.stream("taken").range(count=2)),
    "last": lambda store: store.stream("noted").last_id,
    "flush": lambda store: store.flush(),
}
READS = {"range", "last"}


class Interruption:
    """A call as a finalizer makes it, and what came of it. A finalizer may run in any thread, also the store's own."""

    def __init__(self, store: raxlog.Store, call: str) -> None:
        self.store, self.call = store, CALLS[call]
        self.outcomes: Counter[str] = Counter()
        self.is_inside = False

    def __call__(self, *_: object) -> None:
        if self.is_inside:  # a handler that its own signal interrupts for ever ends in a RecursionError
            return
        self.is_inside = True
        try:
            self.call(self.store)
            self.outcomes["done"] += 1
        except raxlog.TransactionError:
            self.outcomes["refused"] += 1
        finally:
            self.is_inside = False

    def wait(self) -> None:
        """Until none is under way."""
        while self.is_inside:
            time.sleep(0.001)


def filled(path: Path, durability: raxlog.Durability) -> raxlog.Store:
    store = raxlog.open(path, durability=durability)
    taken = store.stream("taken")
    taken.extend({"n": n} for n in range(3000))
    taken.create_group("g", start="0")
    store.stream("noted").append({"n": 0})
    if durability == "buffered":
        store.flush()
    return store


@pytest.mark.parametrize("durability", ["relaxed", "buffered"])
@pytest.mark.parametrize("call", [call for call in CALLS if call != "large"])
def test_a_call_from_a_finalizer_is_done_or_refused_at_once_and_damages_nothing(
    tmp_path: Path, call: str, durability: raxlog.Durability
) -> None:
    path = tmp_path / "s.rax"

    def work(say: Callable[[object], None]) -> None:
        ids = []
        with filled(path, durability) as store:
            interruption = Interruption(store, call)
            longest = 0.0
            for every in (5, 7, 11, 13, 17):
                with finalizing(interruption, every):
                    for n in range(60):
                        begun = time.monotonic()
                        ids.append(store.stream(f"s-{n % 20}").append({"n": n}))
                        longest = max(longest, time.monotonic() - begun)
            interruption.wait()
            say((interruption.outcomes, longest))
            store.flush()
            say(sum(len(store.stream(f"s-{n}")) for n in range(20)))
            say(len(store.stream("noted")))

    with Child(work) as child:
        (outcomes, longest), appended, noted = child.finish()
    print(dict(outcomes), f"{longest:.3f} s")
    assert sum(outcomes.values()) > 20
    assert longest < 10
    assert appended == 300
    if call in {"append", "extend", "transaction"}:
        assert noted == 1 + outcomes["done"]
    if call in READS and durability == "relaxed":
        assert not outcomes["refused"]
    assert raxlog.check(path).ok


@pytest.mark.parametrize("rounds", [4, pytest.param(20, marks=pytest.mark.storm)])
def test_finalizers_of_a_process_that_follows_another_one_damage_nothing(tmp_path: Path, rounds: int) -> None:
    path = tmp_path / "s.rax"

    def writes(say: Callable[[object], None]) -> None:
        with raxlog.open(path, durability="relaxed") as store:
            say("open")
            while True:
                store.stream("taken").append({"n": 1})

    def follows(say: Callable[[object], None]) -> None:
        with raxlog.open(path, durability="relaxed") as store:
            noted = store.stream("noted")
            interruption = Interruption(store, "append")
            seen, last = 0, None
            for every in (5, 7, 11, 13, 17, 19) * rounds:
                with finalizing(interruption, every):
                    for _ in range(20):
                        entries = len(store.stream("taken"))
                        assert entries >= seen
                        seen = entries
                interruption.wait()
                assert len(noted) == 1 + interruption.outcomes["done"]
                assert last is None or noted.last_id >= last
                last = noted.last_id
            say(interruption.outcomes)

    filled(path, "relaxed").close()
    with Child(writes) as other, Child(follows) as child:
        other.heard()
        (outcomes,) = child.finish()
        other.kill()
    print(dict(outcomes))
    assert outcomes["done"] > 10
    assert raxlog.check(path).ok


@pytest.mark.parametrize("durability", ["relaxed", "buffered"])
def test_a_signals_handler_that_appends_in_the_middle_of_an_append_ends_at_once(
    tmp_path: Path, durability: raxlog.Durability
) -> None:
    path = tmp_path / "s.rax"

    def work(say: Callable[[object], None]) -> None:
        with filled(path, durability) as store:
            interruption = Interruption(store, "append")
            signal.signal(signal.SIGALRM, interruption)
            done = threading.Event()

            def appends() -> None:
                while not done.is_set():
                    store.stream("beside").append({"n": 1})

            beside = threading.Thread(target=appends)
            beside.start()
            signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
            begun = time.monotonic()
            count = 0
            while time.monotonic() < begun + 2:
                store.stream("s").append({"n": count})
                count += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            done.set()
            beside.join()
            store.flush()
            say((interruption.outcomes, time.monotonic() - begun))
            say((count, len(store.stream("s")), len(store.stream("noted"))))

    with Child(work) as child:
        (outcomes, seconds), (count, appended, noted) = child.finish()
    print(dict(outcomes), count, f"{seconds:.1f} s")
    assert sum(outcomes.values()) > 20
    assert count == appended
    assert noted == 1 + outcomes["done"]
    assert seconds < 20
    assert raxlog.check(path).ok


@pytest.mark.parametrize("call", ["large", "take", "flush"])
@pytest.mark.parametrize("durability", ["relaxed", "buffered"])
def test_a_write_from_a_finalizer_in_a_checkpoint_is_done_or_refused_at_once(
    tmp_path: Path, durability: raxlog.Durability, call: str
) -> None:
    path = tmp_path / "s.rax"

    def work(say: Callable[[object], None]) -> None:
        with filled(path, durability) as store:
            interruption = Interruption(store, call)

            def reached(point: str) -> None:
                if point in {"log.applied", "log.kept"}:  # a finalizer could run there as well
                    interruption()

            crash_point.listen(reached)
            begun = time.monotonic()
            for n in range(4000):
                store.stream("s").append({"n": n, "x": "x" * 500})
            store.flush()
            seconds = time.monotonic() - begun
            crash_point.listen(None)
            interruption.wait()
            store.flush()
            say((interruption.outcomes, seconds))
            say((len(store.stream("s")), len(store.stream("noted"))))

    with Child(work) as child:
        (outcomes, seconds), (appended, noted) = child.finish()
    print(dict(outcomes), f"{seconds:.1f} s")
    assert sum(outcomes.values()) > 2
    assert seconds < 20
    assert (appended, noted) == (4000, 1 + (2000 * outcomes["done"] if call == "large" else 0))
    assert raxlog.check(path).ok


def test_a_row_is_packed_whole_whatever_finalizers_pack_in_between() -> None:
    rows = [Four(), [1, 2, 3], {"a": Four()}, b"bytes", "text"]
    wanted = [msgpack.packb(row) for row in rows]
    wrong: list[object] = []
    ran = [0]

    def end() -> None:
        ran[0] += 1
        wrong.extend(row for row, want in zip(rows, wanted, strict=True) if records.pack(row) != want)

    with finalizing(end, 7):
        held = []
        for _ in range(2000):
            held.append([None])  # the collector counts what stays
            for row, want in zip(rows, wanted, strict=True):
                if records.pack(row) != want:
                    wrong.append(row)
    assert wrong == []
    assert ran[0] > 100


@pytest.mark.parametrize("how", ["the finalizer writes", "the finalizer waits for a thread that writes"])
def test_finalizers_that_run_in_the_middle_of_a_commit_damage_neither_store(tmp_path: Path, how: str) -> None:
    with raxlog.open(tmp_path / "a.rax", durability="relaxed") as one, \
            raxlog.open(tmp_path / "b.rax", durability="relaxed") as other:
        numbers, noted, done = count(), list[int](), False
        asked: SimpleQueue[None] = SimpleQueue()  # a finalizer that interrupts a call of an Event's waits for itself

        def note() -> None:
            number = next(numbers)  # a finalizer may run in a thread of the store's, beside another call of this
            other.stream(f"finalizer-{number}").append({"n": number})
            noted.append(number)

        def work() -> None:
            while not done:
                asked.get(timeout=60)
                while not asked.empty():
                    asked.get()
                note()

        def end() -> None:
            if how == "the finalizer writes":
                note()
            else:  # the collector lets other threads run
                asked.put(None)
                time.sleep(0.001)

        thread = threading.Thread(target=work)
        thread.start()
        with finalizing(end, 13):
            for n in range(300):
                one.stream(f"s-{n}").append({"n": n})
        done = True
        asked.put(None)
        thread.join()
        assert len(noted) > 10
    for name, many in (("a", 300), ("b", len(noted))):
        assert raxlog.check(tmp_path / f"{name}.rax").ok
        with raxlog.open(tmp_path / f"{name}.rax") as store:
            found = [next(iter(store.stream(stream))).fields["n"] for stream in store.streams()]
        assert sorted(map(int, found)) == list(range(many))
