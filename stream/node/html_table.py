"""A table for notebooks: the names and figures of a NamedTuple, a row each."""

from __future__ import annotations

from html import escape
from typing import Any


def html_table(figures: Any) -> str:
    """What a notebook shows in place of the repr. A class has it as its ``_repr_html_``."""
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(_shown(value))}</td></tr>" for name, value in figures._asdict().items()
    )
    return f"<table>{rows}</table>"


def _shown(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return ", ".join(f"{_shown(name)}: {_shown(held)}" for name, held in value.items())
    return f"{value:,}" if type(value) is int else str(value)
