"""The watch, and the view of what it has seen."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import forkserver
import pytest
from elsewhere import Do
from raxlog.recovery.snapshot.restore import restore
from raxlog.tools.ui import view as views
from raxlog.tools.ui import watch as watches
from raxlog.tools.ui.watch import NO_KEY, Sample, Watch

pytest_plugins = ["elsewhere_fixtures"]

HOSTILE = "<b>\x1b[31m$x$[red]"


@pytest.fixture
def watch(elsewhere: Do, path: Path) -> Iterator[Watch]:
    """A watch over the store that ``elsewhere`` writes to."""
    made = Watch(str(path))
    yield made
    made.close()


def wrong(watch: Watch) -> dict[str, str]:
    """What is wrong, by where."""
    return {one.where: one.what for one in views.view(watch, watch.look()).wrong if one.where != "disk"}


def lengths(watch: Watch) -> list[int]:
    """The lengths of all streams, as a look finds them now."""
    picture = watch.look()
    assert picture.status is not None, picture.error
    return [one.length for one in picture.status.streams]


def test_a_watch_has_the_rate_the_lag_and_the_delivery_latency(elsewhere: Do, watch: Watch) -> None:
    elsewhere("orders = store.stream('orders'); mail = orders.create_group('mail', create_stream=True)")
    watch.look()
    elsewhere("orders.extend([{'n': n} for n in range(10)]); time.sleep(0.05); mail.read('a', count=4)")
    picture = watch.look()
    assert 0 < picture.rates[b"orders"] <= 10 / 0.05
    assert watch.samples(NO_KEY)[-1].value == picture.rates[b"orders"]
    sample = watch.samples((b"orders", b"mail"))[-1]
    assert sample.value == 6
    assert 0.05 <= sample.latency < 5
    assert watch.look().rates == {b"orders": 0}
    assert watch.look().rates == {}


def test_a_store_at_rest_adds_no_samples_and_its_last_one_is_of_now(elsewhere: Do, watch: Watch) -> None:
    elsewhere("store.stream('orders').append({'n': 1}); store.stream('orders').create_group('mail', '$')")
    for _ in range(5):
        watch.look()
    first, last = watch.samples((b"orders", b"mail"))
    assert last.time > first.time
    assert len(watch.samples(NO_KEY)) <= 3


def test_what_is_stuck_what_was_given_up_and_what_was_never_read_is_wrong(
        elsewhere: Do, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "IDLE", 0.05)
    elsewhere("""
orders = store.stream("orders")
for group in ("mail", "unread", "fine"):
    orders.create_group(group, start="0", create_stream=True)
orders.extend([{"n": n} for n in range(4)])
orders.group("mail").read("a", count=4)
orders.group("mail").claim("b", orders.select(0))
fine = orders.group("fine")
fine.ack(*[entry.id for entry in fine.read("a", count=4)])
store.stream("orders.mail.dead").append({"$dead": "{}"})
time.sleep(0.1)""")
    found = wrong(watch)
    assert sorted(found) == ["orders / mail", "orders / unread"]
    assert "oldest pending " in found["orders / mail"]
    assert "1 dead letter" in found["orders / mail"]
    assert found["orders / unread"].startswith("lag 4, the first waits for ")
    assert found["orders / unread"].endswith("no consumer has ever read")
    picture = watch.look()
    shown = views.view(watch, picture)
    assert picture.status is not None
    found_there = [(views.cells(watch, picture, row)[0], shown.levels.get(views.key_of(picture.status, row), 0))
                   for row in shown.rows[:4]]
    assert found_there == [("orders", 2), ("  fine", 0), ("  mail", 2), ("  unread", 2)]
    assert views.view(watch, watch.look(), before=shown).rows is shown.rows


def test_a_deferred_entry_that_is_late_is_wrong(elsewhere: Do, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "_OVERDUE", 0.05)
    elsewhere("store.stream('orders').defer({'n': 1}, delay=0.01); time.sleep(0.15)")
    assert re.match(r"deferred entries are \d+\.\ds late", wrong(watch)["orders"])


def test_a_schedule_that_is_late_is_named(elsewhere: Do, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "_OVERDUE", 0.05)
    elsewhere("""
for name, every in (("beat", 0.01), ("nightly", 3600), ("off", 60)):
    store.stream("jobs").schedule(name, {"n": 1}, every=every)
store.stream("jobs").pause_schedule("off")
time.sleep(0.15)""")
    assert re.match(r"schedule beat is \d+\.\ds late", wrong(watch)["jobs"])
    picture = watch.look()
    assert picture.status is not None
    assert views.cells(watch, picture, (0, -1))[-2] == "3 schedules, 1 paused, 1 late"
    rows = views.schedules(picture.status.streams[0], picture.status.time)
    assert [(level, cells[0], cells[1] == "paused") for level, cells in rows] == [
        (1, "beat", False), (0, "nightly", False), (0, "off", True)]
    elsewhere("store.stream('jobs').pause_schedule('beat')")
    assert "jobs" not in wrong(watch)
    assert re.fullmatch(r"3 schedules, 2 paused, next in \d+m", views.cells(watch, watch.look(), (0, -1))[-2])
    elsewhere("store.stream('jobs').schedule('b', {'n': 1}, every=0.01)")
    elsewhere("store.stream('jobs').schedule('c', {'n': 1}, every=0.01); time.sleep(0.15)")
    assert "b and 1 more schedules are" in wrong(watch)["jobs"]


def test_what_a_limit_holds_back_is_shown_with_it(elsewhere: Do, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "IDLE", 0.05)

    def states() -> list[str]:
        picture = watch.look()
        return [views.cells(watch, picture, (0, place))[-2] for place in (-1, 0, 1)]

    elsewhere("""
orders = store.stream("orders")
orders.extend([{"n": n} for n in range(5)])
calls, mail = orders.create_group("calls"), orders.create_group("mail")""")
    assert states() == ["", "", ""]
    elsewhere("calls.configure(max_in_flight=2); mail.configure(max_in_flight=9, rate=(3, 60.0))")
    elsewhere("calls.read('a', count=2); mail.read('a'); time.sleep(0.1)")
    assert states() == ["", "2/2 held (full)", "1/9 held, 3/60s (waits)"]
    assert "lag 3, the first waits for " in wrong(watch)["orders / calls"]
    assert ", held back by max_in_flight" in wrong(watch)["orders / calls"]
    assert ", held back by rate" in wrong(watch)["orders / mail"]
    elsewhere("mail.pause()")
    assert states()[2] == "paused, 1/9 held, 3/60s"


def test_a_lag_grows_where_its_later_values_are_above_all_earlier_ones() -> None:
    def samples(*values: float) -> list[Sample]:
        return [Sample(at, value) for at, value in enumerate(values)]

    assert views.grows(samples(1, 5, 3, 9, 12, 10))
    assert not views.grows(samples(1, 5, 9, 3, 12, 10))
    assert not views.grows(samples(1, 2, 3))
    assert not views.grows([Sample(at * 30, at) for at in range(10)])  # what is older than a minute does not count


def test_rows_come_in_the_order_asked_for_and_by_name(elsewhere: Do, watch: Watch) -> None:
    elsewhere("""
for name in ("a", "b", "c"):
    store.stream(name).append({"n": 1})
    store.stream(name).create_group("g", start="0" if name == "b" else "$")""")
    watch.look()
    elsewhere("store.stream('c').extend([{'n': 1}] * 5); store.stream('c').group('g').read('x')")
    picture = watch.look()

    def streams(order: str, wanted: str = "") -> list[str]:
        return [views.cells(watch, picture, row)[0] for row in views.view(watch, picture, order, wanted).rows]

    assert streams("name") == ["a", "  g", "b", "  g", "c", "  g"]
    assert streams("rate")[0] == "c"
    assert streams("lag")[0] == "b"
    assert streams("name", "b") == ["b", "  g"]
    assert streams("name", "g") == streams("name")
    assert streams("name", "x") == []


def test_hostile_names_are_shown_as_text(elsewhere: Do, watch: Watch) -> None:
    elsewhere(f"name = {HOSTILE!r}; store.stream(name).append({{'n': 1}}); "
              "store.stream(name).create_group(name, '0').read(name)")
    picture = watch.look()
    found = views.view(watch, picture)
    assert len(found.rows) == 2
    for row in found.rows:
        [name, *_] = views.cells(watch, picture, row)
        assert name.isprintable()
        assert r"<b>\x1b[31m" in name


def test_a_store_that_appears_is_compacted_restored_and_deleted_while_it_is_watched(path: Path, tmp_path: Path) -> None:
    watch = Watch(str(path))
    picture = watch.look()
    assert picture.status is None
    assert str(path) in views.view(watch, picture).wrong[0].what
    program = """import raxlog, sys
with raxlog.open(sys.argv[1]) as store:
    store.stream("a").extend([{"text": "x" * 1000}] * 500)
    store.snapshot(sys.argv[2])"""
    copy = tmp_path / "copy"
    forkserver.run([sys.executable, "-c", program, str(path), str(copy)], check=True)
    assert lengths(watch) == [500]
    program = """import raxlog, sys
with raxlog.open(sys.argv[1]) as store:
    store.stream("a").trim(maxlen=10)
    store.compact()"""
    forkserver.run([sys.executable, "-c", program, str(path)], check=True)
    assert lengths(watch) == [10]
    shutil.rmtree(path)
    gone = watch.look()
    assert gone.status is None
    assert str(path) in views.view(watch, gone).wrong[0].what
    restore(copy, path)
    assert lengths(watch) == [500]
    watch.close()


def test_the_series_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "_SERIES", 3)
    watch = Watch("nowhere", keep=4)
    for at in range(10):
        for name in "abcde":
            watch._add((name, None), Sample(at, at))
    assert [len(watch.samples((name, None))) for name in "abcde"] == [4, 4, 4, 0, 0]
    watch._add(("d", None), Sample(100, 1))
    assert [len(watch.samples((name, None))) for name in "abcd"] == [0, 4, 4, 1]


def test_figures_are_short() -> None:
    assert [views.age(one) for one in (0.004, 0.31, 14, 119, 840, 8000, 5e5, 1.8e9)] == [
        "4ms", "0.3s", "14s", "119s", "14m", "2h", "6d", "-"]
    assert [views.size(one) for one in (512, 8_200_000, 250_000, 7.2e13)] == ["512 B", "8.2 MB", "250 kB", "72.0 TB"]
    assert [views.number(one) for one in (0, 0.25, 32, 1204, 1.2e6)] == ["0", "0.2", "32", "1,204", "1.2M"]
    assert views.bars([Sample(0, 0), Sample(1, 4), Sample(2, 8)], 3) == " ▅█"
