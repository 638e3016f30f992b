"""Moments: datetimes of milliseconds, exactly."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def moment(ms: int) -> datetime:
    """That many ms after 1970 began."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
