"""snapshot, restore, verify: a store copied while it is in use, made again from the copy, compared."""

from __future__ import annotations

import argparse
from pathlib import Path

from .....recovery.snapshot.manifest import Manifest
from .....recovery.snapshot.restore import restore, verify
from .....storage import clocks
from .....storage.errors import ReadOnlyStore
from .....store import Store
from .... import output
from ...arguments import OF_STORE, argument, command, one_of
from ...progress import steps
from ...readers import positive
from ...status import DONE, NO

_STEPS = {"copy": "copying", "check": "checking", "sum": "summing", "cut": "cutting", "upload": "uploading",
          "apply": "applying", "verify": "verifying"}
_COLUMNS = ("{task.description}", "TaskProgressColumn", "TimeElapsedColumn")


@command(
    "snapshot",
    (*OF_STORE, argument("destination", metavar="DEST", help="where the snapshot goes; the path must be free"),
     argument("--incremental-to", metavar="SNAPSHOT",
              help="write only the changes since this snapshot of the store"),
     one_of(argument("--shards", type=positive, metavar="N",
                     help="cut each stream into N ranges of IDs; DEST may be a URL then"),
            argument("--shard-bytes", type=positive, metavar="BYTES",
                     help="the same, with about this many bytes of nodes per shard")),
     argument("--keep", type=positive, metavar="N",
              help="then remove the store's older snapshots next to DEST, except N and those on which they are based")),
    """Copies one consistent state of the store, while writers go on. A full snapshot is a
read-only store, which all reading commands open. An increment holds only the changes since an
earlier snapshot. Shards are ranges of IDs in compressed files, for machines that share no disk.
With shards, DEST may be any URL that fsspec supports.""",
    "raxlog snapshot events.rax backups/monday",
    "raxlog snapshot events.rax backups/tuesday --incremental-to backups/monday --keep 7",
    "raxlog snapshot events.rax s3://bucket/events --shards 16",
)
def _snapshot(args: argparse.Namespace) -> None:
    began = clocks.elapsed()
    with _opened(args.store) as store, steps(Path(args.destination).name, _STEPS, *_COLUMNS) as progress:
        made = store.snapshot(
            args.destination, incremental_to=args.incremental_to, shards=args.shards, shard_bytes=args.shard_bytes,
            keep=args.keep, progress=progress,
        )
    what = {"full": "snapshot", "increment": "increment", "shards": output.many(len(made.shards), "shard")}[made.kind]
    more = f", {made.changed:,} records changed, {made.gone:,} gone" if made.kind == "increment" else ""
    _answer(args, made, began, f"{what} of transaction {made.transaction}", more)


def _opened(path: str) -> Store:
    """The store, opened for writing where that is allowed: that finishes what a compaction left."""
    try:
        return Store.open(path, create=False)
    except ReadOnlyStore:
        return Store.open(path, readonly=True)


@command(
    "restore",
    (argument("snapshot", metavar="SNAPSHOT", help="a full snapshot, or an increment"),
     argument("destination", metavar="DEST", help="where the store goes; the path must be free")),
    """Makes a new store that equals the copied one, record for record. Every byte is verified, and DEST
appears only when it is complete. The store has a UUID of its own, so its next snapshot must be a
full one.""",
    "raxlog restore backups/tuesday events.rax",
)
def _restore(args: argparse.Namespace) -> None:
    began = clocks.elapsed()
    with steps(Path(args.destination).name, _STEPS, *_COLUMNS) as progress:
        made = restore(args.snapshot, args.destination, progress=progress)
    _answer(args, made, began, f"store at {args.destination}")


@command(
    "verify", (argument("snapshot", metavar="SNAPSHOT", help="a snapshot of any kind; the URL of a set of shards"),),
    """Compares every byte of a snapshot, and of the snapshots on which an increment is based, with the
checksums taken when it was made. The exit status is 1 if one is wrong, and each damaged chunk is
named.""",
    "raxlog verify backups/tuesday",
)
def _verify(args: argparse.Namespace) -> int:
    with steps(Path(args.snapshot).name, _STEPS, *_COLUMNS) as progress:
        found = verify(args.snapshot, progress=progress)
    verdict = "every byte is as it was written" if found.ok else output.many(len(found.problems), "problem")
    output.answer(
        args.json, found.to_dict(), *map(output.one_line, found.problems),
        f"{output.many(found.files, 'file')}, {found.bytes:,} bytes: {verdict}",
    )
    return DONE if found.ok else NO


def _answer(args: argparse.Namespace, made: Manifest, began: float, what: str, more: str = "") -> None:
    took = clocks.elapsed() - began
    streams = [
        {"name": stream._raw, "length": stream.length, "nodes": stream.nodes, "first": stream.first,
         "last": stream.last, "groups": len(stream.groups)}
        for stream in made.streams
    ]
    document = {name: getattr(made, name) for name in (
        "kind", "id", "parent", "store", "transaction", "created", "records", "bytes", "changed", "gone")}
    entries = sum(stream.length for stream in made.streams)
    output.answer(
        args.json,
        document | {"shards": len(made.shards), "streams": streams, "destination": args.destination,
                    "seconds": round(took, 6)},
        f"{what}: {output.many(len(made.streams), 'stream')}, {output.many(entries, 'entry')}, "
        f"{output.many(made.records, 'record')}, {made.bytes:,} bytes{more}; {took:.2f} s",
    )
