"""The types of raxlog.aio, as mypy --strict sees them in a program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import raxlog
from raxlog.tools.aio import handles

pytest.importorskip("mypy")
pytestmark = pytest.mark.docs

_PROGRAM = """
import raxlog.aio

async def state(store: raxlog.aio.AsyncStore) -> None:
    found: bytes | None = await store.state.get("k")
    either: bytes | int = await store.state.get("k", 5)
    reveal_type(await store.state.get("k", b""))
    await store.state.set("k", b"v")
    await store.state.delete("k")
    rows: list[tuple[str | bytes, bytes]] = await store.state.items()
    length: int = await store.state.length()
"""


def checked(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What mypy says of it, in whatever way raxlog is installed: mypy follows no finder of an editable install."""
    (folder / "program.py").write_text(program)
    (folder / "sources").mkdir(exist_ok=True)
    (folder / "sources" / "raxlog").symlink_to(Path(raxlog.__file__).parent)
    return subprocess.run([sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-error-summary",
                           "program.py"], cwd=folder, env={**os.environ, "MYPYPATH": "sources"}, capture_output=True,
                          text=True, timeout=300, check=False)


def test_a_program_of_the_loop_passes_mypy_strict_with_each_method_of_each_handle(tmp_path: Path) -> None:
    program = _PROGRAM
    for name, handle in vars(handles).items():
        if name.startswith("Async") and isinstance(handle, type) and handle.__module__ == handles.__name__:
            methods = [one for one in vars(handle) if not one.startswith("_")]
            program += f"\nasync def {name.lower()}(one: handles.{name}) -> None:\n" + "".join(
                f"    one.{method}\n" for method in methods)
    done = checked(f"from raxlog.tools.aio import handles\n{program}", tmp_path)
    assert 'Revealed type is "bytes"' in done.stdout
    assert done.returncode == 0, done.stdout + done.stderr
