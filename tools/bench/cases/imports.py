"""What the command line's import costs, beside extend() of the same rows in batches of as many."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import runpy
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import raxlog

from ..rounds import Figure, Rounds, rate_of

BATCH = 1000  # of the command line


def imports(rounds: Rounds) -> list[Figure]:
    """Entries a second of one core, in CPU time: of three fields, of eight, and of eight whose text is escaped."""
    count = min(rounds.entries, 100_000)
    three = [{"item": "book", "qty": str(n % 7), "price": f"{n % 1000 / 10 + 1:.1f}"} for n in range(count)]
    eight = [{"no": str(n), "item": f"item-{n % 997}", "qty": str(n % 7), "price": f"{n % 100_000 / 100:.2f}",
              "temp": f"{n * 0.37:.3f}", "at": f"2024-05-{1 + n % 28:02d}T{n % 24:02d}:{n % 60:02d}:00.{n % 1000:03d}Z",
              "site": "berlin" if n % 2 else "paris", "ok": "true" if n % 3 else "false"}
             for n in range(count)]  # fmt: skip
    odd = [{**row, "site": 'Zürich, "HB"'} for row in eight]
    figures = []
    for label, rows in (("3 fields", three), ("8 fields", eight), ("8 fields, one in quotes or escaped", odd)):
        files = {kind: rounds.folder / f"rows.{kind}" for kind in ("csv", "ndjson")}
        with open(files["csv"], "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([rows[0], *(row.values() for row in rows)])
        files["ndjson"].write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        contenders: dict[str, Callable[[Path], int]] = {
            f"extend() of {BATCH:,}": partial(_extend, rows),
            "CSV": partial(_import, files["csv"], count),
            "NDJSON": partial(_import, files["ndjson"], count),
        }
        figures += rounds.contest(f"import of {label}, CPU time of one core", {
            name: partial(_rate, work, rounds.folder) for name, work in contenders.items()})  # fmt: skip
    return figures


def _rate(work: Callable[[Path], int], folder: Path) -> float:
    path = folder / "imports.rax"
    shutil.rmtree(path, ignore_errors=True)
    return rate_of(partial(work, path), time.process_time)


def _extend(rows: list[dict[str, str]], path: Path) -> int:
    with raxlog.open(path) as store:
        stream = store.stream("s")
        for at in range(0, len(rows), BATCH):
            stream.extend(rows[at : at + BATCH])
    return len(rows)


def _import(file: Path, count: int, path: Path) -> int:
    """``raxlog import``, in this process, whose CPU time is taken; ``count`` if it succeeds."""
    before, sys.argv = sys.argv, ["raxlog", "import", str(path), "s", str(file)]
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):  # no terminal: no progress bar
            runpy.run_module("raxlog", run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise RuntimeError(output.getvalue()) from end
    finally:
        sys.argv = before
    return count
