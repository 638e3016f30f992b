"""Which of two copies is newer, of a record or of a whole state: pages have no date.

    only grows     the store's next number; a stream's ordinals, nodes ever made, greatest deleted ID;
                   a group's moves and consumers ever made; when a consumer was last seen
    then shrinks   if all that is equal, the copy with fewer streams, groups, entries or pending
                   entries is newer: what it lacks has been deleted since
"""

from __future__ import annotations

from typing import Any

from ...storage.files.lmdb_file import PageFile
from ...storage.format import block, keys, records
from ..check.page_tree import FAILURES, PageTree

_COMPARED = (keys.HEADER, keys.GROUP, keys.CONSUMER)


def version(key: bytes, value: bytes) -> tuple[Any, ...]:
    """The version of a record: greater for the newer of two copies."""
    try:
        if key[8] == keys.NODE:
            head = block.header(key, value)
            return head.span, -head.live
        row = records.unseal(key, value)
        if not any(key[:8]):
            return (row[3],) if key[8] == keys.STORE else (row[0],)
        if key[8] == keys.HEADER:
            return row[9], row[11], (row[5], row[6]), (row[3], row[4]), -row[7]
        if key[8] == keys.GROUP:
            return row[6], (row[1], row[2]), row[5]
        if key[8] == keys.CONSUMER:
            return row[1], row[2]
    except FAILURES:
        return ()
    return (0,)


class StateAge:
    """The age of one state in the file, to be compared with others."""

    def __init__(self, file: PageFile, tree: PageTree) -> None:
        self._hidden = [(fault.low, fault.high) for fault in tree.faults if fault.hides]
        self._marks: list[dict[bytes, tuple[Any, ...]]] = [{} for _ in _COMPARED]
        self._next_number: tuple[Any, ...] = ()
        self._left = [0, 0]  # names and state; pending entries
        for _, node in tree.records():
            key = node.key
            try:
                if key == keys.STORE_KEY:
                    self._next_number = version(key, file.value(node))
                elif len(key) > 8 and any(key[:8]) and key[8] in _COMPARED:
                    value = file.value(node)
                    self._marks[_COMPARED.index(key[8])][key] = version(key, value)
                    if key[8] == keys.GROUP:
                        self._left[1] += records.unseal(key, value)[4]
                elif len(key) > 8 and not any(key[:8]):
                    self._left[0] += 1
            except FAILURES:
                self._hidden.append((key, key + b"\0"))

    def is_newer(self, other: StateAge) -> bool:
        """Whether this state is newer than the other."""
        if self._next_number != other._next_number:
            return self._next_number > other._next_number
        for ours, theirs in zip(self._marks, other._marks, strict=True):
            both = ours.keys() & theirs.keys()
            ahead = sum(ours[key] > theirs[key] for key in both)
            behind = sum(ours[key] < theirs[key] for key in both)
            if ahead != behind:
                return ahead > behind
            lacks = sum(not self._hides(key) for key in theirs.keys() - both)
            has = sum(not other._hides(key) for key in ours.keys() - both)
            if lacks != has:
                return lacks > has
        if self._hidden or other._hidden:
            return len(self._hidden) < len(other._hidden)
        return self._left < other._left

    def _hides(self, key: bytes) -> bool:
        return any(low <= key and (high is None or key < high) for low, high in self._hidden)
