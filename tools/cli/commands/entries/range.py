"""The reading commands: range, get, tail. None of them writes or creates anything."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from .....storage.errors import NoStream
from .....storage.folder import directory
from .....stream.entries.header import shown
from .....stream.node.entry import Entry
from .....stream.node.stream_id import StreamID, parse_id
from .....stream.stream import Stream
from .... import output
from ...arguments import OF_STREAM, RANGE, RAW, TIME, argument, command, flag
from ...readers import whole
from ...status import DONE, NO, CommandError
from ...stores import existing, reading, stream_of

_LOOK_FOR_STORE = 0.1  # seconds
_LOOK_ANYWAY = 1.0  # seconds; an append wakes at once, a deletion is found by looking


@command(
    "range",
    (*OF_STREAM, *RANGE,
     argument("--count", type=whole, metavar="N", help="at most N entries"),
     flag("--reverse", "the same range from its end"), RAW, TIME),
    """START and END are IDs as Redis writes them, both included: - and + for the first and the
last, 'ms' for all of a millisecond, '(ms-seq' to exclude that ID. Entries are printed in the order
of their IDs, a line each: the ID, then field=value, separated by tabs. With --json a line is
{"id": "ms-seq", "fields": {…}}; fields is a list of [name, value] if a name occurs twice
or is not UTF-8. If a codec has encoded an entry, its decoded fields are printed, with --json as
"value"; --raw prints them as stored, for 'raxlog import'. Exit status 1 if the range has no entry.""",
    "raxlog range events.rax orders - + --count 2",
    "raxlog range events.rax orders '(1526919030474-55' --json",
)
def _range(args: argparse.Namespace) -> int:
    status = NO
    with stream_of(args) as stream:
        for entry in stream.range(args.start, args.end, args.count, reverse=args.reverse):
            output.print_entry(entry, args.json, args.raw, args.time)
            status = DONE
    return status


@command(
    "get",
    (*OF_STREAM, argument("id", metavar="ID", read=parse_id, help="the entry's ID: ms-seq, or ms for ms-0"), RAW, TIME),
    """Exit status 1 if there is no entry with exactly this ID.""",
    "raxlog get events.rax orders 1526919030474-55",
)
def _get(args: argparse.Namespace) -> None:
    with stream_of(args) as stream:
        entry = stream.get(args.id)
    if entry is None:
        raise CommandError(f"there is no entry {args.id} in stream {shown(stream.name)}", NO)
    output.print_entry(entry, args.json, args.raw, args.time)


@command(
    "tail",
    (*OF_STREAM,
     argument("-n", type=whole, default=10, metavar="N", dest="last",
              help="begin with the last N entries (default: 10)"),
     argument("--count", type=whole, metavar="N",
              help="stop after N entries, those at the beginning included (default: follow for ever)"),
     flag("--wait", "wait for a store, or a stream, that does not exist yet"), RAW, TIME),
    """Prints entries as 'range' does, then waits and prints each new entry that any process appends,
until it has printed --count entries or is stopped with Ctrl-C. A stream that does not exist, or
is deleted, is an error (exit status 1), unless --wait is given.""",
    "raxlog tail events.rax orders -n 5",
    "raxlog tail events.rax orders -n 0 --count 1      # wait for the next one",
    "raxlog tail events.rax orders --wait              # start it before the store exists",
)
def _tail(args: argparse.Namespace) -> None:
    remaining = -1 if args.count is None else args.count
    while args.wait and args.store and directory.is_vacant(Path(args.store)):
        time.sleep(_LOOK_FOR_STORE)
    with reading(args) as store:
        stream = store.stream(args.stream) if args.wait else existing(store, args.stream)
        follower = stream.follow(stream.last_id, _LOOK_ANYWAY)
        entries: Iterable[Entry] = _newest(stream, follower.after, args.last)
        while True:
            for entry in entries if remaining < 0 else islice(entries, remaining):
                output.print_entry(entry, args.json, args.raw, args.time)
                remaining -= remaining > 0
                sys.stdout.flush()
            if remaining == 0 or follower.after == StreamID.MAX:
                return
            if not args.wait and not stream.exists():
                raise NoStream(f"the stream {shown(args.stream)} was deleted while it was followed")
            entries = follower


def _newest(stream: Stream, last: StreamID, wanted: int) -> Iterable[Entry]:
    """The last ``wanted`` entries up to the ID ``last``, the oldest first, lazily."""
    count = stream.count("-", last)
    if not count or not wanted:
        return []
    try:
        return stream.range(stream.select(max(0, count - wanted)), last)
    except IndexError:
        return []  # trimmed between the two calls
