"""Delivery: read, in a consumer group or after IDs, and ack.

    new ──read──> pending ──ack, or the next read with --ack──> done
          │          └─read --history─> the same again
          └─read --noack─> done: at most once

read is durable before it prints: entries that were delivered to a pipe that broke are pending,
and --history prints them again. Other consumers' pending entries are the subject of pending.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from .....storage.errors import InvalidStreamID
from .....stream.group.delete_policy import KEEPREF, POLICIES, DeleteResult
from .....stream.node.stream_id import StreamID, parse_id
from .....stream.node.typed import Entry
from .... import output
from ...arguments import IDS, OF_GROUP, OF_STORE, RAW, TIME, WRITING, argument, command, flag, titled
from ...readers import bound, consumer_name, group_name, patience, positive, seconds, stream_name
from ...status import DONE, NO, USAGE, CommandError
from ...stores import existing, group_of, reading, writing


def _ids(text: str) -> list[StreamID]:
    try:
        return [parse_id(part) for part in text.split(",")]
    except InvalidStreamID as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@command(
    "read",
    (*OF_STORE,
     argument("streams", metavar="STREAM[=ID]", nargs="+",
              help="with --group a stream's name; without, STREAM=ID: entries after that ID, $ for new ones "
              "only, + for the last one"),
     argument("--count", type=positive, metavar="N", help="at most N entries of each stream"),
     argument("--timeout", type=patience, default=0, metavar="SECONDS",
              help="wait this long for the first entry; none: for ever (default: 0, do not wait)"),
     RAW,
     titled("in a consumer group",
            argument("--group", metavar="GROUP", read=group_name, help="read as a consumer of this group"),
            argument("--consumer", metavar="NAME", read=consumer_name,
                     help="which consumer; created if it is new"),
            flag("--history", "this consumer's own pending entries, again"),
            argument("--after", metavar="ID", read=bound(parse_id), help="with --history: only those after this ID"),
            argument("--claim-idle", type=seconds, metavar="SECONDS", help="first claim entries idle for this long"),
            argument("--ack", type=_ids, action="extend", metavar="ID,ID…", help="acknowledge these first"),
            flag("--noack", "new entries do not become pending: at most once")), TIME, *WRITING),
    """In a group (--group, --consumer), delivers entries that were not yet delivered to the group. They
stay pending until 'raxlog ack', or until the next read acknowledges them with --ack in its own
commit. --claim-idle takes over the entries of a dead consumer; --history reads the consumer's own
pending entries again. Without a group, prints the entries after an ID, of one or several streams.
Each line is an entry as 'raxlog range' prints it, preceded by its stream if several are read. An
entry that was deleted while pending is printed as its ID alone. With --json a line is
{"stream": …, "id": …, "fields": …}, in a group with "deliveries" and, if it was claimed, "idle"
(seconds). Exit status 1 if there was nothing to read.""",
    "raxlog read events.rax orders --group billing --consumer worker-1 --count 10 --timeout 5",
    "raxlog read events.rax orders --group billing --consumer worker-1 --ack 5-0,6-0 --claim-idle 60",
    "raxlog read events.rax 'orders=$' 'mail=1526919030474-55' --timeout none",
)
def _read(args: argparse.Namespace) -> int:
    found = _delivered(args) if args.group is not None else _after_ids(args)
    for name, entries in found.items():
        before = f"{output.text(name)}\t" if len(args.streams) > 1 else ""
        for entry in entries:
            if args.json:
                delivery = {} if args.group is None else output.delivery_json(entry)
                entry_json = output.timed(output.entry_json(entry, args.raw), entry.id, args.time)
                output.print_json({"stream": name} | entry_json | delivery)
            else:
                output.print_text(before + output.entry_text(entry, args.raw, args.time))
    return DONE if any(found.values()) else NO


def _delivered(args: argparse.Namespace) -> dict[bytes, list[Entry]]:
    """What the group delivers to this consumer, of every stream."""
    if args.consumer is None:
        raise CommandError("--group needs --consumer: the consumer that reads", USAGE)
    if args.after is not None and not args.history:
        raise CommandError("--after pages through a consumer's --history; new entries come in their order", USAGE)
    if args.history and (args.noack or args.timeout != 0 or args.claim_idle is not None):
        raise CommandError("--history reads pending entries; --timeout, --claim-idle, --noack are for new ones", USAGE)
    if args.ack and len(args.streams) > 1:
        raise CommandError("--ack is for one stream: with several an ID is ambiguous", USAGE)
    after = (args.after or StreamID.MIN) if args.history else ">"
    streams = _once((typed, after) for typed in args.streams)
    with writing(args) as store:
        ack = {name: args.ack for name in streams if args.ack}
        return store.read_group(
            args.group, args.consumer, streams, count=args.count, timeout=args.timeout, noack=args.noack,
            claim_idle=args.claim_idle, ack=ack
        )


def _after_ids(args: argparse.Namespace) -> dict[bytes, list[Entry]]:
    """What follows an ID, of every stream."""
    for option in ("consumer", "history", "after", "claim_idle", "ack", "noack"):
        if getattr(args, option) not in (None, False):
            raise CommandError(f"--{option.replace('_', '-')} is for reading in a consumer group: add --group", USAGE)
    for typed in args.streams:
        if "=" not in typed:
            raise CommandError(f"{typed!r} is not STREAM=ID; only with --group a stream needs no ID", USAGE)
    given = (typed.rpartition("=") for typed in args.streams)
    streams = _once((name, after if after in ("$", "+") else bound(parse_id)(after)) for name, _, after in given)
    with reading(args) as store:
        if args.timeout == 0:
            for name in streams:
                existing(store, name)
        return store.read(streams, count=args.count, timeout=args.timeout)


def _once(streams: Iterable[tuple[str, Any]]) -> dict[bytes, Any]:
    named: dict[bytes, Any] = {}
    for typed, after in streams:
        name = stream_name(typed)
        if name in named:
            raise CommandError(f"the stream {typed!r} is named twice", USAGE)
        named[name] = after
    return named


@command(
    "ack",
    (*OF_GROUP, IDS,
     argument("--consumer", metavar="NAME", read=consumer_name,
              help="only if all are pending for this consumer; otherwise none"),
     flag("--delete", "delete the entries as well, in the same commit"),
     argument("--refs", choices=POLICIES,
              help="with --delete: what happens in other groups (see 'delete --help')"), *WRITING),
    """Prints how many of them were pending. Exit status 1 if none was. With --consumer, an ID that is
not pending for that consumer is an error that names its owner, and nothing is acknowledged.""",
    "raxlog ack events.rax orders billing 1526919030474-55 1526919030474-56",
    "raxlog ack events.rax orders billing 1526919030474-57 --consumer worker-1",
)
def _ack(args: argparse.Namespace) -> int:
    if args.refs is not None and not args.delete:
        raise CommandError("--refs is for --delete", USAGE)
    document, also = {}, ""
    with group_of(args, writing) as group:
        if args.delete:
            fates = group.ack_delete(*args.ids, refs=args.refs or KEEPREF, consumer=args.consumer)
            acked, deleted = len(fates) - fates.count(DeleteResult.MISSING), fates.count(DeleteResult.DELETED)
            document, also = {"deleted": deleted}, f", {deleted:,} of them deleted"
        else:
            acked = group.ack(*args.ids, consumer=args.consumer)
        if not acked:
            group.info()  # raises NoGroup if that is why
    output.answer(args.json, {"acknowledged": acked} | document, f"{output.many(acked, 'entry')} acknowledged{also}")
    return DONE if acked else NO
