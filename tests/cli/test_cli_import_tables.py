"""import of Parquet and Arrow files: every type, the IDs in them, and what cannot be an entry."""

from __future__ import annotations

import gzip
import json
import os
import signal
import struct
import sys
import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import forkserver
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import raxlog
from cli_runs import Run, entries, one_line, output, process, running

pytest_plugins = ["cli_fixtures"]

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
Write = Callable[[pa.Table, str], None]


def write_file(table: pa.Table, path: str) -> None:
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table, max_chunksize=3000)


def write_stream(table: pa.Table, path: str) -> None:
    with pa.ipc.new_stream(path, table.schema) as file:
        file.write_table(table, max_chunksize=3000)


def write_parquet(table: pa.Table, path: str) -> None:
    pq.write_table(table, path, row_group_size=3000)


KINDS = pytest.mark.parametrize(("write", "kind"), [
    (write_parquet, "parquet"), (write_file, "arrow"), (write_stream, "arrow"),
], ids=["parquet", "arrow file", "arrow stream"])


def pairs_of(path: str | Path, stream: str = "orders") -> list[dict[bytes, bytes]]:
    return [dict(pairs) for _, pairs in entries(path, stream)]


@KINDS
def test_every_row_is_an_entry_and_a_number_of_a_row_is_where_to_go_on(
    raxlog_cli: Run, write: Write, kind: str
) -> None:
    table = pa.table({"n": range(10_007), "t": ["x" * (n % 50) if n % 3 else None for n in range(10_007)]})
    write(table, "a.data")
    expected = [{b"n": b"%d" % n} | ({b"t": b"x" * (n % 50)} if n % 3 else {}) for n in range(10_007)]
    status, out, _ = raxlog_cli("import", "s.rax", "orders", "a.data", "--json")
    printed = json.loads(out)
    assert (status, printed["imported"], printed["format"], printed["next_line"]) == (0, 10_007, kind, 10_008)
    assert pairs_of("s.rax") == expected
    for start in (2, 3000, 3001, 9500, 10_007, 10_008):
        arguments = ("import", "s.rax", f"from-{start}", "a.data", "--from-line", str(start), "--batch", "1234")
        assert raxlog_cli(*arguments)[0] == 0
        assert pairs_of("s.rax", f"from-{start}") == expected[start - 1 :]


def test_a_commit_of_a_table_has_many_rows_but_not_many_bytes(raxlog_cli: Run) -> None:
    write_parquet(pa.table({"t": ["x" * 1_000_000] * 30}), "long.parquet")
    write_parquet(pa.table({"n": range(20_000)}), "short.parquet")
    for name, least, most in (("long", 3, 8), ("short", 2, 2)):
        raxlog_cli("import", "s.rax", name, f"{name}.parquet")
        begun = {sid.split("-")[0] for sid, _ in entries("s.rax", name)}  # one millisecond a commit
        assert least <= len(begun) <= most


def test_values_of_all_types_are_read_back_as_they_were(raxlog_cli: Run) -> None:
    table = pa.table({
        "s": ["a", None], "b": pa.array([b"\xff", b""], pa.large_binary()), "n": [-1, None],
        "u": pa.array([(1 << 64) - 1, 0], pa.uint64()), "d": [1.5, -0.1], "p": [Decimal("1.50"), None],
        "t": [True, False], "day": [date(2026, 5, 1), None],
        "at": pa.array([NOON, None], pa.timestamp("ms", "Europe/Berlin")),
        "ns": pa.array([1001, 2000], pa.timestamp("ns")), "clock": [time_of_day(1, 2, 3), None],
        "list": pa.array([["x", "y"], None], pa.large_list(pa.large_string())),
        "row": [{"a": 1, "b": [datetime(2026, 5, 1)]}, None],
        "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        "kind": pa.array(["p", "q"]).dictionary_encode(), "none": pa.nulls(2), "id": [7, 8],
    })
    for number, write in enumerate((write_parquet, write_file, write_stream)):
        write(table, "a.data")
        assert raxlog_cli("import", "s.rax", f"s{number}", "a.data")[0] == 0
        first, second = pairs_of("s.rax", f"s{number}")
        assert first == {
            b"s": b"a", b"b": b"\xff", b"n": b"-1", b"u": b"18446744073709551615", b"d": b"1.5", b"p": b"1.50",
            b"t": b"true", b"day": b"2026-05-01", b"at": b"2026-05-01 12:00:00+00:00",
            b"ns": b"1970-01-01 00:00:00.000001001", b"clock": b"01:02:03.000000", b"list": b'["x","y"]',
            b"row": b'{"a":1,"b":["2026-05-01T00:00:00"]}', b"map": b'{"k":1}', b"kind": b"p", b"id": b"7",
        }
        assert second.keys() == {b"b", b"u", b"d", b"t", b"ns", b"kind", b"id"}
    as_they_are = ("s", "n", "d", "p", "t", "day", "row", "map")
    schema = pa.schema([(name, table.schema.field(name).type) for name in as_they_are])
    schema = schema.append(pa.field("at", pa.timestamp("us", "UTC"))).append(pa.field("list", pa.list_(pa.string())))
    with raxlog.open("s.rax", readonly=True) as store:
        read = store.stream("s0").to_arrow(schema=schema, mode="FAILFAST").read_all()
    for name in schema.names:
        assert read[name].to_pylist() == table[name].to_pylist()


def test_what_polars_and_duckdb_write_is_read(raxlog_cli: Run) -> None:
    frame = polars.DataFrame({"n": [1, 2], "t": ["a", None], "l": [["x"], []], "when": [NOON, None]})
    frame = frame.with_columns(c=polars.Series(["p", "q"], dtype=polars.Categorical))
    frame.write_parquet("a.parquet")
    frame.write_ipc("a.arrow")
    frame.write_ipc_stream("a.arrows")
    for name in ("a.parquet", "a.arrow", "a.arrows"):
        assert raxlog_cli("import", "s.rax", name, name)[0] == 0
        assert pairs_of("s.rax", name) == [
            {b"n": b"1", b"t": b"a", b"l": b'["x"]', b"when": b"2026-05-01 12:00:00+00:00", b"c": b"p"},
            {b"n": b"2", b"l": b"[]", b"c": b"q"},
        ]
    key = "00000000-0000-0000-0000-000000000001"
    duckdb.sql(f"copy (select 1.5::decimal(9,2) as price, uuid '{key}' as key) to 'b.parquet'")
    assert raxlog_cli("import", "s.rax", "duck", "b.parquet")[0] == 0
    assert pairs_of("s.rax", "duck") == [{b"price": b"1.50", b"key": key.encode()}]


@pytest.mark.parametrize("arguments", [
    ["all.parquet"], ["all.arrow"], ["all.parquet", "--columns", "fields map<binary,binary>", "--id", "id"],
    ["all.parquet", "--columns", "id_ms bigint, id_seq bigint, id string, n bigint"],
])
def test_an_export_is_imported_as_the_same_entries(raxlog_cli: Run, arguments: list[str]) -> None:
    with raxlog.open("s.rax") as store:
        store.stream("orders").extend(
            [{"id": "a", "n": 1}, {"id": "b", "n": 2}, {"id": "", "n": -3}], ["5-1", "5-2", "1795944397245-7"])
    assert raxlog_cli("export", "s.rax", "orders", *arguments)[0] == 0
    assert raxlog_cli("import", "copy.rax", "orders", arguments[0])[0] == 0
    assert entries("copy.rax") == entries("s.rax")
    status, _, err = raxlog_cli("import", "copy.rax", "orders", arguments[0])
    assert (status, "is not greater than the one before" in one_line(err), "--new-ids" in err) == (2, True, True)


def test_an_entry_of_a_schedule_and_one_with_a_name_twice_come_back_from_a_map(raxlog_cli: Run) -> None:
    pairs = pa.array([[(b"$entry", b"{}"), (b"n", b"1")], [(b"a", b"1"), (b"a", b"2")], [], None],
                     pa.map_(pa.binary(), pa.binary()))
    write_parquet(pa.table({"id_ms": [5, 6, 7, 8], "id_seq": [1, 1, 1, 1], "fields": pairs}), "a.parquet")
    status, _, err = raxlog_cli("import", "s.rax", "orders", "a.parquet")
    assert (status, "a.parquet:3: an entry needs at least one field" in one_line(err)) == (2, True)
    assert entries("s.rax") == [("5-1", [(b"$entry", b"{}"), (b"n", b"1")]), ("6-1", [(b"a", b"1"), (b"a", b"2")])]
    _, out, _ = raxlog_cli("import", "s.rax", "orders", "a.parquet", "--from-line", "3", "--skip-bad", "--json")
    assert json.loads(out)["skipped"] == 2


def test_ids_come_from_halves_from_text_from_bytes_and_from_a_named_column(raxlog_cli: Run) -> None:
    streams = iter("abcdefgh")

    def imported(table: dict[str, Any], *more: str) -> list[tuple[str, list[tuple[bytes, bytes]]]]:
        stream = next(streams)
        write_parquet(pa.table(table), "a.parquet")
        assert raxlog_cli("import", "s.rax", stream, "a.parquet", *more)[0] == 0
        return entries("s.rax", stream)

    one, two = [(b"n", b"1")], [(b"n", b"2")]
    halves = {"id_seq": pa.array([3, 0], pa.uint64()), "n": [1, 2], "id_ms": [5, 6]}
    assert imported(halves) == [("5-3", one), ("6-0", two)]
    assert imported({"id": ["5-3", "6"], "n": [1, 2]}) == [("5-3", one), ("6-0", two)]
    sids = [bytes(raxlog.StreamID("5-3")), bytes(raxlog.StreamID("6-0"))]
    assert imported({"id": sids, "n": [1, 2]}) == [("5-3", one), ("6-0", two)]
    assert imported({"when": [7, 7], "n": [1, 2]}, "--id-field", "when") == [("7-0", one), ("7-1", two)]
    times = [NOON, NOON.replace(microsecond=1999)]
    ms = int(NOON.timestamp()) * 1000
    assert imported({"when": times, "n": [1, 2]}, "--id-field", "when") == [(f"{ms}-0", one), (f"{ms + 1}-0", two)]
    days = imported({"day": [date(1970, 1, 2)], "n": [1]}, "--id-field", "day")
    assert days == [("86400000-0", one)]
    assert [pairs for _, pairs in imported(halves, "--new-ids")] == [one, two]
    kept = imported({"id": ["x", "y"], "n": [1, 2]}, "--new-ids")
    assert [pairs for _, pairs in kept] == [[(b"id", b"x"), *one], [(b"id", b"y"), *two]]


@pytest.mark.parametrize(("table", "arguments", "what"), [
    ({"gap": pa.array([1], pa.duration("s")), "n": [1]}, [], "column 'gap' is duration[s], which no field can hold"),
    ({"l": [[b"x"]]}, [], "no field can hold: cast it to text or a number, or leave it out with --leave-out l"),
    ({"id_ms": ["5"], "id_seq": [1], "n": [1]}, [], "column 'id_ms' is string, and half of an ID is a whole number"),
    ({"w": [1.5], "n": [1]}, ["--id-field", "w"], "column 'w' is double: an ID is made of text"),
    ({"n": [1]}, ["--id-field", "w"], "no column 'w', of 'n'"),
    ({"n": [1]}, ["--leave-out", "w"], "no column 'w', of 'n'"),
    ({"id": ["5-1"]}, [], "no column that would be a field"),
    ({"n": [1]}, ["--leave-out", "n"], "no column that would be a field"),
    ({"fields": pa.array([[("a", "1")]], pa.map_(pa.string(), pa.string())), "n": [1]}, [], "beside it there is n"),
    ({"n": [1]}, ["--id-field", "n", "--new-ids"], "not allowed with"),
    ({"id": ["x"], "n": [1]}, [], "--new-ids takes"),
])  # fmt: skip
def test_a_column_that_cannot_be_taken_is_named_with_what_to_do(
    raxlog_cli: Run, table: dict[str, Any], arguments: list[str], what: str
) -> None:
    write_parquet(pa.table(table), "a.parquet")
    status, out, err = raxlog_cli("import", "s.rax", "orders", "a.parquet", *arguments)
    assert (status, out) == (2, "")
    assert what in one_line(err)
    assert not Path("s.rax").exists() or entries("s.rax") == []


def test_a_column_left_out_is_no_field(raxlog_cli: Run) -> None:
    write_parquet(pa.table({"gap": pa.array([1], pa.duration("s")), "n": [1], "m": [2]}), "a.parquet")
    assert raxlog_cli("import", "s.rax", "orders", "a.parquet", "--leave-out", "gap", "--leave-out", "m")[0] == 0
    assert pairs_of("s.rax") == [{b"n": b"1"}]
    Path("a.csv").write_text("n,m\n1,2\n")
    for option in (["--leave-out", "m"], ["--new-ids"]):
        status, _, err = raxlog_cli("import", "s.rax", "orders", "a.csv", *option)
        assert (status, f"{option[0]} is for columns of Parquet and Arrow" in one_line(err)) == (2, True)


def test_rows_whose_ids_are_null_negative_or_not_greater_are_bad_ones(raxlog_cli: Run) -> None:
    write_parquet(pa.table({"id_ms": [5, None, -1, 5, 4, 9], "id_seq": [1] * 6, "n": range(6)}), "a.parquet")
    errors = []
    for start in (1, 3, 4, 5):
        status, _, err = raxlog_cli("import", "s.rax", "orders", "a.parquet", "--from-line", str(start))
        assert status == 2
        errors.append(one_line(err))
    assert "a.parquet:2: the ID is null. IDs are in id_ms and id_seq; --new-ids leaves them out" in errors[0]
    assert "1 entry is durable, go on with --from-line 2" in errors[0]
    assert "a.parquet:3: (-1, 1) is not a stream ID" in errors[1]
    assert "a.parquet:4: the ID 5-1 is not greater than the one before, 5-1" in errors[2]
    assert "a.parquet:5: the ID 4-1 is not greater than the one before, 5-1" in errors[3]
    _, out, _ = raxlog_cli("import", "s.rax", "orders", "a.parquet", "--skip-bad", "--json")
    assert (json.loads(out)["skipped"], entries("s.rax")[-1]) == (5, ("9-1", [(b"n", b"5")]))


def test_a_time_that_no_scan_could_read_is_named_by_its_column(raxlog_cli: Run) -> None:
    when = pa.array([0, -70_000_000_000_000_000], pa.timestamp("us"))
    write_parquet(pa.table({"n": [1, 2], "when": when}), "a.parquet")
    status, _, err = raxlog_cli("import", "s.rax", "orders", "a.parquet")
    assert (status, "column 'when' cannot be stored, in one of the rows 1 to 2" in one_line(err)) == (2, True)


@KINDS
def test_a_file_that_is_cut_or_damaged_is_refused_in_a_line(raxlog_cli: Run, write: Write, kind: str) -> None:
    write(pa.table({"n": range(5000), "t": [f"text {n}" for n in range(5000)]}), "a.data")
    whole = Path("a.data").read_bytes()
    for size in (5, 10, 100, len(whole) // 2, len(whole) - 1000):
        Path("cut.data").write_bytes(whole[:size])
        status, out, err = raxlog_cli("import", "s.rax", f"cut-{size}", "cut.data", "--format", kind)
        assert (status, out, f"cut.data cannot be read as {kind.title()}: " in one_line(err)) == (2, "", True)
    Path("a.data").write_bytes(b"")
    assert raxlog_cli("import", "s.rax", "empty", "a.data", "--format", kind)[0] == 2


def test_a_file_that_says_its_texts_lie_elsewhere_is_refused_in_a_line(raxlog_cli: Run) -> None:
    offsets = pa.py_buffer(struct.pack("=4i", 0, 1, 5000, 3))
    column = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"abc")])
    write_file(pa.table({"t": column}), "a.arrow")
    status, _, err = raxlog_cli("import", "s.rax", "orders", "a.arrow")
    assert (status, "t" in one_line(err), "Traceback" in err) == (2, True, False)


def test_a_pipe_gives_a_stream_of_arrow_and_a_redirected_file_gives_any(raxlog_cli: Run) -> None:
    table = pa.table({"n": range(4000)})
    for write, name in ((write_parquet, "Parquet"), (write_file, "Arrow"), (write_stream, "")):
        write(table, "a.data")
        done = process("import", "s.rax", f"pipe{name}", stdin=Path("a.data").read_bytes())
        if name:
            assert (done.returncode, done.stdout) == (2, b"")
            assert f"standard input is {name}, which is read from its end" in one_line(done.stderr)
        else:
            assert done.returncode == 0
            assert len(entries("s.rax", "pipe")) == 4000
        with open("a.data", "rb") as file:
            command = [sys.executable, "-m", "raxlog", "import", "s.rax", f"file{name}"]
            assert forkserver.run(command, stdin=file, capture_output=True, timeout=60, check=False).returncode == 0
        assert len(entries("s.rax", f"file{name}")) == 4000


def test_a_table_in_a_packed_file_and_one_given_as_text_are_refused(raxlog_cli: Run) -> None:
    write_parquet(pa.table({"n": [1]}), "a.parquet")
    Path("a.parquet.gz").write_bytes(gzip.compress(Path("a.parquet").read_bytes()))
    status, _, err = raxlog_cli("import", "s.rax", "orders", "a.parquet.gz")
    assert (status, "is a table in a packed file: unpack it first" in one_line(err)) == (2, True)
    status, _, err = raxlog_cli("import", "s.rax", "orders", "a.parquet", "--format", "csv")
    assert (status, "a.parquet is Parquet, not text: leave --format out" in one_line(err)) == (2, True)
    assert not Path("s.rax").exists()


def test_ctrl_c_ends_the_read_of_a_stream_of_arrow(tmp_path: Path) -> None:
    path, table = tmp_path / "s.rax", pa.table({"n": range(50)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as file:
        for _ in range(4):
            file.write_table(table)
    with running("import", str(path), "log", "--batch", "50", "--json") as importing:
        assert importing.stdin is not None
        importing.stdin.write(sink.getvalue().to_pybytes()[:-8])  # all but the mark of its end
        importing.stdin.flush()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not (path.exists() and len(entries(path, "log")) >= 150):
            time.sleep(0.02)
        importing.send_signal(signal.SIGINT)
        assert importing.wait(10) == 130
        printed = json.loads(output(importing).read())
    assert printed["imported"] == len(entries(path, "log"))
    assert printed["next_line"] == printed["imported"] + 1


def test_without_pyarrow_a_table_names_what_to_install(tmp_path: Path) -> None:
    write_parquet(pa.table({"n": [1]}), str(tmp_path / "a.parquet"))
    (tmp_path / "pyarrow.py").write_text("raise ImportError('No module named pyarrow')\n")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = process("import", str(tmp_path / "s.rax"), "orders", str(tmp_path / "a.parquet"), env=env)
    assert done.returncode == 2
    assert "pip install 'raxlog[spark]'" in one_line(done.stderr)
    (tmp_path / "a.txt").write_text("one\n")
    assert process("import", str(tmp_path / "s.rax"), "orders", str(tmp_path / "a.txt"), env=env).returncode == 0
