"""The command plot: a stream's throughput, lag and delivery latency, in the terminal and as a picture."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import Run, one_line
from elsewhere import writing
from raxlog.tools.ui.plot import chart
from raxlog.tools.ui.watch import Sample

pytest_plugins = ["cli_fixtures"]

NAME = "a$b_{x}<i>"  # of a stream and its group


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[str]:
    """A store to which another process writes while it is looked at."""
    path = tmp_path / "busy.rax"
    with writing(path) as do:
        do(f"""
import threading
busy = store.stream({NAME!r})
group = busy.create_group({NAME!r}, start="0", create_stream=True)
busy.create_group("_idle", start="0")
def work():
    while True:
        busy.append({{"n": 1}}); group.read("a"); time.sleep(0.01)
threading.Thread(target=work, daemon=True).start()""")
        yield str(path)


def test_plot_draws_the_three_courses_in_the_terminal(raxlog_cli: Run, busy: str) -> None:
    status, out, err = raxlog_cli("plot", busy, NAME, "--seconds", "0.5", "--every", "0.1")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert [line for line in lines if ":" in line] == [
        f"throughput, entries/s: {NAME}", "lag, entries: _idle", "delivery latency, s: _idle"]
    assert any("█" in line for line in lines[1:4])
    assert max(map(len, lines)) <= 120


def test_plot_prints_its_samples_as_json(raxlog_cli: Run, busy: str) -> None:
    status, out, _ = raxlog_cli("plot", busy, NAME, "--seconds", "0.3", "--every", "0.1", "--json")
    stream, *groups = json.loads(out)
    assert status == 0
    assert stream["name"] == NAME
    assert all(one["value"] > 0 for one in stream["samples"][-2:])
    assert {one["name"] for one in groups} == {NAME, "_idle"}
    assert all(0 <= sample["latency"] < 60 for one in groups for sample in one["samples"])


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_plot_writes_a_picture(raxlog_cli: Run, busy: str, tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"plot.{ending}"
    assert raxlog_cli("plot", busy, NAME, "--seconds", "0.3", "--every", "0.1", "--out", str(file)) == (0, "", "")
    assert file.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")
    assert file.stat().st_size > 5000


def test_plot_refuses_what_it_cannot_look_at_or_write(raxlog_cli: Run, orders: str, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    assert raxlog_cli("plot", str(tmp_path / "nowhere"), "orders")[0] == 3
    status, _, err = raxlog_cli("plot", orders, "order")
    assert (status, "did you mean 'orders'" in one_line(err)) == (1, True)
    status, _, err = raxlog_cli("plot", orders, "orders", "--out", "orders.docx")
    assert (status, ".png" in one_line(err)) == (2, True)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, _, err = raxlog_cli("plot", orders, "orders", "--out", "orders.png")
    assert (status, "pip install 'raxlog[ui]'" in one_line(err)) == (2, True)


def test_a_chart_has_a_column_for_each_moment_and_its_greatest_value_at_the_axis() -> None:
    samples = [Sample(0, 0), Sample(1, 50), Sample(2, 100)]
    assert chart(samples, "value", 11, 2) == ["   100 ┤  █", "     0 ┤ ██"]
    assert chart([], "value", 11, 2) == ["   1.0 ┤", "     0 ┤"]
