"""Results: what became of an entry, kept for a time, and found by a name.

    n  27  name                  ->  [expires (ms since 1970), value]     a group's: its name, 0, the entry's ID (16)
    n  28  expires (8)  name     ->  []                                   the same, in the order in which they expire

Each that is put removes up to so many of those that have expired, so that they go as fast as they come.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import msgpack

from ...storage.commit.write_transaction import WriteTransaction
from ...storage.format import keys, records
from ...storage.trees.rax import Rax, RaxTransaction
from ..entries import header as headers
from ..node.stream_id import IDLike, now_ms, parse_id

_AT_ONCE = 10  # expired results that each new one removes


class Result(NamedTuple):
    """The return value of the handler for an entry or, if the entry was given up, the error."""

    value: Any
    error: str | None = None

    def packed(self) -> bytes:
        """The result as bytes; a value that msgpack cannot hold is an error that says so."""
        try:
            raw: bytes = msgpack.packb([self.value, self.error])
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            what = f"{type(error).__name__}: {self.value!r:.100} cannot be kept as a result: {error}"
            raw = msgpack.packb([None, what.encode(errors="replace").decode()])
        return raw

    @classmethod
    def unpacked(cls, raw: bytes) -> Result:
        """The inverse of packed(), with lists for tuples."""
        return cls(*msgpack.unpackb(raw, strict_map_key=False))


def put(txn: WriteTransaction, number: int, name: bytes, value: bytes, ttl: int) -> None:
    """Keep a value for ``ttl`` ms, in place of an older one of its name."""
    now = now_ms()
    by_name, by_time = keys.family(number, keys.RESULT), keys.family(number, keys.RESULT_AGE)
    old = txn.get(by_name + name)
    if old is not None:
        txn.delete(by_time + _age(records.unseal(by_name + name, old)[0], name))
    expires = now + ttl
    age = by_time + _age(expires, name)
    txn.put(by_name + name, records.seal(by_name + name, [expires, value]))
    txn.put(age, records.seal(age, []))
    ages = Rax(txn, by_time)
    for _ in range(_AT_ONCE):
        first = ages.first()
        if first is None or int.from_bytes(first[0][:8], "big") > now:
            return
        ages.remove(first[0])
        txn.delete(by_name + first[0][8:])


def get(txn: RaxTransaction, number: int, name: bytes) -> bytes | None:
    """The value of that name, if it is there and has not expired."""
    key = keys.family(number, keys.RESULT) + name
    found = txn.get(key)
    if found is None:
        return None
    expires, value = records.unseal(key, found)[:2]
    return value if expires > now_ms() else None


def name_of(group: bytes, sid: IDLike) -> bytes:
    """The name of a group's result."""
    return group + b"\0" + bytes(parse_id(sid))


def result_moves(txn: RaxTransaction, stream: bytes, name: bytes) -> Hashable:
    """A result to wait for: None until it is there. About 5 µs."""
    number = headers.number_of(txn, stream)
    return None if number is None else get(txn, number, name)


def _age(expires: int, name: bytes) -> bytes:
    return expires.to_bytes(8, "big") + name
