"""Plans: which task reads which ranges, so that all have about the same number of entries.

    stream a  ━━━━━━━━━━━━━━┿━━━━━━━━━━━━━┿━━━━━━━━━━━━     three parts of a third each
    stream b  ━━━━                                          one part together with c
    stream c  ━━━━━

A Python task costs some 50 ms whatever it reads, so a part has 250,000 entries or more unless
minPartitions or maxRecordsPerPartition asks for smaller ones. Planning reads no entries: bounds
and cuts come from the ordinals (cutting.py), of shards from the manifest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...index.glob import glob_matches_bytes
from ...recovery.manifest import Manifest, ShardFile, StreamSummary
from ...storage import layout
from ...storage.errors import NoStream
from ...storage.rax import Rax, RaxTransaction
from ...stream import header as headers
from ...stream.header import shown
from ...stream.id import StreamID
from ...stream.names import name_bytes
from ...stream.source import Source
from . import cutting
from .options import Options

LEAST_ENTRIES = 250_000  # of a part, where nobody asks for smaller ones


@dataclass(frozen=True)
class Piece:
    """The entries of one stream from ``start`` to ``end``, both included, at one place.

    Of shards, whose ordinals no plan can see, it is the ``entries`` that follow the first ``skip``
    of that range; in a window of IDs, where ``exact`` is false, all of it, and ``entries`` a guess.
    """

    path: str
    stream: bytes
    start: StreamID
    end: StreamID
    entries: int
    skip: int = 0
    shards: tuple[ShardFile, ...] = ()
    exact: bool = True


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
    """A range of IDs asked for; None is without a bound."""

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
        return [key for key, _ in Rax(txn, layout.NAMES).items()]


def plan(source: Source, windows: dict[bytes, Window], options: Options) -> list[Part]:
    """Cut ranges of streams into parts of even size. NoStream, CorruptionError."""
    with source.read() as txn:
        found: list[tuple[int, headers.StreamHeader, Window, int]] = []
        for name, window in windows.items():
            number, header = _located(txn, name, source)
            before, upto = cutting.bounds(txn, number, header, window.start, window.end)
            if upto > before:
                found.append((number, header, window, upto - before))
        size = part_size(sum(entries for *_, entries in found), options)
        pieces: list[Piece] = []
        for number, header, window, entries in found:
            parts = _parts(entries, size, options)
            slack = 0 if options.max_records else int(entries // parts * cutting.TOLERANCE)
            pieces += [
                Piece(str(source.path), header.name, *cut)
                for cut in cutting.cut(txn, number, header, window.start, window.end, parts, slack)
            ]
    return packed(pieces, size)


def _located(txn: RaxTransaction, name: bytes, source: Source) -> tuple[int, headers.StreamHeader]:
    located = headers.find(txn, name)
    if located is None:
        raise NoStream(f"there is no stream {shown(name)} in {source.path} (any more)")
    return located


def part_size(total: int, options: Options) -> int:
    """How many entries a part should have."""
    parts = max(1, total // LEAST_ENTRIES, options.min_partitions or 1)
    size = -(-total // parts) or 1
    return size if options.max_records is None else min(size, options.max_records)


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

    The manifest names the ID of every so-manieth entry. A part begins at one of those, less some
    entries to skip, so that sizes are exact; inside a window of IDs, whose bounds lie between
    two of them, parts begin at those themselves. They are never smaller than that distance.
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
    """First ID, last ID, entries, and entries to skip behind the first, of each piece."""
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
