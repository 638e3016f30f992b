"""The exposition: a status in Prometheus' text format, by prometheus-client from the extra raxlog[ui].

    Status ── Samples ── CollectorRegistry ── generate_latest ── text

Of every stream and group; of limits and schedules, where there are any, the first 1,000 schedules of a stream; of
consumers on request, for their number is not bounded. Names are labels: prometheus-client escapes what is in them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...status import Status
from .. import output
from .extra import require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import GaugeMetricFamily

_STORE = {
    "commit": "number of the last commit",
    "last_write_seconds": "when the files were last written, Unix time",
    "subscriptions": "subscriptions and bindings",
    "readers": "reads open at this moment",
    "file_bytes": "what the store's files take on the disk",
    "free_bytes": "room on the disk",
    "damaged": "streams and groups that could not be read",
}
_STREAM = {
    "length": "live entries",
    "added": "entries ever appended",
    "deferred": "entries to come",
}
_GROUP = {
    "lag": "entries not delivered yet: the signal for scaling",
    "pending": "entries delivered and not acknowledged",
    "waiting_seconds": "since the first entry that is not delivered came",
    "oldest_pending_seconds": "since the oldest delivery that is not acknowledged",
    "dead_letters": "entries given up",
    "paused": "1 while it delivers nothing",
    "gone": "pending entries that were found to be no longer in the stream, and taken out",
}
_LIMIT = {
    "max_in_flight": "entries that its consumers may hold",
    "held": "entries that they hold",
    "rate": "entries a second that it is given at most, on the average of its time",
    "parked": "pending entries that wait for their keys",
    "limited": "1 while one of these holds back what there is to deliver",
}
_SCHEDULES = {"schedules": "schedules"}
_SCHEDULE = {
    "next_timestamp_seconds": "the next tick, Unix time; none while it is paused",
    "late_seconds": "since that should have been appended",
    "paused": "1 while it appends nothing",
}
_CONSUMER = {
    "pending": "entries delivered to it and not acknowledged",
    "oldest_pending_seconds": "since the first of these was delivered, or its lease renewed",
    "seen_seconds": "when it last called, Unix time",
}


def exposition(status: Status, consumers: bool = False) -> str:
    """A status in Prometheus' text format. NotInstalled without prometheus-client."""
    require("metrics", "prometheus_client")
    from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415

    class Samples:
        """What a registry asks for its figures."""

        def collect(self) -> Iterator[GaugeMetricFamily]:
            return _families(status, consumers)

    registry = CollectorRegistry()
    registry.register(Samples())
    return generate_latest(registry).decode()


def _families(status: Status, consumers: bool) -> Iterator[GaugeMetricFamily]:
    from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415

    def families(kind: str, meanings: dict[str, str], labels: list[str],
                 rows: list[tuple[list[str], tuple[float | None, ...]]]) -> Iterator[GaugeMetricFamily]:
        for place, (name, meaning) in enumerate(meanings.items()):
            family = GaugeMetricFamily(f"raxlog_{kind}_{name}", meaning, labels=labels)
            for values, figures in rows:
                if (figure := figures[place]) is not None:
                    family.add_metric(values, figure)
            yield family

    yield from families("store", _STORE, [], [([], (
        status.commit, status.last_commit.timestamp(), status.subscriptions, len(status.readers), status.file_bytes,
        status.free_bytes, len(status.damaged)))])
    yield from families("stream", _STREAM, ["stream"], [
        ([output.text(stream.name)], (stream.length, stream.added, stream.deferred)) for stream in status.streams])
    groups = [([output.text(stream.name), output.text(group.name)], group)
              for stream in status.streams for group in stream.groups]
    yield from families("group", _GROUP, ["stream", "group"], [
        (labels, (group.lag, group.pending, group.waiting, group.oldest_pending, group.dead_letters,
                  group.paused_until is not None, group.gone)) for labels, group in groups])
    if limited := [(labels, group) for labels, group in groups if group.max_in_flight is not None
                   or group.rate or group.key is not None]:
        yield from families("group", _LIMIT, ["stream", "group"], [
            (labels, (group.max_in_flight, group.held, group.rate and group.rate[0] / group.rate[1],
                      None if group.key is None else group.parked, group.limited_by is not None))
            for labels, group in limited])
    if planned := [stream for stream in status.streams if stream.schedule_count]:
        yield from families("stream", _SCHEDULES, ["stream"], [
            ([output.text(stream.name)], (stream.schedule_count,)) for stream in planned])
        yield from families("schedule", _SCHEDULE, ["stream", "schedule"], [
            ([output.text(stream.name), output.text(row.name)],
             (None if row.next is None else row.next.timestamp(),
              max(0.0, (status.time - row.due).total_seconds()) if row.due else 0, row.paused))
            for stream in planned for row in stream.schedules])
    if consumers:
        yield from families("consumer", _CONSUMER, ["stream", "group", "consumer"], [
            ([*labels, output.text(member.name)], (member.pending, member.oldest_pending, member.seen.timestamp()))
            for labels, group in groups for member in group.consumers])
