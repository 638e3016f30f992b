"""The drawings of the pages: ``python docs/drawings.py`` draws boxes and arrows, for light and for dark pages.

    job-states.svg    jobs.md: what becomes of a job
    subjects.svg      publish-subscribe.md: from a subject to bindings, durable and live subscriptions
    pending.svg       groups.md: a group, its last delivered ID, its pending entries

They are as wide as a telephone shows without making the text small.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

DOCS = Path(__file__).parent
WIDTH = 460
STYLE = """\
text { font: 13px sans-serif; fill: #222 } .b { font-weight: bold } .s { font-size: 12px; fill: #555 }
.m { text-anchor: middle } .e { text-anchor: end } .page { fill: #fff }
rect, path { fill: none; stroke: #888; stroke-width: 1.3 } .page { stroke: none } .dash { stroke-dasharray: 4 3 }
.a { fill: #e7effb; stroke: #4477aa } .g { fill: #e4f2e6; stroke: #228833 } .r { fill: #fbe8ea; stroke: #bb4455 }
.n { fill: #f1f1f1; stroke: #888 } .y { fill: #fbf3dc; stroke: #b08d1a } .head { fill: #888; stroke: none }
@media (prefers-color-scheme: dark) {
text { fill: #e8e8e8 } .s { fill: #b5b5b5 } .page { fill: #1a1c1e; stroke: none }
.a { fill: #1d3048 } .g { fill: #1b3a22 } .r { fill: #47232a } .n { fill: #2d2f31 } .y { fill: #3d3416 }
}"""


def text(x: int, y: int, words: str, kind: str = "") -> str:
    """Words; of the kinds b: bold, s: small, m: around x, e: up to x."""
    return f'<text x="{x}" y="{y}" class="{kind}">{escape(words)}</text>'


def box(x: int, y: int, width: int, kind: str, name: str, *lines: str) -> str:
    """A box of a colour (a, g, r, n, y), with a name and lines below it."""
    height = 28 + 16 * len(lines)
    below = "".join(text(x + width // 2, y + 36 + 16 * at, line, "s m") for at, line in enumerate(lines))
    return (f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" class="{kind}"/>'
            f'{text(x + width // 2, y + 19, name, "b m")}{below}')


def arrow(*points: tuple[int, int], kind: str = "") -> str:
    """A line through points, with a head at its end."""
    (x, y), (before_x, before_y) = points[-1], points[-2]
    across = (y == before_y)
    step = 9 if (x > before_x if across else y > before_y) else -9
    sides = ((x - step, y - 4), (x - step, y + 4)) if across else ((x - 4, y - step), (x + 4, y - step))
    line = "L".join(f"{one} {two}" for one, two in points)
    head = "L".join(f"{one} {two}" for one, two in ((x, y), *sides))
    return f'<path d="M{line}" class="{kind}"/><path d="M{head}Z" class="head"/>'


def job_states() -> tuple[int, list[str]]:
    """What becomes of a job; the names are those of Job.status."""
    return 382, [
        text(20, 22, "append, or a deferred entry is due"), arrow((75, 28), (75, 48)),
        box(20, 48, 120, "a", "queued", "not delivered"),
        arrow((75, 92), (75, 142)), text(84, 121, "read"),
        box(20, 142, 120, "a", "running", "held by a consumer"),
        arrow((50, 186), (50, 244)), text(42, 219, "failed", "e"),
        arrow((105, 244), (105, 186)), text(113, 219, "due"),
        box(20, 244, 120, "y", "retry", "waits for its time"),
        arrow((140, 156), (230, 156), (230, 78), (310, 78)), text(223, 70, "acknowledged", "m"),
        box(310, 56, 130, "g", "done", "with its result,", "while that is kept"),
        arrow((140, 172), (310, 172)), text(225, 190, "given up", "m"),
        box(310, 150, 130, "r", "dead", "with the reason;", "its letter is there"),
        arrow((375, 210), (375, 244)), text(367, 231, "replayed, purged", "e"),
        box(310, 244, 130, "n", "gone", "not in the stream"),
        arrow((262, 306), (375, 306), (375, 288), kind="dash"),
        text(256, 310, "deleted while queued, running or retry", "e s"),
        '<path d="M20 328H440" class="dash"/>',
        box(310, 342, 130, "n", "unknown"), text(20, 361, "an ID greater than each that the stream has had"),
    ]


def subjects() -> tuple[int, list[str]]:
    """One publish, and the three that it reaches."""
    parts = [
        box(80, 12, 300, "a", 'publish("orders.eu.new", …)', "one commit: all of these, or none"),
        arrow((140, 56), (140, 74), (82, 74), (82, 92)), arrow((230, 56), (230, 92)),
        arrow((320, 56), (320, 74), (378, 74), (378, 92)),
    ]
    columns = [
        ("g", "binding", ("orders.>",), "stream", ("orders", "an entry with", "$subject"),
         ("ranges, groups,", "Spark …"), ("exactly once,", "until trimmed")),
        ("y", "durable", ("orders.*.new",), "stream", ("$durable.billing", "a copy until it is", "acknowledged"),
         ("one subscriber of", "that name; ack"), ("at least once,", "until acknowledged")),
        ("n", "live", ("orders.>",), "ring", ("one row for all", "live subscribers", "of all processes"),
         ("each: a queue", "in its memory"), ("at most once,", "while it is open")),
    ]
    for at, (kind, name, pattern, kept, how, to, often) in enumerate(columns):
        x = 12 + 148 * at
        middle = x + 70
        parts += [
            box(x, 92, 140, kind, name, *pattern), arrow((middle, 136), (middle, 162)),
            box(x, 162, 140, kind, kept, *how), arrow((middle, 238), (middle, 264)),
            *(text(middle, 280 + 16 * row, line, "m") for row, line in enumerate(to)),
            *(text(middle, 322 + 16 * row, line, "b m" if row == 0 else "s m") for row, line in enumerate(often)),
        ]
    return 352, parts


def pending() -> tuple[int, list[str]]:
    """A stream, how far a group has come in it, and the list of what is delivered and not acknowledged."""
    parts = [text(20, 22, "the stream", "b")]
    states = ("g", "g", "a", "y", "a", "a", "n", "n", "n")
    for at, kind in enumerate(states):
        x = 20 + 47 * at
        parts.append(f'<rect x="{x}" y="32" width="44" height="28" rx="4" class="{kind}"/>')
        parts.append(text(x + 22, 51, f"{at + 1}-0", "m"))
    parts += [
        '<path d="M20 68V74H111V68M114 68V74H299V68M302 68V74H440V68"/>',
        text(65, 90, "acknowledged", "s m"), text(206, 90, "pending: 4", "s m"), text(371, 90, "lag: 3", "s m"),
        arrow((300, 118), (300, 78)), text(300, 134, "last delivered ID: 6-0", "m"),
        arrow((206, 98), (206, 164)),
        text(20, 158, "pending entries list (PEL)", "b"),
        '<rect x="20" y="164" width="420" height="122" rx="5"/>',
    ]
    rows = [("entry", "owner", "time", "deliveries"), ("3-0", "anna", "delivered 10:00:07", "1"),
            ("4-0", "none: released", "due 10:05:00", "2"), ("5-0", "anna", "delivered 10:00:07", "1"),
            ("6-0", "ben", "delivered 10:00:09", "1")]
    for at, row in enumerate(rows):
        y = 184 + 23 * at
        parts += [text(x, y, word, "s" if at == 0 else "") for x, word in zip((34, 90, 210, 365), row, strict=True)]
    steps = [("read", "takes the next entries into the list, and moves the last ID"),
             ("ack", "takes an entry out"), ("claim", "gives it another owner; a delivery more"),
             ("nack", "takes its owner away until it is due; then it is read again")]
    for at, (name, what) in enumerate(steps):
        parts += [text(20, 310 + 20 * at, name, "b"), text(66, 310 + 20 * at, what)]
    return 384, parts


DRAWINGS = {"job-states.svg": job_states, "subjects.svg": subjects, "pending.svg": pending}


def drawn(name: str) -> str:
    """One of them, as SVG."""
    height, parts = DRAWINGS[name]()
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">',
        f"<style>{STYLE}</style>", f'<rect width="{WIDTH}" height="{height}" class="page"/>', *parts, "</svg>", ""])


if __name__ == "__main__":
    for drawing in DRAWINGS:
        (DOCS / "pictures" / drawing).write_text(drawn(drawing), encoding="utf-8")
