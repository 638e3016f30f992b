"""The report: what each mode tried, what failed, and where the crashes fell; as text, JSON and HTML.

    power cut                    FAILED: 1,203 cases, 18 failed, 912/s
      data.tmp     nw·w·····                 w write  = size  S flush  n name  a ack
      (folder)     ········n·
      acks         ·········a
      images       ▂▂▄▄▆▆███▂
      failed       ········✗✗

Each column is a stretch of the recorded run, with its events above its images.
"""

from __future__ import annotations

import html
import shlex
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from ....storage.figures import Figures

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"

_COLUMNS = 96
_MOST_FILES = 8
_MOST_SHOWN = 4  # failures as text; JSON and HTML have all that were kept
_SIGNS = {"name": "n", "flush": "S", "size": "=", "write": "w", "ack": "a"}  # of several the first is drawn
_BARS = " ▁▂▃▄▅▆▇█"
_COLOURS = {"write": "#5b8ff9", "size": "#9270ca", "flush": "#1d7a46", "name": "#e8914c", "ack": "#333"}


class CrashTestFailed(AssertionError):
    """A crash that the code under test does not survive; the message is the report."""


@dataclass(frozen=True, slots=True)
class Failure(Figures):
    """One crash after which the check failed."""

    _also = ("replay",)

    mode: str
    where: str  # the point and its hit, the number of the call, the image
    acked: int  # acks before it
    found: str  # what the check raised, or how it died
    kept: str = ""  # the folder that holds the case
    shrunk: str = ""  # the smallest image that still fails, as text
    event: int = -1  # its number in the timeline, if there is one

    @property
    def replay(self) -> str:
        """The command that runs the check on the kept case again."""
        if not self.kept:
            return ""
        return f"{shlex.quote(sys.executable)} -m raxlog.recovery.crashtest {shlex.quote(self.kept)}"


@dataclass(frozen=True, slots=True)
class Moment(Figures):
    """An event of the recorded run after which a cut may find something new, and the images drawn there."""

    event: int  # its number
    what: str
    bytes: int
    file: str  # by its last name, since most files are renamed; "" of an ack
    images: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class ModeResult(Figures):
    """What one mode of explore() has tried and found."""

    _also = ("rate",)

    mode: str
    status: str = PASSED
    reason: str = ""  # why it was not run, or ended early
    cases: int = 0  # crashes tried
    unique: int = 0  # of these, different ones, if known
    failed: int = 0
    planned: int = 0
    reached: dict[str, int] = field(default_factory=dict)  # points, calls or kinds, and how often
    torn: int = 0  # images with a write cut inside a sector, counted separately: disks write sectors whole
    torn_ends: dict[str, int] = field(default_factory=dict)  # of these: how many "refused", "died", "wrong"
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)  # the first ones
    notes: list[str] = field(default_factory=list)
    timeline: list[Moment] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Crashes a second."""
        return self.cases / self.seconds if self.seconds else 0.0

    def torn_failed(self) -> str:
        """How many of the images torn inside a sector failed, and how."""
        return ", ".join(f"{count:,} {end}" for end, count in self.torn_ends.items()) or "0 failed"

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


@dataclass(frozen=True, slots=True)
class Report(Figures):
    """The result of explore()."""

    _also = ("passed",)

    workload: str
    check: str
    seed: int
    modes: list[ModeResult] = field(default_factory=list)

    @property
    def failures(self) -> list[Failure]:
        """The failures of all modes that were kept."""
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
        """CrashTestFailed with the whole report, if a crash was not survived.

        A mode that could not run here is a warning, or with ``not_run_too`` a failure as well.
        """
        missing = [mode for mode in self.modes if mode.status == NOT_RUN]
        if self.failed or (missing and not_run_too):
            raise CrashTestFailed(str(self))
        for mode in missing:
            warnings.warn(f"crash test: {mode.line()}", stacklevel=2)

    def __str__(self) -> str:
        return _text(self)

    def write_html(self, path: str | Path) -> None:
        """Write it as one HTML page, with a drawing of the timeline."""
        Path(path).write_text(_page(self), encoding="utf-8")


# -- as text --------------------------------------------------------------------------------


def _text(report: Report) -> str:
    lines = [f"crash test of {report.workload}, checked by {report.check}, seed {report.seed}"]
    for mode in report.modes:
        lines.append(f"  {mode.line()}")
        if mode.reached:
            lines.append("    " + _reached(mode))
        lines += [f"    note: {note}" for note in mode.notes]
        lines += [f"      {row}" for row in _picture(mode.timeline)]
        for failure in mode.failures[:_MOST_SHOWN]:
            lines += _failure_lines(failure)
        if mode.failed > _MOST_SHOWN:
            lines.append(f"    and {mode.failed - _MOST_SHOWN:,} more")
    return "\n".join(lines)


def _reached(mode: ModeResult) -> str:
    rows = [f"{name} {count:,}" for name, count in sorted(mode.reached.items())]
    return ", ".join(rows[:12]) + (f", and {len(rows) - 12} more" if len(rows) > 12 else "")


def _failure_lines(failure: Failure) -> list[str]:
    found = failure.found.strip().splitlines() or [""]
    lines = [f"    ✗ {failure.where}; {failure.acked} acks", *(f"        {line}" for line in found[:12])]
    if failure.shrunk:
        first, *others = failure.shrunk.splitlines()
        lines += [f"      smallest: {first}", *(f"      {line}".rstrip() for line in others)]
    if failure.kept:
        lines.append(f"      replay:   {failure.replay}")
    return lines


# -- the timeline ---------------------------------------------------------------------------


def _tracks(timeline: list[Moment]) -> list[str]:
    """The files with the most events, in the order of their first; last "", which is that of the acks."""
    files = Counter(row.file for row in timeline if row.what != "ack")
    shown = [name for name, _ in files.most_common(_MOST_FILES)]
    return [*sorted(shown, key=lambda name: next(i for i, row in enumerate(timeline) if row.file == name)), ""]


def _picture(timeline: list[Moment]) -> list[str]:
    if not timeline:
        return []
    width = min(_COLUMNS, len(timeline))
    columns: list[list[Moment]] = [[] for _ in range(width)]
    for index, row in enumerate(timeline):
        columns[index * width // len(timeline)].append(row)
    rows: list[tuple[str, list[str]]] = []
    for track in _tracks(timeline):
        seen = [{row.what for row in column if row.file == track} for column in columns]
        rows.append((_short(track), [next((_SIGNS[kind] for kind in _SIGNS if kind in kinds), "·") for kinds in seen]))
    drawn, failed = ([sum(getattr(row, what) for row in column) for column in columns] for what in ("images", "failed"))
    top = max(drawn) or 1
    rows.append(("images", [_BARS[-(-count * 8 // top)] for count in drawn]))
    if any(failed):
        rows.append(("failed", ["✗" if count else "·" for count in failed]))
    rows.append(("", [f"w write  = size  S flush  n name  a ack; {len(timeline)} events"]))
    margin = max(len(name) for name, _ in rows) + 2
    return [f"{name:<{margin}}{''.join(signs)}" for name, signs in rows]


def _short(track: str) -> str:
    return (track if len(track) <= 28 else "…" + track[-27:]) or "acks"


# -- HTML -----------------------------------------------------------------------------------

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em; color: #222; }
table { border-collapse: collapse; } td, th { padding: .25em .8em; text-align: left; border-bottom: 1px solid #ddd; }
td.n { text-align: right; } .passed { color: #1d7a46; } .failed { color: #b3261e; font-weight: 600; }
.not { color: #8a5a00; font-weight: 600; } pre { background: #f6f6f4; padding: .8em; overflow-x: auto; }
svg { width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; }
"""


def _page(report: Report) -> str:
    rows, parts = [], []
    for mode in report.modes:
        css = {"failed": "failed", "not run": "not"}.get(mode.status, "passed")
        torn = f"{mode.torn:,} ({mode.torn_failed()})" if mode.torn else ""
        rows.append(
            f"<tr><td>{html.escape(mode.mode)}</td><td class={css}>{mode.status}</td><td class=n>{mode.cases:,}</td>"
            f"<td class=n>{mode.unique or mode.cases:,}</td><td class=n>{mode.failed:,}</td><td class=n>{torn}</td>"
            f"<td class=n>{mode.rate:,.0f}</td><td>{html.escape(mode.reason)}</td></tr>"
        )
        parts.append(_section(mode))
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Crash test: {html.escape(report.workload)}</title>"
        f"<style>{_STYLE}</style><h1>Crash test of <code>{html.escape(report.workload)}</code></h1>"
        f"<p>Checked by <code>{html.escape(report.check)}</code>, seed {report.seed}.</p>"
        "<table><tr><th>mode<th><th>cases<th>unique<th>failed<th>torn in a sector<th>cases/s<th></tr>"
        f"{''.join(rows)}</table>{''.join(parts)}</html>\n"
    )


def _section(mode: ModeResult) -> str:
    text = f"<h2>{html.escape(mode.mode)}</h2>"
    if mode.reached:
        text += f"<p>{html.escape(_reached(mode))}</p>"
    text += "".join(f"<p>Note: {html.escape(note)}</p>" for note in mode.notes)
    text += _svg(mode.timeline)
    for failure in mode.failures:
        text += f"<pre>{html.escape(chr(10).join(_failure_lines(failure)))}</pre>"
    return text


def _svg(timeline: list[Moment]) -> str:
    if not timeline:
        return ""
    tracks = _tracks(timeline)
    left, width, row = 190, 1000, 18
    step = (width - left) / len(timeline)
    base = row * len(tracks)
    top = max((moment.images for moment in timeline), default=0) or 1
    parts = [f'<svg viewBox="0 0 {width} {base + 90}" role="img" aria-label="where the crashes fell">']
    for number, name in enumerate(tracks):
        y = row * number + 12
        parts.append(f'<text x="0" y="{y}">{html.escape(_short(name))}</text>'
                     f'<line x1="{left}" x2="{width}" y1="{y - 4}" y2="{y - 4}" stroke="#eee"/>')
    for index, moment in enumerate(timeline):
        x = left + index * step
        track = tracks.index(moment.file) if moment.file in tracks else -1
        thick = max(step * 0.8, 0.7)
        if track >= 0:
            title = f"event {moment.event}: {moment.what} {moment.file} {moment.bytes or ''}"
            parts.append(f'<rect x="{x:.2f}" y="{row * track + 2}" width="{thick:.2f}" height="12" '
                         f'fill="{_COLOURS[moment.what]}"><title>{html.escape(title)}</title></rect>')
        high = 60 * moment.images / top
        colour = "#b3261e" if moment.failed else "#bcc4ce"
        parts.append(f'<rect x="{x:.2f}" y="{base + 70 - high:.1f}" width="{thick:.2f}" height="{high:.1f}" '
                     f'fill="{colour}"><title>after event {moment.event}: {moment.images} images, '
                     f'{moment.failed} failed</title></rect>')
    legend = "  ".join(f'<tspan fill="{colour}">■ {name}</tspan>' for name, colour in _COLOURS.items())
    parts.append(f'<text x="0" y="{base + 66}">images (red: some failed)</text>'
                 f'<text x="{left}" y="{base + 86}">{legend}</text></svg>')
    return "".join(parts)
