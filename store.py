"""The open store: streams, publish and subscribe, and the care of the whole, as users hold them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload
from weakref import WeakMethod

from .index.pubsub.live_subscription import LiveSubscription, LiveSubscriptions, Message
from .index.pubsub.pubsub import Binding, PubSub, Reached
from .pipeline import Pipeline
from .storage.engine.open_options import BUFFER_WINDOW, DURABILITIES, MAX_READERS, Durability, OpenOptions
from .storage.errors import InvalidArgument, TransactionError
from .storage.lifecycle import registry
from .storage.lifecycle.registry import Share
from .storage.wake.stop import StopFlag
from .stream.entries.header import NodeLimits
from .stream.entries.session import Direct
from .stream.entries.sweep import sweep
from .stream.multi_read import Asked, Found, read_group_streams, read_streams
from .stream.node.arguments import Fields, Name, Text, whole
from .stream.node.stream_id import IDLike
from .stream.state import State
from .stream.stream import Stream
from .stream.streams import Streams
from .transaction import Transaction

if TYPE_CHECKING:
    from .index.pubsub.channels import Channels
    from .index.pubsub.durable_subscription import DurableSubscription
    from .index.subjects.handle import Sublist
    from .index.subjects.interest import Watch
    from .index.subjects.remote_interest import RemoteInterest
    from .recovery.snapshot.manifest import Manifest
    from .status import Status
    from .storage.engine.reader_table import Reader
    from .storage.files.presence import LastEnd
    from .storage.lifecycle.compaction import Compaction

N = TypeVar("N", bound=Name)


class Store:
    """An open store. A context manager; safe to share by threads; survives a fork."""

    __slots__ = ("__weakref__", "_env", "_pubsub", "_source", "_streams")

    def __init__(self, share: Share, encoding: str | None, lock_timeout: float, limits: NodeLimits) -> None:
        self._env = share.env
        self._source = Direct(share, lock_timeout)
        self._source.transaction = WeakMethod(self.transaction)
        self._streams = Streams(self._source, limits, encoding)
        if not share.env.readonly:
            sweep(self._source)
        self._pubsub = PubSub(self._source, limits, encoding)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, readonly: bool = False, create: bool = True,
             durability: Durability = "commit",
             encoding: str | None = None, lock_timeout: float = 30.0, compression: str | None = None,
             node_max_bytes: int | None = None, node_max_entries: int | None = None,
             map_size: int | None = None, max_map_size: int | None = None,
             max_readers: int = MAX_READERS, uses_journal: bool = True,
             buffer_window: float = BUFFER_WINDOW) -> Self:
        """Open the store at ``path``, a directory; it is created if nothing is there.

        ``create``         False: NotAStore if nothing is there
        ``readonly``       takes no write lock and writes no data; a store on a read-only medium
                           is opened without any lock. Commits that a killed writer has left in the
                           journal are applied first, as by the next writer, where this user may write
        ``durability``     "commit": when a call returns, the data is on disk. "relaxed": a power
                           cut may undo the last commits, a kill loses nothing, nothing is ever
                           corrupt. It spares the second flush where a commit needs one: beyond
                           64 KB, and on other systems than Linux. "buffered": append() and
                           extend() return their final IDs at once and are committed behind their
                           callers within ``buffer_window``: a kill or a power cut loses at most
                           that, and leaves what the first so many calls did. Every other call, reads
                           too, first waits for those before it. What could not be committed is
                           raised as AppendsLost by flush() and close(), and by any call until then
        ``encoding``       give names and fields as ``str`` in this encoding instead of ``bytes``; bytes
                           that it cannot decode come as lone surrogates ("surrogateescape")
        ``lock_timeout``   seconds a write waits for another process or thread: LockTimeout after
        ``compression``, ``node_max_bytes``, ``node_max_entries``
                           what new streams get (see Store.stream); kept in a store it creates
        ``map_size``       bytes of address space reserved at first (64 GiB); it grows by itself
        ``max_map_size``   a ceiling for what the store's records take: StoreFull beyond
        ``max_readers``    how many threads of all processes may read at one moment
        ``uses_journal``   False: a durable commit flushes twice, as LMDB does by itself, and nothing
                           is written to its file but by LMDB (see docs/architecture.md, Commits)
        ``buffer_window``  seconds (0.005) from a buffered append to its commit, which takes its own
                           time; 0.0001 .. 60. The writer's lock is held so long

        Raises NotAStore, UnsupportedFormat, ReadOnlyStore, StoreFull, SettingsConflict,
        CorruptionError, InvalidArgument. A store opened twice in a process is one environment.
        """
        if durability not in DURABILITIES:
            raise InvalidArgument(f"durability={durability!r} is unknown; it is one of {', '.join(DURABILITIES)}")
        if isinstance(lock_timeout, bool) or not isinstance(lock_timeout, int | float) or not lock_timeout >= 0:
            raise InvalidArgument(f"lock_timeout={lock_timeout!r} must be a number of seconds >= 0")
        is_number = isinstance(buffer_window, int | float) and not isinstance(buffer_window, bool)
        if not is_number or not 0.0001 <= buffer_window <= 60:
            raise InvalidArgument(f"buffer_window={buffer_window!r} must be a number of seconds from 0.0001 to 60")
        if encoding is not None:
            try:
                "".encode(encoding)
            except (LookupError, TypeError) as error:
                raise InvalidArgument(f"encoding={encoding!r}: {error}") from None
        for name, size in (("map_size", map_size), ("max_map_size", max_map_size), ("max_readers", max_readers)):
            whole(name, size, 1, none="")
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise InvalidArgument(f"path={path!r} must name a directory")
        given = NodeLimits().changed(compression, node_max_bytes, node_max_entries)
        options = OpenOptions(readonly, create, durability, map_size, max_map_size, max_readers, uses_journal,
                              buffer_window)
        share = registry.attach(Path(os.path.abspath(path)), options, lambda: {"limits": list(given)})
        try:
            kept = NodeLimits(*share.env.record.settings["limits"])
            return cls(share, encoding, float(lock_timeout),
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

    def parts(self) -> tuple[Direct, Streams, PubSub]:
        """What it is composed of, for raxlog.aio, which calls the same parts from a loop's tasks."""
        return self._source, self._streams, self._pubsub

    @property
    def path(self) -> Path:
        """The store's directory."""
        return self._env.path

    def close(self) -> None:
        """Close the store: its live subscriptions end, and handles raise StoreClosed from then on.

        AppendsLost, with the store closed, where buffered appends were lost and no flush() has
        raised that. After any other exception close() is to be called again, or the next open() in this
        process does the rest.
        """
        if self._source.closed:
            return
        if self._env.commits.in_own_transaction():
            raise TransactionError(f"{self._env.path} cannot be closed inside a transaction; end that first")
        try:
            self._pubsub.close()
        finally:
            self._source.close()

    def flush(self) -> None:
        """Force everything to disk; after it even a power cut loses none of it.

        ``durability="commit"`` needs it never. With "buffered" it waits for the commit of all
        appends before it, and raises AppendsLost where one failed.
        """
        self._source.require_open()
        if self._env.commits.in_own_transaction():
            raise TransactionError("this thread has a transaction open; flush() once it has ended")
        if self._source.buffer is not None:
            self._source.buffer.flush(report=True)
        elif not self._env.readonly:
            self._env.flush()

    # -- streams ------------------------------------------------------------------------

    def stream(self, name: Name, *, compression: str | None = None, node_max_bytes: int | None = None,
               node_max_entries: int | None = None, codec: str | None = None, type: Any = None) -> Stream:
        """A handle on the stream of that name; the first append creates the stream.

        ``codec``             how this handle's appends encode values: "raw", "str", "json" or "msgpack". The
                              first entry of a stream gives it to the stream, whose codec all handles have that
                              name none (docs/values.md)
        ``type``              a dataclass, TypedDict, msgspec.Struct or pydantic model: append() takes its objects, the
                              ``value`` of an entry is one, "json" the usual codec. NotInstalled without raxlog[models]

        The other options hold for a stream that is created through this handle:
        ``compression``       "none", "zstd" (full nodes are sealed with zstd, level 3) or
                              "compact" (that, in nodes of 16 KB or more: for history)
        ``node_max_bytes``, ``node_max_entries``
                              when a node is full, by Redis' rule; 4096 and 100 split exactly
                              as Redis does. Left out, a node fills one page of LMDB or a few

        InvalidName for a name of more than 502 bytes, or of another type than str, bytes,
        int or float.
        """
        self._source.require_open()
        return self._streams.handle(name, compression, node_max_bytes, node_max_entries, codec, type)

    def streams(self) -> list[Text]:
        """The names of all streams, in order of their bytes."""
        self._source.require_open()
        return self._streams.names()

    def rename_stream(self, old: Name, new: Name) -> bool:
        """Rename a stream; False if it has that name already.

        NoStream if ``old`` is not there, StreamExists if ``new`` is.
        """
        return self._streams.rename(old, new)

    def copy_stream(self, name: Name, to: Name) -> None:
        """Copy a stream with all that is in it: entries, groups, pending and deferred entries, settings. COPY.

        One commit, which writes all of its nodes anew. NoStream if there is none, StreamExists if there is a stream
        ``to``. Its bindings still lead to the stream copied from.
        """
        self._streams.copy(name, to)

    def restore_stream(self, name: Name, payload: bytes, *, replace: bool = False) -> None:
        """Make a stream of a payload: of Stream.dump(), or of Redis' DUMP from 5.0 to 8.8, packed or not. RESTORE.

        Nodes, groups, consumers, what is pending, times, counts and remembered appends are as they were there.
        ``replace``: in place of the stream that has the name; StreamExists else.

        One commit. All of the payload is checked first: DumpChecksum, InvalidDump (both InvalidArgument), InvalidName
        change nothing.
        """
        self._streams.restore(name, payload, replace)

    def delete_stream(self, name: Name) -> bool:
        """Delete a stream with everything in it; False if there is none. DEL.

        It is gone with one commit. Its space is freed in further ones of 2,000 keys
        each; what a crash leaves of that is finished at the next open.
        """
        return self._streams.delete(name)

    @property
    def state(self) -> State:
        """The small durable key-value space that transactions share with the streams."""
        self._source.require_open()
        return State(self._source)

    def transaction(self) -> Transaction:
        """All or nothing over streams, groups, state and publishing: ``with store.transaction() as tx``.

        While it is open a write outside it by the same thread raises TransactionError, and writes
        of others wait.
        """
        self._source.require_writable("write")
        return Transaction(self._source, self._streams, self._pubsub)

    def pipeline(self) -> Pipeline:
        """Different calls in one commit, queued first: ``with store.pipeline() as pipe`` (pipeline.py).

            pipe.stream("orders").append({"item": "book"})
            pipe.group("orders", "billing").ack("5-0")
            sid, acked = pipe.execute()          # of what is refused the error, with raise_on_error=False

        ``pipe`` has the calls of the store, of stream(), group() and state that need no wait, each of which returns
        ``pipe``. What was not executed when the ``with`` ends is dropped.
        """
        self._source.require_writable("write")
        return Pipeline(self._source, self._streams, self._pubsub)

    def read(self, streams: Asked[N], count: int | None = None, block: float | None = None, *,
             total: int | None = None, max_bytes: int | None = None,
             stop: StopFlag | None = None) -> Found[N]:
        """Entries behind an ID of each of several streams, without a group. XREAD.

        ``streams``    {name: ID}: entries with a greater ID; ``$`` for what comes from now
                       on, ``+`` for the last entry; a stream that is not there has none yet
        ``count``      at most so many of each stream; ``total`` of all together
        ``max_bytes``  stop once names and values take so many bytes (one entry always comes)
        ``block``      wait so many seconds for the first entry; 0 for ever, None not at all
        ``stop``       a raxlog.Stop (or threading.Event) that ends the wait: {} once it is set

        Returns {name: entries} of those streams that have any, in the order asked for. ``streams`` may also be pairs,
        [(name, ID)], which may name a stream twice; the result's ``pairs`` then has both.
        """
        self._source.require_open()
        return read_streams(self._source, streams, count, block, total, max_bytes, stop, self._streams.encoding)

    def read_group(self, group: Name, consumer: Name, streams: Asked[N], count: int | None = None,
                   block: float | None = None, *, total: int | None = None, max_bytes: int | None = None,
                   noack: bool = False, claim_idle: float | None = None,
                   ack: Mapping[N, Iterable[IDLike]] | None = None,
                   stop: StopFlag | None = None) -> Found[N]:
        """Deliver from several streams to a consumer of the group of that name in each. XREADGROUP.

        ``streams`` is {name: ">"} for new entries, {name: ID} for the consumer's own history;
        ``ack`` {name: IDs} acknowledges first. The rest as in read() and Group.read(). One
        commit for all; NoGroup, with nothing changed, where a stream lacks the group. The result's
        ``consumers_created`` names the streams in which the consumer is new.
        """
        self._source.require_open()
        return read_group_streams(
            self._source, group, consumer, streams, count, block, total, max_bytes, noack, claim_idle, ack,
            stop, self._streams.encoding,
        )

    # -- publish and subscribe ----------------------------------------------------------

    @property
    def subjects(self) -> Sublist:
        """The subject index itself: all subscriptions, and how a subject is matched."""
        self._source.require_open()
        return self._pubsub.subjects

    @property
    def remote(self) -> RemoteInterest:
        """Remote interest: subjects that other servers, reached by routes, subscribe to."""
        from .index.subjects.remote_interest import RemoteInterest  # noqa: PLC0415 - only programs with routes load it

        self._source.require_open()
        return RemoteInterest(self._source)

    def watch(self, subject: Text, queue: Text | None = None) -> Watch:
        """Report when a subject gets its first subscription in any process, and when it loses its last.

        Only subscriptions to this very subject count, plain ones, or the members of ``queue``.
        SubjectError for a subject that is invalid or has a wildcard, InvalidName.
        """
        from .index.subjects.interest import Watch  # noqa: PLC0415

        self._source.require_open()
        return Watch(self._source, subject, queue)

    def publish(self, subject: Text, fields: Fields) -> Reached:
        """Publish a message; how many bindings, durable and live subscriptions it reached. A number.

        ``subject``  tokens between dots, none of them a wildcard: "orders.eu.new"
        ``fields``   as for Stream.append(); the name ``$subject`` is reserved

        Every bound stream and every durable subscription has it, durably, when this returns: in
        one commit, or in none. Live subscriptions get it at most once. Without any of these
        nothing is written, and it costs about 10 µs.

        SubjectError for a malformed subject or one with a wildcard; InvalidFields;
        StreamExhausted, with nothing done, where a bound stream has used up its IDs. The parts of
        the number, and the IDs of the entries: see Reached.
        """
        return self._pubsub.publish(subject, fields)

    def bind(self, subject: Text, stream: Name) -> Binding:
        """Append everything published to matching subjects to a stream, until unbind().

        ``subject`` may have wildcards: ``*`` for one token, a last ``>`` for one or more. The stream
        need not exist. Binding the same twice is binding once. SubjectError, InvalidName. One commit.
        """
        return self._pubsub.bind(subject, stream)

    def unbind(self, subject: Text | None, stream: Name) -> bool:
        """End a binding: the very pattern and stream that were bound. False if there is none.

        What has been appended stays. ``subject=None`` ends all bindings of the stream.
        """
        return self._pubsub.unbind(subject, stream)

    def bindings(self, stream: Name | None = None) -> list[Binding]:
        """All bindings, or those that lead to one stream, in the order they were made."""
        return self._pubsub.bindings(stream)

    @overload
    def subscribe(self, subject: Text, *, durable: None = None, queue: Text | None = None, weight: int | None = None,
                  callback: Callable[[Message], object] | None = None, limit: int | None = None,
                  ack_wait: None = None, prefetch: None = None) -> LiveSubscription: ...

    @overload
    def subscribe(self, subject: Text, *, durable: Text, queue: Text | None = None, weight: int | None = None,
                  callback: Callable[[Message], object] | None = None, limit: None = None,
                  ack_wait: float | None = None, prefetch: int | None = None) -> DurableSubscription: ...

    def subscribe(self, subject: Text, *, durable: Text | None = None, queue: Text | None = None,
                  weight: int | None = None, callback: Callable[[Message], object] | None = None,
                  limit: int | None = None, ack_wait: float | None = None,
                  prefetch: int | None = None) -> LiveSubscription | DurableSubscription:
        """Get what is published to matching subjects, in this process or any other.

        ``durable``   a name: the subscription outlives this process and keeps its place; each
                      message comes at least once, until it is acknowledged. Without: live, at
                      most once, and it ends with close(), with the store, or with the process
        ``queue``     a group: of all its members, whatever they subscribe to, one gets each message
        ``weight``    this member's share in its group, 1 to 65,535 (1). An existing durable subscription
                      takes it over, or keeps its own if none is given
        ``callback``  is called with each message, by one thread for all callbacks of this store;
                      without it: iterate, ``async for``, or get()
        ``limit``     live: messages that wait in it before it drops (65,536)
        ``ack_wait``  durable: seconds until an unacknowledged message is redelivered (30)
        ``prefetch``  durable: messages taken in one commit (8)

        SubjectError for a malformed pattern, SubscriptionExists where the durable name has another
        pattern or queue, StreamExists where another stream is named ``$durable.NAME``. One commit.
        """
        if durable is None:
            for name, value in (("ack_wait", ack_wait), ("prefetch", prefetch)):
                if value is not None:
                    raise InvalidArgument(f"{name} is for durable subscriptions; a live message takes no ack")
            return self.subscribe_many([subject], queue=queue, weight=1 if weight is None else weight,
                                       callback=callback, limit=limit)[0]
        if limit is not None:
            raise InvalidArgument("limit is for live subscriptions; a durable one drops nothing")
        return self._pubsub.subscribe_durable(subject, durable, queue, weight, callback, ack_wait, prefetch)

    def subscribe_many(self, subjects: Iterable[Text], *, queue: Text | None = None, weight: int = 1,
                       callback: Callable[[Message], object] | None = None,
                       limit: int | None = None) -> LiveSubscriptions:
        """Live subscriptions to many patterns, one each, in their order: all in one commit, or none.

        ``subjects``  patterns; one that is given twice is subscribed to twice
        the others    as for subscribe(), the same for each

        A list, to be closed as a whole (``with`` does), in one commit too, or one by one. Each costs some
        30 µs, where subscribe() waits for a commit. InvalidArgument for what is not an iterable of patterns;
        SubjectError and InvalidName as subscribe().
        """
        if isinstance(subjects, str | bytes) or not isinstance(subjects, Iterable):
            raise InvalidArgument(f"subjects={subjects!r:.60} must be several patterns; for one there is subscribe()")
        return self._pubsub.subscribe_live(subjects, queue, weight, callback, limit)

    def unsubscribe(self, durable: Text) -> bool:
        """Remove a durable subscription with all that it has not delivered; False if there is none.

        Its consumers in all processes end. A live subscription ends with its close().
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
        "power cut". Reported to the first open for writing after that, and to no other.

        A kill (or a process that left without close()) has lost nothing. After a power cut the
        newest records of up to 100 streams were checked when it was opened; ``problems`` lists
        the damaged ones, which reading would report too. All others can be read.
        """
        self._source.require_open()
        return self._env.last_end

    def snapshot(self, destination: str | os.PathLike[str], *, incremental_to: str | os.PathLike[str] | None = None,
                 shards: int | None = None, shard_bytes: int | None = None, keep: int | None = None,
                 progress: Callable[[str, int, int], None] | None = None) -> Manifest:
        """Copy one consistent state of the store to ``destination``, while writers go on.

        ``incremental_to``  an earlier snapshot of this store: only what has changed since is written
        ``shards``          cut each stream into so many ranges of IDs with even counts of entries,
                            one compressed file each; ``destination`` may be a URL then (fsspec)
        ``shard_bytes``     the same, by about so many bytes of a stream's nodes a shard
        ``keep``            afterwards remove this store's snapshots beside ``destination`` but for
                            the newest ``keep`` and what those build on
        ``progress``        called with what is being done ("copy", "check", "sum", "cut", "upload"),
                            how much of it, and of how much

        Without the first three the snapshot is a store at rest: open it with readonly=True. It
        holds everything that was committed when the call began, and no half of a transaction. A
        process of its own does the work: writers never wait for it; the pages they replace
        are not reused before its end. Reads the store once (an increment too, which
        only writes less), about a second for a gigabyte in memory, and 0.2 s besides.

        StoreError (something is at the destination, which is left alone), ReadOnlyStore, StoreFull,
        NotAStore (no snapshot is at ``incremental_to``), CorruptionError (a record of the store is
        damaged: no snapshot is made of it), InvalidArgument, NotInstalled: nothing is left behind.
        """
        from .recovery.snapshot import full, incremental, restore  # noqa: PLC0415
        from .recovery.snapshot import shards as cutting  # noqa: PLC0415
        from .recovery.snapshot.location import local_path  # noqa: PLC0415

        self._source.require_open()
        for name, value in (("shards", shards), ("shard_bytes", shard_bytes), ("keep", keep)):
            whole(name, value, 1, none="")
        if shards is not None and shard_bytes is not None:
            raise InvalidArgument("give shards or shard_bytes, not both")
        cut = shards is not None or shard_bytes is not None
        place = local_path(destination)
        if cut and incremental_to is not None:
            raise InvalidArgument("an increment cannot be cut into shards; make the one or the other")
        if place is None and (not cut or keep is not None):
            raise InvalidArgument(f"{destination} is a URL, which only shards can be written to, and without keep")
        if self._env.options.durability != "commit" and not self._env.commits.in_own_transaction():
            self.flush()
        if cut:
            made = cutting.make(self.path, destination, shards, shard_bytes, progress)
        elif incremental_to is not None:
            made = incremental.make(self.path, Path(destination), Path(incremental_to), progress)
        else:
            made = full.make(self.path, Path(destination), progress)
        if keep is not None and place is not None:
            restore.keep_last(place.absolute().parent, made, keep)
        return made

    def maintain(self) -> dict[Text, int]:
        """Free what the retention of each stream lets go (see Stream.configure): {name: entries that went}.

        An append does that when it begins a node; this is for streams to which nothing is appended, and for a
        backlog. In pieces, 1,000 nodes a commit and rule. About 6 µs for a stream that has no retention.
        CorruptionError at a damaged node; what has gone before it, is gone.
        """
        return self._streams.maintain()

    def readers(self) -> list[Reader]:
        """The reads that are open at this moment, in all processes, the furthest behind first.

        The file cannot use again what was written since the oldest of them began: its ``lag``,
        in commits. raxlog's own calls read in short transactions, so a lag of more than a few
        commits means a process that was stopped in the middle of a read.
        """
        from .storage.engine import reader_table  # noqa: PLC0415

        self._source.require_open()
        return reader_table.readers(self._env)

    def status(self) -> Status:
        """Everything that an operator watches, as one state of the store: see raxlog.Status.

        Streams, groups with lag and oldest pending entry, consumers, subscriptions, readers, the file and its room. In
        one read transaction, which reads records and no entry: about 10 µs for a stream, 50 µs for a group. What
        is damaged is named in ``damaged``; CorruptionError only where the names of streams are.
        """
        from . import status  # noqa: PLC0415 - loaded where it is used

        self._source.require_open()
        return status.take(self._source, self._streams.encoding)

    def compact(self, progress: Callable[[str, int, int], None] | None = None) -> Compaction:
        """Rewrite the data file without the space of deleted entries, and switch to it.

        ``progress``   called with the step ("copying", "copied", "flushed", "named", "prepared",
                       "marked", "switched", "cleared"), bytes copied and bytes in all; it must not
                       use the store. A thread of its own calls it while LMDB copies

        Readers and writers go on. These wait for the switch, and for what was written in the last
        moment before it; where the disk has no room for what is written meanwhile, or the store
        has no log, for all of the copy, about a second for a gigabyte in memory. Pages are not
        used again during the copy. Other processes switch with their next transaction. The old
        file goes once no process has it open: ``held_by`` names those that still have. Needs room
        on the disk for the new file beside the old one. A signal's handler runs after the copy,
        not within it. Where that would be no smaller nothing is done: the generation is the one
        before, and ``bytes_after`` equals ``bytes_before``.

        LockTimeout, StoreFull, CorruptionError, ReadOnlyStore, TransactionError: nothing has
        changed. A kill or a power cut at any moment leaves the store as it was or compacted.
        """
        from .storage.lifecycle import compaction  # noqa: PLC0415

        self._source.require_open()
        if self._source.buffer is not None:
            self._source.buffer.flush()
        done = compaction.compact(self._env, self._source.lock_timeout, progress)
        if done.bytes_after < done.bytes_before:
            import logging  # noqa: PLC0415 - loaded where it is used

            logging.getLogger("raxlog.store").info(
                "%s was compacted from %d to %d bytes", self.path, done.bytes_before, done.bytes_after)
        return done
