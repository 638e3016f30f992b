"""The durable key-value space beside the streams: ``store.state``, ``tx.state``."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, MutableMapping, ValuesView
from itertools import islice, takewhile

from ..storage.commit.write_transaction import WriteTransaction
from ..storage.errors import CorruptionError, InvalidArgument
from ..storage.format import keys, records
from ..storage.trees.rax import Rax, RaxTransaction, family_rows
from .entries.session import Source
from .node.arguments import Name, Value, stored_bytes

MAX_STATE_VALUE = 1 << 24

_STATE = keys.family(0, keys.STATE)
_COUNT = 5  # its index in the store's own record


class State(MutableMapping[Name, bytes]):
    """A small durable key-value space next to the streams: one sorted map of bytes to bytes.

    Keys take up to 502 bytes, values up to 16 MB; InvalidArgument beyond that. In a transaction,
    ``tx.state`` is part of it; ``store.state`` reads the last committed state, and each write
    through it is a commit of its own.
    """

    __slots__ = ("_source",)

    def __init__(self, source: Source) -> None:
        self._source = source

    def bound(self, source: Source) -> State:
        """The same map, with calls that are part of something else, such as a transaction."""
        return State(source)

    def __getitem__(self, key: Name) -> bytes:
        full = _state_key(key)
        with self._source.read() as txn:
            value = txn.get(full)
        if value is None:
            raise KeyError(key)
        stored: bytes = records.unseal(full, value)[0]
        return stored

    def __setitem__(self, key: Name, value: Value) -> None:
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

    def __delitem__(self, key: Name) -> None:
        full = _state_key(key)

        def operation(txn: WriteTransaction) -> bool:
            if txn.get(full) is None:
                return False
            _add_to_count(txn, -1)
            return txn.delete(full)

        if not self._source.submit(operation):
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        with self._source.read() as txn:
            return txn.get(_state_key(key)) is not None  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[bytes]:
        return iter([key for key, _ in self.rows()])

    def between(self, start: Name, end: Name | None = None, count: int | None = None) -> list[bytes]:
        """Keys from ``start`` up to but not including ``end``, in order, at most ``count``. Reads no values."""
        last = None if end is None else _state_key(end)
        with self._source.read() as txn:
            rows = takewhile(lambda row: last is None or row[0] < last, family_rows(txn, _STATE, _state_key(start)))
            return [bytes(key[len(_STATE):]) for key, _ in islice(rows, count)]

    def items(self) -> ItemsView[Name, bytes]:
        """Keys and values of one moment, like a dict's."""
        return _Items(self)

    def values(self) -> ValuesView[bytes]:
        """The values of one moment, in the order of their keys."""
        return _Values(self)

    def rows(self) -> list[tuple[bytes, bytes]]:
        """All keys with their values, of one moment, in order. CorruptionError if a value is missing."""
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


class _Items(ItemsView[Name, bytes]):
    _mapping: State

    def __iter__(self) -> Iterator[tuple[Name, bytes]]:
        return iter(self._mapping.rows())


class _Values(ValuesView[bytes]):
    _mapping: State

    def __iter__(self) -> Iterator[bytes]:
        return iter([value for _, value in self._mapping.rows()])


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
    if len(row) > _COUNT:
        row[_COUNT] += change
        txn.put(keys.STORE_KEY, records.seal(keys.STORE_KEY, row))


def _state_key(key: Name) -> bytes:
    raw = stored_bytes(key, "state key")
    if len(raw) > keys.MAX_NAME:
        raise InvalidArgument(f"the state key {raw[:20]!r}… has {len(raw)} bytes; {keys.MAX_NAME} are allowed")
    return _STATE + raw
