"""The log of one process: what it has followed of the ring, views of that and the tree, and commits.

    ring.py        ─ position, chain ─ step by step ─ overlay ─┬─ begin()  a view: the tree, and in front of it what was
    records, damage                                            │           committed since
                                                               └─ write()  a transaction; its commit appends a record
                                                                         checkpoint.py puts the overlay into the tree

    LMDB         [applied LSN, checksum there, LSN of the record that ends there, checksum before it], and the state of
                 exactly that

        KEPT ≤ APPLIED ≤ FLUSHED ≤ END ≤ an orphan's end ≤ KEPT + ring size
               floor of the overlay ≤ position of this process ≤ END

A process that enters, and finds itself alone, takes the end of the valid chain for END (ring.py). One that enters
beside others, and finds an orphan with no writer at work, takes it in for all: its call was killed, and an opening
shows it, or none. The number of the last transaction is the log's end.

What the log acknowledges must fit into LMDB, so room is reserved at commit:

    LMDB's file     pages in use or used before  │  have, taken from the disk  │        ceiling, reserve
                    ─────────────────────────────┴──────────────────────────────┴──────────────────────
    the bound       pages that a checkpoint of the whole overlay takes at most, whatever is free inside the file

A commit goes through the log if its bound fits into the pages that have been taken from the disk. Where no more can be
taken, a checkpoint first puts the overlay into LMDB, for which there is always room. Then the commit is made in LMDB
itself, as without a log: if LMDB finds no room for it, that call gets StoreFull.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import threading
from collections.abc import Callable
from functools import partial
from os import SEEK_END
from pathlib import Path
from typing import Any

from raxlog.storage import disk
from raxlog.storage.errors import CorruptionError, LockTimeout, StoreError, interrupted
from raxlog.storage.folder import directory
from raxlog.storage.format import records
from raxlog.storage.format.keys import SMALL, STORE_KEY
from raxlog.storage.locks import ofd_lock, shared_file
from raxlog.storage.locks.shared_file import SHARED
from raxlog.storage.locks.writer_lock import WriterLock
from raxlog.storage.tree import lmdb_errors
from raxlog.storage.tree.lmdb_file import RESERVE
from raxlog.storage.tree.tree import Tree
from raxlog.storage.wake.stop import wake

from .. import clocks
from ..crash_point import crash_point, listeners
from ..system_calls import seek  # cimport
from . import feed
from .checkpoint import Checkpoints, Map, Rest, put_changes
from .cursor import cursor_over  # cimport
from .ring import (
    AGED,
    APPLIED,
    APPLIED_KEY,
    CLOCK,
    END,
    FED,
    FLUSHED,
    GIVEN,
    HEAD,
    HEADER,
    INSIDE,
    KEPT,
    LARGE,
    OWNER,
    WORDS,
    LogError,
    Ring,  # cimport
    decode,  # cimport
    encode_record,  # cimport
    find_damage,
    holds,
    read_u32,  # cimport
    read_u64,  # cimport
    seal_record,  # cimport
    unseal_applied,
)
from .transaction import Overlay, View, WriteTransaction, mark_of, run_of, write_over  # cimport

SOURCE_HASH = ""

PATIENCE = 30.0  # seconds to wait for another process' checkpoint: as a write does for its lock
MOMENT = 0.1  # seconds to wait for a writer, where a record is behind the end
MOST_TRIES = 20
MOST_FOREIGN = 1 << 12
MOST_MEMORY = 16 << 20  # bytes of an overlay, at which a checkpoint is due; at four times that a commit waits for it
AHEAD = 128  # pages taken from the disk at a time, at least


class Moved(Exception):
    """The ring has been used again, or a large transaction is beyond: take a new snapshot."""


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
            if before is None and key[8:9] not in SMALL:
                old = txn.lmdb().get(key)
                if old is not None:
                    freed += run_of(key, old)
        return freed


class Log:
    """One process' end of the log of one store."""

    def __init__(self, folder: Path, tree: Any, *, readonly: bool, durable: bool = True, shares: bool,
                 rescues: bool = False, store_map: Map | None = None, ceiling: int | None = None,
                 rest: Rest | None = None) -> None:
        """Enter. Without ``store_map`` it can only be read. ``tree``: a Tree, or the pages of a damaged one.

        Not ``shares``: the store is at rest, and nothing in its folder may be written; ``rest`` notices where it is so
        no more. ``rescues``: what is damaged is no error, and what can be read is taken; ``damage`` says what cannot.
        """
        self.tree = tree
        self.rest: Rest | None = rest
        self.rescues = rescues
        self.readonly: bool = readonly
        self.durable: bool = durable
        self.damage: CorruptionError | None = None
        self.begin_raw: Callable[[], Any] = tree.begin
        self.mutex: threading.RLock = threading.RLock()  # while it follows, or is pruned
        self.transaction: WriteTransaction | None = None  # the write transaction that is open
        self.seen: tuple[int, int, int] = (-1, 0, 0)  # LMDB's snapshot last seen, with its applied LSN and checksum
        self.is_slotless: bool = False  # the writer's snapshot is a write transaction: there was no place for a reader
        self.pos: int = 0  # up to where it has followed
        self.chain: int = 0
        self.begun: tuple[int, int] = (0, 0)  # where the record begins that ends there, and the checksum before it
        # All, set before them: an exception between leaves no chain of another place.
        self.reached: tuple[int, int, tuple[int, int]] = (0, 0, (0, 0))
        self.overlay: Overlay = Overlay(0)
        # What other processes have changed: by a key's first eight bytes and four behind the ninth, the LSN of the last
        # change; of all keys where that lies behind. So a layer above finds what it keeps warm of one group still true.
        self.foreign: dict[bytes, int] = {}
        self.foreign_all: int = 0
        self.last_epoch: int = 0  # of the opening that wrote the record taken in last
        self.commits: int = 0
        self.waits: int = 0
        self.patience: float = PATIENCE  # of the writer, if another process' checkpoint is in its way
        self.watch: clocks.Watch | None = None
        self.checkpoints: Checkpoints = None  # type: ignore[assignment]  # until it has entered; where it is only read
        with self.begin_raw() as raw:
            owner = records.store_row(raw.get(STORE_KEY), folder.parent)[1]
            if raw.get(APPLIED_KEY) is None:
                raise CorruptionError(f"the data file beside {folder / directory.LOG} knows of no log")
        self.ring: Ring = Ring(folder, owner, readonly=readonly, shares=shares)
        self.every: int = self.ring.size // 4
        try:
            self.enter()
            if store_map is not None and shares and not readonly:
                words = memoryview(self.ring.shared)[WORDS + 8 * CLOCK : WORDS + 8 * CLOCK + 24].cast("q")
                self.watch = clocks.Watch(words, shared_file.clock_id())
        except BaseException:
            self.close_files()
            raise
        if store_map is not None:  # last: a circle would keep the files open, where an exception strikes there
            self.room: Room = Room(self.ring, tree, store_map, folder, ceiling)
            self.checkpoints = Checkpoints(self, self.ring, tree, self.room, readonly=readonly, durable=durable)

    def copy(self, place: str, view: View) -> None:
        """A copy of the tree with all that a view sees. The log goes on beside it."""
        held = view.lmdb()
        self.tree.copy(place, held)
        changes = view.overlay.changes(unseal_applied(held.get(APPLIED_KEY))[0], view.upto)
        if changes:
            size = 2 * os.stat(f"{place}/{directory.DATA}").st_size + MOST_MEMORY
            with Tree(Path(place), 8 * size) as made, made.write() as raw:
                put_changes(raw, changes, view.upto, 0)

    # -- entering -----------------------------------------------------------------------

    def enter(self) -> None:
        """Enter. Where no other process is inside, the end is that of the valid chain, whatever the words say."""
        ring = self.ring
        words = ring.words
        if ring.locks is not None:
            # One enters at a time. Else one that finds another at this could come in beside it, just as that is killed:
            # each would take the words for those of a process before, and nothing would have written them.
            ofd_lock.enter(ring.locks, ring.path.parent.parent)
            if not ofd_lock.is_free(ring.locks, INSIDE, 1):
                ofd_lock.take(ring.locks, INSIDE, 1, shared=True)
                ofd_lock.leave(ring.locks)
                self.take_orphan()
                return
        with self.begin_raw() as raw:
            applied, chain, begun = unseal_applied(raw.get(APPLIED_KEY))
            self.seen = raw.id(), applied, chain
            self.reach(applied, chain, begun)
            overlay = self.overlay = Overlay(applied)
            while self.step(raw, overlay):
                pass
        known = (words[OWNER], words[OWNER + 1]) == ring.owner
        is_short = known and min(words[FLUSHED], words[END]) > self.pos
        is_short = is_short or (self.pos == applied and not holds(ring, applied, chain, begun))
        self.damage = find_damage(ring, self.pos, self.last_epoch, is_short)
        if self.damage is not None and not self.rescues:
            if self.rest is not None:
                self.rest.read().close()  # one that has come since may have written what looks so
            raise self.damage
        if self.pos > applied and ring.locks is not None:
            os.fdatasync(ring.file)  # what is shown now must not go with the power
        if listeners:
            crash_point("log.enter")
        words[END] = words[FLUSHED] = self.pos
        words[APPLIED] = applied
        words[KEPT] = begun[0]
        words[LARGE] = words[AGED] = words[FED] = words[CLOCK] = 0
        words[GIVEN] = 1 << 40
        words[OWNER], words[OWNER + 1] = ring.owner
        if ring.locks is not None:
            if not self.readonly:
                disk.remove_tree(ring.path.parent / feed.SEGMENTS)
            ofd_lock.take(ring.locks, INSIDE, 1, shared=True)
            ofd_lock.leave(ring.locks)

    def take_orphan(self) -> None:
        """Count a record that a killed call has left behind the end, where no writer is at work."""
        self.begin().abort()
        if self.ring.record_after(self.pos, self.chain) is None:
            return
        try:
            writers = WriterLock(self.ring.path.parent.parent / SHARED)  # not that of a thread here
            writers.acquire(MOMENT)
        except LockTimeout:
            return  # of a call under way
        except TimeoutError:
            raise  # a signal's handler did
        except OSError:
            return  # it may not be asked
        with contextlib.closing(writers):
            self.begin().abort()
            if self.ring.record_after(self.pos, self.chain) is not None:
                os.fdatasync(self.ring.file)
                with self.begin_raw() as raw, self.mutex:
                    self.step(raw, self.overlay)
                if self.ring.record_after(self.pos, self.chain) is not None:  # one call can leave one record
                    raise CorruptionError(
                        f"the file {directory.STATE} beside {self.ring.path} says that the log ends before it does"
                    )
                crash_point("log.orphan")
                self.ring.words[END] = self.ring.words[FLUSHED] = self.pos

    def look(self, raw: Any) -> tuple[int, int, int]:
        """Learn what LMDB's snapshot has applied: its number, the LSN, the checksum there."""
        applied, chain, _ = unseal_applied(raw.get(APPLIED_KEY))
        seen = (raw.id(), applied, chain)
        if not self.is_slotless:
            self.seen = seen
        return seen

    # -- following ----------------------------------------------------------------------

    def begin(self, begin: Callable[[], Any] | None = None) -> View:
        """A view for reading, of all that is acknowledged. NotAtRest."""
        if self.rest is not None and begin is None:
            return self._begin_at_rest(self.rest)
        tries = 0
        words = self.ring.words
        while True:
            raw = self.begin_raw() if begin is None else begin()
            try:
                seen = self.seen  # one of these belongs to one snapshot: other threads replace it
                if raw.id() != seen[0]:
                    seen = self.look(raw)
                applied = seen[1]
                end = max(words[END], words[FLUSHED])  # the second is less, but where the first lies
                if end != self.pos or applied > self.pos:
                    self.require_outside()
                    with self.mutex:
                        self.follow(raw, applied, seen[2], max(end, applied))
                        self.prune(applied)
                elif applied > self.overlay.floor and self.transaction is None and not self.is_inside():
                    with self.mutex:
                        self.prune(applied)
                overlay = self.overlay
                view = View(self, raw, overlay, False)
                if overlay.floor <= applied <= view.upto and overlay is self.overlay:
                    return view
                view.abort()
                self.seen = (-1, 0, 0)
            except Moved:
                pass
            tries += 1
            self.refuse_lie(tries)
            raw.abort()

    def is_inside(self) -> bool:
        """Whether this thread is at changing what it knows of the log, and has been interrupted."""
        return self.mutex._is_owned()  # type: ignore[attr-defined,no-any-return]  # what Condition asks of a lock

    def require_outside(self) -> None:
        """TransactionError where this thread is inside."""
        if self.is_inside():
            raise interrupted(self.ring.path.parent.parent)

    def _begin_at_rest(self, rest: Rest) -> View:
        """begin() where the view needs a lock of its own."""
        file = rest.read()
        try:
            view = self.begin(self.begin_raw)
        except BaseException:
            file.close()
            raise
        view.rest = file
        return view

    def refuse_lie(self, tries: int) -> None:
        """CorruptionError where what has been overwritten again and again, it seems, is not there.

        StoreError where it is in another file: a file system in layers copies one for the first that writes to it.
        """
        if tries <= MOST_TRIES:
            return
        ring = self.ring
        found = ring.path.read_bytes() if ring.path.exists() else b""
        for at in (HEADER, HEADER + self.pos % ring.size):
            if found[at : at + HEAD] != ring.map[at : at + HEAD]:
                raise StoreError(
                    f"{ring.path} is another file than the one that this process has open: it was replaced, or a "
                    "process that writes had it copied (overlayfs). Close the store, and open it again."
                )
        raise CorruptionError(
            f"the log {ring.path} is damaged: it is said to end at {ring.words[END]}, and the last record that can "
            f"be read ends at {self.pos}"
        )

    def write(self) -> WriteTransaction:
        """The write transaction, under the writer's lock. LMDB is asked only where another process has written."""
        self.require_outside()
        left = self.transaction  # a name that holds it: abort() empties the attribute, which in C would be its end
        if left is not None:  # an exception has left it
            left.abort()
        ring = self.ring
        if seek(ring.file, 0, SEEK_END) < HEADER + ring.size:  # stat() would make the next write save its time
            raise StoreError(
                f"{ring.path} has been cut off while the store is in use. End every process that has the store open, "
                "which saves what they hold, and run 'raxlog salvage'."
            )
        words = ring.words
        if words[LARGE]:
            self.checkpoints.settle_large()
        if words[END] != self.pos:
            self.begin(self.snapshot).abort()
            if max(words[END], words[FLUSHED]) < self.pos:
                self.refuse_lie(MOST_TRIES + 1)
        with self.mutex:
            self.pos, self.chain, self.begun = self.reached  # undo a reach() that an exception broke off
            applied = words[APPLIED]
            if applied > self.overlay.floor:
                self.prune(applied)
            txn = self.transaction = write_over(self, self.overlay)
        return txn

    def cursor(self, view: View) -> Any:
        """LMDB's cursor where there is nothing to merge, else one that merges."""
        return cursor_over(view) if view.writes or view.rows else view.lmdb().cursor()

    def snapshot(self) -> Any:
        """A read of LMDB's for the thread that writes."""
        while True:
            try:
                self.is_slotless = False
                return self.begin_raw()
            except lmdb_errors.MapResizedError:
                self.room.map.adopt_size()
            except lmdb_errors.ReadersFullError:
                if not self.tree.clear_readers():
                    self.is_slotless = True  # its number is that of the next state, too
                    return self.tree.write()

    def prune(self, floor: int) -> None:
        """Drop what a checkpoint has put into LMDB up to there."""
        overlay = self.overlay  # a name that holds it
        if self.transaction is None and overlay.floor < floor <= self.pos:
            self.overlay = overlay.pruned(floor)

    def follow(self, raw: Any, applied: int, chain: int, end: int) -> None:
        """Take in the records up to ``end``, with LMDB's snapshot of ``applied``. Moved."""
        self.pos, self.chain, self.begun = self.reached  # undo a reach() that an exception broke off
        if applied > self.pos:
            self.start_anew(applied, chain)
        overlay = self.overlay
        if applied < overlay.floor:
            raise Moved
        try:
            while self.pos < end:
                if not self.step(raw, overlay):
                    raise Moved
        except BaseException:
            overlay.count_all()
            raise

    def follow_to_end(self, raw: Any, applied: int, chain: int) -> None:
        """Take in all records up to END, with LMDB's snapshot of ``applied``: for a checkpoint, with the mutex held."""
        try:
            self.follow(raw, applied, chain, self.ring.words[END])
        except Moved:
            self.refuse_lie(MOST_TRIES + 1)

    def start_anew(self, upto: int, chain: int) -> None:
        """Stand at ``upto``, with nothing in the overlay: the tree has all."""
        self.foreign_all = upto
        self.overlay = Overlay(upto)
        self.reach(upto, chain, (upto, chain))

    def reach(self, pos: int, chain: int, begun: tuple[int, int]) -> None:
        """Stand at a place of the chain, at the end of a record that has begun there, behind that checksum."""
        self.reached = pos, chain, begun
        self.pos, self.chain, self.begun = self.reached

    def step(self, raw: Any, overlay: Overlay) -> bool:
        """Take in one record. False: there is no valid one."""
        record = self.ring.record_after(self.pos, self.chain)
        if record is None:
            return False
        checksum = read_u64(record, 0)
        size = len(record)
        after = read_u64(record, 12) + size
        freed = read_u32(record, 20)
        self.last_epoch = self.ring.first_epoch(after - size, read_u32(record, 24))
        if freed:
            overlay.freed.append((after, freed))
        foreign = self.foreign
        if len(foreign) > MOST_FOREIGN:
            self.foreign_all = self.pos
            foreign.clear()
        changes = decode(record, HEAD, partial(self._base_of, raw, overlay, after))
        last = None
        for key, value in changes:
            mark = mark_of(key)
            if mark != last:  # most keys of a commit are of one group
                foreign[mark] = after
                last = mark
            overlay.write(key, value, after)
        self.reach(after, checksum, (after - size, self.chain))
        overlay.settle([key for key, _ in changes])  # behind it: a view that begins now keeps what it sees
        return True

    def _base_of(self, raw: Any, overlay: Overlay, lsn: int, key: bytes) -> bytes:
        """The value before ``lsn``, which a delta of that record is relative to."""
        before = overlay.rows.get(key)
        if before is not None and before.lsn == lsn:
            before = before.older  # an exception has struck this taking in before
        base: bytes | None = raw.get(key) if before is None else before.value
        if base is None:
            if self.rescues:
                return b""  # lost: nothing is sealed so
            raise Moved  # cannot be
        return base

    # -- committing ---------------------------------------------------------------------

    def commit(self, txn: WriteTransaction) -> None:
        """Write a transaction's record, or put it into LMDB: it counts when this returns. Under the writer's lock.

        StoreFull, LogError.
        """
        room, overlay = self.room, txn.overlay
        freed = room.count_freed(txn)
        if txn.raw is not None:
            txn.release()  # the map may grow
        if freed:
            overlay.freed.append((txn.upto, freed))
        is_written = False
        if room.fits(overlay) or self._fits_alone(txn):
            is_written = self.append(txn, freed)
        else:
            room.direct += 1
        if not is_written:
            self.checkpoints.put_directly(txn)
        self.commits += 1
        self.transaction = None

    def _fits_alone(self, txn: WriteTransaction) -> bool:
        """Whether it fits once all before it is in LMDB."""
        self.checkpoints.make(True)
        return bool(self.room.fits(txn.overlay.pruned(txn.upto - 1)))

    def append(self, txn: WriteTransaction, freed: int) -> bool:
        """Write a transaction's record. False, and nothing written, where it is too large for the ring."""
        overlay, ring, touched = txn.overlay, self.ring, txn.touched
        memory = overlay.memory()
        record = encode_record(touched, overlay.rows, 2 * ring.size)  # deltas may take less
        if record is None or len(record) > ring.size // 3:  # one, what is too small behind it, and the next: the ring
            return False
        size = len(record)
        start = pos = self.pos
        place = pos % ring.size
        if place + size > ring.size:
            ring.strike_out_orphan(pos, self.chain)
            pos += ring.size - place
            place = 0
        words = ring.words
        if pos + size - words[KEPT] > ring.size or memory > 4 * MOST_MEMORY:
            self.waits += 1
            self.checkpoints.make_ring_room(pos + size)
        behind = words[FLUSHED] < start
        number = ring.epoch + 2 * (pos // ring.size)
        number -= number >> 32 << 32  # its lower 32 bits: with & and that many of them, C would make objects
        checksum = seal_record(record, pos, freed, number | (not behind), self.chain)
        txn.written = place
        try:
            written = os.pwrite(ring.synced if self.durable and not behind else ring.file, record, HEADER + place)
            if written < size:
                raise OSError(errno.EIO, "a record was written in part")
            if self.durable and behind:
                os.fdatasync(ring.file)
        except TimeoutError:
            raise  # a signal's handler did
        except OSError as error:
            raise LogError(error) from error
        with self.mutex:  # a thread that reads takes it in from the ring, or finds it taken in
            if listeners:
                crash_point("log.end")
            words[END] = pos + size  # first: FLUSHED says of records that count how far they are on disk
            if listeners:
                crash_point("log.flushed")
            if self.durable:
                words[FLUSHED] = pos + size
            self.reach(pos + size, checksum, (pos, self.chain))
            overlay.settle([key for key in touched])  # noqa: C416 - list() costs more in C
        if not self.checkpoints.is_tended:
            self.checkpoints.start()
        if pos + size - words[APPLIED] > self.every or memory > MOST_MEMORY:
            wake(self.checkpoints.bell)
        return True

    def undo(self, txn: WriteTransaction) -> None:
        """End a transaction that has not come to the end of commit(): undone, unless its record counts."""
        if self.reached[0] < txn.upto:  # it does not, or has not been taken in
            with self.mutex:  # no thread takes it in in between
                if self.reached[0] < txn.upto:
                    txn.overlay.undo(txn.touched, txn.upto)
                    if txn.written >= 0 and self.ring.words[END] == txn.upto - 1:
                        with disk.ErrorsIgnored():
                            self.ring.strike_out(txn.written)  # it must not count after a power cut
        self.transaction = None

    # -- leaving ------------------------------------------------------------------------

    def set_size(self, size: int) -> None:
        """Have the tree map so much, with no checkpoint under way. Behind the shut gate."""
        with self.checkpoints.making:
            self.tree.set_size(size)

    def close(self) -> None:
        """Leave: with a last checkpoint, unless another process' has to be waited for."""
        try:
            if self.checkpoints is not None:  # else it is only read
                self.checkpoints.close()
        finally:
            self.close_files()

    def close_files(self) -> None:
        """Leave the rest to the others."""
        self.watch = None  # it looks into what the ring has mapped
        self.ring.close_files()
