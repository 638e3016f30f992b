"""The pending entries list (PEL) of one consumer group: what was delivered and not yet acknowledged.

    34  group, 5-0   [5-0 … 9-0]      112 entries          a bucket's key is its ID: at most
    34  group, 9-1   [9-4 … 9-7]        4 entries          its first entry's, set when it is made

    35  group, consumer 1, 5-0   [80]                      which buckets hold a consumer's entries
    35  group, consumer 2, 5-0   [32]
    35  group, consumer 2, 9-1   [3]
    36  group, time 7000, 5-0    []                        buckets by their oldest delivery
    36  group, time 7350, 9-1    []
    37  group, due 7400, number 1    [9, 5]                released entries, one row each

An ID belongs to the last bucket whose ID is not greater. Only an ID before all buckets needs
one more, and that is made under 0-0, so no bucket ever has to change its key. A change of a bucket
compares it with what it was: only the index rows that differ are written.

A batch of new entries costs three puts and its acknowledgement three deletes, for up to 112
entries: where all of a bucket are equal and go together, none is examined by itself.

The oldest entries come from a merge: buckets are opened in the order of their oldest time, and
only when an entry not yet seen could come before the next one to be returned.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import islice, pairwise, repeat, takewhile
from operator import itemgetter

from ...storage.errors import CorruptionError
from ...storage.format.keys import PENDING, PENDING_BY_CONSUMER, PENDING_BY_TIME, RELEASED, group_family
from ...storage.format.records import (
    FORMAT_BYTE,
    checksum,
    pack,
    seal,  # cimport
    seed_of,
    unseal,
)
from ...storage.log.cursor import (
    NEXT,
    LogCursor,  # cimport
    cursor_over,  # cimport
)
from ...storage.trees.rax import RaxTransaction, family_rows
from ..node.packed_ids import pack_ids  # cimport
from ..node.stream_id import MAX64, StreamID, pack_id, unpack_id
from .bucket import (
    CAPACITY,
    ID,
    MAX_VALUE,
    Bucket,  # cimport
    Nack,
    column,  # cimport
    is_behind,  # cimport
    packed_keys,
    place_of,  # cimport
    unpack_ids,
)

__all__ = ["ID", "Nack", "PendingList"]

SOURCE_HASH = ""

_BY_CONSUMER, _BY_TIME, _RELEASED = bytes([PENDING_BY_CONSUMER]), bytes([PENDING_BY_TIME]), bytes([RELEASED])
_FIRST = bytes(16)  # 0-0, which no entry can have
_BEHIND = b"\xff" * 16  # no ID is greater
_BEYOND = b"\xff" * 32  # no key of an index is as long
_BUCKET = itemgetter(slice(-16, None))  # of a key of an index: the ID that its bucket is known by
_FEW = 256  # buckets
_MOST_KNOWN = 4
_NO_KEYS: Mapping[ID, bytes] = {}
_COUNTED = [FORMAT_BYTE + pack((count,)) for count in range(CAPACITY + 1)]  # rows of consumers, but for the checksum
_TIMED = FORMAT_BYTE + pack(())


# In the kernel these three are C (pending_list.pxd): they reach the transaction past Python.

def row_at(txn: RaxTransaction, key: bytes) -> bytes | None:  # cimport
    """The value of a key."""
    value: bytes | None = txn.get(key)
    return value


def put_row(txn: RaxTransaction, key: bytes, value: bytes) -> None:  # cimport
    """Store a value."""
    txn.put(key, value)


def put_sealed(txn: RaxTransaction, key: bytes, body: bytes, seed: int) -> None:  # cimport
    """Store a record with its checksum in front. ``seed``: the hash of the key."""
    txn.put(key, checksum(body, seed)[::-1] + body)


class KnownBuckets:
    """The buckets of one list that were read or written last, decoded: each counts for the value that it is of.

    ``last``: the key of the list's last bucket, from the call that has found it until one that makes or deletes a
    bucket. It counts in the transaction of that call and in those that follow with nothing undone. ``families``: how
    the keys of the list's rows begin.
    """

    __slots__ = ("_rows", "families", "last")

    def __init__(self, number: int, group: int) -> None:
        self._rows: dict[bytes, Bucket] = {}
        self.last: bytes | None = None
        family = group_family(number, PENDING, group)
        head, tail = family[:8], family[9:]
        self.families: tuple[bytes, bytes, bytes, bytes] = (
            family, head + _BY_CONSUMER + tail, head + _BY_TIME + tail, head + _RELEASED + tail)

    def decoded(self, at: bytes, value: bytes) -> Bucket:
        """The bucket stored under the key ``at``."""
        known = self._rows.get(at)
        return known if known is not None and known.value == value else self.keep(Bucket.decode(at, value))

    def holder(self, txn: RaxTransaction, packed: bytes) -> Bucket | None:
        """The one of these that holds the entry with this ID, which is in no other; None where none does."""
        for bucket in self._rows.values():
            if place_of(bucket.ids, packed) >= 0 and row_at(txn, bucket.at) == bucket.value:
                return bucket
        return None

    def keep(self, bucket: Bucket) -> Bucket:
        """Keep this one, which it returns, and three others at most."""
        if len(self._rows) >= _MOST_KNOWN and bucket.at not in self._rows:
            self._rows.clear()
        self._rows[bucket.at] = bucket
        return bucket


class PendingList:
    """The pending entries of group ``group`` of stream ``number``, within one transaction.

    ``capacity`` is the most entries a bucket takes. Consumers are numbers from 1, IDs plain
    pairs, times and counts integers from 0 to 2**64 - 1. In the buckets that it writes no delivery
    time stays behind ``now``, where that is given; where it adds entries it looks at the last
    time only. An entry keeps its key until another one is given for it. Nothing is kept between
    calls but a cursor, and ``known``. An iterator is to be used up, or dropped, before the next call
    that writes. Every method raises CorruptionError where a row it reads is damaged or missing.
    """

    __slots__ = (
        "_buckets", "_by_consumer", "_by_time", "_capacity", "_group", "_known", "_moved", "_now", "_released", "_txn",
    )

    def __init__(self, txn: RaxTransaction, number: int, group: int, capacity: int = CAPACITY, now: int = 0,
                 known: KnownBuckets | None = None) -> None:
        self._txn = txn
        self._group = group
        self._capacity = capacity
        self._now = now
        self._known = KnownBuckets(number, group) if known is None else known
        self._buckets, self._by_consumer, self._by_time, self._released = self._known.families
        self._moved: LogCursor | None = None  # once it is needed; moved only within a call, never across two

    # -- delivering, claiming -----------------------------------------------------------

    def add(self, ids: Sequence[ID], consumer: int, time: int, count: int = 1) -> list[tuple[ID, Nack]]:
        """Make entries pending with ``consumer``. For a read of new entries (XREADGROUP >).

        ``ids`` ascend. Those that were pending already move to the consumer with the new time
        and count; they are returned with what they were. New entries behind the last pending
        one cost one look at the last bucket and three puts for each 112.
        """
        return self.add_row(pack_ids(ids), consumer, time, count)

    def add_row(self, packed: bytes, consumer: int, time: int, count: int = 1,
                keys: Mapping[ID, bytes] = _NO_KEYS) -> list[tuple[ID, Nack]]:
        """add() for IDs in a row (packed_ids.py), with the keys of some of them."""
        if not packed:
            return []
        last = self._last_bucket()
        if last is None or is_behind(packed, last.ids):
            row = packed_keys([keys.get(sid, b"") for sid in unpack_ids(packed)]) if keys else b""
            self._append(last, packed, consumer, time, count, row)
            return []
        found = self._upsert(list(zip(unpack_ids(packed), repeat(Nack(consumer, time, count)))), keys)
        return [(sid, was) for sid, was in found if was is not None]

    def set(self, rows: Iterable[tuple[ID, int, int, int]],
            keys: Mapping[ID, bytes] = _NO_KEYS) -> list[tuple[ID, Nack | None]]:
        """Set owner, time and count of entries, pending or not. XCLAIM and its FORCE.

        ``rows`` are (id, consumer, time, count) in any order; the last for an ID counts. Each
        ID is returned, ascending, with what it was (None if it was not pending). A bucket
        touched is read and written once.
        """
        nacks = {sid: Nack(consumer, time, count) for sid, consumer, time, count in rows}
        return self._upsert(sorted(nacks.items()), keys)

    def change(self, rows: Iterable[tuple[ID, int, int, int]],
               keys: Mapping[ID, bytes] = _NO_KEYS) -> list[tuple[ID, Nack]]:
        """set() for entries that have been read as pending. CorruptionError where one is not found any more.

        In a damaged page LMDB's way to a bucket depends on where it comes from, and a second one would be made.
        """
        found = []
        for sid, was in self.set(rows, keys):
            if was is None:
                raise self._corrupt(f"the entry {StreamID(*sid)} has been read, and a look-up does not find it")
            found.append((sid, was))
        return found

    def release(self, rows: Sequence[tuple[ID, int, int]], insert: bool = False,
                keys: Mapping[ID, bytes] = _NO_KEYS) -> list[tuple[ID, Nack | None]]:
        """Release entries, last among those due at their time. XNACK.

        ``rows`` are (id, count, due); their order is the order of release, and the last row
        for an ID counts. IDs that are not pending are passed over, or with ``insert`` made
        pending (FORCE). Returns those released, ascending, with what they were.
        """
        numbers: dict[int, int] = {}
        released: dict[ID, Nack] = {}
        for sid, count, due in rows:
            number = numbers.get(due)
            if number is None:
                number = self._last_number(due)
            numbers[due] = number + 1
            released[sid] = Nack(0, due, count, number + 1)
        return self._upsert(sorted(released.items()), keys, insert)

    def set_keys(self, keys: Mapping[ID, bytes]) -> None:
        """Give entries that are pending other keys; b"": none. The others are passed over."""
        for bucket, touched in self._touched(sorted(keys)):
            places = {sid: at for at, (sid, _) in enumerate(bucket.rows())}
            self._replace(bucket, bucket.with_keys({places[sid]: keys[sid] for sid in touched if sid in places}))

    def hand_over(self, consumer: int, to: int, time: int | None = None, limit: int | None = None) -> int:
        """Move all of one consumer's entries to another; how many there were.

        Their counts stay, and their delivery times unless ``time`` is given. With ``limit`` only
        so many, and those in one bucket with the last of them.
        """
        moved = 0
        for key, count in self._first_with(consumer, limit):
            old = self._bucket(key)
            moved += count
            consumers, times = old.consumers, old.times
            if time is not None:
                times = time if isinstance(consumers, int) else column([
                    time if owner == consumer else was
                    for owner, was in zip(consumers, _spread(times, len(old)), strict=True)
                ])
            consumers = to if isinstance(consumers, int) else column([
                to if owner == consumer else owner for owner in consumers
            ])
            self._replace(old, Bucket(old.at, old.ids, consumers, times, old.counts, old.numbers, old.keys))
        return moved

    # -- acknowledging ------------------------------------------------------------------

    def remove_row(self, packed: bytes) -> dict[int, int]:
        """remove() for IDs in a row; of how many entries each consumer was the owner (0: released).

        Neighbouring entries of one consumer are not examined one by one.
        """
        if not packed:
            return {}
        old = self._holder(packed if len(packed) == 16 else packed[:16])
        if old is not None and isinstance(old.consumers, int) and old.numbers == 0:
            low = old.position(packed)
            if low >= 0:
                count = len(packed) // 16
                self._replace(old, old.without_span(low, low + count))
                return {old.consumers: count}
        return dict(Counter([nack.consumer for _, nack in self.remove(unpack_ids(packed))]))

    def remove(self, ids: Sequence[ID]) -> list[tuple[ID, Nack]]:
        """Remove entries, given in ascending order; those that were pending. XACK.

        Whole buckets cost three deletes, others are rewritten once each.
        """
        gone: list[tuple[ID, Nack]] = []
        for old, touched in self._touched(ids):
            gone += self._remove_from(old, touched, pack_ids(touched))
        return gone

    def _touched(self, ids: Sequence[ID]) -> Iterator[tuple[Bucket, Sequence[ID]]]:
        """Each bucket that may hold some of the IDs, which ascend, with those IDs. The one before it may be changed."""
        start, count = 0, len(ids)
        while start < count:
            packed = pack_id(*ids[start])
            bucket = self._holder(packed)
            end = start if bucket is None else bisect_right(ids, unpack_id(bucket.ids[-16:]), start)
            if bucket is not None and end > start:
                yield bucket, ids[start:end]
                start = end
            else:
                following = self._key_after(packed)
                start = count if following is None else bisect_left(ids, unpack_id(following), start)

    def _remove_from(self, old: Bucket, ids: Sequence[ID], packed: bytes) -> list[tuple[ID, Nack]]:
        """Remove those of the IDs that the bucket holds."""
        low = old.position(packed)
        if low >= 0:  # a run of the bucket, often all of it
            high = low + len(ids)
            new = old.without_span(low, high)
            nacks = old.nacks()[low:high] if 4 * len(ids) > len(old) else [old.nack(at) for at in range(low, high)]
        else:
            places = {sid: at for at, (sid, _) in enumerate(old.rows())}
            ids = [sid for sid in ids if sid in places]
            if not ids:
                return []
            all_nacks = old.nacks()
            nacks = [all_nacks[places[sid]] for sid in ids]
            new = old.without({places[sid] for sid in ids})
        if old.numbers != 0:
            for nack in nacks:
                if nack.released:
                    self._txn.delete(self._released_key(nack))
        self._replace(old, new)
        return list(zip(ids, nacks, strict=True))

    def drop_consumer(self, consumer: int, limit: int | None = None) -> list[tuple[ID, Nack]]:
        """Remove all of a consumer's entries; which they were, ascending. XGROUP DELCONSUMER. ``limit`` as above."""
        dropped: list[tuple[ID, Nack]] = []
        for key, _ in self._first_with(consumer, limit):
            bucket = self._bucket(key)
            if bucket.consumers == consumer:
                dropped += bucket.rows()
                self._replace(bucket, None)
                continue
            mine: set[int] = set()
            for at, (sid, nack) in enumerate(bucket.rows()):
                if nack.consumer == consumer:
                    mine.add(at)
                    dropped.append((sid, nack))
            self._replace(bucket, bucket.without(mine))
        return dropped

    def clear(self, limit: int) -> bool:
        """Delete up to ``limit`` rows of the list, of all kinds; whether none is left.

        For a destroyed group: until it is True the rest is no whole list any more.
        """
        for prefix in (self._released, self._by_time, self._by_consumer, self._buckets):
            for key, _ in list(islice(self._from(prefix, b""), limit + 1)):
                if limit == 0:
                    return False
                self._txn.delete(key)
                limit -= 1
        return True

    # -- queries ------------------------------------------------------------------------

    def get(self, sid: ID) -> Nack | None:
        """The Nack of one entry, None if it is not pending. One bucket."""
        packed = pack_id(*sid)
        bucket = self._floor(packed)
        if bucket is None:
            return None
        position = bucket.position(packed)
        return None if position < 0 else bucket.nack(position)

    def find(self, ids: Iterable[ID]) -> dict[ID, Nack]:
        """The Nacks of those of the IDs that are pending. A bucket touched is read once."""
        found: dict[ID, Nack] = {}
        for bucket, touched in self._touched(sorted(ids)):
            rows = dict(bucket.rows())
            found.update((sid, rows[sid]) for sid in touched if sid in rows)
        return found

    def first(self) -> ID | None:
        """The least pending ID."""
        for key, value in self._from(self._buckets, b""):
            return unpack_id(Bucket.decode(key, value).ids[:16])
        return None

    def last(self) -> ID | None:
        """The greatest pending ID."""
        bucket = self._last_bucket()
        return None if bucket is None else unpack_id(bucket.ids[-16:])

    def scan(self, start: ID, end: ID, consumer: int | None = None) -> Iterator[tuple[ID, Nack]]:
        """The entries from ``start`` to ``end``, both included, in the order of their IDs.

        With ``consumer`` only its own, and only buckets that hold some are read; released
        entries have no consumer. XPENDING with a range, XAUTOCLAIM, and a consumer's history.
        """
        first, last = pack_id(*start), pack_id(*end)
        if consumer is not None:
            for key, _ in self._buckets_of(consumer, first):
                if key > last:
                    return
                yield from self._bucket(key).rows_between(start, end, consumer)
            return
        floor = self._floor(first)
        before = b""
        for key, value in self._from(self._buckets, first if floor is None else floor.key):
            if key[-16:] > last:
                return
            if key[-16:] <= before:
                raise self._corrupt(f"the bucket {shown_id(key)} begins among the entries of the one before it")
            bucket = Bucket.decode(key, value)
            before = bucket.ids[-16:]
            yield from bucket.rows_between(start, end)

    def scan_idle(self, start: ID, end: ID, before: int) -> Iterator[tuple[ID, Nack]]:
        """scan(), of what was delivered at ``before`` or earlier, or released; others may be among it.

        Where few buckets hold such entries they are found by the rows by time, and only they are read.
        """
        keys: set[bytes] = set()
        few = 0
        for few, (key, value) in enumerate(islice(self._from(self._by_time, b""), _FEW), 1):
            unseal(key, value)
            if int.from_bytes(key[-24:-16], "big") > before:
                few = 0
                break
            keys.add(key[-16:])
        for more, (key, value) in enumerate(islice(self._from(self._released, b""), _FEW), 1):
            bucket = self._floor(pack_id(*unseal(key, value)))
            if more == _FEW or bucket is None:
                few = _FEW
                break
            keys.add(bucket.key)
        if few == _FEW:
            yield from self.scan(start, end)
            return
        floor = self._floor(pack_id(*start))
        for key in sorted(keys):
            if key > pack_id(*end):
                return
            if floor is None or key >= floor.key:
                yield from self._bucket(key).rows_between(start, end)
        if self._ids_under(self._by_time) != self._ids_under(self._by_consumer):
            raise self._corrupt("the rows by time and those by consumer lead to other buckets")

    def held(self, consumer: int) -> int:
        """How many entries the consumer has, by its rows. Reads one row for each bucket with some."""
        return sum(count for _, count in self._buckets_of(consumer, _FIRST))

    def is_whole(self, pending: int) -> bool:
        """Whether all index rows are there for a list of so many entries. Reads each row once.

        CorruptionError where one is damaged: under a wrong time it would not be reached.
        """
        # Sets, since a damaged page can show one row twice in the place of another.
        owned = {key: unseal(key, value)[0] for key, value in self._from(self._by_consumer, b"")}
        timed = set()
        for key, value in self._from(self._by_time, b""):
            unseal(key, value)
            timed.add(key[-16:])
        released = set()
        for key, value in self._from(self._released, b""):
            unseal(key, value)
            released.add(key)
        buckets = {key[-16:] for key, _ in self._from(self._buckets, b"")}
        listed = {key[-16:] for key in owned}
        return listed == timed <= buckets and sum(owned.values()) + len(released) == pending

    def oldest(self, before: int) -> Iterator[tuple[ID, Nack]]:
        """Owned entries delivered at ``before`` or earlier, by (time, id). XREADGROUP's CLAIM.

        Opens the buckets that hold the answer and those that could have held a part of it.
        """
        heap: list[_Run] = []
        for key, value in self._from(self._by_time, b""):
            unseal(key, value)
            time = int.from_bytes(key[-24:-16], "big")
            if time > before:
                break
            yield from _merged(heap, (time, unpack_id(key[-16:])))
            bucket = self._bucket(key[-16:])
            self._require_newest(bucket)
            rows = bucket.rows()
            if not (isinstance(bucket.consumers, int) and isinstance(bucket.times, int)):
                rows = [row for row in rows if row[1].consumer and row[1].time <= before]
                rows.sort(key=_by_age)
            if rows:
                heappush(heap, (_by_age(rows[0]), 0, rows))
        yield from _merged(heap, (MAX64 + 1, (0, 0)))

    def _require_newest(self, bucket: Bucket) -> None:
        """CorruptionError where the owners' rows count other entries than the bucket has.

        In a page whose keys are out of order LMDB may put a row beside the one it should replace,
        and reach the old one later.
        """
        for consumer, count in bucket.owners().items():
            key = self._consumer_key(consumer, bucket.key)
            value = self._txn.get(key)
            if value is None or unseal(key, value)[0] != count:
                at = StreamID.from_bytes(bucket.key)
                raise self._corrupt(f"the bucket {at} is not the one that its consumers' rows count")

    def oldest_time(self) -> int | None:
        """The earliest delivery time among the owned entries; None where there is none. One seek."""
        for key, _ in self._from(self._by_time, b""):
            return int.from_bytes(key[-24:-16], "big")
        return None

    def ahead(self, now: int, limit: int) -> list[bytes]:
        """The first so many buckets all of whose delivery times are behind ``now``. One seek where there is none."""
        rows = self._from(self._by_time, (now + 1).to_bytes(8, "big"))
        return [key[-16:] for key, _ in islice(rows, limit)]

    def set_back(self, limit: int) -> int:
        """Set the times in so many of these to the list's ``now``; how many they were."""
        keys = self.ahead(self._now, limit)
        for key in keys:
            bucket = self._bucket(key)
            self._replace(bucket, bucket)
        return len(keys)

    def released(self, now: int) -> Iterator[tuple[ID, Nack]]:
        """Released entries that are due at ``now``: by due time, then first released, first."""
        bucket: Bucket | None = None
        for key, value in self._from(self._released, b""):
            if int.from_bytes(key[-16:-8], "big") > now:
                return
            ms, seq = unseal(key, value)
            packed = pack_id(ms, seq)
            position = -1 if bucket is None else bucket.position(packed)
            if bucket is None or position < 0:
                bucket = self._floor(packed)
                position = -1 if bucket is None else bucket.position(packed)
                if bucket is None or position < 0:
                    raise self._corrupt(f"the released entry {ms}-{seq} is not pending")
            yield (ms, seq), bucket.nack(position)

    def next_due(self) -> int | None:
        """When the first released entry falls due, None if there is none that ever does. One seek."""
        for key, _ in self._from(self._released, b""):
            due = int.from_bytes(key[-16:-8], "big")
            return None if due == MAX64 else due
        return None

    # -- changing buckets ---------------------------------------------------------------

    def _append(self, last: Bucket | None, packed: bytes, consumer: int, time: int, count: int, keys: bytes) -> None:
        """Store new entries behind the last bucket, or in it if they all fit.

        A bucket with room for only some of them is left as it is: any two neighbours hold
        more than one could, and a batch is not torn over records without need.
        """
        if last is not None and (len(last.ids) + len(packed)) // 16 <= self._capacity:
            longer = last.extended(packed, consumer, time, count, keys)
            times = last.times
            if 0 < self._now < (times if isinstance(times, int) else times[len(times) - 1]):
                longer = longer.not_after(self._now)
            if len(longer.encode()) <= MAX_VALUE:
                self._put(last, longer)
                return
        self._replace(None, Bucket(self._buckets + packed[:16], packed, consumer, time, count, 0, keys))

    def _upsert(self, rows: list[tuple[ID, Nack]], keys: Mapping[ID, bytes],
                insert: bool = True) -> list[tuple[ID, Nack | None]]:
        """Set ascending entries to their Nacks, but for the key; those set, with what they were."""
        found: list[tuple[ID, Nack | None]] = []
        start = 0
        while start < len(rows):
            packed = pack_id(*rows[start][0])
            old = self._floor(packed)
            following = self._key_after(packed)
            end = len(rows)
            if following is not None:
                end = bisect_left(rows, (unpack_id(following),), start)
            table = {} if old is None else dict(old.rows())
            before = len(found)
            for sid, nack in rows[start:end]:
                was = table.get(sid)
                if was is None and not insert:
                    continue
                found.append((sid, was))
                key = keys.get(sid, b"" if was is None else was.key)
                table[sid] = nack._replace(key=key) if key else nack
                if was is not None and was.released:
                    self._txn.delete(self._released_key(was))
                if nack.released:
                    due = self._released_key(nack)
                    self._txn.put(due, seal(due, sid))
            if len(found) > before:
                at = old.at if old is not None else self._buckets + (packed if following is None else _FIRST)
                if old is not None and len(table) == len(old):
                    ids = old.ids  # and the table has kept their order
                else:
                    order = sorted(table)
                    ids, table = pack_ids(order), {sid: table[sid] for sid in order}
                self._replace(old, Bucket.of(at, ids, table.values()))
            start = end
        return found

    # -- writing rows -------------------------------------------------------------------

    def _replace(self, old: Bucket | None, new: Bucket | None) -> None:
        """Store a bucket in the old one's place, in even parts if it is beyond a limit."""
        if new is not None:
            new = new.not_after(self._now) if self._now else new
            size, count = len(new.encode()), len(new.ids) // 16
            if count > self._capacity or size > MAX_VALUE:
                parts = max((count + self._capacity - 1) // self._capacity, 1 + (size > MAX_VALUE))
                for low, high in pairwise([count * at // parts for at in range(parts + 1)]):
                    at = self._buckets + new.ids[16 * low : 16 * low + 16] if low else new.at
                    self._replace(None if low else old, new.part(at, low, high))
                return
        if new is not None or old is not None:
            self._put(old, new)

    def _put(self, old: Bucket | None, new: Bucket | None) -> None:
        """Write what differs between a bucket as it was and as it is, encoded: its row and the indexes'."""
        txn = self._txn
        bucket = old if new is None else new
        assert bucket is not None
        if old is None or new is None:
            self._known.last = None
        if new is None:
            txn.delete(bucket.at)
        else:
            assert new.value is not None
            put_row(txn, new.at, new.value)
            self._known.keep(new)
        if old is not None and new is not None and isinstance(new.consumers, int) and new.consumers == old.consumers:
            if new.consumers and len(new.ids) != len(old.ids):
                self._put_count(new, new.consumers, len(new.ids) // 16)
        else:
            had = old.owners() if old is not None else {}
            has = new.owners() if new is not None else {}
            for consumer in had:
                if consumer not in has:
                    txn.delete(self._consumer_key(consumer, bucket.key))
            for consumer, count in has.items():
                if had.get(consumer) != count:
                    self._put_count(bucket, consumer, count)
        was = old.oldest() if old is not None else None
        now = new.oldest() if new is not None else None
        if was != now:
            if was is not None:
                txn.delete(self._by_time + was.to_bytes(8, "big") + bucket.key)
            if now is not None:
                at = self._by_time + now.to_bytes(8, "big") + bucket.key
                put_sealed(txn, at, _TIMED, seed_of(at))

    def _put_count(self, bucket: Bucket, consumer: int, count: int) -> None:
        """Write how many of a bucket's entries are the consumer's."""
        if bucket.consumers == consumer:
            at, seed = bucket.owner_row(self._by_consumer)
        else:
            at = self._consumer_key(consumer, bucket.key)
            seed = seed_of(at)
        put_sealed(self._txn, at, _COUNTED[count], seed)

    # -- finding rows -------------------------------------------------------------------

    def _cursor(self) -> LogCursor:
        if self._moved is None:
            self._moved = cursor_over(self._txn)
        return self._moved

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
        value = row_at(self._txn, at)
        if value is None:
            raise self._corrupt(f"the bucket {shown_id(key)} is missing")
        return self._known.decoded(at, value)

    def _holder(self, packed: bytes) -> Bucket | None:
        """The bucket that holds the entry with this ID, or would. Known ones are asked first."""
        bucket = self._known.holder(self._txn, packed)
        return self._floor(packed) if bucket is None else bucket

    def _floor(self, packed: bytes) -> Bucket | None:
        """The bucket that holds an entry with this ID, or would."""
        item = self._floor_item(self._buckets + packed)
        if item is None or not item[0].startswith(self._buckets):
            return None
        return self._known.decoded(*item)

    def _last_bucket(self) -> Bucket | None:
        at = self._known.last
        value = None if at is None else row_at(self._txn, at)
        if at is not None and value is not None:
            return self._known.decoded(at, value)
        bucket = self._floor(_BEHIND)
        self._known.last = None if bucket is None else bucket.at
        return bucket

    def _floor_item(self, full: bytes) -> tuple[bytes, bytes] | None:
        """The row with the greatest key <= ``full``, of whatever family."""
        cursor = self._cursor()
        return cursor.item() if cursor.set_before(full + NEXT) else None

    def _key_after(self, packed: bytes) -> bytes | None:
        """The ID of the first bucket behind this ID."""
        cursor = self._cursor()
        found = cursor.set_range(self._buckets + packed + NEXT) and cursor.here.startswith(self._buckets)
        return cursor.here[-16:] if found else None

    def _from(self, prefix: bytes, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows of one family from a key on, over a cursor of their own."""
        return family_rows(self._txn, prefix, prefix + start)

    def _ids_under(self, prefix: bytes) -> frozenset[bytes]:
        """The IDs of the buckets that the rows of an index lead to. About 0.2 µs a row."""
        cursor = self._txn.cursor()
        keys = cursor.iternext(values=False) if cursor.set_range(prefix) else ()
        return frozenset(map(_BUCKET, takewhile((prefix + _BEYOND).__gt__, keys)))

    def _buckets_of(self, consumer: int, first: bytes) -> Iterator[tuple[bytes, int]]:
        """The buckets that hold some of a consumer's entries, with how many.

        From the last that begins at ``first`` or before.
        """
        prefix = self._consumer_key(consumer, b"")
        item = self._floor_item(prefix + first)
        start = item[0][-16:] if item is not None and item[0].startswith(prefix) else first
        for key, value in self._from(prefix, start):
            yield key[-16:], unseal(key, value)[0]

    def _first_with(self, consumer: int, limit: int | None) -> list[tuple[bytes, int]]:
        """The first buckets that hold ``limit`` of a consumer's entries together; all that hold any."""
        found = []
        entries = 0
        for key, count in self._buckets_of(consumer, _FIRST):
            found.append((key, count))
            entries += count
            if limit is not None and entries >= limit:
                break
        return found

    def _corrupt(self, what: str) -> CorruptionError:
        number = int.from_bytes(self._buckets[:8], "big")
        return CorruptionError(f"group {self._group}'s pending list: {what}", stream=str(number))


def _by_age(row: tuple[ID, Nack]) -> tuple[int, ID]:
    return row[1].time, row[0]


def _spread(values: int | list[int], count: int) -> list[int]:
    return [values] * count if isinstance(values, int) else values


_Run = tuple[tuple[int, ID], int, list[tuple[ID, Nack]]]  # age of the next row, its place, rows


def _merged(heap: list[_Run], bound: tuple[int, ID]) -> Iterator[tuple[ID, Nack]]:
    """The entries of the heap's sorted runs that are older than ``bound``, by age."""
    while heap and heap[0][0] < bound:
        _, at, rows = heappop(heap)
        limit = min(bound, heap[0][0]) if heap else bound
        while at < len(rows):
            age = _by_age(rows[at])
            if age >= limit:
                heappush(heap, (age, at, rows))
                break
            yield rows[at]
            at += 1


def shown_id(key: bytes) -> str:
    """The ID that a key ends with, for messages."""
    ms, seq = unpack_id(key[-16:])
    return f"{ms}-{seq}"
