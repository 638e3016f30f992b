"""Where the calls of a handle go: each handle has a Source, which it reads by and submits its writes to.

    StoreSource         each read is a short transaction of its own, each write shares a commit, durable when it
                        returns; with durability="buffered" both first flush the write buffer
    SnapshotSource      one transaction to read in, for all calls
    BatchSource         (batch.py) calls that join a commit of many, for a pipeline or a loop's tasks
    _TransactionSource  (transaction.py) every call acts on the one transaction, and sees what that has done so far
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import partial, wraps
from typing import Any, Concatenate, NoReturn, ParamSpec, Protocol, TypeVar

from ...storage.commit.commits import Call
from ...storage.engine.environment import Environment
from ...storage.engine.registry import Share
from ...storage.errors import AppendsLost, ReadOnlyStore, TransactionError, closed
from ...storage.log.transaction import WriteTransaction
from ...storage.trees.rax import RaxTransaction
from ..node.arguments import timeout_of
from ..node.stream_id import StreamID
from .write_buffer import WriteBuffer

T = TypeVar("T")
P = TypeVar("P", list[StreamID], bytes)
A = ParamSpec("A")

PIECE = 10_000  # entries that one commit reads, acknowledges or deletes, outside transactions
PIECE_ASKED = 2_000  # where groups are asked about each, and of rows claimed

Read = AbstractContextManager[RaxTransaction]  # a transaction to read in


class Source(Protocol):
    """What streams and groups need for their calls."""

    @property
    def buffer(self) -> WriteBuffer | None:
        """The write buffer; None: appends wait for their commit."""

    @property
    def lock_timeout(self) -> float:
        """Seconds that a write waits for others."""

    @property
    def env(self) -> Environment:
        """The environment it belongs to."""

    def read(self) -> Read:
        """A transaction to read in."""

    def submit(self, operation: Callable[[WriteTransaction], T]) -> T:
        """Apply an operation in a transaction of its own, a shared one, or the one that is open."""


def ask(source: Source, question: Callable[[RaxTransaction], T]) -> T:
    """Call a function in a transaction to read in."""
    with source.read() as txn:
        return question(txn)


def require_writable(source: Source, to: str) -> None:
    """ReadOnlyStore at once, with what was to be done, where the source is a store open with readonly=True."""
    if isinstance(source, StoreSource):
        source.require_writable(to)


class Handle(Protocol):
    """An object with a source for its calls."""

    _source: Source


H = TypeVar("H", bound=Handle)


def bound(handle: H, source: Source) -> H:
    """The same handle, but that its calls are part of something else, such as a transaction."""
    made = copy(handle)
    made._source = source
    return made


def asking(question: Callable[Concatenate[RaxTransaction, A], T]) -> Callable[Concatenate[Handle, A], T]:
    """A function of a transaction as a method of a handle, called in a transaction to read in."""

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


def in_pieces(source: Source, given: P, act: Callable[[P, WriteTransaction], T], limit: int = PIECE) -> list[T]:
    """Results of the act for so many at a time, a commit each: others write in between. In a transaction for all."""
    step = limit if isinstance(source, StoreSource) else max(1, len(given))
    return [source.submit(partial(act, given[start : start + step])) for start in range(0, len(given), step)]


def parse_timeout(source: Source, timeout: float | None) -> float:
    """timeout_of() a read. TransactionError in a transaction, where nothing can come."""
    if timeout == 0:  # most reads
        return 0.0
    seconds = timeout_of(timeout)
    if seconds and not isinstance(source, StoreSource):
        raise TransactionError(
            f"timeout={timeout!r} inside a transaction: nothing comes while it is open; wait before it begins"
        )
    return seconds


class SnapshotSource:
    """The Source of handles that read in one transaction, and so see one state of the store."""

    __slots__ = ("_txn", "env")

    buffer = None
    lock_timeout: float = 0.0

    def __init__(self, env: Environment, txn: RaxTransaction) -> None:
        self.env: Environment = env
        self._txn = txn

    def read(self) -> Read:
        """The transaction itself."""
        return nullcontext(self._txn)

    def submit(self, operation: Callable[[WriteTransaction], T]) -> T:
        """TransactionError: nothing is written here."""
        raise TransactionError("a transaction to read in takes no write")


class StoreSource:
    """The Source of a store's own handles."""

    __slots__ = ("buffer", "closed", "env", "lock_timeout", "read", "share", "transaction")

    def __init__(self, share: Share, lock_timeout: float) -> None:
        self.transaction: Callable[[], Callable[[], Any] | None] | None = None  # a weak Store.transaction, for workers
        self.share: Share = share
        env = share.env
        self.env: Environment = env
        self.lock_timeout: float = lock_timeout
        is_buffered = env.options.durability == "buffered" and not env.readonly
        self.buffer: WriteBuffer | None = env.attached(WriteBuffer) if is_buffered else None
        # No method of its own: a source that is dropped, with its share, is gone at once.
        self.read: Callable[[], Read] = partial(_read_flushed, env) if is_buffered else env.read
        self.closed: bool = False

    def require_open(self) -> None:
        """StoreClosed once the store has been closed; StoreError in a child of a fork that Python has not seen."""
        self.env.require_usable()
        if self.closed:
            self._refuse()

    def require_writable(self, to: str) -> None:
        """StoreClosed, or ReadOnlyStore where the store is open with readonly=True."""
        if self.closed:
            self._refuse()
        if self.env.readonly:
            raise ReadOnlyStore(f"{self.env.path} is open with readonly=True; open it without to {to}")

    def submit(self, operation: Callable[[WriteTransaction], T], timeout: float | None = None) -> T:
        """Group commit: durable when it returns. ``timeout``: another one than the store's."""
        if self.closed:
            self._refuse()
        buffer = self.buffer  # once: a close() takes it away
        if buffer is not None:
            buffer.flush()
        return self.env.commits.submit(operation, self.lock_timeout if timeout is None else timeout)

    def submit_all(self, operations: Sequence[Callable[[WriteTransaction], object]]) -> list[Call]:
        """submit() of many operations by one thread: Commits.submit_all()."""
        if self.closed:
            self._refuse()
        buffer = self.buffer  # once: a close() takes it away
        if buffer is not None:
            buffer.flush()
        return self.env.commits.submit_all(operations, self.lock_timeout)

    def begin(self) -> Generator[WriteTransaction, bool, None]:
        """An exclusive transaction of this thread, behind all that has been appended before: Commits.alone()."""
        buffer = self.buffer  # once: a close() takes it away
        if buffer is not None:
            buffer.flush()
        return self.env.commits.alone(self.lock_timeout)

    def close(self) -> None:
        """Give back the share, and refuse every call from now on, even where others keep the environment open.

        TransactionError inside a transaction. AppendsLost, with all closed, where it has not been raised yet.
        """
        buffer = self.buffer
        self.share.close()
        try:
            if buffer is not None:
                buffer.flush(report=True)
        except AppendsLost:
            self._end()
            raise
        self._end()

    def _end(self) -> None:
        self.closed = True
        self.buffer = None
        self.read = self._refuse

    def _refuse(self) -> NoReturn:
        raise closed(self.env.path)


def _read_flushed(env: Environment) -> Read:
    env.attached(WriteBuffer).flush()
    return env.read()
