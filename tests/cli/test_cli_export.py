"""export on the command line: files that others read, and what a failure leaves."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import stat
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

import duckdb
import forkserver
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import raxlog
from cli_runs import CLI, Run, entries, one_line, process
from raw_records import changed_copy, flipped, records_of
from raxlog.storage.format import keys, records
from raxlog.tools.cli.readers import parsed_columns
from raxlog.tools.cli.status import CommandError
from raxlog.tools.spark.location import opened

pytest_plugins = ["cli_fixtures"]


@pytest.fixture
def sales(tmp_path: Path) -> str:
    path = tmp_path / "sales.rax"
    with raxlog.open(path, durability="relaxed") as store:
        store.stream("orders", node_max_entries=50).extend(
            [{"item": "book", "qty": number, "price": f"{number / 4:.2f}"} for number in range(1000)],
            [f"{1526919030474 + number}-0" for number in range(1000)],
        )
    return str(path)


def test_parquet_holds_every_entry_with_all_its_fields(raxlog_cli: Run, sales: str) -> None:
    status, out, err = raxlog_cli("export", sales, "orders", "out.parquet", "--json")
    told = json.loads(out)
    assert (status, err, told["exported"], told["format"], told["malformed"]) == (0, "", 1000, "parquet", 0)
    assert told["bytes"] == Path("out.parquet").stat().st_size
    rows = pq.read_table("out.parquet").to_pylist()
    assert [
        (f"{row['id_ms']}-{row['id_seq']}", [(name.encode(), value) for name, value in row["fields"]]) for row in rows
    ] == entries(sales)


def test_columns_are_read_by_duckdb_and_polars_from_every_format(raxlog_cli: Run, sales: str) -> None:
    columns = "item string, qty bigint, price decimal(10,2)"
    for name in ("a.parquet", "a.arrow", "a.csv"):
        wanted = ("--columns", columns, "--id", "id", "--timestamp", "at")
        status, out, _ = raxlog_cli("export", sales, "orders", name, *wanted)
        assert (status, out.startswith("1,000 entries to ")) == (0, True)
    expected = (1000, 499500, "1526919030474-0")
    query = "select count(*), sum(qty), min(id) from '{}'"
    assert duckdb.sql(query.format("a.parquet")).fetchall() == [expected]
    assert duckdb.sql(query.format("a.csv")).fetchall() == [expected]
    for frame in (polars.read_parquet("a.parquet"), polars.read_csv("a.csv"), polars.read_ipc("a.arrow")):
        assert (frame.height, frame["qty"].sum(), frame["id"].min()) == expected
    with pa.ipc.open_file("a.arrow") as file:
        assert str(file.read_all().column("price")[1].as_py()) == "0.25"


def about(path: str) -> dict[str, str]:
    """What a file says of raxlog, as pyarrow and DuckDB read it."""
    held = pq.ParquetFile(path).metadata.metadata
    found = {key.decode(): value.decode() for key, value in held.items() if key.startswith(b"raxlog.")}
    query = f"select decode(key), decode(value) from parquet_kv_metadata('{path}') where decode(key) like 'raxlog.%'"
    assert dict(duckdb.sql(query).fetchall()) == found
    return found


def order(path: str) -> list[str]:
    """The columns that each row group is sorted by, nulls last."""
    file = pq.ParquetFile(path)
    groups = {file.metadata.row_group(at).sorting_columns for at in range(file.metadata.num_row_groups)}
    (columns,) = groups
    assert not any(column.descending or column.nulls_first for column in columns)
    return [file.schema.column(column.column_index).path for column in columns]


def test_parquet_names_its_stream_its_store_its_range_and_its_order(raxlog_cli: Run, sales: str) -> None:
    first, last = 1526919030474, 1526919030474 + 999
    raxlog_cli("export", sales, "orders", "all.parquet")
    with opened(sales) as source:
        uuid = source.env.record.uuid.hex()
    assert about("all.parquet") == {"raxlog.stream": "orders", "raxlog.store": uuid,
                                    "raxlog.first_id": f"{first}-0", "raxlog.last_id": f"{last}-0"}
    assert order("all.parquet") == ["id_ms", "id_seq"]

    raxlog_cli("export", sales, "orders", "b.parquet", f"({first}", f"{first + 9}-7", "--columns", "qty int",
               "--timestamp", "at")
    assert about("b.parquet")["raxlog.first_id"] == f"{first + 1}-0"
    assert about("b.parquet")["raxlog.last_id"] == f"{first + 9}-0"
    assert order("b.parquet") == ["at"]
    columns = "fields map<string,string>, qty int, id_seq bigint, id_ms bigint"
    raxlog_cli("export", sales, "orders", "c.parquet", "--columns", columns)
    assert order("c.parquet") == ["id_ms", "id_seq"]
    raxlog_cli("export", sales, "orders", "d.parquet", "5", "9", "--columns", "id_seq bigint, qty int")
    assert about("d.parquet") == {"raxlog.stream": "orders", "raxlog.store": uuid}
    raxlog_cli("export", sales, "orders", "e.parquet", "--columns", "id_seq bigint, qty int")
    assert order("e.parquet") == []


def test_duckdb_reads_times_without_a_zone_as_the_page_says(raxlog_cli: Run, sales: str) -> None:
    raxlog_cli("export", sales, "orders", "a.parquet", "--columns", "qty int", "--timestamp", "time")
    held = duckdb.connect()
    held.sql("set TimeZone = 'Asia/Tokyo'")
    query = "select {} from 'a.parquet' where qty = 0"
    first = datetime(2018, 5, 21, 16, 10, 30, 474000)
    assert held.sql(query.format("time at time zone 'UTC'")).fetchall() == [(first,)]
    assert held.sql(query.format("time::timestamp")).fetchall() == [(first + timedelta(hours=9),)]
    assert held.sql(query.format("time")).to_arrow_table().num_rows == 1


def test_parquet_of_a_stream_with_any_name_and_any_ids_can_be_read(raxlog_cli: Run, tmp_path: Path) -> None:
    most = (1 << 64) - 1
    names = {b"\xff\\": "\\xff\\\\", "наказ".encode(): "наказ"}
    with raxlog.open(tmp_path / "s.rax") as store:
        for name in names:
            store.stream(name).extend([{"n": n} for n in range(3)], [f"{1 << 63}-9", f"{most}-3", f"{most}-{most}"])
    for number, (name, shown) in enumerate(names.items()):
        path = f"{number}.parquet"
        status, _, err = raxlog_cli("export", "s.rax", os.fsdecode(name), path)
        assert (status, os.path.exists(path)) == (1, False)
        assert f"stream {shown}: entry {1 << 63}-9: its ID is beyond" in one_line(err)
        columns = err.split('--columns "')[1].split('"')[0]
        assert raxlog_cli("export", "s.rax", os.fsdecode(name), "id.arrow", "--id", "id", "--columns", columns)[0] == 0
        with pa.ipc.open_file("id.arrow") as file:
            assert file.read_all()["id"].to_pylist() == [f"{1 << 63}-9", f"{most}-3", f"{most}-{most}"]
        os.unlink("id.arrow")
        assert raxlog_cli("export", "s.rax", os.fsdecode(name), path, "--mode", "permissive")[0] == 0
        found = about(path)
        assert found["raxlog.stream"] == shown
        assert (found["raxlog.first_id"], found["raxlog.last_id"]) == (f"{1 << 63}-9", f"{most}-{most}")
        assert order(path) == ["id_ms"]  # where it is null for all, id_seq is in no order
        assert polars.read_parquet(path)["id_seq"].to_list() == [9, 3, None]


def test_an_export_of_all_fields_loses_no_entry_whose_names_are_not_text(raxlog_cli: Run, tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax") as store:
        store.stream("orders").append({"item": b"\xfe"}, "5-1")  # a value may be any bytes
        store.stream("orders").append({b"\xff": "1", "item": "ink"}, "5-2")
    export = ("export", "s.rax", "orders", "out.parquet")
    status, out, err = raxlog_cli(*export)
    assert (status, out, "entry 5-2: its fields are not a map of text" in one_line(err)) == (1, "", True)
    assert sorted(os.listdir()) == ["s.rax"]
    columns = err.split('--columns "')[1].split('"')[0]  # as the message says
    assert raxlog_cli(*export, "--columns", columns)[0] == 0
    rows = pq.read_table("out.parquet").to_pylist()
    assert [(row["id_ms"], row["id_seq"], row["fields"]) for row in rows] == [
        (5, 1, [(b"item", b"\xfe")]), (5, 2, [(b"\xff", b"1"), (b"item", b"ink")])]
    status, out, _ = raxlog_cli(*export, "--mode", "permissive", "--force")
    assert (status, "1 with a value that is not of its column's type" in out) == (0, True)
    assert pq.read_table("out.parquet")["fields"].null_count == 1


def test_a_range_of_ids_is_cut_out(raxlog_cli: Run, sales: str) -> None:
    raxlog_cli("export", sales, "orders", "a.parquet", "(1526919030480", "1526919030490", "--columns", "qty int")
    assert pq.read_table("a.parquet").column("qty").to_pylist() == list(range(7, 17))
    status, out, _ = raxlog_cli("export", sales, "orders", "b.parquet", "5", "9")
    assert (status, out.startswith("0 entries")) == (1, True)
    assert pq.read_table("b.parquet").num_rows == 0


@pytest.mark.parametrize(("arguments", "what"), [
    (["out.txt"], "give --format"), (["out.csv"], "CSV holds no maps"),
    (["out.parquet", "--columns", "item"], "a name and a type"),
    (["out.parquet", "--columns", "a int, a int"], "is listed twice"), (["out.parquet", "x"], "not an end of a range"),
    (["out.parquet", "--columns", "a varchar"], "unknown type 'varchar'"), (["out.parquet", "--mode", "no"], "--mode"),
    (["no/such/folder/out.parquet"], "cannot be written"), (["there.parquet"], "--force"),
])  # fmt: skip
def test_what_cannot_be_exported_is_said_in_a_line_and_leaves_no_file(
    raxlog_cli: Run, sales: str, arguments: list[str], what: str
) -> None:
    Path("there.parquet").write_text("mine")
    before = sorted(os.listdir())
    status, out, err = raxlog_cli("export", sales, "orders", *arguments)
    assert (status, out) == (2, "")
    assert what in one_line(err)
    assert sorted(os.listdir()) == before
    assert Path("there.parquet").read_text() == "mine"


def test_a_stream_that_is_not_there_is_an_answer_of_no(raxlog_cli: Run, sales: str) -> None:
    status, _, err = raxlog_cli("export", sales, "none", "out.parquet")
    assert (status, "no stream 'none'" in one_line(err)) == (1, True)
    assert raxlog_cli("export", "nowhere.rax", "orders", "out.parquet")[0] == 3
    assert not Path("out.parquet").exists()


def test_a_file_that_is_there_is_replaced_when_the_new_one_is_whole(raxlog_cli: Run, sales: str) -> None:
    Path("a.parquet").write_text("mine")
    with raxlog.open(sales) as store:
        store.stream("orders").append({"qty": "many"})
    arguments = ("export", sales, "orders", "a.parquet", "--columns", "qty bigint", "--force")
    status, _, err = raxlog_cli(*arguments, "--mode", "failfast")
    assert (status, "field b'qty' is b'many'" in one_line(err)) == (1, True)
    assert Path("a.parquet").read_text() == "mine"
    assert os.listdir() == sorted(os.listdir(), key=lambda name: ".part" in name)
    status, out, _ = raxlog_cli(*arguments)
    assert (status, "1 with a value that is not of its column's type" in out) == (0, True)
    assert pq.read_table("a.parquet").column("qty").null_count == 1


def test_a_damaged_node_ends_the_export_unless_it_may_be_left_out(raxlog_cli: Run, sales: str) -> None:
    key, value = records_of(Path(sales), 1, keys.NODE)[3]
    changed_copy(Path(sales), Path("hurt.rax"), {key: flipped(value, 200, 4)})
    node = "-".join(map(str, records.node_id(key)))
    status, _, err = raxlog_cli("export", "hurt.rax", "orders", "a.parquet")
    assert (status, f"node {node}" in one_line(err)) == (3, True)
    assert not Path("a.parquet").exists()
    status, out, err = raxlog_cli("export", "hurt.rax", "orders", "a.parquet", "--skip-damaged", "--json")
    told = json.loads(out)
    assert (status, err, told["exported"], [problem["node"] for problem in told["damaged"]]) == (0, "", 950, [node])
    assert f"left out: node {node}" in raxlog_cli("export", "hurt.rax", "orders", "b.pq", "--skip-damaged")[1]


def test_ctrl_c_leaves_nothing_behind(sales: str, tmp_path: Path) -> None:
    # the output is a pipe nobody reads, so that the export cannot come to its end
    fifo = tmp_path / "block"
    os.mkfifo(fifo)
    script = (
        "import os, sys\n"
        "from raxlog.tools.cli import main\n"
        "from raxlog.tools.cli.commands.history import export\n"
        "write = export._write\n"
        "def slow(*arguments):\n"
        f"    write(*arguments); open({str(fifo)!r}).read()\n"
        "export._write = slow\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    out = tmp_path / "out.parquet"
    command = [sys.executable, "-c", script, "export", sales, "orders", str(out)]
    with forkserver.Popen(command, stderr=subprocess.PIPE) as child:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not list(tmp_path.glob("out.parquet.part-*")):
            time.sleep(0.02)
        assert list(tmp_path.glob("out.parquet.part-*"))
        time.sleep(0.3)
        child.send_signal(signal.SIGINT)
        assert child.wait(20) == 130
        assert child.stderr is not None
        assert one_line(child.stderr.read()) == "raxlog: interrupted\n"
    assert not list(tmp_path.glob("out*"))


def test_a_progress_bar_is_drawn_on_a_terminal_only(sales: str, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    done = forkserver.run([*CLI, "export", sales, "orders", str(tmp_path / "a.parquet")],
                          stdout=subprocess.PIPE, stderr=theirs, timeout=60, check=True,
                          env=os.environ | {"TERM": "xterm", "COLUMNS": "120"})  # fmt: skip
    os.close(theirs)
    drawn = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "100%" in drawn
    assert "1,000 entries" in drawn
    assert done.stdout.startswith(b"1,000 entries to ")
    assert process("export", sales, "orders", str(tmp_path / "b.parquet")).stderr == b""


def test_without_pyarrow_the_extra_to_install_is_named(sales: str, tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ImportError('No module named pyarrow')\n")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = process("export", sales, "orders", str(tmp_path / "a.parquet"), env=env)
    assert done.returncode == 2
    assert "pip install 'raxlog[spark]'" in one_line(done.stderr)


def test_columns_are_parsed_as_spark_writes_them() -> None:
    assert parsed_columns("item string,qty  bigint , price decimal(10, 2), fields map<string,binary>") == {
        "item": "string", "qty": "bigint", "price": "decimal(10, 2)", "fields": "map<string,binary>"}  # fmt: skip
    assert parsed_columns("`a b` int, `c``d` int, `e,f` int") == {"a b": "int", "c`d": "int", "e,f": "int"}
    for wrong in ("", "a", "a int,", "`a int", ", a int", "a int b int", "a decimal(5"):
        with pytest.raises(CommandError):
            parsed_columns(wrong)


def test_an_export_of_a_store_on_a_read_only_medium_writes_nothing_there(sales: str, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path(sales).rglob("*")}
    assert process("export", sales, "orders", str(tmp_path / "a.parquet")).returncode == 0
    data = [path for path in before if path.name == "data.mdb"]
    assert data
    assert all(path.stat().st_mtime_ns == before[path] for path in data)
    shutil.rmtree(sales)


@pytest.mark.parametrize("force", [[], ["--force"]], ids=["", "force"])
@pytest.mark.parametrize("link", [False, True], ids=["itself", "by a link"])
def test_a_fifo_or_a_device_is_refused_and_stays(raxlog_cli: Run, sales: str, force: list[str], link: bool) -> None:
    os.mkfifo("fifo.csv")
    places = ["fifo.csv"]
    if os.geteuid() == 0:
        os.mknod("null.csv", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        places.append("null.csv")
    for place in places:
        before = os.lstat(place)
        if link:
            os.symlink(place, f"link-{place}")
        name = f"link-{place}" if link else place
        status, out, err = raxlog_cli("export", sales, "orders", name, "--columns", "item string", *force)
        assert (status, out) == (2, "")
        assert "is no regular file" in err
        after = os.lstat(place)
        assert (after.st_ino, after.st_mode, after.st_rdev) == (before.st_ino, before.st_mode, before.st_rdev)


@pytest.mark.parametrize("force", [[], ["--force"]], ids=["", "force"])
def test_a_link_to_itself_and_standard_output_are_refused_and_stay(
    raxlog_cli: Run, sales: str, force: list[str],
) -> None:
    os.symlink("loop.csv", "loop.csv")
    for place in ("loop.csv", "-"):
        status, out, err = raxlog_cli(
            "export", sales, "orders", place, "--columns", "item string", "--format", "csv", *force)
        assert (status, out) == (2, "")
        assert f"{place} is no regular file" in one_line(err)
    assert os.readlink("loop.csv") == "loop.csv"
    assert not os.path.lexists("-")


def test_an_export_writes_over_no_file_of_the_store_and_says_where_it_cannot_write(
    raxlog_cli: Run, sales: str,
) -> None:
    arguments = ("--columns", "item string", "--format", "csv", "--force")
    data = next(Path(sales).glob("*/data.mdb"))
    before = data.read_bytes()
    os.symlink(data, "link.csv")
    for place in (str(data), "link.csv", f"{sales}/new.csv"):
        status, _, err = raxlog_cli("export", sales, "orders", place, *arguments)
        assert (status, "in the store's folder" in one_line(err)) == (2, True)
    assert data.read_bytes() == before
    Path("file").write_text("")
    status, _, err = raxlog_cli("export", sales, "orders", "file/a.csv", *arguments)
    assert (status, "cannot be written" in one_line(err)) == (2, True)


def test_a_link_goes_on_naming_the_file_that_is_replaced(raxlog_cli: Run, sales: str) -> None:
    Path("real.csv").write_text("old")
    os.symlink("real.csv", "link.csv")
    assert raxlog_cli("export", sales, "orders", "link.csv", "--columns", "item string", "--force")[0] == 0
    assert Path("link.csv").is_symlink()
    assert Path("real.csv").read_text() != "old"
