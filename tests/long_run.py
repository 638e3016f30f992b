"""The long run of raxlog's crash tests: every part in chunks, side by side, results as they come.

    raxlog crashtest --long          from a clone; the same as: python tests/long_run.py

    part        chunks                              tried, all of them together
    kills       50 storms of 1,000                  50,000 kill -9
    calls       mixed, a compaction, a snapshot     every system call; 200 commits of mixed
    images      93 of 20,000 or more                2,000,000 of what a power cut leaves
    errors      12 kinds, a full map                the N-th call, for all N
    interrupts  100 of 1,000                        100,000 exceptions in processes that go on
    flips       140 of 1,000, and one               100,000 bits, half in heads of pages; all bits of the metas;
                                                    10,000 rows shown in the place of others; and 10,000 of each beside
                                                    a log that holds what data.mdb does not
    contention  commit and relaxed                  10 minutes and 1 minute
    fuzz        12 of 5 minutes                     an hour, beside the others at the lowest priority
    reader      one                                 10 minutes, beside the others
    schedules   6 of 500 of each scenario           50,000 different orders of the steps of two and three processes

Each chunk is a process with a seed of its own, and one line of JSON in the results when it has
ended: part, chunk, tried, failed, seconds, cpu, seed, storage, also. "storage" is the hash of the
sources of storage/ that were tried: a run that is begun again with the same results and seed goes
on behind the chunks of the same sources, and does all others anew. All else lies in one temporary
folder on disk and one in memory; both are removed in the end, unless something has failed.

long_run.jsonl beside this file has the chunks of the last run. --page adds them up to the table of docs/promises.md.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
sys.path += [str(folder) for folder in sorted((TESTS / "support").iterdir())]

SIZES = {"mixed": 70, "growing": 8, "relaxed": 7, "tidied": 3, "log": 2, "queue": 2, "swaps": 1}  # chunks of images
RAISED = {"alone-traced": 20, "alone, commits-traced": 10, "alone-signals": 15, "alone, plain-signals": 5,
          "crowd-traced": 8, "crowd, commits-traced": 5, "crowd-signals": 6, "crowd, struck-signals": 4,
          "buffered-traced": 7, "buffered-signals": 4, "opened-traced": 8, "opened-signals": 6,
          "opened, plain-signals": 2}  # chunks of interrupts
IMAGES, ROUNDS, FLIPS, INTERRUPTS, SCHEDULES = 20_000, 1_000, 1_000, 1_000, 500
ALL_OF_METAS = 1 << 20  # flips: more than there are
COMMITS = {"mixed": 200, "compaction": 12, "snapshot": 3}
ERRORS = 60  # steps
_BESIDE = ("fuzz", "reader")  # they take time, and little else that the others would miss
_LAST_SECONDS = 15.0


@dataclass(frozen=True)
class Chunk:
    """A piece of a part: what it is called, and about how many minutes of a processor it takes."""

    part: str
    name: str
    number: int
    minutes: float

    def seed(self, base: int) -> int:
        """Its own; chunks of images use the numbers behind it for more runs."""
        return base + 1000 * self.number


def chunks() -> list[Chunk]:
    """All of them, those with a time of their own first, then the largest."""
    import crash_parts  # noqa: PLC0415 - takes half a second, which --help can do without
    from side_by_side import SCENARIOS  # noqa: PLC0415 - as above

    found = [("contention", "commit", 10.0), ("contention", "relaxed", 1.0), ("reader", "long", 10.0)]
    found += [("fuzz", f"{number:02}", 5.0) for number in range(12)]
    found += [("calls", name, minutes) for name, minutes in (("mixed", 3.0), ("snapshot", 3.0), ("compaction", 0.5))]
    found += [("errors", name, 0.4) for name in [*crash_parts.matrix(None), "full map"]]
    found += [("images", f"{name}-{number:02}", 2.0) for name, many in SIZES.items() for number in range(many)]
    found += [("kills", f"{number:02}", 0.5) for number in range(50)]
    found += [("interrupts", f"{name}-{number:02}", 0.8) for name, many in RAISED.items() for number in range(many)]
    found += [("flips", f"{where}-{number:02}", 0.2) for where in ("uniform", "heads") for number in range(50)]
    found += [("flips", "metas-00", 0.5)]
    found += [("flips", f"pointers-{number:02}", 0.3) for number in range(10)]
    found += [("schedules", f"{name}-{number:02}", 1.0) for name in SCENARIOS for number in range(6)]
    found += [("flips", f"{where}-logged-{number:02}", 0.3)
              for where in ("uniform", "heads", "pointers") for number in range(10)]
    return [Chunk(part, name, number, minutes) for number, (part, name, minutes) in enumerate(found)]


def storage_sources() -> str:
    """The hash of what is tried: names and contents of the sources of storage/, compiled ones with their types."""
    room = TESTS.parent / "storage"
    found = hashlib.sha256()
    for path in sorted(path for path in room.rglob("*") if path.suffix in (".py", ".pxd")):
        source = path.read_bytes()
        found.update(f"{path.relative_to(room).as_posix()} {len(source)}\n".encode())
        found.update(source)
    return found.hexdigest()[:16]


# The rows of the page: what was tried, the chunks, what the row says of them ({tried}, their times {longest}, and what
# was counted besides), and what was wrong.
_ROWS = [
    ("storm of kills", "kills", "", "{killed} kills, {stopped} stops", "0"),
    ("the N-th system call: all of 200 commits", "calls", "mixed", "{tried}, with the middle of larger writes", "0"),
    ("of a compaction; of snapshots", "calls", "compaction snapshot", "{tried}", "0"),
    ("power cuts, every kind of operation", "images", "mixed", "{tried} images", "0"),
    ("while the file grows", "images", "growing", "{tried} images", "0"),
    ("of creation, compaction, snapshots; of the swap", "images", "tidied swaps", "{tried} images", "0"),
    ("of the log; of a queue", "images", "log queue", "{tried} images", "0"),
    ("`relaxed`", "images", "relaxed", "{tried} images", "0; only the last commits"),
    ("torn inside a sector, apart", "images", "", "{torn} images",
     "{torn, refused} were refused; 0 died, 0 read wrongly"),
    ("injected errors, the N-th call for all N", "errors", "", "{tried}, all fired", "0"),
    ("exceptions in processes that go on", "interrupts", "", "{tried}, of them {asynchronous} asynchronous", "0"),
    ("bit flips, anywhere; in heads of pages", "flips", "uniform heads", "{tried}", "0"),
    ("rows in the place of others", "flips", "pointers", "{tried}", "0"),
    ("bit flips in LMDB's meta pages", "flips", "metas", "{tried}, every bit", "0"),
    ("beside a log that holds what `data.mdb` does not: anywhere, in heads, rows in the place of others", "flips",
     "uniform-logged heads-logged pointers-logged", "{tried}", "0"),
    ("contention, 10 minutes", "contention", "commit",
     "{tried} appends, {kills} kills, longest wait {longest} ms", "0"),
    ("contention, `relaxed`, 1 minute", "contention", "relaxed",
     "{tried} appends, {kills} kills, longest wait {longest} ms", "0"),
    ("fuzzing, guided, an hour, at the lowest priority", "fuzz", "", "{tried} inputs", "only our errors"),
    ("a long reader, 10 minutes", "reader", "", "{tried} commits", "the file keeps its size"),
    ("schedules of two and three processes", "schedules", "", "{tried} orders of their steps", "0"),
]
_FLIPS = """\
Of the {tried} flips {no effect} had no effect, {refused} raised an error of raxlog, {missed} made a look-up miss a key
(check found each), and {killed} killed the process that read, or had it search forever.
"""


class _Counts(dict[str, str]):
    def __missing__(self, _: str) -> str:
        return "0"


def _counts(lines: list[dict[str, Any]]) -> _Counts:
    also: Counter[str] = Counter()
    for line in lines:
        also.update(line.get("also", {}))
    also["tried"] = sum(line["tried"] for line in lines)
    also["longest"] = max((line.get("longest_wait_ms", 0) for line in lines), default=0)
    return _Counts((name, f"{count:,}") for name, count in also.items())


def page(lines: list[dict[str, Any]]) -> str:
    """What docs/promises.md says of a run: the table, and what flips did. A run that is not whole is a ValueError."""
    done = {(line["part"], line["chunk"]) for line in lines if not line["failed"]}
    left = [chunk for chunk in chunks() if (chunk.part, chunk.name) not in done]
    sources = {line["storage"] for line in lines}
    if left or len(lines) > len(done) or len(sources) > 1:
        raise ValueError(f"the run is not whole: {len(left)} chunks are left, {len(lines) - len(done)} are wrong or "
                         f"there twice, of {len(sources)} sources of storage/")
    rows = ["| part of the long form | tried | lost, half there, stuck or wrong |", "|---|---|---|"]
    for label, part, kinds, tried, wrong in _ROWS:
        counts = _counts([line for line in lines if line["part"] == part
                          and (not kinds or line["chunk"].rstrip("0123456789").rstrip("-") in kinds.split())])
        rows.append(f"| {label} | {tried.format_map(counts)} | {wrong.format_map(counts)} |")
    return "\n".join(rows) + "\n\n" + _FLIPS.format_map(_counts([line for line in lines if line["part"] == "flips"]))


def results_of(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of results."""
    return [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]


def perform(chunk: Chunk, seed: int, place: Path) -> Any:
    """Do one chunk; its Outcome, or an exception."""
    import crash_parts as parts  # noqa: PLC0415 - as above

    keep = place / "kept"
    if chunk.part == "kills":
        return parts.kills(ROUNDS, seed, keep)
    if chunk.part == "calls":
        return parts.calls(chunk.name, COMMITS[chunk.name], seed, keep)
    if chunk.part == "images":
        return parts.images(chunk.name.partition("-")[0], IMAGES, seed, keep, workers=1)
    if chunk.part == "schedules":
        return parts.schedules(chunk.name.rpartition("-")[0], SCHEDULES, seed, keep)
    if chunk.part == "interrupts":
        workload, how, _ = chunk.name.split("-")
        return parts.interrupts(workload, how, INTERRUPTS, seed, keep)
    if chunk.part == "errors":
        if chunk.name == "full map":
            return parts.full_map(seed, keep)
        return parts.errors(parts.matrix(None)[chunk.name], ERRORS, seed, keep)
    if chunk.part == "flips":
        with parts.flipper(logged="logged" in chunk.name) as flipper:
            where = chunk.name.partition("-")[0]
            return parts.flips(flipper, where, ALL_OF_METAS if where == "metas" else FLIPS, seed)
    own = Path(tempfile.mkdtemp(prefix=f"{chunk.part}-", dir=place))
    if chunk.part == "contention":
        return parts.contention(chunk.minutes * 60, chunk.name, seed, own)
    if chunk.part == "reader":
        return parts.reader(chunk.minutes * 60, own)
    corpus = place / "corpus"  # shared by all chunks: each goes on with what the one before has found
    if not corpus.exists():
        parts.write_seeds(corpus)
    outcome = parts.fuzz(chunk.minutes * 60, seed, corpus, keep)
    outcome.tried += parts.mutations(15_000, seed, corpus, own / "mutated").tried
    return outcome


def perform_here(chunk: Chunk, seed: int, place: Path) -> int:
    """The process of one chunk: what it has to tell goes to its log, its line of JSON into a file."""
    if chunk.part == "fuzz":
        os.nice(19)
        with contextlib.suppress(OSError):  # Linux may divide the processor among sessions first, and a chunk is one
            Path("/proc/self/autogroup").write_text("19", encoding="ascii")
    began = time.monotonic()
    line: dict[str, Any] = {"part": chunk.part, "chunk": chunk.name, "tried": 0, "failed": 0, "seed": seed,
                            "storage": storage_sources()}
    try:
        outcome = perform(chunk, seed, place)
        line.update(tried=outcome.tried, failed=outcome.failed, also=dict(outcome.also))
        if outcome.longest:
            line["longest_wait_ms"] = round(outcome.longest)
    except Exception as error:
        traceback.print_exc()
        line.update(failed=1, error=f"{type(error).__name__}: {error}"[:500])
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    line["seconds"] = round(time.monotonic() - began, 1)
    line["cpu"] = round(sum(one.ru_utime + one.ru_stime for one in used), 1)
    _line_of(chunk, place).write_text(json.dumps(line), encoding="utf-8")
    return 0


def _line_of(chunk: Chunk, place: Path) -> Path:
    return place / f"line-{chunk.number}.json"


# -- the run ---------------------------------------------------------------------------------


class Run:
    """Chunks, started as there is room, and the results."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.seed = options.seed
        self.jobs = options.jobs
        self.place = Path(tempfile.mkdtemp(prefix="raxlog-long-"))
        shared = "/dev/shm"
        self.memory = Path(tempfile.mkdtemp(prefix="raxlog-long-", dir=shared if os.access(shared, os.W_OK) else None))
        self.results = Path(options.results) if options.results else self.place / "results.jsonl"
        wanted = [chunk for chunk in chunks() if not options.only or chunk.part in options.only]
        self.sources = storage_sources()
        self.others = 0
        known = self._known()
        self.left = [chunk for chunk in wanted if (chunk.part, chunk.name, chunk.seed(self.seed)) not in known]
        self.total = Counter(chunk.part for chunk in wanted)
        self.done = self.total - Counter(chunk.part for chunk in self.left)
        self.lines: list[dict[str, Any]] = [known[key] for key in known]
        self.began = time.monotonic()
        self.running: dict[subprocess.Popen[bytes], Chunk] = {}

    def _known(self) -> dict[tuple[str, str, int], dict[str, Any]]:
        """What an earlier run with these results has done on these sources, and found nothing in."""
        known = {}
        if self.results.exists():
            for text in self.results.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError):  # a line that was broken off
                    line = json.loads(text)
                    if line.get("storage") != self.sources:
                        self.others += 1
                    elif not line["failed"]:
                        known[line["part"], line["chunk"], line["seed"]] = line
        return known

    def run(self) -> int:
        """Everything; the exit status."""
        try:
            others = f", {self.others} more are of other sources of storage/ and not counted" if self.others else ""
            print(f"results: {self.results}\nlogs and failing cases: {self.place}\n"
                  f"seed {self.seed}, {self.jobs} at a time, storage/ {self.sources}: "
                  f"{self.done.total()} of {self.total.total()} chunks are there{others}", flush=True)
            while self.left or self.running:
                while (chunk := self._next()) is not None:
                    self._start(chunk)
                self._wait()
            return 1 if self._failed() else 0
        except KeyboardInterrupt:
            print("\nbroken off; the results so far are kept", flush=True)
            return 130
        finally:
            self.stop()
            shutil.rmtree(self.memory, ignore_errors=True)
            self._table()
            if not self._failed() and self.results.parent != self.place:
                shutil.rmtree(self.place, ignore_errors=True)

    def _failed(self) -> int:
        return sum(line["failed"] for line in self.lines)

    def _next(self) -> Chunk | None:
        """What may be started now: one at a time of each part that runs beside, else as many as there are jobs."""
        busy = [chunk.part for chunk in self.running.values()]
        inside = sum(part not in _BESIDE for part in busy)
        for chunk in self.left:
            if chunk.part not in busy if chunk.part in _BESIDE else inside < self.jobs:
                self.left.remove(chunk)
                return chunk
        return None

    def _start(self, chunk: Chunk) -> None:
        log = self.place / f"{chunk.part}-{chunk.name}.log".replace(" ", "-").replace("/", "-")
        environment = {**os.environ, "TMPDIR": str(self.place), "RAXLOG_CRASHTEST_SCRATCH": str(self.memory)}
        command = [sys.executable, __file__, "--chunk", str(chunk.number), "--seed", str(chunk.seed(self.seed)),
                   "--place", str(self.place)]
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=environment,
                                       start_new_session=True)
        self.running[process] = chunk

    def _wait(self) -> None:
        while True:
            for process in list(self.running):
                if process.poll() is not None:
                    self._ended(process)
                    return
            time.sleep(0.2)

    def _ended(self, process: subprocess.Popen[bytes]) -> None:
        chunk = self.running.pop(process)
        self._end_group(process)
        line: dict[str, Any] = {"part": chunk.part, "chunk": chunk.name, "tried": 0, "failed": 1,
                                "seed": chunk.seed(self.seed), "storage": self.sources,
                                "error": f"ended with status {process.returncode}"}
        with contextlib.suppress(OSError, ValueError):
            line = json.loads(_line_of(chunk, self.place).read_text(encoding="utf-8"))
        with self.results.open("a", encoding="utf-8") as results:
            results.write(json.dumps(line) + "\n")
        self.lines.append(line)
        self.done[chunk.part] += 1
        tried = sum(one["tried"] for one in self.lines if one["part"] == chunk.part)
        failed = sum(one["failed"] for one in self.lines if one["part"] == chunk.part)
        passed = time.monotonic() - self.began
        print(f"{passed / 60:6.1f} min  {chunk.part:<10} {self.done[chunk.part]:>3} of {self.total[chunk.part]:<3} "
              f"{tried:>11,} tried  {failed:,} failed  {line.get('error', '')}", flush=True)

    def stop(self) -> None:
        """End what still runs: asked first, then killed."""
        for process in self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
        end = time.monotonic() + _LAST_SECONDS
        for process in self.running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
            self._end_group(process)
        self.running = {}

    @staticmethod
    def _end_group(process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _table(self) -> None:
        print(f"\n{'part':<12}{'tried':>12}{'failed':>8}{'minutes of CPU':>16}   also")
        for part in self.total:
            rows = [line for line in self.lines if line["part"] == part]
            if rows:
                also: Counter[str] = Counter()
                for row in rows:
                    also.update(row.get("also", {}))
                longest = max(row.get("longest_wait_ms", 0) for row in rows)
                told = [f"{name} {count:,}" for name, count in also.items()]
                told += [f"longest wait {longest} ms"] if longest else []
                print(f"{part:<12}{sum(row['tried'] for row in rows):>12,}{sum(row['failed'] for row in rows):>8,}"
                      f"{sum(row.get('cpu', 0) for row in rows) / 60:>16.1f}   {', '.join(told)}")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="long_run.py", description=str(__doc__).splitlines()[0])
    parser.add_argument("--only", action="append", metavar="PART", help="this part only; may be repeated")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="chunks at a time (1), those beside apart")
    parser.add_argument("--seed", type=int, default=7, metavar="N", help="the first of the seeds (7)")
    parser.add_argument("--results", metavar="PATH", help="where the lines of JSON go; a run goes on behind them")
    parser.add_argument("--page", action="store_true",
                        help="print what docs/promises.md says of the results, and run nothing")
    parser.add_argument("--chunk", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    interrupted: Callable[..., Any] = signal.default_int_handler
    for number in (signal.SIGINT, signal.SIGTERM):  # also where the parent process ignores the one
        signal.signal(number, interrupted)
    if options.chunk is not None:
        return perform_here(chunks()[options.chunk], options.seed, options.place)
    parts = {chunk.part for chunk in chunks()}
    if unknown := set(options.only or ()) - parts:
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(sorted(parts))}")
    if options.page:
        try:
            print(page(results_of(Path(options.results or TESTS / "long_run.jsonl"))), end="")
        except ValueError as error:
            parser.error(str(error))
        return 0
    if options.jobs < 1:
        parser.error("--jobs begins with 1")
    if options.results:
        try:  # before the first chunk, which takes minutes
            Path(options.results).parent.mkdir(parents=True, exist_ok=True)
            Path(options.results).touch()
        except OSError as error:
            parser.error(f"--results: {error}")
    return Run(options).run()


if __name__ == "__main__":
    sys.exit(main())
