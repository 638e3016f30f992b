"""The open store: streams, publish and subscribe, and the care of the whole, as users hold them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar, Unpack, overload
from weakref import WeakMethod

from .index.pubsub.live_subscription import LiveSubscription, LiveSubscriptions, Message
from .index.pubsub.pubsub import Binding, PubSub, Reached
from .pipeline import Pipeline
from .storage.engine import registry
from .storage.engine.open_options import (
    BUFFER_WINDOW,
    BYTES,
    DURABILITIES,
    MAX_READERS,
    OWN,
    Durability,
    Encoding,
    OpenOptions,
)
from .storage.engine.registry import Share
from .storage.errors import InvalidArgument, TransactionError
from .storage.folder import directory
from .storage.fork_hooks import look
from .storage.handles import made_by_a_call
from .storage.notices import report
from .storage.tree.lmdb_errors import translated
from .storage.wake.stop import StopFlag
from .stream.entries.header import NodeLimits
from .stream.entries.retention import Retention
from .stream.entries.session import StoreSource
from .stream.info import Maintenance
from .stream.multi_read import Asked, Found, read_group_streams, read_streams
from .stream.node.arguments import Codec, Compression, Fields, Name, StreamOptions, Text, whole
from .stream.node.stream_id import IDLike
from .stream.node.typed import Either, Kind, V
from .stream.state import State
from .stream.stream import Stream
from .stream.streams import Streams
from .stream.sweep import sweep
from .transaction import Transaction

if TYPE_CHECKING:
    from .index.pubsub.channels import Channels
    from .index.pubsub.durable_subscription import DurableSubscription
    from .index.subjects.handle import Sublist
    from .index.subjects.interest import Watch
    from .index.subjects.remote_interest import RemoteInterest
    from .recovery.snapshot.manifest import Manifest
    from .status import Status
    from .storage.figures import Compaction, LastEnd, Reader

N = TypeVar("N", bound=Name)


class Store:
    """An open store, made by raxlog.open(path): a context manager, for all threads, which survives a fork."""

    __slots__ = ("__weakref__", "_env", "_pubsub", "_source", "_streams")

    @made_by_a_call
    def __init__(self, share: Share, encoding: str | None, lock_timeout: float, limits: NodeLimits) -> None:
        self._env = share.env
        self._source = StoreSource(share, lock_timeout)
        self._source.transaction = WeakMethod(self.transaction)
        self._streams = Streams(self._source, limits, encoding)
        if not share.env.readonly:
            sweep(self._source)
        self._pubsub = PubSub(self._source, limits, encoding)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, readonly: bool = False, create: bool = True,
             durability: Durability = "commit",
             encoding: Encoding | None = OWN, lock_timeout: float = 30.0, compression: Compression | None = None,
             node_max_bytes: int | None = None, node_max_entries: int | None = None,
             map_size: int | None = None, max_map_size: int | None = None,
             max_readers: int = MAX_READERS, buffer_window: float = BUFFER_WINDOW) -> Self:
        """Open the store at ``path``, a directory; it is created if nothing is there.

        ``create``         False: NotAStore if nothing is there
        ``readonly``       take no write lock and write no data. A store of which this process may write no
                           file is read while no other has it open; a read beside one raises ReadOnlyStore
        ``durability``     "commit": when a call returns, the data is on disk. "relaxed": it is in the
                           system's memory, and is flushed at least every 100 ms and at close. A kill
                           loses nothing, a power cut at most the commits of the last 100 ms, and
                           nothing is ever corrupted. "buffered": append() and extend() return
                           their IDs at once and are committed within ``buffer_window``. A
                           kill or a power cut loses at most the last calls, those of that time, whose
                           IDs may be given again, and keeps all earlier ones.
                           Every other call, reads included, first waits for
                           the buffered ones. If their commit fails, AppendsLost is raised by
                           flush(), by close(), and until then by every call
        ``encoding``       "utf-8": names, fields and values come as ``str``, bytes that are no UTF-8 in them as lone
                           surrogates ("surrogateescape"), which go in again as those bytes. None: as ``bytes``. Either
                           is kept in a store that this call creates. "own": what the store keeps, "utf-8" in a new
                           one. "bytes": bytes through this handle, whatever the store keeps
        ``lock_timeout``   seconds that a write waits for another process or thread before LockTimeout
        ``compression``, ``node_max_bytes``, ``node_max_entries``
                           the defaults of new streams (see Store.stream); kept in a store that this
                           call creates
        ``map_size``       bytes of address space reserved at first (64 GiB); it grows by itself
        ``max_map_size``   the most bytes that the store's records may take: StoreFull beyond it
        ``max_readers``    the number of threads, in all processes, that may read at the same time
        ``buffer_window``  seconds (0.005) from a buffered append until its commit begins;
                           0.0001 .. 60. The writer's lock is held for that time

        Raises NotAStore, UnsupportedFormat, ReadOnlyStore, StoreFull, SettingsConflict,
        CorruptionError, InvalidArgument. A store that is opened twice in a process shares one environment.
        """
        if durability not in DURABILITIES:
            raise InvalidArgument(f"durability={durability!r} is unknown; it is one of {', '.join(DURABILITIES)}")
        if isinstance(lock_timeout, bool) or not isinstance(lock_timeout, int | float) or not lock_timeout >= 0:
            raise InvalidArgument(f"lock_timeout={lock_timeout!r} must be a number of seconds >= 0")
        is_number = isinstance(buffer_window, int | float) and not isinstance(buffer_window, bool)
        if not is_number or not 0.0001 <= buffer_window <= 60:
            raise InvalidArgument(f"buffer_window={buffer_window!r} must be a number of seconds from 0.0001 to 60")
        if encoding not in (OWN, BYTES, "utf-8", None):
            raise InvalidArgument(f"encoding={encoding!r:.60} is unknown: text is UTF-8 ('utf-8'), and None gives "
                                  "bytes, for the program to decode")
        for name, size in (("map_size", map_size), ("max_map_size", max_map_size)):
            whole(name, size, 1, (1 << 63) - 1, none="")
        whole("max_readers", max_readers, 1, (1 << 31) - 1, none="")
        place = directory.place_of(path)
        given = NodeLimits().changed(compression, node_max_bytes, node_max_entries)
        options = OpenOptions(readonly, create, durability, map_size, max_map_size, max_readers, buffer_window)
        made: dict[str, object] = {"limits": list(given), "encoding": None if encoding is None else "utf-8"}
        share = registry.attach(place, options, lambda: made)
        try:
            kept = NodeLimits(*share.env.record.settings["limits"])
            text = share.env.record.settings["encoding"] if encoding == OWN else None if encoding == BYTES else encoding
            return cls(share, text, float(min(lock_timeout, 1 << 63)),
                       kept.changed(compression, node_max_bytes, node_max_entries))
        except BaseException:
            share.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> str:
        return self._env.__reduce__()  # which says that it cannot be pickled, and what to do

    def __repr__(self) -> str:
        state = "closed" if self._source.closed else "readonly" if self._env.readonly else self._env.options.durability
        return f"<raxlog.Store {str(self._env.path)!r} {state}>"

    @property
    def path(self) -> Path:
        """The store's directory."""
        return self._env.path

    def close(self) -> None:
        """Close the store: its live subscriptions end, and its handles raise StoreClosed from then on.

        If buffered appends were lost and no flush() has reported it, the store is closed and AppendsLost
        is raised. CorruptionError where the last checkpoint would have written to a damaged page: all is in
        the log. After this and any other exception call close() again; otherwise the next open() in this
        process completes it. TransactionError inside a transaction, and from a signal's handler or a finalizer that has
        interrupted a call of its thread for which the close would wait: nothing is closed then.
        """
        look()  # in a forked child the locks are others
        if self._source.closed:
            return
        self._env.require_outside()
        self._pubsub.require_outside()
        try:
            self._pubsub.close()
        finally:
            self._source.close()

    def flush(self) -> None:
        """Force everything to disk; after that not even a power cut loses it.

        Never needed with ``durability="commit"``. With "buffered", it waits for the commit of all
        earlier appends, and raises AppendsLost if one failed.
        """
        self._source.require_open()
        if self._env.commits.in_own_transaction():
            raise TransactionError("this thread has a transaction open; flush() once it has ended")
        buffer = self._source.buffer  # once: a close() takes it away
        if buffer is not None:
            buffer.flush(report=True)
        elif not self._env.readonly:
            self._env.flush()

    # -- streams ------------------------------------------------------------------------

    @overload
    def stream(self, name: Name, *, type: type[V] | None = None, retention: Retention | None = None,
               **options: Unpack[StreamOptions]) -> Stream[V]: ...

    @overload
    def stream(self, name: Name, *, type: Kind, retention: Retention | None = None,
               **options: Unpack[StreamOptions]) -> Stream[Either]: ...

    def stream(self, name: Name, *, compression: Compression | None = None, node_max_bytes: int | None = None,
               node_max_entries: int | None = None, codec: Codec | None = None, retention: Retention | None = None,
               type: Kind = None) -> Stream[Either]:
        """A handle on the stream of that name; the first append creates the stream.

        ``codec``             how this handle's appends encode values: "raw", "str", "json" or "msgpack". The first
                              append to a new stream also sets the stream's codec, which handles without a codec
                              use (docs/values.md)
        ``type``              a dataclass, TypedDict, msgspec.Struct or pydantic model: append() takes its objects,
                              and the ``value`` of an entry is one. Without ``codec``, the stream's codec is used, or
                              "json" if it has none. NotInstalled without raxlog[models]
        ``retention``         a raxlog.Retention: the stream is made and configured at once, as by
                              configure(retention=…, codec=…); one commit, unless all that is set already

        The other options apply if this handle creates the stream:
        ``compression``       "none", "zstd" (full nodes are compressed with zstd, level 3) or
                              "compact" (the same, in nodes of 16 KB or more: for history)
        ``node_max_bytes``, ``node_max_entries``
                              when a node is full, by Redis' rule; 4096 and 100 split exactly
                              as Redis does. Without them, a node fills one page of LMDB or a few

        InvalidName for a name of more than 502 bytes, or of a type other than str, bytes,
        int or float.
        """
        self._source.require_open()
        return self._streams.handle(name, compression, node_max_bytes, node_max_entries, codec, type, retention)

    def streams(self) -> list[Text]:
        """The names of all streams, in the order of their bytes."""
        self._source.require_open()
        return self._streams.names()

    def rename_stream(self, old: Name, new: Name) -> bool:
        """Rename a stream; False if it already has that name.

        NoStream if ``old`` does not exist, StreamExists if ``new`` does.
        """
        return self._streams.rename(old, new)

    def copy_stream(self, name: Name, to: Name) -> None:
        """Copy a stream with its entries, groups, pending and deferred entries, and settings. Redis: COPY.

        One commit, which writes all of its nodes again. NoStream if the stream does not exist, StreamExists if ``to``
        does. Bindings still lead to the original.
        """
        self._streams.copy(name, to)

    def restore_stream(self, name: Name, payload: bytes, *, replace: bool = False) -> None:
        """Make a stream from a payload of Stream.dump() or of Redis' DUMP (5.0 to 8.8). Redis: RESTORE.

        Nodes, groups, consumers, pending entries, times, counts and remembered appends are those of the payload.
        ``replace`` replaces an existing stream of the name; without it, StreamExists.

        One commit. The payload is checked as a whole first: DumpChecksum, InvalidDump (both InvalidArgument) and
        InvalidName change nothing.
        """
        self._streams.restore(name, payload, replace)

    def delete_stream(self, name: Name) -> bool:
        """Delete a stream with everything in it; False if it does not exist. Redis: DEL.

        One commit removes it. Its space is freed in further commits of 2,000 keys each; if a crash
        interrupts these, the next open completes them.
        """
        return self._streams.delete(name)

    @property
    def state(self) -> State:
        """A small durable key-value space, which transactions can change together with streams."""
        self._source.require_open()
        return State(self._source, self._streams.encoding)

    def transaction(self) -> Transaction:
        """All or nothing over streams, groups, state and publishing: ``with store.transaction() as tx``.

        While the transaction is open, other writers wait, and a write outside it by the same thread
        raises TransactionError.
        """
        self._source.require_writable("write")
        return Transaction(self._source, self._streams, self._pubsub)

    def pipeline(self) -> Pipeline:
        """Queue different calls and run them in one commit: ``with store.pipeline() as pipe`` (pipeline.py).

            pipe.stream("orders").append({"item": "book"})
            pipe.group("orders", "billing").ack("5-0")
            sid, acked = pipe.execute()          # with raise_on_error=False, a refused call returns its error

        ``pipe`` has the calls of the store, of stream(), group() and state that need no wait; each returns ``pipe``.
        Calls that were not executed when the ``with`` ends are dropped.
        """
        self._source.require_writable("write")
        return Pipeline(self._source, self._streams, self._pubsub)

    def read(self, streams: Asked[N], count: int | None = None, timeout: float | None = 0, *,
             total: int | None = None, max_bytes: int | None = None,
             stop: StopFlag | None = None) -> Found[N]:
        """Read entries after a given ID from each of several streams, without a group. Redis: XREAD.

        ``streams``    {name: ID}: entries with a greater ID; ``$`` for entries appended from now on,
                       ``+`` for the last entry; a stream that does not exist has no entries yet
        ``count``      at most this many of each stream; ``total``: of all together
        ``max_bytes``  stop once names and values take this many bytes (at least one entry is returned)
        ``timeout``    wait this many seconds for the first entry; 0: not at all, None: for ever
        ``stop``       a raxlog.Stop (or threading.Event) that ends the wait; the result is then {}

        Returns {name: entries} for the streams that have any, in the order given. ``streams`` may also be pairs,
        [(name, ID)], which may name a stream twice; ``pairs`` of the result then has both.
        """
        self._source.require_open()
        return read_streams(self._source, streams, count, timeout, total, max_bytes, stop, self._streams.encoding)

    def read_group(self, group: Name, consumer: Name, streams: Asked[N], count: int | None = None,
                   timeout: float | None = 0, *, total: int | None = None, max_bytes: int | None = None,
                   noack: bool = False, claim_idle: float | None = None,
                   ack: Mapping[N, Iterable[IDLike]] | None = None,
                   stop: StopFlag | None = None) -> Found[N]:
        """Deliver entries of several streams to a consumer of the group of that name in each. Redis: XREADGROUP.

        ``streams`` is {name: ">"} for new entries, {name: ID} for the consumer's own history.
        ``ack``, {name: IDs}, acknowledges first. The other arguments are those of read() and
        Group.read(). One commit for all; NoGroup, with nothing changed, if a stream lacks the group. In the
        result, ``consumers_created`` names the streams in which the consumer is new.
        """
        self._source.require_open()
        return read_group_streams(
            self._source, group, consumer, streams, count, timeout, total, max_bytes, noack, claim_idle, ack,
            stop, self._streams.encoding,
        )

    # -- publish and subscribe ----------------------------------------------------------

    @property
    def subjects(self) -> Sublist:
        """The subject index: all subscriptions, and the look-up of a subject's subscribers."""
        self._source.require_open()
        return self._pubsub.subjects

    @property
    def remote(self) -> RemoteInterest:
        """Remote interest: subjects that other servers, reached by routes, subscribe to."""
        from .index.subjects.remote_interest import RemoteInterest  # noqa: PLC0415 - only programs with routes load it

        self._source.require_open()
        return RemoteInterest(self._source, self._streams.encoding)

    def watch(self, subject: Text, queue: Text | None = None) -> Watch:
        """Report when a subject gets its first subscription in any process, and when it loses its last.

        Only subscriptions to exactly this subject count: plain ones, or with ``queue`` its members.
        SubjectError for a subject that is invalid or has a wildcard, InvalidName.
        """
        from .index.subjects.interest import Watch  # noqa: PLC0415

        self._source.require_open()
        return Watch(self._source, subject, queue)

    def publish(self, subject: Text, fields: Fields) -> Reached:
        """Publish a message; returns how many bindings, durable and live subscriptions it reached.

        ``subject``  tokens between dots, without wildcards: "orders.eu.new"
        ``fields``   as for Stream.append(); the name ``$subject`` is reserved

        When this returns, the message is durably in every bound stream and with every durable
        subscription, written in one commit or not at all. Live subscriptions get it at most once. Without
        any of these nothing is written, which takes about 10 µs.

        SubjectError for a malformed subject or one with a wildcard; InvalidFields;
        StreamExhausted, with nothing done, if a bound stream has used up its IDs. Reached describes the
        result, which also has the IDs of the entries.
        """
        return self._pubsub.publish(subject, fields)

    def bind(self, subject: Text, stream: Name) -> Binding:
        """Append everything published to matching subjects to a stream, until unbind().

        ``subject`` may have wildcards: ``*`` for one token, ``>`` at the end for one or more. The stream
        need not exist. Repeating a binding has no effect. SubjectError, InvalidName. One commit.
        """
        return self._pubsub.bind(subject, stream)

    def unbind(self, subject: Text | None, stream: Name) -> bool:
        """End the binding of exactly this pattern to this stream; False if there is none.

        Entries already appended stay. ``subject=None`` ends all bindings of the stream.
        """
        return self._pubsub.unbind(subject, stream)

    def bindings(self, stream: Name | None = None) -> list[Binding]:
        """All bindings, or those that lead to one stream, in the order in which they were made."""
        return self._pubsub.bindings(stream)

    def subscribe(self, subject: Text, *, queue: Text | None = None, weight: int = 1,
                  callback: Callable[[Message], object] | None = None,
                  max_queued: int | None = None) -> LiveSubscription:
        """Receive messages published to matching subjects by this or any other process, from now on.

        Messages are delivered at most once; the subscription ends with close(), with the store, or with the process.

        ``queue``       a queue group: each message goes to one of its members, whatever their patterns
        ``weight``      this member's share in its group, 1 to 65,535
        ``callback``    is called with each message, by one thread for all callbacks of this store;
                        without it: iterate, ``async for``, or get()
        ``max_queued``  messages that its queue holds; more are dropped (65,536)

        SubjectError for a malformed pattern. One commit.
        """
        return self.subscribe_many([subject], queue=queue, weight=weight, callback=callback, max_queued=max_queued)[0]

    def subscribe_durable(self, subject: Text, durable: Text, *, queue: Text | None = None,
                          weight: int | None = None, callback: Callable[[Message], object] | None = None,
                          ack_wait: float | None = None, prefetch: int | None = None) -> DurableSubscription:
        """Receive messages under a name that outlives this process, and keeps its position.

        Each message is delivered at least once, until it is acknowledged. ``durable`` is the name; ``queue``,
        ``weight`` and ``callback`` are as for subscribe(), but one that exists keeps its weight if none is given.

        ``ack_wait``    seconds until an unacknowledged message is delivered again (30)
        ``prefetch``    messages taken in one commit (8)

        SubjectError for a malformed pattern, SubscriptionExists if the durable name has another
        pattern or queue, StreamExists if another stream is named ``$durable.NAME``. One commit.
        """
        return self._pubsub.subscribe_durable(subject, durable, queue, weight, callback, ack_wait, prefetch)

    def subscribe_many(self, subjects: Iterable[Text], *, queue: Text | None = None, weight: int = 1,
                       callback: Callable[[Message], object] | None = None,
                       max_queued: int | None = None) -> LiveSubscriptions:
        """Make live subscriptions to many patterns, one each and in their order, in one commit or not at all.

        ``subjects``  patterns; one that is given twice is subscribed to twice
        others        as for subscribe(), the same for each

        Returns a list that can be closed as a whole, in one commit (``with`` does so), or one by one. Each costs some
        30 µs, while subscribe() waits for a commit. InvalidArgument if ``subjects`` is not an iterable of patterns;
        SubjectError and InvalidName as for subscribe().
        """
        if isinstance(subjects, str | bytes) or not isinstance(subjects, Iterable):
            raise InvalidArgument(f"subjects={subjects!r:.60} must be several patterns; for one there is subscribe()")
        return self._pubsub.subscribe_live(subjects, queue, weight, callback, max_queued)

    def unsubscribe(self, durable: Text) -> bool:
        """Remove a durable subscription with all its undelivered messages; False if there is none.

        Its consumers in all processes end. To end a live subscription, call its close().
        """
        return self._pubsub.unsubscribe(durable)

    def listeners(self) -> dict[int, int]:
        """The processes with live subscriptions, by their owner numbers: {owner: process ID}."""
        return self._pubsub.listeners()

    @property
    def channels(self) -> Channels:
        """Redis' channels and globs: publish, subscribe, psubscribe."""
        return self._pubsub.channels()

    # -- care ---------------------------------------------------------------------------

    @property
    def last_end(self) -> LastEnd:
        """How the store was left by its previous users: ``how`` is "clean", "killed" or
        "power cut". Only the first open for writing after that reports it.

        A kill (or a process that ended without close()) has lost nothing. After a power cut, opening
        checks the newest records of up to 100 streams; ``problems`` lists the damaged ones, which
        reading would report too. All others can be read.
        """
        with translated(self.path):
            from .storage.figures import LastEnd  # noqa: PLC0415

        self._source.require_open()
        return LastEnd(*self._env.last_end)

    def snapshot(self, destination: str | os.PathLike[str], *, incremental_to: str | os.PathLike[str] | None = None,
                 shards: int | None = None, shard_bytes: int | None = None, keep: int | None = None,
                 progress: Callable[[str, int, int], None] | None = None) -> Manifest:
        """Copy one consistent state of the store to ``destination``, while writers go on.

        ``incremental_to``  an earlier snapshot of this store: write only the changes since then
        ``shards``          cut each stream into this many ranges of IDs with even counts of entries,
                            one compressed file each; ``destination`` may then be a URL (fsspec)
        ``shard_bytes``     the same, with about this many bytes of a stream's nodes per shard
        ``keep``            afterwards, remove this store's snapshots next to ``destination``, except
                            the newest ``keep`` and those they are based on
        ``progress``        called with the current step ("copy", "check", "sum", "cut", "upload"),
                            the amount done, and the total

        Without the first three, the snapshot is a store at rest: open it with readonly=True. It
        holds everything that was committed when the call began, and no half of a transaction.
        Another process does the work, and writers never wait for it; the pages they replace
        are not reused until it ends. It reads the whole store (an increment only writes
        less), in about a second per gigabyte in memory, plus 0.2 s.

        StoreError (something exists at the destination, and is left alone; it is in the store's own folder; the store
        was moved while it is open), ReadOnlyStore, StoreFull,
        NotAStore (no snapshot is at ``incremental_to``), CorruptionError (a record of the store is
        damaged, so no snapshot is made), InvalidArgument, NotInstalled: nothing is left behind.
        """
        with translated(self.path):
            from .recovery.snapshot import full, incremental, restore  # noqa: PLC0415
            from .recovery.snapshot import shards as cutting  # noqa: PLC0415
            from .recovery.snapshot.location import required_local  # noqa: PLC0415

        self._source.require_open()
        for name, value in (("shards", shards), ("shard_bytes", shard_bytes), ("keep", keep)):
            whole(name, value, 1, none="")
        if shards is not None and shard_bytes is not None:
            raise InvalidArgument("give shards or shard_bytes, not both")
        cut = shards is not None or shard_bytes is not None
        if cut and incremental_to is not None:
            raise InvalidArgument("an increment cannot be cut into shards; make the one or the other")
        place = Path()
        if not cut or keep is not None:
            place = required_local(destination, "without shards, or with keep, a snapshot is")
        if self._env.options.durability != "commit" and not self._env.commits.in_own_transaction():
            self.flush()
        with translated(self.path):
            self._env.live()
            self._env.files.require_same_folder()  # another process opens the store by its name
            if cut:
                made = cutting.make(self.path, destination, shards, shard_bytes, progress)
            elif incremental_to is not None:
                parent = required_local(incremental_to, "an increment builds on a snapshot in")
                made = incremental.make(self.path, place, parent, progress)
            else:
                made = full.make(self.path, place, progress)
            if keep is not None:
                restore.keep_last(place.absolute().parent, made, keep)
        return made._shown(self._streams.encoding)

    def maintain(self, *, exact: bool = False) -> Maintenance:
        """Apply the retention of each stream (see Stream.configure); ``freed`` says how many entries went, by stream.

        It also forgets the idempotent IDs that are out of their window and whose entries are gone, and the rows of
        unique names that are free.

        Whole nodes go, so that what is left of one may be older than ``max_age``, say. With ``exact`` the entries
        themselves go, but for ``max_bytes``: the node that stays is written again.

        An append that begins a node does the same; this call is for streams that get no appends, and for a
        backlog. It removes 1,000 nodes per commit and rule. A stream without retention, IDs and names costs
        about 10 µs. 1,000 IDs out of their window cost about 3 ms, and 11 where they go; where no entry has been
        deleted by its ID from theirs on, they are not read.
        CorruptionError at a damaged node; entries removed before that stay removed.
        """
        return self._streams.maintain(exact)

    def readers(self) -> list[Reader]:
        """The reads that are open at this moment, in all processes, the furthest behind first.

        ``lag`` is the number of commits since a read began. Space freed since the oldest one began
        cannot be reused. raxlog's own calls read in short transactions, so a lag of more than a
        few commits means that a process was stopped in the middle of a read.
        """
        self._source.require_open()
        return self._env.readers()

    def status(self, previous: Status | None = None) -> Status:
        """All figures that an operator watches, as one state of the store: see raxlog.Status.

        Streams, groups with lag and oldest pending entry, consumers, subscriptions, readers, the file and its space.
        It uses one read transaction: about 10 µs per stream, 100 µs per group. ``damaged`` names damaged parts;
        CorruptionError is raised only if the names of streams are damaged.

        ``previous``  a status that this handle has returned: if nothing was committed since, its streams are taken
                      over with their times advanced, except ``seen`` of consumers of this process whose reads found
                      nothing
        """
        self._source.require_open()
        with translated(self.path):
            from . import status  # noqa: PLC0415 - loaded where it is used

            return status.take(self._source, self._streams.encoding, previous)

    def compact(self, progress: Callable[[str, int, int], None] | None = None) -> Compaction:
        """Rewrite the data file without the space of deleted entries, and switch to it.

        ``progress``   called with the step ("copying", "copied", "flushed", "named", "prepared",
                       "marked", "switched", "cleared"), bytes copied and bytes in all, by a
                       separate thread while LMDB copies; it must not use the store

        Readers and writers continue. Writers wait for the switch, and for what was written in the
        last moment before it; if the disk has no space for what is written during the copy, they
        wait for all of it, about a second per gigabyte in memory. Pages are not reused during the
        copy. Other processes switch with their next transaction. The old file is deleted once no
        process has it open: ``held_by`` names those that still have. The disk needs space for the
        new file in addition to the old one. A signal's handler runs after the copy, not during
        it. If the new file would be no smaller, nothing is done: the generation stays, and
        ``bytes_after`` equals ``bytes_before``.

        LockTimeout, StoreFull, CorruptionError, ReadOnlyStore, TransactionError: nothing has
        changed. A kill or a power cut at any moment leaves the store either as it was or compacted.
        """
        with translated(self.path):
            from .storage.engine import compaction  # noqa: PLC0415

        self._source.require_open()
        buffer = self._source.buffer  # once: a close() takes it away
        if buffer is not None:
            buffer.flush()
        done = compaction.compact(self._env, self._source.lock_timeout, progress)
        if done.bytes_after < done.bytes_before:
            report("raxlog.store", "info", "%s was compacted from %d to %d bytes", self.path, done.bytes_before,
                   done.bytes_after)
        return done


def parts(store: Store) -> tuple[StoreSource, Streams, PubSub]:
    """A store's components, for those that call them in other ways: raxlog.aio, the server for clients of Redis."""
    return store._source, store._streams, store._pubsub
