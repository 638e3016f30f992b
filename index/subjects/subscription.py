"""A subscription: its subject, its owner, and how its messages are delivered.

    row of kind 11   [subject, kind, owner, queue, weight, name, options, created]

    id       given by the index, ascending, never used again
    subject  a literal or a pattern
    kind     LIVE, DURABLE or BINDING: the index keeps them apart, publishing interprets them
    owner    a session, a connection: one call removes all of an owner
    queue    the group whose members share the messages, None for a plain subscription
    weight   how large this member's share of its group's messages is
    name     a durable subscription's name, unique in the store
    options  data for delivery; the index only stores them
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from ...storage import clocks
from ...storage.errors import CorruptionError, InvalidArgument, InvalidName
from ...storage.figures import Figures
from ...storage.format.keys import SUBSCRIPTION, family
from ...storage.format.records import seal, unseal
from ...stream.node.arguments import Text, text_of
from ...stream.node.entry import UNDECODABLE
from ...stream.node.stream_id import time_at
from . import subject as subjects

LIVE = 1
DURABLE = 2
BINDING = 3
KINDS = (LIVE, DURABLE, BINDING)

MAX_NAME = 255  # of owners, queues, durable names, routes and accounts: their size is one byte
MAX_WEIGHT = 0xFFFF
STREAM_OPTION = "stream"  # where the messages of a binding or a durable subscription are appended

ROWS = family(0, SUBSCRIPTION)

_NO_OPTIONS: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class SubscriptionInfo(Figures):
    """A subscription as users get it. ``owner``, ``queue`` and ``name`` are text in a store of text."""

    id: int  # never used again
    subject: str
    kind: int  # 1 live, 2 durable, 3 a binding
    owner: Text
    queue: Text | None
    weight: int
    name: Text | None
    options: dict[str, object]
    created: datetime


class Subscription(NamedTuple):
    """One subscription, as inserted and as stored. Make it with Subscription.of()."""

    subject: bytes
    kind: int = LIVE
    owner: bytes = b""
    queue: bytes | None = None
    weight: int = 1
    name: bytes | None = None
    options: Mapping[str, Any] = _NO_OPTIONS
    created_ms: int = 0
    id: int = 0  # 0 until the index has given one

    @classmethod
    def of(cls, subject: str | bytes, *, kind: int = LIVE, owner: str | bytes = b"", queue: str | bytes | None = None,
           weight: int = 1, name: str | bytes | None = None, options: Mapping[str, Any] | None = None) -> Subscription:
        """A subscription that may be inserted, created now.

        SubjectError for a subject that cannot be stored; InvalidName for an owner, queue or name
        that is empty where given (an owner may be), of another type, or of more than 255 bytes;
        InvalidArgument for an unknown kind or a weight that is not a whole number from 1 to 65,535.
        Weight 0 is refused: remove the subscription instead.
        """
        return checked(cls(
            subjects.raw_subject(subject), kind, owner, queue, weight, name,  # type: ignore[arg-type]
            {} if options is None else options,
        ))

    def info(self, encoding: str | None) -> SubscriptionInfo:
        """The same as users get it, with text where there is an encoding."""
        queue, name, options = self.queue, self.name, dict(self.options)
        stream = options.get(STREAM_OPTION)
        if isinstance(stream, bytes):
            options[STREAM_OPTION] = text_of(stream, encoding)
        return SubscriptionInfo(
            self.id, self.subject.decode("utf-8", UNDECODABLE), self.kind, text_of(self.owner, encoding),
            None if queue is None else text_of(queue, encoding), self.weight,
            None if name is None else text_of(name, encoding), options, time_at(self.created_ms),
        )


def name_bytes(name: str | bytes, what: str) -> bytes:
    """An owner's, queue's, route's name: 1 to 255 bytes of any kind. InvalidName if not."""
    if isinstance(name, str):
        try:
            name = name.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise InvalidName(f"the {what} {name!r} is not Unicode text: {error.reason}") from None
    if not isinstance(name, bytes):
        raise InvalidName(f"the {what} must be str or bytes, not {type(name).__name__}")
    if not 1 <= len(name) <= MAX_NAME:
        raise InvalidName(f"the {what} {name[:20]!r} has {len(name)} bytes; 1 to {MAX_NAME} are allowed")
    return name


def sized(name: bytes) -> bytes:
    """A name as written in a key that goes on behind it."""
    return bytes([len(name)]) + name


def checked_weight(weight: int) -> int:
    """The weight itself. InvalidArgument unless it is a whole number from 1 to 65,535."""
    if type(weight) is not int or not 1 <= weight <= MAX_WEIGHT:
        raise InvalidArgument(
            f"weight={weight!r} must be a whole number from 1 to {MAX_WEIGHT}; to get nothing, remove the subscription"
        )
    return weight


def checked(given: Subscription) -> Subscription:
    """The one given with all names as bytes, and created now if it does not say; without an ID.

    Raises what Subscription.of() raises, and InvalidArgument for what is not a subscription.
    """
    if not isinstance(given, Subscription):
        raise InvalidArgument(f"{given!r:.60} is not a subscription; make one with Subscription.of()")
    if not isinstance(given.options, Mapping):
        raise InvalidArgument(f"options={given.options!r:.60} must be a mapping of names to values")
    pattern = subjects.pattern(given.subject)
    if type(given.kind) is not int or given.kind not in KINDS:  # True and 1.0 would be stored as what they are
        raise InvalidArgument(f"kind={given.kind!r} is unknown; it is LIVE (1), DURABLE (2) or BINDING (3)")
    return Subscription(
        pattern, given.kind, b"" if given.owner in (b"", "") else name_bytes(given.owner, "owner"),
        None if given.queue is None else name_bytes(given.queue, "queue"), checked_weight(given.weight),
        None if given.name is None else name_bytes(given.name, "durable name"), dict(given.options),
        given.created_ms or clocks.now_ms(),
    )


def row_key(number: int) -> bytes:
    """The key of the subscription with that ID."""
    return ROWS + number.to_bytes(8, "big")


def encode(subscription: Subscription) -> bytes:
    """The record to store under the subscription's row_key(). InvalidArgument for options of other types."""
    try:
        return seal(row_key(subscription.id), subscription[:-1])
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"the options {subscription.options!r:.200} cannot be stored: {error}") from None


def decode(key: bytes, value: bytes) -> Subscription:
    """The subscription stored under a row_key(). CorruptionError if it is damaged."""
    row = unseal(key, value)
    if len(row) != 8:
        raise CorruptionError(f"the subscription under key {key.hex()} has {len(row)} fields, not 8")
    return Subscription._make([*row, int.from_bytes(key[-8:], "big")])
