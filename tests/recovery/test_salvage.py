"""salvage: what is whole comes over, what is lost is told, and nothing that was gone comes back.

    truth      every entry, pending entry and state of the sound store
    damage     noise over pages, flipped bits, a cut file, lost meta pages, lost lists
    demanded   nothing that is not in the truth; every entry that is missing lies in a range that was told;
               the new store passes check; of the entries in untouched pages 95 % and more are there
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flipped_stores
import lmdb
import pytest
import raxlog
from children import Child
from cli_runs import Run
from counting import checkpoint
from environment_cases import cut_off_reserve
from not_stores import as_store, bad_stores, everything_in
from raxlog.recovery.check.check import perform as perform_check
from raxlog.recovery.check.page_tree import PageTree
from raxlog.recovery.salvage.report import SalvageReport
from raxlog.recovery.salvage.salvage import rescue
from raxlog.storage.format import keys, records
from raxlog.storage.tree.lmdb_file import PageFile
from raxlog.stream.node import decode as node

pytest_plugins = ["cli_fixtures"]
PAGE = 4096


@dataclass
class Truth:
    """What is in a store, and on which pages its entries lie."""

    entries: dict[bytes, dict[raxlog.StreamID, Any]]
    pending: dict[tuple[bytes, bytes], set[Any]]
    state: dict[bytes, bytes]

    def __len__(self) -> int:
        return sum(map(len, self.entries.values()))


def truth_of(path: Path) -> Truth:
    with raxlog.open(path, readonly=True, encoding=None) as store:
        entries, pending = {}, {}
        for name in store.streams():
            stream = store.stream(name)
            entries[name] = {entry.id: entry.pairs for entry in stream.range()}
            for info in stream.groups():
                rows = stream.group(info.name).pending_entries("-")
                pending[name, info.name] = {(row.id, row.consumer, row.deliveries) for row in rows}
        return Truth(entries, pending, dict(store.state.items()))


def grow(path: Path, entries: int) -> None:
    """A store of some size, in which much has been trimmed, deleted and acknowledged."""
    rng = random.Random(1)
    with raxlog.open(path, durability="relaxed", encoding=None) as store:
        for name, options in flipped_stores.STREAMS.items():
            stream = store.stream(name, **options)
            ids = [raxlog.StreamID(10 + number // 2, number % 2) for number in range(entries)]
            for start in range(0, entries, 500):
                stream.extend([{"n": n, "text": f"some words {n} " * 3} for n in range(start, start + 500)],
                              ids[start : start + 500])
            stream.delete(*ids[100:140], *ids[500:503], ids[entries // 2])
            stream.trim(maxlen=entries - 160)
            stream.create_group(b"audit", "0")
            group = stream.group(b"audit")
            for consumer in (b"one", b"two"):
                group.read(consumer, count=entries // 6)
            delivered = [entry.id for entry in stream.range(count=entries // 4)]
            group.ack(*rng.sample(delivered, entries // 8))
            group.nack(*rng.sample(delivered, 30))
        for number in range(40):
            store.stream("small").append({"n": number}, producer=f"p{number % 3}", idempotent_id=f"i{number}")
            store.state[f"key{number}"] = b"v" * number
        store.stream("gone").append({"to": "be deleted"})
        store.delete_stream("gone")


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    path = tmp_path_factory.mktemp("grown") / "store.rax"
    grow(path, 3000)
    return path, truth_of(path)


@pytest.fixture
def damaged(grown: tuple[Path, Truth], tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(grown[0], tmp_path / "store.rax"))


def data_of(path: Path) -> Path:
    return path / "000001" / "data.mdb"


def noise(path: Path, pages: set[int], seed: int) -> None:
    rng = random.Random(seed)
    with data_of(path).open("r+b") as file:
        for page in sorted(pages):
            file.seek(PAGE * page)
            file.write(rng.randbytes(PAGE))


def layout_of(path: Path) -> tuple[Any, list[tuple[set[int], bytes, list[raxlog.StreamID]]]]:
    """The newest meta page; and for each node its pages, its stream's name, its entries' IDs."""
    with raxlog.open(path, readonly=True, encoding=None) as store, PageFile(data_of(path)) as file:
        with store._env.read() as txn:
            names = {raxlog.storage.format.records.unseal(bytes(key), bytes(value))[0]: bytes(key)[9:]
                     for key, value in txn.cursor() if bytes(key).startswith(keys.NAMES)}
        meta = file.metas()[0]
        found = []
        for page, record in PageTree(file, meta.root, meta.last_page).records():
            key = record.key
            if len(key) != 25 or key[8] != keys.NODE:
                continue
            value = file.value(record)
            count = (15 + record.size) // PAGE + 1
            pages = {page}  # only the leaf has its key
            if record.inline is None:
                pages |= set(range(record.overflow, record.overflow + count))
            listpack = records.open_block(key, value)[1]
            entries = node.decode(listpack, *records.node_id(key), 0, 0, *raxlog.StreamID.MAX)
            found.append((pages, names[int.from_bytes(key[:8], "big")], [entry.id for entry in entries]))
        return meta, found


def missing_and_not_reported(report: SalvageReport, name: bytes, entries: dict[raxlog.StreamID, Any],
                         got: dict[raxlog.StreamID, Any]) -> list[raxlog.StreamID]:
    """The entries of a stream that were not salvaged, and lie in no range that was reported."""
    reported = [(raxlog.StreamID(loss.first), raxlog.StreamID(loss.last) if loss.last else raxlog.StreamID.MAX)
            for loss in report.lost
            if loss.first is not None and loss.group is None and loss.stream == repr(name.decode())]
    return [sid for sid in entries.keys() - got.keys() if not any(low <= sid <= high for low, high in reported)]


def require_nothing_but_the_truth(report: SalvageReport, truth: Truth) -> Truth:
    """What was salvaged is true, what is missing was told, and the new store is sound."""
    new = Path(report.destination)
    assert raxlog.check(new).ok, str(raxlog.check(new))
    got = truth_of(new)
    for name, entries in got.entries.items():
        assert entries.items() <= truth.entries.get(name, {}).items(), f"{name!r} holds what was not there"
    for name, entries in truth.entries.items():
        untold = missing_and_not_reported(report, name, entries, got.entries.get(name, {}))
        assert not untold or name not in got.entries, f"{name!r}: {len(untold)} entries are missing and not reported"
    for where, rows in got.pending.items():
        known = truth.pending.get(where, set())
        nameless = {row for row in rows if (row[1] or b"").startswith(b"recovered-")}  # their record is lost
        assert rows - nameless <= known, f"{where} holds pending entries that were not there"
        assert {row[::2] for row in nameless} <= {row[::2] for row in known}
    assert got.state.items() <= truth.state.items()
    if len(got) < len(truth) or got.pending != truth.pending:
        assert not report.ok
    return got


def untouched(found: list[tuple[set[int], bytes, list[raxlog.StreamID]]],
              bad: set[int]) -> list[tuple[bytes, raxlog.StreamID]]:
    return [(name, sid) for pages, name, ids in found if not pages & bad for sid in ids]


@pytest.mark.usefixtures("started_readers")
def test_a_sound_store_comes_over_whole(grown: tuple[Path, Truth], tmp_path: Path) -> None:
    parts: list[str] = []
    before = everything_in(grown[0])
    report = raxlog.salvage(grown[0], tmp_path / "new.rax", lambda part, done, total: parts.append(part))
    assert report.ok, str(report)
    assert everything_in(grown[0]) == before
    got = require_nothing_but_the_truth(report, grown[1])
    assert got == grown[1]
    assert set(parts) >= {"gather", "streams"}
    assert json.loads(json.dumps(report.to_dict()))["ok"] is True
    with raxlog.open(tmp_path / "new.rax",
                     encoding=None) as new, raxlog.open(grown[0], readonly=True, encoding=None) as old:
        for name in old.streams():
            for way in (lambda s: s.info().to_dict(), lambda s: s.split(5), lambda s: s.rank("700"),
                        lambda s: [list(group.to_dict().values())[:6] for group in s.groups()]):
                ours, theirs = way(new.stream(name)), way(old.stream(name))
                assert ours == theirs
        orders = new.stream("orders")
        assert orders.append({"still": "works"}) > orders.info().first_entry.id  # type: ignore[union-attr]
        assert orders.group("audit").read("one", count=5)
        # An append that was remembered is still known.
        assert new.stream("small").append({"n": 1}, producer="p0", idempotent_id="i0") in new_ids(new)
    assert raxlog.check(tmp_path / "new.rax").ok


def new_ids(store: raxlog.Store) -> set[raxlog.StreamID]:
    return {entry.id for entry in store.stream("small").range()}


@pytest.mark.parametrize("seed", range(5))
def test_noise_over_one_page_in_a_hundred_loses_what_lay_there_and_says_so(
    grown: tuple[Path, Truth], damaged: Path, tmp_path: Path, seed: int
) -> None:
    _, found = layout_of(grown[0])
    count = data_of(damaged).stat().st_size // PAGE
    bad = set(random.Random(seed).sample(range(count), max(2, round(count / 100))))
    noise(damaged, bad, seed)
    got = require_nothing_but_the_truth(raxlog.salvage(damaged, tmp_path / "new.rax"), grown[1])
    whole = untouched(found, bad)
    kept = sum(sid in got.entries.get(name, {}) for name, sid in whole)
    assert kept >= 0.95 * len(whole), f"{kept} of {len(whole)} entries in untouched pages"


@pytest.mark.parametrize("what", ["newest meta", "older meta", "both metas", "root", "free list", "root and free list",
                                  "both metas and noise"])
def test_what_leads_to_the_records_may_be_gone(
    grown: tuple[Path, Truth], damaged: Path, tmp_path: Path, what: str
) -> None:
    meta, found = layout_of(grown[0])
    some = random.Random(7).randrange(100, 150)
    bad = {"newest meta": {meta.slot}, "older meta": {1 - meta.slot}, "both metas": {0, 1}, "root": {meta.root},
           "free list": {meta.free_root, some}, "root and free list": {meta.root, meta.free_root},
           "both metas and noise": {0, 1, some}}[what]
    noise(damaged, bad, 3)
    got = require_nothing_but_the_truth(raxlog.salvage(damaged, tmp_path / "new.rax"), grown[1])
    whole = untouched(found, bad)
    kept = sum(sid in got.entries.get(name, {}) for name, sid in whole)
    assert kept >= 0.95 * len(whole), f"{kept} of {len(whole)} entries in untouched pages"
    assert b"gone" not in got.entries


@pytest.mark.parametrize("part", [0.2, 0.5, 0.6, 0.7, 0.8, 0.95])
def test_a_file_that_is_cut_off_gives_what_is_left_of_it(
    grown: tuple[Path, Truth], damaged: Path, tmp_path: Path, part: float
) -> None:
    cut_off_reserve(data_of(damaged))
    size = int(data_of(damaged).stat().st_size * part)
    os.truncate(data_of(damaged), size)
    report = raxlog.salvage(damaged, tmp_path / "new.rax")
    require_nothing_but_the_truth(report, grown[1])
    assert report.lost
    more = raxlog.salvage(damaged, tmp_path / "more.rax", doubtful=True)
    assert sum(s["entries"] for s in more.streams.values()) >= sum(s["entries"] for s in report.streams.values())
    assert raxlog.check(tmp_path / "more.rax").ok
    got = truth_of(tmp_path / "more.rax").entries
    for name in got.keys() & grown[1].entries.keys():  # entries that had been trimmed may be there, too
        untold = missing_and_not_reported(more, name, grown[1].entries[name], got[name])
        assert not untold, f"{name!r}: {len(untold)} entries are missing and not reported"


@pytest.mark.parametrize("seed", range(4))
def test_bits_flipped_anywhere_lose_no_more_than_their_records(
    grown: tuple[Path, Truth], damaged: Path, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    data = bytearray(data_of(damaged).read_bytes())
    for _ in range(20):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    data_of(damaged).write_bytes(data)
    got = require_nothing_but_the_truth(raxlog.salvage(damaged, tmp_path / "new.rax"), grown[1])
    assert len(got) > 0.9 * len(grown[1])


def test_current_and_lock_file_may_be_lost(grown: tuple[Path, Truth], damaged: Path, tmp_path: Path) -> None:
    (damaged / "000001" / "lock.mdb").unlink()
    assert require_nothing_but_the_truth(raxlog.salvage(damaged, tmp_path / "one.rax"), grown[1]) == grown[1]
    (damaged / "CURRENT").unlink()
    report = raxlog.salvage(damaged, tmp_path / "two.rax")
    assert require_nothing_but_the_truth(report, grown[1]) == grown[1]
    assert any("CURRENT" in note for note in report.notes)
    (damaged / "CURRENT").write_text("000777\n")
    (damaged / "000009").mkdir()
    (damaged / "000009" / "data.mdb").write_bytes(b"")
    assert raxlog.salvage(damaged, tmp_path / "three.rax").generation == "000001"


# -- bad input ----------------------------------------------------------------------------


def test_what_is_no_store_is_a_clear_error_and_nothing_is_made(tmp_path: Path) -> None:
    cases = bad_stores(tmp_path)
    cases.append((as_store(tmp_path / "hollow.rax", b""), raxlog.NotAStore))
    cases.append((as_store(tmp_path / "noise.rax", os.urandom(50_000)), raxlog.NotAStore))
    for path, error in cases:
        before = everything_in(tmp_path)
        with pytest.raises(error) as caught:
            raxlog.salvage(path, tmp_path / "new.rax")
        assert str(path) in str(caught.value)
        assert everything_in(tmp_path) == before
    with pytest.raises(raxlog.InvalidArgument):
        raxlog.salvage("", tmp_path / "new.rax")


def test_a_destination_that_exists_or_lies_within_is_refused(damaged: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_text("something")
    for destination in (tmp_path / "there", tmp_path / "file", damaged, damaged / "within"):
        before = everything_in(tmp_path)
        with pytest.raises(raxlog.StoreError):
            raxlog.salvage(damaged, destination)
        assert everything_in(tmp_path) == before


def test_a_store_in_use_is_refused_with_the_process_that_has_it(damaged: Path, tmp_path: Path) -> None:
    def hold(say: Any) -> None:
        with raxlog.open(damaged, encoding=None) as store:
            say(store.streams())
            while True:
                store.stream("orders").append({"n": 1})

    with Child(hold) as holder:
        holder.heard()
        with pytest.raises(raxlog.StoreError, match=f"open in process {holder.pid}"):
            raxlog.salvage(damaged, tmp_path / "new.rax")
    with raxlog.open(damaged, encoding=None), pytest.raises(raxlog.StoreError, match=f"open in process {os.getpid()}"):
        raxlog.salvage(damaged, tmp_path / "new.rax")
    assert not (tmp_path / "new.rax").exists()


def test_a_full_disk_leaves_nothing_behind(grown: tuple[Path, Truth], tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(disk)], check=False).returncode:
        pytest.skip("no small disk can be mounted here")
    try:
        with pytest.raises(raxlog.StoreFull):
            raxlog.salvage(grown[0], disk / "new.rax")
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_without_permission_the_error_says_so(grown: tuple[Path, Truth], tmp_path: Path) -> None:
    source = Path(shutil.copytree(grown[0], tmp_path / "source.rax"))
    (tmp_path / "closed").mkdir(mode=0o555)
    (tmp_path / "place").mkdir(mode=0o777)
    data_of(source).chmod(0)
    calls = [
        lambda: raxlog.salvage(source, tmp_path / "closed" / "new.rax"),
        lambda: rescue(lambda *said: None, str(source), str(tmp_path / "place")),
        lambda: perform_check(lambda message: None, str(source), "walk", ""),
    ]

    def refused(say: Any) -> None:
        if os.getuid() == 0:  # for root nothing is closed
            folders = [part for part in tmp_path.parents if part.name.startswith(("pytest-", "popen-"))]
            for part in [tmp_path, *folders]:
                part.chmod(0o755)
            os.setresuid(12345, 12345, 12345)
        for call in calls:
            try:
                say(("done", str(call())))
            except raxlog.RaxlogError as error:
                say((type(error).__name__, str(error)))

    with Child(refused) as child:
        told = child.finish()
    assert [kind for kind, _ in told] == ["ReadOnlyStore", "StoreError", "StoreError"], told
    assert "nothing may be written there" in told[0][1]
    assert all(os.strerror(errno.EACCES) in what and str(data_of(source)) in what for _, what in told[1:])


# -- the command line ---------------------------------------------------------------------


def test_the_command_tells_what_is_lost(raxlog_cli: Run, damaged: Path, tmp_path: Path) -> None:
    status, out, err = raxlog_cli("salvage", str(damaged), str(tmp_path / "one.rax"))
    assert (status, err) == (0, "")
    assert "nothing is lost" in out
    _, found = layout_of(damaged)
    noise(damaged, found[40][0], 1)
    status, out, err = raxlog_cli("salvage", str(damaged), str(tmp_path / "two.rax"))
    assert (status, err) == (1, "")
    assert "entries, stream " in out
    status, out, err = raxlog_cli("salvage", str(damaged), str(tmp_path / "three.rax"), "--json")
    told = json.loads(out)
    assert status == 1
    assert told["lost"][0]["first"] is not None
    assert raxlog_cli("check", str(tmp_path / "three.rax"))[0] == 0
    assert raxlog_cli("salvage", str(damaged), str(tmp_path / "three.rax"))[0] == 3
    assert raxlog_cli("salvage", str(damaged))[0] == 2


def test_a_compacted_store_is_salvaged_from_the_generation_in_force(grown: tuple[Path, Truth], tmp_path: Path) -> None:
    source = Path(shutil.copytree(grown[0], tmp_path / "source.rax"))
    with raxlog.open(source, encoding=None) as store:
        store.stream("orders").trim(maxlen=len(store.stream("orders")) // 2)
        store.compact()
        store.stream("orders").append({"after": "the compaction"})
    truth = truth_of(source)
    report = raxlog.salvage(source, tmp_path / "new.rax")
    assert report.generation == "000002"
    assert require_nothing_but_the_truth(report, truth) == truth
    with lmdb.open(str(source / "000002"), readonly=True, lock=False) as env:
        assert env.info()["last_txnid"] > 0


def test_the_list_of_free_pages_is_read_where_it_goes_past_transaction_256(tmp_path: Path) -> None:
    """Its keys are numbers in the machine's byte order, so as bytes they do not ascend there."""
    path = tmp_path / "store.rax"
    with raxlog.open(path, durability="relaxed", encoding=None) as store:
        stream = store.stream("s")
        stream.extend([{"text": "some words " * 5}] * 3000)
        for _ in range(280):
            stream.append({"text": "more"})
            checkpoint(store)
            tree = store._env.map.tree
            if tree is not None and tree.state().transaction == 240:
                reader = tree.begin()  # pages freed from here on stay in the list
        reader.abort()
    with PageFile(data_of(path)) as file:
        meta = file.metas()[0]
        free = PageTree(file, meta.free_root, meta.last_page)
        assert {int.from_bytes(node.key, "little") > 256 for _, node in free.records()} == {False, True}
        page = PageTree(file, meta.root, meta.last_page).page_at(1)
    with data_of(path).open("r+b") as data:
        data.seek(page * PAGE)
        data.write(b"\xff" * PAGE)
    report = raxlog.salvage(path, tmp_path / "new.rax")
    assert report.lost
    assert not any("free pages" in note for note in report.notes), report.notes
