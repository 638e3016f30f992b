"""The dashboard in the terminal, by textual: what is wrong on top, below it streams and groups, and behind these more.

    Overview ── Enter on a group ── GroupPage ── Enter on a consumer ── PendingPage ── Enter ─┐
        └────── Enter on a stream, or e ── EntriesPage ── Enter ──────────────────── EntryPage ┘

The app looks at the store by a Watch, in a thread, and hands each picture to the page that is shown. Texts come from
view.py and browser.py with no control character left, and are drawn as they are: nothing is parsed as markup.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar, TypeVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Input, Static

from ...status import GroupStatus, StreamStatus
from ...storage.errors import RaxlogError
from ...store import Store
from ...stream.group.dead_letters import is_letter_of
from ...stream.group.info import Pending
from ...stream.node import arguments
from ...stream.node.entry import Entry
from ...stream.node.stream_id import StreamID
from .. import output
from . import browser, view
from .plot import chart
from .table import Table
from .view import COLUMNS, ORDERS, age
from .watch import Key, Picture, Watch

T = TypeVar("T")
_PENDING = 1000  # entries of a consumer that are listed
_HEX, _TEXT = 4096, 65_536  # of a value that are shown


class Page(Screen[None]):
    """A page of the dashboard: a head, what the page is about, and an input line that shows up when it is asked.

    Its parts are there from its beginning and stay behind its end, so that they are never looked up: a picture, a key
    or what has been read in a thread may reach a page that is not drawn yet, or not any more.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", "back", "back"), Binding("q", "app.quit", "quit")]
    columns: ClassVar[tuple[tuple[str, ...], int]] = (), 9  # of the table, and the first that is aligned to the right
    CSS = """
    #head, #about { text-wrap: nowrap; text-overflow: ellipsis; }
    #head { height: 1; background: $panel; color: $text; }
    #about { height: auto; max-height: 60%; }
    #wrong { height: auto; min-height: 1; max-height: 30%; border-bottom: solid $panel; }
    Table { height: 1fr; }
    Input { dock: bottom; height: 1; border: none; padding: 0; display: none; }
    Input.asked { display: block; }
    """

    def __init__(self, key: Key | None = None) -> None:
        super().__init__()
        self._of = key  # the stream or group that the page is about
        self.head, self.text = Static(id="head", markup=False), Static(id="about", markup=False)
        self.table = Table(*self.columns, id="rows")
        self.line = Input(id="input")
        self._asked: Callable[[str], None] | None = None

    @property
    def top(self) -> Top:
        assert isinstance(self.app, Top)
        return self.app

    def key(self) -> Key | None:
        """The stream or group that is chosen."""
        return self._of

    def compose(self) -> ComposeResult:
        yield self.head
        yield from self.body()
        yield self.line
        yield Footer(show_command_palette=False)

    def body(self) -> ComposeResult:
        """What is between head and foot."""
        yield self.text
        yield self.table

    def show(self, picture: Picture) -> None:
        """Bring the page to a picture."""

    async def on_mount(self) -> None:
        self.show(self.top.picture)
        self.table.focus()

    def on_screen_resume(self) -> None:
        self.show(self.top.picture)

    def say(self, line: str) -> None:
        """The head's text."""
        self.head.update(Text(line))

    def about(self, *lines: str) -> None:
        """The text above the table."""
        text = Text("\n".join(lines))
        text.highlight_regex("[▁-█]+", "cyan")
        self.text.update(text)

    def ask(self, prompt: str, value: str, then: Callable[[str], None]) -> None:
        """Ask for a line of text."""
        self._asked, self.line.placeholder, self.line.value = then, prompt, value
        self.line.add_class("asked")
        self.line.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        then = self._asked
        self._end_input()
        if then is not None:
            then(event.value.strip())

    def _end_input(self) -> None:
        self._asked = None
        self.line.remove_class("asked")
        self.table.focus()

    async def read(self, call: Callable[[Store], T]) -> T | None:
        """What ``call`` reads of the store, in a thread; else it is said what has prevented it."""
        store = self.top.over.store
        try:
            if store is not None:
                return await asyncio.to_thread(call, store)
            self.about(output.one_line(self.top.picture.error))
        except RaxlogError as error:
            self.about(output.one_line(str(error)))
        return None

    def action_entries(self) -> None:
        if (key := self.key()) is not None:
            self.app.push_screen(EntriesPage((key[0], None)))

    def action_dead(self) -> None:
        key = self.key()
        if key is not None and key[1] is not None:
            self.app.push_screen(EntriesPage(key))

    def action_back(self) -> None:
        if self._asked is not None:
            self._end_input()
        elif len(self.app.screen_stack) > 2:  # the first is textual's own
            self.app.pop_screen()


class Overview(Page):
    """What is wrong, and all streams and groups."""

    columns = COLUMNS, 1
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.focus_next", "wrong/all"), Binding("o", "order", "order"),
        Binding("slash", "filter", "filter"), Binding("e", "entries", "entries"), Binding("d", "dead", "dead letters"),
        Binding("escape,backspace", "back", show=False)]

    def __init__(self) -> None:
        super().__init__()
        self._picture = Picture(None, "", {})
        self._view = view.NOTHING
        self._order, self._filter = ORDERS[0], ""
        self.wrong = Table((), 9, id="wrong")

    def body(self) -> ComposeResult:
        yield self.wrong
        yield self.table

    def show(self, picture: Picture) -> None:
        shown, table, wrong = self._view, self.table, self.wrong
        key = self.key()
        self._picture = picture
        self._view = found = view.view(self.top.over, picture, self._order, self._filter, shown)
        about = [f"by {self._order}"] + [f"with {output.one_line(self._filter)!r}"] * bool(self._filter)
        self.say(f"{found.head} · {', '.join(about)}")
        lines = [(row.level, (row.where, row.what)) for row in found.wrong] or [(0, ("nothing is wrong", ""))]
        wrong.styles.height = len(lines) + 1
        wrong.show(len(lines), lines.__getitem__)
        status, place = picture.status, None
        if status is not None and key is not None and found.rows is not shown.rows and table.place:
            place = next((at for at, row in enumerate(found.rows) if view.key_of(status, row) == key), None)
        table.show(len(found.rows), self._line, place)

    def _line(self, place: int) -> tuple[int, tuple[str, ...]]:
        row, status = self._view.rows[place], self._picture.status
        assert status is not None
        return self._view.levels.get(view.key_of(status, row), 0), view.cells(self.top.over, self._picture, row)

    def key(self) -> Key | None:
        """The stream or group that is chosen."""
        status, rows = self._picture.status, self._view.rows[self.table.place:][:1]
        return view.key_of(status, rows[0]) if status is not None and rows else None

    def on_table_chosen(self, event: Table.Chosen) -> None:
        key = self.key()
        if event.table is self.wrong:
            key = self._view.wrong[event.place].key if event.place < len(self._view.wrong) else None
        if key is not None:
            self.app.push_screen(EntriesPage(key) if key[1] is None else GroupPage(key))

    def action_order(self) -> None:
        self._order = ORDERS[(ORDERS.index(self._order) + 1) % len(ORDERS)]
        self.show(self._picture)

    def action_filter(self) -> None:
        self.ask("part of a name", self._filter, self._filtered)

    def _filtered(self, value: str) -> None:
        self._filter = value
        self.show(self._picture)


class GroupPage(Page):
    """A group: its figures, their course, and its consumers."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("e", "entries", "entries"), Binding("d", "dead", "dead letters")]

    columns = view.CONSUMERS, 1

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self._group = key
        self._consumers: list[arguments.Text] = []

    def show(self, picture: Picture) -> None:
        self.say(" / ".join(output.text(name) for name in self._group if name is not None))
        stream, group = picture.find(self._group)
        lines: list[tuple[int, tuple[str, ...]]] = []
        if stream is None or group is None or picture.status is None:
            self.about(output.one_line(picture.error) or "the group is not there")
        else:
            self._draw(stream, group)
            lines = view.consumers(group, picture.status.time)
            self._consumers = [row.name for row in sorted(group.consumers, key=lambda row: -row.oldest_pending)]
        self.table.show(len(lines), lines.__getitem__)

    def _draw(self, stream: StreamStatus, group: GroupStatus) -> None:
        samples = self.top.over.samples(self._group)
        lines = [f"lag {group.lag:,} · pending {group.pending:,} ({group.released:,} released) · oldest pending "
                 f"{age(group.oldest_pending)}, delivered {group.oldest_deliveries} times · "
                 f"{group.dead_letters:,} dead · "
                 f"last delivered {group.last_delivered_id}", *filter(None, [view.state(group)])]
        height = (self.size.height - 6) // 6
        if height >= 1:
            for title, series, what in (("stream, entries/s", self.top.over.samples((stream.name, None)), "value"),
                                        ("lag", samples, "value"), ("delivery latency", samples, "latency")):
                lines += [title, *chart(series, what, self.size.width, height)]
        self.about(*lines)

    def on_table_chosen(self, event: Table.Chosen) -> None:
        self.app.push_screen(PendingPage(self._group, self._consumers[event.place]))


class PendingPage(Page):
    """What is pending with a consumer."""

    columns = ("id", "time", "idle", "tries"), 9

    def __init__(self, key: Key, consumer: arguments.Text) -> None:
        super().__init__(key)
        self._stream, self._group = key
        self._consumer = consumer
        self._pending: list[Pending] = []

    async def on_mount(self) -> None:
        self.say(" / ".join(map(output.text, (self._stream, self._group or b"", self._consumer))))
        found = await self.read(lambda store: store.stream(self._stream).group(self._group or b"").pending_entries(
            count=_PENDING, consumer=self._consumer))
        if found is not None:
            self._pending = found
            self.about(f"{output.many(len(found), 'pending entry')}, first by ID")
        lines = [(2 if (row.idle or 0) > view.IDLE else 0, (
            str(row.id), output.time_of(row.id), age(row.idle or 0), str(row.deliveries))) for row in self._pending]
        self.table.show(len(lines), lines.__getitem__)
        self.table.focus()

    async def on_table_chosen(self, event: Table.Chosen) -> None:
        sid = self._pending[event.place].id
        found = await self.read(lambda store: [store.stream(self._stream).get(sid)])
        if not self.is_current:  # it has been left while the entry was read
            return
        if found and found[0] is not None:
            self.app.push_screen(EntryPage(self._stream, found[0]))
        elif found:
            self.about(f"the entry {sid} has been deleted")


class EntriesPage(Page):
    """The entries of a stream, or dead letters of a group, the newest first, or from a place on."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "next", "next"), Binding("p", "previous", "previous"), Binding("r", "turn", "turn"),
        Binding("g", "go", "go to"), Binding("s", "subject", "subject"), Binding("f", "field", "field")]

    columns = ("id", "time", "fields"), 9

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self._stream, self._group = key
        self._shown = key[0]
        self._reverse, self._subject, self._field = True, "", ""
        self._starts = [StreamID.MAX]  # of the pages so far
        self._page = browser.Page([], None, 0, "")

    async def on_mount(self) -> None:
        await self._load()
        self.table.focus()

    async def _load(self) -> None:
        self.about("")
        page = await self.read(self._look)
        self._page = page or browser.Page([], None, 0, "")
        asked = {"subject": self._subject, "field": self._field}
        self.say(" · ".join([f"{output.text(self._shown)}: entries, {'newest' if self._reverse else 'oldest'} first",
                             *(f"{name} {output.one_line(value)}" for name, value in asked.items() if value)]))
        if page is not None:
            more = "" if page.next is None else ", n goes on"
            self.about(page.damaged or f"{len(page.entries)} of {output.many(page.looked_at, 'entry')} looked at{more}")
        lines = [(0, (str(entry.id), output.time_of(entry.id), "  ".join(
            f"{name}={value[:_HEX]}" for name, value in browser.fields(entry)))) for entry in self._page.entries]
        self.table.show(len(lines), lines.__getitem__, 0)

    def _look(self, store: Store) -> browser.Page:
        stream, wanted = store.stream(self._stream), browser.matcher(self._subject, self._field)
        if self._group is not None:
            letters, matches = stream.group(self._group).dead_letters, wanted
            stream, wanted = store.stream(letters.name), lambda entry: is_letter_of(letters, entry) and matches(entry)
        self._shown = stream.name
        return browser.page(stream, self._starts[-1], reverse=self._reverse, count=max(5, self.size.height - 5),
                            wanted=wanted)

    def on_table_chosen(self, event: Table.Chosen) -> None:
        self.app.push_screen(EntryPage(self._shown, self._page.entries[event.place]))

    async def action_next(self) -> None:
        if self._page.next is not None:
            self._starts.append(self._page.next)
            await self._load()

    async def action_previous(self) -> None:
        if len(self._starts) > 1:
            self._starts.pop()
            await self._load()

    async def action_turn(self) -> None:
        self._reverse = not self._reverse
        await self._from(StreamID.MAX if self._reverse else StreamID.MIN)

    async def _from(self, start: StreamID) -> None:
        self._starts = [start]
        await self._load()

    def action_go(self) -> None:
        self.ask("an ID (1526919030474-55) or a time (2026-11-24T08:00)", "", self._gone)

    def _gone(self, value: str) -> None:
        try:
            start = browser.place(value, self._reverse)
        except RaxlogError as error:
            self.about(output.one_line(str(error)))
        else:
            self.call_next(self._from, start)

    def action_subject(self) -> None:
        self.ask("a subject, with * and >", self._subject, lambda value: self._narrow("_subject", value))

    def action_field(self) -> None:
        self.ask("name, name=value, or name~part", self._field, lambda value: self._narrow("_field", value))

    def _narrow(self, name: str, value: str) -> None:
        setattr(self, name, value)
        self.call_next(self._from, self._starts[0])


class EntryPage(Page):
    """An entry as a whole: its fields as text, or as they are stored."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("x", "hex", "hex")]

    def __init__(self, stream: arguments.Text, entry: Entry) -> None:
        super().__init__()
        self._stream, self._entry, self._is_hex = stream, entry, False
        self.whole = VerticalScroll(self.text, id="rows")

    def body(self) -> ComposeResult:
        yield self.whole

    async def on_mount(self) -> None:
        self.say(f"{output.text(self._stream)} · {self._entry.id} · {output.time_of(self._entry.id)}")
        lines = browser.hex_lines(self._entry, _HEX) if self._is_hex else [
            f"{name} = {value[:_TEXT]}{'…' * (len(value) > _TEXT)}" for name, value in browser.fields(self._entry)]
        self.text.styles.max_height = None
        self.text.update(Text("\n".join(lines)))
        self.whole.focus()

    async def action_hex(self) -> None:
        self._is_hex = not self._is_hex
        await self.on_mount()


class Top(App[None]):
    """The dashboard over a watch."""

    ENABLE_COMMAND_PALETTE = False
    CSS = Page.CSS

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.over = watch
        self.picture: Picture = watch.look()
        self.title = output.text(watch.path)

    def on_mount(self) -> None:
        self.push_screen(Overview())
        self.run_worker(self._looking(), name="looking")

    async def _looking(self) -> None:
        while True:
            await asyncio.sleep(self.over.pause)
            self.picture = await asyncio.to_thread(self.over.look)
            for page in self.screen_stack[-1:]:  # there is none while the dashboard ends
                if isinstance(page, Page):
                    page.show(self.picture)
