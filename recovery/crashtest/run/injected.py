"""Injected errors: the N-th call that changes the folder fails, or does half of its work.

    write  write  fdatasync  write      one run that counts: 4
    ENOSPC …                            a run each: the call fails, the workload goes on
    EIO    …                            once, or from there on always (sticky)
    short  …                            half of the bytes are written, as its result states
    late   …                            the call succeeds, and fails nevertheless

A case that does not fire has failed, unless its run made fewer calls: a thread may make one more or less. One of them
at least must fire. The workload may raise what ``allowed`` names; its acks must hold.
"""

from __future__ import annotations

import errno as numbers
import random
from dataclasses import dataclass

from ....storage.errors import InvalidArgument
from ..record import recorder
from .stage import Stage
from .tally import Tally


@dataclass(frozen=True)
class Errors:
    """Make calls of the operating system fail.

    ``error``    "ENOSPC", "EIO", … any name of errno; or "short": half a write, no error
    ``calls``    the classes that may fail: create, write, size, rename, unlink, name, sync; all by default
    ``sticky``   from the N-th call on, all fail instead of only that one
    ``late``     the call does its work and fails nevertheless
    ``most``     try at most this many N, drawn at random; None: all
    ``allowed``  the errors that the workload may then raise; empty: any. Dying by a signal is never allowed
    """

    error: str = "ENOSPC"
    calls: tuple[str, ...] = ("write", "sync", "size", "create")
    sticky: bool = False
    late: bool = False
    most: int | None = None
    allowed: tuple[type[BaseException], ...] = ()
    needs_recorder = True  # it is the recorder that makes calls fail

    def __post_init__(self) -> None:
        if self.error != "short" and not hasattr(numbers, self.error):
            raise InvalidArgument(f"{self.error!r} is neither 'short' nor a name of errno, like 'ENOSPC'")
        recorder.classes_of(self.calls)

    @property
    def name(self) -> str:
        calls = ("write",) if self.error == "short" else self.calls
        how = ", ".join(filter(None, ("sticky" if self.sticky else "", "late" if self.late else "", *calls)))
        return f"errors({self.error}: {how})"

    def run(self, stage: Stage, result: Tally) -> None:
        """Count the calls of an undisturbed run, then make each of them fail."""
        calls = ("write",) if self.error == "short" else self.calls
        classes = recorder.classes_of(calls)
        run = stage.undisturbed(result, classes=classes)
        if run is None:
            return
        if run.calls == 0:
            stage.fail(result, "every call", f"never reached: no {'/'.join(calls)} is called")
            return
        wanted = list(range(1, run.calls + 1))
        if self.most is not None and self.most < len(wanted):
            wanted = sorted(random.Random(f"{stage.job.seed}.{self.name}").sample(wanted, self.most))
        action = recorder.SHORT if self.error == "short" else recorder.FAIL_AFTER if self.late else recorder.FAIL
        error = numbers.EIO if self.error == "short" else int(getattr(numbers, self.error))
        missed = 0
        for number in stage.each(result, wanted):
            missed += not self._fail(stage, result, number, action, error, classes)
        if missed:
            result.notes.append(f"{missed} runs ended before the call at which the error was to be injected")
        if missed and not result.reached:
            stage.fail(result, "every call", "never reached: no error was injected")

    def _fail(self, stage: Stage, result: Tally, number: int, action: int, error: int, classes: int) -> bool:
        """Make one call of a run fail. False: the run has made fewer."""
        run = stage.run(target=number, action=action, error=error, sticky=self.sticky, classes=classes)
        result.count(run.fired_at)
        where = f"call {number} ({run.fired_at or 'not made'})"
        wrong = ""
        is_short = not run.fired and run.status == 0 and run.calls < number
        if not run.fired and not is_short:
            wrong = f"never reached: the error was not injected, the workload {run.ending()}"
        elif run.status is None:
            wrong = f"stuck: the workload {run.ending()}"
        elif run.status < 0:
            wrong = f"the workload {run.ending()}"
        elif run.status != 0 and not self._may_raise(run.error_types):
            wrong = f"the workload {run.ending()}, which it may not\n{run.error}"
        stage.settle(result, where, run, wrong)
        return not is_short

    def _may_raise(self, types: tuple[str, ...]) -> bool:
        names = {f"{error.__module__}.{error.__qualname__}" for error in self.allowed}
        return not names or bool(names & set(types))
