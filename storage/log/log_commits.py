"""Commits on the log: the write transaction changes the overlay, and its commit appends one record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lmdb
from raxlog.storage import crash_point as crash_points
from raxlog.storage.commit.commits import Call, Commits  # cimport
from raxlog.storage.commit.write_transaction import WriteTransaction  # cimport
from raxlog.storage.errors import StoreError

from .log import Log  # cimport
from .overlay import Version, View  # cimport
from .room import Room  # cimport

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE_HASH = ""


class LogTransaction(WriteTransaction):
    """A write transaction on the log."""

    __slots__ = ("log", "overlay", "touched", "view")

    def __init__(self, env: Any, view: View, warm: dict[Any, Any], epoch: int, log: Log) -> None:
        WriteTransaction.__init__(self, env, view, warm, epoch)  # type: ignore[arg-type]
        self.view = view
        self.log = log
        self.overlay = view.overlay
        self.touched: dict[bytes, Version | None] = {}

    def put(self, key: bytes, value: bytes, overwrite: bool = True) -> bool:
        """Store a value. False, and nothing done, if the key is there and overwrite is off."""
        if not overwrite and self.view.get(key) is not None:
            return False
        self.changes += 1
        self.touched[key] = self.overlay.write(key, value, self.view.upto)
        return True

    def delete(self, key: bytes) -> bool:
        """Delete a key. False if it was not there."""
        if self.view.get(key) is None:
            return False
        self.changes += 1
        self.touched[key] = self.overlay.write(key, None, self.view.upto)
        return True

    def pages(self) -> int:
        """Not known here."""
        self.flush()
        return 0


class LogCommits(Commits):
    """The commit state of one environment, on the log."""

    __slots__ = ("log", "transaction")

    def __init__(self, env: Any) -> None:
        Commits.__init__(self, env)
        self.log: Any = None
        self.transaction: Any = None

    def begin(self) -> Iterator[WriteTransaction]:
        """A write transaction, for a loop of one turn."""
        log = self.log
        if log is None or log.closed:
            self.env.live()
            log = self.log = self.env.map.log  # type: ignore[attr-defined]
        if self.map.failed_flush is not None:
            raise StoreError(f"a flush of {self.env.path} to disk has failed ({self.map.failed_flush})")
        if self.transaction is not None:  # an exception has left it
            self.drop(self.transaction)
        while True:
            try:
                view = log.write()
                break
            except lmdb.MapResizedError:
                self.map.adopt_size()
        if view.upto - 1 != self.warm_id:
            self.epoch += 1
        if len(self.warm) > 1 << 14:
            self.warm = {}
        self.open_write = view
        txn = self.transaction = LogTransaction(self.env, view, self.warm, self.epoch, log)
        yield txn
        if self.transaction is txn:
            self.drop(txn)

    def drop(self, txn: LogTransaction) -> None:
        """Undo what is open."""
        self.transaction = None
        if txn.log.pos == txn.view.upto - 1:  # its record does not count, or has not been taken in
            txn.overlay.undo(txn.touched, txn.view.upto)
        txn.view.abort()
        txn.log.writing = False

    def commit(self, txn: WriteTransaction, calls: list[Call]) -> None:
        """Append the record of what the calls have changed."""
        mine: LogTransaction = txn  # type: ignore[assignment]
        log = mine.log
        if txn.changes == 0:
            self.warm_id = mine.view.upto - 1
        else:
            self.committing = (txn.id, calls)
            if crash_points.listener is not None:
                crash_points.crash_point("commit.before")
            txn.flush()
            room: Room = log.room
            freed = room.note_freed(mine)
            mine.view.release()  # the map may grow
            if freed:
                mine.overlay.freed.append((mine.view.upto, freed))
            if room.fits(mine.overlay) or self.fits_alone(mine):
                log.append(mine.touched, mine.view, freed)
            else:
                room.direct += 1
                log.append_directly(mine.view)
            self.warm_id = log.pos
            if crash_points.listener is not None:
                crash_points.crash_point("commit.after")
            self.wake_readers(log.pos)
        self.transaction = None
        mine.view.abort()
        log.writing = False
        self.open_write = None
        for call in calls:
            call.done = True
        self.committing = None

    def fits_alone(self, txn: LogTransaction) -> bool:
        """Whether it fits once all before it is in LMDB."""
        txn.log.checkpoint(True)
        return bool(txn.log.room.fits(txn.overlay.pruned(txn.view.upto - 1)))

    def abort(self, txn: WriteTransaction) -> None:
        """Undo everything, also what was kept warm."""
        self.forget_warm()
        if self.transaction is txn:
            self.drop(txn)
        self.open_write = None

    def pay_flush(self) -> None:
        """Nothing is owed."""
        self.owes_flush = False

    def age_free_pages(self) -> bool:
        """Have LMDB use again what has been freed."""
        try:
            self.log.age()
        except lmdb.Error:
            return False
        return True

