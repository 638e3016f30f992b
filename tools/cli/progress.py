"""The progress of an import: a bar on stderr if that is a terminal, nothing otherwise.

events.ndjson ━━━━━━━━━━━━━━━━━━╸━━━━━━━━━━  62 %  124,000 entries  231,402/s  0:00:03 left
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

Report = Callable[[int, int], None]  # bytes of the file read, entries durable


@contextlib.contextmanager
def progress(name: str, size: int | None) -> Iterator[Report]:
    """A function to report bytes and entries to. ``size`` None: how much is to come is unknown."""
    if not sys.stderr.isatty():
        yield lambda position, entries: None
        return
    from rich.console import Console  # noqa: PLC0415 - costs 50 ms, and only here is something drawn
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    began = time.monotonic()
    columns = [
        TextColumn("{task.fields[source]}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[entries]:,} entries  {task.fields[rate]:,.0f}/s"),
        TimeElapsedColumn() if size is None else TimeRemainingColumn(),
    ]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("import", total=size, source=name, entries=0, rate=0.0)

        def report(position: int, entries: int) -> None:
            rate = entries / max(time.monotonic() - began, 1e-9)
            bar.update(task, completed=position, entries=entries, rate=rate)

        yield report
