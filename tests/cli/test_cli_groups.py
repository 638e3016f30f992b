"""The command line's consumer groups: what is delivered, printed, refused, and left behind."""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import forkserver
import pytest
import raxlog
from cli_runs import Run, entries, one_line, output, running

pytest_plugins = ["cli_fixtures"]


@pytest.fixture
def billing(orders: str) -> str:
    """The store of 'orders', with a group 'billing' that has delivered 1-1 and 2-1 to 'a'."""
    with raxlog.open(orders) as store:
        store.stream("orders").create_group("billing", "0").read("a", count=2)
    return orders


def pending(path: str) -> list[tuple[str, bytes | None, int]]:
    """What is pending in 'billing': ID, consumer, deliveries."""
    with raxlog.open(path, readonly=True) as store:
        rows = store.stream("orders").group("billing").pending_entries("-")
        return [(str(row.id), row.consumer, row.deliveries) for row in rows]


def told(out: str) -> list[Any]:
    return [json.loads(line) for line in out.splitlines()]


# -- groups and consumers -----------------------------------------------------------------


def test_a_group_is_created_listed_moved_and_destroyed(raxlog_cli: Run, orders: str) -> None:
    assert raxlog_cli("groups", orders, "orders")[:2] == (0, "")
    assert raxlog_cli("create-group", orders, "orders", "billing", "--start", "1-1")[0] == 0
    assert raxlog_cli("create-group", orders, "orders", "audit", "--start", "$")[:2] == (
        0, "group audit delivers what follows 3-1\n",
    )  # fmt: skip
    rows = [line.split() for line in raxlog_cli("groups", orders, "orders")[1].splitlines()]
    assert rows[1:] == [["audit", "0", "0", "3-1", "0"], ["billing", "0", "0", "1-1", "2"]]
    assert raxlog_cli("lag", orders, "orders", "billing")[:2] == (0, "2\n")
    assert json.loads(raxlog_cli("lag", orders, "orders", "billing", "--json")[1]) == {"lag": 2}
    assert raxlog_cli("set-group-id", orders, "orders", "billing", "$")[0] == 0
    assert raxlog_cli("lag", orders, "orders", "billing")[1] == "0\n"
    assert json.loads(raxlog_cli("set-group-id", orders, "orders", "billing", "0", "--json")[1])["lag"] == 3
    status, out, _ = raxlog_cli("destroy-group", orders, "orders", "billing", "--json")
    assert (status, json.loads(out)) == (0, {"destroyed": "billing", "consumers": 0, "pending": 0})
    groups = json.loads(raxlog_cli("groups", orders, "orders", "--json")[1])["groups"]
    assert [group["name"] for group in groups] == ["audit"]


def test_a_group_that_is_there_is_refused_or_left_as_it_is(raxlog_cli: Run, billing: str) -> None:
    status, _, err = raxlog_cli("create-group", billing, "orders", "billing")
    assert status == 1
    assert "already" in one_line(err)
    assert raxlog_cli("create-group", billing, "orders", "billing", "--exist-ok")[0] == 0
    assert len(pending(billing)) == 2


def test_create_stream_creates_stream_and_store(raxlog_cli: Run) -> None:
    assert raxlog_cli("create-group", "s.rax", "orders", "billing", "--no-create-stream")[0] == 3
    assert not Path("s.rax").exists()
    assert raxlog_cli("create-group", "s.rax", "orders", "billing")[0] == 0
    status, _, err = raxlog_cli("create-group", "s.rax", "mail", "billing", "--no-create-stream")
    assert (status, "--no-create-stream" in one_line(err)) == (1, False), "the answer would be what was just refused"
    assert raxlog_cli("streams", "s.rax")[1] == "orders\n"
    assert raxlog_cli("configure", "s.rax", "jobs", "--codec", "json")[0] == 0
    assert raxlog_cli("streams", "s.rax")[1] == "jobs\norders\n"


def test_info_shows_the_groups_of_a_stream(raxlog_cli: Run, billing: str) -> None:
    out = raxlog_cli("info", billing, "orders")[1]
    assert out.splitlines()[-1].split() == ["billing", "1", "2", "2-1", "1"]
    figures = json.loads(raxlog_cli("info", billing, "orders", "--json")[1])
    assert figures["last_generated_id"] == "3-1"
    assert figures["groups"] == [
        {"name": "billing", "consumers": 1, "pending": 2, "last_delivered_id": "2-1", "entries_read": 2, "lag": 1,
         "redis_lag": 1, "gone": 0, "max_in_flight": None, "rate": None, "burst": None, "held": None,
         "limited_by": None, "limited_until": None, "key": None, "per_key": None, "order": None, "max_parked": None,
         "parked": 0, "stopped_by": None, "rate_key": None}
    ]


def test_groups_show_limits_and_which_of_them_holds_back(raxlog_cli: Run, billing: str) -> None:
    raxlog_cli("create-group", billing, "orders", "audit")
    assert "limits" not in raxlog_cli("groups", billing, "orders")[1]
    raxlog_cli("configure-group", billing, "orders", "billing", "--max-in-flight", "2", "--rate", "100/1m")
    lines = raxlog_cli("groups", billing, "orders")[1].splitlines()
    assert [line.split()[5:] for line in lines] == [["lag", "limits"], ["-"], ["2/2", "held", "(full),", "100/60s"]]
    assert raxlog_cli("info", billing, "orders")[1].splitlines()[-3:] == lines
    _, found = json.loads(raxlog_cli("groups", billing, "orders", "--json")[1])["groups"]
    assert (found["held"], found["rate"], found["limited_by"]) == (2, [100, 60], "max_in_flight")
    raxlog_cli("ack", billing, "orders", "billing", "1-1")
    assert raxlog_cli("groups", billing, "orders")[1].splitlines()[2].endswith("1/2 held, 100/60s")


def test_consumers_are_listed_created_and_refused_twice(raxlog_cli: Run, billing: str) -> None:
    assert raxlog_cli("create-consumer", billing, "orders", "billing", "b")[:2] == (0, "")
    assert raxlog_cli("create-consumer", billing, "orders", "billing", "b")[0] == 1
    rows = [line.split() for line in raxlog_cli("consumers", billing, "orders", "billing")[1].splitlines()]
    assert [row[:2] for row in rows[1:]] == [["a", "2"], ["b", "0"]]
    assert rows[2][-1] == "-"
    listed = json.loads(raxlog_cli("consumers", billing, "orders", "billing", "--json")[1])["consumers"]
    assert [(row["name"], row["pending"]) for row in listed] == [("a", 2), ("b", 0)]
    assert listed[1]["active"] is None
    assert listed[0].keys() == {"name", "pending", "seen", "active"}
    assert 0 <= time.time() - datetime.fromisoformat(listed[0]["seen"]).timestamp() < 60


def test_a_consumer_with_pending_entries_is_deleted_only_with_a_word_on_them(raxlog_cli: Run, billing: str) -> None:
    status, out, err = raxlog_cli("delete-consumer", billing, "orders", "billing", "a")
    assert (status, out) == (1, "")
    assert "2 pending" in one_line(err)
    assert "--to" in err
    assert raxlog_cli("delete-consumer", billing, "orders", "billing", "a", "--to", "b")[1] == (
        "consumer deleted, 2 pending entries handed over to b\n"
    )
    assert pending(billing) == [("1-1", "b", 1), ("2-1", "b", 1)]
    dropped = raxlog_cli("delete-consumer", billing, "orders", "billing", "b", "--drop", "--json")
    assert json.loads(dropped[1]) == {"deleted": "b", "pending": 2, "to": None}
    assert pending(billing) == []
    assert raxlog_cli("delete-consumer", billing, "orders", "billing", "b")[0] == 1


# -- reading ------------------------------------------------------------------------------


def test_read_delivers_each_entry_once_and_again_as_history(raxlog_cli: Run, billing: str) -> None:
    who = ("--group", "billing", "--consumer", "b")
    assert raxlog_cli("read", billing, "orders", *who)[:2] == (0, "3-1\titem=book\tn=3\n")
    assert raxlog_cli("read", billing, "orders", *who)[:2] == (1, "")
    assert pending(billing) == [("1-1", "a", 1), ("2-1", "a", 1), ("3-1", "b", 1)]
    again = told(raxlog_cli("read", billing, "orders", *who, "--history", "--json")[1])
    assert again == [
        {"stream": "orders", "id": "3-1", "fields": {"item": "book", "n": "3"}, "deliveries": 2, "idle": None}
    ]
    assert raxlog_cli("read", billing, "orders", *who, "--history", "--after", "3-1")[:2] == (1, "")


@pytest.mark.parametrize("more", [(), ("--delete",)], ids=["ack", "ack --delete"])
def test_ack_of_a_consumer_takes_all_or_none_and_names_the_owner(
    raxlog_cli: Run, billing: str, more: tuple[str, ...]
) -> None:
    with raxlog.open(billing) as store:
        store.stream("orders").group("billing").claim("b", "2-1")
    status, out, err = raxlog_cli("ack", billing, "orders", "billing", "1-1", "2-1", "--consumer", "a", *more)
    assert (status, out) == (1, "")
    assert "2-1 (with 'b')" in one_line(err)
    assert pending(billing) == [("1-1", "a", 1), ("2-1", "b", 2)]
    for sid, consumer in (("1-1", "a"), ("2-1", "b")):
        assert raxlog_cli("ack", billing, "orders", "billing", sid, "--consumer", consumer, *more)[0] == 0
    assert pending(billing) == []


def test_read_acknowledges_first_and_noack_leaves_nothing_pending(raxlog_cli: Run, billing: str) -> None:
    who = ("--group", "billing", "--consumer", "a")
    assert raxlog_cli("read", billing, "orders", *who, "--ack", "1-1,2-1", "--noack", "--count", "1")[0] == 0
    assert pending(billing) == []
    raxlog_cli("add", billing, "orders", "n=4", "--id", "4-1")
    raxlog_cli("read", billing, "orders", *who)
    assert raxlog_cli("read", billing, "orders", *who, "--ack", "9-9", "--ack", "4-1")[:2] == (1, "")
    assert pending(billing) == []


def test_read_takes_over_what_was_left_idle(raxlog_cli: Run, billing: str) -> None:
    who = ("--group", "billing", "--consumer", "b", "--json")
    assert [row["id"] for row in told(raxlog_cli("read", billing, "orders", *who, "--claim-idle", "60")[1])] == ["3-1"]
    claimed = told(raxlog_cli("read", billing, "orders", *who, "--claim-idle", "0", "--count", "1")[1])
    assert [(row["id"], row["deliveries"]) for row in claimed] == [("1-1", 2)]
    assert claimed[0]["idle"] >= 0


def test_an_entry_deleted_while_pending_is_told_without_fields(raxlog_cli: Run, billing: str) -> None:
    history = ("read", billing, "orders", "--group", "billing", "--consumer", "a", "--history")
    raxlog_cli("delete", billing, "orders", "1-1")
    assert raxlog_cli(*history)[1].splitlines() == ["1-1", "2-1\titem=book\tn=2"]
    assert told(raxlog_cli(*history, "--json")[1])[0]["fields"] is None


def test_several_streams_are_read_in_one_call_each_line_with_its_stream(raxlog_cli: Run, billing: str) -> None:
    with raxlog.open(billing) as store:
        store.stream("a=b").append({"n": 9}, id="9-1")
        store.stream("a=b").create_group("billing", "0")
    out = raxlog_cli("read", billing, "orders=2-1", "a=b=0")[1]
    assert out.splitlines() == ["orders\t3-1\titem=book\tn=3", "a=b\t9-1\tn=9"]
    out = raxlog_cli("read", billing, "orders", "a=b", "--group", "billing", "--consumer", "b", "--json")[1]
    assert [(row["stream"], row["id"]) for row in told(out)] == [("orders", "3-1"), ("a=b", "9-1")]
    assert raxlog_cli("read", billing, "orders=+")[1] == "3-1\titem=book\tn=3\n"
    assert raxlog_cli("read", billing, "orders=$", "a=b=9-1")[:2] == (1, "")


@pytest.mark.parametrize("how", [("orders=$",), ("orders", "--group", "billing", "--consumer", "b")])
def test_a_blocked_read_wakes_with_what_another_process_appends(billing: str, how: tuple[str, ...]) -> None:
    with raxlog.open(billing) as store:
        store.stream("orders").group("billing").set_id("$")
        with running("read", billing, *how, "--timeout", "30", "--json") as reader:
            # Whether it waits already is not to be seen from here, so that news comes until it ends.
            deadline = time.monotonic() + 20
            while reader.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
                store.stream("orders").append({"n": "new"})
            assert json.loads(output(reader).readline())["fields"] == {"n": "new"}
            assert reader.wait(10) == 0


def test_a_blocked_read_ends_at_its_deadline(raxlog_cli: Run, billing: str) -> None:
    who = ("--group", "billing", "--consumer", "a")
    assert raxlog_cli("read", billing, "orders", *who)[0] == 0
    began = time.monotonic()
    assert raxlog_cli("read", billing, "orders", *who, "--timeout", "0.2")[:2] == (1, "")
    assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize("end", ["interrupted", "has no consumer group 'billing'"])
def test_a_blocked_read_ends_by_ctrl_c_and_with_its_group(billing: str, end: str) -> None:
    with raxlog.open(billing) as store:
        group = store.stream("orders").group("billing")
        group.set_id("$")
        with running("read", billing, "orders", "--group", "billing", "--consumer", "late",
                     "--timeout", "none") as reader:
            deadline = time.monotonic() + 20
            while "late" not in [consumer.name for consumer in group.consumers()]:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(0.2)  # it has asked once, and begins to wait
            if end == "interrupted":
                reader.send_signal(signal.SIGINT)
            else:
                group.destroy()
            out, err = reader.communicate(timeout=10)
    assert (reader.returncode, out) == (130 if end == "interrupted" else 1, b"")
    assert end in one_line(err)


def test_tail_wakes_at_once(orders: str) -> None:
    with running("tail", orders, "orders", "-n", "1") as tail, raxlog.open(orders) as store:
        output(tail).readline()  # from here on it follows
        waits = []
        for number in range(10):
            time.sleep(0.05)
            began = time.monotonic()
            store.stream("orders").append({"n": number})
            output(tail).readline()
            waits.append(time.monotonic() - began)
    assert sorted(waits)[5] < 0.1, waits


# -- pending, ack, nack, claim ------------------------------------------------------------


def test_pending_is_told_in_sum_and_one_by_one(raxlog_cli: Run, billing: str) -> None:
    with raxlog.open(billing) as store:
        store.stream("orders").group("billing").nack("1-1")
    lines = raxlog_cli("pending", billing, "orders", "billing")[1].splitlines()
    assert lines[0] == "2 pending entries, from 1-1 to 2-1"
    assert [line.split() for line in lines[2:]] == [["a", "1"], ["(released)", "1"]]
    assert json.loads(raxlog_cli("pending", billing, "orders", "billing", "--json")[1]) == {
        "total": 2, "first": "1-1", "last": "2-1", "consumers": [{"name": "a", "pending": 1}], "parked": 0,
    }  # fmt: skip
    rows = [line.split() for line in raxlog_cli("pending", billing, "orders", "billing", "--list")[1].splitlines()]
    assert rows[1] == ["1-1", "(released)", "-", "1"]
    assert rows[2][:2] == ["2-1", "a"]
    released, held = told(raxlog_cli("pending", billing, "orders", "billing", "--list", "--json")[1])
    assert released == {"id": "1-1", "consumer": None, "idle": None, "deliveries": 1, "parked": False}
    assert (held["id"], held["consumer"], held["deliveries"]) == ("2-1", "a", 1)


def test_a_key_is_configured_and_what_is_parked_is_shown_apart(raxlog_cli: Run, tmp_path: Path) -> None:
    path = str(tmp_path / "k.rax")
    with raxlog.open(path) as store:
        store.stream("jobs").create_group("w")
        store.stream("jobs").extend([{"user": "a"}] * 2 + [{"user": "b"}])
    assert raxlog_cli("configure-group", path, "jobs", "w", "--key", "user", "--order", "yes")[1] == (
        "group w: any number of entries in flight, at any rate, 1 entry of one user at a time and in their order\n")
    with raxlog.open(path) as store:
        store.stream("jobs").group("w").read("me", count=9)
    lines = raxlog_cli("pending", path, "jobs", "w")[1].splitlines()
    assert [line.split() for line in lines[2:]] == [["me", "2"], ["(parked)", "1"]]
    rows = [line.split()[1] for line in raxlog_cli("pending", path, "jobs", "w", "--list")[1].splitlines()]
    assert rows[1:] == ["me", "(parked)", "me"]
    assert "1 of a user, 1 parked" in raxlog_cli("groups", path, "jobs")[1]
    assert raxlog_cli("configure-group", path, "jobs", "w", "--key", "")[1].endswith("at any rate\n")


def test_a_process_that_has_done_nothing_else_makes_a_group_of_subjects(billing: str) -> None:
    command = [sys.executable, "-m", "raxlog", "create-group", billing, "orders", "eu", "--subject", "orders.eu.*"]
    forkserver.run(command, check=True)
    with raxlog.open(billing, readonly=True) as store:
        assert store.stream("orders").full_info().groups[1].subjects == ["orders.eu.*"]


def test_a_pending_list_is_filtered_by_range_consumer_idle_time_and_count(raxlog_cli: Run, billing: str) -> None:
    def ids(*arguments: str) -> tuple[int, list[str]]:
        status, out, _ = raxlog_cli("pending", billing, "orders", "billing", *arguments, "--json")
        return status, [row["id"] for row in told(out)]

    assert ids("--count", "1") == (0, ["1-1"])
    assert ids("2-1") == (0, ["2-1"])
    assert ids("-", "(2-1") == (0, ["1-1"])
    assert ids("--consumer", "a") == (0, ["1-1", "2-1"])
    assert ids("--consumer", "nobody") == (1, [])
    assert ids("--min-idle", "60") == (1, [])


def test_ack_counts_what_was_pending_and_may_delete_it(raxlog_cli: Run, billing: str) -> None:
    assert raxlog_cli("ack", billing, "orders", "billing", "1-1", "9-9")[:2] == (0, "1 entry acknowledged\n")
    assert raxlog_cli("ack", billing, "orders", "billing", "1-1")[:2] == (1, "0 entries acknowledged\n")
    out = raxlog_cli("ack", billing, "orders", "billing", "2-1", "--delete", "--json")[1]
    assert json.loads(out) == {"acknowledged": 1, "deleted": 1}
    assert pending(billing) == []
    assert [sid for sid, _ in entries(billing)] == ["1-1", "3-1"]


def test_deleting_and_trimming_heed_what_a_group_still_needs(raxlog_cli: Run, billing: str) -> None:
    out = raxlog_cli("delete", billing, "orders", "1-1", "--refs", "acked")
    assert out[:2] == (1, "0 entries deleted, 1 still referenced\n")
    assert raxlog_cli("trim", billing, "orders", "--maxlen", "0", "--refs", "acked")[1] == "0 entries evicted\n"
    assert json.loads(raxlog_cli("delete", billing, "orders", "1-1", "--refs", "delref", "--json")[1]) == {
        "deleted": 1, "referenced": 0,
    }  # fmt: skip
    assert pending(billing) == [("2-1", "a", 1)]


def test_nack_gives_back_with_its_modes_and_a_delay(raxlog_cli: Run, billing: str) -> None:
    assert raxlog_cli("nack", billing, "orders", "billing", "1-1", "--mode", "silent")[:2] == (0, "1 entry released\n")
    assert json.loads(raxlog_cli("nack", billing, "orders", "billing", "2-1", "--delay", "60", "--json")[1]) == {
        "released": 1
    }
    assert pending(billing) == [("1-1", None, 0), ("2-1", None, 1)]
    who = ("--group", "billing", "--consumer", "b", "--claim-idle", "0", "--count", "5", "--json")
    assert [row["id"] for row in told(raxlog_cli("read", billing, "orders", *who)[1])] == ["1-1", "3-1"]
    assert raxlog_cli("nack", billing, "orders", "billing", "9-9")[0] == 1
    raxlog_cli("nack", billing, "orders", "billing", "1-1", "--deliveries", "7")
    assert pending(billing)[0] == ("1-1", None, 7)


def test_claim_moves_entries_with_every_option(raxlog_cli: Run, billing: str) -> None:
    claim = ("claim", billing, "orders", "billing", "b")
    assert raxlog_cli(*claim, "1-1", "--min-idle", "60")[:2] == (1, "")
    assert raxlog_cli(*claim, "1-1", "--idle", "100")[:2] == (0, "1-1\titem=book\tn=1\n")
    assert raxlog_cli(*claim, "1-1", "--min-idle", "60", "--justid", "--time", "1970-01-02")[:2] == (0, "1-1\n")
    out = raxlog_cli(*claim, "2-1", "3-1", "--force", "--deliveries", "9", "--lastid", "3-1", "--json")[1]
    assert [(row["id"], row["deliveries"]) for row in told(out)] == [("2-1", 9), ("3-1", 9)]
    assert pending(billing) == [("1-1", "b", 2), ("2-1", "b", 9), ("3-1", "b", 9)]
    assert raxlog_cli("lag", billing, "orders", "billing")[1] == "0\n"


def test_autoclaim_says_where_to_go_on_and_what_was_deleted(raxlog_cli: Run, billing: str) -> None:
    raxlog_cli("delete", billing, "orders", "2-1")
    auto = ("autoclaim", billing, "orders", "billing", "b")
    assert raxlog_cli(*auto, "--count", "1")[1].splitlines() == [
        "1-1\titem=book\tn=1", "1 entry claimed; go on with --start 2-1",
    ]  # fmt: skip
    status, out, _ = raxlog_cli(*auto, "--start", "2-1", "--justid", "--json")
    assert (status, json.loads(out)) == (0, {"cursor": None, "entries": [], "deleted": ["2-1"]})
    assert raxlog_cli(*auto, "--min-idle", "60")[:2] == (1, "0 entries claimed; that was the end\n")


# -- the rest -----------------------------------------------------------------------------


def test_names_that_are_no_text_go_through_every_command(raxlog_cli: Run, orders: str) -> None:
    group, consumer = os.fsdecode(b"g\xff"), os.fsdecode(b"c\xfe\t")
    in_json = {"base64": base64.b64encode(b"g\xff").decode()}
    assert raxlog_cli("create-group", orders, "orders", group, "--start", "0")[0] == 0
    assert raxlog_cli("read", orders, "orders", "--group", group, "--consumer", consumer)[0] == 0
    assert "g\\xff" in raxlog_cli("groups", orders, "orders")[1]
    assert json.loads(raxlog_cli("groups", orders, "orders", "--json")[1])["groups"][0]["name"] == in_json
    assert "c\\xfe\\t" in raxlog_cli("consumers", orders, "orders", group)[1]
    assert "c\\xfe\\t" in raxlog_cli("pending", orders, "orders", group, "--list")[1]
    assert raxlog_cli("ack", orders, "orders", group, "1-1", "2-1", "3-1")[0] == 0
    assert raxlog_cli("destroy-group", orders, "orders", group)[0] == 0


def test_info_says_how_long_idempotent_ids_are_remembered(raxlog_cli: Run, orders: str) -> None:
    status, said, _ = raxlog_cli("info", orders, "orders")
    assert status == 0
    assert [line.split()[-1] for line in said.splitlines() if "idempotence" in line] == ["86,400", "none"]
    found = json.loads(raxlog_cli("info", orders, "orders", "--json")[1])
    assert (found["idempotence_window"], found["idempotence_cap"]) == (86_400, None)


def test_settings_are_changed_by_configure(raxlog_cli: Run, orders: str) -> None:
    settings = "--compression", "zstd", "--node-max-entries", "7"
    said = "compression is now zstd, node-max-entries is now 7\n"
    assert raxlog_cli("configure", orders, "orders", *settings)[:2] == (0, said)
    said = "nothing changed: the stream has these settings already\n"
    assert raxlog_cli("configure", orders, "orders", *settings)[:2] == (0, said)
    assert json.loads(raxlog_cli("configure", orders, "orders", "--idempotence-window", "9", "--json")[1]) == {
        "configured": "orders", "idempotence_window": 9,
    }  # fmt: skip
    figures = json.loads(raxlog_cli("info", orders, "orders", "--json")[1])
    assert (figures["compression"], figures["node_max_entries"]) == ("zstd", 7)


def test_a_group_or_stream_that_is_not_there_is_status_1_and_one_line(raxlog_cli: Run, billing: str) -> None:
    for stream, group in (("nope", "billing"), ("orders", "nope")):
        for arguments in (
            ("lag", stream, group), ("consumers", stream, group), ("pending", stream, group),
            ("pending", stream, group, "--list"), ("ack", stream, group, "1-1"),
            ("ack", stream, group, "1-1", "--delete"), ("nack", stream, group, "1-1"),
            ("claim", stream, group, "c", "1-1"), ("autoclaim", stream, group, "c"),
            ("destroy-group", stream, group), ("set-group-id", stream, group, "0"),
            ("create-consumer", stream, group, "c"), ("delete-consumer", stream, group, "c"),
            ("read", stream, "--group", group, "--consumer", "c"),
            ("read", stream, "--group", group, "--consumer", "c", "--timeout", "9"),
        ):  # fmt: skip
            status, out, err = raxlog_cli(arguments[0], billing, *arguments[1:])
            assert (status, out) == (1, ""), arguments
            assert "nope" in one_line(err), arguments
    for command, *rest in (["groups", "nope"], ["create-group", "nope", "g", "--no-create-stream"],
                           ["read", "nope=0"]):
        status, out, err = raxlog_cli(command, billing, *rest)
        assert (status, out) == (1, ""), command
        assert "nope" in one_line(err)
    assert raxlog_cli("streams", billing)[1] == "orders\n"


def test_wrong_usage_of_a_group_is_status_2_and_creates_nothing(raxlog_cli: Run, tmp_path: Path) -> None:
    who = ("--group", "g", "--consumer", "c")
    for arguments in (
        ("groups", "s.rax"), ("lag", "s.rax", "orders"), ("consumers", "s.rax", "orders"),
        ("create-group", "s.rax", "orders", "g", "--start", "x"),
        ("create-group", "s.rax", "orders", "g" * 70_000),
        ("set-group-id", "s.rax", "orders", "g", "x"), ("destroy-group", "s.rax", "orders"),
        ("create-consumer", "s.rax", "orders", "g", "c" * 70_000),
        ("delete-consumer", "s.rax", "orders", "g", "c", "--drop", "--to", "d"),
        ("ack", "s.rax", "orders", "g"), ("ack", "s.rax", "orders", "g", "x"),
        ("ack", "s.rax", "orders", "g", "1-1", "--refs", "acked"),
        ("nack", "s.rax", "orders", "g", "1-1", "--mode", "perhaps"),
        ("nack", "s.rax", "orders", "g", "1-1", "--delay", "-1"),
        ("claim", "s.rax", "orders", "g", "c"), ("claim", "s.rax", "orders", "g", "c", "1-1", "--min-idle", "nan"),
        ("claim", "s.rax", "orders", "g", "c", "1-1", "--idle", "1", "--time", "1970-01-02"),
        ("claim", "s.rax", "orders", "g", "c", "1-1", "--time", "5"),
        ("claim", "s.rax", "orders", "g", "c", "1-1", "--lastid", "x"),
        ("autoclaim", "s.rax", "orders", "g", "c", "--count", "0"),
        ("autoclaim", "s.rax", "orders", "g", "c", "--start", "x"),
        ("pending", "s.rax", "orders", "g", "x"), ("pending", "s.rax", "orders", "g", ""),
        ("pending", "s.rax", "orders", "g", "-", "x"),
        ("pending", "s.rax", "orders", "g", "--count", "-1"),
        ("read", "s.rax"), ("read", "s.rax", "orders"), ("read", "s.rax", "orders=x"), ("read", "s.rax", "orders=>"),
        ("read", "s.rax", "orders=0", "orders=1"), ("read", "s.rax", "orders=0", "--noack"),
        ("read", "s.rax", "orders=0", "--consumer", "c"), ("read", "s.rax", "orders=0", "--ack", "1-1"),
        ("read", "s.rax", "orders=0", "--count", "0"), ("read", "s.rax", "orders", "--group", "g"),
        ("read", "s.rax", "orders", *who, "--ack", "x"), ("read", "s.rax", "orders", *who, "--after", "1-1"),
        ("read", "s.rax", "orders", *who, "--history", "--timeout", "1"),
        ("read", "s.rax", "orders", "mail", *who, "--ack", "1-1"), ("read", "s.rax", "orders", "orders", *who),
        ("read", "s.rax", "orders", *who, "--claim-idle", "long"),
        ("configure", "s.rax", "orders"), ("configure", "s.rax", "orders", "--compression", "rar"),
    ):  # fmt: skip
        status, out, err = raxlog_cli(*arguments)
        assert (status, out) == (2, ""), arguments
        one_line(err)
    assert list(tmp_path.iterdir()) == []


def test_looking_at_groups_writes_nothing(raxlog_cli: Run, billing: str) -> None:
    files = [path for path in Path(billing).rglob("*") if path.is_file() and path.name not in ("lock.mdb", "log-state")]
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}
    for arguments in (("groups", billing, "orders"), ("lag", billing, "orders", "billing"),
                      ("consumers", billing, "orders", "billing"), ("pending", billing, "orders", "billing", "--list"),
                      ("read", billing, "orders=0")):  # fmt: skip
        assert raxlog_cli(*arguments)[0] == 0
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files} == before


def test_retention_is_configured_shown_and_applied(raxlog_cli: Run, tmp_path: Path) -> None:
    run, store = raxlog_cli, str(tmp_path / "s.rax")
    for n in range(1, 31):
        assert run("add", store, "s", "n=1", "--id", f"{n}-0", "--expect-last", f"{n - 1}-0")[0] == 0
        if n == 1:
            assert run("configure", store, "s", "--node-max-entries", "3")[0] == 0
    status, _, err = run("add", store, "s", "n=1", "--expect-last", "29-0")
    assert status == 1
    assert "30-0" in one_line(err)
    assert run("configure", store, "s", "--retention", "max_age=60, maxlen=7") == (
        0, "retention is now maxlen=7 max_age=60\n", "")
    assert "maxlen 7, max_age 60" in run("info", store, "s")[1]
    assert json.loads(run("info", store, "s", "--json")[1])["retention"] == {"maxlen": 7, "max_age": 60}
    assert run("maintain", store) == (0, "s: 30 entries freed\n", "")
    assert run("maintain", store)[1] == "nothing to free\n"
    assert json.loads(run("maintain", store, "--json")[1]) == {"freed": []}
    assert json.loads(run("configure", store, "s", "--retention", "", "--json")[1])["retention"] == {}
    assert "retention" not in run("info", store, "s")[1]
    for wrong in ("maxlen", "maxlen=0", "age=5", "max_age=NaN", "max_age=-1", "acked=2", "idle_group=5", "="):
        status, _, err = run("configure", store, "s", "--retention", wrong)
        assert status == 2, wrong
        one_line(err)
