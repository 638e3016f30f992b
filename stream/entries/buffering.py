"""Buffering: appends that get their final IDs at once, and are committed behind their callers.

    callers       append  append  append  …  append          append …
                    │ the first asks for a window              │ waits up to 2 ms, then goes on
    background      └─ lead, writer's lock ── window ──┬── one durable commit ──┬─ lock given up
                                                       │                        │
                       over when so many ms have passed, when the buffer is full, at a flush,
                       and when another call or process wants to write

While the writer's lock is held nobody else writes, so a stream's header, read once, tells all
IDs to come: they are given from memory, and the same appends, applied later in one transaction
of the committer's kind (storage/batch.py), get the same ones. A commit holds whole calls, in
their order, and is an ordinary durable one. So what a kill or a power cut leaves is what the
calls had done up to some moment within the last window.

Whatever else is called in this process commits first what is buffered (flush()). While a batch
is put into its transaction appends step aside: in a tight loop they would keep the interpreter
to themselves for 5 ms at each of the many moments the committing thread needs it. While the
disk works they step aside for 2 ms, then for 2 in 7; what comes meanwhile is the next commit.
Threads that have to wait stand in a line, and each that gets in calls the next: sixty-four woken
at once would take the interpreter from each other, and from the commit. If none else wants to
write, the lock is kept for that.

If a commit fails, all that is buffered by then is lost with it, and nothing more is taken until
flush() or close() has told so: what is in the store stays what the first so many calls did.

The background thread owns the lead and the transaction, so no Ctrl-C can break them off. What a
caller does under the mutex may be broken off at any step, so it is one step that counts: the
entry's entering a list, which also decides the next ID.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from threading import Lock, get_ident
from typing import Any

from ...storage.commit.write_transaction import WriteTransaction
from ...storage.engine.environment import Environment
from ...storage.errors import StoreClosed, TransactionError
from ..node.clock import now_ms
from ..node.stream_id import AUTO, MAX64, NewID, StreamID, make_id
from . import header as headers
from . import writer
from .behind import ASIDE, COMMITTING, GO_ON_MS, IDLE, OPEN, OPENING, Behind
from .buffered import Head, Run, Step, again
from .header import NodeLimits, StreamHeader

MOST_ENTRIES = 10_000  # buffered at a time; and as many in the commit under way
MOST_BYTES = 4 << 20


class Buffer(Behind):
    """The buffered appends of one environment, for all its threads. Get it by buffer_of()."""

    # -- appending ----------------------------------------------------------------------

    def append(self, name: bytes, limits: NodeLimits, now: int, flat: list[bytes], timeout: float) -> StreamID:
        """Append an entry with ``*`` as its ID to a stream, which is created if need be.

        StreamExhausted; AppendsLost until an earlier loss has been told; LockTimeout where no
        window could be opened within ``timeout`` seconds. About 2 µs.
        """
        refusals = self._refusals
        place = None
        clock = now  # that of the entry's ID may be of before a wait
        while True:
            wait = None
            with self._mutex:
                if clock >= self._until:
                    wait = self._admit(clock, timeout, refusals, place)
                hold = self._hold
                head = self._heads.get(name)
                if wait is None and head is not None:
                    if place is not None:
                        self._let_in(place)
                    items = head.items if head.batch == self._number else self._enlist(name, head)
                    self._callers.add(get_ident())
                    self._count += 1
                    self._bytes += sum(map(len, flat))
                    if self._count >= MOST_ENTRIES or self._bytes >= MOST_BYTES:
                        self._until = 0
                    run = items[-1] if items else None
                    if type(run) is Run and run.now == now:
                        seq = run.seq + len(run.entries)
                        if seq <= MAX64:
                            run.entries.append(flat)
                            return make_id(run.ms, seq)
                    first = head.next_id(AUTO, now)
                    items.append(Run(name, limits, now, first, flat))
                    return make_id(*first)
            if wait is not None:
                place, seconds = wait
                place.acquire(timeout=seconds)
                clock = now_ms()
            else:
                self._look_up(name, limits, hold)

    def put(self, name: bytes, limits: NodeLimits, news: Iterable[NewID], now: int, size: int, create: bool,
            operation: Callable[[WriteTransaction], Any], timeout: float) -> list[StreamID] | None:
        """Any append as a whole: ``operation`` is applied later, and gets the IDs returned here.

        ``size`` in bytes. None where the stream is not there and ``create`` is false. Raises as
        append() does, and IDTooSmall, with nothing changed.
        """
        refusals = self._refusals
        place = None
        clock = now  # that of the entry's ID may be of before a wait
        while True:
            wait = None
            with self._mutex:
                if clock >= self._until:
                    wait = self._admit(clock, timeout, refusals, place)
                hold = self._hold
                head = self._heads.get(name)
                if wait is None and head is not None:
                    if place is not None:
                        self._let_in(place)
                    items = head.items if head.batch == self._number else self._enlist(name, head)
                    if not (create or head.exists or items):
                        return None
                    ids = head.next_ids(news, now)
                    self._callers.add(get_ident())
                    self._count += len(ids)
                    self._bytes += size
                    if self._count >= MOST_ENTRIES or self._bytes >= MOST_BYTES:
                        self._until = 0
                    items.append(Step(name, operation, ids))
                    return ids
            if wait is not None:
                place, seconds = wait
                place.acquire(timeout=seconds)
                clock = now_ms()
            else:
                self._look_up(name, limits, hold)

    def _enlist(self, name: bytes, head: Head) -> list[Run | Step]:
        """The stream's items in the batch, which has none of it so far."""
        items: list[Run | Step] = []
        head.items = items
        self._batch[name] = head
        head.batch = self._number
        return items

    def _look_up(self, name: bytes, limits: NodeLimits, hold: int) -> None:
        """Read a stream's header. Without the mutex: a read may wait for who holds the lead."""
        with self._env.read() as txn:
            found = headers.find(txn, name)
        number, header = (0, StreamHeader(name, limits)) if found is None else found
        with self._mutex:
            if hold == self._hold and self._phase != IDLE:
                self._heads.setdefault(name, Head(writer.StreamWriter(number, header, 0), found is not None))

    def _admit(self, clock: int, timeout: float, refusals: int, place: Lock | None) -> tuple[Lock, float] | None:
        """Under the mutex: None if an append is to be taken now, else a place to wait in, and for how long.

        ``place``  where it has waited before
        """
        if self._failure is not None:
            raise again(self._failure)
        if self._shut:
            raise StoreClosed(f"the store {self._env.path} has been closed. Open it again.")
        if self._env.commits.in_own_transaction():
            raise TransactionError(
                "this thread has a transaction open; write through it (tx.stream(...)), or end it first"
            )
        if self._refusals != refusals and self._refusal is not None:
            raise self._refusal
        is_full = self._count >= MOST_ENTRIES or self._bytes >= MOST_BYTES
        if self._forking:
            return self._line_up(place)
        if self._phase == IDLE:
            if self._thread is None:
                self._start()  # in a forked child
            self._timeout = timeout
            self._ring()
            self._phase = OPENING
            return self._line_up(place)
        if self._phase == OPEN and not (is_full or self._due):
            if clock < self._until or not self._batch:
                return None
            self._hurry()
            return self._line_up(place, aside=True)
        if self._phase == COMMITTING and not (is_full or self._hands_over):
            moment = time.monotonic()
            if not self._applied or moment < self._aside_until:
                return self._line_up(place, aside=True)
            self._until = clock + GO_ON_MS
            self._aside_until = moment + GO_ON_MS / 1000 + ASIDE
            return None
        self._hurry()
        return self._line_up(place)


def buffer_of(env: Environment) -> Buffer:
    """The buffer of an environment; begun anew in a forked child."""
    return env.attached(Buffer)
