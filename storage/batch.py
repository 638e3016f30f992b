"""A batch: the calls of several callers, applied in one transaction.

    calls A B C     apply A, B, C in order ─ commit                      all done
    B is refused    before it touched anything: B's error, A and C go on
                    after: undo, apply A and C again
    the map is full undo, grow, apply A, B, C again
    no room at all  undo, then A alone, B alone, C alone: only what does not fit fails
    any other       what the disk says counts; what it does not hold is undone, and applied one by
    exception       one. Where none of the calls raises it again it came from outside (a signal's
                    handler): it is the leader's

No call is released before the batch is over, so that calls were applied twice cannot be seen;
they are functions of the transaction, which is a fresh one each time.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, get_ident
from typing import Any, Generic, TypeVar

import lmdb

from . import faults
from .crash_point import crash_point
from .environment import Environment
from .errors import RaxlogError, StoreError
from .layout import STORE_KEY
from .write_transaction import WriteTransaction

T = TypeVar("T")


class Call(Generic[T]):
    """One caller's operation, and what became of it."""

    __slots__ = ("done", "error", "gone", "operation", "result", "then", "thread", "waiter", "woken")

    def __init__(self, operation: Callable[[WriteTransaction], T] | None) -> None:
        self.operation = operation  # None: the call wants the lead for itself
        self.result: T | None = None
        self.error: BaseException | None = None
        self.done = False
        self.gone = False  # its caller waits no more, or has been taken for such a one
        self.thread = get_ident()
        self.waiter: Lock | None = None
        self.then: Call[Any] | None = None  # whom its caller wakes, once it has been woken
        self.woken = 0.0  # when that was asked for


class Batcher:
    """Applies batches to one environment. Used by the leader only."""

    __slots__ = ("_committing", "env")

    def __init__(self, env: Environment) -> None:
        self.env = env
        self._committing: tuple[int, list[Call[Any]]] | None = None

    def apply(self, batch: list[Call[Any]]) -> Exception | None:
        """Apply and commit the calls; each gets its result or its own error, and is done.

        Returns the exception that came from outside, if one did.
        """
        error = self._attempt(batch)
        if error is None:
            return None
        # What cannot be done together is done one by one, so that only what must fails.
        alone = len(batch) == 1
        outside = None if self._is_known(error) else error
        for call in batch:
            if not call.done:
                if not alone:
                    error = self._attempt([call])
                if error is not None:
                    outside = self._end(call, error, outside)
        return outside

    def _end(self, call: Call[Any], error: Exception, outside: Exception | None) -> Exception | None:
        """End a call that was tried alone, with this error. Returns the exception that came from outside, if any."""
        if call.done:
            return error  # it came once the commit counted
        call.error = self._reported(error)
        call.done = True
        return None if type(error) is type(outside) else outside

    @staticmethod
    def _is_known(error: Exception) -> bool:
        return isinstance(error, lmdb.Error | RaxlogError)

    def _reported(self, error: Exception) -> Exception:
        if not isinstance(error, lmdb.Error):
            return error
        reported = faults.meaning(self.env.path, error)
        reported.__cause__ = error
        return reported

    def _attempt(self, calls: list[Call[Any]]) -> Exception | None:
        """One transaction for all calls. Returns the error that prevented the commit (store unchanged), or None.

        Also the exception that came once the commit counted: then the calls are done.
        """
        env = self.env
        failed: set[int] = set()
        aged = False
        while True:
            try:
                for raw in env.begin_write():
                    txn = WriteTransaction(env, raw)
                    again = self._run(txn, calls, failed)
                    if again:
                        txn.abort()
                if not again:
                    return None
            except Exception as error:
                landed = self.settle(error)
                if landed:
                    return None if self._is_known(error) else error
                if isinstance(error, lmdb.MapFullError) and env.grow():
                    continue
                if aged or not self._is_full(error) or not self._age_free_pages():
                    return error
                aged = True

    def _is_full(self, error: Exception) -> bool:
        return isinstance(error, lmdb.MapFullError) or (
            isinstance(error, lmdb.Error) and faults.why_full(self.env.path, error) is not None
        )

    def _run(self, txn: WriteTransaction, calls: list[Call[Any]], failed: set[int]) -> bool:
        """Apply and commit. True if a call raised after it had touched something: undo, again without it."""
        try:
            for index, call in enumerate(calls):
                if index not in failed and self._refuses(txn, call):
                    failed.add(index)
                    return True
            self.commit(txn, calls)
        except BaseException:
            txn.abort()
            raise
        return False

    def _refuses(self, txn: WriteTransaction, call: Call[Any]) -> bool:
        """Apply one call. Whether it has left the transaction in a state in which nothing can be committed."""
        before = txn.changes
        assert call.operation is not None
        try:
            call.result = call.operation(txn)
            call.error = None
        except RaxlogError as error:
            call.error = error
            return not txn.is_untouched(before, error)
        except lmdb.Error as error:
            if isinstance(error, lmdb.PanicError) or self._is_full(error):
                raise
            # LMDB has given up the transaction with it: that call's error, not the others'.
            call.error = self._reported(error)
            return True
        return False

    def commit(self, txn: WriteTransaction, calls: list[Call[Any]]) -> None:
        """Commit what the calls have changed; they are done then. After an exception: settle()."""
        if not txn.changes:
            txn.end_unchanged()
        else:
            self._committing = (txn.id, calls)
            crash_point("commit.before")
            txn.commit()
            crash_point("commit.after")
        _finish(calls)
        self._committing = None  # last: until then settle() knows of them

    def _age_free_pages(self) -> bool:
        """LMDB uses pages again two commits after they were freed. If there are many: commit once."""
        env = self.env
        try:
            for raw in env.begin_write():
                txn = WriteTransaction(env, raw)
                used = env.pages_used()
                if used - txn.pages() < used // 8:
                    txn.abort()
                    return False
                txn.put(STORE_KEY, txn.get(STORE_KEY) or b"")
                self.commit(txn, [])
        except lmdb.Error as error:
            return self.settle(error)
        return True

    def settle(self, error: BaseException | None = None) -> bool:
        """After an exception, with LMDB's transaction ended: is the commit on disk? Then its calls are done.

        Under the lead and the writer's lock. May be broken off, and run again by any thread.
        """
        env = self.env
        env.forget_warm()
        env.open_write = None
        if self._committing is None:
            return False
        number, calls = self._committing
        landed = env.has_committed(number)
        if not landed:
            env.strike_out()
        else:
            if env.owes_flush:
                try:
                    env.pay_flush()
                except lmdb.Error as unpaid:
                    error = unpaid
            for call in calls:
                if isinstance(error, lmdb.Error):
                    call.error = StoreError(
                        f"the disk failed at the end of a commit to {env.path} ({error}). What was written "
                        "can be read now; whether it survives a power cut is unknown."
                    )
            _finish(calls)
            env.wake_readers(number)
        if isinstance(error, lmdb.Error):
            env.note_failure(error)
        self._committing = None
        return landed


def _finish(calls: list[Call[Any]]) -> None:
    for call in calls:
        call.done = True
