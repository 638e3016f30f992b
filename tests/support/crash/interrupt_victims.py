"""A counter in a file, kept by a program that gets exceptions: a right one, and again with one bug planted in it.

Code of this module is what test_interrupts.py has raised at; the workload that calls it is there.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path


class Counter:
    """Adds one to the number in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = 0
        self.lock = threading.Lock()

    def add(self) -> None:
        with self.lock:
            self._add()

    def _add(self) -> None:
        self.number = self._kept() + 1
        self._write()

    def _kept(self) -> int:
        return int(self.path.read_text()) if self.path.exists() else 0

    def _write(self) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(str(self.number))
        os.rename(new, self.path)


class TrustsMemory(Counter):
    def _kept(self) -> int:
        return self.number


class LeavesItsLock(Counter):
    def add(self) -> None:
        assert self.lock.acquire(timeout=0.1), "STUCK: the lock is held for ever"
        self._add()
        self.lock.release()


class WritesInPlace(Counter):
    def _write(self) -> None:
        with self.path.open("w") as file:
            file.write(str(self.number))
