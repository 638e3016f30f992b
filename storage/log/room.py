"""Room: what the log acknowledges must fit into LMDB, so it is reserved at commit.

    LMDB's file     pages in use or used before  │  have, taken from the disk  │        ceiling, reserve
                    ─────────────────────────────┴──────────────────────────────┴──────────────────────
    the bound       pages that a checkpoint of the whole overlay takes at most, whatever is free inside the file

A commit goes through the log if its bound fits into the pages that have been taken from the disk. Where no more can be
taken, a checkpoint first puts the overlay into LMDB, for which there is always room. Then the commit is made in LMDB
itself, as without a log: if LMDB finds no room for it, that call gets StoreFull.
"""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Any, Protocol

from raxlog.storage import disk
from raxlog.storage.errors import CorruptionError
from raxlog.storage.folder import directory
from raxlog.storage.tree import lmdb_errors
from raxlog.storage.tree.lmdb_file import RESERVE

from .ring import (
    AGED,
    APPLIED,
    GIVEN,
    Ring,  # cimport
)
from .transaction import Overlay, run_of  # cimport

if TYPE_CHECKING:
    from pathlib import Path

    from raxlog.storage.tree.tree import Tree

    from .transaction import WriteTransaction

SOURCE_HASH = ""

AHEAD = 128  # pages taken from the disk at a time, at least


class Map(Protocol):
    """LMDB's map of the file, behind the gate."""

    def grow(self, lent: int = 0) -> bool:
        """Map more; ``lent``: so many pages beyond what is used. False: there is no more."""

    def adopt_size(self) -> None:
        """Map what another process has made it grow to."""

    def note_failure(self, error: lmdb_errors.Error) -> None:
        """After an error in a flush: where the disk has failed, nothing more is written."""


class Room:
    """One process' view of the room of one store, in whose file at most ``ceiling`` bytes may be used."""

    def __init__(self, ring: Ring, tree: Tree, store_map: Map, folder: Path, ceiling: int | None) -> None:
        self.ring = ring
        self.file_tree = tree
        self.map = store_map
        self.folder = folder
        self.ceiling: int | None = ceiling
        self.seen: int = -1  # LMDB's state that what follows is of
        self.page: int = 4096
        self.used: int = 0
        self.depth: int = 0
        self.tree: int = 0
        self.leaves: int = 0
        self.free: int = 0
        self.counted: int = -1  # LMDB's state of which the free pages were counted
        self.reusable: int = 0
        self.mapped: int = 0
        self.have: int = -1  # pages of the file that are on the disk for certain
        self.aged: int = 0
        self.direct = 0  # commits that went to LMDB at once

    def look(self) -> None:
        """Learn how large LMDB's tree and file are."""
        self.seen = self.ring.words[APPLIED]
        self.aged = self.ring.words[AGED]
        tree = self.file_tree
        self.page, self.used = tree.page, tree.state().pages
        self.depth, *counts, _ = tree.pages()
        if max(counts) > self.used:
            raise CorruptionError(f"LMDB counts {max(counts)} pages of a kind in a file of {self.used}: one is damaged")
        branches, self.leaves, large = counts
        self.tree = self.leaves + branches
        self.free = self.used - self.tree - large - 2

    def gives(self, overlay: Overlay) -> int:
        """The most pages that a checkpoint of it gives back: LMDB uses them again two commits later."""
        freed = min(2 * (len(overlay.rows) + 1) * self.depth, self.tree + 1)
        for _, pages in overlay.freed:
            freed += pages
        return freed + (self.free + freed) // 250 + 24

    def bound(self, overlay: Overlay) -> int:
        """The most pages that a checkpoint of it takes."""
        changes = len(overlay.rows) + 1
        splits = min(changes, 2 * min(changes, self.leaves + 1) + overlay.bytes // 1000)
        return overlay.runs + overlay.singles + splits + splits // 2 + self.depth + self.gives(overlay)

    def fits(self, overlay: Overlay) -> bool:
        """Whether a checkpoint of it fits for certain, and leaves the reserve."""
        words = self.ring.words
        if words[APPLIED] != self.seen or words[AGED] != self.aged:
            self.look()
        bound = 2 * self.bound(overlay) + RESERVE  # what is written beside a checkpoint is left for another one
        if self.used + bound <= self.have or self.take(self.used + bound):
            return True
        if self.counted != self.seen:
            self.count_free()
        runs = overlay.runs + self.gives(overlay) // 250 + 1
        return max(self.have - self.used, 0) >= runs + max(0, bound - runs - self.reusable)

    def count_free(self) -> None:
        """Count the pages in the file that LMDB can use at once: not its last commit's; none beside an old reader."""
        self.counted = self.seen
        self.reusable = 0
        tree = self.file_tree
        last = tree.state().transaction
        for read in tree.readers():
            if read.transaction < last:
                return
        if last == tree.state().transaction:
            self.reusable = max(0, self.free - self.free // 100 - 16 - self.ring.words[GIVEN])

    def take(self, wanted: int) -> bool:
        """Take room from the disk up to so many pages; some more where that is to be had."""
        file_limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        limit = 1 << 62 if file_limit == resource.RLIM_INFINITY else file_limit // self.page
        if self.ceiling is not None:
            limit = min(limit, self.ceiling // self.page)
        for end in (wanted + max(AHEAD, min(wanted // 4, 16 * AHEAD)), wanted, limit):
            if self.have < end <= limit < 1 << 62 or end < limit == 1 << 62:
                try:
                    file = self.folder / directory.DATA
                    disk.allocate(file, self.used * self.page, end * self.page)
                    directory.sync_file(file)  # else a power cut takes it back
                except OSError as error:
                    if isinstance(error, TimeoutError):
                        raise
                    continue
                if end > self.mapped and not self.grow(end):
                    continue
                self.have = end
                return wanted <= end
        return False

    def grow(self, pages: int) -> bool:
        """Have LMDB map so many pages, with no transaction open in this process. False: no room."""
        while True:
            self.mapped = self.file_tree.state().map_size // self.page
            if pages <= self.mapped:
                return True
            if not self.map.grow():
                return False

    def require(self, txn: Any, lent: bool) -> None:
        """StoreFull where a transaction of LMDB's own makes the store larger than it may become; ``lent``: larger."""
        tree = self.file_tree
        occupied = tree.pages(txn).occupied
        if occupied <= tree.pages().occupied:
            return
        if lent or (self.ceiling is not None and occupied > self.ceiling // self.page):
            raise lmdb_errors.no_room(self.folder.parent)
        used = tree.state().pages
        if occupied + RESERVE > used:
            try:
                disk.allocate(self.folder / directory.DATA, used * self.page, (occupied + RESERVE) * self.page)
            except OSError as error:
                if isinstance(error, TimeoutError):
                    raise  # a signal's handler did
                raise lmdb_errors.translate_error(self.folder.parent, error) from error

    def count_freed(self, txn: WriteTransaction) -> int:
        """The pages that a transaction's changes give back, of values that LMDB holds: counted once a key."""
        freed = 0
        for key, before in txn.touched.items():
            if before is None:
                old = txn.lmdb().get(key)
                if old is not None:
                    freed += run_of(key, old)
        return freed
