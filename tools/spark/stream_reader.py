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

With the option ``group`` Spark's commit(end) moves that group of each stream, and comes once the next
batch has been noted down; a kill before it leaves the move to the commit after:

    batch 7   5-0 … 9-0     its offset:  id 9-0  group [name, 2-0, 5-0]     the group is at 2-0 when 7 is planned,
    commit(6)               the group moves to 5-0, or Spark is killed      and at 5-0 if 6 is committed
    batch 8   9-0 …         planned from 2-0 or 5-0, nothing else
    commit(7)               moves the group to 9-0, from 2-0 or 5-0, or GroupMoved
"""

from __future__ import annotations

import json
from collections import Counter as Sums
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ...storage import clocks
from ...storage.errors import GroupMoved, InvalidArgument, StreamError
from ...storage.format import keys
from ...storage.log.transaction import WriteTransaction
from ...storage.trees.rax import Rax, RaxTransaction
from ...stream.columns.arrow import FAILFAST
from ...stream.entries import header as headers
from ...stream.entries import writer
from ...stream.entries.count import Counter
from ...stream.entries.header import StreamHeader, shown
from ...stream.entries.session import Source
from ...stream.entries.writer import StreamWriter
from ...stream.group import deliver
from ...stream.group.state import UNKNOWN, behind, create_group, find_group, locate_group, no_group, require_group
from ...stream.node.arguments import name_bytes
from ...stream.node.stream_id import StreamID, make_id, pack_id, parse_id, unpack_id
from . import data_loss, plan, scan
from .batch_reader import in_session
from .location import LIVE, SHARDS, DataLocation, find, opened
from .options import Options
from .requirements import pyspark_version, require_pyspark
from .writer import LOCK_TIMEOUT

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.query import StreamingQuery

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
    group: tuple[str, ...] = ()  # its name, and where it may stand while the batch that ends here is not committed

    def entry(self, asked: str) -> dict[str, Any]:
        """The position in an offset."""
        group = {"group": list(self.group)} if self.group else {}
        return {"id": str(self.after), "gone": self.gone, "no": self.number, "store": self.store, "of": asked} | group

    def allows(self, at: StreamID) -> bool:
        """Whether the group may stand there: where this query has left it."""
        return at in (self.after, *map(parse_id, self.group[1:]))


class _StreamView(NamedTuple):
    """One stream at one moment."""

    store: str
    number: int
    header: StreamHeader
    counter: Counter
    txn: RaxTransaction
    group: StreamID | None  # where the query's group is; None: there is none

    @classmethod
    def of(cls, source: Source, txn: RaxTransaction, number: int, header: StreamHeader,
           group: str | None = None) -> _StreamView:
        """The stream of this number and header in a store."""
        state = None if group is None else find_group(txn, number, name_bytes(group))
        return cls(source.env.record.uuid.hex(), number, header, Counter(txn, number, header),
                   txn, None if state is None else make_id(*state.last))

    def rank_behind(self, sid: StreamID) -> int:
        """Live entries with an ID not greater than ``sid``."""
        return self.header.length if sid >= self.header.last else self.counter.rank(sid.next())

    def position(self, after: StreamID) -> _Position:
        """Everything up to ``after`` is read."""
        if after > self.header.last:  # a start in the future
            return _Position(after, None, self.number, self.store)
        return _Position(after, self.header.next_ordinal - self.behind(after), self.number, self.store)

    def behind(self, sid: StreamID) -> int:
        """Live entries with an ID greater than ``sid``."""
        return self.header.length - self.rank_behind(sid)

    def node_end(self, after: StreamID, most: int) -> StreamID:
        """The end of the nodes with entries behind ``after`` that take so many bytes, or of one that takes more."""
        nodes = Rax(self.txn, keys.family(self.number, keys.NODE)).iterator()
        has_node = nodes.seek("<=", pack_id(*after.next())) or nodes.first()
        while has_node:
            most -= len(nodes.value())
            has_node = nodes.next()
            if has_node and len(nodes.value()) > most:
                return make_id(*unpack_id(nodes.key())).prev()
        return StreamID.MAX


class _Backlog(NamedTuple):
    """What a stream has for the next batch: ``entries`` of them after ``after``, up to ``upto``."""

    view: _StreamView
    after: StreamID
    upto: StreamID
    entries: int

    def first(self, entries: int) -> StreamID:
        """The end of so many entries."""
        if entries >= self.entries:
            return self.upto
        return self.view.counter.select(self.view.rank_behind(self.after) + entries - 1) if entries else self.after

    @property
    def bytes(self) -> int:
        """About how many bytes they take, as stored."""
        header = self.view.header
        return -(-header.stored_bytes * self.entries // max(1, header.length))


class FollowingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a live store, or a folder to which newer snapshots are added."""

    def __init__(self, options: Options, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        single, many = f"stream={options.stream}", f"streamPattern={options.stream_pattern}"
        self._asked = many if options.stream is None else single
        self._target: dict[int, StreamID] | None = None  # of Trigger.AvailableNow, by the streams' numbers
        self._triggered = clocks.elapsed()
        self._reached: dict[int, StreamID] = {}  # by the streams' numbers: how far the last batch goes

    # -- offsets ------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        """Where a new query begins: where its group is, by default after all existing entries, as with Kafka."""
        with self._views(new=True) as views:
            positions = {_key(view): self._held(view, self._begin(view, True)) for view in views}
        self._create_groups(views, positions)
        return self._offset(positions)

    def _begin(self, view: _StreamView, by_options: bool) -> _Position:
        """Where a stream begins: where its group is, else where the options say, or before its first entry if it has
        come later."""
        if view.group is not None:
            return view.position(view.group)
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
        if self._options.max_bytes_per_trigger is not None:
            return api.ReadMaxBytes(self._options.max_bytes_per_trigger)
        if self._options.min_per_trigger is not None:
            return api.ReadMinRows(self._options.min_per_trigger)
        return api.ReadAllAvailable()

    def latestOffset(self, start: Offset | None = None, limit: api.ReadLimit | None = None) -> Offset:
        """The end of the next batch; ``start`` itself where there is nothing, or not enough."""
        if start is None:  # Spark before 4.2 passes neither
            return self.reportLatestOffset()
        with self._views() as views:
            backlogs: list[_Backlog] = []
            end: dict[str, _Position] = {}
            before = self._positions(start, {view.number: _key(view) for view in views})
            changed = self._asks_other(start, self._asked)
            for view in views:
                known = before[view.number]
                position = known or self._begin(view, changed)
                checked = self._checked(view, position)
                end[_key(view)] = self._held(view, checked or position, known)
                if checked is not None and (self._target is None or view.number in self._target):
                    backlogs.append(self._backlog(view, checked.after))
            backlog_sizes = [backlog.entries for backlog in backlogs]
            total = sum(backlog_sizes)
            if total and not self._too_few(total, limit):  # else ``start``, but for streams gone, renamed or new
                self._triggered = clocks.elapsed()
                for backlog, upto in zip(backlogs, _ends(backlogs, limit), strict=True):
                    if upto > backlog.after:
                        view, group = backlog.view, self._options.group
                        held = () if group is None else (group, str(view.group or backlog.after), str(backlog.after))
                        end[_key(view)] = view.position(upto)._replace(group=held)
        self._create_groups(views, end)
        if self._target is not None and not total:  # the last call of Trigger.AvailableNow: Spark commits no more
            self.commit(start)
        self._reached = {position.number: position.after for position in end.values()}
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
        """Where the streams end, and how many entries are ``behind`` the last batch, for the query's progress report.

        lag() finds them there: a source in Python has no metrics() in Spark 4.3.
        """
        with self._views() as views:
            offset = self._offset({_key(view): view.position(make_id(*view.header.last)) for view in views})
            for view in views:
                if view.number in self._reached:
                    offset[_key(view)]["behind"] = view.behind(self._reached[view.number])
            return offset

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

    # -- the group ----------------------------------------------------------------------

    def _held(self, view: _StreamView, position: _Position, known: _Position | None = None) -> _Position:
        """A stream's position with where its group may stand. GroupMoved, NoGroup, if it is not where it was left.

        ``known``: the position by the offset, before it was checked.
        """
        name = self._options.group
        if name is None:
            return position._replace(group=())
        is_same = known is not None and (known.number, known.store or view.store) == (view.number, view.store)
        if known is not None and is_same and (view.group is not None or known.group[:1] == (name,)):
            left = known if known.group[:1] == (name,) else known._replace(group=())
            if view.group is None:
                raise no_group(view.txn, view.number, view.header.name, name_bytes(name))
            if not left.allows(view.group):
                raise self._moved(view.header, view.group, left)
            if left.group:
                return position._replace(group=left.group)
        return position._replace(group=(name, str(view.group or position.after), str(position.after)))

    def _moved(self, header: StreamHeader, at: StreamID, left: _Position, back: str | None = None) -> GroupMoved:
        stream, name = shown(header.name), shown(self._options.group or "")
        places = back or " or ".join(dict.fromkeys((*left.group[1:], str(left.after))))
        return GroupMoved(
            f"group {name} of stream {stream} in {self._options.path} is at {at}, and this query left it at {places}: "
            "a worker, another query or set_id() has moved it. Give each query a group of its own; "
            f"store.stream({stream}).group({name}).set_id('{back or left.after}') lets this one go on"
        )

    def _create_groups(self, views: Sequence[_StreamView], positions: Mapping[str, _Position]) -> None:
        """Create the group of each stream that has none yet, where the query begins."""
        missing = [positions[_key(view)] for view in views if view.group is None]
        if self._options.group is None or not missing:
            return
        name = name_bytes(self._options.group)

        def create(txn: WriteTransaction) -> None:
            for position in missing:
                stream = _numbered(txn, position)
                if stream is not None and locate_group(txn, stream, name) is None:
                    at = parse_id(position.group[1])
                    create_group(txn, stream, name, at, deliver.estimate(stream.header, at))

        self._write(create)

    def commit(self, end: Offset) -> None:
        """Move the group of each stream to the end of a batch that is done, all in one commit.

        GroupMoved, with nothing moved, if one stands neither there nor where this query has left it; NoGroup;
        LockTimeout.
        """
        group_name = self._options.group
        positions = [place for place in map(_position, end.values()) if place.group[:1] == (group_name,)]
        if group_name is None or not positions:
            return
        name = name_bytes(group_name)

        def move(txn: WriteTransaction) -> None:
            found = []
            for position in positions:
                stream = _numbered(txn, position)
                if stream is None:  # it is gone: the next batch reports it
                    continue
                group = require_group(txn, stream, stream.header.name, name)
                at = make_id(*group.last)
                if not position.allows(at):
                    raise self._moved(stream.header, at, position)
                if at != position.after:
                    found.append((stream, group, position.after))
            for stream, group, upto in found:
                header = stream.header
                counter = Counter(txn, stream.number, header)
                before, upon = counter.rank(behind(group.last)), counter.rank(behind(upto))
                group.changed(txn)
                if upon < before:
                    group.entries_read = UNKNOWN
                elif upon > before:  # as if it had read them: by the first one Redis knows how many came before
                    first = counter.select(before)
                    deliver.advance(group, header, 1, first, [first])
                deliver.advance(group, header, max(0, upon - before - 1), upto, [upto])
                group.moves += 1

        self._write(move)

    def _write(self, operation: Callable[[WriteTransaction], None]) -> None:
        with opened(self._place().path, LOCK_TIMEOUT) as source:
            source.submit(operation)

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
                        by_options = self._asks_other(start, end[key].get("of"))
                        begun = (view.position(parse_id(upto.group[-1])) if upto.group
                                 else self._begin(view, by_options))
                        position = begun._replace(number=number, store=upto.store)
                    checked = self._checked(view, position)
                    if checked is None and upto.after < position.after:  # Spark before 4.2 would go back
                        raise StreamError(f"stream {shown(_name(key))} ends before {position.after}; "
                                          "pyspark 4.2 waits for it")
                    if checked is not None and checked.after < upto.after:
                        begin = upto.group[-1] if upto.group and view.store == upto.store else str(checked.after)
                        if begin != str(checked.after):  # Spark asks again where the first batch begins: at the group
                            raise self._moved(header, checked.after, upto, begin)
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
        if self._options.group is not None and place.kind != LIVE:
            raise InvalidArgument(f"option group: {place.path} is a {place.kind}, or on a read-only medium; a group is "
                                  "moved in a live store. Leave the option out, or name the store")
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
            with source.read() as txn:
                found = [headers.find(txn, name) for name in names]
                views = [_StreamView.of(source, txn, *located, options.group) for located in found if located]
                if new:
                    data_loss.check(source, [view.header.name for view in views if view.group is None], options)
                yield views


def lag(query: StreamingQuery) -> dict[str, int]:
    """See raxlog.spark.lag()."""
    require_pyspark("raxlog.spark.lag()", 4, 2)
    entries: Sums[str] = Sums()
    for source in (query.lastProgress or {"sources": ()})["sources"]:
        latest = source["latestOffset"]
        latest = json.loads(latest) if isinstance(latest, str) else latest
        for name, stream in latest.items() if isinstance(latest, dict) else ():
            if isinstance(stream, dict) and "behind" in stream:
                entries[name] += stream["behind"]
    return dict(entries)


def _numbered(txn: WriteTransaction, position: _Position) -> StreamWriter | None:
    """The stream of a position, whatever its name is now; None if it is gone, or of another store."""
    header = headers.load(txn, position.number)
    if header is None or position.store not in (None, txn.env.record.uuid.hex()):
        return None
    stream = writer.locate(txn, header.name)
    return stream if stream is not None and stream.number == position.number else None


def _ends(backlogs: list[_Backlog], limit: api.ReadLimit | None) -> list[StreamID]:
    """Up to where each stream is read: to its end, or as far as its share of the limit goes."""
    if isinstance(limit, api.ReadMaxBytes):  # whole nodes, one at least
        shares = _shares([backlog.bytes for backlog in backlogs], limit.max_bytes)
        return [min(backlog.upto, backlog.view.node_end(backlog.after, share)) if backlog.entries else backlog.upto
                for backlog, share in zip(backlogs, shares, strict=True)]
    sizes = [backlog.entries for backlog in backlogs]
    if isinstance(limit, api.ReadMaxRows) and sum(sizes) > limit.max_rows:
        sizes = _shares(sizes, limit.max_rows)
    return [backlog.first(share) for backlog, share in zip(backlogs, sizes, strict=True)]


def _shares(sizes: list[int], limit: int) -> list[int]:
    """``limit`` entries, or bytes, shared out over streams by what each has left, as Kafka's source does."""
    total = sum(sizes)
    shares = [limit * size // total for size in sizes]
    spare = limit - sum(shares)
    for at in sorted(range(len(sizes)), key=lambda at: sizes[at] - shares[at], reverse=True)[:spare]:
        shares[at] += 1
    return shares


def _position(value: dict[str, Any]) -> _Position:
    return _Position(parse_id(value["id"]), value["gone"], value["no"], value.get("store"),
                     tuple(value.get("group", ())))


def _key(view: _StreamView) -> str:
    return view.header.name.decode("utf-8", "surrogateescape")


def _name(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")
