"""The pages that a transaction of LMDB's will change, looked at before LMDB does.

    root ─┬─ branch ─┬─ leaf      keys of the transaction: the ways to them, and the long values that they replace
          │          ├─ leaf      beside a leaf that loses keys: LMDB may merge the two
          │          └─ leaf      beside one with a key before its first row or behind its last: is it really not here?
          └─ branch               not on a way to them: not looked at
    the tree of the list of free pages, all of it

LMDB has no checksum over its pages, and believes what they say: where a row shows a wrong key, it puts a new value
beside the old one; it does not write a changed page whose flags have a bit that only pages in memory have; of a long
value it frees as many pages as the value's first page says. Then rows that were sound are lost, and nothing shows it. A
page that passes here is one that LMDB can have written. What is left: a number in the list of free pages, which has
no second witness.
"""

from __future__ import annotations

import sys
from bisect import bisect_left

from raxlog.storage.errors import CorruptionError
from raxlog.storage.tree import lmdb_file
from raxlog.storage.tree.lmdb_file import BIG, BRANCH, DEEPEST, HEADER, LEAF, PageFault, PageFile

SOURCE_HASH = ""

BEFORE, BEHIND = 1, 2  # a page's rows, or the keys that lead to it


def require_sound(file: PageFile, changes: list[tuple[bytes, bytes | None]]) -> None:
    """CorruptionError where LMDB would change a damaged page; the changes in order of their keys.

    Under LMDB's lock of writers. Reads each page that it looks at, some microseconds for one of many rows.
    """
    metas = file.metas()
    if not metas:
        return  # LMDB refuses such a file
    try:
        if metas[0].root != lmdb_file.NO_PAGE:
            Walk(file, metas[0].last_page, changes).look(metas[0].root, b"", None, 0, len(changes), 0, 0)
        for _ in lmdb_file.list_leaves(file, metas[0]):
            continue  # each has been looked at
    except PageFault as fault:
        raise CorruptionError(
            f"page {fault.page} of data.mdb {fault.what}, so what the log has is not put into this file"
        ) from fault


class Walk:
    """The ways to some keys."""

    def __init__(self, file: PageFile, last_page: int, changes: list[tuple[bytes, bytes | None]]) -> None:
        self.file = file
        self.last_page = last_page
        self.keys: list[bytes] = [key for key, _ in changes]
        self.changes = changes
        self.seen: set[int] = set()

    def look(self, number: int, low: bytes, high: bytes | None, begin: int, end: int, depth: int, side: int) -> int:
        """Look at a page of the keys from ``low`` to before ``high``, and at those below it on the way to some keys.

        With ``side`` also at the first ones below it, or the last. Returns where keys lie of which the next page on
        that side could have the rows, if a branch said wrongly where it begins.
        """
        if not 2 <= number <= self.last_page:
            raise PageFault(number, "is not one of the store's")
        if depth > DEEPEST:
            raise PageFault(number, "is too deep in the tree")
        self.seen.add(number)
        page = self.file.page(number)
        kind = two_bytes(page, 10)
        if eight_bytes(page, 0) != number or kind not in (BRANCH, LEAF):
            lmdb_file.require_head(number, page)  # raises
        if kind == LEAF:
            for key, first, size in long_values(number, page, low, high):
                at = bisect_left(self.keys, key, begin, end)
                if at < end and self.keys[at] == key:
                    self.file.require_run(first, size, self.last_page)
            return outside(page, self.keys[begin], self.keys[end - 1]) if begin < end else 0
        last = require_branch(number, page, low, high)
        found = 0
        while begin < end:
            place = child_of(page, last, self.keys[begin])
            stop = start_of(page, place + 1) if place < last else high
            upto = end if stop is None else bisect_left(self.keys, stop, begin, end)
            below = self.look_below(page, place, last, low, high, begin, upto, depth, 0)
            if below & BEFORE and place:
                self.look_below(page, place - 1, last, low, high, 0, 0, depth, BEHIND)
            if below & BEHIND and place < last:
                self.look_below(page, place + 1, last, low, high, 0, 0, depth, BEFORE)
            found |= below & ((0 if place else BEFORE) | (BEHIND if place == last else 0))
            if self.has_deletions(begin, upto):
                beside = place - 1 if place else 1
                if number_of_child(page, beside) not in self.seen:
                    self.look_below(page, beside, last, low, high, 0, 0, depth, 0)
            begin = upto
        if side:
            self.look_below(page, 0 if side == BEFORE else last, last, low, high, 0, 0, depth, side)
        return found

    def look_below(self, page: bytes, place: int, last: int, low: bytes, high: bytes | None, begin: int, end: int,
                   depth: int, side: int) -> int:
        """Look at a child of a branch, and below it."""
        start = start_of(page, place) if place else low
        stop = start_of(page, place + 1) if place < last else high
        return self.look(number_of_child(page, place), start, stop, begin, end, depth + 1, side)

    def has_deletions(self, begin: int, end: int) -> bool:
        """Whether one of these changes takes a row away."""
        for place in range(begin, end):  # noqa: SIM110 - any() would make a generator for each page
            if self.changes[place][1] is None:
                return True
        return False


def outside(page: bytes, first: bytes, last: bytes) -> int:
    """Whether the first of some keys lies before all rows of a leaf, and the last behind them."""
    p = page
    one = first
    other = last
    at = two_bytes(p, HEADER)
    found = BEFORE if is_less(one, 0, len(first), p, at + 8, two_bytes(p, at + 6)) else 0
    at = two_bytes(p, two_bytes(p, 12) - 2)
    return found | (BEHIND if is_less(p, at + 8, two_bytes(p, at + 6), other, 0, len(last)) else 0)


def end_of_pointers(number: int, page: bytes) -> int:
    """Where a page's pointers to its records end; PageFault where that, or where the records begin, cannot be."""
    p = page
    lower = two_bytes(p, 12)
    if not HEADER <= lower <= two_bytes(p, 14) <= len(page) or lower % 2:
        raise PageFault(number, "has bounds that cannot be")
    return lower


def require_branch(number: int, page: bytes, low: bytes, high: bytes | None) -> int:
    """The place of a branch's last child. PageFault where it does not add up, or has keys of other pages."""
    p = page
    bound = low
    size = len(page)
    lower = end_of_pointers(number, page)
    upper = two_bytes(p, 14)
    begin = HEADER
    if lower < begin + 4:
        raise PageFault(number, f"is a branch page with {(lower - begin) // 2} children")
    last = last_length = 0
    for place in range(begin, lower, 2):
        at = two_bytes(p, place)
        if not upper <= at <= size - 8:
            raise PageFault(number, "has a pointer that leads out of it")
        length = two_bytes(p, at + 6)
        key = at + 8
        if key + length > size:
            raise PageFault(number, "has a key that passes its end")
        if place > begin:  # the first has none that counts
            if not (is_less(p, last, last_length, p, key, length) if last else
                    is_less(bound, 0, len(low), p, key, length)):
                raise PageFault(number, "has keys that do not ascend, or not between its neighbours'")
            last = key
            last_length = length
    if high is not None:
        bound = high
        if not is_less(p, last, last_length, bound, 0, len(high)):
            raise PageFault(number, "has keys that do not ascend, or not between its neighbours'")
    return (lower - begin) // 2 - 1


def child_of(page: bytes, last: int, key: bytes) -> int:
    """The place of the child that holds a key, up to ``last``: of the last that begins at the key or before it."""
    p = page
    q = key
    head = HEADER
    low = 0
    high = last
    while low < high:
        middle = (low + high + 1) // 2
        at = two_bytes(p, head + 2 * middle)
        if is_less(q, 0, len(key), p, at + 8, two_bytes(p, at + 6)):
            high = middle - 1
        else:
            low = middle
    return low


def start_of(page: bytes, place: int) -> bytes:
    """The key from which on a child holds, which is not the first."""
    p = page
    at = two_bytes(p, HEADER + 2 * place)
    return page[at + 8 : at + 8 + two_bytes(p, at + 6)]


def number_of_child(page: bytes, place: int) -> int:
    """The page of a child."""
    p = page
    at = two_bytes(p, HEADER + 2 * place)
    return two_bytes(p, at + 4) << 32 | four_bytes(p, at)


def long_values(number: int, page: bytes, low: bytes, high: bytes | None) -> list[tuple[bytes, int, int]]:
    """The long values of a leaf: key, first page, size.

    PageFault where its keys do not ascend, from ``low`` on to before ``high``, or its records do not fill the page from
    where they begin to its end, as LMDB's always do. lmdb_file.leaf() makes an object of each record: with it
    the look took five times as long.
    """
    p = page
    bound = low
    size = len(page)
    lower = end_of_pointers(number, page)
    upper = two_bytes(p, 14)
    begin = HEADER
    is_long = BIG
    if lower == begin:
        raise PageFault(number, "has no records")
    found: list[tuple[bytes, int, int]] = []
    filled = last = last_length = 0
    for place in range(begin, lower, 2):
        at = two_bytes(p, place)
        if not upper <= at <= size - 8:
            raise PageFault(number, "has a pointer that leads out of it")
        data = four_bytes(p, at)
        flags = two_bytes(p, at + 4)
        length = two_bytes(p, at + 6)
        key = at + 8
        if flags & ~is_long:
            raise PageFault(number, "has a record of a kind that raxlog does not write")
        taken = 8 + length + (8 if flags else data)
        if at + taken > size:
            raise PageFault(number, "has a record that passes its end")
        if last and not is_less(p, last, last_length, p, key, length):
            raise PageFault(number, f"has the key {page[key : key + length].hex()} out of order")
        if flags:
            first = lmdb_file.integer(page[key + length : key + length + 8])
            found.append((page[key : key + length], first, data))
        filled += taken + taken % 2
        if not last and is_less(p, key, length, bound, 0, len(low)):
            raise PageFault(number, "has keys of a page before it")
        last = key
        last_length = length
    if filled != size - upper:
        raise PageFault(number, "has records that lie over each other")
    if high is not None:
        bound = high
        if not is_less(p, last, last_length, bound, 0, len(high)):
            raise PageFault(number, "has keys of a page behind it")
    return found


def is_less(p: bytes, one: int, one_length: int, q: bytes, other: int, other_length: int) -> bool:  # cimport
    """Is the key at ``one`` of the bytes ``p`` less than that at ``other`` of ``q``?"""
    return p[one : one + one_length] < q[other : other + other_length]


def two_bytes(p: bytes, at: int) -> int:  # cimport
    """The number there, in the machine's byte order, as LMDB writes all of its own."""
    return int.from_bytes(p[at : at + 2], sys.byteorder)


def four_bytes(p: bytes, at: int) -> int:  # cimport
    """The number there. A size, or a page's, is so whichever comes first of the two halves that LMDB speaks of."""
    return int.from_bytes(p[at : at + 4], sys.byteorder)


def eight_bytes(p: bytes, at: int) -> int:  # cimport
    """The number there."""
    return int.from_bytes(p[at : at + 8], sys.byteorder)
