"""An entry as a checker of types sees it: ``Entry[Order]``, whose ``value`` is an ``Order``. At run time there is one.

A handle has the type of its values, ``Stream[Order]``, and so have its groups and the entries that it returns. Without
one a value is a dict of what the codec can hold.
"""

from __future__ import annotations

from types import UnionType
from typing import TYPE_CHECKING, Any, Generic

from . import entry

Decoded = Any  # what JSON or msgpack can hold: a checker would have each part of it narrowed at each use
Kind = type[object] | UnionType | None  # of a handle's values
Either = Any  # the values of ``type=A | B``, of which mypy makes one type or the other, or none

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # of which a checker needs no installation

    V = TypeVar("V", default=dict[str, Decoded])  # the type of a stream's values

    class Entry(entry.Entry, Generic[V]):  # a C class has no parameters that a checker could see
        """One entry of a stream: see raxlog.stream.node.entry."""

        @property
        def value(self) -> V:
            """The value that was appended."""
        def decoded(self, encoding: str | None = None, errors: str | None = None) -> Entry[V]:
            """The same entry with ``str`` instead of ``bytes``."""
else:
    from typing import TypeVar

    V = TypeVar("V")
    Entry = entry.Entry
