"""Transactions: any number of calls on streams, groups, state and subjects, in one commit or none.

    with store.transaction() as tx:
        batch = tx.group("orders", "billing").read("w1", count=100)
        tx.stream("invoices").extend(...)
        tx.group("orders", "billing").ack([entry.id for entry in batch])
        tx.state[b"offset"] = b"..."
                                            <- one flush here, and all of it is on disk

The transaction holds the store's write lock from beginning to end: it sees its own changes at once
and no others; other writers wait, and readers go on reading the state before it. An exception
undoes all of it. It belongs to the thread that began it.

It cannot be replayed, as grouped calls are when the map is full. So room is made before it
begins: the map grows first when less than a quarter, or 64 MB, is free.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload
from weakref import ref

from .index.pubsub.pubsub import Binding, PubSub, Reached
from .storage.errors import NotOwner, TransactionError
from .storage.fork_hooks import look
from .storage.handles import made_by_a_call
from .storage.log.transaction import WriteTransaction
from .storage.tree.lmdb_errors import is_failure, translate_error
from .stream.entries.retention import Retention
from .stream.entries.session import Source, StoreSource
from .stream.group.group import Group
from .stream.multi_read import Asked, Found, read_group_streams, read_streams
from .stream.node.arguments import Codec, Compression, Fields, Name, StreamOptions, Text, member_name, name_bytes
from .stream.node.stream_id import IDLike
from .stream.node.typed import Either, Kind, V
from .stream.state import State
from .stream.stream import Stream
from .stream.streams import Streams
from .stream.sweep import sweep

if TYPE_CHECKING:
    from .storage.engine.environment import Environment

_UNFINISHED = TransactionError("it was broken off")

N = TypeVar("N", bound=Name)
T = TypeVar("T")


class _TransactionSource:
    """The Source of an open transaction's handles: refused after its end and from another thread."""

    __slots__ = ("_owner",)

    buffer = None
    lock_timeout = 0.0  # the transaction has the lock

    def __init__(self, owner: Transaction) -> None:
        self._owner = owner

    @property
    def env(self) -> Environment:
        """The environment it belongs to."""
        return self._owner._store_source.env

    def read(self) -> _TransactionSource:
        """The transaction itself, with everything still in memory flushed."""
        return self

    def __enter__(self) -> WriteTransaction:
        return self._owner._flushed()

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, operation: Callable[[WriteTransaction], T]) -> T:
        """Apply the operation at once."""
        return self._owner._apply(operation)


class _Exit:
    """``Transaction.__exit__``: a `with` gets a callable that the transaction ends with, however the `with` is left.

    An exception from outside (a signal's handler) can strike on the first step of any ``__exit__`` that is
    written in Python, before its first line. The `with` has looked ``__exit__`` up before, and keeps what it
    found on the interpreter's own stack, nowhere else: so that owns the open transaction. Dropped without
    having run, it undoes it.
    """

    def __get__(self, tx: Transaction | None, owner: type[Transaction]) -> Any:
        if tx is None:
            return self
        leave = partial(Transaction._leave, tx)
        if tx._txn is None:
            tx._owner = ref(leave)
        return leave

    def __call__(self, tx: Transaction, *raised: Any) -> None:  # as ExitStack does
        tx._leave(*raised)


class CommitScope:
    """The calls that can be part of one commit, of a transaction or of a pipeline (pipeline.py)."""

    __slots__ = ("_pubsub", "_source", "_streams")

    def __init__(self, streams: Streams, pubsub: PubSub, source: Source) -> None:
        self._streams = streams.bound(source)
        self._pubsub = pubsub
        self._source = source

    def _open(self) -> Source:
        return self._source

    @overload
    def stream(self, name: Name, *, type: type[V] | None = None, retention: Retention | None = None,
               **options: Unpack[StreamOptions]) -> Stream[V]: ...

    @overload
    def stream(self, name: Name, *, type: Kind, retention: Retention | None = None,
               **options: Unpack[StreamOptions]) -> Stream[Either]: ...

    def stream(self, name: Name, *, compression: Compression | None = None, node_max_bytes: int | None = None,
               node_max_entries: int | None = None, codec: Codec | None = None, retention: Retention | None = None,
               type: Kind = None) -> Stream[Either]:
        """The stream of that name, inside this commit; the options are those of Store.stream()."""
        self._open()
        return self._streams.handle(name, compression, node_max_bytes, node_max_entries, codec, type, retention)

    def group(self, stream: Name, group: Name) -> Group:
        """A consumer group of a stream, inside this commit."""
        return Group(self._open(), name_bytes(stream), member_name(group, "group"), self._streams.encoding)

    @property
    def state(self) -> State:
        """The durable key-value space, inside this commit."""
        return State(self._open(), self._streams.encoding)

    def publish(self, subject: Text, fields: Fields) -> Reached:
        """Store.publish() as part of the commit: subscribers get the message after the commit."""
        return self._open().submit(self._pubsub.publication(subject, fields))

    def bind(self, subject: Text, stream: Name) -> Binding:
        """Store.bind()."""
        return self._pubsub.bind(subject, stream, self._open())

    def unbind(self, subject: Text | None, stream: Name) -> bool:
        """Store.unbind()."""
        return self._pubsub.unbind(subject, stream, self._open())

    def streams(self) -> list[Text]:
        """Store.streams()."""
        self._open()
        return self._streams.names()

    def streams_between(self, start: Name, end: Name | None = None, count: int | None = None) -> list[Text]:
        """The names of streams from ``start`` up to ``end``, which is not one of them, in order: ``count`` at most.

        In the order of their bytes. Costs what it returns, as ``state.between()`` does.
        """
        self._open()
        return self._streams.names_between(name_bytes(start), None if end is None else name_bytes(end), count)

    def rename_stream(self, old: Name, new: Name) -> bool:
        """Store.rename_stream()."""
        self._open()
        return self._streams.rename(old, new)

    def copy_stream(self, name: Name, to: Name) -> None:
        """Store.copy_stream()."""
        self._open()
        self._streams.copy(name, to)

    def restore_stream(self, name: Name, payload: bytes, *, replace: bool = False) -> None:
        """Store.restore_stream()."""
        self._open()
        self._streams.restore(name, payload, replace)

    def delete_stream(self, name: Name) -> bool:
        """Store.delete_stream(); its space is freed after the commit."""
        self._open()
        return self._streams.delete(name)

    def read(self, streams: Asked[N], count: int | None = None, *, total: int | None = None,
             max_bytes: int | None = None) -> Found[N]:
        """Store.read(), which sees the changes made so far."""
        return read_streams(self._open(), streams, count, 0, total, max_bytes, None, self._streams.encoding)

    def read_group(self, group: Name, consumer: Name, streams: Asked[N], count: int | None = None, *,
                   total: int | None = None, max_bytes: int | None = None, noack: bool = False,
                   claim_idle: float | None = None,
                   ack: Mapping[N, Iterable[IDLike]] | None = None) -> Found[N]:
        """Store.read_group()."""
        return read_group_streams(self._open(), group, consumer, streams, count, 0, total, max_bytes, noack,
                                  claim_idle, ack, None, self._streams.encoding)


class Transaction(CommitScope):
    """All or nothing, one commit: made by ``store.transaction()``, used with ``with``."""

    __slots__ = ("_ended", "_owner", "_spoiled", "_steps", "_store_source", "_thread", "_txn")

    @made_by_a_call
    def __init__(self, source: StoreSource, streams: Streams, pubsub: PubSub) -> None:
        super().__init__(streams, pubsub, _TransactionSource(self))
        self._store_source = source
        self._txn: WriteTransaction | None = None
        self._thread = 0
        self._ended = False
        self._spoiled: BaseException | None = None
        self._owner: Callable[[], Any] = lambda: None  # the last looked-up __exit__, while it exists
        self._steps: Generator[WriteTransaction, bool, None] | None = None  # where no `with` owns them

    def __enter__(self) -> Self:
        if self._ended or self._txn is not None:
            raise TransactionError("a transaction is used once; begin another with store.transaction()")
        steps = self._store_source.begin()
        try:
            self._txn = next(steps)
            self._thread = threading.get_ident()
            owner = self._owner()
            if owner is None:
                self._steps = steps
            else:
                owner.steps = steps
        except BaseException:
            steps.close()
            raise
        return self

    __exit__: _Exit = _Exit()

    def _leave(self, kind: type[BaseException] | None, error: BaseException | None,
               trace: TracebackType | None) -> None:
        self._require()
        self._ended = True
        keep = error is None and self._spoiled is None
        with suppress(StopIteration):  # no local name: the owner alone keeps the transaction open
            (self._steps or self._owner().steps).send(keep)
        if keep:
            sweep(self._store_source)
        elif error is None:
            if isinstance(self._spoiled, NotOwner):
                raise self._spoiled
            raise TransactionError(
                f"a call inside the transaction failed half way ({self._spoiled}), so all of it was undone"
            ) from self._spoiled

    def _open(self) -> Source:
        self._require()
        return self._source

    def _require(self) -> None:
        """TransactionError unless the transaction is open and this is its thread."""
        look()
        if self._txn is None:
            raise TransactionError("the transaction has not begun; use it as: with store.transaction() as tx")
        if self._ended:
            raise TransactionError("the transaction has ended; begin another with store.transaction()")
        if threading.get_ident() != self._thread:
            raise TransactionError("a transaction belongs to the thread that began it; this is another one")
        if self._store_source.env.commits.open_write is not self._txn:
            raise TransactionError("the transaction was begun in another process, before a fork; it ends there")

    def _apply(self, operation: Callable[[WriteTransaction], T]) -> T:
        """One call inside the transaction. A failure that left changes spoils the whole, and so does NotOwner."""
        self._require()
        txn = self._txn
        assert txn is not None
        before = txn.changes
        spoiled, self._spoiled = self._spoiled, _UNFINISHED
        try:
            result = operation(txn)
        except BaseException as error:
            if is_failure(error):  # a full map, for one: LMDB takes nothing more in this transaction
                self._spoiled = translate_error(self._store_source.env.path, error)
                raise self._spoiled from error
            untouched = txn.is_untouched(before, error) and not isinstance(error, NotOwner)
            self._spoiled = spoiled if untouched else error
            raise
        self._spoiled = spoiled
        return result

    def _flushed(self) -> WriteTransaction:
        """The transaction with nothing left in memory, so that reads see all of it."""
        self._apply(WriteTransaction.flush)
        assert self._txn is not None
        return self._txn
