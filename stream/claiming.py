"""Claiming: pending entries change hands, or are given back to the group.

    claim        these IDs, if idle long enough, to this consumer            XCLAIM
    autoclaim    whatever is idle long enough, in ID order, with a cursor    XAUTOCLAIM
    nack         back to the group: nobody's, at once or after a delay       XNACK
    hand over    all of one consumer's, to another

A claim finds out that an entry has been deleted, and then takes it out of the PEL: there is
nothing left to process. Released entries are always idle enough.
"""

from __future__ import annotations

from typing import NamedTuple

from ..storage.commit import WriteTransaction
from .bucket import Nack
from .delivery import ID, MOST_DELIVERIES, ack, fetch
from .entry import Entry
from .group_state import NOBODY, ConsumerState, GroupState
from .id import StreamID, make_id
from .id_row import pack_ids
from .writer import StreamWriter

_SCAN_FACTOR = 10  # XAUTOCLAIM looks at up to so many times COUNT rows


class ClaimOptions(NamedTuple):
    """The options of XCLAIM, parsed; times in milliseconds."""

    min_idle: int
    time: int  # the delivery time to set
    retrycount: int | None
    force: bool
    justid: bool
    lastid: ID | None


def claim(txn: WriteTransaction, stream: StreamWriter, group: GroupState, consumer: ConsumerState,
          ids: list[ID], options: ClaimOptions, now: int) -> list[Entry]:
    """XCLAIM: the entries that changed hands, in the order asked for."""
    if options.lastid is not None and options.lastid > group.last:
        group.changed(txn)
        group.last = options.lastid
    held = group.pel(txn).find(sorted(set(ids)))
    claimed: list[Entry] = []
    rows: dict[ID, tuple[ID, int, int, int]] = {}
    gone: list[ID] = []
    for sid, entry in zip(ids, fetch(txn, stream, ids), strict=True):
        nack = held.get(sid)
        if sid in rows:  # named twice: idle no more, unless no idle time is asked for
            nack = Nack(consumer.number, options.time, rows[sid][3], 0)
        elif nack is not None and entry is None:
            gone.append(sid)
            continue
        if nack is None:
            if not options.force or entry is None:
                continue
            count = 1
        else:
            if nack.consumer != NOBODY and options.min_idle and now - nack.time < options.min_idle:
                continue
            count = nack.count
        if options.retrycount is not None:
            count = options.retrycount
        elif not options.justid:
            count = min(count + 1, MOST_DELIVERIES)
        if entry is None:
            continue
        rows[sid] = (sid, consumer.number, options.time, count)
        entry.deliveries = count
        claimed.append(entry)
    _take_out(txn, group, gone)
    _give(txn, group, consumer, list(rows.values()))
    if claimed:
        group.got(txn, consumer, now)
    return claimed


def autoclaim(txn: WriteTransaction, stream: StreamWriter, group: GroupState, consumer: ConsumerState,
              min_idle: int, start: ID, count: int, justid: bool,
              now: int) -> tuple[StreamID, list[Entry], list[StreamID]]:
    """XAUTOCLAIM: where to go on (0-0: done), the entries claimed, the IDs found deleted."""
    attempts = left = count
    attempts *= _SCAN_FACTOR
    cursor = StreamID.MIN
    claimed: list[Entry] = []
    gone: list[StreamID] = []
    rows = []
    for sid, nack in group.pel(txn).scan(make_id(*start), StreamID.MAX):
        if attempts == 0 or left == 0:
            cursor = make_id(*sid)
            break
        attempts -= 1
        entry = fetch(txn, stream, [sid])[0]
        if entry is None:
            gone.append(make_id(*sid))
        elif nack.consumer != NOBODY and min_idle and now - nack.time < min_idle:
            continue
        else:
            entry.deliveries = nack.count if justid else min(nack.count + 1, MOST_DELIVERIES)
            rows.append((sid, consumer.number, now, entry.deliveries))
            claimed.append(entry)
        left -= 1
    else:
        group.require_whole(txn)
    _take_out(txn, group, list(gone))
    _give(txn, group, consumer, rows)
    if claimed:
        group.got(txn, consumer, now)
    return cursor, claimed, gone


def _take_out(txn: WriteTransaction, group: GroupState, ids: list[ID]) -> None:
    """Entries that exist no more leave the PEL."""
    if ids:
        ack(txn, group, pack_ids(sorted(set(ids))))


def _give(txn: WriteTransaction, group: GroupState, consumer: ConsumerState,
          rows: list[tuple[ID, int, int, int]]) -> None:
    """Make the consumer the owner of these rows, whoever had them."""
    if not rows:
        return
    for _, before in group.pel(txn).set(sorted(rows)):
        if before is not None:
            group.count_pending(txn, before.consumer, -1)
    group.count_pending(txn, consumer.number, len(rows))


def nack(txn: WriteTransaction, stream: StreamWriter, group: GroupState, ids: list[ID], mode: str,
         retrycount: int | None, force: bool, due: int) -> int:
    """Give pending entries back to the group; how many. XNACK, with a delay of our own.

    ``due`` is when they may be claimed again: 0 for at once, else a time in ms.
    """
    pel = group.pel(txn)
    rows: dict[ID, tuple[ID, int, int]] = {}
    released = 0
    for sid in ids:
        held = pel.get(sid)
        if sid in rows:
            count = rows[sid][1]
        elif held is not None:
            count = held.count
        elif force and fetch(txn, stream, [sid])[0] is not None:
            count = 1 if mode == "silent" else 0
        else:
            continue
        if retrycount is not None:
            count = retrycount
        elif mode == "fatal":
            count = MOST_DELIVERIES
        elif mode == "silent":
            count = max(0, count - 1)
        rows[sid] = (sid, count, due)
        released += 1
    if rows:
        for _, before in pel.release(list(rows.values()), insert=force):
            if before is not None:
                group.count_pending(txn, before.consumer, -1)
            group.count_pending(txn, NOBODY, 1)
    return released


def hand_over(txn: WriteTransaction, group: GroupState, consumer: ConsumerState, to: ConsumerState,
              most: int | None = None) -> int:
    """All pending entries of one consumer become another's, times and counts kept; how many.

    With ``most`` only so many, and what lies in one bucket with the last of them.
    """
    moved = group.pel(txn).hand_over(consumer.number, to.number, most=most)
    if moved:
        group.count_pending(txn, consumer.number, -moved)
        group.count_pending(txn, to.number, moved)
    return moved


def drop(txn: WriteTransaction, group: GroupState, consumer: ConsumerState, most: int | None = None) -> int:
    """All pending entries of a consumer leave the PEL, never delivered again; how many. ``most`` as above."""
    gone = len(group.pel(txn).drop_consumer(consumer.number, most))
    if gone:
        group.count_pending(txn, consumer.number, -gone)
    return gone
