"""Fork hooks: what runs before and after os.fork(), and again where an exception strikes a hook."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable
from operator import methodcaller
from threading import Lock
from typing import TypeVar
from weakref import WeakSet

T = TypeVar("T")

FORK_PATIENCE = 2.0  # seconds
acquire_in_time = methodcaller("acquire", True, FORK_PATIENCE)


def at_fork(runs: int = 16, **hooks: Callable[[], None]) -> None:
    """Register hooks of os.fork() that may be run again: an exception ends the hook that it strikes, and no other.

    Each is registered many times, so that the next run does what the one before was kept from: on a busy
    machine signals of many milliseconds wait for the fork to end, and strike one run after the other.
    """
    for _ in range(runs):
        os.register_at_fork(**hooks)


def forget_in_child(known: WeakSet[T], forget: Callable[[T], None]) -> None:
    """Call ``forget`` in a forked child with each object that is known then."""

    def after_in_child() -> None:
        for one in list(known):
            forget(one)

    at_fork(after_in_child=after_in_child)


def release_all(locks: list[Lock]) -> None:
    """Empty a list of locks, releasing each as it leaves the list."""
    with contextlib.suppress(IndexError):
        deque(map(methodcaller("release"), iter(locks.pop, None)), 0)
