"""Stopping waits: ``stop=`` of every read that has ``timeout=``, and of a subscription's get().

    stop = raxlog.Stop()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    while not stop.is_set():
        for entry in group.read("w", timeout=None, stop=stop): ...

A wait adds the lock that its thread sleeps on, then looks at the flag; set() sets the flag, then
releases the locks that are there. So one of the two sees the other. set() takes no lock, since a signal
handler may call it between any two bytecodes of a thread that holds one.
"""

from __future__ import annotations

import threading
from typing import Protocol

from ..errors import InvalidArgument

_EVENT_PERIOD = 0.05  # seconds: how often what cannot wake a sleeper is asked


class Stop:
    """Ends blocked reads of this process: pass it as ``stop=`` to any number of them, and set() it.

    Level-triggered: while it is set, a read with it returns at once, and takes nothing.
    """

    __slots__ = ("_is_set", "_sleepers")

    def __init__(self) -> None:
        self._is_set = False
        self._sleepers: list[threading.Lock] = []

    def set(self) -> None:
        """End all waits now, and those to come until clear(). From any thread, and from signal handlers."""
        self._is_set = True
        for sleeper in tuple(self._sleepers):
            wake(sleeper)

    def clear(self) -> None:
        """Let reads wait again."""
        self._is_set = False

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set


StopFlag = Stop | threading.Event  # an event is noticed within 100 ms


class Waker(Protocol):
    """What a sleeper is woken by: the lock that its thread sleeps on, or something that wakes a task."""

    def release(self) -> None:
        """Wake it, from any thread; RuntimeError where it has been woken, or is gone. Must take no lock of raxlog's."""


def wake(sleeper: Waker) -> None:
    """End a sleep; harmless where it has been ended already."""
    try:
        sleeper.release()
    except RuntimeError:
        return


def sleep(sleeper: threading.Lock, seconds: float, stop: StopFlag | None) -> None:
    """Sleep on the lock until it is released, the time is over, or ``stop`` is set."""
    if not isinstance(stop, Stop):
        sleeper.acquire(timeout=seconds if stop is None else min(seconds, _EVENT_PERIOD))
        return
    stop._sleepers.append(sleeper)
    try:
        if not stop.is_set():
            sleeper.acquire(timeout=seconds)
    finally:
        stop._sleepers.remove(sleeper)


def is_stopped(stop: StopFlag | None) -> bool:
    """Whether a wait is to end, or not to begin. InvalidArgument for any other type."""
    if stop is not None and not isinstance(stop, StopFlag):
        raise InvalidArgument(f"stop={stop!r:.60} must be a raxlog.Stop or a threading.Event, or None")
    return stop is not None and stop.is_set()
