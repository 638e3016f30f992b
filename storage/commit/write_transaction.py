"""The write transaction: the log's, with what a layer above keeps warm from one to the next.

    commit n            commit n + 1                 another process' commit
    warm: header, tail  found as they were left      another epoch: looked at again
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ..errors import CorruptionError, RaxlogError

if TYPE_CHECKING:
    from ..engine.environment import Environment

SOURCE_HASH = ""


class Flushable(Protocol):
    """What a layer above keeps in memory during a transaction and writes at its end."""

    def flush(self, txn: WriteTransaction) -> None:
        """Put everything changed into the transaction, and leave ``txn.dirty``."""


class WriteTransaction:
    """One write transaction, with what a layer above keeps warm from the last one. Begun and ended by Commits.

    ``warm`` maps whatever the layer likes to objects it wants to find again in the next
    transaction. It is emptied whenever a transaction is undone. What is found in it is true, as far as
    this process' own commits go; where another one has committed in between, ``epoch`` is another too.
    ``dirty`` holds those objects that must be flushed before the commit.
    ``changes`` counts changes. It moves *before* anything is changed, in memory too, so that an
    exception between two steps finds it moved: see is_untouched().
    """

    __slots__ = ("changes", "cursor", "delete_raw", "dirty", "env", "epoch", "get", "id", "put_raw", "raw", "warm")

    def __init__(self, env: Environment, raw: Any, warm: dict[Any, Any], epoch: int) -> None:
        self.env: Environment = env
        self.raw: Any = raw
        self.id: int = raw.id()
        self.warm: dict[Any, Any] = warm
        self.epoch: int = epoch
        self.dirty: dict[Any, Flushable] = {}
        self.changes: int = 0
        self.get: Any = raw.get
        self.cursor: Any = raw.cursor
        self.put_raw: Any = raw.put
        self.delete_raw: Any = raw.delete

    def put(self, key: bytes, value: bytes, overwrite: bool = True) -> bool:
        """Store a value. False, and nothing done, if the key is there and overwrite is off."""
        self.changes += 1
        return self.put_raw(key, value, overwrite)  # type: ignore[no-any-return]

    def delete(self, key: bytes) -> bool:
        """Delete a key. False if it was not there."""
        self.changes += 1
        return self.delete_raw(key)  # type: ignore[no-any-return]

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
