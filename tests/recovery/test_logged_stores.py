"""Check, salvage, snapshots and compaction of a store with a log: what only the log holds belongs to it."""

from __future__ import annotations

import random
import shutil
import signal
import sys
import threading
from pathlib import Path

import forkserver
import pytest
import raxlog
import second_reader
from raxlog.storage.log import ring
from raxlog.stream.columns.arrow import projection
from raxlog.tools.spark import scan
from raxlog.tools.spark.location import find
from raxlog.tools.spark.options import parse
from raxlog.tools.spark.plan import Window

RING = 1 << 17
COMMITS = 60


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store whose log is small."""
    place = tmp_path / "s.rax"
    raxlog.open(place, max_map_size=8 * RING).close()
    return place


@pytest.fixture
def killed(path: Path) -> Path:
    """A killed process' store: its data file has ten entries, the log alone has the others and a second stream."""
    work = f"""
import os, raxlog, signal
store = raxlog.open({str(path)!r})
s = store.stream("s")
for n in range(10):
    s.append({{"n": n, "x": "y" * 100}}, id=f"{{n + 1}}-0")
store._env.map.log.checkpoints.make(True)
group = s.create_group("g", "0")
for n in range(10, {COMMITS}):
    s.append({{"n": n, "x": "y" * 100}}, id=f"{{n + 1}}-0")
group.read("w", count=5)
store.stream("only in the log").append({{"n": 0}})
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert forkserver.run([sys.executable, "-c", work], check=False, timeout=60).returncode == -signal.SIGKILL
    return path


def log_of(path: Path) -> Path:
    return path / "000001" / ring.LOG


def numbers(store: raxlog.Store) -> list[int]:
    return [int(entry.fields["n"]) for entry in store.stream("s").range()]


def records_of(path: Path) -> list[int]:
    """Where the records of the ring begin, in the file: it has not been used twice."""
    content, at, found = log_of(path).read_bytes(), ring.HEADER, []
    while (length := int.from_bytes(content[at + 8 : at + 12], "little")) and at + 28 + length <= len(content):
        found.append(at)
        at += 28 + length
    return found


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 0x10
    file.write_bytes(content)


def test_check_counts_what_only_the_log_holds(killed: Path) -> None:
    before = log_of(killed).read_bytes(), (killed / "000001" / "data.mdb").read_bytes()
    report = raxlog.check(killed)
    assert report.ok, report
    assert report.counts["streams"] == 2
    assert report.counts["groups"] == 1
    assert (log_of(killed).read_bytes(), (killed / "000001" / "data.mdb").read_bytes()) == before
    with raxlog.open(killed) as store:
        assert numbers(store) == list(range(COMMITS))
    closed = raxlog.check(killed)
    assert closed.ok
    assert {name: many for name, many in closed.counts.items() if name not in ("pages", "looked_up")} == {
        name: many for name, many in report.counts.items() if name not in ("pages", "looked_up")
    }


def test_check_beside_a_writer_that_fills_the_ring_again_and_again_finds_nothing_wrong(path: Path) -> None:
    stop = threading.Event()
    with raxlog.open(path, durability="relaxed") as store:
        stream = store.stream("s")

        def write() -> None:
            while not stop.is_set():
                stream.append({"x": "y" * 300})
                if len(stream) > 2000:
                    stream.trim(maxlen=1000)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(5):
                report = raxlog.check(path)
                assert report.ok, report
        finally:
            stop.set()
            writer.join()


def test_check_names_the_byte_at_which_a_log_is_damaged_and_goes_on(killed: Path) -> None:
    starts = records_of(killed)
    assert len(starts) >= COMMITS
    flip(log_of(killed), starts[30] + 40)
    report = raxlog.check(killed)
    (problem,) = [problem for problem in report.problems if problem.kind == "log"]
    assert str(log_of(killed)) in problem.what
    assert f"byte {starts[30]}" in problem.what
    assert report.problems == [problem]
    assert report.counts["streams"] == 1


def test_check_says_that_a_log_is_missing_or_anothers(killed: Path, tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "other"):
        pass
    whole = log_of(killed).read_bytes()
    for content in (log_of(tmp_path / "other").read_bytes(), whole[:5000], whole[:100], None):
        if content is None:
            log_of(killed).unlink()
        else:
            log_of(killed).write_bytes(content)
        report = raxlog.check(killed)
        assert [problem.kind for problem in report.problems] == ["log"]
        assert str(log_of(killed)) in report.problems[0].what


def test_salvage_takes_what_is_sound_of_the_log(killed: Path, tmp_path: Path) -> None:
    whole = raxlog.salvage(killed, tmp_path / "whole")
    assert whole.ok
    starts = records_of(killed)
    flip(log_of(killed), starts[30] + 40)
    with pytest.raises(raxlog.CorruptionError, match=f"byte {starts[30]}"):
        raxlog.open(killed)
    report = raxlog.salvage(killed, tmp_path / "part")
    assert not report.ok
    assert f"byte {starts[30]}" in str(report)
    log_of(killed).unlink()
    bare = raxlog.salvage(killed, tmp_path / "bare")
    assert "log" in str(bare)
    with raxlog.open(tmp_path / "whole") as store:
        assert numbers(store) == list(range(COMMITS))
        assert store.stream("s").group("g").pending().total == 5
        assert len(store.stream("only in the log")) == 1
    with raxlog.open(tmp_path / "part") as store:
        found = numbers(store)
        assert found == list(range(len(found)))
        assert 20 <= len(found) < 35
    with raxlog.open(tmp_path / "bare") as store:
        assert numbers(store) == list(range(10))
    for made in ("whole", "part", "bare"):
        assert raxlog.check(tmp_path / made).ok


def test_salvage_takes_from_the_log_what_is_damaged_in_the_data_file(killed: Path, tmp_path: Path) -> None:
    data = killed / "000001" / "data.mdb"
    content = data.read_bytes()
    assert b"y" * 100 in content
    data.write_bytes(content.replace(b"y" * 100, b"y" * 99 + b"z"))
    report = raxlog.salvage(killed, tmp_path / "new")
    assert report.ok, "the log has the node's next state"
    with raxlog.open(tmp_path / "new") as store:
        assert numbers(store) == list(range(COMMITS))
    assert raxlog.check(tmp_path / "new").ok


@pytest.mark.parametrize("seed", range(8))
def test_no_flipped_bit_of_a_log_shows_a_wrong_value(killed: Path, tmp_path: Path, seed: int) -> None:
    """The last record's neither: the shared file says how far the log was on disk, as long as the machine runs."""
    rng, starts, file = random.Random(seed), records_of(killed), log_of(killed)
    whole = file.read_bytes()
    places = [rng.randrange(starts[10], starts[-1]) for _ in range(12)] + [rng.randrange(48) for _ in range(2)]
    for place in [*places, starts[-1] + rng.randrange(28)]:
        content = bytearray(whole)
        content[place] ^= 1 << rng.randrange(8)
        file.write_bytes(content)
        with pytest.raises(raxlog.CorruptionError, match=str(file)):
            raxlog.open(killed, readonly=True)
    file.write_bytes(whole)
    with raxlog.open(killed, readonly=True) as store:
        assert numbers(store) == list(range(COMMITS))


def test_a_snapshot_holds_what_only_the_log_does(killed: Path, tmp_path: Path) -> None:
    with raxlog.open(killed, durability="relaxed") as store:
        full = store.snapshot(tmp_path / "full")
        store.stream("s").append({"n": COMMITS}, id=f"{COMMITS + 1}-0")
        store.snapshot(tmp_path / "more", incremental_to=tmp_path / "full")
        assert full.kind == "full"
    with raxlog.open(tmp_path / "full", readonly=True) as store:
        assert numbers(store) == list(range(COMMITS))
    assert raxlog.check(tmp_path / "full").ok
    raxlog.restore(tmp_path / "more", tmp_path / "restored")
    with raxlog.open(tmp_path / "restored") as store:
        assert numbers(store) == list(range(COMMITS + 1))
        store.stream("s").append({"n": COMMITS + 1})
    assert not (tmp_path / "full" / "000001" / ring.LOG).exists()


def test_a_scan_of_spark_reads_what_only_the_log_holds_from_the_store_and_from_its_shards(
    killed: Path, tmp_path: Path
) -> None:
    """What the driver plans, and what its tasks read."""
    with raxlog.open(killed, readonly=True) as store:
        made = store.snapshot(tmp_path / "shards", shards=3)
    assert {stream.name: stream.length for stream in made.streams} == {"s": COMMITS, "only in the log": 1}
    shutil.copytree(killed, tmp_path / "at rest")  # the data file and its log, as a volume of containers has them
    numbers = projection({"n": "bigint"})
    for place in (killed, tmp_path / "shards", tmp_path / "at rest"):
        options = parse({"path": str(place), "stream": "s", "minPartitions": "3"})
        parts = scan.planned(find(options.path), options, Window.of(options))
        rows = [n for part in parts for batch in scan.batches(part, numbers, numbers.schema, options)
                for n in batch.column(0).to_pylist()]
        assert sorted(rows) == list(range(COMMITS))


def test_snapshots_beside_a_writer_are_prefixes(path: Path, tmp_path: Path) -> None:
    stop, acknowledged = threading.Event(), [0]
    with raxlog.open(path, durability="relaxed") as store:
        store.stream("s").append({"n": 0}, id="1-0")

        def write() -> None:
            while not stop.is_set():
                n = acknowledged[0] + 1
                store.stream("s").append({"n": n, "x": "y" * 200}, id=f"{n + 1}-0")
                acknowledged[0] = n

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for number in range(4):
                least = acknowledged[0]
                store.snapshot(tmp_path / str(number))
                most = acknowledged[0] + 1
                with raxlog.open(tmp_path / str(number), readonly=True) as made:
                    found = numbers(made)
                assert found == list(range(len(found)))
                assert least < len(found) <= most + 1
        finally:
            stop.set()
            writer.join()


def test_a_restored_store_and_a_salvaged_one_have_their_log_before_they_are_first_written(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax") as store:
        store.stream("s").append({"n": 1})
        store.snapshot(tmp_path / "snapshot")
    raxlog.restore(tmp_path / "snapshot", tmp_path / "restored")
    raxlog.salvage(tmp_path / "s.rax", tmp_path / "salvaged")
    raxlog.salvage(tmp_path / "snapshot", tmp_path / "of the snapshot")
    for name in ("restored", "salvaged", "of the snapshot"):
        place = tmp_path / name
        assert list(second_reader.read_store(place).streams) == [b"s"], "a reader of the format demands the log"
        with raxlog.open(place, readonly=True) as reader:
            assert len(reader.stream("s")) == 1
        assert raxlog.check(place).ok
        with raxlog.open(place) as store:
            store.stream("s").append({"n": 2})
        with raxlog.open(place, readonly=True) as reader:
            assert len(reader.stream("s")) == 2
