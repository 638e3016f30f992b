"""Matching: from a subject to everybody who is interested, in a few seeks.

    a literal subject   get  12 | orders 00 eu 00 new 00 | 00
    patterns            seek 13 |                               first row: device 00 * 00 temp
                        seek 13 | orders 00                     that one is greater: go where it may be
                        seek …                                  until advance() says there is no more

Rows of kind 13 are ordered (subject.py), and a walk over them never goes back: of all patterns
only those are looked at that match, or that differ from the subject in one more token than the
row before. 3 to 5 seeks of 0.3 µs each are usual. What bounds the worst is structure, not a
clock: a walk can come to a halt once for each token of each *shape* (where a pattern has its
wildcards), and the index refuses patterns of ever new shapes beyond 65,536 tokens (sublist.py).
4,096 near misses of 13 tokens cost 5 ms; the worst set that fits, 65,000 patterns of 200 tokens
made for one subject, 0.1 s.

All functions take a read or a write transaction. What they find is what stands in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ...storage.format.keys import LITERAL, WILDCARD, family
from ...storage.format.records import unseal
from ...storage.trees.rax import RaxTransaction
from . import subject as subjects
from . import subscribers

LITERALS = family(0, LITERAL)
WILDCARDS = family(0, WILDCARD)


class Member(NamedTuple):
    """A member of a queue group that a subject has reached."""

    id: int
    weight: int
    kind: int


class Match:
    """Who gets a message: every plain subscriber, and one member of each queue group.

    ``by_kind``  {kind: IDs} of the plain subscribers
    ``queues``   {queue: its members}, over all patterns of the queue that match: one group

    Not to be changed: it is shared by all who find it in the cache. The order is unspecified,
    and every ID occurs once. Where it leads to is noted in ``reach`` when that is first asked (targets.py).
    """

    __slots__ = ("by_kind", "fanout", "queues", "reach")

    def __init__(self, by_kind: dict[int, tuple[int, ...]], queues: dict[bytes, tuple[Member, ...]]) -> None:
        self.by_kind = by_kind
        self.queues = queues
        self.fanout = sum(map(len, by_kind.values())) + len(queues)  # deliveries: a group counts once
        self.reach: Any = None

    def __bool__(self) -> bool:
        return self.fanout > 0

    def __repr__(self) -> str:
        return f"<Match {self.by_kind} {self.queues}>"

    @property
    def plain(self) -> tuple[int, ...]:
        """The IDs of the plain subscribers, of all kinds."""
        if len(self.by_kind) == 1:
            return next(iter(self.by_kind.values()))
        return tuple([number for ids in self.by_kind.values() for number in ids])

    @property
    def size(self) -> int:
        """How many subscriptions it names: plain ones and members. What it weighs in the cache."""
        return self.fanout - len(self.queues) + sum(map(len, self.queues.values()))


NOBODY = Match({}, {})


def head_of(pattern: bytes) -> bytes:
    """The key of the first row of a pattern's subscribers."""
    return (WILDCARDS if subjects.has_wildcard(pattern) else LITERALS) + subjects.key_form(pattern) + b"\0"


def heads(txn: RaxTransaction, prefix: bytes, wanted: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The first rows, (key, value), of all patterns under the prefix that overlap ``wanted``.

    ``wanted`` is a subject or pattern in key_form(); the walk of advance().
    """
    advance = subjects.advance
    skip = len(prefix)
    cursor = txn.cursor()
    target = prefix
    while cursor.set_range(target):
        key: bytes = cursor.key()
        if not key.startswith(prefix):
            return
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
    """Everybody interested in a literal subject. NATS' Match, without its cache.

    SubjectError for a subject that is invalid or has a wildcard. About 10 µs among a million patterns.
    """
    form = subjects.key_form(subjects.literal(subject))
    found: list[tuple[bytes, bytes]] = []
    key = LITERALS + form + b"\0"
    value = txn.get(key)
    if value is not None:
        found.append((key, value))
    found += heads(txn, WILDCARDS, form)
    return gathered(txn, found) if found else NOBODY


def gathered(txn: RaxTransaction, found: Iterable[tuple[bytes, bytes]]) -> Match:
    """The match of all subscribers behind these heads."""
    by_kind: dict[int, list[int]] = {}
    queues: dict[bytes, list[Member]] = {}
    for key, value in found:
        further = _gather(key, value, by_kind, queues)
        if further:
            for row_key, row in subscribers.further_rows(txn, key, further):
                _gather(row_key, row, by_kind, queues)
    return Match(
        {kind: tuple(ids) for kind, ids in by_kind.items()}, {name: tuple(group) for name, group in queues.items()}
    )


def _gather(key: bytes, value: bytes, by_kind: dict[int, list[int]], queues: dict[bytes, list[Member]]) -> int:
    further, packed, kinds, places, _, _ = unseal(key, value)
    if places is None and isinstance(kinds, int):  # plain and all of a kind: no look at each
        ids = by_kind.get(kinds)
        if ids is None:
            by_kind[kinds] = list(subscribers.ids_of(packed))
        else:
            ids.extend(subscribers.ids_of(packed))
    else:
        for number, kind, queue, weight in subscribers.decode(key, value)[1]:
            if queue is None:
                by_kind.setdefault(kind, []).append(number)
            else:
                queues.setdefault(queue, []).append(Member(number, weight, kind))
    return int(further)


def has_interest(txn: RaxTransaction, subject: str | bytes) -> bool:
    """Whether anybody is interested in a literal subject. Stops at the first pattern found."""
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
    """Everybody who could get a message that matches the pattern: all that overlap it, each once.

    What NATS calls ReverseMatch, by the rule of overlap(). A literal is a pattern, too: then it
    is match(). Costs as much as the answer is long, and a seek for each near miss.
    """
    found = ((key, value) for _, key, value in overlapping(txn, pattern))
    return gathered(txn, found)


def patterns(txn: RaxTransaction, within: str | bytes = ">") -> Iterator[tuple[bytes, int, int]]:
    """(pattern, plain subscriptions, members of queue groups) of all patterns that overlap ``within``.

    Literals first, each kind in the order of its tokens. For trees and listings.
    """
    for pattern, key, value in overlapping(txn, within):
        rows = subscribers.all_rows(txn, key, value)
        plain = sum(row.queue is None for row in rows)
        yield pattern, plain, len(rows) - plain
