"""The log: a ring of chained records beside LMDB's file, what of it this process has followed, and checkpoints.

    LSN ─ an ever-growing byte position; place = LSN mod ring size
    record    checksum, length, LSN, pages freed, opening, changes (record.py)
              opening: at random, so that a record that is written again after a power cut has taken it brings
              nothing back of what came after the first, and two more in each lap, so that a torn write shows no opening
              of the lap before; odd where all before the record was on disk already

    log          a header, and the ring, written with zeros once (log_file.py)
    log-state    two pages: the words of the checkpoint's lock; then words of all processes: END (what counts), APPLIED
                 (the last checkpoint), FLUSHED, LARGE, …, OWNER, CLOCK. Byte 0 is locked by all that are inside
    LMDB         [applied LSN, checksum there, LSN of the record that ends there, checksum before it], and the state of
                 exactly that

A process that enters, and finds itself alone, takes the end of the valid chain for END, whatever the file says; where
OWNER is this store, the chain must reach FLUSHED: what was on disk once is. And where nothing follows the applied LSN,
the record that ends there must be in the ring, which goes on no further than to its beginning (KEPT).
One that enters beside others, and finds a whole record behind END with no writer at work, takes it in for all: its call
was killed, and an opening shows it, or none.

begin() gives a view of the tree with what was committed since in front of it, write() a transaction that appends a
record. The number of the last transaction is the log's end.
"""

from __future__ import annotations

import array
import contextlib
import errno
import mmap
import os
import struct
import threading
import weakref
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from functools import partial
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raxlog.storage import disk, fork_hooks
from raxlog.storage.errors import (
    CorruptionError,
    LockTimeout,
    RaxlogError,
    ReadOnlyStore,
    StoreError,
)
from raxlog.storage.folder import directory, log_file
from raxlog.storage.folder.log_file import HEADER
from raxlog.storage.format import records
from raxlog.storage.format.keys import STORE_KEY
from raxlog.storage.locks import ofd_lock, presence
from raxlog.storage.locks.shared_file import SHARED
from raxlog.storage.locks.writer_lock import WriterLock
from raxlog.storage.notices import note, noted
from raxlog.storage.tree import changed_pages, lmdb_errors, map_lock
from raxlog.storage.tree.lmdb_file import RESERVE, PageFile
from raxlog.storage.tree.tree import Tree
from raxlog.storage.wake.stop import wake
from xxhash import xxh3_64_intdigest

from .. import clocks
from . import feed
from .record import (
    HEAD,
    RECORD,
    decode,  # cimport
    encode_change,  # cimport
    number_at,  # cimport
)
from .rest import Rest, is_read
from .room import Room  # cimport
from .transaction import Overlay, Version, View, WriteTransaction  # cimport

if TYPE_CHECKING:
    from raxlog.storage.engine.open_options import OpenOptions
    from raxlog.storage.engine.store_map import StoreMap

SOURCE_HASH = ""

END, APPLIED, FLUSHED, LARGE, AGED, GIVEN, OWNER, KEPT = 0, 1, 2, 3, 4, 5, 6, 9  # OWNER: two words
CLOCK = 10  # three words, of clocks.Watch
FLUSH_PERIOD = 0.1  # seconds
PATIENCE = 30.0  # seconds to wait for another process' checkpoint: as a write does for its lock
MOMENT = 0.1  # … for a writer, where a record is behind the end
MOST_TRIES = 20
MOST_MEMORY = 16 << 20  # bytes of an overlay, at which a checkpoint is due; at four times that a commit waits for it
WORDS = 4096  # their place in log-state


class Moved(Exception):
    """The ring has been used again, or a large transaction is beyond: take a new snapshot."""


def unseal(value: bytes | None) -> tuple[int, int, tuple[int, int]]:
    """What LMDB has applied, and the checksum there; where the record begins that ends there, and the one before it.

    Where the ring holds none, it begins where it ends.
    """
    if value is None:
        return 0, 0, (0, 0)
    upto, chain, start, seed = records.unseal(log_file.APPLIED, value)
    return upto, chain, (start, seed)


def put_changes(txn: Any, changes: list[tuple[bytes, bytes | None]], upto: int, chain: int,
                begun: tuple[int, int] | None = None) -> None:
    """Put changes into LMDB, and up to where it has them then; ``begun``: the record that ends there, if it is kept."""
    put, delete = txn.put, txn.delete
    for key, value in changes:
        if value is None:
            delete(key)
        else:
            put(key, value)
    put(log_file.APPLIED, records.seal(log_file.APPLIED, [upto, chain, *(begun or (upto, chain))]))


class LogError(lmdb_errors.Error):
    """The disk has failed under the log: to the layers above like an error of LMDB's."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.errno: int | None = error.errno


class Log:
    """One process' end of the log of one store. What is not here it has of LMDB's environment."""

    def __init__(self, folder: Path, tree: Any, options: OpenOptions, *, shares: bool, rescues: bool = False,
                 store_map: StoreMap | None = None, rest: Rest | None = None) -> None:
        """Enter. Without ``store_map`` it can only be read. ``tree``: a Tree, or the pages of a damaged one.

        Not ``shares``: the store is at rest, and nothing in its folder may be written; ``rest`` notices where it is so
        no more. ``rescues``: what is damaged is no error, and what can be read is taken; ``damage`` says what cannot.
        """
        self.tree = tree
        self.files: list[FileIO | PageFile] = []
        self.file: int = -1
        self.synced: int = -1
        self.state: Any = None
        self.lock: WriterLock | None = None
        self.watch: clocks.Watch | None = None
        self.shared: mmap.mmap = mmap.mmap(-1, 2 * WORDS)
        self.words: memoryview[int] = memoryview(array.array("Q", bytes(128)))
        self.ring: mmap.mmap = self.shared
        self.forks: int = fork_hooks.forks
        self.opening: int = int.from_bytes(os.urandom(4), "little") & ~1
        self.path: Path = folder / log_file.LOG
        self.readonly: bool = options.readonly
        self.damage: CorruptionError | None = None
        self.rescues = rescues
        self.rest: Rest | None = rest
        self.begin_raw: Callable[[], Any] = tree.begin
        self.durable: bool = options.durability != "relaxed"
        with self.begin_raw() as raw:
            owner = records.store_row(raw.get(STORE_KEY), folder.parent)[1]
            if raw.get(log_file.APPLIED) is None:
                raise CorruptionError(f"the data file beside {self.path} knows of no log")
        self.owner: tuple[int, int] = struct.unpack("<QQ", owner)
        self.size: int = log_file.ring_of(folder, owner)
        if shares:
            self.open_state(folder / log_file.STATE)
        else:
            with contextlib.suppress(OSError):  # it says how far the log has to reach; nothing is written to it
                shown = bytearray((folder / log_file.STATE).read_bytes()[WORDS : WORDS + 128])
                self.words = memoryview(shown.ljust(128, b"\0")).cast("Q")
        flags = os.O_CLOEXEC | (os.O_RDONLY if self.readonly else os.O_RDWR)
        logs = [FileIO(os.open(self.path, flags | also), "rb") for also in (0, os.O_DSYNC)]
        self.files += logs
        self.file, self.synced = (opened.fileno() for opened in logs)
        if not self.readonly:
            self.pages: PageFile = PageFile(folder / directory.DATA)
            self.files.append(self.pages)
        self.ring = mmap.mmap(self.file, HEADER + self.size, access=mmap.ACCESS_READ)
        self.checkpointing: threading.Lock = threading.Lock()  # the lock in the file does not keep threads apart
        self.mutex: threading.RLock = threading.RLock()  # while it follows, or is rebased
        self.transaction: WriteTransaction | None = None  # the write transaction that is open
        self.seen: tuple[int, int, int] = (-1, 0, 0)  # LMDB's snapshot last seen, with its applied LSN and checksum
        self.is_slotless: bool = False  # the writer's snapshot is a write transaction: there was no place for a reader
        self.pos: int = 0  # up to where it has followed
        self.chain: int = 0
        self.begun: tuple[int, int] = (0, 0)  # where the record begins that ends there, and the checksum before it
        # All, set before them: an exception between leaves no chain of another place.
        self.reached: tuple[int, int, tuple[int, int]] = (0, 0, (0, 0))
        self.overlay: Overlay = Overlay(0)
        self.opened: int = 0  # the opening that the record taken in last is of
        self.checkpoints: int = 0
        self.waits: int = 0
        self.commits: int = 0
        self.patience = PATIENCE  # of the writer, if another process' checkpoint is in its way
        self.flushed: float = 0.0  # when the thread has flushed last
        self.every: int = self.size // 4
        self.bell: threading.Lock = threading.Lock()
        self.bell.acquire()
        self.failure: str = ""  # of the thread's last checkpoint, once noted
        self.is_tended: bool = False  # a thread has been started
        self.tending: threading.Lock | None = None  # held by the thread
        self.closed: bool = False
        self.is_beside_rest: bool = False  # there may be reads of which LMDB does not know
        try:
            self.join()
            self.is_beside_rest = shares and is_read(folder)  # a read that comes from here on sees this process
            if store_map is not None and shares and not self.readonly:
                words = memoryview(self.shared)[WORDS + 8 * CLOCK : WORDS + 8 * CLOCK + 24].cast("q")
                self.watch = clocks.Watch(words, presence.clock_id())
        except BaseException:
            self.close_files()
            raise
        if store_map is not None:  # last: a circle would keep the files open, where an exception strikes there
            self.room: Room = Room(self, store_map, folder)

    def copy(self, place: str, view: View) -> None:
        """A copy of the tree with all that a view sees. The log goes on beside it."""
        held = view.lmdb()
        self.tree.copy(place, held)
        changes = view.overlay.changes(unseal(held.get(log_file.APPLIED))[0], view.upto)
        if changes:
            size = 2 * os.stat(f"{place}/{directory.DATA}").st_size + MOST_MEMORY
            with Tree(Path(place), 8 * size) as made, made.write() as raw:
                put_changes(raw, changes, view.upto, 0)

    # -- joining ------------------------------------------------------------------------

    def open_state(self, path: Path) -> None:
        """Open what the processes share."""
        self.state = map_lock.open_in_place(path)
        if os.fstat(self.state.fileno()).st_size < 2 * WORDS:
            disk.allocate(path, 0, 2 * WORDS)  # writes nothing: another process may have done so by now
        self.lock = WriterLock(path)
        with disk.open_file(path, os.O_RDWR) as file:  # without locks: a map keeps it open, in a forked child too
            self.shared = mmap.mmap(file.fileno(), 2 * WORDS)
        self.words = memoryview(self.shared)[WORDS:].cast("Q")

    def join(self) -> None:
        """Enter. Where no other process is inside, the end is that of the valid chain, whatever the file says."""
        if self.state is not None:
            # One enters at a time. Else one that finds another at this could come in beside it, just as that is killed:
            # each would take the words for those of a process before, and nothing would have written them.
            ofd_lock.enter(self.state, self.path.parent.parent)
            if not ofd_lock.is_free(self.state, log_file.INSIDE, 1):
                ofd_lock.take(self.state, log_file.INSIDE, 1, shared=True)
                ofd_lock.leave(self.state)
                self.take_orphan()
                return
        with self.begin_raw() as raw:
            applied, chain, begun = unseal(raw.get(log_file.APPLIED))
            self.look(raw)
            self.reach(applied, chain, begun)
            overlay = self.overlay = Overlay(applied)
            while self.step(raw, overlay):
                pass
        known = (self.words[OWNER], self.words[OWNER + 1]) == self.owner
        is_short = known and min(self.words[FLUSHED], self.words[END]) > self.pos
        self.damage = self.find_damage(is_short or (self.pos == applied and not self.holds(applied, chain, begun)))
        if self.damage is not None and not self.rescues:
            if self.rest is not None:
                self.rest.read().close()  # one that has come since may have written what looks so
            raise self.damage
        if self.pos > applied and self.state is not None:
            os.fdatasync(self.file)  # what is shown now must not go with the power
        self.words[END] = self.words[FLUSHED] = self.pos
        self.words[APPLIED] = applied
        self.words[KEPT] = begun[0]
        self.words[LARGE] = self.words[AGED] = self.words[feed.FED] = self.words[CLOCK] = 0
        self.words[GIVEN] = 1 << 40
        self.words[OWNER], self.words[OWNER + 1] = self.owner
        if self.state is not None:
            if not self.readonly:
                feed.clear(self.path.parent)
            ofd_lock.take(self.state, log_file.INSIDE, 1, shared=True)
            ofd_lock.leave(self.state)

    def take_orphan(self) -> None:
        """Count a record that a killed call has left behind the end, where no writer is at work."""
        self.begin().abort()
        if self.next_record() is None:
            return
        try:
            writers = WriterLock(self.path.parent.parent / SHARED)  # another than that which a thread here may have
            writers.acquire(MOMENT)
        except LockTimeout:
            return  # of a call under way
        except TimeoutError:
            raise  # a signal's handler did
        except OSError:
            return  # it may not be asked
        with contextlib.closing(writers):
            self.begin().abort()
            if self.next_record() is not None:
                os.fdatasync(self.file)
                with self.begin_raw() as raw, self.mutex:
                    self.step(raw, self.overlay)
                if self.next_record() is not None:  # one call can leave one record
                    raise CorruptionError(
                        f"the file {log_file.STATE} beside {self.path} says that the log ends before it does"
                    )
                self.words[END] = self.words[FLUSHED] = self.pos

    def find_damage(self, is_short: bool) -> CorruptionError | None:
        """What is wrong where the chain ``is_short``, or a record behind it says that all before had been on disk.

            this lap, behind the chain's end     wherever one begins: what is damaged may have had any length
            a later lap, from the beginning on   one behind the other; the first may be the chain's next, and torn

        A sector of a torn write beside one of the lap before can look like a record's head, with that one's opening. So
        what says it must be valid behind what can be a record's head, or of an opening that is known, in this lap.
        """
        pos, size = self.pos, self.size
        lap = pos - pos % size
        behind = lap + size
        missing, _, lsn, _, opening = RECORD.unpack(self.ring[HEADER + pos - lap :][:HEAD].ljust(HEAD, b"\0"))
        known = (self.opened, self.opening_at(pos, opening) if lsn == pos else self.opened)
        for first in range(pos & ~0xFFFF, behind, 1 << 16):  # the LSNs of one round share six bytes
            begin = max(first, pos + 1)
            piece = self.ring[HEADER + begin - lap : HEADER + min(first + (1 << 16), behind) - lap + HEAD]
            used = len(piece) if first else len(piece.rstrip(b"\0")) + HEAD  # zeros, where none has been written yet
            there = (first >> 16).to_bytes(6, "little")
            found = piece.find(there, HEAD - 14, used)
            while found >= 0:
                start = found - HEAD + 14
                if start + HEAD <= len(piece):
                    checksum, length, lsn, _, opening = RECORD.unpack_from(piece, start)
                    at = lsn - lap
                    if lsn == begin + start and 0 < length <= size - at - HEAD and not is_short:
                        after = at + HEAD + length
                        is_short = (opening & 1 and self.opening_at(lsn, opening) in known) or self.says_all_before(
                            at, lsn, missing) or self.says_all_before(after, lap + after, checksum)
                found = piece.find(there, found + 1, used)
        at = 0
        first = self.lsn_at(0)
        while first % size == 0 and first > pos and self.lsn_at(at) == first + at:
            checksum, length, _, _, opening = RECORD.unpack_from(self.ring, HEADER + at)
            if not 0 < length <= size - at - HEAD:
                break
            is_next = at == 0 and first == behind
            after = at + HEAD + length
            is_short = is_short or (opening & 1 and not is_next and self.opening_at(first, opening) in known) or (
                self.says_all_before(at, first + at, missing)) or self.says_all_before(after, first + after, checksum)
            at = after
        return None if not is_short else CorruptionError(
            f"the log {self.path} is damaged at byte {HEADER + pos - lap}: what has been acknowledged there, or behind "
            "it, cannot be read"
        )

    def holds(self, upto: int, chain: int, begun: tuple[int, int]) -> bool:
        """Whether the record that ends where LMDB's state does is in the ring, if there is one."""
        start, seed = begun
        if start == upto:
            return True
        record = self.record_at(start % self.size, start, seed)
        return record is not None and int.from_bytes(record[:8], "little") in (chain, chain ^ feed.AFTER_LARGE)

    def opening_at(self, lsn: int, written: int) -> int:
        """The opening that a record's number speaks of: it goes up by two with each lap."""
        return (written - 2 * (lsn // self.size)) & 0xFFFFFFFE

    def says_all_before(self, place: int, lsn: int, chain: int) -> bool:
        """Whether there is a valid record behind one with this checksum, and all before it had been on disk."""
        record = self.record_at(place, lsn, chain)
        return record is not None and bool(record[24] & 1)

    def lsn_at(self, place: int) -> int:
        """The LSN of the record that begins there, if one does; 0 at the end of the ring."""
        return int(RECORD.unpack_from(self.ring, HEADER + place)[2]) if place + HEAD <= self.size else 0

    def look(self, raw: Any) -> tuple[int, int, int]:
        """Learn what LMDB's snapshot has applied: its number, the LSN, the checksum there."""
        applied, chain, _ = unseal(raw.get(log_file.APPLIED))
        seen = (raw.id(), applied, chain)
        if not self.is_slotless:
            self.seen = seen
        return seen

    # -- following ----------------------------------------------------------------------

    def begin(self, begin: Callable[[], Any] | None = None) -> View:
        """A view for reading, of all that is acknowledged. NotAtRest."""
        if self.rest is not None and begin is None:
            return self.begin_at_rest(self.rest)
        tries = 0
        while True:
            raw = self.begin_raw() if begin is None else begin()
            try:
                seen = self.seen  # one of these belongs to one snapshot: other threads replace it
                if raw.id() != seen[0]:
                    seen = self.look(raw)
                applied = seen[1]
                end = max(self.words[END], self.words[FLUSHED])  # the second is less, but where the first lies
                if end != self.pos or applied > self.pos:
                    with self.mutex:
                        self.follow(raw, applied, seen[2], max(end, applied))
                        self.rebase(applied)
                elif applied > self.overlay.floor and self.transaction is None:
                    with self.mutex:
                        self.rebase(applied)
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

    def begin_at_rest(self, rest: Rest) -> View:
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
        if tries > MOST_TRIES:
            there = self.path.read_bytes() if self.path.exists() else b""
            for at in (HEADER, HEADER + self.pos % self.size):
                if there[at : at + HEAD] != self.ring[at : at + HEAD]:
                    raise StoreError(
                        f"{self.path} is another file than the one that this process has open: it was replaced, or a "
                        "process that writes had it copied (overlayfs). Close the store, and open it again."
                    )
            raise CorruptionError(
                f"the log {self.path} is damaged: it is said to end at {self.words[END]}, and the last record that can "
                f"be read ends at {self.pos}"
            )

    def write(self) -> WriteTransaction:
        """The write transaction, under the writer's lock. LMDB is asked only where another process has written."""
        left = self.transaction
        if left is not None:  # an exception has left it
            left.abort()
        if os.lseek(self.file, 0, os.SEEK_END) < HEADER + self.size:  # stat() would make the next write save its time
            raise StoreError(
                f"{self.path} has been cut off while the store is in use. End every process that has the store open, "
                "which saves what they hold, and run 'raxlog salvage'."
            )
        words = self.words
        if words[LARGE]:
            self.after_large()
        if words[END] != self.pos:
            self.begin(self.snapshot).abort()
            if max(words[END], words[FLUSHED]) < self.pos:
                self.refuse_lie(MOST_TRIES + 1)
        with self.mutex:
            self.pos, self.chain, self.begun = self.reached  # where an exception has struck reach()
            applied = words[APPLIED]
            if applied > self.overlay.floor:
                self.rebase(applied)
            view = self.transaction = WriteTransaction(self, self.overlay)
        return view

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

    def rebase(self, floor: int) -> None:
        """Forget what LMDB holds."""
        if self.transaction is None and self.overlay.floor < floor <= self.pos:
            self.overlay = self.overlay.pruned(floor)

    def follow(self, raw: Any, applied: int, chain: int, end: int) -> None:
        """Take in the records up to ``end``, with LMDB's snapshot of ``applied``. Moved."""
        self.pos, self.chain, self.begun = self.reached  # where an exception has struck reach()
        if applied > self.pos:
            self.overlay = Overlay(applied)
            self.reach(applied, chain, (applied, chain))
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

    def reach(self, pos: int, chain: int, begun: tuple[int, int]) -> None:
        """Stand at a place of the chain, at the end of a record that has begun there, behind that checksum."""
        self.reached = pos, chain, begun
        self.pos, self.chain, self.begun = self.reached

    def next_record(self) -> bytes | None:
        """The record behind those taken in; None where there is no valid one."""
        pos = self.pos
        place = pos % self.size
        return self.record_at(place, pos, self.chain) or self.record_at(0, pos + self.size - place, self.chain)

    def step(self, raw: Any, overlay: Overlay) -> bool:
        """Take in one record. False: there is no valid one."""
        record = self.next_record()
        if record is None:
            return False
        checksum = int.from_bytes(record[:8], "little")
        size = len(record)
        after = (number_at(record, 12) | number_at(record, 16) << 32) + size
        freed = number_at(record, 20)
        self.opened = self.opening_at(after - size, number_at(record, 24))
        if freed:
            overlay.freed.append((after, freed))
        touched: dict[bytes, Any] = {}
        for key, value in decode(record, HEAD, partial(self.base_of, raw, overlay, after)):
            touched[key] = None
            overlay.write(key, value, after)
        self.reach(after, checksum, (after - size, self.chain))
        overlay.settle(touched)  # behind it: a view that begins now keeps what it sees
        return True

    def base_of(self, raw: Any, overlay: Overlay, lsn: int, key: bytes) -> bytes:
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

    def record_at(self, place: int, pos: int, chain: int) -> bytes | None:
        """The record of this LSN there, if it is valid behind one with this checksum."""
        if place + HEAD > self.size:
            return None
        checksum, length, lsn, _, _ = RECORD.unpack_from(self.ring, HEADER + place)
        if lsn != pos or length < 1 or place + HEAD + length > self.size:
            return None
        record: bytes = self.ring[HEADER + place : HEADER + place + HEAD + length]
        return record if xxh3_64_intdigest(memoryview(record)[8:], chain) == checksum else None

    # -- committing ---------------------------------------------------------------------

    def append(self, touched: dict[bytes, Version | None], view: WriteTransaction, freed: int) -> None:
        """Write a transaction's record: it counts when this returns. Under the writer's lock."""
        overlay = view.overlay
        rows = overlay.rows
        parts: list[bytes] = [b""]
        size = 0
        for key in touched:
            version = rows[key]
            if version.value is not None:
                size += len(version.value)
        if size > self.size:
            self.append_directly(view)
            return
        for key, before in touched.items():
            encode_change(parts, key, rows[key].value, None if before is None else before.value)
        start = self.pos
        changes = b"".join(parts)
        size = HEAD + len(changes)
        if size > self.size // 3:  # one, the room behind it that is too small for the next, and that: the ring
            self.append_directly(view)
            return
        pos = start
        place = pos % self.size
        if place + size > self.size:
            self.strike_out_orphan()
            pos += self.size - place
            place = 0
        words = self.words
        if pos + size - words[KEPT] > self.size or overlay.memory() > 4 * MOST_MEMORY:
            self.waits += 1
            self.make_ring_room(pos + size)
        behind = words[FLUSHED] < start
        number = (self.opening + 2 * (pos // self.size)) & 0xFFFFFFFE
        covered = RECORD.pack(0, len(changes), pos, freed, number | (not behind))[8:] + changes
        checksum = xxh3_64_intdigest(covered, self.chain)
        record = checksum.to_bytes(8, "little") + covered
        view.written = place
        try:
            done = os.pwrite(self.synced if self.durable and not behind else self.file, record, HEADER + place)
            if done < size:
                raise OSError(errno.EIO, "a record was written in part")
            if self.durable and behind:
                os.fdatasync(self.file)
        except TimeoutError:
            raise  # a signal's handler did
        except OSError as error:
            raise LogError(error) from error
        with self.mutex:  # a thread that reads takes it in from the ring, or finds it taken in
            words[END] = pos + size  # first: FLUSHED says of records that count how far they are on disk
            if self.durable:
                words[FLUSHED] = pos + size
            self.reach(pos + size, checksum, (pos, self.chain))
            overlay.settle(touched)
        if not self.is_tended:
            self.start()
        self.commits += 1
        if pos + size - words[APPLIED] > self.every or overlay.memory() > MOST_MEMORY:
            wake(self.bell)

    def strike_out(self, place: int) -> None:
        """Make a record void whose commit has failed: it must not count after a power cut."""
        with disk.ErrorsIgnored():
            os.pwrite(self.file, bytes(HEAD), HEADER + place)
            os.fdatasync(self.file)

    def strike_out_orphan(self) -> None:
        """Make void what a killed call has left behind the end, where what comes next goes elsewhere. LogError.

        In the chain of those that follow it would come first.
        """
        pos = self.pos
        place = pos % self.size
        try:
            for there, lsn in ((place, pos), (0, pos + self.size - place)):
                if self.record_at(there, lsn, self.chain) is not None:
                    os.pwrite(self.file, bytes(HEAD), HEADER + there)
                    os.fdatasync(self.file)
        except TimeoutError:
            raise  # a signal's handler did
        except OSError as error:
            raise LogError(error) from error

    def start(self) -> None:
        """Start the thread. It does not keep a log that has been dropped without close()."""
        bell = self.bell
        _tended.add(self)
        period = -1 if self.durable else FLUSH_PERIOD
        with contextlib.suppress(RuntimeError):  # no thread can be had now: the next commit tries again
            start_new_thread(_tend, (weakref.ref(self, lambda _: wake(bell)), bell, period))
            self.is_tended = True

    def stop(self) -> None:
        """End the thread, and wait for its end."""
        if self.forks != fork_hooks.forks:
            return
        _tended.discard(self)
        self.closed = True
        wake(self.bell)
        ended = self.tending  # None: it has not begun, and ends as it does
        if ended is not None:
            with ended:
                pass

    def tend(self, due: bool) -> None:
        """In the thread: a checkpoint, where one is due; a flush at least every 100 ms."""
        try:
            if due:
                with contextlib.suppress(RaxlogError):  # a call that has to wait for a checkpoint raises it
                    self.checkpoint(False)
            if not self.durable and clocks.elapsed() - self.flushed >= FLUSH_PERIOD:
                self.flushed = clocks.elapsed()
                if self.words[FLUSHED] < self.words[END]:
                    self.flush()
        except lmdb_errors.Error as error:
            self.room.map.note_failure(error)
        except OSError as error:  # a read: a call that has to wait for a checkpoint raises it
            if self.failure != str(error):
                self.failure = str(error)
                note("warning", "%s: no checkpoint, and the log grows: %s", self.path, error)

    def flush(self) -> None:
        """Have the disk hold all that counts."""
        end, file = self.words[END], self.file
        if file < 0:
            return  # closed, which an exception has broken off
        try:
            os.fdatasync(file)
        except OSError as error:
            raise LogError(error) from error
        self.words[FLUSHED] = max(end, self.words[FLUSHED])

    # -- checkpoints --------------------------------------------------------------------

    def set_size(self, size: int) -> None:
        """Have the tree map so much, with no checkpoint under way. Behind the shut gate."""
        with self.checkpointing:
            self.tree.set_size(size)

    def make_ring_room(self, end: int) -> None:
        """Checkpoints until the record fits, and the overlay is small."""
        self.checkpoint(True)
        while end - self.words[KEPT] > self.size:
            self.checkpoint(True)

    def checkpoint(self, waits: bool, view: WriteTransaction | None = None, lent: bool = False) -> None:
        """Put into LMDB what it has not, with a transaction's changes: then that counts.

        ``lent``: the map goes beyond the ceiling; StoreFull where that makes the store larger. Where another process
        puts it: nothing, or wait for it. LockTimeout.
        """
        while True:
            try:
                if not waits and self.checkpointing.locked():
                    return
                with self.checkpointing, self.held(waits):
                    self.room.look()
                    self.words[GIVEN] = self.room.gives(self.overlay)
                    self.put_all(view, lent)
                    self.room.look()
                return
            except LockTimeout:
                if waits:
                    raise
                return
            except lmdb_errors.MapResizedError:
                if not waits:
                    return  # the thread's: a transaction adopts it
                self.room.map.adopt_size()

    @contextlib.contextmanager
    def held(self, waits: bool) -> Iterator[None]:
        """Hold the lock of checkpoints."""
        lock = self.lock
        if lock is None:
            raise ReadOnlyStore(f"{self.path.parent.parent} is open for reading only")
        self.outwait_reads(self.patience if waits else 0.0)
        lock.acquire(self.patience if waits else 0.0)
        try:
            yield
        finally:
            lock.release()

    def outwait_reads(self, patience: float) -> None:
        """Wait until the reads have ended that began before this process entered, unknown to LMDB. LockTimeout."""
        deadline = clocks.elapsed() + patience
        while self.is_beside_rest and is_read(self.path.parent):
            if clocks.elapsed() >= deadline:
                raise LockTimeout(
                    f"waited {patience:g} s for a read of {self.path.parent.parent} by a process that may not register "
                    "as a reader, and began it before this one opened the store. It may copy the store, or have been "
                    "stopped (SIGSTOP, a debugger): let it go on, or end it."
                )
            clocks.sleep(0.001)
        self.is_beside_rest = False

    def put_all(self, view: WriteTransaction | None, lent: bool) -> None:
        """One transaction of LMDB, with all up to the end."""
        with self.tree.write() as txn:
            applied, before, begun = unseal(txn.get(log_file.APPLIED))
            self.words[APPLIED] = max(self.words[APPLIED], applied)
            self.words[KEPT] = max(self.words[KEPT], begun[0])
            with self.mutex:
                try:
                    self.follow(txn, applied, before, self.words[END])
                except Moved:
                    self.refuse_lie(MOST_TRIES + 1)
                overlay = self.overlay
                overlay.readers += 1
                upto, chain = self.pos, self.chain
                if upto > applied:
                    begun = self.begun
            try:
                if self.words[FLUSHED] < upto:
                    self.flush()  # the record that ends there must not go with the power
                if view is not None:
                    upto, chain = upto + 8, chain ^ feed.AFTER_LARGE
                elif upto == applied:
                    return
                changes = overlay.changes(applied, upto)
            finally:
                overlay.readers -= 1
            if self.words[feed.FED]:
                feed.keep(self, applied, before, upto, None if view is None else changes)
            changed_pages.require_sound(self.pages, sorted([*changes, (log_file.APPLIED, b"")]))
            if not 8 < upto - begun[0] <= self.size // 3:  # there is none; or it would keep others out of the ring
                begun = upto, chain
            put_changes(txn, changes, upto, chain, begun)
            if view is not None:
                self.room.require(txn, lent)
                self.strike_out_orphan()
                self.words[LARGE] = upto
        self.words[APPLIED] = upto
        self.words[KEPT] = begun[0]
        self.checkpoints += 1
        if view is not None:
            with self.mutex:
                self.words[END] = self.words[FLUSHED] = upto
                self.overlay = Overlay(upto)
                self.reach(upto, chain, (upto, chain))
            self.commits += 1
            self.words[LARGE] = 0

    def append_directly(self, view: WriteTransaction) -> None:
        """A transaction too large for the ring, or that may not fit, goes to LMDB at once, behind all others."""
        self.checkpoint(True)
        aged = lent = False
        while True:
            try:
                self.checkpoint(True, view, lent)
                return
            except lmdb_errors.Error as error:
                is_full = isinstance(error, lmdb_errors.MapFullError)
                if is_full and self.room.map.grow():
                    continue
                if self.closed:  # there was no address space, and the file is mapped anew
                    raise
                if aged:
                    if lent or not is_full or not self.room.map.grow(view.overlay.runs + RESERVE):
                        raise
                    lent = True  # the pages that are free are not side by side: deletions may go beyond the ceiling
                    continue
            aged = True
            # Two commits of nothing: then LMDB uses again what the last ones have freed.
            with self.checkpointing, self.held(True):
                for _ in range(2):
                    with self.tree.write() as txn:
                        txn.put(log_file.APPLIED, txn.get(log_file.APPLIED) or b"")
                self.words[AGED] += 1
                self.words[GIVEN] = 64

    def after_large(self) -> None:
        """A writer has died in the middle of such a one, or an exception has struck it: it counts if LMDB has it."""
        if not self.words[LARGE]:
            return
        with self.checkpointing, self.held(True):
            with self.tree.write() as txn:
                applied, _, begun = unseal(txn.get(log_file.APPLIED))
            if applied > self.words[END]:
                self.words[END] = self.words[FLUSHED] = self.words[APPLIED] = applied
                self.words[KEPT] = begun[0]
            self.words[LARGE] = 0

    def close(self) -> None:
        """Leave: with a last checkpoint, unless a transaction has to be waited for."""
        self.closed = True
        try:
            self.stop()
            if self.forks == fork_hooks.forks and not self.readonly and self.file >= 0:
                with disk.ErrorsIgnored(LockTimeout, lmdb_errors.Error):  # of a disk that fails: the next opening looks
                    self.flush()
                    self.checkpoint(False)
        finally:
            self.close_files()

    def close_files(self) -> None:
        """Leave the rest to the others."""
        self.file = self.synced = -1  # first: run again, a closing that an exception has struck does no more than this
        if self.state is not None and not self.state.closed:  # what is mapped would keep the locks with it
            with disk.ErrorsIgnored():
                ofd_lock.give_back(self.state, log_file.INSIDE, 0)
        self.words = memoryview(array.array("Q", [self.words[at] for at in range(16)]))
        self.watch = None
        for mapped in (self.ring, self.shared):
            with contextlib.suppress(BufferError):  # another thread looks into it at this moment: it goes with the log
                mapped.close()
        for file in (self.state, self.lock):
            if file is not None:
                file.close()
        self.lock = None  # with what it has mapped
        for opened in self.files:
            opened.close()


_tended: weakref.WeakSet[Log] = weakref.WeakSet()  # those with a thread


@noted
def _tend(log_ref: weakref.ref[Log], bell: threading.Lock, period: float) -> None:
    """What the thread of a log does. Made in C, and noted by itself: no exception leaves a thread by half."""
    ended = threading.Lock()
    try:
        log = log_ref()
        if log is None:
            return
        with log.mutex:
            if log.closed or log.tending is not None:
                return
            ended.acquire()
            log.tending = ended
        log = None
        wait = period
        while True:
            due = bell.acquire(timeout=wait)
            log = log_ref()
            if log is None or log.closed:
                return
            log.tend(due)
            if period > 0:
                wait = max(0.0, log.flushed + period - clocks.elapsed())
            log = None
    finally:
        log = log_ref()
        if log is not None and log.tending is ended:  # an exception has ended it: the next commit starts another
            log.is_tended = False
            log.tending = None
        if ended.locked():
            ended.release()


def _stop_all() -> None:
    """A thread that is in LMDB must not see the interpreter end."""
    for log in list(_tended):
        log.stop()


fork_hooks.at_exit(_stop_all)
