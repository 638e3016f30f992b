"""Deletion policies: what becomes of pending entries when their entry is deleted or trimmed.

    keepref   nothing: they stay pending, and a reader is told that the entry is gone
    delref    they leave every group's PEL together with the entry
    acked     the entry is deleted only if every group has been given it and acknowledged it

Which groups still refer to an entry is asked of each group when it matters; no row is kept
per entry for it, since most entries are never asked about.
"""

from __future__ import annotations

from enum import IntEnum

from ..storage import block, layout
from ..storage.commit import WriteTransaction
from ..storage.errors import CorruptionError, InvalidArgument
from . import deleting, delivery, node
from .delivery import ID
from .group_state import GroupState, groups, locate_group
from .header import shown
from .id import StreamID
from .id_row import pack_ids
from .trim import Trim
from .writer import StreamWriter, located

KEEPREF = "keepref"
DELREF = "delref"
ACKED = "acked"
POLICIES = (KEEPREF, DELREF, ACKED)


class DeleteResult(IntEnum):
    """What became of one ID, in the numbers XDELEX and XACKDEL use."""

    DELETED = 1
    MISSING = -1
    REFERENCED = 2


def checked_policy(refs: str) -> str:
    """The policy, or InvalidArgument."""
    if refs not in POLICIES:
        raise InvalidArgument(f"refs={refs!r} is unknown; it is one of {', '.join(POLICIES)}")
    return refs


class References:
    """All groups of one stream, asked about entries within one transaction."""

    def __init__(self, txn: WriteTransaction, stream: StreamWriter) -> None:
        self._txn = txn
        self._groups: list[GroupState] = []
        if stream.header.groups:
            txn.flush()
            for state in list(groups(txn, stream.number)):
                warm = locate_group(txn, stream, state.name)
                if warm is not None:
                    self._groups.append(warm)

    def held(self, sid: ID) -> bool:
        """Whether some group has still to be given the entry, or to acknowledge it."""
        return any(
            group.last < sid or (group.pending and group.pel(self._txn).get(sid) is not None)
            for group in self._groups
        )

    def drop(self, ids: list[ID]) -> None:
        """Take the entries out of every group's PEL."""
        for group in self._groups:
            delivery.ack(self._txn, group, pack_ids(ids))


def delete_ex(txn: WriteTransaction, stream: StreamWriter, ids: list[StreamID], refs: str) -> list[DeleteResult]:
    """XDELEX: what became of each ID, in their order."""
    there = _live(txn, stream, ids)
    references = References(txn, stream)
    results = []
    wanted = []
    for sid in ids:
        if refs == ACKED and references.held(sid):
            results.append(DeleteResult.REFERENCED)
        elif sid in there:
            results.append(DeleteResult.DELETED)
            there.discard(sid)
            wanted.append(sid)
        else:
            results.append(DeleteResult.MISSING)
    if refs == DELREF:
        references.drop(sorted(set(ids)))
    if wanted:
        deleting.delete(txn, stream, wanted)
    return results


def ack_delete(txn: WriteTransaction, stream: StreamWriter, group: GroupState, ids: list[StreamID],
               refs: str) -> list[DeleteResult]:
    """XACKDEL: acknowledge in this group, then delete what the policy lets go."""
    results = []
    wanted = []
    references = References(txn, stream)
    for sid in ids:
        if not delivery.ack(txn, group, bytes(sid)):
            results.append(DeleteResult.MISSING)
        elif refs == ACKED and references.held(sid):
            results.append(DeleteResult.REFERENCED)
        else:
            results.append(DeleteResult.DELETED)
            wanted.append(sid)
    if wanted:
        if refs == DELREF:
            references.drop(sorted(wanted))
        deleting.delete(txn, stream, wanted)
    return results


def _live(txn: WriteTransaction, stream: StreamWriter, ids: list[StreamID]) -> set[StreamID]:
    return {sid for sid, entry in zip(ids, delivery.fetch(txn, stream, list(ids)), strict=True) if entry is not None}


def evict(txn: WriteTransaction, stream: StreamWriter, trim: Trim, limit: int, refs: str, after: bytes = b"",
          most: int | None = None) -> tuple[int, bytes | None]:
    """XTRIM with DELREF or ACKED: entry by entry, so that each can be asked about.

    Under ACKED what is still held is passed over, and the trim goes on behind it as long as
    whole nodes lie before the border: the stream may stay longer, and holes appear. A node in
    which no entry lives goes.

    Begins behind the node ``after`` and stops once ``most`` entries have been asked about. How
    many went, and the node behind which there is more to do; None where there is not.
    """
    header = stream.header
    references = References(txn, stream)
    evicted = asked = 0
    while trim.maxlen is None or header.length > trim.maxlen:
        if most is not None and asked >= most:
            return evicted, after
        nodes = stream.nodes(txn).iterator()
        if not nodes.seek(">", after) if after else not nodes.seek("^"):
            break
        after = nodes.key
        key = stream.nodes_prefix + after
        ms, seq = layout.node_id(key)
        try:
            head = block.header(key, nodes.value)
            listpack = block.listpack_of(key, nodes.value, head)
            if limit and evicted + head.live > limit:
                break
            if trim.maxlen is not None:
                whole = header.length - head.live >= trim.maxlen
            else:
                assert trim.minid is not None
                whole = node.last_entry_id(listpack, ms, seq) < trim.minid
            if trim.approximate and not whole:
                break
            entries = node.decode(listpack, ms, seq, 0, 0, *StreamID.MAX, -1, False)
        except CorruptionError as error:
            raise located(error, shown(header.name), ms, seq) from None
        wanted: list[ID] = []
        for entry in entries:
            if trim.maxlen is not None:
                if header.length - len(wanted) <= trim.maxlen:
                    break
            elif trim.minid is not None and entry.id >= trim.minid:
                break
            if refs != ACKED or not references.held(entry.id):
                wanted.append(entry.id)
        if refs == DELREF:
            references.drop(wanted)
        asked += len(entries)
        evicted += len(deleting.remove(txn, stream, wanted))
        if not whole:
            break
        if not head.live:
            deleting.free_dead(txn, stream, key)
    return evicted, None
