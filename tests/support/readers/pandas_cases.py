"""Random stores and random questions, and their answers by pandas: for Arrow, DuckDB, Polars, Spark and range().

    dice ─> World        a store, and beside it what was appended: nothing is read from the store for an answer
         ─> Question     streams, a range of IDs, columns of a type each, a condition, the columns that come out
                │
                ├─ a door ──────────────────────────────> a table ┐
                └─ answer(): pandas, of what was appended ─> a table ┴ differences()

    python pandas_cases.py SEED CASES FOLDER    prints a hash of each answer of to_arrow(), for the test of both kernels
"""

from __future__ import annotations

import hashlib
import math
import random
import re
import struct
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import reduce
from itertools import zip_longest
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import raxlog
from column_values import BAD, BITS, EPOCH, TOP, TYPES, VALUES, value_of
from raxlog.stream.node.stream_id import MAX64, StreamID

pandas = pytest.importorskip("pandas", reason="missing oracle: pandas")
STREAMS = ["orders", "orders.eu", "mail", "größe"]
PATTERNS: dict[str, str | tuple[str, ...]] = {"*": "", "orders*": "orders", "[mo]*": ("m", "o"), "mail": "mail"}
NAMES = ["item", "qty", "a price", "größe", "a.b", "select", 'say "x"', "when", "7", "ok"]
WORDS = ["book", "pen", "größe", "", "naïve €", "7", "Book", "x" * 70]
OF_ID = {"id_ms": "bigint", "id_seq": "bigint"}
ROLES = {"id": "id_column", "timestamp": "timestamp_column", "stream": "stream_column"}
DAY, MICROSECOND = timedelta(days=1), timedelta(microseconds=1)
ENDS = [datetime(year, month, day, tzinfo=UTC) - EPOCH for year, month, day in ((1, 1, 1), (9999, 12, 31))]
UNITS = {"date": DAY, "timestamp": MICROSECOND, "timestamp_ntz": MICROSECOND}
ARROW = {
    "string": pa.string(), "binary": pa.binary(), "bigint": pa.int64(), "int": pa.int32(), "smallint": pa.int16(),
    "tinyint": pa.int8(), "double": pa.float64(), "float": pa.float32(), "boolean": pa.bool_(), "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip

Row = dict[str, Any]
Truth = bool | None


def arrow_type(kind: str) -> pa.DataType:
    """Arrow's type for Spark's name of it."""
    return ARROW[kind] if kind in ARROW else pa.decimal128(*map(int, re.findall(r"\d+", kind)))


def polars_type(kind: str) -> Any:
    """Polars' own."""
    return polars.DataFrame(pa.table({"a": pa.array([], arrow_type(kind))})).dtypes[0]


# -- what is appended --------------------------------------------------------------------------


def a_value(dice: random.Random, kind: str) -> bytes:
    """The text of a value of a type, in one of the forms that are taken for it; now and then of another type."""
    if dice.random() < 0.1:
        return dice.choice(VALUES)
    if kind in BITS:
        edge = 1 << BITS[kind]
        whole = dice.choice([dice.randint(-9, 9), dice.randint(-edge, edge - 1), edge - 1, -edge, edge])
        return dice.choice(["{}", "{}", "{:+}", " {} ", "{:05}"]).format(whole).encode()
    if kind in ("double", "float"):
        size = 10.0 ** dice.randint(-40, 40)
        number = dice.choice([dice.randint(-9, 9) / 4, dice.gauss(0, 1000), dice.gauss(0, size)])
        return dice.choice([repr(number), repr(number), f"{number:.3f}", f"{number:E}", "-0.0", "NaN", "inf"]).encode()
    if kind == "boolean":
        return dice.choice([b"true", b"false", b"1", b"no", b"T", b" Yes "])
    if kind == "string":
        return dice.choice(WORDS).encode()
    if kind == "binary":
        return dice.choice([dice.randbytes(dice.randint(0, 6)), b"\0", b"\xff\xfe"])
    if kind == "date":
        day = date.fromordinal(dice.choice([dice.randint(738_000, 738_040), dice.randint(1, 3_652_059)]))
        return dice.choice([f"{day}", f"{day}", f"{day} 10:00", f"{day}"[:7]]).encode()
    if kind.startswith("timestamp"):
        moment = datetime(2024, 3, 30) + timedelta(microseconds=dice.choice([0, 1, 10**6]) * dice.randint(0, 10**6))
        ms = (moment.replace(tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)
        return dice.choice([
            moment.isoformat(), f"{moment.isoformat()}Z", moment.isoformat(" ", "seconds"), f"{moment.date()}", f"{ms}",
            f"{moment.isoformat()}+05:30", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", str(-ms),
        ]).encode()  # fmt: skip
    precision, scale = map(int, re.findall(r"\d+", kind))
    shown = Decimal(dice.choice([dice.randint(-999, 999), dice.randint(-(10**precision), 10**precision)])).scaleb(
        -dice.choice([0, scale, scale, scale + 1]))
    return dice.choice([f"{shown:f}", f"{shown:f}", f"{shown:E}"]).encode()


@dataclass
class Appended:
    """An entry as it was handed to the store."""

    id: StreamID
    pairs: list[tuple[str, bytes]]


class World:
    """A store with some streams, and what is alive in each."""

    def __init__(self, path: Path, dice: random.Random) -> None:
        self.path = path
        self.kinds = {name: dice.choice(TYPES) for name in dice.sample(NAMES, dice.randint(1, len(NAMES)))}
        self.kept = dice.random() < 0.4  # whether the streams have a schema of their own
        self.streams: dict[str, list[Appended]] = {}
        with raxlog.open(path, durability=dice.choice(["relaxed", "relaxed", "buffered"])) as store:
            for name in sorted(dice.sample(STREAMS, dice.randint(1, 3))):
                stream = store.stream(name, **dice.choice([
                    {}, {"node_max_entries": 3}, {"node_max_entries": 20}, {"node_max_bytes": 300},
                    {"compression": "zstd"}, {"compression": "compact"},
                ]))  # fmt: skip
                self.streams[name] = self._filled(stream, dice)
                if self.kept:
                    stream.configure(schema=self.kinds)

    def _filled(self, stream: raxlog.Stream, dice: random.Random) -> list[Appended]:
        alive: list[Appended] = []
        ms, seq = dice.choice([(0, 0), (1_700_000_000_000, 0), (1_700_000_000_000, 0), (TOP - 300, TOP - 5)])
        for _ in range(dice.choice([1, 1, 2, 2, 3])):
            same = dice.sample(list(self.kinds), dice.randint(1, len(self.kinds)))
            alike = dice.choice([1.0, 1.0, 0.8, 0.0])  # how many entries have the same fields
            made = []
            for _ in range(dice.choice([1, 5, 40, 120])):
                ms, seq = dice.choice([(ms, seq + 1), (ms, seq + 1), (ms + 1, 0), (ms + dice.randint(1, 9), seq)])
                names = same if dice.random() < alike else dice.choices([*self.kinds, "other"], k=dice.randint(1, 5))
                pairs = [(name, a_value(dice, self.kinds.get(name, "string"))) for name in names]
                made.append(Appended(StreamID(ms, seq), pairs))
            if len(made) == 1:
                stream.append(made[0].pairs, made[0].id)
            else:
                stream.extend([each.pairs for each in made], [each.id for each in made])
            alive += made
            gone = {each.id for each in dice.sample(alive, int(len(alive) * dice.choice([0, 0, 0, 0.1, 0.1, 0.6, 1])))}
            if gone:
                stream.delete(*gone)
                alive = [each for each in alive if each.id not in gone]
            if alive and dice.random() < 0.15:
                alive = alive[-dice.randint(1, len(alive)) :]
                stream.trim(maxlen=len(alive))
        return alive


# -- a condition -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column of a question: the field of its name, or a part of the ID, its time, the stream's name."""

    name: str
    kind: str

    def of(self, entry: Appended, stream: str) -> Any:
        """Its value as pa.array() takes it: a date as days, a time as microseconds, None for no value of the type."""
        if self.name in OF_ID:
            part: int = getattr(entry.id, self.name[3:])
            return part if part <= TOP else None
        if self.name == "id":
            return str(entry.id) if self.kind == "string" else struct.pack(">QQ", *entry.id)
        if self.name == "timestamp":
            return entry.id.ms * 1000 if entry.id.ms * 1000 <= TOP else None
        return stream if self.name == "stream" else typed(dict(entry.pairs).get(self.name), self.kind)


def typed(raw: bytes | None, kind: str) -> Any:
    """A field's value, as pa.array() takes it."""
    made = BAD if raw is None else value_of(raw, kind, "UTC")
    if made is BAD:
        return None
    if kind == "date" and isinstance(made, date):
        return (made - EPOCH.date()).days
    return float(made) if kind in ("double", "float") else Decimal(made) if kind.startswith("decimal") else made


@dataclass(frozen=True)
class Condition:
    """What a row fulfils, in the language of each door. Three-valued: of null nothing is known."""

    by_hand: Callable[[Row], Truth]
    pandas: Callable[[Any, bool], Any]  # of a frame; whether NaN is the greatest number, as in SQL
    arrow: pc.Expression
    polars: polars.Expr
    duckdb: str
    spark: str
    negatable: bool = True  # not, where Arrow and pandas know of null that it is in no list


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": lambda a, b: a == b, "<>": lambda a, b: a != b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}  # fmt: skip


def in_duckdb(name: str) -> str:
    """A column's name."""
    return '"' + name.replace('"', '""') + '"'


def in_spark(name: str) -> str:
    """A column's name."""
    return f"`{name}`"


def literals(value: Any, kind: str) -> tuple[Any, Any, str, str]:
    """A value for Arrow, for Polars, in DuckDB's SQL, in Spark's."""
    of_polars = polars.lit(value).cast(polars_type(kind))
    duckdb, spark = f"'{value}'::{kind.replace('tinyint', 'int1')}", f"cast('{value}' as {kind})"
    if kind == "binary":
        duckdb, spark = "'" + "".join(f"\\x{byte:02x}" for byte in value) + "'::blob", f"X'{value.hex()}'"
    elif kind == "string":
        duckdb, spark = "'" + value.replace("'", "''") + "'", f"cast(X'{value.encode().hex()}' as string)"
    elif kind == "date":
        duckdb, spark = f"'{of_pandas(value, kind)}'::date", f"cast('{of_pandas(value, kind)}' as date)"
    elif kind.startswith("timestamp"):
        shown = (EPOCH + timedelta(microseconds=value)).isoformat(" ")
        duckdb = f"'{shown}'::timestamptz" if kind == "timestamp" else f"'{shown[:-6]}'::timestamp"
        spark = f"cast(timestamp_micros({value}) as {kind})"
    return pa.scalar(value, arrow_type(kind)), of_polars, duckdb, spark


def of_pandas(value: Any, kind: str) -> Any:
    """A value for pandas."""
    if kind not in UNITS:
        return value
    moment = EPOCH + value * UNITS[kind]
    return moment.date() if kind == "date" else moment if kind == "timestamp" else moment.replace(tzinfo=None)


def against_value(column: Column, operator: str, value: Any) -> Condition:
    """A comparison with a value that is not NaN."""
    test, name = OPERATORS[operator], column.name
    of_arrow, of_polars, duckdb, spark = literals(value, column.kind)

    def by_pandas(frame: Any, nan_is_greatest: bool) -> Any:
        found = test(frame[name], of_pandas(value, column.kind))
        if nan_is_greatest and column.kind in ("double", "float") and operator in (">", ">="):
            found |= frame[name] != frame[name]
        return found

    return Condition(
        lambda row: None if row[name] is None else bool(test(row[name], value)), by_pandas,
        test(pc.field(name), of_arrow), test(polars.col(name), of_polars),
        f"{in_duckdb(name)} {operator} {duckdb}", f"{in_spark(name)} {operator} {spark}",
    )


def against_column(column: Column, operator: str, other: Column) -> Condition:
    """A comparison with another column of the same type, in which there is no NaN."""
    test, name, beside = OPERATORS[operator], column.name, other.name
    return Condition(
        lambda row: None if None in (row[name], row[beside]) else bool(test(row[name], row[beside])),
        lambda frame, _: test(frame[name], frame[beside]), test(pc.field(name), pc.field(beside)),
        test(polars.col(name), polars.col(beside)), f"{in_duckdb(name)} {operator} {in_duckdb(beside)}",
        f"{in_spark(name)} {operator} {in_spark(beside)}",
    )


def in_list(column: Column, values: list[Any]) -> Condition:
    name, each = column.name, [literals(value, column.kind) for value in values]
    return Condition(
        lambda row: None if row[name] is None else row[name] in values,
        lambda frame, _: reduce(lambda a, b: a | b, [frame[name] == of_pandas(v, column.kind) for v in values]),
        pc.field(name).isin(pa.array(values, arrow_type(column.kind))),
        polars.col(name).is_in(polars.Series(values).cast(polars_type(column.kind)).to_list()),
        f"{in_duckdb(name)} in ({', '.join(one[2] for one in each)})",
        f"{in_spark(name)} in ({', '.join(one[3] for one in each)})", negatable=False,
    )


def is_null(column: Column) -> Condition:
    name = column.name
    return Condition(
        lambda row: row[name] is None, lambda frame, _: frame[name].isna(), pc.field(name).is_null(),
        polars.col(name).is_null(), f"{in_duckdb(name)} is null", f"{in_spark(name)} is null",
    )


def begins(column: Column, text: str) -> Condition:
    name = column.name
    return Condition(
        lambda row: None if row[name] is None else row[name].startswith(text),
        lambda frame, _: frame[name].str.startswith(text), pc.starts_with(pc.field(name), pattern=text),
        polars.col(name).str.starts_with(text), f"{in_duckdb(name)} like '{text}%'", f"{in_spark(name)} like '{text}%'",
    )


def negated(one: Condition) -> Condition:
    def by_hand(row: Row) -> Truth:
        found = one.by_hand(row)
        return None if found is None else not found

    return Condition(by_hand, lambda frame, nan: ~one.pandas(frame, nan), ~one.arrow, ~one.polars,
                     f"not ({one.duckdb})", f"not ({one.spark})")


def joined(one: Condition, other: Condition, all_of: bool) -> Condition:
    word = "and" if all_of else "or"

    def by_hand(row: Row) -> Truth:
        both = one.by_hand(row), other.by_hand(row)
        return (not all_of) if (not all_of) in both else None if None in both else all_of

    def by_pandas(frame: Any, nan: bool) -> Any:
        a, b = one.pandas(frame, nan), other.pandas(frame, nan)
        return a & b if all_of else a | b

    return Condition(
        by_hand, by_pandas, one.arrow & other.arrow if all_of else one.arrow | other.arrow,
        one.polars & other.polars if all_of else one.polars | other.polars,
        f"({one.duckdb}) {word} ({other.duckdb})", f"({one.spark}) {word} ({other.spark})",
        one.negatable and other.negatable,
    )


def a_condition(dice: random.Random, columns: list[Column], rows: list[Row]) -> Condition:
    """One comparison, or several; mostly with values that are there."""
    column = dice.choice(columns)
    name, kind = column.name, column.kind
    held = [value for row in rows if (value := row[name]) is not None and not (
        (kind in ("double", "float") and math.isnan(value))  # nothing is compared with NaN, nor with a time that
        or (kind in UNITS and not ENDS[0] // UNITS[kind] <= value <= ENDS[1] // UNITS[kind]))]  # Python does not have
    alike = [other for other in columns if other.kind == kind and other is not column]
    how = dice.random()
    if not held or how < 0.1:
        made = is_null(column)
    elif kind == "boolean":
        made = against_value(column, dice.choice(["=", "<>"]), dice.choice(held))
    elif how < 0.25 and kind not in ("double", "float"):
        made = in_list(column, dice.sample(held, min(len(held), 3)))
    elif how < 0.35 and alike and kind not in ("double", "float"):
        made = against_column(column, dice.choice(list(OPERATORS)), dice.choice(alike))
    elif how < 0.5 and kind == "string":
        made = begins(column, dice.choice(["b", "gr", "7", "orders."]))
    else:
        made = against_value(column, dice.choice(list(OPERATORS)), dice.choice(held))
    more = dice.random()
    if more < 0.4:
        made = joined(made, a_condition(dice, columns, rows), dice.random() < 0.6)
    return negated(made) if made.negatable and more > 0.85 else made


# -- a question --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """What is asked of a world."""

    number: int
    streams: tuple[str, ...]
    pattern: str | None  # that matches these streams, if it is not one by its name
    start: str
    end: str
    least: StreamID
    most: StreamID
    columns: tuple[Column, ...]
    given: bool  # whether with the types of its columns; the streams know them otherwise
    chosen: tuple[str, ...]
    where: Condition | None

    @property
    def schema(self) -> pa.Schema:
        """Of the answer."""
        kinds = {column.name: column.kind for column in self.columns}
        return pa.schema([(name, arrow_type(kinds[name])) for name in self.chosen])

    @property
    def roles(self) -> dict[str, str]:
        """Of its columns those that are no fields, by the parameters of to_arrow()."""
        return {ROLES[column.name]: column.name for column in self.columns if column.name in ROLES}

    @property
    def types(self) -> dict[str, str] | None:
        """The schema to give; None where it is the streams' own."""
        return {column.name: column.kind for column in self.columns} if self.given else None

    def shown(self) -> str:
        kinds = ", ".join(f"{column.name} {column.kind}" for column in self.columns)
        return (f"case {self.number}: {self.pattern or self.streams}, {self.start} … {self.end}, "
                f"{kinds if self.given else f'the stored {kinds}'}\nselect {self.chosen} where "
                f"{None if self.where is None else self.where.duckdb}")


def a_question(number: int, world: World, dice: random.Random) -> Question:
    pattern, names = None, (dice.choice(list(world.streams)),)
    if dice.random() < 0.3:
        pattern = dice.choice([each for each, begin in PATTERNS.items() if any(
            name.startswith(begin) for name in world.streams)])
        names = tuple(name for name in world.streams if name.startswith(PATTERNS[pattern]))
    ids = [entry.id for entry in world.streams[names[0]]] or [StreamID(5, 5)]
    low, high = sorted(dice.choices(ids, k=2))
    start, least = dice.choice([("-", StreamID.MIN), ("-", StreamID.MIN), (f"{low}", low), (f"({low}", low.next()),
                                (f"{low.ms}", StreamID(low.ms, 0))])
    end, most = dice.choice([("+", StreamID.MAX), ("+", StreamID.MAX), (f"{high}", high), (f"({high}", high.prev()),
                             (f"{high.ms}", StreamID(high.ms, MAX64))])
    if least > most:  # Spark refuses such a range
        end, most = "+", StreamID.MAX

    given = not world.kept or dice.random() < 0.6
    kinds = dict(world.kinds)
    if given:
        kinds = {name: kinds[name] for name in dice.sample(list(kinds), dice.randint(0, len(kinds)))}
        # Another type than a kept schema has is refused if it is one of other things.
        kinds |= {name: dice.choice(["string", "binary"] if world.kept else TYPES) for name in kinds
                  if dice.random() < 0.15}
        kinds |= {name: kind for name, kind in OF_ID.items() if dice.random() < 0.5}
    else:
        kinds = OF_ID | kinds
    # Without a schema it is text in Arrow, binary in Spark.
    kinds |= {"id": dice.choice(["binary", "string"])} if given and dice.random() < 0.4 else {}
    kinds |= {"timestamp": "timestamp"} if dice.random() < 0.4 else {}
    kinds |= {"stream": "string"} if pattern is not None and (not given or dice.random() < 0.7) else {}
    kinds = kinds or OF_ID
    columns = [Column(name, kind) for name, kind in dice.sample(list(kinds.items()), len(kinds))]
    where = None
    if dice.random() < 0.75:
        where = a_condition(dice, columns, rows_of(columns, world, names))
    chosen = dice.sample([column.name for column in columns], dice.randint(1, len(columns)))
    return Question(number, names, pattern, start, end, least, most, tuple(columns), given, tuple(chosen), where)


def rows_of(columns: list[Column], world: World, names: tuple[str, ...]) -> list[Row]:
    return [{column.name: column.of(entry, name) for column in columns}
            for name in names for entry in world.streams[name]]


def a_case(seed: int, number: int, folder: Path) -> tuple[World, Question, random.Random]:
    """A store and a question about it, and the dice for what else there is to choose."""
    dice = random.Random(f"{seed} {number}")
    world = World(folder / f"{number}.rax", dice)
    return world, a_question(number, world, dice), dice


# -- answers -----------------------------------------------------------------------------------


def answer(question: Question, world: World, nan_is_greatest: bool) -> pa.Table:
    """What has to come out, by pandas."""
    entries = [(name, entry) for name in question.streams for entry in world.streams[name]]
    frame = pandas.DataFrame({
        column.name: pandas.arrays.ArrowExtensionArray(pa.chunked_array([pa.array(  # type: ignore[attr-defined]
            [column.of(entry, name) for name, entry in entries], arrow_type(column.kind))]))
        for column in question.columns
    })
    inside = pandas.Series([question.least <= entry.id <= question.most for _, entry in entries], dtype=bool)
    frame = frame[inside]
    if question.where is not None:
        frame = frame[question.where.pandas(frame, nan_is_greatest).fillna(False).astype(bool)]
    return pa.table([pa.array(frame[name].array, kind.type) for name, kind in zip(
        question.chosen, question.schema, strict=True)], schema=question.schema)


def by_hand(question: Question, store: raxlog.Store) -> pa.Table:
    """The same by a loop over range()."""
    rows = []
    for name in question.streams:
        for entry in store.stream(name).range(question.start, question.end):
            pairs = [(field, value.encode("utf-8", "surrogateescape")) for field, value in entry.pairs]
            row = {column.name: column.of(Appended(entry.id, pairs), name) for column in question.columns}
            if question.where is None or question.where.by_hand(row):
                rows.append([row[name] for name in question.chosen])
    columns = list(zip(*rows, strict=True)) or [()] * len(question.chosen)
    return pa.table([pa.array(column, kind.type) for column, kind in zip(columns, question.schema, strict=True)],
                    schema=question.schema)


def by_arrow(question: Question, store: raxlog.Store, batch_size: int) -> pa.Table:
    """The same by to_arrow()."""
    where = None if question.where is None else question.where.arrow
    return pa.concat_tables([
        store.stream(name).to_arrow(
            question.start, question.end, question.types, columns=question.chosen, where=where, batch_size=batch_size,
            **question.roles).read_all()
        for name in question.streams
    ])  # fmt: skip


def differences(found: pa.Table, wanted: pa.Table, ordered: bool = True) -> str:
    """How two tables differ; "" if they are alike bit for bit, but for the bits of a NaN."""
    assert found.schema.names == wanted.schema.names
    both = [list(zip(*(_plain(column, kind.type) for column, kind in zip(table.columns, wanted.schema, strict=True)),
                     strict=True)) for table in (found, wanted)]
    if not ordered:
        both = [sorted(rows, key=repr) for rows in both]
    if both[0] == both[1]:
        return ""
    wrong = [f"row {place}: {pair}" for place, pair in enumerate(zip_longest(*both)) if pair[0] != pair[1]]
    return "\n".join([f"{len(wrong)} rows of {found.num_rows}, {wanted.num_rows} wanted", *wrong[:3]])


def _plain(column: pa.ChunkedArray, kind: pa.DataType) -> list[Any]:
    """The values as Python compares them exactly: a date and a time as a number, a number with its sign."""
    column = column.cast(kind)
    if pa.types.is_temporal(kind):
        column = column.cast(pa.int32() if pa.types.is_date(kind) else pa.int64())
    values: list[Any] = column.to_pylist()
    return [None if value is None else repr(value) for value in values] if pa.types.is_floating(kind) else values


def main(seed: int, cases: int, folder: Path) -> None:
    """Print how many rows each case has by to_arrow(), and a hash of every bit of them."""
    for number in range(cases):
        world, question, dice = a_case(seed, number, folder)
        with raxlog.open(world.path, readonly=True) as store:
            table = by_arrow(question, store, dice.choice([3, 100, 65_536]))
        sink = pa.BufferOutputStream()
        with closing(pa.ipc.new_stream(sink, table.schema)) as writer:
            writer.write_table(table)
        print(number, table.num_rows, hashlib.sha256(sink.getvalue()).hexdigest())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
