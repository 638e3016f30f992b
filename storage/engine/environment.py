"""The environment: one LMDB map per store and process, used by all threads.

        read()      many at once, behind the gate (reader_gate.py)
        write       one at a time, behind the writer's lock (commit/commits.py)
        grow()      beside no read and no write (store_map.py)

After a fork the child must not touch the parent's environment, nor may it leave it open. A
hook before the fork waits until no transaction is open here, the one in the child closes the
inherited copy and makes the locks anew; the child's first transaction opens its own. (To
close a copy of an open transaction is to wait for the parent's thread, or to free its slot.)

Locks are taken in this order: leading, writing, the gate's bar, opening.
"""

from __future__ import annotations

import contextlib
from collections import deque
from operator import methodcaller
from typing import Any

import lmdb

from ..errors import TransactionError
from ..files import generation, lmdb_errors, map_lock
from ..files.presence import Presence
from .reader_gate import ReadTransaction
from .store_map import StoreMap

FORK_PATIENCE = 2.0  # seconds
ACQUIRE = methodcaller("acquire", True, FORK_PATIENCE)


class Environment(StoreMap):
    """One store's LMDB environment in this process. Made and closed by registry.py."""

    # -- forking ------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Let no transaction be open in the moment of the fork; the locks to give back.

        Waits two seconds at most: for one that a thread keeps open longer than that, the
        child is told that it cannot use this store.
        """
        if self.buffer_state is not None:
            self.buffer_state.before_fork()
        locks: list[Any] = [self.commits.writing, self.gate.bar, self._opening]
        if self.commits.in_own_transaction():
            locks.remove(self.commits.writing)  # its own thread forks, and would wait for itself
        # C's alone, as giving them back is: no exception comes between a lock and its place in the list.
        self._fork_locks.extend(filter(ACQUIRE, [lock for lock in locks if lock not in self._fork_locks]))
        self._forked_inside = not (len(self._fork_locks) == len(locks) and self.gate.drain(FORK_PATIENCE))

    def after_fork_in_parent(self) -> None:
        """Let transactions begin again."""
        if self.buffer_state is not None:
            self.buffer_state.after_fork_in_parent()
        self._forked_inside = False
        release_all(self._fork_locks)

    def after_fork_in_child(self) -> None:
        """Close the inherited environment, make every lock anew."""
        unclean = self._forked_inside
        self._fork_locks = []
        if self.waiting_state is not None:
            self.waiting_state.forget()
            self.waiting_state = None
        if self.leases_state is not None:
            self.leases_state.forget()
        if self.buffer_state is not None:
            self.buffer_state.after_fork_in_child()
        self._reset_locks()
        self._forked_inside = unclean
        self.inherited = True
        if unclean and self._lmdb is not None:
            # Closing it would wait for a thread that is not here, even at the child's exit.
            import ctypes  # noqa: PLC0415 - hardly any process comes here

            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._lmdb))
            self._lmdb = None
        map_lock.part_from_parent(self.lock_inode)
        self._close_files()

    # -- transactions -------------------------------------------------------------------

    def read(self) -> ReadTransaction:
        """A read transaction, as a context manager: ``with env.read() as txn``. About 0.7 µs.

        Not to be nested in one thread: growth would wait for the outer, the inner for growth.
        """
        return ReadTransaction(self)

    def go_over(self) -> None:
        """Map the generation that has superseded this one. The caller holds ``writing``."""
        try:
            self.gate.shut(lambda: self._map_anew(int(self.live().info()["map_size"])))
        except (OSError, lmdb.Error) as error:
            raise lmdb_errors.cannot_open(self.path, error, self.readonly) from error

    def is_in_force(self, txn: lmdb.Transaction) -> bool:
        """Whether the generation a read has begun in had no mark then. Asked once for each commit."""
        number = txn.id()
        if number != self.commits.warm_id and generation.successor(txn.get) is not None:
            return False
        self.checked = number
        return True

    def leave_superseded(self, map_read: lmdb.Environment) -> None:
        """Go over, for a read that has found the mark in ``map_read`` and has ended."""
        if self.commits.in_own_transaction():
            raise TransactionError(f"{self.path} is being compacted by this thread; read from it once that has ended")
        with self.commits.writing:
            if self._lmdb is map_read:
                self.go_over()

    def has_committed(self, transaction_id: int) -> bool:
        """Whether that transaction of the leader is in the file, after an error has hidden it."""
        return self._lmdb is not None and bool(self._lmdb.info()["last_txnid"] >= transaction_id)

    def note_failure(self, error: lmdb.Error) -> None:
        """After an error in a commit or a flush. Where the disk has failed, write nothing more.

        What the system could not flush it takes for flushed from then on. A later commit, whose own flush
        succeeds, would stand on disk beside a meta page that never came there.
        """
        if self.failed_flush is None and lmdb_errors.is_disk_failure(self.path, error):
            self.failed_flush = error
            if isinstance(self.presence, Presence):
                self.presence.doubt()

    def cure_read(self, error: lmdb.Error) -> None:
        """Do what lets a read begin after this error; raise where nothing does."""
        if isinstance(error, lmdb.MapResizedError):
            self.adopt_map_size()
        elif isinstance(error, lmdb.PanicError):
            with self.commits.writing:
                self.reopen()
        elif not isinstance(error, lmdb.ReadersFullError) or not self.live().reader_check():
            raise lmdb_errors.meaning(self.path, error) from error

    # -- the rest -----------------------------------------------------------------------

    def flush(self) -> None:
        """Force everything committed to disk; after it even a power cut loses none of it."""
        with self.commits.leading:
            try:
                self.live().sync(True)
            except lmdb.Error as error:
                self.note_failure(error)
                raise lmdb_errors.meaning(self.path, error) from error

    def moment(self, txn: Any) -> int:
        """A number for what this read sees: as no other state of the store has. LMDB's own
        begins again with each generation."""
        return int(self.generation.name) << 64 | int(txn.id())

    def last_transaction_id(self) -> int:
        """The number of the newest commit that a reader can see."""
        with self.read() as txn:
            return int(txn.id())


def release_all(locks: list[Any]) -> None:
    """Empty a list of locks, giving each back as it leaves the list."""
    with contextlib.suppress(IndexError):
        deque(map(methodcaller("release"), iter(locks.pop, None)), 0)
