"""Live subscriptions to subjects: what is published while somebody listens, at most once.

    with store.subscribe("orders.*.new") as orders:
        for message in orders:
            message.subject, message.fields

A message is lost to a subscription if its process dies, if its queue is full when it comes
(``dropped`` tells how often), or if it left the ring before this process could look (``missed``).
What must arrive is subscribed to with ``durable=`` (durable.py).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from ..storage.errors import InvalidArgument, TransactionError
from ..storage.write_transaction import WriteTransaction
from ..stream.entry import UNDECODABLE
from ..stream.id import StreamID
from ..stream.names import text_of
from . import routes, sublist
from .inbox import Callbacks, Inbox
from .live import Listener, Live
from .ring import LiveMessage

DEFAULT_LIMIT = 65_536  # messages that wait in a subscription

M = TypeVar("M")


class Message:
    """What was published: ``message.subject``, ``message.fields``, ``message.pairs``.

    One of a durable subscription also has an ``id`` in its stream, tells in ``deliveries`` how
    often it has been delivered, and wants an ack(). Of a live one ``id`` is None.
    """

    __slots__ = ("_ack", "deliveries", "id", "pairs", "subject")

    def __init__(self, subject: Any, pairs: list[tuple[Any, Any]], id: StreamID | None = None, deliveries: int = 0,
                 ack: Callable[[StreamID], int] | None = None) -> None:
        self.subject = subject
        self.pairs = pairs
        self.id = id
        self.deliveries = deliveries
        self._ack = ack

    @property
    def fields(self) -> dict[Any, Any]:
        """The fields as a new dict. Of a name that occurs twice the last value counts."""
        return dict(self.pairs)

    def ack(self) -> bool:
        """Say that it has been dealt with, so that it never comes again; False if that was said before.

        Durable when it returns. TransactionError for a live message, which nobody waits to hear of.
        """
        if self._ack is None or self.id is None:
            raise TransactionError("a live message is delivered at most once and takes no ack; subscribe with durable=")
        return self._ack(self.id) == 1

    def __repr__(self) -> str:
        place = "" if self.id is None else f", id={self.id}"
        return f"Message({self.subject!r}, {self.fields!r}{place})"


class Queue(Inbox[M]):
    """An inbox that holds up to ``limit`` messages and drops what comes when it is full."""

    def __init__(self, callback: Callable[[M], object] | None, callbacks: Callbacks, limit: int) -> None:
        if type(limit) is not int or limit < 1:
            raise InvalidArgument(f"limit={limit!r} must be a whole number of messages >= 1")
        super().__init__(callback, callbacks)
        self._limit = limit
        self._waiting: deque[M] = deque()
        self._dropped = 0
        self._missed = 0

    @property
    def dropped(self) -> int:
        """Messages that came when the queue was full, and were thrown away."""
        return self._dropped

    @property
    def missed_at_most(self) -> int:
        """Messages that left the ring before this process looked; whose they were nobody knows."""
        return self._missed

    def __len__(self) -> int:
        """Messages that wait."""
        return len(self._waiting)

    def __bool__(self) -> bool:
        return True

    def _add(self, message: M) -> None:
        """Queue a message, unless there is no room."""
        if len(self._waiting) >= self._limit:
            self._dropped += 1
            return
        self._waiting.append(message)
        self.signal()

    def _take(self) -> M | None:
        try:
            return None if self._closed else self._waiting.popleft()
        except IndexError:
            return None

    def missed(self, count: int) -> None:
        """So many messages left the ring unread."""
        self._missed += count


class LiveSubscription(Queue[Message], Listener):
    """A live subscription. Made by store.subscribe(); taken from as inbox.py says.

    ``subject`` the pattern; ``queue`` the group whose members share the messages, or None.
    """

    def __init__(self, live: Live, subject: bytes, queue: bytes | None, weight: int, encoding: str | None, limit: int,
                 callback: Callable[[Message], object] | None) -> None:
        super().__init__(callback, live.callbacks, limit)
        self._live = live
        self._encoding = encoding
        self._number = 0
        self._closing = threading.Lock()
        self.subject = subject.decode("utf-8", UNDECODABLE)
        self.queue = None if queue is None else text_of(queue, encoding)
        routes.live_subscription(subject, 0, queue, weight)  # what is wrong with it is told before anything begins

        def change(txn: WriteTransaction, owner: int, following: int) -> None:
            live.remove_subject(self._number)  # of an attempt that came to nothing
            self._number = sublist.insert(txn, routes.live_subscription(subject, owner, queue, weight))
            live.add_subject(self._number, self, following)

        try:
            live.subscribe(self, change)
        except BaseException:
            live.remove_subject(self._number)
            live.release(self)
            raise

    @property
    def id(self) -> int:
        """The subscription's ID in the store: never used again."""
        return self._number

    def close(self) -> None:
        """End the subscription. What lies in its queue is dropped."""
        if self.closed:
            return  # in a forked child, too, where the lock may be held for ever
        with self._closing:
            if self._closed:
                return
            self._live.unsubscribe(lambda txn, _: routes.remove(txn, self._number))
            self._live.remove_subject(self._number)
        self._live.release(self)
        self.end()

    def hear(self, number: int, message: LiveMessage, glob: bytes | None) -> None:
        self._add(Message(*decoded(message.name, message.payload, self._encoding)))

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self)} waiting"
        return f"<raxlog subscription {self.id} to {self.subject!r}, live, {state}>"


def decoded(subject: bytes, flat: list[bytes], encoding: str | None) -> tuple[Any, list[tuple[Any, Any]]]:
    """A subject as text, and a flat row of names and values as pairs.

    Subjects are UTF-8 by rule, so they are always text; fields are bytes unless decoded.
    """
    texts: list[Any] = flat if encoding is None else [raw.decode(encoding, UNDECODABLE) for raw in flat]
    return subject.decode("utf-8", UNDECODABLE), list(zip(texts[::2], texts[1::2], strict=True))
