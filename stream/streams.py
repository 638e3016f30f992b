"""A store as its users hold it: streams by name, and the store's own life."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from ..storage.commit.write_transaction import WriteTransaction
from ..storage.engine.open_options import BUFFER_WINDOW, DURABILITIES, MAX_READERS, Durability, OpenOptions
from ..storage.errors import InvalidArgument, ReadOnlyStore, StoreClosed, StreamExists, TransactionError
from ..storage.format import keys, records
from ..storage.lifecycle import registry
from ..storage.lifecycle.registry import Share
from ..storage.wake.stop import StopFlag
from .entries import header as headers
from .entries import writer
from .entries.header import NodeLimits, shown
from .entries.session import Direct, ask
from .entries.sweep import doom_stream, sweep
from .multi_read import read_group_streams, read_streams
from .node.clock import whole
from .node.entry import Entry
from .node.names import name_bytes, text_of
from .node.stream_id import AnyID
from .stream import Stream
from .transaction import State, Transaction

T = TypeVar("T")


class Store:
    """An open store. A context manager; safe to share by threads; survives a fork."""

    __slots__ = ("_encoding", "_env", "_limits", "_source")

    def __init__(self, share: Share, encoding: str | None, lock_timeout: float, limits: NodeLimits) -> None:
        self._env = share.env
        self._encoding = encoding
        self._source = Direct(share, lock_timeout)
        self._limits = limits
        if not share.env.readonly:
            sweep(self._source)

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
        ``readonly``       takes no write lock and writes no data; what lies on a read-only medium
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

    @property
    def path(self) -> Path:
        """The store's directory."""
        return self._env.path

    def close(self) -> None:
        """Close the store. Handles on its streams raise StoreClosed from then on.

        AppendsLost, with the store closed, where buffered appends were lost and no flush() has
        raised that. After any other exception close() is to be called again, or the next open() in this
        process does the rest.
        """
        if not self._source.closed:
            self._source.close()

    def flush(self) -> None:
        """Force everything to disk; after it even a power cut loses none of it.

        ``durability="commit"`` needs it never. With "buffered" it waits for the commit of all
        appends before it, and raises AppendsLost where there was none.
        """
        self._require_open()
        if self._env.commits.in_own_transaction():
            raise TransactionError("this thread has a transaction open; flush() once it has ended")
        if self._source.buffer is not None:
            self._source.buffer.flush(tell=True)
        elif not self._env.readonly:
            self._env.flush()

    def stream(self, name: Any, *, compression: str | None = None, node_max_bytes: int | None = None,
               node_max_entries: int | None = None) -> Stream:
        """A handle on the stream of that name; the first append creates the stream.

        The options hold for a stream that is created through this handle:
        ``compression``       "none", "zstd" (full nodes are sealed with zstd, level 3) or
                              "compact" (that, in nodes of 16 KB or more: for history)
        ``node_max_bytes``, ``node_max_entries``
                              when a node is full, by Redis' rule; 4096 and 100 split exactly
                              as Redis does. Left out, a node fills one page of LMDB or a few

        InvalidName for a name of more than 502 bytes, or of another type than str, bytes,
        int or float.
        """
        self._require_open()
        limits = self._limits.changed(compression, node_max_bytes, node_max_entries)
        return Stream(self._source, name_bytes(name), limits, self._encoding)

    def transaction(self) -> Transaction:
        """All or nothing over any streams, groups and state: ``with store.transaction() as tx``.

        See transaction.py. While it is open a write outside it by the same thread raises
        TransactionError, and writes of others wait.
        """
        self._require_writable("write")
        return Transaction(self._source, self._encoding, self._limits)

    @property
    def state(self) -> State:
        """The small durable key-value space that transactions share with the streams."""
        self._require_open()
        return State(self._source)

    def read(self, streams: Mapping[Any, AnyID], count: int | None = None, block: float | None = None, *,
             total: int | None = None, max_bytes: int | None = None,
             stop: StopFlag | None = None) -> dict[Any, list[Entry]]:
        """Entries behind an ID of each of several streams, without a group. XREAD.

        ``streams``    {name: ID}: entries with a greater ID; ``$`` for what comes from now
                       on, ``+`` for the last entry; a stream that is not there has none yet
        ``count``      at most so many of each stream; ``total`` of all together
        ``max_bytes``  stop once names and values take so many bytes (one entry always comes)
        ``block``      wait so many seconds for the first entry; 0 for ever, None not at all
        ``stop``       a raxlog.Stop (or threading.Event) that ends the wait: {} once it is set

        Returns {name: entries} of those streams that have any, in the order asked for.
        """
        self._require_open()
        return read_streams(self._source, streams, count, block, total, max_bytes, stop, self._encoding)

    def read_group(self, group: Any, consumer: Any, streams: Mapping[Any, AnyID], count: int | None = None,
                   block: float | None = None, *, total: int | None = None, max_bytes: int | None = None,
                   noack: bool = False, claim_idle: float | None = None,
                   ack: Mapping[Any, Iterable[AnyID]] | None = None,
                   stop: StopFlag | None = None) -> dict[Any, list[Entry]]:
        """Deliver from several streams to a consumer of the group of that name in each. XREADGROUP.

        ``streams`` is {name: ">"} for new entries, {name: ID} for the consumer's own history;
        ``ack`` {name: IDs} acknowledges first. The rest as in read() and Group.read(). One
        commit for all; NoGroup, with nothing changed, where a stream lacks the group.
        """
        self._require_open()
        return read_group_streams(
            self._source, group, consumer, streams, count, block, total, max_bytes, noack, claim_idle, ack,
            stop, self._encoding,
        )

    def streams(self) -> list[Any]:
        """The names of all streams, in order of their bytes."""
        self._require_open()
        return [text_of(name, self._encoding) for name in ask(self._source, headers.all_names)]

    def rename_stream(self, old: Any, new: Any) -> bool:
        """Give a stream another name; False if it bears that name already.

        NoStream if ``old`` is not there, StreamExists if ``new`` is.
        """
        before, after = name_bytes(old), name_bytes(new)

        def operation(txn: WriteTransaction) -> bool:
            stream = writer.require(txn, before)
            if before == after:
                return False
            if writer.locate(txn, after) is not None:
                raise StreamExists(f"there is a stream {shown(after)} already; delete it first")
            txn.delete(keys.NAMES + before)
            txn.put(keys.NAMES + after, records.seal(keys.NAMES + after, [stream.number]))
            stream.header.name = after
            txn.warm[after] = txn.warm.pop(before)
            stream.changed(txn)
            return True

        return self._submit(operation)

    def delete_stream(self, name: Any) -> bool:
        """Delete a stream with everything in it; False if there is none. DEL.

        It is gone with one commit. Its space is given back in further ones of 2,000 keys
        each; what a crash leaves of that is finished at the next open.
        """
        wanted = name_bytes(name)
        gone = self._submit(lambda txn: doom_stream(txn, wanted))
        if gone:
            sweep(self._source)
        return gone

    # -- within -------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self._source.closed:
            raise StoreClosed(f"the store {self._env.path} has been closed. Open it again.")

    def _require_writable(self, to: str) -> None:
        self._require_open()
        if self._env.readonly:
            raise ReadOnlyStore(f"{self._env.path} is open with readonly=True; open it without to {to}")

    def _submit(self, operation: Callable[[WriteTransaction], T]) -> T:
        self._require_writable("write")
        return self._source.submit(operation)

