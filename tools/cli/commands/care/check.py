"""check and salvage: what is wrong with a store, and what of it can be copied to a new one.

    raxlog check events.rax                     problems, one a row; exit status 0 none, 1 some
    raxlog salvage events.rax rescued.rax       what is lost;        exit status 0 nothing, 1 something

A path without a store, or one that cannot be read or written, is exit status 3.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

from .....recovery.check.check import check
from .....recovery.check.report import Problem, Report
from .....recovery.salvage.report import SalvageReport
from .....recovery.salvage.salvage import salvage
from .... import output
from ...arguments import OF_STORE, argument, command, flag
from ...progress import parts
from ...status import DONE, NO

_SHOWN = 50  # problems or losses in a table; --json has all


@command(
    "check", OF_STORE,
    """Checks every invariant of the store: pages, checksums, nodes and their entries, counters, ordinals,
groups and their pending entries in both directions, subjects; then looks every key up again. The
check runs in a process of its own, so damage cannot kill the caller. It changes nothing and may run
while others write; space that they free is reused after the check. The exit status is 1 if there
are problems.""",
    "raxlog check events.rax",
    "raxlog check events.rax --json",
)
def _check(args: argparse.Namespace) -> int:
    with parts() as progress:
        report = check(args.store, progress)
    output.answer(args.json, report.to_dict(), *_lines(report))
    return DONE if report.ok else NO


def _lines(report: Report) -> Iterator[str]:
    counts = report.counts
    looked = [output.many(counts[name], noun) for name, noun in (
        ("streams", "stream"), ("entries", "entry"), ("nodes", "node"), ("groups", "group"),
        ("records", "record"), ("pages", "page"),
    ) if counts.get(name)]  # fmt: skip
    pending = f", {counts['pending']:,} pending" if counts.get("pending") else ""
    path = output.text(os.fsencode(report.path))
    yield f"{path}: {', '.join(looked)}{pending}, in {report.seconds:.1f} s"
    if report.problems:
        rows = [
            (problem.kind, problem.stream or "-", _where(problem), output.one_line(problem.what))
            for problem in report.problems[:_SHOWN]
        ]
        yield from output.table(rows, head=("problem", "stream", "where", "what"))
        if counts["problems"] > _SHOWN:
            yield f"… and {counts['problems'] - _SHOWN:,} more; --json prints up to 1,000"
        meanings = {problem.kind: problem.meaning for problem in report.problems}
        yield from ("", *output.table(meanings.items()))
        yield f"'raxlog salvage {path} DEST' copies what is intact into a new store"
    yield from (f"note: {output.one_line(note)}" for note in report.notes)
    if report.ok:
        yield "no problems"


def _where(problem: Problem) -> str:
    named = ("group", "node", "offset", "page")
    return " ".join(f"{name} {getattr(problem, name)}" for name in named if getattr(problem, name) is not None) or "-"


@command(
    "salvage",
    (*OF_STORE, argument("destination", metavar="DEST", help="the new store; the path must be free"),
     flag("--doubtful", "also copy records that may be outdated: since trimmed, acknowledged or deleted")),
    """Copies everything that passes its checks from a damaged store into a new one at DEST. The old store
is read page by page and never written to. Works with flipped bits, overwritten pages, a truncated
file, and without CURRENT, lock file or meta pages. Losses are reported with ID ranges, and the exit
status is then 1. Nothing that was trimmed, acknowledged or deleted comes back: records that may be
old copies are left out, unless --doubtful is given.""",
    "raxlog salvage events.rax rescued.rax",
    "raxlog check rescued.rax",
)
def _salvage(args: argparse.Namespace) -> int:
    with parts() as progress:
        report = salvage(args.store, args.destination, progress, doubtful=args.doubtful)
    output.answer(args.json, report.to_dict(), *_salvaged(report))
    return DONE if report.ok else NO


def _salvaged(report: SalvageReport) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("stream", "entries", "lost", "nodes", "groups", "pending")]
    for name, figures in report.streams.items():
        rows.append((output.one_line(name), *(f"{figures[what]:,}" for what in (
            "entries", "lost_entries", "nodes", "groups", "pending"))))  # fmt: skip
    yield from output.table(rows, right=(1, 2, 3, 4, 5))
    yield from (f"lost: {output.one_line(str(loss))}" for loss in report.lost[:_SHOWN])
    if len(report.lost) > _SHOWN:
        yield f"… and {len(report.lost) - _SHOWN:,} more losses; --json prints all"
    yield from (f"note: {output.one_line(note)}" for note in report.notes)
    where = output.text(os.fsencode(report.destination))
    pages = output.many(len(report.damaged_pages), "damaged page")
    said = "nothing is lost" if report.ok else output.many(len(report.lost), "loss", "losses")
    yield f"{where}: {output.many(len(report.streams), 'stream')}, {pages}, {said}, {report.seconds:.1f} s"
