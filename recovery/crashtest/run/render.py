"""A report drawn: as text for a terminal, and as one HTML page.

    power cut                    FAILED: 1,203 cases, 18 failed, 912/s
      data.tmp     nw·w·····                 w write  = size  S flush  n name
      (folder)     ········n·
      said         ·········a
      images       ▂▂▄▄▆▆███▂
      failed       ········✗✗

Each column is a stretch of the recorded run; what lies above it was done there.
"""

from __future__ import annotations

import html
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .report import Failure, ModeResult, Report

_COLUMNS = 96
_MOST_FILES = 8
_MOST_TOLD = 4  # as text; JSON and the page have all that were kept
_SIGNS = {"write": "w", "size": "=", "flush": "S", "name": "n", "ack": "a"}
_BARS = " ▁▂▃▄▅▆▇█"
_COLOURS = {"write": "#5b8ff9", "size": "#9270ca", "flush": "#1d7a46", "name": "#e8914c", "ack": "#333"}


def terminal(report: Report) -> str:
    """The report as text."""
    lines = [f"crash test of {report.workload}, checked by {report.check}, seed {report.seed}"]
    for mode in report.modes:
        lines.append(f"  {mode.line()}")
        if mode.reached:
            lines.append("    " + _reached(mode))
        lines += [f"    note: {note}" for note in mode.notes]
        lines += [f"      {row}" for row in _picture(mode.timeline)]
        for failure in mode.failures[:_MOST_TOLD]:
            lines += _told(failure)
        if mode.failed > _MOST_TOLD:
            lines.append(f"    and {mode.failed - _MOST_TOLD:,} more")
    return "\n".join(lines)


def _reached(mode: ModeResult) -> str:
    rows = [f"{name} {count:,}" for name, count in sorted(mode.reached.items())]
    return ", ".join(rows[:12]) + (f", and {len(rows) - 12} more" if len(rows) > 12 else "")


def _told(failure: Failure) -> list[str]:
    found = failure.found.strip().splitlines() or [""]
    lines = [f"    ✗ {failure.where}; {failure.acked} words said", *(f"        {line}" for line in found[:12])]
    if failure.shrunk:
        lines.append(f"      smallest: {failure.shrunk}")
    if failure.kept:
        lines.append(f"      replay:   {failure.replay}")
    return lines


# -- the timeline ---------------------------------------------------------------------------


def _tracks(timeline: list[dict[str, Any]]) -> list[str]:
    files = Counter(row["file"] for row in timeline if row["what"] != "ack")
    shown = [name for name, _ in files.most_common(_MOST_FILES)]
    return sorted(shown, key=lambda name: next(i for i, row in enumerate(timeline) if row["file"] == name))


def _picture(timeline: list[dict[str, Any]]) -> list[str]:
    if not timeline:
        return []
    width = min(_COLUMNS, len(timeline))
    columns: list[list[dict[str, Any]]] = [[] for _ in range(width)]
    for index, row in enumerate(timeline):
        columns[index * width // len(timeline)].append(row)
    tracks = _tracks(timeline)
    names = [_short(name) for name in tracks]
    left = max(map(len, [*names, "images"])) + 2
    rows = []
    for track, name in zip(tracks, names, strict=True):
        signs = ""
        for column in columns:
            seen = [row["what"] for row in column if row["file"] == track and row["what"] != "ack"]
            signs += _SIGNS[next((kind for kind in ("name", "flush", "size", "write") if kind in seen), "write")] \
                if seen else "·"
        rows.append(f"{name:<{left}}{signs}")
    rows.append(f"{'said':<{left}}" + "".join("a" if any(r["what"] == "ack" for r in c) else "·" for c in columns))
    drawn = [sum(row.get("images", 0) for row in column) for column in columns]
    top = max(drawn) or 1
    rows.append(f"{'images':<{left}}" + "".join(_BARS[-(-count * 8 // top)] for count in drawn))
    failed = [sum(row.get("failed", 0) for row in column) for column in columns]
    if any(failed):
        rows.append(f"{'failed':<{left}}" + "".join("✗" if count else "·" for count in failed))
    rows.append(f"{'':<{left}}w write  = size  S flush  n name  a word said; {len(timeline)} events")
    return rows


def _short(name: str) -> str:
    return name if len(name) <= 28 else "…" + name[-27:]


# -- HTML -----------------------------------------------------------------------------------

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em; color: #222; }
table { border-collapse: collapse; } td, th { padding: .25em .8em; text-align: left; border-bottom: 1px solid #ddd; }
td.n { text-align: right; } .passed { color: #1d7a46; } .failed { color: #b3261e; font-weight: 600; }
.not { color: #8a5a00; font-weight: 600; } pre { background: #f6f6f4; padding: .8em; overflow-x: auto; }
svg { width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; }
"""


def page(report: Report) -> str:
    """The report as one page that needs nothing else."""
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
        text += f"<pre>{html.escape(chr(10).join(_told(failure)))}</pre>"
    return text


def _svg(timeline: list[dict[str, Any]]) -> str:
    if not timeline:
        return ""
    tracks = _tracks(timeline)
    left, width, row = 190, 1000, 18
    step = (width - left) / len(timeline)
    base = row * (len(tracks) + 1)
    top = max((one.get("images", 0) for one in timeline), default=0) or 1
    parts = [f'<svg viewBox="0 0 {width} {base + 90}" role="img" aria-label="where the crashes fell">']
    for number, name in enumerate([*tracks, "said"]):
        y = row * number + 12
        parts.append(f'<text x="0" y="{y}">{html.escape(_short(name))}</text>'
                     f'<line x1="{left}" x2="{width}" y1="{y - 4}" y2="{y - 4}" stroke="#eee"/>')
    for index, one in enumerate(timeline):
        x = left + index * step
        track = len(tracks) if one["what"] == "ack" else tracks.index(one["file"]) if one["file"] in tracks else -1
        thick = max(step * 0.8, 0.7)
        if track >= 0:
            told = f"event {one['event']}: {one['what']} {one['file']} {one['bytes'] or ''}"
            parts.append(f'<rect x="{x:.2f}" y="{row * track + 2}" width="{thick:.2f}" height="12" '
                         f'fill="{_COLOURS[one["what"]]}"><title>{html.escape(told)}</title></rect>')
        high = 60 * one.get("images", 0) / top
        colour = "#b3261e" if one.get("failed") else "#bcc4ce"
        parts.append(f'<rect x="{x:.2f}" y="{base + 70 - high:.1f}" width="{thick:.2f}" height="{high:.1f}" '
                     f'fill="{colour}"><title>after event {one["event"]}: {one.get("images", 0)} images, '
                     f'{one.get("failed", 0)} failed</title></rect>')
    legend = "  ".join(f'<tspan fill="{colour}">■ {name}</tspan>' for name, colour in _COLOURS.items())
    parts.append(f'<text x="0" y="{base + 66}">images (red: some failed)</text>'
                 f'<text x="{left}" y="{base + 86}">{legend}</text></svg>')
    return "".join(parts)
