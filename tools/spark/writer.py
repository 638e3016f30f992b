"""The writers: rows appended to a stream, each once, however often a task or an epoch is tried.

A DataFrame: AppendingWriter. Tasks append.

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

A streaming query: EpochWriter. Tasks put their rows into files, the driver appends.

    events.rax/spark/QUERY/7-5f0c9a…     rows of epoch 7, one file of each task that has any
    state  raxlog.spark.stream/QUERY     [7, [the files of epoch 7 that are being appended], rows done]

An epoch that is run again after a crash may come in other partitions and orders, so its tasks append
nothing. The driver begins an epoch once: the first transaction names the files, and whichever run of
the query comes next appends the rest of these very files. An epoch that is done is passed over.

Rows with IDs of their own, option idFrom: these files are sorted runs, which the driver merges (given_ids.py). Those of
a data frame, which MergingWriter writes, lie in events.rax/spark/write-5f0c9a…, for as long as the write takes; they
are not appended by a later run, which has to write the frame anew: with onExisting=skip, only what is not there yet.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
from pyspark import TaskContext
from pyspark.sql import types
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from xxhash import xxh3_128

from ...recovery.snapshot.location import required_local
from ...storage import clocks
from ...storage.engine.open_options import BYTES
from ...storage.errors import InvalidArgument, InvalidFields, StoreError
from ...storage.folder import directory
from ...store import Store
from ...stream.columns.texts import columns_of, texts
from ...stream.node.arguments import name_bytes
from ...stream.node.entry import flatten
from ...stream.node.flattened import Flattened, TextColumns
from ...stream.state import keys_between
from ...stream.stream import Stream
from . import given_ids
from .given_ids import GivenIDs
from .options import SKIP, Options
from .scan import settle

if TYPE_CHECKING:
    import pyarrow as pa

LOCK_TIMEOUT = 300.0  # seconds; tasks of one write wait for each other
FORGOTTEN_MS = 7 * 86_400_000  # writes that were opened so long ago, and never ended

_WRITE = b"raxlog.spark.write/"
_STREAM = b"raxlog.spark.stream/"
_STAGED, _RUNS = "spark", "write-"  # in the store's folder; in that
_NOTHING = msgpack.packb([0, ""])
_NO_EPOCH = msgpack.packb([-1, [], 0])
_QUERY, _EPOCH = "sql.streaming.queryId", "streaming.sql.batchId"  # as Spark's tasks know them
_PLAIN = (
    types.StringType, types.BinaryType, types.BooleanType, types.IntegralType, types.FloatType, types.DoubleType,
    types.DecimalType, types.DateType, types.TimestampType, types.TimestampNTZType,
)
_IDS = ("id_ms", "id_seq")  # columns of a load without a schema, beside its map
_ALLOWED = ("fields are strings, binary, numbers, booleans, dates and timestamps, or arrays, structs and maps by "
            "strings of these, without binary in them")


@dataclass
class Staged(WriterCommitMessage):
    """What a task reports to the driver: the files with its rows, in the folder of the query or of the write."""

    folder: str
    files: list[str]


class _Target:
    """The stream to append to. Checked on the driver, pickled into the tasks."""

    def __init__(self, options: Options, schema: types.StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidArgument(
                "a stream is a log: it cannot be overwritten. Use mode('append'), in SQL INSERT INTO, for a streaming "
                "query outputMode('append')"
            )
        if options.stream is None:
            raise InvalidArgument("option stream is missing: the stream to append to")
        name_bytes(options.stream)
        self.ids = None if options.id_from is None else GivenIDs.of(options.id_from, schema)
        _check(schema, frozenset() if self.ids is None else self.ids.taken)
        self.stream = options.stream
        self.rows = options.write_rows  # of a transaction
        self.skip = options.on_existing == SKIP
        self.path = required_local(options.path, "Spark writes to a store in").absolute()

    def store(self, create: bool = False) -> Store:
        """The store, open."""
        if not create:
            directory.generation(self.path)  # raises where there is none: a task creates nothing
        return Store.open(self.path, lock_timeout=LOCK_TIMEOUT, encoding=BYTES)

    def folder(self, name: str) -> Path:
        """Where the tasks of a query or of a write put their rows."""
        return self.path / _STAGED / name

    def no_such_write(self) -> StoreError:
        """For a task that the driver does not wait for."""
        return StoreError(
            f"{self.path} on this machine has no such write open: either it is not the store that the driver has "
            "opened (tasks write on the store's machine), or the write has ended"
        )

    def sort(self, ids: GivenIDs, batches: Iterator[pa.RecordBatch], folder: Path, prefix: str) -> list[str]:
        """Put rows that have IDs into sorted runs. The names of the files."""
        import pyarrow as pa  # noqa: PLC0415

        def rows() -> Iterator[tuple[list[given_ids.Row], int]]:
            for batch in batches:
                kept = [name for name in batch.schema.names if name not in ids.taken]
                table = pa.Table.from_batches([_texts(batch.select(kept))])
                begun = ids.of_rows(batch)
                yield [[*key, flat] for key, flat in zip(begun, _entries(table).flats, strict=True)], table.nbytes

        return given_ids.sort(rows(), folder, prefix, ids.suffix)


class AppendingWriter(DataSourceArrowWriter):
    """Appends a DataFrame's rows to one stream. Made on the driver, pickled into the tasks."""

    def __init__(self, options: Options, schema: types.StructType, overwrite: bool) -> None:
        self._target = _Target(options, schema, overwrite)
        self._key = _WRITE + os.urandom(12).hex().encode()
        with self._target.store(create=True) as store, store.transaction() as tx:
            now = clocks.now_ms()
            writes = keys_between(tx.state, _WRITE, _WRITE + b"\xff")
            for key in [key for key in writes if b"/" not in key[len(_WRITE) :]]:
                if msgpack.unpackb(tx.state[key]) < now - FORGOTTEN_MS:
                    _forget(tx.state, key)
            tx.state[self._key] = msgpack.packb(now)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append one partition's rows, rowsPerCommit in a transaction."""
        settle()
        context = TaskContext.get()
        key = self._key + b"/%d" % (0 if context is None else context.partitionId())
        digest = _Digest()
        done = 0
        with self._target.store() as store:
            first = msgpack.unpackb(store.state.get(key, _NOTHING))[0]
            for table in _cut(iterator, self._target.rows, first):
                before = digest.hexdigest()
                rows = _entries(table, digest)
                self._append(store, key, rows, done, before, digest.hexdigest())
                done += table.num_rows
            if (count := msgpack.unpackb(store.state.get(key, _NOTHING))[0]) > done:
                raise self._other_rows(count)
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are done: a late attempt will append nothing."""
        with self._target.store() as store, store.transaction() as tx:
            _forget(tx.state, self._key)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """The write failed. What was committed stays."""
        self.commit(messages)

    def _append(self, store: Store, key: bytes, rows: Flattened, done: int, before: str, behind: str) -> None:
        with store.transaction() as tx:
            if self._key not in tx.state:
                raise self._target.no_such_write()
            count, digest = msgpack.unpackb(tx.state.get(key, _NOTHING))
            if count == done:
                if count and digest != before:
                    raise self._other_rows(count)
                tx.stream(self._target.stream).extend(rows)
                tx.state[key] = msgpack.packb([done + len(rows.flats), behind])
            elif count < done + len(rows.flats) or (count == done + len(rows.flats) and digest != behind):
                raise self._other_rows(count)
            # else: an earlier attempt, or one beside this, has committed these rows already

    def _other_rows(self, count: int) -> StoreError:
        return StoreError(
            f"a first attempt of this task has committed {count} rows, and this one got others, or in another "
            "order. Sort or cache the data frame before it is written, so that a retry sees the same rows"
        )


class MergingWriter(DataSourceArrowWriter):
    """Writes a DataFrame's rows, which have IDs, to one stream. Made on the driver, pickled into the tasks."""

    def __init__(self, options: Options, schema: types.StructType, overwrite: bool) -> None:
        self._target = _Target(options, schema, overwrite)
        self._target.store(create=True).close()
        self._folder = self._target.folder(_RUNS + os.urandom(12).hex())
        for old in self._folder.parent.glob(_RUNS + "*"):  # of drivers that were killed
            with suppress(FileNotFoundError):  # one that ends in this moment
                if clocks.now_ms() - old.stat().st_mtime * 1000 > FORGOTTEN_MS:
                    shutil.rmtree(old, ignore_errors=True)
        self._folder.mkdir(parents=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Put one partition's rows into sorted runs."""
        settle()
        assert self._target.ids is not None
        if not self._folder.is_dir():
            raise self._target.no_such_write()
        return Staged(self._folder.name, self._target.sort(self._target.ids, iterator, self._folder, "0"))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Merge the runs, and append their rows, rowsPerCommit in a transaction."""
        paths = [self._folder / name for report in messages if isinstance(report, Staged) for name in report.files]
        with self._target.store() as store:
            for rows, _ in given_ids.pieces(paths, self._target.rows, 0, numbered=True):
                with store.transaction() as tx:
                    given_ids.append(tx.stream(self._target.stream), rows, self._target.skip)
        self.abort(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the runs. What was committed stays."""
        shutil.rmtree(self._folder, ignore_errors=True)


class EpochWriter(DataSourceStreamWriter, DataSourceArrowWriter):
    """Appends the rows of a streaming query to one stream. Made anew for each epoch, and for its commit."""

    def __init__(self, options: Options, schema: types.StructType, overwrite: bool) -> None:
        self._target = _Target(options, schema, overwrite)
        if self._target.skip and self._target.ids is not None and self._target.ids.suffix == given_ids.TIMES:
            raise InvalidArgument(
                f"onExisting={SKIP!r} needs whole IDs in writeStream, in id or in id_ms and id_seq. Rows of one "
                "millisecond may come in several epochs, so that by its time alone no row can be known again"
            )
        self._target.store(create=True).close()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Put one partition's rows into files."""
        settle()
        context = TaskContext.get()
        query, epoch = (context and context.getLocalProperty(name) for name in (_QUERY, _EPOCH))
        if not query or not epoch:
            raise StoreError(f"Spark has set no {_QUERY} and {_EPOCH} in this task; without them rows could come twice")
        directory.generation(self._target.path)  # raises where there is no store
        folder, ids = self._target.folder(query), self._target.ids
        folder.mkdir(parents=True, exist_ok=True)
        files = self._put(iterator, folder, epoch) if ids is None else self._target.sort(ids, iterator, folder, epoch)
        for name in files:
            directory.sync_file(folder / name)
        return Staged(query, files)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # type: ignore[override]
        """Append the epoch's rows, rowsPerCommit in a transaction, unless that is done already."""
        reports = [report for report in messages if isinstance(report, Staged)]
        if not reports:
            return  # there was no task
        query, files = reports[0].folder, [name for report in reports for name in report.files]
        folder = self._target.folder(query)
        for each in (folder, folder.parent, folder.parent.parent) if files else ():
            directory.sync_folder(each)
        with self._target.store() as store:
            while self._append(store, _STREAM + query.encode(), batchId, files):
                pass
        for path in folder.glob("*-*"):  # those of killed tasks and drivers, too
            if int(path.name.partition("-")[0]) <= batchId:
                path.unlink(missing_ok=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # type: ignore[override]
        """The epoch failed. It will be tried again; the next commit removes the files."""

    def _put(self, iterator: Iterator[pa.RecordBatch], folder: Path, epoch: str) -> list[str]:
        """Put rows without IDs into a file, if there are any. Its name."""
        import pyarrow as pa  # noqa: PLC0415

        tables = _cut(iterator, self._target.rows)
        first = next(tables, None)
        if first is None:
            return []
        name = f"{epoch}-{os.urandom(8).hex()}"
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_file(file, first.schema) as out:
            for table in chain((first,), tables):
                _entries(table)  # raises if one is none
                out.write_table(table)
        return [name]

    def _append(self, store: Store, key: bytes, epoch: int, files: list[str]) -> bool:
        """Append the rest of the epoch that was begun last, or else this one. False: both are done."""
        known = store.state.get(key, _NO_EPOCH)
        begun, remaining, done = msgpack.unpackb(known)
        if not remaining:
            if begun >= epoch or not files:
                return False
            begun, remaining, done = epoch, files, 0
        folder = self._target.folder(key.removeprefix(_STREAM).decode())
        try:
            for count, append, is_last in self._pieces([folder / name for name in remaining], done):
                with store.transaction() as tx:
                    if tx.state.get(key, _NO_EPOCH) != known:
                        break  # a process whose driver was killed still appends these very rows
                    append(tx.stream(self._target.stream))
                    done += count
                    tx.state[key] = known = msgpack.packb([begun, [] if is_last else remaining, done])
        except FileNotFoundError as error:
            if store.state.get(key, _NO_EPOCH) == known:
                raise StoreError(
                    f"rows of query {folder.name} are not there: {error}. Tasks write on the store's machine. If the "
                    f"files are lost, deleting {key.decode()} from store.state goes on without them"
                ) from None
        return True

    def _pieces(self, paths: list[Path], done: int) -> Iterator[tuple[int, Callable[[Stream[Any]], object], bool]]:
        """The rows of these files behind the first ``done``: how many, what appends them, whether they are the last."""
        import pyarrow as pa  # noqa: PLC0415

        if paths[0].suffix:  # whatever the options are now
            for rows, is_last in given_ids.pieces(paths, self._target.rows, done, numbered=False):
                yield len(rows), partial(given_ids.append, rows=rows, skip=self._target.skip), is_last
            return
        table = pa.concat_tables([pa.ipc.open_file(pa.memory_map(str(path))).read_all() for path in paths])
        for at in range(done, table.num_rows, self._target.rows):
            rows = table.slice(at, self._target.rows)
            yield rows.num_rows, partial(_extend, rows), at + rows.num_rows == table.num_rows


def _extend(table: pa.Table, stream: Stream[Any]) -> None:
    stream.extend(_entries(table))


def _forget(state: Any, key: bytes) -> None:
    for known in [known for known in state if known == key or known.startswith(key + b"/")]:
        del state[known]


def _check(schema: types.StructType, taken: frozenset[str]) -> None:
    """InvalidArgument for columns that no entry can hold; those that are ``taken`` become no fields."""
    fields = [field for field in schema.fields if field.name not in taken]
    if not fields:
        raise InvalidArgument("a data frame without columns has nothing to append")
    mapped = next((field for field in fields if isinstance(field.dataType, types.MapType)), None)
    others = [field.name for field in fields if field is not mapped and field.name.lower() not in _IDS]
    if mapped is not None and others:
        raise InvalidArgument(
            f"column {mapped.name!r} is a map, and holds all fields of an entry; there are {', '.join(others)} beside "
            f"it. Write df.select({mapped.name!r}), or columns without a map"
        )
    names = [field.name for field in schema.fields]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(f"two columns are named {name!r}: name one otherwise")
    for name, kind in ((field.name, field.dataType) for field in fields):
        whole = name.lower() == "id" and isinstance(kind, types.BinaryType)  # of includeId
        if mapped is None and (whole or name.lower() in _IDS):
            raise InvalidArgument(
                f"column {name!r} cannot be a field: a scan has {'the ID' if whole else 'half of the ID'} under this "
                f"name, and the stream makes the IDs. Write df.drop({', '.join(map(repr, (*_IDS, 'id')))}), name the "
                "column otherwise, or give option idFrom, 'id_ms' say, for IDs from the frame"
            )
    for field in fields:
        kind = field.dataType
        parts = [kind.keyType, kind.valueType] if isinstance(kind, types.MapType) else [kind]
        if not all(isinstance(part, _PLAIN) or (mapped is None and _is_json(part)) for part in parts):
            raise InvalidArgument(f"column {field.name!r} is {kind.simpleString()}; {_ALLOWED}")


def _is_json(kind: types.DataType) -> bool:
    if isinstance(kind, types.StructType):
        return all(_is_json(field.dataType) for field in kind.fields)
    if isinstance(kind, types.ArrayType):
        return _is_json(kind.elementType)
    if isinstance(kind, types.MapType):
        return isinstance(kind.keyType, types.StringType) and _is_json(kind.valueType)
    return isinstance(kind, _PLAIN) and not isinstance(kind, types.BinaryType)


class _Digest:
    """A digest of rows, the same however they are cut."""

    def __init__(self) -> None:
        self._parts: defaultdict[int, xxh3_128] = defaultdict(xxh3_128)

    def update(self, rows: list[list[bytes]] | TextColumns) -> None:
        """Take in further rows."""
        parts = rows.parts() if isinstance(rows, TextColumns) else [b"".join(map(msgpack.packb, rows))]
        for at, part in enumerate(parts):
            self._parts[at].update(part)

    def hexdigest(self) -> str:
        """The digest of all rows so far."""
        return "".join(part.hexdigest() for part in self._parts.values())


def _cut(batches: Iterator[pa.RecordBatch], size: int, first: int = 0) -> Iterator[pa.Table]:
    """The rows as text, in tables of ``size`` however Spark cuts its batches, with one cut more behind the ``first``.

    Where the rows come from a task that has failed, Spark ends the batches as if there were no more.
    """
    import pyarrow as pa  # noqa: PLC0415

    pieces: list[pa.RecordBatch] = []
    count = done = 0
    for batch in batches:
        if batch.num_rows:
            pieces.append(_texts(batch))
            count += batch.num_rows
        while count >= (some := min(size, first - done) if done < first else size):
            table = pa.Table.from_batches(pieces)
            yield table.slice(0, some)
            pieces = table.slice(some).to_batches()
            count -= some
            done += some
    if count:
        yield pa.Table.from_batches(pieces)


def _texts(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns as they are stored: text as the reader reads it, or one of maps of it."""
    import pyarrow as pa  # noqa: PLC0415

    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    mapped = [name for name, column in columns.items() if pa.types.is_map(column.type)]
    if mapped:
        if any(column.null_count < len(column) for name, column in columns.items() if name not in mapped):
            raise InvalidArgument(f"IDs are made by the stream: leave {' and '.join(_IDS)} out, or null, or give "
                                  "option idFrom='id_ms'")
        columns = {name: columns[name] for name in mapped}
    return pa.record_batch([texts(column, bool(mapped)) for column in columns.values()], names=list(columns))


def _entries(table: pa.Table, digest: _Digest | None = None) -> Flattened:
    """Rows as extend() takes them: what is null is left out. InvalidFields for a row of nulls only."""
    rows: list[list[bytes]] | TextColumns
    try:
        if table.schema.types[0].num_fields:  # a map
            maps = table.column(0).to_pylist()
            rows = [flatten([pair for pair in row or () if pair[1] is not None]) for row in maps]
        else:
            rows = columns_of(table.column_names, table.columns)
            rows.check()
    except InvalidFields as error:
        raise InvalidFields(f"{error}: a row of nulls only is not an entry. Filter it out") from None
    if digest is not None:
        digest.update(rows)
    return Flattened(rows)
