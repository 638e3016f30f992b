"""The progress of a command, on stderr if that is a terminal: bars where rich is installed, else one line of text.

events.ndjson ━━━━━━━━━━━━━━━━━━╸━━━━━━━━━━  62 %  124,000 entries  231,402/s  0:00:03 left
backup.rax    ━━━━━━━━━━━━━━━━━━━━╸━━━━━━━━  copying  72 %  0:00:01

events.ndjson: 62 %, 124,000 entries          without rich
backup.rax: copying, 72 %
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from ...storage import clocks

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

ByteReport = Callable[[int, int], None]  # bytes of the file read, entries durable
StepReport = Callable[[str, int, int], None]  # what is being done, how much of it, and of how much

_SOURCE = "{task.fields[source]}"
_REDRAW = 0.1  # seconds between two changes of the line of text


class _TextLine:
    """Used instead of rich's Progress: one line, rewritten in place, about the task changed last."""

    def __init__(self, is_shown: bool) -> None:
        self._tasks: list[dict[str, object]] = []
        self._next = 0.0 if is_shown else math.inf  # when to draw again

    def add_task(self, description: str, total: float | None, **fields: object) -> TaskID:
        self._tasks.append({"source": description, "description": "", "total": total, "completed": 0} | fields)
        return len(self._tasks) - 1  # type: ignore[return-value]

    def update(self, task: TaskID, **changes: object) -> None:
        state = self._tasks[task]
        state |= {name: value for name, value in changes.items() if value is not None}
        if clocks.elapsed() < self._next:
            return
        self._next = clocks.elapsed() + _REDRAW
        total, completed = state["total"], state["completed"]
        parts = [str(state["description"])]
        if isinstance(total, int) and isinstance(completed, int):
            parts.append(f"{100 * completed // max(total, 1)} %")
        if "entries" in state:
            parts.append(f"{state['entries']:,} {state['noun']}")
        sys.stderr.write(f"\r{state['source']}: {', '.join(filter(None, parts))}\033[K")
        sys.stderr.flush()


def _short(path: str) -> str:
    return path if len(path) <= 40 else f"…{path[-39:]}"  # a long one would leave no room for the figures


@contextlib.contextmanager
def progress(name: str, size: int | None, noun: str = "entries") -> Iterator[ByteReport]:
    """A function to report bytes and entries to. ``size`` is None where the input's length is unknown."""
    began = clocks.elapsed()
    with _bars(
        _SOURCE, "BarColumn", "TaskProgressColumn",
        f"{{task.fields[entries]:,}} {noun}  {{task.fields[rate]:,.0f}}/s",
        "TimeElapsedColumn" if size is None else "TimeRemainingColumn",
    ) as bars:
        task = bars.add_task("", total=size, source=_short(name), entries=0, rate=0.0, noun=noun)

        def report(position: int, entries: int) -> None:
            rate = entries / max(clocks.elapsed() - began, 1e-9)
            bars.update(task, completed=position, entries=entries, rate=rate)

        yield report


@contextlib.contextmanager
def steps(name: str, words: Mapping[str, str], *columns: str) -> Iterator[StepReport]:
    """A function to report the steps of one piece of work to, which one bar shows in ``words``."""
    with _bars(_SOURCE, "BarColumn", *columns) as bars:
        task = bars.add_task("", total=None, source=_short(name))

        def report(step: str, done: int, total: int) -> None:
            bars.update(task, description=words.get(step, step))
            if total:
                bars.update(task, completed=done, total=max(done, total))

        yield report


@contextlib.contextmanager
def parts(still: bool = False) -> Iterator[StepReport]:
    """A function to report the parts of one piece of work to, with a bar for each.

    ``still``: drawn at reports only, not by a thread that takes its share of what is measured.
    """
    with _bars("{task.description:10}", "BarColumn", "MofNCompleteColumn", "TimeElapsedColumn", still=still) as bars:
        tasks: dict[str, tuple[TaskID, int]] = {}

        def report(part: str, done: int, total: int) -> None:
            if part not in tasks:
                for task, size in tasks.values():
                    bars.update(task, completed=size)
                tasks[part] = bars.add_task(part, total=max(total, 1)), max(total, 1)
            tasks[part] = tasks[part][0], max(total, 1)
            bars.update(tasks[part][0], completed=done, total=max(total, 1), refresh=still)

        yield report


@contextlib.contextmanager
def _bars(*columns: str, still: bool = False) -> Iterator[Progress | _TextLine]:
    """Rich's Progress, its columns named by class or given as text; a text line without rich, or without a terminal."""
    if not sys.stderr.isatty():
        yield _TextLine(is_shown=False)
        return
    try:
        from rich import progress as rich  # noqa: PLC0415 - an extra, which takes 50 ms
        from rich.console import Console  # noqa: PLC0415
    except ImportError:
        try:
            yield _TextLine(is_shown=True)
        finally:
            sys.stderr.write("\r\033[K")
        return
    drawn = [getattr(rich, column)() if column.endswith("Column") else rich.TextColumn(column, markup=False)
             for column in columns]
    with rich.Progress(*drawn, console=Console(stderr=True), transient=True, auto_refresh=not still) as bars:
        yield bars
