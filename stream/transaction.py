"""Transactions: any number of calls on streams, groups and state, in one commit or none.

    with store.transaction() as tx:
        batch = tx.group("orders", "billing").read("w1", count=100)
        tx.stream("invoices").extend(...)
        tx.group("orders", "billing").ack(*[entry.id for entry in batch])
        tx.state[b"offset"] = b"..."
                                            <- one flush here, and all of it is on disk

The transaction holds the store's one write lock from beginning to end, so it sees nobody
else's changes and its own at once; others that write wait, and readers go on reading what was
before. An exception undoes all of it. It belongs to the thread that began it.

It cannot be replayed, as grouped calls are when the map is full. So room is made before it
begins: the map grows first when less than a quarter, or 64 MB, is free.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, ItemsView, Iterator, MutableMapping, ValuesView
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar
from weakref import ref

import lmdb

from ..storage.commit.write_transaction import WriteTransaction
from ..storage.errors import CorruptionError, InvalidArgument, NotOwner, TransactionError
from ..storage.files.lmdb_errors import translate_error
from ..storage.format import keys, records
from ..storage.trees.rax import Rax
from .entries.header import NodeLimits
from .entries.session import Direct, Source, Within
from .entries.sweep import sweep
from .group.group import Group
from .node.names import member_name, name_bytes, stored_bytes
from .stream import Stream

MAX_STATE_VALUE = 1 << 24

_UNFINISHED = TransactionError("it was broken off")

T = TypeVar("T")


class State(MutableMapping[Any, bytes]):
    """A small durable key-value space beside the streams: bytes to bytes, in one sorted map.

    Keys take up to 502 bytes, values up to 16 MB; InvalidArgument beyond. Inside a transaction
    changes are part of it; ``store.state`` reads the last committed state, and a write through
    it is a commit of its own.
    """

    __slots__ = ("_source",)

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitem__(self, key: Any) -> bytes:
        full = _state_key(key)
        with self._source.read() as txn:
            value = txn.get(full)
        if value is None:
            raise KeyError(key)
        stored: bytes = records.unseal(full, value)[0]
        return stored

    def __setitem__(self, key: Any, value: Any) -> None:
        full = _state_key(key)
        stored = stored_bytes(value, "state value")
        if len(stored) > MAX_STATE_VALUE:
            raise InvalidArgument(f"the state value has {len(stored)} bytes; {MAX_STATE_VALUE} are allowed")
        sealed = records.seal(full, [stored])

        def operation(txn: WriteTransaction) -> None:
            if txn.get(full) is None:
                _add_to_count(txn, 1)
            txn.put(full, sealed)

        self._source.submit(operation)

    def __delitem__(self, key: Any) -> None:
        full = _state_key(key)

        def operation(txn: WriteTransaction) -> bool:
            if txn.get(full) is None:
                return False
            _add_to_count(txn, -1)
            return txn.delete(full)

        if not self._source.submit(operation):
            raise KeyError(key)

    def __iter__(self) -> Iterator[bytes]:
        return iter([key for key, _ in self.rows()])

    def items(self) -> ItemsView[Any, bytes]:
        """Keys and values of one moment, as in a dict."""
        return _Items(self)

    def values(self) -> ValuesView[bytes]:
        """The values of one moment, in the order of their keys."""
        return _Values(self)

    def rows(self) -> list[tuple[bytes, bytes]]:
        """All keys with their values, of one moment, in order. CorruptionError if one is missing."""
        with self._source.read() as txn:
            rows = list(Rax(txn, _STATE).items())
            count = _count(txn)
        there = len(dict(rows))  # a damaged page can lead to one key twice, and past another
        if there != len(rows) or (count is not None and there != count):
            raise CorruptionError(f"{there} keys of state are found, and {count} are counted: some have vanished")
        return [(key, records.unseal(_STATE + key, value)[0]) for key, value in rows]

    def __len__(self) -> int:
        with self._source.read() as txn:
            count = _count(txn)
            return Rax(txn, _STATE).numele if count is None else count


class _Items(ItemsView[Any, bytes]):
    _mapping: State

    def __iter__(self) -> Iterator[tuple[Any, bytes]]:
        return iter(self._mapping.rows())


class _Values(ValuesView[bytes]):
    _mapping: State

    def __iter__(self) -> Iterator[bytes]:
        return iter([value for _, value in self._mapping.rows()])


_STATE = keys.family(0, keys.STATE)
_COUNT = 5  # its place in the store's own record


def _count(txn: Any) -> int | None:
    """How many keys of state there are; None in a store made before they were counted."""
    value = txn.get(keys.STORE_KEY)
    row = [] if value is None else records.unseal(keys.STORE_KEY, value)
    return row[_COUNT] if len(row) > _COUNT else None


def _add_to_count(txn: WriteTransaction, change: int) -> None:
    row = records.unseal(keys.STORE_KEY, txn.get(keys.STORE_KEY) or b"")
    if len(row) > _COUNT:
        row[_COUNT] += change
        txn.put(keys.STORE_KEY, records.seal(keys.STORE_KEY, row))


def _state_key(key: Any) -> bytes:
    raw = stored_bytes(key, "state key")
    if len(raw) > keys.MAX_NAME:
        raise InvalidArgument(f"the state key {raw[:20]!r}… has {len(raw)} bytes; {keys.MAX_NAME} are allowed")
    return _STATE + raw


class _Guarded(Within):
    """Calls inside a transaction, refused after its end and from another thread."""

    __slots__ = ("_owner",)

    def __init__(self, owner: Transaction, txn: WriteTransaction) -> None:
        super().__init__(txn)
        self._owner = owner

    def __enter__(self) -> WriteTransaction:
        return self._owner.flushed()

    def submit(self, operation: Callable[[WriteTransaction], T]) -> T:
        return self._owner.apply(operation)


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


class Transaction:
    """All or nothing, one commit: made by ``store.transaction()``, used with ``with``."""

    __slots__ = ("_direct", "_encoding", "_ended", "_limits", "_owner", "_source", "_spoiled", "_steps", "_thread",
                 "_txn")

    def __init__(self, direct: Direct, encoding: str | None, limits: NodeLimits) -> None:
        self._direct = direct
        self._encoding = encoding
        self._limits = limits
        self._txn: WriteTransaction | None = None
        self._source: Source | None = None
        self._thread = 0
        self._ended = False
        self._spoiled: BaseException | None = None
        self._owner: Callable[[], Any] = lambda: None  # what __exit__ was looked up as last, while it is there
        self._steps: Generator[WriteTransaction, bool, None] | None = None  # where no `with` owns them

    def __enter__(self) -> Self:
        if self._ended or self._txn is not None:
            raise TransactionError("a transaction is used once; begin another with store.transaction()")
        steps = self._direct.begin()
        try:
            self._txn = next(steps)
            self._thread = threading.get_ident()
            self._source = _Guarded(self, self._txn)
            owner = self._owner()
            if owner is None:
                self._steps = steps
            else:
                owner.steps = steps
        except BaseException:
            steps.close()
            raise
        return self

    __exit__ = _Exit()

    def _leave(self, kind: type[BaseException] | None, error: BaseException | None,
               trace: TracebackType | None) -> None:
        self.require()
        self._ended = True
        keep = error is None and self._spoiled is None
        with suppress(StopIteration):  # no local name: the owner alone keeps the transaction open
            (self._steps or self._owner().steps).send(keep)
        if keep:
            sweep(self._direct)
        elif error is None:
            if isinstance(self._spoiled, NotOwner):
                raise self._spoiled
            raise TransactionError(
                f"a call inside the transaction failed half way ({self._spoiled}), so all of it was undone"
            ) from self._spoiled

    def stream(self, name: Any) -> Stream:
        """The stream of that name, inside this transaction."""
        return Stream(self._open(), name_bytes(name), self._limits, self._encoding)

    def group(self, stream: Any, group: Any) -> Group:
        """A consumer group of a stream, inside this transaction."""
        return Group(self._open(), name_bytes(stream), member_name(group, "group"), self._encoding)

    @property
    def state(self) -> State:
        """The durable key-value space, inside this transaction."""
        return State(self._open())

    def _open(self) -> Source:
        self.require()
        assert self._source is not None
        return self._source

    def require(self) -> None:
        """TransactionError unless the transaction is open and this is its thread."""
        if self._txn is None:
            raise TransactionError("the transaction has not begun; use it as: with store.transaction() as tx")
        if self._ended:
            raise TransactionError("the transaction has ended; begin another with store.transaction()")
        if threading.get_ident() != self._thread:
            raise TransactionError("a transaction belongs to the thread that began it; this is another one")
        if self._direct.env.commits.open_write is not self._txn.raw:
            raise TransactionError("the transaction was begun in another process, before a fork; it ends there")

    def apply(self, operation: Callable[[WriteTransaction], T]) -> T:
        """One call inside the transaction. A failure that left changes spoils the whole, and so does NotOwner."""
        self.require()
        txn = self._txn
        assert txn is not None
        before = txn.changes
        spoiled, self._spoiled = self._spoiled, _UNFINISHED
        try:
            result = operation(txn)
        except lmdb.Error as error:  # a full map, for one: LMDB takes nothing more in this transaction
            self._spoiled = translate_error(self._direct.env.path, error)
            raise self._spoiled from error
        except BaseException as error:
            untouched = txn.is_untouched(before, error) and not isinstance(error, NotOwner)
            self._spoiled = spoiled if untouched else error
            raise
        self._spoiled = spoiled
        return result

    def flushed(self) -> WriteTransaction:
        """The transaction with nothing left in memory, so that reads see all of it."""
        self.apply(WriteTransaction.flush)
        assert self._txn is not None
        return self._txn
