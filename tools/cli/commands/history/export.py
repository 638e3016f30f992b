"""export: the entries of a stream into a Parquet, Arrow or CSV file, or into a folder of Parquet files.

    stream ──to_arrow()──> batches ──a million rows──> out.parquet.part-… ──done──> out.parquet
                                                       out.part ──each time it is full──> out/FIRST_LAST.parquet

A file appears when it is complete: an export that fails or is interrupted leaves an old file as it was.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from .....storage import clocks
from .....stream.columns.arrow import FAILFAST, MODES, PERMISSIVE, Projection, Tally, batches, load, projection
from .....stream.columns.projection import default_columns
from .....stream.node.stream_id import StreamID
from .....stream.stream import Stream
from .... import output
from ....spark.location import opened
from ... import redis_keys
from ...arguments import OF_STORE, RANGE, argument, command, flag
from ...progress import ByteReport, progress
from ...readers import parsed_columns, positive, stream_name
from ...status import DONE, NO, USAGE, CommandError
from ...stores import stream_of
from .parquet_folder import appending

_FORMATS = {"parquet": (".parquet", ".pq"), "arrow": (".arrow", ".ipc", ".feather"), "csv": (".csv",)}
_COMPRESSIONS = ("zstd", "snappy", "none")
_ROW_GROUP = 1 << 20  # rows that a reader of Parquet can skip at once
_FILE_ROWS = 4 << 20  # of a file in a folder


@command(
    "export",
    (*OF_STORE,
     argument("stream", metavar="STREAM", nargs="?", read=stream_name,
              help="the stream's name; with --redis a pattern of names"),
     argument("file", metavar="FILE", nargs="?", help="what to write; its suffix selects the format"),
     argument("--append-to", metavar="FOLDER", help="add what is new as a file, or several, to a folder of Parquet"),
     argument("--file-rows", type=positive, default=_FILE_ROWS, metavar="N",
              help=f"with --append-to: rows of a file at most (default: {_FILE_ROWS:,})"),
     argument("--redis", metavar="URL", help="give streams, strings and lists to a server instead"),
     *RANGE,
     argument("--format", choices=tuple(_FORMATS), help="default: by the file's suffix"),
     argument("--columns", metavar="COLUMNS",
              help='the fields to export and their types: "item string, qty bigint"; default: id_ms, id_seq and '
              "those of the stream's schema, or a map of all"),
     argument("--id", metavar="NAME", help="add a column with the ID as text: ms-seq"),
     argument("--timestamp", metavar="NAME", help="add a column with the ID's milliseconds as a time"),
     argument("--mode", type=str.upper, choices=MODES,
              help="a value that is not of its column's type becomes null (default with --columns or a schema), or "
              "ends the export (FAILFAST, default of the map of all)"),
     flag("--skip-damaged", "skip nodes that cannot be read, and name them"),
     argument("--compression", choices=_COMPRESSIONS, default="zstd", help="not for CSV (default: zstd)"),
     flag("--force", "replace FILE, or the server's keys, if they exist")),
    """Writes the entries from START to END to a file that DuckDB, Polars, pandas and Spark can read.
They are decoded straight into columns, some millions a second. Needs pyarrow: pip install pyarrow.

Without --columns, the columns are id_ms, id_seq and those of the stream's schema (see configure), or
fields, a map of each entry's fields. --columns lists fields and their types: string, binary, bigint,
int, smallint, tinyint, double, float, boolean, date, timestamp, timestamp_ntz, decimal(p,s). If an
entry lacks a field, its value is null. Put a name with spaces or commas in backquotes. CSV needs
--columns. The metadata of a Parquet file has the stream, the store, and the first and last ID.

The map of all ends the export at an entry with a name that is not UTF-8, or an ID beyond a bigint: the
message says which, and the columns that hold it. fields map<binary,binary> holds any entry.

The file appears when it is complete. Exit status 1 if the range has no entry.

--append-to keeps a folder of Parquet files, which is made if it is not there: each run adds the
entries behind the last ID that is in it. The first and the last ID of a file are its name. A file
appears when it is complete, so the folder can be read at any time, and after a kill the next run goes on.
The columns stay those of the first run. Exit status 1 if there is nothing to add.

--redis copies whole streams to a server, with their groups and pending entries, node by node and byte
for byte, and also strings, lists and the times at which keys expire. Needs redis-py:
pip install raxlog[redis].""",
    "raxlog export events.rax orders orders.parquet",
    'raxlog export events.rax orders sales.csv --id id --columns "item string, price decimal(10,2)"',
    "raxlog export events.rax orders may.parquet 1525132800000 1527811199999 --timestamp time",
    "raxlog export events.rax orders --append-to orders",
    "raxlog export events.rax --redis redis://localhost:6379/0",
)
def _run(args: argparse.Namespace) -> int:
    if args.redis is not None:
        return redis_keys.export_keys(args)
    if args.columns is not None:
        parsed_columns(args.columns)  # before anything is opened
    if args.append_to is not None:
        return _append(args)
    if args.file is None:
        raise CommandError("the following arguments are required: STREAM, FILE (see 'raxlog export --help')", USAGE)
    path = _place(args, args.file)
    kind = args.format or _guessed(path)
    if args.file == "-" or (os.path.lexists(path) and not path.is_file()):
        raise CommandError(f"{args.file} is no regular file; a file is wanted, then complete or not there", USAGE)
    if path.exists() and not args.force:
        raise CommandError(f"{path} is there already; --force replaces it", USAGE)
    tally, name = Tally(), output.text(args.stream)
    began = clocks.elapsed()
    with stream_of(args) as stream:
        start, end = args.start, min(args.end, stream.last_id)
        columns, batches = _read(args, stream, kind, start, end, tally)
        # The summary names the damaged nodes, of which the reader warns.
        with (
            warnings.catch_warnings(action="ignore"), _whole(path) as part,
            progress(name, stream.count(start, end)) as report,
        ):
            _write(kind, part, columns, batches, args.compression, end, _about(args), tally, report)
    _summary(args, {"file": str(path), "format": kind, "bytes": path.stat().st_size},
             f"{path} ({kind}, {path.stat().st_size:,} bytes)", tally, clocks.elapsed() - began)
    return DONE if tally.rows else NO


def _append(args: argparse.Namespace) -> int:
    """Add what is behind the last ID in a folder to it."""
    if args.stream is None or args.file is not None or args.force or (args.format or "parquet") != "parquet":
        raise CommandError("--append-to is given with STREAM, and without FILE, START, END and --force: it adds to a "
                           "folder of Parquet what is not in it (see 'raxlog export --help')", USAGE)
    path = _place(args, args.append_to)
    tally, name = Tally(), output.text(args.stream)
    began = clocks.elapsed()
    with stream_of(args) as stream, appending(path) as folder, warnings.catch_warnings(action="ignore"):
        start, end, about = folder.next, stream.last_id, _about(args)
        columns, batches = _read(args, stream, "parquet", start, end, tally)
        folder.require(about, columns.schema, end)
        with progress(name, stream.count(start, end)) as report:
            for some in _runs(batches, args.file_rows):
                held = about.copy()
                _write("parquet", folder.part, columns, some, args.compression, end, held, tally, report)
                folder.add(StreamID(held["raxlog.first_id"]), StreamID(held["raxlog.last_id"]))
        size = sum((path / name).stat().st_size for name in folder.added)
    _summary(args, {"folder": str(path), "files": folder.added, "format": "parquet", "bytes": size},
             f"{path} ({output.many(len(folder.added), 'new file')}, {size:,} bytes)", tally, clocks.elapsed() - began)
    return DONE if tally.rows else NO


def _place(args: argparse.Namespace, given: str) -> Path:
    """Where to write: what a link names is replaced, not the link."""
    path = Path(os.path.realpath(given))
    if path.is_relative_to(os.path.realpath(args.store)):
        raise CommandError(f"{path} is in the store's folder, where only the store's files are; name another", USAGE)
    return path


def _read(args: argparse.Namespace, stream: Stream, kind: str, start: StreamID, end: StreamID, tally: Tally
          ) -> tuple[Projection, Iterator[Any]]:
    """The columns that are asked for, and batches of them with the ID behind them."""
    schema = None if args.columns is None else parsed_columns(args.columns)
    mode = args.mode or (PERMISSIVE if schema or stream.schema else FAILFAST)  # no loss was asked for
    schema = default_columns(stream.schema) if schema is None else schema
    columns = projection(schema, id_column=args.id, timestamp_column=args.timestamp)
    if kind == "csv" and any(column[0] == "map" for column in columns.columns):
        raise CommandError('CSV holds no maps: name fields, as in --columns "item string, qty bigint"', USAGE)
    with_id = replace(columns, schema=columns.schema.append(load().field("", "binary")),
                      columns=(*columns.columns, ("id_bytes", b"", 0, 0)))
    return columns, batches(
        stream.nodes(start, end), with_id, start=start, end=end, mode=mode, skip_damaged=args.skip_damaged,
        stream=output.text(args.stream), tally=tally,
    )  # fmt: skip


def _about(args: argparse.Namespace) -> dict[str, str]:
    with opened(args.store) as source:
        return {"raxlog.stream": output.text(args.stream), "raxlog.store": source.env.record.uuid.hex()}


def _runs(batches: Iterator[Any], most: int) -> Iterator[Iterator[Any]]:
    """The batches in runs of ``most`` rows. A run has to be read to its end before the next one."""
    ahead: deque[Any] = deque()

    def run() -> Iterator[Any]:
        room = most
        while room and (batch := ahead.popleft() if ahead else next(batches, None)) is not None:
            if batch.num_rows > room:
                ahead.append(batch.slice(room))
                batch = batch.slice(0, room)
            room -= batch.num_rows
            yield batch

    while ahead or (batch := next(batches, None)) is not None:
        if not ahead:
            ahead.append(batch)
        yield run()


def _guessed(path: Path) -> str:
    for kind, endings in _FORMATS.items():
        if path.suffix.lower() in endings:
            return kind
    known = ", ".join(ending for endings in _FORMATS.values() for ending in endings)
    raise CommandError(f"the format of {path} cannot be derived from its suffix ({known}); give --format", USAGE)


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A file beside ``path`` that replaces it at the end, flushed to disk, or is removed."""
    part = path.with_name(f"{path.name}.part-{os.getpid()}")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}", USAGE) from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _write(kind: str, part: Path, columns: Projection, batches: Any, compression: str, end: StreamID,
           about: dict[str, str], tally: Tally, report: ByteReport) -> None:
    """Write the batches, whose last column is the ID."""
    pa = load()
    schema = columns.schema
    write: Callable[[Any], None]
    rows: list[Any] = []
    with contextlib.ExitStack() as stack:
        if kind == "parquet":
            from pyarrow import parquet  # noqa: PLC0415

            names = {column[0]: name for column, name in zip(columns.columns, columns.schema.names, strict=True)}
            wanted = ("id_ms", "id_seq")[: 1 + (end.ms < 1 << 63)] if "id_ms" in names else ("id_time",)  # else null
            keys = [(names[name], "ascending") for name in wanted if name in names]
            out = stack.enter_context(parquet.ParquetWriter(
                part, columns.schema, compression=compression,
                sorting_columns=parquet.SortingColumn.from_ordering(columns.schema, keys)))
            stack.callback(out.add_key_value_metadata, about)  # before it is closed

            def write(table: Any) -> None:
                out.write_table(table, row_group_size=_ROW_GROUP)
        elif kind == "arrow":
            codec = "zstd" if compression == "zstd" else None
            options = pa.ipc.IpcWriteOptions(compression=codec)
            write = stack.enter_context(pa.ipc.new_file(str(part), columns.schema, options=options)).write_table
        else:
            from pyarrow import csv  # noqa: PLC0415

            schema = pa.schema([  # bytes as text: those that are not UTF-8 are refused as bytes only
                field.with_type(pa.string()) if pa.types.is_binary(field.type) else field for field in schema])
            write = stack.enter_context(csv.CSVWriter(str(part), schema)).write_table
        for batch in batches:
            *arrays, ids = batch.columns
            about.setdefault("raxlog.first_id", str(StreamID.from_bytes(ids[0].as_py())))
            about["raxlog.last_id"] = str(StreamID.from_bytes(ids[-1].as_py()))
            rows.append(pa.RecordBatch.from_arrays([
                array.view(field.type) if pa.types.is_binary(array.type) else array
                for array, field in zip(arrays, schema, strict=True)], schema=schema))
            if sum(map(len, rows)) >= _ROW_GROUP:
                write(pa.Table.from_batches(rows))
                rows = []
            report(tally.rows, tally.rows)
        write(pa.Table.from_batches(rows, schema=schema))


def _summary(args: argparse.Namespace, written: dict[str, object], place: str, tally: Tally, took: float
             ) -> None:
    rate = tally.rows / took if took else 0.0
    malformed = f", {tally.malformed:,} with a value that is not of its column's type" if tally.malformed else ""
    output.answer(
        args.json,
        {"exported": tally.rows, "malformed": tally.malformed,
         "damaged": [{"node": error.node, "what": error.what} for error in tally.damaged],
         **written, "seconds": round(took, 6), "entries_per_second": round(rate)},
        f"{output.many(tally.rows, 'entry')} to {place}{malformed}; {took:.2f} s, {rate:,.0f} entries/s",
        *(f"left out: node {error.node}: {error.what}" for error in tally.damaged),
    )
