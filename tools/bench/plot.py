"""Figures as a picture: bars for each contest, curves where its contenders are named by a number. Needs matplotlib."""

from __future__ import annotations

import re
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

from raxlog.storage.errors import NotInstalled

from .rounds import Figure

_POINT = re.compile(r"(.+), ([\d,]+)")  # "raxlog, 10,000"


def load() -> Any:
    """matplotlib's Figure; NotInstalled, naming the extra, where it is missing."""
    try:
        return import_module("matplotlib.figure").Figure
    except ImportError as error:
        raise NotInstalled("matplotlib cannot be imported; a plot needs it: pip install 'raxlog[bench]'") from error


def draw(figures: list[Figure], path: Path) -> None:
    """Write them as a PNG, a panel for each contest; whiskers are quartiles."""
    contests = [list(those) for _, those in groupby(figures, lambda figure: figure.contest)]
    page = load()(figsize=(14, 3.2 * -(-len(contests) // 2)), layout="constrained")
    for number, those in enumerate(contests, 1):
        panel = page.add_subplot(-(-len(contests) // 2), 2, number)
        panel.set_title(f"{those[0].contest}, {those[0].unit}", fontsize=10)
        points = [_POINT.fullmatch(figure.contender) for figure in those]
        if all(points):
            _curves(panel, [(point[1], point[2], figure) for point, figure in zip(points, those, strict=True) if point])
        else:
            _bars(panel, those)
    page.savefig(path, format="png", dpi=110)


def _bars(panel: Any, figures: list[Figure]) -> None:
    names = [figure.contender + (f"\nCPU {figure.cpu_median:,.1f} µs" if figure.cpu else "") for figure in figures]
    bars = panel.barh(names, [figure.median for figure in figures], xerr=_whiskers(figures), color="#8fb3d9", capsize=3)
    panel.bar_label(bars, fmt="{:,.0f}", label_type="center", fontsize=8, padding=12)
    panel.invert_yaxis()


def _curves(panel: Any, points: list[tuple[str, str, Figure]]) -> None:
    spent = panel.twinx()
    spent.set_ylabel("CPU, µs (dashed)")
    labels = list(dict.fromkeys(at for _, at, _ in points))
    for number, series in enumerate(dict.fromkeys(name for name, _, _ in points)):
        mine = [(at, figure) for name, at, figure in points if name == series]
        places, figures = [labels.index(at) for at, _ in mine], [figure for _, figure in mine]
        style = {"color": f"C{number}", "marker": "o"}
        panel.errorbar(places, [figure.median for figure in figures], _whiskers(figures), label=series, **style)
        if figures[0].cpu:
            spent.plot(places, [figure.cpu_median for figure in figures], linestyle="--", **style)
    panel.set_xticks(range(len(labels)), labels)
    panel.set_ylim(bottom=0)
    spent.set_ylim(bottom=0)
    panel.legend(fontsize=8)


def _whiskers(figures: list[Figure]) -> list[list[float]]:
    return [[figure.median - figure.spread[0] for figure in figures],
            [figure.spread[1] - figure.median for figure in figures]]
