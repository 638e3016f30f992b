"""The command line's messages: commands that are not there, and errors told in options, not in Python."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import raxlog
from cli_runs import Run, entries, one_line
from raxlog.tools.cli import COMMANDS, main
from raxlog.tools.cli.commands.history import scan
from raxlog.tools.cli.messages import in_options

pytest_plugins = ["cli_fixtures"]

# What only makes sense to somebody who writes Python: name=value, call(), the words of open().
PYTHON = re.compile(r"\b[a-z]\w*=(True|False|None|'|\d)|\b[a-z_]{3,}\(|readonly|lock_timeout|min_idle|exist_ok")


@pytest.fixture
def billing(orders: str) -> str:
    """The store of 'orders', with a group 'billing' that has delivered 1-1 to 'a', and one filtered by subject."""
    with raxlog.open(orders) as store:
        store.stream("orders").create_group("billing", "0").read("a", count=1)
        store.stream("orders").create_group("eu", "$", subjects="orders.eu")
    return orders


@pytest.mark.parametrize(("typed", "meant"), [
    (("strems", "s.rax"), "'streams'"), (("rnage", "s.rax", "orders", "--json", "--count", "3"), "'range'"),
    (("xadd", "s.rax", "orders", "a=1"), "'add'"), (("publish", "s.rax", "a", "x=1"), "'pub'"),
    (("delete_stream", "s.rax", "orders"), "'delete-stream'"), (("unsubscribe", "s.rax", "n"), "'unsub'"),
    (("Range", "s.rax", "orders"), "'range'"), (("infoo",), "'info'"),
    (("s.rax", "range", "orders"), "raxlog COMMAND STORE"), (("./here/store", "x"), "raxlog COMMAND STORE"),
    (("--json", "streams", "s.rax"), "raxlog streams … --json"), (("zzz", "s.rax"), "--help"), (("help",), "--help"),
])
def test_a_command_that_is_not_there_is_named_with_the_one_that_was_meant(
        raxlog_cli: Run, typed: tuple[str, ...], meant: str) -> None:
    status, out, err = raxlog_cli(*typed)
    assert (status, out) == (2, "")
    assert meant in one_line(err)
    assert "unrecognized" not in err


def test_every_command_is_found_when_two_of_its_letters_are_swapped(raxlog_cli: Run) -> None:
    for name in COMMANDS:
        if len(name) < 5:
            continue
        typed = name[:2] + name[3] + name[2] + name[4:]
        if typed in COMMANDS or typed == name:
            continue
        _, _, err = raxlog_cli(typed, "s.rax")
        assert f"did you mean {name!r}?" in err, typed


@pytest.mark.parametrize(("typed", "told"), [
    (("read", "orders", "--group", "nope", "--consumer", "c"), "'raxlog create-group'"),
    (("read", "nope", "--group", "billing", "--consumer", "c"), "'raxlog create-group'"),
    (("ack", "orders", "nope", "1-1"), "'raxlog create-group'"),
    (("create-group", "orders", "billing"), "--exist-ok"),
    (("create-group", "orders", "eu", "--exist-ok", "--subject", "b"), "--subject"),
    (("create-group", "orders", "new", "--start", "x"), "$, ms-seq or ms"),
    (("set-group-id", "orders", "billing", "x"), "$, -, +, ms-seq or ms"),
    (("delete-consumer", "orders", "billing", "a"), "--to OTHER, or lose them with --drop"),
    (("add", "orders", "a=1", "--id", "1-1"), "greater"),
    (("trim", "orders", "--maxlen", "1", "--limit", "1"), "--approximate"),
    (("configure", "orders", "--node-max-bytes", "9" * 14), "--node-max-bytes 9"),
    (("configure", "orders", "--idempotence-window", "9" * 14), "--idempotence-window 9"),
    (("claim", "orders", "billing", "a", "1-1", "--min-idle", "1e40"), "--min-idle"),
    (("claim", "orders", "billing", "a", "1-1", "--deliveries", "9" * 30), "--deliveries 9"),
    (("nack", "orders", "billing", "1-1", "--delay", "1e40"), "--delay"),
    (("read", "orders=$", "--timeout", "1e40"), "--timeout"),
    (("plan", "orders", "--start", "x"), "--start 'x'"),
    (("plan", "orders", "--end", "x"), "--end 'x'"),
    (("range", "order"), "did you mean 'orders'? 'raxlog streams' lists them"),
    (("range", "orders", "--coutn", "1"), "unknown option '--coutn'; did you mean '--count'?"),
    (("range", "--hlep"), "unknown option '--hlep'; did you mean '--help'?"),
    (("add", "item=book", "qty=2"), "'item=book' looks like a field: the stream's name comes before the fields"),
    (("range", "orders", "2026-11-24T08:00:00"), "is not an end of a range"),
    (("range", "orders", "2026-13-24", "+"), "or a time with its zone, as in 2026-11-24T08:00:00Z, or a date"),
])
def test_errors_name_the_options_of_the_command(
        raxlog_cli: Run, billing: str, typed: tuple[str, ...], told: str) -> None:
    status, out, err = raxlog_cli(typed[0], billing, *typed[1:])
    assert status in (1, 2)
    assert out == ""
    assert told in one_line(err)
    assert not PYTHON.search(err), err
    assert len(entries(billing)) == 3


def test_a_stream_with_an_equals_sign_in_its_name_is_appended_to_where_there_is_one(
        raxlog_cli: Run, billing: str) -> None:
    assert raxlog_cli("add", "new.rax", "item=book", "qty=2")[0] == 2
    assert not Path("new.rax").exists()
    with raxlog.open(billing) as store:
        store.stream("a=b").append({"n": 1})
    assert raxlog_cli("add", billing, "a=b", "n=2")[0] == 0


def test_a_time_with_its_zone_stands_for_the_id_of_a_bound(raxlog_cli: Run) -> None:
    time, after = "2026-11-24T08:00:00Z", "2026-11-24T10:00:00.001+01:00"
    for number in range(2):
        assert raxlog_cli("add", "s.rax", "orders", "a=1", "--id", f"{1795507200000 + 3_600_001 * number}-0")[0] == 0
    shown = raxlog_cli("range", "s.rax", "orders", time, time)[1]
    assert shown == "1795507200000-0\ta=1\n"
    assert raxlog_cli("range", "s.rax", "orders", f"({time}")[1] == "1795510800001-0\ta=1\n"
    assert raxlog_cli("create-group", "s.rax", "orders", "g", "--start", time)[1].endswith("1795507200000-0\n")
    assert "1795510800001-0, lag 0" in raxlog_cli("set-group-id", "s.rax", "orders", "g", after)[1]
    assert raxlog_cli("trim", "s.rax", "orders", "--minid", after)[1] == "1 entry evicted\n"
    assert raxlog_cli("add", "s.rax", "orders", "a=1", "--id", "2027-11-24T08:00:00Z")[0] == 2


def test_a_snapshot_is_said_to_be_for_reading_by_commands(raxlog_cli: Run, billing: str) -> None:
    assert raxlog_cli("snapshot", billing, "monday")[0] == 0
    status, _, err = raxlog_cli("add", "monday", "orders", "a=1")
    assert status == 3
    assert "'raxlog restore'" in one_line(err)
    assert not PYTHON.search(err), err


def test_what_is_quoted_from_the_user_stays_as_it_is() -> None:
    for message in ("field 'count' is missing", "there is no stream 'mode'", "there is no stream 'time=1'"):
        assert in_options(message) == message


def test_a_scan_of_a_wrong_table_is_told_the_right_one() -> None:
    told = scan._spark_failure("[TABLE_OR_VIEW_NOT_FOUND] The table or view `orders` cannot be found.", "")
    assert "'entries'" in str(told)


def test_python_runs_the_command_line_by_the_package_too() -> None:
    ran = subprocess.run([sys.executable, "-m", "raxlog", "--version"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.split()[:2]) == (0, ["raxlog", raxlog.__version__])


def test_durability_on_the_command_line_is_one_that_is_done_when_the_command_ends(raxlog_cli: Run) -> None:
    for entries_there, durability in enumerate(("commit", "relaxed", "buffered"), 1):
        assert raxlog_cli("add", "s.rax", "orders", "a=1", "--durability", durability)[0] == 0
        assert len(entries("s.rax")) == entries_there
    assert main(["add", "s.rax", "orders", "a=1", "--durability", "perhaps"]) == 2


def test_a_small_store_that_grows_by_compaction_is_not_said_to_be_less(raxlog_cli: Run, orders: str) -> None:
    status, out, _ = raxlog_cli("compact", orders)
    assert status == 0
    assert "(-" not in out
    before, after = (int(out.split()[at].replace(",", "")) for at in (0, 3))
    assert ("more: there was nothing to give back" in out) == (after > before)
