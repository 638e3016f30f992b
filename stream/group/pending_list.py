"""The pending entries list of one consumer group: what was delivered and not yet acknowledged.

    add       new entries delivered     ┌──────────────────────────┐   scan      by ID
    set       claimed, read again   ──> │ buckets, in order of IDs │ ──> oldest  by delivery time
    release   given back                │ indexes over them        │   released  by due time
    remove    acknowledged              └──────────────────────────┘   get       one

A batch of new entries costs three puts and its acknowledgement three deletes, for up to 112
entries: where all of a bucket are alike and go together, none is looked at by itself.

The oldest entries come from a merge: buckets are opened in the order of their oldest time, and
only when an entry not yet seen could come before the next one to be given out.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice, repeat

from ...storage.format.records import seal, unseal
from ...storage.trees.rax import RaxTransaction
from ..node.packed_ids import pack_ids
from ..node.stream_id import MAX64, StreamID, pack_id, unpack_id
from .bucket import CAPACITY, ID, MAX_VALUE, Bucket, Nack, column, unpack_ids
from .pending_rows import FIRST, PendingRows

__all__ = ["ID", "Nack", "PendingList"]

_FEW = 256  # buckets


class PendingList(PendingRows):
    """The pending entries of group ``group`` of stream ``number``, within one transaction.

    ``capacity`` is the most entries a bucket takes. Consumers are numbers from 1, IDs plain
    pairs, times and counts integers from 0 to 2**64 - 1. Nothing is kept between calls but a
    cursor. An iterator is to be used up, or dropped, before the next call that writes. Every
    method raises CorruptionError where a row it reads is damaged or missing.
    """

    __slots__ = ()

    def __init__(self, txn: RaxTransaction, number: int, group: int, capacity: int = CAPACITY) -> None:
        super().__init__(txn, number, group, capacity)

    # -- delivering, claiming -----------------------------------------------------------

    def add(self, ids: Sequence[ID], consumer: int, time: int, count: int = 1) -> list[tuple[ID, Nack]]:
        """Make entries pending with ``consumer``. What a read of new entries does (XREADGROUP >).

        ``ids`` ascend. Those that were pending already move to the consumer with the new time
        and count; they are returned with what they were. New entries behind the last pending
        one cost one look at the last bucket and three puts for each 112.
        """
        return self.add_row(pack_ids(ids), consumer, time, count)

    def add_row(self, packed: bytes, consumer: int, time: int, count: int = 1) -> list[tuple[ID, Nack]]:
        """add() for IDs in a row (packed_ids.py)."""
        if not packed:
            return []
        nack = Nack(consumer, time, count)
        last = self._last_bucket()
        if last is None or packed[:16] > last.ids[-16:]:
            self._append(last, packed, nack)
            return []
        found = self._upsert(list(zip(unpack_ids(packed), repeat(nack))))
        return [(sid, was) for sid, was in found if was is not None]

    def set(self, rows: Iterable[tuple[ID, int, int, int]]) -> list[tuple[ID, Nack | None]]:
        """Give entries an owner, a time and a count, pending or not. XCLAIM and its FORCE.

        ``rows`` are (id, consumer, time, count) in any order; the last for an ID counts. Each
        ID is returned, ascending, with what it was (None if it was not pending). A bucket
        touched is read and written once.
        """
        return self._upsert(sorted({sid: Nack(consumer, time, count) for sid, consumer, time, count in rows}.items()))

    def release(self, rows: Sequence[tuple[ID, int, int]], insert: bool = False) -> list[tuple[ID, Nack | None]]:
        """Take the owner from entries and put them last among those due at their time. XNACK.

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
        return self._upsert(sorted(released.items()), insert)

    def hand_over(self, consumer: int, to: int, time: int | None = None, most: int | None = None) -> int:
        """Give all of one consumer's entries to another; how many there were.

        Their counts stay, and their delivery times unless ``time`` is given. With ``most`` only
        so many, and what lies in one bucket with the last of them.
        """
        moved = 0
        for key, count in self._first_with(consumer, most):
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
            self._replace(old, Bucket(key, old.ids, consumers, times, old.counts, old.numbers))
        return moved

    # -- acknowledging ------------------------------------------------------------------

    def remove_row(self, packed: bytes) -> dict[int, int]:
        """remove() for IDs in a row; of how many entries each consumer was the owner (0: nobody).

        Entries that were delivered to one consumer, and lie together, are not looked at one by one.
        """
        if not packed:
            return {}
        old = self._floor(packed[:16])
        if old is not None and isinstance(old.consumers, int) and old.numbers == 0:
            low = old.position(packed)
            if low >= 0:
                count = len(packed) // 16
                self._replace(old, old.without_span(low, low + count))
                return {old.consumers: count}
        return Counter(nack.consumer for _, nack in self.remove(unpack_ids(packed)))

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
            bucket = self._floor(packed)
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
            nacks = old.nacks()[low:high]
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

    def drop_consumer(self, consumer: int, most: int | None = None) -> list[ID]:
        """Remove all of a consumer's entries; their IDs, ascending. XGROUP DELCONSUMER. ``most`` as above."""
        dropped: list[ID] = []
        for key, _ in self._first_with(consumer, most):
            bucket = self._bucket(key)
            if bucket.consumers == consumer:
                dropped += unpack_ids(bucket.ids)
                self._replace(bucket, None)
                continue
            mine: set[int] = set()
            for at, (sid, nack) in enumerate(bucket.rows()):
                if nack.consumer == consumer:
                    mine.add(at)
                    dropped.append(sid)
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

    # -- asking -------------------------------------------------------------------------

    def get(self, sid: ID) -> Nack | None:
        """What is known of one entry, None if it is not pending. One bucket."""
        packed = pack_id(*sid)
        bucket = self._floor(packed)
        if bucket is None:
            return None
        position = bucket.position(packed)
        return None if position < 0 else bucket.nack(position)

    def find(self, ids: Iterable[ID]) -> dict[ID, Nack]:
        """What is known of those of the IDs that are pending. A bucket touched is read once."""
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

        With ``consumer`` only his, and only buckets with some of his are read; released
        entries are nobody's. XPENDING with a range, XAUTOCLAIM, and a consumer's history.
        """
        first, last = pack_id(*start), pack_id(*end)
        if consumer is not None:
            for key, _ in self._lying_with(consumer, first):
                if key > last:
                    return
                yield from self._bucket(key).rows_between(start, end, consumer)
            return
        floor = self._floor(first)
        for key, value in self._from(self._buckets, first if floor is None else floor.key):
            if key[-16:] > last:
                return
            yield from Bucket.decode(key, value).rows_between(start, end)

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
        """How many entries the rows by consumer say that he has. Reads one row for each bucket with some."""
        return sum(count for _, count in self._lying_with(consumer, FIRST))

    def is_whole(self, pending: int) -> bool:
        """Whether all index rows are there for a list of so many entries. Reads each row once.

        CorruptionError where one is damaged: under a wrong time it would not be come to.
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
        there = {key[-16:] for key, _ in self._from(self._buckets, b"")}
        buckets = {key[-16:] for key in owned}
        return buckets == timed <= there and sum(owned.values()) + len(released) == pending

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
        and come to the old one later.
        """
        for consumer, count in bucket.owners().items():
            key = self._consumer_key(consumer, bucket.key)
            value = self._txn.get(key)
            if value is None or unseal(key, value)[0] != count:
                at = StreamID.from_bytes(bucket.key)
                raise self._corrupt(f"the bucket {at} is not the one that its consumers' rows count")

    def oldest_time(self) -> int | None:
        """The least delivery time of an owned entry, None if none is owned. One seek."""
        for key, _ in self._from(self._by_time, b""):
            return int.from_bytes(key[-24:-16], "big")
        return None

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
        """When the first released entry falls due, None if there is none. One seek."""
        for key, _ in self._from(self._released, b""):
            return int.from_bytes(key[-16:-8], "big")
        return None

    # -- changing buckets ---------------------------------------------------------------

    def _append(self, last: Bucket | None, packed: bytes, nack: Nack) -> None:
        """Store new entries behind the last bucket, or in it if they all fit.

        A bucket with room for only some of them is left as it is: any two neighbours hold
        more than one could, and a batch is not torn over records without need.
        """
        if last is not None and (len(last.ids) + len(packed)) // 16 <= self._capacity:
            longer = last.extended(packed, nack)
            value = longer.encode(self._buckets + last.key)
            if len(value) <= MAX_VALUE:
                self._put(last, longer, value)
                return
        self._replace(None, Bucket(packed[:16], packed, *nack))

    def _upsert(self, rows: list[tuple[ID, Nack]], insert: bool = True) -> list[tuple[ID, Nack | None]]:
        """Set ascending entries to their Nacks; those set, with what they were."""
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
                table[sid] = nack
                if was is not None and was.released:
                    self._txn.delete(self._released_key(was))
                if nack.released:
                    key = self._released_key(nack)
                    self._txn.put(key, seal(key, sid))
            if len(found) > before:
                key = old.key if old is not None else packed if following is None else FIRST
                if old is not None and len(table) == len(old):
                    ids = old.ids  # and the table has kept their order
                else:
                    order = sorted(table)
                    ids, table = pack_ids(order), {sid: table[sid] for sid in order}
                self._replace(old, Bucket.of(key, ids, table.values()))
            start = end
        return found


def _by_age(row: tuple[ID, Nack]) -> tuple[int, ID]:
    return row[1].time, row[0]


def _spread(values: int | list[int], count: int) -> list[int]:
    return [values] * count if isinstance(values, int) else values


_Run = tuple[tuple[int, ID], int, list[tuple[ID, Nack]]]  # age of the next row, its place, rows


def _merged(heap: list[_Run], bound: tuple[int, ID]) -> Iterator[tuple[ID, Nack]]:
    """Give out, by age, what lies in the heap's sorted runs and is older than ``bound``."""
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
