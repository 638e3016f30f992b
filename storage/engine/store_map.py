"""The map: the data file of the generation in force, as LMDB maps it; its journal, and its size.

    open()    CURRENT ─ the generation in force, also where its mark leads on ─ LMDB's map
    remap()   the same again: another size, a newer generation, an environment that LMDB has given up

The map is large and sparse from the start (64 GiB cost nothing until used), so it rarely grows. Growth with
a read open would end that read, and memory kept from it is a SIGBUS: so growth waits behind the gate until
this process reads no more, and nothing that LMDB lends (its buffers) outlives a transaction here. Another
process may grow the map too; LMDB then raises MapResized at the next begin, and the new size is adopted.

    pages of the file     records, their tree    free      reserve
                         |__________________|____________|_________|
                         occupied            may be taken, as long as the disk gives what is behind

Deleting takes new pages first, so a commit that makes the store larger must leave some: at the file's end, on the disk
already, or free in it; above a ceiling (``max_map_size``) where there is one. A commit that does not may take them. The
limit is on the pages that the records occupy, so the reserve comes back by itself when it has been used.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import threading
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import cast

import lmdb

from ..commit import journal
from ..commit.journal import Journal
from ..errors import LockTimeout, RaxlogError, ReadOnlyStore, StoreError
from ..files import directory, disk, generation, lmdb_errors, log_file, map_lock, meta_pages
from ..files.lmdb_file import RESERVE, pages_in
from ..files.presence import Presence
from ..files.store_files import StoreFiles
from ..files.writer_lock import WriterLock
from ..log.log import Log
from ..log.log_environment import LogEnvironment
from ..notices import note
from .open_options import OpenOptions
from .reader_gate import ReaderGate

DEFAULT_MAP_SIZE = 64 << 30
MAX_DATABASES = 16
_LEAST_AHEAD, _MOST_AHEAD = 64, 256  # pages that are taken from the disk at a time
_MOST_MOVES = 20  # generations that may be removed during one opening
_PATIENCE = 30.0  # seconds to wait for a writer, at opening, where the journal wants it after a power cut,
_MOMENT = 0.1  # and where it does after a kill


class StoreMap:
    """The map of one store. Its environment makes and closes it, commits ask it for room."""

    def __init__(self, path: Path, options: OpenOptions, files: StoreFiles, gate: ReaderGate,
                 forget_last_commit: Callable[[], None]) -> None:
        self._path = path
        self.options = options
        self._files = files
        self.gate = gate
        self._forget_last_commit = forget_last_commit
        self.opening = threading.RLock()  # held while the file is mapped; another in a forked child
        self.generation = path  # the folder of the generation that is mapped
        self.mapped: lmdb.Environment | None = None
        self._map_lock: FileIO | None = None
        self.lock_inode = 0  # of LMDB's lock file
        self.journal: Journal | None = None
        self.log: Log | None = None  # of a store that has one, and no journal
        # LMDB leaves its second flush out; a commit has a record in the journal, or pays for it.
        self.flushes_meta_itself = (
            options.uses_journal and options.durability != "relaxed" and not options.readonly and journal.is_supported()
        )
        self.failed_flush: lmdb.Error | None = None
        self.enough_for = -1  # pages: room for so many has been seen to; -1 before the first commit
        self.at_most = 0  # pages that the records occupy, at most: a commit within ``enough_for`` need not look
        self.pages_a_change = 0  # how many more one change takes, at most

    def _live(self) -> lmdb.Environment:
        """LMDB's environment, which is open."""
        assert self.mapped is not None
        return self.mapped

    # -- opening ------------------------------------------------------------------------

    def open(self) -> None:
        """Map the generation in force: what CURRENT names, or what its mark leads to."""
        self._open(self._first_size())

    def _first_size(self) -> int:
        if self.options.map_size:
            return self.options.map_size
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit == resource.RLIM_INFINITY:
            return DEFAULT_MAP_SIZE
        return max(1 << 24, min(DEFAULT_MAP_SIZE, limit // 4 & ~0xFFFF))

    def _open(self, size: int) -> None:
        wanted = directory.generation(self._path)
        left = _MOST_MOVES
        while True:
            try:
                self._map(wanted, size)
            except (lmdb.Error, StoreError, OSError):
                self._unmap()
                missed, wanted = wanted, directory.generation(self._path)
                left -= 1
                if missed == wanted or not left:
                    raise
                continue  # it was removed in this moment, since a newer one is in force
            self.generation = wanted
            newer = self._successor()
            if newer is None:
                return
            self._unmap()
            wanted = self._path / newer

    def _map(self, folder: Path, size: int) -> None:
        options = self.options
        meta_pages.require_sound(folder, options.readonly)
        self.enough_for = -1
        self.forget_room()
        if options.max_map_size is not None:
            size = min(size, options.max_map_size)
        at_rest = directory.is_snapshot(self._path)
        if at_rest and not options.readonly:
            raise ReadOnlyStore(
                f"{self._path} is a snapshot, which is never changed. Open it with readonly=True, or make a "
                "store of it with 'raxlog restore'."
            )
        lockless = options.readonly and (at_rest or not directory.can_register(folder))
        has_log = (folder / log_file.LOG).exists()
        self.flushes_meta_itself = self.flushes_meta_itself and not has_log
        while True:
            try:
                self.mapped, self._map_lock = map_lock.open_held(
                    folder, map_size=size, readonly=options.readonly, lock=not lockless,
                    metasync=has_log or (options.durability != "relaxed" and not self.flushes_meta_itself),
                    # No spare transactions: a fork would leave their reader slots in doubt.
                    max_readers=options.max_readers, max_dbs=MAX_DATABASES, max_spare_txns=0,
                )
                break
            except lmdb.MapResizedError:
                continue  # another process grew the file between two steps of the opening: again
            except lmdb.MemoryError:
                if size <= 1 << 24:
                    raise
                size //= 2  # the address space is limited (ulimit -v, 32 bits): reserve less
        self.lock_inode = 0 if lockless else os.stat(folder / directory.LOCK).st_ino
        names = [directory.LOCK, directory.DATA]
        if has_log:
            opened = LogEnvironment(self, folder, self.mapped, not lockless)
            self.mapped, self.log = cast(lmdb.Environment, opened), opened.log
            names += [log_file.LOG, log_file.STATE]
        self._files.follow(folder, *names)

    def _successor(self) -> str | None:
        self._forget_last_commit()
        with self.begin_read() as txn:
            return generation.successor(txn.get)

    def begin_read(self) -> lmdb.Transaction:
        """A read transaction of the opening, before any other can begin."""
        while True:
            try:
                return self._live().begin()
            except lmdb.MapResizedError:
                self._adopt()

    def follow(self) -> None:
        """Map the newer generation that came after this one was mapped and before other processes knew of it."""
        if self._successor() is not None:
            self._unmap()
            self.open()

    def remap(self, size: int | None = None) -> None:
        """Map the generation in force, and have its journal, with no read open."""
        with self.opening:
            try:
                self._unmap()
                self._open(size or self._first_size())
                data = self.generation / directory.DATA
                if self.journal is not None and self.journal.data != data:
                    old, self.journal = self.journal, journal.find(self._live(), data)
                    old.close()
            except BaseException:
                self._unmap()  # the map and its journal are open together or not at all; live() tries again
                raise

    def reopen(self) -> None:
        """Map the file again, for an environment LMDB has declared unusable (MDB_PANIC)."""
        self.gate.shut(self.remap)

    def go_over(self) -> None:
        """Map the generation that has superseded this one. The caller holds ``writing``."""
        try:
            self.gate.shut(lambda: self.remap(self._size()))
        except (OSError, lmdb.Error) as error:
            raise lmdb_errors.cannot_open(self._path, error, self.options.readonly) from error

    def _unmap(self) -> None:
        if self.mapped is not None:
            self.mapped.close()
            self.mapped = self.log = None
        if self._map_lock is not None:
            self._map_lock.close()

    def close(self) -> None:
        """Close the map and the journal."""
        self._unmap()
        if self.journal is not None:
            self.journal.close()
            self.journal = None

    def part_from_parent(self, unclean: bool) -> None:
        """In a forked child: what is closed next is a copy, which must leave the parent's readers alone.

        With ``unclean`` it is kept, and not closed: that would wait, even at exit, for a thread that is not here.
        """
        self.opening = threading.RLock()
        if unclean and self.mapped is not None:
            import ctypes  # noqa: PLC0415 - hardly any process comes here

            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.mapped))
            self.mapped = None
        map_lock.part_from_parent(self.lock_inode)

    # -- the journal --------------------------------------------------------------------

    def open_journal(self, cut: bool) -> None:
        """Find the journal, make it where it is wanted, and do again what a power cut has undone."""
        if self.log is not None:
            return
        while True:
            try:
                self._settle_journal(cut)
                return
            except lmdb.MapResizedError:
                self._adopt()
            except lmdb.MapFullError:
                if not self.grow():
                    raise

    def _settle_journal(self, cut: bool) -> None:
        mapped, data = self._live(), self.generation / directory.DATA
        found = journal.find(mapped, data)
        try:
            if found is None and self.flushes_meta_itself:
                with self._files.locked(_PATIENCE):
                    found = journal.find(mapped, data) or journal.make(mapped, data)
            elif found is not None and cut:
                with self._files.locked(_PATIENCE):
                    self._note(journal.replay(mapped, found), "commits applied from the journal")
                    journal.renew_metas(mapped)
            elif found is not None and journal.is_due(mapped, found):
                # Of a call under way, in a process that is alive, or of a killed one. The lock may be held by another
                # opening, which applies it: this one must not show less, and then what no living process has written.
                with contextlib.suppress(LockTimeout), self._files.locked(_MOMENT):
                    self._note(journal.replay(mapped, found), "commits applied from the journal")
            if self.flushes_meta_itself:
                self.journal, found = found, None
        finally:
            if found is not None:
                found.close()

    def clear_readers(self) -> int:
        """Free the places of readers that have died; how many there were."""
        cleared = int(self._live().reader_check())
        self._note(cleared, "readers cleared, whose processes have died")
        return cleared

    def _note(self, many: int, what: str) -> None:
        if many:
            note("info", "%s: %d %s", self._path, many, what)

    def show_journal(self, cut: bool) -> None:
        """For a reader: have what is in the journal only applied, where this user may, as by the next writer.

        A record beside a writer at work is of a call that has not returned, or another opening applies
        it: the reader waits a moment for it.
        """
        if not self._is_journal_due():
            return
        self._unmap()
        try:
            self._apply_journal(_PATIENCE if cut else _MOMENT)
        except (RaxlogError, lmdb.Error, OSError) as error:
            if cut and isinstance(error, LockTimeout):
                raise  # a process has begun to apply it, and has been stopped
            # Beside a full disk, say, the older state can still be read.
        self.open()

    def _is_journal_due(self) -> bool:
        data = self.generation / directory.DATA
        kept = journal.find(self._live(), data) if self.log is None and os.access(data, os.W_OK) else None
        if kept is None:
            return False
        with contextlib.closing(kept):
            return journal.is_due(self._live(), kept)

    def _apply_journal(self, patience: float) -> None:
        lock = WriterLock(self._path / directory.WRITER)
        try:
            lock.acquire(patience)
            self.mapped, self._map_lock = map_lock.open_held(
                self.generation, map_size=self._first_size(), max_dbs=MAX_DATABASES,
                max_readers=self.options.max_readers, max_spare_txns=0,
            )
            journal.apply_what_is_due(self.mapped, self.generation / directory.DATA)
        finally:
            self._unmap()
            lock.close()

    def note_failure(self, error: lmdb.Error) -> None:
        """After an error in a commit or a flush. Where the disk has failed, nothing more is written.

        What the system could not flush it takes for flushed from then on. A later commit with
        a flush that succeeds would be on disk beside a meta page that never came there.
        """
        is_failure = disk.cause(error) == errno.EIO and lmdb_errors.why_full(self._path, error) is None
        if is_failure and self.failed_flush is None:
            self.failed_flush = error
            if isinstance(self._files.presence, Presence):
                self._files.presence.doubt()

    def last_transaction_id(self) -> int:
        """The number of the newest commit in the file; -1 where none is mapped."""
        return -1 if self.mapped is None else int(self.mapped.info()["last_txnid"])

    def last_state(self) -> int:
        """The number of the newest state in LMDB's file, as its table of readers counts them."""
        opened = self._live() if self.log is None else self.log.real
        return int(opened.info()["last_txnid"])

    # -- its size -----------------------------------------------------------------------

    def pages_of(self, txn: lmdb.Transaction) -> int:
        """The pages of the store's records and their tree, as this transaction has them."""
        return pages_in(txn.stat(self._live().open_db(None, txn=txn)))

    def pages_used(self) -> int:
        """The pages of the file that hold something or have held something."""
        return int(self._live().info()["last_pgno"]) + 1

    def _size(self) -> int:
        return int(self._live().info()["map_size"])

    def _page_size(self) -> int:
        return int(self._live().stat()["psize"])

    def set_size(self, size: int) -> None:
        """Map so many bytes. Behind the shut gate. lmdb.Error: it is as before."""
        before = self._size()
        try:
            self._live().set_mapsize(size)
        except lmdb.Error:
            self.remap(before)  # the old map is gone: without it the next access is a SIGSEGV
            raise

    def adopt_size(self) -> None:
        """Adopt the growth of another process: twice what is used, up to the ceiling."""
        try:
            self.gate.shut(self._adopt)
        except lmdb.Error as error:
            raise lmdb_errors.translate_error(self._path, error) from error

    def _adopt(self) -> None:
        needed = self.pages_used() * self._page_size()
        try:
            self.set_size(max(needed, min(needed * 2, self._largest())))
        except lmdb.MemoryError:
            self.set_size(needed)

    def grow(self) -> bool:
        """Double the map, up to the ceiling. False where nothing larger is to be had."""
        self.clear_readers()  # pages held back by dead readers may be all that is missing
        size = self._size()
        for wanted in (size * 2, size + size // 4):
            wanted = min(wanted, self._largest())
            if wanted <= size:
                return False
            try:
                self.gate.shut(lambda wanted=wanted: self.set_size(wanted))  # type: ignore[misc]
                return True
            except lmdb.MemoryError:
                continue  # no address space for so much
        return False

    def _largest(self) -> int:
        """The size beyond which the map does not grow: the ceiling, or what others use beyond it, and the reserve."""
        page = self._page_size()
        ceiling, reserve, used = self.options.max_map_size or 1 << 62, RESERVE * page, self.pages_used() * page
        return reserve + (ceiling if used <= ceiling + reserve else used)

    def forget_room(self) -> None:
        """Another process may have taken it."""
        self.at_most = 1 << 62

    def require_room(self, occupied: int) -> None:
        """StoreFull where a commit would make the store larger and leave less than the reserve.

        ``occupied``: the pages of its records then. Under the writer's lock. Room is taken from the disk (20 µs) by
        the first commit, and by those that want more than there was.
        """
        self.at_most = occupied
        if occupied + _LEAST_AHEAD // 2 <= self.enough_for:
            return
        stat, ceiling = self._live().stat(), self.options.max_map_size
        size, grows, is_first = int(stat["psize"]), occupied > pages_in(stat), self.enough_for < 0
        self.enough_for = max(0, self.enough_for)
        self.pages_a_change = int(stat["depth"]) + 2  # each level may split, and this commit make it a level deeper
        most = occupied + _MOST_AHEAD if ceiling is None else ceiling // size
        if grows and occupied > most:
            raise lmdb_errors.no_room(self._path)
        used, ahead = self.pages_used(), max(0, min(max(_LEAST_AHEAD, occupied // 4), _MOST_AHEAD, most - occupied))
        while grows or is_first:
            end = occupied + RESERVE + ahead
            try:
                if end > used:
                    disk.allocate(self.generation / directory.DATA, used * size, end * size)
                self.enough_for = occupied + ahead
                return
            except OSError as error:
                if isinstance(error, TimeoutError):
                    raise  # a signal's handler did
                if not ahead and grows:
                    raise lmdb_errors.translate_error(self._path, error) from error
                is_first, ahead = False, 0

    def make_room(self) -> None:
        """Grow the map while less than a quarter of it, or 64 MB, is free at its end."""
        while True:
            size = self._size()
            free = size - self.pages_used() * self._page_size()
            if free >= min(size // 4, 64 << 20) or not self.grow():
                return
