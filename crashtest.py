"""raxlog.crashtest: crash any code that writes files in one folder, and check what is left.

A door, opened by ``import raxlog.crashtest`` and by nothing else; the rooms are in
recovery/crashtest/. docs/crash-testing.md shows how it is used.
"""

from .recovery.crashtest import (
    CrashTestFailed,
    Errors,
    Failure,
    KillAt,
    ModeResult,
    PowerCut,
    Report,
    Storm,
    crash_point,
    explore,
)

__all__ = [
    "CrashTestFailed",
    "Errors",
    "Failure",
    "KillAt",
    "ModeResult",
    "PowerCut",
    "Report",
    "Storm",
    "crash_point",
    "explore",
]
