"""A model: the type of a stream's values, as a handle is given it, and what takes its objects apart and makes them.

    append  Order ── Model.dump() ──> dict of JSON's types ── values.encoded() ──> fields
    read    Order <── Model.load() ── dict <── values.decoded() ── fields            when .value is asked for
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from ...storage.errors import InvalidArgument, NotInstalled


class Model(NamedTuple):
    """One type. Both functions raise what their library does."""

    name: str
    dump: Callable[[Any], Any]
    load: Callable[[Any, bool], Any]  # with False of text only, where "2" is an int


def model_of(kind: Any) -> Model | None:
    """The model of a type, None for None. InvalidArgument for what is not a type, NotInstalled without msgspec."""
    try:
        return None if kind is None else _model(kind)
    except (TypeError, RuntimeError) as error:
        raise InvalidArgument(
            f"type={kind!r:.100} is not a type that values can have: {error}. Give a dataclass, TypedDict, "
            "msgspec.Struct or pydantic model"
        ) from None


@lru_cache(256)
def _model(kind: Any) -> Model:
    name = getattr(kind, "__name__", str(kind))
    if hasattr(kind, "__pydantic_validator__"):
        from pydantic import TypeAdapter  # noqa: PLC0415 - a type of it is here, so it is

        adapter = TypeAdapter(kind)
        how: dict[str, Any] = {"mode": "json", "by_alias": True, "round_trip": True, "warnings": "error"}
        return Model(name, lambda value: adapter.dump_python(adapter.validate_python(value), **how),
                     lambda value, exact: adapter.validate_python(value))
    try:
        import msgspec  # noqa: PLC0415 - an extra
    except ImportError:
        raise NotInstalled(f"type={name} needs msgspec: pip install 'raxlog[models]'") from None
    msgspec.json.Decoder(kind)  # TypeError for what is not a type
    return Model(name, lambda value: msgspec.to_builtins(value, str_keys=True),
                 lambda value, exact: msgspec.convert(value, kind, strict=exact, str_keys=True))
