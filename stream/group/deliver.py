"""Delivery: what a group hands to a consumer, at once or after a wait, and what it records of it.

    read new        entries behind the group's last delivered ID; each gets a row in the PEL
    read history    the consumer's own rows of the PEL, delivered once more
    claim idle      rows that have been idle too long, of any consumer; then new entries
    ack             rows out of the PEL

These act inside one write transaction on the group (state.py) and its PEL (pending_list.py), and
count deliveries as Redis does: a new delivery counts 1, also of an entry that was pending already; a
history read and a claim count one more. A pending entry that is gone (deleted, trimmed) is reported by a
history read, and counts nothing; a claim that meets one takes it out of the PEL, and counts it in the group.

A read over one or several streams, read_group():

    attempt      acknowledge, claim what is idle, deliver what is new: in one transaction
      │ nothing
    look         in a read transaction: is there anything by now, and if not, what was seen?
      │ nothing                                                        (no lock, no commit)
    wait         until that has changed, or a pending entry falls due; then look again

The first attempt runs at once, unless the consumer's last read found nothing: then it looks first,
and where there is still nothing, takes no lock (the seen-time is noted, see state.py). The deadline is
fixed at the beginning: looking again does not restart it. Readers of one process that wait for the same
are queued and served in order (waiter.py). Inside a transaction nothing waits: writers with news wait
for the transaction. A read that is stopped acknowledges, but takes nothing.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Set
from functools import partial
from itertools import chain, islice, takewhile
from operator import itemgetter
from typing import NamedTuple, Self, TypeVar

from ...storage import clocks
from ...storage.errors import CorruptionError, InvalidArgument, InvalidStreamID, LockTimeout, NotOwner
from ...storage.log.transaction import WriteTransaction  # cimport
from ...storage.trees.rax import RaxTransaction
from ...storage.wake.stop import StopFlag, is_stopped
from ..entries import deferred
from ..entries import header as headers
from ..entries.count import Counter
from ..entries.header import StreamHeader, shown
from ..entries.range_read import look_up, read_now, read_on
from ..entries.session import Source, StoreSource
from ..entries.writer import StreamWriter, locate  # cimport
from ..node.decode import read_on as walk_on  # cimport
from ..node.entry import Entry, delivered  # cimport
from ..node.packed_ids import (
    pack_ids,  # cimport
    row_of,
)
from ..node.stream_id import MAX64, IDLike, StreamID, make_id, now_ms, parse_id
from ..pel.bucket import Nack, unpack_ids
from . import parking, subject_filter
from .state import (
    UNKNOWN,
    UNOWNED,
    ConsumerState,  # cimport
    GroupState,  # cimport
    SeenTimes,
    find_group,
    is_due,
    locate_group,  # cimport
    require_group,  # cimport
)
from .waiter import Condition, WaitQueues, group_moves, stream_moves

SOURCE_HASH = ""

MOST_DELIVERIES = (1 << 63) - 1
AT_ONCE = 128  # rows of the PEL looked through before the entries are
MOST_GONE = 10_000  # rows taken out in one transaction
_MOST_LISTED = 20  # IDs in a message
_FEW_PARKED = 1000

_STREAM = itemgetter(0)  # of a target
ID = tuple[int, int]
Row = tuple[ID, Nack]
Takes = Callable[[Entry], bool]
T = TypeVar("T")


class Delivered(list[T]):
    """What a group has delivered: a list. ``consumer_created``: the call has made the consumer."""

    consumer_created: bool = False  # of the class: one of its own has that list alone of which it is true

    @classmethod
    def of(cls, entries: Iterable[T], consumer_created: bool) -> Self:
        """The list of these."""
        made = cls(entries)
        if consumer_created:
            made.consumer_created = True
        return made


class Target(NamedTuple):
    """One stream of a read: ``after`` None reads new entries, else history behind it."""

    stream: bytes
    after: ID | None
    ack: bytes  # IDs in a row


class Position(NamedTuple):
    """Where a group stands."""

    last: ID
    entries_read: int
    moves: int


class GroupRead(NamedTuple):
    """The options of a read, the same for every stream. Counts None: no limit. Times in ms."""

    group: bytes
    consumer: bytes
    limit: int | None  # of each stream
    total: int | None  # of all together
    max_bytes: int | None  # of names and values; one entry is always returned
    noack: bool
    min_idle: int | None
    stop: StopFlag | None
    owned: bool = False  # acknowledge only what is pending with the consumer itself
    keeps_gone: bool = False  # claims leave in the PEL what is gone, as in Redis; nor is that a reason to look
    deadline: float | None = None  # in clocks.monotonic(): no further attempt begins behind it


class Answer(list[tuple[bytes, list[Entry]]]):
    """(stream, entries) of those streams that have any, histories always; where the consumer was created."""

    created: Set[bytes] = frozenset()  # of the class, as above

    def with_created(self, created: Set[bytes]) -> Answer:
        """The same, with further streams where the consumer was created."""
        if created:
            self.created = self.created | created
        return self


def read_group(source: Source, times: SeenTimes, wanted: GroupRead, targets: list[Target], wait: float) -> Answer:
    """XREADGROUP. ``wait`` in seconds; 0 not at all, infinity for ever."""
    stop = wanted.stop
    if stop is not None and is_stopped(stop):
        if any(target.ack for target in targets):
            attempts(source, wanted._replace(limit=0), targets)
        return Answer()
    line = line_of(wanted, targets)
    may_wait = isinstance(source, StoreSource)
    for target in targets:
        may_wait = may_wait and target.after is None
    is_empty = (
        may_wait and (line, wanted.consumer) in times.empty_reads and not source.env.commits.in_own_transaction()
    )
    if is_empty:
        with source.read() as txn:
            is_empty = not look(txn, wanted, targets, times)[0]
    deadline = None
    if 0 < wait < math.inf:
        deadline = clocks.monotonic() + wait
        wanted = wanted._replace(deadline=deadline)
    answer = Answer() if is_empty else attempts(source, wanted, targets)
    if may_wait:
        times.note_read(line, wanted.consumer, bool(answer))
    if answer or not wait or not may_wait:
        return answer
    again, created = _acknowledged(targets), answer.created
    waiting = source.env.attached(WaitQueues)
    with waiting.turn(line, deadline, stop) as waiter:
        while waiter.awake and not is_stopped(stop):
            with source.read() as txn:
                is_ready, seen, due = look(txn, wanted, again)
            if is_ready:
                answer = attempts(source, wanted, again).with_created(created)
                if answer:
                    times.note_read(line, wanted.consumer, True)
                    return answer
                created = answer.created
            if not waiting.wait(seen, deadline, due, turn=waiter, stop=stop):
                break
    return Answer().with_created(created)


def read_first(source: Source, times: SeenTimes, reads: list[tuple[GroupRead, Target]],
               waits: bool) -> tuple[int, list[Entry]]:
    """Read the first of several groups that has something: its place, and the entries. Acknowledges in all.

    One transaction; and none, where it waits, before there is something to acknowledge or to read.
    """
    stop, found = reads[0][0].stop, (0, list[Entry]())
    if is_stopped(stop):
        reads = [(wanted._replace(limit=0), target) for wanted, target in reads]
    if not waits or any(target.ack for _, target in reads):
        found = _attempt_first(source, reads)
        if found[1] or not waits:
            return found
    again = [(wanted, target._replace(ack=b"")) for wanted, target in reads]
    waiting = source.env.attached(WaitQueues)
    with waiting.turn(frozenset(line_of(wanted, [target]) for wanted, target in again), None, stop) as waiter:
        while waiter.awake and not is_stopped(stop):
            with source.read() as txn:
                looks = [look(txn, wanted, [target], times) for wanted, target in again]
            if any(is_ready for is_ready, _, _ in looks) and (found := _attempt_first(source, again))[1]:
                return found
            seen = {condition: value for _, some, _ in looks for condition, value in some.items()}
            due = min((due for _, _, due in looks if due is not None), default=None)
            if not waiting.wait(seen, None, due, turn=waiter, stop=stop):
                break
    return 0, []


def _attempt_first(source: Source, reads: list[tuple[GroupRead, Target]]) -> tuple[int, list[Entry]]:
    def operation(txn: WriteTransaction) -> tuple[int, list[Entry], bool]:
        place, entries, passing = 0, list[Entry](), False
        for at, (wanted, target) in enumerate(reads):
            if not entries or target.ack:
                answer, more = _attempt(wanted._replace(limit=0) if entries else wanted, [target], txn)
                passing = passing or more
                if answer:
                    place, entries = at, answer[0][1]
        return place, entries, passing

    while True:
        place, entries, passing = source.submit(operation)
        if entries or not passing or is_stopped(reads[0][0].stop):
            return place, entries
        reads = [(wanted, target._replace(ack=b"")) for wanted, target in reads]


def line_of(wanted: GroupRead, targets: list[Target]) -> Hashable:
    """The line (waiter.py) of the readers that can be given the same, threads and tasks."""
    return wanted.group, wanted.min_idle, tuple(map(_STREAM, targets))


def attempts(source: Source, wanted: GroupRead, targets: list[Target]) -> Answer:
    """One transaction; or several, up to the deadline, where there is much to pass over, or gone, and none to take."""
    answer, passing = _in_time(source, wanted, targets)
    if passing and not answer:
        again = _acknowledged(targets)
        while passing and not answer and not is_stopped(wanted.stop) and (
                wanted.deadline is None or clocks.monotonic() < wanted.deadline):
            created = answer.created
            answer, passing = _in_time(source, wanted, again)
            answer.with_created(created)
    return answer


def _in_time(source: Source, wanted: GroupRead, targets: list[Target]) -> tuple[Answer, bool]:
    """An attempt. Where there is nothing to take, nor to acknowledge, the lock is waited for up to the deadline only.

    Returns nothing then, instead of LockTimeout.
    """
    operation = partial(_attempt, wanted, targets)
    patience = source.lock_timeout
    try:
        if wanted.deadline is None or not isinstance(source, StoreSource):
            return source.submit(operation)
        patience = min(patience, max(0.0, wanted.deadline - clocks.monotonic()))
        return source.submit(operation, patience)
    except LockTimeout:
        with source.read() as txn:
            is_needed = look(txn, wanted._replace(keeps_gone=True), targets)[0]
        if not is_needed:
            return Answer((target.stream, []) for target in targets if target.after is not None), False
        if patience == source.lock_timeout:
            raise
    return source.submit(operation)


def _acknowledged(targets: list[Target]) -> list[Target]:
    """The same targets, with nothing to acknowledge."""
    return [target._replace(ack=b"") for target in targets]


def _attempt(wanted: GroupRead, targets: list[Target], txn: WriteTransaction) -> tuple[Answer, bool]:
    """Everything in one transaction. All groups are found before anything changes.

    Also whether it has passed over entries that are not for the group, or taken out what is gone, and not come to the
    end.
    """
    name, reader, limit, total, max_bytes, noack, min_idle, _, owned, _, _ = wanted
    now = now_ms()
    passing = False
    found = []
    for stream_name, _, _ in targets:
        stream = locate(txn, stream_name)
        group = require_group(txn, stream, stream_name, name)
        if noack and group.key_limit is not None:
            raise InvalidArgument(f"noack: group {shown(name)} has a key, whose next entry is delivered once the one "
                                  "before it has been acknowledged; read without noack")
        found.append((stream, group))
    answer = Answer()
    budget = None if total is None and max_bytes is None else ReplyBudget(total, max_bytes)
    takes = None if budget is None else budget.takes
    claiming = min_idle is not None
    for (stream_name, after, acked), (stream, group) in zip(targets, found, strict=True):
        assert stream is not None
        header = stream.header
        if not header.back <= now < header.due:  # is_due(), without the call
            deferred.release(txn, stream, now)
        changes = txn.changes
        if acked:
            ack(txn, group, pack_ids(_own(txn, group, reader, acked)) if owned else acked)
        if group.consumer(txn, reader) is None:
            answer.created = {stream_name, *answer.created}
        consumer = group.ensure_consumer(txn, reader, now)
        count = limit if budget is None else budget.left_of(limit)
        entries: list[Entry] = []
        if after is not None:
            claiming = False  # as in Redis: behind a history, nothing is claimed
            entries = read_history(txn, stream, group, consumer, after, count, now, takes)
        elif group.paused <= now:
            if group.limits is not None:
                count = _least(count, group.limits.left(now))
            if claiming or (group.key_limit is not None and group.may_have_released()):
                entries, more = claim_idle(txn, stream, group, consumer, wanted, count, now, takes)
                key = group.key_limit
                for _ in range(AT_ONCE if key is not None and (more or key.many) else 0):  # what these let go on
                    left = None if count is None else count - len(entries)
                    got, more = claim_idle(txn, stream, group, consumer, wanted, left, now, takes)
                    entries += got
                    if not (got or more):
                        break
                passing = passing or more
            remaining = None if count is None else count - len(entries)
            if group.limits is not None and not noack:
                remaining = _least(remaining, group.room(txn))
            before = group.last
            entries += read_new(txn, stream, group, consumer, remaining, noack, now, takes)
            if not entries:  # of other subjects, or cancelled
                passing = passing or before < group.last < header.last
            elif group.limits is not None and group.limits.many:
                group.changed(txn)
                group.limits = group.limits.spent(len(entries), now)
        if entries or after is not None:
            answer.append((stream_name, entries))
        if budget is not None:
            budget.took(len(entries))
        if txn.changes != changes:
            group.set_seen(txn, consumer, now)
    return answer, passing


def _least(count: int | None, room: int | None) -> int | None:
    """The smaller of a count and of what there is room for, at least 0; None: no limit."""
    return count if room is None else max(0, room if count is None else min(count, room))


class ReplyBudget:
    """How much a reply may still take: entries and bytes over all streams."""

    def __init__(self, total: int | None, max_bytes: int | None) -> None:
        self._total = total
        self._bytes = max_bytes
        self._taken = False
        self.takes: Callable[[Entry], bool] | None = None if max_bytes is None else self._takes

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


def look(txn: RaxTransaction, wanted: GroupRead, targets: list[Target],
         times: SeenTimes | None = None) -> tuple[bool, dict[Condition, Hashable], float | None]:
    """Whether an attempt would find something; else what was seen, and when to look again.

    With ``times`` it notes the consumer's seen-time; where that is to be written, an attempt is needed.
    """
    seen: dict[Condition, Hashable] = {}
    dues = []
    now = now_ms()
    is_ready = False
    for target in targets:  # all of them, and their times: another reader may be faster than the attempt
        claims = wanted.min_idle is not None
        conditions = [Condition(stream_moves, target.stream),
                      Condition(group_moves, target.stream, wanted.group, claims)]
        if claims and wanted.keeps_gone:
            conditions.append(Condition(claims_move, target.stream, wanted.group, wanted.min_idle))
        seen.update((condition, condition.value(txn)) for condition in conditions)
        found = headers.find(txn, target.stream)
        state = None if found is None else find_group(txn, found[0], wanted.group)
        if found is None or state is None or target.ack:
            is_ready = True  # something to do, or an error that the attempt will raise
            continue
        member = None
        if target.after is not None or times is not None:
            member = state.consumer(txn, wanted.consumer)
        if times is not None:
            if member is None or is_due(member.seen, now):
                is_ready = True
            else:
                times.noted[found[0], state.group][member.number] = now
        if target.after is not None:
            is_ready = is_ready or (member is not None and member.pending > 0)
            continue
        due = found[1].next_due()
        if due is not None:
            dues.append(due)
        if state.paused > now:
            dues.append(state.paused)
            continue
        room = stopped = None
        if state.limits is not None or state.key_limit is not None:
            room = state.room(txn)
            stopped, turn = stopped_by(txn, found[1], state)
            dues += [] if turn is None else [turn]
            seen[Condition(limits_move, target.stream, wanted.group)] = state.limits, room, state.key_limit, stopped
            is_ready = is_ready or (wanted.noack and state.key_limit is not None)  # an error, too
            if state.limits is not None and (first := state.limits.next_time(now)) > now:
                dues.append(first)
                continue
        has_room = room is None or room > 0 or wanted.noack
        is_ready = is_ready or (has_room and state.last < found[1].last and stopped is None)
        dues += claims_due(txn, *found, state, wanted.min_idle, wanted.keeps_gone, now, has_room)
    if not dues:
        return is_ready, seen, None
    first = min(dues)
    return is_ready or first <= now, seen, clocks.monotonic() + max(0, first - now) / 1000


def parse_ids(what: str, ids: object) -> bytes:
    """Several IDs, each once, ascending, in a row. A single one is refused: it would be iterated over."""
    if ids == ():
        return b""
    if isinstance(ids, str | bytes | StreamID) or not isinstance(ids, Iterable):
        raise InvalidArgument(f"{what}={ids!r:.60} must be a list of IDs (or another iterable of them)")
    return row_of(ids)


def history_start(ids: IDLike) -> ID:
    """The ID behind which a consumer's own history is read, of an argument other than ``>``."""
    if ids in ("$", b"$", "+", b"+"):
        raise InvalidStreamID(
            f"ids={ids!r} has no meaning in a group: '>' reads new entries, an ID this consumer's history behind it"
        )
    return parse_id(ids, ">, ")


# -- within one transaction --------------------------------------------------------------------------


def read_new(txn: WriteTransaction, stream: StreamWriter, group: GroupState, consumer: ConsumerState,
             count: int | None, noack: bool, now: int, takes: Takes | None = None) -> list[Entry]:
    """Deliver entries that the group has not delivered yet: XREADGROUP with ``>``.

    ``takes`` may end the delivery before an entry: what it refuses stays undelivered. What was
    cancelled is passed over, and what has another subject than the group is filtered by: up to
    subject_filter.AT_ONCE entries a call.
    """
    header = stream.header
    if group.last >= header.last or count == 0:
        return []
    stream.flush(txn)
    key = group.key_limit
    turns = None if key is None else parking.Turns(txn, group, key, count, now)
    keys: Mapping[ID, bytes] = {}
    passes_over = group.subjects or group.cancelled > group.last or turns is not None
    if passes_over:
        chunk = subject_filter.CHUNK if group.subjects or count is None else min(count + 1, subject_filter.CHUNK)
        cancelled: list[StreamID] = []
        if turns is not None and not group.subjects and group.cancelled <= group.last:
            entries, passed = _read_by_key(txn, stream, group, turns, count, takes)
        else:
            matches = _for_group(txn, group, cancelled, turns)
            until = takes if turns is None else partial(turns.has_taken, takes)
            entries, passed = subject_filter.read_matching(txn, stream.number, header, group.last, matches, count,
                                                           until, chunk)
        for sid in cancelled:
            group.pass_over(txn, sid)
        if passed:
            group.changed(txn)
            advance(group, header, len(passed), passed[len(passed) - 1], passed)
            if turns is not None:
                keys = parking.settle(txn, group, turns, passed)
    else:
        entries = _behind(txn, stream, group, group.last, count)
        if takes is not None:
            entries = list(takewhile(takes, entries))
    if not entries:
        return []
    ids = delivered(entries)
    group.changed(txn)
    if not passes_over:
        last = entries[len(entries) - 1]
        advance(group, header, len(entries), (last.ms, last.seq), entries)
    if not noack:  # else the consumer holds none of them, and does not count as active
        group.set_active(txn, consumer, now)
        pel = group.pel(txn, now) if turns is None else turns.pel
        moved = pel.add_row(ids, consumer.number, now, 1, keys)
        for _, nack in moved:
            group.count_pending(txn, nack.consumer, -1)
        group.count_pending(txn, consumer.number, len(entries))
    return entries


def _behind(txn: WriteTransaction, stream: StreamWriter, group: GroupState, last: ID, count: int | None) -> list[Entry]:
    """Live entries behind ``last``, at most ``count``.

    Where all of them lie in the node that deliveries have come to, and that is as it was, its walk goes on.
    """
    place, found = group.place, list[Entry]()
    walk = place.walk
    is_as_it_was = place.header is not None and place.header is stream.stored
    if count is not None and walk is not None and is_as_it_was and place.last == last and last[1] < MAX64:
        try:
            found, walk = walk_on(place.listpack, walk.master_ms, walk.master_seq, last[0], last[1] + 1, count, walk)
        except CorruptionError:
            found = []  # read_on() says of it where it is
        if len(found) == count:
            ended = found[count - 1]
            place.last, place.walk = (ended.ms, ended.seq), walk
            return found
    return read_on(txn, stream.number, stream.header, last, count, place, stream.stored)


def _read_by_key(txn: WriteTransaction, stream: StreamWriter, group: GroupState, turns: parking.Turns,
                 count: int | None, takes: Takes | None) -> tuple[list[Entry], list[ID]]:
    """subject_filter.read_matching() for a group filtered by its key alone: goes on where it was in the node."""
    found: list[Entry] = []
    passed: list[ID] = []
    last = group.last
    while len(passed) < subject_filter.AT_ONCE:
        chunk = subject_filter.CHUNK if count is None else min(count - len(found), subject_filter.CHUNK)
        some = _behind(txn, stream, group, last, chunk)
        for entry in some:
            sid = entry.id
            if turns.is_for_now(entry, sid):
                if turns.stops or not (takes is None or takes(entry)):
                    return found, passed
                found.append(entry)
            passed.append(sid)
        if len(some) < chunk or len(found) == count:
            return found, passed
        last = some[len(some) - 1].id
    return found, passed


def _for_group(txn: RaxTransaction, group: GroupState, cancelled: list[StreamID],
               turns: parking.Turns | None) -> Takes:
    """The function that decides whether the group is to be given an entry, and notes what was cancelled."""
    matches = subject_filter.matcher_of(group.subjects) if group.subjects else None

    def is_for_group(entry: Entry) -> bool:
        if matches is not None and not matches(entry):
            return False
        if group.has_cancelled(txn, entry.id):
            cancelled.append(entry.id)
            return False
        return turns is None or turns.is_for_now(entry, entry.id)

    return is_for_group


def read_history(txn: WriteTransaction, stream: StreamWriter, group: GroupState, consumer: ConsumerState,
                 after: ID, count: int | None, now: int, takes: Takes | None = None) -> list[Entry]:
    """The consumer's own pending entries with an ID above ``after``, delivered once more.

    One that has been deleted comes as an entry without fields, and is not counted.
    """
    if after >= (MAX64, MAX64) or count == 0:
        return []
    pel = group.pel(txn, now)
    rows = []
    for sid, nack in pel.scan(make_id(*after).next(), StreamID.MAX, consumer.number):
        rows.append((sid, nack))
        if count is not None and len(rows) >= count:
            break
    else:
        found = len(rows) if after == (0, 0) else pel.held(consumer.number)
        if found != consumer.pending:
            raise CorruptionError(
                f"consumer {shown(consumer.name)} of group {shown(group.name)} has {found} pending entries and counts "
                f"{consumer.pending}", stream=shown(stream.header.name),
            )
    answer = []
    again = []
    for entry, (sid, nack) in zip(fetch(txn, stream, [sid for sid, _ in rows]), rows, strict=True):
        if entry is None:
            gone = Entry(*sid, [])
            gone.deliveries = nack.count
            answer.append(gone)
            continue
        if takes is not None and not takes(entry):
            break
        entry.deliveries = min(nack.count + 1, MOST_DELIVERIES)
        again.append((sid, consumer.number, now, entry.deliveries))
        answer.append(entry)
    if again:
        pel.change(again)
        txn.changes += 1
    return answer


def claim_idle(txn: WriteTransaction, stream: StreamWriter, group: GroupState, consumer: ConsumerState,
               wanted: GroupRead, count: int | None, now: int, takes: Takes | None = None) -> tuple[list[Entry], bool]:
    """Take over what is idle long enough: released entries first, then the most idle.

    What is gone is taken out, unless it is to be kept. Also whether there was so much of it that more may be due.
    """
    if count == 0 or group.pending == 0:
        return [], False
    released_by = now
    if wanted.min_idle is None:
        if not group.may_have_released():
            return [], False
        due, released_by = group.pel(txn).next_due(), due_by(group, now)
        if due is None or (due > released_by and not parking.is_ahead(txn, group, now)):
            return [], False
    stream.flush(txn)  # the PEL must not be written to while it is looked through
    pel = group.pel(txn, now)
    more = pel.set_back(AT_ONCE) == AT_ONCE
    room = None if wanted.noack else group.room(txn)  # for what no consumer holds; a takeover needs none
    turns = None if group.key_limit is None else parking.Turns(txn, group, group.key_limit)
    released = pel.released(released_by)
    if turns is not None and parking.is_ahead(txn, group, now):
        released = turns.put_back(islice(pel.released(MAX64 - 1), AT_ONCE))
    oldest = iter(()) if wanted.min_idle is None else pel.oldest(last_idle(wanted.min_idle, now))
    if turns is not None:
        released = (row for row in takewhile(turns.may_park, released) if turns.may_claim(*row, True))
        if turns.key.many:
            oldest = (row for row in takewhile(turns.may_park, oldest) if turns.may_claim(*row, True))
    candidates = chain(islice(released, _least(None, room)), oldest)
    claimed: list[Entry] = []
    rows = []
    gone: list[ID] = []
    full = False
    seen = 0
    while not full and len(gone) < MOST_GONE and (count is None or len(claimed) < count):
        limit = AT_ONCE if count is None or seen > len(claimed) else min(count - len(claimed), AT_ONCE)
        limit = limit if turns is None else 1  # what is taken has a part in whether the next may be
        some = list(islice(candidates, limit))
        if not some:
            break
        seen += len(some)
        for entry, (sid, nack) in zip(fetch(txn, stream, [sid for sid, _ in some]), some, strict=True):
            full = len(claimed) == count or (takes is not None and entry is not None and not takes(entry))
            if full:
                break
            if entry is None:
                gone += [] if wanted.keeps_gone and (turns is None or nack.consumer != UNOWNED) else [sid]
                continue
            entry.deliveries = min(nack.count + 1, MOST_DELIVERIES)
            entry.idle = None if nack.released else max(0, now - nack.time) / 1000
            claimed.append(entry)
            rows.append((sid, consumer.number, now, entry.deliveries))
    more = more or len(gone) >= MOST_GONE
    more = more or (turns is not None and (bool(gone) or not turns.may_park()))  # the next ones have the keys of those
    is_all = not full and not more and room is None and (count is None or len(claimed) < count)
    if is_all and wanted.min_idle is not None:
        lost = seen < group.pending if wanted.min_idle == 0 else not seen and not claims_due(
            txn, stream.number, stream.header, group, wanted.min_idle, wanted.keeps_gone, now)
        lost = lost and turns is None  # what is parked is never due
        if turns is None or turns.key.parked < _FEW_PARKED:  # it reads all of them, each time the group is not warm
            group.require_whole(txn, again=lost)
    if len({row[0] for row in rows}) < len(rows):
        raise CorruptionError(f"the pending list of group {shown(group.name)} shows an entry twice")
    given = {} if turns is None else parking.settle(txn, group, turns, [row[0] for row in rows])
    take_out_gone(txn, group, gone)
    assign(txn, group, consumer, rows, now, given)
    return claimed, more


def position(txn: WriteTransaction, stream: bytes, group: bytes) -> Position | None:
    """Where the group stands; None where there is none."""
    located = locate(txn, stream)
    state = None if located is None else locate_group(txn, located, group)
    return None if state is None else Position(state.last, state.entries_read, state.moves)


def ack_named(stream: bytes, name: bytes, ids: bytes, txn: WriteTransaction) -> int:
    """ack() of the group of that name; 0 where there is none."""
    writer = locate(txn, stream)
    group = None if writer is None else locate_group(txn, writer, name)
    return 0 if group is None else ack(txn, group, ids)


def ack(txn: WriteTransaction, group: GroupState, ids: bytes) -> int:
    """Take entries out of the PEL, their IDs ascending in a row (packed_ids.py); how many were in it. XACK."""
    if group.pending == 0:
        return 0
    if group.key_limit is not None:
        return len(take_out(txn, group, unpack_ids(ids)))
    return _count_gone(txn, group, group.pel(txn).remove_row(ids))


def take_out(txn: WriteTransaction, group: GroupState, ids: list[ID]) -> list[ID]:
    """ack() of plain IDs, ascending; which of them were in the PEL."""
    gone = group.pel(txn).remove(ids) if group.pending else []
    _count_gone(txn, group, dict(collections.Counter(nack.consumer for _, nack in gone)))
    parking.leave(txn, group, gone)
    return [sid for sid, _ in gone]


def _count_gone(txn: WriteTransaction, group: GroupState, owners: dict[int, int]) -> int:
    gone = 0
    for owner, count in owners.items():
        group.count_pending(txn, owner, -count)
        gone += count
    return gone


def _own(txn: WriteTransaction, group: GroupState, consumer: bytes, ids: bytes) -> dict[ID, Nack]:
    """Those of the IDs in a row that are pending with this consumer."""
    member = group.consumer(txn, consumer)
    found = {} if member is None else group.pel(txn).find(unpack_ids(ids))
    return {sid: nack for sid, nack in found.items() if member is not None and nack.consumer == member.number}


def renew(txn: WriteTransaction, group: GroupState, consumer: bytes, ids: bytes, now: int) -> list[ID]:
    """Set the delivery time of the consumer's own pending entries to now; the IDs of the others, which stay."""
    own = _own(txn, group, consumer, ids)
    restart(txn, group, own, now)
    return [sid for sid in unpack_ids(ids) if sid not in own]


def require_owner(txn: WriteTransaction, stream: bytes, group: GroupState | None, name: bytes, consumer: bytes,
                  ids: bytes) -> None:
    """NotOwner unless these entries, their IDs in a row, are all pending with this consumer. Changes nothing."""
    wanted = unpack_ids(ids)
    member = None if group is None else group.consumer(txn, consumer)
    pending = {} if group is None else group.pel(txn).find(wanted)
    lost = [sid for sid in wanted if sid not in pending or member is None or pending[sid].consumer != member.number]
    if not lost:
        return

    def place(sid: ID) -> str:
        nack = pending.get(sid)
        if nack is None or group is None:
            return "not pending"
        return "released" if nack.consumer == UNOWNED else f"with {shown(group.consumer_no(txn, nack.consumer).name)}"

    listed = ", ".join(f"{sid[0]}-{sid[1]} ({place(sid)})" for sid in lost[:_MOST_LISTED])
    more = f" and {len(lost) - _MOST_LISTED} more" if len(lost) > _MOST_LISTED else ""
    raise NotOwner(
        f"consumer {shown(consumer)} of group {shown(name)} of stream {shown(stream)} does not own {len(lost)} of "
        f"{len(wanted)} entries: {listed}{more}. None was acknowledged. Drop what was made of those: another consumer "
        "has claimed or acknowledged them.", tuple(make_id(*sid) for sid in lost),
    )


def advance(group: GroupState, header: StreamHeader, count: int, last: ID, ids: Iterable[ID | Entry]) -> None:
    """Move the group's last delivered ID over ``count`` IDs up to ``last``, and Redis' entries-read counter with it.

    ``ids`` are the same, or the entries that have them: looked at where the counter depends on each of them.
    """
    known = group.entries_read != UNKNOWN
    if known and group.last >= header.first and not tombstones(header, group.last):
        group.entries_read += count
    else:
        for one in ids:
            sid = one.id if isinstance(one, Entry) else one
            if group.entries_read != UNKNOWN and group.last >= header.first and not tombstones(header, group.last):
                group.entries_read += 1
            elif header.entries_added:
                group.entries_read = estimate(header, sid)
            group.last = (sid[0], sid[1])
    group.last = last if type(last) is tuple else (last[0], last[1])


def tombstones(header: StreamHeader, start: ID) -> bool:
    """Whether an entry at or behind ``start`` may have been deleted by name."""
    return header.length != 0 and header.max_deleted != (0, 0) and header.max_deleted >= start


def estimate(header: StreamHeader, sid: ID) -> int:
    """How many entries were added up to ``sid``, where Redis can know; else UNKNOWN."""
    added = header.entries_added
    if not added:
        return 0
    if header.length == 0 and sid <= header.last:
        return added
    if sid != (0, 0) and sid < header.max_deleted:
        return UNKNOWN
    if sid == header.last:
        return added
    if sid > header.last:
        return UNKNOWN
    if header.max_deleted == (0, 0) or header.max_deleted < header.first:
        if sid < header.first:
            return added - header.length
        if sid == header.first:
            return added - header.length + 1
    return UNKNOWN


def lag(txn: RaxTransaction, header: StreamHeader, group: GroupState, last: ID | None = None,
        by_subject: bool = True) -> int:
    """Live entries behind ``last``, the group's own if None: exact whatever has been deleted, trimmed, set, cancelled.

    For a group filtered by subject exact as well, by looking at each of them; not so without ``by_subject``.
    """
    last, number = group.last if last is None else last, group.number
    if group.subjects and by_subject:
        behind = subject_filter.lag(txn, number, header, last, group.subjects)
    elif last >= header.last:
        return 0
    elif last < header.first:
        behind = header.length
    else:
        behind = header.length - Counter(txn, number, header).rank(make_id(*last).next())
    cancelled = group.cancelled_behind(txn, last)
    live = look_up(txn, number, header, cancelled, True) if cancelled else {}
    return behind - sum(sid in live for sid in cancelled)


def redis_lag(header: StreamHeader, group: GroupState) -> int | None:
    """The lag as Redis 8 counts it, from counters: None (nil) where it cannot know, and at times wrong."""
    if not header.length:
        return 0
    if group.last < header.first and header.max_deleted < header.first:
        return header.length
    if group.entries_read != UNKNOWN and not tombstones(header, group.last):
        return header.entries_added - group.entries_read
    read = estimate(header, group.last)
    return None if read == UNKNOWN else header.entries_added - read


def fetch(txn: WriteTransaction, stream: StreamWriter, ids: list[ID]) -> list[Entry | None]:
    """The entries with these IDs, None for each that has been deleted or trimmed. A node is decoded once."""
    stream.flush(txn)
    found = look_up(txn, stream.number, stream.header, ids, False)
    return [found.get(sid) for sid in ids]


def present(txn: WriteTransaction, stream: StreamWriter, ids: list[ID]) -> Container[ID]:
    """Those of the IDs that have not been deleted or trimmed. Decodes no entry."""
    stream.flush(txn)
    return look_up(txn, stream.number, stream.header, ids, True)


def assign(txn: WriteTransaction, group: GroupState, consumer: ConsumerState, rows: list[tuple[ID, int, int, int]],
         now: int, keys: Mapping[ID, bytes], forced: bool = False) -> None:
    """Make the consumer the owner of these rows of the PEL, with other keys for some; ``forced``: some are new."""
    if rows:
        pel = group.pel(txn, now)
        before = pel.set(rows, keys) if forced else pel.change(rows, keys)
        had = collections.Counter(was.consumer for _, was in before if was is not None)
        for owner, count in had.items():
            group.count_pending(txn, owner, -count)
        group.count_pending(txn, consumer.number, len(rows))
        group.set_active(txn, consumer, now)


def take_out_gone(txn: WriteTransaction, group: GroupState, ids: Iterable[ID]) -> None:
    """Take entries out of the PEL that are no longer in the stream, and count them."""
    group.gone += len(take_out(txn, group, sorted(set(ids))))


def last_idle(min_idle: int, now: int) -> int:
    """The last delivery time whose entries have been idle for so long by now; -1 for none.

    No entry has been idle for longer than since the clock was set, by the boot clock: a living worker renews within it.
    """
    if not min_idle:
        return MAX64
    return now - min_idle if clocks.since_set() >= min_idle else -1


def restart(txn: WriteTransaction, group: GroupState, pending: Mapping[ID, Nack], now: int) -> None:
    """Have these entries, which stay with their consumers, be delivered now."""
    if pending:
        group.pel(txn, now).change([(sid, nack.consumer, now, nack.count) for sid, nack in pending.items()])
        txn.changes += 1


def claims_due(txn: RaxTransaction, number: int, header: StreamHeader, group: GroupState, min_idle: int | None,
               keeps_gone: bool, now: int, has_room: bool = True) -> list[int]:
    """When, in ms, claim_idle() finds something next: the first released entry, and the first of the others.

    Where a limit has no room for more that are held, only the others.
    """
    if not group.pending or (min_idle is None and group.key_limit is None):
        return []
    pel = group.pel(txn)
    if parking.is_ahead(txn, group, now):
        return [now]
    if min_idle is None:
        due = pel.next_due() if has_room else None
        return [due] if due is not None and (due == 0 or due_by(group, now)) else []
    if pel.ahead(now, 1):
        return [now]  # it is to set them back
    oldest, since = pel.oldest_time(), now - clocks.since_set()
    dues = [pel.next_due() if has_room else None, None if oldest is None else max(oldest, since) + min_idle]
    if keeps_gone and any(due is not None and due <= now for due in dues):
        released = pel.released(MAX64 - 1)
        dues = [None if not has_room else pel.next_due() if group.key_limit is not None  # which takes out what is gone
                else _first_live(txn, number, header, released, 0, 0, now),
                _first_live(txn, number, header, pel.oldest(MAX64), since, min_idle, now)]
    return [due for due in dues if due is not None]


def due_by(group: GroupState, now: int) -> int:
    """Up to which due time a read delivers what is released although it claims nothing: what has waited for its key."""
    return now if group.key_limit is not None and group.key_limit.many else 0


def next_due(txn: RaxTransaction, stream: bytes, group: bytes) -> int | None:
    """When, in ms, there is something for a group's readers by itself: deferred, released, or held back by a pause."""
    found = headers.find(txn, stream)
    state = None if found is None else find_group(txn, found[0], group)
    if found is None or state is None:
        return None
    now, room = now_ms(), state.room(txn)
    dues = [found[1].next_due()]
    if room is None or room > 0:  # else others hold as many as may be held
        stopped, turn = stopped_by(txn, found[1], state)
        is_new = state.last < found[1].last and stopped is None
        dues += [state.pel(txn).next_due(), now if is_new else turn]
    first = min((due for due in dues if due is not None), default=MAX64)
    if state.limits is not None and first < MAX64:
        first = max(first, state.limits.next_time(now))
    return None if MAX64 in (first, state.paused) else max(first, state.paused)


def stopped_by(txn: RaxTransaction, header: StreamHeader, group: GroupState) -> tuple[bytes | None, int | None]:
    """The value of the key for which a read delivers nothing more, as many are parked as may be; else None.

    And when, in ms, its rate lets the entry through, if nothing else is in its way.
    """
    key = group.key_limit
    if key is None or key.parked < key.max_parked or group.last >= header.last:
        return None, None
    turns = parking.Turns(txn, group, key)
    is_for_group = _for_group(txn, group, [], turns)
    for entry in read_now(txn, group.number, header, make_id(*group.last).next(), 1):
        if is_for_group(entry) and turns.stops:
            return bytes(entry.values[entry.names.index(key.field)]), turns.until
    return None, None


def turn_of(txn: RaxTransaction, stream: bytes, group: bytes) -> int | None:
    """When, in ms, the rate lets the next one through, of what there is to deliver; None if that is nothing."""
    found, now = headers.find(txn, stream), now_ms()
    state = None if found is None else find_group(txn, found[0], group)
    if found is None or state is None or state.paused > now:
        return None
    room, retry, key = state.room(txn), state.pel(txn).next_due(), state.key_limit
    if key is not None and key.many and (room is None or room > 0):
        turns = parking.next_turn(txn, state, AT_ONCE), stopped_by(txn, found[1], state)[1]
        return min((turn for turn in turns if turn is not None), default=None)
    if state.limits is None:
        return None
    is_new = state.last < found[1].last and stopped_by(txn, found[1], state)[0] is None
    is_there = is_new or (retry is not None and retry <= now)
    return state.limits.next_time(now) if is_there and state.limits.many and (room is None or room > 0) else None


def limits_move(txn: RaxTransaction, stream: bytes, group: bytes) -> Hashable:
    """A condition (waiter.py) of a group with limits: how many more may be held, when the next may come, the parked."""
    found = headers.find(txn, stream)
    state = None if found is None else find_group(txn, found[0], group)
    if found is None or state is None:
        return None
    return state.limits, state.room(txn), state.key_limit, stopped_by(txn, found[1], state)[0]


def claims_move(txn: RaxTransaction, stream: bytes, group: bytes, min_idle: int) -> Hashable:
    """A condition (waiter.py) of claims that keep what is gone: when the first entries that are there fall due."""
    found = headers.find(txn, stream)
    state = None if found is None else find_group(txn, found[0], group)
    return None if found is None or state is None else (*claims_due(txn, *found, state, min_idle, True, now_ms()),)


def _first_live(txn: RaxTransaction, number: int, header: StreamHeader, rows: Iterator[Row], since: int, idle: int,
                 now: int) -> int | None:
    """When the first of these rows falls due, passing over what is due and gone; None for never."""
    while some := [(max(nack.time, since) + idle, sid) for sid, nack in islice(rows, AT_ONCE)]:
        live = look_up(txn, number, header, [sid for due, sid in some if due <= now], True)
        for due, sid in some:
            if due > now or sid in live:
                return due
    return None
