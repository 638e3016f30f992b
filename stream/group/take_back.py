"""Taking back a delivery: its reader was cancelled before it got the entries.

    before            last 5-0   pending -
    read              last 7-0   pending 6-0, 7-0
    taken back        last 5-0   pending -            where the group has not moved since
                      last 9-0   6-0, 7-0 released    else: as by nack(mode="silent")

A group that goes back wakes those that wait for it, as set_id() does. What was claimed is released.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage.commit.write_transaction import WriteTransaction
from ..entries import writer
from .claim import nack
from .deliver import ID, take_out
from .state import GroupState, locate_group


class Position(NamedTuple):
    """Where a group stands."""

    group: int
    last: ID
    entries_read: int
    moves: int


def position(txn: WriteTransaction, stream: bytes, group: bytes) -> Position | None:
    """Where the group stands; None where there is none."""
    there = writer.locate(txn, stream)
    state = None if there is None else locate_group(txn, there, group)
    return None if state is None else _position(state)


def _position(state: GroupState) -> Position:
    return Position(state.group, state.last, state.entries_read, state.moves)


def take_back(txn: WriteTransaction, stream: bytes, group: bytes, consumer: bytes, before: Position | None,
              after: Position | None, ids: list[ID], noack: bool) -> None:
    """Undo the delivery of these entries, or release those that the consumer still has.

    ``before`` and ``after`` are where the group stood around it.
    """
    there = writer.locate(txn, stream)
    state = None if there is None else locate_group(txn, there, group)
    member = None if state is None else state.consumer(txn, consumer)
    if there is None or state is None or member is None or before is None:
        return
    new = [sid for sid in ids if sid > before.last]
    held = [sid for sid, row in state.pel(txn).find(sorted(ids)).items() if row.consumer == member.number]
    if new and _position(state) == after and (noack or not set(new).difference(held)):
        state.changed(txn)
        state.last, state.entries_read = before.last, before.entries_read
        state.moves += 1
        if not noack:
            take_out(txn, state, new)
        held = [sid for sid in held if sid <= before.last]
    if held:
        nack(txn, there, state, held, "silent", None, False, 0)
