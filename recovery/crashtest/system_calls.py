"""The N-th system call, for every N: the workload is killed before each call that changes the folder.

    open(O_CREAT)  write  write  fdatasync  write  rename  fsync        one run that counts: 7
    ✂1             ✂2     ✂3     ✂4         ✂5     ✂6      ✂7           seven runs, killed there
                   ✂2½    ✂3½               ✂5½                         and a write of several sectors by half
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...storage.errors import InvalidArgument
from . import recorder
from .report import ModeResult
from .stage import Stage


@dataclass(frozen=True)
class SystemCalls:
    """KillAt.system_call: see there."""

    which: str | tuple[int, ...] = "all"
    calls: tuple[str, ...] = ()
    halves: bool = True
    name: ClassVar[str] = "kill at system calls"
    needs_recorder: ClassVar[bool] = True  # it counts the calls

    def __post_init__(self) -> None:
        recorder.classes_of(self.calls)
        if self.which != "all" and not all(isinstance(one, int) and one > 0 for one in self.which):
            raise InvalidArgument(f"the numbers of system calls begin with 1; these are {self.which!r}")

    def run(self, stage: Stage, result: ModeResult) -> None:
        """Count the calls of an undisturbed run, then kill before each."""
        classes = recorder.classes_of(self.calls)
        run = stage.undisturbed(result, classes=classes)
        if run is None:
            return
        numbers = range(1, run.calls + 1) if self.which == "all" else [int(one) for one in self.which]
        missed = 0
        writes = []
        for number in stage.each(result, numbers):
            fell_on = self._kill(stage, result, number, recorder.KILL, classes)
            missed += not fell_on
            if fell_on == "write" and self.halves:
                writes.append(number)
        for number in stage.each(result, writes):
            missed += not self._kill(stage, result, number, recorder.KILL_HALF, classes)
        if missed:
            result.notes.append(f"{missed} runs ended before the call at which they should have been killed")
        if missed == result.planned:
            stage.fail(result, "every call", "never reached: no run was killed")

    def _kill(self, stage: Stage, result: ModeResult, number: int, action: int, classes: int) -> str:
        """One run, killed there; the class of the call it fell on, or nothing."""
        folder = stage.fresh()
        run = stage.run(folder, target=number, action=action, classes=classes)
        result.cases += 1
        where = f"{'half of' if action == recorder.KILL_HALF else 'before'} call {number}"
        if run.fired:
            where += f" ({run.fired_at})"
            result.reached[run.fired_at] = result.reached.get(run.fired_at, 0) + 1
        wrong = ""
        if run.status is None:
            wrong = "stuck: the workload did not end in time"
        elif not run.fired and run.status != 0:
            wrong = f"the workload {run.ending()} before it was killed"
        stage.settle(result, where, folder, run, wrong)
        return run.fired_at if run.fired else ""
