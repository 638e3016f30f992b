"""Values as JSON has them: bytes as text or {"base64": …}, IDs as "ms-seq", times by ISO 8601, entries as objects."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from .entry import Entry
from .stream_id import StreamID


def json_form(value: object) -> object:
    """A value for json.dumps(), with all that it holds."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            import base64  # noqa: PLC0415 - seldom needed

            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, StreamID):  # a tuple, which json would write as a list
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Entry):
        value = entry_form(value)
    elif hasattr(value, "__dataclass_fields__"):
        value = {name: getattr(value, name) for name in value.__dataclass_fields__}
    if isinstance(value, dict):
        return {name: json_form(item) for name, item in value.items()}
    return [json_form(item) for item in value] if isinstance(value, list | tuple) else value


def entry_form(entry: Entry) -> dict[str, object]:
    """An entry as an object."""
    return {"id": entry.id, "fields": fields_form(entry.pairs)}


def fields_form(pairs: Sequence[tuple[bytes, bytes]]) -> dict[str, bytes] | Sequence[tuple[bytes, bytes]]:
    """The fields of an entry: an object, or a list where a name occurs twice or is not UTF-8."""
    try:
        fields = {name.decode(): value for name, value in pairs}
    except UnicodeDecodeError:
        return pairs
    return fields if len(fields) == len(pairs) else pairs
