"""A stream as its users hold it: append, read, delete, trim, count, and its groups.

Every method parses and checks its arguments first, then reads in one short transaction (range() and
nodes() in several), or writes in one that it may share with other callers (storage/commit). A call that
raises has changed nothing, except for those that say "in pieces". Where there is no stream, reads
return nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from ..storage.errors import (
    Conflict,
    CountTooSmall,
    GroupExists,
    IDBelowDeleted,
    IDBelowEntries,
    IDTooSmall,
    IDZero,
    InvalidArgument,
    NoStream,
    StoreError,
)
from ..storage.handles import made_by_a_call
from ..storage.log.transaction import WriteTransaction
from ..storage.wake.stop import StopFlag
from .columns import scan
from .entries import count as counting
from .entries import delete as deleting
from .entries import header as headers
from .entries import range_read, trim, writer
from .entries.header import NodeLimits, shown
from .entries.idempotent import MAX_CAP, MAX_WINDOW, Claim, Memory, parse_claim
from .entries.retention import Retention, require_retention, row_of
from .entries.schema import StreamSchema, parsed_schema
from .entries.session import PIECE_ASKED, Source, StoreSource, in_pieces
from .entries.unique import Appended, OnConflict, Until, Wish, appended, parse_wish
from .follow import Follower
from .group.delete_policy import KEEPREF, DeleteResult, checked_policy, delete_ex, drop_retries, evict
from .group.group import Group, checked_entries_read
from .group.info import GroupInfo, describe_group
from .group.state import all_groups, create_group, locate_group
from .group.subject_filter import checked_subjects
from .group.unique import find_holder, take
from .info import Configured, FullInfo, Part, StreamInfo, describe, describe_fully
from .jobs import deferred as jobs
from .jobs import schedules as scheduling
from .jobs.deferred import Deferred
from .jobs.schedules import Coalesce, Schedule
from .node.arguments import Codec, Compression, Name, Refs, Text, member_name, text_of, texts_of, whole
from .node.decode import flatten
from .node.entry import flatten_all, typed
from .node.flattened import Flattened, TextColumns
from .node.stream_id import (
    AUTO,
    IDLike,
    IDs,
    NewID,
    StreamID,
    given_ids,
    make_id,
    now_ms,
    parse_end,
    parse_id,
    parse_new_id,
    parse_start,
)
from .node.typed import Entry, V
from .node.values import RAW, checked_codec, encoded

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from .columns.arrow import Tally
    from .columns.projection import Schema
    from .node.arguments import Appendable
    from .node.model import Model

T = TypeVar("T")

_AT_ONCE = 1000  # entries, about a millisecond


class Stream(Generic[V]):
    """A handle on one stream, made by store.stream(name). Cheap to make; threads can share it.

    The stream need not exist: the first append creates it, and reads find nothing. Where methods take ``*ids``, each
    is an ID, or a single argument is an iterable of all; an empty one does nothing.
    """

    __slots__ = ("_codec", "_codec_in_use", "_encoding", "_limits", "_model", "_name", "_number", "_source")

    @made_by_a_call
    def __init__(self, source: Source, name: bytes, limits: NodeLimits, encoding: str | None,
                 codec: str | None = None, model: Model | None = None) -> None:
        self._source = source
        self._limits = limits
        self._encoding = encoding
        self._codec = codec
        self._codec_in_use = codec if codec == RAW else None  # by appends; None: the header is to be asked
        self._model = model
        self._number: int | None = None
        self._name = name

    def __repr__(self) -> str:
        return f"<raxlog.Stream {shown(self._name)} in {str(self._source.env.path)!r}>"

    @property
    def name(self) -> Text:
        """The stream's name."""
        return text_of(self._name, self._encoding)

    # -- writing ------------------------------------------------------------------------

    @overload
    def append(self, fields: Appendable, id: IDLike = "*", *, maxlen: int | None = None,
               minid: IDLike | None = None, approximate: bool = False, limit: int | None = None,
               refs: Refs = KEEPREF, create: Literal[True] = True, producer: Name | None = None,
               idempotent_id: Name | None = None, expect_last: IDLike | None = None,
               unique: None = None) -> StreamID: ...

    @overload
    def append(self, fields: Appendable, id: IDLike = "*", *, maxlen: int | None = None,
               minid: IDLike | None = None, approximate: bool = False, limit: int | None = None,
               refs: Refs = KEEPREF, create: bool, producer: Name | None = None,
               idempotent_id: Name | None = None, expect_last: IDLike | None = None,
               unique: None = None) -> StreamID | None: ...

    @overload
    def append(self, fields: Appendable, id: IDLike = "*", *, maxlen: int | None = None,
               minid: IDLike | None = None, approximate: bool = False, limit: int | None = None,
               refs: Refs = KEEPREF, create: Literal[True] = True, expect_last: IDLike | None = None, unique: Name,
               until: Until = "done", on_conflict: OnConflict = "skip") -> Appended: ...

    @overload
    def append(self, fields: Appendable, id: IDLike = "*", *, maxlen: int | None = None,
               minid: IDLike | None = None, approximate: bool = False, limit: int | None = None,
               refs: Refs = KEEPREF, create: bool, expect_last: IDLike | None = None, unique: Name,
               until: Until = "done", on_conflict: OnConflict = "skip") -> Appended | None: ...

    def append(self, fields: Appendable, id: IDLike = "*", *, maxlen: int | None = None,
               minid: IDLike | None = None, approximate: bool = False, limit: int | None = None,
               refs: Refs = KEEPREF, create: bool = True, producer: Name | None = None,
               idempotent_id: Name | None = None, expect_last: IDLike | None = None, unique: Name | None = None,
               until: Until = "done", on_conflict: OnConflict = "skip") -> StreamID | None:
        """Append one entry and return its ID; durable when it returns. Redis: XADD.

        ``fields``: a mapping, or pairs if order and duplicates matter; at least one. Under a codec, a mapping or
        an object of the handle's type, which the entry's ``value`` returns; a list of pairs is stored as it is.
        ``id``: ``*`` (made from the clock, always greater than the last), ``ms-*``, or one of
        your own, greater than every ID before. ``maxlen`` and ``minid`` trim in the same transaction, like
        trim(), and so does ``refs``. ``create=False`` appends only to an existing stream, and returns None if
        it does not exist (NOMKSTREAM).

        ``producer`` makes the append idempotent: if it is sent again with the same ``idempotent_id`` (by default made
        from the fields), it adds nothing and returns the first ID (IDMP, IDMPAUTO). An ID is remembered as long as its
        entry is there, and for at least a day, however many others follow; configure() sets another window, and a cap.

        ``expect_last`` appends only if this is the stream's last_id, 0-0 for a stream that is new or does not exist.
        Otherwise it raises Conflict, which has the actual ID. An idempotent append sent again returns its first ID.

        ``unique``: a name, up to 1,024 bytes, which one entry of the stream keeps at a time: ``until`` no group has
        still to deliver or to acknowledge it ("done"; dead letters are acknowledged), until every group has been given
        it ("delivered"), or for so many seconds. Where another entry keeps the name, ``on_conflict`` is to "skip" the
        append, to "replace" that entry by this one, or to "raise" NotUnique; one that a consumer is working on cannot
        be replaced: NotUnique. Returns an Appended, the ID of the entry that has the name now; its ``is_new`` says
        whether this call has appended it. A deletion or a trim frees a name that is not kept for seconds; in a stream
        without groups only these do. Costs some 80 µs beside the append; streams without unique names pay nothing.

        Raises InvalidFields, InvalidStreamID, IDTooSmall (IDZero for 0-0), Conflict, MalformedValue (see configure()),
        StreamExhausted, LockTimeout, StoreFull. Costs one durable commit, shared with concurrent appends.

        With ``durability="buffered"`` it returns at once, and is committed within the store's
        window; AppendsLost if the commit of an earlier append failed. Appends that are idempotent, or have
        ``expect_last`` or a unique name, wait for their commit.
        """
        codec = None
        if self._codec_in_use != RAW or self._model is not None:
            (fields,), codec = self._prepared((fields,))
        flat = flatten(fields)  # type: ignore[arg-type]
        new = AUTO
        if id != "*":
            new = parse_new_id(id)
            if new.ms == 0 and new.seq == 0:
                raise IDZero("the ID 0-0 is refused: an entry's ID must be greater than 0-0")
        wanted = claim = None
        if maxlen is not None or minid is not None or limit is not None:
            wanted = trim.parse_trim(maxlen, minid, approximate, limit)
        if refs != KEEPREF:
            checked_policy(refs)
        if producer is not None or idempotent_id is not None:
            claim = parse_claim(producer, idempotent_id, new, flat)
        expected = None if expect_last is None else parse_id(expect_last)
        if unique is not None or until != "done" or on_conflict != "skip":
            wish = parse_wish(unique, until, on_conflict)
            if wish is not None:
                return self._append_unique(flat, new, create, wanted, refs, claim, expected, codec, wish)
        if create and wanted is None and claim is None and expected is None and codec is None:
            name, limits, buffer, now = self._name, self._limits, self._source.buffer, now_ms()
            if buffer is None or buffer.ended:
                return self._source.submit(partial(writer.append, name, limits, new, now, flat))
            if new is AUTO:
                buffered = buffer.append(name, limits, (new,), now, (flat,), sum(map(len, flat)), True, None,
                                         self._source.lock_timeout)
                self._codec_in_use = self._codec_in_use or RAW  # as the first entry is there, if not yet committed
                return None if buffered is None else buffered[0]
        sids = self._append([flat], [new], create, wanted, refs, claim, expected, codec)
        return sids[0] if sids else None

    def extend(self, entries: Iterable[Appendable] | Flattened, ids: Iterable[IDLike] | None = None, *,
               maxlen: int | None = None, minid: IDLike | None = None, approximate: bool = False,
               limit: int | None = None, refs: Refs = KEEPREF,
               expect_last: IDLike | None = None) -> list[StreamID]:
        """Append many entries in one transaction with one flush; all of them or none.

        ``ids`` gives each entry its ID (as many as entries); otherwise all are made as by ``*``.
        Trims once, after the last entry. ``expect_last`` as in append(); without entries nothing is checked.
        Raises the errors of append(), naming the entry's place. With ``durability="buffered"`` it returns
        at once, and is still one commit.
        """
        flats: list[list[bytes]] | TextColumns = []
        if isinstance(entries, Flattened):
            flats, entries = entries.flats, ()
        for what, given in (("entries", entries), ("ids", ids if ids is not None else ())):
            if not isinstance(given, Iterable):
                raise InvalidArgument(f"{what} of extend() must be an iterable, not {type(given).__name__}")
        given, codec = self._prepared(entries)
        while isinstance(flats, list) and flatten_all(given, flats, _AT_ONCE):
            pass
        news: list[NewID] | None = None
        if ids is not None:
            news = [parse_new_id(sid) for sid in ids]
            if len(news) != len(flats):
                raise InvalidArgument(f"{len(flats)} entries need as many ids; {len(news)} were given")
        wanted = trim.parse_trim(maxlen, minid, approximate, limit)
        checked_policy(refs)
        expected = None if expect_last is None else parse_id(expect_last)
        return self._append(flats, news, True, wanted, refs, None, expected, codec) if flats else []

    def _append(self, flats: list[list[bytes]] | TextColumns, news: list[NewID] | None, create: bool,
                wanted: trim.Trim | None, refs: str, claim: Claim | None, expected: StreamID | None,
                codec: str | None) -> list[StreamID]:
        """Append flattened entries, in a commit or by the write buffer; their IDs, none if there is no stream."""
        name, limits, buffer, now = self._name, self._limits, self._source.buffer, now_ms()
        is_buffered = not (buffer is None or buffer.ended or claim is not None or expected is not None)
        operation = partial(  # which holds no handle: where it is buffered it may outlive all of them
            _append, name, limits, news, now, flats, create, wanted, refs, claim, expected, codec, not is_buffered)
        if buffer is None or not is_buffered:
            return self._source.submit(operation)
        size = sum([sum(map(len, flat)) for flat in flats])
        wished = [AUTO] * len(flats) if news is None else news
        return buffer.append(name, limits, wished, now, flats, size, create, operation, self._source.lock_timeout) or []

    def _append_unique(self, flat: list[bytes], new: NewID, create: bool, wanted: trim.Trim | None, refs: str,
                       claim: Claim | None, expected: StreamID | None, codec: str | None,
                       wish: Wish) -> Appended | None:
        """Append one entry unless its name is kept."""
        if claim is not None:
            raise InvalidArgument("an append is idempotent, by producer, or has a unique name: give one of them")
        name, now = self._name, now_ms()
        act = partial(_append, name, self._limits, [new], now, [wish.marked(flat)], create, wanted, refs, None,
                      expected, codec, True)

        def operation(txn: WriteTransaction) -> Appended | None:
            stream = writer.locate(txn, name)
            kept = None if stream is None else find_holder(txn, stream, wish, now)
            if stream is not None and kept is not None:
                if kept.is_deferred:
                    return appended(*StreamID.MIN, token=jobs.token_of(stream.number, kept.ms, kept.seq))
                return appended(kept.ms, kept.seq)
            sids = act(txn)
            if not sids:
                return None
            take(txn, writer.require(txn, name), wish, wish.holder(*sids[0], now), now)
            return appended(*sids[0], is_new=True)

        return self._source.submit(operation)

    def _prepared(self, entries: Iterable[Any]) -> tuple[Iterator[Any], str | None]:
        """Entries as flatten() takes them, and the codec that the stream is to have, if these are its first.

        The codec is that of the handle, or of the stream, which is asked until it has had entries.
        """
        codec, first = self._codec_in_use, None
        if codec is None:
            header = self._header(flushed=False)
            kept = RAW if header is None else header.codec
            codec = self._codec or (kept if kept != RAW or self._model is None else "json")
            if header is not None and header.next_ordinal:
                self._codec_in_use = codec
            elif codec != RAW:
                first = codec
        if codec == RAW and self._model is None:
            return iter(entries), first
        return (encoded(fields, codec, self._model) for fields in entries), first

    @overload
    def defer(self, fields: Appendable, *, delay: float | None = None, at: datetime | None = None,
              unique: None = None) -> Deferred: ...

    @overload
    def defer(self, fields: Appendable, *, delay: float | None = None, at: datetime | None = None, unique: Name,
              until: Until = "done", on_conflict: OnConflict = "skip") -> Deferred | Appended: ...

    def defer(self, fields: Appendable, *, delay: float | None = None, at: datetime | None = None,
              unique: Name | None = None, until: Until = "done",
              on_conflict: OnConflict = "skip") -> Deferred | Appended:
        """Append an entry later, in ``delay`` seconds or ``at`` a time; it is deferred durably when this returns.

        ``at`` is a datetime with a time zone; a time in the past means at once. The entry is appended once, with an ID
        of the moment of the append, by the first process to do so: within 50 ms of the time by a waiting Group.read(),
        store.read() or follow(); otherwise by the next such call, or by the next append that is not buffered, after its
        own entries. Entries are appended in the order of their times, up to 1,000 entries or a megabyte per commit. A
        store open with readonly=True appends none.

        Times follow the wall clock: if it is set forward, entries come early; if it is set back, they come late. None
        is lost or appended twice. ``unique``, ``until`` and ``on_conflict`` are those of append(): the entry keeps its
        name from now on, and with "replace" the last of several calls is the one that comes (debouncing). Where an
        entry that has been appended keeps the name, its Appended is returned.

        Creates the stream. Raises InvalidArgument for any other time, and the errors of append(). Costs about as much
        as append(), however many entries are deferred.
        """
        (prepared,), codec = self._prepared((fields,))
        wish = parse_wish(unique, until, on_conflict)
        return jobs.defer(self._source, self._name, self._limits, self._encoding, prepared, codec, delay, at, wish,
                          find_holder, take)

    def deferred(self) -> Iterator[Deferred]:
        """The deferred entries in the order of their times, lazily: in transactions of up to 1,000 entries."""
        return jobs.read_deferred(self._source, self._name, self._encoding)

    def cancel_deferred(self, token: str) -> bool:
        """Cancel a deferred entry; False if it was appended or cancelled.

        InvalidArgument if that is not a token, or that of a schedule's tick: see pause_schedule().
        """
        return jobs.cancel(self._source, self._name, token)

    def schedule(self, name: Name, fields: Appendable, *, cron: str | None = None, every: float | None = None,
                 tz: str = "UTC", coalesce: Coalesce = "latest", misfire_grace: float | None = None,
                 jitter: float = 0) -> Schedule:
        """Append an entry with these fields again and again, at the times of ``cron`` or ``every`` so many seconds.

        ``cron``: minute, hour, day of the month, month, day of the week, on the clocks of the zone ``tz``. A time that
        daylight saving skips comes once, as soon as that is over; one that it repeats comes the first time only. If
        minute or hour begin with ``*`` the times are those that pass, as in cron. ``every`` counts them from this call:
        the first entry comes one interval after it.

        ``name``: up to 400 bytes. The same name again with an equal definition changes nothing, so that a program may
        call this at each start; with another one it plans the next tick anew, from now on. Entries are appended as
        those of defer(), by whichever process comes first, each nominal time at most once; the commit that appends one
        defers the next. ``entry.scheduled`` is that time, later than which an entry comes by up to ``jitter`` seconds
        (as many as ``every``, or an hour), the same for each time in any process.

        Where several times have passed, because nothing has read or appended, ``coalesce`` says which are appended: the
        "latest", the "earliest", or "all". One that is later than ``misfire_grace`` seconds is not. A clock that is
        set back delays entries; if by more than a day, next times are planned anew, which is logged.

        Creates the stream. Raises InvalidArgument, also for an expression that never comes, a zone that is not known
        here, and a stream whose IDs are not those of a clock; and the errors of append(). Costs about twice a defer(),
        however many schedules there are.
        """
        (prepared,), codec = self._prepared((fields,))
        return scheduling.define(self._source, self._name, self._limits, self._encoding, name, prepared, codec, cron,
                                 every, tz, coalesce, misfire_grace, jitter)

    def schedules(self) -> Iterator[Schedule]:
        """The schedules in the order of their names, lazily: in transactions of up to 1,000."""
        return scheduling.read_schedules(self._source, self._name, self._encoding)

    def pause_schedule(self, name: Name) -> bool:
        """Append no entries until resume_schedule(); False if it was paused already. NoSchedule."""
        return scheduling.pause(self._source, self._name, name)

    def resume_schedule(self, name: Name) -> bool:
        """Plan the next tick, from now on; False if it was not paused. Ticks of the pause do not come. NoSchedule."""
        return scheduling.resume(self._source, self._name, name)

    def remove_schedule(self, name: Name) -> bool:
        """Remove a schedule with its next tick; False if it does not exist. Entries that it has appended stay."""
        return scheduling.remove(self._source, self._name, name)

    def run_schedule(self, name: Name) -> StreamID:
        """Append an entry of a schedule now, also while it is paused, and return its ID. NoSchedule.

        Its ``scheduled`` is the time of this call. The next tick comes as planned.
        """
        return scheduling.run(self._source, self._name, name)

    def delete(self, *ids: IDs) -> int:
        """Delete entries by ID; returns how many existed. Redis: XDEL.

        All IDs are parsed before anything is deleted. Outside a transaction, each commit deletes up to
        10,000. Space is freed when the last entry of a node is deleted, and when most entries of a
        node are. What waits for a retry leaves the pending list; what a consumer holds stays there, as in Redis.
        """
        wanted = sorted({parse_id(sid) for sid in given_ids(ids)})

        def delete(some: list[StreamID], txn: WriteTransaction) -> int:
            stream = writer.locate(txn, self._name)
            if stream is None:
                return 0
            drop_retries(txn, stream, some)
            return deleting.delete(txn, stream, some)

        return sum(in_pieces(self._source, wanted, delete))

    def delete_ex(self, *ids: IDs, refs: Refs = KEEPREF) -> list[DeleteResult]:
        """Delete entries by ID under a policy; returns the result for each, in their order. Redis: XDELEX.

        ``refs``: "keepref", "delref" (also remove them from the PEL of every group) or "acked" (only
        entries that every group has been given and has acknowledged; REFERENCED otherwise). Outside a
        transaction, each commit deletes up to 2,000.

        Costs as much as delete(). The last two policies also look at each group in memory, some 0.2 µs, and
        in the PELs that may hold an entry; after a commit of another process the first look takes 4 to 10 µs.
        """
        wanted = [parse_id(sid) for sid in given_ids(ids)]
        checked_policy(refs)

        def delete(some: list[StreamID], txn: WriteTransaction) -> list[DeleteResult]:
            stream = writer.locate(txn, self._name)
            return [DeleteResult.MISSING] * len(some) if stream is None else delete_ex(txn, stream, some, refs)

        return list(chain.from_iterable(in_pieces(self._source, wanted, delete, PIECE_ASKED)))

    def trim(self, *, maxlen: int | None = None, minid: IDLike | None = None, approximate: bool = False,
             limit: int | None = None, refs: Refs = KEEPREF) -> int:
        """Remove the oldest entries; returns how many. Redis: XTRIM.

        Keeps the ``maxlen`` newest, or those with ID >= ``minid``. ``approximate`` removes
        whole nodes only (much cheaper, keeps a little more) and at most ``limit`` entries (0: no limit;
        default: 100 times node_max_entries, or 10,000 if that is not set). Outside a transaction, each
        commit removes up to 1,000 nodes, or 2,000 entries if groups are asked about them.

        ``refs`` says what happens to pending entries: "keepref" leaves them, "delref" removes
        them from the PEL of every group, "acked" removes only entries that every group has acknowledged.
        """
        checked_policy(refs)
        wanted = trim.parse_trim(maxlen, minid, approximate, limit)
        if wanted is None:
            raise InvalidArgument("trim() needs maxlen or minid")
        at_once = not isinstance(self._source, StoreSource)
        evicted = 0
        after: bytes | None = b""  # the node behind which the next piece begins; None: all is done
        while after is not None:

            def operation(txn: WriteTransaction, so_far: int = evicted,
                          after: bytes = after) -> tuple[int, bytes | None]:
                stream = writer.locate(txn, self._name)
                if stream is None:
                    return 0, None
                remaining = trim.effective_limit(wanted, stream.header.limits)
                if remaining:
                    if so_far >= remaining:
                        return 0, None
                    remaining -= so_far
                if refs != KEEPREF:
                    return evict(txn, stream, wanted, remaining, refs, after, None if at_once else PIECE_ASKED)
                gone, more = trim.evict(txn, stream, wanted, remaining, None if at_once else trim.LEAVES_A_TRANSACTION)
                return gone, b"" if more else None

            gone, after = self._source.submit(operation)
            evicted += gone
        return evicted

    def set_id(self, last_id: IDLike, *, entries_added: int | None = None,
               max_deleted_id: IDLike | None = None) -> None:
        """Set the last ID, and the counters that belong to it. Redis: XSETID.

        Raises NoStream; IDBelowEntries if ``last_id`` is smaller than the newest live entry; IDBelowDeleted if it is
        smaller than a deleted ID; CountTooSmall if there are more entries than ``entries_added``; and IDTooSmall if
        ``max_deleted_id`` itself is greater than ``last_id``.
        """
        last = parse_id(last_id)
        whole("entries_added", entries_added, 0, (1 << 63) - 1, none="")
        deleted = StreamID.MIN if max_deleted_id is None else parse_id(max_deleted_id)
        if last < deleted:
            raise IDTooSmall(f"the last ID {last} is smaller than the given max_deleted_id {deleted}")

        def operation(txn: WriteTransaction) -> None:
            stream = writer.require(txn, self._name)
            header = stream.header
            if last < header.max_deleted:
                raise IDBelowDeleted(
                    f"the last ID {last} is smaller than the greatest ID deleted so far, "
                    f"{make_id(*header.max_deleted)}"
                )
            if header.length:
                newest = make_id(*deleting.last_live(txn, stream))
                if last < newest:
                    raise IDBelowEntries(f"the last ID {last} is smaller than the newest entry, {newest}")
                if entries_added is not None and entries_added < header.length:
                    raise CountTooSmall(
                        f"entries_added={entries_added} is smaller than the stream's length, {header.length}"
                    )
            if last < header.last:
                buried = make_id(*deleting.last_written(txn, stream))
                if last < buried:
                    raise IDBelowDeleted(
                        f"the last ID {last} is smaller than {buried}, an entry deleted whose place has not "
                        "been given back yet; the stream's order would be lost"
                    )
                deleting.forget_leaves_after(txn, stream, last)
            stream.changed(txn)
            header.last = (last.ms, last.seq)
            if entries_added is not None:
                header.entries_added = entries_added
            if deleted != StreamID.MIN:
                header.max_deleted = (deleted.ms, deleted.seq)

        self._source.submit(operation)

    def configure(self, *, compression: Compression | None = None, node_max_bytes: int | None = None,
                  node_max_entries: int | None = None, idempotence_window: int | None = None,
                  idempotence_cap: int | None = None, schema: Mapping[str, str] | None = None,
                  schema_checked: bool | None = None, retention: Retention | None = None,
                  codec: Codec | None = None) -> Configured:
        """Change a stream's settings; returns those that have changed, with their new values. Creates the stream.

        The first three, those of Store.stream(), apply to nodes begun from now on.

        ``idempotence_window``: for how many seconds the ID of an idempotent append is remembered at least, 1 to 86,400,
        which it is if not set; as long as its entry is there it is remembered anyway. ``idempotence_cap``: how many of
        each producer at most, the oldest being forgotten first, up to 10,000; 0, as if not set, is no cap. Both hold
        for what is remembered already. IDs out of their window whose entries are gone are forgotten by Store.maintain()
        and, up to two each, by their producer's later appends. ``raxlog serve`` takes both as Redis does (XCFGSET),
        and 100 each if not set: it forgets by the window even while the entry is there.

        ``schema``: the types of fields, {"qty": "bigint", "price": "decimal(10,2)", …}, for scans that name no
        columns; {} removes it. With ``schema_checked``, later appends raise MalformedValue for a value that is
        not of its field's type; existing entries are not examined.

        ``retention``: a raxlog.Retention, the rules by which the oldest entries are removed, in whole nodes, by
        the append that begins a node and by Store.maintain(). Retention() removes the rules.

        ``codec``: "raw", "str", "json" or "msgpack": how values are encoded by handles that have no codec of their own
        and have not appended yet (docs/values.md). Existing entries stay unchanged and readable.
        """
        checked_codec(codec)
        nodes: dict[str, Any] = {
            "compression": compression, "node_max_bytes": node_max_bytes, "node_max_entries": node_max_entries
        }
        headers.NodeLimits().changed(**nodes)
        whole("idempotence_window", idempotence_window, 1, MAX_WINDOW, none="")
        whole("idempotence_cap", idempotence_cap, 0, MAX_CAP, none="")
        memory = {"idempotence_window": idempotence_window, "idempotence_cap": idempotence_cap}
        fields = None if schema is None else parsed_schema(schema)
        if schema_checked is not None and type(schema_checked) is not bool:
            raise InvalidArgument(f"schema_checked={schema_checked!r} must be True or False")
        rules = None if retention is None else require_retention(retention)
        row = None if rules is None else row_of(rules)

        def operation(txn: WriteTransaction) -> Configured:
            stream = writer.ensure(txn, self._name, self._limits)
            header = stream.header
            limits = header.limits
            changed = {name: value for name, value in nodes.items() if limits.changed(**{name: value}) != limits}
            for (name, value), was in zip(memory.items(), header.idempotence, strict=True):
                changed |= {name: value} if value not in (None, was) else {}
            kept = header.schema or StreamSchema(False, {})
            named = kept.fields if fields is None else fields
            checked = kept.checked and bool(named) if schema_checked is None else schema_checked
            if checked and not named:
                raise InvalidArgument(f"stream {shown(self._name)} has no schema to be checked; pass schema, too")
            changed |= {"schema": named} if named != kept.fields else {}
            changed |= {"schema_checked": checked} if checked != kept.checked else {}
            changed |= {"retention": rules} if rules is not None and row != header.retention else {}
            changed |= {"codec": codec} if codec not in (None, header.codec) else {}
            if changed:
                stream.changed(txn)
                header.retention = row if "retention" in changed else header.retention
                header.codec = codec or header.codec
                window, cap = (changed.get(name, was) for name, was in zip(memory, header.idempotence, strict=True))
                header.idempotence = (window, cap)
                header.limits = limits.changed(**nodes)
                header.schema = StreamSchema(checked, named) if named else None
            return Configured(**changed)

        try:
            return self._source.submit(operation)
        finally:
            self._codec_in_use = None

    # -- reading ------------------------------------------------------------------------

    def range(self, start: IDLike = "-", end: IDLike = "+", count: int | None = None, *,
              reverse: bool = False) -> Iterator[Entry[V]]:
        """The entries from ``start`` to ``end``, both included, lazily. Redis: XRANGE, XREVRANGE.

        IDs as Redis writes them: ``-`` and ``+``, incomplete (``5`` starts at 5-0 and ends at
        5-18446744073709551615), ``(5-1`` excluded. ``reverse=True`` gives the same range from
        its end. ``count``: at most this many (None: all). Reads in short transactions of up to
        64 nodes; entries appended after the call are not returned.

        Raises InvalidStreamID at once, CorruptionError on reaching a damaged node.
        """
        first, last = parse_start(start), parse_end(end)
        whole("count", count, 0, none=", or None for all")
        return self._read(first, last, count, reverse)

    def _read(self, first: StreamID, last: StreamID, count: int | None = None, reverse: bool = False,
              number: int | None = None) -> Iterator[Entry[V]]:
        found: Iterator[Any] = range_read.read_range(self._source, self._name, first, last, count, reverse,
                                                     self._encoding, number)
        return found if self._model is None else (typed(entry, self._model) for entry in found)

    def follow(self, after: IDLike = "$", timeout: float | None = None, *, stop: StopFlag | None = None) -> Follower[V]:
        """Iterate over the entries after ``after`` as they are appended by any process, in the order of their IDs.

        ``after``: an ID, such as that of the last entry that was handled; ``$`` begins with entries appended from
        this call on, ``0`` with the first entry. The iterator's own ``after`` moves along. It ends when no entry
        comes for ``timeout`` seconds (None: never), or once ``stop`` (a raxlog.Stop or threading.Event) is set;
        a further next() then continues to wait at the same position.

        The stream need not exist yet. If it is deleted and created again, all its entries are returned. Nothing is
        delivered or acknowledged: each follower sees every entry, except entries that are trimmed before it reads
        them. Raises TransactionError in a transaction; CorruptionError at a damaged node; StoreClosed.
        """
        return Follower(self._source, self._name, after, timeout, stop, self._read)

    def nodes(self, start: IDLike = "-", end: IDLike = "+") -> Iterator[scan.StoredNode]:
        """The nodes that hold a range's entries, as they are stored: lazily, as ((ms, seq), listpack).

        In place of a damaged listpack, the CorruptionError is returned.
        """
        return scan.read_nodes(self._source, self._name, parse_start(start), parse_end(end))

    def to_arrow(self, start: IDLike = "-", end: IDLike = "+", schema: Schema | None = None, *,
                 batch_size: int = 65_536, mode: Literal["PERMISSIVE", "FAILFAST"] = "PERMISSIVE",
                 skip_damaged: bool = False, tally: Tally | None = None, columns: Sequence[str] | None = None,
                 where: pc.Expression | None = None, **roles: str | None) -> pa.RecordBatchReader:
        """The live entries of a range as a pyarrow.RecordBatchReader, which DuckDB and Polars can read.

        Lazy, in short transactions, like range(); entries appended after the call are not read. Entries are
        decoded without an object for each, several times as fast as with one. Without a ``schema`` the columns
        are id_ms, id_seq and those of the stream's schema (see configure()), or fields, a map. With a ``schema``,
        a pyarrow.Schema or {"qty": "bigint", …}, they are those it names, each the field of that name. A
        "timestamp" has the zone UTC, for which DuckDB needs pytz; a "timestamp_ntz" has none.

        ``columns`` are those of them that come out, in this order; ``where``, a pyarrow.compute expression over any of
        them, is true of the rows that do: pc.field("qty") > 2. No other column is decoded, nor checked by
        mode="FAILFAST". What ``where`` says about id_ms narrows the range that is read.

        ``roles`` are id_column, timestamp_column, stream_column, corrupt_column, the names of further columns.
        Raises InvalidStreamID, InvalidArgument and NotInstalled (pyarrow comes with raxlog[spark]) at once;
        MalformedValue and CorruptionError on reaching a bad value or node.
        """
        from .columns import arrow  # noqa: PLC0415 - Arrow's share is loaded where it is used
        from .columns.projection import default_columns  # noqa: PLC0415
        from .columns.selection import selection  # noqa: PLC0415

        header = self._header() or headers.StreamHeader(self._name, headers.NodeLimits())  # of an empty stream
        first, last = parse_start(start), min(parse_end(end), make_id(*header.last))
        fields = None if header.schema is None else header.schema.fields
        made = arrow.projection(default_columns(fields) if schema is None else schema, **roles)
        chosen = selection(made, columns, where)
        if chosen.by_id:
            node = next(self.nodes(first, last), None)  # where the range begins in truth
            first, last = chosen.window(first if node is None else max(first, StreamID(*node[0])), last)
        nodes = scan.read_ranges(self._source, [scan.Range(self._name, first, last)])
        return chosen.reader(arrow.reader(nodes, chosen.read, batch_size=batch_size, mode=mode, most=header.length,
                                          skip_damaged=skip_damaged, tally=tally))

    def get(self, id: IDLike) -> Entry[V] | None:
        """The entry with exactly this ID; None if it does not exist (any more)."""
        entry = range_read.get(self._source, self._name, parse_id(id), self._known())
        return None if entry is None else texts_of([entry], self._encoding, self._model)[0]

    def __len__(self) -> int:
        """Live entries. XLEN: one record read."""
        header = self._header()
        return 0 if header is None else header.length

    def __bool__(self) -> bool:
        """True: a handle is a handle, also on an empty stream."""
        return True

    def __iter__(self) -> Iterator[Entry[V]]:
        return self.range()

    def __contains__(self, id: IDLike) -> bool:
        """Whether get() finds an entry with this ID."""
        return self.get(id) is not None

    def exists(self) -> bool:
        """Whether the stream has been created (it may be empty)."""
        return self._header() is not None

    @property
    def last_id(self) -> StreamID:
        """The greatest ID ever generated here, kept after deletions; 0-0 for a new stream."""
        header = self._header()
        return StreamID.MIN if header is None else make_id(*header.last)

    @property
    def schema(self) -> dict[str, str]:
        """The types of its fields, as set by configure(); {} for none."""
        header = self._header()
        return {} if header is None or header.schema is None else dict(header.schema.fields)

    @property
    def codec(self) -> str:
        """The codec of its values, as set by configure() or by the handle that appended the first entry."""
        header = self._header()
        return RAW if header is None else header.codec

    def count(self, start: IDLike = "-", end: IDLike = "+") -> int:
        """The number of live entries from ``start`` to ``end``, without reading them: some 10 µs."""
        return counting.count(self._source, self._name, parse_start(start), parse_end(end), self._known())

    def rank(self, id: IDLike) -> int:
        """The number of live entries with a smaller ID: 0 for the first. The ID itself need not exist."""
        return counting.rank(self._source, self._name, parse_id(id), self._known())

    def select(self, k: int) -> StreamID:
        """The ID of the k-th live entry, from 0. IndexError if there is none."""
        if type(k) is not int:
            raise InvalidArgument(f"select({k!r}): the number of an entry must be a whole number")
        return counting.select(self._source, self._name, k, self._known())

    def split(self, n: int) -> list[Part]:
        """Up to ``n`` ranges of IDs with equal counts of entries: ``start`` and ``end``, both included, ``entries``.

        The ranges are adjacent, so together they hold every entry once; counts differ by at
        most one. Fewer than ``n`` if there are fewer entries, none for an empty stream.
        """
        if type(n) is not int or n < 1:
            raise InvalidArgument(f"split({n!r}): the number of parts must be a whole number >= 1")
        return [Part(*part) for part in counting.split(self._source, self._name, n, self._known())]

    def info(self) -> StreamInfo:
        """The figures of XINFO STREAM, in 0.1 ms. NoStream if it does not exist."""
        return self._required(describe(self._source, self._name, self._known(), self._encoding))

    def full_info(self, count: int | None = 10) -> FullInfo:
        """The figures of XINFO STREAM FULL, all of one state, read in one transaction. NoStream if it does not exist.

        Walks all node keys: only here ``radix_tree_nodes`` is counted (otherwise it is None) and a missing node is
        found. Has the first ``count`` entries, and the groups with the first ``count`` pending entries of each group
        and of each consumer; ``count`` None or 0 means all.
        """
        return self._required(describe_fully(self._source, self._name, self._known(), self._encoding, count))

    def _required(self, found: T | None) -> T:
        if found is None:
            raise NoStream(f"there is no stream {shown(self._name)} in {self._source.env.path}")
        return found

    def dump(self, redis_version: str = "7.2") -> bytes:
        """The stream with its groups and pending entries as a payload for restore_stream(). Redis: DUMP.

        ``redis_version``: the oldest Redis that must accept it, from "5.0" on; "7.2" includes everything that 8.4 has.
        The bytes of nodes and all IDs, times, counts and counters are those of the stream. Payloads never contain
        deferred entries, remembered appends or settings; a released entry has the consumer "" and the time 0 there.

        Reads the stream in one transaction, into memory. NoStream; CorruptionError at a damaged node.
        """
        from .dump import dump  # noqa: PLC0415 - loaded where it is used

        return self._required(dump.dump(self._source, self._name, redis_version))

    def groups(self) -> list[GroupInfo]:
        """All consumer groups of the stream, by name. Redis: XINFO GROUPS. NoStream if it does not exist."""
        with self._source.read() as txn:
            found = headers.find(txn, self._name, self._number)
            if found is None:
                raise NoStream(f"there is no stream {shown(self._name)} in {self._source.env.path}")
            infos = [describe_group(txn, state, *found, self._encoding) for state in all_groups(txn, *found)]
        return sorted(infos, key=attrgetter("name"))

    def _header(self, flushed: bool = True) -> headers.StreamHeader | None:
        """The stream's header; with False without what is buffered, but with what the open transaction has changed."""
        if flushed or isinstance(self._source, StoreSource):
            try:
                with self._source.read() if flushed else self._source.env.read() as txn:
                    found = headers.find(txn, self._name, self._number)
                return None if found is None else found[1]
            except StoreError:
                if flushed:
                    raise  # else, where all reader slots are taken, the writer's transaction shows it, too
        stream = self._source.submit(lambda txn: writer.locate(txn, self._name))
        return None if stream is None else stream.header

    def _known(self) -> int | None:
        """The stream's number, remembered; its users check that the name still matches."""
        if self._number is None:
            with self._source.read() as txn:
                self._number = headers.number_of(txn, self._name)
        return self._number

    # -- consumer groups ----------------------------------------------------------------

    def group(self, name: Name) -> Group[V]:
        """A handle on a consumer group; its methods raise NoGroup if the group does not exist."""
        return Group(self._source, self._name, member_name(name, "group"), self._encoding, self._model)

    def create_group(self, name: Name, start: IDLike = "0", *, exist_ok: bool = False, create_stream: bool = True,
                     entries_read: int | None = None, subjects: Text | Iterable[Text] | None = None) -> Group[V]:
        """Create a consumer group that counts everything up to ``start`` as delivered. Redis: XGROUP CREATE.

        ``start``: ``0`` for all entries, so that a queue forgets none that came before its group; ``$`` for new ones
        only; or an ID. GroupExists if it exists, unless ``exist_ok``. Creates the stream (MKSTREAM); NoStream with
        ``create_stream=False`` if it does not exist.
        ``entries_read`` is Redis' counter, kept only for display: the lag does not depend on it.
        ``subjects``: a pattern, or several; the group is given only entries published under a subject that one of
        them matches, and skips the others.
        """
        group = self.group(name)
        last = None if start in ("$", b"$") else parse_id(start, "$, ")
        read = checked_entries_read(entries_read)
        wanted, raw = [] if subjects is None else checked_subjects(subjects), member_name(name, "group")

        def operation(txn: WriteTransaction) -> None:
            stream = writer.ensure(txn, self._name, self._limits) if create_stream else writer.locate(txn, self._name)
            if stream is None:
                raise NoStream(
                    f"there is no stream {shown(self._name)} to create group {shown(group.name)} on. Append to it "
                    "first, or leave create_stream=False out."
                )
            existing = locate_group(txn, stream, raw)
            if existing is not None:
                if exist_ok and (subjects is None or existing.subjects == wanted):
                    return
                what = "exist_ok=True" if not exist_ok else "no subjects: it is filtered by others,"
                raise GroupExists(
                    f"stream {shown(self._name)} has a consumer group {shown(group.name)} already. Pass {what} to "
                    "take it as it is."
                )
            header = stream.header
            at = header.last if last is None else (last.ms, last.seq)
            create_group(txn, stream, raw, at, min(read, header.entries_added), wanted)

        self._source.submit(operation)
        return group


def _append(name: bytes, limits: NodeLimits, news: list[NewID] | None, now: int,
            flats: list[list[bytes]] | TextColumns, create: bool, wanted: trim.Trim | None, refs: str,
            claim: Claim | None, expected: StreamID | None, codec: str | None, releases: bool,
            txn: WriteTransaction) -> list[StreamID]:
    """Append entries, with all that append() and extend() can be asked for."""
    stream = writer.locate(txn, name)
    if stream is not None and claim is not None:
        known = Memory(txn, stream, claim.producer, claim.by_redis).entry_of(claim.iid, now)
        if known is not None:
            return [known]
    if expected is not None:
        _require_last(stream, name, expected)
    if stream is None:
        if not create:
            return []
        stream = writer.create(txn, name, limits)
    had = stream.header.next_ordinal
    if news is None:
        sids = stream.extend(txn, now, flats)
    else:
        stream.require_values(flats)  # before the first append: its message names the place
        sids = [stream.append(txn, new, now, flat) for new, flat in zip(news, flats, strict=True)]
    stream.header.begin_codec(codec, had)
    if claim is not None:
        Memory(txn, stream, claim.producer, claim.by_redis).remember(claim.iid, sids[0], now)
    if wanted is not None:
        _evict(txn, stream, wanted, refs)
    writer.after_append(txn, stream, now, releases)
    return sids


def _require_last(stream: writer.StreamWriter | None, name: bytes, expected: StreamID) -> None:
    """Conflict unless that is the last ID."""
    last = StreamID.MIN if stream is None else make_id(*stream.header.last)
    if last != expected:
        raise Conflict(f"the last ID of stream {shown(name)} is {last}, and not {expected} as expected: nothing was "
                       "appended. Read what has come since, and append again behind that.", last)


def _evict(txn: WriteTransaction, stream: writer.StreamWriter, wanted: trim.Trim, refs: str) -> int:
    """Trim in one transaction, by the policy."""
    limit = trim.effective_limit(wanted, stream.header.limits)
    if refs == KEEPREF:
        return trim.evict(txn, stream, wanted, limit)[0]
    return evict(txn, stream, wanted, limit, refs)[0]
