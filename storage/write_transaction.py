"""The write transaction: LMDB's own, with what a layer above keeps warm from one to the next.

    commit n            commit n + 1                 somebody else's commit, or an undo
    warm: header, tail  found as they were left      warm is empty: read again from the disk
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from . import journal
from .ahead import Ahead
from .environment import Environment
from .growth import pages_in
from .layout import STORE_KEY

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
    ``changes`` counts changes; an operation that raises must not have moved it.
    ``record`` is what the journal gets of them, while that has room for it.
    ``ahead`` is what it began with: changes of commits that were in the journal only.
    ``publishes`` tells whether its commit must reach the map, as it does unless the leader of a
    batch says otherwise, or may stay in the journal as long as nobody reads (ahead.py).
    """

    __slots__ = (
        "ahead", "changes", "cursor", "dirty", "env", "get", "id", "publishes", "raw", "record", "room", "warm",
    )

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.raw = raw = env.begin_write()
        self.id: int = raw.id()
        if env.warm_id != self.id - 1 or len(env.warm) > _WARM_LIMIT:
            env.warm = {}
        self.warm = env.warm
        self.dirty: dict[Any, Flushable] = {}
        self.changes = 0
        self.record: dict[bytes, bytes | None] = {}
        self.room = journal.LIMIT if env.journal is not None else -1
        self.publishes = True
        self.ahead: Ahead | None = None
        if env.ahead is not None:
            self._put_first()
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

    def flush(self) -> None:
        """Write out everything that is still only in memory."""
        for item in list(self.dirty.values()):
            item.flush(self)  # takes itself out of dirty

    def _put_first(self) -> None:
        raw = self.raw
        try:
            self.ahead = ahead = self.env.to_be_put_first(self.id)
            if ahead is None:
                return
            self.room -= ahead.last.end
            idle = []
            for key, value in ahead.changes.items():
                if value is not None:
                    raw.put(key, value)
                elif not raw.delete(key):
                    idle.append(key)  # put and deleted since: the map has never had it
            for key in idle:
                del ahead.changes[key]
        except BaseException:
            self.abort()
            raise

    def commit(self) -> None:
        """Flush and commit; when it returns the data is as safe as the durability says.

        StoreFull, and nothing written, where the store may not become as large (growth.py).
        """
        env = self.env
        env.require_room(self.pages())
        if env.flushes_meta_itself:
            kept, ahead = env.journal, self.ahead
            record = None
            if kept is not None and self.room >= 0:
                record = kept.record(self.id, self.record, None if ahead is None else ahead.last)
                if record is not None:
                    if not self.publishes and env.run_ahead(record, self.record):
                        env.gate.shut(self.raw.abort)
                        env.open_write = None
                        env.warm_id = self.id - 1
                        return
                    if not kept.write(record):
                        record = None
            if ahead is not None:
                # LMDB must use this number up, also where the changes cancel out: its slot holds their records.
                self.raw.put(STORE_KEY, self.raw.get(STORE_KEY) or b"")
            env.owes_flush = record is None
            self.raw.commit()
            if record is None:
                env.pay_flush()
            elif kept is not None:
                kept.written = None
            if ahead is not None:
                env.caught_up(ahead)
        else:
            self.raw.commit()
        env.open_write = None
        env.warm_id = self.id
        env.wake_readers(self.id)

    def abort(self) -> None:
        """Undo everything, also what was kept warm. Harmless after a failed commit.

        LMDB's binding undoes a write only at a moment when no thread at all is in one of its
        calls, and threads that read all the time leave it none, for minutes. So the gate is
        shut for it: it waits for the reads under way, and no more begin.
        """
        env = self.env
        env.warm = {}
        env.warm_id = -1
        env.gate.shut(self.raw.abort)
        env.strike_out()
        env.open_write = None

    def end_unchanged(self) -> None:
        """End a transaction that changed nothing: no flush to disk, and the warm stays warm.

        LMDB writes nothing for such a commit, and it waits for nobody, as abort() would. What is
        ahead of the map stays so.
        """
        if self.ahead is None:
            self.raw.commit()
        else:
            self.env.gate.shut(self.raw.abort)
        self.env.open_write = None
        self.env.warm_id = self.id - 1

    def pages(self) -> int:
        """The pages that hold the store's records, with all changes so far."""
        self.flush()
        return pages_in(self.raw.stat(self.env.live().open_db(None, txn=self.raw)))
