"""A batch: calls that were made apart, of many tasks or by a pipeline, as one commit.

    calls A B C ──> one operation each ──> Commits.submit_all() ──> one transaction, one flush
                      A runs the plain method of a handle that is bound to the batch: what it submits is applied to
                      that transaction at once, as inside ``with store.transaction()``

Each call has a result or an error of its own. One that is refused before it changed anything costs the others
nothing; after one that fails half way the others are applied again, without it (storage/commit/commits.py).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol, TypeVar

from ...storage.engine.environment import Environment
from ...storage.log.transaction import WriteTransaction
from .session import StoreSource

T = TypeVar("T")


class BatchCall(Protocol):
    """A call as a batch runs it."""

    result: Any
    error: BaseException | None

    @property
    def function(self) -> Callable[[], Any]:
        """The call itself, on handles that are bound to the batch."""

    def begin(self) -> bool:
        """Forget the outcome of an earlier time; whether it is still to be run."""


class BatchSource:
    """The Source (session.py) of handles whose calls join the batch. For calls that it runs only."""

    buffer = None
    lock_timeout: float = 0.0  # the batch has the lock

    def __init__(self, source: StoreSource) -> None:
        self.env: Environment = source.env
        self._source = source
        self.txn: WriteTransaction | None = None  # the one that the calls are applied to
        self._has_begun = False  # the call that is applied has come to the transaction
        self.spoiled: BaseException | None = None  # it failed there half way

    def read(self) -> AbstractContextManager[WriteTransaction]:
        """The transaction itself, with nothing left in memory."""
        self.submit(WriteTransaction.flush)
        assert self.txn is not None
        return nullcontext(self.txn)

    def submit(self, operation: Callable[[WriteTransaction], T]) -> T:
        """Apply the operation at once."""
        txn = self.txn
        assert txn is not None, "a handle of the batch, used outside it"
        self._has_begun = True
        before = txn.changes
        try:
            return operation(txn)
        except BaseException as error:
            if not txn.is_untouched(before, error):
                self.spoiled = error
            raise

    def commit(self, calls: Sequence[BatchCall]) -> None:
        """Run these calls in their order, in one commit where that can be. At least one."""
        try:
            outcomes = self._source.submit_all([partial(self._apply, call) for call in calls])
        except BaseException as error:  # of all: LockTimeout, StoreClosed
            for call in calls:
                call.error = copy.copy(error)
            return
        for call, outcome in zip(calls, outcomes, strict=True):
            call.error = outcome.error or call.error

    def _apply(self, call: BatchCall, txn: WriteTransaction) -> None:
        """The operation of one call; may be applied more than once, each time to a fresh transaction."""
        self.txn, self._has_begun, self.spoiled = txn, False, None
        if not call.begin():
            return
        try:
            call.result = call.function()
        except Exception as error:
            if self._has_begun:
                raise
            call.error = error  # its arguments are wrong
        if self.spoiled is not None:  # the method has gone on after it, which the transaction cannot
            raise self.spoiled


def kept(argument: Any) -> Any:
    """The argument of a call, an iterator as a list: the call may be applied twice."""
    return list(argument) if hasattr(argument, "__next__") else argument
