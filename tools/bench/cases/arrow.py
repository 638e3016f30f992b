"""Decoding into Arrow: nodes in memory, a store, and what Parquet read by pyarrow itself costs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import raxlog
from raxlog.stream.columns.arrow import batches, load, projection

from ..rounds import Figure, Rounds, rate_of

SALES = {"id_ms": "bigint", "id_seq": "bigint", "item": "string", "qty": "bigint", "price": "double"}


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

        def rows(scan: Iterable[Any]) -> int:
            return sum(batch.num_rows for batch in scan)

        def parquet_rows(name: str) -> int:
            with parquet.ParquetFile(files[name]) as file:
                return rows(file.iter_batches(batch_size=65_536, use_threads=False))

        contenders: dict[str, Callable[[], int]] = {
            "range() to entries": lambda: sum(1 for _ in stream.range()),
            "nodes to 5 columns": lambda: rows(batches(nodes, projection(SALES))),
            "nodes to a map": lambda: rows(batches(nodes, projection())),
            "nodes to 1 column": lambda: rows(batches(nodes, projection({"qty": "bigint"}))),
            "store to 5 columns": lambda: rows(stream.to_arrow(schema=SALES)),
            "store to a map": lambda: rows(stream.to_arrow()),
            "Parquet (zstd), 5 columns": lambda: parquet_rows("columns"),
            "Parquet (zstd), a map": lambda: parquet_rows("map"),
        }
        return rounds.contest("decode to Arrow, CPU time of one core",
                              {name: partial(rate_of, work, time.process_time) for name, work in contenders.items()})
