"""Consumer groups and their consumers: how far each has read, and how to change that.

    stream orders ──┬── group billing    last delivered 5-0, lag 12
                    │      ├── consumer a     3 pending
                    │      └── consumer b     none
                    └── group audit      last delivered 17-0, lag 0

    groups  create-group  destroy-group  set-group-id  lag          the middle column
    consumers  create-consumer  delete-consumer                     the right one

What moves entries is in read.py (read, ack) and pending.py (pending, claim, nack).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from .....index.subjects.match import checked_patterns
from .....storage.errors import InvalidStreamID
from .....stream.entries.header import shown
from .....stream.group.info import GroupInfo
from .....stream.node.stream_id import parse_id
from .... import output
from ...arguments import OF_CONSUMER, OF_GROUP, OF_STREAM, TIME, WRITING, argument, command, flag, one_of
from ...readers import consumer_name, moment, positive, seconds, time_as_id, whole
from ...status import NO, CommandError
from ...stores import existing, group_of, stream_of, writing


@command(
    "groups", (*OF_STREAM, TIME),
    """Prints a line for each group: its consumers, its pending entries, its last delivered ID, and its lag,
the number of live entries after that ID. The lag is always exact. Of groups with limits also those:
how many entries of max-in-flight its consumers hold, the rate, and "full" or "waits" after the one
that holds back what there is to deliver.""",
    "raxlog groups events.rax orders",
)
def _groups(args: argparse.Namespace) -> None:
    with stream_of(args) as stream:
        groups = stream.groups()
    documents = [output.timed(group.to_dict(), group.last_delivered_id, args.time) for group in groups]
    output.answer(args.json, {"stream": stream.name, "groups": documents}, *groups_table(groups, args.time))


def groups_table(groups: Sequence[GroupInfo], time: bool = False) -> list[str]:
    """The groups of a stream, a line each."""
    limited = any(map(output.limits, groups))
    rows = [(output.text(group.name), f"{group.consumers:,}", f"{group.pending:,}", str(group.last_delivered_id),
             *([output.time_of(group.last_delivered_id)] if time else []), f"{group.lag:,}",
             *[output.limits(group) or "-"] * limited) for group in groups]
    return output.table(rows, (1, 2, 4 + time), (
        "group", "consumers", "pending", "last delivered", *["time"] * time, "lag", *["limits"] * limited))


@command(
    "lag", OF_GROUP,
    """Prints a single number: the live entries not yet delivered to the group. Pending entries do not
count; 'raxlog pending' shows those.""",
    "raxlog lag events.rax orders billing",
)
def _lag(args: argparse.Namespace) -> None:
    with group_of(args) as group:
        lag = group.lag
    output.answer(args.json, {"lag": lag}, lag)


@command(
    "job", (*OF_GROUP, argument("id", metavar="ID", read=parse_id, help="the entry's ID")),
    """Prints what has become of an entry: queued, running (and with which consumer), retry (and when),
done (and with what result, if one is kept), dead (and why), gone, or unknown. Exit status 1 if it is
gone or unknown.""",
    "raxlog job app.rax jobs workers 1526919030474-55",
)
def _job(args: argparse.Namespace) -> int:
    with group_of(args) as group:
        job = group.job(args.id)
    result = None if job.result is None else job.result.value if job.status == "done" else job.result.error
    figures = {"consumer": job.consumer and output.text(job.consumer), "since": job.since, "due": job.due,
               "deliveries": job.deliveries or None, "reason": job.reason, "result": result}
    about = ", ".join(f"{name} {value}" for name, value in figures.items() if value is not None)
    output.answer(args.json, job.to_dict(), f"{job.status}{about and ': '}{about}")
    return NO if job.status in ("gone", "unknown") else 0


def _place(text: str, *ends: str) -> str:
    """A position for a group: an ID, a time, or one of these ends of the stream."""
    if text not in ends:
        text = time_as_id(text)
        try:
            parse_id(text)
        except InvalidStreamID:
            allowed = ", ".join(ends)
            raise InvalidStreamID(f"{text!r} is not a stream ID; allowed here: {allowed}, ms-seq or ms") from None
    return text


@command(
    "create-group",
    (*OF_GROUP,
     argument("--start", default="0", metavar="ID", read=lambda text: _place(text, "$"),
              help="deliver what follows this ID, or time: 0 for all entries (default), $ for new ones only"),
     argument("--create-stream", action=argparse.BooleanOptionalAction, default=True,
              help="create the stream, and the store, if missing (default)"),
     flag("--exist-ok", "leave a group of that name as it is"),
     argument("--subject", action="append", metavar="PATTERN",
              help="only entries published under such subjects; repeatable"), *WRITING),
    """Every entry after --start is delivered to the group once, to whichever consumer reads first.
Exit status 1 if the group exists (unless --exist-ok), or, with --no-create-stream, the stream
does not.""",
    "raxlog create-group events.rax orders billing --start '$'",
    "raxlog create-group events.rax orders billing --no-create-stream --exist-ok",
)
def _create_group(args: argparse.Namespace) -> None:
    subjects = None if args.subject is None else checked_patterns([os.fsencode(subject) for subject in args.subject])
    with writing(args, create=args.create_stream) as store:
        stream = store.stream(args.stream) if args.create_stream else existing(store, args.stream)
        made = stream.create_group(
            args.group, args.start, exist_ok=args.exist_ok, create_stream=args.create_stream, subjects=subjects
        )
        info = made.info()
    output.answer(args.json, info.to_dict(),
                  f"group {output.text(args.group)} delivers what follows {info.last_delivered_id}")


@command(
    "destroy-group", (*OF_GROUP, *WRITING),
    """Its consumers and its pending entries are deleted too; the stream's entries stay. A read that waits
for the group in another process raises an error. This cannot be undone.""",
    "raxlog destroy-group events.rax orders billing",
)
def _destroy_group(args: argparse.Namespace) -> None:
    with group_of(args, writing) as group:
        info = group.info()
        if not group.destroy():
            raise CommandError(f"the consumer group {shown(group.name)} was destroyed by another program", NO)
    with_it = f"{output.many(info.consumers, 'consumer')} and {output.many(info.pending, 'pending entry')}"
    output.answer(args.json, {"destroyed": group.name, "consumers": info.consumers, "pending": info.pending},
                  f"group destroyed, with {with_it}")


@command(
    "set-group-id",
    (*OF_GROUP,
     argument("id", metavar="ID", read=lambda text: _place(text, "$", "-", "+"),
              help="the new last delivered ID, or a time; $ for the stream's last, 0 for none"), *WRITING),
    """Moving it forward skips entries; moving it back delivers them once more. Pending entries stay pending.""",
    "raxlog set-group-id events.rax orders billing 0       # everything again",
    "raxlog set-group-id events.rax orders billing '$'     # only what is new",
)
def _set_group_id(args: argparse.Namespace) -> None:
    with group_of(args, writing) as group:
        group.set_id(args.id)
        info = group.info()
    line = f"group {output.text(group.name)} delivers what follows {info.last_delivered_id}, lag {info.lag:,}"
    output.answer(args.json, info.to_dict(), line)


def _rate(typed: str) -> tuple[int, float]:
    """N/TIME, or 0 for none."""
    count, slash, time = typed.partition("/")
    return (whole(count), seconds(time)) if slash else (whole(typed), 1.0)


@command(
    "configure-group",
    (*OF_GROUP,
     argument("--max-in-flight", type=whole, metavar="N", help="its consumers hold N entries at most; 0: any number"),
     argument("--rate", type=_rate, metavar="N/TIME",
              help="deliver N entries in a time at most, as in 100/1m or 5/1s; 0: no rate"),
     argument("--burst", type=positive, metavar="N", help="so many may come at once after a pause (default 1)"),
     argument("--rate-key", metavar="FIELD", help="the rate is for each value of this field; '': for the group"),
     argument("--key", metavar="FIELD", help="of entries with one value in this field its consumers hold --per-key at "
              "a time; '': no key"),
     argument("--per-key", type=positive, metavar="N", help="(default 1)"),
     argument("--order", choices=("yes", "no"), help="whether an entry keeps its key while it waits for a retry"),
     argument("--max-parked", type=positive, metavar="N",
              help="so many entries may wait for their keys (default 100,000)"),
     *WRITING),
    """Limits what the group delivers, to all its consumers together, from now on; what is not given stays as it is.
Prints the limits.""",
    "raxlog configure-group events.rax orders billing --max-in-flight 50 --rate 100/1m",
    "raxlog configure-group events.rax orders billing --key customer --order yes",
)
def _configure_group(args: argparse.Namespace) -> None:
    with group_of(args, writing) as group:
        group.configure(max_in_flight=args.max_in_flight, burst=args.burst,
                        rate=0 if args.rate is not None and not args.rate[0] else args.rate,
                        key=0 if args.key == "" else args.key, per_key=args.per_key,
                        rate_key=0 if args.rate_key == "" else args.rate_key,
                        order=None if args.order is None else args.order == "yes", max_parked=args.max_parked)
        info = group.info()
    held = "any number of entries" if info.max_in_flight is None else output.many(info.max_in_flight, "entry")
    rate = "at any rate" if info.rate is None else (
        f"{info.rate[0]:,} in {info.rate[1]:,g} s, {info.burst:,} at once after a pause"
        f"{'' if info.rate_key is None else f', for each {output.text(info.rate_key)}'}")
    by_key = "" if info.key is None else (
        f", {output.many(info.per_key or 1, 'entry')} of one {output.text(info.key)} at a time"
        f"{' and in their order' if info.order else ''}")
    output.answer(args.json, info.to_dict(), f"group {output.text(group.name)}: {held} in flight, {rate}{by_key}")


@command(
    "pause",
    (*OF_GROUP, argument("--until", metavar="TIME", type=moment,
                         help="until when, as in 2026-11-24T08:00:00Z (default: until 'raxlog resume')"), *WRITING),
    """Until then, readers and workers of the group wait. Entries that they already have can still be
acknowledged.""",
    "raxlog pause events.rax orders billing",
)
def _pause(args: argparse.Namespace) -> None:
    with group_of(args, writing) as group:
        group.pause(args.until)
    output.answer(args.json, {"paused": group.name}, f"group {output.text(group.name)} is paused")


@command(
    "resume", (*OF_GROUP, *WRITING),
    """Ends a pause at once; waiting readers and workers continue.""",
    "raxlog resume events.rax orders billing",
)
def _resume(args: argparse.Namespace) -> None:
    with group_of(args, writing) as group:
        group.resume()
    output.answer(args.json, {"resumed": group.name}, f"group {output.text(group.name)} delivers again")


@command(
    "consumers", OF_GROUP,
    """Prints a line for each consumer: its pending entries, when it last called, as by a read (seen), and
when it last received an entry (active; - if never). Times are in UTC.""",
    "raxlog consumers events.rax orders billing",
)
def _consumers(args: argparse.Namespace) -> None:
    with group_of(args) as group:
        consumers = group.consumers()
    rows = [(output.text(consumer.name), f"{consumer.pending:,}", output.moment(consumer.seen),
             output.moment(consumer.active)) for consumer in consumers]
    output.answer(
        args.json,
        {"stream": group.stream, "group": group.name, "consumers": [consumer.to_dict() for consumer in consumers]},
        *output.table(rows, (1,), ("consumer", "pending", "seen", "active")),
    )
    if not rows:
        output.note("no consumers")


@command(
    "create-consumer", (*OF_CONSUMER, *WRITING),
    """Reading creates a consumer as well; this command reads nothing. Exit status 1 if it exists.""",
    "raxlog create-consumer events.rax orders billing worker-1",
)
def _create_consumer(args: argparse.Namespace) -> None:
    with group_of(args, writing) as group:
        if not group.create_consumer(args.consumer):
            raise CommandError(f"group {shown(group.name)} has a consumer {shown(args.consumer)} already", NO)
    output.answer(args.json, {"created": args.consumer})


@command(
    "delete-consumer",
    (*OF_CONSUMER,
     one_of(argument("--to", metavar="OTHER", read=consumer_name,
                     help="transfer its pending entries to this consumer"),
            flag("--drop", "drop its pending entries: they are never delivered again")), *WRITING),
    """A consumer with pending entries is not deleted (exit status 1) without --to or --drop.
Transferred entries keep their times and delivery counts.""",
    "raxlog delete-consumer events.rax orders billing worker-1 --to worker-2",
)
def _delete_consumer(args: argparse.Namespace) -> None:
    with group_of(args, writing) as group:
        if args.consumer not in {known.name for known in group.consumers()}:
            raise CommandError(f"group {shown(group.name)} has no consumer {shown(args.consumer)}", NO)
        had = group.delete_consumer(args.consumer, pending="drop" if args.drop else "refuse", to=args.to)
    fate = f"handed over to {output.text(args.to)}" if args.to is not None else "dropped"
    output.answer(args.json, {"deleted": args.consumer, "pending": had, "to": args.to},
                  f"consumer deleted, {output.many(had, 'pending entry')}{' ' + fate if had else ''}")
