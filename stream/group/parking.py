"""Keys: of entries with one value in a field, consumers get so many at a time, or in a time; the others are parked.

    38  group, key "a"          [1, 2]        the key is held by one entry, and two are parked
    38  group, key "a", 7-0     []            these two, the next first
    38  group, key "a", 9-0     []

    in the pending list:  5-0  a HELD    7-0  a PARKED    9-0  a PARKED         (Nack.key, bucket.py)

A key is the xxh3 of a field's value. A read that comes to an entry whose key is held to the full parks it: it becomes
pending as a released entry that never falls due (PARKED_UNTIL), delivered 0 times. Whatever takes an entry out of the
pending list takes it from its key, in that commit, and the next one that is parked holds the key then: released, due
at 0, so before all others, and given to the next read, also to one that claims nothing.

Where the key has a rate, its row is [1, 2, turn, 1], as that of GCRA (Limits), and the last place says that one of
those that hold it is NEXT: taken from the parked, and due when the rate lets it through. There is one NEXT at most, and
what comes to the key behind it is parked. Its delivery moves the turn, and makes the next one NEXT. All that is due is
delivered by every read then, and put off once more where its key has no turn left. A row that holds no more than a turn
that is past is as good as none: a call that moves a turn removes such rows of the two keys behind it.

            read, key free                          out of the pending list
        ──────────────────────> held ───────────────────────────────────────────>
                                 │ ^
         released, without order │ │ claimed, key free;           held: with a consumer, or about to be delivered;
                                 v │ or the next of the parked     with ``order`` also what waits for a retry
                               waits ── due, key held ──> parked      (NEXT stands between parked and held)

An entry without the field has no key, and no rows here. Rows are there only where the group has a key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from xxhash import xxh3_128_digest

from ...storage.errors import CorruptionError, KeyBusy
from ...storage.format import keys
from ...storage.format.records import seal, unseal
from ...storage.log.transaction import WriteTransaction
from ...storage.trees.rax import RaxTransaction, family_rows
from ..entries.header import StreamHeader, shown
from ..entries.range_read import look_up
from ..node.entry import Entry
from ..node.stream_id import MAX64, StreamID, make_id, now_ms, pack_id, unpack_id
from ..pel.bucket import Nack
from ..pel.pending_list import PendingList
from .state import UNOWNED, GroupState, Key, KeyRow

ID = tuple[int, int]
NONE, WAITS, HELD, PARKED, NEXT = range(5)  # what an entry is to its key: the last byte of Nack.key
_HOLDS = (0, 0, 1, 0, 1)  # by what it is: whether it counts as one that holds the key
_AS_BYTE = [bytes([place]) for place in range(5)]
PARKED_UNTIL = MAX64  # the due time of what is parked
_PIECE = 1000  # entries that are decoded at once
_PARKED_AT_ONCE = 2000  # by one read
_LOOKED_AT = 2  # rows behind one that is written
MOST_KNOWN = 100_000  # rows of keys, which a warm group remembers: 14 MB


_NO_ENTRY = KeyRow()
_NEITHER = 0, 0
_HELD = (1 << 32) - 1  # of what a group remembers of a key: how many hold it. How many are parked is above
_key_row: Callable[[Iterable[Any]], KeyRow] = partial(tuple.__new__, KeyRow)  # of all four; twice as fast as KeyRow()


def row_of(stored: list[int]) -> KeyRow:
    """The row of a key as it is stored, with no rate or with one."""
    return _key_row(stored if len(stored) == 4 else (*stored, 0, 0))


def is_parked(nack: Nack) -> bool:
    """Whether a pending entry is parked."""
    return nack.consumer == UNOWNED and nack.time == PARKED_UNTIL


def place_of(nack: Nack) -> int:
    """What a pending entry is to its key; NONE without one."""
    return nack.key[16] if nack.key else NONE


def waits(nack: Nack) -> bool:
    """Whether a pending entry is parked, or the next of its key."""
    return is_parked(nack) or place_of(nack) == NEXT


def next_turn(txn: RaxTransaction, group: GroupState, most: int) -> int | None:
    """When, in ms, the first that is the next of its key is due, among so many that are released."""
    rows = islice(group.pel(txn).released(PARKED_UNTIL - 1), most)
    return next((nack.time for _, nack in rows if place_of(nack) == NEXT), None)


def is_ahead(txn: RaxTransaction, group: GroupState, now: int) -> bool:
    """Whether the first that is released is the next of its key, and due too late: the clock has gone back."""
    key = group.key_limit
    if key is None or not key.many or not group.pending:
        return False
    due = group.pel(txn).next_due()
    return due is not None and key.is_ahead(due, now) and next_turn(txn, group, 1) == due


def mark_of(entry: Entry, field: bytes) -> bytes | None:
    """The key of an entry as it is stored; None for one without the field."""
    names = entry.names
    return bytes(xxh3_128_digest(entry.values[names.index(field)])) if field in names else None


class Turns:
    """Which of the entries that one call goes through are for it now, up to ``count``. ``stops``: no more than these.

    Nothing is written before settle(). ``now`` as in group.pel().
    """

    __slots__ = ("_known", "_left", "_pending", "_taken", "_txn", "held", "key", "marks", "now", "parked", "pel",
                 "rows", "stops", "until")

    def __init__(self, txn: RaxTransaction, group: GroupState, key: Key, count: int | None = None,
                 now: int = 0) -> None:
        self._txn = txn
        self.key: Key = key
        self.marks: bytes = keys.group_family(group.number, keys.KEY, group.group)
        self.now = now_ms() if key.many else 0
        self._taken: dict[bytes, tuple[int, int]] = {}  # of a key, by this call: delivered, and which did not hold it
        self.pel: PendingList = group.pel(txn, now)
        self._pending = self.pel.last() if group.pending else None  # none behind it is pending
        self._known = group.key_rows
        self.rows: dict[bytes, KeyRow] = {}  # of keys, before the call
        self.held: dict[ID, tuple[bytes, int]] = {}  # what is to hold its key, and what it was to it
        self.parked: dict[ID, tuple[bytes, int]] = {}
        self.stops = False
        self.until: int | None = None  # when the entry that stops the read has its turn, where it waits for that alone
        self._left = count

    def row(self, mark: bytes) -> KeyRow:
        """The row of a key, before the call."""
        row = self.rows.get(mark)
        if row is None:
            known = self._known.get(mark)
            if known is not None:
                row = _key_row((known & _HELD, known >> 32, 0, 0))
            else:
                at = self.marks + mark
                value = self._txn.get(at)
                row = _NO_ENTRY if value is None else row_of(unseal(at, value))
            self.rows[mark] = row
        return row

    def is_for_now(self, entry: Entry, sid: ID) -> bool:
        """Whether an entry may be delivered. Else it is to be parked; or the read ends before it, and this is True."""
        if self._left == 0 or len(self.parked) >= _PARKED_AT_ONCE:
            self.stops = True
            return True
        key, names = self.key, entry.names
        if key.field not in names:
            return True
        mark: bytes = xxh3_128_digest(entry.values[names.index(key.field)])  # mark_of(), without the call
        place = NONE
        if self._pending is not None and sid <= self._pending:
            nack = self.pel.get(sid)
            place = NONE if nack is None else place_of(nack)
        if self._may_go(sid, mark, place):
            return True
        if place not in (PARKED, NEXT):
            if key.parked + len(self.parked) >= key.max_parked:
                self.stops, row = True, self.rows.get(mark)
                if row is not None and row.parked == row.next == 0 and (not key.per_key or row.held < key.per_key):
                    self.until = key.limits(row.turn).next_time(self.now)
                return True
            self.parked[sid] = mark, place
        return False

    def has_taken(self, takes: Callable[[Entry], bool] | None, entry: Entry) -> bool:
        """Count an entry that may be delivered; False where the read ends before it, as ``takes`` may also say."""
        if self.stops or (takes is not None and not takes(entry)):
            return False
        if self._left is not None:
            self._left -= 1
        return True

    def may_park(self, _: object = None) -> bool:
        """Whether this call may park one more."""
        return len(self.parked) < _PARKED_AT_ONCE

    def put_back(self, rows: Iterable[tuple[ID, Nack]]) -> Iterator[tuple[ID, Nack]]:
        """Park of these rows what is the next of its key: settle() finds its turn anew. None is to be claimed."""
        for sid, nack in rows:
            if place_of(nack) == NEXT:
                self.parked[sid] = nack.key[:16], NEXT
        return iter(())

    def may_claim(self, sid: ID, nack: Nack, parks: bool = False) -> bool:
        """Whether a pending entry may be given to a consumer: it holds its key, or the key has room, and a turn left.

        ``parks``: else it is to be parked.
        """
        if not nack.key:
            return True
        mark, place = nack.key[:16], nack.key[16]
        if place != PARKED and self._may_go(sid, mark, place):
            return True
        if parks and place != PARKED:
            self.parked[sid] = mark, place
        return False

    def _may_go(self, sid: ID, mark: bytes, place: int) -> bool:
        """Whether the key lets this entry through now. Then it counts for those behind it."""
        key, holds = self.key, _HOLDS[place]
        if holds and not key.many:
            return True
        row = self.rows.get(mark) or self.row(mark)
        delivered, new = self._taken.get(mark, _NEITHER)
        if not holds and key.per_key and row.held + new >= key.per_key:
            return False
        if key.many:
            left = key.limits(row.turn).left(self.now)
            if (left is not None and left <= delivered) or not (holds or row.parked == row.next == 0):
                return False
        self._taken[mark] = delivered + 1, new + 1 - holds
        self.held[sid] = mark, place
        return True


class _Moves:
    """Changes of what entries are to their keys. The rows of keys are written by write(), once each.

    ``keys``: of the entries that have moved and stay pending. The caller gives them to the pending list.
    """

    __slots__ = ("_before", "_group", "_parked", "_rows", "_spent", "_txn", "key", "keys")

    def __init__(self, txn: WriteTransaction, group: GroupState, turns: Turns) -> None:
        self._txn = txn
        self._group = group
        self.key: Key = turns.key
        self._before = turns
        self._rows: dict[bytes, KeyRow] = {}  # what has changed
        self._spent: set[bytes] = set()  # keys whose turns have moved
        self._parked = 0
        self.keys: dict[ID, bytes] = {}

    def row(self, mark: bytes) -> KeyRow:
        """The row of a key, after the changes up to here."""
        return self._rows.get(mark) or self._before.row(mark)

    def move(self, sid: ID, mark: bytes, before: int, to: int) -> None:
        """``before`` and ``to`` NONE: it is not pending then."""
        if before == to:
            return
        held, parked, turn, following = self._rows.get(mark) or self._before.row(mark)
        if PARKED in (before, to):
            by = 1 if to == PARKED else -1
            parked += by
            self._parked += by
            listed = self._before.marks + mark + pack_id(*sid)
            if by > 0:
                self._txn.put(listed, seal(listed, ()))
            else:
                self._txn.delete(listed)
        self._rows[mark] = _key_row((held + _HOLDS[to] - _HOLDS[before], parked, turn,
                                     following + (to == NEXT) - (before == NEXT)))
        if to != NONE:
            self.keys[sid] = mark + _AS_BYTE[to]

    def spend(self, mark: bytes) -> None:
        """An entry of a key with a rate is delivered: its turn moves on."""
        self.set_turn(mark, self.key.limits(self.row(mark).turn).spent(1, self._before.now).turn)
        self._spent.add(mark)

    def set_turn(self, mark: bytes, turn: int) -> None:
        """Set when the rate of a key lets the next one through."""
        self._rows[mark] = self.row(mark)._replace(turn=turn)

    def release_next(self, marks: Iterable[bytes] | None = None) -> None:
        """Release what is parked, as far as these keys have room, or all that have changed."""
        released: list[tuple[ID, int, int]] = []
        pel, key, now = self._before.pel, self.key, self._before.now
        given: dict[ID, bytes] = {}
        for mark in sorted(self._rows if marks is None else marks):
            while (row := self.row(mark)).parked and not row.next and (not key.per_key or row.held < key.per_key):
                prefix = self._before.marks + mark
                first = next((row for row, _ in family_rows(self._txn, prefix) if len(row) > len(prefix)), None)
                nack = None if first is None else pel.get(unpack_id(first[-16:]))
                if first is None or nack is None:
                    raise CorruptionError(f"group {shown(self._group.name)} counts {row.parked} parked entries of a "
                                          "key, and none is there", stream=str(self._group.number))
                sid = unpack_id(first[-16:])
                self.move(sid, mark, PARKED, NEXT if key.many else HELD)
                given[sid] = self.keys.pop(sid)
                limits = key.limits(row.turn)
                released.append((sid, nack.count, limits.next_time(now) if limits.left(now) == 0 else 0))
        if released:
            pel.release(released, keys=given)

    def write(self) -> None:
        """Write the rows of keys, and the group's count."""
        if self._rows:
            self._group.changed(self._txn)  # first: what the group remembers goes with it, should the call not end
        txn, prefix, known = self._txn, self._before.marks, self._group.key_rows
        if len(known) > MOST_KNOWN:
            known.clear()
        for mark, row in self._rows.items():
            held, parked, turn, following = row
            if turn or following:
                known.pop(mark, None)
            else:
                known[mark] = held | parked << 32
            head = prefix + mark
            if held or not self._is_spent(row):
                txn.put(head, seal(head, row if self.key.many else row[:2]))
            elif txn.get(head) is not None:
                txn.delete(head)
        for mark in self._spent:
            self._remove_behind(mark)
        key = self._group.key_limit
        if self._parked and key is not None:
            self._group.key_limit = key._replace(parked=key.parked + self._parked)

    def _is_spent(self, row: KeyRow) -> bool:
        """Whether a key's row says no more than none would."""
        return not (row.held or row.parked or row.turn > self._before.now * self.key.many)

    def _remove_behind(self, mark: bytes) -> None:
        """Remove the rows of the next keys if their turns are past, so that there are no more than twice those in use.

        Keys are hashes: those behind one that is new are any two.
        """
        prefix = self._before.marks
        heads = islice(family_rows(self._txn, prefix, prefix + mark + b"\xff" * 17), _LOOKED_AT)
        for head, value in [row for row in heads if len(row[0]) == len(prefix) + 16]:
            if head[len(prefix):] not in self._rows and self._is_spent(row_of(unseal(head, value))):
                self._txn.delete(head)
                self._group.key_rows.pop(head[len(prefix):], None)


def settle(txn: WriteTransaction, group: GroupState, turns: Turns, delivered: Iterable[ID]) -> Mapping[ID, bytes]:
    """Note what a call has found: the entries delivered hold their keys, and what had to wait is parked.

    Among ``delivered`` there may be more than those that may hold a key now. Returns what the caller is to give to the
    pending list as the keys of the delivered.
    """
    moves = _Moves(txn, group, turns)
    for sid in delivered:
        if sid in turns.held:
            mark, before = turns.held[sid]
            moves.move(sid, mark, before, HELD)
            if turns.key.many:
                moves.spend(mark)
    given = moves.keys
    if turns.parked:
        moves.keys = {}
        for sid, (mark, before) in turns.parked.items():
            moves.move(sid, mark, before, PARKED)
        pel = turns.pel
        was = pel.find(turns.parked)
        rows = [(sid, was[sid].count if sid in was else 0, PARKED_UNTIL) for sid in sorted(turns.parked)]
        for _, nack in pel.release(rows, insert=True, keys=moves.keys):
            if nack is not None:
                group.count_pending(txn, nack.consumer, -1)
            group.count_pending(txn, UNOWNED, 1)
    if turns.key.many:
        moves.release_next()
    moves.write()
    return given


def leave(txn: WriteTransaction, group: GroupState, gone: Iterable[tuple[ID, Nack]]) -> None:
    """Take entries that have left the pending list from their keys; the next of these are released."""
    if group.key_limit is not None:
        _free(txn, group, group.key_limit, [(sid, nack.key) for sid, nack in gone if nack.key], NONE)


def give_up(txn: WriteTransaction, group: GroupState, held: Mapping[ID, bytes]) -> Mapping[ID, bytes]:
    """These entries, with their keys, are released: without ``order`` they hold them no more, and the next may.

    Returns the keys that have changed.
    """
    if group.key_limit is None or group.key_limit.order:
        return {}
    return _free(txn, group, group.key_limit, [row for row in held.items() if row[1] and row[1][16] == HELD], WAITS)


def _free(txn: WriteTransaction, group: GroupState, key: Key, rows: Sequence[tuple[ID, bytes]],
          to: int) -> Mapping[ID, bytes]:
    if not rows:
        return {}
    moves, freed = _Moves(txn, group, Turns(txn, group, key)), set()
    for sid, had in rows:
        moves.move(sid, had[:16], had[16], to)
        freed.add(had[:16])
    moves.release_next(freed)
    moves.write()
    return moves.keys


def require_free(txn: WriteTransaction, stream: bytes, group: GroupState, pending: dict[ID, Nack],
                 entries: Sequence[tuple[ID, Entry | None]]) -> Turns | None:
    """KeyBusy where one of the entries cannot be claimed by its ID, for others hold its key. Changes nothing."""
    key = group.key_limit
    if key is None:
        return None
    turns = Turns(txn, group, key)
    for sid, entry in dict(entries).items():
        nack = pending.get(sid)
        is_free = entry is None or (turns.is_for_now(entry, sid) and not turns.stops if nack is None else
                                    nack.consumer != UNOWNED or turns.may_claim(sid, nack))
        if not is_free:
            why = "for its turn among those" if key.many else "until another one"
            raise KeyBusy(
                f"entry {make_id(*sid)} of stream {shown(stream)} waits {why} with the same field "
                f"{shown(key.field)}{'' if key.many else ' has ended'} in group {shown(group.name)}; nothing was "
                f"claimed. read() delivers it then; configure({'rate' if key.many else 'per_key'}=) lets more through")
    return turns


def rebuild(txn: WriteTransaction, header: StreamHeader, group: GroupState, key: Key | None) -> None:
    """Give the group another key, or none: what is pending is parked, or released, as if it had had it from the first.

    What consumers hold stays with them, also where that is more than the key allows, and a retry that is not due waits
    on, with its key or for it. Turns of the same field stay. Reads each entry that is pending.
    """
    turns, had, now = dict[bytes, int](), group.key_limit, now_ms()
    family = keys.group_family(group.number, keys.KEY, group.group)
    for row, value in list(family_rows(txn, family)):
        about = unseal(row, value)
        if len(about) > 2 and had is not None and key is not None and had.field == key.field:
            turns[row[len(family):]] = min(about[2] * key.many // had.many, now * key.many + key.burst * key.window)
        txn.delete(row)
    group.changed(txn)
    group.key_rows.clear()
    group.key_limit = key = None if key is None else key._replace(parked=0)
    pel = group.pel(txn)
    rows = list(pel.scan(StreamID.MIN, StreamID.MAX)) if group.pending else []
    waited = {sid for sid, nack in rows if waits(nack)}
    given = {sid: b"" for sid, nack in rows if nack.key}
    if key is None:
        pel.set_keys(given)
        pel.release([(sid, nack.count, 0) for sid, nack in rows if sid in waited])
        return
    marks: dict[ID, bytes] = {}
    for at in range(0, len(rows), _PIECE):
        some = [sid for sid, _ in rows[at : at + _PIECE]]
        for sid, entry in look_up(txn, group.number, header, some, False).items():
            mark = None if entry is None else mark_of(entry, key.field)
            if mark is not None:
                marks[sid] = mark
    moves = _Moves(txn, group, Turns(txn, group, key))
    for mark, turn in turns.items():
        moves.set_turn(mark, turn)
    for sid, nack in rows:
        if nack.consumer != UNOWNED and sid in marks:
            moves.move(sid, marks[sid], NONE, HELD)
    due = []
    for sid, nack in rows:
        if nack.consumer != UNOWNED:
            continue
        place = NONE
        if sid in marks:
            may_hold = key.order or sid in waited or not nack.count
            is_due = sid in waited or nack.time <= now
            place = WAITS
            if key.many and is_due:
                place = PARKED
            elif may_hold and (not key.per_key or moves.row(marks[sid]).held < key.per_key):
                place = HELD
            elif may_hold and is_due:
                place = PARKED
            moves.move(sid, marks[sid], NONE, place)
        if place == PARKED or sid in waited:
            due.append((sid, nack.count, PARKED_UNTIL if place == PARKED else 0))
    pel.set_keys(given | moves.keys)
    pel.release(due)
    moves.release_next()
    moves.write()
