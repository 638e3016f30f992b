"""Delivery: what a group hands to a consumer, and what it remembers of it.

    read new        entries behind the group's last delivered ID; each gets a row in the PEL
    read history    the consumer's own rows of the PEL, delivered once more
    claim idle      rows that have been idle too long, whoever's they were; then new entries
    ack             rows out of the PEL

All of these act inside one write transaction on the group (state.py) and its PEL
(pending_list.py), and count deliveries as Redis does: a new delivery counts 1, also of an entry
that was pending already; a history read and a claim count one more; an entry that has been
deleted meanwhile is told of and counts nothing.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Container, Iterable
from itertools import chain, islice, takewhile
from typing import Any

from ...storage.commit.write_transaction import WriteTransaction
from ...storage.errors import CorruptionError, NotOwner
from ..entries.count import Counter
from ..entries.header import StreamHeader, shown
from ..entries.range_read import entries_at, read_now, require_absent
from ..entries.writer import StreamWriter
from ..node.entry import Entry
from ..node.packed_ids import delivered
from ..node.stream_id import MAX64, StreamID, make_id
from . import subject_filter
from .bucket import unpack_ids
from .state import NOBODY, UNKNOWN, ConsumerState, GroupState

MOST_DELIVERIES = (1 << 63) - 1
AT_ONCE = 128  # rows of the PEL looked through before the entries are
_MOST_LISTED = 20  # IDs in a message

ID = tuple[int, int]
Takes = Callable[[Entry], bool]


def read_new(txn: WriteTransaction, stream: StreamWriter, group: GroupState, consumer: ConsumerState,
             count: int | None, noack: bool, now: int, takes: Takes | None = None) -> list[Entry]:
    """Deliver entries nobody in the group has had yet: XREADGROUP with ``>``.

    ``takes`` may end the delivery before an entry: what it refuses stays undelivered. A group
    filtered by subject passes over what is not for it, up to filtered.AT_ONCE entries a call.
    """
    header = stream.header
    if group.last >= header.last or count == 0:
        return []
    start = make_id(*group.last).next()
    stream.flush(txn)
    if group.subjects:
        entries, passed = subject_filter.read_matching(txn, stream.number, header, group.last, group.subjects, count,
                                                       takes)
        if passed:
            group.changed(txn)
            advance(group, header, len(passed), passed[-1], passed)
    else:
        entries = read_now(txn, stream.number, header, start, count)
        if takes is not None:
            entries = list(takewhile(takes, entries))
    if not entries:
        return []
    ids = delivered(entries)
    group.changed(txn)
    if not group.subjects:
        advance(group, header, len(entries), entries[-1].id, (entry.id for entry in entries))
    if not noack:  # else the consumer holds none of them, and does not count as active
        group.got(txn, consumer, now)
        moved = group.pel(txn).add_row(ids, consumer.number, now)
        for _, nack in moved:
            group.count_pending(txn, nack.consumer, -1)
        group.count_pending(txn, consumer.number, len(entries))
    return entries


def read_history(txn: WriteTransaction, stream: StreamWriter, group: GroupState, consumer: ConsumerState,
                 after: ID, count: int | None, now: int, takes: Takes | None = None) -> list[Entry]:
    """The consumer's own pending entries with an ID above ``after``, delivered once more.

    One that has been deleted comes as an entry without fields, and is not counted.
    """
    if after >= (MAX64, MAX64) or count == 0:
        return []
    pel = group.pel(txn)
    rows = []
    for sid, nack in pel.scan(make_id(*after).next(), StreamID.MAX, consumer.number):
        rows.append((sid, nack))
        if count is not None and len(rows) >= count:
            break
    else:
        found = len(rows) if after == (0, 0) else pel.held(consumer.number)
        if found != consumer.pending:
            raise CorruptionError(
                f"consumer {shown(consumer.name)} of group {shown(group.name)} has {found} pending entries and counts "
                f"{consumer.pending}", stream=shown(stream.header.name),
            )
    answer = []
    again = []
    for entry, (sid, nack) in zip(fetch(txn, stream, [sid for sid, _ in rows]), rows, strict=True):
        if entry is None:
            gone = Entry(*sid, [])
            gone.deliveries = nack.count
            answer.append(gone)
            continue
        if takes is not None and not takes(entry):
            break
        entry.deliveries = min(nack.count + 1, MOST_DELIVERIES)
        again.append((sid, consumer.number, now, entry.deliveries))
        answer.append(entry)
    if again:
        pel.set(again)
        txn.changes += 1
    return answer


def claim_idle(txn: WriteTransaction, stream: StreamWriter, group: GroupState, consumer: ConsumerState,
               min_idle: int, count: int | None, now: int, takes: Takes | None = None) -> list[Entry]:
    """Take over what is idle for ``min_idle`` ms: released entries first, then the most idle.

    Entries that have been deleted meanwhile are skipped and stay pending.
    """
    if count == 0 or group.pending == 0:
        return []
    stream.flush(txn)  # the PEL must not be written to while it is looked through
    pel = group.pel(txn)
    candidates = chain(pel.released(now), pel.oldest(now - min_idle))
    claimed: list[Entry] = []
    rows = []
    full = False
    seen = 0
    while not full:
        left = AT_ONCE if count is None else min(count - len(claimed), AT_ONCE)
        some = list(islice(candidates, left))
        if not some:
            break
        seen += len(some)
        for entry, (sid, nack) in zip(fetch(txn, stream, [sid for sid, _ in some]), some, strict=True):
            if entry is None:
                continue
            if takes is not None and not takes(entry):
                full = True
                break
            entry.deliveries = min(nack.count + 1, MOST_DELIVERIES)
            entry.idle = None if nack.released else max(0, now - nack.time) / 1000
            claimed.append(entry)
            rows.append((sid, consumer.number, now, entry.deliveries))
    if not full and (count is None or len(claimed) < count):
        lost = seen < group.pending if min_idle == 0 else not seen and next_due(txn, group, min_idle) is None
        group.require_whole(txn, anew=lost)
    if len({row[0] for row in rows}) < len(rows):
        raise CorruptionError(f"the pending list of group {shown(group.name)} shows an entry twice")
    give(txn, group, consumer, rows, now)
    return claimed


def ack(txn: WriteTransaction, group: GroupState, ids: bytes) -> int:
    """Take entries out of the PEL, their IDs ascending in a row (packed_ids.py); how many were in it. XACK."""
    if group.pending == 0:
        return 0
    return _count_gone(txn, group, group.pel(txn).remove_row(ids))


def take_out(txn: WriteTransaction, group: GroupState, ids: list[ID]) -> list[ID]:
    """ack() of plain IDs, ascending; which of them were in the PEL."""
    gone = group.pel(txn).remove(ids) if group.pending else []
    _count_gone(txn, group, collections.Counter(nack.consumer for _, nack in gone))
    return [sid for sid, _ in gone]


def _count_gone(txn: WriteTransaction, group: GroupState, owners: dict[int, int]) -> int:
    for owner, count in owners.items():
        group.count_pending(txn, owner, -count)
    return sum(owners.values())


def require_owner(txn: WriteTransaction, stream: bytes, group: GroupState | None, name: bytes, consumer: bytes,
                  ids: bytes) -> None:
    """NotOwner unless these entries, their IDs in a row, are all pending with this consumer. Changes nothing."""
    wanted = unpack_ids(ids)
    member = None if group is None else group.consumer(txn, consumer)
    held = {} if group is None else group.pel(txn).find(wanted)
    lost = [sid for sid in wanted if sid not in held or member is None or held[sid].consumer != member.number]
    if not lost:
        return

    def place(sid: ID) -> str:
        nack = held.get(sid)
        if nack is None or group is None:
            return "not pending"
        return "released" if nack.consumer == NOBODY else f"with {shown(group.consumer_no(txn, nack.consumer).name)}"

    listed = ", ".join(f"{sid[0]}-{sid[1]} ({place(sid)})" for sid in lost[:_MOST_LISTED])
    more = f" and {len(lost) - _MOST_LISTED} more" if len(lost) > _MOST_LISTED else ""
    raise NotOwner(
        f"consumer {shown(consumer)} of group {shown(name)} of stream {shown(stream)} does not own {len(lost)} of "
        f"{len(wanted)} entries: {listed}{more}. None was acknowledged. Drop what was made of those: another consumer "
        "has claimed or acknowledged them.", tuple(make_id(*sid) for sid in lost),
    )


def advance(group: GroupState, header: StreamHeader, count: int, last: ID, ids: Iterable[ID]) -> None:
    """Move the group's last delivered ID over ``count`` IDs up to ``last``, and Redis' entries-read counter with it.

    ``ids`` are the same, and asked for only where the counter depends on each of them.
    """
    known = group.entries_read != UNKNOWN
    if known and group.last >= header.first and not tombstones(header, group.last):
        group.entries_read += count
    else:
        for sid in ids:
            if group.entries_read != UNKNOWN and group.last >= header.first and not tombstones(header, group.last):
                group.entries_read += 1
            elif header.entries_added:
                group.entries_read = estimate(header, sid)
            group.last = (sid[0], sid[1])
    group.last = (last[0], last[1])


def tombstones(header: StreamHeader, start: ID) -> bool:
    """Whether an entry at or behind ``start`` may have been deleted by name."""
    return header.length != 0 and header.max_deleted != (0, 0) and header.max_deleted >= start


def estimate(header: StreamHeader, sid: ID) -> int:
    """How many entries were added up to ``sid``, as far as Redis can tell; else UNKNOWN."""
    added = header.entries_added
    if not added:
        return 0
    if header.length == 0 and sid <= header.last:
        return added
    if sid != (0, 0) and sid < header.max_deleted:
        return UNKNOWN
    if sid == header.last:
        return added
    if sid > header.last:
        return UNKNOWN
    if header.max_deleted == (0, 0) or header.max_deleted < header.first:
        if sid < header.first:
            return added - header.length
        if sid == header.first:
            return added - header.length + 1
    return UNKNOWN


def lag(txn: Any, number: int, header: StreamHeader, last: ID, subjects: list[bytes]) -> int:
    """Live entries behind ``last``: exact whatever has been deleted, trimmed or set.

    For a group filtered by subject exact as well, by looking at each of them.
    """
    if subjects:
        return subject_filter.lag(txn, number, header, last, subjects)
    if last >= header.last:
        return 0
    if last < header.first:
        return header.length
    return header.length - Counter(txn, number, header).rank(make_id(*last).next())


def fetch(txn: WriteTransaction, stream: StreamWriter, ids: list[ID]) -> list[Entry | None]:
    """The entries with these IDs, None for each that has been deleted or trimmed. A node is decoded once."""
    found = _look_up(txn, stream, ids, False)
    return [found.get(sid) for sid in ids]


def present(txn: WriteTransaction, stream: StreamWriter, ids: list[ID]) -> Container[ID]:
    """Those of the IDs that have not been deleted or trimmed. Decodes no entry."""
    return _look_up(txn, stream, ids, True)


def _look_up(txn: WriteTransaction, stream: StreamWriter, ids: list[ID], bare: bool) -> dict[ID, Entry | None]:
    unique = sorted(set(ids))
    found = entries_at(stream.nodes(txn), stream.nodes_prefix, stream.header.name, unique, bare)
    for sid in unique:
        if sid not in found:
            require_absent(txn, stream.number, stream.header, sid)
    return found


def give(txn: WriteTransaction, group: GroupState, consumer: ConsumerState, rows: list[tuple[ID, int, int, int]],
         now: int) -> None:
    """Make the consumer the owner of these rows of the PEL, whichever had them."""
    if rows:
        had = collections.Counter(was.consumer for _, was in group.pel(txn).set(rows) if was is not None)
        for owner, count in had.items():
            group.count_pending(txn, owner, -count)
        group.count_pending(txn, consumer.number, len(rows))
        group.got(txn, consumer, now)


def next_due(txn: Any, group: GroupState, min_idle: int | None) -> int | None:
    """When, in ms, the next pending entry can be claimed; None where no claim is asked for."""
    if min_idle is None or not group.pending:
        return None
    pel = group.pel(txn)
    oldest = pel.oldest_time()
    times = [time for time in (pel.next_due(), None if oldest is None else oldest + min_idle) if time is not None]
    return min(times, default=None)
