"""streams: the names. Loads neither groups nor subjects, to start fast."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from .....storage.lifecycle import registry
from .....stream.entries.header import all_names
from ... import output
from ...arguments import OF_STORE, command


@command(
    "streams", OF_STORE,
    """Prints the names, one a line, in the order of their bytes.""",
    "raxlog streams events.rax",
)
def _streams(args: argparse.Namespace) -> None:
    share = registry.read_only(Path(args.store))
    try:
        with share.env.read() as txn:
            names = all_names(txn)
        path = os.fsencode(share.env.path)
    finally:
        share.close()
    output.answer(args.json, {"store": path, "streams": names}, *map(output.text, names))
