"""Where a handle's calls go: to the store itself, or into a transaction that is open.

    Direct           each read is a short transaction of its own, each write one that is
                     shared with whoever writes at the same time, durable when it returns
                     with durability="buffered" it first waits for the appends that are still on
                     their way (buffering.py)
    Within           every call acts on the one transaction, sees what it has done so far,
                     and is durable when that is committed (transaction.py)
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from functools import partial, wraps
from typing import Any, Concatenate, NoReturn, ParamSpec, Protocol, TypeVar

from ...storage.commit.write_transaction import WriteTransaction
from ...storage.engine.environment import Environment
from ...storage.errors import AppendsLost, StoreClosed
from ...storage.lifecycle.registry import Share
from ..node.stream_id import StreamID
from .buffering import Buffer, buffer_of

T = TypeVar("T")
P = TypeVar("P", list[StreamID], bytes)
A = ParamSpec("A")

PIECE = 10_000  # entries that one commit reads, acknowledges or deletes, outside transactions
PIECE_ASKED = 2_000  # where groups are asked about each, and of rows claimed


class Source(Protocol):
    """What streams and groups need of the place their calls go to."""

    @property
    def buffer(self) -> Buffer | None:
        """Where appends go that are committed behind their callers; None: they wait for their commit."""

    @property
    def lock_timeout(self) -> float:
        """Seconds that a write waits for others."""

    @property
    def env(self) -> Environment:
        """The environment it belongs to."""

    def read(self) -> AbstractContextManager[Any]:
        """A transaction to read in."""

    def submit(self, operation: Callable[[WriteTransaction], T]) -> T:
        """Apply an operation; how and when it becomes durable is the source's matter."""


def ask(source: Source, question: Callable[[Any], T]) -> T:
    """What a function finds in a transaction to read in."""
    with source.read() as txn:
        return question(txn)


class Handle(Protocol):
    """What has a source for its calls."""

    _source: Source


def asking(question: Callable[Concatenate[Any, A], T]) -> Callable[Concatenate[Handle, A], T]:
    """A function of a transaction as a method of a handle: asked in a transaction to read in."""

    @wraps(question)
    def method(handle: Handle, /, *args: A.args, **options: A.kwargs) -> T:
        with handle._source.read() as txn:
            return question(txn, *args, **options)

    return method


def changing(operation: Callable[Concatenate[WriteTransaction, A], T]) -> Callable[Concatenate[Handle, A], T]:
    """The same for a function that writes: a commit of its own, or part of the transaction that is open."""

    @wraps(operation)
    def method(handle: Handle, /, *args: A.args, **options: A.kwargs) -> T:
        return handle._source.submit(lambda txn: operation(txn, *args, **options))

    return method


def in_pieces(source: Source, given: P, act: Callable[[P, WriteTransaction], T], most: int = PIECE) -> list[T]:
    """What the act gives for so many at a time, a commit each: others write in between. In a transaction, for all."""
    step = most if isinstance(source, Direct) else max(1, len(given))
    return [source.submit(partial(act, given[start : start + step])) for start in range(0, len(given), step)]


class Direct:
    """Calls on the store itself."""

    __slots__ = ("buffer", "closed", "env", "lock_timeout", "read", "share")

    def __init__(self, share: Share, lock_timeout: float) -> None:
        self.share = share
        self.env = env = share.env
        self.lock_timeout = lock_timeout
        is_buffered = env.options.durability == "buffered" and not env.readonly
        self.buffer: Buffer | None = buffer_of(env) if is_buffered else None
        # No method of its own: a source that is dropped, with its share, is gone at once.
        self.read: Callable[[], AbstractContextManager[Any]] = partial(_read_flushed, env) if is_buffered else env.read
        self.closed = False

    def submit(self, operation: Callable[[WriteTransaction], T]) -> T:
        """Group commit: durable when it returns."""
        if self.closed:
            self._refuse()
        if self.buffer is not None:
            self.buffer.flush()
        return self.env.commits.submit(operation, self.lock_timeout)

    def begin(self) -> Generator[WriteTransaction, bool, None]:
        """A transaction of this thread's own, behind all that has been appended before: Commits.alone()."""
        if self.buffer is not None:
            self.buffer.flush()
        return self.env.commits.alone(self.lock_timeout)

    def close(self) -> None:
        """Give back the share, and refuse every call from now on, even where others keep the environment open.

        TransactionError inside a transaction. AppendsLost, with all closed, where it has not been raised yet.
        """
        buffer = self.buffer
        self.share.close()
        try:
            if buffer is not None:
                buffer.flush(tell=True)
        except AppendsLost:
            self._end()
            raise
        self._end()

    def _end(self) -> None:
        self.closed = True
        self.buffer = None
        self.read = self._refuse

    def _refuse(self) -> NoReturn:
        raise StoreClosed(f"the store {self.env.path} has been closed. Open it again.")


def _read_flushed(env: Environment) -> AbstractContextManager[Any]:
    buffer_of(env).flush()
    return env.read()


class Within:
    """Calls inside one open write transaction: reads see what it has done so far."""

    __slots__ = ("_txn",)

    buffer = None
    lock_timeout = 0.0  # whoever is in a transaction has the lock

    def __init__(self, txn: WriteTransaction) -> None:
        self._txn = txn

    @property
    def env(self) -> Environment:
        """The environment it belongs to."""
        return self._txn.env

    def read(self) -> Within:
        """The transaction itself, with what it still had in memory flushed."""
        return self

    def __enter__(self) -> WriteTransaction:
        self._txn.flush()
        return self._txn

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, operation: Callable[[WriteTransaction], T]) -> T:
        """Apply the operation at once."""
        return operation(self._txn)
