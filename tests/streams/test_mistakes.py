"""Mistakes that new users made: each gives the right answer, or an error that says what to do, and changes nothing."""

from __future__ import annotations

import dataclasses
import inspect
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import forkserver
import pytest
import raxlog
import raxlog.aio
from raxlog.stream.node.json_form import json_form


def test_a_group_that_is_made_behind_the_first_entries_gets_them(store: raxlog.Store) -> None:
    jobs = store.stream("jobs")
    jobs.extend([{"n": n} for n in range(3)])
    done: list[str] = []
    jobs.create_group("g", create_stream=True).worker(lambda entry: done.append(entry.fields["n"])).run(burst=True)
    assert done == ["0", "1", "2"]


def test_a_summary_is_no_tuple_whose_methods_are_taken_for_figures(store: raxlog.Store) -> None:
    group = store.stream("s").create_group("g")
    with pytest.raises(AttributeError):
        _ = group.pending().count  # type: ignore[attr-defined]
    assert group.pending().to_dict() == {"total": 0, "first": None, "last": None, "consumers": {}, "parked": 0}


def test_an_id_is_in_a_stream_that_has_it(store: raxlog.Store) -> None:
    stream = store.stream("s")
    sid = stream.append({"n": 1})
    assert sid in stream
    assert raxlog.StreamID(1, 1) not in stream


@pytest.mark.parametrize("at", [1_800_000_000, 1_800_000_000_000, 1.8e9, datetime(2100, 1, 1), "2100-01-01"])
def test_a_time_that_may_mean_something_else_is_refused(store: raxlog.Store, at: Any) -> None:
    with pytest.raises(raxlog.InvalidArgument, match="a datetime with a time zone"):
        store.stream("jobs").defer({"n": 1}, at=at)
    assert store.streams() == []
    group = store.stream("jobs").create_group("g")
    for call in (lambda: group.pause(at), lambda: group.claim("c", "1-1", time=at, force=True),
                 lambda: group.claim_ids("c", "1-1", time=at, force=True)):
        with pytest.raises(raxlog.InvalidArgument, match="a datetime with a time zone"):
            call()
    assert (group.paused, group.consumers()) == (False, [])


def test_an_entry_is_claimed_as_if_delivered_at_a_time(store: raxlog.Store) -> None:
    group = store.stream("jobs").create_group("g")
    sid = store.stream("jobs").append({"n": 1})
    for given, idle in ((timedelta(hours=1), 3600.0), (timedelta(hours=-1), 0.0)):
        group.claim("c", sid, time=datetime.now(UTC).replace(microsecond=0) - given, force=True)
        [pending] = group.pending_entries()
        assert idle <= pending.idle < idle + 60


def test_what_publish_returns_is_a_number_with_parts_that_does_not_change(store: raxlog.Store) -> None:
    store.bind("a.*", "s")
    reached = store.publish("a.b", {"n": 1})
    assert (reached, reached.bindings, list(reached.ids)) == (1, 1, ["s"])
    assert reached.to_dict() == {"bindings": 1, "durables": 0, "live": 0, "ids": reached.ids}
    with pytest.raises(AttributeError, match="does not change"):
        reached.bindings = 2


def test_a_day_is_a_time_from_now_on(store: raxlog.Store) -> None:
    due = store.stream("jobs").defer({"n": 1}, at=datetime.now(UTC) + timedelta(days=1)).due
    assert timedelta(hours=23) < due - datetime.now(UTC) < timedelta(hours=25)


@pytest.mark.parametrize("closed", ["1", "2", "0", "1 2"])
def test_closed_standard_streams_get_a_message_and_no_file_of_the_store(path: Path, closed: str) -> None:
    with raxlog.open(path) as store:
        store.stream("s").append({"n": "v"})
    ends = " ".join(f"{one}>&-" for one in closed.split())
    done = subprocess.run(["sh", "-c", f'"{sys.executable}" -m raxlog range "{path}" s {ends}'], capture_output=True,
                          text=True, check=False)
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode == (3 if "1" in closed else 0)
    assert ("standard output is closed" in done.stderr) == (closed == "1")
    assert raxlog.check(path).ok


@pytest.mark.parametrize("words", [
    ("range", "s", "2000-01-01", "+"),
    ("defer", "s", "n=v", "--delay", "10s"),
    ("defer", "s", "n=v", "--delay", "1.5h"),
    ("configure", "s", "--retention", "max_age=7d"),
    ("defer", "s", "n=v", "--at", "2100-01-01"),
])
def test_times_are_understood_as_people_write_them(path: Path, words: tuple[str, ...]) -> None:
    with raxlog.open(path) as store:
        store.stream("s").append({"n": "v"})
    done = forkserver.run([sys.executable, "-m", "raxlog", words[0], path, *words[1:]], capture_output=True, text=True,
                          check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_time_without_a_unit_that_there_is_is_refused(path: Path) -> None:
    for wrong in ("10x", "s", "10sm", "-1s", "nan"):
        done = forkserver.run([sys.executable, "-m", "raxlog", "defer", path, "s", "n=v", f"--delay={wrong}"],
                              capture_output=True, text=True, check=False)
        assert (done.returncode, "is not a number of seconds" in done.stderr) == (2, True), wrong
    assert not path.exists()


def test_a_worker_s_delays_may_have_units_too(path: Path) -> None:
    with raxlog.open(path) as store:
        store.stream("s").create_group("g")
    for retry, status in (("1s,2m,0.5", 0), ("500ms", 0), ("1s,", 2), ("1x", 2)):
        done = forkserver.run([sys.executable, "-m", "raxlog", "worker", "builtins:print", path, "s", "g", "--burst",
                               "--retry", retry], capture_output=True, text=True, check=False)
        assert (done.returncode, "is not a number of seconds" in done.stderr) == (status, status == 2), retry


def test_flags_are_given_by_keyword() -> None:
    calls = [(f"{module.__name__}.{name}.{call}", function) for module in (raxlog, raxlog.aio)
             for name in module.__all__ if inspect.isclass(kind := getattr(module, name))
             for call, function in inspect.getmembers(kind, inspect.isfunction) if not call.startswith("_")]
    found = [(where, each.name) for where, function in calls for each in inspect.signature(function).parameters.values()
             if each.kind is not each.KEYWORD_ONLY and "bool" in str(each.annotation)]
    assert len(calls) > 150
    assert found == []


def test_what_calls_return_is_frozen_and_no_tuple_but_an_id() -> None:
    kinds = [getattr(raxlog, name) for name in raxlog.__all__ if inspect.isclass(getattr(raxlog, name))]
    assert {kind for kind in kinds if issubclass(kind, tuple)} == {raxlog.StreamID, raxlog.Appended}
    results = [kind for kind in kinds if dataclasses.is_dataclass(kind) and kind is not raxlog.Backoff]
    assert len(results) > 30
    for kind in results:
        assert kind.__dataclass_params__.frozen
        assert callable(kind.to_dict)
        assert "__slots__" in vars(kind)


def test_what_calls_return_can_be_written_as_json_by_itself_and_by_name(store: raxlog.Store) -> None:
    stream = store.stream("s")
    sid = stream.append({"n": 1})
    group = stream.create_group("g")
    group.read("w")
    for figures in (group.pending(), group.info(), *group.pending_entries(), *group.consumers(),
                    *stream.full_info().groups):
        document = json_form(figures)
        assert json.loads(json.dumps(document)).keys() == figures.to_dict().keys()
    assert json_form(group.pending()) == {"total": 1, "first": str(sid), "last": str(sid), "consumers": {"w": 1},
                                          "parked": 0}
    shown = stream.full_info().to_dict()["groups"]
    assert shown[0]["consumers"][0]["pending_entries"][0]["delivered"].utcoffset() == timedelta(0)  # within lists, too
