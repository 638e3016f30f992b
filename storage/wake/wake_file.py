"""The wake file: how a process learns, almost for free, that another has committed.

    writer    commit(); pwrite(STORE/wake)  ───event───►  WakeFile.wait()   in every reader

The kernel queues the events (inotify on Linux, kqueue on macOS and the BSDs), so an event
that comes while no reader waits is not lost, and an idle reader costs nothing. The content of
the file means nothing.

Where the kernel gives no events (no more inotify instances for this user, no such call, the file is
gone; ``watching`` is false then), wait() just times out: the caller polls, with shorter naps, and calls
watch_again() now and then. A pipe to itself lets another thread end a wait at once.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from pathlib import Path
from typing import Any

# From <sys/inotify.h>; the unlinking of a file is reported as a change of its attributes.
_IN_MODIFY, _IN_ATTRIB, _IN_DELETE_SELF, _IN_MOVE_SELF = 0x2, 0x4, 0x400, 0x800
_IN_MOVED, _IN_CREATE, _IN_DELETE = 0xC0, 0x100, 0x200
WRITTEN = _IN_MODIFY | _IN_ATTRIB | _IN_DELETE_SELF | _IN_MOVE_SELF
RENAMED = _IN_MOVED | _IN_CREATE | _IN_DELETE | _IN_DELETE_SELF | _IN_MOVE_SELF  # in a folder


class WakeFile:
    """A watch on one wake file. One thread waits; any thread may interrupt()."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_end, self._write_end = os.pipe()  # neither survives an exec
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        self._pipe = select.poll()
        self._pipe.register(self._read_end, select.POLLIN)
        self._source: Inotify | _Kqueue | None = None
        try:
            self.watch_again()
        except BaseException:
            self.close()
            raise

    @property
    def watching(self) -> bool:
        """Whether the kernel has promised events."""
        return self._source is not None

    def watch_again(self) -> bool:
        """Watch the file that has the name now: it may be another than before. ``watching``."""
        try:
            if self._source is not None:
                self._source.watch(self._path)
            elif sys.platform.startswith("linux"):
                self._source = Inotify(WRITTEN, self._read_end)
                self._source.watch(self._path)
            elif hasattr(select, "kqueue"):
                self._source = _Kqueue(self._path, self._read_end)
        except (OSError, AttributeError):  # EMFILE, ENOENT; a libc without the call
            source, self._source = self._source, None
            if source is not None:
                source.close()
        return self.watching

    def wait(self, timeout: float | None) -> bool:
        """Wait up to ``timeout`` seconds. True if an event came; it stays queued until drain()."""
        if self._source is not None:
            return self._source.wait(timeout)
        self.pause(timeout)
        return False

    def pause(self, timeout: float | None = None) -> None:
        """Wait for interrupt() alone; events stay queued."""
        if self._pipe.poll(None if timeout is None else timeout * 1000):
            _empty(self._read_end)

    def drain(self) -> None:
        """Forget the events that have come so far."""
        if self._source is not None:
            self._source.drain()

    def interrupt(self) -> None:
        """End the wait() or pause() that is on, or else the next one, at once."""
        with contextlib.suppress(OSError):  # full: there is more than enough to read; closed: none waits
            os.write(self._write_end, b"!")

    def close(self) -> None:
        """Close every descriptor. In a forked child this leaves the parent's watch alone."""
        if self._source is not None:
            self._source.close()
            self._source = None
        ends, self._read_end, self._write_end = (self._read_end, self._write_end), -1, -1
        for descriptor in ends:
            if descriptor >= 0:
                os.close(descriptor)


def _empty(descriptor: int) -> None:
    """Read what there is to read without waiting."""
    with contextlib.suppress(BlockingIOError):
        while len(os.read(descriptor, 4096)) > 4000:
            pass


class Inotify:
    """Events of files or folders, on Linux. OSError, AttributeError where there are none to be had.

    The user's inotify instances are few (128), so: one per process and store to wait, one to write often. Dropped,
    it is closed.
    """

    _descriptor = -1

    def __init__(self, events: int, *others: int) -> None:
        import ctypes  # noqa: PLC0415 - only those that wait, or write often, pay for it

        libc: Any = ctypes.CDLL(None, use_errno=True)
        self._errno = ctypes.get_errno
        self._add_watch = libc.inotify_add_watch
        self._add_watch.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)
        self._events = events
        self._others = others
        self._descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(self._errno(), "inotify_init1")
        poll = select.poll()
        for descriptor in (self._descriptor, *others):
            poll.register(descriptor, select.POLLIN)
        self.poll = poll.poll

    def watch(self, path: Path) -> None:
        """Add a watch; for a file that is watched already this changes nothing."""
        if self._add_watch(self._descriptor, os.fsencode(path), self._events) < 0:
            raise OSError(self._errno(), "inotify_add_watch", str(path))

    def wait(self, timeout: float | None) -> bool:
        ready = {descriptor for descriptor, _ in self.poll(None if timeout is None else timeout * 1000)}
        for other in ready.intersection(self._others):
            _empty(other)
        return self._descriptor in ready

    def drain(self) -> None:
        # The kernel merges an event with an equal one before it, so there are few to read.
        _empty(self._descriptor)

    def close(self) -> None:
        left, self._descriptor = self._descriptor, -1
        if left >= 0:
            os.close(left)

    __del__ = close


class _Kqueue:
    """macOS and the BSDs. The queue watches an open file, so a new one has to be opened."""

    def __init__(self, path: Path, read_end: int) -> None:
        self._queue: Any = select.kqueue()  # type: ignore[attr-defined, unused-ignore]
        self._file = -1
        self._pending = False
        self._read_end = read_end
        try:
            self.watch(path)
            self._add(read_end, "KQ_FILTER_READ", 0)
        except BaseException:
            self.close()
            raise

    def _add(self, descriptor: int, filter_name: str, notes: int) -> None:
        constants: Any = select
        flags = constants.KQ_EV_ADD | (constants.KQ_EV_CLEAR if notes else 0)
        event = constants.kevent(descriptor, getattr(constants, filter_name), flags, notes)
        self._queue.control([event], 0, 0)

    def watch(self, path: Path) -> None:
        constants: Any = select
        notes = constants.KQ_NOTE_WRITE | constants.KQ_NOTE_DELETE | constants.KQ_NOTE_RENAME
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        old, self._file = self._file, file
        if old >= 0:
            os.close(old)  # its watch goes with it
        self._add(file, "KQ_FILTER_VNODE", notes)
        # What was written between the old watch and the new one has no event: make one up.
        self._pending = old >= 0

    def wait(self, timeout: float | None) -> bool:
        # Taking an event out of a kqueue drains it, so it is kept here until drain().
        if not self._pending:
            for event in self._queue.control(None, 4, timeout):
                if event.ident == self._read_end:
                    _empty(self._read_end)
                else:
                    self._pending = True
        return self._pending

    def drain(self) -> None:
        self.wait(0)
        self._pending = False

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a forked child does not inherit the queue
            self._queue.close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
