"""The two meta pages, looked at before LMDB believes them: it has no checksum over them.

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
import struct
from collections.abc import Iterator
from pathlib import Path

from ..errors import CorruptionError
from . import lmdb_file
from .lmdb_file import DATA, Meta, Node, PageFault, PageFile

_METAS = 8192
_TRIES = 200  # a writer changes the pages while we look
_INTEGER_KEYS = 0x08
_NO_FOLDER = 0x4000  # a copy made through the file's own name
_MOST_LEFT_OUT = 1 << 20  # pages
_REMEDY = "'raxlog salvage' makes a new store of what is whole"


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
    waiting = [] if meta.free_root == lmdb_file.NO_PAGE else [(meta.free_root, 0)]
    last = -1
    while waiting:
        number, depth = waiting.pop()
        page = _page_of_list(file, number, depth)
        records = []
        if lmdb_file.flags_of(page) == lmdb_file.BRANCH:
            waiting += [(child, depth + 1) for child in reversed(lmdb_file.branch(number, page).pages)]
        else:
            records = lmdb_file.leaf(number, page)
        for node in records:
            if len(node.key) != 8 or lmdb_file.integer(node.key) <= last:
                raise PageFault(number, "holds no numbers of transactions, or not in order")
            last = lmdb_file.integer(node.key)
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
    roots = [root for root in (newest.root, newest.free_root) if root != lmdb_file.NO_PAGE]
    where = f"meta page {newest.slot}"
    if newest.page_size != file.page_size:
        return f"{where} speaks of pages of {newest.page_size} bytes, meta page {older.slot} of {file.page_size}"
    if newest.free_flags & ~_NO_FOLDER != _INTEGER_KEYS or newest.flags:
        return f"the flags of {where} are none that raxlog's files have"
    if any(not 2 <= root <= newest.last_page for root in roots):
        return f"{where} names a root that is not in the file"
    if newest.last_page + 1 < newest.in_trees + 2 or (newest.last_page < older.last_page and not _failed(file, older)):
        return f"{where} says that the file has {newest.last_page + 1} pages, and it must have more"
    if newest.root == older.root and newest.root != lmdb_file.NO_PAGE:
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
    if meta.free_root == lmdb_file.NO_PAGE:
        return None
    number, depth = meta.free_root, 0
    while True:
        page = _page_of_list(file, number, depth)
        if lmdb_file.flags_of(page) == lmdb_file.LEAF:
            break
        number, depth = lmdb_file.branch(number, page).pages[-1], depth + 1
    records = lmdb_file.leaf(number, page)
    if not records or len(records[-1].key) != 8:
        raise PageFault(number, "holds no numbers of transactions")
    return lmdb_file.integer(records[-1].key)


def _page_of_list(file: PageFile, number: int, depth: int) -> bytes:
    page = file.page(number)
    if depth > lmdb_file.DEEPEST:
        raise PageFault(number, "is too deep in the tree")
    lmdb_file.require_head(number, page)
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
