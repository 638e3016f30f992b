"""Redis' publish and subscribe: channels, globs over channels, shard channels. Live, in any process.

    with store.channels.subscribe("news.it", "news.fr") as news:      SUBSCRIBE
        news.psubscribe("sport.*")                                    PSUBSCRIBE
        for message in news:
            message.channel, message.data

    store.channels.publish("news.it", "…")                            PUBLISH

What is published reaches who listens at that moment, in this process or another, and nobody
else: at most once, nothing is kept. The names have nothing to do with subjects: ``*`` crosses
dots, and neither grammar sees the other's subscribers.

Replies are Redis' own, but for what Redis leaves to the order of a hash table: here channels and
globs are unsubscribed in the order they were subscribed in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from ...storage.commit.write_transaction import WriteTransaction
from ...storage.errors import InvalidArgument, InvalidName, ReadOnlyStore
from ...stream.entries.session import Direct, ask
from ...stream.node.clock import now_ms
from ...stream.node.entry import MAX_ELEMENTS
from ...stream.node.names import stored_bytes, text_of
from . import channel_index, ring, targets
from .channel_index import CHANNEL, GLOB, SHARD
from .dispatcher import Live
from .inbox import Queue
from .leases import Leases
from .live_subscription import DEFAULT_LIMIT
from .ring import LiveMessage

T = TypeVar("T")

MAX_CHANNEL = 1 << 16

Reply = tuple[str, Any, int]


class ChannelMessage(NamedTuple):
    """What a subscriber gets: [message, …], [pmessage, …] or [smessage, …] of Redis."""

    kind: str  # "message", "pmessage" or "smessage"
    pattern: Any  # the glob it was heard by, of a pmessage; else None
    channel: Any
    data: Any


class Subscriber(Queue[ChannelMessage]):
    """One client's subscriptions to channels, globs and shard channels. Made by store.channels.

    Take messages as of any subscription (inbox.py). A client that hears a message by a channel
    and by two globs gets it three times, as in Redis. ``dropped`` counts those that found the
    queue of ``limit`` messages full, ``missed`` those that left the ring before this process
    could look (whose they were is not known).
    """

    def __init__(self, live: Live, encoding: str | None, limit: int,
                 callback: Callable[[ChannelMessage], object] | None) -> None:
        super().__init__(callback, live.callbacks, limit)
        self._live = live
        self._encoding = encoding
        self._changing = threading.Lock()
        self._held: dict[bytes, dict[bytes, None]] = {CHANNEL: {}, GLOB: {}, SHARD: {}}

    def subscribe(self, *channels: Any) -> list[Reply]:
        """Hear channels: one ("subscribe", channel, n) for each, n of channels and globs. SUBSCRIBE.

        All of them in one commit; none for what is held already.
        """
        return self._reply("subscribe", CHANNEL, channels, 1)

    def psubscribe(self, *globs: Any) -> list[Reply]:
        """Hear every channel that one of these globs matches, copies included. PSUBSCRIBE."""
        return self._reply("psubscribe", GLOB, globs, 1)

    def ssubscribe(self, *channels: Any) -> list[Reply]:
        """Hear shard channels: a namespace and a count of their own, no globs. SSUBSCRIBE."""
        return self._reply("ssubscribe", SHARD, channels, 1)

    def unsubscribe(self, *channels: Any) -> list[Reply]:
        """Hear these channels no more, or without arguments none at all. UNSUBSCRIBE.

        A reply for each, also for one that was not held; one with None where none was.
        """
        return self._reply("unsubscribe", CHANNEL, channels, -1)

    def punsubscribe(self, *globs: Any) -> list[Reply]:
        """Hear by these globs no more; they are compared as text. PUNSUBSCRIBE."""
        return self._reply("punsubscribe", GLOB, globs, -1)

    def sunsubscribe(self, *channels: Any) -> list[Reply]:
        """Hear these shard channels no more. SUNSUBSCRIBE."""
        return self._reply("sunsubscribe", SHARD, channels, -1)

    @property
    def channels(self) -> list[Any]:
        """The channels held, in the order they were subscribed to."""
        return [text_of(name, self._encoding) for name in self._held[CHANNEL]]

    @property
    def patterns(self) -> list[Any]:
        """The globs held."""
        return [text_of(name, self._encoding) for name in self._held[GLOB]]

    @property
    def shard_channels(self) -> list[Any]:
        """The shard channels held."""
        return [text_of(name, self._encoding) for name in self._held[SHARD]]

    def close(self) -> None:
        """End all subscriptions, in one commit. What lies in the queue is dropped."""
        if self._closed:
            return
        with self._changing:
            self._change([(kind, name) for kind, held in self._held.items() for name in held], -1)
            for held in self._held.values():
                held.clear()
        self._live.release(self)
        self.end()

    def form(self, message: LiveMessage, glob: bytes | None) -> ChannelMessage:
        """The message as it is given out."""
        kind = "smessage" if message.kind == ring.SHARD else "message" if glob is None else "pmessage"
        encoding = self._encoding
        pattern = None if glob is None else text_of(glob, encoding)
        return ChannelMessage(kind, pattern, text_of(message.name, encoding), text_of(message.payload[0], encoding))

    # -- within -------------------------------------------------------------------------

    def _reply(self, verb: str, kind: bytes, names: tuple[Any, ...], by: int) -> list[Reply]:
        """Subscribe to names (``by`` 1) or give them up (-1; without names all of the kind): a reply for each."""
        with self._changing:
            self._require_open()
            held = self._held[kind]
            wanted = _names(verb, names, kind) if names or by > 0 else list(held)
            self._change([(kind, name) for name in dict.fromkeys(wanted) if (name in held) is (by < 0)], by)
            replies: list[Reply] = []
            for name in wanted:
                if by > 0:
                    held[name] = None
                else:
                    held.pop(name, None)
                replies.append((verb, text_of(name, self._encoding), self._count(kind)))
            return replies or [(verb, None, self._count(kind))]

    def _change(self, changes: list[tuple[bytes, bytes]], by: int) -> None:
        """Subscribe to (or give up) all of these kinds and names in one commit, here and on disk."""
        live = self._live
        if not changes:
            return

        def subscribe(txn: WriteTransaction, owner: int, following: int) -> None:
            for kind, name in changes:
                live.add_channel(kind, name, self, following)
                channel_index.count(txn, owner, kind, name, 1)

        def unsubscribe(txn: WriteTransaction, owner: int) -> None:
            for kind, name in changes:
                channel_index.count(txn, owner, kind, name, -1)

        if by < 0:
            live.unsubscribe(unsubscribe)
            self._forget(changes)
            return
        try:
            live.subscribe([self], subscribe)
        except BaseException:
            self._forget(changes)
            raise

    def _forget(self, changes: Iterable[tuple[bytes, bytes]]) -> None:
        for kind, name in changes:
            self._live.remove_channel(kind, name, self)

    def _count(self, kind: bytes) -> int:
        if kind == SHARD:
            return len(self._held[SHARD])
        return len(self._held[CHANNEL]) + len(self._held[GLOB])

    def _require_open(self) -> None:
        if self._closed:
            raise InvalidArgument("this subscriber has been closed; make another with store.channels.subscriber()")


class Channels:
    """Redis' channels of a store: ``store.channels``."""

    def __init__(self, source: Direct, leases: Leases, live: Callable[[], Live], encoding: str | None) -> None:
        self._source = source
        self._leases = leases
        self._live = live
        self._encoding = encoding

    # -- subscribing --------------------------------------------------------------------

    def subscriber(self, *, limit: int = DEFAULT_LIMIT,
                   callback: Callable[[ChannelMessage], object] | None = None) -> Subscriber:
        """A client without subscriptions yet. ``limit``: messages its queue holds before it drops."""
        if self._source.env.readonly:
            raise ReadOnlyStore(f"{self._source.env.path} is open with readonly=True; open it without to subscribe")
        return Subscriber(self._live(), self._encoding, limit, callback)

    def subscribe(self, *channels: Any, limit: int = DEFAULT_LIMIT,
                  callback: Callable[[ChannelMessage], object] | None = None) -> Subscriber:
        """A client that hears these channels. It may subscribe to more, and to globs."""
        return self._with(Subscriber.subscribe, channels, limit, callback)

    def psubscribe(self, *globs: Any, limit: int = DEFAULT_LIMIT,
                   callback: Callable[[ChannelMessage], object] | None = None) -> Subscriber:
        """A client that hears what these globs match (glob.py)."""
        return self._with(Subscriber.psubscribe, globs, limit, callback)

    def ssubscribe(self, *channels: Any, limit: int = DEFAULT_LIMIT,
                   callback: Callable[[ChannelMessage], object] | None = None) -> Subscriber:
        """A client that hears these shard channels."""
        return self._with(Subscriber.ssubscribe, channels, limit, callback)

    def _with(self, how: Callable[..., object], names: tuple[Any, ...], limit: int,
              callback: Callable[[ChannelMessage], object] | None) -> Subscriber:
        subscriber = self.subscriber(limit=limit, callback=callback)
        how(subscriber, *names)
        return subscriber

    # -- publishing ---------------------------------------------------------------------

    def publish(self, channel: Any, message: Any) -> int:
        """Send a message to who hears the channel; how many copies were sent. PUBLISH.

        One for each subscriber of the channel and one more for each of their globs that
        matches. Who does not listen at this moment never gets it; with nobody there nothing is
        written. Subscribers of dead processes do not count. Costs a commit where somebody
        listens, about 10 µs where nobody does.
        """
        return self._publish(ring.CHANNEL, CHANNEL, channel, message)

    def spublish(self, channel: Any, message: Any) -> int:
        """Send a message to who hears the shard channel. SPUBLISH."""
        return self._publish(ring.SHARD, SHARD, channel, message)

    def _publish(self, sort: int, kind: bytes, channel: Any, message: Any) -> int:
        name = _name("channel", channel)
        payload = stored_bytes(message, "message")
        if len(payload) > MAX_ELEMENTS:
            raise InvalidArgument(f"the message has {len(payload)} bytes; {MAX_ELEMENTS} are allowed")
        if self._source.env.readonly:
            raise ReadOnlyStore(f"{self._source.env.path} is open with readonly=True; open it without to publish")
        with self._source.read() as txn:
            if not channel_index.hearers(txn, kind, name):
                return 0

        def operation(txn: WriteTransaction) -> int:
            found = channel_index.hearers(txn, kind, name)
            owners = list(dict.fromkeys(hearer.owner for hearer in found))
            living = targets.living(txn, self._leases, owners)
            if living:
                ring.put(txn, LiveMessage(sort, now_ms(), name, [payload], living, []))
            return sum(hearer.subscribers for hearer in found if hearer.owner in living)

        return self._source.submit(operation)

    # -- looking ------------------------------------------------------------------------

    def channels(self, pattern: Any = None) -> list[Any]:
        """The channels with subscribers of their own, all or those the glob matches. PUBSUB CHANNELS."""
        return self._names(CHANNEL, pattern)

    def shardchannels(self, pattern: Any = None) -> list[Any]:
        """The shard channels with subscribers, all or those the glob matches. PUBSUB SHARDCHANNELS."""
        return self._names(SHARD, pattern)

    def numsub(self, *channels: Any) -> dict[Any, int]:
        """How many subscribers each channel has of its own, globs not counted. PUBSUB NUMSUB."""
        return self._numsub(CHANNEL, channels)

    def shardnumsub(self, *channels: Any) -> dict[Any, int]:
        """How many subscribers each shard channel has. PUBSUB SHARDNUMSUB."""
        return self._numsub(SHARD, channels)

    def numpat(self) -> int:
        """How many different globs are subscribed to. PUBSUB NUMPAT, since Redis 6.2."""
        return self._ask(channel_index.numpat)[0]

    def pattern_subscriptions(self) -> int:
        """How many subscriptions to globs there are: what NUMPAT told before Redis 6.2."""
        return self._ask(channel_index.numpat)[1]

    def _names(self, kind: bytes, pattern: Any) -> list[Any]:
        glob = None if pattern is None else _name("glob", pattern)
        names = self._ask(lambda txn: channel_index.names(txn, kind, glob))
        return [text_of(name, self._encoding) for name in names]

    def _numsub(self, kind: bytes, channels: tuple[Any, ...]) -> dict[Any, int]:
        names = [_name("channel", channel) for channel in channels]
        counts = self._ask(lambda txn: [channel_index.numsub(txn, kind, name) for name in names])
        asked = (bytes(given) if isinstance(given, bytearray) else given for given in channels)
        return dict(zip(asked, counts, strict=True))

    def _ask(self, question: Callable[[Any], T]) -> T:
        """Ask once what dead processes left has been removed, so that the figures are those of the living."""
        targets.purge(self._source, self._leases)
        return ask(self._source, question)


def _name(what: str, given: Any) -> bytes:
    raw = stored_bytes(given, what)
    if len(raw) > MAX_CHANNEL:
        raise InvalidName(f"the {what} {raw[:20]!r}… has {len(raw)} bytes; {MAX_CHANNEL} are allowed")
    return raw


def _names(verb: str, given: tuple[Any, ...], kind: bytes) -> list[bytes]:
    if not given:
        raise InvalidArgument(f"{verb}() needs at least one {'glob' if kind == GLOB else 'channel'}")
    return [_name("glob" if kind == GLOB else "channel", name) for name in given]
