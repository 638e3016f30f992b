"""Entries that come later: defer, deferred."""

from __future__ import annotations

import argparse

from .....stream.entries.unique import Appended, parse_wish
from .....stream.jobs.deferred import Deferred
from .....stream.node.entry import flatten
from .....stream.node.json_form import fields_form
from .... import output
from ...arguments import OF_STREAM, RAW, WRITING, argument, command, one_of
from ...readers import moment, seconds
from ...status import DONE, NO
from ...stores import stream_of, writing
from .add import UNIQUE, fields_for, pair, refuse_field_as_stream, uniqueness


def _show(args: argparse.Namespace, entry: Deferred, **more: object) -> None:
    document = {"token": entry.token, "due": entry.due.isoformat(), "fields": fields_form(entry.pairs), **more}
    output.answer(args.json, document, "\t".join([entry.token, entry.due.isoformat(), *output.pairs_text(entry.pairs)]))


@command(
    "defer",
    (*OF_STREAM, argument("fields", metavar="FIELD=VALUE", nargs="+", read=pair, help="the entry's fields"),
     one_of(argument("--delay", type=seconds, metavar="SECONDS", help="this long from now"),
            argument("--at", metavar="TIME", type=moment, help="at this time, as in 2026-11-24T08:00:00Z"),
            required=True), *UNIQUE, RAW, *WRITING),
    """Puts the entry on disk and prints its token. When it is due, the next process that reads from the
stream or appends to it adds it to the stream. Creates the store and the stream if they do not
exist. Fields are encoded as by 'add'. Where another entry keeps a --unique name, the token or the ID
of that one is printed.""",
    "raxlog defer events.rax mail to=ann@example.org --delay 3600",
)
def _defer(args: argparse.Namespace) -> None:
    refuse_field_as_stream(args)
    flatten(args.fields)
    parse_wish(**uniqueness(args))
    with writing(args, create=True) as store:
        stream = store.stream(args.stream)
        found = stream.defer(fields_for(stream, args), delay=args.delay, at=args.at, **uniqueness(args))
        if isinstance(found, Appended):
            output.answer(args.json, {"id": found, "new": False}, found)
        else:
            _show(args, found, **({"new": found.is_new} if args.unique is not None else {}))


@command(
    "deferred", (*OF_STREAM, argument("--cancel", metavar="TOKEN", nargs="+", help="cancel these"), *WRITING),
    """Prints a line for each deferred entry, in the order of their times: its token, its time, its
fields. With --cancel it prints how many were cancelled; exit status 1 if none was, because all had
already been appended or cancelled.""",
    "raxlog deferred events.rax mail",
)
def _deferred(args: argparse.Namespace) -> int:
    if args.cancel is None:
        with stream_of(args) as stream:
            for entry in stream.deferred():
                _show(args, entry)
        return DONE
    with stream_of(args, writing) as stream:
        count = sum(stream.cancel_deferred(token) for token in args.cancel)
    output.answer(args.json, {"cancelled": count}, f"{output.many(count, 'entry')} cancelled")
    return DONE if count else NO
