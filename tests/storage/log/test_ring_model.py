"""The model of the ring holds in all of its states, finds each fault that is built in, and its page says what it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ring_model import CASTS, FAULTS, Broken, Model

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "ring-model.md").read_text(encoding="utf-8")
LONG = ("reading", "all", "kills", "errors", "power", "power twice", "compaction", "compaction, power",
        "compaction twice, power")  # of 75,000 states and more, some seconds each
USUAL = [pytest.param(name, marks=pytest.mark.storm if name in LONG else ())
         for name in CASTS if not name.startswith("wide: ")]
REACHED = {  # what each cast is there for
    "reading": {"a checkpoint under a reader", "a read finds the ring used again, or another's snapshot newer"},
    "a lap": {"a lap", "a commit waits for a checkpoint", "a checkpoint under a reader"},
    "all": {"a checkpoint under a reader", "an orphan is taken in", "a record in part"},
    "kills": {"an orphan is taken in", "a record in part", "an opening finds a record in part", "a commit fails",
              "the first to enter takes in what did not count", "a lap"},
    "an orphan": {"an orphan is struck out", "an orphan is taken in", "a lap"},
    "errors": {"a commit fails", "an orphan is taken in", "a checkpoint under a reader"},
    "power": {"a power cut takes a record", "an opening finds a record in part"},
    "power twice": {"a power cut takes a record", "an opening finds a record in part", "an orphan is taken in",
                    "the first to enter takes in what did not count"},
    "large": {"a large transaction", "a large transaction counts after its call was killed"},
    "large, power": {"a large transaction counts after its call was killed", "a power cut takes a record"},
    "compaction": {"a compaction", "a process goes over to the file of a compaction", "an orphan is taken in"},
    "compaction, threads": {"a compaction", "a process goes over to the file of a compaction",
                            "a checkpoint under a reader"},
    "compaction twice": {"what a compaction has left is removed", "an orphan is taken in"},
    "compaction twice, power": {"what a compaction has left is removed", "a power cut takes a record"},
    "compaction, power": {"a process goes over to the file of a compaction", "a power cut takes a record"},
}
FOUND = [  # fault, cast, the property that it breaks, a step without which it does not
    ("END moves first", "reading", "no sound store is refused", "moves END before it writes"),
    ("END moves before the disk has it", "power", "no reader goes back", "moves END before its write has returned"),
    ("a checkpoint passes over", "reading", "no checkpoint passes over a record", "begins a checkpoint"),
    ("APPLIED after the snapshot", "reading", "acknowledged is visible", "moves APPLIED and KEPT"),
    ("an orphan is left", "an orphan", "no sound store is refused", "SIGKILL strikes"),
    ("a failed commit is left", "kills", "no opening shows what was never committed", "is given an error"),
    ("O_DSYNC alone", "power", "no sound store is refused", "the power is cut; lost"),
    ("an opening does not flush", "power twice", "no sound store is refused", "the power is cut; lost"),
    ("a copy goes before its mark is void", "compaction twice", "no sound store is refused", "removes the copy"),
    ("a copy goes before its mark is void", "compaction twice, power", "no sound store is refused", "removes the copy"),
    ("leaving does not flush", "compaction, power", "acknowledged is visible", "SIGKILL strikes"),
]


@pytest.mark.parametrize("name", USUAL)
def test_the_log_keeps_its_promises_in_all_states_of(name: str) -> None:
    actors, bounds = CASTS[name]
    model = Model(name, actors, **bounds)
    try:
        model.run()
    except Broken as broken:
        pytest.fail("\n  ".join([broken.args[0], *broken.args[1]]))
    assert model.met >= REACHED[name]
    assert f"| {name} |" in PAGE
    row = next(row for row in PAGE.splitlines() if row.startswith(f"| {name} |"))
    assert row.endswith(f"| {model.states:,} |")


@pytest.mark.parametrize(("fault", "name", "broken", "step"), FOUND)
def test_a_fault_is_found(fault: str, name: str, broken: str, step: str) -> None:
    actors, bounds = CASTS[name]
    with pytest.raises(Broken) as found:
        Model(name, actors, fault=fault, **bounds).run()
    assert found.value.args[0] == broken
    assert any(step in one for one in found.value.args[1])
    assert re.search(rf"^\| {fault} \| {broken}", PAGE, re.M)


def test_each_fault_is_tried() -> None:
    assert {row[0] for row in FOUND} == set(FAULTS)


def test_the_page_names_each_step_of_the_model_and_functions_of_the_product_that_exist() -> None:
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|([^|]*)\|([^|]*)\|$", PAGE, re.M)
    named = {step for row in rows for step in re.findall(r"\w+", row[0])}
    steps = {name.removeprefix("step_") for name in vars(Model) if name.startswith("step_")}
    assert named == steps | {"lock", "tidy", "killed", "cut"}
    sources: dict[str, str] = {}
    for *_, places in rows:
        for functions, place in re.findall(r"((?:`\w+`(?:, )?)+) in `([\w/.]+)`", places):
            path = ROOT / place
            files = sorted(path.glob("*.py")) if path.is_dir() else [path]
            text = sources.setdefault(place, "".join(each.read_text(encoding="utf-8") for each in files))
            for function in re.findall(r"\w+", functions):
                assert re.search(rf"^ *def {function}\(", text, re.M), f"{place} has no {function}()"
    assert "storage/log" in sources
