"""Memory that runs out at the N-th allocation of a call: an error, nothing half there, and the process goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from raxlog.recovery.crashtest.record import recorder

pytestmark = pytest.mark.storm

PLAIN = ("append", "delete", "transaction", "group read", "ack", "nack", "claim", "delete stream")
PROGRAM = Path(__file__).parents[2] / "support" / "crash" / "out_of_memory.py"


@pytest.mark.parametrize("of", ["the C library's", "Python's", "Python's, plain"])
def test_each_allocation_of_each_call_may_fail(tmp_path: Path, require: Callable[[str], str], of: str) -> None:
    environ, some = {**os.environ}, PLAIN if "plain" in of else ()
    if of == "the C library's":
        require("cc")
        environ["LD_PRELOAD"] = str(recorder.library())
    else:
        pytest.importorskip("_testcapi")
        environ["RAXLOG_PURE"] = "1" if some else ""
    ran = subprocess.run([sys.executable, str(PROGRAM), str(tmp_path), *some], capture_output=True, text=True,
                         timeout=900, check=False, env=environ)
    assert ran.returncode == 0, ran.stderr[-3000:]
    cases = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [case for case in cases if case["wrong"]] == []
    assert len(cases) == len(some) or len(cases) >= 40
    assert sum(case["failed"] for case in cases) > 300, cases  # the control: it does strike
