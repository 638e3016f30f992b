r"""Entries, names and figures as they are printed: as text to read, as JSON for programs.

    text    1526919030474-55<tab>item=book<tab>qty=2          one line an entry, whatever it holds
    JSON    {"id": "1526919030474-55", "fields": {"item": "book", "qty": "2"}}

In text every byte sequence that is not UTF-8 is \xNN, a control character is its escape, a
backslash is doubled and "=" in a name is \x3d: no two entries look the same.

In JSON what is not UTF-8 is {"base64": "…"}. ``fields`` is an object; where a name occurs
twice or is not UTF-8 it is a list of [name, value] instead. 'raxlog import --format entries'
reads these lines back, byte for byte.

On a terminal IDs and headings are coloured. What comes from a store has no escapes left by then.
"""

from __future__ import annotations

import contextlib
import os
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO

from ..stream.node.entry import Entry
from ..stream.node.json_form import entry_form, json_form
from ..stream.node.stream_id import StreamID
from ..stream.node.values import NOTES

if TYPE_CHECKING:
    from ..status import GroupStatus
    from ..storage.figures import LastEnd
    from ..stream.group.info import GroupInfo

BOLD, DIM, RED, GREEN, YELLOW, CYAN = "1", "2", "31", "32", "33", "36"
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` of what is known and most like a word; empty where nothing is."""
    import difflib  # noqa: PLC0415

    near = difflib.get_close_matches(word, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""


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


def styled(plain: str, style: str, stream: TextIO | None = None) -> str:
    """Text in a style, where the stream (default: stdout) is a terminal that is to be coloured."""
    on = (stream or sys.stdout).isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return f"\033[{style}m{plain}\033[0m" if on else plain


def time_of(sid: StreamID) -> str:
    """The time of an ID, to the millisecond, as in 2026-11-24T08:00:00.123Z; ``-`` where it holds none."""
    try:
        return sid.datetime.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z" if sid.ms else "-"
    except OverflowError:
        return "-"


def timed(document: dict[str, object], sid: StreamID, wanted: bool) -> dict[str, object]:
    """A document, with the time of its ID if that is wanted."""
    return document | {"time": time_of(sid)} if wanted else document


def entry_text(entry: Entry, raw: bool = True, time: bool = False) -> str:
    """An entry as a line: its ID, its time if that is wanted, then name=value, separated by tabs."""
    value = None if raw else entry_json(entry, raw).get("value")
    head = [styled(str(entry.id), CYAN), *([styled(time_of(entry.id), DIM)] if time else [])]
    return "\t".join([*head, *pairs_text(entry.pairs if value is None else value.items())])


def entry_json(entry: Entry, raw: bool) -> dict[str, Any]:
    """An entry for print_json(): its ID, and its value; its fields, where no codec has encoded what JSON can show."""
    if not (raw or NOTES.keys().isdisjoint(entry.names)):
        with contextlib.suppress(ValueError, TypeError):
            value = json_form(entry.value)
            json_text(value).encode()
            return {"id": entry.id, "value": value}
    return entry_form(entry)


def pairs_text(pairs: Iterable[tuple[Any, Any]]) -> list[str]:
    """Fields as name=value each, a value that is not text as JSON."""
    shown = [(name, value if isinstance(value, bytes | str) else json_text(value)) for name, value in pairs]
    return [f"{text(name).replace('=', chr(92) + 'x3d')}={text(value)}" for name, value in shown]


def delivery_json(entry: Entry) -> dict[str, object]:
    """What a delivery adds to an entry. One deleted since it was delivered has no fields."""
    delivery: dict[str, object] = {"deliveries": entry.deliveries, "idle": entry.idle}
    return delivery if len(entry) else {"fields": None} | delivery


def print_json(document: object) -> None:
    """One JSON document on one line, of what json_form() accepts."""
    unicode_out = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    sys.stdout.write(json_text(json_form(document), ascii_only=not unicode_out) + "\n")


def json_text(value: object, ascii_only: bool = False) -> str:
    """A document of what JSON knows, on one line."""
    import json  # noqa: PLC0415 - plain text does not need it

    return json.dumps(value, ensure_ascii=ascii_only)


def answer(as_json: bool, document: object, *lines: object) -> None:
    """The output of a command: one JSON document, or lines."""
    if as_json:
        print_json(document)
    else:
        print_text(*lines)


def print_entry(entry: Entry, as_json: bool, raw: bool, time: bool = False) -> None:
    """One entry on one line, decoded unless ``raw``."""
    if as_json:
        print_json(timed(entry_json(entry, raw), entry.id, time))
    else:
        print_text(entry_text(entry, raw, time))


def print_text(*lines: object) -> None:
    """Lines, with escapes for what the terminal's encoding cannot show."""
    encoding = sys.stdout.encoding or "utf-8"
    for line in lines:
        try:
            sys.stdout.write(f"{line}\n")
        except UnicodeEncodeError:
            sys.stdout.write(str(line).encode(encoding, "backslashreplace").decode(encoding) + "\n")


def note(line: str) -> None:
    """A line on stderr for what has no output, where stdout is a terminal."""
    if sys.stdout.isatty():
        print(line, file=sys.stderr)


def unclosed(end: LastEnd) -> str:
    """How a store was left, where it was not closed."""
    how = "killed, or close() was not called" if end.how == "killed" else end.how
    return f"process {', '.join(map(str, end.processes))} ended without closing the store ({how})"


def table(rows: Iterable[Sequence[str]], right: Sequence[int] = (), head: Sequence[str] | None = None) -> list[str]:
    """Rows as lines with aligned columns, below ``head``; ``right`` numbers those aligned to the right."""
    listed = list(rows)
    if listed and head is not None:
        listed.insert(0, head)
    columns = []
    for at, column in enumerate(zip(*listed, strict=True)):
        widths = list(map(cell_width, column))
        gaps = [" " * (max(widths) - width) for width in widths]
        columns.append([gap + cell if at in right else cell + gap for cell, gap in zip(column, gaps, strict=True)])
    lines = ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
    return [styled(lines[0], BOLD), *lines[1:]] if lines and head is not None else lines


def cell_width(cell: str) -> int:
    """The columns of a terminal that a cell takes."""
    if cell.isascii():
        return len(cell)
    return sum(1 + (unicodedata.east_asian_width(char) in "WF") - bool(unicodedata.combining(char)) for char in cell)


def limits(group: GroupInfo | GroupStatus) -> str:
    """The limits of a group, and which of them holds it back: ``4/4 held (full), 100/60s``, ``1 of a k, 5 parked``."""
    parts = []
    if group.max_in_flight is not None:
        full = " (full)" if group.limited_by == "max_in_flight" else ""
        parts.append(f"{group.held or 0:,}/{group.max_in_flight:,} held{full}")
    if group.rate is not None:
        by = "" if group.rate_key is None else f" a {text(group.rate_key)}"
        parts.append(f"{group.rate[0]:,}/{group.rate[1]:g}s{by}{' (waits)' if group.limited_by == 'rate' else ''}")
    if group.key is not None:
        parts.append(f"{group.per_key:,} of a {text(group.key)}")
    if group.max_parked is not None:
        parts.append(f"{group.parked:,} parked{' (full)' if group.limited_by == 'max_parked' else ''}")
    return ", ".join(parts)


def moment(at: datetime | None) -> str:
    """A time in UTC, to the millisecond, for a table; ``-`` for none."""
    return "-" if at is None else at.isoformat(" ", "milliseconds").removesuffix("+00:00") + "Z"


def duration(seconds: float | None) -> str:
    """Seconds to the millisecond for a table, ``-`` for none."""
    return "-" if seconds is None else f"{seconds:,.3f}"


def many(number: int, noun: str, nouns: str = "") -> str:
    """``1 entry``, ``2,000 entries``."""
    plural = nouns or (noun[:-1] + "ies" if noun.endswith("y") else noun + "s")
    return f"{number:,} {noun if number == 1 else plural}"
