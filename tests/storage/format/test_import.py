"""What importing raxlog brings along: nothing that most programs would pay for in vain."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import raxlog

HEAVY = ["pyspark", "pyarrow", "rich", "asyncio", "zstandard", "ctypes", "hashlib", "dataclasses", "socket"]


@pytest.mark.parametrize("module", HEAVY)
def test_importing_raxlog_does_not_import(module: str) -> None:
    say = f"import sys, raxlog; print({module!r} in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", say], check=True, capture_output=True, text=True)
    assert answer.stdout.strip() == "False"


def test_listing_the_streams_loads_only_what_it_needs(tmp_path: Path) -> None:
    raxlog.open(tmp_path / "s.rax").close()
    say = "import sys; from raxlog.tools.cli import main; main(sys.argv[1:]); print(*sys.modules)"
    answer = subprocess.run([sys.executable, "-c", say, "streams", str(tmp_path / "s.rax")], check=True,
                            capture_output=True, text=True)
    assert set(answer.stdout.split()).isdisjoint([*HEAVY, "inspect", "json", "shutil", "difflib", "base64"])
