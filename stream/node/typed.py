"""An entry as a checker of types sees it: ``Entry[Order]``, whose ``value`` is an ``Order``. At run time there is one.

A handle has the type of its values, ``Stream[Order]``, and so have its groups and the entries that it returns. Without
one a value is a dict of what the codec can hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic

from . import entry

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # of which a checker needs no installation

    V = TypeVar("V", default=dict[str, Any])  # the type of a stream's values

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
