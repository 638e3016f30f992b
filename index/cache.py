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
from collections.abc import Callable
from typing import NamedTuple
from weakref import ReferenceType, WeakSet, ref

from ..storage.rax import RaxTransaction
from ..storage.sharing import forget_in_child
from ..stream.clock import whole
from . import matching
from . import subject as subjects
from .matching import NOBODY, Match
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


class _Epoch:
    """The results of one state of the index."""

    __slots__ = ("nobody", "nobody_old", "old", "size", "stamp", "young")

    def __init__(self, stamp: bytes | None) -> None:
        self.stamp = stamp
        self.young: dict[str | bytes, Match] = {}
        self.old: dict[str | bytes, Match] = {}
        self.size = 0
        self.nobody: dict[str | bytes, Match] = {}
        self.nobody_old: dict[str | bytes, Match] = {}


class _Tally(threading.local):
    """What one thread has counted: nobody else writes it, so no count is lost, and no lock is needed."""

    def __init__(self, register: Callable[[list[int]], None]) -> None:
        self.counts = [0, 0, 0]  # hits, misses, deliveries of both
        register(self.counts)


class Cache:
    """Matches of literal subjects, remembered. Shared by threads; each process has its own.

    ``max_entries``  results kept at most, half of them young (4,096); 0 switches the cache off.
                     Results that are "nobody" have an eighth of that for themselves
    ``max_fanout``   subscriptions that all results together name at most (262,144): what the
                     cache takes of memory, 8 bytes each. A result of more than half of it is not
                     kept
    """

    __slots__ = (
        "__weakref__", "_ended", "_epoch", "_lock", "_max_entries", "_max_fanout", "_most", "_tallies", "_tally",
    )

    def __init__(self, max_entries: int = MAX_ENTRIES, max_fanout: int = MAX_FANOUT) -> None:
        whole("max_entries", max_entries, 0)
        whole("max_fanout", max_fanout, 0)
        self._max_entries = max_entries
        self._max_fanout = max_fanout
        self._epoch = _Epoch(_NEVER)
        self._lock = threading.Lock()
        self._most = 0
        self._ended = [0, 0, 0]  # what threads have counted that are no more
        self._tallies: list[tuple[ReferenceType[threading.Thread], list[int]]] = []
        self._tally = _Tally(self._register)
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
            self._epoch = epoch = _Epoch(stamp)
        try:
            hit = epoch.young.get(subject)
        except TypeError:  # it cannot be a key, so it is neither str nor bytes
            subjects.raw_subject(subject)
            raise
        if hit is None:
            return self._look_further(txn, epoch, subject)
        counts = self._tally.counts
        counts[0] += 1  # a hit
        counts[2] += hit.fanout
        return hit

    def has_interest(self, txn: RaxTransaction, subject: str | bytes) -> bool:
        """What matching.has_interest() answers; from the cache if there is a result. Not counted."""
        epoch = self._epoch
        if self._max_entries and txn.get(STATE_KEY) == epoch.stamp and isinstance(subject, str | bytes):
            if subject in epoch.young or subject in epoch.old:
                return True
            if subject in epoch.nobody or subject in epoch.nobody_old:
                return False
        return matching.has_interest(txn, subject)

    def statistics(self, txn: RaxTransaction) -> Statistics:
        """Exact counts of the index as it stands in this transaction, and of matches made here."""
        state = state_of(txn)
        count = state.plain + state.members
        epoch = self._epoch
        live = epoch.stamp == txn.get(STATE_KEY)
        with self._lock:
            cached = [*epoch.young.values(), *epoch.old.values()] if live else []
            nobody = len(epoch.nobody.keys() | epoch.nobody_old.keys()) if live else 0
            tallies = [self._ended, *[counts for _, counts in self._tallies]]
            hits, misses, fanout = (sum(column) for column in zip(*tallies, strict=True))
        matches = hits + misses
        return Statistics(
            count, state.plain, state.members, state.literals, state.wildcards, state.generation,
            state.next_id - 1, state.next_id - 1 - count, matches, hits, hits / matches if matches else 0.0,
            len(cached) + nobody, sum(found.size for found in cached), self._most,
            fanout / matches if matches else 0.0,
        )

    def after_fork(self) -> None:
        """In a child: another thread of the parent may have held the lock, in the middle of a change."""
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Forget all results. Counters stay."""
        self._epoch = _Epoch(_NEVER)

    def _register(self, counts: list[int]) -> None:
        """A thread counts for the first time. What ended threads have counted is added up."""
        with self._lock:
            going_on = []
            for thread, theirs in self._tallies:
                known = thread()
                if known is not None and known.is_alive():
                    going_on.append((thread, theirs))
                else:
                    self._ended = [a + b for a, b in zip(self._ended, theirs, strict=True)]
            self._tallies = [*going_on, (ref(threading.current_thread()), counts)]

    def _count(self, what: int, found: Match) -> None:
        counts = self._tally.counts
        counts[what] += 1
        counts[2] += found.fanout
        if found.fanout > self._most:
            with self._lock:
                self._most = max(self._most, found.fanout)

    def _look_further(self, txn: RaxTransaction, epoch: _Epoch, subject: str | bytes) -> Match:
        """The old half, those that reach nobody, and at last the index."""
        with self._lock:
            found = epoch.old.pop(subject, None)
            if found is None and (subject in epoch.nobody or subject in epoch.nobody_old):
                found = NOBODY
        what = _MISSES if found is None else _HITS
        if found is None:
            found = matching.match(txn, subject)
        self._count(what, found)
        with self._lock:
            self._keep(epoch, subject, found)
        return found

    def _keep(self, epoch: _Epoch, subject: str | bytes, found: Match) -> None:
        if not found:
            if len(epoch.nobody) * 16 >= self._max_entries and subject not in epoch.nobody:
                epoch.nobody_old = epoch.nobody
                epoch.nobody = {}
            epoch.nobody[subject] = NOBODY
            return
        size = found.size
        if size * 2 > self._max_fanout or subject in epoch.young:
            return
        if (len(epoch.young) + 1) * 2 > self._max_entries or (epoch.size + size) * 2 > self._max_fanout:
            epoch.old = epoch.young
            epoch.young, epoch.size = {}, 0
        epoch.young[subject] = found
        epoch.size += size


_caches: WeakSet[Cache] = WeakSet()
forget_in_child(_caches, Cache.after_fork)
