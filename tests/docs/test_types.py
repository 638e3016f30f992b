"""Types: every whole program of the pages, and the calls that matter, as mypy --strict and pyright see them."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import raxlog
from page_runs import blocks

pytest.importorskip("mypy")
pytestmark = pytest.mark.docs

DOCS = Path(__file__).resolve().parents[2] / "docs"
pyright = pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="pyright is not installed")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a folder for each page that has programs, and the package as its users have it, in ``sources``."""
    folder = tmp_path_factory.mktemp("programs")
    ours, left_out = folder / "sources" / "raxlog", ("*.so", "*.c", "__pycache__", "tests", "docs", "build", ".*")
    shutil.copytree(Path(raxlog.__file__).parent, ours, ignore=shutil.ignore_patterns(*left_out))
    for name in ("duckdb", "polars", "taskiq"):  # which lie elsewhere in the sources than in the package
        spec = importlib.util.find_spec(f"raxlog.{name}")
        assert spec is not None
        assert spec.origin is not None
        shutil.copytree(Path(spec.origin).parent, ours / name, dirs_exist_ok=True,
                        ignore=shutil.ignore_patterns(*left_out))
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


def test_every_program_of_the_pages_passes_mypy_strict(programs: Path, tmp_path: Path) -> None:
    """Those of a page with one program together: each start of mypy reads the types of the package."""
    folders = [tmp_path]
    for folder in sorted({file.parent for file in programs.glob("*/*.py")}):
        files = list(folder.glob("*.py"))
        if len(files) > 1:
            folders.append(folder)
        else:
            shutil.copy(files[0], tmp_path / f"{folder.name}_{files[0].name}".replace("-", "_"))
    assert len(list(tmp_path.glob("*.py"))) + len(folders) > 13
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
    assert json.loads(done.stdout)["typeCompleteness"]["completenessScore"] >= 0.97


FACES = "raxlog", "raxlog.aio", "raxlog.crashtest", "raxlog.spark", "raxlog.testing"
MOST_ANY = 5


@cache
def tree_of(module: str) -> ast.Module:
    place = Path(raxlog.__file__).parent.joinpath(*module.split(".")[1:])  # what is loaded may be compiled
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def public_classes_and_functions() -> Iterator[tuple[str, str]]:
    """The module and the name of each, of the classes of raxlog also their bases'."""
    for face in map(importlib.import_module, FACES):
        for name in getattr(face, "__all__", None) or [name for name in vars(face) if not name.startswith("_")]:
            one = getattr(face, name)
            for part in getattr(one, "__mro__", [one]):
                if str(getattr(part, "__module__", "")).startswith("raxlog.") and hasattr(part, "__qualname__"):
                    yield part.__module__, part.__qualname__.split(".")[0]


def annotations_of(node: ast.AST, where: str) -> Iterator[tuple[str, ast.expr]]:
    """All that a user sees of a class or a function: with its place, each annotation and base."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        yield from ((where, one) for one in [*(each and each.annotation for each in given), node.returns] if one)
    elif isinstance(node, ast.AnnAssign):
        yield where, node.annotation
    elif isinstance(node, ast.ClassDef):
        yield from ((where, base) for base in node.bases)
        for part in node.body:
            name = getattr(part, "name", "") or getattr(getattr(part, "target", None), "id", "")
            if not name.startswith("_") or name in ("__init__", "__call__", "__getitem__", "__iter__"):
                yield from annotations_of(part, f"{where}.{name}")


def anys_of(module: str, where: str, annotation: ast.AST) -> Iterator[str]:
    """The place itself for each ``Any``, and the name of each alias of this package that has one in it."""
    tree = tree_of(module)
    for name in {one.id for one in ast.walk(annotation) if isinstance(one, ast.Name)}:
        if name == "Any":
            yield where
        for one in tree.body:
            if isinstance(one, ast.ImportFrom) and one.level and name in [alias.name for alias in one.names]:
                package = importlib.import_module(module).__package__
                source = importlib.util.resolve_name("." * one.level + (one.module or ""), package)
                yield from anys_of(source, f"{source}.{name}", ast.Name(name))
            elif isinstance(one, ast.Assign) and name in [getattr(target, "id", "") for target in one.targets]:
                yield from anys_of(module, f"{module}.{name}", one.value)


def test_few_public_signatures_say_any() -> None:
    found = {
        place
        for module, name in set(public_classes_and_functions())
        for node in tree_of(module).body
        if getattr(node, "name", None) == name
        for where, annotation in annotations_of(node, f"{module}.{name}")
        for place in anys_of(module, where, annotation)
    }
    assert 0 < len(found) <= MOST_ANY, sorted(found)
