"""The writing commands: add, delete, trim, rename, delete-stream, configure."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from typing import Any

from .....storage.errors import IDTooSmall, InvalidFields, NoStream, NotAStore
from .....stream.entries.header import shown
from .....stream.entries.idempotent import MAX_CAP, MAX_WINDOW
from .....stream.entries.retention import Retention
from .....stream.entries.trim import parse_trim
from .....stream.entries.unique import ON_CONFLICT, UNTIL, Appended, parse_wish
from .....stream.group.delete_policy import KEEPREF, POLICIES, DeleteResult
from .....stream.node.entry import UNDECODABLE, flatten
from .....stream.node.stream_id import parse_id, parse_new_id
from .....stream.node.values import CODECS
from .....stream.stream import Stream
from .... import output
from ...arguments import IDS, OF_STREAM, RAW, WRITING, Add, argument, command, flag, one_of
from ...readers import parsed_columns, positive, seconds, stream_name, time_as_id, whole
from ...status import DONE, NO, USAGE, CommandError
from ...stores import existing, reading, stream_of, writing

_REFS = argument("--refs", choices=POLICIES, default=KEEPREF,
                 help="keepref: pending entries stay pending (default); delref: every group forgets them; acked: only "
                 "entries that every group has acknowledged are removed")


def _trimming(required: bool) -> tuple[Add, ...]:
    """--maxlen or --minid, and how to trim by them."""
    return (one_of(argument("--maxlen", type=whole, metavar="N", help="keep the N newest entries"),
                   argument("--minid", metavar="ID", read=time_as_id,
                            help="keep the entries from this ID, or time, on"), required=required),
            flag("--approximate", "evict whole nodes only: cheaper, keeps a little more"),
            argument("--limit", type=whole, metavar="N", help="with --approximate: evict at most N (0: no limit)"),
            _REFS)


def pair(typed: str) -> tuple[bytes, bytes]:
    """FIELD=VALUE as the bytes that were typed."""
    name, equals, value = os.fsencode(typed).partition(b"=")
    if not equals:
        raise InvalidFields(f"{typed!r} is not FIELD=VALUE: it has no '='. Every field needs a value")
    return name, value


def fields_for(stream: Stream, args: argparse.Namespace) -> Any:
    """FIELD=VALUE for the stream's codec, if it has one: a VALUE that is JSON is that, any other is text."""
    codec = stream.codec
    if args.raw or codec == "raw":
        return args.fields
    value = {name.decode(errors=UNDECODABLE): typed.decode(errors=UNDECODABLE) for name, typed in args.fields}
    if len(value) < len(args.fields):
        raise InvalidFields("a field is given twice, which the stream's codec cannot store; or use --raw")
    return value if codec == "str" else {name: _parsed(typed) for name, typed in value.items()}


def _until(typed: str) -> str | float:
    return typed if typed in UNTIL else seconds(typed)


def refuse_field_as_stream(args: argparse.Namespace) -> None:
    """CommandError if STREAM looks like a field, unless there is a stream of that name."""
    if b"=" in args.stream:
        with contextlib.suppress(NotAStore), reading(args) as store:
            if store.stream(args.stream).exists():
                return
        name = os.fsdecode(args.stream)
        raise CommandError(f"{name!r} looks like a field: the stream's name comes before the fields", USAGE)


def uniqueness(args: argparse.Namespace) -> dict[str, Any]:
    """The options of append() and defer() that UNIQUE has read."""
    return {"unique": args.unique, "until": args.until, "on_conflict": args.on_conflict}


def _parsed(typed: str) -> Any:
    try:
        return json.loads(typed)
    except (ValueError, RecursionError):
        return typed


UNIQUE = (
    argument("--unique", metavar="NAME", help="a name that one entry of the stream keeps at a time"),
    argument("--until", metavar="WHEN", default=UNTIL[0], type=_until,
             help="with --unique: the entry keeps it until every group is done with it (done, the default), has been "
             "given it (delivered), or for so many seconds"),
    argument("--on-conflict", choices=ON_CONFLICT, default=ON_CONFLICT[0],
             help="with --unique, where another entry keeps the name: add nothing (skip, the default), add this one in "
             "its place (replace), or exit with status 1 (raise)"))


@command(
    "add",
    (*OF_STREAM, argument("fields", metavar="FIELD=VALUE", nargs="+", read=pair,
                          help="the entry's fields, in this order"),
     argument("--id", default="*", help="the entry's ID: * (default, from the clock), ms-* or ms-seq"),
     flag("--no-create", "only if the stream exists"),
     argument("--expect-last", read=parse_id, metavar="ID",
              help="only if this is the stream's last ID; 0: if it is new"),
     *UNIQUE, RAW,
     *_trimming(required=False), *WRITING),
    """Prints the entry's ID once the entry is on disk. Creates the store and the stream if they
do not exist. A field is split at its first '='; fields may repeat. An ID of your own must be
greater than every ID before it. If it is not, or if --expect-last does not match, the exit
status is 1. --maxlen or --minid trim in the same commit. If the stream has a codec, a value
that is valid JSON is stored as such (qty=2 is a number, zip='"01"' is text), unless --raw is
given. Where another entry keeps a --unique name, its ID is printed (its token, if it is deferred).
Put '--' before fields that begin with a dash.""",
    "raxlog add events.rax orders item=book qty=2",
    "raxlog add events.rax orders item=pen --id 1526919030474-55 --maxlen 1000",
)
def _add(args: argparse.Namespace) -> None:
    refuse_field_as_stream(args)
    flatten(args.fields)
    new = parse_new_id(args.id)
    if (new.ms, new.seq) == (0, 0):
        raise IDTooSmall("the ID 0-0 is refused: an entry's ID must be greater than 0-0")
    parse_trim(args.maxlen, args.minid, args.approximate, args.limit)
    parse_wish(**uniqueness(args))
    with writing(args, create=not args.no_create) as store:
        stream = store.stream(args.stream)
        sid = stream.append(
            fields_for(stream, args), args.id, maxlen=args.maxlen, minid=args.minid, approximate=args.approximate,
            limit=args.limit, refs=args.refs, create=not args.no_create, expect_last=args.expect_last,
            **uniqueness(args)
        )
        if sid is None:
            raise NoStream(f"there is no stream {shown(args.stream)} in {store.path}, and --no-create was given")
    if not isinstance(sid, Appended):
        output.answer(args.json, {"id": sid}, sid)
    else:
        output.answer(args.json, {"id": sid, "new": sid.is_new, "token": sid.token}, sid.token or sid)


@command(
    "delete", (*OF_STREAM, IDS, _REFS, *WRITING),
    """Prints how many were deleted. Exit status 1 if none was. If a consumer group has a deleted entry
pending, it is shown as deleted when it is read again, unless --refs delref is given.""",
    "raxlog delete events.rax orders 1526919030474-55 1526919030474-56",
)
def _delete(args: argparse.Namespace) -> int:
    with stream_of(args, writing) as stream:
        fates = stream.delete_ex(*args.ids, refs=args.refs)
    gone, kept = fates.count(DeleteResult.DELETED), fates.count(DeleteResult.REFERENCED)
    output.answer(args.json, {"deleted": gone, "referenced": kept},
                  f"{output.many(gone, 'entry')} deleted{f', {kept:,} still referenced' if kept else ''}")
    return DONE if gone else NO


@command(
    "trim", (*OF_STREAM, *_trimming(required=True), *WRITING),
    """Prints how many entries were evicted. Give either --maxlen or --minid.""",
    "raxlog trim events.rax orders --maxlen 100000 --approximate --limit 0",
)
def _trim(args: argparse.Namespace) -> None:
    parse_trim(args.maxlen, args.minid, args.approximate, args.limit)
    with stream_of(args, writing) as stream:
        gone = stream.trim(
            maxlen=args.maxlen, minid=args.minid, approximate=args.approximate, limit=args.limit, refs=args.refs
        )
    output.answer(args.json, {"evicted": gone}, f"{output.many(gone, 'entry')} evicted")


@command(
    "rename", (*OF_STREAM, argument("new", metavar="NEW", read=stream_name, help="the new name"), *WRITING),
    """The entries stay where they are. Exit status 1 if STREAM does not exist or already has that
name, or if NEW is taken.""",
    "raxlog rename events.rax orders orders-2024",
)
def _rename(args: argparse.Namespace) -> None:
    with writing(args) as store:
        existing(store, args.stream)
        if not store.rename_stream(args.stream, args.new):
            raise CommandError(f"the stream {shown(args.stream)} has that name already", NO)
    output.answer(args.json, {"renamed": args.stream, "to": args.new},
                  f"stream {output.text(args.stream)} renamed to {output.text(args.new)}")


@command(
    "delete-stream", (*OF_STREAM, *WRITING),
    """It is deleted in one commit, then its space is freed. This cannot be undone.""",
    "raxlog delete-stream events.rax orders",
)
def _delete_stream(args: argparse.Namespace) -> None:
    with writing(args) as store:
        entries = len(existing(store, args.stream))
        if not store.delete_stream(args.stream):
            raise CommandError(f"the stream {shown(args.stream)} was deleted by another program", NO)
    output.answer(args.json, {"deleted": entries}, f"{output.many(entries, 'entry')} deleted")


_SETTINGS = ("compression", "node_max_bytes", "node_max_entries", "idempotence_window", "idempotence_cap", "schema",
             "schema_checked", "retention", "codec")


def _schema(typed: str) -> dict[str, str]:
    return parsed_columns(typed, "--schema") if typed.strip() else {}


def _retention(typed: str) -> Retention:
    rules: dict[str, Any] = {}
    for word in typed.replace(",", " ").split():
        name, _, value = word.partition("=")
        if name not in Retention.__match_args__:
            known = ", ".join(Retention.__match_args__)
            raise CommandError(f"--retention: there is no rule {name!r}; there are {known}", USAGE)
        try:
            is_time = name in ("max_age", "idle_group") and value[-1:].isalpha()
            rules[name] = json.loads(f"{seconds(value):.15g}" if is_time else value or "true")
        except (ValueError, argparse.ArgumentTypeError):
            raise CommandError(f"--retention: {word!r} needs a number after '='", USAGE) from None
    return Retention(**rules)


@command(
    "configure",
    (*OF_STREAM,
     argument("--compression", choices=("none", "zstd", "compact"),
              help="of nodes that are full: none, zstd, or compact (zstd in nodes of 16 KB or more, for history)"),
     argument("--node-max-bytes", type=whole, metavar="N", help="a node is full by Redis' rule; 0: no limit"),
     argument("--node-max-entries", type=whole, metavar="N", help="entries of a node; 0: no limit"),
     argument("--idempotence-window", type=positive, metavar="SECONDS",
              help="how long idempotent IDs are remembered at least, even if their entries are gone: up to "
              f"{MAX_WINDOW:,}, the default"),
     argument("--idempotence-cap", type=whole, metavar="N",
              help=f"how many of each producer are remembered at most, up to {MAX_CAP:,}; 0: no cap, the default"),
     argument("--schema", read=_schema, metavar="COLUMNS",
              help='the types of fields, "item string, qty bigint": columns of export and Spark; "" removes it'),
     argument("--schema-checked", action=argparse.BooleanOptionalAction, help="refuse appends that break the schema"),
     argument("--retention", read=_retention, metavar="RULES",
              help="what is kept: maxlen=ENTRIES max_age=SECONDS max_bytes=BYTES acked idle_group=SECONDS, one or "
              'several; "" removes it'),
     argument("--codec", choices=CODECS, help="of values appended from now on"),
     *WRITING),
    """Creates the stream if it is missing. --compression and the node limits apply to new nodes. Window
and cap also hold for idempotent IDs that are remembered already; 'raxlog serve' takes them as Redis
does, and 100 each if not set. --retention removes the oldest entries: those beyond maxlen, max_age or
max_bytes, and with "acked" those that every consumer group has acknowledged, except groups that were
not read from for idle_group seconds. See also: raxlog maintain. Prints the changed settings.""",
    "raxlog configure events.rax orders --compression zstd",
    'raxlog configure events.rax jobs --retention "acked idle_group=3600 max_age=604800"',
)
def _configure(args: argparse.Namespace) -> None:
    given = {name: getattr(args, name) for name in _SETTINGS if getattr(args, name) is not None}
    if not given:
        options = ", ".join("--" + name.replace("_", "-") for name in _SETTINGS)
        raise CommandError(f"nothing to change: give one of {options}", USAGE)
    with writing(args) as store:
        stream = store.stream(args.stream)
        changed = stream.configure(**given)
    if args.retention is not None:
        given["retention"] = args.retention.to_dict()
    shown = changed.to_dict()
    if changed.retention is not None:
        rules = changed.retention.to_dict().items()
        shown["retention"] = " ".join(name if rule is True else f"{name}={rule}" for name, rule in rules) or "none"
    line = ", ".join(f"{setting.replace('_', '-')} is now {value}" for setting, value in shown.items())
    output.answer(args.json, {"configured": stream.name} | given,
                  line or "nothing changed: the stream has these settings already")
