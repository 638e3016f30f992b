"""Bindings: which subjects lead to which streams, until they are removed.

    store.bind("orders.>", stream="orders")      a record in the subject index, of kind BINDING
    store.publish("orders.eu.new", {…})          appends to "orders", in the publish's own commit

A binding names its stream; the stream need not exist, and the first message creates it. A stream
that is deleted comes again with the next message, and one that is renamed leaves its bindings to
the old name: unbind it, too.

The owner of a binding's record is the stream (by its hash), and its name is made of stream and
pattern: so the bindings of a stream are found at once, and the same one twice is one.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage.commit.write_transaction import WriteTransaction
from ...storage.format.keys import sha256
from ...storage.trees.rax import RaxTransaction
from ...stream.node.entry import UNDECODABLE
from ...stream.node.names import Text, text_of
from ..subjects import subject as subjects
from ..subjects import sublist
from ..subjects.subscription import BINDING, Subscription

STREAM_OPTION = "stream"  # of a binding and a durable subscription: where messages are appended
_OWNER = b"\0stream "


class Binding(NamedTuple):
    """A binding as store.bindings() returns it."""

    id: int
    subject: str
    stream: Text
    created_ms: int

    @classmethod
    def of(cls, record: Subscription, encoding: str | None) -> Binding:
        """The binding of a record."""
        subject = record.subject.decode("utf-8", UNDECODABLE)
        return cls(record.id, subject, text_of(record.options[STREAM_OPTION], encoding), record.created_ms)


def subscription(subject: Text, stream: bytes) -> Subscription:
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


def bindings(txn: RaxTransaction, stream: bytes | None) -> list[Subscription]:
    """The bindings that lead to a stream, or (None) all, by age. For all, every subscription is read."""
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
