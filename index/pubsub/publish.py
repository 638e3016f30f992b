"""Publishing, alone or in a transaction: one commit that appends to every bound stream, and says who listens.

    publish("orders.eu.new", {…})
      │  subject and fields are checked; in a read transaction: does it reach anybody?   no: 0
      └─ one operation of group commit
           ├─ the index is asked again, for now it stands still
           ├─ each bound stream, each durable subscription's stream     + one entry
           └─ who listens live                                          one row in the ring (ring.py)

An entry's first field is ``$subject``, with the subject: a field as any other, so its bytes are
those XADD would have written, and it stays with the entry wherever that is copied, exported or
read by another program. ``entry.subject`` gives it.

A stream is appended to once, however many bindings lead to it. Of a queue group one member gets
the message, live or durable, each as often as its weight says.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ...storage.commit.write_transaction import WriteTransaction
from ...storage.errors import InvalidFields
from ...stream import transaction
from ...stream.entries import writer
from ...stream.entries.header import NodeLimits
from ...stream.entries.session import Direct
from ...stream.node.clock import now_ms
from ...stream.node.entry import SUBJECT_FIELD, flatten
from ...stream.node.names import text_of
from ...stream.node.stream_id import AUTO, StreamID
from ..subjects import subject as subjects
from . import durable_subscription, ring
from . import targets as routes
from .leases import Leases
from .ring import LiveMessage


class Reached(int):
    """How many a message reached: a number, as PUBLISH gives it, with its parts.

    ``bindings``  bindings that led to a stream
    ``durables``  durable subscriptions
    ``live``      live subscriptions, of a queue group the one that was chosen
    ``ids``       {stream: ID} of the entries appended for bindings
    """

    bindings: int
    durables: int
    live: int
    ids: dict[Any, StreamID]

    def __new__(cls, bindings: int = 0, durables: int = 0, live: int = 0,
                ids: dict[Any, StreamID] | None = None) -> Reached:
        """The sum of the parts."""
        made = super().__new__(cls, bindings + durables + live)
        made.bindings = bindings
        made.durables = durables
        made.live = live
        made.ids = ids or {}
        return made

    def __repr__(self) -> str:
        return f"Reached({int(self)}: bindings={self.bindings}, durables={self.durables}, live={self.live})"


class Publication:
    """A message that is about to be published: checked, and nothing done yet."""

    def __init__(self, subject: Any, fields: Any) -> None:
        """SubjectError for a malformed subject or one with a wildcard, InvalidFields for the fields."""
        self.subject = subjects.literal(subject)
        self.flat = flatten(fields)
        if SUBJECT_FIELD in self.flat[::2]:
            raise InvalidFields(f"the field name {SUBJECT_FIELD.decode()!r} is reserved for the subject; use another")
        self.now = now_ms()

    def send(self, known: routes.Known, leases: Leases, limits: NodeLimits, encoding: str | None,
             txn: WriteTransaction) -> Reached:
        """Append it to streams and tell listeners, in the write transaction. ``limits`` for streams it creates."""
        reach = known.reach(txn, self.subject)
        owners = dict.fromkeys(reach.owners)
        owners.update((one.detail, None) for group in reach.queues for one in group if isinstance(one.detail, int))
        living = routes.living(txn, leases, list(owners))
        alive = set(living)
        chosen = [one for one in (routes.choose(group, alive) for group in reach.queues) if one is not None]

        flat = [SUBJECT_FIELD, self.subject, *self.flat]
        ids: dict[bytes, StreamID] = {}
        durables = reach.durables + [one.detail for one in chosen if isinstance(one.detail, bytes)]
        for name in dict.fromkeys(reach.bindings + durables):
            if name in durables:
                stream = durable_subscription.require_stream(txn, name, limits)
            else:
                stream = writer.ensure(txn, name, limits)
            ids[name] = stream.append(txn, AUTO, self.now, flat)

        heard = {owner: count for owner, count in reach.owners.items() if owner in alive}
        live = sum(heard.values())
        picked = [one for one in chosen if isinstance(one.detail, int)]
        if heard or picked:
            targets = [owner for owner in living if owner in heard or any(one.detail == owner for one in picked)]
            ring.put(txn, LiveMessage(
                ring.SUBJECT, self.now, self.subject, self.flat, targets, [one.id for one in picked]
            ))
        appended = {text_of(name, encoding): ids[name] for name in reach.bindings}
        return Reached(len(reach.bindings), len(durables), live + len(picked), appended)


class Transaction(transaction.Transaction):
    """All or nothing, one commit: made by ``store.transaction()``, used with ``with``."""

    __slots__ = ("_known", "_leases")

    def __init__(self, direct: Direct, encoding: str | None, limits: NodeLimits, known: routes.Known,
                 leases: Leases) -> None:
        super().__init__(direct, encoding, limits)
        self._known = known
        self._leases = leases

    def publish(self, subject: Any, fields: Any) -> Reached:
        """Store.publish() as part of the transaction: it is heard after the commit."""
        publication = Publication(subject, fields)
        return self.apply(partial(publication.send, self._known, self._leases, self._limits, self._encoding))
