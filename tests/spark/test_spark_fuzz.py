"""Random queries by a real Spark: the rows are those of stream.range(), converted by a small model.

    a state (0 … 2)    snapshot, shards, folder with all three (asOf), live store (the last state only)
    a query            one of them, a range, columns, filters, cuts
    the model          range() of that state ─> values of the columns ─> filters

The seed is printed; RAXLOG_SEED repeats a run, RAXLOG_LONG=1 has 300 queries.
"""

from __future__ import annotations

import decimal
import json
import os
import random
import re
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import raxlog
from column_values import BAD, EPOCH, TOP, TYPES, VALUES, value_of
from raxlog.recovery.snapshot import manifest

pytestmark = pytest.mark.spark

pytest_plugins = ["spark_session"]

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
QUERIES = 300 if os.environ.get("RAXLOG_LONG") else 40
STATES = 3
MAX64 = (1 << 64) - 1

NAMES = ["item", "qty", "price", "when", "größe", "id_ms2", "timestamp", "stream"]
OPERATORS = ["=", "<=>", "<", "<=", ">", ">=", "<>", "in", "is not null"]

Row = tuple[Any, ...]


# -- all fields, and a malformed entry ----------------------------------------------------------


def map_of(entry: raxlog.Entry, kind: str) -> Any:
    """All fields, as normal() has them."""
    texts = re.findall("string|binary", kind)
    made = [tuple(value_of(raw, of, "UTC") for raw, of in zip(pair, texts, strict=True))
            for pair in entry.fields.items()]
    return BAD if any(BAD in pair for pair in made) else tuple(sorted(made, key=repr))


def described(entry: raxlog.Entry) -> str:
    """The text of a malformed entry."""
    pairs = [[text.decode("utf-8", "backslashreplace") for text in pair] for pair in entry.pairs]
    fields: Any = dict(pairs) if len(dict(pairs)) == len(pairs) else pairs  # type: ignore[arg-type]
    return json.dumps({"id": str(entry.id), "fields": fields}, ensure_ascii=False)


# -- a query -----------------------------------------------------------------------------------


@dataclass
class Column:
    """``reads`` is what the column holds: id_ms, id_seq, id, time, stream, corrupt, fields, or "=" and a field."""

    name: str
    kind: str
    reads: str


@dataclass
class Query:
    """A query, and what is needed to repeat it by hand."""

    state: int
    path: Path
    options: dict[str, str]
    columns: list[Column]
    bounds: tuple[str, str]  # for range()
    given: bool = True  # whether there is a schema
    where: list[str] = field(default_factory=list)
    tests: list[Callable[[dict[str, Any]], bool | None]] = field(default_factory=list)

    def shown(self) -> str:
        """The query as text."""
        columns = self.columns if self.given else "no schema"
        return f"state {self.state} at {self.path}\n{self.options}\n{columns}\nwhere {self.where}"


class World:
    """Three states of a store, in all forms that Spark can read."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self.folder = folder
        self.names = ["orders", "orders.eu", "orders.us", "mail", "one", "empty", "far"]
        sizes = [5000, dice.randrange(200, 2000), dice.randrange(50, 800), dice.randrange(STATES, 120), 1, 1, 45]
        self.states: list[raxlog.Store] = []
        self.ms = dict.fromkeys(self.names, 1_700_000_000_000) | {"far": TOP - 20}  # which ends beyond a bigint
        with raxlog.open(folder / "live.rax", durability="relaxed", encoding=None) as store:
            for state in range(STATES):
                for name, size in zip(self.names, sizes, strict=True):
                    self._grow(store.stream(name), name, size // STATES if size > 1 else int(state == 0), dice)
                    if name == "empty" or (state == 1 and name != "mail" and dice.random() < 0.6):
                        store.stream(name).trim(maxlen=0 if name == "empty" else dice.randrange(1, size + 1))
                store.snapshot(folder / f"full-{state}")
                store.snapshot(folder / f"shards-{state}", shards=dice.choice([1, 2, 5, 16]))
                many = folder / "many" / f"{'cab'[state]}-{state}"
                many.parent.mkdir(exist_ok=True)
                store.snapshot(many, **({"shards": 3} if dice.random() < 0.5 else {}))
                self.states.append(raxlog.open(folder / f"full-{state}", readonly=True, encoding=None))

    def _grow(self, stream: raxlog.Stream, name: str, size: int, dice: random.Random) -> None:
        usual = dice.sample(NAMES, 4)
        entries, ids = [], []
        for number in range(size):
            names = usual if dice.random() < 0.7 else dice.choices(NAMES, k=dice.randint(1, 6))  # some twice
            values = VALUES if dice.random() < 0.3 else [b"7", b"12", b"true"]
            entries.append([(each, dice.choice(values)) for each in names])
            self.ms[name] += dice.choice([0, 0, 1, 1, 2, 1000])
            ids.append(raxlog.StreamID(self.ms[name], 1_000_000 * len(self.states) + number))
        if entries:
            middle = dice.randint(1, len(ids))
            stream.extend(entries[:middle], ids=ids[:middle])
            stream.configure(compression=dice.choice(["none", "zstd", "compact"]))
            stream.extend(entries[middle:], ids=ids[middle:])
            if name != "mail" and (some := dice.sample(ids, int(len(ids) * dice.choice([0, 0.02, 0.4])))):
                stream.delete(*some)
        self.ms[name] += 1

    def query(self, dice: random.Random) -> Query:
        """One at random."""
        state = dice.randrange(STATES)
        options = {"failOnDataLoss": "false", "mode": "FAILFAST" if dice.random() < 0.1 else "PERMISSIVE"}
        how = dice.choice(["full", "shards", "many", "live"])
        path = self.folder / f"{how}-{state}"
        if how == "live":
            state, path = STATES - 1, self.folder / "live.rax"
            options |= {"snapshotDir": str(self.folder / "taken")}
        elif how == "many":
            path = self.folder / "many"
            made = manifest.read(next(path.glob(f"*-{state}")))
            options |= {"asOf": dice.choice([made.created.isoformat(), f"transaction {made.transaction}"])}
        streams = [dice.choice(self.names)]
        if dice.random() < 0.35:
            pattern = dice.choice(["*", "orders*", "orders.??", "[mo]*"])
            options |= {"streamPattern": pattern}
            wanted = {"*": "", "orders*": "orders", "orders.??": "orders.", "[mo]*": ("m", "o")}[pattern]
            streams = [name for name in self.names if name.startswith(wanted)]
        else:
            options |= {"stream": streams[0]}
        bounds = self._bounds(streams[0], state, options, dice)
        if streams == ["mail"]:  # nothing of it is gone
            del options["failOnDataLoss"]
        if dice.random() < 0.5:
            options |= {"minPartitions": str(dice.choice([1, 2, 3, 5, 9]))}
        if dice.random() < 0.2:
            options |= {"maxRecordsPerPartition": str(dice.choice([700, 1500, 5000]))}
        if dice.random() < 0.3:
            options |= {"batchRows": str(dice.choice([3, 100, 999, 32768]))}
        for option in ("includeId", "includeTimestamp"):
            if dice.random() < 0.4:
                options |= {option: "true"}
        if dice.random() < 0.3:
            options |= {"timeZone": dice.choice(["Europe/Berlin", "America/New_York", "Asia/Kolkata"])}
        given = dice.random() < 0.85
        query = Query(state, path, options, (self._columns if given else self._usual)(options, dice), bounds, given)
        if dice.random() < 0.5:
            self._filters(query, streams[0], dice)
        return query

    def _bounds(self, name: str, state: int, options: dict[str, str], dice: random.Random) -> tuple[str, str]:
        ids = [entry.id for entry in self.states[state].stream(name).range()] or [raxlog.StreamID(5, 5)]
        low, high = sorted(dice.choices(ids, k=2))
        start, end = "-", "+"
        if dice.random() < 0.5:
            start = dice.choice([str(low), f"({low}", str(low.ms), "-"])
            options["startingOffsets"] = start
        if dice.random() < 0.5:
            end = dice.choice([str(high), f"({high}", str(high.ms), "+"])
            options["endingOffsets"] = end
        if dice.random() < 0.25:
            start, options["startingTimestamp"] = str(low.ms), str(low.ms)
        if dice.random() < 0.25:
            end, options["endingTimestamp"] = f"{high.ms}-{MAX64}", str(high.ms + 1)
        return start, end

    def _usual(self, options: dict[str, str], _: random.Random) -> list[Column]:
        made = [Column("stream", "string", "stream")] if "streamPattern" in options else []
        made += [Column("id_ms", "bigint", "id_ms"), Column("id_seq", "bigint", "id_seq"),
                 Column("fields", "map<string,binary>", "fields")]
        made += [Column("timestamp", "timestamp", "time")] if "includeTimestamp" in options else []
        return made + ([Column("id", "binary", "id")] if "includeId" in options else [])

    def _columns(self, options: dict[str, str], dice: random.Random) -> list[Column]:
        made = [Column("id_ms", "bigint", "id_ms"), Column("id_seq", "bigint", "id_seq")]
        if "streamPattern" in options:
            made.append(Column("stream", "string", "stream"))
        if "includeTimestamp" in options:
            made.append(Column("timestamp", "timestamp", "time"))
        if "includeId" in options:
            made.append(Column("id", dice.choice(["binary", "string"]), "id"))
        if dice.random() < 0.3:
            made.append(Column("fields", f"map<{dice.choice(TYPES[:2])},{dice.choice(TYPES[:2])}>", "fields"))
        if dice.random() < 0.5:
            name = dice.choice(["_corrupt_record", "bad"])
            options |= {} if name.startswith("_") else {"columnNameOfCorruptRecord": name}
            made.append(Column(name, "string", "corrupt"))
        made = dice.sample(made, dice.randint(0, len(made)))
        for name in dice.sample(NAMES, dice.randint(0 if made else 1, 5)):
            shown = dice.choice([name, name, f"my {name}", "id_ms", "timestamp", "stream", "id"])
            if {"timestamp": "includeTimestamp", "stream": "streamPattern"}.get(name) in options:
                continue  # the name is taken
            if shown not in {column.name for column in made}:
                made.append(Column(shown, dice.choice(TYPES), f"={name}"))
        if dice.random() < 0.15 and not any(column.reads == "id_ms" for column in made):
            made.append(Column("began", "bigint", "id_ms"))
        dice.shuffle(made)
        return made or [Column("id_seq", "bigint", "id_seq")]

    def _filters(self, query: Query, name: str, dice: random.Random) -> None:
        if dice.random() < 0.8:
            query.options["pushdown"] = "true"
        ids = [entry.id for entry in self.states[query.state].stream(name).range()] or [raxlog.StreamID(5, 5)]
        columns = [column for column in query.columns if column.reads in ("id_ms", "id", "time", "stream")]
        columns += [column for column in query.columns if column.reads[0] == "=" and column.kind in TYPES[:3]]
        for column in dice.sample(columns, min(len(columns), dice.randint(1, 3))):
            sid = dice.choice(ids)
            value: Any
            if column.kind == "bigint":
                # Of a greater number Spark itself makes "true", for rows with null too.
                value = min(TOP, sid.ms + dice.choice([0, 0, 1, -1])) if column.reads == "id_ms" else 7
                text = str(value)
            elif column.kind == "binary":
                value = struct.pack(">QQ", *sid)[: dice.choice([16, 16, 16, 7, 0])] + b"\1" * dice.choice([0, 0, 3])
                value = value if column.reads == "id" else b"12"
                text = f"X'{value.hex()}'"
            elif column.kind == "timestamp":
                value = min(sid.ms, 1_800_000_000_000) * 1000 + dice.choice([0, 0, 1, 999, -1])
                text = f"timestamp_micros({value})" if dice.random() < 0.2 else (
                    f"TIMESTAMP '{(EPOCH + timedelta(microseconds=value)).isoformat()}'")
            else:
                value = str(sid) if column.reads == "id" else dice.choice([name, "mail", "none", "7"])
                text = f"'{value}'"
            operators = dice.choices(OPERATORS, k=dice.choice([1, 1, 2]))
            made = [_atom(column.name, operator, value, text) for operator in operators]
            if len(made) == 2 and dice.random() < 0.5:
                (one, first), (other, second) = made
                made = [(f"({one} or {other})", _either(first, second))]
            elif dice.random() < 0.1:
                made = [(f"not ({one})", _negated(test)) for one, test in made]
            query.where += [text for text, _ in made]
            query.tests += [test for _, test in made]

    def expected(self, query: Query) -> list[Row] | None:
        """The rows by range() and the model; None where mode FAILFAST refuses an entry."""
        zone = query.options.get("timeZone", "UTC")
        pattern = query.options.get("streamPattern")
        names = self.names if pattern is None else sorted(self.names)
        rows = []
        for name in names:
            if pattern is None and name != query.options["stream"]:
                continue
            if pattern is not None and not re.fullmatch(
                {"*": ".*", "orders*": "orders.*", "orders.??": r"orders\...", "[mo]*": "[mo].*"}[pattern], name
            ):
                continue
            for entry in self.states[query.state].stream(name).range(*query.bounds):
                row, bad = _row(entry, name, query.columns, zone)
                if bad and query.options["mode"] == "FAILFAST":
                    return None
                shown = {column.name: value for column, value in zip(query.columns, row, strict=True)}
                if all(test(shown) for test in query.tests):
                    rows.append(row)
        return rows


def _row(entry: raxlog.Entry, stream: str, columns: list[Column], zone: str) -> tuple[Row, bool]:
    fields = entry.fields
    row = []
    for column in columns:
        made: Any = None
        if column.reads in ("id_ms", "id_seq"):
            made = getattr(entry, column.reads[3:])
            made = BAD if made > TOP else made
        elif column.reads == "id":
            made = struct.pack(">QQ", *entry.id) if column.kind == "binary" else str(entry.id)
        elif column.reads == "time":
            made = entry.ms * 1000 if entry.ms * 1000 <= TOP else BAD
        elif column.reads == "stream":
            made = stream
        elif column.reads == "fields":
            made = map_of(entry, column.kind)
        elif column.reads[0] == "=" and column.reads[1:].encode() in fields:
            made = value_of(fields[column.reads[1:].encode()], column.kind, zone)
        row.append(made)
    bad = BAD in row
    texts = {"corrupt": described(entry)} if bad else {}
    return tuple(texts.get(column.reads, None if value is BAD else value)
                 for column, value in zip(columns, row, strict=True)), bad


def _atom(name: str, operator: str, value: Any, text: str) -> tuple[str, Callable[[dict[str, Any]], bool | None]]:
    how: dict[str, Callable[[Any], bool]] = {
        "=": lambda held: held == value, "<": lambda held: held < value, "<=": lambda held: held <= value,
        ">": lambda held: held > value, ">=": lambda held: held >= value, "<>": lambda held: held != value,
        "in": lambda held: held == value,
    }
    if operator == "is not null":
        return f"`{name}` is not null", lambda row: row[name] is not None
    if operator == "<=>":
        return f"`{name}` <=> {text}", lambda row: row[name] is not None and row[name] == value
    shown = f"`{name}` in ({text}, {text})" if operator == "in" else f"`{name}` {operator} {text}"
    return shown, lambda row: None if row[name] is None else how[operator](row[name])


def _either(one: Callable[..., bool | None], other: Callable[..., bool | None]) -> Callable[..., bool | None]:
    return lambda row: bool(one(row)) or bool(other(row))


def _negated(test: Callable[..., bool | None]) -> Callable[..., bool | None]:
    return lambda row: None if (found := test(row)) is None else not found


def found(spark: Any, query: Query) -> list[Row]:
    """The rows as Spark has them, each value in the model's form."""
    from pyspark.sql.types import StructField, StructType, _parse_datatype_string  # noqa: PLC0415

    reader = spark.read.format("raxlog").options(path=str(query.path), **query.options)
    if query.given:
        reader = reader.schema(StructType([
            StructField(column.name, _parse_datatype_string(column.kind), metadata=_metadata(column))
            for column in query.columns
        ]))
    frame = reader.load()
    for condition in query.where:
        frame = frame.where(condition)
    assert frame.columns == [column.name for column in query.columns]
    texts = {"timestamp": "unix_micros(`{0}`)", "timestamp_ntz": "unix_micros(cast(`{0}` as timestamp))"}
    rows = frame.selectExpr(*[
        f"{texts.get(column.kind, '`{0}`').format(column.name)} as c{place}"
        for place, column in enumerate(query.columns)
    ]).collect()
    return [tuple(map(_normal, row)) for row in rows]


def _metadata(column: Column) -> dict[str, str] | None:
    if column.reads[0] == "=" and column.reads[1:] != column.name:
        return {"field": column.reads[1:]}
    return {"field": "id_ms"} if column.name == "began" else None


def _normal(value: Any) -> Any:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, dict):
        return tuple(sorted(((_normal(name), _normal(held)) for name, held in value.items()), key=repr))
    return value


# -- the test ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    print(f"RAXLOG_SEED={SEED}")
    made = World(tmp_path_factory.mktemp("fuzz"), random.Random(SEED))
    yield made
    for store in made.states:
        store.close()


def test_random_queries_have_the_rows_of_a_range(spark: Any, world: World) -> None:
    dice = random.Random(SEED + 1)
    queries = [world.query(dice) for _ in range(QUERIES)]
    rows = refused = 0

    def asked(query: Query) -> list[Row] | str:
        try:
            return found(spark, query)
        except Exception as error:  # also py4j's own, where a worker has crashed
            return f"{type(error).__name__}: {error}"

    # Those that may fail come last, and alone: Spark ends the workers of a failed job, at times one that another has.
    queries.sort(key=lambda query: query.options["mode"], reverse=True)
    safe = sum(query.options["mode"] == "PERMISSIVE" for query in queries)
    with ThreadPoolExecutor(2) as pool:
        answers = chain(pool.map(asked, queries[:safe]), map(asked, queries[safe:]))
        for number, (query, answer) in enumerate(zip(queries, answers, strict=True)):
            shown = f"RAXLOG_SEED={SEED}, query {number}: {query.shown()}"
            expected = world.expected(query)
            if isinstance(answer, str):
                refused += 1
                if "before it starts" in answer:
                    assert expected == [], shown
                else:
                    assert expected is None, f"{shown}\n{answer}"
                    assert "FAILFAST" not in answer or "PERMISSIVE" in answer
                continue
            if expected is None and query.where:
                continue  # the entry that is refused may have been left out by a filter that was pushed down
            assert expected is not None, f"{shown}\nhas a malformed value and was not refused"
            rows += len(answer)
            if "streamPattern" in query.options:
                answer, expected = sorted(answer, key=repr), sorted(expected, key=repr)
            if answer != expected:
                wrong = [pair for pair in zip(answer, expected, strict=False) if pair[0] != pair[1]][:3]
                pytest.fail(f"{shown}\n{len(answer)} rows, expected {len(expected)}; the first wrong: {wrong}")
    print(f"{QUERIES} queries, {rows} rows, {refused} refused as expected")
