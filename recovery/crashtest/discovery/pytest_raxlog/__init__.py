"""The pytest plugin: a fixture, a marker and two options.

    @pytest.mark.crash(images=2000, budget=10)
    def test_my_consumer_survives(crash_explorer):
        crash_explorer(workload, check)                 # raises where a crash is not survived

    pytest --crash-seed=7 --crash-budget=60             # the same cases again; seconds for each test

``crash_explorer`` is explore() with default modes (power cuts, every system call, a storm), the
options filled in, and raise_on_failure() at the end; it returns the report. pytest loads this
module in every run on a machine that has raxlog, so raxlog itself is imported by the fixture.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from raxlog.crashtest import Report

_MARKER = (
    "crash(images=2000, rounds=50, interrupts=0, seed=None, budget=None, ignore=()): a crash test; how many images of "
    "power cuts, rounds of a storm and interrupts its crash_explorer tries, and the seconds it may take"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("crash tests")
    group.addoption("--crash-seed", type=int, default=None, help="the seed of every crash test (default: random)")
    group.addoption("--crash-budget", default=None, metavar="SECONDS",
                    help="seconds for each crash test, like 30 or 30s; the report names what was left out")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)


def seconds_of(text: str | float | None) -> float | None:
    """The seconds of an option: 30, 30s, 2m, 1h."""
    if text is None or isinstance(text, (int, float)):
        return text
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        return float(number) * units[unit]
    except ValueError:
        raise pytest.UsageError(f"--crash-budget takes seconds, like 30 or 30s; not {text!r}") from None


@pytest.fixture
def crash_explorer(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Report]:
    """explore(), with the options of the command line and of the marker; raises on failure."""
    from raxlog.crashtest import Interrupts, KillAt, PowerCut, Storm, explore  # noqa: PLC0415 - only where it is used

    marker = request.node.get_closest_marker("crash")
    wanted = dict(marker.kwargs) if marker is not None else {}
    drawn = random.SystemRandom().randrange(1 << 32)
    chosen = request.config.getoption("--crash-seed")
    seed = next(each for each in (chosen, wanted.get("seed"), drawn) if each is not None)
    budget = seconds_of(request.config.getoption("--crash-budget") or wanted.get("budget"))
    usual = [
        PowerCut(wanted.get("images", 2000), tuple(wanted.get("ignore", ()))),
        KillAt.system_call("all"), Storm(wanted.get("rounds", 50)),
        *(Interrupts(how, count) for how in ("traced", "signals") if (count := wanted.get("interrupts", 0))),
    ]

    def explorer(workload: object, check: object, *, modes: Sequence[object] = usual, **options: object) -> Report:
        options = {"seed": seed, "budget": budget, "keep": tmp_path / "crashes", **options}
        report = explore(workload, check, modes=modes, **options)  # type: ignore[arg-type]  # checked there
        print(f"--crash-seed={options['seed']}\n{report}")
        report.raise_on_failure()
        return report

    return explorer
