r"""Entries, names and figures as they are printed: as text for people, as JSON for programs.

    text    1526919030474-55<tab>item=book<tab>qty=2          one line an entry, whatever it holds
    JSON    {"id": "1526919030474-55", "fields": {"item": "book", "qty": "2"}}

In text every byte sequence that is no UTF-8 is \xNN, a control character is its escape, a
backslash is doubled and "=" in a name is \x3d: no two entries look the same.

In JSON what is no UTF-8 is {"base64": "…"}. ``fields`` is an object; where a name occurs
twice or is no UTF-8 it is a list of [name, value] instead. 'raxlog import --format entries'
reads these lines back, byte for byte.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from ...stream.node.entry import Entry
from ...stream.node.stream_id import StreamID

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def text(raw: bytes | str) -> str:
    """A name or value on one line: readable, and no two different ones alike."""
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


def entry_text(entry: Entry) -> str:
    """An entry as a line: its ID, then name=value, parted by tabs."""
    return "\t".join([str(entry.id), *pairs_text(zip(entry.names, entry.values, strict=True))])


def pairs_text(pairs: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """Fields as name=value each."""
    return [f"{text(name).replace('=', chr(92) + 'x3d')}={text(value)}" for name, value in pairs]


def entry_json(entry: Entry) -> dict[str, Any]:
    """An entry as a JSON object."""
    return {"id": entry.id, "fields": fields_json(entry.pairs)}


def delivery_json(entry: Entry) -> dict[str, Any]:
    """What only a delivery tells. An entry deleted since it was delivered has no fields."""
    told: dict[str, Any] = {"deliveries": entry.deliveries, "idle": entry.idle}
    return told if len(entry) else {"fields": None} | told


def fields_json(pairs: Sequence[tuple[bytes, bytes]]) -> Any:
    """The fields of an entry for JSON: an object, or a list where that would lose something."""
    try:
        fields = {name.decode(): value for name, value in pairs}
    except UnicodeDecodeError:
        return pairs
    return fields if len(fields) == len(pairs) else pairs


def plain(value: Any) -> Any:
    """A value for JSON, and all that it holds: bytes as text or {"base64": …}, IDs as "ms-seq", entries as objects."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            import base64  # noqa: PLC0415

            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, StreamID):  # a tuple, which JSON would make a list of
        return str(value)
    if isinstance(value, Entry):
        return plain(entry_json(value))
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def print_json(document: Any) -> None:
    """One JSON document on one line; it may hold whatever plain() knows."""
    import json  # noqa: PLC0415 - who reads a text does not wait for it

    unicode_out = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    sys.stdout.write(json.dumps(plain(document), ensure_ascii=not unicode_out) + "\n")


def answer(as_json: bool, document: Any, *lines: object) -> None:
    """What a command has to say: one JSON document, or lines."""
    if as_json:
        print_json(document)
    else:
        print_text(*lines)


def print_entry(entry: Entry, as_json: bool) -> None:
    """One entry on one line."""
    if as_json:
        print_json(entry_json(entry))
    else:
        print_text(entry_text(entry))


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
