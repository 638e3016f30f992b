"""Keys: of entries with the same value in a field, consumers work on so many at a time; the others are parked.

    38  group, key "a"          [1, 2]        the key is held by one entry, and two are parked
    38  group, key "a", 7-0     []            these two, the next first
    38  group, key "a", 9-0     []
    39  group, 5-0              ["a", HELD]   which key a pending entry has, and what it is to it
    39  group, 7-0              ["a", PARKED]
    39  group, 9-0              ["a", PARKED]

A key is the xxh3 of a field's value. A read that comes to an entry whose key is held to the full parks it: it becomes
pending as a released entry that never falls due (PARKED_UNTIL), delivered 0 times. Whatever takes an entry out of the
pending list takes it from its key, in that commit, and the next one that is parked holds the key then: released, due
at 0, so before all others, and given to the next read, also to one that claims nothing.

            read, key free                          out of the pending list
        ──────────────────────> held ───────────────────────────────────────────>
                                 │ ^
         released, without order │ │ claimed, key free;           held: with a consumer, or about to be delivered;
                                 v │ or the next of the parked     with ``order`` also what waits for a retry
                               waits ── due, key held ──> parked

An entry without the field has no key, and no rows here. Rows are there only where the group has a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xxhash import xxh3_128_digest

from ...storage.errors import CorruptionError, KeyBusy
from ...storage.format import keys, records
from ...storage.log.transaction import WriteTransaction
from ...storage.trees.rax import RaxTransaction, family_rows
from ..entries.header import StreamHeader, shown
from ..entries.range_read import look_up, read_now
from ..node.entry import Entry
from ..node.stream_id import MAX64, StreamID, make_id, pack_id, unpack_id
from ..pel.bucket import Nack
from .state import UNOWNED, GroupState, Key

ID = tuple[int, int]
WAITS, HELD, PARKED = 0, 1, 2
PARKED_UNTIL = MAX64  # the due time of what is parked
_PIECE = 1000  # entries that are decoded at once
_PARKED_AT_ONCE = 500  # by one read


def is_parked(nack: Nack) -> bool:
    """Whether a pending entry is parked."""
    return nack.consumer == UNOWNED and nack.time == PARKED_UNTIL


def mark_of(entry: Entry, field: bytes) -> bytes | None:
    """The key of an entry as it is stored; None for one without the field."""
    names = entry.names
    return bytes(xxh3_128_digest(entry.values[names.index(field)])) if field in names else None


class Parking:
    """The keys of one group, in one transaction. ``key`` is what the group is configured to have."""

    __slots__ = ("_txn", "entries", "key", "marks")

    def __init__(self, txn: RaxTransaction, group: GroupState, key: Key) -> None:
        self._txn = txn
        self.key: Key = key
        self.marks: bytes = keys.group_family(group.number, keys.KEY, group.group)
        self.entries: bytes = keys.group_family(group.number, keys.KEYED, group.group)

    def counts(self, mark: bytes) -> tuple[int, int]:
        """How many entries hold a key, and how many are parked."""
        key = self.marks + mark
        value = self._txn.get(key)
        if value is None:
            return 0, 0
        held, parked = records.unseal(key, value)
        return held, parked

    def of(self, sid: ID) -> tuple[bytes, int] | None:
        """The key of a pending entry, and what it is to it; None for one without."""
        key = self.entries + pack_id(*sid)
        value = self._txn.get(key)
        if value is None:
            return None
        mark, place = records.unseal(key, value)
        return mark, place

    def has_room(self, mark: bytes) -> bool:
        """Whether one entry more may hold the key."""
        return self.counts(mark)[0] < self.key.per_key

    def is_full(self) -> bool:
        """Whether no more may be parked: a read stops before the next."""
        return self.key.parked >= self.key.max_parked


class Turns:
    """Which of the entries that one call goes through are for it now, up to ``count``. ``stops``: no more than these.

    Nothing is written before settle().
    """

    def __init__(self, txn: RaxTransaction, group: GroupState, key: Key, count: int | None = None) -> None:
        self._parking = Parking(txn, group, key)
        self._taken: dict[bytes, int] = {}  # how many of a key are to hold it by this call
        self._pending = group.pel(txn).last() if group.pending else None  # none behind it is pending
        self.counts: dict[bytes, tuple[int, int]] = {}  # of keys, before the call
        self.new: set[ID] = set()  # of these no row says anything yet
        self.marks: dict[ID, bytes] = {}  # of what is to hold its key
        self.parked: dict[ID, bytes] = {}
        self.stops = False
        self._left = count

    def is_for_now(self, entry: Entry) -> bool:
        """Whether an entry may be delivered. Else it is to be parked; or the read ends before it, and this is True."""
        parking = self._parking
        if self._left == 0 or len(self.parked) >= _PARKED_AT_ONCE:
            self.stops = True
            return True
        mark = mark_of(entry, parking.key.field)
        if mark is None:
            return True
        sid = entry.id
        was = None if self._pending is None or sid > self._pending else parking.of(sid)
        if was is not None and was[1] == HELD:
            return True
        if self._has_room(mark):
            self._taken[mark] = self._taken.get(mark, 0) + 1
            self.marks[sid] = mark
            if was is None:
                self.new.add(sid)
            return True
        if was is None or was[1] != PARKED:
            if parking.key.parked + len(self.parked) >= parking.key.max_parked:
                self.stops = True
                return True
            self.parked[sid] = mark
        return False

    def has_taken(self, entry: Entry) -> bool:
        """Count an entry that may be delivered; False where the read ends before it."""
        if self.stops:
            return False
        if self._left is not None:
            self._left -= 1
        return True

    def may_claim(self, sid: ID) -> bool:
        """Whether a pending entry of no consumer may be given to one: it holds its key, or the key has room."""
        was = self._parking.of(sid)
        if was is None or was[1] == HELD:
            return True
        if was[1] == WAITS and self._has_room(was[0]):
            self._taken[was[0]] = self._taken.get(was[0], 0) + 1
            self.marks[sid] = was[0]
            return True
        if was[1] == WAITS:
            self.parked[sid] = was[0]
        return False

    def _has_room(self, mark: bytes) -> bool:
        counts = self.counts.get(mark)
        if counts is None:
            counts = self.counts[mark] = self._parking.counts(mark)
        return counts[0] + self._taken.get(mark, 0) < self._parking.key.per_key


def settle(txn: WriteTransaction, group: GroupState, turns: Turns, delivered: Iterable[ID]) -> None:
    """Note what a call has found: the entries delivered hold their keys, and what had to wait is parked."""
    key = group.key_limit
    assert key is not None
    parking = Parking(txn, group, key)
    held: dict[bytes, int] = {}
    others: list[ID] = []
    for sid in delivered:
        mark = turns.marks.get(sid)
        if mark is None:
            continue
        if sid in turns.new:
            held[mark] = held.get(mark, 0) + 1
            about = parking.entries + pack_id(*sid)
            txn.put(about, records.seal(about, (mark, HELD)))
        else:
            others.append(sid)
    for mark, more in held.items():
        had, waiting = turns.counts[mark]
        head = parking.marks + mark
        txn.put(head, records.seal(head, (had + more, waiting)))
    for sid in others:
        _move(txn, group, parking, sid, turns.marks[sid], HELD)
    if turns.parked:
        park(txn, group, turns.parked)


def park(txn: WriteTransaction, group: GroupState, marks: dict[ID, bytes]) -> None:
    """Park entries, pending or not."""
    key = group.key_limit
    assert key is not None
    pel = group.pel(txn)
    was = pel.find(marks)
    rows = [(sid, was[sid].count if sid in was else 0, PARKED_UNTIL) for sid in sorted(marks)]
    for _, before in pel.release(rows, insert=True):
        if before is not None:
            group.count_pending(txn, before.consumer, -1)
        group.count_pending(txn, UNOWNED, 1)
    parking = Parking(txn, group, key)
    for sid, mark in marks.items():
        _move(txn, group, parking, sid, mark, PARKED)


def leave(txn: WriteTransaction, group: GroupState, ids: Iterable[ID]) -> None:
    """Take entries that have left the pending list from their keys; the next of these are released."""
    key = group.key_limit
    if key is None:
        return
    parking = Parking(txn, group, key)
    freed = set()
    for sid in ids:
        was = parking.of(sid)
        if was is None:
            continue
        mark, place = was
        counts = parking.counts(mark)
        if place == HELD and not counts[1]:  # as nearly always: none waits for it
            head = parking.marks + mark
            if counts[0] > 1:
                txn.put(head, records.seal(head, (counts[0] - 1, 0)))
            else:
                txn.delete(head)
            txn.delete(parking.entries + pack_id(*sid))
        else:
            _move(txn, group, parking, sid, mark, None)
            freed.add(mark)
    _release_next(txn, group, parking, freed)


def give_up(txn: WriteTransaction, group: GroupState, ids: Iterable[ID]) -> None:
    """Entries have been released: without ``order`` they hold their keys no more, and the next may."""
    key = group.key_limit
    if key is None or key.order:
        return
    parking = Parking(txn, group, key)
    freed = set()
    for sid in ids:
        was = parking.of(sid)
        if was is not None and was[1] == HELD:
            _move(txn, group, parking, sid, was[0], WAITS)
            freed.add(was[0])
    _release_next(txn, group, parking, freed)


def require_free(txn: WriteTransaction, stream: bytes, group: GroupState, pending: dict[ID, Nack],
                 entries: Sequence[tuple[ID, Entry | None]]) -> Turns | None:
    """KeyBusy where one of the entries cannot be claimed by its ID, for others hold its key. Changes nothing."""
    key = group.key_limit
    if key is None:
        return None
    turns = Turns(txn, group, key)
    for sid, entry in dict(entries).items():
        nack = pending.get(sid)
        is_free = (entry is None or (turns.is_for_now(entry) and not turns.stops) if nack is None else
                   nack.consumer != UNOWNED or turns.may_claim(sid))
        if not is_free:
            raise KeyBusy(
                f"entry {make_id(*sid)} of stream {shown(stream)} waits until another one with the same field "
                f"{shown(key.field)} has ended in group {shown(group.name)}; nothing was claimed. read() delivers it "
                "then; configure(per_key=) lets more be worked on at once")
    return turns


def stopped_by(txn: RaxTransaction, header: StreamHeader, group: GroupState) -> bytes | None:
    """The value of the key for which the group delivers nothing more: of it as many are parked as may be; else None."""
    key = group.key_limit
    if key is None or group.last >= header.last:
        return None
    parking = Parking(txn, group, key)
    if not parking.is_full():
        return None
    for entry in read_now(txn, group.number, header, make_id(*group.last).next(), 1):
        for name, value in entry.pairs:
            if name == key.field and not parking.has_room(xxh3_128_digest(value)):
                return bytes(value)
    return None


def rebuild(txn: WriteTransaction, header: StreamHeader, group: GroupState, key: Key | None) -> None:
    """Give the group another key, or none: what is pending is parked, or released, as if it had had it from the first.

    What consumers hold stays with them, also where that is more than the key allows. Reads each entry that is pending.
    """
    for kind in (keys.KEY, keys.KEYED):
        for row, _ in list(family_rows(txn, keys.group_family(group.number, kind, group.group))):
            txn.delete(row)
    group.changed(txn)
    group.key_limit = key = None if key is None else key._replace(parked=0)
    pel = group.pel(txn)
    rows = list(pel.scan(StreamID.MIN, StreamID.MAX)) if group.pending else []
    due: dict[ID, tuple[int, int]] = {}
    if key is None:
        due = {sid: (nack.count, 0) for sid, nack in rows if is_parked(nack)}
    else:
        marks: dict[ID, bytes] = {}
        for at in range(0, len(rows), _PIECE):
            some = [sid for sid, _ in rows[at : at + _PIECE]]
            for sid, entry in look_up(txn, group.number, header, some, False).items():
                mark = None if entry is None else mark_of(entry, key.field)
                if mark is not None:
                    marks[sid] = mark
        parking = Parking(txn, group, key)
        for sid, nack in rows:
            if nack.consumer != UNOWNED and sid in marks:
                _move(txn, group, parking, sid, marks[sid], HELD)
        for sid, nack in rows:
            if nack.consumer != UNOWNED:
                continue
            was_parked = is_parked(nack)
            if sid not in marks or ((key.order or was_parked or not nack.count) and parking.has_room(marks[sid])):
                place = HELD
            else:
                place = PARKED if key.order or was_parked or not nack.count else WAITS
            if sid in marks:
                _move(txn, group, parking, sid, marks[sid], place)
            if (place == PARKED) != was_parked:
                due[sid] = nack.count, PARKED_UNTIL if place == PARKED else 0
    pel.release([(sid, count, at) for sid, (count, at) in due.items()])


def _release_next(txn: WriteTransaction, group: GroupState, parking: Parking, marks: Iterable[bytes]) -> None:
    """Release what is parked, as far as these keys have room."""
    released = []
    pel = group.pel(txn)
    for mark in sorted(marks):
        while True:
            held, parked = parking.counts(mark)
            if not parked or held >= parking.key.per_key:
                break
            prefix = parking.marks + mark
            first = next((row for row, _ in family_rows(txn, prefix) if len(row) > len(prefix)), None)
            nack = None if first is None else pel.get(unpack_id(first[-16:]))
            if first is None or nack is None:
                raise CorruptionError(f"group {shown(group.name)} counts {parked} parked entries of a key, and none is "
                                      "there", stream=str(group.number))
            sid = unpack_id(first[-16:])
            _move(txn, group, parking, sid, mark, HELD)
            released.append((sid, nack.count, 0))
    pel.release(released)


def _move(txn: WriteTransaction, group: GroupState, parking: Parking, sid: ID, mark: bytes, to: int | None) -> None:
    """Note what an entry is to its key from now on; None: it is not pending any more."""
    was = parking.of(sid)
    before = None if was is None else was[1]
    if before == to:
        return
    head, row, about = parking.marks + mark, pack_id(*sid), parking.entries
    counts = list(parking.counts(mark))
    for place, by in ((before, -1), (to, 1)):
        if place == HELD:
            counts[0] += by
        elif place == PARKED:
            counts[1] += by
            group.changed(txn)
            key = group.key_limit
            assert key is not None
            group.key_limit = parking.key = key._replace(parked=key.parked + by)
            if by > 0:
                txn.put(head + row, records.seal(head + row, ()))
            else:
                txn.delete(head + row)
    if any(counts):
        txn.put(head, records.seal(head, counts))
    elif before is not None:
        txn.delete(head)
    if to is None:
        txn.delete(about + row)
    else:
        txn.put(about + row, records.seal(about + row, [mark, to]))
