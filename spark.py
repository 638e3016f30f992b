"""The door to the Spark data source: ``spark = raxlog.spark.session()``, or ``raxlog.spark.register(spark)``.

Where raxlog is installed as a wheel, Spark finds ``format("raxlog")`` by itself (pyspark_raxlog), in
the Python that PYSPARK_PYTHON names, and nothing needs to be registered. The source is in tools/spark/.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYTHON = "PYSPARK_PYTHON"


def register(spark: SparkSession) -> None:
    """Let ``spark`` know ``format("raxlog")``. NotInstalled without pyspark and pyarrow.

    On a local master where neither PYSPARK_PYTHON nor spark.pyspark.python is set, Spark's planner and its tasks
    run in this Python from then on, in place of whatever ``python3`` is.
    """
    from .tools.spark.requirements import require  # noqa: PLC0415 - what it looks for may be missing

    require()
    from .tools.spark.source import RaxlogDataSource  # noqa: PLC0415

    context = getattr(spark, "_sc", None)  # a session of Spark Connect has none
    if context is not None and context.master.startswith("local") and not (
        os.environ.get(PYTHON) or spark.conf.get("spark.pyspark.python", None)
    ):
        context.pythonExec = sys.executable
    spark.dataSource.register(RaxlogDataSource)


def session(master: str = "local[*]", config: Mapping[str, str] | None = None) -> SparkSession:
    """A Spark session that reads and writes ``format("raxlog")``: new, or the one there is.

    ``config``   further settings: ``session(config={"spark.driver.memory": "4g"})``

    Its tasks run in this Python, filters can be pushed down, the time zone is UTC unless it is set.
    NotInstalled without pyspark, pyarrow or Java.
    """
    from .tools.spark.requirements import require, require_java  # noqa: PLC0415

    require()
    require_java()
    from pyspark.sql import SparkSession  # noqa: PLC0415

    os.environ.setdefault(PYTHON, sys.executable)
    usual = {"spark.sql.session.timeZone": "UTC", "spark.sql.python.filterPushdown.enabled": "true"}
    builder = SparkSession.builder.master(master)
    for name, value in {**usual, **(config or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark
