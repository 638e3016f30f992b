"""A consumer group as its users hold it: read, acknowledge, claim, inspect.

Every read and acknowledgement is one commit, or part of one that others share, if it is not of
more than 10,000 entries; reading a batch and acknowledging the last one together is a single
commit (``read(..., ack=ids)``).
Durations are seconds; names are stored as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack, overload

from ...storage import clocks
from ...storage.errors import ConsumerBusy, CorruptionError, InvalidArgument, RaxlogError, StoreClosed, TransactionError
from ...storage.handles import made_by_a_call
from ...storage.log.transaction import WriteTransaction
from ...storage.trees.rax import RaxTransaction
from ...storage.wake.stop import StopFlag, is_stopped
from ..entries import header as headers
from ..entries import writer
from ..entries.header import shown
from ..entries.session import PIECE, PIECE_ASKED, Source, StoreSource, ask, in_pieces, parse_timeout
from ..jobs.results import Result, name_of, packed
from ..jobs.results import put as put_result
from ..node.arguments import (
    Name,
    Refs,
    Text,
    duration_ms,
    member_name,
    moment_ms,
    stored_bytes,
    text_of,
    texts_of,
    whole,
)
from ..node.entry import Entry
from ..node.packed_ids import row_of
from ..node.stream_id import (
    MAX64,
    IDLike,
    IDs,
    StreamID,
    given_ids,
    make_id,
    now_ms,
    parse_end,
    parse_id,
    parse_start,
    time_at,
)
from ..node.typed import V
from ..sweep import sweep
from . import claim as claiming
from . import deliver, parking
from .claim import ClaimOptions
from .dead_letters import DeadLetters, bury, cancel
from .delete_policy import KEEPREF, DeleteResult, ack_delete, checked_policy
from .deliver import Delivered, GroupRead, Target, ack_named, history_start, parse_ids, read_group
from .info import Autoclaimed, ConsumerInfo, GroupInfo, Pending, PendingSummary, describe_group
from .job import Job, job_moves, result_of
from .job import find as find_job
from .state import (
    UNKNOWN,
    UNOWNED,
    GroupState,
    Key,
    Limits,
    SeenTimes,
    destroy_group,
    find_group,
    locate_group,
    no_group,
    require_group,
)
from .waiter import Condition, WaitQueues

if TYPE_CHECKING:
    from ...transaction import Transaction
    from ..jobs.worker import Asked, Worker, WorkerOptions
    from ..node import typed
    from ..node.model import Model

_NACKS = ("silent", "fail", "fatal")
_LONGEST_WINDOW = 366 * 86_400_000  # ms

T = TypeVar("T")
_new = tuple.__new__  # of a NamedTuple: a third of what calling it takes


class Group(Generic[V]):
    """A handle on one consumer group of a stream, made by stream.group(name). Cheap to make; threads can share it.

    Methods raise NoGroup if the group or its stream does not exist, except ack(). Where they take ``*ids``, each is an
    ID, or a single argument is an iterable of all; an empty one does nothing.
    """

    __slots__ = ("_encoding", "_model", "_name", "_seen", "_source", "_stream")

    @made_by_a_call
    def __init__(self, source: Source, stream: bytes, name: bytes, encoding: str | None,
                 model: Model | None = None) -> None:
        self._source = source
        self._seen = source.env.attached(SeenTimes)
        self._encoding = encoding
        self._model = model
        self._stream = stream
        self._name = name

    def __repr__(self) -> str:
        return f"<raxlog.Group {shown(self._name)} of stream {shown(self._stream)} in {str(self._source.env.path)!r}>"

    @property
    def name(self) -> Text:
        """The group's name."""
        return text_of(self._name, self._encoding)

    @property
    def stream(self) -> Text:
        """The name of its stream."""
        return text_of(self._stream, self._encoding)

    # -- reading and acknowledging ------------------------------------------------------

    def read(self, consumer: Name, count: int | None = None, *, timeout: float | None = 0,
             ids: IDLike = ">", noack: bool = False, ack: Iterable[IDLike] = (), ack_owned: bool = False,
             claim_idle: float | None = None, stop: StopFlag | None = None) -> Delivered[typed.Entry[V]]:
        """Deliver entries to a consumer, which is created if it is new. Redis: XREADGROUP.

        ``ids=">"``     entries that the group has not delivered yet; each becomes pending
        ``ids="0"``     (or any ID) this consumer's own pending entries after that ID, again; a deleted
                        entry has no fields
        ``count``       at most this many (None: all there are)
        ``timeout``     wait this many seconds for the first entry; 0: not at all, None: for ever;
                        TransactionError in a transaction
        ``stop``        a raxlog.Stop (or threading.Event) that ends the wait: once it is set, the
                        read acknowledges, takes nothing, and returns []
        ``noack``       new entries do not become pending: at most once
        ``ack``         acknowledge these first, in the same commit, whichever consumer has them; in a
                        transaction, ack(consumer=) and then a read are one commit, too
        ``ack_owned``   acknowledge only those of ``ack`` that are still pending for this consumer
        ``claim_idle``  take over entries that have been pending elsewhere for this many seconds (released
                        entries first, then those idle longest), then fill up with new entries; what it
                        meets that is no longer in the stream leaves the pending list, and counts as gone

        The list has ``consumer_created``, whether the consumer is new. Each entry has ``deliveries``, how often it
        has been delivered including this time, and ``idle``, how long a claimed entry had been idle.
        Durable when it returns. One commit; outside a transaction and without ``claim_idle``, commits of 10,000
        entries each, up to the last entry that existed when it began. A read that finds nothing commits nothing;
        the consumer's seen-time is written with its next commit, or within five seconds with those of its group.
        LockTimeout if another process holds the writer's lock and there is something to deliver.
        """
        reader = member_name(consumer, "consumer")
        whole("count", count, 0, none=", or None for all")
        after = None if ids in (">", b">") else history_start(ids)
        acked = parse_ids("ack", ack)
        min_idle = None if claim_idle is None else duration_ms("claim_idle", claim_idle)
        wait = parse_timeout(self._source, timeout)
        at_once = min_idle is not None or not isinstance(self._source, StoreSource)
        target = _new(Target, (self._stream, after, acked))
        found: list[Entry] = []
        created = False
        end: deliver.ID | None = None
        while True:
            remaining = None if count is None else count - len(found)
            limit = remaining if at_once or (remaining is not None and remaining < PIECE) else PIECE
            wanted = _new(GroupRead, (self._name, reader, limit, None, None, noack, min_idle, stop, ack_owned, False,
                                      None))
            try:
                answer = read_group(self._source, self._seen, wanted, [target], wait)
            except RaxlogError:
                if found:  # these are the consumer's by now; the next read raises the error
                    break
                raise
            piece = answer[0][1] if answer else []
            created = created or bool(answer.created)
            found += piece
            if at_once or len(piece) < PIECE or len(found) == count:
                break
            if end is None:
                with self._source.read() as txn:
                    end = self._found(txn)[2].last
            if piece[-1].id >= end:
                break
            target, wait = Target(self._stream, None if after is None else piece[-1].id, b""), 0
        return Delivered.of(shown_by(self, found), created)

    def ack(self, *ids: IDs, consumer: Name | None = None) -> int:
        """Acknowledge entries, which then are no longer pending; returns how many were. Redis: XACK.

        Returns 0 if the group does not exist.

        As in Redis, any consumer may own them. With ``consumer``, NotOwner is raised, and nothing is
        acknowledged, unless all are pending for this consumer. (Another may have claimed an entry and
        acknowledged it.) NotOwner undoes a transaction as a whole, so if two consumers have worked on the
        same entry, only one stores its results. Entries that a transaction itself has read or claimed
        cannot be claimed by others.

        Without ``consumer`` and outside a transaction, each commit acknowledges up to 10,000.
        """
        wanted = row_of(given_ids(ids))
        if consumer is None:
            if 0 < len(wanted) <= 16 * PIECE:
                return self._source.submit(partial(ack_named, self._stream, self._name, wanted))
            return sum(in_pieces(self._source, wanted, partial(ack_named, self._stream, self._name), 16 * PIECE))
        owner = member_name(consumer, "consumer")

        def act(some: bytes, txn: WriteTransaction) -> int:
            _, group = self._located(txn)
            deliver.require_owner(txn, self._stream, group, self._name, owner, some)
            return 0 if group is None else deliver.ack(txn, group, some)

        return sum(in_pieces(self._source, wanted, act, max(1, len(wanted))))

    def renew(self, consumer: Name, *ids: IDs) -> list[StreamID]:
        """Restart the idle time of this consumer's pending entries, to renew the lease of a long job.

        Returns the IDs that are not (or no longer) pending for this consumer, for example because another one has
        claimed or acknowledged them. Delivers nothing and leaves the delivery counts unchanged. One commit.
        """
        owner, wanted = member_name(consumer, "consumer"), row_of(given_ids(ids))
        return [make_id(*sid) for sid in self._act(
            lambda txn, _, group: deliver.renew(txn, group, owner, wanted, now_ms()))] if wanted else []

    def nack(self, *ids: IDs, mode: Literal["silent", "fail", "fatal"] = "fail", delay: float = 0.0,
             deliveries: int | None = None, force: bool = False, consumer: Name | None = None) -> int:
        """Give pending entries back to the group, for any consumer to claim; returns how many. Redis: XNACK.

        ``mode``   "fail" keeps the delivery count, "silent" does not count this delivery, "fatal" sets
                   the count to 2**63 - 1, for an entry that should not be tried again
        ``delay``  seconds before ``read(claim_idle=…)`` may deliver them again. claim() and
                   autoclaim() return them at once, as Redis does with released entries
        ``deliveries`` sets the count instead. ``force`` makes entries pending that are not. With
        ``consumer``, NotOwner is raised, and nothing is done, unless all are pending for this consumer, as for ack()
        """
        if mode not in _NACKS:
            raise InvalidArgument(f"mode={mode!r} is unknown; it is one of {', '.join(_NACKS)}")
        whole("deliveries", deliveries, 0, deliver.MOST_DELIVERIES, none="")
        wanted: list[deliver.ID] = [parse_id(sid) for sid in given_ids(ids)]
        later = duration_ms("delay", delay)
        owner = None if consumer is None else member_name(consumer, "consumer")

        def operation(txn: WriteTransaction, stream: writer.StreamWriter, group: GroupState) -> int:
            if owner is not None:
                deliver.require_owner(txn, self._stream, group, self._name, owner, row_of(wanted))
            due = now_ms() + later if later else 0
            return claiming.nack(txn, stream, group, wanted, mode, deliveries, force, due)

        return self._act(operation) if wanted else 0

    def ack_delete(self, *ids: IDs, refs: Refs = KEEPREF, consumer: Name | None = None) -> list[DeleteResult]:
        """Acknowledge entries, and delete those that the policy allows. Redis: XACKDEL.

        MISSING for an entry that was not pending here (it is not deleted), REFERENCED for one that was
        acknowledged but stays, because under "acked" another group still needs it. With ``consumer``,
        NotOwner as for ack(), with nothing done. Without ``consumer`` and outside a transaction, each commit
        takes up to 2,000. Costs as much as ack() and delete_ex().
        """
        wanted = [parse_id(sid) for sid in given_ids(ids)]
        checked_policy(refs)
        owner = None if consumer is None else member_name(consumer, "consumer")

        def act(some: list[StreamID], txn: WriteTransaction) -> list[DeleteResult]:
            stream, group = self._located(txn)
            if owner is not None:
                deliver.require_owner(txn, self._stream, group, self._name, owner, row_of(some))
            if stream is None or group is None:
                return [DeleteResult.MISSING] * len(some)
            return ack_delete(txn, stream, group, some, refs)

        limit = PIECE_ASKED if owner is None else max(1, len(wanted))
        return list(chain.from_iterable(in_pieces(self._source, wanted, act, limit)))

    # -- jobs ---------------------------------------------------------------------------

    def cancel(self, id: IDs, reason: str = "", *, dead_letters: Name | None = None) -> int:
        """Give up an entry, or each of an iterable of IDs: a dead letter, reason "cancelled"; returns how many were.

        Whether it is not delivered yet, waits for a retry, or runs: one commit appends the letter, whose ``error`` is
        this reason, and acknowledges. What is not delivered yet never is, to this group; others are not concerned.
        A handler that runs gets raxlog.Cancelled within a second, and what it returns is neither acknowledged nor kept;
        one with a transaction is waited for. 0 for what is done, dead, deleted, trimmed or unknown, or not of the
        group's subjects. Behind a set_id() to an earlier ID it is still passed over, for a year.

        ``dead_letters``: the stream's name where workers name another. For a deferred entry: Stream.cancel_deferred().
        Outside a transaction, commits of 1,000. NoGroup; InvalidStreamID; errors of an append to the dead letters.
        """
        return cancel(self._letters(dead_letters), given_ids((id,)), reason)

    @overload
    def worker(self, handler: Callable[[typed.Entry[V]], object], *, processes: int = 0,
               transaction: Literal[False] = False, **options: Unpack[WorkerOptions]) -> Worker: ...

    @overload
    def worker(self, handler: Callable[[typed.Entry[V], Transaction], object], *, processes: int = 0,
               transaction: Literal[True], **options: Unpack[WorkerOptions]) -> Worker: ...

    def worker(self, handler: Callable[..., object], *, name: Name | None = None, threads: int = 1, processes: int = 0,
               transaction: bool = False, lease: float = 30.0, max_deliveries: int = 20, retry: object = None,
               timeout: float | None = None, drain: float = 10.0, dead_letters: Name | None = None,
               result_ttl: float | None = None) -> Worker:
        """Make a worker that runs ``handler(entry)`` for each entry of the group; ``worker.run()`` starts it.

        Any number of workers, in any process, share the entries; each entry is run at least once. If the handler
        returns, its entry is acknowledged in the commit that reads the next entries. If it raises, it has failed:

        ``max_deliveries``  how often the entry is delivered at most; then it goes to the dead letters
        ``retry``         the delay before the next delivery: a Backoff, seconds, a list of seconds, or a function of
                          the deliveries
        ``Retry(after)``, ``Snooze(seconds)``, ``Discard(why)``    raised by the handler, override this
        ``lease``         seconds after which other workers take over the entries of a dead worker; a living worker
                          renews its leases, so a handler may take longer
        ``timeout``       seconds after which TimeLimit is raised in the handler; if that does not end it, the
                          entry has failed, and the thread is abandoned
        ``threads``       how many handlers run at the same time; each thread reads for itself
        ``processes``     how many child processes each run these threads; this process only restarts them when they die
        ``transaction``   run ``handler(entry, tx)`` in a transaction that also acknowledges: writes through ``tx``
                          happen exactly once. Other writers wait for it
        ``drain``         seconds that handlers have to end once the worker is stopped
        ``name``          of the consumer (of several threads: NAME/0, NAME/1 …), unique among all workers. Without one
                          a name is made; such a consumer is deleted when the worker stops, or, once it was killed and
                          holds nothing, when a worker starts a minute later
        ``dead_letters``  a stream's name instead of "STREAM.GROUP.dead"
        ``result_ttl``    seconds for which wait_result() finds the return value of a handler, or the error for which
                          an entry was given up; written in a commit before the one that ends the entry

        InvalidArgument for invalid values; TransactionError in a transaction. The commits are those of read(), nack()
        and dead_letters. A worker leaves alone an entry that another worker has taken over.
        """
        return worker(  # type: ignore[call-overload,misc,no-any-return]
            {self: handler}, processes=processes, transaction=transaction, name=name, threads=threads, lease=lease,
            max_deliveries=max_deliveries, retry=retry, timeout=timeout, drain=drain, dead_letters=dead_letters,
            result_ttl=result_ttl)

    def keep_results(self, results: Mapping[IDLike, Result], ttl: float) -> None:
        """Keep results for ``ttl`` seconds, for wait_result(); one commit. A worker with result_ttl does this itself.

        An older result of an entry is replaced, but not that it was cancelled; the entry need not exist. A value can be
        anything that msgpack can encode (None, bool, int, float, str, bytes, and lists and dicts of these; a tuple
        becomes a list). For any other value, an error that says so is kept instead.
        """
        rows = [(parse_id(sid), packed(result)) for sid, result in results.items()]
        kept_for = duration_ms("ttl", ttl)

        def operation(txn: WriteTransaction, stream: writer.StreamWriter, group: GroupState) -> None:
            for sid, value in rows:
                if not group.has_cancelled(txn, sid):
                    put_result(txn, stream.number, name_of(self._name, sid), value, kept_for)

        self._act(operation)

    def wait_result(self, id: IDLike, timeout: float | None = None, *, stop: StopFlag | None = None) -> Result:
        """Wait for the result of an entry: a Result, whose ``status`` says what came of it.

        Returns at once where no result can come any more: the entry is acknowledged and none is kept, a dead letter,
        deleted, or never was. With the status "timeout" after ``timeout`` seconds (0: do not wait; None: for ever), or
        once ``stop`` is set. Costs some microseconds, and no thread of its own while it waits.
        """
        deadline = None if timeout is None else clocks.monotonic() + duration_ms("timeout", timeout) / 1000
        sid = parse_id(id)
        condition = Condition(job_moves, self._stream, self._name, sid)
        while True:
            with self._source.read() as txn:
                state, number, header = self._found(txn)
                result = result_of(txn, number, header, state, sid)
            if (result.status != "timeout" or timeout == 0 or is_stopped(stop)
                    or not isinstance(self._source, StoreSource)):
                return result
            if not self._source.env.attached(WaitQueues).wait({condition: "timeout"}, deadline, stop=stop):
                timeout = 0  # one last look

    def job(self, id: IDLike) -> Job:
        """What has become of an entry: queued, running, waiting for a retry, done, dead, gone, or unknown.

        One read, some 20 µs, however many entries and dead letters there are. A dead letter is found for a year.
        NoGroup; InvalidStreamID.
        """
        sid = parse_id(id)
        with self._source.read() as txn:
            state, number, header = self._found(txn)
            return find_job(txn, number, header, state, sid, self._encoding)

    @property
    def dead_letters(self) -> DeadLetters[V]:
        """The entries that its workers have given up, to inspect, replay or purge."""
        return self._letters(None)

    def _letters(self, name: Name | None) -> DeadLetters[V]:
        return DeadLetters(self._source, self._stream, self._name, partial(shown_by, self), self._encoding, name)

    # -- claiming -----------------------------------------------------------------------

    def claim(self, consumer: Name, *ids: IDs, min_idle: float = 0.0, idle: float | None = None,
              time: datetime | None = None, deliveries: int | None = None, force: bool = False,
              lastid: IDLike | None = None) -> Delivered[typed.Entry[V]]:
        """Move pending entries to a consumer, if idle for ``min_idle`` seconds. Redis: XCLAIM.

        ``idle`` (seconds) or ``time`` (a datetime with a time zone) set the delivery time; a time in the future or
        a negative idle mean now. ``deliveries`` sets the delivery count; otherwise it rises by one.
        ``force`` makes entries pending that are not. ``lastid`` moves the group's last delivered ID forward.
        A released entry can be claimed at once: the delay of nack() applies to read() only. KeyBusy for one that is
        parked, see configure(key=).
        """
        entries, created = self._claim(consumer, ids, False, min_idle, idle, time, deliveries, force, lastid)
        return Delivered.of(shown_by(self, entries), created)

    def claim_ids(self, consumer: Name, *ids: IDs, min_idle: float = 0.0, idle: float | None = None,
                  time: datetime | None = None, deliveries: int | None = None, force: bool = False,
                  lastid: IDLike | None = None) -> Delivered[StreamID]:
        """claim() that returns IDs and counts no delivery. Redis: XCLAIM with JUSTID."""
        entries, created = self._claim(consumer, ids, True, min_idle, idle, time, deliveries, force, lastid)
        return Delivered.of([entry.id for entry in entries], created)

    def _claim(self, consumer: Name, ids: tuple[IDs, ...], justid: bool, min_idle: float, idle: float | None,
               time: datetime | None, deliveries: int | None, force: bool,
               lastid: IDLike | None) -> tuple[list[Entry], bool]:
        owner = member_name(consumer, "consumer")
        wanted: list[deliver.ID] = [parse_id(sid) for sid in given_ids(ids)]
        whole("deliveries", deliveries, 0, deliver.MOST_DELIVERIES, none="")
        idle_ms = None if idle is None else duration_ms("idle", idle, negative=True)
        time_ms = None if time is None else moment_ms("time", time)
        floor = max(0, duration_ms("min_idle", min_idle, negative=True))
        last = None if lastid is None else parse_id(lastid)

        def operation(txn: WriteTransaction, stream: writer.StreamWriter,
                      group: GroupState) -> tuple[list[Entry], bool]:
            now = now_ms()
            at = now if idle_ms is None else now - idle_ms
            at = at if time_ms is None else time_ms
            if not 0 <= at <= now:
                at = now
            options = ClaimOptions(floor, at, deliveries, force, justid, last)
            created = group.consumer(txn, owner) is None
            return claiming.claim(txn, stream, group, owner, wanted, options, now), created

        return self._act(operation) if wanted else ([], False)

    def autoclaim(self, consumer: Name, min_idle: float = 0.0, start: IDLike = "0",
                  count: int = 100) -> Autoclaimed[typed.Entry[V]]:
        """Claim entries that are idle long enough, in ID order from ``start``. Redis: XAUTOCLAIM.

        Returns the ``entries``, the ``cursor``, which is the ID to continue from (0-0 at the end), and ``deleted``, the
        IDs of entries that are gone and were removed from the pending list. Looks at up to 10 * ``count`` entries.
        A released entry can be claimed at once: the delay of nack() applies to read() only.
        Decodes only the entries it returns. Outside a transaction, a ``count`` above 2,000 is
        divided into several commits. If a later one fails, the call returns the entries claimed so
        far, and the next call, which continues from there, raises the error.
        """
        first, entries, created, gone = self._autoclaim(consumer, min_idle, start, count, False)
        return Autoclaimed(first, Delivered.of(shown_by(self, entries), created), gone)

    def autoclaim_ids(self, consumer: Name, min_idle: float = 0.0, start: IDLike = "0",
                      count: int = 100) -> Autoclaimed[StreamID]:
        """autoclaim() that returns IDs and counts no delivery. Redis: XAUTOCLAIM with JUSTID."""
        first, entries, created, gone = self._autoclaim(consumer, min_idle, start, count, True)
        return Autoclaimed(first, Delivered.of([entry.id for entry in entries], created), gone)

    def _autoclaim(self, consumer: Name, min_idle: float, start: IDLike, count: int,
                   justid: bool) -> tuple[StreamID, list[Entry], bool, list[StreamID]]:
        owner = member_name(consumer, "consumer")
        if type(count) is not int or count < 1:
            raise InvalidArgument(f"count={count!r} must be a whole number > 0")
        first = parse_start(start)
        floor = max(0, duration_ms("min_idle", min_idle, negative=True))

        def operation(txn: WriteTransaction, stream: writer.StreamWriter,
                      group: GroupState) -> tuple[StreamID, list[Entry], list[StreamID], int, bool]:
            now = now_ms()
            created = group.consumer(txn, owner) is None
            member = group.ensure_consumer(txn, owner, now)
            limit = min(remaining, PIECE_ASKED) if isinstance(self._source, StoreSource) else remaining
            looks = min(attempts, claiming.SCAN_FACTOR * limit)
            return *claiming.autoclaim(txn, stream, group, member, floor, first, looks, limit, justid, now), created

        remaining, attempts = count, claiming.SCAN_FACTOR * count
        entries: list[Entry] = []
        gone: list[StreamID] = []
        is_new = False
        while True:
            try:
                first, claimed, lost, looked, created = self._act(operation)
            except RaxlogError:
                if remaining == count and attempts == claiming.SCAN_FACTOR * count:
                    raise
                break
            entries += claimed
            gone += lost
            is_new = is_new or created
            remaining -= len(claimed) + len(lost)
            attempts -= looked
            if first == StreamID.MIN or not remaining or not attempts:
                break
        return first, entries, is_new, gone

    # -- inspecting ---------------------------------------------------------------------

    def pending(self) -> PendingSummary:
        """A summary of the entries that were delivered and not acknowledged. Redis: XPENDING."""
        with self._source.read() as txn:
            state, _, _ = self._found(txn)
            if not state.pending:
                return PendingSummary(0, None, None, {}, 0)
            pel = state.pel(txn)
            first, last = pel.first(), pel.last()
            owners = {text_of(c.name, self._encoding): c.pending for c in state.consumers(txn) if c.pending}
        if first is None or last is None:
            raise self._short(state)
        parked = state.key_limit.parked if state.key_limit else 0
        return PendingSummary(state.pending, make_id(*first), make_id(*last), owners, parked)

    def pending_entries(self, start: IDLike = "-", end: IDLike = "+", count: int | None = None, *,
                        consumer: Name | None = None, min_idle: float | None = None) -> list[Pending]:
        """The pending entries from ``start`` to ``end``, at most ``count``. Redis: XPENDING with a range.

        Optionally only those of one ``consumer`` or idle for ``min_idle`` seconds; the latter are found by their times.
        """
        first, last = parse_start(start), parse_end(end)
        owner = None if consumer is None else member_name(consumer, "consumer")
        floor = 0 if min_idle is None else max(0, duration_ms("min_idle", min_idle, negative=True))
        if count is not None and type(count) is not int:
            raise InvalidArgument(f"count={count!r} must be a whole number, or None for all")
        rows: list[Pending] = []
        with self._source.read() as txn:
            state, _, _ = self._found(txn)
            now = now_ms()
            number = None
            seen = 0
            member = None
            if owner is not None:
                member = state.consumer(txn, owner)
                if member is None:
                    return []
                number = member.number
            pel = state.pel(txn)
            by_time = floor > 0 and number is None
            for sid, nack in pel.scan_idle(first, last, now - floor) if by_time else pel.scan(first, last, number):
                if count is not None and len(rows) >= count:
                    break
                seen += 1
                if nack.consumer == UNOWNED:
                    rows.append(Pending(make_id(*sid), None, None, nack.count, parking.is_parked(nack)))
                    continue
                idle = max(0, now - nack.time)
                if idle >= floor:
                    name = text_of(state.consumer_no(txn, nack.consumer).name, self._encoding)
                    rows.append(Pending(make_id(*sid), name, idle / 1000, nack.count))
            else:
                is_all = first == StreamID.MIN and last == StreamID.MAX and not by_time
                if is_all and seen != (state.pending if member is None else member.pending):
                    raise self._short(state)
        return rows

    def _short(self, state: GroupState) -> CorruptionError:
        return CorruptionError(
            f"group {shown(self._name)} has fewer pending entries than the {state.pending} it counts: some are lost",
            stream=shown(self._stream),
        )

    def consumers(self) -> list[ConsumerInfo]:
        """The group's consumers, by name. Redis: XINFO CONSUMERS."""
        with self._source.read() as txn:
            state, number, _ = self._found(txn)
            members = state.consumers(txn)
            self._seen.refresh(number, state.group, members)
            return [
                ConsumerInfo(
                    text_of(c.name, self._encoding), c.pending, time_at(c.seen),
                    None if c.active < 0 else time_at(c.active),
                )
                for c in members
            ]

    def info(self) -> GroupInfo:
        """The figures of the group. Redis: XINFO GROUPS."""
        with self._source.read() as txn:
            state, number, header = self._found(txn)
            return describe_group(txn, state, number, header, self._encoding)

    @property
    def lag(self) -> int:
        """The number of live entries that the group has not delivered yet: exact after any deletion or set_id().

        Takes some ten microseconds, and five for each entry that was cancelled before its delivery; a group filtered by
        subject examines each entry after its position.
        """
        with self._source.read() as txn:
            state, _, header = self._found(txn)
            return deliver.lag(txn, header, state)

    @property
    def subjects(self) -> list[Text]:
        """The patterns by which the group is filtered (Stream.create_group); empty if it gets every entry."""
        with self._source.read() as txn:
            return [text_of(pattern, self._encoding) for pattern in self._found(txn)[0].subjects]

    @property
    def last_delivered_id(self) -> StreamID:
        """The ID up to which the group has delivered everything."""
        with self._source.read() as txn:
            return make_id(*self._found(txn)[0].last)

    # -- the group itself ---------------------------------------------------------------

    def set_id(self, id: IDLike, *, entries_read: int | None = None) -> None:
        """Set the last delivered ID, forward or back; ``$`` is the stream's last ID. Redis: XGROUP SETID.

        A datetime means the ID just before the first one of that time, so that everything from then on is
        delivered.
        """
        parsed, read = _position(id), checked_entries_read(entries_read)

        def operation(txn: WriteTransaction, stream: writer.StreamWriter, group: GroupState) -> None:
            group.changed(txn)
            group.last = stream.header.last if parsed is None else (parsed.ms, parsed.seq)
            group.entries_read = min(read, stream.header.entries_added)
            group.moves += 1

        self._act(operation)

    def entries_after(self, id: IDLike) -> int:
        """How many entries the group would deliver behind set_id() to that ID or time. It changes nothing."""
        parsed = _position(id)
        with self._source.read() as txn:
            state, _, header = self._found(txn)
            return deliver.lag(txn, header, state, header.last if parsed is None else parsed)

    def configure(self, *, max_in_flight: int | None = None, rate: tuple[int, float] | Literal[0] | None = None,
                  burst: int | None = None, key: Name | Literal[0] | None = None, per_key: int | None = None,
                  order: bool | None = None, max_parked: int | None = None,
                  rate_key: Name | Literal[0] | None = None) -> None:
        """Limit what the group delivers, in all processes together; what is None stays as it is. Durable.

        ``max_in_flight``: how many entries its consumers hold at most, 0 for any number. What waits for a retry counts
        once it is delivered again. What a dead consumer holds counts until another one has taken it over, which needs
        no room.

        ``rate``: (count, seconds): in any time of so many seconds at most ``count + burst`` entries are delivered, with
        those that are delivered again; 0 for no rate, nor a ``rate_key``. They come evenly, ``burst`` of them (1,
        if it was never set) at once after a time without any. Up to 1,000,000; above 1,000 a second, ``burst`` should
        be a thousandth of that.

        ``rate_key``: the name of a field, the same as ``key``'s where there is one; the rate is then for each value of
        it, and 0 makes it the group's again. What is over it is parked, as with ``key``, until its turn comes, in the
        order of the IDs, and every read delivers what is due, a retry, too, without ``claim_idle``. claim() and
        autoclaim() are given nothing before its turn.

        ``key``: the name of a field; of entries with the same value in it, its consumers hold ``per_key`` at a time (1,
        if it was never set), in the order of the IDs. An entry whose key is busy is parked: pending, with no consumer,
        delivered 0 times; the commit by which one of its key ends, in whichever way, lets it go on. With ``order`` an
        entry that waits for a retry keeps its key until it is done or dead; else the next one goes first. What is
        parked is in no lag, is passed over by autoclaim() and nack(), and claim() of it raises KeyBusy. Once
        ``max_parked`` are (100,000, if it was never set), the group reads on only up to the next entry of a busy key.
        An entry without the field has no key; a read with ``noack`` is refused. ``key=0`` takes the key away: what is
        parked is released then, for reads with ``claim_idle``. A change of these four, or of a rate by key, looks at
        each entry that is pending, in one commit.

        What is over a limit is not delivered and uses up no attempt: a read gets less, one that waits wakes when it
        may go on. A limit is a comparison in the commit that delivers, so that none is exceeded, and nothing can leak,
        when processes are killed. Not limited: reads with ``noack`` by max_in_flight, a consumer's own history, claim()
        and autoclaim(). NoGroup, InvalidArgument. Costs a commit. A read of a group with max_in_flight
        looks at each consumer once another process has changed the group.
        """
        whole("max_in_flight", max_in_flight, 0, (1 << 32) - 1, none="")
        whole("burst", burst, 1, 1_000_000, none="")
        whole("per_key", per_key, 1, (1 << 32) - 1, none="")
        whole("max_parked", max_parked, 1, (1 << 32) - 1, none="")
        if order is not None and type(order) is not bool:
            raise InvalidArgument(f"order={order!r:.60} must be True or False")
        field = None if key is None else _field_name("key", key)
        rated = None if rate_key is None else _field_name("rate_key", rate_key)
        wanted = None if rate is None else _parsed_rate(rate)

        def operation(txn: WriteTransaction, stream: writer.StreamWriter, group: GroupState) -> None:
            had = group.key_limit
            limits, by_key = _limits_of(group, max_in_flight, wanted, burst, field, per_key, order, max_parked, rated)
            group.changed(txn)
            group.limits = limits if limits.max_in_flight or limits.many else None
            if by_key != had:
                parking.rebuild(txn, stream.header, group, by_key)
            group.moves += 1

        self._act(operation)

    def pause(self, until: datetime | None = None) -> None:
        """Deliver no new and no idle entries to any read until that time or resume(). Durable.

        Pending entries can still be acknowledged, released and claimed by ID. Reads wait. ``until`` must have a
        time zone.
        """
        self._set_paused(MAX64 if until is None else max(0, moment_ms("until", until)))

    def resume(self) -> None:
        """End a pause."""
        self._set_paused(0)

    @property
    def paused(self) -> bool:
        """Whether the group is paused now."""
        with self._source.read() as txn:
            return self._found(txn)[0].paused > now_ms()

    def _set_paused(self, until: int) -> None:
        def operation(txn: WriteTransaction, _: writer.StreamWriter, group: GroupState) -> None:
            group.changed(txn)
            group.paused = until
            group.moves += 1

        self._act(operation)

    def destroy(self) -> bool:
        """Delete the group, its consumers and its PEL; False if it did not exist. Redis: XGROUP DESTROY.

        Readers that wait for it wake with NoGroup. Its space is freed in further commits of bounded size.
        """

        def operation(txn: WriteTransaction) -> bool:
            stream, state = self._located(txn)
            if stream is None or state is None:
                return False
            destroy_group(txn, stream, state)
            return True

        gone = self._source.submit(operation)
        if gone and isinstance(self._source, StoreSource):
            sweep(self._source)
        return gone

    def create_consumer(self, name: Name) -> bool:
        """Create a consumer; False if it exists. Redis: XGROUP CREATECONSUMER."""
        raw = member_name(name, "consumer")

        def operation(txn: WriteTransaction, stream: writer.StreamWriter, group: GroupState) -> bool:
            if group.consumer(txn, raw) is not None:
                return False
            group.ensure_consumer(txn, raw, now_ms())
            return True

        return self._act(operation)

    def delete_consumer(self, name: Name, *, pending: Literal["refuse", "drop"] = "refuse",
                        to: Name | None = None) -> int:
        """Delete a consumer; returns how many pending entries it had. Redis: XGROUP DELCONSUMER, made safe.

        ``pending="refuse"``  ConsumerBusy if it has any that are still in the stream (the default)
        ``to="other"``        move them to another consumer, with their times and counts
        ``pending="drop"``    forget them, so that they are never delivered again, as Redis does

        Outside a transaction, commits of about 10,000 entries are used; the last one deletes the consumer.
        """
        raw = member_name(name, "consumer")
        limit = PIECE if isinstance(self._source, StoreSource) else None
        heir = None if to is None else member_name(to, "consumer")
        if pending not in ("refuse", "drop"):
            raise InvalidArgument(f"pending={pending!r} is unknown; it is 'refuse' or 'drop', or name an heir with to=")
        if heir == raw:
            raise InvalidArgument(f"consumer {shown(raw)} cannot hand over to itself")

        def operation(txn: WriteTransaction, stream: writer.StreamWriter, group: GroupState) -> tuple[int, bool]:
            member = group.consumer(txn, raw)
            if member is None:
                return 0, False
            had = member.pending
            refuses = heir is None and pending == "refuse"
            if had and refuses and not claiming.drop_gone(txn, stream, group, member, limit):
                raise ConsumerBusy(
                    f"consumer {shown(raw)} of group {shown(self._name)} has {had} pending entries. Hand them over "
                    "with to='other', or lose them with pending='drop'."
                )
            if had and heir is not None:
                claiming.hand_over(txn, group, member, group.ensure_consumer(txn, heir, now_ms()), limit)
            elif had and not refuses:
                claiming.drop(txn, group, member, limit)
            if member.pending:
                return had - member.pending, True
            group.remove_consumer(txn, member)
            return had, False

        had, more = self._act(operation)
        while more:
            some, more = self._act(operation)
            had += some
        return had

    # -- within -------------------------------------------------------------------------

    def _act(self, operation: Callable[[WriteTransaction, writer.StreamWriter, GroupState], T]) -> T:
        def within(txn: WriteTransaction) -> T:
            stream = writer.locate(txn, self._stream)
            group = require_group(txn, stream, self._stream, self._name)
            assert stream is not None
            return operation(txn, stream, group)

        return self._source.submit(within)

    def _located(self, txn: WriteTransaction) -> tuple[writer.StreamWriter | None, GroupState | None]:
        """The stream and the group, or None."""
        stream = writer.locate(txn, self._stream)
        return stream, None if stream is None else locate_group(txn, stream, self._name)

    def _found(self, txn: RaxTransaction) -> tuple[GroupState, int, headers.StreamHeader]:
        found = headers.find(txn, self._stream)
        state = None if found is None else find_group(txn, found[0], self._name)
        if found is None or state is None:
            raise no_group(txn, None if found is None else found[0], self._stream, self._name)
        return state, *found


@overload
def worker(handlers: Mapping[Group[V], Callable[[typed.Entry[V]], object]], *, back_every: int = 10,
           processes: int = 0, transaction: Literal[False] = False, **options: Unpack[WorkerOptions]) -> Worker: ...


@overload
def worker(handlers: Mapping[Group[V], Callable[[typed.Entry[V], Transaction], object]], *, back_every: int = 10,
           processes: int = 0, transaction: Literal[True], **options: Unpack[WorkerOptions]) -> Worker: ...


def worker(handlers: Mapping[Group[V], Callable[..., object]], *, back_every: int = 10, processes: int = 0,
           transaction: bool = False, **options: Unpack[WorkerOptions]) -> Worker:
    """Make one worker over several groups of a store, each with its handler: ``raxlog.worker({urgent: send, …})``.

    The order is strict: each read takes entries of the first group of the mapping that has any, new or to be claimed.
    But every ``back_every``-th read of a thread, from 2 on, goes from the back (of three groups by turns from the last
    and from the second), so that none starves. A read is of as many entries as a thread runs in 50 ms. It acknowledges
    what is done in the same commit, whichever group that is of. A thread waits for all groups at once, without polling.

    All else is as for Group.worker(), whose options these are: each group has its own retries and dead letters, and its
    own consumers, of the worker's name. InvalidArgument for groups of several stores, or one that is named twice.
    """
    from ..jobs.processes import Children  # noqa: PLC0415 - loaded where it is used
    from ..jobs.worker import Duty, Worker  # noqa: PLC0415

    if not isinstance(handlers, Mapping) or not handlers or not all(isinstance(group, Group) for group in handlers):
        raise InvalidArgument(f"worker({handlers!r:.60}) must be a mapping from groups to handlers; for groups of "
                              "raxlog.aio there is raxlog.aio.worker()")
    if len({id(group._source.env) for group in handlers}) > 1:
        raise InvalidArgument(f"{[*handlers]} are not of one store, as the groups of a worker must be")
    if len({(group._stream, group._name) for group in handlers}) < len(handlers):
        raise InvalidArgument(f"{[*handlers]} names a group twice, by two handles")
    whole("back_every", back_every, 2)
    whole("processes", processes, 0, 1000)
    groups = list(handlers)
    source = groups[0]._source
    if not isinstance(source, StoreSource):
        raise TransactionError("worker() inside a transaction: a worker has transactions of its own")
    begin = source.transaction() if transaction and source.transaction is not None else None
    if transaction and begin is None:
        raise StoreClosed("the store that this group is of has been dropped; keep it while a worker runs")
    rest: dict[str, Any] = {**options}
    dead_letters, given_name = rest.pop("dead_letters", None), rest.pop("name", None)
    duties = [Duty(Group(source, group._stream, group._name, None), handler,
                   partial(bury, group._letters(dead_letters)), partial(shown_by, group),
                   *(partial(ask, source, partial(question, stream=group._stream, group=group._name))
                     for question in (deliver.next_due, deliver.turn_of)))
              for group, handler in handlers.items()]

    def read_first(consumer: bytes, asked: Sequence[Asked], lease: float, stop: StopFlag,
                   waits: bool) -> tuple[int, Sequence[typed.Entry[Any]]]:
        reads = [(GroupRead(groups[at]._name, consumer, most, None, None, False, int(1000 * lease), stop, True),
                  Target(groups[at]._stream, None, row_of(ids))) for at, most, ids in asked]
        first, entries = deliver.read_first(source, groups[0]._seen, reads, waits)
        return asked[first][0], texts_of(entries, None, None)

    def make(name: Name | None, is_child: bool = False, children: Children | None = None) -> Worker:
        return Worker(duties, read_first, back_every, begin, name=name, is_child=is_child, children=children, **rest)

    children = Children(make, processes, lambda: [ask(source, group._found) for group in groups]) if processes else None
    return make(given_name, children=children)


def shown_by(group: Group[V], entries: list[Entry]) -> list[typed.Entry[V]]:
    """Entries as the handle returns them: as text under the store's encoding, with values of the handle's type."""
    return texts_of(entries, group._encoding, group._model)


def _field_name(what: str, name: object) -> bytes:
    """The name of a field by which a group is limited; empty for none."""
    if type(name) is int and name == 0:
        return b""
    raw = stored_bytes(name, what) if isinstance(name, str | bytes) else b""
    if not raw or raw.startswith(b"$"):
        raise InvalidArgument(f"{what}={name!r:.60} must be the name of a field, or 0 for none")
    return raw


def _limits_of(group: GroupState, max_in_flight: int | None, rate: tuple[int, int] | None, burst: int | None,
               key: bytes | None, per_key: int | None, order: bool | None, max_parked: int | None,
               rate_key: bytes | None) -> tuple[Limits, Key | None]:
    """What the group is limited by once these are changed; None: as it was. Fields are empty for none."""
    was, had = group.limits or Limits(), group.key_limit or Key(b"", 0)
    before = had.limits(0) if had.many else was
    many, window = (before.many, before.window) if rate is None else rate
    burst = before.burst if burst is None else burst
    key = (had.field if had.per_key else b"") if key is None else key
    by = (had.field if had.many and many else b"") if rate_key is None else rate_key
    if by and not many:
        raise InvalidArgument(f"group {shown(group.name)} has no rate, which rate_key is of; give it with rate=")
    if not key and (per_key is not None or order is not None or (max_parked is not None and not by)):
        raise InvalidArgument(f"group {shown(group.name)} has no key, which per_key, order and max_parked are of; name "
                              "the field with key=")
    if key and by and key != by:
        raise InvalidArgument(f"key={shown(key)} and rate_key={shown(by)} of group {shown(group.name)} must be the "
                              "same field; take the other away with 0, or give both")
    turn = min(was.turn, now_ms() * many + burst * window) if (many, window) == (was.many, was.window) else 0
    limits = Limits(was.max_in_flight if max_in_flight is None else max_in_flight, *((0, 0) if by else (many, window)),
                    burst, turn)
    if not key and not by:
        return limits, None
    return limits, Key(
        key or by, (per_key or had.per_key or 1) if key else 0, bool(key) and (had.order if order is None else order),
        had.max_parked if max_parked is None else max_parked, had.parked, *((many, window, burst) if by else (0, 0, 1)))


def _parsed_rate(rate: object) -> tuple[int, int]:
    """How many in how many ms; (0, 0) for no rate."""
    if rate == 0:
        return 0, 0
    if not isinstance(rate, tuple | list) or len(rate) != 2:
        raise InvalidArgument(f"rate={rate!r:.60} must be (count, seconds), as in (100, 60.0) for 100 a minute, or 0")
    count, window = rate[0], duration_ms("the seconds of rate", rate[1])
    whole("the count of rate", count, 1, 1_000_000)
    if not 0 < window <= _LONGEST_WINDOW:
        raise InvalidArgument(f"rate={rate!r:.60}: its seconds must be from a millisecond to a year")
    return count, window


def checked_entries_read(value: int | None) -> int:
    """ENTRIESREAD: -1 or left out for unknown."""
    if value is None:
        return UNKNOWN
    if type(value) is not int or value < -1:
        raise InvalidArgument(f"entries_read={value!r} must be a whole number >= 0, or -1 for unknown")
    return value


def _position(id: IDLike) -> StreamID | None:
    """The last delivered ID that set_id() takes; None for ``$``."""
    if id in ("$", b"$"):
        return None
    parsed = parse_start(id) if id in ("-", b"-", "+", b"+") else parse_id(id, "-, +, $, ")
    return parsed.prev() if isinstance(id, datetime) and parsed > StreamID.MIN else parsed
