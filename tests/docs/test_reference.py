"""The pages of the reference say what the program is: quick, so that each run of the tests asks it."""

from __future__ import annotations

import importlib
import inspect
import pydoc
import re
import sys
from pathlib import Path
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

import pytest
import raxlog
import raxlog.aio
from raxlog.tools import cli

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_generated_pages_are_what_the_program_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    monkeypatch.delenv("COLUMNS", raising=False)
    generate = importlib.import_module("generate")
    for page, text in generate.PAGES.items():
        if page.startswith("reference/cli") and sys.version_info >= (3, 13):
            continue  # whose argparse breaks the lines of usage elsewhere
        written = (DOCS / page).read_text(encoding="utf-8")
        assert text() == written, f"run: python docs/generate.py ({page})"


def test_every_public_name_is_in_the_reference() -> None:
    text = "".join((DOCS / "reference" / page).read_text(encoding="utf-8") for page in ("api.md", "errors.md"))
    assert [name for name in raxlog.__all__ if not re.search(rf"\b{name}\b", text)] == ["__version__"]


REFERENCE = dict(re.findall(r"^\.\. autoclass:: raxlog\.([\w.]+(?:\(\))?)\n((?:   :.*\n)*)",
                            (DOCS / "reference" / "api.md").read_text(encoding="utf-8"), re.M))
CLASSES = {name.removesuffix("()"): options for name, options in REFERENCE.items()
           if not name.startswith(("taskiq.", "crashtest.", "testing."))}


@pytest.mark.parametrize("name", CLASSES)
def test_every_name_of_a_public_class_is_documented_on_its_page(name: str) -> None:
    kind: Any = pydoc.locate(f"raxlog.{name}")
    options = CLASSES[name]
    shown = {one for one in dir(kind) if not one.startswith("_")}
    own = {one: next(base for base in kind.__mro__ if one in vars(base)) for one in shown}
    calls = {one: base for one, base in own.items() if base.__module__.startswith("raxlog.")  # not of int, list, dict
             # __slots__, plain and compiled, which the docstring of the class explains
             and not isinstance(vars(base)[one], GetSetDescriptorType | MemberDescriptorType)
             and one not in getattr(kind, "_fields", ()) and one not in getattr(kind, "__dataclass_fields__", ())}
    left_out = set(re.findall(r"\w+", "".join(re.findall(r":exclude-members:(.*)", options))))
    assert left_out & shown <= {"open"}  # raxlog.open
    if ":inherited-members:" not in options:
        assert [one for one, base in calls.items() if base is not kind] == []
    if ":undoc-members:" not in options:
        assert [one for one, base in calls.items() if not inspect.getdoc(vars(base)[one])] == []


def test_a_class_that_a_call_makes_says_which_and_shows_no_constructor() -> None:
    handles = [raxlog.Store, raxlog.Stream, raxlog.Group, raxlog.DeadLetters, raxlog.Deferred, raxlog.Follower,
               raxlog.Worker, raxlog.Transaction, raxlog.Pipeline, raxlog.State, raxlog.LiveSubscription,
               raxlog.DurableSubscription, raxlog.Subscriber, raxlog.aio.AsyncStream, raxlog.aio.AsyncGroup,
               raxlog.aio.AsyncState]
    for kind in handles:
        where = f"aio.{kind.__name__}" if kind.__name__ in raxlog.aio.__all__ else kind.__name__
        assert f"{where}()" in REFERENCE
        assert re.search(r"\b[Mm]ade by |\(\) makes", kind.__doc__ or ""), kind
        assert not inspect.signature(kind).parameters
        shown = pydoc.plain(pydoc.render_doc(kind))
        assert re.search(r"__init__\(self.*\n.*the class says which call makes one", shown)


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"^\| \[[^]]+\]\((\S+\.md)\)", index, re.M))
    commands = {f"reference/cli/{name}.md" for name in cli.COMMANDS}
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"index.md"}
    assert linked | commands == pages | {"../README.md", "../CONTRIBUTING.md", "../SECURITY.md", "../CHANGELOG.md"}
    table = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    assert {f"reference/{page}" for page in re.findall(r"^\| \[[^]]+\]\((\S+\.md)\)", table, re.M)} == commands
