"""The half of a stream's handle that reads: ranges, single entries, counts, what it tells of itself.

Every method parses and checks its arguments first, then reads in one short transaction, or in
several where there is much to read. What it finds nothing of it answers with nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, overload

from ..storage.errors import InvalidArgument, NoStream
from .columns import scan
from .entries import count as counting
from .entries import header as headers
from .entries import range_read
from .entries.header import NodeLimits, shown
from .entries.session import Source
from .group.info import GroupInfo, describe_group
from .group.state import all_groups
from .info import StreamInfo, describe
from .node.clock import whole
from .node.entry import UNDECODABLE, Entry
from .node.stream_id import AnyID, StreamID, make_id, parse_end, parse_id, parse_start

if TYPE_CHECKING:
    import pyarrow as pa

    from .full_info import FullInfo


class ReadableStream:
    """What is read of one stream. Made as raxlog.Stream, which writes as well."""

    __slots__ = ("_encoding", "_limits", "_number", "_source", "name")

    def __init__(self, source: Source, name: bytes, limits: NodeLimits, encoding: str | None) -> None:
        self._source = source
        self._limits = limits
        self._encoding = encoding
        self._number: int | None = None
        self.name = name

    def __repr__(self) -> str:
        return f"<raxlog.Stream {shown(self.name)} in {str(self._source.env.path)!r}>"

    def range(self, start: AnyID = "-", end: AnyID = "+", count: int | None = None,
              reverse: bool = False) -> Iterator[Entry]:
        """The entries from ``start`` to ``end``, both included, lazily. XRANGE, XREVRANGE.

        IDs as Redis writes them: ``-`` and ``+``, incomplete (``5`` starts at 5-0 and ends at
        5-18446744073709551615), ``(5-1`` excluded. ``reverse=True`` gives the same range from
        its end. ``count``: at most so many (None: all). Reads in short transactions of up to
        64 nodes; entries appended after the call are not chased.

        Raises InvalidStreamID at once, CorruptionError when it comes to a damaged node.
        """
        first, last = parse_start(start), parse_end(end)
        whole("count", count, 0, none=", or None for all")
        return range_read.read_range(self._source, self.name, first, last, count, reverse, self._encoding)

    def nodes(self, start: AnyID = "-", end: AnyID = "+") -> Iterator[scan.StoredNode]:
        """The nodes that hold a range's entries, as stored: lazily, as ((ms, seq), listpack).

        In the place of a listpack that is damaged stands the CorruptionError (see scan.py).
        """
        return scan.read_nodes(self._source, self.name, parse_start(start), parse_end(end))

    def to_arrow(self, start: AnyID = "-", end: AnyID = "+", schema: Any = None, *, batch_size: int = 65_536,
                 mode: str = "PERMISSIVE", skip_damaged: bool = False, tally: Any = None,
                 **columns: str | None) -> pa.RecordBatchReader:
        """The live entries of a range as a pyarrow.RecordBatchReader, which DuckDB and Polars read.

        Lazy, in short transactions, as range(); what is appended after the call is not read.
        Decoded without an object per entry, several times as fast. Without a ``schema`` the
        columns are id_ms, id_seq and fields, a map; else those it names, each the field of that
        name: a pyarrow.Schema or {"qty": "bigint", …}.

        ``columns`` are id_column, timestamp_column, stream_column, corrupt_column: see
        projection.projection(); the rest is explained at arrow.batches(). Raises InvalidStreamID,
        InvalidArgument and NotInstalled (pyarrow comes with raxlog[spark]) at once; MalformedValue
        and CorruptionError when it comes to them.
        """
        from .columns import arrow  # noqa: PLC0415 - Arrow's share is loaded where it is used

        first, last = parse_start(start), min(parse_end(end), self.last_id)
        return arrow.reader(
            scan.read_nodes(self._source, self.name, first, last), arrow.projection(schema, **columns),
            start=first, end=last, stream=self.name.decode("utf-8", "backslashreplace"), batch_size=batch_size,
            mode=mode, skip_damaged=skip_damaged, tally=tally,
        )

    def get(self, id: AnyID) -> Entry | None:
        """The entry with exactly this ID, None if it is not there (any more)."""
        entry = range_read.get(self._source, self.name, parse_id(id), self._known())
        return entry if entry is None or self._encoding is None else entry.decoded(self._encoding, UNDECODABLE)

    def __len__(self) -> int:
        """Live entries. XLEN: one record read."""
        with self._source.read() as txn:
            found = headers.find(txn, self.name, self._number)
        return 0 if found is None else found[1].length

    def __bool__(self) -> bool:
        """True: a handle is a handle, also on an empty stream."""
        return True

    def __iter__(self) -> Iterator[Entry]:
        return self.range()

    def exists(self) -> bool:
        """Whether the stream has been created (it may be empty)."""
        with self._source.read() as txn:
            return headers.find(txn, self.name, self._number) is not None

    @property
    def last_id(self) -> StreamID:
        """The greatest ID ever generated here, kept by deletions; 0-0 for a new stream."""
        with self._source.read() as txn:
            found = headers.find(txn, self.name, self._number)
        return StreamID.MIN if found is None else make_id(*found[1].last)

    def count(self, start: AnyID = "-", end: AnyID = "+") -> int:
        """Live entries from ``start`` to ``end``, without reading them: some 10 µs."""
        return counting.count(self._source, self.name, parse_start(start), parse_end(end), self._known())

    def rank(self, id: AnyID) -> int:
        """Live entries with a smaller ID: 0 for the first. The ID itself need not be there."""
        return counting.rank(self._source, self.name, parse_id(id), self._known())

    def select(self, k: int) -> StreamID:
        """The ID of the k-th live entry, from 0. IndexError where there is none."""
        if type(k) is not int:
            raise InvalidArgument(f"select({k!r}): the number of an entry must be a whole number")
        return counting.select(self._source, self.name, k, self._known())

    def split(self, n: int) -> list[tuple[StreamID, StreamID, int]]:
        """Up to ``n`` ID ranges (start, end, entries) of equal count, both ends included.

        The ranges touch, so that together they hold every entry once; counts differ by at
        most one. Fewer than ``n`` where there are fewer entries, none for an empty stream.
        """
        if type(n) is not int or n < 1:
            raise InvalidArgument(f"split({n!r}): the number of parts must be a whole number >= 1")
        return counting.split(self._source, self.name, n, self._known())

    @overload
    def info(self, full: Literal[False] = False) -> StreamInfo: ...

    @overload
    def info(self, full: Literal[True], count: int | None = 10) -> FullInfo: ...

    @overload
    def info(self, full: bool, count: int | None = 10) -> StreamInfo | FullInfo: ...

    def info(self, full: bool = False, count: int | None = 10) -> StreamInfo | FullInfo:
        """The figures of XINFO STREAM; with ``full`` of XINFO STREAM FULL. NoStream where there is none.

        0.1 ms, but for ``full``, which walks all node keys: it alone counts ``radix_tree_nodes`` (else
        None), finds a node that has vanished, and adds the first ``count`` entries, and the
        groups: the first ``count`` pending entries of each group and of each consumer. None or 0
        is for all of them.
        """
        told: StreamInfo | FullInfo | None
        if full:
            from .full_info import describe_fully  # noqa: PLC0415 - seldom asked for

            told = describe_fully(self._source, self.name, self._known(), self._encoding, count)
        else:
            told = describe(self._source, self.name, self._known(), self._encoding)
        if told is None:
            raise NoStream(f"there is no stream {shown(self.name)} in {self._source.env.path}")
        return told

    def groups(self) -> list[GroupInfo]:
        """All consumer groups of the stream, by name. XINFO GROUPS; NoStream where there is none."""
        with self._source.read() as txn:
            found = headers.find(txn, self.name, self._number)
            if found is None:
                raise NoStream(f"there is no stream {shown(self.name)} in {self._source.env.path}")
            infos = [describe_group(txn, state, *found, self._encoding) for state in all_groups(txn, *found)]
        return sorted(infos, key=lambda info: info.name)

    def _known(self) -> int | None:
        """The stream's number, remembered; whoever uses it checks that the name still fits."""
        if self._number is None:
            with self._source.read() as txn:
                self._number = headers.number_of(txn, self.name)
        return self._number
