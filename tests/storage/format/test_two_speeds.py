"""The kernels run compiled and as plain Python, from one source, and must do the same.

stream/node/decode.py ─┬─ compiled ─────> this run, all tests
                └─ RAXLOG_PURE=1 > a second run inside this one: unit, property and
                                   format tests, no storms and no redis-server
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from raxlog.storage import kernels

_INNER = "RAXLOG_TESTING_PLAIN"  # set in the second run, so that it starts no third


def test_no_compiled_kernel_is_older_than_its_source() -> None:
    assert kernels.stale() == [], "compile again: pip install -e '.[test]'"


def test_the_kernels_are_all_compiled_or_all_plain() -> None:
    assert kernels.speed() in {"compiled", "plain Python"}


def test_where_a_compiler_is_required_the_kernels_are_compiled() -> None:
    required = "cc" in os.environ.get("RAXLOG_REQUIRE", "").split(",")
    plain = os.environ.get("RAXLOG_PURE") == "1"
    assert not required or plain or kernels.speed() == "compiled"


def test_plain_kernels_are_loaded_where_they_are_asked_for() -> None:
    say = "import raxlog; from raxlog.storage import kernels; print(kernels.speed())"
    answer = subprocess.run(
        [sys.executable, "-c", say],
        env={**os.environ, "RAXLOG_PURE": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert answer.stdout.strip() == "plain Python"


@pytest.mark.timeout(1800)
def test_everything_but_the_long_tests_passes_uncompiled_as_well() -> None:
    if os.environ.get(_INNER):
        pytest.skip("this is the run with plain kernels")
    if kernels.speed() != "compiled":
        pytest.skip("the kernels are plain Python: this very run tests them")
    command = [sys.executable, "-m", "pytest", str(Path(__file__).parents[2]), "-q", "-n", "2"]
    run = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-m", "not storm and not redis"],
        env={**os.environ, "RAXLOG_PURE": "1", _INNER: "1"},
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if run.returncode:
        pytest.fail(f"with plain kernels:\n{run.stdout}", pytrace=False)
