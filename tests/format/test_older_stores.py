"""Stores that earlier commits have written are opened, checked, and read as they were written.

    stores/NAME.tar.xz     a store, as the commit of that name has left it
    stores/NAME.json       what that commit read from it
    python tests/format/test_older_stores.py FOLDER NAME   writes both, with the raxlog that is installed
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tarfile
import textwrap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import lmdb
import pytest
import raxlog
from children import Child
from older_store_workload import read, unpack
from raxlog.storage.files.presence import Presence
from raxlog.storage.files.writer_lock import WriterLock

STORES = Path(__file__).with_name("stores")
OF_BEFORE_THE_LOG = ("before-the-log", "cut-before-the-log")
NAMES = sorted(path.name.removesuffix(".json") for path in STORES.glob("*.json"))


def write(path: Path) -> None:
    """A store with something of all that a store can hold."""
    with raxlog.open(path) as store:
        orders = store.stream("orders")
        for n in range(300):
            orders.append({"item": f"item {n % 7}", "qty": n, "price": n / 4}, id=f"{1000 + n // 3}-{n % 3}")
        orders.append([("a", "1"), ("a", "2"), ("\u00fc", b"\xff\x00"), ("big", "x" * 5000)], id="2000-7")
        orders.delete("1001-1", "1050-0")
        orders.trim(minid="1003-2")
        store.stream("configured", node_max_entries=3, compression="zstd").extend({"n": n} for n in range(50))
        store.stream("emptied").append({"n": 1}, id="5-5")
        store.stream("emptied").trim(maxlen=0)
        store.stream("once").append({"n": 1}, producer="p", idempotent_id="i")
        mail = orders.create_group("mail", start="0")
        taken = [entry.id for entry in mail.read("worker-1", count=40)]
        mail.read("worker-2", count=30)
        mail.ack(*taken[:25])
        mail.claim("worker-3", *taken[30:35], min_idle=0)
        mail.nack(*taken[36:38], mode="fail")
        orders.create_group("late", start="$")
        store.bind("orders.>", stream="published")
        with store.subscribe("orders.*.new", durable="audit") as audit:
            for n in range(5):
                store.publish(f"orders.{n}.new", {"n": n})
            for _, message in zip(range(2), audit, strict=False):
                audit.ack(message)
        with store.transaction() as tx:
            tx.state["sold"] = b"17"
            tx.stream("invoices").append({"order": "1000-0"}, id="1-1")


@pytest.mark.parametrize("name", NAMES)
def test_a_store_of_an_earlier_commit_reads_as_it_was_written(name: str, tmp_path: Path) -> None:
    store = unpack(name, tmp_path)
    assert raxlog.check(store).ok
    assert read(store) == json.loads((STORES / f"{name}.json").read_text("utf-8"))
    with raxlog.open(store) as opened:  # it can be written as well
        opened.stream("orders").append({"item": "new"})
    assert raxlog.check(store).ok


@pytest.mark.parametrize("name", OF_BEFORE_THE_LOG)
def test_a_store_of_before_the_log_gets_one_when_it_is_opened_for_writing(name: str, tmp_path: Path) -> None:
    place = unpack(name, tmp_path)
    before = json.loads((STORES / f"{name}.json").read_text("utf-8"))
    with raxlog.open(place, readonly=True) as reader:
        assert len(reader.stream("orders")) == before["orders"]["length"]
        assert not (place / "000001" / "log").exists()
        with Child(partial(append_and_be_killed, place)) as child:
            assert child.heard() == "appended"
            assert len(reader.stream("new")) == 1, "it goes over to the log"
    assert (place / "000001" / "log").exists()
    assert b"raxlog journal" not in lmdb_values(place)
    found = read(place)
    assert found.pop("new")["length"] == 1
    assert found == before
    assert raxlog.check(place).ok


def append_and_be_killed(place: Path, say: Callable[[str], None]) -> None:
    raxlog.open(place).stream("new").append({"n": 1})
    say("appended")
    signal.pause()


def lmdb_values(place: Path) -> bytes:
    with lmdb.open(str(place / "000001"), readonly=True, lock=False) as env, env.begin() as txn:
        return b"".join(bytes(value) for _, value in txn.cursor())


def test_a_store_on_a_medium_that_cannot_be_written_is_read_without_a_log(tmp_path: Path, nobody: int) -> None:
    """What its journal alone holds is shown where this user may write: two commits are not here."""
    for name in OF_BEFORE_THE_LOG:
        place = unpack(name, tmp_path)
        files = {file: file.read_bytes() for file in place.rglob("*") if file.is_file()}
        code = """
            import encodings.ascii, logging, os, sys  # what is read once the user is another
            import raxlog.store
            os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
            with raxlog.open(sys.argv[1], readonly=True) as reader:
                print(len(reader.stream("invoices")))
            try:
                raxlog.open(sys.argv[1])
            except raxlog.ReadOnlyStore:
                print("refused")
        """
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(place), str(nobody)],
                              check=True, capture_output=True, text=True)
        assert done.stdout.split() == ["1", "refused"]
        assert {file: file.read_bytes() for file in files} == files


def test_a_record_of_an_older_journal_that_is_damaged_or_anothers_is_not_applied(tmp_path: Path) -> None:
    place = unpack("cut-before-the-log", tmp_path / "cut")
    data = place / "000001" / "data.mdb"
    whole = data.read_bytes()
    slots = whole.index(b"raxlog journal") // 4096 * 4096 + 4096
    other = (unpack("before-the-log", tmp_path / "other") / "000001" / "data.mdb").read_bytes()
    foreign = other.index(b"raxlog journal") // 4096 * 4096 + 4096
    spoiled = [bytearray(whole) for _ in range(6)]
    for content, at in zip(spoiled, (0, 9, 17, 25, 60), strict=False):
        for slot in range(4):
            content[slots + slot * 65536 + at] ^= 4
    spoiled[5][slots : slots + 4 * 65536] = other[foreign : foreign + 4 * 65536]
    for content in spoiled:
        data.write_bytes(content)
        with raxlog.open(place, readonly=True) as store:
            assert len(store.stream("invoices")) == 1


def test_what_a_power_cut_left_in_an_older_journal_is_waited_for_not_passed_over(tmp_path: Path) -> None:
    """A process that has come to apply it stands still: a reader must not show less than was acknowledged."""
    place = unpack("cut-before-the-log", tmp_path)

    def apply(say: Callable[[str], None]) -> None:
        lock = WriterLock(place / "writer")
        lock.acquire(1)
        say("has the lock")
        time.sleep(0.5)
        lock.release()

    with Child(apply) as child:
        assert child.heard() == "has the lock"
        with raxlog.open(place, readonly=True) as store:
            assert len(store.stream("invoices")) == 2
        child.finish()


def test_a_log_that_was_not_given_to_its_end_is_none(tmp_path: Path) -> None:
    """A kill between the log's file and the record that says that it counts."""
    place = unpack("cut-before-the-log", tmp_path)
    for content in (b"", b"x" * 5000):
        (place / "000001" / "log").write_bytes(content)
        report = raxlog.check(place)
        assert report.ok, report
        assert raxlog.salvage(place, tmp_path / f"salvaged{len(content)}").complete
    before = json.loads((STORES / "cut-before-the-log.json").read_text("utf-8"))
    assert read(place) == before
    with raxlog.open(place) as store:
        store.stream("new").append({"n": 1})
    found = read(place)
    assert found.pop("new")["length"] == 1
    assert found == before


def test_beside_a_process_of_an_earlier_raxlog_a_store_gets_no_log(tmp_path: Path) -> None:
    place = unpack("before-the-log", tmp_path)

    def stay(say: Callable[[str], None]) -> None:
        entered = Presence(place)  # as an earlier raxlog enters, with no log in the store
        say("entered")
        signal.pause()
        entered.close()

    with Child(stay) as child:
        assert child.heard() == "entered"
        with pytest.raises(raxlog.StoreError, match=f"earlier raxlog.* process {child.pid}"):
            raxlog.open(place)
        assert not (place / "000001" / "log").exists()
    with raxlog.open(place) as store:
        assert store._env.map.log is not None


def test_a_store_of_today_reads_as_an_earlier_commit_has_written_it(tmp_path: Path) -> None:
    write(tmp_path / "s")
    assert read(tmp_path / "s") == json.loads((STORES / "before-the-log.json").read_text("utf-8"))


if __name__ == "__main__":
    folder, name = Path(sys.argv[1]), sys.argv[2]
    write(folder / name)
    (folder / f"{name}.json").write_text(json.dumps(read(folder / name)) + "\n", "utf-8")
    with tarfile.open(folder / f"{name}.tar.xz", "w:xz") as packed:
        packed.add(folder / name, name)
