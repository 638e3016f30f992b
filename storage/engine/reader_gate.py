"""The gate: reads pass without a lock; resize, close and fork wait until none is open.

    reader   inside.add ─ barred? ─ no ─ begin … end ─ inside.discard
                             └ yes: step back, wait, try again
    shut()   take the bar ─ wait until no read is inside ─ resize, close, fork ─ give it back

A reader registers before it looks at the bar, and shut() looks for readers once it has the bar, so
one of the two sees the other; under the interpreter's lock that needs no lock of its own, and
passing costs 0.1 µs.

A read that copies the whole file holds ``copying`` besides: shut() waits for that however long it takes.

An exception can strike between a read and its leaving. What is inside is therefore a weak reference, which
is dead once the read is dropped; shut() takes those away. Marks of the thread that shuts are no reads under
way, since it is here. shut() waits ten seconds at most, which no read here takes, and then goes on: LMDB's
binding ends a read transaction that is still open, and its thread gets an error, never wrong data.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol
from weakref import ref

from .. import clocks

_NAP = 0.0002
_LONGEST = 10.0


class Read(Protocol):
    """A read that passes."""

    thread: int


class ReaderGate:
    """One environment's gate. ``inside`` and ``bar`` are open to readers, for speed."""

    __slots__ = ("bar", "copying", "fork_locks", "forking", "inside")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Be open, with no read inside: also in a forked child."""
        self.inside: set[ref[Read]] = set()
        self.bar: threading.Lock = threading.Lock()  # held while it is shut
        self.copying: threading.Lock = threading.Lock()  # taken inside
        self.fork_locks: list[threading.Lock] = []  # held over a fork, by the thread that forks
        self.forking: int = 0

    def wait(self) -> None:
        """Wait outside until the gate is open again."""
        with self.bar:
            pass

    def shut(self, action: Callable[[], None]) -> None:
        """Run ``action`` while no read is inside.

        The garbage collector may end a dropped transaction between the hooks of a fork: the bar is this thread's then.
        """
        if self.forking == threading.get_ident() and self.bar in self.fork_locks:
            action()
            return
        with self.bar:
            self.drain(_LONGEST)
            with self.copying:
                action()

    def drain(self, seconds: float) -> bool:
        """Wait until no read is inside; False, and those there forgotten, if that takes too long."""
        inside = self.inside
        if inside:
            deadline = clocks.elapsed() + seconds
            here = threading.get_ident()
            while any(read is not None and read.thread != here for read in [mark() for mark in tuple(inside)]):
                if clocks.elapsed() > deadline:
                    inside.clear()
                    return False
                clocks.sleep(_NAP)
            for mark in tuple(inside):
                if mark() is None:
                    inside.discard(mark)
        return True
