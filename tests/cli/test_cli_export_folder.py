"""export --append-to: a folder of Parquet that grows by whole files, whatever kills the exports."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import forkserver
import polars
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
import raxlog
from cli_runs import CLI, Run, one_line

pytest_plugins = ["cli_fixtures"]

FIRST = 1526919030474
COLUMNS = ("--columns", "id_ms bigint, id_seq bigint, qty bigint")


def append(path: Path | str, numbers: range) -> None:
    with raxlog.open(path, durability="relaxed") as store:
        store.stream("orders", node_max_entries=50).extend(
            [{"qty": number, "item": "book"} for number in numbers],
            [f"{FIRST + number // 10}-{number % 10}" for number in numbers])


@pytest.fixture
def sales(tmp_path: Path) -> str:
    append(tmp_path / "sales.rax", range(1000))
    return str(tmp_path / "sales.rax")


def read(folder: str | Path, known: dict[tuple[str, int, int], list[int]] | None = None) -> list[int]:
    """The numbers in the folder's files, in the order of their names; the names are checked.

    ``known``: what earlier calls have read, by name, inode and time of the last change of any
    kind: it is not read again.
    """
    numbers: list[int] = []
    known = {} if known is None else known
    for name in sorted(os.listdir(folder)):
        about = os.stat(Path(folder) / name)
        key = (name, about.st_ino, about.st_ctime_ns)
        if key not in known:
            table = pq.read_table(Path(folder) / name, use_threads=False).to_pydict()
            ids = [f"{ms:020}-{seq:020}" for ms, seq in zip(table["id_ms"], table["id_seq"], strict=True)]
            assert name == f"{ids[0]}_{ids[-1]}.parquet"
            known[key] = table["qty"]
        numbers += known[key]
    return numbers


def test_each_run_adds_what_is_new_and_the_folder_is_read_as_one_table(raxlog_cli: Run, sales: str) -> None:
    export = ("export", sales, "orders", "--append-to", "folder", *COLUMNS, "--json")
    status, out, err = raxlog_cli(*export, "--file-rows", "300")
    printed = json.loads(out)
    assert (status, err, printed["exported"], [printed["files"]]) == (0, "", 1000, [sorted(os.listdir("folder"))])
    assert printed["bytes"] == sum(path.stat().st_size for path in Path("folder").iterdir())
    assert [pq.ParquetFile(f"folder/{name}").metadata.num_rows for name in printed["files"]] == [300, 300, 300, 100]
    status, out, _ = raxlog_cli(*export)
    assert (status, json.loads(out)["exported"], json.loads(out)["files"]) == (1, 0, [])
    append(sales, range(1000, 1005))
    status, out, _ = raxlog_cli(*export)
    (name,) = json.loads(out)["files"]
    first, last = (f"{FIRST + 100:020}-{seq:020}" for seq in (0, 4))
    assert (status, name) == (0, f"{first}_{last}.parquet")
    assert read("folder") == list(range(1005))
    assert sorted(os.listdir()) == ["folder", "sales.rax"]
    assert duckdb.sql("select count(*), sum(qty) from 'folder/*.parquet'").fetchall() == [(1005, sum(range(1005)))]
    assert polars.scan_parquet("folder").collect()["qty"].to_list() == list(range(1005))
    assert pyarrow.dataset.dataset("folder").to_table()["qty"].to_pylist() == list(range(1005))
    about = pq.ParquetFile(f"folder/{name}").metadata.metadata
    assert (about[b"raxlog.first_id"], about[b"raxlog.last_id"]) == (b"%d-0" % (FIRST + 100), b"%d-4" % (FIRST + 100))


def test_the_map_of_all_fields_an_id_and_a_time_can_be_added_to(raxlog_cli: Run, sales: str) -> None:
    export = ("export", sales, "orders", "--append-to", "folder", "--id", "id", "--timestamp", "when")
    assert raxlog_cli(*export)[0] == 0
    append(sales, range(1000, 1001))
    status, out, _ = raxlog_cli(*export)
    assert (status, out.startswith("1 entry to ") and "(1 new file, " in out) == (0, True)
    row = pa.dataset.dataset("folder").to_table().to_pylist()[-1]
    assert row == {"id_ms": FIRST + 100, "id_seq": 0, "id": f"{FIRST + 100}-0",
                   "fields": [("qty", b"1000"), ("item", b"book")],
                   "when": datetime.fromtimestamp((FIRST + 100) / 1000, UTC)}


def test_names_have_the_order_of_ids_of_any_size(raxlog_cli: Run, tmp_path: Path) -> None:
    most = (1 << 64) - 1
    ids = ["1-9", "1-10", "9-0", "10-0", f"{most}-1", f"{most}-{most}"]
    with raxlog.open("s.rax") as store:
        store.stream("orders").extend([{"n": n} for n in range(6)], ids)
    export = ("export", "s.rax", "orders", "--append-to", "folder", "--columns", "n int", "--id", "id")
    assert raxlog_cli(*export, "--file-rows", "1")[0] == 0
    assert [pq.read_table(f"folder/{name}")["id"].to_pylist() for name in sorted(os.listdir("folder"))] == [
        [sid] for sid in ids]
    status, _, err = raxlog_cli(*export)
    assert (status, "nothing can come behind it" in one_line(err)) == (1, True)


def test_entries_that_are_deleted_are_no_rows(raxlog_cli: Run, sales: str) -> None:
    with raxlog.open(sales) as store:
        store.stream("orders").delete(f"{FIRST}-0", f"{FIRST + 99}-9")
    assert raxlog_cli("export", sales, "orders", "--append-to", "folder", *COLUMNS)[0] == 0
    assert read("folder") == list(range(1, 999))
    status, out, _ = raxlog_cli("export", sales, "orders", "--append-to", "folder", *COLUMNS)
    assert (status, out.startswith("0 entries to ")) == (1, True)


@pytest.mark.parametrize(("arguments", "what"), [
    (["out.parquet"], "without FILE"), (["--force"], "--force"), (["--format", "csv"], "folder of Parquet"),
    (["--file-rows", "0"], "--file-rows"), (["--columns", "item"], "a name and a type"),
    (["--columns", "a varchar"], "unknown type 'varchar'"),
])
def test_what_does_not_go_together_makes_no_folder(
    raxlog_cli: Run, sales: str, arguments: list[str], what: str
) -> None:
    status, out, err = raxlog_cli("export", sales, "orders", "--append-to", "folder", *arguments)
    assert (status, out, what in one_line(err)) == (2, "", True)
    assert sorted(os.listdir()) == ["sales.rax"]


def test_another_stream_store_history_or_schema_is_refused(raxlog_cli: Run, sales: str) -> None:
    export = ("export", sales, "orders", "--append-to", "folder")
    assert raxlog_cli(*export, *COLUMNS)[0] == 0
    before = sorted(os.listdir("folder"))
    append("other.rax", range(1001))
    with raxlog.open(sales) as store:
        store.stream("pens").append({"qty": 1})
    refused = [
        (("export", sales, "pens", "--append-to", "folder", *COLUMNS), "entries of stream orders, and this is pens"),
        (("export", "other.rax", "orders", "--append-to", "folder", *COLUMNS), "the entries of store "),
        ((*export, "--columns", "qty int"), "id_ms int64, id_seq int64, qty int64; this would add qty int32"),
        ((*export,), "Give --columns, --id and --timestamp as before"),
        (("export", sales, "orders", "--append-to", f"{sales}/folder"), "in the store's folder"),
        (("export", sales, "orders", "--append-to", "no/such/folder"), "cannot be written: No such file"),
        (("export", sales, "orders", "--append-to", "file"), "cannot be written: "),
    ]
    Path("file").write_text("")
    for arguments, what in refused:
        status, out, err = raxlog_cli(*arguments)
        assert (status, out, what in one_line(err)) == (2, "", True), err
    with raxlog.open(sales) as store:
        store.delete_stream("orders")
        store.stream("orders").append({"qty": 1}, "5-1")
    status, _, err = raxlog_cli(*export, *COLUMNS)
    assert (status, "the last ID of the stream is 5-1. The stream has another history" in one_line(err)) == (2, True)
    Path("folder/mine.parquet").write_text("")
    status, _, err = raxlog_cli(*export, *COLUMNS)
    assert (status, "mine.parquet has not been written by export --append-to" in one_line(err)) == (2, True)
    os.unlink("folder/mine.parquet")
    assert sorted(os.listdir("folder")) == before
    Path("folder", before[-1]).write_text("PAR1")
    status, _, err = raxlog_cli(*export, *COLUMNS)
    assert (status, f"{before[-1]} cannot be read" in one_line(err)) == (2, True)


def test_two_exports_into_one_folder_do_not_mix(raxlog_cli: Run, sales: str) -> None:
    os.mkdir("folder")
    held = os.open("folder", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    status, _, err = raxlog_cli("export", sales, "orders", "--append-to", "folder", *COLUMNS)
    assert (status, "another process is adding to " in one_line(err)) == (2, True)
    os.close(held)
    assert raxlog_cli("export", sales, "orders", "--append-to", "folder", *COLUMNS)[0] == 0


def test_a_value_that_is_not_of_its_type_ends_a_run_by_failfast(raxlog_cli: Run, sales: str) -> None:
    with raxlog.open(sales) as store:
        store.stream("orders").append({"qty": "many"})
    export = ("export", sales, "orders", "--append-to", "folder", *COLUMNS, "--mode", "failfast")
    for _ in range(2):
        status, _, err = raxlog_cli(*export, "--file-rows", "400")
        assert (status, "field b'qty' is b'many'" in one_line(err)) == (1, True)
        assert sorted(os.listdir()) == ["sales.rax"]
    append_to = ("export", sales, "orders", "--append-to", "folder", *COLUMNS)
    status, out, _ = raxlog_cli(*append_to)
    assert (status, "1 with a value that is not of its column's type" in out) == (0, True)
    assert read("folder") == [*range(1000), None]


def killed(command: list[str], folder: Path, more: int, delay: float) -> bool:
    """Whether an export was killed: so many seconds after so many more files had come into the folder."""
    enough = more + (len(os.listdir(folder)) if folder.exists() else 0)
    with forkserver.Popen(command, stdout=subprocess.DEVNULL) as child:
        while more and child.poll() is None and (not folder.exists() or len(os.listdir(folder)) < enough):
            time.sleep(0.003)
        time.sleep(delay)
        child.kill()
        return child.wait(20) == -signal.SIGKILL


@pytest.mark.parametrize("rounds", [5, pytest.param(60, marks=pytest.mark.storm)])
def test_exports_that_are_killed_leave_whole_files_and_the_next_one_goes_on(tmp_path: Path, rounds: int) -> None:
    generator = random.Random(seed := random.randrange(1 << 32))
    print(f"seed {seed}")
    path, folder, total = tmp_path / "s.rax", tmp_path / "folder", 10_000
    append(path, range(total))
    export = [*CLI, "export", str(path), "orders", *COLUMNS, "--file-rows", "150", "--append-to", str(folder)]
    forkserver.run([*CLI, "--version"], check=True, stdout=subprocess.DEVNULL)  # it is started by the first program
    began = time.monotonic()
    forkserver.run([*export[:-1], str(tmp_path / "whole")], check=True, timeout=60, stdout=subprocess.DEVNULL)
    took = time.monotonic() - began
    kills, lengths = 0, []
    known: dict[tuple[str, int, int], list[int]] = {}
    for number in range(rounds):
        left = (total - (lengths or [0])[-1]) // 150
        if number % 3 == 0 or left < 3:
            kills += killed(export, folder, 0, generator.uniform(0, took))  # at any moment, its start included
        else:
            kills += killed(export, folder, generator.randrange(1, left), generator.uniform(0, 2 * took / left))
        numbers = read(folder, known) if folder.exists() else []
        assert numbers == list(range(len(numbers)))
        lengths.append(len(numbers))
        assert {entry.name for entry in tmp_path.iterdir()} <= {"s.rax", "folder", "folder.part", "whole"}
        if len(numbers) == total and number < rounds - 1:
            append(path, range(total, total + 10_000))
            total += 10_000
    assert kills > rounds // 5
    assert len(set(lengths)) > 1
    done = forkserver.run(export, check=False, timeout=60, capture_output=True)
    assert (done.returncode, done.stderr) == (int(lengths[-1] == total), b"")
    assert read(folder) == list(range(total))
    assert not (tmp_path / "folder.part").exists()
    assert polars.scan_parquet(folder).collect()["qty"].to_list() == list(range(total))
