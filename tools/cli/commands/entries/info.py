"""info: a table of the streams, all figures of one, its groups in full, its rax or a node drawn.

The row of a damaged stream shows what is wrong; the others are listed, and the exit status is 3.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from typing import Any

from .....storage.engine import registry
from .....storage.engine.compaction import size_of_copy
from .....storage.errors import CorruptionError
from .....storage.folder import directory
from .....store import Store
from .....stream.entries.header import shown
from .....stream.info import COUNT, PendingDetail, draw_rax, header_of, stored_node
from .....stream.node.arguments import name_bytes
from .....stream.node.entry import Entry
from .....stream.node.stream_id import StreamID, make_id, parse_id
from .....stream.node.values import RAW
from .....stream.stream import Stream
from .... import output
from ...arguments import OF_STORE, argument, command, flag, one_of
from ...readers import stream_name, whole
from ...status import DONE, NO, STORE, USAGE, CommandError
from ...stores import reading, stream_of
from ..groups.groups import groups_table
from .node_diagram import DrawnNode

_WORTH_A_LINE = 1 << 20  # bytes free
_NONE = {"idempotence_cap": "none"}  # what None is, where it is not unknown
_USUAL: dict[str, object] = {  # not worth a line
    "radix_tree_nodes": None, "schema": {}, "schema_checked": False, "retention": None, "deferred": 0, "next_due": None,
    "schedules": 0, "codec": RAW, "remembered": 0}


@command(
    "info",
    (*OF_STORE,
     argument("stream", metavar="STREAM", nargs="?", read=stream_name,
              help="the stream's name; without it all are listed"),
     one_of(flag("--rax", "draw the stream's rax, as raxShow does"),
            argument("--node", metavar="ID", read=parse_id, help="draw the node that holds, or would hold, this ID"),
            flag("--full", "also entries, and the groups' pending entries")),
     argument("--count", type=whole, metavar="N",
              help=f"with --full: at most N of each list (default: {COUNT}; 0: all)")),
    """Without STREAM, prints a table of the streams: entries, nodes, first live and last generated ID.
With STREAM, prints everything that XINFO STREAM shows, and its consumer groups. With --full, prints
what XINFO STREAM FULL shows: the first entries, and for each group its consumers and what each
has pending since when (UTC). --rax draws the radix tree over the
16-byte master IDs of the nodes. --node draws one node: the block around it, its master entry, and
every entry, including deleted ones, with flags, offset and bytes. A damaged stream is named in the
table, and the exit status is then 3.""",
    "raxlog info events.rax",
    "raxlog info events.rax orders --full --count 3",
    "raxlog info events.rax orders --rax",
    "raxlog info events.rax orders --node 1526919030474-55",
)
def _run(args: argparse.Namespace) -> int:
    if args.count is not None and not args.full:
        raise CommandError("--count is for --full", USAGE)
    if args.stream is None:
        if args.rax or args.full or args.node is not None:
            raise CommandError("--rax, --node and --full show one stream: name it", USAGE)
        with reading(args) as store:
            return _store(store, args.json)
    with stream_of(args) as stream:
        if args.node is not None:
            _node(stream, args.node, args.json)
        elif args.full:
            _full(stream, COUNT if args.count is None else args.count, args.json)
        else:
            _figures(stream, args.rax, args.json)
    return DONE


def _store(store: Store, as_json: bool) -> int:
    rows = [_row(store, name) for name in store.streams()]
    # The data file's size, and how much of it is on disk: pages never used are holes.
    status = directory.data_status(store.path)
    size, on_disk = status.st_size, status.st_blocks * 512
    share = registry.read_only(store.path)  # the same that is open
    with contextlib.closing(share):
        free = max(0, size - size_of_copy(share.env))
    cells = [
        (output.text(row["name"]),
         *(_said(row.get(what)) for what in ("length", "nodes", "first", "last_generated_id")),
         f"DAMAGED: {output.one_line(row['damaged'])}" if "damaged" in row else "")
        for row in rows
    ]  # fmt: skip
    path, streams = output.text(os.fsencode(store.path)), output.many(len(rows), "stream")
    output.answer(
        as_json,
        {"store": os.fsencode(store.path), "bytes": size, "bytes_on_disk": on_disk, "bytes_free": free,
         "last_end": store.last_end.to_dict(), "readers": [reader.to_dict() for reader in store.readers()],
         "streams": rows},
        f"{path}: {streams}, {size:,} bytes ({on_disk:,} on disk)", *_noteworthy(store, free),
        *output.table(cells, (1, 2), ("stream", "entries", "nodes", "first", "last", "")),
    )
    return STORE if any("damaged" in row for row in rows) else DONE


def _noteworthy(store: Store, free: int) -> Iterator[str]:
    """What is free in the file; the processes that did not close the store, and those whose reads keep old pages."""
    if free >= _WORTH_A_LINE:
        yield f"{free:,} bytes are free: they are used again, and 'raxlog compact' gives them back"
    end = store.last_end
    if end.how != "clean":
        yield output.unclosed(end)
    yield from (f"damaged: {problem}" for problem in end.problems)
    for reader in store.readers():
        if reader.lag:
            behind = output.many(reader.lag, "checkpoint")
            yield f"process {reader.pid} has read for {behind}: what was written since takes new space"


def _row(store: Store, name: str | bytes) -> dict[str, Any]:
    """A stream's figures without walking it: its header, its first entry."""
    row: dict[str, Any] = {"name": name}
    try:
        stream = store.stream(name)
        header = header_of(stream)
        if header is not None:
            row |= {"length": header.length, "nodes": header.leaves, "entries_added": header.entries_added,
                    "last_generated_id": make_id(*header.last)}
            first = next(iter(stream.range(count=1)), None)
            row["first"] = None if first is None else first.id
    except CorruptionError as error:
        row["damaged"] = str(error)
    return row


def _figures(stream: Stream, rax: bool, as_json: bool) -> None:
    figures, groups = stream.info().to_dict(), stream.groups()
    document = figures | {"groups": [group.to_dict() for group in groups]}
    if rax:
        drawing = draw_rax(stream).rstrip("\n")
        output.answer(as_json, document | {"rax": drawing}, drawing)
    else:
        output.answer(as_json, document, *_listed(figures), *(["", *groups_table(groups)] if groups else []))


def _listed(figures: dict[str, Any]) -> list[str]:
    return output.table([(name.replace("_", "-"), _said(_NONE.get(name) if value is None else value))
                         for name, value in figures.items() if name not in _USUAL or value != _USUAL[name]])


def _said(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, Entry):
        return output.entry_text(value).replace("\t", "  ")
    if isinstance(value, bytes):
        return output.text(value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {kind}" for name, kind in value.items())
    return f"{value:,}" if type(value) is int else str(value)


def _full(stream: Stream, count: int, as_json: bool) -> None:
    info = stream.full_info(count)
    if as_json:
        output.print_json(info.stream.to_dict() | {"entries": info.entries, "groups": info.groups})
        return
    figures = info.stream.to_dict()
    del figures["first_entry"], figures["last_entry"]
    output.print_text(*_listed(figures))
    output.print_text(f"\nentries: {_of(len(info.entries), info.stream.length)}")
    for entry in info.entries:
        output.print_text(f"  {output.entry_text(entry)}")
    for group in info.groups:
        filtered = f", subjects {' '.join(map(output.text, group.subjects))}" if group.subjects else ""
        output.print_text(
            f"\ngroup {output.text(group.name)}: last delivered {group.last_delivered_id}, "
            f"entries read {_said(group.entries_read)}, lag {group.lag:,}{filtered}"
        )
        released = f"; {group.released:,} of them released" if group.released else ""
        output.print_text(f"  pending: {_of(len(group.pending_entries), group.pending)}{released}")
        _print_pending(group.pending_entries)
        for consumer in group.consumers:
            active = "never active" if consumer.active is None else f"active {output.moment(consumer.active)}"
            output.print_text(
                f"  consumer {output.text(consumer.name)}: seen {output.moment(consumer.seen)}, {active}, "
                f"pending: {_of(len(consumer.pending_entries), consumer.pending)}"
            )
            _print_pending(consumer.pending_entries)


def _print_pending(rows: list[PendingDetail]) -> None:
    cells = [
        ("   ", str(row.id), "(released)" if row.consumer is None else output.text(row.consumer),
         output.moment(row.delivered), f"{row.deliveries:,}")
        for row in rows
    ]  # fmt: skip
    output.print_text(*output.table(cells, (4,), ("   ", "id", "consumer", "delivered", "deliveries")))


def _of(shown_here: int, total: int) -> str:
    return f"{total:,}" if shown_here == total else f"{shown_here:,} of {total:,}"


def _node(stream: Stream, sid: StreamID, as_json: bool) -> None:
    stored = stored_node(stream, sid)
    if stored is None:
        raise CommandError(f"no node of stream {shown(stream.name)} begins at {sid} or before", NO)
    drawn = DrawnNode(name_bytes(stream.name), *stored)
    output.answer(as_json, drawn.to_dict(), drawn.text())
