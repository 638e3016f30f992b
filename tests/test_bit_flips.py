"""Bits flipped anywhere in a store: what is read is right, or told; and check finds what is missed.

1,000 uniform flips and 1,000 in the heads of pages, one at a time, each followed by every way to
read, in forked processes (damage may kill those, and the test counts it). RAXLOG_LONG=1 flips
100,000. What a run must show:

    0 wrong values, 0 scans or group reads that are silently short
    look-ups that miss a vanished key are counted, and check finds every one of them

The controls must fail: without checksums wrong values come through; an index row that was forgotten
is found by check.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import flipped_stores
import lmdb
import pytest
import raxlog
from flipped_stores import Flipper, Outcome
from raxlog.storage import layout

pytestmark = pytest.mark.storm

LONG = os.environ.get("RAXLOG_LONG") == "1"
PARTS = 4  # a run is cut up, so that both processors have something to do
FLIPS = (100_000 if LONG else 2_000) // 2 // PARTS


@pytest.fixture(scope="module")
def flipper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flipper]:
    """A sound store whose bits are flipped, in memory where the machine has such a file system."""
    shared = Path("/dev/shm")
    folder = tmp_path_factory.mktemp("flips")
    place = shared / f"raxlog-flips-{os.getpid()}" if os.access(shared, os.W_OK) else folder
    place.mkdir(exist_ok=True)
    try:
        flipped_stores.build(place / "sound.rax")
        yield Flipper(place / "sound.rax", place, seed=3)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def require_no_silent_damage(outcomes: list[Outcome], what: str) -> None:
    print(f"{what}: {flipped_stores.as_json(outcomes)}")
    wrong = [(outcome.flip, outcome.wrong) for outcome in outcomes if outcome.wrong]
    assert not wrong, f"silently wrong or short: {wrong[:5]}"
    unnoticed = [outcome for outcome in outcomes if (outcome.missed or outcome.killed) and not outcome.problems]
    assert not unnoticed, f"missed by readers and by check: {unnoticed[:5]}"
    told = [outcome for outcome in outcomes if outcome.verdicts[flipped_stores.TOLD]]
    assert told, "no flip did anything: the test is void"


@pytest.mark.parametrize("part", range(PARTS))
def test_a_bit_flipped_anywhere_is_never_read_as_data(flipper: Flipper, part: int) -> None:
    flips = flipped_stores.uniform(flipper.data, FLIPS, seed=100 + part)
    require_no_silent_damage(flipper.run(flips), f"uniform, part {part}")


@pytest.mark.parametrize("part", range(PARTS))
def test_a_bit_flipped_in_the_head_of_a_page_is_never_read_as_data(flipper: Flipper, part: int) -> None:
    flips = flipped_stores.in_heads(flipper.data, FLIPS, seed=200 + part)
    require_no_silent_damage(flipper.run(flips), f"heads of pages, part {part}")


def test_control_without_checksums_wrong_values_come_through(flipper: Flipper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raxlog.storage.block.xxh3_64_intdigest", lambda data, seed=0: _stated(data))
    outcomes = flipper.run(flipped_stores.uniform(flipper.data, 150, seed=1))
    assert any(outcome.wrong for outcome in outcomes)


def _stated(data: object) -> int:
    """A checksum that is always right: that which stands in front of the bytes it is asked about."""
    if isinstance(data, memoryview):
        return int.from_bytes(data.obj[:8], "little")  # type: ignore[index]
    return 0


@pytest.mark.parametrize("kind", [
    layout.NAME, layout.DEAD, layout.ORDINAL, layout.GROUP_NAME, layout.CONSUMER_NAME, layout.IDEMPOTENT,
    layout.IDEMPOTENT_AGE, layout.NODE, layout.HEADER, layout.GROUP, layout.CONSUMER, layout.PENDING,
    layout.PENDING_BY_CONSUMER, layout.PENDING_BY_TIME, layout.RELEASED,
], ids=hex)  # fmt: skip
def test_control_check_finds_every_row_that_is_forgotten(flipper: Flipper, tmp_path: Path, kind: int) -> None:
    """Each family's first, middle and last row in turn."""
    keys = [key for key in all_keys(flipper.sound) if key[8] == kind]
    assert keys
    if kind == layout.ORDINAL:
        pytest.skip("a note that is missing costs time only: nothing is wrong then")
    for place in {0, len(keys) // 2, len(keys) - 1}:
        copy = tmp_path / f"copy-{place}"
        shutil.copytree(flipper.sound, copy)
        with lmdb.open(str(copy / "000001"), map_size=1 << 28) as env, env.begin(write=True) as txn:
            assert txn.delete(keys[place])
        assert flipper.problems(copy), keys[place].hex()


def all_keys(path: Path) -> list[bytes]:
    with lmdb.open(str(path / "000001"), readonly=True, lock=False) as env, env.begin() as txn:
        return [bytes(key) for key, _ in txn.cursor()]


def test_the_sound_store_has_no_problems(flipper: Flipper) -> None:
    assert flipper.problems(flipper.sound) == 0
    report = raxlog.check(flipper.sound)
    assert report.ok, str(report)
    assert Counter(kind for kind in report.counts if report.counts[kind])["looked_up"] == 1
