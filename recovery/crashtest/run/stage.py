"""The stage: the process in which everything happens, apart from the caller's.

    explore() ── exec, with the recorder preloaded ──► stage
                                                         ├─ fork: a run of the workload
                                                         └─ fork: the check
              ◄────────── the report, pickled ───────────┘

It has one thread, so it may fork; and it imports the workload once, so that a run costs a fork
and not the start of an interpreter.
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
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ....index.pubsub import pubsub  # noqa: F401 - loaded before the cases fork: what a workload imports is no case
from ..record.recorder import Control
from .child import Check, Checker, Run, Runner, Workload, become_reaper
from .report import FAILED, NOT_RUN, Failure, ModeResult, Report

MOST_TOLD = 10  # failures of a mode that are kept and told in full
_Case = TypeVar("_Case")
ENOUGH = 25  # failures, after which a mode (of power cuts: a worker) does not look for more


class Mode(Protocol):
    """A way to crash the workload."""

    @property
    def name(self) -> str:
        """How the report calls it."""

    @property
    def needs_recorder(self) -> bool:
        """Whether it can be run only where the recorder can be had."""

    def run(self, stage: Stage, result: ModeResult) -> None:
        """Do it, and fill in the result."""


@dataclass
class Job:
    """What explore() hands to the stage."""

    workload: Workload
    check: Check
    modes: list[Mode]
    seed: int
    keep: Path
    budget: float | None
    timeout: float
    workers: int
    no_recorder: str  # why there is none, or ""


@dataclass
class Stage:
    """The workload, the check, a place for folders, and what the modes share."""

    job: Job
    scratch: Path
    recorder: ctypes.CDLL | None
    deadline: float = field(init=False)
    _number: int = 0
    _running: Runner | None = None

    def __post_init__(self) -> None:
        self.check = Checker(self.job.check, self.job.timeout)  # in a child of its own: None, or what was wrong
        self.deadline = time.monotonic() + self.job.budget if self.job.budget else float("inf")

    def out_of_time(self) -> bool:
        """Whether the budget is used up."""
        return time.monotonic() > self.deadline

    def is_over(self, result: ModeResult) -> bool:
        """Whether a mode ends here: out of time, or it has failed often enough."""
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
        """Start the workload, or what stands for it; the recorder watches it where there is one, with ``orders``."""
        control = None
        if watched and self.recorder is not None:
            control = Control(self.scratch / "control", **orders)
        self._running = Runner(workload or self.job.workload, folder, self.scratch, control=control, log=log,
                               recorder=self.recorder if watched else None, before=before, acks=acks)
        return self._running

    def run(self, folder: Path, **options: Any) -> Run:
        """Run the workload to its end, or for as long as a run may take."""
        runner = self.start(folder, **options)
        runner.wait(self.job.timeout)
        return runner.end()

    def close(self) -> None:
        """End the checking child, and a workload that was not waited for because this is broken off."""
        self.check.close()
        if self._running is not None:
            self._running.kill()

    def undisturbed(self, result: ModeResult, **options: Any) -> Run | None:
        """A run that nothing happens to: it must end, and pass the check. Else None, and it is told."""
        folder = self.fresh()
        run = self.run(folder, **options)
        wrong = f"the workload {run.ending()} with nothing done to it\n{run.error}".strip() if run.status != 0 else ""
        return run if self.settle(result, "undisturbed run", folder, run, wrong) else None

    def settle(self, result: ModeResult, where: str, folder: Path, run: Run, wrong: str = "") -> bool:
        """End a run: where nothing is ``wrong`` with it the check looks at its folder, which is removed then.

        Whether all was well; what was not is noted.
        """
        found = wrong or self.check(folder, run.acks)
        if found is not None:
            self.fail(result, where, found, folder, run.acks)
        shutil.rmtree(folder)
        return found is None

    def each(self, result: ModeResult, cases: Sequence[_Case]) -> Iterator[_Case]:
        """The cases of a mode one by one, until it is over."""
        result.planned += len(cases)
        for case in cases:
            if self.is_over(result):
                return
            yield case

    def fail(self, result: ModeResult, where: str, found: str, folder: Path | None = None,
             acks: Sequence[Any] = (), **more: Any) -> None:
        """Note a failure; the first ones are kept with what is needed to run the check again."""
        result.status = FAILED
        result.failed += 1
        if len(result.failures) >= MOST_TOLD:
            return
        failure = Failure(result.mode, where, len(acks), found, **more)
        result.failures.append(failure)
        if folder is not None:
            failure.kept = str(keep(self.job, failure, folder, acks))


def keep(job: Job, failure: Failure, folder: Path, acks: Sequence[Any]) -> Path:
    """Copy a case to where it stays: the folder, and all the check needs."""
    job.keep.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=f"{failure.mode.split('(')[0].replace(' ', '-')}-", dir=job.keep))
    shutil.copytree(folder, place / "folder", symlinks=True, dirs_exist_ok=True)
    packed = pickle.dumps((job.check, acks))
    (place / "case.pickle").write_bytes(pickle.dumps((main_file(packed), sys.path, packed)))
    (place / "case.txt").write_text(
        f"{failure.mode}, {failure.where}\nseed {job.seed}\n{failure.acked} words were said\n{failure.found}\n",
        encoding="utf-8",
    )
    return place


def main_file(packed: bytes) -> str:
    """The file of the program that runs, where what is packed are functions defined in it."""
    if b"__main__" not in packed and b"__mp_main__" not in packed:
        return ""
    return str(getattr(sys.modules["__main__"], "__crashtest_main__", None)
               or getattr(sys.modules["__main__"], "__file__", "") or "")


def load_main(path: str) -> None:
    """Let what is pickled as __main__'s be found: run that file, not as a main program."""
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
    gc.collect()
    gc.freeze()  # what is here now need not be looked at, and so not copied, in each child
    report = Report(_name(job.workload), _name(job.check), job.seed)
    for mode in job.modes:
        result = ModeResult(mode.name)
        report.modes.append(result)
        if mode.needs_recorder and recorder is None:
            result.status, result.reason = NOT_RUN, job.no_recorder or "the recorder was not loaded"
            continue
        scratch = Path(tempfile.mkdtemp(prefix="raxlog-crashtest-", dir=_fast_folder()))
        began = time.monotonic()
        stage = Stage(job, scratch, recorder)
        try:
            mode.run(stage, result)
        finally:
            stage.close()
            result.seconds = time.monotonic() - began
            shutil.rmtree(scratch, ignore_errors=True)
    return report


def _fast_folder() -> str | None:
    """A folder in memory where there is one: what is lost in a power cut is decided here, not by the disk.

    RAXLOG_CRASHTEST_SCRATCH names another, for who wants to find again what a broken-off run has left.
    """
    shared = os.environ.get("RAXLOG_CRASHTEST_SCRATCH", "/dev/shm")
    return shared if os.path.isdir(shared) and os.access(shared, os.W_OK) else None


def _name(function: Any) -> str:
    function = getattr(function, "func", function)  # a partial's
    return str(getattr(function, "__qualname__", None) or repr(function))


def main() -> int:
    """The process that explore() starts: a job on stdin, the report into the file whose descriptor it names."""
    for number in (signal.SIGINT, signal.SIGTERM):  # also where whoever started us ignores the one
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
