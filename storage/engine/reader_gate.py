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
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import ref

from .. import clocks
from ..fork_hooks import HERE, USUAL
from ..log.rest import NotAtRest
from ..tree import lmdb_errors

if TYPE_CHECKING:
    from .environment import Environment

_NAP = 0.0002
_LONGEST = 10.0


class ReaderGate:
    """One environment's gate. ``inside`` and ``bar`` are open to readers, for speed."""

    __slots__ = ("bar", "copying", "fork_locks", "forking", "inside")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Be open, with no read inside: also in a forked child."""
        self.inside: set[ref[GatedRead]] = set()
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


class GatedRead:
    """One short read of a consistent state. Values come out as copies, never LMDB's memory."""

    __slots__ = ("__weakref__", "_env", "_mark", "_txn", "thread")

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._mark = ref(self)
        self.thread: int = threading.get_ident()

    def __enter__(self) -> Any:
        env, mark = self._env, self._mark
        while True:
            if HERE[0] != USUAL:
                env.require_usable()
            gate = env.gate
            try:
                gate.inside.add(mark)
                if not gate.bar.locked():
                    mapped = env.live()
                    self._txn = txn = mapped.begin()
                    if txn.id() == env.checked or env.is_in_force(txn):
                        return txn
                    txn.abort()
                    gate.inside.discard(mark)
                    env.leave_superseded(mapped)
                    continue
            except (lmdb_errors.Error, OSError, NotAtRest) as error:
                gate.inside.discard(mark)
                env.cure_read(error)
            except BaseException:
                gate.inside.discard(mark)
                raise
            else:
                gate.inside.discard(mark)
                gate.wait()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._txn.abort()
        self._env.gate.inside.discard(self._mark)
        if error is not None and lmdb_errors.is_failure(error):
            raise lmdb_errors.translate_error(self._env.path, error) from error
