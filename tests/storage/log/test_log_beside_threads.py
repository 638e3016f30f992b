"""The log where threads of one process meet in the middle of its steps, or an exception strikes there; and forks.

The plain sources are run, whose every line can be one at which a thread is switched out.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forkserver
import lmdb
import pytest
import raxlog
from children import Child

BEGIN = """
import inspect, os, signal, subprocess, sys, threading
import raxlog
from raxlog.storage.log import checkpoint, log as logs, transaction as overlays
path = sys.argv[1]
store = raxlog.open(path)
log = store._env.map.log
stream = store.stream("s")

def line_of(function, begin):
    lines, first = inspect.getsourcelines(function)
    return first + next(at for at, line in enumerate(lines) if line.strip().startswith(begin))

def numbers(store):
    return [int(entry.fields["n"]) for entry in store.stream("s").range()]

def run(*parts):
    threads = [threading.Thread(target=part) for part in parts]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return threads
"""

STRUCK_BEHIND_LMDB = """
stream.append({"n": 0})
target, struck, raised, done = line_of(checkpoint.Checkpoints.put_all, "words[APPLIED] = upto"), [], set(), set()

def trace(frame, event, _):
    if frame.f_code is checkpoint.Checkpoints.put_all.__code__:
        if event == "line" and frame.f_lineno == target and frame.f_locals["txn"] is not None and not struck:
            struck.append(True)
            raise TimeoutError("a signal's handler")
        return trace

together = threading.Barrier(4)

def work(first):
    together.wait()
    for n in range(first, first + 4):
        try:
            stream.append({"n": n, "x": os.urandom(600_000)})
            done.add(n)
        except TimeoutError:
            raised.add(n)

threading.settrace(trace)
run(*(lambda first=first: work(first) for first in (1, 11, 21, 31)))
threading.settrace(None)
there = numbers(store)
assert struck and raised
assert len(there) == len(set(there)) and {0, *done} <= set(there), (sorted(there), done, raised)
"""

TAKEN_IN_BY_A_READER = """
for n in range(2): stream.append({"n": n})
counted, taken, written = threading.Event(), threading.Event(), threading.Event()
target = line_of(logs.Log.step, "checksum =")

def trace_writer(frame, event, _):
    if frame.f_code is logs.Log.reach.__code__ and not counted.is_set():
        counted.set()
        taken.wait(1)

def trace_reader(frame, event, _):
    if frame.f_code is logs.Log.step.__code__:
        if event == "line" and frame.f_lineno == target and not taken.is_set():
            taken.set()
            written.wait(1)
        return trace_reader

def write():
    sys.settrace(trace_writer)
    stream.append({"n": 2})
    sys.settrace(None)
    written.set()

def read():
    counted.wait(5)
    sys.settrace(trace_reader)
    len(stream)
    sys.settrace(None)

run(write, read)
assert counted.is_set()
for n in range(3, 8): stream.append({"n": n})
assert numbers(store) == list(range(8))
"""

UNDONE_BESIDE_A_READER = """
for n in range(3): stream.append({"n": n})
struck, undoing, has_read = threading.Event(), threading.Event(), threading.Event()
target, real = line_of(overlays.Overlay.undo, "self.rows[key] = older"), logs.Log.reach

def reach(self, *place):
    if threading.current_thread().name == "writer" and not struck.is_set():
        struck.set()
        raise TimeoutError("a signal's handler")
    real(self, *place)

logs.Log.reach = reach

def trace(frame, event, _):
    if frame.f_code is overlays.Overlay.undo.__code__:
        if event == "line" and frame.f_lineno == target and not undoing.is_set():
            undoing.set()
            has_read.wait(1)
        return trace

def write():
    threading.current_thread().name = "writer"
    sys.settrace(trace)
    try: stream.append({"n": 3})
    except TimeoutError: pass
    sys.settrace(None)

def read():
    undoing.wait(5)
    seen.append((numbers(store), len(stream)))
    has_read.set()

seen = []
run(write, read)
assert struck.is_set() and undoing.is_set()
assert seen == [([0, 1, 2, 3], 4)], seen
for n in range(4, 8): stream.append({"n": n})
assert numbers(store) == list(range(8))
"""

STRUCK_IN_A_READ = """
import dis
read = logs.Log.begin.__code__
calls = {step.offset for step in dis.get_instructions(read) if step.opname == "CALL"}
left, called, n, wanted = 0, False, 0, 0

def trace(frame, event, _):
    global left, called
    if frame.f_code is read:
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= called  # CPython runs a signal's handler behind a call
            if called and left == 0:
                sys.settrace(None)
                raise TimeoutError("a signal's handler")
            called = frame.f_lasti in calls
    elif event == "call":
        return None
    return trace

def append():
    global n
    stream.append({"n": n})
    n += 1

while left <= 0:
    append()
    log.checkpoints.make(True)  # what LMDB has now is forgotten by the next read
    wanted += 1
    left, called = wanted, False
    sys.settrace(trace)
    try: numbers(store)
    except TimeoutError: pass
    sys.settrace(None)
    writer = threading.Thread(target=append, daemon=True)
    writer.start()
    writer.join(5)
    assert not writer.is_alive(), f"struck behind call {wanted} of a read, which holds a lock"
assert wanted > 6
assert numbers(store) == list(range(n))
"""

END = """
there = numbers(store)
os.environ.pop("RAXLOG_PURE")
code = "import raxlog, sys; print([int(e.fields['n']) for e in raxlog.open(sys.argv[1]).stream('s').range()])"
other = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
assert other.stdout == f"{there}\\n", other
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("steps", [STRUCK_BEHIND_LMDB, TAKEN_IN_BY_A_READER, UNDONE_BESIDE_A_READER,
                                   STRUCK_IN_A_READ],
                         ids=["struck behind LMDB's commit", "taken in by a reader", "undone beside a reader",
                              "struck in a read"])
def test_where_threads_meet_or_an_exception_strikes_each_commit_is_there_once(tmp_path: Path, steps: str) -> None:
    ended = forkserver.run([sys.executable, "-c", BEGIN + steps + END, tmp_path / "s.rax"], capture_output=True,
                           text=True, check=False, timeout=60, env={**os.environ, "RAXLOG_PURE": "1"})
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert raxlog.check(tmp_path / "s.rax").ok


def test_a_writer_that_found_no_place_for_a_reader_hides_no_later_state_from_reads(path: Path) -> None:
    """It looks into LMDB by a write transaction, whose number the next checkpoint's state gets."""
    with raxlog.open(path, max_readers=64) as store:
        inside, stream = store._env.map.log, store.stream("s")
        for n in range(5):
            stream.append({"n": n})
        inside.checkpoints.make(True)
        held: list[Any] = []

        def other(_: Callable[[Any], None]) -> None:
            with raxlog.open(path, max_readers=64) as theirs:
                theirs.stream("s").append({"n": 5})

        with Child(other) as child:
            child.finish()
        while True:
            try:
                held.append(inside.tree.begin())
            except lmdb.ReadersFullError:
                break
        stream.append({"n": 6})
        held.clear()
        inside.checkpoints.make(True)
        stream.append({"n": 7})
        assert [int(entry.fields["n"]) for entry in stream.range()] == list(range(8))


def test_a_last_checkpoint_that_lies_is_refused_by_reads(path: Path) -> None:
    store = raxlog.open(path)
    inside = store._env.map.log
    for n in range(50):
        store.stream("s").append({"n": n})
    inside.ring.words[1] = inside.ring.words[0]

    def use() -> None:
        store.stream("s").append({"n": 50})  # forgets what LMDB is said to hold
        len(store.stream("s"))

    with pytest.raises(raxlog.CorruptionError, match="damaged"):
        use()
    with pytest.raises(raxlog.CorruptionError, match="damaged"):
        store.close()
    with raxlog.open(path) as store:
        assert len(store.stream("s")) >= 50


def test_a_read_that_adopts_a_larger_map_leaves_a_transaction_of_another_thread_whole(path: Path) -> None:
    with raxlog.open(path, map_size=4 << 20) as store:
        for n in range(20):
            store.stream(f"s{n % 2}").append({"n": n, "x": os.urandom(400)})

        def grow(say: Callable[[Any], None]) -> None:
            with raxlog.open(path, map_size=64 << 20) as theirs:
                inside = theirs._env.map.log
                for _ in range(19):
                    theirs.stream("grow").append({"x": os.urandom(200_000)})
                inside.checkpoints.make(True)
                with inside.checkpoints.making:  # it is slow to come: a slow disk
                    for _ in range(3):
                        theirs.stream("grow").append({"x": os.urandom(170_000)})
                    say(None)
                    asked.wait(20)
                inside.checkpoints.make(True)
                say(None)
                ended.wait(20)

        context = multiprocessing.get_context("fork")
        asked, ended = context.Event(), context.Event()
        with Child(grow) as child:
            child.heard()
            seen: list[int] = []
            reading = threading.Thread(target=lambda: seen.append(len(store.stream("grow"))))
            with store.transaction() as tx:
                tx.stream("s1").append({"n": 20})
                assert len(list(tx.stream("s0").range())) == 10
                asked.set()
                child.heard()
                reading.start()
                reading.join(0.3)
                assert len(list(tx.stream("s1").range())) == 11
                tx.stream("s0").append({"n": 21})
            reading.join(20)
            assert seen == [22]
            ended.set()
            child.finish()
        assert len(store.stream("s0")) == len(store.stream("s1")) == 11


FORKS = """
import os, signal, sys, threading, time
import raxlog
store = raxlog.open(sys.argv[1])
inside, never = threading.Event(), threading.Event()

def hold():
    with store.transaction() as tx:
        tx.stream("s").append({"n": 1})
        inside.set()
        never.wait()

def compact():
    store.compact(progress=lambda step, *_: step == "copied" and (inside.set(), never.wait()))

threading.Thread(target=locals()[sys.argv[2]], daemon=True).start()
inside.wait()
child = os.fork()
if not child:
    os.close(1)
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("work", ["hold", "compact"])
def test_an_idle_child_of_a_killed_process_keeps_neither_its_lock_nor_its_lease(path: Path, work: str) -> None:
    with raxlog.open(path, lock_timeout=3) as store:
        for n in range(200):
            store.stream("s").append({"n": n, "x": os.urandom(5000)})
        store.stream("s").trim(maxlen=10)
        killed = forkserver.run([sys.executable, "-c", FORKS, path, work], stdout=subprocess.PIPE, check=False,
                                timeout=60)
        assert killed.returncode == -signal.SIGKILL
        child = int(killed.stdout)
        try:
            store.stream("s").append({"n": 200})
            assert store.compact().generation == 2
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)
        assert len(store.stream("s")) == 11
