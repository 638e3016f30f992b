"""Checks of publishing's records: channels, globs, owners, the ring, live and durable subscriptions, bindings.

    every row of a channel or glob   <->  a row of its owner, which is recorded
    the counts of globs               =   what the rows add up to
    the ring                              numbers without a gap, sizes as counted
    every live subscription           ->  an owner that is recorded
    every binding and durable one     ->  a stream's name; the durable one's stream and group are there

Damage is reported, not raised. Leftovers of dead processes are no damage: the next process removes them.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...storage.errors import RaxlogError
from ...storage.format.records import unseal
from ...storage.trees.rax import RaxTransaction, family_rows
from ...stream.entries import header as headers
from ...stream.group.state import find_group
from ..subjects import subject as subjects
from ..subjects import sublist
from ..subjects.subscription import DURABLE, LIVE, STREAM_OPTION
from . import channel_index, durable_subscription, ring
from .channel_index import COUNTS, GLOB, OWNER_BYTES, OWNERS, ROWS
from .leases import owner_of

_KIND_OF = {b"c": channel_index.CHANNEL, b"s": channel_index.SHARD, b"p": GLOB, b"q": GLOB}


def problems(txn: RaxTransaction) -> Iterator[str]:
    """Sentences, one for each thing that is wrong; none if all is well. ``raxlog check`` calls it."""
    owners: set[int] = set()
    mirrors: set[bytes] = set()
    for key, _ in family_rows(txn, OWNERS):
        rest = key[len(OWNERS):]
        if len(rest) == OWNER_BYTES:
            owners.add(int.from_bytes(rest, "big"))
        else:
            mirrors.add(rest[OWNER_BYTES:] + rest[:OWNER_BYTES])
    yield from _channels(txn, owners, mirrors)
    yield from _ring(txn)
    yield from _subscriptions(txn, owners)


def _channels(txn: RaxTransaction, owners: set[int], mirrors: set[bytes]) -> Iterator[str]:
    globs: set[bytes] = set()
    subscribers = 0
    for key, value in family_rows(txn, ROWS):
        if key == COUNTS:
            continue
        rest = key[len(ROWS):]
        owner = int.from_bytes(rest[-OWNER_BYTES:], "big")
        try:
            name, count = unseal(key, value)
            kind = _KIND_OF[rest[:1]]
            what = f"{'glob' if kind == GLOB else 'channel'} {subjects.shown(name)} of owner {owner}"
            if channel_index.row_of(kind, name) != rest[:-OWNER_BYTES]:
                yield f"{what} is stored under the key of another, {key.hex()}"
            if count < 1:
                yield f"{what} counts {count} subscribers"
        except (RaxlogError, KeyError, TypeError, ValueError) as error:
            yield f"the row {key.hex()} of a channel cannot be read: {error}"
            continue
        if kind == GLOB:
            globs.add(name)
            subscribers += count
        if rest not in mirrors:
            yield f"{what} is not among the rows of its owner"
        mirrors.discard(rest)
        if owner not in owners:
            yield f"{what}: the owner is not recorded"
    for rest in sorted(mirrors):
        yield f"an owner has the row {rest.hex()} of a channel, which is not there"
    stated = channel_index.numpat(txn)
    if stated != (len(globs), subscribers):
        yield f"{len(globs)} globs with {subscribers} subscribers are there, {stated[0]} with {stated[1]} are counted"


def _ring(txn: RaxTransaction) -> Iterator[str]:
    following, first = ring.position(txn)
    number = first
    size = 0
    for key, value in family_rows(txn, ring.ROWS):
        if key == ring.STATE_KEY:
            stated = unseal(key, value)[2]
            if stated != size:
                yield f"the messages in the ring have {size} bytes, {stated} are counted"
            continue
        at = int.from_bytes(key[len(ring.ROWS):], "big")
        if at != number:
            yield f"message {at} is in the ring where {number} should be"
        number = at + 1
        size += len(value)
        try:
            ring.message(key, value)
        except (RaxlogError, TypeError) as error:
            yield f"message {at} in the ring cannot be read: {error}"
    if number != following:
        yield f"the ring ends with message {number - 1}, {following - 1} should be the last"


def _subscriptions(txn: RaxTransaction, owners: set[int]) -> Iterator[str]:
    for record in sublist.all_subscriptions(txn):
        what = f"subscription {record.id} to {subjects.shown(record.subject)}"
        if record.kind == LIVE:
            owner = owner_of(record.owner)
            if owner is not None and owner not in owners:
                yield f"{what} is live, and its owner is not recorded"
        elif STREAM_OPTION in record.options:  # else it was inserted by way of store.subjects
            stream = record.options[STREAM_OPTION]
            if not isinstance(stream, bytes):
                yield f"{what} names no stream"
            elif record.kind == DURABLE:
                found = headers.find(txn, stream)
                if found is None or find_group(txn, found[0], durable_subscription.GROUP) is None:
                    yield f"{what} is durable, and its stream {subjects.shown(stream)} or the group in it is not there"
