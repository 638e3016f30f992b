"""Finalizers that the collector of garbage runs wherever an object is made, so also in the middle of a call."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Circle:
    """Garbage for the collector alone, with a finalizer, which leaves the next such garbage."""

    at_work = False

    def __init__(self, end: Callable[[], object]) -> None:
        self.itself = self
        self.end = end

    def __del__(self) -> None:
        if Circle.at_work:
            Circle(self.end)
            self.end()


@contextmanager
def finalizing(end: Callable[[], object], every: int) -> Iterator[None]:
    """Call ``end`` again and again: each time that the collector finds so many objects more than the time before."""
    before = gc.get_threshold()
    gc.collect()
    Circle.at_work = True
    gc.set_threshold(every, 1 << 20, 1 << 20)
    Circle(end)
    try:
        yield
    finally:
        Circle.at_work = False
        gc.set_threshold(*before)
