"""The stage: the process that runs the modes.

    explore() ── exec, with the recorder preloaded ──► stage
                                                         ├─ fork: a run of the workload
                                                         └─ fork: the check
              ◄────────── the report, pickled ───────────┘

It imports the workload once, so that a run costs a fork and not the start of an interpreter. It is
no SubprocessTask: it must have a single thread to fork, gets functions pickled, and handles Ctrl-C.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import runpy
import shutil
import signal
import sys
import tempfile
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ....storage import clocks
from ..record.recorder import Control
from .child import Check, Checker, Runner, RunResult, Workload, become_reaper
from .report import FAILED, NOT_RUN, Failure, Report
from .tally import Tally

MOST_KEPT = 10  # failures of a mode that are kept in full
_Case = TypeVar("_Case")
ENOUGH = 25  # failures after which a mode (of power cuts: a worker) stops


class Mode(Protocol):
    """A way to crash the workload. Its attributes have no annotation: pyright takes no ClassVar for a property."""

    @property
    def name(self) -> str:
        """Its name in the report."""

    @property
    def needs_recorder(self) -> bool:
        """Whether it needs the recorder."""

    def run(self, stage: Stage, result: Tally) -> None:
        """Run all cases, and fill in the result."""


@dataclass
class Job:
    """What explore() sends to the stage."""

    workloads: tuple[Workload, ...]  # several run side by side
    check: Check
    modes: list[Mode]
    seed: int
    keep: Path
    budget: float | None
    timeout: float
    workers: int
    no_recorder: str  # why it is missing, or ""

    @property
    def workload(self) -> Workload:
        """The first, and for most modes the only one."""
        return self.workloads[0]


@dataclass
class Stage:
    """Runs workload and check for the modes, in a scratch folder."""

    job: Job
    scratch: Path
    recorder: ctypes.CDLL | None
    deadline: float = field(init=False)
    _number: int = 0
    _running: Runner | None = None

    def __post_init__(self) -> None:
        self.check: Checker = Checker(self.job.check, self.job.timeout)  # in a child of its own
        self.deadline = clocks.elapsed() + self.job.budget if self.job.budget else float("inf")

    def out_of_time(self) -> bool:
        """Whether the budget is used up."""
        return clocks.elapsed() > self.deadline

    def is_over(self, result: Tally) -> bool:
        """Whether a mode ends now: out of time, or after enough failures."""
        if result.failed >= ENOUGH:
            result.reason = f"ended after {result.failed} failures"
            return True
        return self.out_of_time()

    def fresh(self) -> Path:
        """A new, empty folder for a run."""
        self._number += 1
        folder = self.scratch / f"run-{self._number}"
        folder.mkdir()
        return folder

    def start(self, folder: Path, *, log: bool = False, watched: bool = True, before: Callable[[], None] | None = None,
              acks: Path | None = None, workload: Workload | None = None, **orders: Any) -> Runner:
        """Start the workload, or another one; ``orders`` are for the recorder, if there is one."""
        control = None
        if watched and self.recorder is not None:
            control = Control(self.scratch / "control", **orders)
        self._running = Runner(workload or self.job.workload, folder, self.scratch, control=control, log=log,
                               recorder=self.recorder if watched else None, before=before, acks=acks)
        return self._running

    def run(self, **options: Any) -> RunResult:
        """Run the workload in a new folder, to its end or the timeout."""
        runner = self.start(self.fresh(), **options)
        runner.wait(self.job.timeout)
        return runner.end()

    def close(self) -> None:
        """End the checking child, and the workload if it still runs."""
        self.check.close()
        if self._running is not None:
            self._running.kill()

    def undisturbed(self, result: Tally, **options: Any) -> RunResult | None:
        """A run without a crash, which must end and pass the check; else it is a failure, and None."""
        run = self.run(**options)
        wrong = f"the workload {run.ending()} with nothing done to it\n{run.error}".strip() if run.status != 0 else ""
        return run if self.settle(result, "undisturbed run", run, wrong) else None

    def settle(self, result: Tally, where: str, run: RunResult, wrong: str = "") -> bool:
        """End a run: unless it is ``wrong`` already, check its folder; then remove it. False for a failure."""
        folder = Path(run.folder)
        found = wrong or self.check(folder, run.acks)
        if found is not None:
            self.fail(result, where, found, folder, run.acks)
        shutil.rmtree(folder)
        return found is None

    def each(self, result: Tally, cases: Sequence[_Case]) -> Iterator[_Case]:
        """The cases of a mode one by one, until it is over."""
        result.planned += len(cases)
        for case in cases:
            if self.is_over(result):
                return
            yield case

    def fail(self, result: Tally, where: str, found: str, folder: Path | None = None,
             acks: Sequence[Any] = (), **more: Any) -> None:
        """Count a failure; the first ones are kept, so that the check can run again."""
        result.status = FAILED
        result.failed += 1
        if len(result.failures) >= MOST_KEPT:
            return
        failure = Failure(result.mode, where, len(acks), found, **more)
        if folder is not None:
            failure = replace(failure, kept=str(keep(self.job, failure, folder, acks)))
        result.failures.append(failure)


def keep(job: Job, failure: Failure, folder: Path, acks: Sequence[Any]) -> Path:
    """Copy a failing case to the folder for those: its files, and all that the check needs."""
    job.keep.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=f"{failure.mode.split('(')[0].replace(' ', '-')}-", dir=job.keep))
    shutil.copytree(folder, place / "folder", symlinks=True, dirs_exist_ok=True)
    packed = pickle.dumps((job.check, acks))
    (place / "case.pickle").write_bytes(pickle.dumps((main_file(packed), sys.path, packed)))
    (place / "case.txt").write_text(
        f"{failure.mode}, {failure.where}\nseed {job.seed}\n{failure.acked} acks\n{failure.found}\n",
        encoding="utf-8",
    )
    return place


def main_file(packed: bytes) -> str:
    """The file of the main program, if the pickled functions are defined in it."""
    if b"__main__" not in packed and b"__mp_main__" not in packed:
        return ""
    return str(getattr(sys.modules["__main__"], "__crashtest_main__", None)
               or getattr(sys.modules["__main__"], "__file__", "") or "")


def load_main(path: str) -> None:
    """Load the file of the main program as module __main__, for functions pickled from there."""
    if not path or not os.path.exists(path) or path.endswith(".so"):
        return
    names = runpy.run_path(path, run_name="__mp_main__")
    module = types.ModuleType("__mp_main__")
    module.__dict__.update(names)
    module.__dict__["__crashtest_main__"] = path
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module


def perform(job: Job) -> Report:
    """Run every mode, in this process."""
    recorder = None
    library = os.environ.get("RAXLOG_CRASHTEST_LIBRARY")
    if library and not job.no_recorder:
        recorder = ctypes.CDLL(library)
        recorder.recorder_begin.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_int] * 2
    become_reaper()
    import_module(f"{__name__.partition('.')[0]}.store")  # by name, as it lies above: no case is to load what all use
    gc.collect()
    gc.freeze()  # children need not scan, and so copy, what exists now
    results: list[Tally] = []
    for mode in job.modes:
        result = Tally(mode.name)
        results.append(result)
        if mode.needs_recorder and recorder is None:
            result.status, result.reason = NOT_RUN, job.no_recorder or "the recorder was not loaded"
            continue
        scratch = Path(tempfile.mkdtemp(prefix="raxlog-crashtest-", dir=_fast_folder()))
        began = clocks.elapsed()
        stage = Stage(job, scratch, recorder)
        try:
            mode.run(stage, result)
        finally:
            stage.close()
            result.seconds = clocks.elapsed() - began
            shutil.rmtree(scratch, ignore_errors=True)
    names = ", ".join(map(_name, job.workloads))
    return Report(names, _name(job.check), job.seed, [result.result() for result in results])


def _fast_folder() -> str | None:
    """A folder in memory, if there is one; RAXLOG_CRASHTEST_SCRATCH names another."""
    shared = os.environ.get("RAXLOG_CRASHTEST_SCRATCH", "/dev/shm")
    return shared if os.path.isdir(shared) and os.access(shared, os.W_OK) else None


def _name(function: Any) -> str:
    function = getattr(function, "func", function)  # a partial's
    return str(getattr(function, "__qualname__", None) or repr(function))


def main() -> int:
    """The process that explore() starts: a job on stdin, the report into the file descriptor in argv."""
    for number in (signal.SIGINT, signal.SIGTERM):  # even if the parent ignores SIGINT
        signal.signal(number, signal.default_int_handler)
    out = int(sys.argv[1])
    main_path, path, packed = pickle.load(sys.stdin.buffer)
    sys.path[:] = path
    with open(out, "wb") as answer:
        try:
            load_main(main_path)
            job: Job = pickle.loads(packed)
            data = pickle.dumps(perform(job))
        except BaseException as error:
            data = pickle.dumps(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
        answer.write(data)
    return 0
