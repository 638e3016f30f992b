"""Kernels: compiled or plain, and never from another source than the one that lies there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from raxlog.storage import kernels


def test_the_kernels_run_from_the_source_that_lies_beside_them():
    assert kernels.speed() in ("compiled", "plain Python")
    assert kernels.stale() == [], "compile again: pip install -e '.[test]'"
    if os.environ.get("RAXLOG_PURE") == "1":
        assert kernels.speed() == "plain Python"


def test_where_a_compiler_is_required_the_kernels_are_compiled():
    required = "cc" in os.environ.get("RAXLOG_REQUIRE", "").split(",")
    plain = os.environ.get("RAXLOG_PURE") == "1"
    assert not required or plain or kernels.speed() == "compiled"


@pytest.mark.parametrize("edited", ["decode.py", "decode.pxd", "stream_id.pxd", "listpack.pxd"])
def test_an_edited_source_beside_a_compiled_kernel_is_noticed(tmp_path, monkeypatch, edited):
    if kernels.speed() != "compiled":
        pytest.skip("the kernels are not compiled here")
    module = sys.modules["raxlog.stream.node.decode"]
    compiled = Path(str(module.__file__))
    source = compiled.with_name("decode.py")
    for name in (source, *kernels.types_of(source)):
        shutil.copy(name, tmp_path)
    monkeypatch.setattr(module, "__file__", str(tmp_path / compiled.name))
    assert kernels.stale() == []
    with (tmp_path / edited).open("a") as source:
        source.write("# changed\n")
    assert kernels.stale() == ["raxlog.stream.node.decode"]


def test_one_environment_variable_chooses_the_plain_source():
    question = "import raxlog; from raxlog.storage import kernels; print(kernels.speed())"
    env = os.environ | {"RAXLOG_PURE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    answer = subprocess.run(
        [sys.executable, "-c", question], env=env, capture_output=True, text=True, check=True
    )
    assert answer.stdout == "plain Python\n"
