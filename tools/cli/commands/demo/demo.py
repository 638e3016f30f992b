"""demo: raxlog's main job on real input, with a writer killed in the middle.

    1  real text       ──import, 1,000 a commit──>   stream "imported"    compared, entry by entry
    2  a child process ──append, durable, one by one──>  stream "copied"
           ├─ notes each acknowledged ID in a file
           └─ SIGKILL at a random moment                                  five times over
    3  open again: every acknowledged entry is there, whole and in order,
       and at most one that was on disk, but not yet acknowledged
    4  ranges, get, count, rank, select at random places                  compared
    5  a table of rates

Entries are compared with the input as this process has read it, never with what the store
reports about them.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .....storage import clocks, kernels
from .....storage.engine.open_options import BYTES
from .....storage.folder import directory
from .....store import Store
from .... import output
from ...arguments import argument, command
from ...readers import positive, whole
from ...status import DONE, NO, USAGE, CommandError
from . import sample_text
from .kill_rounds import SOURCE, Figures, Mismatch, Say, kill_rounds
from .sample_text import Pairs

_BATCH = 1000
_PROBES = 200
_RANGE = 100


@command(
    "demo",
    (argument("file", metavar="FILE", nargs="?",
              help="what to import: NDJSON, CSV or lines (default: the git history here, and other real text of "
              "this machine)"),
     argument("--keep", metavar="DIR", help="make the store DIR/demo.rax, and keep it"),
     argument("--entries", type=positive, default=100_000, metavar="N",
              help="take at most N events (default: 100000)"),
     argument("--rounds", type=positive, default=5, metavar="N", help="how often to kill (default: 5)"),
     argument("--seed", type=whole, metavar="N", help="seed of the moments and places (default: a new one)")),
    """Imports real text into a new store. Then it starts a writer in another process, which appends entries
durably one by one and notes each acknowledged ID, and kills it with SIGKILL at a random moment. It
opens the store again and compares: every acknowledged entry must be there, intact and in order, and
at most one more. Finally it reads ranges, looks up entries, counts, ranks and positions, and prints
rates. Exit status 0 only if everything was there, otherwise 1.""",
    "raxlog demo",
    "raxlog demo events.ndjson --keep /tmp/look --rounds 10",
)
def _run(args: argparse.Namespace) -> int:
    seed = random.SystemRandom().randrange(1 << 32) if args.seed is None else args.seed
    chance = random.Random(seed)
    with _place(args.keep) as path:
        if args.file is None:
            found = sample_text.read_what_is_here(args.entries)
        else:
            found = sample_text.read_file(args.file, args.entries)
        say: Say = (lambda _: None) if args.json else output.print_text  # JSON is one document
        say("\n  ".join([f"raxlog demo: {len(found.events):,} events, seed {seed}, kernels {kernels.speed()}",
                         *found.taken]))
        figures: Figures = {"seed": seed, "kernels": kernels.speed(), "taken": found.taken}
        try:
            done = _import(path, found.events)
            done |= kill_rounds(path, found.events, args.rounds, chance, say)
            done |= _open(path)
            with Store.open(path, readonly=True, encoding=BYTES) as store:
                done |= _scan(store, found.events) | _probe(store, found.events, chance)
            figures |= done | {"ok": True}
        except Mismatch as lost:
            figures |= {"ok": False, "lost": str(lost)}
        _print(figures, args)
    return DONE if figures["ok"] else NO


def _import(path: Path, events: list[Pairs]) -> Figures:
    with Store.open(path, encoding=BYTES) as store:
        stream = store.stream(SOURCE)
        began = clocks.elapsed()
        for at in range(0, len(events), _BATCH):
            stream.extend(events[at : at + _BATCH])
        took = clocks.elapsed() - began
    size = directory.data_status(path).st_size
    text = sum(len(name) + len(value) for event in events for name, value in event)
    return {
        "entries": len(events),
        "import_per_second": len(events) / took,
        "bytes_per_entry": size / len(events),
        "text_per_entry": text / len(events),
    }


def _open(path: Path) -> Figures:
    """The time of an opening, and of the first range after it: medians of several."""
    opens, ranges = [], []
    for _ in range(5):
        began = clocks.elapsed()
        with Store.open(path, readonly=True, encoding=BYTES) as store:
            opens.append(clocks.elapsed() - began)
            list(store.stream(SOURCE).range(count=_RANGE))
            ranges.append(clocks.elapsed() - began - opens[-1])
    return {"open_seconds": sorted(opens)[2], "first_range_seconds": sorted(ranges)[2]}


def _scan(store: Store, events: list[Pairs]) -> Figures:
    """All of the imported stream: once against the clock, once against the input."""
    stream = store.stream(SOURCE)
    began = clocks.elapsed()
    scanned = sum(1 for entry in stream.range() if entry.fields)
    took = clocks.elapsed() - began
    if scanned != len(events) or len(stream) != scanned:
        raise Mismatch(f"{len(events)} entries were imported, {scanned} are there")
    for entry, event in zip(stream.range(), events, strict=True):
        if entry.pairs != event:
            raise Mismatch(f"the imported entry {entry.id} is not as it was read from the input")
    return {"scan_per_second": scanned / took}


def _probe(store: Store, events: list[Pairs], chance: random.Random) -> Figures:
    """Ranges and single questions at random places, each answer compared."""
    stream = store.stream(SOURCE)
    ids = [entry.id for entry in stream.range()]
    places = [chance.randrange(len(ids)) for _ in range(_PROBES)]
    spent = dict.fromkeys(("range", "get", "count", "rank", "select"), 0.0)

    def timed(name: str, answer: Any) -> Any:
        began = clocks.elapsed()
        given = answer()
        spent[name] += clocks.elapsed() - began
        return given

    for k in places:
        sid, last = ids[k], min(k + _RANGE, len(ids)) - 1
        run = timed("range", lambda sid=sid, last=last: list(stream.range(sid, ids[last])))
        back = list(stream.range(sid, ids[last], reverse=True))
        entry = timed("get", lambda sid=sid: stream.get(sid))
        right = (
            [got.pairs for got in run] == events[k : last + 1]
            and back == run[::-1]
            and entry is not None
            and entry.pairs == events[k]
            and timed("count", lambda sid=sid: stream.count(sid, "+")) == len(ids) - k
            and timed("rank", lambda sid=sid: stream.rank(sid)) == k
            and timed("select", lambda k=k: stream.select(k)) == sid
        )
        if not right:
            raise Mismatch(f"entry no. {k}, {sid}, is not found as written by range, get, count, rank or select")
    return {"probes": len(places)} | {f"{name}_seconds": total / len(places) for name, total in spent.items()}


def _print(figures: Figures, args: argparse.Namespace) -> None:
    if args.json:
        rounded = {name: round(value, 9) for name, value in figures.items() if isinstance(value, float)}
        output.print_json(figures | rounded)
        return
    if not figures["ok"]:
        output.print_text(f"raxlog demo: FAILED: {figures['lost']} (seed {figures['seed']})")
        return
    rows = [
        ("import, 1,000 a commit", _rate(figures["import_per_second"])),
        ("durable appends, one a commit", _rate(figures["durable_appends_per_second"])),
        ("scan to dicts", _rate(figures["scan_per_second"])),
        ("open", _time(figures["open_seconds"])),
        (f"first range of {_RANGE}", _time(figures["first_range_seconds"])),
        (f"range, at random places, {_RANGE} entries", _time(figures["range_seconds"])),
        *((f"{name}, at random places", _time(figures[f"{name}_seconds"]))
          for name in ("get", "count", "rank", "select")),
        ("on disk",
         f"{figures['bytes_per_entry']:,.1f} bytes/entry (names and values: {figures['text_per_entry']:,.1f})"),
    ]
    output.print_text("", *output.table(rows), "")
    if args.keep:
        kept = f"{args.keep}/demo.rax"
        output.print_text(f"The store is {kept}; look at it with: raxlog info {kept}")
    acknowledged = output.many(figures["acknowledged"], "acknowledged entry", "acknowledged entries")
    output.print_text(
        f"raxlog demo: every one of {acknowledged} is there, whole and in order, "
        f"after {output.many(figures['kills'], 'kill')}."
    )


def _rate(number: float) -> str:
    return f"{number:,.0f} entries/s"


def _time(took: float) -> str:
    return f"{took * 1e3:,.2f} ms" if took >= 1e-3 else f"{took * 1e6:,.1f} µs"


@contextlib.contextmanager
def _place(keep: str | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="raxlog-demo-") as temporary:
            yield Path(temporary, "demo.rax")
        return
    path = Path(keep, "demo.rax")
    if not directory.is_vacant(path):
        raise CommandError(f"{path} is there already; remove it, or name another directory to --keep", USAGE)
    yield path
