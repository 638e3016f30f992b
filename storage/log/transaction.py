"""Transactions: what a read sees of tree and log, and the one write transaction of a process.

    View               the tree's snapshot, and the overlay up to an LSN
    WriteTransaction   changes in the overlay under an LSN that nothing else sees, until commit() appends their record

    commit n            commit n + 1                 another process' commit
    warm: header, tail  found as they were left      another epoch: looked at again

A layer above keeps what it likes in ``warm``, to find it again in the next transaction. It is emptied whenever a
transaction is undone. What is found in it is true as far as this process' own commits go; where another one has
committed in between, ``epoch`` is another too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

from raxlog.storage.errors import CorruptionError, RaxlogError
from raxlog.storage.tree import lmdb_errors

from .overlay import LogCursor, Overlay, Version  # cimport

if TYPE_CHECKING:
    from raxlog.storage.engine.environment import Environment

    from .log import Log

SOURCE_HASH = ""

END = 0
MOST_KEY = 511  # LMDB's


class Flushable(Protocol):
    """What a layer above keeps in memory during a transaction and writes at its end."""

    def flush(self, txn: WriteTransaction) -> None:
        """Put everything changed into the transaction, and leave ``txn.dirty``."""


class View:
    """What a transaction sees: LMDB's snapshot, and the overlay up to an LSN. Closed by abort()."""

    __slots__ = ("__weakref__", "log", "overlay", "raw", "rows", "upto", "writes")

    def __init__(self, log: Any, raw: Any, overlay: Overlay, writes: bool) -> None:
        self.log: Any = log  # None once it has ended
        self.raw: Any = raw
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
        """End it."""
        raw = self.raw
        self.raw = None
        if self.log is not None:
            self.log = None
            if not self.writes:
                self.overlay.readers -= 1
        if raw is not None:
            raw.abort()

    def __del__(self) -> None:
        self.abort()


class WriteTransaction(View):
    """The write transaction. Begun by the log, and ended by Commits.

    ``dirty``    those objects of the layers above that must be flushed before the commit
    ``changes``  counts changes. It moves *before* anything is changed, in memory too, so that an exception between two
                 steps finds it moved: see is_untouched()
    ``touched``  the keys changed, with the version before
    """

    __slots__ = ("changes", "dirty", "env", "epoch", "touched", "warm", "written")

    def __init__(self, log: Log, overlay: Overlay) -> None:
        View.__init__(self, log, None, overlay, True)
        self.env: Environment = None  # type: ignore[assignment]  # until keep()
        self.warm: dict[Any, Any] = {}
        self.epoch: int = 0
        self.dirty: dict[Any, Flushable] = {}
        self.changes: int = 0
        self.touched: dict[bytes, Version | None] = {}
        self.written: int = -1  # where its record lies in the ring

    def keep(self, env: Environment, warm: dict[Any, Any], epoch: int) -> None:
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
        log = self.log
        if self.touched:
            room = log.room
            freed = room.note_freed(self)
            self.release()  # the map may grow
            if freed:
                self.overlay.freed.append((self.upto, freed))
            if room.fits(self.overlay) or self.fits_alone():
                log.append(self.touched, self, freed)
            else:
                room.direct += 1
                log.append_directly(self)
        self.abort()

    def fits_alone(self) -> bool:
        """Whether it fits once all before it is in LMDB."""
        self.log.checkpoint(True)
        return bool(self.log.room.fits(self.overlay.pruned(self.upto - 1)))

    def abort(self) -> None:
        """End it. What has not been committed is undone. Harmless after a commit."""
        log = self.log
        if log is not None and log.transaction is self:
            if log.reached[0] < self.upto:  # its record does not count, or has not been taken in
                with log.mutex:  # no thread takes it in in between
                    if log.reached[0] < self.upto:
                        self.overlay.undo(self.touched, self.upto)
                        if self.written >= 0 and log.words[END] == self.upto - 1:
                            log.strike_out(self.written)
            log.transaction = None
        View.abort(self)
