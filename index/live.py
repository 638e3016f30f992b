"""Live subscriptions of one open store: who in this process listens, and how they are told.

    commit in any process ──wake──> watcher ──> one thread here: reads the ring once
                                                   │  what is for this process
                        ┌──────────────────────────┼─────────────────────┐
                  subscription "orders.*"    subscriber of a channel    durable subscription
                  (its inbox gets it)        (its inbox gets it)        (told that its stream moved)

The process is one owner in the store's eyes, with a lease that ends when it does (leases.py).
A message in the ring names the owners it is for; here it is matched once more against the
index, in the transaction it was read in, and given to those of the matching subscriptions that are
this process's own. A subscription notes in its own transaction which number the next message
has, so it gets what was published after it and nothing from before.

The thread begins with the first subscription and ends with the last. It sleeps in
stream/waiting.py like any reader, so nothing is polled.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from typing import Any, NoReturn, TypeVar

from ..storage.errors import CorruptionError, StoreClosed, StoreError
from ..storage.sharing import forget_in_child
from ..storage.write_transaction import WriteTransaction
from ..stream.probe import Probe
from ..stream.source import Direct
from ..stream.waiting import waiting_of
from . import channel_rows, ring, routes
from .inbox import Callbacks, Inbox
from .leases import LIVE, Leases
from .ring import LiveMessage

_AT_ONCE = 256  # messages read in one transaction

T = TypeVar("T")


class Listener(Inbox[Any]):
    """A live subscription: what this process keeps of it, and gives it."""

    def hear(self, number: int, message: LiveMessage, glob: bytes | None) -> None:
        """A message for it; ``glob`` is the pattern it was heard by, on a channel."""
        raise NotImplementedError

    def missed(self, count: int) -> None:
        """So many messages left the ring unread; some may have been for it."""
        raise NotImplementedError


class Live:
    """The live subscriptions made through one open store."""

    def __init__(self, source: Direct, leases: Leases, known: routes.Known) -> None:
        self._source = source
        self._leases = leases
        self._known = known
        self._mutex = threading.Lock()
        self._pid = os.getpid()
        self._owner: int | None = None
        self._noted: int | None = None  # the owner, once its record is in the store
        self._closed = False
        self._thread: threading.Thread | None = None
        self._changes = _Changes()
        self._next: int | None = None  # the number of the message to read next
        self.callbacks = Callbacks()
        # By subscription ID; by (kind, channel or glob) and then listener: since which message.
        self._subjects: dict[int, tuple[Listener, int]] = {}
        self._channels: dict[tuple[bytes, bytes], dict[Listener, int]] = {}
        self._durables: dict[Inbox[Any], tuple[Probe, float]] = {}
        self._inboxes: set[Inbox[Any]] = set()
        _all.add(self)

    @property
    def owner(self) -> int:
        """This process's number in the store, taken when it is first needed."""
        with self._mutex:
            if self._owner is None:
                self._owner = self._leases.take()
            return self._owner

    @property
    def inherited(self) -> bool:
        """Whether it is the parent's, from before a fork."""
        return self._pid != os.getpid()

    @property
    def closed(self) -> bool:
        """Whether close() has been called: what was subscribed to goes as a whole."""
        return self._closed

    # -- subscribing --------------------------------------------------------------------

    def subscribe(self, inbox: Inbox[Any], change: Callable[[WriteTransaction, int, int], T]) -> T:
        """Run a change that subscribes; it gets this process's owner and the next message's number.

        The owner is noted in the same commit. The inbox is told of the store's end from now on.
        """
        self._start(inbox)
        owner = self.owner

        def operation(txn: WriteTransaction) -> T:
            if not channel_rows.owned(txn, owner):
                channel_rows.note_owner(txn, owner, os.getpid(), time.time_ns() // 1_000_000)
            return change(txn, owner, ring.next_number(txn))

        done = self._source.submit(operation)
        if self._noted != owner:
            self._noted = owner
            self._poke()
        return done

    def unsubscribe(self, change: Callable[[WriteTransaction, int], object]) -> None:
        """Run a change that gives subscriptions up; it gets this process's owner.

        Nothing is done where that happens anyway, or has: in a closed store, in a forked child.
        """
        owner = self._owner
        if owner is not None and not self._closed and not self.inherited:
            self._source.submit(lambda txn: change(txn, owner))

    def add_subject(self, number: int, listener: Listener, since: int) -> None:
        """A subscription of the index is this listener's. To be called before its commit."""
        self._subjects[number] = (listener, since)

    def remove_subject(self, number: int) -> None:
        """It is nobody's any more."""
        self._subjects.pop(number, None)

    def add_channel(self, kind: bytes, name: bytes, listener: Listener, since: int) -> None:
        """A listener hears a channel or glob. To be called before its commit."""
        with self._mutex:
            self._channels.setdefault((kind, name), {})[listener] = since

    def remove_channel(self, kind: bytes, name: bytes, listener: Listener) -> None:
        """It hears it no more."""
        with self._mutex:
            held = self._channels.get((kind, name), {})
            held.pop(listener, None)
            if not held:
                self._channels.pop((kind, name), None)

    def watch(self, inbox: Inbox[Any], probe: Probe, every: float) -> None:
        """Signal the inbox whenever the probe's value changes, and besides each ``every`` seconds."""
        with self._mutex:
            self._durables[inbox] = (probe, every)
        self._start(inbox)
        self._poke()

    def release(self, inbox: Inbox[Any]) -> None:
        """The inbox is closed; with the last one the thread ends."""
        with self._mutex:
            self._durables.pop(inbox, None)
            self._inboxes.discard(inbox)
            last = not self._inboxes
        if last:
            self._poke()

    def _start(self, inbox: Inbox[Any]) -> None:
        # Not under the mutex: a read waits while the map grows, and that commit may want the mutex.
        with self._source.read() as txn:
            following = ring.position(txn)[0]
        with self._mutex:
            if self._closed:
                raise StoreClosed(f"the store {self._source.path} has been closed. Open it again.")
            self._inboxes.add(inbox)
            if self._thread is None:
                self._next = following  # or before: a listener hears nothing from before it came
                self._thread = threading.Thread(target=self._run, name="raxlog live", daemon=True)
                atexit.register(self._end)  # a thread that reads LMDB must not see the interpreter end
                self._thread.start()

    def _poke(self) -> None:
        """Let the thread look at what it is to wait for."""
        self._changes.number += 1
        self._source.env.wake_readers(0)

    # -- the end ------------------------------------------------------------------------

    def close(self) -> None:
        """Give up all subscriptions, in one commit, and end the threads. Store.close() calls this."""
        inboxes = self._end()
        for inbox in inboxes:
            if isinstance(inbox, Listener):
                inbox.end()  # all that these have goes at once, below
            else:
                inbox.close()
        self.callbacks.close()
        owner = self._owner
        if owner is not None:
            try:
                self._source.submit(lambda txn: routes.remove_owner(txn, owner))
            finally:
                # Whatever came of it: who finds the lease given back removes what is left.
                self._leases.give_back(owner)
        self._inboxes.clear()

    def _end(self) -> list[Inbox[Any]]:
        with self._mutex:
            self._closed = True
            inboxes = list(self._inboxes)
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._poke()
            thread.join(5.0)
        atexit.unregister(self._end)
        return inboxes

    def forget(self) -> None:
        """In a child after fork: nothing of it is the child's."""
        self._mutex = threading.Lock()
        self._closed = True
        self._thread = None
        atexit.unregister(self._end)
        for inbox in list(self._inboxes):
            inbox.forget()
        self._inboxes.clear()

    # -- the thread ---------------------------------------------------------------------

    def _run(self) -> None:
        failed: BaseException | None = None
        try:
            self._listen()
            return
        except StoreClosed:
            pass  # that is how it ends
        except BaseException as error:  # whatever it is: who waits must not wait for ever
            failed = error
        with self._mutex:
            self._thread = None
            left = list(self._inboxes)
        for inbox in left:
            inbox.end(failed)

    def _listen(self) -> None:
        waiting = waiting_of(self._source.env)
        seen: dict[Probe, Hashable] = {}
        due: dict[Inbox[Any], float] = {}
        while True:
            with self._mutex:
                if self._closed or not self._inboxes:
                    self._thread = None
                    return
                durables = dict(self._durables)
                noted = self._noted  # before the transaction begins: it must have seen that commit
            changes = self._changes.number
            with self._source.read() as txn:
                found, deliveries = self._read(txn, noted)
                before, seen = seen, {probe: probe.value(txn) for probe, _ in durables.values()}
                seen[_RING] = self._next
                seen[self._changes] = changes
                if noted is not None:
                    seen[_Noted(noted)] = True
            for listener, number, message, glob in deliveries:
                listener.hear(number, message, glob)
            now = time.monotonic()
            due = {inbox: due.get(inbox, now + every) for inbox, (_, every) in durables.items()}
            for inbox, (probe, every) in durables.items():
                if before.get(probe) != seen[probe] or now >= due[inbox]:
                    due[inbox] = now + every
                    inbox.signal()
            if not found:
                waiting.wait(seen, min(due.values(), default=None))

    def _read(self, txn: Any,
              noted: int | None) -> tuple[bool, list[tuple[Listener, int, LiveMessage, bytes | None]]]:
        """The next messages of the ring, and to whom here each goes."""
        assert self._next is not None
        if noted is not None and not channel_rows.owned(txn, noted):
            self._lost_lease()
        following, first = ring.position(txn)
        if self._next < first:
            lost = first - self._next
            for listener in self._listeners():
                listener.missed(lost)
            self._next = first
        if self._next >= following:
            return False, []
        deliveries = []
        some = ring.messages(txn, self._next, _AT_ONCE)
        if not some:
            raise CorruptionError(f"the live messages {self._next} to {following - 1} are missing")
        for number, message in some:
            self._next = number + 1
            if self._owner in message.owners:
                for listener, since, glob in self._targets(txn, message):
                    if number >= since:
                        deliveries.append((listener, number, message, glob))
        return True, deliveries

    def _lost_lease(self) -> NoReturn:
        with self._mutex:
            owner, self._owner, self._noted = self._owner, None, None
        if owner is not None:
            self._leases.give_back(owner)
        raise StoreError(
            "another process has taken this one for dead, and its live subscriptions with it: the lease on them was "
            f"lost, for {self._source.path / LIVE} was deleted (or, on another system than Linux, opened and closed "
            "by this process). Subscribe again."
        )

    def _targets(self, txn: Any, message: LiveMessage) -> list[tuple[Listener, int, bytes | None]]:
        """Who here hears a message, since which number, by which glob."""
        heard: list[tuple[Listener, int, bytes | None]] = []
        if message.kind == ring.SUBJECT:
            for number in [*self._known.live_ids(txn, message.name), *message.chosen]:
                entry = self._subjects.get(number)
                if entry is not None:
                    heard.append((*entry, None))
            return heard
        kind = channel_rows.CHANNEL if message.kind == ring.CHANNEL else channel_rows.SHARD
        for hearer in channel_rows.hearers(txn, kind, message.name):
            if hearer.owner == self._owner:
                key = (kind, message.name) if hearer.glob is None else (channel_rows.GLOB, hearer.glob)
                with self._mutex:
                    held = list(self._channels.get(key, {}).items())
                heard += [(listener, since, hearer.glob) for listener, since in held]
        return heard

    def _listeners(self) -> list[Listener]:
        with self._mutex:
            return [inbox for inbox in self._inboxes if isinstance(inbox, Listener)]


class _Changes:
    """A probe for this process alone: how often the thread has been told to look again."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0

    def value(self, txn: Any) -> Hashable:
        """The number now."""
        return self.number


class _Noted:
    """A probe: whether this process is still noted in the store as an owner."""

    __slots__ = ("owner",)

    def __init__(self, owner: int) -> None:
        self.owner = owner

    def value(self, txn: Any) -> Hashable:
        """Whether it is. One look-up."""
        return channel_rows.owned(txn, self.owner)


_RING = ring.RingProbe()
_all: weakref.WeakSet[Live] = weakref.WeakSet()
forget_in_child(_all, Live.forget)
