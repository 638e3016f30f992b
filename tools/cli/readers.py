"""What is typed for an argument, as a value: numbers, times, IDs, names, columns. What cannot be read is refused."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from ...storage.errors import InvalidStreamID
from ...stream.node.arguments import member_name, name_bytes
from ...stream.node.stream_id import StreamID, parse_id
from .status import USAGE, CommandError

Number = TypeVar("Number", int, float)


def whole(text: str) -> int:
    """A whole number >= 0."""
    return _at_least(0, int, text, "whole number")


def positive(text: str) -> int:
    """A whole number >= 1."""
    return _at_least(1, int, text, "whole number")


_A_TIME = "a time with its zone, as in 2026-11-24T08:00:00Z"
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def seconds(text: str) -> float:
    """A number of seconds >= 0, or of a unit that stands behind it, as in 10s, 15m, 7d."""
    number = text.rstrip("".join(_UNITS))
    unit = _UNITS.get(text.removeprefix(number) or "s")
    return _at_least(0, lambda typed: float(number if unit else typed) * (unit or 1), text,
                     "number of seconds, or of ms, s, m, h, d or w,")


def delays(text: str) -> list[float]:
    """Such numbers, with commas between them."""
    return [seconds(part) for part in text.split(",")]


def patience(text: str) -> float | None:
    """How long to wait: a number of seconds, or "none" for ever."""
    return None if text == "none" else seconds(text)


def _at_least(least: int, kind: Callable[[str], Number], text: str, what: str) -> Number:
    with contextlib.suppress(ValueError):
        number = kind(text)
        if number >= least:
            return number
    raise argparse.ArgumentTypeError(f"{text!r} is not a {what} >= {least}")


def moment(text: str) -> datetime:
    """A time with its zone, or a date, which begins at midnight in UTC."""
    with contextlib.suppress(ValueError):
        time = datetime.fromisoformat(f"{text}T00:00Z" if len(text) == len("2026-11-24") else text)
        if time.tzinfo is not None:
            return time
    raise argparse.ArgumentTypeError(f"{text!r} is not {_A_TIME}, nor a date")


def time_as_id(text: str) -> str:
    """An ID as typed; for a time with its zone, as --time prints it, the milliseconds of that time."""
    edge = "(" if text.startswith("(") else ""
    with contextlib.suppress(argparse.ArgumentTypeError):
        if "T" in text or text.count("-") == 2:  # which no ID has
            return f"{edge}{parse_id(moment(text.removeprefix(edge))).ms}"
    return text


def bound(read: Callable[[str], StreamID]) -> Callable[[str], StreamID]:
    """Reads an ID from which, or up to which, something is done: a time may stand for it."""

    def read_bound(text: str) -> StreamID:
        try:
            return read(time_as_id(text))
        except InvalidStreamID as error:
            raise InvalidStreamID(f"{error}; or {_A_TIME}, or a date") from None

    return read_bound


def typed(check: Callable[..., bytes], *more: object) -> Callable[[str], bytes]:
    """Reads an argument as the bytes that were typed, if ``check`` accepts them."""
    return lambda text: check(os.fsencode(text), *more)


stream_name, group_name, consumer_name = typed(name_bytes), typed(member_name, "group"), typed(member_name, "consumer")

_COLUMN = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>[^\s`,]+))\s+(?P<type>[^\s,(<]+\s*(?:\([^()]*\)|<[^<>]*>)?)\s*(?P<more>,?)"
)


def parsed_columns(text: str, option: str = "--columns") -> dict[str, str]:
    """``item string, price decimal(10,2)`` as {name: type}; a name in ` ` may hold anything."""
    columns: dict[str, str] = {}
    at, more = 0, True
    while more:
        match = _COLUMN.match(text, at)
        if match is None or (not match["more"] and match.end() < len(text)):
            raise CommandError(
                f"{option}: {text[at:].strip()!r} does not begin with a name and a type, as in "
                '"item string, qty bigint"',
                USAGE,
            )
        name = match["plain"] or match["quoted"].replace("``", "`")
        if name in columns:
            raise CommandError(f"{option}: {name!r} is listed twice", USAGE)
        columns[name] = match["type"].strip()
        at, more = match.end(), bool(match["more"])
    return columns
