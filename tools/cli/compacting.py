"""compact: the store's data file written anew, without the room of what was deleted."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import output
from .arguments import DONE, OF_STORE, WritingCommand, writing
from .progress import steps

_STEPS = {
    "copying": "copying",
    "copied": "comparing",
    "flushed": "flushing",
    "named": "preparing",
    "prepared": "marking the old file",
    "marked": "switching",
    "switched": "going over",
    "cleared": "clearing away",
}
_COLUMNS = ("{task.description}", "DownloadColumn", "TransferSpeedColumn")


def _run(args: argparse.Namespace) -> int:
    with writing(args) as store, steps(Path(args.store).name, _STEPS, *_COLUMNS) as progress:
        done = store.compact(progress)
    if args.json:
        output.print_json(done._asdict())
        return DONE
    saved = 1 - done.bytes_after / max(done.bytes_before, 1)
    change = f"{saved:.0%} less" if saved else "there is nothing to give back"
    print(
        f"{done.bytes_before:,} bytes before, {done.bytes_after:,} after ({change}); "
        f"generation {done.generation}, {done.seconds:.2f} s"
    )
    if done.held_by:
        processes = ", ".join(map(str, done.held_by))
        print(f"the old file still takes room: it is open in process {processes}, and goes after that has closed it")
    return DONE


COMMANDS = {
    "compact": WritingCommand(
        _run,
        OF_STORE,
        """Copies what is alive into a new data file and goes over to it, so that the room of what was
deleted and trimmed goes back to the disk. Writers wait meanwhile, about a second for a
gigabyte; readers go on, and every process that has the store open goes over by itself. Needs
room for the new file beside the old one. A kill or a power cut at any moment loses nothing.""",
        "raxlog compact events.rax",
        "raxlog compact events.rax --lock-timeout 120 --json",
    ),
}
