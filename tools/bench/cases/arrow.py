"""Decoding into Arrow: nodes in memory, a store, and what Parquet read by pyarrow itself costs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgpack
import raxlog
from raxlog.stream.columns.arrow import batches, load, of_ranges, projection
from raxlog.stream.columns.scan import Range, read_ranges
from raxlog.stream.node.stream_id import StreamID
from raxlog.tools.spark.location import opened

from ..rounds import Figure, Rounds, rate_of

SALES = {"id_ms": "bigint", "id_seq": "bigint", "item": "string", "qty": "bigint", "price": "double"}
EIGHT = {"no": "bigint", "item": "string", "qty": "bigint", "price": "decimal(10,2)", "temp": "double",
         "at": "timestamp", "site": "string", "ok": "boolean"}
SMALL = 3_000


def arrow(rounds: Rounds) -> list[Figure]:
    """Entries a second of one core, in CPU time: {"item": "book", "qty": 3, "price": "12.5"} each."""
    try:
        load()
    except raxlog.NotInstalled as error:
        print(f"… left out: {error}", file=sys.stderr)
        return []
    folder, entries = rounds.folder, rounds.entries
    from pyarrow import parquet  # noqa: PLC0415 - an extra

    with raxlog.open(folder / "arrow.rax", durability="relaxed") as store:
        stream = store.stream("sales")
        for at in range(0, entries, 10_000):
            stream.extend([
                {"item": "book", "qty": number % 7, "price": f"{number % 1000 / 10 + 1:.1f}"}
                for number in range(at, min(at + 10_000, entries))
            ])  # fmt: skip
        nodes = list(stream.nodes())
        files = {}
        for name, schema in (("columns", SALES), ("map", None)):
            files[name] = folder / f"sales-{name}.parquet"
            parquet.write_table(stream.to_arrow(schema=schema).read_all(), files[name], compression="zstd")

        def parquet_rows(name: str) -> int:
            with parquet.ParquetFile(files[name]) as file:
                return _rows(file.iter_batches(batch_size=65_536, use_threads=False))

        contenders: dict[str, Callable[[], int]] = {
            "range() to entries": lambda: sum(1 for _ in stream.range()),
            "nodes to 5 columns": lambda: _rows(batches(nodes, projection(SALES))),
            "nodes to a map": lambda: _rows(batches(nodes, projection())),
            "nodes to 1 column": lambda: _rows(batches(nodes, projection({"qty": "bigint"}))),
            "store to 5 columns": lambda: _rows(stream.to_arrow(schema=SALES)),
            "store to a map": lambda: _rows(stream.to_arrow()),
            "Parquet (zstd), 5 columns": lambda: parquet_rows("columns"),
            "Parquet (zstd), a map": lambda: parquet_rows("map"),
        }
        figures = rounds.contest("decode to Arrow, CPU time of one core", _by_cpu(contenders))
    return figures + _typed(rounds) + _small_streams(rounds)


def _by_cpu(contenders: dict[str, Callable[[], int]]) -> dict[str, Callable[[], float]]:
    return {name: partial(rate_of, work, time.process_time) for name, work in contenders.items()}


def _rows(scan: Iterable[Any]) -> int:
    return sum(batch.num_rows for batch in scan)


def _typed(rounds: Rounds) -> list[Figure]:
    """One column, five typed ones and all of eight, beside msgpack.unpackb of the same rows, and beside Parquet."""
    from pyarrow import parquet  # noqa: PLC0415 - an extra

    count = min(rounds.entries, 300_000)
    made = [dict(zip(EIGHT, (
        str(n), f"item-{n % 997}", str(n % 7), f"{n % 100_000 / 100:.2f}", f"{n * 0.37:.3f}",
        f"2024-05-{1 + n % 28:02d}T{n % 24:02d}:{n % 60:02d}:{n * 7 % 60:02d}.{n % 1000:03d}Z",
        "berlin" if n % 2 else "paris", "true" if n % 3 else "false",
    ), strict=True)) for n in range(count)]  # fmt: skip
    packed = [msgpack.packb(row) for row in made]
    file = rounds.folder / "typed.parquet"
    with raxlog.open(rounds.folder / "typed.rax", durability="relaxed") as store:
        stream = store.stream("typed")
        for at in range(0, count, 10_000):
            stream.extend(made[at : at + 10_000])
        parquet.write_table(stream.to_arrow(schema=EIGHT).read_all(), file, compression="zstd")

        def parquet_rows(names: list[str]) -> int:
            with parquet.ParquetFile(file) as source:
                return _rows(source.iter_batches(batch_size=65_536, columns=names, use_threads=False))

        contenders: dict[str, Callable[[], int]] = {
            "msgpack.unpackb": lambda: len([msgpack.unpackb(row) for row in packed])}
        chosen = {"1 column of 8": ["qty"], "5 typed columns": list(EIGHT)[1:6], "8 columns": [*EIGHT]}
        for label, names in chosen.items():
            schema = {name: EIGHT[name] for name in names}
            contenders[label] = lambda schema=schema: _rows(stream.to_arrow(schema=schema))  # type: ignore[misc]
            contenders[f"{label}, Parquet"] = lambda names=names: parquet_rows(names)  # type: ignore[misc]
        contenders["a map"] = lambda: _rows(stream.to_arrow())
        return rounds.contest("a store of eight fields to Arrow, CPU time of one core", _by_cpu(contenders))


def _small_streams(rounds: Rounds) -> list[Figure]:
    """Streams of 10 entries, read as one part of Spark's is, beside one stream of as many entries in all."""
    many = [f"small.{number:05d}".encode() for number in range(SMALL)]
    columns = projection({"id_ms": "bigint", "v": "bigint"})
    path = rounds.folder / "small.rax"
    with raxlog.open(path, durability="relaxed") as store, store.transaction() as tx:
        for name in many:
            tx.stream(name).extend([{"v": number} for number in range(10)])
        tx.stream("one").extend([{"v": number} for number in range(10 * SMALL)])

    def scan(names: list[bytes]) -> int:
        with opened(str(path)) as source:
            ranges = [Range(name, StreamID.MIN, StreamID.MAX) for name in names]
            return _rows(of_ranges(read_ranges(source, ranges), columns))

    return rounds.contest("many small streams to Arrow, CPU time of one core", _by_cpu({
        f"one stream of {10 * SMALL:,}": lambda: scan([b"one"]), f"{SMALL:,} streams of 10": lambda: scan(many)}))
