"""docs/promises.md names the test of each promise; every test that it names exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "promises.md"
# `test_kill.py`, `test_kill.py::test_a_map_…`, `…::test_a_map_…`, `…_of_a_snapshot_…`, `…::test_every_…[mixed]`
NAMED = re.compile(r"`(?=[^`]*test_|…)(?:(test_\w+\.py)|…)?(?:::)?([\w…]*)(?:\[(\w+)\])?`")


def missing(text: str) -> Iterator[str]:
    """The tests that a text names and that do not exist; … stands for any part of a name, and for the file before."""
    file = source = ""
    for named in NAMED.finditer(text):
        if named[1]:
            file = named[1]
            source = "".join(path.read_text(encoding="utf-8") for path in TESTS.rglob(file))
        name = named[2] if named[2].startswith("test_") else "…" + named[2]
        pattern = r"\w*".join(map(re.escape, name.split("…")))
        exists = re.search(rf"^def {pattern}\(", source, re.M) if named[2] else source
        if not exists or (named[3] and f'"{named[3]}"' not in source):
            yield f"{file}: {named[0]}"


def test_every_test_that_the_promises_name_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(NAMED.findall(text)) > 80
    assert list(missing(text)) == []


def test_a_test_that_does_not_exist_is_found() -> None:
    text = "`test_no.py`, `test_kill.py`, `test_kill.py::test_a_map_…`, `…::test_no_such_…`, `…[none]`, `…_groups_…`"
    assert list(missing(text)) == [
        "test_no.py: `test_no.py`", "test_kill.py: `…::test_no_such_…`", "test_kill.py: `…[none]`",
    ]
