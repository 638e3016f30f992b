"""The folders of the project grow no further than what is read at a glance, and its project file says what is."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST = 16  # Python files in one folder


def test_no_folder_holds_more_than_sixteen_python_files() -> None:
    if not (ROOT / "pyproject.toml").is_file():
        pytest.skip("the tests were taken out of their repository")
    counts = {}
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in ("build", "dist")]
        counts[os.path.relpath(folder, ROOT)] = sum(name.endswith(".py") for name in files)
    assert counts["stream/group"] > 0
    assert {folder: many for folder, many in counts.items() if many > MOST} == {}


def test_the_dependency_groups_are_the_extras() -> None:
    if not (ROOT / "pyproject.toml").is_file():
        pytest.skip("the tests were taken out of their repository")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    for group, needs in project["dependency-groups"].items():
        named = [need.removeprefix("raxlog[").removesuffix("]") for need in needs]
        assert set(",".join(named).split(",")) <= set(extras), group


def test_the_layers_that_the_page_shows_are_those_that_are_checked() -> None:
    if not (ROOT / "pyproject.toml").is_file():
        pytest.skip("the tests were taken out of their repository")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    page = " ".join((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split())
    layers = [contract for contract in settings["contracts"] if contract["type"] == "layers"]
    assert len(layers) > 4
    for contract in layers:
        rows = " > ".join(", ".join(row.split(" | ")) for row in contract["layers"])
        assert (contract["name"] if "containers" not in contract else f"{contract['name']}: {rows}") in page
