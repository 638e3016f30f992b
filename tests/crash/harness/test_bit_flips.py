"""Bits flipped anywhere in a store: what is read is right, or told; and check finds what is missed.

1,000 uniform flips, 1,000 in the heads of pages and 400 in the two meta pages, one at a time,
each followed by every way to read, in forked processes (damage may kill those, and the test
counts it). What a run must show:

    0 wrong values, 0 scans or group reads that are silently short
    look-ups that miss a vanished key are counted, and check finds every one of them

The controls must fail: without checksums wrong values come through; an index row that was forgotten
is found by check.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import crash_parts
import flipped_stores
import lmdb
import pytest
import raxlog
from flipped_stores import Flipper
from raxlog.storage.format import keys as layout

pytestmark = pytest.mark.storm

PARTS = 4  # a run is cut up, so that both processors have something to do
FLIPS = 1_000 // PARTS


@pytest.fixture(scope="module")
def flipper() -> Iterator[Flipper]:
    """A sound store whose bits are flipped, in memory where the machine has such a file system."""
    with crash_parts.flipper() as flipper:
        yield flipper


@pytest.mark.parametrize("part", range(PARTS))
def test_a_bit_flipped_anywhere_is_never_read_as_data(flipper: Flipper, part: int) -> None:
    outcome = crash_parts.flips(flipper, "uniform", FLIPS, seed=100 + part)
    assert (outcome.tried, outcome.failed) == (FLIPS, 0)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_bit_flipped_in_the_head_of_a_page_is_never_read_as_data(flipper: Flipper, part: int) -> None:
    outcome = crash_parts.flips(flipper, "heads", FLIPS, seed=200 + part)
    assert (outcome.tried, outcome.failed) == (FLIPS, 0)


@pytest.mark.parametrize("part", range(2))
def test_a_row_in_the_place_of_another_is_never_read_as_data_and_no_search_goes_on_forever(
    flipper: Flipper, part: int
) -> None:
    outcome = crash_parts.flips(flipper, "pointers", 200, seed=400 + part)
    assert (outcome.tried, outcome.failed, outcome.also["killed"]) == (200, 0, 0)


@pytest.mark.parametrize("where", ["pointers", "heads", "uniform"])
def test_nor_is_it_where_the_log_holds_much_that_the_data_file_does_not(where: str) -> None:
    with crash_parts.flipper(logged=True) as flipper:
        outcome = crash_parts.flips(flipper, where, 150, seed=500)
    assert (outcome.tried, outcome.failed) == (150, 0)


@pytest.mark.parametrize("part", range(2))
def test_a_bit_flipped_in_a_meta_page_hides_nothing(flipper: Flipper, part: int) -> None:
    outcome = crash_parts.flips(flipper, "metas", 200, seed=300 + part)
    assert (outcome.tried, outcome.failed) == (200, 0)


def test_control_without_checksums_wrong_values_come_through(flipper: Flipper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raxlog.storage.format.records.xxh3_64_intdigest", lambda data, seed=0: _stated(data))
    outcomes = flipper.run(flipped_stores.uniform(flipper.data, 300, seed=1))
    assert any(outcome.wrong for outcome in outcomes)


def _stated(data: object) -> int:
    """A checksum that is always right: that which stands in front of the bytes it is asked about."""
    if isinstance(data, memoryview):
        return int.from_bytes(data.obj[:8], "little")  # type: ignore[index]
    return 0


@pytest.mark.parametrize("kind", [
    layout.NAME, layout.DEAD, layout.ORDINAL, layout.GROUP_NAME, layout.CONSUMER_NAME, layout.IDEMPOTENT,
    layout.IDEMPOTENT_AGE, layout.DEFERRED, layout.RESULT, layout.RESULT_AGE, layout.NODE, layout.HEADER,
    layout.GROUP, layout.CONSUMER, layout.PENDING, layout.PENDING_BY_CONSUMER, layout.PENDING_BY_TIME, layout.RELEASED,
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


def test_a_node_whose_key_has_lost_a_byte_is_told_by_readers_and_by_check_which_goes_on(
    flipper: Flipper, tmp_path: Path
) -> None:
    """Found by flips of key sizes: the walk ended there, in an error that was not raxlog's."""
    nodes = [key for key in all_keys(flipper.sound) if key[8] == layout.NODE]
    for place in (0, len(nodes) // 2, len(nodes) - 1):
        copy = tmp_path / f"copy-{place}"
        shutil.copytree(flipper.sound, copy)
        with lmdb.open(str(copy / "000001"), map_size=1 << 28) as env, env.begin(write=True) as txn:
            value = txn.pop(nodes[place])
            txn.put(nodes[place][:-1], value)
        assert any("24 bytes" in problem["what"] for problem in flipped_stores.problems_of(copy))
        assert any("24 bytes" in problem.what for problem in raxlog.check(copy).problems)
        with raxlog.open(copy, readonly=True, encoding=None) as store, pytest.raises(raxlog.CorruptionError):
            [list(store.stream(name).range()) for name in flipped_stores.STREAMS]


def all_keys(path: Path) -> list[bytes]:
    with lmdb.open(str(path / "000001"), readonly=True, lock=False) as env, env.begin() as txn:
        return [bytes(key) for key, _ in txn.cursor()]


def test_the_sound_store_has_no_problems(flipper: Flipper) -> None:
    assert flipper.problems(flipper.sound) == 0
    report = raxlog.check(flipper.sound)
    assert report.ok, str(report)
    assert Counter(kind for kind in report.counts if report.counts[kind])["looked_up"] == 1
