"""kill -9: every acknowledged write is there, none is there by half.

The state after n steps is a pure function of n: the child does step 0, 1, 2, … and says each
number as soon as the call has returned; it is killed at a random moment; the parent opens the
store and compares exactly with the model after as many steps as were said, or one more.
A control that speaks too early must be caught, else the storm proves nothing.
"""

from __future__ import annotations

import os
import random
import signal
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import raxlog

pytestmark = pytest.mark.storm

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
KILLED_ROUNDS = 300
GROWING_ROUNDS = 100
CONTROL_ROUNDS = 60

Entries = list[tuple[str, dict[bytes, bytes]]]


@pytest.fixture(autouse=True)
def _name_the_seed() -> None:
    print(f"RAXLOG_SEED={SEED}")


# -- the model ------------------------------------------------------------------------------


def _value(n: int, k: int = 0) -> bytes:
    return b"%d.%d." % (n, k) + bytes([n % 256]) * ((n * 37 + k * 101) % 700)


def do_step(stream: raxlog.Stream, n: int) -> None:
    """Step n, on a real stream."""
    kind = n % 8
    if kind == 3:
        stream.extend([{"n": _value(n, k)} for k in range(20)], ids=[f"{n + 1}-{k}" for k in range(20)])
    elif kind == 5:
        stream.delete(f"{n - 1}-1", f"{n - 1}-3", f"{n - 1}-19", f"{n}-1")
    elif kind == 6 and n % 16 == 6:
        stream.trim(maxlen=60)
    elif kind == 7 and n % 24 == 7:
        stream.append({"n": _value(n)}, id=f"{n + 1}-1", maxlen=40)
    else:
        stream.append({"n": _value(n)}, id=f"{n + 1}-1")


def model_step(entries: Entries, n: int) -> None:
    """Step n, on a plain list."""
    kind = n % 8
    if kind == 3:
        entries += [(f"{n + 1}-{k}", {b"n": _value(n, k)}) for k in range(20)]
    elif kind == 5:
        gone = {f"{n - 1}-1", f"{n - 1}-3", f"{n - 1}-19", f"{n}-1"}
        entries[:] = [entry for entry in entries if entry[0] not in gone]
    elif kind == 6 and n % 16 == 6:
        del entries[: max(0, len(entries) - 60)]
    elif kind == 7 and n % 24 == 7:
        entries.append((f"{n + 1}-1", {b"n": _value(n)}))
        del entries[: max(0, len(entries) - 40)]
    else:
        entries.append((f"{n + 1}-1", {b"n": _value(n)}))


def found(path: Path) -> tuple[Entries, int, int]:
    """What the store holds: the entries read forward, the length, the count backward."""
    with raxlog.open(path, encoding=None) as store:
        stream = store.stream("s")
        forward = [(str(entry.id), entry.fields) for entry in stream.range()]
        return forward, len(stream), sum(1 for _ in stream.range(reverse=True))


def kill_after(seconds: float, work: Callable[[int], None]) -> list[int]:
    """Fork, run work(pipe) in the child, kill it so long after its first word; its words."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            work(writing)
        finally:
            os._exit(3)
    os.close(writing)
    with os.fdopen(reading, "rb") as words:
        first = words.read(4)
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
        said = first + words.read()
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status), f"the child ended by itself: {status}"
    usable = len(said) - len(said) % 4
    return [number for (number,) in struct.iter_unpack("<i", said[:usable])]


# -- storms ---------------------------------------------------------------------------------


def _storm(path: Path, rounds: int, seed: int, speaks_early: bool = False) -> tuple[int, list[str]]:
    """Kill a writer again and again on one store; how many steps were done, what was wrong."""
    rng = random.Random(seed)
    wrong: list[str] = []
    entries: Entries = []
    done = 0
    for round_no in range(rounds):

        def write(pipe: int, start: int = done) -> None:
            with raxlog.open(path, encoding=None) as store:
                stream = store.stream("s")
                os.write(pipe, struct.pack("<i", start - 1))
                for n in range(start, start + 100_000):
                    if speaks_early:
                        os.write(pipe, struct.pack("<i", n))
                    do_step(stream, n)
                    if not speaks_early:
                        os.write(pipe, struct.pack("<i", n))

        said = kill_after(rng.random() * 0.03, write)[-1] + 1
        for n in range(done, said):
            model_step(entries, n)
        state, length, backward = found(path)
        assert length == len(state) == backward
        done = said
        if state != entries:
            model_step(entries, said)  # in flight: the commit was done, the word not said
            done += 1
            if state != entries:
                wrong.append(f"round {round_no}: {said} steps were acknowledged, the state fits neither "
                             f"{said} nor {said + 1}")
                return done, wrong
    return done, wrong


def test_every_acknowledged_step_survives_the_kill_and_none_is_there_by_half(tmp_path: Path) -> None:
    done, wrong = _storm(tmp_path / "s.rax", KILLED_ROUNDS, SEED)
    assert wrong == []
    assert done > KILLED_ROUNDS


def test_the_storm_catches_a_writer_that_acknowledges_before_it_commits(tmp_path: Path) -> None:
    caught = 0
    for part in range(CONTROL_ROUNDS):
        _, wrong = _storm(tmp_path / f"{part}.rax", 1, SEED + part, speaks_early=True)
        caught += bool(wrong)
    assert caught >= 3


def test_a_map_that_fills_up_and_grows_in_the_middle_of_groups_loses_nothing(tmp_path: Path) -> None:
    """Four threads share groups; each has its own stream and says 4 n + thread for its step n."""
    rng = random.Random(SEED)
    threads = 4
    size = 2500
    path = tmp_path / "g.rax"
    nexts = [0] * threads
    grown = 0
    for round_no in range(GROWING_ROUNDS):
        if round_no % 10 == 0:  # a new store now and then, so that it is small and grows by doubling
            path = tmp_path / f"g{round_no}.rax"
            nexts = [0] * threads

        def write(pipe: int, path: Path = path, starts: tuple[int, ...] = tuple(nexts)) -> None:
            with raxlog.open(path, map_size=1 << 16, encoding=None) as store:
                before = store._env.map._size()
                os.write(pipe, struct.pack("<i", -1))

                def run(thread: int) -> None:
                    stream = store.stream(f"t{thread}")
                    for n in range(starts[thread], 1_000_000):
                        stream.append({"n": str(n), "x": bytes([n % 256]) * size}, id=f"{n + 1}-0")
                        os.write(pipe, struct.pack("<i", n * threads + thread))
                        if store._env.map._size() > before:
                            os.write(pipe, struct.pack("<i", -2))

                workers = [threading.Thread(target=run, args=(thread,)) for thread in range(threads)]
                for worker in workers:
                    worker.start()
                for worker in workers:
                    worker.join()

        said = kill_after(0.005 + rng.random() * 0.03, write)
        grown += -2 in said
        acknowledged = list(nexts)
        for word in said:
            if word >= 0:
                assert word // threads == acknowledged[word % threads], "out of order"
                acknowledged[word % threads] += 1
        with raxlog.open(path, encoding=None) as store:
            for thread in range(threads):
                there = [(str(entry.id), entry.fields) for entry in store.stream(f"t{thread}").range()]
                assert acknowledged[thread] <= len(there) <= acknowledged[thread] + 1
                assert there == [
                    (f"{n + 1}-0", {b"n": b"%d" % n, b"x": bytes([n % 256]) * size}) for n in range(len(there))
                ]
                nexts[thread] = len(there)
    assert grown > GROWING_ROUNDS // 4, "the maps hardly grew: the storm did not test what it is for"
