"""The write transaction: LMDB's own, with what a layer above keeps warm from one to the next.

    commit n            commit n + 1                 another process' commit
    warm: header, tail  found as they were left      another epoch: looked at again
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import lmdb

from ..errors import CorruptionError, RaxlogError
from . import journal

if TYPE_CHECKING:
    from ..engine.environment import Environment

SOURCE_HASH = ""

NO_ROOM = -1


class Flushable(Protocol):
    """What a layer above keeps in memory during a transaction and writes at its end."""

    def flush(self, txn: WriteTransaction) -> None:
        """Put everything changed into the transaction, and leave ``txn.dirty``."""


class WriteTransaction:
    """One LMDB write transaction, with what a layer above keeps warm from the last one. Begun and ended by Commits.

    ``warm`` maps whatever the layer likes to objects it wants to find again in the next
    transaction. It is emptied whenever a transaction is undone. What is found in it is true, as far as
    this process' own commits go; where another one has committed in between, ``epoch`` is another too.
    ``dirty`` holds those objects that must be flushed before the commit.
    ``changes`` counts changes. It moves *before* anything is changed, in memory too, so that an
    exception between two steps finds it moved: see is_untouched().
    ``record`` is what the journal gets of them, while that has ``room`` for it.
    ``pages_more`` is how many pages it takes at most.
    """

    __slots__ = (
        "changes", "cursor", "dirty", "env", "epoch", "get", "id", "pages_a_change", "pages_more", "raw", "record",
        "room", "warm",
    )

    def __init__(self, env: Environment, raw: lmdb.Transaction, warm: dict[Any, Any], epoch: int) -> None:
        self.env = env
        self.raw = raw
        self.id: int = raw.id()
        self.warm = warm
        self.epoch = epoch
        self.dirty: dict[Any, Flushable] = {}
        self.changes = 0
        self.pages_more = 0
        self.pages_a_change: int = env.map.pages_a_change
        self.record: dict[bytes, bytes | None] = {}
        self.room = NO_ROOM if env.map.journal is None else journal.LIMIT
        self.get: Any = raw.get
        self.cursor: Any = raw.cursor

    def put(self, key: bytes, value: bytes, overwrite: bool = True) -> bool:
        """Store a value. False, and nothing done, if the key is there and overwrite is off."""
        self.changes += 1
        self.pages_more += self.pages_a_change
        if len(value) > 2006:  # it has pages of its own, as many as records.page_run() says
            self.pages_more += 1 + (len(value) + 15 >> 12)
        if not self.raw.put(key, value, overwrite=overwrite):
            return False
        if self.room >= 0:
            self.note(key, value)
        return True

    def delete(self, key: bytes) -> bool:
        """Delete a key. False if it was not there."""
        self.changes += 1
        self.pages_more += self.pages_a_change
        if not self.raw.delete(key):
            return False
        if self.room >= 0:
            self.note(key, None)
        return True

    def note(self, key: bytes, value: bytes | None) -> None:
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
        return (self.changes == before and isinstance(error, RaxlogError) and not isinstance(error, CorruptionError))

    def flush(self) -> None:
        """Write out everything that is still only in memory."""
        for item in list(self.dirty.values()):
            item.flush(self)  # takes itself out of dirty

    def pages(self) -> int:
        """The pages that hold the store's records, with all changes so far."""
        self.flush()
        return self.env.map.pages_of(self.raw)
