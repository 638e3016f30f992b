"""Workers and dead letters.

    worker   runs a function of a Python module for each entry of a group
    cancel   gives up entries, whether they wait or run
    dlq      what has been given up: list, show, replay, purge
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import raxlog

from .....storage.errors import RaxlogError
from .....stream.group.dead_letters import DeadLetter
from .....stream.jobs.worker import is_async
from .....stream.node.json_form import fields_form
from .....stream.node.stream_id import parse_id
from .... import output
from ...arguments import IDS, OF_GROUP, TIME, WRITING, argument, command, flag
from ...readers import consumer_name, delays, group_name, positive, seconds, stream_name, whole
from ...status import DONE, NO, USAGE, CommandError
from ...stores import existing, group_of, writing


@command(
    "worker",
    (argument("handler", metavar="MODULE:FUNCTION", help="the function to call with each entry"), *OF_GROUP,
     argument("--threads", type=positive, default=1, metavar="N", help="handlers that run at once (default: 1)"),
     argument("--processes", type=whole, default=0, metavar="N",
              help="worker processes, restarted when they die (default: only this one)"),
     argument("--then", action="append", nargs=2, default=[], metavar=("STREAM", "GROUP"),
              help="also serve this group, where those before it have nothing; repeatable"),
     flag("--burst", "end when there is nothing to read"),
     flag("--transaction", "also pass the function a transaction, which acknowledges the entry"),
     argument("--lease", type=seconds, default=30.0, metavar="SECONDS",
              help="how long after a worker's death others take over its entries (default: 30)"),
     argument("--max-deliveries", type=positive, default=20, metavar="N", help="deliveries at most (default: 20)"),
     argument("--retry", type=delays, metavar="SECONDS,…",
              help="delays after the first failure, the second … (default: 1 s, doubled each time, up to an hour)"),
     argument("--timeout", type=seconds, metavar="SECONDS", help="how long a handler may take (default: for ever)"),
     argument("--drain", type=seconds, default=10.0, metavar="SECONDS",
              help="how long handlers may still run once the worker is stopped (default: 10)"),
     argument("--result-ttl", type=seconds, metavar="SECONDS",
              help="keep the function's return value this long, for group.wait_result()"),
     argument("--name", metavar="NAME", read=consumer_name, help="the consumer's name (default: generated)"), *WRITING),
    """Calls (or awaits) the function with each entry of the group, until SIGTERM or Ctrl-C. Any number of
workers can run at the same time. An entry is acknowledged when the function returns. If it raises
an exception, the entry is delivered again after a delay; after --max-deliveries of them it goes to the
dead letters ('raxlog dlq'). Of several groups (--then) the first that has an entry is read, but every
tenth read begins at the back. MODULE is also looked for in the current folder.""",
    "raxlog worker shop:send_mail events.rax orders mail --processes 4 --timeout 60",
    "raxlog worker shop:send_mail events.rax urgent mail --then normal mail --then bulk mail",
)
def _worker(args: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s raxlog: %(message)s", stream=sys.stderr)
    handler = _function(args.handler)
    if is_async(handler):
        from .....tools.aio.worker import Awaited  # noqa: PLC0415 - loads asyncio

        handler = Awaited(handler, args.transaction)
    names = [(args.stream, args.group), *((stream_name(stream), group_name(group)) for stream, group in args.then)]
    with writing(args, in_bytes=False) as store:
        groups = [existing(store, stream).group(group) for stream, group in names]
        for group in groups:
            group.info()  # raises where there is no such group
        worker = raxlog.worker(
            dict.fromkeys(groups, handler), name=args.name, threads=args.threads, processes=args.processes,
            transaction=args.transaction, lease=args.lease, max_deliveries=args.max_deliveries, retry=args.retry,
            timeout=args.timeout, drain=args.drain, result_ttl=args.result_ttl,
        )
        worker.run(burst=args.burst)
    return DONE


def _function(name: str) -> Callable[..., object]:
    """The function that MODULE:FUNCTION names."""
    module, colon, path = name.partition(":")
    if not colon or not module or not path:
        raise CommandError(f"{name!r} must be MODULE:FUNCTION, as in shop:send_mail", USAGE)
    sys.path.insert(0, os.getcwd())
    try:
        found: Callable[..., object] = attrgetter(path)(importlib.import_module(module))
    except RaxlogError:
        raise
    except (ImportError, AttributeError) as error:
        raise CommandError(f"{name!r} cannot be loaded: {error}", USAGE) from error
    return found


@command(
    "cancel",
    (*OF_GROUP, IDS, argument("--reason", metavar="TEXT", default="", help="why, for the dead letters"), *WRITING),
    """Makes dead letters of the entries, whether they are not delivered yet, wait for a retry, or run:
the handler then gets raxlog.Cancelled within a second. Prints how many there were. Exit status 1 if
none was, because all were done, dead or deleted. For a deferred entry see 'deferred --cancel'.""",
    "raxlog cancel events.rax orders mail 1526919030474-55 --reason 'sent by hand'",
)
def _cancel(args: argparse.Namespace) -> int:
    with group_of(args, writing) as group:
        count = group.cancel(args.ids, args.reason)
    output.answer(args.json, {"cancelled": count}, f"{output.many(count, 'entry')} cancelled")
    return DONE if count else NO


@command(
    "dlq",
    (argument("action", choices=("list", "show", "replay", "purge"), help="what to do"), *OF_GROUP,
     argument("ids", metavar="ID", nargs="*", read=parse_id, help="only these letters"),
     argument("--reason", choices=("failed", "discarded", "exhausted", "malformed", "cancelled"),
              help="only those of this reason"),
     TIME, *WRITING),
    """Works on the dead letters of a group. list: prints a line for each, with its ID, the entry's ID, the
deliveries, the reason and the error; show: prints all of each, with its traceback; replay: appends
the entries to their stream again; purge: deletes them. Without IDs, all of them. Exit status 1 if
there are none.""",
    "raxlog dlq list events.rax orders mail",
    "raxlog dlq replay events.rax orders mail 1526919030474-0",
)
def _dlq(args: argparse.Namespace) -> int:
    def wanted(letter: DeadLetter) -> bool:
        return args.reason in (None, letter.reason)

    if args.action in ("replay", "purge"):
        with group_of(args, writing) as group:
            letters = group.dead_letters
            count = (letters.replay if args.action == "replay" else letters.purge)(*args.ids, where=wanted)
            if not count:
                group.pending()  # NoGroup for a name that is mistyped
        done = "appended again" if args.action == "replay" else "deleted"
        output.answer(args.json, {args.action: count}, f"{output.many(count, 'dead letter')} {done}")
        return DONE if count else NO
    with group_of(args) as group:
        letters = group.dead_letters
        found = map(letters.get, args.ids) if args.ids else iter(letters)
        shown = [letter for letter in found if letter is not None and wanted(letter)]
        if not shown:
            group.pending()
    if args.json:
        for letter in shown:
            output.print_json(output.timed(_document(letter), letter.id, args.time))
    elif args.action == "list":
        rows = [(str(letter.id), *([output.time_of(letter.id)] if args.time else []), str(letter.origin),
                 str(letter.deliveries), letter.reason, output.one_line(letter.error)) for letter in shown]
        output.print_text(*output.table(
            rows, (2 + args.time,), ("id", *["time"] * args.time, "entry", "deliveries", "reason", "error")))
    else:
        for letter in shown:
            output.print_text(f"{letter.id}  {letter.reason} after {output.many(letter.deliveries, 'delivery')}",
                              "\t".join([str(letter.origin), *output.pairs_text(letter.entry.pairs)]),
                              *letter.traceback.splitlines())
    if not shown:
        output.note("no dead letters")
    return DONE if shown else NO


def _document(letter: DeadLetter) -> dict[str, Any]:
    return letter.to_dict() | {"entry": letter.origin, "fields": fields_form(letter.entry.pairs)}
