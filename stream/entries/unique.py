"""The unique names of a stream, as records: each says which entry has the name.

    n  2a  SHA-256 of the name (16 bytes)   ->  [name, until, ms, seq]             an entry
                                                [name, until, due, number, 1]      a deferred one (deferred.py)

    until   "done", "delivered", or the time in ms up to which the entry keeps its name; how long it does
            stands behind the 0 or 1 then: [name, 1790000000000, ms, seq, 0, 60000]

An entry of a unique name begins with the field ``$entry``, a JSON object with the name and ``until`` as it was given.
Whether it still keeps the name is found when that matters (group/unique.py), so that nothing by which an entry ends has
to know of names: not an acknowledgement by any door, not a deletion or a trim, not a group that is destroyed. What
remains are rows of names that are free again. Names lie in the order of their hashes, so a new one comes to a random
place; it looks at two rows there, and removes those that are of no more use. That keeps rows at about twice as many as
names that are kept, however many have been.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal, NamedTuple

from ...storage.errors import InvalidArgument, InvalidFields, InvalidName
from ...storage.format import keys, records
from ...storage.log.transaction import WriteTransaction
from ...storage.trees.rax import Rax
from ..node.arguments import duration_ms, stored_bytes
from ..node.entry import OWN_FIELD, SUBJECT_FIELD, UNDECODABLE
from ..node.stream_id import StreamID
from .idempotent import name_digest

UNTIL = DONE, DELIVERED = "done", "delivered"
Until = Literal["done", "delivered"] | float
OnConflict = Literal["skip", "replace", "raise"]

MAX_UNIQUE = 1024  # bytes
ON_CONFLICT = ("skip", "replace", "raise")
_LOOKED_AT = 2


class Appended(StreamID):
    """The ID of the entry that has a unique name, as append(unique=…) returns it.

    ``is_new``: whether that call has appended the entry; False where another one keeps the name. Where that is a
    deferred one, which has no ID yet, ``token`` is its token, see Deferred, and this is 0-0, the ID of no entry.
    """

    is_new: bool
    token: str | None


def appended(ms: int, seq: int, *, is_new: bool = False, token: str | None = None) -> Appended:
    """What append(unique=…) and defer(unique=…) return."""
    sid = Appended(ms, seq)
    sid.is_new, sid.token = is_new, token
    return sid


class Wish(NamedTuple):
    """What an append asks for."""

    name: bytes
    until: str | int  # done, delivered, or so many ms from now
    on_conflict: str

    def marked(self, flat: list[bytes]) -> list[bytes]:
        """The entry's fields, with the one that says its name. InvalidFields for one with a subject."""
        if flat[0] == SUBJECT_FIELD:
            raise InvalidFields("an entry with a subject, a first field $subject, takes no unique name: that would have"
                                " to be its first field")
        about: dict[str, str | float] = {"unique": self.name.decode("utf-8", UNDECODABLE)}
        if self.until != DONE:
            about["until"] = self.until if isinstance(self.until, str) else self.until / 1000
        return [OWN_FIELD, json.dumps(about).encode(), *flat]

    def holder(self, ms: int, seq: int, now: int, is_deferred: int = 0) -> Holder:
        """The row of its name for an entry that is appended or deferred now."""
        if isinstance(self.until, str):
            return Holder(self.name, self.until, ms, seq, is_deferred)
        return Holder(self.name, now + self.until, ms, seq, is_deferred, self.until)


class Holder(NamedTuple):
    """Which entry has a name, and until when: its ID, or when it is due and its number among the deferred."""

    name: bytes
    until: str | int
    ms: int
    seq: int
    is_deferred: int = 0
    length: int = 0  # ms up to ``until``, where that is a time


def parse_wish(unique: object, until: object, on_conflict: object) -> Wish | None:
    """Check the arguments of append() and defer(). InvalidName, InvalidArgument."""
    if unique is None:
        if until != DONE or on_conflict != "skip":
            raise InvalidArgument("until and on_conflict need a unique name, unique=, that they are about")
        return None
    name = stored_bytes(unique, "unique name")
    if not 0 < len(name) <= MAX_UNIQUE:
        raise InvalidName(f"the unique name {name[:20]!r} has {len(name)} bytes, it may have 1 to {MAX_UNIQUE}. Take a "
                          "digest of what is longer")
    if on_conflict not in ON_CONFLICT:
        raise InvalidArgument(f"on_conflict={on_conflict!r:.60} is unknown; it is one of {', '.join(ON_CONFLICT)}")
    if until in UNTIL:
        return Wish(name, str(until), str(on_conflict))
    if isinstance(until, str | bytes):
        raise InvalidArgument(f"until={until!r:.60} is unknown; it is done, delivered, or a number of seconds")
    ms = duration_ms("until", until)
    if not ms:
        raise InvalidArgument("until=0: a name that is kept for no time is not unique; give seconds, or leave it out")
    return Wish(name, ms, str(on_conflict))


def wish_of(flat: list[bytes]) -> Wish | None:
    """The name that an entry says it has; None for entries without one, and where that is malformed."""
    if flat[0] != OWN_FIELD:
        return None
    try:
        about = json.loads(flat[1])
        return parse_wish(about["unique"], about.get("until", DONE), "skip")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def holder(txn: WriteTransaction, number: int, name: bytes) -> Holder | None:
    """The row of a name; None if there is none."""
    key = _key(number, name)
    value = txn.get(key)
    return None if value is None else Holder(*records.unseal(key, value))


def put(txn: WriteTransaction, number: int, kept: Holder) -> None:
    """Write the row of a name."""
    key = _key(number, kept.name)
    txn.put(key, records.seal(key, list(kept if kept.length else kept[:5] if kept.is_deferred else kept[:4])))


def released(txn: WriteTransaction, number: int, name: bytes, place: tuple[int, int], sid: tuple[int, int]) -> None:
    """A deferred entry has been appended: it keeps its name, if it had it."""
    kept = holder(txn, number, name)
    if kept is not None and kept.is_deferred and (kept.ms, kept.seq) == place:
        put(txn, number, kept._replace(ms=sid[0], seq=sid[1], is_deferred=0))


def beside(txn: WriteTransaction, number: int, name: bytes) -> Iterator[tuple[bytes, Holder]]:
    """The keys and rows of the names that come next to this one. Each may be deleted as it comes."""
    start = _key(number, name)
    prefix, at = start[:-16], start[-16:]
    for _ in range(_LOOKED_AT):
        place = Rax(txn, prefix).iterator()
        if not (place.seek(">", at) or place.seek("^")) or place.here == start:
            return
        key, at = place.here, place.key()
        yield key, Holder(*records.unseal(key, place.value()))


def rows(txn: WriteTransaction, number: int, after: bytes, most: int) -> list[tuple[bytes, Holder]]:
    """So many rows behind the hash ``after``: their keys, and what they hold."""
    prefix = keys.family(number, keys.UNIQUE)
    place = Rax(txn, prefix).iterator()
    found: list[tuple[bytes, Holder]] = []
    has_row = place.seek(">", after)
    while has_row and len(found) < most:
        key, value = place.item()
        found.append((prefix + key, Holder(*records.unseal(prefix + key, value))))
        has_row = place.next()
    return found


def _key(number: int, name: bytes) -> bytes:
    return keys.family(number, keys.UNIQUE) + name_digest(name)
