"""The command line of publishing: what is sent, printed, refused, and which status it ends with."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import raxlog
from cli_runs import Run, one_line, output, process, running
from counting import commits_of
from raxlog.tools.cli import COMMANDS

pytest_plugins = ["cli_fixtures"]

COMMAND_NAMES = ["pub", "sub", "unsub", "bind", "unbind", "bindings", "subjects", "interest"]


@pytest.fixture
def bound(tmp_path: Path) -> str:
    """A store in which orders.> is bound to a stream 'orders'. Closed."""
    path = tmp_path / "bound.rax"
    with raxlog.open(path) as store:
        store.bind("orders.>", "orders")
    return str(path)


def told(out: str) -> list[Any]:
    return [json.loads(line) for line in out.splitlines()]


def listening(path: str, count: int) -> None:
    """Wait until so many processes listen."""
    deadline = time.monotonic() + 20
    with raxlog.open(path) as store:
        while len(store.listeners()) < count:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_what_is_bound_is_published_listed_and_unbound(raxlog_cli: Run, tmp_path: Path) -> None:
    path = str(tmp_path / "new.rax")
    assert raxlog_cli("bind", path, "orders.>", "orders")[:2] == (0, "orders.> is appended to orders\n")
    status, out, _ = raxlog_cli("bind", path, "orders.eu.*", "eu", "--json")
    assert (status, told(out)[0]["subject"], told(out)[0]["stream"]) == (0, "orders.eu.*", "eu")
    status, out, _ = raxlog_cli("pub", path, "orders.eu.new", "item=book", "qty=2")
    assert status == 0
    assert re.fullmatch(r"reached 2 bindings\norders\t\d+-0\neu\t\d+-0\n", out)
    status, out, _ = raxlog_cli("range", path, "eu", "--json")
    assert told(out)[0]["fields"] == {"$subject": "orders.eu.new", "item": "book", "qty": "2"}
    assert raxlog_cli("bindings", path)[1].splitlines()[1:] == ["orders.>     orders", "orders.eu.*  eu"]
    assert raxlog_cli("unbind", path, "orders.>", "orders")[:2] == (0, "unbound\n")
    assert raxlog_cli("unbind", path, "orders.>", "orders")[0] == 1
    assert told(raxlog_cli("unbind", path, "--all", "eu", "--json")[1]) == [{"unbound": True}]
    assert told(raxlog_cli("bindings", path, "--json")[1]) == [{"bindings": []}]
    status, out, _ = raxlog_cli("pub", path, "orders.eu.new", "item=book")
    assert (status, out) == (1, "reached nobody\n")


def test_sub_prints_what_others_publish_as_text_and_as_json(raxlog_cli: Run, bound: str) -> None:
    with running("sub", bound, "orders.*.new", "--count", "2") as text, \
            running("sub", bound, "orders.>", "--count", "2", "--json") as as_json:
        listening(bound, 2)
        for n in (1, 2):
            status, out, _ = raxlog_cli("pub", bound, "orders.eu.new", f"n={n}", "--json")
            assert status == 0
            assert {key: told(out)[0][key] for key in ("reached", "bindings", "durables", "live")} == {
                "reached": 3, "bindings": 1, "durables": 0, "live": 2,
            }  # fmt: skip
        assert output(text).read() == b"orders.eu.new\tn=1\norders.eu.new\tn=2\n"
        ids = [row["id"] for row in told(raxlog_cli("range", bound, "orders", "--json")[1])]
        assert told(output(as_json).read().decode()) == [
            {"subject": "orders.eu.new", "fields": {"n": str(n)}, "id": ids[n - 1]} for n in (1, 2)
        ]
        assert (text.wait(10), as_json.wait(10)) == (0, 0)
    assert raxlog_cli("interest", bound, "orders.eu.new", "--json")[1].count('"id"') == 1


def test_a_durable_sub_goes_on_where_it_was(raxlog_cli: Run, bound: str) -> None:
    assert raxlog_cli("sub", bound, "orders.>", "--durable", "d", "--timeout", "0")[0] == 1
    for n in (1, 2, 3):
        raxlog_cli("pub", bound, "orders.new", f"n={n}")
    status, out, _ = raxlog_cli("sub", bound, "orders.>", "--durable", "d", "--count", "2", "--json")
    assert (status, [row["fields"]["n"] for row in told(out)]) == (0, ["1", "2"])
    assert [row["deliveries"] for row in told(out)] == [1, 1]
    status, out, err = raxlog_cli("sub", bound, "orders.>", "--durable", "d", "--timeout", "0.2")
    assert (status, out) == (0, "orders.new\tn=3\n")
    assert err == "listening to orders.>\n"
    status, _, err = raxlog_cli("sub", bound, "mail.>", "--durable", "d", "--timeout", "0", "--json")
    assert status == 1
    assert "belongs to a subscription" in one_line(err)


def test_sub_says_when_it_listens_in_a_store_that_was_not_there(raxlog_cli: Run) -> None:
    for end in (", in a new store at typo.rax\n", "\n"):
        status, _, err = raxlog_cli("sub", "typo.rax", "orders.>", "--timeout", "0")
        assert (status, err) == (1, f"listening to orders.>{end}")


def test_a_durable_subscription_is_removed_with_what_it_has_not_delivered(raxlog_cli: Run, bound: str) -> None:
    assert raxlog_cli("sub", bound, "orders.>", "--durable", "d", "--timeout", "0")[0] == 1
    raxlog_cli("pub", bound, "orders.new", "n=1")
    assert raxlog_cli("streams", bound)[1].splitlines() == ["$durable.d", "orders"]
    with running("sub", bound, "orders.>", "--durable", "d") as child:
        assert output(child).readline() == b"orders.new\tn=1\n"
        assert raxlog_cli("unsub", bound, "d")[:2] == (0, "unsubscribed\n")
        assert child.wait(10) == 0
    assert raxlog_cli("streams", bound)[1].splitlines() == ["orders"]
    assert raxlog_cli("unsub", bound, "d")[0] == 1
    status, out, _ = raxlog_cli("unsub", bound, "d", "--json")
    assert (status, told(out)) == (1, [{"unsubscribed": False}])
    assert raxlog_cli("sub", bound, "mail.>", "--durable", "d", "--timeout", "0", "--json")[:2] == (1, "")


def test_channels_and_globs_by_the_same_commands(raxlog_cli: Run, bound: str) -> None:
    with running("sub", bound, "news.it", "--channel", "--count", "1") as exact, \
            running("sub", bound, "news.*", "x*", "--glob", "--count", "1", "--json") as glob:
        listening(bound, 2)
        assert raxlog_cli("pub", bound, "news.it", "ciao a tutti", "--channel")[:2] == (0, "sent 2 copies\n")
        assert output(exact).read() == b"news.it\tciao a tutti\n"
        assert told(output(glob).read().decode()) == [
            {"kind": "pmessage", "pattern": "news.*", "channel": "news.it", "data": "ciao a tutti"}
        ]
    assert told(raxlog_cli("pub", bound, "news.it", "x", "--channel", "--json")[1]) == [{"copies": 0}]


def test_a_group_filtered_by_subject_is_created_and_read(raxlog_cli: Run, bound: str) -> None:
    create = ("create-group", bound, "orders", "eu")
    assert raxlog_cli(*create, "--subject", "orders..x")[0] == 2
    assert raxlog_cli(*create, "--subject", "orders.eu.*", "--subject", "orders.uk")[0] == 0
    for n, subject in enumerate(("orders.us.new", "orders.eu.new", "orders.uk")):
        raxlog_cli("pub", bound, subject, f"n={n}")
    assert raxlog_cli("lag", bound, "orders", "eu")[1] == "2\n"
    status, out, _ = raxlog_cli("read", bound, "orders", "--group", "eu", "--consumer", "w", "--json")
    assert (status, [row["fields"]["n"] for row in told(out)]) == (0, ["1", "2"])


def test_ctrl_c_ends_a_sub_and_its_subscription(raxlog_cli: Run, bound: str) -> None:
    with running("sub", bound, "mail.>") as child:
        listening(bound, 1)
        child.send_signal(signal.SIGINT)
        assert child.wait(10) == 130
    assert raxlog_cli("interest", bound, "mail.in")[:2] == (1, "")


def test_interest_lists_only_what_a_message_would_reach(raxlog_cli: Run, bound: str) -> None:
    with raxlog.open(bound) as store:
        for kind, name in ((1, None), (2, "own"), (3, None)):
            store.subjects.insert("mail", kind=kind, name=name, owner="a router of somebody's own")
        assert store.publish("mail", {"n": 1}) == 0
    assert raxlog_cli("interest", bound, "mail")[:2] == (1, "")


def test_subjects_are_drawn_as_a_tree_with_counts(raxlog_cli: Run, bound: str) -> None:
    with raxlog.open(bound) as store, store.subscribe("orders.*.new"), store.subscribe("orders.*.new", queue="q"), \
            store.subscribe("mail"):
        tree = process("subjects", bound)
        assert (tree.returncode, tree.stdout.decode().splitlines()) == (0, [
            "mail    1",
            "orders",
            "├── *",
            "│   └── new    1 and 1 in queues",
            "└── >    1",
        ])  # fmt: skip
        assert told(process("subjects", bound, "orders.eu.*", "--json").stdout.decode())[0]["subjects"] == [
            {"subject": "orders.>", "plain": 1, "queued": 0}, {"subject": "orders.*.new", "plain": 1, "queued": 1},
        ]  # fmt: skip
        rows = process("interest", bound, "orders.eu.new").stdout.decode().splitlines()
        assert [row.split()[1:4] for row in rows[1:]] == [
            ["binding", "orders.>", "-"], ["live", "orders.*.new", "-"], ["live", "orders.*.new", "q"],
        ]  # fmt: skip
    assert raxlog_cli("subjects", bound, "nothing.here")[0] == 1


@pytest.mark.parametrize("arguments", [
    ("pub", "a.*", "x=1"), ("pub", "a..b", "x=1"), ("pub", "a", "no-value"), ("pub", "a", "$subject=x"), ("pub", "a"),
    ("pub", "c", "one", "two", "--channel"), ("sub", "a.>.b"), ("sub", "a", "b"), ("sub", "a", "--channel", "--glob"),
    ("sub", "a", "--channel", "--queue", "q"), ("sub", "a", "--glob", "--durable", "q"), ("sub", "a", "--durable", ""),
    ("sub", "a", "--count", "0"), ("sub", "a", "--timeout", "-1"),
    ("sub", "a", "--timeout", "inf"), ("bind", "a b", "s"), ("bind", "a", "s" * 600),
    ("unsub", ""), ("unsub", "n" * 300),
    ("unbind", "s"), ("unbind", "--all", "a", "s"), ("subjects", "a..b"), ("interest", "a.*"), ("bindings", "s" * 600),
])
def test_a_slip_of_the_pen_is_told_in_one_line_and_writes_nothing(
        raxlog_cli: Run, bound: str, arguments: tuple[str, ...]) -> None:
    with raxlog.open(bound, readonly=True) as store:
        before = commits_of(store)
    status, out, err = raxlog_cli(arguments[0], bound, *arguments[1:])
    assert (status, out) == (2, "")
    one_line(err)
    with raxlog.open(bound, readonly=True) as store:
        assert commits_of(store) == before


@pytest.mark.parametrize("name", [name for name in COMMAND_NAMES if name not in ("bind", "sub")])
def test_a_store_that_is_not_there_is_status_3(raxlog_cli: Run, tmp_path: Path, name: str) -> None:
    more = {"pub": ["a", "x=1"], "unsub": ["d"], "unbind": ["a", "s"], "interest": ["a"]}.get(name, [])
    status, out, err = raxlog_cli(name, str(tmp_path / "absent.rax"), *more)
    assert (status, out) == (3, "")
    one_line(err)
    assert not (tmp_path / "absent.rax").exists()


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_every_command_explains_itself_with_an_example(raxlog_cli: Run, name: str) -> None:
    status, out, _ = raxlog_cli(name, "--help")
    assert status == 0
    assert f"raxlog {name} events.rax" in out
    assert "--json" in out
    assert name in COMMANDS
