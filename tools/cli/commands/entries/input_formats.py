"""The formats an import reads: bytes in, one record for each entry out.

    ndjson     {"item": "book", "qty": 2}        a line is an object; numbers stay as written
    csv        item,qty <newline> book,2         the first row names the fields
    lines      any text                          a line is an entry with one field
    entries    {"id": "5-1", "fields": {…}}      what 'raxlog range --json' prints
    parquet, arrow                               a row is an entry: tables.py

A reader yields a Record, Rows of many at once, or a Bad for what is none, and continues after it. A CSV record
with line breaks in quotes spans several lines: a Record has the number of its last, after which an import can
go on, and a Bad its first, where one looks for what is wrong.

Most lines are cut out of a block of them by text_rows.py. One that it cannot take is read here, by the modules csv
and json, which find what is wrong, and keep what is unusual as it was written.
"""

from __future__ import annotations

import base64
import binascii
import csv
import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeAlias

from .....storage.errors import InvalidFields
from .....stream.node.entry import MAX_ELEMENTS, OWN_FIELD, as_bytes
from .....stream.node.stream_id import StreamID
from ...status import USAGE, CommandError
from .text_rows import csv_rows, json_rows, plain_rows

FORMATS = ("ndjson", "csv", "lines", "entries", "parquet", "arrow")
TABLES = PARQUET, ARROW = FORMATS[-2:]
_BY_SUFFIX = {
    ".ndjson": "ndjson", ".jsonl": "ndjson", ".json": "ndjson", ".csv": "csv", ".tsv": "csv",
    ".txt": "lines", ".log": "lines", ".parquet": PARQUET, ".pq": PARQUET,
    ".arrow": ARROW, ".arrows": ARROW, ".ipc": ARROW, ".feather": ARROW,
}  # fmt: skip
_TABLE_BEGINS = {b"PAR1\x15": PARQUET, b"ARROW1\0\0": ARROW, b"\xff\xff\xff\xff": ARROW}  # the last one of a stream
_PEEK = 64 << 10
_LARGEST = MAX_ELEMENTS // 2  # bytes of a block, and of the names of CSV: then each of its entries can be stored
_BOM = b"\xef\xbb\xbf"
_RECODE, _TABLE = "iconv -t UTF-8", "write it as CSV, NDJSON or Parquet first"
_WRONG_FORMAT = "leave --format out, and unpack it if it is in another file"
_BINARY = (  # how a file begins, what it is, what makes text of it
    (b"\xff\xfe\0\0", "UTF-32", _RECODE), (b"\0\0\xfe\xff", "UTF-32", _RECODE), (b"\xff\xfe", "UTF-16", _RECODE),
    (b"\xfe\xff", "UTF-16", _RECODE), (b"\x1f\x8b", "gzip", "gzip -dc"), (b"\x28\xb5\x2f\xfd", "zstd", "zstd -dc"),
    *((b"BZh%d1AY&SY" % n, "bzip2", "bzip2 -dc") for n in range(1, 10)), (b"\xfd7zXZ\0", "xz", "xz -dc"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -dc"), (b"PK\3\4", "a zip archive", "unzip -p"),
    *((begin, kind.title(), _WRONG_FORMAT) for begin, kind in _TABLE_BEGINS.items()),
    (b"FEA1", "Feather", _TABLE), (b"ORC\x0a", "ORC", _TABLE), (b"Obj\1", "Avro", _TABLE),
    (b"SQLite format 3\0", "a SQLite database", "sqlite3 -csv -header"),
    (b"REDIS0", "a dump of Redis", "give it with --rdb"), (b"%PDF-", "PDF", "write its text into a file first"),
)  # fmt: skip

# An entry to be: the last line it was read from, its ID if it has one, its fields as name, value, name, value …
# A plain tuple: one of a class of its own would take as long to make as the entry takes to be stored.
Record: TypeAlias = tuple[int, StreamID | str | None, list[bytes]]


class Rows(NamedTuple):
    """The fields of entries without IDs, all of which can be stored, and the number of the last line of each."""

    flats: list[list[bytes]]
    numbers: list[int]


Cut: TypeAlias = Callable[[bytes, int, int, list[list[bytes]], list[int]], int]  # of text_rows.py


class Bad(NamedTuple):
    """Lines that are not an entry: the first one, and what is wrong."""

    line: int
    what: str


class Lines:
    """The lines of a file of text, counted: ``number`` of them and ``taken`` bytes have been given out so far.

    ``packed`` is the file that ``file`` is unpacked from, if it is. CommandError at the first line where the file is
    no text: it begins like one of a known kind or, unless the format ``is_given``, what it begins with has a zero byte.
    """

    def __init__(self, file: io.BufferedReader, name: str = "the input", is_given: bool = False,
                 packed: io.BufferedReader | None = None) -> None:
        self._file = file
        self._packed = packed
        self._name = name
        self._is_given = is_given
        self._block: bytes | None = None  # whole lines, read at once
        self._at = 0  # where in it the next line begins
        self.number: int = 0
        self.taken: int = 0
        self.id_hint: str = ""

    @property
    def position(self) -> int:
        """How much of the file has been read."""
        return self.taken if self._packed is None or not self._packed.seekable() else self._packed.tell()

    def __iter__(self) -> Iterator[bytes]:
        while block := self._some():
            end = block.find(b"\n", self._at) + 1 or len(block)
            line = block[self._at : end]
            self._pass(1, end)
            yield line

    def cut(self, rows: Cut | None, start: int) -> Rows | None:
        """What ``rows`` makes of the next lines, which are passed over then; None for nothing, and before ``start``."""
        if rows is None or self.number + 1 < start or not 0 < len(block := self._some()) <= _LARGEST:
            return None
        found = Rows([], [])
        end = rows(block, self._at, self.number + 1, *found)
        if not found.flats:
            return None
        self._pass(found.numbers[-1] - self.number, end)
        return found

    def _pass(self, lines: int, end: int) -> None:
        self.number += lines
        self.taken += end - self._at
        self._at = end

    def _some(self) -> bytes:
        """A block with a line that has not been given out; empty at the end of the file."""
        if self._block is None:
            self._require_text(self._file.peek(_PEEK)[:_PEEK])
        elif self._at < len(self._block) or not self._block:
            return self._block
        block = self._file.read1(_PEEK)
        if block and not block.endswith(b"\n"):
            block += self._file.readline()
        self._block, self._at = block.removeprefix(_BOM) if self._block is None else block, 0
        return self._block

    def _require_text(self, begin: bytes) -> None:
        kind, remedy = next((found for start, *found in _BINARY if begin.startswith(start)), ("", ""))
        if not kind and b"\0" in begin and not self._is_given:
            kind, remedy = "binary", "give --format if its lines are entries all the same"
        if kind:
            raise CommandError(f"{self._name} is {kind}, not text: {remedy}; nothing has been imported", USAGE)


def guess(name: str, file: io.BufferedReader) -> str:
    """The format of a file, by its name's suffix, else by its first bytes, which stay unread.

    Those of a table come before the name.
    """
    start = file.peek(_PEEK)[:_PEEK].removeprefix(_BOM)
    for begin, kind in _TABLE_BEGINS.items():
        if start.startswith(begin):
            return kind
    for suffix, known in _BY_SUFFIX.items():
        if name.lower().endswith(suffix):
            return known
    head = [line for line in start.splitlines()[:2] if line.strip()]
    if head and head[0].lstrip().startswith(b"{"):
        return "ndjson"
    if len(head) == 2:
        try:
            names, values = list(csv.reader([line.decode() for line in head], strict=True))
        except (csv.Error, UnicodeDecodeError, ValueError):
            return "lines"
        if 1 < len(names) == len(values) and all(name.strip() for name in names):
            return "csv"
    return "lines"


def records(kind: str, lines: Lines, *, field: str = "line", delimiter: str = ",", start: int = 1,
            id_field: str | None = None) -> Iterator[Rows | Record | Bad]:
    """The records of a file in the format ``kind``, from line ``start`` on.

    ``field`` names the field of plain lines, ``delimiter`` separates the columns of CSV (whose
    header is always the first line). ``id_field`` is the field to take as the entry's ID.
    """
    found: Iterator[Rows | Record | Bad]
    if kind == "csv":
        found = _csv(lines, delimiter, start)
    elif kind == "lines":
        found = _plain_lines(lines, field, start)
    else:
        found = _json_lines(lines, start, whole_entries=kind == "entries")
    return found if id_field is None else _with_ids(each(found), id_field.encode("utf-8", "surrogateescape"))


def each(found: Iterator[Rows | Record | Bad]) -> Iterator[Record | Bad]:
    """The same, with a record for each entry."""
    for some in found:
        if isinstance(some, Rows):
            for flat, line in zip(*some, strict=True):
                yield line, None, flat
        else:
            yield some


def _plain_lines(lines: Lines, field: str, start: int) -> Iterator[Rows | Record | Bad]:
    name = field.encode("utf-8", "surrogateescape")
    given = iter(lines)
    rows = None if name == OWN_FIELD else partial(plain_rows, name)
    while True:
        if found := lines.cut(rows, start):
            yield found
        elif not (line := next(given, b"")):
            return
        elif lines.number >= start:
            yield lines.number, None, [name, line.removesuffix(b"\n").removesuffix(b"\r")]


def _csv(lines: Lines, delimiter: str, start: int) -> Iterator[Rows | Record | Bad]:
    csv.field_size_limit(1 << 30)
    given = iter(lines)
    ahead: list[bytes] = []  # a line for the csv module, which takes more where its record goes on

    def texts() -> Iterator[str]:  # for the csv module, and back to the same bytes in any encoding
        while (line := ahead.pop() if ahead else next(given, None)) is not None:
            yield line.decode("utf-8", "surrogateescape")

    reader = csv.reader(texts(), delimiter=delimiter, strict=True)
    comma = delimiter.encode()
    names: list[bytes] = []
    rows: partial[int] | None = None
    while True:
        if found := lines.cut(rows, start):
            yield found
            continue
        if not (line := next(given, b"")):
            return
        first = lines.number
        if not line.removesuffix(b"\n").removesuffix(b"\r"):
            continue
        ahead.append(line)
        try:
            cells = [cell.encode("utf-8", "surrogateescape") for cell in next(reader)]
        except csv.Error as error:
            yield Bad(first, f"no CSV: {error}")
            continue
        if not names:
            names = cells
            if len(comma) == 1 and names and names[0] != OWN_FIELD and sum(map(len, names)) <= _LARGEST:
                rows = partial(csv_rows, names, comma[0])
        elif first < start:
            continue
        elif len(cells) != len(names):
            yield Bad(first, f"{len(cells)} columns where the header has {len(names)}")
        else:
            yield lines.number, None, [half for pair in zip(names, cells, strict=True) for half in pair]


class _Number(str):
    """A JSON number, as it was written."""

    __slots__ = ()


# Objects come as tuples of pairs: duplicate names are kept, and lists differ from objects.
_decoder = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_Number, object_pairs_hook=tuple)


def _json_lines(lines: Lines, start: int, whole_entries: bool) -> Iterator[Rows | Record | Bad]:
    given = iter(lines)
    rows = None if whole_entries else json_rows
    while True:
        if found := lines.cut(rows, start):
            yield found
        elif not (line := next(given, b"")):
            return
        elif lines.number >= start and line.strip():
            yield _json_line(line, lines.number, whole_entries)


def _json_line(line: bytes, number: int, whole_entry: bool) -> Record | Bad:
    try:
        value = _decoder.decode(line.decode())
        sid, fields = _whole_entry(value) if whole_entry else (None, value)
        if type(fields) is not tuple:
            raise ValueError("a line must be one JSON object, with the fields of one entry")
        if not fields:
            raise ValueError("the object has no fields; an entry needs at least one")
        halves = ((half, name, role) for name, held in fields for half, role in ((name, "name"), (held, "value")))
        return number, sid, [as_bytes(_value(half), name, role) for half, name, role in halves]
    except json.JSONDecodeError as error:
        return Bad(number, f"no JSON: {error.msg} (column {error.colno})")
    except UnicodeDecodeError as error:
        return Bad(number, f"no UTF-8: {error.reason} (byte {error.start + 1})")
    except RecursionError:
        return Bad(number, "JSON nested too deeply")
    except (ValueError, InvalidFields) as error:
        return Bad(number, str(error))


def _whole_entry(value: object) -> tuple[str, object]:
    parts = dict(value) if type(value) is tuple else {}
    sid, fields = parts.get("id"), parts.get("fields")
    if parts.keys() - {"time"} != {"id", "fields"} or not isinstance(sid, str):
        raise ValueError('a line must be {"id": "ms-seq", "fields": …}, as \'raxlog range --json\' prints it')
    if type(fields) is list:
        if not all(type(pair) is list and len(pair) == 2 for pair in fields):
            raise ValueError("fields must be an object, or a list of [name, value]")
        fields = tuple(map(tuple, fields))
    return sid, fields


def _value(value: object) -> str | bytes:
    """What is stored for a JSON value: text itself, bytes of {"base64": …}, else its JSON text."""
    if isinstance(value, str):
        return value
    if type(value) is tuple and len(value) == 1 and value[0][0] == "base64" and type(value[0][1]) is str:
        try:
            return base64.b64decode(value[0][1], validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"no base64: {error}") from None
    return _json_text(value)


def _json_text(value: object) -> str:
    if type(value) is _Number:
        return value
    if type(value) is tuple:
        return "{" + ", ".join(f"{json.dumps(k, ensure_ascii=False)}: {_json_text(v)}" for k, v in value) + "}"
    if type(value) is list:
        return "[" + ", ".join(map(_json_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _with_ids(found: Iterator[Record | Bad], id_field: bytes) -> Iterator[Record | Bad]:
    text = id_field.decode("utf-8", "surrogateescape")
    for record in found:
        if isinstance(record, Bad):
            yield record
            continue
        line, _, flat = record
        names = flat[::2]
        if (count := names.count(id_field)) != 1:
            yield Bad(line, f"{count or 'no'} fields {text!r} to take the ID from")
        elif len(names) == 1:
            yield Bad(line, f"no field beside {text!r}; an entry needs at least one")
        else:
            at = 2 * names.index(id_field)
            sid = flat[at + 1].decode("ascii", "backslashreplace")
            del flat[at : at + 2]
            yield line, sid, flat
