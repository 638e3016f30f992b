"""Checkpoints: they put into the tree what it has not of the log, so that the ring can be
used again.

    commit ─ every quarter of the ring, or 16 MB of overlay ─ the thread ─ one transaction of LMDB's ─ APPLIED, KEPT
    commit ─ no room in the ring, or 64 MB of overlay ─ waits for that
    commit ─ larger than a third of the ring, or than the room in the file ─ goes to LMDB at once, behind all others

Any process makes them, one at a time, behind a lock in ``log-state``. Beside them writers commit and readers read.

A process that may write none of a store's files reads while no other has the store open, at rest:

    reader   R1 lock a byte of the data file, shared    R2 is a process inside? is log-state as it was?    read, unlock
    others   W1 enter the log (INSIDE)                  W2 is that byte locked? no checkpoint, until it is not

LMDB does not know of such a read: its second transaction from then on would overwrite pages that the read uses. Both
sides lock before they look (R1 before R2, W1 before W2), so one at least sees the other: the process inside makes no
checkpoint until the read has ended, or the reader gives up. Read permission suffices for such a lock. A process that
came and went between two reads has changed the words of log-state; then the reader maps the store anew.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from _thread import get_ident, start_new_thread
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any, Protocol

from .. import clocks, disk, fork_hooks
from ..crash_point import crash_point
from ..errors import LockTimeout, RaxlogError, ReadOnlyStore, interrupted
from ..folder import directory
from ..format import records
from ..known import alive
from ..locks import ofd_lock
from ..locks.writer_lock import WriterLock
from ..notices import note, noted
from ..tree import changed_pages, lmdb_errors
from ..tree.lmdb_file import RESERVE, PageFile
from ..tree.tree import Tree, find_holder
from ..wake.stop import wake
from . import feed
from .ring import (
    AFTER_LARGE,
    AGED,
    APPLIED,
    APPLIED_KEY,
    END,
    FED,
    FLUSHED,
    GIVEN,
    HEADER,
    INSIDE,
    KEPT,
    LARGE,
    Ring,
    unseal_applied,
)
from .transaction import Overlay, WriteTransaction

FLUSH_PERIOD = 0.1  # seconds
_READ = 0  # the byte of the data file that a read at rest locks


def put_changes(txn: Any, changes: list[tuple[bytes, bytes | None]], upto: int, chain: int,
                begun: tuple[int, int] | None = None) -> None:
    """Apply changes to LMDB, with the LSN and checksum they lead to; ``begun``: the record that ends there, if kept."""
    put, delete = txn.put, txn.delete
    for key, value in changes:
        if value is None:
            delete(key)
        else:
            put(key, value)
    put(APPLIED_KEY, records.seal(APPLIED_KEY, [upto, chain, *(begun or (upto, chain))]))


class Map(Protocol):
    """LMDB's map of the file, behind the gate."""

    def grow(self, lent: int = 0) -> bool:
        """Map more; ``lent``: so many pages beyond what is used. False: there is no more."""

    def adopt_size(self) -> None:
        """Map what another process has made it grow to."""

    def note_failure(self, error: lmdb_errors.Error) -> None:
        """After an error in a flush: where the disk has failed, nothing more is written."""


class FileRoom(Protocol):
    """The room in LMDB's file, as far as checkpoints know it."""

    map: Map

    def look(self) -> None:
        """Learn how large LMDB's tree and file are."""

    def gives(self, overlay: Overlay) -> int:
        """The most pages that a checkpoint gives back."""

    def require(self, txn: Any, lent: bool) -> None:
        """StoreFull where a transaction of LMDB's own makes the store larger than it may become."""


class Follower(Protocol):
    """The log of this process, as far as its checkpoints know it."""

    mutex: threading.RLock
    overlay: Overlay
    pos: int
    chain: int
    begun: tuple[int, int]
    patience: float

    def follow_to_end(self, raw: Any, applied: int, chain: int) -> None:
        """Take in all records up to END, with LMDB's snapshot of ``applied``."""

    def start_anew(self, upto: int, chain: int) -> None:
        """Stand at ``upto``, with nothing in the overlay."""


class Checkpoints:
    """The checkpoints that this process makes of one log. A thread of theirs begins with the first commit."""

    def __init__(self, log: Follower, ring: Ring, tree: Tree, room: FileRoom, *, readonly: bool, durable: bool) -> None:
        self.log = log
        self.ring = ring
        self.tree = tree
        self.room = room
        self.folder: Path = ring.path.parent
        self.durable = durable
        self.lock: WriterLock | None = None  # made with the first checkpoint
        self.pages: PageFile | None = None if readonly else PageFile(self.folder / directory.DATA)
        self.making: threading.Lock = threading.Lock()  # the lock in the file does not keep threads apart
        self.maker: int = 0  # the thread that holds it
        self.made: int = 0
        # There may be reads of which LMDB does not know. One that comes from here on sees this process.
        self.is_beside_rest: bool = ring.locks is not None and is_read(self.folder)
        self.flushed: float = 0.0  # when the thread has flushed last
        self.failure: str = ""  # of the thread's last checkpoint, once noted
        self.forks: int = fork_hooks.forks
        self.bell: threading.Lock = threading.Lock()
        self.bell.acquire()
        self.is_tended: bool = False  # a thread has begun: one that an exception strikes before that says nothing
        self.tending: threading.Lock | None = None  # held by the thread
        self.closed: bool = False

    # -- the thread ---------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread. It does not keep checkpoints whose log has been dropped without close()."""
        bell = self.bell
        _tended.add(weakref.ref(self, _tended.discard))
        period = -1 if self.durable else FLUSH_PERIOD
        with contextlib.suppress(RuntimeError):  # no thread can be had now: the next commit tries again
            start_new_thread(_tend, (weakref.ref(self, lambda _: wake(bell)), bell, period))

    def stop(self) -> None:
        """Stop the thread and join it."""
        if self.forks != fork_hooks.forks:
            return
        _tended.discard(weakref.ref(self))
        self.closed = True
        wake(self.bell)
        ended = self.tending  # None: it has not begun, and ends as it does
        if ended is not None:
            with ended:
                pass

    def tend(self, due: bool) -> None:
        """In the thread: a checkpoint, where one is due; a flush at least every 100 ms."""
        ring = self.ring
        try:
            if due:
                with contextlib.suppress(RaxlogError):  # a call that has to wait for a checkpoint raises it
                    self.make(False)
            if not self.durable and clocks.elapsed() - self.flushed >= FLUSH_PERIOD:
                self.flushed = clocks.elapsed()
                if ring.words[FLUSHED] < ring.words[END]:
                    ring.flush()
        except lmdb_errors.Error as error:
            self.room.map.note_failure(error)
        except OSError as error:  # a read: a call that has to wait for a checkpoint raises it
            if self.failure != str(error):
                self.failure = str(error)
                note("warning", "%s: no checkpoint, and the log grows: %s", ring.path, error)

    def close(self) -> None:
        """A last checkpoint, unless another process' has to be waited for; then close what is open for them."""
        self.closed = True
        try:
            self.stop()
            if self.forks == fork_hooks.forks and self.pages is not None:
                with disk.ErrorsIgnored(LockTimeout, lmdb_errors.Error):  # of a disk that fails: the next opening looks
                    self.ring.flush()
                    self.make(False)
        finally:
            lock, pages = self.lock, self.pages
            self.lock = self.pages = None  # first: run again, a closing that an exception has struck makes none
            for opened in (lock, pages):
                if opened is not None:
                    opened.close()

    # -- one checkpoint -----------------------------------------------------------------

    def make(self, waits: bool, txn: WriteTransaction | None = None, lent: bool = False) -> None:
        """Put into LMDB what it has not, with a transaction's changes: then that counts.

        ``lent``: the map goes beyond the ceiling; StoreFull where that makes the store larger. Where another process
        puts it: nothing, or wait for it. LockTimeout.
        """
        while True:
            try:
                if not waits and self.making.locked():
                    return
                self.require_outside()
                with self.making, self.held(waits):
                    self.room.look()
                    self.ring.words[GIVEN] = self.room.gives(self.log.overlay)
                    self.put_all(txn, lent)
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

    def make_ring_room(self, end: int) -> None:
        """Checkpoints until a record that ends there fits into the ring, and the overlay is small."""
        self.make(True)
        while end - self.ring.words[KEPT] > self.ring.size:
            self.make(True)

    @contextlib.contextmanager
    def held(self, waits: bool) -> Iterator[None]:
        """Hold the lock of checkpoints. LockTimeout, ReadOnlyStore."""
        if self.pages is None:
            raise ReadOnlyStore(f"{self.folder.parent} is open for reading only")
        self.maker = get_ident()
        try:
            lock = self.lock = self.lock or WriterLock(self.folder / directory.STATE)
            patience = self.log.patience if waits else 0.0
            self.outwait_reads(patience)
            lock.acquire(patience)
            try:
                yield
            finally:
                lock.release()
        finally:
            self.maker = 0

    def is_inside(self) -> bool:
        """Whether this thread is at a checkpoint, and has been interrupted."""
        return self.maker == get_ident() and self.making.locked()

    def require_outside(self) -> None:
        """TransactionError where this thread is inside."""
        if self.is_inside():
            raise interrupted(self.folder.parent)

    def outwait_reads(self, patience: float) -> None:
        """Wait until the reads have ended that began before this process entered, unknown to LMDB. LockTimeout."""
        deadline = clocks.elapsed() + patience
        while self.is_beside_rest and is_read(self.folder):
            if clocks.elapsed() >= deadline:
                raise LockTimeout(
                    f"waited {patience:g} s for a read of {self.folder.parent} by a process that may not register "
                    "as a reader, and began it before this one opened the store. It may copy the store, or have been "
                    "stopped (SIGSTOP, a debugger): let it go on, or end it."
                )
            clocks.sleep(0.001)
        self.is_beside_rest = False

    def put_all(self, txn: WriteTransaction | None, lent: bool) -> None:
        """One transaction of LMDB, with all up to the end."""
        log, ring = self.log, self.ring
        words = ring.words
        with self.tree.write() as raw:
            applied, before, begun = unseal_applied(raw.get(APPLIED_KEY))
            words[APPLIED] = max(words[APPLIED], applied)
            words[KEPT] = max(words[KEPT], begun[0])
            with log.mutex:
                log.follow_to_end(raw, applied, before)
                overlay = log.overlay
                overlay.readers += 1
                upto, chain = log.pos, log.chain
                if upto > applied:
                    begun = log.begun
            try:
                if words[FLUSHED] < upto:
                    ring.flush()  # the record that ends there must not go with the power
                if txn is not None:
                    upto, chain = upto + 8, chain ^ AFTER_LARGE
                elif upto == applied:
                    return
                changes = overlay.changes(applied, upto)
            finally:
                overlay.readers -= 1
            if words[FED]:
                feed.keep(ring, applied, before, upto, None if txn is None else changes)
            assert self.pages is not None
            changed_pages.require_sound(self.pages, sorted([*changes, (APPLIED_KEY, b"")]))
            if not 8 < upto - begun[0] <= ring.size // 3:  # there is none; or it would keep others out of the ring
                begun = upto, chain
            put_changes(raw, changes, upto, chain, begun)
            if txn is not None:
                self.room.require(raw, lent)
                ring.strike_out_orphan(log.pos, log.chain)
                words[LARGE] = upto
        crash_point("log.applied")
        words[APPLIED] = upto
        crash_point("log.kept")
        words[KEPT] = begun[0]
        self.made += 1
        if txn is not None:
            with log.mutex:
                crash_point("log.large")
                words[END] = words[FLUSHED] = upto
                log.start_anew(upto, chain)
            words[LARGE] = 0

    def put_directly(self, txn: WriteTransaction) -> None:
        """A transaction too large for the ring, or that may not fit, goes to LMDB at once, behind all others."""
        self.make(True)
        aged = lent = False
        while True:
            try:
                self.make(True, txn, lent)
                return
            except lmdb_errors.Error as error:
                is_full = isinstance(error, lmdb_errors.MapFullError)
                if is_full and self.room.map.grow():
                    continue
                if self.closed:  # there was no address space, and the file is mapped anew
                    raise
                if aged:
                    if lent or not is_full or not self.room.map.grow(txn.overlay.runs + RESERVE):
                        raise
                    lent = True  # the pages that are free are not side by side: deletions may go beyond the ceiling
                    continue
            aged = True
            # Two commits of nothing: then LMDB uses again what the last ones have freed.
            self.require_outside()
            with self.making, self.held(True):
                for _ in range(2):
                    with self.tree.write() as raw:
                        raw.put(APPLIED_KEY, raw.get(APPLIED_KEY) or b"")
                self.ring.words[AGED] += 1
                self.ring.words[GIVEN] = 64

    def settle_large(self) -> None:
        """A writer has died in the middle of put_directly(), or an exception has struck it: it counts if LMDB has it.

        Nothing, where that is not so.
        """
        words = self.ring.words
        if not words[LARGE]:
            return
        self.require_outside()
        with self.making, self.held(True):
            with self.tree.write() as raw:
                applied, _, begun = unseal_applied(raw.get(APPLIED_KEY))
            if applied > words[END]:
                crash_point("log.settled")
                words[END] = words[FLUSHED] = words[APPLIED] = applied
                words[KEPT] = begun[0]
            words[LARGE] = 0


class NotAtRest(ReadOnlyStore):
    """Another process is inside, or has been."""


class Rest:
    """A generation that this process found at rest, and reads without a place in LMDB's table."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._data, self._state = folder, folder / directory.DATA, folder / directory.STATE
        self._words: bytes | None = None  # of log-state

    def read(self) -> FileIO:
        """Begin a read, which lasts until the returned file is closed. Raises NotAtRest. About 20 µs."""
        try:
            file = disk.open_file(self._data, os.O_RDONLY)
        except FileNotFoundError:
            if self._words is None:
                raise
            raise self._disturbed() from None  # a compaction has made another generation
        try:
            ofd_lock.take(file, _READ, 1, shared=True)
            words, is_free = b"", True
            with contextlib.suppress(FileNotFoundError), disk.open_file(self._state, os.O_RDONLY) as state:
                is_free = ofd_lock.is_free(state, INSIDE, 1)
                words = os.pread(state.fileno(), HEADER, HEADER)
            if not is_free or self._words not in (None, words):
                raise self._disturbed()
            self._words = words
        except BaseException:
            file.close()
            raise
        return file

    def _disturbed(self) -> NotAtRest:
        return NotAtRest(directory.cannot_register(self._folder, find_holder(self._folder)))


def is_read(folder: Path) -> bool:
    """Whether such a read is open in another process."""
    with disk.open_file(folder / directory.DATA, os.O_RDONLY) as file:
        return not ofd_lock.is_free(file, _READ, 1)


_tended: set[weakref.ref[Checkpoints]] = set()  # those with a thread


@noted
def _tend(reference: weakref.ref[Checkpoints], bell: threading.Lock, period: float) -> None:
    """What the thread does. Made in C, and noted by itself: no exception leaves a thread by half."""
    ended = threading.Lock()
    try:
        tended = reference()
        if tended is None:
            return
        with tended.log.mutex:
            if tended.closed or tended.tending is not None:
                return
            ended.acquire()
            tended.tending = ended
            tended.is_tended = True
        tended = None
        wait = period
        while True:
            due = bell.acquire(timeout=wait)
            tended = reference()
            if tended is None or tended.closed:
                return
            tended.tend(due)
            if period > 0:
                wait = max(0.0, tended.flushed + period - clocks.elapsed())
            tended = None
    finally:
        tended = reference()
        if tended is not None and tended.tending is ended:  # an exception has ended it: the next commit starts another
            tended.is_tended = False
            tended.tending = None
        if ended.locked():
            ended.release()


def _stop_all() -> None:
    """A thread that is in LMDB must not see the interpreter end."""
    for tended in alive(_tended):
        tended.stop()


fork_hooks.at_exit(_stop_all)
