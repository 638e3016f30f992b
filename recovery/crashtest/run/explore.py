"""explore(): crash a workload in every way asked for, and check after each crash."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ....storage.errors import InvalidArgument
from ..record import recorder
from . import stage
from .interrupts import Interrupts
from .report import CrashTestFailed, Report
from .schedules import Schedules

A = TypeVar("A")  # what a workload acknowledges
DEFAULT_TIMEOUT = 30.0
_LAST_SECONDS = 10.0
_START = "import sys; from raxlog.recovery.crashtest.run.stage import main; sys.exit(main())"


def explore(workload: Callable[[Path, Callable[[A], None]], object] |
            Sequence[Callable[[Path, Callable[[A], None]], object]], check: Callable[[Path, list[A]], object], *,
            modes: Sequence[stage.Mode], seed: int | None = None, budget: float | None = None,
            timeout: float = DEFAULT_TIMEOUT, keep: str | Path | None = None,
            workers: int | None = None) -> Report:
    """Run ``workload(folder, ack)`` and crash it; run ``check(folder, acks)`` on what is left.

    The workload writes files in ``folder`` and calls ``ack(x)``, with any value that can be pickled,
    once it promises that x is safe. The check gets the acks made before the crash, and raises an exception
    if the folder does not hold what was promised; it may write. Both run in processes of their own, so they
    must be functions of a module (not lambdas or nested), or functools.partial of such.

    Several workloads, in a list, run side by side under the mode Schedules alone, each in a process of its own.

    ``modes``    KillAt, PowerCut, Storm, Errors, Interrupts, Schedules
    ``seed``     the same seed draws the same cases; None: random, shown in the report
    ``budget``   seconds for all modes together; the report names what was left out
    ``timeout``  seconds for one run or check; a longer one counts as a failure, "stuck"
    ``keep``     the folder for failing cases; default: raxlog-crashtest-… in the temporary folder

    Costs one start of an interpreter, then a fork for each run. InvalidArgument if the functions
    cannot be pickled.
    """
    if not modes:
        raise InvalidArgument(
            "explore() needs at least one mode: KillAt, PowerCut, Storm, Errors, Interrupts or Schedules"
        )
    workloads = (workload,) if callable(workload) else tuple(workload)
    if len(workloads) != 1 and (not workloads or not all(isinstance(mode, Schedules) for mode in modes)):
        raise InvalidArgument("several workloads run side by side under the mode Schedules alone; give one function")
    if seed is None:
        seed = random.SystemRandom().randrange(1 << 32)
    missing = ""
    # glibc raises this limit by itself, and then each opening of LMDB clears 2 MB that it does not use.
    environment = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20), **os.environ}
    if any(isinstance(mode, Interrupts) and mode.how == "traced" for mode in modes):
        environment["RAXLOG_PURE"] = "1"  # compiled kernels have no bytecodes
    try:
        library = recorder.library()
        environment["LD_PRELOAD"] = " ".join(filter(None, (str(library), environment.get("LD_PRELOAD"))))
        environment["RAXLOG_CRASHTEST_LIBRARY"] = str(library)
    except recorder.NoRecorder as reason:
        missing = str(reason)
    place = Path(keep) if keep is not None else Path(tempfile.gettempdir()) / f"raxlog-crashtest-{seed}"
    job = stage.Job(workloads, check, list(modes), seed, place.absolute(), budget, timeout,
                    workers or len(os.sched_getaffinity(0)), missing)
    try:
        packed = pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InvalidArgument(
            f"the workload, the check and the modes must be picklable: {error}. "
            "Define the functions at the top of a module."
        ) from error
    report: Report | str = _performed(pickle.dumps((stage.main_file(packed), sys.path, packed)), environment)
    if isinstance(report, str):
        raise CrashTestFailed(f"the crash test could not be run: {report}")
    for mode in report.modes:
        if mode.status == "not run":
            print(f"crash test: {mode.line()}", file=sys.stderr)
    return report


def _performed(job: bytes, environment: dict[str, str]) -> Any:
    package = str(Path(__file__).resolve().parents[4])
    known = [path for path in sys.path if path and os.path.exists(os.path.join(path, "raxlog"))]
    environment["PYTHONPATH"] = os.pathsep.join([*known, *filter(None, [environment.get("PYTHONPATH")])] or [package])
    with tempfile.TemporaryFile() as answer:
        process = subprocess.Popen(
            [sys.executable, "-c", _START, str(answer.fileno())],
            stdin=subprocess.PIPE, pass_fds=[answer.fileno()], env=environment,
        )
        try:
            process.communicate(job)
        except BaseException:
            process.terminate()  # it ends its children, and removes its scratch folder
            try:
                process.wait(_LAST_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            raise
        answer.seek(0)
        data = answer.read()
    if not data:
        return f"its process ended with status {process.returncode} before it could report"
    return pickle.loads(data)
