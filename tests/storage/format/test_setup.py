"""setup.py: what it prints where the kernels cannot be compiled. One small kernel in a folder of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from raxlog.storage.kernels import KERNELS

ROOT = Path(__file__).resolve().parents[3]
pytest.importorskip("Cython")
pytest.importorskip("setuptools")
if not (ROOT / "setup.py").is_file():
    pytest.skip("the tests were taken out of their repository", allow_module_level=True)


def built(folder: Path, types: str, **env: str) -> str:
    """What a build of one kernel with these C types prints on stderr; nothing that it made is left."""
    room = folder / "storage"
    room.mkdir()
    shutil.copy(ROOT / "setup.py", folder)
    source = (ROOT / "storage" / "kernels.py").read_text()
    head, tail = source.split("KERNELS = (")
    (room / "kernels.py").write_text(f'{head}KERNELS = ("raxlog.storage.small",{tail[tail.index(chr(10) + ")"):]}')
    (room / "small.py").write_text('SOURCE_HASH = ""\n\n\ndef twice(number: int) -> int:\n    return 2 * number\n')
    (room / "small.pxd").write_text(types)
    env |= {name: value for name, value in os.environ.items() if name not in ("RAXLOG_NO_COMPILE", "CC")}
    done = subprocess.run([sys.executable, "setup.py", "build_ext"], cwd=folder, env=env, text=True,
                          capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert list(folder.glob("build/lib*/**/*.so")) == []
    return done.stderr


def test_an_error_of_cython_is_named(tmp_path: Path) -> None:
    printed = built(tmp_path, "cpdef int twice(nonsense number)\n", CC="cc")
    if "no C compiler" in printed or "no headers" in printed:
        pytest.skip("nothing can be compiled here")
    assert "'nonsense' is not a type identifier" in printed
    assert "the kernels run as plain Python: compiling them failed: CompileError: " in printed


def test_an_error_of_the_c_compiler_is_named(tmp_path: Path) -> None:
    printed = built(tmp_path, "cpdef int twice(int number)\n", CC="/bin/false")
    if "no headers" in printed:
        pytest.skip("nothing can be compiled here")
    assert "compiling them failed: CompileError: " in printed
    assert "'/bin/false'" in printed


def test_a_compiler_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "plain Python: no C compiler (/no/such/cc)" in built(tmp_path, "", CC="/no/such/cc -O1")


def test_no_kernel_begins_with_what_reads_like_an_encoding() -> None:
    """Cython 3.1 takes the word behind "coding:" for one, in a docstring too, and compiles none of the kernels."""
    for name in KERNELS:
        first = (ROOT / Path(*name.split(".")[1:]).with_suffix(".py")).read_text().splitlines()[:2]
        assert not any(re.search(r"coding[:=]\s*[-\w.]+", line) for line in first), name
