"""Paths that hold no store, or none that this raxlog reads, and whether a refusal left them as they were."""

from __future__ import annotations

import os
from pathlib import Path

import lmdb
import raxlog
from raxlog.storage.format import keys, records
from raxlog.storage.log import ring


def as_store(path: Path, data: bytes) -> Path:
    """A store's folder with these bytes for its data file."""
    (path / "000001").mkdir(parents=True)
    (path / "CURRENT").write_text("000001\n")
    (path / "000001" / "data.mdb").write_bytes(data)
    return path


def other_program(path: Path) -> Path:
    """An LMDB file of another program, where a store has its own."""
    with lmdb.open(str(path / "000001"), map_size=1 << 20) as env, env.begin(write=True) as txn:
        txn.put(b"some key", b"some value")
    return path


def newer(path: Path) -> Path:
    """A store whose format is one above ours."""
    with raxlog.open(path):
        pass
    with lmdb.open(str(path / "000001"), map_size=1 << 20) as env, env.begin(write=True) as txn:
        row = records.unseal(keys.STORE_KEY, bytes(txn.get(keys.STORE_KEY)))
        txn.put(keys.STORE_KEY, records.seal(keys.STORE_KEY, [keys.STORE_FORMAT + 1, *row[1:]]))
    return path


def bad_stores(tmp_path: Path) -> list[tuple[Path, type[Exception]]]:
    """Paths that hold no store that can be checked or salvaged, and what is raised for each."""
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "random").write_bytes(os.urandom(20_000))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "something").write_text("else")
    other = tmp_path / "other.rax"
    (other / "000001").mkdir(parents=True)
    (other / "CURRENT").write_text("000001\n")
    return [
        (tmp_path / "absent", raxlog.NotAStore),
        (tmp_path / "empty", raxlog.NotAStore),
        (tmp_path / "random", raxlog.NotAStore),
        (tmp_path / "folder", raxlog.NotAStore),
        (other_program(other), raxlog.NotAStore),
        (newer(tmp_path / "newer.rax"), raxlog.UnsupportedFormat),
    ]


def everything_in(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All files and what is in them; of those in which readers come and go, that they are there."""
    shared = ("lock.mdb", ring.STATE)
    return {str(file.relative_to(folder)):
            (file.stat().st_mode, file.read_bytes() if file.is_file() and file.name not in shared else b"")
            for file in sorted(folder.rglob("*"))}
