"""Plots of a stream over time: throughput, lag and delivery latency, as a picture by matplotlib or in a terminal.

What is plotted are the samples of a watch: nothing is kept in the store, so it shows the time for which it has looked.

    chart   48 ┤      ▅█▆          one column a moment; drawn here, with blocks: the terminal's plotext is a compiled
             0 ┤▂▃▅███████▃▁       package since its version 6, whose calls are others than before
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from ...storage import clocks
from ...stream.node.arguments import Text
from .. import output
from .extra import require
from .view import age, number, resampled
from .watch import Picture, Sample, Watch

PANELS = (("throughput, entries/s", "value"), ("lag, entries", "value"), ("delivery latency, s", "latency"))
_MOST = 8  # groups in a picture
_BLOCKS = " ▁▂▃▄▅▆▇█"


def record(watch: Watch, seconds: float, every: float) -> Iterator[tuple[Picture, float]]:
    """Look for so many seconds, every so many: each picture, and the seconds that have passed by then."""
    began = clocks.elapsed()
    while True:
        looked = clocks.elapsed()
        yield watch.look(), looked - began
        if looked >= began + seconds:
            return
        time.sleep(max(0.0, min(looked + every, began + seconds) - clocks.elapsed()))


def series(watch: Watch, picture: Picture, stream: Text) -> list[tuple[str, list[Sample]]]:
    """The samples of a stream, and behind them those of its groups, by name; those with the greatest lag first."""
    found = [(output.text(stream), watch.samples((stream, None)))]
    status = picture.find((stream, None))[0]
    groups = sorted(status.groups if status else (), key=lambda group: -group.lag)
    found += [(output.text(group.name), watch.samples((stream, group.name))) for group in groups]
    return found


def draw(found: list[tuple[str, list[Sample]]], file: str) -> None:
    """A picture of series(), in the format that the file's name ends with. NotInstalled without matplotlib."""
    require("a picture", "matplotlib")
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(9, 7), layout="constrained")
    figure.suptitle(_literal(found[0][0]))
    start = min((sample.time for _, samples in found for sample in samples[:1]), default=0.0)
    panels = figure.subplots(len(PANELS), 1, sharex=True)
    for at, (panel, (title, what)) in enumerate(zip(panels, PANELS, strict=True)):
        shown = found[:1] if at == 0 else found[1:_MOST + 1]
        for name, samples in shown:
            panel.plot([sample.time - start for sample in samples], [getattr(sample, what) for sample in samples],
                       label=_literal(name), linewidth=1.5)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
        panel.set_title(title, fontsize=10, loc="left")
        if at == 1 and shown:
            panel.legend(loc="upper left", fontsize=8)
    panels[-1].set_xlabel(f"seconds since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(start))}")
    figure.savefig(file)


def _literal(name: str) -> str:
    """A name without what matplotlib takes for mathematics, or for a label that is not to be shown."""
    return " " * name.startswith("_") + name.replace("$", r"\$")


def charts(found: list[tuple[str, list[Sample]]], width: int, height: int) -> list[str]:
    """series() as lines for a terminal: a chart of the rate, and two of the group with the greatest lag."""
    lines = []
    for at, (title, what) in enumerate(PANELS):
        for name, samples in found[:1] if at == 0 else found[1:2]:
            lines += [f"{title}: {name}", *chart(samples, what, width, height), ""]
    return lines[:-1]


def chart(samples: list[Sample], what: str, width: int, height: int) -> list[str]:
    """Columns of blocks over an axis, the last one as of now."""
    edge = 8
    values = resampled(samples, max(1, width - edge), what)
    highest = max(values, default=0.0) or 1.0
    shown = age if what == "latency" else number
    lines = []
    for row in range(height - 1, -1, -1):
        mark = shown(highest) if row == height - 1 else shown(0) if row == 0 else ""
        cells = (max(0.0, min(1.0, value / highest * height - row)) for value in values)
        lines.append(f"{mark[:edge - 2]:>{edge - 2}} ┤" + "".join(_BLOCKS[round(part * 8)] for part in cells).rstrip())
    return lines
