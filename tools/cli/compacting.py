"""compact: the store's data file written anew, without the room of what was deleted."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator

from . import output
from .arguments import DONE, Command, Parser, add_store, add_writing, writing

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


def _arguments(parser: Parser) -> None:
    add_store(parser, stream=False)
    add_writing(parser)


def _run(args: argparse.Namespace) -> int:
    with writing(args) as store, _bar() as progress:
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


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[str, int, int], None] | None]:
    """A function to report progress to, which draws on stderr; None where that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415 - costs 50 ms, and only here is something drawn
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn  # noqa: PLC0415

    columns = [TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("compact", total=None)

        def report(step: str, done: int, total: int) -> None:
            bar.update(task, description=_STEPS[step])
            if total:
                bar.update(task, completed=done, total=max(done, total))

        yield report


COMMANDS = {
    "compact": Command(
        _run,
        _arguments,
        """
Copies what is alive into a new data file and goes over to it, so that the room of what was
deleted and trimmed goes back to the disk. Writers wait meanwhile, about a second for a
gigabyte; readers go on, and every process that has the store open goes over by itself. Needs
room for the new file beside the old one. A kill or a power cut at any moment loses nothing.""",
        """
  raxlog compact events.rax
  raxlog compact events.rax --lock-timeout 120 --json""",
    ),
}
