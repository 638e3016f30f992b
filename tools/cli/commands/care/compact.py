"""Space: maintain frees entries by the retention of their streams, compact rewrites the file without what is gone."""

from __future__ import annotations

import argparse
from pathlib import Path

from .... import output
from ...arguments import OF_STORE, WRITING, command, flag
from ...progress import steps
from ...stores import writing

_STEPS = {"copying": "copying", "copied": "comparing", "flushed": "flushing", "named": "preparing",
          "prepared": "marking the old file", "marked": "switching", "switched": "switching readers",
          "cleared": "clearing away"}
_COLUMNS = ("{task.description}", "DownloadColumn", "TransferSpeedColumn")


@command(
    "maintain", (*OF_STORE, flag("--exact", "the entries themselves, not whole nodes only"), *WRITING),
    """Removes the oldest entries of each stream with a retention ('raxlog configure --retention'), in
whole nodes, as appends to it do, and forgets the idempotent IDs that are out of their window and whose
entries are gone, and unique names that are free. Use it, from cron for example, for streams that get no
appends. The file does not shrink: its space is reused, and 'raxlog compact' returns it.""",
    "raxlog maintain events.rax",
)
def _maintain(args: argparse.Namespace) -> None:
    with writing(args) as store:
        freed = store.maintain(exact=args.exact).freed
    output.answer(
        args.json, {"freed": [{"stream": name, "entries": count} for name, count in freed.items()]},
        *([f"{output.text(name)}: {output.many(count, 'entry')} freed" for name, count in freed.items()]
          or ["nothing to free"]),
    )


@command(
    "compact", (*OF_STORE, *WRITING),
    """Copies the live data into a new data file and switches to it, which returns the space of deleted and
trimmed entries to the file system. Readers and writers continue, and every process that has the store
open switches by itself. Needs space for the new file in addition to the old one. A kill or a power cut
at any moment loses nothing.""",
    "raxlog compact events.rax",
    "raxlog compact events.rax --lock-timeout 120 --json",
)
def _run(args: argparse.Namespace) -> None:
    with writing(args) as store, steps(Path(args.store).name, _STEPS, *_COLUMNS) as progress:
        done = store.compact(progress)
    saved = 1 - done.bytes_after / max(done.bytes_before, 1)
    change = f"{saved:.0%} less" if saved else "there is nothing to give back"
    processes = ", ".join(map(str, done.held_by))
    output.answer(
        args.json, done.to_dict(),
        f"{done.bytes_before:,} bytes before, {done.bytes_after:,} after ({change}); "
        f"generation {done.generation}, {done.seconds:.2f} s",
        *([f"the old file still takes space: process {processes} has it open, and it is removed once closed"]
          if processes else []),
    )
