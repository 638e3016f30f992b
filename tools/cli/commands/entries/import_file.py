"""import: the entries of a file into a stream, a batch a commit.

    file ──lines──> records ──1,000──> Stream.extend ──> durable, counted
                       │                                    │
                    a bad one: named by file and line       Ctrl-C: what is durable stays

However an import ends, it reports how many entries are durable and the line of the first
that is not: every batch is one commit, and Ctrl-C waits for the current one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from types import FrameType
from typing import Any, cast

from .....storage import clocks
from .....storage.errors import InvalidFields, InvalidStreamID, RaxlogError
from .....stream.node.entry import OWN_FIELD, checked, flatten
from .....stream.node.flattened import Flattened
from .....stream.node.stream_id import MAX64, IDLike, StreamID, make_id, parse_new_id
from .....stream.stream import Stream
from .... import output
from ... import messages, redis_keys
from ...arguments import OF_STORE, WRITING, argument, command, flag, one_of
from ...progress import ByteReport, progress
from ...readers import positive, stream_name
from ...status import DONE, INTERRUPTED, NO, USAGE, CommandError, status_of
from ...stores import writing
from . import compressed, input_formats, tables
from .input_formats import Bad, Lines, Record, Rows
from .tables import Table

_BATCH = 1000
_BATCH_BYTES = 8 << 20  # of input: long lines make a batch full earlier
_LOOK = 200  # milliseconds without input after which signals are looked for
_BUFFER = 64 << 10  # of a pipe: what it holds


@contextlib.contextmanager
def interrupt_deferred() -> Iterator[None]:
    """Ctrl-C within the block is raised at its end; a second one at once, for the block may wait for another writer.

    Does nothing outside the main thread, or where the program has a SIGINT handler of its own.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt


class Awaited(io.RawIOBase):
    """A pipe or a terminal, read only when there is something to read.

    CPython runs the handlers of signals, then gives its lock away, then calls read(2). A Ctrl-C that
    comes between (long, where another thread wants the lock) would be noticed only at the next input.
    """

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw = raw
        self._ready = select.poll()
        self._ready.register(raw.fileno(), select.POLLIN)

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._raw.fileno()

    def readinto(self, buffer: Any) -> int | None:
        """Read what there is into ``buffer``; 0 at the end."""
        while not self._ready.poll(_LOOK):
            pass  # each turn runs the handlers of signals
        return self._raw.readinto(buffer)


@dataclass
class Import:
    """One import: what has been read, what is durable, where to continue."""

    name: str
    skip_bad: bool
    next_line: int  # of the input, the first that is not durable
    imported: int = 0
    skipped: int = 0
    first_id: StreamID | None = None
    last_id: StreamID | None = None
    order: tuple[int, int] = (0, 0)  # no ID below this or equal to it can be appended

    def run(self, stream: Stream, found: Iterator[Rows | Record | Bad], source: Lines | Table, batch: int,
            report: ByteReport) -> None:
        """Append all that ``found`` yields. A bad record commits what came before it and raises."""
        self.order = stream.last_id
        flats: list[list[bytes]] = []
        ids: list[IDLike] = []  # as many, where one is given
        begin, line = source.taken, 0

        def commit_if_full() -> None:
            nonlocal flats, ids, begin
            if len(flats) >= batch or source.taken - begin >= _BATCH_BYTES:
                self._commit(stream, flats, ids, line)
                flats, ids = [], []
                begin = source.taken
                report(source.position, self.imported)

        for record in found:
            if isinstance(record, Rows):
                at = 0
                while at < len(record.flats):
                    some = record.flats[at : at + batch - len(flats)]
                    flats += some
                    at += len(some)
                    line = record.numbers[at - 1]
                    commit_if_full()
                continue
            try:
                if isinstance(record, Bad):
                    raise InvalidFields(record.what)
                number, given, flat = record
                if len(flat) > 2 and flat[0] == OWN_FIELD:  # what a schedule appended is copied so
                    checked(flat[2:])
                else:
                    checked(flat)
                if given is not None:
                    sid = self._next_id(given)
                    ids += ["*"] * (len(flats) - len(ids))
                    ids.append(sid)
                line = number
                flats.append(flat)
            except (InvalidFields, InvalidStreamID) as error:
                if not self.skip_bad:
                    self._commit(stream, flats, ids, line)
                    bad = record.line if isinstance(record, Bad) else record[0]
                    hint = source.id_hint if isinstance(error, InvalidStreamID) else ""
                    raise CommandError(f"{self.name}:{bad}: {error}{hint}", USAGE) from None
                self.skipped += 1
                continue
            commit_if_full()
        self._commit(stream, flats, ids, line)
        report(source.position, self.imported)
        self.next_line = max(self.next_line, source.number + 1)

    def _commit(self, stream: Stream, flats: list[list[bytes]], ids: list[IDLike], line: int) -> None:
        if not flats:
            return
        if ids:
            ids += ["*"] * (len(flats) - len(ids))
        with interrupt_deferred():
            sids = stream.extend(Flattened(flats), ids or None)
            self.imported += len(sids)
            self.first_id = self.first_id or sids[0]
            self.last_id = sids[-1]
            self.next_line = line + 1

    def _next_id(self, given: StreamID | str) -> StreamID | str:
        """A given ID, as extend() takes it soonest. InvalidStreamID, for which a whole batch would fail."""
        new, last = parse_new_id(given), self.order
        if new.ms is None:
            return given
        seq = last[1] + 1 if new.ms == last[0] and last[1] < MAX64 else 0
        wanted = (new.ms, seq if new.seq is None else new.seq)
        if wanted <= last:
            raise InvalidStreamID(f"the ID {given} is not greater than the one before, {last[0]}-{last[1]}")
        self.order = wanted
        return given if new.seq is None else make_id(*wanted)


@command(
    "import",
    (*OF_STORE,
     argument("stream", metavar="STREAM", nargs="?", read=stream_name,
              help="the stream's name; with --redis a pattern of names"),
     argument("file", metavar="FILE", nargs="?", default="-", help="what to read (default: -, standard input)"),
     argument("--rdb", metavar="FILE", help="import the keys of a file that Redis has saved"),
     argument("--redis", metavar="URL", help="import the keys of a server, as in redis://localhost:6379/0"),
     flag("--replace", "with --rdb and --redis: also replace existing keys"),
     argument("--format", choices=input_formats.FORMATS,
              help="default: guessed from the file's name, or from its first bytes"),
     argument("--batch", type=positive, metavar="N",
              help="entries per commit (default: 1000; 10,000 of Parquet and Arrow)"),
     argument("--field", default="line", metavar="NAME", help="the field for plain lines (default: line)"),
     one_of(argument("--id-field", metavar="NAME", help="use this field, or column, as the entry's ID"),
            flag("--new-ids", "of Parquet and Arrow: leave out id_ms and id_seq, and take id as a field")),
     argument("--leave-out", metavar="COLUMN", action="append", default=[],
              help="of Parquet and Arrow: a column not to import; can be repeated"),
     argument("--delimiter", metavar="CHAR",
              help="the separator of CSV columns (default: a comma; a tab for *.tsv)"),
     argument("--from-line", type=positive, default=1, metavar="N", help="start at line N of the input"),
     flag("--skip-bad", "leave out records that cannot be stored, and count them"), *WRITING),
    """Reads a file, or standard input, and appends an entry for each record, in one commit per
batch. Creates the store and the stream if they do not exist. Text packed with gzip or zstd is unpacked.

  ndjson   an object per line; numbers and nested values are stored as their JSON text,
           {"base64": "…"} as the decoded bytes
  csv      the first row names the fields; UTF-8, or any other bytes as they are
  lines    each line is an entry with the field --field
  entries  the output of 'raxlog range --json', IDs included
  parquet, arrow  each row of a Parquet file, or of an Arrow IPC file or stream; null is no field

With --id-field the IDs must ascend: ms-seq, ms, or ms-* for several in a millisecond. A
record that cannot be stored ends the import (exit status 2) with an error that names file and line;
with --skip-bad it is left out. However an import ends, it prints how many entries are durable and
at which line to continue; Ctrl-C waits for the current commit.

The columns id_ms and id_seq of a Parquet or Arrow file are the entries' IDs; without them id is, if it
is text or has the 16 bytes of IDs. --id-field takes another column: text, numbers (milliseconds) or
times. A map of text named fields holds all fields of an entry, as 'raxlog export' writes it. Numbers,
times and truth values become text, lists and structs JSON; durations, say, cannot be stored. A row
counts as a line. Needs pyarrow: pip install pyarrow.

--rdb and --redis import all streams, with their groups and pending entries, node by node and byte
for byte, and also strings, lists and the times at which keys expire. A key that already exists in
the store stays as it is. Keys of other kinds are left out and counted. --redis needs redis-py:
pip install raxlog[redis].""",
    "raxlog import events.rax orders orders.csv --id-field time",
    "raxlog import events.rax orders orders.parquet",
    "journalctl -o json | raxlog import events.rax journal -",
    "raxlog range events.rax orders --json | raxlog import copy.rax orders --format entries",
    "raxlog import events.rax --rdb /var/lib/redis/dump.rdb",
    "raxlog import events.rax --redis redis://localhost 'orders*'",
)
def _run(args: argparse.Namespace) -> int:
    if args.rdb is not None or args.redis is not None:
        return redis_keys.import_keys(args)
    if args.stream is None:
        raise CommandError("the following arguments are required: STREAM (see 'raxlog import --help')", USAGE)
    flatten([(os.fsencode(args.field), b"")])
    name = compressed.name_within(args.file)
    delimiter = args.delimiter or ("\t" if name.lower().endswith(".tsv") else ",")
    if len(delimiter) != 1 or delimiter in '\r\n"':
        raise CommandError(f"--delimiter {delimiter!r} is not one character that can separate columns", USAGE)
    with _source(args.file) as opened:
        raw = file = _awaited(opened)
        shown = "standard input" if args.file == "-" else args.file
        if compressed.is_packed(raw):
            file = io.BufferedReader(compressed.Compressed(raw, shown), _BUFFER)
        kind = args.format or input_formats.guess(name, file)
        source: Lines | Table
        if kind in input_formats.TABLES:
            if file is not raw:
                raise CommandError(f"{shown} is a table in a packed file: unpack it first; nothing has been imported",
                                   USAGE)
            source = Table(kind, file, shown, _size(file), args.id_field, args.new_ids, tuple(args.leave_out))
            found: Iterator[Rows | Record | Bad] = source.records(args.from_line)
        elif args.new_ids or args.leave_out:
            what = "--new-ids" if args.new_ids else "--leave-out"
            raise CommandError(f"{what} is for columns of Parquet and Arrow, and {shown} is {kind}", USAGE)
        else:
            source = Lines(file, shown, args.format is not None, None if file is raw else raw)
            found = input_formats.records(
                kind, source, field=args.field, delimiter=delimiter, start=args.from_line, id_field=args.id_field
            )
        batch = args.batch or (tables.ROWS if kind in input_formats.TABLES else _BATCH)
        first = next(found, None)
        if isinstance(first, Bad) and not args.skip_bad:  # before a store is created
            raise CommandError(f"{shown}:{first.line}: {first.what}; nothing has been imported", USAGE)
        work = Import(shown, args.skip_bad, args.from_line)
        began = clocks.elapsed()
        trouble: CommandError | None = None
        with writing(args, create=True) as store, progress(shown, _size(raw)) as report:
            try:
                records = chain([] if first is None else [first], found)
                work.run(store.stream(args.stream), records, source, batch, report)
            except (CommandError, RaxlogError, KeyboardInterrupt, OSError) as error:
                trouble = _failure(error, work)
        _summary(args, work, kind, clocks.elapsed() - began, trouble)
    if trouble is not None:
        raise trouble
    return NO if work.skipped and not work.imported else DONE


def _failure(error: BaseException, work: Import) -> CommandError:
    """Why the import stopped, what is durable, and where to continue."""
    if isinstance(error, CommandError):
        what, status = str(error), error.status
    elif isinstance(error, RaxlogError):
        what, status = messages.in_options(str(error)).rstrip("."), status_of(error)
    elif isinstance(error, KeyboardInterrupt):
        what, status = "interrupted", INTERRUPTED
    else:
        what, status = f"{work.name} cannot be read: {error}", USAGE
    durable = output.many(work.imported, "entry")
    verb = "is" if work.imported == 1 else "are"
    return CommandError(f"{what}; {durable} {verb} durable, go on with --from-line {work.next_line}", status)


def _summary(args: argparse.Namespace, work: Import, kind: str, took: float, trouble: CommandError | None) -> None:
    rate = work.imported / took if took else 0.0
    if args.json:
        output.print_json({
            "imported": work.imported, "skipped": work.skipped, "ok": trouble is None, "format": kind,
            "first_id": work.first_id, "last_id": work.last_id,
            "next_line": work.next_line, "seconds": round(took, 6), "entries_per_second": round(rate),
        })  # fmt: skip
    elif trouble is None:
        ids = f", {work.first_id} … {work.last_id}" if work.imported else ""
        left_out = f", {work.skipped:,} bad left out" if work.skipped else ""
        output.print_text(
            f"{output.many(work.imported, 'entry')} from {work.name} ({kind}){ids}{left_out}; "
            f"{took:.2f} s, {rate:,.0f} entries/s"
        )


def _source(path: str) -> contextlib.AbstractContextManager[io.BufferedReader]:
    if path == "-":
        return contextlib.nullcontext(cast(io.BufferedReader, sys.stdin.buffer))
    try:
        return open(path, "rb")
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}", USAGE) from None


def _awaited(file: io.BufferedReader) -> io.BufferedReader:
    """``file``, such that Ctrl-C ends each of its reads."""
    try:
        mode = os.fstat(file.fileno()).st_mode
    except OSError:  # no descriptor: all is there
        return file
    return file if stat.S_ISREG(mode) else io.BufferedReader(Awaited(cast(io.RawIOBase, file.raw)), _BUFFER)


def _size(file: io.BufferedReader) -> int | None:
    try:
        status = os.fstat(file.fileno())
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
