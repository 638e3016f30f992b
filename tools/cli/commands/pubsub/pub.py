"""Publishing: pub, sub, and the bindings of subjects to streams.

    pub ──> bound streams            raxlog bind …, and then range, tail, read as of any stream
        ├─> durable subscriptions    raxlog sub --durable NAME: at least once, continues where it was
        │                            until raxlog unsub NAME
        └─> live subscriptions       raxlog sub: at most once

With --channel (and, to listen, --glob) the same two commands are Redis' PUBLISH, SUBSCRIBE and
PSUBSCRIBE. interest.py lists the subscriptions.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import cast

from .....index.pubsub.channels import ChannelMessage, Subscriber
from .....index.pubsub.durable_subscription import DurableSubscription
from .....index.pubsub.durable_subscription import checked_name as durable_name
from .....index.pubsub.live_subscription import LiveSubscription, Message
from .....index.subjects import subject as subjects
from .....storage.folder import directory
from .....store import Store
from .....stream.node.arguments import duration_ms
from .....stream.node.entry import flatten
from .....stream.node.json_form import fields_form
from .... import output
from ...arguments import OF_STORE, WRITING, argument, command, flag
from ...readers import positive, seconds, stream_name, typed
from ...status import DONE, NO, USAGE, CommandError
from ...stores import reading, writing
from ..entries.add import pair


@command(
    "pub",
    (*OF_STORE, argument("subject", metavar="SUBJECT", read=os.fsencode,
                         help="where to publish; with --channel a channel's name"),
     argument("fields", metavar="FIELD=VALUE", nargs="+", help="the message; with --channel one text"),
     flag("--channel", "publish on a channel, as Redis' PUBLISH does"), *WRITING),
    """When the command returns, either every stream bound to the subject and every durable subscription
has the message, or none has; live subscriptions are sent it. Prints the number of recipients and
the IDs of the entries. Exit status 1 if there was no recipient.""",
    "raxlog pub events.rax orders.eu.new item=book qty=2",
    "raxlog pub events.rax news.it 'ciao a tutti' --channel",
)
def _pub(args: argparse.Namespace) -> int:
    if args.channel:
        return _pub_on_channel(args)
    subject = subjects.literal(args.subject)
    pairs = [pair(typed) for typed in args.fields]
    flatten(pairs)
    with writing(args) as store:
        reached = store.publish(subject, pairs)
    parts = {"bindings": reached.bindings, "durables": reached.durables, "live": reached.live}
    counted = zip(parts.values(), ("binding", "durable subscription", "live subscription"), strict=True)
    listed = ", ".join(output.many(count, noun) for count, noun in counted if count)
    ids = [{"stream": name, "id": sid} for name, sid in reached.ids.items()]
    output.answer(args.json, {"reached": int(reached)} | parts | {"entries": ids}, f"reached {listed or 'nobody'}",
                  *(f"{output.text(name)}\t{sid}" for name, sid in reached.ids.items()))
    return DONE if reached else NO


def _pub_on_channel(args: argparse.Namespace) -> int:
    if len(args.fields) != 1:
        raise CommandError(f"--channel publishes one text, and {len(args.fields)} were given; quote it", USAGE)
    with writing(args) as store:
        copies = store.channels.publish(args.subject, os.fsencode(args.fields[0]))
    output.answer(args.json, {"copies": copies}, f"sent {output.many(copies, 'copy')}")
    return DONE if copies else NO


@command(
    "sub",
    (*OF_STORE, argument("subjects", metavar="SUBJECT", nargs="+", help="a subject, or a pattern with * and >"),
     argument("--queue", metavar="NAME", read=os.fsencode,
              help="share the messages with the other members of this group"),
     argument("--durable", metavar="NAME", read=os.fsencode,
              help="continue from the stored position of this name; acknowledge printed messages"),
     flag("--channel", "the SUBJECTs are Redis channels"),
     flag("--glob", "the SUBJECTs are globs over channels"),
     argument("--count", type=positive, metavar="N", help="end after N messages"),
     argument("--timeout", type=seconds, metavar="SECONDS", help="end when none has come for this long"), *WRITING),
    """Prints messages that any process publishes while the command runs; earlier ones are not printed.
With --durable the store keeps the position under that name even while no command runs. Each message
is acknowledged once it is printed, so it is printed at least once; 'raxlog unsub' removes the name.
Ends with Ctrl-C, after --count messages, or if none came for --timeout seconds. Exit status 1 if
none came at all. Creates the store if it does not exist. In a pattern, * stands for one token and
> at the end for one or more.""",
    "raxlog sub events.rax 'orders.*.new'",
    "raxlog sub events.rax 'orders.>' --durable billing --json",
    "raxlog sub events.rax 'news.*' --glob",
)
def _sub(args: argparse.Namespace) -> int:
    names = [os.fsencode(typed) for typed in args.subjects]
    by_channel = args.channel or args.glob
    if args.channel and args.glob:
        raise CommandError("--channel and --glob: choose one of the two", USAGE)
    if by_channel and (args.queue is not None or args.durable is not None):
        raise CommandError("channels have neither --queue nor --durable; subjects do", USAGE)
    if len(names) > 1 and not by_channel:
        raise CommandError("one SUBJECT at a time: run the command twice, or use a pattern", USAGE)
    if not by_channel:
        subjects.pattern(names[0])
    if args.timeout is not None:
        duration_ms("--timeout", args.timeout)  # refused before anything is printed or subscribed to
    new = f", in a new store at {args.store}" if directory.is_vacant(Path(args.store)) else ""
    with writing(args, create=True) as store, _subscribed(store, args, names) as subscription:
        if not args.json:
            print(f"listening to {', '.join(args.subjects)}{new}", file=sys.stderr, flush=True)
        printed = 0
        while printed != args.count and (message := subscription.get(args.timeout)) is not None:
            _print(message, args.json)
            sys.stdout.flush()
            if args.durable is not None and isinstance(message, Message):
                message.ack()  # after printing: a message may come twice, and none is lost
            printed += 1
    return DONE if printed else NO


def _subscribed(store: Store, args: argparse.Namespace, names: list[bytes]
                ) -> Subscriber | LiveSubscription | DurableSubscription:
    if args.channel:
        return store.channels.subscribe(*names)
    if args.glob:
        return store.channels.psubscribe(*names)
    durable: bytes | None = args.durable
    if durable is None:
        return store.subscribe(names[0], queue=args.queue)
    return store.subscribe_durable(names[0], durable, queue=args.queue)


def _print(message: ChannelMessage | Message, as_json: bool) -> None:
    if isinstance(message, ChannelMessage):
        document = message.to_dict()
        line = f"{output.text(message.channel)}\t{output.text(message.data)}"
    else:
        pairs = cast("list[tuple[bytes, bytes]]", message.pairs)  # the store has no encoding
        document = message.to_dict() | {"fields": fields_form(pairs)}
        line = "\t".join([output.text(message.subject or ""), *output.pairs_text(pairs)])
    output.answer(as_json, document, line)


@command(
    "unsub",
    (*OF_STORE, argument("name", metavar="NAME", read=typed(durable_name),
                         help="the durable name, as given to 'raxlog sub --durable'"), *WRITING),
    """Its undelivered and unacknowledged messages are deleted, and its listeners end. These messages are
in the stream '$durable.NAME', which 'raxlog streams' lists. Exit status 1 if there is no durable
subscription of that name. This cannot be undone.""",
    "raxlog unsub events.rax billing",
)
def _unsub(args: argparse.Namespace) -> int:
    with writing(args) as store:
        ended = store.unsubscribe(args.name)
    output.answer(args.json, {"unsubscribed": ended},
                  "unsubscribed" if ended else "there is no durable subscription of that name")
    return DONE if ended else NO


_PATTERN = typed(subjects.pattern)

@command(
    "bind",
    (*OF_STORE, argument("subject", metavar="SUBJECT", read=_PATTERN, help="a subject, or a pattern with * and >"),
     argument("stream", metavar="STREAM", read=stream_name, help="the stream's name; the first message creates it"),
     *WRITING),
    """From now on, each publish appends the message in its own commit. The subject becomes the entry's
first field, $subject. Repeating a binding changes nothing.""",
    "raxlog bind events.rax 'orders.>' orders",
)
def _bind(args: argparse.Namespace) -> None:
    with writing(args, create=True) as store:
        made = store.bind(args.subject, args.stream)
    output.answer(args.json, made.to_dict(), f"{made.subject} is appended to {output.text(made.stream)}")


@command(
    "unbind",
    (*OF_STORE, argument("subject", metavar="SUBJECT", nargs="?", read=_PATTERN,
                         help="the pattern that was bound"),
     argument("stream", metavar="STREAM", read=stream_name, help="the stream's name"),
     flag("--all", "instead of SUBJECT: all bindings of the stream"), *WRITING),
    """Appended entries stay. Exit status 1 if there was no such binding.""",
    "raxlog unbind events.rax 'orders.>' orders",
    "raxlog unbind events.rax orders --all",
)
def _unbind(args: argparse.Namespace) -> int:
    if args.all == (args.subject is not None):
        raise CommandError("name the SUBJECT that was bound, or give --all for all of the stream", USAGE)
    with writing(args) as store:
        ended = store.unbind(args.subject, args.stream)
    output.answer(args.json, {"unbound": ended},
                  "unbound" if ended else "there is no such binding; 'raxlog bindings' lists them")
    return DONE if ended else NO


@command(
    "bindings",
    (*OF_STORE, argument("stream", metavar="STREAM", nargs="?", read=stream_name,
                         help="only those of this stream")),
    """Prints a line for each binding, in the order in which they were made.""",
    "raxlog bindings events.rax",
)
def _bindings(args: argparse.Namespace) -> None:
    with reading(args) as store:
        found = store.bindings(args.stream)
    rows = [(binding.subject, output.text(binding.stream)) for binding in found]
    output.answer(args.json, {"bindings": [binding.to_dict() for binding in found]},
                  *output.table(rows, head=("subject", "stream")))
