"""Consumer groups and their consumers: who reads, how far each is, and how to change that.

    stream orders ──┬── group billing    last delivered 5-0, lag 12
                    │      ├── consumer a     3 pending
                    │      └── consumer b     none
                    └── group audit      last delivered 17-0, lag 0

    groups  create-group  destroy-group  set-group-id  lag          the middle column
    consumers  create-consumer  delete-consumer                     the right one

What moves entries is in delivering.py (read, ack) and claiming.py (pending, claim, nack).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from ...index import filters
from ...storage.errors import InvalidStreamID
from ...stream.group_info import GroupInfo
from ...stream.header import shown
from ...stream.id import parse_id
from . import output
from .arguments import (
    DONE,
    NO,
    OF_CONSUMER,
    OF_GROUP,
    OF_STREAM,
    Command,
    Failure,
    WritingCommand,
    argument,
    consumer_name,
    existing,
    flag,
    group_name,
    group_of,
    one_of,
    stream_name,
    stream_of,
    writing,
)

# -- groups, lag --------------------------------------------------------------------------


def _groups(args: argparse.Namespace) -> int:
    with stream_of(args) as stream:
        groups = stream.groups()
    if args.json:
        output.print_json({"stream": stream.name, "groups": list(map(group_json, groups))})
    elif groups:
        output.print_text(groups_table(groups))
    return DONE


def groups_table(groups: Sequence[GroupInfo]) -> str:
    """The groups of a stream, a line each."""
    rows = [("group", "consumers", "pending", "last delivered", "lag")]
    for group in groups:
        figures = f"{group.consumers:,}", f"{group.pending:,}", str(group.last_delivered_id), f"{group.lag:,}"
        rows.append((output.text(group.name), *figures))
    return output.table(rows, right=(1, 2, 4))


def group_json(group: GroupInfo) -> dict[str, Any]:
    """A group under the names XINFO GROUPS uses."""
    return {name.replace("_", "-"): output.plain(value) for name, value in group._asdict().items()}


def _lag(args: argparse.Namespace) -> int:
    with group_of(args) as group:
        lag = group.lag
    output.answer(args.json, {"lag": lag}, lag)
    return DONE


# -- create-group, destroy-group, set-group-id --------------------------------------------


def _create_group(args: argparse.Namespace) -> int:
    _require_place(args.start, ("$",))
    subjects = None if args.subject is None else filters.checked([os.fsencode(one) for one in args.subject])
    name, group = stream_name(args), group_name(args)
    with writing(args, create=args.create_stream) as store:
        stream = store.stream(name) if args.create_stream else existing(store, name)
        made = stream.create_group(
            group, args.start, exist_ok=args.exist_ok, create_stream=args.create_stream, subjects=subjects
        )
        info = made.info()
    output.answer(args.json, group_json(info),
                  f"group {output.text(group)} delivers what comes behind {info.last_delivered_id}")
    return DONE


def _require_place(text: str, ends: tuple[str, ...]) -> None:
    """That a group can be put there: at an ID, or at an end of the stream."""
    if text not in ends:
        try:
            parse_id(text)
        except InvalidStreamID:
            raise InvalidStreamID(f"{text!r} is no stream ID; allowed here: {', '.join(ends)}, ms-seq or ms") from None


def _destroy_group(args: argparse.Namespace) -> int:
    with group_of(args, writing) as group:
        info = group.info()
        if not group.destroy():
            raise Failure(f"the consumer group {shown(group.name)} was destroyed by another program", NO)
    document = {"destroyed": group.name, "consumers": info.consumers, "pending": info.pending}
    with_it = f"{output.many(info.consumers, 'consumer')} and {output.many(info.pending, 'pending entry')}"
    output.answer(args.json, document, f"group destroyed, with {with_it}")
    return DONE


def _set_group_id(args: argparse.Namespace) -> int:
    _require_place(args.id, ("$", "-", "+"))
    with group_of(args, writing) as group:
        group.set_id(args.id)
        info = group.info()
    line = f"group {output.text(group.name)} delivers what comes behind {info.last_delivered_id}, lag {info.lag:,}"
    output.answer(args.json, group_json(info), line)
    return DONE


# -- consumers ----------------------------------------------------------------------------


def _consumers(args: argparse.Namespace) -> int:
    with group_of(args) as group:
        consumers = group.consumers()
    if args.json:
        listed = [consumer._asdict() for consumer in consumers]
        output.print_json({"stream": group.stream, "group": group.name, "consumers": listed})
    elif consumers:
        rows = [("consumer", "pending", "idle (s)", "inactive (s)")]
        for consumer in consumers:
            times = output.duration(consumer.idle), output.duration(consumer.inactive)
            rows.append((output.text(consumer.name), f"{consumer.pending:,}", *times))
        output.print_text(output.table(rows, right=(1, 2, 3)))
    return DONE


def _create_consumer(args: argparse.Namespace) -> int:
    consumer = consumer_name(args.consumer)
    with group_of(args, writing) as group:
        if not group.create_consumer(consumer):
            raise Failure(f"group {shown(group.name)} has a consumer {shown(consumer)} already", NO)
    if args.json:
        output.print_json({"created": consumer})
    return DONE


def _delete_consumer(args: argparse.Namespace) -> int:
    consumer = consumer_name(args.consumer)
    heir = None if args.to is None else consumer_name(args.to)
    with group_of(args, writing) as group:
        if consumer not in {known.name for known in group.consumers()}:
            raise Failure(f"group {shown(group.name)} has no consumer {shown(consumer)}", NO)
        had = group.delete_consumer(consumer, pending="drop" if args.drop else "refuse", to=heir)
    fate = f"handed over to {output.text(heir)}" if heir is not None else "dropped"
    output.answer(args.json, {"deleted": consumer, "pending": had, "to": heir},
                  f"consumer deleted, {output.many(had, 'pending entry')}{' ' + fate if had else ''}")
    return DONE


COMMANDS = {
    "groups": Command(
        _groups,
        OF_STREAM,
        """A line for each group: its consumers, its pending entries, the ID up to which it has been given
everything, and its lag: how many live entries lie behind that ID. The lag is always exact.""",
        "raxlog groups events.rax orders",
    ),
    "lag": Command(
        _lag,
        OF_GROUP,
        """Prints one number, and nothing else: the live entries that no consumer of the group has had.
What is pending does not count; 'raxlog pending' tells of that.""",
        "raxlog lag events.rax orders billing",
    ),
    "create-group": WritingCommand(
        _create_group,
        (*OF_GROUP,
         argument("--start", default="$", metavar="ID",
                  help="deliver what comes behind this ID: $ for new entries only (default), 0 for all"),
         flag("--create-stream", "create the stream, and the store, if not there"),
         flag("--exist-ok", "leave a group of that name as it is"),
         argument("--subject", action="append", metavar="PATTERN",
                  help="only what was published under such subjects; repeatable")),
        """The group will be given every entry behind --start, once, whichever of its consumers reads.
Exit status 1 if there is a group of that name (unless --exist-ok), or no such stream (unless
--create-stream).""",
        "raxlog create-group events.rax orders billing --start 0",
        "raxlog create-group events.rax orders billing --create-stream --exist-ok",
    ),
    "destroy-group": WritingCommand(
        _destroy_group,
        OF_GROUP,
        """Its consumers and its pending entries go with it, the stream's entries stay. Who waits for the
group in another process gets an error. There is no way to undo it.""",
        "raxlog destroy-group events.rax orders billing",
    ),
    "set-group-id": WritingCommand(
        _set_group_id,
        (*OF_GROUP,
         argument("id", metavar="ID", help="the new last delivered ID; $ for the stream's last, 0 for none")),
        """Forward skips entries, back delivers them once more. Pending entries stay pending.""",
        "raxlog set-group-id events.rax orders billing 0       # everything again",
        "raxlog set-group-id events.rax orders billing '$'     # only what is new",
    ),
    "consumers": Command(
        _consumers,
        OF_GROUP,
        """A line for each consumer: its pending entries, the seconds since it last asked for something
(idle) and since it last got something (inactive; - if never).""",
        "raxlog consumers events.rax orders billing",
    ),
    "create-consumer": WritingCommand(
        _create_consumer,
        OF_CONSUMER,
        """Reading creates a consumer as well; this one asks for nothing. Exit status 1 if it is there.""",
        "raxlog create-consumer events.rax orders billing worker-1",
    ),
    "delete-consumer": WritingCommand(
        _delete_consumer,
        (*OF_CONSUMER,
         one_of(argument("--to", metavar="OTHER", help="hand its pending entries over to this consumer"),
                flag("--drop", "lose its pending entries: they are never delivered again"))),
        """A consumer with pending entries is not deleted (exit status 1) unless --to or --drop says what
becomes of them. Handed over they keep their times and delivery counts.""",
        "raxlog delete-consumer events.rax orders billing worker-1 --to worker-2",
    ),
}
