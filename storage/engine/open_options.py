"""Open options: how a store is opened, as the layers pass it on."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Durability = Literal["commit", "relaxed", "buffered"]
DURABILITIES: tuple[Durability, ...] = ("commit", "relaxed", "buffered")
MAX_READERS = 2048
Encoding = Literal["own", "utf-8", "bytes"]  # of a handle; or None
OWN: Final = "own"  # what the store keeps
BYTES: Final = "bytes"  # whatever the store keeps
BUFFER_WINDOW = 0.005  # seconds


class OpenOptions(NamedTuple):
    """The options of raxlog.open() that concern the environment; they are described there."""

    readonly: bool = False
    create: bool = True
    durability: Durability = "commit"
    map_size: int | None = None
    max_map_size: int | None = None
    max_readers: int = MAX_READERS
    buffer_window: float = BUFFER_WINDOW

    def conflict(self, other: OpenOptions) -> str | None:
        """The first option in which two openings of a store in one process must not differ, and do."""
        shared = ("readonly", "durability", "max_map_size", "buffer_window")
        return next((name for name in shared if getattr(self, name) != getattr(other, name)), None)
