"""DuckDB: a stream as a relation. Imported as raxlog.duckdb.

    raxlog.duckdb.relation(store, "orders").filter("qty > 2").aggregate("item, sum(qty)").fetchall()

    DuckDB's plan   ──columns, filter──>   Stream.to_arrow(columns=…, where=…)   ──batches──>   DuckDB

pyproject.toml gives the folder that name: a duckdb.py at the root would hide DuckDB itself from what runs there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from ..storage.errors import NotInstalled

try:
    from pyarrow import dataset

    import duckdb
except ModuleNotFoundError as error:
    what = f"{error.name} cannot be imported; raxlog.duckdb needs it: pip install duckdb pyarrow"
    raise NotInstalled(what) from error

if TYPE_CHECKING:
    import pyarrow as pa

    from ..store import Store
    from ..stream.columns.projection import Schema
    from ..stream.node.stream_id import IDLike

__all__ = ["relation"]


def relation(store: Store, stream: str | bytes, start: IDLike = "-", end: IDLike = "+",
             schema: Schema | None = None, *, connection: duckdb.DuckDBPyConnection | None = None,
             mode: Literal["PERMISSIVE", "FAILFAST"] = "PERMISSIVE", **roles: str | None) -> duckdb.DuckDBPyRelation:
    """The live entries of a range of a stream as a relation, which reads what its query needs, as often as it is asked.

    The parameters are those of Stream.to_arrow(), which each query calls anew: it reads up to the entry that is then
    the last. Columns that the query does not need are not decoded, filters are applied to each batch, and those on
    id_ms narrow what is read. ``connection`` is DuckDB's, by default its module's own. The relation is of use while
    the store is open.

    Raises InvalidStreamID, InvalidArgument and NotInstalled at once. DuckDB itself raises what a query meets later,
    MalformedValue say, as an error of its own.
    """
    given: dict[str, Any] = {"start": start, "end": end, "schema": schema, "mode": mode, **roles}
    read = partial(store.stream(stream).to_arrow, **given)
    return duckdb.from_arrow(_Entries(read), connection=connection or duckdb.default_connection())


class _Entries(dataset.Dataset):  # type: ignore[misc]  # DuckDB asks nothing else for columns and rows
    """A dataset that DuckDB scans by its schema and its scanner only."""

    def __init__(self, read: Callable[..., pa.RecordBatchReader]) -> None:
        self._read = read
        self._schema = read().schema

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def scanner(self, columns: list[str] | None = None, filter: Any = None, **_: Any) -> _Scanner:
        return _Scanner(self._read(columns=columns, where=filter))


class _Scanner:
    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader = reader

    def to_reader(self) -> pa.RecordBatchReader:
        return self._reader
