"""What the tests of opening, growing and forking ask of a store."""

from __future__ import annotations

import os
from pathlib import Path

import lmdb
import pytest
import raxlog


def numbers(store: raxlog.Store, name: str = "s") -> list[int]:
    return [int(entry.fields["n"]) for entry in store.stream(name).range()]


def map_size(store: raxlog.Store) -> int:
    return int(store._env.map._size())


def everything_in(folder: Path) -> list[tuple[str, int, bytes]]:
    return sorted((str(file), file.stat().st_mtime_ns, file.read_bytes())
                  for file in folder.rglob("*") if file.is_file())


def fill(stream: raxlog.Stream, size: int, at_once: int = 1, times: int = 100_000) -> int:
    """Append until the store is full (or so many times); how many entries went in."""
    for n in range(times):
        try:
            stream.extend([{"n": n, "x": bytes(size)}] * at_once)
        except raxlog.StoreFull:
            return n * at_once
    pytest.fail("the store is never full")


def cut_off_reserve(data: Path) -> None:
    """Shorten a data file to the pages that LMDB knows of: what raxlog has taken in advance lies behind them."""
    with lmdb.open(str(data.parent), readonly=True, lock=False) as env:
        pages = env.info()["last_pgno"] + 1
    os.truncate(data, min(data.stat().st_size, pages * 4096))
