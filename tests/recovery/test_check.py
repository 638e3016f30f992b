"""check: silent on what is sound, exact about what is not, and beyond the reach of any damage."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import flipped_stores
import lmdb
import pytest
import raxlog
from children import Child
from cli_runs import Run
from not_stores import as_store, bad_stores, everything_in
from raxlog.recovery.check.page_tree import PageTree
from raxlog.storage.format import keys as layout
from raxlog.storage.tree.lmdb_file import PageFile

pytest_plugins = ["cli_fixtures"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("built") / "store.rax"
    flipped_stores.build(path)
    return path


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    """A copy of a store with streams, groups and state, to be damaged."""
    shutil.copytree(built, tmp_path / "store.rax")
    (tmp_path / "store.rax" / "000001" / "lock.mdb").unlink()
    return tmp_path / "store.rax"


def overwrite(path: Path, page: int, data: bytes, offset: int = 0) -> None:
    with (path / "000001" / "data.mdb").open("r+b") as file:
        file.seek(4096 * page + offset)
        file.write(data)


def changed(path: Path, key: bytes, value: bytes | None) -> None:
    with lmdb.open(str(path / "000001"), map_size=1 << 28) as env, env.begin(write=True) as txn:
        assert txn.delete(key) if value is None else txn.put(key, value)


@pytest.mark.usefixtures("started_readers")
def test_a_sound_store_has_no_problems_and_nothing_is_created_or_changed(copy: Path) -> None:
    before = everything_in(copy)
    parts: list[str] = []
    report = raxlog.check(copy, progress=lambda part, done, total: parts.append(part))
    assert report.ok, str(report)
    assert everything_in(copy) == before
    assert list(dict.fromkeys(parts)) == ["pages", "records", "streams", "subjects", "look-ups"]
    counts = report.counts
    assert (counts["streams"], counts["groups"], counts["looked_up"]) == (3, 3, counts["records"])
    assert json.loads(json.dumps(report.to_dict()))["ok"] is True


def test_what_the_progress_function_raises_is_the_callers(copy: Path) -> None:
    def full(*_: Any) -> None:
        raise OSError("no room for a log")

    with pytest.raises(OSError, match="no room for a log"):
        raxlog.check(copy, progress=full)


def test_a_problem_names_stream_node_offset_page_and_meaning(copy: Path) -> None:
    with lmdb.open(str(copy / "000001"), readonly=True, lock=False) as env, env.begin() as txn:
        keys = [bytes(key) for key, _ in txn.cursor() if key.startswith(layout.family(1, layout.NODE))]
        value = bytes(txn.get(keys[3]))
    changed(copy, keys[3], value[:50] + bytes([value[50] ^ 1]) + value[51:])
    report = raxlog.check(copy)
    assert not report.ok
    node = str(raxlog.StreamID.from_bytes(keys[3][9:]))
    (problem,) = [problem for problem in report.problems if problem.kind == "node"]
    assert (problem.stream, problem.node, problem.offset) == ("'orders'", node, 0)
    assert problem.page is not None
    assert "CorruptionError" in problem.meaning
    assert problem.to_dict()["meaning"] == problem.meaning


def test_a_vanished_node_is_told_with_the_place_where_its_entries_were(copy: Path) -> None:
    with lmdb.open(str(copy / "000001"), readonly=True, lock=False) as env, env.begin() as txn:
        keys = [bytes(key) for key, _ in txn.cursor() if key.startswith(layout.family(1, layout.NODE))]
    changed(copy, keys[-9], None)
    report = raxlog.check(copy)
    told = [problem.what for problem in report.problems if problem.kind == "ordinals"]
    assert len(told) == 1
    assert re.match(r"6 entries with ordinals from \d+ to \d+ should be there and are not; they lie behind", told[0])
    assert any("the header counts" in problem.what for problem in report.problems if problem.kind == "header")


@pytest.mark.usefixtures("started_readers")
def test_damage_that_kills_lmdb_is_told_and_the_rest_is_looked_up(copy: Path) -> None:
    with PageFile(copy / "000001" / "data.mdb") as file:
        meta = file.metas()[0]
        tree = PageTree(file, meta.root, meta.last_page)
        page, behind = tree.page_at(5), tree.low_at(6)
        left = sum(1 for key in tree.records()) - len(tree.leaf(5))
    assert behind is not None
    overwrite(copy, page, b"\x04", 10)  # neither branch nor leaf: LMDB's assertion aborts the process
    report = raxlog.check(copy)
    dead = [problem for problem in report.problems if problem.kind == "process"]
    assert dead, str(report)
    assert all("was killed by SIGABRT during look-ups" in problem.what for problem in dead)
    assert [problem.page for problem in report.problems if problem.kind == "page"] == [page]
    assert report.counts["records"] == left


@pytest.mark.parametrize("size", [1, 4096, 5000, 8192, 12288, 60_000])
def test_a_file_that_is_cut_off_is_told_and_never_mapped(copy: Path, size: int) -> None:
    os.truncate(copy / "000001" / "data.mdb", size)
    report = raxlog.check(copy)
    assert not report.ok
    assert any("cut off" in problem.what or "meta page" in problem.what for problem in report.problems)
    assert not any(problem.kind == "process" for problem in report.problems)


def test_both_meta_pages_gone_is_a_problem_not_an_error(copy: Path) -> None:
    overwrite(copy, 0, os.urandom(8192))
    report = raxlog.check(copy)
    assert [problem.kind for problem in report.problems] == ["lmdb"]


def test_check_beside_a_writer_sees_one_whole_state(copy: Path) -> None:
    def write(say: Any) -> None:
        with raxlog.open(copy, durability="relaxed") as store:
            say("open")
            number = 0
            while True:
                with store.transaction() as tx:
                    for name in ("orders", "history", "mail"):
                        tx.stream(name).append({"n": number, "text": "x" * (number % 700)})
                store.stream("orders").group("audit").read("one", count=5)
                number += 1
                time.sleep(0.001)  # so that the store does not grow by more than what a check reads in that time

    with Child(write) as writer:
        assert writer.heard() == "open"
        for _ in range(4):
            report = raxlog.check(copy)
            assert report.ok, str(report)


def test_a_wide_store_keeps_the_first_thousand_problems_and_counts_all(tmp_path: Path) -> None:
    path = tmp_path / "wide.rax"
    with raxlog.open(path, durability="relaxed") as store, store.transaction() as tx:
        for number in range(1500):
            tx.state[f"key{number}"] = b"v"
    with lmdb.open(str(path / "000001"), map_size=1 << 28) as env, env.begin(write=True) as txn:
        for number in range(1500):
            key = layout.family(0, layout.STATE) + b"key%d" % number
            txn.put(key, bytes(txn.get(key))[:-1] + b"w")
    report = raxlog.check(path)
    # one for each record, and one for their number, since records that are damaged do not count
    assert (len(report.problems), report.counts["problems"]) == (1000, 1501)


# -- bad input ----------------------------------------------------------------------------


def test_what_is_no_store_is_a_clear_error_and_is_left_alone(tmp_path: Path) -> None:
    for path, error in bad_stores(tmp_path):
        before = everything_in(tmp_path)
        with pytest.raises(error) as caught:
            raxlog.check(path)
        assert str(tmp_path) in str(caught.value)
        assert everything_in(tmp_path) == before
    with pytest.raises(raxlog.CorruptionError, match="is empty"):
        raxlog.check(as_store(tmp_path / "hollow.rax", b""))
    assert not raxlog.check(as_store(tmp_path / "noise.rax", os.urandom(50_000))).ok
    for wrong in ("", 7, None):
        with pytest.raises(raxlog.InvalidArgument):
            raxlog.check(wrong)  # type: ignore[arg-type]


# -- the command line ---------------------------------------------------------------------


def test_the_command_tells_by_its_status_and_in_json(raxlog_cli: Run, copy: Path, tmp_path: Path) -> None:
    status, out, err = raxlog_cli("check", str(copy))
    assert (status, err) == (0, "")
    assert "no problems" in out
    changed(copy, layout.NAMES + b"mail", None)
    status, out, err = raxlog_cli("check", str(copy))
    assert (status, err) == (1, "")
    assert "no name leads to them" in out
    assert "cannot be opened by its name" in out
    status, out, err = raxlog_cli("check", str(copy), "--json")
    told = json.loads(out)
    assert status == 1
    assert told["ok"] is False
    assert told["problems"][0]["stream"] == "'mail'"
    assert raxlog_cli("check", str(tmp_path / "nothing"))[0] == 3
    assert raxlog_cli("check")[0] == 2


@pytest.mark.usefixtures("started_readers")
def test_the_process_that_is_killed_from_outside_is_told(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = subprocess.Popen.__init__

    def killed(self: Any, *args: Any, **options: Any) -> None:
        started(self, *args, **options)
        self.kill()

    monkeypatch.setattr(subprocess.Popen, "__init__", killed)
    report = raxlog.check(copy)
    assert any("SIGKILL" in problem.what for problem in report.problems)
