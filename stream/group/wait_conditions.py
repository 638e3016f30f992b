"""Wait conditions: values read in one transaction, whose change a reader waits for.

    condition.value(txn)  ==  seen      nothing has happened
                          !=  seen      it has changed: the waiting reader looks again
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from ...storage.trees.rax import RaxTransaction
from ..entries import header as headers
from .state import find_group


class Condition:
    """A function with its arguments: ``Condition(f, a, b).value(txn)`` is ``f(txn, a, b)``, in microseconds.

    Equal to one of the same function and arguments: of equal conditions only one is evaluated.
    """

    __slots__ = ("function", "key")

    def __init__(self, function: Callable[..., Hashable], *arguments: Hashable) -> None:
        self.function = function
        self.key = (function, *arguments)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Condition) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)

    def value(self, txn: RaxTransaction) -> Hashable:
        """The value in this transaction."""
        return self.function(txn, *self.key[1:])


def stream_moves(txn: RaxTransaction, stream: bytes) -> tuple[int, int, int] | None:
    """A stream to wait for: (number, last ms, last seq), None where there is none. About 4 µs."""
    found = headers.find(txn, stream)
    return None if found is None else (found[0], *found[1].last)


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
