"""An exception at any bytecode of a call on a group with a key: it is done or has changed nothing, and all goes on.

The program struck_keys.py does it, on the plain kernels. RAXLOG_LONG=1 strikes at each place of the group's code in
each call, and once at each of the layers below; else a few are drawn.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import struck_keys

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
SAMPLE = 0 if os.environ.get("RAXLOG_LONG") else 2


def struck(folder: Path, limits: str, sample: int, fault: str = "") -> subprocess.CompletedProcess[str]:
    print("seed", SEED)
    environment = {**os.environ, "RAXLOG_PURE": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, struck_keys.__file__, str(folder), limits, str(sample), str(SEED), fault]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.timeout(7200 if SAMPLE == 0 else 120)
@pytest.mark.parametrize("limits", struck_keys.LIMITS)
def test_no_key_is_left_busy_nor_given_twice_whichever_bytecode_of_a_call_is_struck(tmp_path: Path,
                                                                                   limits: str) -> None:
    done = struck(tmp_path, limits, SAMPLE)
    assert done.returncode == 0, done.stderr
    met = json.loads(done.stdout)
    print(met)
    assert met.keys() == struck_keys.CALLS.keys()


@pytest.mark.parametrize(("limits", "fault", "sample"), [
    ("order", "forgets nothing", 12), ("key", "remembers first", 0),
])  # fmt: skip
def test_a_group_that_remembers_what_was_not_done_is_caught(tmp_path: Path, limits: str, fault: str,
                                                            sample: int) -> None:
    found = struck(tmp_path, limits, sample, fault).stderr
    assert "AssertionError" in found
    assert "raised by a test" in found
