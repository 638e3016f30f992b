"""The dispatcher: from the ring to the live subscriptions that one process has on one open store.

    commit in any process ──wake──> watcher ──> one thread here: reads the ring once
                                                   │  messages for this process
                        ┌──────────────────────────┼─────────────────────┐
                  subscription "orders.*"    subscriber of a channel    durable subscription
                  (its inbox gets it)        (its inbox gets it)        (signalled: its stream moved)

The process is one owner, with a lease that ends when it does (leases.py).
A message in the ring names the owners it is for; here it is matched once more against the
index, in the transaction it was read in, and delivered to the matching subscriptions of this
process. A subscription notes in its own transaction which number the next message
has, so it gets what was published after it and nothing from before.

The thread begins with the first subscription and ends with the last. It sleeps in
stream/group/waiter.py like any reader, so nothing is polled.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NoReturn
from weakref import ref

from ...storage import clocks
from ...storage.errors import CorruptionError, StoreClosed, StoreError, closed
from ...storage.fork_hooks import at_exit, forget_in_child, look
from ...storage.locks.shared_file import SHARED
from ...storage.log.transaction import WriteTransaction
from ...storage.threads import outside, start
from ...storage.trees.rax import RaxTransaction
from ...stream.entries.session import StoreSource
from ...stream.group.waiter import Condition, WaitQueues
from ..subjects import subscription
from ..subjects.match import Cache
from . import channel_index, ring
from .inbox import Callbacks, Inbox, LiveInbox, end, forget, formed, put, signal
from .leases import Leases, remove_owner
from .ring import LiveMessage

_AT_ONCE = 256  # messages read in one transaction


class Dispatcher:
    """The live subscriptions made through one open store, and the thread that delivers to them."""

    def __init__(self, source: StoreSource, leases: Leases, cache: Cache) -> None:
        self._source = source
        self._leases = leases
        self._cache = cache
        self._mutex = threading.RLock()  # no thread enters it twice
        self._inherited = False
        self._owner: int | None = None
        self._noted: int | None = None  # the owner, once its record is committed
        self._closed = False
        self._thread: threading.Thread | None = None
        self._changes = 0  # how often _poke() was called
        self._next: int | None = None  # the number of the message to read next
        self.callbacks: Callbacks = Callbacks()
        # By subscription ID; by (kind, channel or glob) and then listener: the number of its first message.
        self._subjects: dict[int, tuple[LiveInbox[Any], int]] = {}
        self._channels: dict[tuple[bytes, bytes], dict[LiveInbox[Any], int]] = {}
        self._durables: dict[Inbox[Any], tuple[Condition, float]] = {}
        self._inboxes: set[Inbox[Any]] = set()
        _all.add(ref(self, _all.discard))
        clocks.followers.add(ref(self, clocks.followers.discard))

    @property
    def owner(self) -> int:
        """This process's number in the store, taken when it is first needed."""
        with outside(self._mutex, self._source.env.path):
            if self._owner is None:
                self._owner = self._leases.take()
            return self._owner

    @property
    def inherited(self) -> bool:
        """Whether it was made by the parent, before a fork."""
        look()
        return self._inherited

    # -- subscribing --------------------------------------------------------------------

    def subscribe(self, inboxes: Sequence[Inbox[Any]], change: Callable[[WriteTransaction, int, int], None]) -> None:
        """Run a change that subscribes, with this process's owner number and the next message's number.

        The owner is recorded in the same commit. From now on the inboxes end with the store.
        """
        self._start(inboxes)
        owner = self.owner

        def operation(txn: WriteTransaction) -> None:
            if not channel_index.has_owner(txn, owner):
                channel_index.add_owner(txn, owner, os.getpid(), clocks.now_ms())
            change(txn, owner, ring.next_number(txn))

        self._source.submit(operation)
        if self._noted != owner:
            self._noted = owner
            self._poke()

    def unsubscribe(self, change: Callable[[WriteTransaction, int], object]) -> None:
        """Run a change that removes subscriptions, with this process's owner number.

        Does nothing where they end anyway, or have ended: in a closed store, in a forked child.
        """
        owner = self._owner
        if owner is not None and not self.inherited and not self._closed:
            self._source.submit(lambda txn: change(txn, owner))

    def add_subject(self, number: int, listener: LiveInbox[Any], since: int) -> None:
        """Register the listener of a subscription. To be called before its commit."""
        self._subjects[number] = (listener, since)

    def remove_subject(self, number: int, listener: LiveInbox[Any]) -> None:
        """Unregister it, unless the ID is another listener's by now (after an undone attempt)."""
        if self._subjects.get(number, _NONE)[0] is listener:
            self._subjects.pop(number, None)

    def add_channel(self, kind: bytes, name: bytes, listener: LiveInbox[Any], since: int) -> None:
        """Register a listener on a channel or glob. To be called before its commit."""
        with outside(self._mutex, self._source.env.path):
            self._channels.setdefault((kind, name), {})[listener] = since

    def remove_channel(self, kind: bytes, name: bytes, listener: LiveInbox[Any]) -> None:
        with outside(self._mutex, self._source.env.path):
            listeners = self._channels.get((kind, name), {})
            listeners.pop(listener, None)
            if not listeners:
                self._channels.pop((kind, name), None)

    def watch(self, inbox: Inbox[Any], probe: Condition, every: float) -> None:
        """Signal the inbox whenever the probe's value changes, and every ``every`` seconds."""
        with outside(self._mutex, self._source.env.path):
            self._durables[inbox] = (probe, every)
        self._start([inbox])
        self._poke()

    def release(self, inbox: Inbox[Any]) -> None:
        """Forget a closed inbox; with the last one the thread ends."""
        with outside(self._mutex, self._source.env.path):
            self._durables.pop(inbox, None)
            self._inboxes.discard(inbox)
            last = not self._inboxes
        if last:
            self._poke()

    def clock_moved(self) -> None:
        """Have each that waits for a message look at the clock again."""
        for inbox in list(self._inboxes):
            signal(inbox)

    def _start(self, inboxes: Sequence[Inbox[Any]]) -> None:
        # Not under the mutex: a read waits while the map grows, and that commit may want the mutex.
        with self._source.read() as txn:
            following = ring.position(txn)[0]
        with outside(self._mutex, self._source.env.path):
            if self._closed:
                raise closed(self._source.env.path)
            self._inboxes.update(inboxes)
            if self._thread is None:
                self._next = following  # or before: each listener has its own first number
                thread = threading.Thread(target=self._run, name="raxlog live", daemon=True)
                at_exit(self._end)  # a thread that reads LMDB must not see the interpreter end
                self._thread = thread
                try:
                    start(thread)
                except StoreError:
                    self._thread = None
                    self._inboxes.difference_update(inboxes)
                    raise

    def _poke(self) -> None:
        """Make the thread look again at what it waits for."""
        self._changes += 1
        self._source.env.commits.wake_readers(0)

    # -- the end ------------------------------------------------------------------------

    def require_outside(self) -> None:
        """TransactionError where this thread has been interrupted as it changed what is subscribed."""
        outside(self._mutex, self._source.env.path)

    def close(self) -> None:
        """Remove all subscriptions, in one commit, and end the threads. PubSub.close() calls this."""
        inboxes = self._end()
        for inbox in inboxes:
            if isinstance(inbox, LiveInbox):
                end(inbox)  # their subscriptions are removed together, below
            else:
                inbox.close()
        self.callbacks.close()
        owner = self._owner
        if owner is not None:
            try:
                self._source.submit(lambda txn: remove_owner(txn, owner))
            finally:
                # Also after an exception: with the lease released, any process removes what is left.
                self._leases.give_back(owner)
        self._inboxes.clear()

    def _end(self) -> list[Inbox[Any]]:
        with outside(self._mutex, self._source.env.path):
            self._closed = True
            inboxes = list(self._inboxes)
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._poke()
            thread.join(5.0)
        atexit.unregister(self._end)
        return inboxes

    def forget(self) -> None:
        """In a child after fork: end here; all of it is the parent's."""
        self._mutex = threading.RLock()
        self._closed = self._inherited = True
        self._thread = None
        self.callbacks.forget()
        atexit.unregister(self._end)
        for inbox in list(self._inboxes):
            forget(inbox)
        self._inboxes.clear()

    # -- the thread ---------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._listen()
            return
        except BaseException as error:  # of any class: waiting threads must not wait for ever
            failed = None if isinstance(error, StoreClosed) else error  # the regular end
        with self._mutex:
            self._thread = None
            inboxes = list(self._inboxes)
        for inbox in inboxes:
            end(inbox, failed)

    def _listen(self) -> None:
        waiting = self._source.env.attached(WaitQueues)
        moved = Condition(lambda txn: self._changes)
        seen: dict[Condition, Hashable] = {}
        due: dict[Inbox[Any], float] = {}
        while True:
            with self._mutex:
                if self._closed or not self._inboxes:
                    self._thread = None
                    return
                durables = dict(self._durables)
                noted = self._noted  # before the transaction begins: it must have seen that commit
            changes = self._changes
            with self._source.read() as txn:
                found, deliveries = self._read(txn, noted)
                before, seen = seen, {probe: probe.value(txn) for probe, _ in durables.values()}
                seen[_RING] = self._next
                seen[moved] = changes
                if noted is not None:
                    seen[Condition(channel_index.has_owner, noted)] = True
            for delivery in deliveries:
                _deliver(*delivery)
            now = clocks.monotonic()
            due = {inbox: due.get(inbox, now + every) for inbox, (_, every) in durables.items()}
            for inbox, (probe, every) in durables.items():
                if before.get(probe) != seen[probe] or now >= due[inbox]:
                    due[inbox] = now + every
                    signal(inbox)
            if not found:
                waiting.wait(seen, min(due.values(), default=None))

    def _read(self, txn: RaxTransaction, noted: int | None) -> tuple[bool, list[_Delivery]]:
        """Whether the ring has new messages, and the deliveries to this process's listeners."""
        assert self._next is not None
        if noted is not None and not channel_index.has_owner(txn, noted):
            self._lost_lease()
        following, first = ring.position(txn)
        if self._next < first:
            lost = first - self._next
            with self._mutex:
                inboxes = list(self._inboxes)
            for inbox in inboxes:
                if isinstance(inbox, LiveInbox):
                    inbox.missed_at_most += lost
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
                deliveries += [(number, message, *target) for target in self._targets(txn, message)]
        return True, deliveries

    def _lost_lease(self) -> NoReturn:
        with self._mutex:
            owner, self._owner, self._noted = self._owner, None, None
        if owner is not None:
            self._leases.give_back(owner)
        raise StoreError(
            "another process has found this one dead and removed its live subscriptions: the lease on them was lost, "
            f"for {self._source.env.path / SHARED} was replaced. End every process that has the store open, and "
            "subscribe again."
        )

    def _targets(self, txn: RaxTransaction, message: LiveMessage) -> list[tuple[bytes | None, _Listeners]]:
        """The listeners of a message here, by the glob that matches, each with its first number."""
        if message.kind == ring.SUBJECT:
            get = self._subjects.get
            numbers = [*self._cache.match(txn, message.name).by_kind.get(subscription.LIVE, ()), *message.chosen]
            return [(None, [entry for number in numbers if (entry := get(number)) is not None])]
        targets: list[tuple[bytes | None, _Listeners]] = []
        kind = channel_index.CHANNEL if message.kind == ring.CHANNEL else channel_index.SHARD
        for row in channel_index.subscribers(txn, kind, message.name):
            if row.owner == self._owner:
                key = (kind, message.name) if row.glob is None else (channel_index.GLOB, row.glob)
                with self._mutex:
                    targets.append((row.glob, list(self._channels.get(key, {}).items())))
        return targets


def _deliver(number: int, message: LiveMessage, glob: bytes | None, listeners: _Listeners) -> None:
    """Deliver a message to the listeners that subscribed before it: the same object to all."""
    same = None
    for listener, since in listeners:
        if number >= since:
            if same is None:
                same = formed(listener, message, glob)
            put(listener, same)


_Delivery = tuple[int, LiveMessage, bytes | None, "_Listeners"]
_Listeners = list[tuple[LiveInbox[Any], int]]  # listeners, each with the number of its first message
_NONE = (None, 0)
_RING = Condition(lambda txn: ring.position(txn)[0])
_all: set[ref[Dispatcher]] = set()
forget_in_child(_all, Dispatcher.forget)
