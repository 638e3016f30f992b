"""Entries of customers, for groups that are limited by that field."""

from __future__ import annotations

import raxlog


def add(jobs: raxlog.Stream, customers: str) -> list[raxlog.StreamID]:
    """An entry for each letter; a dot is one without the field."""
    return jobs.extend([{"n": n} if name == "." else {"customer": name} for n, name in enumerate(customers)])


def ids_of(entries: list[raxlog.Entry]) -> list[raxlog.StreamID]:
    """Their IDs."""
    return [entry.id for entry in entries]
