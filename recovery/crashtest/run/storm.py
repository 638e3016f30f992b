"""Storms: the workload is killed at a random moment, again and again.

    one life   start ──────┬───────────── ✂     after a random time, all of it, or first one process
                           └ SIGSTOP … SIGCONT  now and then one process is stopped for a while
    check, and the same folder again for its next life, until it has had ``lives``

With several lives the workload must go on from what it finds, as a restarted program does; the
check gets the acks of all lives of a folder.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from ....storage import clocks
from ....storage.errors import InvalidArgument
from .child import Runner
from .stage import Stage
from .tally import Tally

_ENOUGH_TO_TELL = 10  # rounds without a kill: the storm has tested nothing


@dataclass(frozen=True)
class Storm:
    """Kill the workload at random moments, ``rounds`` times.

    ``longest``  the kill falls within this many seconds after the first ack (or the start)
    ``lives``    runs in one folder before a new one is used
    ``stops``    the share of rounds in which one process is also stopped (SIGSTOP) for up to 50 ms
    ``one_first``  the share of rounds in which one of several processes dies some time before the others
    A workload that ends before the kill is checked too; later kills then fall within the time it took.
    """

    rounds: int = 200
    longest: float = 0.03
    lives: int = 1
    stops: float = 0.1
    one_first: float = 0.3
    name = "storm"
    needs_recorder = False  # a signal is all it takes

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.lives < 1 or self.longest < 0:
            raise InvalidArgument("a storm has at least one round and one life, and no negative time")

    def run(self, stage: Stage, result: Tally) -> None:
        rng = random.Random(f"{stage.job.seed}.storm")
        folder = stage.fresh()
        acks = stage.scratch / "acks-storm"
        life = ended = stopped = 0
        longest = self.longest
        for number in stage.each(result, range(1, self.rounds + 1)):
            acked_bytes = acks.stat().st_size if acks.exists() else 0
            runner = stage.start(folder, watched=False, acks=acks)
            stop, killed, took = self._disturb(runner, rng, acks, acked_bytes, longest, stage.job.timeout)
            stopped += stop
            by_itself = runner.wait(0) and not killed
            if by_itself:
                longest = min(longest, took * 0.8)
            run = runner.end()
            ended += by_itself
            result.cases += 1
            if by_itself and run.status != 0:
                found: str | None = f"the workload {run.ending()} before it was killed\n{run.error}".strip()
            else:
                found = stage.check(folder, run.acks)
            life += 1
            if found is not None:
                stage.fail(result, f"round {number}, life {life}", found, folder, run.acks)
            if found is not None or life >= self.lives:
                shutil.rmtree(folder)
                acks.unlink(missing_ok=True)
                folder, life = stage.fresh(), 0
        result.reached = {"killed": result.cases - ended, "stopped": stopped}
        if ended:
            result.reached["ended before the kill"] = ended
        if ended == result.cases >= _ENOUGH_TO_TELL:
            stage.fail(result, "every round", "never reached: the workload ends too soon")

    def _disturb(self, runner: Runner, rng: random.Random, acks: Path, acked_bytes: int, longest: float,
                 timeout: float) -> tuple[bool, bool, float]:
        """Wait a random time, stop one process, kill one; end() kills the rest.

        Returns whether it stopped one, whether it killed the first one, and the time the workload had.
        """
        if rng.random() < 0.8:  # else it may die while it starts
            deadline = clocks.elapsed() + timeout
            while clocks.elapsed() < deadline and not runner.wait(0.0005):
                if acks.exists() and acks.stat().st_size > acked_bytes:
                    break
        began = clocks.elapsed()
        seconds = rng.random() * longest
        stops, alone = rng.random() < self.stops, rng.random() < self.one_first
        before = seconds * rng.random() if stops or alone else seconds
        if runner.wait(before) or not (stops or alone):
            return False, False, clocks.elapsed() - began
        victim = rng.choice(runner.processes())
        with contextlib.suppress(ProcessLookupError):
            if stops:
                os.kill(victim, signal.SIGSTOP)
                clocks.sleep(rng.random() * 0.05)
                os.kill(victim, signal.SIGCONT)
            if alone:
                os.kill(victim, signal.SIGKILL)
        clocks.sleep(max(0.0, seconds - before))  # the other processes go on
        return stops, alone and victim == runner.pid, clocks.elapsed() - began
