"""Schedules: several processes on one folder, and which of them has its turn is chosen, again and again.

    process 0   ──── write ── fcntl ·············· pwrite ──       · has no turn
    process 1   ···················· open ── write ·········
                                   ↑ a switch: process 0 could have gone on

A run is named by its switches, so it can be repeated. First N runs are drawn by random priorities with some
preemptions (PCT), then each single switch is tried at each step, then two of them, as far as N goes. What fails is
repeated with fewer and fewer switches; the least that still fails is shown, a column a process.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, groupby
from pathlib import Path
from typing import Any, NamedTuple

from ....storage.errors import InvalidArgument
from ..record.turns import DEADLOCK, MOST_ACTORS, MOST_SWITCHES, TOO_LONG, Step, Switch, Turns, follow
from .stage import Stage
from .tally import Tally

_MOST_TIMES = 30  # as many steps as the run without a switch took, and it is stuck; that one
_MOST_STEPS = 200_000
_SHOWN = 3  # steps of a stretch, at its beginning and at its end
_COLUMN = 34

Switches = tuple[Switch, ...]


@dataclass(frozen=True)
class Schedules:
    """Run the workloads side by side, ``schedules`` times, each time with another order of their steps.

    ``preemptions``  the most switches of a run by random priorities: 1, 2 … up to this many
    ``prepare``      a function of a folder, run once: each run begins with a copy of what it has made there
    ``switches``     repeat this one run instead: (0, 17, 1) is "before process 0 has its 17th turn, process 1"

    A step is a call that changes or reads a file of the folder, a lock, a wait, a sleep or a crash_point(). Time is
    simulated: a sleep takes none. It ends with the first run that fails. Needs a C compiler, and Linux.
    """

    schedules: int = 1000
    preemptions: int = 3
    prepare: Callable[[Path], object] | None = None
    switches: Switches | None = None
    name = "schedules"
    needs_recorder = True

    def __post_init__(self) -> None:
        if self.schedules < 1 or not 1 <= self.preemptions <= MOST_SWITCHES:
            raise InvalidArgument(f"there is at least one schedule, with 1 to {MOST_SWITCHES} preemptions")
        if self.switches is not None and len(self.switches) > MOST_SWITCHES:
            raise InvalidArgument(f"a schedule has up to {MOST_SWITCHES} switches, this one has {len(self.switches)}")

    def run(self, stage: Stage, result: Tally) -> None:
        """Run all schedules, or up to the first that fails."""
        workloads = stage.job.workloads if len(stage.job.workloads) > 1 else stage.job.workloads * 2
        explorer = _Explorer(stage, result, workloads, _prepared(stage, self.prepare))
        cases = [("the schedule", {"switches": self.switches})] if self.switches is not None else \
            self._orders(stage.job.seed, len(workloads), explorer.usual)
        result.planned = 1 if self.switches is not None else self.schedules
        for where, orders in cases:
            if stage.is_over(result):
                break
            if not explorer.settle(where, **orders):
                result.reason = "ended with the first that failed"
                break
        result.unique = len(explorer.seen)
        result.reached = {"steps": explorer.all_steps}
        if explorer.unseen:
            result.notes.append(f"{explorer.unseen} times a process was in a call that is not seen here; the others "
                                "went on after five seconds")

    def _orders(self, seed: int, processes: int, usual: Sequence[Step]) -> Iterator[tuple[str, dict[str, Any]]]:
        """The orders of all runs: the first, which fills in ``usual``; by priorities; with one switch; with two."""
        yield "no switch", {"switches": ()}
        rng = random.Random(f"{seed}.schedules")
        left = self.schedules - 1
        last = {step.actor: number for number, step in enumerate(usual)}
        singles = [(step.actor, step.turns, to) for number, step in enumerate(usual)
                   for to in range(processes) if to != step.actor and last.get(to, 0) > number]
        rng.shuffle(singles)
        by_switches: list[Switches] = [(one,) for one in singles[: left // 3]]
        while singles and len(by_switches) < 2 * left // 3:
            first = rng.choice(singles)
            back = (first[2], rng.randrange(1, usual[last[first[2]]].turns + 2), rng.randrange(processes))
            by_switches.append((first, back))
        for number in range(left - len(by_switches)):
            priorities = rng.sample(range(1, MOST_ACTORS + 1), MOST_ACTORS)
            changes = [(0, rng.randrange(1, len(usual) + 1), low) for low in range(number % self.preemptions + 1)]
            yield f"schedule {number + 1}", {"switches": changes, "priorities": priorities}
        for number, switches in enumerate(by_switches, left - len(by_switches) + 1):
            yield f"schedule {number}", {"switches": switches}


def _prepared(stage: Stage, prepare: Callable[[Path], object] | None) -> Path | None:
    """The folder that each run begins with a copy of."""
    if prepare is None:
        return None
    runner = stage.start(stage.fresh(), watched=False, workload=partial(_without_ack, prepare))
    runner.wait(stage.job.timeout)
    run = runner.end()
    if run.status != 0:
        raise RuntimeError(f"prepare() {run.ending()}\n{run.error}")
    return Path(run.folder)


def _without_ack(prepare: Callable[[Path], object], folder: Path, ack: Callable[[Any], None]) -> None:
    prepare(folder)


class _Run(NamedTuple):
    """What one run has left."""

    found: str | None  # what was wrong
    steps: list[Step]
    folder: Path
    acks: list[Any]


class _Explorer:
    """Runs schedules one by one, and finds the least that fails."""

    def __init__(self, stage: Stage, result: Tally, workloads: Sequence[Callable[..., object]],
                 prepared: Path | None) -> None:
        self.stage = stage
        self.result = result
        self.workloads = workloads
        self.prepared = prepared
        self.usual: list[Step] = []  # of the run without a switch
        self.all_steps: int = 0
        self.unseen: int = 0
        self.seen: set[int] = set()  # hashes of the orders in which the actors had their turns

    def settle(self, where: str, switches: Sequence[Switch], priorities: Sequence[int] = ()) -> bool:
        """Run one; whether it passed. What fails is shrunk and reported."""
        run = self.run(switches, priorities)
        self.result.cases += 1
        self.all_steps += len(run.steps)
        self.seen.add(hash(tuple(step.actor for step in run.steps)))
        if not self.usual:
            self.usual.extend(run.steps)
        if run.found is not None:
            least, run = self._least(run)
            names = [f"process {number}, {_name(one)}" for number, one in enumerate(self.workloads)]
            self.stage.fail(self.result, where, run.found or "", run.folder, run.acks,
                            shrunk=picture(names, run.steps, least))
            if kept := self.result.failures[-1].kept:
                (Path(kept) / "schedule.json").write_text(json.dumps({"switches": least}) + "\n", encoding="utf-8")
        shutil.rmtree(run.folder)
        return run.found is None

    def _least(self, failed: _Run) -> tuple[Switches, _Run]:
        """The switches of a run without those that it fails without, too; and the run that they make."""
        switches: Switches = tuple((step.usual, step.turns, step.actor) for step in failed.steps
                                   if step.actor != step.usual)[:MOST_SWITCHES]
        again = self._again(switches, failed)
        if again is failed:
            self.result.notes.append("repeated, it passed: something that is not seen has a part in it")
            return switches, failed
        failed, shorter = again, True
        while shorter and not self.stage.out_of_time():
            shorter = False
            for left_out in [*combinations(range(len(switches)), 1), *combinations(range(min(len(switches), 8)), 2)]:
                fewer = tuple(one for at, one in enumerate(switches) if at not in left_out)
                again = self._again(fewer, failed)
                if again is not failed:
                    failed, switches, shorter = again, fewer, True
                    break
        return switches, failed

    def _again(self, switches: Switches, failed: _Run) -> _Run:
        """The run of these switches if it fails, else the one that has."""
        run = self.run(switches)
        run, gone = (failed, run) if run.found is None else (run, failed)
        shutil.rmtree(gone.folder)
        return run

    def run(self, switches: Sequence[Switch], priorities: Sequence[int] = ()) -> _Run:
        """One run."""
        stage = self.stage
        assert stage.recorder is not None
        most = _MOST_TIMES * len(self.usual) or _MOST_STEPS
        page = Turns(stage.scratch / "turns", stage.recorder, len(self.workloads), switches=switches,
                     priorities=priorities, most_steps=most)
        folder = stage.fresh()
        if self.prepared is not None:
            shutil.copytree(self.prepared, folder, symlinks=True, dirs_exist_ok=True)
        runner = stage.start(folder, workload=partial(follow, self.workloads, str(page.path)))
        in_time = runner.wait(stage.job.timeout)
        run = runner.end()
        verdict, _, unseen = page.found()
        steps = page.steps()
        page.close()
        self.unseen += unseen
        if verdict == DEADLOCK:
            found: str | None = "deadlock: each process waits for another"
        elif verdict == TOO_LONG:
            found = f"stuck: no end within {most:,} steps; the run without a switch took {len(self.usual):,}"
        elif not in_time:
            found = f"stuck: no end within {stage.job.timeout:g} s"
        elif run.status != 0:
            found = f"a workload {run.ending()}\n{run.error}".strip()
        else:
            found = stage.check(folder, run.acks)
        return _Run(found, steps, folder, run.acks)


def _name(function: Any) -> str:
    return str(getattr(getattr(function, "func", function), "__name__", "workload"))


def picture(names: Sequence[str], steps: Sequence[Step], switches: Sequence[Switch]) -> str:
    """A schedule as text: who did what, a column a process; of a long stretch its beginning and its end."""
    lines = [f"{len(switches)} switch{'es' * (len(switches) != 1)} in {len(steps)} steps: {json.dumps(switches)}", "",
             "      " + "".join(f"{name:<{_COLUMN}}" for name in names).rstrip()]
    stretches = [list(stretch) for _, stretch in groupby(range(len(steps)), lambda number: steps[number].actor)]
    for stretch in stretches:
        first = steps[stretch[0]]
        column = " " * _COLUMN * first.process
        thread = f"[thread {first.actor}] " if first.actor >= len(names) else ""
        hidden = stretch[_SHOWN:-_SHOWN]
        for number in stretch:
            step = steps[number]
            if number not in hidden or len(hidden) == 1:
                mark = "→" if step.actor != step.usual else " "
                lines.append(f"{number:>5} {column}{mark} {thread}{step.what}")
            elif number == hidden[0]:
                lines.append(f"      {column}  … {len(hidden)} steps")
    return "\n".join(line.rstrip() for line in lines)
