"""Malformed entries, which their columns cannot hold: as a row's text, or as an error.

    {"id": "1526919030474-55", "fields": {"qty": "seven"}}     in the corrupt-record column
    stream orders: entry 1526919030474-55: field b'qty' is …   MalformedValue
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from ...storage.errors import MalformedValue


def described(ms: int, seq: int, names: Sequence[bytes], values: Sequence[bytes]) -> bytes:
    """An entry as JSON: its fields as an object, or as pairs where a name occurs twice."""
    texts = ([text.decode("utf-8", "backslashreplace") for text in part] for part in (names, values))
    pairs = list(zip(*texts, strict=True))
    fields = dict(pairs)
    entry = {"id": f"{ms}-{seq}", "fields": fields if len(fields) == len(pairs) else pairs}
    return json.dumps(entry, ensure_ascii=False).encode()


def refused(stream: str, ms: int, seq: int, what: str) -> MalformedValue:
    """The error that ends a scan at an entry, in mode FAILFAST."""
    return MalformedValue(
        f"stream {stream}: entry {ms}-{seq}: {what}. Read the column as string or binary, "
        "or with mode=PERMISSIVE, which makes it null"
    )
