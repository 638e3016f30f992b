"""Live subscriptions to subjects: messages published while the subscription is open, at most once.

    with store.subscribe("orders.*.new") as orders:
        for message in orders:
            message.subject, message.fields

A message is lost to a subscription if its process dies, if its queue is full when it comes
(``dropped`` counts those), or if it left the ring before this process could look
(``missed_at_most``). Where every message must arrive, there is subscribe_durable()
(durable_subscription.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

from ...storage.errors import TransactionError
from ...storage.handles import made_by_a_call
from ...storage.log.transaction import WriteTransaction
from ...stream.node.arguments import Text, text_of
from ...stream.node.entry import UNDECODABLE, Entry
from ...stream.node.stream_id import StreamID
from ..subjects import sublist
from ..subjects.subscription import Subscription, row_key
from .dispatcher import Dispatcher
from .inbox import LiveInbox, end
from .leases import owner_bytes
from .ring import LiveMessage

DEFAULT_LIMIT = 65_536  # messages that wait in a subscription


class Message:
    """A published message: ``message.subject``, ``message.fields``, ``message.pairs``.

    A message of a durable subscription also has an ``id`` in its stream and the number of its
    ``deliveries``, and needs an ack(). All matching live subscriptions of a store get the same object:
    its ``ids`` are {stream: ID} of its entries in bound streams, from which follow() and range() can continue,
    and its ``id`` is the first of these, or None.
    """

    __slots__ = ("_ack", "_pairs", "deliveries", "id", "ids", "subject")

    def __init__(self, subject: str | None, pairs: list[tuple[Text, Text]], id: StreamID | None = None,
                 deliveries: int = 0, ack: Callable[[StreamID], int] | None = None,
                 ids: dict[Text, StreamID] | None = None) -> None:
        self.subject: str | None = subject
        self._pairs = pairs
        self.ids: dict[Text, StreamID] = {} if ids is None else ids
        self.id: StreamID | None = next(iter(self.ids.values()), id)
        self.deliveries: int = deliveries
        self._ack = ack

    @property
    def fields(self) -> dict[Text, Text]:
        """The fields as a new dict. If a name occurs twice, its last value counts."""
        return dict(self._pairs)

    @property
    def pairs(self) -> list[tuple[Text, Text]]:
        """The fields' names and values in their order, as a new list."""
        return list(self._pairs)

    def ack(self) -> bool:
        """Acknowledge the message, so that it is never delivered again; False if it was acknowledged before.

        Durable when it returns. TransactionError for a live message, which is never delivered twice anyway.
        """
        if self._ack is None or self.id is None:
            raise TransactionError("a live message is delivered at most once and takes no ack; one of "
                                   "store.subscribe_durable() does")
        return self._ack(self.id) == 1

    def to_dict(self) -> dict[str, object]:
        """``{"subject": …, "fields": {…}}``, with ``id`` and ``deliveries`` where there are; see Entry.to_dict()."""
        whole: dict[str, object] = {"subject": self.subject, "fields": Entry(0, 0, self._pairs).to_dict()["fields"]}
        if self.id is not None:
            whole |= {"id": str(self.id)} | ({"deliveries": self.deliveries} if self.deliveries else {})
        return whole

    def __repr__(self) -> str:
        place = "" if self.id is None else f", id={self.id}"
        return f"Message({self.subject!r}, {self.fields!r}{place})"


class LiveSubscription(LiveInbox[Message]):
    """A live subscription. Made by store.subscribe(); iterate over it, or call get().

    ``subject`` is the pattern; ``queue`` the group whose members share the messages, or None; ``id`` its ID in
    the store, never used again.
    """

    @made_by_a_call
    def __init__(self, live: Dispatcher, wanted: Subscription, encoding: str | None, max_queued: int,
                 callback: Callable[[Message], object] | None) -> None:
        super().__init__(callback, live.callbacks, max_queued, partial(_formed, encoding))
        self._live = live
        self.id = 0  # until the index has given one
        self.subject: str = wanted.subject.decode("utf-8", UNDECODABLE)
        self.queue: Text | None = None if wanted.queue is None else text_of(wanted.queue, encoding)

    def close(self) -> None:
        """End the subscription and drop the messages in its queue. One commit: for many see LiveSubscriptions."""
        LiveSubscriptions([self]).close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self)} waiting"
        return f"<raxlog subscription {self.id} to {self.subject!r}, live, {state}>"


class LiveSubscriptions(list[LiveSubscription]):
    """A list of live subscriptions that end together, from store.subscribe_many() or made of any others."""

    def close(self) -> None:
        """End the subscriptions still open, in one commit per store. Messages left in their queues are dropped."""
        remaining = [subscription for subscription in self if not subscription.closed]
        for live in {subscription._live for subscription in remaining}:
            gone = [subscription for subscription in remaining if subscription._live is live]
            numbers = [subscription.id for subscription in gone]
            live.unsubscribe(lambda txn, _, numbers=numbers: _remove(txn, numbers))  # type: ignore[misc]
            for subscription in gone:
                live.remove_subject(subscription.id, subscription)
                live.release(subscription)
                end(subscription)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def subscribe(live: Dispatcher, wanted: list[Subscription], encoding: str | None, max_queued: int,
              callback: Callable[[Message], object] | None) -> LiveSubscriptions:
    """Subscribe to all of these in one commit, or to none; their owner is this process."""
    made = LiveSubscriptions([LiveSubscription(live, pattern, encoding, max_queued, callback) for pattern in wanted])

    def change(txn: WriteTransaction, owner: int, following: int) -> None:
        numbers = sublist.insert_many(txn, [pattern._replace(owner=owner_bytes(owner)) for pattern in wanted])
        for subscription, number in zip(made, numbers, strict=True):
            live.remove_subject(subscription.id, subscription)  # of an undone attempt
            subscription.id = number
            live.add_subject(number, subscription, following)

    try:
        live.subscribe(made, change)
    except BaseException:
        for subscription in made:
            live.remove_subject(subscription.id, subscription)
            live.release(subscription)
        raise
    return made


def _formed(encoding: str | None, message: LiveMessage, _: bytes | None) -> Message:
    """The message as users get it."""
    flat = message.payload
    texts: Sequence[Text] = flat if encoding is None else [raw.decode(encoding, UNDECODABLE) for raw in flat]
    ids = {name if encoding is None else text_of(name, encoding): StreamID.from_bytes(sid)
           for name, sid in zip(message.ids[::2], message.ids[1::2], strict=True)}
    pairs = list(zip(texts[::2], texts[1::2], strict=True))
    return Message(message.name.decode("utf-8", UNDECODABLE), pairs, ids=ids)


def _remove(txn: WriteTransaction, numbers: list[int]) -> None:
    """Remove the subscriptions that are still in the index."""
    sublist.remove_many(txn, [number for number in numbers if txn.get(row_key(number)) is not None])
