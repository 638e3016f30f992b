"""The dashboard in the terminal: every key is pressed, on a store that another process goes on changing."""

from __future__ import annotations

import asyncio
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import raxlog
from cli_runs import Run, one_line
from elsewhere import Do
from raw_records import changed_copy, flipped, records_of
from raxlog.storage.format.keys import NODE
from raxlog.tools.ui import view as views
from raxlog.tools.ui.top import EntriesPage, EntryPage, GroupPage, Overview, PendingPage, Top
from raxlog.tools.ui.watch import Watch
from textual.pilot import Pilot
from textual.widgets import Input

pytest_plugins = ["cli_fixtures", "elsewhere_fixtures"]

HOSTILE = "<b>[red]\x1b]0;x\x07{x}"
FILL = f"""
orders, mail = store.stream("orders"), store.stream("mail")
for name in ("billing", "shipping"):
    orders.create_group(name, start="0", create_stream=True)
store.bind("orders.>", "orders")
store.publish("orders.eu.new", {{"item": {HOSTILE!r}, "raw": b"\\xff\\0"}})
orders.extend([{{"item": "book", "n": n}} for n in range(100)], ids=[f"2000000000000-{{n}}" for n in range(100)])
mail.append({{"to": "ann@example.org"}})
taken = orders.group("billing").read("anna", count=5)
store.stream("orders.billing.dead").append({{"$dead": "{{}}", "item": "given up"}})
"""


@pytest.fixture
def shop(elsewhere: Do, path: Path) -> Path:
    """A store with a hostile entry, 100 more, and what is pending and dead."""
    elsewhere(FILL)
    return path


def seen(app: Top) -> list[str]:
    """The lines of the terminal."""
    return [strip.text.rstrip() for strip in app.screen._compositor.render_strips()]


def dashboard(path: Path, use: Callable[[Top, Pilot[None], Callable[..., Awaitable[str]]], Awaitable[None]],
              size: tuple[int, int] = (80, 24)) -> None:
    """Run the dashboard in a terminal of that size; ``use`` gets a function that presses keys.

    "=text" is typed as a whole. What it returns is the screen, once that changes no more.
    """

    async def run() -> None:
        watch = Watch(str(path))
        app = Top(watch)
        async with app.run_test(size=size) as pilot:
            async def press(*keys: str) -> str:
                for key in keys:
                    if len(key) > 1 and key[0] == "=":
                        app.screen.query_one(Input).value = key[1:]
                    else:
                        await pilot.press(key)
                before, now = None, "\n".join(seen(app))
                while now != before:  # what is read in a thread is there
                    await pilot.pause(0.03)
                    before, now = now, "\n".join(seen(app))
                return now

            await use(app, pilot, press)
        watch.close()

    asyncio.run(run())


def test_what_is_wrong_is_on_top_and_all_streams_and_groups_below(shop: Path) -> None:
    async def use(app: Top, pilot: Pilot[None], press: Callable[..., Awaitable[str]]) -> None:
        lines = (await press()).splitlines()
        assert lines[0].startswith(str(shop)[:70])
        assert any("orders / billing  1 dead letter" in line for line in lines[1:4])
        names = [line.split()[0] for line in lines[4:] if line.strip()]
        assert {"orders", "billing", "shipping", "mail", "orders.billing.dead"} <= set(names)
        [billing] = [line for line in lines[4:] if line.startswith("  billing")]
        assert billing.split()[1:3] == ["96", "5"]
        assert all(len(line) <= 80 for line in lines)

    dashboard(shop, use)


def test_every_key_of_the_overview(shop: Path) -> None:
    async def use(app: Top, pilot: Pilot[None], press: Callable[..., Awaitable[str]]) -> None:
        for order in ("rate", "lag", "name", "trouble"):
            await press("o")
            assert app.screen._order == order  # type: ignore[attr-defined]
        table = app.screen.query_one("#rows")
        for key, place in (("down", 1), ("j", 2), ("up", 1), ("k", 0), ("end", 4), ("home", 0), ("pagedown", 4),
                           ("pageup", 0), ("space", 4), ("home", 0)):
            await press(key)
            assert table.place == place, key  # type: ignore[attr-defined]
        await press("slash")
        screen = await press("=mail", "enter")
        assert "billing" not in screen.split("stream / group")[1].replace("mail", "")
        assert "with 'mail'" in (await press()).splitlines()[0] or "mail" in screen
        await press("slash", "= ", "enter")
        await press("slash", "x", "escape")  # which leaves it as it was
        assert "shipping" in await press()
        await press("tab")
        screen = await press("enter")  # what is wrong leads to its group
        assert screen.splitlines()[0].startswith("orders / billing")
        screen = await press("d")
        assert "given up" in screen
        await press("escape", "escape")
        screen = await press("e")
        assert "entries, newest first" in screen
        await press("escape", "escape", "escape")
        assert len(app.screen_stack) == 2
        await press("q")
        assert not app.is_running

    dashboard(shop, use)


def test_the_dead_letters_of_a_group_are_its_own(path: Path) -> None:
    def give_up(entry: raxlog.Entry) -> None:
        raise raxlog.Discard("no")

    with raxlog.open(path) as store:
        for stream, group in (("a", "b.c"), ("a.b", "c")):
            made = store.stream(stream).create_group(group, "0", create_stream=True)
            store.stream(stream).append({"of": f"stream-{stream}"})
            made.worker(give_up).run(burst=True)

    async def use(app: Top, pilot: Pilot[None], press: Callable[..., Awaitable[str]]) -> None:
        await press("o", "o", "o")  # by name
        for stream in ("a", "a.b"):
            await press("down")
            screen = await press("d")
            assert "a.b.c.dead: entries, newest first" in screen
            assert f"of=stream-{stream}" in screen.replace("\n", "") or "1 of 2 entries looked at" in screen
            assert "1 of 2 entries looked at" in screen
            await press("escape", "down")

    dashboard(path, use, (200, 24))


def test_a_picture_and_keys_that_come_before_a_page_is_drawn_or_after_it_was_left_do_no_harm(shop: Path) -> None:
    async def use(app: Top, pilot: Pilot[None], press: Callable[..., Awaitable[str]]) -> None:
        orders, billing = ("orders", None), ("orders", "billing")
        with raxlog.open(shop, readonly=True, encoding=None) as store:
            [entry] = store.stream("orders").range(count=1)
        for page in (Overview(), GroupPage(billing), PendingPage(billing, "anna"), EntriesPage(orders),
                     EntryPage("orders", entry)):
            app.push_screen(page)  # its parts are drawn by and by
            page.show(app.picture)
            for name in ("order", "filter", "back", "subject", "next"):
                done = getattr(page, f"action_{name}", lambda: None)()
                if done is not None:
                    await done
            page.line.value = "orders"
            await press("enter", "escape")
            while page in app.screen_stack:
                await press("escape")
            page.show(app.picture)
            page.ask("?", "", lambda _: None)
            page.action_back()
            if isinstance(page, EntriesPage):
                await page.action_turn()
        assert "billing" in await press()

    dashboard(shop, use)


def test_a_group_its_consumers_what_is_pending_and_the_entry(shop: Path, elsewhere: Do) -> None:
    async def use(app: Top, pilot: Pilot[None], press: Callable[..., Awaitable[str]]) -> None:
        screen = await press("down", "enter")
        assert screen.splitlines()[0] == "orders / billing"
        assert "lag 96 · pending 5" in screen
        elsewhere("orders.group('billing').configure(max_in_flight=5)")
        app.picture = app.over.look()
        app.screen.show(app.picture)  # type: ignore[attr-defined]
        assert "5/5 held (full)" in await press()
        assert "delivery latency" in screen
        screen = await press("enter")
        assert "orders / billing / anna" in screen
        assert "5 pending entries" in screen
        screen = await press("down", "enter")
        assert "item = book" in screen
        screen = await press("x")
        assert "62 6f 6f 6b" in screen
        assert "book" in screen
        await press("x", "escape")
        elsewhere("orders.delete(taken[1].id)")
        assert "has been deleted" in await press("enter")
        await press("escape")
        assert "entries, newest first" in await press("e")
        await press("escape", "escape", "escape")
        elsewhere("orders.group('billing').destroy()")
        app.picture = app.over.look()
        await press("enter")
        assert len(app.screen_stack) == 3

    dashboard(shop, use)


def test_the_entry_browser_goes_by_page_by_id_by_time_by_subject_and_by_field(shop: Path) -> None:
    async def use(app: Top, pilot: Pilot[None], press: Callable[..., Awaitable[str]]) -> None:
        screen = await press("e")
        assert "2000000000000-99" in screen
        assert "2000000000000-81" in screen
        assert "2000000000000-80" in await press("n")
        assert "2000000000000-99" in await press("p")
        assert "2000000000000-99" in await press("p")  # there is none before the first
        screen = await press("r")
        assert "oldest first" in screen
        assert "$subject=orders.eu.new" in screen
        await press("g")
        assert "2000000000000-42" in (await press("=2000000000000-42", "enter")).splitlines()[3]
        await press("g")
        assert "2000000000000-0 " in (await press("=2033-05-18", "enter")).splitlines()[3]
        await press("g")
        assert "is not a place" in await press("=yesterday", "enter")
        await press("r", "r", "s")
        screen = await press("=orders.*.new", "enter")
        assert "1 of 101 entries looked at" in screen
        await press("s")
        assert "orders..new" in await press("=orders..new", "enter")
        await press("s", "= ", "enter", "f")
        screen = await press("=n=17", "enter")
        assert "2000000000000-17" in screen
        assert "1 of 101 entries" in screen
        await press("f", "=item~oo", "enter")
        assert "n goes on" in await press()
        assert "item = book" in await press("enter")
        await press("escape")

    dashboard(shop, use)


def test_hostile_names_and_values_are_shown_as_text(elsewhere: Do, path: Path) -> None:
    elsewhere(f"name = {HOSTILE!r}; store.stream(name).append({{name: name * 3}}); "
              "store.stream(name).create_group(name, '0').read(name)")

    async def use(app: Top, pilot: Pilot[None], press: Callable[..., Awaitable[str]]) -> None:
        shown = r"<b>[red]\x1b]0;x\x07"
        for keys in ((), ("down", "enter"), ("enter",), ("enter",), ("x",), ("escape", "e", "enter")):
            screen = await press(*keys)
            assert "\x1b" not in screen
            assert "\x07" not in screen
            assert shown in screen or "1b 5d" in screen, keys

    dashboard(path, use, (120, 24))


@pytest.mark.parametrize("size", [(20, 5), (80, 24), (200, 50), (1, 1)])
def test_a_terminal_of_any_size_shows_what_fits(shop: Path, size: tuple[int, int]) -> None:
    async def use(app: Top, pilot: Pilot[None], press: Callable[..., Awaitable[str]]) -> None:
        for keys in ((), ("down", "enter"), ("enter",), ("enter",), ("escape", "escape", "e")):
            await press(*keys)
            assert len(seen(app)) == size[1]
            assert all(len(line) <= size[0] for line in seen(app))
        if size == (200, 50):
            await press("escape", "escape")
            assert "latency" in await press()
        await pilot.resize_terminal(30, 8)
        await press()

    dashboard(shop, use, size)


def test_a_store_that_is_deleted_and_comes_back_is_followed(shop: Path, elsewhere: Do, tmp_path: Path) -> None:
    async def use(app: Top, pilot: Pilot[None], press: Callable[..., Awaitable[str]]) -> None:
        app.over.pause = 0.01
        elsewhere("store.close()")
        shop.rename(tmp_path / "away")
        await pilot.pause(1.5)
        screen = await press()
        assert "store" in screen.splitlines()[1]
        await press("down", "enter", "e")
        (tmp_path / "away").rename(shop)
        await pilot.pause(1.5)
        assert "shipping" in await press()

    dashboard(shop, use)


def test_a_damaged_node_under_the_browser_is_reported_and_what_is_whole_is_shown(
        elsewhere: Do, path: Path, tmp_path: Path) -> None:
    elsewhere("orders = store.stream('orders', node_max_entries=10); "
              "orders.extend([{'n': n} for n in range(40)], ids=[f'{n}-0' for n in range(1, 41)]); store.close()")
    key, value = records_of(path, 1, NODE)[1]
    damaged = changed_copy(path, tmp_path / "damaged.rax", {key: flipped(value, len(value) - 9, 1)})

    async def use(app: Top, pilot: Pilot[None], press: Callable[..., Awaitable[str]]) -> None:
        screen = await press("e")
        assert "40-0" in screen
        screen = await press("n", "n")
        assert "salvage" in screen or "check" in screen or "damaged" in screen.lower() or "checksum" in screen
        assert "1-0 " in await press("r")

    dashboard(damaged, use, (80, 20))


def test_top_needs_a_terminal_and_the_extra(raxlog_cli: Run, orders: str, tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    status, _, err = raxlog_cli("top", orders)
    assert (status, "terminal" in one_line(err)) == (2, True)
    assert raxlog_cli("top", str(tmp_path / "nowhere"), "--json")[0] == 3
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setitem(sys.modules, "textual", None)
    status, _, err = raxlog_cli("top", orders)
    assert (status, "pip install 'raxlog[ui]'" in one_line(err)) == (2, True)


def test_top_prints_what_is_wrong_as_json(raxlog_cli: Run, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "_SCARCE", 0)
    status, out, _ = raxlog_cli("top", str(shop), "--json")
    assert status == 1
    assert '"where": "orders / billing"' in out
    assert "1 dead letter" in out


def test_top_in_a_real_terminal_ends_with_q(shop: Path) -> None:
    ours, its = pty.openpty()
    with subprocess.Popen([sys.executable, "-m", "raxlog", "top", str(shop)], stdin=its, stdout=its, stderr=its,
                          env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}) as child:
        os.close(its)
        written = b""
        while b"shipping" not in written:
            written += os.read(ours, 65536)
        os.write(ours, b"q")
        with suppress(OSError):
            while os.read(ours, 65536):
                pass
        assert child.wait(20) == 0
    os.close(ours)
    shutil.rmtree(shop)
