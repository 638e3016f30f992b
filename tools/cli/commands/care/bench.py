"""The command bench: cases of tools/bench, as a table with bars, as JSON, as a plot.

    a durable append
      sqlite3 (WAL, FULL)    4,630 /s  4,510 .. 4,702  × 1.00  118 µs  × 1.00  ━━━━━━━━━━━━━━━━
      raxlog                 2,710 /s  2,644 .. 2,790  × 0.58  231 µs  × 1.95  ━━━━━━━━━
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from .....storage.versions import versions
from .... import output
from ....bench import CASES, TABLE, measure, plot
from ....bench.rounds import Figure, Rounds
from ....bench.sampler import Profile, Sampler
from ...arguments import argument, command, flag
from ...progress import parts
from ...readers import positive, seconds
from ...status import DONE, USAGE, CommandError

_BAR, _FUNCTIONS = 20, 30


def _listed(names: dict[str, tuple[str, str]]) -> str:
    return "\n".join(f"  {name:14}{meaning}" for name, (_, meaning) in names.items())


@command(
    "bench",
    (argument("cases", metavar="CASE", nargs="*", help="what to measure (default: the first group above)"),
     argument("--slices", type=positive, default=7, metavar="N", help="slices of each contender (7)"),
     argument("--seconds", type=seconds, default=1.0, metavar="S", help="length of a slice (1)"),
     argument("--entries", type=positive, default=1_000_000, metavar="N",
              help="entries of scans, counts and queues; where the growth curve ends (1,000,000)"),
     argument("--dir", metavar="FOLDER", help="a folder on the disk to measure (default: that of temporary files)"),
     argument("--plot", metavar="FILE.png", help="draw the figures (needs raxlog[bench])"),
     flag("--cpu", "show where raxlog's processor time goes, by package and function, and the kernel's share; compiled "
          "functions are only visible with RAXLOG_PURE=1")),
    f"""Contenders run in turn, a slice each. The table has medians with quartiles, the ratio to the first
contender slice by slice, and the processor time (user and kernel) of one operation with its ratio.
For comparison it shows how fast the disk writes and flushes 4 KB. Trust only ratios within a run,
because disks and machines drift.

what a commit costs:
{_listed(TABLE)}

also:
{_listed({name: case for name, case in CASES.items() if name not in TABLE})}""",
    "raxlog bench",
    "raxlog bench lone threads --seconds 0.5 --dir . --plot lone.png",
    "raxlog bench --cpu lone --seconds 3",
    "raxlog bench growth --entries 10000000",
)
def _run(args: argparse.Namespace) -> int:
    names = [*dict.fromkeys(args.cases or TABLE)]
    if unknown := [name for name in names if name not in CASES]:
        raise CommandError(f"there is no case {unknown[0]!r}; there are {', '.join(CASES)}", USAGE)
    if args.plot:
        if args.cpu or not Path(args.plot).absolute().parent.is_dir():
            raise CommandError("--plot FILE.png is for figures, without --cpu, in a folder that is there", USAGE)
        plot.load()
    figures: list[Figure] = []
    sampler = Sampler() if args.cpu else None
    with tempfile.TemporaryDirectory(dir=args.dir, prefix="raxlog-bench-") as folder, parts(still=True) as bars:
        for number, name in enumerate(names):
            report = partial(bars, name)
            report(0, 1)
            own = Path(folder, str(number))
            own.mkdir()
            figures += measure(name, Rounds(own, args.slices, args.seconds, args.entries, report, sampler))
    about = {**versions(), "slices": args.slices, "seconds": args.seconds}
    if sampler:
        if not sampler.profiles:
            raise CommandError(f"--cpu: nothing of raxlog runs in slices in {', '.join(names)}", USAGE)
        profiles = [_profile(figure, sampler.profiles[f"{figure.contest}: {figure.contender}"])
                    for figure in figures if f"{figure.contest}: {figure.contender}" in sampler.profiles]
        output.answer(args.json, {"about": about, "profiles": profiles}, "\n\n".join(map(_profile_text, profiles)))
        return DONE
    if args.plot:
        plot.draw(figures, Path(args.plot))
    heading = ", ".join(f"{name} {value}" for name, value in about.items())
    output.answer(args.json, {"about": about, "figures": [_document(figure) for figure in figures]},
                  f"{heading}\n{_table(figures)}")
    return DONE


def _document(figure: Figure) -> dict[str, Any]:
    low, high = figure.spread
    return {
        "contest": figure.contest, "contender": figure.contender, "unit": figure.unit, "median": figure.median,
        "low": low, "high": high, "rounds": figure.rates, "ratio": _median(figure.ratios),
        "cpu": _median(figure.cpu), "cpu_rounds": figure.cpu, "cpu_ratio": _median(figure.cpu_ratios),
        "system_calls": _median(figure.system_calls),
    }


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def _table(figures: list[Figure]) -> str:
    """A block for each contest, with columns of the same width in all."""
    contests = [(name, list(those)) for name, those in groupby(figures, lambda figure: figure.contest)]
    rows = [_row(figure, max(other.median for other in those)) for _, those in contests for figure in those]
    lines = iter(output.table(rows, (1, 3, 4, 5, 6, 7)))
    return "\n".join(line for name, those in contests for line in ("", name, *(next(lines) for _ in those)))


def _row(figure: Figure, highest: float) -> list[str]:
    low, high = figure.spread
    return [
        f"  {figure.contender}", _number(figure.median), figure.unit,
        f"{_number(low)} .. {_number(high)}" if len(figure.rates) > 1 else "",
        f"× {statistics.median(figure.ratios):.2f}" if figure.ratios else "",
        f"CPU {figure.cpu_median:,.1f} µs" if figure.cpu else "",
        f"× {statistics.median(figure.cpu_ratios):.2f}" if figure.cpu_ratios else "",
        f"{statistics.median(figure.system_calls):.1f} system calls" if figure.system_calls else "",
        "━" * max(1, round(_BAR * figure.median / (highest or 1))),
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}"


def _profile(figure: Figure, profile: Profile) -> dict[str, Any]:
    cpu = _median(figure.cpu)

    def rows(packages: bool) -> list[dict[str, Any]]:
        return [{"name": name, "share": share, "us": cpu and share * cpu, "kernel": kernel}
                for name, share, kernel in profile.rows(packages)]

    user, kernel = profile.user.total(), profile.kernel.total()
    return {
        "contest": figure.contest, "contender": figure.contender, "cpu": cpu, "samples": profile.samples,
        "kernel": kernel / (user + kernel or 1),
        "other_threads": profile.others / (user + kernel + profile.others or 1),
        "packages": rows(True), "functions": rows(False),
    }


def _profile_text(seen: dict[str, Any]) -> str:
    cpu = f"{seen['cpu']:,.1f} µs an operation, " if seen["cpu"] else ""
    rows = [["", "share", "µs", "in the kernel"]]
    for row in (*seen["packages"], None, *seen["functions"][:_FUNCTIONS]):
        rows.append([""] if row is None else [f"  {row['name']}", f"{row['share']:.1%}",
                    f"{row['us']:,.1f}" if row["us"] is not None else "", f"{row['kernel']:.0%} of it"])
    rows = [[*row, *[""] * (4 - len(row))] for row in rows]
    return "\n".join((
        f"{seen['contest']}: {seen['contender']}", f"{cpu}{seen['kernel']:.0%} of it in the kernel, "
        f"{seen['other_threads']:.0%} in other threads, {seen['samples']:,} samples", *output.table(rows, (1, 2, 3)),
    ))
