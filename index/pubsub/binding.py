"""Bindings: which subjects lead to which streams, for good.

    store.bind("orders.>", stream="orders")      a record in the subject index, of kind BINDING
    store.publish("orders.eu.new", {…})          appends to "orders", in the publish's own commit

A binding names its stream; the stream need not exist, and the first message creates it. A stream
that is deleted comes again with the next message, and one that is renamed leaves its bindings to
the old name: unbind it, too.

Among the index' records a binding has the stream (by its hash) as its owner, and a name made of
stream and pattern: so the bindings of a stream are found at once, and the same one twice is one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...storage.commit.write_transaction import WriteTransaction
from ...storage.format.keys import sha256
from ...stream.node.entry import UNDECODABLE
from ...stream.node.names import text_of
from ..subjects import subject as subjects
from ..subjects import sublist
from ..subjects.subscription import BINDING, Subscription
from .targets import STREAM_OPTION

_OWNER = b"\0stream "


class Binding(NamedTuple):
    """A binding as store.bindings() tells of it."""

    id: int
    subject: str
    stream: Any
    created_ms: int


def subscription(subject: Any, stream: bytes) -> Subscription:
    """The record of a binding. SubjectError for a malformed pattern."""
    pattern = subjects.pattern(subject)
    digest = sha256(len(stream).to_bytes(2, "big") + stream + pattern)
    return Subscription.of(
        pattern, kind=BINDING, owner=_owner(stream), name=b"\0binding " + digest, options={STREAM_OPTION: stream}
    )


def _owner(stream: bytes) -> bytes:
    return _OWNER + sha256(stream)


def bind(txn: WriteTransaction, wanted: Subscription) -> Subscription:
    """Put a binding into the index, unless it is there; its record."""
    return sublist.get(txn, sublist.insert_many(txn, [wanted])[0])


def bindings(txn: Any, stream: bytes | None) -> list[Subscription]:
    """The bindings that lead to a stream, or (None) all, in the order they were made. For all: every subscription."""
    if stream is not None:
        return sublist.by_owner(txn, _owner(stream))
    return [one for one in sublist.all_subscriptions(txn) if one.kind == BINDING]


def unbind(txn: WriteTransaction, wanted: Subscription | None, stream: bytes) -> int:
    """Remove one binding of a stream, or all (``wanted`` None). How many there were."""
    if wanted is None:
        return len(sublist.remove_owner(txn, _owner(stream)))
    assert wanted.name is not None
    found = sublist.by_name(txn, wanted.name)
    return 0 if found is None else len(sublist.remove_many(txn, [found.id]))


def told(record: Subscription, encoding: str | None) -> Binding:
    """A record as users see it."""
    stream: bytes = record.options[STREAM_OPTION]
    subject = record.subject.decode("utf-8", UNDECODABLE)
    return Binding(record.id, subject, text_of(stream, encoding), record.created_ms)
