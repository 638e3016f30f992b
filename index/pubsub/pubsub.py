"""Publish and subscribe by subject, alone or in a transaction, on one open store.

    publish("orders.eu.new", {…})
      │  subject and fields are checked; in a read transaction: are there any targets?   no: 0
      └─ one operation of group commit
           ├─ those targets; if the index has changed since, they are looked up again
           ├─ each bound stream, each durable subscription's stream     + one entry
           └─ the processes with live subscriptions                     one row in the ring (ring.py)

An entry's first field is ``$subject``, with the subject: a field as any other, so its bytes are
those XADD would have written, and it stays with the entry wherever that is copied, exported or
read by another program. ``entry.subject`` returns it.

A binding leads from a pattern to a stream: a record in the subject index, of kind BINDING, whose
owner is the stream (by its hash), and whose name is made of stream and pattern. So the bindings of a
stream are found at once, and the same one twice is one. The stream need not exist: the first message
creates it, also after it was deleted. A stream that is renamed leaves its bindings to the old name.

A stream is appended to once, however many bindings lead to it. Of a queue group one member gets
the message, live or durable, each as often as its weight says.

    match (match.py)          bindings        durable          live             queues
                                    │               │               │                │ one each
    Targets                      streams         streams     processes, counted   of live processes

The index returns IDs; what a publish must know of each (which stream, which process) is in
its record, which never changes. So it is read once and kept in memory, by ID: 10,000 live
subscribers of a subject are looked at in a millisecond, and their records only the first time.
Only what a read transaction has seen is kept: an ID from an undone transaction may be used
again.

A subscription inserted by way of store.subjects may have any owner and any options. Messages go
only to those made by bind() and subscribe(); the others lead nowhere, and never count as a dead
process's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from ...storage.errors import InvalidFields
from ...storage.figures import Figures
from ...storage.format.keys import sha256
from ...storage.log.transaction import WriteTransaction
from ...storage.trees.rax import RaxTransaction
from ...stream.entries import writer
from ...stream.entries.header import NodeLimits
from ...stream.entries.session import Source, StoreSource, ask
from ...stream.group import subject_filter as group_filter
from ...stream.node.arguments import Fields, Name, Text, name_bytes, text_of
from ...stream.node.entry import SUBJECT_FIELD, UNDECODABLE, flatten
from ...stream.node.stream_id import AUTO, StreamID, now_ms, time_at
from ...stream.sweep import sweep
from ..subjects import match as matching
from ..subjects import subject as subjects
from ..subjects import sublist
from ..subjects.handle import Sublist
from ..subjects.match import Match
from ..subjects.subscription import BINDING, DURABLE, LIVE, STREAM_OPTION, Subscription
from . import durable_subscription as durables
from . import live_subscription, ring
from .dispatcher import Dispatcher
from .durable_subscription import DurableSubscription
from .leases import Leases, owner_of, owners_in
from .live_subscription import LiveSubscriptions, Message
from .ring import LiveMessage

if TYPE_CHECKING:
    from .channels import Channels

_MOST_DETAILS = 200_000
_ELSEWHERE = -1  # no process, no stream: not a target of publishing

_random = random.Random()
_literal = lru_cache(4096)(subjects.literal)

Detail = int | bytes  # a live subscription's owner, or the stream of another

group_filter.use(matching.checked_patterns, matching.matcher)


class Reached(int):
    """The number of recipients of a message, as PUBLISH returns it, with its parts.

    ``bindings``  bindings that led to a stream
    ``durables``  durable subscriptions
    ``live``      live subscriptions; of a queue group, the chosen one
    ``ids``       {stream: ID} of the entries appended for bindings
    """

    bindings: int
    durables: int
    live: int
    ids: dict[Text, StreamID]

    def __new__(cls, bindings: int = 0, durables: int = 0, live: int = 0,
                ids: dict[Text, StreamID] | None = None) -> Reached:
        """The sum of the parts."""
        made = super().__new__(cls, bindings + durables + live)
        vars(made).update(bindings=bindings, durables=durables, live=live, ids=ids or {})
        return made

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"what publish() returns does not change: {name}={value!r:.60}")

    def to_dict(self) -> dict[str, object]:
        """The parts by name."""
        return dict(vars(self))

    def __repr__(self) -> str:
        return f"Reached({int(self)}: bindings={self.bindings}, durables={self.durables}, live={self.live})"


@dataclass(frozen=True, slots=True)
class Binding(Figures):
    """A binding as store.bindings() returns it."""

    id: int
    subject: str
    stream: Text
    created: datetime


class QueueMember(NamedTuple):
    """A member of a queue group: a live one has an owner, a durable one a stream."""

    id: int
    weight: int
    detail: Detail


class Targets(NamedTuple):
    """Where the messages of a subject go, dead processes included."""

    bindings: list[bytes]  # the stream of each binding
    durables: list[bytes]  # the stream of each durable subscription
    owners: dict[int, int]  # live subscriptions by process
    queues: list[list[QueueMember]]
    state: bytes | None = None  # of the index in which they were looked up: its record


_NO_TARGETS = Targets([], [], {}, [])


class PubSub:
    """A part of ``Store``: publishing, bindings and subscriptions by subject."""

    def __init__(self, source: StoreSource, limits: NodeLimits, encoding: str | None) -> None:
        self._source = source
        self._limits = limits
        self._encoding = encoding
        self._leases = source.env.attached(Leases)
        self._details: dict[int, Detail] = {}
        self._dispatcher: Dispatcher | None = None
        self._channels: Channels | None = None
        self._leases.remove_dead_owners(source)

    @cached_property
    def subjects(self) -> Sublist:
        """The subject index of the store."""
        return Sublist(self._source, encoding=self._encoding)

    def require_outside(self) -> None:
        """TransactionError where this thread has been interrupted in what close() would wait for."""
        dispatcher = self._dispatcher
        if dispatcher is not None and not dispatcher.inherited:
            dispatcher.require_outside()

    def close(self) -> None:
        """End the live subscriptions made through this store, in one commit."""
        dispatcher = self._dispatcher
        if dispatcher is not None and not dispatcher.inherited:
            dispatcher.close()

    def dispatcher(self) -> Dispatcher:
        """The dispatcher of this store in this process; a new one in a forked child."""
        self._source.require_open()
        if self._dispatcher is None or self._dispatcher.inherited:
            self._dispatcher = Dispatcher(self._source, self._leases, self.subjects.cache)
        return self._dispatcher

    def channels(self) -> Channels:
        """Redis' channels of the store."""
        self._source.require_open()
        if self._channels is None:
            from .channels import Channels  # noqa: PLC0415

            self._channels = Channels(self._source, self._leases, self.dispatcher, self._encoding)
        return self._channels

    # -- publishing ---------------------------------------------------------------------

    def publish(self, subject: Text, fields: Fields) -> Reached:
        """Publish a message in a commit of its own, if there are targets."""
        publication = self.publication(subject, fields)
        self._source.require_writable("publish")
        with self._source.read() as txn:
            targets = self.targets(txn, publication.args[0])
        if targets is _NO_TARGETS:
            return Reached()
        return self._source.submit(partial(publication, targets=targets))

    def publication(self, subject: Text, fields: Fields) -> partial[Reached]:
        """The operation that publishes a message, with subject and fields checked, and nothing done yet.

        SubjectError for a malformed subject or one with a wildcard, InvalidFields for the fields.
        """
        literal = _literal(subject) if isinstance(subject, str | bytes) else subjects.literal(subject)
        flat = flatten(fields)
        if SUBJECT_FIELD in flat[::2]:
            raise InvalidFields(f"the field name {SUBJECT_FIELD.decode()!r} is reserved for the subject; use another")
        return partial(self._send, literal, flat, now_ms())

    def _send(self, subject: bytes, fields: list[bytes], now: int, txn: WriteTransaction,
              targets: Targets | None = None) -> Reached:
        """Append a message to streams and put it into the ring, in a write transaction."""
        if targets is None or targets.state != matching.stamp(txn):
            targets = self.targets(txn, subject)
        owners = dict.fromkeys(targets.owners)
        owners.update((each.detail, None) for group in targets.queues for each in group if isinstance(each.detail, int))
        listening = self._leases.live_owners(txn, list(owners)) if owners else []
        alive = set(listening)
        chosen = [member for member in (_choose(group, alive) for group in targets.queues) if member is not None]

        flat = [SUBJECT_FIELD, subject, *fields]
        ids: dict[bytes, StreamID] = {}
        durable = targets.durables + [member.detail for member in chosen if isinstance(member.detail, bytes)]
        for name in dict.fromkeys(targets.bindings + durable):
            ensure = durables.ensure_stream if name in durable else writer.ensure
            stream = ensure(txn, name, self._limits)
            ids[name] = stream.append(txn, AUTO, now, flat)
            writer.after_append(txn, stream, now)

        live = {owner: count for owner, count in targets.owners.items() if owner in alive}
        picked = [member for member in chosen if isinstance(member.detail, int)]
        if live or picked:
            to = [owner for owner in listening if owner in live or any(member.detail == owner for member in picked)]
            bound = [part for name in dict.fromkeys(targets.bindings) for part in (name, bytes(ids[name]))]
            ring.put(txn, LiveMessage(ring.SUBJECT, now, subject, fields, to, [member.id for member in picked], bound))
        encoding = self._encoding
        appended: dict[Text, StreamID] = {
            name if encoding is None else name.decode(encoding, UNDECODABLE): ids[name] for name in targets.bindings
        }
        return Reached(len(targets.bindings), len(durable), sum(live.values()) + len(picked), appended)

    def targets(self, txn: RaxTransaction, subject: bytes) -> Targets:
        """Where the messages of a literal subject go. A match that comes from the cache keeps its targets."""
        found = self.subjects.cache.match(txn, subject)
        if not found:
            return _NO_TARGETS
        targets = found.targets
        if not isinstance(targets, Targets):
            targets = found.targets = self._look_up(txn, found)
        return targets

    def _look_up(self, txn: RaxTransaction, found: Match) -> Targets:
        details = self._details
        if len(details) > _MOST_DETAILS:
            details.clear()
        keep = not isinstance(txn, WriteTransaction)
        get = details.get
        targets = Targets([], [], {}, [], txn.get(sublist.STATE_KEY))
        owners = targets.owners
        for kind, numbers in found.by_kind.items():
            streams = targets.bindings if kind == BINDING else targets.durables
            for number in numbers:
                detail = get(number)
                if detail is None:
                    detail = self._read_detail(txn, number, keep)
                if isinstance(detail, bytes):
                    streams.append(detail)
                elif detail != _ELSEWHERE:
                    owners[detail] = owners.get(detail, 0) + 1
        for group in found.queues.values():
            members = [
                QueueMember(member.id, member.weight, details[member.id] if member.id in details
                            else self._read_detail(txn, member.id, keep))
                for member in group
            ]
            ours = [member for member in members if member.detail != _ELSEWHERE]
            if ours:
                targets.queues.append(ours)
        return targets if any(targets[:4]) else _NO_TARGETS

    def _read_detail(self, txn: RaxTransaction, number: int, keep: bool) -> Detail:
        record = sublist.get(txn, number)
        detail: Detail
        if record.kind == LIVE:
            owner = owner_of(record.owner)
            detail = _ELSEWHERE if owner is None else owner
        else:
            stream = record.options.get(STREAM_OPTION)
            detail = stream if isinstance(stream, bytes) else _ELSEWHERE
        if keep:
            self._details[number] = detail
        return detail

    # -- bindings -----------------------------------------------------------------------

    def bind(self, subject: Text, stream: Name, source: Source | None = None) -> Binding:
        """Put a binding into the index, unless it is there; in a transaction, if ``source`` is its."""
        wanted = _bound(subject, name_bytes(stream))
        self._source.require_writable("bind")
        record = (source or self._source).submit(
            lambda txn: sublist.get(txn, sublist.insert_many(txn, [wanted])[0]))
        return self._binding(record)

    def unbind(self, subject: Text | None, stream: Name, source: Source | None = None) -> bool:
        """Remove one binding of a stream, or all (``subject`` None); False if there is none. ``source``: as above."""
        name = name_bytes(stream)
        wanted = None if subject is None else _bound(subject, name).name

        def operation(txn: WriteTransaction) -> bool:
            if wanted is None:
                return bool(sublist.remove_owner(txn, _owner(name)))
            found = sublist.by_name(txn, wanted)
            return found is not None and bool(sublist.remove_many(txn, [found.id]))

        self._source.require_writable("unbind")
        return (source or self._source).submit(operation)

    def bindings(self, stream: Name | None) -> list[Binding]:
        """The bindings that lead to a stream, or (None) all, by age. For all, every subscription is read."""
        self._source.require_open()
        owner = None if stream is None else _owner(name_bytes(stream))
        with self._source.read() as txn:
            found = sublist.all_subscriptions(txn) if owner is None else sublist.by_owner(txn, owner)
            return [self._binding(row) for row in found if row.kind == BINDING]

    def _binding(self, record: Subscription) -> Binding:
        subject = record.subject.decode("utf-8", UNDECODABLE)
        name = text_of(record.options[STREAM_OPTION], self._encoding)
        return Binding(record.id, subject, name, time_at(record.created_ms))

    # -- subscribing --------------------------------------------------------------------

    def subscribe_live(self, patterns: Iterable[Text], queue: Text | None, weight: int,
                       callback: Callable[[Message], object] | None, limit: int | None) -> LiveSubscriptions:
        """Live subscriptions to these patterns, in one commit."""
        wanted = [Subscription.of(pattern, queue=queue, weight=weight) for pattern in patterns]
        self._source.require_writable("subscribe")
        max_queued = live_subscription.DEFAULT_LIMIT if limit is None else limit
        return live_subscription.subscribe(self.dispatcher(), wanted, self._encoding, max_queued, callback)

    def subscribe_durable(self, subject: Text, durable: Text, queue: Text | None, weight: int | None,
                          callback: Callable[[Message], object] | None, ack_wait: float | None,
                          prefetch: int | None) -> DurableSubscription:
        """Make a durable subscription, or take part in an existing one."""
        pattern = subjects.pattern(subject)
        self._source.require_writable("subscribe")
        name = durables.checked_name(durable)
        wanted = Subscription.of(pattern, kind=DURABLE, name=name, queue=queue, weight=1 if weight is None else weight,
                                 options={STREAM_OPTION: durables.stream_of(name)})
        return DurableSubscription(
            self._source, self.dispatcher(), self._leases, wanted, self._limits, self._encoding, callback,
            durables.ACK_WAIT if ack_wait is None else ack_wait, durables.PREFETCH if prefetch is None else prefetch,
            keep_weight=weight is None,
        )

    def unsubscribe(self, durable: Text) -> bool:
        """Remove a durable subscription and its stream; False if there is none."""
        name = durables.checked_name(durable)
        self._source.require_writable("unsubscribe")
        gone = self._source.submit(lambda txn: durables.remove(txn, name))
        if gone:
            sweep(self._source)
        return gone

    def listeners(self) -> dict[int, int]:
        """The live processes that own live subscriptions: {owner: process ID}."""
        self._source.require_open()
        owners = ask(self._source, owners_in)
        return {owner: pid for owner, (pid, _) in owners.items() if self._leases.lives(owner)}


def _choose(group: list[QueueMember], alive: set[int]) -> QueueMember | None:
    """One member of a queue group, by weight; of the live ones only those whose process lives."""
    able = [member for member in group if isinstance(member.detail, bytes) or member.detail in alive]
    return _random.choices(able, [member.weight for member in able])[0] if able else None


def _bound(subject: Text, stream: bytes) -> Subscription:
    """The record of a binding. SubjectError for a malformed pattern."""
    pattern = subjects.pattern(subject)
    digest = sha256(len(stream).to_bytes(2, "big") + stream + pattern)
    return Subscription.of(pattern, kind=BINDING, owner=_owner(stream), name=b"\0binding " + digest,
                           options={STREAM_OPTION: stream})


def _owner(stream: bytes) -> bytes:
    return b"\0stream " + sha256(stream)
