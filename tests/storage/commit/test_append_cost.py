"""What one durable append costs that can be counted: the pages it writes, the calls that make it slow."""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import raxlog

PAGE = 4096


def bytes_written() -> int:
    """What this process has handed to the kernel for writing so far."""
    for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1])
    raise AssertionError("/proc/self/io tells no wchar")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counted through /proc")
@pytest.mark.parametrize("entries", [0, 50_000])
def test_a_lone_append_writes_six_pages_at_most(tmp_path: Path, entries: int) -> None:
    row = {"sensor": "device-000123", "temp": 21.5, "seq": 12345}
    with raxlog.open(tmp_path / "store.rax") as store:
        stream = store.stream("events")
        stream.extend([row] * entries)
        stream.append(row)
        before = bytes_written()
        for _ in range(300):
            stream.append(row)
        assert (bytes_written() - before) / 300 / PAGE <= 6


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counted through /proc")
@pytest.mark.parametrize(("size", "compression", "pages"), [(2100, "none", 8), (4100, "none", 10), (8200, "none", 11),
                                                            (300, "zstd", 7)])
def test_a_lone_append_to_a_node_of_several_pages_writes_few_more(
    tmp_path: Path, size: int, compression: str, pages: int
) -> None:
    """With an entry to a node it were 5, 6 and 8, and 4 where each page was packed by itself."""
    chance = random.Random(7)
    text = bytes(chance.choices(b"etaoinshrdlu ", k=20_000))
    with raxlog.open(tmp_path / "store.rax", compression=compression) as store:
        stream = store.stream("events")
        before = 0
        for n in range(240):
            if n == 40:  # the first node's limits are learned
                before = bytes_written()
            at = chance.randrange(10_000)
            stream.append({"doc": text[at : at + size]})
        assert (bytes_written() - before) / 200 / PAGE <= pages


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counted through /proc")
def test_reading_and_acknowledging_a_hundred_writes_few_pages(tmp_path: Path) -> None:
    row = {"sensor": "device-000123", "temp": 21.5, "seq": 12345}
    with raxlog.open(tmp_path / "store.rax") as store:
        stream = store.stream("events")
        stream.extend([row] * 20_000)
        group = stream.create_group("g", "0")
        held = [entry.id for entry in group.read("w", 100)]
        before = bytes_written()
        for _ in range(100):
            held = [entry.id for entry in group.read("w", 100, ack=held)]
        assert (bytes_written() - before) / 100 / PAGE <= 8


@pytest.mark.parametrize("durability", ["commit", "relaxed"])
def test_an_append_does_not_ask_for_the_log_s_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: Any
) -> None:
    """Linux keeps a time that was asked for exact: ext4 saves it with the next write, which takes twice as long."""
    asked: Counter[str] = Counter()

    def counted(name: str, log: int) -> None:
        real = getattr(os, name)

        def counting(*given: Any, **options: Any) -> Any:
            status = real(*given, **options)
            asked[name] += status.st_ino == log
            return status

        monkeypatch.setattr(os, name, counting)

    with raxlog.open(tmp_path / "store.rax", durability=durability) as store:
        stream = store.stream("events")
        began = time.monotonic()
        # Each append looks at all files while their folder has just changed, and once more where the kernel's events
        # take over, after 200 looks: a busy machine makes fewer in 0.2 s.
        while time.monotonic() < began + 0.2 or len(stream) < 500:
            stream.append({"n": 0})
        (log,) = (tmp_path / "store.rax").glob("*/log")
        inode = log.stat().st_ino
        for name in ("stat", "fstat", "lstat"):
            counted(name, inode)
        for n in range(2000):
            stream.append({"n": n})
        assert not asked.total()
