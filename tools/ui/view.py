"""The view of a picture: what is wrong, and the table of streams and groups, as text for a terminal and for a page.

    wrong    orders / billing    oldest pending 14m, delivered 7 times; lag 1,204 and growing          worst first
    rows     orders              its length, rate, deferred entries, bytes
               billing           its lag, pending entries, the time since the oldest delivery, dead letters

All cells are plain text without control characters (output.text), and nothing in them is markup.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from ...status import GroupStatus, ScheduleStatus, Status, StreamStatus
from ...stream.node.arguments import Text
from .. import output
from .watch import Key, Picture, Sample, Watch

IDLE = 60.0  # seconds after which a pending entry, or one that waits, is wrong: twice the usual lease
_REDELIVERED = 3  # deliveries from which an entry is in trouble
_SCARCE, _GONE = 1 << 30, 64 << 20  # bytes free
_BEHIND = 1000  # commits for which a reader holds pages back
_OVERDUE = 10.0  # seconds
_TREND, _LEAST = 60.0, 6  # seconds, and samples, by which a lag is said to grow
_BARS = " ▁▂▃▄▅▆▇█"

ORDERS = ("trouble", "rate", "lag", "name")
COLUMNS = ("stream / group", "length", "rate/s", "lag", "pending", "oldest", "dead",
           "waits", "latency", "tries", "consumers", "deferred", "bytes", "state",
           "rate, or lag, so far")
CONSUMERS = ("consumer", "pending", "oldest", "seen", "active")
_COURSE = 48  # characters of the last of these columns


class Trouble(NamedTuple):
    """Something that is wrong. ``level`` 2 is a loss or a standstill, 1 a warning; ``key`` is where to look, if any."""

    level: int
    weight: float
    key: Key | None
    where: str
    what: str


class Overview(NamedTuple):
    """A store at one moment, as it is shown. A row is a stream's place in the status, and a group's in it, or -1."""

    head: str
    wrong: list[Trouble]
    rows: list[tuple[int, int]]
    levels: dict[Key, int]  # of what is wrong with a stream or group
    basis: tuple[object, ...]  # what the rows follow from


NOTHING = Overview("", [], [], {}, ())


def view(watch: Watch, picture: Picture, order: str = "trouble", wanted: str = "",
         before: Overview = NOTHING) -> Overview:
    """What is to be shown: rows in one of ORDERS, and of streams and groups with ``wanted`` in their names only.

    ``before`` is the view of an earlier picture, whose rows are kept where they would be the same.
    """
    status = picture.status
    if status is None:
        trouble = Trouble(2, 0, None, "store", output.one_line(picture.error))
        return Overview(output.text(watch.path), [trouble], [], {}, ())
    wrong = troubles(watch, status)
    levels: dict[Key, int] = {}
    for trouble in wrong:
        if trouble.key is not None:
            levels[trouble.key] = max(trouble.level, levels.get(trouble.key, 0))
            levels[trouble.key[0], None] = max(trouble.level, levels.get((trouble.key[0], None), 0))
    basis = (status.commit, status.last_commit, order, wanted, levels, any(picture.rates.values()))
    rows = before.rows if basis == before.basis else list(_rows(picture.rates, status, levels, order, wanted))
    return Overview(head(status, sum(picture.rates.values())), wrong, rows, levels, basis)


def head(status: Status, rate: float) -> str:
    """The store in a line."""
    parts = [output.text(status.path), f"commit {status.commit:,}", f"{number(rate)}/s",
             f"{size(status.file_bytes)}, {size(status.free_bytes)} free"]
    for count, noun in ((len(status.readers), "reader"), (len(status.listeners), "listener"),
                       (status.subscriptions, "subscription")):
        if count:
            parts.append(output.many(count, noun))
    return " · ".join([*parts, f"raxlog {status.versions['version']} ({status.versions['kernels']})"])


def troubles(watch: Watch, status: Status) -> list[Trouble]:
    """What is wrong, the worst first."""
    found = [Trouble(2, 1e12, None, "damaged", output.one_line(text)) for text in status.damaged]
    if status.free_bytes < _SCARCE:
        level = 2 if status.free_bytes < _GONE else 1
        found.append(Trouble(level, 1e11, None, "disk", f"{size(status.free_bytes)} free"))
    found += [Trouble(1, reader.lag, None, "reader", f"process {reader.pid} reads what was there {reader.lag:,} "
                      "commits ago: the file grows until then") for reader in status.readers if reader.lag > _BEHIND]
    for stream in status.streams:
        late = 0.0 if stream.next_due is None else (status.time - stream.next_due).total_seconds()
        if late > _OVERDUE:
            found.append(Trouble(1, late, (stream.name, None), output.text(stream.name),
                                 _of_late(stream, status.time, late)))
        for group in stream.groups:
            what = list(_of_group(watch.samples((stream.name, group.name)) if group.lag else [], status.time, group))
            if what:
                where = f"{output.text(stream.name)} / {output.text(group.name)}"
                found.append(Trouble(max(level for level, _ in what), max(group.oldest_pending, group.waiting),
                                     (stream.name, group.name), where, "; ".join(words for _, words in what)))
    return sorted(found, key=lambda trouble: (-trouble.level, -trouble.weight))


def _of_late(stream: StreamStatus, now: datetime, late: float) -> str:
    names = [output.text(row.name) for row in stream.schedules if _is_late(row, now)]
    if not names:
        return f"deferred entries are {age(late)} late: nothing reads or appends"
    who = f"schedule {names[0]} is" if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more schedules are"
    return f"{who} {age(late)} late: nothing reads or appends, or none can plan the next tick"


def _is_late(schedule: ScheduleStatus, now: datetime) -> bool:
    return schedule.due is not None and (now - schedule.due).total_seconds() > _OVERDUE


def _of_group(samples: list[Sample], now: datetime, group: GroupStatus) -> Iterator[tuple[int, str]]:
    if group.oldest_pending > IDLE or group.oldest_deliveries >= _REDELIVERED:
        tries = f", delivered {group.oldest_deliveries} times" if group.oldest_deliveries > 1 else ""
        yield 2 if group.oldest_pending > IDLE else 1, f"oldest pending {age(group.oldest_pending)}{tries}"
    if group.lag:
        if grows(samples):
            yield 1, f"lag {group.lag:,} and growing"
        elif group.waiting > IDLE and group.paused_until is None:
            unseen = min(((now - consumer.seen).total_seconds() for consumer in group.consumers), default=math.inf)
            unread = "" if group.consumers else ", and no consumer has ever read"
            limited = "" if group.limited_by is None else f", held back by {group.limited_by}"
            yield (2 if unseen > IDLE else 1,
                   f"lag {group.lag:,}, the first waits for {age(group.waiting)}{limited}{unread}")
    if group.dead_letters:
        yield 1, output.many(group.dead_letters, "dead letter")


def grows(samples: list[Sample]) -> bool:
    """Whether a lag has grown within the last minute: its later values are all above its earlier ones."""
    recent = [sample for sample in samples if samples[-1].time - sample.time <= _TREND]
    values, half = [sample.value for sample in recent], len(recent) // 2
    return len(recent) >= _LEAST and min(values[half:]) > max(values[:half])


# -- the table ----------------------------------------------------------------------------


def _rows(rates: dict[Text, float], status: Status, levels: dict[Key, int], order: str,
          wanted: str) -> Iterator[tuple[int, int]]:
    streams = status.streams
    places = list(range(len(streams)))
    if order in ("trouble", "rate"):
        places.sort(key=lambda at: -rates.get(streams[at].name, 0.0))
    if order == "lag":
        places.sort(key=lambda at: -max((group.lag for group in streams[at].groups), default=0))
    if order == "trouble" and levels:
        places.sort(key=lambda at: -levels.get((streams[at].name, None), 0))
    for at in places:
        stream = streams[at]
        whole = not wanted or wanted in output.text(stream.name)
        groups = [(at, place) for place, group in enumerate(stream.groups)
                  if whole or wanted in output.text(group.name)]
        if whole or groups:
            yield at, -1
            yield from groups


def key_of(status: Status, row: tuple[int, int]) -> Key:
    """The stream, or the group, of a row."""
    stream = status.streams[row[0]]
    return stream.name, None if row[1] < 0 else stream.groups[row[1]].name


def named(status: Status | None, stream: str, group: str = "") -> Key | None:
    """The key of a stream, and of its group, by the text of their names."""
    for found in status.streams if status else ():
        if output.text(found.name) == stream:
            return found.name, next((each.name for each in found.groups if output.text(each.name) == group), None)
    return None


def cells(watch: Watch, picture: Picture, row: tuple[int, int]) -> tuple[str, ...]:
    """A row as text, by COLUMNS."""
    assert picture.status is not None
    stream = picture.status.streams[row[0]]
    if row[1] < 0:
        return (output.text(stream.name), f"{stream.length:,}", number(picture.rates.get(stream.name, 0.0)),
                *[""] * 8, f"{stream.deferred:,}" if stream.deferred else "", size(stream.bytes),
                _schedules(stream, picture.status.time),
                bars(watch.samples((stream.name, None))))
    group = stream.groups[row[1]]
    samples = watch.samples((stream.name, group.name))
    return (f"  {output.text(group.name)}", "", "", f"{'≤ ' if group.is_filtered and group.lag else ''}{group.lag:,}",
            f"{group.pending:,}", age(group.oldest_pending) if group.pending else "-",
            f"{group.dead_letters:,}" if group.dead_letters else "-", age(group.waiting) if group.lag else "-",
            age(samples[-1].latency) if samples else "-", str(group.oldest_deliveries or "-"),
            str(len(group.consumers)), "", "", state(group), bars(samples))


def state(group: GroupStatus) -> str:
    """Whether it is paused, and its limits; empty for a group that just delivers."""
    return ", ".join(part for part in ("paused" * (group.paused_until is not None), output.limits(group)) if part)


def _schedules(stream: StreamStatus, now: datetime) -> str:
    """How many there are, how many are paused or late, and when the next tick comes; empty without any."""
    if not stream.schedule_count:
        return ""
    late, paused = sum(_is_late(row, now) for row in stream.schedules), sum(row.paused for row in stream.schedules)
    parts = [output.many(stream.schedule_count, "schedule")] + [f"{paused:,} paused"] * bool(paused)
    due = min((row.due for row in stream.schedules if row.due is not None), default=None)
    if late:
        parts.append(f"{late:,} late")
    elif due is not None:
        parts.append(f"next in {age(max(0.0, (due - now).total_seconds()))}")
    return ", ".join(parts)


def schedules(stream: StreamStatus, now: datetime) -> list[tuple[int, tuple[str, ...]]]:
    """The stream's schedules by name: what is wrong with each, and its cells: name, next time, last time."""
    return [(int(_is_late(row, now)), (output.text(row.name), "paused" if row.paused else output.moment(row.next),
                                       output.moment(row.last))) for row in stream.schedules]


def consumers(group: GroupStatus, now: datetime) -> list[tuple[int, tuple[str, ...]]]:
    """The group's consumers, the oldest lease first: what is wrong with each, and its cells, by CONSUMERS."""
    return [(2 if consumer.oldest_pending > IDLE else 0, (
        output.text(consumer.name), f"{consumer.pending:,}", age(consumer.oldest_pending) if consumer.pending else "-",
        *("-" if at is None else age((now - at).total_seconds()) for at in (consumer.seen, consumer.active))))
        for consumer in sorted(group.consumers, key=lambda consumer: -consumer.oldest_pending)]


# -- figures ------------------------------------------------------------------------------


def number(value: float) -> str:
    """A rate: 0, 0.2, 32, 1,204, 1.2M."""
    if value >= 1e6:
        return f"{value / 1e6:,.1f}M"
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def size(count: float) -> str:
    """Bytes: 512 B, 8.2 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def age(seconds: float) -> str:
    """A time span in one unit: 5ms, 0.3s, 12s, 14m, 3h, 5d; - where it is no time."""
    if seconds >= 1e9:
        return "-"
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s" if seconds >= 10 else f"{seconds:.1f}s" if seconds >= 0.1 else f"{seconds * 1000:.0f}ms"


def bars(samples: list[Sample], width: int = _COURSE) -> str:
    """The course of a series in one line of ``width`` characters, from its first sample to its last, in equal times."""
    values = resampled(samples, width)
    highest = max(values, default=0.0)
    return "".join(_BARS[0 if not value else 1 + round(value / highest * (len(_BARS) - 2))] for value in values)


def resampled(samples: list[Sample], count: int, what: str = "value") -> list[float]:
    """Values at ``count`` moments of equal distance, each that of the last sample before; fewer samples give fewer."""
    if len(samples) < 2:
        return [float(getattr(sample, what)) for sample in samples]
    start, span = samples[0].time, samples[-1].time - samples[0].time
    values, at = [], 0
    for place in range(count):
        moment = start + span * place / max(1, count - 1)
        while at + 1 < len(samples) and samples[at + 1].time <= moment + 1e-9:
            at += 1
        values.append(float(getattr(samples[at], what)))
    return values
