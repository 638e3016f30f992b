"""crashtest: crash any code that writes files in one folder, and check what is left.

    workload(folder, ack)   runs in a child, writes, calls ack(x) once x is promised to be safe
    check(folder, acks)     runs in another child on what the crash left, and raises if it is wrong

    mode             what happens                                       what it can see
    KillAt.points    SIGKILL at a named point in the code               half-done changes
    KillAt.system_call  SIGKILL before the N-th call that changes files half-done changes, anywhere
    Storm            SIGKILL (and SIGSTOP) at random moments            races, locks left behind
    PowerCut         images of what the disk may hold                   missing or misplaced flushes
    Interrupts       exceptions in a process that goes on               half-done changes in memory, hangs
    Errors           ENOSPC, EIO, short writes at the N-th call         unhandled errors
    Schedules        each order of the steps of several processes       races, deadlocks

    explore ──► stage ──► child          explore.py starts a process, stage.py runs the modes in it
                  ├── kill_at  storm  power_cut  injected  interrupts  schedules   one mode each
                  ├── recorder.c   recorder.py                 which calls changed which files
                  ├── turns.c      turns.py                    which process goes on at each of them
                  ├── disk  images                             what of it may be on disk
                  └── report                                   the results, as text, JSON and HTML

kill -9 proves that changes are whole and locks are freed; it cannot see a missing flush, since
the kernel keeps what a killed process wrote. Power-cut images can. Use both.
"""

from ...storage.crash_point import crash_point
from .history import HistoryError, Operation, check_history
from .run.explore import explore
from .run.injected import Errors
from .run.interrupts import Interrupts, interrupted
from .run.kill_at import KillAt
from .run.power_cut import PowerCut
from .run.report import CrashTestFailed, Failure, ModeResult, Report
from .run.schedules import Schedules
from .run.storm import Storm

__all__ = [
    "CrashTestFailed", "Errors", "Failure", "HistoryError", "Interrupts", "KillAt", "ModeResult", "Operation",
    "PowerCut", "Report", "Schedules", "Storm", "check_history", "crash_point", "explore", "interrupted",
]
