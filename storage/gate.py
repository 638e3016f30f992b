"""The gate: reads pass without a lock; resize, close and fork wait until none is open.

    reader   inside.add ─ barred? ─ no ─ begin … end ─ inside.discard
                             └ yes: step back, wait, try again
    shut()   take the bar ─ wait until no read is inside ─ resize, close, fork ─ give it back

A reader makes itself known before it looks at the bar, and shut() looks for readers once it has
the bar, so one of the two sees the other; under the interpreter's lock that needs no lock of its
own, and passing costs 0.1 µs.

An exception can break a thread off on the very step between its read and its leaving. What is
inside is therefore a token of the read, not the read itself: LMDB's transaction ends with the
read, and a token that only the gate refers to is let go. Beside that shut() waits ten seconds at
most, which no read here takes, and then goes on: LMDB's binding ends a read transaction that is
still open, and its thread gets an error, never wrong data.
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
    """One environment's gate. ``inside`` and ``bar`` are open to readers, for speed."""

    __slots__ = ("bar", "inside")

    def __init__(self) -> None:
        self.inside: set[object] = set()
        self.bar = threading.Lock()  # held while it is shut

    def wait(self) -> None:
        """Wait outside until the gate is open again."""
        with self.bar:
            pass

    def shut(self, action: Callable[[], None]) -> None:
        """Run ``action`` while no read is inside."""
        with self.bar:
            self.drain(_LONGEST)
            action()

    def drain(self, seconds: float) -> bool:
        """Wait until no read is inside; False, and those forgotten, if that takes too long."""
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

    __slots__ = ("_env", "_token", "_txn")

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._token = object()

    def __enter__(self) -> lmdb.Transaction:
        env, token = self._env, self._token
        while True:
            gate = env.gate
            try:
                gate.inside.add(token)
                if not gate.bar.locked():
                    mapped = env.live()
                    self._txn = txn = mapped.begin()
                    if txn.id() == env.checked or env.is_in_force(txn):
                        return txn
                    txn.abort()
                    gate.inside.discard(token)
                    env.leave_superseded(mapped)
                    continue
            except lmdb.Error as error:
                gate.inside.discard(token)
                env.cure_read(error)
            except BaseException:
                gate.inside.discard(token)
                raise
            else:
                gate.inside.discard(token)
                gate.wait()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._txn.abort()
        self._env.gate.inside.discard(self._token)
        if isinstance(error, lmdb.Error):
            raise faults.meaning(self._env.path, error) from error
