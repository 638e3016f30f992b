"""Schedules: schedule."""

from __future__ import annotations

import argparse

from .....stream.jobs.schedules import Schedule
from .....stream.node.json_form import fields_form
from .... import output
from ...arguments import OF_STREAM, RAW, WRITING, argument, command
from ...readers import seconds
from ...status import DONE, NO, USAGE, CommandError
from ...stores import stream_of, writing
from .add import fields_for, pair

_CHANGES = {"pause": "paused", "resume": "resumed", "remove": "removed"}


@command(
    "schedule",
    (argument("action", choices=("set", "list", *_CHANGES, "run"), help="what to do"), *OF_STREAM,
     argument("name", metavar="NAME", nargs="?", help="the schedule's name; not for list"),
     argument("fields", metavar="FIELD=VALUE", nargs="*", read=pair, help="for set: the fields of each entry"),
     argument("--cron", metavar="EXPRESSION", help="for set: minute, hour, day of the month, month, day of the week"),
     argument("--every", type=seconds, metavar="SECONDS", help="for set: the interval, in place of --cron"),
     argument("--tz", default="UTC", metavar="ZONE", help="the zone of --cron, as in Europe/Berlin (default: UTC)"),
     argument("--coalesce", choices=("latest", "earliest", "all"), default="latest",
              help="which of several missed ticks are appended (default: latest)"),
     argument("--grace", type=seconds, metavar="SECONDS", help="drop a tick that is later than this"),
     argument("--jitter", type=seconds, default=0, metavar="SECONDS", help="append up to so much later (default: 0)"),
     RAW, *WRITING),
    """Works on the schedules of a stream. set: makes one, or changes it; an equal one changes nothing. Creates
the store and the stream if they do not exist. list: prints a line for each, with its name, the next
time, the last one, and when it comes; "paused" is in place of a next time. pause, resume, remove: as
they say; exit status 1 if there was nothing to do. run: appends an entry now, and prints its ID. The
entries are appended by processes that read from the stream or append to it. Times are in UTC.""",
    "raxlog schedule set events.rax jobs report kind=report --cron '30 2 * * *' --tz Europe/Berlin",
    "raxlog schedule list events.rax jobs",
)
def _schedule(args: argparse.Namespace) -> int:
    if (args.name is None) != (args.action == "list"):
        raise CommandError(f"schedule {args.action} takes {'no' if args.action == 'list' else 'a'} NAME", USAGE)
    if args.action != "set" and (args.fields or args.cron is not None or args.every is not None):
        raise CommandError(f"schedule {args.action} takes no fields and no times; 'set' does", USAGE)
    if args.action == "list":
        with stream_of(args) as stream:
            found = list(stream.schedules())
        if args.json:
            for one in found:
                output.print_json(_document(one))
        else:
            output.print_text(*output.table([_row(one) for one in found], (), ("name", "next", "last", "when")))
        return DONE if found else NO
    with writing(args, create=args.action == "set") as store:
        stream = store.stream(args.stream)
        if args.action == "set":
            one = stream.schedule(
                args.name, fields_for(stream, args), cron=args.cron, every=args.every, tz=args.tz,
                coalesce=args.coalesce, misfire_grace=args.grace, jitter=args.jitter)
            output.answer(args.json, _document(one), "\t".join(_row(one)))
        elif args.action == "run":
            sid = stream.run_schedule(args.name)
            output.answer(args.json, {"id": sid}, str(sid))
        else:
            done = getattr(stream, f"{args.action}_schedule")(args.name)
            output.answer(args.json, {_CHANGES[args.action]: done}, f"{'' if done else 'not '}{_CHANGES[args.action]}")
            return DONE if done else NO
    return DONE


def _document(one: Schedule) -> dict[str, object]:
    return one.to_dict() | {"fields": fields_form(list(one.fields.items()))}


def _row(one: Schedule) -> tuple[str, ...]:
    when = f"every {one.every:g} s" if one.cron is None else f"{one.cron} {one.tz}"
    times = ["-" if moment is None else moment.isoformat() for moment in (one.next, one.last)]
    return output.text(one.name), "paused" if one.paused else times[0], times[1], when
