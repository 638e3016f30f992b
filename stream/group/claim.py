"""Claiming: pending entries move to another consumer, or back to the group.

    claim        these IDs, if idle long enough, to this consumer             XCLAIM
    autoclaim    all that are idle long enough, in ID order, with a cursor    XAUTOCLAIM
    nack         released to the group, at once or after a delay              XNACK
    take back    a delivery that its reader did not get
    hand over    all of one consumer's, to another

A claim that finds an entry deleted takes it out of the PEL. Released entries are always idle enough. One that was
delivered in the future, as the clock has it now, counts as delivered now.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, islice
from typing import NamedTuple

from ...storage.log.transaction import WriteTransaction
from ..entries import writer
from ..entries.writer import StreamWriter
from ..node.entry import Entry
from ..node.stream_id import StreamID, make_id
from ..pel.bucket import Nack
from . import parking
from .deliver import (
    AT_ONCE,
    ID,
    MOST_DELIVERIES,
    GroupRead,
    Position,
    assign,
    fetch,
    last_idle,
    present,
    restart,
    take_out,
    take_out_gone,
)
from .state import UNOWNED, ConsumerState, GroupState, locate_group

_NO_KEYS: Mapping[ID, bytes] = {}
SCAN_FACTOR = 10  # XAUTOCLAIM looks at up to so many times COUNT rows


class ClaimOptions(NamedTuple):
    """The options of XCLAIM, parsed; times in milliseconds."""

    min_idle: int
    time: int  # the delivery time to set
    deliveries: int | None
    force: bool
    justid: bool
    lastid: ID | None


def claim(txn: WriteTransaction, stream: StreamWriter, group: GroupState, name: bytes,
          ids: list[ID], options: ClaimOptions, now: int) -> list[Entry]:
    """XCLAIM: the entries claimed by the consumer of that name, in the order asked for. KeyBusy, with no change."""
    pending = group.pel(txn).find(sorted(set(ids)))
    found = fetch(txn, stream, ids)
    wanted = [(sid, entry) for sid, entry in zip(ids, found, strict=True) if sid in pending or options.force]
    turns = parking.require_free(txn, stream.header.name, group, pending, wanted)
    consumer = group.ensure_consumer(txn, name, now)
    if options.lastid is not None and options.lastid > group.last:
        group.changed(txn)
        group.last = options.lastid
    restart(txn, group, {sid: row for sid, row in pending.items() if row.consumer != UNOWNED and row.time > now}, now)
    before = last_idle(options.min_idle, now)
    claimed: list[Entry] = []
    rows: dict[ID, tuple[ID, int, int, int]] = {}
    gone: list[ID] = []
    for sid, entry in zip(ids, found, strict=True):
        nack = pending.get(sid)
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
            if nack.consumer != UNOWNED and nack.time > before:
                continue
            count = nack.count
        if options.deliveries is not None:
            count = options.deliveries
        elif not options.justid:
            count = min(count + 1, MOST_DELIVERIES)
        if entry is None:
            continue
        rows[sid] = (sid, consumer.number, options.time, count)
        entry.deliveries = count
        claimed.append(entry)
    given = _NO_KEYS if turns is None else parking.settle(txn, group, turns, rows)
    take_out_gone(txn, group, gone)
    assign(txn, group, consumer, list(rows.values()), now, given, forced=not rows.keys() <= pending.keys())
    return claimed


def autoclaim(txn: WriteTransaction, stream: StreamWriter, group: GroupState, consumer: ConsumerState, min_idle: int,
              start: ID, attempts: int, remaining: int, justid: bool,
              now: int) -> tuple[StreamID, list[Entry], list[StreamID], int]:
    """XAUTOCLAIM: where to go on (0-0: done), the entries claimed, the IDs found deleted, the rows looked at.

    Looks at up to ``attempts`` rows, until ``remaining`` of them have been claimed or found deleted.
    """
    stream.flush(txn)  # the PEL must not be written to while it is looked through
    rows = group.pel(txn).scan(make_id(*start), StreamID.MAX)
    taken: list[tuple[ID, int, int, int]] = []
    gone: list[StreamID] = []
    ahead: dict[ID, Nack] = {}
    limit, before = attempts, last_idle(min_idle, now)
    turns = None if group.key_limit is None else parking.Turns(txn, group, group.key_limit)
    while remaining and attempts and (some := list(islice(rows, min(attempts, max(remaining, AT_ONCE))))):
        live = present(txn, stream, [sid for sid, _ in some])  # of those not due, too: Redis reports them
        for at, (sid, nack) in enumerate(some):
            if not remaining:
                rows = chain(some[at:], rows)
                break
            attempts -= 1
            if turns is not None and parking.is_parked(nack):
                continue
            if sid not in live:
                gone.append(make_id(*sid))
            elif turns is not None and nack.consumer == UNOWNED and not turns.may_claim(sid, nack):
                continue
            elif nack.consumer != UNOWNED and nack.time > before:
                if nack.time > now:
                    ahead[sid] = nack
                continue
            else:
                count = nack.count if justid else min(nack.count + 1, MOST_DELIVERIES)
                taken.append((sid, consumer.number, now, count))
            remaining -= 1
    following = next(rows, None)
    if following is None:
        group.require_whole(txn, again=start == StreamID.MIN and limit - attempts < group.pending)
    ids = [row[0] for row in taken]
    found = [Entry(*sid, []) for sid in ids] if justid else fetch(txn, stream, ids)
    claimed = [entry for entry in found if entry is not None]
    for row, entry in zip(taken, claimed, strict=True):
        entry.deliveries = row[3]
    given = _NO_KEYS if turns is None else parking.settle(txn, group, turns, ids)
    take_out_gone(txn, group, gone)
    restart(txn, group, ahead, now)
    assign(txn, group, consumer, taken, now, given)
    return StreamID.MIN if following is None else make_id(*following[0]), claimed, gone, limit - attempts


def nack(txn: WriteTransaction, stream: StreamWriter, group: GroupState, ids: list[ID], mode: str,
         deliveries: int | None, force: bool, due: int) -> int:
    """Give pending entries back to the group; how many. XNACK, with a delay of our own.

    ``due`` is when they may be claimed again: 0 for at once, else a time in ms.
    """
    pel = group.pel(txn)
    pending = pel.find(sorted(set(ids)))
    live = present(txn, stream, [sid for sid in ids if sid not in pending]) if force else ()
    turns = None
    if group.key_limit is not None:
        ids = [sid for sid in ids if sid not in pending or not parking.waits(pending[sid])]
        new = [sid for sid in ids if sid in live]
        turns = parking.require_free(txn, stream.header.name, group, pending,
                                     list(zip(new, fetch(txn, stream, new), strict=True)))
    rows: dict[ID, tuple[ID, int, int]] = {}
    released = 0
    for sid in ids:
        if sid in rows:
            count = rows[sid][1]
        elif sid in pending:
            count = pending[sid].count
        elif sid in live:
            count = 1 if mode == "silent" else 0
        else:
            continue
        if deliveries is not None:
            count = deliveries
        elif mode == "fatal":
            count = MOST_DELIVERIES
        elif mode == "silent":
            count = max(0, count - 1)
        rows[sid] = (sid, count, due)
        released += 1
    if rows:
        given: Mapping[ID, bytes] = _NO_KEYS
        if turns is not None:
            given = parking.settle(txn, group, turns, rows)
            if mode != "silent" or due:  # else it was not worked on, and comes before those behind it
                held = {sid: given.get(sid, pending[sid].key if sid in pending else b"") for sid in rows}
                given = {**given, **parking.give_up(txn, group, held)}
        for _, before in pel.release(list(rows.values()), insert=force, keys=given):
            if before is not None:
                group.count_pending(txn, before.consumer, -1)
            group.count_pending(txn, UNOWNED, 1)
    return released


def take_back(txn: WriteTransaction, wanted: GroupRead, name: bytes, before: Position | None, ids: list[ID]) -> None:
    """Undo a delivery that its reader did not get: the group goes back to where it stood before.

    Where it has delivered more since, and for what was claimed: released, if it is still the consumer's, silently.
    """
    stream = writer.locate(txn, name)
    group = None if stream is None else locate_group(txn, stream, wanted.group)
    member = None if group is None else group.consumer(txn, wanted.consumer)
    if stream is None or group is None or member is None or before is None or not ids:
        return
    pending = [sid for sid, row in group.pel(txn).find(sorted(ids)).items() if row.consumer == member.number]
    new = [sid for sid in ids if sid > before.last]
    is_last = group.last == max(ids) and group.moves == before.moves and group.key_limit is None  # others are parked
    if new and is_last and (wanted.noack or set(new) <= set(pending)):
        group.changed(txn)
        group.last, group.entries_read = before.last, before.entries_read
        group.moves += 1  # wakes those that wait for it
        pending = [sid for sid in pending if sid <= before.last]
        take_out(txn, group, [] if wanted.noack else sorted(new))
    nack(txn, stream, group, pending, "silent", None, False, 0)


def hand_over(txn: WriteTransaction, group: GroupState, consumer: ConsumerState, to: ConsumerState,
              limit: int | None = None) -> None:
    """Move all pending entries of one consumer to another, times and counts kept.

    With ``limit`` only so many, and those in one bucket with the last of them.
    """
    moved = group.pel(txn).hand_over(consumer.number, to.number, limit=limit)
    if moved:
        group.count_pending(txn, consumer.number, -moved)
        group.count_pending(txn, to.number, moved)


def drop_gone(txn: WriteTransaction, stream: StreamWriter, group: GroupState, consumer: ConsumerState,
              limit: int | None) -> bool:
    """Whether the first of a consumer's pending entries, ``limit`` of them, are all gone: then they leave the PEL."""
    stream.flush(txn)
    rows = islice(group.pel(txn).scan(StreamID.MIN, StreamID.MAX, consumer.number), limit)
    gone: list[ID] = []
    while some := [sid for sid, _ in islice(rows, AT_ONCE)]:
        live = present(txn, stream, some)
        if any(sid in live for sid in some):
            return False
        gone += some
    take_out_gone(txn, group, gone)
    return True


def drop(txn: WriteTransaction, group: GroupState, consumer: ConsumerState, limit: int | None = None) -> None:
    """All pending entries of a consumer leave the PEL, never delivered again. ``limit`` as above."""
    gone = group.pel(txn).drop_consumer(consumer.number, limit)
    if gone:
        group.count_pending(txn, consumer.number, -len(gone))
        parking.leave(txn, group, gone)
