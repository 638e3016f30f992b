"""The demo's kills: a writer is killed at a random moment, and everything it acknowledged is looked for.

writer     append k   append k+1   append k+2 …            ✗ SIGKILL
pipe         "k ID"    "k+1 ID"                   must be there: these, whole, in order
store        k          k+1          k+2          may be there: one more, on disk but not acknowledged

The writer takes the entries of the stream "imported" and appends them to "copied", durably, one by one. An
ID goes into the pipe only after append() has returned, so what comes out of the pipe is what raxlog has
acknowledged. The process never ends by itself.
"""

from __future__ import annotations

import os
import random
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
        began = time.perf_counter()
        store = Store.open(path)
        opened = time.perf_counter() - began
        with store:
            extra = check_round(store, events, known, acked)
        known += [*acked, *extra]
        acknowledged += len(acked)
        unacknowledged += len(extra)
        seconds += took
        beside = "and one not yet acknowledged" if extra else "and no other"
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


def write(path: str, first: int) -> None:
    """Append the entries of SOURCE, from the one numbered ``first``, to TARGET for ever."""
    with Store.open(path) as store:
        source, target = store.stream(SOURCE), store.stream(TARGET)
        length = len(source)
        number = first
        while True:
            for entry in source.range(source.select(number % length)):
                sid = target.append(entry.pairs)
                os.write(1, f"{number} {sid}\n".encode())  # below PIPE_BUF: whole or not at all
                number += 1


def command(path: str, first: int) -> list[str]:
    """The command line of such a process, importing from where this one imports."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import write; write({path!r}, {first})"
    return [sys.executable, "-c", code]


def _write_until_killed(path: Path, first: int, delay: float) -> tuple[list[StreamID], float]:
    """The IDs a writer has acknowledged until it was killed, and how long it wrote."""
    with subprocess.Popen(command(str(path), first), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        try:
            received = bytearray()
            with selectors.DefaultSelector() as pipe:
                pipe.register(child.stdout, selectors.EVENT_READ)
                began = time.perf_counter()
                deadline = began + _START_LIMIT
                while (left := deadline - time.perf_counter()) > 0:
                    if not pipe.select(left):
                        continue
                    more = os.read(child.stdout.fileno(), 1 << 16)
                    if not more:
                        break
                    if not received:
                        began = time.perf_counter()
                        deadline = began + delay
                    received += more
        finally:
            died = child.poll()
            child.kill()
        took = time.perf_counter() - began
        received += child.stdout.read()  # what was on its way
        complaint = child.stderr.read().decode(errors="replace").strip()
    if died is not None or child.returncode != -signal.SIGKILL:
        raise CommandError(f"the demo's writer ended by itself: {complaint[-300:] or child.returncode}", STORE)
    if not received:
        raise CommandError(f"the demo's writer acknowledged nothing within {_START_LIMIT:.0f} s", STORE)
    acked: list[StreamID] = []
    for line in received.decode().split("\n")[:-1]:
        number, _, sid = line.partition(" ")
        if int(number) != first + len(acked):
            raise Mismatch(f"the writer printed entry {number}, not {first + len(acked)}")
        acked.append(StreamID(sid))
    return acked, took


def check_round(store: Store, events: list[Pairs], known: list[StreamID], acked: list[StreamID]) -> list[StreamID]:
    """Checks that the entries are there, intact, in order. Returns the one not acknowledged, if any. Mismatch."""
    expected = known + acked
    there = []
    for number, entry in enumerate(store.stream(TARGET).range()):
        if number < len(expected) and entry.id != expected[number]:
            raise Mismatch(f"entry {number} should be {expected[number]} and is {entry.id}")
        if entry.pairs != events[number % len(events)]:
            raise Mismatch(f"entry {entry.id} is not as it was written")
        there.append(entry.id)
    if len(there) < len(expected):
        raise Mismatch(f"{len(expected) - len(there)} acknowledged entries are gone, from {expected[len(there)]} on")
    extra = there[len(expected) :]
    if len(extra) > 1:
        raise Mismatch(f"{len(extra)} entries are there that were never acknowledged, from {extra[0]} on")
    return extra
