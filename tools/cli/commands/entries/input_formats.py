"""The formats an import reads: bytes in, one record for each entry out.

    ndjson     {"item": "book", "qty": 2}        a line is an object; numbers stay as written
    csv        item,qty <newline> book,2         the first row names the fields
    lines      any text                          a line is an entry with one field
    entries    {"id": "5-1", "fields": {…}}      what 'raxlog range --json' prints

A reader yields a Record, or a Bad for what is none, and continues after it. A CSV record with
line breaks in quotes spans several lines: a Record has the number of its last, after which an import can
go on, and a Bad its first, where one looks for what is wrong.
"""

from __future__ import annotations

import base64
import binascii
import csv
import io
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from ...status import USAGE, CommandError

FORMATS = ("ndjson", "csv", "lines", "entries")
_BY_SUFFIX = {
    ".ndjson": "ndjson", ".jsonl": "ndjson", ".json": "ndjson", ".csv": "csv", ".tsv": "csv",
    ".txt": "lines", ".log": "lines",
}  # fmt: skip
_PEEK = 64 << 10
_BOM = b"\xef\xbb\xbf"
_RECODE, _TABLE = "iconv -t UTF-8", "write it as CSV or NDJSON first"
_BINARY = (  # how a file begins, what it is, what makes text of it
    (b"\xff\xfe\0\0", "UTF-32", _RECODE), (b"\0\0\xfe\xff", "UTF-32", _RECODE), (b"\xff\xfe", "UTF-16", _RECODE),
    (b"\xfe\xff", "UTF-16", _RECODE), (b"\x1f\x8b", "gzip", "gzip -dc"), (b"\x28\xb5\x2f\xfd", "zstd", "zstd -dc"),
    *((b"BZh%d1AY&SY" % n, "bzip2", "bzip2 -dc") for n in range(1, 10)), (b"\xfd7zXZ\0", "xz", "xz -dc"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -dc"), (b"PK\3\4", "a zip archive", "unzip -p"),
    (b"PAR1\x15", "Parquet", _TABLE), (b"ARROW1\0\0", "Arrow", _TABLE), (b"\xff\xff\xff\xff", "Arrow", _TABLE),
    (b"FEA1", "Feather", _TABLE), (b"ORC\x0a", "ORC", _TABLE), (b"Obj\1", "Avro", _TABLE),
    (b"SQLite format 3\0", "a SQLite database", "sqlite3 -csv -header"),
    (b"REDIS0", "a dump of Redis", "give it with --rdb"), (b"%PDF-", "PDF", "write its text into a file first"),
)  # fmt: skip

Pairs = list[tuple[Any, Any]]


class Record(NamedTuple):
    """An entry to be: the last line it was read from, its ID if it has one, its fields."""

    line: int
    id: str | None
    pairs: Pairs


class Bad(NamedTuple):
    """Lines that are not an entry: the first one, and what is wrong."""

    line: int
    what: str


class Lines:
    """The lines of a file of text, counted: ``number`` and ``bytes`` are those given out so far.

    CommandError at the first where the file is no text: it begins like one of a known kind or, unless the format
    ``is_given``, what it begins with has a zero byte.
    """

    def __init__(self, file: io.BufferedReader, name: str = "the input", is_given: bool = False) -> None:
        self._file = file
        self._name = name
        self._is_given = is_given
        self.number: int = 0
        self.bytes: int = 0

    def __iter__(self) -> Iterator[bytes]:
        self._require_text(self._file.peek(_PEEK)[:_PEEK])
        for line in self._file:
            self.number += 1
            self.bytes += len(line)
            yield line.removeprefix(_BOM) if self.number == 1 else line

    def _require_text(self, begin: bytes) -> None:
        kind, remedy = next((found for start, *found in _BINARY if begin.startswith(start)), ("", ""))
        if not kind and b"\0" in begin and not self._is_given:
            kind, remedy = "binary", "give --format if its lines are entries all the same"
        if kind:
            raise CommandError(f"{self._name} is {kind}, not text: {remedy}; nothing has been imported", USAGE)


def guess(name: str, file: io.BufferedReader) -> str:
    """The format of a file, by its name's suffix, else by its first bytes, which stay unread."""
    for suffix, known in _BY_SUFFIX.items():
        if name.lower().endswith(suffix):
            return known
    start = file.peek(_PEEK)[:_PEEK].removeprefix(_BOM)
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
            id_field: str | None = None) -> Iterator[Record | Bad]:
    """The records of a file in the format ``kind``, from line ``start`` on.

    ``field`` names the field of plain lines, ``delimiter`` separates the columns of CSV (whose
    header is always the first line). ``id_field`` is the field to take as the entry's ID.
    """
    if kind == "csv":
        found = _csv(lines, delimiter, start)
    elif kind == "lines":
        found = _plain_lines(lines, field, start)
    else:
        found = _json_lines(lines, start, whole_entries=kind == "entries")
    return found if id_field is None else _with_ids(found, id_field.encode("utf-8", "surrogateescape"))


def _plain_lines(lines: Lines, field: str, start: int) -> Iterator[Record | Bad]:
    name = field.encode("utf-8", "surrogateescape")
    for line in lines:
        if lines.number >= start:
            yield Record(lines.number, None, [(name, line.removesuffix(b"\n").removesuffix(b"\r"))])


def _csv(lines: Lines, delimiter: str, start: int) -> Iterator[Record | Bad]:
    # As text for the csv module, and back to the same bytes in any encoding.
    csv.field_size_limit(1 << 30)
    texts = (line.decode("utf-8", "surrogateescape") for line in lines)
    reader = csv.reader(texts, delimiter=delimiter, strict=True)
    names: list[bytes] | None = None
    while True:
        first = lines.number + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Bad(first, f"no CSV: {error}")
            continue
        if not row:
            continue
        cells = [cell.encode("utf-8", "surrogateescape") for cell in row]
        if names is None:
            names = cells
        elif first < start:
            continue
        elif len(cells) != len(names):
            yield Bad(first, f"{len(cells)} columns where the header has {len(names)}")
        else:
            yield Record(lines.number, None, list(zip(names, cells, strict=True)))


class _Number(str):
    """A JSON number, as it was written."""

    __slots__ = ()


# Objects come as tuples of pairs: duplicate names are kept, and lists differ from objects.
_decoder = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_Number, object_pairs_hook=tuple)


def _json_lines(lines: Lines, start: int, whole_entries: bool) -> Iterator[Record | Bad]:
    for line in lines:
        if lines.number < start or not line.strip():
            continue
        try:
            value = _decoder.decode(line.decode())
            sid, fields = _whole_entry(value) if whole_entries else (None, value)
            if type(fields) is not tuple:
                raise ValueError("a line must be one JSON object, with the fields of one entry")
            if not fields:
                raise ValueError("the object has no fields; an entry needs at least one")
            yield Record(lines.number, sid, [(_value(name), _value(field_value)) for name, field_value in fields])
        except json.JSONDecodeError as error:
            yield Bad(lines.number, f"no JSON: {error.msg} (column {error.colno})")
        except UnicodeDecodeError as error:
            yield Bad(lines.number, f"no UTF-8: {error.reason} (byte {error.start + 1})")
        except RecursionError:
            yield Bad(lines.number, "JSON nested too deeply")
        except ValueError as error:
            yield Bad(lines.number, str(error))


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
        values = [value for name, value in record.pairs if name in (text, id_field)]
        pairs = [pair for pair in record.pairs if pair[0] not in (text, id_field)]
        if len(values) != 1:
            yield Bad(record.line, f"{len(values) or 'no'} fields {text!r} to take the ID from")
        elif not pairs:
            yield Bad(record.line, f"no field beside {text!r}; an entry needs at least one")
        else:
            value = values[0]
            sid = value.decode("ascii", "backslashreplace") if isinstance(value, bytes) else str(value)
            yield Record(record.line, sid, pairs)
