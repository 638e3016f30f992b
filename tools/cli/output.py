r"""Entries, names and figures as they are printed: as text to read, as JSON for programs.

    text    1526919030474-55<tab>item=book<tab>qty=2          one line an entry, whatever it holds
    JSON    {"id": "1526919030474-55", "fields": {"item": "book", "qty": "2"}}

In text every byte sequence that is no UTF-8 is \xNN, a control character is its escape, a
backslash is doubled and "=" in a name is \x3d: no two entries look the same.

In JSON what is no UTF-8 is {"base64": "…"}. ``fields`` is an object; where a name occurs
twice or is no UTF-8 it is a list of [name, value] instead. 'raxlog import --format entries'
reads these lines back, byte for byte.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from ...stream.node.entry import Entry
from ...stream.node.json_form import entry_form, json_form
from ...stream.node.values import NOTES

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def text(raw: bytes | str) -> str:
    """A name or value on one line: readable, and different for different bytes."""
    if isinstance(raw, str):
        raw = raw.encode("utf-8", "surrogateescape")
    shown = raw.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
    return shown if shown.isprintable() else "".join(map(_escaped, shown))


def one_line(message: str) -> str:
    """A message without line breaks and control characters."""
    return message if message.isprintable() else "".join(map(_escaped, message))


def _escaped(char: str) -> str:
    if char.isprintable():
        return char
    code = ord(char)
    if code < 0x80:
        return _SHORT.get(char) or f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def entry_text(entry: Entry, raw: bool = True) -> str:
    """An entry as a line: its ID, then name=value, separated by tabs."""
    value = None if raw else entry_json(entry, raw).get("value")
    return "\t".join([str(entry.id), *pairs_text(entry.pairs if value is None else value.items())])


def entry_json(entry: Entry, raw: bool) -> dict[str, Any]:
    """An entry for print_json(): its ID, and its value; its fields, where no codec has encoded what JSON can show."""
    if not (raw or NOTES.keys().isdisjoint(entry.names)):
        with contextlib.suppress(ValueError, TypeError):
            value = json_form(entry.value)
            json.dumps(value, ensure_ascii=False).encode()
            return {"id": entry.id, "value": value}
    return entry_form(entry)


def pairs_text(pairs: Iterable[tuple[Any, Any]]) -> list[str]:
    """Fields as name=value each, a value that is no text as JSON."""
    shown = [(name, value if isinstance(value, bytes | str) else json.dumps(value, ensure_ascii=False))
             for name, value in pairs]
    return [f"{text(name).replace('=', chr(92) + 'x3d')}={text(value)}" for name, value in shown]


def delivery_json(entry: Entry) -> dict[str, object]:
    """What a delivery adds to an entry. One deleted since it was delivered has no fields."""
    delivery: dict[str, object] = {"deliveries": entry.deliveries, "idle": entry.idle}
    return delivery if len(entry) else {"fields": None} | delivery


def print_json(document: object) -> None:
    """One JSON document on one line, of what json_form() accepts."""
    unicode_out = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    sys.stdout.write(json.dumps(json_form(document), ensure_ascii=not unicode_out) + "\n")


def answer(as_json: bool, document: object, *lines: object) -> None:
    """The output of a command: one JSON document, or lines."""
    if as_json:
        print_json(document)
    else:
        print_text(*lines)


def print_entry(entry: Entry, as_json: bool, raw: bool) -> None:
    """One entry on one line, decoded unless ``raw``."""
    if as_json:
        print_json(entry_json(entry, raw))
    else:
        print_text(entry_text(entry, raw))


def print_text(*lines: object) -> None:
    """Lines, with escapes for what the terminal's encoding cannot show."""
    encoding = sys.stdout.encoding or "utf-8"
    for line in lines:
        try:
            sys.stdout.write(f"{line}\n")
        except UnicodeEncodeError:
            sys.stdout.write(str(line).encode(encoding, "backslashreplace").decode(encoding) + "\n")


def table(rows: Iterable[Sequence[str]], right: Sequence[int] = (), head: Sequence[str] | None = None) -> list[str]:
    """Rows as lines with aligned columns, below ``head``; ``right`` numbers those aligned to the right."""
    held = list(rows)
    if held and head is not None:
        held.insert(0, head)
    columns = []
    for at, column in enumerate(zip(*held, strict=True)):
        width = max(map(len, column))
        columns.append([cell.rjust(width) if at in right else cell.ljust(width) for cell in column])
    return ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]


def duration(seconds: float | None) -> str:
    """Seconds to the millisecond for a table, ``-`` for none."""
    return "-" if seconds is None else f"{seconds:,.3f}"


def many(number: int, noun: str, nouns: str = "") -> str:
    """``1 entry``, ``2,000 entries``."""
    plural = nouns or (noun[:-1] + "ies" if noun.endswith("y") else noun + "s")
    return f"{number:,} {noun if number == 1 else plural}"
