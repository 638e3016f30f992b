"""check: is everything in a store as it must be? Asked in a process of its own.

    check(path)
      └─ child: walk all of it   ── problems, counts ──> Report
           │ dies in LMDB                                 a problem, with the signal
           └─ child: what is left, behind the page that killed it     … and so on

The walks themselves read raw pages and cannot die; only the look-ups through LMDB can, and
opening it. So one bad page hides nothing but itself.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from ...storage.errors import InvalidArgument, RaxlogError
from ...storage.files import directory
from ...storage.lifecycle import registry
from ...stream.entries.buffering import buffer_of
from ..subprocess_task import Aside, Progress
from . import child
from .report import Problem, Report

_MOST_DEATHS = 64


def check(path: str | os.PathLike[str], progress: Progress | None = None) -> Report:
    """Check every invariant of the store at ``path``: ``.ok``, ``.problems``, ``.counts``.

    Each problem says what is wrong, what it means, and where: stream, group, node, offset, page.
    ``progress(part, done, total)`` is called now and then; the parts are "pages", "records",
    "streams", "subjects" and "look-ups". Changes and creates nothing, works in a process of its own,
    and may be run beside writers: it holds one state for as long as it takes, and the pages they
    free meanwhile are used again after that. About a second for a million small entries.

    Damage is told in the report and never raised, nor can it kill the caller. NotAStore,
    UnsupportedFormat, ReadOnlyStore (beside a live writer, without permission to register as a
    reader), StoreError (the file cannot be read), CorruptionError (it is empty).
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise InvalidArgument(f"path={path!r} must name a directory")
    where = Path(os.path.abspath(path))
    env = registry.opened(where)
    if env is not None and env.options.durability == "buffered" and not env.readonly:
        buffer_of(env).flush()
    directory.generation(where)  # NotAStore, with the reason
    began = time.monotonic()
    report = Report(str(where), "")
    job: dict[str, Any] = {"path": str(where), "mode": "walk", "start": ""}
    for _ in range(_MOST_DEATHS):
        left = _run(job, report, progress)
        if left is None:
            break
        job = left
    else:
        report.notes.append(f"the check was given up after {_MOST_DEATHS} deaths")
    report.seconds = round(time.monotonic() - began, 3)
    return report


def _run(job: dict[str, Any], report: Report, progress: Progress | None) -> dict[str, Any] | None:
    """One child's work. What another must do, where this one was killed; None if nothing."""
    opened = False
    last: dict[str, Any] = {}
    part = "opening"
    with Aside(child.run, job) as aside:
        for (message,) in aside:
            if "part" in message:
                part = message["part"]
                if progress is not None:
                    progress(part, message["done"], message["total"])
            elif "behind" in message:
                last = message
            elif "counts" in message and job["mode"] == "look-ups":
                report.counts["looked_up"] = report.counts.get("looked_up", 0) + message["counts"].get("looked_up", 0)
            else:
                report.take(message)
            opened = opened or "opened" in message
        if isinstance(aside.error, RaxlogError):
            raise aside.error
        ending = aside.ending
    if ending is None:
        return None
    where = f" at page {last['page']}" if last else ""
    report.add(Problem("process", f"the process that read it {ending} during {part}{where}", page=last.get("page")))
    if last and last["behind"] is not None:
        return job | {"mode": "look-ups", "start": last["behind"]}
    if last or job["mode"] == "raw" or opened:
        return None
    return job | {"mode": "raw"}
