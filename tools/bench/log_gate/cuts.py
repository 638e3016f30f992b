r"""Simulated power cuts and kills at system calls on the log, by the project's own recorder and workloads.

    PYTHONPATH=tests/support/crash RAXLOG_LOG=65536 \
        python tools/bench/log_gate/cuts.py [--images 5000] [--seed 11] [--kills] [append consume relaxed]

    append, consume    durable: nothing acknowledged is lost
    relaxed            what is lost is the end, in order, never what a flush or close has acknowledged, and nothing
                       is half there
"""

import argparse
import random
from pathlib import Path
from typing import Any

import journal_workload  # type: ignore[import-not-found]
import raxlog
from raxlog import crashtest


def relax(folder: Path, ack: Any) -> None:
    """Relaxed commits of several keys each, now and then a flush, which promises what is before it."""
    draw = random.Random(7)
    names = "abc"
    for opening in range(3):
        with raxlog.open(folder / "s.rax", map_size=1 << 20, durability="relaxed") as store:
            for step in range(opening * 50, opening * 50 + 50):
                with store.transaction() as tx:
                    for name in draw.sample(names, draw.randrange(1, 4)):
                        tx.stream(name).append({"n": step, "x": "y" * draw.choice([10, 600, 2500])})
                        tx.state[name] = b"%d" % step
                    tx.stream("all").append({"n": step})
                if draw.random() < 0.1:
                    store.flush()
                    ack(step + 1)
        ack(opening * 50 + 50)


def check_relaxed(folder: Path, acks: list[Any]) -> None:
    """A prefix of the commits, whole, and at least what was promised; and the store takes more."""
    if not (folder / "s.rax").exists():
        assert not acks, acks
        return
    with raxlog.open(folder / "s.rax", durability="relaxed") as store:
        there = [int(entry.fields[b"n"]) for entry in store.stream("all").range()]
        assert there == list(range(len(there))), there
        assert len(there) >= max([0, *acks]), (len(there), acks)
        draw = random.Random(7)
        wanted: dict[str, list[int]] = {name: [] for name in "abc"}
        for step in there:
            for name in draw.sample("abc", draw.randrange(1, 4)):
                draw.choice([10, 600, 2500])
                wanted[name].append(step)
            draw.random()
        for name, steps in wanted.items():
            found = [int(entry.fields[b"n"]) for entry in store.stream(name).range()]
            assert found == steps, (name, found, steps)
            assert store.state.get(name) == (b"%d" % steps[-1] if steps else None)
        store.stream("all").append({"n": len(there)})


WORK = {"append": (journal_workload.append, journal_workload.check),
        "consume": (journal_workload.consume, journal_workload.check_consumed),
        "relaxed": (relax, check_relaxed)}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--kills", action="store_true")
    parser.add_argument("names", nargs="*", default=list(WORK))
    options = parser.parse_intermixed_args()
    for name in options.names:
        modes: list[Any] = [crashtest.PowerCut(images=options.images, ignore=("*lock.mdb", "*log-state"))]
        if options.kills:
            modes.append(crashtest.KillAt.system_call("all"))
        print(name, crashtest.explore(*WORK[name], modes=modes, seed=options.seed), flush=True)
