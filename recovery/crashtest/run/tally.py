"""A tally: what a mode has tried and found so far, from which its result is made in the end."""

from __future__ import annotations

from dataclasses import dataclass, field

from .report import PASSED, Failure, ModeResult, Moment


@dataclass
class Tally:
    """The figures of a ModeResult, as they grow."""

    mode: str
    status: str = PASSED
    reason: str = ""
    cases: int = 0
    unique: int = 0
    failed: int = 0
    planned: int = 0
    reached: dict[str, int] = field(default_factory=dict)
    torn: int = 0
    torn_ends: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    timeline: list[Moment] = field(default_factory=list)

    def count(self, reached: str) -> None:
        """Count a case, and the point or class of call that it reached."""
        self.cases += 1
        if reached:
            self.reached[reached] = self.reached.get(reached, 0) + 1

    def result(self) -> ModeResult:
        """What the mode has done, for good."""
        return ModeResult(**vars(self))
