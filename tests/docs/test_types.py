"""Types: every whole program of the pages, and the calls that matter, as mypy --strict and pyright see them."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import raxlog
from page_runs import blocks

pytest.importorskip("mypy")

DOCS = Path(__file__).resolve().parents[2] / "docs"
pyright = pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="pyright is not installed")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a folder for each page that has programs, and the package as its users have it, in ``sources``."""
    folder = tmp_path_factory.mktemp("programs")
    shutil.copytree(Path(raxlog.__file__).parent, folder / "sources" / "raxlog",
                    ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__", "tests", "docs", "build", ".*"))
    shutil.copytree(DOCS / "examples", folder / "examples", ignore=shutil.ignore_patterns("*.svg", "__pycache__"))
    (folder / "calls").mkdir()
    shutil.copy(Path(__file__).with_name("typed_calls.py"), folder / "calls")
    for page in DOCS.rglob("*.md"):
        for block in blocks(page):
            if block.about.startswith("file: ") and block.about.endswith(".py"):
                target = folder / page.stem / block.about.removeprefix("file: ")
                target.parent.mkdir(exist_ok=True)
                target.write_text(block.text, encoding="utf-8")
    return folder


def checked(programs: Path, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """What a checker says, with this Python's packages and with raxlog as a copy, which follows no finder."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    sources = str(programs / "sources")
    return subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, timeout=500,
                          env={**os.environ, "PATH": path, "PYTHONPATH": sources, "MYPYPATH": sources}, check=False)


def test_every_program_of_the_pages_passes_mypy_strict(programs: Path) -> None:
    folders = sorted({file.parent for file in programs.glob("*/*.py")})
    assert len(folders) > 12
    wrong = ""
    for folder in folders:
        done = checked(programs, folder, "mypy", "--strict", "--follow-imports=silent", f"--cache-dir={programs}/cache",
                       "--no-error-summary", *(file.name for file in folder.glob("*.py")))
        wrong += done.stderr + "".join(f"{folder.name}/{line}\n" for line in done.stdout.splitlines())
    assert not wrong, wrong


@pyright
def test_every_program_of_the_pages_passes_pyright(programs: Path) -> None:
    done = checked(programs, programs, "pyright", *(str(file) for file in programs.glob("*/*.py")))
    assert done.returncode == 0, done.stdout + done.stderr


@pyright
def test_the_types_of_the_package_are_known_to_pyright(programs: Path) -> None:
    done = checked(programs, programs, "pyright", "--verifytypes", "raxlog", "--ignoreexternal", "--outputjson")
    assert json.loads(done.stdout)["typeCompleteness"]["completenessScore"] >= 0.95
