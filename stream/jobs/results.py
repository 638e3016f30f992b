"""Results: what became of an entry, kept for a time, and found by a name.

    n  27  name                  ->  [expires (ms since 1970), value]     a group's: its name, 0, the entry's ID (16)
    n  28  expires (8)  name     ->  []                                   the same, in the order in which they expire

    value    msgpack [value, error]; of an entry that was given up also its letter's stream and ID (16), the reason,
             how often it was delivered, and the group's number

Each that is put removes up to so many of those that have expired, so that they go as fast as they come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgpack

from ...storage.figures import Figures
from ...storage.format import keys, records
from ...storage.log.transaction import WriteTransaction
from ...storage.trees.rax import Rax, RaxTransaction
from ..node.stream_id import IDLike, now_ms, parse_id
from ..node.typed import Decoded
from .texts import described, text_of

CANCELLED = "cancelled"  # the reason of what Group.cancel() has given up
FOUND_FOR = 365 * 86_400_000  # ms for which it is found that an entry was given up
UNTIL_PASSED = 1000 * FOUND_FOR  # the same, of an entry that a read has still to pass over
_AT_ONCE = 10  # expired results that each new one removes


@dataclass(frozen=True, slots=True)
class Result(Figures):
    """What came of an entry in a group: the return value of the handler, or why there is none.

    ``status``   "ok"         the handler has returned ``value``
                 "error"      it has been kept as a result that there is none, or the value cannot be kept: ``error``
                 "dead"       the entry is a dead letter: ``error`` is that of the last try
                 "not_kept"   the entry has been acknowledged, or passed over, and no result is kept (any more)
                 "gone"       it is not in the stream any more, nor among the dead letters: deleted, trimmed, replayed
                 "unknown"    greater than each ID that the stream has had
                 "timeout"    none of these yet
    """

    value: Decoded = None
    error: str | None = None
    status: Literal["ok", "error", "dead", "not_kept", "gone", "unknown", "timeout"] = "ok"

    def __post_init__(self) -> None:
        if self.error is not None and self.status == "ok":
            object.__setattr__(self, "status", "error")


def packed(result: Result) -> bytes:
    """The result as bytes; a value that msgpack cannot hold, or not read back, is an error that says so."""
    try:
        raw: bytes = msgpack.packb([result.value, result.error])
        unpacked(raw)
    except Exception as error:
        value = text_of(lambda: f"{result.value!r:.100}")
        raw = msgpack.packb([None, f"{value} cannot be kept as a result: {described(error)}"])
    return raw


def unpacked(raw: bytes) -> Result:
    """The inverse of packed(), with lists for tuples."""
    value, error, *_ = msgpack.unpackb(raw, strict_map_key=False)
    return Result(value, error)


class Given(NamedTuple):
    """Why an entry was given up, and where its letter is."""

    letters: bytes
    letter: bytes
    reason: str
    deliveries: int
    group: int

    def packed(self, error: str) -> bytes:
        """The value of the entry."""
        raw: bytes = msgpack.packb([None, error, *self])
        return raw

    @classmethod
    def unpacked(cls, raw: bytes) -> Given | None:
        """Of an entry's value; None where it has a result."""
        _, _, *given = msgpack.unpackb(raw, strict_map_key=False)
        return cls(*given) if given else None


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
    """The name of a group's result: with the name's hash where that is too long for a key."""
    limit = keys.MAX_INLINE_NAME
    known = group if len(group) <= limit else group[:limit] + keys.sha256(group)
    return known + b"\0" + bytes(parse_id(sid))


def _age(expires: int, name: bytes) -> bytes:
    return expires.to_bytes(8, "big") + name
