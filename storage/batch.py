"""A batch: the calls of several callers, applied in one transaction.

    calls A B C     apply A, B, C in order ─ commit                      all done
    B raises        before it changed anything: B's error, A and C go on
                    after: undo, apply A and C again
    the map is full undo, grow, apply A, B, C again
    no room at all  undo, then A alone, B alone, C alone: only what does not fit fails

Nobody is told anything before it is over, so nobody can tell that calls were applied twice;
they are functions of the transaction, which is a fresh one each time.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, get_ident
from typing import Any, Generic, TypeVar

import lmdb

from . import faults
from .ahead import Ahead
from .crash_point import crash_point
from .environment import Environment
from .errors import StoreError
from .layout import STORE_KEY
from .write_transaction import WriteTransaction

T = TypeVar("T")


class Call(Generic[T]):
    """One caller's operation, and what became of it."""

    __slots__ = (
        "concluded", "done", "error", "gone", "operation", "result", "then", "thread", "tries", "waiter", "woken",
    )

    def __init__(self, operation: Callable[[WriteTransaction], T] | None) -> None:
        self.operation = operation  # None: the caller wants the lead for itself
        self.result: T | None = None
        self.error: BaseException | None = None
        self.done = False
        self.gone = False  # its caller waits no more
        self.concluded = False
        self.tries = 0  # to conclude
        self.thread = get_ident()
        self.waiter: Lock | None = None
        self.then: Call[Any] | None = None  # whom its caller wakes, once it has been woken
        self.woken = 0.0  # when that was asked for


class Batcher:
    """Applies batches to one environment. Used by the leader only."""

    __slots__ = ("_committing", "env")

    def __init__(self, env: Environment) -> None:
        self.env = env
        self._committing: tuple[int, Ahead | None, list[Call[Any]]] | None = None

    def apply(self, batch: list[Call[Any]]) -> None:
        """Apply and commit the calls; each gets its result or its own error, and is done."""
        error = self._attempt(batch)
        if error is None:
            return
        # What cannot be done together is done one by one, so that only what must fails.
        alone = len(batch) == 1
        for call in batch:
            if not call.done:
                if not alone:
                    error = self._attempt([call])
                if error is not None:
                    call.error = self._reported(error)
                    call.done = True

    def _reported(self, error: Exception) -> Exception:
        if not isinstance(error, lmdb.Error):
            return error
        reported = faults.meaning(self.env.path, error)
        reported.__cause__ = error
        return reported

    def _attempt(self, calls: list[Call[Any]]) -> Exception | None:
        """One transaction for all calls. Gives what stands against it, with nothing changed."""
        env = self.env
        failed: set[int] = set()
        aged = False
        while True:
            txn = None
            try:
                txn = WriteTransaction(env)
                txn.publishes = False
                if self._run(txn, calls, failed):
                    txn.abort()
                    continue
                if txn.changes:
                    self._committing = (txn.id, env.ahead, calls)
                    crash_point("commit.before")
                    txn.commit()
                    crash_point("commit.after")
                    self._committing = None
                else:
                    txn.end_unchanged()
                _finish(calls)
                return None
            except lmdb.MapFullError as error:
                self._committing = None
                _undo(txn)
                if not env.grow():
                    if aged or not self._age_free_pages():
                        return error
                    aged = True
            except lmdb.Error as error:
                _undo(txn)
                if self._committing is not None and self._landed(error):
                    return None
                if aged or faults.why_full(env.path, error) is None or not self._age_free_pages():
                    return error
                aged = True
            except Exception as error:
                self._committing = None
                _undo(txn)
                return error

    def _age_free_pages(self) -> bool:
        """LMDB uses pages again two commits after they were freed. If there are many: commit once."""
        txn = None
        try:
            txn = WriteTransaction(self.env)
            used = self.env.pages_used()
            if used - txn.pages() < used // 8:
                txn.abort()
                return False
            txn.put(STORE_KEY, txn.get(STORE_KEY) or b"")
            txn.commit()
        except lmdb.Error:
            _undo(txn)
            return False
        return True

    def _landed(self, error: lmdb.Error) -> bool:
        """A commit failed. True, and its calls told, where it can be seen in the store after all."""
        assert self._committing is not None
        number, before, calls = self._committing
        landed = self._counts(number, before)
        self._committing = None
        if landed:
            self._tell_unknown(calls, error)
            _finish(calls)
        return landed

    def _counts(self, number: int, before: Ahead | None) -> bool:
        """Whether the commit of that number is in the map, or more has run ahead of it than before."""
        ahead = self.env.ahead
        return self.env.has_committed(number) or (ahead is not None and ahead is not before)

    def _tell_unknown(self, calls: list[Call[Any]], error: lmdb.Error) -> None:
        for call in calls:
            call.error = StoreError(
                f"the disk failed at the end of a commit to {self.env.path} ({error}). What was written "
                "can be read now; whether it survives a power cut is unknown."
            )

    def _run(self, txn: WriteTransaction, calls: list[Call[Any]], failed: set[int]) -> bool:
        """Apply each call. True if one raised after it had changed something: undo, again."""
        for index, call in enumerate(calls):
            if index in failed:
                continue
            before = txn.changes
            assert call.operation is not None
            try:
                call.result = call.operation(txn)
                call.error = None
            except Exception as error:
                if isinstance(error, lmdb.Error):
                    if isinstance(error, lmdb.MapFullError | lmdb.PanicError) or faults.why_full(self.env.path, error):
                        raise
                    # LMDB has given up the transaction with it: that call's error, not the others'.
                    call.error = self._reported(error)
                else:
                    call.error = error
                if txn.changes != before or isinstance(error, lmdb.Error):
                    failed.add(index)
                    return True
        return False

    def settle(self) -> None:
        """After an exception: is the transaction on disk? Then its calls are done, else undo it."""
        env = self.env
        raw = env.open_write
        if raw is None and self._committing is None:
            return
        if raw is not None:
            env.warm = {}
            env.warm_id = -1
            env.gate.shut(raw.abort)
            env.strike_out()
            env.open_write = None
        if self._committing is not None:
            number, before, calls = self._committing
            if self._counts(number, before):
                if env.owes_flush:
                    try:
                        env.pay_flush()
                    except lmdb.Error as error:
                        self._tell_unknown(calls, error)
                _finish(calls)
                env.wake_readers(number)
            self._committing = None


def _undo(txn: WriteTransaction | None) -> None:
    if txn is not None:  # else it has not come to begin
        txn.abort()


def _finish(calls: list[Call[Any]]) -> None:
    for call in calls:
        call.done = True
