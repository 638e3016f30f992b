"""The entry browser: a page of entries from an ID or a time on, by subject and by field.

    page    entries ─ those that match ─> up to ``count``, or what 0.3 s of looking find; ``next`` is where to go on

A damaged node ends the page: what is before it is shown, with the error. The other way round comes to it from behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple

from ...index.subjects import subject as subjects
from ...storage import clocks
from ...storage.errors import CorruptionError, InvalidStreamID
from ...stream.node.entry import Entry
from ...stream.node.stream_id import StreamID, parse_end, parse_start
from ...stream.stream import Stream
from .. import output

_LOOKS = 0.3  # seconds of a page
_BYTES = 4 << 20  # of the entries of a page
_HEX = 16


class Page(NamedTuple):
    """Entries, in the order asked for."""

    entries: list[Entry]
    next: StreamID | None  # the first ID not looked at; None where the stream ends
    looked_at: int
    damaged: str  # the error that the page has ended with


def place(text: str, reverse: bool = False) -> StreamID:
    """An ID or a time (2026-11-24, or with T08:00; of UTC where it names no zone). InvalidStreamID."""
    if text.count("-") >= 2:
        with suppress(ValueError):
            moment = datetime.fromisoformat(text)
            seconds = moment.timestamp() if moment.tzinfo else (moment - datetime(1970, 1, 1)).total_seconds()
            text = str(max(0, int(seconds * 1000)))
    try:
        return (parse_end if reverse else parse_start)(text or ("+" if reverse else "-"))
    except InvalidStreamID:
        raise InvalidStreamID(f"{text!r} is not a place: give an ID (1526919030474-55) or a time "
                              "(2026-11-24T08:00)") from None


def matcher(subject: str = "", field: str = "") -> Callable[[Entry], bool]:
    """Whether an entry is wanted: published under a pattern; with a field NAME, NAME=VALUE or a part of one, NAME~PART.

    SubjectError for a malformed pattern.
    """
    if subject:
        subjects.pattern(subject)
    at = min((field.find(sign) for sign in "=~" if sign in field), default=len(field))
    name, sign, value = field[:at], field[at:at + 1], field[at + 1:]

    def wanted(entry: Entry) -> bool:
        if subject and (entry.subject is None or not subjects.matches(subject, entry.subject)):
            return False
        return not field or any(known == name and (not sign or (value == had if sign == "=" else value in had))
                                for known, had in fields(entry))

    return wanted


def page(stream: Stream, start: StreamID, *, reverse: bool = False, count: int = 20,
         wanted: Callable[[Entry], bool] = lambda entry: True) -> Page:
    """Entries from ``start`` on, or back from there. A damaged node is reported, not raised."""
    found: list[Entry] = []
    looked, size, deadline = 0, 0, clocks.elapsed() + _LOOKS
    try:
        for entry in _entries(stream, start, reverse):
            if len(found) >= count or size > _BYTES or (looked % 100 == 99 and clocks.elapsed() > deadline):
                return Page(found, entry.id, looked, "")
            looked += 1
            if wanted(entry):
                found.append(entry)
                size += sum(map(len, entry.values))
    except CorruptionError as error:
        return Page(found, None, looked, output.one_line(str(error)))
    return Page(found, None, looked, "")


def _entries(stream: Stream, start: StreamID, reverse: bool) -> Iterator[Entry]:
    """Entries, and CorruptionError right behind the last one that is whole: nodes are read several at a time."""
    def some(at: StreamID, count: int | None) -> Iterator[Entry]:
        return stream.range(end=at, count=count, reverse=True) if reverse else stream.range(at, count=count)

    last: StreamID | None = None
    try:
        for entry in some(start, None):
            last = entry.id
            yield entry
    except CorruptionError:
        while True:
            found = next(some(start if last is None else last.prev() if reverse else last.next(), 1), None)
            if found is None:
                return
            last = found.id
            yield found


def fields(entry: Entry) -> list[tuple[str, str]]:
    """Names and values as text on one line each, decoded where the entry has a codec."""
    value = output.entry_json(entry, raw=False).get("value")
    pairs = value.items() if isinstance(value, dict) else entry.pairs if value is None else [("value", value)]
    return [(output.text(name), output.text(content) if isinstance(content, bytes | str) else output.json_text(content))
            for name, content in pairs]


def hex_lines(entry: Entry, limit: int) -> list[str]:
    """Names and values as they are stored: offset, bytes, text; ``limit`` bytes of each value."""
    lines = []
    for name, value in entry.pairs:
        lines.append(f"{output.text(name)} ({len(value):,} bytes)")
        for at in range(0, min(len(value), limit), _HEX):
            part = value[at:at + _HEX]
            plain = "".join(chr(code) if 32 <= code < 127 else "." for code in part)
            lines.append(f"  {at:06x}  {part.hex(' '):{3 * _HEX - 1}}  {plain}")
        if len(value) > limit:
            lines.append(f"  … {len(value) - limit:,} bytes more")
    return lines
