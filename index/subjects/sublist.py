"""The subject index: every subscription of the store, found by subject, ID, owner, name and queue.

    insert_many([orders.*.new, owner s1, queue billing])   one transaction, all or nothing

        11 7                    the subscription                             (subscription.py)
        13 orders 00 02 00 …    + its ID among the pattern's subscribers     (subscribers.py)
        14 s1, 7                by owner
        16 billing, 7           by queue                     15 name -> 7, where it has one
        17 -*-                  how many patterns have this shape
        10                      generation + 1, counts

What is wrong with any subscription of a call is found before anything is written. The functions
here take a transaction, so that they can be part of any operation; Sublist wraps them for one
store. Matching is in match.py.

Record 10 is [generation, next ID, plain, members, literals, wildcards, shape tokens, stamp]. The
generation rises by one with each call that changes a subscription, and with nothing else; the
stamp is drawn anew each time, so that these bytes never come again, not even after a change
that was undone. On that the cache relies (match_cache.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from ...storage.commit.write_transaction import WriteTransaction
from ...storage.errors import CorruptionError, NoSubscription, SubjectError, SubscriptionExists
from ...storage.format import keys as layout
from ...storage.format.records import seal, unseal
from ...storage.trees.rax import Rax, RaxTransaction, family_rows
from . import subject as subjects
from .match import head_of
from .subscribers import Members, Row
from .subscription import ROWS, Subscription, checked, checked_weight, decode, encode, name_bytes, row_key, sized

MAX_SHAPE_TOKENS = 1 << 16  # of all different shapes together: what bounds the worst match

STATE_KEY = layout.family(0, layout.SUBJECTS)
_BY_OWNER = layout.family(0, layout.SUBSCRIPTION_BY_OWNER)
_BY_NAME = layout.family(0, layout.SUBSCRIPTION_BY_NAME)
_BY_QUEUE = layout.family(0, layout.SUBSCRIPTION_BY_QUEUE)
_SHAPES = layout.family(0, layout.SHAPE)
_subject_of = attrgetter("subject")


class State:
    """The index's own record: its generation and exact counts."""

    __slots__ = ("generation", "literals", "members", "next_id", "plain", "shape_tokens", "wildcards")

    def __init__(self, generation: int = 0, next_id: int = 1, plain: int = 0, members: int = 0, literals: int = 0,
                 wildcards: int = 0, shape_tokens: int = 0) -> None:
        self.generation = generation
        self.next_id = next_id
        self.plain = plain  # plain subscriptions
        self.members = members  # members of queue groups
        self.literals = literals  # different subjects without a wildcard
        self.wildcards = wildcards  # different patterns with one
        self.shape_tokens = shape_tokens

    def count(self, rows: Sequence[Row], by: int) -> None:
        """Count subscribers in (``by`` 1) or out (-1)."""
        members = sum(row.queue is not None for row in rows)
        self.members += by * members
        self.plain += by * (len(rows) - members)

    def count_pattern(self, wild: bool, by: int) -> None:
        """Count a pattern in or out."""
        self.wildcards += by * wild
        self.literals += by * (not wild)

    def store(self, txn: WriteTransaction) -> None:
        """Put the record, as of a new generation."""
        self.generation += 1
        txn.put(STATE_KEY, seal(STATE_KEY, [
            self.generation, self.next_id, self.plain, self.members, self.literals, self.wildcards, self.shape_tokens,
            os.urandom(8),
        ]))


def state_of(txn: RaxTransaction) -> State:
    """The index's own record; generation 0 where nobody has ever subscribed."""
    value = txn.get(STATE_KEY)
    return State() if value is None else State(*unseal(STATE_KEY, value)[:7])


# -- changing ---------------------------------------------------------------------------


def insert_many(txn: WriteTransaction, subscriptions: Sequence[Subscription]) -> list[int]:
    """Store subscriptions, all or none; their IDs, in the same order.

    A subscription without a name is a new one, however like another it is. One whose durable name
    is there already is that one: its ID is given and nothing changes, as long as subject, kind,
    queue and owner are the same; SubscriptionExists if not.

    Raises what Subscription.of() raises, and SubjectError where the patterns' shapes would exceed
    MAX_SHAPE_TOKENS; nothing is written then. One new generation for the call, none where
    nothing was new. A lone one costs 6 puts, in batches about 20 µs each.
    """
    made = [checked(subscription) for subscription in subscriptions]
    state = state_of(txn)
    ids, new = _numbered(txn, made, state.next_id)
    if not new:
        return ids
    new.sort(key=_subject_of)  # stable: the IDs of a pattern ascend
    groups = [(pattern, list(group)) for pattern, group in groupby(new, _subject_of)]
    shapes = _new_shapes(txn, [pattern for pattern, _ in groups], state)
    records = [(row_key(one.id), encode(one)) for one in new]
    for pattern, group in groups:
        wild = subjects.has_wildcard(pattern)
        rows = [Row(one.id, one.kind, one.queue, one.weight) for one in group]
        if Members(txn, head_of(pattern)).add(rows):
            state.count_pattern(wild, 1)
        state.count(rows, 1)
    for key, patterns_of_it in shapes.items():
        txn.put(key, seal(key, [patterns_of_it]))
    for key, value in sorted(records):
        txn.put(key, value)
    for one in new:
        for key in _references(one):
            txn.put(key, seal(key, [one.id]))
    state.next_id += len(new)
    state.store(txn)
    return ids


def remove_many(txn: WriteTransaction, numbers: Iterable[int]) -> list[Subscription]:
    """Remove subscriptions by their IDs, all or none; what they were, by ascending ID.

    NoSubscription names the first ID that is not there, and nothing is removed then. An ID given
    twice is removed once. One new generation for the call.
    """
    found = {number: get(txn, number) for number in numbers}
    gone = [found[number] for number in sorted(found)]
    if not gone:
        return gone
    state = state_of(txn)
    for pattern, group in groupby(sorted(gone, key=_subject_of), _subject_of):
        wild = subjects.has_wildcard(pattern)
        ids = [one.id for one in group]
        rows, left_empty = Members(txn, head_of(pattern)).remove(ids)
        if len(rows) != len(ids):
            raise CorruptionError(f"subscriptions to {subjects.shown(pattern)} are not among its subscribers")
        state.count(rows, -1)
        if left_empty:
            state.count_pattern(wild, -1)
            if wild:
                _drop_shape(txn, pattern, state)
    for one in gone:
        txn.delete(row_key(one.id))
        for key in _references(one):
            txn.delete(key)
    state.store(txn)
    return gone


def remove_owner(txn: WriteTransaction, owner: str | bytes) -> list[Subscription]:
    """Remove all subscriptions of an owner; what they were. None is no error, and changes nothing."""
    return remove_many(txn, _ids_under(txn, _BY_OWNER, name_bytes(owner, "owner")))


def set_weight(txn: WriteTransaction, number: int, weight: int) -> Subscription:
    """Give a subscription another weight in its queue group; what it is now. A new generation.

    NoSubscription if it is not there; InvalidArgument for a weight outside 1 to 65,535.
    """
    checked_weight(weight)
    old = get(txn, number)
    if old.weight == weight:
        return old
    new = old._replace(weight=weight)
    head = head_of(old.subject)
    if not Members(txn, head).change(number, lambda row: row._replace(weight=weight)):
        raise CorruptionError(f"subscription {number} is not among the subscribers of {subjects.shown(old.subject)}")
    txn.put(row_key(number), encode(new))
    state_of(txn).store(txn)
    return new


def _numbered(txn: WriteTransaction, made: list[Subscription], next_id: int) -> tuple[list[int], list[Subscription]]:
    """The IDs of all, and those that are new, each with its own."""
    ids: list[int] = []
    new: list[Subscription] = []
    named: dict[bytes, Subscription] = {}
    for one in made:
        if one.name is not None:
            there = named.get(one.name) or by_name(txn, one.name)
            if there is not None:
                if (there.subject, there.kind, there.queue, there.owner) != (
                    one.subject, one.kind, one.queue, one.owner
                ):
                    raise SubscriptionExists(
                        f"the durable name {subjects.shown(one.name)} belongs to a subscription to "
                        f"{subjects.shown(there.subject)} (ID {there.id}), and this one differs in subject, kind, "
                        "queue or owner; choose another name, or remove that one first"
                    )
                ids.append(there.id)
                continue
        one = Subscription(*one[:8], next_id + len(new))
        if one.name is not None:
            named[one.name] = one
        ids.append(one.id)
        new.append(one)
    return ids, new


def _new_shapes(txn: WriteTransaction, wanted: Iterable[bytes], state: State) -> dict[bytes, int]:
    """The rows of shapes that change when these patterns are there. SubjectError beyond the limit."""
    changed: dict[bytes, int] = {}
    tokens = state.shape_tokens
    for pattern in wanted:
        if not subjects.has_wildcard(pattern) or txn.get(head_of(pattern)) is not None:
            continue
        key = _SHAPES + subjects.shape(pattern)
        if key not in changed:
            changed[key] = _patterns_of(txn, key)
            if changed[key] == 0:
                tokens += len(key) - len(_SHAPES)
        changed[key] += 1
        if tokens > MAX_SHAPE_TOKENS:
            raise SubjectError(
                f"the pattern {subjects.shown(pattern)} has its wildcards where no other has, and all such shapes "
                f"together may have {MAX_SHAPE_TOKENS} tokens, or a match could take seconds. Write patterns with "
                "their wildcards in the same places, or remove some."
            )
    state.shape_tokens = tokens
    return changed


def _drop_shape(txn: WriteTransaction, pattern: bytes, state: State) -> None:
    key = _SHAPES + subjects.shape(pattern)
    left = _patterns_of(txn, key) - 1
    if left > 0:
        txn.put(key, seal(key, [left]))
    else:
        txn.delete(key)
        state.shape_tokens -= len(key) - len(_SHAPES)


def _patterns_of(txn: RaxTransaction, key: bytes) -> int:
    value = txn.get(key)
    return 0 if value is None else int(unseal(key, value)[0])


def _references(one: Subscription) -> list[bytes]:
    """The keys that lead to a subscription, beside its pattern's."""
    number = one.id.to_bytes(8, "big")
    keys = []
    if one.owner:
        keys.append(_BY_OWNER + sized(one.owner) + number)
    if one.queue is not None:
        keys.append(_BY_QUEUE + sized(one.queue) + number)
    if one.name is not None:
        keys.append(_BY_NAME + one.name)
    return keys


# -- asking -----------------------------------------------------------------------------


def get(txn: RaxTransaction, number: int) -> Subscription:
    """The subscription with that ID. NoSubscription if there is none. 3 µs."""
    valid = type(number) is int and 0 < number < 1 << 64
    key = row_key(number) if valid else b""
    value = txn.get(key) if valid else None
    if value is None:
        raise NoSubscription(f"there is no subscription with the ID {number!r}; it may have been removed")
    return decode(key, value)


def by_name(txn: RaxTransaction, name: str | bytes) -> Subscription | None:
    """The durable subscription of that name, None if there is none."""
    key = _BY_NAME + name_bytes(name, "durable name")
    value = txn.get(key)
    return None if value is None else get(txn, unseal(key, value)[0])


def by_owner(txn: RaxTransaction, owner: str | bytes) -> list[Subscription]:
    """The subscriptions of an owner, in the order they were made."""
    return [get(txn, number) for number in _ids_under(txn, _BY_OWNER, name_bytes(owner, "owner"))]


def by_queue(txn: RaxTransaction, queue: str | bytes) -> list[Subscription]:
    """The members of a queue group, of all patterns, in the order they were made."""
    return [get(txn, number) for number in _ids_under(txn, _BY_QUEUE, name_bytes(queue, "queue"))]


def all_subscriptions(txn: RaxTransaction, after: int = 0) -> Iterator[Subscription]:
    """All subscriptions with an ID above ``after``, in the order they were made. NATS' All."""
    return (decode(key, value) for key, value in family_rows(txn, ROWS, row_key(after + 1)))


def count(txn: RaxTransaction) -> int:
    """How many subscriptions there are: plain ones and members. Exact, 2 µs."""
    state = state_of(txn)
    return state.plain + state.members


def _ids_under(txn: RaxTransaction, prefix: bytes, name: bytes) -> list[int]:
    """The IDs that the keys of a name end with."""
    whole = prefix + sized(name)
    return [unseal(whole + key, value)[0] for key, value in Rax(txn, whole).items()]
