"""Reading in a group: one commit over one or several streams, waiting if told to.

    attempt      acknowledge, claim what is idle, deliver what is new: in one transaction
      │ nothing
    look         in a read transaction: is there anything by now, and if not, what was seen?
      │ nothing                                                        (no lock, no commit)
    wait         until that has moved, or a pending entry falls due; then look again

The first attempt runs at once, unless the consumer's last read was in vain: then it looks
first, and where nothing is there either, no lock is taken (seen_times.py notes that it was here).
The deadline is fixed at the beginning: looking again does not restart it. Readers of one
process that wait for the same stand in a line and are served in their order (waiter.py).
Inside a transaction nothing waits: whoever could bring news is waiting for the transaction.
A read that is stopped acknowledges, but takes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

from ...storage.commit.write_transaction import WriteTransaction
from ...storage.errors import InvalidArgument, InvalidStreamID, LockTimeout
from ...storage.wake.stop import StopFlag, is_stopped
from ..entries import header as headers
from ..entries import writer
from ..entries.session import Direct, Source
from ..node.clock import now_ms
from ..node.entry import Entry
from ..node.packed_ids import row_of
from ..node.stream_id import AnyID, StreamID, parse_id
from . import deliver
from .deliver import ID
from .seen_times import SeenTimes, is_due, seen_times_of
from .state import find_group, require_group
from .wait_conditions import Finding, Probe, StreamProbe, group_moves
from .waiter import waiting_of


class Target(NamedTuple):
    """One stream of a read: ``after`` None reads new entries, else history behind it."""

    stream: bytes
    after: ID | None
    ack: bytes  # IDs in a row


class GroupRead(NamedTuple):
    """What is asked for, of every stream alike. Counts None: no limit. Times in ms."""

    group: bytes
    consumer: bytes
    most: int | None  # of each stream
    total: int | None  # of all together
    max_bytes: int | None  # of names and values; one entry is always given
    noack: bool
    min_idle: int | None
    stop: StopFlag | None


Answer = list[tuple[bytes, list[Entry]]]


def read_group(source: Source, wanted: GroupRead, targets: list[Target], wait: float | None) -> Answer:
    """XREADGROUP: (stream, entries) of those streams that have any, histories always.

    ``wait`` in seconds; 0 for ever, None not at all.
    """
    stop = wanted.stop
    if is_stopped(stop):
        if any(target.ack for target in targets):
            _attempts(source, wanted._replace(most=0), targets)
        return []
    line = (wanted.group, wanted.min_idle, tuple(target.stream for target in targets))
    times = seen_times_of(source.env)
    may_wait = isinstance(source, Direct) and all(target.after is None for target in targets)
    is_vain = may_wait and (line, wanted.consumer) in times.vain and not source.env.commits.in_own_transaction()
    if is_vain:
        with source.read() as txn:
            is_vain = not _look(txn, wanted, targets, times)[0]
    answer = [] if is_vain else _attempts(source, wanted, targets)
    if may_wait:
        times.came(line, wanted.consumer, bool(answer))
    if answer or wait is None or not may_wait:
        return answer
    again = _acknowledged(targets)
    deadline = None if wait == 0 else time.monotonic() + wait
    waiting = waiting_of(source.env)
    with waiting.turn(line, deadline, stop) as place:
        while place.awake and not is_stopped(stop):
            with source.read() as txn:
                anything, seen, due = _look(txn, wanted, again)
            if anything:
                answer = _attempts(source, wanted, again)
                if answer:
                    times.came(line, wanted.consumer, True)
                    return answer
            if not waiting.wait(seen, deadline, due, turn=place, stop=stop):
                break
    return []


def _attempts(source: Source, wanted: GroupRead, targets: list[Target]) -> Answer:
    """One transaction, or several for a filtered group that has much to pass over and finds nothing.

    Nothing instead of LockTimeout where there was nothing to take, nor to acknowledge.
    """
    try:
        answer, passing = source.submit(lambda txn: _attempt(txn, wanted, targets))
    except LockTimeout:
        with source.read() as txn:
            if _look(txn, wanted, targets)[0]:
                raise
        return [(target.stream, []) for target in targets if target.after is not None]
    if passing and not answer:
        again = _acknowledged(targets)
        while passing and not answer and not is_stopped(wanted.stop):
            answer, passing = source.submit(lambda txn: _attempt(txn, wanted, again))
    return answer


def _acknowledged(targets: list[Target]) -> list[Target]:
    """The same targets, when what they acknowledge has been acknowledged."""
    return [target._replace(ack=b"") for target in targets]


def _attempt(txn: WriteTransaction, wanted: GroupRead, targets: list[Target]) -> tuple[Answer, bool]:
    """Everything in one transaction. All groups are found before anything changes.

    Also whether a filtered group passes over entries and has not come to the end of them.
    """
    now = now_ms()
    passing = False
    found = []
    for target in targets:
        stream = writer.locate(txn, target.stream)
        found.append((stream, require_group(txn, stream, target.stream, wanted.group)))
    answer: Answer = []
    room = Room(wanted.total, wanted.max_bytes)
    claiming = wanted.min_idle is not None
    for target, (stream, group) in zip(targets, found, strict=True):
        assert stream is not None
        changes = txn.changes
        if target.ack:
            deliver.ack(txn, group, target.ack)
        consumer = group.ensure_consumer(txn, wanted.consumer, now)
        count = room.left_of(wanted.most)
        if target.after is not None:
            claiming = False  # as in Redis: behind a history, nothing is claimed
            entries = deliver.read_history(txn, stream, group, consumer, target.after, count, now, room.takes)
        else:
            entries = []
            if claiming:
                assert wanted.min_idle is not None
                entries = deliver.claim_idle(txn, stream, group, consumer, wanted.min_idle, count, now, room.takes)
            left = None if count is None else count - len(entries)
            before = group.last
            entries += deliver.read_new(txn, stream, group, consumer, left, wanted.noack, now, room.takes)
            if group.subjects and not entries:
                passing = passing or before < group.last < stream.header.last
        if entries or target.after is not None:
            answer.append((target.stream, entries))
        room.took(len(entries))
        if txn.changes != changes:
            group.saw(txn, consumer, now)
    return answer, passing


class Room:
    """How much a reply may still take: entries and bytes over all streams."""

    def __init__(self, total: int | None, max_bytes: int | None) -> None:
        self._total = total
        self._bytes = max_bytes
        self._taken = False
        self.takes = None if max_bytes is None else self._takes

    def left_of(self, count: int | None) -> int | None:
        """The count for the next stream."""
        if self._total is None:
            return count
        return self._total if count is None else min(count, self._total)

    def took(self, entries: int) -> None:
        """Entries have been taken."""
        if self._total is not None:
            self._total -= entries

    def _takes(self, entry: Entry) -> bool:
        """Whether this entry still goes in; the first one always does."""
        assert self._bytes is not None
        if self._taken and self._bytes <= 0:
            return False
        self._taken = True
        self._bytes -= sum(map(len, entry.names)) + sum(map(len, entry.values))
        return True


def _look(txn: Any, wanted: GroupRead, targets: list[Target],
          times: SeenTimes | None = None) -> tuple[bool, dict[Probe, Hashable], float | None]:
    """Whether an attempt would find something; else what was seen, and when to look again.

    With ``times`` it notes that the consumer was here, and an attempt that would write this finds something.
    """
    seen: dict[Probe, Hashable] = {}
    dues = []
    now = now_ms()
    for target in targets:
        stream_probe = StreamProbe(target.stream)
        seen[stream_probe] = stream_probe.value(txn)
        group_probe = Finding(group_moves, target.stream, wanted.group, wanted.min_idle is not None)
        seen[group_probe] = group_probe.value(txn)
        found = headers.find(txn, target.stream)
        state = None if found is None else find_group(txn, found[0], wanted.group)
        if found is None or state is None or target.ack:
            return True, seen, None  # something to do, or an error that the attempt will raise
        member = None
        if target.after is not None or times is not None:
            member = state.consumer(txn, wanted.consumer)
        if times is not None:
            if member is None or is_due(member.seen, now):
                return True, seen, None
            times.noted[found[0], state.group][member.number] = now
        if target.after is not None:
            if member is not None and member.pending:
                return True, seen, None
            continue
        if state.last < found[1].last:
            return True, seen, None
        due = deliver.next_due(txn, state, wanted.min_idle)
        if due is not None:
            dues.append(due)
    if not dues:
        return False, seen, None
    first = min(dues)
    return first <= now, seen, time.monotonic() + max(0, first - now) / 1000


def parse_ids(what: str, ids: Any) -> bytes:
    """Several IDs, each once, ascending, in a row. One alone is refused: it would be taken to pieces."""
    if ids == ():
        return b""
    if isinstance(ids, str | bytes | StreamID) or not isinstance(ids, Iterable):
        raise InvalidArgument(f"{what}={ids!r:.60} must be a list of IDs (or another iterable of them)")
    return row_of(ids)


def history_start(ids: AnyID) -> ID:
    """The ID behind which a consumer's own history is read; ``>`` has been seen to."""
    if ids in ("$", b"$", "+", b"+"):
        raise InvalidStreamID(
            f"ids={ids!r} has no meaning in a group: '>' reads new entries, an ID this consumer's history behind it"
        )
    return parse_id(ids)
