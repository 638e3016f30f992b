"""Objects that are known as long as they live: sets of weak references, whatever runs in the middle of a look at one.

    known.add(ref(each, known.discard))      alive(known)      known.discard(ref(each))

A WeakSet iterates in Python, and raises where a thread, a signal's handler or a finalizer adds to it.
"""

from __future__ import annotations

from typing import TypeVar
from weakref import ref

T = TypeVar("T")


def alive(known: set[ref[T]]) -> list[T]:
    """Those that are there now. The copy is made in C: no bytecode lies in it."""
    return [each for mark in list(known) if (each := mark()) is not None]
