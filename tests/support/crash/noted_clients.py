"""Clients of one store that note what they do, in a file that outlives a kill: for check_history.

    begin   {"n": 5, "process": "w1.0", "begin": 12.1, "appends": {"a": [17]}}      before the call
    end     {"n": 5, "process": "w1.0", "end": 12.2, "reads": {"b": [3, 4]}}        once it has returned
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import raxlog
from raxlog.crashtest import Operation

STREAMS = ("a", "b", "c")
MOST = 400  # entries of a stream: past these a client only reads

Reads = dict[str, list[int]]


class Notes:
    """The file of notes of one client: a thread, or a process."""

    def __init__(self, folder: Path, process: str) -> None:
        self.process = process
        self._file = os.open(folder / f"{process}.notes", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        self._count = 0

    def note(self, **what: Any) -> None:
        os.write(self._file, json.dumps({"n": self._count, "process": self.process, **what}).encode() + b"\n")

    @contextmanager
    def operation(self, appends: Reads | None = None, begin: float | None = None) -> Iterator[Reads]:
        """One operation; what it reads is put into the dictionary."""
        self._count += 1
        reads: Reads = {}
        self.note(begin=time.monotonic() if begin is None else begin, appends=appends or {})
        yield reads
        self.note(end=time.monotonic(), reads=reads)


def operations(folder: Path) -> list[Operation]:
    """All that was noted."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for path in folder.glob("*.notes"):
        for line in path.read_bytes().split(b"\n")[:-1]:
            note = json.loads(line)
            found.setdefault((note["process"], note["n"]), {}).update(note)
    return [Operation(one["process"], one["begin"], one.get("end"), one["appends"], one.get("reads", {}))
            for one in found.values()]


def values(stream: raxlog.Stream) -> list[int]:
    """All that a stream holds."""
    return [int(entry.fields["v"]) for entry in stream.range()]


def write(store: raxlog.Store, notes: Notes, rng: random.Random, number: int, until: float,
          read: Callable[[raxlog.Stream], list[int]] = values) -> None:
    """Append by append(), extend() and transactions, and read in between. Values are numbered from ``number`` on."""
    while time.monotonic() < until:
        stream = store.stream(rng.choice(STREAMS))
        name, many = stream.name, rng.randint(1, 4)
        kind = rng.choice(("append", "extend", "transaction", "read"))
        kind = "read" if len(stream) > MOST else kind
        if kind == "read":
            with notes.operation() as reads:
                reads[name] = read(stream)
        elif kind == "append":
            with notes.operation({name: [number]}):
                stream.append({"v": number})
            number += 1
        elif kind == "extend":
            with notes.operation({name: list(range(number, number + many))}):
                stream.extend([{"v": number + n} for n in range(many)])
            number += many
        else:
            chosen = rng.sample(STREAMS, 2)
            with notes.operation({one: [number] for one in chosen}) as reads, store.transaction() as tx:
                other = rng.choice(STREAMS)
                reads[other] = values(tx.stream(other))  # type: ignore[arg-type]
                for one in chosen:
                    tx.stream(one).append({"v": number})
            number += 1


def follow(store: raxlog.Store, notes: Notes, name: str, until: float) -> None:
    """Follow a stream. A follower may be behind, so its reads begin at 0; but what it has seen, all see from then on.

    What it saw last may be a part of an extend(), and is left out.
    """
    seen = list[int]()
    follower = store.stream(name).follow("0", timeout=0.05)
    while time.monotonic() < until:
        for entry in follower:
            seen.append(int(entry.fields["v"]))
            if len(seen) < 20 or len(seen) % 10 == 0:
                whole = len(seen) - 1
                while whole and seen[whole] == seen[whole - 1] + 1:
                    whole -= 1
                with notes.operation(begin=0) as reads:
                    reads[name] = seen[:whole]
            if time.monotonic() > until:
                break
