"""Waiting readers for the tests of waiting: sleeping threads, and what they have seen."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable
from typing import Any

import raxlog
from raxlog.storage import clocks
from raxlog.storage.engine.environment import Environment
from raxlog.stream.group.waiter import Condition, WaitQueues, stream_moves

SOON = 2.0  # seconds; far more than a wake-up takes, far less than a test may


def seen_now(env: Environment, *names: bytes) -> dict[Condition, Hashable]:
    """What a reader has seen that has read everything there is."""
    txn: Any
    with env.read() as txn:
        return {Condition(stream_moves, name): stream_moves(txn, name) for name in names}


def asleep(waiting: WaitQueues, count: int) -> bool:
    """Whether so many, within a moment, sleep in lines that have been looked at in vain."""
    end = clocks.monotonic() + SOON
    while sum(not each.awake for line in list(waiting._lines.values()) for each in list(line.waiters.values())
              if line.seen) != count:
        if clocks.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


class Sleeper(threading.Thread):
    """A thread that waits once; ``outcome`` is what came of it."""

    def __init__(self, waiting: WaitQueues, seen: dict[Condition, Hashable],
                 deadline: float | None = None) -> None:
        super().__init__(daemon=True)
        self.outcome: object = None
        self.woke = 0.0
        self._arguments = (waiting, seen, deadline)
        self.start()

    def run(self) -> None:
        try:
            waiting, seen, deadline = self._arguments
            self.outcome = waiting.wait(seen, deadline)
        except raxlog.RaxlogError as error:
            self.outcome = error
        self.woke = clocks.monotonic()
