"""The subject index: every subscription of the store, found by subject, ID, owner, name and queue.

    insert_many([orders.*.new, owner s1, queue billing])   one transaction, all or nothing

        11 7                    the subscription                             (subscription.py)
        13 orders 00 02 00 …    + its ID among the pattern's subscribers
        14 s1, 7                by owner
        16 billing, 7           by queue                     15 name -> 7, where it has one
        17 -*-                  how many patterns have this shape
        10                      generation + 1, counts

Everything wrong with any subscription of a call is found before anything is written. The functions
take a transaction, so that they can be part of any operation; handle.Sublist wraps them for one
store. Matching is in match.py.

Record 10 is [generation, next ID, plain, members, literals, wildcards, shape tokens, stamp]. The
generation rises by one with each call that changes a subscription, and with nothing else; the
stamp is random each time, so that these bytes never come again, not even after a change
that was undone. The cache of matches relies on that.

The subscribers of one pattern are stored in rows of up to 200:

    key     kind 12 or 13, the pattern's key form, 00                 the head
            the same + first ID (8)                                   further rows, IDs ascending

    row     [further, ids, kinds, queues, weights, names]
            further   in the head: how many further rows there are
            ids       8 bytes each, big-endian, ascending, in one bin
            kinds     one number where all are equal, else a bin with a byte for each
            queues    nil where all are plain, else a bin: 0 plain, n the n-th of ``names``
            weights   one number where all are equal, else a list
            names     the queues met in this row

So a match reads one row for 200 subscribers, with all it needs of them, and a new subscriber
rewrites one row, the last. A head stays, empty, as long as there is a further row. Rows are cut
where they would leave LMDB's leaf page (2,001 bytes), and a row that has shrunk is joined to its
neighbour when both fill half of one.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, repeat
from operator import attrgetter
from typing import NamedTuple

from ...storage.errors import CorruptionError, NoSubscription, SubjectError, SubscriptionExists
from ...storage.format import keys as layout
from ...storage.format.records import seal, unseal
from ...storage.log.cursor import NEXT, cursor_over
from ...storage.log.transaction import WriteTransaction
from ...storage.trees.rax import Rax, RaxTransaction, family_rows
from . import subject as subjects
from .subscription import ROWS, Subscription, checked, checked_weight, decode, encode, name_bytes, row_key, sized

CAPACITY = 200
MAX_VALUE = 2001
MAX_SHAPE_TOKENS = 1 << 16  # of all different shapes together: what bounds the worst match

STATE_KEY = layout.family(0, layout.SUBJECTS)
STAMP = (STATE_KEY,)  # what is warm of it: no stream's name, as bytes would be
_BY_OWNER = layout.family(0, layout.SUBSCRIPTION_BY_OWNER)
_BY_NAME = layout.family(0, layout.SUBSCRIPTION_BY_NAME)
_BY_QUEUE = layout.family(0, layout.SUBSCRIPTION_BY_QUEUE)
_SHAPES = layout.family(0, layout.SHAPE)
LITERALS = layout.family(0, layout.LITERAL)
WILDCARDS = layout.family(0, layout.WILDCARD)
_subject_of = attrgetter("subject")


# -- the subscribers of a pattern ---------------------------------------------------------


def head_of(pattern: bytes) -> bytes:
    """The key of the first row of a pattern's subscribers."""
    return (WILDCARDS if subjects.has_wildcard(pattern) else LITERALS) + subjects.key_form(pattern) + b"\0"


class Row(NamedTuple):
    """One subscriber of a pattern, as far as a match must know it."""

    id: int
    kind: int
    queue: bytes | None
    weight: int


_row = partial(tuple.__new__, Row)  # a quarter of what calling Row takes


def encode_row(key: bytes, further: int, rows: Sequence[Row]) -> bytes:
    """The record to store under ``key``."""
    if len(rows) == 1:  # most patterns have one subscriber
        number, kind, queue, weight = rows[0]
        alone = [further, number.to_bytes(8, "big"), kind, None, weight, []]
        if queue is not None:
            alone[3], alone[5] = b"\1", [queue]
        return seal(key, alone)
    ids, kinds, queues, weights = zip(*rows, strict=True) if rows else ((),) * 4
    names = [name for name in dict.fromkeys(queues) if name is not None]
    places = {name: place for place, name in enumerate([None, *names])}
    return seal(key, [
        further,
        struct.pack(f">{len(ids)}Q", *ids),
        kinds[0] if len(set(kinds)) == 1 else bytes(kinds),
        bytes([places[queue] for queue in queues]) if names else None,
        weights[0] if len(set(weights)) == 1 else weights,
        names,
    ])


def ids_of(packed: bytes) -> tuple[int, ...]:
    """The IDs of a row's bin."""
    return struct.unpack(f">{len(packed) // 8}Q", packed)


def decode_row(key: bytes, value: bytes) -> tuple[int, list[Row]]:
    """How many further rows there are, and the subscribers of this one."""
    further, packed, kinds, queues, weights, names = unseal(key, value)
    ids = ids_of(packed)
    count = len(ids)
    for column in (kinds, queues, weights):
        if column is not None and not isinstance(column, int) and len(column) != count:
            raise CorruptionError(f"the columns of the subscribers under {key.hex()} differ in length")
    table = [None, *names]
    return further, list(map(_row, zip(
        ids, repeat(kinds) if isinstance(kinds, int) else kinds,
        repeat(None) if queues is None else [table[place] for place in queues],
        repeat(weights) if isinstance(weights, int) else weights, strict=False,
    )))


def further_rows(txn: RaxTransaction, head: bytes, count: int) -> Iterator[tuple[bytes, bytes]]:
    """The rows behind a head, which must be ``count``. CorruptionError where one is missing."""
    cursor = cursor_over(txn, head)
    found = cursor.set_range(head + NEXT)
    for _ in range(count):
        if not found or len(cursor.key()) != 8:
            raise CorruptionError(f"of the subscribers under {head.hex()} {count} further rows should be there")
        yield cursor.here, cursor.value()
        found = cursor.next()


def all_rows(txn: RaxTransaction, head: bytes, value: bytes | None) -> list[Row]:
    """All subscribers of the pattern with this head; ``value`` is None where the head is not there."""
    if value is None:
        return []
    further, rows = decode_row(head, value)
    for key, more in further_rows(txn, head, further):
        rows += decode_row(key, more)[1]
    return rows


class Members:
    """The rows of one pattern, for a change. ``head`` is the key of its first row."""

    __slots__ = ("_further", "_head", "_txn")

    def __init__(self, txn: WriteTransaction, head: bytes) -> None:
        self._txn = txn
        self._head = head
        value = txn.get(head)
        self._further: int | None = None if value is None else unseal(head, value)[0]  # None: there is no head

    def add(self, rows: list[Row]) -> bool:
        """Add subscribers whose IDs ascend and exceed all that are there. Whether they are the first."""
        if self._further is None:
            self._replace([self._head], rows)
            return True
        last = self._floor((1 << 64) - 1)
        old = self._rows(last)
        if len(encode_row(last, 0, old + rows[: CAPACITY - len(old)])) <= MAX_VALUE:
            self._replace([last], old + rows)
        else:
            self._replace([], rows)  # what is full stays as it is
        return False

    def remove(self, ids: Iterable[int]) -> tuple[list[Row], bool]:
        """Remove those of the subscribers that are there; they, and whether the pattern has none left."""
        gone: list[Row] = []
        wanted = sorted(set(ids))
        while wanted and self._further is not None:
            key = self._floor(wanted[0])
            rows = self._rows(key)
            end = bisect_right(wanted, max(wanted[0], rows[-1].id if rows else 0))
            here = set(wanted[:end])
            del wanted[:end]
            remaining = [row for row in rows if row.id not in here]
            if len(remaining) < len(rows):
                gone += [row for row in rows if row.id in here]
                self._shrink(key, remaining)
        return gone, self._further is None

    def change(self, number: int, new: Callable[[Row], Row]) -> bool:
        """Replace one subscriber by what ``new`` makes of it; False if it is not there."""
        if self._further is None:
            return False
        key = self._floor(number)
        rows = self._rows(key)
        if not any(row.id == number for row in rows):
            return False
        self._replace([key], [new(row) if row.id == number else row for row in rows])
        return True

    # -- rows ---------------------------------------------------------------------------

    def _rows(self, key: bytes) -> list[Row]:
        value = self._txn.get(key)
        if value is None:
            raise CorruptionError(f"the row {key.hex()} of subscribers is missing")
        return decode_row(key, value)[1]

    def _floor(self, number: int) -> bytes:
        """The key of the row that holds this ID, if any does. The head is there."""
        if not self._further:
            return self._head
        cursor = cursor_over(self._txn, self._head)
        if not cursor.seek("<=", number.to_bytes(8, "big")):
            raise CorruptionError(f"the subscribers under {self._head.hex()} have lost their first row")
        return cursor.here

    def _shrink(self, key: bytes, rows: list[Row]) -> None:
        """Store what is left of a row, joined to a neighbour if that leaves room for as many again."""
        keys = [key]
        if self._further and len(rows) * 4 <= CAPACITY:
            if key == self._head:
                other = next(further_rows(self._txn, key, self._further))[0]
                keys, both = [key, other], rows + self._rows(other)
            else:
                other = self._floor(int.from_bytes(key[-8:], "big") - 1)
                keys, both = [other, key], self._rows(other) + rows
            if len(both) > len(rows) > 0 and (
                len(both) * 2 > CAPACITY or len(encode_row(key, 0, both)) * 2 > MAX_VALUE
            ):
                keys = [key]
            else:
                rows = both
        self._replace(keys, rows)

    def _replace(self, keys: list[bytes], rows: list[Row]) -> None:
        """Store subscribers in place of rows that stand side by side, cut to size."""
        head = self._head
        pieces = [rows[at : at + CAPACITY] for at in range(0, len(rows), CAPACITY)]
        made: dict[bytes, list[Row]] = {}
        while pieces:
            piece = pieces.pop(0)
            if len(piece) > 1 and len(encode_row(head, 0, piece)) > MAX_VALUE:
                half = len(piece) // 2
                pieces[:0] = [piece[:half], piece[half:]]
            else:
                made[head + piece[0].id.to_bytes(8, "big") if made or not keys else keys[0]] = piece
        if head in keys:
            made.setdefault(head, [])  # it stays as long as there is another row
        further = (self._further or 0) + len(made) - len(keys)
        if head not in made and further != self._further:
            made[head] = self._rows(head)
        self._further = further
        for key in keys:
            if key not in made:
                self._txn.delete(key)
        for key, piece in made.items():
            if piece or further:
                self._txn.put(key, encode_row(key, further if key == head else 0, piece))
            else:
                self._txn.delete(key)
                self._further = None


# -- the index' own record ----------------------------------------------------------------


@dataclass(slots=True)
class IndexState:
    """The index's own record: its generation and exact counts."""

    generation: int = 0
    next_id: int = 1
    plain: int = 0  # plain subscriptions
    members: int = 0  # members of queue groups
    literals: int = 0  # different subjects without a wildcard
    wildcards: int = 0  # different patterns with one
    shape_tokens: int = 0

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
        txn.warm.pop(STAMP, None)
        txn.put(STATE_KEY, seal(STATE_KEY, [
            self.generation, self.next_id, self.plain, self.members, self.literals, self.wildcards, self.shape_tokens,
            os.urandom(8),
        ]))


def state_of(txn: RaxTransaction) -> IndexState:
    """The index's own record; generation 0 before the first subscription."""
    value = txn.get(STATE_KEY)
    return IndexState() if value is None else IndexState(*unseal(STATE_KEY, value)[:7])


# -- changing ---------------------------------------------------------------------------


def insert_many(txn: WriteTransaction, subscriptions: Sequence[Subscription]) -> list[int]:
    """Store subscriptions, all or none; their IDs, in the same order.

    A subscription without a name is a new one, even if equal to another. One whose durable name
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
    records = [(row_key(subscription.id), encode(subscription)) for subscription in new]
    for pattern, group in groups:
        wild = subjects.has_wildcard(pattern)
        rows = [Row(each.id, each.kind, each.queue, each.weight) for each in group]
        if Members(txn, head_of(pattern)).add(rows):
            state.count_pattern(wild, 1)
        state.count(rows, 1)
    for key, patterns_of_it in shapes.items():
        txn.put(key, seal(key, [patterns_of_it]))
    for key, value in sorted(records):
        txn.put(key, value)
    for subscription in new:
        for key in _references(subscription):
            txn.put(key, seal(key, [subscription.id]))
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
        ids = [subscription.id for subscription in group]
        rows, left_empty = Members(txn, head_of(pattern)).remove(ids)
        if len(rows) != len(ids):
            raise CorruptionError(f"subscriptions to {subjects.shown(pattern)} are not among its subscribers")
        state.count(rows, -1)
        if left_empty:
            state.count_pattern(wild, -1)
            if wild:
                _drop_shape(txn, pattern, state)
    for subscription in gone:
        txn.delete(row_key(subscription.id))
        for key in _references(subscription):
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
    for subscription in made:
        if subscription.name is not None:
            known = named.get(subscription.name) or by_name(txn, subscription.name)
            if known is not None:
                if (known.subject, known.kind, known.queue, known.owner) != (
                    subscription.subject, subscription.kind, subscription.queue, subscription.owner
                ):
                    raise SubscriptionExists(
                        f"the durable name {subjects.shown(subscription.name)} belongs to a subscription to "
                        f"{subjects.shown(known.subject)} (ID {known.id}), and this one differs in subject, kind, "
                        "queue or owner; choose another name, or remove that one first"
                    )
                ids.append(known.id)
                continue
        subscription = Subscription(*subscription[:8], next_id + len(new))
        if subscription.name is not None:
            named[subscription.name] = subscription
        ids.append(subscription.id)
        new.append(subscription)
    return ids, new


def _new_shapes(txn: WriteTransaction, wanted: Iterable[bytes], state: IndexState) -> dict[bytes, int]:
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


def _drop_shape(txn: WriteTransaction, pattern: bytes, state: IndexState) -> None:
    key = _SHAPES + subjects.shape(pattern)
    remaining = _patterns_of(txn, key) - 1
    if remaining > 0:
        txn.put(key, seal(key, [remaining]))
    else:
        txn.delete(key)
        state.shape_tokens -= len(key) - len(_SHAPES)


def _patterns_of(txn: RaxTransaction, key: bytes) -> int:
    value = txn.get(key)
    return 0 if value is None else int(unseal(key, value)[0])


def _references(subscription: Subscription) -> list[bytes]:
    """The keys that lead to a subscription, beside its pattern's."""
    number = subscription.id.to_bytes(8, "big")
    keys = []
    if subscription.owner:
        keys.append(_BY_OWNER + sized(subscription.owner) + number)
    if subscription.queue is not None:
        keys.append(_BY_QUEUE + sized(subscription.queue) + number)
    if subscription.name is not None:
        keys.append(_BY_NAME + subscription.name)
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
