"""Pending entries: who has them, taking them over, giving them back.

pending with a ──claim, autoclaim──> pending with b
      │                                  ^
      └─nack─> pending with nobody ──────┘   at once; read --claim-idle once its delay is over
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ...stream.entry import Entry
from ...stream.group_info import Pending, PendingSummary
from ...stream.id import StreamID, parse_end, parse_id, parse_start
from . import output
from .arguments import (
    DONE,
    NO,
    Command,
    Parser,
    WritingCommand,
    add_group,
    add_ids,
    consumer_name,
    existing_group,
    group_name,
    positive,
    reading,
    seconds,
    stream_name,
    whole,
    writing,
)

_NACK_MODES = ("silent", "fail", "fatal")

# -- pending ------------------------------------------------------------------------------


def _pending_arguments(parser: Parser) -> None:
    add_group(parser)
    parser.add_argument("start", metavar="START", nargs="?", help="first ID to list (default: -, the first)")
    parser.add_argument("end", metavar="END", nargs="?", default="+", help="last ID to list (default: +, the last)")
    parser.add_argument("--list", action="store_true", help="a line for each entry; START and the filters imply it")
    parser.add_argument("--consumer", metavar="NAME", help="only what this consumer has")
    parser.add_argument("--min-idle", type=seconds, metavar="SECONDS", help="only what has been idle so long")
    parser.add_argument("--count", type=whole, metavar="N", help="at most N entries")


def _pending(args: argparse.Namespace) -> int:
    start = "-" if args.start is None else args.start
    parse_start(start)
    parse_end(args.end)
    name, group = stream_name(args), group_name(args)
    consumer = None if args.consumer is None else consumer_name(args.consumer)
    filters = (args.start, args.consumer, args.min_idle, args.count)
    with reading(args) as store:
        handle = existing_group(store, name, group)
        if not args.list and all(given is None for given in filters):
            _print_summary(handle.pending(), args.json)
            return DONE
        rows = handle.pending(start, args.end, args.count, consumer, args.min_idle)
    _print_list(rows, args.json)
    return DONE if rows else NO


def _print_summary(summary: PendingSummary, as_json: bool) -> None:
    if as_json:
        consumers = [{"name": output.plain(name), "pending": n} for name, n in summary.consumers.items()]
        told = {"total": summary.total, "first": output.plain(summary.first), "last": output.plain(summary.last)}
        output.print_json(told | {"consumers": consumers})
        return
    between = f", from {summary.first} to {summary.last}" if summary.total else ""
    print(f"{output.many(summary.total, 'pending entry')}{between}")
    rows = [(output.text(name), f"{pending:,}") for name, pending in summary.consumers.items()]
    held = sum(summary.consumers.values())
    if held < summary.total:
        rows.append(("(released)", f"{summary.total - held:,}"))
    if rows:
        output.print_text(output.table([("consumer", "pending"), *rows], right=(1,)))


def _print_list(rows: Sequence[Pending], as_json: bool) -> None:
    if as_json:
        for row in rows:
            output.print_json(row._asdict() | {"id": str(row.id)})
    elif rows:
        cells = [("id", "consumer", "idle (s)", "deliveries")]
        for row in rows:
            owner = "(released)" if row.consumer is None else output.text(row.consumer)
            cells.append((str(row.id), owner, output.duration(row.idle), f"{row.deliveries:,}"))
        output.print_text(output.table(cells, right=(2, 3)))


# -- claim, autoclaim ---------------------------------------------------------------------


def _add_min_idle(parser: Parser, what: str) -> None:
    parser.add_argument("--min-idle", type=seconds, default=0.0, metavar="SECONDS", help=what)
    parser.add_argument("--justid", action="store_true", help="print IDs only, and do not count it as a delivery")


def _claim_arguments(parser: Parser) -> None:
    add_group(parser, consumer=True)
    add_ids(parser)
    _add_min_idle(parser, "only what has been idle so long (default: 0)")
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--idle", type=seconds, metavar="SECONDS", help="as if delivered so long ago (default: now)")
    when.add_argument("--time", type=seconds, metavar="UNIX", help="as if delivered at this Unix time, in seconds")
    _add_delivery_options(parser)
    parser.add_argument("--lastid", metavar="ID", help="move the group's last delivered ID forward to this one")


def _claim(args: argparse.Namespace) -> int:
    ids = [parse_id(text) for text in args.ids]
    last = None if args.lastid is None else parse_id(args.lastid)
    name, group, consumer = stream_name(args), group_name(args), consumer_name(args.consumer)
    with writing(args) as store:
        claimed = existing_group(store, name, group).claim(
            consumer, *ids, min_idle=args.min_idle, idle=args.idle, time=args.time, retrycount=args.retrycount,
            force=args.force, justid=args.justid, lastid=last
        )
    for entry in claimed:
        if args.json:
            output.print_json(_claimed_json(entry))
        else:
            output.print_text(_claimed_text(entry))
    return DONE if claimed else NO


def _claimed_json(entry: Entry | StreamID) -> dict[str, Any]:
    return {"id": str(entry)} if isinstance(entry, StreamID) else output.entry_json(entry) | output.delivery_json(entry)


def _claimed_text(entry: Entry | StreamID) -> str:
    return str(entry) if isinstance(entry, StreamID) else output.entry_text(entry)


def _autoclaim_arguments(parser: Parser) -> None:
    add_group(parser, consumer=True)
    _add_min_idle(parser, "what has been idle so long (default: 0, everything)")
    parser.add_argument("--start", default="0", metavar="ID", help="where to begin (default: 0, at the beginning)")
    parser.add_argument("--count", type=positive, default=100, metavar="N", help="at most N entries (default: 100)")


def _autoclaim(args: argparse.Namespace) -> int:
    parse_start(args.start)
    name, group, consumer = stream_name(args), group_name(args), consumer_name(args.consumer)
    with writing(args) as store:
        cursor, claimed, deleted = existing_group(store, name, group).autoclaim(
            consumer, args.min_idle, args.start, args.count, args.justid
        )
    more = cursor != StreamID.MIN
    if args.json:
        entries = list(map(_claimed_json, claimed))
        gone = list(map(str, deleted))
        output.print_json({"cursor": str(cursor) if more else None, "entries": entries, "deleted": gone})
    else:
        for entry in claimed:
            output.print_text(_claimed_text(entry))
        gone_too = f", {len(deleted):,} found deleted and forgotten" if deleted else ""
        then = f"go on with --start {cursor}" if more else "that was the end"
        print(f"{output.many(len(claimed), 'entry')} claimed{gone_too}; {then}")
    return DONE if claimed or deleted or more else NO


# -- nack ---------------------------------------------------------------------------------


def _nack_arguments(parser: Parser) -> None:
    add_group(parser)
    add_ids(parser)
    parser.add_argument(
        "--mode", choices=_NACK_MODES, default="fail",
        help="fail: the delivery counts (default); silent: it does not; fatal: poison, the count becomes the greatest"
    )
    parser.add_argument(
        "--delay", type=seconds, default=0.0, metavar="SECONDS", help="'read --claim-idle' takes them not before"
    )
    _add_delivery_options(parser)


def _add_delivery_options(parser: Parser) -> None:
    parser.add_argument("--retrycount", type=whole, metavar="N", help="set the delivery count to N")
    parser.add_argument("--force", action="store_true", help="also entries that are not pending: they become it")


def _nack(args: argparse.Namespace) -> int:
    ids = [parse_id(text) for text in args.ids]
    name, group = stream_name(args), group_name(args)
    with writing(args) as store:
        released = existing_group(store, name, group).nack(
            *ids, mode=args.mode, delay=args.delay, retrycount=args.retrycount, force=args.force
        )
    output.answer(args.json, {"released": released}, f"{output.many(released, 'entry')} released")
    return DONE if released else NO


COMMANDS = {
    "pending": Command(
        _pending,
        _pending_arguments,
        """
What has been delivered and not acknowledged: in sum and by consumer, or with --list (or START,
or any filter) a line for each entry: who has it, seconds since it was delivered, and how often
it has been. What 'raxlog nack' gave back is nobody's, and has no idle time. Exit status 1 if a
list is empty.""",
        """
  raxlog pending events.rax orders billing
  raxlog pending events.rax orders billing --consumer worker-1 --min-idle 60 --count 10""",
    ),
    "claim": WritingCommand(
        _claim,
        _claim_arguments,
        """
Makes pending entries CONSUMER's, whoever had them, and prints them. With --min-idle an entry
that somebody is at work on stays with him. Exit status 1 if none was claimed.""",
        """
  raxlog claim events.rax orders billing worker-2 1526919030474-55 --min-idle 60""",
    ),
    "autoclaim": WritingCommand(
        _autoclaim,
        _autoclaim_arguments,
        """
Claims whatever has been idle for --min-idle, in the order of IDs, and says where to go on. What
'raxlog nack' gave back is taken too, whatever its --delay.
Pending entries that have been deleted are forgotten on the way. With --json one document:
{"cursor": ID or null at the end, "entries": […], "deleted": […]}. Exit status 1 if there was
nothing.""",
        """
  raxlog autoclaim events.rax orders billing worker-2 --min-idle 60 --count 10""",
    ),
    "nack": WritingCommand(
        _nack,
        _nack_arguments,
        """
Gives pending entries back to the group, for anybody's 'read --claim-idle': at once, or after
--delay. 'claim' and 'autoclaim' take them at once, whatever the delay. Prints how many were
pending. Exit status 1 if none was.""",
        """
  raxlog nack events.rax orders billing 1526919030474-55 --delay 30""",
    ),
}
