"""The wake file: how a process learns, almost for free, that another has committed.

    writer    commit(); pwrite(STORE/shared)  ───event───►  WakeFile.wait()   in every reader

The kernel queues the events (inotify), so an event that comes while no reader waits is not lost, and an
idle reader costs nothing. What is written means nothing, and what is mapped of the file makes no event.

Where the kernel gives no events (no more inotify instances for this user, no such call, the file is
gone, no poll() under eventlet; ``watching`` is false then), wait() just times out: the caller polls, with
shorter naps, and calls watch_again() now and then. A pipe to itself lets another thread end a wait at once.
"""

from __future__ import annotations

import contextlib
import os
import select
from pathlib import Path
from typing import Any, Final

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
        self._source: Inotify | None = None
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
            if self._source is None:
                self._source = Inotify(WRITTEN, self._read_end)
            self._source.watch(self._path)
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
        if hasattr(select, "poll"):
            pipe = select.poll()
            pipe.register(self._read_end, select.POLLIN)
            ready = bool(pipe.poll(None if timeout is None else timeout * 1000))
        else:  # eventlet has taken it away; select() refuses descriptors above 1023
            ready = bool(select.select((self._read_end,), (), (), timeout)[0])
        if ready:
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
    """Events of files or folders, and of other descriptors. OSError, AttributeError where there are none to be had.

    The user's inotify instances are few (128), so: one per process and store to wait, one to write often. Dropped,
    it is closed.
    """

    descriptor = -1

    def __init__(self, events: int, *others: int) -> None:
        import ctypes  # noqa: PLC0415 - only those that wait, or write often, pay for it

        libc: Any = ctypes.CDLL(None, use_errno=True)
        self._errno = ctypes.get_errno
        self._add_watch = libc.inotify_add_watch
        self._add_watch.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)
        self._events = events
        self._others = others
        self.descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise OSError(self._errno(), "inotify_init1")
        poll = select.poll()
        for each in (self.descriptor, *others):
            poll.register(each, select.POLLIN)
        self.poll: Final = poll.poll

    def watch(self, path: Path) -> None:
        """Add a watch; for a file that is watched already this changes nothing."""
        if self._add_watch(self.descriptor, os.fsencode(path), self._events) < 0:
            raise OSError(self._errno(), "inotify_add_watch", str(path))

    def wait(self, timeout: float | None) -> bool:
        ready = {descriptor for descriptor, _ in self.poll(None if timeout is None else timeout * 1000)}
        for other in ready.intersection(self._others):
            _empty(other)
        return self.descriptor in ready

    def drain(self) -> None:
        # The kernel merges an event with an equal one before it, so there are few to read.
        _empty(self.descriptor)

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    __del__ = close
