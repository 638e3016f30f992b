"""The picture of comparison.md, from the table in it: ``python docs/plot.py`` writes comparison.svg anew.

A bar a row: raxlog's rate (or its inverse, where less is better) as a multiple of SQLite's, on a logarithmic axis.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

DOCS = Path(__file__).parent
WIDTH, LEFT, STEP, TOP = 460, 12, 46, 74
LESS_IS_BETTER = ("µs", "bytes")
LIMITS = (0.5, 4.0)


def ratios(page: str) -> list[tuple[str, float]]:
    """The rows of the table under "Measured" that have a figure of both, and raxlog's as a multiple of SQLite's."""
    found = []
    for row in re.findall(r"^\| ([^|]+) \| ([*\d.,]+) \| ([*\d.,]+) \|", page, re.M):
        ours, theirs = (float(figure.strip("*").replace(",", "")) for figure in row[1:])
        found.append((row[0], theirs / ours if any(word in row[0] for word in LESS_IS_BETTER) else ours / theirs))
    return found


def drawn(rows: list[tuple[str, float]]) -> str:
    """The bars as SVG."""
    def at(ratio: float) -> float:
        low, high = map(math.log, LIMITS)
        return LEFT + (math.log(ratio) - low) / (high - low) * (WIDTH - LEFT - 60)

    height = TOP + STEP * len(rows) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="13">',
        "<style>text { fill: #222 } .page { fill: #fff } @media (prefers-color-scheme: dark) {"
        " text { fill: #e8e8e8 } .page { fill: #1a1c1e } }</style>",
        f'<rect width="{WIDTH}" height="{height}" class="page"/>',
        '<text x="12" y="22" font-size="15">raxlog as a multiple of sqlite3 (WAL, FULL); right is better</text>',
    ]
    for tick in (0.5, 1, 2, 4):
        colour = "#888" if tick == 1 else "#8884"
        parts.append(f'<path d="M{at(tick):.0f} {TOP - 32}V{height - 26}" stroke="{colour}"/>')
        parts.append(f'<text x="{at(tick):.0f}" y="{height - 10}" text-anchor="middle">{tick:g}</text>')
    for number, (name, ratio) in enumerate(rows):
        y, (begin, end) = TOP + STEP * number, sorted((at(1), at(ratio)))
        short = name.removesuffix(", entries a second")
        parts.append(f'<text x="{LEFT}" y="{y - 6}">{short}</text>')
        parts.append(f'<rect x="{begin:.1f}" y="{y}" width="{end - begin:.1f}" height="18" '
                     f'fill="{"#228833" if ratio >= 1 else "#cc6677"}"/>')
        parts.append(f'<text x="{max(end, at(1)) + 6:.0f}" y="{y + 13}">{ratio:.2f}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    text = (DOCS / "comparison.md").read_text(encoding="utf-8")
    (DOCS / "comparison.svg").write_text(drawn(ratios(text)), encoding="utf-8")
