"""Committing: what every write of a process goes through, shared or alone.

    submit()          a call that shares its transaction with others      group_commit.py
    begin() … end()   a transaction of one thread; the others queue       here
    exclusively()     nobody writes, in any process, while work runs      here

Who is alone takes the lead as any other caller does, and keeps it for longer: his call has no
operation, so it ends the batch before it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import TypeVar

import lmdb

from . import faults
from .batch import Call
from .crash_point import crash_point
from .environment import Environment
from .errors import TransactionError
from .group_commit import GroupCommit, publish_ahead
from .write_transaction import WriteTransaction

__all__ = ["Committer", "WriteTransaction", "committer_of"]

T = TypeVar("T")


class Committer(GroupCommit):
    """The committer of one environment. Shared by all threads and handles of the process."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self._alone: tuple[Call[None], Generator[WriteTransaction, None, None]] | None = None

    def begin(self, timeout: float) -> WriteTransaction:
        """A transaction of this thread's own, until end(); the others queue behind it.

        It cannot be applied again when the map is full, so room is made first.
        """
        self._refuse_inside_transaction()
        call: Call[None] = Call(None)
        steps: Generator[WriteTransaction, None, None] | None = None
        try:
            steps = self._lead_alone(self._enter(call, timeout))
            txn = next(steps)
            self._alone = (call, steps)
            self._env.transaction_thread = threading.get_ident()
        except BaseException:
            self._leave_thread()
            self._conclude_surely(call)
            if steps is not None:
                steps.close()
            raise
        return txn

    def _lead_alone(self, timeout: float) -> Generator[WriteTransaction, None, None]:
        """A generator, for its locks: whatever becomes of it, they are given back."""
        env = self._env
        with env.leading:
            self._lock(timeout)
            with env.writing:
                self._catch_up()
                env.make_room()
                yield WriteTransaction(env)

    def _catch_up(self) -> None:
        """Commit what is ahead of the map, so that reads beside what follows need not wait for it."""
        if self._env.ahead is not None:
            call = Call(publish_ahead)
            self._batcher.apply([call])
            if call.error is not None:
                raise call.error

    def exclusively(self, work: Callable[[], T], timeout: float) -> T:
        """Run ``work`` while nobody writes, in this or any other process; it may write itself.

        Reads go on. A write by this thread that does not come from ``work`` itself is refused.
        LockTimeout after ``timeout`` seconds of waiting.
        """
        self._refuse_inside_transaction()
        env = self._env
        call: Call[None] = Call(None)
        try:
            left = self._enter(call, timeout)
            with env.leading:
                self._lock(left)
                try:
                    with env.writing:
                        self._catch_up()
                        env.transaction_thread = threading.get_ident()
                        return work()
                finally:
                    if env.lock is not None:
                        env.lock.release()  # here, where close() still waits for us
                        self._locked = False
        finally:
            self._leave_thread()
            call.done = True
            self._conclude_surely(call)

    def _leave_thread(self) -> None:
        if self._env.transaction_thread == threading.get_ident():
            self._env.transaction_thread = None

    def end(self, txn: WriteTransaction, keep: bool) -> None:
        """Commit (or undo) the transaction of begin(), and let the others on."""
        env = self._env
        if self._alone is None or env.open_write is not txn.raw:
            raise TransactionError("the transaction was begun in another process, before a fork; it ends there")
        call, steps = self._alone
        try:
            if keep and txn.changes:
                try:
                    crash_point("commit.before")
                    txn.commit()
                    crash_point("commit.after")
                except lmdb.Error as error:
                    txn.abort()
                    raise faults.meaning(env.path, error) from error
            elif txn.changes:
                txn.abort()
            else:
                txn.end_unchanged()
        finally:
            call.done = True
            self._alone = None
            env.transaction_thread = None
            self._conclude_surely(call)
            steps.close()


def committer_of(env: Environment) -> Committer:
    """The committer of an environment; made anew in a forked child."""
    committer: Committer | None = env.committer_state
    if committer is None:
        with env.first_use:  # two committers would take the lock of one process twice
            committer = env.committer_state
            if committer is None:
                committer = env.committer_state = Committer(env)
    return committer
