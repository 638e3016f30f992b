"""The scanning commands: plan, scan. The first draws partitions, the second runs SQL over a stream.

    STORE ──> partitions, from the ordinals ──> a picture (plan; no Spark is needed)
                                            └─> a local Spark ──> the table "entries" ──> rows (scan)

Both take a snapshot of a live store first: plan a shared one, scan one of its own.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

from .....storage.errors import InvalidArgument
from ....spark import live_snapshot, scan
from ....spark.location import find
from ....spark.options import Options, parse
from ....spark.plan import Part, Window, chosen
from ....spark.requirements import require, require_java
from ....spark.session import session
from ... import output
from ...arguments import OF_STREAM, argument, command, positive
from ...status import DONE, NO, USAGE, CommandError

_WIDTH = 50
_VIEW = "entries"


_RANGE = (*OF_STREAM, argument("--start", metavar="ID", default="earliest", help="first ID (default: earliest)"),
          argument("--end", metavar="ID", default="latest", help="last ID, included (default: latest)"),
          argument("--partitions", type=positive, metavar="N", help="cut it into N partitions"),
          argument("--max-records", type=positive, metavar="N", help="at most N entries in a partition"))

def _given(args: argparse.Namespace) -> dict[str, str]:
    """The data source's options that the arguments stand for."""
    given = {"path": args.store, "stream": os.fsdecode(args.stream), "startingOffsets": args.start,
             "endingOffsets": args.end, "failOnDataLoss": "false"}
    if args.partitions is not None:
        given["minPartitions"] = str(args.partitions)
    if args.max_records is not None:
        given["maxRecordsPerPartition"] = str(args.max_records)
    return given


@command(
    "plan", _RANGE,
    """Shows how a scan of the stream would be cut into partitions, without reading any entries. STORE
is a snapshot, a folder of them, a set of shards, or a live store, of which a snapshot is taken.
A partition has 250,000 entries or more unless you ask for smaller ones. Exit status 1 if the
range has no entries.""",
    "raxlog plan backup.rax orders --partitions 8",
)
def _plan(args: argparse.Namespace) -> int:
    options = parse(_given(args))
    place = live_snapshot.at_rest(find(options.path), options)
    parts = scan.resolved(scan.planned(place, options, Window.of(options)))
    pieces = [{"start": piece.start, "end": piece.end, "entries": piece.entries}
              for part in parts for piece in part.pieces]
    output.answer(args.json, {"path": place.path, "partitions": pieces}, _picture(parts, options))
    return DONE if parts else NO


def _picture(parts: list[Part], options: Options) -> str:
    """One line a partition: its share of the entries as a bar, its range of IDs."""
    total = sum(part.entries for part in parts)
    if not total:
        return f"stream {options.stream}: no entries in that range"
    rows, before = [], 0
    for number, part in enumerate(parts):
        left, right = (_WIDTH * at // total for at in (before, before + part.entries))
        bar = " " * left + "━" * max(1, right - left)
        behind = f"({parts[number + 1].pieces[0].start}" if number + 1 < len(parts) else str(part.pieces[-1].end)
        ids = f"{part.pieces[0].start} … {behind}"
        rows.append([str(number), f"{part.entries:,}", f"|{bar[:_WIDTH].ljust(_WIDTH)}|", ids])
        before += part.entries
    sizes = [part.entries for part in parts]
    head = (
        f"stream {options.stream}: {output.many(total, 'entry')} in {output.many(len(parts), 'partition')} of "
        f"{min(sizes):,} to {max(sizes):,}"
    )
    return "\n".join([head, *output.table(rows, right=(0, 1))])


@command(
    "scan",
    (*_RANGE,
     argument("--sql", metavar="QUERY", default=f"select * from {_VIEW} limit 20",
              help=f"the query; the stream is the table '{_VIEW}' (default: its first 20 rows)"),
     argument("--schema", metavar="COLUMNS",
              help="fields to read as columns: 'item string, qty int'; id_ms and id_seq can be among them "
              "(default: id_ms, id_seq, fields as a map)"),
     argument("--cores", type=positive, metavar="N", help="how many to use (default: all)"),
     argument("--rows", type=positive, default=1000, metavar="N", help="print at most N rows (default: 1000)")),
    """Starts a Spark on this machine, which takes some ten seconds, runs the query and prints a table;
with --json a line a row. Needs Java 17 and the extra 'spark'. Columns that --schema names are
decoded alone, which is faster than the map. Exit status 1 if the query has no rows.""",
    "raxlog scan backup.rax orders --schema 'item string, qty int' \\\n"
    "    --sql 'select item, sum(qty) from entries group by item order by 2 desc'",
)
def _scan(args: argparse.Namespace) -> int:
    options = parse(_given(args))
    chosen(list(scan.streams_in(find(options.path))), options)  # before Java starts, which takes seconds
    require()
    require_java()
    with tempfile.TemporaryDirectory(prefix="raxlog-scan-") as folder:  # for the snapshot of a live store
        given = _given(args) | {"snapshotDir": folder}
        spark = _session(args.cores, Path(folder))
        try:
            return _query(spark, given, args)
        finally:
            spark.stop()


_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c: %m%n
"""


def _session(cores: int | None, folder: Path) -> Any:
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - half a second, and only here

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    logging = folder / "log4j2.properties"  # read before the session is there: its own setting comes after warnings
    logging.write_text(_LOGGING, encoding="ascii")
    spark = session(f"local[{cores or '*'}]", {
        "spark.app.name": "raxlog scan", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging.as_uri()}",
        "spark.driver.bindAddress": "127.0.0.1", "spark.sql.shuffle.partitions": "8",
    })
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel("CRITICAL")  # it prints errors again, with stacks
    return spark


def _query(spark: Any, given: dict[str, str], args: argparse.Namespace) -> int:
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        reader = spark.read.format("raxlog").options(**given)
        if args.schema is not None:
            reader = reader.schema(args.schema)
        reader.load().createOrReplaceTempView(_VIEW)
        found = spark.sql(args.sql)
        rows = found.limit(args.rows).collect()
    except PySparkException as error:
        raise _spark_failure(error) from None
    if args.json:
        for row in rows:
            output.print_json(_json(row.asDict()))
    else:
        numbers = {"bigint", "int", "double", "float", "smallint", "tinyint"}
        right = [at for at, (_, kind) in enumerate(found.dtypes) if kind in numbers or kind.startswith("decimal")]
        output.print_text(*output.table([found.columns, *([_cell(value) for value in row] for row in rows)], right))
    return DONE if rows else NO


def _spark_failure(error: Exception) -> Exception:
    """Spark's error without its stack: raxlog's own message where it is one of raxlog's."""
    text = str(error)
    for line in text.splitlines():
        name, colon, message = line.strip().partition(": ")
        if colon and name.startswith("raxlog.") and name.endswith(tuple(_OURS)):
            return InvalidArgument(message)
    if "[TABLE_OR_VIEW_NOT_FOUND]" in text:
        return CommandError(f"--sql names a table that is not there: the stream is the table '{_VIEW}'", USAGE)
    return CommandError(" ".join(text.split("JVM stacktrace", maxsplit=1)[0].split())[:2000], USAGE)


_OURS = ("InvalidArgument", "InvalidStreamID", "NoStream", "NotAStore", "CorruptionError", "MalformedValue",
         "UnsupportedFormat", "StoreError", "StoreFull")


def _json(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, dict):
        return {key: _json(item) for key, item in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bytes | bytearray):
        return output.text(bytes(value))
    if isinstance(value, dict):
        return " ".join(f"{output.text(name)}={_cell(item)}" for name, item in value.items())
    return output.one_line(str(value))
