"""Options: the text that Spark passes for a load or a save, checked and typed.

    path  asOf  stream | streamPattern  dataset  what to read
    startingOffsets  endingOffsets               IDs as Redis writes them, both included
    startingTimestamp  endingTimestamp           milliseconds; they override the offsets
    minPartitions  maxRecordsPerPartition        how it is cut
    maxOffsetsPerTrigger  minOffsetsPerTrigger  maxBytesPerTrigger   how much a micro-batch takes
    group                                        the consumer group that a query moves
    idFrom  onExisting                           rows that are written with their own IDs

The names are those of Spark's Kafka source, wherever it has one, and mean the same but for one
thing: endingOffsets is included here, as in a Redis range; write ``(5-1`` to leave it out.
Option names are case-insensitive. An unknown one is an error, never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime
from typing import Any

from ...recovery.snapshot.location import required_local
from ...storage.errors import InvalidArgument, InvalidStreamID
from ...stream.columns.arrow import MODES, PERMISSIVE, time_zone
from ...stream.node.arguments import member_name
from ...stream.node.stream_id import MAX64, StreamID, make_id, parse_end, parse_start, time_at
from ..output import did_you_mean

EARLIEST, LATEST = "earliest", "latest"
EXISTING = ERROR, SKIP = "error", "skip"
DATASETS = ("entries", "groups", "pending")
READ, FOLLOW, WRITE = "reading", "readStream", "writing"

NO_TABLE = (
    "Spark keeps the OPTIONS of a CREATE TABLE from a source in Python. Use CREATE TEMPORARY VIEW … USING raxlog "
    "OPTIONS (…), or write SELECT … FROM t WITH (path '…', stream '…'), INSERT INTO t WITH (…)"
)
MAX_TRIGGER_DELAY = 15 * 60.0
BATCH_ROWS = 32_768
WRITE_ROWS = 10_000
RETENTION = 3600.0
SHORT_ZONES: dict[str, str] = dict(re.findall(r"(\S+)=(\S+)", """
    ACT=Australia/Darwin AET=Australia/Sydney AGT=America/Argentina/Buenos_Aires ART=Africa/Cairo AST=America/Anchorage
    BET=America/Sao_Paulo BST=Asia/Dhaka CAT=Africa/Harare CNT=America/St_Johns CST=America/Chicago CTT=Asia/Shanghai
    EAT=Africa/Addis_Ababa ECT=Europe/Paris EST=-05:00 HST=-10:00 IET=America/Indiana/Indianapolis IST=Asia/Kolkata
    JST=Asia/Tokyo MIT=Pacific/Apia MST=-07:00 NET=Asia/Yerevan NST=Pacific/Auckland PLT=Asia/Karachi
    PNT=America/Phoenix PRT=America/Puerto_Rico PST=America/Los_Angeles SST=Pacific/Guadalcanal VST=Asia/Ho_Chi_Minh
"""))  # of Java, which Spark accepts, for time_zone()


@dataclass(frozen=True)
class _Option:
    field: str  # of Options, or an input of _consistent()
    read: Callable[[str], Any]
    what: str
    uses: tuple[str, ...]


def _option(name: str, read: Callable[[str], Any], what: str, uses: tuple[str, ...], default: Any = None) -> Any:
    """A field of Options that a user may set, under this name."""
    return field(default=default, metadata={name: (read, what, uses)})


def _whole(least: int, most: float = float("inf")) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text)
        if not least <= number <= most:
            raise ValueError
        return number

    return read


def _flag(text: str) -> bool:
    return _one_of(("true", "false"))(text) == "true"


def _one_of(allowed: tuple[str, ...]) -> Callable[[str], str]:
    def read(text: str) -> str:
        found = next((name for name in allowed if name.lower() == text.strip().lower()), None)
        if found is None:
            raise ValueError
        return found

    return read


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def _duration(text: str) -> float:
    """Seconds, or a number with a unit, as Spark writes durations: 500ms, 30s, 15m, 1h."""
    digits = text.strip().rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text.strip()[len(digits) :] or "s"
    seconds = float(digits) * _UNITS.get(unit, float("nan"))
    if not 0 <= seconds < float("inf"):
        raise ValueError
    return seconds


_SIZES = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}


def _size(text: str) -> int:
    digits = text.strip().lower().rstrip("bkmg")
    size = int(digits) * _SIZES.get(text.strip().lower()[len(digits) :], -1)
    if size < 1:
        raise ValueError
    return size


def _zone(text: str) -> str:
    zone = SHORT_ZONES.get(text.strip(), text.strip())
    time_zone(zone)
    return zone


def _group(text: str) -> str:
    member_name(text, "group")
    return text


def _folder(text: str) -> str:
    return str(required_local(text.strip(), "this is"))


def _as_of(text: str) -> tuple[str, datetime | int]:
    number = text.strip().removeprefix("transaction ")
    if number.isdecimal():
        return ("created", time_at(int(number))) if number == text.strip() else ("transaction", int(number))
    moment = datetime.fromisoformat(number)
    if moment.tzinfo is None:
        raise ValueError
    return "created", moment


_ANY = (READ, FOLLOW, WRITE)
_IN = (READ, FOLLOW)
_COUNT = "a whole number >= 1"
_TIME = "seconds, or a number with a unit: 500ms, 30s, 15m, 1h"
_MOMENT = "a time with its zone (2026-11-22T10:00:00Z), milliseconds since 1970, or 'transaction 57'"
_TRUTH = "true or false"
_BYTES = "bytes, or a number with k, m or g"


@dataclass(frozen=True)
class Options:
    """The options of one load() or save(), with their defaults."""

    path: str = _option("path", str, "a folder", _ANY, MISSING)
    stream: str | None = _option("stream", str, "a name", _ANY)
    stream_pattern: str | None = _option("streamPattern", str, "a pattern", _IN)
    dataset: str = _option("dataset", _one_of(DATASETS), f"one of {', '.join(DATASETS)}", (READ,), "entries")
    # a member of manifests, and its maximum
    as_of: tuple[str, datetime | int] | None = _option("asOf", _as_of, _MOMENT, (READ,))
    start: StreamID | None = None  # None: earliest, or latest where a query follows
    end: StreamID | None = None  # None: latest
    since: StreamID | None = None  # the start, if startingOffsets names an ID
    from_latest: bool = False
    min_partitions: int | None = _option("minPartitions", _whole(1), _COUNT, _IN)
    max_records: int | None = _option("maxRecordsPerPartition", _whole(1), _COUNT, _IN)
    fail_on_data_loss: bool = _option("failOnDataLoss", _flag, _TRUTH, _IN, True)
    mode: str = _option("mode", _one_of(MODES), f"one of {', '.join(MODES)}", _IN, PERMISSIVE)
    corrupt_column: str = _option("columnNameOfCorruptRecord", str, "a column's name", _IN, "_corrupt_record")
    include_timestamp: bool = _option("includeTimestamp", _flag, _TRUTH, _IN, False)
    time_zone: str | None = _option("timeZone", _zone, "a time zone: Europe/Berlin, +02:00", _IN)
    infer_schema: bool = _option("inferSchema", _flag, _TRUTH, _IN, False)
    include_id: bool = _option("includeId", _flag, _TRUTH, _IN, False)
    pushdown: bool = _option("pushdown", _flag, _TRUTH, (READ,), False)
    batch_rows: int = _option("batchRows", _whole(1), _COUNT, _IN, BATCH_ROWS)
    max_per_trigger: int | None = _option("maxOffsetsPerTrigger", _whole(1), _COUNT, (FOLLOW,))
    min_per_trigger: int | None = _option("minOffsetsPerTrigger", _whole(1), _COUNT, (FOLLOW,))
    max_bytes_per_trigger: int | None = _option("maxBytesPerTrigger", _size, _BYTES, (FOLLOW,))
    max_trigger_delay: float = _option("maxTriggerDelay", _duration, _TIME, (FOLLOW,), MAX_TRIGGER_DELAY)
    group: str | None = _option("group", _group, "a name", (FOLLOW,))
    snapshot_dir: str | None = _option("snapshotDir", _folder, "a folder", (READ,))
    snapshot_max_age: float = _option("snapshotMaxAge", _duration, _TIME, (READ,), 0.0)
    snapshot_retention: float = _option("snapshotRetention", _duration, _TIME, (READ,), RETENTION)
    cache_dir: str | None = _option("cacheDir", _folder, "a folder", _IN)
    cache_bytes: int | None = _option("cacheSize", _size, _BYTES, _IN)
    write_rows: int = _option("rowsPerCommit", _whole(1), _COUNT, (WRITE,), WRITE_ROWS)
    id_from: str | None = _option("idFrom", str, "a column's name", (WRITE,))
    on_existing: str = _option("onExisting", _one_of(EXISTING), f"one of {', '.join(EXISTING)}", (WRITE,), ERROR)


_OF_TABLES = ("path", "stream", "streamPattern", "dataset", "asOf", "snapshotDir", "snapshotMaxAge",
              "snapshotRetention")
OPTIONS = {
    name: _Option(made.name, *how) for made in fields(Options) for name, how in made.metadata.items()
} | {
    "startingOffsets": _Option("start_offset", lambda text: text.strip().lower(), "an ID", _IN),
    "endingOffsets": _Option("end_offset", lambda text: text.strip().lower(), "an ID", (READ,)),
    "startingTimestamp": _Option("start_ms", _whole(0, MAX64), "milliseconds since 1970", _IN),
    "endingTimestamp": _Option("end_ms", _whole(0, MAX64), "milliseconds since 1970", (READ,)),
}


def parse(given: Mapping[str, str], use: str | None = READ) -> Options:
    """The options as given by Spark for one use of the source: READ, FOLLOW, WRITE; None: not known yet.

    InvalidArgument for one that is unknown, misplaced or malformed; the message names those known.
    """
    values: dict[str, Any] = {}
    text = {name.lower(): value for name, value in given.items()}
    allowed = {name.lower(): name for name, option in OPTIONS.items() if use is None or use in option.uses}
    for name, value in text.items():
        if name not in allowed:
            raise InvalidArgument(_unknown(name, use or "a load", list(allowed.values())))
        option = OPTIONS[allowed[name]]
        try:
            values[option.field] = option.read(value)
        except InvalidArgument as error:
            raise InvalidArgument(f"option {allowed[name]}={value!r}: {error}") from None
        except (ValueError, TypeError):
            raise InvalidArgument(f"option {allowed[name]}={value!r} must be {option.what}") from None
    if not values.get("path"):
        raise InvalidArgument(
            "option path is missing: the folder of a snapshot or a store, as in "
            f".option('path', 'backup.rax') or load('backup.rax'). In SQL {NO_TABLE}"
        )
    dataset = values.get("dataset", "entries")
    idle = [allowed[name] for name in text if allowed[name] not in _OF_TABLES]
    if dataset != "entries" and idle:
        raise InvalidArgument(
            f"option {idle[0]} means nothing for dataset={dataset}, which is read whole. Leave it out; there are: "
            f"{', '.join(_OF_TABLES)}"
        )
    return _consistent(values, use)


def _unknown(name: str, use: str, known: list[str]) -> str:
    elsewhere = next((option for option in OPTIONS if option.lower() == name), None)
    if elsewhere is not None:
        where = " and ".join(OPTIONS[elsewhere].uses)
        return f"option {elsewhere} belongs to {where}, not to {use}. Here there are: {', '.join(sorted(known))}"
    near = did_you_mean(name, map(str.lower, known)) or "."
    return f"there is no option {name!r} for {use}{near} There are: {', '.join(sorted(known))}"


def _consistent(values: dict[str, Any], use: str | None) -> Options:
    start_offset, end_offset, start_ms, end_ms = (
        values.pop(name, None) for name in ("start_offset", "end_offset", "start_ms", "end_ms"))
    if "stream" in values and "stream_pattern" in values:
        raise InvalidArgument("options stream and streamPattern exclude each other: one names, the other matches")
    if "stream" not in values and "stream_pattern" not in values:
        if values.get("dataset", "entries") == "entries":
            raise InvalidArgument(
                "option stream is missing: the name of a stream, as in .option('stream', 'orders'); or give "
                "streamPattern, as in .option('streamPattern', 'orders.*')"
            )
        values["stream_pattern"] = "*"
    if "on_existing" in values and "id_from" not in values:
        raise InvalidArgument("option onExisting means nothing without idFrom: all IDs that the stream makes are new")
    if start_ms is not None:
        values["start"] = make_id(start_ms, 0)
    elif start_offset == LATEST:
        if use == READ:
            raise InvalidArgument("option startingOffsets='latest' leaves nothing to a batch; it is for readStream")
        values["from_latest"] = True
    elif start_offset is None:
        values["from_latest"] = use == FOLLOW
    elif start_offset != EARLIEST:
        values["start"] = since = _bound(parse_start, "startingOffsets", start_offset)
        values["since"] = since if since > StreamID.MIN else None
    if end_ms is not None:
        if end_ms == 0:
            raise InvalidArgument("option endingTimestamp=0 leaves nothing: it is not included itself")
        values["end"] = make_id(end_ms - 1, MAX64)
    elif end_offset == EARLIEST:
        raise InvalidArgument("option endingOffsets='earliest' leaves nothing to read; give an ID, or 'latest'")
    elif end_offset not in (None, LATEST):
        values["end"] = _bound(parse_end, "endingOffsets", end_offset)
    start, end = values.get("start"), values.get("end")
    if start is not None and end is not None and end < start:
        raise InvalidArgument(
            f"the range ends ({end}) before it starts ({start}); look at the starting and ending options"
        )
    least, most = values.get("min_per_trigger"), values.get("max_per_trigger")
    if most is not None and "max_bytes_per_trigger" in values:
        raise InvalidArgument("options maxOffsetsPerTrigger and maxBytesPerTrigger exclude each other: Spark takes one")
    if least is not None and most is not None and least > most:
        raise InvalidArgument(f"minOffsetsPerTrigger={least} is greater than maxOffsetsPerTrigger={most}")
    return Options(**values)


def _bound(parser: Callable[[str], StreamID], name: str, text: str) -> StreamID:
    try:
        return parser(text)
    except InvalidStreamID as error:
        raise InvalidArgument(f"option {name}={text!r}: {error}, earliest, latest") from None
