"""Increments, restoring, retention: a chain of snapshots leads back to every state it was made of."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import raxlog
from children import Child
from raxlog.recovery.snapshot import manifest, restore
from raxlog.storage.folder import directory
from snapshot_cases import STORE, change, fill, left_beside, live_records, records, small_disk

__all__ = ["small_disk"]

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
LONG = os.environ.get("RAXLOG_LONG") == "1"


def but_for_the_uuid(path: Path) -> dict[bytes, bytes]:
    """Every record but the store's own, which has a UUID that differs from store to store."""
    found = records(path)
    del found[STORE]
    return found


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, and of it a full snapshot and two increments, with a few entries from one to the next."""
    place = tmp_path_factory.mktemp("original")
    series = place / "series"
    with raxlog.open(place / "store.rax") as store:
        fill(store, 600)
        store.snapshot(series / "monday")
        store.stream("orders").append({"n": 1})
        store.snapshot(series / "tuesday", incremental_to=series / "monday")
        store.stream("orders").append({"n": 2})
        store.snapshot(series / "wednesday", incremental_to=series / "tuesday")
    return place


@pytest.fixture
def chain(original: Path, tmp_path: Path) -> list[Path]:
    """The snapshots of ``original``, copied for this test; the store is in ``store``."""
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    return [tmp_path / "series" / name for name in ("monday", "tuesday", "wednesday")]


@pytest.fixture
def their_store(chain: list[Path], tmp_path: Path) -> Iterator[raxlog.Store]:
    """The store that the chain is of."""
    with raxlog.open(tmp_path / "store.rax") as opened:
        yield opened


def test_every_link_of_a_chain_restores_to_the_state_it_was_made_of(store: raxlog.Store, tmp_path: Path) -> None:
    print(f"RAXLOG_SEED={SEED}")
    rng = random.Random(SEED)
    fill(store, 800)
    states = []
    for link in range(40 if LONG else 5):
        for _ in range(rng.randrange(4)):
            change(store, rng)
        before = tmp_path / "series" / str(link - 1)
        store.snapshot(tmp_path / "series" / str(link), incremental_to=before if link else None)
        states.append({key: value for key, value in live_records(store).items() if key != STORE})
    for link, state in enumerate(states):
        raxlog.restore(tmp_path / "series" / str(link), tmp_path / f"r{link}")
        assert but_for_the_uuid(tmp_path / f"r{link}") == state


def test_an_increment_holds_only_what_has_changed(store: raxlog.Store, tmp_path: Path) -> None:
    fill(store, 3000)
    full = store.snapshot(tmp_path / "s0")
    store.stream("orders").append({"n": 1})
    store.delete_stream(b"\xff\x00raw")
    made = store.snapshot(tmp_path / "s1", incremental_to=tmp_path / "s0")
    assert (made.kind, made.parent, made.parent_name) == ("increment", full.id, "s0")
    assert made.changed <= 3  # node, header, the store's record
    assert made.gone == full.records + made.changed - made.records - 2  # none of the three is new, or one
    assert made.bytes < full.bytes / 20
    same = store.snapshot(tmp_path / "s2", incremental_to=tmp_path / "s1")
    assert (same.changed, same.gone) == (0, 0)


def test_a_restored_store_is_one_of_its_own_and_goes_on(
    their_store: raxlog.Store, chain: list[Path], tmp_path: Path
) -> None:
    steps = []
    made = raxlog.restore(chain[-1], tmp_path / "r", progress=lambda *what: steps.append(what))
    assert made.id == manifest.read(chain[-1]).id
    assert {step for step, *_ in steps} == {"copy", "apply", "check"}
    assert all(0 <= done <= total for _, done, total in steps)
    with raxlog.open(tmp_path / "r") as restored:
        assert restored._env.record.uuid != their_store._env.record.uuid
        assert list(restored.stream("orders").range()) == list(their_store.stream("orders").range())
        restored.stream("orders").append({"n": 2})
        with pytest.raises(raxlog.StoreError, match="snapshot of another store"):
            restored.snapshot(tmp_path / "i", incremental_to=chain[-1])
        restored.snapshot(tmp_path / "i")
    their_store.stream("orders").append({"n": 3})


def test_a_chain_may_be_moved_and_renamed(chain: list[Path], tmp_path: Path) -> None:
    wanted = but_for_the_uuid(tmp_path / "store.rax")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for number, place in enumerate(chain):
        place.rename(elsewhere / f"copy {number}")
    raxlog.restore(elsewhere / "copy 2", tmp_path / "r")
    assert but_for_the_uuid(tmp_path / "r") == wanted


def test_a_missing_link_is_named(chain: list[Path], tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    chain[1].rename(tmp_path / "away" / "tuesday")
    with pytest.raises(raxlog.StoreError, match=r"'tuesday' .* is not in .*series"):
        raxlog.restore(chain[2], tmp_path / "r")
    assert not (tmp_path / "r").exists()
    assert not raxlog.verify(chain[2]).ok
    assert raxlog.verify(chain[0]).ok


def test_a_chain_that_leads_in_a_circle_is_refused(chain: list[Path], tmp_path: Path) -> None:
    made = manifest.read(chain[2])
    other = manifest.read(chain[1])
    manifest.write(chain[1], replace(other, parent=made.id, parent_name="wednesday"))
    with pytest.raises(raxlog.StoreError, match="is not in"):
        raxlog.restore(chain[2], tmp_path / "r")


def test_a_parent_that_is_none_is_refused(their_store: raxlog.Store, chain: list[Path], tmp_path: Path) -> None:
    their_store.snapshot(tmp_path / "shards", shards=2)
    for parent in (tmp_path / "nothing", their_store.path, tmp_path, tmp_path / "shards"):
        with pytest.raises(raxlog.StoreError, match="snapshot"):
            their_store.snapshot(tmp_path / "i", incremental_to=parent)
    digest = chain[0] / "digest"
    digest.write_bytes(digest.read_bytes()[:-1])
    with pytest.raises(raxlog.CorruptionError, match="digest"):
        their_store.snapshot(tmp_path / "i", incremental_to=chain[0])
    assert not (tmp_path / "i").exists()


def test_restore_overwrites_nothing_and_leaves_nothing(chain: list[Path], tmp_path: Path, small_disk: Path) -> None:
    with pytest.raises(raxlog.StoreError, match="is there already"):
        raxlog.restore(chain[0], tmp_path / "store.rax")
    for source, error in ((tmp_path / "nothing", raxlog.NotAStore), (tmp_path / "store.rax", raxlog.NotAStore),
                          (chain[0] / "digest", raxlog.NotAStore)):
        with pytest.raises(error):
            raxlog.restore(source, tmp_path / "r")
    (small_disk / "filler").write_bytes(bytes(990 << 10))
    with pytest.raises(raxlog.StoreFull):
        raxlog.restore(chain[0], small_disk / "r")
    assert not (tmp_path / "r").exists()
    assert [file.name for file in small_disk.iterdir()] == ["filler"]
    assert left_beside(tmp_path / "r") == []


def test_a_chain_of_a_newer_format_is_refused(chain: list[Path], tmp_path: Path) -> None:
    made = manifest.read(chain[0])
    manifest.write(chain[0], replace(made, store_format=9))
    with pytest.raises(raxlog.UnsupportedFormat, match="format 9"):
        raxlog.restore(chain[0], tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_kept_increment_keeps_what_it_builds_on(their_store: raxlog.Store, chain: list[Path]) -> None:
    beside = chain[0].parent
    raxlog.open(beside / "other.rax").close()
    with raxlog.open(beside / "other.rax") as other:
        other.snapshot(beside / "of another store")
    (beside / "damaged").mkdir()
    (beside / "damaged" / "manifest.json").write_text("{}")
    strangers = {"other.rax", "of another store", "damaged"}

    def names() -> set[str]:
        return {file.name for file in beside.iterdir()} - strangers

    their_store.snapshot(beside / "thursday", incremental_to=chain[2], keep=1)
    assert names() == {"monday", "tuesday", "wednesday", "thursday"}
    their_store.snapshot(beside / "friday", keep=2)
    assert names() == {"monday", "tuesday", "wednesday", "thursday", "friday"}
    their_store.snapshot(beside / "saturday", incremental_to=beside / "friday", keep=2)
    assert names() == {"friday", "saturday"}
    their_store.snapshot(beside / "sunday", keep=1)
    assert names() == {"sunday"}
    assert strangers <= {file.name for file in beside.iterdir()}


def test_a_removal_that_was_broken_off_is_finished_with_the_next(chain: list[Path]) -> None:
    other = chain[0].parent / "other"
    shutil.copytree(chain[0], other)

    def remove(say: object) -> None:
        directory.disk.remove_tree = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        directory.discard(other)

    with Child(remove) as child:
        child.wait()
    assert not other.exists()
    assert len(left_beside(other)) == 1
    assert restore.keep_last(other.parent, manifest.read(chain[0]), 5) == []
    assert left_beside(other) == []
