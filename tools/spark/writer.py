"""The writer: a DataFrame appended to a stream, each row once, however often a task is tried.

    task, attempt 1    rows 1 … 10,000 + "10,000 done, digest d"    one commit
                       rows 10,001 … (killed)                        nothing
    task, attempt 2    finds "10,000 done"; its first 10,000 rows have digest d: skips them
                       rows 10,001 … 20,000 + "20,000 done, …"       one commit

A task's progress is kept in the store's own state, in the transaction that appends the rows,
under the write's ID and the partition's number. So a retry, or a second attempt that runs beside
the first, adds nothing twice. The digest detects rows that came in another order the second time,
as may happen after a shuffle; that is an error.

The driver opens the write and ends it. A task that does not find it open is in another store (on
another machine, say) or was given up and comes too late: it may not append.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
from pyspark import TaskContext
from pyspark.sql import types
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from xxhash import xxh3_128

from ...storage.errors import InvalidArgument, InvalidFields, StoreError
from ...storage.files import directory
from ...store import Store
from ...stream.node.arguments import name_bytes
from .options import Options

if TYPE_CHECKING:
    import pyarrow as pa

FIELDS = "fields"
LOCK_TIMEOUT = 300.0  # seconds; tasks of one write wait for each other
FORGOTTEN_MS = 7 * 86_400_000  # writes that were opened so long ago, and never ended

_STATE = b"raxlog.spark.write/"
_PLAIN = (
    types.StringType, types.BinaryType, types.BooleanType, types.IntegralType, types.FloatType, types.DoubleType,
    types.DecimalType, types.DateType, types.TimestampType, types.TimestampNTZType,
)
_ALLOWED = "fields are strings, binary, numbers, booleans, dates and timestamps"

Fields = dict[Any, Any]


@dataclass
class Written(WriterCommitMessage):
    """What a task reports to the driver."""

    rows: int


class AppendingWriter(DataSourceArrowWriter):
    """Appends rows to one stream. Made on the driver, pickled into the tasks."""

    def __init__(self, options: Options, schema: types.StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidArgument("a stream is a log: it cannot be overwritten. Use mode('append')")
        if options.stream is None:
            raise InvalidArgument("option stream is missing: the stream to append to")
        name_bytes(options.stream)
        self._is_map = _check(schema)
        self._options = options
        self._path = str(Path(options.path.removeprefix("file://")).absolute())
        self._key = _STATE + os.urandom(12).hex().encode()
        with self._store(create=True) as store, store.transaction() as tx:
            now = time.time_ns() // 1_000_000
            for key in [key for key in tx.state if key.startswith(_STATE) and b"/" not in key[len(_STATE) :]]:
                if msgpack.unpackb(tx.state[key]) < now - FORGOTTEN_MS:
                    _forget(tx.state, key)
            tx.state[self._key] = msgpack.packb(now)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append one partition's rows, rowsPerCommit in a transaction."""
        context = TaskContext.get()
        key = self._key + b"/%d" % (0 if context is None else context.partitionId())
        digest = xxh3_128()
        done = 0
        with self._store(create=False) as store:
            for rows in self._commits(iterator):
                before = digest.hexdigest()
                for row in rows:
                    digest.update(repr(sorted(row.items()) if self._is_map else row).encode())
                self._append(store, key, rows, done, before, digest.hexdigest())
                done += len(rows)
        return Written(done)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are done: a late attempt will append nothing."""
        with self._store(create=False) as store, store.transaction() as tx:
            _forget(tx.state, self._key)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """The write failed. What was committed stays."""
        self.commit(messages)

    def _append(self, store: Store, key: bytes, rows: list[Fields], done: int, before: str, behind: str) -> None:
        with store.transaction() as tx:
            if self._key not in tx.state:
                raise StoreError(
                    f"{self._path} on this machine has no such write open: either it is not the store that the "
                    "driver has opened (tasks write on the store's machine), or the write has ended"
                )
            kept = tx.state.get(key)
            count, digest = (0, before) if kept is None else msgpack.unpackb(kept)
            if count == done:
                if digest != before:
                    raise self._other_rows(count)
                assert self._options.stream is not None
                tx.stream(self._options.stream).extend(rows)
                tx.state[key] = msgpack.packb([done + len(rows), behind])
            elif count < done or (count == done + len(rows) and digest != behind):
                raise self._other_rows(count)
            # else: an earlier attempt, or one beside this, has committed these rows already

    def _other_rows(self, count: int) -> StoreError:
        return StoreError(
            f"a first attempt of this task has committed {count} rows, and this one got others, or in another "
            "order. Sort or cache the data frame before it is written, so that a retry sees the same rows"
        )

    def _commits(self, batches: Iterator[pa.RecordBatch]) -> Iterator[list[Fields]]:
        """Rows as entries, in lists of rowsPerCommit: the same lists however Spark cuts its batches."""
        held: list[Fields] = []
        for batch in batches:
            held += self._entries(batch)
            while len(held) >= self._options.write_rows:
                yield held[: self._options.write_rows]
                held = held[self._options.write_rows :]
        if held:
            yield held

    def _entries(self, batch: pa.RecordBatch) -> Iterator[Fields]:
        columns = [_shortest(column).to_pylist() for column in batch.columns]
        if self._is_map:
            for value in columns[0]:
                yield _fields({} if value is None else dict(value))
            return
        names = batch.schema.names
        for row in zip(*columns, strict=True):
            yield _fields(dict(zip(names, row, strict=True)))

    def _store(self, create: bool) -> Store:
        if not create:
            directory.generation(Path(self._path))  # raises where there is none: a task creates nothing
        return Store.open(self._path, lock_timeout=LOCK_TIMEOUT)


def _forget(state: Any, key: bytes) -> None:
    for known in [known for known in state if known == key or known.startswith(key + b"/")]:
        del state[known]


def _check(schema: types.StructType) -> bool:
    """Whether the rows are maps. InvalidArgument for columns that no entry can hold."""
    if not schema.fields:
        raise InvalidArgument("a data frame without columns has nothing to append")
    mapped = next((field for field in schema.fields if isinstance(field.dataType, types.MapType)), None)
    if mapped is not None and len(schema.fields) > 1:
        others = ", ".join(field.name for field in schema.fields if field is not mapped)
        raise InvalidArgument(
            f"column {mapped.name!r} is a map, and holds all fields of an entry; there are {others} beside it. "
            f"Write df.select({mapped.name!r}), or columns without a map"
        )
    for field in schema.fields:
        kind = field.dataType
        parts = [kind.keyType, kind.valueType] if isinstance(kind, types.MapType) else [kind]
        if not all(isinstance(part, _PLAIN) for part in parts):
            raise InvalidArgument(f"column {field.name!r} is {kind.simpleString()}; {_ALLOWED}")
    return mapped is not None


def _fields(row: Mapping[Any, Any]) -> Fields:
    """An entry's fields: what is null is left out, the rest is text as the reader reads it."""
    fields = {_text(name): _text(value) for name, value in row.items() if value is not None}
    if not fields:
        raise InvalidFields("a row of nulls only is no entry: an entry has at least one field. Filter it out")
    return fields


def _shortest(column: pa.Array) -> pa.Array:
    """The column with floats of 32 bits as the shortest text that reads back as such: 0.1, not 0.10000000149011612."""
    import pyarrow as pa  # noqa: PLC0415

    def texts(kind: pa.DataType) -> pa.DataType:
        return pa.string() if pa.types.is_float32(kind) else kind

    kind = column.type
    return column.cast(pa.map_(texts(kind.key_type), texts(kind.item_type)) if pa.types.is_map(kind) else texts(kind))


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | bytes | int | float):
        return value
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC)  # some zones have offsets with seconds, which ISO 8601 has not
    return str(value)  # Decimal, date, datetime
