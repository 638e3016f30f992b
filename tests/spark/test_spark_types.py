"""Types by a real Spark: dates, small numbers and nested columns as its own casts read them, and as they are written.

The seed is printed; RAXLOG_SEED repeats a run.
"""

from __future__ import annotations

import json
import os
import random
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import raxlog
from pyspark.sql.types import StringType, StructField, StructType
from raxlog.tools.spark.options import Options
from raxlog.tools.spark.schema import columns
from spark_scans import reading, refusal

pytestmark = pytest.mark.spark

pytest_plugins = ["spark_session"]

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
NESTED = ("struct<a:int,b:array<double>,c:string,d:date,e:map<string,smallint>,f:decimal(8,2),g:timestamp,"
          "h:struct<x:boolean,y:float>>")


def a_date(dice: random.Random) -> str:
    """A text that is nearly a date, or one."""
    year = dice.choice([0, 1, 99, 1582, 1970, 2024, 9999, 10_000, 5_881_580, 5_881_581, 9_999_999, 12_345_678])
    parts = [f"{year:0{dice.choice([1, 4, 4, 7])}}", f"{dice.randint(0, 13):0{dice.choice([1, 2, 2, 3])}}",
             f"{dice.randint(0, 32):0{dice.choice([1, 2])}}"]
    text = dice.choice(["", "", "", "+", "-", "T"]) + "-".join(parts[: dice.choice([1, 2, 3, 3, 3])])
    text += dice.choice(["", "", "", "T", " ", "Tx", "T10:00:00Z", " 24:00", "-", "-1", "é"])
    return dice.choice(["", "", " ", "\t\x01", "\x7f", "\u00a0"]) + text + dice.choice(["", "", "\r\n ", "\x00"])


def a_number(dice: random.Random) -> str:
    edge = dice.choice([1 << 7, 1 << 15, 1 << 24, 1 << 31, 1 << 53, 1 << 63, 10 ** dice.randint(0, 39)])
    text = str(edge + dice.randint(-2, 2)) + dice.choice(["", "", "", ".5", ".0000000000000001", "e-3", "e30", "e-60"])
    return dice.choice(["", " ", "-", "+"]) + text + dice.choice(["", " "])


def a_json(dice: random.Random, depth: int = 0) -> Any:
    """What JSON can hold: mostly of the types of NESTED."""
    known = {
        "a": dice.choice([1, -(1 << 31), 1 << 31]), "b": [dice.choice([1.5, 2, 1e300, "NaN", None, True])],
        "c": dice.choice(["text", "größe ☃", "", "a\n\"b"]), "d": dice.choice(["2024-02-29", "2023-02-29", "2024", 7]),
        "e": {"k": dice.choice([1, 40_000, None]), "": 2}, "f": dice.choice([1.005, 12, 1e9, "1.5", 0.125]),
        "g": dice.choice(["2024-01-01T10:00:00Z", "2024-01-01 10:00:00.123456", "2024-01-01", "noon"]),
        "h": {"x": dice.choice([True, False, None, "true"]), "y": dice.choice([0.1, 16777217, 1e39])}, "other": [1, {}],
    }
    names = dice.sample(list(known), dice.randint(0, 5))
    made: Any = {name: dice.choice([known[name], known[name], None]) for name in names}
    return dice.choice([made, made, made, made, [made], 5, "text", None]) if not depth else made


def test_random_texts_are_read_as_spark_casts_them(spark: Any, store: raxlog.Store) -> None:
    print(f"RAXLOG_SEED={SEED}")
    dice = random.Random(SEED)
    texts = [dice.choice([a_date, a_date, a_number])(dice) for _ in range(4000)]
    store.stream("orders").extend([{"t": text} for text in texts])
    kinds = ("date", "float", "smallint", "tinyint")
    from pyspark.sql.types import _parse_datatype_string  # noqa: PLC0415

    columns = [StructField(kind, _parse_datatype_string(kind), metadata={"field": "t"}) for kind in kinds]
    frames = [reading(spark, store.path).schema(StructType([column])).load() for column in columns]
    held = frames[0].selectExpr("unix_date(date)").collect(), *[frame.collect() for frame in frames[1:]]
    text = StructType([StructField("t", StringType())])
    asked = "unix_date(try_cast(t as date))", *[f"try_cast(t as {kind})" for kind in kinds[1:]]
    cast = spark.createDataFrame([(text,) for text in texts], text).selectExpr(*asked).collect()
    taken = dict.fromkeys(kinds, 0)
    for text, own, theirs in zip(texts, zip(*held, strict=True), cast, strict=True):
        for kind, (value,), other in zip(kinds, own, theirs, strict=True):
            taken[kind] += value is not None
            if kind == "date" or value is not None:
                assert repr(value) == repr(other), f"RAXLOG_SEED={SEED}: {text!r} as {kind}"
    assert min(taken.values()) > 20, taken


def test_random_json_is_read_as_from_json_reads_it(spark: Any, store: raxlog.Store) -> None:
    print(f"RAXLOG_SEED={SEED}")
    dice = random.Random(SEED)
    texts = [json.dumps(a_json(dice), ensure_ascii=dice.random() < 0.5) for _ in range(1500)]
    texts += ["", "{", "null", "[" * 5000, '{"a": 1, "a": 2}', '{"c": "\\ud800"}', '{"a": 1} x', '{"a": 01}',
              '{"b": [NaN]}']
    store.stream("orders").extend([{"t": text} for text in texts])
    frame = reading(spark, store.path).schema(f"t {NESTED}, _corrupt_record string").load()
    own = frame.selectExpr("to_json(t)", "_corrupt_record is not null").collect()
    theirs = spark.createDataFrame([(text,) for text in texts], "t string").selectExpr(
        f"to_json(from_json(t, '{NESTED}'))").collect()
    good = 0
    for text, (value, corrupt), (other,) in zip(texts, own, theirs, strict=True):
        assert (value is None) == corrupt, text
        if value is not None:
            good += 1
            assert value == other, f"RAXLOG_SEED={SEED}: {text}"
    assert good > 100
    message = refusal(reading(spark, store.path, mode="FAILFAST").schema(f"t {NESTED}").load().collect)
    assert "field b't'" in message
    assert "not of type struct<a: int32" in message


def test_what_is_written_is_read_back_in_every_type(spark: Any, path: Path) -> None:
    rows = spark.sql(f"""select * from values
        (1, date'2024-02-29', cast(0.1 as float), cast(-32768 as smallint), cast(127 as tinyint),
         timestamp_ntz'2024-03-08 02:30:00.5', array(1.5d, double('nan'), null), array(array(date'1969-12-31')),
         from_json('{{"a":5,"b":[1e300],"c":"größe \\\\"","d":"2024-01-01","e":{{"k":7}},"f":12.5,
                     "g":"2024-01-01T10:00:00Z","h":{{"x":true,"y":0.1}}}}', '{NESTED}')),
        (2, date'0001-01-01', float('-inf'), cast(0 as smallint), cast(-128 as tinyint), null, array(), null,
         from_json('{{}}', '{NESTED}')) as t(n, d, f, s, t, z, a, aa, j)""")
    rows.coalesce(1).write.format("raxlog").options(path=str(path), stream="orders").mode("append").save()
    nullable = StructType([StructField(field.name, field.dataType) for field in rows.schema])
    back = reading(spark, path).schema(nullable).load()
    texts = [f"to_json(struct({', '.join(rows.columns)}))"]
    assert back.selectExpr(*texts).collect() == rows.selectExpr(*texts).collect()
    with raxlog.open(path) as store:
        first = next(iter(store.stream("orders"))).fields
        assert (first["d"], first["f"], first["a"]) == ("2024-02-29", "0.1", '[1.5,"NaN",null]')
    for kind, word in (("struct<a:binary>", "binary"), ("array<map<int,int>>", "map")):
        said = refusal(spark.sql(f"select cast(null as {kind}) x").write.format("raxlog").options(
            path=str(path), stream="orders").mode("append").save)
        assert word in said
        assert "without binary" in said


def test_names_match_in_any_case_unless_the_session_says_otherwise(spark: Any, store: raxlog.Store) -> None:
    store.stream("orders").extend([{"Item": "book", "qty": 1}, {"other": 2, "QTY": 2, "größe": 3, "ITEM": "pen"},
                                   {"qty": 3, "Qty": 4}])
    reader = reading(spark, store.path).schema("ID_MS bigint, item string, Qty int, `GRößE` int")
    assert [row[1:] for row in reader.load().collect()] == [("book", 1, None), ("pen", 2, 3), (None, 4, None)]
    assert all(row.ID_MS > 0 for row in reader.load().collect())
    said = refusal(reading(spark, store.path).schema("qty int, QTY string").load().collect)
    assert "two columns" in said or "COLUMN_ALREADY_EXISTS" in said or "already exists" in said
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        assert [row[1:] for row in reader.load().collect()] == [(None, None, None), (None, None, None), (None, 4, None)]
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    for column in ("1 ID_MS", "2 Id_Seq", "X'00' ID"):
        frame = spark.sql(f"select {column}, 2 n")
        assert "cannot be a field" in refusal(frame.write.format("raxlog").options(
            path=str(store.path), stream="orders").mode("append").save)


def test_a_bad_date_and_a_column_that_the_schema_lacks_in_each_mode(spark: Any, store: raxlog.Store) -> None:
    orders = store.stream("orders")
    orders.configure(schema={"day": "date", "Qty": "smallint"})
    orders.extend([{"day": "2024-02-29", "qty": 1}, {"day": "2023-02-29", "absent": "x"}], ["1-1", "1-2"])
    assert reading(spark, store.path).load().dtypes[2:] == [("day", "date"), ("Qty", "smallint")]
    read = reading(spark, store.path).schema("DAY date, qty tinyint, _corrupt_record string").load().collect()
    assert [(str(row.DAY), row.qty, row._corrupt_record is not None) for row in read] == [
        ("2024-02-29", 1, False), ("None", None, True)]
    failing = reading(spark, store.path, mode="FAILFAST")
    said = refusal(failing.schema("day date").load().collect)
    assert all(word in said for word in ("1-2", "b'day'", "2023-02-29", "not of type date"))
    assert [row.absent for row in reading(spark, store.path).schema("absent string").load().collect()] == [None, "x"]
    assert "there is no field 'absent' in the streams' schema" in refusal(failing.schema("absent string").load().count)
    said = refusal(reading(spark, store.path).schema("DAY array<int>, qty date").load().count)
    assert "but the schema of stream 'orders' has" in said


def test_a_column_that_no_stream_has_is_warned_of_and_one_that_contradicts_is_refused() -> None:
    def require(fields: dict[str, str], failfast: bool = False) -> None:
        schema = StructType([StructField("DAY", StringType()), StructField("absent", StringType())])
        columns(schema, Options("s.rax", "orders")).require({b"orders": fields}, failfast)

    with pytest.warns(UserWarning, match="there is no field 'absent' in the streams' schema; it is null"):
        require({"day": "date"})
    with pytest.raises(raxlog.InvalidArgument, match="there is no field 'absent'"):
        require({"day": "date"}, True)
    with pytest.raises(raxlog.InvalidArgument, match="did you mean 'absend'"):
        require({"day": "date", "absend": "int"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require({}, True)
        require({"day": "date", "ABSENT": "int"}, True)
