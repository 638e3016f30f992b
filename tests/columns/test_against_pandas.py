"""Random questions about random stores: through each door that needs no Spark the answer is that of pandas.

    Arrow      to_arrow(columns=, where=, start, end)         DuckDB    raxlog.duckdb.relation()
    by hand    a loop over range(), and Python's operators    Polars    raxlog.polars.scan()

pandas reads nothing from a store, but is given what was appended. Spark is asked in tests/spark. The seed is printed;
RAXLOG_SEED repeats a run, RAXLOG_LONG=1 has 1,000 cases.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import duckdb
import pandas_cases
import polars
import pyarrow as pa
import pytest
import raxlog
import raxlog.duckdb
import raxlog.polars
from examples import examples
from pandas_cases import Question, a_case, answer, by_arrow, by_hand, differences
from raxlog.storage import kernels

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
CASES, OF_KERNELS = examples(100, 1000), examples(40, 1000)


def by_polars(question: Question, store: raxlog.Store) -> pa.Table:
    frames = []
    for name in question.streams:
        frame = raxlog.polars.scan(store, name, question.start, question.end, question.types, **question.roles)
        frame = frame if question.where is None else frame.filter(question.where.polars)
        frames.append(frame.select(question.chosen))
    return polars.concat(frames).collect().to_arrow()


def by_duckdb(question: Question, store: raxlog.Store, connection: Any) -> pa.Table:
    tables = []
    for name in question.streams:
        relation = raxlog.duckdb.relation(store, name, question.start, question.end, question.types,
                                          connection=connection, **question.roles)
        relation = relation if question.where is None else relation.filter(question.where.duckdb)
        tables.append(relation.project(", ".join(map(pandas_cases.in_duckdb, question.chosen))).to_arrow_table())
    return pa.concat_tables(tables)


def test_every_door_answers_random_questions_as_pandas_does_of_what_was_appended(tmp_path: Path) -> None:
    print(f"RAXLOG_SEED={SEED}")
    asked: Counter[str] = Counter()
    wrong = []
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute("set timezone = 'UTC'")
        for number in range(CASES):
            world, question, dice = a_case(SEED, number, tmp_path)
            wanted, in_sql = (answer(question, world, nan_is_greatest) for nan_is_greatest in (False, True))
            with raxlog.open(world.path, readonly=dice.random() < 0.5) as store:
                answers = {
                    "a loop": (by_hand(question, store), wanted), "Polars": (by_polars(question, store), in_sql),
                    "Arrow": (by_arrow(question, store, dice.choice([3, 100, 65_536])), wanted),
                    "DuckDB": (by_duckdb(question, store, connection), in_sql),
                }
            assert answers["Arrow"][0].schema.equals(question.schema), question.shown()
            for door, (found, right) in answers.items():
                said = differences(found, right)
                wrong += [f"{door}, {question.shown()}\n{said}"] if said else []
            asked.update(rows=wanted.num_rows, empty=not wanted.num_rows, conditions=question.where is not None,
                        patterns=question.pattern is not None, stored=not question.given)
    print(f"{CASES} cases: {asked}")
    assert not wrong, f"RAXLOG_SEED={SEED}, {len(wrong)} answers differ; the first:\n" + "\n\n".join(wrong[:5])
    assert asked["rows"] > CASES
    assert asked["empty"] < CASES * 2 // 3
    assert CASES < 100 or min(asked["conditions"], asked["patterns"], asked["stored"]) > 1


@pytest.mark.skipif(kernels.speed() != "compiled", reason="the kernels are not compiled here")
def test_the_answers_of_compiled_and_plain_kernels_are_alike_bit_for_bit(tmp_path: Path) -> None:
    print(f"RAXLOG_SEED={SEED}")
    answers = []
    for pure in ("0", "1"):
        (folder := tmp_path / pure).mkdir()
        given = [str(SEED), str(OF_KERNELS), str(folder)]
        environment = os.environ | {"RAXLOG_PURE": pure, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, pandas_cases.__file__, *given], capture_output=True, text=True,
                              check=False, env=environment)
        assert done.returncode == 0, done.stderr
        answers.append(done.stdout.splitlines())
    assert len(answers[0]) == OF_KERNELS
    assert not list(islice((pair for pair in zip(*answers, strict=True) if pair[0] != pair[1]), 3))
