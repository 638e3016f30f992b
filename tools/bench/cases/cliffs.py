"""What a call costs as the work grows, and how long an append waits beside one: each at a size and a tenth of it.

A case prepares a new stream, or the store, which is not timed, and returns the call that is. Of cliffs() the call
returns how much it has done.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import raxlog
from raxlog.index.subjects.subscription import Subscription
from raxlog.stream.node.arguments import Refs

from ..peers import ROW
from ..rounds import Figure, Rounds, ms_of, rate_of

AT_ONCE = 10_000
_NUMBERS = count()


class GrowthCase(NamedTuple):
    """One line of the table: what is done one by one, and how many of it."""

    name: str
    size: int
    prepare: Callable[[Any, int], Callable[[], int]]
    is_wide: bool = False  # it is given the store, and no stream of its own


def cliffs(rounds: Rounds) -> list[Figure]:
    """Microseconds for one of each case's units, at a tenth of the size and at the size."""
    figures: list[Figure] = []
    folder, numbers = rounds.folder, count()
    with raxlog.open(folder / "cliffs.rax", durability="relaxed") as store:

        def run(case: GrowthCase, size: int) -> float:
            return 1e6 / rate_of(case.prepare(store if case.is_wide else store.stream(f"s{next(numbers)}"), size))

        for case in CASES:
            figures += rounds.contest(case.name, {
                f"{size:,}": partial(run, case, size) for size in (case.size // 10, case.size)
            }, "µs", lower_is_better=True)
    python, listed = [sys.executable], [sys.executable, "-m", "raxlog", "streams", str(store.path)]
    return [
        *figures,
        *rounds.contest("a command", {
            "python -c pass": lambda: ms_of(lambda: said_by(*python, "-c", "pass")),
            "raxlog streams": lambda: ms_of(lambda: said_by(*listed)),
        }, "ms", lower_is_better=True),
        *rounds.contest("a large entry: memory its append takes, of its size", {
            f"{size:,}": partial(memory, folder / "large.rax", size) for size in (10_000_000, 100_000_000)
        }, "times", lower_is_better=True),
    ]


def said_by(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def memory(path: Path, size: int) -> float:
    """The most of Python's memory an append takes, in copies of the value. LMDB's own copy is not among them."""
    shutil.rmtree(path, ignore_errors=True)
    value = bytes(size)
    with raxlog.open(path) as store:
        tracemalloc.start()
        try:
            store.stream("s").append({"v": value})
            return tracemalloc.get_traced_memory()[1] / size
        finally:
            tracemalloc.stop()


def pending(stream: raxlog.Stream, size: int) -> tuple[raxlog.Group, list[raxlog.StreamID]]:
    """A group with so many entries pending, and their IDs."""
    for at in range(0, size, AT_ONCE):
        stream.extend([ROW] * min(AT_ONCE, size - at))
    group = stream.create_group("g")
    return group, [entry.id for _ in range(0, size, AT_ONCE) for entry in group.read("a", AT_ONCE)]


def of_pending(call: Callable[[raxlog.Group, list[raxlog.StreamID]], Any]) -> Callable[[raxlog.Stream, int], Any]:
    """Makes pending() ready for a call that is given it."""
    return lambda stream, size: partial(call, *pending(stream, size))


def info(stream: raxlog.Stream, size: int) -> Callable[[], int]:
    pending(stream, size)
    return lambda: len([stream.info(), stream.groups()]) // 2


def consumers(stream: raxlog.Stream, size: int) -> Callable[[], int]:
    group = stream.create_group("g")
    for n in range(size):
        group.create_consumer(str(n))
    return lambda: len([group.consumers(), group.pending(), group.info()]) // 3


def names(store: raxlog.Store, size: int) -> Callable[[], int]:
    appends_to_many(store, size)
    return lambda: len(store.streams())


def delete_ex(stream: raxlog.Stream, size: int, refs: Refs) -> Callable[[], int]:
    group, ids = pending(stream, 100)
    for at in range(1, size):
        stream.create_group(f"g{at}", "$")
    group.ack(*ids)
    stream.delete_ex(ids[0], refs=refs)  # after another process has committed, the groups are read again first
    return lambda: len(stream.delete_ex(ids[1], refs=refs))


def delete_ex_cold(store: raxlog.Store, size: int) -> Callable[[], int]:
    stream = store.stream(os.urandom(8))
    work = delete_ex(stream, size, "acked")
    said_by(sys.executable, "-m", "raxlog", "add", str(store.path), "elsewhere", "n=1")
    return work


def remove_owner(store: raxlog.Store, size: int) -> Callable[[], int]:
    store.subjects.remove_owner("rest")
    store.subjects.insert_many([
        Subscription.of("a.b", owner=str(n) if n % (size // 100) == 0 else "rest") for n in range(size)
    ])
    return lambda: sum(len(store.subjects.remove_owner(str(n))) for n in range(0, size, size // 100))


def appends_to_many(store: raxlog.Store, size: int) -> Callable[[], int]:
    def append() -> int:
        with store.transaction() as tx:
            for n in range(size):
                tx.stream(f"wide{n}").append(ROW)
        return size

    append()
    return append


def reopening(store: raxlog.Store, size: int) -> Callable[[], int]:
    path = store.path.with_name("compacted.rax")
    shutil.rmtree(path, ignore_errors=True)
    with raxlog.open(path, durability="relaxed") as own:
        for _ in range(0, size, AT_ONCE):
            own.stream("s").extend([ROW] * AT_ONCE)
        own.stream("s").trim(maxlen=size // 2)
        own.stream("s").append(ROW)
    with raxlog.open(path) as own:
        own.compact()

    def reopen() -> int:
        raxlog.open(path).close()
        return 1

    return reopen


def live(store: raxlog.Store, size: int) -> Callable[[], int]:
    def work() -> int:
        with store.subscribe_many(f"many.{n}" for n in range(size)) as subscriptions:
            return len(subscriptions)

    return work


def fan_out(store: raxlog.Store, size: int) -> Callable[[], int]:
    heard: list[raxlog.Message] = []
    subject = f"fan.{next(_NUMBERS)}"
    store.subscribe_many([subject] * size, callback=heard.append)

    def work() -> int:
        for _ in range(5):
            store.publish(subject, ROW)
        while len(heard) < size * 5:
            time.sleep(0.0005)
        return len(heard)

    return work


def buffered(store: raxlog.Store, threads: int) -> Callable[[], int]:
    def appends(stream: raxlog.Stream) -> int:
        for _ in range(3_000):
            stream.append(ROW)
        return 3_000

    def work() -> int:
        path = store.path.with_name("threads.rax")
        with raxlog.open(path, durability="buffered") as other, ThreadPoolExecutor(threads) as pool:
            return sum(pool.map(appends, [other.stream("s")] * threads))

    return work


CASES = [
    GrowthCase("autoclaim, a row claimed", 20_000,
         of_pending(lambda group, ids: len(group.autoclaim("b", count=len(ids)).entries))),
    GrowthCase("autoclaim, a row not due", 20_000,
         of_pending(lambda group, ids: len(ids) + len(group.autoclaim("b", min_idle=3600, count=len(ids)).entries))),
    GrowthCase("pending(min_idle=), a page of none that is due", 1_000_000,
         of_pending(lambda group, _: 1 + len(group.pending_entries(count=100, min_idle=3600)))),
    GrowthCase("info() and groups(), by entries", 1_000_000, info),
    GrowthCase("consumers(), pending() and info() together, by consumers", 10_000, consumers),
    GrowthCase("streams(), a name", 10_000, names, is_wide=True),
    GrowthCase("ack_delete, an ID", 10_000, of_pending(lambda group, ids: len(group.ack_delete(*ids)))),
    GrowthCase("delete_ex of one ID, acked, by groups", 5_000, partial(delete_ex, refs="acked")),
    GrowthCase("delete_ex of one ID, delref, by groups", 5_000, partial(delete_ex, refs="delref")),
    GrowthCase("delete_ex of one ID after another process' commit, by groups", 5_000, delete_ex_cold, is_wide=True),
    GrowthCase("remove_owner, of so many on one subject", 10_000, remove_owner, is_wide=True),
    GrowthCase("an append to one of so many streams, in a transaction", 10_000, appends_to_many, is_wide=True),
    GrowthCase("an opening after a compaction, by entries", 1_000_000, reopening, is_wide=True),
    GrowthCase("live subscription, made and closed", 10_000, live, is_wide=True),
    GrowthCase("live delivery, by callbacks", 10_000, fan_out, is_wide=True),
    GrowthCase("buffered append, by threads", 64, buffered, is_wide=True),
]


def stalls(rounds: Rounds) -> list[Figure]:
    """Milliseconds, at a tenth of the size and at the size. What is worked on is made ready first, not beside."""
    figures: list[Figure] = []
    with raxlog.open(rounds.folder / "stalls.rax") as store:
        for name, (size, prepare) in STALLS.items():
            figures += rounds.contest(f"longest stall beside {name}", {
                f"{entries:,}": partial(_longest, store, prepare, entries) for entries in (size // 10, size)
            }, "ms", lower_is_better=True)
    return figures


def _longest(store: raxlog.Store, prepare: Callable[[raxlog.Stream, int], Callable[[], object]], size: int) -> float:
    work = prepare(store.stream(f"s{next(_NUMBERS)}"), size)
    beside = store.stream("beside")
    ended = threading.Event()
    waits = [0.0]

    def append() -> None:
        while not ended.is_set():
            start = time.perf_counter()
            beside.append(ROW)
            waits.append(time.perf_counter() - start)

    appender = threading.Thread(target=append)
    appender.start()
    work()
    ended.set()
    appender.join()
    return max(waits) * 1000


def _trim(stream: raxlog.Stream, size: int, refs: Refs) -> Callable[[], object]:
    group, ids = pending(stream, size)
    if refs == "acked":
        group.ack(*ids)
    return lambda: stream.trim(maxlen=0, refs=refs)


def _unread(stream: raxlog.Stream, size: int) -> Callable[[], object]:
    stream.extend([ROW] * size)
    return partial(stream.create_group("g").read, "a", count=None)


STALLS: dict[str, tuple[int, Callable[[raxlog.Stream, int], Callable[[], object]]]] = {
    "trim, delref": (500_000, partial(_trim, refs="delref")),
    "trim, acked": (500_000, partial(_trim, refs="acked")),
    "delete_consumer, drop": (900_000, of_pending(lambda group, _: group.delete_consumer("a", pending="drop"))),
    "ack": (100_000, of_pending(lambda group, ids: group.ack(*ids))),
    "ack_delete": (100_000, of_pending(lambda group, ids: group.ack_delete(*ids))),
    "delete": (50_000, lambda stream, size: partial(stream.delete, *stream.extend([ROW] * size))),
    "read(count=None)": (200_000, _unread),
    "extend": (1_000_000, lambda stream, size: partial(stream.extend, [ROW] * size)),
}
