"""Gathers the records of a damaged file that belong to its newest state.

    newest meta ── root ── all pages that can be reached                  taken
                └─ free pages                                             skipped: old copies
    pages neither reachable nor free (the page above them is damaged)     taken too
    if the list of free pages is damaged, old copies look the same: of those pages only nodes,
    headers, names, groups and consumers are taken, of each the newest; the rest is "doubtful".
    All of it is, where a leaf may be lost, as in a file that was cut off: the newest copy may have been on it

LMDB never changes a page in place, so the file is full of old copies of pages. They hold trimmed
entries, acknowledged deliveries and deleted streams, all with right checksums: the checksum alone
proves nothing.

If a meta page is damaged, or both are, the roots are searched for: pages that no other page
leads to and whose first record is the store's own. The newest is taken.

Of two copies of a record, or of two states, the newer one is found by what only grows: the store's
next number; a stream's ordinals, nodes ever made, greatest deleted ID; a group's moves and consumers
ever made; when a consumer was last seen. If all that is equal, the newer copy has fewer streams,
groups, entries or pending entries: what it lacks has been deleted since.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ...storage.format import keys as layout
from ...storage.format import records
from ...storage.tree import lmdb_file
from ...storage.tree.lmdb_file import Node, PageFault, PageFile
from ...storage.trees.rax import family_rows
from ...stream.entries.header import StreamHeader
from ...stream.group.state import ConsumerState, GroupState
from ..check.page_tree import FAILURES, PageTree, RawRecords
from ..check.records import is_sealed, well_formed

_MOST_ROOTS = 64
_DOUBTFUL = (layout.NODE, layout.HEADER, layout.GROUP, layout.CONSUMER, layout.GROUP_NAME, layout.CONSUMER_NAME,
             layout.ORDINAL)
_DOUBTFUL_OF_STORE = (layout.STORE, layout.NAME)
_COMPARED = (layout.HEADER, layout.GROUP, layout.CONSUMER)


class _Address(NamedTuple):
    """The address of a record; page -1: of the log, that many changes on."""

    page: int
    offset: int


class GatheredRecords(RawRecords):
    """The records taken from a file, in key order, with the reading methods of a transaction."""

    def __init__(self, file: PageFile, with_doubtful: bool = False) -> None:
        self._file = file
        self.with_doubtful = with_doubtful
        self.is_sure = True  # whether old copies of pages can be recognized
        self.lacks_leaves = False  # whether leaf pages of the newest state may be lost
        self._addresses: dict[bytes, _Address] = {}
        self._keys: list[bytes] = []
        self._logged: list[bytes] = []
        self._last_page: tuple[int, bytes] = (-1, b"")
        self.hidden: list[tuple[bytes, bytes | None]] = []  # key ranges of damaged pages
        self.damaged: dict[int, str] = {}  # pages
        self.doubtful: int = 0
        self._doubted: set[bytes] = set()  # keys that were taken from pages that may be old copies
        self._first_pages: list[tuple[int, int, list[bytes]]] = []  # copies of the one with the store's record
        self.notes: list[str] = []
        self.sealed: int = 0

    def take_page(self, number: int, page: bytes, only_hidden: bool, doubt: bool) -> None:
        """Take the records of one page that have a right checksum.

        ``only_hidden``: those in hidden ranges. ``doubt``: the page may be an old copy.
        """
        names: list[bytes] = []
        next_number = -1
        kinds_of_store = () if self.lacks_leaves else _DOUBTFUL_OF_STORE
        kinds_of_stream = () if self.lacks_leaves else _DOUBTFUL
        for offset, node in lmdb_file.loose_records(page):
            key = node.key
            form = well_formed(key)
            if form is False or (only_hidden and not self.is_hidden(key)):
                continue
            try:
                value = self._file.value(node)
            except PageFault as fault:
                self.damaged[fault.page] = fault.what
                continue
            if not is_sealed(key, value):
                if not only_hidden:
                    self.damaged[number if node.inline is not None else node.overflow] = "fails a checksum"
                continue
            self.sealed += 1
            known = self._addresses.get(key)
            if doubt and key == layout.STORE_KEY:
                next_number = version(key, value)[0]
            if doubt and key.startswith(layout.NAMES):
                names.append(key)
            if doubt:
                kinds = kinds_of_stream if any(key[:8]) else kinds_of_store
                if key[8] not in kinds and not self.with_doubtful:
                    self.doubtful += known is None
                    continue
                if known is not None and version(key, value) <= version(key, self._read(known)):
                    continue
                self._doubted.add(key)
            elif known is not None:
                continue
            self._addresses[key] = _Address(number, offset)
        if next_number >= 0:
            self._first_pages.append((next_number, -len(names), sorted(names)))

    def take_changes(self, changes: list[tuple[bytes, bytes | None]]) -> int:
        """Take what a log has besides. Returns how many changes were lost with what they are relative to."""
        lost = 0
        for key, value in changes:
            if value is None:
                self._addresses.pop(key, None)
            elif is_sealed(key, value):
                self._addresses[key] = _Address(-1, len(self._logged))
                self._logged.append(value)
            else:
                lost += 1
        self._keys = sorted(self._addresses)
        return lost

    def is_hidden(self, key: bytes, to: bytes | None = None) -> bool:
        """Whether the key, or any from it to before ``to``, is in the range of a damaged page."""
        end = key + b"\0" if to is None else to
        return any(low < end and (high is None or high > key) for low, high in self.hidden)

    def is_doubted(self, key: bytes) -> bool:
        """Whether a record may be an old copy."""
        return self.lacks_leaves and key in self._doubted

    def was_deleted(self, name: bytes) -> bool:
        """Whether a stream's header is an old copy, by the newest page of names."""
        if not self._first_pages:
            return False
        names = max(self._first_pages)[2]
        key = layout.NAMES + name
        return key not in self._addresses and bool(names) and key <= names[-1]

    def settle(self) -> None:
        if self._first_pages:
            # A new name raises the store's next number, so of two copies with the same number the
            # one with fewer names is newer: names have been deleted.
            names = max(self._first_pages)[2]
            for key in [key for key in self._doubted if key.startswith(layout.NAMES)]:
                if key not in names and (not names or key <= names[-1]):
                    del self._addresses[key]
        self._keys = sorted(self._addresses)

    def _read(self, address: _Address) -> bytes:
        if address.page < 0:
            return self._logged[address.offset]
        if self._last_page[0] != address.page:
            self._last_page = (address.page, self._file.page(address.page))
        node: Node = lmdb_file.record_at(address.page, self._last_page[1], address.offset)
        return self._file.value(node)

    def get(self, key: bytes) -> bytes | None:
        address = self._addresses.get(key)
        return None if address is None else self._read(address)

    def keys(self, index: int) -> list[bytes]:
        return self._keys

    def value_at(self, index: int, at: int) -> bytes:
        return self._read(self._addresses[self._keys[at]])

    def rows(self, prefix: bytes) -> Iterator[tuple[bytes, list[Any]]]:
        """The rows of a family, without the prefix."""
        for key, value in family_rows(self, prefix):
            try:
                yield key[len(prefix) :], records.unseal(key, value)
            except FAILURES:
                continue  # a right checksum and no row: not raxlog's

    def numbers(self) -> list[int]:
        """The numbers of all streams that have records."""
        return sorted({int.from_bytes(key[:8], "big") for key in self._keys} - {0})


def gather(file: PageFile, with_doubtful: bool = False) -> GatheredRecords:
    """The records of a data file's newest state; ``with_doubtful`` also those that may be old."""
    gathered = GatheredRecords(file, with_doubtful)
    tree, free = _state(file, gathered)
    if tree is None:
        gathered.hidden.append((b"", None))
        reachable: set[int] = set()
    else:
        reachable = tree.reachable
        for fault in tree.faults:
            gathered.damaged[fault.page] = fault.what
            if fault.hides or fault.page in reachable:  # or records on it may lie under wrong keys
                gathered.hidden.append((fault.low, fault.high))
        for index in range(tree.leaves):
            number = tree.page_at(index)
            gathered.take_page(number, file.page(number), False, False)
    if gathered.hidden:
        gathered.is_sure = free is not None
        if free is None:
            gathered.lacks_leaves = gathered.lacks_leaves or tree is None or _lacks_leaves(file, tree)
            gathered.notes.append(
                "the list of free pages is damaged, so old copies of pages cannot be recognized: of those "
                "that nothing leads to " + ("everything was taken, also what may have been deleted" if with_doubtful
                else "nothing was taken: newer copies may have been on the pages that are lost" if gathered.lacks_leaves
                else "only streams and groups were taken; no state, no pending entries, no stream without a name")
            )
        _take_stranded(file, gathered, reachable, free)
    gathered.settle()
    return gathered


def _lacks_leaves(file: PageFile, tree: PageTree) -> bool:
    """Whether the file was cut off, or a page of the newest state is damaged that may have been a leaf."""
    meta = file.metas()[0]
    branch = meta.root if meta.depth > 1 else -1
    return meta.last_page >= file.pages or any(fault.hides and fault.page != branch for fault in tree.faults)


def _take_stranded(file: PageFile, gathered: GatheredRecords, reachable: set[int], free: set[int] | None) -> None:
    number = 2
    while number < file.pages:
        if number in reachable or (free is not None and number in free):
            number += 1
            continue
        page = file.page(number)
        if lmdb_file.flags_of(page) == lmdb_file.OVERFLOW and lmdb_file.number_of(page) == number:
            number += max(1, min(lmdb_file.run_of(page), file.pages))
            continue
        if lmdb_file.flags_of(page) != lmdb_file.BRANCH:
            gathered.take_page(number, page, True, free is None)
        number += 1


def _state(file: PageFile, gathered: GatheredRecords) -> tuple[PageTree | None, set[int] | None]:
    """The tree of the newest state, and its free pages; None for what is unknown."""
    metas = file.metas()
    sound = len(metas) == 2 and lmdb_file.doubts(file, metas, readonly=True) is None
    states = []
    for meta in metas:
        tree = PageTree(file, meta.root, meta.last_page)
        free = _free_pages(file, meta)
        if sound and (free is None or meta.root not in free) and _is_plausible(tree):
            return tree, free  # if the root is damaged, a tree that hides everything
        states.append((tree, free))
        sound = False
    gathered.lacks_leaves = True  # the file may have been longer
    gathered.notes.append("a meta page is damaged: the newest state in the file was searched for, and the last commit "
                          "may be missing")
    known = {meta.root for meta in metas}
    states = [(tree, free) for tree, free in states if tree.leaves]
    states += [(PageTree(file, root, file.pages - 1), None) for root in _roots(file) if root not in known]
    states = [(tree, free) for tree, free in states if _is_plausible(tree)]
    # A tree of which some pages have been reused has keys out of order.
    states = [state for state in states if all(fault.hides for fault in state[0].faults)] or states
    best: tuple[PageTree, set[int] | None] | None = None
    for state in states:  # those of meta pages come first, and stay unless another is newer
        if best is None or StateAge(file, state[0]).is_newer(StateAge(file, best[0])):
            best = state
    return (None, None) if best is None else best


def _is_plausible(tree: PageTree) -> bool:
    """Whether the tree begins with the store's own record, as far as its first leaf can be read."""
    if any(fault.hides and not fault.low for fault in tree.faults):
        return True
    return tree.leaves > 0 and bool(tree.leaf(0)) and tree.leaf(0)[0].key == layout.STORE_KEY


def _free_pages(file: PageFile, meta: lmdb_file.Meta) -> set[int] | None:
    """The free pages of a state, with those of the list itself; None if the list is damaged."""
    found: set[int] = set()
    try:
        for its_own, (count, *numbers) in lmdb_file.free_list(file, meta):
            if count != len(numbers) or any(not 2 <= number <= meta.last_page for number in numbers):
                return None
            found.update(its_own, numbers)
    except (PageFault, ValueError):
        return None
    return found


def _roots(file: PageFile) -> list[int]:
    """Pages that no page leads to and whose first record is the store's own."""
    children: dict[int, list[int]] = {}
    first_leaves: set[int] = set()
    for number in range(2, file.pages):
        page = file.page(number)
        if lmdb_file.number_of(page) != number:
            continue
        try:
            if lmdb_file.flags_of(page) == lmdb_file.BRANCH:
                children[number] = lmdb_file.branch(number, page).pages
            elif lmdb_file.flags_of(page) == lmdb_file.LEAF and lmdb_file.leaf(number, page)[0].key == layout.STORE_KEY:
                first_leaves.add(number)
        except (PageFault, IndexError):
            continue
    led_to = {child for inner in children.values() for child in inner}
    roots = []
    for number in [*children, *first_leaves]:
        at, steps = number, 0
        while at in children and steps < 32:
            at, steps = children[at][0], steps + 1
        if at in first_leaves and number not in led_to:
            roots.append(number)
    return roots[:_MOST_ROOTS]


def version(key: bytes, value: bytes) -> tuple[Any, ...]:
    """The version of a record: greater for the newer of two copies."""
    try:
        if key[8] == layout.NODE:
            head = records.block_header(key, value)
            return head.span, -head.live
        row = records.unseal(key, value)
        if not any(key[:8]):
            return (row[3],) if key[8] == layout.STORE else (row[0],)
        if key[8] == layout.HEADER:
            header = StreamHeader.from_row(row)
            return header.next_ordinal, header.leaves_added, header.max_deleted, header.first, -header.length
        if key[8] == layout.GROUP:
            group = GroupState.from_row(0, 0, row)
            return group.moves, group.last, group.next_consumer
        if key[8] == layout.CONSUMER:
            consumer = ConsumerState.from_row(0, row)
            return consumer.seen, consumer.active
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
                if key == layout.STORE_KEY:
                    self._next_number = version(key, file.value(node))
                elif len(key) > 8 and any(key[:8]) and key[8] in _COMPARED:
                    value = file.value(node)
                    self._marks[_COMPARED.index(key[8])][key] = version(key, value)
                    if key[8] == layout.GROUP:
                        self._left[1] += records.unseal(key, value)[4]
                elif len(key) > 8 and not any(key[:8]):
                    self._left[0] += 1
            except FAILURES:
                self._hidden.append((key, key + b"\0"))

    def is_newer(self, other: StateAge) -> bool:
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
