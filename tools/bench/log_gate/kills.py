"""SIGKILL rounds: two writers and a reader, all of which make checkpoints, on one small ring.

    python tools/bench/log_gate/kills.py FOLDER ROUNDS [SEED]

Nothing acknowledged is missing, and nothing that was seen is gone, whichever process dies, at any moment. In each
second round the reader or a writer lives on, and goes on reading or writing through the death of the others.
"""

# ruff: noqa: PLC0415, SIM115 - a script of a spike

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RING = 1 << 16


def work(folder: str, role: str, seed: int) -> None:
    import raxlog

    chance = random.Random(f"{seed}{role}")
    store = raxlog.open(folder, durability=random.Random(seed).choice(["relaxed", "commit"]))
    env: Any = store._streams.source.env
    log = env.map.log
    out = sys.stdout.fileno()
    if role == "reader":
        while True:
            for name in ("w0", "w1"):
                entries = [int(entry.fields[b"n"]) for entry in store.stream(name).range()]
                newest = int(store.state.get(name) or b"-1") if chance.random() < 0.5 else -1
                if entries:
                    # A trim between two transactions of a range leaves a gap.
                    assert entries == sorted(set(entries)), entries
                    os.write(out, f"{name} {entries[0]} {entries[-1]} {newest}\n".encode())
            if chance.random() < 0.2:
                log.checkpoint(False)
    stream = store.stream(role)
    try:
        group = stream.create_group("g", "0", create_stream=True)
    except raxlog.GroupExists:
        group = stream.group("g")
    last = [entry.fields[b"n"] for entry in stream.range(reverse=True, count=1)]
    n = int(last[0]) + 1 if last else 0
    while True:
        many = chance.choice([1, 1, 1, 1, 5, 40])
        if chance.random() < 0.1:
            with store.transaction() as tx:
                tx.stream(role).extend([{"n": k, "x": bytes(30)} for k in range(n, n + many)])
                tx.state[role] = b"%d" % n
        else:
            stream.extend([{"n": k, "x": bytes(chance.choice([10, 300, 4000]))} for k in range(n, n + many)])
        n += many
        os.write(out, b"%d\n" % n)
        if chance.random() < 0.1:
            group.ack(*[entry.id for entry in group.read("w", 30)])
        if chance.random() < 0.02:
            stream.trim(maxlen=200)


def main() -> None:
    if sys.argv[1] == "--work":
        work(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    base, rounds, first = Path(sys.argv[1]), int(sys.argv[2]), int((sys.argv[3:] or ["1"])[0])
    base.mkdir(parents=True, exist_ok=True)
    os.environ["RAXLOG_LOG"] = str(RING)
    import raxlog

    acknowledged = bad = seen = 0
    for seed in range(first, first + rounds):
        chance = random.Random(seed)
        folder = str(base / f"s{seed // 10}")  # ten rounds on each store
        if seed % 10 == 0 or seed == first:
            subprocess.run(["rm", "-rf", folder], check=True)
            with raxlog.open(folder):
                pass
        acks: dict[str, Any] = {}
        started = {role: subprocess.Popen([sys.executable, __file__, "--work", folder, role, str(seed)],
                                          stdout=open(base / f"out-{role}", "wb"), stderr=subprocess.PIPE)
                   for role in ("w0", "w1", "reader")}
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not all((base / f"out-{role}").stat().st_size for role in started):
            time.sleep(0.02)
        time.sleep(chance.random() * 0.7)
        order = list(started)
        chance.shuffle(order)
        for role in order:
            started[role].send_signal(signal.SIGKILL)
            time.sleep(chance.choice([0, 0, 0.05, 0.2]))
        for role, process in started.items():
            error = process.communicate()[1]
            if process.returncode != -9:
                bad += 1
                print(seed, role, "ENDED", error.decode()[-1500:], flush=True)
        with raxlog.open(folder) as store:
            for name in ("w0", "w1"):
                there = [int(entry.fields[b"n"]) for entry in store.stream(name).range()]
                top = there[-1] + 1 if there else 0
                lines = (base / f"out-{name}").read_bytes().split(b"\n")[:-1]
                acks[name] = int(lines[-1]) if lines else 0
                acknowledged += len(lines)
                if top < acks[name] or there != list(range(top - len(there), top)):
                    bad += 1
                    print(seed, name, "LOST", acks[name], top, there[:3], flush=True)
            for line in (base / "out-reader").read_bytes().split(b"\n")[:-1]:
                name, _, last, state = line.decode().split()
                seen += 1
                there_last = next(int(e.fields[b"n"]) for e in store.stream(name).range(reverse=True, count=1))
                if int(last) > there_last or int(state) > int(store.state.get(name) or -1):
                    bad += 1
                    print(seed, name, "GONE", last, there_last, state, flush=True)
                    break
        if seed % 10 == 9:
            report = raxlog.check(folder)
            if not report.ok:
                bad += 1
                print(seed, "CHECK", str(report)[:500], flush=True)
            print(seed - first + 1, "rounds", acknowledged, "acknowledged", seen, "seen", bad, "bad", flush=True)
    print(rounds, "rounds", acknowledged, "acknowledged", seen, "seen", bad, "bad")


if __name__ == "__main__":
    main()
