"""Crash points: places in the code at which a crash test may kill the process.

    crash_point("app.half")      off: one look at a global, about 30 ns
                                 on: the crash test's listener is called with the name

It is this low so that every layer can have points; raxlog.crashtest offers it to users.
"""

from __future__ import annotations

from collections.abc import Callable

listener: Callable[[str], None] | None = None


def crash_point(name: str) -> None:
    """Report that this point has been reached. Does nothing, except under a crash test."""
    if listener is not None:
        listener(name)


def listen(function: Callable[[str], None] | None) -> None:
    """Call ``function`` from now on with the name of each point that is reached; None: no function."""
    global listener  # noqa: PLW0603 - the point of it: one look when it is off
    listener = function
