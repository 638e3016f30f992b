"""Matching: from a subject to all its subscribers, in a few seeks, or from the cache of matches.

    a literal subject   get  12 | orders 00 eu 00 new 00 | 00
    patterns            seek 13 |                               first row: device 00 * 00 temp
                        seek 13 | orders 00                     that one is greater: go where it may be
                        seek …                                  until advance() returns None

Rows of kind 13 are ordered (subject.py), and a walk over them never goes back: of all patterns
only those are looked at that match, or that differ from the subject in one more token than the
row before. 3 to 5 seeks of 0.3 µs each are usual. What bounds the worst is structure, not a
clock: a walk can come to a halt once for each token of each *shape* (where a pattern has its
wildcards), and the index refuses patterns of ever new shapes beyond 65,536 tokens (sublist.py).
4,096 near misses of 13 tokens cost 5 ms; the worst set that fits, 65,000 patterns of 200 tokens
made for one subject, 0.1 s.

All functions take a read or a write transaction, and see the index as it is there.

    Cache.match(txn, subject)
      ├─ record 10 of the index, as bytes        0.3 µs, in the same transaction
      ├─ the same as the cache's epoch?          no: a new, empty epoch
      └─ in the epoch: young, then old           no: match(), and into the young

An epoch holds what was found while the index did not change. It is known by the bytes of record
10, whose stamp is never drawn twice: a change by another process, an undone transaction, a
reader with an older state, each has its own bytes and so never sees another's results. An
append does not touch the record.

Within an epoch there are two halves. New results, and those used again, go to the young one; when
that is full it becomes the old one, and the former old one is dropped. So what is asked for
often stays, without a list to keep in order. Results without subscribers have two small halves of
their own: a stream of subjects that reach nothing displaces only its like.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from threading import get_ident
from typing import Any
from weakref import ref

from ...storage.errors import InvalidArgument
from ...storage.figures import Figures
from ...storage.fork_hooks import forget_in_child
from ...storage.format.records import unseal
from ...storage.log.cursor import cursor_over
from ...storage.log.transaction import WriteTransaction
from ...storage.threads import outside
from ...storage.trees.rax import RaxTransaction
from ...stream.node.arguments import Text, text_of, whole
from ...stream.node.entry import UNDECODABLE
from . import subject as subjects
from .sublist import LITERALS, STAMP, STATE_KEY, WILDCARDS, all_rows, decode_row, further_rows, ids_of, state_of

MAX_ENTRIES = 4096
MAX_FANOUT = 1 << 18
MAX_PATTERNS = 64  # of a group's filter
_MOST_REMEMBERED = 10_000

_HITS, _MISSES = 0, 1
_NEVER = b"never"  # no record looks like this


@dataclass(frozen=True, slots=True)
class Member(Figures):
    """A member of a queue group that a subject has reached."""

    id: int
    weight: int
    kind: int


@dataclass(frozen=True, slots=True)
class Subscribers(Figures):
    """Who gets a message of a subject: every plain subscriber, and one member of each queue group. False if none does.

    ``by_kind``  {kind: IDs} of the plain subscribers; kind 1 is live, 2 durable, 3 a binding
    ``queues``   {queue: its members}, over all patterns of the queue that match: one group
    ``fanout``   deliveries: plain subscribers, and 1 for each queue group

    The order is unspecified, and every ID occurs once. Shared by all who ask for the subject: not to be changed.
    """

    by_kind: dict[int, tuple[int, ...]]
    queues: dict[Text, tuple[Member, ...]]
    fanout: int

    def __bool__(self) -> bool:
        return self.fanout > 0

    @property
    def plain(self) -> tuple[int, ...]:
        """The IDs of the plain subscribers, of all kinds."""
        return tuple([number for ids in self.by_kind.values() for number in ids])


class Match:
    """The subscribers of a subject as the cache keeps them; users get subscribers(), which has the meaning of each.

    ``targets`` holds what publishing has looked up about it.
    """

    __slots__ = ("_shown", "by_kind", "fanout", "queues", "targets")

    def __init__(self, by_kind: dict[int, tuple[int, ...]], queues: dict[bytes, tuple[Member, ...]]) -> None:
        self.by_kind: dict[int, tuple[int, ...]] = by_kind
        self.queues: dict[bytes, tuple[Member, ...]] = queues
        self.fanout: int = sum(map(len, by_kind.values())) + len(queues)  # deliveries: a group counts once
        self.targets: object = None
        self._shown: dict[str | None, Subscribers] = {}

    def __bool__(self) -> bool:
        return self.fanout > 0

    def subscribers(self, encoding: str | None) -> Subscribers:
        """The same as a user gets it, with the names of queues as text where there is an encoding."""
        shown = self._shown.get(encoding)
        if shown is None:
            queues = {text_of(name, encoding): group for name, group in self.queues.items()}
            shown = self._shown[encoding] = Subscribers(self.by_kind, queues, self.fanout)
        return shown

    @property
    def size(self) -> int:
        """How many subscriptions it names: plain ones and members. What it weighs in the cache."""
        return self.fanout - len(self.queues) + sum(map(len, self.queues.values()))


_NO_MATCH = Match({}, {})


def heads(txn: RaxTransaction, prefix: bytes, wanted: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The first rows, (key, value), of all patterns under the prefix that overlap ``wanted``.

    ``wanted`` is a subject or pattern in key_form(); the walk of advance().
    """
    advance = subjects.advance
    skip = len(prefix)
    cursor = cursor_over(txn, prefix)
    target = prefix
    while cursor.set_range(target):
        key = cursor.here
        answer = advance(key, skip, wanted)
        if answer is None:
            return
        if answer:
            target = answer
        else:
            yield key, cursor.value()
            # behind all rows of this pattern, whatever follows the end of it in their keys
            target = key[: key.index(b"\0\0", skip) + 1] + b"\1"


def match(txn: RaxTransaction, subject: str | bytes) -> Match:
    """All subscribers of a literal subject. NATS' Match, without its cache.

    SubjectError for a subject that is invalid or has a wildcard. About 10 µs among a million patterns.
    """
    form = subjects.key_form(subjects.literal(subject))
    found: list[tuple[bytes, bytes]] = []
    key = LITERALS + form + b"\0"
    value = txn.get(key)
    if value is not None:
        found.append((key, value))
    found += heads(txn, WILDCARDS, form)
    return gathered(txn, found) if found else _NO_MATCH


def gathered(txn: RaxTransaction, found: Iterable[tuple[bytes, bytes]]) -> Match:
    """The match of all subscribers behind these heads."""
    by_kind: dict[int, list[int]] = {}
    queues: dict[bytes, list[Member]] = {}
    for key, value in found:
        further = _gather(key, value, by_kind, queues)
        if further:
            for row_key, row in further_rows(txn, key, further):
                _gather(row_key, row, by_kind, queues)
    return Match(
        {kind: tuple(ids) for kind, ids in by_kind.items()}, {name: tuple(group) for name, group in queues.items()}
    )


def _gather(key: bytes, value: bytes, by_kind: dict[int, list[int]], queues: dict[bytes, list[Member]]) -> int:
    further, packed, kinds, places, _, _ = unseal(key, value)
    if places is None and isinstance(kinds, int):  # plain and all of a kind: no look at each
        ids = by_kind.get(kinds)
        if ids is None:
            by_kind[kinds] = list(ids_of(packed))
        else:
            ids.extend(ids_of(packed))
    else:
        for number, kind, queue, weight in decode_row(key, value)[1]:
            if queue is None:
                by_kind.setdefault(kind, []).append(number)
            else:
                queues.setdefault(queue, []).append(Member(number, weight, kind))
    return int(further)


def has_interest(txn: RaxTransaction, subject: str | bytes) -> bool:
    """Whether a literal subject has subscribers. Stops at the first pattern found."""
    form = subjects.key_form(subjects.literal(subject))
    if txn.get(LITERALS + form + b"\0") is not None:
        return True
    return next(heads(txn, WILDCARDS, form), None) is not None


def num_interest(txn: RaxTransaction, subject: str | bytes) -> tuple[int, int]:
    """How many plain subscriptions, and how many members of queue groups, match. Exact."""
    found = match(txn, subject)
    groups = sum(map(len, found.queues.values()))
    return found.size - groups, groups


def overlapping(txn: RaxTransaction, pattern: str | bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """(pattern, key, value) of the first row of every pattern that overlaps this one, each once."""
    form = subjects.key_form(subjects.pattern(pattern))
    for prefix in (LITERALS, WILDCARDS):
        for key, value in heads(txn, prefix, form):
            yield subjects.from_key_form(key[len(prefix) : -1]), key, value


def reverse_match(txn: RaxTransaction, pattern: str | bytes) -> Match:
    """All subscribers that could get a message that matches the pattern: all that overlap it, each once.

    What NATS calls ReverseMatch, by the rule of relation(). A literal is a pattern, too: then it
    is match(). Costs as much as the answer is long, and a seek for each near miss.
    """
    found = ((key, value) for _, key, value in overlapping(txn, pattern))
    return gathered(txn, found)


@dataclass(frozen=True, slots=True)
class PatternInterest(Figures):
    """A pattern, and how many plain subscriptions and members of queue groups it has."""

    subject: str
    plain: int
    queued: int


def patterns(txn: RaxTransaction, within: str | bytes = ">") -> Iterator[PatternInterest]:
    """All patterns that overlap ``within``.

    Literals first, each kind in the order of its tokens. For trees and listings.
    """
    for pattern, key, value in overlapping(txn, within):
        rows = all_rows(txn, key, value)
        plain = sum(row.queue is None for row in rows)
        yield PatternInterest(pattern.decode("utf-8", UNDECODABLE), plain, len(rows) - plain)


# -- the patterns of a group's filter (stream/group/subject_filter.py) ---------------------


def checked_patterns(given: Text | Iterable[Text]) -> list[bytes]:
    """One pattern, or several, as bytes. SubjectError for a malformed one, InvalidArgument for too many."""
    several = [given] if isinstance(given, str | bytes) or not isinstance(given, Iterable) else list(given)
    if len(several) > MAX_PATTERNS:
        raise InvalidArgument(f"{len(several)} subjects were given; a group is filtered by {MAX_PATTERNS} at most")
    if not several:
        raise InvalidArgument("subjects=[] would let nothing through; leave it out for no filter")
    return sorted({subjects.pattern(pattern) for pattern in several})


def matcher(patterns: list[bytes]) -> Callable[[bytes], bool]:
    """The test whether a subject matches one of the patterns; it remembers subjects."""

    @lru_cache(_MOST_REMEMBERED)
    def matches(subject: bytes) -> bool:
        return any(subjects.matches(pattern, subject) for pattern in patterns)

    return matches


# -- the cache ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Statistics(Figures):
    """What the index holds, by its records, and what was matched through this cache."""

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
    cached: int  # results in the cache now, empty ones included
    cached_fanout: int  # subscriptions named in them
    max_fanout: int  # deliveries of one match: plain subscribers, and 1 for each queue group
    average_fanout: float  # over all matches


class _Results:
    """Results in two halves, the young and the old one: each up to ``limit`` results, of ``size_limit`` together."""

    __slots__ = ("limit", "old", "size", "size_limit", "young")

    def __init__(self, limit: int, size_limit: float) -> None:
        self.limit = limit
        self.size_limit = size_limit
        self.young: dict[str | bytes, Match] = {}
        self.old: dict[str | bytes, Match] = {}
        self.size = 0  # of the young half

    def __contains__(self, subject: object) -> bool:
        return subject in self.young or subject in self.old

    def take(self, subject: str | bytes) -> Match | None:
        """The result for a subject, out of the old half if it is there."""
        found = self.young.get(subject)
        return self.old.pop(subject, None) if found is None else found

    def keep(self, subject: str | bytes, found: Match) -> None:
        """Keep a result in the young half, unless it is there or alone too large."""
        size = found.size
        if size > self.size_limit or subject in self.young:
            return
        if len(self.young) >= self.limit or self.size + size > self.size_limit:
            self.old = self.young
            self.young, self.size = {}, 0
        self.young[subject] = found
        self.size += size

    def everything(self) -> dict[str | bytes, Match]:
        return self.old | self.young


class _Epoch:
    """The results of one state of the index: matches with subscribers, and those without."""

    __slots__ = ("empty", "found", "stamp")

    def __init__(self, stamp: bytes | None, max_entries: int, max_fanout: int) -> None:
        self.stamp = stamp
        self.found = _Results(max_entries // 2, max_fanout / 2)
        self.empty = _Results((max_entries + 15) // 16, 0)


def stamp(txn: WriteTransaction) -> Any:
    """The index's own record, as it is stored: another one for each state. One read after another process' commit."""
    kept = txn.warm.get(STAMP)
    if kept is None or kept[0] != txn.epoch:
        kept = txn.warm[STAMP] = txn.epoch, txn.get(STATE_KEY)
    return kept[1]


class Cache:
    """Matches of literal subjects, remembered. Shared by threads; each process has its own.

    ``max_entries``  results kept at most, half of them young (4,096); 0 switches the cache off.
                     Empty results have an eighth of that for themselves
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
        self._lock = threading.RLock()
        # [hits, misses, deliveries of both, most deliveries of one] by thread: no other writes there, so no
        # count is lost, and no lock is needed. A thread that gets the number of one that has ended counts on.
        self._tallies: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        self._epoch = _Epoch(_NEVER, max_entries, max_fanout)
        _caches.add(ref(self, _caches.discard))

    def match(self, txn: RaxTransaction, subject: str | bytes) -> Match:
        """What match() answers in this transaction; 0.6 µs if it is remembered.

        In read and write transactions, also those that have changed subscriptions themselves.
        SubjectError for a subject that is invalid or has a wildcard.
        """
        if not self._max_entries:
            found = match(txn, subject)
            self._count(_MISSES, found)
            return found
        epoch = self._epoch
        stamp = txn.get(STATE_KEY)
        if stamp != epoch.stamp:
            self._epoch = epoch = _Epoch(stamp, self._max_entries, self._max_fanout)
        try:
            hit = epoch.found.young.get(subject)
            if hit is None:
                hit = epoch.empty.young.get(subject)
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
        """What has_interest() answers; from the cache if there is a result. Not counted."""
        epoch = self._epoch
        if self._max_entries and txn.get(STATE_KEY) == epoch.stamp and isinstance(subject, str | bytes):
            if subject in epoch.found:
                return True
            if subject in epoch.empty:
                return False
        return has_interest(txn, subject)

    def statistics(self, txn: RaxTransaction) -> Statistics:
        """Exact counts of the index as it is in this transaction, and of matches made here."""
        state = state_of(txn)
        count = state.plain + state.members
        epoch = self._epoch
        cached: list[Match] = []
        if epoch.stamp == txn.get(STATE_KEY):
            with outside(self._lock, "the subject index"):
                cached = [*epoch.found.everything().values(), *epoch.empty.everything().values()]
        hits, misses, fanout, highest = zip([0] * 4, *self._tallies.copy().values(), strict=True)
        matches = sum(hits) + sum(misses)
        return Statistics(
            count, state.plain, state.members, state.literals, state.wildcards, state.generation,
            state.next_id - 1, state.next_id - 1 - count, matches, sum(hits), sum(hits) / matches if matches else 0.0,
            len(cached), sum(found.size for found in cached), max(highest), sum(fanout) / matches if matches else 0.0,
        )

    def after_fork(self) -> None:
        """In a child: another thread of the parent may have held the lock, in the middle of a change."""
        self._lock = threading.RLock()
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
        """The match from the old half, from the empty results, or from the index."""
        with outside(self._lock, "the subject index"):
            found = epoch.found.take(subject)
            if found is None:
                found = epoch.empty.take(subject)
        what = _MISSES if found is None else _HITS
        if found is None:
            found = match(txn, subject)
        self._count(what, found)
        with outside(self._lock, "the subject index"):
            (epoch.found if found else epoch.empty).keep(subject, found)
        return found


_caches: set[ref[Cache]] = set()
forget_in_child(_caches, Cache.after_fork)
