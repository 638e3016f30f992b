"""A hundred small changes to three rooms of raxlog, each in a copy, and whether a test fails by it.

    python tests/support/figures/mutants.py --results mutants.jsonl       begun again, it goes on behind what is there

    places     by ast, drawn with --seed: a comparison, and/or, + or -, a whole number, True, a condition, not, a call,
               an assignment to an attribute, a return
    a change   is killed where a test in TESTS fails or is STUCK, or all take LONGER times what they take without one
    explained  in mutants.txt (file, line, change, why, by tabs) are those that no test can find: they are not run
    survivors  are holes in the tests: then status 1

Messages of errors, docstrings, types and crash points stay as they are. It runs plain kernels, --jobs copies of this
clone in memory, one process of pytest in each. First come the same tests without a change: they must pass.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import repeat
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[3]
EXPLAINED = Path(__file__).with_suffix(".txt")
LONGER, LEAST = 4.0, 60.0  # times, seconds
STUCK = (40, 300)  # seconds of one test, of the quick ones and of the others
TESTS = {  # of each room the quick ones, then the others for what they have not killed
    "storage/log": (
        "storage/log/test_transaction.py storage/log/test_feed.py storage/log/test_log.py -k 'not bytecode'",
        "storage/trees/test_rax.py storage/commit/test_map_growth.py crash/points/test_log_cuts.py"
        " storage/log/test_fills.py storage/log/test_log_beside_threads.py -m 'not redis'",
    ),
    "storage/commit": (
        "storage/commit/test_commit.py storage/commit/test_append_cost.py storage/commit/test_pipeline.py"
        " storage/commit/test_transaction_calls.py storage/commit/test_interrupted_commit.py",
        "storage/log/test_log.py::test_a_commit_waits_for_the_checkpoint_of_another_process_as_long_as_for_its_lock"
        " storage/commit/test_beside_other_processes.py storage/commit/test_failed_flush.py"
        " storage/commit/test_interrupted_commit.py storage/log/test_log_beside_threads.py -m 'not redis'",
    ),
    "stream/group": (
        "groups/test_pending.py groups/test_owner.py groups/test_ids.py groups/test_dead_letters.py groups/test_seen.py"
        " groups/test_filtered_groups.py groups/test_status.py groups/test_pause.py groups/test_one_picture.py"
        " groups/test_gone.py -k 'not TestPendingListEqualsADict'",
        "limits/test_limits.py limits/test_unique.py limits/test_keys.py jobs/test_cancel.py groups/test_warm_groups.py"
        " groups/test_reply_budget.py groups/test_pending_shapes.py groups/test_group_bad_input.py jobs/test_job.py"
        " jobs/test_results.py testing/test_drain.py streams/entries/test_retention.py streams/entries/test_waiting.py"
        " streams/entries/test_stop.py resp/test_resp_blocking.py groups/test_group_differential.py"
        " groups/test_group_model.py aio/test_aio.py -m 'not storm and not redis'",
    ),
}
TESTS["stream/pel"] = TESTS["stream/group"]
SWAPPED = {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
           ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
           ast.Add: ast.Sub, ast.Sub: ast.Add}
_LEFT_OUT = (ast.Raise, ast.Assert, ast.JoinedStr, ast.arguments, ast.Import, ast.ImportFrom)
_NOT_OURS = ("crash_point", "TYPE_CHECKING", "__slots__")


def changed(node: ast.AST) -> Iterator[str]:
    """The sources that may stand in a node's place."""
    other = copy.deepcopy(node)
    match other:
        case ast.Compare(ops=[op]) if type(op) in SWAPPED:
            other.ops = [SWAPPED[type(op)]()]
        case ast.BoolOp(op=op) | ast.BinOp(op=op) if type(op) in SWAPPED:
            other.op = SWAPPED[type(op)]()
        case ast.Constant(value=bool()):
            other.value = not other.value
        case ast.Constant(value=int()):
            other.value += 1
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            other = operand
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield "return None"
            return
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "pass"
            return
        case _:
            return
    yield f"({ast.unparse(other)})"


def nodes(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Each node below that has a place and may be changed, and what it is changed to."""
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, _LEFT_OUT) or field in ("annotation", "returns"):
                continue
            head = ast.unparse(child.test if isinstance(child, ast.If) else child).partition("\n")[0]
            if isinstance(child, ast.stmt) and any(word in head for word in _NOT_OURS):
                continue
            yield from ((child, text) for text in changed(child))
            if field == "test" and isinstance(node, ast.If | ast.While | ast.IfExp):
                yield child, f"(not ({ast.unparse(child)}))"
            yield from nodes(child)


def mutants(tree: Path) -> list[dict[str, str]]:
    """All of them: room, file, the line, the change, and the file's whole source with it."""
    found = []
    for room in TESTS:
        for path in sorted((tree / room).glob("*.py")):
            source = path.read_bytes()
            lines = source.splitlines(keepends=True)
            for node, text in nodes(ast.parse(source)):
                begin = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
                end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
                found.append({
                    "room": room, "file": f"{room}/{path.name}", "line": lines[node.lineno - 1].decode().strip(),
                    "change": f"{' '.join(source[begin:end].decode().split())} -> {text}",
                    "at": f"{node.lineno}:{node.col_offset}",
                    "source": (source[:begin] + text.encode() + source[end:]).decode()})
    return found


def key_of(row: dict[str, str]) -> tuple[str, str, str]:
    """What a mutant is known by, on one commit."""
    return row["file"], row["at"], row["change"]


def line_of(mutant: dict[str, str]) -> tuple[str, ...]:
    """What it is explained by, wherever that line has moved to."""
    return mutant["file"], mutant["line"], mutant["change"]


def is_left(row: dict[str, object] | None, stage: int) -> bool:
    """Whether the tests of a stage are still to be run on the mutant of this result."""
    return row is None or (not row["by"] and row["stage"] < stage)


class Copy:
    """A copy of the clone, whose source may be changed, and which stands in front of the installed one."""

    def __init__(self, place: Path) -> None:
        self.place, self.tree = place, place / "raxlog"
        leave = shutil.ignore_patterns(".*", "build", "*.so", "__pycache__")
        shutil.copytree(ROOT, self.tree, symlinks=True, ignore=leave)
        (place / "pytest_raxlog").symlink_to(self.tree / "recovery/crashtest/discovery/pytest_raxlog")
        self.env = os.environ | {"PYTHONPATH": str(place), "RAXLOG_PURE": "1", "TMPDIR": str(place / "tmp")}
        self.age = 1_000_000_000  # of a source: in each whole second it would be taken for the one before
        where = subprocess.run([sys.executable, "-c", "import raxlog; print(raxlog.__file__)"], env=self.env,
                               check=True, capture_output=True, text=True, cwd=place).stdout
        if not Path(where.strip()).is_relative_to(place):
            raise SystemExit(f"it is {where.strip()} that runs, not the copy in {place}")

    def write(self, file: str, source: str) -> None:
        path = self.tree / file
        self.age += 10
        path.write_text(source, encoding="utf-8")
        os.utime(path, (self.age, self.age))

    def run(self, tests: str, stuck: int, limit: float) -> tuple[str, float]:
        """Whether they passed, and which failed or that the time ran out; seconds."""
        temporary = Path(self.env["TMPDIR"])
        temporary.mkdir(mode=0o755)
        begun = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider",
                   "--hypothesis-profile", "unshrunk", "--timeout", str(stuck), *shlex.split(tests)]
        with (self.place / "output").open("w+") as output:
            process = subprocess.Popen(command, cwd=self.tree / "tests", env=self.env, stdout=output,
                                       stderr=subprocess.STDOUT, start_new_session=True)
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                status = -1
            self.end_all()
            process.wait()
            output.seek(0)
            lines = output.read().splitlines()
        shutil.rmtree(temporary, ignore_errors=True)
        failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        why = "" if status == 0 else f"no end in {limit:.0f} s" if status < 0 else (failed or lines or ["?"])[-1]
        return why[:200], round(time.monotonic() - begun, 1)

    def end_all(self) -> None:
        """End what the tests have started and left: all processes with the temporary folder of this copy."""
        mark = f"TMPDIR={self.env['TMPDIR']}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)
            except OSError:
                continue  # it has ended, or is another user's


def judge(mutant: dict[str, str], stage: int, free: SimpleQueue[Copy], limits: dict[str, float]) -> dict[str, object]:
    """Run tests of its room on a mutant."""
    tests, place = TESTS[mutant["room"]][stage], free.get()
    was = (place.tree / mutant["file"]).read_text(encoding="utf-8")
    place.write(mutant["file"], mutant["source"])
    try:
        by, seconds = place.run(tests, STUCK[stage], max(LEAST, LONGER * limits[tests]))
    finally:
        place.write(mutant["file"], was)
        free.put(place)
    known = {key: mutant[key] for key in ("file", "at", "line", "change")}
    return known | {"stage": stage, "by": by, "seconds": seconds}


def explained() -> dict[tuple[str, ...], str]:
    """Why a change cannot be seen, by file, line and change."""
    lines = EXPLAINED.read_text(encoding="utf-8").splitlines()
    return {tuple(row[:3]): row[3] for row in (line.split("\t") for line in lines if not line.startswith("#"))}


def main() -> int:
    """Try them, print each; 1 where one survives without an explanation."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--results", type=Path, required=True, help="a line of JSON for each mutant")
    parser.add_argument("--seed", type=int, default=52)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    print(f"seed {args.seed}")
    known, why = mutants(ROOT), explained()
    if gone := why.keys() - {line_of(mutant) for mutant in known}:
        raise SystemExit(f"{EXPLAINED.name} explains what is no change of these sources: {gone}")
    drawn = random.Random(args.seed).sample(known, args.count)
    tried = [mutant for mutant in drawn if line_of(mutant) not in why]
    lines = args.results.read_text(encoding="utf-8").splitlines() if args.results.exists() else []
    done = [json.loads(line) for line in lines]
    limits = {row["tests"]: row["seconds"] for row in done if "tests" in row}
    judged = {key_of(row): row for row in done if "file" in row}
    with tempfile.TemporaryDirectory(dir="/dev/shm", ignore_cleanup_errors=True) as folder, \
            ThreadPoolExecutor(args.jobs) as pool, args.results.open("a", encoding="utf-8") as results:
        Path(folder).chmod(0o755)
        free: SimpleQueue[Copy] = SimpleQueue()
        for number in range(args.jobs):
            free.put(Copy(Path(folder, str(number))))

        def control(tests: str, stage: int) -> dict[str, object]:
            place = free.get()
            by, seconds = place.run(tests, STUCK[stage], 1800)
            free.put(place)
            return {"tests": tests, "by": by, "seconds": seconds}

        for stage in (0, 1):
            wanted = [stages[stage] for stages in TESTS.values() if stages[stage] not in limits]
            for row in pool.map(control, wanted, repeat(stage)):
                if row["by"]:
                    raise SystemExit(f"without a change: {row['by']}")
                limits[row["tests"]] = row["seconds"]
                print(json.dumps(row), file=results, flush=True)
            left = [mutant for mutant in tried if is_left(judged.get(key_of(mutant)), stage)]
            for run in as_completed([pool.submit(judge, mutant, stage, free, limits) for mutant in left]):
                row = run.result()
                judged[key_of(row)] = row
                print(json.dumps(row), file=results, flush=True)
                print(f"{row['seconds']:6.1f} s  {'killed  ' if row['by'] else 'survives'}  {row['file']}:{row['at']}"
                      f"  {row['change'][:90]}", flush=True)
    rows = [judged[key_of(mutant)] for mutant in tried]
    holes = [row for row in rows if not row["by"]]
    first, then = (sum(bool(row["by"]) and row["stage"] == stage for row in rows) for stage in (0, 1))
    print(f"{len(drawn)} drawn: {len(drawn) - len(tried)} explained, {first} killed by the quick tests, {then} by the"
          f" others, {len(holes)} left")
    for row in holes:
        print(row["file"], row["line"], row["change"], sep="\t")
    return bool(holes)


if __name__ == "__main__":
    sys.exit(main())
