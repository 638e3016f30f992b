"""A model: the type of a stream's values, as a handle is given it, and its objects made and taken apart.

    store.stream("orders", type=Order)      Order: a dataclass, TypedDict, msgspec.Struct or pydantic model

    append  Order ── Model.builtins() ──> dict of JSON's types ── values.encoded() ──> fields
    read    Order <── Model.object_of() ── dict <── values.decoded() ── fields            when .value is asked for
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...storage.errors import InvalidArgument, InvalidFields, MalformedValue, NotInstalled
from .values import FAULTS

if TYPE_CHECKING:
    from .entry import Entry


class Model:
    """Makes and takes apart the objects of one type: by pydantic if it is one of its types, else by msgspec."""

    __slots__ = ("_dump", "_load", "_name")

    def __init__(self, kind: Any) -> None:
        self._name = getattr(kind, "__name__", str(kind))
        self._dump: Callable[[Any], Any]
        self._load: Callable[[Any, bool], Any]
        if hasattr(kind, "__pydantic_validator__"):
            from pydantic import TypeAdapter  # noqa: PLC0415 - a type of it is here, so it is

            adapter = TypeAdapter(kind)
            self._load = lambda value, exact: adapter.validate_python(value)
            self._dump = lambda value: adapter.dump_python(
                adapter.validate_python(value), mode="json", by_alias=True, round_trip=True, warnings="error"
            )
            return
        try:
            import msgspec  # noqa: PLC0415 - an extra
        except ImportError:
            raise NotInstalled(f"type={self._name} needs msgspec: pip install 'raxlog[models]'") from None
        msgspec.json.Decoder(kind)  # TypeError for what is no type
        self._load = lambda value, exact: msgspec.convert(value, kind, strict=exact, str_keys=True)
        self._dump = lambda value: msgspec.to_builtins(value, str_keys=True)

    def builtins(self, value: object) -> Any:
        """An object as a dict of JSON's types. InvalidFields for one that would not come back."""
        try:
            taken_apart = self._dump(value)
            self._load(taken_apart, True)
        except FAULTS as error:
            raise InvalidFields(f"{value!r:.200} is no {self._name}: {error}") from None
        return taken_apart

    def object_of(self, value: dict[str, Any], exact: bool, entry: Entry) -> Any:
        """The inverse; not ``exact``: of text only, where "2" is an int. MalformedValue for what is no such object."""
        try:
            return self._load(value, exact)
        except FAULTS as error:
            raise MalformedValue(f"the value of entry {entry.id} is no {self._name}: {error}") from None


@lru_cache(256)
def _model(kind: Any) -> Model:
    return Model(kind)


def model_of(kind: Any) -> Model | None:
    """The model of a type, None for None. InvalidArgument for what is no type, NotInstalled without msgspec."""
    try:
        return None if kind is None else _model(kind)
    except (TypeError, RuntimeError) as error:
        raise InvalidArgument(
            f"type={kind!r:.100} is no type that values can have: {error}. Give a dataclass, TypedDict, "
            "msgspec.Struct or pydantic model"
        ) from None
