"""The map: one store's data file, opened, mapped, grown and closed.

    open for writing    CURRENT ─ the generation in force ─ LMDB's map ─ this process's slot ─ the journal
    for reading         CURRENT ─ the generation in force ─ LMDB's map ─ after a power cut: the journal

How the map grows is in map_size.py.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any, Literal, Self
from weakref import WeakSet

import lmdb

from ..commit import journal
from ..commit.commits import Commits
from ..commit.journal import Journal
from ..errors import (
    LockTimeout,
    NotAStore,
    RaxlogError,
    ReadOnlyStore,
    StoreClosed,
    StoreError,
    UnsupportedFormat,
)
from ..files import directory, disk, generation, lmdb_errors, map_lock, meta_pages
from ..files import presence as closing
from ..files.store_files import FilesInPlace
from ..files.writer_lock import WriterLock
from ..format import records
from ..format.keys import FORMAT, STORE_KEY
from .map_size import Growth
from .reader_gate import Gate

DEFAULT_MAP_SIZE = 64 << 30
MAX_READERS = 2048
MAX_DATABASES = 16
DURABILITIES = ("commit", "relaxed", "buffered")
Durability = Literal["commit", "relaxed", "buffered"]
BUFFER_WINDOW = 0.005  # seconds

_YOUNG_MS = 60_000
_MOST_MOVES = 20  # generations that may be removed under our hands while we open one
_PATIENCE = 30.0  # seconds to wait for a writer, at opening, where the journal wants it after a power cut,
_MOMENT = 0.1  # and where it does after a kill


class StoreMap(Growth):
    """What an environment opens and closes: LMDB's map, and the files beside it."""

    def __init__(self, path: Path, *, readonly: bool, durability: str, map_size: int | None,
                 max_map_size: int | None, max_readers: int, uses_journal: bool = True,
                 buffer_window: float = BUFFER_WINDOW) -> None:
        self.path = path
        self.readonly = readonly
        self.durability = durability
        self.buffer_window = buffer_window
        self.max_map_size = max_map_size
        self.max_readers = max_readers
        self.shares: WeakSet[Any] = WeakSet()  # its users (registry.py)
        self.opened = self.closed = False
        self.inherited = False  # from before a fork, and not used since
        self.lock: WriterLock | None = None
        self.presence: closing.Presence | closing.Visit | None = None
        self.checked = -1  # the last transaction a read has found without the mark of a superseded generation
        self.journal: Journal | None = None
        # LMDB leaves its second flush out; a commit has a record in the journal, or pays it.
        self.uses_journal = uses_journal
        self.flushes_meta_itself = (
            uses_journal and durability != "relaxed" and not readonly and journal.is_supported()
        )
        self.failed_flush: lmdb.Error | None = None
        self._wanted_map_size = map_size
        self.wake: FileIO | None = None
        self._files = FilesInPlace()
        self._lmdb: lmdb.Environment | None = None
        self._map_lock: FileIO | None = None
        self.lock_inode = 0  # of LMDB's lock file
        # What the layers above keep here, made by kept():
        self.waiting_state: Any = None  # who sleeps until a commit (waiter.py)
        self.buffer_state: Any = None  # appends that are committed behind their callers (buffering.py)
        self.seen_state: Any = None  # when consumers were last here (seen_times.py)
        self.leases_state: Any = None  # the numbers by which this process owns subscriptions (leases.py)
        self._reset_locks()

    def kept(self, name: str, make: Callable[[Any], Any]) -> Any:
        """What a layer above keeps here in that attribute, made by its first use, in a forked child anew."""
        if getattr(self, name) is None:
            with self.first_use:
                if getattr(self, name) is None:
                    setattr(self, name, make(self))
        return getattr(self, name)

    # -- opening and closing ------------------------------------------------------------

    def _reset_locks(self) -> None:
        self.gate = Gate()
        self.commits = Commits(self)  # type: ignore[arg-type]  # it is an Environment
        self._opening = threading.RLock()
        self.first_use = threading.Lock()  # held while a layer above makes what it keeps here
        self._forked_inside = False
        self._fork_locks: list[Any] = []  # those that a fork under way holds

    def open(self) -> Self:
        """Open it. Once; close() closes what an exception has left of it."""
        self._open()
        self.opened = True
        return self

    def _open(self) -> None:
        try:
            self._files.open(self.path)
            self._open_map(self._wanted_map_size or _affordable_map_size())
            self._read_store_record()
            if self.readonly:
                found = self._visit()
            else:
                assert self._lmdb is not None
                self._lmdb.reader_check()
                self.lock = WriterLock(self.path / directory.WRITER)
                self._open_wake()
                presence = self.presence = closing.Presence(self.path)
                self._files.add(directory.WRITER, closing.OPEN)
                self._follow()
                self._open_journal()
                found = presence.found
                presence.clear_the_cut()
                if abs(time.time_ns() // 1_000_000 - self.created_ms) < _YOUNG_MS:
                    # Its creator may not have come to flush its name, on which all hangs.
                    directory.sync_folder(self.path.parent)
            with self._begin_read() as txn:
                self.last_end = closing.judge(found, txn)
        except BaseException as error:
            self._leave()
            self._close_files()
            if isinstance(error, OSError | lmdb.Error) and not isinstance(error, RaxlogError):
                raise lmdb_errors.cannot_open(self.path, error, self.readonly) from error
            raise

    def _visit(self) -> list[tuple[bytes, int]]:
        """Make a reader known, and see to it that it sees all; what was left behind.

        What a power cut has left in the journal only is applied, where this user may, as by the next
        writer. A record beside a writer at work is of a call that has not returned, or it is being applied by
        another opening: it is waited for a moment.
        """
        if directory.is_snapshot(self.path):
            return closing.find_left_behind(self.path)
        visit = closing.Visit(self.path)
        self.presence = visit
        self._follow()
        if self._has_more_to_show():
            size = self._wanted_map_size or _affordable_map_size()
            self._close_map()
            cut = closing.is_cut(visit.found)
            try:
                self._apply_journal(size, _PATIENCE if cut else _MOMENT)
            except (RaxlogError, lmdb.Error, OSError) as error:
                if cut and isinstance(error, LockTimeout):
                    raise  # a process has begun to apply it, and stands still
                # Beside a full disk, say, the older state is to be had still.
            self._open_map(size)
        return visit.found

    def _apply_journal(self, size: int, patience: float) -> None:
        lock = WriterLock(self.path / directory.WRITER)
        try:
            lock.acquire(patience)
            self._lmdb, self._map_lock = map_lock.open_held(self.generation, map_size=size, max_dbs=MAX_DATABASES,
                                                            max_readers=self.max_readers, max_spare_txns=0)
            journal.apply_what_is_due(self._lmdb, self.generation / directory.DATA)
        finally:
            self._close_map()
            lock.close()

    def _follow(self) -> None:
        """Map the newer generation that has come between mapping this one and being known."""
        if self._successor() is not None:
            self._close_map()
            self._open_map(self._wanted_map_size or _affordable_map_size())

    def _has_more_to_show(self) -> bool:
        assert self._lmdb is not None
        data = self.generation / directory.DATA
        if not os.access(data, os.W_OK):
            return False
        kept = journal.find(self._lmdb, data)
        if kept is None:
            return False
        try:
            return journal.is_due(self._lmdb, kept)
        finally:
            kept.close()

    def _open_map(self, size: int) -> None:
        """Map the generation in force: what CURRENT names, or what its mark leads to."""
        wanted = directory.generation(self.path)
        left = _MOST_MOVES
        while True:
            try:
                self._map_generation(wanted, size)
            except (lmdb.Error, StoreError, OSError):
                self._close_map()
                missed, wanted = wanted, directory.generation(self.path)
                left -= 1
                if missed == wanted or not left:
                    raise
                continue  # it was removed in this moment, since a newer one is in force
            self.generation = wanted
            newer = self._successor()
            if newer is None:
                return
            self._close_map()
            wanted = self.path / newer

    def _successor(self) -> str | None:
        self.checked = -1
        with self._begin_read() as txn:
            return generation.successor(txn.get)

    def _begin_read(self) -> Any:
        """A read for the opening, before anybody else can begin one."""
        assert self._lmdb is not None
        while True:
            try:
                return self._lmdb.begin()
            except lmdb.MapResizedError:
                self._adopt()

    def _map_generation(self, generation: Path, size: int) -> None:
        meta_pages.require_sound(generation, self.readonly)
        self.enough_for = -1
        self.forget_room()
        if self.max_map_size is not None:
            size = min(size, self.max_map_size)
        at_rest = directory.is_snapshot(self.path)
        if at_rest and not self.readonly:
            raise ReadOnlyStore(
                f"{self.path} is a snapshot, which nobody may change. Open it with readonly=True, or make a "
                "store of it with 'raxlog restore'."
            )
        lockless = self.readonly and (at_rest or not directory.can_register(generation))
        while True:
            try:
                self._lmdb, self._map_lock = map_lock.open_held(
                    generation, map_size=size, readonly=self.readonly, lock=not lockless,
                    metasync=self.durability != "relaxed" and not self.flushes_meta_itself,
                    # No spare transactions: a fork would leave their reader slots in doubt.
                    max_readers=self.max_readers, max_dbs=MAX_DATABASES, max_spare_txns=0,
                )
                break
            except lmdb.MapResizedError:
                continue  # another process grew the file between two steps of the opening: again
            except lmdb.MemoryError:
                if size <= 1 << 24:
                    raise
                size //= 2  # the address space is limited (ulimit -v, 32 bits): reserve less
        self.lock_inode = 0 if lockless else os.stat(generation / directory.LOCK).st_ino
        self._files.follow(generation, directory.LOCK, directory.DATA)

    def _read_store_record(self) -> None:
        with self._begin_read() as txn:
            value = txn.get(STORE_KEY)
        if value is None:
            raise NotAStore(f"{self.path} holds an LMDB file, but no raxlog store is in it.")
        row = records.unseal(STORE_KEY, value)
        if row[0] > FORMAT:
            raise UnsupportedFormat(
                f"{self.path} is a store of format {row[0]}; this raxlog reads up to {FORMAT}. "
                "Open it with a newer raxlog."
            )
        self.uuid: bytes = row[1]  # 16 bytes that no other store has
        self.created_ms: int = row[2]
        self.settings: dict[str, Any] = row[4]

    def _open_journal(self) -> None:
        """Find the journal, make it where it is wanted, and do again what a power cut has undone."""
        while True:
            try:
                self._settle_journal()
                return
            except lmdb.MapResizedError:
                self._adopt()
            except lmdb.MapFullError:
                if not self.grow():
                    raise

    def _settle_journal(self) -> None:
        assert self._lmdb is not None
        assert self.presence is not None
        data = self.generation / directory.DATA
        found = journal.find(self._lmdb, data)
        cut = closing.is_cut(self.presence.found)
        try:
            if found is None and self.flushes_meta_itself:
                with self._sole_writer():
                    found = journal.find(self._lmdb, data) or journal.make(self._lmdb, data)
            elif found is not None and cut:
                with self._sole_writer():
                    journal.replay(self._lmdb, found)
                    journal.renew_metas(self._lmdb)
            elif found is not None and journal.is_due(self._lmdb, found):
                # Of a call under way, in a process that is alive, or of a killed one. The lock may be held by another
                # opening, which applies it: this one must not show less, and then what no living process has written.
                with contextlib.suppress(LockTimeout), self._sole_writer(_MOMENT):
                    journal.replay(self._lmdb, found)
            if self.flushes_meta_itself:
                self.journal, found = found, None
        finally:
            if found is not None:
                found.close()

    def lock_writer(self, timeout: float) -> None:
        """Take the writer's lock, and see that the files which are open are in place. About 4 µs.

        What can be made again is, else StoreError. LockTimeout after ``timeout`` seconds.
        """
        lock, files = self.lock, self._files
        if lock is None:
            self.live()
            lock = self.lock
            assert lock is not None
        lock.acquire(timeout)
        try:
            while True:
                poll = files.poll
                missing = files.missing() if poll is None or poll(0) else []
                if not missing:
                    return
                if directory.WRITER in missing:
                    lock.reopen()
                    files.add(directory.WRITER)
                    lock.acquire(timeout)
                elif directory.WAKE in missing:
                    self._open_wake()
                else:
                    raise StoreError(
                        f"{self.path / missing[0]} has been deleted or replaced while the store is in use: what this "
                        "process wrote now could be lost, or damage the store. End every process that has the store "
                        "open, run 'raxlog check', and open it again."
                    )
        except BaseException:
            lock.release()
            raise

    def is_lock_awaited(self) -> bool:
        """Whether the writer's lock is to be given up soon: another process waits for it, or a file is gone."""
        return self.lock is not None and (self.lock.is_awaited() or bool(self._files.missing()))

    def _open_wake(self) -> None:
        if self.wake is not None:
            self.wake.close()
        self.wake = disk.open_file(self.path / directory.WAKE, os.O_WRONLY | os.O_CREAT)
        self._files.add(directory.WAKE)

    @contextlib.contextmanager
    def _sole_writer(self, patience: float = _PATIENCE) -> Iterator[None]:
        assert self.lock is not None
        self.lock_writer(patience)
        try:
            yield
        finally:
            self.lock.release()

    def _close_map(self) -> None:
        if self._lmdb is not None:
            self._lmdb.close()
            self._lmdb = None
        if self._map_lock is not None:
            self._map_lock.close()

    def _close_files(self) -> None:
        self._close_map()
        if self.journal is not None:
            self.journal.close()
            self.journal = None
        if self.presence is not None:
            self.presence.close()
            self.presence = None
        if self.lock is not None:
            self.lock.close()
            self.lock = None
        self._files.close()
        if self.wake is not None:
            self.wake.close()

    def __reduce__(self) -> str:
        raise StoreError(
            f"the open store {self.path} cannot be pickled, nor can its streams: send its path, and open it there"
        )

    def close(self) -> None:
        """Wait for this process's readers and writer, flush what relaxed durability left, close.

        After an exception it is called again, and ends what is left.
        """
        if self.buffer_state is not None:
            self.buffer_state.close()
        self.closed = True
        with self.commits.leading, self.commits.writing:
            self.gate.shut(self._close_quietly)
        if self.waiting_state is not None:
            self.waiting_state.close()
        if self.leases_state is not None:
            self.leases_state.close()

    def _close_quietly(self) -> None:
        if self._lmdb is not None and not self.readonly:
            with contextlib.suppress(lmdb.Error):
                self._lmdb.sync(True)
        self._leave()
        self._close_files()
        self.commits.forget_warm()

    def _leave(self) -> None:
        if self.presence is not None:
            if self.failed_flush is None:
                self.presence.end()
            else:
                self.presence.close()  # its slot stays: the next opening looks
            self.presence = None

    def reopen(self) -> None:
        """Map the file anew, for an environment LMDB has declared unusable (MDB_PANIC)."""
        self.gate.shut(lambda: self._map_anew(self._wanted_map_size or _affordable_map_size()))

    def _map_anew(self, size: int) -> None:
        with self._opening:
            self._map(size)

    def _map(self, size: int) -> None:
        """Map the generation in force, and have its journal. The caller holds ``_opening``."""
        self.commits.forget_warm()
        try:
            self._close_map()
            self._open_map(size)
            data = self.generation / directory.DATA
            if self.journal is not None and self.journal.data != data:
                assert self._lmdb is not None
                old, self.journal = self.journal, journal.find(self._lmdb, data)
                old.close()
        except BaseException:
            self._close_map()  # what is mapped is mapped with all that goes with it: live() does it again
            raise

    def live(self) -> lmdb.Environment:
        """The LMDB environment, opened anew in a forked child; StoreClosed after close()."""
        if self._lmdb is None or self.closed:
            if self.closed:
                raise StoreClosed(f"the store {self.path} has been closed. Open it again.")
            if self._forked_inside:
                raise StoreError(
                    "this process was forked while a thread of its parent was inside a transaction on "
                    f"{self.path}, and cannot use that store. Fork outside of transactions, or spawn."
                )
            with self._opening:
                if self._lmdb is None and self.inherited:
                    self._open()
                    self.inherited = False
                elif self._lmdb is None:
                    self._map(self._wanted_map_size or _affordable_map_size())
        return self._lmdb  # type: ignore[return-value]


def _affordable_map_size() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return DEFAULT_MAP_SIZE
    return max(1 << 24, min(DEFAULT_MAP_SIZE, limit // 4 & ~0xFFFF))
