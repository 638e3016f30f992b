"""Polars: a stream as a LazyFrame. Imported as raxlog.polars.

    raxlog.polars.scan(store, "orders").filter(polars.col("qty") > 2).select("item").collect()

    Polars' plan   ──columns, filter, rows──>   Stream.to_arrow(columns=…)   ──batches──>   Polars

pyproject.toml gives the folder that name: a polars.py at the root would hide Polars itself from what runs there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from ..storage.errors import NotInstalled

try:
    import polars
    from polars.io.plugins import register_io_source
except ModuleNotFoundError as error:
    what = f"{error.name} cannot be imported; raxlog.polars needs it: pip install polars pyarrow"
    raise NotInstalled(what) from error

if TYPE_CHECKING:
    from ..store import Store
    from ..stream.columns.projection import Schema
    from ..stream.node.stream_id import IDLike

__all__ = ["scan"]

_ROWS = 65_536  # of a batch, at most


def scan(store: Store, stream: str | bytes, start: IDLike = "-", end: IDLike = "+",
         schema: Schema | None = None, *, mode: Literal["PERMISSIVE", "FAILFAST"] = "PERMISSIVE",
         **roles: str | None) -> polars.LazyFrame:
    """The live entries of a range of a stream as a polars.LazyFrame, which reads what its query needs.

    The parameters are those of Stream.to_arrow(), which each collect() calls anew: it reads up to the entry that is
    then the last. Columns that the query does not need are not decoded, a filter is applied to each batch, and a
    scan ends after the rows of head(). Only ``start`` and ``end`` narrow what is read.

    Raises InvalidStreamID, InvalidArgument and NotInstalled at once; collect() raises MalformedValue and
    CorruptionError, and Polars' own error for a column that is not there.
    """
    given: dict[str, Any] = {"start": start, "end": end, "schema": schema, "mode": mode, **roles}
    handle = store.stream(stream)
    frame = polars.DataFrame(handle.to_arrow(**given).schema.empty_table())

    def batches(names: list[str] | None, predicate: polars.Expr | None, rows: int | None,
                batch_size: int | None) -> Iterator[polars.DataFrame]:
        wanted = frame.columns if names is None else names
        read = dict.fromkeys([*wanted, *(() if predicate is None else predicate.meta.root_names())])
        size = max(1, min(batch_size or _ROWS, _ROWS if rows is None else rows, _ROWS))
        found = handle.to_arrow(**given, batch_size=size, columns=list(read) or frame.columns[:1])
        for batch in found if rows is None or rows > 0 else ():
            part = polars.DataFrame(batch)
            if rows is not None:
                part = part.head(rows)
                rows -= part.height
            yield (part if predicate is None else part.filter(predicate)).select(wanted)
            if rows == 0:
                return

    return register_io_source(batches, schema=frame.schema)
