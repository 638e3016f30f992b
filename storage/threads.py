"""Threads of raxlog's, each begun here: the system may have none to give."""

from __future__ import annotations

from threading import Thread

from .errors import StoreError


def start(thread: Thread) -> None:
    """Start it. StoreError where the system gives no thread, or no memory for one; then it has never been."""
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise StoreError(
            f"the system gives no thread ({error or 'no memory'}) for {thread.name!r}. Raise the limit (ulimit -u or "
            "-v, pids of a container), or end others, and try again; what has been acknowledged stays."
        ) from error
