"""The files of a store's folder that a process has open: the writer's lock, the wake file, its presence.

They are used only while they are in place. If a file is deleted or replaced, other processes do not see the one
that is open here: two would write at the same time, each behind a lock of its own. To look at each file costs a
system call for each. To delete or replace one changes its folder, so the files are looked at only when a folder
has changed since.

A file system keeps that time in ticks, of some milliseconds or of a second. Within the tick of one change
another cannot be distinguished from it: so long the files are looked at each time.

``writer`` may be deleted, and is made again; a process that had looked before may be at its commit still. So what
writes also holds a byte of the log's shared file, which may not.

A process that asks often has the kernel queue such changes (inotify): that there are none is one system
call, which returns no dozen numbers. Where the kernel has no events the folders' times are asked as before.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from io import FileIO
from os import fstat
from pathlib import Path

from .. import clocks, disk
from ..errors import LockTimeout, StoreError
from ..locks import ofd_lock
from ..locks.presence import OPEN, Presence, ReaderPresence
from ..locks.writer_lock import WriterLock
from ..tree import lmdb_errors
from ..wake.wake_file import RENAMED, Inotify
from . import directory, log_file

_HOLD = ofd_lock.question(fcntl.F_WRLCK, log_file.WRITES, 1)
_GIVE_BACK = ofd_lock.question(fcntl.F_UNLCK, log_file.WRITES, 1)
_NAP = 0.0005
_TICK, _COARSE_TICK = 50_000_000, 3_000_000_000  # ns
_LONGEST = 30.0  # seconds to wait for a writer behind another file ``writer``
_OFTEN = 200  # looks; a process that writes less does without the kernel's events, of which a user has few


class StoreFiles:
    """The open files of one store, and the identity of each under its name in the folder.

    ``reopen``  opens the store in a forked child, where none of them is open
    """

    __slots__ = (
        "_events", "_generation", "_guard", "_known", "_looks", "_mutex", "_path", "_poll", "_reopen", "_seen",
        "_store", "_writes", "lock", "presence", "wake",
    )

    def __init__(self, path: Path, reopen: Callable[[], object]) -> None:
        self._path = path
        self._reopen = reopen
        self.lock: WriterLock | None = None
        self.wake: FileIO | None = None
        self.presence: Presence | ReaderPresence | None = None
        self._guard: FileIO | None = None  # the log's shared file, in a store that has one
        self._writes = False  # the lock is held, or has been asked for
        self._known: dict[str, tuple[int, int] | None] = {}
        self._seen = (0, 0)  # when the folders had last been changed as all was in place
        self._store = self._generation = -1
        self._events: Inotify | None = None
        # Asks the kernel whether anything has happened in the folders since _missing() found nothing: while it
        # returns none, all are in place. None where that is not to be had; for one thread at a time.
        self._poll: Callable[[int], list[tuple[int, int]]] | None = None
        self._looks = 0

    # -- opening and closing ------------------------------------------------------------

    def open(self) -> None:
        """Open the folder, and none of its files."""
        self._store = _open_folder(self._path)
        self._known = {}
        self._mutex = threading.Lock()  # a thread that reads follows another generation beside one that writes

    def open_lock(self) -> None:
        """Open what a writer needs."""
        self.lock = WriterLock(self._path / directory.WRITER)
        self._open_wake()

    def _open_wake(self) -> None:
        if self.wake is not None:
            self.wake.close()
        self.wake = disk.open_file(self._path / directory.WAKE, os.O_WRONLY | os.O_CREAT)
        self._add(directory.WAKE)

    def enter(self) -> Presence:
        """Take this process's slot in the file ``open``."""
        self.presence = presence = Presence(self._path)
        self._add(directory.WRITER, OPEN)
        return presence

    def leave(self, clean: bool) -> None:
        """Give the slot back, marked as left ``clean`` or not: then the next opening inspects the store."""
        if self.presence is not None:
            if clean:
                self.presence.end()
            else:
                self.presence.close()
            self.presence = None

    def follow(self, generation: Path, *names: str, guard: FileIO | None) -> None:
        """Files of the generation that has just been mapped, in place of those of another; the log's shared file."""
        self._guard = guard
        if self._writes:
            self._hold(_LONGEST)
        with self._mutex:
            self._leave_generation()
            self._poll = self._events = None
            self._looks = 0
            self._known = {name: known for name, known in self._known.items() if "/" not in name}
            self._generation = _open_folder(generation)
        self._add(*(f"{generation.name}/{name}" for name in names))

    def close(self) -> None:
        """Close all, in a forked child too. A presence that has not left counts as a killed process."""
        for file in (self.presence, self.lock, self.wake):
            if file is not None:
                file.close()
        self.presence = self.lock = self._guard = None
        self._writes = False
        self._leave_generation()
        self._poll = self._events = None
        left, self._store = self._store, -1  # first: closed twice, the number may be another file's by then
        if left >= 0:
            os.close(left)

    def _leave_generation(self) -> None:
        left, self._generation = self._generation, -1
        if left >= 0:
            os.close(left)

    # -- the writer's lock --------------------------------------------------------------

    def acquire(self, timeout: float) -> None:
        """Take the writer's lock, with all files in place. About 4 µs.

        What can be made again is, else StoreError. LockTimeout after ``timeout`` seconds.
        """
        lock = self.lock
        if lock is None:
            self._reopen()
            lock = self.lock
            assert lock is not None
        try:
            lock.acquire(timeout)
            while True:
                poll = self._poll
                missing = self._missing() if poll is None or poll(0) else []
                if not missing:
                    self._writes = True
                    guard = self._guard
                    if guard is not None:
                        try:
                            fcntl.fcntl(guard, ofd_lock.SET, _HOLD)
                        except TimeoutError:
                            raise  # a signal's handler did
                        except (OSError, ValueError):
                            self._hold(timeout)
                    return
                if directory.WRITER in missing:
                    lock.reopen()
                    self._add(directory.WRITER)
                    lock.acquire(timeout)
                elif directory.WAKE in missing:
                    self._open_wake()
                else:
                    raise StoreError(
                        f"{self._path / missing[0]} has been deleted or replaced while the store is in use: what this "
                        "process wrote now could be lost, or damage the store. End every process that has the store "
                        "open, run 'raxlog check', and open it again."
                    )
        except BaseException as error:
            with disk.ErrorsIgnored():
                self.release()
            if lmdb_errors.is_failure(error):
                raise lmdb_errors.translate_error(self._path, error) from error
            raise

    def _hold(self, timeout: float) -> None:
        deadline = 0.0
        while self._guard is not None:
            try:
                ofd_lock.ask(self._guard, _HOLD)
                return
            except TimeoutError:
                raise  # a signal's handler did
            except (OSError, ValueError):  # others have it, or it is closed: a thread goes over to a new generation
                now = clocks.elapsed()
                deadline = deadline or now + timeout
                if now > deadline:
                    raise LockTimeout(
                        f"waited {timeout:g} s for a process that writes to {self._path} behind a file "
                        f"'{directory.WRITER}' that has been deleted. End it."
                    ) from None
                clocks.sleep(_NAP)

    def release(self) -> None:
        """Give up the writer's lock. Harmless where it is not held."""
        guard, lock = self._guard, self.lock
        if self._writes and guard is not None:
            try:
                fcntl.fcntl(guard, ofd_lock.SET, _GIVE_BACK)
            except (OSError, ValueError) as error:  # closed, which gave it up
                if isinstance(error, TimeoutError):
                    raise
        self._writes = False
        if lock is not None:
            lock.release()

    @contextlib.contextmanager
    def locked(self, patience: float) -> Iterator[None]:
        """Hold the writer's lock."""
        self.acquire(patience)
        try:
            yield
        finally:
            self.release()

    def is_lock_awaited(self) -> bool:
        """Whether the writer's lock is to be released soon: another process waits for it, or a file is gone."""
        return self.lock is not None and (self.lock.is_awaited() or bool(self._missing()))

    # -- in place -----------------------------------------------------------------------

    def _add(self, *names: str) -> None:
        """Files of the store's folder that have just been opened."""
        with self._mutex:
            self._known.update((name, self._identity(name)) for name in names)
            self._seen = (0, 0)
            self._poll = None

    def _missing(self) -> list[str]:
        """The names under which there is no file any more, or another. About 3 µs, 10 µs after a change."""
        with self._mutex:
            self._poll = None
            if self._events is not None:
                self._events.drain()
            changed = (fstat(self._store).st_mtime_ns, fstat(self._generation).st_mtime_ns)
            if changed == self._seen:
                self._looks += 1
                if self._events is not None:
                    self._poll = self._events.poll
                elif self._looks == _OFTEN:
                    self._watch()
                return []
            missing = [name for name, known in self._known.items() if self._identity(name) != known]
            last = max(changed)
            tick = _TICK if last % 1_000_000_000 else _COARSE_TICK
            self._seen = (0, 0) if missing or clocks.machine_ns() - last < tick else changed
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


def _open_folder(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
