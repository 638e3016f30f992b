"""Buckets: up to 112 pending entries of a consumer group in one record.

    ids        5-0 5-1 6-0 9-0     16 bytes each, ascending, in one bin
    consumers      1               ONE number where all are equal, which is the usual
    times        7000              case (a bucket is what one read delivered) ...
    counts      1 1 2 1            ... else a list with a number for each entry
    numbers        0               running numbers of released entries, 0 if owned
    keys           a. b. a. ..     17 bytes each in one bin: the entry's key and what it is to
                                   it (parking.py), zeros for none; empty if no entry has one

    row   [ids, consumers, base, offsets, counts, numbers]      a time is base + its offset
    row   [ids, consumers, base, offsets, counts, numbers, keys]          if there are keys

A Nack is what a bucket holds of one entry. A released entry has no owner: its consumer is 0,
its time the time it falls due, and its running number is its place in the order of release.

A value above 2,006 bytes would leave LMDB's leaf page for overflow pages, so a bucket is cut
where its record would exceed 2,001. Full IDs and equal columns allow 112 entries; with a time
of its own for each it is about 100, with keys 59. Packing and comparing whole columns is what makes it
cheap: a batch that is delivered and acknowledged whole is never looked at entry by entry.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

from ...storage.errors import CorruptionError
from ...storage.format.records import FORMAT_BYTE, checksum, pack, seed_of, unseal
from ..node.stream_id import unpack_id

SOURCE_HASH = ""

ID: TypeAlias = tuple[int, int]
Column: TypeAlias = int | list[int]

CAPACITY = 112
MAX_VALUE = 2001
_KEY = 17
_NO_KEY = bytes(_KEY)
_BOTH = 16 + _KEY


class Nack(NamedTuple):
    """One pending entry, as its group records it.

    ``consumer`` is the owner's number, 0 when released. ``time`` is the delivery time in
    milliseconds or, when released, the time from which the entry may be claimed. ``count`` is
    how often it was delivered. ``released`` is its place among the entries that fall due in
    the same millisecond, 0 for an owned entry. ``key`` is the entry's key and what it is to it,
    17 bytes, b"" for none.
    """

    consumer: int
    time: int
    count: int  # type: ignore[assignment]  # hides tuple.count(), of which a Nack has no need
    released: int = 0
    key: bytes = b""


_nack: Callable[[Iterable[Any]], Nack] = partial(tuple.__new__, Nack)  # twice as fast as Nack()


def unpack_ids(packed: bytes) -> list[ID]:
    """The inverse of pack_ids() of packed_ids.py."""
    if len(packed) == 16:
        return [unpack_id(packed)]
    halves = iter(struct.unpack(f">{len(packed) // 8}Q", packed))
    return list(zip(halves, halves, strict=True))


def column(values: list[int]) -> Column:
    """One number if all are equal, the list itself if not."""
    first = values[0]
    last = values[len(values) - 1]
    return first if first == last and values.count(first) == len(values) else values


def longer(values: Column, old: int, value: int, new: int) -> Column:
    """A column of so many entries with one value for further ones."""
    if isinstance(values, int):
        if values == value:
            return values
        values = [values] * old
    return values + [value] * new


def without_some(values: Column, low: int, high: int) -> Column:
    """A column without the places from ``low`` up to ``high``."""
    return values if isinstance(values, int) else column(values[:low] + values[high:])


# In the kernel these five are C (bucket.pxd): a loop over a column there makes no object, and a record no list.

def cut_out(row: bytes, begin: int, end: int) -> bytes:  # cimport
    """The bytes without those from one place up to another."""
    return row[:begin] + row[end:]


def least_of(times: list[int]) -> int:  # cimport
    """The least of these times."""
    return min(times)


def place_of(ids: bytes, packed: bytes) -> int:  # cimport
    """The place of these IDs, in a row, within a row of IDs; -1 if they are not there, one behind the other."""
    at = ids.find(packed)
    while at > 0 and at % 16:  # the same bytes across two IDs
        at = ids.find(packed, at + 1)
    return at if at < 0 else at // 16


def is_behind(packed: bytes, ids: bytes) -> bool:  # cimport
    """Whether the first ID of one row is greater than the last one of the other."""
    return packed[:16] > ids[-16:]


def record_of(seed: int, together: bytes, consumers: Column, base: int, times: Column,  # cimport
              counts: Column, numbers: Column, has_keys: bool) -> bytes:
    """The record of a bucket. ``seed``: the hash of its key."""
    offsets = 0 if isinstance(times, int) else [time - base for time in times]
    row = [together, consumers, base, offsets, counts, numbers, _KEY]
    body = FORMAT_BYTE + pack(row if has_keys else row[:6])
    record: bytes = checksum(body, seed)[::-1] + body
    return record


def packed_keys(keys: Sequence[bytes]) -> bytes:
    """The keys of entries, b"" for one that has none, as a bucket keeps them."""
    return b"".join([key or _NO_KEY for key in keys]) if any(keys) else b""


def joined(ids: bytes, keys: bytes) -> bytes:
    """IDs with their keys, each key behind its ID, as a record has them: it grows at one place, so that the log can say
    of a longer one what is new.
    """
    if len(ids) == 16:
        return ids + keys
    return b"".join([ids[16 * at : 16 * at + 16] + keys[_KEY * at : _KEY * at + _KEY] for at in range(len(ids) // 16)])


def _parted(together: bytes) -> tuple[bytes, bytes]:
    """The inverse of joined()."""
    starts = range(0, len(together), _BOTH)
    return (b"".join([together[at : at + 16] for at in starts]),
            b"".join([together[at + 16 : at + _BOTH] for at in starts]))


class Bucket:
    """One bucket in memory. Each change makes another.

    ``at`` is the key of its record, which ends with the bucket's ID: 16 bytes, at most its first entry's ID and greater
    than the last entry's of the bucket before. It never changes, whatever is removed from the bucket.
    """

    __slots__ = ("_joined", "_least", "_row", "at", "consumers", "counts", "ids", "keys", "numbers", "seed", "times",
                 "value")

    def __init__(
        self, at: bytes, ids: bytes, consumers: Column, times: Column, counts: Column,
        numbers: Column = 0, keys: bytes = b"",
    ) -> None:
        self.at: bytes = at
        self.ids: bytes = ids
        self.consumers: Column = consumers
        self.times: Column = times
        self.counts: Column = counts
        self.numbers: Column = numbers
        self.keys: bytes = keys
        self.value: bytes | None = None  # its record, once that has been made or read
        self.seed: int | None = None  # the hash of its key, where that is known
        self._row: tuple[bytes, int] | None = None  # the key of its one consumer's row, with the hash of that
        self._least: int | None = None  # of a list of times: a delivery asks three times for it
        self._joined: bytes | None = None  # the IDs with their keys, where that is known

    @classmethod
    def of(cls, at: bytes, ids: bytes, nacks: Iterable[Nack]) -> Bucket:
        """The bucket of entries with these packed IDs, at least one, ascending."""
        *columns, keys = zip(*nacks, strict=True)
        consumers, times, counts, numbers = [column(list(values)) for values in columns]
        return cls(at, ids, consumers, times, counts, numbers, packed_keys(keys))

    def _like(self, ids: bytes, consumers: Column, times: Column, counts: Column, numbers: Column,
              keys: bytes) -> Bucket:
        """This bucket with other entries."""
        bucket = Bucket(self.at, ids, consumers, times, counts, numbers, keys)
        bucket.seed = self.seed
        bucket._row = self._row if consumers == self.consumers else None
        return bucket

    # -- the record ---------------------------------------------------------------------

    @property
    def key(self) -> bytes:
        """The bucket's ID."""
        return self.at[-16:]

    def encode(self) -> bytes:
        """The record to store under its key."""
        if self.seed is None:
            self.seed = seed_of(self.at)
        together = self.ids
        if self.keys:
            if self._joined is None:
                self._joined = joined(self.ids, self.keys)
            together = self._joined
        self.value = value = record_of(self.seed, together, self.consumers, self._least_time(), self.times, self.counts,
                                       self.numbers, len(self.keys) > 0)
        return value

    @classmethod
    def decode(cls, at: bytes, value: bytes) -> Bucket:
        """The bucket stored under the key ``at``. CorruptionError if it is damaged."""
        together, consumers, base, offsets, counts, numbers, *more = unseal(at, value)
        if more not in ([], [_KEY]) or together.__class__ is not bytes or len(together) % (_BOTH if more else 16):
            raise CorruptionError(f"the IDs of pending bucket {at.hex()} are no whole number of them")
        ids, keys = _parted(together) if more else (together, b"")
        for values in (consumers, offsets, counts, numbers):
            if values.__class__ is list and len(values) * 16 != len(ids):
                raise CorruptionError(f"the columns of pending bucket {at.hex()} differ in length")
        times = [base + offset for offset in offsets] if offsets else base
        bucket = Bucket(at, ids, consumers, times, counts, numbers, keys)
        bucket._least = base
        bucket.value = value
        if more:
            bucket._joined = together
        return bucket

    def owner_row(self, family: bytes) -> tuple[bytes, int]:
        """The key of the row of its one consumer, all of which begin so, and the hash of that."""
        if self._row is None:
            assert isinstance(self.consumers, int)
            at = family + self.consumers.to_bytes(4, "big") + self.at[-16:]
            self._row = at, seed_of(at)
        return self._row

    # -- what it holds ------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.ids) // 16

    def position(self, packed: bytes) -> int:
        """The position of the entry with this ID (16 bytes), -1 if it is not here."""
        return place_of(self.ids, packed)

    def nack(self, position: int) -> Nack:
        """The Nack of one entry."""
        consumers, times, counts, numbers = self.consumers, self.times, self.counts, self.numbers
        return Nack(
            consumers if isinstance(consumers, int) else consumers[position],
            times if isinstance(times, int) else times[position],
            counts if isinstance(counts, int) else counts[position],
            numbers if isinstance(numbers, int) else numbers[position],
            self.key_at(position),
        )

    def key_at(self, position: int) -> bytes:
        """The key of one entry, and what it is to it; b"" if it has none."""
        key = self.keys[_KEY * position : _KEY * (position + 1)]
        return b"" if key == _NO_KEY else key

    def nacks(self) -> list[Nack]:
        """The Nacks of all entries; one object for all if they are equal."""
        columns = (self.consumers, self.times, self.counts, self.numbers)
        if not self.keys and list not in map(type, columns):
            return [Nack(*columns)] * len(self)  # type: ignore[arg-type]
        keys = [self.key_at(at) for at in range(len(self))] if self.keys else [b""] * len(self)
        full = [repeat(values) if isinstance(values, int) else values for values in columns]
        return list(map(_nack, zip(*full, keys)))  # noqa: B905 - repeat has no end

    def rows(self) -> list[tuple[ID, Nack]]:
        """All entries in the order of their IDs."""
        return list(zip(unpack_ids(self.ids), self.nacks(), strict=True))

    def rows_between(self, start: ID, end: ID, consumer: int | None = None) -> list[tuple[ID, Nack]]:
        """The entries from ``start`` to ``end``, both included; with ``consumer`` only its own."""
        ids = unpack_ids(self.ids)
        low, high = bisect_left(ids, start), bisect_right(ids, end)
        owners = self.consumers
        if consumer is None or owners == consumer:
            return list(zip(ids[low:high], self.nacks()[low:high], strict=True))
        if isinstance(owners, int):
            return []
        return [(ids[at], self.nack(at)) for at in range(low, high) if owners[at] == consumer]

    def owners(self) -> dict[int, int]:
        """How many entries each consumer has here. Released ones have none."""
        consumers = self.consumers
        if isinstance(consumers, int):
            return {consumers: len(self)} if consumers else {}
        counted = Counter(consumers)
        del counted[0]
        return counted

    def oldest(self) -> int | None:
        """The least delivery time of an owned entry, None if none is owned."""
        consumers, times = self.consumers, self.times
        if isinstance(consumers, int):
            return (times if isinstance(times, int) else self._least_time()) if consumers else None
        if isinstance(times, int):
            return times  # consumers differ, so one is not 0
        return min([time for time, consumer in zip(times, consumers, strict=True) if consumer])

    def _least_time(self) -> int:
        """The least of all times."""
        times = self.times
        if isinstance(times, int):
            return times
        if self._least is None:
            self._least = least_of(times)
        return self._least

    # -- changed ------------------------------------------------------------------------

    def extended(self, ids: bytes, consumer: int, time: int, count: int, keys: bytes) -> Bucket:
        """With more entries behind the last, all of one Nack but for their keys."""
        old, new = len(self.ids) // 16, len(ids) // 16
        bucket = self._like(
            self.ids + ids, longer(self.consumers, old, consumer, new), longer(self.times, old, time, new),
            longer(self.counts, old, count, new), longer(self.numbers, old, 0, new),
            (self.keys or _NO_KEY * old) + (keys or _NO_KEY * new) if self.keys or keys else b"",
        )
        if keys and self._joined is not None:
            bucket._joined = self._joined + joined(ids, keys)
        least = self._least_time()
        bucket._least = least if least < time else time
        return bucket

    def not_after(self, now: int) -> Bucket:
        """With no delivery time behind ``now``: the clock has been set back since such a one."""
        times = self.times
        if (times if isinstance(times, int) else max(times)) <= now:
            return self
        times = column([min(nack.time, now) if nack.consumer else nack.time for nack in self.nacks()])
        return self._like(self.ids, self.consumers, times, self.counts, self.numbers, self.keys)

    def with_keys(self, keys: dict[int, bytes]) -> Bucket:
        """With other keys for the entries at these positions."""
        all_keys = [keys[at] if at in keys else self.key_at(at) for at in range(len(self))]
        return self._like(self.ids, self.consumers, self.times, self.counts, self.numbers, packed_keys(all_keys))

    def part(self, at: bytes, low: int, high: int) -> Bucket:
        """The entries from position ``low`` up to ``high``, as a bucket under that key."""
        consumers, times, counts, numbers = [
            values if isinstance(values, int) else column(values[low:high])
            for values in (self.consumers, self.times, self.counts, self.numbers)
        ]
        keys = _trimmed(self.keys[_KEY * low : _KEY * high])
        return Bucket(at, self.ids[16 * low : 16 * high], consumers, times, counts, numbers, keys)

    def without_span(self, low: int, high: int) -> Bucket | None:
        """Without the entries from position ``low`` up to ``high``; None if nothing is left."""
        if high - low == len(self.ids) // 16:
            return None
        keys = self.keys
        if keys:
            keys = _trimmed(keys[: _KEY * low] + keys[_KEY * high :])
        bucket = self._like(
            cut_out(self.ids, 16 * low, 16 * high), without_some(self.consumers, low, high),
            without_some(self.times, low, high), without_some(self.counts, low, high),
            without_some(self.numbers, low, high), keys,
        )
        if self._joined is not None:
            bucket._joined = self._joined[: _BOTH * low] + self._joined[_BOTH * high :]
        return bucket

    def without(self, positions: set[int]) -> Bucket | None:
        """Without the entries at these positions; None if nothing is left."""
        kept = [at for at in range(len(self)) if at not in positions]
        if not kept:
            return None
        consumers, times, counts, numbers = [
            values if isinstance(values, int) else column([values[at] for at in kept])
            for values in (self.consumers, self.times, self.counts, self.numbers)
        ]
        ids, keys = b"".join([self.ids[16 * at : 16 * at + 16] for at in kept]), [self.key_at(at) for at in kept]
        return self._like(ids, consumers, times, counts, numbers, packed_keys(keys))


def _trimmed(keys: bytes) -> bytes:
    """These keys; b"" if none is there."""
    return keys if keys.strip(b"\0") else b""
