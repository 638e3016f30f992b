"""The fixture ``elsewhere``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from elsewhere import Do, writing


@pytest.fixture
def elsewhere(path: Path) -> Iterator[Do]:
    """A function that runs statements in a process of its own, with ``store`` open at the fixture ``path``."""
    with writing(path) as do:
        yield do
