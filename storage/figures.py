"""Figures: what calls return, named values that do not change."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Figures:
    """The base of what calls return. Not a tuple: a figure has its name, and no place."""

    _also = tuple[str, ...]()  # properties that to_dict() has as well; an annotation would make it a field

    def to_dict(self) -> dict[str, object]:
        """The figures by name, with the properties that say how it went; those within them, too. An entry stays one."""
        return {name: _plain(getattr(self, name)) for name in (*(field.name for field in fields(self)), *self._also)}


def _plain(value: Any) -> Any:
    if isinstance(value, Figures):
        return value.to_dict()
    if type(value) is dict:
        return {name: _plain(item) for name, item in value.items()}
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


# -- of modules that every program loads: these are loaded once one is returned, for dataclasses takes 8 ms --------


@dataclass(frozen=True, slots=True)
class Lost(Figures):
    """The appends to one stream that AppendsLost reports: their number, the first ID and the last ID."""

    stream: str | bytes
    first: tuple[int, int]
    last: tuple[int, int]
    entries: int


@dataclass(frozen=True, slots=True)
class LastEnd(Figures):
    """How the store was left by the processes that had it open before.

    ``how``        "clean", "killed" or "power cut"; the worst, where there were several
    ``processes``  the numbers of those that did not close it
    ``problems``   what the look at the newest records found after a power cut: nothing, or
                   records that fail their check; reading these raises CorruptionError
    """

    how: str
    processes: tuple[int, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reader(Figures):
    """One read transaction that is open now. ``lag``: how many checkpoints have come since it began."""

    pid: int
    thread: int
    transaction: int
    lag: int


@dataclass(frozen=True, slots=True)
class Compaction(Figures):
    """What a compaction did.

    Where the new file would be no smaller the old one stays: the same generation, and as many bytes.
    ``held_by``: processes that still have an old generation open; its room on disk is given back by
    the first open or compaction that finds it closed.
    """

    generation: int
    bytes_before: int
    bytes_after: int
    seconds: float
    held_by: tuple[int, ...]
