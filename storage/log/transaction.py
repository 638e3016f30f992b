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

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from io import FileIO
from typing import Any, Protocol, Self

from raxlog.storage.errors import CorruptionError, RaxlogError
from raxlog.storage.tree import lmdb_errors
from raxlog.storage.trees.rax import disorder

SOURCE_HASH = ""

MOST_KEY = 511  # LMDB's
NEXT = b"\0"  # key + NEXT is the first byte string behind key
BEHIND = b"\xff" * 512  # behind all keys: LMDB's have up to 511 bytes
SHORT = 8  # keys: a run that is stepped over faster than looked up
MOST_GAPS = 1000


def seek(cursor: Any, full: bytes, before: bool = False) -> bytes | None:
    """Stand on the least key >= ``full`` of LMDB's; ``before``: on the greatest before it. That key, or None.

    LMDB looks for a key by halves, and has no checksum over its pages: one row that shows a wrong key sends the search
    to the wrong side of it, and all rows between there and the right place are missed. The search ends beside that
    row, for all other rows lead it back there. So these show it:

        k[-2] < k[-1] < full <= k[0] < k[1]

    CorruptionError where that does not hold. Six steps of a cursor, a third of a microsecond.
    """
    key: bytes | None = None
    if cursor.set_range(full):
        key = cursor.key()
        if key < full:
            raise disorder(key, full)
        if not cursor.next():
            cursor.last()
        elif cursor.key() <= key:
            raise disorder(cursor.key(), key)
        else:
            cursor.prev()
    if not (cursor.last() if key is None else cursor.prev()):  # there is none before it
        if not before:
            cursor.first()
            return key
        return None
    last: bytes = cursor.key()
    if last >= full:
        raise disorder(full, last)
    if cursor.prev():
        if cursor.key() >= last:
            raise disorder(last, cursor.key())
        cursor.next()
    else:
        cursor.first()
    if before:
        return last
    if key is not None:
        cursor.next()
    return key


def run_of(key: bytes, value: bytes | None) -> int:
    """How many pages of its own LMDB gives the value."""
    if value is None or 8 + len(key) + len(value) <= 2038:
        return 0
    return (15 + len(value) >> 12) + 1


class Version:
    """A value of a key from ``lsn`` on; None where it is deleted."""

    __slots__ = ("listed", "lsn", "older", "value")

    def __init__(self, lsn: int, value: bytes | None, older: Version | None, listed: bool) -> None:
        self.lsn: int = lsn
        self.value: bytes | None = value
        self.older: Version | None = older
        self.listed: bool = listed  # of the newest version: whether its key is in the order


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
            version = self.rows[key] = Version(lsn, value, before, before is not None and before.listed)
            self.moves += 1
        if value is not None and not version.listed:
            order = self.order
            at = len(order) if order and key > order[len(order) - 1] else bisect_left(order, key)
            if at == len(order) or order[at] != key:  # an exception may have struck between these two
                order.insert(at, key)
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

    def settle(self, touched: dict[bytes, Version | None]) -> None:
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
        found.sort()
        return found


class LogCursor:
    """A cursor over both. It stands on the nearer of two candidates, LMDB's and the overlay's."""

    __slots__ = ("at", "both", "cursor", "forward", "here", "index", "moves", "on_lmdb", "other", "overlay", "rows",
                 "upto", "version")

    def __init__(self, cursor: Any, overlay: Overlay, upto: int) -> None:
        self.cursor: Any = cursor
        self.overlay: Overlay = overlay
        self.rows: dict[bytes, Version] = overlay.rows
        self.upto: int = upto
        self.here: bytes | None = None  # the key it stands on
        self.at: bytes | None = None  # LMDB's candidate
        self.both: bool = False  # whether the overlay has it too
        self.other: bytes | None = None  # the overlay's candidate, found at ``index`` of the order
        self.version: Version | None = None
        self.index: int = 0
        self.moves: int = -1
        self.forward: bool = True
        self.on_lmdb: bool = False

    def __enter__(self) -> LogCursor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the cursor of LMDB's that lies below."""
        self.cursor.close()

    def skip_from(self, key: bytes | None) -> None:
        """LMDB's candidate: ``key``, where its cursor stands, or the next that the overlay has not deleted."""
        cursor = self.cursor
        first: bytes | None = None  # of a run, forward
        steps = 0
        while key is not None:
            version = self.rows.get(key)
            while version is not None and version.lsn > self.upto:
                version = version.older
            if version is None or version.value is not None:
                self.both = version is not None
                break
            if not self.forward:
                key = cursor.key() if cursor.prev() else None
                continue
            if first is None:
                first = key
                gap = self.overlay.gaps.get(key)
                if gap is not None and gap[0] <= self.upto:
                    end = gap[1]
                    key = None if end is None else seek(cursor, end)
                    steps = SHORT
                    continue
            steps += 1
            key = cursor.key() if cursor.next() else None
        self.at = key
        if steps > SHORT and first is not None:
            gaps = self.overlay.gaps
            if len(gaps) >= MOST_GAPS:
                gaps.clear()
            gaps[first] = self.upto, key

    def skip_lmdb(self, found: bool) -> None:
        """The same after a move of LMDB's cursor."""
        self.skip_from(self.cursor.key() if found else None)

    def skip_overlay(self, index: int, bound: bytes) -> None:
        """Set the overlay's candidate: the first key >= ``bound``, or going backward the last key < ``bound``.

        ``index`` is the place of ``bound`` in the overlay's order, unless another thread has inserted or removed keys
        since. So its two neighbours are fetched in one step, which no thread can interrupt, and are compared with it.
        """
        order = self.overlay.order
        while True:
            before = 1 if index > 0 else 0  # whether there is a key on that side
            beside = order[index - before : index + 1]
            size = len(beside)
            if size < before or (before and beside[0] >= bound) or (size > before and beside[before] < bound):
                index = bisect_left(order, bound)
                continue
            self.index = index
            at = before if self.forward else before - 1
            if not 0 <= at < size:
                self.other = self.version = None
                break
            key = beside[at]
            version = self.rows.get(key)
            while version is not None and version.lsn > self.upto:
                version = version.older
            if version is not None and version.value is not None:
                self.other = key
                self.version = version
                break
            bound = key + NEXT if self.forward else key
            index += 1 if self.forward else -1
        self.moves = self.overlay.moves

    def pick(self) -> bool:
        """Stand on the nearer candidate.

        What both have is met on both sides at once, or LMDB's cursor has come to it a second time: it turned, where a
        gap lies, or a damaged page leads back. LMDB's value, which the overlay has replaced, is never shown.
        """
        while True:
            if self.at is None:
                self.on_lmdb = False
            elif self.other is None:
                self.on_lmdb = True
            else:
                self.on_lmdb = self.at < self.other if self.forward else self.at > self.other
            if not self.on_lmdb or not self.both:
                break
            self.skip_lmdb(self.cursor.next() if self.forward else self.cursor.prev())
        self.here = self.at if self.on_lmdb else self.other
        return self.here is not None

    def set_range(self, key: bytes) -> bool:
        """Stand on the first key from here on."""
        self.forward = True
        self.skip_from(seek(self.cursor, key))
        self.skip_overlay(bisect_left(self.overlay.order, key), key)
        return self.pick()

    def set_before(self, key: bytes) -> bool:
        """Stand on the last key before it. CorruptionError where a damaged page leads to another."""
        self.forward = False
        self.skip_from(seek(self.cursor, key, True))
        self.skip_overlay(bisect_left(self.overlay.order, key), key)
        found = self.pick()
        here = self.here
        if here is not None and here >= key:
            raise disorder(key, here)
        return found

    def set_key(self, key: bytes) -> bool:
        """Stand on this key."""
        if self.set_range(key) and self.here == key:
            return True
        self.here = None
        return False

    def first(self) -> bool:
        """Stand on the first key."""
        self.forward = True
        self.skip_lmdb(self.cursor.first())
        self.skip_overlay(0, b"")
        return self.pick()

    def last(self) -> bool:
        """Stand on the last key."""
        self.forward = False
        self.skip_lmdb(self.cursor.last())
        self.skip_overlay(len(self.overlay.order), BEHIND)
        return self.pick()

    def next(self) -> bool:
        """Step to the next key, or from nowhere to the first; whether there is one."""
        here = self.here
        if here is None:
            return self.first()
        if self.moves != self.overlay.moves:
            self.forward = True
            key = seek(self.cursor, here)
            if key is not None and key == here:
                self.skip_lmdb(self.cursor.next())
            else:
                self.skip_from(key)
            self.skip_overlay(bisect_right(self.overlay.order, here), here + NEXT)
        elif not self.forward:  # no seek: both candidates stand here or before, and a damaged key leads elsewhere
            self.forward = True
            self.skip_lmdb(self.cursor.first() if self.at is None else self.cursor.next())
            self.skip_overlay(bisect_right(self.overlay.order, here), here + NEXT)
        elif self.on_lmdb:
            self.skip_lmdb(self.cursor.next())
        else:
            if self.at == here:
                self.skip_lmdb(self.cursor.next())
            self.skip_overlay(self.index + 1, here + NEXT)
        return self.pick()

    def prev(self) -> bool:
        """Step to the key before, or from nowhere to the last; whether there is one."""
        here = self.here
        if here is None:
            return self.last()
        if self.moves != self.overlay.moves:
            self.forward = False
            cursor = self.cursor
            self.skip_from(seek(cursor, here, True))
            self.skip_overlay(bisect_left(self.overlay.order, here), here)
        elif self.forward:
            self.forward = False
            self.skip_lmdb(self.cursor.last() if self.at is None else self.cursor.prev())
            self.skip_overlay(bisect_left(self.overlay.order, here), here)
        elif self.on_lmdb:
            self.skip_lmdb(self.cursor.prev())
        else:
            if self.at == here:
                self.skip_lmdb(self.cursor.prev())
            self.skip_overlay(self.index - 1, here)
        return self.pick()

    def key(self) -> bytes:
        """The key it stands on; empty where it stands on none."""
        return b"" if self.here is None else self.here

    def value(self) -> bytes:
        """The value of the key it stands on; empty where it stands on none."""
        if self.here is None:
            return b""
        return self.cursor.value() if self.on_lmdb else self.version.value  # type: ignore

    def item(self) -> tuple[bytes, bytes]:
        """key() and value()."""
        return self.key(), self.value()

    def __iter__(self) -> Iterator[Any]:
        return self.iternext()

    def iternext(self, keys: bool = True, values: bool = True) -> Iterator[Any]:
        """From here on, or from the first key."""
        found = self.here is not None or self.first()
        while found:
            yield (self.key(), self.value()) if keys and values else self.key() if keys else self.value()
            found = self.next()


class View:
    """What a transaction sees: LMDB's snapshot, and the overlay up to an LSN. Closed by abort()."""

    __slots__ = ("__weakref__", "log", "overlay", "raw", "rest", "rows", "upto", "writes")

    def __init__(self, log: Any, raw: Any, overlay: Overlay, writes: bool) -> None:
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
        """LMDB's cursor where there is nothing to merge, else one that merges."""
        if self.raw is None:
            self.lmdb()
        if not self.writes and not self.rows:
            return self.raw.cursor()
        return LogCursor(self.raw.cursor(), self.overlay, self.upto)

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
        View.__init__(self, log, None, overlay, True)
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
        """Whether another process has changed a key with this mark behind an LSN: its bytes up to 8, and 9 to 13."""
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
        for item in list(self.dirty.values()):
            item.flush(self)  # takes itself out of dirty

    def commit(self) -> None:
        """Append its record: it counts when this returns. As safe as the durability says. StoreFull, LogError."""
        if self.touched:
            self.log.commit(self)
        self.abort()

    def abort(self) -> None:
        """End it. What has not been committed is undone. Harmless after a commit."""
        log = self.log
        if log is not None and log.transaction is self:
            log.undo(self)
        View.abort(self)
