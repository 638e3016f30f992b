"""``python -m raxlog.tools.bench``: run the contests, print a table or JSON."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import lmdb
import raxlog
from raxlog.storage import kernels

from . import arrow, buffered, cliffs, publishing, queues, spark, streams, subjects, waking
from .rounds import Figure


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser(
        prog="python -m raxlog.tools.bench",
        description="Measure raxlog beside its peers in one run. Ratios are to each contest's first line; "
        "above 1 is better. Trust ratios, not rates: disks and shared machines drift.",
    )
    parser.add_argument("--entries", type=int, default=1_000_000, help="entries for batches, scans and counts")
    parser.add_argument("--rounds", type=int, default=5, help="slices of each contender (default 5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a slice for single appends")
    parser.add_argument("--only", nargs="*", help="run only these: lone threads buffered batches counts anatomy memory "
                        "queues queue-cpu waking held reopening publishing globs subjects arrow spark "
                        "spark-plan depth cliffs")
    parser.add_argument("--depth", type=int, default=5_000_000, help="the deepest backlog (default 5,000,000)")
    parser.add_argument("--dir", help="where the stores are made (default: a temporary folder)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="raxlog-bench-") as name:
        folder = Path(name)
        readings = streams.rows(options.entries, 0)
        parts: dict[str, Callable[[], list[Figure]]] = {
            "lone": lambda: streams.lone_appends(folder, options.rounds, options.seconds),
            "threads": lambda: streams.threaded_appends(folder, options.rounds, options.seconds),
            "buffered": lambda: buffered.buffered_appends(folder, options.rounds, options.seconds),
            "batches": lambda: streams.batches(folder, options.rounds, readings),
            "counts": lambda: streams.counts(folder, readings),
            "anatomy": lambda: streams.anatomy(folder),
            "memory": lambda: streams.memory(folder, options.entries),
            "queues": lambda: queues.queues(folder, options.rounds, options.seconds, readings[:200_000]),
            "queue-cpu": lambda: queues.queue_cpu(folder, readings),
            "waking": lambda: waking.waking(folder),
            "held": lambda: waking.beside_a_transaction(folder),
            "reopening": lambda: waking.reopening(folder),
            "publishing": lambda: publishing.publishing(folder),
            "globs": lambda: publishing.globs(folder),
            "subjects": lambda: subjects.subjects(folder, options.entries),
            "arrow": lambda: arrow.arrow(folder, options.rounds, options.entries),
            "spark": lambda: spark.spark_scans(folder, options.rounds, readings),
            "spark-plan": lambda: spark.planning(folder),
            "depth": lambda: queues.depth(folder, options.rounds, options.seconds, options.depth),
            "cliffs": lambda: cliffs.cliffs(folder, options.rounds),
        }
        for part in options.only or parts:
            if part not in parts:
                parser.error(f"unknown part {part!r}; there are {', '.join(parts)}")
            if not options.json:
                print(f"… {part}", file=sys.stderr, flush=True)
            figures += parts[part]()
    _print(figures, options.json)
    return 0


def _print(figures: list[Figure], as_json: bool) -> None:
    about = {
        "raxlog": raxlog.__version__, "kernels": kernels.speed(), "python": platform.python_version(),
        "lmdb": ".".join(map(str, lmdb.version())),
    }
    if as_json:
        rows = [
            {"contest": f.contest, "contender": f.contender, "median": f.median, "unit": f.unit,
             "ratio": f.ratio, "rounds": f.rates} for f in figures
        ]
        print(json.dumps({"about": about, "figures": rows}, indent=1))
        return
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    last = ""
    for figure in figures:
        if figure.contest != last:
            print(f"\n{figure.contest}")
            last = figure.contest
        spread = ""
        if len(figure.rates) > 1:
            spread = f"   x {figure.ratio:5.2f}   ({min(figure.rates):,.1f} .. {max(figure.rates):,.1f})"
        print(f"  {figure.contender:<28}{figure.median:>14,.1f} {figure.unit:<6}{spread}")


if __name__ == "__main__":
    sys.exit(main())
