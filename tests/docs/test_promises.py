"""docs/promises.md names the test of each promise; every test that it names exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import long_run
import pytest

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


def test_the_table_of_the_long_form_adds_up_its_results() -> None:
    lines = long_run.results_of(TESTS / "long_run.jsonl")
    try:
        table = long_run.page(lines)
    except ValueError as error:  # the page has the run before
        pytest.skip(str(error))
    assert table in PAGE.read_text(encoding="utf-8"), "run: python tests/long_run.py --page"


def test_a_run_that_is_not_whole_has_no_table() -> None:
    lines = [{"part": chunk.part, "chunk": chunk.name, "tried": 1000, "failed": 0, "storage": "one", "also": {}}
             for chunk in long_run.chunks()]
    assert "\n| rows in the place of others | 10,000 | 0 |\n" in long_run.page(lines)
    for wrong in (lines[1:], [*lines, lines[0]], [{**lines[0], "failed": 1}, *lines[1:]],
                  [{**lines[0], "storage": "another"}, *lines[1:]]):
        with pytest.raises(ValueError, match="the run is not whole"):
            long_run.page(wrong)
