"""Routes: from a subject to streams and processes, and what is done about processes that died.

    match (match.py)          bindings        durable          live             queues
                                    │               │               │                │ one each
    Reach                        streams         streams     processes, counted   of the living

The index gives IDs; what a publish must know of each (which stream, which process) stands in
its record, which never changes. So it is read once and kept in memory, by ID: 10,000 live
subscribers of a subject are looked at in a millisecond, and their records only the first time.
Only what a read transaction has seen is kept: an ID that an undone transaction gave may be given
again.

A subscription that somebody put into the index himself (store.subjects) may have any owner and any
options. Publishing delivers to those that were made by bind() and subscribe(); the others lead
nowhere, and are never taken for a dead process's.
"""

from __future__ import annotations

import contextlib
import random
from typing import Any, NamedTuple

from ...storage.commit.write_transaction import WriteTransaction
from ...storage.engine.environment import Environment
from ...storage.errors import LockTimeout, StoreFull
from ...stream.entries.session import Direct, ask
from ..subjects import sublist
from ..subjects.match import Cache, Match
from ..subjects.subscription import BINDING, LIVE, Subscription, row_key
from . import channel_index
from .channel_index import OWNER_BYTES
from .leases import Leases

STREAM_OPTION = "stream"

_MOST_KNOWN = 200_000
_ELSEWHERE = -1  # no process, no stream: it is not publishing's

_random = random.Random()

Detail = int | bytes  # a live subscription's owner, or the stream of another


class Member(NamedTuple):
    """A member of a queue group: a live one has an owner, a durable one a stream."""

    id: int
    weight: int
    detail: Detail


class Reach(NamedTuple):
    """Where a subject leads."""

    bindings: list[bytes]  # the stream of each binding
    durables: list[bytes]  # the stream of each durable subscription
    owners: dict[int, int]  # live subscriptions by process
    queues: list[list[Member]]

    def __bool__(self) -> bool:
        return bool(self.bindings or self.durables or self.owners or self.queues)


_NOWHERE = Reach([], [], {}, [])


class Known:
    """What the records of subscriptions say that never changes, by ID. One for each open store, as its cache is.

    A result of the cache (match.py) that comes again, comes with its reach.
    """

    __slots__ = ("_cache", "_details")

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._details: dict[int, Detail] = {}

    def live_ids(self, txn: Any, subject: bytes) -> tuple[int, ...]:
        """The IDs of the live subscriptions without a queue that a subject reaches."""
        return self._cache.match(txn, subject).by_kind.get(LIVE, ())

    def reach(self, txn: Any, subject: bytes) -> Reach:
        """Where a literal subject leads. Also for the living and the dead: ask living()."""
        found = self._cache.match(txn, subject)
        if not found:
            return _NOWHERE
        reach = found.targets
        if not isinstance(reach, Reach):
            reach = found.targets = self._reach(txn, found)
        return reach

    def _reach(self, txn: Any, found: Match) -> Reach:
        known = self._details
        if len(known) > _MOST_KNOWN:
            known.clear()
        keep = not isinstance(txn, WriteTransaction)
        get = known.get
        bindings = []
        durables = []
        owners: dict[int, int] = {}
        for kind, numbers in found.by_kind.items():
            for number in numbers:
                detail = get(number)
                if detail is None:
                    detail = self._read(txn, number, keep)
                if isinstance(detail, int):
                    if detail != _ELSEWHERE:
                        owners[detail] = owners.get(detail, 0) + 1
                elif kind == BINDING:
                    bindings.append(detail)
                else:
                    durables.append(detail)
        queues = []
        for group in found.queues.values():
            members = [
                Member(one.id, one.weight, known[one.id] if one.id in known else self._read(txn, one.id, keep))
                for one in group
            ]
            ours = [one for one in members if one.detail != _ELSEWHERE]
            if ours:
                queues.append(ours)
        return Reach(bindings, durables, owners, queues)

    def _read(self, txn: Any, number: int, keep: bool) -> Detail:
        record = sublist.get(txn, number)
        detail: Detail
        if record.kind == LIVE:
            owner = owner_of(record)
            detail = _ELSEWHERE if owner is None else owner
        else:
            stream = record.options.get(STREAM_OPTION)
            detail = stream if isinstance(stream, bytes) else _ELSEWHERE
        if keep:
            self._details[number] = detail
        return detail


def choose(group: list[Member], living: set[int]) -> Member | None:
    """One member of a queue group, by weight; of the live ones only those whose process lives."""
    able = [member for member in group if isinstance(member.detail, bytes) or member.detail in living]
    return _random.choices(able, [member.weight for member in able])[0] if able else None


# -- subscriptions of processes -----------------------------------------------------------


def owned(live: Subscription, owner: int) -> Subscription:
    """The live subscription as this process's."""
    return live._replace(owner=owner.to_bytes(OWNER_BYTES, "big"))


def remove(txn: WriteTransaction, numbers: list[int]) -> None:
    """Take subscriptions out of the index, those that are (still) in it."""
    sublist.remove_many(txn, [number for number in numbers if txn.get(row_key(number)) is not None])


def owner_of(record: Subscription) -> int | None:
    """The process of a live subscription; None where it was not made by subscribe(), and has an owner of its own."""
    if len(record.owner) != OWNER_BYTES or record.owner[0]:  # numbers have 56 bits
        return None
    return int.from_bytes(record.owner, "big")


# -- the dead -----------------------------------------------------------------------------


def living(txn: WriteTransaction, leases: Leases, owners: list[int]) -> list[int]:
    """Those of the owners whose processes live. What the others owned is removed."""
    alive = []
    for owner in owners:
        if leases.lives(owner):
            alive.append(owner)
        else:
            remove_owner(txn, owner)
    return alive


def remove_owner(txn: WriteTransaction, owner: int) -> None:
    """Remove everything a process owned: its subscriptions, channels and globs."""
    sublist.remove_owner(txn, owner.to_bytes(OWNER_BYTES, "big"))
    channel_index.remove_owner(txn, owner)


def purge(source: Direct, leases: Leases) -> None:
    """Remove what dead processes have left in the store.

    A descent for each process that owns something, and a system call. Nothing is written where
    all live, nor through a store that is open for reading only.
    """
    env: Environment = source.env
    dead = [owner for owner in ask(source, channel_index.owners) if not leases.lives(owner)]
    if dead and not env.readonly:
        with contextlib.suppress(LockTimeout, StoreFull):  # they count for nothing anyway; another removes them
            source.submit(lambda txn: living(txn, leases, list(channel_index.owners(txn))))
