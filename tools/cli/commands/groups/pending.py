"""Pending entries: listing them, claiming them, releasing them.

pending with a ──claim, autoclaim──> pending with b
      │                                  ^
      └─nack─> released ─────────────────┘   at once; read --claim-idle once its delay is over
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from .....stream.group.info import Autoclaimed, Pending, PendingSummary
from .....stream.node.entry import Entry
from .....stream.node.json_form import entry_form
from .....stream.node.stream_id import StreamID, parse_end, parse_id, parse_start
from .... import output
from ...arguments import IDS, OF_CONSUMER, OF_GROUP, TIME, WRITING, Add, argument, command, flag, one_of
from ...readers import bound, consumer_name, moment, positive, seconds, whole
from ...status import DONE, NO
from ...stores import group_of, writing

_DELIVERY = (argument("--deliveries", type=whole, metavar="N", help="set the delivery count to N"),
             flag("--force", "also entries that are not pending, which become pending"))


@command(
    "pending",
    (*OF_GROUP, argument("start", metavar="START", nargs="?", read=bound(parse_start),
                         help="first ID, or time, to list (default: -, the first)"),
     argument("end", metavar="END", nargs="?", default="+", read=bound(parse_end),
              help="last ID, or time, to list (default: +, the last)"),
     flag("--list", "a line for each entry; START and the filters imply it"),
     argument("--consumer", metavar="NAME", read=consumer_name, help="only this consumer's"),
     argument("--min-idle", type=seconds, metavar="SECONDS", help="only entries idle for this long"),
     argument("--count", type=whole, metavar="N", help="at most N entries"), TIME),
    """Prints the number of pending entries, in all and by consumer. With --list (or START, or any
filter), prints a line for each entry: its consumer, the seconds since it was delivered, and how
often it has been delivered. An entry released by 'raxlog nack' has no consumer and no idle time.
Exit status 1 if a list is empty.""",
    "raxlog pending events.rax orders billing",
    "raxlog pending events.rax orders billing --consumer worker-1 --min-idle 60 --count 10",
)
def _pending(args: argparse.Namespace) -> int:
    start = StreamID.MIN if args.start is None else args.start
    filters = (args.start, args.consumer, args.min_idle, args.count)
    with group_of(args) as group:
        if not args.list and all(given is None for given in filters):
            _print_summary(group.pending(), args.json, args.time)
            return DONE
        rows = group.pending_entries(start, args.end, args.count, consumer=args.consumer, min_idle=args.min_idle)
    _print_list(rows, args.json, args.time)
    return DONE if rows else NO


def _print_summary(summary: PendingSummary, as_json: bool, time: bool) -> None:
    consumers = [{"name": name, "pending": n} for name, n in summary.consumers.items()]
    ends = [f"{sid} ({output.time_of(sid)})" if time else str(sid) for sid in (summary.first, summary.last) if sid]
    between = f", from {' to '.join(ends)}" if summary.total else ""
    rows = [(output.text(name), f"{pending:,}") for name, pending in summary.consumers.items()]
    released = summary.total - summary.parked - sum(summary.consumers.values())
    rows += [(what, f"{count:,}") for what, count in (("(released)", released), ("(parked)", summary.parked)) if count]
    output.answer(
        as_json, summary.to_dict() | {"consumers": consumers},
        f"{output.many(summary.total, 'pending entry')}{between}", *output.table(rows, (1,), ("consumer", "pending")),
    )


def _print_list(rows: Sequence[Pending], as_json: bool, time: bool) -> None:
    if as_json:
        for row in rows:
            output.print_json(output.timed(row.to_dict(), row.id, time))
        return
    cells = [(str(row.id), *([output.time_of(row.id)] if time else []),
              "(parked)" if row.parked else "(released)" if row.consumer is None else output.text(row.consumer),
              output.duration(row.idle), f"{row.deliveries:,}") for row in rows]
    output.print_text(*output.table(
        cells, (2 + time, 3 + time), ("id", *["time"] * time, "consumer", "idle (s)", "deliveries")))


def _taking(what: str) -> tuple[Add, Add]:
    """--min-idle, which selects what is claimed, and --justid."""
    return (argument("--min-idle", type=seconds, default=0.0, metavar="SECONDS", help=what),
            flag("--justid", "print IDs only, and do not count it as a delivery"))


@command(
    "claim",
    (*OF_CONSUMER, IDS, *_taking("only entries idle for this long (default: 0)"),
     one_of(argument("--idle", type=seconds, metavar="SECONDS", help="as if delivered this long ago (default: now)"),
            argument("--time", type=moment, metavar="TIME", help="as if delivered at this time")),
     *_DELIVERY,
     argument("--lastid", metavar="ID", read=parse_id, help="move the group's last delivered ID forward to this one"),
     *WRITING),
    """Moves pending entries from any consumer to CONSUMER, and prints them. With --min-idle, an entry that
was delivered more recently stays with its consumer. Exit status 1 if none was claimed.""",
    "raxlog claim events.rax orders billing worker-2 1526919030474-55 --min-idle 60",
)
def _claim(args: argparse.Namespace) -> int:
    with group_of(args, writing) as group:
        claim: Callable[..., Sequence[Entry | StreamID]] = group.claim_ids if args.justid else group.claim
        claimed = claim(
            args.consumer, *args.ids, min_idle=args.min_idle, idle=args.idle, time=args.time,
            deliveries=args.deliveries, force=args.force, lastid=args.lastid
        )
    for entry in claimed:
        output.answer(args.json, _claimed_json(entry), _claimed_text(entry))
    return DONE if claimed else NO


def _claimed_json(entry: Entry | StreamID) -> dict[str, object]:
    return {"id": entry} if isinstance(entry, StreamID) else entry_form(entry) | output.delivery_json(entry)


def _claimed_text(entry: Entry | StreamID) -> str:
    return str(entry) if isinstance(entry, StreamID) else output.entry_text(entry)


@command(
    "autoclaim",
    (*OF_CONSUMER, *_taking("entries idle for this long (default: 0, all)"),
     argument("--start", default="0", metavar="ID", read=bound(parse_start),
              help="where to begin, an ID or a time (default: 0, at the beginning)"),
     argument("--count", type=positive, default=100, metavar="N", help="at most N entries (default: 100)"), *WRITING),
    """Claims entries idle for --min-idle, in the order of IDs, and prints where to continue. Entries
released by 'raxlog nack' are claimed too, regardless of their --delay. Pending entries that have
been deleted are removed. With --json prints one document: {"cursor": ID or null at the end,
"entries": […], "deleted": […]}. Exit status 1 if there was nothing.""",
    "raxlog autoclaim events.rax orders billing worker-2 --min-idle 60 --count 10",
)
def _autoclaim(args: argparse.Namespace) -> int:
    with group_of(args, writing) as group:
        claim: Callable[..., Autoclaimed[Any]] = group.autoclaim_ids if args.justid else group.autoclaim
        done = claim(args.consumer, args.min_idle, args.start, args.count)
    cursor, claimed, deleted = done.cursor, done.entries, done.deleted
    more = cursor != StreamID.MIN
    gone_too = f", {len(deleted):,} found deleted and removed" if deleted else ""
    then = f"go on with --start {cursor}" if more else "that was the end"
    document = {"cursor": cursor if more else None, "entries": list(map(_claimed_json, claimed)), "deleted": deleted}
    output.answer(
        args.json, document, *map(_claimed_text, claimed),
        f"{output.many(len(claimed), 'entry')} claimed{gone_too}; {then}",
    )
    return DONE if claimed or deleted or more else NO


@command(
    "nack",
    (*OF_GROUP, IDS,
     argument("--mode", choices=("silent", "fail", "fatal"), default="fail",
              help="fail: the delivery counts (default); silent: it does not; fatal: the count becomes the greatest"),
     argument("--delay", type=seconds, default=0.0, metavar="SECONDS",
              help="'read --claim-idle' delivers them only after this time"),
     *_DELIVERY, *WRITING),
    """Releases pending entries to the group. 'read --claim-idle' of any consumer delivers them, at once or
after --delay; 'claim' and 'autoclaim' take them at once. Prints how many were pending. Exit status 1
if none was.""",
    "raxlog nack events.rax orders billing 1526919030474-55 --delay 30",
)
def _nack(args: argparse.Namespace) -> int:
    with group_of(args, writing) as group:
        released = group.nack(*args.ids, mode=args.mode, delay=args.delay, deliveries=args.deliveries, force=args.force)
    output.answer(args.json, {"released": released}, f"{output.many(released, 'entry')} released")
    return DONE if released else NO
