"""The command streams. It loads neither groups nor subjects, and so ends soon."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ...storage import sharing
from ...stream.header import all_names
from . import output
from .arguments import DONE, OF_STORE, Command


def _streams(args: argparse.Namespace) -> int:
    share = sharing.read_only(Path(args.store))
    try:
        with share.env.read() as txn:
            names = all_names(txn)
        path = os.fsencode(share.env.path)
    finally:
        share.close()
    if args.json:
        output.print_json({"store": output.plain(path), "streams": [output.plain(name) for name in names]})
    else:
        for name in names:
            output.print_text(output.text(name))
    return DONE


COMMANDS = {
    "streams": Command(
        _streams,
        OF_STORE,
        """Prints the names, one a line, in the order of their bytes.""",
        "raxlog streams events.rax",
    ),
}
