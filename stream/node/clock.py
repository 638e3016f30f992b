"""The clock; durations and counts as users give them."""

from __future__ import annotations

import math
import time
from typing import Any

from ...storage.errors import InvalidArgument

_LONGEST = 1 << 53  # ms; beyond it a float no longer counts single milliseconds


def now_ms() -> int:
    """The wall clock in milliseconds: what IDs, delivery times and idle times are made of."""
    return time.time_ns() // 1_000_000


def duration_ms(name: str, seconds: Any, negative: bool = False) -> int:
    """Seconds as whole milliseconds. InvalidArgument for no number, NaN, negative or huge ones.

    What is not zero stays so: a block of 0 s waits for ever, one of 0.1 ms must not.
    """
    is_number = isinstance(seconds, int) and not isinstance(seconds, bool)
    if not is_number and not (isinstance(seconds, float) and not math.isnan(seconds)):
        raise InvalidArgument(f"{name}={seconds!r} must be a number of seconds")
    if abs(seconds) > _LONGEST / 1000:
        size = f"{seconds:.3g}" if isinstance(seconds, float) else f"a number of {seconds.bit_length()} bits"
        raise InvalidArgument(f"{name}, {size}, is more seconds than can be counted in milliseconds")
    if seconds < 0 and not negative:
        raise InvalidArgument(f"{name}={seconds!r} must not be negative")
    whole: int = round(seconds * 1000)
    if whole == 0 and seconds:
        return 1 if seconds > 0 else -1
    return whole


def whole(name: str, value: Any, least: int, most: int | None = None, *, none: str | None = None) -> None:
    """InvalidArgument unless the value is a whole number from ``least`` on, up to ``most``.

    With ``none`` it may be None, too, of which the message says that.
    """
    if none is not None and value is None:
        return
    if type(value) is not int or value < least or (most is not None and value > most):
        limits = f">= {least}" if most is None else f"from {least} to {most}"
        raise InvalidArgument(f"{name}={value!r} must be a whole number {limits}{none or ''}")
