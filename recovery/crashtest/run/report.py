"""The report: what each mode tried, what failed, and where the crashes fell."""

from __future__ import annotations

import json
import shlex
import sys
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import render

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"


class CrashTestFailed(AssertionError):
    """A crash that the code under test does not survive; the message is the report."""


@dataclass
class Failure:
    """One crash after which the check was not content."""

    mode: str
    where: str  # the point and its hit, the number of the call, the image
    acked: int  # words said before it
    found: str  # what the check raised, or how it died
    kept: str = ""  # the folder that holds the case
    shrunk: str = ""  # the smallest image that fails in the same way, in words
    event: int = -1  # the place in the timeline, where there is one

    @property
    def replay(self) -> str:
        """The command that runs the check on the kept case again."""
        if not self.kept:
            return ""
        return f"{shlex.quote(sys.executable)} -m raxlog.recovery.crashtest {shlex.quote(self.kept)}"


@dataclass
class ModeResult:
    """What came of one mode."""

    mode: str
    status: str = PASSED
    reason: str = ""  # why it was not run, or what its figures do not show
    cases: int = 0  # crashes tried
    unique: int = 0  # of these, different ones, where that is known
    failed: int = 0
    planned: int = 0
    reached: dict[str, int] = field(default_factory=dict)  # points, calls or kinds, and how often
    torn: int = 0  # images with a write cut inside a sector: apart, no disk promises less
    torn_ends: dict[str, int] = field(default_factory=dict)  # of these: "refused", "died", "wrong", and how many
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)  # the first ones, in full
    notes: list[str] = field(default_factory=list)
    timeline: list[dict[str, Any]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Cases a second."""
        return self.cases / self.seconds if self.seconds else 0.0

    def torn_failed(self) -> str:
        """How many of the images torn inside a sector failed, and how."""
        return ", ".join(f"{many:,} {end}" for end, many in self.torn_ends.items()) or "0 failed"

    def line(self) -> str:
        """Its figures in one line."""
        if self.status == NOT_RUN:
            return f"{self.mode:<28} NOT RUN: {self.reason}"
        text = f"{self.mode:<28} {self.status.upper() if self.status == FAILED else self.status}: {self.cases:,} cases"
        if self.planned > self.cases:
            text += f" of {self.planned:,} ({self.reason or 'out of time'})"
        if self.unique and self.unique != self.cases:
            text += f", {self.unique:,} unique"
        text += f", {self.failed:,} failed, {self.rate:,.0f}/s"
        if self.torn:
            text += f"; torn inside a sector, apart: {self.torn:,}, of which {self.torn_failed()}"
        return text


@dataclass
class Report:
    """What explore() found."""

    workload: str
    check: str
    seed: int
    modes: list[ModeResult] = field(default_factory=list)

    @property
    def failures(self) -> list[Failure]:
        """The failures that are told in full, of all modes."""
        return [failure for mode in self.modes for failure in mode.failures]

    @property
    def failed(self) -> bool:
        """Whether any crash was not survived."""
        return any(mode.status == FAILED for mode in self.modes)

    @property
    def passed(self) -> bool:
        """Whether every mode was run, and every crash survived."""
        return all(mode.status == PASSED for mode in self.modes)

    def raise_on_failure(self, *, not_run_too: bool = False) -> None:
        """CrashTestFailed with the whole report, where a crash was not survived.

        A mode that could not run here is a warning, or with ``not_run_too`` a failure as well.
        """
        missing = [mode for mode in self.modes if mode.status == NOT_RUN]
        if self.failed or (missing and not_run_too):
            raise CrashTestFailed(str(self))
        for mode in missing:
            warnings.warn(f"crash test: {mode.line()}", stacklevel=2)

    def __str__(self) -> str:
        return render.terminal(self)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        whole = asdict(self)
        for mode, plain in zip(self.modes, whole["modes"], strict=True):
            plain["rate"] = mode.rate
            for failure, row in zip(mode.failures, plain["failures"], strict=True):
                row["replay"] = failure.replay
        whole["passed"] = self.passed
        return whole

    def write_json(self, path: str | Path) -> None:
        """Write it as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")

    def write_html(self, path: str | Path) -> None:
        """Write it as one HTML page, with the timeline drawn."""
        Path(path).write_text(render.page(self), encoding="utf-8")
