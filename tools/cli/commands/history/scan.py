"""The scanning commands: plan, scan. The first draws partitions, the second runs SQL over a stream.

    STORE ──> partitions, from the ordinals ──> a picture (plan; no Spark is needed)
                                            └─> a local Spark ──> the table "entries" ──> rows (scan)

Both take a snapshot of a live store first: plan a shared one, scan one of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .....storage import errors
from .... import output
from ....spark import live_snapshot, scan
from ....spark.location import find
from ....spark.options import Options, parse
from ....spark.plan import Part, Window, chosen
from ....spark.requirements import require, require_java
from ....spark.session import session
from ... import messages
from ...arguments import OF_STREAM, argument, command, flag
from ...readers import positive, time_as_id
from ...status import DONE, NO, USAGE, CommandError, status_of

_WIDTH = 50
_VIEW = "entries"


_RANGE = (*OF_STREAM, argument("--start", metavar="ID", default="earliest", read=time_as_id,
                   help="first ID, or a time (default: earliest)"),
          argument("--end", metavar="ID", default="latest", read=time_as_id,
                   help="last ID, included, or a time (default: latest)"),
          argument("--as-of", metavar="TIME", help="if STORE holds several snapshots: the newest up to this time, "
                   "2026-11-22T10:00:00Z or milliseconds since 1970; or up to 'transaction 57'"),
          argument("--partitions", type=positive, metavar="N", help="cut it into N partitions"),
          argument("--max-records", type=positive, metavar="N", help="at most N entries in a partition"))

def _given(args: argparse.Namespace) -> dict[str, str]:
    """The data source's options that the arguments stand for."""
    given = {"path": args.store, "stream": os.fsdecode(args.stream), "startingOffsets": args.start,
             "endingOffsets": args.end, "failOnDataLoss": "false"}
    more = {"asOf": args.as_of, "minPartitions": args.partitions, "maxRecordsPerPartition": args.max_records}
    return given | {name: str(value) for name, value in more.items() if value is not None}


@command(
    "plan", _RANGE,
    """Shows how a scan of the stream would be cut into partitions, without reading any entries. STORE
is a snapshot, a folder of them, a set of shards, or a live store, of which a snapshot is taken.
A partition has 250,000 entries or 32 MiB, or more, unless you ask for smaller ones. Exit
status 1 if the range has no entries.""",
    "raxlog plan backup.rax orders --partitions 8",
)
def _plan(args: argparse.Namespace) -> int:
    options = parse(_given(args))
    place = live_snapshot.at_rest(find(options.path, options.as_of), options)
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
     argument("--cores", type=positive, metavar="N", help="processor cores to use (default: all)"),
     flag("--verbose", "show what Java and Spark print"),
     argument("--rows", type=positive, default=1000, metavar="N", help="print at most N rows (default: 1000)")),
    """Starts Spark on this machine, which takes some ten seconds, runs the query and prints a table;
with --json a line per row. Needs Java 17 and the extra 'spark'. With --schema only those columns are
decoded, which is faster than the map. Exit status 1 if the query has no rows.""",
    "raxlog scan backup.rax orders --schema 'item string, qty int' \\\n"
    "    --sql 'select item, sum(qty) from entries group by item order by 2 desc'",
)
def _scan(args: argparse.Namespace) -> int:
    _check_sql(args.sql)
    options = parse(_given(args))
    chosen(list(scan.streams_in(find(options.path, options.as_of))), options)  # before Java starts, which takes seconds
    require()
    require_java()
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="raxlog-scan-") as folder:  # for the snapshot of a live store, too
        log = Path(os.devnull) if args.verbose else Path(folder) / "log"
        try:
            with contextlib.nullcontext() if args.verbose else _redirected(log):
                columns, rows = _answered(args, folder)
        except KeyboardInterrupt:  # pyspark leaves a Java behind that it is interrupted in starting
            with contextlib.suppress(OSError, ValueError):
                os.kill(int((Path(folder) / "java").read_text()), signal.SIGTERM)
            raise
        except (PySparkException, Py4JError) as error:
            raise _spark_failure(str(error), log.read_text(errors="replace")) from None
        for warning in dict.fromkeys(_OURS.findall(log.read_text(errors="replace"))):
            print(f"raxlog: {output.one_line(warning)}", file=sys.stderr)
    if args.json:
        for row in rows:
            output.print_json(_json(row.asDict()))
    else:
        numbers = {"bigint", "int", "double", "float", "smallint", "tinyint"}
        right = [at for at, (_, kind) in enumerate(columns) if kind in numbers or kind.startswith("decimal")]
        table = [[name for name, _ in columns], *([_cell(value) for value in row] for row in rows)]
        output.print_text(*output.table(table, right))
    return DONE if rows else NO


_QUOTED = re.compile(
    r"""(?is)(?<!\w)r(?:'[^']*'|"[^"]*")|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|--(?:\\\n|[^\r\n])*|/\*.*?\*/"""
)


def _check_sql(sql: str) -> None:
    """Refuse what no SQL can be, before Java starts; the rest is for Spark, which alone knows its SQL."""
    bare = _QUOTED.sub(" ", sql)
    if not bare.strip(" \t\r\n;"):
        raise CommandError("--sql is empty", USAGE)
    odd = [mark for mark in "'\"`" if mark in bare] + ["parenthesis"] * (bare.count("(") != bare.count(")"))
    if odd and "$" not in bare and "*/" not in bare:  # a string in dollars, a comment in a comment
        raise CommandError(f"--sql has a {odd[0]} without its counterpart", USAGE)
    if _VIEW not in sql.lower():
        print(f"raxlog: --sql does not name the table '{_VIEW}', which is the stream", file=sys.stderr)


@contextlib.contextmanager
def _redirected(log: Path) -> Iterator[None]:
    """Standard output and error of this process, and of those that it starts, go to a file."""
    sys.stdout.flush()
    with log.open("wb") as file, os.fdopen(os.dup(1), "wb") as out, os.fdopen(os.dup(2), "wb") as err:
        try:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
            yield
        finally:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)


def _answered(args: argparse.Namespace, folder: str) -> tuple[list[tuple[str, str]], list[Any]]:
    """Names and types of the columns, and the rows."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    java = Path(folder) / "java"
    os.register_at_fork(after_in_child=lambda: java.parent.exists() and java.write_text(str(os.getpid())))
    spark = session(f"local[{args.cores or '*'}]", {
        "spark.app.name": "raxlog scan", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1", "spark.sql.shuffle.partitions": "8",
    })
    try:
        reader = spark.read.format("raxlog").options(**_given(args) | {"snapshotDir": folder})
        if args.schema is not None:
            reader = reader.schema(args.schema)
        reader.load().createOrReplaceTempView(_VIEW)
        found = spark.sql(args.sql)
        return found.dtypes, found.limit(args.rows).collect()
    finally:
        spark.stop()


_OURS = re.compile(re.escape(str(Path(errors.__file__).parents[1])) + r"/\S+\.py:\d+: \w+Warning: (.+)")  # in a log


def _spark_failure(text: str, printed: str) -> Exception:
    """Spark's error without its stack: raxlog's own message where it is one of raxlog's."""
    ours = re.search(r"^\s*raxlog\.(\w+): (.+)", text, re.M)
    if ours is not None:
        kind = getattr(errors, ours[1], errors.RaxlogError)
        return CommandError(messages.in_options(ours[2]), status_of(kind("")))
    if "[TABLE_OR_VIEW_NOT_FOUND]" in text:
        return CommandError(f"--sql names a table that is not there: the stream is the table '{_VIEW}'", USAGE)
    line = text.strip().partition("\n")[0]
    if not re.search(r"SQLSTATE: (?!XX)", line):  # not an error of the query: what Java has printed may explain it
        sys.stderr.write(printed)
    return CommandError(line[:2000], USAGE)


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
