"""Deletion policies: what becomes of pending entries when their entry is deleted or trimmed.

    keepref   nothing: they stay pending, and a read returns them without fields
    delref    they leave every group's PEL together with the entry
    acked     the entry is deleted only if every group has delivered and acknowledged it

Which groups still refer to an entry is found when it matters, by looking into those that can
have it pending; no row is kept per entry for it, since most entries never need it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from ...storage.errors import CorruptionError, InvalidArgument
from ...storage.format import records
from ...storage.log.transaction import WriteTransaction
from ..entries import delete
from ..entries.header import shown
from ..entries.trim import Trim
from ..entries.writer import StreamWriter, located
from ..node import decode
from ..node.stream_id import StreamID
from . import deliver
from .deliver import ID
from .state import UNOWNED, GroupState, working_groups

KEEPREF: Final = "keepref"
DELREF = "delref"
ACKED = "acked"
POLICIES = (KEEPREF, DELREF, ACKED)


class DeleteResult(IntEnum):
    """What happened to one ID, with the numbers of XDELEX and XACKDEL."""

    DELETED = 1
    MISSING = -1
    REFERENCED = 2


def checked_policy(refs: str) -> str:
    """The policy, or InvalidArgument."""
    if refs not in POLICIES:
        raise InvalidArgument(f"refs={refs!r} is unknown; it is one of {', '.join(POLICIES)}")
    return refs


def _referenced(txn: WriteTransaction, stream: StreamWriter, ids: list[ID]) -> set[ID]:
    """Those of the IDs, which ascend, that some group has still to deliver or to acknowledge."""
    groups, least = working_groups(txn, stream)
    everywhere = bisect_right(ids, least)
    given = ids[:everywhere]
    referenced = set(ids[everywhere:])
    for group in groups:
        if given and group.may_hold(txn, given[-1]):
            referenced.update(group.pel(txn).find(given))
    return referenced


def _drop(txn: WriteTransaction, stream: StreamWriter, ids: list[ID]) -> None:
    """Take the entries, their IDs ascending, out of every group's PEL."""
    for group in working_groups(txn, stream)[0]:
        if ids and group.may_hold(txn, ids[-1]):
            deliver.take_out(txn, group, ids)


def drop_retries(txn: WriteTransaction, stream: StreamWriter, ids: Sequence[ID]) -> None:
    """Take what waits for a retry, or its key, out of every group's PEL, where it is gone; the IDs ascend."""
    for group in working_groups(txn, stream)[0]:
        if ids and group.may_hold(txn, ids[-1]):
            waits = [sid for sid, nack in group.pel(txn).find(ids).items()
                     if nack.consumer == UNOWNED and (nack.time or group.key_limit is not None)]
            deliver.take_out_gone(txn, group, waits)


def delete_ex(txn: WriteTransaction, stream: StreamWriter, ids: list[StreamID], refs: str) -> list[DeleteResult]:
    """XDELEX: the result for each ID, in their order."""
    unique: list[ID] = sorted(set(ids))
    referenced = _referenced(txn, stream, unique) if refs == ACKED else set()
    live = deliver.present(txn, stream, unique)
    wanted = {sid for sid in unique if sid in live and sid not in referenced}
    if refs == DELREF:
        _drop(txn, stream, unique)
    delete.delete(txn, stream, wanted)
    outcome = dict.fromkeys(wanted, DeleteResult.DELETED)
    return [DeleteResult.REFERENCED if sid in referenced else outcome.pop(sid, DeleteResult.MISSING) for sid in ids]


def ack_delete(txn: WriteTransaction, stream: StreamWriter, group: GroupState, ids: list[StreamID],
               refs: str) -> list[DeleteResult]:
    """XACKDEL: acknowledge in this group, then delete what the policy allows."""
    gone = deliver.take_out(txn, group, sorted(set(ids)))
    referenced = _referenced(txn, stream, gone) if refs == ACKED else set()
    wanted = set(gone) - referenced
    if refs == DELREF:
        _drop(txn, stream, sorted(wanted))
    delete.delete(txn, stream, wanted)
    outcome = dict.fromkeys(wanted, DeleteResult.DELETED) | dict.fromkeys(referenced, DeleteResult.REFERENCED)
    return [outcome.pop(sid, DeleteResult.MISSING) for sid in ids]


def evict(txn: WriteTransaction, stream: StreamWriter, trim: Trim, limit: int, refs: str, after: bytes = b"",
          max_asked: int | None = None) -> tuple[int, bytes | None]:
    """XTRIM with DELREF or ACKED: entry by entry, since groups are asked about each.

    Under ACKED what is still held is passed over, and the trim goes on behind it as long as
    whole nodes come before the border: the stream may stay longer, and holes appear. A node in
    which no entry lives goes.

    Begins behind the node ``after`` and stops once ``max_asked`` entries have been asked about. How
    many went, and the node behind which there is more to do; None where there is not.
    """
    header = stream.header
    evicted = asked = 0
    while trim.maxlen is None or header.length > trim.maxlen:
        if max_asked is not None and asked >= max_asked:
            return evicted, after
        nodes = stream.nodes(txn).iterator()
        if not nodes.seek(">", after) if after else not nodes.seek("^"):
            break
        after, key = nodes.key(), nodes.here
        ms, seq = records.node_id(key)
        try:
            head, listpack = records.open_block(key, nodes.value())
            if limit and evicted + head.live > limit:
                break
            if trim.maxlen is not None:
                whole = header.length - head.live >= trim.maxlen
            else:
                assert trim.minid is not None
                whole = decode.last_entry_id(listpack, ms, seq) < trim.minid
            if trim.approximate and not whole:
                break
            entries = decode.decode(listpack, ms, seq, 0, 0, *StreamID.MAX, -1, False)
        except CorruptionError as error:
            raise located(error, shown(header.name), ms, seq) from None
        wanted: list[ID] = []
        referenced = _referenced(txn, stream, [entry.id for entry in entries]) if refs == ACKED else set()
        for entry in entries:
            if trim.maxlen is not None:
                if header.length - len(wanted) <= trim.maxlen:
                    break
            elif trim.minid is not None and entry.id >= trim.minid:
                break
            if entry.id not in referenced:
                wanted.append(entry.id)
        if refs == DELREF:
            _drop(txn, stream, wanted)
        asked += len(entries)
        evicted += len(delete.remove(txn, stream, wanted))
        if not whole:
            break
        if not head.live:
            delete.free_dead(txn, stream, key)
    return evicted, None
