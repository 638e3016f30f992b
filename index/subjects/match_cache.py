"""The cache of matches: right as long as the index stands as it was, and no longer.

    match(txn, subject)
      ├─ record 10 of the index, as bytes        0.3 µs, in the same transaction
      ├─ the same as the cache's epoch?          no: a new, empty epoch
      └─ in the epoch: young, then old           no: matching.match(), and into the young

An epoch is what was found while the index did not change. It is known by the bytes of record
10, whose stamp is never drawn twice: a change by another process, an undone transaction, a
reader with an older state, each has its own bytes and so never sees another's results. An
append does not touch the record.

Within an epoch there are two halves. What is new, or met again, goes to the young one; when
that is full it becomes the old one, and the former old one is dropped. So who is asked for
often stays, without a list to keep in order. "Nobody" has two small halves of its own: a
stream of subjects that reach nobody displaces only its like.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from threading import get_ident
from typing import NamedTuple
from weakref import WeakSet

from ...storage.engine.fork_hooks import forget_in_child
from ...storage.trees.rax import RaxTransaction
from ...stream.node.clock import whole
from . import match as matching
from . import subject as subjects
from .match import Match
from .sublist import STATE_KEY, state_of

MAX_ENTRIES = 4096
MAX_FANOUT = 1 << 18

_HITS, _MISSES = 0, 1
_NEVER = b"never"  # no record looks like this


class Statistics(NamedTuple):
    """What the index holds, by its records, and what this cache's users have really matched."""

    subscriptions: int  # plain + members
    plain: int
    members: int  # of queue groups
    literals: int  # different subjects
    patterns: int  # different patterns with a wildcard
    generation: int
    inserts: int  # since the store was made
    removes: int
    matches: int  # since this cache was made; those that raised do not count
    hits: int  # matches answered by the cache: never more than matches
    hit_rate: float
    cached: int  # results in the cache now, those of "nobody" included
    cached_fanout: int  # subscriptions named in them
    max_fanout: int  # deliveries of one match: plain subscribers, and 1 for each queue group
    average_fanout: float  # over all matches


class _Results:
    """Results in two halves, the young and the old one; ``most`` of each half, naming ``most_size`` together."""

    __slots__ = ("most", "most_size", "old", "size", "young")

    def __init__(self, most: int, most_size: float) -> None:
        self.most = most
        self.most_size = most_size
        self.young: dict[str | bytes, Match] = {}
        self.old: dict[str | bytes, Match] = {}
        self.size = 0  # of the young half

    def __contains__(self, subject: object) -> bool:
        return subject in self.young or subject in self.old

    def take(self, subject: str | bytes) -> Match | None:
        """The result for a subject, out of the old half if it lies there: to be kept anew."""
        found = self.young.get(subject)
        return self.old.pop(subject, None) if found is None else found

    def keep(self, subject: str | bytes, found: Match) -> None:
        """Keep a result in the young half, unless it is there or alone too large."""
        size = found.size
        if size > self.most_size or subject in self.young:
            return
        if len(self.young) >= self.most or self.size + size > self.most_size:
            self.old = self.young
            self.young, self.size = {}, 0
        self.young[subject] = found
        self.size += size

    def everything(self) -> dict[str | bytes, Match]:
        """Both halves; of what lies in both for a moment, one."""
        return self.old | self.young


class _Epoch:
    """The results of one state of the index: matches with subscribers, and those without."""

    __slots__ = ("found", "nobody", "stamp")

    def __init__(self, stamp: bytes | None, max_entries: int, max_fanout: int) -> None:
        self.stamp = stamp
        self.found = _Results(max_entries // 2, max_fanout / 2)
        self.nobody = _Results((max_entries + 15) // 16, 0)


class Cache:
    """Matches of literal subjects, remembered. Shared by threads; each process has its own.

    ``max_entries``  results kept at most, half of them young (4,096); 0 switches the cache off.
                     Results that are "nobody" have an eighth of that for themselves
    ``max_fanout``   subscriptions that all results together name at most (262,144): what the
                     cache takes of memory, 8 bytes each. A result of more than half of it is not
                     kept
    """

    __slots__ = ("__weakref__", "_epoch", "_lock", "_max_entries", "_max_fanout", "_tallies")

    def __init__(self, max_entries: int = MAX_ENTRIES, max_fanout: int = MAX_FANOUT) -> None:
        whole("max_entries", max_entries, 0)
        whole("max_fanout", max_fanout, 0)
        self._max_entries = max_entries
        self._max_fanout = max_fanout
        self._lock = threading.Lock()
        # [hits, misses, deliveries of both, most deliveries of one] by thread: no other writes there, so no
        # count is lost, and no lock is needed. A thread that gets the number of one that has ended counts on.
        self._tallies: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        self._epoch = _Epoch(_NEVER, max_entries, max_fanout)
        _caches.add(self)

    def match(self, txn: RaxTransaction, subject: str | bytes) -> Match:
        """What matching.match() answers in this transaction; 0.6 µs if it is remembered.

        Read and write transactions alike, also where they have changed subscriptions themselves.
        SubjectError for a subject that is invalid or has a wildcard.
        """
        if not self._max_entries:
            found = matching.match(txn, subject)
            self._count(_MISSES, found)
            return found
        epoch = self._epoch
        stamp = txn.get(STATE_KEY)
        if stamp != epoch.stamp:
            self._epoch = epoch = _Epoch(stamp, self._max_entries, self._max_fanout)
        try:
            hit = epoch.found.young.get(subject)
            if hit is None:
                hit = epoch.nobody.young.get(subject)
        except TypeError:  # it cannot be a key, so it is neither str nor bytes
            subjects.raw_subject(subject)
            raise
        if hit is None:
            return self._look_further(txn, epoch, subject)
        counts = self._tallies[get_ident()]
        counts[_HITS] += 1
        counts[2] += hit.fanout
        return hit

    def has_interest(self, txn: RaxTransaction, subject: str | bytes) -> bool:
        """What matching.has_interest() answers; from the cache if there is a result. Not counted."""
        epoch = self._epoch
        if self._max_entries and txn.get(STATE_KEY) == epoch.stamp and isinstance(subject, str | bytes):
            if subject in epoch.found:
                return True
            if subject in epoch.nobody:
                return False
        return matching.has_interest(txn, subject)

    def statistics(self, txn: RaxTransaction) -> Statistics:
        """Exact counts of the index as it stands in this transaction, and of matches made here."""
        state = state_of(txn)
        count = state.plain + state.members
        epoch = self._epoch
        cached: list[Match] = []
        if epoch.stamp == txn.get(STATE_KEY):
            with self._lock:
                cached = [*epoch.found.everything().values(), *epoch.nobody.everything().values()]
        hits, misses, fanout, most = zip([0] * 4, *self._tallies.copy().values(), strict=True)
        matches = sum(hits) + sum(misses)
        return Statistics(
            count, state.plain, state.members, state.literals, state.wildcards, state.generation,
            state.next_id - 1, state.next_id - 1 - count, matches, sum(hits), sum(hits) / matches if matches else 0.0,
            len(cached), sum(found.size for found in cached), max(most), sum(fanout) / matches if matches else 0.0,
        )

    def after_fork(self) -> None:
        """In a child: another thread of the parent may have held the lock, in the middle of a change."""
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Forget all results. Counters stay."""
        self._epoch = _Epoch(_NEVER, self._max_entries, self._max_fanout)

    def _count(self, what: int, found: Match) -> None:
        counts = self._tallies[get_ident()]
        counts[what] += 1
        counts[2] += found.fanout
        counts[3] = max(counts[3], found.fanout)

    def _look_further(self, txn: RaxTransaction, epoch: _Epoch, subject: str | bytes) -> Match:
        """The old half, those that reach nobody, and at last the index."""
        with self._lock:
            found = epoch.found.take(subject)
            if found is None:
                found = epoch.nobody.take(subject)
        what = _MISSES if found is None else _HITS
        if found is None:
            found = matching.match(txn, subject)
        self._count(what, found)
        with self._lock:
            (epoch.found if found else epoch.nobody).keep(subject, found)
        return found


_caches: WeakSet[Cache] = WeakSet()
forget_in_child(_caches, Cache.after_fork)
