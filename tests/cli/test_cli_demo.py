"""The demo: real processes, real kills, and that it would notice what it looks for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import raxlog
from cli_runs import entries, process
from raxlog.tools.cli.commands.demo import kill_rounds
from raxlog.tools.cli.commands.demo.sample_text import Pairs


@pytest.mark.storm
def test_the_demo_kills_writers_and_finds_everything_there(tmp_path: Path) -> None:
    done = process("demo", "--entries", "5000", "--rounds", "2", "--keep", str(tmp_path), "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    told = json.loads(done.stdout)
    assert told["ok"] is True
    assert told["kills"] == 2
    assert told["entries"] == 5000
    there = len(entries(tmp_path / "demo.rax", "copied"))
    assert there == told["acknowledged"] + told["unacknowledged_but_there"] > 0
    assert process("demo", "--keep", str(tmp_path)).returncode == 2


@pytest.mark.storm
def test_the_demo_takes_a_file_and_ends_with_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,text\n" + "".join(f"{n},event {n}\n" for n in range(300)))
    done = process("demo", str(tmp_path / "a.csv"), "--rounds", "1", "--seed", "7")
    assert done.returncode == 0
    lines = done.stdout.decode().splitlines()
    assert "seed 7" in lines[0]
    assert "300 events of" in lines[1]
    assert lines[-1].startswith("raxlog demo: every one of ")


def test_the_demo_would_notice_a_lost_a_changed_and_an_invented_entry(store: raxlog.Store) -> None:
    events: list[Pairs] = [[("n", str(number))] for number in range(4)]
    stream = store.stream(kill_rounds.TARGET)
    ids = stream.extend(events)
    assert kill_rounds.check_round(store, events, ids[:2], ids[2:]) == []
    assert kill_rounds.check_round(store, events, ids[:3], []) == ids[3:]
    with pytest.raises(kill_rounds.Mismatch, match="never acknowledged"):
        kill_rounds.check_round(store, events, ids[:2], [])
    with pytest.raises(kill_rounds.Mismatch, match="not as it was written"):
        kill_rounds.check_round(store, [events[1], *events[1:]], ids, [])
    with pytest.raises(kill_rounds.Mismatch, match="acknowledged entries are gone"):
        kill_rounds.check_round(store, events, ids, [ids[-1].next()])
    stream.delete(ids[1])
    with pytest.raises(kill_rounds.Mismatch, match="should be"):
        kill_rounds.check_round(store, events, ids, [])
