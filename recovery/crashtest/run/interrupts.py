"""Interrupts: an exception is raised in the running workload, and its process goes on.

    traced    check ─ encode ─ push ✂ count ─ commit     before any bytecode of the plain kernels, in any thread
    signals   check ─ encode ─ push ─ count ─ commit ✂   from a signal handler, in the main thread

So do an alarm, a task's time limit and Ctrl-C. The workload catches the exception and goes on; if it does not, it
is called again in the same process. The check runs while that process still lives, with its locks and memory.
"""

from __future__ import annotations

import dis
import faulthandler
import functools
import os
import random
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from ....storage import clocks
from ....storage.errors import InvalidArgument, RaxlogError
from .child import Ack, read_acks
from .stage import Stage
from .tally import Tally

_OUTSIDE = ("raxlog.recovery.crashtest", "threading", "contextlib")  # never interrupted, and no part of the workload
_SOON, _APART = 20e-6, 500e-6  # seconds to the next signal after a miss; after a hit


class Interrupted:
    """A base class of every exception that Interrupts raises."""


def interrupted(error: BaseException | None) -> bool:
    """Whether Interrupts has raised this exception or, if it is an error of raxlog, has caused it.

    An interrupted Thread.start() raises KeyError or RuntimeError instead.
    """
    while isinstance(error, RaxlogError | KeyError | RuntimeError):
        error = error.__cause__ or error.__context__
    return isinstance(error, Interrupted)


@dataclass(frozen=True)
class Interrupts:
    """Raise an exception inside the workload, between its first ack and its end.

    ``how``     "traced": before the N-th bytecode, with plain kernels (RAXLOG_PURE=1) for all modes of this
                explore(). "signals": N microseconds after the first ack, by SIGALRM
    ``most``    at most this many, at random N; None: at each N
    ``each``    this many in one run; when traced, each after another ack
    ``raises``  the classes, in turn
    ``inside``  the packages whose code is interrupted, once the workload has called it
    ``at``      exactly these N, in one run, to repeat a failing case
    """

    how: str = "traced"
    most: int | None = 200
    each: int = 1
    raises: tuple[type[BaseException], ...] = (TimeoutError, Exception, BaseException, KeyboardInterrupt)
    inside: tuple[str, ...] = ("raxlog",)
    at: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.how not in ("traced", "signals") or self.each < 1 or not self.raises or not self.inside:
            raise InvalidArgument(f"interrupts: 'traced' or 'signals', one a run, one class, one package; not {self}")

    needs_recorder = False

    @property
    def name(self) -> str:
        return f"interrupts({self.how})"

    def run(self, stage: Stage, result: Tally) -> None:
        """Measure an undisturbed run, then raise at moments drawn from it."""
        if not stage.undisturbed(result, watched=False, workload=functools.partial(self._perform, stage, (), False)):
            return
        every = range(1, int((stage.scratch / "ended").read_text()) + 1)
        drawn = random.Random(f"{stage.job.seed}.{self.name}").sample(every, min(len(every), self.most or len(every)))
        runs = [self.at] if self.at else [drawn[n : n + self.each] for n in range(0, len(drawn), self.each)]
        result.planned = sum(map(len, runs))
        for moments in runs:
            if stage.is_over(result):
                return
            raised = self._interrupt(stage, result, tuple(sorted(moments)))
            result.planned -= max(0, len(moments) - raised)  # the run has ended before
        if not result.cases and not result.failed:
            stage.fail(result, "every run", f"never reached: {self.inside}")

    def _interrupt(self, stage: Stage, result: Tally, moments: tuple[int, ...]) -> int:
        """One run, and the check while it lives. Returns how many exceptions were raised."""
        folder, acks = stage.fresh(), stage.scratch / "acks-interrupts"
        ended, struck, stacks = (stage.scratch / name for name in ("ended", "struck", "stacks"))
        for path in (acks, ended):
            path.unlink(missing_ok=True)
        struck.write_text("")
        workload = functools.partial(self._perform, stage, moments, True)
        runner = stage.start(folder, watched=False, acks=acks, workload=workload)
        deadline = clocks.elapsed() + stage.job.timeout
        while not (over := ended.exists()) and not runner.wait(0.001) and clocks.elapsed() < deadline:
            pass
        found = stage.check(folder, read_acks(acks)) if over else None
        run = runner.end()
        if not over:
            stuck = run.status is None
            found = f"{'stuck: ' * stuck}the workload {run.ending()}\n{stacks.read_text() if stuck else run.error}"
        lines = struck.read_text().splitlines()
        result.cases += len(lines)
        result.reached = dict(Counter(result.reached) + Counter(line.split(" in ")[1] for line in lines))
        where = "; ".join([*lines, f"again: Interrupts({self.how!r}, at={moments})"])
        if found is not None:
            stage.fail(result, where, found, folder, run.acks)
        shutil.rmtree(folder)
        return len(lines)

    def _perform(self, stage: Stage, moments: tuple[int, ...], stays: bool, folder: Any, ack: Ack) -> None:
        """Run the workload in its process: called again if an interrupt ended it, then kept alive."""
        with (stage.scratch / "stacks").open("w") as stacks, (stage.scratch / "struck").open("ab", 0) as struck:
            faulthandler.dump_traceback_later(stage.job.timeout * 0.9, file=stacks)
            striker = _Striker(self, moments, struck.fileno(), ack)
            ends = False
            while not ends:
                try:
                    stage.job.workload(folder, striker.ack)
                    ends = True
                except BaseException as error:
                    if not interrupted(error):
                        raise
            (stage.scratch / "ended.new").write_text(str(striker.end()))
            os.rename(stage.scratch / "ended.new", stage.scratch / "ended")
            while stays:
                signal.pause()


class _Striker:
    """Raises at each moment of one run."""

    def __init__(self, mode: Interrupts, moments: tuple[int, ...], log: int, ack: Ack) -> None:
        self._signals, self._inside = mode.how == "signals", tuple(f"{name}." for name in mode.inside)
        self._kinds = [type(kind.__name__, (kind, Interrupted), {}) for kind in mode.raises]
        self._log, self._ack, self._left = log, ack, list(reversed(moments))
        self._began, self._passed = 0.0, 0  # the time; bytecodes since
        # Kept: CPython has been seen to call another object in the place of a tracing function that it alone held.
        self._entered, self._stepped = self._enter, self._step
        sys.unraisablehook = lambda found: None  # a fork's hooks and destructors let nothing out
        signal.signal(signal.SIGALRM, self._alarm)

    def ack(self, what: Any = None) -> None:
        """Ack a value and begin to raise, or begin again: an exception ends the tracing."""
        self._ack(what)
        self._began = self._began or clocks.elapsed()
        if self._signals:
            self._wait()
        else:
            threading.settrace(self._entered)
            sys.settrace(self._entered)

    def end(self) -> int:
        """Stop raising. Returns the bytecodes or microseconds so far."""
        self._left = []
        sys.settrace(None)
        signal.setitimer(signal.ITIMER_REAL, 0)
        return self._passed or int((clocks.elapsed() - self._began) * 1e6)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        if not self._is_hit(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._stepped

    def _step(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        if event == "opcode":
            self._passed = passed = self._passed + 1
            remaining = self._left
            if remaining and passed >= remaining[-1] and frame.f_lasti not in leaving(frame.f_code):
                self._strike(frame)
        return self._stepped

    def _wait(self, least: float = _SOON) -> None:
        if self._left:
            signal.setitimer(signal.ITIMER_REAL, max(least, self._began + self._left[-1] / 1e6 - clocks.elapsed()))

    def _alarm(self, number: int, frame: FrameType | None) -> None:
        remaining = len(self._left)
        try:
            self._strike(frame)
        finally:
            self._wait(_SOON if len(self._left) == remaining else _APART)

    def _strike(self, frame: FrameType | None) -> None:
        """Log and raise an exception, if code to be interrupted runs that the workload has called."""
        at, call = frame, None
        while at is not None and (call is None or self._is_hit(at) or at.f_globals["__name__"].startswith(_OUTSIDE)):
            call = at if self._is_hit(at) else call
            at = at.f_back
        if frame is None or at is None or call is None:
            return
        try:
            moment = self._left.pop()
        except IndexError:
            return  # another thread has raised it
        kind = self._kinds[moment % len(self._kinds)]
        code = frame.f_code
        step = f"{dis.opname[code.co_code[frame.f_lasti]]} at byte {frame.f_lasti} of {code.co_qualname}"
        os.write(self._log, f"{kind.__name__} at {moment} in {call.f_code.co_qualname} in "
                            f"{code.co_filename}:{frame.f_lineno} ({step})\n".encode())
        raise kind("raised by a crash test")

    def _is_hit(self, frame: FrameType) -> bool:
        name = f"{frame.f_globals.get('__name__')}."
        return name.startswith(self._inside) and not name.startswith(_OUTSIDE)


@functools.cache
def leaving(code: CodeType) -> frozenset[int]:
    """The bytecodes before which nothing is raised: those that leave a ``with`` block.

        [SWAP]  LOAD_CONST None ×3  [PRECALL]  CALL 2      its body has ended: __exit__ is called
        PUSH_EXC_INFO  WITH_EXCEPT_START                   its body has raised: the same
        NOP                                                a `try:` in its body, which 3.11 leaves unprotected

    CPython (3.11 to 3.13) delivers signals and asynchronous exceptions at the entry of a function, after a
    call and at a backward jump, so never here. An exception here would leave any lock held forever.
    """
    found: set[int] = set()
    steps = list(dis.get_instructions(code))
    for n, step in enumerate(steps):
        first = n - (step.opname == "WITH_EXCEPT_START")
        if step.opname == "NOP":
            found.add(step.offset)
        if step.opname == "CALL" and step.arg == 2:
            nones = n - 3 - (steps[n - 1].opname == "PRECALL")
            if all(step.opname == "LOAD_CONST" and step.argval is None for step in steps[nones : nones + 3]):
                first = nones - (steps[nones - 1].opname == "SWAP")
        if first < n:
            found.update(step.offset for step in steps[first : n + 1])
    return frozenset(found)
