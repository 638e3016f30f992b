"""Workers of tests: one that runs in a thread, and a wait for what it does."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import raxlog

SOON = 10.0


@contextlib.contextmanager
def running(worker: Any) -> Iterator[Any]:
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(SOON)
        assert not thread.is_alive()


def until(condition: Callable[[], Any], seconds: float = SOON) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def number(entry: raxlog.Entry) -> int:
    return int(entry.fields["n"])
