"""Notices for the standard library's logging, of what happens while locks are held."""

from __future__ import annotations

import threading
from contextlib import suppress

THREAD = "raxlog notice"


def note(level: str, message: str, *arguments: object) -> None:
    """Log to ``raxlog.store`` at a level ("info", "warning"), from a thread of its own.

    A handler may write to the very store whose lock the caller holds: here it waits, and nothing waits for it.
    """
    def log() -> None:
        import logging  # noqa: PLC0415 - hardly ever needed

        getattr(logging.getLogger("raxlog.store"), level)(message, *arguments)

    with suppress(RuntimeError):  # the interpreter is ending
        threading.Thread(target=log, name=THREAD, daemon=True).start()
