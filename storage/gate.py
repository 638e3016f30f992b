"""The gate: readers pass it freely, until somebody must have the map to himself.

    reader   inside.add ─ shut? ─ no ─ begin … end ─ inside.discard
                            └ yes: step back, wait, try again
    shut()   shut = yes ─ wait until nobody is inside ─ resize, close, fork ─ shut = no

A reader makes himself known before he looks, and who shuts looks after he has shut, so one
of the two sees the other; under the interpreter's lock that needs no lock of its own, and
passing costs 0.1 µs.

A thread can be broken off (Ctrl-C) on the very step between its read and its leaving: a read
that nothing refers to but the gate is such a one, and is let go. Beside that who shuts waits
ten seconds at most, which no read here takes, and then goes on: LMDB's binding ends a read
transaction that is still open, and its thread gets an error, never wrong data.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

import lmdb

from . import faults

if TYPE_CHECKING:
    from .environment import Environment

_NAP = 0.0002
_LONGEST = 10.0


class Gate:
    """One environment's gate. ``inside`` and ``is_shut`` are open to readers, for speed."""

    __slots__ = ("bar", "inside", "is_shut")

    def __init__(self) -> None:
        self.inside: set[object] = set()
        self.is_shut = False
        self.bar = threading.Lock()  # held by the one that shuts

    def wait(self) -> None:
        """Wait outside until the gate is open again."""
        with self.bar:
            pass

    def shut(self, action: Callable[[], None]) -> None:
        """Run ``action`` while nobody is inside."""
        with self.bar:
            self.is_shut = True
            try:
                self.drain(_LONGEST)
                action()
            finally:
                self.is_shut = False

    def drain(self, seconds: float) -> bool:
        """Wait until nobody is inside; False, and those forgotten, if that takes too long."""
        inside = self.inside
        if inside:
            deadline = time.monotonic() + seconds
            while inside:
                self._let_forgotten_go()
                if time.monotonic() > deadline:
                    inside.clear()
                    return False
                time.sleep(_NAP)
        return True

    def _let_forgotten_go(self) -> None:
        probes = {object()}  # something that a set alone refers to, for comparison
        forgotten = _references(tuple(probes))[0]
        members = tuple(self.inside)
        for member, references in zip(members, _references(members), strict=True):
            if references <= forgotten:
                self.inside.discard(member)


def _references(members: tuple[object, ...]) -> list[int]:
    return [sys.getrefcount(member) for member in members]


class ReadTransaction:
    """One short read of a consistent state. Values come out as copies, never LMDB's memory."""

    __slots__ = ("_env", "_txn")

    def __init__(self, env: Environment) -> None:
        self._env = env

    def __enter__(self) -> lmdb.Transaction:
        env = self._env
        env.streak.commits = 0
        while True:
            if env.ahead is not None:
                env.publish()
            gate = env.gate
            try:
                gate.inside.add(self)
                if not gate.is_shut:
                    mapped = env.live()
                    self._txn = txn = mapped.begin()
                    if txn.id() == env.checked or env.is_in_force(txn):
                        return txn
                    txn.abort()
                    gate.inside.discard(self)
                    env.leave_superseded(mapped)
                    continue
            except lmdb.Error as error:
                gate.inside.discard(self)
                env.cure_read(error)
            except BaseException:
                gate.inside.discard(self)
                raise
            else:
                gate.inside.discard(self)
                gate.wait()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._txn.abort()
        self._env.gate.inside.discard(self)
        if isinstance(error, lmdb.Error):
            raise faults.meaning(self._env.path, error) from error
