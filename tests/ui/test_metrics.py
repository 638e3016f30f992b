"""The command metrics: what Prometheus reads."""

from __future__ import annotations

import json
import sys

import pytest
import raxlog
from cli_runs import Run, one_line
from prometheus_client.parser import text_string_to_metric_families
from raxlog.tools import output

pytest_plugins = ["cli_fixtures"]

HOSTILE = 'a"\n\\{}<b>\x1b[31m'


@pytest.fixture
def hostile(orders: str) -> str:
    """The store of 'orders' with a group that has delivered two of three entries; all names are hostile."""
    with raxlog.open(orders) as store:
        store.rename_stream("orders", HOSTILE)
        store.stream(HOSTILE).create_group(HOSTILE, "0").read(HOSTILE, count=2)
    return orders


def samples(text: str) -> dict[str, tuple[dict[str, str], float]]:
    """The samples of a text as a reader of Prometheus' format finds them."""
    return {one.name: (one.labels, one.value) for family in text_string_to_metric_families(text)
            for one in family.samples}


def test_metrics_of_hostile_names_are_read_back_by_prometheus_own_parser(raxlog_cli: Run, hostile: str) -> None:
    status, out, err = raxlog_cli("metrics", hostile)
    assert (status, err) == (0, "")
    assert "\x1b" not in out
    found = samples(out)
    assert found["raxlog_stream_length"][1] == 3
    labels, lag = found["raxlog_group_lag"]
    assert lag == 1
    assert labels["stream"] == labels["group"]
    assert '"' in labels["group"]
    assert found["raxlog_group_pending"][1] == 2
    assert found["raxlog_store_damaged"][1] == 0


def test_metrics_name_consumers_on_request_only(raxlog_cli: Run, hostile: str) -> None:
    assert "raxlog_consumer_pending" not in samples(raxlog_cli("metrics", hostile)[1])
    found = samples(raxlog_cli("metrics", hostile, "--consumers")[1])
    assert found["raxlog_consumer_pending"][1] == 2
    assert found["raxlog_consumer_seen_seconds"][1] > 1e9


def test_metrics_as_json_are_the_status(raxlog_cli: Run, orders: str) -> None:
    found = json.loads(raxlog_cli("metrics", orders, "--json")[1])
    assert [(one["name"], one["length"]) for one in found["streams"]] == [("orders", 3)]


def test_without_the_extra_metrics_say_what_to_install(raxlog_cli: Run, orders: str,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    status, _, err = raxlog_cli("metrics", orders)
    assert status != 0
    assert "pip install 'raxlog[ui]'" in one_line(err)


def test_metrics_of_limits_and_schedules_are_there_where_these_are(raxlog_cli: Run, hostile: str) -> None:
    before = raxlog_cli("metrics", hostile)[1]
    assert "limit" not in before
    assert "schedule" not in before
    with raxlog.open(hostile) as store:
        stream = store.stream(HOSTILE)
        stream.group(HOSTILE).configure(max_in_flight=2)
        stream.create_group("calls").configure(rate=(30, 60.0))
        store.stream("jobs").schedule(HOSTILE, {"n": 1}, every=0.001)
        store.stream("jobs").schedule("off", {"n": 1}, every=60)
        store.stream("jobs").pause_schedule("off")
    found = {(one.name, one.labels.get("group", one.labels.get("schedule"))): one.value
             for family in text_string_to_metric_families(raxlog_cli("metrics", hostile)[1]) for one in family.samples}
    name = output.text(HOSTILE)
    assert [found["raxlog_group_" + what, name] for what in ("max_in_flight", "held", "limited")] == [2, 2, 1]
    assert ("raxlog_group_rate", name) not in found
    assert (found["raxlog_group_rate", "calls"], found["raxlog_group_limited", "calls"]) == (0.5, 0)
    assert ("raxlog_group_held", "calls") not in found
    assert found["raxlog_stream_schedules", None] == 2
    assert found["raxlog_schedule_next_timestamp_seconds", name] > 1e9
    assert found["raxlog_schedule_late_seconds", name] > 0
    assert found["raxlog_schedule_paused", "off"] == 1
    assert ("raxlog_schedule_next_timestamp_seconds", "off") not in found


def test_metrics_count_the_pending_entries_that_were_found_to_be_gone(raxlog_cli: Run, hostile: str) -> None:
    assert samples(raxlog_cli("metrics", hostile)[1])["raxlog_group_gone"][1] == 0
    with raxlog.open(hostile) as store:
        store.stream(HOSTILE).trim(maxlen=0)
        assert store.stream(HOSTILE).group(HOSTILE).read("c", claim_idle=0) == []
    found = samples(raxlog_cli("metrics", hostile)[1])
    assert (found["raxlog_group_gone"][1], found["raxlog_group_pending"][1]) == (2, 0)
