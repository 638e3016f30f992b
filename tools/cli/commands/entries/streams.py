"""streams: the names. Loads neither groups nor subjects, to start fast."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from .....storage.engine import registry
from .....stream.entries.header import all_names, find
from .....stream.node.stream_id import make_id
from .... import output
from ...arguments import OF_STORE, TIME, command


@command(
    "streams", (*OF_STORE, TIME),
    """Prints the names, one a line, in the order of their bytes; with --time also the last generated ID
of each.""",
    "raxlog streams events.rax",
)
def _streams(args: argparse.Namespace) -> None:
    share = registry.read_only(Path(args.store))
    try:
        with share.env.read() as txn:
            names = all_names(txn)
            headers = [found[1] for name in names if args.time and (found := find(txn, name))]
        path = os.fsencode(share.env.path)
    finally:
        share.close()
    if not args.time:
        output.answer(args.json, {"store": path, "streams": names}, *map(output.text, names))
        return
    rows = [(header.name, make_id(*header.last)) for header in headers]
    documents = [output.timed({"name": name, "last_generated_id": sid}, sid, True) for name, sid in rows]
    cells = [(output.text(name), str(sid), output.time_of(sid)) for name, sid in rows]
    output.answer(args.json, {"store": path, "streams": documents}, *output.table(cells))
