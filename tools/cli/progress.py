"""The progress of what a command does: bars on stderr if that is a terminal, nothing otherwise.

events.ndjson ━━━━━━━━━━━━━━━━━━╸━━━━━━━━━━  62 %  124,000 entries  231,402/s  0:00:03 left
backup.rax    ━━━━━━━━━━━━━━━━━━━━╸━━━━━━━━  copying  72 %  0:00:01
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Report = Callable[[int, int], None]  # bytes of the file read, entries durable
StepReport = Callable[[str, int, int], None]  # what is being done, how much of it, and of how much

_TEXT = "{task.fields[source]}"


@contextlib.contextmanager
def progress(name: str, size: int | None) -> Iterator[Report]:
    """A function to report bytes and entries to. ``size`` None: how much is to come is unknown."""
    began = time.monotonic()
    with _bars(
        _TEXT, "BarColumn", "TaskProgressColumn",
        "{task.fields[entries]:,} entries  {task.fields[rate]:,.0f}/s",
        "TimeElapsedColumn" if size is None else "TimeRemainingColumn",
    ) as bars:
        task = bars and bars.add_task("import", total=size, source=name, entries=0, rate=0.0)

        def report(position: int, entries: int) -> None:
            rate = entries / max(time.monotonic() - began, 1e-9)
            bars.update(task, completed=position, entries=entries, rate=rate)

        yield report if bars else lambda position, entries: None


@contextlib.contextmanager
def steps(name: str, words: Mapping[str, str], *columns: str) -> Iterator[StepReport | None]:
    """A function to report the steps of one piece of work to, which one bar shows in ``words``; None without bars."""
    with _bars(_TEXT, "BarColumn", *columns) as bars:
        task = bars and bars.add_task("", total=None, source=name)

        def report(step: str, done: int, total: int) -> None:
            bars.update(task, description=words.get(step, step))
            if total:
                bars.update(task, completed=done, total=max(done, total))

        yield report if bars else None


@contextlib.contextmanager
def parts(still: bool = False) -> Iterator[StepReport | None]:
    """A function to report the parts of one piece of work to, with a bar for each; None without bars.

    ``still``: drawn at reports only, not by a thread that takes its share of what is measured.
    """
    with _bars("{task.description:10}", "BarColumn", "MofNCompleteColumn", "TimeElapsedColumn", still=still) as bars:
        tasks: dict[str, Any] = {}

        def report(part: str, done: int, total: int) -> None:
            if part not in tasks:
                for other in tasks.values():
                    bars.update(other, completed=bars.tasks[other].total)
                tasks[part] = bars.add_task(part, total=max(total, 1))
            bars.update(tasks[part], completed=done, total=max(total, 1), refresh=still)

        yield report if bars else None


@contextlib.contextmanager
def _bars(*columns: str, still: bool = False) -> Iterator[Any]:
    """Rich's Progress with columns that are classes of its own or texts; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich import progress as rich  # noqa: PLC0415 - costs 50 ms, and only here is something drawn
    from rich.console import Console  # noqa: PLC0415

    drawn = [getattr(rich, column)() if column.endswith("Column") else rich.TextColumn(column, markup=False)
             for column in columns]
    with rich.Progress(*drawn, console=Console(stderr=True), transient=True, auto_refresh=not still) as bars:
        yield bars
