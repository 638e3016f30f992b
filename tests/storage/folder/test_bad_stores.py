"""Bad paths and stores: a file, a folder of others, a full disk, no permission, one that is closed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lmdb
import pytest
import raxlog
from raxlog.storage.format import keys, records
from refusals import dump, make_orders, refused


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with one stream, 'orders': 1-1 to 9-1 but for 5-1, which has been deleted."""
    return make_orders(tmp_path / "store.rax")


@pytest.mark.parametrize("wrong", ["", None, 5, True, b""])
def test_what_is_no_path_is_refused(wrong: Any) -> None:
    with refused(raxlog.InvalidArgument, "path"):
        raxlog.open(wrong)


@pytest.mark.parametrize("readonly", [False, True])
def test_a_file_is_no_store(tmp_path: Path, readonly: bool) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    with refused(raxlog.NotAStore, str(file), "is a file", "folder"):
        raxlog.open(file, readonly=readonly)
    assert file.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [file]


def test_a_path_below_a_file_is_no_store(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    with refused(raxlog.NotAStore, str(file / "store.rax")):
        raxlog.open(file / "store.rax")
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("readonly", [False, True])
def test_a_folder_with_other_things_in_it_is_no_store(tmp_path: Path, readonly: bool) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"mine")
    with refused(raxlog.NotAStore, str(tmp_path), "CURRENT", "absent path"):
        raxlog.open(tmp_path, readonly=readonly)
    assert [file.name for file in tmp_path.iterdir()] == ["photo.jpg"]


def test_a_store_that_is_not_there_is_not_created_by_a_reader(tmp_path: Path) -> None:
    with refused(raxlog.NotAStore, str(tmp_path / "store.rax"), "readonly"):
        raxlog.open(tmp_path / "store.rax", readonly=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("current", ["", "../..", "none", "000002", "000001/../000001", "\xff"])
def test_a_current_that_names_no_generation_is_refused(path: Path, current: str) -> None:
    (path / "CURRENT").write_bytes(current.encode("latin-1"))
    with refused(raxlog.NotAStore, str(path)):
        raxlog.open(path)


def test_a_data_file_that_is_no_database_is_refused(path: Path) -> None:
    data = path / "000001" / "data.mdb"
    data.write_bytes(b"not a database" * 1000)
    content = data.read_bytes()
    with refused(raxlog.NotAStore, str(path)):
        raxlog.open(path)
    assert data.read_bytes() == content


def test_a_database_of_another_program_is_refused(path: Path) -> None:
    with lmdb.open(str(path / "000001")) as env, env.begin(write=True) as txn:
        txn.drop(env.open_db(None, txn), delete=False)
        txn.put(b"theirs", b"1")
    before = dump(path)
    with refused(raxlog.NotAStore, str(path), "no raxlog store"):
        raxlog.open(path)
    assert dump(path) == before


def put_raw(path: Path, key: bytes, value: bytes) -> None:
    with lmdb.open(str(path / "000001")) as env, env.begin(write=True) as txn:
        txn.put(key, value)


@pytest.mark.parametrize("number", [1, 2, keys.STORE_FORMAT + 1])
def test_a_store_of_any_other_format_is_refused_and_left_alone(path: Path, tmp_path: Path, number: int) -> None:
    with lmdb.open(str(path / "000001")) as env, env.begin() as txn:
        row = records.unseal(keys.STORE_KEY, txn.get(keys.STORE_KEY))
    put_raw(path, keys.STORE_KEY, records.seal(keys.STORE_KEY, [number, *row[1:]]))
    before = dump(path)
    for use in (raxlog.open, partial(raxlog.open, readonly=True), raxlog.check,
                lambda path: raxlog.salvage(path, tmp_path / "saved")):
        with refused(raxlog.UnsupportedFormat, str(path), f"format {number}", "raxlog export"):
            use(path)
    assert dump(path) == before


@pytest.mark.parametrize("key", [keys.STORE_KEY, keys.header_key(1)])
def test_a_record_of_a_newer_format_is_refused(path: Path, key: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with lmdb.open(str(path / "000001")) as env, env.begin() as txn:
        row = records.unseal(key, txn.get(key))
    with monkeypatch.context() as newer:
        newer.setattr(records, "FORMAT_BYTE", bytes([keys.FORMAT + 1]))
        newest = records.seal(key, row)
    put_raw(path, key, newest)
    before = dump(path)
    with refused(raxlog.UnsupportedFormat, f"format {keys.FORMAT + 1}", "newer raxlog"), raxlog.open(path) as store:
        list(store.stream("orders").range())
    with refused(raxlog.UnsupportedFormat, "newer raxlog"), raxlog.open(path) as store:
        store.stream("orders").append({"n": 1})
    assert dump(path) == before


# ------------------------------------------------------------------ the store as a whole


def test_a_reader_cannot_write(path: Path) -> None:
    before = dump(path)
    with raxlog.open(path, readonly=True) as store:
        orders = store.stream("orders")
        calls: list[Callable[[], Any]] = [
            lambda: orders.append({"n": 1}), lambda: orders.extend([{"n": 1}]), lambda: orders.delete("1-1"),
            lambda: orders.trim(maxlen=0), lambda: orders.set_id("20-1"), lambda: orders.configure(compression="zstd"),
            lambda: store.delete_stream("orders"), lambda: store.rename_stream("orders", "new"),
            lambda: store.stream("new").append({"n": 1}),
        ]  # fmt: skip
        for call in calls:
            with refused(raxlog.ReadOnlyStore, str(path), "readonly=True"):
                call()
        assert len(orders) == 8
    assert dump(path) == before


def test_a_store_that_has_been_closed_says_so(path: Path) -> None:
    before = dump(path)
    store = raxlog.open(path)
    orders = store.stream("orders")
    waiting = orders.range()
    store.close()
    store.close()
    calls: list[Callable[[], Any]] = [
        store.streams, store.flush, lambda: store.stream("orders"), lambda: store.delete_stream("orders"),
        lambda: store.rename_stream("orders", "new"), lambda: len(orders), lambda: orders.append({"n": 1}),
        lambda: list(orders.range()), lambda: next(waiting), lambda: orders.get("1-1"), orders.info, orders.count,
        lambda: orders.delete("1-1"), lambda: orders.trim(maxlen=0),
    ]  # fmt: skip
    for call in calls:
        with refused(raxlog.StoreClosed, str(path), "Open it again"):
            call()
    assert dump(path) == before


def test_one_path_cannot_be_open_in_two_ways_at_a_time(path: Path) -> None:
    with raxlog.open(path):
        for name, value in (("durability", "relaxed"), ("readonly", True), ("max_map_size", 1 << 36)):
            with refused(raxlog.SettingsConflict, str(path), name, repr(value)):
                raxlog.open(path, **{name: value})


def test_a_stream_that_reaches_the_ceiling_is_refused_and_readable(tmp_path: Path) -> None:
    path = tmp_path / "store.rax"
    with raxlog.open(path, map_size=1 << 20, max_map_size=1 << 20) as store:
        orders = store.stream("orders")
        acknowledged = []
        with refused(raxlog.StoreFull, "max_map_size"):
            for _ in range(1000):
                acknowledged.append(orders.append({"v": bytes(8000)}))
        with refused(raxlog.StoreFull, "max_map_size"):
            orders.append({"v": bytes(100_000)})
        assert [entry.id for entry in orders.range()] == acknowledged


def run_elsewhere(source: str, *arguments: object) -> str:
    """Run a piece of Python in a process of its own; what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", source, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


AS_NOBODY = """
import encodings.ascii, os, sys
import raxlog.store
path, nobody = sys.argv[1], int(sys.argv[2])
os.setgid(nobody); os.setuid(nobody)
try:
    with raxlog.open(path) as store:
        store.stream("orders").append({"n": 1})
    print("written")
except raxlog.RaxlogError as error:
    print(type(error).__name__, error)
"""


def test_a_folder_where_nothing_may_be_written_takes_no_store(public_folder: Path, nobody: int) -> None:
    said = run_elsewhere(AS_NOBODY, public_folder / "store.rax", nobody)
    assert said.startswith("ReadOnlyStore ")
    assert str(public_folder / "store.rax") in said
    assert list(public_folder.iterdir()) == []


def test_a_store_that_may_only_be_read_is_refused_for_writing(path: Path, public_folder: Path, nobody: int) -> None:
    path = Path(shutil.copytree(path, public_folder / path.name))
    before = dump(path)
    said = run_elsewhere(AS_NOBODY, path, nobody)
    assert said.startswith("ReadOnlyStore ")
    assert str(path) in said
    assert "readonly=True" in said
    assert dump(path) == before


READ_AS_NOBODY = """
import encodings.ascii, os, sys
import raxlog.store
path, nobody = sys.argv[1], int(sys.argv[2])
os.setgid(nobody); os.setuid(nobody)
with raxlog.open(path, readonly=True) as store:
    print([str(entry.id) for entry in store.stream("orders").range()])
"""


def test_a_store_that_may_only_be_read_can_be_read(path: Path, public_folder: Path, nobody: int) -> None:
    path = Path(shutil.copytree(path, public_folder / path.name))
    assert run_elsewhere(READ_AS_NOBODY, path, nobody) == f"{[f'{n}-1' for n in range(1, 10) if n != 5]}\n"


FILL_THE_DISK = """
import resource, signal, sys
import raxlog
path, room = sys.argv[1], int(sys.argv[2])
acknowledged = 0
if room:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
try:
    with raxlog.open(path) as store:
        for number in range(10_000):
            store.stream("orders").append({"v": bytes(20_000)}, f"{number + 1}-0")
            acknowledged += 1
except raxlog.RaxlogError as error:
    print(acknowledged, type(error).__name__, error)
"""


def check_what_a_full_disk_left(path: Path, said: str) -> None:
    acknowledged, kind, message = said.split(" ", 2)
    assert kind == "StoreFull"
    assert str(path) in message
    assert "full" in message
    assert int(acknowledged) > 3
    with raxlog.open(path, readonly=True) as store:
        ids = [entry.id for entry in store.stream("orders").range()]
    assert ids == [(number + 1, 0) for number in range(int(acknowledged))]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no file system may be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_refuses_the_append_and_keeps_what_was_acknowledged(small_disk: Path) -> None:
    path = small_disk / "store.rax"
    said = run_elsewhere(FILL_THE_DISK, path, 0)
    check_what_a_full_disk_left(path, said)
    subprocess.run(["mount", "-o", "remount,size=4m", small_disk], check=True)
    with raxlog.open(path) as store:  # room has been made: it goes on
        assert store.stream("orders").append({"n": 1}) is not None


def test_a_full_disk_takes_no_new_store(small_disk: Path) -> None:
    with (small_disk / "ballast").open("wb", buffering=0) as ballast:
        free = os.statvfs(small_disk)
        ballast.write(bytes(free.f_bavail * free.f_frsize))
    said = run_elsewhere(FILL_THE_DISK, small_disk / "store.rax", 0)
    assert said.startswith("0 StoreFull ")
    assert str(small_disk / "store.rax") in said
    assert "Make room" in said
    assert [file.name for file in small_disk.iterdir()] == ["ballast"]


def test_a_file_that_may_not_grow_refuses_the_append_and_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "store.rax"
    raxlog.open(path).close()
    said = run_elsewhere(FILL_THE_DISK, path, 1_000_000)
    check_what_a_full_disk_left(path, said)
