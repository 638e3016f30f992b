"""A crowd on one store: processes that write, read, compact, and are killed at random moments.

    writer i     appends n = 0, 1, 2, … to the stream w<i>, each the next of what it finds, and
                 notes n + 1 in shared memory once the append has returned
    reader       looks at every stream again and again: entry k holds k, none is missing
    the killer   every so often kills one of them, and puts another in its place

What was noted must be there, and at most one entry more per stream. Who ends by itself has
found something wrong, and has said what.
"""

from __future__ import annotations

import mmap
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import raxlog
from children import Child

Say = Callable[[Any], None]


class Notes:
    """Numbers in memory shared with all children: what was acknowledged, the longest wait."""

    def __init__(self, many: int) -> None:
        self._numbers = memoryview(mmap.mmap(-1, max(many, 1) * 8)).cast("q")  # written at once: no kill halves one

    def __getitem__(self, index: int) -> int:
        return self._numbers[index]

    def __setitem__(self, index: int, number: int) -> None:
        self._numbers[index] = number


class Crowd:
    """Writers, readers and others on the store at ``path``."""

    def __init__(self, path: Path, seed: int, writers: int = 3, readers: int = 2, **options: Any) -> None:
        self.path = path
        self.random = random.Random(seed)
        self.options = options
        self.writers = writers
        self.acked = Notes(writers)
        self.waited = Notes(writers)  # longest append, in µs
        self.reads = Notes(readers)
        self.kills = 0
        self.works: list[Callable[[Say], None]] = [
            *(lambda say, i=i: self.write(say, i) for i in range(writers)),  # type: ignore[misc]
            *(lambda say, i=i: self.read(say, i) for i in range(readers)),  # type: ignore[misc]
        ]
        raxlog.open(path, **options).close()

    def write(self, say: Say, i: int) -> None:
        """What a writer does until it is killed."""
        with raxlog.open(self.path, **self.options) as store:
            stream = store.stream(f"w{i}")
            n = len(stream)
            assert self.acked[i] <= n <= self.acked[i] + 1, f"{self.acked[i]} acknowledged, {n} found"
            self.acked[i] = n
            while True:
                began = time.monotonic()
                if n % 7 == 3:
                    with store.transaction() as tx:
                        tx.stream(f"w{i}").append({"n": n, "x": "y" * 100}, id=f"{n + 1}-0")
                        tx.state[f"w{i}"] = b"%d" % n
                else:
                    stream.append({"n": n, "x": "y" * (n % 300)}, id=f"{n + 1}-0")
                n += 1
                self.acked[i] = n
                self.waited[i] = max(self.waited[i], int((time.monotonic() - began) * 1e6))

    def read(self, say: Say, i: int) -> None:
        """What a reader does until it is killed."""
        chance = random.Random(self.random.random() + i)
        with raxlog.open(self.path, readonly=i % 2 == 1, durability=self.options.get("durability", "commit")) as store:
            least = [0] * self.writers
            while True:
                for k in range(self.writers):
                    stream = store.stream(f"w{k}")
                    before = self.acked[k]
                    length = len(stream)
                    assert length >= max(before, least[k]), f"w{k}: {before} acknowledged, {length} seen"
                    least[k] = length
                    start = chance.randrange(max(1, length - 200))
                    found = [(int(e.id.ms), int(e.fields["n"])) for e in stream.range(f"{start + 1}-0", count=200)]
                    assert found[:length - start] == [(n + 1, n) for n in range(start, min(length, start + 200))]
                self.reads[i] += 1

    def run(self, seconds: float, period: float) -> None:
        """Let them all work, and kill one every ``period`` seconds."""
        crowd = [Child(work) for work in self.works]
        try:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                time.sleep(self.random.uniform(0.2, 1.8) * period)
                for child in crowd:
                    ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                    assert ended is None, "a process has found something wrong, and said what"
                victim = self.random.randrange(len(crowd))
                crowd[victim].__exit__(None, None, None)
                crowd[victim] = Child(self.works[victim])
                self.kills += 1
        finally:
            for child in crowd:
                child.__exit__(None, None, None)

    def lost_or_half(self) -> list[str]:
        """What is wrong in the end: nothing may be."""
        wrong = []
        with raxlog.open(self.path, **self.options) as store:
            for i in range(self.writers):
                found = [(int(entry.id.ms), int(entry.fields["n"])) for entry in store.stream(f"w{i}").range()]
                if found != [(n + 1, n) for n in range(len(found))]:
                    wrong.append(f"w{i}: not what was appended")
                if not self.acked[i] <= len(found) <= self.acked[i] + 1:
                    wrong.append(f"w{i}: {self.acked[i]} acknowledged, {len(found)} there")
                noted = store.state.get(f"w{i}")
                if noted is not None and int(noted) != max(n for n in range(len(found)) if n % 7 == 3):
                    wrong.append(f"w{i}: the state and the stream of one transaction differ")
        return wrong
