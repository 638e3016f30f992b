"""Whether the files that a process has open are still those in the store's folder.

Of a file that was deleted or replaced other processes know nothing: two would write at the same time, each
behind a lock of its own. To look at each file costs a system call for each. To delete or replace one changes
its folder, so the files are looked at only when a folder has changed since.

A file system keeps that time in ticks, of some milliseconds or of a second. Within the tick of one change
another cannot be distinguished from it: so long the files are looked at each time.

A process that asks often has the kernel queue such changes (inotify): to see that there are none is one system
call, that makes no answer of a dozen numbers. Where the kernel gives no events the folders' times go on to be asked.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from os import fstat
from pathlib import Path
from typing import Any

from ..wake.wake_file import RENAMED, Inotify
from . import disk

_TICK, _COARSE_TICK = 50_000_000, 3_000_000_000  # ns
_OFTEN = 200  # looks; a process that writes less does without the kernel's events, of which a user has few


class FilesInPlace:
    """The files of one store that a process has open, by their names in its folder.

    ``poll`` asks the kernel whether anything has happened in the folders since missing() gave nothing: as long as
    ``poll(0)`` is empty, all are in place. None where that is not to be had; for one thread at a time.
    """

    __slots__ = ("_events", "_generation", "_known", "_looks", "_mutex", "_seen", "_store", "poll")

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, int] | None] = {}
        self._seen = (0, 0)  # when the folders had last been changed as all was in place
        self._store = self._generation = -1
        self._events: Inotify | None = None
        self.poll: Callable[[int], list[Any]] | None = None
        self._looks = 0

    def open(self, store: Path) -> None:
        """Begin with none of them, in this folder."""
        self._store = _open_folder(store)
        self._known = {}
        self._mutex = threading.Lock()  # a thread that reads goes over to another generation beside one that writes

    def add(self, *names: str) -> None:
        """Files of the store's folder that have just been opened."""
        with self._mutex:
            self._known.update((name, self._identity(name)) for name in names)
            self._seen = (0, 0)
            self.poll = None

    def follow(self, generation: Path, *names: str) -> None:
        """Files of the generation that has just been mapped, in place of those of another."""
        with self._mutex:
            self._leave_generation()
            self.poll = self._events = None
            self._looks = 0
            self._known = {name: known for name, known in self._known.items() if "/" not in name}
            self._generation = _open_folder(generation)
        self.add(*(f"{generation.name}/{name}" for name in names))

    def missing(self) -> list[str]:
        """The names under which there is no file any more, or another. About 3 µs, 10 µs after a change."""
        with self._mutex:
            self.poll = None
            if self._events is not None:
                self._events.drain()
            changed = (fstat(self._store).st_mtime_ns, fstat(self._generation).st_mtime_ns)
            if changed == self._seen:
                self._looks += 1
                if self._events is not None:
                    self.poll = self._events.poll
                elif self._looks == _OFTEN:
                    self._watch()
                return []
            missing = [name for name, known in self._known.items() if self._identity(name) != known]
            last = max(changed)
            tick = _TICK if last % 1_000_000_000 else _COARSE_TICK
            self._seen = (0, 0) if missing or time.time_ns() - last < tick else changed
            return missing

    def _watch(self) -> None:
        """Have the kernel queue what happens in the folders. The next call looks again, for what came before."""
        with disk.ErrorsIgnored(AttributeError):  # no more of them for this user; another system
            events = Inotify(RENAMED)
            for folder in (self._store, self._generation):
                events.watch(Path(f"/proc/self/fd/{folder}"))
            self._seen = (0, 0)
            self._events = events

    def _identity(self, name: str) -> tuple[int, int] | None:
        try:
            status = os.stat(name, dir_fd=self._store)
        except TimeoutError:
            raise  # a signal's handler raised it, most likely: it says nothing about the file
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def close(self) -> None:
        """Close the folders."""
        self._leave_generation()
        self.poll = self._events = None
        left, self._store = self._store, -1  # first: closed twice, the number may be another file's by then
        if left >= 0:
            os.close(left)

    def _leave_generation(self) -> None:
        left, self._generation = self._generation, -1
        if left >= 0:
            os.close(left)


def _open_folder(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
