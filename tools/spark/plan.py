"""Plans: which task reads which ranges, so that all have about the same number of entries.

    stream a  ━━━━━━━━━━━━━━┿━━━━━━━━━━━━━┿━━━━━━━━━━━━     three parts of a third each
    stream b  ━━━━                                          one part together with c
    stream c  ━━━━━

A Python task costs some 20 ms whatever it reads, so a part has 250,000 entries or more unless
minPartitions or maxRecordsPerPartition asks for smaller ones. Planning reads no entries:

    whole streams of a snapshot    from the lengths in its manifest; no data is opened
    a window of IDs of it          its two bounds are counted from the ordinals
    a live store                   and its cuts are looked up there, for it may be trimmed
    shards                         from the points in the manifest

Of a store that does not change a piece is a range of ranks, whose IDs the task looks up (resolved()).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

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
from .options import Options

MOST_PARTS = 100_000
LEAST_ENTRIES = 250_000  # of a part, unless options ask for smaller ones


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
    if options.stream is not None:
        wanted = name_bytes(options.stream)
        if wanted not in names:
            raise NoStream(f"there is no stream {shown(wanted)} in {options.path}. {_those(names)}")
        return [wanted]
    found = [name for name in names if matches(name, options)]
    if not found:
        raise NoStream(f"no stream in {options.path} matches {options.stream_pattern!r}. {_those(names)}")
    return found


def matches(name: bytes, options: Options) -> bool:
    """Whether a stream's name matches the pattern asked for, by Redis' rules."""
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
        size = part_size(sum(entries for *_, entries in found), options)
        pieces: list[Piece] = []
        for counter, header, window, before, entries in found:
            whole = Piece(
                str(source.env.path), header.name, max(window.start, make_id(*header.first)),
                min(window.end, make_id(*header.last)), entries, before,
            )
            cut = _cut(whole, size, options)
            pieces += cut if at_rest else [_resolved(counter, header, piece) for piece in cut]
    return packed(pieces, size)


def plan_whole(snapshot: Manifest, path: str, windows: dict[bytes, Window], options: Options) -> list[Part] | None:
    """plan() of whole streams of a snapshot, from its manifest alone; None where a window leaves entries out."""
    found = []
    for name, window in windows.items():
        stream = snapshot.stream(name)
        if stream is None:
            return None
        if stream.first is not None and stream.last is not None:
            if window.start > stream.first or window.end < stream.last:
                return None
            found.append(Piece(path, name, stream.first, stream.last, stream.length))
    size = part_size(sum(piece.entries for piece in found), options)
    return packed([piece for whole in found for piece in _cut(whole, size, options)], size)


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


def _cut(whole: Piece, size: int, options: Options) -> list[Piece]:
    """Pieces of even size, by rank; ``whole.skip`` entries of the stream precede the first."""
    parts = min(_parts(whole.entries, size, options), whole.entries)
    if parts <= 1:
        return [replace(whole, skip=0)]
    borders = [whole.skip + whole.entries * i // parts for i in range(parts + 1)]
    return [replace(whole, entries=upto - at, skip=at, by_rank=True) for at, upto in pairwise(borders)]


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


def part_size(total: int, options: Options) -> int:
    """How many entries a part should have."""
    parts = max(1, total // LEAST_ENTRIES, options.min_partitions or 1)
    size = -(-total // parts) or 1
    size = size if options.max_records is None else min(size, options.max_records)
    if total > MOST_PARTS * size:
        raise InvalidArgument(
            f"minPartitions and maxRecordsPerPartition would cut {total} entries into {-(-total // size)} partitions, "
            f"more than Spark can plan; at most {MOST_PARTS} are made. Ask for larger ones."
        )
    return size


def _parts(entries: int, size: int, options: Options) -> int:
    if options.max_records is not None:
        return -(-entries // size)
    return max(1, round(entries / size))


def packed(pieces: Sequence[Piece], size: int) -> list[Part]:
    """Pieces put together, in their order, as long as a part stays within ``size``."""
    parts: list[list[Piece]] = []
    room = 0
    for piece in pieces:
        if not parts or piece.entries > room:
            parts.append([])
            room = size
        parts[-1].append(piece)
        room -= piece.entries
    return [Part(tuple(held)) for held in parts]


def plan_shards(shards: Manifest, url: str, windows: dict[bytes, Window], options: Options) -> list[Part]:
    """Cut the streams of a set of shards into parts; no shard is opened.

    The manifest holds the ID of every n-th entry, a point. A part begins at a point, less some entries
    to skip, so that sizes are exact; in a window of IDs, whose bounds are between two points, parts begin
    at points. A part is never smaller than the distance of two points.
    """
    found = []
    for stream in shards.streams:
        window = windows.get(stream.name)
        if window is None or stream.first is None or stream.last is None:
            continue
        low, high = max(window.start, stream.first), min(window.end, stream.last)
        if low <= high:
            found.append((stream, low, high, (low, high) == (stream.first, stream.last)))
    size = part_size(sum(_about(*row) for row in found), options)
    pieces = []
    for stream, low, high, whole in found:
        files = [shard for shard in shards.shards if shard.stream == stream.number]
        for start, end, entries, skip in _shard_ranges(stream, low, high, whole, size, options):
            needed = tuple(shard for shard in files if shard.last >= start and shard.first <= end)
            pieces.append(Piece(url, stream.name, start, end, entries, skip, needed, whole))
    return packed(pieces, size)


def _about(stream: StreamSummary, low: StreamID, high: StreamID, whole: bool) -> int:
    if whole:
        return stream.length
    inside = sum(low <= point <= high for point in stream.points)
    return min(stream.length, (inside + 1) * stream.every)


def _shard_ranges(stream: StreamSummary, low: StreamID, high: StreamID, whole: bool, size: int,
                  options: Options) -> Iterator[tuple[StreamID, StreamID, int, int]]:
    """First ID, last ID, entries, and entries to skip after the first, of each piece."""
    entries = _about(stream, low, high, whole)
    parts = _parts(entries, size if options.max_records else max(size, stream.every), options)
    if whole:
        assert stream.first is not None
        known = [stream.first, *stream.points]
        borders = [entries * i // parts for i in range(parts + 1)]
        for before, upto in pairwise(borders):
            place, skip = divmod(before, stream.every)
            last = -(-upto // stream.every)
            yield known[place], known[last] if last < len(known) else high, upto - before, skip
        return
    points = [point for point in stream.points if low < point <= high]
    parts = min(parts, len(points) + 1)
    starts = [low, *(points[len(points) * i // parts] for i in range(1, parts))]
    for start, behind in zip(starts, [*starts[1:], None], strict=True):
        yield start, high if behind is None else behind.prev(), -(-entries // parts), 0
