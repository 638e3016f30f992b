"""Outcomes: what a handler may raise to say what becomes of its entry, and how long a failed one waits.

A handler that returns is done, and its entry acknowledged. Any other exception is a failure: the entry comes again
after a delay, until it has been delivered so often that it goes to the dead letters.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...storage.errors import InvalidArgument
from ...storage.figures import Figures
from ..node.arguments import duration_ms

RetryDelay = Callable[[int], float]  # seconds after so many deliveries


class Retry(Exception):
    """Raised by a handler that has failed, to be retried after this many seconds; None: after the worker's delay."""

    after: float | None = None

    def __init__(self, after: float | None = None) -> None:
        super().__init__("the handler asked for another try")
        self.after = None if after is None else duration_ms("after", after) / 1000


class Snooze(Exception):
    """Raised by a handler to have its entry delivered again after this many seconds, without counting this delivery."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the handler asked for the entry in {seconds} s")
        self.seconds: float = duration_ms("seconds", seconds) / 1000


def asked_delay(raised: BaseException) -> float | None:
    """The seconds that a Retry or a Snooze asks for; None also where a subclass has none, or nothing that is a time."""
    try:
        seconds = getattr(raised, "after" if issubclass(type(raised), Retry) else "seconds")
        return None if seconds is None else duration_ms("seconds", seconds) / 1000
    except BaseException:
        return None


class Discard(Exception):
    """Raised by a handler to put its entry into the dead letters at once."""

    def __init__(self, why: str = "") -> None:
        super().__init__(why)


class TimeLimit(BaseException):
    """Raised within a handler that has run for longer than the worker's ``timeout``. Handlers should not catch it."""


class Cancelled(BaseException):
    """Raised within a handler whose entry has been cancelled: Group.cancel(). Handlers should not catch it."""


@dataclass(frozen=True, slots=True)
class Counts(Figures):
    """How many entries of a worker have come to each end."""

    done: int = 0
    failed: int = 0  # each delivery, whether it is tried again or not
    snoozed: int = 0
    dead: int = 0
    lost: int = 0  # to another worker
    cancelled: int = 0  # while they ran


@dataclass(frozen=True)
class Backoff:
    """Growing delays: ``first`` seconds, then ``factor`` times as long each time, at most ``cap``.

    ``jitter``: up to this share of a delay is added at random, so that entries that failed together are not
    retried together.
    """

    first: float = 1.0
    factor: float = 2.0
    cap: float = 3600.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        for name in ("first", "cap", "jitter"):
            duration_ms(name, getattr(self, name))
        if not isinstance(self.factor, int | float) or not 1 <= self.factor < float("inf"):
            raise InvalidArgument(f"factor={self.factor!r} must be a number from 1 on")

    def __call__(self, deliveries: int) -> float:
        """The delay after this many deliveries, from 1 on."""
        try:
            delay = min(self.cap, self.first * float(self.factor) ** (deliveries - 1))
        except OverflowError:
            delay = self.cap
        return delay * (1 + self.jitter * random.random())


def parsed_retry(retry: object) -> RetryDelay:
    """A delay, a list of delays (the last one for all later deliveries) or a function, as a function."""
    if isinstance(retry, Sequence) and not isinstance(retry, str | bytes) and retry:
        delays = [duration_ms("retry", seconds) / 1000 for seconds in retry]
        return lambda deliveries: delays[min(deliveries, len(delays)) - 1]
    if callable(retry):
        return retry
    if isinstance(retry, int | float):
        delay = duration_ms("retry", retry) / 1000
        return lambda _: delay
    raise InvalidArgument(f"retry={retry!r} must be a Backoff, seconds, a list of them, or a function of deliveries")
