"""Creating a store: where it may be made, by many at once, and killed in the middle."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import raxlog
from children import Child, wait_until_stopped
from environment_cases import numbers
from raxlog.storage.engine import registry
from raxlog.storage.folder import directory
from raxlog.storage.format import records

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))


@pytest.mark.parametrize("readonly_path", ["missing.rax", "deep/er/missing.rax", "empty"])
def test_a_missing_store_is_not_made_by_opening_it_readonly(tmp_path: Path, readonly_path: str) -> None:
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(raxlog.NotAStore):
        raxlog.open(tmp_path / readonly_path, readonly=True)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("nowhere", ["missing.rax", "deep/er/missing.rax", "empty"])
def test_create_false_makes_nothing_and_opens_what_is_there(tmp_path: Path, nowhere: str) -> None:
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(raxlog.NotAStore):
        raxlog.open(tmp_path / nowhere, create=False)
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / nowhere).parent.mkdir(parents=True, exist_ok=True)
    with raxlog.open(tmp_path / nowhere) as store:
        store.stream("s").append({"n": 1})
    with raxlog.open(tmp_path / nowhere, create=False) as store, raxlog.open(tmp_path / nowhere, create=False) as again:
        again.stream("s").append({"n": 2})
        assert len(store.stream("s")) == 2


def test_a_store_is_made_in_an_empty_folder_and_not_below_missing_ones(tmp_path: Path) -> None:
    for folder in ("empty", "b[1]*"):
        (tmp_path / folder).mkdir()
    raxlog.open(tmp_path / "empty").close()
    raxlog.open(tmp_path / "b[1]*" / "c.rax").close()
    with pytest.raises(raxlog.StoreError, match="there is no folder"):
        raxlog.open(tmp_path / "a" / "c.rax")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["b[1]*", "empty"]


def test_processes_that_create_one_path_at_once_make_one_store_that_all_can_use(path: Path) -> None:
    for round_no in range(8):
        here = path.with_name(f"{round_no}.rax")
        start = time.monotonic() + 0.05

        def create(say: Callable[[Any], None], here: Path = here, start: float = start) -> None:
            time.sleep(max(0.0, start - time.monotonic()))
            with raxlog.open(here) as store:
                store.stream("s").append({"n": os.getpid()})
                say(store._env.record.uuid)

        children = [Child(create) for _ in range(8)]
        uuids = {child.finish()[0] for child in children}
        assert len(uuids) == 1
        with raxlog.open(here) as store:
            assert sorted(numbers(store)) == sorted(child.pid for child in children)
    assert not [file for file in path.parent.iterdir() if ".creating-" in file.name]


def _create(path: Path) -> Callable[[Callable[[Any], None]], None]:
    def create(say: Callable[[Any], None]) -> None:
        say("ready")
        raxlog.open(path).close()
        say("made")
        time.sleep(10)

    return create


@pytest.mark.storm
def test_creators_killed_at_random_moments_never_leave_a_store_that_will_not_open(path: Path) -> None:
    print(f"RAXLOG_SEED={SEED}")
    rng = random.Random(SEED)
    killed_before = 0
    for round_no in range(60):
        here = path.with_name(f"{round_no}.rax")
        with Child(_create(here)) as child:
            child.heard()
            time.sleep(rng.random() * 0.006)
            child.kill()
            killed_before += child.all_heard() == []
        with raxlog.open(here) as store:
            store.stream("s").append({"n": 1})
            assert numbers(store) == [1]
        assert not [file for file in path.parent.iterdir() if ".creating-" in file.name]
    assert killed_before > 5


@pytest.mark.parametrize("step", ["mkdir", "flock", "open_lmdb", "sync_file", "sync_folder", "rename", "after"])
def test_a_creator_killed_between_two_steps_leaves_nothing_that_hinders(path: Path, step: str) -> None:
    def create(say: Callable[[Any], None]) -> None:
        def die(*_: Any, **__: Any) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

        if step == "mkdir":
            directory.fcntl.flock = die
        elif step == "flock":
            registry._build = die
        elif step == "open_lmdb":
            records.seal = die
        elif step == "rename":
            os.rename = die
        elif step == "after":
            real = os.rename
            os.rename = lambda *names: (real(*names), die())  # type: ignore[assignment]
        else:
            setattr(directory, step, die)
        raxlog.open(path)

    with Child(create) as child:
        child.wait()
        assert child.status == -signal.SIGKILL
    if step != "after":
        assert not path.exists()
        assert [file for file in path.parent.iterdir() if ".creating-" in file.name]
    raxlog.open(path).close()
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_the_folder_of_a_creator_at_work_is_left_alone(path: Path) -> None:
    def create(say: Callable[[Any], None]) -> None:
        real = registry._build

        def build(*arguments: Any) -> None:
            real(*arguments)
            say("built")
            os.kill(os.getpid(), signal.SIGSTOP)

        registry._build = build
        with raxlog.open(path) as store:
            say(store._env.record.uuid)

    with Child(create) as child:
        child.heard()
        wait_until_stopped(child.pid)
        with raxlog.open(path) as store:
            assert [file for file in path.parent.iterdir() if ".creating-" in file.name]
            child.send(signal.SIGCONT)
            assert child.finish() == [store._env.record.uuid]
    assert [file.name for file in path.parent.iterdir()] == [path.name]
