"""The demo's kills: a writer is killed at a random moment, and everything it acknowledged is looked for.

writer     append k   append k+1   append k+2 …            ✗ SIGKILL
acks           ID         ID                     must be there: these, whole, in order
store        k          k+1          k+2          may be there: one more, on disk but not acknowledged

The writer takes the entries of the stream "imported" and appends them to "copied", durably, one by one. It
acknowledges an ID only after append() has returned, as a workload of crashtest does, and never ends by itself.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from .....recovery.crashtest.run.child import Ack, Runner
from .....storage import clocks
from .....storage.engine.open_options import BYTES
from .....store import Store
from .....stream.node.stream_id import StreamID
from ...status import STORE, CommandError
from .sample_text import Pairs

SOURCE = "imported"
TARGET = "copied"
_START_LIMIT = 10.0  # seconds a writer may take until its first append

Figures = dict[str, Any]
Say = Callable[[str], None]


class Mismatch(Exception):
    """The demo has found an entry that is missing, changed or not expected."""


def kill_rounds(path: Path, events: list[Pairs], rounds: int, chance: random.Random, say: Say) -> Figures:
    """Kill ``rounds`` writers, one after the other, and check after each. Raises Mismatch."""
    known: list[StreamID] = []  # of every entry that must be there, in order
    acknowledged = unacknowledged = 0
    seconds = 0.0
    for number in range(1, rounds + 1):
        delay = chance.uniform(0.1, 0.6)
        acked, took = _write_until_killed(path, len(known), delay)
        began = clocks.elapsed()
        store = Store.open(path, encoding=BYTES)
        opened = clocks.elapsed() - began
        with store:
            extra = check_round(store, events, known, acked)
        known += [*acked, *extra]
        acknowledged += len(acked)
        unacknowledged += len(extra)
        seconds += took
        beside = "and one whose append had not returned" if extra else "and no other"
        say(
            f"  kill {number}: SIGKILL after {delay:.3f} s and {len(acked):,} acknowledged appends; "
            f"opened again in {opened * 1e3:.1f} ms, all {len(known):,} there {beside}"
        )
    return {
        "kills": rounds,
        "acknowledged": acknowledged,
        "unacknowledged_but_there": unacknowledged,
        "durable_appends_per_second": acknowledged / seconds if seconds else 0.0,
    }


def _write(first: int, path: Path, ack: Ack) -> None:
    """Append the entries of SOURCE, from the one numbered ``first``, to TARGET for ever."""
    with Store.open(path, encoding=BYTES) as store:
        source, target = store.stream(SOURCE), store.stream(TARGET)
        length = len(source)
        number = first
        while True:
            for entry in source.range(source.select(number % length)):
                ack(target.append(entry.pairs))
                number += 1


def _write_until_killed(path: Path, first: int, delay: float) -> tuple[list[StreamID], float]:
    """The IDs a writer has acknowledged until it was killed, and how long it wrote."""
    with tempfile.TemporaryDirectory(prefix="raxlog-demo-") as scratch:
        acks = Path(scratch, "acks")
        writer = Runner(partial(_write, first), path, Path(scratch), acks=acks)
        try:
            deadline = clocks.elapsed() + _START_LIMIT
            while not (acks.exists() and acks.stat().st_size) and clocks.elapsed() < deadline:
                if writer.wait(0.001):
                    break
            began = clocks.elapsed()
            writer.wait(delay)
        finally:
            run = writer.end()
        took = clocks.elapsed() - began
    if run.status is not None:
        raise CommandError(f"the demo's writer ended by itself: {run.error.strip()[-300:] or run.ending()}", STORE)
    if not run.acks:
        raise CommandError(f"the demo's writer acknowledged nothing within {_START_LIMIT:.0f} s", STORE)
    return run.acks, took


def check_round(store: Store, events: list[Pairs], known: list[StreamID], acked: list[StreamID]) -> list[StreamID]:
    """Checks that the entries are there, intact, in order. Returns the one not acknowledged, if any. Mismatch."""
    expected = known + acked
    found = []
    for number, entry in enumerate(store.stream(TARGET).range()):
        if number < len(expected) and entry.id != expected[number]:
            raise Mismatch(f"entry {number} should be {expected[number]} and is {entry.id}")
        if entry.pairs != events[number % len(events)]:
            raise Mismatch(f"entry {entry.id} is not as it was written")
        found.append(entry.id)
    if len(found) < len(expected):
        raise Mismatch(f"{len(expected) - len(found)} acknowledged entries are gone, from {expected[len(found)]} on")
    extra = found[len(expected) :]
    if len(extra) > 1:
        raise Mismatch(f"{len(extra)} entries are there that were never acknowledged, from {extra[0]} on")
    return extra
