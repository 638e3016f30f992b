"""What salvage has copied and what is lost, as an object and as JSON.

    SalvageReport   source, generation, destination, streams, lost, damaged pages, notes, counts
    Loss            what, and where: stream, group, first and last ID, how many (None: unknown)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...storage.figures import Figures


@dataclass(frozen=True, slots=True)
class Loss(Figures):
    """Something that could not be salvaged.

    The loss lies between the IDs ``first`` and ``last``; ``entries`` is the number of entries (of
    a stream, or pending ones of a group), None if unknown.
    """

    what: str
    stream: str | None = None
    group: str | None = None
    first: str | None = None
    last: str | None = None
    entries: int | None = None

    def __str__(self) -> str:
        count = "" if self.entries is None else f"{self.entries:,} "
        where = "".join(f", {name} {getattr(self, name)}" for name in ("stream", "group")
                        if getattr(self, name) is not None)
        between = "" if self.first is None else f", from {self.first} to {self.last or 'the end'}"
        return f"{count}{self.what}{where}{between}"


@dataclass(frozen=True, slots=True)
class SalvageReport(Figures):
    """The result of a salvage. ``ok`` is true if nothing is lost."""

    _also = ("ok",)

    source: str
    destination: str
    generation: str = ""
    streams: dict[str, dict[str, int]] = field(default_factory=dict)
    lost: list[Loss] = field(default_factory=list)
    damaged_pages: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.lost

    def __str__(self) -> str:
        entries = sum(stream["entries"] for stream in self.streams.values())
        kept = f"{self.destination}: {len(self.streams)} streams with {entries:,} entries"
        lost = [f"lost: {loss}" for loss in self.lost] or ["nothing is lost"]
        return "\n".join([kept, *lost, *(f"note: {note}" for note in self.notes)])
