"""The commands worker, cancel and dlq, as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import forkserver
import pytest
import raxlog
from cli_runs import CLI, Run, one_line

pytest_plugins = ["cli_fixtures"]

SHOP = """
import asyncio
def send(entry):
    if entry.fields["n"] == "3":
        raise ValueError("no three")
    with open("sent", "a") as file:
        file.write(entry.fields["n"] + "\\n")
async def send_soon(entry):
    await asyncio.sleep(0.001)
    send(entry)
def move(entry, tx):
    tx.stream("moved").append(entry.fields)
not_a_function = 5
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A store with ten jobs, and a module beside it."""
    with raxlog.open(tmp_path / "s.rax") as store:
        store.stream("jobs").create_group("mail", start="0", create_stream=True)
        store.stream("jobs").extend([{"n": n} for n in range(10)])
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def worked(folder: Path, function: str, *options: str) -> str:
    """Run the command until the group has nothing left; what it has printed."""
    command = [*CLI, "worker", f"shop:{function}", "s.rax", "jobs", "mail", *options]
    worker = forkserver.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, env=os.environ)
    with raxlog.open(folder / "s.rax", readonly=True) as store:
        group = store.stream("jobs").group("mail")
        deadline = time.monotonic() + 20
        while group.lag or group.pending().total:
            assert time.monotonic() < deadline
            assert worker.poll() is None
            time.sleep(0.02)
    worker.send_signal(signal.SIGTERM)
    _, err = worker.communicate(timeout=10)
    assert worker.returncode == 0
    return err


def test_a_worker_calls_a_function_and_what_it_gives_up_is_listed_replayed_and_purged(
    shop: Path, raxlog_cli: Run
) -> None:
    err = worked(shop, "send", "--max-deliveries", "2", "--retry", "0.01")
    assert "goes to the dead letters, failed: ValueError: no three" in err
    assert sorted((shop / "sent").read_text().split()) == [str(n) for n in range(10) if n != 3]
    of = (str(shop / "s.rax"), "jobs", "mail")
    status, out, _ = raxlog_cli("dlq", "list", *of)
    assert status == 0
    assert out.splitlines()[1].split()[2:] == ["2", "failed", "ValueError:", "no", "three"]
    letter = json.loads(raxlog_cli("dlq", "list", *of, "--json")[1])
    timed = json.loads(raxlog_cli("dlq", "list", *of, "--json", "--time")[1])
    assert timed == letter | {"time": timed["time"]}
    assert timed["time"] in raxlog_cli("dlq", "list", *of, "--time")[1]
    assert (letter["fields"], letter["reason"], letter["deliveries"]) == ({"n": "3"}, "failed", 2)
    out = raxlog_cli("dlq", "show", *of, letter["id"])[1]
    assert "n=3" in out
    assert "in send" in out
    assert raxlog_cli("dlq", "purge", *of, "--reason", "exhausted")[0] == 1
    assert raxlog_cli("dlq", "replay", *of, letter["id"])[1] == "1 dead letter appended again\n"
    assert raxlog_cli("dlq", "list", *of)[0] == 1
    for action in ("list", "replay", "purge"):
        assert "no consumer group 'mistyped'" in raxlog_cli("dlq", action, *of[:-1], "mistyped")[2]
    with raxlog.open(of[0]) as store:
        assert store.stream("jobs").group("mail").lag == 1


@pytest.mark.parametrize("options", [(), ("--processes", "2")])
def test_a_worker_serves_several_groups_in_their_order(
        shop: Path, raxlog_cli: Run, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]) -> None:
    monkeypatch.chdir(shop)
    with raxlog.open(shop / "s.rax") as store:
        urgent = store.stream("urgent")
        urgent.create_group("mail", start="0", create_stream=True)
        urgent.extend([{"n": n} for n in range(20, 25)])
    served = ("worker", "shop:send", "s.rax", "urgent", "mail", "--then", "jobs", "mail")
    command = [*CLI, *served, "--burst", "--max-deliveries", "1", *options]
    done = forkserver.run(command, cwd=shop, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sent = (shop / "sent").read_text().split()
    assert sorted(sent, key=int) == [str(n) for n in (0, 1, 2, *range(4, 10), *range(20, 25))]
    if not options:
        assert sent[:5] == [str(n) for n in range(20, 25)]
    status, _, err = raxlog_cli(*served[:-1], "other")
    assert (status, "no consumer group 'other'" in one_line(err)) == (1, True)
    status, _, err = raxlog_cli(*served, "--then", "jobs", "mail")
    assert (status, "names a group twice" in one_line(err)) == (2, True)
    assert raxlog_cli(*served[:-1])[0] == 2


def test_jobs_are_cancelled_from_a_shell(shop: Path, raxlog_cli: Run) -> None:
    of = (str(shop / "s.rax"), "jobs", "mail")
    with raxlog.open(shop / "s.rax") as store:
        ids = [str(entry.id) for entry in store.stream("jobs").range(count=3)]
    assert raxlog_cli("cancel", *of, *ids[:2], "--reason", "sent by hand") == (0, "2 entries cancelled\n", "")
    assert raxlog_cli("cancel", *of, ids[0], "--json")[:2] == (1, '{"cancelled": 0}\n')
    assert one_line(raxlog_cli("cancel", *of, "x")[2])
    assert raxlog_cli("cancel", *of[:2], "absent", ids[2])[0] == 1
    assert raxlog_cli("lag", *of)[1] == "8\n"
    assert "reason cancelled" in raxlog_cli("job", *of, ids[1])[1]
    out = raxlog_cli("dlq", "list", *of, "--reason", "cancelled")[1]
    assert out.count("sent by hand") == 2


def test_processes_with_transactions(shop: Path) -> None:
    worked(shop, "move", "--processes", "2", "--transaction")
    with raxlog.open(shop / "s.rax", readonly=True) as store:
        assert sorted(int(entry.fields["n"]) for entry in store.stream("moved").range()) == list(range(10))


@pytest.mark.parametrize("options", [(), ("--processes", "2")])
def test_an_async_function_is_awaited(shop: Path, raxlog_cli: Run, options: tuple[str, ...]) -> None:
    err = worked(shop, "send_soon", "--max-deliveries", "2", "--retry", "0.01", "--threads", "3", *options)
    assert "goes to the dead letters, failed: ValueError: no three" in err
    assert sorted((shop / "sent").read_text().split()) == [str(n) for n in range(10) if n != 3]
    of = (str(shop / "s.rax"), "jobs", "mail")
    status, _, err = raxlog_cli("worker", "shop:send_soon", *of, "--transaction")
    assert (status, "transactions" in one_line(err)) == (2, True)


def test_a_function_that_is_not_there_is_named(shop: Path, raxlog_cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop)
    for function, words in (("send", "MODULE:FUNCTION"), ("shop:other", "shop:other"), ("shops:send", "shops"),
                            ("shop:not_a_function", "must be a function")):
        status, _, err = raxlog_cli("worker", function, "s.rax", "jobs", "mail")
        assert status == 2
        assert words in one_line(err)
    assert raxlog_cli("worker", "shop:send", "s.rax", "jobs", "other")[0] == 1
    assert raxlog_cli("worker", "shop:send", "s.rax", "jobs", "mail", "--retry", "1,x")[0] == 2


def test_entries_are_deferred_listed_and_cancelled(raxlog_cli: Run, tmp_path: Path) -> None:
    path = str(tmp_path / "s.rax")
    token, due, field = raxlog_cli("defer", path, "mail", "to=ann", "--delay", "3600")[1].rstrip("\n").split("\t")
    assert (due[10], field) == ("T", "to=ann")
    raxlog_cli("defer", path, "mail", "to=bob", "--at", "2100-01-01T08:00:00+01:00")
    lines = [json.loads(line) for line in raxlog_cli("deferred", path, "mail", "--json")[1].splitlines()]
    assert [line["fields"] for line in lines] == [{"to": "ann"}, {"to": "bob"}]
    assert lines[1]["due"] == "2100-01-01T07:00:00+00:00"
    assert raxlog_cli("deferred", path, "mail", "--cancel", token)[1] == "1 entry cancelled\n"
    assert raxlog_cli("deferred", path, "mail", "--cancel", token)[0] == 1
    assert "token" in one_line(raxlog_cli("deferred", path, "mail", "--cancel", "x")[2])
    for wrong in (["--delay", "-1"], ["--delay", "nan"], ["--at", "soon"], ["--at", "2100-01-01T08:00"], []):
        assert raxlog_cli("defer", path, "mail", "to=ann", *wrong)[0] == 2
    assert raxlog_cli("defer", path, "late", "to=ann", "--delay", "0")[0] == 0
    assert "to=ann" in raxlog_cli("range", path, "late")[1]
