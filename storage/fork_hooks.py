"""Fork hooks: what runs before and after a fork, again where an exception strikes it, and late where Python saw none.

    os.fork()            before ─ fork ─┬─ after_in_parent
                                        └─ after_in_child
    fork() of C, clone() ────────────── ┴─ … the first call that comes here: look() ─ after_in_child

A byte of a page that the kernel wipes in each child (MADV_WIPEONFORK) says whether a child's hooks have run: one load
for each call, and right where Python has seen no fork, and in two PID namespaces, whose process numbers may be equal.
Where the system does not wipe (not Linux), only what Python sees is noticed.
"""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
from collections import deque
from collections.abc import Callable
from operator import methodcaller
from threading import Lock, RLock
from typing import TypeVar
from weakref import ref

from .errors import StoreError
from .known import alive

T = TypeVar("T")

FORK_PATIENCE = 2.0  # seconds
acquire_in_time: methodcaller = methodcaller("acquire", True, FORK_PATIENCE)
acquire_now: methodcaller = methodcaller("acquire", False)
_RUNS = 48
_WIPEONFORK = 18  # MADV_WIPEONFORK, from <linux/mman.h>

_page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
with contextlib.suppress(OSError, AttributeError):
    _page.madvise(_WIPEONFORK)
HERE = memoryview(_page)[:1]  # HERE[0]: one of these; a call that finds none asks further
FORKED, USUAL, LATE = 0, 1, 2  # in a child whose hooks have not run; …; where they ran late, and not all can be used
HERE[0] = USUAL

forks: int = 0  # that lie between this process and the first; look() before it is asked outside of hooks
is_late: bool = False  # the last one was not seen by Python

_in_child: list[Callable[[], None]] = []
_running = RLock()


def look() -> None:
    """Run the hooks of a forked child, if this is one where they have not run."""
    if not HERE[0]:
        _run(True)


def count() -> int:
    """The number of forks between this process and the first: another one in each child."""
    look()
    return forks


def unseen(what: object) -> StoreError:
    """The error of what was the parent's, after a fork that Python has not seen."""
    return StoreError(
        f"this process was forked by C code, which Python was not told of, and cannot use {what} of its parent's. Open "
        "the store after the fork (uWSGI: lazy-apps = true), or fork by os.fork() or multiprocessing."
    )


def _run(late: bool) -> None:
    global forks, is_late
    with _running:
        if not HERE[0]:
            forks, is_late = forks + 1, late
            for hook in _in_child:
                hook()
            HERE[0] = LATE if late else USUAL  # last: an exception in a hook has all of them run again


def _wipe() -> None:
    HERE[0] = FORKED


def at_fork(runs: int = 16, before: Callable[[], None] | None = None, after_in_parent: Callable[[], None] | None = None,
            after_in_child: Callable[[], None] | None = None) -> None:
    """Register hooks that may be run again: an exception ends the hook that it strikes, and no other.

    Each is registered many times, so that the next run does what the one before was kept from: on a
    busy machine signals of many milliseconds wait for the fork to end, and strike one run after the other.
    """
    for _ in range(runs):
        if before is not None:
            os.register_at_fork(before=before)
            os.register_at_fork(before=look)  # runs first
        if after_in_parent is not None:
            os.register_at_fork(after_in_parent=after_in_parent)
    if after_in_child is not None:
        _in_child.append(after_in_child)


def at_exit(end: Callable[[], object]) -> None:
    """atexit.register(); look() comes before it, so that in a child it finds what is the child's."""
    atexit.unregister(look)
    atexit.register(end)
    atexit.register(look)


def forget_in_child(known: set[ref[T]], forget: Callable[[T], None]) -> None:
    """Call ``forget`` in a forked child with each object that is known then."""

    def after_in_child() -> None:
        for each in alive(known):
            forget(each)

    at_fork(after_in_child=after_in_child)


def release_all(locks: list[Lock]) -> None:
    """Empty a list of locks, releasing each as it leaves the list."""
    with contextlib.suppress(IndexError):
        deque(map(methodcaller("release"), iter(locks.pop, None)), 0)


os.register_at_fork(after_in_child=_wipe)
for _ in range(_RUNS):
    os.register_at_fork(after_in_child=lambda: _run(False))
