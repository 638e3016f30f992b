"""Lines of CSV and of JSON that are cut out of a block: the records are those that the modules csv and json find."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import raxlog
from cli_runs import Run
from hypothesis import example, given, settings
from hypothesis import strategies as st
from raxlog.tools.cli.commands.entries.input_formats import Bad, Cut, Lines, Record, Rows, each, records

pytest_plugins = ["cli_fixtures"]


class OneByOne(Lines):
    """Lines of which none is cut out of a block."""

    def cut(self, rows: Cut | None, start: int) -> Rows | None:
        return None


class Pieces(io.RawIOBase):
    """A pipe that gives a few bytes at a time."""

    def __init__(self, content: bytes, size: int) -> None:
        self._content, self._size = io.BytesIO(content), size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._content.read(min(self._size, len(buffer)))
        buffer[: len(piece)] = piece
        return len(piece)


def read(kind: type[Lines], content: bytes, piece: int, given_format: str, **options: Any) -> tuple[Any, ...]:
    lines = kind(io.BufferedReader(Pieces(content, piece)), is_given=True)
    return list(each(records(given_format, lines, **options))), lines.number, lines.taken


def same(given_format: str, content: bytes, piece: int, **options: Any) -> list[Record | Bad]:
    found = read(Lines, content, piece, given_format, **options)
    assert found == read(OneByOne, content, piece, given_format, **options)
    assert all(type(half) is bytes for record in found[0] if not isinstance(record, Bad) for half in record[2])
    return found[0]  # type: ignore[no-any-return]


pieces = st.sampled_from([1, 7, 50, 1 << 20])
starts = st.integers(1, 5)
cells = st.sampled_from([b"", b"1", b"text", "ü".encode(), b"\xff", b"\0", b"  ", b"a'b", b'"q"', b'"a,b"', b'"a""b"',
                         b'"two\nlines"', b'"two\r\nlines"', b'""', b'""""', b'a"b', b'"a"b', b'"', b"\r", b"a\rb",
                         b'"\r"', b"$entry"])  # fmt: skip
ends = st.sampled_from([b"\n", b"\n", b"\r\n", b"\r\n", b"\n\n", b"\r\r\n", b"\r", b""])
csv_lines = st.tuples(st.sampled_from([b",", b",", b",", b";"]).flatmap(lambda comma: st.lists(
    cells, max_size=4).map(comma.join)), ends).map(b"".join)


heads = st.sampled_from([b"x\n", b"x,y\n", b"x,y\n", b"\n\r\r\nx,x\r\n", b"\xef\xbb\xbfx,$entry\r\n", b"$entry,x\n",
                         b'"two\nlines",y\n', b""])  # fmt: skip


@given(heads,
       st.lists(csv_lines, max_size=12), st.sampled_from([",", ";", "\t", "ü", " ", "a"]), starts, pieces)
@settings(max_examples=400, deadline=None)
@example(b"x,y\n", [b"1,2\n", b'"1","2"\r\n', b"1\n", b"1,2,3\n", b'1,"two\nlines"\n', b"5,6\r\n", b"7,8"], ",", 1, 7)
def test_rows_of_csv_are_those_that_the_csv_module_finds(head: bytes, rows: list[bytes], delimiter: str, start: int,
                                                         piece: int) -> None:
    same("csv", head + b"".join(rows), piece, delimiter=delimiter, start=start)


@given(st.text(st.sampled_from('ab,"\n\r'), max_size=30), pieces)
@settings(max_examples=400, deadline=None)
def test_any_text_is_read_as_csv_as_the_csv_module_reads_it(text: str, piece: int) -> None:
    same("csv", b"x,y\n" + text.encode(), piece)
    same("lines", text.encode(), piece)


texts = st.text(max_size=8) | st.text(st.sampled_from('"\\/\b\n\u2028\x7f'), max_size=4) | st.sampled_from(
    ["", "item", "$entry", "x" * 100])
plain = texts | st.none() | st.booleans() | st.integers() | st.floats()
anything = plain | st.lists(plain, max_size=2) | st.dictionaries(texts, plain, max_size=2) | st.just({"base64": "/w=="})
styles = st.sampled_from([(", ", ": "), (",", ":"), (" ,\t", "\r :  ")])


@st.composite
def json_lines(draw: st.DrawFn) -> bytes:
    row = draw(st.dictionaries(texts, draw(st.sampled_from([plain, plain, anything])), max_size=4))
    ascii_only, style, end = draw(st.booleans()), draw(styles), draw(st.sampled_from(["\n", "\r\n", " \n", "\n\n"]))
    return (json.dumps(row, ensure_ascii=ascii_only, separators=style) + end).encode("utf-8", "surrogatepass")


fragments = st.sampled_from([
    b"{", b"}", b'"', b'"a"', b'"b"', b":", b",", b" ", b"\t", b"\r", b"\n", b"\n", b'{"a": 1}\n', b'{"a": "x", "b": ',
    b"1", b"0", b"-", b"+", b".", b"e", b"E5", b"1.5", b"true", b"fals", b"false", b"null", b"NaN", b"-Infinity",
    b'"$entry"', b"\\", b"\\n", b"\\u00fc", b"\\ud800", b"\\udc80", b"\\x", b"\\u12", b"\xff", b"\xc3\xbc",
    b"\xed\xa0\x80", b"\0", b"\x1f", b"\x7f", b"\x0b", b"[", b"]", b'{"base64": "/w=="}',
])  # fmt: skip


@given(st.lists(json_lines() | st.lists(fragments, max_size=6).map(b"".join), max_size=12),
       st.sampled_from([b"", b"\xef\xbb\xbf"]), starts, pieces)
@settings(max_examples=400, deadline=None)
@example([b'{"a":"1","b":2}\n', b'{"a":"1","b":2.5e-3} \r\n', b'{}\n', b'{"a"}\n', b'{"a":1,}\n', b'{"a":01}\n',
          b'{"a":1}{"b":2}\n', b'{"a":"\\u00e4\\"","a":-0}\n', b'{"a":"\xff"}\n', b'{"\\n":tru}\n',
          b'{"a":1'], b"", 1, 7)
def test_lines_of_json_are_those_that_the_json_module_finds(lines: list[bytes], begin: bytes, start: int,
                                                            piece: int) -> None:
    content = begin + b"".join(lines)
    same("ndjson", content, piece, start=start)
    same("ndjson", content, piece, start=start, id_field="a")


@given(st.lists(fragments, max_size=8).map(b"".join), pieces)
@settings(max_examples=400, deadline=None)
def test_any_value_of_json_is_read_as_the_json_module_reads_it(value: bytes, piece: int) -> None:
    same("ndjson", b'{"a": ' + value + b'}\n{"a": "' + value + b'"}\n{"' + value + b'": 1}\n', piece)


@pytest.mark.parametrize(("kind", "line"), [
    ("lines", b"a,b\n"), ("csv", b"a,b\n"), ("csv", b'"a,""b""",\r\n'), ("ndjson", b'{"x": "a", "y": -1.5e3}\n'),
    ("ndjson", b'{"x": "\\u00fc", "y": null}\n'),
])  # fmt: skip
def test_usual_lines_are_cut_out_of_a_block(kind: str, line: bytes) -> None:
    """Or this would compare one way with itself."""

    class Counted(Lines):
        records = 0

        def cut(self, rows: Cut | None, start: int) -> Rows | None:
            found = super().cut(rows, start)
            self.records += len(found.flats) if found else 0
            return found

    lines = Counted(io.BufferedReader(io.BytesIO((b"x,y\n" if kind == "csv" else b"") + 10_000 * line)))
    assert len(list(each(records(kind, lines)))) == 10_000 == lines.records


@pytest.mark.parametrize("name", ["a.csv", "a.ndjson"])
def test_commits_have_as_many_entries_as_batch_says_wherever_a_block_ends(raxlog_cli: Run, name: str) -> None:
    rows = [{"x": str(number), "y": "x" * 300} for number in range(1000)]
    with open(name, "w") as file:
        if name == "a.csv":
            file.write("x,y\n")
        file.writelines(f"{row['x']},{row['y']}\n" if name == "a.csv" else json.dumps(row) + "\n" for row in rows)
        file.write('1,"2"3,4\n')  # not a record of either kind
    assert raxlog_cli("import", "s.rax", "orders", name, "--batch", "300")[0] == 2
    with raxlog.open(Path("s.rax")) as store:
        entries = [*store.stream("orders")]
    assert [entry.fields for entry in entries] == rows  # what comes before the bad line is committed
