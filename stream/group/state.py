"""The state of consumer groups and consumers: as records, and as a transaction changes it.

    group      [ name, numbers ( , subjects ( , cancelled ( , limits ( , key ) ) ) ) ]
                       last ms, last seq, entries read, pending, next consumer, moves, paused, gone
    consumer   [ name, numbers ]                                     seen, active, pending

The numbers have 8 bytes each, as in the stream's header (entries/header.py).

    group "billing"   last delivered 17-0 ───────────────┐
      consumer "a"  seen …  active …  pending 2          v
      consumer "b"  seen …  active …  pending 1     …  15-0  16-0  17-0 | 18-0  19-0  …
                                                     a     b     a      never delivered

The PEL is in pending_list.py. ``pending`` in both records counts rows there, so that a summary
costs nothing; the checker compares them. ``entries read`` is Redis' counter, -1 where Redis
would not know; the lag does not need it (deliver.py).

Names have an index of their own; groups and consumers are stored under numbers that are never used
again, so the rows of a destroyed group, which are swept later, belong to no other.

``cancelled`` is the greatest ID that was cancelled, which may be one that is not delivered yet. Up to it reads ask of
each entry whether it was, by its row among the results (jobs/results.py); behind it they ask nothing.

``limits`` and ``key`` are compared in the very commit that delivers, see Limits and parking.py: no slot lies anywhere
else that could leak.

When a consumer last read is noted in memory at once, for consumers() and full_info(), and on disk
with the next change of the consumer, or once it is SEEN_EVERY behind there, with all of its group. So a
read that finds nothing need not write: fifty consumers that poll share a commit every few seconds.
Other processes see what is on disk. Times of a transaction that is undone stay noted.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, Self

from ...storage.engine.environment import Attachment, Environment
from ...storage.errors import CorruptionError, NoGroup
from ...storage.format import keys, records
from ...storage.log.transaction import WriteTransaction, mark_of  # cimport
from ...storage.trees.rax import Rax, RaxTransaction, family_rows
from ..entries.header import StreamHeader, numbers, shown
from ..entries.range_read import Place
from ..entries.writer import StreamWriter  # cimport
from ..jobs import results
from ..node.stream_id import StreamID, make_id, now_ms, unpack_id
from ..pel.bucket import CAPACITY
from ..pel.pending_list import KnownBuckets, PendingList  # cimport

SOURCE_HASH = ""

_MOVING, _STILL, _GROUP = struct.Struct("<QQqQ"), struct.Struct("<4Q"), struct.Struct("<QQqQQQQQ")
_CONSUMER = struct.Struct("<QqQ")
_MOST_CONSUMERS, _LAST = 1 << 32, b"\xff" * 4  # by their numbers
UNKNOWN = -1  # entries_read where Redis says null
UNOWNED = 0  # the consumer number of released entries
SEEN_EVERY = 5000  # ms
SLACK = 20  # ms by which a delivery may be late, and the rate is kept
_STEP = 2000  # ms by which a clock may go back, and no more is made of it
_MOST_NOTED = 10_000  # seen-times of a group: above, those of deleted consumers are forgotten
_MOST_EMPTY = 100_000
_FEW_CONSUMERS = 64


# In the kernel these two are C (state.pxd).

def group_record(seed: int, before: bytes, last: tuple[int, int], entries_read: int,  # cimport
                 pending: int, behind: bytes) -> bytes:
    """A group's record: its numbers that move with a delivery, between the rest. ``seed``: the hash of its key."""
    body = before + _MOVING.pack(*last, entries_read, pending) + behind
    record: bytes = records.checksum(body, seed)[::-1] + body
    return record


def consumer_record(seed: int, before: bytes, seen: int, active: int, pending: int) -> bytes:  # cimport
    """The same of a consumer, of which all else is in front."""
    body = before + _CONSUMER.pack(seen, active, pending)
    record: bytes = records.checksum(body, seed)[::-1] + body
    return record


class Limits(NamedTuple):
    """How much a group delivers: so many entries held at once, and so many in a window of time.

    The rate is GCRA, the algorithm of ATM cells: one time says all, the ``turn`` of the next entry if they came evenly.
    An entry may come before its turn by ``burst - 1`` intervals, and by SLACK or almost an interval, so that a late
    one is made up for; so no window of that length, wherever it begins, gets more than ``many + burst``. All times are
    in ticks, ``many`` of them a millisecond: an interval, the window divided by ``many``, has a whole number of these.
    """

    max_in_flight: int = 0  # 0: no limit
    many: int = 0  # in a window; 0: no rate
    window: int = 0  # ms
    burst: int = 1
    turn: int = 0

    def left(self, now: int) -> int | None:
        """How many may be delivered now, by the rate; None: any number."""
        if not self.many:
            return None
        early = now * self.many + self._tolerance() - self._turn(now)
        return max(0, early // self.window + 1)

    def next_time(self, now: int) -> int:
        """When, in ms, the rate lets one more through."""
        if not self.many:
            return now
        return max(now, -((self._tolerance() - self._turn(now)) // self.many))

    def spent(self, delivered: int, now: int) -> Limits:
        """The limits after so many deliveries."""
        return self._replace(turn=self._turn(now) + delivered * self.window) if self.many else self

    def is_ahead(self, now: int) -> bool:
        """Whether the turn is later than deliveries up to now can have put it: the clock has gone back since then."""
        return self.turn > (now + _STEP) * self.many + self._tolerance() + self.window

    def _turn(self, now: int) -> int:
        """The turn of the next entry: not in the past; if it is ahead, one entry goes now, and sets it anew."""
        return now * self.many + self._tolerance() if self.is_ahead(now) else max(self.turn, now * self.many)

    def _tolerance(self) -> int:
        return (self.burst - 1) * self.window + min(self.window - 1, SLACK * self.many)


class Key(NamedTuple):
    """The limits for each value of a field, of what is held at once or of the rate; see parking.py."""

    field: bytes
    per_key: int = 1  # entries that hold one key at most; 0: any number
    order: bool = False  # what waits for a retry keeps its key
    max_parked: int = 100_000
    parked: int = 0
    many: int = 0  # the rate of each value, as in Limits
    window: int = 0
    burst: int = 1

    def limits(self, turn: int) -> Limits:
        """The rate of one value, whose turn that is."""
        return Limits(0, self.many, self.window, self.burst, turn)

    def is_ahead(self, due: int, now: int) -> bool:
        """Whether no turn can be due as late as that, in ms."""
        return due > now + _STEP + -(-self.window // self.many)


class KeyRow(NamedTuple):
    """How many entries hold a key, how many are parked; with a rate its turn, and how many of the former are NEXT."""

    held: int = 0
    parked: int = 0
    turn: int = 0
    next: int = 0


class ConsumerState:
    """One consumer of a group."""

    __slots__ = ("_before", "active", "key", "name", "number", "pending", "seed", "seen")

    def __init__(self, number: int, name: bytes, seen: int, active: int = -1, pending: int = 0) -> None:
        self.number: int = number
        self.name: bytes = name
        self.seen: int = seen  # ms of the last attempt to do anything
        self.active: int = active  # ms of the last delivery or claim that got something; -1 for never
        self.pending: int = pending
        self.key: bytes = b""  # of its record, once that has been written; and the hash of that
        self.seed: int = 0
        self._before: bytes | None = None  # of the record: what is in front of its numbers

    def row(self) -> list[Any]:
        """The consumer's record."""
        return [self.name, _CONSUMER.pack(self.seen, self.active, self.pending)]

    @classmethod
    def from_row(cls, number: int, row: list[Any]) -> ConsumerState:
        """The inverse of row()."""
        return cls(number, row[0], *numbers(_CONSUMER, row))

    def sealed(self) -> bytes:
        """The record, under its key."""
        if self._before is None:
            self._before = records.frame(self.name, _CONSUMER.size, ())[0]
        return consumer_record(self.seed, self._before, self.seen, self.active, self.pending)


class SeenTimes(Attachment):
    """When consumers last read, in this process. Each step is one of a dict or a set: no lock."""

    def __init__(self, _env: Environment) -> None:
        self.noted: defaultdict[tuple[int, int], dict[int, int]] = defaultdict(dict)  # all by numbers
        self.empty_reads: set[Hashable] = set()  # consumers, with what they read, whose last read found nothing

    def after_fork_in_child(self) -> bool:
        """Keep them: to the child, too, the consumers were here when the parent noted it."""
        return True

    def note_read(self, line: Hashable, consumer: bytes, found: bool) -> None:
        """A consumer has read a line of waiter.py."""
        if found:
            self.empty_reads.discard((line, consumer))
        elif len(self.empty_reads) < _MOST_EMPTY:  # further consumers write each time
            self.empty_reads.add((line, consumer))

    def refresh(self, stream: int, group: int, consumers: Iterable[ConsumerState]) -> None:
        """Replace the times of consumers read from disk by newer ones noted in memory."""
        times = self.noted.get((stream, group), {})
        for consumer in consumers:
            consumer.seen = max(consumer.seen, times.get(consumer.number, 0))


def is_due(seen: int, now: int) -> bool:
    """Whether a consumer with this time on disk is to be written."""
    return not 0 <= now - seen < SEEN_EVERY


class GroupState:
    """One consumer group of a stream. In a write transaction it is kept warm, like a stream."""

    __slots__ = (
        "_changed", "_consumers", "_frame", "_framed", "_group_changed", "_held", "_is_whole", "_least", "_times",
        "buckets", "cancelled", "entries_read", "epoch", "gone", "group", "key", "key_limit", "key_rows", "last",
        "limits", "mark", "moves", "name", "next_consumer", "number", "paused", "pending", "place", "seed", "since",
        "subjects",
    )

    def __init__(self, number: int, group: int, name: bytes) -> None:
        self.number: int = number
        self.group: int = group
        self.name: bytes = name
        self.key: bytes = keys.group_family(number, keys.GROUP, group)
        self.seed: int = records.seed_of(self.key)
        self.mark: bytes = mark_of(self.key)  # of all its keys: see WriteTransaction.is_foreign()
        self.epoch: int = -1  # in which it was last found as on disk (WriteTransaction), and the LSN up to where it was
        self.since: int = 0
        self.last: tuple[int, int] = (0, 0)
        self.entries_read: int = UNKNOWN
        self.pending: int = 0
        self.next_consumer: int = 1
        self.moves: int = 0  # how often set_id, pause and resume have been used: waiting readers retry then
        self.paused: int = 0  # ms until which it delivers nothing
        self.gone: int = 0  # pending entries that were no longer in the stream, and have been taken out
        self.subjects: list[bytes] = []  # the patterns it is filtered by (subject_filter.py)
        self.cancelled: tuple[int, int] = (0, 0)  # the greatest ID that was
        self.limits: Limits | None = None
        self.key_limit: Key | None = None
        self.key_rows: dict[bytes, int] = {}  # of some keys that have no turn, how many hold them, and wait: parking.py
        self._held: int | None = None  # how many entries consumers hold, where that was counted
        self._consumers: dict[bytes | int, ConsumerState] = {}  # by name and by number
        self._changed: set[int] = set()
        self._group_changed = False
        self._is_whole = False  # whether its pending list has been found whole
        self._least: tuple[int, int] | None = None  # no pending ID is smaller, where that is known
        self._times: dict[int, int] | None = None  # the seen-times noted of this group
        self._framed: tuple[Any, ...] = ()  # what all but the numbers that move with a delivery was packed of
        self._frame: tuple[bytes, bytes] = (b"", b"")
        self.place: Place = Place()  # where its deliveries have come to
        self.buckets: KnownBuckets = KnownBuckets(number, group)

    # -- the group's own record ---------------------------------------------------------

    def row(self) -> list[Any]:
        """The group's record."""
        return [self.name, _MOVING.pack(*self.last, self.entries_read, self.pending) + self._still(), *self._rest()]

    def _still(self) -> bytes:
        return _STILL.pack(self.next_consumer, self.moves, self.paused, self.gone)

    def _rest(self) -> list[Any]:
        if self.limits is not None or self.key_limit is not None:
            key = [] if self.key_limit is None else [list(self.key_limit)]
            return [self.subjects, bytes(make_id(*self.cancelled)), list(self.limits or ()), *key]
        cancelled = [bytes(make_id(*self.cancelled))] if self.cancelled > (0, 0) else []
        return [self.subjects, *cancelled] if self.subjects or cancelled else []

    def sealed(self) -> bytes:
        """The record, under its key."""
        of = (self.next_consumer, self.moves, self.paused, self.gone, self.name, self.subjects, self.cancelled,
              self.limits, self.key_limit)
        if of != self._framed:
            before, behind = records.frame(self.name, _GROUP.size, self._rest())
            self._frame = before, self._still() + behind
            self._framed = of
        before, behind = self._frame
        return group_record(self.seed, before, self.last, self.entries_read, self.pending, behind)

    @classmethod
    def load(cls, txn: RaxTransaction, number: int, group: int) -> GroupState | None:
        """The group of that number; None if there is none."""
        key = keys.group_family(number, keys.GROUP, group)
        value = txn.get(key)
        return None if value is None else cls.from_row(number, group, records.unseal(key, value))

    @classmethod
    def from_row(cls, number: int, group: int, row: list[Any]) -> GroupState:
        """The inverse of row()."""
        state = cls(number, group, row[0])
        (last, last_seq, state.entries_read, state.pending, state.next_consumer, state.moves, state.paused,
         state.gone) = numbers(_GROUP, row)
        state.last = (last, last_seq)
        if len(row) > 2:
            state.subjects = row[2]
        if len(row) > 3:
            state.cancelled = unpack_id(row[3])
        if len(row) > 4 and row[4]:
            state.limits = Limits(*row[4])
        if len(row) > 5:
            state.key_limit = Key(*row[5])
        return state

    def current(self, txn: WriteTransaction) -> Self:
        """The group, noted to be as on disk in this transaction."""
        self.epoch, self.since = txn.epoch, txn.upto - 1
        return self

    def is_current(self, txn: WriteTransaction) -> bool:
        """Whether it is as it was left: no other process has changed it since."""
        if self.epoch != txn.epoch:
            if txn.is_foreign(self.mark, self.since):
                return False
            self.current(txn)
        return True

    def pel(self, txn: RaxTransaction, now: int = 0) -> PendingList:
        """The group's pending entries; ``now`` where delivery times are written."""
        return PendingList(txn, self.number, self.group, CAPACITY, now, self.buckets)

    def require_whole(self, txn: RaxTransaction, again: bool = False) -> None:
        """CorruptionError where rows of the pending list are missing. Checked once for as long as the group is warm.

        For a call that returns less than was asked for: a row that has vanished looks like that. A damaged page
        need not show the same rows each time, so what contradicts the group's count is checked ``again``.
        """
        if again or not self._is_whole:
            if not self.pel(txn).is_whole(self.pending):
                raise CorruptionError(f"the pending list of group {shown(self.name)} is not whole: entries are lost")
            self._is_whole = True

    def may_hold(self, txn: WriteTransaction, sid: tuple[int, int]) -> bool:
        """Whether an entry up to ``sid`` can be pending. Costs a bucket, once after each delivery."""
        if not self.pending:
            return False
        if self._least is None:
            self._least = self.pel(txn).first()
        return self._least is None or self._least <= sid

    def first_held(self, txn: RaxTransaction, start: tuple[int, int]) -> tuple[int, int]:
        """The least ID from ``start`` on that it has still to deliver or to acknowledge. Reads a bucket or two."""
        after = behind(self.last)
        pending = next(self.pel(txn).scan(start, StreamID.MAX), None) if self.pending else None
        return after if pending is None else min(after, pending[0])

    # -- what was cancelled -------------------------------------------------------------

    def has_cancelled(self, txn: RaxTransaction, sid: StreamID) -> bool:
        """Whether the entry was cancelled in this group. A look-up, but for IDs above the greatest of those."""
        if sid > self.cancelled:
            return False
        raw = results.get(txn, self.number, results.name_of(self.name, sid))
        return raw is not None and self._is_own(raw)

    def cancelled_behind(self, txn: RaxTransaction, last: tuple[int, int]) -> list[tuple[int, int]]:
        """The IDs behind ``last`` that were cancelled in this group, ascending. Reads the results kept of those IDs."""
        if last >= self.cancelled:
            return []
        prefix = keys.family(self.number, keys.RESULT) + results.name_of(self.name, StreamID.MIN)[:-16]
        found, now = [], now_ms()
        for suffix, value in Rax(txn, prefix).items(bytes(behind(last))):
            if suffix[:16] > bytes(make_id(*self.cancelled)):
                break
            expires, raw = records.unseal(prefix + suffix, value)[:2]
            if len(suffix) == 16 and expires > now and self._is_own(raw):  # else of a group of a longer name
                found.append(unpack_id(suffix))
        return found

    def pass_over(self, txn: WriteTransaction, sid: StreamID) -> None:
        """A read has come to an entry that was cancelled: from now on that is found as long as of other letters."""
        name = results.name_of(self.name, sid)
        raw = results.get(txn, self.number, name)
        if raw is not None:
            results.put(txn, self.number, name, raw, results.FOUND_FOR)

    def _is_own(self, raw: bytes) -> bool:
        given = results.Given.unpacked(raw)
        return given is not None and (given.reason, given.group) == (results.CANCELLED, self.group)

    # -- consumers ----------------------------------------------------------------------

    def consumer(self, txn: RaxTransaction, name: bytes) -> ConsumerState | None:
        """The consumer of that name, None if there is none."""
        found = self._consumers.get(name)
        if found is None:
            key = self._consumer_name_key(name)
            value = txn.get(key)
            if value is not None:
                found = self.consumer_no(txn, records.unseal(key, value)[0])
        return found

    def consumer_no(self, txn: RaxTransaction, number: int) -> ConsumerState:
        """The consumer of that number, which a pending entry has named."""
        found = self._consumers.get(number)
        if found is None:
            key = self.consumer_key(number)
            value = txn.get(key)
            if value is None:
                raise CorruptionError(f"group {shown(self.name)} names consumer no. {number}, which is not there")
            found = ConsumerState.from_row(number, records.unseal(key, value))
            self._consumers[number] = self._consumers[found.name] = found
        return found

    def ensure_consumer(self, txn: WriteTransaction, name: bytes, now: int) -> ConsumerState:
        """The consumer of that name, created if need be, seen now.

        Its seen-time is noted in memory, and written every few seconds where nothing else of it
        changes, with all of the group that are noted: a read that finds nothing pays no flush.
        """
        found = self.consumer(txn, name)
        if found is None:
            found = ConsumerState(self.next_consumer, name, now)
            self.changed(txn)
            self.next_consumer += 1
            key = self._consumer_name_key(name)
            txn.put(key, records.seal(key, [found.number]))
            self._consumers[found.number] = self._consumers[name] = found
            self.changed(txn, found)
        times = self._times
        if times is None:
            times = self._times = txn.env.attached(SeenTimes).noted[self.number, self.group]
        times[found.number] = now
        if is_due(found.seen, now):
            for number, seen in times.copy().items():
                member = self._consumers.get(number)
                if member is None and txn.get(self.consumer_key(number)) is not None:
                    member = self.consumer_no(txn, number)
                if member is not None and (seen > member.seen or member is found):
                    self.set_seen(txn, member, seen)
                elif member is None and len(times) > _MOST_NOTED:
                    times.pop(number, None)
        return found

    def set_seen(self, txn: WriteTransaction, consumer: ConsumerState, now: int) -> None:
        """Set the consumer's seen-time, to be written."""
        self.changed(txn, consumer)
        consumer.seen = now

    def set_active(self, txn: WriteTransaction, consumer: ConsumerState, now: int) -> None:
        """The consumer has received something: seen, and active."""
        self.set_seen(txn, consumer, now)
        consumer.active = now

    def remove_consumer(self, txn: WriteTransaction, consumer: ConsumerState) -> None:
        """Delete the consumer's records; its pending entries are gone already."""
        txn.delete(self._consumer_name_key(consumer.name))
        txn.delete(self.consumer_key(consumer.number))
        self._consumers.pop(consumer.number, None)
        self._consumers.pop(consumer.name, None)
        self._changed.discard(consumer.number)
        self.changed(txn)

    def consumers(self, txn: RaxTransaction) -> list[ConsumerState]:
        """All consumers, in order of their names."""
        prefix = keys.group_family(self.number, keys.CONSUMER, self.group)
        rows = Rax(txn, prefix).iterator()
        rows.seek("^")
        # Unsealed under the key found: a damaged one need not hold a number.
        found = [ConsumerState.from_row(int.from_bytes(key[-4:], "big"), records.unseal(key, value))
                 for key, value in rows.take(_MOST_CONSUMERS, _LAST)]
        return sorted(found, key=attrgetter("name"))

    def held(self, txn: RaxTransaction) -> int:
        """How many entries consumers hold: not what waits for a retry. Counted over all consumers at first."""
        if self._held is None:
            self._held = sum((self._consumers.get(one.number) or one).pending for one in self.consumers(txn))
        return self._held

    def room(self, txn: RaxTransaction) -> int | None:
        """How many more its consumers may hold; None: any number. After a change of the limit less than nothing."""
        if self.limits is None or not self.limits.max_in_flight:
            return None
        return self.limits.max_in_flight - self.held(txn)

    def may_have_released(self) -> bool:
        """Whether a pending entry may be with no consumer, and not parked. By the consumers that are known here."""
        parked = 0 if self.key_limit is None else self.key_limit.parked
        if self._held is None:
            if len(self._consumers) > _FEW_CONSUMERS:
                return True
            held = sum([one.pending for key, one in self._consumers.items() if isinstance(key, int)])
            if self.pending != held + parked:
                return True
            self._held = held  # the others hold nothing
        return self.pending != self._held + parked

    def consumer_key(self, number: int) -> bytes:
        """The key of a consumer's record."""
        return keys.group_family(self.number, keys.CONSUMER, self.group) + number.to_bytes(4, "big")

    def _consumer_name_key(self, name: bytes) -> bytes:
        return keys.group_family(self.number, keys.CONSUMER_NAME, self.group) + keys.name_suffix(name)

    # -- writing ------------------------------------------------------------------------

    def changed(self, txn: WriteTransaction, consumer: ConsumerState | None = None) -> None:
        """Mark the group (or one of its consumers) to be flushed. Before anything of it is changed."""
        txn.changes += 1
        txn.dirty[self.number, self.group] = self
        if consumer is None:
            self._group_changed = True
        else:
            self._changed.add(consumer.number)

    def flush(self, txn: WriteTransaction) -> None:
        """Put what has changed into the transaction."""
        if txn.dirty.pop((self.number, self.group), None) is None:
            return
        counted = txn.changes  # as in StreamWriter.flush()
        if self._group_changed:
            txn.put(self.key, self.sealed())
            self._group_changed = False
        for number in self._changed:
            consumer = self._consumers[number]
            if not consumer.key:
                key = self.consumer_key(number)
                consumer.seed = records.seed_of(key)
                consumer.key = key  # last: with it the seed is there
            txn.put(consumer.key, consumer.sealed())
        self._changed.clear()
        txn.changes = counted

    def count_pending(self, txn: WriteTransaction, consumer: int, by: int) -> None:
        """Move the counts of pending entries; released ones are counted by the group alone."""
        self.changed(txn)
        self.pending += by
        if by > 0:
            self._least = None
        if consumer != UNOWNED:
            owner = self._consumers.get(consumer) or self.consumer_no(txn, consumer)
            owner.pending += by
            self._changed.add(consumer)
            if self._held is not None:
                self._held += by


def find_group(txn: RaxTransaction, number: int, name: bytes) -> GroupState | None:
    """The group of that name in a stream, read from disk; None if there is none."""
    key = keys.family(number, keys.GROUP_NAME) + keys.name_suffix(name)
    value = txn.get(key)
    return None if value is None else GroupState.load(txn, number, records.unseal(key, value)[0])


def locate_group(txn: WriteTransaction, stream: StreamWriter, name: bytes) -> GroupState | None:
    """The group of that name, warm, for this transaction; None if there is none."""
    state: GroupState | None = stream.groups.get(name)
    if state is not None and not state.is_current(txn):
        del stream.groups[name]
        state = None
    if state is None:
        if not stream.header.groups:
            return None
        state = find_group(txn, stream.number, name)
        if state is not None:
            stream.idle_from = None
            stream.groups[name] = state.current(txn)
    return state


def behind(last: tuple[int, int]) -> StreamID:
    """The least greater ID; the greatest of all after itself."""
    return StreamID.MAX if last == StreamID.MAX else make_id(*last).next()


def working_groups(txn: WriteTransaction, stream: StreamWriter) -> tuple[list[GroupState], tuple[int, int]]:
    """The groups with pending entries, and any that are warm; the least last delivered ID of all groups.

    About 0.6 µs a group, once for as long as the stream is warm: a group without pending entries is not set up.
    """
    if stream.idle_from is None:
        txn.flush()
        stream.groups = {name: state for name, state in stream.groups.items() if state.is_current(txn)}
        prefix = keys.family(stream.number, keys.GROUP)
        rows = list(family_rows(txn, prefix))
        if len(rows) != stream.header.groups:
            all_groups(txn, stream.number, stream.header)  # raises
        least: tuple[int, int] = StreamID.MAX
        for key, value in rows:
            name, last, pending = _bounds(key, value)
            if pending and name not in stream.groups:
                number = int.from_bytes(key[len(prefix):], "big")
                state = GroupState.from_row(stream.number, number, records.unseal(key, value))
                stream.groups[name] = state.current(txn)
            elif last < least and name not in stream.groups:
                least = last
        stream.idle_from = least
    states: list[GroupState] = list(stream.groups.values())
    lasts = [state.last for state in states]
    lasts.append(stream.idle_from)
    return states, min(lasts)


@lru_cache(1 << 14)
def _bounds(key: bytes, value: bytes) -> tuple[bytes, tuple[int, int], int]:
    """Name, last ID and number of pending entries by a group's record. Most are unchanged at the next call."""
    row = records.unseal(key, value)
    last, last_seq, _, pending, *_ = numbers(_GROUP, row)
    return row[0], (last, last_seq), pending


def require_group(txn: WriteTransaction, stream: StreamWriter | None, stream_name: bytes, name: bytes) -> GroupState:
    """locate_group(), or NoGroup."""
    state = None if stream is None else locate_group(txn, stream, name)
    if state is None:
        raise no_group(txn, None if stream is None else stream.number, stream_name, name)
    return state


def no_group(txn: RaxTransaction, number: int | None, stream_name: bytes, name: bytes) -> NoGroup:
    """NoGroup, with the groups that the stream has."""
    if number is None:
        return NoGroup(
            f"there is no stream {shown(stream_name)}, and so no consumer group {shown(name)}. Create both "
            f"with create_group({shown(name)})."
        )
    has = ", ".join(shown(other.name) for other in groups(txn, number)) or "none"
    return NoGroup(
        f"stream {shown(stream_name)} has no consumer group {shown(name)}. It has: {has}. Create it with "
        f"create_group({shown(name)})."
    )


def groups(txn: RaxTransaction, number: int) -> Iterator[GroupState]:
    """All groups of a stream as they are on disk, in the order they were made."""
    prefix = keys.family(number, keys.GROUP)
    for key, value in Rax(txn, prefix).items():
        row = records.unseal(prefix + key, value)
        yield GroupState.from_row(number, int.from_bytes(key, "big"), row)


def every_group(txn: WriteTransaction, stream: StreamWriter) -> list[GroupState]:
    """All groups of a stream, warm. Read once for as long as no other process changes them."""
    working_groups(txn, stream)
    if len(stream.groups) != stream.header.groups:
        txn.flush()
        for state in all_groups(txn, stream.number, stream.header):
            stream.groups.setdefault(state.name, state.current(txn))
    return list(stream.groups.values())


def all_groups(txn: RaxTransaction, number: int, header: StreamHeader) -> list[GroupState]:
    """The same, of a stream with this header. CorruptionError where one is missing."""
    found = list(groups(txn, number))
    if len(found) != header.groups:
        raise CorruptionError(
            f"{len(found)} consumer groups are there, {header.groups} should be", stream=shown(header.name)
        )
    return found


def create_group(txn: WriteTransaction, stream: StreamWriter, name: bytes, last: tuple[int, int],
                 entries_read: int, subjects: list[bytes] | None = None) -> GroupState:
    """A new group that has delivered everything up to ``last``, of certain subjects or of all."""
    header = stream.header
    state = GroupState(stream.number, header.next_group, name)
    stream.changed(txn)
    header.next_group += 1
    header.groups += 1
    key = keys.family(stream.number, keys.GROUP_NAME) + keys.name_suffix(name)
    txn.put(key, records.seal(key, [state.group]))
    state.last = last
    state.entries_read = entries_read
    state.subjects = subjects or []
    stream.groups[name] = state.current(txn)
    state.changed(txn)
    return state


def destroy_group(txn: WriteTransaction, stream: StreamWriter, state: GroupState) -> None:
    """Delete a group. Its consumers and pending entries are unreachable at once, and swept later."""
    stream.changed(txn)
    txn.dirty.pop((state.number, state.group), None)
    stream.groups.pop(state.name, None)
    txn.delete(keys.family(stream.number, keys.GROUP_NAME) + keys.name_suffix(state.name))
    txn.delete(state.key)
    doomed = keys.DOOMED_STREAMS + stream.number.to_bytes(8, "big") + state.group.to_bytes(4, "big")
    txn.put(doomed, records.seal(doomed, [state.name]))
    stream.header.groups -= 1
