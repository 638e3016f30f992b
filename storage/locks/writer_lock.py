"""The writer's lock: one process writes at a time; waiting has a timeout and names the holder.

LMDB's own lock has no timeout and no holder's name. So a process that wants to write first locks bytes
of the file ``shared`` (shared_file.py). The kernel frees them when the process dies, and their range names
it: a writer that was stopped (SIGSTOP, a debugger) costs the others a LockTimeout that names it.

    2^32 - pid … 2^32                          the lock: held from before LMDB's write transaction begins to its end
    2^33 + n · 2^23 … 2^33 + n · 2^23 + pid    place n in the line: held by a process that waits for the lock

    P   lock ─ commit ─ release ──wake──┐                place 4 ─ sleep …
    Q   place 2 ─ sleep ────────────────┴─ lock ─ commit ─ release ──wake──┐
    R           place 3 ─ sleep ───────────────────────────────────────────┴─ lock ─ commit …

Any two ranges of the lock have a byte in common, so one process holds it; any two of one place as well. A
process that finds the line empty asks for the lock at once. Else it takes the place behind the last, and
sleeps in the kernel until a writer that gives up the lock wakes it, by a futex: all are served in order.

    byte 0    the last place given out in the line, as uint64; 0: the line is empty       (mapped)
         8    64 words, uint32: the process in place n sleeps until word n mod 64 changes

The mapped words are hints, and what counts is the locks. Where no wake-up comes, for the writer was killed,
the first in line looks for itself, every 20 ms. The others look every 60 ms: where the lock is free twice,
and the same process first in line (it was stopped), they pass it.

One lock per process and path: threads are kept apart by the committer, not by this.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import sys
from io import FileIO
from pathlib import Path

from .. import clocks, disk
from ..crash_point import crash_point
from ..errors import LockTimeout, StoreError
from ..notices import note
from ..system_calls import address_of, futex, set_lock  # cimport
from . import ofd_lock
from .ofd_lock import find, take  # cimport

SOURCE_HASH = ""

_SET = ofd_lock.SET
_LOCK = 1 << 32
_LINE = 1 << 33
_PLACE = 1 << 23  # more than any number of a process
_PLACES = 1 << 37
_LINE_BYTES = 1 << 61
_FIRST_LOOKS, _LOOKS = 0.02, 0.06  # seconds
_LONG = 1.0  # seconds of waiting that are logged
_WORDS = 64
_SIZE = 8 + 4 * _WORDS
_NAP = 0.002
_WAIT, _WAKE, _ALL = 0, 1, 0x7FFFFFFF  # from <linux/futex.h>
_CALLS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
_CALL = _CALLS.get(os.uname().machine) if sys.maxsize > 1 << 32 else None


def numbers_of(view: memoryview[int]) -> memoryview[int]:  # cimport
    """What it shows."""
    return view


class WriterLock:
    """The lock of one store, for one process, in the file at ``path``.

    It opens that for itself: the system shows first what is locked by the description that has had a lock for longest.
    """

    __slots__ = ("_descriptor", "_file", "_last", "_lock", "_none", "_path", "_words")

    def __init__(self, path: Path) -> None:
        self._path = path
        pid = os.getpid()
        self._file = disk.open_file(path, os.O_RDWR)
        self._descriptor: int = self._file.fileno()
        with disk.open_file(path, os.O_RDWR) as mapped:  # another than the one with the locks: a map keeps it open
            self._words = TurnWords(mapped)
        self._last: memoryview[int] = numbers_of(self._words.last)
        self._lock = ofd_lock.question(fcntl.F_WRLCK, _LOCK - pid, pid + 1)
        self._none = ofd_lock.question(fcntl.F_UNLCK, _LOCK - pid, _LINE_BYTES)

    def acquire(self, timeout: float) -> None:
        """Take the lock, waiting up to ``timeout`` seconds, else LockTimeout with the holder.

        An undisturbed call costs one system call, about 1 µs.
        """
        try:
            if not self._last[0]:
                try:
                    set_lock(self._descriptor, _SET, self._lock)
                    return
                except BlockingIOError:
                    pass
            began = clocks.elapsed()
            self._wait(began + timeout, timeout)
            if (waited := clocks.elapsed() - began) > _LONG:
                note("info", "waited %.1f s for the writer's lock %s", waited, self._path)
        except BaseException:
            self.release()
            raise

    def _wait(self, deadline: float, timeout: float) -> None:
        words = self._words
        place = self._enter_line()
        woken, idle = False, None
        while True:
            if self._descriptor < 0:  # a signal's handler closed it, or forked: the number may be another file's by now
                raise StoreError(f"{self._path} was closed during a wait for the writer's lock. Open the store again.")
            word = words.word(place)
            crash_point("line.joined")
            words.last[0] = max(words.last[0], place)  # to be seen by a process that gives the lock up from here on
            first = None if woken else find(self._descriptor, _LINE, place * _PLACE)
            if first is None or first == idle:
                try:
                    set_lock(self._descriptor, _SET, self._lock)
                    return  # its place in line goes with the lock
                except BlockingIOError:
                    pass
            else:
                idle = first if find(self._descriptor, _LOCK, 1) is None else None
            remaining = deadline - clocks.elapsed()
            if remaining <= 0:
                raise LockTimeout(
                    f"waited {timeout:g} s for the writer's lock {self._path}; it is held by "
                    f"{self.holder()}. Let that process finish or end it, or raise lock_timeout."
                )
            woken = words.sleep(place, word, min(remaining, _FIRST_LOOKS if first is None else _LOOKS))

    def _enter_line(self) -> int:
        place = self._words.last[0] % _PLACES + 1
        while True:
            try:
                take(self._descriptor, _LINE + place * _PLACE, os.getpid() + 1)
                return place
            except BlockingIOError:
                place += 1

    def release(self) -> None:
        """Give the lock up, and the place in line too, and wake the next: harmless where neither is held."""
        try:
            set_lock(self._descriptor, _SET, self._none)
            if self._last[0]:
                self._pass_on()
        except (OSError, ValueError):
            if self._descriptor >= 0:  # else the file was closed, which gave up both
                raise

    def _pass_on(self) -> None:
        """Wake the first in line."""
        last = self._last
        before = last[0]
        first = find(self._descriptor, _LINE, _LINE_BYTES)
        if first is None:
            crash_point("line.emptied")
            last[0] = 0
            first = find(self._descriptor, _LINE, _LINE_BYTES)  # one may have come, and noted it before that
        if first is not None:
            crash_point("line.passed")
            last[0] = max(before, last[0])
            self._words.wake((first[0] - _LINE) // _PLACE)

    def holder(self) -> str:
        """The process that holds the lock, in words: its number and, where known, its command."""
        pid = self.holder_pid()
        if pid is None:
            return "no process any more"
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            return f"process {pid}" + (f" ({command.strip()[:120]})" if command.strip() else "")
        return f"process {pid}"

    def holder_pid(self) -> int | None:
        """The number of the process that holds the lock, else of the first in line; None if none (or this one) does."""
        found = find(self._descriptor, _LOCK, 1)
        if found is not None:
            return _LOCK - found[0]
        found = find(self._descriptor, _LINE, _LINE_BYTES)
        return None if found is None else found[1] - found[0]

    def is_awaited(self) -> bool:
        """Whether another process is in line for the lock. One system call."""
        return find(self._descriptor, _LINE, _LINE_BYTES) is not None

    def close(self) -> None:
        """Close the file, which drops whatever this process still holds."""
        self._descriptor = -1
        ofd_lock.close(self._file)


class TurnWords:
    """The words in an open file, which is as long as they need. sleep() polls where it has no call."""

    __slots__ = ("_address", "_words", "last")

    def __init__(self, file: FileIO) -> None:
        mapped = mmap.mmap(file.fileno(), _SIZE)
        self.last: memoryview[int] = memoryview(mapped)[:8].cast("Q")  # one native store each: nothing is seen by half
        self._words = memoryview(mapped)[8:].cast("I")
        self._address = 0

    def word(self, place: int) -> int:
        """What sleep() wants to know: read it before looking whether there is a reason to sleep."""
        return self._words[place % _WORDS]

    def sleep(self, place: int, word: int, seconds: float) -> bool:
        """Sleep until the word at ``place`` differs from ``word`` (then True), for ``seconds``, or until a signal."""
        if _CALL is None:
            end = clocks.elapsed() + seconds
            while self.word(place) == word and clocks.elapsed() < end:
                clocks.sleep(_NAP)
        else:
            self._call(place, _WAIT, word, seconds)
        return self.word(place) != word

    def wake(self, place: int) -> None:
        """End the sleep in that place. About 3 µs."""
        self._words[place % _WORDS] = self.word(place) + 1 & 0xFFFFFFFF
        if _CALL is not None:
            self._call(place, _WAKE, _ALL, 0.0)

    def _call(self, place: int, what: int, number: int, seconds: float) -> None:
        if not self._address:
            self._address = address_of(self._words)
        assert _CALL is not None
        futex(_CALL, self._address + 4 * (place % _WORDS), what, number, seconds)
