"""crashtest: crash what a Python file does to a folder, and check what is left.

    raxlog crashtest FILE.py            FILE.py has workload(folder, ack) and check(folder, acks)
    raxlog crashtest FILE.py --only schedules   or workloads = [a, b], which run side by side, in all orders
    raxlog crashtest --replay KEPT      the check again, on a case that failed
    raxlog crashtest --long             raxlog's own crash tests in their long form, from a clone
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from ...arguments import argument, command, flag, one_of
from ...readers import positive
from ...status import DONE, NO, STORE, USAGE, CommandError

_MODES = ("points", "cuts", "calls", "storm", "errors", "interrupts")
_SCHEDULES = "schedules"  # a way of its own: of several workloads, side by side
_ROOT = Path(__file__).resolve().parents[4]
LONG = ("kills", "calls", "images", "errors", "flips", "contention", "interrupts", "fuzz", "reader", _SCHEDULES)


@command(
    "crashtest",
    (argument("file", metavar="FILE", nargs="?",
              help="a Python file with workload(folder, ack) and check(folder, acks)"),
     one_of(argument("--replay", metavar="KEPT", help="run the check on a kept case again"),
            flag("--long", "run raxlog's own crash tests in their long form (hours)")),
     argument("--workload", default="workload", metavar="NAME", help="the function that writes (default: workload)"),
     argument("--check", default="check", metavar="NAME", help="the function that checks (default: check)"),
     argument("--points", action="append", default=[], metavar="PATTERN",
              help="also kill at these crash points, like 'app.*'; may be repeated"),
     argument("--only", action="append", choices=[*_MODES, *(one for one in LONG if one not in _MODES)],
              metavar="PART", help=f"this way of crashing only ({', '.join((*_MODES, _SCHEDULES))}; with --long, "
                                   f"{', '.join(LONG)}); may be repeated"),
     argument("--images", type=positive, default=2000, metavar="N", help="images of power cuts (2000)"),
     argument("--rounds", type=positive, default=100, metavar="N", help="rounds of the storm (100)"),
     argument("--schedules", type=positive, default=1000, metavar="N",
              help="with --only schedules: orders in which the workloads have their turns (1000)"),
     argument("--schedule", metavar="PATH", help="with --only schedules: this order alone, from a kept case's "
                                                 "schedule.json"),
     argument("--interrupts", type=positive, metavar="N",
              help="also raise this many exceptions inside raxlog, in a process that goes on"),
     argument("--ignore", action="append", default=[], metavar="PATTERN",
              help="files whose content does not matter after a power cut, like '*.lock'; may be repeated"),
     argument("--seed", type=int, metavar="N", help="draw the same cases as a run that printed this seed"),
     argument("--budget", type=float, metavar="SECONDS", help="end after this long, and list what was left out"),
     argument("--keep", metavar="FOLDER", help="where failing cases are kept (default: a temporary folder)"),
     argument("--jobs", type=positive, default=1, metavar="N", help="with --long: this many at a time (1)"),
     argument("--results", metavar="PATH",
              help="with --long: the figures of each piece, a line of JSON as it ends; a run that was broken off "
              "continues after them (default: a temporary folder)"),
     argument("--html", metavar="PATH", help="write the report as a page, with the timeline drawn")),
    """The file has two functions. workload(folder, ack) writes files and calls ack(x) once x is promised
to be safe. check(folder, acks) raises an exception if the folder does not hold what was promised.
The command checks images of what a disk may hold after a power cut, kills the workload before each
system call that changes the folder and at random moments, and makes its calls fail in turn. With
--only schedules it kills nothing: the functions in the file's list 'workloads' run side by side, each
in a process, in many orders of their steps; prepare(folder), if the file has it, runs once before. Exit
status 0 if the program survives all of these, 1 if not, or if a part could not be run here (3 where it
is the schedules). --replay runs the check again on a case that was kept. --long runs raxlog's own crash
tests for hours, from its repository.""",
    "raxlog crashtest my_consumer.py --points 'app.*' --html report.html",
    "raxlog crashtest two_workers.py --only schedules --schedules 5000",
    "raxlog crashtest --replay /tmp/raxlog-crashtest-7/power-cut-x1y2",
)
def _run(options: argparse.Namespace) -> int:
    if bool(options.file) + bool(options.replay) + options.long != 1:
        raise CommandError("name a FILE, or --replay KEPT, or --long; one of them", USAGE)
    if options.long and (options.keep or options.budget or options.html):
        raise CommandError("--keep, --budget and --html are for a FILE; --long says where it keeps what fails", USAGE)
    if not options.long and (options.results or options.jobs > 1):
        raise CommandError("--jobs and --results are for --long", USAGE)
    if options.long:
        return _run_long(options)
    if unknown := set(options.only or ()) - {*_MODES, _SCHEDULES}:
        raise CommandError(f"--only {min(unknown)} is a part of --long; there are {', '.join((*_MODES, _SCHEDULES))}",
                           USAGE)
    by_schedules = options.only is not None and _SCHEDULES in options.only
    if by_schedules and len(set(options.only)) > 1:
        raise CommandError("--only schedules runs processes side by side, the others run one: two commands", USAGE)
    if options.schedule and not by_schedules:
        raise CommandError("--schedule needs --only schedules", USAGE)
    from .....recovery import crashtest  # noqa: PLC0415 - only for this command
    from .....recovery.crashtest.__main__ import main as replay  # noqa: PLC0415

    if options.replay:
        return replay([options.replay])
    if by_schedules:
        return _run_schedules(options)
    workload, check = _functions(options.file, options.workload, options.check)
    modes: dict[str, list[Any]] = {
        "points": [crashtest.KillAt.points(*options.points)] if options.points else [],
        "cuts": [crashtest.PowerCut(options.images, tuple(options.ignore))],
        "calls": [crashtest.KillAt.system_call("all")],
        "storm": [crashtest.Storm(options.rounds)],
        "errors": [crashtest.Errors("ENOSPC"), crashtest.Errors("short")],
        "interrupts": [crashtest.Interrupts(how, options.interrupts) for how in ("traced", "signals")
                       if options.interrupts],
    }
    chosen = [mode for name in _MODES if name in (options.only or _MODES) for mode in modes[name]]
    if not chosen:
        raise CommandError("--only points needs --points PATTERN, --only interrupts needs --interrupts N", USAGE)
    report = crashtest.explore(workload, check, modes=chosen, seed=options.seed, budget=options.budget,
                               keep=options.keep)
    if options.html:
        report.write_html(options.html)
    print(json.dumps(report.to_dict()) if options.json else report)
    return DONE if report.passed else NO


def _run_schedules(options: argparse.Namespace) -> int:
    from .....recovery import crashtest  # noqa: PLC0415 - only for this command

    module = _module(options.file)
    check, = _of(module, options.file, options.check)
    workloads = getattr(module, "workloads", None)
    if workloads is None:
        workloads = _of(module, options.file, options.workload) * 2
    if not isinstance(workloads, (list, tuple)) or not workloads or not all(map(callable, workloads)):
        raise CommandError(f"'workloads' in {options.file} must be a list of functions", USAGE)
    switches = None
    if options.schedule:
        try:
            kept = json.loads(Path(options.schedule).read_bytes())["switches"]
            switches = tuple((int(actor), int(turns), int(to)) for actor, turns, to in kept)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CommandError(f"{options.schedule} holds no schedule: {error}", USAGE) from error
    mode = crashtest.Schedules(options.schedules, prepare=getattr(module, "prepare", None), switches=switches)
    report = crashtest.explore(workloads, check, modes=[mode], seed=options.seed, budget=options.budget,
                               keep=options.keep)
    if options.html:
        report.write_html(options.html)
    print(json.dumps(report.to_dict()) if options.json else report)
    return DONE if report.passed else NO if report.failed else STORE


def _functions(file: str, *names: str) -> list[Any]:
    return _of(_module(file), file, *names)


def _module(file: str) -> Any:
    path = Path(file).resolve()
    if not path.is_file() or path.suffix != ".py" or not path.stem.isidentifier():
        raise CommandError(f"{file} is no Python file that can be imported", USAGE)
    sys.path.insert(0, str(path.parent))
    try:
        module = importlib.import_module(path.stem)
    except Exception as error:
        raise CommandError(f"{file} cannot be imported: {type(error).__name__}: {error}", USAGE) from error
    if Path(str(module.__file__)).resolve() != path:
        raise CommandError(f"{path.stem} is the name of another module ({module.__file__}); rename {file}", USAGE)
    return module


def _of(module: Any, file: str, *names: str) -> list[Any]:
    missing = [name for name in names if not callable(getattr(module, name, None))]
    if missing:
        raise CommandError(f"{file} has no function {' and no '.join(missing)}; see --workload and --check", USAGE)
    return [getattr(module, name) for name in names]


def _run_long(options: argparse.Namespace) -> int:
    program = _ROOT / "tests" / "long_run.py"
    if not program.is_file():
        raise CommandError("the long crash tests are in raxlog's repository, and this is an installed package", USAGE)
    if unknown := set(options.only or ()) - set(LONG):
        raise CommandError(f"--only {min(unknown)} is not a part of --long; there are {', '.join(LONG)}", USAGE)
    command = [sys.executable, str(program), "--jobs", str(options.jobs)]
    command += [word for part in options.only or () for word in ("--only", part)]
    command += ["--seed", str(options.seed)] if options.seed is not None else []
    command += ["--results", options.results] if options.results else []
    known = [os.path.abspath(path) for path in sys.path if os.path.exists(os.path.join(path, "raxlog"))]
    path = os.pathsep.join([*known, *filter(None, [os.environ.get("PYTHONPATH")])])
    sys.stdout.flush()
    os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": path})  # it handles its signals itself
