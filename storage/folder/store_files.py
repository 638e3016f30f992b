"""The files of a store's folder that a process has open, and whether they are in place.

They are used only while they are. If one is deleted or replaced, other processes do not see the one that is open here:
two would write at the same time, each behind a lock of its own; or what one writes is in a file that no other finds.
To look at each file costs a system call for each. To delete, rename or replace one changes its folder, and the time of
that change cannot be set back, as the time of modification can (tar, rsync, touch): so a write looks at the two
folders, by their names, and at the files only where something has changed. What has the store's own name is another
folder, too, once that was moved or the link to it changed. Where nothing has that name the store was moved as a whole,
and its files are looked for in the folder that is open.

A file system keeps that time in ticks, of some milliseconds or of a second. Within the tick of one change
another cannot be distinguished from it: so long the files are looked at each time.

A process that writes often has the kernel queue such changes (inotify): that there are none is one system call, which
returns no dozen numbers. A link above the folder is no change inside: the names are looked at now and then besides.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from io import FileIO
from operator import methodcaller
from os import stat
from pathlib import Path

from .. import clocks, disk
from ..errors import StoreError
from ..locks import ofd_lock
from ..locks.shared_file import SHARED, Presence, deleted_in_use, open_shared
from ..locks.writer_lock import WriterLock  # cimport
from ..tree import lmdb_errors
from ..tree.tree import find_holder
from ..wake.wake_file import RENAMED, Inotify
from . import directory

SOURCE_HASH = ""

_TICK, _COARSE_TICK = 50_000_000, 3_000_000_000  # ns
_OFTEN = 200  # looks; a process that writes less does without the kernel's events, of which a user has few
_BY_NAME = 64  # every 64th check compares the names, even where the kernel reports no event

has_events: Callable[[Inotify], object] = methodcaller("poll", 0)  # cimport

_Identity = tuple[int, int] | None  # device and inode


class StoreFiles:
    """The open files of one store, and the identity of each under its name in the folder.

    ``reopen``  opens the store in a forked child, where none of them is open
    """

    __slots__ = (
        "_events", "_known", "_looks", "_owner", "_path", "_reopen", "_seen", "_store", "descriptor", "lock",
        "presence", "shared",
    )

    def __init__(self, path: Path, reopen: Callable[[], object]) -> None:
        self._path = path
        self._reopen = reopen
        self.lock: WriterLock | None = None
        self.shared: FileIO | None = None
        self.descriptor: int = -1  # of what is shared, where that is written to
        self.presence: Presence | None = None
        self._store = -1
        self._owner: object = None  # what distinguishes the store, and its folder, from all others
        # The generation's folder, and each file; replaced as a whole, by a thread that reads beside one that writes.
        self._known: tuple[str, dict[str, _Identity]] = ("", {})
        self._events: Inotify | None = None  # of the two folders, since all was in place
        self._looks = 0
        self._seen: object = None  # what the folders' names led to, and when they had changed, as all was in place

    # -- opening and closing ------------------------------------------------------------

    def open(self, readonly: bool) -> None:
        """Open the folder, and ``shared``. StoreError where that was deleted in use."""
        path = self._path
        self._store = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with disk.ErrorsIgnored():  # one that builds it has it exclusively
            fcntl.flock(self._store, fcntl.LOCK_SH | fcntl.LOCK_NB)  # systemd-tmpfiles leaves such a folder alone
        if directory.is_snapshot(path):
            return  # at rest, and nothing in it is locked
        if readonly:
            with disk.ErrorsIgnored():
                self.shared = disk.open_file(path / SHARED, os.O_RDONLY)
            return
        if not (path / SHARED).exists() and (user := find_holder(directory.generation(path))) is not None:
            raise deleted_in_use(path / SHARED, f"process {user}" if user else "another process")
        self.shared = open_shared(path)
        self.descriptor = self.shared.fileno()
        self.lock = WriterLock(path / SHARED)

    def enter(self) -> list[tuple[bytes, int]]:
        """Take this process's slot; what was left behind (shared_file.py)."""
        assert self.shared is not None
        self.presence = Presence(self.shared, self._path)
        return self.presence.found

    def leave(self, clean: bool) -> None:
        """Give the slot back, marked as left ``clean`` or not: then the next opening inspects the store."""
        if self.presence is not None and clean:
            self.presence.end()
        self.presence = None

    def require_same_folder(self) -> None:
        """StoreError where the store's name leads to another folder than that which is open."""
        if self._identity(self._path) != self._identity(self._store):
            raise self._other()

    def follow(self, generation: Path, names: list[str], owner: object) -> None:
        """Files of the generation that has just been mapped, in place of those of another, of the store ``owner``."""
        whole = (owner, self._identity(self._store))
        if self._owner not in (None, whole):
            raise self._other()
        self._owner = whole
        files = [directory.CURRENT, SHARED, *(f"{generation.name}/{name}" for name in names)]
        self._known = str(generation), {name: self._identity(name) for name in files}
        self._events, self._looks = None, 0

    def _other(self) -> StoreError:
        return StoreError(
            f"{self._path} is not the store any more that this process has opened: that was moved or replaced, or a "
            "link to it was changed. Close it, and open the one that is meant."
        )

    def close(self) -> None:
        """Close all, in a forked child too. A presence that has not left counts as a killed process."""
        self.descriptor = -1
        if self.shared is not None:
            ofd_lock.close(self.shared)
        if self.lock is not None:
            self.lock.close()
        self.presence = self.lock = self.shared = self._events = None
        descriptor, self._store = self._store, -1  # first: closed twice, the number may be another file's by then
        if descriptor >= 0:
            os.close(descriptor)

    # -- the writer's lock --------------------------------------------------------------

    def acquire(self, timeout: float) -> None:
        """Take the writer's lock, with all files in place. About 4 µs.

        StoreError where one is not. LockTimeout after ``timeout`` seconds.
        """
        if self.lock is None:
            self._reopen()
        lock, by_name = self.lock, _BY_NAME
        assert lock is not None
        try:
            lock.acquire(timeout)
            self._looks += 1
            events = self._events
            # No event since all was in place is one system call. A link above the folder gives none.
            is_still = events is not None and self._looks % by_name and not has_events(events)
            if not is_still and (displaced := self._displaced()) is not None:
                raise StoreError(
                    f"{displaced} has been deleted or replaced while the store is in use: what this process wrote now "
                    "could be lost, or damage the store. End every process that has the store open, run 'raxlog check' "
                    "and open it again; where it does not open, 'raxlog salvage' makes a store of what is there."
                )
        except BaseException as error:
            with disk.ErrorsIgnored():
                lock.release()
            if lmdb_errors.is_failure(error):
                raise lmdb_errors.translate_error(self._path, error) from error
            raise

    def is_lock_awaited(self) -> bool:
        """Whether the writer's lock is to be released soon: another process waits for it, or a file is gone."""
        return self.lock is not None and (self.lock.is_awaited() or self._displaced() is not None)

    # -- in place -----------------------------------------------------------------------

    def _displaced(self) -> Path | None:
        """What is not in place any more: a file, or the folder. Two system calls; 10 µs after a change."""
        events = self._events
        if events is not None:
            events.drain()  # before the look, which sees what they are about
        elif self._looks > _OFTEN:
            self._watch()
        displaced = self._look()
        if displaced is not None:
            self._events = None  # the next one looks again
        return displaced

    def _watch(self) -> None:
        """Have the kernel tell of changes in the two folders. Where it has no events, each look is by name."""
        self._looks = 0
        with contextlib.suppress(OSError, AttributeError):
            events = Inotify(RENAMED)
            for folder in (self._path, Path(self._known[0])):
                events.watch(folder)
            self._events = events

    def _look(self) -> Path | None:
        while True:
            known = generation, files = self._known
            try:
                here, inside = stat(self._path), stat(generation)
                seen = (known, here.st_ino, here.st_dev, here.st_ctime_ns, inside.st_ctime_ns)
                if seen == self._seen:
                    return None
                changed = max(here.st_ctime_ns, inside.st_ctime_ns)
                if (here.st_dev, here.st_ino) != self._identity(self._store):
                    return self._path
            except TimeoutError:
                raise  # a signal's handler did, most likely: it says nothing about the folders
            except OSError:  # moved as a whole; or the files show what is wrong
                seen, changed = None, clocks.machine_ns()
            for name, before in files.items():
                now = self._identity(name)
                if now is None or (now != before and name != directory.CURRENT):  # which a compaction replaces
                    break
            else:
                tick = _TICK if changed % 1_000_000_000 else _COARSE_TICK
                self._seen = None if clocks.machine_ns() - changed < tick else seen
                return None
            if known is self._known:  # else another generation has been mapped in between
                return self._path / name

    def _identity(self, what: int | str | Path) -> _Identity:
        try:
            status = os.stat(what) if isinstance(what, int) else os.stat(what, dir_fd=self._store)
        except TimeoutError:
            raise
        except OSError:
            return None
        return status.st_dev, status.st_ino
