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
from ..entries.range_read import look_up
from ..node.entry import Entry
from ..node.stream_id import MAX64, StreamID, make_id, now_ms, pack_id, unpack_id
from ..pel.bucket import Nack
from .state import UNOWNED, GroupState, Key

ID = tuple[int, int]
WAITS, HELD, PARKED = 0, 1, 2
PARKED_UNTIL = MAX64  # the due time of what is parked
_PIECE = 1000  # entries that are decoded at once
_PARKED_AT_ONCE = 2000  # by one read


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


class Turns:
    """Which of the entries that one call goes through are for it now, up to ``count``. ``stops``: no more than these.

    Nothing is written before settle().
    """

    def __init__(self, txn: RaxTransaction, group: GroupState, key: Key, count: int | None = None) -> None:
        self.key: Key = key
        self._parking = Parking(txn, group, key)
        self._taken: dict[bytes, int] = {}  # how many of a key are to hold it by this call
        self._pending = group.pel(txn).last() if group.pending else None  # none behind it is pending
        self.counts: dict[bytes, tuple[int, int]] = {}  # of keys, before the call
        self.held: dict[ID, tuple[bytes, int | None]] = {}  # what is to hold its key, and what it was to it
        self.parked: dict[ID, tuple[bytes, int | None]] = {}
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
            self.held[sid] = mark, None if was is None else was[1]
            return True
        if was is None or was[1] != PARKED:
            if parking.key.parked + len(self.parked) >= parking.key.max_parked:
                self.stops = True
                return True
            self.parked[sid] = mark, None if was is None else was[1]
        return False

    def has_taken(self, entry: Entry) -> bool:
        """Count an entry that may be delivered; False where the read ends before it."""
        if self.stops:
            return False
        if self._left is not None:
            self._left -= 1
        return True

    def may_claim(self, sid: ID, parks: bool = False) -> bool:
        """Whether a pending entry of no consumer may be given to one: it holds its key, or the key has room.

        ``parks``: else it is to be parked.
        """
        was = self._parking.of(sid)
        if was is None or was[1] == HELD:
            return True
        if was[1] == WAITS and self._has_room(was[0]):
            self._taken[was[0]] = self._taken.get(was[0], 0) + 1
            self.held[sid] = was
            return True
        if was[1] == WAITS and parks:
            self.parked[sid] = was
        return False

    def _has_room(self, mark: bytes) -> bool:
        counts = self.counts.get(mark)
        if counts is None:
            counts = self.counts[mark] = self._parking.counts(mark)
        return counts[0] + self._taken.get(mark, 0) < self._parking.key.per_key


class _Moves:
    """Changes of what entries are to their keys. The rows of keys are written by write(), once each."""

    __slots__ = ("_counts", "_group", "_parked", "_txn", "parking")

    def __init__(self, txn: WriteTransaction, group: GroupState, key: Key) -> None:
        self._txn = txn
        self._group = group
        self._counts: dict[bytes, list[int]] = {}
        self._parked = 0
        self.parking: Parking = Parking(txn, group, key)

    def counts(self, mark: bytes) -> list[int]:
        """How many hold a key and are parked, after the changes up to here."""
        counts = self._counts.get(mark)
        if counts is None:
            counts = self._counts[mark] = list(self.parking.counts(mark))
        return counts

    def move(self, sid: ID, mark: bytes, before: int | None, to: int | None) -> None:
        """``before`` and ``to`` None: it is not pending then."""
        if before == to:
            return
        counts, row = self.counts(mark), pack_id(*sid)
        for place, by in ((before, -1), (to, 1)):
            if place == HELD:
                counts[0] += by
            elif place == PARKED:
                counts[1] += by
                self._parked += by
                listed = self.parking.marks + mark + row
                if by > 0:
                    self._txn.put(listed, records.seal(listed, ()))
                else:
                    self._txn.delete(listed)
        about = self.parking.entries + row
        if to is None:
            self._txn.delete(about)
        else:
            self._txn.put(about, records.seal(about, (mark, to)))

    def release_next(self, marks: Iterable[bytes]) -> None:
        """Release what is parked, as far as these keys have room."""
        released, pel = [], self._group.pel(self._txn)
        for mark in sorted(marks):
            counts = self.counts(mark)
            while counts[1] and counts[0] < self.parking.key.per_key:
                prefix = self.parking.marks + mark
                first = next((row for row, _ in family_rows(self._txn, prefix) if len(row) > len(prefix)), None)
                nack = None if first is None else pel.get(unpack_id(first[-16:]))
                if first is None or nack is None:
                    raise CorruptionError(f"group {shown(self._group.name)} counts {counts[1]} parked entries of a "
                                          "key, and none is there", stream=str(self._group.number))
                sid = unpack_id(first[-16:])
                self.move(sid, mark, PARKED, HELD)
                released.append((sid, nack.count, 0))
        pel.release(released)

    def write(self) -> None:
        """Write the rows of keys, and the group's count."""
        for mark, counts in self._counts.items():
            head = self.parking.marks + mark
            if any(counts):
                self._txn.put(head, records.seal(head, counts))
            elif self._txn.get(head) is not None:
                self._txn.delete(head)
        key = self._group.key_limit
        if self._parked and key is not None:
            self._group.changed(self._txn)
            self._group.key_limit = key._replace(parked=key.parked + self._parked)


def settle(txn: WriteTransaction, group: GroupState, turns: Turns, delivered: Iterable[ID]) -> None:
    """Note what a call has found: the entries delivered hold their keys, and what had to wait is parked."""
    moves = _Moves(txn, group, turns.key)
    for sid in delivered:
        if sid in turns.held:
            mark, before = turns.held[sid]
            moves.move(sid, mark, before, HELD)
    if turns.parked:
        pel = group.pel(txn)
        was = pel.find(turns.parked)
        rows = [(sid, was[sid].count if sid in was else 0, PARKED_UNTIL) for sid in sorted(turns.parked)]
        for _, nack in pel.release(rows, insert=True):
            if nack is not None:
                group.count_pending(txn, nack.consumer, -1)
            group.count_pending(txn, UNOWNED, 1)
        for sid, (mark, before) in turns.parked.items():
            moves.move(sid, mark, before, PARKED)
    moves.write()


def leave(txn: WriteTransaction, group: GroupState, ids: Iterable[ID]) -> None:
    """Take entries that have left the pending list from their keys; the next of these are released."""
    if group.key_limit is not None:
        _free(txn, group, group.key_limit, ids, None)


def give_up(txn: WriteTransaction, group: GroupState, ids: Iterable[ID]) -> None:
    """Entries have been released: without ``order`` they hold their keys no more, and the next may."""
    if group.key_limit is not None and not group.key_limit.order:
        _free(txn, group, group.key_limit, ids, WAITS)


def _free(txn: WriteTransaction, group: GroupState, key: Key, ids: Iterable[ID], to: int | None) -> None:
    moves, freed = _Moves(txn, group, key), set()
    for sid in ids:
        was = moves.parking.of(sid)
        if was is not None and (to is None or was[1] == HELD):
            moves.move(sid, *was, to)
            freed.add(was[0])
    moves.release_next(freed)
    moves.write()


def require_free(txn: WriteTransaction, stream: bytes, group: GroupState, pending: dict[ID, Nack],
                 entries: Sequence[tuple[ID, Entry | None]]) -> Turns | None:
    """KeyBusy where one of the entries cannot be claimed by its ID, for others hold its key. Changes nothing."""
    key = group.key_limit
    if key is None:
        return None
    turns = Turns(txn, group, key)
    for sid, entry in dict(entries).items():
        nack = pending.get(sid)
        is_free = entry is None or (turns.is_for_now(entry) and not turns.stops if nack is None else
                                    nack.consumer != UNOWNED or turns.may_claim(sid))
        if not is_free:
            raise KeyBusy(
                f"entry {make_id(*sid)} of stream {shown(stream)} waits until another one with the same field "
                f"{shown(key.field)} has ended in group {shown(group.name)}; nothing was claimed. read() delivers it "
                "then; configure(per_key=) lets more be worked on at once")
    return turns


def rebuild(txn: WriteTransaction, header: StreamHeader, group: GroupState, key: Key | None) -> None:
    """Give the group another key, or none: what is pending is parked, or released, as if it had had it from the first.

    What consumers hold stays with them, also where that is more than the key allows, and a retry that is not due waits
    on, with its key or for it. Reads each entry that is pending.
    """
    for kind in (keys.KEY, keys.KEYED):
        for row, _ in list(family_rows(txn, keys.group_family(group.number, kind, group.group))):
            txn.delete(row)
    group.changed(txn)
    group.key_limit = key = None if key is None else key._replace(parked=0)
    pel, now = group.pel(txn), now_ms()
    rows = list(pel.scan(StreamID.MIN, StreamID.MAX)) if group.pending else []
    if key is None:
        pel.release([(sid, nack.count, 0) for sid, nack in rows if is_parked(nack)])
        return
    marks: dict[ID, bytes] = {}
    for at in range(0, len(rows), _PIECE):
        some = [sid for sid, _ in rows[at : at + _PIECE]]
        for sid, entry in look_up(txn, group.number, header, some, False).items():
            mark = None if entry is None else mark_of(entry, key.field)
            if mark is not None:
                marks[sid] = mark
    moves = _Moves(txn, group, key)
    for sid, nack in rows:
        if nack.consumer != UNOWNED and sid in marks:
            moves.move(sid, marks[sid], None, HELD)
    due = []
    for sid, nack in rows:
        if nack.consumer != UNOWNED:
            continue
        was_parked, place = is_parked(nack), None
        if sid in marks:
            may_hold = key.order or was_parked or not nack.count
            place = WAITS
            if may_hold and moves.counts(marks[sid])[0] < key.per_key:
                place = HELD
            elif may_hold and (was_parked or nack.time <= now):
                place = PARKED
            moves.move(sid, marks[sid], None, place)
        if (place == PARKED) != was_parked:
            due.append((sid, nack.count, PARKED_UNTIL if place == PARKED else 0))
    moves.write()
    pel.release(due)
