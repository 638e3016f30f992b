"""Redis' publish and subscribe: channels, globs over channels, shard channels. Live, in any process.

    with store.channels.subscribe("news.it", "news.fr") as news:      SUBSCRIBE
        news.psubscribe("sport.*")                                    PSUBSCRIBE
        for message in news:
            message.channel, message.data

    store.channels.publish("news.it", "…")                            PUBLISH

A message reaches the subscribers of that moment, in this process or another: at most once,
nothing is kept. Channels have nothing to do with subjects: ``*`` crosses dots, and neither
grammar sees the other's subscribers.

Replies are Redis' own, except for orders that Redis takes from a hash table: here channels and
globs are unsubscribed in the order they were subscribed in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ...storage.errors import InvalidArgument, InvalidName
from ...storage.figures import Figures
from ...storage.handles import made_by_a_call
from ...storage.log.transaction import WriteTransaction
from ...storage.threads import outside
from ...storage.trees.rax import RaxTransaction
from ...stream.entries.session import StoreSource, ask
from ...stream.node.arguments import Name, Text, Value, stored_bytes, text_of
from ...stream.node.entry import MAX_ELEMENTS
from ...stream.node.stream_id import now_ms
from . import channel_index, ring
from .channel_index import CHANNEL, GLOB, SHARD
from .dispatcher import Dispatcher
from .inbox import LiveInbox, end
from .leases import Leases
from .live_subscription import DEFAULT_LIMIT
from .ring import LiveMessage

N = TypeVar("N", bound=Name)
T = TypeVar("T")

MAX_CHANNEL = 1 << 16

Reply = tuple[str, Text | None, int]
Callback = Callable[["ChannelMessage"], object] | None


@dataclass(frozen=True, slots=True)
class ChannelMessage(Figures):
    """A message to a subscriber: a [message, …], [pmessage, …] or [smessage, …] of Redis."""

    kind: str  # "message", "pmessage" or "smessage"
    pattern: Text | None  # the glob that matched, of a pmessage
    channel: Text
    data: Text


class Subscriber(LiveInbox[ChannelMessage]):
    """One client's subscriptions to channels, globs and shard channels. Made by store.channels.

    Take messages as from any subscription, by iterating or by get(). A message that matches a channel
    and two globs is received three times, as in Redis. ``dropped`` counts messages that found the
    queue of ``max_queued`` messages full. ``missed_at_most`` counts messages that were removed before this process
    could read them (it is not known for which subscribers they were).
    """

    @made_by_a_call
    def __init__(self, live: Dispatcher, encoding: str | None, max_queued: int, callback: Callback) -> None:
        super().__init__(callback, live.callbacks, max_queued, partial(_formed, encoding))
        self._live = live
        self._encoding = encoding
        self._changing = threading.RLock()  # no thread enters it twice
        self._held: dict[bytes, dict[bytes, None]] = {CHANNEL: {}, GLOB: {}, SHARD: {}}

    def subscribe(self, *channels: Name) -> list[Reply]:
        """Subscribe to channels; returns ("subscribe", channel, number of channels and globs) for each. SUBSCRIBE.

        One commit for all of them; none if all are already held.
        """
        return self._reply("subscribe", CHANNEL, channels, 1)

    def psubscribe(self, *globs: Name) -> list[Reply]:
        """Subscribe to globs: each receives its own copy of a message to a channel that it matches. PSUBSCRIBE."""
        return self._reply("psubscribe", GLOB, globs, 1)

    def ssubscribe(self, *channels: Name) -> list[Reply]:
        """Subscribe to shard channels, which have a namespace and a count of their own, and no globs. SSUBSCRIBE."""
        return self._reply("ssubscribe", SHARD, channels, 1)

    def unsubscribe(self, *channels: Name) -> list[Reply]:
        """Unsubscribe from these channels, or without arguments from all. Redis: UNSUBSCRIBE.

        Returns a reply for each, even for one that was not held; one reply with None if none was held.
        """
        return self._reply("unsubscribe", CHANNEL, channels, -1)

    def punsubscribe(self, *globs: Name) -> list[Reply]:
        """Unsubscribe from these globs; they are compared as text. Redis: PUNSUBSCRIBE."""
        return self._reply("punsubscribe", GLOB, globs, -1)

    def sunsubscribe(self, *channels: Name) -> list[Reply]:
        """Unsubscribe from these shard channels. Redis: SUNSUBSCRIBE."""
        return self._reply("sunsubscribe", SHARD, channels, -1)

    @property
    def channels(self) -> list[Text]:
        """The channels held, in the order of subscription."""
        return [text_of(name, self._encoding) for name in self._held[CHANNEL]]

    @property
    def patterns(self) -> list[Text]:
        """The globs held."""
        return [text_of(name, self._encoding) for name in self._held[GLOB]]

    @property
    def shard_channels(self) -> list[Text]:
        """The shard channels held."""
        return [text_of(name, self._encoding) for name in self._held[SHARD]]

    @property
    def subscriptions(self) -> int:
        """How many channels, globs and shard channels are held."""
        return sum(map(len, self._held.values()))

    def close(self) -> None:
        """End all subscriptions, in one commit. Messages left in the queue are dropped."""
        if self.closed:
            return
        with outside(self._changing, "a subscriber"):
            self._change([(kind, name) for kind, names in self._held.items() for name in names], -1)
            for names in self._held.values():
                names.clear()
        self._live.release(self)
        end(self)

    # -- within -------------------------------------------------------------------------

    def _reply(self, verb: str, kind: bytes, names: tuple[Name, ...], by: int) -> list[Reply]:
        """Subscribe to names (``by`` 1) or unsubscribe (-1; without names all of the kind): a reply for each."""
        with outside(self._changing, "a subscriber"):
            if self.closed:
                raise InvalidArgument("this subscriber has been closed; make another with store.channels.subscriber()")
            subscribed = self._held[kind]
            wanted = _names(verb, names, kind) if names or by > 0 else list(subscribed)
            self._change([(kind, name) for name in dict.fromkeys(wanted) if (name in subscribed) is (by < 0)], by)
            replies: list[Reply] = []
            for name in wanted:
                if by > 0:
                    subscribed[name] = None
                else:
                    subscribed.pop(name, None)
                replies.append((verb, text_of(name, self._encoding), self._count(kind)))
            return replies or [(verb, None, self._count(kind))]

    def _change(self, changes: list[tuple[bytes, bytes]], by: int) -> None:
        """Subscribe to (or unsubscribe from) all of these kinds and names in one commit, here and on disk."""
        live = self._live
        if not changes:
            return

        def subscribe(txn: WriteTransaction, owner: int, following: int) -> None:
            for kind, name in changes:
                live.add_channel(kind, name, self, following)
                channel_index.add(txn, owner, kind, name, 1)

        def unsubscribe(txn: WriteTransaction, owner: int) -> None:
            for kind, name in changes:
                channel_index.add(txn, owner, kind, name, -1)

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


class Channels:
    """Redis' channels of a store: ``store.channels``."""

    @made_by_a_call
    def __init__(self, source: StoreSource, leases: Leases, live: Callable[[], Dispatcher],
                 encoding: str | None) -> None:
        self._source = source
        self._leases = leases
        self._live = live
        self._encoding = encoding

    # -- subscribing --------------------------------------------------------------------

    def subscriber(self, *, max_queued: int = DEFAULT_LIMIT, callback: Callback = None) -> Subscriber:
        """A client without subscriptions yet. ``max_queued``: messages its queue holds before it drops."""
        self._source.require_writable("subscribe")
        return Subscriber(self._live(), self._encoding, max_queued, callback)

    def subscribe(self, *channels: Name, max_queued: int = DEFAULT_LIMIT, callback: Callback = None) -> Subscriber:
        """A client subscribed to these channels. It may subscribe to more, and to globs."""
        return self._with(Subscriber.subscribe, channels, max_queued, callback)

    def psubscribe(self, *globs: Name, max_queued: int = DEFAULT_LIMIT, callback: Callback = None) -> Subscriber:
        """A client subscribed to these globs (glob.py)."""
        return self._with(Subscriber.psubscribe, globs, max_queued, callback)

    def ssubscribe(self, *channels: Name, max_queued: int = DEFAULT_LIMIT, callback: Callback = None) -> Subscriber:
        """A client subscribed to these shard channels."""
        return self._with(Subscriber.ssubscribe, channels, max_queued, callback)

    def _with(self, how: Callable[..., object], names: tuple[Name, ...], max_queued: int,
              callback: Callback) -> Subscriber:
        subscriber = self.subscriber(max_queued=max_queued, callback=callback)
        how(subscriber, *names)
        return subscriber

    # -- publishing ---------------------------------------------------------------------

    def publish(self, channel: Name, message: Value) -> int:
        """Send a message to the subscribers of a channel; returns how many copies were sent. Redis: PUBLISH.

        One copy is sent for each subscriber of the channel, and one for each subscription to a glob that
        matches. Later subscribers never get it. Subscribers in dead processes do not count.
        Costs a commit if there are subscribers; otherwise about 10 µs, and nothing is written.
        """
        return self._publish(publication(self, channel, message))

    def spublish(self, channel: Name, message: Value) -> int:
        """Send a message to the subscribers of a shard channel. Redis: SPUBLISH."""
        return self._publish(publication(self, channel, message, is_shard=True))

    def _publish(self, sending: partial[int]) -> int:
        _, kind, name, _ = sending.args
        self._source.require_writable("publish")
        with self._source.read() as txn:
            if not channel_index.subscribers(txn, kind, name):
                return 0
        return self._source.submit(sending)

    def _send(self, sort: int, kind: bytes, name: bytes, payload: bytes, txn: WriteTransaction) -> int:
        found = channel_index.subscribers(txn, kind, name)
        owners = list(dict.fromkeys(row.owner for row in found))
        alive = self._leases.live_owners(txn, owners) if owners else []
        if alive:
            ring.put(txn, LiveMessage(sort, now_ms(), name, [payload], alive, []))
        return sum(row.number for row in found if row.owner in alive)

    # -- figures ------------------------------------------------------------------------

    def channels(self, pattern: Name | None = None) -> list[Text]:
        """The channels with subscribers of their own, all or those the glob matches. Redis: PUBSUB CHANNELS."""
        return self._names(CHANNEL, pattern)

    def shardchannels(self, pattern: Name | None = None) -> list[Text]:
        """The shard channels with subscribers, all or those the glob matches. Redis: PUBSUB SHARDCHANNELS."""
        return self._names(SHARD, pattern)

    def numsub(self, *channels: N) -> dict[N, int]:
        """How many subscribers each channel has of its own, globs not counted. Redis: PUBSUB NUMSUB."""
        return self._numsub(CHANNEL, channels)

    def shardnumsub(self, *channels: N) -> dict[N, int]:
        """How many subscribers each shard channel has. Redis: PUBSUB SHARDNUMSUB."""
        return self._numsub(SHARD, channels)

    def numpat(self) -> int:
        """How many different globs are subscribed to. Redis: PUBSUB NUMPAT, since Redis 6.2."""
        return self._ask(channel_index.numpat)[0]

    def _names(self, kind: bytes, pattern: Name | None) -> list[Text]:
        glob = None if pattern is None else _name("glob", pattern)
        names = self._ask(lambda txn: channel_index.names(txn, kind, glob))
        return [text_of(name, self._encoding) for name in names]

    def _numsub(self, kind: bytes, channels: tuple[N, ...]) -> dict[N, int]:
        names = [_name("channel", channel) for channel in channels]
        counts = self._ask(lambda txn: [channel_index.numsub(txn, kind, name) for name in names])
        asked = (bytes(given) if isinstance(given, bytearray) else given for given in channels)
        return dict(zip(asked, counts, strict=True))

    def _ask(self, question: Callable[[RaxTransaction], T]) -> T:
        """Ask once dead owners have been removed, so that the figures count live processes only."""
        self._leases.remove_dead_owners(self._source)
        return ask(self._source, question)


def publication(channels: Channels, channel: Name, message: Value, *, is_shard: bool = False) -> partial[int]:
    """The operation that sends a message, as a part of a commit: its arguments are checked, and nothing is done."""
    sort, kind = (ring.SHARD, SHARD) if is_shard else (ring.CHANNEL, CHANNEL)
    name = _name("channel", channel)
    payload = stored_bytes(message, "message")
    if len(payload) > MAX_ELEMENTS:
        raise InvalidArgument(f"the message has {len(payload)} bytes; {MAX_ELEMENTS} are allowed")
    return partial(channels._send, sort, kind, name, payload)


def _formed(encoding: str | None, message: LiveMessage, glob: bytes | None) -> ChannelMessage:
    """The message as users get it."""
    kind = "smessage" if message.kind == ring.SHARD else "message" if glob is None else "pmessage"
    pattern = None if glob is None else text_of(glob, encoding)
    return ChannelMessage(kind, pattern, text_of(message.name, encoding), text_of(message.payload[0], encoding))


def _name(what: str, given: Name) -> bytes:
    raw = stored_bytes(given, what)
    if len(raw) > MAX_CHANNEL:
        raise InvalidName(f"the {what} {raw[:20]!r}… has {len(raw)} bytes; {MAX_CHANNEL} are allowed")
    return raw


def _names(verb: str, given: tuple[Name, ...], kind: bytes) -> list[bytes]:
    if not given:
        raise InvalidArgument(f"{verb}() needs at least one {'glob' if kind == GLOB else 'channel'}")
    return [_name("glob" if kind == GLOB else "channel", name) for name in given]
