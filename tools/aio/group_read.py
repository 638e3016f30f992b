"""A group read of a task: deliver.read_group() in steps, none of which holds a thread while it waits.

    look      in the lane of reads: is there anything, and if not, what was seen?
    take      in the lane of writes: the delivery, as a part of the next commit
    wait      in the line of those that read the same (turn.py)

A task that is cancelled while its delivery is committed has it taken back (stream/group/take_back.py) before it ends,
and stays first in its line until then: so the next gets those entries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from ...storage.commit.write_transaction import WriteTransaction
from ...stream.group import deliver
from ...stream.group.deliver import GroupRead, Target
from ...stream.group.take_back import Position, position, take_back
from ...stream.group.waiter import Condition
from ...stream.node.entry import Entry
from .threads import Threads
from .turn import Turn, deadline_of

T = TypeVar("T")

Positions = dict[bytes, Position | None]


class Delivery(NamedTuple, Generic[T]):
    """What a reader gets, and where the groups stood before and after."""

    found: T
    before: Positions
    after: Positions


class Reading(Generic[T]):
    """One read of a group, of one stream or of several.

    ``take``     the plain call, on handles of the batch; its argument: whether it acknowledges
    ``entries``  of what that returns, by the names of the streams
    """

    def __init__(self, threads: Threads, wanted: GroupRead, targets: list[Target], take: Callable[[bool], T],
                 entries: Callable[[T], dict[bytes, list[Entry]]]) -> None:
        self._threads = threads
        self._wanted = wanted
        self._targets = targets
        self._take = take
        self._entries = entries

    async def read(self, block: float | None, nothing: T) -> T:
        """Read at once, or wait for ``block`` seconds for the first entry; 0 for ever, None not at all."""
        deadline = deadline_of(block)
        found, _, _ = await self._attempt(True)
        if found or block is None or any(target.after is not None for target in self._targets):
            return nothing if found is None else found
        wanted = self._wanted
        with Turn(self._threads, (wanted.group, wanted.min_idle, tuple(each.stream for each in self._targets))) as turn:
            while await turn.comes(deadline):
                found, seen, due = await self._attempt(False)
                if found:
                    return found
                await turn.arm(seen, due)
        return nothing

    async def _attempt(self, is_first: bool) -> tuple[T | None, dict[Condition, Hashable], float | None]:
        """Take, if there is anything; else what was seen, and when to look again."""
        is_ready, seen, due = await self._threads.read(partial(self._look, is_first))
        if not is_ready:
            return None, seen, due
        self._threads.require_open()
        delivery = await self._threads.writes.finish(partial(self._deliver, is_first), self._undo)
        return delivery.found, seen, due

    def _look(self, is_first: bool) -> tuple[bool, dict[Condition, Hashable], float | None]:
        """In the lane of reads."""
        times = self._threads.times if is_first else None
        targets = self._targets if is_first else [target._replace(ack=b"") for target in self._targets]
        with self._threads.source.read() as txn:
            return deliver.look(txn, self._wanted, targets, times)

    # -- in the batch --------------------------------------------------------------------

    def _deliver(self, acknowledges: bool) -> Delivery[T]:
        before = self._threads.batch.submit(self._positions)
        found = self._take(acknowledges)
        return Delivery(found, before, self._threads.batch.submit(self._positions))

    def _positions(self, txn: WriteTransaction) -> Positions:
        return {target.stream: position(txn, target.stream, self._wanted.group) for target in self._targets
                if target.after is None}

    def _undo(self, delivery: Delivery[T]) -> asyncio.Future[None]:
        taken = self._entries(delivery.found)
        return self._threads.writes.call(partial(self._threads.batch.submit, partial(self._take_back, delivery, taken)))

    def _take_back(self, delivery: Delivery[T], taken: dict[bytes, list[Entry]], txn: WriteTransaction) -> None:
        for stream, before in delivery.before.items():
            ids = [(entry.ms, entry.seq) for entry in taken.get(stream, ())]
            take_back(txn, stream, self._wanted.group, self._wanted.consumer, before, delivery.after[stream], ids,
                      self._wanted.noack)
