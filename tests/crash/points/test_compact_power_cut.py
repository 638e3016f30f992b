"""The swap of a compaction under raxlog.crashtest: kills at its crash points, and what a power cut leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
import raxlog
from raxlog.crashtest import KillAt, PowerCut, Report, explore
from raxlog.storage.files import directory

pytestmark = pytest.mark.storm

IMAGES = 150
ROUNDS, APPENDS = 3, 3
POINTS = 7  # of one compaction: copied, flushed, named, prepared, marked, switched, cleared


def append_and_compact(where: Path, ack: object) -> None:
    """Entry n holds n; acks say how many there are for certain. The store is compacted every few."""
    n = 0
    with raxlog.open(where / "s.rax") as store:
        for _ in range(ROUNDS):
            for _ in range(APPENDS):
                store.stream("s").append({"n": n, "x": "y" * (n * 97 % 900)}, id=f"{n + 1}-0")
                n += 1
                ack(n)  # type: ignore[operator]
            store.compact()
            store.stream("t").append({"n": n}, id=f"{n}-1")


def forget_to_flush_names(where: Path, ack: object) -> None:
    """The control: the new generation's name may come to the disk after the mark that leads to it."""
    with raxlog.open(where / "s.rax") as store:
        store.stream("s").append({"n": 0, "x": ""}, id="1-0")
        ack(1)  # type: ignore[operator]
        directory.sync_folder = lambda path: None  # type: ignore[assignment]
        store.compact()


def nothing_is_lost(where: Path, acks: list[object]) -> None:
    """What was acknowledged is there, at most one entry more; the store can be written and compacted."""
    path = where / "s.rax"
    least = max(map(int, acks), default=0)  # type: ignore[call-overload]
    if not least and not path.exists():
        return
    with raxlog.open(path) as store:
        stream = store.stream("s")
        found = [(int(entry.id.ms), int(entry.fields[b"n"])) for entry in stream.range()]
        assert found == [(n + 1, n) for n in range(len(found))]
        assert least <= len(found) <= least + 1
        rounds = [int(entry.fields[b"n"]) for entry in store.stream("t").range()]
        assert rounds == [APPENDS * (k + 1) for k in range(len(rounds))]
        assert len(rounds) >= (len(found) - 1) // APPENDS
        stream.append({"n": "more"})
        store.compact()
        assert len(stream) == len(found) + 1


def explored(report: Report) -> Report:
    print(report)
    if any(mode.status == "not run" for mode in report.modes):
        pytest.skip("missing oracle: cc")
    return report


def test_a_kill_at_each_crash_point_of_a_compaction_loses_nothing(tmp_path: Path) -> None:
    report = explored(explore(append_and_compact, nothing_is_lost, modes=[KillAt.points("compact.*")], seed=1,
                              keep=tmp_path))
    report.raise_on_failure()
    assert report.modes[0].cases == POINTS * ROUNDS


def test_a_power_cut_around_a_compaction_loses_nothing(tmp_path: Path) -> None:
    explored(explore(append_and_compact, nothing_is_lost, modes=[PowerCut(images=IMAGES)], seed=1,
                     keep=tmp_path)).raise_on_failure()


def test_the_images_catch_a_compaction_that_forgets_to_flush_a_name(tmp_path: Path) -> None:
    report = explored(explore(forget_to_flush_names, nothing_is_lost, modes=[PowerCut(images=150)], seed=1,
                              keep=tmp_path))
    assert report.modes[0].failures
