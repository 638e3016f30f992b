"""Figures: what calls return, named values that do not change."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Figures:
    """The base of what calls return. Not a tuple: a figure has its name, and no place."""

    def to_dict(self) -> dict[str, object]:
        """The figures by name; those within them, too."""
        return {one.name: _plain(getattr(self, one.name)) for one in fields(self)}


def _plain(value: Any) -> Any:
    if isinstance(value, Figures):
        return value.to_dict()
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value
