"""Crash points: places in the code at which a crash test may kill the process.

    crash_point("app.half")      off: one look at a global, about 30 ns
                                 on: the crash test's listener is called with the name

It is this low so that every layer can have points; raxlog.crashtest offers it to users. A commit asks whether the list
of listeners is empty, which is a tenth of a call.
"""

from __future__ import annotations

from collections.abc import Callable

listeners: list[Callable[[str], None]] = []  # one or none


def crash_point(name: str) -> None:
    """Report that this point has been reached. Does nothing, except under a crash test."""
    for listener in listeners:
        listener(name)


def listen(function: Callable[[str], None] | None) -> None:
    """Call ``function`` from now on with the name of each point that is reached; None: no function."""
    listeners[:] = [] if function is None else [function]
