"""The stream reader: micro-batches of what has been appended, exactly once by Spark's checkpoint.

    offset    {"orders": {"id": "1526919030474-55", "gone": 1200, "no": 3, "store": "5f0c…", "of": "stream=orders"}, …}
    a batch   the entries after one offset, up to the next: (id, id']

``id`` is the last entry delivered, ``no`` the stream's number, which a recreated stream does not
share and a renamed one keeps, ``store`` the store's UUID, which a restored one does not share, ``of``
the option that asked for the stream. ``gone`` is how many entries had been added up to ``id``, or deleted
after it:

    gone = entries ever added - live entries after id

If it has grown by the time the next batch is planned, so many entries after ``id`` have been
removed. Where the stream's first entry follows ``id`` too, they were trimmed: lost data. Else
they were deleted in the middle, on purpose.

A live store is read in short transactions beside its writers, no snapshot is taken. Everything
is derived from the offset and the store, so a restarted query continues where it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ...storage import clocks
from ...storage.errors import InvalidArgument, StreamError
from ...storage.trees.rax import RaxTransaction
from ...stream.columns.arrow import FAILFAST
from ...stream.entries import header as headers
from ...stream.entries.count import Counter
from ...stream.entries.header import StreamHeader, shown
from ...stream.entries.session import Source
from ...stream.node.stream_id import StreamID, make_id, parse_id
from . import data_loss, plan, scan
from .batch_reader import in_session
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
    number: int
    store: str | None  # None: unknown

    def entry(self, asked: str) -> dict[str, Any]:
        """The position in an offset."""
        return {"id": str(self.after), "gone": self.gone, "no": self.number, "store": self.store, "of": asked}


class _StreamView(NamedTuple):
    """One stream at one moment."""

    store: str
    number: int
    header: StreamHeader
    counter: Counter

    @classmethod
    def of(cls, source: Source, txn: RaxTransaction, number: int, header: StreamHeader) -> _StreamView:
        """The stream of this number and header in a store."""
        return cls(source.env.record.uuid.hex(), number, header, Counter(txn, number, header))

    def rank_behind(self, sid: StreamID) -> int:
        """Live entries with an ID not greater than ``sid``."""
        return self.header.length if sid >= self.header.last else self.counter.rank(sid.next())

    def position(self, after: StreamID) -> _Position:
        """Everything up to ``after`` is read."""
        if after > self.header.last:  # a start in the future
            return _Position(after, None, self.number, self.store)
        behind = self.header.length - self.rank_behind(after)
        return _Position(after, self.header.next_ordinal - behind, self.number, self.store)


class _Backlog(NamedTuple):
    """What a stream has for the next batch: ``entries`` of them after ``after``, up to ``upto``."""

    view: _StreamView
    after: StreamID
    upto: StreamID
    entries: int


class FollowingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a live store, or a folder to which newer snapshots are added."""

    def __init__(self, options: Options, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        single, many = f"stream={options.stream}", f"streamPattern={options.stream_pattern}"
        self._asked = many if options.stream is None else single
        self._target: dict[int, StreamID] | None = None  # of Trigger.AvailableNow, by the streams' numbers
        self._triggered = clocks.elapsed()

    # -- offsets ------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        """Where a new query begins: by default after all existing entries, as with Kafka."""
        with self._views(new=True) as views:
            return self._offset({_key(view): self._begin(view, True) for view in views})

    def _begin(self, view: _StreamView, by_options: bool) -> _Position:
        """Where a stream begins: where the options say, or before its first entry if it has come later."""
        start = self._options.start if by_options else None
        if by_options and self._options.from_latest:
            return view.position(make_id(*view.header.last))
        return view.position(start.prev() if start is not None and start > StreamID.MIN else StreamID.MIN)

    def _offset(self, positions: dict[str, _Position]) -> Offset:
        return {key: position.entry(self._asked) for key, position in sorted(positions.items())}

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
            backlogs: list[_Backlog] = []
            end = {}
            before = self._positions(start, {view.number: _key(view) for view in views})
            changed = self._asks_other(start, self._asked)
            for view in views:
                position = before[view.number] or self._begin(view, changed)
                checked = self._checked(view, position)
                end[_key(view)] = checked or position
                if checked is not None and (self._target is None or view.number in self._target):
                    backlogs.append(self._backlog(view, checked.after))
            backlog_sizes = [backlog.entries for backlog in backlogs]
            total = sum(backlog_sizes)
            if not total or self._too_few(total, limit):
                return self._offset(end)  # ``start``, but for streams that are gone, renamed or new
            self._triggered = clocks.elapsed()
            max_rows = limit.max_rows if isinstance(limit, api.ReadMaxRows) else None
            shares = backlog_sizes if max_rows is None or total <= max_rows else _shares(backlog_sizes, max_rows)
            for backlog, share in zip(backlogs, shares, strict=True):
                upto = backlog.upto
                if share < backlog.entries:
                    if not share:
                        continue
                    upto = backlog.view.counter.select(backlog.view.rank_behind(backlog.after) + share - 1)
                if upto > backlog.after:
                    end[_key(backlog.view)] = backlog.view.position(upto)
        return self._offset(end)

    def _backlog(self, view: _StreamView, after: StreamID) -> _Backlog:
        """What is to be read of a stream now."""
        upto = make_id(*view.header.last)
        if self._target is not None:
            upto = StreamID(*min(upto, self._target[view.number]))
        return _Backlog(view, after, upto, max(0, view.rank_behind(upto) - view.rank_behind(after)))

    def _asks_other(self, start: Offset, asked: str | None) -> bool:
        """Whether an offset is of a query that asked for other streams. Older offsets have only their names."""
        return any(value.get("of", asked) != asked or not plan.matches(_name(key), self._options)
                   for key, value in start.items())

    def prepareForTriggerAvailableNow(self) -> None:
        """Note where the streams end now: later entries are for the next run."""
        with self._views() as views:
            self._target = {view.number: make_id(*view.header.last) for view in views}

    def reportLatestOffset(self) -> Offset:
        """Where the streams end, for the query's progress report."""
        with self._views() as views:
            return self._offset({_key(view): view.position(make_id(*view.header.last)) for view in views})

    def _too_few(self, total: int, limit: api.ReadLimit | None) -> bool:
        least = self._options.min_per_trigger
        if least is None or self._target is not None or isinstance(limit, api.ReadAllAvailable):
            return False
        return total < least and clocks.elapsed() - self._triggered < self._options.max_trigger_delay

    def _checked(self, view: _StreamView, position: _Position) -> _Position | None:
        """The position itself, or where to continue after a loss; None: nothing to read now."""
        header, after = view.header, position.after
        other = position.store not in (None, view.store)
        if other or position.number != view.number:
            self._lost(f"the store at {self._options.path} is another, restored or made anew, since {after} of stream "
                       f"{shown(header.name)} was read" if other else
                       f"stream {shown(header.name)} was deleted and created again since {after} was read")
            return view.position(StreamID.MIN)
        if after > header.last:
            if position.gone is not None:
                self._lost(
                    f"stream {shown(header.name)} ends at {make_id(*header.last)}, before {after}, where this query is:"
                    " the newest snapshot is older than the checkpoint, or the stream was set back"
                )
            return None
        now = view.position(after).gone
        if position.gone is not None and now is not None and (not header.length or header.first > after):
            lost = now - position.gone
            if lost > 0:
                first = make_id(*header.first) if header.length else "none"
                self._lost(
                    f"{lost} entries of stream {shown(header.name)} after {after} are gone that were not read: "
                    f"the stream has been trimmed (its first entry is {first})"
                )
                return view.position(after)
        return position._replace(store=view.store)

    def _positions(self, start: Offset, names: dict[int, str]) -> dict[int, _Position | None]:
        """Where streams, given by number and name, are in an offset; those of it that are gone are lost data.

        A renamed stream has the position of its number, one made anew that of its name.
        """
        numbered = {value["no"]: value for value in start.values()}
        others = {key: value for key, value in start.items() if value["no"] not in names}
        for key in others.keys() - names.values():
            if plan.matches(_name(key), self._options):  # else another option asks for other streams
                self._lost(f"stream {shown(_name(key))} is no longer in {self._options.path}, or under another name, "
                           "which the options leave out")
        found = {number: numbered.get(number) or others.get(key) for number, key in names.items()}
        return {number: None if value is None else _position(value) for number, value in found.items()}

    def _lost(self, what: str) -> None:
        data_loss.lost(what, self._options)

    # -- partitions ---------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The entries after ``start`` up to ``end``, cut as a batch is."""
        place = self._place()
        self._columns.require(scan.schemas(place, self._options), self._options.mode == FAILFAST)
        windows = {}
        with opened(place.path) as source:
            with source.read() as txn:
                names = {value["no"]: key for key, value in end.items()}
                before = self._positions(start, names)
                for number, key in names.items():
                    upto, position = _position(end[key]), before[number]
                    if position in (upto, upto._replace(store=None)):
                        continue
                    if (header := headers.load(txn, number)) is None:
                        self._lost(f"stream {shown(_name(key))} is no longer in {place.path}")
                        continue
                    # Checked again: a batch that is run again after a restart was planned long ago.
                    view = _StreamView.of(source, txn, number, header)
                    if position is None:
                        begun = self._begin(view, self._asks_other(start, end[key].get("of")))
                        position = begun._replace(number=number, store=upto.store)
                    checked = self._checked(view, position)
                    if checked is None and upto.after < position.after:  # Spark before 4.2 would go back
                        raise StreamError(f"stream {shown(_name(key))} ends before {position.after}; "
                                          "pyspark 4.2 waits for it")
                    if checked is not None and checked.after < upto.after:
                        windows[view.header.name] = plan.Window(checked.after.next(), upto.after)
            parts = plan.plan(source, windows, self._options, at_rest=False) if windows else []
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The partition's entries. What was trimmed since it was planned is lost data, too."""
        scan.settle()
        columns = in_session(self._columns, self._options)
        for piece in partition.value.pieces:
            rows = 0
            for batch in scan.batches(plan.Part((piece,)), columns.projection, columns.schema, self._options):
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
    def _views(self, new: bool = False) -> Iterator[list[_StreamView]]:
        """The streams chosen, all at one moment, which lasts as long as the block. ``new``: the query begins."""
        options, place = self._options, self._place()
        with opened(place.path) as source:
            names = plan.names_in(source)
            if options.stream is not None and (new or options.fail_on_data_loss):
                names = plan.chosen(names, options)
            names = [name for name in names if plan.matches(name, options)]  # others may come later
            if new:
                data_loss.check(source, names, options)
            with source.read() as txn:
                found = [headers.find(txn, name) for name in names]
                yield [_StreamView.of(source, txn, *located) for located in found if located is not None]


def _shares(sizes: list[int], limit: int) -> list[int]:
    """``limit`` entries shared out over streams by what each has left, as Kafka's source does."""
    total = sum(sizes)
    shares = [limit * size // total for size in sizes]
    spare = limit - sum(shares)
    for at in sorted(range(len(sizes)), key=lambda at: sizes[at] - shares[at], reverse=True)[:spare]:
        shares[at] += 1
    return shares


def _position(value: dict[str, Any]) -> _Position:
    return _Position(parse_id(value["id"]), value["gone"], value["no"], value.get("store"))


def _key(view: _StreamView) -> str:
    return view.header.name.decode("utf-8", "surrogateescape")


def _name(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")
