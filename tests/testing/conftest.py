"""The fixtures of raxlog.testing, by import; test_fixtures.py has them by pytest_plugins, too."""

from __future__ import annotations

import pytest
from raxlog.storage import clocks
from raxlog.testing import raxlog_async_store, raxlog_clock, raxlog_store

__all__ = ["raxlog_async_store", "raxlog_clock", "raxlog_store"]


@pytest.fixture(autouse=True)
def clock_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind each test deadlines are those of time.monotonic() again, from which other tests make them."""
    monkeypatch.setattr(clocks, "monotonic", clocks.monotonic)
