"""Notices for the standard library's logging: at once, or from a thread of their own while locks are held."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from typing import ParamSpec

P = ParamSpec("P")

THREAD = "raxlog notice"


def noted(run: Callable[P, None]) -> Callable[P, None]:
    """What a thread of raxlog's runs: an exception that ends it is logged, and by no traceback printed."""

    @wraps(run)
    def thread(*args: P.args, **options: P.kwargs) -> None:
        try:
            run(*args, **options)
        except Exception as error:
            note("warning", "a thread of raxlog's (%s) was ended by %r", run.__qualname__, error)

    return thread


def note(level: str, message: str, *arguments: object) -> None:
    """Log to ``raxlog.store`` at a level ("info", "warning"), from a thread of its own.

    A handler may write to the very store whose lock the caller holds: here it waits, and nothing waits for it.
    """
    with suppress(RuntimeError):  # no thread can be started while the interpreter ends
        threading.Thread(target=partial(report, "raxlog.store", level), args=(message, *arguments), name=THREAD,
                         daemon=True).start()


def report(name: str, level: str, text: str, *about: object, error: BaseException | None = None) -> None:
    """Log to a logger, with an error's traceback. What the program's own handler raises is nothing that ends raxlog."""
    is_main = threading.current_thread() is threading.main_thread()  # where a signal's handler may raise SystemExit
    with suppress(Exception if is_main else BaseException):
        import logging  # noqa: PLC0415 - hardly ever needed

        getattr(logging.getLogger(name), level)(text, *about, exc_info=error, stacklevel=2)
