"""What other processes do in a case: ``python -m raxlog.tools.bench.children NAME PATH …``.

Each prints a line once it is ready, and ends with its input, so that none outlives the measuring process.
"""

from __future__ import annotations

import random
import select
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import raxlog

from .peers import ROW, SqliteQueue, read_hundred


@contextmanager
def running(*arguments: object, count: int = 1) -> Iterator[list[Any]]:
    """So many of them that are ready, until the block ends."""
    command = [sys.executable, "-m", f"{__package__}.children", *map(str, arguments)]
    with ExitStack() as stack:
        processes = [stack.enter_context(_started(command)) for _ in range(count)]
        for process in processes:
            process.stdout.readline()
        yield processes


@contextmanager
def _started(command: list[str]) -> Iterator[Any]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
                               process_group=0)  # Ctrl-C is not for it
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def at_work(workers: list[Any], work: str, seconds: float) -> list[tuple[float, int]]:
    """Workers that do the same for so long: seconds of processor time and operations of each."""
    for worker in workers:
        worker.stdin.write(f"{work} {seconds}\n")
    lines = [worker.stdout.readline().split() for worker in workers]
    return [(float(spent), int(done)) for spent, done in lines]


def _ready() -> None:
    print(flush=True)


def _reader(path: str, every: str = "0.005") -> None:
    stream = raxlog.open(path).stream("events")
    _ready()
    while not select.select([sys.stdin], [], [], float(every))[0]:
        list(stream.range(reverse=True, count=10))


def _sqlite_reader(path: str, every: str = "0.005") -> None:
    db = sqlite3.connect(path, isolation_level=None)
    _ready()
    while not select.select([sys.stdin], [], [], float(every))[0]:
        db.execute("SELECT id, data FROM log ORDER BY id DESC LIMIT 10").fetchall()


def _taker(path: str) -> None:
    group = raxlog.open(path).stream("events").group("g")
    _ready()
    for _ in sys.stdin:
        group.ack(*[entry.id for entry in group.read("w", 1)])
        _ready()


def _sqlite_taker(path: str) -> None:
    queue = SqliteQueue(Path(path), batch=1)
    _ready()
    for _ in sys.stdin:
        queue.read_and_ack()
        _ready()


def _waiter(path: str, times: str) -> None:
    store, last = raxlog.open(path), "0"
    _ready()
    for _ in range(int(times)):
        entry = store.read({"events": last}, timeout=None)["events"][0]
        now, last = time.monotonic_ns(), str(entry.id)
        print(now, flush=True)


def _listener(path: str, times: str) -> None:
    with raxlog.open(path) as store, store.subscribe("events.*") as live:
        _ready()
        for _ in range(int(times)):
            live.get()
            print(time.monotonic_ns(), flush=True)


def _sleeper(path: str, seconds: str) -> None:
    group = raxlog.open(path).stream("quiet").group("g")
    _ready()
    group.read("w", 1, timeout=float(seconds))


def _worker(path: str) -> None:
    name = random.randrange(1 << 30)
    _ready()
    for line in sys.stdin:
        work, seconds = line.split()
        with raxlog.open(path) as store:  # only while it works: a store that no other has open is quicker
            stream = store.stream("events")
            one = read_hundred(stream) if work == "read" else partial(stream.append, {**ROW, "seq": name})
            before, end, done = time.process_time(), time.monotonic() + float(seconds), 0
            while not done or time.monotonic() < end:
                one()
                done += 1
            spent = time.process_time() - before
        print(spent, done, flush=True)


if __name__ == "__main__":
    work: dict[str, Callable[..., None]] = {
        "reader": _reader, "sqlite-reader": _sqlite_reader, "taker": _taker, "sqlite-taker": _sqlite_taker,
        "waiter": _waiter, "listener": _listener, "sleeper": _sleeper, "worker": _worker}
    work[sys.argv[1]](*sys.argv[2:])
