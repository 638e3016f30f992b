"""The durable key-value space beside the streams: ``store.state``, ``tx.state``."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, MutableMapping, ValuesView
from functools import partial
from itertools import islice, takewhile
from typing import Any, TypeVar, overload

from ..storage.errors import CorruptionError, InvalidArgument, InvalidName
from ..storage.format import keys, records
from ..storage.handles import made_by_a_call
from ..storage.log.transaction import WriteTransaction
from ..storage.trees.rax import Rax, RaxTransaction, family_rows
from .entries.header import shown
from .entries.session import PIECE, Source
from .node.arguments import Fields, Name, Text, Value, stored_bytes, text_of

MAX_STATE_VALUE = 1 << 24

_STATE = keys.family(0, keys.STATE)
_COUNT = 5  # its index in the store's own record
_NONE: Any = object()

T = TypeVar("T")


class State(MutableMapping[Name, bytes]):
    """A small durable key-value space next to the streams: one sorted map of names to bytes. Made by store.state.

    Keys come as names do, as text or bytes, in the order of their bytes; values are bytes. Keys take up to 502 bytes,
    values up to 16 MB; InvalidArgument beyond that. In a transaction, ``tx.state`` is part of it; ``store.state`` reads
    the last committed state, and each call that writes through it is one commit, of many keys too, but for clear().
    """

    __slots__ = ("_encoding", "_source")

    @made_by_a_call
    def __init__(self, source: Source, encoding: str | None = None) -> None:
        self._source = source
        self._encoding = encoding

    def __getitem__(self, key: Name) -> bytes:
        full = _state_key(key)
        with self._source.read() as txn:
            value = txn.get(full)
        if value is None:
            raise KeyError(key)
        stored: bytes = records.unseal(full, value)[0]
        return stored

    def __setitem__(self, key: Name, value: Value) -> None:
        full, sealed = _sealed(key, value)
        self._source.submit(lambda txn: _put(txn, full, sealed))

    def __delitem__(self, key: Name) -> None:
        full = _state_key(key)
        if not self._source.submit(lambda txn: _delete(txn, full)):
            raise KeyError(key)

    @overload
    def pop(self, key: Name, /) -> bytes: ...
    @overload
    def pop(self, key: Name, /, default: bytes) -> bytes: ...
    @overload
    def pop(self, key: Name, /, default: T) -> bytes | T: ...
    def pop(self, key: Name, /, default: object = _NONE) -> object:
        """Delete a key and return its value, to one caller only; ``default`` where there is none, or KeyError."""
        full = _state_key(key)
        value = self._source.submit(lambda txn: _take(txn, full))
        if value is None and default is _NONE:
            raise KeyError(key)
        return default if value is None else value

    def popitem(self) -> tuple[Name, bytes]:
        """Delete the first key, and return it with its value, to one caller only. KeyError: there is none."""

        def operation(txn: WriteTransaction) -> tuple[bytes, bytes] | None:
            first = first_key_from(txn, b"")
            return None if first is None else (first, _take(txn, _state_key(first)) or b"")

        item = self._source.submit(operation)
        if item is None:
            raise KeyError("popitem(): there are no keys")
        return text_of(item[0], self._encoding), item[1]

    def setdefault(self, key: Name, default: Value = b"") -> bytes:
        """What the key holds; where there is no such key, it is set to ``default``, by one caller only."""
        full, sealed = _sealed(key, default)

        def operation(txn: WriteTransaction) -> bytes:
            present = txn.get(full)
            if present is None:
                _put(txn, full, sealed)
            value: bytes = records.unseal(full, sealed if present is None else present)[0]
            return value

        return self._source.submit(operation)

    def update(self, other: Fields = (), /, **more: Value) -> None:  # type: ignore[override]  # of pairs, too
        """Set keys, as dict.update() does, all of them in one commit. Bad input: none is set."""
        rows = dict(_sealed(key, value) for key, value in dict(other, **more).items())  # type: ignore[arg-type]

        def operation(txn: WriteTransaction) -> None:
            _add_to_count(txn, sum(txn.get(full) is None for full in rows))
            for full, sealed in rows.items():
                txn.put(full, sealed)

        self._source.submit(operation)

    def clear(self) -> None:
        """Delete all keys, in pieces of 10,000; in a transaction at once. A key that is set beside it may stay."""
        start: bytes | None = _STATE
        while start is not None:
            start = self._source.submit(partial(_delete_from, start))

    def __contains__(self, key: object) -> bool:
        with self._source.read() as txn:
            return txn.get(_state_key(key)) is not None  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Text]:
        return iter([key for key, _ in rows_of(self)])

    def between(self, start: Name, end: Name | None = None, count: int | None = None) -> list[Text]:
        """Keys from ``start`` up to but not including ``end``, in order, at most ``count``. Reads no values."""
        return [text_of(key, self._encoding) for key in keys_between(self, start, end, count)]

    def items(self) -> ItemsView[Name, bytes]:
        """Keys and values of one moment, like a dict's."""
        return _Items(self)

    def values(self) -> ValuesView[bytes]:
        """The values of one moment, in the order of their keys."""
        return _Values(self)

    def __len__(self) -> int:
        with self._source.read() as txn:
            count = _count(txn)
            return Rax(txn, _STATE).numele if count is None else count


def keys_between(state: State, start: Name, end: Name | None = None, count: int | None = None) -> list[bytes]:
    """State.between(), in bytes."""
    last = None if end is None else _state_key(end)
    with state._source.read() as txn:
        rows = takewhile(lambda row: last is None or row[0] < last, family_rows(txn, _STATE, _state_key(start)))
        return [bytes(key[len(_STATE):]) for key, _ in islice(rows, count)]


def rows_of(state: State) -> list[tuple[Text, bytes]]:
    """All keys with their values, of one moment, in order. CorruptionError if a value is missing."""
    with state._source.read() as txn:
        rows = list(Rax(txn, _STATE).items())
        count = _count(txn)
    found = len(dict(rows))  # a damaged page can lead to one key twice, and past another
    if found != len(rows) or (count is not None and found != count):
        raise CorruptionError(f"{found} keys of state are found, and {count} are counted: some have vanished")
    return [(text_of(key, state._encoding), records.unseal(_STATE + key, value)[0]) for key, value in rows]


class _Items(ItemsView[Name, bytes]):
    _mapping: State

    def __iter__(self) -> Iterator[tuple[Name, bytes]]:
        return iter(rows_of(self._mapping))


class _Values(ValuesView[bytes]):
    _mapping: State

    def __iter__(self) -> Iterator[bytes]:
        return iter([value for _, value in rows_of(self._mapping)])


def row_of(txn: RaxTransaction, key: bytes) -> bytes | None:
    """What a key holds, as it is stored: for waits, which see it change."""
    value: bytes | None = txn.get(_state_key(key))
    return value


def first_key_from(txn: RaxTransaction, start: bytes) -> bytes | None:
    """The first key that is not before ``start``: for waits, too."""
    return next((bytes(key[len(_STATE):]) for key, _ in family_rows(txn, _STATE, _state_key(start))), None)


def _count(txn: RaxTransaction) -> int | None:
    """How many keys of state there are; None in a store made before they were counted."""
    value = txn.get(keys.STORE_KEY)
    row = [] if value is None else records.unseal(keys.STORE_KEY, value)
    return row[_COUNT] if len(row) > _COUNT else None


def _add_to_count(txn: WriteTransaction, change: int) -> None:
    row = records.unseal(keys.STORE_KEY, txn.get(keys.STORE_KEY) or b"")
    if change and len(row) > _COUNT:
        row[_COUNT] += change
        txn.put(keys.STORE_KEY, records.seal(keys.STORE_KEY, row))


def _sealed(key: Name, value: Value) -> tuple[bytes, bytes]:
    full = _state_key(key)
    try:
        stored = stored_bytes(value, "state value")
    except InvalidName as error:
        raise InvalidArgument(f"the value of state key {shown(full[9:])[:60]}: {error}") from None
    if len(stored) > MAX_STATE_VALUE:
        raise InvalidArgument(f"the state value has {len(stored)} bytes; {MAX_STATE_VALUE} are allowed")
    return full, records.seal(full, [stored])


def _put(txn: WriteTransaction, full: bytes, sealed: bytes) -> None:
    if txn.get(full) is None:
        _add_to_count(txn, 1)
    txn.put(full, sealed)


def _delete(txn: WriteTransaction, full: bytes) -> bool:
    if txn.get(full) is None:
        return False
    _add_to_count(txn, -1)
    return txn.delete(full)


def _delete_from(start: bytes, txn: WriteTransaction) -> bytes | None:
    """Delete keys from one on; the last of them, where there may be more."""
    found = [bytes(row[0]) for row in islice(family_rows(txn, _STATE, start), PIECE)]
    _add_to_count(txn, -sum(txn.delete(full) for full in found))
    return found[-1] if len(found) == PIECE else None


def _take(txn: WriteTransaction, full: bytes) -> bytes | None:
    """Delete a key. What it held, None where there was none; CorruptionError before anything is changed."""
    value = txn.get(full)
    if value is None:
        return None
    name: bytes = records.unseal(full, value)[0]
    _delete(txn, full)
    return name


def _state_key(key: Name) -> bytes:
    raw = stored_bytes(key, "state key")
    if len(raw) > keys.MAX_NAME:
        raise InvalidArgument(f"the state key {raw[:20]!r}… has {len(raw)} bytes; {keys.MAX_NAME} are allowed")
    return _STATE + raw
