"""What is no store, or no longer whole, is refused by open() and left alone."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest
import raxlog
from children import Child
from environment_cases import cut_off_reserve, map_size, numbers
from raxlog.storage.format import keys, records


def _rewrite_store_record(path: Path, change: Callable[[list[Any]], None]) -> None:
    with lmdb.open(str(path / "000001")) as env, env.begin(write=True) as txn:
        row = records.unseal(keys.STORE_KEY, txn.get(keys.STORE_KEY))
        change(row)
        txn.put(keys.STORE_KEY, records.seal(keys.STORE_KEY, row))


def test_a_store_of_a_newer_format_is_refused(path: Path) -> None:
    raxlog.open(path).close()
    _rewrite_store_record(path, lambda row: row.__setitem__(0, keys.STORE_FORMAT + 1))
    for readonly in (False, True):
        with pytest.raises(raxlog.UnsupportedFormat, match="raxlog export"):
            raxlog.open(path, readonly=readonly)


def test_another_programs_lmdb_file_is_refused_and_left_alone(path: Path) -> None:
    (path / "000001").mkdir(parents=True)
    (path / "CURRENT").write_text("000001\n")
    with lmdb.open(str(path / "000001")) as env, env.begin(write=True) as txn:
        txn.put(b"key", b"value")
    before = (path / "000001" / "data.mdb").read_bytes()
    with pytest.raises(raxlog.NotAStore, match="no raxlog store"):
        raxlog.open(path)
    assert (path / "000001" / "data.mdb").read_bytes() == before


@pytest.mark.parametrize("content", [
    b"", b"\n", b"rubbish\n", b"../../etc\n", b"/\n", b"000002\n", b"\xff\xfe", b"0" * 5000, "١\n".encode(),
], ids=repr)
def test_a_current_that_names_no_generation_is_refused(path: Path, content: bytes) -> None:
    raxlog.open(path).close()
    (path / "CURRENT").write_bytes(content)
    with pytest.raises(raxlog.NotAStore):
        raxlog.open(path)
    assert (path / "CURRENT").read_bytes() == content


def test_a_store_whose_current_a_cleaner_took_is_refused_with_the_way_to_its_entries(path: Path) -> None:
    with raxlog.open(path) as store:
        store.stream("s").append({"n": 1})
    (path / "CURRENT").unlink()
    with pytest.raises(raxlog.NotAStore, match="raxlog salvage"):
        raxlog.open(path)
    assert raxlog.salvage(path, path.with_name("rescued.rax")).streams
    with raxlog.open(path.with_name("rescued.rax")) as store:
        assert [entry.fields["n"] for entry in store.stream("s")] == ["1"]


def test_a_folder_or_file_that_is_no_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for wrong in ("folder", "file", "file/below", "folder/mine.txt/below/that"):
        for readonly in (False, True):
            with pytest.raises(raxlog.NotAStore):
                raxlog.open(tmp_path / wrong, readonly=readonly)
    assert sorted(file.name for file in tmp_path.rglob("*")) == ["file", "folder", "mine.txt"]


def _open_in_child(path: Path, readonly: bool) -> Child:
    def use(say: Callable[[Any], None]) -> None:
        try:
            with raxlog.open(path, readonly=readonly) as store:
                say([len(list(store.stream(name).range())) for name in store.streams()])
        except raxlog.RaxlogError as error:
            say(error)

    return Child(use)


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("size", [0, 1, 100, 4096, 8191, 8192, 12_288, 40_000, -4096 * 40])
def test_a_data_file_that_is_cut_off_is_an_error_never_a_crash(path: Path, size: int, readonly: bool) -> None:
    with raxlog.open(path) as store:
        store.stream("s").extend([{"n": n, "x": bytes(1000)} for n in range(300)])
    data = path / "000001" / "data.mdb"
    cut_off_reserve(data)
    whole = data.read_bytes()
    os.truncate(data, size if size >= 0 else len(whole) + size)
    with _open_in_child(path, readonly) as child:
        said = child.finish()[0]
    assert isinstance(said, raxlog.CorruptionError | raxlog.NotAStore), said
    assert data.stat().st_size == (size if size >= 0 else len(whole) + size)
    data.write_bytes(whole)
    with _open_in_child(path, readonly) as child:
        assert child.finish() == [[300]]


def test_a_file_that_lmdb_left_shorter_than_it_counts_still_opens(path: Path) -> None:
    """LMDB does not write pages that were taken and freed in one transaction, also at the end. Older stores have it."""
    with raxlog.open(path) as store:
        store.stream("s").append({"n": 1})
    with lmdb.open(str(path / "000001"), map_size=1 << 30) as env:
        for _ in range(3):
            with env.begin(write=True) as txn:
                txn.put(b"large", bytes(2_000_000))
                txn.delete(b"large")
        info = env.info()
    short = (path / "000001" / "data.mdb").stat().st_size < (info["last_pgno"] + 1) * 4096
    assert short, "LMDB has changed: this test has lost its subject"
    with raxlog.open(path) as store:
        assert numbers(store) == [1]


@pytest.mark.parametrize("seed", range(6))
def test_random_bytes_for_a_data_file_are_refused(path: Path, seed: int) -> None:
    raxlog.open(path).close()
    data = path / "000001" / "data.mdb"
    data.write_bytes(random.Random(seed).randbytes(4096 * (seed + 1) + seed))
    for readonly in (False, True):
        with _open_in_child(path, readonly) as child:
            assert isinstance(child.finish()[0], raxlog.NotAStore | raxlog.CorruptionError)


def test_a_store_record_with_a_flipped_bit_is_a_corruption_error(path: Path) -> None:
    raxlog.open(path).close()
    with lmdb.open(str(path / "000001")) as env, env.begin(write=True) as txn:
        value = bytearray(txn.get(keys.STORE_KEY))
        value[-1] ^= 1
        txn.put(keys.STORE_KEY, bytes(value))
    with pytest.raises(raxlog.CorruptionError):
        raxlog.open(path)


def test_a_store_open_through_py_lmdb_itself_is_a_conflict(path: Path) -> None:
    raxlog.open(path).close()
    with lmdb.open(str(path / "000001")), pytest.raises(raxlog.SettingsConflict, match="py-lmdb"):
        raxlog.open(path)
    raxlog.open(path).close()


def test_a_reader_broken_off_between_its_last_steps_does_not_hold_up_growth(path: Path) -> None:
    """What Ctrl-C can leave: a read that has begun, and whose end was never reached."""
    with raxlog.open(path, map_size=1 << 16) as store:
        store._env.read().__enter__()
        began = time.monotonic()
        store.stream("s").extend([{"n": n, "x": bytes(1000)} for n in range(300)])
        assert time.monotonic() - began < 5
        assert map_size(store) > 1 << 16
        assert len(numbers(store)) == 300
