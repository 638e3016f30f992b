"""A table of the terminal: lines under a head, one of them chosen, of which only the visible ones are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widget import Widget

from ..output import cell_width

Cells = tuple[str, ...]
_NAME, _LEAST = 26, 20  # columns for names, beside figures: at first, and where the terminal is narrow
STYLES = ("", "yellow", "bold red")  # by what is wrong with a line: nothing, a warning, more


class Table(Widget, can_focus=True):
    """``show()`` gives it its lines: how many there are, and a function that makes one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False), Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False), Binding("pagedown,space", "page(1)", show=False),
        Binding("home", "move(-1000000000)", "first", show=False), Binding("end", "move(1000000000)", show=False),
        Binding("enter", "choose", "open", show=False),
    ]

    class Chosen(Message):
        """Enter."""

        def __init__(self, table: Table, place: int) -> None:
            super().__init__()
            self.table = table
            self.place = place

    def __init__(self, head: Sequence[str], right: int, *, id: str) -> None:
        super().__init__(id=id)
        self.place: int = 0  # the line chosen
        self._head = tuple(head)
        self._right = right  # the first column that is aligned to the right
        self._count = 0
        self._top = 0
        self._line: Callable[[int], tuple[int, Cells]] = lambda _: (0, ())

    def show(self, count: int, line: Callable[[int], tuple[int, Cells]], place: int | None = None) -> None:
        """Show other lines; ``line`` makes one: what is wrong with it, and its cells. ``place`` is the one chosen."""
        self._count, self._line = count, line
        self._go(self.place if place is None else place)

    def _go(self, place: int) -> None:
        self.place = max(0, min(place, self._count - 1))
        self.refresh()

    def action_move(self, by: int) -> None:
        self._go(self.place + by)

    def action_page(self, by: int) -> None:
        self._go(self.place + by * max(1, self.size.height - 2))

    def action_choose(self) -> None:
        if self._count:
            self.post_message(self.Chosen(self, self.place))

    def render(self) -> Text:
        """The lines that fit, the chosen one among them."""
        width, room = self.size.width, max(1, self.size.height - bool(self._head))
        self._top = max(0, min(self._top, self.place, self._count - room), self.place - room + 1)
        lines = [self._line(at) for at in range(self._top, min(self._count, self._top + room))]
        text = Text(no_wrap=True, overflow="crop")
        rows = [cells for _, cells in lines]
        widths = self._widths(rows, width)
        if self._head:
            text.append(self._laid(self._head, widths), "bold dim")
        for at, (level, cells) in enumerate(lines, self._top):
            if at > self._top or self._head:
                text.append("\n")
            chosen = "reverse" if at == self.place and self.has_focus else ""
            text.append(self._laid(cells, widths).ljust(width), f"{STYLES[level]} {chosen}".strip())
        return text

    def _widths(self, rows: Sequence[Cells], width: int) -> list[int]:
        """The width of each column. Of figures as many columns as fit, and the names get the room that is left."""
        columns = zip(*[row for row in (self._head, *rows) if row], strict=True)
        wanted = [max(map(cell_width, column)) for column in columns]
        if self._right < len(wanted):
            while len(wanted) > 1 and _LEAST + sum(wanted[1:]) + 2 * (len(wanted) - 1) > width:
                wanted.pop()
            wanted[0] = min(max(wanted[0], _NAME), max(1, width - sum(wanted[1:]) - 2 * (len(wanted) - 1)))
        return wanted

    def _laid(self, cells: Cells, widths: Sequence[int]) -> str:
        laid = []
        for at, (cell, width) in enumerate(zip(cells, widths, strict=False)):
            cut = cut_to(cell, width)
            gap = " " * (width - cell_width(cut))
            laid.append(gap + cut if at >= self._right else cut + gap)
        return "  ".join(laid)


def cut_to(text: str, width: int) -> str:
    """A text in so many columns, with … where it is cut."""
    if cell_width(text) <= width:
        return text
    while text and cell_width(text) > width - 1:
        text = text[:max(0, min(len(text) - 1, width - 1))]
    return text + "…"
