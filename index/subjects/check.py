"""Checks of the subject index: records, rows and counts compared with each other.

    every subscriber in a pattern's rows  ->  a subscription to that pattern, same kind, queue, weight
    every row by owner, queue, name       ->  a subscription that has it
    as many of each as subscriptions have ->  so none is missing; if one is, it is looked for
    shapes, counts, next ID               =   what the walk has counted

Damage is reported, not raised, and the walk goes on behind it where it can.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache

from ...storage.errors import CorruptionError, RaxlogError, UnsupportedFormat
from ...storage.format import keys
from ...storage.format.records import unseal
from ...storage.trees.rax import RaxTransaction, family_rows
from . import remote_interest
from . import subject as subjects
from .sublist import IndexState, all_rows, decode_row, head_of, state_of
from .subscription import KINDS, ROWS, Subscription, decode, row_key, sized


def problems(txn: RaxTransaction) -> Iterator[str]:
    """Sentences, one for each thing that is wrong with subscriptions or remote interest; none if all is well.

    About 17 µs a subscription. ``raxlog check`` calls it.
    """
    try:
        state = state_of(txn)
    except (CorruptionError, UnsupportedFormat, TypeError) as error:
        yield f"the subject index: its record of counts cannot be read: {error}"
        state = None
    yield from _local(txn, state)
    yield from _remote(txn)


class _Counted:
    """What the walk has counted."""

    def __init__(self) -> None:
        self.subscriptions = self.owned = self.queued = self.named = 0
        self.state = IndexState()  # what should be stated; its next ID is the least that may be
        self.shapes: Counter[bytes] = Counter()


def _local(txn: RaxTransaction, state: IndexState | None) -> Iterator[str]:
    tally = _Counted()
    for key, value in family_rows(txn, ROWS):
        one = _read(key, value)
        if isinstance(one, str):
            yield one
            continue
        tally.subscriptions += 1
        tally.state.next_id = max(tally.state.next_id, one.id + 1)
        tally.owned += bool(one.owner)
        tally.queued += one.queue is not None
        tally.named += one.name is not None
        if not subjects.is_valid(one.subject) or one.kind not in KINDS or one.weight < 1:
            yield f"subscription {one.id} has a subject, kind or weight that cannot have been stored"
    sound = True
    for kind in (keys.LITERAL, keys.WILDCARD):
        for what in _patterns(txn, keys.family(0, kind), kind == keys.WILDCARD, tally):
            sound = False
            yield what
    found = tally.state.plain + tally.state.members
    if found != tally.subscriptions:
        sound = False
        yield (
            f"{tally.subscriptions} subscriptions are stored, and {found} are among the subscribers of their patterns"
        )
    for what, kind, count, suffix_of in (
        ("owner", keys.SUBSCRIPTION_BY_OWNER, tally.owned, lambda row: _sized_id(row.owner, row.id)),
        ("queue", keys.SUBSCRIPTION_BY_QUEUE, tally.queued, lambda row: _sized_id(row.queue, row.id)),
        ("name", keys.SUBSCRIPTION_BY_NAME, tally.named, lambda row: row.name),
    ):
        yield from _references(txn, what, kind, count, suffix_of)
    if not sound:  # else each subscriber is another subscription, and there are as many of both
        yield from _lost(txn)
    yield from _shapes(txn, tally)
    tally.state.shape_tokens = sum(map(len, tally.shapes))
    if state is not None:
        yield from _state(state, tally.state)


def _state(state: IndexState, found: IndexState) -> Iterator[str]:
    for what, name in (
        ("plain subscriptions", "plain"), ("members of queues", "members"), ("literal subjects", "literals"),
        ("patterns", "wildcards"), ("tokens of shapes", "shape_tokens"),
    ):
        if getattr(state, name) != getattr(found, name):
            yield f"the subject index states {getattr(state, name)} {what}, and {getattr(found, name)} are there"
    if state.next_id < found.next_id:
        yield f"the subject index would give the ID {state.next_id} next, and {found.next_id - 1} is in use"
    if state.generation < (1 if state.next_id > 1 else 0):
        yield f"the subject index has the generation {state.generation}, and subscriptions have been made"


def _patterns(txn: RaxTransaction, prefix: bytes, wild: bool, tally: _Counted) -> Iterator[str]:
    """The rows of subscribers of one kind, pattern by pattern."""
    head, due, last = b"", 0, 0
    pattern = b""
    for key, value in family_rows(txn, prefix):
        end = key.find(b"\0\0", len(prefix))
        if end < 0 or len(key) not in (end + 2, end + 10):
            yield f"the key {key.hex()} of the subject index does not end where a pattern may"
            continue
        try:
            further, rows = decode_row(key, value)
        except (RaxlogError, ValueError, IndexError, TypeError) as error:
            yield f"the subscribers under {key.hex()} cannot be read: {error}"
            continue
        if len(key) == end + 2:
            if due:
                yield f"of the subscribers of {subjects.shown(pattern)} {due} rows are missing"
            head, due, last = key, further, 0
            pattern = subjects.from_key_form(key[len(prefix) : end + 1])
            if not subjects.is_valid(pattern) or subjects.has_wildcard(pattern) is not wild:
                yield f"{subjects.shown(pattern)} is among the {'patterns' if wild else 'literal subjects'}"
            tally.state.count_pattern(wild, 1)
            if wild:
                tally.shapes[subjects.shape(pattern)] += 1
            if not rows and not further:
                yield f"{subjects.shown(pattern)} is stored without subscribers"
        else:
            if key[: end + 2] != head:
                yield f"the first row of the subscribers under {key.hex()} is missing"
                continue
            due -= 1
            if due < 0 or not rows or int.from_bytes(key[-8:], "big") > rows[0].id or further:
                yield f"the row {key.hex()} of subscribers is not where it belongs"
            last = max(last, int.from_bytes(key[-8:], "big") - 1)
        tally.state.count(rows, 1)
        for row in rows:
            if row.id <= last:
                yield f"subscription {row.id} is not in order among the subscribers of {subjects.shown(pattern)}"
            last = row.id
            one = _lookup(txn, row.id)
            if one is None or (one.subject, one.kind, one.queue, one.weight) != (
                pattern, row.kind, row.queue, row.weight
            ):
                yield (
                    f"subscription {row.id} among the subscribers of {subjects.shown(pattern)} is "
                    + ("not stored" if one is None else "stored as another")
                )
    if due:
        yield f"of the subscribers of {subjects.shown(pattern)} {due} rows are missing"


def _references(txn: RaxTransaction, what: str, kind: int, expected: int,
                suffix_of: Callable[[Subscription], bytes | None]) -> Iterator[str]:
    """The rows by owner, queue or name, each of which must lead to a subscription that leads back."""
    prefix = keys.family(0, kind)
    found = 0
    for key, value in family_rows(txn, prefix):
        found += 1
        try:
            number = unseal(key, value)[0]
        except (RaxlogError, ValueError, IndexError) as error:
            yield f"the row {key.hex()} by {what} cannot be read: {error}"
            continue
        one = _lookup(txn, number)
        if one is None or suffix_of(one) != key[len(prefix) :]:
            yield f"the row {key.hex()} by {what} leads to subscription {number}, which does not lead back"
    if found != expected:
        yield f"{expected} subscriptions have a {what}, and {found} are found by it"


def _lost(txn: RaxTransaction) -> Iterator[str]:
    """Subscriptions that a match would miss. Looked for one pattern at a time, so cheaply."""

    @lru_cache(1000)
    def subscribers(head: bytes) -> frozenset[int]:
        return frozenset(row.id for row in all_rows(txn, head, txn.get(head)))

    for key, value in family_rows(txn, ROWS):
        one = _read(key, value)
        if isinstance(one, str) or not subjects.is_valid(one.subject):
            continue
        try:
            is_found = one.id in subscribers(head_of(one.subject))
        except (RaxlogError, ValueError, IndexError, TypeError):
            continue  # reported with the rows themselves
        if not is_found:
            yield f"subscription {one.id} to {subjects.shown(one.subject)} is not among its subscribers"


def _shapes(txn: RaxTransaction, tally: _Counted) -> Iterator[str]:
    prefix = keys.family(0, keys.SHAPE)
    stated: dict[bytes, int] = {}
    for key, value in family_rows(txn, prefix):
        try:
            stated[key[len(prefix) :]] = unseal(key, value)[0]
        except (RaxlogError, ValueError, IndexError) as error:
            yield f"the row of the shape {key[len(prefix) :]!r} cannot be read: {error}"
    for shape in sorted(stated.keys() | tally.shapes.keys()):
        if stated.get(shape, 0) != tally.shapes[shape]:
            yield f"{stated.get(shape, 0)} patterns are stated of the shape {shape!r}, {tally.shapes[shape]} are there"


def _remote(txn: RaxTransaction) -> Iterator[str]:
    rows = mirrors = 0
    for key, value in family_rows(txn, remote_interest.ROWS):
        rows += 1
        try:
            row = remote_interest.parsed(key, value)
        except (RaxlogError, ValueError, IndexError) as error:
            yield f"remote interest: {error}"
            continue
        if row.weight < 1 or not subjects.is_valid(row.subject):
            yield f"remote interest of route {row.route!r} in {row.subject!r:.80} cannot have been stored"
    for key, value in family_rows(txn, remote_interest.BY_ROUTE):
        mirrors += 1
        try:
            row, mirrored = remote_interest.parsed_mirror(key, value)
            other = txn.get(mirrored)
            same = other is not None and remote_interest.parsed(mirrored, other) == row
        except (RaxlogError, ValueError, IndexError) as error:
            yield f"remote interest: {error}"
            continue
        if not same:
            yield f"remote interest of route {row.route!r} in {row.subject!r:.80} differs in its two rows"
    try:
        stated = remote_interest.count(txn)
    except RaxlogError as error:
        yield f"remote interest: its count cannot be read: {error}"
    else:
        if not stated == rows == mirrors:
            yield f"remote interest states {stated} rows, and there are {rows} by account and {mirrors} by route"


def _read(key: bytes, value: bytes) -> Subscription | str:
    try:
        return decode(key, value)
    except (RaxlogError, ValueError, TypeError) as error:
        return f"the subscription under key {key.hex()} cannot be read: {error}"


def _lookup(txn: RaxTransaction, number: object) -> Subscription | None:
    if not isinstance(number, int) or not 0 <= number < 1 << 64:
        return None
    value = txn.get(row_key(number))
    one = None if value is None else _read(row_key(number), value)
    return one if isinstance(one, Subscription) else None


def _sized_id(name: bytes | None, number: int) -> bytes | None:
    return None if not name else sized(name) + number.to_bytes(8, "big")
