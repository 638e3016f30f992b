"""The deferred entries of a stream, as records: each is appended once its time has come.

    n  26  due (8)  number (8)   ->  [[name, value, …]]            in the order in which they fall due
                                     [[name, value, …], name]      a schedule's next tick: see schedules.py
    n  31                        ->  header: how many there are, when the first is due, the next number

    release()    one commit:   the entries due ── appended, with IDs as any other
                               their records   ── deleted
                               of a tick       ── the next one deferred
                               the header      ── counts both

So an entry is either deferred or in the stream, never both, whatever is killed; and of processes that release
at once the second finds nothing. A look at the header says whether anything is due: no other record is read.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ...storage.errors import CorruptionError, InvalidArgument
from ...storage.format import keys, records
from ...storage.log.transaction import WriteTransaction
from ...storage.notices import note
from ...storage.trees.rax import Rax, RaxTransaction
from ..node.entry import OWN_FIELD
from ..node.stream_id import AUTO, MAX64, StreamID, make_id, pack_id, time_at, unpack_id
from ..node.timetable import Never
from . import schedules, unique
from .header import NEVER, StreamHeader, shown
from .schedules import ScheduleState
from .writer import StreamWriter

_AT_ONCE = 1000  # entries that a commit releases, or a transaction reads
_BYTES = 1 << 20  # of them, or one entry more


def put(txn: WriteTransaction, stream: StreamWriter, due: int, now: int, flat: list[bytes]) -> int:
    """Defer an entry; its number. MalformedValue, StreamExhausted. What is due by now is not released."""
    stream.require_values((flat,))
    stream.next_id(AUTO, now)
    stream.changed(txn)
    return _put(txn, stream, due, [flat])


def _put(txn: WriteTransaction, stream: StreamWriter, due: int, row: list[Any]) -> int:
    header = stream.header
    number = header.next_deferred
    header.next_deferred = number + 1
    header.deferred += 1
    header.due = min(header.due, due)
    key = keys.family(stream.number, keys.DEFERRED) + pack_id(due, number)
    txn.put(key, records.seal(key, row))
    return number


def plan(txn: WriteTransaction, stream: StreamWriter, schedule: ScheduleState, nominal: int, now: int) -> None:
    """Defer the next tick of a schedule that has none, and write its record. Behind stream.changed()."""
    due = schedule.due(nominal)
    number = _put(txn, stream, due, [schedule.entry(nominal), schedule.name])
    schedule.tick = schedules.Tick(nominal, due, number)
    schedules.put(txn, stream.number, schedule)
    stream.header.back = max(stream.header.back, now - schedules.BACK)


def unplan(txn: WriteTransaction, stream: StreamWriter, schedule: ScheduleState) -> None:
    """Take the next tick of a schedule back. Behind stream.changed()."""
    if schedule.tick is not None:
        txn.delete(keys.family(stream.number, keys.DEFERRED) + pack_id(*schedule.tick[1:]))
        schedule.tick = None
        _removed(txn, stream, 1)


def remove(txn: WriteTransaction, stream: StreamWriter, due: int, number: int) -> bool:
    """Delete a deferred entry; False if it is not there (any more). InvalidArgument for a tick."""
    key = keys.family(stream.number, keys.DEFERRED) + pack_id(due, number)
    value = txn.get(key)
    if value is None:
        return False
    _, *schedule = records.unseal(key, value)
    if schedule:
        raise InvalidArgument(f"that is the next tick of schedule {shown(schedule[0])}, by which all others come. Take "
                              "it away with pause_schedule() or remove_schedule()")
    stream.changed(txn)
    txn.delete(key)
    _removed(txn, stream, 1)
    return True


def get(txn: RaxTransaction, number: int, due: int, place: int) -> list[bytes]:
    """The fields of a deferred entry. CorruptionError."""
    key = keys.family(number, keys.DEFERRED) + pack_id(due, place)
    flat: list[bytes] = records.unseal(key, txn.get(key))[0]
    return flat


def rows(txn: RaxTransaction, number: int, header: StreamHeader, after: bytes,
         until: int) -> list[tuple[bytes, list[Any]]]:
    """Deferred entries behind a key, due by ``until``: their keys' ends and their rows. The first so many of them.

    CorruptionError for one that is damaged, and if those that the header counts are not there.
    """
    prefix = keys.family(number, keys.DEFERRED)
    place = Rax(txn, prefix).iterator()
    found: list[tuple[bytes, list[Any]]] = []
    size = 0
    has_row = place.seek(">", after)
    while has_row and len(found) < _AT_ONCE and size < _BYTES and int.from_bytes(place.key()[:8], "big") <= until:
        key, value = place.item()
        found.append((key, records.unseal(prefix + key, value)))
        size += len(value)
        has_row = place.next()
    first = int.from_bytes(found[0][0][:8], "big") if found else NEVER
    if not after and (first != header.due or (not has_row and len(found) != header.deferred)):
        raise CorruptionError(f"of {header.deferred} deferred entries, the first due at {header.due} ms, some are lost",
                              stream=shown(header.name))
    return found


def release(txn: WriteTransaction, stream: StreamWriter, now: int) -> None:
    """Append what is due by ``now``: the first so many, see rows(). CorruptionError.

    The values are not compared with the schema again: they were when they were deferred. A tick behind which none can
    be planned here stays due, for a process that can, and what follows it is appended.
    """
    header = stream.header
    if now < header.back:
        _plan_anew(txn, stream, now)
    room = min(_AT_ONCE, StreamID.MAX - make_id(*header.last))
    flats: list[list[bytes]] = []
    gone: list[bytes] = []
    named: list[tuple[int, bytes]] = []  # the places in flats of those with a unique name
    planned: list[tuple[ScheduleState, int]] = []  # each with the tick that comes then
    after = b""
    while now >= header.due and not gone and len(flats) < room:
        due = rows(txn, stream.number, header, after, now)
        if not due:
            break
        after = due[-1][0]
        for key, (flat, *of_schedule) in due:
            most = min(room - len(flats), _BYTES // sum(map(len, flat)) + 1)
            if most <= 0:
                break
            if not of_schedule:
                if flat[0] == OWN_FIELD:
                    named.append((len(flats), key))
                flats.append(flat)
            else:
                schedule = schedules.of_tick(txn, stream.number, of_schedule[0], *unpack_id(key))
                try:
                    nominals, following = schedule.pick(schedule.nominal, now, most)
                except Never as error:
                    _note_never(header.name, of_schedule[0], str(error))
                    continue
                flats += map(schedule.entry, nominals)
                schedule.last = nominals[-1] if nominals else schedule.last
                planned.append((schedule, following))
            gone.append(key)
    if not gone:
        return  # or the stream has no ID left
    stream.changed(txn)
    schema, header.schema = header.schema, None
    try:
        sids = stream.extend(txn, now, flats)
    finally:
        header.schema = schema
    prefix = keys.family(stream.number, keys.DEFERRED)
    for key in gone:
        txn.delete(prefix + key)
    for at, key in named:
        wish = unique.wish_of(flats[at])
        if wish is not None:
            unique.released(txn, stream.number, wish.name, unpack_id(key), sids[at])
    for schedule, following in planned:
        plan(txn, stream, schedule, following, now)
    _removed(txn, stream, len(gone))


def _plan_anew(txn: WriteTransaction, stream: StreamWriter, now: int) -> None:
    """The clock has gone back, by more than a day: plan ticks anew that are later than those planned now would be."""
    found: list[tuple[ScheduleState, int]] = []
    place = Rax(txn, keys.family(stream.number, keys.DEFERRED)).iterator()
    has_row = place.seek(">", pack_id(now, MAX64))
    while has_row and len(found) < _AT_ONCE:
        key, value = place.item()
        _, *named = records.unseal(place.here, value)
        if named:
            schedule = schedules.of_tick(txn, stream.number, named[0], *unpack_id(key))
            try:
                nominal = schedule.from_now(now)
            except Never as error:
                _note_never(stream.header.name, named[0], str(error))
            else:
                if nominal < schedule.nominal:
                    found.append((schedule, nominal))
        has_row = place.next()
    stream.changed(txn)
    if not has_row:
        stream.header.back = 0
    for schedule, nominal in found:
        note("warning", "schedule %s of stream %s: the clock has gone back, and the tick of %s is planned anew, for %s",
             shown(schedule.name), shown(stream.header.name), time_at(schedule.nominal), time_at(nominal))
        unplan(txn, stream, schedule)
        plan(txn, stream, schedule, nominal, now)


@lru_cache(1024)
def _note_never(stream: bytes, schedule: bytes, why: str) -> None:
    """Say, once, that a tick waits for a process that can plan the next one."""
    note("warning", "schedule %s of stream %s: this process cannot plan the tick behind the one that is due, and "
         "leaves both to others: %s", shown(schedule), shown(stream), why)


def _removed(txn: WriteTransaction, stream: StreamWriter, count: int) -> None:
    """Records have been deleted: count, and find the first that is left."""
    stream.header.deferred -= count
    first = Rax(txn, keys.family(stream.number, keys.DEFERRED)).first()
    stream.header.due = NEVER if first is None else int.from_bytes(first[0][:8], "big")
