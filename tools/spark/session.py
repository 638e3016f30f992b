"""The session: a Spark that knows format("raxlog"), and which Python it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .requirements import require, require_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYTHON = "PYSPARK_PYTHON"


def register(spark: SparkSession) -> None:
    """See raxlog.spark.register()."""
    require()
    from pyspark.errors import AnalysisException  # noqa: PLC0415

    from .source import RaxlogDataSource  # noqa: PLC0415 - what it needs may be missing

    context = getattr(spark, "sparkContext", None)  # a session of Spark Connect has none
    if context is not None and context.master.startswith("local") and not (
        os.environ.get(PYTHON) or spark.conf.get("spark.pyspark.python", None)
    ):
        context.pythonExec = sys.executable
    try:
        spark.dataSource.register(RaxlogDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # Spark 4.0 has found it by itself
            raise


def session(master: str, config: Mapping[str, str]) -> SparkSession:
    """See raxlog.spark.session()."""
    require()
    require_java()
    from pyspark.sql import SparkSession  # noqa: PLC0415

    os.environ.setdefault(PYTHON, sys.executable)  # else tasks run whatever "python3" is
    usual = {"spark.sql.session.timeZone": "UTC", "spark.sql.python.filterPushdown.enabled": "true"}
    builder = SparkSession.builder.master(master)
    for name, value in {**usual, **config}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark
