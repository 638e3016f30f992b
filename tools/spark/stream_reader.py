"""The stream reader: micro-batches of what has been appended, exactly once by Spark's checkpoint.

    offset    {"orders": {"id": "1526919030474-55", "gone": 1200, "no": 3}, …}
    a batch   the entries after one offset, up to the next: (id, id']

``id`` is the last entry delivered, ``no`` the stream's number, which a recreated stream does not
share. ``gone`` is how many entries had been added up to ``id``, or deleted after it:

    gone = entries ever added - live entries after id

If it has grown by the time the next batch is planned, so many entries after ``id`` have been
removed. Where the stream's first entry follows ``id`` too, they were trimmed: lost data. Else
they were deleted in the middle, on purpose.

A live store is read in short transactions beside its writers, no snapshot is taken. Everything
is derived from the offset and the store, so a restarted query continues where it was.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ...storage.errors import InvalidArgument, StreamError
from ...stream.entries import header as headers
from ...stream.entries.count import Counter
from ...stream.entries.header import StreamHeader, shown
from ...stream.node.stream_id import StreamID, make_id, parse_id
from . import data_loss, plan, scan
from .batch_reader import session_zone
from .location import SHARDS, DataLocation, find, opened
from .options import Options
from .requirements import pyspark_version

if TYPE_CHECKING:
    import pyarrow as pa

    from .schema import Columns

if TYPE_CHECKING or pyspark_version() >= (4, 2):
    from pyspark.sql.streaming import datasource as api
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
else:
    SupportsTriggerAvailableNow = object

Offset = dict[str, dict[str, Any]]


class _Position(NamedTuple):
    """How far one stream has been read: up to and including ``after``."""

    after: StreamID
    gone: int | None  # None: unknown
    number: int | None

    def entry(self) -> dict[str, Any]:
        """The position in an offset."""
        return {"id": str(self.after), "gone": self.gone, "no": self.number}


_BEGINNING = _Position(StreamID.MIN, None, None)


class _View(NamedTuple):
    """One stream at one moment."""

    name: bytes
    number: int
    header: StreamHeader
    counter: Counter

    def rank_behind(self, sid: StreamID) -> int:
        """Live entries with an ID not greater than ``sid``."""
        return self.header.length if sid >= self.header.last else self.counter.rank(sid.next())

    def position(self, after: StreamID) -> _Position:
        """Everything up to ``after`` is read."""
        if after > self.header.last:  # a start in the future
            return _Position(after, None, self.number)
        behind = self.header.length - self.rank_behind(after)
        return _Position(after, self.header.next_ordinal - behind, self.number)


class _Backlog(NamedTuple):
    """What a stream has for the next batch: ``left`` entries after ``after``, up to ``upto``."""

    view: _View
    after: StreamID
    upto: StreamID
    left: int


class FollowingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a live store, or a folder to which newer snapshots are added."""

    def __init__(self, options: Options, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._target: dict[str, StreamID] | None = None  # of Trigger.AvailableNow
        self._triggered = time.monotonic()

    # -- offsets ------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        """Where a new query begins: by default after all existing entries, as with Kafka."""
        start = self._options.start
        if self._options.from_latest:
            return self.reportLatestOffset()
        after = start.prev() if start is not None and start > StreamID.MIN else StreamID.MIN
        with self._views() as views:
            return {_key(view.name): view.position(after).entry() for view in views}

    def getDefaultReadLimit(self) -> api.ReadLimit:
        """What a trigger takes at most, or at least; latestOffset() uses it."""
        if self._options.max_per_trigger is not None:
            return api.ReadMaxRows(self._options.max_per_trigger)
        if self._options.min_per_trigger is not None:
            return api.ReadMinRows(self._options.min_per_trigger)
        return api.ReadAllAvailable()

    def latestOffset(self, start: Offset | None = None, limit: api.ReadLimit | None = None) -> Offset:
        """The end of the next batch; ``start`` itself where there is nothing, or not enough."""
        if start is None:  # Spark before 4.2 passes neither
            return self.reportLatestOffset()
        with self._views() as views:
            backlogs = [one for view in views if (one := self._backlog(view, start)) is not None]
            left = [one.left for one in backlogs]
            total = sum(left)
            if not total or self._too_few(total, limit):
                return start
            self._triggered = time.monotonic()
            most = limit.max_rows if isinstance(limit, api.ReadMaxRows) else None
            shares = left if most is None or total <= most else _shares(left, most)
            end = dict(start)
            for one, share in zip(backlogs, shares, strict=True):
                upto = one.upto
                if share < one.left:
                    if not share:
                        continue
                    upto = one.view.counter.select(one.view.rank_behind(one.after) + share - 1)
                if upto > one.after:
                    end[_key(one.view.name)] = one.view.position(upto).entry()
        return dict(sorted(end.items()))

    def _backlog(self, view: _View, start: Offset) -> _Backlog | None:
        """What is to be read of a stream now, if anything."""
        key = _key(view.name)
        position = self._checked(view, _position(start.get(key)))
        if position is None or (self._target is not None and key not in self._target):
            return None
        upto = make_id(*view.header.last)
        if self._target is not None:
            upto = StreamID(*min(upto, self._target[key]))
        left = max(0, view.rank_behind(upto) - view.rank_behind(position.after))
        return _Backlog(view, position.after, upto, left)

    def prepareForTriggerAvailableNow(self) -> None:
        """Note where the streams end now: later entries are for the next run."""
        with self._views() as views:
            self._target = {_key(view.name): make_id(*view.header.last) for view in views}

    def reportLatestOffset(self) -> Offset:
        """Where the streams end, for the query's progress report."""
        with self._views() as views:
            return {_key(view.name): view.position(make_id(*view.header.last)).entry() for view in views}

    def _too_few(self, total: int, limit: api.ReadLimit | None) -> bool:
        least = self._options.min_per_trigger
        if least is None or self._target is not None or isinstance(limit, api.ReadAllAvailable):
            return False
        return total < least and time.monotonic() - self._triggered < self._options.max_trigger_delay

    def _checked(self, view: _View, position: _Position) -> _Position | None:
        """The position itself, or where to continue after a loss; None: nothing to read now."""
        header, after = view.header, position.after
        if position.number not in (None, view.number):
            self._lost(f"stream {shown(view.name)} was deleted and created again since {after} was read")
            return _BEGINNING._replace(number=view.number)
        if after > header.last:
            if position.gone is not None:
                self._lost(
                    f"stream {shown(view.name)} ends at {make_id(*header.last)}, before {after}, where this query is: "
                    "the newest snapshot is older than the checkpoint, or the stream was set back"
                )
            return None
        now = view.position(after).gone
        if position.gone is not None and now is not None and (not header.length or header.first > after):
            lost = now - position.gone
            if lost > 0:
                first = make_id(*header.first) if header.length else "none"
                self._lost(
                    f"{lost} entries of stream {shown(view.name)} after {after} are gone that were not read: "
                    f"the stream has been trimmed (its first entry is {first})"
                )
        return position

    def _lost(self, what: str) -> None:
        data_loss.lost(what, self._options)

    # -- partitions ---------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The entries after ``start`` up to ``end``, cut as a batch is."""
        place = self._place()
        self._columns.require(scan.schemas(place, self._options))
        windows = {}
        with opened(place.path) as source:
            with source.read() as txn:
                for key in start.keys() - end.keys():
                    self._lost(f"stream {shown(_name(key))} is no longer in {place.path}")
                for key, value in end.items():
                    before, upto = _position(start.get(key)), _position(value)
                    if before == upto:
                        continue
                    name = _name(key)
                    found = headers.find(txn, name)
                    if found is None:
                        self._lost(f"stream {shown(name)} is no longer in {place.path}")
                        continue
                    # Checked again: a batch that is run again after a restart was planned long ago.
                    position = self._checked(_View(name, *found, Counter(txn, *found)), before)
                    if position is None and upto.after < before.after:  # Spark before 4.2 would go back
                        raise StreamError(f"stream {shown(name)} ends before {before.after}; pyspark 4.2 waits for it")
                    if position is not None and position.after < upto.after:
                        windows[name] = plan.Window(position.after.next(), upto.after)
            parts = plan.plan(source, windows, self._options, at_rest=False) if windows else []
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The partition's entries. What was trimmed since it was planned is lost data, too."""
        scan.settle()
        columns = self._columns.in_zone(session_zone(self._options))
        for piece in partition.value.pieces:
            rows = 0
            for batch in scan.batches(plan.Part((piece,)), columns, self._options):
                rows += batch.num_rows
                yield batch
            if rows < piece.entries:
                self._check_front(piece, rows)

    def _check_front(self, piece: plan.Piece, rows: int) -> None:
        with opened(piece.path) as source, source.read() as txn:
            found = headers.find(txn, piece.stream)
        if found is None or not found[1].length or found[1].first > piece.start:
            self._lost(
                f"stream {shown(piece.stream)} was trimmed while it was read: from {piece.start} to {piece.end} "
                f"there were {piece.entries} entries, and {rows} could be read"
            )

    # -- within -------------------------------------------------------------------------

    def _place(self) -> DataLocation:
        place = find(self._options.path, kinds=("full",))
        if place.kind == SHARDS:
            raise InvalidArgument(
                f"{place.path} is a set of shards, which does not grow; readStream follows a live store, or a folder "
                "of snapshots"
            )
        return place

    @contextmanager
    def _views(self) -> Iterator[list[_View]]:
        """The streams chosen, all at one moment, which lasts as long as the block."""
        place = self._place()
        with opened(place.path) as source:
            names = self._names(plan.names_in(source))
            with source.read() as txn:
                found = [(name, headers.find(txn, name)) for name in names]
                yield [_View(name, *there, Counter(txn, *there)) for name, there in found if there is not None]

    def _names(self, names: list[bytes]) -> list[bytes]:
        if self._options.stream is None and not any(plan.matches(name, self._options) for name in names):
            return []  # streams may match the pattern later
        return plan.chosen(names, self._options)


def _shares(left: list[int], most: int) -> list[int]:
    """``most`` entries shared out over streams by what each has left, as Kafka's source does."""
    total = sum(left)
    shares = [most * many // total for many in left]
    spare = most - sum(shares)
    for at in sorted(range(len(left)), key=lambda at: left[at] - shares[at], reverse=True)[:spare]:
        shares[at] += 1
    return shares


def _position(value: dict[str, Any] | None) -> _Position:
    return _BEGINNING if value is None else _Position(parse_id(value["id"]), value["gone"], value["no"])


def _key(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _name(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")
