"""A disk that fills between commit and checkpoint: what was acknowledged has its room, and the next call is refused."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import raxlog
from children import Child

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
ROUNDS = 60 if os.environ.get("RAXLOG_LONG") else 6

Say = Callable[[Any], None]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of six megabytes, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", folder], capture_output=True,
                      check=False).returncode:
        pytest.skip("no file system may be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill_disk(store: raxlog.Store, filler: Path) -> None:
    """Leave no byte free on the disk."""
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def limit_file(store: raxlog.Store, filler: Path) -> None:
    """Let no file become longer than the data file is; the log is shorter."""
    size = (store._env.map.generation / "data.mdb").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def lower_ceiling(store: raxlog.Store, filler: Path) -> None:
    """Let the store have no more pages than it has."""
    log: Any = store._env.map.log
    log.room.ceiling = (store._env.map.generation / "data.mdb").stat().st_size


@pytest.mark.parametrize("fill", [fill_disk, limit_file, lower_ceiling])
@pytest.mark.parametrize("durability", ["commit", "relaxed"])
def test_no_checkpoint_fails_for_room_and_nothing_acknowledged_is_lost(
    small_disk: Path, fill: Callable[[raxlog.Store, Path], None], durability: str
) -> None:
    """Commits that lie in the log alone; then no more room; then a checkpoint, calls until one is refused, a kill."""
    print(f"RAXLOG_SEED={SEED}")
    for number in range(ROUNDS):
        rng, path, filler = random.Random(SEED + number), small_disk / f"{number}.rax", small_disk / "filler"

        def work(say: Say, path: Path = path, rng: random.Random = rng, filler: Path = filler) -> None:
            acked: dict[str, list[int]] = {name: [] for name in "abc"}
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            with raxlog.open(path, durability=durability) as store:
                log: Any = store._env.map.log
                log.every = 1 << 40  # no checkpoint comes by itself
                n = 0

                def commit() -> None:
                    nonlocal n
                    name, size = rng.choice("abc"), rng.choice((10, 200, 900, 4000, 20_000))
                    many = rng.choice((1, 1, 3))
                    store.stream(name).extend({"n": n + k, "x": bytes(size)} for k in range(many))
                    acked[name] += range(n, n + many)
                    n += many

                for _ in range(rng.randrange(1, 120)):
                    commit()
                while log.ring.words[0] == log.ring.words[1]:  # the last one was too large, and went to LMDB
                    commit()
                before = log.ring.words[0] - log.ring.words[1]
                room = {name: getattr(log.room, name) for name in ("direct", "have", "used", "mapped", "reusable")}
                fill(store, filler)
                log.checkpoints.make(True)
                assert log.ring.words[0] == log.ring.words[1]
                with contextlib.suppress(raxlog.StoreFull):
                    while True:
                        commit()
                log.checkpoints.make(True)
                name = max(acked, key=lambda name: len(acked[name]))
                store.stream(name).trim(maxlen=3)
                acked[name] = acked[name][-3:]
                assert store._env.map.failed_flush is None
                say((before, room, acked))
                if rng.random() < 0.7:
                    os.kill(os.getpid(), signal.SIGKILL)

        with Child(work) as child:
            before, room, acked = child.heard()
            child.wait()
            assert child.status in (0, -signal.SIGKILL)
        filler.unlink(missing_ok=True)
        assert before > 0, (number, room)
        with raxlog.open(path) as store:
            for name, numbers in acked.items():
                assert [int(entry.fields["n"]) for entry in store.stream(name).range()] == numbers, number
            store.stream("a").append({"x": bytes(20_000)})
        subprocess.run(["rm", "-rf", path], check=True)
