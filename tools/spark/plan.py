"""Plans: which task reads which ranges, so that all have about as many bytes, or entries.

    stream a  ━━━━━━━━━━━━━━┿━━━━━━━━━━━━━┿━━━━━━━━━━━━     three parts of a third each
    stream b  ━━━━                                          one part together with c
    stream c  ━━━━━

A Python task costs some 20 ms whatever it reads, so a part has 250,000 entries or 32 MiB or more, and all have
as many bytes, by the mean entry of each stream. Where minPartitions or maxRecordsPerPartition asks for smaller ones,
all have as many entries, to one. Planning reads no entries:

    whole streams of a snapshot    from the lengths in its manifest; no data is opened
    a window of IDs of it          its two bounds are counted from the ordinals
    a live store                   and its cuts are looked up there, for it may be trimmed
    shards                         from the points in the manifest

Of a store that does not change a piece is a range of ranks, whose IDs the task looks up (resolved()).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...index.pubsub.glob import glob_matches_bytes
from ...recovery.snapshot.manifest import Manifest, ShardFile, StreamSummary
from ...storage.errors import InvalidArgument, NoStream
from ...storage.format import keys
from ...storage.trees.rax import Rax, RaxTransaction
from ...stream.entries import header as headers
from ...stream.entries.count import Counter
from ...stream.entries.header import shown
from ...stream.entries.session import Source
from ...stream.node.arguments import name_bytes
from ...stream.node.stream_id import StreamID, make_id
from ..output import did_you_mean
from .options import Options

MOST_PARTS = 100_000
LEAST_ENTRIES, LEAST_BYTES = 250_000, 32 << 20  # of a part, either of them, unless options ask for smaller ones


@dataclass(frozen=True)
class Piece:
    """The entries of one stream from ``start`` to ``end``, both included, at one path.

    With ``by_rank`` it is the ``entries`` of the range that follow the stream's first ``skip``. Of shards,
    which are planned without ordinals, it is those that follow the first ``skip`` of the range; in a window
    of IDs, where ``exact`` is false, all of it, and ``entries`` is an estimate.
    """

    path: str
    stream: bytes
    start: StreamID
    end: StreamID
    entries: int
    skip: int = 0
    shards: tuple[ShardFile, ...] = ()
    exact: bool = True
    by_rank: bool = False  # resolved() looks up its first and last ID
    number: int | None = None  # the stream's, in a store


@dataclass(frozen=True)
class Part:
    """What one task reads, in this order."""

    pieces: tuple[Piece, ...]

    @property
    def entries(self) -> int:
        """How many entries the task will read."""
        return sum(piece.entries for piece in self.pieces)


@dataclass(frozen=True)
class Window:
    """A range of IDs."""

    start: StreamID = StreamID.MIN
    end: StreamID = StreamID.MAX

    @classmethod
    def of(cls, options: Options) -> Window:
        """The range that the options name."""
        return cls(options.start or StreamID.MIN, options.end or StreamID.MAX)


def chosen(names: Sequence[bytes], options: Options) -> list[bytes]:
    """The streams among ``names`` that the options ask for. NoStream where there is none."""
    found = [name for name in names if matches(name, options)]
    if not found:
        what = f"no stream in {options.path} matches {options.stream_pattern!r}."
        if options.stream is not None:
            near = did_you_mean(options.stream, (name.decode("utf-8", "replace") for name in names)) or "."
            what = f"there is no stream {shown(name_bytes(options.stream))} in {options.path}{near}"
        raise NoStream(f"{what} {_those(names)}")
    return found


def matches(name: bytes, options: Options) -> bool:
    """Whether the options ask for the stream of this name: by it, or by a pattern and Redis' rules."""
    if options.stream is not None:
        return name == name_bytes(options.stream)
    return glob_matches_bytes(name_bytes(options.stream_pattern), name)


def _those(names: Sequence[bytes]) -> str:
    if not names:
        return "It has no streams."
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"It has: {', '.join(map(shown, names[:20]))}{more}."


def names_in(source: Source) -> list[bytes]:
    """The names of all streams of a store."""
    with source.read() as txn:
        return [key for key, _ in Rax(txn, keys.NAMES).items()]


def plan(source: Source, windows: dict[bytes, Window], options: Options, at_rest: bool) -> list[Part]:
    """Cut ranges of streams into parts of exact size. NoStream, CorruptionError.

    ``at_rest``: the store does not change, so pieces are by rank; else each has its IDs, a look-up a cut.
    """
    with source.read() as txn:
        found: list[tuple[Counter, headers.StreamHeader, Window, int, int]] = []
        for name, window in windows.items():
            number, header = _located(txn, name, source)
            counter = Counter(txn, number, header)
            before, upto = _bounds(counter, header, window)
            if upto > before:
                found.append((counter, header, window, before, upto - before))
        wholes = [
            Piece(
                str(source.env.path), header.name, max(window.start, make_id(*header.first)),
                min(window.end, make_id(*header.last)), entries, before,
            ) for counter, header, window, before, entries in found
        ]
        sizes = [header.stored_bytes * entries // header.length for _, header, _, _, entries in found]
        parts = divided(wholes, sizes, options, _ranks)
        if at_rest:
            return parts
        counters = {header.name: (counter, header) for counter, header, *_ in found}
        return [Part(tuple(_resolved(*counters[piece.stream], piece) for piece in part.pieces)) for part in parts]


def plan_whole(snapshot: Manifest, path: str, windows: dict[bytes, Window], options: Options) -> list[Part] | None:
    """plan() of whole streams of a snapshot, from its manifest alone; None where a window leaves entries out."""
    found, sizes = [], []
    streams = {stream._raw: stream for stream in snapshot.streams}
    for name, window in windows.items():
        stream = streams.get(name)
        if stream is None:
            return None
        if stream.first is not None and stream.last is not None:
            if window.start > stream.first or window.end < stream.last:
                return None
            found.append(Piece(path, name, stream.first, stream.last, stream.length, number=stream.number))
            sizes.append(stream.bytes)
    return divided(found, sizes, options, _ranks)


def resolved(source: Source, piece: Piece) -> Piece:
    """The piece with the IDs of its first and last entry, looked up if it is by rank. NoStream, CorruptionError."""
    if not piece.by_rank:
        return piece
    with source.read() as txn:
        number, header = _located(txn, piece.stream, source)
        return _resolved(Counter(txn, number, header), header, piece)


def _resolved(counter: Counter, header: headers.StreamHeader, piece: Piece) -> Piece:
    """The ranges of neighbours touch, so that damage between them is in one of them."""
    if not piece.by_rank:
        return piece
    start, end, behind = piece.start, piece.end, piece.skip + piece.entries
    if piece.skip:
        start = max(start, counter.select(piece.skip))
    if behind < header.length:
        end = min(end, counter.select(behind).prev())
    return replace(piece, start=start, end=end, skip=0, by_rank=False)


def _ranks(whole: Piece, low: int, upto: int) -> Piece:
    """The entries of a piece from the ``low``-th up to the one before the ``upto``-th."""
    if (low, upto) == (0, whole.entries):
        return replace(whole, skip=0)
    return replace(whole, entries=upto - low, skip=whole.skip + low, by_rank=True)


def _bounds(counter: Counter, header: headers.StreamHeader, window: Window) -> tuple[int, int]:
    """How many live entries precede the window, and how many precede or are in it."""
    if window.start > min(window.end, header.last) or not header.length:
        return 0, 0
    upto = header.length if window.end >= header.last else counter.rank(window.end.next())
    return min(counter.rank(window.start), upto), upto


def _located(txn: RaxTransaction, name: bytes, source: Source) -> tuple[int, headers.StreamHeader]:
    located = headers.find(txn, name)
    if located is None:
        raise NoStream(f"there is no stream {shown(name)} in {source.env.path} (any more)")
    return located


def _count(total: int, size: int, options: Options) -> int:
    """How many parts so many entries and bytes are cut into: as few as may be, or more where options ask for it."""
    parts = min(MOST_PARTS, max(1, total // LEAST_ENTRIES, size // LEAST_BYTES))
    parts = max(parts, min(options.min_partitions or 1, total), -(-total // (options.max_records or total or 1)))
    if parts > MOST_PARTS:
        raise InvalidArgument(
            f"minPartitions and maxRecordsPerPartition would cut {total} entries into {parts} partitions, "
            f"more than Spark can plan; at most {MOST_PARTS} are made. Ask for larger ones."
        )
    return parts


def divided(wholes: Sequence[Piece], sizes: Sequence[int], options: Options,
            cut: Callable[[Piece, int, int], Piece | None]) -> list[Part]:
    """Parts of as many bytes, of pieces one after the other that have these ``sizes``; where options ask for smaller
    parts, they are even to one entry instead. ``cut`` makes a piece of a part of one.

    A part has no piece where ``cut`` returns None: it is left out then.
    """
    parts = _count(sum(whole.entries for whole in wholes), sum(sizes), options)
    if options.min_partitions or options.max_records:
        sizes = [whole.entries for whole in wholes]
    total = sum(sizes)
    made: list[Part] = []
    pieces: list[Piece] = []
    number, before = 1, 0  # of the part under way, and the size of all before the piece
    for whole, size in zip(wholes, sizes, strict=True):
        low = 0
        while low < whole.entries:
            edge = total * number // parts - before
            upto = whole.entries if edge >= size else max(low, edge * whole.entries // size)
            piece = cut(whole, low, upto) if upto > low else None
            pieces += [] if piece is None else [piece]
            low = upto
            if edge <= size:
                made += [Part(tuple(pieces))] if pieces else []
                pieces = []
                number += 1
        before += size
    return [*made, Part(tuple(pieces))] if pieces else made


def plan_shards(shards: Manifest, url: str, windows: dict[bytes, Window], options: Options) -> list[Part]:
    """Cut the streams of a set of shards into parts; no shard is opened.

    The manifest holds the ID of every n-th entry, a point. A part begins at a point, less some entries
    to skip, so that sizes are exact; in a window of IDs, whose bounds are between two points, parts begin
    at points, so one is never smaller than the distance of two points.
    """
    found: dict[bytes, tuple[int, list[StreamID], tuple[ShardFile, ...]]] = {}
    wholes, sizes = [], []
    for stream in shards.streams:
        window = windows.get(stream._raw)
        if window is None or stream.first is None or stream.last is None:
            continue
        low, high = max(window.start, stream.first), min(window.end, stream.last)
        if low <= high:
            files = tuple(shard for shard in shards.shards if shard.stream == stream.number)
            whole = (low, high) == (stream.first, stream.last)
            wholes.append(Piece(url, stream._raw, low, high, _about(stream, low, high, whole), 0, files, whole))
            sizes.append(stream.bytes * wholes[-1].entries // stream.length)
            found[stream._raw] = stream.every, [low, *(point for point in stream.points if low < point <= high)], files

    def cut(whole: Piece, low: int, upto: int) -> Piece | None:
        every, starts, files = found[whole.stream]
        skip = 0
        if whole.exact:
            place, skip = divmod(low, every)
            behind = -(-upto // every)
            end = starts[behind] if behind < len(starts) else whole.end
        else:
            place = min(low // every, len(starts))
            behind = len(starts) if upto == whole.entries else min(upto // every, len(starts))
            if place == behind:
                return None
            end = starts[behind].prev() if behind < len(starts) else whole.end
        start = starts[place]
        needed = tuple(shard for shard in files if shard.last >= start and shard.first <= end)
        if not needed:  # a window between the last entry of a shard and the first of the next
            return None
        return Piece(whole.path, whole.stream, start, end, upto - low, skip, needed, whole.exact)

    return divided(wholes, sizes, options, cut)


def _about(stream: StreamSummary, low: StreamID, high: StreamID, whole: bool) -> int:
    if whole:
        return stream.length
    inside = sum(low <= point <= high for point in stream.points)
    return min(stream.length, (inside + 1) * stream.every)
