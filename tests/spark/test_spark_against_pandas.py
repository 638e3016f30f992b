"""Random questions about random stores: Spark's answer is that of pandas, as are those of the doors in tests/columns.

pandas reads nothing from a store, but is given what was appended. The seed is printed; RAXLOG_SEED repeats a run,
RAXLOG_LONG=1 has 1,000 cases.
"""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import raxlog
from examples import examples
from pandas_cases import Question, World, a_case, answer, differences, in_spark

pytestmark = pytest.mark.spark

pytest_plugins = ["spark_session"]

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
CASES = examples(25, 1000)


def by_spark(question: Question, world: World, spark: Any, dice: random.Random) -> pa.Table:
    from pyspark.sql.types import StructField, StructType, _parse_datatype_string  # noqa: PLC0415

    path = world.path
    if dice.random() < 0.5:
        path = path.with_suffix(".snapshot")
        with raxlog.open(world.path, readonly=True) as store:
            store.snapshot(path, **dice.choice([{}, {"shards": 2}]))
    options: dict[str, Any] = {"startingOffsets": question.start, "endingOffsets": question.end}
    options |= {"includeId": "id_column" in question.roles, "includeTimestamp": "timestamp_column" in question.roles}
    options |= {"failOnDataLoss": False, "pushdown": dice.random() < 0.7, "snapshotDir": path.with_suffix(".taken")}
    options |= dice.choice([{}, {}, {"minPartitions": 3}, {"maxRecordsPerPartition": 50}, {"batchRows": 7}])
    names: dict[str, Any] = {"stream": question.streams[0]}
    if question.pattern is not None:
        names = {"streamPattern": question.pattern}
    reader = spark.read.format("raxlog").options(path=str(path), **names, **{k: str(v) for k, v in options.items()})
    if question.types is not None:
        reader = reader.schema(StructType([StructField(name, _parse_datatype_string(kind))
                                           for name, kind in question.types.items()]))
    frame = reader.load()
    frame = frame if question.where is None else frame.where(question.where.spark)
    found: pa.Table = frame.select(*map(in_spark, question.chosen)).toArrow()
    return found


def test_spark_answers_random_questions_as_pandas_does_of_what_was_appended(spark: Any, tmp_path: Path) -> None:
    print(f"RAXLOG_SEED={SEED}")
    rows = 0

    def both(number: int) -> tuple[Question, pa.Table | str, pa.Table]:
        world, question, dice = a_case(SEED, number, tmp_path)
        wanted = answer(question, world, nan_is_greatest=True)
        try:
            return question, by_spark(question, world, spark, dice), wanted
        except Exception as error:  # also py4j's own, where a worker has crashed
            return question, f"{type(error).__name__}: {error}", wanted

    wrong = []
    with ThreadPoolExecutor(2) as pool:
        for question, found, wanted in pool.map(both, range(CASES)):
            rows += wanted.num_rows
            said = found if isinstance(found, str) else differences(found, wanted, question.pattern is None)
            wrong += [f"{question.shown()}\n{said}"] if said else []
    print(f"{CASES} cases, {rows} rows")
    assert not wrong, f"RAXLOG_SEED={SEED}, {len(wrong)} of {CASES} differ; the first:\n" + "\n\n".join(wrong[:5])
    assert rows > CASES
