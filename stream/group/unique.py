"""Unique names: of all entries that an append or defer() gives one name, one at a time keeps it.

    append(unique="invoice-7")    free: appended, and the name is this entry's
                                  kept: skip, replace, raise
    until "done"                  until no group has still to deliver or to acknowledge the entry
          "delivered"             until every group has been given it
          seconds                 until that time has passed, whatever becomes of the entry

The row of a name (entries/unique.py) says which entry has it. Whether that one still keeps it is asked of the stream
and of its groups, in the transaction that appends: is it there, is its ID behind a group's last delivered one, is it
pending? So a name is free from the very commit on by which its entry ends, however it ends.
"""

from __future__ import annotations

from ...storage.errors import NotUnique
from ...storage.format import keys
from ...storage.log.transaction import WriteTransaction
from ..entries import deferred, unique, writer
from ..entries.header import shown
from ..entries.unique import DONE, Holder, Wish
from ..entries.writer import StreamWriter
from ..node.stream_id import StreamID, make_id, pack_id
from .delete_policy import DELREF, delete_ex
from .deliver import fetch
from .state import UNOWNED, all_groups, working_groups

_PIECE = 1000  # rows that a piece of maintain() reads


def find_holder(txn: WriteTransaction, stream: StreamWriter, wish: Wish, now: int) -> Holder | None:
    """Which entry keeps the name; None if none does, or no longer, since it is to be replaced. NotUnique."""
    kept = unique.holder(txn, stream.number, wish.name)
    if kept is None or not _is_kept(txn, stream, kept, now):
        return None
    if wish.on_conflict == "skip":
        return kept
    sid = None if kept.is_deferred else make_id(kept.ms, kept.seq)
    what = f"unique name {shown(wish.name)} of stream {shown(stream.header.name)}"
    if wish.on_conflict == "raise":
        which = "a deferred entry" if sid is None else f"entry {sid}"
        raise NotUnique(f"the {what} is kept by {which}, and nothing was appended", sid)
    if sid is None:
        deferred.remove(txn, stream, kept.ms, kept.seq)
        return None
    for group in working_groups(txn, stream)[0]:
        nack = group.pel(txn).find([sid]).get(sid) if group.may_hold(txn, sid) else None
        if nack is not None and nack.consumer != UNOWNED:
            raise NotUnique(
                f"the {what} is kept by entry {sid}, which a consumer of group {shown(group.name)} is working on: that "
                "cannot be replaced, and nothing was appended. An entry that is appended with until='delivered' keeps "
                "its name only until then", sid)
    if _is_awaited(txn, stream, sid, DONE):
        delete_ex(txn, stream, [sid], DELREF)
    return None


def take(txn: WriteTransaction, stream: StreamWriter, kept: Holder, now: int) -> None:
    """Give a name to an entry that was just appended or deferred. Two other rows go, if they are of no more use."""
    unique.put(txn, stream.number, kept)
    for key, other in unique.beside(txn, stream.number, kept.name):
        if _has_ended(txn, stream, other, now):
            txn.delete(key)


def take_again(txn: WriteTransaction, stream: StreamWriter, flat: list[bytes], sid: StreamID, now: int) -> None:
    """A dead letter's entry has been appended anew: it has its name again, unless that is kept by another one."""
    wish = unique.wish_of(flat)
    if wish is not None and find_holder(txn, stream, wish, now) is None:
        take(txn, stream, Holder(wish.name, wish.ends(now), *sid), now)


def forget_ended(name: bytes, now: int, after: bytes, txn: WriteTransaction) -> bytes | None:
    """A piece of maintain(): remove the rows of names that are free. The row to go on behind; None: all is done."""
    stream = writer.locate(txn, name)
    found = [] if stream is None else unique.rows(txn, stream.number, after, _PIECE)
    prefix = b"" if stream is None else keys.family(stream.number, keys.UNIQUE)
    for key, kept in found:
        if stream is not None and _has_ended(txn, stream, kept, now):
            txn.delete(prefix + key)
    return found[-1][0] if found else None


def _is_kept(txn: WriteTransaction, stream: StreamWriter, kept: Holder, now: int) -> bool:
    """Whether the entry of a row keeps its name."""
    if _has_ended(txn, stream, kept, now):
        return False
    if kept.is_deferred or isinstance(kept.until, int):
        return True
    [entry] = fetch(txn, stream, [make_id(kept.ms, kept.seq)])
    if entry is None:
        return False
    wish = unique.wish_of([part for pair in entry.pairs[:1] for part in pair])
    return wish is not None and wish.name == kept.name  # not one that has its ID since set_id() went back


def _has_ended(txn: WriteTransaction, stream: StreamWriter, kept: Holder, now: int) -> bool:
    """Whether a row is certainly of no more use: without a look at the entry itself."""
    if isinstance(kept.until, int):
        return kept.until <= now
    if kept.is_deferred:
        return txn.get(keys.family(stream.number, keys.DEFERRED) + pack_id(kept.ms, kept.seq)) is None
    sid = make_id(kept.ms, kept.seq)
    return not stream.header.length or sid < stream.header.first or not _is_awaited(txn, stream, sid, kept.until)


def _is_awaited(txn: WriteTransaction, stream: StreamWriter, sid: StreamID, until: str) -> bool:
    """Whether a group has still to deliver the entry, or to acknowledge it; also where there is no group yet."""
    groups, least = working_groups(txn, stream)
    if until == DONE and any(group.may_hold(txn, sid) and group.pel(txn).find([sid]) for group in groups):
        return True
    if sid <= least:
        return not stream.header.groups
    txn.flush()
    every = all_groups(txn, stream.number, stream.header)
    return not every or any(sid > group.last and not group.has_cancelled(txn, sid) for group in every)
