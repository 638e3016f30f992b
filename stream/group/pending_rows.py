"""The rows of a pending list: its buckets and the indexes over them, found and written.

    34  group, 5-0   [5-0 … 9-0]      112 entries          a bucket lies under its ID: at most
    34  group, 9-1   [9-4 … 9-7]        4 entries          its first entry's, set when it is made

    35  group, consumer 1, 5-0   [80]                      where one consumer's entries lie
    35  group, consumer 2, 5-0   [32]
    35  group, consumer 2, 9-1   [3]
    36  group, time 7000, 5-0    []                        buckets by their oldest delivery
    36  group, time 7350, 9-1    []
    37  group, due 7400, number 1    [9, 5]                released entries, one row each

An ID belongs to the last bucket whose ID is not greater. Only an ID before all buckets needs
one more, and that is made under 0-0, so no bucket ever has to change its key. Whoever changes
a bucket says what it was and what it is: only the index rows that differ are written.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, takewhile
from operator import itemgetter

from ...storage.errors import CorruptionError
from ...storage.format.keys import (
    PENDING,
    PENDING_BY_CONSUMER,
    PENDING_BY_TIME,
    RELEASED,
    group_family,
)
from ...storage.format.records import seal, unseal
from ...storage.trees.rax import RaxTransaction, family_rows
from ..node.stream_id import unpack_id
from .bucket import MAX_VALUE, Bucket, Nack

SOURCE_HASH = ""

_BY_CONSUMER, _BY_TIME, _RELEASED = bytes([PENDING_BY_CONSUMER]), bytes([PENDING_BY_TIME]), bytes([RELEASED])
FIRST = bytes(16)  # 0-0, which no entry can have
_BEHIND = b"\xff" * 16  # no ID is greater
_BEYOND = b"\xff" * 32  # no key of an index is as long
_BUCKET = itemgetter(slice(-16, None))  # of a key of an index: the ID that its bucket is known by


class PendingRows:
    """The rows of one group's pending list, within one transaction.

    Every method raises CorruptionError where a row it reads is damaged or missing.
    """

    __slots__ = (
        "_buckets", "_by_consumer", "_by_time", "_capacity", "_cursor", "_group", "_released",
        "_txn",
    )

    def __init__(self, txn: RaxTransaction, number: int, group: int, capacity: int) -> None:
        self._txn = txn
        self._group = group
        self._capacity = capacity
        self._buckets = family = group_family(number, PENDING, group)
        head, tail = family[:8], family[9:]
        self._by_consumer = head + _BY_CONSUMER + tail
        self._by_time = head + _BY_TIME + tail
        self._released = head + _RELEASED + tail
        self._cursor = txn.cursor()  # moved only within a call, never across two

    # -- writing ------------------------------------------------------------------------

    def _replace(self, old: Bucket | None, new: Bucket | None) -> None:
        """Store a bucket in the old one's place, in even parts if it is beyond a limit."""
        if new is not None:
            value = new.encode(self._buckets + new.key)
            parts = max(-(-len(new) // self._capacity), 1 + (len(value) > MAX_VALUE))
            if parts > 1:
                for low, high in pairwise([len(new) * at // parts for at in range(parts + 1)]):
                    key = new.ids[16 * low : 16 * low + 16] if low else new.key
                    self._replace(None if low else old, new.part(key, low, high))
                return
            self._put(old, new, value)
        elif old is not None:
            self._put(old, None, b"")

    def _put(self, old: Bucket | None, new: Bucket | None, value: bytes) -> None:
        """Write what differs between a bucket as it was and as it is: its row and the indexes'.

        ``value`` is the record of the new one.
        """
        put, delete = self._txn.put, self._txn.delete
        bucket = new or old
        assert bucket is not None
        if new is None:
            delete(self._buckets + bucket.key)
        else:
            put(self._buckets + bucket.key, value)
        had = old.owners() if old is not None else {}
        has = new.owners() if new is not None else {}
        for consumer in had:
            if consumer not in has:
                delete(self._consumer_key(consumer, bucket.key))
        for consumer, count in has.items():
            if had.get(consumer) != count:
                at = self._consumer_key(consumer, bucket.key)
                put(at, seal(at, (count,)))
        was = old.oldest() if old is not None else None
        now = new.oldest() if new is not None else None
        if was != now:
            if was is not None:
                delete(self._by_time + was.to_bytes(8, "big") + bucket.key)
            if now is not None:
                at = self._by_time + now.to_bytes(8, "big") + bucket.key
                put(at, seal(at, ()))

    # -- finding rows -------------------------------------------------------------------

    def _consumer_key(self, consumer: int, key: bytes) -> bytes:
        return self._by_consumer + consumer.to_bytes(4, "big") + key

    def _released_key(self, nack: Nack) -> bytes:
        return self._released + nack.time.to_bytes(8, "big") + nack.released.to_bytes(8, "big")

    def _last_number(self, due: int) -> int:
        """The greatest running number given to an entry due at that time, 0 if there is none."""
        prefix = self._released + due.to_bytes(8, "big")
        item = self._floor_item(prefix + _BEHIND[:8])
        if item is None or not item[0].startswith(prefix):
            return 0
        return int.from_bytes(item[0][-8:], "big")

    def _bucket(self, key: bytes) -> Bucket:
        """The bucket that an index row names by its ID."""
        at = self._buckets + key
        value = self._txn.get(at)
        if value is None:
            raise self._corrupt(f"the bucket {_shown(key)} is missing")
        return Bucket.decode(at, value)

    def _floor(self, packed: bytes) -> Bucket | None:
        """The bucket in which an entry with this ID lies, or would."""
        item = self._floor_item(self._buckets + packed)
        if item is None or not item[0].startswith(self._buckets):
            return None
        return Bucket.decode(*item)

    def _last_bucket(self) -> Bucket | None:
        return self._floor(_BEHIND)

    def _floor_item(self, full: bytes) -> tuple[bytes, bytes] | None:
        """The row with the greatest key <= ``full``, of whatever family."""
        cursor = self._cursor
        if cursor.set_range(full):
            item = cursor.item()
            if item[0] == full:
                return item
            return cursor.item() if cursor.prev() else None
        return cursor.item() if cursor.last() else None

    def _key_after(self, packed: bytes) -> bytes | None:
        """The ID of the first bucket behind this ID."""
        if self._cursor.set_range(self._buckets + packed + b"\0"):
            key: bytes = self._cursor.key()
            if key.startswith(self._buckets):
                return key[-16:]
        return None

    def _from(self, prefix: bytes, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows of one family from a key on, over a cursor of their own."""
        return family_rows(self._txn, prefix, prefix + start)

    def _ids_under(self, prefix: bytes) -> set[bytes]:
        """The IDs of the buckets that the rows of an index lead to. About 0.2 µs a row."""
        cursor = self._txn.cursor()
        keys = cursor.iternext(values=False) if cursor.set_range(prefix) else ()
        return set(map(_BUCKET, takewhile((prefix + _BEYOND).__gt__, keys)))

    def _lying_with(self, consumer: int, first: bytes) -> Iterator[tuple[bytes, int]]:
        """The buckets that hold some of a consumer's entries, with how many.

        From the last that begins at ``first`` or before.
        """
        prefix = self._consumer_key(consumer, b"")
        item = self._floor_item(prefix + first)
        start = item[0][-16:] if item is not None and item[0].startswith(prefix) else first
        for key, value in self._from(prefix, start):
            yield key[-16:], unseal(key, value)[0]

    def _first_with(self, consumer: int, most: int | None) -> list[tuple[bytes, int]]:
        """The first buckets that hold ``most`` of a consumer's entries together; all that hold any."""
        found = []
        entries = 0
        for key, count in self._lying_with(consumer, FIRST):
            found.append((key, count))
            entries += count
            if most is not None and entries >= most:
                break
        return found

    def _corrupt(self, what: str) -> CorruptionError:
        number = int.from_bytes(self._buckets[:8], "big")
        return CorruptionError(f"group {self._group}'s pending list: {what}", stream=str(number))


def _shown(key: bytes) -> str:
    ms, seq = unpack_id(key[-16:])
    return f"{ms}-{seq}"
