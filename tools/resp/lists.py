"""Lists: as rows of the state of a store, one for each item.

    RPUSH l b c, LPUSH l a

    head            2^62 - 1, 2^62 + 2, version       the number of the first item, that behind the last, a time
    items + n       2^62 - 1: a   2^62: b   2^62 + 1: c

A push or a pop changes one row of an item and the head. What goes from the middle has the whole list written anew.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from ...storage import clocks
from ...stream.state import State

_HEAD = struct.Struct(">QQQ")
_NUMBER = struct.Struct(">Q")
_MIDDLE = 1 << 62


class StoredList:
    """A list: ``head`` is the key of its head, ``items`` what those of its items begin with."""

    def __init__(self, state: State, head: bytes, items: bytes) -> None:
        self._state = state
        self._head = head
        self._items = items
        row = state.get(head)
        self._first: int = _MIDDLE
        self._end: int = _MIDDLE
        if row is not None:
            self._first, self._end, _ = _HEAD.unpack(row)

    def __len__(self) -> int:
        return self._end - self._first

    def __getitem__(self, some: slice) -> list[bytes]:
        return [self._state[self._items + _NUMBER.pack(self._first + n)] for n in range(*some.indices(len(self)))]

    def push(self, values: Iterable[bytes], left: bool) -> None:
        """Add values, one after the other."""
        for value in values:
            number = self._first - 1 if left else self._end
            self._state[self._items + _NUMBER.pack(number)] = value
            self._first, self._end = min(self._first, number), max(self._end, number + 1)
        self._save()

    def pop(self, count: int, left: bool) -> list[bytes]:
        """Take that many values, or as many as there are."""
        values = []
        for _ in range(min(count, len(self))):
            number = self._first if left else self._end - 1
            values.append(self._state.pop(self._items + _NUMBER.pack(number)))
            self._first, self._end = self._first + left, self._end - (not left)
        self._save()
        return values

    def replace(self, values: Iterable[bytes]) -> None:
        """Have these values instead; none: delete the list."""
        self.pop(len(self), left=True)
        self.push(values, left=False)

    def _save(self) -> None:
        if len(self):
            self._state[self._head] = _HEAD.pack(self._first, self._end, clocks.wall_ns())
        else:
            self._state.pop(self._head, None)
