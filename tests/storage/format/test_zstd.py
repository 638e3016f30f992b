"""zstd from Python's own library (3.14 on) and from the package zstandard: each reads what the other writes."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from raxlog.storage.format import zstd

CONTENTS = [b"x", bytes(100), os.urandom(1000), b"some text, and some more of it " * 20_000]


@pytest.fixture(params=["own", "zstandard"])
def writer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    return built_on(request.param, monkeypatch)


@pytest.fixture(params=["own", "zstandard"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    return built_on(request.param, monkeypatch)


def built_on(library: str, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """storage/format/zstd.py as a Python runs it that has the library, or has not."""
    if library == "own" and sys.version_info < (3, 14):
        stand_in = ModuleType("compression")
        stand_in.zstd = pytest.importorskip("backports.zstd")  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "compression", stand_in)
    if library == "zstandard":
        importlib.import_module("zstandard")
    source = Path(zstd.__file__).read_text(encoding="utf-8")
    chosen = source.replace("if sys.version_info >= (3, 14):", f"if {library == 'own'}:")
    assert chosen != source
    names = {"__name__": f"zstd_{library}"}
    exec(compile(chosen, library, "exec"), names)
    return SimpleNamespace(**names)


@pytest.mark.parametrize("content", CONTENTS, ids=len)
def test_each_reads_the_frames_of_the_other(writer: SimpleNamespace, reader: SimpleNamespace, content: bytes) -> None:
    frame = writer.compress(content)
    assert reader.stated_size(frame) == len(content)
    assert reader.decompress(frame, len(content)) == content
    for wrong in (frame[:-1], b"", b"??" + frame):
        with pytest.raises(reader.ERRORS):
            reader.decompress(wrong, len(content))
    with pytest.raises(reader.ERRORS):
        reader.stated_size(b"none")


@pytest.mark.parametrize("content", CONTENTS, ids=len)
def test_each_reads_the_files_of_the_other_and_sees_a_flipped_bit(
    writer: SimpleNamespace, reader: SimpleNamespace, content: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    with writer.create(file) as rows:
        rows.write(content[:10])
        rows.write(bytearray(content[10:]))
    with file.open("rb") as opened, reader.unpacked(opened) as rows:
        assert b"".join(iter(lambda: rows.read(4096), b"")) == content
    packed = file.read_bytes()
    file.write_bytes(packed[:-1] + bytes([packed[-1] ^ 4]))  # the checksum comes last
    with file.open("rb") as opened, reader.unpacked(opened) as rows, pytest.raises(reader.ERRORS):
        list(iter(lambda: rows.read(4096), b""))
