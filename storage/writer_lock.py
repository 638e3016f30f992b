"""The writer's lock: who writes, with a timeout and a name.

LMDB's own lock waits for ever and knows no names. So a process that wants to write first locks bytes
of the file ``writer`` (own_lock.py). The kernel frees them when the process dies, however it dies, and
their range names it: a writer that was stopped in the middle (SIGSTOP, a debugger) costs the others a
LockTimeout that says which process, not a hang.

    2^32 - pid … 2^32            the lock: held from before LMDB's write transaction begins until it has ended
    2^32 + 1 … 2^32 + 1 + pid    the place in line: held by the process that waits for the lock

Any two ranges of the same kind have a byte in common, so one process holds each. What is asked is
who has that byte, and the answer is a range, which gives the number of the process.

A process that waits polls, and a writer in a tight loop would win the lock back nearly every time. So
none takes the lock without the place in line, which it gives up once both are its own: the writer that
comes back stands behind the one that waits.

One lock per process and path: threads are kept apart by the committer, not by this.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from . import own_lock
from .errors import LockTimeout

_LOCK = 1 << 32
_LINE = _LOCK + 1

_FIRST_NAP = 0.00005
_LONGEST_NAP = 0.002


class WriterLock:
    """The lock of one store, for one process. ``path`` is the file ``writer``."""

    __slots__ = ("_both", "_file", "_line", "_lock", "_no_line", "_none", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        pid = os.getpid()
        self._both = own_lock.question(fcntl.F_WRLCK, _LOCK - pid, pid + 2)
        self._lock = own_lock.question(fcntl.F_WRLCK, _LOCK - pid, pid + 1)
        self._line = own_lock.question(fcntl.F_WRLCK, _LINE, pid + 1)
        self._no_line = own_lock.question(fcntl.F_UNLCK, _LINE, pid + 1)
        self._none = own_lock.question(fcntl.F_UNLCK, _LOCK - pid, 2 * pid + 2)
        self._file = own_lock.open_file(path)

    def acquire(self, timeout: float) -> None:
        """Take the lock, waiting up to ``timeout`` seconds, else LockTimeout with the holder.

        An undisturbed call costs two system calls, about 1.5 µs.
        """
        file = self._file
        try:
            own_lock.ask(file, self._both)  # or none: so no process waits
            own_lock.ask(file, self._no_line)
        except BlockingIOError:
            deadline = time.monotonic() + timeout
            self._poll(self._line, deadline, timeout)
            try:
                self._poll(self._lock, deadline, timeout)
            finally:
                own_lock.ask(file, self._no_line)

    def _poll(self, wanted: bytes, deadline: float, timeout: float) -> None:
        nap = _FIRST_NAP
        while True:
            try:
                own_lock.ask(self._file, wanted)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise LockTimeout(
                        f"waited {timeout:g} s for the writer's lock {self._path}; it is held by "
                        f"{self.holder()}. Let that process finish or end it, or raise lock_timeout."
                    ) from None
                time.sleep(nap)
                nap = min(nap * 1.5, _LONGEST_NAP)

    def release(self) -> None:
        """Give the lock up, and the place in line too: harmless where neither is held."""
        try:
            own_lock.ask(self._file, self._none)
        except (OSError, ValueError):
            if not self._file.closed:  # else that, gave up both
                raise

    def holder(self) -> str:
        """The process that holds the lock, in words: its number and, where known, its command."""
        pid = self.holder_pid()
        if pid is None:
            return "nobody any more"
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            return f"process {pid}" + (f" ({command.strip()[:120]})" if command.strip() else "")
        return f"process {pid}"

    def holder_pid(self) -> int | None:
        """The number of the process that holds the lock; None if none (or this one) does."""
        found = own_lock.find(self._file, _LOCK, 1)
        if found is not None:
            return _LOCK - found[0]
        found = own_lock.find(self._file, _LINE, 1)
        return None if found is None else found[1] - _LINE

    def is_awaited(self) -> bool:
        """Whether another process stands in line for the lock. One system call."""
        return not own_lock.is_free(self._file, _LINE, 1)

    def reopen(self) -> None:
        """Go over to the file that is in place of one that was deleted, as the others do. The lock is given up."""
        before, self._file = self._file, own_lock.open_file(self._path)
        before.close()

    def close(self) -> None:
        """Close the file, which drops whatever this process still holds."""
        self._file.close()
