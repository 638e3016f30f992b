"""The gate's figures: contenders in processes of their own, in interleaved slices, medians of ratios round by round.

    python tools/bench/log_gate/bench.py FOLDER [--rounds 7] [--seconds 0.5] [--main PYTHON] [CASE …]

    relaxed   reading   lone   lockstep   processes   overlay          all without CASE
"""

# ruff: noqa: B023, B905, E731, PLC0415 - a script of a spike

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROW: Any = {"sensor": "device-000123", "temp": 21.5, "seq": 1}
CASES = {  # case -> contenders: side, durability; the first is the base
    "relaxed": (("sqlite", "NORMAL"), ("log", "relaxed"), ("main", "relaxed")),
    "reading": (("sqlite", "NORMAL"), ("log", "relaxed"), ("main", "relaxed")),
    "lone": (("main", "commit"), ("log", "commit"), ("sqlite", "FULL")),
    "lockstep": (("main", "commit"), ("log", "commit"), ("sqlite", "FULL")),
    "processes": (("main", "commit"), ("log", "commit")),
    "overlay": (("main", "commit"), ("log", "none"), ("log", "full")),
}


def loop(work: Any, seconds: float) -> tuple[int, float, float]:
    done, start, used = 0, time.perf_counter(), time.process_time()
    while not done or time.perf_counter() - start < seconds:
        work()
        done += 1
    return done, time.perf_counter() - start, time.process_time() - used


class Child:
    """A contender's process: takes a line, does a slice, answers with operations, seconds, CPU."""

    def __init__(self, case: str, side: str, mode: str, path: str, role: str, python: str) -> None:
        self.label = f"{side} {mode}"
        logged = {**os.environ, "RAXLOG_LOG": "1" if side == "log" else ""}
        self.process: Any = subprocess.Popen(
            [python, __file__, "--child", case, side, mode, path, role], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, bufsize=1, env=logged)
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def start(self, seconds: float) -> None:
        self.process.stdin.write(f"{seconds}\n")

    def result(self) -> list[float]:
        figures: list[float] = json.loads(self.process.stdout.readline())
        return figures


def child(case: str, side: str, mode: Any, path: str, role: str) -> None:
    work: Any
    if side == "sqlite":
        from raxlog.tools.bench.peers import SqliteLog, SqliteQueue

        if case == "lockstep":
            queue = SqliteQueue(Path(path), batch=1)
            work = (lambda: queue.append(ROW)) if role == "main" else queue.read_and_ack
        else:
            log = SqliteLog(Path(path), mode)
            work = (lambda: log.append(ROW)) if role == "main" else (lambda: log.db.execute(
                "SELECT id, data FROM log ORDER BY id DESC LIMIT 10").fetchall())
    else:
        import raxlog

        store = raxlog.open(path, durability=mode if mode == "relaxed" else "commit")
        stream = store.stream("events")
        work = lambda: stream.append(ROW)
        if case == "lockstep":
            stream.create_group("g", "0", create_stream=True) if role == "main" else None
            group = stream.group("g")
            if role != "main":
                work = lambda: group.ack(*[entry.id for entry in group.read("w", 1)])
        elif role == "reader":
            work = lambda: list(stream.range(reverse=True, count=10))
    if case == "overlay":
        overlay_child(store, mode, side)
        return
    other = None
    if case == "lockstep" and role == "main":
        other = Child(case, side, mode, path, "taker", sys.executable)
        append = work

        def work() -> None:
            append()
            other.process.stdin.write("\n")
            other.process.stdout.readline()

    print(flush=True)
    if role == "taker":
        for _ in sys.stdin:
            work()
            print(flush=True)
        return
    for line in sys.stdin:
        if role == "reader":
            end = time.monotonic() + float(line)
            while time.monotonic() < end:
                work()
                time.sleep(0.005)
            print("[0, 0, 0]", flush=True)
        else:
            print(json.dumps(loop(work, float(line))), flush=True)


def overlay_child(store: Any, mode: str, side: str) -> None:
    """Reads of ranges of 100 and of single entries; with an overlay that is full of this stream's and other keys."""
    import random



    stream = store.stream("events")
    for _ in range(100):
        stream.extend([{**ROW, "seq": i} for i in range(1000)])
    log = None
    if side == "log":
        log = store._streams.source.env.map.log
        log.checkpoint(True)
        most, log.every = log.every, 1 << 60
        if mode == "full":
            # As full as a quarter of the ring: appends to this stream and 2,000 other small streams, a group with
            # pending entries on this stream
            stream.create_group("g", "0")
            group = stream.group("g")
            n = 0
            while log.pos - log.words[1] < most - 9000:
                n += 1
                stream.append(ROW)
                if n % 4 == 0:
                    store.stream(f"other{n}").append(ROW)
                if n % 16 == 0:
                    group.read("w", 10)
        log.read().abort()
        print(f"overlay {mode}: {len(log.overlay.rows)} keys, {len(log.overlay.order)} alive, "
              f"{log.overlay.bytes} bytes", file=sys.stderr)
    every = [entry.id for entry in stream.range()]
    chance = random.Random(3)
    at = [chance.randrange(len(every) - 100) for _ in range(2000)]
    tail = [len(every) - 100 - chance.randrange(900) for _ in range(2000)]
    places = {"range": at, "range at the end": tail, "get": at, "get at the end": tail}
    turn = iter(range(1 << 60))
    print(flush=True)
    for line in sys.stdin:
        case, seconds = line.rsplit(" ", 1)
        where = [every[place] for place in places[case]]
        if case.startswith("range"):
            work = lambda: list(stream.range(where[next(turn) % 2000], count=100))
        else:
            work = lambda: stream.get(where[next(turn) % 2000])
        print(json.dumps(loop(work, float(seconds))), flush=True)



def figures(name: str, labels: list[str], taken: dict[str, list[list[float]]]) -> None:
    base = labels[0]
    print(f"{name}:")
    for label in labels:
        rates = [done / spent for done, spent, _ in taken[label]]
        ratios = sorted(rate / (done / spent) for rate, (done, spent, _) in zip(rates, taken[base]))
        cpu = statistics.median(used / done * 1e6 for done, _, used in taken[label])
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        print(f"  {label:16} {statistics.median(rates):9,.0f}/s  x {statistics.median(ratios):.2f}"
              f" ({low:.2f}-{high:.2f})  cpu {cpu:.0f} us", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--main", default=sys.executable)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    options = parser.parse_intermixed_args()
    for case in options.cases or list(CASES):
        folder = options.folder / f"{case}-{os.getpid()}"
        folder.mkdir(parents=True)
        labels, sides = [], []
        for side, mode in CASES[case]:
            python = options.main if side == "main" else sys.executable
            path = str(folder / f"{side}-{mode}")
            many = ["main"] * (8 if case == "processes" else 1) + ["reader"] * (case == "reading")
            sides.append([Child(case, side, mode, path, role, python) for role in many])
            labels.append(f"{side} {mode}")
        kinds = ["range", "range at the end", "get", "get at the end"] if case == "overlay" else [""]
        taken: dict[str, dict[str, list[list[float]]]] = {kind: {label: [] for label in labels} for kind in kinds}
        for _ in range(options.rounds):
            for kind in kinds:
                for label, group in zip(labels, sides):
                    for one in group:
                        if kind:
                            one.process.stdin.write(kind + " ")
                        one.start(options.seconds)
                    got = [one.result() for one in group]
                    spent = max(each[1] for each in got)
                    taken[kind][label].append([sum(each[0] for each in got), spent, sum(each[2] for each in got)])
        for kind in kinds:
            figures(f"{case} {kind}".strip(), labels, taken[kind])
        for group in sides:
            for one in group:
                one.process.stdin.close()
                one.process.wait()


if __name__ == "__main__":
    main()
