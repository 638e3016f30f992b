"""LMDB's data file, read page by page without LMDB, so that no damage can kill a reader.

    page 0, 1   meta      the newer one (the greater transaction) holds the roots of two trees
    branch      keys  ->  pages                    of the records, and of the free pages
    leaf        keys  ->  values, or the page where a long value begins
    overflow    a long value, on as many pages as it takes

    page   | page no. 8 | 2 | flags 2 | lower 2 | upper 2 | pointers, 2 each … free … nodes |
           | page no. 8 | 2 | flags 2 | pages 4           | a value …                      |
    node   | size or page no., low 2, middle 2 | flags 2, or high | key size 2 | key | data |

Branch nodes hold a page number in three parts, leaf nodes the size of their value in two. A
value that overflows leaves 8 bytes in its node: the first page of it. The nodes of a page lie
close together from ``upper`` to its end, in any order; the pointers stand in key order.

Only what LMDB 0.9 writes on a machine of 64 bits is read here: its data format 1.

The two meta pages are looked at before LMDB believes them: it has no checksum over them.

    page 0   the state after transaction n - 1    n even or odd: transaction n writes page n modulo 2
    page 1   the state after transaction n        LMDB takes the greater number for the newer one

A bit that has flipped in one of the numbers makes LMDB open the older state, in which everything
is in order: the last commit is missing, and no checksum shows it. But each transaction frees pages
(those it has replaced), and lists them under its own number. So a state has the number of the
transaction that made it twice:

    meta page ── number n
        └── list of free pages ── last key n        (empty only up to transaction 1)

What is asked of them, and what it rests on:
  - the newer page's number is the last in its list: a state's pages are flushed before its meta
    page is written, and none of the newest state's pages is ever written over
  - the older page's number is one less. Its list is looked at only where it is not: after a power
    cut the older state may have been written over. Where an error has kept LMDB from writing a
    meta page, it puts the old number back, over the rest of the new page: that is no damage

Not seen is the one bit that turns n into n - 2: the log makes up for it, for LMDB's older state says how far it holds
the log, and what was overwritten since is missed. The other fields are compared with what is known
at no cost: a wrong root, flag or last page can crash LMDB, or have it write over pages in use.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

from .. import disk
from ..errors import CorruptionError

DATA = "data.mdb"
BRANCH, LEAF, OVERFLOW, META = 0x01, 0x02, 0x04, 0x08
BIG = 0x01
NO_PAGE = (1 << 64) - 1
HEADER = 16
LITTLE = sys.byteorder == "little"
DEEPEST = 32  # pages from a root down: LMDB's own limit
RESERVE = 64  # pages that a store which may not grow keeps for deletions; a trim of 1,000 nodes takes some 20

_MAGIC = 0xBEEFC0DE
_VERSION = 1
_SIZES = (4096, 8192, 16384, 32768, 2048, 1024, 512)  # a page's, the usual ones first
_HEAD = struct.Struct("=QHHHH")
_RUN = struct.Struct("=I")
_NODE = struct.Struct("=HHHH")
_NUMBER = struct.Struct("=Q")
_DATABASE = "IHHQQQQQ"  # page size, flags, depth, branch, leaf, overflow pages, entries, root
_META = struct.Struct(f"=IIQQ{_DATABASE}{_DATABASE}QQ")
_METAS = 8192
_TRIES = 200  # a writer changes the pages while we look
_INTEGER_KEYS = 0x08
_NO_FOLDER = 0x4000  # a copy made through the file's own name
_MOST_LEFT_OUT = 1 << 20  # pages
_REMEDY = "'raxlog salvage' makes a new store of what is whole"


class PageFault(Exception):
    """A page that is not what it should be. ``page`` is its number."""

    def __init__(self, page: int, what: str) -> None:
        super().__init__(what)
        self.page = page
        self.what = what


class Meta(NamedTuple):
    """A meta page: the state after one commit."""

    slot: int
    transaction: int
    page_size: int
    free_flags: int
    free_root: int
    flags: int
    depth: int  # pages from the root of the records to a leaf; one where the root is the leaf
    root: int
    entries: int
    in_trees: int  # pages of both trees
    last_page: int


class Node(NamedTuple):
    """A record on a leaf page: its value inline, or where it overflows to."""

    key: bytes
    size: int
    inline: bytes | None
    overflow: int


class Branch(NamedTuple):
    """A branch page: child i holds the keys from ``keys[i]`` on; ``keys[0]`` is empty."""

    keys: list[bytes]
    pages: list[int]


class PageFile:
    """A data file, open for reading. A context manager. Reads copy; nothing is mapped.

    ``size`` is the file's, ``page_size`` what its meta pages say, or what fits most pages
    where neither meta page can be read.
    """

    def __init__(self, path: Path) -> None:
        self._file = disk.open_file(path, os.O_RDONLY)
        self.size: int = os.fstat(self._file.fileno()).st_size
        self.page_size: int = 4096
        self.page_size = self._guessed_size()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def pages(self) -> int:
        """How many whole pages the file has."""
        return self.size // self.page_size

    # -- meta pages ---------------------------------------------------------------------

    def _guessed_size(self) -> int:
        first = self._meta_at(0, 0)
        if first is not None:
            return first.page_size
        for size in _SIZES:
            meta = self._meta_at(1, size)
            if meta is not None and meta.page_size == size:
                return size
        # Neither can be read: the size at which most pages bear their own number.
        def fits(size: int) -> int:
            numbers = range(2, min(self.size // size, 514))
            return sum(os.pread(self._file.fileno(), 8, no * size) == _NUMBER.pack(no) for no in numbers)

        return max(_SIZES, key=lambda size: fits(size) * size)

    def _meta_at(self, slot: int, offset: int) -> Meta | None:
        data = os.pread(self._file.fileno(), HEADER + _META.size, offset)
        if len(data) < HEADER + _META.size:
            return None
        flags = _HEAD.unpack_from(data)[2]
        fields = _META.unpack_from(data, HEADER)
        page_size, last_page, transaction = fields[4], fields[20], fields[21]
        if not flags & META or fields[0] != _MAGIC or fields[1] != _VERSION or page_size not in _SIZES:
            return None
        return Meta(
            slot, transaction, page_size, free_flags=fields[5], free_root=fields[11], flags=fields[13],
            depth=fields[14], root=fields[19], entries=fields[18], last_page=last_page,
            in_trees=sum(fields[7:10]) + sum(fields[15:18]),
        )

    def metas(self) -> list[Meta]:
        """The meta pages that can be read, the newest first."""
        found = [self._meta_at(slot, slot * self.page_size) for slot in (0, 1)]
        # Asked for after them: a writer makes the file longer before it writes the meta page.
        self.size = os.fstat(self._file.fileno()).st_size
        return sorted((meta for meta in found if meta is not None), key=lambda meta: -meta.transaction)

    def version(self) -> int | None:
        """The data format that the first page states; None where it is no meta page of LMDB's."""
        head = os.pread(self._file.fileno(), 64, 0)
        for at in range(0, len(head) - 7, 4):
            magic, version = struct.unpack_from("=II", head, at)
            if magic == _MAGIC:
                return int(version)
        return None

    # -- pages --------------------------------------------------------------------------

    def page(self, number: int) -> bytes:
        """The bytes of a page. PageFault where the file ends before its end."""
        size = self.page_size
        data = os.pread(self._file.fileno(), size, number * size)
        if len(data) < size:
            raise PageFault(number, "is behind the end of the file")
        return data

    def value(self, node: Node) -> bytes:
        """A record's value. PageFault where its overflow pages are not what they should be."""
        if node.inline is not None:
            return node.inline
        data, _ = self.run(node.overflow, node.size)
        return data

    def run(self, first: int, size: int) -> tuple[bytes, int]:
        """The value of ``size`` bytes that begins on page ``first``, and how many pages it has."""
        count = self._run_length(size)
        fits = 2 <= first <= self.pages - count
        data = os.pread(self._file.fileno(), HEADER + size, first * self.page_size) if fits else b""
        if len(data) < HEADER + size:
            raise PageFault(first, "is an overflow page, and the file ends before it does")
        if not flags_of(data) & OVERFLOW:
            raise PageFault(first, "should hold a long value and is no overflow page")
        return data[HEADER:], count

    def require_run(self, first: int, size: int, last_page: int) -> None:
        """PageFault where the page on which a value of ``size`` bytes begins says a wrong length, or is none.

        A value that has become shorter within one transaction keeps its pages. So there may be more of them, if none
        bears its own number, as the first page of anything does, and no other page of a value.
        """
        file = self._file.fileno()
        head = os.pread(file, HEADER, first * self.page_size) if 2 <= first < self.pages else b""
        if len(head) < HEADER:
            raise PageFault(first, "is an overflow page, and the file ends before it does")
        count, needed = run_of(head), self._run_length(size)
        if number_of(head) != first or flags_of(head) != OVERFLOW or not needed <= count <= last_page + 1 - first:
            raise PageFault(first, "should be the first of a long value")
        for page in range(first + needed, first + count):
            if os.pread(file, 8, page * self.page_size) == _NUMBER.pack(page):
                raise PageFault(first, f"says that page {page} belongs to its value")

    def _run_length(self, size: int) -> int:
        return (HEADER - 1 + size) // self.page_size + 1


def number_of(page: bytes) -> int:
    """The number that a page states."""
    number: int = _HEAD.unpack_from(page)[0]
    return number


def integer(key: bytes) -> int:
    """A key of the list of free pages: a transaction, in the machine's byte order."""
    number: int = _NUMBER.unpack(key)[0]
    return number


def flags_of(page: bytes) -> int:
    """What kind of page it says it is."""
    flags: int = _HEAD.unpack_from(page)[2]
    return flags


def require_head(number: int, page: bytes) -> None:
    """PageFault where a page of a tree has another number, or flags that no such page in a file has."""
    if number_of(page) != number:
        raise PageFault(number, f"has the number {number_of(page)}")
    if flags_of(page) not in (BRANCH, LEAF):
        raise PageFault(number, f"has the unknown flags {flags_of(page):#x}")


def run_of(page: bytes) -> int:
    """How many pages an overflow page says its value takes."""
    count: int = _RUN.unpack_from(page, 12)[0]
    return count


def branch(number: int, page: bytes) -> Branch:
    """A branch page's keys and children. PageFault where it does not add up."""
    keys, pages = [], []
    for at in _pointers(number, page):
        one, two, high, key_size = _NODE.unpack_from(page, at)
        low, middle = (one, two) if LITTLE else (two, one)
        end = at + 8 + key_size
        if end > len(page):
            raise PageFault(number, "has a key that passes its end")
        keys.append(page[at + 8 : end])
        pages.append(low | middle << 16 | high << 32)
    if len(keys) < 2:
        raise PageFault(number, f"is a branch page with {len(keys)} children")
    keys[0] = b""
    return Branch(keys, pages)


def leaf(number: int, page: bytes) -> list[Node]:
    """A leaf page's records in key order. PageFault where it does not add up."""
    return [record_at(number, page, at) for at in _pointers(number, page)]


def _pointers(number: int, page: bytes) -> tuple[int, ...]:
    _, _, _, lower, upper = _HEAD.unpack_from(page)
    if not HEADER <= lower <= upper <= len(page) or lower % 2:
        raise PageFault(number, "has bounds that cannot be")
    found: tuple[int, ...] = struct.unpack_from(f"={(lower - HEADER) // 2}H", page, HEADER)
    for at in found:
        if not upper <= at <= len(page) - 8:
            raise PageFault(number, "has a pointer that leads out of it")
    return found


def record_at(number: int, page: bytes, at: int) -> Node:
    """The record at an offset of a leaf page. PageFault where none can be."""
    if not HEADER <= at <= len(page) - 8:
        raise PageFault(number, "has a pointer that leads out of it")
    one, two, flags, key_size = _NODE.unpack_from(page, at)
    size = one | two << 16 if LITTLE else two | one << 16
    begin = at + 8 + key_size
    if flags & ~BIG:
        raise PageFault(number, "has a record of a kind that raxlog does not write")
    if begin + (8 if flags & BIG else size) > len(page):
        raise PageFault(number, "has a record that passes its end")
    key = page[at + 8 : begin]
    if flags & BIG:
        return Node(key, size, None, _NUMBER.unpack_from(page, begin)[0])
    return Node(key, size, page[begin : begin + size], NO_PAGE)


def loose_records(page: bytes) -> Iterator[tuple[int, Node]]:
    """Whatever may be a record on a leaf page, damaged or not, each with its offset.

    By the pointers, and by walking the nodes from where they begin to the page's end. The
    caller must verify each one's checksum.
    """
    _, _, _, lower, upper = _HEAD.unpack_from(page)
    size = len(page)
    count = min(max(lower - HEADER, 0), size - HEADER) // 2
    starts = set(struct.unpack_from(f"={count}H", page, HEADER))
    # Nothing below ``upper`` belongs to the page any more; a damaged ``upper`` shows by the pointers.
    begin = upper if HEADER < upper < size else min((at for at in starts if at > HEADER), default=size)
    at = begin
    while at <= size - 8:
        starts.add(at)
        try:
            found = record_at(0, page, at)
        except PageFault:
            break
        taken = 8 + len(found.key) + (8 if found.inline is None else found.size)
        at += taken + taken % 2
    for at in sorted(starts):
        if at >= begin:
            try:
                yield at, record_at(0, page, at)
            except PageFault:
                continue


# -- the meta pages ---------------------------------------------------------------------


def require_sound(generation: Path, readonly: bool) -> None:
    """CorruptionError where LMDB would be misled by the meta pages of a generation. About 40 µs.

    Pages that LMDB itself refuses are left to it. What only a writer would run into is no error
    with ``readonly``.
    """
    require_whole(generation)
    with PageFile(generation / DATA) as file:
        for _ in range(_TRIES):
            metas = file.metas()
            error = _damage(generation, file, metas, readonly)
            if error is None:
                return
            if file.metas() == metas:  # else a writer has come between
                raise error


def _damage(generation: Path, file: PageFile, metas: list[Meta], readonly: bool) -> CorruptionError | None:
    used = missing_end(file, metas)
    if used:
        try:
            require_whole(generation, used)
        except CorruptionError as error:
            return error
    doubt = doubts(file, metas, readonly)
    return None if doubt is None else CorruptionError(f"{generation / DATA}: {doubt}. {_REMEDY}")


def stable_doubts(file: PageFile) -> str | None:
    """What speaks against the newest state, beside a writer too, and also a number that is wrong and does no harm."""
    for _ in range(_TRIES):
        metas = file.metas()
        found = doubts(file, metas)
        if found is None and len(metas) == 2 and not _follow(*metas):
            found = _do_not_follow(*metas)
        if found is None or file.metas() == metas:
            return found
    return None


def missing_end(file: PageFile, metas: list[Meta]) -> int:
    """How many bytes belong to the file, where it is shorter than that; 0 where nothing is missing.

    LMDB leaves the end out where the last pages have been freed in the transaction that took
    them. Then all of them are in the newest state's list of free pages.
    """
    if not metas or metas[0].last_page < file.pages:
        return 0
    newest = metas[0]
    if newest.last_page < 2 * file.pages + _MOST_LEFT_OUT:  # else no number of a sound file
        with contextlib.suppress(PageFault, ValueError):
            free = {number for _, (count, *numbers) in free_list(file, newest) for number in numbers[:count]}
            if free.issuperset(range(file.pages, newest.last_page + 1)):
                return 0
    return (newest.last_page + 1) * newest.page_size


def free_list(file: PageFile, meta: Meta) -> Iterator[tuple[range, tuple[int, ...]]]:
    """A state's list of free pages, part by part: the pages that hold it, and what is there: how many, and which.

    A part may have room for more than it says. PageFault where a page of it is not what it should be.
    """
    for number, records in list_leaves(file, meta):
        yield range(number, number + 1), (0,)
        for node in records:
            value, count = (node.inline, 0) if node.inline is not None else file.run(node.overflow, node.size)
            yield range(node.overflow, node.overflow + count), struct.unpack_from(f"={len(value) // 8}Q", value)


def list_leaves(file: PageFile, meta: Meta) -> Iterator[tuple[int, list[Node]]]:
    """The pages of the tree of a state's list of free pages, each with its records; a branch has none. PageFault."""
    waiting = [] if meta.free_root == NO_PAGE else [(meta.free_root, 0)]
    last = -1
    while waiting:
        number, depth = waiting.pop()
        page = _page_of_list(file, number, depth)
        records = []
        if flags_of(page) == BRANCH:
            waiting += [(child, depth + 1) for child in reversed(branch(number, page).pages)]
        else:
            records = leaf(number, page)
        for node in records:
            if len(node.key) != 8 or integer(node.key) <= last:
                raise PageFault(number, "holds no numbers of transactions, or not in order")
            last = integer(node.key)
            if node.inline is None:
                file.require_run(node.overflow, node.size, meta.last_page)
        yield number, records


def doubts(file: PageFile, metas: list[Meta], readonly: bool = False) -> str | None:
    """What speaks against the state that LMDB would take, of two meta pages, the newer one first."""
    if len(metas) < 2:
        return None
    newest, older = metas
    return _doubts_fields(file, newest, older) or _doubts_number(file, newest, older, readonly)


def _doubts_fields(file: PageFile, newest: Meta, older: Meta) -> str | None:
    roots = [root for root in (newest.root, newest.free_root) if root != NO_PAGE]
    where = f"meta page {newest.slot}"
    if newest.page_size != file.page_size:
        return f"{where} speaks of pages of {newest.page_size} bytes, meta page {older.slot} of {file.page_size}"
    if newest.free_flags & ~_NO_FOLDER != _INTEGER_KEYS or newest.flags:
        return f"the flags of {where} are none that raxlog's files have"
    if any(not 2 <= root <= newest.last_page for root in roots):
        return f"{where} names a root that is not in the file"
    if newest.last_page + 1 < newest.in_trees + 2 or (newest.last_page < older.last_page and not _failed(file, older)):
        return f"{where} says that the file has {newest.last_page + 1} pages, and it must have more"
    if newest.root == older.root and newest.root != NO_PAGE:
        return "both meta pages name the same root, and each transaction makes another"
    return None


def _failed(file: PageFile, older: Meta) -> bool:
    """Whether the older page is what an error has left of the page after the newest."""
    try:
        return maker(file, older) == older.transaction + 2
    except PageFault:
        return False


def _doubts_number(file: PageFile, newest: Meta, older: Meta, readonly: bool) -> str | None:
    follow = _follow(newest, older)
    try:
        made_by = maker(file, newest)
    except PageFault as fault:
        if not readonly:
            return (f"page {fault.page}, of the list of free pages, {fault.what}, so nothing can be written. Open the "
                    "store with readonly=True to read it")
        return None if follow else _do_not_follow(newest, older)
    if made_by != newest.transaction and not (made_by is None and newest.transaction <= 1):
        return (f"meta page {newest.slot} says that it is of transaction {newest.transaction}, its list of free pages "
                f"that it is of {made_by}: a newer commit may be hidden by it")
    if not follow:
        try:
            if maker(file, older) == newest.transaction - 1:
                return None  # only its number is wrong, and LMDB does not go by it
        except PageFault:
            pass
        return _do_not_follow(newest, older)
    return None


def _follow(newest: Meta, older: Meta) -> bool:
    return newest.transaction - older.transaction == 1 and newest.transaction % 2 == newest.slot


def _do_not_follow(newest: Meta, older: Meta) -> str:
    return (f"the meta pages are of the transactions {newest.transaction} and {older.transaction}, which do not "
            "follow each other: the newest commit may be hidden")


def maker(file: PageFile, meta: Meta) -> int | None:
    """The transaction that made a state, by its list of free pages; None where that is empty.

    PageFault where the last page of the list is not what it should be.
    """
    if meta.free_root == NO_PAGE:
        return None
    number, depth = meta.free_root, 0
    while True:
        page = _page_of_list(file, number, depth)
        if flags_of(page) == LEAF:
            break
        number, depth = branch(number, page).pages[-1], depth + 1
    records = leaf(number, page)
    if not records or len(records[-1].key) != 8:
        raise PageFault(number, "holds no numbers of transactions")
    return integer(records[-1].key)


def _page_of_list(file: PageFile, number: int, depth: int) -> bytes:
    page = file.page(number)
    if depth > DEEPEST:
        raise PageFault(number, "is too deep in the tree")
    require_head(number, page)
    return page


def require_whole(generation: Path, used: int = _METAS) -> None:
    """CorruptionError where the data file is shorter than the ``used`` bytes LMDB speaks of.

    Reading pages behind a file's end is a SIGBUS. LMDB does leave the end out now and then,
    where its last pages have been freed in the transaction that took them; so before a file
    is refused its tree is walked, which takes a while and is rarely needed.
    """
    size = (generation / DATA).stat().st_size
    if size < used and (used == _METAS or _reaches_beyond_its_end(generation)):
        raise CorruptionError(
            f"the data file {generation / DATA} is cut off: it has {size} bytes, and at least {used} belong to it"
        )


def _reaches_beyond_its_end(generation: Path) -> bool:
    from lmdb.verify import VerifyError, verify  # noqa: PLC0415 - only needed here

    try:
        problems = [str(problem) for problem in verify(str(generation))]  # type: ignore[no-untyped-call]
    except VerifyError:  # so far beyond it that the verifier gives up
        return True
    return any("EOF" in problem or "truncated" in problem for problem in problems)
