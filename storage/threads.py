"""Threads of raxlog's, each begun here, for the system may have none to give; and locks that know their thread."""

from __future__ import annotations

from threading import RLock, Thread

from .errors import StoreError, interrupted


def is_owned(lock: RLock) -> bool:
    """Whether this thread holds it: one that no thread takes twice is held by a call that has been interrupted."""
    return lock._is_owned()  # type: ignore[attr-defined,no-any-return]  # what Condition asks of a lock


def outside(lock: RLock, store: object) -> RLock:
    """The lock, to be taken. TransactionError where this thread holds it, and would wait for itself."""
    if is_owned(lock):
        raise interrupted(store)
    return lock


def start(thread: Thread) -> None:
    """Start it. StoreError where the system gives no thread, or no memory for one; then it has never been."""
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise StoreError(
            f"the system gives no thread ({error or 'no memory'}) for {thread.name!r}. Raise the limit (ulimit -u or "
            "-v, pids of a container), or end others, and try again; what has been acknowledged stays."
        ) from error
