"""What a call costs as the work grows: each case beside the same at a tenth of the size.

A case makes a new stream ready, which is not timed, and returns the call that is: it says how many it has done.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

import raxlog

from .rounds import Figure, contest

ROW = {"sensor": "device-000123", "temp": 21.5, "seq": 1}
AT_ONCE = 10_000


class Case(NamedTuple):
    """One line of the table: what is done one by one, and how many of it."""

    name: str
    size: int
    prepare: Callable[[raxlog.Stream, int], Callable[[], int]]


def cliffs(folder: Path, rounds: int) -> list[Figure]:
    """Microseconds for one of each case's units, at a tenth of the size and at the size."""
    figures: list[Figure] = []
    numbers = count()
    with raxlog.open(folder / "cliffs.rax", durability="relaxed") as store:

        def run(case: Case, size: int) -> float:
            work = case.prepare(store.stream(f"s{next(numbers)}"), size)
            start = time.perf_counter()
            done = work()
            return (time.perf_counter() - start) / done * 1e6

        for case in CASES:
            sizes: dict[str, Callable[[], float]] = {
                f"{size:,}": partial(run, case, size) for size in (case.size // 10, case.size)
            }
            figures += contest(case.name, sizes, rounds, "µs", lower_is_better=True)
    return figures


def pending(stream: raxlog.Stream, size: int) -> tuple[raxlog.Group, list[raxlog.StreamID]]:
    """A group with so many entries pending, and their IDs."""
    for at in range(0, size, AT_ONCE):
        stream.extend([ROW] * min(AT_ONCE, size - at))
    group = stream.create_group("g", "0")
    return group, [entry.id for _ in range(0, size, AT_ONCE) for entry in group.read("a", AT_ONCE)]


def autoclaim(stream: raxlog.Stream, size: int) -> Callable[[], int]:
    group, _ = pending(stream, size)
    return lambda: len(group.autoclaim("b", count=size)[1])


def autoclaim_in_vain(stream: raxlog.Stream, size: int) -> Callable[[], int]:
    group, _ = pending(stream, size)
    return lambda: size + len(group.autoclaim("b", min_idle=3600, count=size)[1])


def ack_delete(stream: raxlog.Stream, size: int) -> Callable[[], int]:
    group, ids = pending(stream, size)
    return lambda: len(group.ack_delete(*ids))


def delete_ex(stream: raxlog.Stream, size: int, refs: str) -> Callable[[], int]:
    group, ids = pending(stream, 100)
    for at in range(1, size):
        stream.create_group(f"g{at}", "$")
    group.ack(*ids)
    stream.delete_ex(ids[0], refs=refs)  # after another process has committed, the groups are read again first
    return lambda: len(stream.delete_ex(ids[1], refs=refs))


CASES = [
    Case("autoclaim, a row claimed", 20_000, autoclaim),
    Case("autoclaim, a row not due", 20_000, autoclaim_in_vain),
    Case("ack_delete, an ID", 10_000, ack_delete),
    Case("delete_ex of one ID, acked, by groups", 5_000, partial(delete_ex, refs="acked")),
    Case("delete_ex of one ID, delref, by groups", 5_000, partial(delete_ex, refs="delref")),
]
