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
from ..entries.schedules import BACK
from ..entries.unique import DELIVERED, DONE, Holder, Wish
from ..entries.writer import StreamWriter
from ..node.stream_id import StreamID, make_id, pack_id
from .delete_policy import DELREF, delete_ex
from .deliver import fetch, present
from .state import UNOWNED, every_group

_PIECE = 1000  # rows that a piece of maintain() reads


def find_holder(txn: WriteTransaction, stream: StreamWriter, wish: Wish, now: int) -> Holder | None:
    """Which entry keeps the name; None if none does, or it is to be replaced, by take(). NotUnique. Changes nothing."""
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
    if sid is None or not _is_there(txn, stream, kept):
        return None
    for group in every_group(txn, stream):
        nack = group.pel(txn).find([sid]).get(sid) if group.may_hold(txn, sid) else None
        if nack is not None and nack.consumer != UNOWNED:
            advice = "" if kept.until == DELIVERED else (
                ". An entry that is appended with until='delivered' keeps its name only until each group has got it")
            raise NotUnique(
                f"the {what} is kept by entry {sid}, which a consumer of group {shown(group.name)} is working on: that "
                f"cannot be replaced, and nothing was appended{advice}", sid)
    return None


def take(txn: WriteTransaction, stream: StreamWriter, wish: Wish, taken: Holder, now: int) -> None:
    """Give the name to an entry that was just appended or deferred. The one that it replaces goes, behind all checks.

    Two other rows go, if they are of no more use.
    """
    old = unique.holder(txn, stream.number, wish.name) if wish.on_conflict == "replace" else None
    if old is not None and _is_kept(txn, stream, old, now):
        sid = make_id(old.ms, old.seq)
        if old.is_deferred:
            deferred.remove(txn, stream, old.ms, old.seq)
        elif _is_awaited(txn, stream, sid, DONE) and _is_there(txn, stream, old):
            delete_ex(txn, stream, [sid], DELREF)
    unique.put(txn, stream.number, taken)
    beside = list(unique.beside(txn, stream.number, wish.name))
    for key in _ended(txn, stream, beside, now):
        txn.delete(key)


def take_again(txn: WriteTransaction, stream: StreamWriter, flat: list[bytes], sid: StreamID, now: int) -> None:
    """A dead letter's entry has been appended anew: it has its name again, unless that is kept by another one."""
    wish = unique.wish_of(flat)
    if wish is not None and find_holder(txn, stream, wish, now) is None:
        take(txn, stream, wish, wish.holder(*sid, now), now)


def forget_ended(name: bytes, now: int, after: bytes, txn: WriteTransaction) -> bytes | None:
    """A piece of maintain(): remove the rows of names that are free. The row to go on behind; None: all is done."""
    stream = writer.locate(txn, name)
    if stream is None:
        return None
    found = unique.rows(txn, stream.number, after, _PIECE)
    for key in _ended(txn, stream, found, now):
        txn.delete(key)
    return found[-1][0][-16:] if found else None


def _ended(txn: WriteTransaction, stream: StreamWriter, rows: list[tuple[bytes, Holder]], now: int) -> list[bytes]:
    """The keys of those rows that are of no more use. Decodes no entry."""
    ended = [key for key, kept in rows if _has_ended(txn, stream, kept, now)]
    left = {key: (kept.ms, kept.seq) for key, kept in rows
            if key not in ended and not kept.is_deferred and isinstance(kept.until, str)}
    found = present(txn, stream, list(left.values())) if left else ()
    return ended + [key for key, sid in left.items() if sid not in found]


def _is_kept(txn: WriteTransaction, stream: StreamWriter, kept: Holder, now: int) -> bool:
    """Whether the entry of a row keeps its name."""
    if _has_ended(txn, stream, kept, now):
        return False
    return bool(kept.is_deferred) or isinstance(kept.until, int) or _is_there(txn, stream, kept)


def _is_there(txn: WriteTransaction, stream: StreamWriter, kept: Holder) -> bool:
    """Whether the entry is in the stream, and not another one that has its ID since set_id() went back."""
    [entry] = fetch(txn, stream, [make_id(kept.ms, kept.seq)])
    if entry is None:
        return False
    wish = unique.wish_of([part for pair in entry.pairs[:1] for part in pair])
    return wish is not None and wish.name == kept.name


def _has_ended(txn: WriteTransaction, stream: StreamWriter, kept: Holder, now: int) -> bool:
    """Whether a row is certainly of no more use: without a look at the entry itself."""
    if kept.is_deferred and txn.get(keys.family(stream.number, keys.DEFERRED) + pack_id(kept.ms, kept.seq)) is None:
        return True  # cancelled
    if isinstance(kept.until, int):  # what a clock that was days ahead has given is free
        return kept.until <= now or kept.until - kept.length > now + BACK
    if kept.is_deferred:
        return False
    sid = make_id(kept.ms, kept.seq)
    return not stream.header.length or sid < stream.header.first or not _is_awaited(txn, stream, sid, kept.until)


def _is_awaited(txn: WriteTransaction, stream: StreamWriter, sid: StreamID, until: str) -> bool:
    """Whether a group has still to deliver the entry, or to acknowledge it; also where there is no group yet.

    Groups that are filtered by subjects are not asked: no entry with a unique name has one.
    """
    groups = [group for group in every_group(txn, stream) if not group.subjects]
    return not groups or any(
        not group.has_cancelled(txn, sid) if sid > group.last else
        until == DONE and group.may_hold(txn, sid) and bool(group.pel(txn).find([sid])) for group in groups)
