"""Machine instructions and system calls of one warm call, which are the same on a busy machine as on a quiet one.

    getppid ──300 appends──> getppid ──the next store──> getppid ──300 group reads──> getppid …

A child process makes the calls, with os.getppid() before and after those that count. At each, valgrind's callgrind
writes down what has been executed since the last; in strace's output it stands among the others. So no figure has the
start of Python in it, or what a case prepares. The kernel's work, waits for the disk and cold caches are not counted.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from itertools import count
from operator import setitem
from pathlib import Path
from statistics import median

import msgpack
import raxlog
from raxlog.storage.errors import NotInstalled, RaxlogError
from raxlog.tools.bench.rounds import Figure, Rounds

MESSAGE = {"sensor": b"device-000001", "temp": b"21.5", "seq": b"1"}
CALLS = {
    "append": "append", "relaxed": "append, relaxed (SQLite: NORMAL)", "take": "group read of 1", "ack": "ack of 1",
    "fused": "group read of 1 that acknowledges the one before", "publish": "publish to a bound stream",
    "state": "set a key of the state", "extend": "extend of 100", "range": "range of 100", "get": "get",
}
HANDOVER = ("append", "take", "ack")
_COUNTED, _WARM = 300, 50  # a tenth of them where a call has 100 entries
_MARK = "getppid"

Call = Callable[[int], object]  # it is given its number
Calls = dict[str, Callable[[], Call]]  # by the names in CALLS: prepares, and returns the call


@contextmanager
def _raxlog(folder: Path, relaxed: bool) -> Iterator[Calls]:
    with raxlog.open(folder / "r.rax", map_size=64 << 20, durability="relaxed" if relaxed else "commit") as store:
        stream, state, held = store.stream("q"), store.state, list[raxlog.StreamID]()
        ids = stream.extend([MESSAGE] * 150)
        group = stream.create_group("g", start="$")
        stream.extend([MESSAGE] * (_COUNTED + _WARM))
        store.bind("orders.*", "bound")

        def ack() -> Call:
            entries = group.read("c", count=_COUNTED + _WARM)
            return lambda n: group.ack(entries[n].id)

        def fused(n: int) -> None:
            held[:] = [entry.id for entry in group.read("c", count=1, ack=held)]

        yield {
            "append": lambda: lambda n: stream.append(MESSAGE),
            "take": lambda: lambda n: group.read("c", count=1),
            "ack": ack,
            "fused": lambda: fused,
            "publish": lambda: lambda n: store.publish("orders.new", MESSAGE),
            "state": lambda: lambda n: setitem(state, f"key-{n % 100}", b"21.5"),
            "extend": lambda: lambda n: stream.extend([MESSAGE] * 100),
            "range": lambda: lambda n: [entry.fields for entry in stream.range(count=100)],
            "get": lambda: lambda n: [entry.fields for entry in (stream.get(ids[n % 100]),) if entry],
        }


@contextmanager
def _sqlite(folder: Path, relaxed: bool) -> Iterator[Calls]:
    """The same changes, in as few tables as they need."""
    with closing(sqlite3.connect(folder / "s.db", isolation_level=None)) as db:
        db.executescript(f"""PRAGMA journal_mode=WAL; PRAGMA synchronous={"NORMAL" if relaxed else "FULL"};
            CREATE TABLE entry (id INTEGER PRIMARY KEY, data BLOB); CREATE TABLE position (last INTEGER);
            CREATE TABLE pending (id INTEGER PRIMARY KEY, consumer TEXT, time INTEGER, deliveries INTEGER);
            CREATE TABLE binding (pattern TEXT); INSERT INTO binding VALUES ('orders.*');
            CREATE TABLE bound (id INTEGER PRIMARY KEY, data BLOB);
            CREATE TABLE state (key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID; INSERT INTO position VALUES (150)""")
        held: list[int] = []

        def append(n: int) -> object:
            return db.execute("INSERT INTO entry (data) VALUES (?)", (msgpack.packb(MESSAGE),))

        def extend(n: int, many: int = 100) -> None:
            db.execute("BEGIN IMMEDIATE")
            db.executemany("INSERT INTO entry (data) VALUES (?)", [(msgpack.packb(MESSAGE),) for _ in range(many)])
            db.execute("COMMIT")

        def take(n: int) -> int:
            db.execute("BEGIN IMMEDIATE")
            for number in held:
                db.execute("DELETE FROM pending WHERE id = ?", (number,))
            (last,) = db.execute("SELECT last FROM position").fetchone()
            number, data = db.execute("SELECT id, data FROM entry WHERE id > ? ORDER BY id LIMIT 1", (last,)).fetchone()
            db.execute("INSERT INTO pending VALUES (?, 'c', ?, 1)", (number, 0))
            db.execute("UPDATE position SET last = ?", (number,))
            db.execute("COMMIT")
            msgpack.unpackb(data)
            return int(number)

        def ack() -> Call:
            ids = [take(0) for _ in range(_COUNTED + _WARM)]
            return lambda n: db.execute("DELETE FROM pending WHERE id = ?", (ids[n],))

        def fused(n: int) -> None:
            held[:] = [take(n)]

        def publish(n: int) -> object:
            return db.execute("INSERT INTO bound (data) SELECT ? FROM binding WHERE ? GLOB pattern",
                              (msgpack.packb(MESSAGE), "orders.new"))

        def read(query: str, *values: int) -> list[object]:
            return [(number, msgpack.unpackb(data)) for number, data in db.execute(query, values)]

        extend(0, 150 + _COUNTED + _WARM)
        yield {
            "append": lambda: append,
            "take": lambda: take,
            "ack": ack,
            "fused": lambda: fused,
            "publish": lambda: publish,
            "state": lambda: lambda n: db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)",
                                                  (f"key-{n % 100}", b"21.5")),
            "extend": lambda: extend,
            "range": lambda: lambda n: read("SELECT id, data FROM entry ORDER BY id LIMIT 100"),
            "get": lambda: lambda n: read("SELECT id, data FROM entry WHERE id = ?", 1 + n % 100),
        }


_CONTENDERS: dict[str, Callable[[Path, bool], AbstractContextManager[Calls]]] = {"sqlite3": _sqlite, "raxlog": _raxlog}


def instructions(rounds: Rounds) -> list[Figure]:
    """One contest for each of CALLS, and for those of a hand-over together."""
    done, total = count(1), 2 * len(_CONTENDERS) * len(CALLS)

    def report() -> None:
        rounds.report(next(done), total)

    costs = {name: costs_of(name, CALLS, rounds.folder, report) for name in _CONTENDERS}
    contests = {**CALLS, "handover": f"hand-over: {', '.join(CALLS[call] for call in HANDOVER)}"}
    return [
        Figure(contest, name, "instructions", those[call][:1], [costs["sqlite3"][call][0] / those[call][0]],
               system_calls=those[call][1:])
        for call, contest in contests.items() for name, those in costs.items()
    ]


def costs_of(contender: str, calls: Iterable[str], folder: Path, report: Callable[[], object] = lambda: None, *,
             traced: bool = True) -> dict[str, list[float]]:
    """By call: the instructions of one and, if traced and strace is here, its system calls. NotInstalled: no valgrind.

    The median of a call that is given several times. With those of a hand-over there is "handover", too. ``report`` is
    called after each call of each tool.
    """
    if shutil.which("valgrind") is None:
        raise NotInstalled("valgrind is not installed, which counts machine instructions: apt-get install valgrind")
    calls, dump, trace = list(calls), folder / f"{contender}.dump", folder / f"{contender}.trace"
    _watch(["valgrind", "--tool=callgrind", f"--dump-before={_MARK}", f"--callgrind-out-file={dump}"],
           contender, calls, folder, report)
    dumps = [Path(f"{dump}.{number}").read_text(errors="replace") for number in range(1, 2 * len(calls) + 1)]
    found = [[int(re.findall(r"^totals: (\d+)", text, re.MULTILINE)[0]) for text in dumps]]
    if traced and shutil.which("strace"):
        _watch(["strace", "-f", "-qq", "-o", str(trace)], contender, calls, folder, report)
        found.append(system_calls(trace.read_text(errors="replace").splitlines()))
    costs = {
        call: [median(cost for name, cost in zip(calls, each[1::2], strict=True) if name == call) / _times(call)[1]
               for each in found]
        for call in calls
    }
    if costs.keys() >= {*HANDOVER}:
        costs["handover"] = [sum(each) for each in zip(*(costs[call] for call in HANDOVER), strict=True)]
    return costs


def system_calls(trace: Iterable[str]) -> list[int]:
    """How many a trace has up to its first mark, from there to the second, and so on."""
    found = [0]
    for line in trace:
        if name := re.match(r"(?:\d+ +)?(\w+)\(", line):  # no signal, nor the end of a call that is counted
            if name[1] == _MARK:
                found.append(0)
            else:
                found[-1] += 1
    return found[:-1]


def _times(call: str) -> tuple[int, int]:
    """How many calls warm up, how many count."""
    return (_WARM // 10, _COUNTED // 10) if call in ("extend", "range") else (_WARM, _COUNTED)


def _watch(tool: list[str], contender: str, calls: list[str], folder: Path, report: Callable[[], object]) -> None:
    """The calls, in a process under a tool."""
    stores, said = folder / f"{contender}.{tool[0]}", list[str]()
    stores.mkdir()
    with subprocess.Popen([*tool, sys.executable, "-P", __file__, contender, str(stores), *calls],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          env={**os.environ, "PYTHONHASHSEED": "0"},
                          process_group=0) as process:  # Ctrl-C is not for it
        try:
            for line in process.stdout or ():
                said.append(line.rstrip())
                if said[-1] in calls:
                    report()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # what strace follows would outlive it
            raise
    if process.returncode:
        raise RaxlogError(f"{tool[0]} has failed: {' / '.join(said[-5:])}")


def _run(contender: str, folder: Path, calls: Iterable[str]) -> None:
    """What the child does."""
    for number, name in enumerate(calls):
        own, (warm, counted) = folder / str(number), _times(name)
        own.mkdir()
        with _CONTENDERS[contender](own, name == "relaxed") as prepare:
            call = prepare["append" if name == "relaxed" else name]()
            for n in range(warm):
                call(n)
            gc.collect()
            gc.freeze()  # else a full collection, in whichever case it falls, goes through all that has been imported
            os.getppid()
            for n in range(warm, warm + counted):
                call(n)
            os.getppid()
        print(name, flush=True)


if __name__ == "__main__":
    _run(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
