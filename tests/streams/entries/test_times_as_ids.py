"""Datetimes in the place of IDs: the milliseconds they stand for, with a time zone only."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
import raxlog
from raxlog import InvalidArgument, StreamID

NOON = datetime(2024, 11, 21, 12, 0, tzinfo=UTC)
MS = int(NOON.timestamp()) * 1000
CEST = timezone(timedelta(hours=2))


@pytest.fixture
def stream(store: raxlog.Store) -> raxlog.Stream:
    """One entry each minute from 11:58 to 12:02, and a second one in the millisecond of noon."""
    stream = store.stream("s")
    ids = [f"{MS + 60_000 * n}-0" for n in range(-2, 3)]
    stream.extend([{"n": n} for n in range(6)], ids=[*ids[:3], f"{MS}-7", *ids[3:]])
    return stream


def shown(entries: Any) -> list[str]:
    return [entry.fields["n"] for entry in entries]


def test_a_time_is_its_milliseconds() -> None:
    assert StreamID(NOON) == StreamID(MS) == StreamID(NOON.astimezone(CEST))
    assert StreamID(NOON + timedelta(microseconds=1999)) == (MS + 1, 0)
    assert StreamID(StreamID(MS, 5).datetime) == (MS, 0)
    assert StreamID(datetime(1970, 1, 1, tzinfo=UTC)) == (0, 0)
    assert StreamID(datetime.max.replace(tzinfo=UTC)).datetime.year == 9999
    with pytest.raises(raxlog.InvalidStreamID, match="milliseconds must lie in"):
        StreamID(datetime(1969, 12, 31, tzinfo=UTC))


def test_ranges_counts_and_trims_take_times(stream: raxlog.Stream) -> None:
    assert shown(stream.range(NOON, "+")) == ["2", "3", "4", "5"]
    assert shown(stream.range("-", NOON)) == ["0", "1", "2", "3"]  # to the end of that millisecond
    assert shown(stream.range(NOON, NOON.astimezone(CEST), reverse=True)) == ["3", "2"]
    assert stream.count(NOON, NOON + timedelta(minutes=1)) == 3
    assert stream.rank(NOON) == 2
    entry = stream.get(NOON)
    assert entry is not None
    assert shown([entry]) == ["2"]
    assert stream.delete(NOON) == 1
    assert stream.trim(minid=NOON) == 2
    assert stream.append({"n": 9}, NOON + timedelta(hours=1), minid=NOON + timedelta(minutes=2)) == (MS + 3_600_000, 0)
    assert shown(stream.range()) == ["5", "9"]
    stream.set_id(NOON + timedelta(hours=2))
    assert stream.last_id == (MS + 7_200_000, 0)


def test_reads_and_groups_take_times(store: raxlog.Store, stream: raxlog.Stream) -> None:
    assert shown(store.read({"s": NOON})[("s")]) == ["3", "4", "5"]  # what comes behind the first ID of it, as for "ms"
    group = stream.create_group("g", NOON)
    assert shown(group.read("w")) == ["3", "4", "5"]
    assert shown(group.read("w", ids=NOON + timedelta(minutes=1))) == ["5"]
    assert len(group.pending_entries(NOON + timedelta(minutes=1), NOON + timedelta(minutes=2))) == 2
    assert shown(group.claim("v", NOON + timedelta(minutes=1))) == ["4"]
    assert shown(group.autoclaim("v", start=NOON + timedelta(minutes=2)).entries) == ["5"]
    assert group.ack(NOON + timedelta(minutes=1), consumer="v") == 1
    assert group.nack(NOON + timedelta(minutes=2)) == 1
    group.set_id(NOON - timedelta(hours=1))
    assert group.lag == 6


def test_a_time_without_a_zone_is_refused_everywhere_and_says_what_to_do(
    store: raxlog.Store, stream: raxlog.Stream
) -> None:
    naive = datetime(2024, 11, 21, 12, 0)
    group = stream.create_group("g", "0")
    calls: list[Callable[[], Any]] = [
        lambda: StreamID(naive), lambda: stream.range(naive), lambda: stream.range("-", naive),
        lambda: stream.get(naive), lambda: stream.trim(minid=naive), lambda: stream.append({"n": 1}, naive),
        lambda: stream.set_id(naive), lambda: stream.delete(naive), lambda: stream.count(naive),
        lambda: stream.create_group("h", naive), lambda: group.set_id(naive), lambda: group.read("w", ids=naive),
        lambda: group.ack(naive), lambda: store.read({"s": naive}), lambda: group.pending_entries(naive),
        lambda: group.read("w", ack=[naive]),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(InvalidArgument, match=r"has no time zone; .*datetime\.now\(UTC\)"):
            call()
    with pytest.raises(InvalidArgument, match="or datetime, not date"):
        stream.range(date(2024, 11, 21))  # type: ignore[arg-type]
    assert len(stream) == 6
