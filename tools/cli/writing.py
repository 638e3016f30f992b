"""The writing commands: add, delete, trim, rename, delete-stream, configure."""

from __future__ import annotations

import argparse
import os

from ...storage.errors import IDTooSmall, InvalidFields, NoStream
from ...stream.entry import flatten
from ...stream.header import shown
from ...stream.id import parse_id, parse_new_id
from ...stream.idempotent import MAX_CAP, MAX_WINDOW
from ...stream.names import name_bytes
from ...stream.references import KEEPREF, POLICIES, DeleteResult
from ...stream.trim import parse_trim
from . import output
from .arguments import (
    DONE,
    NO,
    USAGE,
    Failure,
    Parser,
    WritingCommand,
    add_ids,
    add_store,
    existing,
    positive,
    stream_name,
    whole,
    writing,
)

# -- add ----------------------------------------------------------------------------------


def _add_arguments(parser: Parser) -> None:
    add_store(parser)
    parser.add_argument("fields", metavar="FIELD=VALUE", nargs="+", help="the entry's fields, in this order")
    parser.add_argument("--id", default="*", help="the entry's ID: * (default, from the clock), ms-* or ms-seq")
    parser.add_argument("--no-create", action="store_true", help="only if the stream is there already")
    _add_trimming(parser, required=False)


def _add(args: argparse.Namespace) -> int:
    pairs = [pair(argument) for argument in args.fields]
    flatten(pairs)
    new = parse_new_id(args.id)
    if (new.ms, new.seq) == (0, 0):
        raise IDTooSmall("the ID 0-0 is refused: an entry's ID must be greater than 0-0")
    parse_trim(args.maxlen, args.minid, args.approximate, args.limit)
    name = stream_name(args)
    with writing(args, create=not args.no_create) as store:
        sid = store.stream(name).append(
            pairs, args.id, maxlen=args.maxlen, minid=args.minid, approximate=args.approximate, limit=args.limit,
            refs=args.refs, create=not args.no_create
        )
        if sid is None:
            raise NoStream(f"there is no stream {shown(name)} in {store.path}, and --no-create was given")
    output.answer(args.json, {"id": str(sid)}, sid)
    return DONE


def pair(argument: str) -> tuple[bytes, bytes]:
    """FIELD=VALUE as the bytes that were typed."""
    name, equals, value = os.fsencode(argument).partition(b"=")
    if not equals:
        raise InvalidFields(f"{argument!r} is no FIELD=VALUE: there is no '=' in it. Every field needs a value")
    return name, value


# -- delete -------------------------------------------------------------------------------


def _delete_arguments(parser: Parser) -> None:
    add_store(parser)
    add_ids(parser)
    _add_refs(parser)


def _add_refs(parser: Parser) -> None:
    parser.add_argument(
        "--refs", choices=POLICIES, default=KEEPREF,
        help="keepref: pending entries stay pending (default); delref: they leave every group; "
        "acked: only what every group has acknowledged goes",
    )


def _delete(args: argparse.Namespace) -> int:
    ids = [parse_id(text) for text in args.ids]
    name = stream_name(args)
    with writing(args) as store:
        fates = existing(store, name).delete_ex(*ids, refs=args.refs)
    gone, kept = fates.count(DeleteResult.DELETED), fates.count(DeleteResult.REFERENCED)
    output.answer(args.json, {"deleted": gone, "referenced": kept},
                  f"{output.many(gone, 'entry')} deleted{f', {kept:,} still referenced' if kept else ''}")
    return DONE if gone else NO


# -- trim ---------------------------------------------------------------------------------


def _add_trimming(parser: Parser, required: bool) -> None:
    what = parser.add_mutually_exclusive_group(required=required)
    what.add_argument("--maxlen", type=whole, metavar="N", help="keep the N newest entries")
    what.add_argument("--minid", metavar="ID", help="keep the entries from this ID on")
    parser.add_argument(
        "--approximate", action="store_true", help="evict whole nodes only: cheaper, keeps a little more"
    )
    parser.add_argument("--limit", type=whole, metavar="N", help="with --approximate: evict at most N (0: no limit)")
    _add_refs(parser)


def _trim_arguments(parser: Parser) -> None:
    add_store(parser)
    _add_trimming(parser, required=True)


def _trim(args: argparse.Namespace) -> int:
    parse_trim(args.maxlen, args.minid, args.approximate, args.limit)
    name = stream_name(args)
    with writing(args) as store:
        gone = existing(store, name).trim(
            maxlen=args.maxlen, minid=args.minid, approximate=args.approximate, limit=args.limit, refs=args.refs
        )
    _print_number("evicted", gone, args.json)
    return DONE


# -- rename, delete-stream, configure -----------------------------------------------------


def _rename_arguments(parser: Parser) -> None:
    add_store(parser)
    parser.add_argument("new", metavar="NEW", help="the new name")


def _rename(args: argparse.Namespace) -> int:
    before, after = stream_name(args), name_bytes(os.fsencode(args.new))
    with writing(args) as store:
        existing(store, before)
        if not store.rename_stream(before, after):
            raise Failure(f"the stream {shown(before)} has that name already", NO)
    if args.json:
        output.print_json({"renamed": output.plain(before), "to": output.plain(after)})
    else:
        output.print_text(f"stream {output.text(before)} renamed to {output.text(after)}")
    return DONE


def _delete_stream(args: argparse.Namespace) -> int:
    name = stream_name(args)
    with writing(args) as store:
        entries = len(existing(store, name))
        if not store.delete_stream(name):
            raise Failure(f"the stream {shown(name)} was deleted by somebody else", NO)
    _print_number("deleted", entries, args.json)
    return DONE


_SETTINGS = ("compression", "node_max_bytes", "node_max_entries", "idempotence_window", "idempotence_cap")


def _configure_arguments(parser: Parser) -> None:
    add_store(parser)
    parser.add_argument(
        "--compression", choices=("none", "zstd", "compact"),
        help="of nodes that are full: none, zstd, or compact (zstd in nodes of 16 KB or more, for history)"
    )
    parser.add_argument("--node-max-bytes", type=whole, metavar="N", help="a node is full by Redis' rule; 0: no limit")
    parser.add_argument("--node-max-entries", type=whole, metavar="N", help="entries of a node; 0: no limit")
    parser.add_argument(
        "--idempotence-window", type=positive, metavar="SECONDS",
        help=f"how long idempotent appends are remembered, up to {MAX_WINDOW:,}"
    )
    parser.add_argument(
        "--idempotence-cap", type=positive, metavar="N",
        help=f"how many of each producer are remembered, up to {MAX_CAP:,}"
    )


def _configure(args: argparse.Namespace) -> int:
    given = {name: getattr(args, name) for name in _SETTINGS if getattr(args, name) is not None}
    if not given:
        options = ", ".join("--" + name.replace("_", "-") for name in _SETTINGS)
        raise Failure(f"nothing to change: give one of {options}", USAGE)
    name = stream_name(args)
    with writing(args) as store:
        changed = existing(store, name).configure(**given)
    if args.json:
        output.print_json({"configured": output.plain(name)} | given)
    else:
        told = ", ".join(f"{setting.replace('_', '-')} is now {value}" for setting, value in changed.items())
        print(told or "nothing changed: the stream has these settings already")
    return DONE


def _print_number(verb: str, entries: int, as_json: bool) -> None:
    output.answer(as_json, {verb: entries}, f"{output.many(entries, 'entry')} {verb}")


COMMANDS = {
    "add": WritingCommand(
        _add,
        _add_arguments,
        """
Prints the entry's ID once the entry is on disk. Creates the store and the stream where they
are not there. A field is split at its first '='; fields may repeat. An ID of your own must be
greater than every ID before it (else exit status 1). --maxlen or --minid trim in the same
commit. Put '--' before fields that begin with a dash.""",
        """
  raxlog add events.rax orders item=book qty=2
  raxlog add events.rax orders item=pen --id 1526919030474-55 --maxlen 1000""",
    ),
    "delete": WritingCommand(
        _delete,
        _delete_arguments,
        """
Prints how many went. Exit status 1 if none did. What a consumer group has pending is told of as
deleted when it is read again, unless --refs delref.""",
        """
  raxlog delete events.rax orders 1526919030474-55 1526919030474-56""",
    ),
    "trim": WritingCommand(
        _trim,
        _trim_arguments,
        """
Prints how many entries went. Give one of --maxlen and --minid.""",
        """
  raxlog trim events.rax orders --maxlen 100000 --approximate --limit 0""",
    ),
    "rename": WritingCommand(
        _rename,
        _rename_arguments,
        """
The entries stay where they are. Exit status 1 if STREAM is not there, or bears that name already, or
NEW is taken.""",
        """
  raxlog rename events.rax orders orders-2024""",
    ),
    "delete-stream": WritingCommand(
        _delete_stream,
        add_store,
        """
It is gone with one commit; then its space is given back. There is no way to undo it.""",
        """
  raxlog delete-stream events.rax orders""",
    ),
    "configure": WritingCommand(
        _configure,
        _configure_arguments,
        """
--compression and the node limits hold for nodes begun from now on. A change of the window or
the cap forgets which idempotent appends there were, as XCFGSET does. Prints what has changed.""",
        """
  raxlog configure events.rax orders --compression zstd""",
    ),
}
