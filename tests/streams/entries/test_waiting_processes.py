"""Waiting across processes: no wake-up is lost, whoever is killed, and idling costs nothing."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

import forkserver
import pytest
import raxlog
from commit_cases import listening
from raxlog.storage import clocks
from raxlog.storage.engine.environment import Environment
from raxlog.storage.locks.shared_file import WAKE
from raxlog.storage.wake import watcher
from raxlog.stream.group.waiter import WaitQueues
from waiting_cases import SOON, Sleeper, asleep, seen_now

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def env(store: raxlog.Store) -> Environment:
    return store._env


@pytest.fixture
def waiting(env: Environment) -> WaitQueues:
    return env.attached(WaitQueues)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start(program, *arguments)``: a Python process of its own, killed at the end."""
    processes = []

    def run(program: str, *arguments: object) -> subprocess.Popen[str]:
        process = forkserver.Popen(
            [sys.executable, "-c", program, *map(str, arguments)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


# Says "ready", then one line (the time) for each entry that makes it wake.
WAITER = """
import sys, time, raxlog
store = raxlog.open(sys.argv[1])
stream = store.stream("orders")
after = stream.last_id
print("ready", flush=True)
while found := store.read({"orders": after}, 1, None):
    print(time.monotonic(), flush=True)
    after = found["orders"][-1].id
"""


# -- waking and dying ---------------------------------------------------------------------------


def test_a_commit_wakes_readers_in_other_processes(
    store: raxlog.Store, start: Start
) -> None:
    waiters = [start(WAITER, store.path) for _ in range(2)]
    for waiter in waiters:
        assert said(waiter) == "ready"
    delays = []
    for n in range(50):
        time.sleep(0.005)
        store.stream("orders").append({"n": n})
        done = time.monotonic()
        delays += [float(said(waiter)) - done for waiter in waiters]
    assert sorted(delays)[50] < 0.05  # 0.2 ms on a machine that does nothing else


def test_a_killed_waiter_disturbs_nobody_and_leaves_nothing(
    store: raxlog.Store, start: Start
) -> None:
    survivor = start(WAITER, store.path)
    assert said(survivor) == "ready"
    before = sorted(os.listdir(store.path))
    for n in range(3):
        victim = start(WAITER, store.path)
        assert said(victim) == "ready"
        store.stream("orders").append({"n": n})
        said(victim)
        said(survivor)
        victim.kill()
        victim.wait()
        done = time.monotonic()
        store.stream("orders").append({"n": n})
        assert float(said(survivor)) - done < SOON
    assert sorted(os.listdir(store.path)) == before


def test_a_commit_whose_writer_was_killed_before_it_told_is_seen_within_the_safety_period(
    store: raxlog.Store, env: Environment, waiting: WaitQueues, start: Start
) -> None:
    program = """
import os, signal, sys, raxlog
from raxlog.storage import crash_point
store = raxlog.open(sys.argv[1])
crash_point.listen(lambda name: name == "commit.after" and os.kill(os.getpid(), signal.SIGKILL))
store.stream("orders").append({"item": "book"})
"""
    sleeper = Sleeper(waiting, seen_now(env, b"orders"))
    assert asleep(waiting, 1)
    assert start(program, store.path).wait(20) == -signal.SIGKILL
    killed = clocks.monotonic()
    sleeper.join(20)
    assert sleeper.woke - killed < watcher.SAFETY_PERIOD + 0.5
    assert not waiting._watcher.polling  # type: ignore[union-attr]


def inherited_watches() -> list[str]:
    """The inotify descriptors of this process."""
    found = []
    for descriptor in os.listdir("/proc/self/fd") if sys.platform.startswith("linux") else []:
        with contextlib.suppress(OSError):
            if "inotify" in os.readlink(f"/proc/self/fd/{descriptor}"):
                found.append(descriptor)
    return found


def test_a_forked_child_has_a_watch_of_its_own_and_takes_no_event_from_its_parent(
    store: raxlog.Store, env: Environment, waiting: WaitQueues
) -> None:
    orders = store.stream("orders")
    mine = Sleeper(waiting, seen_now(env, b"orders"))
    assert asleep(waiting, 1)
    child = os.fork()
    if not child:
        status = 1
        with contextlib.suppress(BaseException):
            watches = inherited_watches()
            woke = store.read({"orders": "0"}, 1, 10)
            status = 0 if woke and not watches and env.attached(WaitQueues) is not waiting else 2
        os._exit(status)
    time.sleep(0.2)
    orders.append({"item": "book"})
    mine.join(SOON)
    assert mine.outcome is True
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_interrupt_ends_a_wait_at_once_and_leaves_nothing_behind(
    store: raxlog.Store, start: Start
) -> None:
    process = start("""
import sys, time, raxlog
from raxlog.stream.group.waiter import Condition, stream_moves
from raxlog.stream.group.waiter import WaitQueues
store = raxlog.open(sys.argv[1])
env = store._env
waiting = env.attached(WaitQueues)
for kind in ("plain", "line"):
    try:
        print("ready", flush=True)
        if kind == "plain":
            waiting.wait({Condition(stream_moves, b"orders"): None}, None)
        else:
            with waiting.turn("line") as place:
                waiting.wait({Condition(stream_moves, b"orders"): None}, None, turn=place)
    except KeyboardInterrupt:
        print(time.monotonic(), len(waiting._lines), flush=True)
""", store.path)
    for _ in range(2):
        assert said(process) == "ready"
        time.sleep(0.2)
        sent = time.monotonic()
        process.send_signal(signal.SIGINT)
        at, lines = said(process).split()
        assert float(at) - sent < 0.5  # 0.1 on a machine that does nothing else
        assert lines == "0"
    assert process.wait(10) == 0


# -- the hunt for lost wake-ups --------------------------------------------------------------

READER = """
import mmap, struct, sys, threading, time
import raxlog
from raxlog.storage.wake.watcher import Watcher
from raxlog.stream.group.waiter import Condition, stream_moves
from raxlog.stream.group.waiter import WaitQueues
path, board, slots, mutant = sys.argv[1:]
if mutant == "drain after the look":
    def look_then_drain(self):
        number = self._look(False)
        self._file.drain()
        return number
    Watcher._drain_and_look = look_then_drain
store = raxlog.open(path, durability="relaxed")
env = store._env
waiting = env._attached[WaitQueues] = WaitQueues(env, safety_period=30.0)
with open(board, "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
def follow(slot):
    probe = Condition(stream_moves, b"orders")
    while True:
        with env.read() as txn:
            value = probe.value(txn)
        struct.pack_into("<Q", memory, 8 * slot, value[1])
        waiting.wait({probe: value}, None)
for slot in slots.split(","):
    threading.Thread(target=follow, args=(int(slot),), daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""


def hunt(start: Start, folder: Path, appends: int, mutant: str,
         patience: float) -> int:
    """Append in bursts with gaps of 0 to 150 µs; how many appends until a reader slept on.

    After each burst all three readers, in two processes, must show its last entry within
    ``patience`` seconds; their safety period is 30 s. Returns ``appends`` if all did.
    """
    seed = int(os.environ.get("RAXLOG_SEED", "0")) or random.randrange(1, 1 << 30)
    print(f"RAXLOG_SEED={seed}")
    chance = random.Random(seed)
    board = folder / "board"
    board.write_bytes(bytes(24))
    with open(board, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    with raxlog.open(folder / "store.rax", durability="relaxed") as store:
        orders = store.stream("orders")
        orders.append({"n": 0}, id="1-0")
        for slots in ("0,1", "2"):
            assert said(start(READER, store.path, board, slots, mutant)) == "ready"
        number = 1
        while number <= appends:
            for _ in range(chance.randint(1, 10)):
                number += 1
                orders.append({"n": number}, id=f"{number}-0")
                end = time.perf_counter() + chance.random() * 150e-6
                while time.perf_counter() < end:
                    pass
            end = time.monotonic() + patience
            while min(struct.unpack_from("<3Q", memory)) != number:
                if time.monotonic() > end:
                    return number
                time.sleep(0.0001)
    return appends


@pytest.fixture
def quick_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one, so that commits come thick and fast."""
    if os.path.isdir("/dev/shm"):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            yield Path(folder)
    else:
        yield tmp_path


@pytest.mark.storm
def test_no_wake_up_of_twenty_thousand_is_lost(
    quick_folder: Path, start: Start
) -> None:
    assert hunt(start, quick_folder, 20_000, "none", patience=10.0) == 20_000


@pytest.mark.storm
def test_the_hunt_catches_a_watcher_that_drains_after_its_look(
    quick_folder: Path, start: Start
) -> None:
    assert hunt(start, quick_folder, 20_000, "drain after the look", patience=1.0) < 20_000


@pytest.mark.storm
def test_the_hunt_catches_a_writer_that_tells_before_it_commits(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wake_before_the_commit(name: str) -> None:
        if name == "commit.before":
            os.pwrite(wake.fileno(), b"early", WAKE)

    opened = Environment.open

    def open_beside(env: Environment) -> Environment:
        nonlocal wake
        opened(env)
        assert env.files.shared is not None
        wake, env.files.descriptor = env.files.shared, null.fileno()
        return env

    null = wake = FileIO(os.devnull, "w")
    monkeypatch.setattr(Environment, "open", open_beside)
    with listening(wake_before_the_commit):
        assert hunt(start, tmp_path, 20_000, "none", patience=1.0) < 20_000


@pytest.mark.storm
def test_ten_blocked_readers_cost_next_to_nothing(
    store: raxlog.Store, start: Start
) -> None:
    program = """
import sys, time, raxlog
store = raxlog.open(sys.argv[1])
store.read({"orders": "0"}, 1, 0.01)
print("ready", flush=True)
sys.stdin.readline()
before = time.process_time()
store.read({"orders": "0"}, 1, 5.0)
print(time.process_time() - before, flush=True)
"""
    readers = [start(program, store.path) for _ in range(10)]
    for reader in readers:
        assert said(reader) == "ready"
    for reader in readers:
        assert reader.stdin is not None
        reader.stdin.write("\n")
        reader.stdin.flush()
    used = sum(float(said(reader)) for reader in readers) / 5.0
    print(f"ten blocked readers use {used:.3%} of a core")
    assert used < 0.02  # 0.002 on a machine that does nothing else
