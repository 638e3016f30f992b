"""Transactions over tree and log: the overlay of what the tree has not yet, the views of both, and the one writer.

    rows     key -> newest version ─ older ─ older      a version without a value is a deletion
    order    the live keys, sorted

A View sees, of each key, the newest version up to its LSN, else the tree's value. Deleted keys are in ``rows`` alone: a
cursor of the tree that comes to one skips it. A key that both have is met on both sides at once, and the value in the
overlay counts. Older versions are kept while a view is open.

    gaps     first key of a run in the tree that the overlay has deleted whole -> (LSN, the key behind the run)

A queue deletes at its head, so each seek to its first key would step over all that has gone since the last checkpoint.
A gap holds for each view of its LSN and later, whatever snapshot it reads: what a newer snapshot has in the run came
from ``rows``, which still has it. An undone transaction may have made gaps that are none any more: all go with it.

The WriteTransaction writes its changes into the overlay under an LSN that nothing else sees, until commit() appends
their record:

    commit n            commit n + 1                 another process' commit
    warm: header, tail  found as they were left      another epoch: looked at again

A layer above keeps what it likes in ``warm``, to find it again in the next transaction. It is emptied whenever a
transaction is undone. What is found in it is true as far as this process' own commits go; where another one has
committed in between, ``epoch`` is another too.
"""

from __future__ import annotations

from bisect import bisect_left
from io import FileIO
from operator import itemgetter
from typing import Any, Protocol, Self

from raxlog.storage.errors import CorruptionError, RaxlogError
from raxlog.storage.tree import lmdb_errors

SOURCE_HASH = ""

MOST_KEY = 511  # LMDB's
_KEY = itemgetter(0)  # of a change: no two have the same


def run_of(key: bytes, value: bytes | None) -> int:
    """How many pages of its own LMDB gives the value."""
    if value is None or 8 + len(key) + len(value) <= 2038:
        return 0
    return (15 + len(value) >> 12) + 1


def mark_of(key: bytes) -> bytes:  # cimport
    """What is_foreign() knows a key by: all keys of a group have one mark."""
    return key[:8] + key[9:13]


class Version:
    """A value of a key from ``lsn`` on; None where it is deleted."""

    __slots__ = ("listed", "lsn", "older", "value")

    def __init__(self, lsn: int, value: bytes | None, older: Version | None, listed: bool) -> None:
        self.lsn: int = lsn
        self.value: bytes | None = value
        self.older: Version | None = older
        self.listed: bool = listed  # of the newest version: whether its key is in the order


version_of = Version  # cimport


class Overlay:
    """The changes of (floor, …] of one process."""

    __slots__ = ("__weakref__", "bytes", "floor", "freed", "gaps", "moves", "order", "readers", "rows", "runs",
                 "singles")

    def __init__(self, floor: int) -> None:
        self.floor: int = floor
        self.rows: dict[bytes, Version] = {}
        self.order: list[bytes] = []
        self.gaps: dict[bytes, tuple[int, bytes | None]] = {}
        self.moves: int = 0  # with each key that comes, goes, or gets a version: a cursor then seeks anew
        self.readers: int = 0
        self.bytes: int = 0  # of keys and values, as LMDB's leaves hold them, of the newest versions
        self.singles: int = 0
        self.runs: int = 0  # pages of the large ones among them: alone, and in runs
        self.freed: list[tuple[int, int]] = []  # LSN, pages of LMDB's that large values give back

    def write(self, key: bytes, value: bytes | None, lsn: int) -> Version | None:
        """Set or delete a key; the version before that of ``lsn``."""
        before = self.rows.get(key)
        if before is not None:
            self.count(key, before.value, -1)
        self.count(key, value, 1)
        if before is not None and before.lsn == lsn:
            if (before.value is None) != (value is None):
                self.moves += 1
            before.value = value
            version = before
            before = version.older
        else:
            version = self.rows[key] = version_of(lsn, value, before, before is not None and before.listed)
            self.moves += 1
        if value is not None and not version.listed:
            order = self.order
            at = len(order) if order and key > order[len(order) - 1] else bisect_left(order, key)
            if at == len(order):
                order.append(key)
            elif order[at] != key:  # an exception may have struck between these two
                order[at:at] = (key,)  # moves what is behind as one block; insert() goes item by item
            version.listed = True
            self.moves += 1
        return before

    def memory(self) -> int:
        """How many bytes its newest versions take, about."""
        return self.bytes + 4096 * (self.runs + self.singles) + 200 * len(self.rows)

    def count(self, key: bytes, value: bytes | None, sign: int) -> None:
        """Count a value in or out."""
        if value is not None:
            run = run_of(key, value)
            if run > 1:
                self.runs += sign * run
            else:
                self.singles += sign * run
            self.bytes += sign * (20 + len(key) + (8 if run else len(value)))

    def settle(self, touched: list[bytes]) -> None:
        """The changes are committed: older versions go, and deleted keys leave the order, where no view is open."""
        if self.readers:
            return
        for key in touched:
            version = self.rows[key]
            version.older = None
            if version.value is None and version.listed:
                version.listed = False
                self.unlist(key)

    def undo(self, touched: dict[bytes, Version | None], lsn: int) -> None:
        """The changes of ``lsn`` are not. May be broken off and rerun."""
        if not touched:
            return
        self.gaps.clear()
        for key in touched:
            version = self.rows.get(key)
            if version is not None and version.lsn == lsn:
                older = version.older
                if version.listed and (older is None or not older.listed):
                    self.unlist(key)
                if older is None:
                    del self.rows[key]
                else:
                    self.rows[key] = older
        self.moves += 1
        self.count_all()

    def count_all(self) -> None:
        """Count anew, after an exception that may have struck between two counts."""
        self.bytes = self.singles = self.runs = 0
        for key, version in self.rows.items():
            self.count(key, version.value, 1)

    def unlist(self, key: bytes) -> None:
        """Take a key out of the order, where it is in it."""
        at = bisect_left(self.order, key)
        if at < len(self.order) and self.order[at] == key:
            del self.order[at]
        self.moves += 1

    def pruned(self, floor: int) -> Overlay:
        """A copy without the rows at or below ``floor``; views that are open keep this object."""
        fresh = Overlay(floor)
        for key, version in self.rows.items():
            if version.lsn > floor:
                listed = version.value is not None
                fresh.rows[key] = Version(version.lsn, version.value, None, listed)
                fresh.count(key, version.value, 1)
                if listed:
                    fresh.order.append(key)
        fresh.order.sort()
        fresh.freed = [each for each in self.freed if each[0] > floor]
        return fresh

    def changes(self, after: int, upto: int) -> list[tuple[bytes, bytes | None]]:
        """The newest changes in (after, upto], by key, for one who is counted among the readers."""
        found = []
        for key, newest in self.rows.copy().items():  # another thread may be writing
            version: Version | None = newest
            while version is not None and version.lsn > upto:
                version = version.older
            if version is not None and version.lsn > after:
                found.append((key, version.value))
        found.sort(key=_KEY)
        return found


class View:
    """What a transaction sees: LMDB's snapshot, and the overlay up to an LSN. Closed by abort()."""

    __slots__ = ("__weakref__", "log", "overlay", "raw", "rest", "rows", "upto", "writes")

    def __init__(self, log: Any, raw: Any, overlay: Overlay, writes: bool) -> None:
        self.stand(log, raw, overlay, writes)

    def stand(self, log: Any, raw: Any, overlay: Overlay, writes: bool) -> None:
        """Begin to see. By itself, since the kernel calls it without making a tuple of arguments."""
        self.log: Any = log  # None once it has ended
        self.raw: Any = raw
        self.rest: FileIO | None = None  # to be closed with it
        self.overlay: Overlay = overlay
        self.rows: dict[bytes, Version] = overlay.rows
        self.writes: bool = writes
        if writes:
            self.upto: int = log.pos + 1
        else:
            overlay.readers += 1  # first: from here on what this view sees is kept
            self.upto = log.pos

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.log is not None:
            self.abort()

    def id(self) -> int:
        """The LSN up to which it sees."""
        return self.upto

    def lmdb(self) -> Any:
        """LMDB's transaction; of the write transaction begun where it is first needed."""
        if self.raw is None:
            self.raw = self.log.snapshot()
        return self.raw

    def get(self, key: bytes, default: Any = None) -> Any:
        """The value of a key."""
        version = self.rows.get(key)
        while version is not None and version.lsn > self.upto:
            version = version.older
        if version is not None:
            return version.value
        if self.raw is None:
            self.lmdb()
        return self.raw.get(key)

    def cursor(self) -> Any:
        """A cursor over what it sees."""
        return self.log.cursor(self)

    def put(self, key: bytes, value: bytes, overwrite: bool = True) -> bool:
        """A view reads only."""
        raise lmdb_errors.ReadonlyError("a view reads only")

    def delete(self, key: bytes) -> bool:
        """A view reads only."""
        raise lmdb_errors.ReadonlyError("a view reads only")

    def release(self) -> None:
        """End LMDB's transaction, which is begun again where it is needed."""
        raw = self.raw
        self.raw = None
        if raw is not None:
            raw.abort()

    def abort(self) -> None:
        """End the read: LMDB's transaction, and what the log keeps for it."""
        raw = self.raw
        self.raw = None
        if self.log is not None:
            self.log = None
            if not self.writes:
                self.overlay.readers -= 1
        if raw is not None:
            raw.abort()
        if self.rest is not None:
            self.rest.close()

    def __del__(self) -> None:
        if self.log is not None:
            self.abort()


class Flushable(Protocol):
    """What a layer above keeps in memory during a transaction and writes at its end."""

    def flush(self, txn: WriteTransaction) -> None:
        """Put everything changed into the transaction, and leave ``txn.dirty``."""


class WrittenLog(Protocol):
    """The log, as far as its write transaction knows it."""

    pos: int
    transaction: WriteTransaction | None
    foreign: dict[bytes, int]
    foreign_all: int

    def snapshot(self) -> Any:
        """A read of LMDB's."""

    def cursor(self, view: View) -> Any:
        """A cursor over what a view sees."""

    def commit(self, txn: WriteTransaction) -> None:
        """Have a transaction's changes count."""

    def undo(self, txn: WriteTransaction) -> None:
        """End a transaction whose changes do not count, unless they do."""


class WriteTransaction(View):
    """The write transaction. Begun by the log, and ended by Commits.

    ``dirty``    those objects of the layers above that must be flushed before the commit
    ``changes``  counts changes. It moves *before* anything is changed, in memory too, so that an exception between two
                 steps finds it moved: see is_untouched()
    ``touched``  the keys changed, with the version before
    """

    __slots__ = ("changes", "dirty", "env", "epoch", "touched", "warm", "written")

    def __init__(self, log: WrittenLog, overlay: Overlay) -> None:
        self.stand(log, None, overlay, True)
        self.env: Any = None  # the engine's environment, from keep() on
        self.warm: dict[Any, Any] = {}
        self.epoch: int = 0
        self.dirty: dict[Any, Flushable] = {}
        self.changes: int = 0
        self.touched: dict[bytes, Version | None] = {}
        self.written: int = -1  # where its record lies in the ring

    def keep(self, env: object, warm: dict[Any, Any], epoch: int) -> None:
        """Give it what is kept from one to the next."""
        self.env = env
        self.warm = warm
        self.epoch = epoch

    def put(self, key: bytes, value: bytes, overwrite: bool = True) -> bool:
        """Store a value. False, and nothing done, if the key is there and overwrite is off."""
        self.changes += 1
        if not 0 < len(key) <= MOST_KEY:  # the checkpoint could not take it
            raise lmdb_errors.BadValsizeError(f"a key of {len(key)} bytes")
        if not overwrite and self.get(key) is not None:
            return False
        if key not in self.touched:  # what was there before: an exception may strike from here on
            self.touched[key] = self.rows.get(key)
        self.overlay.write(key, value, self.upto)
        return True

    def delete(self, key: bytes) -> bool:
        """Delete a key. False if it was not there."""
        self.changes += 1
        if self.get(key) is None:
            return False
        if key not in self.touched:
            self.touched[key] = self.rows.get(key)
        self.overlay.write(key, None, self.upto)
        return True

    def is_foreign(self, mark: bytes, since: int) -> bool:
        """Whether another process has changed a key with this mark (mark_of()) behind an LSN."""
        log = self.log
        return bool(log.foreign_all > since or log.foreign.get(mark, 0) > since)

    def is_untouched(self, before: int, error: BaseException) -> bool:
        """Whether an operation that has raised is known to have changed nothing since ``changes`` was ``before``.

        Only raxlog's own refusals are: they come before the first change. Any other exception may come
        from outside, between any two steps; and CorruptionError in the middle of loading what is kept warm.
        """
        return (self.changes == before and isinstance(error, RaxlogError) and not isinstance(error, CorruptionError))

    def flush(self) -> None:
        """Write out everything that is still only in memory."""
        for item in [item for item in self.dirty.values()]:  # noqa: C416 - list() costs three times as much in C
            item.flush(self)  # takes itself out of dirty

    def abort(self) -> None:
        """End it. What has not been committed is undone. Harmless after a commit."""
        log = self.log
        if log is not None and log.transaction is self:
            log.undo(self)
        View.abort(self)


write_over = WriteTransaction  # cimport
