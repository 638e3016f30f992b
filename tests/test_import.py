"""What importing raxlog brings along: nothing that most programs would pay for in vain."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ["pyspark", "pyarrow", "rich", "asyncio", "zstandard", "ctypes", "hashlib", "dataclasses", "socket"]


@pytest.mark.parametrize("module", HEAVY)
def test_importing_raxlog_does_not_import(module: str) -> None:
    say = f"import sys, raxlog; print({module!r} in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", say], check=True, capture_output=True, text=True)
    assert answer.stdout.strip() == "False"
