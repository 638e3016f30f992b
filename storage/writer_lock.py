"""The writer's lock: who writes, with a timeout and a name.

LMDB's own lock waits for ever and knows no names. So whoever wants to write first takes a
POSIX record lock on the file ``writer``. The kernel frees it when the process dies, however
it dies, and F_GETLK names the process that holds it: a writer that was stopped in the middle
(SIGSTOP, a debugger) costs the others a LockTimeout that says which process, not a hang.

    byte 0   held from before LMDB's write transaction begins until it has ended
    byte 1   held by the one that waits for byte 0

Who waits polls byte 0, and a writer in a tight loop would win it back nearly every time. So
nobody takes byte 0 without byte 1, which he gives up once both are his: the writer that comes
back stands behind the one that waits.

POSIX locks belong to the process, and closing any descriptor of the file drops them all: one
descriptor per process and path, and threads are kept apart by the committer, not by this.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import time
from pathlib import Path

from .errors import LockTimeout

_LOCK = fcntl.LOCK_EX | fcntl.LOCK_NB
_UNLOCK = fcntl.LOCK_UN
_lockf = fcntl.lockf

_IS_LINUX = sys.platform.startswith("linux")

# struct flock: Linux puts the type first, the BSDs and macOS the offsets.
_FLOCK = struct.Struct("hhqqi") if _IS_LINUX else struct.Struct("qqihh")

_FIRST_NAP = 0.00005
_LONGEST_NAP = 0.002


class WriterLock:
    """The lock of one store, for one process. ``path`` is the file ``writer``."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def acquire(self, timeout: float) -> None:
        """Take the lock, waiting up to ``timeout`` seconds, else LockTimeout with the holder.

        An undisturbed call costs two system calls, about 1.5 µs.
        """
        descriptor = self._descriptor
        try:
            _lockf(descriptor, _LOCK, 2, 0)  # both bytes or none: so nobody waits
            _lockf(descriptor, _UNLOCK, 1, 1)
        except BlockingIOError:
            deadline = time.monotonic() + timeout
            self._poll(1, deadline, timeout)
            try:
                self._poll(0, deadline, timeout)
            finally:
                _lockf(descriptor, _UNLOCK, 1, 1)

    def _poll(self, byte: int, deadline: float, timeout: float) -> None:
        nap = _FIRST_NAP
        while True:
            try:
                _lockf(self._descriptor, _LOCK, 1, byte)
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
            _lockf(self._descriptor, _UNLOCK, 2, 0)
        except (OSError, ValueError):
            if self._descriptor >= 0:  # else it has been closed, which gave up both
                raise

    def holder(self) -> str:
        """The process that holds the lock, in words: its number and, where told, its command."""
        pid = self.holder_pid()
        if pid is None:
            return "nobody any more"
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            command = ""
        return f"process {pid}" + (f" ({command.strip()[:120]})" if command.strip() else "")

    def holder_pid(self) -> int | None:
        """The number of the process that holds the lock; None if none (or this one) does."""
        pid = lock_holder(self._descriptor, 0)
        return lock_holder(self._descriptor, 1) if pid is None else pid

    def is_awaited(self) -> bool:
        """Whether another process stands in line for the lock. One system call."""
        return lock_holder(self._descriptor, 1) is not None

    def close(self) -> None:
        """Close the descriptor, which drops whatever this process still holds."""
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)


def lock_holder(descriptor: int, byte: int) -> int | None:
    """The process that holds a POSIX lock on this byte of the file; None if no other does."""
    if _IS_LINUX:
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, query))
    else:
        query = _FLOCK.pack(byte, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
        _, _, pid, kind, _ = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, query))
    return None if kind == fcntl.F_UNLCK else int(pid)
