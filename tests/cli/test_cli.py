"""The command line: what it prints, what it exits with, and how it behaves when stopped.

Most tests call main() in this process; exit statuses, pipes and Ctrl-C are seen from outside,
through a process of its own. import and demo have their own files.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import forkserver
import pytest
import raxlog
from cli_runs import Run, entries, one_line, output, process, running
from raxlog.tools.cli import COMMANDS

pytest_plugins = ["cli_fixtures"]

ODD = b"\xff\\a\tb\n=c"


# -- adding and reading -------------------------------------------------------------------


def test_add_creates_the_store_and_prints_the_id_it_is_read_back_by(raxlog_cli: Run) -> None:
    status, out, _ = raxlog_cli("add", "s.rax", "orders", "item=book", "qty=2=3")
    assert status == 0
    sid = out.strip()
    assert raxlog_cli("get", "s.rax", "orders", sid)[:2] == (0, f"{sid}\titem=book\tqty=2=3\n")
    assert entries("s.rax") == [(sid, [(b"item", b"book"), (b"qty", b"2=3")])]


def test_add_takes_an_id_trims_and_tells_json(raxlog_cli: Run, orders: str) -> None:
    status, out, _ = raxlog_cli("add", orders, "orders", "n=4", "--id", "9-*", "--maxlen", "2", "--json")
    assert (status, json.loads(out)) == (0, {"id": "9-0"})
    assert [sid for sid, _ in entries(orders)] == ["3-1", "9-0"]


def test_fields_that_begin_with_a_dash_and_repeat_are_kept(raxlog_cli: Run) -> None:
    assert raxlog_cli("add", "s.rax", "orders", "--id", "1-1", "--", "-x=1", "-x=2", "=")[0] == 0
    assert entries("s.rax") == [("1-1", [(b"-x", b"1"), (b"-x", b"2"), (b"", b"")])]


def test_range_prints_both_ends_in_either_order(raxlog_cli: Run, orders: str) -> None:
    def ids(*arguments: str) -> list[str]:
        return [line.split("\t")[0] for line in raxlog_cli("range", orders, "orders", *arguments)[1].splitlines()]

    assert ids() == ["1-1", "2-1", "3-1"]
    assert ids("2", "3") == ["2-1", "3-1"]
    assert ids("--count", "2", "-", "+") == ["1-1", "2-1"]
    assert ids("(1-1", "--reverse") == ["3-1", "2-1"]


def test_range_as_json_is_a_document_a_line(raxlog_cli: Run, orders: str) -> None:
    _, out, _ = raxlog_cli("range", orders, "orders", "--json", "--count", "1")
    assert json.loads(out) == {"id": "1-1", "fields": {"item": "book", "n": "1"}}


def test_bytes_that_are_no_text_are_shown_without_loss(raxlog_cli: Run, tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax") as store:
        store.stream(b"\xfe").append([("a=b", ODD), ("ü", "é")], id="1-1")
        store.stream(b"\xfe").append([("a", 1), ("a", 2)], id="2-1")
    name = os.fsdecode(b"\xfe")
    plain = raxlog_cli("range", "s.rax", name)[1].splitlines()
    assert plain == ["1-1\ta\\x3db=\\xff\\\\a\\tb\\n=c\tü=é", "2-1\ta=1\ta=2"]
    first, second = map(json.loads, raxlog_cli("range", "s.rax", name, "--json")[1].splitlines())
    assert first["fields"] == {"a=b": {"base64": base64.b64encode(ODD).decode()}, "ü": "é"}
    assert second["fields"] == [["a", "1"], ["a", "2"]]
    assert raxlog_cli("streams", "s.rax")[1] == "\\xfe\n"
    assert json.loads(raxlog_cli("streams", "s.rax", "--json")[1])["streams"] == [{"base64": "/g=="}]


def test_json_can_be_printed_where_only_ascii_can(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax") as store:
        store.stream("s").append({"ü": "é"}, id="1-1")
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    got = process("range", str(tmp_path / "s.rax"), "s", "--json", env=ascii_only)
    assert json.loads(got.stdout) == {"id": "1-1", "fields": {"ü": "é"}}
    assert process("range", str(tmp_path / "s.rax"), "s", env=ascii_only).stdout == b"1-1\t\\xfc=\\xe9\n"


def test_a_reader_that_goes_away_ends_range_without_a_word(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax") as store:
        store.stream("s").extend({"text": "x" * 100} for _ in range(20_000))
    with running("range", str(tmp_path / "s.rax"), "s") as reading:
        assert reading.stderr is not None
        output(reading).readline()
        output(reading).close()
        assert reading.wait(20) == 0
        assert reading.stderr.read() == b""


# -- tail ---------------------------------------------------------------------------------


def test_tail_prints_the_last_entries_oldest_first(raxlog_cli: Run, orders: str) -> None:
    status, out, _ = raxlog_cli("tail", orders, "orders", "-n", "2", "--count", "2")
    assert (status, [line.split("\t")[0] for line in out.splitlines()]) == (0, ["2-1", "3-1"])


def test_tail_follows_what_another_process_appends_and_stops_at_count(orders: str) -> None:
    with running("tail", orders, "orders", "-n", "1", "--count", "3", "--json") as tail:
        assert json.loads(output(tail).readline())["id"] == "3-1"
        with raxlog.open(orders) as store:
            store.stream("orders").extend([{"n": 4}, {"n": 5}, {"n": 6}], ids=["4-1", "5-1", "6-1"])
        assert [json.loads(line)["id"] for line in output(tail)] == ["4-1", "5-1"]
        assert tail.wait(10) == 0


def test_tail_ends_where_its_stream_is_deleted(orders: str) -> None:
    with running("tail", orders, "orders") as tail:
        output(tail).readline()
        with raxlog.open(orders) as store:
            store.delete_stream("orders")
        _, err = tail.communicate(timeout=10)
        assert "was deleted" in one_line(err)
        assert tail.returncode == 1


def test_tail_that_waits_begins_before_there_is_a_store_and_outlives_its_stream(tmp_path: Path) -> None:
    path = tmp_path / "later.rax"
    with running("tail", str(path), "orders", "--wait", "--count", "4", "--json") as tail:
        time.sleep(0.3)
        assert not path.exists()
        with raxlog.open(path) as store:
            time.sleep(0.3)
            store.stream("orders").extend([{"n": 1}, {"n": 2}], ids=["1-1", "2-1"])
            assert [json.loads(output(tail).readline())["id"] for _ in range(2)] == ["1-1", "2-1"]
            store.delete_stream("orders")
            time.sleep(1.5)  # it has noticed
            assert tail.poll() is None
            store.stream("orders").extend([{"n": 3}, {"n": 4}], ids=["1-2", "2-2"])
            assert [json.loads(line)["id"] for line in output(tail)] == ["1-2", "2-2"]
        assert tail.wait(10) == 0


def test_ctrl_c_ends_tail_with_one_line(orders: str) -> None:
    with running("tail", orders, "orders") as tail:
        for _ in range(3):
            output(tail).readline()
        tail.send_signal(signal.SIGINT)
        out, err = tail.communicate(timeout=10)
    assert (tail.returncode, out, err) == (130, b"", b"raxlog: interrupted\n")


# -- changing -----------------------------------------------------------------------------


def test_delete_trim_rename_and_delete_stream(raxlog_cli: Run, orders: str) -> None:
    assert raxlog_cli("delete", orders, "orders", "1-1", "7-7")[:2] == (0, "1 entry deleted\n")
    assert raxlog_cli("delete", orders, "orders", "1-1")[:2] == (1, "0 entries deleted\n")
    assert raxlog_cli("trim", orders, "orders", "--minid", "3")[:2] == (0, "1 entry evicted\n")
    assert json.loads(raxlog_cli("trim", orders, "orders", "--maxlen", "9", "--json")[1]) == {"evicted": 0}
    assert raxlog_cli("rename", orders, "orders", "old")[:2] == (0, "stream orders renamed to old\n")
    assert raxlog_cli("rename", orders, "old", "old")[0] == 1
    assert entries(orders, "old") == [("3-1", [(b"item", b"book"), (b"n", b"3")])]
    assert json.loads(raxlog_cli("delete-stream", orders, "old", "--json")[1]) == {"deleted": 1}
    assert raxlog_cli("streams", orders)[:2] == (0, "")


def test_the_answer_no_is_status_1_and_one_line(raxlog_cli: Run, orders: str) -> None:
    raxlog_cli("add", orders, "taken", "a=1")
    for arguments in (
        ("range", orders, "nope"), ("tail", orders, "nope"), ("get", orders, "orders", "9-9"),
        ("info", orders, "nope"), ("delete", orders, "nope", "1-1"), ("trim", orders, "nope", "--maxlen", "1"),
        ("rename", orders, "nope", "new"), ("rename", orders, "orders", "taken"),
        ("delete-stream", orders, "nope"), ("add", orders, "nope", "a=1", "--no-create"),
        ("add", orders, "orders", "a=1", "--id", "3-1"), ("add", "none.rax", "orders", "a=1", "--id", "0-0"),
        ("info", orders, "orders", "--node", "0-1"),
    ):  # fmt: skip
        status, out, err = raxlog_cli(*arguments)
        assert (status, out) == (1, ""), arguments
        one_line(err)
    assert raxlog_cli("range", orders, "orders", "5", "+") == (1, "", "")
    assert not Path("none.rax").exists()
    assert len(entries(orders)) == 3


@pytest.mark.parametrize("durability", ["commit", "relaxed", "buffered"])
def test_what_is_written_with_any_durability_is_there_afterwards(orders: str, durability: str) -> None:
    """In processes of their own: what has been printed is in the file."""
    how = "--durability", durability
    assert process("add", orders, "orders", "n=4", "--id", "4-1", *how).stdout == b"4-1\n"
    assert process("import", orders, "orders", *how, stdin=b'{"n": "5"}\n{"n": "6"}\n').returncode == 0
    assert process("delete", orders, "orders", "1-1", *how).stdout == b"1 entry deleted\n"
    with raxlog.open(orders, readonly=True) as store:
        assert [entry.fields["n"] for entry in store.stream("orders").range()] == ["2", "3", "4", "5", "6"]
    failed = process("add", orders, "orders", "n=7", "--id", "4-1", *how)
    assert (failed.returncode, failed.stdout) == (1, b"")
    one_line(failed.stderr)


def test_wrong_usage_is_status_2_one_line_and_creates_nothing(raxlog_cli: Run, tmp_path: Path) -> None:
    for arguments in (
        ("add", "s.rax", "orders", "item"), ("add", "s.rax", "orders"), ("add", "s.rax"), ("add",),
        ("add", "s.rax", "orders", "a=1", "--id", "1-x"), ("add", "s.rax", "orders", "a=1", "--id", "-"),
        ("add", "s.rax", "x" * 503, "a=1"), ("add", "s.rax", "orders", "a=1", "--bogus"),
        ("add", "s.rax", "orders", "a=1", "--maxlen", "-1"), ("add", "", "orders", "a=1"),
        ("add", "s.rax", "orders", "a=1", "--maxlen", "1", "--minid", "1"),
        ("add", "s.rax", "orders", "a=1", "--maxlen", "1", "--limit", "1"),
        ("add", "s.rax", "orders", "a=1", "--durability", "perhaps"),
        ("add", "s.rax", "orders", "a=1", "--lock-timeout", "nan"),
        ("add", "s.rax", "orders", "a=1", "--maxl", "1"),
        ("range", "s.rax", "orders", "x"), ("range", "s.rax", "orders", "1", "1-"),
        ("range", "s.rax", "orders", "--count", "-1"), ("range", "s.rax", "orders", "--count", "many"),
        ("range", "s.rax", "orders", "1", "2", "3"), ("tail", "s.rax", "orders", "-n", "-3"),
        ("get", "s.rax", "orders", "+"), ("delete", "s.rax", "orders", "1-1", "y"),
        ("trim", "s.rax", "orders"), ("trim", "s.rax", "orders", "--maxlen", "1", "--minid", "1"),
        ("info", "s.rax", "--rax"), ("info", "s.rax", "orders", "--node", "z"), ("rename", "s.rax", "a", "b" * 503),
        ("import", "s.rax", "orders", "absent.csv"), ("import", "s.rax", "orders", "."),
        ("import", "s.rax", "orders", "absent.csv", "--batch", "0"),
        ("import", "s.rax", "orders", "absent.csv", "--format", "xml"),
        ("demo", "absent.csv"), ("bogus",), ("--bogus",),
    ):  # fmt: skip
        status, out, err = raxlog_cli(*arguments)
        assert (status, out) == (2, ""), arguments
        one_line(err)
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_opened_is_status_3_and_stays_as_it_is(raxlog_cli: Run, tmp_path: Path) -> None:
    Path("file").write_text("text")
    Path("folder").mkdir()
    Path("folder", "letter.txt").write_text("dear")
    Path("empty").mkdir()
    for path in ("file", "folder", "file/below"):
        for arguments in (("add", path, "orders", "a=1"), ("range", path, "orders"), ("info", path)):
            status, out, err = raxlog_cli(*arguments)
            assert (status, out) == (3, ""), arguments
            assert path.split("/")[0] in one_line(err)
    for path in ("absent", "empty"):
        for name in ("range", "tail", "info", "delete-stream", "streams"):
            stream = [] if name in ("info", "streams") else ["orders"]
            status, out, err = raxlog_cli(name, path, *stream)
            assert (status, out) == (3, ""), name
            assert "there is no store" in one_line(err)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "empty", "file", "folder", "folder/letter.txt",
    ]  # fmt: skip


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_status_3(raxlog_cli: Run, tmp_path: Path) -> None:
    Path("locked").mkdir(mode=0o555)
    status, _, err = raxlog_cli("add", "locked/s.rax", "orders", "a=1")
    assert status == 3
    assert "nothing may be written" in one_line(err)


def test_reading_works_beside_a_writer_and_writing_waits_no_longer_than_told(orders: str) -> None:
    holder = (
        "import raxlog, sys, time\n"
        "with raxlog.open(sys.argv[1]) as store, store.transaction():\n"
        "    print('held', flush=True); time.sleep(60)"
    )
    with forkserver.Popen([sys.executable, "-c", holder, orders], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            assert process("range", orders, "orders").stdout.count(b"\n") == 3
            late = process("add", orders, "orders", "a=1", "--lock-timeout", "0.05")
        finally:
            other.kill()
    assert late.returncode == 3
    assert str(other.pid) in one_line(late.stderr)
    assert b"or give a longer --lock-timeout." in late.stderr
    assert len(entries(orders)) == 3


def test_reading_commands_write_nothing(raxlog_cli: Run, orders: str) -> None:
    files = [path for path in Path(orders).rglob("*") if path.is_file() and path.name not in ("lock.mdb", "log-state")]
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}
    for arguments in (("range", orders, "orders"), ("tail", orders, "orders", "--count", "1"), ("info", orders),
                      ("info", orders, "orders", "--rax"), ("get", orders, "orders", "1-1"), ("streams", orders)):
        assert raxlog_cli(*arguments)[0] == 0
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files} == before


# -- info ---------------------------------------------------------------------------------


def test_info_lists_streams_and_tells_all_figures_of_one(raxlog_cli: Run, orders: str) -> None:
    status, out, _ = raxlog_cli("info", orders)
    assert status == 0
    assert out.splitlines()[-1].split() == ["orders", "3", "1", "1-1", "3-1"]
    told = json.loads(raxlog_cli("info", orders, "--json")[1])
    assert told["streams"] == [{"name": "orders", "length": 3, "nodes": 1, "entries_added": 3, "first": "1-1",
                                "last_generated_id": "3-1"}]  # fmt: skip
    figures = json.loads(raxlog_cli("info", orders, "orders", "--json")[1])
    assert (figures["name"], figures["length"], figures["radix_tree_keys"]) == ("orders", 3, 1)
    assert figures["last_entry"] == {"id": "3-1", "fields": {"item": "book", "n": "3"}}
    assert "last-generated-id" in raxlog_cli("info", orders, "orders")[1]


def test_info_shows_what_a_trim_has_left_free_until_the_store_is_compacted(raxlog_cli: Run, orders: str) -> None:
    assert "bytes are free" not in raxlog_cli("info", orders)[1]
    with raxlog.open(orders) as store:
        store.stream("orders").extend({"n": "x" * 1000} for _ in range(5000))
        store.stream("orders").trim(maxlen=1)
    free = json.loads(raxlog_cli("info", orders, "--json")[1])["bytes_free"]
    assert free > 5_000_000
    assert f"{free:,} bytes are free: they are used again, and 'raxlog compact'" in raxlog_cli("info", orders)[1]
    assert raxlog_cli("compact", orders)[0] == 0
    assert "bytes are free" not in raxlog_cli("info", orders)[1]


def test_info_draws_the_rax_and_a_node(raxlog_cli: Run, orders: str) -> None:
    with raxlog.open(orders) as store:
        store.stream("orders").delete("2-1")
        store.stream("orders").append({"other": "x"}, id="4-1")
    drawn = raxlog_cli("info", orders, "orders", "--rax")[1]
    assert drawn.startswith('"\\x00')
    assert json.loads(raxlog_cli("info", orders, "orders", "--rax", "--json")[1])["rax"] == drawn.rstrip("\n")
    node = raxlog_cli("info", orders, "orders", "--node", "2")[1]
    assert "node 1-1 of stream 'orders'" in node
    assert "3 live, 1 deleted" in node
    told = json.loads(raxlog_cli("info", orders, "orders", "--node", "4-1", "--json")[1])
    assert [(entry["id"], entry["deleted"], entry["same_fields"]) for entry in told["entries"]] == [
        ("1-1", False, True), ("2-1", True, True), ("3-1", False, True), ("4-1", False, False),
    ]  # fmt: skip
    raw = told["listpack"]["frame"] + told["master"]["bytes"] + "".join(e["bytes"] for e in told["entries"]) + "ff"
    assert len(bytes.fromhex(raw)) == told["listpack"]["bytes"]


def test_a_damaged_stream_is_named_and_the_others_are_shown(raxlog_cli: Run, orders: str) -> None:
    raxlog_cli("add", orders, "sound", "a=1", "--id", "1-1")
    data = Path(orders, "000001", "data.mdb")
    whole = data.read_bytes()
    data.write_bytes(whole.replace(b"\x84item", b"\x84itex"))
    assert data.read_bytes() != whole
    status, out, _ = raxlog_cli("info", orders)
    assert status == 3
    damaged, sound = out.splitlines()[-2:]
    assert "DAMAGED" in damaged
    assert sound.split()[0] == "sound"
    status, out, err = raxlog_cli("range", orders, "orders")
    assert (status, out) == (3, "")
    assert "'orders'" in one_line(err)
    assert raxlog_cli("info", orders, "orders", "--node", "1-1")[0] == 3


# -- the rest -----------------------------------------------------------------------------


def test_every_command_explains_itself_with_an_example(raxlog_cli: Run) -> None:
    status, out, _ = raxlog_cli("--help")
    assert status == 0
    for name in COMMANDS:
        assert f"\n  {name} " in out
        status, told, _ = raxlog_cli(name, "--help")
        assert status == 0
        assert told.partition("example:\n")[2].split()[:2] == ["raxlog", name]
        assert "--json" in told
    status, out, err = raxlog_cli()
    assert (status, out) == (2, "")
    assert "exit status" in err


def test_version_tells_which_kernels_run(raxlog_cli: Run) -> None:
    status, out, _ = raxlog_cli("--version")
    assert status == 0
    assert out.startswith(f"raxlog {raxlog.__version__} (kernels: ")
    assert json.loads(raxlog_cli("--version", "--json")[1])["version"] == raxlog.__version__


def test_exit_statuses_are_seen_from_outside(tmp_path: Path) -> None:
    path = str(tmp_path / "s.rax")
    assert process("add", path, "s", "a=1").returncode == 0
    assert process("range", path, "t").returncode == 1
    assert process("range", path, "s", "x").returncode == 2
    assert process("range", path + "x", "s").returncode == 3


def test_rich_is_loaded_neither_by_raxlog_nor_by_a_command_that_draws_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, raxlog; from raxlog.tools.cli import main;"
        f"main(['add', {str(tmp_path / 's.rax')!r}, 's', 'a=1']); main(['info', {str(tmp_path / 's.rax')!r}]);"
        "sys.exit(any(name.split('.')[0] == 'rich' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
