"""The records of a subject index, counted and checked against each other."""

from __future__ import annotations

from raxlog.index.subjects.check import problems
from raxlog.index.subjects.handle import Sublist


def sound(index: Sublist) -> bool:
    """Whether records, rows and counts agree."""
    with index._source.read() as txn:
        assert list(problems(txn)) == []
    return True


def size_on_disk(index: Sublist) -> int:
    """How many records the index has, its own record among them."""
    with index._source.read() as txn:
        return sum(key[:8] == bytes(8) and 0x10 <= key[8] <= 0x1A for key, _ in txn.cursor())
