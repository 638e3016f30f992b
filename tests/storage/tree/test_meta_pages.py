"""The meta pages: no bit of a transaction's number hides a commit, and no sound store is refused.

Every bit of both pages is read through in test_bit_flips.py. Here each bit of both numbers is
flipped in stores whose newest transactions are of all four remainders by 4, for it is the number's
lowest bits that could make the two pages look as if they belonged together.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import crash_parts
import lmdb
import pytest
import raxlog
from counting import checkpoint
from raxlog.storage.tree import lmdb_file
from raxlog.storage.tree.lmdb_file import Meta, PageFile

PAGE = 4096
NUMBER = 144  # where a meta page holds its transaction; its last page stands before it
LARGE = 112  # and the number of pages of large values
FIRST = 20


@pytest.fixture
def folder() -> Iterator[Path]:
    with crash_parts.in_memory() as folder:
        yield folder


def made(path: Path, entries: int, **options: bool) -> list[Meta]:
    """A store of so many entries, each a commit of LMDB's; its meta pages, the newer first."""
    with raxlog.open(path, **options) as store:
        for number in range(entries):
            store.stream("s").append({"n": number})
            checkpoint(store)
    return metas(path)


def data_of(path: Path) -> Path:
    return path / "000001" / "data.mdb"


def metas(path: Path) -> list[Meta]:
    with PageFile(data_of(path)) as file:
        return file.metas()


def overwrite(path: Path, offset: int, content: bytes) -> None:
    with data_of(path).open("r+b") as file:
        file.seek(offset)
        file.write(content)


def flip(path: Path, bit: int) -> None:
    with data_of(path).open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def last(path: Path, **options: bool) -> str:
    with raxlog.open(path, **options) as store:
        (entry,) = store.stream("s").range(reverse=True, count=1)
        return str(entry.fields["n"])


@pytest.mark.parametrize("extra", range(4))
@pytest.mark.parametrize("readonly", [False, True])
def test_no_bit_of_a_transactions_number_hides_the_last_commit(folder: Path, extra: int, readonly: bool) -> None:
    made(folder / "sound.rax", FIRST + extra)
    messages = []
    for page in (0, 1):
        for bit in range(64):
            copy = folder / f"{page}-{bit}.rax"
            shutil.copytree(folder / "sound.rax", copy)
            flip(copy, 8 * (PAGE * page + NUMBER) + bit)
            there = FIRST + extra - 1
            try:
                assert last(copy, readonly=readonly) == str(there), (page, bit)
            except raxlog.CorruptionError as error:
                messages.append(str(error))
            shutil.rmtree(copy)
    assert len(messages) > 64
    assert all("meta page" in message and "salvage" in message for message in messages)


@pytest.mark.parametrize("bit", [0, 2, 40])
@pytest.mark.parametrize("older", [False, True])
def test_check_tells_and_salvage_finds_the_newest_state_all_the_same(folder: Path, bit: int, older: bool) -> None:
    found = made(folder / "s.rax", FIRST + 1)
    flip(folder / "s.rax", 8 * (PAGE * found[older].slot + NUMBER) + bit)
    assert not raxlog.check(folder / "s.rax").ok
    raxlog.salvage(folder / "s.rax", folder / "new.rax")
    assert last(folder / "new.rax") == str(FIRST)


def test_what_a_failed_write_of_the_meta_page_leaves_is_no_damage(folder: Path) -> None:
    """LMDB puts the old number and last page back then, and leaves the rest of the page as it would have been."""
    before, _ = made(folder / "s.rax", FIRST)
    older = metas(folder / "s.rax")[1]
    with raxlog.open(folder / "s.rax") as store:
        store.stream("s").append({"n": "lost" * 500})
    overwrite(folder / "s.rax", PAGE * older.slot + NUMBER - 8, struct.pack("=QQ", older.last_page, older.transaction))
    assert metas(folder / "s.rax")[0] == before
    assert last(folder / "s.rax") == "lost" * 500, "the log has it"
    assert made(folder / "s.rax", 1)[0].transaction > before.transaction


def test_an_older_state_that_has_been_written_over_is_no_damage(folder: Path) -> None:
    """As after a power cut in the middle of a commit whose forerunner's meta page was not yet on the disk."""
    found = made(folder / "s.rax", FIRST)
    overwrite(folder / "s.rax", PAGE * found[1].free_root, os.urandom(PAGE))
    assert last(folder / "s.rax") == str(FIRST - 1)


def test_where_the_list_of_free_pages_is_damaged_the_store_can_still_be_read(folder: Path) -> None:
    found = made(folder / "s.rax", FIRST)
    overwrite(folder / "s.rax", PAGE * found[0].free_root + 8, os.urandom(100))
    assert last(folder / "s.rax", readonly=True) == str(FIRST - 1)
    with pytest.raises(raxlog.CorruptionError, match=r"list of free pages.*readonly=True"):
        raxlog.open(folder / "s.rax")


def test_a_last_page_far_behind_the_file_is_told_at_once(folder: Path) -> None:
    found = made(folder / "s.rax", FIRST)
    for value in (1 << 40, (1 << 62) + 5, 3):
        copy = folder / f"{value}.rax"
        shutil.copytree(folder / "s.rax", copy)
        overwrite(copy, PAGE * found[0].slot + NUMBER - 8, struct.pack("=Q", value))
        with pytest.raises(raxlog.CorruptionError):
            raxlog.open(copy)


def test_where_fewer_pages_are_counted_than_are_freed_what_is_written_is_refused(folder: Path) -> None:
    """LMDB goes below zero then, as it does where a row's head is damaged: what room there is cannot be known."""
    path = folder / "s.rax"
    made(path, FIRST)
    with raxlog.open(path) as store:
        store.state["large"] = b"x" * 50_000
    overwrite(path, PAGE * metas(path)[0].slot + LARGE, bytes(8))
    with raxlog.open(path) as store:
        del store.state["large"]
        with pytest.raises(raxlog.CorruptionError, match=r"LMDB counts .* pages"):
            checkpoint(store)
        assert len(store.stream("s")) == FIRST
        with pytest.raises(raxlog.CorruptionError, match="LMDB counts"):
            store.close()
    with pytest.raises(raxlog.CorruptionError, match="meta page"):
        raxlog.open(path)


def test_an_end_that_was_freed_before_it_was_written_is_not_missed(folder: Path) -> None:
    path = folder / "s.rax"
    made(path, FIRST)
    with lmdb.open(str(path / "000001"), map_size=1 << 30) as env, env.begin(write=True) as txn:
        txn.put(b"large", b"y" * 30_000_000)
        txn.delete(b"large")
    with PageFile(data_of(path)) as file:
        assert file.pages <= file.metas()[0].last_page, "the file has its end: the test is void"
        assert lmdb_file.missing_end(file, file.metas()) == 0
    assert last(path) == str(FIRST - 1)
    assert raxlog.check(path).ok
    newest = metas(path)[0]
    os.truncate(data_of(path), max(newest.root, newest.free_root) * PAGE)
    with pytest.raises(raxlog.CorruptionError, match="cut off"):
        raxlog.open(path, readonly=True)


def test_a_copy_that_was_made_by_lmdb_through_the_files_own_name_is_sound(folder: Path) -> None:
    made(folder / "s.rax", FIRST)
    (folder / "copy").mkdir()
    with lmdb.open(str(data_of(folder / "s.rax")), subdir=False, readonly=True) as env:
        env.copy(str(folder / "copy" / "data.mdb"), compact=True)
    shutil.copy(folder / "copy" / "data.mdb", data_of(folder / "s.rax"))
    assert last(folder / "s.rax") == str(FIRST - 1)


def test_looking_at_a_broken_disk_leaks_no_descriptor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(folder / "s.rax", 1)

    def broken(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    before = len(os.listdir("/dev/fd"))
    with monkeypatch.context() as patch:
        patch.setattr("raxlog.storage.tree.lmdb_file.os.pread", broken)
        for _ in range(5):
            with pytest.raises(OSError, match="Input/output"):
                PageFile(data_of(folder / "s.rax"))
    assert len(os.listdir("/dev/fd")) == before


@pytest.mark.parametrize("commits", [0, 1, 2, 3])
def test_young_and_copied_files_are_sound(folder: Path, commits: int) -> None:
    """Up to transaction 1 nothing has been freed; so it is in a compacted copy, however old its source."""
    made(folder / "s.rax", commits)
    made(folder / "s.rax", 30)
    with raxlog.open(folder / "s.rax") as store:
        store.snapshot(folder / "snap")
        store.compact()
    for data in (folder / "s.rax" / "000002", folder / "snap" / "000001"):
        with PageFile(data / "data.mdb") as file:
            assert lmdb_file.doubts(file, file.metas()) is None
        with lmdb.open(str(data), readonly=True, lock=False) as env:
            assert env.stat()["entries"] > 0
