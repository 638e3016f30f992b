"""Random fills: room is reserved at commit, so no checkpoint fails for it, and nothing acknowledged is lost.

    python tools/bench/log_gate/fills.py FOLDER ROUNDS [SEED]

A third each: max_map_size, RLIMIT_FSIZE, a tmpfs of 6 MB.
Each round fills a store with entries, groups, state and small streams, is refused some times, frees something, goes
on, and is killed or closed; a fresh process without the limit (but on the same disk) compares it with what was
acknowledged. In a half a second process writes, too; in a third a reader pins LMDB's pages now and then.
"""

# ruff: noqa: B023, B905, PLC0415 - a script of a spike

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

SIZES = (10, 200, 900, 2100, 4000, 4000, 20_000, 150_000)


def work(folder: str, kind: str, seed: int, role: str, acks: str) -> None:
    """Fill until refused, free, go on; each acknowledgement is a line."""
    chance = random.Random(f"{seed}{role}")
    limit = random.Random(seed).randrange(1 << 19, 4 << 20) | 1
    if kind == "limit":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limit = max(limit, (1 << 20) + 8192)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    import raxlog

    said = os.open(f"{acks}-{role}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def ack(*what: Any) -> None:
        os.write(said, (json.dumps(what) + "\n").encode())

    try:
        store = raxlog.open(folder, durability=chance.choice(["relaxed", "commit"]), map_size=None,
                            max_map_size=limit if kind == "ceiling" else None)
    except raxlog.StoreFull:
        ack("full at open")
        return
    env: Any = store._streams.source.env
    log = env.map.log
    log.every = chance.choice([1 << 14, 1 << 16, 1 << 18])
    refused, pin, steps = 0, None, 0
    sizes = chance.sample(SIZES, chance.randrange(1, 5))
    n = 0
    names = [f"{role}{i}" for i in range(chance.choice([1, 3, 40]))]
    groups: dict[str, Any] = {}
    most = chance.randrange(1, 4)
    while refused < most and steps < 1500:
        steps += 1
        name = chance.choice(names)
        stream = store.stream(name)
        act = chance.random()
        try:
            if act < 0.6:
                many = chance.choice([1, 1, 1, 3, 30])
                size = chance.choice(sizes)
                stream.extend([{"n": k, "x": bytes(size)} for k in range(n, n + many)])
                ack("add", name, n, many)
                n += many
            elif act < 0.75:
                key = f"{role}-{chance.randrange(400):04}" + "k" * chance.choice([0, 200])
                value = str(n)
                with store.transaction() as tx:
                    tx.state[key] = value.encode() + b"v" * chance.choice([0, 300, 1900, 3000])
                ack("state", key, value)
            elif act < 0.9:
                if name not in groups:
                    groups[name] = stream.create_group("g", "0", create_stream=True)
                taken = groups[name].read("w", chance.choice([1, 20]))
                if taken and chance.random() < 0.7:
                    groups[name].ack(*[one.id for one in taken])
            elif act < 0.93 and pin is None and chance.random() < 0.3:
                pin = log.real.begin()
            elif pin is not None:
                pin.abort()
                pin = None
        except raxlog.StoreFull:
            refused += 1
            if pin is not None:
                pin.abort()
                pin = None
            if chance.random() < 0.8:
                name = chance.choice(names)
                try:
                    ack("trimming", name)
                    left = chance.choice([0, 5])
                    store.stream(name).trim(maxlen=left)
                    ack("trim", name, left)
                except raxlog.StoreFull:
                    ack("no trim")
    if env.map.failed_flush is not None:
        ack("FAILED", repr(env.map.failed_flush))
    ack("figures", refused, log.checkpoints, log.room.direct, log.waits)
    if chance.random() < 0.6:
        os.kill(os.getpid(), signal.SIGKILL)
    if pin is not None:
        pin.abort()
    store.close()
    if env.map.failed_flush is not None:
        ack("FAILED", repr(env.map.failed_flush))


def verify(folder: str, kind: str, seed: int, acks: str) -> None:
    """All that was acknowledged is there, and nothing else but what the last call of each process may have done."""
    import raxlog

    wrong = []
    figures: list[Any] = []
    with raxlog.open(folder) as store:
        for role in ("a", "b"):
            path = Path(f"{acks}-{role}")
            if not path.exists():
                continue
            there: dict[str, list[int]] = {}
            state: dict[str, str] = {}
            unsure: set[str] = set()
            for line in path.read_text().splitlines():
                what, *rest = json.loads(line)
                if what == "add":
                    there.setdefault(rest[0], []).extend(range(rest[1], rest[1] + rest[2]))
                elif what == "state":
                    state[rest[0]] = rest[1]
                elif what == "trimming":
                    unsure.add(rest[0])
                elif what == "trim":
                    unsure.discard(rest[0])
                    if rest[0] in there:
                        there[rest[0]] = there[rest[0]][-rest[1]:] if rest[1] else []
                elif what in ("FAILED", "full at open"):
                    wrong.append([what, *rest]) if what != "full at open" else figures.append(what)
                elif what == "figures":
                    figures.append(rest)
            for name, numbers in there.items():
                found = [int(entry.fields[b"n"]) for entry in store.stream(name).range()]
                if name in unsure:
                    continue
                if found != numbers:
                    wrong.append(["LOST" if set(numbers) - set(found) else "MORE", name, len(numbers), len(found)])
            for key, value in state.items():
                if not (store.state.get(key) or b"").startswith(value.encode()):
                    wrong.append(["STATE", key, value])
    if seed % 7 == 0:  # a process of its own
        report = raxlog.check(folder)
        if not report.ok:
            wrong.append(["CHECK", str(report)[:300]])
    print(json.dumps([wrong, figures]))


def forked(act: Any) -> tuple[int, int]:
    """Do it in a child: its number, and a pipe with what it prints."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child:
        os.close(theirs)
        return child, ours
    status = 1
    os.dup2(theirs, 1)
    try:
        act()
        sys.stdout.flush()
        status = 0
    except BaseException:
        os.write(theirs, traceback.format_exc().encode())
    os._exit(status)


def ended(child: tuple[int, int]) -> tuple[int, str]:
    """How it has ended, and what it has said."""
    with open(child[1]) as pipe:
        said = pipe.read()
    return os.waitpid(child[0], 0)[1], said


def main() -> None:
    os.environ["RAXLOG_LOG"] = str(1 << 20)
    base, rounds, first = Path(sys.argv[1]), int(sys.argv[2]), int((sys.argv[3:] or ["1"])[0])
    base.mkdir(parents=True, exist_ok=True)
    disk = base / f"disk-{os.getpid()}"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", disk], check=True)
    total = {"refused": 0, "checkpoints": 0, "direct": 0, "ring full": 0, "bad": 0, "full at open": 0}
    try:
        for seed in range(first, first + rounds):
            kind = ("ceiling", "limit", "disk")[seed % 3]
            folder = (disk if kind == "disk" else base) / f"s{seed}"
            acks = str(base / f"acks{seed}")
            roles = ["a", "b"][: 1 + seed // 3 % 2]
            both = [forked(lambda role=role: work(str(folder), kind, seed, role, acks)) for role in roles]
            for child in both:
                status, said = ended(child)
                if status not in (0, 9):
                    total["bad"] += 1
                    print(seed, kind, "ERROR", status, said[-1500:], flush=True)
            status, said = ended(forked(lambda: verify(str(folder), kind, seed, acks)))
            if status:
                total["bad"] += 1
                print(seed, kind, "ERROR", status, said[-1500:], flush=True)
            else:
                wrong, figures = json.loads(said)
                if wrong:
                    total["bad"] += 1
                    print(seed, kind, "WRONG", wrong[:6], flush=True)
                for one in figures:
                    if one == "full at open":
                        total["full at open"] += 1
                        continue
                    for name, value in zip(("refused", "checkpoints", "direct"), one):
                        total[name] += value
                    total["ring full"] += one[3]
            subprocess.run(["rm", "-rf", folder, *map(str, base.glob(f"acks{seed}-*"))], check=True)
            if (seed - first) % 50 == 49:
                print(seed - first + 1, total, flush=True)
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
        disk.rmdir()
    print(rounds, "rounds", total)


if __name__ == "__main__":
    main()
