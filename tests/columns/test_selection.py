"""Columns and rows that are asked for: random queries by pyarrow, DuckDB and Polars, beside the table of all rows.

The seed is printed; RAXLOG_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import duckdb as plain_duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import raxlog
import raxlog.duckdb
import raxlog.polars
from examples import examples
from raxlog.stream.columns.arrow import Tally

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
CASES = examples(60)
SCHEMA = pa.schema([
    ("id_ms", pa.int64()), ("id_seq", pa.int64()), ("item", pa.string()), ("qty", pa.int32()), ("day", pa.date32()),
    ("price", pa.decimal128(8, 2)), ("began", pa.timestamp("us")), ("tags", pa.list_(pa.string())),
    ("weight", pa.float32()),
])


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[raxlog.Store]:
    """Entries with gaps and jumps between IDs, without some fields, with values that are none of their type."""
    print(f"RAXLOG_SEED={SEED}")
    dice = random.Random(SEED)
    with raxlog.open(tmp_path_factory.mktemp("selection") / "s.rax", durability="relaxed") as store:
        stream = store.stream("orders", node_max_entries=20)
        ms, entries, ids = 1_700_000_000_000, [], []
        for number in range(3000):
            ms += dice.choice([0, 0, 1, 3, 1000])
            entry = {"item": dice.choice(["book", "pen", "größe"]), "qty": dice.choice([number % 50, "many"]),
                     "day": f"2024-0{dice.randint(1, 9)}-11", "price": f"{number / 8:.2f}", "weight": number / 3,
                     "began": f"2024-01-01 10:00:{number % 60:02}", "tags": '["a","b"]' if number % 3 else "[]"}
            kept = {name: value for name, value in entry.items() if dice.random() < 0.9} or {"item": "pen"}
            entries.append(kept)
            ids.append(f"{ms}-{number}")
        stream.extend(entries, ids)
        stream.delete(*dice.sample(ids, 200))
        yield store


@pytest.fixture
def filled(shop: raxlog.Store) -> raxlog.Stream:
    return shop.stream("orders")


def an_expression(dice: random.Random, ids: list[int]) -> pc.Expression:
    """One comparison, or several."""
    ms = dice.choice(ids) + dice.randint(-2, 2)
    made = dice.choice([
        pc.field("qty") > dice.randrange(50), pc.field("item") == "pen", pc.field("item").isin(["pen", "book"]),
        pc.field("price") < pa.scalar(Decimal(dice.randrange(400)), pa.decimal128(8, 2)), pc.field("day").is_null(),
        pc.field("id_ms") >= ms, pc.field("id_ms") < ms, pc.field("id_ms") == ms,
        pc.field("id_ms").isin(dice.sample(ids, 3)),
        pc.field("id_ms").is_null(), pc.field("id_seq") <= dice.randrange(3000), pc.field("weight") > 500.5,
        pc.list_value_length(pc.field("tags")) == 0, pc.scalar(dice.random() < 0.5), pc.field(3) < 25,
    ])
    kind = dice.random()
    if kind < 0.3:
        return made & an_expression(dice, ids)
    if kind < 0.5:
        return made | an_expression(dice, ids)
    return ~made if kind < 0.6 else made


def test_random_columns_and_expressions_give_what_the_whole_table_gives(filled: raxlog.Stream) -> None:
    dice = random.Random(SEED + 1)
    whole = filled.to_arrow(schema=SCHEMA).read_all()
    ids = whole.column("id_ms").to_pylist()
    for _ in range(CASES):
        where = dice.choice([None, an_expression(dice, ids), an_expression(dice, ids)])
        columns = dice.choice([None, dice.sample(SCHEMA.names, dice.randint(1, 4))])
        low, high = sorted((dice.choice(ids), dice.choice(ids)))
        start, end = dice.choice([("-", "+"), (low, high), (f"({low}-0", f"({high}-{1 << 63}")])
        found = filled.to_arrow(start, end, SCHEMA, columns=columns, where=where, batch_size=dice.choice([7, 65_536]))
        inside = whole if start == "-" else whole.filter((pc.field("id_ms") >= low) & (pc.field("id_ms") <= high))
        if start not in ("-", low):  # the ID there is left out
            inside = inside.filter((pc.field("id_ms") > low) | (pc.field("id_seq") > 0))
        wanted = (inside if where is None else inside.filter(where)).select(columns or SCHEMA.names)
        assert found.read_all().equals(wanted), f"RAXLOG_SEED={SEED}: {columns}, {where}, {start} … {end}"


def test_columns_that_nothing_asks_for_are_not_decoded_and_ids_narrow_the_range(filled: raxlog.Stream) -> None:
    with pytest.raises(raxlog.MalformedValue, match="qty"):
        filled.to_arrow(schema=SCHEMA, mode="FAILFAST").read_all()
    assert filled.to_arrow(schema=SCHEMA, columns=["item"], where=pc.field("id_seq") > 1, mode="FAILFAST").read_all()
    with pytest.raises(raxlog.MalformedValue, match="qty"):
        filled.to_arrow(schema=SCHEMA, columns=["item"], where=pc.field("qty") > 1, mode="FAILFAST").read_all()
    middle = filled.to_arrow(schema=SCHEMA).read_all().column("id_ms")[1500].as_py()
    for where, most in ((pc.field("id_ms") == middle, 80), (pc.field("id_ms") < 5, 80), (pc.field("qty") < 5, 3000)):
        tally = Tally()
        filled.to_arrow(schema=SCHEMA, where=where, tally=tally).read_all()
        assert tally.rows <= most, where


def test_ids_beyond_a_bigint_are_not_left_out(store: raxlog.Store) -> None:
    stream = store.stream("far")
    stream.extend([{"n": n} for n in range(3)], ["5-1", f"{(1 << 63) - 1}-1", f"{1 << 63}-1"])
    schema = {"id_ms": "bigint", "n": "int"}

    def chosen(where: pc.Expression) -> list[int]:
        found: list[int] = stream.to_arrow(schema=schema, where=where, columns=["n"]).read_all()["n"].to_pylist()
        return found

    assert chosen(pc.field("id_ms").is_null()) == [2]
    assert chosen(pc.field("id_ms") > 5) == [1]
    assert chosen((pc.field("id_ms") == 5) | pc.field("id_ms").is_null()) == [0, 2]


@pytest.mark.parametrize(("asked", "what"), [
    ({"columns": ["item", "qyt"]}, "'qyt' is not there"), ({"columns": ["item", "item"]}, "'item' is there twice"),
    ({"columns": []}, "one or more"), ({"columns": "item"}, "a list"), ({"columns": [1]}, "a list"),
    ({"where": pc.field("qyt") > 1}, "FieldRef.Name(qyt)"), ({"where": "qty > 1"}, "Expression"),
    ({"where": pc.field("qty") > "x"}, "does not fit"), ({"where": pc.field("qty") + 1}, "bool"),
    ({"where": pc.field("qty") > 1, "columns": ["price2"]}, "price2"),
])  # fmt: skip
def test_what_cannot_be_selected_is_refused_at_once(filled: raxlog.Stream, asked: dict[str, Any], what: str) -> None:
    with pytest.raises(raxlog.InvalidArgument, match=re.escape(what)):
        filled.to_arrow(schema=SCHEMA, **asked)


def a_condition(dice: random.Random, ids: list[int]) -> tuple[polars.Expr, str]:
    """The same for Polars and for DuckDB."""
    ms, qty, column = dice.choice(ids), dice.randrange(50), polars.col
    made, text = dice.choice([
        (column("qty") > qty, f"qty > {qty}"), (column("item") == "pen", "item = 'pen'"),
        (column("id_ms") >= ms, f"id_ms >= {ms}"), (column("id_ms") < ms, f"id_ms < {ms}"),
        (column("day").is_null(), "day is null"), (column("weight") * 2 > column("id_seq"), "weight * 2 > id_seq"),
        (column("item").is_in(["pen", "book"]), "item in ('pen', 'book')"),
        (column("day") > polars.date(2024, 5, 1), "day > date '2024-05-01'"),
    ])
    if dice.random() < 0.4:
        more, other = a_condition(dice, ids)
        both = dice.random() < 0.7
        return (made & more if both else made | more), f"({text}) {'and' if both else 'or'} ({other})"
    return made, text


def asked(given: polars.LazyFrame, order: list[str], condition: polars.Expr, columns: list[str],
          rows: int | None) -> polars.DataFrame:
    """A query whose steps come in this order."""
    for step in order:
        given = given.filter(condition) if step == "where" else given.select(columns) if step == "select" else (
            given if rows is None else given.head(rows))
    return given.collect()


def test_random_queries_of_polars_and_duckdb_give_what_they_give_over_a_table(shop: raxlog.Store,
                                                                              filled: raxlog.Stream) -> None:
    dice = random.Random(SEED + 2)
    whole = filled.to_arrow(schema=SCHEMA).read_all()
    ids = whole.column("id_ms").to_pylist()
    with plain_duckdb.connect() as connection:
        frame, table = polars.DataFrame(whole).lazy(), connection.from_arrow(whole)
        lazy = raxlog.polars.scan(shop, "orders", schema=SCHEMA)
        relation = raxlog.duckdb.relation(shop, "orders", schema=SCHEMA, connection=connection)
        assert lazy.collect_schema() == frame.collect_schema()
        for _ in range(CASES):
            condition, text = a_condition(dice, ids)
            columns = dice.sample(SCHEMA.names, dice.randint(1, 4))
            rows = dice.choice([None, 0, 1, 10, 5000])
            order = dice.sample(["where", "select", "head"], 3)
            if order.index("select") < order.index("where") and not set(condition.meta.root_names()) <= set(columns):
                order.remove("where")
            shown = f"RAXLOG_SEED={SEED}: {text}, {columns}, {rows}, {order}"
            answer, other = (asked(given, order, condition, columns, rows) for given in (lazy, frame))
            assert answer.equals(other), shown
            some = f"select {', '.join(columns)} from given where {text} order by id_ms, id_seq limit {rows or 5000}"
            answers = [one.query("given", some).fetchall() for one in (relation, table)]
            assert answers[0] == answers[1], shown
        assert lazy.select(polars.len()).collect().item() == relation.count("*").fetchall()[0][0] == len(filled)
        assert lazy.head(5).filter(polars.col("item") == "pen").collect().equals(
            frame.head(5).filter(polars.col("item") == "pen").collect())
        assert relation.filter("qty > 3").filter("qty < 5").aggregate("count(*)").fetchall() == table.filter(
            "qty = 4").aggregate("count(*)").fetchall()


def test_a_scan_by_polars_or_duckdb_reads_no_more_than_it_is_asked_for(shop: raxlog.Store,
                                                                        filled: raxlog.Stream) -> None:
    strict = raxlog.polars.scan(shop, "orders", schema=SCHEMA, mode="FAILFAST")
    assert strict.select("item").collect().height == len(filled)
    with pytest.raises(raxlog.MalformedValue, match="qty"):
        strict.collect()
    relation = raxlog.duckdb.relation(shop, "orders", schema=SCHEMA, mode="FAILFAST")
    assert relation.project("item").count("*").fetchall() == [(len(filled),)]
    with pytest.raises(plain_duckdb.Error, match="qty"):
        relation.fetchall()
    for made in (raxlog.polars.scan, raxlog.duckdb.relation):
        with pytest.raises(raxlog.InvalidArgument, match="varchar"):
            made(shop, "orders", schema={"a": "varchar"})
    with pytest.raises(polars.exceptions.ColumnNotFoundError, match="qyt"):
        strict.filter(polars.col("qyt") > 1).collect()
    with pytest.raises(plain_duckdb.BinderException, match="qyt"):
        relation.filter("qyt > 1").fetchall()
