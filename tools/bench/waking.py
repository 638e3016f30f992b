"""How soon a reader that waits in another process has the entry in hand, and what waiting costs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import raxlog

from .rounds import Figure, latencies

_READER = """
import os, struct, sys, time, raxlog
with raxlog.open(sys.argv[1]) as store:
    last = "0"
    os.write(1, b"x")
    for _ in range(int(sys.argv[2])):
        entry = store.read({"events": last}, block=0)["events"][0]
        now = time.monotonic_ns()
        last = entry.id
        os.write(1, struct.pack("qq", now, int(entry.fields[b"sent"])))
"""
_SLEEPER = """
import os, sys, time, raxlog
with raxlog.open(sys.argv[1]) as store:
    group = store.stream("quiet").group("g")
    os.write(1, b"x")
    group.read("w", 1, block=float(sys.argv[2]))
"""


def waking(folder: Path, wakes: int = 400, sleepers: int = 10, seconds: float = 30.0) -> list[Figure]:
    """Wake-up latency from the commit's return, and the CPU of readers that sleep."""
    path = folder / "waking.rax"
    with raxlog.open(path) as store:
        stream = store.stream("events")
        store.stream("quiet").create_group("g", "0", create_stream=True)
        figures = latencies("a blocked reader in another process has the entry, after the commit", _READER, path,
                            wakes, lambda n: stream.append({"sent": n}))
        quiet = [
            subprocess.Popen([sys.executable, "-c", _SLEEPER, str(path), str(seconds + 4)], stdout=subprocess.PIPE)
            for _ in range(sleepers)
        ]
        for process in quiet:
            assert process.stdout is not None
            process.stdout.read(1)
        time.sleep(2)  # so long falling asleep takes at most
        before, start = [_spent(process.pid) for process in quiet], time.monotonic()
        time.sleep(seconds)
        shares = [(_spent(process.pid) - earlier) / (time.monotonic() - start)
                  for process, earlier in zip(quiet, before, strict=True)]
        for process in quiet:
            process.wait()
    return [
        *figures,
        Figure("CPU of blocked readers, of one core", f"{sleepers} processes", "%", [sum(shares) * 100], [1.0]),
    ]


def _spent(pid: int) -> float:
    """Seconds of CPU that all threads of a process have used."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def beside_a_transaction(folder: Path, reads: int = 100) -> list[Figure]:
    """Reads, and openings for reading, while another process has a transaction open for 5 seconds."""
    path = folder / "held.rax"
    child = (
        "import sys, time, raxlog\n"
        "with raxlog.open(sys.argv[1]) as store, store.transaction() as tx:\n"
        "    tx.stream('s').append({'n': 1})\n"
        "    print('held', flush=True)\n"
        "    time.sleep(5)\n"
    )
    with raxlog.open(path) as store:
        for n in range(20):
            store.stream("s").append({"n": n})
        holder = subprocess.Popen([sys.executable, "-c", child, str(path)], stdout=subprocess.PIPE)
        assert holder.stdout is not None
        holder.stdout.readline()
        figures = [Figure("while another process has a transaction open", "the longest of 100 reads", "ms"),
                   Figure("while another process has a transaction open", "open(readonly=True), longest of 100", "ms")]
        figures[0].rates.append(max(_milliseconds(lambda: len(store.stream("s"))) for _ in range(reads)))
    figures[1].rates.append(max(_milliseconds(lambda: _open_and_read(path)) for _ in range(reads)))
    holder.wait()
    return figures


def _open_and_read(path: Path) -> None:
    with raxlog.open(path, readonly=True) as store:
        assert len(store.stream("s")) == 20


def _milliseconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1000


def reopening(folder: Path, entries: int = 1_000_000, pending: int = 100_000) -> list[Figure]:
    """From open() to the first batch of a group, in a fresh process."""
    path = folder / "reopen.rax"
    with raxlog.open(path, durability="relaxed") as store:
        stream = store.stream("events")
        group = stream.create_group("g", "0", create_stream=True)
        row = {"sensor": "device-000123", "temp": 21.5, "seq": 1}
        for _ in range(0, entries, 10_000):
            stream.extend([row] * 10_000)
        while group.pending().total < pending:
            group.read("slow", 1000)
    child = (
        "import sys, time, raxlog\n"
        "start = time.perf_counter()\n"
        "store = raxlog.open(sys.argv[1])\n"
        "batch = store.stream('events').group('g').read('w', 100)\n"
        "print((time.perf_counter() - start) * 1000, len(batch))\n"
    )
    spent = []
    for _ in range(7):
        reply = subprocess.run([sys.executable, "-c", child, str(path)], capture_output=True, text=True, check=True)
        spent.append(float(reply.stdout.split()[0]))
    name = f"open with {entries:,} entries and {pending:,} pending, to the first batch of 100"
    return [Figure(name, "raxlog, a fresh process", "ms", spent, [1.0] * 7)]

