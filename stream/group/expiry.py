"""Expiry: the oldest nodes of a stream go once its retention lets them.

    | node 1 | node 2 | node 3 | node 4 ...       maxlen, max_bytes   as long as enough stays
      gone     gone     stays                     max_age             up to now, less the age
             group "mail" ─┘                      acked               up to the first entry that a group holds

A node goes when one rule lets all of its entries go: so the rest of a node more is kept. An append that begins a
node looks, and frees in its own commit what it finds, up to MOST nodes; an append within a node does not. A look
costs some 15 µs, and 5 for each group with entries pending, so in a long stream, or one of many groups, it is put
off by some nodes: it then frees several. maintain() frees all. Pending entries stay pending, as in a trim; one whose
entry is gone holds nothing back. maintain(exact=True) takes the entries themselves out of the node that stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from ...storage.log.transaction import WriteTransaction
from ..entries import deferred, trim, writer
from ..entries.range_read import read_now
from ..entries.trim import Trim
from ..entries.writer import StreamWriter, locate
from ..node.stream_id import make_id
from ..pel.bucket import ID
from .state import SEEN_EVERY, GroupState, SeenTimes, all_groups, behind, working_groups

MOST = 100  # nodes, about 0.2 ms, besides as many as have begun
_NO_RULES: list[Any] = [None, None, None, False, None]  # in the order of a Retention
_ACKED = 3
_LEAVES_A_PAUSE, _GROUPS_A_PAUSE = 16, 8  # for each of so many a look is put off by one node
_PAUSE = 16  # nodes at most for the stream's own, and three times that for its groups: below MOST


def follow(txn: WriteTransaction, stream: StreamWriter, now: int, releases: bool) -> None:
    """What follows appends, see after_append(): release what is due; after nodes have begun, free what can go."""
    if releases and stream.header.is_due(now):
        deferred.release(txn, stream, now)
    if stream.begun <= 0:
        return
    expire(txn, stream, now, MOST + stream.begun)
    header = stream.header
    groups = header.groups if header.retention and header.retention[_ACKED] else 0
    stream.begun = -min(header.leaves // _LEAVES_A_PAUSE, _PAUSE) - min(groups // _GROUPS_A_PAUSE, 3 * _PAUSE)


writer.use(follow)


def expire_named(name: bytes, now: int, exact: bool, txn: WriteTransaction) -> tuple[int, bool]:
    """A piece of maintain(): how many entries went, and whether there is more to do."""
    stream = locate(txn, name)
    return (0, False) if stream is None else expire(txn, stream, now, trim.LEAVES_A_TRANSACTION, exact)


def expire(txn: WriteTransaction, stream: StreamWriter, now: int, limit: int, exact: bool = False) -> tuple[int, bool]:
    """Remove the nodes that the retention lets go, ``limit`` by each rule: entries gone, whether more are to go.

    With ``exact`` also the entries of a node that cannot go whole.
    """
    gone, more = 0, False
    for rule in _due(txn, stream, now):
        if exact and rule.max_bytes is None:
            rule = rule._replace(approximate=False)
        went, stopped = trim.evict(txn, stream, rule, 0, limit)
        gone += went
        more = more or stopped
    return gone, more


def _due(txn: WriteTransaction, stream: StreamWriter, now: int) -> Iterator[Trim]:
    """The trims by which something may go, each looked for when the one before has been done."""
    header = stream.header
    maxlen, max_age, max_bytes, acked, idle = header.retention or _NO_RULES
    if maxlen is not None and header.length > maxlen:
        yield Trim(maxlen, None, True, 0)
    if max_bytes is not None and header.stored_bytes > max_bytes:
        yield Trim(None, None, True, 0, max_bytes)
    if max_age is not None and header.first < (oldest := (now - round(max_age * 1000), 0)):
        yield Trim(None, oldest, True, 0)
    if acked and header.groups and header.leaves:
        first = _first_held(txn, stream, None if idle is None else now - round(idle * 1000))
        if header.first < first:
            yield Trim(None, first, True, 0)


def _first_held(txn: WriteTransaction, stream: StreamWriter, idle: int | None) -> ID:
    """The least ID that a group which counts has still to deliver or to acknowledge; 0-0 where none counts.

    ``idle``  a moment, ms: a group counts if a consumer has read since, or what it holds is newer
    """
    first = stream.header.first
    if idle is None:
        groups, least = working_groups(txn, stream)
        return min([behind(least), *[group.first_held(txn, first) for group in groups if group.pending]])
    txn.flush()
    holding = [(group.first_held(txn, first), group) for group in all_groups(txn, stream.number, stream.header)]
    return next((sid for sid, group in sorted(holding, key=itemgetter(0)) if _counts(txn, stream, group, sid, idle)),
                (0, 0))


def _counts(txn: WriteTransaction, stream: StreamWriter, group: GroupState, first: ID, idle: int) -> bool:
    """Whether a group, which holds the entries from an ID on, is not idle, or holds none. Reads its consumers."""
    members = group.consumers(txn)
    txn.env.attached(SeenTimes).refresh(group.number, group.group, members)
    if not members or any(member.seen >= idle - SEEN_EVERY for member in members):  # other processes write late
        return True
    entries = read_now(txn, stream.number, stream.header, make_id(*first), 1)
    return not entries or entries[0].id.ms >= idle
