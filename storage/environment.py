"""The environment: one LMDB map per store and process, used by all threads.

        read()      many at once, behind the gate (gate.py)
        write       one at a time, behind the writer's lock (commit.py)
        grow()      beside no read and no write (store_map.py)

After a fork the child must not touch the parent's environment, nor may it leave it open. A
hook before the fork waits until no transaction is open here, the one in the child closes the
inherited copy and makes the locks anew; the child's first transaction opens its own. (To
close a copy of an open transaction is to wait for the parent's thread, or to free its slot.)

Locks are taken in this order: leading, writing, the gate's bar, opening.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

import lmdb

from . import faults, generation
from .ahead import SPARE_DISK, Ahead
from .closing import Presence
from .errors import StoreError, TransactionError
from .gate import ReadTransaction
from .journal import Record
from .store_map import StoreMap

FORK_PATIENCE = 2.0  # seconds


class Environment(StoreMap):
    """One store's LMDB environment in this process. Made and closed by sharing.py."""

    # -- forking ------------------------------------------------------------------------

    def before_fork(self) -> list[Any]:
        """Let no transaction be open in the moment of the fork; the locks to give back.

        Waits two seconds at most: for one that a thread keeps open longer than that, the
        child is told that it cannot use this store.
        """
        if self.buffer_state is not None:
            self.buffer_state.before_fork()
        held: list[Any] = []
        locks: list[Any] = [self.writing, self.gate.bar, self._opening]
        if self.transaction_thread == threading.get_ident():
            locks.remove(self.writing)  # its own thread forks, and would wait for itself
        for lock in locks:
            if lock.acquire(timeout=FORK_PATIENCE):
                held.append(lock)
        self.gate.is_shut = True
        self._forked_inside = not (len(held) == len(locks) and self.gate.drain(FORK_PATIENCE))
        return held

    def after_fork_in_parent(self, held: list[Any]) -> None:
        """Let transactions begin again."""
        if self.buffer_state is not None:
            self.buffer_state.after_fork_in_parent()
        self._forked_inside = self.gate.is_shut = False
        for lock in held:
            lock.release()

    def after_fork_in_child(self) -> None:
        """Close the inherited environment, make every lock anew."""
        unclean = self._forked_inside
        if self.waiting_state is not None:
            self.waiting_state.forget()
            self.waiting_state = None
        if self.buffer_state is not None:
            self.buffer_state.after_fork_in_child()
        self._reset_locks()
        self._forked_inside = unclean
        self.inherited = True
        self.warm = {}
        self.warm_id = -1
        self.ahead = None  # the parent's: who opens the store here finds it in the journal
        if unclean and self._lmdb is not None:
            # Closing it would wait for a thread that is not here, even at the child's exit.
            import ctypes  # noqa: PLC0415 - hardly any process comes here

            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._lmdb))
            self._lmdb = None
        self._close_files()

    # -- transactions -------------------------------------------------------------------

    def read(self) -> ReadTransaction:
        """A read transaction, as a context manager: ``with env.read() as txn``. About 0.7 µs.

        Not to be nested in one thread: growth would wait for the outer, the inner for growth.
        """
        return ReadTransaction(self)

    def begin_write(self) -> lmdb.Transaction:
        """Begin LMDB's write transaction. The caller holds the writer's lock, and ``writing``."""
        while True:
            try:
                self.open_write = raw = self.live().begin(write=True)
                if raw.id() - 1 == self.warm_id or generation.successor(raw.get) is None:
                    return raw
                raw.commit()  # empty: writes nothing
                self.open_write = None
                self.go_over()
            except lmdb.MapResizedError:
                self.adopt_map_size()
            except lmdb.PanicError:
                self.reopen()
            except lmdb.Error as error:
                raise faults.meaning(self.path, error) from error

    def go_over(self) -> None:
        """Map the generation that has superseded this one. The caller holds ``writing``."""
        try:
            self.gate.shut(lambda: self._map_anew(int(self.live().info()["map_size"])))
        except (OSError, lmdb.Error) as error:
            raise faults.cannot_open(self.path, error, self.readonly) from error

    def is_in_force(self, txn: lmdb.Transaction) -> bool:
        """Whether the generation a read has begun in had no mark then. Asked once for each commit."""
        number = txn.id()
        if number != self.warm_id and generation.successor(txn.get) is not None:
            return False
        self.checked = number
        return True

    def leave_superseded(self, map_read: lmdb.Environment) -> None:
        """Go over, for a read that has found the mark in ``map_read`` and has ended."""
        if self.transaction_thread == threading.get_ident():
            raise TransactionError(f"{self.path} is being compacted by this thread; read from it once that has ended")
        with self.writing:
            if self._lmdb is map_read:
                self.go_over()

    def has_committed(self, transaction_id: int) -> bool:
        """Whether that transaction of the leader is in the file, after an error has hidden it."""
        return self._lmdb is not None and bool(self._lmdb.info()["last_txnid"] >= transaction_id)

    def pay_flush(self) -> None:
        """Flush the meta page of a commit that has no record in the journal."""
        assert self._lmdb is not None
        self._lmdb.sync(True)
        self.owes_flush = False

    def strike_out(self) -> None:
        """After a commit that did not come to its end: its record in the journal must not count."""
        kept = self.journal
        if kept is not None and kept.written is not None:
            record, ahead = kept.written, self.ahead
            counts = ahead is not None and ahead.last is record
            if counts or self.has_committed(record.transaction):
                kept.written = None
            else:
                with contextlib.suppress(OSError):  # the next transaction has its number, and its slot
                    kept.strike_out()

    # -- ahead of the map (ahead.py) ----------------------------------------------------

    def run_ahead(self, record: Record, changes: dict[bytes, bytes | None]) -> bool:
        """Let a record be all there is of a commit. False: it needs LMDB's.

        The caller holds the writer's lock. When it returns True the commit is on disk, and counts.
        """
        kept, presence, before = self.journal, self.presence, self.ahead
        if kept is None or not isinstance(presence, Presence) or self.durability != "commit":
            return False
        if self.gate.inside or not self.streak.goes_on():
            return False
        if before is None and not self._has_spare_disk():
            return False  # a read could not be given what is ahead if LMDB had no room for it
        if before is None:
            ahead = Ahead(self.generation, record, changes, 1)
        else:
            ahead = Ahead(self.generation, record, before.changes | changes, before.commits + 1)
        if not ahead.has_room():
            return False
        # Who came before the last look has been seen, who comes later sees the record. The first spares
        # a flush; with some commits ahead already it would hardly ever tell more than the last one's.
        if (before is not None or presence.is_alone()) and kept.write_through(record) and presence.is_alone():
            self.ahead = ahead  # from here on it counts
            kept.written = None
            if self.waiting_state is not None:
                self.wake_readers(record.transaction)
            return True
        self.streak.not_alone()
        return False

    def _has_spare_disk(self) -> bool:
        disk = os.fstatvfs(self._wake)
        return disk.f_bavail * disk.f_frsize >= SPARE_DISK

    def to_be_put_first(self, number: int) -> Ahead | None:
        """What a write transaction of that number begins with. None also where others have applied it."""
        ahead = self.ahead
        if ahead is None or (ahead.last.transaction == number and ahead.generation is self.generation):
            return ahead
        if ahead.generation == self.generation:
            if ahead.last.transaction == number:
                return ahead
            if ahead.last.transaction > number:
                raise StoreError(
                    f"{self.path} has lost transactions {number} to {ahead.last.transaction - 1}, which were on disk: "
                    "the disk fails. Close the store; what can be read of it 'raxlog salvage' makes a new one of"
                )
        self.ahead = None
        return None

    def caught_up(self, ahead: Ahead) -> None:
        """What was ahead has been committed."""
        self.ahead = None
        self.streak.ended(ahead)

    def cure_read(self, error: lmdb.Error) -> None:
        """Do what lets a read begin after this error; raise where nothing does."""
        if isinstance(error, lmdb.MapResizedError):
            self.adopt_map_size()
        elif isinstance(error, lmdb.PanicError):
            with self.writing:
                self.reopen()
        elif not isinstance(error, lmdb.ReadersFullError) or not self.live().reader_check():
            raise faults.meaning(self.path, error) from error

    # -- the rest -----------------------------------------------------------------------

    def wake_readers(self, transaction_id: int) -> None:
        """Tell sleeping readers, in any process, that a commit is visible. About 0.7 µs.

        The content is never trusted, only the event counts; a failure costs a reader at most
        its safety period, so it is not worth failing a write that is already on disk.
        """
        try:
            os.pwrite(self._wake, transaction_id.to_bytes(8, "little"), 0)
        except OSError:
            return

    def flush(self) -> None:
        """Force everything committed to disk; after it even a power cut loses none of it."""
        with self.leading:
            try:
                self.live().sync(True)
            except lmdb.Error as error:
                raise faults.meaning(self.path, error) from error

    def moment(self, txn: Any) -> int:
        """A number for what this read sees: as no other state of the store has. LMDB's own
        begins again with each generation."""
        return int(self.generation.name) << 64 | int(txn.id())

    def last_transaction_id(self) -> int:
        """The number of the newest commit that a reader can see."""
        with self.read() as txn:
            return int(txn.id())
