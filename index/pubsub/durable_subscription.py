"""Durable subscriptions: a name keeps its position while processes come and go; at least once.

    store.subscribe_durable("orders.>", "billing")

        subject index    orders.> ── durable "billing" ──> stream $durable.billing
        publish          + one entry there, in its own commit
        group "billing"  of that stream: what was delivered, to which consumer, how often

The messages of a durable subscription are in a stream of its own: each one once more on disk,
until it is acknowledged, which deletes it. In return nothing that happens to other streams
(trimming, deleting, other consumers) touches it, and it needs no binding.

All subscribers under the name share the work: each message goes to one of them, and to another if
it is not acknowledged in ``ack_wait`` seconds. Each of them is a consumer of the group, named by
the lease of its process (leases.py). What is pending with a dead process is released by the next
subscriber, or the next read; close() releases at once.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable

from ...storage.errors import InvalidArgument, NoGroup, RaxlogError, StreamExists
from ...storage.handles import made_by_a_call
from ...storage.log.transaction import WriteTransaction
from ...storage.trees.rax import RaxTransaction
from ...stream.entries import header as headers
from ...stream.entries import writer
from ...stream.entries.header import NodeLimits
from ...stream.entries.session import StoreSource
from ...stream.group.delete_policy import DeleteResult
from ...stream.group.group import Group
from ...stream.group.state import UNKNOWN, create_group, find_group, locate_group
from ...stream.group.waiter import Condition
from ...stream.node.arguments import Text, duration_ms, text_of, whole
from ...stream.node.entry import SUBJECT_FIELD, UNDECODABLE, Entry
from ...stream.node.stream_id import IDLike, given_ids
from ...stream.sweep import doom_stream
from ..subjects import sublist
from ..subjects.subscription import Subscription, name_bytes
from .dispatcher import Dispatcher
from .inbox import Inbox, end, shut, signal
from .leases import Leases
from .live_subscription import Message

ACK_WAIT = 30.0  # seconds
PREFETCH = 8  # messages taken in one commit
_STREAM_PREFIX = b"$durable."
GROUP = b"durable"
_RELEASED_AT_ONCE = 1000

_numbers = itertools.count(1)


def create(txn: WriteTransaction, wanted: Subscription, limits: NodeLimits, keep_weight: bool = True) -> int:
    """Create the durable subscription, with its stream and group, unless it exists; its ID.

    An existing one keeps its weight, or takes the one wanted now.

    SubscriptionExists where its name belongs to another pattern, queue or kind; StreamExists where
    a stream of that name exists; delete or rename it first.
    """
    assert wanted.name is not None
    if sublist.by_name(txn, wanted.name) is None and headers.find(txn, stream_of(wanted.name)) is not None:
        raise StreamExists(
            f"there is a stream {headers.shown(stream_of(wanted.name))}, which the new durable subscription needs for "
            "its messages; delete or rename it, or choose another durable name"
        )
    number = sublist.insert_many(txn, [wanted])[0]
    if not keep_weight:
        sublist.set_weight(txn, number, wanted.weight)  # writes nothing where it is the same
    ensure_stream(txn, stream_of(wanted.name), limits)
    return number


def ensure_stream(txn: WriteTransaction, name: bytes, limits: NodeLimits) -> writer.StreamWriter:
    """The stream of a durable subscription with the group in it, created again if it was deleted."""
    stream = writer.ensure(txn, name, limits)
    if locate_group(txn, stream, GROUP) is None:
        create_group(txn, stream, GROUP, (0, 0), UNKNOWN)
    return stream


def remove(txn: WriteTransaction, name: bytes) -> bool:
    """Remove a durable subscription with all it has not delivered; False if there is none."""
    found = sublist.by_name(txn, name)
    if found is None:
        return False
    sublist.remove_many(txn, [found.id])
    doom_stream(txn, stream_of(name))
    return True


def checked_name(durable: Text) -> bytes:
    """A durable name: 1 to 255 bytes, the first not NUL (those are names of bindings)."""
    raw = name_bytes(durable, "durable name")
    if raw.startswith(b"\0"):
        raise InvalidArgument(f"the durable name {raw!r} begins with a NUL; choose another")
    return raw


def stream_of(name: bytes) -> bytes:
    """The stream that holds the messages of a durable subscription."""
    return _STREAM_PREFIX + name


class DurableSubscription(Inbox[Message]):
    """One consumer of a durable subscription. Made by store.subscribe_durable().

    Take messages by iterating or by get(), and acknowledge each, with its own ack() or several at once with this
    one. A message that is not acknowledged is delivered again, with ``deliveries`` one higher: after
    ``ack_wait`` seconds, or sooner if its consumer closes or dies.

    ``subject``, ``name``, ``queue`` are as subscribed; ``id`` is its ID in the store.
    """

    @made_by_a_call
    def __init__(self, source: StoreSource, live: Dispatcher, leases: Leases, wanted: Subscription, limits: NodeLimits,
                 encoding: str | None, callback: Callable[[Message], object] | None, ack_wait: float,
                 prefetch: int, *, keep_weight: bool = True) -> None:
        whole("prefetch", prefetch, 1)
        if duration_ms("ack_wait", ack_wait) < 1:
            raise InvalidArgument(f"ack_wait={ack_wait!r} must be a number of seconds >= 0.001")
        super().__init__(callback, live.callbacks)
        assert wanted.name is not None
        self._live = live
        self._leases = leases
        self._encoding = encoding
        self._ack_wait = float(ack_wait)
        self._prefetch = prefetch
        self._consumer = b"%x.%d" % (live.owner, next(_numbers))
        self._taking = threading.RLock()
        self._ahead: deque[Entry] = deque()  # delivered to this consumer, and not taken yet
        self.subject: str = wanted.subject.decode("utf-8", UNDECODABLE)
        self.name: Text = text_of(wanted.name, self._encoding)
        self.queue: Text | None = None if wanted.queue is None else text_of(wanted.queue, self._encoding)
        self.id: int = source.submit(lambda txn: create(txn, wanted, limits, keep_weight))
        stream = stream_of(wanted.name)
        self._group = Group(source, stream, GROUP, None)
        self._release_dead_consumers()
        live.watch(self, Condition(_news, stream), self._ack_wait)
        signal(self)

    @property
    def pending(self) -> int:
        """The number of messages delivered to any consumer and not acknowledged."""
        total: int = self._group.pending().total
        return total

    @property
    def waiting(self) -> int:
        """The number of messages not delivered yet."""
        return self._group.lag

    def ack(self, *messages: Message | IDLike | Iterable[Message | IDLike]) -> int:
        """Acknowledge messages (or IDs, or one iterable of them); returns how many had not been acknowledged before.

        One commit, durable when it returns, deletes them. This also works after close().
        """
        ids = []
        for item in given_ids(messages):
            given = item.id if isinstance(item, Message) else item
            if given is None:
                raise InvalidArgument(f"{item!r} is {'no' if item is None else 'a live'} message, and takes no ack")
            ids.append(given)
        return sum(fate is not DeleteResult.MISSING for fate in self._group.ack_delete(ids))

    def close(self) -> None:
        """End this consumer; its pending messages are released at once. The durable name stays."""
        if self.closed:
            return  # also in a forked child, where the lock may be held for ever
        with self._taking:
            if not shut(self):
                return
            self._ahead.clear()
            if not self._live.inherited:
                with contextlib.suppress(RaxlogError):  # else it is redelivered after ack_wait seconds
                    self._release(self._consumer)
        self._live.release(self)
        end(self)

    def __repr__(self) -> str:
        return f"<raxlog subscription {self.id} to {self.subject!r}, durable {self.name!r}>"

    # -- taking -------------------------------------------------------------------------

    def _take(self) -> Message | None:
        with self._taking:
            self._look()
            return self._ready()

    def _look(self) -> bool:
        """Read ahead, if nothing is left from the last read; whether there are messages."""
        with self._taking:
            if not (self.closed or self._ahead):
                try:
                    self._read_ahead()
                    if not self._ahead and self._release_dead_consumers():
                        self._read_ahead()
                except NoGroup:
                    shut(self)  # the subscription has been removed
            return not self.closed and bool(self._ahead)

    def _ready(self) -> Message | None:
        """A message that has been read ahead, if there is one."""
        with contextlib.suppress(IndexError):
            return None if self.closed else self._message(self._ahead.popleft())
        return None

    def _read_ahead(self) -> None:
        self._ahead.extend(self._group.read(self._consumer, self._prefetch, claim_idle=self._ack_wait))

    async def _take_soon(self) -> Message | None:
        import asyncio  # noqa: PLC0415 - only programs that await load it

        while bool(self._ahead) or await asyncio.to_thread(self._look):
            # Not taken in that thread: a task that is cancelled while it waits would lose the message.
            message = self._ready()
            if message is not None or self.closed:
                return message
        return None

    def _message(self, entry: Entry) -> Message:
        pairs = entry.pairs
        subject: str | None = None
        if pairs and pairs[0][0] == SUBJECT_FIELD:
            subject = pairs.pop(0)[1].decode("utf-8", UNDECODABLE)
        texts = [(text_of(name, self._encoding), text_of(value, self._encoding)) for name, value in pairs]
        return Message(subject, texts, entry.id, entry.deliveries, self.ack)

    # -- releasing ----------------------------------------------------------------------

    def _release_dead_consumers(self) -> bool:
        """Release what is pending with consumers of dead processes; whether there was anything."""
        released = False
        for consumer in self._group.consumers():
            assert isinstance(consumer.name, bytes)  # the group has no encoding
            owner = _owner_of(consumer.name)
            if owner is not None and not self._leases.lives(owner):
                released = self._release(consumer.name) or released
        return released

    def _release(self, consumer: bytes) -> bool:
        """Release what is pending with a consumer, and delete the consumer; whether it had anything."""
        released = False
        while rows := self._group.pending_entries(count=_RELEASED_AT_ONCE, consumer=consumer):
            released = True
            self._group.nack((row.id for row in rows), mode="fail")
        self._group.delete_consumer(consumer)
        return released


def _news(txn: RaxTransaction, stream: bytes) -> Hashable:
    """The last ID of a stream, and when the next released message is due. About 10 µs."""
    found = headers.find(txn, stream)
    state = None if found is None else find_group(txn, found[0], GROUP)
    if found is None or state is None:
        return None
    return (found[0], *found[1].last, state.pel(txn).next_due())


def _owner_of(consumer: bytes) -> int | None:
    try:
        return int(consumer.partition(b".")[0], 16)
    except ValueError:
        return None

