"""The pages that a transaction of LMDB's will change, looked at before LMDB does.

    root ─┬─ branch ─┬─ leaf      keys of the transaction: the ways to them, and the long values that they replace
          │          └─ leaf      beside a leaf that loses keys: LMDB may merge the two
          └─ branch               not on a way to them: not looked at
    the tree of the list of free pages, all of it

LMDB has no checksum over its pages, and believes what they say: where a row shows a wrong key, it puts a new value
beside the old one; it does not write a changed page whose flags have a bit that only pages in memory have; of a long
value it frees as many pages as the value's first page says. Then rows that were sound are lost, and nothing shows it. A
page that passes here is one that LMDB can have written. What is left: a number in the list of free pages, which has
no second witness.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from raxlog.storage.errors import CorruptionError
from raxlog.storage.tree import lmdb_file
from raxlog.storage.tree.lmdb_file import BIG, HEADER, LEAF, PageFault, PageFile

SOURCE_HASH = ""

LESS = 0 if lmdb_file.LITTLE else 1  # which of two bytes counts less


def require_sound(file: PageFile, changes: list[tuple[bytes, bytes | None]]) -> None:
    """CorruptionError where LMDB would change a damaged page; the changes in order of their keys.

    Under LMDB's lock of writers. Reads each page that it looks at, some microseconds for one of many rows.
    """
    metas = file.metas()
    if not metas:
        return  # LMDB refuses such a file
    try:
        if metas[0].root != lmdb_file.NO_PAGE:
            Walk(file, metas[0].last_page, changes).look(metas[0].root, b"", None, 0, len(changes), 0)
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

    def look(self, number: int, low: bytes, high: bytes | None, begin: int, end: int, depth: int) -> None:
        """Look at a page of the keys from ``low`` to before ``high``, and at those below it on the way to some keys."""
        if not 2 <= number <= self.last_page:
            raise PageFault(number, "is not one of the store's")
        if depth > lmdb_file.DEEPEST:
            raise PageFault(number, "is too deep in the tree")
        self.seen.add(number)
        page = self.file.page(number)
        lmdb_file.require_head(number, page)
        if lmdb_file.flags_of(page) == LEAF:
            for key, first, size in long_values(number, page, low, high):
                at = bisect_left(self.keys, key, begin, end)
                if at < end and self.keys[at] == key:
                    self.file.require_run(first, size, self.last_page)
            return
        starts, children = children_of(number, page, low, high)
        last = len(starts) - 1
        while begin < end:
            place = bisect_right(starts, self.keys[begin]) - 1
            stop = starts[place + 1] if place < last else high
            upto = end if stop is None else bisect_left(self.keys, stop, begin, end)
            self.look(children[place], starts[place], stop, begin, upto, depth + 1)
            if any(value is None for _, value in self.changes[begin:upto]):
                beside = place - 1 if place else 1
                if children[beside] not in self.seen:
                    end_beside = starts[beside + 1] if beside < last else high
                    self.look(children[beside], starts[beside], end_beside, 0, 0, depth + 1)
            begin = upto


def children_of(number: int, page: bytes, low: bytes, high: bytes | None) -> tuple[list[bytes], list[int]]:
    """Where the children of a branch begin, and their numbers; PageFault where they are not in order."""
    inner = lmdb_file.branch(number, page)
    starts = inner.keys
    starts[0] = low
    last = len(starts) - 1
    for place in range(last):
        if starts[place] >= starts[place + 1]:
            raise PageFault(number, "has keys that do not ascend, or not between its neighbours'")
    if high is not None and starts[last] >= high:
        raise PageFault(number, "has keys that do not ascend, or not between its neighbours'")
    return starts, inner.pages


def long_values(number: int, page: bytes, low: bytes, high: bytes | None) -> list[tuple[bytes, int, int]]:
    """The long values of a leaf: key, first page, size.

    PageFault where its keys do not ascend, from ``low`` on to before ``high``, or its records do not fill the page from
    where they begin to its end, as LMDB's always do. lmdb_file.leaf() makes an object of each record: with it
    the look took five times as long.
    """
    p = page
    less = LESS
    more = 1 - less
    size = len(page)
    lower = p[12 + less] | p[12 + more] << 8
    upper = p[14 + less] | p[14 + more] << 8
    if not HEADER < lower <= upper <= size or lower % 2:
        raise PageFault(number, "has bounds that cannot be")
    found: list[tuple[bytes, int, int]] = []
    filled = last = last_length = 0
    for place in range(HEADER, lower, 2):
        at = p[place + less] | p[place + more] << 8
        if not upper <= at <= size - 8:
            raise PageFault(number, "has a pointer that leads out of it")
        flags = p[at + 4 + less] | p[at + 4 + more] << 8
        length = p[at + 6 + less] | p[at + 6 + more] << 8
        data = p[at + 3 * less] | p[at + 1 + less] << 8 | p[at + 2 - less] << 16
        high_byte = p[at + 3 - 3 * less]  # of a C type of its own, as 24 places up its highest bit would be a sign
        data |= high_byte << 24
        key = at + 8
        if flags & ~BIG:
            raise PageFault(number, "has a record of a kind that raxlog does not write")
        taken = 8 + length + (8 if flags else data)
        if at + taken > size:
            raise PageFault(number, "has a record that passes its end")
        if last and not is_less(p, last, last_length, key, length):
            raise PageFault(number, f"has the key {page[key : key + length].hex()} out of order")
        if flags:
            first = lmdb_file.integer(page[key + length : key + length + 8])
            found.append((page[key : key + length], first, data))
        filled += taken + taken % 2
        if not last and page[key : key + length] < low:
            raise PageFault(number, "has keys of a page before it")
        last = key
        last_length = length
    if filled != size - upper:
        raise PageFault(number, "has records that lie over each other")
    if high is not None and page[last : last + last_length] >= high:
        raise PageFault(number, "has keys of a page behind it")
    return found


def is_less(p: bytes, one: int, one_length: int, other: int, other_length: int) -> bool:  # cimport
    """Is the key at ``one`` less than that at ``other``?"""
    return p[one : one + one_length] < p[other : other + other_length]
