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

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from ...stream.node.entry import Entry
from ...stream.node.json_form import entry_form
from ...stream.node.values import has_note

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
    """An entry as a line: its ID, then name=value, separated by tabs. What a codec has encoded is JSON."""
    pairs: Iterable[tuple[bytes, bytes]] = zip(entry.names, entry.values, strict=True)
    value = None if raw else decoded_value(entry)
    if value is not None:
        import json  # noqa: PLC0415

        pairs = [(name.encode(), (held if isinstance(held, str) else json.dumps(held, ensure_ascii=False)).encode())
                 for name, held in value.items()]
    return "\t".join([str(entry.id), *pairs_text(pairs)])


def decoded_value(entry: Entry) -> dict[str, Any] | None:
    """The entry's value in JSON's types; None where a codec has encoded none, or one that JSON cannot show."""
    if not has_note(entry.names):
        return None
    import json  # noqa: PLC0415

    from ...stream.node.json_form import json_form  # noqa: PLC0415

    try:
        shown: dict[str, Any] = json_form(entry.value)  # type: ignore[assignment]
        json.dumps(shown, ensure_ascii=False).encode()
    except (ValueError, TypeError):
        return None
    return shown


def shown_entry(entry: Entry, raw: bool) -> dict[str, object]:
    """An entry for print_json(): its ID, and its value, or its fields."""
    value = None if raw else decoded_value(entry)
    return entry_form(entry) if value is None else {"id": entry.id, "value": value}


def pairs_text(pairs: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """Fields as name=value each."""
    return [f"{text(name).replace('=', chr(92) + 'x3d')}={text(value)}" for name, value in pairs]


def delivery_json(entry: Entry) -> dict[str, object]:
    """What a delivery adds to an entry. One deleted since it was delivered has no fields."""
    delivery: dict[str, object] = {"deliveries": entry.deliveries, "idle": entry.idle}
    return delivery if len(entry) else {"fields": None} | delivery


def print_json(document: object) -> None:
    """One JSON document on one line, of what json_form() accepts."""
    import json  # noqa: PLC0415 - plain text needs neither

    from ...stream.node.json_form import json_form  # noqa: PLC0415

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
        print_json(shown_entry(entry, raw))
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
