"""A scan: the parts of a plan, and what one task does with its part. Needs no pyspark.

    part ──> piece ──> nodes of a snapshot (mapped, without lock), or of shards (fetched, cached)
                          └──> columns of the projection ──> RecordBatch
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from ...recovery.snapshot.location import location_of
from ...recovery.snapshot.shard_cache import ShardCache
from ...recovery.snapshot.shards import open_shard
from ...stream.columns import arrow
from ...stream.columns.scan import Range, StoredNode, read_ranges
from ...stream.entries import header as headers
from . import data_loss, live_snapshot, plan
from .location import SHARDS, DataLocation, opened, require_data
from .options import Options
from .plan import Part, Piece, Window

if TYPE_CHECKING:
    import pyarrow as pa

    from ...stream.columns.projection import Projection

CACHE_BYTES = 8 << 30

_settled = False


def planned(place: DataLocation, options: Options, window: Window,
            only: Callable[[bytes], bool] | None = None) -> list[Part]:
    """The parts of a scan. NoStream where the options match no stream; StreamError, see data_loss.py.

    ``only`` says which streams can matter, of those chosen; None: all of them.
    """
    if place.kind == SHARDS and place.manifest is not None:
        names = plan.chosen([stream._raw for stream in place.manifest.streams], options)
        data_loss.check_summaries(place.manifest.streams, names, options)
        return plan.plan_shards(place.manifest, place.path, _windows(names, window, only), options)
    if place.manifest is not None and place.manifest.streams and options.since is None:
        require_data(place)
        names = plan.chosen([stream._raw for stream in place.manifest.streams], options)
        parts = plan.plan_whole(place.manifest, place.path, _windows(names, window, only), options)
        if parts is not None:
            return parts
    with opened(place.path) as source:
        names = plan.chosen(plan.names_in(source), options)
        data_loss.check(source, names, options)
        return plan.plan(source, _windows(names, window, only), options, at_rest=True)


def streams_in(place: DataLocation) -> dict[bytes, dict[str, str]]:
    """The names of all streams at a location, with the schema that each has: {} for none."""
    if place.manifest is not None and place.manifest.streams:
        return {stream._raw: stream.schema for stream in place.manifest.streams}
    with opened(place.path) as source, source.read() as txn:
        found = {name: headers.find(txn, name) for name in plan.names_in(source)}
    return {name: row[1].schema.fields if row and row[1].schema else {} for name, row in found.items()}


def schemas(place: DataLocation, options: Options) -> dict[bytes, dict[str, str]]:
    """The same of the streams that the options choose; {} where they choose none so far."""
    return {name: fields for name, fields in streams_in(place).items() if plan.matches(name, options)}


def resolved(parts: list[Part]) -> list[Part]:
    """The parts, each piece with the IDs of its own first and last entry, to be printed."""
    path = next((piece.path for part in parts for piece in part.pieces if piece.by_rank), None)
    if path is None:
        return parts
    with opened(path) as source:
        return [Part(tuple(plan.resolved(source, piece) for piece in part.pieces)) for part in parts]


def settle() -> None:
    """Exempt what is loaded from collection, and collect later objects less often; once in a task's process.

    PySpark collects after each task: a visit of all that is loaded, 15 to 50 ms. (So is gc.get_freeze_count().)
    """
    global _settled  # noqa: PLW0603 - it is of the process
    if not _settled:
        _settled = True
        gc.freeze()
        gc.set_threshold(50_000)


def _windows(names: list[bytes], window: Window, only: Callable[[bytes], bool] | None) -> dict[bytes, Window]:
    return {name: window for name in names if only is None or only(name)}


def batches(part: Part, projection: Projection, schema: pa.Schema,
            options: Options) -> Generator[pa.RecordBatch, None, None]:
    """The entries of a part. Its files stay open until the last batch has been taken."""
    import pyarrow as pa  # noqa: PLC0415

    found: Iterable[pa.RecordBatch]
    if part.pieces and part.pieces[0].shards:
        found = chain.from_iterable(_shard_batches(piece, projection, options) for piece in part.pieces)
    else:
        found = _batches(part.pieces, projection, options)
    for batch in found:
        yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _batches(pieces: Sequence[Piece], projection: Projection, options: Options) -> Iterator[pa.RecordBatch]:
    """The entries of pieces of one store, in batches that they share."""
    if not pieces:
        return
    with opened(pieces[0].path) as source:
        live_snapshot.touch(source.env.path)
        ranges = (plan.resolved(source, piece) for piece in pieces)
        nodes = read_ranges(source, [Range(piece.stream, piece.start, piece.end, piece.number) for piece in ranges])
        yield from arrow.of_ranges(nodes, projection, mode=options.mode, batch_size=options.batch_rows,
                                   skip_damaged=options.mode == arrow.PERMISSIVE)


def _shard_batches(piece: Piece, projection: Projection, options: Options) -> Iterator[pa.RecordBatch]:
    """The entries of a piece in its shards, which were verified whole: damage is never skipped."""
    skip, remaining = piece.skip, piece.entries
    for batch in arrow.batches(
        _shard_nodes(piece, options), projection, start=piece.start, end=piece.end, mode=options.mode,
        stream=piece.stream.decode("utf-8", "backslashreplace"), batch_size=options.batch_rows,
    ):
        if not piece.exact:
            yield batch
            continue
        if skip < batch.num_rows:
            kept = batch.slice(skip, remaining)
            remaining -= kept.num_rows
            yield kept
        if not remaining:
            return
        skip = max(0, skip - batch.num_rows)


def _shard_nodes(piece: Piece, options: Options) -> Iterator[StoredNode]:
    place = location_of(piece.path)
    cache = ShardCache(options.cache_dir or live_snapshot.default_folder("shards"), options.cache_bytes or CACHE_BYTES)
    for shard in piece.shards:
        with open_shard(place, shard, cache) as reader:
            yield from reader.nodes(piece.start, piece.end)
