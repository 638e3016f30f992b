r"""Lines of CSV, JSON and plain text as entries, cut out of a block of whole lines in one loop.

    under the names x, y    a,b\n                ->  [x, a, y, b]
                            "c, d",\n                [x, c, d, y, ]
    {"x": "a", "y": 1.5e3}\n                     ->  [x, a, y, 1.5e3]
    {"x": "\u00e4", "z": null}\n                     [x, ä, z, null]

The entries go to ``flats``, the number of the last line of each to ``numbers``, and where a line begins that is none
comes back; ``line`` is the number of the line at ``at``. Left to input_formats.py are empty lines, a record that goes
on behind the block, JSON with a list or an object in it, or whose first name is reserved, and what is no record.
"""

from __future__ import annotations

from json.decoder import scanstring  # type: ignore[attr-defined]  # typeshed lacks it

SOURCE_HASH = ""

LF, CR, TAB, SPACE, QUOTE, BACKSLASH = b'\n\r\t "\\'
OPEN, CLOSE, COLON, COMMA, MINUS, PLUS, POINT, ZERO, NINE, SMALL_E, LARGE_E = b"{}:,-+.09eE"
CONSTANTS = [b"true", b"false", b"null"]
ITSELF = bytes(0x20 <= c < 0x80 and c not in b'"\\' for c in range(256))  # whether a byte in a string stands for itself


def plain_rows(name: bytes, block: bytes, at: int, line: int, flats: list[list[bytes]], numbers: list[int]) -> int:
    """Lines, each of which is the field ``name`` of an entry."""
    p = block
    end = block.rfind(b"\n") + 1  # what is looked at lies before it: every loop ends at the end of a line
    while at < end:
        i = at
        while p[i] != LF:
            i += 1
        flats.append([name, p[at : i - 1 if i > at and p[i - 1] == CR else i]])
        numbers.append(line)
        line += 1
        at = i + 1
    return at


def csv_rows(names: list[bytes], comma: int, block: bytes, at: int, line: int, flats: list[list[bytes]],
             numbers: list[int]) -> int:
    """Lines of CSV, with a cell for each name."""
    p = block
    end = block.rfind(b"\n") + 1
    width = len(names)
    while at < end and p[at] != LF and (p[at] != CR or p[at + 1] != LF):
        flat: list[bytes] = []
        i = at
        k = 0
        while k < width:
            flat.append(names[k])
            k += 1
            start = i
            if p[i] == QUOTE:
                doubled = False
                i += 1
                while i < end and (p[i] != QUOTE or p[i + 1] == QUOTE):
                    if p[i] == QUOTE:
                        doubled = True
                        i += 1
                    elif p[i] == LF:
                        line += 1
                    i += 1
                if i == end:
                    return at
                cell = p[start + 1 : i]
                flat.append(cell.replace(b'""', b'"') if doubled else cell)
                i += 1
            else:
                while p[i] != comma and p[i] != LF and p[i] != CR:
                    i += 1
                flat.append(p[start:i])
            if p[i] != comma or k == width:
                break
            i += 1
        if p[i] == CR:
            i += 1
        if p[i] != LF or k < width:
            break
        flats.append(flat)
        numbers.append(line)
        line += 1
        at = i + 1
    return at


def json_rows(block: bytes, at: int, line: int, flats: list[list[bytes]], numbers: list[int]) -> int:
    """Lines of JSON, each an object of texts, numbers and constants."""
    p = block
    end = block.rfind(b"\n") + 1
    before: list[bytes] = []  # the record before, for its names
    while at < end:
        flat: list[bytes] = []
        i = after_space(p, at)
        if p[i] != OPEN:
            break
        try:
            while p[i] == (COMMA if flat else OPEN):
                i = put_string(p, after_space(p, i + 1), flat, before)
                i = after_space(p, i)
                if p[i] != COLON:
                    raise ValueError
                i = after_space(p, put_json(p, after_space(p, i + 1), flat, before))
        except ValueError:
            break
        if p[i] != CLOSE:
            break
        i = after_space(p, i + 1)
        if p[i] != LF or flat[0] == b"$entry":
            break
        flats.append(flat)
        numbers.append(line)
        before = flat
        line += 1
        at = i + 1
    return at


def after_space(p: bytes, i: int) -> int:
    """The place of what is no space."""
    while p[i] == SPACE or p[i] == TAB or p[i] == CR:
        i += 1
    return i


def put_json(p: bytes, i: int, flat: list[bytes], before: list[bytes]) -> int:
    """Append the text, number or constant at ``i``; the place behind it. ValueError for anything else."""
    if p[i] == QUOTE:
        return put_string(p, i, flat, before)
    start = i
    if p[i] == MINUS or ZERO <= p[i] <= NINE:
        if p[i] == MINUS:
            i += 1
        i = i + 1 if p[i] == ZERO else after_digits(p, i)
        if p[i] == POINT:
            i = after_digits(p, i + 1)
        if p[i] == SMALL_E or p[i] == LARGE_E:
            i += 1
            if p[i] == MINUS or p[i] == PLUS:
                i += 1
            i = after_digits(p, i)
        flat.append(p[start:i])
        return i
    for word in CONSTANTS:
        i = start
        while i - start < len(word) and p[i] == word[i - start]:
            i += 1
        if i - start == len(word):
            flat.append(word)
            return i
    raise ValueError


def after_digits(p: bytes, i: int) -> int:
    """The place behind the digits at ``i``. ValueError if there are none."""
    start = i
    while ZERO <= p[i] <= NINE:
        i += 1
    if i == start:
        raise ValueError
    return i


def put_string(p: bytes, i: int, flat: list[bytes], before: list[bytes]) -> int:
    """Append the string at ``i``; the place behind it. ValueError if it is none."""
    if p[i] != QUOTE:
        raise ValueError
    start = i
    i += 1
    itself = ITSELF
    while itself[p[i]]:
        i += 1
    if p[i] == QUOTE:
        k = len(flat)
        if k < len(before) and is_same(p, start + 1, i - start - 1, before[k]):
            flat.append(before[k])
        else:
            flat.append(p[start + 1 : i])
        return i + 1
    while p[i] != QUOTE:
        if p[i] == BACKSLASH:
            i += 1
        if p[i] < SPACE:
            raise ValueError
        i += 1
    text: str = scanstring(p[start : i + 1].decode("utf-8"), 1, True)[0]
    flat.append(text.encode("utf-8"))
    return i + 1


def is_same(p: bytes, i: int, size: int, other: bytes) -> bool:  # cimport
    """Whether these bytes are ``other``."""
    return p[i : i + size] == other
