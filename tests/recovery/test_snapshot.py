"""Full snapshots: one state, while writers go on; all of it or nothing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import raxlog
from children import Child
from raxlog.recovery import subprocess_task
from raxlog.recovery.snapshot import manifest
from snapshot_cases import LOG, change, fill, left_beside, live_records, records, small_disk

__all__ = ["small_disk"]

LONG = os.environ.get("RAXLOG_LONG") == "1"
MEGABYTES = 1024 if LONG else 50
STARS = {"pad": "*" * 800}


@pytest.mark.usefixtures("started_readers")
def test_a_snapshot_is_a_store_at_rest_with_the_same_records(store: raxlog.Store, tmp_path: Path) -> None:
    fill(store)
    made = store.snapshot(tmp_path / "s")
    assert records(tmp_path / "s") == live_records(store)
    assert len(records(tmp_path / "s")) == made.records
    with raxlog.open(tmp_path / "s", readonly=True) as copy:
        assert copy.streams() == store.streams()
        for name in store.streams():
            assert list(copy.stream(name).range()) == list(store.stream(name).range())
            assert copy.stream(name).groups() == store.stream(name).groups()
        assert copy.state["counter"] == b"17"
    assert [file.name for file in (tmp_path / "s" / "000001").iterdir()] == ["data.mdb"]


def test_the_manifest_tells_what_is_in_the_copy(store: raxlog.Store, tmp_path: Path) -> None:
    fill(store)
    before = datetime.now(UTC)
    made = store.snapshot(tmp_path / "s")
    assert made.kind == "full"
    assert before - timedelta(milliseconds=1) <= made.created <= datetime.now(UTC)
    assert made.store_created <= made.created
    assert [stream.name for stream in made.streams] == store.streams()
    for summary in made.streams:
        stream = store.stream(summary.name)
        info = stream.info()
        entries = list(stream.range())
        assert (summary.length, summary.nodes) == (len(entries), info.radix_tree_keys)
        assert summary.entries_added == info.entries_added
        assert summary.last_generated_id == info.last_generated_id
        assert (summary.first, summary.last) == ((entries[0].id, entries[-1].id) if entries else (None, None))
        assert list(summary.points) == [
            entries[k].id for k in range(summary.every, len(entries), summary.every)
        ]
        assert [(g.name, g.last_delivered_id, g.pending, g.consumers, g.lag) for g in summary.groups] == [
            (g.name, g.last_delivered_id, g.pending, g.consumers, g.lag)
            for g in sorted(stream.groups(), key=lambda group: group.last_delivered_id)
        ]
    assert made.stream("orders") == made.stream(b"orders")
    assert made.stream(b"orders").points  # type: ignore[union-attr]


def test_names_in_a_manifest_are_text_or_bytes_as_the_store_shows_them(tmp_path: Path) -> None:
    def names(made: raxlog.Manifest) -> list[object]:
        assert made.stream(b"\xff") is not None
        assert made.stream("\udcff") == made.stream(b"\xff")
        return [name for stream in made.streams for name in (stream.name, *(group.name for group in stream.groups))]

    for encoding, shown in (("utf-8", ["aé", "\udcfe", "\udcff"]), (None, [b"a\xc3\xa9", b"\xfe", b"\xff"])):
        folder = tmp_path / str(encoding)
        folder.mkdir()
        with raxlog.open(folder / "store.rax", encoding=encoding) as store:  # type: ignore[arg-type]
            store.stream("aé").append({"n": 1})
            store.stream("aé").create_group(b"\xfe")
            store.stream(b"\xff").append({"n": 1})
            assert names(store.snapshot(folder / "full")) == shown
            assert names(store.snapshot(folder / "shards", shards=2)) == shown
            assert names(store.snapshot(folder / "more", incremental_to=folder / "full")) == shown
        assert names(raxlog.restore(folder / "more", folder / "restored")) == shown
        with raxlog.open(folder / "store.rax", readonly=True, encoding="bytes") as store:
            assert names(store.snapshot(folder / "as bytes")) == [b"a\xc3\xa9", b"\xfe", b"\xff"]


def test_an_empty_store_has_a_snapshot_too(store: raxlog.Store, tmp_path: Path) -> None:
    assert store.snapshot(tmp_path / "s").streams == ()
    with raxlog.open(tmp_path / "s", readonly=True) as copy:
        assert copy.streams() == []


def test_a_snapshot_beside_a_busy_writer_is_one_state(store: raxlog.Store, tmp_path: Path) -> None:
    while os.stat(store.path / "000001" / "data.mdb").st_size < MEGABYTES << 20:
        store.stream("bulk").extend([STARS] * 2000)
    acknowledged, stop = [0], threading.Event()

    def write() -> None:
        while not stop.is_set():
            count = acknowledged[0] + 1
            with store.transaction() as tx:
                tx.stream("a").append({"n": count})
                tx.state["counter"] = str(count).encode()
                tx.stream("b").append({"n": count})
            if count % 7 == 0:
                store.stream("bulk").trim(maxlen=len(store.stream("bulk")) - 10)
            acknowledged[0] = count

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while acknowledged[0] < 20:
            time.sleep(0.01)
        before = acknowledged[0]
        store.snapshot(tmp_path / "s")
        after = acknowledged[0]
    finally:
        stop.set()
        writer.join()
    assert after > before  # it went on meanwhile
    with raxlog.open(tmp_path / "s", readonly=True) as copy:
        count = int(copy.state["counter"])
        assert before <= count <= after + 1
        for name in ("a", "b"):
            assert [int(entry.fields["n"]) for entry in copy.stream(name).range()] == list(range(1, count + 1))
    assert raxlog.verify(tmp_path / "s").ok


def test_writers_undo_grow_and_compact_while_a_snapshot_is_made(tmp_path: Path) -> None:
    done: set[str] = set()
    with raxlog.open(tmp_path / "store.rax", map_size=1 << 20) as store:
        fill(store, 500)
        was = live_records(store)

        def progress(step: str, *_: int) -> None:
            if step in done:
                return
            done.add(step)
            undo(store)
            store.stream("grown").extend([STARS] * 3000)
            if step == "copy":
                store.compact()

        store.snapshot(tmp_path / "s", progress=progress)
        assert {"copy", "check", "sum"} <= done
        assert len(store.stream("grown")) == 3000 * len(done)
        assert not store.stream("undone").exists()
    assert records(tmp_path / "s") == was


def undo(store: raxlog.Store) -> None:
    """Write something and take it back."""
    with pytest.raises(ZeroDivisionError), store.transaction() as tx:  # noqa: PT012 - that is the case
        tx.stream("undone").append({"n": 1})
        raise ZeroDivisionError


def test_a_snapshot_within_a_transaction_of_ones_own_holds_what_was_committed(
    store: raxlog.Store, tmp_path: Path
) -> None:
    store.stream("s").append({"n": 1})
    with store.transaction() as tx:
        tx.stream("s").append({"n": 2})
        store.snapshot(tmp_path / "s")
    with raxlog.open(tmp_path / "s", readonly=True) as copy:
        assert len(copy.stream("s")) == 1


def test_the_commit_journal_is_in_no_snapshot(store: raxlog.Store, tmp_path: Path) -> None:
    for number in range(2):
        store.stream("s").append({"n": number})
        store.snapshot(tmp_path / f"s{number}")
        with raxlog.open(tmp_path / f"s{number}", readonly=True) as copy, copy._env.read() as txn, txn.cursor() as at:
            assert not (at.set_range(LOG) and at.key().startswith(LOG))


def test_relaxed_and_readonly_stores_have_snapshots(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "store.rax", durability="relaxed") as store:
        store.stream("s").append({"n": 1})
        store.snapshot(tmp_path / "s1")
    with raxlog.open(tmp_path / "store.rax", readonly=True) as store:
        store.snapshot(tmp_path / "s2")
    assert records(tmp_path / "s1") == records(tmp_path / "s2") == records(tmp_path / "store.rax")


def test_a_snapshot_of_a_snapshot_tells_the_same_transaction(store: raxlog.Store, tmp_path: Path) -> None:
    fill(store, 300)
    first = store.snapshot(tmp_path / "s1")
    with raxlog.open(tmp_path / "s1", readonly=True) as copy:
        second = copy.snapshot(tmp_path / "s2")
    assert (first.transaction, first.store, first.records) == (second.transaction, second.store, second.records)
    assert first.id != second.id


def test_a_snapshot_after_compaction_is_whole(store: raxlog.Store, tmp_path: Path) -> None:
    fill(store, 500)
    store.compact()
    store.stream("orders").append({"n": 1})
    store.snapshot(tmp_path / "s")
    assert records(tmp_path / "s") == live_records(store)


def test_a_snapshot_is_read_without_lock_and_never_written(store: raxlog.Store, tmp_path: Path) -> None:
    fill(store, 300)
    store.snapshot(tmp_path / "s")
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "s").rglob("*")}
    with pytest.raises(raxlog.ReadOnlyStore, match="is a snapshot"):
        raxlog.open(tmp_path / "s")
    with raxlog.open(tmp_path / "s", readonly=True) as copy, pytest.raises(raxlog.ReadOnlyStore):
        copy.stream("orders").append({"n": 1})
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "s").rglob("*")} == before


# -- all or nothing -------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [None, 2])
def test_a_snapshot_killed_anywhere_leaves_nothing_that_opens(tmp_path: Path, shards: int | None) -> None:
    path, place = tmp_path / "store.rax", tmp_path / "out" / "s"
    with raxlog.open(path) as store:
        fill(store, 300)
    killed = 0
    for event in range(1, 30, 1 if LONG else 5):
        def make(say: Callable[[Any], None], event: int = event) -> None:
            seen = []

            def progress(*what: Any) -> None:
                seen.append(what)
                if len(seen) > event:
                    os.kill(os.getpid(), signal.SIGKILL)

            with raxlog.open(path) as store:
                store.snapshot(place, shards=shards, progress=progress)

        with Child(make) as child:
            child.wait()
            killed += child.status == -signal.SIGKILL
        if child.status == 0:
            break
        assert not place.exists()
    assert killed >= 2
    wait_for_processes_about(tmp_path)
    with raxlog.open(path) as store:
        store.snapshot(tmp_path / "out" / "next")
    assert left_beside(place) == []


def test_the_process_aside_does_not_outlive_its_caller(tmp_path: Path) -> None:
    path = tmp_path / "store.rax"
    with raxlog.open(path) as store:
        fill(store, 300)

    def make(say: Callable[[Any], None]) -> None:
        with raxlog.open(path) as store:
            store.snapshot(tmp_path / "s", progress=lambda *_: (say("begun"), time.sleep(60)))

    with Child(make) as child:
        child.heard()
    wait_for_processes_about(tmp_path)


def wait_for_processes_about(path: Path) -> None:
    """Wait until no other process has the path in its command line."""
    deadline = time.monotonic() + 10
    while True:
        there = []
        for process in Path("/proc").iterdir():
            try:
                if process.name.isdigit() and os.fsencode(path) in (process / "cmdline").read_bytes():
                    there.append(process.name)
            except OSError:
                continue
        if not there:
            return
        assert time.monotonic() < deadline, f"processes {there} are still at work"
        time.sleep(0.02)


def test_a_caller_that_is_interrupted_leaves_nothing(store: raxlog.Store, tmp_path: Path) -> None:
    fill(store, 300)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.snapshot(tmp_path / "s", progress=interrupt)
    assert not (tmp_path / "s").exists()
    assert left_beside(tmp_path / "s") == []


def test_a_damaged_record_comes_into_no_snapshot(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "store.rax") as store:
        store.stream("s").extend([{"text": "needle in the hay"}] * 300)
    data = tmp_path / "store.rax" / "000001" / "data.mdb"
    raw = data.read_bytes()
    at = raw.rindex(b"needle")
    data.write_bytes(raw[:at] + b"noodle" + raw[at + 6 :])
    with raxlog.open(tmp_path / "store.rax") as store:
        with pytest.raises(raxlog.CorruptionError, match="fails its checksum"):
            store.snapshot(tmp_path / "s")
        assert not (tmp_path / "s").exists()


@pytest.mark.usefixtures("started_readers")
def test_damage_that_kills_its_reader_is_an_error_only(store: raxlog.Store) -> None:
    with pytest.raises(raxlog.CorruptionError, match="SIGBUS"):
        subprocess_task.run(die, {"by": signal.SIGBUS})
    with pytest.raises(raxlog.StoreError, match="ended from outside"):
        subprocess_task.run(die, {"by": signal.SIGKILL})


def die(say: Callable[..., None], by: int) -> None:
    """For a subprocess: end by a signal."""
    os.kill(os.getpid(), by)


# -- bad input ------------------------------------------------------------------------------


def test_of_two_snapshots_to_one_place_one_is_made(store: raxlog.Store, tmp_path: Path) -> None:
    fill(store, 300)
    ended: list[object] = []

    def make() -> None:
        try:
            ended.append(store.snapshot(tmp_path / "s").id)
        except raxlog.StoreError as error:
            ended.append(error)

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (made,) = [end for end in ended if isinstance(end, str)]
    assert manifest.read(tmp_path / "s").id == made
    assert left_beside(tmp_path / "s") == []


def test_a_snapshot_on_a_read_only_medium_is_read(store: raxlog.Store, small_disk: Path) -> None:
    store.stream("s").append({"n": 1})
    store.snapshot(small_disk / "s")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with raxlog.open(small_disk / "s", readonly=True) as copy:
        assert len(copy.stream("s")) == 1
    assert raxlog.verify(small_disk / "s").ok
    with pytest.raises(raxlog.ReadOnlyStore):
        store.snapshot(small_disk / "t")


@pytest.mark.parametrize("what", ["file", "empty folder", "store", "dangling link"])
def test_nothing_is_overwritten(store: raxlog.Store, tmp_path: Path, what: str) -> None:
    place = tmp_path / "s"
    if what == "file":
        place.write_text("mine")
    elif what == "empty folder":
        place.mkdir()
    elif what == "store":
        raxlog.open(place).close()
    else:
        place.symlink_to(tmp_path / "nowhere")
    for options in ({}, {"shards": 2}):
        with pytest.raises(raxlog.StoreError, match="is there already"):
            store.snapshot(place, **options)
    assert what != "file" or place.read_text() == "mine"
    assert left_beside(place) == []


def test_arguments_without_a_meaning_are_refused(store: raxlog.Store, tmp_path: Path) -> None:
    place = tmp_path / "s"
    for options in (
        {"shards": 0}, {"shards": True}, {"shard_bytes": -1}, {"shards": 2, "shard_bytes": 9}, {"keep": 0},
        {"keep": "3"}, {"shards": 2, "incremental_to": tmp_path},
    ):
        with pytest.raises(raxlog.InvalidArgument):
            store.snapshot(place, **options)  # type: ignore[arg-type]
    for options in ({}, {"shards": 2, "keep": 1}):
        with pytest.raises(raxlog.InvalidArgument, match="is a URL"):
            store.snapshot("memory://somewhere", **options)  # type: ignore[arg-type]
    assert not place.exists()
    store.close()
    with pytest.raises(raxlog.StoreClosed):
        store.snapshot(place)


def test_a_full_disk_leaves_nothing(store: raxlog.Store, small_disk: Path) -> None:
    store.stream("s").extend([{"pad": os.urandom(400).hex()} for _ in range(3000)])
    for options in ({}, {"shards": 2}):
        with pytest.raises(raxlog.StoreFull):
            store.snapshot(small_disk / "s", **options)  # type: ignore[arg-type]
        assert list(small_disk.iterdir()) == []
    change(store, random.Random(1))


def test_a_place_where_nothing_may_be_written_is_named(public_folder: Path, nobody: int) -> None:
    path, closed = public_folder / "store.rax", public_folder / "closed"
    raxlog.open(path).close()
    closed.mkdir(mode=0o755)

    def make(say: Callable[[Any], None]) -> None:
        os.setuid(nobody)
        with raxlog.open(path, readonly=True) as store:
            try:
                store.snapshot(closed / "s")
            except raxlog.ReadOnlyStore as error:
                say(str(error))

    with Child(make) as child:
        (message,) = child.finish()
    assert "cannot create a snapshot" in message
    assert list(closed.iterdir()) == []
