"""The parts of raxlog's crash tests, each at any size: in small by the tests, in large by long_run.py.

    part         what is tried                  tests
    kills        rounds of a storm              test_kill_storm.py
    calls        system calls, the N-th         test_system_calls.py
    images       of what a power cut leaves     test_power_cut.py
    errors       of system calls                test_injected_errors.py
    interrupts   exceptions, a process goes on  test_interrupts.py
    flips        of bits                        test_bit_flips.py
    contention   appends beside kills           test_contention.py
    fuzz         inputs of decoders             test_fuzz_decoders.py
    reader       commits beside a long read     test_long_reader.py
    schedules    orders of several processes    test_schedules.py

Each gives an Outcome, or raises where something is wrong. ``keep`` is where what has failed stays.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import compacted_workload
import crash_steps as steps
import flipped_stores
import interrupted_steps
import raxlog
from children import Child
from crowd import Crowd
from environment_cases import cut_off_reserve
from flipped_stores import NAMED, Flipper
from raxlog.crashtest import Errors, Interrupts, KillAt, ModeResult, PowerCut, Report, Schedules, Storm, explore
from side_by_side import SCENARIOS

IGNORED = ("shared", "lock.mdb", "log-state")  # nothing in them is believed after a start, but for slots
CLEAR = (raxlog.RaxlogError,)
FUZZER = Path(__file__).with_name("fuzz_decoders.py")
MOST_OF_ONE_RUN = 7_500  # images; beyond that more and more that are drawn have been seen
_KNOWN = 700  # steps of a storm; a writer that comes so far ends, so the lives of a store are few enough


@dataclass
class Outcome:
    """How many were tried, how many of them failed, and what else there is to tell."""

    tried: int = 0
    failed: int = 0
    also: Counter[str] = field(default_factory=Counter)
    longest: float = 0.0  # wait, in ms

    def add(self, mode: ModeResult) -> None:
        """Take in what a mode of explore() has done."""
        self.tried += mode.unique or mode.cases
        self.failed += mode.failed
        self.also += Counter({"torn": mode.torn} | {f"torn, {end}": many for end, many in mode.torn_ends.items()})
        if not mode.mode.startswith("power cut"):
            self.also += Counter(mode.reached)


def mode_of(report: Report) -> ModeResult:
    """The one mode of a report, which is printed."""
    print(report, flush=True)
    return report.modes[0]


@contextmanager
def in_memory() -> Iterator[Path]:
    """A folder in memory, where the machine has such a file system."""
    shared = os.environ.get("RAXLOG_CRASHTEST_SCRATCH", "/dev/shm")
    place = Path(tempfile.mkdtemp(prefix="raxlog-", dir=shared if os.access(shared, os.W_OK) else None))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


# -- kills, calls, images, errors ------------------------------------------------------------


def kills(rounds: int, seed: int, keep: Path) -> Outcome:
    """Two processes of two threads each, killed at random; nearly all rounds must be kills."""
    known = steps.golden(_KNOWN)
    mode = mode_of(explore(
        partial(steps.several_writers, known=known), partial(steps.check_several, known=known),
        modes=[Storm(rounds, longest=0.01, lives=16)], seed=seed, keep=keep,
    ))
    outcome = Outcome()
    outcome.add(mode)
    if not mode.failed:
        assert mode.cases == rounds
        assert mode.reached["killed"] > 0.8 * rounds
        assert mode.reached["stopped"] > 0.03 * rounds
    return outcome


CALLS: dict[str, Callable[[int], tuple[Any, Any]]] = {
    "mixed": lambda many: (partial(steps.mixed, steps=many), partial(steps.check_mixed, known=steps.golden(many))),
    "compaction": lambda many: (partial(steps.tidied, steps=many, every=4, snapshots=False),
                                partial(steps.check_tidied, known=steps.golden(many))),
    "snapshot": lambda many: (partial(steps.tidied, steps=many, every=2),
                              partial(steps.check_tidied, known=steps.golden(many))),
}


def calls(workload: str, many: int, seed: int, keep: Path, *, which: Any = "all", halves: bool = True) -> Outcome:
    """A kill before each system call, and in the middle of each larger write."""
    writes, check = CALLS[workload](many)
    mode = mode_of(explore(writes, check, modes=[KillAt.system_call(which, halves=halves)], seed=seed, keep=keep))
    assert mode.status != "not run", mode.reason
    outcome = Outcome()
    outcome.add(mode)
    return outcome


def _growing() -> tuple[Any, Any]:
    return (partial(steps.mixed, steps=120, wide=12, map_size=1 << 16),
            partial(steps.check_mixed, known=steps.golden(120, 12)))


def _swaps() -> tuple[Any, Any]:
    return compacted_workload.append_and_compact, compacted_workload.nothing_is_lost


def _log() -> tuple[Any, Any]:
    import log_workload  # noqa: PLC0415 - as above

    return log_workload.append, log_workload.check


def _queue() -> tuple[Any, Any]:
    import log_workload  # noqa: PLC0415 - as above

    return log_workload.consume, log_workload.check_consumed


CUTS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "mixed": lambda: (partial(steps.mixed, steps=400), partial(steps.check_mixed, known=steps.golden(400))),
    "growing": _growing,
    "relaxed": lambda: (partial(steps.mixed, steps=130, durability="relaxed"),
                        partial(steps.check_mixed, known=steps.golden(130), lossy=True)),
    "tidied": lambda: (partial(steps.tidied, steps=44, every=5),
                       partial(steps.check_tidied, known=steps.golden(44))),
    "swaps": _swaps,
    "log": _log,
    "queue": _queue,
}


def images(workload: str, many: int, seed: int, keep: Path, workers: int | None = None) -> Outcome:
    """So many different images; a run that has fewer is made again with another seed."""
    writes, check = CUTS[workload]()
    outcome = Outcome()
    while outcome.tried < many and not outcome.failed:
        left = many - outcome.tried
        wish = left + left // 4  # hardly any run gives all that were wished for
        cuts = PowerCut(min(wish, MOST_OF_ONE_RUN), ignore=IGNORED)
        mode = mode_of(explore(writes, check, modes=[cuts], seed=seed, keep=keep, workers=workers))
        assert mode.status != "not run", mode.reason
        outcome.add(mode)
        outcome.also["runs"] += 1
        seed += 1
    return outcome


def matrix(most: int | None) -> dict[str, Errors]:
    """Every kind of error, by its name; at most so many N of each."""
    kinds = [
        Errors("ENOSPC", calls=("write",), most=most, allowed=CLEAR),
        Errors("ENOSPC", calls=("write",), sticky=True, most=most, allowed=CLEAR),
        Errors("EIO", calls=("write",), most=most, allowed=CLEAR),
        Errors("EIO", calls=("write",), sticky=True, most=most, allowed=CLEAR),
        Errors("EIO", calls=("write",), late=True, most=most, allowed=CLEAR),
        Errors("EIO", calls=("sync",), most=most, allowed=CLEAR),
        Errors("EIO", calls=("sync",), sticky=True, most=most, allowed=CLEAR),
        Errors("EIO", calls=("sync",), late=True, most=most, allowed=CLEAR),
        Errors("ENOSPC", calls=("create", "size", "name", "rename"), most=most, allowed=CLEAR),
        Errors("EDQUOT", calls=("write", "create"), most=most, allowed=CLEAR),
        Errors("short", most=most, allowed=CLEAR),
        Errors("short", sticky=True, most=most, allowed=CLEAR),
    ]
    return {kind.name: kind for kind in kinds}


def errors(kind: Errors, many: int, seed: int, keep: Path) -> Outcome:
    """One kind of error at each call (or most of them) of so many steps; nearly each must have fired.

    How often checkpoints write and flush has to do with the machine's pace: where fewer calls came than were counted
    before, all is run again.
    """
    known = steps.golden(many)
    outcome = Outcome()
    for _ in range(3):
        mode = mode_of(explore(partial(steps.minding, steps=many, known=known), partial(steps.check_mixed, known=known),
                               modes=[kind], seed=seed, keep=keep))
        assert mode.status != "not run", mode.reason
        outcome.add(mode)
        if mode.failed or sum(mode.reached.values()) >= 0.9 * mode.cases > 0:
            return outcome
    raise AssertionError(f"{sum(mode.reached.values())} of {mode.cases} runs came to the call that was to fail")


def full_map(seed: int, keep: Path, *, which: Any = "all") -> Outcome:
    """A store at its ceiling, killed before each call, or some."""
    mode = mode_of(explore(steps.full_map, steps.check_full_map, seed=seed, keep=keep,
                           modes=[KillAt.system_call(which, halves=False)]))
    assert mode.status != "not run", mode.reason
    assert mode.cases >= 20
    outcome = Outcome()
    outcome.add(mode)
    return outcome


STEPS = 30  # of a run that is interrupted
STRUCK = 40  # asynchronous exceptions in one run, beside the signals


COMMITS = tuple(f"raxlog.storage.{one}" for one in (
    "commit.commits", "log.transaction", "engine.environment",
    "log.log", "log.ring", "log.checkpoint",
    "engine.store_map", "folder.store_files"))
OPENINGS = tuple(f"raxlog.{one}" for one in (
    "store", "index.pubsub.leases", "index.pubsub.pubsub", "stream.entries.write_buffer", "stream.entries.session",
    "stream.streams",
    "stream.sweep", "stream.group.waiter", *(f"storage.{one}" for one in (
        "engine.environment", "engine.store_map", "folder.directory",
        "disk", "folder.store_files", "tree.tree", "tree.lmdb_file",
        "locks.ofd_lock",
        "locks.shared_file", "locks.writer_lock", "engine.compaction", "engine.registry", "log.log",
        "log.ring", "log.checkpoint",
"wake.wake_file", "wake.watcher"))))


def schedules(name: str, many: int, seed: int, keep: Path) -> Outcome:
    """So many orders of the steps of one scenario."""
    scenario = SCENARIOS[name]
    mode = mode_of(explore(scenario.workloads, scenario.check, modes=[Schedules(many, prepare=scenario.prepare)],
                           seed=seed, keep=keep, timeout=120))
    assert mode.status != "not run", mode.reason
    outcome = Outcome()
    outcome.add(mode)
    return outcome


def interrupts(workload: str, how: str, most: int, seed: int, keep: Path, *,
               spoil: Callable[[], None] | None = None, **options: Any) -> Outcome:
    """So many exceptions in living processes, ten a run.

    "…, plain": of kernels, and nothing is forked; "…, struck": asynchronous ones into other threads too;
    "…, commits": only in the code that commits; "opened": in the code that opens and closes;
    "…, compacting": that too, now and then.
    ``spoil`` plants a bug in the process first.
    """
    known = steps.golden(STEPS)
    if "commits" in workload:
        options["inside"] = COMMITS
    if "opened" in workload:
        options["inside"] = OPENINGS
    with tempfile.NamedTemporaryFile("w+") as count, pure("plain" in workload):
        check = partial(interrupted_steps.check_crowd, known=known, count=Path(count.name))
        struck = STRUCK if "struck" in workload else 0
        writes, check = {
            "alone": (partial(interrupted_steps.alone, known=known, spoil=spoil, compacts="compacting" in workload,
                              forks="plain" not in workload),
                      partial(interrupted_steps.check_alone, known=known)),
            "crowd": (partial(interrupted_steps.crowd, known=known, struck=struck, spoil=spoil), check),
            "buffered": (interrupted_steps.buffered, interrupted_steps.check_buffered),
            "opened": (partial(interrupted_steps.opened, known=known),
                       partial(interrupted_steps.check_opened, known=known)),
        }[workload.partition(",")[0]]
        modes = [Interrupts(how, most, 10, **options)]
        mode = mode_of(explore(writes, check, modes=modes, seed=seed, keep=keep, timeout=20))
        outcome = Outcome()
        outcome.add(mode)
        outcome.also["asynchronous"] = sum(map(int, count.read().split()))
        outcome.tried += outcome.also["asynchronous"]
    return outcome


@contextmanager
def pure(wanted: bool) -> Iterator[None]:
    """Plain kernels for what is started meanwhile, where that is wanted."""
    with patch.dict(os.environ, {"RAXLOG_PURE": "1"} if wanted else {}):
        yield


# -- flips -----------------------------------------------------------------------------------

WHERE: dict[str, Callable[[bytes, int, int], Sequence[flipped_stores.Flip]]] = {
    "uniform": flipped_stores.uniform, "heads": flipped_stores.in_heads, "pointers": flipped_stores.in_pointers,
    "metas": flipped_stores.in_metas,
}  # fmt: skip


@contextmanager
def flipper(logged: bool = False) -> Iterator[Flipper]:
    """A sound store whose bits are flipped; ``logged``: one whose log holds much that data.mdb does not."""
    with in_memory() as place:
        flipped_stores.build(place / "sound.rax", flipped_stores.FEWER, logged)
        cut_off_reserve(place / "sound.rax" / "000001" / "data.mdb")  # there is nothing to be damaged in it
        yield Flipper(place / "sound.rax", place, seed=3, share=flipped_stores.FEWER)


def flips(flipper: Flipper, where: str, many: int, seed: int) -> Outcome:
    """Flip so many bits; none may be read as data, and check must find all that readers miss."""
    outcomes = flipper.run(WHERE[where](flipper.data, many, seed))
    print(f"{where}, seed {seed}: {flipped_stores.as_json(outcomes)}", flush=True)
    wrong = [outcome for outcome in outcomes if outcome.wrong]
    unnoticed = [outcome for outcome in outcomes if (outcome.missed or outcome.killed) and not outcome.problems]
    for what, found in (("silently wrong or short", wrong), ("missed by readers and by check", unnoticed)):
        for outcome in found[:5]:
            print(f"{what}: {outcome}", flush=True)
    assert any(outcome.verdicts[NAMED] for outcome in outcomes), "no flip did anything: the test is void"
    return Outcome(len(outcomes), len(wrong) + len(unnoticed),
                   Counter(flipped_stores.kind_of(outcome) for outcome in outcomes))


# -- contention, a long reader ---------------------------------------------------------------


def contention(seconds: float, durability: str, seed: int, folder: Path) -> Outcome:
    """Three writers, two readers, a kill every 50 ms."""
    crowd = Crowd(folder / "s.rax", seed, durability=durability)
    crowd.run(seconds, 0.05)
    wrong = crowd.lost_or_half()
    assert wrong == []
    assert crowd.kills > 2 * seconds
    assert min(crowd.acked[i] for i in range(3)) > 10, "a writer was starved"
    outcome = Outcome(sum(crowd.acked[i] for i in range(3)), len(wrong), Counter(
        kills=crowd.kills, rounds_of_reading=crowd.reads[0] + crowd.reads[1]
    ), max(crowd.waited[i] for i in range(3)) / 1e3)
    print(f"{durability}: {outcome.tried:,} appends, {crowd.kills} kills, longest wait {outcome.longest:.0f} ms, "
          f"{outcome.also['rounds_of_reading']:,} rounds of reading", flush=True)
    return outcome


_HELD = 1.0
_KEPT = 2000


def churn(store: raxlog.Store) -> None:
    """Append a hundred, and let as many go."""
    store.stream("s").extend([{"x": bytes([n]) * 150} for n in range(100)], maxlen=_KEPT)


def size(store: raxlog.Store) -> int:
    """The bytes of the store's data files."""
    return sum(file.stat().st_size for file in store.path.rglob("data.mdb"))


def hold(path: Path, seconds: float) -> Callable[[Callable[[Any], None]], None]:
    """A process that reads in transactions of so many seconds, again and again."""

    def work(say: Callable[[Any], None]) -> None:
        with raxlog.open(path, readonly=True, encoding=None) as store:
            while True:
                with store._env.read() as txn:
                    say(txn.id())
                    time.sleep(seconds)

    return work


def reader(seconds: float, folder: Path) -> Outcome:
    """Churn beside long reads: the file finds its size, and the reader's lag is told."""
    path = folder / "s.rax"
    with raxlog.open(path, durability="relaxed", encoding=None) as store:
        for _ in range(50):
            churn(store)
        with Child(hold(path, _HELD)) as child:
            child.heard()
            for _ in range(300):
                churn(store)
            time.sleep(_HELD)
            sizes, lags, commits = [], [], 0
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                churn(store)
                commits += 1
                time.sleep(0.002)  # so that commits in the time of a read stay about the same
                sizes.append(size(store))
                lags.append(max([one.lag for one in store.readers() if one.pid == child.pid], default=0))
            assert any(one.pid == child.pid for one in store.readers())
        half = len(sizes) // 2
        first, second = max(sizes[:half]), max(sizes[half:])
        print(f"{commits:,} commits, file {first:,} then {second:,} bytes, greatest lag {max(lags):,} commits",
              flush=True)
        assert max(lags) > 10
        assert second <= first * 1.5
        assert [one for one in store.readers() if one.lag > 0] == []  # the killed one has been cleared
        grown = size(store)
        assert store.compact().bytes_after < grown
    return Outcome(commits, 0, Counter(first_half_bytes=first, second_half_bytes=second, greatest_lag=max(lags)))


# -- fuzzing ---------------------------------------------------------------------------------


def fuzzer(*arguments: str, pure: bool = False, program: Path = FUZZER) -> subprocess.CompletedProcess[str]:
    """The program of fuzz_decoders.py (or a variant), on the plain source or the compiled kernels."""
    environment = {**os.environ, "RAXLOG_PURE": "1" if pure else "0",
                   "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run([sys.executable, str(program), *arguments], capture_output=True, text=True, check=False,
                          env=environment)


def write_seeds(folder: Path) -> Path:
    """Real nodes, blocks, records, IDs and manifests."""
    folder.mkdir(exist_ok=True)
    made = fuzzer("seeds", str(folder))
    assert made.returncode == 0, made.stderr
    assert len(os.listdir(folder)) > 40
    return folder


def fuzz(seconds: float, seed: int, corpus: Path, keep: Path) -> Outcome:
    """Guided by coverage of the plain source; then all that was worth keeping on the compiled kernels."""
    keep.mkdir(parents=True, exist_ok=True)
    done = fuzzer("fuzz", str(corpus), f"-max_total_time={seconds:.0f}", f"-seed={seed}", "-rss_limit_mb=4096",
                  "-timeout=10", "-max_len=8192", f"-artifact_prefix={keep}/", pure=True)
    print(done.stderr[-3000:], flush=True)
    assert done.returncode == 0, f"see above; the input is kept in the file that is named there\n{done.stderr[-2000:]}"
    ran = re.search(r"Done (\d+) runs", done.stderr)
    assert ran is not None, "the fuzzer did not come to its end"
    again = fuzzer("run", str(corpus))
    assert again.returncode == 0, again.stderr[-3000:]
    return Outcome(int(ran[1]), 0, Counter(corpus=len(os.listdir(corpus))))


def mutations(many: int, seed: int, corpus: Path, folder: Path) -> Outcome:
    """Mutations of the corpus on the compiled kernels, without guidance."""
    rng = random.Random(seed)
    originals = [path.read_bytes() for path in sorted(corpus.iterdir())]
    folder.mkdir()
    for number in range(many):
        data = bytearray(rng.choice(originals))
        for _ in range(rng.choice((1, 1, 2, 4, 16))):
            how = rng.randrange(4) if len(data) > 1 else 3
            at = rng.randrange(1, len(data)) if len(data) > 1 else 1
            if how == 0:
                data[at] ^= 1 << rng.randrange(8)
            elif how == 1:
                data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xF0, 0xF4, 0xFF))
            elif how == 2:
                del data[at : at + rng.randrange(1, 9)]
            else:
                data[at:at] = rng.choice(originals)[1:][: rng.randrange(1, 33)]
        (folder / str(number)).write_bytes(data)
    done = fuzzer("run", str(folder))
    print(done.stdout.strip(), flush=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return Outcome(many)
