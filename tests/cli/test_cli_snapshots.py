"""raxlog snapshot, restore, verify."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import raxlog
from cli_runs import Run, entries, one_line

pytest_plugins = ["cli_fixtures"]


def test_a_snapshot_is_made_read_verified_and_restored(raxlog_cli: Run, orders: str) -> None:
    status, out, _ = raxlog_cli("snapshot", orders, "backups/monday")
    assert status == 0
    assert out.startswith("snapshot of transaction ")
    assert "1 stream, 3 entries" in out
    assert raxlog_cli("range", "backups/monday", "orders")[1] == raxlog_cli("range", orders, "orders")[1]
    assert "every byte is as it was written" in raxlog_cli("verify", "backups/monday")[1]
    assert raxlog_cli("restore", "backups/monday", "again.rax")[0] == 0
    assert entries("again.rax") == entries(orders)
    assert raxlog_cli("add", "again.rax", "orders", "item=pen")[0] == 0


def test_increments_shards_and_retention_as_json(raxlog_cli: Run, orders: str) -> None:
    full = json.loads(raxlog_cli("snapshot", orders, "b/1", "--json")[1])
    assert full["kind"] == "full"
    assert full["streams"][0] | {"nodes": 1} == {
        "name": "orders", "length": 3, "first": "1-1", "last": "3-1", "nodes": 1, "groups": 0,
    }
    raxlog_cli("add", orders, "orders", "item=pen")
    more = json.loads(raxlog_cli("snapshot", orders, "b/2", "--incremental-to", "b/1", "--keep", "1", "--json")[1])
    assert (more["kind"], more["parent"]) == ("increment", full["id"])
    assert sorted(os.listdir("b")) == ["1", "2"]
    cut = json.loads(raxlog_cli("snapshot", orders, "b/3", "--shards", "2", "--keep", "1", "--json")[1])
    assert (cut["kind"], cut["shards"]) == ("shards", 1)
    assert os.listdir("b") == ["3"]
    assert json.loads(raxlog_cli("verify", "b/3", "--json")[1])["ok"]


def test_damage_is_told_with_status_1(raxlog_cli: Run, orders: str) -> None:
    raxlog_cli("snapshot", orders, "s")
    data = Path("s/000001/data.mdb")
    data.write_bytes(b"\1" + data.read_bytes()[1:])
    status, out, err = raxlog_cli("verify", "s")
    assert (status, err) == (1, "")
    assert out.splitlines()[0].startswith("000001/data.mdb: bytes 0 to")
    found = json.loads(raxlog_cli("verify", "s", "--json")[1])
    assert not found["ok"]
    assert len(found["problems"]) == 1
    status, out, err = raxlog_cli("restore", "s", "r.rax")
    assert (status, out) == (3, "")
    assert "fail their checksum" in one_line(err)
    assert not Path("r.rax").exists()


def test_a_folder_of_snapshots_that_is_to_be_restored_names_the_newest(raxlog_cli: Run, orders: str) -> None:
    Path("backups").mkdir()
    for name in ("tuesday", "monday"):
        assert raxlog_cli("snapshot", orders, f"backups/{name}")[0] == 0
    status, _, err = raxlog_cli("restore", "backups", "r.rax")
    assert status == 3
    assert "It holds 2, the newest is monday." in one_line(err)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("snapshot", "ORDERS", "ORDERS"), 3),
        (("snapshot", "nothing", "s"), 3),
        (("snapshot", "ORDERS", "s", "--shards", "0"), 2),
        (("snapshot", "ORDERS", "s", "--shards", "2", "--shard-bytes", "9"), 2),
        (("snapshot", "ORDERS", "s", "--shards", "2", "--incremental-to", "x"), 2),
        (("snapshot", "ORDERS", "s", "--incremental-to", "nothing"), 3),
        (("snapshot", "ORDERS", "s3://bucket/x"), 2),
        (("snapshot", "ORDERS", "s", "--keep", "none"), 2),
        (("restore", "nothing", "r"), 3),
        (("restore", "ORDERS", "r"), 3),
        (("verify", "ORDERS"), 3),
        (("verify", "nothing"), 3),
    ],
)
def test_what_cannot_be_done_is_one_line_and_changes_nothing(
    raxlog_cli: Run, orders: str, arguments: tuple[str, ...], status: int
) -> None:
    before = sorted(os.listdir("."))
    found, out, err = raxlog_cli(*(orders if word == "ORDERS" else word for word in arguments))
    assert (found, out) == (status, "")
    one_line(err)
    assert sorted(os.listdir(".")) == before


def test_a_snapshot_is_not_written_to(raxlog_cli: Run, orders: str) -> None:
    raxlog_cli("snapshot", orders, "s")
    status, _, err = raxlog_cli("add", "s", "orders", "item=pen")
    assert status == 3
    assert "raxlog restore" in one_line(err)
    with raxlog.open("s", readonly=True) as store:
        assert len(store.stream("orders")) == 3
