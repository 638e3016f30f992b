"""The tree of the records, read from raw pages, with the reading methods of an LMDB transaction.

    meta ── root ─┬─ branch ─┬─ leaf   keys a … f       leaves = [(b"", page), (b"g", page) …]
                  │          └─ DAMAGED                 fault: page 17, keys from g to before m
                  └─ branch ── leaf    keys m … z

The branch pages are walked once, when the tree is made; leaves are read when they are needed.
Damage is noted with the range of keys that it hides, and all the rest can be read. With get()
and cursor() of an LMDB transaction, every reader of a store's records can read them here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple, Self

from ...storage.errors import RaxlogError
from ...storage.tree import lmdb_file
from ...storage.tree.lmdb_file import Node, PageFault, PageFile

# What reading a malformed record may raise.
FAILURES = (RaxlogError, PageFault, ValueError, TypeError, IndexError, KeyError, AttributeError)
_CACHED = 1024  # leaves


class Fault(NamedTuple):
    """A page that cannot be read or trusted, and its range of keys."""

    page: int
    what: str
    low: bytes
    high: bytes | None  # None: up to the last key
    hides: bool  # whether the records below it are out of reach


class RawRecords:
    """Records of raw pages, leaf by leaf in key order, with the reading methods of an LMDB transaction."""

    leaves = 1

    def leaf_index(self, key: bytes) -> int:
        """The number of the leaf of a key, which need not exist."""
        return 0

    def keys(self, index: int) -> list[bytes]:
        """The keys on one leaf, in order."""
        raise NotImplementedError

    def value_at(self, index: int, at: int) -> bytes:
        raise NotImplementedError

    def cursor(self) -> Any:
        """A cursor over the records, with the methods of LMDB's that readers use."""
        return _Cursor(self)

    def begin(self) -> Self:
        """Itself, as the environment that a log asks for a state."""
        return self

    def id(self) -> int:
        return 0

    def abort(self) -> None:
        """It holds nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    def get(self, key: bytes) -> bytes | None:
        """The value under a key, None if it is absent or hidden by damage."""
        raise NotImplementedError

    def put(self, key: bytes, value: bytes, *, overwrite: bool = True) -> bool:
        raise NotImplementedError("raw pages are for reading only")

    def delete(self, key: bytes) -> bool:
        raise NotImplementedError("raw pages are for reading only")


class PageTree(RawRecords):
    """The records below one root.

    ``faults`` grows while leaves and values are read. ``reachable`` holds the pages of the tree,
    without those of long values.
    """

    def __init__(self, file: PageFile, root: int, last_page: int) -> None:
        self._file = file
        self._last_page = last_page
        self.faults: list[Fault] = []
        self.reachable: set[int] = set()
        self.leaves: int = 0  # pages that can be read
        self._lows: list[bytes] = []
        self._pages: list[int] = []
        self._ends: list[bytes | None] = []
        self._read = lru_cache(_CACHED)(self._parsed)
        if root != lmdb_file.NO_PAGE:
            self._walk(root, b"", None, 0)

    def _fault(self, page: int, what: str, low: bytes, high: bytes | None, hides: bool) -> None:
        self.faults.append(Fault(page, what, low, high, hides))

    def _walk(self, number: int, low: bytes, high: bytes | None, depth: int) -> None:
        try:
            if not 2 <= number <= self._last_page:
                raise PageFault(number, "is not one of the store's")
            if number in self.reachable:
                raise PageFault(number, "is reached from two places")
            if depth > lmdb_file.DEEPEST:
                raise PageFault(number, "is too deep in the tree")
            page = self._file.page(number)
            flags = lmdb_file.flags_of(page)
            if flags & lmdb_file.LEAF and not flags & lmdb_file.BRANCH:
                self._leaf(number, page, low, high)
                return
            if not flags & lmdb_file.BRANCH:
                raise PageFault(number, f"is neither branch nor leaf (flags {flags:#x})")
            inner = lmdb_file.branch(number, page)
        except PageFault as fault:
            self._fault(number, fault.what, low, high, True)
            return
        self.reachable.add(number)
        self._check_head(number, page, flags, lmdb_file.BRANCH, low, high)
        last = len(inner.pages) - 1
        for place, child in enumerate(inner.pages):
            start = inner.keys[place] if place else low
            stop = inner.keys[place + 1] if place < last else high
            if start < low or (stop is not None and (stop <= start or (high is not None and stop > high))):
                self._fault(number, "has keys that do not ascend, or not between its neighbours'", low, high, False)
                start, stop = max(start, low), high if stop is None or stop <= start else stop
            self._walk(child, start, stop, depth + 1)

    def _leaf(self, number: int, page: bytes, low: bytes, high: bytes | None) -> None:
        records = lmdb_file.leaf(number, page)
        self.reachable.add(number)
        self._check_head(number, page, lmdb_file.flags_of(page), lmdb_file.LEAF, low, high)
        last = None
        for record in records:
            key = record.key
            if (last is not None and key <= last) or key < low or (high is not None and key >= high):
                self._fault(number, f"has the key {key.hex()} out of order", low, high, False)
            last = key
        if not records:
            self._fault(number, "is a leaf page without records", low, high, False)
        self._lows.append(low)
        self._ends.append(high)
        self._pages.append(number)
        self.leaves += 1

    def _check_head(self, number: int, page: bytes, flags: int, wanted: int, low: bytes, high: bytes | None) -> None:
        if lmdb_file.number_of(page) != number:
            self._fault(number, f"has the number {lmdb_file.number_of(page)}", low, high, False)
        if flags != wanted:
            self._fault(number, f"has the unknown flags {flags:#x}", low, high, False)

    def keys(self, index: int) -> list[bytes]:
        """The keys on one leaf, in order."""
        return self._read(index)[1]

    def leaf(self, index: int) -> list[Node]:
        """The records of one leaf, in order."""
        return self._read(index)[0]

    def _parsed(self, index: int) -> tuple[list[Node], list[bytes]]:
        number = self._pages[index]
        try:
            found = lmdb_file.leaf(number, self._file.page(number))
        except PageFault as fault:
            self._fault(number, fault.what, self._lows[index], self._ends[index], True)
            found = []
        return found, [node.key for node in found]

    def page_of(self, key: bytes) -> int | None:
        """The leaf page of a key, which need not exist."""
        at = bisect_right(self._lows, key) - 1
        return self._pages[at] if at >= 0 else None

    def leaf_index(self, key: bytes) -> int:
        """The number of the leaf of a key, which need not exist."""
        return max(bisect_right(self._lows, key) - 1, 0)

    def low_at(self, index: int) -> bytes | None:
        """The first key of a leaf's range; None behind the last leaf."""
        return self._lows[index] if index < len(self._lows) else None

    def page_at(self, index: int) -> int:
        return self._pages[index]

    def records(self) -> Iterator[tuple[int, Node]]:
        """All records in order, each with its leaf page."""
        for index, number in enumerate(self._pages):
            for node in self.leaf(index):
                yield number, node

    def value(self, node: Node) -> bytes:
        """A record's value; empty, as no record's is, if its pages are damaged."""
        try:
            return self._file.value(node)
        except PageFault:
            return b""

    def value_at(self, index: int, at: int) -> bytes:
        return self.value(self.leaf(index)[at])

    def get(self, key: bytes) -> bytes | None:
        """The value under a key, None if it is absent or hidden by damage."""
        index = bisect_right(self._lows, key) - 1
        if index < 0:
            return None
        keys = self.keys(index)
        at = bisect_left(keys, key)
        return self.value_at(index, at) if at < len(keys) and keys[at] == key else None


class _Cursor:
    """A position among records, with the methods of lmdb.Cursor."""

    __slots__ = ("_at", "_index", "_records")

    def __init__(self, records: RawRecords) -> None:
        self._records = records
        self._index = 0
        self._at = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._at = -1

    def set_range(self, key: bytes) -> bool:
        if not self._records.leaves:
            return False
        self._index = self._records.leaf_index(key)
        self._at = bisect_left(self._records.keys(self._index), key)
        return self._forward()

    def set_key(self, key: bytes) -> bool:
        return self.set_range(key) and self.key() == key

    def first(self) -> bool:
        return self.set_range(b"")

    def last(self) -> bool:
        self._index = self._records.leaves
        self._at = 0
        return self.prev()

    def next(self) -> bool:
        self._at += 1
        return self._forward()

    def prev(self) -> bool:
        self._at -= 1
        while self._at < 0:
            if self._index == 0:
                return False
            self._index -= 1
            self._at = len(self._records.keys(self._index)) - 1
        return True

    def _forward(self) -> bool:
        while self._index < self._records.leaves:
            if self._at < len(self._records.keys(self._index)):
                return True
            self._index += 1
            self._at = 0
        return False

    def key(self) -> bytes:
        return self._records.keys(self._index)[self._at]

    def value(self) -> bytes:
        return self._records.value_at(self._index, self._at)

    def item(self) -> tuple[bytes, bytes]:
        return self.key(), self.value()
