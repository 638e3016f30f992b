"""import on the command line: every format, every bad line, and what an interruption leaves."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import json
import lzma
import os
import pty
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import forkserver
import pytest
import raxlog
import zstandard
from cli_runs import CLI, Run, entries, one_line, output, process, running
from raxlog.tools.cli.commands.entries import input_formats
from raxlog.tools.cli.commands.entries.import_file import Awaited

pytest_plugins = ["cli_fixtures"]

ODD = b"\xff\\a\tb\n=c"


def test_ndjson_keeps_numbers_bytes_and_nested_values_as_written(raxlog_cli: Run) -> None:
    Path("a.ndjson").write_text(
        '\ufeff{"n": 1.10, "big": 12345678901234567890, "t": true, "x": null, "l": [1.50, {"k": "ü"}]}\n\n'
        '{"b": {"base64": "/w=="}, "a": 1, "a": 2}\n'
    )
    status, out, _ = raxlog_cli("import", "s.rax", "orders", "a.ndjson", "--json")
    told = json.loads(out)
    assert (status, told["imported"], told["format"], told["ok"]) == (0, 2, "ndjson", True)
    assert [told["first_id"], told["last_id"]] == [sid for sid, _ in entries("s.rax")]
    assert [pairs for _, pairs in entries("s.rax")] == [
        [(b"n", b"1.10"), (b"big", b"12345678901234567890"), (b"t", b"true"), (b"x", b"null"),
         (b"l", '[1.50, {"k": "ü"}]'.encode())],
        [(b"b", b"\xff"), (b"a", b"1"), (b"a", b"2")],
    ]  # fmt: skip


def test_csv_takes_names_from_its_header_and_ids_from_a_field(raxlog_cli: Run) -> None:
    Path("a.csv").write_bytes(b'id,item,note\r\n5-1,b\xff,"two\nlines"\r\n6-*,"pe""n",\r\n6-*,c,d\r\n')
    assert raxlog_cli("import", "s.rax", "orders", "a.csv", "--id-field", "id")[0] == 0
    assert entries("s.rax") == [
        ("5-1", [(b"item", b"b\xff"), (b"note", b"two\nlines")]),
        ("6-0", [(b"item", b'pe"n'), (b"note", b"")]),
        ("6-1", [(b"item", b"c"), (b"note", b"d")]),
    ]


def test_plain_lines_come_from_standard_input(tmp_path: Path) -> None:
    done = process("import", str(tmp_path / "s.rax"), "log", "--field", "text", stdin=b"one\r\n\ntw\xffo")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"3 entries from standard input (lines)" in done.stdout
    kept = [pairs for _, pairs in entries(tmp_path / "s.rax", "log")]
    assert kept == [[(b"text", b"one")], [(b"text", b"")], [(b"text", b"tw\xffo")]]


def test_what_range_prints_as_json_is_imported_byte_for_byte(raxlog_cli: Run, tmp_path: Path) -> None:
    with raxlog.open("a.rax") as store:
        store.stream("orders").append([(ODD, "x"), ("x", ODD), ("x", "")], id="1-1")
        store.stream("orders").append({"a": 'quo"te', "é": "\u2028"}, id="7-3")
    Path("dump").write_text(raxlog_cli("range", "a.rax", "orders", "--json")[1])
    assert raxlog_cli("import", "b.rax", "orders", "dump", "--format", "entries")[0] == 0
    assert entries("b.rax") == entries("a.rax")


@pytest.mark.parametrize(("name", "start", "expected"), [
    ("a.jsonl", b"", "ndjson"), ("a.csv", b"", "csv"), ("a.TSV", b"", "csv"), ("a.log", b"{}", "lines"),
    ("-", b'{"a": 1}\n', "ndjson"), ("-", b"a,b\n1,2\n", "csv"), ("-", b"a,b\n1,2,3\n", "lines"),
    ("-", b"plain\ntext\n", "lines"), ("-", b"", "lines"), ("a.parquet", b"", "parquet"), ("a.ipc", b"x", "arrow"),
    ("a.csv", b"PAR1\x15\4", "parquet"), ("-", b"ARROW1\0\0", "arrow"), ("-", b"\xff\xff\xff\xff\0", "arrow"),
    ("-", b"a,b\n", "lines"), ("-", b"\xff,a\n1,2", "lines"),
])  # fmt: skip
def test_the_format_is_guessed_from_name_or_first_bytes(
    tmp_path: Path, name: str, start: bytes, expected: str
) -> None:
    (tmp_path / "x").write_bytes(start)
    with open(tmp_path / "x", "rb") as file:
        assert input_formats.guess(name, file) == expected
        assert file.read() == start


@pytest.mark.parametrize(("name", "content", "line", "what"), [
    ("a.ndjson", '{"n": 1}\n{"n": 2}\n{"n": \n{"n": 4}\n', 3, "no JSON"),
    ("a.ndjson", '{"n": 1}\n{"n": 2}\n[3]\n{"n": 4}\n', 3, "one JSON object"),
    ("a.ndjson", '{"n": 1}\n{"n": 2}\n{}\n{"n": 4}\n', 3, "at least one"),
    ("a.ndjson", '{"n": 1}\n{"n": 2}\n{"n": "\\ud800"}\n{"n": 4}\n', 3, "UTF-8"),
    ("a.ndjson", '{"n": 1}\n{"n": 2}\n{"n": {"base64": "?"}}\n{"n": 4}\n', 3, "base64"),
    ("a.ndjson", '{"n": 1}\n{"n": 2}\n' + "[" * 100_000 + '\n{"n": 4}\n', 3, "nested"),
    ("a.csv", "n,m\n1,1\n2,2\n3\n4,4\n", 4, "1 columns where the header has 2"),
    ("a.csv", 'n,m\n1,1\n2,2\n"3"x,3\n4,4\n', 4, "no CSV"),
])  # fmt: skip
def test_a_bad_line_is_named_and_the_import_goes_on_from_it(
    raxlog_cli: Run, name: str, content: str, line: int, what: str
) -> None:
    Path(name).write_text(content)
    status, out, err = raxlog_cli("import", "s.rax", "orders", name)
    assert (status, out) == (2, "")
    assert f"{name}:{line}: " in one_line(err)
    assert what in err
    assert f"2 entries are durable, go on with --from-line {line}" in err
    assert len(entries("s.rax")) == 2
    again = raxlog_cli("import", "s.rax", "orders", name, "--from-line", str(line), "--skip-bad", "--json")
    told = json.loads(again[1])
    assert (again[0], told["imported"], told["skipped"], told["next_line"]) == (0, 1, 1, line + 2)
    assert [pairs[0][1] for _, pairs in entries("s.rax")] == [b"1", b"2", b"4"]


def test_a_first_line_that_is_bad_creates_no_store(raxlog_cli: Run) -> None:
    Path("a.ndjson").write_text("no\n")
    status, _, err = raxlog_cli("import", "s.rax", "orders", "a.ndjson")
    assert status == 2
    assert "a.ndjson:1: " in one_line(err)
    assert not Path("s.rax").exists()
    assert raxlog_cli("import", "s.rax", "orders", "a.ndjson", "--skip-bad")[0] == 1


def test_an_id_that_is_wrong_missing_or_not_greater_is_a_bad_line(raxlog_cli: Run, orders: str) -> None:
    Path("a.csv").write_text("id,n\n4-1,4\n4-1,5\nx,6\n0-0,7\n2-5,8\n9-9,9\n")
    status, _, err = raxlog_cli("import", orders, "orders", "a.csv", "--id-field", "id")
    assert status == 2
    assert "a.csv:3: the ID 4-1 is not greater than the one before, 4-1" in one_line(err)
    assert [sid for sid, _ in entries(orders)][3:] == ["4-1"]
    _, out, _ = raxlog_cli("import", orders, "orders", "a.csv", "--id-field", "id", "--skip-bad", "--json")
    assert json.loads(out)["skipped"] == 5
    assert [sid for sid, _ in entries(orders)][3:] == ["4-1", "9-9"]
    assert "no fields 'when'" in raxlog_cli("import", orders, "orders", "a.csv", "--id-field", "when")[2]


def test_batches_of_any_size_import_the_same(raxlog_cli: Run) -> None:
    Path("a.txt").write_text("".join(f"line {number}\n" for number in range(2500)))
    for batch in ("1000", "7", "9999"):
        assert raxlog_cli("import", "s.rax", batch, "a.txt", "--batch", batch)[0] == 0
        kept = [pairs for _, pairs in entries("s.rax", batch)]
        assert kept == [[(b"line", b"line %d" % number)] for number in range(2500)]


def test_ctrl_c_keeps_what_was_imported_and_tells_from_where_to_go_on(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"
    with running("import", str(path), "log", "-", "--format", "lines", "--batch", "10", "--json") as importing:
        assert importing.stdin is not None
        importing.stdin.write(b"".join(b"%d\n" % number for number in range(25)))
        importing.stdin.flush()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not (path.exists() and len(entries(path, "log")) == 20):
            time.sleep(0.02)
        importing.send_signal(signal.SIGINT)
        # Standard input stays open: it is Ctrl-C that ends the import, not the end of its input.
        assert importing.wait(10) == 130
        assert importing.stderr is not None
        told, err = json.loads(output(importing).read()), importing.stderr.read()
    assert one_line(err) == "raxlog: interrupted; 20 entries are durable, go on with --from-line 21\n"
    assert (told["imported"], told["next_line"], told["ok"]) == (20, 21, False)
    assert [pairs[0][1] for _, pairs in entries(path, "log")] == [b"%d" % number for number in range(20)]


def test_ctrl_c_that_comes_just_before_a_read_of_a_pipe_ends_it() -> None:
    # A signal some microseconds before read(2) does not end it, and read(2) may last for ever: one of 25 of these.
    generator = random.Random(seed := random.randrange(1 << 32))
    print(f"seed {seed}")
    late: list[int] = []
    ours, theirs = os.pipe()

    def end_the_read(number: int) -> None:
        late.append(number)
        os.write(theirs, b"\n")

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with open(ours, "rb", buffering=0) as pipe, open(theirs, "wb", buffering=0):
            reader = io.BufferedReader(Awaited(pipe))
            for number in range(300):
                rescue = threading.Timer(10, end_the_read, [number])
                rescue.start()
                with contextlib.suppress(KeyboardInterrupt):
                    signal.setitimer(signal.ITIMER_REAL, generator.uniform(1e-6, 40e-6))
                    reader.readline()
                rescue.cancel()
                rescue.join()
                assert late == []
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_progress_bar_is_drawn_on_a_terminal_only(tmp_path: Path) -> None:
    tmp_path /= "a" * 100  # a long path leaves room for the figures
    tmp_path.mkdir()
    (tmp_path / "a.txt").write_text("line\n" * 3000)
    ours, theirs = pty.openpty()
    done = forkserver.run([*CLI, "import", str(tmp_path / "s.rax"), "log", str(tmp_path / "a.txt")],
                          stdout=subprocess.PIPE, stderr=theirs, timeout=60, check=True,
                          env=os.environ | {"TERM": "xterm", "COLUMNS": "120"})  # fmt: skip
    os.close(theirs)
    drawn = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "entries" in drawn
    assert "100%" in drawn
    assert done.stdout.startswith(b"3,000 entries from ")


@pytest.mark.parametrize(("name", "written", "kind"), [
    ("a.csv", lambda text: gzip.compress(gzip.compress(text)), "gzip"),
    ("a.ndjson", lambda text: gzip.compress(zstandard.compress(text)), "zstd"),
    ("a.txt", lambda text: bz2.compress(text, 1), "bzip2"),
    ("a", lzma.compress, "xz"),
    ("a.csv", lambda text: text.decode().encode("utf-16"), "UTF-16"),
    ("a.csv", lambda text: b"\xfe\xff" + text.decode().encode("utf-16-be"), "UTF-16"),
    ("a.log", lambda text: text.decode().encode("utf-16-le"), "binary"),
    ("a.txt", lambda text: text.decode().encode("utf-32"), "UTF-32"),
    ("a", lambda text: "日本語\n".encode("utf-16-le"), "binary"),
    ("a.csv", lambda text: "é,à\n1,2\n".encode("latin-1") + b"\0" * 9, "binary"),
    ("a", lambda text: b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + text, "binary"),
    ("a", lambda text: b"\x7fELF\x02\x01\x01\0\0\0" + text, "binary"),
], ids=["gzip", "zstd", "bzip2", "xz", "utf-16", "utf-16-be", "utf-16 bare", "utf-32",
        "utf-16 of one plane", "zero bytes in a later line", "png", "elf"])
def test_what_is_no_text_is_named_and_nothing_is_imported(
    raxlog_cli: Run, name: str, written: Callable[[bytes], bytes], kind: str
) -> None:
    Path(name).write_bytes(written(b"item,qty\nbook,2\npen,1\n"))
    status, out, err = raxlog_cli("import", "s.rax", "orders", name)
    assert (status, out, Path("s.rax").exists()) == (2, "", False)
    assert f"{name} is {kind}, not text" in err
    assert "nothing has been imported" in err
    status, out, _ = raxlog_cli("import", "s.rax", "orders", name, "--skip-bad")
    assert (status, out, Path("s.rax").exists()) == (2, "", False)
    piped = process("import", "s.rax", "orders", stdin=Path(name).read_bytes())
    assert (piped.returncode, piped.stdout, Path("s.rax").exists()) == (2, b"", False)
    assert f"standard input is {kind}, not text".encode() in piped.stderr


def test_lines_with_zero_bytes_are_entries_where_the_format_is_given(raxlog_cli: Run) -> None:
    Path("a.log").write_bytes(b"one\0two\nthree\n")
    assert raxlog_cli("import", "s.rax", "orders", "a.log", "--format", "lines")[0] == 0
    assert [pairs for _, pairs in entries("s.rax")] == [[(b"line", b"one\0two")], [(b"line", b"three")]]


TEXT = b"".join(b'{"n": %d, "t": "%s"}\n' % (number, b"y" * (number % 40)) for number in range(20_000))


@pytest.mark.parametrize(("name", "packed"), [
    ("a.ndjson.gz", gzip.compress(TEXT)),
    ("a.jsonl.zst", zstandard.compress(TEXT)),
    ("a", gzip.compress(TEXT[:999]) + gzip.compress(TEXT[999:]) + bytes(512)),
    ("a.json", zstandard.compress(TEXT[:999]) + zstandard.compress(TEXT[999:])),
], ids=["gzip", "zstd", "gzip of several and zeros", "zstd of several"])
def test_packed_text_is_unpacked_from_a_file_and_from_a_pipe(raxlog_cli: Run, name: str, packed: bytes) -> None:
    Path(name).write_bytes(packed)
    status, out, _ = raxlog_cli("import", "s.rax", "orders", name, "--json")
    told = json.loads(out)
    assert (status, told["imported"], told["format"], told["next_line"]) == (0, 20_000, "ndjson", 20_001)
    assert [pairs[0][1] for _, pairs in entries("s.rax")] == [b"%d" % number for number in range(20_000)]
    assert process("import", "s.rax", "piped", "--from-line", "19001", stdin=packed).returncode == 0
    assert [pairs for _, pairs in entries("s.rax", "piped")] == [pairs for _, pairs in entries("s.rax")][19_000:]


def test_the_name_of_a_packed_file_says_its_format_and_its_delimiter(raxlog_cli: Run) -> None:
    Path("a.tsv.zst").write_bytes(zstandard.compress(b"a\tb\n1\t2,3\n"))
    Path("a.log.GZ").write_bytes(gzip.compress(b"{}\n"))
    assert raxlog_cli("import", "s.rax", "orders", "a.tsv.zst")[0] == 0
    assert raxlog_cli("import", "s.rax", "orders", "a.log.GZ")[0] == 0
    assert [pairs for _, pairs in entries("s.rax")] == [[(b"a", b"1"), (b"b", b"2,3")], [(b"line", b"{}")]]


@pytest.mark.parametrize(("name", "pack"), [("a.ndjson.gz", gzip.compress), ("a.ndjson.zst", zstandard.compress)])
def test_packed_text_that_is_cut_off_or_damaged_is_no_end(
    raxlog_cli: Run, name: str, pack: Callable[[bytes], bytes]
) -> None:
    whole = pack(TEXT)
    for number, packed in enumerate((whole[:-3], whole[: len(whole) // 2], whole + b"\1\2\3")):
        Path(name).write_bytes(packed)
        status, out, err = raxlog_cli("import", "s.rax", f"s{number}", name, "--batch", "100")
        assert (status, out, f"{name} cannot be read as " in one_line(err)) == (2, "", True)
        kept = entries("s.rax", f"s{number}")
        assert f"{len(kept):,} entries are durable, go on with --from-line {len(kept) + 1}" in err
        assert [pairs[0][1] for _, pairs in kept] == [b"%d" % line for line in range(len(kept))]
    Path(name).write_bytes(whole[:6])
    assert raxlog_cli("import", "new.rax", "orders", name)[0] == 2
    assert not Path("new.rax").exists()


def test_a_line_that_unpacks_to_megabytes_is_one_entry(raxlog_cli: Run) -> None:
    Path("a.txt.gz").write_bytes(gzip.compress(b"a" * 20_000_000 + b"\nb\n"))
    assert raxlog_cli("import", "s.rax", "orders", "a.txt.gz")[0] == 0
    assert [len(pairs[0][1]) for _, pairs in entries("s.rax")] == [20_000_000, 1]


def test_lines_that_are_unusual_are_read_as_those_around_them(raxlog_cli: Run) -> None:
    Path("a.ndjson").write_bytes(
        b'{"a": "1", "b": 2.50}\n \t{"a": "x", "b": true} \r\n\n{"a": null, "b": NaN}\n'
        b'{"a": "\\udc80", "b": {"c": [1.0]}}\n'
        b'{"$entry": "{}", "b": 1}\n{"a": "\xc3\xa9", "a": 1E5}')
    assert raxlog_cli("import", "s.rax", "orders", "a.ndjson")[0] == 0
    assert [pairs for _, pairs in entries("s.rax")] == [
        [(b"a", b"1"), (b"b", b"2.50")], [(b"a", b"x"), (b"b", b"true")], [(b"a", b"null"), (b"b", b"NaN")],
        [(b"a", b"\x80"), (b"b", b'{"c": [1.0]}')], [(b"$entry", b"{}"), (b"b", b"1")],
        [(b"a", b"\xc3\xa9"), (b"a", b"1E5")],
    ]
