"""The write transaction: LMDB's own, with what a layer above keeps warm from one to the next.

    commit n            commit n + 1                 somebody else's commit, or an undo
    warm: header, tail  found as they were left      warm is empty: read again from the disk
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import lmdb

from . import journal
from .environment import Environment
from .errors import CorruptionError, RaxlogError
from .growth import pages_in

SOURCE_HASH = ""

_WARM_LIMIT = 512  # streams kept warm; beyond it all are dropped, which costs a read each


class Flushable(Protocol):
    """What a layer above keeps in memory during a transaction and writes at its end."""

    def flush(self, txn: WriteTransaction) -> None:
        """Put everything changed into the transaction, and leave ``txn.dirty``."""


class WriteTransaction:
    """One LMDB write transaction, with what a layer above keeps warm from the last one.

    ``warm`` maps whatever the layer likes to objects it wants to find again in the next
    transaction. It is emptied whenever another process has committed in between, and
    whenever a transaction is undone: what is found in it is true.
    ``dirty`` holds those objects that must be flushed before the commit.
    ``changes`` counts changes. It moves *before* anything is changed, in memory too, so that an
    exception between two steps finds it moved: see is_untouched().
    ``record`` is what the journal gets of them, while that has room for it.

    Made in ``for raw in env.begin_write()``, which undoes LMDB's transaction whatever becomes of this.
    """

    __slots__ = ("changes", "cursor", "dirty", "env", "get", "id", "raw", "record", "room", "warm")

    def __init__(self, env: Environment, raw: lmdb.Transaction) -> None:
        self.env = env
        self.raw = env.open_write = raw
        self.id: int = raw.id()
        if env.warm_id != self.id - 1 or len(env.warm) > _WARM_LIMIT:
            env.warm = {}
        self.warm = env.warm
        self.dirty: dict[Any, Flushable] = {}
        self.changes = 0
        self.record: dict[bytes, bytes | None] = {}
        self.room = journal.LIMIT if env.journal is not None else -1
        self.get: Callable[..., bytes | None] = raw.get  # type: ignore[assignment]  # buffers are off
        self.cursor: Callable[[], Any] = raw.cursor

    def put(self, key: bytes, value: bytes, overwrite: bool = True) -> bool:
        """Store a value. False, and nothing done, if the key is there and overwrite is off."""
        self.changes += 1
        if not self.raw.put(key, value, overwrite=overwrite):
            return False
        if self.room >= 0:
            self._note(key, value)
        return True

    def delete(self, key: bytes) -> bool:
        """Delete a key. False if it was not there."""
        self.changes += 1
        if not self.raw.delete(key):
            return False
        if self.room >= 0:
            self._note(key, None)
        return True

    def _note(self, key: bytes, value: bytes | None) -> None:
        """Keep a change for the journal; keep none any more once they are too many for it."""
        record = self.record
        if key in record:
            before = record[key]
            self.room += 0 if before is None else len(before)
        else:
            self.room -= len(key) + 8
        self.room -= 0 if value is None else len(value)
        if self.room >= 0:
            record[key] = value
        else:
            record.clear()

    def is_untouched(self, before: int, error: BaseException) -> bool:
        """Whether an operation that has raised is known to have changed nothing since ``changes`` was ``before``.

        Only raxlog's own refusals are: they come before the first change. Any other exception may come
        from outside, between any two steps; and CorruptionError in the middle of loading what is kept warm.
        """
        return (
            self.changes == before and isinstance(error, RaxlogError) and not isinstance(error, CorruptionError)
        )

    def flush(self) -> None:
        """Write out everything that is still only in memory."""
        for item in list(self.dirty.values()):
            item.flush(self)  # takes itself out of dirty

    def commit(self) -> None:
        """Flush and commit; when it returns the data is as safe as the durability says.

        StoreFull, and nothing written, where the store may not become as large (growth.py).
        """
        env = self.env
        env.require_room(self.pages())
        if env.flushes_meta_itself:
            kept = env.journal
            recorded = kept is not None and self.room >= 0 and kept.write(self.id, self.record)
            env.owes_flush = not recorded
            self.raw.commit()
            if recorded:
                kept.written = None  # type: ignore[union-attr]
            else:
                env.pay_flush()
        else:
            self.raw.commit()
        env.open_write = None
        env.warm_id = self.id
        env.wake_readers(self.id)

    def abort(self) -> None:
        """Undo everything, also what was kept warm. Harmless after a commit, failed or not.

        LMDB's binding undoes a write only at a moment when no thread at all is in one of its
        calls, and threads that read all the time leave it none, for minutes. So the gate is
        shut for it: it waits for the reads under way, and no more begin.
        """
        env = self.env
        env.forget_warm()
        env.gate.shut(self.raw.abort)
        env.open_write = None

    def end_unchanged(self) -> None:
        """End a transaction that changed nothing: no flush to disk, and the warm stays warm.

        LMDB writes nothing for such a commit, and it waits for no reader, as abort() would.
        """
        self.raw.commit()
        self.env.open_write = None
        self.env.warm_id = self.id - 1

    def pages(self) -> int:
        """The pages that hold the store's records, with all changes so far."""
        self.flush()
        return pages_in(self.raw.stat(self.env.live().open_db(None, txn=self.raw)))
