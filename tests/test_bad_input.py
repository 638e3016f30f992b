"""Bad input: each is a RaxlogError of its own kind that says what, where and what to do.

And it leaves the disk as it was: every entry of the database is compared before and after.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest
import raxlog
from raxlog.storage import layout, records

MAX = "18446744073709551615"


def dump(path: Path) -> dict[str, Any]:
    """Everything in a store's folder: the files by name, the database by its records."""
    generation = path / (path / "CURRENT").read_text().strip()
    with lmdb.open(str(generation), readonly=True, lock=False, max_dbs=16) as env, env.begin() as txn:
        entries = list(txn.cursor())
    return {"entries": entries, "files": sorted(file.name for file in path.iterdir())}


@contextmanager
def refused(kind: type[raxlog.RaxlogError], *words: str) -> Iterator[None]:
    """The block must raise exactly this, with these words in its message."""
    with pytest.raises(raxlog.RaxlogError) as caught:
        yield
    assert type(caught.value) is kind, repr(caught.value)
    message = str(caught.value)
    assert len(message) < 400
    assert "\n" not in message
    for word in words:
        assert word in message, message


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with one stream, 'orders': 1-1 to 9-1 but for 5-1, which has been deleted."""
    folder = tmp_path / "store.rax"
    with raxlog.open(folder) as store:
        orders = store.stream("orders")
        orders.extend([{"n": n} for n in range(1, 10)], [f"{n}-1" for n in range(1, 10)])
        orders.delete("5-1")
        store.stream("full").append({"n": 1}, f"{MAX}-{MAX}")
    return folder


@pytest.fixture
def unharmed(path: Path) -> Iterator[raxlog.Store]:
    """That store, open; at the end nothing in it may have changed, and it must still work."""
    before = dump(path)
    with raxlog.open(path) as store:
        yield store
    assert dump(path) == before
    with raxlog.open(path) as store:
        assert len(store.stream("orders")) == 8
        assert store.stream("orders").append({"n": 10}, "10-1") == (10, 1)


# ------------------------------------------------------------------ arguments

WRONG_IDS = [
    "", "-", "+", "$", ">", "x", "1-", "-1", "1-1-1", "1--1", "0x9-0", "1.5", "18446744073709551616", "5-*x", "é",
    b"\xff", b"1-\x00", "1" * 128, True, None, 1.5, -1, 1 << 64, [], (1, 2), {}, object(),
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG_IDS, ids=lambda wrong: repr(wrong)[:20])
@pytest.mark.parametrize(
    "use",
    [
        lambda orders, sid: orders.append({"n": 1}, sid),
        lambda orders, sid: orders.extend([{"n": 1}, {"n": 2}], ["11-1", sid]),
        lambda orders, sid: orders.delete("1-1", sid),
        lambda orders, sid: orders.get(sid),
        lambda orders, sid: orders.rank(sid),
        lambda orders, sid: orders.set_id(sid),
        lambda orders, sid: orders.set_id("20-1", max_deleted_id=sid) if sid is not None else orders.set_id(None),
        lambda orders, sid: orders.trim(minid=sid) if sid is not None else orders.delete(None),
    ],
    ids=["append", "extend", "delete", "get", "rank", "set_id", "max_deleted_id", "minid"],
)
def test_what_is_no_id_is_refused_everywhere(unharmed: raxlog.Store, use: Callable[..., Any], wrong: Any) -> None:
    with refused(raxlog.InvalidStreamID):
        use(unharmed.stream("orders"), wrong)


@pytest.mark.parametrize("wrong", ["", "x", "(", "(-", "(+", "((1", "$", "1-", None, True, 1.5, []])
def test_what_is_no_end_of_a_range_is_refused_at_once(unharmed: raxlog.Store, wrong: Any) -> None:
    orders = unharmed.stream("orders")
    for call in (lambda: orders.range(wrong, "+"), lambda: orders.range("-", wrong), lambda: orders.count(wrong)):
        with refused(raxlog.InvalidStreamID):
            call()


def test_an_excluded_end_with_nothing_beyond_it_is_refused(unharmed: raxlog.Store) -> None:
    with refused(raxlog.InvalidStreamID, "invalid start ID for the interval"):
        unharmed.stream("orders").range(f"({MAX}-{MAX}")
    with refused(raxlog.InvalidStreamID, "invalid end ID for the interval"):
        unharmed.stream("orders").range("-", "(0-0")


@pytest.mark.parametrize("sid", ["9-1", "9-0", "9", "1-1", "8-*", 9])
def test_an_id_not_above_the_last_one_is_refused_with_both_named(unharmed: raxlog.Store, sid: Any) -> None:
    with refused(raxlog.IDTooSmall, "9-1", "'orders'", "Append with"):
        unharmed.stream("orders").append({"n": 1}, sid)


@pytest.mark.parametrize("sid", ["0-0", "0", 0])
def test_the_id_0_0_is_refused(unharmed: raxlog.Store, sid: Any) -> None:
    with refused(raxlog.IDTooSmall, "0-0"):
        unharmed.stream("orders").append({"n": 1}, sid)
    with refused(raxlog.IDTooSmall, "0-0"):
        unharmed.stream("never made").append({"n": 1}, sid)
    assert not unharmed.stream("never made").exists()


def test_one_id_too_small_refuses_the_whole_batch(unharmed: raxlog.Store) -> None:
    with refused(raxlog.IDTooSmall, "10-1", "'orders'"):
        unharmed.stream("orders").extend([{"n": n} for n in range(3)], ["10-1", "11-1", "10-1"])
    with refused(raxlog.IDTooSmall):
        unharmed.stream("never made").extend([{"n": n} for n in range(2)], ["10-1", "10-1"])
    assert not unharmed.stream("never made").exists()


@pytest.mark.parametrize("sid", ["*", f"{MAX}-*", f"{MAX}-{MAX}", "1-1"])
def test_a_stream_with_the_last_id_takes_no_more(unharmed: raxlog.Store, sid: str) -> None:
    with refused(raxlog.StreamExhausted, "'full'", f"{MAX}-{MAX}", "another stream"):
        unharmed.stream("full").append({"n": 1}, sid)


WRONG_FIELDS = [
    {}, [], (), iter([]), None, True, 5, 1.5, "text", b"bytes", object(), ["n"], [("n",)], [("n", 1, 2)], ["nv"],
    [("n", None)], [(None, 1)], {"n": None}, {"n": True}, {True: 1}, {"n": [1]}, {"n": {}}, {"n": 1j}, {("a",): 1},
    {"n": "\ud800"}, {"\ud800": 1}, [("a", 1), ("b",)],
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG_FIELDS, ids=lambda wrong: repr(wrong)[:19])
def test_fields_that_cannot_be_stored_are_refused(unharmed: raxlog.Store, wrong: Any) -> None:
    with refused(raxlog.InvalidFields):
        unharmed.stream("orders").append(wrong)


def test_an_entry_of_a_batch_that_cannot_be_stored_is_named_by_its_place(unharmed: raxlog.Store) -> None:
    with refused(raxlog.InvalidFields, "entry no. 1", "'n'", "NoneType"):
        unharmed.stream("orders").extend([{"n": 1}, {"n": None}, {"n": 3}])


def test_an_entry_above_a_gigabyte_is_refused(unharmed: raxlog.Store) -> None:
    part = bytes(1 << 20)
    with refused(raxlog.InvalidFields, "too large", str(1 << 30)):
        unharmed.stream("orders").append([(b"", part)] * 1025)


@pytest.mark.parametrize("entries", [None, 5, True])
def test_a_batch_that_is_no_iterable_is_refused(unharmed: raxlog.Store, entries: Any) -> None:
    with refused(raxlog.InvalidArgument):
        unharmed.stream("orders").extend(entries)


def test_a_batch_needs_as_many_ids_as_entries(unharmed: raxlog.Store) -> None:
    with refused(raxlog.InvalidArgument, "2 entries", "1 "):
        unharmed.stream("orders").extend([{"n": 1}, {"n": 2}], ["11-1"])
    with refused(raxlog.InvalidArgument):
        unharmed.stream("orders").extend([{"n": 1}], 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["x" * 503, b"x" * 10_000, "é" * 252, None, True, [], ("a",), "\ud800", {}])
def test_a_name_that_cannot_be_a_key_is_refused(unharmed: raxlog.Store, wrong: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: unharmed.stream(wrong),
        lambda: unharmed.delete_stream(wrong),
        lambda: unharmed.rename_stream("orders", wrong),
        lambda: unharmed.rename_stream(wrong, "new"),
    ]
    for call in calls:
        with refused(raxlog.InvalidName):
            call()


def test_a_name_may_be_as_long_as_the_message_says(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "store.rax") as store:
        for name in (b"x" * 502, b""):
            store.stream(name).append({"n": 1}, "1-1")
            assert len(store.stream(name)) == 1


WRONG_TRIMS: list[dict[str, Any]] = [
    {}, {"maxlen": -1}, {"maxlen": 1.5}, {"maxlen": "3"}, {"maxlen": True}, {"maxlen": 3, "minid": "3-1"}, {"limit": 3},
    {"maxlen": 3, "limit": 3}, {"maxlen": 3, "approximate": True, "limit": -1}, {"approximate": True},
    {"maxlen": 3, "approximate": True, "limit": 1.5}, {"maxlen": 3, "approximate": True, "limit": True},
]  # fmt: skip


@pytest.mark.parametrize("options", WRONG_TRIMS, ids=repr)
def test_a_trim_that_makes_no_sense_is_refused(unharmed: raxlog.Store, options: dict[str, Any]) -> None:
    with refused(raxlog.InvalidArgument):
        unharmed.stream("orders").trim(**options)
    if set(options) - {"approximate"}:
        with refused(raxlog.InvalidArgument):
            unharmed.stream("orders").append({"n": 1}, **options)


@pytest.mark.parametrize("count", [-1, 1.5, "3", True])
def test_a_count_that_is_no_whole_number_is_refused(unharmed: raxlog.Store, count: Any) -> None:
    with refused(raxlog.InvalidArgument, "count", repr(count)):
        unharmed.stream("orders").range(count=count)


@pytest.mark.parametrize("parts", [0, -1, 1.5, "3", None, True])
def test_a_split_into_no_parts_is_refused(unharmed: raxlog.Store, parts: Any) -> None:
    with refused(raxlog.InvalidArgument, repr(parts)):
        unharmed.stream("orders").split(parts)


@pytest.mark.parametrize("k", [1.5, "3", None, True])
def test_the_number_of_an_entry_is_a_whole_number(unharmed: raxlog.Store, k: Any) -> None:
    with refused(raxlog.InvalidArgument, repr(k)):
        unharmed.stream("orders").select(k)


@pytest.mark.parametrize("k", [8, -1, -9, 1 << 70])
def test_beyond_the_last_entry_there_is_none_to_select(unharmed: raxlog.Store, k: int) -> None:
    with pytest.raises(IndexError, match=r"'orders' has 8 live entries"):
        unharmed.stream("orders").select(k)


def test_a_last_id_that_contradicts_the_stream_is_refused(unharmed: raxlog.Store) -> None:
    orders = unharmed.stream("orders")
    with refused(raxlog.IDTooSmall, "9-0", "9-1"):
        orders.set_id("9-0")
    with refused(raxlog.IDTooSmall, "5-0", "5-1"):
        orders.set_id("5-0")
    with refused(raxlog.IDTooSmall, "20-1", "20-2"):
        orders.set_id("20-1", max_deleted_id="20-2")
    for added in (-1, 1.5, True, "3"):
        with refused(raxlog.InvalidArgument, "entries_added", repr(added)):
            orders.set_id("20-1", entries_added=added)  # type: ignore[arg-type]
    with refused(raxlog.InvalidArgument, "entries_added=7", "8"):
        orders.set_id("20-1", entries_added=7)


def test_what_is_asked_of_a_stream_that_is_not_there_names_it(unharmed: raxlog.Store) -> None:
    nothing = unharmed.stream("nothing")
    calls: list[Callable[[], Any]] = [
        nothing.info, lambda: nothing.set_id("1-1"), lambda: nothing.configure(compression="zstd"),
        lambda: unharmed.rename_stream("nothing", "something"),
    ]  # fmt: skip
    for call in calls:
        with refused(raxlog.NoStream, "'nothing'"):
            call()
    assert unharmed.delete_stream("nothing") is False
    assert nothing.delete("1-1") == nothing.trim(maxlen=0) == len(nothing) == nothing.count() == 0
    assert nothing.append({"n": 1}, create=False) is None


def test_a_name_that_is_taken_cannot_be_given_again(unharmed: raxlog.Store) -> None:
    with refused(raxlog.StreamExists, "'full'"):
        unharmed.rename_stream("orders", "full")


WRONG_LIMITS: list[dict[str, Any]] = [
    {"compression": "lz4"}, {"compression": True}, {"compression": 5}, {"node_max_bytes": -1}, {"node_max_bytes": "4k"},
    {"node_max_bytes": True}, {"node_max_entries": -1}, {"node_max_entries": 1.5}, {"node_max_bytes": (1 << 30) + 1},
]  # fmt: skip


@pytest.mark.parametrize("options", WRONG_LIMITS, ids=repr)
def test_node_limits_that_make_no_sense_are_refused(
    unharmed: raxlog.Store, tmp_path: Path, options: dict[str, Any]
) -> None:
    name = next(iter(options))
    with refused(raxlog.InvalidArgument, name):
        unharmed.stream("orders", **options)
    with refused(raxlog.InvalidArgument, name):
        unharmed.stream("orders").configure(**options)
    with refused(raxlog.InvalidArgument, name):
        raxlog.open(tmp_path / "other.rax", **options)
    assert not (tmp_path / "other.rax").exists()


WRONG_OPENINGS: list[dict[str, Any]] = [
    {"durability": "buffered"}, {"durability": None}, {"durability": []}, {"lock_timeout": -1}, {"lock_timeout": "1"},
    {"lock_timeout": True}, {"lock_timeout": float("nan")}, {"encoding": "no such"}, {"encoding": 5}, {"map_size": 0},
    {"map_size": 1.5}, {"max_map_size": -1}, {"max_map_size": True}, {"max_readers": 0},
]  # fmt: skip


@pytest.mark.parametrize("options", WRONG_OPENINGS, ids=repr)
def test_an_option_of_open_that_makes_no_sense_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with refused(raxlog.InvalidArgument, next(iter(options))):
        raxlog.open(tmp_path / "store.rax", **options)
    assert list(tmp_path.iterdir()) == []


def test_an_option_nobody_knows_is_a_type_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="colour"):
        raxlog.open(tmp_path / "store.rax", colour="red")  # type: ignore[call-arg]
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------ paths


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


def test_a_store_of_a_newer_format_is_refused(path: Path) -> None:
    with lmdb.open(str(path / "000001")) as env, env.begin() as txn:
        row = records.unseal(layout.STORE_KEY, txn.get(layout.STORE_KEY))
    put_raw(path, layout.STORE_KEY, records.seal(layout.STORE_KEY, [layout.FORMAT + 1, *row[1:]]))
    before = dump(path)
    with refused(raxlog.UnsupportedFormat, str(path), f"format {layout.FORMAT + 1}", "newer raxlog"):
        raxlog.open(path)
    assert dump(path) == before


@pytest.mark.parametrize("key", [layout.STORE_KEY, layout.header_key(1)])
def test_a_record_of_a_newer_format_is_refused(path: Path, key: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with lmdb.open(str(path / "000001")) as env, env.begin() as txn:
        row = records.unseal(key, txn.get(key))
    with monkeypatch.context() as newer:
        newer.setattr(records, "_FORMAT_BYTE", bytes([layout.FORMAT + 1]))
        newest = records.seal(key, row)
    put_raw(path, key, newest)
    before = dump(path)
    with refused(raxlog.UnsupportedFormat, f"format {layout.FORMAT + 1}", "newer raxlog"), raxlog.open(path) as store:
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
import raxlog
path, nobody = sys.argv[1], int(sys.argv[2])
os.setgid(nobody); os.setuid(nobody)
try:
    with raxlog.open(path) as store:
        store.stream("orders").append({"n": 1})
    print("written")
except raxlog.RaxlogError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def nobody(tmp_path: Path) -> int:
    """A user without rights here. Root is bound by no permission bits, so only root can play him."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if os.stat(folder).st_uid == 0 and folder != Path("/tmp"):
            folder.chmod(0o755)
    return pwd.getpwnam("nobody").pw_uid


def test_a_folder_where_nothing_may_be_written_takes_no_store(tmp_path: Path, nobody: int) -> None:
    said = run_elsewhere(AS_NOBODY, tmp_path / "store.rax", nobody)
    assert said.startswith("ReadOnlyStore ")
    assert str(tmp_path / "store.rax") in said
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_may_only_be_read_is_refused_for_writing(path: Path, nobody: int) -> None:
    before = dump(path)
    said = run_elsewhere(AS_NOBODY, path, nobody)
    assert said.startswith("ReadOnlyStore ")
    assert str(path) in said
    assert "readonly=True" in said
    assert dump(path) == before


READ_AS_NOBODY = """
import encodings.ascii, os, sys
import raxlog
path, nobody = sys.argv[1], int(sys.argv[2])
os.setgid(nobody); os.setuid(nobody)
with raxlog.open(path, readonly=True) as store:
    print([str(entry.id) for entry in store.stream("orders").range()])
"""


def test_a_store_that_may_only_be_read_can_be_read(path: Path, nobody: int) -> None:
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
