"""A store with subjects: streams, and what is published into them and to listeners by subject."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from ..storage.errors import InvalidArgument, TransactionError
from ..storage.lifecycle.registry import Share
from ..stream import streams
from ..stream.entries.header import NodeLimits
from ..stream.entries.session import ask
from ..stream.entries.sweep import sweep
from ..stream.group import subject_filter as group_filter
from ..stream.node.names import name_bytes
from .pubsub import binding, channel_index, live_subscription, subject_filter, targets
from .pubsub import durable_subscription as durables
from .pubsub.dispatcher import Live
from .pubsub.durable_subscription import DurableSubscription
from .pubsub.leases import leases_of
from .pubsub.live_subscription import LiveSubscription, LiveSubscriptions, Message
from .pubsub.publish import Publication, Reached, Transaction
from .subjects import subject as subjects
from .subjects.handle import Sublist
from .subjects.subscription import DURABLE, Subscription

if TYPE_CHECKING:
    from .pubsub.binding import Binding
    from .pubsub.channels import Channels
    from .subjects.interest import Watch
    from .subjects.remote_interest import RemoteInterest


group_filter.use(subject_filter.checked, subject_filter.matcher)


class Store(streams.Store):
    """A store of streams that also routes messages by subject."""

    __slots__ = ("_channels", "_known", "_leases", "_live", "_subjects")

    def __init__(self, share: Share, encoding: str | None, lock_timeout: float, limits: NodeLimits) -> None:
        super().__init__(share, encoding, lock_timeout, limits)
        self._leases = leases_of(share.env)
        self._subjects = Sublist(self._source)
        self._known = targets.Known(self._subjects.cache)
        self._live: Live | None = None
        self._channels: Channels | None = None
        if not share.env.readonly:
            targets.purge(self._source, self._leases)

    def close(self) -> None:
        """Close the store: its live subscriptions end, and handles raise StoreClosed from then on."""
        if self._source.closed:
            return
        if self._env.commits.in_own_transaction():
            raise TransactionError(f"{self._env.path} cannot be closed inside a transaction; end that first")
        live = self._live
        try:
            if live is not None and not live.inherited:
                live.close()
        finally:
            super().close()

    # -- subjects -----------------------------------------------------------------------

    @property
    def subjects(self) -> Sublist:
        """The subject index itself: who is interested in what (handle.py)."""
        self._require_open()
        return self._subjects

    @property
    def remote(self) -> RemoteInterest:
        """What others, reached by routes, want to be sent, account by account (remote_interest.py)."""
        from .subjects.remote_interest import RemoteInterest  # noqa: PLC0415 - only who has routes pays for it

        self._require_open()
        return RemoteInterest(self._source)

    def watch(self, subject: Any, queue: Any = None) -> Watch:
        """Be told when somebody, in any process, begins to listen to a subject, and when nobody does any more.

        Only subscriptions to this very subject count, plain ones, or the members of ``queue``
        (interest.py). SubjectError for a subject that is invalid or has a wildcard, InvalidName.
        """
        from .subjects.interest import Watch  # noqa: PLC0415

        self._require_open()
        return Watch(self._source, subject, queue)

    def publish(self, subject: Any, fields: Any) -> Reached:
        """Publish a message; how many bindings, durable and live subscriptions it reached. A number.

        ``subject``  tokens between dots, none of them a wildcard: "orders.eu.new"
        ``fields``   as for Stream.append(); the name ``$subject`` is reserved

        Every bound stream and every durable subscription has it, durably, when this returns: in
        one commit, or in none. Live subscriptions are told of it and get it at most once. Where it
        reaches nobody nothing is written, and it costs about 10 µs.

        SubjectError for a malformed subject or one with a wildcard; InvalidFields;
        StreamExhausted, with nothing done, where a bound stream has used up its IDs. The parts of
        the number, and the IDs of the entries: see Reached.
        """
        publication = Publication(subject, fields)
        self._require_writable("publish")
        with self._source.read() as txn:
            if not self._known.reach(txn, publication.subject):
                return Reached()
        send = partial(publication.send, self._known, self._leases, self._limits, self._encoding)
        return self._source.submit(send)

    def bind(self, subject: Any, stream: Any) -> Binding:
        """Let what is published to matching subjects be appended to a stream, from now on and for good.

        ``subject`` may have wildcards: ``*`` for one token, a last ``>`` for one or more. The stream
        need not exist. Binding the same twice is binding once. SubjectError, InvalidName. One commit.
        """
        name = name_bytes(stream)
        wanted = binding.subscription(subject, name)
        self._require_writable("bind")
        return binding.told(self._source.submit(lambda txn: binding.bind(txn, wanted)), self._encoding)

    def unbind(self, subject: Any, stream: Any) -> bool:
        """End a binding: the very pattern and stream that were bound. False if there is none.

        What has been appended stays. ``subject=None`` ends all bindings of the stream.
        """
        name = name_bytes(stream)
        wanted = None if subject is None else binding.subscription(subject, name)
        self._require_writable("unbind")
        return self._source.submit(lambda txn: binding.unbind(txn, wanted, name)) > 0

    def bindings(self, stream: Any = None) -> list[Binding]:
        """All bindings, or those that lead to one stream, in the order they were made."""
        self._require_open()
        name = None if stream is None else name_bytes(stream)
        records = ask(self._source, lambda txn: binding.bindings(txn, name))
        return [binding.told(record, self._encoding) for record in records]

    # -- subscribing --------------------------------------------------------------------

    @overload
    def subscribe(self, subject: Any, *, durable: None = None, queue: Any = None, weight: int | None = None,
                  callback: Callable[[Message], object] | None = None, limit: int | None = None,
                  ack_wait: None = None, prefetch: None = None) -> LiveSubscription: ...

    @overload
    def subscribe(self, subject: Any, *, durable: Any, queue: Any = None, weight: int | None = None,
                  callback: Callable[[Message], object] | None = None, limit: None = None,
                  ack_wait: float | None = None, prefetch: int | None = None) -> DurableSubscription: ...

    def subscribe(self, subject: Any, *, durable: Any = None, queue: Any = None, weight: int | None = None,
                  callback: Callable[[Message], object] | None = None, limit: int | None = None,
                  ack_wait: float | None = None,
                  prefetch: int | None = None) -> LiveSubscription | DurableSubscription:
        """Get what is published to matching subjects, in this process or any other.

        ``durable``   a name: the subscription outlives this process and keeps its place; each
                      message comes at least once, until it is acknowledged. Without: live, at
                      most once, and it ends with close(), with the store, or with the process
        ``queue``     a group: of all its members, whatever they subscribe to, one gets each message
        ``weight``    this member's share in its group, 1 to 65,535 (1). A durable subscription that
                      is there already gets this one from now on, or keeps its own if none is given
        ``callback``  is called with each message, by one thread for all callbacks of this store;
                      without it: iterate, ``async for``, or get() (inbox.py)
        ``limit``     live: messages that wait in it before it drops (65,536)
        ``ack_wait``  durable: seconds until an unacknowledged message is given to another (30)
        ``prefetch``  durable: messages taken in one commit (8)

        SubjectError for a malformed pattern, SubscriptionExists where the durable name has another
        pattern or queue, StreamExists where there is a stream ``$durable.NAME`` that is not its own. One commit.
        """
        share = 1 if weight is None else weight
        if durable is None:
            for name, value in (("ack_wait", ack_wait), ("prefetch", prefetch)):
                if value is not None:
                    raise InvalidArgument(f"{name} is for durable subscriptions; a live message takes no ack")
            return self.subscribe_many([subject], queue=queue, weight=share, callback=callback, limit=limit)[0]
        pattern = subjects.pattern(subject)
        self._require_writable("subscribe")
        if limit is not None:
            raise InvalidArgument("limit is for live subscriptions; a durable one drops nothing")
        kept = durables.checked_name(durable)
        options = {targets.STREAM_OPTION: durables.stream_of(kept)}  # where its messages lie
        wanted = Subscription.of(pattern, kind=DURABLE, name=kept, queue=queue, weight=share, options=options)
        return DurableSubscription(
            self._source, self._listening(), self._leases, wanted, self._limits, self._encoding, callback,
            durables.ACK_WAIT if ack_wait is None else ack_wait, durables.PREFETCH if prefetch is None else prefetch,
            keep_weight=weight is None,
        )

    def subscribe_many(self, subjects: Iterable[Any], *, queue: Any = None, weight: int = 1,
                       callback: Callable[[Message], object] | None = None,
                       limit: int | None = None) -> LiveSubscriptions:
        """Live subscriptions to many patterns, one each, in their order: all in one commit, or none.

        ``subjects``  patterns; one that is given twice is subscribed to twice
        the others    as for subscribe(), the same for each

        A list, to be closed as a whole (``with`` does), in one commit too, or one by one. Each costs some
        30 µs, where subscribe() waits for a commit. InvalidArgument for what is no iterable of patterns;
        SubjectError and InvalidName as subscribe().
        """
        if isinstance(subjects, str | bytes) or not isinstance(subjects, Iterable):
            raise InvalidArgument(f"subjects={subjects!r:.60} must be several patterns; for one there is subscribe()")
        wanted = [Subscription.of(one, queue=queue, weight=weight) for one in subjects]
        self._require_writable("subscribe")
        most = live_subscription.DEFAULT_LIMIT if limit is None else limit
        return live_subscription.subscribe(self._listening(), wanted, self._encoding, most, callback)

    def unsubscribe(self, durable: Any) -> bool:
        """Remove a durable subscription with all that it has not delivered; False if there is none.

        Whoever takes from it finds its end. A live subscription ends with its close().
        """
        name = durables.checked_name(durable)
        self._require_writable("unsubscribe")
        gone = self._source.submit(lambda txn: durables.remove(txn, name))
        if gone:
            sweep(self._source)
        return gone

    def listeners(self) -> dict[int, int]:
        """The processes that listen live, by their owner numbers: {owner: process ID}."""
        self._require_open()
        owners = ask(self._source, channel_index.owners)
        return {owner: pid for owner, (pid, _) in owners.items() if self._leases.lives(owner)}

    @property
    def channels(self) -> Channels:
        """Redis' channels and globs: publish, subscribe, psubscribe (channels.py)."""
        self._require_open()
        if self._channels is None:
            from .pubsub.channels import Channels  # noqa: PLC0415

            self._channels = Channels(self._source, self._leases, self._listening, self._encoding)
        return self._channels

    def transaction(self) -> Transaction:
        """All or nothing over streams, groups, state and publishing: ``with store.transaction() as tx``.

        While it is open a write outside it by the same thread raises TransactionError, and writes
        of others wait.
        """
        self._require_writable("write")
        return Transaction(self._source, self._encoding, self._limits, self._known, self._leases)

    # -- within -------------------------------------------------------------------------

    def _listening(self) -> Live:
        """What listens for this store in this process; made anew in a forked child."""
        self._require_open()
        if self._live is None or self._live.inherited:
            self._live = Live(self._source, self._leases, self._known)
        return self._live
