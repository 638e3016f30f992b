"""What the tests of snapshots share: every record of a store, a store of every kind of record, a small disk."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest
import raxlog

LOG = bytes(8) + b"\x05"
STORE = bytes(8) + b"\x01"


def records(path: Path) -> dict[bytes, bytes]:
    """Every record of a store or full snapshot that no process has open, its journal left out."""
    generation = path / (path / "CURRENT").read_text().strip()
    size = (generation / "data.mdb").stat().st_size
    with lmdb.open(str(generation), readonly=True, lock=False, map_size=size, max_dbs=1) as env, env.begin() as txn:
        return {bytes(key): bytes(value) for key, value in txn.cursor() if not bytes(key).startswith(LOG)}


def live_records(store: raxlog.Store) -> dict[bytes, bytes]:
    """Every record of an open store, its journal left out."""
    with store._env.read() as txn:
        return {key: value for key, value in txn.cursor() if not key.startswith(LOG)}


def fill(store: raxlog.Store, entries: int = 3000) -> None:
    """Streams of both codecs, deleted entries, groups, pending and released ones, state, a name that is not text."""
    orders = store.stream("orders")
    orders.extend([{"item": f"book {n}", "n": n} for n in range(entries)])
    ids = [entry.id for entry in orders.range()]
    orders.delete(*ids[10:500:3])
    orders.trim(maxlen=entries - entries // 5)
    orders.create_group("billing", "0")
    billing = orders.group("billing")
    got = billing.read("anna", count=40)
    billing.read("bob", count=30)
    billing.ack(*[entry.id for entry in got[:10]])
    billing.nack(got[12].id, delay=3600)
    orders.create_group("audit", "$")
    store.stream(b"\xff\x00raw", compression="zstd").extend([{"x": "y" * 30, "n": n} for n in range(entries // 2)])
    store.stream("gone").append({"n": 1})
    store.delete_stream("gone")
    empty = store.stream("empty")
    empty.delete(empty.append({"n": 1}))
    with store.transaction() as tx:
        tx.state["counter"] = b"17"


def change(store: raxlog.Store, rng: random.Random) -> None:
    """One random change of the kinds that a snapshot must not miss."""
    orders = store.stream("orders")
    ids = [entry.id for entry in orders.range(count=200)]
    kind = rng.randrange(7)
    if kind == 0 or not ids:
        orders.extend([{"n": rng.randrange(1000)} for _ in range(rng.randrange(1, 300))])
    elif kind == 1:
        orders.delete(*rng.sample(ids, min(len(ids), 50)))
    elif kind == 2:
        orders.trim(maxlen=max(1, len(orders) - rng.randrange(500)))
    elif kind == 3 and orders.exists():
        if not orders.groups():
            orders.create_group("late", "0")
        group = orders.group(orders.groups()[0].name)
        group.ack(*[entry.id for entry in group.read("carl", count=30)[::2]])
    elif kind == 4:
        with store.transaction() as tx:
            tx.state[f"key {rng.randrange(5)}"] = rng.randbytes(20)
    elif kind == 5:
        store.stream(f"s{rng.randrange(3)}").append({"n": 1})
    else:
        store.delete_stream(f"s{rng.randrange(3)}")


def left_beside(path: Path) -> list[str]:
    """What broken-off builders have left beside a path."""
    return [file.name for file in path.parent.iterdir() if ".creating-" in file.name]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte, where this user may mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, check=False
    ).returncode == 0
    if not mounted:
        pytest.skip("no file system may be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def flipped(data: bytes, at: int, rng: random.Random) -> bytes:
    """The bytes with one bit of one of them flipped."""
    changed = bytearray(data)
    changed[at] ^= 1 << rng.randrange(8)
    return bytes(changed)


def files_of(path: Path) -> Iterator[Path]:
    """Every file of a snapshot."""
    return (file for file in sorted(path.rglob("*")) if file.is_file())


def told(manifest: Any) -> dict[bytes, tuple[Any, ...]]:
    """What a manifest says of each stream, in short."""
    return {stream.name: (stream.length, stream.first, stream.last, stream.nodes) for stream in manifest.streams}
