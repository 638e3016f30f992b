"""Plans of a scan without Spark: what they read, that they are even, and what is lost when asked for."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import pytest
import raxlog
from raxlog.recovery.snapshot.manifest import Manifest
from raxlog.recovery.snapshot.shards import ShardSet
from raxlog.storage.folder import directory
from raxlog.stream.columns.arrow import projection
from raxlog.tools.spark import scan
from raxlog.tools.spark.location import find
from raxlog.tools.spark.options import FOLLOW, WRITE, Options, parse
from raxlog.tools.spark.plan import Part, Window

ENTRIES = 30_000


def planned(path: Path, **given: Any) -> tuple[list[Part], Options]:
    """The parts of a scan with these options, as tasks get them."""
    options = parse({"path": str(path), "stream": "orders"} | {name: str(value) for name, value in given.items()})
    return scan.planned(find(options.path), options, Window.of(options)), options


def rows_of(parts: list[Part], options: Options) -> list[int]:
    """What the tasks read, one after the other."""
    numbers = projection({"n": "bigint"})
    return [
        n for part in parts for batch in scan.batches(part, numbers, numbers.schema, options)
        for n in batch.column(0).to_pylist()
    ]


def data_of(snapshot: Path) -> Path:
    return snapshot / directory.FIRST_GENERATION / directory.DATA


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store and a snapshot of it, which are copied for each test."""
    folder = tmp_path_factory.mktemp("made")
    with raxlog.open(folder / "store.rax", durability="relaxed") as store:
        orders = store.stream("orders")
        orders.extend([{"n": n} for n in range(ENTRIES)], ids=[f"{1 + n // 7}-{n % 7}" for n in range(ENTRIES)])
        orders.delete(*(f"{1 + n // 7}-{n % 7}" for n in range(1000, 9000, 3)))
        store.stream("mail").extend([{"n": -n} for n in range(100)])
        store.snapshot(folder / "snapshot")
    return folder


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[raxlog.Store]:
    """An empty store, or the one that the test's snapshot is of."""
    if "snapshot" in request.fixturenames:
        shutil.copytree(request.getfixturevalue("made"), tmp_path, dirs_exist_ok=True)
    with raxlog.open(tmp_path / "store.rax", durability="relaxed") as store:
        yield store


@pytest.fixture
def snapshot(store: raxlog.Store, tmp_path: Path) -> Path:
    """Entries of "orders" and "mail", of which some have been deleted."""
    return tmp_path / "snapshot"


def test_a_plan_of_whole_streams_reads_no_data_at_all(snapshot: Path) -> None:
    parts, _ = planned(snapshot, minPartitions=48)
    size = data_of(snapshot).stat().st_size
    data_of(snapshot).write_bytes(bytes(size))

    again, options = planned(snapshot, minPartitions=48)
    assert again == parts
    assert len(parts) == 48
    with pytest.raises(raxlog.RaxlogError):
        rows_of(again, options)
    with pytest.raises(raxlog.RaxlogError):
        planned(snapshot, endingOffsets="100")


def test_a_data_file_that_is_cut_off_or_gone_is_told_by_the_plan(snapshot: Path) -> None:
    os.truncate(data_of(snapshot), 40_960)
    with pytest.raises(raxlog.CorruptionError, match="is cut off"):
        planned(snapshot)
    data_of(snapshot).unlink()
    with pytest.raises(raxlog.NotAStore):
        planned(snapshot)


@pytest.mark.parametrize("given", [
    {"minPartitions": 1}, {"minPartitions": 13}, {"maxRecordsPerPartition": 997},
    {"minPartitions": 7, "endingOffsets": "2000"},
    {"minPartitions": 7, "startingOffsets": "(900-2", "endingOffsets": "4000-3"},
    {"minPartitions": 3, "startingTimestamp": 140}, {"minPartitions": 10**6, "endingOffsets": "6"},
])  # fmt: skip
def test_parts_are_even_to_one_entry_and_touch(store: raxlog.Store, snapshot: Path, given: dict[str, Any]) -> None:
    parts, options = planned(snapshot, **given)
    entries = store.stream("orders").range(options.start or "-", options.end or "+")
    expected = [int(entry.fields["n"]) for entry in entries]
    sizes = [part.entries for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == len(expected)
    assert [len(rows_of([part], options)) for part in parts] == sizes
    assert rows_of(parts, options) == expected
    pieces = [piece for part in scan.resolved(parts) for piece in part.pieces]
    assert all(before.end.next() == after.start for before, after in pairwise(pieces))
    assert not any(piece.by_rank for piece in pieces)


def test_small_streams_share_a_part_and_each_is_whole(store: raxlog.Store, snapshot: Path) -> None:
    options = parse({"path": str(snapshot), "streamPattern": "*"})
    parts = scan.planned(find(options.path), options, Window())
    assert [len(part.pieces) for part in parts] == [2]
    assert sorted(rows_of(parts, options)) == sorted(
        int(entry.fields["n"]) for name in ("orders", "mail") for entry in store.stream(name).range()
    )


@pytest.mark.parametrize("wanted", [1, 2, 10, 100, 999, 1001, 5000])
@pytest.mark.parametrize("shards", [{}, {"shards": 2}])
def test_there_are_as_many_parts_as_were_asked_for_and_each_is_even(
    store: raxlog.Store, tmp_path: Path, wanted: int, shards: dict[str, int]
) -> None:
    store.stream("orders").extend([{"n": n} for n in range(1001)])
    store.snapshot(tmp_path / "snapshot", **shards)
    parts, options = planned(tmp_path / "snapshot", minPartitions=wanted)
    assert len(parts) == min(wanted, 1001)
    sizes = [len(rows_of([part], options)) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert rows_of(parts, options) == list(range(1001))


def test_parts_of_several_streams_are_even_too(store: raxlog.Store, tmp_path: Path) -> None:
    for number, many in enumerate((5, 400, 1, 94)):
        store.stream(f"s{number}").extend([{"n": n + 1000 * number} for n in range(many)])
    store.snapshot(tmp_path / "snapshot")
    store.snapshot(tmp_path / "shards", shards=2)
    for path in (tmp_path / "snapshot", tmp_path / "shards"):
        options = parse({"path": str(path), "streamPattern": "*", "minPartitions": "50"})
        parts = scan.planned(find(options.path), options, Window())
        assert [part.entries for part in parts] == [10] * 50
        assert rows_of(parts, options) == [n + 1000 * k for k, many in enumerate((5, 400, 1, 94)) for n in range(many)]


def test_windows_of_shards_lose_nothing_and_repeat_nothing_however_they_are_cut(
    store: raxlog.Store, snapshot: Path, tmp_path: Path
) -> None:
    seed = int(os.environ.get("RAXLOG_SEED") or random.randrange(1 << 32))
    print(f"RAXLOG_SEED={seed}")
    rng = random.Random(seed)
    store.snapshot(tmp_path / "shards", shards=3)
    for _ in range(40):
        first = rng.randrange(1, ENTRIES // 7)
        window = f"{first}-{rng.randrange(7)}", f"{rng.randrange(first, ENTRIES // 7 + 9)}-6"
        given = {"minPartitions": str(rng.choice([1, 2, 3, 7, 20, 100, 1000]))}
        if rng.random() < 0.3:
            given["maxRecordsPerPartition"] = str(rng.choice([50, 997, 5000]))
        options = parse({"path": str(tmp_path / "shards"), "streamPattern": "*", "startingOffsets": window[0],
                         "endingOffsets": window[1]} | given)
        parts = scan.planned(find(options.path), options, Window.of(options))
        expected = [int(entry.fields["n"]) for name in store.streams() for entry in store.stream(name).range(*window)]
        assert sorted(rows_of(parts, options)) == sorted(expected), (window, given)


def test_a_window_between_two_shards_has_no_entries(store: raxlog.Store, tmp_path: Path) -> None:
    for name, ids in (("a", ["1", "2", "900", "901"]), ("b", ["1", "2", "300", "901"])):
        store.stream(name, node_max_entries=1).extend([{"n": int(sid)} for sid in ids], ids)
    store.snapshot(tmp_path / "shards", shards=4)
    for given, expected in (({"stream": "a"}, []), ({"streamPattern": "*"}, [300])):
        options = parse({"path": str(tmp_path / "shards"), "startingOffsets": "200", "endingOffsets": "400"} | given)
        parts = scan.planned(find(options.path), options, Window.of(options))
        assert rows_of(parts, options) == expected


# -- what has been trimmed away ---------------------------------------------------------------


def shards_of(store: raxlog.Store, path: Path) -> Path:
    store.snapshot(path, shards=2)
    return path


@pytest.mark.parametrize("trimmed_to", [5, 1200])  # entries: inside the last node, and whole nodes before it
@pytest.mark.parametrize("shards", [False, True])
def test_what_was_trimmed_behind_the_start_is_an_error_unless_it_is_allowed(
    store: raxlog.Store, tmp_path: Path, trimmed_to: int, shards: bool
) -> None:
    orders = store.stream("orders")
    orders.extend([{"n": n} for n in range(2000)], ids=[f"{n + 1}-0" for n in range(2000)])
    orders.trim(maxlen=trimmed_to)
    store.snapshot(tmp_path / "snapshot", **({"shards": 2} if shards else {}))
    first = 2001 - trimmed_to

    for start in ("1", f"{first - 1}", f"({first - 2}"):
        with pytest.raises(raxlog.StreamError, match=f"'orders'.*trimmed away.*{first}-0.*failOnDataLoss"):
            planned(tmp_path / "snapshot", startingOffsets=start)
        with pytest.warns(UserWarning, match="going on"):
            parts, options = planned(tmp_path / "snapshot", startingOffsets=start, failOnDataLoss="false")
        assert rows_of(parts, options) == list(range(first - 1, 2000))
    for given in ({}, {"startingOffsets": "-"}, {"startingTimestamp": 1}, {"startingOffsets": f"{first}"},
                  {"startingOffsets": f"({first - 1}-{(1 << 64) - 1}"}):
        parts, options = planned(tmp_path / "snapshot", **given)
        assert rows_of(parts, options) == list(range(first - 1, 2000))


def test_a_stream_that_has_lost_nothing_may_be_read_from_before_its_beginning(
    store: raxlog.Store, tmp_path: Path
) -> None:
    orders = store.stream("orders")
    orders.extend([{"n": n} for n in range(2000)], ids=[f"{n + 100}-0" for n in range(2000)])
    orders.delete("1500-0")
    store.snapshot(tmp_path / "snapshot")
    parts, options = planned(tmp_path / "snapshot", startingOffsets="7")
    assert len(rows_of(parts, options)) == 1999


def test_a_stream_of_which_all_is_gone_is_lost_up_to_its_last_id(store: raxlog.Store, tmp_path: Path) -> None:
    orders = store.stream("orders")
    orders.extend([{"n": n} for n in range(10)], ids=[f"{n + 1}-0" for n in range(10)])
    orders.trim(maxlen=0)
    store.snapshot(tmp_path / "snapshot")
    for path in (tmp_path / "snapshot", shards_of(store, tmp_path / "shards")):
        with pytest.raises(raxlog.StreamError, match="first entry is none"):
            planned(path, startingOffsets="10")
        assert planned(path, startingOffsets="11")[0] == []


# -- what is wrong with a set of shards -------------------------------------------------------


DAMAGES: list[tuple[str, Callable[[bytes], bytes] | None, str]] = [
    ("1/00001.shard", None, "00001.shard is not there. It is to hold entries FIRST to LAST: put it back from a copy"),
    ("1/00001.shard", lambda data: b"no shard" + data[8:], "It is to hold entries FIRST to LAST: put it back"),
    ("1/00001.shard", lambda data: data[:-90] + bytes(10) + data[-80:], "00001.shard fails"),
    ("1/00001.shard", lambda data: data[: len(data) // 2], "00001.shard is cut off"),
    ("manifest.json", lambda data: data[:50] + data[51:], "manifest.json fails its checksum"),
    ("manifest.json", None, "manifest.json"),
    ("1/pending", None, "1/pending"),
    ("1/pending", lambda data: data[:-1] + bytes([data[-1] ^ 1]), "1/pending"),
]  # fmt: skip


@pytest.mark.parametrize("remote", [False, True])
def test_what_is_wrong_with_shards_comes_with_what_helps_shards(
    store: raxlog.Store, tmp_path: Path, remote: bool
) -> None:
    orders = store.stream("orders")
    orders.extend([{"n": n} for n in range(2000)])
    orders.create_group("billing", "0").read("worker", count=10)
    where = f"memory://{tmp_path.name}" if remote else str(tmp_path / "shards")
    hurt = store.snapshot(where, shards=3).shards[1]
    files = fsspec.filesystem("memory" if remote else "file")

    def read(number: int) -> None:
        parts, options = planned(where, cacheDir=tmp_path / f"cache{number}")  # type: ignore[arg-type]
        assert rows_of(parts, options) == list(range(2000))
        assert len(list(ShardSet(where).pending(b"orders"))) == 10

    for number, (name, damage, wanted) in enumerate(DAMAGES):
        read(-1 - number)
        file = f"{where}/{name}"
        whole = files.cat_file(file)
        files.rm(file)
        if damage is not None:
            files.pipe_file(file, damage(whole))
        with pytest.raises((raxlog.NotAStore, raxlog.CorruptionError)) as caught:
            read(number)
        message = str(caught.value)
        if remote and damage is not None and name.endswith("shard"):
            wanted = "00001.shard is not what its manifest lists"
        assert wanted.replace("FIRST", str(hurt.first)).replace("LAST", str(hurt.last)) in message
        assert "raxlog check" not in message
        assert "salvage" not in message
        if isinstance(caught.value, raxlog.CorruptionError):
            assert "write the snapshot again; 'raxlog verify' names all" in message
            assert name in raxlog.verify(where).problems[0]
        files.pipe_file(file, whole)


def test_a_folder_of_increments_alone_is_named_as_such(store: raxlog.Store, tmp_path: Path) -> None:
    store.snapshot(tmp_path / "monday")
    store.snapshot(tmp_path / "days" / "tuesday", incremental_to=tmp_path / "monday")
    with pytest.raises(raxlog.NotAStore, match=r"holds no full ones.*'raxlog restore' makes a store of an increment"):
        planned(tmp_path / "days")
    with pytest.raises(raxlog.InvalidArgument, match="since monday, and cannot be scanned alone"):
        planned(tmp_path / "days" / "tuesday")


# -- as of a time ------------------------------------------------------------------------------


@pytest.fixture
def days(store: raxlog.Store, tmp_path: Path, request: pytest.FixtureRequest) -> tuple[str, list[Manifest]]:
    """A folder of four states of a stream, of 10, 20, 30 and 40 entries, and their manifests."""
    where = str(tmp_path / "days") if request.param != "memory" else f"memory://{tmp_path.name}/days"
    made = []
    for number in range(4):
        store.stream("orders").extend([{"n": n} for n in range(10 * number, 10 * number + 10)])
        cut = request.param != "full" and (number % 2 == 0 or request.param == "memory")
        made.append(store.snapshot(f"{where}/day{9 - number}", **({"shards": 2} if cut else {})))
        time.sleep(0.002)
    return where, made


def entries_as_of(where: str, moment: object) -> int:
    options = parse({"path": where, "stream": "orders", "asOf": str(moment)})
    parts = scan.planned(find(options.path, options.as_of), options, Window())
    rows = rows_of(parts, options)
    assert rows == list(range(len(rows)))
    return len(rows)


def ms_of(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


@pytest.mark.parametrize("days", ["full", "mixed", "memory"], indirect=True)
def test_of_several_snapshots_the_newest_up_to_a_moment_is_read(days: tuple[str, list[Manifest]]) -> None:
    where, made = days
    assert len(rows_of(*planned(where))) == 40  # type: ignore[arg-type]
    for number, one in enumerate(made):
        at, now = one.created.astimezone(timezone(timedelta(hours=2))), ms_of(one.created)
        last = ms_of(made[number + 1].created) - 1 if number < 3 else now + 10**9
        for moment in (now, last, at.isoformat(timespec="milliseconds"), f"transaction {one.transaction}"):
            assert entries_as_of(where, moment) == 10 * number + 10
        alone = f"{where}/day{9 - number}"
        assert entries_as_of(alone, now) == 10 * number + 10
        with pytest.raises(raxlog.InvalidArgument, match=f"day{9 - number} .*transaction {one.transaction}"):
            entries_as_of(alone, now - 1)
    listed = r"asOf: nothing at .*days is that old.*day9 \(20.*\), day8 \("
    with pytest.raises(raxlog.InvalidArgument, match=listed):
        entries_as_of(where, "1999-12-31T23:59:59Z")


def test_a_copy_of_a_snapshot_is_of_the_snapshots_time_and_is_kept(store: raxlog.Store, tmp_path: Path) -> None:
    days = tmp_path / "days"
    store.stream("orders").append({"n": 0})
    monday = store.snapshot(days / "monday")
    store.stream("orders").append({"n": 1})
    tuesday = store.snapshot(days / "tuesday")
    with raxlog.open(days / "monday", readonly=True) as old:
        for name, how in (("copy", {}), ("shards", {"shards": 1}), ("increment", {"incremental_to": days / "monday"})):
            made = old.snapshot(days / name, **how)  # type: ignore[arg-type]
            assert (made.created, made.transaction) == (monday.created, monday.transaction)
        assert entries_as_of(str(days), tuesday.created.isoformat()) == 2
        old.snapshot(days / "last", keep=1)
    assert sorted(child.name for child in days.iterdir()) == ["last", "tuesday"]


def test_what_is_still_being_built_beside_snapshots_is_none(store: raxlog.Store, tmp_path: Path) -> None:
    store.snapshot(tmp_path / "days" / "monday")
    shutil.copytree(tmp_path / "days" / "monday", tmp_path / "days" / "monday.creating-77-0123abcd")
    assert find(str(tmp_path / "days")).path == str(tmp_path / "days" / "monday")


def test_a_moment_that_no_snapshot_can_be_of_is_refused(store: raxlog.Store, tmp_path: Path) -> None:
    with pytest.raises(raxlog.InvalidArgument, match="is a store, which holds its present state only"):
        entries_as_of(str(tmp_path / "store.rax"), 5)
    for wrong in ("yesterday", "2026-11-22", "2026-11-22T10:00:00", "-5", "transaction x"):
        with pytest.raises(raxlog.InvalidArgument, match=r"asOf=.* must be a time with its zone"):
            entries_as_of("anywhere", wrong)
    for use in (FOLLOW, WRITE):
        with pytest.raises(raxlog.InvalidArgument, match="asOf belongs to reading"):
            parse({"path": "x", "stream": "orders", "asOf": "5"}, use)

    with raxlog.open(tmp_path / "again.rax") as again:
        again.stream("orders").append({"n": 0})
    shutil.copytree(tmp_path / "again.rax", tmp_path / "copy.rax")
    with raxlog.open(tmp_path / "again.rax") as again:
        again.stream("orders").append({"n": 1})
        before = again.snapshot(tmp_path / "days" / "monday")
    with raxlog.open(tmp_path / "copy.rax") as copy:  # an older state that was put back counts from where it was
        after = copy.snapshot(tmp_path / "days" / "tuesday")
    assert after.transaction < before.transaction
    with pytest.raises(raxlog.InvalidArgument, match=r"counted anew since an older state .* and a time is needed"):
        entries_as_of(str(tmp_path / "days"), f"transaction {before.transaction}")


_SETTLES = """
import gc
from raxlog.tools.spark import scan

scan.settle()
frozen = gc.get_freeze_count()
held = []
held.append(held)
scan.settle()
assert 0 < gc.get_freeze_count() <= frozen
del held
assert gc.collect() >= 1
"""


def test_what_a_worker_has_loaded_is_left_out_of_its_collections_once() -> None:
    subprocess.run([sys.executable, "-c", _SETTLES], check=True)


def test_parts_of_streams_with_large_and_small_entries_are_even_in_bytes(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "store.rax", durability="relaxed") as store:
        store.stream("large").extend([{"n": n, "text": "x" * 16384} for n in range(6300)])
        store.stream("small").extend([{"n": n} for n in range(30_000)])
        store.snapshot(tmp_path / "snapshot")
    options = parse({"path": str(tmp_path / "snapshot"), "streamPattern": "*"})
    parts = scan.planned(find(options.path), options, Window())
    assert [{piece.stream for piece in part.pieces} for part in parts] == [{b"large"}] * 2 + [{b"large", b"small"}]
    assert abs(parts[0].entries - parts[1].entries) <= 1
    assert rows_of(parts, options) == [*range(6300), *range(30_000)]
    asked = parse({"path": str(tmp_path / "snapshot"), "streamPattern": "*", "maxRecordsPerPartition": "12100"})
    assert [part.entries for part in scan.planned(find(asked.path), asked, Window())] == [12_100] * 3
