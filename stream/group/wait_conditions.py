"""Probes: what a thing that is waited for looks like, in one read transaction.

    probe.value(txn)  ==  seen      nothing has happened
                      !=  seen      it has moved: whoever waits looks again
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

from ...storage.trees.rax import RaxTransaction
from ..entries import header as headers
from .state import find_group


class Probe(Protocol):
    """Something to wait for. Of equal probes only one is evaluated."""

    def __hash__(self) -> int: ...

    def value(self, txn: RaxTransaction) -> Hashable:
        """What it looks like in this transaction; it should cost microseconds."""


class Keyed:
    """A probe that equals another of its class with the same key: what it was made with."""

    __slots__ = ("key",)

    def __init__(self, *key: Any) -> None:
        self.key = key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keyed) and type(other) is type(self) and other.key == self.key

    def __hash__(self) -> int:
        return hash((type(self), self.key))


class Finding(Keyed):
    """What a function finds: ``Finding(f, a, b).value(txn)`` is ``f(txn, a, b)``."""

    __slots__ = ()

    def value(self, txn: RaxTransaction) -> Hashable:
        """What it finds now."""
        function, *arguments = self.key
        found: Hashable = function(txn, *arguments)
        return found


class StreamProbe(Keyed):
    """A stream by name: (number, last ms, last seq), None where there is none."""

    __slots__ = ("_known", "name")

    def __init__(self, name: bytes) -> None:
        super().__init__(name)
        self.name = name
        self._known: int | None = None

    def value(self, txn: RaxTransaction) -> tuple[int, int, int] | None:
        """The value now. About 4 µs."""
        found = headers.find(txn, self.name, self._known)
        if found is None:
            return None
        self._known, header = found
        return (self._known, *header.last)


def group_moves(txn: RaxTransaction, stream: bytes, group: bytes, claims: bool) -> Hashable:
    """A consumer group to wait for: its number and how often set_id has moved it; None if it is not there.

    With ``claims``, also when its next pending entry falls due: for readers that claim. About 8 µs, or twice that.
    """
    number = headers.number_of(txn, stream)
    state = None if number is None else find_group(txn, number, group)
    if state is None:
        return None
    if not claims:
        return state.number, state.group, state.moves
    pel = state.pel(txn)
    return state.number, state.group, state.moves, pel.next_due(), pel.oldest_time()
