"""A program that copies the folder of its own open store, beside processes that come and go.

    copier    has the store open, copies its folder again and again, and goes on appending; a thread
              holds one read transaction open for seconds, another walks through a stream
    comers    open the store, append, trim, read and close it (every fourth is killed instead), again and again

To copy a folder is to open, read and close every file in it: by that POSIX takes the locks on them from the
process. Each process works on a stream of its own, whose entry n holds n and was noted once it was
acknowledged; "fixed" never changes; "churn" is trimmed, so that pages are used again.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import raxlog
from children import Child
from crowd import Notes
from raxlog.storage.format import keys
from xxhash import xxh3_64

Say = Callable[[Any], None]
_LOG = keys.family(0, keys.LOG)
_FIXED = 2000
_AT_ONCE = 20
_KEPT = 500  # of "churn"
_ENDED = 10  # seconds in which a process that has been asked to end has to


class Copying:
    """The processes on the store at ``path``. ``pause``: seconds between two copies; ``held``: of a long read."""

    def __init__(self, path: Path, seed: int, *, comers: int = 4, pause: float = 0.1, held: float = 5.0) -> None:
        self.path = path
        self.seed = seed
        self.pause = pause
        self.held = held
        self.streams = ["copier", *(f"comer{i}" for i in range(comers))]
        self.acked = Notes(comers + 2)
        self.copies = Notes(1)
        self.opened = Notes(comers)
        self.reads = Notes(1)
        with raxlog.open(path) as store:
            store.stream("fixed").extend([{"n": n, "x": "y" * (n % 300)} for n in range(_FIXED)],
                                         [f"{n + 1}-0" for n in range(_FIXED)])

    def run(self, seconds: float) -> None:
        """Let them work for so long; AssertionError where one of them has died or found something wrong."""
        self.end = time.monotonic() + seconds
        works = [self._copier, *(lambda say, i=i: self._comer(say, i) for i in range(len(self.streams) - 1))]
        with contextlib.ExitStack() as stack:
            children = [stack.enter_context(Child(work)) for work in works]
            deadline = self.end + self.held + _ENDED
            for child, stream in zip(children, self.streams, strict=True):
                timer = threading.Timer(deadline - time.monotonic(), child.kill)
                timer.start()
                child.all_heard()
                timer.cancel()
                child.wait()
                assert child.status == 0, f"{stream} ended with status {child.status}"

    def lost(self) -> list[str]:
        """What is wrong in the end: nothing may be."""
        wrong = []
        with raxlog.open(self.path) as store:
            for i, name in enumerate(self.streams):
                found = [(int(e.id.ms), int(e.fields["n"])) for e in store.stream(name).range()]
                if found != [(n + 1, n) for n in range(len(found))] or len(found) < self.acked[i]:
                    wrong.append(f"{name}: {self.acked[i]} acknowledged, {len(found)} there, from {found[:1]}")
        report = raxlog.check(self.path)
        return wrong + [str(problem) for problem in report.problems]

    # -- the processes ------------------------------------------------------------------

    def _append(self, store: raxlog.Store, i: int, many: int) -> None:
        stream = store.stream(self.streams[i])
        n = len(stream)
        assert n >= self.acked[i], f"{self.streams[i]}: {self.acked[i]} acknowledged, {n} there"
        for at in range(n, n + many):
            stream.append({"n": at, "x": "y" * (at % 200)}, id=f"{at + 1}-0")
            self.acked[i] = at + 1

    def _copier(self, say: Say) -> None:
        with raxlog.open(self.path) as store, \
                _threads(self, [self._copy, lambda: self._read_long(store), lambda: self._walk(store)]) as working:
            while working():
                self._append(store, 0, 5)
                time.sleep(0.002)

    def _copy(self) -> None:
        while time.monotonic() < self.end:
            copy = self.path.with_name("copy")
            shutil.copytree(self.path, copy)
            shutil.rmtree(copy)
            self.copies[0] += 1
            time.sleep(self.pause)

    def _read_long(self, store: raxlog.Store) -> None:
        while time.monotonic() < self.end:
            with store._env.read() as txn:
                number, before = txn.id(), digest(txn)
                until = min(time.monotonic() + self.held, self.end + self.held / 2)
                while time.monotonic() < until:
                    time.sleep(0.05)
                    assert digest(txn) == before, f"the state after transaction {number} is another now"
            self.reads[0] += 1

    def _walk(self, store: raxlog.Store) -> None:
        while time.monotonic() < self.end:
            seen = 0
            for entry in store.stream("fixed").range():
                assert (int(entry.id.ms), int(entry.fields["n"])) == (seen + 1, seen)
                seen += 1
                if seen % 100 == 0:
                    time.sleep(0.01)
            assert seen == _FIXED

    def _comer(self, say: Say, i: int) -> None:
        chance = random.Random(self.seed * 100 + i)
        while time.monotonic() < self.end:
            killed = chance.random() < 0.25
            with Child(lambda say, killed=killed: self._visit(i, killed)) as child:
                child.all_heard()
                child.wait()
                assert child.status == (-9 if killed else 0), f"{self.streams[i + 1]} ended with {child.status}"
            self.opened[i] += 1

    def _visit(self, i: int, is_killed: bool) -> None:
        with raxlog.open(self.path) as store:
            self._append(store, i + 1, _AT_ONCE)
            store.stream("churn").extend([{"x": os.urandom(100)} for _ in range(100)], maxlen=_KEPT)
            for entry in store.stream(self.streams[i + 1]).range(count=100):
                assert int(entry.id.ms) == int(entry.fields["n"]) + 1
            assert len(store.stream("fixed")) == _FIXED
            if is_killed:
                os.kill(os.getpid(), 9)


def digest(txn: Any) -> int:
    """A number for all that a read sees, but for the journal, which is written in place."""
    seen = xxh3_64()
    for key, value in txn.cursor():
        if not key.startswith(_LOG):
            seen.update(key)
            seen.update(value)
    return seen.intdigest()


@contextmanager
def _threads(copying: Copying, works: list[Callable[[], None]]) -> Iterator[Callable[[], bool]]:
    """Run the works in threads; what one of them raises is raised here, by the function that is yielded too."""
    raised: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()

    def working() -> bool:
        if raised:
            raise raised[0]
        return time.monotonic() < copying.end

    yield working
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]
